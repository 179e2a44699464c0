//! Long writes: run over a snapshot, and again after each lost race, until an attempt is committed.
//!
//! ```text
//! Begins ──line, place, snapshot──► [its thread] ──► Back ──► Commits ──► Ends ──► its reply
//!   ▲                                 │ ▲             │          │
//!   │                                 ▼ │ keys        │          │
//!   │                                Reads            │          │
//!   └──────────────── a race was lost, or others waited for its place
//! ```
//!
//! - A1: nothing of an attempt has happened before its commit. So it can be dropped at any time, and run
//!   again.
//! - A2: its changes are told before it is delivered, and before it begins again (exec X3).
//! - A3: the attempt holds a place in a line, a snapshot and a protection, which are in the way of others.
//!   They end with its delivery, or before.

use crate::assembled::{self, Rests};
use crate::job::discard;
use crate::lines::Place;
use crate::piece::{Delivery, Desk, Piece, Step, Wait, Who};
use crate::races::Races;
use crate::snapshots::{Asker, Class, StopSign, refusal};
use crate::watch::Watch;
use crate::works::KEYS;
use command::Stream;
use keyspace::{Announce, Commit, Overlay, Progress, Snapshot};
use observe::ClientInfo;
use observe::tally::Tally;
use observe::waits::{self, Spent};
use resp::Reply;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::budget::{Budget, Full, Holding};
use stdx::points::{self, Point};

/// Largest number of keys that are committed at once, under the locks of all their shards. More keys are
/// committed in slices.
pub const AT_ONCE: usize = 128;

/// The stage of a long write, when its loop has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// It takes its place in a line, and its snapshot.
    Begins,
    /// The loop reads keys for it.
    Reads,
    /// It has left its thread.
    Back,
    /// Its commit is under way.
    Commits,
    /// It is committed, and its changes were told.
    Ends,
}

/// The part that all long writes have: their client, their progress, and the memory and places they hold.
pub struct Attempt {
    pub who: Who,
    pub info: Arc<ClientInfo>,
    /// Set when its client goes.
    pub gone: Option<Arc<AtomicBool>>,
    pub stage: Stage,
    pub races: Races,
    /// Its place in the line of its kind.
    pub place: Option<Place>,
    pub spent: Spent,
    /// Tells this attempt to stop.
    pub sign: StopSign,
    /// The number of times it gave its place to others.
    pub gave_way: u32,
    pub overlay: Option<Overlay>,
    /// Its changes, if they are many. They are committed in slices.
    pub commit: Option<Box<Commit>>,
    /// The watched key up to which it is settled since the snapshot.
    settled: Option<(usize, Box<[u8]>)>,
    /// The commands that ran within it.
    pub tally: Tally,
    /// Memory it holds, from the budget of work.
    pub budget: Arc<Budget>,
    pub holding: Holding,
}

impl Attempt {
    /// A write that has not begun.
    pub fn new(
        who: Who,
        info: Arc<ClientInfo>,
        gone: Option<Arc<AtomicBool>>,
        budget: Arc<Budget>,
    ) -> Attempt {
        Attempt {
            who,
            info,
            gone,
            stage: Stage::Begins,
            races: Races::new(),
            place: None,
            spent: Spent::default(),
            sign: StopSign::default(),
            gave_way: 0,
            overlay: None,
            commit: None,
            settled: None,
            tally: Tally::default(),
            budget,
            holding: Holding::default(),
        }
    }

    /// Describes it to the table of places.
    pub fn asks(&self, class: Class, for_client: bool, words: Vec<Vec<u8>>) -> Asker {
        Asker {
            client: self.who.client,
            info: Some(self.info.clone()),
            command: self.who.command,
            class,
            gave_way: self.gave_way,
            gone: self.gone.clone(),
            for_client,
            sign: self.sign.clone(),
            words,
        }
    }

    /// Whether its client has gone.
    pub fn is_orphan(&self) -> bool {
        self.gone.as_ref().is_some_and(|gone| gone.load(Ordering::Relaxed))
    }

    /// Takes so much memory from the budget. Errors: `Full`, the budget has no room. O(1).
    pub fn hold(&mut self, bytes: usize) -> Result<(), Full> {
        let held = self.holding.set(&self.budget, bytes as u64);
        self.info.work_bytes.store(self.holding.held(), Ordering::Relaxed);
        held
    }

