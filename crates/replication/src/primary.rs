//! The primary's side: who follows, what each was sent, and a thread that decides and watches.
//!
//! ```text
//! PSYNC ─► Feed (waits) ─► thread `replicas`: goes on? ─► stream
//!                                └─ else a spool: one under way is joined, or one begins
//! ```
//!
//! - PR1: a loop never waits here: decisions, threads and files are the thread's.
//! - PR2: there is no backlog, and no offset, while nobody has ever followed.
//! - PR3: a replica that goes, or does not read, changes nothing for the others.

mod feed;
mod patience;
mod peer;
mod spool;

pub use feed::{Fed, Feed};
pub use peer::{Asked, Peer, Shown};

use crate::backlog::{Backlog, Figures};
use crate::spill::Spill;
use feed::{Decision, Ticket};
use keyspace::{Lsn, Mark};
use parking_lot::Mutex;
use patience::Patience;
use persist::stream::{HistoryPlace, Listening, Shared};
use spool::SpoolFile;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Time between two rounds of the thread.
const ROUND: Duration = Duration::from_millis(100);
/// Longest wait for the order thread, and the time between two looks.
const RESTING: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(1);

/// The server around it.
pub trait Host: Send + Sync {
    /// Begins a snapshot for replicas. False: another is under way.
    fn begin_snapshot(&self, spool: Arc<dyn persist::Spool>) -> bool;

    /// Has the loops with replicas look at them. It must not wait.
    fn tell_loops(&self);

    /// Has commands that wait for replicas look again. It must not wait.
    fn tell_waiting(&self);

    fn settings(&self) -> Settings;

    /// Where files without a name can be made.
    fn dir(&self) -> PathBuf;

    /// So many replicas are fed and lag little.
    fn good(&self, count: usize);

    /// Whether a replica at that address counts for WAIT and `min-replicas-to-write`. In a cluster one counts
    /// that may lead. O(nodes)
    fn counts(&self, _address: &str, _port: u16) -> bool {
        true
    }
}

/// The directives that count here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    pub backlog_bytes: u64,
    /// How long the backlog is kept without replicas; 0: for ever.
    pub backlog_ttl_s: u64,
    pub ping_period_s: u64,
    pub timeout_s: u64,
    /// A replica that lags more does not count as good.
    pub lag_max_s: u64,
    /// Bytes of stream that may wait for a replica, and those that may for some time; 0: without a limit.
    pub hard_bytes: u64,
    pub soft_bytes: u64,
    /// Bytes of stream on disk, for replicas that load.
    pub spool_max_bytes: u64,
    /// Foreign replicas get what they know; else a key of Evenkeel's own types fails their sync.
    pub leaves_out_foreign: bool,
}

/// Counts for INFO.
#[derive(Default)]
pub struct Counts {
    pub full_syncs: AtomicU64,
    pub partial_syncs: AtomicU64,
    pub partial_refused: AtomicU64,
    /// Full copies that were put off.
    pub full_refused: AtomicU64,
    /// Bytes of full copies, and of the stream behind them, in files that are kept in memory.
    pub copies_in_memory: AtomicU64,
    pub stream_in_memory: AtomicU64,
}

/// See the module.
pub struct Primary {
    stream: Arc<Shared>,
    pub backlog: Arc<Backlog>,
    host: Box<dyn Host>,
    peers: Mutex<Vec<Arc<Peer>>>,
    tasks: Mutex<Sender<Task>>,
    /// This server follows another one: its backlog stays.
    is_replica: AtomicBool,
    /// Replicas that are fed and lag little.
    good: AtomicUsize,
    /// Commands that wait for replicas.
    waiting: AtomicUsize,
    pub counts: Counts,
    patience: Mutex<Patience>,
    /// Has the order thread look at once, once there is one.
    order: Mutex<Option<Weak<persist::Order>>>,
}

/// A request to the thread.
enum Task {
    Decide(Ticket),
    /// There is to be a backlog.
    Attach(SyncSender<Result<(), String>>),
}

/// The thread's own.
struct Thread {
    primary: Arc<Primary>,
    listening: Option<Listening>,
    spools: Vec<Weak<SpoolFile>>,
    /// Spools whose snapshot has not begun.
    unbegun: Vec<Arc<SpoolFile>>,
    pinged: Instant,
    looked: Instant,
    /// Since when nobody follows.
    alone: Option<Instant>,
    spill: Spill,
    /// The disk refused the spill, and the log says so.
    is_stuck: bool,
}

