//! Long work of a client: run over an overlay on a worker, committed by its loop.
//!
//! ```text
//! loop: snapshot ─► worker: which keys? ─► loop: reads them, in slices ─► worker: runs, seals ─► loop: commits, in slices
//!           ▲                                                                                        │ lost a race
//!           └────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - J1: a worker takes no shard lock: it is demoted, and preempted it would hold the lock for milliseconds. Loops read
//!   what it needs and commit what it did.
//! - J2: a job of a client that went is dropped if it only reads; a write that was fully received completes.
//! - J3: a write that lost [`PROTECT_FROM`] races is protected for [`PROTECTED_MS`] in each further attempt: writers of
//!   its keys wait. One that lost [`INSIST_FROM`] is protected for as long as all its attempts took, and a second at least: one
//!   that never ends keeps nobody's keys. That ends with its delivery: what is
//!   left of it is freed later ([`discard`]), and nobody may wait for that.
//! - J4: nothing on the loop grows with the arguments: they are handed over, not copied, and freed by the reclaimer.
//! - J5: writes of one kind that lose to each other go one after the other (`lines.rs`).
//! - J7: one that is asked to give its place to others (`snapshots/places.rs`) drops its attempt and starts over behind them.
//!   One whose client was killed ends, unless its commit is decided.
//! - J8: what it holds beside the data, its overlay and its reply above all, it takes from what work may hold (`work-max-memory`). If
//!   there is no room for more it ends with an error, and nothing of it is done. A long reply is kept so until it is sent, and large
//!   values in it as handles (`assembled.rs`).
//! - J6: one that has lost, or is the first of them, learns at once when it loses (`job/alarm.rs`): its attempt is *doomed*.

mod alarm;

use alarm::Alarm;
pub use stdx::reclaim::discard;

use crate::assembled::{self, Rests};
use crate::blocking::Wait;
use crate::bulk;
use crate::lines::{self, Place, Write};
use crate::mail::Mail;
use crate::queue::{self, Queue};
use crate::session::{ClientInfo, ReplyMode, Watch};
use crate::snapshots::{Asker, Class, StopSign};
use crate::tally::Tally;
use crate::waits::{self, Ahead, Spent};
use crate::works::{Owner, Paused, Work};
use crate::{Flow, Local, Server, Session, snapshots};
use command::places;
use command::{Block, Budget, Caller, Command, Cx, Error, Handler, Outcome, Room, Stream};
use keyspace::{Announce, Commit, KeyBatches, Keyspace, Overlay, Owned, Protection, View};
use resp::{Args, OwnedArgs, Reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::budget::{self, Holding};
use stdx::clock::Ticker;
use stdx::hash::hash_bytes;
use stdx::turns::Turn;

/// Lost races from which on a commit is protected (J3).
pub(crate) const PROTECT_FROM: u32 = 3;
/// How long an attempt is protected.
pub(crate) const PROTECTED_MS: u64 = 50;
/// Lost races from which on it is protected for as long as it takes.
pub(crate) const INSIST_FROM: u32 = 8;
/// And for so long at least.
const INSISTS_MS: u64 = 1000;
/// Keys committed at once, under the locks of all their shards.
pub(crate) const AT_ONCE: usize = 128;
/// Words from which on a command goes to a worker without a look at its keys.
pub(crate) const MANY_WORDS: usize = 400;
/// What a key takes that is to be read, and what was found.
const WANTED_BYTES: usize = size_of::<(u64, u32, Name)>() + size_of::<Option<Owned>>();
/// Bytes of a command from which on it does.
pub const MANY_BYTES: usize = 128 * 1024;

/// One command to be run.
pub struct Call {
    pub command: &'static Command,
    pub handler: Handler,
    pub args: Arc<OwnedArgs>,
}

/// What a job runs.
pub enum Body {
    One(Call),
    /// The commands of an EXEC, all of them functions of keys.
    Exec(Queue),
}

impl Body {
    /// Name of the command, for whoever waited for it.
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Body::One(call) => call.command.name,
            Body::Exec(_) => "exec",
        }
    }

    fn len(&self) -> usize {
        match self {
            Body::One(_) => 1,
            Body::Exec(queue) => queue.len(),
        }
    }

    fn at(&self, i: usize) -> (&'static Command, Args<'_>) {
        match self {
            Body::One(call) => (call.command, call.args.args()),
            Body::Exec(queue) => queue.at(i),
        }
    }

    /// What runs a command: its row's handler, or what an action brought along.
    fn handler(&self, i: usize) -> Option<Handler> {
        match self {
            Body::One(call) => Some(call.handler),
            Body::Exec(queue) => queue::handler(queue.at(i).0),
        }
    }

    /// The words of a command, for whoever keeps them.
    fn kept(&self, i: usize) -> Arc<OwnedArgs> {
        match self {
            Body::One(call) => call.args.clone(),
            Body::Exec(queue) => Arc::new(queue.at(i).1.to_owned()),
        }
    }

    fn name<'a>(&'a self, name: &'a Name) -> &'a [u8] {
        match name {
            Name::Own(key) => key,
            Name::Word(call, word) => self.at(*call as usize).1.at(*word as usize),
        }
    }

    fn is_write(&self) -> bool {
        match self {
            Body::One(call) => call.command.is_write(),
            Body::Exec(queue) => queue.has_writes(),
        }
    }
}

