//! A segment: one capped table of entries with the pages they live in, and the directory of a shard's segments.
//!
//! ```text
//!  hash (64 bits):  shard 8 │ directory d │ next 32 bits choose the line, in order │ … low 7 bits: tag
//!
//!  table, 8 KiB:  line 0: header │ 127 lines of 64 bytes: 9 tags, 1 overflow count, 9 pointers of 48 bits
//!                                                             │
//!  pages, 4 KiB each, chained:  [next][entry][entry]… ◄───────┘
//! ```
//!
//! A key's *home* is the line its hash falls into; when that is full the entry goes to the next line with room, and
//! every line it passed counts one overflow. A look-up ends at the first line without overflow, so deletions leave no
//! tombstones, and a hit costs one cache line of table plus the entry. Homes are ordered by hash: walking lines is
//! walking hash order, so a cursor is a place in hash order that stays meaningful through splits and merges.
//!
//! - G1: at most [`CAP`] entries per segment; the next one splits it. Two buddies of together at most [`MERGE`] merge.
//! - G2: every slot with a non-zero tag points to a living entry in this segment's own pages; it stands in its home
//!   line or in a later one (cyclically), each line from home to the one before it counts it (saturated at 255,
//!   and then never lowered).
//! - G3: pages belong to one segment and hold its entries only. `dead` counts bytes of dead entries; before a page is
//!   added with more than a quarter dead, the segment is compacted instead. So pages follow what lives.
//! - G4: `next_expire` is never later than the soonest expiry in the segment, of a key or of a hash's field; without `fields`
//!   no hash has fields that expire. So a split looks into none of them where none has.
//! - G6: a segment has marks (`evict/marks.rs`) once eviction looked at it or put something there; they say of every slot
//!   whether an entry stands there, and whether it expires.
//! - G5: the directory has 2^depth places; a segment of depth d fills 2^(depth-d) adjacent ones.
//!
//! Costs: split, merge and compaction move at most [`CAP`] entries of at most 320 bytes: 20–60 µs for 100-byte entries,
//! with the entries prefetched (without: four times as long). Everything else is O(1). The directory of a shard is 8
//! bytes per segment: at 1e9 keys 64 KB, copied in 4 µs when it doubles.

use crate::entry::{EntryRef, Payload, Raw, Times, room};
use crate::evict::{Marks, Time};
use std::ptr::NonNull;
use stdx::hash::hash_bytes;
use stdx::pages::{LARGE, SMALL};

mod marking;

pub(crate) use marking::Bytes;

/// Hash bits that choose the shard, at the top.
pub(crate) const SHARD_BITS: u32 = 8;
pub(crate) const LINES: usize = 127;
pub(crate) const SLOTS: usize = 9;
/// Entries a segment may hold: seven eighths of its slots (G1).
pub(crate) const CAP: usize = 1000;
/// Buddies merge at or below this many entries together (G1).
const MERGE: usize = 400;
const PAGE: usize = 4096;
/// Offset of the first entry in a page, behind the chain pointer.
const PAGE_START: usize = 8;

#[repr(C, align(64))]
struct Line {
    tags: [u8; SLOTS],
    over: u8,
    slots: [[u8; 6]; SLOTS],
}

#[repr(C, align(64))]
struct Header {
    /// Newest page; each page's first word points to the one before.
    pages: *mut u8,
    bump: *mut u8,
    bump_end: *mut u8,
    next_expire: u64,
    live: u32,
    dead: u32,
    page_count: u16,
    len: u16,
    expires: u16,
    /// Some hash may have fields that expire (G4).
    fields: bool,
    /// G6. All-zero is none.
    marks: Option<Box<Marks>>,
}

#[repr(C)]
struct Table {
    header: Header,
    lines: [Line; LINES],
}

const _: () = assert!(size_of::<Table>() == 8192 && size_of::<Line>() == 64);

/// The line of a hash in a segment of depth `d`: order-preserving in the bits behind the directory's.
#[inline]
fn home(hash: u64, depth: u8) -> usize {
    let x = (hash << (SHARD_BITS + depth as u32)) >> 32;
    ((x * LINES as u64) >> 32) as usize
}

#[inline]
fn tag(hash: u64) -> u8 {
    hash as u8 | 0x80
}