impl Primary {
    /// Starts the thread. Errors: it cannot be made.
    pub fn start(
        stream: Arc<Shared>,
        make: impl FnOnce(&Weak<Primary>) -> Box<dyn Host>,
    ) -> std::io::Result<Arc<Primary>> {
        let (tasks, come) = channel();
        let primary = Arc::new_cyclic(|weak: &Weak<Primary>| {
            let host = make(weak);
            let own = weak.clone();
            let more = move || {
                if let Some(primary) = own.upgrade() {
                    primary.host.tell_loops();
                }
            };
            let backlog = Backlog::new(host.settings().backlog_bytes, Box::new(more));
            Primary {
                stream,
                backlog,
                host,
                peers: Mutex::default(),
                tasks: Mutex::new(tasks),
                is_replica: AtomicBool::new(false),
                good: AtomicUsize::new(0),
                waiting: AtomicUsize::new(0),
                counts: Counts::default(),
                patience: Mutex::default(),
                order: Mutex::default(),
            }
        });
        let now = Instant::now();
        let thread = Thread {
            primary: primary.clone(),
            listening: None,
            spools: Vec::new(),
            unbegun: Vec::new(),
            pinged: now,
            looked: now,
            alone: None,
            spill: Spill::default(),
            is_stuck: false,
        };
        primary.count_good();
        std::thread::Builder::new().name("replicas".into()).spawn(move || thread.run(&come))?;
        Ok(primary)
    }

    /// A client follows from now on: gives what it is fed. O(1)
    pub fn follow(self: &Arc<Self>, asked: Asked) -> Feed {
        let peer = Arc::new(Peer::new(asked));
        self.peers.lock().push(peer.clone());
        let decision = Arc::<OnceLock<Decision>>::default();
        let ticket = Ticket { peer: peer.clone(), decision: decision.clone() };
        // The thread lives as long as the server.
        let _ = self.tasks.lock().send(Task::Decide(ticket));
        Feed::new(self.clone(), peer, decision)
    }

    /// This server follows another one: from here on replicas hear that one's bytes. Waits for the order
    /// thread.
    ///
    /// Errors: no thread can be made.
    pub fn follow_another(&self) -> Result<(), String> {
        self.is_replica.store(true, Ordering::Release);
        self.have_backlog()?;
        self.pass(Mark::CARRIED)
    }

    /// This server leads again: its history goes on under a new id. Waits for the order thread. Replicas come
    /// back for it.
    ///
    /// Errors: the mark does not come.
    pub fn lead(&self) -> Result<(), String> {
        let passed = self.pass(Mark::OWN);
        self.is_replica.store(false, Ordering::Release);
        self.end_all("this server leads now");
        passed
    }

    /// The data of the start are those of a history up to a place, which goes on. Waits for the thread.
    ///
    /// Errors: no thread can be made.
    pub fn resume(&self, place: &HistoryPlace, follows: bool) -> Result<(), String> {
        self.is_replica.store(follows, Ordering::Release);
        self.have_backlog()?;
        self.backlog.resume(place, follows, self.stream.last_lsn());
        Ok(())
    }

    /// A new mark for the place of a snapshot. None: there is no backlog.
    pub fn new_mark(&self) -> Option<Mark> {
        self.backlog.figures().is_active.then(spool::next_mark)
    }

    fn have_backlog(&self) -> Result<(), String> {
        let (done, wait) = sync_channel(1);
        let _ = self.tasks.lock().send(Task::Attach(done));
        wait.recv().map_err(|_| "the thread has ended".to_owned())?
    }

    /// The stream of this server's primary goes on behind an offset of a history. What it said before must be
    /// in the backlog by then: bytes that came later would be counted twice. Waits for the order thread.
    /// O(pieces + replicas)
    pub fn goes_on(&self, id: &str, offset: u64, db: u32) {
        if let Err(why) = self.pass(Mark::CARRIED) {
            log::error!("the stream of the primary goes on, and that of before did not end: {why}");
            self.data_go();
        }
        if self.backlog.goes_on(id, offset, db) {
            self.end_all("its history has another id now");
        }
    }

    /// The data are about to be another history's.
    pub fn data_go(&self) {
        self.backlog.data_go();
        self.end_all("its data come anew from its primary");
    }

    /// Asks the replicas for their offsets, and says nothing further of itself. Gives the end of the stream.
    /// Waits for the order thread.
    pub fn rest(&self) -> u64 {
        let (lsn, until) = (self.stream.last_lsn(), Instant::now() + RESTING);
        while !self.has_counted(lsn) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        self.ask();
        while self.backlog.asks() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        self.backlog.rest(true);
        self.backlog.end_offset()
    }

