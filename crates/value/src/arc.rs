//! Shared ownership by counting only: the base of every tree in this crate.
//!
//! `std::sync::Arc` has a weak count, which costs two atomic operations per `make_mut` and 8 unused bytes per
//! node. Here: [`Count`] for nodes with their own layout, [`Arc`] for sized ones, [`Blob`] for long elements.
//!
//! - A1: a count is the number of handles. The handle that lowers it to zero frees the block.
//! - A2: `unique` may be trusted only through the one handle it was asked of, held by `&mut`. Then no other
//!   handle can raise a count of one. It synchronizes with the `release` of the former owners.
//! - A3: counts are 32 bits and abort the process at 2^31 owners instead of wrapping.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// The number of owners of a block; the first field of every shared block.
#[repr(transparent)]
pub struct Count(AtomicU32);

impl Count {
    /// One owner.
    #[inline]
    pub const fn one() -> Count {
        Count(AtomicU32::new(1))
    }

    /// Adds an owner.
    #[inline]
    pub fn retain(&self) {
        // Relaxed: passing the handle to another thread synchronizes.
        if self.0.fetch_add(1, Ordering::Relaxed) > i32::MAX as u32 {
            std::process::abort(); // A3
        }
    }

    /// Removes an owner. True if it was the last: the caller frees the block.
    #[inline]
    #[must_use]
    pub fn release(&self) -> bool {
        if self.0.fetch_sub(1, Ordering::Release) != 1 {
            return false;
        }
        fence(Ordering::Acquire);
        true
    }

    /// Number of owners at this moment.
    pub fn owners(&self) -> usize {
        self.0.load(Ordering::Relaxed) as usize
    }

    /// True if there is exactly one owner (A2).
    #[inline]
    pub fn unique(&self) -> bool {
        self.0.load(Ordering::Acquire) == 1
    }
}

/// A count-only `Arc` of a sized value; 8 bytes, never null.
pub struct Arc<T> {
    block: NonNull<Block<T>>,
    owns: PhantomData<Block<T>>,
}

#[repr(C)]
struct Block<T> {
    count: Count,
    value: T,
}

// SAFETY: like std's Arc: handles on several threads share `&T` and any of them may drop `T`.
unsafe impl<T: Send + Sync> Send for Arc<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Arc<T> {}

impl<T> Arc<T> {
    /// Moves `value` into a block of its own.
    pub fn new(value: T) -> Arc<T> {
        let block = Box::new(Block { count: Count::one(), value });
        Arc { block: NonNull::from(Box::leak(block)), owns: PhantomData }
    }

    #[inline]
    fn block(&self) -> &Block<T> {
        // SAFETY: the block lives as long as a handle does (A1).
        unsafe { self.block.as_ref() }
    }

    /// Number of handles at this moment.
    pub fn owners(&self) -> usize {
        self.block().count.owners()
    }

    /// True if this is the only handle.
    #[inline]
    pub fn is_unique(&self) -> bool {
        self.block().count.unique()
    }

    /// The value, if this is the only handle.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        if !self.is_unique() {
            return None;
        }
        // SAFETY: the only handle is borrowed mutably (A2).
        Some(unsafe { &mut self.block.as_mut().value })
    }

    /// The value for changing it, copied first if it is shared.
    #[inline]
    pub fn make_mut(&mut self) -> &mut T
    where
        T: Clone,
    {
        if !self.is_unique() {
            *self = Arc::new(T::clone(self));
        }
        // SAFETY: the only handle, either found so or just made (A2).
        unsafe { &mut self.block.as_mut().value }
    }

    /// The value itself, if this was the last handle.
    pub fn into_inner(self) -> Option<T> {
        let block = self.block;
        std::mem::forget(self);
        // SAFETY: the handle's count has not been given back yet, so the block lives.
        if !unsafe { block.as_ref() }.count.release() {
            return None;
        }
        // SAFETY: made by `Box` in `new`; the last handle is gone (A1).
        Some(unsafe { Box::from_raw(block.as_ptr()) }.value)
    }

    /// True if both handles name the same block.
    #[inline]
    pub fn ptr_eq(&self, other: &Arc<T>) -> bool {
        self.block == other.block
    }

    /// The handle as a pointer, aligned to at least 4 (8 for types with pointers), to be tagged and given
    /// back to [`Arc::from_raw`].
    #[inline]
    pub fn into_raw(self) -> NonNull<()> {
        let raw = self.block.cast();
        std::mem::forget(self);
        raw
    }

    /// Rebuilds the handle that `into_raw` gave up.
    ///
    /// # Safety
    /// `raw` comes from `into_raw` of the same `T`, and is used once for each of its calls.
    #[inline]
    pub unsafe fn from_raw(raw: NonNull<()>) -> Arc<T> {
        Arc { block: raw.cast(), owns: PhantomData }
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.block().value
    }
}

impl<T> Clone for Arc<T> {
    #[inline]
    fn clone(&self) -> Arc<T> {
        self.block().count.retain();
        Arc { block: self.block, owns: PhantomData }
    }
}

impl<T> Drop for Arc<T> {
    #[inline]
    fn drop(&mut self) {
        if self.block().count.release() {
            // SAFETY: made by `Box` in `new`; the last handle is gone (A1).
            drop(unsafe { Box::from_raw(self.block.as_ptr()) });
        }
    }
}

