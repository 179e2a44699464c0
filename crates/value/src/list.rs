//! Lists: a counted tree of packed leaves, by position.
//!
//! An element takes its bytes and two more; canonical integers are stored in zero to eight bytes. Tags: 0
//! text, 1 integer (little-endian, as short as its sign allows).
//!
//! - I1: the text of an element determines its form (`Elem::parse`), so equal elements have equal forms.
//! - I2: the weight of an element is its size in a Redis listpack. So the sum decides exactly when Redis
//!   would switch to a quicklist and back, and is close to the memory used here.
//!
//! Costs, n = elements: both ends amortised O(1), without a descent (see [`crate::ctree`]); get, set, insert,
//! remove, remove_range, append O(log n); clone O(1). Elements over 512 bytes are blocks of their own.

use std::ops::Range;

use crate::ctree::{Builder, End, Entry, Item, Iter, Kind, Path, RevIter, Tree};
use crate::{Elem, Enc, limits};

const TEXT: u8 = 0;
const INT: u8 = 1;

/// Handle flag: Redis would call it a quicklist.
const QUICK: u8 = 1;

/// Elements up to which a removal at an end goes one by one.
const FEW: usize = 4;

/// Header and end mark of a listpack.
const LISTPACK_EMPTY: u64 = 7;

/// Most bytes of a listpack of a leaf without long elements.
const LEAF_LISTPACK_MAX: u64 = 4096;

enum Items {}

impl Kind for Items {
    const COUNTED_FROM: bool = true;
    type Main = ();
    type Rest = ();

    fn digest(_: Entry<'_>) -> ((), ()) {
        ((), ())
    }

    #[inline]
    fn weight(entry: Entry<'_>) -> u64 {
        listpack_size(decode(entry))
    }
}

/// A list. 8 bytes; clone O(1).
#[derive(Clone, Default)]
pub struct List {
    tree: Tree<Items>,
}

impl List {
    /// An empty list. Does not allocate.
    pub const fn new() -> List {
        List { tree: Tree::new() }
    }

