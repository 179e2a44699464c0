//! The threads beside the log thread: one syncs, one prepares and removes files, one watches.

use super::queue::{Closing, Synced};
use super::{LogState, Shared};
use crate::disk::DiskFile;
use crate::files::incr::{Ahead, filler_line};
use crate::files::local::locked;
use crate::files::remove_in_steps;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use stdx::clock::mono_ns;

/// Time after which the threads look whether the log ends.
const NAP: Duration = Duration::from_millis(100);
/// Time for which a failed preparation rests.
const REST: Duration = Duration::from_secs(5);

/// A sync for another thread.
pub(super) struct SyncJob {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) seq: u64,
    pub(super) end: u64,
}

/// The life of the thread that syncs.
pub(super) fn sync(shared: &Shared, jobs: &Receiver<SyncJob>) {
    loop {
        let SyncJob { file, seq, end } = match jobs.recv_timeout(Duration::from_secs(3600)) {
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let began_ns = mono_ns();
        let result = contained(|| file.sync_data()).and_then(|synced| synced);
        let took_ns = mono_ns() - began_ns;
        shared.counters.synced(took_ns);
        (shared.hooks.latency)(("aof-fsync-everysec", took_ns));
        locked(&shared.queue).synced = Some(Synced { seq, end, result });
        shared.bell.notify_all();
    }
}

/// Does something; a panic in it is an error (writer K5).
fn contained<T>(f: impl FnOnce() -> T) -> io::Result<T> {
    stdx::panics::contain(f).map_err(io::Error::other)
}

/// The file that is prepared, and whether there is other work for the keeper.
#[derive(Default)]
pub(crate) struct Filling {
    file: Option<(PathBuf, Arc<Ahead>)>,
    /// Something was set since the keeper looked.
    is_new: bool,
    has_history: bool,
}

impl Shared {
    /// Sets the file that filler is written to.
    pub(super) fn prepare(&self, file: Option<(PathBuf, Arc<Ahead>)>) {
        let mut filling = locked(&self.filling);
        if file.is_some() || filling.file.is_some() {
            (filling.file, filling.is_new) = (file, true);
            self.keeper.notify_all();
        }
    }

    /// Tells the keeper that there are old files to remove.
    pub(crate) fn clear_history(&self) {
        let mut filling = locked(&self.filling);
        (filling.has_history, filling.is_new) = (true, true);
        self.keeper.notify_all();
    }

    pub(super) fn settings_changed(&self) -> bool {
        std::mem::take(&mut locked(&self.queue).settings_changed)
    }

    /// Files of commands.
    pub(super) fn files(&self) -> usize {
        self.directory.try_lock().map_or(0, |directory| directory.files.manifest.incrs().count())
    }

    /// The first file behind a new base, if a rewrite has ended since this was asked.
    pub(super) fn based_before(&self) -> Option<u64> {
        locked(&self.rewrites).take_finished()
    }
}

/// A file that is open for filler.
struct Open {
    path: PathBuf,
    ahead: Arc<Ahead>,
    file: Box<dyn DiskFile>,
}

/// The life of the keeper.
pub(super) fn keep(shared: &Shared) {
    while shared.closing() == Closing::No && contained(|| keep_on(shared)).is_err() {
        // The panic is in the server's log.
        std::thread::sleep(10 * NAP);
    }
}

fn keep_on(shared: &Shared) {
    let line = filler_line();
    let mut open: Option<Open> = None;
    remove_history(shared);
    while shared.closing() == Closing::No {
        let (file, has_history) = {
            let filling = locked(&shared.filling);
            let idles = |filling: &mut Filling| !filling.is_new && shared.closing() == Closing::No;
            let waited = shared.keeper.wait_timeout_while(filling, Duration::from_secs(1), idles);
            let (mut filling, _) = waited.unwrap_or_else(PoisonError::into_inner);
            filling.is_new = false;
            (filling.file.clone(), std::mem::take(&mut filling.has_history))
        };
        if has_history {
            remove_history(shared);
        }
        let Some((path, ahead)) = file else {
            open = None;
            continue;
        };
        if open.as_ref().is_none_or(|open| !Arc::ptr_eq(&open.ahead, &ahead)) {
            // Its own descriptor: each is told of an error of its own (files H2).
            open = match shared.disk.open(&path) {
                Ok(file) => Some(Open { path, ahead, file }),
                Err(error) => {
                    log::warn!("{} cannot be prepared: {error}", path.display());
                    None
                }
            };
        }
        if let Some(open) = &open {
            fill(shared, open, &line);
        }
    }
}

/// Writes filler until there is enough.
fn fill(shared: &Shared, open: &Open, line: &[u8]) {
    while shared.closing() == Closing::No {
        match open.ahead.fill(&*open.file, line) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                log::warn!("{} cannot be prepared: {error}", open.path.display());
                let filling = locked(&shared.filling);
                let rests = |_: &mut Filling| shared.closing() == Closing::No;
                drop(shared.keeper.wait_timeout_while(filling, REST, rests));
                return;
            }
        }
        let is_current = |filling: &Filling| {
            filling.file.as_ref().is_some_and(|(_, ahead)| Arc::ptr_eq(ahead, &open.ahead))
        };
        if !is_current(&locked(&shared.filling)) {
            return;
        }
    }
}

/// Removes old files, and then their names.
fn remove_history(shared: &Shared) {
    let old = locked(&shared.directory).files.history();
    if old.is_empty() {
        return;
    }
    let gone: Vec<_> = old
        .into_iter()
        .filter(|entry| {
            let removed = remove_in_steps(&*shared.disk, &shared.place.path(&entry.name));
            removed
                .inspect_err(|error| log::warn!("an old file of the log cannot be removed: {error}"))
                .is_ok()
        })
        .collect();
    let mut sizes = locked(&shared.sizes);
    gone.iter().for_each(|entry| {
        sizes.incrs.remove(&entry.seq);
    });
    drop(sizes);
    if let Err(error) = locked(&shared.directory).files.forget(&gone) {
        log::warn!("the manifest of the log cannot be written: {error}");
    }
}

/// The life of the thread that watches (writer K4). It touches no file.
pub(super) fn watch(shared: &Shared) {
    while shared.closing() == Closing::No {
        let patience = shared.settings().stuck;
        std::thread::sleep(NAP.min(patience / 4));
        let waits = shared.counters.pending_bytes.load(Ordering::Relaxed) > 0;
        let is_stuck = waits && shared.counters.still_ns() > patience.as_nanos() as u64;
        // The panic is in the server's log.
        let _ = contained(|| shared.stands(|standing| standing.is_stuck = is_stuck));
    }
}

/// Whether a state lets clients write.
impl LogState {
    pub fn is_running(&self) -> bool {
        *self == LogState::Running
    }
}
