//! The append-only log, as the server sees it: whether it writes, what waits for it, and when it is
//! rewritten.
//!
//! - O1: while the log is stopped, writes are refused and no long commit is decided. Reads, messages and
//!   health checks go on.
//! - O2: while very much waits for the log, clients that want to write are held for a moment.
//! - O3: a rewrite is a snapshot whose file becomes the log's base. It shares `busy` with other snapshots.
//! - O4: a log that CONFIG SET could not begin is tried again after 1, 2, 4 … 60 seconds, while it is wanted.

use crate::files::Files;
use crate::saving::{Answer, Purpose};
use crate::{Durability, MISCONF, NOREPLICAS, trouble};
use keyspace::{Lsn, Why};
use observe::info::Aof;
use observe::waits::disk::DiskCall;
use parking_lot::Mutex;
use persist::Tail;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use stdx::clock::mono_ns;

/// Interval of the checks while waiting.
/// Longest wait for the log to have all that was told.
const WRITING: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

/// The longest time in seconds until a log is begun once more (O4).
const BEGIN_MAX_S: u64 = 60;

/// State of the log. See the module.
#[derive(Default)]
pub(crate) struct State {
    /// The reason why the log does not write.
    stopped: Mutex<Option<String>>,
    scheduled: AtomicBool,
    rewrites: AtomicU64,
    failures: AtomicU64,
    last_failed: AtomicBool,
    /// Seconds that the last rewrite took, plus one; 0: there was none.
    last_s: AtomicU64,
    /// The time at which the log is to be begun once more; 0: it is as it is wanted. Failures so far (O4).
    begin_at_ms: AtomicU64,
    unbegun: AtomicU64,
    /// It rests while all data are replaced.
    is_down: AtomicBool,
    /// The next log takes the place of one whose data are gone.
    is_replaced: AtomicBool,
    /// Held while the log is begun or ended.
    switching: Mutex<()>,
}

impl Durability {
    /// Stops the log for a reason, or lets it write again (O1). Called by a thread that touches no file.
    pub(crate) fn set_log_stopped(&self, stopped: Option<String>) {
        let stops = stopped.is_some();
        *self.log.stopped.lock() = stopped;
        self.set(trouble::LOG_STOPPED, stops);
        // Removals could not be told. Until the log writes, expired keys are absent but stay where they are.
        self.keyspace.still.set(Why::Log, stops);
        if !stops {
            self.host.retry();
        }
    }

    /// Notes whether very much waits for the log (O2).
    pub(crate) fn set_log_full(&self, full: bool) {
        if full != (self.state.load(Relaxed) & trouble::LOG_FULL != 0) {
            self.set(trouble::LOG_FULL, full);
        }
    }

    /// Notes whether so much waits for the log that writes are refused.
    pub(crate) fn set_log_over(&self, over: bool) {
        if over != (self.state.load(Relaxed) & trouble::LOG_OVER != 0) {
            self.set(trouble::LOG_OVER, over);
        }
    }

    /// Notes how many bytes wait for the log (O2).
    pub(crate) fn note_pending(&self, bytes: u64) {
        let live = &self.config.live;
        self.set_log_full(bytes > live.log_pending_bytes.size() as u64);
        self.set_log_over(bytes > live.log_pending_max_bytes.size() as u64);
    }

    /// Notes a delay of the disk for LATENCY. `name`: Redis's name of the event.
    pub(crate) fn note_latency(&self, name: &'static str, ns: u64) {
        let (now_s, ms) = (stdx::clock::wall_ms() / 1000, ns / 1_000_000);
        self.observe.waits.disk.note(DiskCall { name, ns, ended_ns: mono_ns() });
        self.observe.stats.events.add(name, now_s, ms, self.config.live.latency_threshold_ms.get());
    }

    /// Whether very much waits for the log, so that writes are held (O2).
    pub fn is_log_full(&self) -> bool {
        self.state.load(Relaxed) & trouble::LOG_FULL != 0
    }

    /// The reason why the log does not write. None: it writes.
    pub(crate) fn log_stopped(&self) -> Option<String> {
        self.log.stopped.lock().clone()
    }

