//! The append-only log, as the server sees it: whether it writes, what waits for it, and when it is
//! rewritten.
//!
//! - O1: while the log is stopped, writes are refused and no long commit is decided. Reads, messages and
//!   health checks go on.
//! - O2: while very much waits for the log, clients that want to write are held for a moment.
//! - O3: a rewrite is a snapshot whose file becomes the log's base. It shares `busy` with other snapshots.
//! - O4: a log that CONFIG SET could not begin is tried again after 1, 2, 4 … 60 seconds, while it is wanted.

use super::{Durability, saving, trouble};
use crate::mail::Mail;
use crate::{Local, Server};
use keyspace::Why;
use observe::info::Aof;
use observe::waits::disk::DiskCall;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::channel;
use std::time::Duration;
use stdx::clock::mono_ns;

/// Interval of the checks while waiting.
const LOOK: Duration = Duration::from_millis(5);

/// The longest time in seconds until a log is begun once more (O4).
const BEGIN_MAX_S: u64 = 60;

/// A rewrite that was begun.
#[derive(Clone, Debug)]
pub struct Rewrite {
    /// The file that the snapshot is written to.
    pub base: PathBuf,
    /// The mark in the stream at which the log changes to its next file.
    pub mark: u64,
    pub epoch: u64,
}

/// State of the log. See the module.
#[derive(Default)]
pub(super) struct State {
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
}

impl Durability {
    /// Stops the log for a reason, or lets it write again (O1). Called by a thread that touches no file.
    pub fn set_log_stopped(&self, server: &Server, stopped: Option<String>) {
        let stops = stopped.is_some();
        *self.log.stopped.lock() = stopped;
        self.set(trouble::LOG_STOPPED, stops);
        // Removals could not be told. Until the log writes, expired keys are absent but stay where they are.
        server.keyspace.still.set(Why::Log, stops);
        if !stops {
            (0..server.loops()).for_each(|id| server.send(id, Mail::Retry));
        }
    }

    /// Notes whether very much waits for the log (O2).
    pub fn set_log_full(&self, full: bool) {
        if full != (self.state.load(Relaxed) & trouble::LOG_FULL != 0) {
            self.set(trouble::LOG_FULL, full);
        }
    }

    /// Notes whether so much waits for the log that writes are refused.
    pub fn set_log_over(&self, over: bool) {
        if over != (self.state.load(Relaxed) & trouble::LOG_OVER != 0) {
            self.set(trouble::LOG_OVER, over);
        }
    }

    /// Notes a delay of the disk for LATENCY. `name`: Redis's name of the event.
    pub fn note_latency(&self, server: &Server, name: &'static str, ns: u64) {
        let (now_s, ms) = (stdx::clock::wall_ms() / 1000, ns / 1_000_000);
        server.observe.waits.disk.note(DiskCall { name, ns, ended_ns: stdx::clock::mono_ns() });
        server.observe.stats.events.add(name, now_s, ms, server.config.live.latency_threshold_ms.get());
    }

    pub(crate) fn is_log_full(&self) -> bool {
        self.state.load(Relaxed) & trouble::LOG_FULL != 0
    }

    /// The reason why the log does not write. None: it writes.
    pub fn log_stopped(&self) -> Option<String> {
        self.log.stopped.lock().clone()
    }

    pub fn is_log_stopped(&self) -> bool {
        self.state.load(Relaxed) & trouble::LOG_STOPPED != 0
    }

    /// Schedules a rewrite of the log, to begin as soon as no snapshot is under way.
    pub fn schedule_rewrite(&self) {
        self.log.scheduled.store(true, Relaxed);
    }

    /// The reason why writes are refused. None: they are not.
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.is_log_stopped() {
            let why = self.log.stopped.lock().clone().unwrap_or_default();
            return Some(format!("MISCONF Errors writing to the AOF file: {why}"));
        }
        if self.state.load(Relaxed) & trouble::LOG_OVER != 0 {
            return Some("MISCONF Errors writing to the AOF file: too much waits to be written".to_owned());
        }
        self.stops_writes().then(|| super::MISCONF.to_owned())
    }

    /// Notes the end of a rewrite.
    pub(super) fn note_rewrite(&self, result: &Result<(), String>, seconds: u64) {
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
}

