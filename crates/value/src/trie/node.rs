//! Nodes: a leaf, or an inner node with sixteen slots.
//!
//! A child of an inner node covers a *run* of slots: 1, 2, 4, 8 or all 16, aligned to its length. Every slot
//! of a run holds the child's pointer, so a look-up only indexes by the next four bits of the hash. A full
//! leaf gives half of its run to a new sibling, so leaves stay at least half full, as in extendible hashing.
//! Only a leaf that covers a single slot turns into an inner node of the next level.
//!
//! ```text
//! slot      0 1 2 3 4 5 6 7 8 9 a b c d e f
//! starts    x . . . x . x . x x x . x . . .      run starts
//! child     A A A A B B C C D E F F G G G G      D, E may be inner nodes: they cover one slot
//! ```
//!
//! - N1: bit 0 of `starts` is set; runs are aligned powers of two; inner nodes cover exactly one slot.
//! - N2: a child counts once per run, not per slot.
//! - N3: `counts` and `times` are kept at the first slot of a run; the others hold 0 and never.

use super::kind::{EntryKind, NEVER, Times};
use super::leaf::Leaf;
use crate::alone::Below;
use crate::arc::Count;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A bare handle of a leaf (lowest bit set) or an inner node. Its holder is responsible for the count.
pub(crate) struct Node<K> {
    raw: NonNull<u8>,
    kind: PhantomData<fn(K)>,
}

impl<K> Clone for Node<K> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Node<K> {}

impl<K> PartialEq for Node<K> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

#[repr(C)]
pub(crate) struct Inner<K: EntryKind> {
    count: Count,
    starts: u16,
    child: [Node<K>; 16],
    counts: [u32; 16],
    times: K::Times,
}

/// The form of a node.
pub(crate) enum View<'a, K: EntryKind> {
    Leaf(Leaf<K>),
    Inner(&'a Inner<K>),
}

impl<K: EntryKind> Node<K> {
    #[inline]
    pub(crate) fn from_leaf(leaf: Leaf<K>) -> Node<K> {
        Node { raw: leaf.into_raw().map_addr(|addr| addr | 1), kind: PhantomData }
    }

    fn from_inner(inner: Box<Inner<K>>) -> Node<K> {
        Node { raw: NonNull::from(Box::leak(inner)).cast(), kind: PhantomData }
    }

    /// # Safety
    /// The node lives unchanged for `'a`.
    #[inline]
    pub(crate) unsafe fn view<'a>(self) -> View<'a, K> {
        // SAFETY: the lowest bit tells the two apart; the caller's.
        unsafe {
            match self.leaf() {
                Some(leaf) => View::Leaf(leaf),
                None => View::Inner(self.raw.cast::<Inner<K>>().as_ref()),
            }
        }
    }

    #[inline]
    pub(crate) fn leaf(self) -> Option<Leaf<K>> {
        if self.raw.addr().get() & 1 == 0 {
            return None;
        }
        let raw = self.raw.as_ptr().map_addr(|addr| addr & !1);
        // SAFETY: made by `from_leaf`; not null, as leaves are aligned to 8.
        Some(unsafe { Leaf::from_raw(NonNull::new_unchecked(raw)) })
    }

    /// # Safety
    /// An inner node that lives, has one owner, and is not otherwise borrowed for `'a`.
    #[inline]
    pub(crate) unsafe fn inner_mut<'a>(self) -> &'a mut Inner<K> {
        debug_assert!(self.leaf().is_none());
        // SAFETY: the caller's.
        unsafe { self.raw.cast::<Inner<K>>().as_mut() }
    }

    /// # Safety
    /// An inner node, which lives unchanged for `'a`.
    pub(crate) unsafe fn inner<'a>(self) -> &'a Inner<K> {
        debug_assert!(self.leaf().is_none());
        // SAFETY: the caller's.
        unsafe { self.raw.cast::<Inner<K>>().as_ref() }
    }

