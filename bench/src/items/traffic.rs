//! A load generator for single items over HTTP or RESP: many keep-alive connections, one thread, epoll.
//!
//! Each connection has one request under way. In a closed loop it sends the next one when its answer is in.
//! Latency then runs from the write to the read that completes the answer, with any wait for the generator.
//! In an open loop requests are due at a steady rate, on one connection after the other. Latency then runs
//! from the due time, whenever they are sent. An answer that is not the item is an error, so no answer is
//! quick because it is wrong.

use crate::sys::{self, Epoll, Interest};
use crate::wire;
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const SILENCE: Duration = Duration::from_secs(60);
/// Longer than any head of an answer.
const HEAD_MAX: usize = 16 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Resp,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http => "HTTP",
            Protocol::Resp => "RESP",
        }
    }

    /// Appends the request for an item. `prefix`: the text in front of its id.
    pub fn ask(self, out: &mut Vec<u8>, prefix: &[u8], id: u64) {
        match self {
            Protocol::Http => {
                out.extend_from_slice(b"GET ");
                out.extend_from_slice(prefix);
                wire::decimal(out, id);
                out.extend_from_slice(b" HTTP/1.1\r\nHost: localhost\r\n\r\n");
            }
            Protocol::Resp => {
                let mut key = Vec::with_capacity(32);
                key.extend_from_slice(prefix);
                wire::decimal(&mut key, id);
                wire::command(out, &[b"GET", &key]);
            }
        }
    }

    /// The end of the head in `bytes`, if it is complete.
    fn head_end(self, bytes: &[u8]) -> Option<usize> {
        let end: &[u8] = if self == Protocol::Http { b"\r\n\r\n" } else { b"\r\n" };
        bytes.windows(end.len()).position(|window| window == end).map(|at| at + end.len())
    }

    /// Number of bytes behind a head. Errors: it is not the head of an item.
    fn body_length(self, head: &[u8]) -> io::Result<usize> {
        let length = match self {
            Protocol::Http if head.starts_with(b"HTTP/1.1 200") => head
                .split(|&b| b == b'\n')
                .filter_map(|line| line.split_at_checked(15))
                .find(|(name, _)| name.eq_ignore_ascii_case(b"content-length:"))
                .and_then(|(_, value)| number(value)),
            Protocol::Resp if head.starts_with(b"$") => number(&head[1..]).map(|length| length + 2),
            _ => None,
        };
        length.ok_or_else(|| {
            let line = head.split(|&b| b == b'\r').next().unwrap_or_default();
            io::Error::other(format!("instead of an item: {}", String::from_utf8_lossy(line)))
        })
    }
}

fn number(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Finds the end of an answer in a stream of bytes.
#[derive(Default)]
struct Answer {
    /// The incomplete head so far.
    head: Vec<u8>,
    /// Bytes to come. None: the head is still coming.
    left: Option<usize>,
}

impl Answer {
    /// Takes the next bytes. Some, with the length of the body, when they complete the answer.
    fn feed(&mut self, protocol: Protocol, bytes: &[u8]) -> io::Result<Option<usize>> {
        let (left, body) = match self.left {
            Some(left) => (left, bytes.len()),
            None if self.head.is_empty() => match protocol.head_end(bytes) {
                Some(end) => (protocol.body_length(&bytes[..end])?, bytes.len() - end),
                None => return self.keep(bytes),
            },
            None => {
                self.head.extend_from_slice(bytes);
                match protocol.head_end(&self.head) {
                    Some(end) => {
                        let body = self.head.len() - end;
                        (protocol.body_length(&self.head[..end])?, body)
                    }
                    None => return self.keep(&[]),
                }
            }
        };
        self.head.clear();
        self.left = left.checked_sub(body).map(Some).ok_or(io::ErrorKind::InvalidData)?;
        if self.left == Some(0) {
            self.left = None;
            return Ok(Some(body));
        }
        Ok(None)
    }

    fn keep(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        self.head.extend_from_slice(bytes);
        if self.head.len() > HEAD_MAX { Err(io::ErrorKind::InvalidData.into()) } else { Ok(None) }
    }
}

struct Conn {
    stream: TcpStream,
    answer: Answer,
    /// The time when the request under way was sent, or due.
    since: Instant,
    busy: bool,
    /// The due times of the requests that wait for it.
    due: VecDeque<Instant>,
}

/// Connections ready to be loaded; may be run several times.
pub struct Traffic {
    epoll: Epoll,
    conns: Vec<Conn>,
    protocol: Protocol,
    prefix: Vec<u8>,
    buffer: Vec<u8>,
    out: Vec<u8>,
}

/// The results of a run.
pub struct Seen {
    pub requests: u64,
    pub elapsed: Duration,
    /// Nanoseconds.
    pub latency: Histogram<u64>,
}

/// An empty histogram of nanoseconds up to a minute, to three digits.
pub fn histogram() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(io::Error::other)
}