impl Line {
    /// Bit i is set where `tags[i] == tag`.
    #[inline]
    fn matches(&self, tag: u8) -> u32 {
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
    fn entry(&self, slot: usize) -> Raw {
        let s = &self.slots[slot];
        let address = u64::from_le_bytes([s[0], s[1], s[2], s[3], s[4], s[5], 0, 0]);
        // SAFETY: only called for slots whose tag is set (G2), so the address is a living entry's.
        unsafe { Raw::at(NonNull::new_unchecked(address as *mut u8)) }
    }

    #[inline]
    fn set(&mut self, slot: usize, tag: u8, entry: Raw) {
        let bytes = (entry.address().as_ptr() as u64).to_le_bytes();
        debug_assert!(bytes[6] == 0 && bytes[7] == 0);
        self.tags[slot] = tag;
        self.slots[slot].copy_from_slice(&bytes[..6]);
    }

    fn occupied(&self) -> impl Iterator<Item = usize> + use<> {
        let full = !self.matches(0) & ((1 << SLOTS) - 1);
        (0..SLOTS).filter(move |i| full >> i & 1 == 1)
    }
}

#[inline]
fn prefetch(entry: Raw) {
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

/// Where an entry stands.
#[derive(Clone, Copy)]
struct Place {
    line: usize,
    slot: usize,
}

impl Place {
    /// The slot's number in the segment.
    #[inline]
    fn number(self) -> usize {
        self.line * SLOTS + self.slot
    }
}

/// A key that was found. It says nothing any more once something is put into its shard or removed.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    segment: Segment,
    place: Place,
}

impl Spot {
    #[inline]
    pub(crate) fn entry(self) -> Raw {
        self.segment.at(self.place)
    }
}

/// A segment's table; the directory owns it and copies this pointer into several places.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Segment {
    table: NonNull<Table>,
    depth: u8,
}

impl Segment {
    fn new(depth: u8) -> Segment {
        let table: NonNull<Table> = LARGE.take().cast();
        // SAFETY: a block of the pool is 8192 exclusive bytes, aligned; all-zero is an empty table.
        unsafe {
            table.as_ptr().write_bytes(0, 1);
            (*table.as_ptr()).header.next_expire = u64::MAX;
        }
        Segment { table, depth }
    }

    #[inline]
    fn table<'a>(self) -> &'a Table {
        // SAFETY: the directory frees a table only with its last place; borrows are bounded by the directory's.
        unsafe { self.table.as_ref() }
    }

    #[inline]
    fn table_mut<'a>(mut self) -> &'a mut Table {
        // SAFETY: as above, and callers hold the directory's `&mut`.
        unsafe { self.table.as_mut() }
    }

    #[inline]
    fn len(self) -> usize {
        self.table().header.len as usize
    }

    #[inline]
    fn find(self, hash: u64, key: &[u8]) -> Option<Place> {
        let table = self.table();
        let tag = tag(hash);
        let first = home(hash, self.depth);
        let mut line = first;
        loop {
            let l = &table.lines[line];
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
            line = next_line(line);
            if line == first {
                return None;
            }
        }
    }

    #[inline]
    fn at(self, place: Place) -> Raw {
        self.table().lines[place.line].entry(place.slot)
    }

    /// Puts an entry that is already written into the first line with room from its home on.
    fn link(self, hash: u64, entry: Raw) -> Place {
        let table = self.table_mut();
        let mut line = home(hash, self.depth);
        loop {
            let l = &mut table.lines[line];
            let empty = l.matches(0);
            if empty != 0 {
                let slot = empty.trailing_zeros() as usize;
                l.set(slot, tag(hash), entry);
                table.header.len += 1;
                return Place { line, slot };
            }
            l.over = l.over.saturating_add(1);
            line = next_line(line);
        }
    }

    fn unlink(self, hash: u64, place: Place) {
        let table = self.table_mut();
        table.lines[place.line].tags[place.slot] = 0;
        table.header.len -= 1;
        if let Some(marks) = &mut table.header.marks {
            marks.clear(place.number());
        }
        let mut line = home(hash, self.depth);
        while line != place.line {
            let over = &mut table.lines[line].over;
            if *over != u8::MAX {
                *over -= 1;
            }
            line = next_line(line);
        }
    }