    /// Waits until a mark has passed the order thread.
    fn pass(&self, mark: Mark) -> Result<(), String> {
        let Some(lsn) = self.stream.mark_now(mark) else { return Ok(()) };
        if let Some(order) = self.order.lock().as_ref().and_then(Weak::upgrade) {
            order.bell();
        }
        self.backlog.at_mark(mark, lsn).map(drop)
    }

    fn end_all(&self, why: &str) {
        self.peers.lock().iter().for_each(|peer| peer.end(why));
        self.host.tell_loops();
    }

    /// A replica says what it has. O(replicas)
    pub fn heard(&self, client: u64, offset: Option<u64>, synced: Option<u64>) {
        let peer = self.peers.lock().iter().find(|peer| peer.asked.client == client).cloned();
        let Some(peer) = peer else { return };
        if offset.is_some() && peer.took_in_vain() {
            self.patience.lock().loaded(&peer.asked.place());
        }
        peer.note_ack(offset, synced);
        if self.waiting.load(Ordering::Acquire) > 0 {
            self.host.tell_waiting();
        }
        if !peer.is_fed() {
            // Behind `$EOF` the stream begins with the first of these.
            self.host.tell_loops();
        }
    }

    /// The feed of a replica has gone.
    fn leave(&self, peer: &Arc<Peer>) {
        self.peers.lock().retain(|other| !Arc::ptr_eq(other, peer));
        if peer.took_in_vain() {
            self.patience.lock().took_in_vain(&peer.asked.place(), Instant::now());
        }
        self.count_good();
    }

    /// Count of replicas that have all up to an LSN: applied, or durable. O(replicas)
    pub fn reached(&self, lsn: Lsn, durable: bool) -> usize {
        let peers = self.peers.lock();
        if !self.backlog.figures().is_active {
            return 0;
        }
        // Before the first turn nothing was told since the backlog began.
        let Some(offset) = self.backlog.offset_behind(lsn) else { return 0 };
        let has = |peer: &&Arc<Peer>| peer.is_fed() && peer.has(offset, durable) && self.counts(peer);
        peers.iter().filter(has).count()
    }

    /// The replica that is the last of so many to have all up to an LSN, by its client id. None: there are not
    /// as many, or they have it. O(replicas · log replicas)
    pub fn lacking(&self, lsn: Lsn, count: usize, durable: bool) -> Option<u64> {
        let offset = self.backlog.offset_behind(lsn).unwrap_or(u64::MAX);
        let peers = self.peers.lock();
        let mut fed: Vec<_> = peers.iter().filter(|peer| peer.is_fed()).collect();
        fed.sort_by_key(|peer| std::cmp::Reverse(peer.has_up_to(durable)));
        let last = fed.get(count.checked_sub(1)?)?;
        (!last.has(offset, durable)).then_some(last.asked.client)
    }

    /// The replicas that have not said that they have all that was told, by their places; none while this
    /// server follows another one. O(replicas)
    pub fn lagging(&self) -> Vec<String> {
        if self.is_replica.load(Ordering::Acquire) {
            return Vec::new();
        }
        let end = self.backlog.told_offset(self.stream.last_lsn());
        let peers = self.peers.lock();
        let lags = |peer: &&Arc<Peer>| peer.is_fed() && !peer.asked.is_mute && !peer.has(end, false);
        peers.iter().filter(lags).map(|peer| peer.asked.place()).collect()
    }

    /// The lowest offset that any replica has said to have. None: there is none. O(replicas)
    pub fn lowest_ack(&self) -> Option<u64> {
        self.peers.lock().iter().map(|peer| peer.applied_offset()).filter(|offset| *offset > 0).min()
    }

    /// Whether the stream has all up to an LSN, or there is none. If not, the order thread looks now. O(log
    /// turns)
    pub fn has_counted(&self, lsn: Lsn) -> bool {
        let counted = !self.backlog.figures().is_active || self.backlog.offset_behind(lsn).is_some();
        if !counted && let Some(order) = self.order.lock().as_ref().and_then(Weak::upgrade) {
            order.bell();
        }
        counted
    }

    /// A command begins to wait for replicas: they are asked now. The count goes with what it returns.
    pub fn wait(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.ask();
        Waiting(self.clone())
    }

    /// Asks the replicas for their offsets. O(1), with a system call.
    fn ask(&self) {
        self.backlog.ask_acks();
        if let Some(order) = self.order.lock().as_ref().and_then(Weak::upgrade) {
            order.bell();
        }
    }

