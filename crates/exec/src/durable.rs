//! Snapshots and the log, as the server sees them: what is under way, and what failed.
//!
//! ```text
//! BGSAVE, SAVE, save points, SHUTDOWN ─► begin ─► Saving, on a loop ─► batches ─► writer, a thread ─► SaveOut
//! start, DEBUG RELOAD ─────────────────► loading: commands are refused that need the data
//! ```
//!
//! - D1: one snapshot is taken at a time.
//! - D2: no loop touches a file, and none waits for a thread that does.
//! - D3: `exec` knows no files: the program around the server gives it a [`Storage`].

mod ending;
mod loading;
mod log;
mod saving;

pub use self::log::Rewrite;
pub(crate) use self::log::{begin_rewrite, is_rewriting};
pub use self::log::{configure_log, rewrite_now, switch_log};
pub use ending::{Wish, end_in_order, give_up_end};
pub use loading::{Load, expect_load, load_at_start};
pub(crate) use loading::{reload, reload_log};
pub(crate) use saving::{Answer, Copied, Purpose, begin, cancel, is_busy};

use crate::{Local, Server};
use command::Error;
use keyspace::Lsn;
use observe::info::{Aof, Loading, Persistence, Saving as SavingFigures};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};
use value::Value;

/// The files, as the program around the server provides them.
pub trait Storage: Send + Sync {
    /// Begins a snapshot's file. Called by the writer.
    ///
    /// Errors: a sentence; nothing is left behind.
    fn create(&self, plan: &SavePlan) -> Result<Box<dyn SaveOut>, String>;

    /// The bytes of a snapshot's file as the reply of a client: a bulk without its last line end, as a primary sends
    /// it. The file is removed; its bytes stay until the reply is sent. The reply is read from the disk in pieces
    /// and never waits for it. `broken` is called once if the rest cannot be read.
    ///
    /// Errors: a sentence.
    fn take_copy(
        &self,
        path: &Path,
        broken: Box<dyn FnOnce() + Send>,
    ) -> Result<Box<dyn command::Stream>, String>;

    /// Whether there is anything to load.
    fn loads_at_start(&self) -> bool;

    /// Begins the log of a server that starts with nothing. Called before the first client.
    ///
    /// Errors: a sentence.
    fn begin_empty(&self, server: &Arc<Server>) -> Result<(), String>;

    /// Loads the log or a snapshot, and goes on with the log. Called once, on a thread of its own.
    ///
    /// Errors: a sentence; some keys may have been installed.
    fn load_at_start(&self, server: &Arc<Server>) -> Result<(), String>;

    /// Loads a snapshot's file, if there is one, into an empty keyspace: the one that was just written, or, without any, the
    /// one of the configuration. Called on a thread of its own.
    ///
    /// Errors: a sentence; some keys may have been installed.
    fn load(&self, server: &Arc<Server>, written: Option<&Path>) -> Result<(), String>;

    /// Bytes of the load under way: read so far, and in all.
    fn progress(&self) -> (u64, u64);

    /// CONFIG SET appendonly: begins or ends the log, on a thread of its own. Errors: a sentence; the log is
    /// as before.
    fn switch_log(&self, server: &Arc<Server>, on: bool) -> Result<(), String>;

    /// Applies changed settings of the log.
    fn configure_log(&self);

    /// Begins a rewrite: makes the file in which the log continues. Called by the writer. Errors: a sentence.
    fn begin_rewrite(&self) -> Result<Rewrite, String>;

    /// Ends a rewrite. `Ok`: the base was written, with so many bytes. Errors: a sentence; the log is as
    /// before.
    fn end_rewrite(&self, written: Result<u64, ()>) -> Result<(), String>;

    /// Whether the log has grown by so many percent since its base, and to so many bytes.
    fn wants_rewrite(&self, percentage: u64, least_bytes: u64) -> bool;

    /// The LSN up to which writes are durable. `None`: there is no log. `waits` says that a client waits for
    /// a later one.
    fn synced(&self, waits: bool) -> Option<Lsn>;

    /// Reports how much waits for the log ([`Durability::set_log_full`]). Called now and then.
    fn look_at_log(&self, server: &Server);

    /// Asks the log to write at once what it was told, because a reply waits. Cost: less than a microsecond.
    fn bell(&self);

    /// Figures of the log's files.
    fn log_figures(&self) -> Aof;

    /// Whether the log that is written is in another place than a start would look for it (CONFIG SET dir).
    fn log_is_elsewhere(&self) -> bool;

    /// Makes everything told durable, at the end of the server. Errors: a sentence.
    fn close_log(&self, server: &Arc<Server>) -> Result<(), String>;

    /// Whether `dir` can be used. Errors: a sentence.
    fn check_dir(&self, dir: &[u8]) -> Result<(), String>;
}

/// The contents and the format of a snapshot that is to be taken.
#[derive(Clone, Debug, Default)]
pub struct SavePlan {
    pub path: PathBuf,
    /// The version of the RDB format. 0: the lowest that carries the data.
    pub version: u16,
    pub for_valkey: bool,
    pub has_functions: bool,
    pub has_field_times: bool,
    pub sum: bool,
    /// The file is read once and removed, so it need not outlive a loss of power.
    pub passes: bool,
    /// Facts about the file.
    pub aux: Vec<(&'static str, String)>,
}

/// A key's facts beside its value.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyFacts {
    /// Expiry, in milliseconds since 1970.
    pub expire_ms: Option<u64>,
    /// Seconds since the last use, or the frequency of use.
    pub idle_s: Option<u64>,
    pub freq: Option<u8>,
}

