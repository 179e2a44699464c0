//! The threads that run jobs.
//!
//! - W1: they belong to a pool (`pool.rs`), which decides their number and rank.

use crate::attempt::Long;
use crate::job::Job;
use crate::piece::{Letter, Post};
use crate::pool::{Pool, Taker};
use keyspace::Keyspace;
use observe::crowd::Crowd;
use observe::waits::request::Bench;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stdx::points::{self, Point};
use stdx::turns::Turns;

/// Largest number of threads: that of snapshots for long work, without which no job runs.
const THREADS: usize = keyspace::MAX_LONG;

/// Tools of a thread, besides its jobs.
#[derive(Clone)]
struct Tools {
    keyspace: Arc<Keyspace>,
    turns: Arc<Turns>,
    running: Arc<AtomicUsize>,
    post: Post,
}

/// See the module.
pub struct Workers {
    pool: Arc<Pool<Box<Job>>>,
    crowd: Arc<Crowd>,
    tools: Tools,
}

impl Workers {
    /// Makes the workers, without threads yet. `post` sends each job back to its loop, on the worker's
    /// thread.
    pub fn start(keyspace: Arc<Keyspace>, turns: Arc<Turns>, crowd: Arc<Crowd>, post: Post) -> Workers {
        let tools = Tools { keyspace, turns, running: Arc::default(), post };
        Workers { pool: Pool::new("worker", THREADS), crowd, tools }
    }

    /// Queues a job. Cost: microseconds; some 50 when a thread has to be made.
    pub fn submit(&self, job: Box<Job>) {
        let tools = self.tools.clone();
        self.pool.submit(job, self.crowd.rank(), move |taker| tools.work(taker));
    }

    /// Jobs waiting and running.
    pub fn load(&self) -> (usize, usize) {
        (self.pool.waiting(), self.tools.running.load(Ordering::Relaxed))
    }
}

impl Tools {
    /// Does jobs, on a thread.
    fn work(&self, taker: &Taker<Box<Job>>) {
        let mut bench = Bench::default();
        while let Some(mut job) = taker.take() {
            self.running.fetch_add(1, Ordering::Relaxed);
            bench.begin(&mut job.attempt.spent);
            let who = job.attempt.who;
            observe::waits::works_for(who.client);
            // A job changes only its own data.
            let run = stdx::panics::contain(|| {
                points::reach(Point::JobStart);
                {
                    let turn = self.turns.enter();
                    job.run(&self.keyspace, &turn);
                    bench.waited(turn.waited_ns());
                }
                points::reach(Point::JobEnd);
            });
            if run.is_err() {
                job.fail();
            }
            bench.end(&mut job.attempt.spent, who.client, who.command);
            self.running.fetch_sub(1, Ordering::Relaxed);
            (self.post)(who.loop_id, Letter::Back(job));
            stdx::reclaim::flush();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.pool.end();
    }
}
