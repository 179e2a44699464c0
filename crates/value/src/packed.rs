//! The handle of sets and hashes: nothing, one flat leaf, or a trie.
//!
//! ```text
//! null                   empty, no allocation
//! pointer | 1            Leaf: all entries in one block, in order of insertion (integers: ascending)
//! pointer                Arc<Root>: a Trie, the kind's data beside it, and the owner's four bits
//! ```
//!
//! - P1: a value is flat with at most [`FLAT_ENTRIES`] entries of [`FLAT_BYTES`] bytes, or [`FLAT_INTEGERS`]
//!   integers. A trie that shrinks below half of that becomes flat again. A root is never empty. A root with
//!   data beside its trie becomes flat only when its owner asks.
//! - P2: the owner's bits (Redis's name for the encoding) survive every change except emptying.
//!
//! Costs as in [`crate::trie`]; a flat value is copied whole at its first change under a clone, up to 5 KB.

use crate::arc::Arc;
use crate::trie::{Beside, EntryKind, Iter, Leaf, NEVER, Node, Trie, View, find, nth};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Entries of a flat value.
pub const FLAT_ENTRIES: usize = 128;
/// Bytes of a flat value's entries.
pub const FLAT_BYTES: usize = 4096;
/// Entries of a flat value of integers.
pub const FLAT_INTEGERS: usize = 512;

/// Entries of one kind, in a form that suits their number. 8 bytes; `clone` is O(1).
pub struct Packed<K: EntryKind> {
    raw: Option<NonNull<u8>>,
    owns: PhantomData<Trie<K>>,
}

#[repr(align(8))]
struct Root<K: EntryKind> {
    trie: Trie<K>,
    beside: K::Beside,
    user: u8,
}

impl<K: EntryKind> Clone for Root<K> {
    fn clone(&self) -> Self {
        Root { trie: self.trie.clone(), beside: self.beside.clone(), user: self.user }
    }
}

enum Form<'a, K: EntryKind> {
    Empty,
    Flat(Leaf<K>),
    Trie(&'a Arc<Root<K>>),
}

// SAFETY: like the trie: shared blocks are only read, counts are atomic.
unsafe impl<K: EntryKind> Send for Packed<K> {}
// SAFETY: as above.
unsafe impl<K: EntryKind> Sync for Packed<K> {}

impl<K: EntryKind> Packed<K> {
    /// No entries.
    #[inline]
    pub const fn new() -> Packed<K> {
        Packed { raw: None, owns: PhantomData }
    }