    /// Whether a run changed so much that it is committed in slices.
    pub fn is_much(&self, overlay: &Overlay) -> bool {
        overlay.len() > AT_ONCE && overlay.is_dirty()
    }

    /// Keeps the result of a run over the overlay, sealed if it is much. O(keys · log keys) then.
    pub fn keep(&mut self, overlay: Overlay, announce: Announce) {
        if !self.is_much(&overlay) {
            self.overlay = Some(overlay);
            return;
        }
        let commit = overlay.seal(self.races.age, announce);
        self.races.remember(|| commit.hashes());
        self.commit = Some(Box::new(commit));
    }

    /// Drops everything that the attempt read and changed (A1). Its snapshot is closed now, the rest is freed
    /// elsewhere.
    pub fn drop_work(&mut self) {
        self.overlay.take().into_iter().for_each(Overlay::dispose);
        self.commit.take().into_iter().for_each(discard);
    }

    /// The reply as its client gets it. Its bytes are not memory of work any more.
    pub fn assemble(&mut self, bytes: Vec<u8>, rests: Rests) -> (Vec<u8>, Option<Box<dyn Stream>>) {
        let _ = self.holding.set(&self.budget, bytes.capacity() as u64);
        assembled::assemble(bytes, rests, self.holding.take(), Some(&self.info))
    }

    /// The delivery of its reply.
    pub fn delivery(
        &self,
        (bytes, stream): (Vec<u8>, Option<Box<dyn Stream>>),
        spent: Box<Spent>,
    ) -> Delivery {
        Delivery { client: self.who.client, bytes, stream, spent: Some(spent), selected: None }
    }

    /// Whether it may yet decide to change something.
    fn is_open(&self, by_snapshot: bool) -> bool {
        let open = |commit: &Commit| commit.is_open();
        self.stage == Stage::Commits && self.commit.as_deref().map_or(!by_snapshot, open)
    }

    /// Whether a test holds its commit.
    fn stays(&self) -> bool {
        let Some(commit) = self.commit.as_ref().filter(|_| self.stage == Stage::Commits) else {
            return false;
        };
        commit.is_half_covered() && points::stays(Point::CommitPlace, self.who.client)
            || commit.is_half_folded() && points::stays(Point::CommitFold, self.who.client)
    }
}

/// How a run on a thread ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It has run to its end.
    Done,
    /// It needs keys that are not read yet.
    Needs,
    /// Others wait for its place.
    GivesWay,
    /// An alarm rang: that write (a word of `stdx::doing`) changed what it read.
    Doomed(u64),
    /// It could not go on: a race was lost.
    Lost,
    /// It has its answer, and nothing to commit.
    Answered,
}

