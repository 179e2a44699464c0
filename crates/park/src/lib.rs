//! Clients that wait for a key: BLPOP and its kin.
//!
//! ```text
//! waiting ──claim (one step)──► served by a writer | timed out | CLIENT UNBLOCK | client gone
//! ```
//!
//! - P1: a waiter leaves exactly once. The thread that claims its word does what follows; all others let go
//!   (`claim.rs`).
//! - P2: a client is registered for its keys first and looks at them once more then, so no write in between
//!   is missed.
//! - P3: the keys' shards report touches only of keys somebody waits for. A write with nobody waiting pays
//!   one branch.
//! - P4: the client that has waited longest for a key is served first. The writer serves before it runs
//!   another command, up to `AT_A_STRETCH` clients; the rest follows with its loop's next mail.
//! - P5: a writer that finds a waiter claimed leaves a note: the holder looks again before it lets go.
//!   A disconnected client is never served: the writer skips and removes it, even before its loop notices.
//! - P6: each waiter looks once at the key that was filled. When the key is empty again, the rest are not
//!   tried.
//!   A client of a stream's group (XREADGROUP) is tried whatever the key holds now, also nothing: its command
//!   then says that the group is gone.
//! - P7: a command that would take longer than a loop has is taken out, and a job serves it.
//! - P8: when a database was exchanged, the keys that somebody waits for are gone through in slices, and the
//!   keys that are there now are served as if they had been filled. One such *round* is under way per
//!   database, however often that happens.
//! - P9: a client that waits for many keys is registered for some at a time, and taken off them so
//!   (`registering.rs`).
//! - P10: nothing here tells others of what was done. The caller tells the changes it is given, and delivers
//!   the replies then.
//! - P11: a waiter whose user may not run its command any more is answered so, and touches no key. If that takes
//!   long to find out, its own loop does so in slices, and a job serves it then.
//! - P12: a client of XREADGROUP with CLAIM also waits for the time: at times it looks at its keys again
//!   (`looking.rs`).
//!
//! Cost: parking and leaving O(keys · log waiters), of at most [`KEYS_MAX`] keys; serving O(log waiters) for
//! each served.

#![forbid(unsafe_code)]

mod claim;
mod looking;
mod registering;
mod rounds;
mod serving;

pub use looking::Look;
pub use registering::Registering;
pub use serving::{Served, Serving};

use claim::Claim;
use command::table::RW_INSERT;
use command::{Block, Command, Error, Stream};
use keyspace::{Changes, Keyspace, Ready};
use parking_lot::Mutex;
use resp::{OwnedArgs, Reply};
use rounds::Round;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use value::Kind;

type KeyId = (usize, Box<[u8]>);

/// Keys a command may wait for, and the most words it then has.
const KEYS_MAX: usize = 1_000;
pub const WORDS_MAX: usize = KEYS_MAX + 6;
pub const TOO_WIDE: &str = "ERR a command that waits may name 1000 keys at most, and no very long ones";

/// A client that waits.
pub struct Waiter {
    pub client: u64,
    pub loop_id: usize,
    pub command: &'static Command,
    pub args: OwnedArgs,
    pub db: usize,
    pub resp3: bool,
    /// Expired keys are there for it.
    shows_expired: bool,
    pub block: Block,
    /// The user it was when it began to wait. None: it waits for no keys.
    user: Option<acl::Identity>,
    /// The reply when its time is up, if not a null.
    answer: Option<Vec<u8>>,
    keys: Vec<KeyId>,
    /// The kind of value it waits for, and its place among all waiters.
    kind: WaitKind,
    number: u64,
    claim: Claim,
    /// Its client has left, and its loop has not come to it yet.
    gone: Arc<AtomicBool>,
    /// It is not registered for all its keys yet. Changes under the lock of the tables.
    registering: AtomicBool,
    /// Its user was allowed the command when it was served, and how far a check is that takes slices.
    judged: AtomicBool,
    asking: Mutex<Option<Box<acl::Asking>>>,
}

