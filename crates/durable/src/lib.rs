//! When and why does the data go to disk, and how far is it safe?
//!
//! ```text
//! BGSAVE, SAVE, save points, SHUTDOWN ─► begin ─► Saving, on a loop ─► batches ─► writer, a thread ─► SaveOut
//! start, DEBUG RELOAD ─────────────────► loading: commands are refused that need the data
//! a primary's full copy ───────────────► copying: in place of the data, or beside them
//! ```
//!
//! - D1: one snapshot is taken at a time.
//! - D2: no loop touches a file, and none waits for a thread that does.
//! - D3: nothing here knows clients. The server around the data is a [`Host`].
#![forbid(unsafe_code)]

mod aof;
mod copying;
mod ending;
mod files;
mod gate;
mod history;
mod loading;
mod lock;
mod log;
mod saving;
mod walking;
mod writing;

pub use copying::Copying;
pub use ending::{Ending, Wish};
pub use files::Files;
pub use history::History;
pub use lock::{DirLock, NoLock};
pub use persist::{FileCopy, Read};
pub use saving::{Answer, Copied, Done, Purpose};

use aof::LogObserver;
use config::Config;
use keyspace::{Beside, Keyspace, Lsn};
use observe::Observe;
use observe::info::{Loading, Persistence};
use parking_lot::Mutex;
use persist::stream::HistoryPlace;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};
use work::works::{Work, Works};

/// The server around the data: libraries of functions, told commands, and replies that wait.
pub trait Host: Send + Sync {
    /// The libraries of functions as they are now. O(1): the locks of all shards may be held.
    fn libraries(&self) -> Arc<dyn Libraries>;

    /// Loads a library of a file, in place of one of its name if it `replaces`. Cost: its code runs once, on
    /// this thread. Errors: a sentence.
    fn load_library(&self, code: &[u8], replaces: bool) -> Result<(), String>;

    /// Removes all libraries. O(libraries). Errors: a sentence.
    fn flush_libraries(&self) -> Result<(), String>;

    /// Libraries that a file brings which is loaded beside the data: none yet. Errors: the server has ended.
    fn incoming_libraries(&self) -> Result<Box<dyn Incoming>, String>;

    /// Begins to execute told commands, in database 0. Errors: the server has ended.
    fn replay(&self) -> Result<Replay, String>;

    /// Sets the LSN up to which effects are durable, and releases the replies that waited for it. O(loops).
    fn set_durable(&self, lsn: Lsn);

    /// Has parked and held clients look again. O(loops).
    fn retry(&self);
}

/// Executes one told command. MULTI, EXEC and SELECT count as such. Errors: a sentence that names the command.
pub type Replay = Box<dyn FnMut(&[&[u8]]) -> Result<(), String> + Send>;

/// Libraries of functions that nobody sees yet.
pub trait Incoming: Sync {
    /// Adds a library. Cost: its code runs once, on this thread. Errors: a sentence.
    fn load(&self, code: &[u8]) -> Result<(), String>;

    /// The change that puts them in place of all. O(libraries).
    fn into_change(self: Box<Self>) -> Box<dyn Beside>;
}

/// The libraries of functions of one moment.
pub trait Libraries: Send + Sync {
    fn is_empty(&self) -> bool;

    /// Gives the code of each library. O(libraries). Errors: the first of `f`.
    fn each(&self, f: &mut dyn FnMut(&[u8]) -> Result<(), String>) -> Result<(), String>;
}

/// Bits of `state`: reasons to refuse or hold commands.
mod trouble {
    /// Data is being loaded.
    pub(super) const LOADING: u32 = 1;
    /// The last snapshot failed, and writes are to stop for that.
    pub(super) const SAVE_FAILED: u32 = 2;
    /// The log does not write.
    pub(super) const LOG_STOPPED: u32 = 4;
    /// Very much waits for the log: writes are held.
    pub(super) const LOG_FULL: u32 = 8;
    /// Too much waits for the log: writes are refused.
    pub(super) const LOG_OVER: u32 = 16;
    /// Too few replicas follow well (`min-replicas-to-write`).
    pub(super) const FEW_REPLICAS: u32 = 32;
    /// A copy is loaded beside the data.
    pub(super) const BESIDE: u32 = 64;
}

/// The parts of the server that its data on disk need.
pub struct Parts {
    pub keyspace: Arc<Keyspace>,
    pub config: Arc<Config>,
    pub observe: Arc<Observe>,
    pub work: Arc<Work>,
    /// Count of event loops.
    pub loops: usize,
    /// The start of the server, in milliseconds since 1970.
    pub started_ms: u64,
    pub host: Box<dyn Host>,
}

/// State of snapshots and the log. See the module.
pub struct Durability {
    keyspace: Arc<Keyspace>,
    config: Arc<Config>,
    observe: Arc<Observe>,
    work: Arc<Work>,
    loops: usize,
    started_ms: u64,
    host: Box<dyn Host>,
    /// The stream of effects, for the log and for replicas.
    pub stream: Arc<persist::stream::Shared>,
    files: OnceLock<Files>,
    /// Bits of `trouble`; 0: all is well.
    state: AtomicU32,
    saves: saving::Saves,
    load: loading::State,
    copies: copying::State,
    log: log::State,
    end: Mutex<ending::Asked>,
    history: OnceLock<Box<dyn History>>,
    /// The place in its history that the data of the start are.
    place: Mutex<Option<HistoryPlace>>,
}

