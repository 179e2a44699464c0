//! The commands: their handlers, the table of their rows, and the lookup by name.
//!
//! A handler is a function of its arguments and a view of the keyspace. The same code runs inline under shard
//! locks, on a worker, over the overlay of a transaction or script, and in a replay of the log. This crate
//! has no clock, lock, thread or socket: the view carries the time, and a handler asks to wait or to stream
//! through [`Cx`].
//!
//! To add a command, write one row and one function in its family's topic file. A new topic needs one more
//! line in `registry`.
#![forbid(unsafe_code)]

mod bitmap;
pub mod bounds;
mod connection;
mod cx;
pub mod describe;
pub mod digest;
pub mod effects;
mod error;
pub mod facts;
mod flow;
mod generic;
mod geo;
mod hash;
pub mod helps;
#[cfg(test)]
mod hostile;
mod hyperloglog;
pub mod keys;
mod list;
pub mod options;
pub mod places;
pub mod prefixes;
mod pubsub;
pub mod reads;
pub mod registry;
mod replies;
mod resolve;
mod roaring;
mod scripting;
pub mod serial;
mod server;
mod set;
pub mod sizes;
mod stream;
mod string;
pub mod syntax;
pub mod table;
#[cfg(test)]
mod testing;
mod transaction;
pub mod values;
mod zset;

pub use cx::{Block, Budget, Caller, Cx, Outcome, Room, STREAM_FROM, Stream};
pub use error::{Error, OOM};
pub use flow::{Flow, INLINE_STEPS, INLINE_WORDS};
pub use generic::items::write_item;
pub use generic::sort::sort_destination;
pub use hyperloglog::set_sparse_max_bytes;
pub use resolve::resolve;
pub use stream::read::Claims;
pub use string::{getex_asks, write_string};
pub use table::{Command, Effect, Handler, Run, acl};
pub use value::Held;
