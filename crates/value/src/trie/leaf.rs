//! A leaf: up to some hundred entries packed into one allocation, found by one-byte tags.
//!
//! ```text
//! width 0:  [head 16][tags: slots × 1][offsets: slots × 2][entries ... ·dead· ... | free]
//! width w:  [head 16][tags: slots × 1][entries: slots × w]
//! ```
//!
//! A tag is the low byte of the entry's hash. A look-up compares sixteen tags at once, and then the few
//! entries whose tags agree. `remove` keeps the order of the others, so a flat value (one leaf) lists its
//! entries in order of insertion. Tries have no such order and use `swap_remove`.
//!
//! - L1: `len <= slots`; `offsets[i]` is the start of entry i, counted from the block's start. Entries do not
//!   overlap and are below `end <= size`; `dead` bytes below `end` belong to no entry.
//! - L2: width > 0 only for integers, and then nothing is owned outside the leaf and `dead` is 0.
//! - L3: the block is at least 32 bytes. Tags can be read in steps of sixteen, or 64 at once if there are
//!   more than 32. So every byte below `16 + 64·⌈slots/64⌉` inside the block has been written.
//! - L4: flag `OWNS` is set if any entry owns a Blob, `EXPIRES` if any has an expiry (they may stay set too
//!   long).
//!
//! Cost: every function is O(len) at worst; the callers limit len to a few kilobytes. A `Leaf` is a bare
//! handle without `Drop`: its holder is responsible for the count.

use super::LEAF_BYTES;
use super::kind::{EntryKind, MAX_ENTRY, NEVER};
use crate::arc::Count;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

#[repr(C, align(8))]
struct Head {
    count: Count,
    len: u16,
    slots: u16,
    end: u16,
    size: u16,
    dead: u16,
    width: u8,
    flags: u8,
}

const HEAD: usize = 16;
const _: () = assert!(size_of::<Head>() == HEAD);

const OWNS: u8 = 1;
const EXPIRES: u8 = 2;
/// The upper four flag bits belong to the owner of a flat value.
const USER_SHIFT: u8 = 4;
/// Size above all leaves: only thousands of keys with the same 64-bit hash could reach it.
const SIZE_MAX: usize = 60_000;
const _: () = assert!(2 * (LEAF_BYTES + MAX_ENTRY) < SIZE_MAX);

/// A bare handle of a leaf.
pub struct Leaf<K> {
    head: NonNull<Head>,
    kind: PhantomData<fn(K)>,
}

impl<K> Clone for Leaf<K> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Leaf<K> {}

impl<K> PartialEq for Leaf<K> {
    fn eq(&self, other: &Self) -> bool {
        self.head == other.head
    }
}

impl<K: EntryKind> Leaf<K> {
    /// An empty leaf with room for `slots` entries of `bytes` bytes together.
    pub(crate) fn with_room(width: u8, slots: usize, bytes: usize) -> Leaf<K> {
        let (size, slots) = plan(width, slots, bytes);
        assert!(size <= SIZE_MAX, "thousands of keys share one 64-bit hash");
        let layout = Self::layout(size);
        // SAFETY: size >= 32, and L3: tags and what a tag search may read beyond them are zeroed inside the
        // block.
        unsafe {
            let Some(block) = NonNull::new(alloc(layout)) else { handle_alloc_error(layout) };
            let end = HEAD + slots * if width == 0 { 3 } else { 1 };
            block.cast::<Head>().write(Head {
                count: Count::one(),
                len: 0,
                slots: slots as u16,
                end: end as u16,
                size: size as u16,
                dead: 0,
                width,
                flags: 0,
            });
            block.add(HEAD).write_bytes(0, slots.next_multiple_of(64).min(size - HEAD));
            Leaf { head: block.cast(), kind: PhantomData }
        }
    }

