//! Records what the server did, and which client waited for which.
//!
//! ```text
//! loop: TurnLog ── commands, turns, late clients ──► Observe ◄── background thread: memory, processors, rates
//!                                                     │
//!                    INFO, LATENCY, COMMANDLOG, CLIENT LIST, EVENKEEL WAITS, metrics
//! ```
//!
//! Nothing here changes what a command does. A loop writes its own counters ([`stats`]). The logs are shared,
//! and touched only when something was slow or large.
#![forbid(unsafe_code)]

pub mod background;
pub mod calls;
pub mod client;
pub mod clients;
pub mod commandlog;
pub mod crowd;
pub mod hotkeys;
pub mod info;
pub mod lasting;
pub mod latency;
pub mod measured;
pub mod memory_report;
pub mod metrics;
pub mod prefixes;
pub mod roll;
pub mod stats;
pub mod tally;
pub mod turn_log;
pub mod waits;

pub use client::{ClientInfo, ClientText, flag};
pub use clients::{Buffered, Clients};
pub use turn_log::TurnLog;

use config::Config;
use history::heavy::{Counters, Piece};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// All records of one server, shared by its threads.
pub struct Observe {
    pub config: Arc<Config>,
    pub clients: Clients,
    pub stats: calls::Calls,
    /// Which client's work made which client wait.
    pub waits: Arc<waits::Waits>,
    pub measured: measured::Measured,
    /// The priority for threads of long work.
    pub crowd: Arc<crowd::Crowd>,
    /// The thread of vital work: what snapshots, memory and figures need. No client's answer is made there.
    pub background: background::Background,
    /// The clients that used the processor most, in this second.
    pub heavy: Mutex<Counters<ClientInfo>>,
    /// Counts of keys and memory by the beginnings of names.
    pub prefixes: prefixes::Prefixes,
    /// The thread of clients' reports.
    pub reporter: background::Background,
    holders: OnceLock<Box<dyn Holders>>,
}

/// A client that holds a place for long work, or held one lately.
#[derive(Default)]
pub struct Holder {
    pub info: Option<Arc<ClientInfo>>,
    /// The words of its command.
    pub words: Vec<Vec<u8>>,
}

/// A lookup of the clients that hold places for long work.
pub trait Holders: Send + Sync {
    /// The holder of a place, also after its client has gone: its record, and the words of its command.
    fn whose(&self, client: u64) -> Option<Holder>;
}

impl Observe {
    /// Creates empty records for a server with `loops` loops.
    pub fn new(config: Arc<Config>, loops: usize) -> Observe {
        Observe {
            config,
            clients: Clients::new(loops),
            stats: calls::Calls::default(),
            waits: Arc::new(waits::Waits::new(loops)),
            measured: measured::Measured::default(),
            crowd: Arc::default(),
            background: background::Background::named("background"),
            heavy: Mutex::default(),
            prefixes: prefixes::Prefixes::default(),
            reporter: background::Background::named("reporter"),
            holders: OnceLock::new(),
        }
    }

    /// Counts processor time that was used for a client. Called for pieces of [`waits::BIG_NS`] or more, and
    /// for work on threads. O(counters), under a lock that is held for that long.
    #[cold]
    pub fn worked(&self, client: &Arc<ClientInfo>, command: &'static str, words: &[Vec<u8>], ns: u64) {
        if ns > 0 {
            self.heavy.lock().add(&Piece { key: client.id, what: client, command, words, ns });
        }
    }

    /// Sets the lookup of holders. Only the first call counts.
    pub fn set_holders(&self, holders: Box<dyn Holders>) {
        let _ = self.holders.set(holders);
    }

    fn whose(&self, client: u64) -> Holder {
        self.holders.get().and_then(|holders| holders.whose(client)).unwrap_or_default()
    }
}