    /// Elements. O(1).
    #[inline]
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// Element `i` from the front, if there is one. O(log n).
    #[inline]
    pub fn get(&self, i: usize) -> Option<Elem<'_>> {
        let entry = match i {
            0 => self.tree.at_end(End::Front),
            _ if i.wrapping_add(1) == self.len() => self.tree.at_end(End::Back),
            _ => self.tree.get(i),
        };
        entry.map(decode)
    }

    /// Adds an element in front.
    #[inline]
    pub fn push_front(&mut self, text: &[u8]) {
        self.push(End::Front, text);
    }

    /// Adds an element at the end.
    #[inline]
    pub fn push_back(&mut self, text: &[u8]) {
        self.push(End::Back, text);
    }

    /// Adds elements in front, one after the other. O(1) each.
    #[inline]
    pub fn push_each_front<'a>(&mut self, texts: impl ExactSizeIterator<Item = &'a [u8]> + Clone) {
        self.push_each(End::Front, texts);
    }

    /// Adds elements at the end. O(1) each.
    #[inline]
    pub fn push_each_back<'a>(&mut self, texts: impl ExactSizeIterator<Item = &'a [u8]> + Clone) {
        self.push_each(End::Back, texts);
    }

    #[inline]
    fn push(&mut self, end: End, text: &[u8]) {
        self.push_each(end, std::iter::once(text));
    }

    /// Redis checks once, before the first of them, whether all will make it a quicklist.
    #[inline]
    fn push_each<'a>(&mut self, end: End, texts: impl ExactSizeIterator<Item = &'a [u8]> + Clone) {
        let (bytes, entries) = (texts.clone().map(<[u8]>::len).sum(), texts.len());
        let quick = self.tree.is_empty() && exceeds(LISTPACK_EMPTY + bytes as u64, entries);
        self.note_growth(bytes, entries);
        for text in texts {
            with_item(Elem::parse(text), |item| self.tree.push_end(end, item));
        }
        if quick {
            self.tree.set_flags(QUICK);
        }
    }

    /// Takes the first element. (`get(0)` and `remove_range(0..1)` do it without allocating.)
    pub fn pop_front(&mut self) -> Option<Vec<u8>> {
        self.pop(End::Front)
    }

    /// Takes the last element.
    pub fn pop_back(&mut self) -> Option<Vec<u8>> {
        self.pop(End::Back)
    }

    fn pop(&mut self, end: End) -> Option<Vec<u8>> {
        let text = decode(self.tree.at_end(end)?).to_vec();
        self.tree.pop_end(end);
        self.note_shrinking();
        Some(text)
    }

    /// Replaces element `i`; false if there is none. O(log n).
    pub fn set(&mut self, i: usize, text: &[u8]) -> bool {
        let Some(old) = self.get(i) else { return false };
        let new = Elem::parse(text);
        if old != new {
            self.note_growth(text.len(), 0);
            let path = self.tree.path_at(i);
            with_item(new, |item| self.tree.replace(&path, item));
            self.note_shrinking();
        }
        true
    }

    /// Inserts in front of element `i <= len`; false if `i` lies beyond. O(log n).
    pub fn insert(&mut self, i: usize, text: &[u8]) -> bool {
        if i > self.len() {
            return false;
        }
        self.note_growth(text.len(), 1);
        self.insert_at(&self.tree.path_at(i), text);
        true
    }

    fn insert_at(&mut self, path: &Path, text: &[u8]) {
        let quick = self.tree.is_empty() && exceeds(LISTPACK_EMPTY + text.len() as u64, 1);
        with_item(Elem::parse(text), |item| self.tree.insert(path, item));
        if quick {
            self.tree.set_flags(QUICK);
        }
    }

    /// Removes element `i` and returns it. O(log n).
    pub fn remove(&mut self, i: usize) -> Option<Vec<u8>> {
        let text = self.get(i)?.to_vec();
        let path = self.tree.path_at(i);
        self.tree.remove(&path, 1);
        self.note_shrinking();
        Some(text)
    }

    /// Removes the elements of a range, as far as they exist. O(log n); large parts are freed by the
    /// reclaimer.
    pub fn remove_range(&mut self, range: Range<usize>) {
        let end = range.end.min(self.len());
        if range.start >= end {
            return;
        }
        let count = end - range.start;
        let outer = match (range.start, end) {
            (0, _) => Some(End::Front),
            (_, end) if end == self.len() => Some(End::Back),
            _ => None,
        };
        match outer.filter(|_| count <= FEW) {
            None => self.tree.remove_range(range.start..end),
            Some(outer) => {
                for _ in 0..count {
                    self.tree.pop_end(outer);
                }
            }
        }
        self.note_shrinking();
    }

    /// Keeps the first `at` elements and returns the others. O(log n).
    pub fn split_off(&mut self, at: usize) -> List {
        let mut right = List { tree: self.tree.split_off(at) };
        self.note_shrinking();
        right.note_shrinking();
        right
    }

    /// Appends another list. O(log n).
    pub fn append(&mut self, other: List) {
        let quick = self.encoding() == Enc::QuickList || other.encoding() == Enc::QuickList;
        self.tree.append(other.tree);
        if quick || exceeds(LISTPACK_EMPTY + self.tree.weight(), self.len()) {
            self.tree.set_flags(QUICK);
        }
    }

    /// Removes all elements.
    pub fn clear(&mut self) {
        *self = List::new();
    }

    /// All elements in order.
    pub fn iter(&self) -> Elems<'_> {
        self.iter_from(0)
    }

    /// The name of the first element's position, in a count that pushes and pops at the ends leave alone.
    /// Small lists have no such count: see [`List::is_small`].
    pub fn base(&self) -> i64 {
        self.tree.base()
    }

    /// Whether the list is one leaf and never was more, about 2 KB at most. Positions in it have no fixed
    /// names.
    pub fn is_small(&self) -> bool {
        self.tree.is_empty() || self.tree.as_leaf().is_some()
    }

    /// Elements from `i` on, in order. O(log n), then O(1) each.
    pub fn iter_from(&self, i: usize) -> Elems<'_> {
        Elems(self.tree.iter_from(i))
    }

    /// Element `i`, then those before it, backwards; nothing if there is no element `i`.
    pub fn iter_rev_from(&self, i: usize) -> RevElems<'_> {
        RevElems(self.tree.iter_rev_from(i))
    }

    /// All elements in reverse order.
    pub fn iter_rev(&self) -> RevElems<'_> {
        self.iter_rev_from(self.len().wrapping_sub(1))
    }

    /// `listpack` or `quicklist`, as Redis would have it after the same commands.
    pub fn encoding(&self) -> Enc {
        if self.tree.flags() & QUICK != 0 { Enc::QuickList } else { Enc::ListPack }
    }

    /// The root and memory that this handle keeps alive. O(height).
    pub fn held(&self) -> Option<crate::Held> {
        self.tree.held()
    }

    /// Approximate bytes of everything the list owns, shared or not. O(1).
    pub fn mem_bytes(&self) -> usize {
        size_of::<List>() + self.tree.mem_bytes()
    }

    /// Panics if an invariant does not hold. O(n).
    pub fn check_invariants(&self) {
        self.tree.check_invariants();
        for elem in self.iter() {
            elem.with(|text| assert_eq!(Elem::parse(text), elem, "I1"));
        }
        let leaf_bytes: Option<u64> =
            self.tree.as_leaf().filter(|leaf| !leaf.has_bigs()).map(|_| LISTPACK_EMPTY + self.tree.weight());
        assert!(leaf_bytes.is_none_or(|bytes| bytes <= LEAF_LISTPACK_MAX));
    }

    /// Leaves, inner nodes, and bytes of both: for tests and measurements. O(n).
    pub fn shape(&self) -> (usize, usize, usize) {
        self.tree.shape()
    }

    /// Notes growth: Redis converts before it adds `entries` elements of `bytes` bytes in all, if the
    /// listpack would be too large.
    fn note_growth(&mut self, bytes: usize, entries: usize) {
        if self.tree.flags() & QUICK != 0 || self.is_empty() {
            return;
        }
        let (bytes, entries) = (bytes as u64, self.len() + entries);
        let light = self.tree.as_leaf().is_some_and(|leaf| !leaf.has_bigs());
        if light && !exceeds(LEAF_LISTPACK_MAX + bytes, entries) {
            return;
        }
        if exceeds(LISTPACK_EMPTY + self.tree.weight() + bytes, entries) {
            self.tree.set_flags(QUICK);
        }
    }

    /// Notes shrinking: Redis converts back when the rest is at most half of a listpack's limit.
    fn note_shrinking(&mut self) {
        if self.tree.flags() & QUICK == 0 {
            return;
        }
        let (size, count) = listpack_limit();
        if self.len() <= count / 2 && self.tree.weight() + LISTPACK_EMPTY <= size / 2 {
            self.tree.set_flags(0);
        }
    }
}