    fn layout(size: usize) -> Layout {
        // SAFETY: 8 is a power of two and sizes are far below the limit.
        unsafe { Layout::from_size_align_unchecked(size, 8) }
    }

    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: the holder of the handle keeps the block alive.
        unsafe { self.head.as_ref() }
    }

    #[inline]
    fn head_mut(&mut self) -> &mut Head {
        debug_assert!(self.unique());
        // SAFETY: callers change leaves of one owner only.
        unsafe { self.head.as_mut() }
    }

    #[inline]
    fn start(&self) -> *mut u8 {
        self.head.as_ptr().cast()
    }

    #[inline]
    fn tags(&self) -> *mut u8 {
        // SAFETY: inside the block.
        unsafe { self.start().add(HEAD) }
    }

    #[inline]
    fn offsets(&self) -> *mut u16 {
        // SAFETY: inside the block; slots is even for width 0, so the offsets are aligned.
        unsafe { self.tags().add(self.head().slots as usize).cast() }
    }

    /// The address of entry `i`.
    #[inline]
    fn at(&self, i: usize) -> *mut u8 {
        let head = self.head();
        debug_assert!(i < head.slots as usize);
        // SAFETY: L1.
        unsafe {
            match head.width {
                0 => self.start().add(*self.offsets().add(i) as usize),
                width => self.tags().add(head.slots as usize + i * width as usize),
            }
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.head().len as usize
    }

    #[inline]
    pub(crate) fn width(&self) -> u8 {
        self.head().width
    }

    /// Bytes of the allocation.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.head().size as usize
    }

    /// Bytes of the living entries.
    #[inline]
    pub(crate) fn live(&self) -> usize {
        let head = self.head();
        match head.width {
            0 => head.end as usize - HEAD - 3 * head.slots as usize - head.dead as usize,
            width => head.len as usize * width as usize,
        }
    }

    #[inline]
    pub(crate) fn unique(&self) -> bool {
        self.head().count.unique()
    }

    #[inline]
    pub(crate) fn retain(&self) {
        self.head().count.retain();
    }

    /// The owner's four bits.
    #[inline]
    pub(crate) fn user(&self) -> u8 {
        self.head().flags >> USER_SHIFT
    }

    /// Sets the owner's four bits of an unshared leaf.
    #[inline]
    pub(crate) fn set_user(&mut self, user: u8) {
        let head = self.head_mut();
        head.flags = head.flags & ((1 << USER_SHIFT) - 1) | user << USER_SHIFT;
    }

    /// The pointer, aligned to 8.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<u8> {
        self.head.cast()
    }

    /// # Safety
    /// From `into_raw` of the same kind, of a leaf that lives.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<u8>) -> Leaf<K> {
        Leaf { head: raw.cast(), kind: PhantomData }
    }

    /// The entry at `i`.
    ///
    /// # Safety
    /// The leaf lives unchanged for `'a`.
    #[inline]
    pub(crate) unsafe fn entry<'a>(&self, i: usize) -> K::Entry<'a> {
        debug_assert!(i < self.len());
        // SAFETY: L1 and the caller's.
        unsafe { K::read(self.at(i), self.width()) }
    }

    #[inline]
    pub(crate) fn tag(&self, i: usize) -> u8 {
        debug_assert!(i < self.len());
        // SAFETY: L1.
        unsafe { *self.tags().add(i) }
    }

    /// The index of the key's entry. `tag` is the low byte of its hash.
    #[inline]
    pub(crate) fn find(&self, tag: u8, key: K::Key<'_>) -> Option<usize> {
        let len = self.len();
        let mut base = 0;
        loop {
            let left = len - base;
            // SAFETY: L3: an entry takes at least four bytes with its tag. So any block has sixteen tags, 32
            // with more than 16 entries, 64 with more than 32. Few cases, so that the processor predicts
            // them.
            let hits = unsafe {
                let tags = self.tags().add(base);
                match left {
                    0..=16 => u64::from(super::tags::equal(tags, tag)),
                    17..=32 => super::tags::equal_32(tags, tag),
                    _ => super::tags::equal_64(tags, tag),
                }
            };
            let hits = if left < 64 { hits & ((1 << left) - 1) } else { hits };
            if let Some(i) = self.first_match(base, hits, key) {
                return Some(i);
            }
            if left <= 64 {
                return None;
            }
            base += 64;
        }
    }

    /// The first entry with the key, among those from `base` on with a bit in `hits`.
    #[inline]
    fn first_match(&self, base: usize, mut hits: u64, key: K::Key<'_>) -> Option<usize> {
        while hits != 0 {
            let i = base + hits.trailing_zeros() as usize;
            // SAFETY: L1.
            if unsafe { K::matches(self.at(i), self.width(), key) } {
                return Some(i);
            }
            hits &= hits - 1;
        }
        None
    }

    /// The hash of entry `i`'s key.
    #[inline]
    pub(crate) fn hash(&self, i: usize) -> u64 {
        // SAFETY: read for this moment only.
        K::hash(K::key(unsafe { self.entry(i) }))
    }

    /// Asks the processor to fetch the leaf's beginning: header, tags, offsets.
    #[inline]
    pub(crate) fn prefetch(&self) {
        (0..256).step_by(64).for_each(|line| super::tags::prefetch(self.start().wrapping_add(line)));
    }

    /// The soonest expiry of the entries.
    pub(crate) fn soonest(&self) -> u64 {
        if self.head().flags & EXPIRES == 0 {
            return NEVER;
        }
        // SAFETY: L1; kinds with expiry have width 0.
        (0..self.len()).map(|i| unsafe { K::expiry(self.at(i)) }).fold(NEVER, u64::min)
    }

    /// The time of entry `i`'s expiry.
    #[inline]
    pub(crate) fn expiry(&self, i: usize) -> u64 {
        if self.head().flags & EXPIRES == 0 {
            return NEVER;
        }
        // SAFETY: L1.
        unsafe { K::expiry(self.at(i)) }
    }

    /// Bytes outside the leaf that its entries own.
    pub(crate) fn heap(&self) -> usize {
        if self.head().flags & OWNS == 0 {
            return 0;
        }
        // SAFETY: L1, L2.
        (0..self.len()).map(|i| unsafe { K::heap(self.at(i)) }).sum()
    }

    /// Bytes outside the leaf that entry `i` owns.
    #[inline]
    pub(crate) fn heap_of(&self, i: usize) -> usize {
        if self.head().flags & OWNS == 0 {
            return 0;
        }
        // SAFETY: L1, L2.
        unsafe { K::heap(self.at(i)) }
    }

    /// Number of owners at this moment.
    pub fn owners(&self) -> usize {
        self.head().count.owners()
    }

    /// Gives one count back and frees the leaf if it was the last.
    pub(crate) fn release(self) {
        if self.head().count.release() {
            self.free(true);
        }
    }

    /// Frees the block, and the entries' Blobs if `with_entries`.
    fn free(self, with_entries: bool) {
        if with_entries && self.head().flags & OWNS != 0 {
            for i in 0..self.len() {
                // SAFETY: L1; the leaf is not read any more.
                unsafe { K::release(self.at(i)) };
            }
        }
        // SAFETY: allocated with this layout; the last handle is gone.
        unsafe { dealloc(self.start(), Self::layout(self.size())) };
    }

    /// Ends this handle after all its entries' bytes were copied elsewhere. Their counts move along if this
    /// was the only handle; otherwise they are doubled.
    fn end_after_copy(self) {
        if self.unique() {
            return self.free(false);
        }
        if self.head().flags & OWNS != 0 {
            for i in 0..self.len() {
                // SAFETY: L1, L2; the copy's count (C2).
                unsafe { K::retain(self.at(i)) };
            }
        }
        self.release();
    }

    /// Appends a copy of another leaf's entry: its bytes, with the count they own.
    fn push_copy(&mut self, from: &Leaf<K>, i: usize) {
        let (len, width) = (self.len(), self.width());
        debug_assert!(len < self.head().slots as usize);
        // SAFETY: the builder reserved the room. Equal widths are copied as bytes; else the source is an
        // integer leaf, whose entries own nothing (L2) and are written anew.
        unsafe {
            *self.tags().add(len) = from.tag(i);
            if width == 0 {
                let end = self.head().end;
                let to = self.start().add(end as usize);
                let size = if from.width() == 0 {
                    let size = K::extent(from.at(i));
                    to.copy_from_nonoverlapping(from.at(i), size);
                    size
                } else {
                    let entry = from.entry(i);
                    K::write(entry, 0, to);
                    K::size(entry, 0)
                };
                *self.offsets().add(len) = end;
                self.head_mut().end += size as u16;
            } else if width == from.width() {
                self.at(len).copy_from_nonoverlapping(from.at(i), width as usize);
            } else {
                K::write(from.entry(i), width, self.at(len));
            }
        }
        let flags = from.head().flags & (OWNS | EXPIRES);
        let head = self.head_mut();
        head.len += 1;
        head.flags |= flags;
    }

    /// Bytes entry `i` will take in a leaf of that width.
    fn size_in(&self, i: usize, width: u8) -> usize {
        match (width, self.width()) {
            // SAFETY: L1.
            (0, 0) => unsafe { K::extent(self.at(i)) },
            // SAFETY: read for this moment only.
            (0, _) => K::size(unsafe { self.entry(i) }, 0),
            (width, _) => width as usize,
        }
    }

    /// Replaces this leaf by an unshared one of that width with room for `slots` more entries of `bytes`
    /// bytes.
    fn rebuild(&mut self, width: u8, slots: usize, bytes: usize) {
        let old = *self;
        let live = match width == old.width() {
            true => old.live(),
            false => (0..old.len()).map(|i| old.size_in(i, width)).sum(),
        };
        let mut new = Leaf::with_room(width, old.len() + slots, live + bytes);
        if width == old.width() && (width != 0 || old.head().dead == 0) {
            new.copy_all(&old);
        } else {
            (0..old.len()).for_each(|i| new.push_copy(&old, i));
        }
        new.head_mut().flags = old.head().flags;
        old.end_after_copy();
        *self = new;
    }

    /// Copies a leaf of the same width without dead bytes into this empty one, in three copies.
    fn copy_all(&mut self, from: &Leaf<K>) {
        let (len, live) = (from.len(), from.live());
        // SAFETY: the room was reserved; the two blocks are different. Offsets move by the difference of the
        // places where the entries begin.
        unsafe {
            self.tags().copy_from_nonoverlapping(from.tags(), len);
            if self.width() == 0 {
                let (to, source) = (self.head().end, (HEAD + 3 * from.head().slots as usize) as u16);
                for i in 0..len {
                    *self.offsets().add(i) = (*from.offsets().add(i)).wrapping_sub(source).wrapping_add(to);
                }
                self.start()
                    .add(to as usize)
                    .copy_from_nonoverlapping(from.start().add(source as usize), live);
                self.head_mut().end = to + live as u16;
            } else {
                let to = self.tags().add(self.head().slots as usize);
                to.copy_from_nonoverlapping(from.tags().add(from.head().slots as usize), live);
            }
        }
        self.head_mut().len = len as u16;
    }

    /// Makes the leaf unshared.
    pub(crate) fn own(&mut self) {
        if !self.unique() {
            self.rebuild(self.width(), 0, 0);
        }
    }

    /// Inserts an entry before index `i`. Its key is not in the leaf. The handle changes if the leaf has to
    /// grow or was shared.
    pub(crate) fn insert(&mut self, i: usize, entry: K::Entry<'_>, tag: u8) {
        let width = self.joint_width(entry);
        let size = K::size(entry, width);
        let head = self.head();
        let room = match width {
            0 => head.end as usize + size <= head.size as usize,
            _ => true,
        };
        if !room || width != head.width || head.len == head.slots || !self.unique() {
            self.rebuild(width, 1, size);
        }
        let len = self.len();
        // SAFETY: there is room for one more tag, offset and entry (L1).
        unsafe {
            open(self.tags(), i, len);
            *self.tags().add(i) = tag;
            if width == 0 {
                let end = self.head().end;
                open(self.offsets(), i, len);
                *self.offsets().add(i) = end;
                self.head_mut().end = end + size as u16;
            } else {
                let at = self.at(i);
                std::ptr::copy(at, at.add(width as usize), (len - i) * width as usize);
            }
            K::write(entry, width, self.at(i));
        }
        self.head_mut().len += 1;
        self.note_flags(entry, i);
    }

    /// The width the leaf needs to hold this entry too.
    #[inline]
    pub(crate) fn joint_width(&self, entry: K::Entry<'_>) -> u8 {
        let (own, its) = (self.width(), K::width(entry));
        match self.len() {
            0 => its,
            _ if own == 0 || its == 0 => 0,
            _ => own.max(its),
        }
    }

    fn note_flags(&mut self, entry: K::Entry<'_>, i: usize) {
        let mut flags = 0;
        if K::heap_size(entry) > 0 {
            flags |= OWNS;
        }
        // SAFETY: L1.
        if self.width() == 0 && unsafe { K::expiry(self.at(i)) } != NEVER {
            flags |= EXPIRES;
        }
        if flags != 0 {
            self.head_mut().flags |= flags;
        }
    }

    /// Removes entry `i`; the others keep their order. The handle changes if the leaf shrinks or was shared.
    pub(crate) fn remove(&mut self, i: usize) {
        self.own();
        self.give_up(i);
        let len = self.len();
        // SAFETY: L1; the entry is not read afterwards.
        unsafe {
            match self.width() as usize {
                0 => close(self.offsets(), i, len),
                width => std::ptr::copy(self.at(i).add(width), self.at(i), (len - i - 1) * width),
            }
            close(self.tags(), i, len);
        }
        self.lessen();
    }

    /// Removes entry `i`; the last one takes its index. The handle changes if the leaf shrinks or was shared.
    pub(crate) fn swap_remove(&mut self, i: usize) {
        self.own();
        self.give_up(i);
        let last = self.len() - 1;
        // SAFETY: L1; the entry is not read afterwards.
        unsafe {
            match self.width() as usize {
                0 => *self.offsets().add(i) = *self.offsets().add(last),
                width => std::ptr::copy(self.at(last), self.at(i), width),
            }
            *self.tags().add(i) = *self.tags().add(last);
        }
        self.lessen();
    }

    /// Releases the Blobs of entry `i` and, in leaves without width, its bytes.
    #[inline]
    fn give_up(&mut self, i: usize) {
        debug_assert!(i < self.len());
        if self.width() != 0 {
            return;
        }
        // SAFETY: L1; the entry is not read afterwards.
        unsafe {
            let at = self.at(i);
            let size = K::extent(at);
            if self.head().flags & OWNS != 0 {
                K::release(at);
            }
            self.bury(i, size);
        }
    }

    /// Counts one entry less. A leaf with much more room than it needs gets a smaller block.
    #[inline]
    fn lessen(&mut self) {
        self.head_mut().len -= 1;
        let tight = needed(self.width(), self.len(), self.live());
        if self.size() > 64 && tight + tight / 2 < self.size() {
            self.rebuild(self.width(), 0, 0);
        }
    }

    /// Marks the bytes of entry `i` as dead.
    fn bury(&mut self, i: usize, size: usize) {
        // SAFETY: L1.
        let offset = unsafe { *self.offsets().add(i) };
        let head = self.head_mut();
        match offset + size as u16 == head.end {
            true => head.end = offset,
            false => head.dead += size as u16,
        }
    }

    /// Writes an entry with the same key over entry `i`. The handle changes if the leaf has to grow or was
    /// shared.
    pub(crate) fn replace(&mut self, i: usize, entry: K::Entry<'_>) {
        debug_assert!(self.joint_width(entry) == self.width());
        self.own();
        if self.head().flags & OWNS != 0 {
            // SAFETY: L1; the bytes are overwritten or buried before the next read.
            unsafe { K::release(self.at(i)) };
        }
        let width = self.width();
        let at = self.place_for(i, K::size(entry, width));
        // SAFETY: `place_for` gave that many bytes.
        unsafe { K::write(entry, width, at) };
        self.note_flags(entry, i);
    }

    /// Replaces the bytes of entry `i` by others that own the same Blobs. The handle may change.
    pub(crate) fn rewrite(&mut self, i: usize, bytes: &[u8]) {
        self.own();
        let at = self.place_for(i, bytes.len());
        // SAFETY: `place_for` gave that many bytes.
        unsafe {
            at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            if K::expiry(at) != NEVER {
                self.head_mut().flags |= EXPIRES;
            }
        }
    }

    /// The stored bytes of entry `i` (width 0).
    pub(crate) fn raw(&self, i: usize) -> &[u8] {
        debug_assert!(i < self.len() && self.width() == 0);
        // SAFETY: L1.
        unsafe { std::slice::from_raw_parts(self.at(i), K::extent(self.at(i))) }
    }

    /// Finds `size` bytes for new contents of entry `i`, whose old bytes are lost.
    fn place_for(&mut self, i: usize, size: usize) -> *mut u8 {
        // SAFETY: L1.
        let old = if self.width() == 0 { unsafe { K::extent(self.at(i)) } } else { size };
        if old == size {
            return self.at(i);
        }
        if self.head().end as usize + size > self.size() {
            self.rebuild(0, 0, size);
        }
        self.bury(i, old);
        let head = self.head_mut();
        let offset = head.end;
        head.end += size as u16;
        // SAFETY: L1: inside the block, checked above.
        unsafe {
            *self.offsets().add(i) = offset;
            self.start().add(offset as usize)
        }
    }

    /// Divides the entries by one bit of their hash: (zero, one). Ends this handle.
    pub(crate) fn split(self, bit: u32) -> (Leaf<K>, Leaf<K>) {
        let (len, width) = (self.len(), self.width());
        let mut side = smallvec::SmallVec::<[bool; 128]>::with_capacity(len);
        let mut room = [(0, 0); 2];
        for i in 0..len {
            let one = self.hash(i) >> bit & 1 == 1;
            side.push(one);
            let (slots, bytes) = &mut room[usize::from(one)];
            *slots += 1;
            *bytes += self.size_in(i, width);
        }
        let mut halves = room.map(|(slots, bytes)| Leaf::with_room(width, slots, bytes));
        for (i, one) in side.into_iter().enumerate() {
            halves[usize::from(one)].push_copy(&self, i);
        }
        self.end_after_copy();
        let [zero, one] = halves;
        (zero, one)
    }

    /// One leaf with the entries of all. Ends these handles.
    pub(crate) fn merge(leaves: &[Leaf<K>]) -> Leaf<K> {
        let full = || leaves.iter().filter(|leaf| leaf.len() > 0);
        let narrow = full().any(|leaf| leaf.width() == 0);
        let width = if narrow { 0 } else { full().map(|leaf| leaf.width()).max().unwrap_or(0) };
        let slots = full().map(|leaf| leaf.len()).sum();
        let bytes = full().map(|leaf| (0..leaf.len()).map(|i| leaf.size_in(i, width)).sum::<usize>()).sum();
        let mut merged = Leaf::with_room(width, slots, bytes);
        for &leaf in leaves {
            (0..leaf.len()).for_each(|i| merged.push_copy(&leaf, i));
            leaf.end_after_copy();
        }
        merged
    }

    /// Brings a leaf of fixed width into the kind's order.
    pub(crate) fn sort(&mut self) {
        if self.width() == 0 {
            return;
        }
        let mut order: Vec<usize> = (0..self.len()).collect();
        // SAFETY: read for this moment only.
        let before = |a: usize, b: usize| unsafe { K::before(self.entry(a), self.entry(b)) };
        order.sort_by(|&a, &b| match before(a, b) {
            true => std::cmp::Ordering::Less,
            false if a == b => std::cmp::Ordering::Equal,
            false => std::cmp::Ordering::Greater,
        });
        let mut sorted = Leaf::with_room(self.width(), self.len(), self.live());
        order.into_iter().for_each(|i| sorted.push_copy(self, i));
        sorted.head_mut().flags = self.head().flags;
        self.end_after_copy();
        *self = sorted;
    }

    /// The index for a new entry: the end, or in leaves of fixed width its position in the kind's order.
    pub(crate) fn place_in_order(&self, entry: K::Entry<'_>) -> usize {
        if self.width() == 0 || K::width(entry) == 0 {
            return self.len();
        }
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            // SAFETY: read for this moment only.
            match K::before(unsafe { self.entry(middle) }, entry) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Asserts L1 to L4 and that every tag is its entry's.
    pub(crate) fn check_invariants(&self) {
        let head = self.head();
        assert!(head.len <= head.slots && head.end <= head.size && head.size >= 32);
        let mut extents = Vec::new();
        for i in 0..self.len() {
            assert_eq!(self.tag(i), self.hash(i) as u8);
            let offset = self.at(i) as usize - self.start() as usize;
            extents.push((offset, self.size_in(i, self.width())));
            if head.flags & OWNS == 0 && head.width == 0 {
                // SAFETY: L1.
                assert_eq!(unsafe { K::heap(self.at(i)) }, 0);
            }
            if head.flags & EXPIRES == 0 && head.width == 0 {
                // SAFETY: L1.
                assert_eq!(unsafe { K::expiry(self.at(i)) }, NEVER);
            }
        }
        extents.sort_unstable();
        assert!(extents.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert_eq!(extents.iter().map(|e| e.1).sum::<usize>(), self.live());
        let end = if head.width == 0 { head.end as usize } else { head.size as usize };
        assert!(extents.last().is_none_or(|&(offset, size)| offset + size <= end));
    }
}

/// Bytes a leaf needs at least.
fn needed(width: u8, slots: usize, bytes: usize) -> usize {
    HEAD + match width {
        0 => slots.next_multiple_of(2) * 3 + bytes,
        width => slots * (1 + width as usize),
    }
}

/// Size of the block for `slots` entries of `bytes` bytes, and the number of slots that fit if the rest is
/// divided alike.
fn plan(width: u8, slots: usize, bytes: usize) -> (usize, usize) {
    let needed = needed(width, slots, bytes);
    let size = size_class(needed.max(32));
    let slots = match width {
        0 => {
            let average = bytes.checked_div(slots).unwrap_or(13);
            (slots.next_multiple_of(2) + (size - needed) / (average + 3)) & !1
        }
        width => (size - HEAD) / (1 + width as usize),
    };
    (size, slots)
}

/// The size the allocator would round up to: steps of 16, then four steps per doubling.
fn size_class(size: usize) -> usize {
    match size {
        0..=128 => size.next_multiple_of(16),
        _ => size.next_multiple_of(1 << ((size - 1).ilog2() - 2)),
    }
}

/// # Safety
/// `len + 1` items at `items`, `i <= len`.
#[inline]
unsafe fn open<T>(items: *mut T, i: usize, len: usize) {
    // SAFETY: the caller's.
    unsafe { std::ptr::copy(items.add(i), items.add(i + 1), len - i) }
}

/// # Safety
/// `len` items at `items`, `i < len`.
#[inline]
unsafe fn close<T>(items: *mut T, i: usize, len: usize) {
    // SAFETY: the caller's.
    unsafe { std::ptr::copy(items.add(i + 1), items.add(i), len - i - 1) }
}
