//! Changes not yet committed, over what a snapshot shows: how scripts, long writes and long reads see the keyspace.
//!
//! - O1: every key an overlay knows was read at its snapshot `s` (its *base*), present or absent; it reads no other.
//! - O2: nothing of it is visible to anybody before `commit`, which locks the shards of all keys it knows, checks that
//!   none changed since `s` and none read as present has expired, and applies the changed ones under one LSN.
//! - O3: a key the handler asked for and the overlay does not know is absent to it and noted in `missing`; the caller
//!   loads those and runs the handler again.
//!
//! - O4: a key that was only overwritten, never read, needs no base and is not checked.
//!
//! Cost of a commit: O(keys known), under the locks of their shards; for many keys [`Overlay::seal`] makes a commit that
//! is done in pieces instead (`intent.rs`).

use crate::entry::{EntryRef, Owned};
use crate::intent::Intent;
use crate::sequence::{Lsn, Sequence, Snapshot};
use crate::shard::Shard;
use crate::view::{Changes, Class, View};
use crate::{Keyspace, shard_of};
use hashbrown::HashTable;
use smallvec::SmallVec;
use std::cell::RefCell;
use stdx::hash::hash_bytes;
use stdx::locks::Bits;

#[derive(Default)]
pub(crate) struct Cell {
    pub(crate) base: Option<Owned>,
    pub(crate) now: Option<Owned>,
    pub(crate) dirty: bool,
    /// Read at the snapshot; false for a key that was only overwritten.
    pub(crate) loaded: bool,
    told: SmallVec<[(Class, &'static str, bool); 1]>,
}

impl Cell {
    /// Whether a commit changes the key or tells of it.
    pub(crate) fn writes(&self) -> bool {
        self.dirty || !self.told.is_empty()
    }
}

struct Slot {
    hash: u64,
    db: usize,
    key: Box<[u8]>,
    cell: Cell,
}

/// See the module.
pub struct Overlay {
    snapshot: Snapshot,
    cells: HashTable<Slot>,
    missing: RefCell<Vec<(usize, Box<[u8]>)>>,
    whole: std::cell::Cell<bool>,
    /// When what ran over it first took place; 0 before.
    ran_ms: u64,
}

/// Why a commit did not happen: a key that was read has changed meanwhile. Run again on a new snapshot.
#[derive(Debug, PartialEq, Eq)]
pub struct Conflict;

impl Overlay {
    pub fn new(snapshot: Snapshot) -> Overlay {
        let (missing, whole) = (RefCell::default(), std::cell::Cell::new(false));
        Overlay { snapshot, cells: HashTable::new(), missing, whole, ran_ms: 0 }
    }

    /// Keys known.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    fn known(&self, db: usize, key: &[u8]) -> Option<&Cell> {
        let slot = self.cells.find(hash_bytes(key), |slot| slot.db == db && *slot.key == *key)?;
        Some(&slot.cell)
    }

    /// The cell of a key, made empty if there is none; true if it was made.
    fn make(&mut self, db: usize, key: &[u8]) -> (&mut Cell, bool) {
        let hash = hash_bytes(key);
        let same = |slot: &Slot| slot.db == db && *slot.key == *key;
        let made = self.cells.find(hash, same).is_none();
        let entry = self.cells.entry(hash, same, |slot| slot.hash);
        let slot = entry.or_insert_with(|| Slot { hash, db, key: key.into(), cell: Cell::default() });
        (&mut slot.into_mut().cell, made)
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
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
            let base = read_at(&keyspace.sequence, guard.get(shard), db, hash, key, self.snapshot.lsn());
            drop(guard);
            self.insert(db, key.into(), base);
        }
    }

    /// Whether a key was read already.
    pub fn knows(&self, db: usize, key: &[u8]) -> bool {
        self.known(db, key).is_some_and(|cell| cell.loaded)
    }

    /// Adds a key as somebody else read it at this overlay's snapshot (see [`Keyspace::read_at`]).
    pub fn insert(&mut self, db: usize, key: Box<[u8]>, base: Option<Owned>) {
        let (cell, _) = self.make(db, &key);
        if !cell.dirty {
            cell.now = base.clone();
        }
        cell.base = base;
        cell.loaded = true;
    }

