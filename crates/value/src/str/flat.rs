//! One refcounted run of bytes in one allocation: a string of up to 16 KB.
//!
//! ```text
//! [ count u32  | flags u32 | len u64 | capacity u64 | bytes ... ]
//! ```
//!
//! - F1: `len <= capacity`; bytes past `len` are uninitialised and never read.
//! - F2: bytes and flags change only while there is exactly one owner.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::mem::size_of;
use std::ptr::{NonNull, copy_nonoverlapping, write_bytes};

use crate::arc::Count;
use crate::ctree::size_class;

#[repr(C)]
struct Head {
    count: Count,
    flags: u32,
    len: usize,
    cap: usize,
}

const HEAD: usize = size_of::<Head>();

/// An owner of a buffer. Clone: one atomic increment.
#[repr(transparent)]
pub(crate) struct Flat(NonNull<Head>);

// SAFETY: the bytes are plain data, the owner count is atomic, and changes need sole ownership (F2).
unsafe impl Send for Flat {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Flat {}

impl Flat {
    pub fn with_capacity(capacity: usize) -> Flat {
        let size = size_class(HEAD + capacity);
        let layout = layout(size - HEAD);
        // SAFETY: the layout is not empty, and the header written fits in front of the bytes.
        unsafe {
            let Some(head) = NonNull::new(alloc(layout).cast::<Head>()) else { handle_alloc_error(layout) };
            head.write(Head { count: Count::one(), flags: 0, len: 0, cap: size - HEAD });
            Flat(head)
        }
    }

    pub fn from_parts(first: &[u8], second: &[u8], spare: usize) -> Flat {
        let mut buffer = Flat::with_capacity(first.len() + second.len() + spare);
        buffer.push(first);
        buffer.push(second);
        buffer
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.head().len
    }

    /// Bytes of the allocation.
    pub fn alloc_bytes(&self) -> usize {
        HEAD + self.head().cap
    }

    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the first `len` bytes are initialised (F1) and do not change while shared (F2).
        unsafe { std::slice::from_raw_parts(self.data(), self.len()) }
    }

    #[inline]
    pub fn flags(&self) -> u32 {
        self.head().flags
    }

    #[inline]
    pub fn is_unique(&self) -> bool {
        self.head().count.unique()
    }

    /// Sets the flags. The caller is the only owner.
    pub fn set_flags(&mut self, flags: u32) {
        assert!(self.is_unique());
        // SAFETY: sole owner (F2), so no other reference to the header exists.
        unsafe { self.0.as_mut() }.flags = flags;
    }

    /// The bytes, to be changed. The caller is the only owner.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.is_unique());
        // SAFETY: sole owner (F2); the first `len` bytes are initialised (F1).
        unsafe { std::slice::from_raw_parts_mut(self.data(), self.len()) }
    }

    /// Makes this handle the only owner of a buffer with room for `extra` more bytes; flags are kept.
    pub fn make_mut(&mut self, extra: usize) {
        let need = self.len() + extra;
        if !self.is_unique() {
            let mut copy =
                Flat::from_parts(self.as_slice(), &[], if extra == 0 { 0 } else { grown(need) - self.len() });
            copy.set_flags(self.flags());
            *self = copy;
        } else if need > self.head().cap {
            let size = size_class(HEAD + grown(need));
            let old = layout(self.head().cap);
            // SAFETY: allocated with `old`, `size` is larger and not zero; sole owner, so the buffer may
            // move.
            unsafe {
                let moved = realloc(self.0.as_ptr().cast(), old, size).cast::<Head>();
                let Some(moved) = NonNull::new(moved) else { handle_alloc_error(layout(size - HEAD)) };
                self.0 = moved;
                self.0.as_mut().cap = size - HEAD;
            }
        }
    }

    /// Appends. The caller is the only owner.
    pub fn push(&mut self, bytes: &[u8]) {
        self.make_mut(bytes.len());
        let len = self.len();
        // SAFETY: `make_mut` left room behind `len` and made us the sole owner; `bytes` lies elsewhere.
        unsafe {
            copy_nonoverlapping(bytes.as_ptr(), self.data().add(len), bytes.len());
            self.0.as_mut().len = len + bytes.len();
        }
    }

    /// Appends zeros up to `len`, or cuts down to it.
    pub fn resize(&mut self, len: usize) {
        let old = self.len();
        self.make_mut(len.saturating_sub(old));
        // SAFETY: sole owner with room for `len` bytes; what becomes readable is zeroed first.
        unsafe {
            if len > old {
                write_bytes(self.data().add(old), 0, len - old);
            }
            self.0.as_mut().len = len;
        }
    }

    /// Gives up the handle; the owner it counted for is now the returned pointer.
    pub fn into_raw(self) -> NonNull<()> {
        let raw = self.0.cast();
        std::mem::forget(self);
        raw
    }

    /// # Safety
    /// `raw` came from [`Flat::into_raw`] and is given back only once.
    pub unsafe fn from_raw(raw: NonNull<()>) -> Flat {
        Flat(raw.cast())
    }

    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: the header lives as long as any owner.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn data(&self) -> *mut u8 {
        // SAFETY: the bytes start right behind the header, inside the allocation.
        unsafe { self.0.as_ptr().cast::<u8>().add(HEAD) }
    }
}

impl Clone for Flat {
    #[inline]
    fn clone(&self) -> Flat {
        self.head().count.retain();
        Flat(self.0)
    }
}

impl Drop for Flat {
    #[inline]
    fn drop(&mut self) {
        if self.head().count.release() {
            let layout = layout(self.head().cap);
            // SAFETY: that was the last owner; allocated with this layout.
            unsafe { dealloc(self.0.as_ptr().cast(), layout) };
        }
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(HEAD + capacity, 8).expect("a buffer is smaller than the address space")
}

/// Room to allocate for a buffer that must hold `need` bytes and will probably grow.
fn grown(need: usize) -> usize {
    need + (need / 4).min(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_buffer_is_copied_before_it_changes() {
        let mut a = Flat::from_parts(b"ab", b"cd", 0);
        a.set_flags(7);
        let b = a.clone();
        a.push(b"ef");
        a.make_mut(0);
        a.as_mut_slice()[0] = b'x';
        assert_eq!((a.as_slice(), b.as_slice()), (&b"xbcdef"[..], &b"abcd"[..]));
        assert_eq!((a.flags(), b.flags()), (7, 7));
        a.resize(8);
        assert_eq!(a.as_slice(), b"xbcdef\0\0");
        a.resize(1);
        assert_eq!(a.as_slice(), b"x");
    }
}
