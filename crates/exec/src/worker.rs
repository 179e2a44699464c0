//! The pool of demoted threads that run long work.
//!
//! - W1: as many jobs run as there are threads; further ones wait in the order they came.
//! - W2: the threads are demoted (`stdx::threads::demote`): an event loop that has something to do goes first.

use crate::job::Job;
use crate::waits::request::Bench;
use keyspace::Keyspace;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stdx::points::{self, Point};

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
                let mut bench = Bench::default();
                while let Some(mut job) = queue.take() {
                    queue.running.fetch_add(1, Ordering::Relaxed);
                    bench.begin(&mut job.spent);
                    points::reach(Point::JobStart);
                    job.run(&keyspace);
                    points::reach(Point::JobEnd);
                    let (client, command) = (job.client, job.body.command());
                    bench.end(&mut job.spent, client, command);
                    queue.running.fetch_sub(1, Ordering::Relaxed);
                    done(job);
                    stdx::reclaim::flush();
                }
            })?;
        }
        Ok(Workers { queue })
    }

    pub fn submit(&self, mut job: Box<Job>) {
        job.spent.queued_at_ns = stdx::clock::mono_ns();
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
