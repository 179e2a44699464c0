//! Many keys read for an overlay at once: those a script declares, the neighbours of one it asked for, and
//! those a handler missed.
//!
//! ```text
//!   a loop fills KeyBatches: names and short strings back to back ─► Near: the batches and an index
//!   a handler asks for keys: names alone ─► a loop reads each where it stands ─► Near
//! ```
//!
//! - N1: a batch that came is never moved. It is so small that growing it takes microseconds.
//! - N2: a key that was looked at is marked; a commit checks only marked keys (O7). A key that came twice is
//!   two keys here with the same content. Either may be marked; the index knows one of them.
//! - N3: most keys are looked at in the order in which they came, so the next one is tried first. After
//!   [`ASTRAY`] failures in a row it is tried rarely: it lies in cold memory. The index is made at the first
//!   failure.
//! - N4: a key with a short name and string is one line of memory.
//!
//! Cost: a look-up O(1), with one line of memory read if N3 holds. A key takes 64 bytes, with room for 31 of
//! its name and string, and 16 to 32 in the index.

use super::slots::{Entry, Wide};
use super::{Owned, Seen};
use crate::entry::EntryRef;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use value::{Str, StrRef, Value, ValueRef};

/// Longer strings are shared, not copied.
const TEXT_MAX: usize = 256;
/// A batch with this many keys or bytes takes no more.
const BATCH_KEYS: usize = 1024;
const BATCH_BYTES: usize = 64 << 10;

/// After this many keys in a row that were not the next one, the next is tried only every [`TRIED_EVERY`]
/// look-ups.
const ASTRAY: u32 = 8;
const TRIED_EVERY: u32 = 64;

/// Keys as they were at a snapshot, in batches. The last ones may have only their names.
#[derive(Default)]
pub struct KeyBatches {
    batches: Vec<KeyBatch>,
    len: usize,
    /// How many batches are read whole, and how many keys of the next one.
    read: (usize, usize),
}

impl KeyBatches {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Database and name of every key, in order.
    pub fn names(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.batches.iter().flat_map(|batch| batch.keys.iter().map(|key| (batch.db, batch.name(key))))
    }

    /// Visits every key: database, hash, name, and a function that gives what it was.
    pub(super) fn each(&self, mut f: impl FnMut(usize, u64, &[u8], &dyn Fn() -> Option<Owned>)) {
        for batch in &self.batches {
            for key in &batch.keys {
                f(batch.db, key.hash, batch.name(key), &|| batch.seen(key).map(Seen::to_owned));
            }
        }
    }

    /// A batch of this database with room for one more key. Counts that key.
    pub(crate) fn room(&mut self, db: usize) -> &mut KeyBatch {
        let full = |batch: &KeyBatch| {
            batch.db != db || batch.keys.len() >= BATCH_KEYS || batch.bytes.len() >= BATCH_BYTES
        };
        match self.batches.last() {
            None => self.batches.push(KeyBatch { db, ..KeyBatch::default() }),
            // A batch that follows a full one gets its room at once: many keys mean that more come.
            Some(last) if full(last) => {
                let (keys, bytes) = (last.keys.len().min(BATCH_KEYS), last.bytes.len());
                let (bytes, keys) = (Vec::with_capacity(bytes + bytes / 8), Vec::with_capacity(keys));
                self.batches.push(KeyBatch { db, bytes, keys, ..KeyBatch::default() });
            }
            Some(_) => {}
        }
        self.len += 1;
        let last = self.batches.len() - 1;
        &mut self.batches[last]
    }

    /// The next keys with only their names known, at most `count` of one batch. Counts them as read. `None`
    /// if there are none.
    pub(crate) fn unread(&mut self, count: usize) -> Option<(&mut KeyBatch, std::ops::Range<usize>)> {
        let (mut batch, mut from) = self.read;
        if self.batches.get(batch).is_some_and(|batch| batch.keys.len() == from) {
            (batch, from) = (batch + 1, 0);
        }
        let found = self.batches.get_mut(batch)?;
        let to = (from + count).min(found.keys.len());
        self.read = (batch, to);
        Some((found, from..to))
    }

