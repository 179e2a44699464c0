//! Changes not yet committed, over what a snapshot shows: how scripts, long writes and long reads see the keyspace.
//!
//! - O1: every key an overlay knows was read at its snapshot `s` (its *base*), present or absent; it reads no other.
//! - O2: nothing of it is visible to anybody before `commit`, which locks the shards of all keys it knows, checks that
//!   none changed since `s` and none read as present has expired, and applies the changed ones under one LSN.
//! - O3: a key the handler asked for and the overlay does not know is absent to it and noted in `missing`; the caller
//!   loads those and runs the handler again.
//!
//! - O5: the keyspace as a whole is shown as it was at the snapshot, with the overlay's own changes: in chunks of the hash
//!   order, which the caller fetches as handlers ask for them. Which keys there are is not checked by the commit: keys that
//!   others add or remove meanwhile are no conflict, unless the overlay read or wrote them by name.
//! - O6: SWAPDB renames databases for what comes after it; cells stay where their keys stood at the snapshot, and the
//!   commit exchanges the databases when it has applied them, as often as the outcome needs it.
//! - O7: what was read in batches is looked at where it stands and only marked; it becomes a key the overlay knows when it is
//!   written, or before a commit at once ([`Overlay::adopt_read`]). A commit in pieces checks it where it stands.
//! - O8: it counts the bytes it takes ([`Overlay::bytes`]): whoever runs something over it looks there after each command, and drops
//!   the whole when that is more than it may have. Values it shares with the keyspace count with what was written of them.
//! - O9: a key that was there and had expired is absent; the sink is told that it is gone before it is told what the overlay did.
//! - O4: a key that was only overwritten, never read, needs no base and is not checked.
//!
//! Keys known: `overlay/slots.rs`. Cost of a commit: O(keys known), under the locks of their shards; for many keys [`Overlay::seal`] makes a commit that
//! is done in pieces instead (`intent.rs`).

mod near;
mod read;
mod slots;

use crate::entry::Owned;
use crate::happened::{Happened, Happening};
use crate::intent::Intent;
use crate::record::Announce;
use crate::sequence::Snapshot;
use crate::shard_of;
use crate::view::{Changes, Class, View};
pub use near::KeyBatches;
use near::Near;
pub(crate) use near::{Names, ReadKeys};
pub(crate) use slots::{Entry as WideEntry, Wide};
use slots::{Slot, Slots};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use stdx::hash::hash_bytes;
use stdx::locks::Bits;
use value::{Kind, StrRef, Value, ValueRef};

#[derive(Default)]
pub(crate) struct Cell {
    pub(crate) base: Option<Owned>,
    /// What it becomes, if it is dirty.
    pub(crate) now: Option<Owned>,
    pub(crate) dirty: bool,
    /// Read at the snapshot; false for a key that was only overwritten.
    pub(crate) loaded: bool,
    /// How often it was changed.
    changes: u64,
    /// Events that are notified.
    told: Option<Box<Happened>>,
    /// What was put is to count as unused for so many seconds.
    pub(crate) idle_s: Option<u64>,
}

impl Cell {
    /// What the key is to whoever runs over the overlay.
    #[inline]
    pub(crate) fn current(&self) -> Option<&Owned> {
        if self.dirty { self.now.as_ref() } else { self.base.as_ref() }
    }

    /// Whether a commit changes the key or tells of it.
    pub(crate) fn writes(&self) -> bool {
        self.dirty || self.changes > 0 || self.told.is_some()
    }

    /// Nothing is to be told of it.
    fn hush(&mut self) {
        self.changes = 0;
        self.told = None;
    }
}

