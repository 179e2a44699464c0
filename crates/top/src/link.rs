//! A connection that asks several things at once, and is opened again after it was lost.

use dial::{Conn, Error, Frame};
use reach::Address;
use std::time::{Duration, Instant};

/// Most bytes of one reply.
const REPLY_MAX: usize = 16 << 20;
/// The longest wait for a server, if nothing else is said.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A server, and the connection to it while there is one.
pub struct Link {
    address: Address,
    conn: Option<Conn>,
}

impl Link {
    /// Connects. Blocks for as long as the address says. Errors: a sentence that names the server.
    pub fn open(address: Address) -> Result<Link, String> {
        let mut link = Link { address, conn: None };
        link.connect()?;
        Ok(link)
    }

    /// Without a connection.
    pub fn closed(address: Address) -> Link {
        Link { address, conn: None }
    }

    pub fn is_open(&self) -> bool {
        self.conn.is_some()
    }

    /// Connects, if there is no connection. Errors: as [`Link::open`].
    pub fn connect(&mut self) -> Result<(), String> {
        if self.conn.is_none() {
            let mut open = Conn::open(&self.address.server).map_err(|e| self.told(&e))?;
            open.set_reply_max(REPLY_MAX);
            self.conn = Some(open);
            let named = self.call(&["CLIENT", "SETNAME", "evenkeel-top"])?;
            if let Frame::Error(text) = named
                && [&b"NOAUTH"[..], b"WRONGPASS"].iter().any(|code| text.starts_with(code))
            {
                self.conn = None;
                return Err(crate::text::ascii(&format!("{}: {}", self.place(), dial::shown(&text))));
            }
            if self.address.db != 0 {
                self.call(&["SELECT", &self.address.db.to_string()])?;
            }
        }
        Ok(())
    }

    /// Sends all requests, and returns as many replies, of which each may be an error reply. Errors: the
    /// connection was lost, and is closed.
    pub fn ask(&mut self, requests: &[Vec<String>]) -> Result<Vec<Frame>, String> {
        let conn = self.conn.as_mut().ok_or("not connected")?;
        let asked = conn.pipeline(requests);
        asked.map_err(|e| {
            self.conn = None;
            self.told(&e)
        })
    }

    fn call(&mut self, words: &[&str]) -> Result<Frame, String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Ok(self.ask(&[words])?.pop().unwrap_or(Frame::Null))
    }

    /// Microseconds until a PING was answered, also by an error.
    pub fn ping_us(&mut self) -> Result<u64, String> {
        let begin = Instant::now();
        self.call(&["PING"])?;
        Ok(begin.elapsed().as_micros() as u64)
    }

    pub fn place(&self) -> &str {
        &self.address.server.place
    }

    /// A sentence about the error, as a terminal may show it.
    fn told(&self, error: &Error) -> String {
        let wants_tls = matches!(error, Error::Closed { at_once: true }) && self.address.server.tls.is_none();
        let advice = if wants_tls { " at once; if it wants TLS, say --tls" } else { "" };
        crate::text::ascii(&format!("{}: {error}{advice}", self.place()))
    }
}

/// Words of a request.
pub fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}
