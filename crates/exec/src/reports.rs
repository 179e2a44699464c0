//! Answers that a client's words can make long: a pattern for many names, thousands of rules.
//!
//! ```text
//! loop ──► reporter: gather what there is (locks) ──► queue ─► demoted thread: a slice ─┬─► more: end of the queue
//!                                                       ▲────────────────────────────────┤
//! loop ◄── mail ◄── reporter: install (locks) ◄──────────────────────────────────────────┴─► done
//! ```
//!
//! - RP1: a report runs on demoted threads, in turns with all other long work, a slice of a millisecond at a
//!   time. So each client has its fair share, and a short report is not behind a long one.
//! - RP2: a report on those threads takes no lock that a loop takes. The work that needs one is done before or after,
//!   on the reporter's thread.
//! - RP3: the report of a client that has gone is dropped at its next step, unless it changes something.
//! - RP4: nothing but reports waits for these threads or for the reporter.

use crate::Server;
use parking_lot::{Condvar, Mutex};
use resp::{OwnedArgs, Reply};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use stdx::points::{self, Point};
use stdx::sieve::Sieve;

/// Bytes, or items like bytes, that a report looks at in one step.
const LOOKS: usize = 8192;
/// How long a report runs before others.
const SLICE_NS: u64 = 1_000_000;
/// How long a thread without reports stays.
const IDLE: Duration = Duration::from_secs(1);
/// Interval of the looks at a report that a test holds.
const HELD: Duration = Duration::from_millis(1);

/// An answer that is made step by step.
pub(crate) trait Report: Send {
    /// Goes on until `looks` bytes were looked at. False: nothing is left. It takes no lock (RP2).
    fn step(&mut self, out: &mut Reply, looks: &mut usize) -> bool;

    /// Ends the report where locks may be taken. A report that comes back begins anew.
    fn finish(self: Box<Self>, out: &mut Reply) -> Option<Box<dyn Report>> {
        let _ = out;
        None
    }

    /// Whether it changes something: then it is done though its client has gone.
    fn has_effects(&self) -> bool {
        false
    }
}

/// Gathers what a report needs, where locks may be taken.
pub(crate) type Gather = Box<dyn FnOnce() -> Box<dyn Report> + Send>;

/// A report with its client.
pub(crate) struct Job {
    pub client: u64,
    /// The client has gone.
    pub gone: Arc<AtomicBool>,
    pub out: Reply,
    /// Takes the answer.
    pub deliver: Box<dyn FnOnce(Vec<u8>) + Send>,
}

/// A report under way.
struct Under {
    job: Job,
    report: Box<dyn Report>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Under>,
    threads: usize,
    idle: usize,
}

/// The reports under way, and the threads that run them. See the module.
#[derive(Default)]
pub(crate) struct Reports {
    queue: Mutex<Queue>,
    came: Condvar,
}

/// Does a whole report here, for a caller that cannot wait.
pub(crate) fn at_once(gather: Gather, out: &mut Reply) {
    let mut next = Some(gather());
    while let Some(mut report) = next {
        while report.step(out, &mut { LOOKS }) {}
        next = report.finish(out);
    }
}

/// Begins a report. False: no thread could be started. O(1)
pub(crate) fn begin(server: &Arc<Server>, job: Job, gather: Gather) -> bool {
    let owner = server.clone();
    server.observe.reporter.send(move || match stdx::panics::contain(gather) {
        Ok(report) => push(&owner, Under { job, report }),
        Err(_) => fail(job),
    })
}

/// Answers that the report broke.
fn fail(job: Job) {
    let mut out = Reply::new(job.out.resp3());
    out.error(crate::job::BROKEN);
    (job.deliver)(out.into_bytes());
}

/// Queues a report behind the others, and has a thread for it.
fn push(server: &Arc<Server>, under: Under) {
    let most = std::thread::available_parallelism().map_or(1, usize::from).max(2);
    let reports = &server.reports;
    let mut queue = reports.queue.lock();
    queue.waiting.push_back(under);
    if queue.idle < queue.waiting.len() && queue.threads < most {
        let (owner, rank) = (Arc::downgrade(server), server.observe.crowd.rank());
        let made = std::thread::Builder::new().name("report".into()).spawn(move || {
            machine::threads::demote(rank.nice());
            work(&owner);
        });
        match made {
            Ok(_) => queue.threads += 1,
            Err(error) if queue.threads == 0 => {
                log::warn!("no thread for reports could be made: {error}");
                let left = std::mem::take(&mut queue.waiting);
                drop(queue);
                return left.into_iter().for_each(|under| fail(under.job));
            }
            Err(_) => {}
        }
    }
    drop(queue);
    reports.came.notify_one();
}

