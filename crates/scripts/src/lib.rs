//! Scripts: where they run, which keys they see, and when their changes become visible.
//!
//! ```text
//! EVAL ─► inline, over an overlay ─┬─ done within the quantum ─────────► commit ─► reply
//!                                  ├─ longer, or lost races ─► a thread of its own ─► commit in slices ─► reply
//!                                  └─ lost a race ─► again on a new snapshot; after a few, protected (job J3)
//! ```
//!
//! - C1: a script over an overlay has applied nothing before its commit. So it can be dropped and run again
//!   at any time: at the end of the quantum, at SCRIPT KILL, after a lost race. No client is ever told BUSY.
//! - C2: messages, and lines for the server's log, are kept until after the commit and happen once
//!   (`deferred.rs`). Writes are told to the append-only log, and libraries changed, with the commit (`code.rs`
//!   K6).
//! - C3: all reads of a script are at one snapshot. If it wrote, the commit checks that none of the keys it
//!   read has changed since.
//! - C4: a script that once needed a thread is remembered, and goes there at once until it proves short
//!   there. A loop that others interrupt makes any script look long.
//! - C5: script threads take no shard lock: loops read keys for them.
//! - C7: a script can be killed until its commit is decided, wherever it is: waiting for a thread, running,
//!   or between two attempts. A script that only reads ends the same way when its client goes.
//! - C8: a script whose place others wait for gives it up and starts over behind them
//!   (`snapshots/places.rs`).
//! - C9: a script whose client has gone goes on for `script-orphan-time`, and only while no work waits for
//!   its place. A script whose client was killed ends at once.
//! - C6: libraries are loaded into each engine from their code. Upvalues of a library are per engine, and not
//!   part of the dataset.
//!
//! A loop runs a script inline itself, and does the deferred effects (exec, `eval.rs` and `deferred.rs`).
#![forbid(unsafe_code)]

mod answers;
mod asked;
mod code;
mod deferred;
mod engines;
mod job;
pub mod libraries;
mod outside;
mod quiet;
mod reader;
mod registered;
mod run;
mod running;
mod transaction;

pub use answers::{Answers, Spliced};
pub use asked::*;
pub use code::{Change, Code, Found, Incoming, Kept, LuaState, compile_apart};
pub use deferred::{Committed, Deferred, DeferredEffect, Doing, Letter, do_few, say};
pub use job::ScriptJob;
pub use outside::{House, Outside, Rows};
pub use quiet::{Quiet, Short};
pub use reader::Request;
pub use registered::{Libraries, LibraryCode, Registered};
pub use run::{Ground, Limit, run_once};
pub use running::Running;
pub use transaction::Transaction;

use engines::Engines;
use quiet::Compiling;
use reader::Reader;

use command::effects::List;
use command::facts;
use command::places;
use command::reads::Reads;
use command::table::{self, Run};
use command::{Budget, Caller, Command, Cx, Error, INLINE_STEPS, resolve};
use config::Config;
use keyspace::{Announce, Beside, Changes, Chunk, KeyBatches, Keyspace, Overlay, Snapshot, View};
use observe::ClientInfo;
use observe::tally::Tally;
use observe::waits::Spent;
use parking_lot::Mutex;
use pubsub::PubSub;
use resp::{OwnedArgs, Reply};
use script::{Engine, Host, Limits, Sha, Stop};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use stdx::budget::Holding;
use stdx::clock::Ticker;
use stdx::hash::hash_bytes;
use stdx::points::Point;
use stdx::turns::Turn;
use work::Work;
use work::pool::Pool;
use work::queue::Queue;
use work::reading::{Answer, Around, Asked as AskedKeys, ReadKeys};
use work::watch::Watch;

