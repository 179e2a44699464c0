//! Very many keys that were read for an overlay: those a script declares, and those read along with one it asked for, because
//! it would wait for each.
//!
//! ```text
//!   a loop fills KeyBatches: names and short strings one behind the other ─► Near: what came stays as it came, and an index
//! ```
//!
//! - N1: what came is never moved, and a batch is so small that to grow it takes some microseconds.
//! - N2: a key that was looked at is marked, and is the only kind that a commit has to check (O7).
//!
//! Cost: look-up O(1); 48 bytes a key beside its name and its string.

use super::slots::{Half, Wide};
use super::{Owned, Seen};
use crate::entry::EntryRef;
use std::cell::Cell;
use std::collections::BTreeMap;
use stdx::hash::hash_bytes;
use value::{Str, StrRef, Value, ValueRef};

/// A longer string is shared, not copied.
const TEXT_MAX: usize = 256;
/// Keys and bytes of a batch.
const BATCH_KEYS: usize = 1024;
const BATCH_BYTES: usize = 64 << 10;

/// Keys as they were at a snapshot, in batches.
#[derive(Default)]
pub struct KeyBatches {
    batches: Vec<KeyBatch>,
    len: usize,
}

impl KeyBatches {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Names, for tests.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.batches.iter().flat_map(|batch| batch.keys.iter().map(|key| batch.name(key)))
    }

    /// A batch that takes one more key.
    pub(crate) fn room(&mut self) -> &mut KeyBatch {
        let full = |batch: &KeyBatch| batch.keys.len() >= BATCH_KEYS || batch.bytes.len() >= BATCH_BYTES;
        if self.batches.last().is_none_or(full) {
            self.batches.push(KeyBatch::default());
        }
        self.len += 1;
        let last = self.batches.len() - 1;
        &mut self.batches[last]
    }
}

/// Some keys.
#[derive(Default)]
pub(crate) struct KeyBatch {
    /// Names, and short strings behind them.
    bytes: Vec<u8>,
    keys: Vec<Key>,
}

struct Key {
    hash: u64,
    at: usize,
    len: u32,
    read: Cell<bool>,
    held: Held,
    expire_ms: Option<u64>,
}

enum Held {
    /// There was no such key.
    Absent,
    /// So many bytes behind the name, and whether OBJECT ENCODING must answer `raw`.
    Text(u32, bool),
    Value(Value),
}

impl KeyBatch {
    pub(crate) fn push_entry(&mut self, hash: u64, entry: EntryRef<'_>) {
        match entry.value() {
            ValueRef::Str(StrRef::Flat(text)) if text.len() <= TEXT_MAX => {
                self.push_text(hash, entry.key(), text, entry.is_raw(), entry.expire_ms());
            }
            _ => self.push_value(hash, entry.key(), entry.to_owned()),
        }
    }

    pub(crate) fn push_owned(&mut self, hash: u64, key: &[u8], owned: &Owned) {
        match &owned.value {
            Value::Str(s)
                if s.len() <= TEXT_MAX
                    && let StrRef::Flat(text) = s.as_ref() =>
            {
                self.push_text(hash, key, text, s.is_raw(), owned.expire_ms);
            }
            _ => self.push_value(hash, key, owned.clone()),
        }
    }

    pub(crate) fn push_absent(&mut self, hash: u64, key: &[u8]) {
        self.push(hash, key, Held::Absent, None);
    }

    fn push_text(&mut self, hash: u64, key: &[u8], text: &[u8], raw: bool, expire_ms: Option<u64>) {
        let held = Held::Text(text.len() as u32, raw);
        self.push(hash, key, held, expire_ms);
        self.bytes.extend_from_slice(text);
    }

    fn push_value(&mut self, hash: u64, key: &[u8], owned: Owned) {
        self.push(hash, key, Held::Value(owned.value), owned.expire_ms);
    }

    fn push(&mut self, hash: u64, key: &[u8], held: Held, expire_ms: Option<u64>) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.keys.push(Key { hash, at, len: key.len() as u32, read: Cell::default(), held, expire_ms });
    }

    #[inline]
    fn name(&self, key: &Key) -> &[u8] {
        &self.bytes[key.at..][..key.len as usize]
    }

    #[inline]
    fn seen<'a>(&'a self, key: &'a Key) -> Option<Seen<'a>> {
        let expire_ms = key.expire_ms;
        Some(match &key.held {
            Held::Absent => return None,
            Held::Text(len, raw) => {
                let bytes = &self.bytes[key.at + key.len as usize..][..*len as usize];
                Seen::Text { bytes, raw: *raw, expire_ms }
            }
            Held::Value(value) => Seen::Value { value, expire_ms },
        })
    }
}

/// A place in the index: half of a key's hash, its batch and its place there.
struct Place(u32, u32);

impl Half for Place {
    #[inline]
    fn half(&self) -> u32 {
        self.0
    }
}

const PLACE_BITS: u32 = 16;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;

