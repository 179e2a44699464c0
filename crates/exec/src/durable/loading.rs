//! Loading: the snapshot at the start, and DEBUG RELOAD.

use super::trouble;
use crate::Server;
use crate::actions::libraries;
use keyspace::{Keyspace, View, Why};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use stdx::points::{self, Point};

/// Figures of the last load, or of the one under way.
#[derive(Default)]
pub(super) struct State {
    pub(super) started_s: AtomicU64,
    pub(super) keys: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) stripped: AtomicU64,
    /// Keys and libraries of the file take the place of present ones.
    merges: AtomicBool,
    /// The file that keeps the rest of a damaged file, which was loaded up to the damage.
    pub(super) damaged_rest: Mutex<Option<String>>,
}

/// A load under way. Commands that need the data are refused until it is dropped.
pub struct Load {
    server: Arc<Server>,
}

impl Load {
    /// Begins a load. No other may be under way.
    pub fn begin(server: &Arc<Server>) -> Load {
        let load = &server.durability.load;
        load.started_s.store(stdx::clock::wall_ms() / 1000, Relaxed);
        load.keys.store(0, Relaxed);
        load.expired.store(0, Relaxed);
        load.stripped.store(0, Relaxed);
        server.durability.set(trouble::LOADING, true);
        server.keyspace.still.set(Why::Load, true);
        server.keyspace.tell_replaced();
        Load { server: server.clone() }
    }

    /// Counts loaded keys, and keys left out because they had expired.
    pub fn note(&self, keys: u64, expired: u64) {
        self.server.durability.load.keys.store(keys, Relaxed);
        self.server.durability.load.expired.store(expired, Relaxed);
    }

    /// Counts keys of which a part was left out: what modules knew of them, or a stream's producers.
    pub fn note_stripped(&self, keys: u64) {
        self.server.durability.load.stripped.store(keys, Relaxed);
    }

    /// Notes that a file was damaged, and the name of the file that keeps its rest.
    pub fn note_damage(&self, rest: String) {
        *self.server.durability.load.damaged_rest.lock() = Some(rest);
    }

    /// Whether keys and libraries of the file take the place of present ones.
    pub fn merges(&self) -> bool {
        self.server.durability.load.merges.load(Relaxed)
    }

    /// Loads a library of functions. Cost: its code runs once, on this thread.
    ///
    /// Errors: a sentence.
    pub fn library(&self, code: &[u8]) -> Result<(), String> {
        libraries::load_from_file(&self.server, code, self.merges())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.server.durability.load.merges.store(false, Relaxed);
        self.server.keyspace.tell_replaced();
        self.server.keyspace.still.set(Why::Load, false);
        self.server.durability.saves.nothing_changed(&self.server);
        self.server.durability.set(trouble::LOADING, false);
    }
}

/// Refuses commands that need the data until [`load_at_start`] is done, if there is anything to load. Otherwise the
/// server is ready, and its log has begun. Called before the first client. Cost: some syncs for a log that begins.
///
/// Errors: a sentence; the log cannot begin.
pub fn expect_load(server: &Arc<Server>) -> Result<(), String> {
    let Some(storage) = server.durability.storage() else { return Ok(()) };
    let loads = storage.loads_at_start();
    server.durability.set(trouble::LOADING, loads);
    if !loads && server.config.live.appendonly.get() {
        storage.begin_empty(server)?;
        // A log of nothing counts as its own base.
        server.durability.note_rewrite(&Ok(()), 0);
    }
    Ok(())
}

/// Loads the files, before the first command that needs the data. Nothing else writes meanwhile.
///
/// Errors: a sentence; the server must not serve what was loaded.
pub fn load_at_start(server: &Arc<Server>) -> Result<(), String> {
    // A file that a client made meanwhile is not the start's data.
    if !server.durability.is_loading() {
        return Ok(());
    }
    let loaded = server.durability.storage().map_or(Ok(()), |storage| storage.load_at_start(server));
    server.keyspace.tell_replaced();
    // After an error no client may see a part of the data until the process ends.
    server.durability.set(trouble::LOADING, loaded.is_err());
    loaded
}

/// Loads the snapshot file: DEBUG RELOAD. All databases are emptied before (`flush`), or keys and libraries of
/// the file take the place of present ones (`merge`), or none may be there. Not for a demoted thread.
///
/// Errors: a sentence; the keyspace holds what was loaded before.
pub(crate) fn reload(
    server: &Arc<Server>,
    written: Option<&Path>,
    flush: bool,
    merge: bool,
) -> Result<(), String> {
    let Some(storage) = server.durability.storage() else { return Err("there are no files".into()) };
    let load = Load::begin(server);
    server.durability.load.merges.store(merge, Relaxed);
    if flush {
        empty(&server.keyspace);
        flush_libraries(server)?;
    }
    points::reach(Point::FileLoad);
    let loaded = storage.load(server, written);
    drop(load);
    if server.config.live.appendonly.get() {
        // The log was not told of the load.
        server.durability.schedule_rewrite();
    }
    loaded
}

/// DEBUG LOADAOF: ends the log in order, empties all databases and loads it again. Not for a demoted thread.
///
/// Errors: a sentence. Either the log cannot be written, and all is as before; or the keyspace holds what was
/// loaded before the fault.
pub(crate) fn reload_log(server: &Arc<Server>) -> Result<(), String> {
    let Some(storage) = server.durability.storage() else { return Err("there are no files".into()) };
    if !server.config.live.appendonly.get() {
        return Err("there is no append-only log (appendonly is no)".into());
    }
    if storage.log_is_elsewhere() {
        return Err("the log is not in the present dir".into());
    }
    let load = Load::begin(server);
    super::ending::pass_all_loops(server);
    storage.close_log(server)?;
    empty(&server.keyspace);
    flush_libraries(server)?;
    let loaded = storage.load_at_start(server);
    drop(load);
    loaded
}

fn flush_libraries(server: &Server) -> Result<(), String> {
    scripts::Change::FlushLibraries.make_for_all(&server.scripts.code, &server.keyspace, None).map(|_| ())
}

fn empty(keyspace: &Keyspace) {
    let mut view = View::whole(keyspace, 0, stdx::clock::wall_ms());
    for db in 0..keyspace.databases() {
        view.flush(Some(db));
    }
    let _ = view.finish();
}
