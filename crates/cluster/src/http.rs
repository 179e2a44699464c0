//! A client of HTTP/1.1 for engines over the network: JSON there and back, and replies that never end.
//!
//! - HC1: a call ends within its limit, however the server dawdles; only the system's resolver is not limited.
//! - HC2: an error says whether the server may have got the request. Nothing is sent twice.
//! - HC3: a reply that comes in chunks is read as it comes. A limit that passes in the middle loses nothing.
//!
//! Connections are kept and used again; one that the server has closed is noticed before. Threads block.

use crate::coordinator::Trouble;
use rustix::net::sockopt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tls::{Client, PeerName, Wrapped};

/// The longest head of a reply, and the longest line of a reply without end.
const HEAD_MAX: usize = 64 * 1024;
/// The longest reply.
const BODY_MAX: usize = 64 * 1024 * 1024;
/// Connections that are kept.
const IDLE_MAX: usize = 8;
/// A peer that is gone without a word is noticed after about four of these.
const PROBE: Duration = Duration::from_secs(3);

/// The reason for which no answer came (HC2).
#[derive(Clone, Debug)]
pub enum Failure {
    /// The server has not got the request.
    NotSent(Trouble),
    /// It may have got it.
    Unknown(Trouble),
}

impl Failure {
    pub fn trouble(self) -> Trouble {
        match self {
            Failure::NotSent(trouble) | Failure::Unknown(trouble) => trouble,
        }
    }
}

/// A request as it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub method: &'a str,
    /// Path and query, encoded.
    pub path: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
}

/// An answer as it came.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// One server.
pub struct Server {
    /// `host:port`.
    place: String,
    tls: Option<(Client, PeerName)>,
    idle: Mutex<Vec<Conn>>,
}

impl Server {
    /// `place`: `host:port`, where the host may be an address of IPv6 in brackets. With `tls`, the certificate
    /// is checked as that says. Errors: it is no such place.
    pub fn new(place: &str, tls: Option<Client>) -> Result<Server, String> {
        let (host, port) = place.rsplit_once(':').ok_or_else(|| format!("'{place}' has no port"))?;
        port.parse::<u16>().map_err(|_| format!("'{port}' in '{place}' is no port"))?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let tls = match tls {
            Some(client) => Some((client, PeerName::of(host)?)),
            None => None,
        };
        if host.is_empty()
            || place.bytes().any(|b| b.is_ascii_whitespace() || b.is_ascii_control() || b == b'/')
        {
            return Err(format!("'{place}' is no host and port"));
        }
        Ok(Server { place: place.to_owned(), tls, idle: Mutex::default() })
    }

    pub fn place(&self) -> &str {
        &self.place
    }

