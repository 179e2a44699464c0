//! Changes not yet committed, over what a snapshot shows: how scripts, long writes and long reads see the
//! keyspace.
//!
//! - O1: an overlay knows a key as it was at its snapshot `s`, present or absent (its *base*). It reads no
//!   other key.
//! - O2: nothing is visible to others before `commit`. That locks the shards of all known keys and checks
//!   that none changed since `s` and none read as present has expired. Then it applies the changes under one
//!   LSN.
//! - O3: a key that a handler asks for and the overlay does not know is absent, and noted in `missing`. The
//!   caller loads those keys and runs the handler again.
//! - O9: a key that was there and has expired is absent. The sink is told that it is gone before it is told
//!   what the overlay did.
//! - O10: a key that the run itself wrote with a time that has passed is absent to its later commands. A
//!   follower keeps what is told, whatever the time, so it is told that the key is gone before it is told of
//!   a command that met its absence ([`Overlay::take_passed`]).
//! - O4: a key that was only overwritten, never read, needs no base and is not checked.
//! - O5: the whole keyspace is shown as of the snapshot, with the overlay's own changes. It comes in chunks
//!   of the hash order, which the caller fetches when handlers ask. The commit does not check which keys
//!   exist, except those read or written by name.
//! - O6: SWAPDB renames databases for later calls. Cells stay where their keys stood at the snapshot; the
//!   commit exchanges the databases.
//! - O7: keys read in batches are looked at in place and only marked. They become known when written, or
//!   before a commit at once ([`Overlay::adopt_read`]). A commit in pieces checks them in place.
//! - O8: the overlay counts the bytes it takes ([`Overlay::bytes`]). The caller checks that after each
//!   command and drops an overlay that is too large. Values shared with the keyspace count only with what was
//!   written of them.
//!
//! Cost of a commit: O(keys known), under the locks of their shards. For many keys, [`Overlay::seal`] makes a
//! commit that is done in pieces (`intent.rs`). The known keys: `overlay/slots.rs`.

mod near;
mod read;
mod slots;

use crate::beside::{BESIDE, Beside};
use crate::entry::Owned;
use crate::happened::{Happened, Happening};
use crate::intent::Intent;
use crate::sequence::{Lsn, Snapshot};
use crate::shard_of;
use crate::tell::Announce;
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

/// How a client looks at keys.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Look {
    /// The time at which keys read for it count as used. `None`: they do not.
    pub used_ms: Option<u64>,
    /// Expired keys are there (CLIENT IMPORT-SOURCE).
    pub shows_expired: bool,
}

impl From<Option<u64>> for Look {
    fn from(used_ms: Option<u64>) -> Look {
        Look { used_ms, shows_expired: false }
    }
}

/// The use of a key, as RESTORE tells it.
#[derive(Clone, Copy)]
pub(crate) enum Used {
    /// Seconds since the last use.
    Idle(u64),
    /// How often it was used lately, as in [`View::freq`].
    Often(u8),
}

#[derive(Default)]
pub(crate) struct Cell {
    pub(crate) base: Option<Owned>,
    /// The new value, if the key is dirty.
    pub(crate) now: Option<Owned>,
    pub(crate) dirty: bool,
    /// Whether the key was read at the snapshot. False for one that was only overwritten.
    pub(crate) loaded: bool,
    /// How often the key was changed.
    changes: u64,
    /// Clients that are blocked on the key look at it again.
    wakes: bool,
    /// Events to be published.
    told: Option<Box<Happened>>,
    /// How a put value counts as used.
    pub(crate) used: Option<Used>,
    /// Written with a time that has passed, and noted as gone since it was written last (O10).
    is_gone: std::cell::Cell<bool>,
}

impl Cell {
    /// The key's value as handlers see it.
    #[inline]
    pub(crate) fn current(&self) -> Option<&Owned> {
        if self.dirty { self.now.as_ref() } else { self.base.as_ref() }
    }

    /// Whether a commit changes the key or tells of it.
    pub(crate) fn writes(&self) -> bool {
        self.dirty || self.changes > 0 || self.wakes || self.told.is_some()
    }

    /// Drops all events and counts of changes.
    fn mute(&mut self) {
        (self.changes, self.wakes) = (0, false);
        self.told = None;
    }
}