/// See the module.
pub struct Overlay {
    snapshot: Snapshot,
    slots: Slots,
    /// The place of the key that was looked at last: a handler names a key several times.
    last: std::cell::Cell<u32>,
    missing: RefCell<KeyBatches>,
    /// Keys that were found expired, by database (O9), and about the bytes that takes.
    expired: RefCell<HashMap<usize, HashSet<Box<[u8]>>>>,
    expired_bytes: std::cell::Cell<usize>,
    /// Whether anything was written.
    written: bool,
    /// When what ran over it first took place; 0 before.
    ran_ms: u64,
    /// When what is read for it counts as used, if it does.
    used_ms: Option<u64>,
    near: Near,
    chunks: BTreeMap<(usize, u64), Chunk>,
    wanted: std::cell::Cell<Option<(usize, u64)>>,
    /// Databases that were emptied.
    flushed: Vec<usize>,
    /// Which database each one is because of SWAPDBs; empty: each is itself (O6).
    places: Vec<usize>,
    /// Bytes of what it knows, but for its slots, and of what was written (O8).
    known_bytes: usize,
    written_bytes: usize,
    /// The key that is being changed, and how much its value took when that was counted last.
    editing: Option<(u32, usize)>,
}

/// A key that it knows, with its place in the index.
const SLOT_BYTES: usize = size_of::<Slot>() + 24;
/// What a change of a large shared value copies, about.
const COPIED: usize = 1024;
/// An event to be told.
const EVENT_BYTES: usize = 48;

/// What a commit in pieces is made of.
pub(crate) struct Parts {
    pub(crate) snapshot: Snapshot,
    pub(crate) ran_ms: u64,
    /// Which, and the keys known of each, sorted by hash.
    pub(crate) shards: Vec<(usize, Vec<Intent>)>,
    /// What was only read in batches, and the earliest expiry relied on there.
    pub(crate) read: ReadKeys,
    pub(crate) expires_ms: u64,
    /// Databases to be emptied, and then exchanged.
    pub(crate) flushed: Vec<usize>,
    pub(crate) swaps: Vec<(usize, usize)>,
}

/// A key in a list of keys: hash, name, expiry (milliseconds since 1970) and type.
pub type Listed = (u64, Box<[u8]>, Option<u64>, Kind);

/// A key's value, and when it expires.
pub type Found<'a> = (ValueRef<'a>, Option<u64>);

/// Is told a key's name, expiry and type.
pub type Visitor<'a> = dyn FnMut(&[u8], Option<u64>, Kind) + 'a;

/// Part of the hash order, and every key in it, as it was at the snapshot (O5).
#[derive(Default)]
pub struct Chunk {
    /// Hash, name, expiry and type; sorted.
    pub keys: Vec<Listed>,
    /// Where the next chunk begins; None: this is the last.
    pub next: Option<u64>,
}

impl Chunk {
    /// About the memory it takes. O(keys).
    pub fn bytes(&self) -> usize {
        let names: usize = self.keys.iter().map(|(_, name, ..)| name.len() + 16).sum();
        self.keys.capacity() * size_of::<Listed>() + names
    }
}

/// A key as an overlay sees it.
#[derive(Clone, Copy)]
pub(crate) enum Seen<'a> {
    Value { value: &'a Value, expire_ms: Option<u64> },
    Text { bytes: &'a [u8], raw: bool, expire_ms: Option<u64> },
}

impl<'a> Seen<'a> {
    #[inline]
    pub(crate) fn value(self) -> ValueRef<'a> {
        match self {
            Seen::Value { value, .. } => value.as_ref(),
            Seen::Text { bytes, .. } => ValueRef::Str(StrRef::Flat(bytes)),
        }
    }

    #[inline]
    pub(crate) fn expire_ms(self) -> Option<u64> {
        match self {
            Seen::Value { expire_ms, .. } | Seen::Text { expire_ms, .. } => expire_ms,
        }
    }

    /// Whether it is a string for which OBJECT ENCODING must answer `raw`.
    pub(crate) fn is_raw(self) -> bool {
        match self {
            Seen::Value { value, .. } => matches!(value, Value::Str(s) if s.is_raw()),
            Seen::Text { raw, .. } => raw,
        }
    }

    /// Shares the value; a short string is copied.
    pub(crate) fn to_owned(self) -> Owned {
        let value = match self {
            Seen::Value { value, .. } => value.clone(),
            Seen::Text { bytes, raw, .. } => near::text(bytes, raw),
        };
        Owned { value, expire_ms: self.expire_ms() }
    }
}

impl<'a> From<&'a Owned> for Seen<'a> {
    #[inline]
    fn from(owned: &'a Owned) -> Seen<'a> {
        Seen::Value { value: &owned.value, expire_ms: owned.expire_ms }
    }
}

