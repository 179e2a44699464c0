//! Sets: unordered elements, each once.
//!
//! ```text
//! small     one flat block: elements in the order of insertion, integers alone ascending     packed.rs
//! large     integers in the order of their values, in containers by density                  ints/
//!           and texts in a hash trie                                                         trie/
//! ```
//!
//! A large set is two sets side by side. So neither a first text among millions of integers nor growing
//! density converts more than one leaf. Below [`GATHER`] elements it becomes one flat block again.
//!
//! - S1: the encoding's name follows Redis: intset → listpack → hashtable by the limits in [`crate::limits`],
//!   never back while the set exists.
//! - S2: a large set keeps all integers in `ints` and everything else in the trie. Ranks count the integers
//!   first.
//! - S3: a cursor of SSCAN means the same in every form: first the texts by their place in the trie, then the
//!   integers by value. See [`cursor`].

pub mod algebra;
mod cursor;

use crate::Enc;
use crate::cell;
use crate::elem::Elem;
use crate::ints::{self, Ints, signed};
use crate::limits;
use crate::packed::{FLAT_BYTES, FLAT_ENTRIES, Packed};
use crate::trie::{Beside, EntryKind, Iter, Leaf, Trie};

/// The kind of a set's entries: elements.
pub struct Members;

/// A set. 8 bytes; `clone` is O(1).
#[derive(Clone, Default)]
pub struct Set {
    pub(crate) members: Packed<Members>,
}

/// Elements up to which a large set becomes flat.
const GATHER: usize = FLAT_ENTRIES / 2;

const INTSET: u8 = 0;
const LISTPACK: u8 = 1;
const HASHTABLE: u8 = 2;

impl Set {
    /// The empty set. Allocates nothing.
    #[inline]
    pub const fn new() -> Set {
        Set { members: Packed::new() }
    }

    /// Number of elements. O(1).
    #[inline]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// True without elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The root and memory that this handle keeps alive. O(height).
    pub fn held(&self) -> Option<crate::Held> {
        self.members.held()
    }

    /// Bytes of all blocks, shared ones counted fully. O(1).
    pub fn mem_bytes(&self) -> usize {
        self.members.mem_bytes()
    }

    /// Redis's name for the encoding (S1).
    pub fn encoding(&self) -> Enc {
        match self.members.user() {
            INTSET => Enc::IntSet,
            LISTPACK => Enc::ListPack,
            _ => Enc::HashTable,
        }
    }

    /// True if the text is an element. O(log n).
    #[inline]
    pub fn contains(&self, text: &[u8]) -> bool {
        let elem = Elem::parse(text);
        match (elem, self.ints()) {
            (Elem::Int(n), Some(ints)) => ints.contains(signed::key(n)),
            _ => self.members.get_hashed(elem, elem.hash()).is_some(),
        }
    }

    /// `contains` where the element and its hash are known.
    #[inline]
    pub fn contains_elem(&self, elem: Elem<'_>, hash: u64) -> bool {
        match (elem, self.ints()) {
            (Elem::Int(n), Some(ints)) => ints.contains(signed::key(n)),
            _ => self.members.get_hashed(elem, hash).is_some(),
        }
    }

    /// The integers of a large set; None for small ones.
    #[inline]
    pub fn ints(&self) -> Option<&Ints> {
        self.members.beside()
    }

    /// Adds an element; true if it is new. O(log n).
    #[inline]
    pub fn insert(&mut self, text: &[u8]) -> bool {
        let elem = Elem::parse(text);
        self.insert_elem(elem, elem.hash())
    }

    /// `insert` where the element and its hash are known.
    pub fn insert_elem(&mut self, elem: Elem<'_>, hash: u64) -> bool {
        let new = match (elem, self.ints()) {
            (Elem::Int(n), Some(ints)) => {
                // The look-up comes before the root is copied (V2).
                !ints.contains(signed::key(n)) && self.members.beside_mut().insert(signed::key(n))
            }
            _ => self.members.insert_hashed(elem, hash),
        };
        if !new {
            return false;
        }
        let old = self.members.user();
        if old != HASHTABLE {
            let new = encoding_with(old, elem, self.len());
            if new != old {
                self.members.set_user(new);
            }
        }
        true
    }