/// A set of uncommitted changes over a snapshot. See the module.
pub struct Overlay {
    snapshot: Snapshot,
    /// How often listening had begun when it was made: what it does is noted for those that listen (tell T7).
    epoch: u64,
    /// Whether a sink listened when the command that runs now began.
    heard: bool,
    slots: Slots,
    /// The place of the key that was looked at last: a handler names a key several times.
    last: std::cell::Cell<u32>,
    missing: RefCell<KeyBatches>,
    /// Keys that were found expired, by database (O9), and about the bytes that takes.
    expired: RefCell<HashMap<usize, HashSet<Box<[u8]>>>>,
    expired_bytes: std::cell::Cell<usize>,
    /// Keys that commands found gone although the run wrote them (O10) and that were not told yet, by the
    /// number of the database that commands use, and place.
    passed: RefCell<Vec<(usize, u32)>>,
    /// Whether anything was written.
    written: bool,
    /// The time of the first run over it; 0 before that.
    ran_ms: u64,
    look: Look,
    near: Near,
    chunks: BTreeMap<(usize, u64), Chunk>,
    wanted: std::cell::Cell<Option<(usize, u64)>>,
    /// Whether it was asked for keys that no word named, or for their number.
    listed: std::cell::Cell<bool>,
    /// Databases that were emptied.
    flushed: Vec<usize>,
    /// After SWAPDBs, the number that each current database had at the snapshot (O6). Empty: none was
    /// exchanged.
    places: Vec<usize>,
    /// Bytes of what it knows, without its slots, and of what was written (O8).
    known_bytes: usize,
    written_bytes: usize,
    /// The key that is being changed, and the bytes of its value when they were counted last.
    editing: Option<(u32, usize)>,
    /// A change that is made with the commit.
    beside: Option<Box<dyn Beside>>,
}

/// Bytes of a known key, with its place in the index.
const SLOT_BYTES: usize = size_of::<Slot>() + 24;
/// About how many bytes a change of a large shared value copies.
const COPIED: usize = 1024;
/// Bytes of an event to be published.
const EVENT_BYTES: usize = 48;

/// The pieces that a commit in pieces is made of.
pub(crate) struct Parts {
    pub(crate) snapshot: Snapshot,
    pub(crate) ran_ms: u64,
    /// The known keys by shard, sorted by hash.
    pub(crate) shards: Vec<(usize, Vec<Intent>)>,
    /// Keys that were only read in batches, and the earliest expiry relied on there.
    pub(crate) read: ReadKeys,
    pub(crate) expires_ms: u64,
    /// Databases to be emptied, and those exchanged after that.
    pub(crate) flushed: Vec<usize>,
    pub(crate) swaps: Vec<(usize, usize)>,
    /// A change that is made with the decision.
    pub(crate) beside: Option<Box<dyn Beside>>,
}

/// A key in a list of keys: hash, name, expiry (milliseconds since 1970) and type.
pub type Listed = (u64, Box<[u8]>, Option<u64>, Kind);

/// A key's value, and when it expires.
pub type Found<'a> = (ValueRef<'a>, Option<u64>);

/// Receives a key's name, expiry and type.
pub type Visitor<'a> = dyn FnMut(&[u8], Option<u64>, Kind) + 'a;

/// Every key in a part of the hash order, as of the snapshot (O5).
#[derive(Default)]
pub struct Chunk {
    /// Hash, name, expiry and type of each key, sorted.
    pub keys: Vec<Listed>,
    /// Where the next chunk begins. `None`: this is the last one.
    pub next: Option<u64>,
}

impl Chunk {
    /// The memory it takes, estimated. O(keys).
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

    /// Whether OBJECT ENCODING must answer `raw` for it.
    pub(crate) fn is_raw(self) -> bool {
        match self {
            Seen::Value { value, .. } => matches!(value, Value::Str(s) if s.is_raw()),
            Seen::Text { raw, .. } => raw,
        }
    }

    /// An owned copy that shares the value. A short string is copied.
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

/// A commit failed because a key that was read has changed. Run again on a new snapshot.
#[derive(Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The author of that change (`stdx::doing`); 0 if none.
    pub by: u64,
}

/// A commit that did not happen.
#[derive(Debug)]
pub struct Lost {
    /// Changes that must be told nevertheless: the attempt folded others' commits.
    pub told: Changes,
    /// The author of the change that made it lose; 0 if none.
    pub by: u64,
}