/// Shared bytes in one block, `[count | length | bytes]`: an element too long for a leaf. 8 bytes, never
/// null.
pub struct Blob {
    head: NonNull<BlobHead>,
}

#[repr(C)]
struct BlobHead {
    count: Count,
    len_low: u32,
    len_high: u32,
}

const BLOB_HEAD: usize = size_of::<BlobHead>();
/// Contents longer than this are not freed on the spot.
const DEFER_BYTES: usize = 64 << 10;

// SAFETY: the bytes are only read while shared; the count is atomic.
unsafe impl Send for Blob {}
// SAFETY: as above.
unsafe impl Sync for Blob {}

impl Blob {
    /// Copies `bytes` into a block of its own.
    pub fn new(bytes: &[u8]) -> Blob {
        let layout = Self::layout(bytes.len());
        // SAFETY: the layout is never empty, and the block is as long as header and bytes together.
        unsafe {
            let Some(head) = NonNull::new(alloc(layout).cast::<BlobHead>()) else {
                handle_alloc_error(layout)
            };
            let (len_low, len_high) = (bytes.len() as u32, (bytes.len() as u64 >> 32) as u32);
            head.write(BlobHead { count: Count::one(), len_low, len_high });
            let start = head.cast::<u8>().add(BLOB_HEAD).as_ptr();
            start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            Blob { head }
        }
    }

    fn layout(len: usize) -> Layout {
        match Layout::from_size_align(BLOB_HEAD + len, 8) {
            Ok(layout) => layout,
            Err(_) => panic!("an element as long as the address space"),
        }
    }

    #[inline]
    fn start(&self) -> *mut u8 {
        // SAFETY: the bytes follow the header in the same block.
        unsafe { self.head.cast::<u8>().add(BLOB_HEAD).as_ptr() }
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        // SAFETY: the block lives as long as a handle does (A1).
        let head = unsafe { self.head.as_ref() };
        head.len_low as usize | (head.len_high as usize) << 32
    }

    /// True for no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if this is the only handle.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: the block lives (A1); the only handle is borrowed mutably (A2).
        unsafe {
            let unique = self.head.as_ref().count.unique();
            unique.then(|| std::slice::from_raw_parts_mut(self.start(), self.len()))
        }
    }

    /// Bytes allocated for `len` bytes of content.
    pub const fn alloc_size(len: usize) -> usize {
        BLOB_HEAD + len
    }

    /// The handle as a pointer aligned to 8, to be given back to [`Blob::from_raw`].
    #[inline]
    pub fn into_raw(self) -> NonNull<()> {
        let raw = self.head.cast();
        std::mem::forget(self);
        raw
    }

    /// Rebuilds the handle that `into_raw` gave up.
    ///
    /// # Safety
    /// `raw` comes from `into_raw`, and is used once for each of its calls. (A copy kept elsewhere may be
    /// wrapped in `ManuallyDrop` to look at it.)
    #[inline]
    pub unsafe fn from_raw(raw: NonNull<()>) -> Blob {
        Blob { head: raw.cast() }
    }
}

impl Deref for Blob {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: initialized by `new`, and changed only through the only handle.
        unsafe { std::slice::from_raw_parts(self.start(), self.len()) }
    }
}

impl Clone for Blob {
    #[inline]
    fn clone(&self) -> Blob {
        // SAFETY: the block lives as long as a handle does (A1).
        unsafe { self.head.as_ref() }.count.retain();
        Blob { head: self.head }
    }
}

impl Drop for Blob {
    /// Leaves long contents to the reclaimer, as returning megabytes to the system takes time.
    fn drop(&mut self) {
        let len = self.len();
        // SAFETY: the block lives as long as a handle does (A1).
        if !unsafe { self.head.as_ref() }.count.release() {
            return;
        }
        let orphan = Orphan { head: self.head, len };
        match len > DEFER_BYTES {
            true => stdx::reclaim::defer(len, move || orphan.free()),
            false => orphan.free(),
        }
    }
}

/// A block without owners.
struct Orphan {
    head: NonNull<BlobHead>,
    len: usize,
}

// SAFETY: this is the only pointer to the block.
unsafe impl Send for Orphan {}

impl Orphan {
    fn free(self) {
        // SAFETY: allocated with this layout by `Blob::new`; the last handle is gone (A1).
        unsafe { dealloc(self.head.as_ptr().cast(), Blob::layout(self.len)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_value_is_copied_before_it_changes() {
        let mut one = Arc::new(vec![1]);
        one.make_mut().push(2);
        let two = one.clone();
        assert!(one.get_mut().is_none());
        one.make_mut().push(3);
        assert_eq!((&*one, &*two), (&vec![1, 2, 3], &vec![1, 2]));
        assert!(!one.ptr_eq(&two));
        assert_eq!(two.into_inner(), Some(vec![1, 2]));
        let raw = one.into_raw();
        // SAFETY: from `into_raw` just above.
        let one: Arc<Vec<i32>> = unsafe { Arc::from_raw(raw) };
        assert!(one.is_unique());
    }

    #[test]
    fn blobs_keep_their_bytes() {
        for len in [0, 1, 511, 100_000] {
            let bytes = vec![7u8; len];
            let mut blob = Blob::new(&bytes);
            let other = blob.clone();
            assert!(blob.get_mut().is_none());
            assert_eq!(&*other, &bytes[..]);
            drop(other);
            assert_eq!(blob.get_mut().map(|b| b.len()), Some(len));
        }
    }
}