/// Why a commit did not happen: a key that was read has changed meanwhile. Run again on a new snapshot.
#[derive(Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Whose write that was (`stdx::doing`); 0 if nobody's.
    pub by: u64,
}

/// A commit that did not happen.
#[derive(Debug)]
pub struct Lost {
    /// What must be told nevertheless: it wrote to the table what others had committed.
    pub told: Changes,
    /// Whose write had changed what it read; 0 if nobody's.
    pub by: u64,
}

/// Overlays of so many keys are dropped where they are: the reclaimer would have to be woken for each.
const FEW_KEYS: usize = 32;

impl Overlay {
    /// An empty one. `used_ms`: when the keys it asks for count as used; None: nobody is to know of it.
    pub fn new(snapshot: Snapshot, used_ms: Option<u64>) -> Overlay {
        Overlay {
            snapshot,
            slots: Slots::default(),
            last: std::cell::Cell::new(0),
            missing: RefCell::default(),
            expired: RefCell::default(),
            expired_bytes: std::cell::Cell::new(0),
            written: false,
            ran_ms: 0,
            used_ms,
            near: Near::default(),
            chunks: BTreeMap::new(),
            wanted: std::cell::Cell::new(None),
            flushed: Vec::new(),
            places: Vec::new(),
            known_bytes: 0,
            written_bytes: 0,
            editing: None,
        }
    }

    /// About the memory it takes beside the keyspace (O8). O(1).
    pub fn bytes(&mut self) -> usize {
        self.end_edit();
        self.known_bytes + self.slots.len() * SLOT_BYTES + self.written_bytes + self.expired_bytes.get()
    }

    /// Counts what the last change made of its value.
    fn end_edit(&mut self) {
        if let Some((place, before)) = self.editing.take() {
            let now = self.slots[place].cell.now.as_ref().map_or(0, |owned| owned.value.mem_bytes());
            self.written_bytes = (self.written_bytes + now).saturating_sub(before);
        }
    }

    /// Where what is called database `db` now stood at the snapshot. Everything an overlay is given or asks for is by the
    /// latter; handlers know the former (O6).
    #[inline]
    pub fn physical(&self, db: usize) -> usize {
        if self.places.is_empty() { db } else { self.places[db] }
    }

    /// Exchanges two databases, of so many.
    pub(crate) fn swap(&mut self, a: usize, b: usize, databases: usize) {
        if a == b {
            return;
        }
        if self.places.is_empty() {
            self.places = (0..databases).collect();
        }
        self.places.swap(a, b);
        self.written = true;
    }

    /// Closes the snapshot at once; what is much of the rest is freed elsewhere, in its own time.
    pub fn dispose(mut self) {
        let bytes = self.bytes();
        let Overlay { snapshot, slots, near, chunks, .. } = self;
        drop(snapshot);
        let known = slots.len() + near.len() + chunks.len() * 64;
        if known > FEW_KEYS {
            // All of it waits to be freed, and is no reason to evict meanwhile.
            stdx::reclaim::defer(bytes.max(known * 100), move || drop((slots, near, chunks)));
        }
    }