/// Overlays with at most this many keys are dropped in place. It is cheaper than waking the reclaimer.
const FEW_KEYS: usize = 32;

impl Overlay {
    /// An empty overlay, for a client that looks at keys so.
    pub fn new(snapshot: Snapshot, look: impl Into<Look>) -> Overlay {
        Overlay {
            epoch: snapshot.keyspace().listen_epoch(),
            heard: false,
            snapshot,
            slots: Slots::default(),
            last: std::cell::Cell::new(0),
            missing: RefCell::default(),
            expired: RefCell::default(),
            expired_bytes: std::cell::Cell::new(0),
            passed: RefCell::default(),
            written: false,
            ran_ms: 0,
            look: look.into(),
            near: Near::default(),
            chunks: BTreeMap::new(),
            wanted: std::cell::Cell::new(None),
            listed: std::cell::Cell::new(false),
            flushed: Vec::new(),
            places: Vec::new(),
            known_bytes: 0,
            written_bytes: 0,
            editing: None,
            beside: None,
        }
    }

    /// The memory it takes beside the keyspace, estimated (O8). O(1).
    pub fn bytes(&mut self) -> usize {
        self.end_edit();
        self.known_bytes + self.slots.len() * SLOT_BYTES + self.written_bytes + self.expired_bytes.get()
    }

    /// Counts the bytes that the last change added to its value.
    fn end_edit(&mut self) {
        if let Some((place, before)) = self.editing.take() {
            let now = self.slots[place].cell.now.as_ref().map_or(0, |owned| owned.value.mem_bytes());
            self.written_bytes = (self.written_bytes + now).saturating_sub(before);
        }
    }

    /// The number at the snapshot of the database that is called `db` now (O6). Loading uses the former,
    /// handlers use `db`.
    #[inline]
    pub fn physical(&self, db: usize) -> usize {
        if self.places.is_empty() { db } else { self.places[db] }
    }

    /// Exchanges two of `databases` databases.
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

    /// Closes the snapshot at once. A large rest is freed by the reclaimer.
    pub fn dispose(mut self) {
        let bytes = self.bytes();
        let Overlay { snapshot, slots, near, chunks, .. } = self;
        drop(snapshot);
        let known = slots.len() + near.len() + chunks.len() * 64;
        if known > FEW_KEYS {
            // All of it counts as waiting to be freed, so it is no reason to evict meanwhile.
            stdx::reclaim::defer(bytes.max(known * 100), move || drop((slots, near, chunks)));
        }
    }

    /// How many keys it knows.
    pub fn len(&self) -> usize {
        self.slots.len() + self.near.read()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys read in batches were looked at.
    pub fn near_read(&self) -> usize {
        self.near.read()
    }

    /// Makes the keys looked at in batches known, so that a commit at once checks them (O7). Drops the
    /// others. Call it where there is time, before a loop commits the overlay. O(keys read in batches).
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

    /// Makes room for `keys` more keys.
    pub fn reserve(&mut self, keys: usize) {
        self.slots.reserve(keys);
    }

    /// The hashes of all known keys, sorted. O(keys · log keys).
    pub fn hashes(&self) -> Box<[u64]> {
        let mut hashes = self.near.hashes();
        hashes.extend(self.slots.iter().map(|slot| slot.hash));
        hashes.sort_unstable();
        hashes.into()
    }

    /// The place of a known key, else its hash.
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

    /// The place of a key; makes an empty one if there is none.
    fn place_or_new(&mut self, db: usize, hash: u64, key: &[u8]) -> u32 {
        let place = self.slots.find(db, hash, key).unwrap_or_else(|| self.push(db, hash, key));
        self.last.set(place);
        place
    }

    /// Makes a place for a key that has none.
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

    /// The time at which keys read for it count as used. `None`: they do not.
    pub fn used_ms(&self) -> Option<u64> {
        self.look.used_ms
    }

    /// Whether expired keys are there for its client.
    pub(crate) fn shows_expired(&self) -> bool {
        self.look.shows_expired
    }

    /// Reads unknown keys at the snapshot (O1). Locks each key's shard for one look-up.
    pub fn load<'a>(&mut self, db: usize, keys: impl IntoIterator<Item = &'a [u8]>) {
        let keyspace = self.snapshot.keyspace().clone();
        for key in keys {
            if self.knows(db, key) {
                continue;
            }
            let hash = hash_bytes(key);
            let shard = shard_of(hash);
            let guard = keyspace.shards.lock_one(shard);
            let base =
                keyspace.read_in(guard.get(shard), db, hash, key, self.snapshot.lsn(), self.look.used_ms);
            drop(guard);
            self.insert(db, hash, key, base);
        }
    }