impl Waiter {
    /// The reply when the client's time is up.
    pub fn null(&self) -> Vec<u8> {
        if let Some(answer) = &self.answer {
            return answer.clone();
        }
        let mut out = Reply::new(self.resp3);
        if self.block.null_array {
            out.null_array()
        } else {
            out.null()
        }
        out.into_bytes()
    }
}

/// Rights of a waiter.
enum Right {
    Allowed,
    Refused(Error),
    /// Its loop has to compare the words with the patterns of the user, in slices.
    Unknown,
}

/// The rights of a waiter's user, which may have changed since it began to wait (P11).
impl Waiter {
    /// Whether its user was allowed the command when it was served.
    pub fn is_judged(&self) -> bool {
        self.judged.load(Ordering::Relaxed)
    }

    /// Whether the client may be served, if that is known at once.
    fn right(&self, means: &mut Means<'_>) -> Right {
        let result = match &self.user {
            Some(user) if !user.is_free(means.acl) => {
                let mut user = user.clone();
                let (args, databases) = (self.args.args(), means.keyspace.databases());
                let call = acl::Call { command: self.command, args, db: self.db, databases };
                match user.refresh(means.acl, true) {
                    true if !acl::Asking::is_short(user.user(), args) => return Right::Unknown,
                    true => user.user().may(call).map_err(|denied| self.refused(&user, denied)),
                    false => Err(self.refused(&user, acl::Denied::Command)),
                }
            }
            _ => Ok(()),
        };
        self.judged.store(result.is_ok(), Ordering::Relaxed);
        match result {
            Ok(()) => Right::Allowed,
            Err((error, refused)) => {
                means.refused.push(refused);
                Right::Refused(error)
            }
        }
    }

    fn refused(&self, user: &acl::Identity, denied: acl::Denied) -> (Error, Refused) {
        let (user, command) = (user.user().clone(), self.command);
        let error = denied.error(&user, command);
        (error, Refused { client: self.client, user, command, args: self.args.clone(), denied })
    }

    /// Whether the client may be served; an error has the reply. None: there is more to ask, and the same call
    /// goes on with it. O(words), and at most a slice of patterns.
    pub fn judge(&self, acl: &acl::Acl, databases: usize) -> Option<Result<(), (Vec<u8>, Refused)>> {
        let Some(user) = self.user.as_ref().filter(|_| !self.is_judged()) else { return Some(Ok(())) };
        let mut user = user.clone();
        let denied = match user.refresh(acl, true) {
            true => {
                let call =
                    acl::Call { command: self.command, args: self.args.args(), db: self.db, databases };
                acl::Asking::advance(&mut self.asking.lock(), user.user(), call, false)?.err()
            }
            false => Some(acl::Denied::Command),
        };
        let Some(denied) = denied else { return Some(Ok(())) };
        let (error, refused) = self.refused(&user, denied);
        let mut out = Reply::new(self.resp3);
        out.error(&error.text());
        Some(Err((out.into_bytes(), refused)))
    }
}

/// The event that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitKind {
    List,
    ZSet,
    Stream,
    /// A stream's group, or its end.
    Group,
}

impl WaitKind {
    const ALL: [WaitKind; 4] = [WaitKind::List, WaitKind::ZSet, WaitKind::Stream, WaitKind::Group];

    fn of(command: &Command) -> WaitKind {
        match command.group {
            "list" => WaitKind::List,
            "stream" if command.is_write() => WaitKind::Group,
            "stream" => WaitKind::Stream,
            _ => WaitKind::ZSet,
        }
    }

    /// Whether its command is tried when the key holds this.
    fn is_woken_by(self, kind: Option<Kind>) -> bool {
        match self {
            WaitKind::List => kind == Some(Kind::List),
            WaitKind::ZSet => kind == Some(Kind::ZSet),
            WaitKind::Stream => kind == Some(Kind::Stream),
            WaitKind::Group => true,
        }
    }
}

