//! Nodes: leaves, inner nodes and roots behind one kind of pointer, distinguished by the byte behind the
//! count.
//!
//! - N1: every node starts with `count: u32, height: u8`; height 0 is a leaf, 1 to 16 an inner node, 255 a
//!   root. A `Node` owns one count of its target. Only the handle of a tree points to a root.
//! - N2: a node changes only through the `_mut` functions, which copy it first unless there is one owner.

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::ends::Fingers;
use super::leaf::{self, Entry, Item, Leaf};
use super::{FANOUT, Kind, LEAF_MAX, MAX_HEIGHT, Path, Probe};
use crate::alone::{self, Below};
use crate::arc::Count;

const ROOT: u8 = 255;

/// Trees with more entries or weight than this are freed by the reclaimer.
const DEFER_LEN: u64 = 1000;
const DEFER_WEIGHT: u64 = 64 << 10;

/// Weight above which a new leaf at an end gets all the room a leaf may have.
const LARGE: u64 = 16 * LEAF_MAX as u64;

/// The position of an insertion in the whole tree.
#[derive(Clone, Copy)]
struct Edge {
    /// Nothing is left of here.
    first: bool,
    /// Nothing is right of here.
    last: bool,
    /// Bytes for entries and slots in a new leaf at an end.
    room: usize,
}

#[repr(C)]
struct Common {
    count: Count,
    height: u8,
}

/// An owner of a leaf, an inner node or a root.
#[repr(transparent)]
pub(super) struct Node<K: Kind> {
    at: NonNull<Common>,
    kind: PhantomData<(Leaf, K)>,
}

// SAFETY: what nodes own (bytes, blobs, digests) is Send and Sync, and changes need sole ownership (N2).
unsafe impl<K: Kind> Send for Node<K> {}
// SAFETY: as above.
unsafe impl<K: Kind> Sync for Node<K> {}

/// Up to [`FANOUT`] children and their facts, slot by slot (T2).
#[repr(C)]
pub(super) struct Inner<K: Kind> {
    count: Count,
    height: u8,
    len: u8,
    children: [Option<Node<K>>; FANOUT],
    pub counts: [u64; FANOUT],
    pub weights: [u64; FANOUT],
    mains: [K::Main; FANOUT],
    rests: [K::Rest; FANOUT],
}

/// The top of a tree of more than one leaf.
#[repr(C)]
pub(super) struct Root<K: Kind> {
    count: Count,
    height: u8,
    pub flags: u8,
    pub node: Node<K>,
    pub len: u64,
    pub weight: u64,
    /// See `Tree::base`.
    pub base: i64,
    pub fingers: Fingers<K>,
}

/// A node with the facts its parent keeps.
pub(super) struct Slot<K: Kind> {
    pub node: Node<K>,
    pub count: u64,
    pub weight: u64,
    pub digest: (K::Main, K::Rest),
}

impl<K: Kind> Slot<K> {
    /// Counts and weighs a node. O(its entries or children).
    pub fn of(node: Node<K>) -> Self {
        let (count, weight) = node.measure();
        let digest = node.first_digest();
        Slot { node, count, weight, digest }
    }

    pub fn height(&self) -> u8 {
        self.node.height()
    }
}

impl<K: Kind> Node<K> {
    pub fn from_leaf(leaf: Leaf) -> Self {
        let at = leaf.into_raw().cast();
        Node { at, kind: PhantomData }
    }

    pub fn from_inner(inner: Inner<K>) -> Self {
        Node { at: NonNull::from(Box::leak(Box::new(inner))).cast(), kind: PhantomData }
    }

    pub fn from_root(root: Root<K>) -> Self {
        Node { at: NonNull::from(Box::leak(Box::new(root))).cast(), kind: PhantomData }
    }

    pub fn into_raw(self) -> NonNull<()> {
        let raw = self.at.cast();
        std::mem::forget(self);
        raw
    }

