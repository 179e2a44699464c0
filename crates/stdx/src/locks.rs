//! Many values, each behind its own short lock, taken in sets.
//!
//! A command names its shards as a bitmap. [`Sharded::lock`] takes them in ascending order, so two commands
//! cannot deadlock, and the guard gives access to exactly these. Cost: about 10 ns per lock without
//! contention, and as much per unlock.
//!
//! - L1: a value is reached only through a [`Guard`] that holds its lock.
//! - L2: locks are taken in ascending index order, all at once; a guard never takes another one.
//! - L3: the holder of a lock leaves its word ([`crate::doing`]) beside it, so that a waiting thread knows
//!   the holder. The word may be the previous holder's for a moment after the lock is taken.

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use std::cell::{Cell as Counter, UnsafeCell};
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static WAITED_NS: Counter<u64> = const { Counter::new(0) };
    static LONGEST: Counter<Longest> = const { Counter::new(Longest { ns: 0, holder: 0 }) };
}

/// The longest time a thread waited for a lock, and the holder's word ([`crate::doing`]); 0 if that was never
/// set.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Longest {
    pub ns: u64,
    pub holder: u64,
}

/// Nanoseconds that this thread has waited so far for locks of any [`Sharded`].
pub fn waited_ns() -> u64 {
    WAITED_NS.get()
}

/// Takes this thread's longest wait since the last call.
pub fn take_longest() -> Longest {
    LONGEST.take()
}

/// Most values of a [`Sharded`].
pub const MAX: usize = 256;

/// A set of indices below [`MAX`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Bits([u64; MAX / 64]);

impl Bits {
    pub const EMPTY: Bits = Bits([0; MAX / 64]);

    #[inline]
    pub fn one(i: usize) -> Bits {
        let mut bits = Bits::EMPTY;
        bits.insert(i);
        bits
    }

    /// All indices below `n`.
    pub fn below(n: usize) -> Bits {
        let mut bits = Bits::EMPTY;
        (0..n).for_each(|i| bits.insert(i));
        bits
    }

    #[inline]
    pub fn insert(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }

    #[inline]
    pub fn contains(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }

    pub fn is_superset(&self, other: &Bits) -> bool {
        self.0.iter().zip(other.0).all(|(mine, theirs)| theirs & !mine == 0)
    }

    pub fn union(mut self, other: &Bits) -> Bits {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine |= theirs);
        self
    }

    /// Calls `f` with the indices in ascending order.
    #[inline]
    fn each(self, mut f: impl FnMut(usize)) {
        for (word, mut bits) in self.0.into_iter().enumerate() {
            while bits != 0 {
                f(word * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// The indices in ascending order.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(word, mut bits)| {
            std::iter::from_fn(move || {
                if bits == 0 {
                    return None;
                }
                let low = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                Some(word * 64 + low)
            })
        })
    }
}

#[repr(align(128))]
struct Cell<T> {
    lock: RawMutex,
    /// The holder's word (L3).
    holder: AtomicU64,
    value: UnsafeCell<T>,
}

impl<T> Cell<T> {
    #[inline]
    fn take(&self) {
        if !self.lock.try_lock() {
            self.wait();
        }
        self.holder.store(crate::doing::now(), Ordering::Relaxed);
    }

    #[cold]
    fn wait(&self) {
        let holder = self.holder.load(Ordering::Relaxed);
        let began_ns = crate::clock::mono_ns();
        self.lock.lock();
        let ns = crate::clock::mono_ns() - began_ns;
        WAITED_NS.set(WAITED_NS.get() + ns);
        if ns > LONGEST.get().ns {
            LONGEST.set(Longest { ns, holder });
        }
    }
}

/// Values behind locks of their own. See the module.
pub struct Sharded<T> {
    cells: Box<[Cell<T>]>,
}

// SAFETY: a value is reached only with its lock held (L1), so sharing the whole needs no more than `T: Send`.
unsafe impl<T: Send> Sync for Sharded<T> {}
// SAFETY: owning the whole is owning the values.
unsafe impl<T: Send> Send for Sharded<T> {}