/// The waiters of a key, by what they wait for and by number.
#[derive(Default)]
struct Queues([BTreeMap<u64, Arc<Waiter>>; WaitKind::ALL.len()]);

impl Queues {
    /// The waiters for such a value.
    fn of(&mut self, kind: WaitKind) -> &mut BTreeMap<u64, Arc<Waiter>> {
        &mut self.0[kind as usize]
    }

    /// The next waiter behind a number that such a value wakes. O(log waiters).
    fn next(&self, kind: Option<Kind>, after: u64) -> Option<&Arc<Waiter>> {
        let woken = WaitKind::ALL.into_iter().filter(|waits| waits.is_woken_by(kind));
        let firsts = woken.filter_map(|waits| self.0[waits as usize].range(after + 1..).next());
        firsts.min_by_key(|(number, _)| **number).map(|(_, waiter)| waiter)
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(BTreeMap::is_empty)
    }
}

/// Trees, for they never grow by leaps.
#[derive(Default)]
struct Tables {
    by_key: BTreeMap<KeyId, Queues>,
    by_client: BTreeMap<u64, Arc<Waiter>>,
    /// How many of them wait for some time at most.
    timed: usize,
    last: u64,
    /// By database (P8).
    rounds: BTreeMap<usize, Round>,
}

impl Tables {
    /// A waiter comes in.
    fn insert(&mut self, waiter: Arc<Waiter>) {
        self.timed += usize::from(waiter.block.timeout_ms.is_some());
        self.by_client.insert(waiter.client, waiter);
    }

    /// The waiter of a client goes.
    fn remove(&mut self, client: u64) {
        if let Some(waiter) = self.by_client.remove(&client) {
            self.timed -= usize::from(waiter.block.timeout_ms.is_some());
        }
    }

    /// Whether this waiter still waits.
    fn has(&self, waiter: &Arc<Waiter>) -> bool {
        self.by_client.get(&waiter.client).is_some_and(|known| Arc::ptr_eq(known, waiter))
    }
}

/// All waiters.
#[derive(Default)]
pub struct Park {
    tables: Mutex<Tables>,
}

/// A client that begins to wait.
pub struct Newcomer {
    pub client: u64,
    pub loop_id: usize,
    pub db: usize,
    /// Expired keys are there for it.
    pub shows_expired: bool,
    pub user: acl::Identity,
    /// Set when the client has left.
    pub gone: Arc<AtomicBool>,
}

/// A waiter that was not served because its user may not run the command any more.
pub struct Refused {
    pub client: u64,
    pub user: Arc<acl::User>,
    pub command: &'static Command,
    pub args: OwnedArgs,
    pub denied: acl::Denied,
}

/// The parts of a loop that the park uses, and what it leaves behind for the loop.
pub struct Means<'a> {
    pub keyspace: &'a Keyspace,
    pub acl: &'a acl::Acl,
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// Random numbers of commands come from it.
    pub seed: u64,
    /// Changes of attempts that came to nothing: an attempt may write what long commits left to be written.
    /// The caller tells them; their waiters are served with the loop's next mail.
    pub late: Vec<Changes>,
    /// Waiters that were refused; the caller logs them.
    pub refused: Vec<Refused>,
    /// Keys to be registered or given up in slices.
    pub pieces: Vec<Box<Registering>>,
}

impl Means<'_> {
    fn random(&mut self) -> u64 {
        self.seed = stdx::hash::hash_u64(self.seed);
        self.seed
    }

    fn put_off(&mut self, changes: Changes) {
        if !changes.is_quiet() {
            self.late.push(changes);
        }
    }
}

/// How parking ended.
pub enum Parked {
    Waiting,
    /// There was something after all: the reply is written, but for what streams.
    Served(Changes, Option<Box<dyn Stream>>),
    /// There is something, and it is a job's work.
    Long(Arc<Waiter>),
}

/// The outcome of a waiter's command.
enum Found {
    /// Its changes, and the rest of its reply if that is long.
    Served(Changes, Option<Box<dyn Stream>>),
    /// So much that nothing was done (P7).
    Long,
}

