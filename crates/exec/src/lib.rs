//! Runs commands: plan, session, transactions, blocking, pub/sub, workers.
//!
//! ```text
//! net ──Args──► call::execute ─┬─ inline: under the locks of the command's shards       call
//!                              ├─ worker: over an overlay at a snapshot                  job, worker, works
//!                              ├─ queued: MULTI, then all at once at EXEC                transaction
//!                              ├─ parked: BLPOP and its kin, until a writer serves them  park
//!                              └─ action: what is no function of the keyspace            actions
//! ```
//!
//! - X1: a loop serves one client for at most one quantum before it serves the others; `net` counts, `execute`
//!   keeps a single command within it by sending long ones to a worker.
//! - X2: replies come in the order of the commands: a client whose command is elsewhere runs no further one.
//! - X3: what a command tells the outside (notifications, waiters that are ready) is done after its locks are released
//!   and before the same loop runs another command.
#![forbid(unsafe_code)]

mod actions;
mod assembled;
pub mod blocking;
mod bounds;
mod bulk;
pub mod call;
mod calls;
mod clerk;
pub mod clients;
mod crowd;
pub mod fetching;
mod flood;
pub mod http;
pub mod info;
pub mod job;
pub mod latency;
pub mod lines;
pub mod mail;
mod measured;
pub mod memory;
pub mod park;
mod pool;
pub mod pubsub;
pub mod queue;
pub mod rows;
pub mod scripts;
pub mod session;
pub mod slowlog;
pub mod snapshots;
pub mod stats;
mod tally;
pub mod transaction;
pub mod waits;
mod worker;
pub mod works;

pub use call::{Flow, execute};
pub use command::{Held, Stream};
pub use session::Session;

