//! Which ids were told to have changed, and when: what decides whether a row that was loaded may be kept.
//!
//! ```text
//! load begins: position p ──► the database is read ──► install, under the key's lock: nothing of it marked after p?
//! change is told: mark the id at p + 1, and only then remove its key, under the key's lock
//! ```
//!
//! - M1: a row is kept only if neither its id's slot nor the whole was marked after its load began; so a row older than a change
//!   that was told is never kept, in whatever order the two reach the lock.
//! - M2: two ids may share a slot. Then a row is refused without need and loaded again: never the reverse.

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots: 64 KB. With 1,000 changes within the time of a load one in nine rows is loaded once more.
const SLOTS: usize = 8192;

/// See the module. Any thread may mark and ask.
pub struct Marks {
    slots: Box<[AtomicU64]>,
    /// The last time everything was marked.
    all: AtomicU64,
    position: AtomicU64,
    marking: Mutex<()>,
    hasher: RandomState,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            all: AtomicU64::new(0),
            position: AtomicU64::new(0),
            marking: Mutex::new(()),
            hasher: RandomState::new(),
        }
    }
}

impl Marks {
    /// Where a load begins. To be asked before the database is.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::SeqCst)
    }

    /// These ids changed. The marks stand before the position moves, so whoever begins at the new one comes after the change.
    pub fn mark<'a>(&self, ids: impl Iterator<Item = &'a [u8]>) {
        let _one_at_a_time = self.marking.lock().unwrap_or_else(|e| e.into_inner());
        let next = self.position() + 1;
        ids.for_each(|id| self.slot(id).store(next, Ordering::SeqCst));
        self.position.store(next, Ordering::SeqCst);
    }

    /// Anything may have changed.
    pub fn mark_all(&self) {
        let _one_at_a_time = self.marking.lock().unwrap_or_else(|e| e.into_inner());
        let next = self.position() + 1;
        self.all.store(next, Ordering::SeqCst);
        self.position.store(next, Ordering::SeqCst);
    }

    /// Whether what a load that began at `position` read of this id may be kept. To be asked under the lock of its key.
    pub fn allows(&self, id: &[u8], position: u64) -> bool {
        self.slot(id).load(Ordering::SeqCst) <= position && self.all.load(Ordering::SeqCst) <= position
    }

    fn slot(&self, id: &[u8]) -> &AtomicU64 {
        &self.slots[self.hasher.hash_one(id) as usize % SLOTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_before_a_change_is_refused() {
        let marks = Marks::default();
        let before = marks.position();
        assert!(marks.allows(b"1", before));
        marks.mark([&b"1"[..], b"2"].into_iter());
        let after = marks.position();
        assert!(!marks.allows(b"1", before) && !marks.allows(b"2", before));
        assert!(marks.allows(b"1", after) && marks.allows(b"2", after));
        let untouched =
            (0..100).map(|i| format!("x{i}")).filter(|id| marks.allows(id.as_bytes(), before)).count();
        assert!(untouched >= 98, "{untouched}");
        marks.mark_all();
        assert!(!marks.allows(b"3", after) && marks.allows(b"3", marks.position()));
    }
}