/// Nanoseconds that a script may take on a loop before it goes to a thread.
const QUANTUM_NS: u64 = 100_000;
/// CPU time of a run on a thread after which a script runs inline again.
const SHORT_NS: u64 = QUANTUM_NS / 2;
/// Number of lost races after which a script that runs inline goes to a thread.
pub const TRIES: u32 = 4;
/// Largest number of declared keys of a script that runs inline.
const MANY_KEYS: usize = 200;
/// Largest number of words of a script that runs inline: each takes up to a microsecond.
const MANY_WORDS: usize = 256;
/// Largest number of bytes of these words: Lua hashes each.
const MANY_BYTES: usize = 64 * 1024;
/// Requests for keys that are answered without neighbours: a script's first ones, and one more for each so
/// many keys of the database.
const ALONE: usize = 8;
const FAIR: usize = 1_000;
/// The number of neighbours of a key that are read with it: at the start, and at most.
const NEAR: usize = 200;
const NEAR_MAX: usize = 16 * 1024;
/// Largest number of keys of a database that a script may look at as a whole on a loop.
const SMALL_WHOLE: usize = 500;
/// Largest number of threads for long scripts. Further scripts wait their turn.
const THREADS: usize = keyspace::MAX_LONG;

/// The code to run.
pub enum Body {
    Script(Sha, Arc<Kept>),
    /// A script that a thread has to compile first, and whether it came by EVAL_RO.
    Text(bool),
    Function(String),
    /// The commands of an EXEC.
    Exec(Box<Transaction>),
}

impl Body {
    /// Name of the command, for clients that waited for it.
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

    /// Whether SCRIPT KILL ends it, and whether FUNCTION KILL does.
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
    /// The words of the command: name, script, number of keys, keys, arguments. They are never copied if they
    /// are large.
    pub words: Arc<OwnedArgs>,
    /// Number of keys that it declares.
    pub declared: usize,
    pub db: usize,
    pub client: u64,
    /// The client's user, who must be allowed each call.
    pub user: acl::Identity,
    pub resp3: bool,
    pub read_only: bool,
    /// Memory is short, and it did not declare that it may run nevertheless.
    pub short: bool,
    pub now_ms: u64,
    /// How its client looks at keys.
    pub look: keyspace::Look,
    pub random: u64,
    pub loop_id: usize,
    /// Set when its client goes. A script that only reads is of no use then. `None`: another run handles
    /// that.
    pub gone: Option<Arc<AtomicBool>>,
    /// Its client keeps copies of what it reads.
    pub reads: bool,
    /// The memory that it takes. That of the primary's transactions is not limited: they cannot be refused.
    pub budget: Arc<stdx::budget::Budget>,
}

/// Words of a command before the keys it declares.
const BEFORE_KEYS: usize = 3;

impl ScriptRun {
    #[inline]
    pub fn keys(&self) -> resp::Args<'_> {
        self.words.args().from(BEFORE_KEYS).to(self.declared)
    }

    fn args(&self) -> resp::Args<'_> {
        self.words.args().from(BEFORE_KEYS + self.declared)
    }

    /// Whether its words are too many for a loop even to hand over. O(words), few of them.
    pub fn is_wide(&self) -> bool {
        let bytes = || self.keys().iter().chain(self.args().iter()).map(<[u8]>::len).sum::<usize>();
        self.declared > MANY_KEYS || self.words.len() > MANY_WORDS || bytes() > MANY_BYTES
    }

    /// The flag that is set once the answer is not wanted. `None`: the script has to run nevertheless.
    fn gone(&self) -> Option<&AtomicBool> {
        self.gone.as_deref().filter(|_| self.read_only)
    }

    /// EXEC: whether a watched key was touched.
    #[inline]
    pub fn is_touched(&self) -> bool {
        matches!(&self.body, Body::Exec(transaction) if transaction.is_touched())
    }

    /// EXEC: the keys that its client watched.
    #[inline]
    pub fn watch(&mut self) -> Option<&mut Watch> {
        match &mut self.body {
            Body::Exec(transaction) => Some(transaction.watch()),
            _ => None,
        }
    }

    /// EXEC: folds decided changes of watched keys.
    pub fn settle(&mut self, keyspace: &Keyspace, now_ms: u64) -> Vec<Changes> {
        let (mut told, mut last) = (Vec::new(), None);
        if let Some(watch) = self.watch() {
            while watch.settle_some(keyspace, now_ms, &mut last, &mut told) {}
        }
        told
    }
}

