//! Strings outside an entry: one buffer of up to 16 KB, two if one would waste much, or a tree of 4 KB
//! chunks.
//!
//! ```text
//! handle (8 bytes) ─┬─ null             the empty string
//!                   ├─ flat             [count | flags | length | capacity | bytes]      str/flat.rs
//!                   ├─ pair + 2         two buffers that fill their size classes         str/pair.rs
//!                   └─ chunked + 1      radix tree, absent chunks are zeros              str/chunked.rs
//! ```
//!
//! - S1: flat strings have at most [`FLAT_MAX`] bytes. Chunked ones may be shorter after `truncate`.
//! - S2: a `raw` string was changed in place by APPEND, SETRANGE or SETBIT, and Redis would no longer call it
//!   `int` or `embstr`. For flat strings it is a flag; chunked ones are raw.
//! - S3: only strings that were set as a whole are pairs; one that is edited becomes flat or chunked.
//!
//! Costs, n = bytes touched: clone O(1); append, write_at, set_bit O(n). Add 16 KB at most when a flat string
//! is shared or turns into chunks, and about 6 KB when a chunk is shared. Truncate and drop leave long work
//! to the reclaimer. `SETBIT` at bit 4,000,000,000 makes one chunk.

mod chunked;
mod flat;
mod pair;

use std::borrow::Cow;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};

use crate::arc::Arc;
use crate::{Elem, Enc};
pub use chunked::Chunked;
use flat::Flat;
use pair::Pair;
pub use pair::PairRef;

/// Longest string in one buffer.
pub const FLAT_MAX: usize = 16 << 10;

/// Longest string that Redis keeps in its object (`embstr`).
const EMBSTR_MAX: usize = 44;

const RAW: u32 = 1;

/// The lowest bits of a handle. None of them: a flat string.
const CHUNKED: usize = 1;
const PAIR: usize = 2;
const FORM: usize = 3;

/// A string. 8 bytes; clone O(1).
pub struct Str {
    /// Null, a flat string's pointer, a chunked string's + 1 or a pair's + 2. It owns the block.
    raw: *mut (),
}

// SAFETY: a string owns a `Flat`, a `Pair` or an `Arc<Chunked>`, which are all Send and Sync.
unsafe impl Send for Str {}
// SAFETY: as above.
unsafe impl Sync for Str {}

/// A string, taken out of its handle.
enum Owned {
    Empty,
    Flat(Flat),
    Pair(Pair),
    Chunked(Arc<Chunked>),
}

