//! A blocking client of servers that speak RESP: for tools, tests and benchmarks.
//!
//! ```text
//! Address ──open: connect, TLS, HELLO or AUTH──► Conn ──call, pipeline──► Frame
//!                       a stream of the caller ──over──►   └─receive, received, consume──► bytes
//! ```
//!
//! It knows RESP, but no server and no command except AUTH and HELLO. There is no retry and no pool.
//!
//! - **D1** Each wait has a limit, also the one for a reply that comes byte by byte.
//! - **D2** Memory is taken for bytes that have arrived, at most [`Conn::set_reply_max`] for one reply and a
//!   few times as much while it becomes a [`Frame`], never for an announced length.
//! - **D3** A pipeline cannot lock up with a server that does not read from clients with unread replies.
//! - **D4** After [`Error::Late`] of a read nothing is lost: a later call finds the rest of the reply.
#![forbid(unsafe_code)]

mod address;
mod conn;
mod error;
mod input;
mod patience;
mod shown;
mod stream;

pub use address::{Address, Login, Tls};
pub use conn::Conn;
pub use error::Error;
pub use patience::Patience;
pub use resp::{Frame, FrameCount, FrameError, put_count, put_request, put_word};
pub use shown::{plain, shown};
pub use stream::{Stream, tcp};

#[cfg(test)]
mod tests;
