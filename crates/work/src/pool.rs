//! Threads for long work, made as they are needed: they stay, and take what was queued in order.
//!
//! - P1: a job finds a thread at once unless the largest number of threads is at work. The pool does not
//!   limit how many run at a time: threads take turns (`stdx::turns`), so that a short job does not wait for
//!   long ones.
//! - P2: the threads are demoted (`machine::threads::demote`), so an event loop that has something to do goes
//!   first.
//! - P3: there are threads of both ranks (`crowd.rs`), and a largest number of each. A job goes to threads of
//!   the rank that it has when it comes. It goes to the others if there are none of its rank and none can be
//!   made.
//! - P4: among sleeping threads the one that worked last is woken. The others, with their interpreters, stay
//!   out of the caches.

use observe::crowd::Rank;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Thread};

struct RankQueue<J> {
    jobs: VecDeque<J>,
    /// Threads without a job, including those that were woken for one.
    idle: usize,
    /// Sleeping threads; the last to fall asleep is last.
    sleeping: Vec<Thread>,
    threads: usize,
    ended: bool,
}

/// The threads of one rank and what waits for them.
struct Ranked<J> {
    queue: Mutex<RankQueue<J>>,
    /// Jobs in the queue, for readers that must not wait for its lock: a demoted thread may hold it.
    waiting: AtomicUsize,
}

/// See the module.
pub struct Pool<J> {
    /// The beginning of its threads' names.
    name: &'static str,
    /// Largest number of threads of each rank.
    most: usize,
    ranks: [Ranked<J>; 2],
}

/// A thread's end of a pool, which gives it jobs.
pub struct Taker<J> {
    pool: Arc<Pool<J>>,
    rank: Rank,
}

impl<J: Send + 'static> Pool<J> {
    /// A pool without threads.
    pub fn new(name: &'static str, most: usize) -> Arc<Pool<J>> {
        let queue =
            || RankQueue { jobs: VecDeque::new(), idle: 0, sleeping: Vec::new(), threads: 0, ended: false };
        let ranked = |_| Ranked { queue: Mutex::new(queue()), waiting: AtomicUsize::new(0) };
        Arc::new(Pool { name, most, ranks: Rank::ALL.map(ranked) })
    }

    fn of(&self, rank: Rank) -> &Ranked<J> {
        &self.ranks[rank as usize]
    }

    /// Queues a job. A thread that has to be made for it runs `work`. Cost: microseconds; some 50 with a new
    /// thread.
    pub fn submit(self: &Arc<Self>, job: J, rank: Rank, work: impl FnOnce(&Taker<J>) + Send + 'static) {
        let ranked = self.of(rank);
        let mut queue = ranked.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle < queue.jobs.len() && queue.threads < self.most {
            if self.spawn(rank, queue.threads, work) {
                queue.threads += 1;
            } else if queue.threads == 0 && rank != Rank::Last {
                // Behind all others is better than nowhere.
                let job = queue.jobs.pop_back();
                drop(queue);
                return job.into_iter().for_each(|job| self.of(Rank::Last).push(job));
            }
        }
        ranked.count(&queue);
        let sleeper = queue.sleeping.pop();
        drop(queue);
        sleeper.into_iter().for_each(|thread| thread.unpark());
    }

    /// Makes one more thread. If the system refuses, that is bearable as long as there is one.
    fn spawn(
        self: &Arc<Self>,
        rank: Rank,
        number: usize,
        work: impl FnOnce(&Taker<J>) + Send + 'static,
    ) -> bool {
        let taker = Taker { pool: self.clone(), rank };
        let name = match rank {
            Rank::Last => format!("{}-{number}", self.name),
            Rank::BesideOthers => format!("{}+{number}", self.name),
        };
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            machine::threads::demote(rank.nice());
            work(&taker);
        });
        if let Err(error) = &spawned {
            log::warn!("no thread for long work could be made: {error}");
        }
        spawned.is_ok()
    }

    /// Jobs that wait for a thread.
    pub fn waiting(&self) -> usize {
        self.ranks.iter().map(|ranked| ranked.waiting.load(Ordering::Relaxed)).sum()
    }

    /// Ends all threads after their current jobs.
    pub fn end(&self) {
        for ranked in &self.ranks {
            let mut queue = ranked.queue.lock();
            queue.ended = true;
            queue.sleeping.drain(..).for_each(|thread| thread.unpark());
        }
    }
}

impl<J> Ranked<J> {
    fn count(&self, queue: &RankQueue<J>) {
        self.waiting.store(queue.jobs.len(), Ordering::Relaxed);
    }

