//! HyperLogLogs: estimates of how many different elements were added, in strings of up to 12 KB.
//!
//! ```text
//! element ─► hash ─► register (14 bits), rank (position of the lowest one bit of the rest)
//! string  ─► "HYLL" encoding 0 0 0 | cardinality (8 bytes, top bit: stale) | registers, sparse or dense
//! ```
//!
//! - H1: a read writes nothing. PFCOUNT uses a cached cardinality if the string has a fresh one, and stores
//!   none.
//! - H2: a string of a client is looked at as a whole before it is changed. What is no HyperLogLog, or a broken
//!   one, is refused and left alone.
//! - H3: equal additions make equal bytes, which are also those of Redis.

pub(crate) mod commands;
mod estimate;
mod sketch;
mod sparse;
pub use sketch::set_sparse_max_bytes;
