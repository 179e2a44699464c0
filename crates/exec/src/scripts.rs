//! Scripts: where they run, what they see, when what they did becomes visible.
//!
//! ```text
//! EVAL ─► inline, over an overlay ─┬─ done within the quantum ─────────► commit ─► reply
//!                                  ├─ longer, or lost races ─► a thread of its own ─► commit in slices ─► reply
//!                                  ├─ lost a race ─► again on a new snapshot; after a few, protected (job.rs J3)
//!                                  └─ wants to change the keyspace as a whole ─► under all locks
//! ```
//!
//! - C1: a script over an overlay has applied nothing before its commit, so it can be dropped and run again at any time:
//!   at the end of the quantum, at SCRIPT KILL, after a lost race. Nobody is ever told BUSY.
//! - C2: what it tells the outside (PUBLISH, the log) is kept until after the commit and happens once.
//! - C3: a script's reads are all at one snapshot; if it wrote, the commit checks that none of them changed since.
//! - C4: a script that once needed a thread is remembered, and goes there at once.
//! - C5: script threads take no shard lock: loops read keys for them.
//! - C6: libraries are loaded into each engine from their code; what a library keeps in upvalues is per engine, and not
//!   part of the dataset.

mod run;

pub(crate) use run::Reader;
use run::{Ground, run_once};

use crate::actions::Act;
use crate::call::{self, INLINE_STEPS};
use crate::job::{self, Delivery, Races};
use crate::mail::{Answer, Around, Mail, ReadKeys};
use crate::waits::Spent;
use crate::waits::request::Bench;
use crate::works::{Owner, Work};
use crate::{Local, Server};
use command::table::{self, Run};
use command::{Budget, Caller, Command, Cx, Error};
use keyspace::{Announce, Chunk, Commit, Overlay, Snapshot, View};
use parking_lot::{Condvar, Mutex};
use resp::{OwnedArgs, Reply};
use script::{Engine, Host, Limits, Sha, Stop};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stdx::hash::hash_bytes;
use stdx::points::Point;
use stdx::turns::Turn;

/// Nanoseconds a script may take on a loop before it goes to a thread.
const QUANTUM_NS: u64 = 100_000;
/// Lost races before a script that runs inline goes to a thread.
const TRIES: u32 = 4;
/// Keys a script may declare to be run inline.
const MANY_KEYS: usize = 200;
/// Keys read along with one that a long script asks for: some 20 µs of its loop.
const NEAR: usize = 200;
/// Keys of a database up to which a script may look at all of them on a loop.
const SMALL_WHOLE: usize = 500;
/// Threads for long scripts; more of them wait their turn.
const THREADS: usize = 32;

/// What is to be run.
#[derive(Clone)]
pub enum Body {
    Script(Sha, Arc<[u8]>),
    Function(String),
}

/// One EVAL or FCALL.
pub struct ScriptRun {
    pub body: Body,
    pub keys: OwnedArgs,
    pub args: OwnedArgs,
    pub db: usize,
    pub client: u64,
    pub resp3: bool,
    pub read_only: bool,
    pub now_ms: u64,
    pub random: u64,
    pub loop_id: usize,
}

/// A script on its way through a thread of its own.
pub struct ScriptJob {
    pub run: ScriptRun,
    overlay: Option<Overlay>,
    /// What it did, if that is much: to be committed in pieces.
    commit: Option<Commit>,
    races: Races,
    out: Vec<u8>,
    told: Told,
    ended: Result<(), Halt>,
    spent: Spent,
}

/// What a script told the outside, until its commit (C2).
#[derive(Default)]
struct Told {
    published: Vec<(bool, Vec<u8>, Vec<u8>)>,
    logged: Vec<(i32, Vec<u8>)>,
    effects: Vec<OwnedArgs>,
}

/// Why a run did not end by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Halt {
    /// It takes longer than a loop has.
    Elsewhere,
    /// It needs the keyspace as a whole, or an action only a loop can perform.
    Whole,
    Killed,
}

/// A script that runs on a thread or under all locks, as SCRIPT KILL and FUNCTION STATS see it.
pub struct Running {
    pub name: String,
    pub is_function: bool,
    pub started_ns: u64,
    pub kill: AtomicBool,
    pub command: Vec<Vec<u8>>,
}

