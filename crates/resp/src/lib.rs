//! RESP2 and RESP3 without I/O: bytes to arguments, replies to bytes.
//!
//! ```text
//!  read buffer ──> Parser ──> Args<'_>  (spans into the read buffer, nothing copied)
//!  write buffer <── Reply <── handlers  (the only writer of wire bytes)
//!  reply bytes ──> read_frame ──> Frame (scripts and clients)
//!  requests    <── put_request <── clients
//! ```
//!
//! Nothing here owns a socket, a clock or a thread, and no input causes a panic. A `Parser` returns a
//! [`ProtocolError`] with the text that Redis sends before it closes the connection. A frame reader returns a
//! [`FrameError`].
//!
//! Invariants:
//!
//! - **R1** A span from the parser lies inside the bytes that the same call was given.
//! - **R2** The way a request was cut into reads changes neither its parse nor its error.
//! - **R3** Parsing a command costs O(its bytes), in however many reads it arrives. The parser looks at each
//!   byte once, except for at most one short header.
//! - **R4** Memory is taken only for bytes that have arrived, never for an announced count or length.
//! - **R5** No text given to `Reply` can break the framing: line breaks inside error and status lines become
//!   spaces.
#![forbid(unsafe_code)]

mod args;
mod batch;
mod count;
mod error;
mod frame;
mod inline;
mod parser;
mod reply;
mod request;

pub use args::{ArgIter, Args, OwnedArgs, Span};
pub use batch::{Batch, Filled, Stop};
pub use count::FrameCount;
pub use error::ProtocolError;
pub use frame::{Frame, FrameEnd, FrameError, MAX_DEPTH, read_frame};
pub use inline::split_line;
pub use parser::{INLINE_BYTES_MAX, Limits, Parsed, Parser};
pub use reply::{Mark, Reply};
pub use request::{put_count, put_request, put_word};