/// Runs reports, slice by slice in turns, until there is none for a while.
fn work(owner: &Weak<Server>) {
    while let Some(server) = owner.upgrade() {
        let Some(mut under) = next(&server.reports) else { return };
        match slice(&server, &mut under) {
            Slice::More => server.reports.queue.lock().waiting.push_back(under),
            // The connection of a client that has gone is kept until its command is answered.
            Slice::Gone | Slice::Broken => fail(under.job),
            Slice::Done => end(&server, under),
        }
    }
}

/// Waits for a report. `None`: the thread is to end.
fn next(reports: &Reports) -> Option<Under> {
    let mut queue = reports.queue.lock();
    loop {
        if let Some(under) = queue.waiting.pop_front() {
            return Some(under);
        }
        queue.idle += 1;
        let waited = reports.came.wait_for(&mut queue, IDLE);
        queue.idle -= 1;
        if waited.timed_out() && queue.waiting.is_empty() {
            queue.threads -= 1;
            return None;
        }
    }
}

enum Slice {
    More,
    Done,
    Gone,
    Broken,
}

/// Runs a report for its time.
fn slice(server: &Server, under: &mut Under) -> Slice {
    let Under { job, report } = under;
    let has_effects = report.has_effects();
    let has_gone = |job: &Job| !has_effects && job.gone.load(Ordering::Relaxed);
    if points::stays(Point::ReportStep, job.client) && !has_gone(job) {
        std::thread::sleep(HELD);
        return Slice::More;
    }
    let turn = server.work.turns.enter();
    let began_ns = stdx::clock::mono_ns();
    loop {
        if has_gone(job) {
            return Slice::Gone;
        }
        match stdx::panics::contain(|| report.step(&mut job.out, &mut { LOOKS })) {
            Ok(true) => {}
            Ok(false) => return Slice::Done,
            Err(_) => return Slice::Broken,
        }
        turn.check();
        if stdx::clock::mono_ns().saturating_sub(began_ns) >= SLICE_NS {
            return Slice::More;
        }
    }
}

/// Does what a report leaves for its end, on the reporter's thread.
fn end(server: &Arc<Server>, under: Under) {
    let owner = server.clone();
    let Under { mut job, report } = under;
    let sent =
        server.observe.reporter.send(move || match stdx::panics::contain(|| report.finish(&mut job.out)) {
            Ok(Some(report)) => push(&owner, Under { job, report }),
            Ok(None) => (job.deliver)(job.out.into_bytes()),
            Err(_) => fail(job),
        });
    debug_assert!(sent, "the reporter began it");
}

/// Writes what the reply has of a name.
type Write<N> = Box<dyn FnMut(&N, &mut Reply) + Send>;

/// An array of what is written of some names: of those that match a pattern, or of all.
pub(crate) struct Matching<N> {
    names: Vec<N>,
    /// The words, and the one that is the pattern.
    pattern: Option<(Arc<OwnedArgs>, usize)>,
    sieve: Sieve,
    next: usize,
    found: usize,
    write: Write<N>,
}

impl<N: AsRef<[u8]> + Send> Matching<N> {
    /// `nocase` ignores the case of ASCII letters. O(names)
    pub(crate) fn new(
        names: Vec<N>,
        pattern: Option<(Arc<OwnedArgs>, usize)>,
        nocase: bool,
        write: impl FnMut(&N, &mut Reply) + Send + 'static,
    ) -> Matching<N> {
        let longest = names.iter().map(|name| name.as_ref().len()).max().unwrap_or_default();
        let sieve = Sieve::new(nocase, longest);
        Matching { names, pattern, sieve, next: 0, found: 0, write: Box::new(write) }
    }
}

impl<N: AsRef<[u8]> + Send> Report for Matching<N> {
    fn step(&mut self, out: &mut Reply, looks: &mut usize) -> bool {
        while let Some(name) = self.names.get(self.next) {
            let passes = match &self.pattern {
                None => Some(true),
                Some((words, at)) => self.sieve.passes(words.args().at(*at), name.as_ref(), looks),
            };
            match passes {
                None => return true,
                Some(false) => {}
                Some(true) => {
                    let before = out.len();
                    (self.write)(name, out);
                    self.found += 1;
                    *looks = looks.saturating_sub(out.len() - before);
                }
            }
            self.next += 1;
            *looks = looks.saturating_sub(1);
            if *looks == 0 {
                return true;
            }
        }
        false
    }

    fn finish(self: Box<Self>, out: &mut Reply) -> Option<Box<dyn Report>> {
        let body = out.take();
        out.array(self.found);
        out.encoded(&body);
        None
    }
}
