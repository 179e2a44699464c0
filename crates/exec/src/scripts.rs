//! Scripts: where they run, what they see, when what they did becomes visible.
//!
//! ```text
//! EVAL ─► inline, over an overlay ─┬─ done within the quantum ─────────► commit ─► reply
//!                                  ├─ longer, or lost races ─► a thread of its own ─► commit in slices ─► reply
//!                                  └─ lost a race ─► again on a new snapshot; after a few, protected (job.rs J3)
//! ```
//!
//! - C1: a script over an overlay has applied nothing before its commit, so it can be dropped and run again at any time:
//!   at the end of the quantum, at SCRIPT KILL, after a lost race. Nobody is ever told BUSY.
//! - C2: what it tells the outside (PUBLISH, the log) is kept until after the commit and happens once (`scripts/deeds.rs`).
//! - C3: a script's reads are all at one snapshot; if it wrote, the commit checks that none of them changed since.
//! - C4: a script that once needed a thread is remembered, and goes there at once, until it proves short there: a loop that
//!   others interrupt makes any script look long.
//! - C5: script threads take no shard lock: loops read keys for them.
//! - C7: a script can be killed until its commit is decided, wherever it is: waiting for a thread, running, between two
//!   attempts. One that only reads ends so when its client goes.
//! - C8: one that others wait for gives its place up and starts over behind them (`snapshots/places.rs`).
//! - C9: one whose client has gone goes on for `script-orphan-time`, and only as long as nobody waits for its place. One whose
//!   client was killed ends at once.
//! - C6: libraries are loaded into each engine from their code; what a library keeps in upvalues is per engine, and not
//!   part of the dataset.

mod code;
mod deeds;
mod run;
mod transaction;

pub(crate) use code::{Change, Deadline, Found, LuaState, Short, compile_apart};
pub use code::{Code, Kept, Libraries, LibraryCode};
pub use deeds::{Deeds, advance_deeds, waiting_deeds};
pub(crate) use run::Reader;

use code::Compiling;
use deeds::Deed;
use run::{Ground, Limit, run_once};
use transaction::Transaction;

use crate::act::Act;
use crate::assembled::{self, Rests};
use crate::call::{self, INLINE_STEPS};
use crate::job::{self, Delivery, Races};
use crate::lines::{self, Place, Write};
use crate::mail::{Answer, Around, Asked, Errand, Mail, ReadKeys};
use crate::pool::Pool;
use crate::session::{ClientInfo, Watch};
use crate::snapshots::{Asker, Class, StopSign};
use crate::tally::Tally;
use crate::waits::Spent;
use crate::waits::request::Bench;
use crate::works::{Owner, Paused, Work};
use crate::{Local, Server, Session};
use command::places;
use command::table::{self, Run};
use command::{Budget, Caller, Command, Cx, Error};
use keyspace::{Announce, Chunk, Commit, KeyBatches, Overlay, Snapshot, View};
use parking_lot::Mutex;
use resp::{OwnedArgs, Reply};
use script::{Engine, Host, Limits, Sha, Stop};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use stdx::budget::Holding;
use stdx::clock::Ticker;
use stdx::hash::hash_bytes;
use stdx::points::Point;
use stdx::turns::Turn;

/// Nanoseconds a script may take on a loop before it goes to a thread.
const QUANTUM_NS: u64 = 100_000;
/// CPU time of a run on a thread after which a script runs inline again.
const SHORT_NS: u64 = QUANTUM_NS / 2;
/// Lost races before a script that runs inline goes to a thread.
const TRIES: u32 = 4;
/// Keys a script may declare to be run inline.
const MANY_KEYS: usize = 200;
/// Words a script may be called with to be run inline: each takes up to a microsecond.
const MANY_WORDS: usize = 256;
/// And the bytes of them: Lua hashes each.
const MANY_BYTES: usize = 64 * 1024;
/// A script's first requests for keys, and one more for each so many keys of the database, are answered without neighbours.
const ALONE: usize = 8;
const FAIR: usize = 1_000;
/// Neighbours of a key that are read with it, at first and at most.
const NEAR: usize = 200;
const NEAR_MAX: usize = 16 * 1024;
/// Keys of a database up to which a script may look at all of them on a loop.
const SMALL_WHOLE: usize = 500;
/// Threads for long scripts; more of them wait their turn.
const THREADS: usize = keyspace::MAX_LONG;

/// What is to be run.
pub enum Body {
    Script(Sha, Arc<Kept>),
    /// A script that is not compiled yet: a thread does that. Whether it came by EVAL_RO.
    Text(bool),
    Function(String),
    /// The commands of an EXEC.
    Exec(Box<Transaction>),
}

impl Body {
    /// Name of the command, for whoever waited for it.
    fn command(&self) -> &'static str {
        match self {
            Body::Script(..) | Body::Text(_) => "eval",
            Body::Function(_) => "fcall",
            Body::Exec(_) => "exec",
        }
    }

    fn name(&self) -> String {
        match self {
            Body::Script(sha, _) => String::from_utf8_lossy(&sha.hex()).into_owned(),
            Body::Text(_) => String::from("new script"),
            Body::Function(name) => format!("function {name}"),
            Body::Exec(_) => String::from("exec"),
        }
    }

    /// Whether SCRIPT KILL is about it, and whether FUNCTION KILL.
    fn has_scripts(&self) -> (bool, bool) {
        match self {
            Body::Script(..) | Body::Text(_) => (true, false),
            Body::Function(_) => (false, true),
            Body::Exec(transaction) => transaction.has_scripts(),
        }
    }
}

