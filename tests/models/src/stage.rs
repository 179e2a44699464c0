// The base of `intent.rs`, played: shards of one string key per database behind their locks, a view that
// holds some, and an overlay of cells. `sequence.rs`, `preimages.rs` and `record.rs` are as they are.

use super::intent::{Intent, Intents, TakenAway};
use super::record::Record;
use super::tell::Announce;
use super::preimages::PreImages;
use super::sequence::{Lsn, Sequence, Snapshot};
use super::underway::Underway;
use crate::stdx::hash::hash_bytes;
use crate::stdx::locks::Bits;
use crate::value::{Str, Value};
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Mutex, MutexGuard};
use std::sync::Arc;

/// Snapshots at once.
pub(crate) const MAX_ACTIVE: usize = 2;
pub(crate) const MAX_LONG: usize = MAX_ACTIVE;
pub(crate) const SHARDS: usize = 2;

/// Databases.
const DATABASES: usize = 2;

/// Key `a` is in the first shard, `b` in the second.
pub(crate) fn shard_of(hash: u64) -> usize {
    hash as usize
}

#[derive(Debug)]
pub struct Conflict {
    pub by: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Owned {
    pub value: Value,
    pub expire_ms: Option<u64>,
}

/// The value of a key. 0: there is none.
pub(crate) fn owned(number: u64) -> Option<Owned> {
    (number > 0).then_some(Owned { value: Value::Str(Str(number)), expire_ms: None })
}

pub(crate) fn number(owned: Option<&Owned>) -> u64 {
    owned.map_or(0, |Owned { value: Value::Str(Str(number)), .. }| *number)
}

// ----- shards ----------------------------------------------------------------------------------------------

#[derive(Default)]
pub(crate) struct Shard {
    pub(crate) dbs: [Table; DATABASES],
    pub(crate) pre: PreImages,
    pub(crate) intents: Intents,
}

#[derive(Default)]
pub(crate) struct Table(Option<Owned>);

impl Table {
    /// Finds the only key.
    pub(crate) fn find(&self, _: u64, _: &[u8]) -> Option<Expiring> {
        self.0.as_ref().map(|owned| Expiring(owned.expire_ms))
    }
    pub(crate) fn prefetch_line(&self, _: u64) {}
    pub(crate) fn prefetch_entry(&self, _: u64) {}
}

pub(crate) struct Expiring(Option<u64>);

impl Expiring {
    pub(crate) fn expire_ms(&self) -> Option<u64> {
        self.0
    }
}

pub(crate) struct Shards([Mutex<Shard>; SHARDS]);

impl Shards {
    pub(crate) fn lock_one(&self, shard: usize) -> Guard<'_> {
        Guard(vec![(shard, self.0[shard].lock().unwrap())])
    }
}

pub(crate) struct Guard<'a>(Vec<(usize, MutexGuard<'a, Shard>)>);

impl Guard<'_> {
    pub(crate) fn get_mut(&mut self, shard: usize) -> &mut Shard {
        self.0.iter_mut().find(|(held, _)| *held == shard).map(|(_, guard)| &mut **guard).unwrap()
    }
}

pub struct Keyspace {
    pub(crate) sequence: Sequence,
    pub(crate) intents: AtomicUsize,
    pub(crate) underway: Underway,
    generation: AtomicUsize,
    pub(crate) shards: Shards,
}

impl Default for Keyspace {
    fn default() -> Self {
        let shards = Shards(std::array::from_fn(|_| Mutex::new(Shard::default())));
        let (intents, generation) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Keyspace { sequence: Sequence::default(), intents, underway: Underway::default(), generation, shards }
    }
}

impl Keyspace {
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst) as u64
    }

    pub(crate) fn changed_beside(&self) {}

    /// No reply waits for the log.
    pub(crate) fn note_recent_beside(&self, _: Lsn) {}

    pub(crate) fn all_databases(&self) -> usize {
        DATABASES
    }

    /// Nobody begins to listen.
    pub(crate) fn listen_epoch(&self) -> u64 {
        0
    }

    /// Nothing is hidden.
    pub(crate) fn group(&self, _: Vec<(usize, Box<[u8]>)>, announce: Announce) -> Announce {
        announce
    }

    pub(crate) fn closed_snapshot(&self) {}

    pub(crate) fn free_later(&self, tables: Vec<Table>) {
        drop(tables);
    }

    /// As `overlay.rs` does it.
    pub(crate) fn read_at(&self, key: &[u8], s: Lsn) -> Option<Owned> {
        let hash = hash_bytes(key);
        let mut guard = self.shards.lock_one(shard_of(hash));
        let shard = guard.get_mut(shard_of(hash));
        if let Some(before) = shard.pre.at(0, key, s) {
            return before.cloned();
        }
        match shard.intents.at(&self.sequence, 0, hash, key, s) {
            Some(becomes) => becomes,
            None => shard.dbs[0].0.clone(),
        }
    }
}