/// How far a job is.
#[derive(Default)]
pub enum State {
    #[default]
    Ready,
    /// Keys it needs are not read yet.
    NeedKeys(Wanted),
    Done(Option<Box<dyn Stream>>),
    /// It was told to stop: what it read was changed meanwhile, others wait for its place, or nobody wants it any more.
    Stopped,
}

/// Keys to be read.
#[derive(Default)]
pub struct Wanted {
    /// Sorted by hash: hash, database, and where the name stands.
    pub keys: Vec<(u64, u32, Name)>,
    /// What each of the first keys was.
    pub found: Vec<Option<Owned>>,
    /// What a handler asked for in vain.
    pub asked: KeyBatches,
}

/// Where a key's name stands.
pub enum Name {
    /// This word of this call.
    Word(u32, u32),
    Own(Box<[u8]>),
}

impl Wanted {
    fn sorted(mut keys: Vec<(u64, u32, Name)>) -> Wanted {
        keys.sort_unstable_by_key(|(hash, ..)| *hash);
        let found = Vec::with_capacity(keys.len());
        Wanted { keys, found, asked: KeyBatches::default() }
    }

    /// Reads the next keys at a snapshot; true when all are. O(count).
    pub(crate) fn read_some(
        &mut self,
        body: &Body,
        keyspace: &Keyspace,
        (s, used_ms): (keyspace::Lsn, Option<u64>),
        count: usize,
    ) -> bool {
        if self.found.len() == self.keys.len() {
            return keyspace.read_asked(s, used_ms, &mut self.asked, count);
        }
        let end = (self.found.len() + count).min(self.keys.len());
        let batch = self.keys[self.found.len()..end].iter();
        let batch = batch.map(|(hash, db, name)| (*hash, *db as usize, body.name(name)));
        keyspace.read_batch(s, used_ms, batch, &mut self.found);
        self.found.len() == self.keys.len() && self.asked.is_empty()
    }
}

/// See the module.
pub struct Job {
    pub client: u64,
    pub loop_id: usize,
    pub body: Body,
    pub db: usize,
    pub now_ms: u64,
    /// When the keys it looks at count as used, if they do.
    used_ms: Option<u64>,
    pub overlay: Option<Overlay>,
    /// What it did, if that is much: to be committed in pieces.
    pub commit: Option<Commit>,
    /// Keys read for it, not yet in the overlay.
    pub read: Wanted,
    pub cancel: Arc<AtomicBool>,
    info: Arc<ClientInfo>,
    /// Tells this attempt to stop.
    pub(crate) sign: StopSign,
    /// How often it gave its place to others.
    gave_way: u32,
    pub out: Reply,
    pub effects: Vec<Arc<OwnedArgs>>,
    pub state: State,
    pub races: Races,
    pub random: u64,
    pub started_ns: u64,
    pub may_stream: bool,
    planned: bool,
    /// A command that waits found nothing.
    block: Option<Block>,
    pub spent: Spent,
    /// EXEC: the commands it ran.
    tally: Tally,
    /// EXEC: what was watched, and up to which key it is settled since the snapshot.
    watch: Option<Watch>,
    settled: Option<(usize, Box<[u8]>)>,
    /// In the line of its kind.
    pub(crate) place: Option<Place>,
    /// Tells this attempt to stop.
    alarm: Option<Alarm>,
    /// What it holds, of what work may (J7).
    work: Arc<budget::Budget>,
    holding: Holding,
    /// EXEC: rests of its commands' replies.
    rests: Rests,
}

/// The answer to long work that panicked.
pub(crate) const BROKEN: &str = "ERR internal error, nothing was changed; the server's log says more";

/// The attempts of a long commit.
#[derive(Default)]
pub struct Races {
    pub lost: u32,
    /// To whom the last was lost, and how long all that were took.
    lost_to: Option<Ahead>,
    /// When the first attempt began: the older of two long commits wins.
    pub age: u64,
    /// An attempt has ended by an alarm.
    doomed: bool,
    /// Of the last attempt, sorted.
    hashes: Option<Box<[u64]>>,
    protection: Option<Protection>,
}

impl Races {
    /// Begins now.
    pub(crate) fn new() -> Races {
        Races { age: stdx::clock::mono_ns(), ..Races::default() }
    }

    /// Remembers the keys of an attempt, if they may have to be protected. Cost: O(keys · log keys).
    pub(crate) fn remember(&mut self, hashes: impl FnOnce() -> Box<[u64]>) {
        if self.lost + 1 >= PROTECT_FROM {
            self.hashes = Some(hashes());
        }
    }

    /// An attempt was in vain because of somebody's write (a word of `stdx::doing`); all attempts so far took so long.
    pub(crate) fn lose_to(&mut self, server: &Server, by: u64, ns: u64) {
        if let Some((client, command)) = waits::doer(server, by) {
            self.lost_to = Some((client, command, ns));
        }
    }

