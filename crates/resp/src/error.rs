//! Protocol errors of a client. The answer is one error line; then the connection closes.

use crate::Reply;

/// A broken request. The texts are those of Redis 7.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    InvalidMultibulkLength,
    UnauthenticatedMultibulkLength,
    TooBigMultibulkCount,
    ExpectedDollar(u8),
    InvalidBulkLength,
    UnauthenticatedBulkLength,
    /// A bulk is not followed by CR LF (Valkey 9).
    InvalidTerminator,
    TooBigBulkCount,
    TooBigInline,
    UnbalancedQuotes,
    /// A command of 4 GiB or more. Redis would reach its query buffer limit instead.
    TooBigRequest,
}

impl ProtocolError {
    /// The reason without `ERR Protocol error: `, for logs.
    pub fn reason(self) -> &'static str {
        match self {
            ProtocolError::InvalidMultibulkLength => "invalid multibulk length",
            ProtocolError::UnauthenticatedMultibulkLength => "unauthenticated multibulk length",
            ProtocolError::TooBigMultibulkCount => "too big mbulk count string",
            ProtocolError::ExpectedDollar(_) => "expected $ but got something else",
            ProtocolError::InvalidBulkLength => "invalid bulk length",
            ProtocolError::UnauthenticatedBulkLength => "unauthenticated bulk length",
            ProtocolError::InvalidTerminator => "invalid CRLF in request",
            ProtocolError::TooBigBulkCount => "too big bulk count string",
            ProtocolError::TooBigInline => "too big inline request",
            ProtocolError::UnbalancedQuotes => "unbalanced quotes in request",
            ProtocolError::TooBigRequest => "too big request",
        }
    }

    /// Appends the error line that the client gets before the connection closes.
    pub fn write(self, out: &mut Reply) {
        let mut line = b"ERR Protocol error: ".to_vec();
        match self {
            ProtocolError::ExpectedDollar(got) => {
                line.extend_from_slice(b"expected '$', got '");
                line.push(got);
                line.push(b'\'');
            }
            other => line.extend_from_slice(other.reason().as_bytes()),
        }
        out.error_bytes(&line);
    }
}

impl std::fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProtocolError::ExpectedDollar(got) => {
                write!(f, "Protocol error: expected '$', got '{}'", got.escape_ascii())
            }
            other => write!(f, "Protocol error: {}", other.reason()),
        }
    }
}

impl std::error::Error for ProtocolError {}
