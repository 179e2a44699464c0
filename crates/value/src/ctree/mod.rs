//! The counted tree: a copy-on-write B+-tree by position, for all ordered values.
//!
//! ```text
//! handle (8 bytes) ─┬─ null                       empty
//!                   ├─ leaf                       up to about 2 KB of entries (leaf.rs)
//!                   └─ root [count|len|weight] ─► inner: 31 × (child, entries, weight, first entry's digest)
//!                                                   ├─► inner …             all leaves at the same depth
//!                                                   └─► leaf  leaf  leaf …
//! ```
//!
//! Counts find an entry by its position. [`Tree::seek`] finds the first entry that fails a monotone test,
//! mostly by the digests alone. A [`Kind`] defines the meaning, weight and digest of an entry.
//!
//! - T1: leaves of a root are all at height 0, and the height of a child is one less than its parent's.
//! - T2: `counts`, `weights`, `mains` and `rests` of an inner node describe its children exactly.
//! - T3: no node inside a root is empty. A root's node is an inner node with at least two children, or, for
//!   [`Kind::COUNTED_FROM`], a leaf. Such a root knows the base and stays until the tree is empty.
//! - T4: of two neighbours at least one is not small (a quarter full), unless together they are too large to
//!   merge well. This is restored around a node that shrinks, so it keeps the height logarithmic, and is not
//!   checked.
//! - T5: a node with one owner, reached through nodes with one owner each, is changed in place; others are
//!   copied.
//!
//! Costs, n = entries: clone O(1); get, insert, remove, seek O(log n); split and concat O(log n); a step of
//! an iterator O(1). Push and pop at the ends of trees without digests are amortised O(1), see [`ends`]. A
//! large tree is dropped by the reclaimer.

mod build;
mod ends;
mod iter;
mod join;
mod leaf;
mod node;

use std::ops::Range;

pub use build::Builder;
pub use ends::End;
pub use iter::{Iter, RevIter};
pub(crate) use leaf::size_class;
pub use leaf::{BIG, Entry, Item, Leaf, MAX_CAP};

use node::{Node, Root, Slot};

/// Bytes of entries and slots in a leaf of a tree, at most: with the header, 2 KB.
pub const LEAF_MAX: usize = 2032;

/// Children of an inner node.
///
/// One less than a power of two, so that a node with its header just fits a size class of the allocator.
pub const FANOUT: usize = 31;

/// Height that no tree exceeds. Nodes are split when full, so a higher tree would need more full leaves than
/// memory holds.
pub const MAX_HEIGHT: usize = 12;

/// Bits of a child's index in a [`Path`].
const CHILD_BITS: usize = 5;
const _: () = assert!(FANOUT <= 1 << CHILD_BITS && MAX_HEIGHT * CHILD_BITS <= 64);