    /// Keys known.
    pub fn len(&self) -> usize {
        self.slots.len() + self.near.read()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys of what was read near others were looked at.
    pub fn near_read(&self) -> usize {
        self.near.read()
    }

    /// Makes what was looked at in batches known, so that a commit at once checks it (O7), and gives up the rest. To be called
    /// where there is time, before a loop commits it. Cost: O(keys read in batches).
    pub fn adopt_read(&mut self) {
        if self.near.len() == 0 {
            return;
        }
        let mut near = std::mem::take(&mut self.near);
        near.drain_read(|db, hash, key, owned| {
            let cell = self.make(db, hash, key);
            if !std::mem::replace(&mut cell.loaded, true) {
                cell.base = owned;
            }
        });
    }

    /// Makes room for so many more keys.
    pub fn reserve(&mut self, keys: usize) {
        self.slots.reserve(keys);
    }

    /// The hashes of all keys, sorted. Cost: O(keys · log keys).
    pub fn hashes(&self) -> Box<[u64]> {
        let mut hashes = self.near.hashes();
        hashes.extend(self.slots.iter().map(|slot| slot.hash));
        hashes.sort_unstable();
        hashes.into()
    }

    /// The place of a key that is known, or else its hash.
    #[inline]
    fn known(&self, db: usize, key: &[u8]) -> Result<u32, u64> {
        let last = self.last.get();
        if self.slots.at(last).is_some_and(|slot| slot.db == db && *slot.key == *key) {
            return Ok(last);
        }
        let hash = hash_bytes(key);
        let place = self.slots.find(db, hash, key).ok_or(hash)?;
        self.last.set(place);
        Ok(place)
    }

    /// The place of a key, made empty if there is none.
    fn place_or_new(&mut self, db: usize, hash: u64, key: &[u8]) -> u32 {
        let place = self.slots.find(db, hash, key).unwrap_or_else(|| self.push(db, hash, key));
        self.last.set(place);
        place
    }

    /// A place for a key that has none.
    fn push(&mut self, db: usize, hash: u64, key: &[u8]) -> u32 {
        self.known_bytes += key.len();
        self.slots.push(db, hash, key)
    }

    fn make(&mut self, db: usize, hash: u64, key: &[u8]) -> &mut Cell {
        let place = self.place_or_new(db, hash, key);
        &mut self.slots[place].cell
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// When what is read for it counts as used, if it does.
    pub fn used_ms(&self) -> Option<u64> {
        self.used_ms
    }

    /// Reads keys at the snapshot that are not known yet (O1). Takes each shard's lock for one look-up.
    pub fn load<'a>(&mut self, db: usize, keys: impl IntoIterator<Item = &'a [u8]>) {
        let keyspace = self.snapshot.keyspace().clone();
        for key in keys {
            if self.knows(db, key) {
                continue;
            }
            let hash = hash_bytes(key);
            let shard = shard_of(hash);
            let guard = keyspace.shards.lock_one(shard);
            let base = keyspace.read_in(guard.get(shard), db, hash, key, self.snapshot.lsn(), self.used_ms);
            drop(guard);
            self.insert(db, hash, key, base);
        }
    }

    /// Whether a key was read already.
    pub fn knows(&self, db: usize, key: &[u8]) -> bool {
        self.flushed.contains(&db)
            || match self.known(db, key) {
                Ok(at) => self.slots[at].cell.loaded || self.near.holds(db, self.slots[at].hash, key),
                Err(hash) => self.near.holds(db, hash, key),
            }
    }

    /// Adds a key as somebody else read it at this overlay's snapshot (see [`Keyspace::read_at`]).
    pub fn insert(&mut self, db: usize, hash: u64, key: &[u8], base: Option<Owned>) {
        self.known_bytes += base.as_ref().map_or(0, |owned| owned.value.mem_bytes().min(COPIED));
        let cell = self.make(db, hash, key);
        cell.base = base;
        cell.loaded = true;
    }

    /// Adds what was read around a key ([`Keyspace::read_near`]): everything with a hash from `from` to before `to`.
    pub fn insert_near(&mut self, db: usize, from: u64, to: u64, keys: KeyBatches) {
        self.known_bytes += keys.bytes();
        self.near.add_range(db, from, to, keys);
    }

    /// Adds keys as somebody else read them at this overlay's snapshot ([`Keyspace::read_many`], [`Keyspace::read_asked`]).
    /// O(batches), O(keys) if some of them may have been looked for before.
    pub fn insert_many(&mut self, keys: KeyBatches) {
        self.known_bytes += keys.bytes();
        if self.slots.len() > 0 {
            // What was asked for to be changed has a place, and no base yet.
            keys.each(|db, hash, key, owned| {
                if let Some(at) = self.slots.find(db, hash, key)
                    && !std::mem::replace(&mut self.slots[at].cell.loaded, true)
                {
                    self.slots[at].cell.base = owned();
                }
            });
        }
        // So very many that there is no room for more batches: one by one.
        if let Err(keys) = self.near.add(u64::MAX, keys) {
            keys.each(|db, hash, key, owned| self.insert(db, hash, key, owned()));
        }
    }

    /// Where the next part of the hash order begins that was read whole.
    pub fn near_end(&self, db: usize, hash: u64) -> u64 {
        self.near.end(db, hash)
    }

    /// Learns a key from what was read near others; false if it was not.
    pub fn adopt(&mut self, db: usize, key: &[u8]) -> bool {
        let hash = hash_bytes(key);
        if self.flushed.contains(&db) || !self.near.covers(db, hash) {
            return false;
        }
        if !self.known(db, key).is_ok_and(|at| self.slots[at].cell.loaded) {
            let found = self.near.take(db, hash, key);
            self.insert(db, hash, key, found.flatten());
        }
        true
    }

    /// Takes the keys handlers asked for in vain, to be read ([`Keyspace::read_asked`]) and given back
    /// ([`Overlay::insert_many`]).
    pub fn take_missing(&mut self) -> KeyBatches {
        std::mem::take(self.missing.get_mut())
    }

    /// Loads what handlers asked for in vain; false if there was nothing (O3).
    pub fn load_missing(&mut self) -> bool {
        let missing = self.take_missing();
        missing.names().for_each(|(db, key)| self.load(db, [key]));
        !missing.is_empty()
    }

    /// True if a handler asked for keys that were not loaded.
    pub fn has_missing(&self) -> bool {
        !self.missing.borrow().is_empty()
    }

    fn miss(&self, db: usize, hash: u64, key: &[u8]) {
        self.missing.borrow_mut().room(db).push(hash, key);
    }

    pub(crate) fn runs_at(&mut self, now_ms: u64) {
        if self.ran_ms == 0 {
            self.ran_ms = now_ms;
        }
    }

    /// Takes back every change, as if nothing had run; what was read stays.
    pub fn reset(&mut self) {
        (self.written_bytes, self.editing) = (0, None);
        for Slot { cell, .. } in self.slots.iter_mut() {
            if std::mem::take(&mut cell.dirty) {
                cell.now = None;
            }
            cell.hush();
            cell.idle_s = None;
        }
        self.written = false;
        self.expired.get_mut().clear();
        self.expired_bytes.set(0);
        self.flushed.clear();
        self.places.clear();
    }

    /// True if anything would be changed by a commit, or told. O(1).
    #[inline]
    pub fn is_dirty(&self) -> bool {
        self.written
    }

    #[inline]
    pub(crate) fn get(&self, db: usize, key: &[u8], now_ms: u64) -> Option<Seen<'_>> {
        let db = self.physical(db);
        let (cell, hash) = match self.known(db, key).map(|at| &self.slots[at]) {
            Ok(slot) => (Some(&slot.cell), slot.hash),
            Err(hash) => (None, hash),
        };
        let seen = match cell {
            Some(cell) if cell.loaded || cell.dirty => cell.current().map(Seen::from),
            _ if self.flushed.contains(&db) => None,
            _ => self.near.look_at(db, hash, key).unwrap_or_else(|| {
                self.miss(db, hash, key);
                None
            }),
        };
        if seen.is_some_and(|seen| seen.expire_ms().is_some_and(|at| at <= now_ms)) {
            if !cell.is_some_and(|cell| cell.dirty) {
                self.note_expired(db, key);
            }
            return None;
        }
        seen
    }