    /// What is told of them.
    pub(crate) fn told(&self, spent: Spent) -> Spent {
        Spent { lost: self.lost, lost_to: self.lost_to, ..spent }
    }

    /// It is over: writers of its keys need not wait for what is freed of it in its own time (J3).
    pub(crate) fn end(&mut self) {
        self.protection = None;
    }

    /// Another race was lost, all attempts so far took so long: raises the protection it has earned (J3).
    pub(crate) fn lose(&mut self, keyspace: &Arc<Keyspace>, client: u64, now_ms: u64, took_ns: u64) {
        self.lost += 1;
        self.protection = None;
        let insists_ms = (took_ns / 1_000_000).max(INSISTS_MS);
        let for_ms = if self.lost >= INSIST_FROM { insists_ms } else { PROTECTED_MS };
        if let Some(hashes) = self.hashes.take() {
            self.protection =
                Some(Protection::raise(keyspace, hashes, now_ms.saturating_add(for_ms), client));
        }
    }
}

impl Job {
    fn new(server: &Server, local: &mut Local, session: &Session, body: Body, out: &Reply) -> Box<Job> {
        Box::new(Job {
            client: session.id,
            loop_id: local.id,
            body,
            db: session.db,
            now_ms: local.now_ms,
            used_ms: session.uses_at(local.now_ms),
            overlay: None,
            commit: None,
            read: Wanted::default(),
            cancel: session.cancel.clone(),
            info: session.info.clone(),
            sign: StopSign::default(),
            gave_way: 0,
            out: Reply::new(out.resp3()),
            effects: Vec::new(),
            state: State::Ready,
            races: Races::new(),
            random: local.random(),
            started_ns: stdx::clock::mono_ns(),
            may_stream: session.reply_mode == ReplyMode::On,
            planned: false,
            block: None,
            spent: Spent::default(),
            tally: Tally::default(),
            watch: None,
            settled: None,
            place: None,
            alarm: None,
            work: server.memory.work.clone(),
            holding: Holding::default(),
            rests: Rests::new(),
        })
    }

    /// What works that get in each other's way have in common; None if it only reads.
    pub(crate) fn kind(&self) -> Option<u64> {
        if !self.body.is_write() || self.body.len() == 0 {
            return None;
        }
        let (command, args) = self.body.at(0);
        let key = command.first_key().and_then(|at| args.get(at));
        Some(lines::kind(command.name.as_bytes(), self.db, key))
    }

    /// Of a command that has waited for its keys.
    pub(crate) fn waiting(
        server: &Server,
        local: &mut Local,
        session: &Session,
        body: Body,
        out: &Reply,
    ) -> Box<Job> {
        Box::new(Job { planned: true, ..*Job::new(server, local, session, body, out) })
    }

    /// A piece of work on the worker: tells the keys it needs, or runs.
    pub(crate) fn run(&mut self, keyspace: &Keyspace, turn: &Turn) {
        let Some(mut overlay) = self.overlay.take() else { return };
        let Wanted { keys, found, asked } = std::mem::take(&mut self.read);
        overlay.reserve(keys.len());
        for ((hash, db, name), base) in keys.iter().zip(found) {
            overlay.insert(*db as usize, *hash, self.body.name(name), base);
        }
        drop(keys);
        overlay.insert_many(asked);
        let wanted = if self.planned { Wanted::default() } else { self.wanted(&overlay) };
        self.planned = true;
        self.state = match wanted.keys.is_empty() {
            _ if !self.hold(&mut overlay, wanted.keys.len() * WANTED_BYTES) => self.refuse(&mut overlay),
            true => self.run_over(keyspace, &mut overlay, turn),
            false => State::NeedKeys(wanted),
        };
        match self.state {
            State::Done(_) if overlay.len() > AT_ONCE && overlay.is_dirty() => {
                let announce = self.announce(overlay.snapshot().keyspace());
                let commit = overlay.seal(self.races.age, announce);
                self.races.remember(|| commit.hashes());
                self.commit = Some(commit);
            }
            _ => self.overlay = Some(overlay),
        }
    }

    /// Whether nobody wants it any more: its client was killed, or has gone and it only reads (J2, J7).
    pub(crate) fn is_useless(&self) -> bool {
        self.info.killed.load(Ordering::Relaxed)
            || !self.body.is_write() && self.cancel.load(Ordering::Relaxed)
    }

    /// What it says of itself to get a place.
    fn asks(&self) -> Asker {
        let words = match &self.body {
            Body::One(call) => crate::snapshots::shortened(call.args.args().iter()),
            Body::Exec(_) => Vec::new(),
        };
        Asker {
            client: self.client,
            command: self.body.command(),
            class: Class::Job,
            gave_way: self.gave_way,
            gone: Some(self.cancel.clone()),
            for_client: !self.body.is_write(),
            sign: self.sign.clone(),
            words,
        }
    }

    /// It panicked: nothing of it has happened, and its client is told so.
    pub(crate) fn fail(&mut self) {
        self.begin();
        self.out.error(BROKEN);
        (self.overlay, self.commit, self.block) = (None, None, None);
        self.state = State::Done(None);
    }

