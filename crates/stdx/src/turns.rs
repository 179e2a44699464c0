//! Turns: many threads of background work, of which about as many run at once as there are cores.
//!
//! ```text
//! enter ─► holder ─► check … check (none waits: one load) … check after 1 ms, others wait ─► end of queue
//!            ▲  └─► aside (waits for something else) ─┐                                           │
//!            └───── next of the queue ◄───────────────┴───────────────────────────────────────────┘
//! ```
//!
//! So ten long jobs do not evict each other's data from the caches, and a short one waits at most for one
//! turn.
//!
//! - T1: at most `tokens` threads hold a turn.
//! - T2: new work, and work that comes back from a wait, goes before work whose turn was over, but at most
//!   [`FRESH_MAX`] times in a row. Work with fewer than [`LIGHT_TURNS`] turns alternates with work with more,
//!   each first in, first out. So many endless jobs do not slow a short one down.
//! - T3: a holder that does not check for [`PATIENCE_NS`] while others wait loses its place and queues at its
//!   next check. It may be suspended, or in code that cannot check.
//! - T4: only background work waits here. An event loop never takes the lock; it may ask for
//!   [`Turns::demand`].

use crate::points::{self, Point};
use crate::threads::Breath;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// The length of a turn while others wait.
const TURN_NS: u64 = 1_000_000;
/// See T3.
const PATIENCE_NS: u64 = 50_000_000;
/// See T2.
const FRESH_MAX: u32 = 3;
const LIGHT_TURNS: u32 = 100;

/// Hands out turns. See the module.
pub struct Turns {
    tokens: usize,
    queue: Mutex<Queue>,
    /// Length of the queue.
    waiting: AtomicUsize,
    /// Threads that have a turn or wait for one.
    demand: AtomicUsize,
    handovers: AtomicU64,
}

#[derive(Default)]
struct Queue {
    holders: Vec<Arc<Seat>>,
    fresh: VecDeque<Arc<Seat>>,
    /// Work that had few turns, and work that had many.
    tired: [VecDeque<Arc<Seat>>; 2],
    /// Whether work that had many turns is next.
    heavy_next: bool,
    fresh_in_a_row: u32,
    /// The monotonic clock when a thread was last called.
    called_ns: u64,
}

impl Queue {
    /// The next work whose turn was over (T2).
    fn next_tired(&mut self) -> Option<Arc<Seat>> {
        let first = usize::from(self.heavy_next);
        self.heavy_next = !self.heavy_next;
        self.tired[first].pop_front().or_else(|| self.tired[1 - first].pop_front())
    }
}

/// The place of one run.
struct Seat {
    thread: Thread,
    called: AtomicBool,
    /// The monotonic clock at the start of its turn.
    since_ns: AtomicU64,
    /// How many of its turns ended because others waited.
    turns: AtomicU32,
}

/// A run that takes turns. Dropping it gives the turn back. It belongs to the thread that made it.
pub struct Turn {
    turns: Arc<Turns>,
    seat: Arc<Seat>,
    waited_ns: Cell<u64>,
    breath: Breath,
}

impl Turns {
    /// Turns for `tokens` threads at once, at least one.
    pub fn new(tokens: usize) -> Arc<Turns> {
        Arc::new(Turns {
            tokens: tokens.max(1),
            queue: Mutex::default(),
            waiting: AtomicUsize::new(0),
            demand: AtomicUsize::new(0),
            handovers: AtomicU64::new(0),
        })
    }

    /// Waits for a turn. If no thread waits, it costs a lock and a small allocation.
    pub fn enter(self: &Arc<Turns>) -> Turn {
        let seat = Seat {
            thread: std::thread::current(),
            called: AtomicBool::new(false),
            since_ns: AtomicU64::new(0),
            turns: AtomicU32::new(0),
        };
        let turn = Turn {
            turns: self.clone(),
            seat: Arc::new(seat),
            waited_ns: Cell::new(0),
            breath: Breath::default(),
        };
        turn.begin();
        turn
    }

    /// Threads that have a turn or wait for one. One relaxed load.
    #[inline]
    pub fn demand(&self) -> usize {
        self.demand.load(Ordering::Relaxed)
    }

    /// Threads that wait for a turn.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How often a turn that was over went to another thread.
    pub fn handovers(&self) -> u64 {
        self.handovers.load(Ordering::Relaxed)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic between two assignments would leave a place too many or too few. T3 mends that.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls waiting threads while there is room (T1, T2).
    fn call(&self, queue: &mut Queue) {
        while queue.holders.len() < self.tokens {
            let fresh_first = queue.fresh_in_a_row < FRESH_MAX || queue.tired.iter().all(VecDeque::is_empty);
            let next = match fresh_first {
                true => queue.fresh.pop_front().inspect(|_| queue.fresh_in_a_row += 1),
                false => None,
            };
            let next = next.or_else(|| {
                queue.fresh_in_a_row = 0;
                queue.next_tired()
            });
            let Some(seat) = next else { break };
            queue.called_ns = crate::clock::mono_ns();
            seat.since_ns.store(queue.called_ns, Ordering::Relaxed);
            seat.called.store(true, Ordering::Release);
            seat.thread.unpark();
            queue.holders.push(seat);
        }
        let tired: usize = queue.tired.iter().map(VecDeque::len).sum();
        self.waiting.store(queue.fresh.len() + tired, Ordering::Relaxed);
    }

    /// Takes the places of holders that did not check for too long, if no thread was called since (T3).
    fn rescue(&self) {
        let now = crate::clock::mono_ns();
        let mut queue = self.queue();
        if now.saturating_sub(queue.called_ns) >= PATIENCE_NS {
            queue
                .holders
                .retain(|seat| now.saturating_sub(seat.since_ns.load(Ordering::Relaxed)) < PATIENCE_NS);
            self.call(&mut queue);
        }
    }
}

impl Turn {
    /// If this turn is over and others wait, lets them go first and returns with the next turn. If none
    /// waits, it costs one relaxed load and a breath.
    #[inline]
    pub fn check(&self) {
        self.breath.breathe();
        if self.turns.waiting.load(Ordering::Relaxed) != 0 {
            self.look();
        }
    }