/// A kind of long write: a job, a script, a bulk.
pub trait Long: Send + Sized + 'static {
    fn attempt(&self) -> &Attempt;

    fn attempt_mut(&mut self) -> &mut Attempt;

    /// The number of its line. Works that lose to each other share it. `None`: it only reads.
    fn kind(&self) -> Option<u64>;

    /// Whether it runs over a snapshot, on a thread; else it is committed straight from its words.
    fn reads(&self) -> bool {
        true
    }

    /// Whether it has to end wherever it is, until its commit is decided.
    fn is_killed(&self) -> bool {
        false
    }

    /// Whether it is not worth another attempt.
    fn is_forsaken(&self) -> bool {
        false
    }

    /// Describes it to the table of places.
    fn asks(&self) -> Asker;

    /// Begins an attempt at a snapshot.
    fn begin(&mut self, snapshot: Snapshot, desk: &mut Desk<'_>);

    /// Sends it to its thread.
    fn go(self: Box<Self>, desk: &mut Desk<'_>);

    /// Reads some of the keys it needs. True when all are read.
    fn read_some(&mut self, _: &mut Desk<'_>, _: usize) -> bool {
        true
    }

    /// Notes that it panicked. Nothing of it has happened, and its client is told so.
    fn fail(&mut self);

    /// The way its run ended. It is asked again as long as the work is not over.
    fn end(&mut self, desk: &Desk<'_>) -> End;

    /// Whether there is something to commit.
    fn changes(&self) -> bool;

    /// EXEC: the keys that its client watched.
    fn watch(&mut self) -> Option<&mut Watch> {
        None
    }

    /// Its effects, for the log and replicas.
    fn announce(&mut self, desk: &Desk<'_>) -> Announce;

    /// A commit straight from its words.
    fn commit(&mut self, _: &Desk<'_>) -> Option<Box<Commit>> {
        None
    }

    /// Notes that its commit is over.
    fn committed(&mut self, _: &Commit, _: &Progress) {}

    /// The time that all attempts took so far.
    fn took_ns(&self) -> u64 {
        self.attempt().spent.thread_ns
    }

    /// Forgets the effects of an attempt of which nothing has happened (A1).
    fn forget(&mut self);

    /// The wait for its client, if it found nothing to do.
    fn waits(&mut self) -> Option<Box<Wait>> {
        None
    }

    /// Sets its answer, whatever it did.
    fn answers(&mut self, write: impl FnOnce(&mut Reply));

    /// Whether it tells something besides its changes, after them.
    fn says(&self) -> bool {
        false
    }

    /// The reply. It holds nothing any more that others wait for.
    fn reply(self: Box<Self>, spent: Box<Spent>, desk: &mut Desk<'_>) -> Option<Delivery>;

    /// Ends it because no client wants it any more. Nothing of it has happened.
    fn end_useless(self: Box<Self>, desk: &mut Desk<'_>) -> Step;
}

impl<L: Long> Piece for L {
    fn advance(self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        match self.attempt().stage {
            Stage::Begins if self.attempt().spent.waits.is_some() && self.is_useless() => {
                self.end_useless(desk)
            }
            Stage::Begins => submit(self, desk),
            Stage::Reads => read(self, desk),
            Stage::Back => finish(self, desk),
            Stage::Commits => commit(self, desk),
            Stage::Ends => deliver(self, desk),
        }
    }

    fn who(&self) -> Who {
        self.attempt().who
    }

    fn is_open(&self) -> bool {
        self.attempt().is_open(self.reads())
    }

    fn is_useless(&self) -> bool {
        // One that is back is committed, though its client has gone.
        self.is_killed() || self.attempt().stage != Stage::Back && self.is_forsaken()
    }

    fn gives_way(&self) -> bool {
        self.attempt().stage == Stage::Back && self.attempt().sign.gives_way()
    }

    fn spent(&mut self) -> Option<&mut Spent> {
        Some(&mut self.attempt_mut().spent)
    }

    fn stands_first(&mut self, place: Place) {
        self.attempt_mut().place = Some(place);
    }

    fn stays(&self) -> bool {
        self.attempt().stays()
    }
}

/// Opens its snapshot and sends it to its thread. It waits if too many are open, or in the line of its kind.
pub fn submit<L: Long>(work: Box<L>, desk: &mut Desk<'_>) -> Step {
    match ready(work, desk) {
        Ok(work) => send_off(work, desk),
        Err(step) => step,
    }
}

/// Gives it its place in the line of its kind, and its snapshot, unless it waits for one of them or needs
/// none.
pub fn ready<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>) -> Result<Box<L>, Step> {
    // From here on another thread has it, and its client waits for it.
    stdx::panics::changes();
    work.attempt_mut().stage = Stage::Begins;
    if work.attempt().spent.waits.is_none() {
        let Some(first) = desk.work.lines.stand(work) else { return Err(Step::Over(None)) };
        work = first;
        work.attempt_mut().spent.got_place();
    }
    if !work.reads() {
        work.attempt_mut().stage = Stage::Commits;
        return Err(Step::More(work));
    }
    let attempt = work.attempt_mut();
    attempt.settled = None;
    attempt.sign = StopSign::default();
    let asker = work.asks();
    let waits = &mut work.attempt_mut().spent.waits;
    let Some(snapshot) = desk.work.snapshots.open(desk.loop_id, asker, waits) else {
        let ticket = waits.map_or(0, |queued| queued.ticket);
        return Err(Step::Queued(ticket, work));
    };
    work.attempt_mut().spent.got_snapshot();
    work.begin(snapshot, desk);
    Ok(work)
}

/// Sends it to its thread.
fn send_off<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>) -> Step {
    let attempt = work.attempt_mut();
    attempt.stage = Stage::Back;
    attempt.spent.queued_at_ns = stdx::clock::mono_ns();
    work.go(desk);
    Step::Over(None)
}

/// Reads some of the keys it needs.
fn read<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>) -> Step {
    if work.is_useless() {
        return work.end_useless(desk);
    }
    // It only reads (X1).
    let read = stdx::panics::contain(|| {
        points::trip(Point::Load);
        work.read_some(desk, KEYS)
    });
    match read {
        Ok(false) => Step::More(work),
        Ok(true) => send_off(work, desk),
        Err(_) => {
            work.fail();
            work.attempt_mut().stage = Stage::Back;
            finish(work, desk)
        }
    }
}

/// Takes it back from its thread: reads the keys it asks for, commits its changes, or lets it begin again.
fn finish<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>) -> Step {
    let end = work.end(desk);
    if end == End::Done && work.changes() && desk.work.follows.refuses(work.attempt().who.client) {
        return refuse(work, desk);
    }
    if end == End::Done {
        if work.changes() && !work.is_killed() && desk.stops_writes() {
            return if work.gives_way() { give_way(work, desk) } else { Step::Held(work) };
        }
        if settle_some(&mut *work, desk) {
            return Step::More(work);
        }
    }
    let goes_on = matches!(end, End::Needs | End::Doomed(_)) || end == End::GivesWay && !work.is_killed();
    let overlay = work.attempt().overlay.as_ref().filter(|_| !goes_on);
    if let Some(refusal) = overlay.and_then(|overlay| refusal(overlay.snapshot())) {
        work.forget();
        work.answers(|out| out.error(&refusal));
        return deliver(work, desk);
    }
    match end {
        End::Answered => deliver(work, desk),
        _ if work.is_killed() => work.end_useless(desk),
        End::Needs => {
            work.attempt_mut().stage = Stage::Reads;
            Step::More(work)
        }
        End::GivesWay => give_way(work, desk),
        End::Doomed(by) => begin_again(work, desk, by),
        End::Lost => again(work, desk, 0),
        End::Done if was_touched(&mut *work) => untrue(work, desk),
        End::Done => decide(work, desk),
    }
}

/// Answers a write whose server became a replica before its commit began.
#[cold]
fn refuse<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>) -> Step {
    work.attempt_mut().drop_work();
    work.forget();
    work.answers(|out| out.error(crate::follows::READONLY));
    deliver(work, desk)
}

