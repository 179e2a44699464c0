//! What a loop does for long work, in slices between serving its clients: reading keys at a snapshot, committing.
//!
//! - L1: a slice ends after [`SLICE_NS`], between two batches of [`KEYS`] keys.
//! - L2: pieces of work take turns, so that a small one does not wait for a large one.
//! - L3: while CLIENT PAUSE stops writes no commit is decided: what is on its way stays as it is, its snapshot open, and goes on
//!   when the pause ends. What has not begun to commit gives its place to those who wait, and runs again.

use crate::actions::keys::{self, Keys};
use crate::bulk::{self, BulkJob};
use crate::job::{self, Delivery, Job};
use crate::lines::Write;
use crate::mail::{Mail, ReadKeys};
use crate::park::Registering;
use crate::pubsub::Passing;
use crate::scripts::{self, Deeds, ScriptJob};
use crate::session::{Subscriptions, Watch};
use crate::{Local, Server, actions, blocking, fetching, rows, transaction, waits};
use keyspace::{Commit, Progress};
use resp::Reply;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use stdx::points::{self, Point};

/// How long a slice may take.
const SLICE_NS: u64 = 50_000;
/// Keys read or committed at a stretch: some 10 µs.
const KEYS: usize = 32;

/// Whose commit it is.
pub enum Owner {
    Job(Box<Job>),
    Script(Box<ScriptJob>),
    Keys(Box<Keys>),
}

/// A piece of work that is done in slices.
pub enum Work {
    /// A job asks for keys at its snapshot.
    Load(Box<Job>),
    /// So does a script, on its thread.
    Read(Box<ReadKeys>),
    Commit {
        commit: Box<Commit>,
        owner: Owner,
    },
    /// What came back from its thread, and has watched keys that are not settled yet, or was held by a pause.
    Finish(Owner),
    /// A reply that is ready.
    Deliver(Delivery),
    /// A bulk, and its commit once it is under way.
    Bulk(Option<Box<Commit>>, Box<BulkJob>),
    /// Rows of a source to be installed.
    Fill(Box<rows::Fill>),
    /// Items of a source to be removed.
    Drop(Box<rows::Dropping>),
    /// Watched keys nobody watches any more.
    Forget(Box<Watch>),
    /// Keys a client begins to wait for, or ceases to.
    Register(Box<Registering>),
    /// What a client that went listened to.
    Leave(u64, Box<Subscriptions>),
    /// A client's message, on its way through the patterns.
    Publish(u64, Box<Passing>),
    /// The messages in `Local::announced`.
    Announce,
    /// Libraries of functions to be loaded into the loop's engine.
    Libraries,
    /// What scripts left in it.
    Collect,
}

impl Work {
    /// Whether it may yet change something that was not decided before.
    fn is_open(&self) -> bool {
        match self {
            Work::Commit { commit, .. } => commit.is_open(),
            Work::Bulk(commit, _) => commit.as_ref().is_none_or(|commit| commit.is_open()),
            _ => false,
        }
    }

    fn is_killed(&self) -> bool {
        matches!(self, Work::Commit { owner, .. } if owner.is_useless())
    }

    /// Whether a test holds it where it is (`stdx::points`).
    fn stays(&self) -> bool {
        points::any_armed() && self.is_held()
    }

    #[cold]
    fn is_held(&self) -> bool {
        let (commit, client) = match self {
            Work::Fill(_) => return points::stays(Point::SourceFill, 0),
            Work::Drop(_) => return points::stays(Point::SourceDrop, 0),
            Work::Register(who) => return who.is_half_in() && points::stays(Point::Register, who.client()),
            Work::Commit { commit, owner: Owner::Job(job) } => (commit, job.client),
            Work::Commit { commit, owner: Owner::Script(job) } => (commit, job.run.client),
            Work::Bulk(Some(commit), bulk) => (commit, bulk.client),
            _ => return false,
        };
        commit.is_half_covered() && points::stays(Point::CommitPlace, client)
            || commit.is_half_folded() && points::stays(Point::CommitFold, client)
    }
}

/// What CLIENT PAUSE holds (L3).
pub(crate) enum Paused {
    Work(Work),
    Job(Box<Job>),
    Script(Box<ScriptJob>),
}