    /// Bytes of its overlay that count. What came with its words is held by them: a value that is stored as it came counts once.
    fn counted(&self, overlay: &mut Overlay) -> usize {
        let with_words = match &self.body {
            Body::One(call) => call.args.held_bytes() as usize,
            Body::Exec(_) => 0,
        };
        overlay.bytes().saturating_sub(with_words)
    }

    /// Holds memory for what there is of it now and so many bytes more; false: it may not have so much (J8). O(1).
    fn hold(&mut self, overlay: &mut Overlay, more: usize) -> bool {
        let bytes = (self.counted(overlay) + self.out.capacity() + more) as u64;
        let held = self.holding.set(&self.work, bytes).is_ok();
        self.info.work_bytes.store(self.holding.held(), Ordering::Relaxed);
        held
    }

    /// Ends it for want of memory: nothing of it has happened (J8).
    fn refuse(&mut self, overlay: &mut Overlay) -> State {
        overlay.reset();
        self.begin();
        self.out = Reply::new(self.out.resp3());
        self.out.error(&Error::work_memory().text());
        State::Done(None)
    }

    /// Forgets what an earlier run left.
    fn begin(&mut self) {
        self.out.clear();
        self.effects.clear();
        self.tally.clear();
        self.rests.clear();
        self.block = None;
    }

    /// The keys its commands name that are not read yet. O(words · log words).
    fn wanted(&self, overlay: &Overlay) -> Wanted {
        let mut wanted = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for call in 0..self.body.len() {
            let (command, args) = self.body.at(call);
            // MSET does not look at what it replaces.
            if !command.is(command::facts::REPLACES) {
                command.each_key(args, &mut |i, _| {
                    let hash = hash_bytes(args.at(i));
                    // Of two keys with one hash the second would be missing, and be read then.
                    if seen.insert(hash) && !overlay.knows(self.db, args.at(i)) {
                        wanted.push((hash, self.db as u32, Name::Word(call as u32, i as u32)));
                    }
                });
            }
        }
        if let Some(watch) = &self.watch {
            let watched = watch.keys.keys().filter(|(db, key)| !overlay.knows(*db, key));
            wanted
                .extend(watched.map(|(db, key)| (hash_bytes(key), *db as u32, Name::Own(Box::from(&**key)))));
        }
        Wanted::sorted(wanted)
    }

    /// EXEC: whether a watched key was touched in a way that sets no mark: it expired, say. That it did not is relied on.
    /// O(watched keys).
    fn watched_expired(&self, keyspace: &Keyspace, overlay: &mut Overlay, turn: &Turn) -> bool {
        let Some(watch) = &self.watch else { return false };
        let mut view = View::overlay(keyspace, overlay, self.db, self.now_ms);
        watch.keys.iter().any(|((db, key), then)| {
            turn.check();
            view.select(*db);
            view.is_touched_since(key, *then)
        })
    }

    /// Runs its commands over the overlay, from the beginning.
    fn run_over(&mut self, keyspace: &Keyspace, overlay: &mut Overlay, turn: &Turn) -> State {
        self.begin();
        let ticker = Ticker::new();
        if let Body::Exec(queue) = &self.body {
            if self.watched_expired(keyspace, overlay, turn) {
                self.out.null_array();
                return State::Done(None);
            }
            self.out.array(queue.len());
        }
        let alone = matches!(self.body, Body::One(_));
        let stop = self.sign.stop.clone();
        let mut stream = None;
        for i in 0..self.body.len() {
            let (command, args) = self.body.at(i);
            let Some(handler) = self.body.handler(i) else { continue };
            turn.check();
            if stop.load(Ordering::Relaxed) || self.is_useless() {
                return State::Stopped;
            }
            let (mark, began_ns, known) = (self.out.len(), ticker.now_ns(), self.counted(overlay));
            let mut view = View::overlay(keyspace, overlay, self.db, self.now_ms);
            let may_stream = self.may_stream && alone;
            let attempt = self.races.lost + self.gave_way;
            let caller = Caller {
                may_stream,
                may_keep: !alone,
                may_block: alone,
                client_id: self.client,
                attempt,
                ..Caller::default()
            };
            let room = Room::new(&self.work, &mut self.holding, known);
            let budget = Budget::unlimited(Some(&*stop)).in_turns(Some(turn)).within(room, mark);
            let mut cx = Cx::new(&mut view, &mut self.out, caller, budget, self.random);
            let result = handler(&mut cx, args);
            self.random = cx.random();
            let outcome = std::mem::take(&mut cx.outcome);
            let effects = std::mem::take(&mut cx.effects);
            let wrote = view.finish().dirty > 0;
            if overlay.has_missing() {
                let asked = overlay.take_missing();
                overlay.reset();
                return State::NeedKeys(Wanted { asked, ..Wanted::default() });
            }
            if wrote && keyspace.sink().is_some() {
                match command.effect {
                    command::Effect::Itself if effects.is_empty() => self.effects.push(self.body.kept(i)),
                    _ => self.effects.extend(effects.into_iter().map(Arc::new)),
                }
            }
            match result {
                Err(Error::Cancelled) => return State::Stopped,
                // What it did before is not done either; of an EXEC the other commands are.
                Err(error) if alone && error == Error::work_memory() => return self.refuse(overlay),
                Err(error) => {
                    self.out.truncate(mark);
                    self.out.error(&error.text());
                }
                Ok(()) => {}
            }
            if !alone {
                let error = self.out.as_bytes()[mark..].strip_prefix(b"-");
                error.into_iter().for_each(|text| self.tally.error(text));
                let ns = ticker.now_ns() - began_ns;
                self.tally.add(places::of(command), ns, error.is_some());
                self.tally.queued(command, args, ns);
            }
            if !self.hold(overlay, 0) {
                return self.refuse(overlay);
            }
            match outcome {
                Outcome::Stream(rest) if !alone => self.rests.push_back((self.out.len(), rest)),
                Outcome::Stream(rest) => stream = Some(rest),
                Outcome::Block(block) => self.block = Some(block),
                Outcome::Done => {}
            }
        }
        State::Done(stream)
    }