    /// Room for an entry, or None when a new page is due and compacting would be better (G3).
    #[inline]
    fn alloc(self, bytes: usize) -> Raw {
        let header = &mut self.table_mut().header;
        debug_assert!(bytes.is_multiple_of(8) && bytes <= PAGE - PAGE_START);
        if (header.bump_end as usize) - (header.bump as usize) < bytes {
            self.add_page();
        }
        let header = &mut self.table_mut().header;
        let at = header.bump;
        header.bump = at.wrapping_add(bytes);
        header.live += bytes as u32;
        // SAFETY: `at` is inside our page, 8-aligned, and the room is ours alone.
        unsafe { Raw::at(NonNull::new_unchecked(at)) }
    }

    fn wants_compaction(self, bytes: usize) -> bool {
        let header = &self.table().header;
        (header.bump_end as usize) - (header.bump as usize) < bytes
            && header.dead as usize >= PAGE / 2
            && header.dead * 3 > header.live
    }

    fn add_page(self) {
        let header = &mut self.table_mut().header;
        // What is left of the old page is lost until the next compaction.
        header.dead += (header.bump_end as usize - header.bump as usize) as u32;
        let page = SMALL.take().as_ptr();
        // SAFETY: the page is ours: 4096 bytes, aligned.
        unsafe { page.cast::<*mut u8>().write(header.pages) };
        header.pages = page;
        header.bump = page.wrapping_add(PAGE_START);
        header.bump_end = page.wrapping_add(PAGE);
        header.page_count += 1;
    }

    fn bury_room(self, bytes: usize) {
        let header = &mut self.table_mut().header;
        header.live -= bytes as u32;
        header.dead += bytes as u32;
    }

    /// Moves every entry to fresh pages, in line order. Cost: O(live bytes), at most CAP entries.
    fn compact(self) {
        let table = self.table_mut();
        let header = &mut table.header;
        let old = std::mem::replace(&mut header.pages, std::ptr::null_mut());
        (header.bump, header.bump_end) = (std::ptr::null_mut(), std::ptr::null_mut());
        (header.live, header.dead, header.page_count) = (0, 0, 0);
        let mut moved = Walk::new(self);
        while let Some((place, entry)) = moved.next() {
            let to = self.take_over(entry);
            let line = &mut self.table_mut().lines[place.line];
            let tag = line.tags[place.slot];
            line.set(place.slot, tag, to);
        }
        free_pages(old);
    }

    /// Copies an entry's bytes into this segment's pages.
    fn take_over(self, entry: Raw) -> Raw {
        let bytes = entry.room();
        let to = self.alloc(bytes);
        // SAFETY: both rooms have `bytes` bytes; the old one is dead room from here on (E2).
        unsafe { to.address().as_ptr().copy_from_nonoverlapping(entry.address().as_ptr(), bytes) };
        to
    }

    fn note_expire(self, at: Option<u64>) {
        if let Some(at) = at {
            let header = &mut self.table_mut().header;
            header.expires += 1;
            header.next_expire = header.next_expire.min(at);
        }
    }

    /// A field of a hash expires then (G4).
    fn note_field(self, at: u64) {
        let header = &mut self.table_mut().header;
        header.next_expire = header.next_expire.min(at);
        header.fields = true;
    }

    /// `note_expire`, and if hashes may have `fields` that expire, the soonest of them: asking costs a cache miss.
    fn note_entry(self, entry: Raw, fields: bool) {
        self.note_expire(entry.expire_ms());
        if fields && let Some(at) = EntryRef::new(entry).field_expiry() {
            self.note_field(at);
        }
    }

    fn forget_expire(self, at: Option<u64>) {
        if at.is_some() {
            self.table_mut().header.expires -= 1;
        }
    }

    /// Splits by the first hash bit behind the depth. Cost: O(entries), see the module.
    fn split(self) -> (Segment, Segment) {
        let halves = [Segment::new(self.depth + 1), Segment::new(self.depth + 1)];
        let bit = 63 - SHARD_BITS - self.depth as u32;
        halves.iter().for_each(|half| half.inherit(self));
        let mut walk = Walk::new(self);
        while let Some((from, entry)) = walk.next() {
            let hash = hash_bytes(entry.key());
            let half = halves[(hash >> bit & 1) as usize];
            let to = half.link(hash, half.take_over(entry));
            half.note_entry(entry, self.table().header.fields);
            half.take_mark(to, self, from);
        }
        self.free_table();
        (halves[0], halves[1])
    }

