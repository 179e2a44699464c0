//! A 16-way copy-on-write hash trie with packed leaves, for sets, hashes and a sorted set's member → score.
//!
//! ```text
//! Trie ── root ──► Inner (hash bits 63..60) ──► Inner (59..56) ──► Leaf: up to 64 entries, 4 KB, tags
//!                        └────────────────────► Leaf covering 1, 2, 4 or 8 slots
//! ```
//!
//! An [`EntryKind`] `K` defines how entries are packed, hashed and compared. `get insert remove iter
//! iter_from(rank) nth(rank) scan len mem_bytes` each have a `_hashed` form for known hashes. [`Scores`] is
//! the kind for member → score: keys `&[u8]`, entries `(&[u8], f64)`. A `Trie` is 24 bytes, and its `clone`
//! one count: keep it inside a shared root of your own.
//!
//! The hash of an entry is its [`crate::place`], bent so that leaves of all lengths exist at any time.
//!
//! - T1: an entry is where its hash leads. Leaves hold at most [`LEAF_ENTRIES`] entries and [`LEAF_BYTES`]
//!   bytes plus one entry, unless the 64 bits of the hash are used up.
//! - T2: the order of iteration is by leaf in hash order, and arbitrary but fixed inside a leaf. The rank of
//!   an entry is its position in that order. An unchanged trie keeps it.
//! - T3: `bytes` counts the nodes and the Blobs of this version, shared or not.
//! - T4: every count and time on the path is exact after each change.
//!
//! Costs: get, insert, remove O(log16 n) with one or two cache misses in the leaf; clone O(1). The first
//! change under a clone copies the path, at most 16 nodes of ~200 bytes and one leaf. The last handle of more
//! than [`DEFER_ENTRIES`] entries or [`DEFER_BYTES`] bytes is dropped by `stdx::reclaim`.

mod iter;
mod kind;
mod leaf;
mod node;
mod tags;
mod walk;

pub use iter::Iter;
pub(crate) use iter::nth;
pub use kind::{Beside, EntryKind, NEVER, Scores, Sixteen, Times};
pub(crate) use leaf::Leaf;
pub(crate) use node::{Inner, Node, View};
pub(crate) use tags::prefetch;
pub(crate) use walk::{share, walk};

use crate::alone;
use std::marker::PhantomData;

/// Entries of a leaf inside a trie.
pub const LEAF_ENTRIES: usize = 64;
/// Bytes of the entries of a leaf inside a trie.
pub const LEAF_BYTES: usize = 4096;
/// Entries and bytes up to which siblings are merged.
const MERGE_ENTRIES: usize = LEAF_ENTRIES / 2;
const MERGE_BYTES: usize = LEAF_BYTES / 2;
/// Entries and bytes above which a trie is freed by the reclaimer.
pub const DEFER_ENTRIES: usize = 1000;
pub const DEFER_BYTES: usize = 64 << 10;

/// A hash trie. See the module.
pub struct Trie<K: EntryKind> {
    root: Option<Node<K>>,
    len: usize,
    bytes: usize,
    owns: PhantomData<fn(K)>,
}

// SAFETY: shared nodes are only read; counts are atomic; entries are bytes and Blobs, which are Send and
// Sync.
unsafe impl<K: EntryKind> Send for Trie<K> {}
// SAFETY: as above.
unsafe impl<K: EntryKind> Sync for Trie<K> {}

/// The inner nodes from the root to a leaf.
struct Path<K> {
    nodes: [Option<Node<K>>; 16],
    depth: usize,
}

#[inline]
fn slot_at(hash: u64, depth: usize) -> usize {
    (hash >> (60 - 4 * depth)) as usize & 15
}

/// The leaf that a hash leads to, below a node whose own level is `depth`.
#[inline]
pub(crate) fn locate<K: EntryKind>(node: Node<K>, depth: usize, hash: u64) -> Leaf<K> {
    let (mut node, mut rest) = (node, if depth == 16 { 0 } else { hash << (4 * depth) });
    loop {
        // SAFETY: the caller borrows the tree.
        match unsafe { node.view() } {
            View::Leaf(leaf) => return leaf,
            View::Inner(inner) => node = inner.child((rest >> 60) as usize),
        }
        rest <<= 4;
    }
}

