//! Kinds of trie entries: how they are packed, hashed and compared.

use super::{Leaf, Trie};
use crate::cell;
use crate::place;

/// The form of one kind of entries in leaves.
///
/// A leaf has a *width*. With width 0, entries have their own lengths and are found through an array of
/// offsets. Otherwise all entries are integers of that many bytes. Kinds without integers keep the default
/// width functions.
///
/// - K1: `size` is the number of bytes that `write` writes and `extent` reads back, at most [`MAX_ENTRY`].
/// - K2: the hash depends on the key alone, and keys are equal exactly if `matches` says so.
/// - K3: an entry written with width > 0 owns nothing outside the leaf.
pub trait EntryKind: Sized + 'static {
    /// The key of an entry.
    type Key<'a>: Copy;
    /// The stored entry, which iterators yield.
    type Entry<'a>: Copy;
    /// Per child of an inner node, the time of the first expiry below. `()` for kinds without expiry.
    type Times: Times;
    /// Data that a collection keeps beside its trie: the integers of a set. `()` for kinds without.
    type Beside: Beside<Self>;
    /// False if an entry is only its key, so that inserting it again changes nothing.
    const REPLACES: bool = true;

    fn key<'a>(entry: Self::Entry<'a>) -> Self::Key<'a>;
    fn hash(key: Self::Key<'_>) -> u64;

    /// The narrowest width of leaf that can hold the entry.
    #[inline]
    fn width(_entry: Self::Entry<'_>) -> u8 {
        0
    }

    /// Whether `other` comes before `entry` in a flat leaf of fixed width, which keeps its entries in order.
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

    /// The time of the entry's expiry, or [`NEVER`].
    ///
    /// # Safety
    /// An entry of this kind and width 0 lies at `at`.
    #[inline]
    unsafe fn expiry(_at: *const u8) -> u64 {
        NEVER
    }
}

/// Entries of a large collection that are kept in another structure than the trie.
pub trait Beside<K: EntryKind>: Clone + Default + 'static {
    /// Splits the entries of a flat leaf, which is taken over, between the two.
    fn divide(leaf: Leaf<K>) -> (Trie<K>, Self);
    /// Adds the entry if it belongs here. Some: whether it is new.
    fn offer(&mut self, entry: K::Entry<'_>) -> Option<bool>;
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn mem_bytes(&self) -> usize;
    /// An estimate of the bytes that other versions do not share.
    fn alone_bytes(&self) -> usize;
    fn check_invariants(&self);
}

impl<K: EntryKind> Beside<K> for () {
    fn divide(leaf: Leaf<K>) -> (Trie<K>, ()) {
        (Trie::from_leaf(leaf), ())
    }

    #[inline]
    fn offer(&mut self, _entry: K::Entry<'_>) -> Option<bool> {
        None
    }

    #[inline]
    fn len(&self) -> usize {
        0
    }

    #[inline]
    fn mem_bytes(&self) -> usize {
        0
    }

    fn alone_bytes(&self) -> usize {
        0
    }

    fn check_invariants(&self) {}
}

/// The time of entries that do not expire.
pub const NEVER: u64 = u64::MAX;

/// More bytes than any entry takes in a leaf.
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

/// Sixteen times. Slots that are not the first of their child's run hold [`NEVER`].
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

/// A sorted set's members and their scores.
///
/// ```text
/// [form << 6 | length][score][member]     members of up to 63 bytes; score by form:
///                                         0: f64   1: u32   2: integer of six bytes
/// [C0][score, f64][member cell]           longer members
/// ```
pub struct Scores;

const WORD: u8 = 1;
const SIX: u8 = 2;
const LONG: u8 = 0xC0;
/// Bytes above which a member is a cell.
const SHORT_MAX: usize = 63;

/// The shortest form that keeps every bit of the score.
#[inline]
fn form(score: f64) -> u8 {
    let n = score as i64;
    // The round trip keeps fractions, -0.0 and the infinities as they are.
    if (n as f64).to_bits() != score.to_bits() {
        return 0;
    }
    match n {
        0..=0xFFFF_FFFF => WORD,
        -0x8000_0000_0000..=0x7FFF_FFFF_FFFF => SIX,
        _ => 0,
    }
}

/// Bytes of a score.
#[inline]
fn score_size(form: u8) -> usize {
    match form {
        WORD => 4,
        SIX => 6,
        _ => 8,
    }
}

/// # Safety
/// A score of that form lies at `at`.
#[inline]
unsafe fn read_score(form: u8, at: *const u8) -> f64 {
    // SAFETY: the caller's.
    unsafe {
        match form {
            WORD => f64::from(at.cast::<u32>().read_unaligned()),
            SIX => {
                let low = u64::from(at.cast::<u32>().read_unaligned());
                let high = i64::from(at.add(4).cast::<i16>().read_unaligned());
                (high << 32 | low as i64) as f64
            }
            _ => at.cast::<f64>().read_unaligned(),
        }
    }
}

/// # Safety
/// `score_size(form)` bytes at `at` are writable.
#[inline]
unsafe fn write_score(form: u8, score: f64, at: *mut u8) {
    // SAFETY: the caller's.
    unsafe {
        match form {
            WORD => at.cast::<u32>().write_unaligned(score as u32),
            SIX => {
                let n = score as i64;
                at.cast::<u32>().write_unaligned(n as u32);
                at.add(4).cast::<i16>().write_unaligned((n >> 32) as i16);
            }
            _ => at.cast::<f64>().write_unaligned(score),
        }
    }
}

