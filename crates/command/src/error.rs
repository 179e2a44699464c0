//! A client's mistake, with the exact text of Redis. Texts that several commands use are defined here.

use keyspace::WrongType;
use std::borrow::Cow;

/// Redis's words for a command that memory is too short for.
pub const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// The client's mistake. [`Error::text`] is the whole error line without the leading `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    WrongType,
    Syntax,
    NotInteger,
    NotFloat,
    OutOfRange,
    NoSuchKey,
    IndexOutOfRange,
    InvalidExpire(String),
    Arity(String),
    /// Any other text, with its code word (`ERR` …).
    Text(Cow<'static, str>),
    /// Not a reply: the work budget is used up. The run is dropped and repeated on a worker.
    Budget,
    /// Not a reply: the worker's client is gone.
    Cancelled,
}

impl Error {
    /// A fixed text, with its code word.
    pub const fn new(text: &'static str) -> Error {
        Error::Text(Cow::Borrowed(text))
    }

    /// More memory beside the data than `stdx::budget` allows. The command fails and has changed nothing.
    pub const fn work_memory() -> Error {
        Error::new("ERR this command needs more memory than 'work-max-memory' allows")
    }

    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Error::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value".into(),
            Error::Syntax => "ERR syntax error".into(),
            Error::NotInteger => "ERR value is not an integer or out of range".into(),
            Error::NotFloat => "ERR value is not a valid float".into(),
            Error::OutOfRange => "ERR value is out of range".into(),
            Error::NoSuchKey => "ERR no such key".into(),
            Error::IndexOutOfRange => "ERR index out of range".into(),
            Error::InvalidExpire(command) => format!("ERR invalid expire time in '{command}' command").into(),
            Error::Arity(command) => format!("ERR wrong number of arguments for '{command}' command").into(),
            Error::Text(text) => Cow::Borrowed(text),
            Error::Budget | Error::Cancelled => "ERR internal: run dropped".into(),
        }
    }
}

impl From<WrongType> for Error {
    fn from(_: WrongType) -> Error {
        Error::WrongType
    }
}

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error::Text(text.into())
    }
}
