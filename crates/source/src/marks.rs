//! When each id was reported to have changed. This decides whether a loaded row may be kept.
//!
//! ```text
//! load begins at p, a moment of its own ─► the database is read ─► install, under the key's lock, unless
//!                                                     it was marked, or a newer row installed, after p
//! change reported: mark the id at a new moment, and only then remove its key, under the key's lock
//! ```
//!
//! - M1: a row is kept only if neither its id's slot nor the whole was marked after its load began. So a row
//!   older than a reported change is never kept, in whatever order the two reach the lock.
//! - M2: of two loads of an id the one that began later is kept, whichever comes first. So no client reads an
//!   older row after a newer one, even while the news of the change is on its way.
//! - M3: two ids may share a slot. Then a row may be refused without need and loaded again; never the
//!   reverse.
//! - M4: a reader that takes [`Marks::now`] and then looks up an id learns of each change that the found item
//!   does not contain. Either the id is marked later, or the found item is removed later.

use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of slots, 128 KB in all. With 1,000 changes during a load, one in nine rows is loaded again without
/// need.
const SLOTS: usize = 8192;

/// The moments of changes and loads, by slot (see the module). Any thread may mark and ask.
pub struct Marks {
    marked: Box<[AtomicU64]>,
    installed: Box<[AtomicU64]>,
    /// When everything was last marked.
    all: AtomicU64,
    /// When the item of a reported change was last removed.
    removed: Box<[AtomicU64]>,
    all_removed: AtomicU64,
    position: AtomicU64,
    marking: Mutex<()>,
    hasher: RandomState,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks {
            marked: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            installed: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            all: AtomicU64::new(0),
            removed: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            all_removed: AtomicU64::new(0),
            position: AtomicU64::new(0),
            marking: Mutex::new(()),
            hasher: RandomState::new(),
        }
    }
}

impl Marks {
    /// Begins a load, and returns its moment. Must be called before the database is asked.
    pub fn begin(&self) -> u64 {
        let _one_at_a_time = self.marking.lock().unwrap_or_else(|e| e.into_inner());
        self.position.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The current moment: any load that begins from now on has a later one.
    pub fn now(&self) -> u64 {
        self.position.load(Ordering::SeqCst)
    }

    fn next(&self) -> u64 {
        self.position.load(Ordering::SeqCst) + 1
    }

    /// Marks these ids as changed. The marks are set before the position moves, so a load that begins at the
    /// new position begins after the change.
    pub fn mark<'a>(&self, ids: impl Iterator<Item = &'a [u8]>) {
        let _one_at_a_time = self.marking.lock().unwrap_or_else(|e| e.into_inner());
        let next = self.next();
        ids.for_each(|id| self.marked[self.slot(id)].store(next, Ordering::SeqCst));
        self.position.store(next, Ordering::SeqCst);
    }

    /// Marks everything as possibly changed.
    pub fn mark_all(&self) {
        let _one_at_a_time = self.marking.lock().unwrap_or_else(|e| e.into_inner());
        let next = self.next();
        self.all.store(next, Ordering::SeqCst);
        self.position.store(next, Ordering::SeqCst);
    }

    /// Whether a row read by a load that began then may be kept; if so, notes that it is. Must be called
    /// under the lock of its key.
    pub fn admit(&self, id: &[u8], began: u64) -> bool {
        let (slot, load) = (self.slot(id), |at: &AtomicU64| at.load(Ordering::SeqCst));
        let newest = load(&self.all).max(load(&self.marked[slot])).max(load(&self.installed[slot]));
        if newest <= began {
            self.installed[slot].fetch_max(began, Ordering::SeqCst);
        }
        newest <= began
    }

    /// Notes that the item of a reported change is removed now. Must be called under the lock of its key.
    pub fn removes(&self, id: &[u8]) {
        let now = self.begin();
        self.removed[self.slot(id)].fetch_max(now, Ordering::SeqCst);
    }

    /// Notes that all items are removed now. Must be called under the locks of all keys.
    pub fn removes_all(&self) {
        let now = self.begin();
        self.all_removed.fetch_max(now, Ordering::SeqCst);
    }

    /// Whether after that moment a change of this id was reported, or the item of an earlier change was
    /// removed (M4).
    pub fn was_touched(&self, id: &[u8], then: u64) -> bool {
        let (slot, load) = (self.slot(id), |at: &AtomicU64| at.load(Ordering::SeqCst));
        let told = load(&self.all).max(load(&self.marked[slot]));
        told.max(load(&self.all_removed)).max(load(&self.removed[slot])) > then
    }

    fn slot(&self, id: &[u8]) -> usize {
        self.hasher.hash_one(id) as usize % SLOTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_before_a_change_is_refused() {
        let marks = Marks::default();
        let before = marks.begin();
        marks.mark([&b"1"[..], b"2"].into_iter());
        let after = marks.begin();
        assert!(!marks.admit(b"1", before) && !marks.admit(b"2", before));
        assert!(marks.admit(b"1", after) && marks.admit(b"2", after));
        let ids = (0..100).map(|i| format!("x{i}"));
        let untouched = ids.filter(|id| marks.admit(id.as_bytes(), before)).count();
        assert!(untouched >= 95, "{untouched}");
        marks.mark_all();
        assert!(!marks.admit(b"3", after) && marks.admit(b"3", marks.begin()));
    }

    #[test]
    fn who_looks_between_news_and_removal_is_told_of_both() {
        let marks = Marks::default();
        let before = marks.now();
        marks.mark([&b"1"[..]].into_iter());
        let between = marks.now();
        assert!(marks.was_touched(b"1", before) && !marks.was_touched(b"1", between));
        marks.removes(b"1");
        let after = marks.now();
        assert!(marks.was_touched(b"1", between) && !marks.was_touched(b"1", after));
        // A removal is no change: a row loaded since the news is kept.
        assert!(marks.admit(b"1", between + 1));
        marks.mark_all();
        let between = marks.now();
        marks.removes_all();
        assert!(marks.was_touched(b"2", after) && marks.was_touched(b"2", between));
        assert!(!marks.was_touched(b"2", marks.now()));
    }

    #[test]
    fn of_two_loads_the_later_is_kept() {
        let marks = Marks::default();
        let (first, second) = (marks.begin(), marks.begin());
        assert!(marks.admit(b"1", second));
        assert!(!marks.admit(b"1", first));
        assert!(marks.admit(b"1", second) && marks.admit(b"2", first));
    }
}
