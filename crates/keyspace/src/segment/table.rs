//! A segment: a table of lines, and the pages with its entries. The invariants are in the module above.

use super::SHARD_BITS;
use crate::entry::{EntryRef, Raw};
use crate::evict::Marks;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use stdx::hash::hash_bytes;
use stdx::pages::{Block, LARGE, SMALL};

/// Lines of a whole table, and of each form (G7). A table of n lines takes 64 × (n + 1) bytes with its
/// header.
pub(super) const LINES: u8 = 127;
pub(super) const FORMS: [u8; 4] = [1, 7, 31, LINES];
pub(super) const SLOTS: usize = 9;
pub(super) const PAGE: usize = 4096;
/// Offset of the first entry in a page, behind the chain pointer.
const PAGE_START: usize = 8;
/// The smallest page, and the largest that does not come from the pool, in bytes.
const LITTLE_MIN: usize = 128;
const LITTLE_MAX: usize = PAGE / 2;

/// Bytes of little tables and pages, which come from the general allocator.
static LITTLE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes of tables and pages from the general allocator.
pub(crate) fn little_bytes() -> usize {
    LITTLE_BYTES.load(Ordering::Relaxed)
}

/// Most entries in a table of this many lines: seven eighths of its slots (G1).
pub(super) const fn cap(lines: u8) -> usize {
    lines as usize * SLOTS * 7 / 8
}

const _: () = assert!(cap(LINES) == 1000 && cap(FORMS[0]) == 7);

#[repr(C, align(64))]
pub(super) struct Line {
    pub(super) tags: [u8; SLOTS],
    pub(super) over: u8,
    slots: [[u8; 6]; SLOTS],
}

/// The start of a table. The lines follow.
#[repr(C, align(64))]
pub(super) struct Header {
    /// The newest page. The first word of each page points to the one before.
    pages: *mut u8,
    bump: *mut u8,
    bump_end: *mut u8,
    pub(super) next_expire: u64,
    pub(super) live: u32,
    pub(super) dead: u32,
    /// Pages of the pool.
    page_count: u16,
    len: u16,
    pub(super) expires: u16,
    /// The only page is a little one of 2^this bytes (G3). 0: it is a whole page.
    little_page: u8,
    /// Whether some hash may have fields that expire (G4).
    pub(super) fields: bool,
    /// The marks (G6). All zeros are `None`.
    pub(super) marks: Option<Box<Marks>>,
}

impl Header {
    /// Pages from the pool, and bytes of a little page.
    pub(super) fn pages(&self) -> (usize, usize) {
        (usize::from(self.page_count), little_page_bytes(self.little_page))
    }
}

const _: () = assert!(size_of::<Header>() == 64 && size_of::<Line>() == 64);

#[inline]
pub(super) fn tag(hash: u64) -> u8 {
    hash as u8 | 0x80
}

impl Line {
    /// Bit i is set where `tags[i] == tag`.
    #[inline]
    pub(super) fn matches(&self, tag: u8) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a line is 64 aligned bytes, and SSE2 is part of x86-64.
        unsafe {
            use std::arch::x86_64::*;
            let tags = _mm_load_si128(std::ptr::from_ref(self).cast());
            let equal = _mm_cmpeq_epi8(tags, _mm_set1_epi8(tag as i8));
            _mm_movemask_epi8(equal) as u32 & ((1 << SLOTS) - 1)
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.tags.iter().enumerate().fold(0, |bits, (i, t)| bits | u32::from(*t == tag) << i)
    }

    #[inline]
    pub(super) fn entry(&self, slot: usize) -> Raw {
        let s = &self.slots[slot];
        let address = u64::from_le_bytes([s[0], s[1], s[2], s[3], s[4], s[5], 0, 0]);
        // SAFETY: only called for slots whose tag is set (G2), so the address is that of a live entry.
        unsafe { Raw::at(NonNull::new_unchecked(address as *mut u8)) }
    }

    #[inline]
    pub(super) fn set(&mut self, slot: usize, tag: u8, entry: Raw) {
        let bytes = (entry.address().as_ptr() as u64).to_le_bytes();
        debug_assert!(bytes[6] == 0 && bytes[7] == 0);
        self.tags[slot] = tag;
        self.slots[slot].copy_from_slice(&bytes[..6]);
    }