    /// The memory they take, without shared values, estimated. O(batches).
    pub fn bytes(&self) -> usize {
        self.batches.iter().map(KeyBatch::mem_bytes).sum()
    }

    /// Whether every key is read, not just named.
    pub fn are_read(&self) -> bool {
        let (batch, keys) = self.read;
        let last = self.batches.len().saturating_sub(1);
        batch >= self.batches.len() || batch == last && keys == self.batches[last].keys.len()
    }
}

/// Some keys of one database.
#[derive(Default)]
pub(crate) struct KeyBatch {
    pub(crate) db: usize,
    /// Names and strings that have no room in their keys.
    bytes: Vec<u8>,
    keys: Vec<Key>,
    /// Values other than short strings.
    values: Vec<Value>,
    /// The index finds only keys with a hash below this. The others came in an earlier batch.
    upto: u64,
}

/// A key in one line of memory (N4).
#[repr(align(64))]
struct Key {
    hash: u64,
    /// When the key expires, or [`NEVER`].
    expire_ms: u64,
    /// Where the name begins in the batch, if it is not in `here`; and its length.
    at: u32,
    len: u32,
    held: Held,
    read: AtomicBool,
    /// The name if it fits, and behind it the string if that fits too.
    here: [u8; ROOM],
}

/// About how much a shared value takes, without the shared part.
const VALUE_BYTES: usize = 2 * size_of::<Value>();
/// Bytes of [`Key::here`].
const ROOM: usize = 31;
const NEVER: u64 = u64::MAX;
const _: () = assert!(size_of::<Key>() == 64);

#[derive(Clone, Copy)]
enum Held {
    /// The key is not read yet, or did not exist.
    Absent,
    /// A short string: where it begins in the batch if it is not in `here`, its length, and whether OBJECT
    /// ENCODING must answer `raw`.
    Text(u32, u16, bool),
    /// The number of the value in the batch.
    Value(u32),
}

impl Key {
    /// Whether the name stands in `here`.
    #[inline]
    fn has_name(&self) -> bool {
        self.len as usize <= ROOM
    }

    /// Whether a string of `len` bytes stands in `here`.
    #[inline]
    fn has_text(&self, len: usize) -> bool {
        self.len as usize + len <= ROOM
    }

    #[inline]
    fn expire_ms(&self) -> Option<u64> {
        (self.expire_ms != NEVER).then_some(self.expire_ms)
    }
}