    /// Whether the key's base is known. Every key of an emptied database is.
    pub fn knows(&self, db: usize, key: &[u8]) -> bool {
        self.flushed.contains(&db)
            || match self.known(db, key) {
                Ok(at) => self.slots[at].cell.loaded || self.near.holds(db, self.slots[at].hash, key),
                Err(hash) => self.near.holds(db, hash, key),
            }
    }

    /// Adds a key that was read elsewhere at this overlay's snapshot ([`Keyspace::read_at`]).
    pub fn insert(&mut self, db: usize, hash: u64, key: &[u8], base: Option<Owned>) {
        self.known_bytes += base.as_ref().map_or(0, |owned| owned.value.mem_bytes().min(COPIED));
        let cell = self.make(db, hash, key);
        cell.base = base;
        cell.loaded = true;
    }

    /// Adds all keys with a hash from `from` to before `to` ([`Keyspace::read_near`]).
    pub fn insert_near(&mut self, db: usize, from: u64, to: u64, keys: KeyBatches) {
        self.known_bytes += keys.bytes();
        self.near.add_range(db, from, to, keys);
    }

    /// Adds keys that were read elsewhere at this overlay's snapshot ([`Keyspace::read_many`],
    /// [`Keyspace::read_asked`]). O(batches), or O(keys) if the overlay knows keys already.
    pub fn insert_many(&mut self, keys: KeyBatches) {
        self.known_bytes += keys.bytes();
        if self.slots.len() > 0 {
            // A key that was asked for to be changed has a place, and no base yet.
            keys.each(|db, hash, key, owned| {
                if let Some(at) = self.slots.find(db, hash, key)
                    && !std::mem::replace(&mut self.slots[at].cell.loaded, true)
                {
                    self.slots[at].cell.base = owned();
                }
            });
        }
        // If there is no room for more batches, the keys are added one by one.
        if let Err(keys) = self.near.add(u64::MAX, keys) {
            keys.each(|db, hash, key, owned| self.insert(db, hash, key, owned()));
        }
    }

    /// Where the next part of the hash order begins that was read whole.
    pub fn near_end(&self, db: usize, hash: u64) -> u64 {
        self.near.end(db, hash)
    }

    /// Makes a key known from the part of the hash order that was read whole; false if it is in none.
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

    /// Takes the keys that handlers missed. Read them ([`Keyspace::read_asked`]) and give them back
    /// ([`Overlay::insert_many`]).
    pub fn take_missing(&mut self) -> KeyBatches {
        std::mem::take(self.missing.get_mut())
    }

    /// Loads the keys that handlers missed; false if there were none (O3).
    pub fn load_missing(&mut self) -> bool {
        let missing = self.take_missing();
        missing.names().for_each(|(db, key)| self.load(db, [key]));
        !missing.is_empty()
    }

    /// Whether a handler asked for keys that are not loaded.
    pub fn has_missing(&self) -> bool {
        !self.missing.borrow().is_empty()
    }

    fn miss(&self, db: usize, hash: u64, key: &[u8]) {
        self.missing.borrow_mut().room(db).push(hash, key);
    }

    /// Begins a command. `heard`: whether a sink listens.
    pub(crate) fn runs_at(&mut self, now_ms: u64, heard: bool) {
        self.heard = heard;
        if !heard {
            // Nobody takes them.
            self.passed.get_mut().clear();
        }
        if self.ran_ms == 0 {
            // Where expired keys are there, no commit relies on an expiry.
            self.ran_ms = if self.look.shows_expired { u64::MAX } else { now_ms };
        }
    }

    /// Whether a sink listened when the command that runs now began. If listening began since, the commit fails
    /// ([`Overlay::listen_epoch`]).
    pub(crate) fn is_heard(&self) -> bool {
        self.heard
    }