/// A snapshot's file that is being written. Dropped, it leaves nothing behind. Errors are sentences.
pub trait SaveOut: Send {
    fn function(&mut self, code: &[u8]) -> Result<(), String>;
    /// Begins a database; the next keys are its. `sizes`: keys, and keys with an expiry; given once for each
    /// database.
    fn database(&mut self, db: usize, sizes: Option<(u64, u64)>) -> Result<(), String>;
    fn text(&mut self, key: &[u8], text: &[u8], facts: KeyFacts) -> Result<(), String>;
    fn value(&mut self, key: &[u8], value: &Value, facts: KeyFacts) -> Result<(), String>;
    /// Bytes written so far.
    fn written(&self) -> u64;
    /// Ends the file, makes it durable and gives it its name. Returns its bytes.
    fn finish(self: Box<Self>) -> Result<u64, String>;
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
}

/// State of snapshots and the log. See the module.
#[derive(Default)]
pub struct Durability {
    storage: OnceLock<Box<dyn Storage>>,
    /// Bits of `trouble`; 0: all is well.
    state: AtomicU32,
    saves: saving::Saves,
    load: loading::State,
    log: log::State,
    end: Mutex<ending::Asked>,
}

impl Durability {
    /// Provides the files, before the first client.
    pub fn store_in(&self, storage: Box<dyn Storage>) {
        // A second call would be a mistake of the program; the first storage stays.
        let _ = self.storage.set(storage);
    }

    pub(crate) fn storage(&self) -> Option<&dyn Storage> {
        self.storage.get().map(|storage| &**storage)
    }

    /// Whether some commands are refused or held now. Cost: one load.
    #[inline]
    pub(crate) fn is_in_trouble(&self) -> bool {
        self.state.load(Relaxed) != 0
    }

    /// Asks the log to write at once: see [`Storage::bell`].
    pub fn ring(&self) {
        if let Some(storage) = self.storage() {
            storage.bell();
        }
    }

    pub fn is_loading(&self) -> bool {
        self.state.load(Acquire) & trouble::LOADING != 0
    }

    /// Whether writes are refused because they could not be made durable.
    pub(crate) fn stops_writes(&self) -> bool {
        self.state.load(Relaxed) & trouble::SAVE_FAILED != 0
    }

    fn set(&self, bit: u32, on: bool) {
        if on {
            self.state.fetch_or(bit, AcqRel);
        } else {
            self.state.fetch_and(!bit, AcqRel);
        }
    }
}

/// The answer to writes while snapshots fail.
pub(crate) const MISCONF: &str = "MISCONF Evenkeel is configured to save RDB snapshots, but it is currently unable to \
     persist to disk. Commands that may modify the data set are disabled (stop-writes-on-bgsave-error). The log says what \
     failed.";

/// Why a command is refused while data is loaded.
pub(crate) fn loading_error(server: &Server) -> Error {
    let (loaded, total) = server.durability.storage().map_or((0, 0), Storage::progress);
    let percent = (loaded * 100).checked_div(total).unwrap_or(0).min(100);
    Error::from(format!("LOADING Evenkeel is loading the dataset in memory: {percent}% of {total} bytes"))
}

/// Begins snapshots and rewrites that are due. Called by one loop, now and then. Cost: O(save points).
pub(crate) fn tend(server: &Arc<Server>, local: &mut Local) {
    saving::judge(server);
    if !server.durability.is_loading() {
        saving::tend(server, local);
        log::tend(server, local);
    }
}

/// The figures of INFO. Cost: O(1).
pub(crate) fn figures(server: &Server) -> Persistence {
    let saves = &server.durability.saves;
    let now_s = stdx::clock::wall_ms() / 1000;
    let count = |number: &AtomicU64| number.load(Relaxed);
    let elapsed_s = now_s.saturating_sub(count(&saves.began_s));
    let saving = (saves.busy.load(Acquire) != 0).then(|| SavingFigures {
        elapsed_s,
        keys: count(&saves.keys),
        total_keys: count(&saves.total_keys),
        kept_bytes: count(&saves.kept_bytes),
        written_bytes: count(&saves.written_bytes),
        is_rewrite: saves.is_rewrite.load(Relaxed),
    });
    let load = &server.durability.load;
    let loading = server.durability.is_loading().then(|| {
        let (loaded_bytes, total_bytes) = server.durability.storage().map_or((0, 0), Storage::progress);
        let started_s = count(&load.started_s);
        let used_bytes = server.observe.measured.allocator().allocated;
        let elapsed_s = now_s.saturating_sub(started_s);
        Loading { started_s, loaded_bytes, total_bytes, elapsed_s, used_bytes }
    });
    let took = count(&saves.last_s);
    Persistence {
        loading,
        changes: saves.changes(server),
        last_save_s: saves.last_save_s(server),
        saving,
        last_failed: saves.failed.load(Relaxed),
        last_s: (took != u64::MAX).then_some(took),
        saves: count(&saves.count),
        last_kept_bytes: count(&saves.last_kept_bytes),
        load_expired: count(&load.expired),
        load_keys: count(&load.keys),
        load_stripped: count(&load.stripped),
        damaged_rest: load.damaged_rest.lock().clone(),
        foreign_keys: count(&saves.foreign),
        aof: log::figures(server),
    }
}
