//! The meeting point of those who write, those who read, and the steps.
//!
//! - G1: a unit of writing is whole before the pause is quiet ([`Stage::quiet`]).
//! - G2: a promise of WAIT counts only if no step has ended the promises since its unit began
//!   ([`Stage::forget_promises`]).
//! - G3: nobody counts while all is flushed.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use support::wire::Conn;

/// No server leads.
pub const NOBODY: usize = usize::MAX;

/// A counter that one writer raises.
#[derive(Default, Clone, Copy, Debug)]
pub struct Counter {
    /// The highest that was sent, answered, and said to be on a replica.
    pub sent: u64,
    pub acked: u64,
    pub waited: u64,
}

pub struct Stage {
    pub ports: Vec<u16>,
    leader: AtomicUsize,
    paused: AtomicBool,
    stop: AtomicBool,
    busy: AtomicUsize,
    /// Grows when promises end (G2).
    epoch: AtomicU64,
    counters: Vec<Mutex<Counter>>,
    /// G3.
    pub calm: RwLock<()>,
    faults: Mutex<Vec<String>>,
    /// Some server does not know times of hash fields, nor the commands of one kind alone.
    pub is_mixed: bool,
    pub writes: AtomicU64,
    pub audits: AtomicU64,
    pub waits: AtomicU64,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    pub fn new(ports: Vec<u16>, counters: usize, is_mixed: bool) -> Stage {
        Stage {
            ports,
            leader: AtomicUsize::new(NOBODY),
            paused: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            counters: (0..counters).map(|_| Mutex::default()).collect(),
            calm: RwLock::new(()),
            faults: Mutex::default(),
            is_mixed,
            writes: AtomicU64::new(0),
            audits: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    pub fn is_on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    pub fn end(&self) {
        self.stop.store(true, SeqCst);
    }

    pub fn lead(&self, nr: usize) {
        self.leader.store(nr, SeqCst);
    }

    pub fn leader(&self) -> usize {
        self.leader.load(SeqCst)
    }

    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, SeqCst);
    }

    /// Waits until no unit of writing is under way (G1). False: it takes too long.
    pub fn quiet(&self, patience: Duration) -> bool {
        let began = Instant::now();
        while self.busy.load(SeqCst) > 0 {
            if began.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Runs units of writing on the leader until the end. A unit that returns an error gets a new connection.
    pub fn write(&self, mut unit: impl FnMut(&mut Conn) -> Result<(), String>) {
        let mut conn: Option<(usize, Conn)> = None;
        while self.is_on() {
            self.busy.fetch_add(1, SeqCst);
            let leader = self.leader();
            if self.paused.load(SeqCst) || leader == NOBODY {
                self.busy.fetch_sub(1, SeqCst);
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            let mut usable = conn.take().filter(|(nr, _)| *nr == leader);
            if usable.is_none() {
                usable = super::node::connect(self.ports[leader]).ok().map(|conn| (leader, conn));
            }
            match usable {
                Some((nr, mut on)) => {
                    if unit(&mut on).is_ok() && !on.is_gone() {
                        conn = Some((nr, on));
                    }
                    self.writes.fetch_add(1, Relaxed);
                    self.busy.fetch_sub(1, SeqCst);
                }
                None => {
                    self.busy.fetch_sub(1, SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    pub fn counter(&self, nr: usize) -> MutexGuard<'_, Counter> {
        lock(&self.counters[nr])
    }

    pub fn counters(&self) -> Vec<Counter> {
        self.counters.iter().map(|counter| *lock(counter)).collect()
    }

    /// A server may have lost what it had: what was said of it counts no more.
    pub fn forget_promises(&self) {
        self.epoch.fetch_add(1, SeqCst);
        let end = |counter: &Mutex<Counter>| {
            let mut counter = lock(counter);
            (counter.acked, counter.waited) = (0, 0);
        };
        self.counters.iter().for_each(end);
    }

    pub fn fault(&self, what: String) {
        lock(&self.faults).push(what);
    }

    pub fn has_faults(&self) -> bool {
        !lock(&self.faults).is_empty()
    }

    pub fn faults(&self) -> Vec<String> {
        lock(&self.faults).clone()
    }
}
