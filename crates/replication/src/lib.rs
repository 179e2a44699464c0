//! How do the data of one server come to others?
//!
//! ```text
//! order thread ─► Backlog ─► Feed, one for each replica, on its connection's loop
//! durable ──────► Spool ─────┘   the snapshot before it, from one file that many read
//! Primary: a thread that decides, watches and tidies
//!
//! primary ─────► Link, a thread: handshake, full sync ─► the stream, on a loop of the server
//! ```
//!
//! Data that are about to be replaced, and that the primary does not have, go to a file: `lost`.
//!
//! Knows no server: that is a [`primary::Host`] and a [`replica::Host`].
#![forbid(unsafe_code)]

pub mod backlog;
pub mod ids;
pub mod lost;
pub mod primary;
pub mod replica;
mod spill;

pub use spill::nameless;
