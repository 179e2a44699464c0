//! Slots: each thread says below which LSN it tells nothing more.
//!
//! ```text
//! writer:  enter (bound = last + 1) ── draw ── changes ── puts what it tells ── leave (idle)
//! order:   p = last ── p = min(p, each bound - 1) ── takes what was put: all that is told up to p is there
//! ```
//!
//! - T1: a thread enters its slot before it draws an LSN at which it tells something. It leaves the slot
//!   after it has put the last of that. Entering nests.
//! - T2: something told at m ≤ p is there: its draw came before the load of `last`, its enter before its
//!   draw. So the slot, read after that, either shows a bound ≤ m or was left after m was put. Gaps need
//!   nothing.
//! - T4: no slot is held across a wait.
//!
//! `tests/models` runs this file, and broken variants of it, in every order of its steps.

use crate::sequence::Lsn;
use std::cell::Cell;
use std::sync::Arc;
use stdx::sync::Mutex;
use stdx::sync::atomic::{AtomicU64, Ordering};

/// The bound of a thread that is in no write.
const IDLE: Lsn = Lsn::MAX;

/// One thread's slot, with cache lines of its own.
#[repr(align(128))]
struct TellSlot {
    bound: AtomicU64,
}

/// The slots of all threads. See the module.
pub(crate) struct Slots {
    list: Mutex<Vec<Arc<TellSlot>>>,
}

/// A thread's side of its slot.
pub(crate) struct Seat {
    slot: Arc<TellSlot>,
    depth: Cell<u32>,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots { list: Mutex::new(Vec::new()) }
    }
}

impl Slots {
    /// A slot for a thread that has none. O(slots), once a thread.
    pub(crate) fn seat(&self) -> Seat {
        let slot = Arc::new(TellSlot { bound: AtomicU64::new(IDLE) });
        let mut list = self.list.lock();
        // Slots of threads that have ended.
        list.retain(|slot| Arc::strong_count(slot) > 1);
        list.push(slot.clone());
        Seat { slot, depth: Cell::new(0) }
    }

    /// The LSN up to which all that is told was put (T2). `last` loads the last LSN. O(slots).
    pub(crate) fn settled(&self, last: impl FnOnce() -> Lsn) -> Lsn {
        let p = last();
        let bounds = self.bounds();
        p.min(bounds - 1)
    }

    fn bounds(&self) -> Lsn {
        let list = self.list.lock();
        list.iter().map(|slot| slot.bound.load(Ordering::Acquire)).min().unwrap_or(IDLE)
    }
}

impl Seat {
    /// Enters the slot (T1). `last` loads the last LSN.
    #[inline]
    pub(crate) fn enter(&self, last: impl FnOnce() -> Lsn) {
        let depth = self.depth.get();
        self.depth.set(depth + 1);
        if depth == 0 {
            self.slot.bound.store(last() + 1, Ordering::Release);
        }
    }

    /// Leaves it: all that is told was put.
    #[inline]
    pub(crate) fn leave(&self) {
        let depth = self.depth.get() - 1;
        self.depth.set(depth);
        if depth == 0 {
            self.slot.bound.store(IDLE, Ordering::Release);
        }
    }

    /// Whether the thread is in a write that is told.
    pub(crate) fn is_entered(&self) -> bool {
        self.depth.get() > 0
    }
}
