//! The append-only log: `persist` writes it, the keyspace tells it what happens, and the server obeys it.
//!
//! ```text
//! keyspace ─► Order (LSN order) ─► Watched ─► persist::Writer ─► files
//!                                     └─► too much waits: writers are held    └─► durable: replies leave
//! ```
//!
//! - A1: no reply waits for a log that has no base yet. Files say that it has none
//!   (`persist::mark_unfinished`), and a start puts such a log aside.

use crate::files::{Files, tell_left_out};
use crate::gate::Gate;
use crate::loading::Load;
use crate::lock::DirLock;
use crate::{Durability, Replay};
use config::Config;
use keyspace::{Lsn, Mark};
use observe::info::Aof;
use persist::order::Order;
use persist::stream::{Item, Listening, Outlet};
use persist::{
    Apply, Damaged, Fsync, Hooks, IntoKeyspace, LoadedLog, LogOptions, LogOutlet, LogState, Options, Place,
    Preallocate, Rewriting, Settings, Tail, Writer,
};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long the end of a log waits for a rewrite that is ending.
const LETTING_GO: Duration = Duration::from_secs(20);

/// A log that is written.
pub(crate) struct Running {
    writer: Arc<Writer>,
    listening: Listening,
    gate: Arc<Gate>,
    /// The directory of the files, and the lock of the one that holds it.
    dir: PathBuf,
    _lock: Arc<DirLock>,
}

/// A rewrite that was begun.
#[derive(Clone)]
pub(crate) struct Rewrite {
    rewriting: Rewriting,
    /// For the facts of the base.
    pub(crate) epoch: u64,
    writer: Weak<Writer>,
}

impl Rewrite {
    /// The path of the base.
    pub(crate) fn base(&self) -> &PathBuf {
        &self.rewriting.base
    }

    /// The place in the stream at which the log changes to its next file.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.rewriting.mark.0)
    }
}

/// Counts what waits for the log on its way.
struct Watched {
    outlet: LogOutlet,
    writer: Weak<Writer>,
    order: Weak<Order>,
    durability: Weak<Durability>,
}

impl Watched {
    fn look(&self) {
        let (Some(writer), Some(durability)) = (self.writer.upgrade(), self.durability.upgrade()) else {
            return;
        };
        let told = self.order.upgrade().map_or(0, |order| order.pending_bytes());
        durability.note_pending(writer.pending_bytes() + told as u64);
    }
}

impl Outlet for Watched {
    fn take(&mut self, item: Item) {
        self.outlet.take(item);
        self.look();
    }

    fn turn(&mut self, upto: u64) {
        self.outlet.turn(upto);
        self.look();
    }

    fn since(&self) -> u64 {
        self.outlet.since()
    }
}

