//! Walks through a trie: in its order, from a rank, or by SCAN's cursor.

use super::Trie;
use super::kind::EntryKind;
use super::leaf::Leaf;
use super::node::{Inner, Node, View};
use std::marker::PhantomData;

/// Entries in the trie's order (T2). The next leaves are fetched ahead.
pub struct Iter<'a, K: EntryKind> {
    /// Inner nodes above the current leaf, each with the slot after the current run.
    above: [Option<(&'a Inner<K>, u8)>; 16],
    depth: usize,
    leaf: Option<Leaf<K>>,
    next: usize,
    len: usize,
    left: usize,
    borrows: PhantomData<&'a Trie<K>>,
}

// SAFETY: an iterator is a shared borrow of a trie.
unsafe impl<K: EntryKind> Send for Iter<'_, K> {}
// SAFETY: as above.
unsafe impl<K: EntryKind> Sync for Iter<'_, K> {}

impl<K: EntryKind> Clone for Iter<'_, K> {
    fn clone(&self) -> Self {
        Iter { ..*self }
    }
}

impl<'a, K: EntryKind> Iter<'a, K> {
    /// The entries below a node from a rank on.
    ///
    /// # Safety
    /// The tree lives unchanged for `'a`.
    pub(crate) unsafe fn from_rank(root: Option<Node<K>>, rank: usize) -> Iter<'a, K> {
        let mut iter =
            Iter { above: [None; 16], depth: 0, leaf: None, next: 0, len: 0, left: 0, borrows: PhantomData };
        let Some(root) = root else { return iter };
        let len = root.len();
        if rank < len {
            iter.left = len - rank;
            iter.descend(root, rank);
        }
        iter
    }

    /// Goes down to the leaf with the entry of that rank below `node`.
    fn descend(&mut self, node: Node<K>, rank: usize) {
        let (mut node, mut rank) = (node, rank);
        loop {
            // SAFETY: alive for 'a.
            match unsafe { node.view() } {
                View::Leaf(leaf) => {
                    (self.leaf, self.next, self.len) = (Some(leaf), rank, leaf.len());
                    return;
                }
                View::Inner(inner) => {
                    let (start, end) = run_of_rank(inner, &mut rank);
                    self.above[self.depth] = Some((inner, end as u8));
                    self.depth += 1;
                    node = inner.child(start);
                    if end < 16 {
                        fetch_ahead(inner, end);
                    }
                }
            }
        }
    }

    /// Goes to the next leaf that is not empty.
    #[inline(never)]
    fn next_leaf(&mut self) {
        while let Some(last) = self.depth.checked_sub(1) {
            let Some((inner, slot)) = self.above[last] else { unreachable!("above the leaf") };
            let slot = slot as usize;
            if slot == 16 {
                self.depth = last;
                continue;
            }
            let (_, end) = inner.run(slot);
            self.above[last] = Some((inner, end as u8));
            if end < 16 {
                fetch_ahead(inner, end);
            }
            if inner.count(slot) > 0 {
                return self.descend(inner.child(slot), 0);
            }
        }
        self.len = 0;
    }
}

/// Prefetches the next leaf: several cache lines at once, so that the loads overlap.
#[inline]
fn fetch_ahead<K: EntryKind>(inner: &Inner<K>, slot: usize) {
    inner.child(slot).prefetch();
}

/// The run with the entry of that rank. The rank becomes relative to the run.
fn run_of_rank<K: EntryKind>(inner: &Inner<K>, rank: &mut usize) -> (usize, usize) {
    for (start, end) in inner.runs() {
        let count = inner.count(start);
        if *rank < count {
            return (start, end);
        }
        *rank -= count;
    }
    unreachable!("the rank is below the node's length")
}

impl<'a, K: EntryKind> Iterator for Iter<'a, K> {
    type Item = K::Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<K::Entry<'a>> {
        if self.left == 0 {
            return None;
        }
        if self.next == self.len {
            self.next = 0;
            self.next_leaf();
        }
        let leaf = self.leaf?;
        self.left -= 1;
        self.next += 1;
        // SAFETY: alive for 'a; `next` was below the leaf's length.
        Some(unsafe { leaf.entry(self.next - 1) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<K: EntryKind> ExactSizeIterator for Iter<'_, K> {}

impl<K: EntryKind> Trie<K> {
    /// All entries in the trie's order.
    pub fn iter(&self) -> Iter<'_, K> {
        self.iter_from(0)
    }

    /// The entries from a rank on. O(log n) to begin.
    pub fn iter_from(&self, rank: usize) -> Iter<'_, K> {
        // SAFETY: the trie is borrowed as long as the iterator.
        unsafe { Iter::from_rank(self.root(), rank) }
    }

    /// The entry of a rank. O(log n).
    pub fn nth(&self, rank: usize) -> Option<K::Entry<'_>> {
        // SAFETY: the trie is borrowed as long as the entry.
        unsafe { nth(self.root(), rank) }
    }

