//! Sets: unordered elements, each once.
//!
//! Small sets are one flat block in the order of insertion, sets of up to 512 integers one flat sorted block; larger
//! ones are a hash trie whose leaves hold integers as 4 or 8 bytes while all of a leaf's elements are integers. See
//! [`crate::packed`] and [`crate::trie`] for the forms and their costs, [`algebra`] for SINTER, SUNION, SDIFF.
//!
//! - S1: the encoding's name follows Redis: intset → listpack → hashtable by the limits in [`crate::limits`], never
//!   back while the set exists.

pub mod algebra;

use crate::Enc;
use crate::cell;
use crate::elem::Elem;
use crate::limits;
use crate::packed::Packed;
use crate::trie::{EntryKind, Iter};

/// The kind of a set's entries: elements.
pub struct Members;

/// A set. 8 bytes; `clone` is O(1).
#[derive(Clone, Default)]
pub struct Set {
    pub(crate) members: Packed<Members>,
}

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

    /// Bytes of all blocks, shared ones counted fully. O(1).
    pub fn mem_bytes(&self) -> usize {
        self.members.mem_bytes()
    }

    /// What Redis would call the encoding (S1).
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
        self.contains_elem(elem, elem.hash())
    }

    /// `contains` where the element and its hash are known.
    #[inline]
    pub fn contains_elem(&self, elem: Elem<'_>, hash: u64) -> bool {
        self.members.get_hashed(elem, hash).is_some()
    }

    /// Adds an element; true if it is new. O(log n).
    #[inline]
    pub fn insert(&mut self, text: &[u8]) -> bool {
        let elem = Elem::parse(text);
        self.insert_elem(elem, elem.hash())
    }

    /// `insert` where the element and its hash are known.
    pub fn insert_elem(&mut self, elem: Elem<'_>, hash: u64) -> bool {
        if !self.members.insert_hashed(elem, hash) {
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

    /// Removes an element; false if there is none. O(log n).
    #[inline]
    pub fn remove(&mut self, text: &[u8]) -> bool {
        let elem = Elem::parse(text);
        self.remove_elem(elem, elem.hash())
    }

    /// `remove` where the element and its hash are known.
    #[inline]
    pub fn remove_elem(&mut self, elem: Elem<'_>, hash: u64) -> bool {
        self.members.remove_hashed(elem, hash)
    }

    /// Removes everything; what is large is freed elsewhere. O(1).
    pub fn clear(&mut self) {
        *self = Set::new();
    }

    /// All elements, in an order that stays while the set is unchanged: integers of small sets ascending, others of
    /// small sets as inserted, large sets by hash. A few ns per element.
    pub fn iter(&self) -> Elements<'_> {
        self.iter_from(0)
    }

    /// The elements from a rank on. O(log n) to begin.
    pub fn iter_from(&self, rank: usize) -> Elements<'_> {
        self.members.iter_from(rank)
    }

    /// The element of a rank. O(log n).
    pub fn nth(&self, rank: usize) -> Option<Elem<'_>> {
        self.members.nth(rank)
    }

    /// Removes the element of a rank and returns its text. O(log n).
    pub fn remove_nth(&mut self, rank: usize) -> Option<Vec<u8>> {
        let elem = self.nth(rank)?;
        let (text, hash) = (elem.to_vec(), elem.hash());
        let removed = self.remove_elem(Elem::parse(&text), hash);
        debug_assert!(removed);
        Some(text)
    }

    /// One step of SSCAN: small sets all at once, else about `count` elements from the cursor on. Returns the next
    /// cursor, 0 at the end. Every element present from the first step to the last is visited.
    pub fn scan(&self, cursor: u64, count: usize, f: &mut dyn FnMut(Elem<'_>)) -> u64 {
        self.members.scan(cursor, count, f)
    }

    /// True if both are clones of each other without later changes. O(1).
    pub fn ptr_eq(&self, other: &Set) -> bool {
        self.members.ptr_eq(&other.members)
    }

    /// Asserts the invariants of all nodes. O(n).
    pub fn check_invariants(&self) {
        self.members.check_invariants();
    }
}

/// A set's elements.
pub type Elements<'a> = Iter<'a, Members>;

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
    // An intset that outgrows its limit becomes a hashtable, however large the listpack limit is; only a
    // first element finds neither form taken.
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