/// One EVAL, FCALL or EXEC.
pub struct ScriptRun {
    pub body: Body,
    /// The command as it came: name, script, number of keys, keys, arguments. Never copied where it is large.
    pub words: Arc<OwnedArgs>,
    /// How many keys it declares.
    pub declared: usize,
    pub db: usize,
    pub client: u64,
    pub resp3: bool,
    pub read_only: bool,
    /// Memory is short, and it did not say that it may be run nevertheless.
    pub short: bool,
    pub now_ms: u64,
    /// When the keys it looks at count as used, if they do.
    pub used_ms: Option<u64>,
    pub random: u64,
    pub loop_id: usize,
    /// Says that its client went: then one that only reads is of use to nobody. None: another one looks after it.
    pub gone: Option<Arc<AtomicBool>>,
}

/// Words of a command before the keys it declares.
const BEFORE_KEYS: usize = 3;

impl ScriptRun {
    fn keys(&self) -> resp::Args<'_> {
        self.words.args().from(BEFORE_KEYS).to(self.declared)
    }

    fn args(&self) -> resp::Args<'_> {
        self.words.args().from(BEFORE_KEYS + self.declared)
    }

    /// Whether a loop had better not even hand it its words. O(words), few of them.
    fn is_wide(&self) -> bool {
        let bytes = || self.keys().iter().chain(self.args().iter()).map(<[u8]>::len).sum::<usize>();
        self.declared > MANY_KEYS || self.words.len() > MANY_WORDS || bytes() > MANY_BYTES
    }

    /// What says that nobody wants its answer any more; None if it has to be done nevertheless.
    fn gone(&self) -> Option<&AtomicBool> {
        self.gone.as_deref().filter(|_| self.read_only)
    }

    /// EXEC: whether something watched was touched.
    fn is_touched(&self) -> bool {
        matches!(&self.body, Body::Exec(transaction) if transaction.is_touched())
    }

    /// EXEC: has decided changes of what was watched written, from `last` on; true if some are left.
    fn settle_some(&self, server: &Server, local: &mut Local, last: &mut Option<(usize, Box<[u8]>)>) -> bool {
        let Body::Exec(transaction) = &self.body else { return false };
        crate::transaction::settle_some(server, local, transaction.watch(), last)
    }

    /// EXEC: gives up what its client watched.
    fn forget_watched(&mut self, server: &Server, local: &mut Local) {
        if let Body::Exec(transaction) = &mut self.body {
            crate::transaction::forget(server, local, transaction.take_watch());
        }
    }
}

/// A script on its way through a thread of its own.
pub struct ScriptJob {
    pub run: ScriptRun,
    /// Until it is done.
    listed: Option<Listed>,
    overlay: Option<Overlay>,
    /// What it did, if that is much: to be committed in pieces.
    commit: Option<Commit>,
    races: Races,
    out: Vec<u8>,
    told: Told,
    tally: Tally,
    ended: Result<(), Halt>,
    pub(crate) spent: Spent,
    /// The last watched key that is settled since the snapshot.
    settled: Option<(usize, Box<[u8]>)>,
    /// In the line of its kind.
    pub(crate) place: Option<Place>,
    /// Tells this attempt to stop.
    pub(crate) sign: StopSign,
    /// How often it gave its place to others.
    gave_way: u32,
    /// What it holds, of what work may.
    holding: Holding,
    info: Arc<ClientInfo>,
}

impl ScriptJob {
    /// What it says of itself to get a place.
    fn asks(&self) -> Asker {
        let body = &self.run.body;
        let mut name = vec![body.command().to_uppercase().into_bytes()];
        name.extend((!matches!(body, Body::Exec(_))).then(|| body.name().into_bytes()));
        let words = crate::snapshots::shortened(name.iter().map(Vec::as_slice).chain(self.run.keys().iter()));
        Asker {
            client: self.run.client,
            command: self.run.body.command(),
            class: Class::Script,
            gave_way: self.gave_way,
            gone: self.run.gone.clone(),
            for_client: self.run.read_only,
            sign: self.sign.clone(),
            words,
        }
    }

    /// Whether its client has gone.
    fn is_orphan(&self) -> bool {
        self.run.gone.as_ref().is_some_and(|gone| gone.load(Ordering::Relaxed))
    }

    /// Whether it is not worth another turn: it gave way, and its client has gone (C9).
    pub(crate) fn is_forsaken(&self) -> bool {
        self.gave_way > 0 && self.is_orphan()
    }

    /// What works that get in each other's way have in common; None if it is nothing of a name, or only reads.
    pub(crate) fn kind(&self) -> Option<u64> {
        let run = &self.run;
        let name = Name::of(&run.body).filter(|_| !run.read_only)?;
        let first = run.keys().iter().next();
        Some(match &name {
            Name::Script(sha) => lines::kind(&sha.hex(), run.db, first),
            Name::Function(name) => lines::kind(name.as_bytes(), run.db, first),
        })
    }

    /// Its client, its command and its loop.
    pub(crate) fn who(&self) -> (u64, &'static str, usize) {
        (self.run.client, self.run.body.command(), self.run.loop_id)
    }

    /// Whether it has done something that is to be committed.
    fn changes(&self) -> bool {
        self.commit.is_some() || self.overlay.as_ref().is_some_and(Overlay::is_dirty)
    }

    /// It panicked: nothing of it has happened.
    fn fail(&mut self) {
        job::discard((self.overlay.take(), self.commit.take(), std::mem::take(&mut self.told)));
        self.tally.clear();
        self.ended = Err(Halt::Broken);
    }

    /// Whether it is to end: somebody killed it, or its client went and it only reads.
    pub(crate) fn is_killed(&self) -> bool {
        let gone = self.run.gone().is_some_and(|gone| gone.load(Ordering::Relaxed));
        gone || self.listed.as_ref().is_some_and(|listed| listed.entry.kill.load(Ordering::Relaxed))
    }
}

/// What a script told the outside, until its commit (C2).
#[derive(Default)]
struct Told {
    deeds: Vec<Deed>,
    /// About what they take.
    bytes: usize,
    /// With their databases.
    effects: Vec<(usize, OwnedArgs)>,
    /// EXEC: the database it leaves its client in.
    selected: Option<usize>,
    /// EXEC: the version of the libraries it began to change.
    drafted_at: Option<u64>,
}