    /// Sends a request and reads the whole answer.
    pub fn call(&self, request: &Request<'_>, limit: Duration) -> Result<Answer, Failure> {
        let until = Instant::now() + limit;
        left(until).map_err(|e| Failure::NotSent(self.trouble(&e)))?;
        let mut conn = self.connect(until)?;
        let unknown = |e: io::Error| Failure::Unknown(self.trouble(&e));
        let (status, mut body) = conn.exchange(&self.place, request, until).map_err(unknown)?;
        let mut all = Vec::new();
        while body.pull(&mut conn, &mut all, until).map_err(unknown)? {
            if all.len() > BODY_MAX {
                return Err(Failure::Unknown(self.trouble(&io::Error::other("the reply is too long"))));
            }
        }
        if body.may_go_on && conn.held.is_empty() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < IDLE_MAX {
                idle.push(conn);
            }
        }
        Ok(Answer { status, body: all })
    }

    /// Sends a request whose answer goes on and on. `limit`: until its head.
    pub fn lines(&self, request: &Request<'_>, limit: Duration) -> Result<(u16, Lines), Failure> {
        let until = Instant::now() + limit;
        let mut conn = self.connect(until)?;
        let answer = conn.exchange(&self.place, request, until);
        let (status, body) = answer.map_err(|e| Failure::Unknown(self.trouble(&e)))?;
        Ok((status, Lines { conn, body, held: Vec::new(), looked: 0 }))
    }

    fn trouble(&self, e: &io::Error) -> Trouble {
        Trouble::new(match e.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => format!("{}: no answer in time", self.place),
            _ => format!("{}: {e}", self.place),
        })
    }

    /// A connection that is kept, or a new one.
    fn connect(&self, until: Instant) -> Result<Conn, Failure> {
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match kept {
                Some(conn) if conn.is_quiet() => return Ok(conn),
                Some(_) => {}
                None => break,
            }
        }
        self.dial(until).map_err(|e| Failure::NotSent(self.trouble(&e)))
    }

    fn dial(&self, until: Instant) -> io::Result<Conn> {
        let mut last = io::Error::other("the name has no address");
        for address in self.place.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, left(until)?) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    sockopt::set_socket_keepalive(&stream, true)?;
                    sockopt::set_tcp_keepidle(&stream, PROBE)?;
                    sockopt::set_tcp_keepintvl(&stream, PROBE)?;
                    sockopt::set_tcp_keepcnt(&stream, 3)?;
                    limit(&stream, until)?;
                    let wire = match &self.tls {
                        None => Wire::Plain(stream),
                        Some((client, name)) => {
                            Wire::Tls(Box::new(client.wrap(name, stream, left(until)?)?))
                        }
                    };
                    return Ok(Conn { wire, held: Vec::new() });
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

/// The time that is left. Errors: none.
fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

fn limit(stream: &TcpStream, until: Instant) -> io::Result<()> {
    let left = Some(left(until)?);
    stream.set_read_timeout(left)?;
    stream.set_write_timeout(left)
}

enum Wire {
    Plain(TcpStream),
    Tls(Box<Wrapped<TcpStream>>),
}

impl Wire {
    fn stream(&self) -> &TcpStream {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(wrapped) => wrapped.stream(),
        }
    }
}

struct Conn {
    wire: Wire,
    /// Received and not yet used.
    held: Vec<u8>,
}

