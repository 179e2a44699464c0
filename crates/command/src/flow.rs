//! How a command leaves its client, and how long it may keep its loop.

use crate::Stream;

/// Steps (about 50 ns each) that a command may take inline, one quantum.
pub const INLINE_STEPS: usize = 2_000;

/// How a command left its client.
pub enum Flow {
    /// The reply is written.
    Done,
    /// The reply's beginning is written; the stream writes the rest.
    Stream(Box<dyn Stream>),
    /// The reply comes by mail, at the latest after this time. Until then the client runs no further command
    /// (X2).
    Parked(Option<u64>),
    /// CLIENT PAUSE holds the command: run it again at that time (milliseconds since 1970) or when the pause
    /// ends.
    Held(u64),
    /// Close when everything written is sent.
    Close,
}

/// Words from which on a command goes to a worker without a look at its keys.
pub const INLINE_WORDS: usize = 400;