    /// What tells the sink of its effects.
    fn announce(&mut self, keyspace: &Arc<Keyspace>) -> Option<Announce> {
        keyspace.sink()?;
        let (keyspace, db, effects) = (keyspace.clone(), self.db, std::mem::take(&mut self.effects));
        Some(Box::new(move |lsn| {
            if let Some(sink) = keyspace.sink() {
                effects.iter().for_each(|e| sink.effect(lsn, db, &mut e.args().iter()));
            }
        }))
    }
}

/// A finished reply for a client that was parked.
pub struct Delivery {
    pub client: u64,
    pub bytes: Vec<u8>,
    pub stream: Option<Box<dyn Stream>>,
    /// Where its time went.
    pub spent: Option<Box<Spent>>,
    /// EXEC: the database it leaves its client in.
    pub selected: Option<usize>,
}

/// Sends a command to a worker. Its words come from the connection if they are many, else they are copied.
pub(crate) fn start(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    call: (&'static Command, Handler, resp::Args<'_>),
    out: &mut Reply,
) -> Flow {
    let (command, handler, args) = call;
    let args = local.incoming.clone().unwrap_or_else(|| Arc::new(args.to_owned()));
    let few = args.len() < MANY_WORDS;
    let mut job = Job::new(server, local, session, Body::One(Call { command, handler, args }), out);
    job.planned = few;
    local.away = true;
    submit(server, local, job);
    Flow::Parked(None)
}

/// Sends the queue of an EXEC to a worker, or has it committed as a bulk. Cost: O(1).
pub(crate) fn start_exec(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    queue: Queue,
    out: &mut Reply,
) -> Flow {
    if bulk::is_bulk(session, &queue) {
        return bulk::start_exec(server, local, session, queue, out);
    }
    let watch = std::mem::take(&mut session.watch);
    let mut job = Job::new(server, local, session, Body::Exec(queue), out);
    job.watch = Some(watch);
    job.tally.notes_from(server.config.live.slowlog_slower_us.get());
    local.away = true;
    submit(server, local, job);
    Flow::Parked(None)
}

/// Hands the job to the workers, with a snapshot; it waits if too many are open, or in the line of its kind.
pub(crate) fn submit(server: &Arc<Server>, local: &mut Local, job: Box<Job>) {
    // From here on it is another's, and its client waits for it.
    stdx::panics::changes();
    if let Some(job) = ready(server, local, job) {
        server.workers.submit(job);
    }
}

/// Opens the job's snapshot, unless it waits for that.
fn ready(server: &Arc<Server>, local: &mut Local, mut job: Box<Job>) -> Option<Box<Job>> {
    if job.spent.waits.is_none() {
        let lost = job.races.lost > 0;
        let Some(Write::Job(first)) = lines::stand(server, Write::Job(job), lost) else { return None };
        job = first;
        job.spent.got_place();
    }
    // It may have waited.
    job.now_ms = local.now_ms;
    job.settled = None;
    job.sign = StopSign::default();
    let Some(snapshot) = server.snapshots.open(server, local.id, job.asks(), &mut job.spent.waits) else {
        local.works.wait(Owner::Job(job));
        return None;
    };
    job.spent.got_snapshot();
    let mut overlay = Overlay::new(snapshot, job.used_ms);
    if job.planned && job.races.lost == 0 {
        if let Body::One(call) = &job.body {
            let args = call.args.args();
            call.command.each_key(args, &mut |i, _| overlay.load(job.db, [args.at(i)]));
        }
    } else {
        job.planned = false;
    }
    if let Body::One(call) = &job.body
        && job.body.is_write()
        && !job.races.doomed
        && (job.races.lost > 0 || job.place.is_some())
    {
        job.alarm = Alarm::set(server, local, job.db, (call.command, call.args.args()), &job.sign.stop);
    }
    job.overlay = Some(overlay);
    job.state = State::Ready;
    Some(job)
}