    #[cold]
    fn look(&self) {
        let began = self.seat.since_ns.load(Ordering::Relaxed);
        if crate::clock::mono_ns().saturating_sub(began) < TURN_NS {
            return;
        }
        let mut queue = self.turns.queue();
        self.leave(&mut queue);
        self.seat.called.store(false, Ordering::Relaxed);
        let heavy = self.seat.turns.fetch_add(1, Ordering::Relaxed) >= LIGHT_TURNS;
        queue.tired[usize::from(heavy)].push_back(self.seat.clone());
        self.turns.handovers.fetch_add(1, Ordering::Relaxed);
        self.turns.call(&mut queue);
        drop(queue);
        self.wait();
    }

    /// Gives the turn back while `f` waits for something else.
    pub fn aside<T>(&self, f: impl FnOnce() -> T) -> T {
        struct Back<'a>(&'a Turn);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                self.0.begin();
            }
        }
        self.end();
        let _back = Back(self);
        f()
    }

    /// A point where a test may hold the run. Meanwhile it has no turn.
    #[inline]
    pub fn reach(&self, point: Point) {
        if points::is_armed(point) {
            self.aside(|| points::reach(point));
        }
    }

    fn begin(&self) {
        self.turns.demand.fetch_add(1, Ordering::Relaxed);
        let mut queue = self.turns.queue();
        self.seat.called.store(false, Ordering::Relaxed);
        queue.fresh.push_back(self.seat.clone());
        self.turns.call(&mut queue);
        drop(queue);
        self.wait();
    }

    fn end(&self) {
        let mut queue = self.turns.queue();
        self.leave(&mut queue);
        self.turns.call(&mut queue);
        drop(queue);
        self.turns.demand.fetch_sub(1, Ordering::Relaxed);
    }

    /// Leaves its place, unless that was taken away.
    fn leave(&self, queue: &mut Queue) {
        queue.holders.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
    }

    /// Nanoseconds it has waited for turns so far.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.get()
    }

    fn wait(&self) {
        if self.seat.called.load(Ordering::Acquire) {
            return;
        }
        let began_ns = crate::clock::mono_ns();
        while !self.seat.called.load(Ordering::Acquire) {
            std::thread::park_timeout(Duration::from_nanos(PATIENCE_NS));
            if !self.seat.called.load(Ordering::Acquire) {
                self.turns.rescue();
            }
        }
        self.waited_ns.set(self.waited_ns.get() + crate::clock::mono_ns().saturating_sub(began_ns));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn as_many_run_as_there_are_tokens_and_all_get_their_turn() {
        let turns = Turns::new(2);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (turns, running, most) = (turns.clone(), running.clone(), most.clone());
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        let turn = turns.enter();
                        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::hint::spin_loop();
                        running.fetch_sub(1, Ordering::SeqCst);
                        turn.aside(std::thread::yield_now);
                        turn.check();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!((1..=2).contains(&most.load(Ordering::SeqCst)));
        assert_eq!((turns.demand(), turns.waiting(), turns.queue().holders.len()), (0, 0, 0));
    }

    #[test]
    fn a_turn_goes_to_who_waits_and_comes_back() {
        let turns = Turns::new(1);
        let (said, heard) = channel();
        let long = turns.enter();
        let other = turns.clone();
        let short = std::thread::spawn(move || {
            let _turn = other.enter();
            said.send(()).unwrap();
        });
        // This turn never waits aside: only its checks let the other run.
        while heard.try_recv().is_err() {
            long.check();
        }
        short.join().unwrap();
        assert_eq!(turns.handovers(), 1);
    }

    /// T2: light work and heavy work alternate.
    #[test]
    fn who_had_many_turns_is_not_in_the_way_of_who_had_few() {
        let seat = |turns| {
            Arc::new(Seat {
                thread: std::thread::current(),
                called: AtomicBool::new(false),
                since_ns: AtomicU64::new(0),
                turns: AtomicU32::new(turns),
            })
        };
        let mut queue = Queue::default();
        queue.tired[1].extend((0..3).map(|n| seat(1000 + n)));
        queue.tired[0].extend((0..2).map(seat));
        let order = std::iter::from_fn(|| queue.next_tired()).map(|seat| seat.turns.load(Ordering::Relaxed));
        assert_eq!(order.collect::<Vec<_>>(), [0, 1000, 1, 1001, 1002]);
    }

    #[test]
    fn who_never_checks_loses_its_place_and_queues_again() {
        let turns = Turns::new(1);
        let stuck = turns.enter();
        let other = turns.clone();
        std::thread::spawn(move || drop(other.enter())).join().unwrap();
        stuck.check();
        drop(stuck);
        assert_eq!((turns.demand(), turns.waiting(), turns.queue().holders.len()), (0, 0, 0));
    }
}
