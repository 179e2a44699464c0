//! The log thread: takes the waiting items, writes them, and tells what is durable.

use super::helpers::{self, SyncJob};
use super::queue::{Closing, Queue, Synced, Todo};
use super::{BATCH_BYTES, EVERYTHING, Fsync, Settings, Shared};
use crate::files::Lost;
use crate::files::local::{LocalLog, locked};
use crate::log::{Append, Batch, Log};
use crate::stream::Mark;
use keyspace::Lsn;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use stdx::clock::mono_ns;

/// Nanoseconds between two syncs under everysec.
const SECOND_NS: u64 = 1_000_000_000;
/// Files of commands from which a rewrite is asked for.
const FILES_MAX: usize = 64;

/// As in LATENCY: a write and its sync.
const SYNC_ALWAYS: &str = "aof-fsync-always";
/// Number of tries for each step when the log has to end.
const LAST_TRIES: u32 = 3;
/// Reasons for a new base.
const TORN: &str = "an internal error lost writes on their way to it";
const LOST: &str = "its files were removed";

/// Starts all threads of a log.
pub(super) fn start(shared: &Arc<Shared>, log: LocalLog) -> io::Result<Vec<JoinHandle<()>>> {
    let (jobs, to_sync) = std::sync::mpsc::channel();
    let thread = |name: &str, life: Box<dyn FnOnce() + Send>| Builder::new().name(name.into()).spawn(life);
    shared.counters.moves();
    let syncs = Arc::clone(shared);
    let keeps = Arc::clone(shared);
    let watches = Arc::clone(shared);
    let pen = Pen::new(Arc::clone(shared), log, jobs);
    Ok(vec![
        thread("log-sync", Box::new(move || helpers::sync(&syncs, &to_sync)))?,
        thread("log-keeper", Box::new(move || helpers::keep(&keeps)))?,
        thread("log-watch", Box::new(move || helpers::watch(&watches)))?,
        thread("log", Box::new(move || pen.run()))?,
    ])
}

/// The work that the log thread has taken, until it is done.
enum Doing {
    Write(Batch),
    Rotate(Lsn, Mark),
    Break(Arc<str>),
}

/// The log thread's own.
struct Pen {
    shared: Arc<Shared>,
    log: LocalLog,
    jobs: Sender<SyncJob>,
    settings: Settings,
    number: u64,
    doing: Option<Doing>,
    /// Effects were lost, and no base has them (writer K5, K6); why.
    is_torn: bool,
    torn_by: &'static str,
    looked_ns: u64,
    /// A sync is under way; since when, and whether its delay was counted.
    syncing: Option<(u64, bool)>,
    last_sync_ns: u64,
    told: Lsn,
    /// The LSN up to which everything was given at the last look.
    seen: Lsn,
    /// Number of such tries that are left.
    last_tries: u32,
    asked_for_rewrite: bool,
}

/// The log is to end although something was not done.
struct GivenUp;

impl Pen {
    fn new(shared: Arc<Shared>, log: LocalLog, jobs: Sender<SyncJob>) -> Pen {
        let settings = shared.settings();
        Pen {
            shared,
            log,
            jobs,
            settings,
            number: 0,
            doing: None,
            is_torn: false,
            torn_by: TORN,
            looked_ns: mono_ns(),
            syncing: None,
            last_sync_ns: mono_ns(),
            told: 0,
            seen: 0,
            last_tries: LAST_TRIES,
            asked_for_rewrite: false,
        }
    }

    fn run(mut self) {
        // `GivenUp` ends the thread wherever it is.
        let _ = self.live();
    }

    fn live(&mut self) -> Result<(), GivenUp> {
        self.contained(|pen| pen.change(true))?;
        while self.contained(Pen::turn)? {}
        self.contained(|pen| {
            pen.settle(true)?;
            pen.until_done(None, |pen| pen.log.sync())?;
            pen.log.close_file();
            pen.until_done(None, |pen| pen.log.sync())?;
            pen.tells(pen.log.last());
            Ok(())
        })
    }

    /// Does a part of the life. A panic in it is an error (writer K5), and it is tried again.
    fn contained<T>(&mut self, part: impl Fn(&mut Pen) -> Result<T, GivenUp>) -> Result<T, GivenUp> {
        let mut has_failed = false;
        loop {
            match stdx::panics::contain(|| part(self)) {
                Ok(done) => {
                    if has_failed && done.is_ok() {
                        self.is_well();
                    }
                    return done;
                }
                Err(why) => {
                    self.log.doubts();
                    self.fails(&io::Error::other(format!("an internal error: {why}")))?;
                    has_failed = true;
                }
            }
        }
    }