/// Takes a job back from its worker: reads what it asks for, commits what it did, or repeats it. None: not yet done.
pub fn finish(server: &Arc<Server>, local: &mut Local, mut job: Box<Job>) -> Option<Delivery> {
    if matches!(job.state, State::Done(_)) && job.body.is_write() && server.pause.stops_writes(local.now_ms) {
        local.works.pause(server, Paused::Job(job));
        return None;
    }
    if matches!(job.state, State::Done(_))
        && let Job { watch: Some(watch), settled, .. } = &mut *job
        && crate::transaction::settle_some(server, local, watch, settled)
    {
        local.works.push(Work::Finish(Owner::Job(job)));
        return None;
    }
    let alarm = if matches!(job.state, State::NeedKeys(_)) { None } else { job.alarm.take() };
    // It rings for nobody any more; who rang it is asked below.
    let alarm = alarm.filter(|_| matches!(job.state, State::Stopped));
    match std::mem::take(&mut job.state) {
        State::Ready => None,
        _ if job.is_useless() => Some(drop_useless(server, local, job)),
        State::Stopped if job.sign.gives_way() => {
            give_way(server, local, job);
            None
        }
        State::Stopped => {
            if let Some(overlay) = job.overlay.take() {
                let by = alarm.map_or(0, |alarm| alarm.rung_by(overlay.snapshot().lsn()));
                job.races.lose_to(server, by, job.spent.thread_ns);
                overlay.dispose();
            }
            job.races.doomed = true;
            submit(server, local, job);
            None
        }
        State::NeedKeys(wanted) => {
            job.read = wanted;
            local.works.push(Work::Load(job));
            None
        }
        State::Done(stream) => {
            job.state = State::Done(stream);
            if was_touched(&job) {
                return Some(untrue(server, local, job));
            }
            if let Some(commit) = job.commit.take() {
                local.works.push(Work::Commit { commit: Box::new(commit), owner: Owner::Job(job) });
                return None;
            }
            let Some(overlay) = job.overlay.take() else { return Some(deliver(server, local, job)) };
            if let Some(refusal) = snapshots::refusal(overlay.snapshot()) {
                overlay.dispose();
                job.begin();
                job.out.error(&refusal);
                job.state = State::Done(None);
                return Some(deliver(server, local, job));
            }
            if !overlay.is_dirty() {
                // After a FLUSHDB what was read before and after it are of two moments: a mere read starts over as well.
                let current = overlay.snapshot().is_current();
                overlay.dispose();
                return match job.block {
                    _ if !current => again(server, local, job, 0),
                    Some(block) => wait(server, local, job, block),
                    None => Some(deliver(server, local, job)),
                };
            }
            job.races.remember(|| overlay.hashes());
            let keyspace = server.keyspace.clone();
            let announce = job.announce(&keyspace);
            match overlay.commit(local.now_ms) {
                Ok(changes) => {
                    if let Some(announce) = announce {
                        announce(changes.lsn);
                    }
                    server.after(local, changes);
                    Some(deliver(server, local, job))
                }
                Err(keyspace::Lost { told, by }) => {
                    server.after(local, told);
                    again(server, local, job, by)
                }
            }
        }
    }
}

/// Nobody wants it any more; but its client may have sent more. Its snapshot is closed now, the rest freed in its own time.
pub(crate) fn drop_useless(server: &Arc<Server>, local: &mut Local, mut job: Box<Job>) -> Delivery {
    job.place = None;
    job.races.end();
    let (client, spent) = (job.client, Some(Box::new(job.spent)));
    forget_watched(server, local, &mut job);
    job.overlay.take().into_iter().for_each(Overlay::dispose);
    discard(job);
    Delivery { client, bytes: Vec::new(), stream: None, spent, selected: None }
}

/// Gives its place to those who wait, and starts over behind them (J7).
pub(crate) fn give_way(server: &Arc<Server>, local: &mut Local, mut job: Box<Job>) {
    job.overlay.take().into_iter().for_each(Overlay::dispose);
    discard((job.commit.take(), std::mem::take(&mut job.effects)));
    job.alarm = None;
    job.gave_way = job.sign.gave_way(job.gave_way);
    submit(server, local, job);
}

/// Its client is to wait for what was not there: the loop sees to it.
fn wait(server: &Server, local: &Local, mut job: Box<Job>, block: Block) -> Option<Delivery> {
    job.place = None;
    job.races.end();
    if let Body::One(Call { command, args, .. }) = &job.body {
        let (client, spent) = (job.client, job.races.told(job.spent));
        let wait = Wait { client, command, args: args.clone(), block, since_ns: job.started_ns, spent };
        server.send(local.id, Mail::Wait(Box::new(wait)));
    }
    discard(job);
    None
}

/// EXEC: whether something watched was touched before the snapshot or since.
fn was_touched(job: &Job) -> bool {
    job.watch.as_ref().is_some_and(Watch::is_marked)
}

/// The answer of an EXEC whose watched keys were touched.
fn untrue(server: &Server, local: &mut Local, mut job: Box<Job>) -> Delivery {
    job.begin();
    job.out.null_array();
    job.state = State::Done(None);
    deliver(server, local, job)
}

/// EXEC: gives up what its client watched, in slices if that is much.
fn forget_watched(server: &Server, local: &mut Local, job: &mut Job) {
    if let Some(watch) = job.watch.take() {
        crate::transaction::forget(server, local, watch);
    }
}

