//! The reasons for which no reply came.

use resp::FrameError;
use std::fmt;
use std::io;

/// The reason for which a connection gave no reply. It does not name the server. An error reply is no error
/// here but a frame, except to AUTH and HELLO. Texts of the server are shown as [`shown`](crate::shown) makes
/// them.
#[derive(Debug)]
pub enum Error {
    /// No connection came about.
    Connect(io::Error),
    /// TLS did not begin.
    Tls(String),
    /// AUTH or HELLO was answered with an error, whose text this is.
    Refused { command: &'static str, text: Vec<u8> },
    /// Nothing came in time, or too little could be sent. After a late read the connection may still be used.
    Late,
    /// The server closed the connection. `at_once`: without a byte before, as one does that expects TLS.
    Closed { at_once: bool },
    /// The connection broke.
    Lost(io::Error),
    /// The bytes that came are no reply.
    NotResp(FrameError),
    /// A reply has more bytes than this limit.
    TooLong(usize),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Connect(e) => write!(f, "cannot connect: {e}"),
            Error::Tls(why) => write!(f, "TLS: {why}"),
            Error::Refused { command, text } => {
                write!(f, "{command} was refused: {}", crate::shown(text))
            }
            Error::Late => f.write_str("the server does not answer"),
            Error::Closed { .. } => f.write_str("the server closed the connection"),
            Error::Lost(e) => write!(f, "lost the connection: {e}"),
            Error::NotResp(e) => write!(f, "the server does not speak RESP: {e}"),
            Error::TooLong(limit) => write!(f, "a reply of more than {limit} bytes"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Connect(e) | Error::Lost(e) => e.kind(),
            Error::Late => io::ErrorKind::TimedOut,
            Error::Closed { .. } => io::ErrorKind::UnexpectedEof,
            Error::NotResp(_) | Error::TooLong(_) => io::ErrorKind::InvalidData,
            Error::Refused { .. } => io::ErrorKind::PermissionDenied,
            Error::Tls(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
