//! A string in two blocks, where one block would be much too large: 2 to 16 KB that are set as a whole.
//!
//! ```text
//! [ count u32 | first u32 | second u64 | pointer ─┐ | bytes ... ]      a size class, filled
//!                                                 └► [ bytes ... ]     a much smaller one
//! ```
//!
//! The allocator has four sizes per doubling, so a single block wastes up to a fifth of its bytes, and half
//! of that on average. A pair first fills a smaller block. The rest is short, where sizes are close together.
//!
//! - P1: the bytes never change: a string that is edited becomes a flat one first.
//! - P2: the first block has `HEAD + first` bytes, the second `second`, at least one; all are initialised.
//!
//! Cost beside a flat string: another allocation, another copy. 6,758 bytes take 6,784 instead of 7,168.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::{NonNull, copy_nonoverlapping};

use super::FLAT_MAX;
use crate::arc::Count;
use crate::ctree::size_class;

/// Length below which a pair would save little.
const LEAST: usize = 2 << 10;
/// The part of a block that must be saved.
const WORTH: usize = 32;

#[repr(C)]
struct Head {
    count: Count,
    first: u32,
    second: usize,
    rest: NonNull<u8>,
}

const HEAD: usize = size_of::<Head>();

/// An owner of a pair. Clone: one atomic increment.
#[repr(transparent)]
pub(crate) struct Pair(NonNull<Head>);

// SAFETY: the bytes never change (P1), and the owner count is atomic.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

/// A borrowed pair.
#[derive(Clone, Copy)]
pub struct PairRef<'a> {
    head: NonNull<Head>,
    of: PhantomData<&'a Pair>,
}

// SAFETY: a shared reference to a Sync type.
unsafe impl Send for PairRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for PairRef<'_> {}

/// Bytes of a string that go into its first block. None: one block is better.
fn split(len: usize) -> Option<usize> {
    if !(LEAST..=FLAT_MAX).contains(&len) {
        return None;
    }
    let need = HEAD + len;
    let whole = size_class(need);
    let below = whole - need.next_power_of_two() / 8;
    (below + size_class(need - below) + whole / WORTH <= whole).then_some(below - HEAD)
}

impl Pair {
    /// Copies `bytes`, if two blocks are better than one. O(n).
    pub fn from_slice(bytes: &[u8]) -> Option<Pair> {
        let (first, second) = bytes.split_at(split(bytes.len())?);
        let rest = allocate(second_layout(second.len()));
        let head = allocate(first_layout(first.len())).cast::<Head>();
        // SAFETY: two fresh blocks, as large as the bytes written into them (P2).
        unsafe {
            let (count, first_len) = (Count::one(), first.len() as u32);
            head.write(Head { count, first: first_len, second: second.len(), rest });
            copy_nonoverlapping(first.as_ptr(), data(head), first.len());
            copy_nonoverlapping(second.as_ptr(), rest.as_ptr(), second.len());
        }
        Some(Pair(head))
    }

    pub fn into_raw(self) -> NonNull<()> {
        let raw = self.0.cast();
        std::mem::forget(self);
        raw
    }

    /// # Safety
    /// `raw` came from [`Pair::into_raw`] and is given back only once.
    pub unsafe fn from_raw(raw: NonNull<()>) -> Pair {
        Pair(raw.cast())
    }

    /// # Safety
    /// `raw` came from [`Pair::into_raw`], and that owner lives as long as the result.
    pub unsafe fn borrow_raw<'a>(raw: NonNull<()>) -> PairRef<'a> {
        PairRef { head: raw.cast(), of: PhantomData }
    }

    pub fn as_ref(&self) -> PairRef<'_> {
        PairRef { head: self.0, of: PhantomData }
    }
}

impl<'a> PairRef<'a> {
    #[inline]
    fn head(self) -> &'a Head {
        // SAFETY: an owner is borrowed, and nothing but the count changes (P1).
        unsafe { self.head.as_ref() }
    }

    #[inline]
    pub(super) fn len(self) -> usize {
        self.head().first as usize + self.head().second
    }

    /// Bytes of the allocations.
    pub(super) fn alloc_bytes(self) -> usize {
        HEAD + self.head().first as usize + size_class(self.head().second)
    }

    /// The bytes: those of the first block, and those of the second.
    #[inline]
    pub fn parts(self) -> (&'a [u8], &'a [u8]) {
        let Head { first, second, rest, .. } = self.head();
        // SAFETY: P2; an owner is borrowed for as long as the slices.
        unsafe {
            let first = std::slice::from_raw_parts(data(self.head), *first as usize);
            (first, std::slice::from_raw_parts(rest.as_ptr(), *second))
        }
    }

    /// The bytes at `at < len` and behind it, up to the end of a block.
    #[inline]
    pub(super) fn run_at(self, at: usize) -> &'a [u8] {
        let (first, second) = self.parts();
        if at < first.len() { &first[at..] } else { &second[at - first.len()..] }
    }

    /// Adds an owner. O(1).
    pub(super) fn to_owner(self) -> Pair {
        self.head().count.retain();
        Pair(self.head)
    }
}

impl Drop for Pair {
    #[inline]
    fn drop(&mut self) {
        let Head { count, first, second, rest } = self.as_ref().head();
        if count.release() {
            let (first, second, rest) = (*first as usize, *second, *rest);
            // SAFETY: that was the last owner; allocated with these layouts (P2).
            unsafe {
                dealloc(rest.as_ptr(), second_layout(second));
                dealloc(self.0.as_ptr().cast(), first_layout(first));
            }
        }
    }
}

/// The bytes of the first block.
fn data(head: NonNull<Head>) -> *mut u8 {
    // SAFETY: the first block begins with a head and goes on behind it (P2).
    unsafe { head.as_ptr().cast::<u8>().add(HEAD) }
}

fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: no layout here is empty.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

fn first_layout(first: usize) -> Layout {
    Layout::from_size_align(HEAD + first, align_of::<Head>())
        .expect("a block is smaller than the address space")
}

fn second_layout(second: usize) -> Layout {
    Layout::from_size_align(second, 1).expect("a block is smaller than the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_blocks_take_less_than_one_and_have_all_bytes() {
        let mut pairs = 0;
        for len in (0..20_000).step_by(7) {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
            let Some(pair) = Pair::from_slice(&bytes) else { continue };
            let clone = pair.as_ref().to_owner();
            drop(pair);
            let (first, second) = clone.as_ref().parts();
            assert_eq!([first, second].concat(), bytes);
            assert_eq!((clone.as_ref().len(), size_class(HEAD + first.len())), (len, HEAD + first.len()));
            let (whole, took) = (size_class(HEAD + len), clone.as_ref().alloc_bytes());
            assert!(
                took + whole / WORTH <= whole && (LEAST..=FLAT_MAX).contains(&len),
                "{len}: {took} of {whole}"
            );
            for at in [0, first.len() - 1, first.len(), len - 1] {
                assert_eq!(clone.as_ref().run_at(at)[0], bytes[at]);
            }
            pairs += 1;
        }
        assert!(pairs > 1000, "{pairs}");
        assert!(Pair::from_slice(&[0; 4096 - HEAD]).is_none(), "it fills its block");
        assert_eq!(Pair::from_slice(&[0; 6758]).map(|pair| pair.as_ref().alloc_bytes()), Some(6784));
    }
}