    /// A key that was there has expired (O9).
    #[cold]
    fn note_expired(&self, db: usize, key: &[u8]) {
        let mut expired = self.expired.borrow_mut();
        let names = expired.entry(db).or_default();
        if !names.contains(key) {
            names.insert(key.into());
            self.expired_bytes.set(self.expired_bytes.get() + key.len() + 32);
        }
    }

    /// Has the sink told first of keys that were found expired (O9). They are removed when they are swept.
    pub(crate) fn announce_expired(&mut self, announce: Option<Announce>) -> Option<Announce> {
        let (expired, keyspace) = (self.take_expired(), self.snapshot.keyspace().clone());
        if expired.is_empty() || keyspace.sink().is_none() {
            return announce;
        }
        Some(Box::new(move |n| {
            expired.iter().for_each(|(db, key)| keyspace.tell_sink(n, *db, &[b"DEL", key]));
            announce.into_iter().for_each(|announce| announce(n));
        }))
    }

    /// The keys that were found expired, with their databases.
    fn take_expired(&mut self) -> Vec<(usize, Box<[u8]>)> {
        let expired = std::mem::take(self.expired.get_mut()).into_iter();
        expired.flat_map(|(db, names)| names.into_iter().map(move |name| (db, name))).collect()
    }

    // ----- the whole (O5) ------------------------------------------------------------------------------------------