impl Conn {
    /// Whether nothing came since the last answer, not even the end.
    fn is_quiet(&self) -> bool {
        let stream = self.wire.stream();
        if stream.set_nonblocking(true).is_err() {
            return false;
        }
        let quiet = matches!(stream.peek(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock);
        quiet && stream.set_nonblocking(false).is_ok()
    }

    /// Sends a request, and reads the head of its answer.
    fn exchange(&mut self, host: &str, request: &Request<'_>, until: Instant) -> io::Result<(u16, Body)> {
        let mut bytes = format!("{} {} HTTP/1.1\r\nHost: {host}\r\n", request.method, request.path);
        for (name, value) in request.headers {
            bytes.push_str(&format!("{name}: {value}\r\n"));
        }
        bytes.push_str(&format!("Content-Length: {}\r\n\r\n", request.body.len()));
        let mut bytes = bytes.into_bytes();
        bytes.extend_from_slice(request.body);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            limit(self.wire.stream(), until)?;
            let sent = match &mut self.wire {
                Wire::Plain(stream) => stream.write(rest),
                Wire::Tls(wrapped) => wrapped.write(rest),
            };
            match sent {
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if let Wire::Tls(wrapped) = &mut self.wire {
            wrapped.flush()?;
        }
        loop {
            let (status, body, used) = self.head(until)?;
            self.held.drain(..used);
            if status >= 200 {
                return Ok((status, body));
            }
        }
    }

    fn head(&mut self, until: Instant) -> io::Result<(u16, Body, usize)> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 64];
            let mut head = httparse::Response::new(&mut headers);
            let wrong = |why: String| io::Error::new(ErrorKind::InvalidData, why);
            if let httparse::Status::Complete(used) =
                head.parse(&self.held).map_err(|e| wrong(format!("no HTTP: {e}")))?
            {
                let status = head.code.unwrap_or(0);
                let body = Body::of(status, head.version, head.headers).map_err(wrong)?;
                return Ok((status, body, used));
            }
            if self.held.len() > HEAD_MAX {
                return Err(wrong("the head of the reply is too long".to_owned()));
            }
            if self.fill(until)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Waits for more. 0: the server has closed.
    fn fill(&mut self, until: Instant) -> io::Result<usize> {
        let mut room = [0; 16 * 1024];
        loop {
            self.wire.stream().set_read_timeout(Some(left(until)?))?;
            let read = match &mut self.wire {
                Wire::Plain(stream) => stream.read(&mut room),
                Wire::Tls(wrapped) => wrapped.read(&mut room),
            };
            match read {
                Ok(n) => {
                    self.held.extend_from_slice(&room[..n]);
                    return Ok(n);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// The next part of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Bytes(usize),
    /// The length of a chunk, in a line of its own.
    Size,
    Chunk(usize),
    /// The line end behind a chunk.
    ChunkEnd,
    /// Lines behind the last chunk, up to an empty one.
    Trailer,
    /// All up to the end of the connection.
    Rest,
    Nothing,
}

#[derive(Debug)]
struct Body {
    part: Part,
    /// Whether the connection can be used again.
    may_go_on: bool,
}

impl Body {
    fn of(status: u16, version: Option<u8>, headers: &[httparse::Header<'_>]) -> Result<Body, String> {
        let value = |name: &str| {
            let found = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
            std::str::from_utf8(found.value).ok().map(str::trim)
        };
        let closes =
            version != Some(1) || value("connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
        let part = match (value("transfer-encoding"), value("content-length")) {
            _ if status < 200 || status == 204 || status == 304 => Part::Nothing,
            (Some(how), _) if how.eq_ignore_ascii_case("chunked") => Part::Size,
            (Some(how), _) => return Err(format!("the transfer encoding '{how}' is unknown")),
            (None, Some(text)) => match text.parse().map_err(|_| "no Content-Length".to_owned())? {
                0 => Part::Nothing,
                n => Part::Bytes(n),
            },
            (None, None) => Part::Rest,
        };
        Ok(Body { part, may_go_on: !closes && part != Part::Rest })
    }

    /// Moves what is there to `to`; if nothing is, waits for more, once. Returns whether there is more to come.
    /// On an error of time nothing is lost (HC3).
    fn pull(&mut self, conn: &mut Conn, to: &mut Vec<u8>, until: Instant) -> io::Result<bool> {
        if self.part == Part::Nothing {
            return Ok(false);
        }
        let (used, next) = self.step(&conn.held, to)?;
        conn.held.drain(..used);
        if next == self.part && used == 0 && conn.fill(until)? == 0 {
            if self.part != Part::Rest {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.part = Part::Nothing;
            return Ok(false);
        }
        self.part = next;
        Ok(self.part != Part::Nothing)
    }

    /// How many bytes are used, and what comes behind them. 0 and the same: more are needed.
    fn step(&self, held: &[u8], to: &mut Vec<u8>) -> io::Result<(usize, Part)> {
        let wrong = |why: &str| io::Error::new(ErrorKind::InvalidData, why);
        let line = || match held.iter().position(|b| *b == b'\n') {
            Some(at) => Ok(Some(at)),
            None if held.len() > HEAD_MAX => Err(wrong("a line between chunks is too long")),
            None => Ok(None),
        };
        match self.part {
            Part::Bytes(n) | Part::Chunk(n) => {
                let used = n.min(held.len());
                to.extend_from_slice(&held[..used]);
                let chunked = matches!(self.part, Part::Chunk(_));
                Ok((
                    used,
                    match (n - used, chunked) {
                        (0, true) => Part::ChunkEnd,
                        (0, false) => Part::Nothing,
                        (left, true) => Part::Chunk(left),
                        (left, false) => Part::Bytes(left),
                    },
                ))
            }
            Part::Size => {
                let Some(at) = line()? else { return Ok((0, Part::Size)) };
                let text = std::str::from_utf8(&held[..at]).unwrap_or_default();
                let digits = text.split(';').next().unwrap_or_default().trim();
                match usize::from_str_radix(digits, 16) {
                    Ok(0) => Ok((at + 1, Part::Trailer)),
                    Ok(n) if n <= BODY_MAX => Ok((at + 1, Part::Chunk(n))),
                    _ => Err(wrong("a chunk has no length")),
                }
            }
            Part::ChunkEnd => Ok(line()?.map_or((0, Part::ChunkEnd), |at| (at + 1, Part::Size))),
            Part::Trailer => Ok(match line()? {
                None => (0, Part::Trailer),
                Some(at) if held[..at].iter().all(|b| *b == b'\r') => (at + 1, Part::Nothing),
                Some(at) => (at + 1, Part::Trailer),
            }),
            Part::Rest => {
                to.extend_from_slice(held);
                Ok((held.len(), Part::Rest))
            }
            Part::Nothing => Ok((0, Part::Nothing)),
        }
    }
}

/// The lines of an answer that goes on and on.
pub struct Lines {
    conn: Conn,
    body: Body,
    held: Vec<u8>,
    /// Bytes of `held` that have no line end.
    looked: usize,
}

/// The result of waiting for a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Whole(Vec<u8>),
    /// None came in time. Ask again.
    Quiet,
    /// The answer ended.
    End,
}

impl Lines {
    /// The next line. Errors: the connection broke, or a line is too long.
    pub fn next(&mut self, limit: Duration) -> Result<Line, Trouble> {
        let until = Instant::now() + limit;
        loop {
            if let Some(at) = self.held[self.looked..].iter().position(|b| *b == b'\n') {
                let rest = self.held.split_off(self.looked + at + 1);
                let mut line = std::mem::replace(&mut self.held, rest);
                line.pop();
                self.looked = 0;
                return Ok(Line::Whole(line));
            }
            self.looked = self.held.len();
            if self.looked > BODY_MAX {
                return Err(Trouble::new("a line of the reply is too long"));
            }
            match self.body.pull(&mut self.conn, &mut self.held, until) {
                Ok(true) => {}
                Ok(false) if self.held.len() > self.looked => {}
                Ok(false) if self.held.is_empty() => return Ok(Line::End),
                Ok(false) => {
                    self.looked = 0;
                    return Ok(Line::Whole(std::mem::take(&mut self.held)));
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(Line::Quiet);
                }
                Err(e) => return Err(Trouble::new(e.to_string())),
            }
        }
    }

    /// All that comes until the end or the limit, as of an error.
    pub fn rest(mut self, limit: Duration) -> Vec<u8> {
        let until = Instant::now() + limit;
        while self.held.len() < HEAD_MAX
            && matches!(self.body.pull(&mut self.conn, &mut self.held, until), Ok(true))
        {}
        self.held
    }
}

const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as base64. O(n).
pub fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(three.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let sign = SIGNS[(bits >> (18 - 6 * at) & 63) as usize] as char;
            text.push(if at <= three.len() { sign } else { '=' });
        }
    }
    text
}

/// The value of each sign; 64: it is none.
const VALUES: [u8; 256] = {
    let (mut values, mut at) = ([64; 256], 0);
    while at < SIGNS.len() {
        values[SIGNS[at] as usize] = at as u8;
        at += 1;
    }
    values
};

/// Reads base64. O(n). None: it is none.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for four in text.chunks(4) {
        let mut bits = 0u32;
        for at in 0..4 {
            let value = match four.get(at) {
                Some(sign) if VALUES[*sign as usize] < 64 => u32::from(VALUES[*sign as usize]),
                Some(_) => return None,
                None => 0,
            };
            bits = bits << 6 | value;
        }
        let whole = four.len().checked_sub(1).filter(|n| *n > 0)?;
        bytes.extend_from_slice(&bits.to_be_bytes()[1..=whole]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const GET: Request<'_> = Request { method: "GET", path: "/", headers: &[], body: b"" };

    /// A server whose script runs on a thread, once a connection.
    fn server(script: impl Fn(usize, TcpStream) + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("an address").to_string();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                script(number, stream.expect("a connection"));
            }
        });
        Server::new(&place, None).expect("a place")
    }

    fn read_head(stream: &mut TcpStream) -> bool {
        let mut seen = Vec::new();
        let mut byte = [0];
        while !seen.ends_with(b"\r\n\r\n") {
            if stream.read(&mut byte).unwrap_or(0) == 0 {
                return false;
            }
            seen.push(byte[0]);
        }
        true
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn bodies_of_all_kinds_are_read_whole_and_byte_by_byte() {
        let replies: [&[u8]; 5] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nX: y\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.0 200 OK\r\n\r\nhello",
        ];
        for slowly in [false, true] {
            let at = server(move |number, mut stream| {
                let mut number = number;
                while read_head(&mut stream) {
                    for piece in replies[number.min(4)].chunks(if slowly { 1 } else { 1000 }) {
                        let _ = stream.write_all(piece);
                    }
                    number += 1;
                    if number >= 5 {
                        return;
                    }
                }
            });
            for number in 0..5 {
                let answer = at.call(&GET, LONG).expect("an answer");
                let expected = if number == 3 { (204, "") } else { (200, "hello") };
                assert_eq!((answer.status, std::str::from_utf8(&answer.body)), (expected.0, Ok(expected.1)));
                // One connection for all but the last, which has no end otherwise.
                assert_eq!(at.idle.lock().expect("connections").len(), usize::from(number < 4));
            }
        }
    }

    #[test]
    fn lines_survive_limits_in_their_middle() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let at = server(move |_, mut stream| {
            read_head(&mut stream);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\none\ntw");
            let _ = wait.recv();
            let _ = stream.write_all(b"o\n\r\n5\r\nthree\r\n0\r\n\r\n");
        });
        let (status, mut lines) = at.lines(&GET, LONG).expect("a head");
        assert_eq!(status, 200);
        assert_eq!(lines.next(LONG), Ok(Line::Whole(b"one".to_vec())));
        for _ in 0..3 {
            assert_eq!(lines.next(Duration::from_millis(5)), Ok(Line::Quiet));
        }
        go.send(()).expect("the server");
        assert_eq!(lines.next(LONG), Ok(Line::Whole(b"two".to_vec())));
        assert_eq!(lines.next(LONG), Ok(Line::Whole(b"three".to_vec())));
        assert_eq!(lines.next(LONG), Ok(Line::End));
    }

    #[test]
    fn a_failure_says_whether_the_request_went_out() {
        // Nobody listens.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("an address").to_string();
        let at = Server::new(&place, None).expect("a place");
        // It is taken by the system and never answered.
        assert!(matches!(at.call(&GET, Duration::from_millis(50)), Err(Failure::Unknown(_))));
        drop(listener);
        assert!(matches!(at.call(&GET, LONG), Err(Failure::NotSent(_))));
        // Cut in the middle, never ending, and no HTTP.
        let replies: [&[u8]; 3] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
            b"HTTP/1.1 200 OK\r\nX: y\r\n",
            b"-ERR no\r\n",
        ];
        let at = server(move |number, mut stream| {
            read_head(&mut stream);
            let _ = stream.write_all(replies[number]);
        });
        for _ in replies {
            assert!(matches!(at.call(&GET, LONG), Err(Failure::Unknown(_))));
        }
    }

    #[test]
    fn a_connection_that_the_server_closed_is_not_used_again() {
        let at = server(|_, mut stream| {
            read_head(&mut stream);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        });
        for _ in 0..20 {
            at.call(&GET, LONG).expect("an answer");
            // The end arrives a moment later.
            while at.idle.lock().expect("connections").last().is_some_and(Conn::is_quiet) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn places_and_base64_are_read() {
        for bad in ["host", "host:", "host:x", "host:70000", ":2379", "a b:1", "a/b:1"] {
            assert!(Server::new(bad, None).is_err(), "{bad}");
        }
        assert!(Server::new("[::1]:2379", None).is_ok());
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
            assert_eq!(from_base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_base64(&base64(&all)), Some(all));
        assert!(from_base64("a").is_none() && from_base64("a*b=").is_none());
    }
}
