//! A segment: one capped table of entries with their pages; and the directory of a shard's segments.
//!
//! ```text
//!  hash (64 bits):  shard 8 │ directory d │ next 32 bits choose the line, in order │ … low 7 bits: tag
//!
//!  table, 8 KiB:  line 0: header │ 127 lines of 64 bytes: 9 tags, 1 overflow count, 9 pointers of 48 bits
//!                                                             │
//!  pages, 4 KiB each, chained:  [next][entry][entry]… ◄───────┘
//! ```
//!
//! A key's *home* is the line its hash falls into. If that is full, the entry goes to the next line with
//! room, and each passed line counts one overflow. A look-up ends at the first line without overflow, so
//! removals leave no tombstones. Homes are ordered by hash: a cursor is a place in hash order, valid through
//! splits and merges.
//!
//! - G1: a whole segment splits above 1,000 entries ([`cap`]). Buddies with at most [`MERGE`] together merge.
//! - G2: a slot with a non-zero tag points to a live entry in this segment's pages. It stands in its home
//!   line or a later one (cyclically), and each line passed counts it (up to 255, then never lowered).
//! - G3: pages belong to one segment. With more than a quarter of `dead` bytes it is compacted before it gets
//!   another page. A small segment has one little page of 128 to 2,048 bytes instead.
//! - G4: `next_expire` is never later than the soonest expiry of a key or hash field in the segment. Without
//!   `fields` no hash has fields that expire, and a split looks into none.
//! - G5: the directory has 2^depth places; a segment of depth d fills 2^(depth-d) adjacent ones.
//! - G6: a segment has marks (`evict/marks.rs`) once eviction visited it or put something there. They show
//!   for each slot whether it has an entry, and whether that expires.
//! - G7: the first segment of a directory grows from a table of one line to 7, 31 and 127. It shrinks at half
//!   of the cap of the next smaller table. Other segments have 127. So a shard with one key takes some 250
//!   bytes.
//!
//! Cost: O(1), except that a split, merge or compaction moves up to 1,000 prefetched entries of at most 320
//! bytes, and a change of table 244. A directory is 16 bytes per segment, copied when it doubles.

use crate::entry::{EntryRef, Payload, Raw, Times, room};
use crate::evict::{Marks, Time};
use stdx::hash::hash_bytes;
use table::{FORMS, PAGE, Place, Segment, Walk, cap, prefetch, tag};

mod marking;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use marking::Bytes;
pub(crate) use table::little_bytes;

/// Hash bits that choose the shard, at the top.
pub(crate) const SHARD_BITS: u32 = 8;
/// Buddies merge at or below this many entries together (G1).
const MERGE: usize = 400;

/// The place of a found key. It is invalid after any insertion or removal in its shard.
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

/// The result of `put_at`.
pub(crate) struct Put {
    pub(crate) was_there: bool,
    pub(crate) had_expire: bool,
    /// Where the entry stands now.
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

// SAFETY: a directory owns its segments, pages and entries; their values are Send and Sync, and the shard's
// lock guards every access.
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

    /// The place of a key, to be used without another look-up.
    #[inline]
    pub(crate) fn spot(&self, hash: u64, key: &[u8]) -> Option<Spot> {
        self.locate(hash, key).map(|(segment, place)| Spot { segment, place })
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<EntryRef<'_>> {
        let (segment, place) = self.locate(hash, key)?;
        Some(EntryRef::new(segment.at(place)))
    }

    /// Whether another key has the same hash, as far as these bits say. O(1)
    pub(crate) fn has_twin(&self, hash: u64, key: &[u8], mask: u64) -> bool {
        self.segment(hash).is_some_and(|segment| segment.has_twin(hash, key, mask))
    }

    /// The entry, not bound to a borrow: for the view, which decides between several borrows of the shard.
    #[inline]
    pub(crate) fn find_raw(&self, hash: u64, key: &[u8]) -> Option<Raw> {
        let (segment, place) = self.locate(hash, key)?;
        Some(segment.at(place))
    }