impl KeyBatch {
    /// Bytes of the batch, with the places of its keys in the index.
    fn mem_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.keys.capacity() * (size_of::<Key>() + 2 * size_of::<NearPlace>())
            + self.values.capacity() * VALUE_BYTES
    }

    pub(crate) fn push_entry(&mut self, hash: u64, entry: EntryRef<'_>) {
        self.push(hash, entry.key());
        self.learn_entry(self.keys.len() - 1, entry);
    }

    pub(crate) fn push_owned(&mut self, hash: u64, key: &[u8], owned: &Owned) {
        self.push(hash, key);
        self.learn_owned(self.keys.len() - 1, owned);
    }

    /// Adds a key that did not exist, or that is to be read later.
    pub(crate) fn push(&mut self, hash: u64, key: &[u8]) {
        let (at, len) = (self.bytes.len() as u32, key.len() as u32);
        let mut here = [0; ROOM];
        match here.get_mut(..key.len()) {
            Some(room) => room.copy_from_slice(key),
            None => self.bytes.extend_from_slice(key),
        }
        let (held, read) = (Held::Absent, AtomicBool::default());
        self.keys.push(Key { hash, expire_ms: NEVER, at, len, held, read, here });
    }

    /// Notes what a key was.
    pub(crate) fn learn_entry(&mut self, i: usize, entry: EntryRef<'_>) {
        self.keys[i].expire_ms = entry.expire_ms().unwrap_or(NEVER);
        match entry.value() {
            ValueRef::Str(StrRef::Flat(text)) if text.len() <= TEXT_MAX => {
                self.learn_text(i, text, entry.is_raw());
            }
            _ => self.learn_value(i, entry.to_owned().value),
        }
    }

    /// Notes what a key was.
    pub(crate) fn learn_owned(&mut self, i: usize, owned: &Owned) {
        self.keys[i].expire_ms = owned.expire_ms.unwrap_or(NEVER);
        match &owned.value {
            Value::Str(s)
                if s.len() <= TEXT_MAX
                    && let StrRef::Flat(text) = s.as_ref() =>
            {
                self.learn_text(i, text, s.is_raw());
            }
            value => self.learn_value(i, value.clone()),
        }
    }

    fn learn_value(&mut self, i: usize, value: Value) {
        self.keys[i].held = Held::Value(self.values.len() as u32);
        self.values.push(value);
    }

    fn learn_text(&mut self, i: usize, text: &[u8], raw: bool) {
        let key = &mut self.keys[i];
        key.held = Held::Text(self.bytes.len() as u32, text.len() as u16, raw);
        match key.has_text(text.len()) {
            true => key.here[key.len as usize..][..text.len()].copy_from_slice(text),
            false => self.bytes.extend_from_slice(text),
        }
    }

    /// Hash and name of a key.
    #[inline]
    pub(crate) fn named(&self, i: usize) -> (u64, &[u8]) {
        (self.keys[i].hash, self.name(&self.keys[i]))
    }

    #[inline]
    fn name<'a>(&'a self, key: &'a Key) -> &'a [u8] {
        match key.has_name() {
            true => &key.here[..key.len as usize],
            false => &self.bytes[key.at as usize..][..key.len as usize],
        }
    }

    #[inline]
    fn seen<'a>(&'a self, key: &'a Key) -> Option<Seen<'a>> {
        let expire_ms = key.expire_ms();
        Some(match key.held {
            Held::Absent => return None,
            Held::Text(at, len, raw) => {
                let len = usize::from(len);
                let bytes = match key.has_text(len) {
                    true => &key.here[key.len as usize..][..len],
                    false => &self.bytes[at as usize..][..len],
                };
                Seen::Text { bytes, raw, expire_ms }
            }
            Held::Value(at) => Seen::Value { value: &self.values[at as usize], expire_ms },
        })
    }
}

/// A place in the index. It has the addresses of a key and of its longer name. So both can be fetched at once
/// from memory that another core may just have written.
#[derive(Clone, Copy)]
struct NearPlace {
    /// Half of the key's hash.
    half: u32,
    /// The number of the batch and of the key in it.
    place: u32,
    /// Where the name begins in its batch, and its length. [`LONG`]: ask the key.
    at: u16,
    len: u16,
}

const LONG: u16 = u16::MAX;
// A key enters a batch only if its name begins before this.
const _: () = assert!(BATCH_BYTES <= 1 << 16);

impl Entry for NearPlace {
    const NONE: NearPlace = NearPlace { half: 0, place: u32::MAX, at: 0, len: 0 };

    #[inline]
    fn is_none(&self) -> bool {
        self.place == u32::MAX
    }

    #[inline]
    fn half(&self) -> u32 {
        self.half
    }
}

/// Bits of a place that number the key in its batch.
const KEY_BITS: u32 = BATCH_KEYS.ilog2();
const KEY_MASK: u32 = BATCH_KEYS as u32 - 1;

#[inline]
fn place(batch: usize, key: usize) -> u32 {
    (batch as u32) << KEY_BITS | key as u32
}

#[derive(Default)]
pub(super) struct Near {
    /// The batches (N1).
    batches: Vec<KeyBatch>,
    /// Keys in all batches.
    keys: usize,
    /// Index of the first `indexed` batches (N3).
    index: RefCell<Wide<NearPlace>>,
    indexed: Cell<usize>,
    /// The last key found, and the one behind it (N3).
    last: Cell<(u32, u32)>,
    /// How often in a row the next key was not the one behind the last.
    astray: Cell<u32>,
    /// Parts of the hash order that were read whole: (database, start), and the end (exclusive).
    ranges: BTreeMap<(usize, u64), u64>,
    /// Keys that were looked at (N2).
    read: Cell<usize>,
}