    #[inline]
    fn form(&self) -> Form<'_, K> {
        let Some(raw) = self.raw else { return Form::Empty };
        match Self::flat(raw) {
            Some(leaf) => Form::Flat(leaf),
            // SAFETY: without the tag the pointer is that of an `Arc`, which is nothing but the pointer.
            None => Form::Trie(unsafe { &*(&raw const self.raw).cast::<Arc<Root<K>>>() }),
        }
    }

    #[inline]
    fn flat(raw: NonNull<u8>) -> Option<Leaf<K>> {
        if raw.addr().get() & 1 == 0 {
            return None;
        }
        let raw = raw.as_ptr().map_addr(|addr| addr & !1);
        // SAFETY: tagged by `set_leaf`; leaves are aligned to 8, so not null.
        Some(unsafe { Leaf::from_raw(NonNull::new_unchecked(raw)) })
    }

    /// The root, unshared. Tries only.
    #[inline]
    fn root_mut(&mut self) -> &mut Root<K> {
        debug_assert!(matches!(self.form(), Form::Trie(_)));
        // SAFETY: as in `form`; the callers have looked.
        unsafe { &mut *(&raw mut self.raw).cast::<Arc<Root<K>>>() }.make_mut()
    }

    fn set_leaf(&mut self, leaf: Leaf<K>) {
        self.raw = Some(leaf.into_raw().map_addr(|addr| addr | 1));
    }

    /// The entries as a node, for algorithms on trees. The data beside the trie are not included.
    #[inline]
    pub(crate) fn node(&self) -> Option<Node<K>> {
        match self.form() {
            Form::Empty => None,
            Form::Flat(leaf) => Some(Node::from_leaf(leaf)),
            Form::Trie(root) => root.trie.root(),
        }
    }

    /// True if the entries are in one flat leaf, or none.
    pub fn is_flat(&self) -> bool {
        !matches!(self.form(), Form::Trie(_))
    }

    /// True if both are clones of each other without later changes.
    pub fn ptr_eq(&self, other: &Packed<K>) -> bool {
        self.raw == other.raw
    }

    /// Number of entries. O(1).
    #[inline]
    pub fn len(&self) -> usize {
        match self.form() {
            Form::Empty => 0,
            Form::Flat(leaf) => leaf.len(),
            Form::Trie(root) => root.trie.len() + root.beside.len(),
        }
    }

    /// The data beside the trie. None for flat and empty values.
    #[inline]
    pub fn beside(&self) -> Option<&K::Beside> {
        match self.form() {
            Form::Trie(root) => Some(&root.beside),
            _ => None,
        }
    }

    /// The data beside the trie, for changing them: the root is unshared. Not for flat and empty values.
    #[inline]
    pub(crate) fn beside_mut(&mut self) -> &mut K::Beside {
        &mut self.root_mut().beside
    }

    /// The trie alone.
    pub(crate) fn trie(&self) -> Option<&Trie<K>> {
        match self.form() {
            Form::Trie(root) => Some(&root.trie),
            _ => None,
        }
    }

    /// Builds a large value from its parts, which are not both empty.
    pub(crate) fn from_parts(trie: Trie<K>, beside: K::Beside, user: u8) -> Packed<K> {
        debug_assert!(trie.len() + beside.len() > 0);
        Packed { raw: Some(Arc::new(Root { trie, beside, user }).into_raw().cast()), owns: PhantomData }
    }

    /// True without entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.raw.is_none()
    }

    /// The owner's four bits; 0 when empty.
    #[inline]
    pub fn user(&self) -> u8 {
        match self.form() {
            Form::Empty => 0,
            Form::Flat(leaf) => leaf.user(),
            Form::Trie(root) => root.user,
        }
    }

    /// Sets the owner's four bits. It copies a shared flat value, so call it right after a change. No effect
    /// if empty.
    pub fn set_user(&mut self, user: u8) {
        match self.form() {
            Form::Empty => {}
            Form::Flat(mut leaf) => {
                leaf.own();
                leaf.set_user(user);
                self.set_leaf(leaf);
            }
            Form::Trie(_) => self.root_mut().user = user,
        }
    }

    /// Bytes of all blocks, shared ones counted fully. O(1), for flat values O(entries).
    pub fn mem_bytes(&self) -> usize {
        match self.form() {
            Form::Empty => 0,
            Form::Flat(leaf) => leaf.size() + leaf.heap(),
            Form::Trie(root) => root.trie.mem_bytes() + root.beside.mem_bytes() + size_of::<Root<K>>() + 8,
        }
    }

    /// The root and memory that this handle keeps alive. O(height).
    pub fn held(&self) -> Option<crate::Held> {
        let (owners, bytes) = match self.form() {
            Form::Empty => return None,
            Form::Flat(leaf) => (leaf.owners(), self.mem_bytes()),
            Form::Trie(root) => (root.owners(), root.trie.alone_bytes() + root.beside.alone_bytes()),
        };
        Some(crate::Held { root: self.raw?.addr().get(), owners, bytes })
    }

    /// The entry of a key, unless it is kept beside the trie.
    #[inline]
    pub fn get_hashed(&self, key: K::Key<'_>, hash: u64) -> Option<K::Entry<'_>> {
        let (leaf, i) = find(self.node()?, 0, hash, key)?;
        // SAFETY: borrowed as long as the entry.
        Some(unsafe { leaf.entry(i) })
    }

    /// One entry, in a block with room for `entries` of `bytes` bytes in all. The numbers are no promise.
    pub fn begun(entry: K::Entry<'_>, hash: u64, entries: usize, bytes: usize) -> Packed<K> {
        let width = K::width(entry);
        let bytes = bytes.min(FLAT_BYTES).max(K::size(entry, width));
        let mut leaf = Leaf::with_room(width, entries.clamp(1, FLAT_ENTRIES), bytes);
        leaf.insert(0, entry, hash as u8);
        let mut packed = Packed::new();
        packed.set_leaf(leaf);
        packed
    }

    /// Inserts an entry, or replaces the one with its key. True if the key is new.
    pub fn insert_hashed(&mut self, entry: K::Entry<'_>, hash: u64) -> bool {
        match self.form() {
            Form::Empty => {
                let width = K::width(entry);
                let mut leaf = Leaf::with_room(width, 1, K::size(entry, width));
                leaf.insert(0, entry, hash as u8);
                self.set_leaf(leaf);
                true
            }
            Form::Flat(leaf) => self.insert_flat(leaf, entry, hash),
            // The look-up comes before the root is copied (V2).
            Form::Trie(root)
                if !K::REPLACES && !root.is_unique() && self.get_hashed(K::key(entry), hash).is_some() =>
            {
                false
            }
            Form::Trie(_) => self.root_mut().trie.insert_hashed(entry, hash),
        }
    }

    fn insert_flat(&mut self, mut leaf: Leaf<K>, entry: K::Entry<'_>, hash: u64) -> bool {
        let found = leaf.find(hash as u8, K::key(entry));
        match found {
            Some(_) if !K::REPLACES => return false,
            Some(i) => leaf.replace(i, entry),
            None if fits(leaf, entry) => leaf.insert(leaf.place_in_order(entry), entry, hash as u8),
            None => {
                self.grow(leaf);
                let root = self.root_mut();
                return root.beside.offer(entry).unwrap_or_else(|| root.trie.insert_hashed(entry, hash));
            }
        }
        self.set_leaf(leaf);
        if leaf.live() > FLAT_BYTES && leaf.width() == 0 && leaf.len() > 1 {
            self.grow(leaf);
        }
        found.is_none()
    }

    /// Turns a flat leaf into a trie.
    fn grow(&mut self, leaf: Leaf<K>) {
        let user = leaf.user();
        let (trie, beside) = K::Beside::divide(leaf);
        self.raw = Some(Arc::new(Root { trie, beside, user }).into_raw().cast());
    }

    /// Removes the entry of a key. False if there is none.
    pub fn remove_hashed(&mut self, key: K::Key<'_>, hash: u64) -> bool {
        match self.form() {
            Form::Empty => false,
            Form::Flat(mut leaf) => {
                let Some(i) = leaf.find(hash as u8, key) else { return false };
                if leaf.len() == 1 {
                    *self = Packed::new();
                    return true;
                }
                leaf.remove(i);
                self.set_leaf(leaf);
                true
            }
            // The look-up comes before the root is copied (V2).
            Form::Trie(root) if !root.is_unique() && self.get_hashed(key, hash).is_none() => false,
            Form::Trie(_) => {
                let Root { trie, beside, .. } = self.root_mut();
                if !trie.remove_hashed(key, hash) {
                    return false;
                }
                let (len, bytes) = (trie.len(), trie.mem_bytes());
                if beside.is_empty() && len <= FLAT_ENTRIES / 2 && bytes <= FLAT_BYTES / 2 {
                    self.shrink();
                }
                true
            }
        }
    }

    /// Turns a trie into a flat leaf.
    #[cold]
    fn shrink(&mut self) {
        let root = self.root_mut();
        let user = root.user;
        let mut leaf = std::mem::take(&mut root.trie).into_leaf();
        leaf.sort();
        leaf.set_user(user);
        *self = Packed::new();
        self.set_leaf(leaf);
    }

    /// The index of a key's entry in its leaf, for `change`, and the time of its expiry.
    pub(crate) fn find_hashed(&self, key: K::Key<'_>, hash: u64) -> Option<(usize, u64)> {
        find(self.node()?, 0, hash, key).map(|(leaf, i)| (i, leaf.expiry(i)))
    }

    /// Changes entry `i` of the leaf of a hash. `f` returns the growth of the entry's Blobs in bytes. Not
    /// when empty.
    pub(crate) fn change(&mut self, hash: u64, i: usize, f: impl FnOnce(&mut Leaf<K>) -> isize) {
        match self.form() {
            Form::Empty => {}
            Form::Flat(mut leaf) => {
                f(&mut leaf);
                self.set_leaf(leaf);
                if leaf.live() > FLAT_BYTES && leaf.width() == 0 && leaf.len() > 1 {
                    self.grow(leaf);
                }
            }
            Form::Trie(_) => self.root_mut().trie.change(hash, i, f),
        }
    }

    /// All entries in their order, without those beside the trie. The functions below leave those out too.
    pub fn iter(&self) -> Iter<'_, K> {
        self.iter_from(0)
    }

    /// The entries from a rank on. O(log n) to begin.
    pub fn iter_from(&self, rank: usize) -> Iter<'_, K> {
        // SAFETY: borrowed as long as the iterator.
        unsafe { Iter::from_rank(self.node(), rank) }
    }

    /// The entry of a rank. O(log n).
    pub fn nth(&self, rank: usize) -> Option<K::Entry<'_>> {
        // SAFETY: borrowed as long as the entry.
        unsafe { nth(self.node(), rank) }
    }

    /// One step of SCAN: flat values all at once, else about `count` entries. Returns the next cursor, 0 at
    /// the end.
    pub fn scan(&self, cursor: u64, count: usize, f: &mut dyn FnMut(K::Entry<'_>)) -> u64 {
        match self.form() {
            Form::Trie(root) => root.trie.scan(cursor, count, f),
            _ => {
                self.iter().for_each(f);
                0
            }
        }
    }

    /// The time of the first expiry, or [`NEVER`]. O(1), for flat values O(entries).
    pub fn soonest(&self) -> u64 {
        self.node().map_or(NEVER, Node::soonest)
    }

    /// Calls `f` for entries that expire at `now` or before, until it returns false. O(log n) for each.
    pub(crate) fn expired(&self, now: u64, f: &mut dyn FnMut(K::Entry<'_>) -> bool) {
        if let Some(node) = self.node() {
            expired(node, now, f);
        }
    }

    /// Asserts P1 and everything below. O(n).
    pub fn check_invariants(&self) {
        match self.form() {
            Form::Empty => {}
            Form::Flat(leaf) => {
                leaf.check_invariants();
                let most = if leaf.width() == 0 { FLAT_ENTRIES } else { FLAT_INTEGERS };
                assert!((1..=most).contains(&leaf.len()));
            }
            Form::Trie(root) => {
                assert!(root.trie.len() + root.beside.len() > 0);
                root.trie.check_invariants();
                root.beside.check_invariants();
            }
        }
    }
}

fn fits<K: EntryKind>(leaf: Leaf<K>, entry: K::Entry<'_>) -> bool {
    match leaf.joint_width(entry) {
        0 => leaf.len() < FLAT_ENTRIES && leaf.live() + K::size(entry, 0) <= FLAT_BYTES,
        _ => leaf.len() < FLAT_INTEGERS,
    }
}

fn expired<K: EntryKind>(node: Node<K>, now: u64, f: &mut dyn FnMut(K::Entry<'_>) -> bool) -> bool {
    // SAFETY: the caller borrows the tree.
    match unsafe { node.view() } {
        View::Leaf(leaf) => (0..leaf.len()).filter(|&i| leaf.expiry(i) <= now).all(|i| {
            // SAFETY: as above.
            f(unsafe { leaf.entry(i) })
        }),
        View::Inner(inner) => inner
            .runs()
            .filter(|&(start, _)| inner.time(start) <= now)
            .all(|(start, _)| expired(inner.child(start), now, f)),
    }
}

impl<K: EntryKind> Default for Packed<K> {
    fn default() -> Packed<K> {
        Packed::new()
    }
}

impl<K: EntryKind> Clone for Packed<K> {
    /// O(1).
    #[inline]
    fn clone(&self) -> Packed<K> {
        match self.form() {
            Form::Empty => {}
            Form::Flat(leaf) => leaf.retain(),
            Form::Trie(root) => std::mem::forget(Arc::clone(root)),
        }
        Packed { raw: self.raw, owns: PhantomData }
    }
}

impl<K: EntryKind> Drop for Packed<K> {
    fn drop(&mut self) {
        let Some(raw) = self.raw else { return };
        match Self::flat(raw) {
            // SAFETY: made by `into_raw`; this handle's count goes with it.
            None => drop(unsafe { Arc::<Root<K>>::from_raw(raw.cast()) }),
            Some(leaf) => leaf.release(),
        }
    }
}
