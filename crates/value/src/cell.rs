//! Cells: the form of one element, field or value in a leaf.
//!
//! ```text
//! first byte   then                         meaning
//! 00..=BF      that many bytes              short bytes
//! C0..=DF      length low byte, the bytes   bytes, length = low 5 bits · 256 + second byte
//! E0           pointer, 8 bytes             a Blob: bytes longer than INLINE_MAX
//! E8 E9 EA EB  1, 2, 4, 8 bytes LE          a signed integer
//! F0           8 bytes LE, then cells       mark before a hash entry: when it expires, absolute ms
//! ```
//!
//! - C1: bytes are in a Blob exactly if they are longer than [`INLINE_MAX`].
//! - C2: a cell owns one count of its Blob. Moving the cell's bytes moves the count.

use crate::arc::Blob;
use crate::elem::{Elem, INLINE_MAX};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

const SHORT: u8 = 0xC0;
const BLOB: u8 = 0xE0;
const INT8: u8 = 0xE8;
const INT16: u8 = 0xE9;
const INT32: u8 = 0xEA;
const INT64: u8 = 0xEB;
/// The mark before an entry with an expiry.
pub(crate) const EXPIRY: u8 = 0xF0;
/// Length of the mark and the time.
pub(crate) const EXPIRY_LEN: usize = 9;

const _: () = assert!(INLINE_MAX < 0x2000 && SHORT <= BLOB);

/// Bytes a cell takes for bytes of that length.
#[inline]
pub(crate) const fn bytes_size(len: usize) -> usize {
    if len < SHORT as usize {
        1 + len
    } else if len <= INLINE_MAX {
        2 + len
    } else {
        9
    }
}

/// Bytes a cell takes.
#[inline]
pub(crate) const fn size(elem: Elem<'_>) -> usize {
    match elem {
        Elem::Bytes(bytes) => bytes_size(bytes.len()),
        Elem::Int(n) if n as i8 as i64 == n => 2,
        Elem::Int(n) if n as i16 as i64 == n => 3,
        Elem::Int(n) if n as i32 as i64 == n => 5,
        Elem::Int(_) => 9,
    }
}

/// Bytes allocated outside the leaf for bytes of that length.
#[inline]
pub(crate) const fn heap_size(len: usize) -> usize {
    if len <= INLINE_MAX { 0 } else { Blob::alloc_size(len) }
}

/// Writes bytes as a cell; returns its size.
///
/// # Safety
/// `bytes_size(bytes.len())` bytes at `at` are writable.
#[inline]
pub(crate) unsafe fn write_bytes(bytes: &[u8], at: *mut u8) -> usize {
    let len = bytes.len();
    // SAFETY: the caller's; each branch writes `bytes_size` bytes.
    unsafe {
        if len < SHORT as usize {
            *at = len as u8;
            at.add(1).copy_from_nonoverlapping(bytes.as_ptr(), len);
            1 + len
        } else if len <= INLINE_MAX {
            *at = SHORT | (len >> 8) as u8;
            *at.add(1) = len as u8;
            at.add(2).copy_from_nonoverlapping(bytes.as_ptr(), len);
            2 + len
        } else {
            *at = BLOB;
            at.add(1).cast::<*mut ()>().write_unaligned(Blob::new(bytes).into_raw().as_ptr());
            9
        }
    }
}

/// Writes an element as a cell; returns its size.
///
/// # Safety
/// `size(elem)` bytes at `at` are writable.
#[inline]
pub(crate) unsafe fn write(elem: Elem<'_>, at: *mut u8) -> usize {
    let n = match elem {
        // SAFETY: the caller's.
        Elem::Bytes(bytes) => return unsafe { write_bytes(bytes, at) },
        Elem::Int(n) => n,
    };
    let size = size(elem);
    // SAFETY: the caller's; the mark and `size - 1` low bytes of the number.
    unsafe {
        *at = match size {
            2 => INT8,
            3 => INT16,
            5 => INT32,
            _ => INT64,
        };
        at.add(1).copy_from_nonoverlapping(n.to_le_bytes().as_ptr(), size - 1);
    }
    size
}

/// Reads a cell of bytes, and its size.
///
/// # Safety
/// A cell of bytes lies at `at`, unchanged for `'a`.
#[inline]
pub(crate) unsafe fn read_bytes<'a>(at: *const u8) -> (&'a [u8], usize) {
    // SAFETY: the caller's; the first byte says how much follows.
    unsafe {
        let first = *at;
        if first < SHORT {
            return (std::slice::from_raw_parts(at.add(1), first as usize), 1 + first as usize);
        }
        if first < BLOB {
            let len = (first as usize & 0x1F) << 8 | *at.add(1) as usize;
            return (std::slice::from_raw_parts(at.add(2), len), 2 + len);
        }
        debug_assert_eq!(first, BLOB);
        let blob = blob_at(at);
        (std::slice::from_raw_parts(blob.as_ptr(), blob.len()), 9)
    }
}

