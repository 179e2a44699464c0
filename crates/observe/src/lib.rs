//! What happened, and who waited for whom.
//!
//! ```text
//! loop: TurnLog ── commands, turns, late clients ──► Observe ◄── clerk, ten times a second: memory, processors, speeds
//!                                                     │
//!                    INFO, LATENCY, SLOWLOG, CLIENT LIST, EVENKEEL WAITS, metrics
//! ```
//!
//! Nothing here changes what a command does. A loop writes its own counters ([`stats`]); logs are shared and touched only when
//! something was slow.
#![forbid(unsafe_code)]

pub mod calls;
pub mod clerk;
pub mod client;
pub mod clients;
pub mod crowd;
pub mod info;
pub mod latency;
pub mod measured;
pub mod slowlog;
pub mod stats;
pub mod tally;
pub mod turn_log;
pub mod waits;

pub use client::{ClientInfo, ClientText, flag};
pub use clients::{Buffered, Clients};
pub use turn_log::TurnLog;

use config::Config;
use std::sync::{Arc, OnceLock};

/// All that is noted of one server, shared by its threads.
pub struct Observe {
    pub config: Arc<Config>,
    pub clients: Clients,
    pub stats: calls::Calls,
    /// Who made whom wait.
    pub waits: Arc<waits::Waits>,
    pub measured: measured::Measured,
    /// Which rank threads of long work take.
    pub crowd: Arc<crowd::Crowd>,
    pub clerk: clerk::Clerk,
    holders: OnceLock<Box<dyn Holders>>,
}

/// Knows who holds places for long work.
pub trait Holders: Send + Sync {
    /// The holder of a place, also after its client has gone: what was known of it, and the words of its command.
    fn whose(&self, client: u64) -> Option<(Option<Arc<ClientInfo>>, Vec<Vec<u8>>)>;
}

impl Observe {
    /// For a server with so many loops.
    pub fn new(config: Arc<Config>, loops: usize) -> Observe {
        Observe {
            config,
            clients: Clients::new(loops),
            stats: calls::Calls::default(),
            waits: Arc::new(waits::Waits::new(loops)),
            measured: measured::Measured::default(),
            crowd: Arc::default(),
            clerk: clerk::Clerk::default(),
            holders: OnceLock::new(),
        }
    }

    /// Names the holders of places from now on. The first call counts.
    pub fn set_holders(&self, holders: Box<dyn Holders>) {
        let _ = self.holders.set(holders);
    }

    fn whose(&self, client: u64) -> (Option<Arc<ClientInfo>>, Vec<Vec<u8>>) {
        self.holders.get().and_then(|holders| holders.whose(client)).unwrap_or_default()
    }
}