    /// # Safety
    /// `raw` came from [`Node::into_raw`] of the same kind and is given back only once.
    pub unsafe fn from_raw(raw: NonNull<()>) -> Self {
        Node { at: raw.cast(), kind: PhantomData }
    }

    #[inline]
    fn common(&self) -> &Common {
        // SAFETY: every node starts so (N1) and lives as long as an owner.
        unsafe { self.at.as_ref() }
    }

    #[inline]
    pub fn height(&self) -> u8 {
        self.common().height
    }

    /// Prefetches the lines of a leaf, which a binary search would miss one after the other.
    #[inline]
    pub fn prefetch(&self) {
        self.prefetch_lines(LEAF_MAX.div_ceil(64));
    }

    #[inline]
    fn prefetch_lines(&self, lines: usize) {
        #[cfg(not(target_arch = "x86_64"))]
        let _ = lines;
        #[cfg(target_arch = "x86_64")]
        for line in 0..lines {
            let at = self.at.as_ptr().cast::<i8>().wrapping_add(64 * line);
            // SAFETY: a hint; it may name any address, even one that is not mapped.
            unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at) };
        }
    }

    #[inline]
    pub fn leaf(&self) -> &Leaf {
        assert!(self.height() == 0);
        // SAFETY: a leaf (N1), and both types are transparent pointers to it.
        unsafe { &*(&raw const *self).cast::<Leaf>() }
    }

    #[inline]
    pub fn inner(&self) -> &Inner<K> {
        assert!((1..ROOT).contains(&self.height()));
        // SAFETY: an inner node (N1).
        unsafe { self.at.cast().as_ref() }
    }

    #[inline]
    pub fn root(&self) -> &Root<K> {
        assert!(self.height() == ROOT);
        // SAFETY: a root (N1).
        unsafe { self.at.cast().as_ref() }
    }

    /// The leaf, with one owner. A copy gets room for `extra` bytes.
    #[inline]
    pub fn leaf_mut(&mut self, extra: usize) -> &mut Leaf {
        assert!(self.height() == 0);
        // SAFETY: as in `leaf`; if the leaf has to be copied, the pointer changes in place.
        let leaf = unsafe { &mut *(&raw mut *self).cast::<Leaf>() };
        leaf.make_unique(extra);
        leaf
    }

    /// The inner node, with one owner.
    #[inline]
    pub fn inner_mut(&mut self) -> &mut Inner<K> {
        if !self.common().count.unique() {
            *self = Node::from_inner(self.inner().copy());
        }
        assert!((1..ROOT).contains(&self.height()));
        // SAFETY: an inner node (N1) whose only owner is borrowed mutably (N2).
        unsafe { self.at.cast().as_mut() }
    }

    /// The root, with one owner, about to be changed: its fingers are cleared.
    #[inline]
    pub fn root_mut(&mut self) -> &mut Root<K> {
        if !self.common().count.unique() {
            let root = self.root();
            let node = root.node.clone();
            *self = Node::from_root(Root { count: Count::one(), node, fingers: Fingers::NONE, ..*root });
        }
        assert!(self.height() == ROOT);
        // SAFETY: a root (N1) whose only owner is borrowed mutably (N2).
        let root: &mut Root<K> = unsafe { self.at.cast().as_mut() };
        root.fingers = Fingers::NONE;
        root
    }

    /// Its address and its number of owners.
    pub fn owners(&self) -> (usize, usize) {
        (self.at.addr().get(), self.common().count.owners())
    }

    /// An estimate of the bytes of an inner node and everything below it that only its owner has.
    pub fn alone_bytes(&self, bytes: usize) -> usize {
        if self.common().count.unique() { alone::bytes(self, bytes) } else { 0 }
    }

    /// The root, if this is one without other owners. Nodes below it must not move.
    #[inline]
    pub fn unshared_root(&mut self) -> Option<&mut Root<K>> {
        if self.height() != ROOT || !self.common().count.unique() {
            return None;
        }
        // SAFETY: a root (N1) whose only owner is borrowed mutably (N2).
        Some(unsafe { self.at.cast().as_mut() })
    }

    /// The address of an inner node.
    #[inline]
    pub fn inner_raw(&self) -> NonNull<Inner<K>> {
        assert!((1..ROOT).contains(&self.height()));
        self.at.cast()
    }

    /// The node below a root, moved out if the root has no other owner.
    pub fn into_top(self) -> Slot<K> {
        let root = self.root();
        if !root.count.unique() {
            return root.slot();
        }
        let at = self.at.cast::<Root<K>>();
        std::mem::forget(self);
        // SAFETY: a root (N1), leaked from a box; its only owner was this handle.
        let root = unsafe { Box::from_raw(at.as_ptr()) };
        let digest = root.node.first_digest();
        Slot { node: root.node, count: root.len, weight: root.weight, digest }
    }

    fn first_digest(&self) -> (K::Main, K::Rest) {
        match self.height() {
            0 => K::digest(self.leaf().entry(0)),
            _ => (self.inner().mains[0], self.inner().rests[0]),
        }
    }

    fn first_entry(&self) -> Entry<'_> {
        let mut node = self;
        while node.height() > 0 {
            node = node.inner().child(0);
        }
        node.leaf().entry(0)
    }

    fn measure(&self) -> (u64, u64) {
        match self.height() {
            0 => (self.leaf().len() as u64, self.leaf().iter().map(K::weight).sum()),
            _ => {
                let inner = self.inner();
                let len = inner.len();
                (inner.counts[..len].iter().sum(), inner.weights[..len].iter().sum())
            }
        }
    }

    /// Less than a quarter full (T4).
    fn is_small(&self) -> bool {
        match self.height() {
            0 => self.leaf().used() < LEAF_MAX / 4 && self.leaf().len() < leaf::MAX_LEN / 4,
            _ => self.inner().len() < FANOUT / 4,
        }
    }

    /// Whether two neighbours of one height should be one node.
    pub fn should_merge(&self, next: &Self) -> bool {
        if !self.is_small() && !next.is_small() {
            return false;
        }
        match self.height() {
            0 => {
                let (a, b) = (self.leaf(), next.leaf());
                a.used() + b.used() <= LEAF_MAX / 4 * 3 && a.len() + b.len() <= leaf::MAX_LEN / 4 * 3
            }
            _ => self.inner().len() + next.inner().len() <= FANOUT / 4 * 3,
        }
    }

    /// Takes over the entries or children of the right neighbour.
    pub fn absorb(&mut self, next: &Self) {
        if self.height() == 0 {
            let next = next.leaf();
            return self.leaf_mut(next.used()).append(next, 0..next.len());
        }
        let inner = self.inner_mut();
        for slot in next.inner().slots() {
            inner.insert(inner.len(), slot);
        }
    }

    /// Inserts below. Returns a node split off on the right.
    fn insert(&mut self, path: &Path, item: &Item<'_>, edge: Edge) -> Option<Slot<K>> {
        let height = self.height();
        if height == 0 {
            return self.insert_into_leaf(path.index, item, edge);
        }
        let inner = self.inner_mut();
        let at = path.child(height);
        let edge = Edge { first: edge.first && at == 0, last: edge.last && at + 1 == inner.len(), ..edge };
        let split = inner.child_mut(at).insert(path, item, edge);
        inner.counts[at] += 1;
        inner.weights[at] += item.weight;
        match split {
            None if path.index > 0 => None,
            None => {
                inner.redigest(at);
                None
            }
            Some(right) => {
                inner.counts[at] -= right.count;
                inner.weights[at] -= right.weight;
                inner.redigest(at);
                inner.insert_or_split(at + 1, right, edge.last)
            }
        }
    }

    fn insert_into_leaf(&mut self, i: usize, item: &Item<'_>, edge: Edge) -> Option<Slot<K>> {
        let leaf = self.leaf_mut(item.space());
        if leaf.fits(item.space(), LEAF_MAX) {
            leaf.insert(i, *item);
            return None;
        }
        // At the ends leaves stay full; elsewhere they are halved.
        if edge.first && i == 0 {
            let mut fresh = Leaf::with_room_in_front(edge.room.max(item.space()), item.space() - 2);
            fresh.insert(0, *item);
            leaf.shrink();
            let right = std::mem::replace(leaf, fresh);
            return Some(Slot::of(Node::from_leaf(right)));
        }
        if edge.last && i == leaf.len() {
            let mut fresh = Leaf::with_space(edge.room.max(item.space()));
            fresh.insert(0, *item);
            leaf.shrink();
            return Some(Slot::of(Node::from_leaf(fresh)));
        }
        let middle = leaf.middle();
        let spare = if i >= middle { item.space() } else { 0 };
        let mut right = leaf.copy_range(middle..leaf.len(), spare);
        leaf.remove(middle..leaf.len());
        leaf.shrink();
        match i.checked_sub(middle) {
            Some(i) => right.insert(i, *item),
            None => leaf.insert(i, *item),
        }
        Some(Slot::of(Node::from_leaf(right)))
    }

    /// Removes `count` entries of one leaf; returns their weight.
    fn remove(&mut self, path: &Path, count: usize) -> u64 {
        let height = self.height();
        if height == 0 {
            let leaf = self.leaf_mut(0);
            let range = path.index..path.index + count;
            let weight = range.clone().map(|i| K::weight(leaf.entry(i))).sum();
            leaf.remove(range);
            return weight;
        }
        let inner = self.inner_mut();
        let at = path.child(height);
        if inner.counts[at] == count as u64 {
            return inner.remove(at).weight;
        }
        let weight = inner.child_mut(at).remove(path, count);
        inner.counts[at] -= count as u64;
        inner.weights[at] -= weight;
        if path.index == 0 {
            inner.redigest(at);
        }
        if inner.child(at).is_small() {
            inner.merge_around(at);
        }
        weight
    }

    /// Replaces an entry by one that fits; returns its former and its new weight.
    fn replace(&mut self, path: &Path, item: Item<'_>) -> (u64, u64) {
        let height = self.height();
        if height == 0 {
            let leaf = self.leaf_mut(item.space());
            let old = K::weight(leaf.entry(path.index));
            leaf.replace(path.index, item);
            return (old, K::weight(leaf.entry(path.index)));
        }
        let inner = self.inner_mut();
        let at = path.child(height);
        let (old, new) = inner.child_mut(at).replace(path, item);
        inner.weights[at] = inner.weights[at] - old + new;
        if path.index == 0 {
            inner.redigest(at);
        }
        (old, new)
    }

    /// Checks T1 to T3 below, and returns the facts for the parent: entries, weight, digest.
    pub fn check_invariants(&self) -> (u64, u64, (K::Main, K::Rest)) {
        if self.height() == 0 {
            self.leaf().check_invariants();
            assert!(!self.leaf().is_empty(), "T3");
        } else {
            let inner = self.inner();
            assert!(inner.len() > 0, "T3");
            for (i, child) in inner.children.iter().enumerate() {
                assert_eq!(child.is_some(), i < inner.len());
                let Some(child) = child else { continue };
                assert_eq!(child.height() + 1, self.height(), "T1");
                let (count, weight, digest) = child.check_invariants();
                assert!(digest == (inner.mains[i], inner.rests[i]), "T2");
                assert_eq!((count, weight), (inner.counts[i], inner.weights[i]), "T2");
            }
        }
        let (count, weight) = self.measure();
        (count, weight, self.first_digest())
    }

    pub fn shape(&self) -> (usize, usize, usize) {
        if self.height() == 0 {
            return (1, 0, self.leaf().alloc_bytes());
        }
        let inner = self.inner();
        let below = (0..inner.len()).map(|i| inner.child(i).shape());
        below.fold((0, 1, size_of::<Inner<K>>()), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2))
    }
}