    /// Whether the log does not write (O1).
    pub fn is_log_stopped(&self) -> bool {
        self.state.load(Relaxed) & trouble::LOG_STOPPED != 0
    }

    /// Schedules a rewrite of the log, to begin as soon as no snapshot is under way.
    pub fn schedule_rewrite(&self) {
        self.log.scheduled.store(true, Relaxed);
    }

    /// The reason why writes are refused. None: they are not.
    pub fn refusal(&self) -> Option<String> {
        if self.is_log_stopped() {
            let why = self.log.stopped.lock().clone().unwrap_or_default();
            return Some(format!("MISCONF Errors writing to the AOF file: {why}"));
        }
        if self.state.load(Relaxed) & trouble::LOG_OVER != 0 {
            return Some("MISCONF Errors writing to the AOF file: too much waits to be written".to_owned());
        }
        if self.state.load(Relaxed) & trouble::FEW_REPLICAS != 0 {
            return Some(NOREPLICAS.to_owned());
        }
        self.stops_writes().then(|| MISCONF.to_owned())
    }

    /// Notes the end of a rewrite.
    pub(crate) fn note_rewrite(&self, result: &Result<(), String>, seconds: u64) {
        let log = &self.log;
        log.last_failed.store(result.is_err(), Relaxed);
        log.last_s.store(seconds + 1, Relaxed);
        if result.is_ok() {
            log.rewrites.fetch_add(1, Relaxed);
            log.failures.store(0, Relaxed);
        } else {
            log.failures.fetch_add(1, Relaxed);
        }
    }

    /// Begins a rewrite that is scheduled or due, or a log that could not be begun (O4). Called by one loop,
    /// now and then.
    pub(crate) fn tend_log(self: &Arc<Self>) {
        let Ok(files) = self.files() else { return };
        let (live, log) = (&self.config.live, &self.log);
        files.look_at_log(self);
        let begin_at_ms = log.begin_at_ms.load(Acquire);
        if begin_at_ms != 0 && begin_at_ms <= mono_ns() / 1_000_000 {
            // Before the thread, which may set the next time.
            log.begin_at_ms.store(0, Release);
            self.switch_log();
        }
        if !live.appendonly.get() || self.is_busy() {
            return;
        }
        let (percentage, least) =
            (live.aof_rewrite_percentage.size() as u64, live.aof_rewrite_min_bytes.size() as u64);
        let due = files.wants_rewrite(percentage, least);
        if due {
            log::info!("the append-only log has grown by {percentage} %: rewriting it");
        }
        if due || log.scheduled.swap(false, AcqRel) {
            self.begin_rewrite();
        }
    }

    /// Begins a rewrite, to be taken in slices later. False: a snapshot is under way. O(1).
    pub fn begin_rewrite(self: &Arc<Self>) -> bool {
        let taken = self.take();
        if taken {
            self.begin_taken(Purpose::Rewrite, None, None);
        }
        taken
    }

    /// Whether the snapshot under way is a rewrite.
    pub fn is_rewriting(&self) -> bool {
        self.is_busy() && self.saves.is_rewrite.load(Acquire)
    }

    /// Rewrites the log and waits for the end, however often whole tables are replaced as it begins. For a
    /// thread that may wait. O(keys) in slices.
    ///
    /// Errors: a sentence.
    pub(crate) fn rewrite_now(self: &Arc<Self>) -> Result<(), String> {
        loop {
            while !self.take() {
                std::thread::sleep(LOOK);
            }
            let (done, wait) = channel();
            let its = self.clone();
            let tell = move |written: Result<&Path, &str>| -> Answer {
                let again = written.is_err() && its.is_anew();
                let written = written.map(drop).map_err(str::to_owned);
                Box::new(move || drop(done.send((written, again))))
            };
            self.begin_taken(Purpose::Rewrite, Some(Box::new(tell)), None);
            let (written, again) = wait.recv().unwrap_or_else(|_| (Err("it was given up".to_owned()), false));
            if !again {
                return written;
            }
            self.log.scheduled.store(false, Relaxed);
        }
    }

