//! The keys an overlay knows, in a hash table that can become large without ever being copied as a whole.
//!
//! ```text
//!   hash ─► Wide: one table, or 256 from 4,096 entries on ─► place ─► Slots: chunks of 1,024 that never move
//! ```
//!
//! - L1: nothing moves all entries at once. Doubling one large table would take and return its whole size
//!   from the system, and the page faults would delay other clients.
//! - L2: an entry of a table holds half of its hash, so growing a table reads nothing else.
//! - L3: entries stand one behind the other from the place their hash gives. A look-up waits for one line of
//!   memory; a table with separate hash bytes waits for two.
//!
//! Cost: look-up and insertion O(1). An insertion takes up to some 10 µs when one of the 256 tables grows.

use super::Cell;
use crate::intent::Intent;
use smallvec::SmallVec;

/// A hash table of many parts (L1).
pub(crate) struct Wide<T> {
    parts: SmallVec<[Table<T>; 1]>,
    len: usize,
}

/// An entry of a table.
pub(crate) trait Entry: Copy {
    /// Marks a free place.
    const NONE: Self;

    fn is_none(&self) -> bool;

    /// Half of the entry's hash (L2).
    fn half(&self) -> u32;
}

/// Entries in a single table. More are spread over [`PARTS`] tables.
const TOGETHER: usize = 4096;
const PARTS: usize = 256;
const ROOM_MIN: usize = 8;

/// An open hash table. The number of places is a power of two, and at least a fourth of them is free (L3).
struct Table<T> {
    entries: Vec<T>,
    len: usize,
}

impl<T: Entry> Table<T> {
    /// A table with room for `len` entries.
    fn with_room(len: usize) -> Table<T> {
        let places = if len == 0 { 0 } else { (len + len / 3 + 1).next_power_of_two().max(ROOM_MIN) };
        Table { entries: vec![T::NONE; places], len: 0 }
    }

    /// Where to look first for entries with this half of a hash. All bits count, because those of one part
    /// share some.
    #[inline]
    fn first(&self, half: u32) -> usize {
        let mixed = u64::from(half.wrapping_mul(0x9E37_79B9));
        ((mixed * self.entries.len() as u64) >> 32) as usize
    }