    /// The chunk a handler asked for in vain: database, where it begins, and about how many keys it should have.
    pub fn take_wanted_chunk(&self) -> Option<(usize, u64, usize)> {
        // A handler starts over when a chunk came, so each is larger than the last.
        self.wanted.take().map(|(db, position)| (db, position, 1000 << self.chunks.len().min(10)))
    }

    /// Adds a chunk that begins at `position`.
    pub fn insert_chunk(&mut self, db: usize, position: u64, mut chunk: Chunk) {
        chunk.keys.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        self.known_bytes += chunk.bytes();
        self.chunks.insert((db, position), chunk);
    }

    /// The chunk that holds a place in the hash order.
    fn chunk(&self, db: usize, position: u64) -> Option<&Chunk> {
        let ((at, _), chunk) = self.chunks.range(..=(db, position)).next_back()?;
        (*at == db && chunk.next.is_none_or(|next| position < next)).then_some(chunk)
    }

    /// Visits the keys from `position` to the end of its chunk: name and type. Returns how many, and the next place; None
    /// if the chunk has to be fetched first. O(keys of the chunk + keys known).
    pub(crate) fn visit_chunk(
        &self,
        db: usize,
        position: u64,
        now_ms: u64,
        f: &mut dyn FnMut(&[u8], Kind),
    ) -> Option<(usize, Option<u64>)> {
        let db = self.physical(db);
        let none = Chunk::default();
        let chunk = if self.flushed.contains(&db) { Some(&none) } else { self.chunk(db, position) };
        let Some(chunk) = chunk else {
            self.wanted.set(Some((db, position)));
            return None;
        };
        let mut visited = 0;
        for (hash, key, expire_ms, kind) in chunk.keys.iter().filter(|(hash, ..)| *hash >= position) {
            let known = self.slots.find(db, *hash, key).map(|at| &self.slots[at].cell);
            let kind = match known {
                Some(cell) => cell.current().filter(|o| is_live(o, now_ms)).map(|o| o.value.kind()),
                None => expire_ms.is_none_or(|at| at > now_ms).then_some(*kind),
            };
            if let Some(kind) = kind {
                visited += 1;
                f(key, kind);
            }
        }
        let end = chunk.next.map_or(u64::MAX, |next| next - 1);
        let made = |slot: &&Slot| slot.cell.dirty && slot.db == db && (position..=end).contains(&slot.hash);
        for slot in self.slots.iter().filter(made) {
            let at = |(hash, key, ..): &Listed| (*hash, key).cmp(&(slot.hash, &slot.key));
            let shown = chunk.keys.binary_search_by(at).is_ok();
            if let (Some(owned), false) = (slot.cell.now.as_ref().filter(|o| is_live(o, now_ms)), shown) {
                visited += 1;
                f(&slot.key, owned.value.kind());
            }
        }
        Some((visited, chunk.next))
    }

    /// How many keys it adds to a database, less those it removes; of one it emptied, how many it has. What was overwritten
    /// unseen is asked for first.
    pub(crate) fn added(&self, db: usize, now_ms: u64) -> i64 {
        let db = self.physical(db);
        let (mut added, flushed) = (0, self.flushed.contains(&db));
        for slot in self.slots.iter().filter(|slot| slot.db == db && slot.cell.dirty) {
            let live = |owned: &Option<Owned>| i64::from(owned.as_ref().is_some_and(|o| is_live(o, now_ms)));
            added += live(&slot.cell.now);
            if !flushed {
                added -= live(&slot.cell.base);
                if !slot.cell.loaded {
                    self.miss(db, slot.hash, &slot.key);
                }
            }
        }
        added
    }