/// Commits its changes at one snapshot, if they are not many.
fn decide<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>) -> Step {
    if work.attempt().commit.is_some() {
        work.attempt_mut().stage = Stage::Commits;
        return Step::More(work);
    }
    let Some(overlay) = work.attempt_mut().overlay.take() else { return deliver(work, desk) };
    if !overlay.is_dirty() {
        // After a FLUSHDB what was read before and after it are of two moments: a mere read starts over as
        // well.
        let current = overlay.snapshot().is_current();
        overlay.dispose();
        if !current {
            return again(work, desk, 0);
        }
        return match work.waits() {
            Some(mut wait) => {
                wait.spent = *close(&mut *work, desk);
                discard(work);
                Step::Waits(wait)
            }
            None => deliver(work, desk),
        };
    }
    stdx::panics::changes();
    // Not for mere reads: only a flush makes those start over, and they may know very many keys.
    work.attempt_mut().races.remember(|| overlay.hashes());
    let announce = work.announce(desk);
    match overlay.commit(desk.now_ms, announce) {
        Ok(changes) => {
            desk.tell(changes);
            end(work, desk)
        }
        Err(keyspace::Lost { told, by }) => {
            desk.tell(told);
            again(work, desk, by)
        }
    }
}

/// Goes on with its commit.
fn commit<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>) -> Step {
    if work.attempt().commit.is_none() && desk.work.follows.refuses(work.attempt().who.client) {
        return refuse(work, desk);
    }
    let commit = work.attempt_mut().commit.take().or_else(|| work.commit(desk));
    let Some(mut commit) = commit else { return deliver(work, desk) };
    if work.is_useless() {
        commit.give_up();
    }
    waits::works_for(work.attempt().who.client);
    let progress = commit.advance(desk.now_ms, KEYS, &mut desk.tray.told);
    if progress == Progress::More {
        work.attempt_mut().commit = Some(commit);
        return Step::More(work);
    }
    work.committed(&commit, &progress);
    let lost_to = (progress == Progress::Lost && !commit.is_refused()).then(|| commit.lost_to());
    discard(commit);
    match lost_to {
        Some(by) => again(work, desk, by),
        None => end(work, desk),
    }
}

