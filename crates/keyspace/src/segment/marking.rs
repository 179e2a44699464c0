//! Eviction's part of segments and directories: counting bytes, keeping marks true (G6), looking for victims.

use super::*;
use crate::evict::policy::{self, EMPTY};
use crate::evict::{Find, Found};

/// Bytes of entries: in pages, and outside.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Bytes {
    pub(crate) rooms: i64,
    pub(crate) outside: i64,
}

impl Bytes {
    #[inline]
    pub(super) fn of(entry: Raw) -> Bytes {
        Bytes { rooms: entry.room() as i64, outside: entry.outside_bytes() as i64 }
    }
}

impl std::ops::AddAssign for Bytes {
    #[inline]
    fn add_assign(&mut self, other: Bytes) {
        self.rooms += other.rooms;
        self.outside += other.outside;
    }
}

impl std::ops::Sub for Bytes {
    type Output = Bytes;

    #[inline]
    fn sub(self, other: Bytes) -> Bytes {
        Bytes { rooms: self.rooms - other.rooms, outside: self.outside - other.outside }
    }
}

impl Segment {
    fn marks<'a>(self) -> Option<&'a Marks> {
        self.header().marks.as_deref()
    }

    fn marks_mut<'a>(self) -> Option<&'a mut Marks> {
        self.header_mut().marks.as_deref_mut()
    }

    /// The marks of the segment. Makes them from the last uses of the entries if there are none. O(entries),
    /// once.
    fn marked<'a>(self, time: Time, idle: &dyn Fn(u8) -> u8) -> &'a mut Marks {
        if self.marks().is_none() {
            let mut marks = Marks::new(self.slots(), time.tick);
            let mut walk = Walk::new(self);
            while let Some((place, entry)) = walk.next() {
                let access = entry.access().load(std::sync::atomic::Ordering::Relaxed);
                marks.set(place.number(), policy::byte(0, idle(access)));
                marks.set_expires(place.number(), entry.expire_ms().is_some());
            }
            self.header_mut().marks = Some(marks);
        }
        self.marks_mut().expect("made above")
    }

    #[inline]
    pub(super) fn mark_new(self, place: Place, expires: bool) {
        if let Some(marks) = self.marks_mut() {
            marks.set(place.number(), policy::fresh(0));
            marks.set_expires(place.number(), expires);
        }
    }

    #[inline]
    pub(super) fn mark_expires(self, place: Place, expires: bool) {
        if let Some(marks) = self.marks_mut() {
            marks.set_expires(place.number(), expires);
        }
    }

    /// Makes empty marks with the ghosts of another segment, whose entries come here.
    pub(super) fn inherit(self, from: Segment) {
        if let Some(others) = from.marks() {
            let mut marks = Marks::new(self.slots(), others.tick());
            marks.inherit(others);
            self.header_mut().marks = Some(marks);
        }
    }

    pub(super) fn take_mark(self, to: Place, other: Segment, from: Place) {
        if let (Some(marks), Some(others)) = (self.marks_mut(), other.marks()) {
            marks.set(to.number(), others.byte(from.number()));
            marks.set_expires(to.number(), others.expires(from.number()));
        }
    }

    /// Before a merge: gives both segments marks of the same tick, unless neither has any.
    pub(super) fn align(self, other: Segment) {
        let threshold = policy::CANDIDATES[policy::FIRST];
        match (self.marks(), other.marks()) {
            (Some(mine), Some(others)) => mine.align(others, threshold),
            (None, None) => {}
            (Some(marks), None) => drop(other.marked(Time { tick: marks.tick(), threshold }, &|_| 0)),
            (None, Some(marks)) => drop(self.marked(Time { tick: marks.tick(), threshold }, &|_| 0)),
        }
    }

    /// Checks G7.
    pub(super) fn check_form(self) {
        let header = self.header();
        assert!(FORMS.contains(&self.lines), "G7");
        assert!(self.depth == 0 || self.lines == table::LINES, "G7: a little table below the top");
        let (pages, little) = header.pages();
        assert!(little == 0 || pages == 0 && self.lines < table::LINES, "G3: a little page beside others");
    }

    /// Checks G6.
    pub(super) fn check_marks(self) {
        let Some(marks) = self.marks() else { return };
        for number in 0..self.slots() {
            let place = Place::of(number);
            let there = self.line(place.line).tags[place.slot] != 0;
            assert_eq!(there, marks.byte(number) != EMPTY, "G6: slot {number}");
            let expires = there && self.at(place).expire_ms().is_some();
            assert_eq!(expires, marks.expires(number), "G6: expiry of slot {number}");
        }
    }
}

impl Spot {
    /// Notes a use of the entry. O(1), except for the first one of a tick in its segment.
    #[inline]
    pub(crate) fn used(self, time: Time) {
        if let Some(marks) = self.segment.marks() {
            marks.used(self.place.number(), time);
        }
    }