    pub(crate) fn retain(self) {
        // SAFETY: the holder keeps the node alive.
        match unsafe { self.view() } {
            View::Leaf(leaf) => leaf.retain(),
            View::Inner(inner) => inner.count.retain(),
        }
    }

    #[inline]
    pub(crate) fn unique(self) -> bool {
        // SAFETY: the holder keeps the node alive.
        match unsafe { self.view() } {
            View::Leaf(leaf) => leaf.unique(),
            View::Inner(inner) => inner.count.unique(),
        }
    }

    /// Gives one count back. If it was the last, `big` decides how the subtree is freed.
    pub(crate) fn release(self) {
        // SAFETY: the holder gives its count up.
        match unsafe { self.view() } {
            View::Leaf(leaf) => leaf.release(),
            View::Inner(inner) => {
                if inner.count.release() {
                    self.free_inner();
                }
            }
        }
    }

    /// Gives one count back; true if it was the last and `free_inner` has to follow. Inner nodes only.
    #[must_use]
    pub(crate) fn release_inner(self) -> bool {
        // SAFETY: the holder gives its count up.
        match unsafe { self.view() } {
            View::Leaf(_) => unreachable!("an inner node"),
            View::Inner(inner) => inner.count.release(),
        }
    }

    /// Frees an inner node without owners and releases its children.
    pub(crate) fn free_inner(self) {
        // SAFETY: made by `from_inner`; the last count is gone.
        let inner = unsafe { Box::from_raw(self.raw.cast::<Inner<K>>().as_ptr()) };
        inner.runs().for_each(|(start, _)| inner.child[start].release());
    }

    /// Frees an inner node with one owner, without its child: the child's count moves to the caller.
    pub(crate) fn free_shell(self) {
        debug_assert!(self.unique());
        // SAFETY: made by `from_inner`; the caller is the last owner.
        drop(unsafe { Box::from_raw(self.raw.cast::<Inner<K>>().as_ptr()) });
    }

    /// Entries below. O(1) for leaves, O(16) else.
    pub(crate) fn len(self) -> usize {
        // SAFETY: the holder keeps the node alive.
        match unsafe { self.view() } {
            View::Leaf(leaf) => leaf.len(),
            View::Inner(inner) => inner.len(),
        }
    }

    /// The time of the first expiry below.
    pub(crate) fn soonest(self) -> u64 {
        // SAFETY: the holder keeps the node alive.
        match unsafe { self.view() } {
            View::Leaf(leaf) => leaf.soonest(),
            View::Inner(inner) => inner.times.min(),
        }
    }

    #[inline]
    pub(crate) fn prefetch(self) {
        match self.leaf() {
            Some(leaf) => leaf.prefetch(),
            None => super::tags::prefetch(self.raw.as_ptr()),
        }
    }

    /// An inner node over two leaves, one per half. Bytes: [`Inner::SIZE`].
    pub(crate) fn pair(zero: Leaf<K>, one: Leaf<K>) -> Node<K> {
        let mut inner = Box::new(Inner {
            count: Count::one(),
            starts: 1 | 1 << 8,
            child: [Node::from_leaf(zero); 16],
            counts: [0; 16],
            times: K::Times::default(),
        });
        inner.set_run(0, 8, Node::from_leaf(zero), zero.len());
        inner.set_run(8, 16, Node::from_leaf(one), one.len());
        Node::from_inner(inner)
    }
}

impl<K: EntryKind> Inner<K> {
    pub(crate) const SIZE: usize = size_of::<Inner<K>>();

    #[inline]
    pub(crate) fn child(&self, slot: usize) -> Node<K> {
        self.child[slot]
    }

    /// The run the slot belongs to: (first slot, slot after the last).
    #[inline]
    pub(crate) fn run(&self, slot: usize) -> (usize, usize) {
        let starts = u32::from(self.starts);
        let start = 31 - (starts & ((2 << slot) - 1)).leading_zeros() as usize;
        let end = ((starts | 1 << 16) >> (slot + 1)).trailing_zeros() as usize + slot + 1;
        (start, end)
    }