    /// Begins or ends the log (CONFIG SET appendonly), on a thread of its own. O(1).
    ///
    /// Several switches run one after the other; each sets the state that is wanted by then.
    pub(crate) fn switch_log(self: &Arc<Self>) {
        let its = self.clone();
        if std::thread::Builder::new().name("switch".into()).spawn(move || its.switch()).is_err() {
            log::error!("the append-only log was not switched: no thread could be started");
        }
    }

    /// Ends the log because all data are about to be replaced, until [`Durability::take_log_up`]. For a thread
    /// that may wait.
    pub(crate) fn put_log_down(self: &Arc<Self>) {
        self.log.is_down.store(true, Release);
        // A switch under way may be beginning a log, which has its base then. No later one begins any.
        drop(self.log.switching.lock());
        if self.files().is_ok_and(Files::has_log) {
            self.switch();
        }
        // It counts for the next log, and not for one that began just now.
        self.log.is_replaced.store(true, Release);
    }

    /// Whether the log that begins takes the place of one whose data are gone. Asked once.
    pub(crate) fn is_log_replaced(&self) -> bool {
        self.log.is_replaced.swap(false, AcqRel)
    }

    /// Copies the commands of the log that lie behind an offset of a history, which has these names. Waits until
    /// the log has all that was told, some seconds at most. O(bytes behind its base)
    ///
    /// Errors: there is no log, or it cannot be read.
    pub fn copy_tail(&self, ids: &[&str], offset: u64, out: &mut dyn Write) -> std::io::Result<Tail> {
        let files = self.files().map_err(std::io::Error::other)?;
        let (lsn, until) = (self.keyspace.last_lsn(), Instant::now() + WRITING);
        while files.synced(true).is_some_and(|synced| synced < lsn) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        files.copy_tail(ids, offset, out)
    }

    /// Begins the log anew, if it is wanted: what it was put down for is done. O(1); the base is written
    /// elsewhere.
    pub(crate) fn take_log_up(self: &Arc<Self>) {
        self.log.is_down.store(false, Release);
        if self.config.live.appendonly.get() {
            self.switch_log();
        }
    }

    /// Begins or ends the log, as is wanted by now.
    fn switch(self: &Arc<Self>) {
        let Ok(files) = self.files() else { return };
        let log = &self.log;
        let _one = log.switching.lock();
        let on = self.config.live.appendonly.get() && !log.is_down.load(Acquire);
        while !on && self.is_rewriting() {
            // Its files are put aside with the log's.
            self.cancel();
            std::thread::sleep(LOOK);
        }
        match files.switch_log(self, on) {
            Ok(()) => {
                log.unbegun.store(0, Relaxed);
                log.begin_at_ms.store(0, Release);
                log::info!("the append-only log {}", if on { "is written" } else { "was ended" });
            }
            Err(why) => {
                log.last_failed.store(true, Relaxed);
                let wait_s = 1 << log.unbegun.fetch_add(1, Relaxed).min(6);
                let wait_s = BEGIN_MAX_S.min(wait_s);
                log.begin_at_ms.store(mono_ns() / 1_000_000 + 1000 * wait_s, Release);
                log::error!("the append-only log was not begun, and is tried again in {wait_s} s: {why}");
            }
        }
    }

    /// Applies changed settings of the log at once: the client that set them relies on them. O(1), without I/O.
    pub(crate) fn configure_log(&self) {
        if let Ok(files) = self.files() {
            files.configure_log(self);
        }
    }

    /// The LSN up to which the log is durable. None: there is no log. `waits` says that a client waits for a
    /// later one. O(1), without I/O.
    pub fn synced(&self, waits: bool) -> Option<Lsn> {
        self.files().ok()?.synced(waits)
    }

    /// The figures of INFO.
    pub(crate) fn log_figures(&self) -> Aof {
        let log = &self.log;
        let of_files = self.files().map(Files::log_figures).unwrap_or_default();
        Aof {
            enabled: self.config.live.appendonly.get(),
            rewrite_scheduled: log.scheduled.load(Relaxed),
            last_rewrite_s: log.last_s.load(Relaxed).checked_sub(1),
            last_rewrite_failed: log.last_failed.load(Relaxed),
            rewrites: log.rewrites.load(Relaxed),
            rewrite_failures: log.failures.load(Relaxed),
            stopped: log.stopped.lock().clone(),
            ..of_files
        }
    }
}