/// The only owner of something, as soon as others have let go of it. None: they do not.
fn alone<T>(mut shared: Arc<T>) -> Option<T> {
    let until = Instant::now() + LETTING_GO;
    loop {
        match Arc::try_unwrap(shared) {
            Ok(owned) => return Some(owned),
            Err(_) if Instant::now() >= until => return None,
            Err(still) => shared = still,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Executes the commands of a log.
struct Into(Replay);

impl Apply for Into {
    fn apply(&mut self, args: &[&[u8]]) -> Result<(), String> {
        (self.0)(args)
    }

    fn group_begin(&mut self) {
        // It can only fail within a group.
        let _ = (self.0)(&[b"MULTI"]);
    }

    fn group_end(&mut self) -> Result<(), String> {
        (self.0)(&[b"EXEC"])
    }

    fn file_begin(&mut self) {
        let _ = (self.0)(&[b"SELECT", b"0"]);
    }
}

/// The settings of the configuration.
fn settings(config: &Config) -> Settings {
    let live = &config.live;
    Settings {
        fsync: match live.appendfsync.get() {
            1 => Fsync::Always,
            2 => Fsync::No,
            _ => Fsync::EverySecond,
        },
        preallocate: match live.aof_preallocate.get() {
            1 => Preallocate::Yes,
            2 => Preallocate::No,
            _ => Preallocate::Auto,
        },
        unsynced_max: live.log_unsynced_bytes.size() as u64,
        stuck: Duration::from_secs(live.log_stuck_s.size() as u64),
        ..Settings::default()
    }
}

/// A damaged base is never loaded in part: what follows it would not fit.
fn base_options(options: Options) -> Options {
    Options { damaged: Damaged::Refuse, ..options }
}

/// An error of the disk, with its place.
fn at(place: &Place, error: &std::io::Error) -> String {
    format!("{}: {error}", place.dir.display())
}

fn place(config: &Config) -> Place {
    let dir = PathBuf::from(config.live.dir.string()).join(config.live.appenddirname.string());
    Place::new(dir, config.live.appendfilename.get().to_vec())
}

impl Files {
    /// Loads the log, or the snapshot where there is no log yet, and begins to write.
    pub(crate) fn load_and_log(&self, durability: &Arc<Durability>) -> Result<(), String> {
        let (place, began) = (place(&self.config), Instant::now());
        // From here on, whatever the outcome (lock L1).
        let _lock = self.hold_place(&place)?;
        let aside = persist::put_unfinished_aside(&*self.disk, &place).map_err(|error| at(&place, &error))?;
        if aside.is_some() {
            log::warn!("the log there had no base yet when the server ended");
        }
        let load = Load::begin(durability);
        let options = LogOptions {
            base: base_options(self.options()),
            truncated: self.config.live.aof_load_truncated.get(),
        };
        let into = IntoKeyspace::new(&durability.keyspace, 0, |code| load.library(code));
        let mut apply = Into(durability.host.replay()?);
        let found = persist::load_log(&*self.disk, &place, options, &into, &mut apply, &self.progress)
            .map_err(|error| error.to_string())?;
        let Some(found) = found else { return self.begin_log(durability, &load) };
        load.note(found.base.as_ref().map_or(0, |report| report.keys), 0);
        found.base.iter().for_each(|report| tell_left_out(report, &load));
        for cut in &found.cut {
            let file = cut.file.display();
            log::warn!("{file} was torn: {} bytes behind offset {} were cut off", cut.bytes, cut.from);
        }
        let took = began.elapsed().as_secs_f64();
        log::info!(
            "loaded {}: {} commands behind the base, in {took:.2} s",
            place.dir.display(),
            found.commands
        );
        durability.keyspace.start_at(found.lsn);
        load.note_place(found.place.clone());
        self.run(durability, place, Some(found))?;
        self.with_log(|running| running.gate.close(durability));
        Ok(())
    }

    /// Begins the log of a server that had none. The data of the snapshot, if there is one, become its base
    /// before any client is served.
    fn begin_log(&self, durability: &Arc<Durability>, load: &Load) -> Result<(), String> {
        let snapshot = self.snapshot();
        if !snapshot.exists() {
            return self.run_from_nothing(durability);
        }
        self.load_file(&snapshot, durability, load)?;
        self.run_without_base(durability)
    }

    /// Whether anything is where a log would be.
    pub(crate) fn may_have_log(&self) -> bool {
        let place = place(&self.config);
        let is_empty = match self.disk.names(&place.dir) {
            Ok(names) => names.is_empty(),
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        // A log of one file, of servers before Redis 7, is beside it.
        let single = self.config.live.appendfilename.string();
        !is_empty || self.dir().join(single).exists()
    }

    /// The log of a server that has no data: it needs no base, and replies may rely on it at once.
    pub(crate) fn run_from_nothing(&self, durability: &Arc<Durability>) -> Result<(), String> {
        let place = place(&self.config);
        let _lock = self.hold_place(&place)?;
        persist::put_aside(&*self.disk, &place.dir, "before").map_err(|error| at(&place, &error))?;
        self.run(durability, place, None)?;
        self.with_log(|running| running.gate.close(durability));
        Ok(())
    }

    /// The lock of the directory that a log's is in.
    fn hold_place(&self, place: &Place) -> Result<Arc<DirLock>, String> {
        self.hold(place.dir.parent().unwrap_or(Path::new("")))
    }

    /// The log of a server that has data and no log yet (A1). A failure leaves nothing of it.
    fn run_without_base(&self, durability: &Arc<Durability>) -> Result<(), String> {
        let place = place(&self.config);
        let _lock = self.hold_place(&place)?;
        let aside =
            persist::put_aside(&*self.disk, &place.dir, "before").map_err(|error| at(&place, &error))?;
        let based = self.run_to_its_base(durability, &place);
        match based {
            Ok(()) => {
                self.with_log(|running| running.gate.close(durability));
                aside.filter(|_| durability.is_log_replaced()).iter().for_each(|dir| self.remove_log(dir));
            }
            Err(_) => {
                self.end_log(durability);
                if let Err(error) = persist::remove_unfinished(&*self.disk, &place) {
                    log::warn!("{} cannot be removed: {error}", place.dir.display());
                }
            }
        }
        based
    }

    /// Removes the log of data that another server's took the place of.
    fn remove_log(&self, dir: &Path) {
        let old = Place::new(dir.to_path_buf(), self.config.live.appendfilename.get().to_vec());
        if let Err(error) = persist::remove_unfinished(&*self.disk, &old) {
            log::warn!("{} cannot be removed: {error}", dir.display());
        }
    }

    /// Begins a log in an empty folder, and waits for its base.
    fn run_to_its_base(&self, durability: &Arc<Durability>, place: &Place) -> Result<(), String> {
        persist::mark_unfinished(&*self.disk, place).map_err(|error| at(place, &error))?;
        self.run(durability, place.clone(), None)?;
        durability.rewrite_now()?;
        persist::mark_finished(&*self.disk, place).map_err(|error| at(place, &error))
    }

    /// Opens the files, and has the keyspace tell what happens.
    fn run(
        &self,
        durability: &Arc<Durability>,
        place: Place,
        found: Option<LoadedLog>,
    ) -> Result<(), String> {
        let settings = settings(&self.config);
        let gate = Arc::new(Gate::new(settings.fsync == Fsync::Always));
        let dir = place.dir.clone();
        let lock = self.hold_place(&place)?;
        // Others may hear of the stream already: what was told up to here is on its way to them alone, and the
        // base has it.
        let last = durability.keyspace.last_lsn();
        durability.stream.settle();
        let writer = Writer::open(self.disk.clone(), place, found, last, settings, hooks(durability, &gate));
        let writer = Arc::new(writer.map_err(|error| format!("{}: {error}", dir.display()))?);
        let guard = lock.clone();
        writer.guard(move || guard.check());
        let listening = durability.stream.add(|order| {
            Box::new(Watched {
                outlet: writer.outlet(),
                writer: Arc::downgrade(&writer),
                order: Arc::downgrade(order),
                durability: Arc::downgrade(durability),
            })
        });
        let listening = listening.map_err(|error| format!("no thread could be started: {error}"))?;
        let running = Running { writer, listening, gate, dir, _lock: lock };
        self.log.store(Some(Arc::new(running)));
        Ok(())
    }

    /// Ends the log: what was told is written, if that can be. An operator who ends a log that cannot be
    /// written gives up what waits for it.
    pub(crate) fn end_log(&self, durability: &Arc<Durability>) {
        let ended = self.drain(durability).and(self.stop_log(durability));
        if let Err(why) = ended {
            log::error!("the append-only log was ended, and does not hold the last writes: {why}");
        }
    }

    /// Ends the log. Afterwards no reply and no writer waits for it. Errors: something was not written.
    fn stop_log(&self, durability: &Arc<Durability>) -> Result<(), String> {
        let Some(running) = self.log.swap(None) else { return Ok(()) };
        let Some(Running { writer, listening, gate, .. }) = alone(running) else {
            return Err("its files are still in use".to_owned());
        };
        listening.end();
        let closed =
            alone(writer).map_or_else(|| Err("its files are still in use".to_owned()), Writer::close);
        gate.open(durability);
        durability.set_log_full(false);
        durability.set_log_over(false);
        durability.set_log_stopped(None);
        closed
    }

    /// Waits until all effects told so far are written. Errors: the log is stopped, and goes on trying; or it
    /// lacks effects until it has a new base.
    fn drain(&self, durability: &Durability) -> Result<(), String> {
        let pending = || {
            self.with_log(|running| {
                running.listening.order().bell();
                running.listening.order().pending_bytes() as u64 + running.writer.pending_bytes()
            })
        };
        while pending().unwrap_or(0) > 0 {
            if let Some(why) = durability.log_stopped() {
                return Err(format!("the append-only log cannot be written: {why}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let torn = self.with_log(|running| running.writer.torn()).flatten();
        torn.map_or(Ok(()), |why| Err(format!("the append-only log lacks writes: {why}")))
    }

    /// Whether a directory is that of the log.
    pub(crate) fn is_of_log(&self, dir: &Path) -> bool {
        self.with_log(|running| running.dir == dir).unwrap_or(false)
    }

    fn with_log<T>(&self, f: impl FnOnce(&Running) -> T) -> Option<T> {
        self.log.load().as_ref().map(|running| f(running))
    }

    /// Whether a log is written.
    pub(crate) fn has_log(&self) -> bool {
        self.log.load().is_some()
    }

    pub(crate) fn switch_log(&self, durability: &Arc<Durability>, on: bool) -> Result<(), String> {
        let runs = self.log.load().is_some();
        match (on, runs) {
            (true, false) => self.run_without_base(durability),
            (false, true) => {
                self.end_log(durability);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn log_is_elsewhere(&self) -> bool {
        let here = place(&self.config).dir;
        self.with_log(|running| running.dir != here).unwrap_or(false)
    }

    pub(crate) fn close_log(&self, durability: &Arc<Durability>) -> Result<(), String> {
        self.drain(durability)?;
        self.stop_log(durability)
    }

    /// Applies changed settings. O(1), without I/O.
    pub(crate) fn configure_log(&self, durability: &Durability) {
        self.with_log(|running| {
            let settings = settings(&self.config);
            let is_always = settings.fsync == Fsync::Always;
            running.gate.set_always(durability, is_always, running.writer.synced());
            running.writer.set(settings);
        });
    }

    /// Begins a rewrite: makes the file in which the log continues. For a thread that may wait.
    ///
    /// Errors: there is no log, another rewrite is under way, or the disk fails.
    pub(crate) fn begin_rewrite(&self) -> Result<Rewrite, String> {
        // Not under the lock, which loops take: it waits for the disk.
        let writer = self.with_log(|running| running.writer.clone());
        let writer = writer.ok_or("there is no append-only log")?;
        let rewriting = writer.begin_rewrite().map_err(|error| error.to_string())?;
        Ok(Rewrite { rewriting, epoch: writer.epoch(), writer: Arc::downgrade(&writer) })
    }

    /// Ends a rewrite whose base was written, with so many bytes. It may wait for the log's thread.
    ///
    /// Errors: the log was ended meanwhile, or it is as before.
    pub(crate) fn finish_rewrite(&self, rewrite: &Rewrite, bytes: u64) -> Result<(), String> {
        let writer = self.writer_of(rewrite).ok_or("the append-only log was ended")?;
        writer.finish_rewrite(&rewrite.rewriting, bytes).map_err(|error| error.to_string())
    }

    /// Ends a rewrite without a base: the log is as before.
    pub(crate) fn fail_rewrite(&self, rewrite: &Rewrite) {
        if let Some(writer) = self.writer_of(rewrite) {
            writer.fail_rewrite(&rewrite.rewriting);
        }
    }

    /// The writer of the log that a rewrite belongs to. None: that log was ended.
    fn writer_of(&self, rewrite: &Rewrite) -> Option<Arc<Writer>> {
        let writer = self.with_log(|running| running.writer.clone())?;
        std::ptr::eq(Arc::as_ptr(&writer), rewrite.writer.as_ptr()).then_some(writer)
    }

    /// The LSN up to which the log is durable; 0 before it has its base. `waits` says that a client waits for
    /// more.
    pub(crate) fn synced(&self, waits: bool) -> Option<Lsn> {
        self.with_log(|running| {
            running.writer.want_turns(waits);
            if waits {
                running.listening.order().bell();
            }
            if running.gate.is_used() { running.writer.synced() } else { 0 }
        })
    }

    /// See [`Durability::copy_tail`].
    pub(crate) fn copy_tail(&self, ids: &[&str], offset: u64, out: &mut dyn Write) -> std::io::Result<Tail> {
        let none = || std::io::Error::new(ErrorKind::NotFound, "there is no log");
        let dir = self.with_log(|running| running.dir.clone()).ok_or_else(none)?;
        let place = Place::new(dir, self.config.live.appendfilename.get().to_vec());
        persist::copy_tail(&*self.disk, &place, ids, offset, out)
    }

    /// Looks at what waits for the log: its thread may write without anything new to be told.
    pub(crate) fn look_at_log(&self, durability: &Durability) {
        self.with_log(|running| {
            let told = running.listening.order().pending_bytes() as u64;
            durability.note_pending(told + running.writer.pending_bytes());
        });
    }

    pub(crate) fn ring(&self) {
        self.with_log(|running| running.listening.order().bell());
    }

    pub(crate) fn wants_rewrite(&self, percentage: u64, least_bytes: u64) -> bool {
        self.with_log(|running| running.writer.wants_rewrite(percentage, least_bytes)).unwrap_or(false)
    }

    pub(crate) fn log_figures(&self) -> Aof {
        let figures = self.with_log(|running| running.writer.figures());
        figures.map_or_else(Aof::default, |figures| Aof {
            current_bytes: figures.current_size_bytes,
            base_bytes: figures.base_size_bytes,
            buffer_bytes: figures.buffer_length_bytes,
            pending_fsyncs: figures.pending_syncs,
            delayed_fsyncs: figures.delayed_syncs,
            ..Aof::default()
        })
    }
}

/// Has the log's threads tell the server of themselves.
fn hooks(durability: &Arc<Durability>, gate: &Arc<Gate>) -> Hooks {
    /// Does something with what is told, while there is a server.
    fn told<T: 'static>(
        durability: &Arc<Durability>,
        f: impl Fn(&Durability, T) + Send + Sync + 'static,
    ) -> Box<dyn Fn(T) + Send + Sync> {
        let weak = Arc::downgrade(durability);
        Box::new(move |said| {
            if let Some(durability) = weak.upgrade() {
                f(&durability, said);
            }
        })
    }
    let gate = gate.clone();
    Hooks {
        durable: told(durability, move |durability, lsn| gate.durable(durability, lsn)),
        state: told(durability, |durability, now| {
            durability.set_log_stopped(match now {
                LogState::Running => None,
                LogState::Stopped(why) => Some(why),
            });
        }),
        latency: told(durability, |durability, (name, ns)| durability.note_latency(name, ns)),
        rewrite: told(durability, |durability, why| {
            log::warn!("the append-only log needs a new base: {why}");
            durability.schedule_rewrite();
        }),
    }
}

/// Settings of the log changed, or it is to begin or end (CONFIG SET). Both take place on threads of their
/// own.
pub(crate) struct LogObserver(pub(crate) Weak<Durability>);

impl config::Observer for LogObserver {
    fn changed(&self, directive: &config::Directive, _: &config::Live) {
        let Some(durability) = self.0.upgrade() else { return };
        match directive.name {
            "appendonly" => durability.switch_log(),
            "appendfsync" | "aof-preallocate" | "log-unsynced-max" | "log-stuck" => {
                durability.configure_log()
            }
            _ => {}
        }
    }
}