impl Park {
    pub fn len(&self) -> usize {
        self.tables.lock().by_client.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Clients that wait for some time at most, and keys that somebody waits for.
    pub fn figures(&self) -> (usize, usize) {
        let tables = self.tables.lock();
        (tables.timed, tables.by_key.len())
    }

    /// Whether a client is registered.
    pub fn holds(&self, client: u64) -> bool {
        self.tables.lock().by_client.contains_key(&client)
    }

    /// Registers a client and looks once more (P2). O(words).
    pub fn park(
        self: &Arc<Self>,
        means: &mut Means<'_>,
        newcomer: Newcomer,
        (command, args): (&'static Command, OwnedArgs),
        block: Block,
        out: &mut Reply,
    ) -> Parked {
        let keys = keys_of(command, &args, newcomer.db);
        let Newcomer { client, loop_id, db, shows_expired, user, gone } = newcomer;
        let kind = WaitKind::of(command);
        let waiter = {
            let mut tables = self.tables.lock();
            tables.last += 1;
            let waiter = Arc::new(Waiter {
                client,
                loop_id,
                command,
                args,
                db,
                resp3: out.resp3(),
                shows_expired,
                block,
                user: Some(user),
                answer: None,
                keys,
                kind,
                number: tables.last,
                claim: Claim::new(),
                gone,
                registering: true.into(),
                judged: false.into(),
                asking: Mutex::default(),
            });
            tables.insert(waiter.clone());
            waiter
        };
        match self.register(means, &waiter, out) {
            Some(Found::Served(changes, stream)) => Parked::Served(changes, stream),
            Some(Found::Long) => Parked::Long(waiter),
            None => Parked::Waiting,
        }
    }

    /// Registers a client that waits for nothing but the time, or CLIENT UNBLOCK; then it gets `answer`.
    pub fn sleep(
        &self,
        loop_id: usize,
        client: u64,
        command: &'static Command,
        timeout_ms: Option<u64>,
        answer: Reply,
    ) {
        let waiter = Waiter {
            client,
            loop_id,
            command,
            args: OwnedArgs::from_slices(&[]),
            db: 0,
            resp3: answer.resp3(),
            shows_expired: false,
            block: Block { timeout_ms, null_array: false, words: None },
            user: None,
            answer: Some(answer.into_bytes()),
            keys: Vec::new(),
            kind: WaitKind::List,
            number: 0,
            claim: Claim::new(),
            gone: Arc::default(),
            registering: false.into(),
            judged: false.into(),
            asking: Mutex::default(),
        };
        self.tables.lock().insert(Arc::new(waiter));
    }

    /// Takes a waiter out for another reason than data: time-out, UNBLOCK, disconnect. None if it was served
    /// already.
    pub fn leave(self: &Arc<Self>, means: &mut Means<'_>, client: u64) -> Option<Arc<Waiter>> {
        let waiter = self.tables.lock().by_client.get(&client).cloned()?;
        if !waiter.claim.take() {
            return None;
        }
        self.forget(means, &waiter);
        Some(waiter)
    }

    /// Begins a round for each database that was exchanged. Databases that need none are taken out (P8).
    pub fn begin_rounds(&self, ready: &mut Vec<Ready>) {
        ready.retain(|ready| match ready {
            Ready::Key(..) => true,
            Ready::Database(db) => self.tables.lock().begin_round(*db),
        });
    }
}

/// The keys a command waits for, each once. O(words).
fn keys_of(command: &Command, args: &OwnedArgs, db: usize) -> Vec<KeyId> {
    let (mut keys, mut seen): (Vec<KeyId>, _) = (Vec::new(), HashSet::new());
    command.each_key(args.args(), &mut |i, uses| {
        // No client waits for the key something is moved to.
        if uses == RW_INSERT {
            return;
        }
        let key = args.args().at(i);
        if seen.insert(key) {
            keys.push((db, Box::from(key)));
        }
    });
    keys
}
