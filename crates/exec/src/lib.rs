//! Runs commands: plan, session, transactions, blocking, pub/sub, workers.
//!
//! ```text
//! net ──Args──► call::execute ─┬─ refused, held or queued, for one of some reasons        gates
//!                              ├─ inline: under the locks of the command's shards       inline
//!                              ├─ worker: over an overlay at a snapshot                  job, worker, works
//!                              ├─ queued: MULTI, then all at once at EXEC                transaction
//!                              ├─ parked: BLPOP and its kin, until a writer serves them  park
//!                              └─ action: what is no function of the keyspace            actions
//! ```
//!
//! - X1: a loop serves one client for at most one quantum before it serves the others; `net` counts, `execute`
//!   keeps a single command within it by sending long ones to a worker.
//! - X2: replies come in the order of the commands: a client whose command is elsewhere runs no further one.
//! - X3: what a command tells the outside (notifications, waiters that are ready) is done after its locks are released
//!   and before the same loop runs another command.
#![forbid(unsafe_code)]

mod act;
mod actions;
mod aside;
mod assembled;
mod blocking;
mod bounds;
mod bulk;
pub mod call;
mod calls;
mod claim;
mod clerk;
pub mod clients;
mod crowd;
mod events;
mod flood;
mod gates;
mod held;
pub mod housekeeping;
pub mod http;
pub mod info;
mod inline;
pub mod job;
pub mod latency;
pub mod lines;
mod local;
pub mod mail;
mod measured;
pub mod memory;
pub mod park;
pub mod parting;
pub mod pause;
mod pool;
mod prefetch;
pub mod pubsub;
pub mod queue;
pub mod scripts;
mod server;
pub mod session;
pub mod slowlog;
pub mod snapshots;
pub mod sources;
mod start;
pub mod stats;
mod step;
mod tally;
mod tell;
pub mod transaction;
mod values;
pub mod waits;
mod worker;
pub mod works;

pub use call::execute;
pub use command::{Flow, Held, Stream};
pub use local::Local;
pub use prefetch::{Hashes, prefetch};
pub use server::{Program, Server};
pub use session::Session;