impl<T> Sharded<T> {
    /// Panics if there are more than [`MAX`] values.
    pub fn new(values: impl IntoIterator<Item = T>) -> Self {
        let cell =
            |value| Cell { lock: RawMutex::INIT, holder: AtomicU64::new(0), value: UnsafeCell::new(value) };
        let cells: Box<[_]> = values.into_iter().map(cell).collect();
        assert!(cells.len() <= MAX);
        Sharded { cells }
    }

    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    #[inline]
    pub fn lock_one(&self, i: usize) -> Guard<'_, T> {
        self.cells[i].take();
        Guard { owner: self, held: Bits::one(i) }
    }

    /// Locks all of `set`, in ascending order (L2). O(shards in the set).
    #[inline]
    pub fn lock(&self, set: Bits) -> Guard<'_, T> {
        set.each(|i| self.cells[i].take());
        Guard { owner: self, held: set }
    }

    pub fn lock_all(&self) -> Guard<'_, T> {
        self.lock(Bits::below(self.cells.len()))
    }
}

/// The locks of a set of values. Dropping it releases them.
pub struct Guard<'a, T> {
    owner: &'a Sharded<T>,
    held: Bits,
}

impl<T> Guard<'_, T> {
    #[inline]
    pub fn held(&self) -> Bits {
        self.held
    }

    /// The value, if it is in the set.
    #[inline]
    pub fn find(&self, i: usize) -> Option<&T> {
        // SAFETY: this guard holds the lock of `i` (L1); `&self` gives only shared access.
        self.held.contains(i).then(|| unsafe { &*self.owner.cells[i].value.get() })
    }

    /// Panics if `i` is not in the set.
    #[inline]
    pub fn get(&self, i: usize) -> &T {
        assert!(self.held.contains(i), "value {i} is not locked");
        // SAFETY: this guard holds the lock of `i` (L1); `&self` gives only shared access.
        unsafe { &*self.owner.cells[i].value.get() }
    }

    /// Panics if `i` is not in the set.
    #[inline]
    pub fn get_mut(&mut self, i: usize) -> &mut T {
        assert!(self.held.contains(i), "value {i} is not locked");
        // SAFETY: this guard holds the lock of `i` (L1), and `&mut self` makes this the only borrow through
        // it.
        unsafe { &mut *self.owner.cells[i].value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this guard locked `i` and has not unlocked it.
        self.held.each(|i| unsafe { self.owner.cells[i].lock.unlock() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_iterate_in_order() {
        let mut bits = Bits::EMPTY;
        for i in [200, 3, 64, 63, 255, 0] {
            bits.insert(i);
        }
        assert_eq!(bits.iter().collect::<Vec<_>>(), [0, 3, 63, 64, 200, 255]);
    }

    #[test]
    fn overlapping_sets_from_many_threads_keep_every_increment() {
        let cells = Sharded::new((0..8).map(|_| 0u64));
        std::thread::scope(|scope| {
            for t in 0..4 {
                let cells = &cells;
                scope.spawn(move || {
                    for n in 0..2000 {
                        let set = Bits::one((n + t) % 8).union(&Bits::one((n * 3) % 8));
                        let mut guard = cells.lock(set);
                        set.iter().for_each(|i| *guard.get_mut(i) += 1);
                    }
                });
            }
        });
        let guard = cells.lock_all();
        let total: u64 = (0..8).map(|i| *guard.get(i)).sum();
        let expected: usize =
            (0..4).flat_map(|t| (0..2000).map(move |n| if (n + t) % 8 == (n * 3) % 8 { 1 } else { 2 })).sum();
        assert_eq!(total, expected as u64);
    }

    #[test]
    fn who_waits_learns_whose_lock_it_was() {
        let cells = Sharded::new([0]);
        for patience in 1.. {
            let guard = crate::doing::within(77, || cells.lock_one(0));
            let longest = std::thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    drop(crate::doing::within(78, || cells.lock_one(0)));
                    (take_longest(), take_longest())
                });
                std::thread::sleep(std::time::Duration::from_millis(patience));
                drop(guard);
                waiting.join().expect("no panic")
            });
            // It may have come too late to wait.
            if longest.0.ns > 0 {
                assert_eq!((longest.0.holder, longest.1), (77, Longest::default()));
                return;
            }
        }
    }

    #[test]
    #[should_panic(expected = "not locked")]
    fn a_value_outside_the_set_is_refused() {
        let cells = Sharded::new([1, 2]);
        let guard = cells.lock_one(0);
        guard.get(1);
    }
}
