//! The log thread, and the threads that help it.
//!
//! ```text
//! order thread ─► Outlet ─► queue ─► log: batches ─► LocalLog ─► durable(lsn)
//!                                     ├─► sync: fdatasync once a second (everysec; no: while a client waits for it)
//!                                     └─► keeper: filler ahead of the file, old files
//! ```
//!
//! - K1: everything taken is written in its order, whatever fails. After an error the same batch is tried
//!   again each second, and the log goes on by itself. Nothing that was taken is dropped while the process
//!   lives.
//! - K2: `durable` is told only LSNs that a good sync covers. Under everysec and no it is told
//!   [`EVERYTHING`], once.
//! - K3: between two batches the file changes at a mark exactly: no group is split, and none is on both
//!   sides.
//! - K4: the state is stopped while an error lasts, or when nothing was written for [`Settings::stuck`]
//!   though something waits. A thread that touches no file tells it.
//! - K5: a panic of the log's thread, or of that of its syncs, is an error like that of a disk. The file is
//!   given up, and the work is tried again. The keeper and the watch begin anew. Effects that a panic lost
//!   before they came here stop the log until a rewrite has made a base behind them; nothing of the gap is told
//!   to be durable before that.
//! - K6: once a second the log thread looks whether the names in the directory still lead to its files. If not,
//!   nothing is told to be durable until a rewrite has made the log anew. One that was removed asks for that
//!   itself. Where somebody has put something else, a person has to.
//!
//! Memory: the waiting bytes, a batch of at most [`BATCH_BYTES`] and a block, and [`Settings::unsynced_max`].

mod figures;
mod helpers;
mod queue;
mod thread;

pub use figures::{Figures, Latency, RewriteStatus};
pub use queue::LogOutlet;

use crate::disk::Disk;
use crate::files::local::{Directory, LocalLog, Sizes, locked};
use crate::files::{Files, Place, begin};
use crate::load::LoadedLog;
use crate::rewrite::Rewrites;
use crate::save::remove_leftovers;
use figures::Counters;
use helpers::Filling;
use keyspace::Lsn;
use queue::{Closing, Queue};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// The LSN that `durable` is told when no reply has to wait for the disk.
pub const EVERYTHING: Lsn = Lsn::MAX;
/// About the size of a batch in bytes.
const BATCH_BYTES: u64 = 8 << 20;

/// `appendfsync`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    Always,
    #[default]
    EverySecond,
    No,
}

/// `aof-preallocate`: filler is written ahead of the file. Auto does so under [`Fsync::Always`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preallocate {
    #[default]
    Auto,
    Yes,
    No,
}

/// The settings of the log. All of them may change while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub fsync: Fsync,
    pub preallocate: Preallocate,
    /// `log-unsynced-max`: bytes that are kept until they are durable, under everysec.
    pub unsynced_max: u64,
    /// `log-stuck`.
    pub stuck: Duration,
    /// Time until a failed write is tried again.
    pub retry: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            fsync: Fsync::default(),
            preallocate: Preallocate::default(),
            unsynced_max: 64 << 20,
            stuck: Duration::from_secs(10),
            retry: Duration::from_secs(1),
        }
    }
}

impl Settings {
    fn fills(&self) -> bool {
        match self.preallocate {
            Preallocate::Auto => self.fsync == Fsync::Always,
            Preallocate::Yes => true,
            Preallocate::No => false,
        }
    }
}

/// Whether the log writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogState {
    #[default]
    Running,
    /// Writes must be refused, for this reason.
    Stopped(String),
}

type Guard = Box<dyn Fn() -> Result<(), String> + Send + Sync>;
type Told<T> = Box<dyn Fn(T) + Send + Sync>;