/// A list built in one go, from the front. Cost: O(1) each, less than pushing.
pub struct Growing(Builder<Items>);

impl Growing {
    /// A builder without elements.
    pub fn new() -> Growing {
        Growing(Builder::new())
    }

    /// Adds an element at the end. Bytes must not be a canonical integer (I1).
    pub fn push(&mut self, elem: Elem<'_>) {
        with_item(elem, |item| self.0.push(item));
    }

    /// The finished list.
    pub fn finish(self) -> List {
        let mut tree = self.0.finish();
        if exceeds(LISTPACK_EMPTY + tree.weight(), tree.len()) {
            tree.set_flags(QUICK);
        }
        List { tree }
    }
}

impl Default for Growing {
    fn default() -> Growing {
        Growing::new()
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for List {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> List {
        let mut growing = Growing::new();
        texts.into_iter().for_each(|text| growing.push(Elem::parse(text.as_ref())));
        growing.finish()
    }
}

impl<T: AsRef<[u8]>> Extend<T> for List {
    fn extend<I: IntoIterator<Item = T>>(&mut self, texts: I) {
        texts.into_iter().for_each(|text| self.push_back(text.as_ref()));
    }
}

impl std::fmt::Debug for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Elements of a list in order.
pub struct Elems<'a>(Iter<'a, Items>);

impl<'a> Iterator for Elems<'a> {
    type Item = Elem<'a>;