impl Told {
    /// Whether it changed libraries that others have changed since.
    fn is_outdated(&self, server: &Server) -> bool {
        self.drafted_at.is_some_and(|version| version != server.scripts.code.version())
    }

    /// Takes what was told after it.
    fn append(&mut self, mut next: Told) {
        self.deeds.append(&mut next.deeds);
        self.bytes += next.bytes;
        self.effects.append(&mut next.effects);
    }

    fn tell_effects(&mut self, sink: &dyn keyspace::CommitSink, lsn: keyspace::Lsn) {
        let effects = std::mem::take(&mut self.effects);
        effects.iter().for_each(|(db, effect)| sink.effect(lsn, *db, &mut effect.args().iter()));
    }
}

/// Why a run did not end by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Halt {
    /// It takes longer than a loop has.
    Elsewhere,
    Killed,
    /// `script-max-time` is over.
    TooLong,
    /// It panicked.
    Broken,
    /// Others wait for its place (C8).
    GivesWay,
    /// It needs more memory than work may hold.
    Full,
}

impl Halt {
    /// What ends the script.
    fn stop(self) -> Stop {
        match self {
            Halt::Killed => Stop::Killed,
            Halt::TooLong => Stop::Deadline,
            Halt::Elsewhere | Halt::Broken | Halt::GivesWay | Halt::Full => Stop::Elsewhere,
        }
    }

    /// What the client of a script is told that was ended from outside.
    fn told(self, server: &Server) -> String {
        match self {
            Halt::TooLong => {
                let ms = server.config.live.script_max_ms.get();
                format!("Error running script: script-max-time exceeded: {ms} ms")
            }
            _ => String::from("Error running script: Script killed by user with SCRIPT KILL."),
        }
    }
}

/// A script that left its loop, as SCRIPT KILL and FUNCTION STATS see it: waiting for a thread, running, or not yet decided
/// to be committed (C7).
pub struct Running {
    /// Whose it is.
    pub client: u64,
    pub name: String,
    /// Whether SCRIPT KILL is about it, and whether FUNCTION KILL.
    pub is_script: bool,
    pub is_function: bool,
    pub started_ns: u64,
    pub kill: AtomicBool,
    pub command: Vec<Vec<u8>>,
    /// Its client has gone, and when that was seen first (monotonic milliseconds; 0: it was not).
    gone: Option<Arc<AtomicBool>>,
    gone_ms: AtomicU64,
}

/// Its place in [`Scripts::running`]; given up when dropped.
struct Listed {
    server: Weak<Server>,
    entry: Arc<Running>,
}

impl Listed {
    fn new(server: &Arc<Server>, run: &ScriptRun) -> Listed {
        let entry = running(run);
        server.scripts.running.lock().push(entry.clone());
        Listed { server: Arc::downgrade(server), entry }
    }

    /// A SCRIPT LOAD.
    fn of_text(server: &Arc<Server>, client: u64) -> Listed {
        let entry = Arc::new(Running {
            client,
            name: String::from("new script"),
            is_script: true,
            is_function: false,
            started_ns: stdx::clock::mono_ns(),
            kill: AtomicBool::new(false),
            command: vec![b"script|load".to_vec()],
            // The compilation looks after that itself.
            gone: None,
            gone_ms: AtomicU64::new(0),
        });
        server.scripts.running.lock().push(entry.clone());
        Listed { server: Arc::downgrade(server), entry }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(server) = self.server.upgrade() {
            server.scripts.running.lock().retain(|entry| !Arc::ptr_eq(entry, &self.entry));
        }
    }
}

/// What the server knows about scripts.
pub struct Scripts {
    pub code: Arc<Code>,
    /// Scripts that once took longer than a loop has, and whether they read a good part of all keys when they last ran.
    long: Mutex<HashMap<Name, bool>>,
    has_long: AtomicBool,
    pub running: Mutex<Vec<Arc<Running>>>,
    threads: Arc<Pool<Box<ScriptJob>>>,
    engines: Arc<Engines>,
    /// Scripts that were ended because their clients had gone (C9).
    pub orphans_ended: AtomicU64,
}

fn write_log(level: i32, message: &[u8]) {
    log::log!(log_level(level), "{}", String::from_utf8_lossy(message));
}

/// What a script's level is in our log.
fn log_level(level: i32) -> log::Level {
    match level {
        0 => log::Level::Debug,
        1 | 2 => log::Level::Info,
        _ => log::Level::Warn,
    }
}

impl Default for Scripts {
    fn default() -> Scripts {
        Scripts {
            code: Arc::default(),
            long: Mutex::default(),
            has_long: AtomicBool::new(false),
            running: Mutex::default(),
            threads: Pool::new("script", THREADS),
            engines: Arc::default(),
            orphans_ended: AtomicU64::new(0),
        }
    }
}

/// The engines of threads, and the bytes they hold: for scripts, and for functions.
#[derive(Default)]
struct Engines {
    scripts: AtomicU64,
    functions: AtomicU64,
    all: Mutex<Vec<Weak<Mutex<Desk>>>>,
}

/// The engine of a thread. The thread has it locked while it works; others may tidy it meanwhile.
struct Desk {
    lua: LuaState,
    share: Share,
}

impl Desk {
    fn count(&mut self) {
        self.share.set(self.lua.bytes());
    }
}

impl Engines {
    /// An engine for a thread.
    fn add(self: &Arc<Engines>, code: &Arc<Code>) -> Arc<Mutex<Desk>> {
        let share = Share { of: self.clone(), bytes: (0, 0) };
        let desk = Arc::new(Mutex::new(Desk { lua: LuaState::new(code.clone()), share }));
        let mut all = self.all.lock();
        all.retain(|desk| desk.strong_count() > 0);
        all.push(Arc::downgrade(&desk));
        desk
    }