impl Durability {
    /// Makes the state of a server without files.
    pub fn new(parts: Parts) -> Arc<Durability> {
        let Parts { keyspace, config, observe, work, loops, started_ms, host } = parts;
        Arc::new(Durability {
            stream: persist::stream::Shared::new(&keyspace),
            keyspace,
            config,
            observe,
            work,
            loops,
            started_ms,
            host,
            files: OnceLock::new(),
            state: AtomicU32::new(0),
            saves: saving::Saves::default(),
            load: loading::State::default(),
            copies: copying::State::default(),
            log: log::State::default(),
            end: Mutex::default(),
            history: OnceLock::new(),
            place: Mutex::default(),
        })
    }

    /// Provides the files, before the first client. They follow the configuration from now on.
    pub fn store_in(self: &Arc<Self>, files: Files) {
        self.config.observe(Box::new(files.observer()));
        // A second call would be a mistake of the program; the first files stay.
        let _ = self.files.set(files);
        self.config.observe(Box::new(LogObserver(Arc::downgrade(self))));
    }

    /// The files. Errors: a server without any, and says so.
    fn files(&self) -> Result<&Files, &'static str> {
        self.files.get().ok_or("there are no files")
    }

    /// Whether there are files.
    pub fn has_files(&self) -> bool {
        self.files.get().is_some()
    }

    /// Takes a snapshot's file for a client: it loses its name, and its bytes stay until they are sent. For a
    /// thread that may wait.
    ///
    /// Errors: a sentence.
    pub fn take_copy(&self, path: &Path) -> Result<FileCopy, String> {
        let files = self.files()?;
        FileCopy::take(&*files.disk, path).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Whether some commands are refused or held now. Cost: one load.
    #[inline]
    pub fn is_in_trouble(&self) -> bool {
        self.state.load(Relaxed) != 0
    }

    /// Asks the log to write at once what it was told, because a reply waits. Cost: less than a microsecond.
    pub fn ring(&self) {
        if let Ok(files) = self.files() {
            files.ring();
        }
    }

    /// Says whether too few replicas follow well, which refuses writes. O(1)
    pub fn set_few_replicas(&self, few: bool) {
        self.set(trouble::FEW_REPLICAS, few);
    }

    pub fn is_loading(&self) -> bool {
        self.state.load(Acquire) & trouble::LOADING != 0
    }

    /// Whether a copy of another server's data is loaded beside the present ones.
    pub fn is_loading_beside(&self) -> bool {
        self.state.load(Acquire) & trouble::BESIDE != 0
    }

    /// Whether writes are refused because they could not be made durable.
    fn stops_writes(&self) -> bool {
        self.state.load(Relaxed) & trouble::SAVE_FAILED != 0
    }

    fn set(&self, bit: u32, on: bool) {
        if on {
            self.state.fetch_or(bit, AcqRel);
        } else {
            self.state.fetch_and(!bit, AcqRel);
        }
    }

    /// The answer to commands that are refused while data is loaded. O(1).
    pub fn loading_refusal(&self) -> String {
        let (loaded, total) = self.loaded_bytes();
        let percent = (loaded * 100).checked_div(total).unwrap_or(0).min(100);
        format!("LOADING Evenkeel is loading the dataset in memory: {percent}% of {total} bytes")
    }

    /// Bytes of the load under way: read so far, and in all.
    fn loaded_bytes(&self) -> (u64, u64) {
        self.files().map_or((0, 0), Files::loaded_bytes)
    }

    /// Begins snapshots and rewrites that are due. Called by one loop, now and then, with its work and its wall
    /// clock. Cost: O(save points).
    pub fn tend(self: &Arc<Self>, works: &mut Works, now_ms: u64) {
        self.judge();
        if !self.is_loading() {
            self.tend_saves(works, now_ms);
            self.tend_log();
        }
    }

    /// The figures of INFO. Cost: O(1).
    pub fn figures(&self) -> Persistence {
        let (saves, load) = (&self.saves, &self.load);
        let now_s = stdx::clock::wall_ms() / 1000;
        let count = |number: &AtomicU64| number.load(Relaxed);
        let took = count(&saves.last_s);
        let loads_beside = self.is_loading_beside();
        Persistence {
            loading: (loads_beside || self.is_loading()).then(|| self.loading_figures(now_s)),
            loads_beside,
            changes: self.changes(),
            last_save_s: self.last_save_s(),
            saving: self.is_busy().then(|| saves.figures(now_s)),
            last_failed: saves.failed.load(Relaxed),
            last_s: (took != u64::MAX).then_some(took),
            saves: count(&saves.count),
            last_kept_bytes: count(&saves.last_kept_bytes),
            load_expired: count(&load.expired),
            load_keys: count(&load.keys),
            load_stripped: count(&load.stripped),
            damaged_rest: load.damaged_rest.lock().clone(),
            foreign_keys: count(&saves.foreign),
            aof: self.log_figures(),
        }
    }

    fn loading_figures(&self, now_s: u64) -> Loading {
        let (loaded_bytes, total_bytes) = self.loaded_bytes();
        let started_s = self.load.started_s.load(Relaxed);
        let used_bytes = match self.load.used_bytes.load(Relaxed) {
            0 => self.observe.measured.allocator().allocated,
            theirs => theirs,
        };
        let elapsed_s = now_s.saturating_sub(started_s);
        Loading { started_s, loaded_bytes, total_bytes, elapsed_s, used_bytes }
    }
}

/// The answer to writes while too few replicas follow.
const NOREPLICAS: &str = "NOREPLICAS Not enough good replicas to write.";

/// The answer to writes while snapshots fail.
const MISCONF: &str = "MISCONF Evenkeel is configured to save RDB snapshots, but it is currently unable to \
     persist to disk. Commands that may modify the data set are disabled (stop-writes-on-bgsave-error). The log says what \
     failed.";

#[cfg(test)]
mod tests;