    /// Removes an element. False if there is none. O(log n).
    #[inline]
    pub fn remove(&mut self, text: &[u8]) -> bool {
        let elem = Elem::parse(text);
        self.remove_elem(elem, elem.hash())
    }

    /// `remove` where the element and its hash are known.
    #[inline]
    pub fn remove_elem(&mut self, elem: Elem<'_>, hash: u64) -> bool {
        let removed = match (elem, self.ints()) {
            (Elem::Int(n), Some(ints)) => {
                ints.contains(signed::key(n)) && self.members.beside_mut().remove(signed::key(n))
            }
            _ => self.members.remove_hashed(elem, hash),
        };
        if removed && self.ints().is_some_and(|ints| !ints.is_empty() || self.members.node().is_none()) {
            self.gather_if_small();
        }
        removed
    }

    /// Turns two parts into one flat block, if there are few elements.
    #[inline]
    fn gather_if_small(&mut self) {
        if self.len() > GATHER || self.members.trie().is_none_or(|trie| trie.mem_bytes() > FLAT_BYTES / 2) {
            return;
        }
        let mut flat = Packed::new();
        self.iter().for_each(|elem| {
            flat.insert_hashed(elem, elem.hash());
        });
        flat.set_user(self.members.user());
        self.members = flat;
    }

    /// Removes everything; a large set is freed elsewhere. O(1).
    pub fn clear(&mut self) {
        *self = Set::new();
    }

    /// All elements, in an order that stays while the set is unchanged. Small sets of integers ascend; other
    /// small sets are in order of insertion. Large sets give first the integers, ascending, then the texts by
    /// hash.
    pub fn iter(&self) -> Elements<'_> {
        self.iter_from(0)
    }

    /// The elements from a rank on. O(log n) to begin.
    pub fn iter_from(&self, rank: usize) -> Elements<'_> {
        let Some(ints) = self.ints() else {
            return Elements {
                ints: None,
                others: self.members.iter_from(rank),
                left: self.len().saturating_sub(rank),
            };
        };
        let first = ints.nth(rank as u64).map(|key| Box::new(ints.iter_from(key)));
        let others = self.members.iter_from(rank.saturating_sub(ints.len() as usize));
        Elements { ints: first, others, left: self.len().saturating_sub(rank) }
    }

    /// The element of a rank. O(log n).
    pub fn nth(&self, rank: usize) -> Option<Elem<'_>> {
        let Some(ints) = self.ints() else { return self.members.nth(rank) };
        match rank.checked_sub(ints.len() as usize) {
            Some(rank) => self.members.nth(rank),
            None => ints.nth(rank as u64).map(|key| Elem::Int(signed::value(key))),
        }
    }

    /// Removes the element of a rank and returns its text. O(log n).
    pub fn remove_nth(&mut self, rank: usize) -> Option<Vec<u8>> {
        let elem = self.nth(rank)?;
        let (text, hash) = (elem.to_vec(), elem.hash());
        let removed = self.remove_elem(Elem::parse(&text), hash);
        debug_assert!(removed);
        Some(text)
    }

    /// One step of SSCAN: small sets all at once, else about `count` elements from the cursor on. Returns the
    /// next cursor, 0 at the end. Every element present from the first step to the last is visited.
    pub fn scan(&self, cursor: u64, count: usize, f: &mut dyn FnMut(Elem<'_>)) -> u64 {
        cursor::scan(self, cursor, count, f)
    }

    /// True if both are clones of each other without later changes. O(1).
    pub fn ptr_eq(&self, other: &Set) -> bool {
        self.members.ptr_eq(&other.members)
    }

    /// Asserts the invariants of all nodes. O(n).
    pub fn check_invariants(&self) {
        self.members.check_invariants();
        if let Some(ints) = self.ints() {
            assert!(self.members.iter().all(|elem| matches!(elem, Elem::Bytes(_))), "S2");
            assert!(ints.is_empty() || self.len() > GATHER || self.members.node().is_some(), "S2");
        }
    }

    /// The elements that are not in `ints`, in order.
    fn texts(&self) -> Elements<'_> {
        Elements { ints: None, others: self.members.iter(), left: self.members.iter().len() }
    }

    /// Replaces the integers of a large set by others, not fewer.
    fn put_ints(&mut self, ints: Ints) {
        *self.members.beside_mut() = ints;
        if self.members.user() == INTSET && self.len() > limits::SET_MAX_INTSET_ENTRIES.get() {
            self.members.set_user(HASHTABLE);
        }
    }

    /// A set of integers and texts, in the form of adding them one by one. O(1), or for few elements O(n).
    fn from_parts(ints: Ints, texts: Trie<Members>) -> Set {
        let len = ints.len() as usize + texts.len();
        let rebuilt = len <= limits::SET_MAX_INTSET_ENTRIES.get().clamp(FLAT_ENTRIES, REBUILT_MAX);
        if !rebuilt {
            let intset = texts.is_empty() && len <= limits::SET_MAX_INTSET_ENTRIES.get();
            let user = if intset { INTSET } else { HASHTABLE };
            return Set { members: Packed::from_parts(texts, ints, user) };
        }
        let mut set = Set::new();
        ints.iter().map(|key| Elem::Int(signed::value(key))).chain(texts.iter()).for_each(|elem| {
            set.insert_elem(elem, elem.hash());
        });
        set
    }
}