    pub(super) fn occupied(&self) -> impl Iterator<Item = usize> + use<> {
        let full = !self.matches(0) & ((1 << SLOTS) - 1);
        (0..SLOTS).filter(move |i| full >> i & 1 == 1)
    }
}

#[inline]
pub(super) fn prefetch(entry: Raw) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on the cache.
    unsafe {
        use std::arch::x86_64::*;
        _mm_prefetch::<_MM_HINT_T0>(entry.address().as_ptr().cast());
        _mm_prefetch::<_MM_HINT_T0>(entry.address().as_ptr().cast::<i8>().wrapping_add(64));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = entry;
}

/// The place of an entry.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) slot: usize,
}

impl Place {
    /// The slot's number in the segment.
    #[inline]
    pub(super) fn number(self) -> usize {
        self.line * SLOTS + self.slot
    }

    pub(super) fn of(number: usize) -> Place {
        Place { line: number / SLOTS, slot: number % SLOTS }
    }
}

/// A pointer to a segment's table. The directory owns the table and holds the pointer in several places.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    table: NonNull<Header>,
    pub(super) depth: u8,
    /// One of [`FORMS`].
    pub(super) lines: u8,
}

impl Segment {
    /// An empty segment without pages.
    pub(super) fn new(depth: u8, lines: u8) -> Segment {
        let bytes = table_bytes(lines);
        let table = if lines == LINES { LARGE.take() } else { take_little(bytes) };
        // SAFETY: the block has this many exclusive bytes, aligned to a line; all zeros are an empty table.
        unsafe { table.as_ptr().write_bytes(0, bytes) };
        let segment = Segment { table: table.cast(), depth, lines };
        segment.header_mut().next_expire = u64::MAX;
        segment
    }

    #[inline]
    pub(super) fn header<'a>(self) -> &'a Header {
        // SAFETY: the directory frees a table only with its last place; borrows are bounded by the
        // directory's.
        unsafe { self.table.as_ref() }
    }

    #[inline]
    pub(super) fn header_mut<'a>(mut self) -> &'a mut Header {
        // SAFETY: as above, and callers hold the directory's `&mut`.
        unsafe { self.table.as_mut() }
    }

    #[inline]
    pub(super) fn line<'a>(self, line: usize) -> &'a Line {
        debug_assert!(line < usize::from(self.lines));
        // SAFETY: as for the header; the lines follow it.
        unsafe { &*self.table.as_ptr().add(1 + line).cast() }
    }

    #[inline]
    pub(super) fn line_mut<'a>(self, line: usize) -> &'a mut Line {
        debug_assert!(line < usize::from(self.lines));
        // SAFETY: as above, and callers hold the directory's `&mut`.
        unsafe { &mut *self.table.as_ptr().add(1 + line).cast() }
    }

    /// The home line of a hash. Keeps the order of the bits behind the directory's.
    #[inline]
    pub(super) fn home(self, hash: u64) -> usize {
        let x = (hash << (SHARD_BITS + u32::from(self.depth))) >> 32;
        ((x * u64::from(self.lines)) >> 32) as usize
    }

    #[inline]
    pub(super) fn next_line(self, line: usize) -> usize {
        if line + 1 == usize::from(self.lines) { 0 } else { line + 1 }
    }

    pub(super) fn slots(self) -> usize {
        usize::from(self.lines) * SLOTS
    }

    pub(super) fn is_full(self) -> bool {
        self.len() >= cap(self.lines)
    }

    #[inline]
    pub(super) fn len(self) -> usize {
        self.header().len as usize
    }

    #[inline]
    pub(super) fn find(self, hash: u64, key: &[u8]) -> Option<Place> {
        let tag = tag(hash);
        let first = self.home(hash);
        let mut line = first;
        loop {
            let l = self.line(line);
            let mut bits = l.matches(tag);
            while bits != 0 {
                let slot = bits.trailing_zeros() as usize;
                if l.entry(slot).key() == key {
                    return Some(Place { line, slot });
                }
                bits &= bits - 1;
            }
            if l.over == 0 {
                return None;
            }
            line = self.next_line(line);
            if line == first {
                return None;
            }
        }
    }