    /// Fetches the key's home line into the cache, for a batch of look-ups.
    #[inline]
    pub(crate) fn prefetch_line(&self, hash: u64) {
        if let Some(segment) = self.segment(hash) {
            let line = segment.line(segment.home(hash));
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

    /// Fetches the entry with the key's tag into the cache.
    #[inline]
    pub(crate) fn prefetch_entry(&self, hash: u64) {
        if let Some(segment) = self.segment(hash) {
            let line = segment.line(segment.home(hash));
            let bits = line.matches(tag(hash));
            if bits != 0 {
                prefetch(line.entry(bits.trailing_zeros() as usize));
            }
        }
    }

    /// Inserts, or replaces the entry at `spot`. `spot` must come from [`Directory::spot`], with no insertion
    /// or removal since. O(1), and now and then a split or compaction.
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

    /// Writes an entry anew elsewhere in its segment. The caller keeps the counts of the directory.
    fn replace(&mut self, hash: u64, spot: Spot, key: &[u8], payload: Payload, times: Times) {
        let bytes = room(key, &payload, times);
        let Spot { segment, place } = spot;
        segment.make_room(bytes);
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
        segment.line_mut(place.line).set(place.slot, tag(hash), fresh);
        segment.bury_room(old.room());
        old.discard();
    }

    fn insert(&mut self, hash: u64, key: &[u8], payload: Payload, times: Times, access: u8) -> Spot {
        let (bytes, expire) = (room(key, &payload, times), times.expire_ms);
        if self.places.is_empty() {
            self.places = vec![Segment::new(0, FORMS[0])];
        }
        while self.places[self.index(hash)].is_full() {
            self.grow(hash);
        }
        let segment = self.places[self.index(hash)];
        segment.make_room(bytes);
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

    /// Makes room for entries: a larger form of a little segment (G7), or a split of a whole one (G1).
    fn grow(&mut self, hash: u64) {
        let segment = self.places[self.index(hash)];
        if let Some(lines) = FORMS.into_iter().find(|lines| *lines > segment.lines) {
            self.places[0] = segment.change_form(lines);
            return;
        }
        if segment.depth == self.depth {
            self.places = self.places.iter().flat_map(|s| [*s, *s]).collect();
            self.depth += 1;
        }
        let (low, high) = segment.split();
        let (first, span) = self.extent(hash, segment.depth);
        self.places[first..first + span / 2].fill(low);
        self.places[first + span / 2..first + span].fill(high);
    }

    /// First place and number of places of the segment of this depth that holds `hash` (G5).
    fn extent(&self, hash: u64, depth: u8) -> (usize, usize) {
        let span = 1 << (self.depth - depth);
        (self.index(hash) & !(span - 1), span)
    }

    /// Removes an entry and returns its value and expiry.
    pub(crate) fn take(&mut self, hash: u64, key: &[u8]) -> Option<crate::entry::Owned> {
        let (segment, place) = self.locate(hash, key)?;
        let entry = segment.at(place);
        let expire_ms = entry.expire_ms();
        self.unhook(segment, place, hash);
        let value = entry.bury();
        self.shrink(hash, false);
        Some(crate::entry::Owned { value, expire_ms })
    }

    /// Removes an entry. Returns whether it had an expiry; `None` if there was no entry.
    pub(crate) fn remove(&mut self, hash: u64, key: &[u8]) -> Option<bool> {
        self.spot(hash, key).map(|spot| self.remove_at(spot, hash))
    }

    /// Removes the entry at `spot`, which must come from [`Directory::spot`] with no insertion or removal
    /// since. Returns whether it had an expiry.
    pub(crate) fn remove_at(&mut self, spot: Spot, hash: u64) -> bool {
        let Spot { segment, place } = spot;
        let entry = segment.at(place);
        let had_expire = entry.expire_ms().is_some();
        self.unhook(segment, place, hash);
        entry.discard();
        self.shrink(hash, false);
        had_expire
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

    /// Gives memory back after a removal: merges small buddies, shrinks a little table, compacts a mostly
    /// dead segment. With `short` memory a quarter of dead bytes is enough.
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
            let smaller = FORMS.into_iter().rfind(|lines| *lines < segment.lines);
            if let (Some(lines), 0) = (smaller, self.depth)
                && segment.len() <= cap(lines) / 2
            {
                self.places[0] = segment.change_form(lines);
                return;
            }
            let header = segment.header();
            let much = if short { 3 * header.dead } else { header.dead };
            if header.dead as usize > 2 * PAGE && much > header.live {
                segment.compact(0);
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
        // Halves the directory when no segment needs its last bit. Checked rarely; O(places) then.
        if merged.depth + 1 == self.depth && self.places.iter().all(|s| s.depth < self.depth) {
            self.places = self.places.iter().copied().step_by(2).collect();
            self.depth -= 1;
        }
        true
    }

    /// Sets or clears an expiry. Returns whether there was one; `None` if the key is absent.
    pub(crate) fn set_expire(&mut self, hash: u64, key: &[u8], expire: Option<u64>) -> Option<bool> {
        let (segment, place) = self.locate(hash, key)?;
        let mut entry = segment.at(place);
        let old = entry.expire_ms();
        if entry.overwrite_expire(expire) {
            segment.forget_expire(old);
            segment.note_expire(expire);
        } else {
            // The outline changes, so the entry is written anew with its own content.
            let bytes_wanted = entry.room() + 8;
            segment.make_room(bytes_wanted);
            let old_entry = segment.at(place);
            let before = Bytes::of(old_entry);
            let payload = old_entry.payload_to_move();
            let times = Times { expire_ms: expire, ..old_entry.times() };
            let bytes = room(old_entry.key(), &payload, times);
            let fresh = segment.alloc(bytes);
            let access = old_entry.access().load(std::sync::atomic::Ordering::Relaxed);
            // SAFETY: `alloc` gave exactly that much room, exclusively; the key is read before its box is
            // freed.
            unsafe { fresh.write((bytes / 8) as u16, old_entry.key(), payload, times, access) };
            segment.forget_expire(old);
            segment.note_expire(expire);
            segment.line_mut(place.line).set(place.slot, tag(hash), fresh);
            segment.bury_room(old_entry.room());
            old_entry.discard_moved();
            segment.mark_expires(place, expire.is_some());
            self.bytes += Bytes::of(fresh) - before;
        }
        self.expires = self.expires + usize::from(expire.is_some()) - usize::from(old.is_some());
        Some(old.is_some())
    }

    /// Clears the time of the last change of a key's value.
    pub(crate) fn forget_changed(&mut self, hash: u64, key: &[u8]) {
        if let Some((segment, place)) = self.locate(hash, key) {
            segment.at(place).forget_changed();
        }
    }

    /// Visits the entries whose home is the line at `position`, a place in hash order with the shard's bits
    /// on top. Returns the position of the next line; `None` behind the last one of the shard. O(entries of a
    /// line), more if lines overflow.
    pub(crate) fn visit_line(&self, position: u64, f: &mut dyn FnMut(u64, EntryRef<'_>)) -> Option<u64> {
        let shard_end = next_multiple(position, 64 - SHARD_BITS);
        let Some(segment) = self.segment(position) else { return shard_end };
        let shift = SHARD_BITS + segment.depth as u32;
        let line = segment.home(position);
        let mut at = line;
        loop {
            let here = segment.line(at);
            for slot in here.occupied() {
                let entry = EntryRef::new(here.entry(slot));
                let hash = hash_bytes(entry.key());
                if segment.home(hash) == line {
                    f(hash, entry);
                }
            }
            if here.over == 0 {
                break;
            }
            at = segment.next_line(at);
            if at == line {
                break;
            }
        }
        if line + 1 == usize::from(segment.lines) {
            return next_multiple(position, 64 - shift);
        }
        // The smallest x whose line is `line + 1`.
        let x = ((line as u64 + 1) << 32).div_ceil(u64::from(segment.lines));
        let prefix = if shift == 0 { 0 } else { position >> (64 - shift) << (64 - shift) };
        Some(prefix | (x << 32) >> shift)
    }

    /// Visits every entry of the segment at `position`. Returns the next segment's position in this shard.
    /// O(entries of the segment).
    pub(crate) fn visit_segment(&self, position: u64, f: &mut dyn FnMut(EntryRef<'_>)) -> Option<u64> {
        let Some(segment) = self.segment(position) else { return next_multiple(position, 64 - SHARD_BITS) };
        let mut walk = Walk::new(segment);
        while let Some((_, entry)) = walk.next() {
            f(EntryRef::new(entry));
        }
        next_multiple(position, 64 - SHARD_BITS - segment.depth as u32)
    }

    /// Notes that a field of a key's hash expires at `at` (G4).
    pub(crate) fn field_expires(&mut self, hash: u64, at: u64) {
        if let Some(segment) = self.segment(hash) {
            segment.note_field(at);
        }
    }

    /// Adds to `keys` those keys of the segment at `position` that have expired, or have expired fields, at
    /// `now`. Returns the next segment's position. O(1) if nothing can have expired (G4), else O(entries of
    /// the segment).
    pub(crate) fn expired(&mut self, position: u64, now: u64, keys: &mut Vec<Box<[u8]>>) -> Option<u64> {
        let Some(segment) = self.segment(position) else { return next_multiple(position, 64 - SHARD_BITS) };
        if segment.header().next_expire <= now {
            let mut soonest = u64::MAX;
            let mut walk = Walk::new(segment);
            while let Some((_, entry)) = walk.next() {
                let Some(at) = EntryRef::new(entry).next_expiry() else { continue };
                // Keys that are due count too: they may stay, or move to another database, before they are
                // removed.
                soonest = soonest.min(at);
                if at <= now {
                    keys.push(entry.key().into());
                }
            }
            segment.header_mut().next_expire = soonest;
        }
        next_multiple(position, 64 - SHARD_BITS - segment.depth as u32)
    }

    /// A random entry: a random slot that is taken. O(1) unless the segments are nearly empty.
    pub(crate) fn random(&self, random: u64) -> Option<EntryRef<'_>> {
        if self.len == 0 {
            return None;
        }
        let mut at = (random >> 32) as usize % self.places.len();
        // Tries random slots, so that full and empty segments weigh as their keys do.
        let mut dice = random;
        for _ in 0..64 {
            let segment = self.places[at];
            dice = stdx::hash::hash_u64(dice);
            let place = Place::of(dice as usize % segment.slots());
            if segment.line(place.line).tags[place.slot] != 0 {
                return Some(EntryRef::new(segment.at(place)));
            }
            at = (dice >> 32) as usize % self.places.len();
        }
        // Nearly empty: take any entry of the next segment that has one.
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

    /// Bytes of tables and pages. O(segments).
    pub(crate) fn footprint(&self) -> usize {
        self.segments().map(Segment::footprint).sum()
    }

    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let segment = *self.places.get(at)?;
            at += 1 << (self.depth - segment.depth);
            Some(segment)
        })
    }

    /// Checks G1 to G7; for tests. Panics if one is broken.
    pub(crate) fn check_invariants(&self) {
        let (mut len, mut expires, mut bytes) = (0, 0, Bytes::default());
        for segment in self.segments() {
            let header = segment.header();
            segment.check_marks();
            segment.check_form();
            let mut over = vec![0usize; usize::from(segment.lines)];
            let (mut live, mut count) = (0, 0);
            let mut walk = Walk::new(segment);
            while let Some((place, entry)) = walk.next() {
                let hash = hash_bytes(entry.key());
                assert!(self.segment(hash) == Some(segment), "entry in the wrong segment");
                assert_eq!(segment.line(place.line).tags[place.slot], tag(hash));
                let mut line = segment.home(hash);
                while line != place.line {
                    over[line] += 1;
                    line = segment.next_line(line);
                }
                live += entry.room();
                bytes += Bytes::of(entry);
                count += 1;
                if let Some(at) = entry.expire_ms() {
                    expires += 1;
                    assert!(header.next_expire <= at, "G4");
                }
                if let Some(at) = EntryRef::new(entry).field_expiry() {
                    assert!(header.next_expire <= at && header.fields, "G4: a field");
                }
            }
            for (line, expected) in over.into_iter().enumerate() {
                let counted = segment.line(line).over as usize;
                assert!(
                    counted == expected || counted == 255 && expected < 255,
                    "G2: overflow of line {line}"
                );
            }
            assert_eq!(live, header.live as usize);
            assert_eq!(count, segment.len());
            assert!(count <= cap(segment.lines), "G1");
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

/// The next multiple of 2^bits above `position`. `None` if that leaves the shard (2^56 positions).
fn next_multiple(position: u64, bits: u32) -> Option<u64> {
    let next = ((position >> bits) + 1).checked_shl(bits)?;
    let shard = 64 - SHARD_BITS;
    (next >> shard == position >> shard && next > position).then_some(next)
}
