//! Long work of a client: run over an overlay on a worker, committed by its loop.
//!
//! ```text
//! loop: snapshot ─► worker: which keys? ─► loop: reads them, in slices ─► worker: runs, seals ─► loop: commits, in slices
//!           ▲                                                                                        │ lost a race
//!           └────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! - J1: a worker takes no shard lock. It is demoted, and if it were preempted it would hold the lock for
//!   milliseconds. Loops read the keys it needs and commit its changes.
//! - J2: a job of a disconnected client is dropped if it only reads. A write that was fully received
//!   completes.
//! - J3: a write that lost `PROTECT_FROM` races (`races.rs`) is protected for `PROTECTED_MS` in each further
//!   attempt: writers of its keys wait. A write that lost `INSIST_FROM` races is protected for as long as all
//!   its attempts took, and a second at least. So a write that never ends keeps no keys for ever. Protection
//!   ends with the delivery: the rest is freed later ([`discard`]), and no client waits for that.
//! - J4: nothing on the loop grows with the arguments: they are handed over, not copied, and freed by the
//!   reclaimer.
//! - J5: writes of one kind that lose to each other go one after the other (`lines.rs`).
//! - J6: a write that has lost, or is the first of its line, learns at once when it loses (`job/alarm.rs`):
//!   its attempt is *doomed*.
//! - J7: a job that is asked to give its place to others (`snapshots/places.rs`) drops its attempt and starts
//!   over behind them. A job whose client was killed ends, unless its commit is decided.
//! - J8: memory beside the data, above all the overlay and the reply, comes from the budget of work
//!   (`work-max-memory`). Without room for more the job ends with an error, and nothing of it is done. A long
//!   reply is kept so until it is sent, and large values in it as handles (`assembled.rs`).

mod alarm;
mod run;
mod wanted;

pub use wanted::{Name, Wanted};

use alarm::Alarm;
pub use stdx::reclaim::discard;