    fn push(&self, job: J) {
        let mut queue = self.queue.lock();
        queue.jobs.push_back(job);
        self.count(&queue);
        queue.sleeping.pop().into_iter().for_each(|thread| thread.unpark());
    }
}

impl<J> Taker<J> {
    /// Waits for the next job. `None`: the pool has ended. Cost: O(threads) for a thread that was woken.
    pub fn take(&self) -> Option<J> {
        let me = thread::current();
        let ranked = &self.pool.ranks[self.rank as usize];
        let mut queue = ranked.queue.lock();
        loop {
            if queue.ended {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                ranked.count(&queue);
                return Some(job);
            }
            queue.idle += 1;
            queue.sleeping.push(me.clone());
            MutexGuard::unlocked(&mut queue, thread::park);
            queue.idle -= 1;
            // A thread that woke by itself is still in the list.
            queue.sleeping.retain(|thread| thread.id() != me.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// The nice value of the calling thread, and its name.
    fn standing() -> (i32, String) {
        let text = std::fs::read_to_string("/proc/thread-self/stat").expect("a stat file");
        let (head, fields) = text.rsplit_once(") ").expect("a name");
        let nice = fields.split(' ').nth(16).and_then(|word| word.parse().ok()).expect("a nice value");
        (nice, head.split_once('(').expect("a name").1.to_owned())
    }

    #[test]
    fn jobs_go_to_threads_of_their_rank() {
        let pool = Pool::<u32>::new("test", 1);
        let (said, heard) = channel();
        let give = |job, rank| {
            let said = said.clone();
            pool.submit(job, rank, move |taker| {
                while let Some(job) = taker.take() {
                    said.send((job, standing())).expect("somebody listens");
                }
            });
            heard.recv().expect("a job was done")
        };
        let before = standing().0;
        assert_eq!(give(1, Rank::Last), (1, (19, "test-0".to_owned())));
        assert_eq!(give(2, Rank::BesideOthers), (2, (before.max(1), "test+0".to_owned())));
        // The same threads again.
        assert_eq!(give(3, Rank::BesideOthers).1.1, "test+0");
        assert_eq!(give(4, Rank::Last).1.1, "test-0");
        pool.end();
    }

    /// P4.
    #[test]
    fn of_two_that_sleep_the_one_that_ran_last_is_woken() {
        let pool = Pool::<u32>::new("test", 2);
        let (said, heard) = channel();
        let gate = Arc::new(Mutex::new(()));
        let give = |job| {
            let (said, gate) = (said.clone(), gate.clone());
            pool.submit(job, Rank::Last, move |taker| {
                while let Some(job) = taker.take() {
                    drop(gate.lock());
                    said.send((job, standing().1)).expect("somebody listens");
                }
            });
        };
        let both_sleep = || {
            while pool.of(Rank::Last).queue.lock().sleeping.len() < 2 {
                std::thread::yield_now();
            }
        };
        let closed = gate.lock();
        (0..2).for_each(give);
        while pool.waiting() > 0 {
            std::thread::yield_now();
        }
        drop(closed);
        (0..2).for_each(|_| _ = heard.recv().expect("a job was done"));
        let mut names = std::collections::HashSet::new();
        for job in 2..12 {
            both_sleep();
            give(job);
            names.insert(heard.recv().expect("a job was done").1);
        }
        both_sleep();
        assert_eq!(names.len(), 1, "{names:?}");
        pool.end();
    }

    #[test]
    fn there_are_as_many_threads_as_are_needed_and_as_there_may_be() {
        let pool = Pool::<u32>::new("test", 2);
        let (said, heard) = channel();
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        for job in 0..5 {
            let (said, gate) = (said.clone(), gate.clone());
            pool.submit(job, Rank::Last, move |taker| {
                while let Some(job) = taker.take() {
                    drop(gate.lock());
                    said.send((job, standing().1)).expect("somebody listens");
                }
            });
        }
        // Two are taken sooner or later, more are not.
        while pool.waiting() > 3 {
            std::thread::yield_now();
        }
        assert_eq!((pool.waiting(), pool.of(Rank::Last).queue.lock().threads), (3, 2));
        drop(closed);
        let mut done: Vec<_> = (0..5).map(|_| heard.recv().expect("a job was done").0).collect();
        done.sort_unstable();
        assert_eq!((done, pool.waiting()), (vec![0, 1, 2, 3, 4], 0));
        pool.end();
        assert_eq!(pool.of(Rank::BesideOthers).queue.lock().threads, 0);
    }
}
