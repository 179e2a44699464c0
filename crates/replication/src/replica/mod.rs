//! The connection of a replica to its primary: the link.
//!
//! ```text
//! thread `link`: connect ─► handshake ─┬─ +FULLRESYNC ─► file ─► Host::load ─┐
//!                  ▲                   └─ +CONTINUE ─────────────────────────┴─► Host::run, on a loop
//!                  └────────────── back-off: 1 s, doubling to 10 s ◄──── the link ended, or an error ──┘
//! ```
//!
//! - LK1: what was applied and what is asked for next agree: [`Position`] is that of the last whole group.
//! - LK2: the thread ends within a read's time-out of [`Follower::stop`], and gives the position.
//! - LK3: nothing of an incomplete file stays. Once the present data go for it there is no position, and after
//!   a load that failed the next handshake asks for everything. If they stayed, so does their position.

mod full;
mod handshake;
mod link;
mod state;

pub use handshake::{Answer, Handshake, Settings};
pub use link::{Follower, FullCopy, Host, Socket, Wire};
pub use state::{Figures, HandOver, Phase, State};

/// The place in a primary's stream up to which it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The id of the history.
    pub id: String,
    /// Bytes of the stream since the history began.
    pub offset: u64,
    /// The database that the stream has selected there.
    pub db: usize,
}