impl Paused {
    /// Where its time went.
    fn spent(&mut self) -> Option<&mut waits::Spent> {
        match self {
            Paused::Job(job) => Some(&mut job.spent),
            Paused::Script(job) => Some(&mut job.spent),
            Paused::Work(Work::Commit { owner: Owner::Job(job), .. }) => Some(&mut job.spent),
            Paused::Work(Work::Commit { owner: Owner::Script(job), .. }) => Some(&mut job.spent),
            Paused::Work(Work::Bulk(_, bulk)) => Some(&mut bulk.spent),
            Paused::Work(_) => None,
        }
    }

    /// Whether others wait for its place. A commit under way keeps its own.
    fn gives_way(&self) -> bool {
        match self {
            Paused::Script(job) => job.sign.gives_way(),
            Paused::Job(job) => job.sign.gives_way(),
            Paused::Work(_) => false,
        }
    }

    fn is_killed(&self) -> bool {
        match self {
            Paused::Script(job) => job.is_killed(),
            Paused::Work(work) => work.is_killed(),
            Paused::Job(job) => job.is_useless(),
        }
    }
}

/// The work of one loop.
#[derive(Default)]
pub struct Works {
    queue: VecDeque<Work>,
    /// Since when (monotonic clock).
    paused: Vec<(u64, Paused)>,
    /// Work that waits for a place, by its ticket (`snapshots/places.rs`).
    waiting: BTreeMap<u64, Owner>,
    /// Deeds that wait for an answer by mail, by their client.
    pub(crate) acting: HashMap<u64, Box<Deeds>>,
}

/// Whether a piece of work is over.
enum Step {
    More(Work),
    Over(Option<Delivery>),
}

impl Works {
    /// True if there is something to do now.
    #[inline]
    pub fn any(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(crate) fn push(&mut self, work: Work) {
        self.queue.push_back(work);
    }

    /// A script's thread asks for keys.
    pub fn read(&mut self, request: Box<ReadKeys>) {
        self.push(Work::Read(request));
    }

    /// Keeps a write until CLIENT PAUSE ends.
    pub(crate) fn pause(&mut self, server: &Server, write: Paused) {
        server.pause.held.fetch_add(1, Relaxed);
        self.paused.push((stdx::clock::mono_ns(), write));
    }

    pub(crate) fn wait(&mut self, owner: Owner) {
        if let Some(ticket) = owner.ticket() {
            self.waiting.insert(ticket, owner);
        }
    }

    /// Pieces of work, and how many wait for a snapshot.
    pub fn load(&self) -> (usize, usize) {
        (self.queue.len(), self.waiting.len())
    }
}

/// Does a slice of what there is; replies that became ready go to `done`.
pub fn advance(server: &Arc<Server>, local: &mut Local, done: &mut Vec<Delivery>) {
    let until = local.lap() + SLICE_NS;
    while let Some(work) = local.works.queue.pop_front() {
        if work.stays() {
            local.works.queue.push_back(work);
            if local.lap() >= until {
                break;
            }
            continue;
        }
        if server.pause.stops_writes(local.now_ms) && work.is_open() && !work.is_killed() {
            local.works.pause(server, Paused::Work(work));
            continue;
        }
        match step(server, local, work) {
            // Not at the end of the queue each time: a piece of work keeps its place for a slice (L2).
            Step::More(work) if local.lap() < until => {
                local.works.queue.push_front(work);
                continue;
            }
            Step::More(work) => local.works.queue.push_back(work),
            Step::Over(delivery) => done.extend(delivery),
        }
        if local.lap() >= until {
            break;
        }
    }
}

/// Has what CLIENT PAUSE held go on, in slices, if it is over; a script that was killed meanwhile ends. Called when it may be, and now
/// and then. Cost: O(what is held).
pub fn resume(server: &Arc<Server>, local: &mut Local) {
    if local.works.paused.is_empty() {
        return;
    }
    let stopped = server.pause.stops_writes(local.now_ms);
    let now_ns = stdx::clock::mono_ns();
    let held = std::mem::take(&mut local.works.paused);
    for (since_ns, mut write) in held {
        if stopped && !write.is_killed() && !write.gives_way() {
            local.works.paused.push((since_ns, write));
            continue;
        }
        server.pause.held.fetch_sub(1, Relaxed);
        write.spent().into_iter().for_each(|spent| spent.pause_ns += now_ns.saturating_sub(since_ns));
        let write = match write {
            Paused::Job(job) if stopped && !job.is_useless() => {
                job::give_way(server, local, job);
                continue;
            }
            Paused::Script(job) if stopped && !job.is_killed() => {
                scripts::give_way(server, local, job).into_iter().for_each(|done| {
                    local.works.push(Work::Deliver(done));
                });
                continue;
            }
            write => write,
        };
        local.works.push(match write {
            Paused::Work(work) => work,
            Paused::Job(job) => Work::Finish(Owner::Job(job)),
            Paused::Script(job) => Work::Finish(Owner::Script(job)),
        });
    }
}

/// Starts what waited for a place, as far as it is its turn and there are any. Called when a snapshot was closed, and now and
/// then.
pub fn retry_waiting(server: &Arc<Server>, local: &mut Local) {
    while let Some(ticket) = server.snapshots.next_of(server, local.id) {
        match local.works.waiting.remove(&ticket) {
            None => server.snapshots.leave(ticket),
            Some(Owner::Job(job)) => job::submit(server, local, job),
            Some(Owner::Script(job)) => scripts::submit(server, local, job),
            Some(Owner::Keys(keys)) => keys::submit(server, local, keys),
        }
        if local.works.waiting.contains_key(&ticket) {
            // There was none after all: who closes the next says so.
            return;
        }
    }
}

/// Ends what waits for a place and is of no use any more. Called now and then. Cost: O(what waits).
pub fn end_useless(server: &Arc<Server>, local: &mut Local) {
    let useless = local.works.waiting.iter().filter(|(_, owner)| owner.is_useless());
    for ticket in useless.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
        let Some(owner) = local.works.waiting.remove(&ticket) else { continue };
        server.snapshots.leave(ticket);
        let delivery = match owner {
            Owner::Job(job) => Some(job::drop_useless(server, local, job)),
            Owner::Script(job) => scripts::end_useless(server, local, job),
            // Nobody waits for it.
            Owner::Keys(_) => None,
        };
        delivery.into_iter().for_each(|delivery| local.works.push(Work::Deliver(delivery)));
    }
}

