//! Runs commands: plan, session, transactions, blocking, pub/sub, workers.
//!
//! ```text
//! net ──Args──► call::execute ─┬─ refused, held or queued, for one of some reasons    gates
//!                              ├─ inline: under the locks of the command's shards   inline
//!                              ├─ worker: over an overlay at a snapshot              hand_on, drive, crate work
//!                              ├─ queued: MULTI, then all at once at EXEC            transaction
//!                              ├─ parked: BLPOP and its kin, until a writer serves them  blocking
//!                              └─ action: no function of the keyspace                actions
//! ```
//!
//! - X1: a loop serves one client for at most one quantum before it serves the others. `net` counts the time;
//!   `execute` keeps a single command within it by sending long ones to a worker.
//! - X2: replies come in the order of the commands: a client whose command is elsewhere runs no further one.
//! - X3: the outside hears of a command (events, waiters that are ready) after its locks are released, and
//!   before the same loop runs another command.
#![forbid(unsafe_code)]

pub mod access;
mod act;
mod actions;
pub mod blocking;
pub mod call;
mod changing_role;
mod cluster;
pub mod deferred;
pub mod drive;
pub mod eval;
pub mod fetching;
mod gates;
mod half;
mod hand_on;
mod held;
pub mod housekeeping;
pub mod http;
mod inline;
mod keeping;
mod local;
pub mod mail;
mod multi;
mod obey;
pub mod outgoing;
pub mod parting;
pub mod parts;
mod receive;
pub mod replay;
mod server;
pub mod session;
pub mod shortage;
mod start;
mod step;
mod tell;
pub mod tracking;
pub mod transaction;
pub mod waited;

pub use ::{memory, pages, park, pubsub, rows};
pub use ::work::{job, lines, pause, piece, queue, reading, snapshots, works};
pub use call::{Words, execute};
pub use command::{Flow, Held, Stream};
pub use local::Local;
pub use observe::{TurnLog, clients, commandlog, info, latency, stats, waits};
pub use receive::{After, Sessions, receive};
pub use replay::Replay;
pub use server::{Program, Server};
pub use session::Session;