/// Elements up to which a set is rebuilt for its encoding's name.
const REBUILT_MAX: usize = 512;

/// A set's elements.
#[derive(Clone)]
pub struct Elements<'a> {
    ints: Option<Box<ints::Iter<'a>>>,
    others: Iter<'a, Members>,
    left: usize,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Elem<'a>;

    #[inline]
    fn next(&mut self) -> Option<Elem<'a>> {
        self.left = self.left.saturating_sub(1);
        if let Some(ints) = &mut self.ints {
            if let Some(key) = ints.next() {
                return Some(Elem::Int(signed::value(key)));
            }
            self.ints = None;
        }
        self.others.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_> {}

impl Beside<Members> for Ints {
    fn divide(leaf: Leaf<Members>) -> (Trie<Members>, Ints) {
        let (mut texts, mut ints) = (Trie::new(), Ints::new());
        for i in 0..leaf.len() {
            // SAFETY: the leaf is owned until its release below.
            match unsafe { leaf.entry(i) } {
                Elem::Int(n) => drop(ints.insert(signed::key(n))),
                text => drop(texts.insert(text)),
            }
        }
        leaf.release();
        (texts, ints)
    }

    #[inline]
    fn offer(&mut self, elem: Elem<'_>) -> Option<bool> {
        match elem {
            Elem::Int(n) => Some(self.insert(signed::key(n))),
            Elem::Bytes(_) => None,
        }
    }

    #[inline]
    fn len(&self) -> usize {
        Ints::len(self) as usize
    }

    #[inline]
    fn mem_bytes(&self) -> usize {
        Ints::mem_bytes(self)
    }

    fn alone_bytes(&self) -> usize {
        self.held().filter(|held| held.owners == 1).map_or(0, |held| held.bytes)
    }

    fn check_invariants(&self) {
        Ints::check_invariants(self);
    }
}

impl<'a> IntoIterator for &'a Set {
    type Item = Elem<'a>;
    type IntoIter = Elements<'a>;

    fn into_iter(self) -> Elements<'a> {
        self.iter()
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Set {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Set {
        let mut set = Set::new();
        set.extend(texts);
        set
    }
}

impl<T: AsRef<[u8]>> Extend<T> for Set {
    fn extend<I: IntoIterator<Item = T>>(&mut self, texts: I) {
        texts.into_iter().for_each(|text| {
            self.insert(text.as_ref());
        });
    }
}

impl PartialEq for Set {
    /// Same elements. O(n), O(1) for unchanged clones.
    fn eq(&self, other: &Set) -> bool {
        self.ptr_eq(other)
            || self.len() == other.len() && self.iter().all(|elem| other.contains_elem(elem, elem.hash()))
    }
}

impl Eq for Set {}

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |elem: Elem<'_>| elem.with(|text| String::from_utf8_lossy(text).into_owned());
        f.debug_set().entries(self.iter().map(text)).finish()
    }
}

