//! The records of one connection: a handshake, and what comes after it.
//!
//! - SE1: all that was given to [`Session::open`] is read: what is no whole record yet is kept inside, at most one
//!   record.
//! - SE2: after the peer's farewell nothing more is read. After ours nothing more is sealed.

use crate::NameFrom;
use crate::names::names;
use rustls::{ServerConfig, ServerConnection};
use std::fmt;
use std::io::{BufRead, Write};
use std::sync::Arc;

/// Why a connection cannot go on. The alert for the peer is the next to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<rustls::Error> for Failure {
    fn from(e: rustls::Error) -> Failure {
        Failure(e.to_string())
    }
}

/// How far a handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More of the peer's bytes are needed.
    More,
    /// It is over, once what is to be sent is sent.
    Done,
}

/// A connection that is not established yet.
pub struct Handshake {
    records: Records,
    from: NameFrom,
    /// Plaintext that came behind the handshake.
    early: Vec<u8>,
}

impl Handshake {
    pub(crate) fn new(config: Arc<ServerConfig>, from: NameFrom) -> Result<Handshake, Failure> {
        let mut connection = ServerConnection::new(config)?;
        // Callers bound what they give.
        connection.set_buffer_limit(None);
        let records = Records { connection, ended: false };
        Ok(Handshake { records, from, early: Vec::new() })
    }

    /// Takes bytes of the peer. Errors: the handshake failed.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Progress, Failure> {
        self.records.open(bytes, &mut self.early)?;
        Ok(self.progress())
    }

    pub fn progress(&self) -> Progress {
        if self.records.connection.is_handshaking() { Progress::More } else { Progress::Done }
    }

    /// Appends the bytes that are to be sent, alerts among them.
    pub fn answer(&mut self, out: &mut Vec<u8>) {
        self.records.write(out);
    }

    /// Ends the handshake, which is [`Progress::Done`]. Errors: see T5.
    pub fn finish(self) -> Result<Greeted, Failure> {
        let certs = self.records.connection.peer_certificates();
        let found =
            certs.and_then(|certs| certs.first()).map_or(Ok(Vec::new()), |cert| names(cert, self.from));
        let names = found.map_err(|e| Failure(e.to_string()))?;
        let session = Session { records: self.records, said_farewell: false };
        Ok(Greeted { session, early: self.early, names })
    }
}

/// The result of a handshake.
pub struct Greeted {
    pub session: Session,
    /// Plaintext that came together with the handshake.
    pub early: Vec<u8>,
    /// Names of the client's verified certificate that may be its user's.
    pub names: Vec<Vec<u8>>,
}

/// An established connection.
pub struct Session {
    records: Records,
    said_farewell: bool,
}

impl Session {
    /// Takes received bytes and appends what they say to `plain`, at most as many bytes. True: the peer sends
    /// nothing more. Cost: O(bytes). Errors: they are no records of this connection; `plain` has what came
    /// before.
    pub fn open(&mut self, sealed: &[u8], plain: &mut Vec<u8>) -> Result<bool, Failure> {
        self.records.open(sealed, plain)?;
        Ok(self.records.ended)
    }

    /// Whether the peer sends nothing more.
    pub fn has_ended(&self) -> bool {
        self.records.ended
    }

    /// Appends the records of `plain` to `out`, behind all that is to be sent anyway. Cost: O(bytes).
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let mut rest = plain;
        out.reserve(plain.len() + plain.len() / 256 + 64);
        while !self.said_farewell && !rest.is_empty() {
            // The buffer has no limit, and writing to memory does not fail.
            match self.records.connection.writer().write(rest) {
                Ok(n) if n > 0 => rest = &rest[n..],
                _ => break,
            }
        }
        self.records.write(out);
    }

    /// Whether anything is to be sent though nothing was sealed: answers to the peer's records, alerts.
    pub fn has_to_send(&self) -> bool {
        self.records.connection.wants_write()
    }

    /// Appends the announcement that nothing more is sent, once.
    pub fn farewell(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.said_farewell, true) {
            self.records.connection.send_close_notify();
        }
        self.records.write(out);
    }

    /// Whether [`Session::farewell`] was said.
    pub fn has_said_farewell(&self) -> bool {
        self.said_farewell
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session {{ version: {:?} }}", self.records.connection.protocol_version())
    }
}

/// The state that rustls keeps.
struct Records {
    connection: ServerConnection,
    /// The peer said farewell.
    ended: bool,
}

impl Records {
    /// See [`Session::open`].
    fn open(&mut self, mut sealed: &[u8], plain: &mut Vec<u8>) -> Result<(), Failure> {
        while !sealed.is_empty() && !self.ended {
            // It takes some kilobytes at a time; the plaintext of the ones before was taken.
            let taken = self.connection.read_tls(&mut sealed).map_err(|e| Failure(e.to_string()))?;
            let processed = self.connection.process_new_packets();
            self.take_plaintext(plain);
            self.ended = taken == 0 || processed?.peer_has_closed();
        }
        Ok(())
    }

    fn take_plaintext(&mut self, plain: &mut Vec<u8>) {
        let mut reader = self.connection.reader();
        // An error means that there is nothing more now.
        while let Ok(chunk) = reader.fill_buf() {
            let n = chunk.len();
            if n == 0 {
                return;
            }
            plain.extend_from_slice(chunk);
            reader.consume(n);
        }
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        while self.connection.wants_write() && self.connection.write_tls(out).is_ok_and(|n| n > 0) {}
    }
}
