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
//! - RP2: a report on those threads takes no lock that a loop takes. The work that needs one is done before
//!   or after, on the reporter's thread.
//! - RP3: the report of a client that has gone is dropped at its next step, unless it changes something.
//! - RP4: nothing but reports waits for these threads or for the reporter.

use observe::Observe;
use parking_lot::{Condvar, Mutex};
use resp::{OwnedArgs, Reply};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use stdx::points::{self, Point};
use stdx::sieve::Sieve;
use stdx::turns::Turns;

/// Bytes, or items like bytes, that a report looks at in one step.
const LOOKS: usize = 8192;
/// How long a report runs before others.
const SLICE_NS: u64 = 1_000_000;
/// How long a thread without reports stays.
const IDLE: Duration = Duration::from_secs(1);
/// Interval of the looks at a report that a test holds.
const HELD: Duration = Duration::from_millis(1);

/// An answer that is made step by step.
pub trait Report: Send {
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
pub type MakeReport = Box<dyn FnOnce() -> Box<dyn Report> + Send>;

/// The client that gets a report.
pub struct Recipient {
    pub client: u64,
    /// The client has gone.
    pub gone: Arc<AtomicBool>,
    pub out: Reply,
    /// Takes the answer.
    pub deliver: Box<dyn FnOnce(Vec<u8>) + Send>,
}

/// A report under way.
struct Under {
    recipient: Recipient,
    report: Box<dyn Report>,
}

#[derive(Default)]
struct Waiting {
    reports: VecDeque<Under>,
    threads: usize,
    idle: usize,
}

/// The reports under way, and the threads that run them. See the module.
pub struct Reports {
    observe: Arc<Observe>,
    turns: Arc<Turns>,
    waiting: Mutex<Waiting>,
    came: Condvar,
}

/// Does a whole report here, for a caller that cannot wait.
pub fn at_once(make: MakeReport, out: &mut Reply) {
    let mut next = Some(make());
    while let Some(mut report) = next {
        while report.step(out, &mut { LOOKS }) {}
        next = report.finish(out);
    }
}

/// Answers that the report broke.
fn fail(recipient: Recipient) {
    let mut out = Reply::new(recipient.out.resp3());
    out.error(crate::job::BROKEN);
    (recipient.deliver)(out.into_bytes());
}

impl Reports {
    /// No thread runs yet. `turns` are those of all long work.
    pub fn new(observe: Arc<Observe>, turns: Arc<Turns>) -> Arc<Reports> {
        Arc::new(Reports { observe, turns, waiting: Mutex::default(), came: Condvar::new() })
    }

    /// Begins a report. False: no thread could be started. O(1)
    pub fn begin(self: &Arc<Self>, recipient: Recipient, make: MakeReport) -> bool {
        let owner = self.clone();
        self.observe.reporter.send(move || match stdx::panics::contain(make) {
            Ok(report) => owner.push(Under { recipient, report }),
            Err(_) => fail(recipient),
        })
    }

    /// Queues a report behind the others, and has a thread for it.
    fn push(self: &Arc<Self>, under: Under) {
        let most = std::thread::available_parallelism().map_or(1, usize::from).max(2);
        let mut waiting = self.waiting.lock();
        waiting.reports.push_back(under);
        if waiting.idle < waiting.reports.len() && waiting.threads < most {
            let (owner, rank) = (Arc::downgrade(self), self.observe.crowd.rank());
            let made = std::thread::Builder::new().name("report".into()).spawn(move || {
                machine::threads::demote(rank.nice());
                work(&owner);
            });
            match made {
                Ok(_) => waiting.threads += 1,
                Err(error) if waiting.threads == 0 => {
                    log::warn!("no thread for reports could be made: {error}");
                    let left = std::mem::take(&mut waiting.reports);
                    drop(waiting);
                    return left.into_iter().for_each(|under| fail(under.recipient));
                }
                Err(_) => {}
            }
        }
        drop(waiting);
        self.came.notify_one();
    }

    /// Waits for a report. `None`: the thread is to end.
    fn next(&self) -> Option<Under> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(under) = waiting.reports.pop_front() {
                return Some(under);
            }
            waiting.idle += 1;
            let waited = self.came.wait_for(&mut waiting, IDLE);
            waiting.idle -= 1;
            if waited.timed_out() && waiting.reports.is_empty() {
                waiting.threads -= 1;
                return None;
            }
        }
    }

    /// Runs a report for its time.
    fn slice(&self, under: &mut Under) -> Slice {
        let Under { recipient, report } = under;
        let has_effects = report.has_effects();
        let has_gone = |recipient: &Recipient| !has_effects && recipient.gone.load(Ordering::Relaxed);
        if points::stays(Point::ReportStep, recipient.client) && !has_gone(recipient) {
            std::thread::sleep(HELD);
            return Slice::More;
        }
        let turn = self.turns.enter();
        let began_ns = stdx::clock::mono_ns();
        loop {
            if has_gone(recipient) {
                return Slice::Gone;
            }
            match stdx::panics::contain(|| report.step(&mut recipient.out, &mut { LOOKS })) {
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
    fn end(self: &Arc<Self>, under: Under) {
        let owner = self.clone();
        let Under { mut recipient, report } = under;
        let sent = self.observe.reporter.send(move || {
            match stdx::panics::contain(|| report.finish(&mut recipient.out)) {
                Ok(Some(report)) => owner.push(Under { recipient, report }),
                Ok(None) => (recipient.deliver)(recipient.out.into_bytes()),
                Err(_) => fail(recipient),
            }
        });
        debug_assert!(sent, "the reporter began it");
    }
}

/// Runs reports, slice by slice in turns, until there is none for a while.
fn work(owner: &Weak<Reports>) {
    while let Some(reports) = owner.upgrade() {
        let Some(mut under) = reports.next() else { return };
        match reports.slice(&mut under) {
            Slice::More => reports.waiting.lock().reports.push_back(under),
            // The connection of a client that has gone is kept until its command is answered.
            Slice::Gone | Slice::Broken => fail(under.recipient),
            Slice::Done => reports.end(under),
        }
    }
}

enum Slice {
    More,
    Done,
    Gone,
    Broken,
}

/// Writes what the reply has of a name.
type Write<N> = Box<dyn FnMut(&N, &mut Reply) + Send>;

/// An array of what is written of some names: of those that match a pattern, or of all.
pub struct Matching<N> {
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
    pub fn new(
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