#[derive(Default)]
pub(super) struct Near {
    /// What came, and of which database (N1).
    batches: Vec<(usize, KeyBatch)>,
    index: Wide<Place>,
    /// Parts of the hash order that were read whole: database and start to end (exclusive).
    ranges: BTreeMap<(usize, u64), u64>,
    /// How many of them were looked at (N2).
    read: Cell<usize>,
}

impl Near {
    /// Keys that can be looked at.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Keys that were.
    #[inline]
    pub(super) fn read(&self) -> usize {
        self.read.get()
    }

    /// Adds all keys with a hash from `from` to before `to`. O(keys).
    pub(super) fn add_range(&mut self, db: usize, from: u64, to: u64, keys: KeyBatches) {
        let to = to.min(self.end(db, from));
        if self.add(db, to, keys) {
            self.ranges.insert((db, from), to);
        }
    }

    /// Adds the keys with a hash before `to`; false if there are so many already that none were added. O(keys).
    pub(super) fn add(&mut self, db: usize, to: u64, keys: KeyBatches) -> bool {
        if self.batches.len() + keys.batches.len() > PLACE_MASK as usize {
            return false;
        }
        self.index.reserve(keys.len);
        for keys in keys.batches {
            let batch = self.batches.len() as u32;
            for (i, key) in keys.keys.iter().enumerate().filter(|(_, key)| key.hash < to) {
                self.index.insert(Place(key.hash as u32, batch << PLACE_BITS | i as u32));
            }
            self.batches.push((db, keys));
        }
        true
    }

    /// Where the next part of the hash order begins that was read whole.
    pub(super) fn end(&self, db: usize, hash: u64) -> u64 {
        let next = self.ranges.range((db, hash)..).next();
        next.filter(|((range_db, _), _)| *range_db == db).map_or(u64::MAX, |((_, from), _)| *from)
    }

    /// Whether all keys of a hash stand here.
    pub(super) fn covers(&self, db: usize, hash: u64) -> bool {
        let range = self.ranges.range(..=(db, hash)).next_back();
        range.is_some_and(|((range_db, _), to)| *range_db == db && hash < *to)
    }

    #[inline]
    fn key(&self, place: u32) -> (&KeyBatch, usize, &Key) {
        let (db, batch) = &self.batches[(place >> PLACE_BITS) as usize];
        (batch, *db, &batch.keys[(place & PLACE_MASK) as usize])
    }

    #[inline]
    fn is_at(&self, place: &Place, db: usize, hash: u64, name: &[u8]) -> bool {
        if place.0 != hash as u32 {
            return false;
        }
        let (batch, key_db, key) = self.key(place.1);
        key.hash == hash && key_db == db && batch.name(key) == name
    }

    #[inline]
    fn find(&self, db: usize, name: &[u8]) -> Option<(&KeyBatch, &Key)> {
        if self.index.len() == 0 {
            return None;
        }
        let hash = hash_bytes(name);
        let place = self.index.find(hash, |place| self.is_at(place, db, hash, name))?;
        let (batch, _, key) = self.key(place.1);
        Some((batch, key))
    }

    #[inline]
    pub(super) fn holds(&self, db: usize, name: &[u8]) -> bool {
        self.find(db, name).is_some()
    }

    /// What a key was that stands here, which counts as read from now on (N2).
    #[inline]
    pub(super) fn look_at(&self, db: usize, name: &[u8]) -> Option<Option<Seen<'_>>> {
        let (batch, key) = self.find(db, name)?;
        if !key.read.replace(true) {
            self.read.set(self.read.get() + 1);
        }
        Some(batch.seen(key))
    }

    /// Takes a key out: what it was.
    pub(super) fn take(&mut self, db: usize, hash: u64, name: &[u8]) -> Option<Option<Owned>> {
        let Near { index, batches, .. } = self;
        let is_here = |place: &Place| {
            let (key_db, batch) = &batches[(place.1 >> PLACE_BITS) as usize];
            let key = &batch.keys[(place.1 & PLACE_MASK) as usize];
            place.0 == hash as u32 && key.hash == hash && *key_db == db && batch.name(key) == name
        };
        let place = index.take(hash, is_here)?;
        let (batch, _, key) = self.key(place.1);
        self.read.set(self.read.get() - usize::from(key.read.replace(false)));
        Some(batch.seen(key).map(Seen::to_owned))
    }

    /// Gives every key that was looked at to `f`, and forgets all. O(keys).
    pub(super) fn drain_read(&mut self, mut f: impl FnMut(usize, u64, &[u8], Option<Owned>)) {
        for (db, batch) in std::mem::take(self).batches {
            for key in batch.keys.iter().filter(|key| key.read.get()) {
                f(db, key.hash, batch.name(key), batch.seen(key).map(Seen::to_owned));
            }
        }
    }
}

/// What is written of a short string.
pub(super) fn text(bytes: &[u8], raw: bool) -> Value {
    Value::Str(if raw { Str::from_slice_raw(bytes) } else { Str::from_slice(bytes) })
}