/// The entry of the key below a node whose own level is `depth`.
#[inline]
pub(crate) fn find<K: EntryKind>(
    node: Node<K>,
    depth: usize,
    hash: u64,
    key: K::Key<'_>,
) -> Option<(Leaf<K>, usize)> {
    let leaf = locate(node, depth, hash);
    leaf.prefetch();
    leaf.find(hash as u8, key).map(|i| (leaf, i))
}

impl<K: EntryKind> Trie<K> {
    /// An empty trie; allocates nothing.
    pub const fn new() -> Trie<K> {
        Trie { root: None, len: 0, bytes: 0, owns: PhantomData }
    }

    /// A trie of one leaf's entries. Takes the handle over.
    pub(crate) fn from_leaf(leaf: Leaf<K>) -> Trie<K> {
        let mut trie =
            Trie { root: None, len: leaf.len(), bytes: leaf.size() + leaf.heap(), owns: PhantomData };
        trie.root = Some(trie.settle(leaf, 0));
        trie
    }

    /// One leaf with all entries, for tries that have become small. O(n).
    pub(crate) fn into_leaf(mut self) -> Leaf<K> {
        let mut leaves = Vec::new();
        if let Some(root) = self.root.take() {
            collect(root, &mut leaves);
            leaves.iter().for_each(|leaf: &Leaf<K>| leaf.retain());
            root.release();
        }
        Leaf::merge(&leaves)
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all nodes and Blobs, shared ones counted fully. O(1).
    #[inline]
    pub fn mem_bytes(&self) -> usize {
        self.bytes
    }

    /// An estimate of the bytes that other versions do not share. O(height).
    pub(crate) fn alone_bytes(&self) -> usize {
        match self.root {
            Some(root) if !root.unique() => 0,
            // SAFETY: an inner node, borrowed with the trie.
            Some(root) if root.leaf().is_none() => alone::bytes(unsafe { root.inner() }, self.bytes),
            _ => self.bytes,
        }
    }

    #[inline]
    pub(crate) fn root(&self) -> Option<Node<K>> {
        self.root
    }

    /// The time of the first expiry, or [`NEVER`]. O(1).
    pub fn soonest(&self) -> u64 {
        self.root.map_or(NEVER, Node::soonest)
    }

    /// The entry of a key.
    #[inline]
    pub fn get(&self, key: K::Key<'_>) -> Option<K::Entry<'_>> {
        self.get_hashed(key, K::hash(key))
    }

    /// The entry of a key whose hash is known.
    #[inline]
    pub fn get_hashed(&self, key: K::Key<'_>, hash: u64) -> Option<K::Entry<'_>> {
        let (leaf, i) = find(self.root?, 0, hash, key)?;
        // SAFETY: the trie is borrowed as long as the entry.
        Some(unsafe { leaf.entry(i) })
    }

    /// Inserts an entry, or replaces the one with its key. True if the key is new.
    #[inline]
    pub fn insert(&mut self, entry: K::Entry<'_>) -> bool {
        self.insert_hashed(entry, K::hash(K::key(entry)))
    }

    /// `insert` where the hash of the key is known.
    pub fn insert_hashed(&mut self, entry: K::Entry<'_>, hash: u64) -> bool {
        let Some(root) = self.root else {
            let mut leaf = Leaf::with_room(K::width(entry), 1, K::size(entry, K::width(entry)));
            leaf.insert(0, entry, hash as u8);
            self.root = Some(Node::from_leaf(leaf));
            self.len = 1;
            self.bytes = leaf.size() + K::heap_size(entry);
            return true;
        };
        let (path, leaf) = Path::to(root, hash);
        if let Some(i) = leaf.find(hash as u8, K::key(entry)) {
            if K::REPLACES {
                self.change_at(path, leaf, hash, i, |leaf| {
                    let before = leaf.heap_of(i);
                    leaf.replace(i, entry);
                    K::heap_size(entry) as isize - before as isize
                });
            }
            return false;
        }
        self.insert_new(path, leaf, entry, hash);
        true
    }

    /// Inserts an entry whose key is known to be absent.
    fn insert_new(&mut self, mut path: Path<K>, old: Leaf<K>, entry: K::Entry<'_>, hash: u64) {
        self.own(&mut path, hash);
        let mut leaf = old;
        self.bytes -= leaf.size();
        leaf.insert(leaf.len(), entry, hash as u8);
        self.bytes += leaf.size() + K::heap_size(entry);
        self.len += 1;
        for depth in 0..path.depth {
            path.inner(depth).add(slot_at(hash, depth), 1);
        }
        let now = leaf.expiry(leaf.len() - 1);
        self.put_leaf(&mut path, hash, old, leaf, (NEVER, now));
    }

    /// Changes entry `i` of the leaf that the hash leads to. `f` returns the growth of the entry's Blobs in
    /// bytes.
    pub(crate) fn change(&mut self, hash: u64, i: usize, f: impl FnOnce(&mut Leaf<K>) -> isize) {
        let Some(root) = self.root else { unreachable!("not called on empty tries") };
        let (path, leaf) = Path::to(root, hash);
        self.change_at(path, leaf, hash, i, f);
    }

    fn change_at(
        &mut self,
        mut path: Path<K>,
        old: Leaf<K>,
        hash: u64,
        i: usize,
        f: impl FnOnce(&mut Leaf<K>) -> isize,
    ) {
        self.own(&mut path, hash);
        let mut leaf = old;
        let was = leaf.expiry(i);
        self.bytes -= leaf.size();
        let grown = f(&mut leaf);
        self.bytes = (self.bytes + leaf.size()).wrapping_add_signed(grown);
        let now = leaf.expiry(i);
        self.put_leaf(&mut path, hash, old, leaf, (was, now));
    }

    /// Removes the entry of a key. False if there is none.
    #[inline]
    pub fn remove(&mut self, key: K::Key<'_>) -> bool {
        self.remove_hashed(key, K::hash(key))
    }

    /// `remove` where the hash is known.
    pub fn remove_hashed(&mut self, key: K::Key<'_>, hash: u64) -> bool {
        let Some(root) = self.root else { return false };
        let (mut path, old) = Path::to(root, hash);
        let Some(i) = old.find(hash as u8, key) else { return false };
        if self.len == 1 {
            *self = Trie::new();
            return true;
        }
        self.own(&mut path, hash);
        let mut leaf = old;
        let was = leaf.expiry(i);
        self.bytes -= leaf.size() + leaf.heap_of(i);
        leaf.swap_remove(i);
        self.bytes += leaf.size();
        self.len -= 1;
        for depth in 0..path.depth {
            path.inner(depth).add(slot_at(hash, depth), -1);
        }
        if leaf != old {
            self.set_node(&mut path, hash, Node::from_leaf(leaf));
        }
        self.merge_up(&mut path, hash, leaf, was);
        true
    }

    /// Unshares the inner nodes of a path, from the root down. The leaf below may still be shared.
    #[inline]
    fn own(&mut self, path: &mut Path<K>, hash: u64) {
        for depth in 0..path.depth {
            if path.node(depth).unique() {
                continue;
            }
            let node = path.node(depth);
            // SAFETY: reached from the root, and every node above is unshared.
            let View::Inner(inner) = (unsafe { node.view() }) else { unreachable!("an inner node") };
            let copy = inner.copy();
            match depth {
                0 => self.root = Some(copy),
                _ => path.inner(depth - 1).set_child(slot_at(hash, depth - 1), copy),
            }
            node.release();
            path.nodes[depth] = Some(copy);
        }
    }

    /// Replaces the child of the path's last inner node.
    #[inline]
    fn set_node(&mut self, path: &mut Path<K>, hash: u64, node: Node<K>) {
        match path.depth {
            0 => self.root = Some(node),
            depth => path.inner(depth - 1).set_child(slot_at(hash, depth - 1), node),
        }
    }

    /// Puts a changed leaf back: splits it if it is too large (T1), and corrects the times above (T4).
    /// `times` are those of the changed entry, before and after.
    #[inline]
    fn put_leaf(&mut self, path: &mut Path<K>, hash: u64, old: Leaf<K>, leaf: Leaf<K>, times: (u64, u64)) {
        let divided = too_large(leaf);
        if divided {
            self.split(path, hash, leaf);
        } else if leaf != old {
            self.set_node(path, hash, Node::from_leaf(leaf));
        }
        if K::Times::KEPT {
            correct_times(path, hash, times, divided);
        }
    }

    #[cold]
    #[inline(never)]
    fn split(&mut self, path: &mut Path<K>, hash: u64, leaf: Leaf<K>) {
        let Some(last) = path.depth.checked_sub(1) else {
            self.root = Some(self.settle(leaf, 0));
            return;
        };
        let slot = slot_at(hash, last);
        let (start, end) = path.inner(last).run(slot);
        self.settle_run(path.inner(last), last, start, end, leaf);
    }

    /// Hangs a leaf into the run `start..end` of a node at level `depth`, as several leaves if it is too
    /// large.
    fn settle_run(&mut self, inner: &mut Inner<K>, depth: usize, start: usize, end: usize, leaf: Leaf<K>) {
        if !too_large(leaf) {
            return inner.set_run(start, end, Node::from_leaf(leaf), leaf.len());
        }
        if end - start == 1 {
            let len = leaf.len();
            let node = self.settle(leaf, depth + 1);
            return inner.set_run(start, end, node, len);
        }
        let half = (end - start) / 2;
        let (zero, one) = self.divide(leaf, (60 - 4 * depth) as u32 + half.ilog2());
        self.settle_run(inner, depth, start, start + half, zero);
        self.settle_run(inner, depth, start + half, end, one);
    }

    /// The node of level `depth` for a leaf's entries: the leaf, or an inner node if it is too large.
    fn settle(&mut self, leaf: Leaf<K>, depth: usize) -> Node<K> {
        if !too_large(leaf) || depth == 16 {
            return Node::from_leaf(leaf);
        }
        let (zero, one) = self.divide(leaf, (63 - 4 * depth) as u32);
        let node = Node::pair(zero, one);
        self.bytes += Inner::<K>::SIZE;
        // SAFETY: made just now.
        let inner = unsafe { node.inner_mut() };
        self.settle_run(inner, depth, 0, 8, zero);
        self.settle_run(inner, depth, 8, 16, one);
        node
    }

    fn divide(&mut self, leaf: Leaf<K>, bit: u32) -> (Leaf<K>, Leaf<K>) {
        self.bytes -= leaf.size();
        let (zero, one) = leaf.split(bit);
        self.bytes += zero.size() + one.size();
        (zero, one)
    }

    /// Finishes a removal: merges the leaf with its sibling while both are small, removes inner nodes with
    /// one child, and corrects the times (T4).
    fn merge_up(&mut self, path: &mut Path<K>, hash: u64, mut leaf: Leaf<K>, was: u64) {
        let mut merged = false;
        while let Some(last) = path.depth.checked_sub(1) {
            let slot = slot_at(hash, last);
            let inner = path.inner(last);
            let (start, end) = inner.run(slot);
            let span = end - start;
            if span == 16 {
                // The node has one child, the leaf, which replaces it.
                let Some(shell) = path.nodes[last] else { unreachable!("inside the path") };
                shell.free_shell();
                self.bytes -= Inner::<K>::SIZE;
                path.depth = last;
                self.set_node(path, hash, Node::from_leaf(leaf));
                continue;
            }
            let low = start & !span;
            let other = start ^ span;
            if inner.run(other) != (other, other + span) {
                break;
            }
            if inner.count(start) + inner.count(other) > MERGE_ENTRIES {
                break;
            }
            let Some(sibling) = inner.child(other).leaf() else { break };
            if leaf.live() + sibling.live() > MERGE_BYTES {
                break;
            }
            self.bytes -= leaf.size() + sibling.size();
            leaf = Leaf::merge(&if other > start { [leaf, sibling] } else { [sibling, leaf] });
            self.bytes += leaf.size();
            inner.set_run(low, low + 2 * span, Node::from_leaf(leaf), leaf.len());
            merged = true;
        }
        if K::Times::KEPT {
            correct_times(path, hash, (was, NEVER), merged);
        }
    }

    /// Asserts T1 to T4 and the invariants of every node. O(n).
    pub fn check_invariants(&self) {
        let mut bytes = 0;
        let len = self.root.map_or(0, |root| check(root, 0, 0, 0, &mut bytes));
        assert_eq!((len, bytes), (self.len, self.bytes));
    }
}

impl<K: EntryKind> Default for Trie<K> {
    fn default() -> Trie<K> {
        Trie::new()
    }
}

impl<K: EntryKind> Clone for Trie<K> {
    /// O(1).
    #[inline]
    fn clone(&self) -> Trie<K> {
        if let Some(root) = self.root {
            root.retain();
        }
        Trie { root: self.root, len: self.len, bytes: self.bytes, owns: PhantomData }
    }
}

impl<K: EntryKind> Drop for Trie<K> {
    fn drop(&mut self) {
        let Some(root) = self.root else { return };
        if root.leaf().is_some() {
            return root.release();
        }
        if !root.release_inner() {
            return;
        }
        if self.len <= DEFER_ENTRIES && self.bytes <= DEFER_BYTES {
            return root.free_inner();
        }
        let orphan = Orphan(root);
        // SAFETY: this is the only pointer to the root, which is freed only below.
        let alone = alone::bytes(unsafe { root.inner() }, self.bytes);
        stdx::reclaim::defer_version(self.bytes, alone, move || orphan.free());
    }
}

/// An inner node without owners, on its way to the reclaimer.
struct Orphan<K>(Node<K>);

// SAFETY: the only one to know the node; its children are Send as the trie is.
unsafe impl<K: EntryKind> Send for Orphan<K> {}

impl<K: EntryKind> Orphan<K> {
    fn free(self) {
        self.0.free_inner();
    }
}

impl<K: EntryKind> Path<K> {
    /// The path to the leaf of a hash. Its nodes may be shared until `Trie::own` has unshared them.
    #[inline]
    fn to(root: Node<K>, hash: u64) -> (Path<K>, Leaf<K>) {
        let mut path = Path { nodes: [None; 16], depth: 0 };
        let mut node = root;
        loop {
            // SAFETY: the caller borrows the tree.
            let inner = match unsafe { node.view() } {
                View::Leaf(leaf) => {
                    leaf.prefetch();
                    return (path, leaf);
                }
                View::Inner(inner) => inner,
            };
            path.nodes[path.depth] = Some(node);
            node = inner.child(slot_at(hash, path.depth));
            path.depth += 1;
        }
    }

    #[inline]
    fn node(&self, depth: usize) -> Node<K> {
        let Some(node) = self.nodes[depth] else { unreachable!("inside the path") };
        node
    }

    #[inline]
    fn inner(&mut self, depth: usize) -> &mut Inner<K> {
        // SAFETY: `Trie::own` made it unshared, and `&mut Trie` is borrowed while the path is used so.
        unsafe { self.node(depth).inner_mut() }
    }
}

#[inline]
fn too_large<K: EntryKind>(leaf: Leaf<K>) -> bool {
    leaf.len() > 1 && (leaf.len() > LEAF_ENTRIES || leaf.live() > LEAF_BYTES)
}

/// Carries a changed expiry up to the root (T4). `moved`: entries moved between leaves, so the deepest node's
/// times are new.
fn correct_times<K: EntryKind>(path: &mut Path<K>, hash: u64, (was, now): (u64, u64), moved: bool) {
    if was == now && !moved {
        return;
    }
    for depth in (0..path.depth).rev() {
        let slot = slot_at(hash, depth);
        let deepest = depth + 1 == path.depth;
        let inner = path.inner(depth);
        let child = inner.child(slot);
        let (start, _) = inner.run(slot);
        let noted = inner.time(start);
        let time = match () {
            () if moved => child.soonest(),
            () if now <= noted => now,
            // The entry was not the soonest, so the child's soonest time stays.
            () if was > noted => return,
            () => child.soonest(),
        };
        // If entries moved, the deepest node's own time is new in any case.
        let news = inner.set_time(slot, time) || moved && deepest;
        if !news {
            return;
        }
    }
}

fn collect<K: EntryKind>(node: Node<K>, leaves: &mut Vec<Leaf<K>>) {
    // SAFETY: the caller holds the tree.
    match unsafe { node.view() } {
        View::Leaf(leaf) => leaves.push(leaf),
        View::Inner(inner) => inner.runs().for_each(|(start, _)| collect(inner.child(start), leaves)),
    }
}

/// Checks a node for the hashes with `prefix` as their upper `bits` bits, and returns its entries.
fn check<K: EntryKind>(node: Node<K>, depth: usize, bits: u32, prefix: u64, bytes: &mut usize) -> usize {
    // SAFETY: the caller borrows the tree.
    match unsafe { node.view() } {
        View::Leaf(leaf) => {
            leaf.check_invariants();
            assert!(!too_large(leaf) || bits == 64);
            let differing = |i| leaf.hash(i) ^ prefix;
            assert!(bits == 0 || (0..leaf.len()).all(|i| differing(i) >> (64 - bits) == 0));
            *bytes += leaf.size() + leaf.heap();
            leaf.len()
        }
        View::Inner(inner) => {
            inner.check_invariants();
            *bytes += Inner::<K>::SIZE;
            let one = |(start, end): (usize, usize)| {
                let bits = 4 * depth as u32 + 4 - (end - start).ilog2();
                let prefix = prefix | (start as u64) << (60 - 4 * depth);
                check(inner.child(start), depth + 1, bits, prefix, bytes)
            };
            inner.runs().map(one).sum()
        }
    }
}

#[cfg(test)]
mod tests;