impl Near {
    /// Keys that can be looked at.
    pub(super) fn len(&self) -> usize {
        self.keys
    }

    /// Keys that were looked at.
    #[inline]
    pub(super) fn read(&self) -> usize {
        self.read.get()
    }

    /// Adds all keys with a hash from `from` to before `to`. O(batches).
    pub(super) fn add_range(&mut self, db: usize, from: u64, to: u64, keys: KeyBatches) {
        let to = to.min(self.end(db, from));
        if self.add(to, keys).is_ok() {
            self.ranges.insert((db, from), to);
        }
    }

    /// Adds keys. The index will find those with a hash below `to`. Gives them back if there are too many.
    /// O(batches).
    pub(super) fn add(&mut self, to: u64, keys: KeyBatches) -> Result<(), KeyBatches> {
        if self.batches.len() + keys.batches.len() > (u32::MAX >> KEY_BITS) as usize {
            return Err(keys);
        }
        let first = place(self.batches.len(), 0);
        self.last.set((first, first));
        self.keys += keys.len;
        self.batches.extend(keys.batches.into_iter().map(|batch| KeyBatch { upto: to, ..batch }));
        Ok(())
    }

    /// Puts the batches that came since into the index. O(keys).
    #[cold]
    fn make_index(&self) {
        let mut index = self.index.borrow_mut();
        let new = &self.batches[self.indexed.get()..];
        index.reserve(new.iter().map(|batch| batch.keys.len()).sum());
        for (batch, i) in new.iter().zip(self.indexed.get()..) {
            for (key, j) in batch.keys.iter().zip(0..).filter(|(key, _)| key.hash < batch.upto) {
                // A script may name one key very often. Its places would crowd the index.
                let name = batch.name(key);
                if index.find(key.hash, |place| self.is_there(place, batch.db, name)).is_some() {
                    continue;
                }
                let len = u16::try_from(key.len).ok().filter(|_| !key.has_name()).unwrap_or(LONG);
                index.insert(NearPlace { half: key.hash as u32, place: place(i, j), at: key.at as u16, len });
            }
        }
        self.indexed.set(self.batches.len());
    }

    /// Where the next part of the hash order begins that was read whole; `u64::MAX` if there is none.
    pub(super) fn end(&self, db: usize, hash: u64) -> u64 {
        let next = self.ranges.range((db, hash)..).next();
        next.filter(|((range_db, _), _)| *range_db == db).map_or(u64::MAX, |((_, from), _)| *from)
    }

    /// Whether all keys with this hash were read.
    pub(super) fn covers(&self, db: usize, hash: u64) -> bool {
        let range = self.ranges.range(..=(db, hash)).next_back();
        range.is_some_and(|((range_db, _), to)| *range_db == db && hash < *to)
    }

    #[inline]
    fn key(&self, place: u32) -> (&KeyBatch, &Key) {
        let batch = &self.batches[(place >> KEY_BITS) as usize];
        (batch, &batch.keys[(place & KEY_MASK) as usize])
    }

    /// Whether this key stands at a place. The place need not exist.
    #[inline]
    fn is_at(&self, place: u32, db: usize, name: &[u8]) -> bool {
        let batch = self.batches.get((place >> KEY_BITS) as usize).filter(|batch| batch.db == db);
        let key = batch.and_then(|batch| Some((batch, batch.keys.get((place & KEY_MASK) as usize)?)));
        key.is_some_and(|(batch, key)| batch.name(key) == name)
    }