    #[inline]
    fn next(&mut self) -> Option<Elem<'a>> {
        self.0.next().map(decode)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Elems<'_> {}

/// Elements of a list in reverse order.
pub struct RevElems<'a>(RevIter<'a, Items>);

impl<'a> Iterator for RevElems<'a> {
    type Item = Elem<'a>;

    #[inline]
    fn next(&mut self) -> Option<Elem<'a>> {
        self.0.next().map(decode)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for RevElems<'_> {}

#[inline]
fn decode(entry: Entry<'_>) -> Elem<'_> {
    match entry.tag {
        TEXT => Elem::Bytes(entry.bytes),
        INT => Elem::Int(short_int(entry.bytes)),
        _ => Elem::Bytes(entry.big().1),
    }
}

#[inline]
fn with_item<R>(elem: Elem<'_>, f: impl FnOnce(Item<'_>) -> R) -> R {
    let weight = listpack_size(elem);
    match elem {
        Elem::Bytes(text) => f(Item { tag: TEXT, head: &[], tail: text, weight }),
        Elem::Int(n) => f(Item { tag: INT, head: &n.to_le_bytes()[..short_len(n)], tail: &[], weight }),
    }
}

/// Bytes an integer needs, sign included; none for zero.
#[inline]
pub(crate) fn short_len(n: i64) -> usize {
    let bits = 64 - (n ^ (n >> 63)).leading_zeros();
    if n == 0 { 0 } else { bits as usize / 8 + 1 }
}

/// The integer in its shortest little-endian form.
#[inline]
pub(crate) fn short_int(bytes: &[u8]) -> i64 {
    let mut wide = [0; 8];
    let len = bytes.len().min(8);
    wide[..len].copy_from_slice(&bytes[..len]);
    match len {
        0 => 0,
        _ => (i64::from_le_bytes(wide) << (64 - 8 * len)) >> (64 - 8 * len),
    }
}

/// Bytes of an element in a Redis listpack: encoding, data, and the length read backwards.
fn listpack_size(elem: Elem<'_>) -> u64 {
    let front = match elem {
        Elem::Int(0..=127) => 1,
        Elem::Int(-4096..=4095) => 2,
        Elem::Int(n) => match n ^ (n >> 63) {
            ..=0x7fff => 3,
            0x8000..=0x7f_ffff => 4,
            0x80_0000..=0x7fff_ffff => 5,
            _ => 9,
        },
        Elem::Bytes(text) => {
            text.len() as u64
                + match text.len() {
                    0..64 => 1,
                    64..4096 => 2,
                    _ => 5,
                }
        }
    };
    front
        + match front {
            0..128 => 1,
            128..16383 => 2,
            16383..2_097_151 => 3,
            2_097_151..268_435_455 => 4,
            _ => 5,
        }
}

/// Bytes and entries allowed by `list-max-listpack-size`.
fn listpack_limit() -> (u64, usize) {
    match limits::list_max_listpack_size() {
        n @ 0.. => (u64::MAX, n.max(1) as usize),
        n => (4096 << (-1 - n.max(-5)), usize::MAX),
    }
}

fn exceeds(bytes: u64, entries: usize) -> bool {
    match listpack_limit() {
        (u64::MAX, count) => entries > count || bytes > 8192,
        (size, _) => bytes > size,
    }
}

#[cfg(test)]
mod tests;