    /// Undoes every change, as if nothing had run. Keys that were read stay known.
    pub fn reset(&mut self) {
        (self.written_bytes, self.editing) = (0, None);
        for Slot { cell, .. } in self.slots.iter_mut() {
            if std::mem::take(&mut cell.dirty) {
                cell.now = None;
            }
            cell.mute();
            cell.used = None;
            cell.is_gone.set(false);
        }
        self.passed.get_mut().clear();
        self.written = false;
        self.beside = None;
        self.expired.get_mut().clear();
        self.expired_bytes.set(0);
        self.flushed.clear();
        self.places.clear();
    }

    /// Adds a change of something else, which is made with the commit.
    pub fn brings(&mut self, beside: Box<dyn Beside>) {
        self.beside = Some(beside);
        self.written = true;
    }

    /// The LSN that a reply which only read has to wait for; 0 for none. O(keys known), each under its
    /// shard's lock.
    pub fn recent(&self) -> Lsn {
        let keyspace = self.snapshot.keyspace();
        if self.listed.get() || self.written || self.near.read() > 0 {
            return keyspace.last_lsn();
        }
        keyspace.recent(self.slots.iter().map(|slot| slot.hash))
    }

    /// Whether a commit would change or tell anything. O(1).
    #[inline]
    pub fn is_dirty(&self) -> bool {
        self.written
    }

