//! Long work, elsewhere: a run over an overlay on a demoted thread.
//!
//! ```text
//! loop: snapshot, load the keys ──► worker: run the handler over the overlay ──► loop: commit, reply
//!                        ▲                         │ asked for keys it had not loaded, or lost a race
//!                        └─────────────────────────┘
//! ```
//!
//! - J1: a worker takes no shard lock: it is demoted, and preempted it would hold the lock for milliseconds. Loops load
//!   what it needs and commit what it did.
//! - J2: a job of a client that went is dropped if it only reads; a write that was fully received completes.
//! - J3: a write that lost [`TRIES`] races is run by the loop under the locks of its keys.

use command::{Budget, Caller, Command, Cx, Error, Handler, Outcome, Stream};
use keyspace::{Keyspace, Overlay, View};
use parking_lot::{Condvar, Mutex};
use resp::{OwnedArgs, Reply};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use stdx::points::{self, Point};

/// Lost races before a write is run under locks (J3).
pub const TRIES: u32 = 4;

/// How far a job is.
#[derive(Default)]
pub enum State {
    #[default]
    Ready,
    /// The handler asked for keys the overlay did not know; load them and run again.
    NeedKeys,
    Done(Option<Box<dyn Stream>>),
    Dropped,
}

/// A run on its way through a worker.
pub struct Job {
    pub client: u64,
    pub loop_id: usize,
    pub command: &'static Command,
    pub handler: Handler,
    pub args: OwnedArgs,
    pub db: usize,
    pub now_ms: u64,
    pub overlay: Overlay,
    pub cancel: Arc<AtomicBool>,
    pub out: Reply,
    pub effects: Vec<OwnedArgs>,
    pub state: State,
    pub tries: u32,
    pub random: u64,
    pub started_ns: u64,
    pub may_stream: bool,
}

impl Job {
    /// Runs the handler over the overlay.
    fn run(&mut self, keyspace: &Keyspace) {
        self.out.clear();
        let mut view = View::overlay(keyspace, &mut self.overlay, self.db, self.now_ms);
        let caller = Caller { may_stream: self.may_stream, client_id: self.client, ..Caller::default() };
        let cancel = (!self.command.is_write()).then_some(&*self.cancel);
        let mut cx = Cx::new(&mut view, &mut self.out, caller, Budget::unlimited(cancel), self.random);
        let result = (self.handler)(&mut cx, self.args.args());
        let outcome = std::mem::take(&mut cx.outcome);
        self.effects = std::mem::take(&mut cx.effects);
        drop(cx);
        drop(view);
        if self.overlay.has_missing() {
            self.state = State::NeedKeys;
            return;
        }
        self.state = match (result, outcome) {
            (Err(Error::Cancelled), _) => State::Dropped,
            (Err(error), _) => {
                self.out.clear();
                self.out.error(&error.text());
                State::Done(None)
            }
            (Ok(()), Outcome::Stream(stream)) => State::Done(Some(stream)),
            (Ok(()), _) => State::Done(None),
        };
    }
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<(VecDeque<Box<Job>>, bool)>,
    wake: Condvar,
    running: AtomicUsize,
}

/// Threads at least. More than cores: the system lets them take turns, so that a short job (a SORT BY of three elements)
/// does not wait for a long one.
const THREADS: usize = 8;

/// The pool of demoted threads.
pub struct Workers {
    queue: Arc<Queue>,
}

impl Workers {
    /// Starts the pool. `done` gets each job back, on the worker's thread: it sends it to the job's loop.
    pub fn start(
        threads: usize,
        keyspace: Arc<Keyspace>,
        done: impl Fn(Box<Job>) + Send + Clone + 'static,
    ) -> std::io::Result<Workers> {
        let queue = Arc::new(Queue::default());
        for i in 0..threads.max(THREADS) {
            let (queue, keyspace, done) = (queue.clone(), keyspace.clone(), done.clone());
            std::thread::Builder::new().name(format!("worker-{i}")).spawn(move || {
                stdx::threads::demote();
                while let Some(mut job) = queue.take() {
                    queue.running.fetch_add(1, Ordering::Relaxed);
                    points::reach(Point::JobStart);
                    job.run(&keyspace);
                    points::reach(Point::JobEnd);
                    queue.running.fetch_sub(1, Ordering::Relaxed);
                    done(job);
                    stdx::reclaim::flush();
                }
            })?;
        }
        Ok(Workers { queue })
    }

    pub fn submit(&self, job: Box<Job>) {
        self.queue.jobs.lock().0.push_back(job);
        self.queue.wake.notify_one();
    }

    /// Jobs waiting and running.
    pub fn load(&self) -> (usize, usize) {
        (self.queue.jobs.lock().0.len(), self.queue.running.load(Ordering::Relaxed))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.jobs.lock().1 = true;
        self.queue.wake.notify_all();
    }
}

impl Queue {
    fn take(&self) -> Option<Box<Job>> {
        let mut jobs = self.jobs.lock();
        loop {
            if jobs.1 {
                return None;
            }
            if let Some(job) = jobs.0.pop_front() {
                return Some(job);
            }
            self.wake.wait(&mut jobs);
        }
    }
}
