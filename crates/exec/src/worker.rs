//! The pool of demoted threads that run long work.
//!
//! - W1: a job finds a thread at once unless [`THREADS`] run; threads are made as they are needed, and stay. How many run
//!   at a time is not the pool's affair: jobs take turns (`stdx::turns`), so that a short one (a SORT BY of three
//!   elements) does not wait for long ones.
//! - W2: the threads are demoted (`stdx::threads::demote`): an event loop that has something to do goes first.

use crate::job::Job;
use crate::waits::request::Bench;
use keyspace::Keyspace;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stdx::points::{self, Point};
use stdx::turns::Turns;

/// Threads at most: as many as there may be snapshots for long work, without which no job runs.
const THREADS: usize = keyspace::MAX_LONG;

type Done = Arc<dyn Fn(Box<Job>) + Send + Sync>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Box<Job>>,
    idle: usize,
    threads: usize,
    ended: bool,
}

#[derive(Default)]
struct Pool {
    queue: Mutex<Queue>,
    wake: Condvar,
    running: AtomicUsize,
    /// Jobs in the queue, for who must not wait for its lock: a demoted thread may hold it.
    waiting: AtomicUsize,
}

/// The pool of demoted threads.
pub struct Workers {
    pool: Arc<Pool>,
    keyspace: Arc<Keyspace>,
    turns: Arc<Turns>,
    done: Done,
}

impl Workers {
    /// An empty pool. `done` gets each job back, on the worker's thread: it sends it to the job's loop.
    pub fn start(
        keyspace: Arc<Keyspace>,
        turns: Arc<Turns>,
        done: impl Fn(Box<Job>) + Send + Sync + 'static,
    ) -> Workers {
        Workers { pool: Arc::default(), keyspace, turns, done: Arc::new(done) }
    }

    /// Queues a job. Cost: microseconds; some 50 when a thread has to be made.
    pub fn submit(&self, mut job: Box<Job>) {
        job.spent.queued_at_ns = stdx::clock::mono_ns();
        let mut queue = self.pool.queue.lock();
        queue.jobs.push_back(job);
        self.pool.waiting.store(queue.jobs.len(), Ordering::Relaxed);
        if queue.idle < queue.jobs.len() && queue.threads < THREADS && self.spawn(queue.threads) {
            queue.threads += 1;
        }
        drop(queue);
        self.pool.wake.notify_one();
    }

    /// One thread more. That the system refuses is bearable as long as there is one.
    fn spawn(&self, number: usize) -> bool {
        let (pool, keyspace, turns) = (self.pool.clone(), self.keyspace.clone(), self.turns.clone());
        let done = self.done.clone();
        let thread = std::thread::Builder::new().name(format!("worker-{number}"));
        let spawned = thread.spawn(move || {
            stdx::threads::demote();
            let mut bench = Bench::default();
            while let Some(mut job) = pool.take() {
                pool.running.fetch_add(1, Ordering::Relaxed);
                bench.begin(&mut job.spent);
                points::reach(Point::JobStart);
                {
                    let turn = turns.enter();
                    job.run(&keyspace, &turn);
                    bench.waited(turn.waited_ns());
                }
                points::reach(Point::JobEnd);
                let (client, command) = (job.client, job.body.command());
                bench.end(&mut job.spent, client, command);
                pool.running.fetch_sub(1, Ordering::Relaxed);
                done(job);
                stdx::reclaim::flush();
            }
        });
        if let Err(error) = &spawned {
            log::warn!("no thread for long work could be made: {error}");
        }
        spawned.is_ok()
    }

    /// Jobs waiting and running.
    pub fn load(&self) -> (usize, usize) {
        (self.pool.waiting.load(Ordering::Relaxed), self.pool.running.load(Ordering::Relaxed))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.pool.queue.lock().ended = true;
        self.pool.wake.notify_all();
    }
}

impl Pool {
    fn take(&self) -> Option<Box<Job>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.ended {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                self.waiting.store(queue.jobs.len(), Ordering::Relaxed);
                return Some(job);
            }
            queue.idle += 1;
            self.wake.wait(&mut queue);
            queue.idle -= 1;
        }
    }
}
