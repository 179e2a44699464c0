//! A snapshot: a walk in slices on a loop, and a thread that writes what the walk visits.
//!
//! ```text
//! loop:    Saving::advance ─► Walk::advance ─► Batch ─┐ queue without locks
//! writer:  SaveFile ◄─────────────────────────────────┘
//!              └─► the piece itself, when it had gone through the queue behind some bytes
//! ```
//!
//! - V1: the bytes that wait for the writer are bounded. The piece goes through the queue itself, and comes
//!   back when everything before it is written.
//! - V2: a failed writer goes on to empty its queue. So the piece comes back and ends the walk on its loop.
//! - V3: the caller that begins takes `busy`; the writer gives it back at the end.
//! - V4: the file is named as the snapshot begins. A CONFIG SET of `dir` or `dbfilename` is for the next one.

use crate::walking::Saving;
use crate::writing::Writer;
use crate::{Durability, trouble};
use config::Config;
use keyspace::Keyspace;
use observe::info;
use persist::Spool;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::mpsc::channel;
use std::time::Instant;
use work::piece::Letter;
use work::works::Works;

/// Numbers of files for clients are above those of other temporary files.
const COPIES: u64 = 1 << 62;
/// Seconds that save points wait after a failure.
const RETRY_S: u64 = 5;
/// The loop of snapshots that begin on no loop.
pub(crate) const LOOP: usize = 0;

/// The reason for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// BGSAVE, SAVE, a save point.
    Save,
    /// The end of the server.
    Last,
    /// A base of the log.
    Rewrite,
    /// A file that a client is sent ([`Copied`]).
    Copy(Copied),
    /// A file that replicas read while it is written ([`Spool`]).
    Sync,
}

/// A snapshot for a client that wants the file alone. A part that is left out is as empty as in a new server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    pub client: u64,
    pub keys: bool,
    pub functions: bool,
}

impl Purpose {
    /// The file of a snapshot that begins now (V4). A rewrite's is another, which the log names. The file of a
    /// copy has this name until its client is sent it; a process that was killed leaves it behind, and a start
    /// removes it.
    fn file(self, config: &Config) -> PathBuf {
        config.together(|live| {
            let name = match self {
                Purpose::Sync => format!("temp-{}-{}.rdb", std::process::id(), COPIES),
                Purpose::Copy(copied) => {
                    format!("temp-{}-{}.rdb", std::process::id(), COPIES | copied.client)
                }
                _ => live.dbfilename.string(),
            };
            PathBuf::from(live.dir.string()).join(name)
        })
    }
}

/// Figures and switches of snapshots. Those of one under way mean nothing when there is none.
pub(crate) struct Saves {
    /// Taken while a snapshot is under way (V3); 0: none is.
    pub(crate) busy: AtomicU8,
    /// A snapshot was asked for by BGSAVE SCHEDULE, or in a transaction.
    scheduled: AtomicBool,
    pub(crate) is_rewrite: AtomicBool,
    pub(crate) cancelled: AtomicBool,
    /// Whole tables were replaced as a rewrite began: it has to begin again.
    pub(crate) anew: AtomicBool,
    /// The writer has failed (V2).
    pub(crate) broken: AtomicBool,
    pub(crate) began_s: AtomicU64,
    pub(crate) keys: AtomicU64,
    pub(crate) total_keys: AtomicU64,
    pub(crate) kept_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) foreign: AtomicU64,
    /// Writers replace more than the walk keeps up with: no rate limit holds now.
    pub(crate) pressed: AtomicBool,
    /// Count of writes before the snapshot under way, and before the last one that was saved.
    pub(crate) dirty_begun: AtomicU64,
    pub(crate) dirty_saved: AtomicU64,
    pub(crate) last_save_s: AtomicU64,
    tried_s: AtomicU64,
    pub(crate) last_s: AtomicU64,
    pub(crate) last_kept_bytes: AtomicU64,
    pub(crate) count: AtomicU64,
    pub(crate) failed: AtomicBool,
}