/// The encoding after `elem` made the set `len` elements long.
fn encoding_with(old: u8, elem: Elem<'_>, len: usize) -> u8 {
    let integer = matches!(elem, Elem::Int(_));
    if integer && (old == INTSET) && len <= limits::SET_MAX_INTSET_ENTRIES.get() {
        return INTSET;
    }
    // An intset that outgrows its limit becomes a hashtable, whatever the listpack limit. Only a first
    // element is free to choose.
    let small =
        len <= limits::SET_MAX_LISTPACK_ENTRIES.get() && elem.len() <= limits::SET_MAX_LISTPACK_VALUE.get();
    match old {
        INTSET if integer && len > 1 => HASHTABLE,
        _ if small => LISTPACK,
        _ => HASHTABLE,
    }
}

impl EntryKind for Members {
    type Key<'a> = Elem<'a>;
    type Entry<'a> = Elem<'a>;
    type Times = ();
    type Beside = Ints;
    const REPLACES: bool = false;

    #[inline]
    fn key<'a>(elem: Self::Entry<'a>) -> Self::Key<'a> {
        elem
    }

    #[inline]
    fn hash(elem: Elem<'_>) -> u64 {
        elem.hash()
    }

    /// Unsigned 32-bit numbers, other integers, everything else.
    #[inline]
    fn width(elem: Elem<'_>) -> u8 {
        match elem {
            Elem::Int(n) if n as u32 as i64 == n => 4,
            Elem::Int(_) => 8,
            Elem::Bytes(_) => 0,
        }
    }

    #[inline]
    fn before(other: Elem<'_>, elem: Elem<'_>) -> bool {
        match (other, elem) {
            (Elem::Int(a), Elem::Int(b)) => a < b,
            _ => true,
        }
    }

    #[inline]
    fn size(elem: Elem<'_>, width: u8) -> usize {
        match width {
            0 => cell::size(elem),
            width => width as usize,
        }
    }

    #[inline]
    fn heap_size(elem: Elem<'_>) -> usize {
        match elem {
            Elem::Int(_) => 0,
            Elem::Bytes(bytes) => cell::heap_size(bytes.len()),
        }
    }

    #[inline]
    unsafe fn write(elem: Elem<'_>, width: u8, at: *mut u8) {
        // SAFETY: the caller's.
        unsafe {
            match (width, elem) {
                (4, Elem::Int(n)) => at.cast::<u32>().write_unaligned(n as u32),
                (8, Elem::Int(n)) => at.cast::<i64>().write_unaligned(n),
                _ => {
                    cell::write(elem, at);
                }
            }
        }
    }

    #[inline]
    unsafe fn read<'a>(at: *const u8, width: u8) -> Elem<'a> {
        // SAFETY: the caller's.
        unsafe {
            match width {
                4 => Elem::Int(i64::from(at.cast::<u32>().read_unaligned())),
                8 => Elem::Int(at.cast::<i64>().read_unaligned()),
                _ => cell::read(at),
            }
        }
    }

    #[inline]
    unsafe fn matches(at: *const u8, width: u8, elem: Elem<'_>) -> bool {
        // SAFETY: the caller's.
        unsafe {
            match (width, elem) {
                (0, _) => cell::is(at, elem),
                (4, Elem::Int(n)) => i64::from(at.cast::<u32>().read_unaligned()) == n,
                (_, Elem::Int(n)) => at.cast::<i64>().read_unaligned() == n,
                (_, Elem::Bytes(_)) => false,
            }
        }
    }

    #[inline]
    unsafe fn extent(at: *const u8) -> usize {
        // SAFETY: the caller's.
        unsafe { cell::extent(at) }
    }

    #[inline]
    unsafe fn heap(at: *const u8) -> usize {
        // SAFETY: the caller's.
        unsafe { cell::heap(at) }
    }

    #[inline]
    unsafe fn retain(at: *const u8) {
        // SAFETY: the caller's.
        unsafe { cell::retain(at) }
    }

    #[inline]
    unsafe fn release(at: *const u8) {
        // SAFETY: the caller's.
        unsafe { cell::release(at) }
    }
}

#[cfg(test)]
mod tests;