    /// Waits for work and does it. False: the log is to end, and everything is done.
    fn turn(&mut self) -> Result<bool, GivenUp> {
        let mut upto = None;
        if self.log.is_doubted() {
            self.settle(true)?;
            self.until_done(None, |pen| pen.log.sync())?;
            self.file_changed();
        } else if self.doing.is_none() {
            let mut queue = self.wait();
            match queue.closing {
                Closing::Abandoned => return Err(GivenUp),
                Closing::Clean if queue.is_empty() => return Ok(false),
                _ => {}
            }
            queue.has_base = false;
            let todo = queue.take(BATCH_BYTES);
            upto = queue.is_empty().then_some(queue.upto);
            drop(queue);
            self.doing = todo.and_then(|todo| self.begin(todo));
        }
        self.settle(false)?;
        if self.shared.settings_changed() {
            self.change(false)?;
        }
        self.looks()?;
        match &self.doing {
            Some(Doing::Write(batch)) => self.write(&batch.clone())?,
            Some(Doing::Rotate(lsn, mark)) => self.rotate(*lsn, *mark)?,
            Some(Doing::Break(why)) => self.tears(&why.clone())?,
            None => {}
        }
        self.tick(upto)?;
        Ok(true)
    }

    fn begin(&mut self, todo: Todo) -> Option<Doing> {
        match todo {
            Todo::Mark(lsn, mark) => Some(Doing::Rotate(lsn, mark)),
            Todo::Break(why) => Some(Doing::Break(why)),
            Todo::Batch(blocks) => {
                let (first, last) = (blocks.first()?.first, blocks.last()?.last);
                let number = self.number;
                self.number += 1;
                let epoch = self.shared.epoch;
                Some(Doing::Write(Batch { epoch, number, first, last, blocks: blocks.into() }))
            }
        }
    }