use crate::assembled::Rests;
use crate::attempt::{Attempt, End, Long};
use crate::lines;
use crate::piece::{Delivery, Desk, Step, Wait, Who};
use crate::queue::{self, Queue};
use crate::snapshots::{Asker, Class, shortened};
use crate::watch::Watch;
use command::{Block, Command, Handler, Stream, facts};
use keyspace::{Announce, Look, Overlay, Snapshot};
use observe::ClientInfo;
use observe::tally::Thresholds;
use observe::waits::Spent;
use resp::{Args, OwnedArgs, Reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::budget::Budget;

/// Words from which on a command goes to a worker without a look at its keys.
pub const MANY_WORDS: usize = command::INLINE_WORDS;
/// Bytes of a command from which on it goes to a worker.
pub const MANY_BYTES: usize = 128 * 1024;

/// One command to be run.
pub struct Call {
    pub command: &'static Command,
    pub handler: Handler,
    pub args: Arc<OwnedArgs>,
}

/// The commands of a job.
pub enum Body {
    One(Call),
    /// The commands of an EXEC, all of them functions of keys.
    Exec(Queue),
}

impl Body {
    /// Name of the command, for clients that waited for it.
    pub fn command(&self) -> &'static str {
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

    /// The handler of a command: its row's, or one that an action brought along.
    fn handler(&self, i: usize) -> Option<Handler> {
        match self {
            Body::One(call) => Some(call.handler),
            Body::Exec(queue) => queue::handler(queue.at(i).0),
        }
    }

    /// The words of a command, to be kept.
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

    /// Whether the command that names a key uses it whatever its client asked for.
    fn touches(&self, name: &Name) -> bool {
        matches!(name, Name::Word(call, _) if self.at(*call as usize).0.is(facts::TOUCHES))
    }

    fn is_write(&self) -> bool {
        match self {
            Body::One(call) => call.command.is_write(),
            Body::Exec(queue) => queue.has_writes(),
        }
    }
}

/// The state of a job on its thread.
#[derive(Default)]
pub enum State {
    #[default]
    Ready,
    /// It needs keys that are not read yet.
    NeedKeys(Wanted),
    Done(Option<Box<dyn Stream>>),
    /// It was told to stop. The keys it read were changed meanwhile, others wait for its place, or no client
    /// wants it any more.
    Stopped,
}

/// See the module.
pub struct Job {
    pub attempt: Attempt,
    body: Body,
    db: usize,
    now_ms: u64,
    /// The time at which the keys it looks at count as used, if they do.
    look: Look,
    /// Keys read for it, not yet in the overlay.
    read: Wanted,
    out: Reply,
    effects: Vec<(u32, Arc<OwnedArgs>)>,
    state: State,
    random: u64,
    started_ns: u64,
    may_stream: bool,
    /// Its keys are known to its loop, or it has named them.
    planned: bool,
    /// The wait of a blocking command that found nothing.
    block: Option<Block>,
    /// EXEC: the watched keys.
    watch: Option<Watch>,
    /// The alarm that stops this attempt.
    alarm: Option<Alarm>,
    /// EXEC: rests of its commands' replies.
    rests: Rests,
}

/// The answer to long work that panicked.
pub const BROKEN: &str = "ERR internal error, nothing was changed; the server's log says more";

/// The client of a job, as its loop knows it when the job begins.
pub struct Client {
    pub loop_id: usize,
    pub info: Arc<ClientInfo>,
    /// Set when the client goes.
    pub gone: Arc<AtomicBool>,
    pub db: usize,
    pub resp3: bool,
    pub may_stream: bool,
    pub now_ms: u64,
    /// How it looks at keys.
    pub look: Look,
    pub random: u64,
}

impl Job {
    /// A job that has not begun. If it is `planned`, its loop reads the keys that its command names as it
    /// begins.
    pub fn new(client: Client, body: Body, budget: Arc<Budget>, planned: bool) -> Box<Job> {
        let Client { loop_id, info, gone, .. } = client;
        let who = Who { client: info.id, command: body.command(), loop_id };
        Box::new(Job {
            attempt: Attempt::new(who, info, Some(gone), budget),
            body,
            db: client.db,
            now_ms: client.now_ms,
            look: client.look,
            read: Wanted::default(),
            out: Reply::new(client.resp3),
            effects: Vec::new(),
            state: State::Ready,
            random: client.random,
            started_ns: stdx::clock::mono_ns(),
            may_stream: client.may_stream,
            planned,
            block: None,
            watch: None,
            alarm: None,
            rests: Rests::new(),
        })
    }

    /// A job for the queue of an EXEC. Commands beyond `thresholds` are noted for the logs.
    pub fn of_exec(
        client: Client,
        queue: Queue,
        watch: Watch,
        budget: Arc<Budget>,
        thresholds: Thresholds,
    ) -> Box<Job> {
        let mut job = Job::new(client, Body::Exec(queue), budget, false);
        job.watch = Some(watch);
        job.attempt.tally.notes_from(thresholds);
        job
    }

    /// Forgets the results of an earlier run.
    fn clear(&mut self) {
        self.out.clear();
        self.effects.clear();
        self.attempt.tally.clear();
        self.rests.clear();
        self.block = None;
    }

    /// When its keys are read, and used. `None`: it has no snapshot.
    fn when(&self) -> Option<wanted::When> {
        let overlay = self.attempt.overlay.as_ref()?;
        let (lsn, used_ms) = (overlay.snapshot().lsn(), overlay.used_ms());
        Some(wanted::When { lsn, used_ms, now_ms: self.now_ms })
    }

    /// Sets an alarm if it has lost a race, or stands in a line (J6).
    fn be_alarmed(&mut self, desk: &mut Desk<'_>) {
        let attempt = &self.attempt;
        let may_lose = attempt.races.lost > 0 || attempt.place.is_some();
        if let Body::One(call) = &self.body
            && self.body.is_write()
            && !attempt.races.doomed
            && may_lose
        {
            let command = (call.command, call.args.args());
            self.alarm = Alarm::set(desk, self.db, command, &attempt.sign.stop);
        }
    }
}

impl Long for Job {
    fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    fn attempt_mut(&mut self) -> &mut Attempt {
        &mut self.attempt
    }

    fn kind(&self) -> Option<u64> {
        if !self.body.is_write() || self.body.len() == 0 {
            return None;
        }
        let (command, args) = self.body.at(0);
        let key = command.first_key().and_then(|at| args.get(at));
        Some(lines::kind(command.name.as_bytes(), self.db, key))
    }

    /// Its client was killed, or has gone and it only reads (J2, J7). A command of the primary is done all the
    /// same: the stream goes on behind it.
    fn is_killed(&self) -> bool {
        let info = &self.attempt.info;
        let is_link = info.flags.load(Ordering::Relaxed) & observe::client::flag::PRIMARY != 0;
        !is_link && info.killed.load(Ordering::Relaxed) || !self.body.is_write() && self.attempt.is_orphan()
    }

    fn asks(&self) -> Asker {
        let words = match &self.body {
            Body::One(call) => shortened(call.args.args().iter()),
            Body::Exec(_) => Vec::new(),
        };
        self.attempt.asks(Class::Job, !self.body.is_write(), words)
    }

    fn begin(&mut self, snapshot: Snapshot, desk: &mut Desk<'_>) {
        // It may have waited.
        self.now_ms = desk.now_ms;
        let mut overlay = Overlay::new(snapshot, self.look);
        if self.planned && self.attempt.races.lost == 0 {
            if let Body::One(call) = &self.body {
                let args = call.args.args();
                call.command.each_key(args, &mut |i, _| overlay.load(self.db, [args.at(i)]));
            }
        } else {
            self.planned = false;
        }
        self.be_alarmed(desk);
        self.attempt.overlay = Some(overlay);
        self.state = State::Ready;
    }

    fn go(self: Box<Self>, desk: &mut Desk<'_>) {
        desk.work.workers.submit(self);
    }

    fn read_some(&mut self, desk: &mut Desk<'_>, count: usize) -> bool {
        let Some(when) = self.when() else { return true };
        self.read.read_some(&self.body, &desk.work.keyspace, when, count)
    }

    fn fail(&mut self) {
        (self.attempt.overlay, self.attempt.commit) = (None, None);
        self.answers(|out| out.error(BROKEN));
    }

    fn end(&mut self, _: &Desk<'_>) -> End {
        let is_over = matches!(self.state, State::Done(_) | State::Stopped);
        // It rings for no job any more; the write that made it ring is asked below.
        let alarm = if is_over { self.alarm.take() } else { None };
        match std::mem::take(&mut self.state) {
            // It has not run.
            State::Ready => End::Lost,
            State::NeedKeys(wanted) => {
                self.read = wanted;
                End::Needs
            }
            State::Stopped if self.attempt.sign.gives_way() => End::GivesWay,
            State::Stopped => {
                let since = self.attempt.overlay.as_ref().map(|overlay| overlay.snapshot().lsn());
                let by = alarm.zip(since).map(|(alarm, since)| alarm.rung_by(since));
                End::Doomed(by.unwrap_or(0))
            }
            done => {
                self.state = done;
                End::Done
            }
        }
    }

    fn changes(&self) -> bool {
        self.body.is_write()
    }

    fn watch(&mut self) -> Option<&mut Watch> {
        self.watch.as_mut()
    }

    fn announce(&mut self, _: &Desk<'_>) -> Announce {
        self.tells()
    }

    fn forget(&mut self) {
        discard(std::mem::take(&mut self.effects));
        self.alarm = None;
    }

    fn waits(&mut self) -> Option<Box<Wait>> {
        let (block, Body::One(Call { command, args, .. })) = (self.block.clone()?, &self.body) else {
            return None;
        };
        let (client, spent) = (self.attempt.who.client, Spent::default());
        let wait = Wait { client, command, args: args.clone(), block, since_ns: self.started_ns, spent };
        Some(Box::new(wait))
    }

    fn answers(&mut self, write: impl FnOnce(&mut Reply)) {
        self.clear();
        write(&mut self.out);
        self.state = State::Done(None);
    }

    fn reply(mut self: Box<Self>, spent: Box<Spent>, _: &mut Desk<'_>) -> Option<Delivery> {
        let State::Done(stream) = std::mem::take(&mut self.state) else {
            return Some(self.attempt.delivery((Vec::new(), None), spent));
        };
        let bytes = std::mem::take(&mut self.out).into_bytes();
        let reply = match stream {
            Some(_) => (bytes, stream),
            None => {
                let rests = std::mem::take(&mut self.rests);
                self.attempt.assemble(bytes, rests)
            }
        };
        let delivery = self.attempt.delivery(reply, spent);
        discard(self);
        Some(delivery)
    }

    /// Its client may have sent more. The snapshot is closed now, and the rest freed later.
    fn end_useless(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        self.attempt.tally.clear();
        let spent = crate::attempt::close(&mut *self, desk);
        let delivery = self.attempt.delivery((Vec::new(), None), spent);
        discard(self);
        Step::Over(Some(delivery))
    }
}

/// Drops bytes, elsewhere if they are many.
pub fn drop_bytes(bytes: Vec<u8>) {
    if bytes.capacity() >= MANY_BYTES {
        discard(bytes);
    }
}