/// A kind of entries.
pub trait Kind: 'static {
    /// Whether positions count from a base that moves with the first entry. They then stay the same when
    /// entries come and go at the ends: see [`Tree::base`].
    const COUNTED_FROM: bool = false;

    /// The first part of an entry's digest, found without branches among those of a node's children.
    type Main: Copy + Default + PartialEq + Send + Sync;
    /// The second part, compared where first parts are equal.
    type Rest: Copy + Default + PartialEq + Send + Sync;

    /// The digest of an entry, which decides most comparisons. See [`Probe`].
    fn digest(entry: Entry<'_>) -> (Self::Main, Self::Rest);

    /// Bytes to account for the entry: the weight of its [`Item`].
    fn weight(entry: Entry<'_>) -> u64;
}

/// A test that holds for the entries in front of some place in a tree and fails from there on.
pub trait Probe<K: Kind> {
    /// Whether entries with this first part of the digest are surely before the place.
    fn main_before(&self, main: K::Main) -> bool;

    /// Whether the first part does not decide.
    fn main_ties(&self, main: K::Main) -> bool;

    /// Whether an entry is before the place by its second part, if that decides. Its first part does not.
    fn rest_before(&self, rest: K::Rest) -> Option<bool>;

    /// Whether `entry` is before the place.
    fn before(&self, entry: Entry<'_>) -> bool;
}

/// A place in a tree: the child to take at each height, and the index in the leaf.
#[derive(Clone, Copy)]
pub struct Path {
    /// The children taken, those at height 1 in the lowest bits.
    children: u64,
    index: usize,
    rank: usize,
}

impl Path {
    /// The child to take in an inner node of this height.
    #[inline]
    fn child(&self, height: u8) -> usize {
        (self.children >> (CHILD_BITS * (height as usize - 1))) as usize % (1 << CHILD_BITS)
    }

    #[inline]
    fn take(&mut self, height: u8, child: usize) {
        self.children |= (child as u64) << (CHILD_BITS * (height as usize - 1));
    }

    /// Number of entries before the place.
    #[inline]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Index in the leaf.
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }
}

/// A sequence of entries. 8 bytes; clone O(1).
#[repr(transparent)]
pub struct Tree<K: Kind> {
    node: Option<Node<K>>,
}

/// The decoded handle.
enum Form<'a, K: Kind> {
    Empty,
    Leaf(&'a Leaf),
    Root(&'a Root<K>),
}

impl<K: Kind> Tree<K> {
    /// The empty tree. Does not allocate.
    pub const fn new() -> Self {
        Tree { node: None }
    }

    /// The handle as a pointer, aligned to 8 and null if empty; a `&Tree` may point to where it is kept.
    pub(crate) fn into_raw(self) -> *mut () {
        self.node.map_or(std::ptr::null_mut(), |node| node.into_raw().as_ptr())
    }

    /// # Safety
    /// `raw` came from [`Tree::into_raw`] of the same kind and is given back only once.
    pub(crate) unsafe fn from_raw(raw: *mut ()) -> Tree<K> {
        // SAFETY: promised by the caller.
        Tree { node: std::ptr::NonNull::new(raw).map(|raw| unsafe { Node::from_raw(raw) }) }
    }

    #[inline]
    fn form(&self) -> Form<'_, K> {
        match &self.node {
            None => Form::Empty,
            Some(node) if node.height() == 0 => Form::Leaf(node.leaf()),
            Some(node) => Form::Root(node.root()),
        }
    }

    /// Entries. O(1).
    #[inline]
    pub fn len(&self) -> usize {
        match self.form() {
            Form::Empty => 0,
            Form::Leaf(leaf) => leaf.len(),
            Form::Root(root) => root.len as usize,
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.node.is_none()
    }

    /// The only leaf of a tree that has just one.
    pub fn as_leaf(&self) -> Option<&Leaf> {
        match self.form() {
            Form::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    /// Sum of the entries' weights. O(1), but O(entries) in a tree of one leaf.
    pub fn weight(&self) -> u64 {
        match self.form() {
            Form::Empty => 0,
            Form::Leaf(leaf) => leaf.iter().map(K::weight).sum(),
            Form::Root(root) => root.weight,
        }
    }

    /// The root and memory that this handle keeps alive. Cost: as `mem_bytes`, and O(height).
    pub fn held(&self) -> Option<crate::Held> {
        let (root, owners) = self.node.as_ref()?.owners();
        let bytes = match self.form() {
            Form::Root(root) => root.node.alone_bytes(self.mem_bytes()),
            _ => self.mem_bytes(),
        };
        Some(crate::Held { root, owners, bytes })
    }

    /// Approximate bytes of the tree and all that it owns. O(1), but O(entries) in a leaf with long entries.
    pub fn mem_bytes(&self) -> usize {
        match self.form() {
            Form::Empty => 0,
            Form::Leaf(leaf) if leaf.has_bigs() => leaf.alloc_bytes() + self.weight() as usize,
            Form::Leaf(leaf) => leaf.alloc_bytes(),
            // A leaf is about 7/8 full, and an inner node adds some bytes per leaf.
            Form::Root(root) => size_of::<Root<K>>() + (root.weight + root.weight / 8) as usize,
        }
    }

    /// Eight bits for the owner of the handle; lost when the tree becomes empty.
    pub fn flags(&self) -> u8 {
        match self.form() {
            Form::Empty => 0,
            Form::Leaf(leaf) => leaf.head().flags,
            Form::Root(root) => root.flags,
        }
    }

    /// Sets the flags; nothing happens in an empty tree.
    pub fn set_flags(&mut self, flags: u8) {
        if self.flags() == flags {
            return;
        }
        match &mut self.node {
            None => {}
            Some(node) if node.height() == 0 => node.leaf_mut(0).head_mut().flags = flags,
            Some(node) => match node.unshared_root() {
                Some(root) => root.flags = flags,
                None => node.root_mut().flags = flags,
            },
        }
    }

    /// The name of the first entry's position. It falls with each entry added in front and rises with each
    /// one removed there. Trees that never had more than one leaf, and kinds without a base, give 0.
    pub fn base(&self) -> i64 {
        match self.form() {
            Form::Root(root) => root.base,
            _ => 0,
        }
    }

    /// The base of a tree that has one.
    fn kept_base(&self) -> Option<i64> {
        match self.form() {
            Form::Root(root) if K::COUNTED_FROM => Some(root.base),
            _ => None,
        }
    }

    /// Restores the base of a tree that was taken apart, and makes a root for it if needed.
    fn keep_base(&mut self, base: Option<i64>) {
        let Some(base) = base.filter(|_| !self.is_empty()) else { return };
        if self.as_leaf().is_some() {
            self.plant();
        }
        if let Some(node) = &mut self.node {
            node.root_mut().base = base;
        }
    }

    /// Entry `i`, if there are so many. O(log n).
    pub fn get(&self, mut i: usize) -> Option<Entry<'_>> {
        if i >= self.len() {
            return None;
        }
        let (mut node, mut total) = match self.form() {
            Form::Empty => return None,
            Form::Leaf(leaf) => return Some(leaf.entry(i)),
            Form::Root(root) => (&root.node, root.len as usize),
        };
        while node.height() > 0 {
            let inner = node.inner();
            let (child, before) = inner.find(i, total);
            i -= before;
            (node, total) = (inner.child(child), inner.count_of(child));
        }
        Some(node.leaf().entry(i))
    }

    /// The place in front of entry `i <= len`. O(log n).
    pub fn path_at(&self, i: usize) -> Path {
        assert!(i <= self.len());
        let mut path = Path { children: 0, index: i, rank: i };
        if let Form::Root(root) = self.form() {
            let (mut node, mut total) = (&root.node, root.len as usize);
            while node.height() > 0 {
                let inner = node.inner();
                let (child, before) = inner.find(path.index, total);
                path.take(node.height(), child);
                path.index -= before;
                (node, total) = (inner.child(child), inner.count_of(child));
            }
        }
        path
    }

    /// The place in front of the first entry that fails the test. O(log n).
    pub fn seek(&self, probe: &impl Probe<K>) -> Path {
        let mut path = Path { children: 0, index: 0, rank: 0 };
        let leaf = match self.form() {
            Form::Empty => return path,
            Form::Leaf(leaf) => leaf,
            Form::Root(root) => {
                let mut node = &root.node;
                while node.height() > 0 {
                    let inner = node.inner();
                    let child = inner.seek(probe);
                    path.take(node.height(), child);
                    path.rank += inner.count_before(child);
                    node = inner.child(child);
                    if inner.height() == 1 {
                        node.prefetch();
                    }
                }
                node.leaf()
            }
        };
        let (mut low, mut high) = (0, leaf.len());
        while low < high {
            let mid = (low + high) / 2;
            if probe.before(leaf.entry(mid)) {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        path.index = low;
        path.rank += low;
        path
    }

    /// Inserts at a place of this tree. O(log n).
    pub fn insert(&mut self, path: &Path, item: Item<'_>) {
        let Some(node) = &mut self.node else {
            let mut leaf = Leaf::with_space(item.space());
            leaf.insert(0, item);
            self.node = Some(Node::from_leaf(leaf));
            return;
        };
        if node.height() == 0 {
            if node.leaf().fits(item.space(), LEAF_MAX) {
                return node.leaf_mut(item.space()).insert(path.index, item);
            }
            self.plant();
        }
        let fits = self.leaf_at(path).fits(item.space(), LEAF_MAX);
        let root = self.node.as_mut().expect("planted").root_mut();
        // The first entry of a leaf may change digests above, unless digests are empty.
        if fits && (path.index > 0 || size_of::<(K::Main, K::Rest)>() == 0) {
            root.insert_fitting(path, item);
        } else {
            root.insert(path, &item);
        }
    }

    /// Puts a root above a single leaf that is about to be split.
    fn plant(&mut self) {
        let flags = self.flags();
        if let Some(leaf) = self.node.take() {
            self.node = Some(Node::from_root(Root::new(Slot::of(leaf), flags)));
        }
    }

    /// Replaces the entry behind a place that has one.
    pub fn replace(&mut self, path: &Path, item: Item<'_>) {
        let path = &self.normal(path);
        let fits = self.leaf_at(path).used() + item.space() <= LEAF_MAX + 2;
        if !fits {
            let base = self.kept_base();
            self.remove(path, 1);
            let path = self.path_at(path.rank);
            self.insert(&path, item);
            return self.keep_base(base);
        }
        match &mut self.node {
            None => {}
            Some(node) if node.height() == 0 => node.leaf_mut(item.space()).replace(path.index, item),
            Some(node) => node.root_mut().replace(path, item),
        }
    }

    /// The same place, in front of an entry of its own leaf.
    fn normal(&self, path: &Path) -> Path {
        if path.index < self.leaf_at(path).len() { *path } else { self.path_at(path.rank) }
    }

    /// The leaf of a place. Panics in an empty tree.
    pub fn leaf_at(&self, path: &Path) -> &Leaf {
        match self.form() {
            Form::Empty => panic!("a place in an empty tree"),
            Form::Leaf(leaf) => leaf,
            Form::Root(root) => {
                let mut node = &root.node;
                while node.height() > 0 {
                    node = node.inner().child(path.child(node.height()));
                }
                node.leaf()
            }
        }
    }

    /// Removes up to `count` entries behind a place, within one leaf, and returns their number. O(log n).
    pub fn remove(&mut self, path: &Path, count: usize) -> usize {
        if path.rank >= self.len() || count == 0 {
            return 0;
        }
        let path = &self.normal(path);
        let leaf_len = self.leaf_at(path).len();
        let count = count.min(leaf_len - path.index);
        let (flags, emptied) = (self.flags(), self.len() == count);
        let left = match &mut self.node {
            None => return 0,
            Some(_) if emptied => None,
            Some(node) if node.height() == 0 => {
                node.leaf_mut(0).remove(path.index..path.index + count);
                return count;
            }
            Some(node) => {
                let root = node.root_mut();
                root.remove(path, count);
                match root.lone_leaf().filter(|_| !K::COUNTED_FROM) {
                    None => return count,
                    leaf => leaf,
                }
            }
        };
        self.node = left;
        self.set_flags(flags);
        count
    }

    /// Removes a range, which exists. O(log n); a large part is freed by the reclaimer.
    pub fn remove_range(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len());
        if range.len() <= 8 {
            let mut left = range.len();
            while left > 0 {
                let path = self.path_at(range.start);
                left -= self.remove(&path, left);
            }
            return;
        }
        let flags = self.flags();
        let gone = if range.start == 0 { range.end as i64 } else { 0 };
        let base = self.kept_base().map(|base| base.wrapping_add(gone));
        let tail = self.split_off(range.end);
        drop(self.split_off(range.start));
        self.append(tail);
        self.keep_base(base);
        self.set_flags(flags);
    }

    /// Cuts the tree: keeps `at` entries, returns the others. O(log n). Both keep the flags.
    pub fn split_off(&mut self, at: usize) -> Tree<K> {
        if at >= self.len() {
            return Tree::new();
        }
        let (flags, base) = (self.flags(), self.kept_base());
        let whole = self.take_slot();
        let (left, right) = match whole {
            Some(whole) if at > 0 => join::split(whole, at),
            whole => (None, whole),
        };
        *self = Tree::from_slot(left, flags);
        let mut right = Tree::from_slot(right, flags);
        self.keep_base(base);
        right.keep_base(base.map(|base| base.wrapping_add(at as i64)));
        right
    }

    /// Appends another tree. O(log n). The flags of `self`, if it is not empty, stay.
    pub fn append(&mut self, other: Tree<K>) {
        let flags = if self.is_empty() { other.flags() } else { self.flags() };
        let base = if self.is_empty() { other.kept_base() } else { self.kept_base() };
        let (left, right) = (self.take_slot(), { other }.take_slot());
        *self = Tree::from_slot(join::join(left, right), flags);
        self.keep_base(base);
    }

    fn take_slot(&mut self) -> Option<Slot<K>> {
        let node = self.node.take()?;
        if node.height() == 0 {
            return Some(Slot::of(node));
        }
        Some(node.into_top())
    }

    fn from_slot(slot: Option<Slot<K>>, flags: u8) -> Tree<K> {
        let mut tree = Tree { node: None };
        if let Some(slot) = slot {
            tree.node = Some(match slot.node.height() {
                0 => slot.node,
                _ => Node::from_root(Root::new(slot, flags)),
            });
            tree.set_flags(flags);
        }
        tree
    }

    /// Entries from `i` on, in order. O(log n), then O(1) each.
    pub fn iter_from(&self, i: usize) -> Iter<'_, K> {
        Iter::new(self, i.min(self.len()))
    }

    /// Entries from `i` on towards the first one. Empty if there is no entry `i`.
    pub fn iter_rev_from(&self, i: usize) -> RevIter<'_, K> {
        RevIter::new(self, i)
    }

    /// Panics if an invariant does not hold. O(n).
    pub fn check_invariants(&self) {
        match self.form() {
            Form::Empty => {}
            Form::Leaf(leaf) => {
                leaf.check_invariants();
                assert!(!leaf.is_empty(), "T3");
            }
            Form::Root(root) => {
                let lone = K::COUNTED_FROM && root.node.height() == 0;
                assert!(lone || root.node.height() > 0 && root.node.inner().len() >= 2, "T3");
                let slot = root.node.check_invariants();
                assert_eq!((slot.0, slot.1), (root.len, root.weight), "T2");
                root.check_fingers();
            }
        }
    }

    /// Leaves, inner nodes, and bytes of both, for tests and measurements. O(n).
    pub fn shape(&self) -> (usize, usize, usize) {
        match self.form() {
            Form::Empty => (0, 0, 0),
            Form::Leaf(leaf) => (1, 0, leaf.alloc_bytes()),
            Form::Root(root) => root.node.shape(),
        }
    }
}

impl<K: Kind> Clone for Tree<K> {
    #[inline]
    fn clone(&self) -> Self {
        Tree { node: self.node.clone() }
    }
}

impl<K: Kind> Default for Tree<K> {
    fn default() -> Self {
        Tree::new()
    }
}
