//! Scripts: where they run, what they see, when what they did becomes visible.
//!
//! ```text
//! EVAL ─► inline, over an overlay ─┬─ done within the quantum ─────────► commit ─► reply
//!                                  ├─ longer, or lost races ─► a thread of its own ─► commit in slices ─► reply
//!                                  └─ lost a race ─► again on a new snapshot; after a few, protected (job J3)
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
mod engines;
mod job;
mod outside;
mod quiet;
mod reader;
mod run;
mod running;
mod transaction;

pub(crate) use code::{Change, Found, LuaState, compile_apart};
pub use code::{Code, Kept, Libraries, LibraryCode};
pub use deeds::{Deeds, advance_deeds, waiting_deeds};
pub use job::ScriptJob;
pub(crate) use outside::Outside;
pub(crate) use quiet::{Deadline, Quiet, Short};
pub(crate) use reader::Reader;
pub use running::Running;

use deeds::Deed;
use engines::Engines;
use job::send_away;
use quiet::Compiling;
use run::{Ground, Limit, run_once};
use transaction::Transaction;

use crate::act::Act;
use crate::call::{self, INLINE_STEPS};
use crate::chores::{Collecting, Libraries as Loading};
use crate::mail::{Errand, Mail};
use crate::piece::Delivery;
use crate::pool::Pool;
use crate::reading::{Answer, Around, Asked, ReadKeys};
use crate::session::{ClientInfo, Watch};
use crate::tally::Tally;
use crate::waits::Spent;
use crate::{Local, Server, Session, drive};
use command::effects::List;
use command::places;
use command::table::{self, Run};
use command::{Budget, Caller, Command, Cx, Error};
use keyspace::{Announce, Changes, Chunk, KeyBatches, Keyspace, Overlay, Snapshot, View};
use parking_lot::Mutex;
use resp::{OwnedArgs, Reply};
use script::{Engine, Host, Limits, Sha, Stop};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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

    /// EXEC: what its client watched.
    fn watch(&mut self) -> Option<&mut Watch> {
        match &mut self.body {
            Body::Exec(transaction) => Some(transaction.watch()),
            _ => None,
        }
    }

    /// EXEC: has decided changes of what was watched written.
    fn settle(&mut self, keyspace: &Keyspace, now_ms: u64) -> Vec<Changes> {
        let (mut told, mut last) = (Vec::new(), None);
        if let Some(watch) = self.watch() {
            while watch.settle_some(keyspace, now_ms, &mut last, &mut told) {}
        }
        told
    }
}

/// What a script told the outside, until its commit (C2).
#[derive(Default)]
struct Told {
    deeds: Vec<Deed>,
    /// About what they take.
    bytes: usize,
    /// With their databases.
    effects: Vec<(u32, OwnedArgs)>,
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

    /// What those that follow the sequence are told. It hands its effects over.
    fn announce(&mut self) -> Announce {
        if self.effects.is_empty() {
            return None;
        }
        Some(Arc::new(List(std::mem::take(&mut self.effects))))
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
        act.local.works.push(Box::new(Collecting));
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
        local.works.push(Box::new(Loading));
    }
}

/// Loads some libraries into a loop's engine; true if some are left.
pub(crate) fn load_some_libraries(local: &mut Local) -> bool {
    local.lua.as_mut().is_some_and(|lua| lua.load_some_libraries())
}

/// Runs a script on its loop, again after each lost race; it goes to a thread if that takes too long.
fn run_inline(act: &mut Act<'_, '_>, lua: &mut LuaState, mut run: ScriptRun) -> Started {
    let server = act.server.clone();
    for _ in 0..TRIES {
        let Some(snapshot) = Snapshot::open_short(&server.keyspace) else { break };
        let (mut overlay, mut holding) = (Overlay::new(snapshot, run.used_ms), Holding::default());
        overlay.load(run.db, run.keys().iter());
        let mark = act.out.len();
        let (ended, mut told) = run_for_a_quantum(act, lua, &run, &mut overlay, &mut holding);
        if ended.is_err() {
            act.out.truncate(mark);
            overlay.dispose();
            server.scripts.note_long(&run.body);
            break;
        }
        let written = run.settle(&server.keyspace, act.local.now_ms);
        drive::tell(&server, act.local, written);
        if run.is_touched() {
            act.out.truncate(mark);
            act.out.null_array();
            overlay.dispose();
            forget_watched(act, &mut run);
            return Started::Done;
        }
        let (changes, committed) = settle(act.local.now_ms, overlay, &mut told);
        drive::tell(&server, act.local, changes);
        if committed {
            act.local.count_within(&server, &mut lua.tally, act.session.id);
            forget_watched(act, &mut run);
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

/// Runs a script once over an overlay, as long as a loop has; its reply goes to the client's buffer.
fn run_for_a_quantum(
    act: &mut Act<'_, '_>,
    lua: &mut LuaState,
    run: &ScriptRun,
    overlay: &mut Overlay,
    holding: &mut Holding,
) -> (Result<(), Halt>, Told) {
    let server = act.server.clone();
    let mut spare = Reply::new(act.out.resp3());
    let mut out = OnLoan::of(act.out);
    let until_ns = Some(stdx::clock::mono_ns() + QUANTUM_NS);
    let mut inner = Act {
        server: act.server,
        local: act.local,
        session: act.session,
        out: &mut spare,
        view: None,
        in_script: !matches!(run.body, Body::Exec(_)),
        in_multi: true,
        committed: false,
    };
    let ground = Ground { overlay, outside: Some(&mut inner), holding, base: 0 };
    let limit = Limit { until_ns, ..Limit::default() };
    run_once(&server, lua, run, ground, limit, None, &mut out.bytes)
}

/// EXEC: gives up what its client watched.
fn forget_watched(act: &mut Act<'_, '_>, run: &mut ScriptRun) {
    if let Some(watch) = run.watch().map(std::mem::take) {
        crate::transaction::forget(act.server, act.local, watch);
    }
}

/// Commits; false: the race was lost. Gives what is to be told.
fn settle(now_ms: u64, overlay: Overlay, told: &mut Told) -> (Option<Changes>, bool) {
    if !overlay.is_dirty() {
        // What was loaded before a FLUSHDB and what was loaded after it are of two moments.
        let current = overlay.snapshot().is_current();
        overlay.dispose();
        return (None, current);
    }
    stdx::panics::changes();
    match overlay.commit(now_ms, told.announce()) {
        Ok(changes) => (Some(changes), true),
        Err(keyspace::Lost { told, .. }) => (Some(told), false),
    }
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
        Some(delivery) => act.local.works.push(Box::new(delivery)),
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
