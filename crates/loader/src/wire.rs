//! A connection to a server, blocking.

use crate::advice::{about_server, passes};
use crate::stop::Stop;
use crate::tls::Tls;
use resp::{Frame, FrameEnd, read_frame};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const CONNECT: Duration = Duration::from_secs(5);
/// A busy server takes longer to begin TLS than its system takes to connect.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Time between two questions whether a server has loaded its data.
const AGAIN: Duration = Duration::from_millis(200);

/// Appends a command. O(bytes).
pub fn put_command(out: &mut Vec<u8>, words: &[&[u8]]) {
    put_header(out, b'*', words.len());
    for word in words {
        put_word(out, word);
    }
}

/// Begins a command of `words` words.
pub fn put_count(out: &mut Vec<u8>, words: usize) {
    put_header(out, b'*', words);
}

pub fn put_word(out: &mut Vec<u8>, word: &[u8]) {
    put_header(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

fn put_header(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Where a server is, and how to log in.
#[derive(Clone, Debug)]
pub struct Address {
    pub place: String,
    pub user: Option<String>,
    pub password: Option<String>,
    pub db: u32,
    pub timeout: Duration,
    pub tls: Option<Tls>,
}

/// Connects, without a login. Errors do not name the server.
fn connect(address: &Address) -> Result<Box<dyn Stream>, String> {
    let limit = Some(address.timeout);
    let text = |e: io::Error| e.to_string();
    if address.place.contains('/') {
        let stream = UnixStream::connect(&address.place).map_err(text)?;
        stream.set_read_timeout(limit).and(stream.set_write_timeout(limit)).map_err(text)?;
        return Ok(Box::new(stream));
    }
    let mut last = "the name has no address".to_owned();
    let found = address
        .place
        .to_socket_addrs()
        .map_err(text)?
        .find_map(|to| TcpStream::connect_timeout(&to, CONNECT).map_err(|e| last = e.to_string()).ok());
    let stream = found.ok_or(last)?;
    let wait = |stream: &TcpStream, limit| {
        stream.set_read_timeout(Some(limit)).and(stream.set_write_timeout(Some(limit))).map_err(text)
    };
    stream.set_nodelay(true).map_err(text)?;
    let Some(tls) = &address.tls else {
        wait(&stream, address.timeout)?;
        return Ok(Box::new(stream));
    };
    let limit = address.timeout.min(HANDSHAKE);
    wait(&stream, limit)?;
    let stream = tls.wrap(stream, limit).map_err(|e| format!("TLS: {e}"))?;
    wait(stream.stream(), address.timeout)?;
    Ok(Box::new(stream))
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection that is logged in and has its database selected.
pub struct Conn {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
    start: usize,
    pub place: String,
    /// Nothing was received yet, and TLS is off.
    may_want_tls: bool,
}

impl Conn {
    /// Connects and logs in. Waits while the server loads its data, at most for `timeout` or until a signal.
    /// Errors: why not.
    pub fn open(address: &Address, stop: &Stop) -> Result<Conn, String> {
        let stream = connect(address).map_err(|e| format!("cannot connect to {}: {e}", address.place))?;
        let (place, may_want_tls) = (address.place.clone(), address.tls.is_none());
        let mut conn = Conn { stream, buffer: Vec::new(), start: 0, place, may_want_tls };
        if let Some(password) = &address.password {
            match &address.user {
                Some(user) => conn.expect_ok(&[b"AUTH", user.as_bytes(), password.as_bytes()])?,
                None => conn.expect_ok(&[b"AUTH", password.as_bytes()])?,
            }
        }
        conn.await_ready(address.timeout, stop)?;
        if address.db != 0 {
            conn.expect_ok(&[b"SELECT", address.db.to_string().as_bytes()])?;
        }
        Ok(conn)
    }

    fn await_ready(&mut self, timeout: Duration, stop: &Stop) -> Result<(), String> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.ask(&[b"PING"])? {
                Frame::Error(text) if passes(&text) && Instant::now() < deadline => {
                    std::thread::sleep(AGAIN);
                    stop.check()?;
                }
                Frame::Error(text) if passes(&text) => return Err(self.refused(b"PING", &text)),
                // A user who may not send PING may still have all needed rights; otherwise a later command
                // tells.
                _ => return Ok(()),
            }
        }
    }

    /// Sends a command and returns its reply. Errors: a refusal, with its text; a lost connection.
    pub fn call(&mut self, words: &[&[u8]]) -> Result<Frame, String> {
        match self.ask(words)? {
            Frame::Error(text) => Err(self.refused(words[0], &text)),
            reply => Ok(reply),
        }
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<Frame, String> {
        let mut bytes = Vec::new();
        put_command(&mut bytes, words);
        self.send(&bytes)?;
        self.reply()
    }

    fn refused(&self, command: &[u8], error: &[u8]) -> String {
        about_server(&self.place, error).unwrap_or_else(|| {
            let [command, error] = [command, error].map(String::from_utf8_lossy);
            format!("{} refused {command}: {error}", self.place)
        })
    }

    fn expect_ok(&mut self, words: &[&[u8]]) -> Result<(), String> {
        self.call(words).map(drop)
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).map_err(|e| self.lost(&e))
    }

    /// The next reply. O(its bytes).
    pub fn reply(&mut self) -> Result<Frame, String> {
        let mut end = FrameEnd::default();
        loop {
            let bytes = &self.buffer[self.start..];
            let whole = end.find(bytes).map_err(|e| format!("{} does not speak RESP: {e}", self.place))?;
            if whole.is_some()
                && let Some((frame, used)) =
                    read_frame(bytes).map_err(|e| format!("{} does not speak RESP: {e}", self.place))?
            {
                self.start += used;
                if self.start == self.buffer.len() {
                    self.buffer.clear();
                    self.start = 0;
                }
                return Ok(frame);
            }
            self.receive()?;
        }
    }

    fn receive(&mut self) -> Result<(), String> {
        self.buffer.drain(..std::mem::take(&mut self.start));
        let len = self.buffer.len();
        self.buffer.resize(len + (64 << 10).max(len / 2), 0);
        let got = loop {
            match self.stream.read(&mut self.buffer[len..]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                got => break got,
            }
        };
        self.buffer.truncate(len + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => Err(self.lost(&io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {
                self.may_want_tls = false;
                Ok(())
            }
            Err(e) => Err(self.lost(&e)),
        }
    }

    fn lost(&self, e: &io::Error) -> String {
        match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("{} does not answer", self.place),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset if self.may_want_tls => {
                format!(
                    "{} closed the connection at once; if it wants TLS, say so (--tls, --from-tls)",
                    self.place
                )
            }
            // Also the end of TLS without a closing message.
            io::ErrorKind::UnexpectedEof => format!("{} closed the connection", self.place),
            _ => format!("lost the connection to {}: {e}", self.place),
        }
    }

    /// The value of a line of INFO; None if there is no such line.
    pub fn info(&mut self, section: &str, name: &str) -> Result<Option<String>, String> {
        let text = match self.call(&[b"INFO", section.as_bytes()])? {
            Frame::Bulk(text) | Frame::Verbatim { text, .. } => String::from_utf8_lossy(&text).into_owned(),
            _ => String::new(),
        };
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(line.map(|value| value.trim().to_owned()))
    }
}