    /// Takes the list of keys handlers asked for in vain.
    pub fn take_missing(&mut self) -> Vec<(usize, Box<[u8]>)> {
        std::mem::take(self.missing.get_mut())
    }

    /// Loads what handlers asked for in vain; false if there was nothing (O3).
    pub fn load_missing(&mut self) -> bool {
        let missing = std::mem::take(self.missing.get_mut());
        missing.iter().for_each(|(db, key)| self.load(*db, [&key[..]]));
        !missing.is_empty()
    }

    /// True if a handler asked for keys that were not loaded.
    pub fn has_missing(&self) -> bool {
        !self.missing.borrow().is_empty()
    }

    /// True if a handler asked for the keyspace as a whole (SCAN, KEYS, FLUSHALL …), which an overlay cannot show.
    pub fn wants_whole(&self) -> bool {
        self.whole.get()
    }

    pub(crate) fn runs_at(&mut self, now_ms: u64) {
        if self.ran_ms == 0 {
            self.ran_ms = now_ms;
        }
    }

    pub(crate) fn ask_whole(&self) {
        self.whole.set(true);
    }

    /// Takes back every change, as if nothing had run; what was read stays.
    pub fn reset(&mut self) {
        for Slot { cell, .. } in self.cells.iter_mut() {
            if cell.dirty {
                cell.now = cell.base.clone();
                cell.dirty = false;
            }
            cell.told.clear();
        }
    }

    /// True if anything would be changed by a commit.
    pub fn is_dirty(&self) -> bool {
        self.cells.iter().any(|slot| slot.cell.writes())
    }

    #[inline]
    pub(crate) fn get(&self, db: usize, key: &[u8], now_ms: u64) -> Option<&Owned> {
        match self.known(db, key) {
            Some(cell) if cell.loaded || cell.dirty => {
                cell.now.as_ref().filter(|owned| is_live(owned, now_ms))
            }
            _ => {
                self.missing.borrow_mut().push((db, key.into()));
                None
            }
        }
    }

    pub(crate) fn cell(&mut self, db: usize, key: &[u8]) -> &mut Cell {
        if self.known(db, key).is_none() {
            // Only a loop may look at the shard: the key counts as absent until it is loaded (O3).
            self.missing.get_mut().push((db, key.into()));
        }
        self.make(db, key).0
    }

    /// Sets a key whatever it was (O4).
    pub(crate) fn overwrite(&mut self, db: usize, key: &[u8], owned: Owned) {
        let (cell, _) = self.make(db, key);
        cell.now = Some(owned);
        cell.dirty = true;
    }

    pub(crate) fn into_cells(self) -> (Snapshot, u64, Vec<Intent>) {
        let cells = self.cells.into_iter();
        let intents = cells.map(|slot| Intent {
            hash: slot.hash,
            db: slot.db as u32,
            key: slot.key,
            cell: Some(slot.cell),
        });
        (self.snapshot, self.ran_ms, intents.collect())
    }

    pub(crate) fn tell(&mut self, db: usize, key: &[u8], class: Class, event: &'static str, changed: bool) {
        self.cell(db, key).told.push((class, event, changed));
    }

    /// Applies everything at one LSN, or nothing (O2). The view given back still holds the locks: `finish` it.
    pub fn commit(self, now_ms: u64) -> Result<Changes, Conflict> {
        if !self.snapshot.is_current() {
            return Err(Conflict);
        }
        let keyspace = self.snapshot.keyspace().clone();
        let mut shards = Bits::EMPTY;
        for slot in &self.cells {
            shards.insert(shard_of(slot.hash));
        }
        let mut view = View::locked(&keyspace, shards, 0, now_ms);
        if view.has_intents() {
            let keys: Vec<_> = self.cells.iter().map(|slot| (slot.db, &*slot.key)).collect();
            view.settle(&keys, true);
        }
        for Slot { db, key, cell, .. } in &self.cells {
            // What had expired before the run was absent to it.
            let due = crate::intent::expiry_relied_on(cell, self.ran_ms).is_some_and(|at| at <= now_ms);
            if cell.loaded && (due || view.changed_since(*db, key, self.snapshot.lsn())) {
                return Err(Conflict);
            }
        }
        if !self.snapshot.is_current() {
            return Err(Conflict);
        }
        for slot in self.cells {
            view.select(slot.db);
            apply(&mut view, &slot.key, slot.cell);
        }
        Ok(view.finish())
    }
}