    /// All runs in order.
    #[inline]
    pub(crate) fn runs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            (next < 16).then(|| {
                let run = self.run(next);
                next = run.1;
                run
            })
        })
    }

    /// Entries below the run that begins at `start`.
    #[inline]
    pub(crate) fn count(&self, start: usize) -> usize {
        self.counts[start] as usize
    }

    #[inline]
    pub(crate) fn time(&self, start: usize) -> u64 {
        self.times.at(start)
    }

    pub(crate) fn len(&self) -> usize {
        self.counts.iter().map(|&n| n as usize).sum()
    }

    /// Adds to the count of the slot's run.
    #[inline]
    pub(crate) fn add(&mut self, slot: usize, delta: i32) {
        let (start, _) = self.run(slot);
        self.counts[start] = self.counts[start].wrapping_add_signed(delta);
    }

    /// Gives the run `start..end` to one child, replacing all runs there.
    pub(crate) fn set_run(&mut self, start: usize, end: usize, child: Node<K>, len: usize) {
        debug_assert!((end - start).is_power_of_two() && start.is_multiple_of(end - start));
        for slot in start..end {
            self.child[slot] = child;
            self.counts[slot] = 0;
            self.times.set(slot, NEVER);
            self.starts &= !(1 << slot);
        }
        self.starts |= 1 << start;
        self.counts[start] = len as u32;
        if K::Times::KEPT {
            self.times.set(start, child.soonest());
        }
    }

    /// Replaces the slot's child.
    #[inline]
    pub(crate) fn set_child(&mut self, slot: usize, child: Node<K>) {
        let (start, end) = self.run(slot);
        self.child[start..end].fill(child);
    }

    /// Sets the time of the first expiry in the slot's child. False if it does not change.
    #[inline]
    pub(crate) fn set_time(&mut self, slot: usize, time: u64) -> bool {
        let (start, _) = self.run(slot);
        let news = self.times.at(start) != time;
        self.times.set(start, time);
        news
    }

    /// A copy with counts of its own on the children.
    pub(crate) fn copy(&self) -> Node<K> {
        // Counts are in as many cold lines as there are children, and atomic operations do not overlap.
        self.runs().for_each(|(start, _)| super::tags::prefetch(self.child[start].raw.as_ptr()));
        self.runs().for_each(|(start, _)| self.child[start].retain());
        Node::from_inner(Box::new(Inner {
            count: Count::one(),
            starts: self.starts,
            child: self.child,
            counts: self.counts,
            times: self.times,
        }))
    }

    /// Asserts N1 to N3 for this node.
    pub(crate) fn check_invariants(&self) {
        assert_eq!(self.starts & 1, 1);
        for (start, end) in self.runs() {
            assert!((end - start).is_power_of_two() && start.is_multiple_of(end - start));
            let child = self.child[start];
            assert!(child.leaf().is_some() || end - start == 1);
            assert_eq!(self.count(start), child.len());
            assert_eq!(self.time(start), if K::Times::KEPT { child.soonest() } else { NEVER });
            for slot in start + 1..end {
                assert!(self.child[slot] == child && self.counts[slot] == 0 && self.time(slot) == NEVER);
            }
        }
    }
}

/// The weight of a child is its number of entries.
impl<'a, K: EntryKind> Below for &'a Inner<K> {
    fn each_child(self, told: &mut dyn FnMut(u64, bool, Option<&'a Inner<K>>)) {
        for (start, _) in self.runs() {
            let child = self.child[start];
            // SAFETY: the node is borrowed, and keeps its children alive and unchanged.
            let (alone, inner) = match unsafe { child.view() } {
                View::Leaf(leaf) => (leaf.unique(), None),
                View::Inner(inner) => (inner.count.unique(), Some(inner)),
            };
            told(self.count(start) as u64, alone, inner);
        }
    }
}