/// Ends a committed write: its changes are told first, then its reply is delivered (A2).
fn end<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>) -> Step {
    if work.says() {
        work.attempt_mut().stage = Stage::Ends;
        return Step::Tell(work);
    }
    deliver(work, desk)
}

/// Runs it again on a new snapshot, after a race was lost to the write `by` (a word of `stdx::doing`). A
/// watched key that was touched ends it.
fn again<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>, by: u64) -> Step {
    if work.is_killed() {
        return work.end_useless(desk);
    }
    if was_touched(&mut *work) {
        return untrue(work, desk);
    }
    let ns = work.took_ns();
    let attempt = work.attempt_mut();
    attempt.races.lost_to = desk.lost_to(by, ns).or(attempt.races.lost_to);
    attempt.races.lose(&desk.work.keyspace, attempt.who.client, desk.now_ms, ns);
    attempt.stage = Stage::Begins;
    Step::Tell(work)
}

/// Begins it again after an alarm ended the attempt. That earns it no protection (alarm N1).
fn begin_again<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>, by: u64) -> Step {
    let ns = work.took_ns();
    let attempt = work.attempt_mut();
    attempt.drop_work();
    attempt.races.lost_to = desk.lost_to(by, ns).or(attempt.races.lost_to);
    attempt.races.doomed = true;
    submit(work, desk)
}

/// Gives its place to the works that wait, and starts over behind them (job J7), unless it is of no use any
/// more.
fn give_way<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>) -> Step {
    let attempt = work.attempt_mut();
    attempt.gave_way = attempt.sign.gave_way(attempt.gave_way);
    if work.is_killed() || work.is_forsaken() {
        return work.end_useless(desk);
    }
    work.attempt_mut().drop_work();
    work.forget();
    submit(work, desk)
}

/// EXEC: whether a watched key was touched before the snapshot or since.
fn was_touched(work: &mut impl Long) -> bool {
    work.watch().is_some_and(|watch| watch.is_marked())
}

/// EXEC: folds decided changes of watched keys. True if some are left.
fn settle_some(work: &mut impl Long, desk: &mut Desk<'_>) -> bool {
    let mut settled = work.attempt_mut().settled.take();
    let (keyspace, now_ms) = (&desk.work.keyspace, desk.now_ms);
    let more = work
        .watch()
        .is_some_and(|watch| watch.settle_some(keyspace, now_ms, &mut settled, &mut desk.tray.told));
    work.attempt_mut().settled = settled;
    more
}

/// Answers an EXEC whose watched keys were touched. Nothing of it has happened.
fn untrue<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>) -> Step {
    work.forget();
    work.answers(Reply::null_array);
    deliver(work, desk)
}

/// Ends all that others may wait for (A3), and counts the commands that ran within it.
pub fn close<L: Long>(work: &mut L, desk: &mut Desk<'_>) -> Box<Spent> {
    if let Some(watch) = work.watch().map(std::mem::take) {
        desk.forget(watch);
    }
    let attempt = work.attempt_mut();
    attempt.place = None;
    attempt.races.end();
    desk.count(attempt.who.client, std::mem::take(&mut attempt.tally));
    attempt.info.work_bytes.store(0, Ordering::Relaxed);
    // This comes before its share is given back: memory that waits to be freed is no reason to evict either.
    attempt.drop_work();
    Box::new(attempt.races.told(attempt.spent))
}

/// Delivers the reply of a work that is over.
pub fn deliver<L: Long>(mut work: Box<L>, desk: &mut Desk<'_>) -> Step {
    let spent = close(&mut *work, desk);
    Step::Over(work.reply(spent, desk))
}
