//! The packed leaf: up to 256 entries, each a few bytes and a four-bit tag, in one allocation of about 2 KB.
//!
//! ```text
//!            ┌ start            ┌ end          ┌ cap - 2·len                   ┌ cap
//! [ head 16 | (room) e0 e1 e2 … | (room)       | slot(len-1) … slot 1  slot 0 ]
//!                    ▲  ▲
//!   slot i = tag << 12 | position of e(i); e(i) ends where e(i+1) starts, the last one at `end`
//! ```
//!
//! Any entry is found without scanning, for two bytes each. Entries can be added at both ends without moving
//! data. An insertion in the middle moves the shorter side if there is room for it.
//!
//! - L1: positions ascend with the index, `start = position of e(0) <= … <= end <= cap - 2·len`, `cap <
//!   4096`.
//! - L2: an entry whose tag has [`BIG`] ends in an 8-byte pointer that owns one count of a [`Blob`]; `bigs`
//!   counts them.
//! - L3: everything but the count changes only while there is exactly one owner.
//!
//! Cost: reading an entry takes two loads; insert and remove a memmove of at most 4 KB, usually one of half a
//! leaf.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::{ManuallyDrop, size_of};
use std::ops::Range;
use std::ptr::{NonNull, copy, copy_nonoverlapping};

use crate::arc::{Blob, Count};

/// Tag bit: the last eight bytes of the entry are an owned [`Blob`] (L2).
pub const BIG: u8 = 8;

/// Entries per leaf, at most.
pub const MAX_LEN: usize = 256;

/// Usable bytes of the largest leaf (L1).
pub const MAX_CAP: usize = 4080;

#[repr(C)]
pub(crate) struct Head {
    pub count: Count,
    /// 0 in leaves; the same place holds the height in inner nodes.
    pub height: u8,
    pub flags: u8,
    len: u16,
    start: u16,
    end: u16,
    cap: u16,
    bigs: u16,
}

const HEAD: usize = size_of::<Head>();
const POS: u16 = 0x0fff;

/// An owner of a leaf. Clone: one atomic increment.
#[repr(transparent)]
pub struct Leaf(NonNull<Head>);

// SAFETY: entries are plain bytes and blobs, which are Send and Sync; changes need sole ownership (L3).
unsafe impl Send for Leaf {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Leaf {}

/// A stored entry, borrowed from its leaf.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    pub tag: u8,
    pub bytes: &'a [u8],
}

impl<'a> Entry<'a> {
    #[inline]
    pub fn is_big(&self) -> bool {
        self.tag & BIG != 0
    }

    /// The bytes in front of the pointer and the bytes it points to.
    ///
    /// Call it on entries with [`BIG`] only.
    #[inline]
    pub fn big(&self) -> (&'a [u8], &'a [u8]) {
        assert!(self.is_big());
        let (head, pointer) = self.bytes.split_at(self.bytes.len() - 8);
        // SAFETY: the entry owns a count of this blob (L2) and is borrowed for 'a, so the blob lives that
        // long.
        let bytes = unsafe {
            let blob = ManuallyDrop::new(read_blob(pointer.as_ptr()));
            std::slice::from_raw_parts(blob.as_ptr(), blob.len())
        };
        (head, bytes)
    }
}

/// An entry to be stored: `head`, then `tail` or, for long tails, a pointer to a copy of it.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    /// Without [`BIG`].
    pub tag: u8,
    pub head: &'a [u8],
    pub tail: &'a [u8],
    /// The weight that its kind will give the entry.
    pub weight: u64,
}

impl Item<'_> {
    #[inline]
    fn is_big(&self) -> bool {
        self.tail.len() > crate::elem::INLINE_MAX
    }

    /// Bytes it takes inside a leaf, with its slot.
    #[inline]
    pub fn space(&self) -> usize {
        2 + self.head.len() + if self.is_big() { 8 } else { self.tail.len() }
    }

    #[inline]
    fn tag(&self) -> u8 {
        if self.is_big() { self.tag | BIG } else { self.tag }
    }

    /// # Safety
    /// `to` has room for `space() - 2` bytes, used only here. The written entry owns its blob.
    #[inline]
    unsafe fn write(&self, to: *mut u8) {
        // SAFETY: promised by the caller.
        unsafe {
            copy_nonoverlapping(self.head.as_ptr(), to, self.head.len());
            let to = to.add(self.head.len());
            if self.is_big() {
                let raw = Blob::new(self.tail).into_raw();
                to.cast::<usize>().write_unaligned(raw.as_ptr().expose_provenance());
            } else {
                copy_nonoverlapping(self.tail.as_ptr(), to, self.tail.len());
            }
        }
    }
}

