//! The append-only log: `persist` writes it, the keyspace tells it what happens, and the server obeys it.
//!
//! ```text
//! keyspace ─► Order (LSN order) ─► Watched ─► persist::Writer ─► files
//!                                     └─► too much waits: writers are held    └─► durable: replies leave
//! ```
//!
//! - A1: no reply waits for a log that has no base yet. Files say that it has none (`persist::mark_unfinished`), and a
//!   start puts such a log aside.

use super::Files;
use super::lock::DirLock;
use config::Config;
use exec::Server;
use exec::durable::{Load, Rewrite};
use exec::replay::Replay;
use parking_lot::Mutex;
use persist::disk::{Disk, RealDisk};
use persist::order::Order;
use persist::stream::{Item, Outlet};
use persist::{
    Apply, Damaged, Fsync, Hooks, LoadedLog, LogOptions, LogOutlet, LogState, Options, Place, Preallocate,
    Rewriting, Settings, Writer,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long the end of a log waits for a rewrite that is ending.
const LETTING_GO: Duration = Duration::from_secs(20);

/// A log that is written.
pub struct Running {
    writer: Arc<Writer>,
    order: Arc<Order>,
    gate: Arc<Gate>,
    server: Weak<Server>,
    /// The directory of the files, and the lock of the one that holds it.
    dir: PathBuf,
    _lock: Arc<DirLock>,
    rewriting: Mutex<Option<Rewriting>>,
}

/// Up to where the log is durable, and whether replies wait for that (A1).
///
/// A client that is told of `appendfsync always` relies on it from then on, and the log's thread learns of it
/// later. So the gate closes with the setting, and the thread cannot open it.
#[derive(Default)]
struct Gate(Mutex<Gated>);

#[derive(Default)]
struct Gated {
    /// Replies wait, if the log says so.
    is_used: bool,
    /// The setting is `always`.
    is_always: bool,
    /// The LSN up to which the log is durable. [`OPEN`]: no reply waits for that.
    lsn: u64,
}

const OPEN: u64 = u64::MAX;

impl Gated {
    /// The log's thread says how far everything is durable. True: that counts.
    fn durable(&mut self, lsn: u64) -> bool {
        if self.is_always && lsn == OPEN {
            return false;
        }
        // Durable effects stay durable.
        self.lsn = if self.lsn == OPEN { lsn } else { self.lsn.max(lsn) };
        true
    }

    /// The setting is this one; up to `synced` everything is durable. True: it changed. The thread may have heard of it
    /// first.
    fn set_always(&mut self, is_always: bool, synced: u64) -> bool {
        if self.is_always == is_always {
            return false;
        }
        self.is_always = is_always;
        self.lsn = match (is_always, self.lsn) {
            (true, OPEN) => synced,
            (true, lsn) => lsn,
            (false, _) => OPEN,
        };
        true
    }

    /// Replies wait as this says, also those that tell of what was written before: it was not noted.
    fn apply(&self, server: &Server) {
        server.set_durable(self.lsn);
        if self.lsn != OPEN {
            server.keyspace.doubt_all();
        }
    }
}

impl Gate {
    fn new(is_always: bool) -> Gate {
        Gate(Mutex::new(Gated { is_always, ..Gated::default() }))
    }

    /// The log's thread says how far everything is durable.
    fn durable(&self, server: &Server, lsn: u64) {
        let mut gate = self.0.lock();
        if gate.durable(lsn) && gate.is_used {
            server.set_durable(gate.lsn);
        }
    }

    /// The setting changed; up to `synced` everything is durable.
    fn set_always(&self, server: &Server, is_always: bool, synced: u64) {
        let mut gate = self.0.lock();
        if gate.set_always(is_always, synced) && gate.is_used {
            gate.apply(server);
        }
    }

    /// Makes replies wait from now on.
    fn close(&self, server: &Server) {
        let mut gate = self.0.lock();
        gate.is_used = true;
        gate.apply(server);
    }

    /// Whether the log has its base, so that what it holds can be loaded.
    fn is_used(&self) -> bool {
        self.0.lock().is_used
    }

    /// No reply waits any more.
    fn open(&self, server: &Server) {
        self.0.lock().is_used = false;
        server.set_durable(OPEN);
    }
}

/// Counts what waits for the log on its way.
struct Watched {
    outlet: LogOutlet,
    writer: Weak<Writer>,
    order: Arc<OnceLock<Weak<Order>>>,
    server: Weak<Server>,
}

impl Watched {
    fn look(&self) {
        let (Some(writer), Some(server)) = (self.writer.upgrade(), self.server.upgrade()) else { return };
        let told = self.order.get().and_then(Weak::upgrade).map_or(0, |order| order.pending_bytes());
        note_pending(&server, writer.pending_bytes() + told as u64);
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

/// Number of bytes that wait for the log.
fn note_pending(server: &Server, pending: u64) {
    let live = &server.config.live;
    server.durability.set_log_full(pending > live.log_pending_bytes.size() as u64);
    server.durability.set_log_over(pending > live.log_pending_max_bytes.size() as u64);
}

/// Executes the commands of a log.
struct Into(Replay);

impl Apply for Into {
    fn apply(&mut self, args: &[&[u8]]) -> Result<(), String> {
        self.0.apply(args)
    }

    fn group_begin(&mut self) {
        // It can only fail within a group.
        let _ = self.0.apply(&[b"MULTI"]);
    }

    fn group_end(&mut self) -> Result<(), String> {
        self.0.apply(&[b"EXEC"])
    }

    fn file_begin(&mut self) {
        let _ = self.0.apply(&[b"SELECT", b"0"]);
    }
}

/// The settings of the configuration.
pub fn settings(config: &Config) -> Settings {
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
    pub(super) fn load_and_log(&self, server: &Arc<Server>) -> Result<(), String> {
        let (place, began) = (place(&self.config), Instant::now());
        // From here on, whatever the outcome (lock L1).
        let _lock = self.hold_place(&place)?;
        let aside = persist::put_unfinished_aside(&RealDisk, &place).map_err(|error| at(&place, &error))?;
        if aside.is_some() {
            log::warn!("the log there had no base yet when the server ended");
        }
        let load = Load::begin(server);
        let options = LogOptions {
            base: base_options(self.options()),
            truncated: self.config.live.aof_load_truncated.get(),
        };
        let into = persist::IntoKeyspace::new(&server.keyspace, 0, |code| load.library(code));
        let mut apply = Into(Replay::new(server));
        let found = persist::load_log(&RealDisk, &place, options, &into, &mut apply, &self.progress)
            .map_err(|error| error.to_string())?;
        let Some(found) = found else { return self.begin_log(server, &load) };
        load.note(found.base.as_ref().map_or(0, |report| report.keys), 0);
        found.base.iter().for_each(|report| super::tell_left_out(report, &load));
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
        server.keyspace.start_at(found.lsn);
        self.run(server, place, Some(found))?;
        self.with_log(|running| running.gate.close(server));
        Ok(())
    }

    /// Begins the log of a server that had none. The data of the snapshot, if there is one, become its base before any
    /// client is served.
    fn begin_log(&self, server: &Arc<Server>, load: &Load) -> Result<(), String> {
        let snapshot = self.snapshot();
        if !snapshot.exists() {
            return self.run_from_nothing(server);
        }
        self.load_file(&snapshot, server, load)?;
        self.run_without_base(server)
    }

    /// Whether anything is where a log would be.
    pub(super) fn may_have_log(&self) -> bool {
        let place = place(&self.config);
        let is_empty = match RealDisk.names(&place.dir) {
            Ok(names) => names.is_empty(),
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        // A log of one file, of servers before Redis 7, is beside it.
        let single = self.config.live.appendfilename.string();
        !is_empty || self.dir().join(single).exists()
    }

    /// The log of a server that has no data: it needs no base, and replies may rely on it at once.
    pub(super) fn run_from_nothing(&self, server: &Arc<Server>) -> Result<(), String> {
        let place = place(&self.config);
        let _lock = self.hold_place(&place)?;
        persist::put_aside(&RealDisk, &place.dir, "before").map_err(|error| at(&place, &error))?;
        self.run(server, place, None)?;
        self.with_log(|running| running.gate.close(server));
        Ok(())
    }

    /// The lock of the directory that a log's is in.
    fn hold_place(&self, place: &Place) -> Result<Arc<DirLock>, String> {
        self.hold(place.dir.parent().unwrap_or(Path::new("")))
    }

    /// The log of a server that has data and no log yet (A1). A failure leaves nothing of it.
    fn run_without_base(&self, server: &Arc<Server>) -> Result<(), String> {
        let place = place(&self.config);
        let _lock = self.hold_place(&place)?;
        persist::put_aside(&RealDisk, &place.dir, "before").map_err(|error| at(&place, &error))?;
        let based = self.run_to_its_base(server, &place);
        match based {
            Ok(()) => drop(self.with_log(|running| running.gate.close(server))),
            Err(_) => {
                self.end_log(server);
                if let Err(error) = persist::remove_unfinished(&RealDisk, &place) {
                    log::warn!("{} cannot be removed: {error}", place.dir.display());
                }
            }
        }
        based
    }

    /// Begins a log in an empty folder, and waits for its base.
    fn run_to_its_base(&self, server: &Arc<Server>, place: &Place) -> Result<(), String> {
        persist::mark_unfinished(&RealDisk, place).map_err(|error| at(place, &error))?;
        self.run(server, place.clone(), None)?;
        exec::durable::rewrite_now(server)?;
        persist::mark_finished(&RealDisk, place).map_err(|error| at(place, &error))
    }

    /// Opens the files, and has the keyspace tell what happens.
    fn run(&self, server: &Arc<Server>, place: Place, found: Option<LoadedLog>) -> Result<(), String> {
        let settings = settings(&self.config);
        let gate = Arc::new(Gate::new(settings.fsync == Fsync::Always));
        let dir = place.dir.clone();
        let lock = self.hold_place(&place)?;
        let writer = Writer::open(
            Arc::new(RealDisk),
            place,
            found,
            server.keyspace.last_lsn(),
            settings,
            hooks(server, &gate),
        );
        let writer = Arc::new(writer.map_err(|error| format!("{}: {error}", dir.display()))?);
        let guard = lock.clone();
        writer.guard(move || guard.check());
        let later = Arc::<OnceLock<Weak<Order>>>::default();
        let watched = Watched {
            outlet: writer.outlet(),
            writer: Arc::downgrade(&writer),
            order: later.clone(),
            server: Arc::downgrade(server),
        };
        let order = Order::start(&server.keyspace, vec![Box::new(watched)])
            .map_err(|error| format!("no thread could be started: {error}"))?;
        let _ = later.set(Arc::downgrade(&order));
        server.keyspace.listen(order.clone());
        let running = Running {
            writer,
            order,
            gate,
            server: Arc::downgrade(server),
            dir,
            _lock: lock,
            rewriting: Mutex::new(None),
        };
        self.log.store(Some(Arc::new(running)));
        Ok(())
    }

    /// Ends the log: what was told is written, if that can be. An operator who ends a log that cannot be
    /// written gives up what waits for it.
    pub(super) fn end_log(&self, server: &Arc<Server>) {
        let ended = self.drain(server).and(self.stop_log(server));
        if let Err(why) = ended {
            log::error!("the append-only log was ended, and does not hold the last writes: {why}");
        }
    }

    /// Ends the log. Afterwards no reply and no writer waits for it. Errors: something was not written.
    fn stop_log(&self, server: &Arc<Server>) -> Result<(), String> {
        let Some(running) = self.log.swap(None) else { return Ok(()) };
        let Some(Running { writer, order, gate, .. }) = alone(running) else {
            return Err("its files are still in use".to_owned());
        };
        order.stop();
        drop(order);
        let closed =
            alone(writer).map_or_else(|| Err("its files are still in use".to_owned()), Writer::close);
        gate.open(server);
        server.durability.set_log_full(false);
        server.durability.set_log_over(false);
        server.durability.set_log_stopped(server, None);
        closed
    }

    /// Waits until all effects told so far are written. Errors: the log is stopped, and goes on trying; or it
    /// lacks effects until it has a new base.
    fn drain(&self, server: &Server) -> Result<(), String> {
        let pending = || {
            self.with_log(|running| {
                running.order.bell();
                running.order.pending_bytes() as u64 + running.writer.pending_bytes()
            })
        };
        while pending().unwrap_or(0) > 0 {
            if let Some(why) = server.durability.log_stopped() {
                return Err(format!("the append-only log cannot be written: {why}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let torn = self.with_log(|running| running.writer.torn()).flatten();
        torn.map_or(Ok(()), |why| Err(format!("the append-only log lacks writes: {why}")))
    }

    /// Whether a directory is that of the log.
    pub(super) fn is_of_log(&self, dir: &Path) -> bool {
        self.with_log(|running| running.dir == dir).unwrap_or(false)
    }

    fn with_log<T>(&self, f: impl FnOnce(&Running) -> T) -> Option<T> {
        self.log.load().as_ref().map(|running| f(running))
    }

    pub(super) fn switch(&self, server: &Arc<Server>, on: bool) -> Result<(), String> {
        let runs = self.log.load().is_some();
        match (on, runs) {
            (true, false) => self.run_without_base(server),
            (false, true) => {
                self.end_log(server);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn is_elsewhere(&self) -> bool {
        let here = place(&self.config).dir;
        self.with_log(|running| running.dir != here).unwrap_or(false)
    }

    pub(super) fn close(&self, server: &Arc<Server>) -> Result<(), String> {
        self.drain(server)?;
        self.stop_log(server)
    }

    pub(super) fn configure(&self) {
        self.with_log(|running| {
            let settings = settings(&self.config);
            if let Some(server) = running.server.upgrade() {
                let is_always = settings.fsync == Fsync::Always;
                running.gate.set_always(&server, is_always, running.writer.synced());
            }
            running.writer.set(settings);
        });
    }

    pub(super) fn begin_base(&self) -> Result<Rewrite, String> {
        // Not under the lock, which loops take: it waits for the disk.
        let writer = self.with_log(|running| running.writer.clone());
        let writer = writer.ok_or("there is no append-only log")?;
        let rewriting = writer.begin_rewrite().map_err(|error| error.to_string())?;
        let rewrite = Rewrite { base: rewriting.base.clone(), mark: rewriting.mark.0, epoch: writer.epoch() };
        self.with_log(|running| *running.rewriting.lock() = Some(rewriting));
        Ok(rewrite)
    }

    pub(super) fn end_base(&self, written: Result<u64, ()>) -> Result<(), String> {
        // Not under the lock: it may wait for the log's thread.
        let running = self.with_log(|running| (running.writer.clone(), running.rewriting.lock().take()));
        let Some((writer, Some(rewriting))) = running else {
            return Err("the append-only log was ended".to_owned());
        };
        match written {
            Ok(bytes) => writer.finish_rewrite(&rewriting, bytes).map_err(|error| error.to_string()),
            Err(()) => {
                writer.fail_rewrite(&rewriting);
                Ok(())
            }
        }
    }

    /// The LSN up to which the log is durable; 0 before it has its base. `waits` says that a client waits for more.
    pub(super) fn synced_lsn(&self, waits: bool) -> Option<u64> {
        self.with_log(|running| {
            running.writer.want_turns(waits);
            if waits {
                running.order.bell();
            }
            if running.gate.is_used() { running.writer.synced() } else { 0 }
        })
    }

    /// Looks at what waits for the log: its thread may write without anything new to be told.
    pub(super) fn look(&self, server: &Server) {
        self.with_log(|running| {
            let told = running.order.pending_bytes() as u64;
            note_pending(server, told + running.writer.pending_bytes());
        });
    }

    pub(super) fn ring(&self) {
        self.with_log(|running| running.order.bell());
    }

    pub(super) fn wants_base(&self, percentage: u64, least_bytes: u64) -> bool {
        self.with_log(|running| running.writer.wants_rewrite(percentage, least_bytes)).unwrap_or(false)
    }

    pub(super) fn figures(&self) -> exec::info::Aof {
        let figures = self.with_log(|running| running.writer.figures());
        figures.map_or_else(exec::info::Aof::default, |figures| exec::info::Aof {
            current_bytes: figures.current_size_bytes,
            base_bytes: figures.base_size_bytes,
            buffer_bytes: figures.buffer_length_bytes,
            pending_fsyncs: figures.pending_syncs,
            delayed_fsyncs: figures.delayed_syncs,
            ..exec::info::Aof::default()
        })
    }
}

fn hooks(server: &Arc<Server>, gate: &Arc<Gate>) -> Hooks {
    let (durable, state, events, rewrites) =
        (Arc::downgrade(server), Arc::downgrade(server), Arc::downgrade(server), Arc::downgrade(server));
    let gate = gate.clone();
    Hooks {
        durable: Box::new(move |lsn| {
            if let Some(server) = durable.upgrade() {
                gate.durable(&server, lsn);
            }
        }),
        state: Box::new(move |now| {
            if let Some(server) = state.upgrade() {
                let stopped = match now {
                    LogState::Running => None,
                    LogState::Stopped(why) => Some(why),
                };
                server.durability.set_log_stopped(&server, stopped);
            }
        }),
        latency: Box::new(move |(name, ns)| {
            if let Some(server) = events.upgrade() {
                server.durability.note_latency(&server, name, ns);
            }
        }),
        rewrite: Box::new(move |why| {
            if let Some(server) = rewrites.upgrade() {
                log::warn!("the append-only log needs a new base: {why}");
                server.durability.schedule_rewrite();
            }
        }),
    }
}

/// Settings of the log changed, or it is to begin or end (CONFIG SET). Both take place on threads of their
/// own.
pub struct LogObserver(pub Weak<Server>);

impl config::Observer for LogObserver {
    fn changed(&self, directive: &config::Directive, _: &config::Live) {
        let Some(server) = self.0.upgrade() else { return };
        match directive.name {
            "appendonly" => exec::durable::switch_log(&server),
            "appendfsync" | "aof-preallocate" | "log-unsynced-max" | "log-stuck" => {
                exec::durable::configure_log(&server);
            }
            _ => {}
        }
    }
}

/// Relaxed reads of the progress of a load.
pub(super) fn progress(progress: &persist::Progress) -> (u64, u64) {
    (progress.read_bytes.load(Relaxed), progress.total_bytes.load(Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Earlier writes are doubted, whoever hears of `always` first: the client that set it or the log's thread.
    #[test]
    fn a_gate_closes_for_what_was_written_before() {
        let open = || {
            let mut gate = Gated::default();
            assert!(gate.durable(OPEN) && gate.lsn == OPEN);
            gate
        };
        let mut gate = open();
        assert!(gate.set_always(true, 5) && gate.lsn == 5);
        assert!(!gate.durable(OPEN) && gate.lsn == 5);
        assert!(gate.durable(7) && gate.lsn == 7);
        let mut gate = open();
        assert!(gate.durable(7));
        assert!(gate.set_always(true, 5) && gate.lsn == 7);
        assert!(!gate.set_always(true, 9) && gate.lsn == 7);
        // Its thread has heard of neither of these changes.
        assert!(gate.set_always(false, 9) && gate.lsn == OPEN);
        assert!(gate.durable(8));
        assert!(gate.set_always(true, 7) && gate.lsn == 8);
    }
}