// ----- views -----------------------------------------------------------------------------------------------

#[derive(Default)]
pub struct Changes {
    pub lsn: Lsn,
}

pub enum Class {
    Generic,
    String,
}

pub struct View<'k> {
    keyspace: &'k Keyspace,
    guard: Guard<'k>,
    db: usize,
    lsn: Lsn,
    keep: bool,
}

impl<'k> View<'k> {
    pub fn locked(keyspace: &'k Keyspace, shards: Bits, db: usize, _: u64) -> View<'k> {
        let guards = shards.iter().map(|i| (i, keyspace.shards.0[i].lock().unwrap())).collect();
        View { keyspace, guard: Guard(guards), db, lsn: 0, keep: false }
    }

    pub fn finish(self) -> Changes {
        Changes { lsn: self.lsn }
    }

    pub(crate) fn keyspace(&self) -> &'k Keyspace {
        self.keyspace
    }

    pub(crate) fn held(&self) -> Bits {
        self.guard.0.iter().fold(Bits::EMPTY, |bits, (shard, _)| bits.with(*shard))
    }

    pub(crate) fn shard(&self, shard: usize) -> Option<&Shard> {
        self.guard.0.iter().find(|(held, _)| *held == shard).map(|(_, guard)| &**guard)
    }

    pub(crate) fn shard_mut(&mut self, shard: usize) -> Option<&mut Shard> {
        self.guard.0.iter_mut().find(|(held, _)| *held == shard).map(|(_, guard)| &mut **guard)
    }

    pub(crate) fn select(&mut self, db: usize) {
        self.db = db;
    }

    pub(crate) fn at<T>(&mut self, _: u64, f: impl FnOnce(&mut Self) -> T) -> T {
        f(self)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&Owned> {
        self.shard(shard_of(hash_bytes(key))).unwrap().dbs[self.db].0.as_ref()
    }

    pub(crate) fn changed_since(&self, db: usize, key: &[u8], s: Lsn) -> Option<u64> {
        self.shard(shard_of(hash_bytes(key))).unwrap().pre.changed_by(db, key, s)
    }

    pub(crate) fn write_at(
        &mut self,
        n: Lsn,
        db: usize,
        _: u64,
        key: &[u8],
        write: impl FnOnce(&mut Self, &[u8]),
    ) {
        let mine = (self.lsn, self.keep, self.db);
        (self.lsn, self.keep, self.db) = (n, self.keyspace.sequence.keeps().snapshots(), db);
        write(self, key);
        (self.lsn, self.keep, self.db) = mine;
    }

    /// Draws an LSN at the first change, keeps the old value, and changes it.
    pub(crate) fn set(&mut self, key: &[u8], to: Option<Owned>) {
        if self.lsn == 0 {
            self.lsn = self.keyspace.sequence.draw();
            self.keep = self.keyspace.sequence.keeps().snapshots();
        }
        let (lsn, newest, keep, db) = (self.lsn, self.keyspace.sequence.newest(), self.keep, self.db);
        let Shard { dbs, pre, .. } = self.shard_mut(shard_of(hash_bytes(key))).unwrap();
        if keep {
            pre.keep(db, key, lsn, newest, || dbs[db].0.clone(), |_, _| (1, 1));
        } else if !pre.is_empty() {
            pre.clear();
        }
        dbs[db].0 = to;
    }

    pub(crate) fn put(&mut self, key: &[u8], value: Value, expire_ms: Option<u64>) {
        self.set(key, Some(Owned { value, expire_ms }));
    }

    pub(crate) fn put_string(&mut self, key: &[u8], bytes: &[u8], expire_ms: Option<u64>) {
        self.put(key, Value::Str(Str::from_slice(bytes)), expire_ms);
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let there = self.get(key).is_some();
        if there {
            self.set(key, None);
        }
        there
    }

    pub(crate) fn changed_in(&mut self, _: usize, _: &[u8], _: Class, _: &str) {}

    /// As `view/whole.rs` does it.
    pub(crate) fn decide_and_replace(
        &mut self,
        record: &Arc<Record>,
        dbs: &[usize],
        swaps: &[(usize, usize)],
    ) -> Option<Lsn> {
        let n = self.decide_last(record)?;
        self.empty(dbs, Some(record));
        swaps.iter().for_each(|(a, b)| self.exchange(*a, *b));
        Some(n)
    }

    /// As `view/whole.rs` does it.
    fn empty(&mut self, dbs: &[usize], but: Option<&Arc<Record>>) {
        let sequence = &self.keyspace.sequence;
        let emptied: Vec<bool> = (0..DATABASES).map(|db| dbs.contains(&db)).collect();
        let mut removed: Vec<(usize, usize, TakenAway)> = Vec::new();
        for (shard, guard) in self.guard.0.iter_mut() {
            let taken = guard.intents.take_removed(sequence, &emptied);
            removed.extend(taken.into_iter().map(|(db, taken)| (*shard, db, taken)));
        }
        self.keyspace.underway.empty(sequence, dbs, but);
        self.keyspace.generation.fetch_add(1, Ordering::SeqCst);
        for (shard, guard) in self.guard.0.iter_mut() {
            for db in dbs {
                let table = std::mem::take(&mut guard.dbs[*db]);
                if let Some(at) = removed.iter().position(|(s, d, _)| (s, d) == (shard, db)) {
                    removed.swap_remove(at).2.count_in(&Arc::new(crate::stdx::sync::Mutex::new(table)));
                }
            }
        }
    }

    /// A short command that empties the first database.
    pub(crate) fn flush(&mut self) {
        self.keyspace.underway.end(&self.keyspace.sequence, None);
        self.lsn = self.keyspace.sequence.draw();
        self.empty(&[0], None);
    }

    /// A short command that exchanges two databases.
    pub(crate) fn swap(&mut self, a: usize, b: usize) {
        self.keyspace.underway.end(&self.keyspace.sequence, None);
        self.lsn = self.keyspace.sequence.draw();
        self.keyspace.generation.fetch_add(1, Ordering::SeqCst);
        self.exchange(a, b);
    }

    fn exchange(&mut self, a: usize, b: usize) {
        self.keyspace.underway.swap(&self.keyspace.sequence, a, b);
        for shard in self.held().iter() {
            self.shard_mut(shard).unwrap().dbs.swap(a, b);
        }
    }
}

// ----- overlays --------------------------------------------------------------------------------------------

pub(crate) struct Cell {
    pub(crate) base: Option<Owned>,
    pub(crate) now: Option<Owned>,
    pub(crate) dirty: bool,
    pub(crate) loaded: bool,
}

impl Cell {
    pub(crate) fn current(&self) -> Option<&Owned> {
        if self.dirty { self.now.as_ref() } else { self.base.as_ref() }
    }