/// # Safety
/// `at` points to the eight bytes of a big entry's pointer; the result takes over (or must not drop) its
/// count.
unsafe fn read_blob(at: *const u8) -> Blob {
    // SAFETY: the eight bytes were written by `Item::write` or copied from there.
    unsafe {
        let raw = std::ptr::with_exposed_provenance_mut(at.cast::<usize>().read_unaligned());
        Blob::from_raw(NonNull::new_unchecked(raw))
    }
}

impl Leaf {
    /// An empty leaf with room for `space` bytes of entries and slots.
    pub fn with_space(space: usize) -> Leaf {
        let cap = cap_for(space);
        let layout = layout(cap);
        // SAFETY: the layout is not empty and begins with the header.
        unsafe {
            let Some(head) = NonNull::new(alloc(layout).cast::<Head>()) else { handle_alloc_error(layout) };
            let cap = cap as u16;
            head.write(Head {
                count: Count::one(),
                height: 0,
                flags: 0,
                len: 0,
                start: 0,
                end: 0,
                cap,
                bigs: 0,
            });
            Leaf(head)
        }
    }

    /// An empty leaf like `with_space`, with its room for data in front: for entries of about `bytes` bytes,
    /// each added in front of the last.
    pub fn with_room_in_front(space: usize, bytes: usize) -> Leaf {
        let mut leaf = Leaf::with_space(space);
        let head = leaf.head_mut();
        // Each entry takes two bytes of the rest for its slot. The first one is written behind this middle.
        let front = (head.cap as usize - bytes - 2) * bytes / (bytes + 2);
        (head.start, head.end) = (front as u16, front as u16);
        leaf
    }