/// A borrowed string: bytes in one place (in an entry, say), in two, or a chunked string.
#[derive(Clone, Copy)]
pub enum StrRef<'a> {
    Flat(&'a [u8]),
    Pair(PairRef<'a>),
    Chunked(&'a Chunked),
}

/// A piece of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run<'a> {
    Bytes(&'a [u8]),
    Zeros(u64),
}

impl Str {
    /// The empty string. Does not allocate.
    pub const fn new() -> Str {
        Str { raw: null_mut() }
    }

    /// Copies `bytes`. O(n).
    pub fn from_slice(bytes: &[u8]) -> Str {
        match bytes.len() {
            0 => Str::new(),
            1..=FLAT_MAX => Str::put(match Pair::from_slice(bytes) {
                Some(pair) => Owned::Pair(pair),
                None => Owned::Flat(Flat::from_parts(bytes, &[], 0)),
            }),
            _ => {
                let mut chunked = Chunked::new();
                chunked.write(0, bytes, true);
                Str::put(Owned::Chunked(Arc::new(chunked)))
            }
        }
    }

    /// Copies `bytes` into a string with encoding `raw`, as after APPEND and SETRANGE. O(n).
    pub fn from_slice_raw(bytes: &[u8]) -> Str {
        match bytes.len() {
            1..=FLAT_MAX => {
                let mut flat = Flat::from_parts(bytes, &[], 0);
                flat.set_flags(RAW);
                Str::put(Owned::Flat(flat))
            }
            _ => Str::from_slice(bytes),
        }
    }

    /// Whether the encoding is `raw` by history, not by length.
    pub fn is_raw(&self) -> bool {
        self.is_chunked() || self.flat().is_some_and(|flat| flat.flags() & RAW != 0)
    }

    /// Copies the bytes, as strings here have another layout than vectors.
    pub fn from_vec(bytes: Vec<u8>) -> Str {
        Str::from_slice(&bytes)
    }

    /// Bytes. O(1).
    #[inline]
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    /// Prefetches the block of the handle.
    #[inline]
    pub fn prefetch(&self) {
        stdx::cache::prefetch_at(self.raw.map_addr(|raw| raw & !FORM));
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Borrows the string.
    #[inline]
    pub fn as_ref(&self) -> StrRef<'_> {
        if self.raw.is_null() {
            return StrRef::Flat(&[]);
        }
        match (self.flat(), self.chunked()) {
            (Some(flat), _) => StrRef::Flat(flat.as_slice()),
            (_, Some(chunked)) => StrRef::Chunked(chunked),
            // SAFETY: any other form is a pair, whose owner is borrowed.
            _ => StrRef::Pair(unsafe { Pair::borrow_raw(self.untagged()) }),
        }
    }

    #[inline]
    fn is_chunked(&self) -> bool {
        self.raw.addr() & FORM == CHUNKED
    }

    /// The pointer that `put` got. The handle is not null.
    #[inline]
    fn untagged(&self) -> NonNull<()> {
        debug_assert!(!self.raw.is_null());
        // SAFETY: blocks are aligned to 8 bytes, so the pointer without the bits of the form is not null.
        unsafe { NonNull::new_unchecked(self.raw.map_addr(|a| a & !FORM)) }
    }

    #[inline]
    fn flat(&self) -> Option<&Flat> {
        if self.raw.is_null() || self.raw.addr() & FORM != 0 {
            return None;
        }
        // SAFETY: `raw` is an owned flat string, and `Flat` is a transparent pointer to one.
        Some(unsafe { &*(&raw const self.raw).cast::<Flat>() })
    }

    #[inline]
    fn chunked(&self) -> Option<&Chunked> {
        if !self.is_chunked() {
            return None;
        }
        // SAFETY: without the bit `raw` is an owned Arc, whose block lives as long as `self` is borrowed.
        unsafe {
            let arc = ManuallyDrop::new(self.arc());
            let chunked: *const Chunked = &**arc;
            Some(&*chunked)
        }
    }

    /// # Safety
    /// The string is chunked; the result takes over its count, or must not be dropped.
    unsafe fn arc(&self) -> Arc<Chunked> {
        // SAFETY: `raw` is the pointer that `put` got from `into_raw`, with the low bit set.
        unsafe { Arc::from_raw(self.untagged()) }
    }

    fn put(owned: Owned) -> Str {
        let raw = match owned {
            Owned::Empty => null_mut(),
            Owned::Flat(flat) => flat.into_raw().as_ptr(),
            Owned::Pair(pair) => pair.into_raw().as_ptr().map_addr(|a| a | PAIR),
            Owned::Chunked(arc) => arc.into_raw().as_ptr().map_addr(|a| a | CHUNKED),
        };
        Str { raw }
    }

    /// Empties the handle.
    fn take(&mut self) -> Owned {
        if self.raw.is_null() {
            return Owned::Empty;
        }
        // SAFETY: each form gives up its count to the result, and the handle is emptied.
        let owned = unsafe {
            match self.raw.addr() & FORM {
                CHUNKED => Owned::Chunked(self.arc()),
                PAIR => Owned::Pair(Pair::from_raw(self.untagged())),
                _ => Owned::Flat(Flat::from_raw(self.untagged())),
            }
        };
        self.raw = null_mut();
        owned
    }

    /// Changes the string as a flat one if `len` bytes may be flat and it is not chunked already, else as
    /// chunks.
    fn change(&mut self, len: usize, flat: impl FnOnce(&mut Flat), chunked: impl FnOnce(&mut Chunked)) {
        let owned = match self.take() {
            Owned::Chunked(mut arc) => {
                chunked(arc.make_mut());
                Owned::Chunked(arc)
            }
            other if len <= FLAT_MAX => {
                let mut bytes = match other {
                    Owned::Flat(bytes) => bytes,
                    Owned::Pair(pair) => flattened(&pair, len),
                    _ => Flat::with_capacity(len),
                };
                flat(&mut bytes);
                bytes.set_flags(RAW);
                Owned::Flat(bytes)
            }
            other => {
                let mut chunks = Chunked::new();
                match &other {
                    Owned::Flat(bytes) => chunks.write(0, bytes.as_slice(), true),
                    Owned::Pair(pair) => {
                        let (first, second) = pair.as_ref().parts();
                        chunks.write(0, first, true);
                        chunks.write(first.len(), second, true);
                    }
                    _ => {}
                }
                chunked(&mut chunks);
                Owned::Chunked(Arc::new(chunks))
            }
        };
        *self = Str::put(owned);
    }

    /// Makes the encoding `raw`, unless the string is empty.
    pub fn make_raw(&mut self) {
        if !self.is_empty() && !self.is_raw() {
            self.change(self.len(), |flat| flat.make_mut(0), |_| {});
        }
    }

    /// Appends, and makes the string `raw`.
    pub fn append(&mut self, bytes: &[u8]) {
        let len = self.len();
        if !bytes.is_empty() {
            self.change(len + bytes.len(), |flat| flat.push(bytes), |chunks| chunks.write(len, bytes, false));
        }
    }

    /// Writes at byte `at`. A gap in front becomes zeros that take no memory. The string becomes `raw`,
    /// unless nothing is written.
    pub fn write_at(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let flat = |flat: &mut Flat| {
            let end = at + bytes.len();
            if end > flat.len() {
                flat.resize(end);
            } else {
                flat.make_mut(0);
            }
            flat.as_mut_slice()[at..end].copy_from_slice(bytes);
        };
        let len = self.len().max(at + bytes.len());
        self.change(len, flat, |chunks| chunks.write(at, bytes, false));
    }

    /// Sets a bit (bit 0 is the highest of byte 0), growing as needed, and returns the old bit. The string
    /// becomes `raw`.
    pub fn set_bit(&mut self, at: u64, on: bool) -> bool {
        let (byte, mask) = ((at / 8) as usize, 0x80 >> (at % 8));
        let old = if byte < self.len() { self.as_ref().byte(byte) } else { 0 };
        let was = old & mask != 0;
        if byte >= self.len() && !on {
            let len = byte + 1;
            self.change(len, |flat| flat.resize(len), |chunks| chunks.resize(len));
        } else if was != on {
            self.write_at(byte, &[old ^ mask]);
        }
        was
    }

    /// Cuts the string down to `len` bytes, if it is longer.
    pub fn truncate(&mut self, len: usize) {
        if len == 0 {
            *self = Str::new();
        } else if len < self.len() {
            let mut owned = self.take();
            match &mut owned {
                Owned::Empty => {}
                Owned::Flat(flat) => flat.resize(len),
                Owned::Pair(pair) => {
                    let mut flat = flattened(pair, 0);
                    flat.resize(len);
                    owned = Owned::Flat(flat);
                }
                Owned::Chunked(arc) => arc.make_mut().resize(len),
            }
            *self = Str::put(owned);
        }
    }

    /// `int`, `embstr` or `raw`, as Redis would have it.
    pub fn encoding(&self) -> Enc {
        let raw = self.is_raw();
        match self.as_ref() {
            StrRef::Flat(bytes) if !raw => StrRef::Flat(bytes).encoding(),
            _ => Enc::Raw,
        }
    }

    /// Approximate bytes of everything the string owns, shared or not. O(1).
    pub fn mem_bytes(&self) -> usize {
        let outside = match (self.flat(), self.as_ref()) {
            (Some(flat), _) => flat.alloc_bytes(),
            (_, StrRef::Pair(pair)) => pair.alloc_bytes(),
            (_, StrRef::Chunked(chunked)) => chunked.mem_bytes(),
            _ => 0,
        };
        size_of::<Str>() + outside
    }

    /// The root and memory that this handle keeps alive. O(height).
    pub fn held(&self) -> Option<crate::Held> {
        if !self.is_chunked() {
            return None;
        }
        // SAFETY: only read while `self` is borrowed; the count is left alone.
        let owners = unsafe { ManuallyDrop::new(self.arc()) }.owners();
        let bytes = match self.as_ref() {
            StrRef::Chunked(chunked) => chunked.alone_bytes(),
            _ => self.mem_bytes(),
        };
        Some(crate::Held { root: self.raw.addr(), owners, bytes })
    }

    /// Panics if an invariant does not hold.
    pub fn check_invariants(&self) {
        match self.as_ref() {
            StrRef::Flat(bytes) => assert!(bytes.len() <= FLAT_MAX, "S1"),
            StrRef::Pair(pair) => assert!(pair.len() <= FLAT_MAX && !self.is_raw(), "S1, S3"),
            StrRef::Chunked(chunked) => chunked.check_invariants(),
        }
    }
}

/// The bytes of a pair in one buffer with room for so many.
fn flattened(pair: &Pair, room: usize) -> Flat {
    let (first, second) = pair.as_ref().parts();
    Flat::from_parts(first, second, room.saturating_sub(pair.as_ref().len()))
}

impl Default for Str {
    fn default() -> Str {
        Str::new()
    }
}

impl From<&[u8]> for Str {
    fn from(bytes: &[u8]) -> Str {
        Str::from_slice(bytes)
    }
}

impl Clone for Str {
    #[inline]
    fn clone(&self) -> Str {
        match (self.flat(), self.is_chunked()) {
            (Some(flat), _) => Str::put(Owned::Flat(flat.clone())),
            // SAFETY: the count of `self` is left alone: only the clone of the handle is kept.
            (None, true) => Str::put(Owned::Chunked(Arc::clone(&ManuallyDrop::new(unsafe { self.arc() })))),
            (None, false) => self.as_ref().to_str(),
        }
    }
}

impl Drop for Str {
    #[inline]
    fn drop(&mut self) {
        self.take();
    }
}

impl std::fmt::Debug for Str {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Str({} bytes, {:?})", self.len(), self.encoding())
    }
}

impl<'a> StrRef<'a> {
    /// Bytes. O(1).
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            StrRef::Flat(bytes) => bytes.len(),
            StrRef::Pair(pair) => pair.len(),
            StrRef::Chunked(chunked) => chunked.len(),
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that are stored, without the zeros of absent chunks. O(1).
    pub fn stored(&self) -> usize {
        match self {
            StrRef::Flat(bytes) => bytes.len(),
            StrRef::Pair(pair) => pair.len(),
            StrRef::Chunked(chunked) => chunked.stored(),
        }
    }

    /// Byte `i < len`.
    #[inline]
    pub fn byte(&self, i: usize) -> u8 {
        match self {
            StrRef::Flat(bytes) => bytes[i],
            StrRef::Pair(pair) => pair.run_at(i)[0],
            StrRef::Chunked(chunked) => {
                assert!(i < chunked.len());
                chunked.run_at(i).map_or(0, |bytes| bytes[0])
            }
        }
    }

    /// The bytes of a range, as far as they exist, piece by piece. Runs of bytes are not joined; a run of
    /// zeros may come in several pieces. O(1) per 4 KB, less where nothing is stored.
    pub fn runs(&self, range: Range<usize>) -> Runs<'a> {
        let end = range.end.min(self.len());
        Runs { of: *self, at: range.start.min(end), end }
    }

    /// Appends the bytes of a range, as far as they exist. O(n).
    pub fn copy_to(&self, range: Range<usize>, out: &mut Vec<u8>) {
        for run in self.runs(range) {
            match run {
                Run::Bytes(bytes) => out.extend_from_slice(bytes),
                Run::Zeros(n) => out.resize(out.len() + n as usize, 0),
            }
        }
    }

    /// All bytes. O(n).
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        self.copy_to(0..self.len(), &mut all);
        all
    }

    /// All bytes in one place, copied only if necessary.
    pub fn contiguous(&self) -> Cow<'a, [u8]> {
        match *self {
            StrRef::Flat(bytes) => Cow::Borrowed(bytes),
            StrRef::Pair(_) | StrRef::Chunked(_) => Cow::Owned(self.to_vec()),
        }
    }

    /// An owned string. It shares the chunks of a chunked one and the blocks of a pair in O(1). It copies a
    /// flat one (usually 16 KB at most).
    pub fn to_str(&self) -> Str {
        match *self {
            StrRef::Flat(bytes) => Str::from_slice(bytes),
            StrRef::Pair(pair) => Str::put(Owned::Pair(pair.to_owner())),
            StrRef::Chunked(chunked) => Str::put(Owned::Chunked(Arc::new(chunked.clone()))),
        }
    }

    /// The integer, if the text is one in canonical form.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            StrRef::Flat(bytes) => match Elem::parse(bytes) {
                Elem::Int(n) => Some(n),
                Elem::Bytes(_) => None,
            },
            StrRef::Chunked(chunked) if chunked.len() <= 20 => StrRef::Flat(&self.to_vec()).as_i64(),
            StrRef::Pair(_) | StrRef::Chunked(_) => None,
        }
    }

    /// Redis's name for the encoding of a string that was set as a whole.
    pub fn encoding(&self) -> Enc {
        match self {
            StrRef::Flat(_) if self.as_i64().is_some() => Enc::Int,
            StrRef::Flat(bytes) if bytes.len() <= EMBSTR_MAX => Enc::EmbStr,
            _ => Enc::Raw,
        }
    }
}