/// Calls by which the log tells of itself. They come from its threads: they must not wait, and not ask the
/// [`Writer`].
pub struct Hooks {
    /// Everything up to an LSN is durable (K2). The value falls once, when `appendfsync` becomes always.
    pub durable: Told<Lsn>,
    pub state: Told<LogState>,
    /// The name of an event as in LATENCY, and nanoseconds.
    pub latency: Told<(&'static str, u64)>,
    /// A rewrite is needed: the log on the disk has a gap, or too many files.
    pub rewrite: Told<&'static str>,
}

impl Default for Hooks {
    fn default() -> Hooks {
        Hooks {
            durable: Box::new(drop),
            state: Box::new(drop),
            latency: Box::new(drop),
            rewrite: Box::new(drop),
        }
    }
}

/// The facts that decide the state (K4).
#[derive(Default)]
struct Standing {
    error: Option<String>,
    /// Effects were lost, and no base has them (K5).
    torn: Option<String>,
    is_stuck: bool,
    told: LogState,
}

/// The state that the threads share.
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) place: Place,
    pub(crate) epoch: u64,
    pub(crate) queue: Mutex<Queue>,
    /// Something for the log thread.
    pub(crate) bell: Condvar,
    pub(crate) directory: Arc<Mutex<Directory>>,
    pub(crate) sizes: Arc<Mutex<Sizes>>,
    /// The log has come to a mark.
    pub(crate) rotated: Condvar,
    pub(crate) rewrites: Mutex<Rewrites>,
    settings: Mutex<Settings>,
    standing: Mutex<Standing>,
    hooks: Hooks,
    pub(crate) counters: Counters,
    filling: Mutex<Filling>,
    /// Something for the keeper.
    pub(crate) keeper: Condvar,
    /// Whether the directory is still this server's.
    guard: OnceLock<Guard>,
    /// The log thread looks at the directory before its time (K6).
    pub(crate) looks_now: AtomicBool,
    /// As [`Closing`], for threads that do not look at the queue.
    closing: AtomicU8,
}

impl Shared {
    pub(crate) fn settings(&self) -> Settings {
        *locked(&self.settings)
    }

    fn closing(&self) -> Closing {
        Closing::of(self.closing.load(Ordering::Acquire))
    }

    fn guard(&self) -> Result<(), String> {
        self.guard.get().map_or(Ok(()), |guard| guard())
    }

    /// Whether the log writes (K4).
    pub(crate) fn is_running(&self) -> bool {
        locked(&self.standing).told == LogState::Running
    }

    /// Notes that effects are lost, and that no base has them (K5).
    fn torn(&self, why: &str) {
        self.counters.write_failed.store(true, Ordering::Relaxed);
        let why = format!("{}: {why}", self.place.dir.display());
        self.stands(|standing| standing.torn = Some(why));
    }

    /// Notes a fact, and tells the state if it changed (K4).
    fn stands(&self, note: impl FnOnce(&mut Standing)) {
        let mut standing = locked(&self.standing);
        note(&mut standing);
        let state = match (standing.error.as_ref().or(standing.torn.as_ref()), standing.is_stuck) {
            (Some(error), _) => LogState::Stopped(error.clone()),
            (None, true) => {
                let seconds = self.settings().stuck.as_secs_f32();
                LogState::Stopped(format!("nothing was written to the log for {seconds} seconds"))
            }
            (None, false) => LogState::Running,
        };
        if state != standing.told {
            match &state {
                LogState::Running => log::info!("the log is written again"),
                LogState::Stopped(why) => log::error!("the log is stopped: {why}"),
            }
            standing.told = state.clone();
            (self.hooks.state)(state);
        }
    }
}