use command::Command;
use command::registry::{self, Names};
use config::Config;
use keyspace::{Changes, Keyspace, Ready, View};
use mail::{Mail, Mailbox};
use resp::{Args, OwnedArgs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// What all loops share.
pub struct Server {
    pub keyspace: Arc<Keyspace>,
    pub config: Arc<Config>,
    pub clients: clients::Clients,
    pub pubsub: pubsub::PubSub,
    pub park: Arc<park::Park>,
    pub(crate) workers: worker::Workers,
    /// Jobs and scripts take turns.
    pub turns: Arc<stdx::turns::Turns>,
    /// Which rank their threads take.
    pub(crate) crowd: Arc<crowd::Crowd>,
    /// Who reads at which moment, and who waits for a place.
    pub snapshots: snapshots::Snapshots,
    /// Long writes that lost to each other.
    pub lines: lines::Lines,
    /// Memory in use, and what is evicted.
    pub memory: Arc<memory::Memory>,
    /// Memory of the machine.
    pub memory_bytes: u64,
    pub pause: clients::Pause,
    pub scripts: scripts::Scripts,
    /// Databases that are read through.
    pub sources: Arc<rows::Rows>,
    pub started_ms: u64,
    pub run_id: String,
    loops: Arc<[Mailbox]>,
    shutdown: AtomicBool,
    pub stats: calls::Calls,
    pub(crate) measured: measured::Measured,
    pub(crate) clerk: clerk::Clerk,
    /// Who made whom wait.
    pub waits: Arc<waits::Waits>,
    /// What is shown over HTTP.
    pub http: Arc<http::Http>,
    /// What only the program around the server can do; set once, before anybody is served.
    program: OnceLock<Box<dyn Program>>,
    /// What the loops wait with, for INFO; set once by whoever starts them.
    pub multiplexing: OnceLock<&'static str>,
}

/// What commands need of the program the server runs in.
pub trait Program: Send + Sync {
    /// The allocator's figures now. Costs microseconds.
    fn allocator(&self) -> info::Allocator;
    /// All that the allocator tells about itself, for people. May take long.
    fn allocator_report(&self) -> String;
    /// SHUTDOWN: ends the process in order. Returns at once.
    fn stop(&self);
}

/// What one loop has for itself.
pub struct Local {
    pub id: usize,
    /// Wall clock of the current turn.
    pub now_ms: u64,
    random: u64,
    /// Monotonic clock at the end of the last command: the start of the next.
    pub clock_ns: u64,
    /// Monotonic clock at which this turn began.
    turn_ns: u64,
    /// What took long in this turn.
    pub turn: waits::Turn,
    pub(crate) waits: Arc<waits::Waits>,
    /// The command that runs has become a job or a script on a thread: it is counted when that is done.
    pub(crate) away: bool,
    /// An answer that is collected elsewhere is for a script, which waits for it on its thread.
    pub(crate) collected: actions::Collected,
    /// Whose commit was found to be protected last.
    pub(crate) guard: std::cell::Cell<u64>,
    ticker: stdx::clock::Ticker,
    /// Clients that went while somebody was about to serve them.
    pub(crate) leaving: Vec<u64>,
    /// This loop's Lua; made when the first script comes.
    pub(crate) lua: Option<Box<scripts::LuaState>>,
    /// This loop's subscribers.
    pub subscribers: pubsub::Subscribers,
    /// Messages nobody waits for, on their way through the patterns, one after the other.
    pub(crate) announced: std::collections::VecDeque<pubsub::Announced>,
    /// The words of the command that is about to run, if they are many: whoever keeps them takes a share instead of a copy.
    pub incoming: Option<Arc<OwnedArgs>>,
    /// The hash of the first argument of the command that is about to run, if that is known.
    pub key_hash: Option<u64>,
    /// Commands that asked for memory.
    pub(crate) asked: u32,
    /// What this loop does for long work, in slices.
    pub works: works::Works,
    /// Clients for whom rows arrived.
    pub arrived: Vec<(u64, rows::Arrival)>,
    /// What this loop counts.
    pub recorder: stats::Recorder,
}

impl Local {
    pub fn new(id: usize, server: &Server) -> Local {
        let random = stdx::hash::hash_u64(id as u64 ^ stdx::clock::wall_ns());
        let ticker = stdx::clock::Ticker::new();
        // The first reading measures the counter for milliseconds: not in a turn of the loop.
        ticker.now_ns();
        Local {
            id,
            now_ms: stdx::clock::wall_ms(),
            random,
            clock_ns: stdx::clock::mono_ns(),
            turn_ns: 0,
            turn: waits::Turn::default(),
            waits: server.waits.clone(),
            away: false,
            collected: actions::Collected::default(),
            guard: std::cell::Cell::new(0),
            ticker,
            leaving: Vec::new(),
            lua: None,
            subscribers: pubsub::Subscribers::default(),
            announced: std::collections::VecDeque::new(),
            incoming: None,
            key_hash: None,
            asked: 0,
            works: works::Works::default(),
            arrived: Vec::new(),
            recorder: server.stats.recorder(),
        }
    }

    /// A message nobody waits for goes on from here.
    pub fn announce(&mut self, announced: pubsub::Announced) {
        if self.announced.is_empty() {
            self.works.push(works::Work::Announce);
        }
        self.announced.push_back(announced);
    }

    /// Counts the commands that ran within another one of that client, and logs the slow ones of them.
    pub(crate) fn count_within(&self, server: &Server, tally: &mut tally::Tally, client: u64) {
        let slow = tally.take_slow();
        if !slow.is_empty()
            && let Some(info) = server.clients.get(client)
        {
            slow.into_iter()
                .for_each(|one| server.stats.queued_elsewhere(self, &server.config.live, &info, one));
        }
        tally.tell(&self.recorder, server.config.live.latency_tracking.get());
    }

    /// Reads both clocks; at the begin of every turn.
    pub fn tick(&mut self) {
        if self.turn_ns != 0 {
            // The last lap was the end of a turn; what passed since was sleep.
            self.recorder.turn(self.clock_ns.saturating_sub(self.turn_ns));
        }
        self.now_ms = stdx::clock::wall_ms();
        self.clock_ns = self.ticker.set();
        self.turn_ns = self.clock_ns;
        self.begin_turn();
    }

    /// Reads the monotonic clock the cheap way; after every command and piece of a stream.
    #[inline]
    pub fn lap(&mut self) -> u64 {
        self.clock_ns = self.ticker.now_ns();
        self.clock_ns
    }

    /// A fresh random number; nobody may rely on its being hard to guess.
    #[inline]
    pub fn random(&mut self) -> u64 {
        // A step of a linear congruential generator, whose weak low bits go to the top and into the others.
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.random.rotate_left(32) ^ self.random
    }
}

/// Applies `rename-command`.
fn rename_commands(config: &Config) -> std::io::Result<()> {
    if config.renames().is_empty() {
        return Ok(());
    }
    let mut names = Names::usual();
    for (from, to) in config.renames() {
        names.rename(from, to).map_err(std::io::Error::other)?;
    }
    match registry::rename(names) {
        true => Ok(()),
        false => Err(std::io::Error::other("commands were looked up before rename-command was applied")),
    }
}

/// Lets the keyspace collect only the events somebody wants.
struct NotifyObserver(Arc<Keyspace>);

impl config::Observer for NotifyObserver {
    fn changed(&self, directive: &config::Directive, live: &config::Live) {
        if directive.name == "notify-keyspace-events" {
            self.0.set_notify(clients::wanted_classes(live.notify.get() as u32));
        }
    }
}

impl Server {
    /// Starts workers and reclaimer; the loops are `net`'s, one per mailbox.
    pub fn start(config: Arc<Config>, loops: usize) -> std::io::Result<Arc<Server>> {
        rename_commands(&config)?;
        let keyspace =
            Keyspace::with_hidden(config.live.databases.size(), rows::MAX * rows::DATABASES, rows::DATABASES);
        let mailboxes: Arc<[Mailbox]> = (0..loops).map(|_| Mailbox::new()).collect::<Result<_, _>>()?;
        keyspace.set_notify(clients::wanted_classes(config.live.notify.get() as u32));
        config.observe(Box::new(NotifyObserver(keyspace.clone())));
        stdx::reclaim::start();
        stdx::pages::start_keeper();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let boxes = mailboxes.clone();
        let done = move |job: Box<job::Job>| boxes[job.loop_id].send(Mail::Job(job));
        let turns = stdx::turns::Turns::new(cores);
        let crowd = Arc::<crowd::Crowd>::default();
        let workers = worker::Workers::start(keyspace.clone(), turns.clone(), crowd.clone(), done);
        let random = |salt| stdx::hash::hash_u64(stdx::clock::wall_ns() ^ salt);
        let (memory, http) = (Arc::new(memory::Memory::new(rows::MAX)), Arc::<http::Http>::default());
        let around = fetching::Around {
            keyspace: keyspace.clone(),
            memory: memory.clone(),
            http: http.clone(),
            loops: mailboxes.clone(),
        };
        let sources = rows::Rows::new(keyspace.clone(), loops, Box::new(around));
        let server = Arc::new(Server {
            keyspace,
            config,
            clients: clients::Clients::new(loops),
            pubsub: pubsub::PubSub::default(),
            park: Arc::default(),
            workers,
            turns,
            crowd,
            snapshots: snapshots::Snapshots::default(),
            lines: lines::Lines::default(),
            memory,
            memory_bytes: info::machine_bytes(),
            pause: clients::Pause::default(),
            scripts: scripts::Scripts::default(),
            sources,
            started_ms: stdx::clock::wall_ms(),
            run_id: format!("{:016x}{:016x}{:08x}", random(1), random(2), random(3) as u32),
            loops: mailboxes,
            shutdown: AtomicBool::new(false),
            stats: calls::Calls::default(),
            measured: measured::Measured::default(),
            clerk: clerk::Clerk::default(),
            waits: Arc::new(waits::Waits::new(loops)),
            http,
            program: OnceLock::new(),
            multiplexing: OnceLock::new(),
        });
        server.scripts.take_from(&server.memory.work);
        let weak = Arc::downgrade(&server);
        server.keyspace.on_snapshot_closed(move || {
            if let Some(server) = weak.upgrade() {
                snapshots::closed(&server);
            }
        });
        actions::config::follow(&server);
        waits::watchdog::start(&server)?;
        Ok(server)
    }

    /// Tells it the program it runs in, before the loops start: what memory the program has counts from its first command on.
    pub fn run_in(&self, program: Box<dyn Program>) {
        if self.program.set(program).is_ok() {
            let now_ms = stdx::clock::wall_ms();
            memory::look(self, now_ms);
            self.measured.sample(now_ms, &self.crowd);
        }
    }

    pub fn loops(&self) -> usize {
        self.loops.len()
    }

    /// How many of the cores this process may use were busy in the last second, in thousandths of a core; None: not known.
    pub fn busy_milli(&self) -> Option<u64> {
        self.crowd.busy_milli(stdx::clock::mono_ns())
    }

    pub fn mailbox(&self, loop_id: usize) -> &Mailbox {
        &self.loops[loop_id]
    }

    pub fn send(&self, loop_id: usize, mail: Mail) {
        self.loops[loop_id].send(mail);
    }

    /// Asks every loop to end.
    pub fn shut_down(&self) {
        if !self.shutdown.swap(true, Ordering::AcqRel) {
            self.loops.iter().for_each(|mailbox| mailbox.send(Mail::Shutdown));
        }
    }

    /// The allocator's figures; zero if nobody provides them.
    pub fn allocator(&self) -> info::Allocator {
        self.program.get().map(|program| program.allocator()).unwrap_or_default()
    }

    pub fn is_shutting_down(&self) -> bool {
        self.shutdown.load(Ordering::Acquire)
    }

    /// Hands a write's effect to whoever follows the sequence; the locks are still held.
    pub(crate) fn log_effect(
        &self,
        command: &Command,
        args: Args<'_>,
        effects: &[OwnedArgs],
        view: &View<'_>,
    ) {
        command::effects::log(&self.keyspace, command, args, effects, view);
    }

    /// Tells the outside what a command did (X3); gives what waiters are to be served with.
    pub(crate) fn tell(&self, mut changes: Changes) -> Vec<Ready> {
        if !changes.events.is_empty() {
            clients::notify(self, &changes.events);
        }
        changes.runs.drain(..).for_each(|run| self.pubsub.announce_run(self, run));
        if !changes.ready.is_empty() {
            self.park.begin_rounds(&mut changes.ready);
        }
        changes.ready
    }

    /// `tell`, and serves the waiters.
    #[inline]
    pub fn after(&self, local: &mut Local, changes: Changes) {
        if !changes.events.is_empty() || !changes.runs.is_empty() || !changes.ready.is_empty() {
            self.tell_and_serve(local, changes);
        }
    }

    #[cold]
    fn tell_and_serve(&self, local: &mut Local, changes: Changes) {
        let ready = self.tell(changes);
        if !ready.is_empty() {
            blocking::serve(self, local, ready);
        }
    }

    /// The place of the reply gate: a reply that made or observed an effect is held until that LSN is durable. Nothing
    /// is durable yet, so nothing is held.
    #[inline]
    pub(crate) fn reply_gate(&self, _lsn: keyspace::Lsn) -> bool {
        true
    }
}