impl Default for Saves {
    fn default() -> Saves {
        let number = || AtomicU64::new(0);
        let switch = || AtomicBool::new(false);
        Saves {
            busy: AtomicU8::new(0),
            scheduled: switch(),
            is_rewrite: switch(),
            cancelled: switch(),
            anew: switch(),
            broken: switch(),
            began_s: number(),
            keys: number(),
            total_keys: number(),
            kept_bytes: number(),
            written_bytes: number(),
            foreign: number(),
            pressed: switch(),
            dirty_begun: number(),
            dirty_saved: number(),
            last_save_s: number(),
            tried_s: number(),
            last_s: AtomicU64::new(u64::MAX),
            last_kept_bytes: number(),
            count: number(),
            failed: switch(),
        }
    }
}

impl Saves {
    /// The figures of the snapshot under way.
    pub(crate) fn figures(&self, now_s: u64) -> info::Saving {
        info::Saving {
            elapsed_s: now_s.saturating_sub(self.began_s.load(Relaxed)),
            keys: self.keys.load(Relaxed),
            total_keys: self.total_keys.load(Relaxed),
            kept_bytes: self.kept_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            is_rewrite: self.is_rewrite.load(Relaxed),
        }
    }
}

impl Durability {
    /// Writes since the last snapshot.
    pub(crate) fn changes(&self) -> u64 {
        self.dirty().saturating_sub(self.saves.dirty_saved.load(Relaxed))
    }

    /// Notes that the keyspace and a file hold the same data.
    pub(crate) fn nothing_changed(&self) {
        self.saves.dirty_saved.store(self.dirty(), Relaxed);
    }

    pub(crate) fn dirty(&self) -> u64 {
        self.keyspace.stats.dirty.load(Relaxed)
    }

    /// The time of the last snapshot, in seconds since 1970. As in Redis, the start of the server counts as
    /// none.
    pub fn last_save_s(&self) -> u64 {
        match self.saves.last_save_s.load(Relaxed) {
            0 => self.started_ms / 1000,
            at => at,
        }
    }

    /// Schedules a snapshot, to be taken as soon as none is under way.
    pub fn schedule(&self) {
        self.saves.scheduled.store(true, Release);
    }

    /// Takes [`Durability::schedule`] back. False: no snapshot was scheduled.
    pub fn unschedule(&self) -> bool {
        self.saves.scheduled.swap(false, AcqRel)
    }

    /// Whether a snapshot or a rewrite is under way.
    pub fn is_busy(&self) -> bool {
        self.saves.busy.load(Acquire) != 0
    }

    /// Ends the snapshot under way, soon. False: there is none.
    pub fn cancel(&self) -> bool {
        let busy = self.is_busy();
        self.saves.cancelled.store(busy, Release);
        busy
    }

    /// Whether the rewrite under way has to begin again.
    pub(crate) fn is_anew(&self) -> bool {
        self.saves.anew.load(Acquire)
    }

    /// Takes `busy` (V3). False: a snapshot is under way.
    pub(crate) fn take(&self) -> bool {
        self.saves.busy.compare_exchange(0, 1, AcqRel, Relaxed).is_ok()
    }

    /// Gives `busy` back (V3).
    pub(crate) fn give_back(&self) {
        self.saves.busy.store(0, Release);
    }
}

/// Called on the writer's thread with a snapshot's file, or why there is none, before another snapshot may
/// begin.
pub type Done = Box<dyn FnOnce(Result<&Path, &str>) -> Answer + Send>;

/// Tells who waits, once another snapshot may begin: whoever was told may ask for the next one at once.
pub type Answer = Box<dyn FnOnce() + Send>;

impl Durability {
    /// Begins a snapshot on the loop that has this work, to be taken in slices later; nothing is locked now.
    /// False: one is under way. O(databases).
    pub fn begin(self: &Arc<Self>, works: &mut Works, purpose: Purpose, done: Option<Done>) -> bool {
        let taken = self.take();
        if taken {
            self.begin_taken(purpose, done, Some(works));
        }
        taken
    }

    /// Begins a snapshot, on the loop that has this work, or on [`LOOP`]. The caller has taken `busy`.
    pub(crate) fn begin_taken(
        self: &Arc<Self>,
        purpose: Purpose,
        done: Option<Done>,
        here: Option<&mut Works>,
    ) {
        self.begin_for(purpose, done, here, None);
    }

    /// Begins a snapshot for replicas, on [`LOOP`]. False: a snapshot is under way, or data is being loaded.
    /// O(databases)
    pub fn begin_sync(self: &Arc<Self>, spool: Arc<dyn Spool>) -> bool {
        let taken = !self.is_loading() && self.take();
        if taken {
            self.begin_for(Purpose::Sync, None, None, Some(spool));
        }
        taken
    }

