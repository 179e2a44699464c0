//! RESP2 and RESP3 without I/O: bytes to arguments, replies to bytes.
//!
//! ```text
//!  read buffer ──> Parser ──> Args<'_>  (spans into the read buffer, nothing copied)
//!  write buffer <── Reply <── handlers  (the only writer of wire bytes)
//!  reply bytes ──> read_frame ──> Frame (scripts and test clients)
//! ```
//!
//! Nothing here owns a socket, a clock or a thread, and nothing here panics on what a peer sent:
//! a `Parser` answers with a [`ProtocolError`] carrying the text Redis would send before it closes
//! the connection, a frame reader with [`FrameError`].
//!
//! Invariants:
//!
//! - **R1** A span handed out by the parser lies inside the bytes that the same call was given.
//! - **R2** How a request was cut into reads never changes what is parsed, nor which error is reported.
//! - **R3** Parsing a command costs O(its bytes) however many reads it arrives in: the parser never looks twice
//!   at a byte, except for at most one short header.
//! - **R4** Memory is only taken for bytes that have arrived, never for a count or length a peer merely announced.
//! - **R5** No text passed to `Reply` can break the framing: line breaks inside error and status lines become spaces.
#![forbid(unsafe_code)]

mod args;
mod batch;
mod error;
mod frame;
mod inline;
mod parser;
mod reply;

pub use args::{ArgIter, Args, OwnedArgs, Span};
pub use batch::{Batch, Filled, Stop};
pub use error::ProtocolError;
pub use frame::{Frame, FrameEnd, FrameError, MAX_DEPTH, read_frame};
pub use inline::split_line;
pub use parser::{INLINE_BYTES_MAX, Limits, Parsed, Parser};
pub use reply::{Mark, Reply};