/// The job is done and committed.
pub(crate) fn deliver(server: &Server, local: &mut Local, mut job: Box<Job>) -> Delivery {
    job.place = None;
    job.races.end();
    local.count_within(server, &mut job.tally, job.client);
    forget_watched(server, local, &mut job);
    let spent = Some(Box::new(job.races.told(job.spent)));
    let State::Done(stream) = std::mem::take(&mut job.state) else {
        return Delivery { client: job.client, bytes: Vec::new(), stream: None, spent, selected: None };
    };
    let bytes = std::mem::take(&mut job.out).into_bytes();
    job.info.work_bytes.store(0, Ordering::Relaxed);
    // Before its share is given back: what waits to be freed is no reason to evict either.
    job.overlay.take().into_iter().for_each(Overlay::dispose);
    let (bytes, stream) = match stream {
        Some(_) => (bytes, stream),
        None => {
            let _ = job.holding.set(&job.work, bytes.capacity() as u64);
            assembled::assemble(bytes, std::mem::take(&mut job.rests), job.holding.take(), Some(&job.info))
        }
    };
    let delivery = Delivery { client: job.client, bytes, stream, spent, selected: None };
    discard(job);
    delivery
}

/// A race was lost to whose write that was (`stdx::doing`): the job runs again on a new snapshot. A watched key that was touched
/// ends it.
pub(crate) fn again(server: &Arc<Server>, local: &mut Local, mut job: Box<Job>, by: u64) -> Option<Delivery> {
    if job.is_useless() {
        return Some(drop_useless(server, local, job));
    }
    if was_touched(&job) {
        return Some(untrue(server, local, job));
    }
    job.races.lose_to(server, by, job.spent.thread_ns);
    job.races.lose(&server.keyspace, job.client, local.now_ms, job.spent.thread_ns);
    submit(server, local, job);
    None
}