    /// Whether another key has the same hash, as far as the bits of `mask` say: those of the tag and all that
    /// choose a line.
    pub(super) fn has_twin(self, hash: u64, key: &[u8], mask: u64) -> bool {
        let (tag, first) = (tag(hash), self.home(hash));
        let mut line = first;
        loop {
            let l = self.line(line);
            let mut same = (0..SLOTS).filter(|slot| l.tags[*slot] == tag).map(|slot| l.entry(slot).key());
            if same.any(|other| other != key && (hash_bytes(other) ^ hash) & mask == 0) {
                return true;
            }
            line = self.next_line(line);
            if l.over == 0 || line == first {
                return false;
            }
        }
    }

    #[inline]
    pub(super) fn at(self, place: Place) -> Raw {
        self.line(place.line).entry(place.slot)
    }

    /// Links a written entry into the first line with room, from its home on.
    pub(super) fn link(self, hash: u64, entry: Raw) -> Place {
        let mut line = self.home(hash);
        loop {
            let l = self.line_mut(line);
            let empty = l.matches(0);
            if empty != 0 {
                let slot = empty.trailing_zeros() as usize;
                l.set(slot, tag(hash), entry);
                self.header_mut().len += 1;
                return Place { line, slot };
            }
            l.over = l.over.saturating_add(1);
            line = self.next_line(line);
        }
    }

    pub(super) fn unlink(self, hash: u64, place: Place) {
        self.line_mut(place.line).tags[place.slot] = 0;
        self.header_mut().len -= 1;
        if let Some(marks) = &mut self.header_mut().marks {
            marks.clear(place.number());
        }
        let mut line = self.home(hash);
        while line != place.line {
            let over = &mut self.line_mut(line).over;
            if *over != u8::MAX {
                *over -= 1;
            }
            line = self.next_line(line);
        }
    }

    /// Prepares `alloc` of this many bytes: compacts if much is dead or the page is a little one (G3).
    /// Entries move, their places stay. O(1), or O(live bytes).
    #[inline]
    pub(super) fn make_room(self, bytes: usize) {
        let header = self.header();
        if (header.bump_end as usize) - (header.bump as usize) < bytes {
            self.want_room(bytes);
        }
    }

    fn want_room(self, bytes: usize) {
        let header = self.header();
        let little = self.lines < LINES && header.page_count == 0;
        if little || header.dead as usize >= PAGE / 2 && header.dead * 3 > header.live {
            self.compact(bytes);
        }
    }

    /// Room for an entry, in a new page if necessary.
    #[inline]
    pub(super) fn alloc(self, bytes: usize) -> Raw {
        let header = self.header_mut();
        debug_assert!(bytes.is_multiple_of(8) && bytes <= PAGE - PAGE_START);
        if (header.bump_end as usize) - (header.bump as usize) < bytes {
            self.add_page();
        }
        let header = self.header_mut();
        let at = header.bump;
        header.bump = at.wrapping_add(bytes);
        header.live += bytes as u32;
        // SAFETY: `at` is inside our page, 8-aligned, and the room is ours alone.
        unsafe { Raw::at(NonNull::new_unchecked(at)) }
    }

    fn add_page(self) {
        let header = self.header_mut();
        debug_assert!(header.little_page == 0);
        // The rest of the old page is lost until the next compaction.
        header.dead += (header.bump_end as usize - header.bump as usize) as u32;
        header.page_count += 1;
        self.begin_page(SMALL.take(), PAGE);
    }

    fn begin_page(self, page: Block, bytes: usize) {
        let (header, page) = (self.header_mut(), page.as_ptr());
        // SAFETY: the page is ours, has this many bytes, and is aligned.
        unsafe { page.cast::<*mut u8>().write(header.pages) };
        header.pages = page;
        header.bump = page.wrapping_add(PAGE_START);
        header.bump_end = page.wrapping_add(bytes);
    }

    pub(super) fn bury_room(self, bytes: usize) {
        let header = self.header_mut();
        header.live -= bytes as u32;
        header.dead += bytes as u32;
    }