    /// Has engines of threads without work heed what is asked of all; the others do when they are done.
    fn heed(&self) {
        let all: Vec<_> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        for desk in all {
            if let Some(mut desk) = desk.try_lock() {
                desk.lua.heed();
                desk.count();
            }
        }
        stdx::reclaim::flush();
    }
}

/// What of that is one thread's, until it ends.
struct Share {
    of: Arc<Engines>,
    bytes: (u64, u64),
}

impl Share {
    fn set(&mut self, (scripts, functions): (usize, usize)) {
        let (old, new) = (self.bytes, (scripts as u64, functions as u64));
        self.of.scripts.fetch_add(new.0.wrapping_sub(old.0), Ordering::Relaxed);
        self.of.functions.fetch_add(new.1.wrapping_sub(old.1), Ordering::Relaxed);
        self.bytes = new;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set((0, 0));
    }
}

impl Scripts {
    /// SCRIPT FLUSH. What is long is found out anew.
    pub fn flush(&self) {
        self.code.forget_scripts();
        let long = std::mem::take(&mut *self.long.lock());
        stdx::reclaim::defer(long.len() * 64, move || drop(long));
        self.has_long.store(false, Ordering::Release);
    }

    /// Has all engines give up what scripts and functions left, and, behind a flush, what is compiled: loops before long, threads that
    /// have no work now, if this is called where one may wait.
    pub(crate) fn tidy_idle(&self) {
        self.engines.heed();
    }

    /// MEMORY PURGE: asks for it ([`Scripts::tidy_idle`]).
    pub(crate) fn purge(&self) {
        self.code.purge();
    }

    /// What an engine that is none of ours may take, and where from.
    pub(crate) fn limits(&self, live: &config::Live) -> Limits {
        Limits { memory_bytes: live.lua_memory_bytes.size(), ..self.code.limits() }
    }

    /// Has engines take their memory from there.
    pub(crate) fn take_from(&self, work: &Arc<stdx::budget::Budget>) {
        self.code.take_from(work);
    }

    /// Long scripts that wait for a thread or a place, of which so many do, and all others that are not over. A script whose turn in
    /// the line of its kind has not come counts to the latter.
    pub(crate) fn load(&self, for_place: usize) -> (usize, usize) {
        let waiting = self.threads.waiting() + for_place;
        (waiting, self.running.lock().len().saturating_sub(waiting))
    }

    /// Bytes that the engines of threads hold for scripts, and for functions.
    pub(crate) fn thread_bytes(&self) -> (u64, u64) {
        (self.engines.scripts.load(Ordering::Relaxed), self.engines.functions.load(Ordering::Relaxed))
    }

    fn submit(&self, server: &Arc<Server>, job: Box<ScriptJob>) {
        let (weak, engines) = (Arc::downgrade(server), self.engines.clone());
        self.threads.submit(job, server.crowd.rank(), move |taker| {
            let Some(code) = weak.upgrade().map(|server| server.scripts.code.clone()) else { return };
            let engine = engines.add(&code);
            let mut bench = Bench::default();
            while let Some(mut job) = taker.take() {
                let Some(server) = weak.upgrade() else { return };
                let mut desk = engine.lock();
                bench.begin(&mut job.spent);
                crate::waits::works_for(job.run.client);
                // A script changes nothing but what it owns (C1), and its engine.
                let run = || run_on_thread(&server, &mut desk.lua, &mut bench, &mut job);
                if stdx::panics::contain(run).is_err() {
                    job.fail();
                    desk.lua = LuaState::new(code.clone());
                }
                desk.lua.tidy();
                desk.count();
                let (client, command, loop_id) = job.who();
                bench.end(&mut job.spent, client, command);
                server.send(loop_id, Mail::Script(job));
                stdx::reclaim::flush();
                if desk.lua.engine.is_littered() {
                    let turn = server.turns.enter();
                    desk.lua.collect(|| turn.check());
                    desk.count();
                }
                drop(desk);
                // A request that met the lock went on.
                while let Some(mut desk) = engine.try_lock().filter(|desk| !desk.lua.has_heeded()) {
                    desk.lua.tidy();
                    desk.count();
                    stdx::reclaim::flush();
                }
            }
        });
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        self.threads.end();
    }
}

/// How an EVAL went on the loop that received it.
pub(crate) enum Started {
    Done,
    /// On a thread; the reply comes by mail.
    Away,
    /// A long commit is protected on its keys: to be run again in a moment.
    Later,
}

/// Runs a script for a client: inline first, elsewhere if it is long. See the module. `far`: not on a loop.
pub(crate) fn start(act: &mut Act<'_, '_>, run: ScriptRun, far: bool) -> Started {
    let server = act.server.clone();
    let guarded = server.keyspace.has_guards() && !run.read_only;
    let holder = if guarded { server.keyspace.guarded(run.keys().iter(), run.now_ms) } else { None };
    if call::note_guard(act.local, holder) {
        return Started::Later;
    }
    let far = far || run.is_wide() || server.scripts.is_long(&run.body);
    let lacks = |name: &str, act: &mut Act<'_, '_>| !engine(act.server, act.local).has_function(name);
    let far = far || matches!(&run.body, Body::Function(name) if lacks(name, act));
    if far {
        load_libraries(act.local);
        return send_away(act, run);
    }
    run_with_engine(act, run)
}

/// Runs a transaction for a client that is out of it already: inline first, unless it is long.
pub(crate) fn start_exec(
    act: &mut Act<'_, '_>,
    queue: crate::queue::Queue,
    watch: Watch,
    long: bool,
) -> Started {
    let run = ScriptRun {
        body: Body::Exec(Box::new(Transaction::new(queue, watch, act.session.info.clone()))),
        words: Arc::default(),
        declared: 0,
        db: act.session.db,
        client: act.session.id,
        resp3: act.out.resp3(),
        read_only: false,
        short: act.server.memory.is_short(act.session),
        now_ms: act.local.now_ms,
        used_ms: act.session.uses_at(act.local.now_ms),
        random: act.local.random(),
        loop_id: act.local.id,
        gone: Some(act.session.cancel.clone()),
    };
    if long { send_away(act, run) } else { run_with_engine(act, run) }
}