    /// Whether this key stands at a place of the index.
    #[inline]
    fn is_there(&self, place: &NearPlace, db: usize, name: &[u8]) -> bool {
        if place.len == LONG {
            return self.is_at(place.place, db, name);
        }
        let batch = &self.batches[(place.place >> KEY_BITS) as usize];
        let (at, len) = (usize::from(place.at), usize::from(place.len));
        len == name.len() && batch.db == db && &batch.bytes[at..at + len] == name
    }

    /// The place behind `at`.
    #[inline]
    fn behind(&self, at: u32) -> u32 {
        let batch = (at >> KEY_BITS) as usize;
        let more = ((at & KEY_MASK) as usize) + 1 < self.batches[batch].keys.len();
        if more { at + 1 } else { place(batch + 1, 0) }
    }

    #[inline]
    fn find(&self, db: usize, hash: u64, name: &[u8]) -> Option<u32> {
        if self.batches.is_empty() {
            return None;
        }
        let (last, next) = self.last.get();
        if self.is_at(last, db, name) {
            return Some(last);
        }
        let astray = self.astray.get();
        let tries = astray < ASTRAY || astray.is_multiple_of(TRIED_EVERY);
        let (found, astray) = match tries && self.is_at(next, db, name) {
            true => (next, 0),
            false => (self.look_up(db, hash, name)?, astray.wrapping_add(1)),
        };
        self.astray.set(astray);
        self.last.set((found, self.behind(found)));
        Some(found)
    }

    fn look_up(&self, db: usize, hash: u64, name: &[u8]) -> Option<u32> {
        if self.indexed.get() < self.batches.len() {
            self.make_index();
        }
        self.index.borrow().find(hash, |place| self.is_there(place, db, name)).map(|place| place.place)
    }

    #[inline]
    pub(super) fn holds(&self, db: usize, hash: u64, name: &[u8]) -> bool {
        self.find(db, hash, name).is_some()
    }

    /// The state of a key, if it is here. Marks it as read (N2).
    #[inline]
    pub(super) fn look_at(&self, db: usize, hash: u64, name: &[u8]) -> Option<Option<Seen<'_>>> {
        let (batch, key) = self.key(self.find(db, hash, name)?);
        if !key.read.load(Ordering::Relaxed) {
            key.read.store(true, Ordering::Relaxed);
            self.read.set(self.read.get() + 1);
        }
        Some(batch.seen(key))
    }

    /// The state of a key, if it is here. The caller keeps it, so its mark is cleared.
    pub(super) fn take(&mut self, db: usize, hash: u64, name: &[u8]) -> Option<Option<Owned>> {
        let (batch, key) = self.key(self.find(db, hash, name)?);
        self.read.set(self.read.get() - usize::from(key.read.swap(false, Ordering::Relaxed)));
        Some(batch.seen(key).map(Seen::to_owned))
    }

    /// Gives every key that was looked at to `f`, and forgets all keys. O(keys).
    pub(super) fn drain_read(&mut self, mut f: impl FnMut(usize, u64, &[u8], Option<Owned>)) {
        for batch in std::mem::take(self).batches {
            batch.each(|key| f(batch.db, key.hash, batch.name(key), batch.seen(key).map(Seen::to_owned)));
        }
    }

    /// The hashes of keys that were looked at. O(keys).
    pub(super) fn hashes(&self) -> Vec<u64> {
        let mut hashes = Vec::with_capacity(self.read());
        self.batches.iter().for_each(|batch| batch.each(|key| hashes.push(key.hash)));
        hashes
    }

    /// The keys that a commit must check, and the earliest expiry of one that was live at `ran_ms`. O(keys ·
    /// log keys).
    pub(super) fn into_read(self, ran_ms: u64) -> (ReadKeys, u64) {
        let mut expires_ms = u64::MAX;
        let mut places = vec![Vec::new(); crate::SHARDS];
        let room = self.read() / crate::SHARDS * 9 / 8;
        for (batch, i) in self.batches.iter().zip(0..) {
            for (key, j) in batch.keys.iter().zip(0..).filter(|(key, _)| key.read.load(Ordering::Relaxed)) {
                let places = &mut places[crate::shard_of(key.hash)];
                if places.capacity() == 0 {
                    places.reserve(room);
                }
                places.push((key.hash, place(i, j)));
                expires_ms = expires_ms.min(key.expire_ms().filter(|at| *at > ran_ms).unwrap_or(u64::MAX));
            }
        }
        places.iter_mut().for_each(|places| places.sort_unstable());
        (ReadKeys { names: Arc::new(Names(self.batches)), places }, expires_ms)
    }
}