/// The cell of a long member, if it is one.
///
/// # Safety
/// An entry of a sorted set lies at `at`.
#[inline]
unsafe fn long_cell(at: *const u8) -> Option<*const u8> {
    // SAFETY: the caller's.
    unsafe { (*at == LONG).then(|| at.add(9)) }
}

impl EntryKind for Scores {
    type Key<'a> = &'a [u8];
    type Entry<'a> = (&'a [u8], f64);
    type Times = ();
    type Beside = ();

    #[inline]
    fn key<'a>(entry: Self::Entry<'a>) -> Self::Key<'a> {
        entry.0
    }

    #[inline]
    fn hash(key: &[u8]) -> u64 {
        place::of_bytes(key)
    }

    #[inline]
    fn size((member, score): (&[u8], f64), _width: u8) -> usize {
        match member.len() {
            len @ ..=SHORT_MAX => 1 + score_size(form(score)) + len,
            len => 9 + cell::bytes_size(len),
        }
    }

    #[inline]
    fn heap_size(entry: (&[u8], f64)) -> usize {
        cell::heap_size(entry.0.len())
    }

    #[inline]
    unsafe fn write((member, score): (&[u8], f64), _width: u8, at: *mut u8) {
        // SAFETY: the caller's; as many bytes as `size` says.
        unsafe {
            if member.len() > SHORT_MAX {
                *at = LONG;
                write_score(0, score, at.add(1));
                cell::write_bytes(member, at.add(9));
                return;
            }
            let form = form(score);
            *at = form << 6 | member.len() as u8;
            write_score(form, score, at.add(1));
            at.add(1 + score_size(form)).copy_from_nonoverlapping(member.as_ptr(), member.len());
        }
    }

    #[inline]
    unsafe fn read<'a>(at: *const u8, _width: u8) -> (&'a [u8], f64) {
        // SAFETY: the caller's; the first byte says what follows.
        unsafe {
            if let Some(cell) = long_cell(at) {
                return (cell::read_bytes(cell).0, read_score(0, at.add(1)));
            }
            let (form, len) = (*at >> 6, (*at & 63) as usize);
            let member = std::slice::from_raw_parts(at.add(1 + score_size(form)), len);
            (member, read_score(form, at.add(1)))
        }
    }

    #[inline]
    unsafe fn matches(at: *const u8, _width: u8, key: &[u8]) -> bool {
        // SAFETY: the caller's.
        unsafe {
            match long_cell(at) {
                Some(cell) => cell::is_bytes(cell, key),
                None => (*at & 63) as usize == key.len() && Self::read(at, 0).0 == key,
            }
        }
    }

    #[inline]
    unsafe fn extent(at: *const u8) -> usize {
        // SAFETY: the caller's.
        unsafe {
            match long_cell(at) {
                Some(cell) => 9 + cell::extent(cell),
                None => 1 + score_size(*at >> 6) + (*at & 63) as usize,
            }
        }
    }

    #[inline]
    unsafe fn heap(at: *const u8) -> usize {
        // SAFETY: the caller's.
        unsafe { long_cell(at).map_or(0, |cell| cell::heap(cell)) }
    }

    #[inline]
    unsafe fn retain(at: *const u8) {
        // SAFETY: the caller's.
        unsafe {
            if let Some(cell) = long_cell(at) {
                cell::retain(cell);
            }
        }
    }

    #[inline]
    unsafe fn release(at: *const u8) {
        // SAFETY: the caller's.
        unsafe {
            if let Some(cell) = long_cell(at) {
                cell::release(cell);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_scores_come_back_bit_by_bit() {
        let whole = [0.0, 1.0, 4_294_967_295.0, 4_294_967_296.0, -1.0, -2_147_483_649.0, 1.7e12, 9.3e18];
        let edges =
            [140_737_488_355_327.0, 140_737_488_355_328.0, -140_737_488_355_328.0, -140_737_488_355_329.0];
        let odd = [-0.0, 0.1, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, -9.3e18];
        for score in whole.into_iter().chain(edges).chain(odd) {
            for len in [0, 1, 16, 62, 63, 64, 191, 192, 512, 513, 2000] {
                let member = vec![b'm'; len];
                let mut room = [0xA5u8; 600];
                // SAFETY: 600 bytes are enough for any entry; its count is given back once.
                unsafe {
                    let at = room.as_mut_ptr();
                    Scores::write((&member, score), 0, at);
                    let (read, back) = Scores::read(at, 0);
                    assert_eq!((read, back.to_bits()), (&member[..], score.to_bits()));
                    assert!(
                        Scores::matches(at, 0, &member)
                            && !Scores::matches(at, 0, &[&member[..], b"m"].concat())
                    );
                    assert_eq!(Scores::extent(at), Scores::size((&member, score), 0));
                    assert_eq!(Scores::heap(at), Scores::heap_size((&member, score)));
                    assert_eq!(*at.add(Scores::extent(at)), 0xA5);
                    Scores::retain(at);
                    Scores::release(at);
                    Scores::release(at);
                }
            }
        }
    }
}