/// Longer texts are hashed each time: comparing them takes a while, too.
const LAST_MAX: usize = 16 * 1024;
/// Overlays of so many keys are dropped where they are: the reclaimer would have to be woken for each.
const FEW_KEYS: usize = 32;

/// Drops what a script ran over.
fn drop_overlay(overlay: Overlay) {
    // Large values in it go to the reclaimer by themselves.
    if overlay.len() > FEW_KEYS {
        job::discard(overlay);
    }
}

/// What the server knows about scripts.
#[derive(Default)]
pub struct Scripts {
    bodies: Mutex<HashMap<Sha, Arc<[u8]>>>,
    long: Mutex<HashSet<Name>>,
    has_long: AtomicBool,
    pub running: Mutex<Vec<Arc<Running>>>,
    pub libraries: Mutex<Libraries>,
    version: AtomicU64,
    threads: Arc<Threads>,
}

/// Code of every library, by name.
#[derive(Default)]
pub struct Libraries {
    pub code: BTreeMap<String, Arc<[u8]>>,
    /// Function name to library name, with what the function declares.
    pub functions: BTreeMap<String, (String, Option<String>, script::ScriptFlags)>,
}

#[derive(Default)]
struct Threads {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Box<ScriptJob>>,
    idle: usize,
    threads: usize,
    ended: bool,
}

/// A Lua engine and the version of the libraries it has loaded.
pub struct LuaState {
    engine: Engine,
    version: u64,
    functions: HashMap<String, script::Function>,
    /// The script that came last, so that its text need not be hashed again.
    last: Option<(Arc<[u8]>, Sha, script::ScriptFlags)>,
}

impl LuaState {
    fn new() -> LuaState {
        LuaState { engine: Engine::new(Limits::default()), version: 0, functions: HashMap::new(), last: None }
    }

    /// Bytes held for scripts, and for functions.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let functions = self.engine.functions_memory_used();
        (self.engine.memory_used().saturating_sub(functions), functions)
    }

    /// Brings the libraries up to date (C6). Cost: O(1) unless they changed.
    fn sync(&mut self, scripts: &Scripts) {
        let version = scripts.version.load(Ordering::Acquire);
        if self.version == version {
            return;
        }
        let code: Vec<_> = scripts.libraries.lock().code.values().cloned().collect();
        self.engine.flush_functions();
        self.functions.clear();
        for code in code {
            // It was loaded once to be accepted; that it fails now would be the engine's memory limit.
            if let Ok(library) = self.engine.load_library(&code, &mut Silent) {
                self.functions.extend(library.functions.into_iter().map(|f| (f.name.clone(), f)));
            }
        }
        self.version = version;
    }
}

/// A host for loading libraries: nothing may be called then.
struct Silent;

impl Host for Silent {
    fn call(&mut self, _: &[&[u8]], _: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b"-ERR redis.call can only be called inside a script invocation\r\n");
    }
    fn log(&mut self, level: i32, message: &[u8]) {
        write_log(level, message);
    }
    fn acl_check(&mut self, _: &[&[u8]]) -> Result<bool, String> {
        Ok(true)
    }
    fn interrupt(&mut self) -> Option<Stop> {
        None
    }
}

/// Loading a library must end: it has half a second, as in Redis. Holds the monotonic clock of the end.
pub(crate) struct Deadline(pub u64);

impl Host for Deadline {
    fn call(&mut self, args: &[&[u8]], resp3: bool, out: &mut Vec<u8>) {
        Silent.call(args, resp3, out);
    }
    fn log(&mut self, level: i32, message: &[u8]) {
        write_log(level, message);
    }
    fn acl_check(&mut self, _: &[&[u8]]) -> Result<bool, String> {
        Ok(true)
    }
    fn interrupt(&mut self) -> Option<Stop> {
        (stdx::clock::mono_ns() > self.0).then_some(Stop::Deadline)
    }
}

fn write_log(level: i32, message: &[u8]) {
    let text = String::from_utf8_lossy(message);
    match level {
        0 => log::debug!("{text}"),
        1 | 2 => log::info!("{text}"),
        _ => log::warn!("{text}"),
    }
}