/// A script's messages and effects for the outside, kept until its commit (C2).
#[derive(Default)]
pub struct Told {
    pub deferred: Vec<DeferredEffect>,
    /// About the bytes that they take.
    bytes: usize,
    /// The effects with their databases.
    effects: Vec<(u32, OwnedArgs)>,
    /// EXEC: the database that its client is left in.
    pub selected: Option<usize>,
    /// EXEC: the version of the libraries it began to change.
    drafted_at: Option<u64>,
    /// EXEC: its changes of libraries, made with its commit.
    libraries: Option<Box<dyn Beside>>,
    /// Keys it has read, if its client wants to know.
    pub reads: Reads,
}

impl Told {
    /// Whether it changed libraries that others have changed since.
    fn is_outdated(&self, code: &Code) -> bool {
        self.drafted_at.is_some_and(|version| version != code.version())
    }

    /// Takes the messages and effects of a later command.
    fn append(&mut self, mut next: Told) {
        self.deferred.append(&mut next.deferred);
        self.bytes += next.bytes;
        self.effects.append(&mut next.effects);
        self.reads.append(std::mem::take(&mut next.reads));
    }

    /// Hands the effects over, for the log and replicas.
    fn announce(&mut self) -> Announce {
        if self.effects.is_empty() {
            return None;
        }
        Some(Arc::new(List(std::mem::take(&mut self.effects))))
    }
}

/// The reason why a run did not end by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Halt {
    /// It takes longer than a loop allows.
    Elsewhere,
    Killed,
    /// `script-max-time` is over.
    TooLong,
    /// It panicked.
    Broken,
    /// Others wait for its place (C8).
    GivesWay,
    /// It needs more memory than the budget of work has.
    Full,
}

impl Halt {
    /// The reason for which the engine is stopped.
    fn stop(self) -> Stop {
        match self {
            Halt::Killed => Stop::Killed,
            Halt::TooLong => Stop::Deadline,
            Halt::Elsewhere | Halt::Broken | Halt::GivesWay | Halt::Full => Stop::Elsewhere,
        }
    }

    /// The error for a client whose script was ended from outside.
    fn told(self, config: &Config) -> String {
        match self {
            Halt::TooLong => {
                let ms = config.live.script_max_ms.get();
                format!("Error running script: script-max-time exceeded: {ms} ms")
            }
            _ => String::from("Error running script: Script killed by user with SCRIPT KILL."),
        }
    }
}

/// The state of all scripts of a server, with the parts of the server that they use.
pub struct Scripts {
    pub code: Arc<Code>,
    keyspace: Arc<Keyspace>,
    config: Arc<Config>,
    pubsub: Arc<PubSub>,
    work: Arc<Work>,
    /// Whether any keys are rows of a database. It may be set when none are.
    any_rows: Arc<AtomicBool>,
    acl: Arc<acl::Acl>,
    house: Box<dyn House>,
    /// Scripts that once took longer than a loop allows, and whether they read a good part of all keys in
    /// their last run.
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

/// The log level of a script's level.
fn log_level(level: i32) -> log::Level {
    match level {
        0 => log::Level::Debug,
        1 | 2 => log::Level::Info,
        _ => log::Level::Warn,
    }
}

impl Scripts {
    /// Makes the state, without scripts yet. `any_rows` says whether any keys are rows of a database; it may
    /// be set when none are.
    pub fn new(
        work: Arc<Work>,
        pubsub: Arc<PubSub>,
        any_rows: Arc<AtomicBool>,
        acl: Arc<acl::Acl>,
        house: Box<dyn House>,
    ) -> Arc<Scripts> {
        let code = Arc::<Code>::default();
        code.take_from(&work.budget);
        Arc::new(Scripts {
            code,
            keyspace: work.keyspace.clone(),
            config: work.observe.config.clone(),
            pubsub,
            work,
            any_rows,
            acl,
            house,
            long: Mutex::default(),
            has_long: AtomicBool::new(false),
            running: Mutex::default(),
            threads: Pool::new("script", THREADS),
            engines: Arc::default(),
            orphans_ended: AtomicU64::new(0),
        })
    }