    /// Moves every entry to fresh pages, in line order, with room for `more` bytes. A small segment gets a
    /// little page that is two thirds full. O(live bytes).
    pub(super) fn compact(self, more: usize) {
        let header = self.header_mut();
        let wanted = PAGE_START + (header.live as usize + more) * 3 / 2;
        let old = (std::mem::replace(&mut header.pages, std::ptr::null_mut()), header.little_page);
        (header.bump, header.bump_end) = (std::ptr::null_mut(), std::ptr::null_mut());
        (header.live, header.dead, header.page_count, header.little_page) = (0, 0, 0, 0);
        if self.lines < LINES && wanted <= LITTLE_MAX {
            let bytes = wanted.next_power_of_two().max(LITTLE_MIN);
            header.little_page = bytes.ilog2() as u8;
            self.begin_page(take_little(bytes), bytes);
        }
        let mut moved = Walk::new(self);
        while let Some((place, entry)) = moved.next() {
            let to = self.take_over(entry);
            let line = self.line_mut(place.line);
            let tag = line.tags[place.slot];
            line.set(place.slot, tag, to);
        }
        free_pages(old.0, old.1);
    }

    /// Moves all entries into a table of another form, and returns that (G7). Their bytes stay, unless the
    /// table shrinks: then they are compacted. O(entries), at most the [`cap`] of a little table.
    pub(super) fn change_form(self, lines: u8) -> Segment {
        let other = Segment::new(self.depth, lines);
        other.inherit(self);
        let mut walk = Walk::new(self);
        while let Some((from, entry)) = walk.next() {
            let to = other.link(hash_bytes(entry.key()), entry);
            other.take_mark(to, self, from);
        }
        let (old, new) = (self.header_mut(), other.header_mut());
        (new.pages, new.bump, new.bump_end) = (old.pages, old.bump, old.bump_end);
        (new.live, new.dead, new.page_count) = (old.live, old.dead, old.page_count);
        (new.little_page, new.fields) = (old.little_page, old.fields);
        (new.expires, new.next_expire) = (old.expires, old.next_expire);
        (old.pages, old.little_page) = (std::ptr::null_mut(), 0);
        self.free_table();
        if lines < self.lines || lines == LINES && other.header().little_page > 0 {
            other.compact(0);
        }
        other
    }

    /// Copies the bytes of an entry into this segment's pages.
    fn take_over(self, entry: Raw) -> Raw {
        let bytes = entry.room();
        let to = self.alloc(bytes);
        // SAFETY: both rooms have `bytes` bytes; the old one is dead room from here on (E2).
        unsafe { to.address().as_ptr().copy_from_nonoverlapping(entry.address().as_ptr(), bytes) };
        to
    }

    pub(super) fn note_expire(self, at: Option<u64>) {
        if let Some(at) = at {
            let header = self.header_mut();
            header.expires += 1;
            header.next_expire = header.next_expire.min(at);
        }
    }

    /// Notes that a field of a hash expires at `at` (G4).
    pub(super) fn note_field(self, at: u64) {
        let header = self.header_mut();
        header.next_expire = header.next_expire.min(at);
        header.fields = true;
    }

    /// As `note_expire`, and notes the soonest field expiry. `fields` says that hashes may have such fields;
    /// looking costs a cache miss.
    fn note_entry(self, entry: Raw, fields: bool) {
        self.note_expire(entry.expire_ms());
        if fields && let Some(at) = EntryRef::new(entry).field_expiry() {
            self.note_field(at);
        }
    }

    pub(super) fn forget_expire(self, at: Option<u64>) {
        if at.is_some() {
            self.header_mut().expires -= 1;
        }
    }

    /// Splits by the first hash bit behind the depth. O(entries).
    pub(super) fn split(self) -> (Segment, Segment) {
        let halves = [Segment::new(self.depth + 1, LINES), Segment::new(self.depth + 1, LINES)];
        let bit = 63 - SHARD_BITS - self.depth as u32;
        halves.iter().for_each(|half| half.inherit(self));
        let mut walk = Walk::new(self);
        while let Some((from, entry)) = walk.next() {
            let hash = hash_bytes(entry.key());
            let half = halves[(hash >> bit & 1) as usize];
            let to = half.link(hash, half.take_over(entry));
            half.note_entry(entry, self.header().fields);
            half.take_mark(to, self, from);
        }
        self.free_table();
        (halves[0], halves[1])
    }