fn run_with_engine(act: &mut Act<'_, '_>, run: ScriptRun) -> Started {
    engine(act.server, act.local);
    let Some(mut lua) = act.local.lua.take() else { return Started::Done };
    let started = run_inline(act, &mut lua, run);
    if lua.wants_collection() {
        act.local.works.push(Work::Collect);
    }
    act.local.lua = Some(lua);
    load_libraries(act.local);
    started
}

/// Collects some of what scripts left in a loop's engine; true if some is left.
pub(crate) fn collect_some(local: &mut Local) -> bool {
    local.lua.as_mut().is_some_and(|lua| lua.collect_some())
}

/// Has the libraries loaded in slices if a function was called that is not there (K4).
fn load_libraries(local: &mut Local) {
    if local.lua.as_mut().is_some_and(|lua| lua.wants_libraries()) {
        local.works.push(Work::Libraries);
    }
}

/// Loads some libraries into a loop's engine; true if some are left.
pub(crate) fn load_some_libraries(local: &mut Local) -> bool {
    local.lua.as_mut().is_some_and(|lua| lua.load_some_libraries())
}

fn run_inline(act: &mut Act<'_, '_>, lua: &mut LuaState, mut run: ScriptRun) -> Started {
    let server = act.server.clone();
    let in_script = !matches!(run.body, Body::Exec(_));
    for _ in 0..TRIES {
        let Some(snapshot) = Snapshot::open_short(&server.keyspace) else { break };
        let (mut overlay, mut holding) = (Overlay::new(snapshot, run.used_ms), Holding::default());
        overlay.load(run.db, run.keys().iter());
        let resp3 = act.out.resp3();
        let mut out = OnLoan::of(act.out);
        let mark = out.bytes.len();
        let limit = Limit {
            until_ns: Some(stdx::clock::mono_ns() + QUANTUM_NS),
            kill: None,
            gone: None,
            gives_way: None,
            end_ns: None,
        };
        let (ended, mut told) = {
            let mut spare = Reply::new(resp3);
            let mut inner = Act {
                server: act.server,
                local: act.local,
                session: act.session,
                out: &mut spare,
                view: None,
                in_script,
                in_multi: true,
                committed: false,
            };
            let ground =
                Ground { overlay: &mut overlay, act: Some(&mut inner), holding: &mut holding, base: 0 };
            run_once(&server, lua, &run, ground, limit, None, &mut out.bytes)
        };
        drop(out);
        if ended.is_err() {
            act.out.truncate(mark);
            overlay.dispose();
            server.scripts.note_long(&run.body);
            break;
        }
        let mut settled = None;
        while run.settle_some(&server, act.local, &mut settled) {}
        if run.is_touched() {
            act.out.truncate(mark);
            act.out.null_array();
            overlay.dispose();
            run.forget_watched(&server, act.local);
            return Started::Done;
        }
        if settle(&server, act.local, overlay, &mut told).is_ok() {
            act.local.count_within(&server, &mut lua.tally, act.session.id);
            run.forget_watched(&server, act.local);
            if deeds::do_few(&server, &mut told) {
                told.selected.into_iter().for_each(|db| act.session.select(db));
                return Started::Done;
            }
            return do_deeds(act, run, mark, told);
        }
        act.out.truncate(mark);
    }
    send_away(act, run)
}

/// The bytes of a client's replies, which a script appends to; they go back also when it panics.
struct OnLoan<'a> {
    home: &'a mut Reply,
    bytes: Vec<u8>,
}

impl OnLoan<'_> {
    fn of(home: &mut Reply) -> OnLoan<'_> {
        OnLoan { bytes: home.take(), home }
    }
}

impl Drop for OnLoan<'_> {
    fn drop(&mut self) {
        self.home.swap(&mut self.bytes);
    }
}

/// Does what a script that ran inline and is committed has to do; its reply stands behind `mark`.
fn do_deeds(act: &mut Act<'_, '_>, run: ScriptRun, mark: usize, told: Told) -> Started {
    let reply = act.out.as_bytes()[mark..].to_vec();
    act.out.truncate(mark);
    let deeds = Deeds::new(run, (reply, mark), told, (None, None));
    match advance_deeds(act.server, act.local, Some(act.session), deeds) {
        Some(Delivery { bytes, stream: None, .. }) => {
            act.session.hushed = false;
            act.out.set_resp3(act.session.resp3);
            act.out.encoded(&bytes);
            return Started::Done;
        }
        Some(delivery) => act.local.works.push(Work::Deliver(delivery)),
        None => {}
    }
    act.local.away = true;
    Started::Away
}

/// What a script or function is known by.
#[derive(PartialEq, Eq, Hash)]
enum Name {
    Script(Sha),
    Function(String),
}

impl Name {
    /// None: a transaction, which is known by what is in it, or a text that nobody has seen before.
    fn of(body: &Body) -> Option<Name> {
        match body {
            Body::Script(sha, _) => Some(Name::Script(*sha)),
            Body::Function(name) => Some(Name::Function(name.clone())),
            Body::Exec(_) | Body::Text(_) => None,
        }
    }
}

impl Scripts {
    /// Ends the script a client runs, if it does: its snapshot was revoked.
    pub(crate) fn stop(&self, client: u64) {
        let running = self.running.lock();
        running.iter().filter(|r| r.client == client).for_each(|r| r.kill.store(true, Ordering::Relaxed));
    }

