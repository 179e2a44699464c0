//! Changes not yet committed, over what a snapshot shows: how scripts, long writes and long reads see the keyspace.
//!
//! - O1: every key an overlay knows was read at its snapshot `s` (its *base*), present or absent; it reads no other.
//! - O2: nothing of it is visible to anybody before `commit`, which locks the shards of all keys it knows, checks that
//!   none changed since `s` and none read as present has expired, and applies the changed ones under one LSN.
//! - O3: a key the handler asked for and the overlay does not know is absent to it and noted in `missing`; the caller
//!   loads those and runs the handler again.
//!
//! Cost of a commit: O(keys known), under the locks of their shards.

use crate::entry::{EntryRef, Owned};
use crate::sequence::{Lsn, Snapshot};
use crate::shard::Shard;
use crate::view::{Changes, Class, View};
use crate::{Keyspace, shard_of};
use std::cell::RefCell;
use std::collections::HashMap;
use stdx::hash::hash_bytes;
use stdx::locks::Bits;

#[derive(Default)]
pub(crate) struct Cell {
    base: Option<Owned>,
    pub(crate) now: Option<Owned>,
    pub(crate) dirty: bool,
    /// Read at the snapshot; false for a key that was written before anybody loaded it.
    loaded: bool,
    told: Vec<(Class, &'static str, bool)>,
}

/// See the module.
pub struct Overlay {
    snapshot: Snapshot,
    cells: Vec<HashMap<Box<[u8]>, Cell>>,
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
        let databases = snapshot.keyspace().databases();
        Overlay {
            snapshot,
            cells: (0..databases).map(|_| HashMap::new()).collect(),
            missing: RefCell::default(),
            whole: std::cell::Cell::new(false),
            ran_ms: 0,
        }
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
            let base = read_at(guard.get(shard), db, hash, key, self.snapshot.lsn());
            drop(guard);
            self.insert(db, key.into(), base);
        }
    }

    /// Whether a key was read already.
    pub fn knows(&self, db: usize, key: &[u8]) -> bool {
        self.cells[db].get(key).is_some_and(|cell| cell.loaded)
    }

    /// Adds a key as somebody else read it at this overlay's snapshot (see [`Keyspace::read_at`]).
    pub fn insert(&mut self, db: usize, key: Box<[u8]>, base: Option<Owned>) {
        let cell = self.cells[db].entry(key).or_default();
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
        for cell in self.cells.iter_mut().flat_map(HashMap::values_mut) {
            if cell.dirty {
                cell.now = cell.base.clone();
                cell.dirty = false;
            }
            cell.told.clear();
        }
    }

    /// True if anything would be changed by a commit.
    pub fn is_dirty(&self) -> bool {
        self.cells.iter().any(|cells| cells.values().any(|cell| cell.dirty || !cell.told.is_empty()))
    }

    #[inline]
    pub(crate) fn get(&self, db: usize, key: &[u8], now_ms: u64) -> Option<&Owned> {
        match self.cells[db].get(key) {
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
        if !self.cells[db].contains_key(key) {
            // Only a loop may look at the shard: the key counts as absent until it is loaded (O3).
            self.missing.get_mut().push((db, key.into()));
        }
        self.cells[db].entry(key.into()).or_default()
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
        for key in self.cells.iter().flat_map(HashMap::keys) {
            shards.insert(shard_of(hash_bytes(key)));
        }
        let mut view = View::locked(&keyspace, shards, 0, now_ms);
        for (db, cells) in self.cells.iter().enumerate() {
            for (key, cell) in cells {
                // What had expired before the run was absent to it.
                let expired = cell
                    .base
                    .as_ref()
                    .is_some_and(|owned| is_live(owned, self.ran_ms) && !is_live(owned, now_ms));
                if expired && cell.now.is_some() || view.changed_since(db, key, self.snapshot.lsn()) {
                    return Err(Conflict);
                }
            }
        }
        if !self.snapshot.is_current() {
            return Err(Conflict);
        }
        for (db, cells) in self.cells.into_iter().enumerate() {
            view.select(db);
            for (key, cell) in cells {
                apply(&mut view, &key, cell);
            }
        }
        Ok(view.finish())
    }
}

fn apply(view: &mut View<'_>, key: &[u8], cell: Cell) {
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

/// What a key was at `s`: the first pre-image with a later LSN, else the table.
pub(crate) fn read_at(shard: &Shard, db: usize, hash: u64, key: &[u8], s: Lsn) -> Option<Owned> {
    match shard.pre.at(db, key, s) {
        Some(before) => before.cloned(),
        None => shard.dbs[db].find(hash, key).map(|entry: EntryRef<'_>| entry.to_owned()),
    }
}

impl Keyspace {
    /// What a key was at an active snapshot's LSN. Takes its shard's lock for one look-up.
    pub fn read_at(&self, db: usize, key: &[u8], s: Lsn) -> Option<Owned> {
        let hash = hash_bytes(key);
        let shard = shard_of(hash);
        let guard = self.shards.lock_one(shard);
        read_at(guard.get(shard), db, hash, key, s)
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
        let shard = shard_of(position);
        let guard = self.shards.lock_one(shard);
        let shard_ref = guard.get(shard);
        let s = snapshot.lsn();
        let next = shard_ref.dbs[db].visit_segment(position, &mut |entry| {
            if shard_ref.pre.at(db, entry.key(), s).is_none() {
                f(entry.key(), entry.expire_ms());
            }
        });
        // What changed or went since stands in the pre-images; their keys belong to this part of the hash order.
        if !shard_ref.pre.is_empty() {
            let end = next.map_or(u64::MAX, |next| next - 1);
            for (key, before) in shard_ref.pre.iter_at(db, s) {
                let hash = hash_bytes(key);
                let here = shard_of(hash) == shard && (position..=end).contains(&hash);
                if let (true, Some(before)) = (here, before) {
                    f(key, before.expire_ms);
                }
            }
        }
        next.or_else(|| (shard as u64 + 1 < crate::SHARDS as u64).then(|| (shard as u64 + 1) << 56))
    }
}
