//! A connection to a server that is logged in, with errors that name the server.

use crate::advice::{about_server, passes};
use crate::stop::Stop;
use dial::{Error, Frame, Patience, put_request};
use reach::Address;
use std::time::{Duration, Instant};

/// The longest time until a signal is seen while a reply is awaited.
const SLICE: Duration = Duration::from_millis(100);
/// Time between two questions whether a server has loaded its data.
const AGAIN: Duration = Duration::from_millis(200);

/// Most bytes of one reply, but for values: a page of SCAN with long keys.
const REPLY_MAX: usize = 64 << 20;

/// A connection that is logged in and has its database selected.
pub struct Conn {
    line: dial::Conn,
    pub place: String,
    is_plain: bool,
    timeout: Duration,
    stop: Stop,
}

impl Conn {
    /// Connects and logs in. Waits while the server loads its data, at most for the address's timeout or until
    /// a signal. Errors: why not.
    pub fn open(Address { server, db }: &Address, stop: &Stop) -> Result<Conn, String> {
        let is_plain = server.tls.is_none();
        let mut line = dial::Conn::open(server).map_err(|e| failed(&server.place, is_plain, e))?;
        line.set_reply_max(REPLY_MAX);
        let (place, timeout) = (server.place.clone(), server.timeout);
        let mut conn = Conn { line, place, is_plain, timeout, stop: stop.clone() };
        conn.await_ready(server.timeout, stop)?;
        if *db != 0 {
            conn.call(&[b"SELECT", db.to_string().as_bytes()])?;
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
                Frame::Error(text) if passes(&text) => return Err(refused(&self.place, b"PING", &text)),
                // A user who may not send PING may still have all needed rights; otherwise a later command
                // tells.
                _ => return Ok(()),
            }
        }
    }

    /// Sends a command and returns its reply. Errors: a refusal, with its text; a lost connection; a signal, after
    /// which the connection is of no use.
    pub fn call(&mut self, words: &[&[u8]]) -> Result<Frame, String> {
        match self.ask(words)? {
            Frame::Error(text) => Err(refused(&self.place, words[0], &text)),
            reply => Ok(reply),
        }
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<Frame, String> {
        let mut request = Vec::new();
        put_request(&mut request, words);
        self.send(&request)?;
        let patience = Patience::running(self.timeout);
        loop {
            // In slices: nobody wants to wait minutes for a silent server after Ctrl-C.
            let left = patience.left().unwrap_or_default();
            match self.line.reply_within(left.min(SLICE)) {
                Err(Error::Late) if !left.is_zero() => self.stop.check()?,
                reply => return reply.map_err(|e| failed(&self.place, self.is_plain, e)),
            }
        }
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.line.send(bytes).map_err(|e| failed(&self.place, self.is_plain, e))
    }

    /// Takes values of any size from here on, as far as there is memory; or no longer.
    pub fn take_values(&mut self, takes: bool) {
        self.line.set_reply_max(if takes { crate::memory::value_max() } else { REPLY_MAX });
    }

    /// The next reply. O(its bytes).
    pub fn reply(&mut self) -> Result<Frame, String> {
        self.line.reply().map_err(|e| failed(&self.place, self.is_plain, e))
    }

    /// The value of a line of INFO; None if there is no such line.
    pub fn info(&mut self, section: &str, name: &str) -> Result<Option<String>, String> {
        let text = self.call(&[b"INFO", section.as_bytes()])?.lossy();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(line.map(|value| value.trim().to_owned()))
    }
}

fn refused(place: &str, command: &[u8], error: &[u8]) -> String {
    about_server(place, error).unwrap_or_else(|| {
        let [command, error] = [command, error].map(dial::shown);
        format!("{place} refused {command}: {error}")
    })
}

/// The sentence about a connection that gave no reply. `is_plain`: without TLS.
pub fn failed(place: &str, is_plain: bool, error: Error) -> String {
    match error {
        Error::Connect(e) => format!("cannot connect to {place}: {e}"),
        Error::Tls(_) => format!("cannot connect to {place}: {error}"),
        Error::Refused { command, text } => refused(place, command.as_bytes(), &text),
        Error::Late => format!("{place} does not answer"),
        Error::Closed { at_once: true } if is_plain => {
            format!("{place} closed the connection at once; if it wants TLS, say so (--tls and its kin)")
        }
        Error::Closed { .. } => format!("{place} closed the connection"),
        Error::Lost(e) => format!("lost the connection to {place}: {e}"),
        Error::NotResp(e) => format!("{place} does not speak RESP: {e}"),
        Error::TooLong(_) => format!("{place}: {error}"),
    }
}