    #[inline]
    fn find(&self, half: u32, mut same: impl FnMut(&T) -> bool) -> Option<&T> {
        let mut at = self.first(half);
        loop {
            let entry = self.entries.get(at)?;
            if entry.is_none() {
                return None;
            }
            if entry.half() == half && same(entry) {
                return Some(entry);
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }

    /// Adds an entry that is not in the table.
    #[inline]
    fn insert(&mut self, entry: T) {
        if !self.has_room(1) {
            self.make_room(self.len + 1);
        }
        let mut at = self.first(entry.half());
        while !self.entries[at].is_none() {
            at = (at + 1) & (self.entries.len() - 1);
        }
        self.entries[at] = entry;
        self.len += 1;
    }

    #[inline]
    fn has_room(&self, more: usize) -> bool {
        (self.len + more) * 4 <= self.entries.len() * 3
    }

    #[cold]
    fn make_room(&mut self, more: usize) {
        let old = std::mem::replace(self, Table::with_room(self.len + more));
        old.into_entries().for_each(|entry| self.insert(entry));
    }

    fn into_entries(self) -> impl Iterator<Item = T> {
        self.entries.into_iter().filter(|entry| !entry.is_none())
    }
}

impl<T: Entry> Default for Wide<T> {
    fn default() -> Wide<T> {
        Wide { parts: SmallVec::from_buf([Table::with_room(0)]), len: 0 }
    }
}

impl<T: Entry> Wide<T> {
    /// The part for this half of a hash.
    #[inline]
    fn part(&self, half: u32) -> usize {
        if self.parts.len() == 1 { 0 } else { (half >> 16) as usize % PARTS }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// An entry of this hash for which `same` is true.
    #[inline]
    pub(crate) fn find(&self, hash: u64, same: impl FnMut(&T) -> bool) -> Option<&T> {
        let half = hash as u32;
        self.parts[self.part(half)].find(half, same)
    }

    /// Adds an entry that is not in the table.
    #[inline]
    pub(crate) fn insert(&mut self, entry: T) {
        if self.len == TOGETHER && self.parts.len() == 1 {
            self.divide(0);
        }
        let part = self.part(entry.half());
        self.parts[part].insert(entry);
        self.len += 1;
    }

    /// Makes room for `more` entries.
    pub(super) fn reserve(&mut self, more: usize) {
        if self.parts.len() == 1 && self.len + more > TOGETHER {
            self.divide(more);
        } else if self.parts.len() == 1 && !self.parts[0].has_room(more) {
            self.parts[0].make_room(more);
        }
    }

    /// Spreads the entries over many tables, with room for `more` others.
    #[cold]
    fn divide(&mut self, more: usize) {
        let room = (self.len + more) / PARTS * 9 / 8;
        let parts = (0..PARTS).map(|_| Table::with_room(room)).collect();
        for entry in std::mem::replace(&mut self.parts, parts).into_iter().flat_map(Table::into_entries) {
            let part = self.part(entry.half());
            self.parts[part].insert(entry);
        }
    }
}

/// A known key with its changes.
pub(super) struct Slot {
    pub(super) hash: u64,
    pub(super) db: usize,
    pub(super) key: Box<[u8]>,
    pub(super) cell: Cell,
}

/// How many slots ahead to prefetch when slots are visited out of order.
const AHEAD: usize = 8;

impl Slot {
    fn prefetch(&self) {
        let at = std::ptr::from_ref(self).cast::<u8>();
        (0..size_of::<Slot>()).step_by(64).for_each(|byte| stdx::cache::prefetch_at(at.wrapping_add(byte)));
    }
}

/// Half of a slot's hash, and the slot's place.
#[derive(Clone, Copy)]
struct SlotPlace(u32, u32);

impl Entry for SlotPlace {
    const NONE: SlotPlace = SlotPlace(0, u32::MAX);

    #[inline]
    fn is_none(&self) -> bool {
        self.1 == u32::MAX
    }

    #[inline]
    fn half(&self) -> u32 {
        self.0
    }
}

/// Slots of a chunk.
const CHUNK: usize = 1024;

/// All keys an overlay knows, in the order in which it learned them.
#[derive(Default)]
pub(super) struct Slots {
    chunks: Vec<Vec<Slot>>,
    index: Wide<SlotPlace>,
}

impl Slots {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Makes room for `keys` more keys.
    pub(super) fn reserve(&mut self, keys: usize) {
        self.index.reserve(keys);
        self.chunks.reserve(keys.div_ceil(CHUNK));
        if self.chunks.is_empty() {
            self.chunks.push(Vec::with_capacity(keys.min(CHUNK)));
        }
    }

    #[inline]
    pub(super) fn at(&self, place: u32) -> Option<&Slot> {
        self.chunks.get(place as usize / CHUNK)?.get(place as usize % CHUNK)
    }

    #[inline]
    pub(super) fn find(&self, db: usize, hash: u64, key: &[u8]) -> Option<u32> {
        let same = |place: &SlotPlace| {
            let slot = &self[place.1];
            slot.hash == hash && slot.db == db && *slot.key == *key
        };
        self.index.find(hash, same).map(|place| place.1)
    }

    /// Adds a key that is not known, and returns its place.
    pub(super) fn push(&mut self, db: usize, hash: u64, key: &[u8]) -> u32 {
        let place = self.len();
        if place.is_multiple_of(CHUNK) && self.chunks.len() == place / CHUNK {
            self.chunks.push(Vec::with_capacity(if place == 0 { 0 } else { CHUNK }));
        }
        let slot = Slot { hash, db, key: key.into(), cell: Cell::default() };
        self.chunks[place / CHUNK].push(slot);
        self.index.insert(SlotPlace(hash as u32, place as u32));
        place as u32
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.chunks.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.chunks.iter_mut().flatten()
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = Slot> {
        self.chunks.into_iter().flatten()
    }

    /// All keys by shard, each shard's sorted by hash. O(keys · log keys).
    pub(super) fn into_shards(mut self) -> Vec<(usize, Vec<Intent>)> {
        let places = self.iter().zip(0..).map(|(slot, place)| (slot.hash, place));
        let mut order: Vec<(u64, u32)> = places.collect();
        order.sort_unstable();
        let shards = order.chunk_by(|a, b| crate::shard_of(a.0) == crate::shard_of(b.0));
        let mut ahead = order.iter().skip(AHEAD);
        let intents = |order: &[(u64, u32)]| {
            let intent = |(hash, place): &(u64, u32)| {
                ahead.next().into_iter().for_each(|(_, place)| self[*place].prefetch());
                let Slot { db, key, cell, .. } = &mut self[*place];
                let (key, cell) = (std::mem::take(key), Some(std::mem::take(cell)));
                Intent { hash: *hash, db: *db as u32, key, cell }
            };
            (crate::shard_of(order[0].0), order.iter().map(intent).collect())
        };
        shards.map(intents).collect()
    }
}

impl std::ops::Index<u32> for Slots {
    type Output = Slot;

    #[inline]
    fn index(&self, place: u32) -> &Slot {
        &self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }
}

impl std::ops::IndexMut<u32> for Slots {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut Slot {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use stdx::hash::{hash_bytes, hash_u64};

    #[test]
    fn every_key_keeps_its_place() {
        let mut slots = Slots::default();
        for n in 0..20_000u32 {
            let key = n.to_le_bytes();
            assert_eq!(slots.find(1, hash_bytes(&key), &key), None);
            assert_eq!(slots.push(1, hash_bytes(&key), &key), n);
        }
        assert_eq!(slots.len(), 20_000);
        for n in 0..20_000u32 {
            let key = n.to_le_bytes();
            assert_eq!(slots.find(1, hash_bytes(&key), &key), Some(n));
            assert_eq!(slots.find(0, hash_bytes(&key), &key), None);
            assert_eq!(*slots[n].key, key);
        }
        assert!(slots.at(20_000).is_none());
        assert!(slots.iter().zip(0u32..).all(|(slot, n)| *slot.key == n.to_le_bytes()));
        let shards = slots.into_shards();
        let of = |(shard, intents): &(usize, Vec<Intent>)| {
            intents.iter().all(|intent| crate::shard_of(intent.hash) == *shard)
        };
        assert!(shards.iter().all(of));
        let sorted = shards.iter().flat_map(|(_, intents)| intents.iter().map(|intent| intent.hash));
        let sorted: Vec<u64> = sorted.collect();
        assert!(sorted.is_sorted() && sorted.len() == 20_000);
    }

    #[test]
    fn room_made_before_changes_nothing() {
        for (reserved, keys) in [(10, 3000), (5000, 6000), (0, 1), (3000, 3000)] {
            let mut slots = Slots::default();
            slots.reserve(reserved);
            (0..keys).for_each(|n: u32| _ = slots.push(0, hash_u64(n.into()), &n.to_le_bytes()));
            let found = |n: u32| slots.find(0, hash_u64(n.into()), &n.to_le_bytes());
            assert!((0..keys).all(|n| found(n) == Some(n)), "{reserved}, {keys}");
        }
    }

    impl Entry for (u64, u32) {
        const NONE: (u64, u32) = (0, u32::MAX);

        fn is_none(&self) -> bool {
            self.1 == u32::MAX
        }

        fn half(&self) -> u32 {
            self.0 as u32
        }
    }

    #[test]
    fn a_wide_table_is_a_table() {
        let (mut wide, mut model, mut dice) = (Wide::<(u64, u32)>::default(), HashMap::new(), 1u64);
        for turn in 0..60_000u32 {
            dice = hash_u64(dice);
            // Few different hashes, so that entries are found again; some share their half.
            let key = (dice >> 20) % 30_000;
            let hash = hash_u64(key >> 1) & !(1 << 63) | key << 63;
            match dice % 2 {
                0 => assert_eq!(wide.find(hash, |e| e.0 == hash).map(|e| e.1), model.get(&hash).copied()),
                _ if !model.contains_key(&hash) => {
                    wide.insert((hash, turn));
                    model.insert(hash, turn);
                }
                _ => {}
            }
            assert_eq!(wide.len(), model.len());
        }
        assert!(wide.parts.len() == PARTS && wide.len() > TOGETHER);
    }
}
