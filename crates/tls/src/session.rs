//! The records of one connection: a handshake, and what comes after it.
//!
//! - SE1: of what was taken nothing is lost: what is no whole record yet is kept inside, at most one record.
//! - SE2: after the peer's farewell nothing more is read. After ours nothing more is sealed.
//! - SE3: [`Session::open`] opens at most [`RECORDS`] records. A record may be empty or change the keys, so
//!   many small ones in a few KB would take milliseconds.

use crate::NameFrom;
use crate::names::names;
use rustls::{ServerConfig, ServerConnection};
use std::fmt;
use std::io::{BufRead, Write};
use std::sync::Arc;

/// Most records opened at once (SE3).
pub const RECORDS: usize = 32;
/// Bytes of a record's header: its type, a version, and the length of the rest.
const HEADER: usize = 5;

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
        let records = Records { connection, borders: Borders::default(), ended: false };
        Ok(Handshake { records, from, early: Vec::new() })
    }

    /// Takes bytes of the peer. Errors: the handshake failed.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Progress, Failure> {
        self.records.open(bytes, &mut self.early, usize::MAX)?;
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
    /// Takes received bytes, all or those of some records (SE3), and appends what they say to `plain`, at
    /// most as many bytes. Returns how many were taken; the others are to be given again. Cost: O(bytes
    /// taken), below a quantum for 32 KB. Errors: they are no records of this connection; `plain` has what
    /// came before.
    pub fn open(&mut self, sealed: &[u8], plain: &mut Vec<u8>) -> Result<usize, Failure> {
        self.records.open(sealed, plain, RECORDS)
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
    borders: Borders,
    /// The peer said farewell.
    ended: bool,
}

impl Records {
    /// Opens at most `most` records; see [`Session::open`]. After the farewell all is taken, and dropped.
    fn open(&mut self, sealed: &[u8], plain: &mut Vec<u8>, most: usize) -> Result<usize, Failure> {
        if self.ended {
            return Ok(sealed.len());
        }
        let taken = self.borders.pass(sealed, most);
        let mut part = &sealed[..taken];
        while !part.is_empty() && !self.ended {
            // It takes some kilobytes at a time; the plaintext of the ones before was taken.
            let read = self.connection.read_tls(&mut part).map_err(|e| Failure(e.to_string()))?;
            let processed = self.connection.process_new_packets();
            self.take_plaintext(plain);
            self.ended = read == 0 || processed?.peer_has_closed();
        }
        Ok(if self.ended { sealed.len() } else { taken })
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

/// The place in a stream of records, to count them.
#[derive(Default)]
struct Borders {
    header: [u8; HEADER],
    /// Bytes of the header that came, and bytes of the record that come behind it.
    seen: usize,
    body: usize,
}

impl Borders {
    /// Passes over bytes until `most` records have ended; returns how many bytes those are. O(records)
    fn pass(&mut self, bytes: &[u8], most: usize) -> usize {
        let (mut at, mut ended) = (0, 0);
        while at < bytes.len() && ended < most {
            if self.seen < HEADER {
                let n = (HEADER - self.seen).min(bytes.len() - at);
                self.header[self.seen..self.seen + n].copy_from_slice(&bytes[at..at + n]);
                (self.seen, at) = (self.seen + n, at + n);
                if self.seen < HEADER {
                    break;
                }
                self.body = u16::from_be_bytes([self.header[3], self.header[4]]).into();
            }
            let n = self.body.min(bytes.len() - at);
            (self.body, at) = (self.body - n, at + n);
            if self.body == 0 {
                (self.seen, ended) = (0, ended + 1);
            }
        }
        at
    }
}