    /// The handle as a pointer, for [`Leaf::from_raw`].
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<Head> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    /// # Safety
    /// `raw` came from [`Leaf::into_raw`] and is given back only once.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<Head>) -> Leaf {
        Leaf(raw)
    }

    #[inline]
    pub(crate) fn head(&self) -> &Head {
        // SAFETY: the header lives as long as any owner.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn head_mut(&mut self) -> &mut Head {
        debug_assert!(self.is_unique());
        // SAFETY: all callers are sole owners (L3).
        unsafe { self.0.as_mut() }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.head().len as usize
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn is_unique(&self) -> bool {
        self.head().count.unique()
    }

    #[inline]
    pub fn has_bigs(&self) -> bool {
        self.head().bigs > 0
    }

    /// Bytes of entries and slots.
    #[inline]
    pub fn used(&self) -> usize {
        let head = self.head();
        (head.end - head.start) as usize + 2 * head.len as usize
    }

    /// Bytes of the allocation.
    pub fn alloc_bytes(&self) -> usize {
        HEAD + self.head().cap as usize
    }

    #[inline]
    fn data(&self) -> *mut u8 {
        // SAFETY: the data start right behind the header.
        unsafe { self.0.as_ptr().cast::<u8>().add(HEAD) }
    }

    /// Address of slot `i`; `i` may be `len` (the place of the next one).
    #[inline]
    fn slot_at(&self, i: usize) -> *mut u16 {
        debug_assert!(i <= self.len() && 2 * (i + 1) <= self.head().cap as usize);
        // SAFETY: slots are counted down from the end of the allocation, inside it (L1).
        unsafe { self.data().add(self.head().cap as usize - 2 * (i + 1)).cast() }
    }

    #[inline]
    fn slot(&self, i: usize) -> u16 {
        assert!(i < self.len());
        // SAFETY: slots below `len` are initialised.
        unsafe { self.slot_at(i).read() }
    }

    /// Position of entry `i`, or the end of the data for `i = len`.
    #[inline]
    fn position(&self, i: usize) -> usize {
        if i == self.len() { self.head().end as usize } else { (self.slot(i) & POS) as usize }
    }

    /// Entry `i < len`.
    #[inline]
    pub fn entry(&self, i: usize) -> Entry<'_> {
        let slot = self.slot(i);
        let (from, to) = ((slot & POS) as usize, self.position(i + 1));
        debug_assert!(from <= to && to <= self.head().end as usize);
        // SAFETY: [from, to) lies within the initialised data (L1).
        let bytes = unsafe { std::slice::from_raw_parts(self.data().add(from), to - from) };
        Entry { tag: (slot >> 12) as u8, bytes }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Entry<'_>> {
        (0..self.len()).map(|i| self.entry(i))
    }

    /// Whether `space` more fits into a leaf of at most `max` bytes of entries and slots, and [`MAX_LEN`]
    /// entries.
    #[inline]
    pub fn fits(&self, space: usize, max: usize) -> bool {
        self.used() + space <= max && self.len() < MAX_LEN
    }

    /// Makes this handle the sole owner, with `extra` bytes of room if it has to copy.
    #[inline]
    pub fn make_unique(&mut self, extra: usize) {
        if !self.is_unique() {
            let mut copy = self.copy_range(0..self.len(), extra);
            copy.head_mut().flags = self.head().flags;
            *self = copy;
        }
    }

    /// A new leaf with the entries of `range`, and room for `extra` bytes more.
    pub fn copy_range(&self, range: Range<usize>, extra: usize) -> Leaf {
        let (from, to) = (self.position(range.start), self.position(range.end));
        let mut copy = Leaf::with_space((to - from + 2 * range.len() + extra).min(MAX_CAP));
        copy.append(self, range);
        copy
    }

    /// Appends the entries `range` of `other`. Sole owner; the sum fits into a leaf.
    pub fn append(&mut self, other: &Leaf, range: Range<usize>) {
        let (from, to) = (other.position(range.start), other.position(range.end));
        let (len, bytes) = (self.len(), to - from);
        if self.gap() < bytes + 2 * range.len() {
            self.regrow(bytes + 2 * range.len(), 0, 16);
        }
        let end = self.head().end as usize;
        // SAFETY: sole owner (L3), `regrow` made room for the bytes and slots; `other` is another leaf.
        unsafe {
            copy_nonoverlapping(other.data().add(from), self.data().add(end), bytes);
            let slots = self.data().add(self.head().cap as usize - 2 * (len + range.len())).cast::<u16>();
            if !range.is_empty() {
                copy_nonoverlapping(other.slot_at(range.end - 1), slots, range.len());
            }
            let slots = std::slice::from_raw_parts_mut(slots, range.len());
            shift(slots, end.wrapping_sub(from) as u16);
        }
        let head = self.head_mut();
        head.end += bytes as u16;
        head.len += range.len() as u16;
        if other.has_bigs() {
            self.retain_bigs(len..len + range.len());
        }
    }

    /// Takes one more count of every blob in `range`, whose entries were just copied.
    fn retain_bigs(&mut self, range: Range<usize>) {
        let mut bigs = 0;
        for entry in range.map(|i| self.entry(i)).filter(Entry::is_big) {
            // SAFETY: the original of the entry owns a count, so the blob lives; neither handle is dropped
            // here.
            unsafe {
                let blob = ManuallyDrop::new(read_blob(entry.bytes.as_ptr().add(entry.bytes.len() - 8)));
                std::mem::forget(Blob::clone(&blob));
            }
            bigs += 1;
        }
        self.head_mut().bigs += bigs;
    }

    fn release_bigs(&mut self, range: Range<usize>) {
        if !self.has_bigs() {
            return;
        }
        let mut bigs = 0;
        for entry in range.map(|i| self.entry(i)).filter(Entry::is_big) {
            // SAFETY: the entry owns this count (L2) and is about to disappear.
            drop(unsafe { read_blob(entry.bytes.as_ptr().add(entry.bytes.len() - 8)) });
            bigs += 1;
        }
        self.head_mut().bigs -= bigs;
    }

    /// Free bytes between data and slots.
    #[inline]
    fn gap(&self) -> usize {
        let head = self.head();
        head.cap as usize - 2 * head.len as usize - head.end as usize
    }

    /// Inserts before entry `i <= len`. Sole owner; `used() + item.space() <= MAX_CAP`.
    pub fn insert(&mut self, i: usize, item: Item<'_>) {
        let (len, bytes) = (self.len(), item.space() - 2);
        assert!(i <= len && len < MAX_LEN && self.is_unique());
        let can_go_left = |leaf: &Leaf| leaf.head().start as usize >= bytes && leaf.gap() >= 2;
        if self.gap() < bytes + 2 && !can_go_left(self) {
            let front = if i == 0 && len > 0 { bytes } else { 0 };
            let slack = if i == 0 || i == len { 4 } else { 16 };
            self.regrow(bytes + 2, front, slack);
        }
        let left = can_go_left(self) && (i < len - i || self.gap() < bytes + 2);
        let (start, at, end) = (self.head().start as usize, self.position(i), self.head().end as usize);
        let data = self.data();
        // SAFETY: sole owner (L3); there is room for `bytes` left of `start` or right of `end` as just
        // ensured, and for one more slot below the last one. Moves stay between `start - bytes` and `end +
        // bytes`.
        unsafe {
            let slots = self.slot_at(len).add(1);
            let place = if left {
                copy(data.add(start), data.add(start - bytes), at - start);
                shift(std::slice::from_raw_parts_mut(slots.add(len - i), i), (bytes as u16).wrapping_neg());
                at - bytes
            } else {
                copy(data.add(at), data.add(at + bytes), end - at);
                shift(std::slice::from_raw_parts_mut(slots, len - i), bytes as u16);
                at
            };
            copy(slots, slots.sub(1), len - i);
            self.head_mut().len += 1;
            self.slot_at(i).write(place as u16 | (item.tag() as u16) << 12);
            item.write(data.add(place));
        }
        let head = self.head_mut();
        head.bigs += u16::from(item.is_big());
        if left {
            head.start -= bytes as u16;
        } else {
            head.end += bytes as u16;
        }
    }

    /// Removes the entries of `range`. Sole owner.
    pub fn remove(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len() && self.is_unique());
        if range.is_empty() {
            return;
        }
        self.release_bigs(range.clone());
        let (len, k) = (self.len(), range.len());
        let (from, to) = (self.position(range.start), self.position(range.end));
        let (start, end, bytes) = (self.head().start as usize, self.head().end as usize, to - from);
        let left = range.start < len - range.end;
        let data = self.data();
        // SAFETY: sole owner (L3); data move only within [start, end), slots only within the slots.
        unsafe {
            let slots = self.slot_at(len - 1);
            let below = len - range.end; // slots of the entries behind the range come first
            if left {
                copy(data.add(start), data.add(start + bytes), from - start);
                shift(std::slice::from_raw_parts_mut(slots.add(below + k), range.start), bytes as u16);
            } else {
                copy(data.add(to), data.add(from), end - to);
                shift(std::slice::from_raw_parts_mut(slots, below), (bytes as u16).wrapping_neg());
            }
            copy(slots, slots.add(k), below);
        }
        let head = self.head_mut();
        head.len -= k as u16;
        if left {
            head.start += bytes as u16;
        } else {
            head.end -= bytes as u16;
        }
        if head.len == 0 {
            (head.start, head.end) = (0, 0);
        }
        if self.alloc_bytes() > 128 && self.alloc_bytes() > 2 * (HEAD + self.used()) {
            self.regrow(self.used() / 4, 0, 16);
        }
    }

    /// Replaces entry `i < len`. Sole owner; the sum fits.
    pub fn replace(&mut self, i: usize, item: Item<'_>) {
        let from = self.position(i);
        if self.position(i + 1) - from != item.space() - 2 {
            self.remove(i..i + 1);
            return self.insert(i, item);
        }
        assert!(self.is_unique());
        self.release_bigs(i..i + 1);
        // SAFETY: sole owner (L3), the entry's bytes are exactly as many as the item's; its blob has been
        // released.
        unsafe {
            self.slot_at(i).write(from as u16 | (item.tag() as u16) << 12);
            item.write(self.data().add(from));
        }
        self.head_mut().bigs += u16::from(item.is_big());
    }

    /// Gives back unused room. Sole owner.
    pub fn shrink(&mut self) {
        if cap_for(self.used()) < self.head().cap as usize {
            self.regrow(0, 0, 16);
        }
    }

    /// Moves to an allocation with room for `extra` bytes and, in larger leaves, one `slack`th of all more.
    /// The room is in front of the data if `front > 0`, which is then the size of one entry to come there.
    /// Compacts in place if much is unused in front and not too much in all.
    fn regrow(&mut self, extra: usize, front: usize, slack: usize) {
        let (used, len) = (self.used(), self.len());
        let bytes = used - 2 * len;
        let start = self.head().start as usize;
        let cap = self.head().cap as usize;
        let fits_here = used + extra <= cap && cap <= 2 * (used + extra).max(64);
        if fits_here && extra > 0 && front == 0 && 4 * start >= bytes.max(32) {
            // SAFETY: sole owner (L3); the data move within their region, down by `start`.
            unsafe {
                copy(self.data().add(start), self.data(), bytes);
                let slots = std::slice::from_raw_parts_mut(self.data().add(cap - 2 * len).cast(), len);
                shift(slots, (start as u16).wrapping_neg());
            }
            let head = self.head_mut();
            (head.start, head.end) = (0, bytes as u16);
            return;
        }
        let slack = if extra == 0 { 0 } else { (used + extra) / if used > 512 { slack } else { 8 } };
        let want = used + extra;
        let roomy = if want <= super::LEAF_MAX { (want + slack).min(super::LEAF_MAX) } else { want };
        let mut new = Leaf::with_space(roomy.min(MAX_CAP));
        let new_cap = new.head().cap as usize;
        let free = new_cap - used;
        // Slots of the entries to come take part of the room.
        let at = if front > 0 { ((free - 2) * front / (front + 2)).max(front) } else { 0 };
        // SAFETY: the new leaf is ours and as large as data and slots together; the blobs move with their
        // entries, so the old leaf is freed without releasing them.
        unsafe {
            copy_nonoverlapping(self.data().add(start), new.data().add(at), bytes);
            let slots = new.data().add(new_cap - 2 * len).cast::<u16>();
            copy_nonoverlapping(self.data().add(cap - 2 * len).cast::<u16>(), slots, len);
            shift(std::slice::from_raw_parts_mut(slots, len), (at as u16).wrapping_sub(start as u16));
        }
        let old = self.head();
        let (flags, bigs) = (old.flags, old.bigs);
        let head = new.head_mut();
        (head.flags, head.bigs, head.len) = (flags, bigs, len as u16);
        (head.start, head.end) = (at as u16, (at + bytes) as u16);
        self.head_mut().bigs = 0;
        *self = new;
    }

    /// The index that halves the bytes, `0 < i < len`.
    pub fn middle(&self) -> usize {
        let (start, end) = (self.head().start as usize, self.head().end as usize);
        let half = |i: usize| self.position(i) - start + 2 * i;
        let total = end - start + 2 * self.len();
        let (mut low, mut high) = (1, self.len().max(2) - 1);
        while low < high {
            let mid = (low + high) / 2;
            if half(mid) * 2 < total {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        low
    }

    /// Panics if an invariant does not hold.
    pub fn check_invariants(&self) {
        let head = self.head();
        let (mut at, mut bigs) = (head.start as usize, 0);
        assert!(head.cap as usize <= MAX_CAP && self.len() <= MAX_LEN && head.cap.is_multiple_of(2), "L1");
        for i in 0..self.len() {
            assert_eq!(self.position(i), at, "L1");
            at += self.entry(i).bytes.len();
            bigs += u16::from(self.entry(i).is_big());
        }
        assert!(at == head.end as usize && at + 2 * self.len() <= head.cap as usize, "L1");
        assert_eq!(bigs, head.bigs, "L2");
        assert_eq!(head.height, 0);
    }
}

/// Adds `by`, modulo 2^16, to the positions in `slots`; none leaves the twelve bits, so tags stay.
#[inline]
fn shift(slots: &mut [u16], by: u16) {
    for slot in slots {
        *slot = slot.wrapping_add(by);
    }
}

fn cap_for(space: usize) -> usize {
    assert!(space <= MAX_CAP);
    (size_class(HEAD + space) - HEAD).min(MAX_CAP)
}

fn layout(cap: usize) -> Layout {
    Layout::from_size_align(HEAD + cap, 8).expect("a leaf is small")
}

/// The usable size an allocator with four classes per doubling gives for `size` bytes.
#[inline]
pub(crate) fn size_class(size: usize) -> usize {
    if size <= 128 {
        return size.next_multiple_of(16);
    }
    size.next_multiple_of(size.next_power_of_two() / 8)
}

impl Clone for Leaf {
    #[inline]
    fn clone(&self) -> Leaf {
        self.head().count.retain();
        Leaf(self.0)
    }
}

impl Drop for Leaf {
    #[inline]
    fn drop(&mut self) {
        if !self.head().count.release() {
            return;
        }
        if self.has_bigs() {
            for entry in self.iter().filter(Entry::is_big) {
                // SAFETY: the last owner of the leaf; each entry gives up its count once (L2).
                drop(unsafe { read_blob(entry.bytes.as_ptr().add(entry.bytes.len() - 8)) });
            }
        }
        let layout = layout(self.head().cap as usize);
        // SAFETY: that was the last owner; allocated with this layout.
        unsafe { dealloc(self.0.as_ptr().cast(), layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_have_four_steps_per_doubling() {
        let got: Vec<usize> = [1, 17, 128, 129, 161, 250, 257, 2048, 2049, 4096].map(size_class).into();
        assert_eq!(got, [16, 32, 128, 160, 192, 256, 320, 2048, 2560, 4096]);
    }

    type Model = Vec<(u8, Vec<u8>)>;

    #[test]
    fn a_leaf_behaves_like_a_vector_of_tagged_bytes() {
        let mut seed = 1u64;
        let mut random = move |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        for round in 0..200 {
            let mut leaf = Leaf::with_space(0);
            let mut model: Model = Vec::new();
            let mut old: Option<(Leaf, Model)> = None;
            for step in 0..300 {
                let bytes = vec![step as u8; if random(40) == 0 { 600 } else { random(20) }];
                let item = Item {
                    tag: random(8) as u8,
                    head: &bytes[..bytes.len().min(2)],
                    tail: &bytes,
                    weight: 0,
                };
                let whole = [item.head, item.tail].concat();
                leaf.make_unique(random(2) * 20);
                match random(if round % 2 == 0 { 9 } else { 7 }) {
                    0..=4 if leaf.fits(item.space(), 2032) => {
                        let i = [0, model.len(), random(model.len() + 1)][random(3)];
                        leaf.insert(i, item);
                        model.insert(i, (item.tag, whole));
                    }
                    5 if !model.is_empty() && leaf.fits(item.space(), 2032) => {
                        let i = random(model.len());
                        leaf.replace(i, item);
                        model[i] = (item.tag, whole);
                    }
                    6 => old = Some((leaf.clone(), model.clone())),
                    _ if !model.is_empty() => {
                        let i = [0, model.len() - 1, random(model.len())][random(3)];
                        let j = (i + random(3)).min(model.len());
                        leaf.remove(i..j);
                        model.drain(i..j);
                    }
                    _ => {}
                }
                same(&leaf, &model);
                if let Some((leaf, model)) = &old {
                    same(leaf, model);
                }
            }
            let half = leaf.len() / 2;
            let right = leaf.copy_range(half..leaf.len(), 0);
            same(&right, &model[half..]);
            let mut left = leaf.copy_range(0..half, 5);
            left.append(&right, 0..right.len());
            left.shrink();
            same(&left, &model);
        }
    }

    fn same(leaf: &Leaf, model: &[(u8, Vec<u8>)]) {
        leaf.check_invariants();
        assert_eq!(leaf.len(), model.len());
        for (entry, (tag, bytes)) in leaf.iter().zip(model) {
            assert_eq!(entry.tag & 7, *tag);
            match entry.is_big() {
                true => {
                    assert_eq!(entry.big().0.iter().chain(entry.big().1).copied().collect::<Vec<_>>(), *bytes)
                }
                false => assert_eq!(entry.bytes, bytes),
            }
        }
    }
}