    pub(crate) fn writes(&self) -> bool {
        self.dirty
    }
}

pub struct Overlay {
    pub(crate) snapshot: Snapshot,
    pub(crate) cells: Vec<Intent>,
    /// Empties the first database before the commit.
    pub(crate) flushes: bool,
    /// Exchanges the databases after the commit.
    pub(crate) swaps: bool,
}

pub(crate) struct Parts {
    pub(crate) snapshot: Snapshot,
    pub(crate) ran_ms: u64,
    pub(crate) shards: Vec<(usize, Vec<Intent>)>,
    pub(crate) read: ReadKeys,
    pub(crate) expires_ms: u64,
    pub(crate) flushed: Vec<usize>,
    pub(crate) swaps: Vec<(usize, usize)>,
    pub(crate) beside: Option<Box<dyn Beside>>,
}

/// Nothing changes beside the keys here.
pub(crate) const BESIDE: usize = 0;

pub(crate) trait Beside: Send + Sync {
    fn holds(&self) -> bool;
    fn make(&self);
}

/// Batched reads are not played.
#[derive(Default)]
pub(crate) struct ReadKeys {
    pub(crate) names: Arc<Names>,
    pub(crate) places: Vec<Vec<(u64, u32)>>,
}

#[derive(Default)]
pub(crate) struct Names;

impl Names {
    pub(crate) fn at(&self, _: u32) -> (usize, &[u8]) {
        (0, b"")
    }
}

impl Overlay {
    pub(crate) fn listen_epoch(&self) -> u64 {
        0
    }

    /// Nothing expires here.
    pub(crate) fn announce_expired(&mut self, announce: Announce) -> Announce {
        announce
    }

    pub(crate) fn into_parts(self) -> Parts {
        let flushed = if self.flushes { vec![0] } else { Vec::new() };
        Parts {
            snapshot: self.snapshot,
            ran_ms: 0,
            shards: self.cells.into_iter().map(|cell| (shard_of(cell.hash), vec![cell])).collect(),
            read: ReadKeys::default(),
            expires_ms: u64::MAX,
            flushed,
            swaps: if self.swaps { vec![(0, 1)] } else { Vec::new() },
            beside: None,
        }
    }
}

pub(crate) fn apply(view: &mut View<'_>, key: &[u8], cell: Cell) {
    if cell.dirty {
        view.set(key, cell.now);
    }
}

pub(crate) fn is_live(_: &Owned, _: u64) -> bool {
    true
}