impl KeyBatch {
    /// Visits the keys that were looked at.
    fn each<'a>(&'a self, f: impl FnMut(&'a Key)) {
        self.keys.iter().filter(|key| key.read.load(Ordering::Relaxed)).for_each(f);
    }
}

/// Keys that were looked at and not written: hash and place of each, by shard, sorted by hash.
#[derive(Default)]
pub(crate) struct ReadKeys {
    pub(crate) names: Arc<Names>,
    pub(crate) places: Vec<Vec<(u64, u32)>>,
}

/// The names of keys, by place.
#[derive(Default)]
pub(crate) struct Names(Vec<KeyBatch>);

impl Names {
    pub(crate) fn at(&self, place: u32) -> (usize, &[u8]) {
        let batch = &self.0[(place >> KEY_BITS) as usize];
        (batch.db, batch.name(&batch.keys[(place & KEY_MASK) as usize]))
    }
}

/// The value of a short string.
pub(super) fn text(bytes: &[u8], raw: bool) -> Value {
    Value::Str(if raw { Str::from_slice_raw(bytes) } else { Str::from_slice(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys are looked up against their order, so that the index must answer. Some names are too long for the
    /// index, some begin alike, and some hashes agree in the half that the index knows.
    #[test]
    fn the_index_finds_every_name_and_no_other() {
        let name = |i: usize| match i % 7 {
            0 => "x".repeat(65_533 + i / 7),
            1 => format!("{i}"),
            2 => String::new() + &"y".repeat(i),
            _ => format!("{}{i:05}", "z".repeat(i % 5 * 100)),
        };
        let hash = |i: usize| (i as u64 / 3 * 0x9E37_79B9) & 0xFFFF_FFFF | (i as u64) << 40;
        let mut near = Near::default();
        let mut keys = KeyBatches::default();
        for i in 0..60 {
            keys.room(i / 25).push_owned(
                hash(i),
                name(i).as_bytes(),
                &Owned { value: text(i.to_string().as_bytes(), false), expire_ms: None },
            );
        }
        near.add(u64::MAX, keys).unwrap_or_else(|_| panic!("there is room"));
        for i in (0..60).rev() {
            let seen = near.look_at(i / 25, hash(i), name(i).as_bytes());
            let Some(Some(Seen::Text { bytes, .. })) = seen else { panic!("key {i} is there") };
            assert_eq!(bytes, i.to_string().as_bytes());
            assert!(near.look_at(i / 25 + 1, hash(i), name(i).as_bytes()).is_none(), "another database");
            assert!(near.look_at(i / 25, hash(i), &name(i).as_bytes()[1..]).is_none(), "the end of a name");
        }
        assert_eq!(near.read(), 60);
    }
    /// A key that came many times must not slow the index down.
    #[test]
    fn a_key_that_came_often_has_one_place() {
        let mut near = Near::default();
        let mut keys = KeyBatches::default();
        for i in 0..5000 {
            let (name, hash) = if i % 2 == 0 { ("even", 2) } else { ("odd", 1) };
            keys.room(0).push_owned(
                hash,
                name.as_bytes(),
                &Owned { value: text(b"1", false), expire_ms: None },
            );
        }
        near.add(u64::MAX, keys).unwrap_or_else(|_| panic!("there is room"));
        for (hash, name) in [(1, "odd"), (3, "none"), (2, "even"), (1, "odd")] {
            assert_eq!(near.holds(0, hash, name.as_bytes()), name != "none");
        }
        assert_eq!(near.index.borrow().len(), 2);
    }
}