impl Traffic {
    pub fn connect(port: u16, conns: usize, protocol: Protocol, prefix: &str) -> io::Result<Traffic> {
        let epoll = Epoll::new()?;
        let mut opened = Vec::with_capacity(conns);
        for token in 0..conns {
            let stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll.add(&stream, token, Interest::Read)?;
            let (answer, due) = Default::default();
            opened.push(Conn { stream, answer, since: Instant::now(), busy: false, due });
        }
        let (buffer, out) = (vec![0; 64 << 10], Vec::new());
        Ok(Traffic { epoll, conns: opened, protocol, prefix: prefix.as_bytes().to_vec(), buffer, out })
    }

    /// Asks for the ids that `next` gives until it has no more or `until` has passed, then waits for the
    /// requests under way. Errors: the connections'; an answer that is not an item; silence.
    pub fn run(&mut self, until: Option<Instant>, mut next: impl FnMut() -> Option<u64>) -> io::Result<Seen> {
        let start = Instant::now();
        let mut seen = Seen { requests: 0, elapsed: Duration::ZERO, latency: histogram()? };
        let mut under_way = 0;
        for token in 0..self.conns.len() {
            under_way += usize::from(self.send(token, &mut next)?);
        }
        let mut ready = Vec::new();
        let mut heard = start;
        while under_way > 0 {
            self.epoll.wait(Duration::from_secs(1), &mut ready)?;
            let mut now = Instant::now();
            if !ready.is_empty() {
                heard = now;
            } else if now - heard > SILENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server stopped answering"));
            }
            for &(token, _) in &ready {
                if !self.receive(token)? {
                    continue;
                }
                now = Instant::now();
                seen.requests += 1;
                seen.latency.saturating_record((now - self.conns[token].since).as_nanos() as u64);
                let more = until.is_none_or(|until| now < until) && self.send(token, &mut next)?;
                under_way -= usize::from(!more);
            }
        }
        seen.elapsed = start.elapsed();
        Ok(seen)
    }

    /// Asks at a steady rate until `until` for the ids that `next` gives, then waits for the due requests.
    /// Errors: as [`Traffic::run`].
    pub fn run_at(&mut self, rate: f64, until: Instant, mut next: impl FnMut() -> u64) -> io::Result<Seen> {
        sys::be_punctual();
        let (start, step) = (Instant::now(), Duration::from_secs_f64(1.0 / rate));
        let mut seen = Seen { requests: 0, elapsed: Duration::ZERO, latency: histogram()? };
        let (mut due, mut turns) = (start, (0..self.conns.len()).cycle());
        let (mut ready, mut heard, mut asked) = (Vec::new(), start, 0);
        while due < until || seen.requests < asked {
            let mut now = Instant::now();
            while due <= now && due < until {
                let token = turns.next().unwrap_or(0);
                self.conns[token].due.push_back(due);
                self.send_due(token, &mut next)?;
                (due, asked) = (due + step, asked + 1);
            }
            let wait = if due < until { due.saturating_duration_since(now) } else { Duration::from_secs(1) };
            self.epoll.wait(wait, &mut ready)?;
            now = Instant::now();
            if !ready.is_empty() || seen.requests == asked {
                heard = now;
            } else if now - heard > SILENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server stopped answering"));
            }
            for &(token, _) in &ready {
                if self.receive(token)? {
                    seen.requests += 1;
                    let ns = self.conns[token].since.elapsed().as_nanos() as u64;
                    seen.latency.saturating_record(ns);
                    self.send_due(token, &mut next)?;
                }
            }
        }
        seen.elapsed = start.elapsed();
        Ok(seen)
    }

    /// Sends the first due request of a connection, unless it is busy.
    fn send_due(&mut self, token: usize, next: &mut impl FnMut() -> u64) -> io::Result<()> {
        let conn = &mut self.conns[token];
        if conn.busy {
            return Ok(());
        }
        let Some(due) = conn.due.pop_front() else { return Ok(()) };
        self.send(token, &mut || Some(next()))?;
        self.conns[token].since = due;
        Ok(())
    }

    fn send(&mut self, token: usize, next: &mut impl FnMut() -> Option<u64>) -> io::Result<bool> {
        let conn = &mut self.conns[token];
        let Some(id) = next() else { return Ok(false) };
        self.out.clear();
        self.protocol.ask(&mut self.out, &self.prefix, id);
        (conn.since, conn.busy) = (Instant::now(), true);
        // A request is a hundred bytes and the socket is empty, so it takes them all.
        conn.stream.write_all(&self.out)?;
        Ok(true)
    }

    /// Reads the available bytes, once. Returns whether they complete an answer.
    fn receive(&mut self, token: usize) -> io::Result<bool> {
        let conn = &mut self.conns[token];
        match conn.stream.read(&mut self.buffer) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
            Ok(_) if !conn.busy => Err(io::Error::other("an answer without a request")),
            Ok(n) => {
                let complete = conn.answer.feed(self.protocol, &self.buffer[..n])?.is_some();
                conn.busy = !complete;
                Ok(complete)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// One connection that reads one item after the other, with its text.
pub struct Reader {
    stream: TcpStream,
    protocol: Protocol,
    prefix: Vec<u8>,
    answer: Answer,
    out: Vec<u8>,
    bytes: Vec<u8>,
}

impl Reader {
    pub fn connect(port: u16, protocol: Protocol, prefix: &str) -> io::Result<Reader> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        let (answer, out, bytes) = Default::default();
        Ok(Reader { stream, protocol, prefix: prefix.as_bytes().to_vec(), answer, out, bytes })
    }

    /// The answer for an item, with its head.
    pub fn read(&mut self, id: u64) -> io::Result<&[u8]> {
        self.out.clear();
        self.bytes.clear();
        self.protocol.ask(&mut self.out, &self.prefix, id);
        self.stream.write_all(&self.out)?;
        let mut room = [0; 16 << 10];
        loop {
            let n = self.stream.read(&mut room)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.bytes.extend_from_slice(&room[..n]);
            if self.answer.feed(self.protocol, &room[..n])?.is_some() {
                return Ok(&self.bytes);
            }
        }
    }
}

/// The number behind `"name":` in a JSON object.
pub fn field(text: &[u8], name: &str) -> Option<u64> {
    let text = String::from_utf8_lossy(text);
    let (_, rest) = text.split_once(&format!("\"{name}\":"))?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_end_where_they_end_however_they_are_cut() {
        let http = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 7\r\nX: y\r\n\r\n{\"a\":1}";
        for (protocol, bytes) in [(Protocol::Http, &http[..]), (Protocol::Resp, b"$7\r\n{\"a\":1}\r\n")] {
            for step in 1..=bytes.len() {
                let mut answer = Answer::default();
                for _ in 0..2 {
                    let ends: Vec<bool> = bytes
                        .chunks(step)
                        .map(|chunk| answer.feed(protocol, chunk).unwrap().is_some())
                        .collect();
                    assert_eq!(ends.iter().position(|&end| end), Some(ends.len() - 1), "in chunks of {step}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_item_is_an_error() {
        for (protocol, bytes) in [
            (Protocol::Http, &b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"[..]),
            (Protocol::Http, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            (Protocol::Http, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab"),
            (Protocol::Resp, b"$-1\r\n"),
            (Protocol::Resp, b"-ERR no\r\n"),
        ] {
            assert!(Answer::default().feed(protocol, bytes).is_err());
        }
    }

    #[test]
    fn numbers_are_found_in_objects() {
        assert_eq!(field(b"$9\r\n{\"id\": 4,\"version\":17}", "version"), Some(17));
        assert_eq!(field(b"{\"id\": 4}", "id"), Some(4));
        assert_eq!(field(b"{}", "id"), None);
    }
}