    /// Moves everything of two buddies into one segment of the depth above.
    fn merge(self, other: Segment) -> Segment {
        let merged = Segment::new(self.depth - 1);
        self.align(other);
        merged.inherit(self);
        for half in [self, other] {
            let mut walk = Walk::new(half);
            while let Some((from, entry)) = walk.next() {
                let to = merged.link(hash_bytes(entry.key()), merged.take_over(entry));
                merged.note_entry(entry, half.table().header.fields);
                merged.take_mark(to, half, from);
            }
            half.free_table();
        }
        merged
    }

    /// Frees table and pages, not what the entries own.
    fn free_table(self) {
        drop(self.table_mut().header.marks.take());
        free_pages(self.table().header.pages);
        // SAFETY: the caller took this segment out of the directory and moved or dropped its entries.
        unsafe { LARGE.put(self.table.cast()) };
    }

    /// Frees everything. Cost: O(entries).
    fn drop_all(self) {
        let mut walk = Walk::new(self);
        while let Some((_, entry)) = walk.next() {
            entry.discard();
        }
        self.free_table();
    }
}

#[inline]
fn next_line(line: usize) -> usize {
    if line + 1 == LINES { 0 } else { line + 1 }
}

fn free_pages(mut page: *mut u8) {
    while let Some(block) = NonNull::new(page) {
        // SAFETY: the chain links pages this segment owned (G3); nothing in them is used any more.
        unsafe {
            page = page.cast::<*mut u8>().read();
            SMALL.put(block);
        }
    }
}

/// Visits every entry once, fetching 16 ahead: the entries are cold, and their latency is the cost of a split.
struct Walk {
    segment: Segment,
    ahead: [Option<(Place, Raw)>; 16],
    next: usize,
    line: usize,
    bits: u32,
}

impl Walk {
    fn new(segment: Segment) -> Walk {
        let bits = !segment.table().lines[0].matches(0) & ((1 << SLOTS) - 1);
        let mut walk = Walk { segment, ahead: [None; 16], next: 0, line: 0, bits };
        for i in 0..16 {
            walk.ahead[i] = walk.fetch();
        }
        walk
    }

    fn fetch(&mut self) -> Option<(Place, Raw)> {
        while self.bits == 0 {
            self.line += 1;
            if self.line >= LINES {
                return None;
            }
            self.bits = !self.segment.table().lines[self.line].matches(0) & ((1 << SLOTS) - 1);
        }
        let place = Place { line: self.line, slot: self.bits.trailing_zeros() as usize };
        self.bits &= self.bits - 1;
        let entry = self.segment.at(place);
        prefetch(entry);
        Some((place, entry))
    }

    fn next(&mut self) -> Option<(Place, Raw)> {
        let fetched = self.fetch();
        let due = std::mem::replace(&mut self.ahead[self.next], fetched);
        self.next = (self.next + 1) % 16;
        due
    }
}

/// What `put` did.
pub(crate) struct Put {
    pub(crate) was_there: bool,
    pub(crate) had_expire: bool,
    /// Where it stands now.
    pub(crate) spot: Spot,
}

/// The segments of one shard and database.
#[derive(Default)]
pub(crate) struct Directory {
    places: Vec<Segment>,
    depth: u8,
    len: usize,
    expires: usize,
    bytes: Bytes,
}

// SAFETY: a directory owns its segments, pages and entries; their values are Send and Sync, and the shard's lock
// guards every access.
unsafe impl Send for Directory {}

impl Directory {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn expires(&self) -> usize {
        self.expires
    }

    #[inline]
    fn index(&self, hash: u64) -> usize {
        if self.depth == 0 { 0 } else { ((hash << SHARD_BITS) >> (64 - self.depth as u32)) as usize }
    }

    #[inline]
    fn segment(&self, hash: u64) -> Option<Segment> {
        self.places.get(self.index(hash)).copied()
    }

    #[inline]
    fn locate(&self, hash: u64, key: &[u8]) -> Option<(Segment, Place)> {
        let segment = self.segment(hash)?;
        Some((segment, segment.find(hash, key)?))
    }