    /// Sets how often an entry was used, and its age in ticks.
    pub(crate) fn set_mark(self, byte: u8) {
        if let Some(marks) = self.segment.marks() {
            marks.set(self.place.number(), byte);
        }
    }

    /// How often the entry was used; `None` if its segment has no marks.
    pub(crate) fn freq(self) -> Option<u8> {
        self.segment.marks().map(|marks| policy::freq(marks.byte(self.place.number())))
    }
}

impl Directory {
    /// Bytes of all entries. A change of a value in place counts only after `recount`.
    #[inline]
    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Counts the outside bytes of an entry anew. `before`: the number counted so far.
    #[inline]
    pub(crate) fn recount(&mut self, entry: Raw, before: usize) {
        self.bytes.outside += entry.outside_bytes() as i64 - before as i64;
    }

    /// Marks a new entry, with the use count of its ghost if the segment has one.
    pub(crate) fn note_insert(&mut self, spot: Spot, hash: u64, time: Time, ghosts: Option<usize>) {
        let marks = spot.segment.marked(time, &|_| 0);
        if marks.tick() != time.tick {
            marks.grow_older(time);
        }
        let known = ghosts.and_then(|buckets| marks.take_ghost(hash, buckets));
        marks.set(spot.place.number(), policy::fresh(known.map_or(0, |freq| freq + 1)));
    }

    /// Remembers the frequency of an evicted key, for its return.
    pub(crate) fn put_ghost(&mut self, hash: u64, freq: u8, buckets: usize) {
        if let Some(marks) = self.segment(hash).and_then(Segment::marks_mut) {
            marks.put_ghost(hash, freq, buckets);
        }
    }

    /// Looks for a victim near a random place, in further segments until enough entries were seen. Returns
    /// how many entries and segments it visited, and the best victim. Makes marks for segments without them,
    /// O(entries) each.
    pub(crate) fn find_victim(&mut self, random: u64, find: &Find<'_>) -> (usize, usize, Option<Found>) {
        let (mut seen, mut looked, mut best) = (0, 0, None::<Found>);
        if self.places.is_empty() {
            return (0, 0, None);
        }
        let mut at = (random >> 32) as usize % self.places.len();
        for _ in 0..find.segments.min(self.places.len()) {
            let segment = self.places[at];
            let span = 1 << (self.depth - segment.depth);
            at = ((at & !(span - 1)) + span) % self.places.len();
            if find.expiring && segment.header().expires == 0 {
                continue;
            }
            looked += 1;
            let marks = segment.marked(find.time, find.idle);
            if marks.tick() != find.time.tick {
                marks.grow_older(find.time);
            }
            let from = random as u32 as usize % segment.slots();
            let (count, found) = segment.look(marks, from, find, find.want - seen);
            seen += count;
            if let Some(found) = found
                && best.as_ref().is_none_or(|best| found.rank < best.rank)
            {
                best = Some(found);
            }
            if seen >= find.want {
                break;
            }
        }
        (seen, looked, best)
    }

    /// Removes an entry for eviction. Returns whether it had an expiry; `None` if there was no entry.
    pub(crate) fn evict(&mut self, hash: u64, key: &[u8]) -> Option<bool> {
        let (segment, place) = self.locate(hash, key)?;
        let entry = segment.at(place);
        let had_expire = entry.expire_ms().is_some();
        self.unhook(segment, place, hash);
        entry.discard();
        self.shrink(hash, true);
        if self.len == 0 {
            // A cache of few large values must not keep a table in every shard that ever had a key.
            *self = Directory::default();
        }
        Some(had_expire)
    }
}

impl Segment {
    /// How many entries of some slots were looked at, and the best victim.
    fn look(self, marks: &Marks, from: usize, find: &Find<'_>, want: usize) -> (usize, Option<Found>) {
        let found = |rank: u64, number: usize| Found {
            rank,
            byte: marks.byte(number),
            key: self.at(Place::of(number)).key().into(),
        };
        match find.ranks {
            Some(ranks) => {
                let (seen, best) = marks.sample(from, want, ranks, find.expiring);
                (seen, best.map(|(rank, slot)| found(u64::from(rank), slot)))
            }
            // The entry that expires first.
            None if find.soonest => {
                let at = |number: usize| self.at(Place::of(number));
                let slots: Vec<usize> = marks.some(from, want, find.expiring).collect();
                let soonest =
                    slots.iter().map(|slot| (at(*slot).expire_ms().unwrap_or(u64::MAX), *slot)).min();
                (slots.len(), soonest.map(|(at, slot)| found(at, slot)))
            }
            // Any entry.
            None => match marks.some(from, 1, find.expiring).next() {
                Some(slot) => (want, Some(found(0, slot))),
                None => (0, None),
            },
        }
    }
}