    /// Replicas that are fed and lag little. O(1)
    pub fn good(&self) -> usize {
        self.good.load(Ordering::Relaxed)
    }

    /// Counts them anew, with the directives of now. O(replicas)
    pub fn count_good(&self) {
        let lag_max_s = self.host.settings().lag_max_s;
        let now_ms = stdx::clock::wall_ms();
        let is_good = |peer: &&Arc<Peer>| {
            peer.is_fed() && (lag_max_s == 0 || peer.lag_s(now_ms) <= lag_max_s) && self.counts(peer)
        };
        let good = self.peers.lock().iter().filter(is_good).count();
        self.good.store(good, Ordering::Relaxed);
        self.host.good(good);
    }

    fn counts(&self, peer: &Peer) -> bool {
        self.host.counts(&peer.asked.address, peer.asked.port)
    }

    /// Count of replicas. O(1)
    pub fn count(&self) -> usize {
        self.peers.lock().len()
    }

    /// The replicas, as INFO and ROLE show them. O(replicas)
    pub fn shown(&self) -> Vec<Shown> {
        let now_ms = stdx::clock::wall_ms();
        let end = self.backlog.end_offset();
        let reached_ms = |offset| match self.backlog.reached_ms(offset) {
            0 => now_ms,
            ms => ms,
        };
        self.peers.lock().iter().map(|peer| peer.shown(now_ms, end, reached_ms)).collect()
    }

    pub fn figures(&self) -> Figures {
        self.backlog.figures()
    }
}