impl PartialEq<[u8]> for StrRef<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        let mut rest = other;
        self.len() == other.len()
            && self.runs(0..self.len()).all(|run| {
                let (part, later) = rest.split_at(run.len());
                rest = later;
                match run {
                    Run::Bytes(bytes) => bytes == part,
                    Run::Zeros(_) => part.iter().all(|&b| b == 0),
                }
            })
    }
}

impl Run<'_> {
    /// Bytes of the run; never 0.
    #[expect(clippy::len_without_is_empty, reason = "runs are not empty")]
    pub fn len(&self) -> usize {
        match self {
            Run::Bytes(bytes) => bytes.len(),
            Run::Zeros(n) => *n as usize,
        }
    }
}

/// The pieces of a range of a string.
#[derive(Clone)]
pub struct Runs<'a> {
    of: StrRef<'a>,
    at: usize,
    end: usize,
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Run<'a>> {
        if self.at >= self.end {
            return None;
        }
        let left = self.end - self.at;
        let run = match self.of {
            StrRef::Flat(bytes) => Run::Bytes(&bytes[self.at..self.end]),
            StrRef::Pair(pair) => {
                let bytes = pair.run_at(self.at);
                Run::Bytes(&bytes[..bytes.len().min(left)])
            }
            StrRef::Chunked(chunked) => match chunked.run_at(self.at) {
                Ok(bytes) => Run::Bytes(&bytes[..bytes.len().min(left)]),
                Err(zeros) => Run::Zeros(zeros.min(left) as u64),
            },
        };
        self.at += run.len();
        Some(run)
    }
}

#[cfg(test)]
mod tests;