    /// Where a key stands, to be put there without looking it up again.
    #[inline]
    pub(crate) fn spot(&self, hash: u64, key: &[u8]) -> Option<Spot> {
        self.locate(hash, key).map(|(segment, place)| Spot { segment, place })
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<EntryRef<'_>> {
        let (segment, place) = self.locate(hash, key)?;
        Some(EntryRef::new(segment.at(place)))
    }

    /// The entry, not bound to a borrow: for the view, which decides between several borrows of the shard.
    #[inline]
    pub(crate) fn find_raw(&self, hash: u64, key: &[u8]) -> Option<Raw> {
        let (segment, place) = self.locate(hash, key)?;
        Some(segment.at(place))
    }

    /// Brings the key's line into the cache; used when a batch's keys are looked up together.
    #[inline]
    pub(crate) fn prefetch_line(&self, hash: u64) {
        if let Some(segment) = self.segment(hash) {
            let line = &segment.table().lines[home(hash, segment.depth)];
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch has no effect but on the cache.
            unsafe {
                use std::arch::x86_64::*;
                _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = line;
        }
    }

    /// Brings the entry that has the key's tag into the cache.
    #[inline]
    pub(crate) fn prefetch_entry(&self, hash: u64) {
        if let Some(segment) = self.segment(hash) {
            let line = &segment.table().lines[home(hash, segment.depth)];
            let bits = line.matches(tag(hash));
            if bits != 0 {
                prefetch(line.entry(bits.trailing_zeros() as usize));
            }
        }
    }

    /// Inserts or replaces, where [`Directory::spot`] found the key, or did not, and nothing was put or removed since.
    /// Cost: O(1) plus, now and then, a split or compaction.
    pub(crate) fn put_at(
        &mut self,
        spot: Option<Spot>,
        hash: u64,
        key: &[u8],
        payload: Payload,
        times: Times,
        access: u8,
    ) -> Put {
        let Some(Spot { segment, place }) = spot else {
            let spot = self.insert(hash, key, payload, times, access);
            return Put { was_there: false, had_expire: false, spot };
        };
        let expire = times.expire_ms;
        let mut entry = segment.at(place);
        debug_assert!(entry.key() == key);
        let old_expire = entry.expire_ms();
        let had_expire = old_expire.is_some();
        entry.access().store(access, std::sync::atomic::Ordering::Relaxed);
        let before = Bytes::of(entry);
        let spot = Spot { segment, place };
        if let Some(payload) = entry.overwrite(payload, times) {
            self.replace(hash, spot, key, payload, times);
        } else {
            segment.forget_expire(old_expire);
            segment.note_expire(expire);
        }
        if had_expire != expire.is_some() {
            segment.mark_expires(place, expire.is_some());
        }
        self.bytes += Bytes::of(spot.entry()) - before;
        self.expires = self.expires + usize::from(expire.is_some()) - usize::from(had_expire);
        Put { was_there: true, had_expire, spot }
    }

    /// Writes the entry anew elsewhere in the segment. The counts of the directory are the caller's.
    fn replace(&mut self, hash: u64, spot: Spot, key: &[u8], payload: Payload, times: Times) {
        let bytes = room(key, &payload, times);
        let Spot { segment, place } = spot;
        // It moves the entries, not their places.
        if segment.wants_compaction(bytes) {
            segment.compact();
        }
        let old = segment.at(place);
        let fresh = segment.alloc(bytes);
        // SAFETY: `alloc` gave exactly that much room, exclusively.
        unsafe {
            fresh.write(
                (bytes / 8) as u16,
                key,
                payload,
                times,
                old.access().load(std::sync::atomic::Ordering::Relaxed),
            )
        };
        segment.forget_expire(old.expire_ms());
        segment.note_expire(times.expire_ms);
        segment.table_mut().lines[place.line].set(place.slot, tag(hash), fresh);
        segment.bury_room(old.room());
        old.discard();
    }

    fn insert(&mut self, hash: u64, key: &[u8], payload: Payload, times: Times, access: u8) -> Spot {
        let (bytes, expire) = (room(key, &payload, times), times.expire_ms);
        if self.places.is_empty() {
            self.places.push(Segment::new(0));
        }
        while self.places[self.index(hash)].len() >= CAP {
            self.split(hash);
        }
        let segment = self.places[self.index(hash)];
        if segment.wants_compaction(bytes) {
            segment.compact();
        }
        let entry = segment.alloc(bytes);
        // SAFETY: `alloc` gave exactly that much room, exclusively.
        unsafe { entry.write((bytes / 8) as u16, key, payload, times, access) };
        let place = segment.link(hash, entry);
        segment.note_expire(expire);
        segment.mark_new(place, expire.is_some());
        self.len += 1;
        self.expires += usize::from(expire.is_some());
        self.bytes += Bytes::of(entry);
        Spot { segment, place }
    }

    fn split(&mut self, hash: u64) {
        let segment = self.places[self.index(hash)];
        if segment.depth == self.depth {
            self.places = self.places.iter().flat_map(|s| [*s, *s]).collect();
            self.depth += 1;
        }
        let (low, high) = segment.split();
        let (first, span) = self.extent(hash, segment.depth);
        self.places[first..first + span / 2].fill(low);
        self.places[first + span / 2..first + span].fill(high);
    }

    /// First place and number of places of the segment of depth `d` that holds `hash` (G5).
    fn extent(&self, hash: u64, depth: u8) -> (usize, usize) {
        let span = 1 << (self.depth - depth);
        (self.index(hash) & !(span - 1), span)
    }

    /// Removes an entry and gives its value and expiry.
    pub(crate) fn take(&mut self, hash: u64, key: &[u8]) -> Option<crate::entry::Owned> {
        let (segment, place) = self.locate(hash, key)?;
        let entry = segment.at(place);
        let expire_ms = entry.expire_ms();
        self.unhook(segment, place, hash);
        let value = entry.bury();
        self.shrink(hash, false);
        Some(crate::entry::Owned { value, expire_ms })
    }

    /// Removes an entry; whether it had an expiry, if it was there.
    pub(crate) fn remove(&mut self, hash: u64, key: &[u8]) -> Option<bool> {
        let (segment, place) = self.locate(hash, key)?;
        let entry = segment.at(place);
        let had_expire = entry.expire_ms().is_some();
        self.unhook(segment, place, hash);
        entry.discard();
        self.shrink(hash, false);
        Some(had_expire)
    }

    fn unhook(&mut self, segment: Segment, place: Place, hash: u64) {
        let entry = segment.at(place);
        self.bytes = self.bytes - Bytes::of(entry);
        segment.unlink(hash, place);
        segment.forget_expire(entry.expire_ms());
        segment.bury_room(entry.room());
        self.len -= 1;
        self.expires -= usize::from(entry.expire_ms().is_some());
    }

    /// Gives memory back after a removal: compacts a segment that is mostly dead (a quarter, if memory is short and so
    /// `short`), merges small buddies.
    fn shrink(&mut self, hash: u64, short: bool) {
        loop {
            let Some(segment) = self.segment(hash) else { return };
            if segment.depth == 0 && segment.len() == 0 {
                segment.free_table();
                self.places = Vec::new();
                return;
            }
            if segment.depth > 0 && segment.len() * 2 <= MERGE && self.merge(segment, hash) {
                continue;
            }
            let header = &segment.table().header;
            let much = if short { 3 * header.dead } else { header.dead };
            if header.dead as usize > 2 * PAGE && much > header.live {
                segment.compact();
            }
            return;
        }
    }

    fn merge(&mut self, segment: Segment, hash: u64) -> bool {
        let (first, span) = self.extent(hash, segment.depth);
        let buddy = self.places[first ^ span];
        if buddy.depth != segment.depth || buddy.len() + segment.len() > MERGE {
            return false;
        }
        let merged = segment.merge(buddy);
        let start = first & !span;
        self.places[start..start + 2 * span].fill(merged);
        // Halve the directory when no segment needs its last bit; checked rarely, O(places) then.
        if merged.depth + 1 == self.depth && self.places.iter().all(|s| s.depth < self.depth) {
            self.places = self.places.iter().copied().step_by(2).collect();
            self.depth -= 1;
        }
        true
    }

    /// Sets or clears an expiry; None if the key is absent, else whether it had one.
    pub(crate) fn set_expire(&mut self, hash: u64, key: &[u8], expire: Option<u64>) -> Option<bool> {
        let (segment, place) = self.locate(hash, key)?;
        let mut entry = segment.at(place);
        let old = entry.expire_ms();
        if entry.overwrite_expire(expire) {
            segment.forget_expire(old);
            segment.note_expire(expire);
        } else {
            // The outline changes: the entry is written anew, taking its own content along.
            let bytes_wanted = entry.room() + 8;
            if segment.wants_compaction(bytes_wanted) {
                segment.compact();
            }
            let old_entry = segment.at(place);
            let before = Bytes::of(old_entry);
            let payload = old_entry.payload_to_move();
            let times = Times { expire_ms: expire, ..old_entry.times() };
            let bytes = room(old_entry.key(), &payload, times);
            let fresh = segment.alloc(bytes);
            let access = old_entry.access().load(std::sync::atomic::Ordering::Relaxed);
            // SAFETY: `alloc` gave exactly that much room, exclusively; the key is read before its box is freed.
            unsafe { fresh.write((bytes / 8) as u16, old_entry.key(), payload, times, access) };
            segment.forget_expire(old);
            segment.note_expire(expire);
            segment.table_mut().lines[place.line].set(place.slot, tag(hash), fresh);
            segment.bury_room(old_entry.room());
            old_entry.discard_moved();
            segment.mark_expires(place, expire.is_some());
            self.bytes += Bytes::of(fresh) - before;
        }
        self.expires = self.expires + usize::from(expire.is_some()) - usize::from(old.is_some());
        Some(old.is_some())
    }

    /// Nobody knows any more when what a key holds was changed.
    pub(crate) fn forget_changed(&mut self, hash: u64, key: &[u8]) {
        if let Some((segment, place)) = self.locate(hash, key) {
            segment.at(place).forget_changed();
        }
    }

    /// Visits the entries whose home is the line at `position` (a place in hash order, the shard's bits included at
    /// the top) and returns the position of the next line, or None behind the last one of this shard.
    /// Cost: one line, and more while lines overflow.
    pub(crate) fn visit_line(&self, position: u64, f: &mut dyn FnMut(u64, EntryRef<'_>)) -> Option<u64> {
        let shard_end = next_multiple(position, 64 - SHARD_BITS);
        let Some(segment) = self.segment(position) else { return shard_end };
        let shift = SHARD_BITS + segment.depth as u32;
        let line = home(position, segment.depth);
        let table = segment.table();
        let mut at = line;
        loop {
            for slot in table.lines[at].occupied() {
                let entry = EntryRef::new(table.lines[at].entry(slot));
                let hash = hash_bytes(entry.key());
                if home(hash, segment.depth) == line {
                    f(hash, entry);
                }
            }
            if table.lines[at].over == 0 {
                break;
            }
            at = next_line(at);
            if at == line {
                break;
            }
        }
        if line + 1 == LINES {
            return next_multiple(position, 64 - shift);
        }
        // The smallest x whose line is `line + 1`.
        let x = ((line as u64 + 1) << 32).div_ceil(LINES as u64);
        let prefix = if shift == 0 { 0 } else { position >> (64 - shift) << (64 - shift) };
        Some(prefix | (x << 32) >> shift)
    }

    /// Visits every entry of the segment at `position` and returns the next segment's position in this shard.
    /// Cost: O(entries of a segment).
    pub(crate) fn visit_segment(&self, position: u64, f: &mut dyn FnMut(EntryRef<'_>)) -> Option<u64> {
        let Some(segment) = self.segment(position) else { return next_multiple(position, 64 - SHARD_BITS) };
        let mut walk = Walk::new(segment);
        while let Some((_, entry)) = walk.next() {
            f(EntryRef::new(entry));
        }
        next_multiple(position, 64 - SHARD_BITS - segment.depth as u32)
    }

    /// Says that a field of a key's hash expires at `at` (G4).
    pub(crate) fn field_expires(&mut self, hash: u64, at: u64) {
        if let Some(segment) = self.segment(hash) {
            segment.note_field(at);
        }
    }

    /// The keys of the segment at `position` that have expired by `now` or have fields that did, and the next segment's
    /// position. Looks into the segment only if its soonest expiry may have come (G4). Cost: O(1), or O(entries of a segment).
    pub(crate) fn expired(&mut self, position: u64, now: u64, keys: &mut Vec<Box<[u8]>>) -> Option<u64> {
        let Some(segment) = self.segment(position) else { return next_multiple(position, 64 - SHARD_BITS) };
        if segment.table().header.next_expire <= now {
            let mut soonest = u64::MAX;
            let mut walk = Walk::new(segment);
            while let Some((_, entry)) = walk.next() {
                match EntryRef::new(entry).next_expiry() {
                    Some(at) if at <= now => keys.push(entry.key().into()),
                    Some(at) => soonest = soonest.min(at),
                    None => {}
                }
            }
            segment.table_mut().header.next_expire = soonest;
        }
        next_multiple(position, 64 - SHARD_BITS - segment.depth as u32)
    }

    /// An entry near a random place: uniform over the lines that have entries, then within the line. Cost: O(1)
    /// unless the segments are nearly empty.
    pub(crate) fn random(&self, random: u64) -> Option<EntryRef<'_>> {
        if self.len == 0 {
            return None;
        }
        let mut at = (random >> 32) as usize % self.places.len();
        // Accept a segment in proportion to its fill, so that full and empty ones weigh as their keys do.
        let mut dice = random;
        for _ in 0..64 {
            let segment = self.places[at];
            dice = stdx::hash::hash_u64(dice);
            let slot = dice as usize % (LINES * SLOTS);
            let place = Place { line: slot / SLOTS, slot: slot % SLOTS };
            if segment.table().lines[place.line].tags[place.slot] != 0 {
                return Some(EntryRef::new(segment.at(place)));
            }
            at = (dice >> 32) as usize % self.places.len();
        }
        // Nearly empty: take any entry of the next segment that has some.
        (0..self.places.len()).find_map(|i| {
            let segment = self.places[(at + i) % self.places.len()];
            let mut nth = (dice >> 16) as usize % segment.len().max(1);
            let mut walk = Walk::new(segment);
            while let (Some((_, entry)), n) = (walk.next(), nth) {
                if n == 0 {
                    return Some(EntryRef::new(entry));
                }
                nth -= 1;
            }
            None
        })
    }

    /// Bytes of tables and pages. Cost: O(segments).
    pub(crate) fn footprint(&self) -> usize {
        self.segments().map(|s| size_of::<Table>() + s.table().header.page_count as usize * PAGE).sum()
    }

    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let segment = *self.places.get(at)?;
            at += 1 << (self.depth - segment.depth);
            Some(segment)
        })
    }

    /// Checks G1 to G5; for tests.
    pub(crate) fn check_invariants(&self) {
        let (mut len, mut expires, mut bytes) = (0, 0, Bytes::default());
        for segment in self.segments() {
            let table = segment.table();
            segment.check_marks();
            let mut over = [0usize; LINES];
            let (mut live, mut count) = (0, 0);
            let mut walk = Walk::new(segment);
            while let Some((place, entry)) = walk.next() {
                let hash = hash_bytes(entry.key());
                assert!(self.segment(hash) == Some(segment), "entry in the wrong segment");
                assert_eq!(table.lines[place.line].tags[place.slot], tag(hash));
                let mut line = home(hash, segment.depth);
                while line != place.line {
                    over[line] += 1;
                    line = next_line(line);
                }
                live += entry.room();
                bytes += Bytes::of(entry);
                count += 1;
                if let Some(at) = entry.expire_ms() {
                    expires += 1;
                    assert!(table.header.next_expire <= at, "G4");
                }
                if let Some(at) = EntryRef::new(entry).field_expiry() {
                    assert!(table.header.next_expire <= at && table.header.fields, "G4: a field");
                }
            }
            for (line, expected) in over.into_iter().enumerate() {
                let counted = table.lines[line].over as usize;
                assert!(
                    counted == expected || counted == 255 && expected < 255,
                    "G2: overflow of line {line}"
                );
            }
            assert_eq!(live, table.header.live as usize);
            assert_eq!(count, segment.len());
            assert!(count <= CAP, "G1");
            len += count;
        }
        assert_eq!((len, expires, bytes), (self.len, self.expires, self.bytes));
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let segments: Vec<Segment> = self.segments().collect();
        segments.into_iter().for_each(Segment::drop_all);
    }
}

/// The next multiple of 2^bits above `position`, or None if that leaves the shard (2^56 positions).
fn next_multiple(position: u64, bits: u32) -> Option<u64> {
    let next = ((position >> bits) + 1).checked_shl(bits)?;
    let shard = 64 - SHARD_BITS;
    (next >> shard == position >> shard && next > position).then_some(next)
}