/// A command that waits for replicas. See [`Primary::wait`].
pub struct Waiting(Arc<Primary>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Thread {
    fn run(mut self, come: &Receiver<Task>) {
        loop {
            let task = match come.recv_timeout(ROUND) {
                Ok(task) => Some(task),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let done = stdx::panics::contain(|| {
                match task {
                    Some(Task::Decide(ticket)) => self.decide(&ticket),
                    Some(Task::Attach(done)) => drop(done.send(self.attach())),
                    None => {}
                }
                self.round();
            });
            if let Err(why) = done {
                log::error!("a fault while replicas were looked after: {why}");
            }
        }
    }

    /// Begins the backlog if there is none (PR2). Errors: no thread can be made.
    fn attach(&mut self) -> Result<(), String> {
        if self.listening.is_some() {
            return Ok(());
        }
        let (primary, settings) = (&self.primary, self.primary.host.settings());
        primary.backlog.set_size(settings.backlog_bytes);
        let listening = primary.stream.add(|_| primary.backlog.outlet());
        let listening = listening.map_err(|error| format!("no thread could be started: {error}"))?;
        *primary.order.lock() = Some(Arc::downgrade(listening.order()));
        primary.backlog.begin(primary.stream.last_lsn());
        self.listening = Some(listening);
        Ok(())
    }

    /// Decides what a replica is sent.
    fn decide(&mut self, ticket: &Ticket) {
        let decision = self.decision(ticket).unwrap_or_else(Decision::Refused);
        let _ = ticket.decision.set(decision);
        self.primary.host.tell_loops();
    }

    fn decision(&mut self, ticket: &Ticket) -> Result<Decision, String> {
        self.attach()?;
        let (asked, counts) = (&ticket.peer.asked, &self.primary.counts);
        if let Some((id, wanted)) = &asked.goes_on {
            if let Some((hold, at, id)) = self.primary.backlog.go_on(id, *wanted) {
                let bytes = self.primary.backlog.end_offset().saturating_sub(at);
                log::info!(
                    "replica {} goes on at offset {wanted}: {bytes} bytes of the backlog",
                    asked.place()
                );
                counts.partial_syncs.fetch_add(1, Ordering::Relaxed);
                return Ok(Decision::Partial { hold, at, id });
            }
            if id != b"?" {
                counts.partial_refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let Some(wait) = self.primary.patience.lock().wait(&asked.place(), Instant::now()) {
            counts.full_refused.fetch_add(1, Ordering::Relaxed);
            let why = format!(
                "this replica took several full copies and loaded none: the next one is sent in {} s at the earliest",
                wait.as_millis().div_ceil(1000)
            );
            log::warn!("replica {}: {why}", asked.place());
            return Ok(Decision::Later(why));
        }
        counts.full_syncs.fetch_add(1, Ordering::Relaxed);
        let kind = asked.kind(self.primary.host.settings().leaves_out_foreign);
        let under_way = self.spools.iter().filter_map(Weak::upgrade).find(|spool| spool.may_join(kind));
        let how = if under_way.is_some() { "joins the one under way" } else { "gets one of its own" };
        log::info!("replica {} asks for a full sync, and {how}", asked.place());
        let spool = under_way.unwrap_or_else(|| {
            let spool = SpoolFile::new(&self.primary, kind);
            self.spools.push(Arc::downgrade(&spool));
            self.unbegun.push(spool.clone());
            spool
        });
        Ok(Decision::Full(spool))
    }

    /// Does what has to be done again and again.
    fn round(&mut self) {
        self.begin_next();
        self.primary.count_good();
        self.store_stream();
        self.spools.retain(|spool| spool.strong_count() > 0);
        if self.looked.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.looked = Instant::now();
        let settings = self.primary.host.settings();
        self.primary.backlog.set_size(settings.backlog_bytes);
        self.drop_silent(settings.timeout_s);
        self.name_slow(&settings);
        if self.listening.is_none() {
            return;
        }
        if self.pinged.elapsed() >= Duration::from_secs(settings.ping_period_s.max(1)) {
            self.pinged = Instant::now();
            self.primary.backlog.ping();
            self.bell();
        }
        // Replicas that wait for a snapshot are told that the server lives.
        self.primary.host.tell_loops();
        self.end_if_alone(settings.backlog_ttl_s);
    }

    fn bell(&self) {
        self.listening.iter().for_each(|listening| listening.order().bell());
    }

    /// Stores what is too much for memory. Where that fails, or is too much, replicas that load end.
    fn store_stream(&mut self) {
        if self.listening.is_none() {
            return;
        }
        let settings = self.primary.host.settings();
        let stored = self.spill.tend(&self.primary.backlog, &self.primary.host.dir());
        self.primary.counts.stream_in_memory.store(self.spill.in_memory_bytes(), Ordering::Relaxed);
        let why = match stored {
            Ok(()) if self.primary.backlog.stored_bytes() <= settings.spool_max_bytes => {
                self.is_stuck = false;
                return;
            }
            Ok(()) => "the stream that waits for it exceeds repl-spool-max".to_owned(),
            Err(error) => format!("the stream that waits for it cannot be stored: {error}"),
        };
        if !std::mem::replace(&mut self.is_stuck, true) {
            log::warn!("replicas that load are ended: {why}");
        }
        let peers = self.primary.peers.lock();
        peers.iter().filter(|peer| !peer.has_caught_up()).for_each(|peer| peer.end(&why));
        drop(peers);
        self.primary.host.tell_loops();
    }

    /// Begins the snapshot of the next spool, if none is under way.
    fn begin_next(&mut self) {
        // A spool that nobody waits for is dropped.
        self.unbegun.retain(|spool| Arc::strong_count(spool) > 1);
        if let Some(spool) = self.unbegun.first().cloned()
            && self.primary.host.begin_snapshot(spool)
        {
            self.unbegun.remove(0);
        }
    }

    /// Ends the feeds of replicas that have said nothing for `repl-timeout`.
    fn drop_silent(&self, timeout_s: u64) {
        let now_ms = stdx::clock::wall_ms();
        for peer in self.primary.peers.lock().iter().filter(|peer| peer.is_fed()) {
            let silent_s = peer.lag_s(now_ms);
            if silent_s > timeout_s && !peer.asked.is_mute {
                peer.end(&format!("it said nothing for {silent_s} s (repl-timeout)"));
            }
        }
    }

    /// Names replicas in the log that take less than is written, before they are closed for it.
    fn name_slow(&self, settings: &Settings) {
        let (end, limits) = (self.primary.backlog.end_offset(), (settings.hard_bytes, settings.soft_bytes));
        for peer in self.primary.peers.lock().iter().filter(|peer| peer.has_caught_up()) {
            if let Some(slow) = peer.look(end, limits) {
                peer.warn(&slow);
            }
        }
    }

    /// Gives the backlog up when nobody has followed for `repl-backlog-ttl`.
    fn end_if_alone(&mut self, ttl_s: u64) {
        if self.primary.count() > 0 || ttl_s == 0 || self.primary.is_replica.load(Ordering::Acquire) {
            self.alone = None;
            return;
        }
        let since = *self.alone.get_or_insert_with(Instant::now);
        if since.elapsed() >= Duration::from_secs(ttl_s)
            && let Some(listening) = self.listening.take()
        {
            log::info!("the backlog was given up: no replica for {ttl_s} s");
            self.primary.backlog.end();
            self.spill = Spill::default();
            self.primary.counts.stream_in_memory.store(0, Ordering::Relaxed);
            *self.primary.order.lock() = None;
            listening.end();
        }
    }
}