    /// The queue, when there is something to do, or time has passed.
    fn wait(&self) -> MutexGuard<'_, Queue> {
        let queue = locked(&self.shared.queue);
        let told = self.told.max(self.seen);
        let idles = |queue: &mut Queue| {
            let turned = queue.wants_turns && queue.upto > told;
            queue.is_empty()
                && !turned
                && queue.synced.is_none()
                && !queue.settings_changed
                && !queue.has_base
                && queue.closing == Closing::No
        };
        let patience = if self.log.is_synced() { Duration::from_secs(1) } else { Duration::from_millis(100) };
        self.shared.bell.wait_timeout_while(queue, patience, idles).unwrap_or_else(PoisonError::into_inner).0
    }

    fn write(&mut self, batch: &Batch) -> Result<(), GivenUp> {
        let event = if self.settings.fsync == Fsync::Always { SYNC_ALWAYS } else { "aof-write" };
        self.until_done(Some(event), |pen| {
            let position = pen.log.end()?;
            match pen.log.append(batch, position) {
                Append::Done(_) => Ok(()),
                Append::Failed(error) => Err(error),
                Append::Conflict | Append::Unknown => Err(io::Error::other("the log is written by another")),
            }
        })?;
        self.doing = None;
        self.shared.counters.pending_bytes.fetch_sub(batch.size_bytes(), Ordering::Relaxed);
        if self.settings.fsync == Fsync::Always {
            self.tells(batch.last);
        }
        if self.log.pads() && self.log.incr.ahead.is_low() {
            self.prepare_file();
        }
        Ok(())
    }

    /// Does something until it succeeds (K1).
    fn until_done(
        &mut self,
        event: Option<&'static str>,
        mut f: impl FnMut(&mut Pen) -> io::Result<()>,
    ) -> Result<(), GivenUp> {
        loop {
            let began_ns = mono_ns();
            let done = f(self);
            let took_ns = mono_ns() - began_ns;
            if let Some(event) = event {
                (self.shared.hooks.latency)((event, took_ns));
            }
            if event == Some(SYNC_ALWAYS) {
                self.shared.counters.synced(took_ns);
            }
            match done {
                Ok(()) => {
                    self.shared.counters.moves();
                    self.is_well();
                    return Ok(());
                }
                Err(error) => self.fails(&error)?,
            }
        }
    }

    /// Notes that the error is over.
    fn is_well(&self) {
        self.shared.counters.write_failed.store(self.is_torn, Ordering::Relaxed);
        self.shared.stands(|standing| standing.error = None);
    }

    /// Reports why nothing is written, and waits until the next try.
    fn fails(&mut self, error: &io::Error) -> Result<(), GivenUp> {
        self.shared.counters.write_failed.store(true, Ordering::Relaxed);
        let why = format!("{}: {error}", self.shared.place.dir.display());
        self.shared.stands(|standing| standing.error = Some(why));
        let queue = locked(&self.shared.queue);
        let before = queue.closing;
        let goes_on = |queue: &mut Queue| queue.closing == before;
        let retry = self.shared.settings().retry;
        let waited = self.shared.bell.wait_timeout_while(queue, retry, goes_on);
        let (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match queue.closing {
            Closing::No => Ok(()),
            Closing::Clean if self.last_tries > 0 => {
                self.last_tries -= 1;
                Ok(())
            }
            Closing::Clean | Closing::Abandoned => Err(GivenUp),
        }
    }

    /// Takes the result of the sync under way, if it has come, or waits for it.
    fn settle(&mut self, waits: bool) -> Result<(), GivenUp> {
        if self.syncing.is_none() {
            return Ok(());
        }
        let synced = {
            let mut queue = locked(&self.shared.queue);
            if waits {
                let comes = |queue: &mut Queue| queue.synced.is_none() && queue.closing != Closing::Abandoned;
                queue = self.shared.bell.wait_while(queue, comes).unwrap_or_else(PoisonError::into_inner);
            }
            queue.synced.take()
        };
        let Some(Synced { seq, end, result }) = synced else {
            return if waits { Err(GivenUp) } else { Ok(()) };
        };
        self.syncing = None;
        self.shared.counters.sync_is_pending.store(false, Ordering::Relaxed);
        let mut result = Some(result);
        self.until_done(None, |pen| match result.take() {
            Some(result) => pen.log.was_synced(seq, end, result),
            None => pen.log.sync(),
        })?;
        self.file_changed();
        Ok(())
    }

    fn rotate(&mut self, lsn: Lsn, mark: Mark) -> Result<(), GivenUp> {
        // A sync elsewhere may take the error that this one is to see.
        self.settle(true)?;
        self.until_done(Some("aof-rotate"), |pen| pen.log.rotate(lsn, mark))?;
        self.doing = None;
        self.file_changed();
        self.shared.rotated.notify_all();
        Ok(())
    }

    /// Looks once a second whether the log on the disk is still this one (writer K6).
    fn looks(&mut self) -> Result<(), GivenUp> {
        let is_early = mono_ns() - self.looked_ns < SECOND_NS;
        if is_early && !self.shared.looks_now.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        self.looked_ns = mono_ns();
        if self.shared.guard().is_err() {
            self.until_done(None, |pen| pen.shared.guard().map_err(io::Error::other))?;
        }
        // A rewrite under way makes it anew.
        if self.log.has_gap() { Ok(()) } else { self.is_there(false).map(drop) }
    }

    /// Whether the log on the disk is this one. If not, it is stopped until a base has everything (writer K6).
    fn is_there(&mut self, waits: bool) -> Result<bool, GivenUp> {
        let mut lost = self.log.check(waits);
        if let Err(Lost::Unknown(error)) = lost {
            self.fails(&error)?;
            let mut again = Ok(());
            self.until_done(None, |pen| match pen.log.check(true) {
                Err(Lost::Unknown(error)) => Err(error),
                checked => {
                    again = checked;
                    Ok(())
                }
            })?;
            lost = again;
        }
        let Err(lost) = lost else { return Ok(true) };
        let is_replaced = matches!(lost, Lost::Replaced(_));
        self.log.tears();
        (self.is_torn, self.torn_by, self.asked_for_rewrite) = (true, LOST, is_replaced);
        self.shared.counters.is_replaced.store(is_replaced, Ordering::Relaxed);
        self.shared.counters.has_gap.store(true, Ordering::Relaxed);
        let advice = match is_replaced {
            true => "BGREWRITEAOF puts aside what is there and makes the log anew",
            false => "the log is made anew",
        };
        self.shared.torn(&format!("{lost}; {advice}"));
        Ok(false)
    }

    /// Effects behind what was written are lost: the log is stopped until a base has them.
    fn tears(&mut self, why: &str) -> Result<(), GivenUp> {
        self.settle(true)?;
        self.until_done(None, |pen| pen.log.sync())?;
        self.log.tears();
        (self.is_torn, self.torn_by, self.asked_for_rewrite, self.doing) = (true, TORN, false, None);
        self.shared.torn(why);
        Ok(())
    }

    /// A base has all effects that were lost.
    fn is_mended(&mut self) {
        self.is_torn = false;
        self.shared.counters.is_replaced.store(false, Ordering::Relaxed);
        self.shared.counters.write_failed.store(false, Ordering::Relaxed);
        self.shared.stands(|standing| standing.torn = None);
    }

    /// Work that is done now and then.
    fn tick(&mut self, upto: Option<Lsn>) -> Result<(), GivenUp> {
        self.seen = upto.unwrap_or(self.seen);
        if let Some(seq) = self.shared.based_before() {
            self.log.based_before(seq);
        }
        // It may have been lost once more.
        if self.is_torn && !self.log.has_gap() && self.is_there(true)? {
            self.is_mended();
        }
        let has_gap = self.log.has_gap();
        if !has_gap {
            let is_whole = self.log.is_synced();
            let synced = upto.filter(|_| is_whole).unwrap_or_default().max(self.log.durable());
            self.shared.counters.synced_lsn.fetch_max(synced, Ordering::Relaxed);
        }
        if self.settings.fsync == Fsync::Always {
            // Everything that was given is written, and what lies between has no effects.
            if let Some(upto) = upto.filter(|upto| *upto > self.told) {
                self.tells(upto);
            }
        }
        match self.settings.fsync {
            Fsync::EverySecond => self.sync_elsewhere(),
            // Only for a client that waits for it. As long as it does, it asks again.
            Fsync::No if std::mem::take(&mut locked(&self.shared.queue).wants_turns) => self.sync_elsewhere(),
            Fsync::No | Fsync::Always => {}
        }
        self.shared.counters.has_gap.store(has_gap, Ordering::Relaxed);
        if has_gap && !self.asked_for_rewrite {
            self.asked_for_rewrite = true;
            let why = if self.is_torn { self.torn_by } else { "a failed sync lost more than was kept" };
            (self.shared.hooks.rewrite)(why);
        }
        self.asked_for_rewrite &= has_gap;
        Ok(())
    }

    fn sync_elsewhere(&mut self) {
        let now_ns = mono_ns();
        if let Some((since_ns, is_counted)) = &mut self.syncing {
            if !*is_counted && now_ns - *since_ns > SECOND_NS {
                *is_counted = true;
                self.shared.counters.delayed_syncs.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        if self.log.is_synced() || now_ns - self.last_sync_ns < SECOND_NS {
            return;
        }
        self.last_sync_ns = now_ns;
        let (file, seq, end) = (Arc::clone(&self.log.incr.file), self.log.incr.seq, self.log.incr.end);
        if self.jobs.send(SyncJob { file, seq, end }).is_ok() {
            self.syncing = Some((now_ns, false));
            self.shared.counters.sync_is_pending.store(true, Ordering::Relaxed);
        }
    }

    /// Tells what is durable, unless something before it is lost (writer K5).
    fn tells(&mut self, lsn: Lsn) {
        if self.settings.fsync == Fsync::Always && !self.log.has_gap() {
            self.told = lsn;
            (self.shared.hooks.durable)(lsn);
        }
    }

    /// Takes over the new settings.
    fn change(&mut self, is_first: bool) -> Result<(), GivenUp> {
        let before = self.settings;
        self.settings = self.shared.settings();
        self.log.set_unsynced_max(self.settings.unsynced_max);
        let (was, is) = (before.fsync == Fsync::Always && !is_first, self.settings.fsync == Fsync::Always);
        if self.settings.fsync == Fsync::No {
            // No thread syncs it, so nothing is gained by keeping it.
            self.log.set_unsynced_max(0);
        }
        if let Err(error) = self.log.set_pads(self.settings.fills()) {
            log::warn!("the filler of the log cannot be cut off: {error}");
        }
        self.file_changed();
        self.log.set_durable(is);
        locked(&self.shared.queue).wants_turns = is;
        if is && !was {
            self.settle(true)?;
            self.until_done(Some(SYNC_ALWAYS), |pen| pen.log.sync())?;
            self.tells(self.log.last());
        }
        if !is && (was || is_first) {
            (self.shared.hooks.durable)(EVERYTHING);
        }
        Ok(())
    }

    /// The file may be another one: the keeper prepares it.
    fn file_changed(&mut self) {
        if self.log.pads() {
            self.prepare_file();
        } else {
            self.shared.prepare(None);
        }
        let files = self.shared.files();
        if files > FILES_MAX && !self.asked_for_rewrite {
            self.asked_for_rewrite = true;
            (self.shared.hooks.rewrite)("the log has too many files");
        }
    }

    fn prepare_file(&self) {
        let ahead = Arc::clone(&self.log.incr.ahead);
        self.shared.prepare(Some((self.log.path(), ahead)));
    }
}