    #[inline]
    pub(crate) fn get(&self, called: usize, key: &[u8], now_ms: u64) -> Option<Seen<'_>> {
        let db = self.physical(called);
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
            match cell {
                Some(Cell { dirty: true, is_gone, .. }) => self.note_passed(called, is_gone),
                _ => self.note_expired(db, key),
            }
            return None;
        }
        seen
    }

    /// The key that was looked at last was written by the run, with a time that has passed (O10).
    #[cold]
    fn note_passed(&self, called: usize, is_gone: &std::cell::Cell<bool>) {
        // The command may write it again, with a time that has passed too: that is noted anew.
        let is_told = called < self.snapshot.keyspace().databases();
        if is_told && !is_gone.replace(true) {
            self.passed.borrow_mut().push((called, self.last.get()));
        }
    }

    /// Takes the keys that commands found gone although the run wrote them (O10), each once until it is
    /// written again, with the databases as commands call them. Tell that they are gone, then what the last
    /// command did. O(those keys).
    pub fn take_passed(&mut self) -> Vec<(usize, Box<[u8]>)> {
        let passed = std::mem::take(self.passed.get_mut()).into_iter();
        passed.map(|(called, place)| (called, self.slots[place].key.as_ref().into())).collect()
    }

    /// A key that was there has expired (O9).
    #[cold]
    fn note_expired(&self, db: usize, key: &[u8]) {
        let mut expired = self.expired.borrow_mut();
        let names = expired.entry(db).or_default();
        if !names.contains(key) {
            names.insert(key.into());
            self.expired_bytes.set(self.expired_bytes.get() + key.len() + 64);
        }
    }

    pub(crate) fn listen_epoch(&self) -> u64 {
        self.epoch
    }

    /// Adds the keys that were found expired, so that the sink is told of them first (O9). They are removed
    /// when they are swept, and with the commit in import mode, where none is.
    pub(crate) fn announce_expired(&mut self, announce: Announce) -> Announce {
        let expired = self.take_expired();
        if self.snapshot.keyspace().imports() {
            for (db, key) in &expired {
                let place = self.place_or_missing(*db, key);
                self.slots[place].cell.dirty = true;
            }
        }
        self.snapshot.keyspace().group(expired, announce)
    }

    /// The keys that were found expired, with their databases.
    fn take_expired(&mut self) -> Vec<(usize, Box<[u8]>)> {
        let expired = std::mem::take(self.expired.get_mut()).into_iter();
        expired.flat_map(|(db, names)| names.into_iter().map(move |name| (db, name))).collect()
    }

    // ----- the whole (O5) ----------------------------------------------------------------------------------

    /// Takes the chunk that a handler missed: database, start, and about how many keys it should have.
    pub fn take_wanted_chunk(&self) -> Option<(usize, u64, usize)> {
        // A handler starts over after each chunk, so each is larger than the last.
        self.wanted.take().map(|(db, position)| (db, position, 1000 << self.chunks.len().min(10)))
    }

    /// Adds a chunk that begins at `position`. O(keys · log keys).
    pub fn insert_chunk(&mut self, db: usize, position: u64, mut chunk: Chunk) {
        chunk.keys.sort_unstable_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        self.known_bytes += chunk.bytes();
        self.chunks.insert((db, position), chunk);
    }

    /// The chunk that covers a place in the hash order.
    fn chunk(&self, db: usize, position: u64) -> Option<&Chunk> {
        let ((at, _), chunk) = self.chunks.range(..=(db, position)).next_back()?;
        (*at == db && chunk.next.is_none_or(|next| position < next)).then_some(chunk)
    }

    /// Visits name and type of the keys from `position` to the end of its chunk. Returns how many, and the
    /// next position. `None`: the chunk must be fetched first. O(keys of the chunk + keys known).
    pub(crate) fn visit_chunk(
        &self,
        db: usize,
        position: u64,
        now_ms: u64,
        f: &mut dyn FnMut(&[u8], Kind),
    ) -> Option<(usize, Option<u64>)> {
        self.listed.set(true);
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

    /// The number of keys it adds to a database, less those it removes. For a database it emptied: the number
    /// of keys in it. A key that was overwritten unseen counts as missed, and its base is asked for. O(keys
    /// known).
    pub(crate) fn added(&self, db: usize, now_ms: u64) -> i64 {
        self.listed.set(true);
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

    /// Empties a database. O(keys known).
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

    /// The fewest exchanges that have the effect of all SWAPDBs. O(databases²).
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

    /// The place of a key. If its base is not known, the key is noted as missed.
    fn place_or_missing(&mut self, db: usize, key: &[u8]) -> u32 {
        let hash = match self.known(db, key) {
            Ok(place) => return place,
            Err(hash) => hash,
        };
        if let Some(base) = self.near.take(db, hash, key) {
            self.insert(db, hash, key, base);
            return self.last.get();
        }
        // Only a loop may read the shard: the key is absent until it is loaded (O3). An emptied database has
        // no keys to load.
        if !self.flushed.contains(&db) {
            self.miss(db, hash, key);
        }
        self.place_or_new(db, hash, key)
    }

    /// The value of a key, to be changed or taken; `None` if there is no such key. `fits` may refuse it.
    /// O(1).
    pub(crate) fn edit<E>(
        &mut self,
        db: usize,
        key: &[u8],
        now_ms: u64,
        fits: impl FnOnce(&Owned) -> Result<(), E>,
    ) -> Result<Option<&mut Option<Owned>>, E> {
        let called = db;
        let place = self.place_or_missing(self.physical(db), key);
        if self.editing.is_some_and(|(edited, _)| edited != place) {
            self.end_edit();
        }
        let found = &self.slots[place];
        if !found.cell.dirty && found.cell.current().is_some_and(|owned| !is_live(owned, now_ms)) {
            self.note_expired(found.db, key);
            return Ok(None);
        }
        if found.cell.dirty && found.cell.now.as_ref().is_some_and(|owned| !is_live(owned, now_ms)) {
            self.last.set(place);
            self.note_passed(called, &found.cell.is_gone);
            return Ok(None);
        }
        let cell = &mut self.slots[place].cell;
        let Some(owned) = cell.current() else { return Ok(None) };
        fits(owned)?;
        self.written = true;
        let bytes = owned.value.mem_bytes();
        if !std::mem::replace(&mut cell.dirty, true) {
            cell.now = cell.base.clone();
        }
        if self.editing.is_none() {
            // A change of a shared value copies a part of it; each part is copied once.
            if (cell.changes as usize).saturating_mul(COPIED) < bytes && cell.base.is_some() {
                self.written_bytes += bytes.min(COPIED);
            }
            self.editing = Some((place, bytes));
        }
        Ok(Some(&mut cell.now))
    }

    /// Sets a key, whatever it holds (O4).
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
        // A value that was moved or copied here is shared with the keyspace.
        let bytes = |owned: &Owned| owned.value.alone_bytes();
        self.written_bytes += bytes(&owned);
        self.written_bytes = self.written_bytes.saturating_sub(cell.now.as_ref().map_or(0, bytes));
        cell.now = Some(owned);
        cell.dirty = true;
        cell.is_gone.set(false);
        self.written = true;
    }

    /// Takes it apart for a commit in pieces. O(keys · log keys).
    pub(crate) fn into_parts(mut self) -> Parts {
        let swaps = self.swaps();
        let (read, expires_ms) = self.near.into_read(self.ran_ms);
        let flushed = self.flushed;
        // A key removed with its database tells nothing. Its base is checked like any other.
        for slot in self.slots.iter_mut().filter(|slot| slot.cell.now.is_none() && flushed.contains(&slot.db))
        {
            slot.cell.mute();
        }
        let (snapshot, ran_ms, shards) = (self.snapshot, self.ran_ms, self.slots.into_shards());
        Parts { snapshot, ran_ms, shards, read, expires_ms, flushed, swaps, beside: self.beside }
    }

    /// Notes how a key that was put counts as used.
    pub(crate) fn leave_used(&mut self, db: usize, key: &[u8], used: Used) {
        let place = self.place_or_missing(self.physical(db), key);
        self.slots[place].cell.used = Some(used);
    }

    /// Notes an event of a key. If nobody wants the event, a change is only counted: a script may make
    /// millions.
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

    /// Notes that clients that are blocked on a key have to look at it again.
    pub(crate) fn wake(&mut self, db: usize, key: &[u8]) {
        let place = self.place_or_missing(self.physical(db), key);
        self.slots[place].cell.wakes = true;
        self.written = true;
    }

    /// Commits everything at one LSN, or nothing (O2), and tells the effects before the locks are released.
    /// `Lost`: run again on a new snapshot. O(keys known), under their shards' locks.
    pub fn commit(mut self, now_ms: u64, announce: Announce) -> Result<Changes, Lost> {
        self.adopt_read();
        if !self.snapshot.is_current() {
            return Err(Lost { told: Changes::default(), by: 0 });
        }
        let keyspace = self.snapshot.keyspace().clone();
        let swaps = self.swaps();
        // All locks are needed to empty or exchange databases.
        let all = !self.flushed.is_empty() || !swaps.is_empty();
        let mut shards = if all { Bits::below(crate::SHARDS) } else { Bits::EMPTY };
        for slot in self.slots.iter() {
            shards.insert(shard_of(slot.hash));
        }
        if self.beside.is_some() {
            shards.insert(BESIDE);
        }
        let mut view = View::locked(&keyspace, shards, 0, now_ms);
        if self.look.shows_expired {
            view.set_expired_live();
        }
        if view.has_intents() {
            let keys: Vec<_> = self.slots.iter().map(|slot| (slot.db, &*slot.key)).collect();
            view.settle(&keys, true);
        }
        for Slot { db, key, cell, .. } in self.slots.iter() {
            // A key that expired before the run was absent to it.
            let due = crate::intent::expiry_relied_on(cell, self.ran_ms).is_some_and(|at| at <= now_ms);
            let changed = view.changed_since(*db, key, self.snapshot.lsn());
            if cell.loaded && (due || changed.is_some()) {
                return Err(Lost { told: view.finish(), by: changed.unwrap_or(0) });
            }
        }
        let holds = self.beside.as_ref().is_none_or(|beside| beside.holds());
        if !holds || !self.snapshot.is_current() || self.epoch != keyspace.listen_epoch() {
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
        if let Some(beside) = self.beside {
            view.changes_beside(&*beside);
        }
        let lsn = view.changes().lsn;
        // Without an LSN nothing has changed: what it did it undid.
        announce.filter(|_| lsn != 0).into_iter().for_each(|effects| keyspace.tell_shared(lsn, effects));
        Ok(view.finish())
    }
}

pub(crate) fn apply(view: &mut View<'_>, key: &[u8], cell: Cell) {
    if cell.dirty {
        match cell.now {
            Some(owned) => {
                view.put(key, owned.value, owned.expire_ms);
                match cell.used {
                    Some(Used::Idle(idle_s)) => view.set_idle(key, idle_s),
                    Some(Used::Often(freq)) => view.set_freq(key, freq),
                    None => {}
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
    if cell.wakes {
        view.wake(key);
    }
    if let Some(happened) = cell.told {
        view.notify_all(key, happened);
    }
}

pub(crate) fn is_live(owned: &Owned, now_ms: u64) -> bool {
    owned.expire_ms.is_none_or(|at| at > now_ms)
}
