//! Loading: the snapshot at the start, and DEBUG RELOAD.

use crate::{Durability, trouble};
use keyspace::{Keyspace, View, Why};
use parking_lot::Mutex;
use persist::stream::HistoryPlace;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use stdx::points::{self, Point};

/// Figures of the last load, or of the one under way.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) started_s: AtomicU64,
    pub(crate) keys: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) stripped: AtomicU64,
    /// Bytes of memory that another server used for what is loaded; 0: it did not say.
    pub(crate) used_bytes: AtomicU64,
    /// Keys and libraries of the file take the place of present ones.
    merges: AtomicBool,
    /// The data of the start are not loaded yet.
    is_start: AtomicBool,
    /// The file that keeps the rest of a damaged file, which was loaded up to the damage.
    pub(crate) damaged_rest: Mutex<Option<String>>,
}

/// A load under way. Commands that need the data are refused until it is dropped, unless what is loaded stands
/// beside the data.
pub(crate) struct Load {
    durability: Arc<Durability>,
    is_beside: bool,
}

impl Load {
    /// Begins a load. No other may be under way.
    pub(crate) fn begin(durability: &Arc<Durability>) -> Load {
        let load = Load::note_begin(durability, false);
        durability.set(trouble::LOADING, true);
        durability.keyspace.still.set(Why::Load, true);
        durability.keyspace.tell_replaced();
        load
    }

    /// Begins a load beside the data: only commands are refused that say so ([`crate::copying`]).
    pub(crate) fn begin_beside(durability: &Arc<Durability>) -> Load {
        let load = Load::note_begin(durability, true);
        durability.set(trouble::BESIDE, true);
        load
    }

    fn note_begin(durability: &Arc<Durability>, is_beside: bool) -> Load {
        let load = &durability.load;
        load.started_s.store(stdx::clock::wall_ms() / 1000, Relaxed);
        for figure in [&load.keys, &load.expired, &load.stripped, &load.used_bytes] {
            figure.store(0, Relaxed);
        }
        Load { durability: durability.clone(), is_beside }
    }

    /// Counts loaded keys, and keys left out because they had expired.
    pub(crate) fn note(&self, keys: u64, expired: u64) {
        self.durability.load.keys.store(keys, Relaxed);
        self.durability.load.expired.store(expired, Relaxed);
    }

    /// Counts keys of which a part was left out: what modules knew of them.
    pub(crate) fn note_stripped(&self, keys: u64) {
        self.durability.load.stripped.store(keys, Relaxed);
    }

    /// Notes that a file was damaged, and the name of the file that keeps its rest.
    pub(crate) fn note_damage(&self, rest: String) {
        *self.durability.load.damaged_rest.lock() = Some(rest);
    }

    /// Whether keys and libraries of the file take the place of present ones.
    pub(crate) fn merges(&self) -> bool {
        self.durability.load.merges.load(Relaxed)
    }

    /// Notes the place in its history that the data of the start are.
    pub(crate) fn note_place(&self, place: Option<HistoryPlace>) {
        if self.durability.load.is_start.load(Relaxed) {
            *self.durability.place.lock() = place;
        }
    }

    /// Loads a library of functions. Cost: its code runs once, on this thread.
    ///
    /// Errors: a sentence.
    pub(crate) fn library(&self, code: &[u8]) -> Result<(), String> {
        self.durability.host.load_library(code, self.merges())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let durability = &self.durability;
        if self.is_beside {
            return durability.set(trouble::BESIDE, false);
        }
        durability.load.merges.store(false, Relaxed);
        durability.keyspace.tell_replaced();
        durability.keyspace.still.set(Why::Load, false);
        durability.nothing_changed();
        // Before the first client.
        durability.resume_history();
        durability.set(trouble::LOADING, false);
    }
}

impl Durability {
    /// Refuses commands that need the data until [`Durability::load_at_start`] is done, if there is anything to
    /// load. Otherwise the server is ready, and its log has begun. Called before the first client. Cost: some
    /// syncs for a log that begins.
    ///
    /// Errors: a sentence; the log cannot begin.
    pub fn expect_load(self: &Arc<Self>) -> Result<(), String> {
        let Ok(files) = self.files() else { return Ok(()) };
        let loads = files.loads_at_start();
        self.set(trouble::LOADING, loads);
        self.load.is_start.store(loads, Relaxed);
        if !loads && self.config.live.appendonly.get() {
            files.run_from_nothing(self)?;
            // A log of nothing counts as its own base.
            self.note_rewrite(&Ok(()), 0);
        }
        Ok(())
    }

    /// Loads the files, before the first command that needs the data. Nothing else writes meanwhile. Cost:
    /// O(bytes), on all cores for a snapshot.
    ///
    /// Errors: a sentence; the server must not serve what was loaded.
    pub fn load_at_start(self: &Arc<Self>) -> Result<(), String> {
        // A file that a client made meanwhile is not the start's data.
        if !self.is_loading() {
            return Ok(());
        }
        let loaded = self.files().map_or(Ok(()), |files| files.load_at_start(self));
        self.keyspace.tell_replaced();
        self.load.is_start.store(false, Relaxed);
        // After an error no client may see a part of the data until the process ends.
        self.set(trouble::LOADING, loaded.is_err());
        loaded
    }

    /// Loads the snapshot file: DEBUG RELOAD. All databases are emptied before (`flush`), or keys and libraries
    /// of the file take the place of present ones (`merge`), or none may be there. Not for a demoted thread.
    /// O(bytes).
    ///
    /// Errors: a sentence; the keyspace holds what was loaded before.
    pub fn reload(self: &Arc<Self>, written: Option<&Path>, flush: bool, merge: bool) -> Result<(), String> {
        let files = self.files()?;
        let load = Load::begin(self);
        self.load.merges.store(merge, Relaxed);
        if flush {
            empty(&self.keyspace);
            self.host.flush_libraries()?;
        }
        points::reach(Point::FileLoad);
        let loaded = files.load(self, written);
        drop(load);
        if self.config.live.appendonly.get() {
            // The log was not told of the load.
            self.schedule_rewrite();
        }
        loaded
    }

    /// DEBUG LOADAOF: ends the log in order, empties all databases and loads it again. Not for a demoted
    /// thread. O(bytes).
    ///
    /// Errors: a sentence. Either the log cannot be written, and all is as before; or the keyspace holds what
    /// was loaded before the fault.
    pub fn reload_log(self: &Arc<Self>) -> Result<(), String> {
        let files = self.files()?;
        if !self.config.live.appendonly.get() {
            return Err("there is no append-only log (appendonly is no)".into());
        }
        if files.log_is_elsewhere() {
            return Err("the log is not in the present dir".into());
        }
        let load = Load::begin(self);
        self.pass_all_loops();
        files.close_log(self)?;
        empty(&self.keyspace);
        self.host.flush_libraries()?;
        let loaded = files.load_at_start(self);
        drop(load);
        loaded
    }
}

/// Empties all databases. O(1) for each.
pub(crate) fn empty(keyspace: &Keyspace) {
    let mut view = View::whole(keyspace, 0, stdx::clock::wall_ms());
    for db in 0..keyspace.databases() {
        view.flush(Some(db));
    }
    let _ = view.finish();
}