    fn begin_for(
        self: &Arc<Self>,
        purpose: Purpose,
        done: Option<Done>,
        here: Option<&mut Works>,
        spool: Option<Arc<dyn Spool>>,
    ) {
        self.note_begin(purpose);
        let ((queue, batches), (give_back, empty)) = (channel(), channel());
        // A rewrite has a mark of the log's, and the log names places itself.
        let history = self.history.get().filter(|_| purpose != Purpose::Rewrite);
        let mark = match &spool {
            Some(spool) => Some(spool.mark()),
            None => history.and_then(|history| history.mark()),
        };
        let place = mark.filter(|_| spool.is_none());
        let piece = Box::new(Saving::new(self, (purpose, mark), queue, empty));
        // A rewrite begins on the disk.
        let (first, piece) =
            if purpose == Purpose::Rewrite { (Some(piece), None) } else { (None, Some(piece)) };
        let writer = Writer {
            durability: self.clone(),
            purpose,
            file: purpose.file(&self.config),
            first,
            rewrite: None,
            spool,
            place,
            batches,
            give_back,
            done,
            began: Instant::now(),
        };
        // The background thread starts the thread, because that may take longer than a quantum.
        let made = self.observe.background.send(move || writer.start());
        if !made {
            log::error!("a snapshot was not begun: no thread could be started");
        }
        match (piece, here) {
            (Some(piece), Some(works)) => works.push(piece),
            (Some(piece), None) => (self.work.post)(LOOP, Letter::Back(piece)),
            (None, _) => {}
        }
    }

    /// Sets figures and switches for a snapshot that begins.
    fn note_begin(&self, purpose: Purpose) {
        let saves = &self.saves;
        let now_s = stdx::clock::wall_ms() / 1000;
        for number in [&saves.began_s, &saves.tried_s] {
            number.store(now_s, Relaxed);
        }
        for number in [&saves.keys, &saves.kept_bytes, &saves.written_bytes, &saves.foreign] {
            number.store(0, Relaxed);
        }
        for switch in [&saves.scheduled, &saves.cancelled, &saves.anew, &saves.broken, &saves.pressed] {
            switch.store(false, Release);
        }
        saves.total_keys.store(keys(&self.keyspace), Relaxed);
        saves.dirty_begun.store(self.dirty(), Relaxed);
        saves.is_rewrite.store(purpose == Purpose::Rewrite, Release);
    }

    /// Decides whether failed snapshots stop writes.
    pub(crate) fn judge(&self) {
        let live = &self.config.live;
        let stops = live.stop_writes_on_save_error.get() && !live.save_points.is_empty();
        self.set(trouble::SAVE_FAILED, stops && self.saves.failed.load(Relaxed));
    }

    /// Begins a snapshot that is scheduled, or due by a save point.
    pub(crate) fn tend_saves(self: &Arc<Self>, works: &mut Works, now_ms: u64) {
        let saves = &self.saves;
        if self.is_busy() {
            return;
        }
        if saves.scheduled.load(Acquire) {
            self.begin(works, Purpose::Save, None);
            return;
        }
        let (now_s, changes) = (now_ms / 1000, self.changes());
        if changes == 0 || !self.has_files() {
            return;
        }
        if saves.failed.load(Relaxed) && now_s < saves.tried_s.load(Relaxed) + RETRY_S {
            return;
        }
        let passed_s = now_s.saturating_sub(self.last_save_s());
        let points = self.config.live.save_points.get();
        let due = pairs(&points).find(|(s, least)| passed_s > *s && changes >= *least);
        if let Some((seconds, least)) = due {
            log::info!("{changes} changes in {passed_s} s (save {seconds} {least}): saving");
            self.begin(works, Purpose::Save, None);
        }
    }
}

fn keys(keyspace: &Keyspace) -> u64 {
    (0..keyspace.databases()).map(|db| keyspace.len(db) as u64).sum()
}

fn pairs(points: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let mut numbers = points.split(|b| *b == b' ').filter_map(stdx::num::parse_i64).map(|n| n.max(0) as u64);
    std::iter::from_fn(move || Some((numbers.next()?, numbers.next()?)))
}