    pub(crate) fn is_flushed(&self, db: usize) -> bool {
        self.flushed.contains(&self.physical(db))
    }

    /// Empties a database.
    pub(crate) fn flush(&mut self, db: usize) {
        let db = self.physical(db);
        self.end_edit();
        self.adopt_read();
        for slot in self.slots.iter_mut().filter(|slot| slot.db == db) {
            slot.cell.now = None;
            slot.cell.dirty = true;
        }
        self.written = true;
        if !self.flushed.contains(&db) {
            self.flushed.push(db);
        }
    }

    /// The exchanges of databases that make all SWAPDBs together. O(databases).
    fn swaps(&self) -> Vec<(usize, usize)> {
        let mut swaps = Vec::new();
        let mut there: Vec<usize> = (0..self.places.len()).collect();
        for (db, place) in self.places.iter().enumerate() {
            if there[db] != *place {
                let from = there.iter().position(|there| there == place).unwrap_or(db);
                there.swap(db, from);
                swaps.push((db, from));
            }
        }
        swaps
    }

    /// The place of a key, whose base is wanted if it is not known.
    fn place_or_missing(&mut self, db: usize, key: &[u8]) -> u32 {
        let hash = match self.known(db, key) {
            Ok(place) => return place,
            Err(hash) => hash,
        };
        if let Some(base) = self.near.take(db, hash, key) {
            self.insert(db, hash, key, base);
            return self.last.get();
        }
        // Only a loop may look at the shard: the key counts as absent until it is loaded (O3). What was emptied has none.
        if !self.flushed.contains(&db) {
            self.miss(db, hash, key);
        }
        self.place_or_new(db, hash, key)
    }

    /// What a key holds, to be changed or taken; None if there is no such key. `fits` may refuse. Cost: O(1).
    pub(crate) fn edit<E>(
        &mut self,
        db: usize,
        key: &[u8],
        now_ms: u64,
        fits: impl FnOnce(&Owned) -> Result<(), E>,
    ) -> Result<Option<&mut Option<Owned>>, E> {
        let place = self.place_or_missing(self.physical(db), key);
        if self.editing.is_some_and(|(edited, _)| edited != place) {
            self.end_edit();
        }
        let found = &self.slots[place];
        if !found.cell.dirty && found.cell.current().is_some_and(|owned| !is_live(owned, now_ms)) {
            self.note_expired(found.db, key);
            return Ok(None);
        }
        let cell = &mut self.slots[place].cell;
        let Some(owned) = cell.current().filter(|owned| is_live(owned, now_ms)) else { return Ok(None) };
        fits(owned)?;
        self.written = true;
        let bytes = owned.value.mem_bytes();
        if !std::mem::replace(&mut cell.dirty, true) {
            cell.now = cell.base.clone();
        }
        if self.editing.is_none() {
            // A change of a shared value copies a part of it, and no part twice.
            if (cell.changes as usize).saturating_mul(COPIED) < bytes && cell.base.is_some() {
                self.written_bytes += bytes.min(COPIED);
            }
            self.editing = Some((place, bytes));
        }
        Ok(Some(&mut cell.now))
    }

    /// Sets a key whatever it was (O4).
    pub(crate) fn overwrite(&mut self, db: usize, key: &[u8], owned: Owned) {
        self.end_edit();
        let db = self.physical(db);
        let place = match self.known(db, key) {
            Ok(at) => at,
            Err(hash) => {
                let place = self.push(db, hash, key);
                self.last.set(place);
                place
            }
        };
        let cell = &mut self.slots[place].cell;
        // A value that moved here, or was copied, is the keyspace's as well.
        let bytes = |owned: &Owned| owned.value.alone_bytes();
        self.written_bytes += bytes(&owned);
        self.written_bytes = self.written_bytes.saturating_sub(cell.now.as_ref().map_or(0, bytes));
        cell.now = Some(owned);
        cell.dirty = true;
        self.written = true;
    }