    /// Ends what has gone on for longer than `orphan_ms` since its client went (C9); 0: no limit. O(scripts that are not over).
    pub(crate) fn end_orphans(&self, now_ms: u64, orphan_ms: u64) {
        let running = self.running.lock();
        let gone =
            |entry: &&Arc<Running>| entry.gone.as_ref().is_some_and(|gone| gone.load(Ordering::Relaxed));
        for entry in running.iter().filter(gone) {
            let since_ms = entry.gone_ms.load(Ordering::Relaxed);
            if since_ms == 0 {
                entry.gone_ms.store(now_ms.max(1), Ordering::Relaxed);
            } else if orphan_ms > 0
                && now_ms.saturating_sub(since_ms) >= orphan_ms
                && !entry.kill.swap(true, Ordering::Relaxed)
            {
                self.orphans_ended.fetch_add(1, Ordering::Relaxed);
                log::info!(
                    "client {} has gone; its script {} ends: script-orphan-time",
                    entry.client,
                    entry.name
                );
            }
        }
    }

    /// Whether it once took longer than a loop has.
    fn is_long(&self, body: &Body) -> bool {
        let is_long = |name| self.long.lock().contains_key(&name);
        self.has_long.load(Ordering::Acquire) && Name::of(body).is_some_and(is_long)
    }

    fn note_long(&self, body: &Body) {
        let Some(name) = Name::of(body) else { return };
        self.long.lock().entry(name).or_default();
        self.has_long.store(true, Ordering::Release);
    }

    fn forget_long(&self, body: &Body) {
        let Some(name) = Name::of(body) else { return };
        self.long.lock().remove(&name);
    }

    fn roams(&self, body: &Body) -> bool {
        Name::of(body).and_then(|name| self.long.lock().get(&name).copied()).unwrap_or_default()
    }

    fn note_roams(&self, body: &Body, roams: bool) {
        let Some(name) = Name::of(body) else { return };
        if let Some(before) = self.long.lock().get_mut(&name) {
            *before = roams;
        }
    }
}

/// Commits. Err: the race was lost, to whose write that was.
fn settle(server: &Arc<Server>, local: &mut Local, overlay: Overlay, told: &mut Told) -> Result<(), u64> {
    if overlay.is_dirty() {
        stdx::panics::changes();
        match overlay.commit(local.now_ms) {
            Ok(changes) => {
                if let Some(sink) = server.keyspace.sink() {
                    told.tell_effects(sink, changes.lsn);
                }
                server.after(local, changes);
            }
            Err(keyspace::Lost { told, by }) => {
                server.after(local, told);
                return Err(by);
            }
        }
    } else {
        let current = overlay.snapshot().is_current();
        overlay.dispose();
        if !current {
            // What was loaded before a FLUSHDB and what was loaded after it are of two moments.
            return Err(0);
        }
    }
    Ok(())
}

fn send_away(act: &mut Act<'_, '_>, run: ScriptRun) -> Started {
    let job = ScriptJob {
        listed: Some(Listed::new(act.server, &run)),
        run,
        overlay: None,
        commit: None,
        races: Races::new(),
        out: Vec::new(),
        told: Told::default(),
        tally: Tally::default(),
        ended: Ok(()),
        spent: Spent::default(),
        settled: None,
        place: None,
        sign: StopSign::default(),
        gave_way: 0,
        holding: Holding::default(),
        info: act.session.info.clone(),
    };
    act.local.away = true;
    submit(act.server, act.local, Box::new(job));
    Started::Away
}

/// Opens a script's snapshot and gives it to a thread; it waits if too many are open, or in the line of its kind.
pub(crate) fn submit(server: &Arc<Server>, local: &mut Local, mut job: Box<ScriptJob>) {
    // From here on it is another's, and its client waits for it.
    stdx::panics::changes();
    if job.spent.waits.is_none() {
        let lost = job.races.lost > 0;
        let Some(Write::Script(first)) = lines::stand(server, Write::Script(job), lost) else { return };
        job = first;
        job.spent.got_place();
    }
    // It may have waited.
    job.run.now_ms = local.now_ms;
    job.settled = None;
    job.sign = StopSign::default();
    match server.snapshots.open(server, local.id, job.asks(), &mut job.spent.waits) {
        Some(snapshot) => {
            job.spent.got_snapshot();
            job.overlay = Some(Overlay::new(snapshot, job.run.used_ms));
            job.spent.queued_at_ns = stdx::clock::mono_ns();
            server.scripts.submit(server, job);
        }
        None => local.works.wait(Owner::Script(job)),
    }
}

fn running(run: &ScriptRun) -> Arc<Running> {
    let (is_script, is_function) = run.body.has_scripts();
    let mut command: Vec<Vec<u8>> = vec![run.body.name().into_bytes()];
    command.extend(run.keys().iter().chain(run.args().iter()).take(8).map(|a| a[..a.len().min(64)].to_vec()));
    Arc::new(Running {
        client: run.client,
        name: run.body.name(),
        is_script,
        is_function,
        started_ns: stdx::clock::mono_ns(),
        kill: AtomicBool::new(false),
        command,
        gone: run.gone.clone(),
        gone_ms: AtomicU64::new(0),
    })
}