/// Reads a cell.
///
/// # Safety
/// A cell lies at `at`, unchanged for `'a`.
#[inline]
pub(crate) unsafe fn read<'a>(at: *const u8) -> Elem<'a> {
    // SAFETY: the caller's; the mark says how many bytes the integer has.
    unsafe {
        match *at {
            INT8 => Elem::Int(i64::from(*at.add(1).cast::<i8>())),
            INT16 => Elem::Int(i64::from(i16::from_le(at.add(1).cast::<i16>().read_unaligned()))),
            INT32 => Elem::Int(i64::from(i32::from_le(at.add(1).cast::<i32>().read_unaligned()))),
            INT64 => Elem::Int(i64::from_le(at.add(1).cast::<i64>().read_unaligned())),
            _ => Elem::Bytes(read_bytes(at).0),
        }
    }
}

/// Size of the cell.
///
/// # Safety
/// A cell lies at `at`.
#[inline]
pub(crate) unsafe fn extent(at: *const u8) -> usize {
    // SAFETY: the caller's.
    unsafe {
        match *at {
            first if first < SHORT => 1 + first as usize,
            first if first < BLOB => 2 + ((first as usize & 0x1F) << 8 | *at.add(1) as usize),
            INT8 => 2,
            INT16 => 3,
            INT32 => 5,
            _ => 9,
        }
    }
}

/// True if the cell holds exactly these bytes.
///
/// # Safety
/// A cell lies at `at`.
#[inline]
pub(crate) unsafe fn is_bytes(at: *const u8, bytes: &[u8]) -> bool {
    // SAFETY: the caller's; integers are told apart by their mark.
    unsafe {
        let first = *at;
        if first < SHORT {
            first as usize == bytes.len() && std::slice::from_raw_parts(at.add(1), first as usize) == bytes
        } else {
            first <= BLOB && read_bytes(at).0 == bytes
        }
    }
}

/// True if the cell holds exactly this element.
///
/// # Safety
/// A cell lies at `at`.
#[inline]
pub(crate) unsafe fn is(at: *const u8, elem: Elem<'_>) -> bool {
    // SAFETY: the caller's.
    unsafe {
        match elem {
            Elem::Bytes(bytes) => is_bytes(at, bytes),
            Elem::Int(_) => *at > BLOB && read(at) == elem,
        }
    }
}

/// Adds an owner to the cell's Blob, if it has one.
///
/// # Safety
/// A cell lies at `at`.
#[inline]
pub(crate) unsafe fn retain(at: *const u8) {
    // SAFETY: the caller's; the clone is the count of a copy of the cell (C2).
    unsafe {
        if *at == BLOB {
            std::mem::forget(Blob::clone(&blob_at(at)));
        }
    }
}

/// Gives back the cell's count of its Blob, if it has one. The cell must not be read afterwards.
///
/// # Safety
/// A cell lies at `at` and gives up its count (C2).
#[inline]
pub(crate) unsafe fn release(at: *const u8) {
    // SAFETY: the caller's.
    unsafe {
        if *at == BLOB {
            drop(ManuallyDrop::into_inner(blob_at(at)));
        }
    }
}

/// Bytes of the cell's Blob.
///
/// # Safety
/// A cell lies at `at`.
#[inline]
pub(crate) unsafe fn heap(at: *const u8) -> usize {
    // SAFETY: the caller's.
    unsafe { if *at == BLOB { Blob::alloc_size(blob_at(at).len()) } else { 0 } }
}

/// # Safety
/// A Blob cell lies at `at`.
unsafe fn blob_at(at: *const u8) -> ManuallyDrop<Blob> {
    // SAFETY: written by `write_bytes` from a Blob, so not null.
    unsafe {
        let raw = at.add(1).cast::<*mut ()>().read_unaligned();
        ManuallyDrop::new(Blob::from_raw(NonNull::new_unchecked(raw)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_read_back_what_was_written() {
        let texts: Vec<Vec<u8>> =
            [0, 1, 191, 192, 256, 511, 512, 513, 5000].iter().map(|&n| vec![b'x'; n]).collect();
        let ints =
            [0, -1, 127, 128, -128, -129, 32767, 32768, 1 << 31, -(1 << 31), 1 << 40, i64::MIN, i64::MAX];
        let elems = texts.iter().map(|t| Elem::Bytes(t)).chain(ints.map(Elem::Int));
        let all: Vec<Elem> = elems.collect();
        for &elem in &all {
            let mut room = [0u8; 600];
            // SAFETY: 600 bytes are enough for any cell; the count is given back once.
            unsafe {
                let at = room.as_mut_ptr();
                let size = write(elem, at);
                assert_eq!((size, extent(at), read(at)), (super::size(elem), size, elem));
                assert!(all.iter().all(|&other| is(at, other) == (other == elem)));
                assert_eq!(heap(at) > 0, elem.len() > INLINE_MAX);
                retain(at);
                release(at);
                release(at);
            }
        }
    }
}