/// The log as it is written. Dropped without [`Writer::close`], it stops at once.
pub struct Writer {
    pub(crate) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Writer {
    /// Goes on in a new file behind a loaded log, or begins a log where there is none. The first group begins
    /// with SELECT. All LSNs that come are behind `last`.
    ///
    /// Errors: the file or the manifest cannot be made.
    pub fn open(
        disk: Arc<dyn Disk>,
        place: Place,
        loaded: Option<LoadedLog>,
        last: Lsn,
        settings: Settings,
        hooks: Hooks,
    ) -> io::Result<Writer> {
        begin::make_place(&*disk, &place)?;
        remove_temporaries(&*disk, &place)?;
        let loaded = loaded.unwrap_or_default();
        let sizes = sizes_of(&loaded);
        let epoch = loaded.epoch + 1;
        let files = Files::new(Arc::clone(&disk), place.clone(), loaded.manifest);
        let directory = Arc::new(Mutex::new(Directory { files, prepared: None, rotated: None }));
        let rewrites = Rewrites::new(sizes.all());
        let sizes = Arc::new(Mutex::new(sizes));
        let both = (Arc::clone(&directory), Arc::clone(&sizes));
        let last = last.max(loaded.lsn);
        let log = LocalLog::begin(both, epoch, last, &loaded.empty, settings.unsynced_max)?;
        let shared = Arc::new(Shared {
            disk,
            place,
            epoch,
            queue: Mutex::new(Queue::new(last)),
            bell: Condvar::new(),
            directory,
            sizes,
            rotated: Condvar::new(),
            rewrites: Mutex::new(rewrites),
            settings: Mutex::new(settings),
            standing: Mutex::default(),
            hooks,
            counters: Counters::default(),
            filling: Mutex::default(),
            keeper: Condvar::new(),
            guard: OnceLock::new(),
            looks_now: AtomicBool::new(false),
            closing: AtomicU8::new(0),
        });
        let threads = thread::start(&shared, log)?;
        Ok(Writer { shared, threads })
    }

    /// The outlet for the stream.
    pub fn outlet(&self) -> LogOutlet {
        LogOutlet::new(Arc::clone(&self.shared))
    }

    /// The epoch in the lines of this run, for the facts of a base.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Has the log's thread ask once a second whether the directory is still this server's. While it is not,
    /// the log is stopped. The call may wait for the disk. Only the first guard counts.
    pub fn guard(&self, guard: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        let _ = self.shared.guard.set(Box::new(guard));
    }

    pub fn settings(&self) -> Settings {
        self.shared.settings()
    }

    /// Changes how the log is written, from its next batch on.
    pub fn set(&self, settings: Settings) {
        *locked(&self.shared.settings) = settings;
        locked(&self.shared.queue).settings_changed = true;
        self.shared.bell.notify_all();
    }

    pub fn state(&self) -> LogState {
        locked(&self.shared.standing).told.clone()
    }

    /// The LSN up to which everything is durable, whatever the policy. It follows the stream closely only
    /// while that is [wanted](Writer::want_turns).
    pub fn synced(&self) -> Lsn {
        self.shared.counters.synced_lsn.load(Ordering::Relaxed)
    }

    /// Makes the log thread look at each turn of the stream, and sync under [`Fsync::No`] too, as a client
    /// waits for [`synced`](Writer::synced). One that goes on waiting calls it again.
    pub fn want_turns(&self, wanted: bool) {
        let wanted = wanted || self.settings().fsync == Fsync::Always;
        let before = std::mem::replace(&mut locked(&self.shared.queue).wants_turns, wanted);
        if wanted && !before {
            // The last turn may have come before anyone wanted it.
            self.shared.bell.notify_all();
        }
    }

    /// Why the log lacks effects that no base has. `None`: it has everything that it was given.
    pub fn torn(&self) -> Option<String> {
        locked(&self.shared.standing).torn.clone()
    }

    /// Bytes that were taken and not written.
    pub fn pending_bytes(&self) -> u64 {
        self.shared.counters.pending_bytes.load(Ordering::Relaxed)
    }

    pub fn figures(&self) -> Figures {
        figures::figures(&self.shared)
    }

    /// Writes everything taken, makes it durable, and cuts the filler off.
    ///
    /// Errors: something could not be written, and is not tried again, or was lost (K5). The files on the disk
    /// are sound.
    pub fn close(mut self) -> Result<(), String> {
        self.end(Closing::Clean);
        let failed = {
            let standing = locked(&self.shared.standing);
            standing.error.clone().or(standing.torn.clone())
        };
        failed.map_or(Ok(()), Err)
    }

    fn end(&mut self, closing: Closing) {
        self.shared.closing.store(closing as u8, Ordering::Release);
        locked(&self.shared.queue).closing = closing;
        self.shared.bell.notify_all();
        // The keeper is waiting, or looks at `closing` afterwards.
        drop(locked(&self.shared.filling));
        self.shared.keeper.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread of the log has panicked");
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.end(Closing::Abandoned);
        }
    }
}

/// Removes the leftovers of an interrupted rewrite or manifest.
fn remove_temporaries(disk: &dyn Disk, place: &Place) -> io::Result<()> {
    remove_leftovers(disk, &place.dir)?;
    for name in disk.names(&place.dir)? {
        let name = name.as_os_str().as_bytes();
        if name.starts_with(b"temp-rewrite-") || name == [b"temp-", &place.manifest_name()[..]].concat() {
            disk.remove(&place.path(name))?;
        }
    }
    Ok(())
}

fn sizes_of(loaded: &LoadedLog) -> Sizes {
    let mut sizes = Sizes { base: loaded.base_bytes, ..Sizes::default() };
    if let Some(first) = loaded.manifest.incrs().next() {
        sizes.incrs.insert(first.seq, loaded.incr_bytes);
    }
    sizes
}