/// Begins a rewrite that is scheduled or due. Called by one loop, now and then.
pub(super) fn tend(server: &Arc<Server>, _: &mut Local) {
    let Some(storage) = server.durability.storage() else { return };
    let live = &server.config.live;
    storage.look_at_log(server);
    let begin_at_ms = server.durability.log.begin_at_ms.load(Acquire);
    if begin_at_ms != 0 && begin_at_ms <= mono_ns() / 1_000_000 {
        // Before the thread, which may set the next time.
        server.durability.log.begin_at_ms.store(0, Release);
        switch_log(server);
    }
    if !live.appendonly.get() || saving::is_busy(server) {
        return;
    }
    let (percentage, least) =
        (live.aof_rewrite_percentage.size() as u64, live.aof_rewrite_min_bytes.size() as u64);
    let due = storage.wants_rewrite(percentage, least);
    if due {
        log::info!("the append-only log has grown by {percentage} %: rewriting it");
    }
    if due || server.durability.log.scheduled.swap(false, AcqRel) {
        begin_rewrite(server);
    }
}

/// Begins a rewrite. False: a snapshot is under way.
pub(crate) fn begin_rewrite(server: &Arc<Server>) -> bool {
    let taken = saving::take(server);
    if taken {
        saving::begin_taken(server, saving::Purpose::Rewrite, None, saving::Where::Loop(0));
    }
    taken
}

/// Whether the snapshot under way is a rewrite.
pub(crate) fn is_rewriting(server: &Server) -> bool {
    saving::is_busy(server) && server.durability.saves.is_rewrite.load(Acquire)
}

/// Rewrites the log and waits for the end, however often whole tables are replaced as it begins. For a thread that may
/// wait.
///
/// Errors: a sentence.
pub fn rewrite_now(server: &Arc<Server>) -> Result<(), String> {
    loop {
        while !saving::take(server) {
            std::thread::sleep(LOOK);
        }
        let (done, wait) = channel();
        let its = server.clone();
        let tell = move |written: Result<&Path, &str>| -> saving::Answer {
            let again = written.is_err() && saving::is_anew(&its);
            let written = written.map(drop).map_err(str::to_owned);
            Box::new(move || drop(done.send((written, again))))
        };
        saving::begin_taken(server, saving::Purpose::Rewrite, Some(Box::new(tell)), saving::Where::Loop(0));
        let (written, again) = wait.recv().unwrap_or_else(|_| (Err("it was given up".to_owned()), false));
        if !again {
            return written;
        }
        server.durability.log.scheduled.store(false, Relaxed);
    }
}

/// Begins or ends the log (CONFIG SET appendonly), on a thread of its own.
///
/// Several switches run one after the other; each sets the state that is wanted by then.
pub fn switch_log(server: &Arc<Server>) {
    static SWITCHING: Mutex<()> = Mutex::new(());
    let server = server.clone();
    let switch = move || {
        let Some(storage) = server.durability.storage() else { return };
        let _one = SWITCHING.lock();
        let on = server.config.live.appendonly.get();
        while !on && is_rewriting(&server) {
            // Its files are put aside with the log's.
            saving::cancel(&server);
            std::thread::sleep(LOOK);
        }
        let log = &server.durability.log;
        match storage.switch_log(&server, on) {
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
    };
    if std::thread::Builder::new().name("switch".into()).spawn(switch).is_err() {
        log::error!("the append-only log was not switched: no thread could be started");
    }
}

/// Applies changed settings of the log at once: the client that set them relies on them. O(1), without I/O.
pub fn configure_log(server: &Arc<Server>) {
    if let Some(storage) = server.durability.storage() {
        storage.configure_log();
    }
}

/// The figures of INFO.
pub(super) fn figures(server: &Server) -> Aof {
    let log = &server.durability.log;
    let of_files = server.durability.storage().map(super::Storage::log_figures).unwrap_or_default();
    Aof {
        enabled: server.config.live.appendonly.get(),
        rewrite_scheduled: log.scheduled.load(Relaxed),
        last_rewrite_s: log.last_s.load(Relaxed).checked_sub(1),
        last_rewrite_failed: log.last_failed.load(Relaxed),
        rewrites: log.rewrites.load(Relaxed),
        rewrite_failures: log.failures.load(Relaxed),
        stopped: log.stopped.lock().clone(),
        ..of_files
    }
}