/// Starts what was in a line and is the first of it now.
pub fn start_first(server: &Arc<Server>, local: &mut Local, write: Write) {
    match write {
        Write::Job(job) => job::submit(server, local, job),
        Write::Script(job) => scripts::submit(server, local, job),
        Write::Bulk(job) => bulk::go_on(server, local, job),
    }
}

/// A slice of work is done: what is left of it, if there is more.
fn more(is_left: bool, work: impl FnOnce() -> Work) -> Step {
    if is_left { Step::More(work()) } else { Step::Over(None) }
}

fn step(server: &Arc<Server>, local: &mut Local, work: Work) -> Step {
    match work {
        Work::Load(mut job) => {
            let Some(when) =
                job.overlay.as_ref().map(|overlay| (overlay.snapshot().lsn(), overlay.used_ms()))
            else {
                return Step::Over(None);
            };
            if job.is_useless() {
                return Step::Over(Some(job::drop_useless(server, local, job)));
            }
            let Job { read, body, .. } = &mut *job;
            // It only reads (X1).
            let read = stdx::panics::contain(|| {
                points::trip(Point::Load);
                read.read_some(body, &server.keyspace, when, KEYS)
            });
            match read {
                Ok(false) => return Step::More(Work::Load(job)),
                Ok(true) => server.workers.submit(job),
                Err(_) => {
                    job.fail();
                    return Step::Over(job::finish(server, local, job));
                }
            }
            Step::Over(None)
        }
        Work::Read(mut request) => {
            let read = stdx::panics::contain(|| {
                points::trip(Point::Load);
                request.read_some(&server.keyspace, KEYS)
            });
            if read == Ok(false) {
                return Step::More(Work::Read(request));
            }
            request.broken = read.is_err();
            request.answer();
            Step::Over(None)
        }
        Work::Finish(owner) => Step::Over(match owner {
            Owner::Job(job) => job::finish(server, local, job),
            Owner::Script(job) => scripts::finish(server, local, job),
            // It watches nothing.
            Owner::Keys(_) => None,
        }),
        Work::Deliver(delivery) => Step::Over(Some(delivery)),
        Work::Bulk(commit, mut bulk) => {
            waits::works_for(bulk.client);
            let mut commit = commit.unwrap_or_else(|| bulk.commit(&server.keyspace));
            let mut told = Vec::new();
            let progress = commit.advance(local.now_ms, KEYS, &mut told);
            told.into_iter().for_each(|changes| server.after(local, changes));
            match progress {
                Progress::More => Step::More(Work::Bulk(Some(commit), bulk)),
                Progress::Committed(_) => {
                    let found = commit.found();
                    job::discard(commit);
                    Step::Over(Some(bulk.deliver(server, local, Some(found))))
                }
                Progress::Lost if commit.is_refused() => {
                    job::discard(commit);
                    Step::Over(Some(bulk.deliver(server, local, None)))
                }
                Progress::Lost => {
                    bulk.lose(server, &commit, local.now_ms);
                    job::discard(commit);
                    bulk::go_on(server, local, bulk);
                    Step::Over(None)
                }
            }
        }
        Work::Fill(mut fill) => more(fetching::fill(server, local, &mut fill, KEYS), || Work::Fill(fill)),
        Work::Drop(mut dropping) => {
            more(fetching::drop_items(server, local, &mut dropping, KEYS), || Work::Drop(dropping))
        }
        Work::Forget(mut watch) => {
            more(transaction::forget_some(server, &mut watch, KEYS), || Work::Forget(watch))
        }
        Work::Register(mut registering) => {
            more(blocking::advance(server, local, &mut registering), || Work::Register(registering))
        }
        Work::Leave(client, mut subs) => {
            let is_left = actions::leave_some(server, local, client, &mut subs, KEYS);
            more(is_left, || Work::Leave(client, subs))
        }
        Work::Publish(client, mut passing) => match server.pubsub.pass(&mut passing) {
            None => Step::More(Work::Publish(client, passing)),
            // By mail: it may be a deed of a transaction that waits for the answer.
            Some(sent) => {
                let mut out = Reply::new(false);
                out.int(sent as i64);
                server.send(local.id, Mail::Reply { client, bytes: out.into_bytes(), stream: None });
                Step::Over(None)
            }
        },
        Work::Announce => {
            if local.announced.front_mut().is_none_or(|first| first.advance(&server.pubsub)) {
                local.announced.pop_front();
            }
            more(!local.announced.is_empty(), || Work::Announce)
        }
        Work::Collect => more(scripts::collect_some(local), || Work::Collect),
        Work::Libraries => more(scripts::load_some_libraries(local), || Work::Libraries),
        Work::Commit { mut commit, owner } => {
            if owner.is_useless() {
                commit.give_up();
            }
            waits::works_for(owner.client());
            let mut told = Vec::new();
            let progress = commit.advance(local.now_ms, KEYS, &mut told);
            told.into_iter().for_each(|changes| server.after(local, changes));
            match progress {
                Progress::More => Step::More(Work::Commit { commit, owner }),
                ended => {
                    let lost_to = (ended == Progress::Lost).then(|| commit.lost_to());
                    job::discard(commit);
                    Step::Over(end(server, local, owner, lost_to))
                }
            }
        }
    }
}