    /// One step of SCAN. See [`scan`].
    pub fn scan(&self, cursor: u64, count: usize, f: &mut dyn FnMut(K::Entry<'_>)) -> u64 {
        match self.root() {
            Some(root) => scan(root, cursor, count, f),
            None => 0,
        }
    }
}

/// The entry of that rank below a node.
///
/// # Safety
/// The tree lives unchanged for `'a`.
pub(crate) unsafe fn nth<'a, K: EntryKind>(root: Option<Node<K>>, rank: usize) -> Option<K::Entry<'a>> {
    let (mut node, mut rank) = (root?, rank);
    if rank >= node.len() {
        return None;
    }
    loop {
        // SAFETY: the caller's.
        match unsafe { node.view() } {
            // SAFETY: the caller's.
            View::Leaf(leaf) => return Some(unsafe { leaf.entry(rank) }),
            View::Inner(inner) => node = inner.child(run_of_rank(inner, &mut rank).0),
        }
    }
}

/// Cursors are the upper 52 bits of a hash, exact even for clients that keep numbers as doubles.
const CURSOR_SHIFT: u32 = 12;

/// One step of SCAN: calls `f` for about `count` entries from the cursor on and returns the next cursor, 0 at
/// the end.
///
/// The cursor is the first hash not visited yet. The tree may grow, split or merge between two steps: an
/// entry present throughout is visited by the step that passes its hash. It is visited twice only if its
/// whole collection was flat in between. Cost: O(log n + count), with up to 64 hashes computed per step.
pub(crate) fn scan<K: EntryKind>(
    root: Node<K>,
    cursor: u64,
    count: usize,
    f: &mut dyn FnMut(K::Entry<'_>),
) -> u64 {
    let count = count.max(1);
    let mut from = cursor << CURSOR_SHIFT;
    let mut visited = 0;
    loop {
        let (leaf, low, bits) = leaf_of(root, from);
        let window = window(leaf.len(), count.saturating_sub(visited), bits);
        // The window is aligned, so its end is `from` with the lower bits set, plus one.
        let last = from | window;
        let whole = low == from && last == low | mask(bits);
        for i in 0..leaf.len() {
            if whole || (from..=last).contains(&leaf.hash(i)) {
                // SAFETY: the caller borrows the tree.
                f(unsafe { leaf.entry(i) });
                visited += 1;
            }
        }
        if last == u64::MAX {
            return 0;
        }
        from = last + 1;
        if visited >= count && from & mask(64 - CURSOR_SHIFT) == 0 {
            return from >> CURSOR_SHIFT;
        }
    }
}

/// The bits of a hash that are not among its upper `bits`.
fn mask(bits: u32) -> u64 {
    u64::MAX.checked_shr(bits).unwrap_or(0)
}

/// The part of a leaf's hash range to visit, as a mask: all, or the 1/2^k that holds about `count` entries.
fn window(len: usize, count: usize, bits: u32) -> u64 {
    // With nothing left to visit, the loop goes on only until a cursor can express the position: leaf by
    // leaf.
    let parts = len.checked_div(count).unwrap_or(1).max(1).ilog2();
    mask(bits + parts)
}

/// The leaf that a hash leads to, its first hash, and the number of upper bits its hashes share.
fn leaf_of<K: EntryKind>(root: Node<K>, hash: u64) -> (Leaf<K>, u64, u32) {
    let (mut node, mut bits) = (root, 0);
    let mut depth = 0;
    loop {
        // SAFETY: the caller borrows the tree.
        match unsafe { node.view() } {
            View::Leaf(leaf) => return (leaf, hash & !mask(bits), bits),
            View::Inner(inner) => {
                let slot = super::slot_at(hash, depth);
                let (start, end) = inner.run(slot);
                bits = 4 * depth as u32 + 4 - (end - start).ilog2();
                node = inner.child(slot);
                depth += 1;
            }
        }
    }
}