fn run_on_thread(server: &Arc<Server>, lua: &mut LuaState, bench: &mut Bench, job: &mut ScriptJob) {
    let Some(entry) = job.listed.as_ref().map(|listed| listed.entry.clone()) else { return };
    if job.is_killed() {
        job.ended = Err(Halt::Killed);
        return;
    }
    // Since before it was compiled.
    let end_ns = Limit::on_thread(server, &entry, None, job.spent.thread_ns).end_ns;
    let stop = job.sign.stop.clone();
    let (kill, gives_way) = (Some(&entry.kill), Some(&*stop));
    let compiling = Limit { end_ns, kill, gives_way, ..Limit::default() };
    let known = match know_text(server, lua, &mut job.run, compiling) {
        Ok(known) => known,
        Err(halt) => {
            job.ended = Err(halt);
            return;
        }
    };
    if let Err(error) = known {
        let mut out = Reply::new(job.run.resp3);
        out.error(&error.text());
        job.out = out.into_bytes();
        job.ended = Ok(());
    } else if let Some(mut overlay) = job.overlay.take() {
        let mut reader = Reader::new(server, job.run.loop_id, server.scripts.roams(&job.run.body));
        reader.declares(&job.run);
        if let Body::Exec(transaction) = &job.run.body {
            reader.load(&mut overlay, transaction.wanted(server, &job.run));
        }
        let ground = Ground { overlay: &mut overlay, act: None, holding: &mut job.holding, base: 0 };
        let limit = Limit { end_ns, kill, gone: job.run.gone(), gives_way, ..Limit::default() };
        job.out.clear();
        reader.turn.reach(Point::ScriptStart);
        let (ended, told) = run_once(server, lua, &job.run, ground, limit, Some(&mut reader), &mut job.out);
        job.ended = ended;
        job.told = told;
        if job.ended == Err(Halt::Full) {
            // Nothing of it will be told or committed.
            job::discard((std::mem::take(&mut job.told), std::mem::take(&mut job.out)));
        }
        job.info.work_bytes.store(job.holding.held(), Ordering::Relaxed);
        job.tally = std::mem::take(&mut lua.tally);
        server.scripts.note_roams(&job.run.body, reader.roams(&overlay));
        bench.waited(reader.waited_ns.get() + reader.turn.waited_ns());
        reader.turn.reach(Point::ScriptEnd);
        if job.ended.is_ok() && bench.cpu_ns() < SHORT_NS {
            server.scripts.forget_long(&job.run.body);
        }
        if job.ended.is_ok() && overlay.is_dirty() && overlay.len() > job::AT_ONCE {
            let announce = announce(server, &mut job.told);
            let commit = overlay.seal(job.races.age, announce);
            job.races.remember(|| commit.hashes());
            job.commit = Some(commit);
        } else {
            if overlay.is_dirty() {
                // Here, and not on the loop that commits it.
                overlay.adopt_read();
            }
            job.overlay = Some(overlay);
        }
    }
}

/// Compiles a script that came as a mere text. Errors: what is wrong with it, within; or why that was ended.
fn know_text(
    server: &Server,
    lua: &mut LuaState,
    run: &mut ScriptRun,
    limit: Limit<'_>,
) -> Result<Result<(), Error>, Halt> {
    let Body::Text(read_only) = run.body else { return Ok(Ok(())) };
    let (words, gone, turn) = (run.words.clone(), run.gone.clone(), server.turns.enter());
    let limit = Limit { gone: gone.as_deref(), ..limit };
    let mut host = Compiling::new(limit, Some(&turn));
    let asked = crate::actions::scripting::script_of(lua, words.args(), read_only, &mut host);
    if let Some(halt) = host.halt {
        return Err(halt);
    }
    Ok(asked.and_then(|asked| {
        run.short = asked.memory.may_run_short(run.short)?;
        (run.body, run.read_only) = (asked.body, asked.read_only);
        Ok(())
    }))
}

/// Takes a script back from its thread: commits it, or lets it run again. None: not yet done.
pub fn finish(server: &Arc<Server>, local: &mut Local, mut job: Box<ScriptJob>) -> Option<Delivery> {
    if job.changes() && !job.is_killed() && server.pause.stops_writes(local.now_ms) {
        local.works.pause(server, Paused::Script(job));
        return None;
    }
    if job.ended.is_ok() && job.run.settle_some(server, local, &mut job.settled) {
        local.works.push(Work::Finish(Owner::Script(job)));
        return None;
    }
    let overlay = job.overlay.as_ref();
    if let Some(refusal) = overlay.and_then(|overlay| crate::snapshots::refusal(overlay.snapshot())) {
        job.overlay.take().into_iter().for_each(Overlay::dispose);
        job.out = format!("-{refusal}\r\n").into_bytes();
        job::discard(std::mem::take(&mut job.told));
        return deliver(server, local, job);
    }
    match job.ended {
        Err(halt @ (Halt::Killed | Halt::TooLong)) => {
            let why = halt.told(server);
            return deliver_ended(server, local, job, &why);
        }
        Ok(()) if job.is_killed() => return deliver_killed(server, local, job),
        Err(Halt::Full) => {
            let error = Error::work_memory();
            let text = error.text();
            job.out = match job.run.body {
                Body::Exec(_) => {
                    let why = text.strip_prefix("ERR ").unwrap_or(&text);
                    format!("-EXECABORT Transaction discarded because of: {why}\r\n").into_bytes()
                }
                _ => format!("-{text}\r\n").into_bytes(),
            };
            return deliver(server, local, job);
        }
        Err(Halt::Broken) => {
            job.out = format!("-{}\r\n", job::BROKEN).into_bytes();
            return deliver(server, local, job);
        }
        Err(Halt::GivesWay) => return give_way(server, local, job),
        // It could not go on: what it asked for did not come.
        Err(Halt::Elsewhere) => {
            return again(server, local, job, 0);
        }
        Ok(()) if job.run.is_touched() => return deliver_untrue(server, local, job),
        Ok(()) if job.told.is_outdated(server) => {
            job::discard((job.overlay.take(), job.commit.take(), std::mem::take(&mut job.told)));
            return again(server, local, job, 0);
        }
        Ok(()) => {}
    }
    if let Some(commit) = job.commit.take() {
        local.works.push(Work::Commit { commit: Box::new(commit), owner: Owner::Script(job) });
        return None;
    }
    let overlay = job.overlay.take()?;
    if overlay.is_dirty() {
        // Not for mere reads: only a flush makes those start over, and they may know very many keys.
        job.races.remember(|| overlay.hashes());
    }
    match settle(server, local, overlay, &mut job.told) {
        Ok(()) => deliver(server, local, job),
        Err(by) => again(server, local, job, by),
    }
}