impl Owner {
    /// Whether it is to end: it was killed, its client was, or nobody is left to read what it reads.
    fn is_useless(&self) -> bool {
        match self {
            Owner::Job(job) => job.is_useless(),
            Owner::Script(job) => job.is_killed() || job.is_forsaken(),
            Owner::Keys(keys) => keys.gone.load(Relaxed),
        }
    }

    /// The place in the queue.
    fn ticket(&self) -> Option<u64> {
        let spent = match self {
            Owner::Job(job) => &job.spent,
            Owner::Script(job) => &job.spent,
            Owner::Keys(keys) => &keys.spent,
        };
        spent.waits.map(|queued| queued.ticket)
    }

    fn client(&self) -> u64 {
        match self {
            Owner::Job(job) => job.client,
            Owner::Script(job) => job.run.client,
            Owner::Keys(keys) => keys.client,
        }
    }
}

/// A commit is over. `lost_to`: it was lost, to whom.
fn end(server: &Arc<Server>, local: &mut Local, owner: Owner, lost_to: Option<u64>) -> Option<Delivery> {
    match (owner, lost_to) {
        (Owner::Job(job), None) => Some(job::deliver(server, local, job)),
        (Owner::Job(job), Some(by)) => job::again(server, local, job, by),
        (Owner::Script(job), None) => scripts::deliver(server, local, job),
        (Owner::Script(job), Some(by)) => scripts::again(server, local, job, by),
        // It only reads.
        (Owner::Keys(_), _) => None,
    }
}
