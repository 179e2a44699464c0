//! Long work, done in slices.
//!
//! ```text
//! a command that is long ─► Box<dyn Piece> ─► drive: a slice each turn ─► Delivery
//!                              │    ▲
//!                              ▼    │ Letter::Back
//!                        a thread (worker), over a snapshot's overlay
//! ```
//!
//! A loop has its own pieces ([`works::Works`]); all loops share [`works::Work`]. The loop itself is known as
//! a [`drive::Home`] only: it tells the changes of a slice, and delivers finished replies.
//!
//! Pieces here: [`job`], [`bulk`], [`keys`], [`reading`], [`watch`]. Others bring their own.
#![forbid(unsafe_code)]

pub mod asides;
pub mod assembled;
pub mod attempt;
pub mod bulk;
pub mod drive;
pub mod follows;
pub mod gather;
pub mod job;
pub mod keys;
pub mod lines;
pub mod pause;
pub mod piece;
pub mod pool;
pub mod queue;
mod races;
pub mod reading;
pub mod reports;
pub mod snapshots;
#[cfg(test)]
mod testing;
pub mod watch;
mod worker;
pub mod works;

pub use watch::{Others, Watch};
pub use works::{Work, Works};
