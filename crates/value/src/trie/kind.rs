//! What a trie's entries are: how they are packed, hashed and compared.

use crate::cell;
use crate::place;

/// How the entries of one kind of trie lie in leaves.
///
/// A leaf has a *width*: 0 means that entries have their own lengths and are found through an array of offsets; else
/// all entries are integers of that many bytes. Kinds without integers leave the width functions alone.
///
/// - K1: `size` is what `write` writes and what `extent` reads back, at most [`MAX_ENTRY`] bytes.
/// - K2: the hash depends on the key alone, and keys are equal exactly if `matches` says so.
/// - K3: an entry written with width > 0 owns nothing outside the leaf.
pub trait EntryKind: Sized + 'static {
    /// What an entry is found by.
    type Key<'a>: Copy;
    /// What is stored and what iterators yield.
    type Entry<'a>: Copy;
    /// Per child of an inner node: when something below expires first. `()` for kinds without expiry.
    type Times: Times;
    /// False if an entry is nothing but its key, so that inserting it again changes nothing.
    const REPLACES: bool = true;

    fn key<'a>(entry: Self::Entry<'a>) -> Self::Key<'a>;
    fn hash(key: Self::Key<'_>) -> u64;

    /// The narrowest width of leaf that can hold the entry.
    #[inline]
    fn width(_entry: Self::Entry<'_>) -> u8 {
        0
    }

    /// Where the entry goes in a flat leaf of fixed width that keeps its entries in order: true if `other` comes
    /// before `entry`.
    #[inline]
    fn before(_other: Self::Entry<'_>, _entry: Self::Entry<'_>) -> bool {
        true
    }

    /// Bytes the entry takes in a leaf of that width.
    fn size(entry: Self::Entry<'_>, width: u8) -> usize;
    /// Bytes the entry takes outside the leaf.
    fn heap_size(entry: Self::Entry<'_>) -> usize;

    /// # Safety
    /// `size(entry, width)` bytes at `at` are writable.
    unsafe fn write(entry: Self::Entry<'_>, width: u8, at: *mut u8);
    /// # Safety
    /// An entry of this kind and width lies at `at`, unchanged for `'a`.
    unsafe fn read<'a>(at: *const u8, width: u8) -> Self::Entry<'a>;
    /// # Safety
    /// An entry of this kind and width lies at `at`.
    unsafe fn matches(at: *const u8, width: u8, key: Self::Key<'_>) -> bool;
    /// # Safety
    /// An entry of this kind and width 0 lies at `at`.
    unsafe fn extent(at: *const u8) -> usize;
    /// Bytes outside the leaf that the entry owns.
    ///
    /// # Safety
    /// An entry of this kind and width 0 lies at `at`.
    unsafe fn heap(at: *const u8) -> usize;
    /// # Safety
    /// An entry of this kind and width 0 lies at `at`.
    unsafe fn retain(at: *const u8);
    /// # Safety
    /// An entry of this kind and width 0 lies at `at` and is not read afterwards.
    unsafe fn release(at: *const u8);

    /// When the entry expires, or [`NEVER`].
    ///
    /// # Safety
    /// An entry of this kind and width 0 lies at `at`.
    #[inline]
    unsafe fn expiry(_at: *const u8) -> u64 {
        NEVER
    }
}

/// The time of what does not expire.
pub const NEVER: u64 = u64::MAX;

/// More than any entry takes in a leaf.
pub(crate) const MAX_ENTRY: usize = 2 * (crate::elem::INLINE_MAX + 2) + cell::EXPIRY_LEN;

/// The times of an inner node's sixteen children.
pub trait Times: Copy + Default {
    /// False if there are none to keep.
    const KEPT: bool;
    fn at(&self, slot: usize) -> u64;
    fn set(&mut self, slot: usize, time: u64);
    fn min(&self) -> u64;
}

impl Times for () {
    const KEPT: bool = false;

    #[inline]
    fn at(&self, _slot: usize) -> u64 {
        NEVER
    }

    #[inline]
    fn set(&mut self, _slot: usize, _time: u64) {}

    #[inline]
    fn min(&self) -> u64 {
        NEVER
    }
}

/// Sixteen times. Slots that are not the first of their child's run say [`NEVER`].
#[derive(Clone, Copy)]
pub struct Sixteen([u64; 16]);

impl Default for Sixteen {
    fn default() -> Sixteen {
        Sixteen([NEVER; 16])
    }
}

impl Times for Sixteen {
    const KEPT: bool = true;

    #[inline]
    fn at(&self, slot: usize) -> u64 {
        self.0[slot]
    }

    #[inline]
    fn set(&mut self, slot: usize, time: u64) {
        self.0[slot] = time;
    }

    #[inline]
    fn min(&self) -> u64 {
        self.0.iter().copied().fold(NEVER, u64::min)
    }
}

/// A sorted set's members and their scores: `[score, 8 bytes | member cell]`.
pub struct Scores;

impl EntryKind for Scores {
    type Key<'a> = &'a [u8];
    type Entry<'a> = (&'a [u8], f64);
    type Times = ();

    #[inline]
    fn key<'a>(entry: Self::Entry<'a>) -> Self::Key<'a> {
        entry.0
    }

    #[inline]
    fn hash(key: &[u8]) -> u64 {
        place::of_bytes(key)
    }

    #[inline]
    fn size(entry: (&[u8], f64), _width: u8) -> usize {
        8 + cell::bytes_size(entry.0.len())
    }

    #[inline]
    fn heap_size(entry: (&[u8], f64)) -> usize {
        cell::heap_size(entry.0.len())
    }

    #[inline]
    unsafe fn write(entry: (&[u8], f64), _width: u8, at: *mut u8) {
        // SAFETY: the caller's.
        unsafe {
            at.cast::<f64>().write_unaligned(entry.1);
            cell::write_bytes(entry.0, at.add(8));
        }
    }

    #[inline]
    unsafe fn read<'a>(at: *const u8, _width: u8) -> (&'a [u8], f64) {
        // SAFETY: the caller's.
        unsafe { (cell::read_bytes(at.add(8)).0, at.cast::<f64>().read_unaligned()) }
    }

    #[inline]
    unsafe fn matches(at: *const u8, _width: u8, key: &[u8]) -> bool {
        // SAFETY: the caller's.
        unsafe { cell::is_bytes(at.add(8), key) }
    }

    #[inline]
    unsafe fn extent(at: *const u8) -> usize {
        // SAFETY: the caller's.
        unsafe { 8 + cell::extent(at.add(8)) }
    }

    #[inline]
    unsafe fn heap(at: *const u8) -> usize {
        // SAFETY: the caller's.
        unsafe { cell::heap(at.add(8)) }
    }

    #[inline]
    unsafe fn retain(at: *const u8) {
        // SAFETY: the caller's.
        unsafe { cell::retain(at.add(8)) }
    }

    #[inline]
    unsafe fn release(at: *const u8) {
        // SAFETY: the caller's.
        unsafe { cell::release(at.add(8)) }
    }
}