    /// Whether a key may be a row of a database.
    #[inline]
    fn may_have_rows(&self) -> bool {
        self.any_rows.load(Ordering::Relaxed)
    }

    /// SCRIPT FLUSH. The long scripts are learnt anew.
    pub fn flush(&self) {
        self.code.forget_scripts();
        let long = std::mem::take(&mut *self.long.lock());
        stdx::reclaim::defer(long.len() * 64, move || drop(long));
        self.has_long.store(false, Ordering::Release);
    }

    /// Makes all engines give up the garbage of scripts and functions, and, after a flush, compiled code.
    /// Loops do so before long. Idle threads do so now, if the caller may wait.
    pub fn tidy_idle(&self) {
        self.engines.heed();
    }

    /// The same, on another thread.
    fn tidy_idle_later(&self) {
        let engines = self.engines.clone();
        self.work.observe.reporter.send(move || engines.heed());
    }

    /// MEMORY PURGE: asks for the same ([`Scripts::tidy_idle`]).
    pub fn purge(&self) {
        self.code.purge();
    }

    /// The memory limits of an engine for users' scripts, and the budget behind them.
    pub fn limits(&self, live: &config::Live) -> Limits {
        Limits { memory_bytes: live.lua_memory_bytes.size(), ..self.code.limits() }
    }

    /// Number of long scripts that wait for a thread or a place (`for_place` wait for a place), and of all
    /// others that are not over. A script that waits in the line of its kind counts among the latter.
    pub fn load(&self, for_place: usize) -> (usize, usize) {
        let waiting = self.threads.waiting() + for_place;
        (waiting, self.running.lock().len().saturating_sub(waiting))
    }

    /// Bytes that the engines of threads hold for scripts, and for functions.
    pub fn thread_bytes(&self) -> (u64, u64) {
        (self.engines.scripts.load(Ordering::Relaxed), self.engines.functions.load(Ordering::Relaxed))
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        self.threads.end();
    }
}

/// Commits, and returns the changes to be told. False: the race was lost.
pub fn settle(now_ms: u64, overlay: Overlay, told: &mut Told) -> (Option<Changes>, bool) {
    if !overlay.is_dirty() {
        // Keys loaded before a FLUSHDB and keys loaded after it are of two moments.
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

/// The name of a script or function.
#[derive(PartialEq, Eq, Hash)]
enum Name {
    Script(Sha),
    Function(String),
}

impl Name {
    /// `None`: a transaction, which is known by its scripts, or a new text.
    fn of(body: &Body) -> Option<Name> {
        match body {
            Body::Script(sha, _) => Some(Name::Script(*sha)),
            Body::Function(name) => Some(Name::Function(name.clone())),
            Body::Exec(_) | Body::Text(_) => None,
        }
    }
}

impl Scripts {
    /// Ends the script that a client runs, if any, as its snapshot was revoked.
    pub fn stop(&self, client: u64) {
        let running = self.running.lock();
        running.iter().filter(|r| r.client == client).for_each(|r| r.kill.store(true, Ordering::Relaxed));
    }

    /// Ends scripts that have gone on for longer than `orphan_ms` since their clients went (C9); 0 is no
    /// limit. O(scripts that are not over).
    pub fn end_orphans(&self, now_ms: u64, orphan_ms: u64) {
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

    /// Whether it once took longer than a loop allows.
    #[inline]
    pub fn is_long(&self, body: &Body) -> bool {
        let is_long = |name| self.long.lock().contains_key(&name);
        self.has_long.load(Ordering::Acquire) && Name::of(body).is_some_and(is_long)
    }

    pub fn note_long(&self, body: &Body) {
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