impl Scripts {
    pub fn add(&self, sha: Sha, body: &[u8]) -> Arc<[u8]> {
        self.bodies.lock().entry(sha).or_insert_with(|| body.into()).clone()
    }

    pub fn get(&self, sha: &Sha) -> Option<Arc<[u8]>> {
        self.bodies.lock().get(sha).cloned()
    }

    /// SCRIPT FLUSH.
    pub fn flush(&self) {
        let bodies = std::mem::take(&mut *self.bodies.lock());
        stdx::reclaim::defer(bodies.len() * 256, move || drop(bodies));
        self.long.lock().clear();
        self.has_long.store(false, Ordering::Release);
    }

    pub fn len(&self) -> usize {
        self.bodies.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the scripts' texts. O(scripts).
    pub fn bytes(&self) -> usize {
        self.bodies.lock().values().map(|body| body.len() + 64).sum()
    }

    /// Says that the libraries changed.
    pub fn touch_libraries(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    fn submit(&self, server: &Arc<Server>, job: Box<ScriptJob>) {
        let mut queue = self.threads.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle < queue.jobs.len() && queue.threads < THREADS {
            let (server, threads) = (Arc::downgrade(server), self.threads.clone());
            let spawned =
                std::thread::Builder::new().name(format!("script-{}", queue.threads)).spawn(move || {
                    stdx::threads::demote();
                    let mut lua = LuaState::new();
                    let mut bench = Bench::default();
                    while let Some(mut job) = threads.take() {
                        let Some(server) = server.upgrade() else { return };
                        bench.begin(&mut job.spent);
                        run_on_thread(&server, &mut lua, &mut bench, job);
                        stdx::reclaim::flush();
                    }
                });
            if spawned.is_ok() {
                queue.threads += 1;
            }
        }
        self.threads.wake.notify_one();
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        self.threads.queue.lock().ended = true;
        self.threads.wake.notify_all();
    }
}

impl Threads {
    fn take(&self) -> Option<Box<ScriptJob>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.ended {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue.idle += 1;
            self.wake.wait(&mut queue);
            queue.idle -= 1;
        }
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

/// Runs a script for a client: inline first, elsewhere if it is long. See the module.
pub(crate) fn start(act: &mut Act<'_, '_>, run: ScriptRun) -> Started {
    if act.view.is_some() {
        run_within(act, &run);
        return Started::Done;
    }
    let server = act.server.clone();
    let guarded = server.keyspace.has_guards() && !run.read_only;
    let holder = if guarded { server.keyspace.guarded(run.keys.args().iter(), run.now_ms) } else { None };
    if call::note_guard(act.local, holder) {
        return Started::Later;
    }
    if run.keys.len() > MANY_KEYS || server.scripts.is_long(&run.body) {
        return send_away(act, run);
    }
    let mut lua = act.local.lua.take().unwrap_or_else(|| Box::new(LuaState::new()));
    let started = run_inline(act, &mut lua, run);
    act.local.lua = Some(lua);
    started
}

fn run_inline(act: &mut Act<'_, '_>, lua: &mut LuaState, run: ScriptRun) -> Started {
    let server = act.server.clone();
    for _ in 0..TRIES {
        let Some(snapshot) = Snapshot::open(&server.keyspace) else { break };
        let mut overlay = Overlay::new(snapshot);
        overlay.load(run.db, run.keys.args().iter());
        let mut out = act.out.take();
        let mark = out.len();
        let until = stdx::clock::mono_ns() + QUANTUM_NS;
        let ground = Ground::Overlay(&mut overlay);
        let (ended, told) = run_once(&server, lua, &run, ground, Some(until), None, None, &mut out);
        act.out.swap(&mut out);
        if let Err(halt) = ended {
            act.out.truncate(mark);
            drop_overlay(overlay);
            if halt == Halt::Whole {
                return under_all_locks(act, lua, run);
            }
            server.scripts.note_long(&run.body);
            break;
        }
        if settle(&server, act.local, &run, overlay, told) {
            return Started::Done;
        }
        act.out.truncate(mark);
    }
    send_away(act, run)
}

/// What a script or function is known by.
#[derive(PartialEq, Eq, Hash)]
enum Name {
    Script(Sha),
    Function(String),
}

impl Name {
    fn of(body: &Body) -> Name {
        match body {
            Body::Script(sha, _) => Name::Script(*sha),
            Body::Function(name) => Name::Function(name.clone()),
        }
    }
}

impl Scripts {
    /// Whether it once took longer than a loop has.
    fn is_long(&self, body: &Body) -> bool {
        self.has_long.load(Ordering::Acquire) && self.long.lock().contains(&Name::of(body))
    }

    fn note_long(&self, body: &Body) {
        self.long.lock().insert(Name::of(body));
        self.has_long.store(true, Ordering::Release);
    }
}

fn name_of(body: &Body) -> String {
    match body {
        Body::Script(sha, _) => String::from_utf8_lossy(&sha.hex()).into_owned(),
        Body::Function(name) => format!("function {name}"),
    }
}

/// Commits and tells; false if the race was lost.
fn settle(server: &Arc<Server>, local: &mut Local, run: &ScriptRun, overlay: Overlay, told: Told) -> bool {
    if overlay.is_dirty() {
        match overlay.commit(local.now_ms) {
            Ok(changes) => {
                if let Some(sink) = server.keyspace.sink() {
                    told.effects.iter().for_each(|e| sink.effect(changes.lsn, run.db, &mut e.args().iter()));
                }
                server.after(local, changes);
            }
            Err(keyspace::Lost(told)) => {
                server.after(local, told);
                return false;
            }
        }
    } else {
        let current = overlay.snapshot().is_current();
        drop_overlay(overlay);
        if !current {
            // What was loaded before a FLUSHDB and what was loaded after it are of two moments.
            return false;
        }
    }
    tell(server, told);
    true
}

fn tell(server: &Server, told: Told) {
    for (level, message) in told.logged {
        write_log(level, &message);
    }
    for (shard, channel, message) in told.published {
        server.pubsub.publish(server, shard, &channel, || crate::pubsub::Shared::Own((&*message).into()));
    }
}

fn send_away(act: &mut Act<'_, '_>, run: ScriptRun) -> Started {
    let job = ScriptJob {
        run,
        overlay: None,
        commit: None,
        races: Races::new(),
        out: Vec::new(),
        told: Told::default(),
        ended: Ok(()),
        spent: Spent::default(),
    };
    act.local.away = true;
    submit(act.server, act.local, Box::new(job));
    Started::Away
}

/// Opens a script's snapshot and gives it to a thread; it waits if too many are open.
pub(crate) fn submit(server: &Arc<Server>, local: &mut Local, mut job: Box<ScriptJob>) {
    match Snapshot::open(&server.keyspace) {
        Some(snapshot) => {
            job.overlay = Some(Overlay::new(snapshot));
            job.spent.queued_at_ns = stdx::clock::mono_ns();
            server.scripts.submit(server, job);
        }
        None => local.works.wait(Owner::Script(job)),
    }
}

fn running(run: &ScriptRun) -> Arc<Running> {
    let mut command: Vec<Vec<u8>> = vec![name_of(&run.body).into_bytes()];
    command.extend(
        run.keys.args().iter().chain(run.args.args().iter()).take(8).map(|a| a[..a.len().min(64)].to_vec()),
    );
    Arc::new(Running {
        name: name_of(&run.body),
        is_function: matches!(run.body, Body::Function(_)),
        started_ns: stdx::clock::mono_ns(),
        kill: AtomicBool::new(false),
        command,
    })
}

fn run_on_thread(server: &Arc<Server>, lua: &mut LuaState, bench: &mut Bench, mut job: Box<ScriptJob>) {
    let entry = running(&job.run);
    server.scripts.running.lock().push(entry.clone());
    if let Some(mut overlay) = job.overlay.take() {
        let keys = job.run.keys.args().iter().map(|key| (job.run.db, key.into())).collect();
        let mut reader = Reader::new(server, job.run.loop_id);
        reader.load(&mut overlay, keys);
        let ground = Ground::Overlay(&mut overlay);
        job.out.clear();
        reader.turn.reach(Point::ScriptStart);
        let (ended, told) =
            run_once(server, lua, &job.run, ground, None, Some(&entry.kill), Some(&mut reader), &mut job.out);
        job.ended = ended;
        job.told = told;
        bench.waited(reader.waited_ns.get() + reader.turn.waited_ns());
        reader.turn.reach(Point::ScriptEnd);
        if job.ended.is_ok() && overlay.len() > job::AT_ONCE && overlay.is_dirty() && !overlay.flushes() {
            let announce = announce(server, &job.run, &mut job.told);
            let commit = overlay.seal(job.races.age, announce);
            job.races.remember(|| commit.hashes());
            job.commit = Some(commit);
        } else {
            job.overlay = Some(overlay);
        }
    }
    server.scripts.running.lock().retain(|r| !Arc::ptr_eq(r, &entry));
    let command = if matches!(job.run.body, Body::Script(..)) { "eval" } else { "fcall" };
    bench.end(&mut job.spent, job.run.client, command);
    server.send(job.run.loop_id, Mail::Script(job));
}

/// Takes a script back from its thread: commits it, or lets it run again. None: not yet done.
pub fn finish(server: &Arc<Server>, local: &mut Local, mut job: Box<ScriptJob>) -> Option<Delivery> {
    match job.ended {
        Err(Halt::Killed) => {
            job.out = b"-ERR Error running script: Script killed by user with SCRIPT KILL.\r\n".to_vec();
            job.told = Told::default();
            return Some(deliver(server, job));
        }
        Err(_) => {
            job.out = locked_on_loop(server, local, &job.run);
            job.told = Told::default();
            return Some(deliver(server, job));
        }
        Ok(()) => {}
    }
    if let Some(commit) = job.commit.take() {
        local.works.push(Work::Commit { commit: Box::new(commit), owner: Owner::Script(job) });
        return None;
    }
    let overlay = job.overlay.take()?;
    job.races.remember(|| overlay.hashes());
    let told = std::mem::take(&mut job.told);
    if settle(server, local, &job.run, overlay, told) {
        return Some(deliver(server, job));
    }
    again(server, local, job);
    None
}

/// A script is done and committed: what it told the outside is told, the reply is ready.
pub(crate) fn deliver(server: &Server, mut job: Box<ScriptJob>) -> Delivery {
    tell(server, std::mem::take(&mut job.told));
    let spent = Some(Spent { lost: job.races.lost, ..job.spent });
    let bytes = std::mem::take(&mut job.out);
    let delivery = Delivery { client: job.run.client, bytes, stream: None, spent };
    job::discard(job);
    delivery
}

/// A race was lost: the script runs again on a new snapshot.
pub(crate) fn again(server: &Arc<Server>, local: &mut Local, mut job: Box<ScriptJob>) {
    job.races.lose(&server.keyspace, job.run.client, local.now_ms);
    submit(server, local, job);
}

/// What tells the sink of a script's effects.
fn announce(server: &Server, run: &ScriptRun, told: &mut Told) -> Option<Announce> {
    server.keyspace.sink()?;
    let (keyspace, db, effects) = (server.keyspace.clone(), run.db, std::mem::take(&mut told.effects));
    Some(Box::new(move |lsn| {
        if let Some(sink) = keyspace.sink() {
            effects.iter().for_each(|e| sink.effect(lsn, db, &mut e.args().iter()));
        }
    }))
}

/// The last resort for a script whose client's session is not at hand.
fn locked_on_loop(server: &Arc<Server>, local: &mut Local, run: &ScriptRun) -> Vec<u8> {
    let entry = running(run);
    server.scripts.running.lock().push(entry.clone());
    let mut lua = local.lua.take().unwrap_or_else(|| Box::new(LuaState::new()));
    let mut out = Vec::new();
    let mut view = View::whole(&server.keyspace, run.db, local.now_ms);
    view.settle_all();
    let ground = Ground::Whole(&mut view, None);
    let (ended, told) = run_once(server, &mut lua, run, ground, None, Some(&entry.kill), None, &mut out);
    let changes = view.finish();
    local.lua = Some(lua);
    server.scripts.running.lock().retain(|r| !Arc::ptr_eq(r, &entry));
    conclude(server, local, run, changes, told);
    match ended {
        Ok(()) => out,
        Err(Halt::Killed) => {
            b"-ERR Error running script: Script killed by user with SCRIPT KILL.\r\n".to_vec()
        }
        Err(_) => b"-ERR this command can not be used in a script that runs for long\r\n".to_vec(),
    }
}

fn conclude(
    server: &Arc<Server>,
    local: &mut Local,
    run: &ScriptRun,
    changes: keyspace::Changes,
    told: Told,
) {
    if let Some(sink) = server.keyspace.sink() {
        told.effects.iter().for_each(|e| sink.effect(changes.lsn, run.db, &mut e.args().iter()));
    }
    server.after(local, changes);
    tell(server, told);
}

/// Runs a script with all shards locked: it sees the keyspace as a whole, and nobody else runs.
fn under_all_locks(act: &mut Act<'_, '_>, lua: &mut LuaState, run: ScriptRun) -> Started {
    let server = act.server.clone();
    let keyspace = server.keyspace.clone();
    let entry = running(&run);
    server.scripts.running.lock().push(entry.clone());
    let mut out = act.out.take();
    let mark = out.len();
    let mut view = View::whole(&keyspace, run.db, act.local.now_ms);
    view.settle_all();
    let mut spare = Reply::new(act.out.resp3());
    let mut inner = Act {
        server: act.server,
        local: act.local,
        session: act.session,
        out: &mut spare,
        view: None,
        in_script: true,
        in_multi: true,
    };
    let ground = Ground::Whole(&mut view, Some(&mut inner));
    let (ended, told) = run_once(&server, lua, &run, ground, None, Some(&entry.kill), None, &mut out);
    let changes = view.finish();
    act.out.swap(&mut out);
    server.scripts.running.lock().retain(|r| !Arc::ptr_eq(r, &entry));
    if ended.is_err() {
        act.out.truncate(mark);
        act.out.error("ERR Error running script: Script killed by user with SCRIPT KILL.");
    }
    conclude(&server, act.local, &run, changes, told);
    Started::Done
}

/// Runs a script inside EXEC, on the view EXEC holds.
fn run_within(act: &mut Act<'_, '_>, run: &ScriptRun) {
    let server = act.server.clone();
    let Some(view) = act.view.take() else { return };
    let mut lua = act.local.lua.take().unwrap_or_else(|| Box::new(LuaState::new()));
    let mut out = act.out.take();
    let mut spare = Reply::new(act.out.resp3());
    let mut inner = Act {
        server: act.server,
        local: act.local,
        session: act.session,
        out: &mut spare,
        view: None,
        in_script: true,
        in_multi: true,
    };
    let ground = Ground::Whole(&mut *view, Some(&mut inner));
    let (_, told) = run_once(&server, &mut lua, run, ground, None, None, None, &mut out);
    act.out.swap(&mut out);
    act.local.lua = Some(lua);
    view.select(run.db);
    if let Some(sink) = server.keyspace.sink() {
        told.effects.iter().for_each(|e| sink.effect(view.changes().lsn, run.db, &mut e.args().iter()));
    }
    tell(&server, told);
    act.view = Some(view);
}

/// Compiles a script in this loop's engine and keeps its text.
pub(crate) fn compile(
    server: &Server,
    local: &mut Local,
    body: &[u8],
) -> Result<(Sha, Arc<[u8]>, script::ScriptFlags), String> {
    let lua = local.lua.get_or_insert_with(|| Box::new(LuaState::new()));
    if let Some((known, sha, flags)) = &lua.last
        && **known == *body
        && lua.engine.has(sha)
        && server.scripts.get(sha).is_some()
    {
        return Ok((*sha, known.clone(), *flags));
    }
    let sha = lua.engine.load(body)?;
    let flags = lua.engine.flags(&sha).unwrap_or_default();
    let body = server.scripts.add(sha, body);
    if body.len() <= LAST_MAX {
        lua.last = Some((body.clone(), sha, flags));
    }
    Ok((sha, body, flags))
}