pub(crate) fn apply(view: &mut View<'_>, key: &[u8], cell: Cell) {
    if cell.dirty {
        match cell.now {
            Some(owned) => view.put(key, owned.value, owned.expire_ms),
            None => {
                view.remove(key);
            }
        }
    }
    for (class, event, changed) in cell.told {
        if changed { view.changed(key, class, event) } else { view.notify(key, class, event) }
    }
}

pub(crate) fn is_live(owned: &Owned, now_ms: u64) -> bool {
    owned.expire_ms.is_none_or(|at| at > now_ms)
}

/// What a key was at `s`: the first pre-image with a later LSN, else what a commit up to `s` made of it, else the table.
pub(crate) fn read_at(
    sequence: &Sequence,
    shard: &Shard,
    db: usize,
    hash: u64,
    key: &[u8],
    s: Lsn,
) -> Option<Owned> {
    if let Some(before) = shard.pre.at(db, key, s) {
        return before.cloned();
    }
    if !shard.intents.is_empty()
        && let Some(cell) = shard.intents.at(sequence, db, hash, key, s)
    {
        return cell.now.clone();
    }
    shard.dbs[db].find(hash, key).map(|entry: EntryRef<'_>| entry.to_owned())
}

impl Keyspace {
    /// What a key was at an active snapshot's LSN. Takes its shard's lock for one look-up.
    pub fn read_at(&self, db: usize, key: &[u8], s: Lsn) -> Option<Owned> {
        let hash = hash_bytes(key);
        let shard = shard_of(hash);
        let guard = self.shards.lock_one(shard);
        read_at(&self.sequence, guard.get(shard), db, hash, key, s)
    }

    /// Visits the keys of the segment at `position` as they were at the snapshot (expired ones included; filter by
    /// the entry's expiry), and returns the next position. Cost: O(entries of one segment) under its shard's lock.
    pub fn visit_at(
        &self,
        snapshot: &Snapshot,
        db: usize,
        position: u64,
        f: &mut dyn FnMut(&[u8], Option<u64>),
    ) -> Option<u64> {
        let shard_id = shard_of(position);
        let guard = self.shards.lock_one(shard_id);
        let shard = guard.get(shard_id);
        let s = snapshot.lsn();
        let made = |hash, key: &[u8]| match shard.intents.is_empty() {
            true => None,
            false => shard.intents.at(&self.sequence, db, hash, key, s),
        };
        let next = shard.dbs[db].visit_segment(position, &mut |entry| {
            let replaced = !shard.intents.is_empty() && made(hash_bytes(entry.key()), entry.key()).is_some();
            if !replaced && shard.pre.at(db, entry.key(), s).is_none() {
                f(entry.key(), entry.expire_ms());
            }
        });
        let end = next.map_or(u64::MAX, |next| next - 1);
        // What changed or went since stands in the pre-images; their keys belong to this part of the hash order.
        if !shard.pre.is_empty() {
            for (key, before) in shard.pre.iter_at(db, s) {
                let hash = hash_bytes(key);
                let here = shard_of(hash) == shard_id && (position..=end).contains(&hash);
                if let (true, Some(before)) = (here, before) {
                    f(key, before.expire_ms);
                }
            }
        }
        // What was committed up to the snapshot and is not in the table yet.
        for intent in shard.intents.made_by(&self.sequence, s).flat_map(|placed| placed.within(position, end))
        {
            let now = intent.cell.as_ref().filter(|cell| cell.dirty).and_then(|cell| cell.now.as_ref());
            if let (Some(now), true) =
                (now, intent.db as usize == db && shard.pre.at(db, &intent.key, s).is_none())
            {
                f(&intent.key, now.expire_ms);
            }
        }
        next.or_else(|| (shard_id as u64 + 1 < crate::SHARDS as u64).then(|| (shard_id as u64 + 1) << 56))
    }
}