    /// Moves the entries of two buddies into one segment of the depth above. O(entries).
    pub(super) fn merge(self, other: Segment) -> Segment {
        let merged = Segment::new(self.depth - 1, LINES);
        self.align(other);
        merged.inherit(self);
        for half in [self, other] {
            let mut walk = Walk::new(half);
            while let Some((from, entry)) = walk.next() {
                let to = merged.link(hash_bytes(entry.key()), merged.take_over(entry));
                merged.note_entry(entry, half.header().fields);
                merged.take_mark(to, half, from);
            }
            half.free_table();
        }
        merged
    }

    /// Frees table and pages. Memory that the entries own stays.
    pub(super) fn free_table(self) {
        let header = self.header_mut();
        drop(header.marks.take());
        free_pages(header.pages, header.little_page);
        let table = self.table.cast();
        // SAFETY: the caller took this segment out of the directory and moved or dropped its entries.
        unsafe {
            if self.lines == LINES { LARGE.put(table) } else { put_little(table, table_bytes(self.lines)) }
        }
    }

    /// Bytes of table and pages.
    pub(super) fn footprint(self) -> usize {
        let (pages, little) = self.header().pages();
        table_bytes(self.lines) + pages * PAGE + little
    }

    /// Frees everything, entries included. O(entries).
    pub(super) fn drop_all(self) {
        let mut walk = Walk::new(self);
        while let Some((_, entry)) = walk.next() {
            entry.discard();
        }
        self.free_table();
    }
}

const fn table_bytes(lines: u8) -> usize {
    (lines as usize + 1) * size_of::<Line>()
}

fn little(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, size_of::<Line>()).expect("a size below 4 KiB")
}

fn take_little(bytes: usize) -> Block {
    LITTLE_BYTES.fetch_add(bytes, Ordering::Relaxed);
    // SAFETY: the size is not zero.
    let block = unsafe { std::alloc::alloc(little(bytes)) };
    NonNull::new(block).unwrap_or_else(|| std::alloc::handle_alloc_error(little(bytes)))
}

/// # Safety
/// `block` comes from `take_little` of as many bytes, and is not used any more.
unsafe fn put_little(block: Block, bytes: usize) {
    LITTLE_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    // SAFETY: as promised.
    unsafe { std::alloc::dealloc(block.as_ptr(), little(bytes)) };
}

const fn little_page_bytes(power: u8) -> usize {
    if power == 0 { 0 } else { 1 << power }
}

/// Frees a chain of pages, or one little page.
fn free_pages(mut page: *mut u8, little: u8) {
    while let Some(block) = NonNull::new(page) {
        // SAFETY: the chain links pages that this segment owned (G3); nothing in them is used any more.
        unsafe {
            page = page.cast::<*mut u8>().read();
            if little > 0 { put_little(block, little_page_bytes(little)) } else { SMALL.put(block) }
        }
    }
}

/// Visits every entry once and prefetches 16 ahead: the entries are cold, and waiting for them is the cost of
/// a split.
pub(super) struct Walk {
    segment: Segment,
    ahead: [Option<(Place, Raw)>; 16],
    next: usize,
    line: usize,
    bits: u32,
}

impl Walk {
    pub(super) fn new(segment: Segment) -> Walk {
        let bits = !segment.line(0).matches(0) & ((1 << SLOTS) - 1);
        let mut walk = Walk { segment, ahead: [None; 16], next: 0, line: 0, bits };
        for i in 0..16 {
            walk.ahead[i] = walk.fetch();
        }
        walk
    }

    fn fetch(&mut self) -> Option<(Place, Raw)> {
        while self.bits == 0 {
            self.line += 1;
            if self.line >= usize::from(self.segment.lines) {
                return None;
            }
            self.bits = !self.segment.line(self.line).matches(0) & ((1 << SLOTS) - 1);
        }
        let place = Place { line: self.line, slot: self.bits.trailing_zeros() as usize };
        self.bits &= self.bits - 1;
        let entry = self.segment.at(place);
        prefetch(entry);
        Some((place, entry))
    }

    pub(super) fn next(&mut self) -> Option<(Place, Raw)> {
        let fetched = self.fetch();
        let due = std::mem::replace(&mut self.ahead[self.next], fetched);
        self.next = (self.next + 1) % 16;
        due
    }
}