/// Gives its place to those who wait and starts over behind them (C8), unless it is of no use any more.
pub(crate) fn give_way(server: &Arc<Server>, local: &mut Local, mut job: Box<ScriptJob>) -> Option<Delivery> {
    job.gave_way = job.sign.gave_way(job.gave_way);
    if job.is_killed() || job.is_forsaken() {
        return end_useless(server, local, job);
    }
    job.overlay.take().into_iter().for_each(Overlay::dispose);
    job::discard((job.commit.take(), std::mem::take(&mut job.told)));
    job.tally.clear();
    job.ended = Ok(());
    submit(server, local, job);
    None
}

/// Ends a script that was killed, or whose client has gone (C9).
pub(crate) fn end_useless(server: &Server, local: &mut Local, job: Box<ScriptJob>) -> Option<Delivery> {
    if job.is_forsaken() && !job.is_killed() {
        server.scripts.orphans_ended.fetch_add(1, Ordering::Relaxed);
    }
    deliver_killed(server, local, job)
}

/// A script was killed: nothing of it has happened (C1).
fn deliver_killed(server: &Server, local: &mut Local, job: Box<ScriptJob>) -> Option<Delivery> {
    let why = Halt::Killed.told(server);
    deliver_ended(server, local, job, &why)
}

/// A script was ended from outside: nothing of it has happened (C1).
fn deliver_ended(server: &Server, local: &mut Local, mut job: Box<ScriptJob>, why: &str) -> Option<Delivery> {
    let before = match job.run.body {
        Body::Exec(_) => "EXECABORT Transaction discarded because of:",
        _ => "ERR",
    };
    job.out = format!("-{before} {why}\r\n").into_bytes();
    // Others may wait for its place.
    job.overlay.take().into_iter().for_each(Overlay::dispose);
    job.tally.clear();
    job::discard((job.commit.take(), std::mem::take(&mut job.told)));
    deliver(server, local, job)
}

/// The answer of an EXEC whose watched keys were touched: nothing of it has happened.
fn deliver_untrue(server: &Server, local: &mut Local, mut job: Box<ScriptJob>) -> Option<Delivery> {
    let mut out = Reply::new(job.run.resp3);
    out.null_array();
    job.out = out.into_bytes();
    job::discard(std::mem::take(&mut job.told));
    job.tally.clear();
    deliver(server, local, job)
}

/// A script is done and committed: the reply, unless there is more to do than a few deeds.
pub(crate) fn deliver(server: &Server, local: &mut Local, mut job: Box<ScriptJob>) -> Option<Delivery> {
    local.count_within(server, &mut job.tally, job.run.client);
    job.run.forget_watched(server, local);
    job.listed = None;
    job.place = None;
    job.races.end();
    // Nearly all that scripts do besides their writes.
    let published = !job.told.deeds.is_empty();
    job.info.work_bytes.store(0, Ordering::Relaxed);
    // Before its share is given back: what waits to be freed is no reason to evict either.
    job.overlay.take().into_iter().for_each(Overlay::dispose);
    let spent = Some(Box::new(job.races.told(Spent { published, ..job.spent })));
    if deeds::do_few(server, &mut job.told) {
        let (bytes, selected) = (std::mem::take(&mut job.out), job.told.selected);
        let _ = job.holding.set(&server.memory.work, bytes.capacity() as u64);
        let share = job.holding.take();
        let (bytes, stream) = assembled::assemble(bytes, Rests::new(), share, Some(&job.info));
        let delivery = Delivery { client: job.run.client, bytes, stream, spent, selected };
        job::discard(job);
        return Some(delivery);
    }
    let ScriptJob { run, out, told, overlay, commit, mut holding, .. } = *job;
    job::discard((overlay, commit));
    let _ = holding.set(&server.memory.work, (out.capacity() + told.bytes) as u64);
    server.send(local.id, Mail::Deeds(Deeds::new(run, (out, 0), told, (spent, holding.take()))));
    None
}

/// A race was lost to whose write that was (`stdx::doing`): the script runs again on a new snapshot, unless it was killed.
pub(crate) fn again(
    server: &Arc<Server>,
    local: &mut Local,
    mut job: Box<ScriptJob>,
    by: u64,
) -> Option<Delivery> {
    if job.is_killed() {
        return deliver_killed(server, local, job);
    }
    if job.run.is_touched() {
        return deliver_untrue(server, local, job);
    }
    job.races.lose_to(server, by, job.spent.thread_ns);
    job.races.lose(&server.keyspace, job.run.client, local.now_ms, job.spent.thread_ns);
    submit(server, local, job);
    None
}

/// What tells the sink of a script's effects.
fn announce(server: &Server, told: &mut Told) -> Option<Announce> {
    server.keyspace.sink()?;
    let keyspace = server.keyspace.clone();
    let mut effects = Told { effects: std::mem::take(&mut told.effects), ..Told::default() };
    Some(Box::new(move |lsn| {
        if let Some(sink) = keyspace.sink() {
            effects.tell_effects(sink, lsn);
        }
    }))
}

/// Performs what a script on a thread may not; `session` is its client's, if that is still there.
pub fn perform(server: &Arc<Server>, local: &mut Local, session: Option<&mut Session>, errand: Errand) {
    let mut out = Reply::new(errand.resp3);
    let args = errand.words.args();
    match (call::resolve(args), session) {
        (Ok(command), Some(session)) => {
            let out = &mut out;
            // Nobody holds locks, and the script's thread waits as long as it takes.
            let (in_script, in_multi, committed) = (true, true, true);
            let mut act = Act { server, local, session, out, view: None, in_script, in_multi, committed };
            let reply = errand.reply.clone();
            return crate::aside::perform_for_script(&mut act, command, args, move |bytes| reply.put(bytes));
        }
        (Ok(_), None) => out.error("ERR the client has gone"),
        (Err(error), _) => out.error(&error.text()),
    }
    errand.reply.put(out.into_bytes());
}

/// This loop's engine.
pub(crate) fn engine<'a>(server: &Server, local: &'a mut Local) -> &'a mut LuaState {
    local.lua.get_or_insert_with(|| Box::new(LuaState::of_loop(server.scripts.code.clone())))
}