    /// Takes it apart for a commit in pieces. Cost: O(keys · log keys).
    pub(crate) fn into_parts(mut self) -> Parts {
        let swaps = self.swaps();
        let (read, expires_ms) = self.near.into_read(self.ran_ms);
        let flushed = self.flushed;
        // Of what goes with its database nothing is told; that it was not changed before is checked like all that was read.
        for slot in self.slots.iter_mut().filter(|slot| slot.cell.now.is_none() && flushed.contains(&slot.db))
        {
            slot.cell.hush();
        }
        let (snapshot, ran_ms, shards) = (self.snapshot, self.ran_ms, self.slots.into_shards());
        Parts { snapshot, ran_ms, shards, read, expires_ms, flushed, swaps }
    }

    /// Has a key that was put count as unused for so many seconds.
    pub(crate) fn leave_idle(&mut self, db: usize, key: &[u8], idle_s: u64) {
        let place = self.place_or_missing(self.physical(db), key);
        self.slots[place].cell.idle_s = Some(idle_s);
    }

    /// Something happened to a key. Where nobody is notified of it a change is only counted: a script may make millions.
    pub(crate) fn tell(&mut self, db: usize, key: &[u8], class: Class, event: &'static str, changed: bool) {
        let place = self.place_or_missing(self.physical(db), key);
        let notified = self.snapshot.keyspace().notifies(class);
        let cell = &mut self.slots[place].cell;
        cell.changes += u64::from(changed);
        if notified {
            let happened = cell.told.get_or_insert_default();
            self.written_bytes += EVENT_BYTES;
            happened.push(Happening { class, name: event, db });
        }
        self.written = true;
    }

    /// Applies everything at one LSN, or nothing (O2). The view given back still holds the locks: `finish` it.
    pub fn commit(mut self, now_ms: u64) -> Result<Changes, Lost> {
        self.adopt_read();
        if !self.snapshot.is_current() {
            return Err(Lost { told: Changes::default(), by: 0 });
        }
        let keyspace = self.snapshot.keyspace().clone();
        let swaps = self.swaps();
        // Databases are emptied and exchanged under all locks.
        let all = !self.flushed.is_empty() || !swaps.is_empty();
        let mut shards = if all { Bits::below(crate::SHARDS) } else { Bits::EMPTY };
        for slot in self.slots.iter() {
            shards.insert(shard_of(slot.hash));
        }
        let mut view = View::locked(&keyspace, shards, 0, now_ms);
        if view.has_intents() {
            let keys: Vec<_> = self.slots.iter().map(|slot| (slot.db, &*slot.key)).collect();
            view.settle(&keys, true);
        }
        for Slot { db, key, cell, .. } in self.slots.iter() {
            // What had expired before the run was absent to it.
            let due = crate::intent::expiry_relied_on(cell, self.ran_ms).is_some_and(|at| at <= now_ms);
            let changed = view.changed_since(*db, key, self.snapshot.lsn());
            if cell.loaded && (due || changed.is_some()) {
                return Err(Lost { told: view.finish(), by: changed.unwrap_or(0) });
            }
        }
        if !self.snapshot.is_current() {
            return Err(Lost { told: view.finish(), by: 0 });
        }
        for (db, key) in self.take_expired() {
            view.select(db);
            view.expire_if_due(&key);
        }
        for db in &self.flushed {
            view.flush(Some(*db));
        }
        for slot in self.slots.into_iter() {
            if self.flushed.contains(&slot.db) && slot.cell.now.is_none() {
                continue;
            }
            view.select(slot.db);
            apply(&mut view, &slot.key, slot.cell);
        }
        for (a, b) in swaps {
            view.swap(a, b);
        }
        Ok(view.finish())
    }
}

pub(crate) fn apply(view: &mut View<'_>, key: &[u8], cell: Cell) {
    if cell.dirty {
        match cell.now {
            Some(owned) => {
                view.put(key, owned.value, owned.expire_ms);
                if let Some(idle_s) = cell.idle_s {
                    view.set_idle(key, idle_s);
                }
            }
            None => {
                view.remove(key);
            }
        }
    }
    if cell.changes > 0 {
        view.changed_often(key, cell.changes);
    }
    if let Some(happened) = cell.told {
        view.notify_all(key, happened);
    }
}

pub(crate) fn is_live(owned: &Owned, now_ms: u64) -> bool {
    owned.expire_ms.is_none_or(|at| at > now_ms)
}