/// Drops bytes, elsewhere if they are many.
pub(crate) fn drop_bytes(bytes: Vec<u8>) {
    if bytes.capacity() >= MANY_BYTES {
        discard(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ClientInfo;
    use crate::works;
    use std::sync::atomic::Ordering;

    const KEYS: usize = 1_000;

    pub(super) fn client(id: u64) -> Session {
        Session::new(Arc::new(ClientInfo::new(id, 0, String::new(), String::new(), 0, false, 0)), true)
    }

    /// Runs a command to where its client would be parked or answered.
    pub(super) fn run(
        server: &Arc<Server>,
        local: &mut Local,
        session: &mut Session,
        words: &[&[u8]],
    ) -> Flow {
        let (words, mut out) = (OwnedArgs::from_slices(words), Reply::new(false));
        loop {
            match crate::execute(server, local, session, words.args(), &mut out) {
                Flow::Held(_) => {}
                flow => return flow,
            }
        }
    }

    fn watch(server: &Arc<Server>, local: &mut Local, session: &mut Session, keys: &[String]) {
        let words: Vec<&[u8]> =
            std::iter::once("WATCH").chain(keys.iter().map(|k| &**k)).map(str::as_bytes).collect();
        assert!(matches!(run(server, local, session, &words), Flow::Done));
        assert_eq!(session.watch.keys.len(), KEYS);
    }

    /// What the loop would do until the client's job is over: its reply, and how many watches were left after each letter.
    pub(super) fn until_delivered(
        server: &Arc<Server>,
        local: &mut Local,
        left: impl Fn() -> usize,
    ) -> (Delivery, Vec<usize>) {
        let (mut letters, mut delivery, mut seen) = (Vec::new(), None, Vec::new());
        while delivery.is_none() || local.works.any() {
            server.mailbox(0).drain(&mut letters);
            for letter in letters.drain(..) {
                match letter {
                    Mail::Job(job) => delivery = delivery.or(finish(server, local, job)),
                    Mail::Snapshot => works::retry_waiting(server, local),
                    _ => {}
                }
                seen.push(left());
            }
            let mut done = Vec::new();
            works::advance(server, local, &mut done);
            delivery = delivery.or(done.pop());
            std::thread::yield_now();
        }
        (delivery.unwrap(), seen)
    }

    /// A long EXEC gives up what its client watched in slices, however it ends: afterwards nothing of it is left, and
    /// whoever watches the same keys still does.
    #[test]
    fn a_long_transaction_leaves_no_watch_behind() {
        let server = Server::start(Arc::default(), 1).unwrap();
        let mut local = Local::new(0, &server);
        let keys: Vec<String> = (0..KEYS).map(|i| format!("k{i}")).collect();
        for (gone, touched, write) in [
            (false, false, false),
            (false, true, false),
            (true, false, false),
            (false, false, true),
            (true, false, true),
            (true, true, true),
        ] {
            let (mut session, mut other) = (client(1), client(2));
            watch(&server, &mut local, &mut other, &keys);
            watch(&server, &mut local, &mut session, &keys);
            let mark = Arc::downgrade(&session.watch.dirty);
            assert_eq!(mark.strong_count(), KEYS + 1);
            run(&server, &mut local, &mut session, &[b"MULTI"]);
            for key in &keys {
                let get: &[&[u8]] = &[b"GET", key.as_bytes()];
                let set: &[&[u8]] = &[b"SETNX", b"written", key.as_bytes()];
                run(&server, &mut local, &mut session, if write { set } else { get });
            }
            assert!(matches!(run(&server, &mut local, &mut session, &[b"EXEC"]), Flow::Parked(_)));
            if touched {
                let mut third = client(3);
                run(&server, &mut local, &mut third, &[b"SET", b"k7", b"1"]);
            }
            if gone {
                // As the loop does: what the session still watches is given up, and its job is told.
                session.cancel.store(true, Ordering::Relaxed);
                crate::transaction::leave(&server, &mut local, &mut session);
                drop(session);
            }
            let (delivery, seen) = until_delivered(&server, &mut local, || mark.strong_count());
            let case = format!("gone {gone}, touched {touched}, write {write}");
            assert_eq!(mark.strong_count(), 0, "{case}");
            // What was committed in slices ended in one, in which some more may have been given up.
            let after_first = KEYS - crate::transaction::AT_A_STRETCH;
            // One whose mark was set is not kept for it any more.
            let expected = after_first - usize::from(touched)..=after_first + 1;
            let in_slices = seen.iter().any(|left| expected.contains(left));
            assert!(in_slices || write && !touched, "{case}: {seen:?}");
            assert_eq!(delivery.bytes == b"*-1\r\n", touched && !delivery.bytes.is_empty(), "{case}");
            // The other's watches are all there, but for the one that has told him, and are given up once.
            assert_eq!(Arc::strong_count(&other.watch.dirty), KEYS + 1 - usize::from(touched), "{case}");
            assert_eq!(other.watch.dirty.load(Ordering::Relaxed), touched, "{case}");
            let his = Arc::downgrade(&other.watch.dirty);
            run(&server, &mut local, &mut other, &[b"UNWATCH"]);
            while local.works.any() {
                works::advance(&server, &mut local, &mut Vec::new());
            }
            assert_eq!(his.strong_count(), 0, "{case}");
            run(&server, &mut local, &mut other, &[b"DEL", b"k7", b"written"]);
        }
    }

    /// A job of a command that waits has nothing to give if others emptied its key meanwhile: it answered a null before its
    /// time. Now its client waits, and is served by a job again when there is much.
    #[test]
    fn a_job_that_finds_nothing_has_its_client_wait() {
        let server = Server::start(Arc::default(), 1).unwrap();
        let mut local = Local::new(0, &server);
        let (mut session, mut other) = (client(1), client(2));
        let members: Vec<String> = (0..20_000).map(|i| format!("m{i}")).collect();
        let mut fill = |server: &Arc<Server>, local: &mut Local, key: &str| {
            for some in members.chunks(100) {
                let pairs = some.iter().flat_map(|m| [&b"1"[..], m.as_bytes()]);
                let words: Vec<&[u8]> = [&b"ZADD"[..], key.as_bytes()].into_iter().chain(pairs).collect();
                assert!(matches!(run(server, local, &mut other, &words), Flow::Done));
            }
        };
        fill(&server, &mut local, "z");
        let words: [&[u8]; 7] = [b"BZMPOP", b"1000", b"1", b"z", b"MIN", b"COUNT", b"10000"];
        assert!(matches!(run(&server, &mut local, &mut session, &words), Flow::Parked(_)));
        let mut third = client(3);
        run(&server, &mut local, &mut third, &[b"DEL", b"z"]);
        let until_letter = |local: &mut Local, wanted: fn(&Mail) -> bool| {
            loop {
                let mut letters = Vec::new();
                server.mailbox(0).drain(&mut letters);
                for letter in letters {
                    match letter {
                        letter if wanted(&letter) => return letter,
                        Mail::Job(job) => assert!(finish(&server, local, job).is_none(), "it is answered"),
                        _ => {}
                    }
                }
                works::advance(&server, local, &mut Vec::new());
                std::thread::yield_now();
            }
        };
        let Mail::Wait(wait) = until_letter(&mut local, |letter| matches!(letter, Mail::Wait(_))) else {
            panic!()
        };
        let (flow, answer) = crate::blocking::wait(&server, &mut local, &mut session, *wait, None);
        let Flow::Parked(Some(left_ms)) = flow else { panic!("it does not wait") };
        assert!((1..=1_000_000).contains(&left_ms) && answer.is_empty() && server.park.holds(1));
        // So much comes that a job takes it, and it does not matter who has more time.
        fill(&server, &mut local, "y");
        run(&server, &mut local, &mut third, &[b"RENAME", b"y", b"z"]);
        let Mail::Serve(waiter) = until_letter(&mut local, |letter| matches!(letter, Mail::Serve(_))) else {
            panic!()
        };
        assert!(!server.park.holds(1));
        crate::blocking::give_to_job(&server, &mut local, &mut session, &waiter);
        let (delivery, _) = until_delivered(&server, &mut local, || 0);
        assert!(delivery.bytes.starts_with(b"*2\r\n$1\r\nz\r\n*10000\r\n"), "{:?}", &delivery.bytes[..40]);
        run(&server, &mut local, &mut third, &[b"ZADD", b"z", b"1", b"left"]);
        assert!(server.park.is_empty());
    }
}