impl<K: Kind> Inner<K> {
    pub fn new(height: u8, slots: impl IntoIterator<Item = Slot<K>>) -> Self {
        assert!(height as usize <= MAX_HEIGHT);
        let mut inner = Inner {
            count: Count::one(),
            height,
            len: 0,
            children: [const { None }; FANOUT],
            counts: [0; FANOUT],
            weights: [0; FANOUT],
            mains: [K::Main::default(); FANOUT],
            rests: [K::Rest::default(); FANOUT],
        };
        for slot in slots {
            inner.insert(inner.len(), slot);
        }
        inner
    }

    fn copy(&self) -> Self {
        // Counts are in as many cold lines as there are children, and atomic operations do not overlap.
        (0..self.len()).for_each(|i| self.child(i).prefetch_lines(1));
        let children = self.children.clone();
        Inner { count: Count::one(), children, ..*self }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if there is one owner.
    #[inline]
    pub fn is_unique(&self) -> bool {
        self.count.unique()
    }

    #[inline]
    pub fn child(&self, i: usize) -> &Node<K> {
        self.children[i].as_ref().expect("a child below len")
    }

    #[inline]
    pub fn child_mut(&mut self, i: usize) -> &mut Node<K> {
        self.children[i].as_mut().expect("a child below len")
    }

    /// The child with entry `i` of `total`, and the number of entries before that child. For `i = total`: the
    /// last child.
    #[inline]
    pub fn find(&self, i: usize, total: usize) -> (usize, usize) {
        if i > total / 2 {
            let (mut child, mut before) = (self.len() - 1, total - self.count_of(self.len() - 1));
            while before > i {
                child -= 1;
                before -= self.count_of(child);
            }
            return (child, before);
        }
        let (mut child, mut before) = (0, 0);
        while child + 1 < self.len() && before + self.count_of(child) <= i {
            before += self.count_of(child);
            child += 1;
        }
        (child, before)
    }

    #[inline]
    pub fn height(&self) -> u8 {
        self.height
    }

    #[inline]
    pub fn count_of(&self, child: usize) -> usize {
        self.counts[child] as usize
    }

    #[inline]
    pub fn count_before(&self, child: usize) -> usize {
        self.counts[..child].iter().sum::<u64>() as usize
    }

    /// The last child whose first entry passes the test, or child 0. The test starts to fail in it or at its
    /// end.
    #[inline]
    pub fn seek(&self, probe: &impl Probe<K>) -> usize {
        let mains = &self.mains[1..self.len()];
        // Counting reads the whole array; no load waits for another.
        let mut low = 1 + mains.iter().map(|&main| usize::from(probe.main_before(main))).sum::<usize>();
        let mut high = low + mains.iter().map(|&main| usize::from(probe.main_ties(main))).sum::<usize>();
        while low < high {
            let mid = (low + high) / 2;
            let rest = probe.rest_before(self.rests[mid]);
            if rest.unwrap_or_else(|| probe.before(self.child(mid).first_entry())) {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        low - 1
    }

    fn redigest(&mut self, at: usize) {
        (self.mains[at], self.rests[at]) = self.child(at).first_digest();
    }

    /// The slots, as owners of their own.
    pub fn slots(&self) -> impl Iterator<Item = Slot<K>> {
        (0..self.len()).map(|i| Slot {
            node: self.child(i).clone(),
            count: self.counts[i],
            weight: self.weights[i],
            digest: (self.mains[i], self.rests[i]),
        })
    }

    fn insert(&mut self, at: usize, slot: Slot<K>) {
        let len = self.len();
        assert!(at <= len && len < FANOUT && slot.height() + 1 == self.height, "T1");
        self.children[at..=len].rotate_right(1);
        self.counts.copy_within(at..len, at + 1);
        self.weights.copy_within(at..len, at + 1);
        self.mains.copy_within(at..len, at + 1);
        self.rests.copy_within(at..len, at + 1);
        self.children[at] = Some(slot.node);
        self.counts[at] = slot.count;
        self.weights[at] = slot.weight;
        (self.mains[at], self.rests[at]) = slot.digest;
        self.len += 1;
    }

    fn remove(&mut self, at: usize) -> Slot<K> {
        let len = self.len();
        let node = self.children[at].take().expect("a child below len");
        let digest = (self.mains[at], self.rests[at]);
        let slot = Slot { node, count: self.counts[at], weight: self.weights[at], digest };
        self.children[at..len].rotate_left(1);
        self.counts.copy_within(at + 1..len, at);
        self.weights.copy_within(at + 1..len, at);
        self.mains.copy_within(at + 1..len, at);
        self.rests.copy_within(at + 1..len, at);
        self.len -= 1;
        slot
    }

    /// Inserts. A full node is split, and the right part returned. At the end of a tree the left part stays
    /// full.
    pub fn insert_or_split(&mut self, at: usize, slot: Slot<K>, last: bool) -> Option<Slot<K>> {
        if self.len() < FANOUT {
            self.insert(at, slot);
            return None;
        }
        let middle = if last && at == FANOUT { FANOUT } else { FANOUT / 2 };
        let mut right = Inner::new(self.height, std::iter::empty());
        while self.len() > middle {
            let moved = self.remove(self.len() - 1);
            right.insert(0, moved);
        }
        if at <= middle && middle < FANOUT {
            self.insert(at, slot);
        } else {
            right.insert(at - middle, slot);
        }
        Some(Slot::of(Node::from_inner(right)))
    }

    /// Merges child `at` with a neighbour if that is better (T4).
    fn merge_around(&mut self, at: usize) {
        for left in [at, at.wrapping_sub(1)] {
            if left < self.len()
                && left + 1 < self.len()
                && self.child(left).should_merge(self.child(left + 1))
            {
                let right = self.remove(left + 1);
                return self.absorb_at(left, right);
            }
        }
    }

    fn absorb_at(&mut self, at: usize, right: Slot<K>) {
        self.child_mut(at).absorb(&right.node);
        self.counts[at] += right.count;
        self.weights[at] += right.weight;
    }

    /// Adds a lower tree on the right. Returns the part split off.
    pub fn push_right(&mut self, other: Slot<K>) -> Option<Slot<K>> {
        let last = self.len() - 1;
        if other.height() + 1 < self.height {
            let (count, weight) = (other.count, other.weight);
            let split = self.child_mut(last).inner_mut().push_right(other);
            self.counts[last] = self.counts[last] + count - split.as_ref().map_or(0, |s| s.count);
            self.weights[last] = self.weights[last] + weight - split.as_ref().map_or(0, |s| s.weight);
            return split.and_then(|split| self.insert_or_split(last + 1, split, false));
        }
        if self.child(last).should_merge(&other.node) {
            self.absorb_at(last, other);
            return None;
        }
        self.insert_or_split(last + 1, other, false)
    }

    /// Adds a lower tree on the left. Returns the part split off, on the right.
    pub fn push_left(&mut self, other: Slot<K>) -> Option<Slot<K>> {
        let digest = other.digest;
        let split = if other.height() + 1 < self.height {
            let (count, weight) = (other.count, other.weight);
            let split = self.child_mut(0).inner_mut().push_left(other);
            self.counts[0] = self.counts[0] + count - split.as_ref().map_or(0, |s| s.count);
            self.weights[0] = self.weights[0] + weight - split.as_ref().map_or(0, |s| s.weight);
            split.and_then(|split| self.insert_or_split(1, split, false))
        } else if other.node.should_merge(self.child(0)) {
            let next = self.remove(0);
            self.insert(0, other);
            self.absorb_at(0, next);
            None
        } else {
            self.insert_or_split(0, other, false)
        };
        (self.mains[0], self.rests[0]) = digest;
        split
    }
}

impl<K: Kind> Root<K> {
    pub fn new(slot: Slot<K>, flags: u8) -> Self {
        Root {
            count: Count::one(),
            height: ROOT,
            flags,
            node: slot.node,
            len: slot.count,
            weight: slot.weight,
            base: 0,
            fingers: Fingers::NONE,
        }
    }

    /// The node, shared with the root.
    fn slot(&self) -> Slot<K> {
        let digest = self.node.first_digest();
        Slot { node: self.node.clone(), count: self.len, weight: self.weight, digest }
    }

    /// Inserts where no node splits and no digest changes.
    #[inline]
    pub fn insert_fitting(&mut self, path: &Path, item: Item<'_>) {
        self.base = self.base.wrapping_sub(i64::from(path.rank == 0));
        self.len += 1;
        self.weight += item.weight;
        let mut node = &mut self.node;
        while node.height() > 0 {
            let inner = node.inner_mut();
            let at = path.child(inner.height);
            inner.counts[at] += 1;
            inner.weights[at] += item.weight;
            node = inner.child_mut(at);
        }
        node.leaf_mut(item.space()).insert(path.index, item);
    }

    pub fn insert(&mut self, path: &Path, item: &Item<'_>) {
        // One more full-size leaf costs a large tree nothing, and saves growing it step by step.
        let room = if self.weight > LARGE { LEAF_MAX } else { LEAF_MAX / 4 };
        let split = self.node.insert(path, item, Edge { first: true, last: true, room });
        self.base = self.base.wrapping_sub(i64::from(path.rank == 0));
        self.len += 1;
        self.weight += item.weight;
        if let Some(right) = split {
            let height = self.node.height() + 1;
            let left = Slot::of(self.node.clone());
            self.node = Node::from_inner(Inner::new(height, [left, right]));
        }
    }

    pub fn remove(&mut self, path: &Path, count: usize) {
        self.weight -= self.node.remove(path, count);
        self.base = self.base.wrapping_add(if path.rank == 0 { count as i64 } else { 0 });
        self.len -= count as u64;
        while self.node.height() > 0 && self.node.inner().len() == 1 {
            self.node = self.node.inner().child(0).clone();
        }
    }

    pub fn replace(&mut self, path: &Path, item: Item<'_>) {
        let (old, new) = self.node.replace(path, item);
        self.weight = self.weight - old + new;
    }

    /// The leaf, if nothing else is left.
    pub fn lone_leaf(&self) -> Option<Node<K>> {
        (self.node.height() == 0).then(|| self.node.clone())
    }
}

impl<K: Kind> Clone for Node<K> {
    #[inline]
    fn clone(&self) -> Self {
        self.common().count.retain();
        Node { at: self.at, kind: PhantomData }
    }
}

impl<K: Kind> Drop for Node<K> {
    #[inline]
    fn drop(&mut self) {
        let height = self.height();
        if height == 0 {
            // SAFETY: a leaf (N1); the handle gives up its count as a `Leaf`.
            return drop(unsafe { Leaf::from_raw(self.at.cast()) });
        }
        if self.common().count.release() {
            // SAFETY: the last owner of an inner node or root (N1), which was leaked from a box.
            unsafe { free(self.at, height, PhantomData::<K>) };
        }
    }
}

impl<'a, K: Kind> Below for &'a Node<K> {
    fn each_child(self, told: &mut dyn FnMut(u64, bool, Option<&'a Node<K>>)) {
        if self.height() == 0 {
            return;
        }
        let inner = self.inner();
        for (child, weight) in inner.children.iter().flatten().zip(inner.weights) {
            told(weight, child.common().count.unique(), Some(child));
        }
    }
}

/// # Safety
/// `at` is an inner node or root of this kind without owners.
#[cold]
unsafe fn free<K: Kind>(at: NonNull<Common>, height: u8, _: PhantomData<K>) {
    // SAFETY: promised by the caller.
    unsafe {
        if height != ROOT {
            return drop(Box::from_raw(at.cast::<Inner<K>>().as_ptr()));
        }
        let root = Box::from_raw(at.cast::<Root<K>>().as_ptr());
        if root.len > DEFER_LEN || root.weight > DEFER_WEIGHT {
            let alone = root.node.alone_bytes(root.weight as usize);
            stdx::reclaim::defer_version(root.weight as usize, alone, move || drop(root));
        }
    }
}
