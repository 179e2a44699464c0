//! What a view does with the keyspace as a whole: SCAN, RANDOMKEY, FLUSH, SWAPDB.

use super::*;
use crate::intent::TakenAway;
use crate::record::Record;
use crate::segment::Directory;
use crate::walk::{Given, Replaced};
use smallvec::SmallVec;
use std::collections::HashMap;
use stdx::sync::Mutex;

/// By database and shard.
type Removed = HashMap<(usize, usize), TakenAway>;

/// Shards whose tables are freed by one errand to the reclaimer.
const FREED_TOGETHER: usize = 16;
/// Keys of long commits that are folded under one lock of their shard.
const FOLDED_TOGETHER: usize = 32;
/// Shards in which RANDOMKEY looks for a key while long commits are under way, when it finds none in the tables.
const LAST_SHARDS: usize = 16;
/// Bytes of a key for which SCAN counts a further one.
const SCAN_BYTES: usize = 512;
/// Shards ahead whose tables are fetched while they are all gone through.
const AHEAD: usize = 4;

impl View<'_> {
    /// True if the view holds all shards, or may lock them. (An overlay shows the whole in chunks.)
    pub fn is_whole(&self) -> bool {
        match &self.store {
            Store::Locked(guard) => guard.held().is_superset(&Bits::below(SHARDS)),
            Store::Overlay(_) | Store::Kept(_) => false,
            Store::Open => true,
        }
    }

    /// True if the handler asked for keys that are not known yet: what it did is dropped, and it is run again when they are. It
    /// had best ask for all it can name, and return.
    pub fn awaits_keys(&self) -> bool {
        matches!(&self.store, Store::Overlay(overlay) if overlay.has_missing())
    }

    /// One SCAN call: visits about `count` keys from `cursor` on, fewer where they are long, with their types, and returns the
    /// next cursor, 0 at the end. Every key present from the first call to the last is visited. Expired keys are not. Needs the whole; an
    /// overlay may have to be given a chunk first (then the handler is run again).
    pub fn scan(&mut self, cursor: u64, count: usize, f: &mut dyn FnMut(&[u8], Kind)) -> u64 {
        let (db, now_ms) = (self.db, self.now_ms);
        if let Store::Overlay(overlay) = &self.store {
            let (mut position, mut visited) = (cursor << 1, 0);
            while visited < count {
                match overlay.visit_chunk(db, position, now_ms, f) {
                    Some((saw, Some(next))) => {
                        visited += saw;
                        position = next;
                    }
                    Some((_, None)) | None => return 0,
                }
            }
            return position >> 1;
        }
        if !self.is_whole() {
            return 0;
        }
        if matches!(self.store, Store::Open) {
            return self.scan_open(cursor, count, f);
        }
        let Store::Locked(guard) = &self.store else { return 0 };
        scan_lines(cursor, count, |position| {
            let directory = &guard.get(shard_of(position)).dbs[db];
            let mut visited = 0;
            let next = directory.visit_line(position, &mut |_, entry| {
                visited += scan_weight(entry.key());
                if entry.expire_ms().is_none_or(|at| at > now_ms) {
                    f(entry.key(), entry.kind());
                }
            });
            (next, visited)
        })
    }

    fn scan_open(&mut self, cursor: u64, count: usize, f: &mut dyn FnMut(&[u8], Kind)) -> u64 {
        let (keyspace, db, now_ms) = (self.keyspace, self.db, self.now_ms);
        scan_lines(cursor, count, |position| {
            if keyspace.intents.load(Ordering::Relaxed) != 0 {
                // What was committed must be found, in the table or not: it is put there first.
                self.fold_shard(shard_of(position));
            }
            keyspace.scan_line(db, position, now_ms, f)
        })
    }

    /// Puts what was committed in a shard into its table, some at a time. Cost: O(its keys that wait for that).
    fn fold_shard(&mut self, shard: usize) {
        let mut all = false;
        while !all {
            let mut view = View::locked(self.keyspace, Bits::one(shard), self.db, self.now_ms);
            all = view.fold_committed(FOLDED_TOGETHER);
            self.changes.join(view.finish());
        }
    }

    /// The same while long commits are under way: a key of the tables may be removed by one that is decided, and others not be in the
    /// tables yet. Cost: O(1), up to a hundred looks; where nearly all is being removed or made O(keys of [`LAST_SHARDS`]).
    fn random_underway(&mut self, random: u64) -> Option<Vec<u8>> {
        let (keyspace, db, now_ms) = (self.keyspace, self.db, self.now_ms);
        for n in 0..100 {
            let Some(key) = keyspace.random_key(db, now_ms, stdx::hash::hash_u64(random ^ n)) else { break };
            let mut view = View::locked_one(keyspace, &key, db, now_ms);
            view.settle(&[(db, &key)], false);
            let there = view.exists(&key);
            self.changes.join(view.finish());
            if there {
                return Some(key);
            }
        }
        (0..LAST_SHARDS).find_map(|n| {
            let shard = (random as usize + n) % SHARDS;
            self.fold_shard(shard);
            let guard = keyspace.shards.lock_one(shard);
            let entry = guard.get(shard).dbs[db].random(random)?;
            entry.expire_ms().is_none_or(|at| at > now_ms).then(|| entry.key().to_vec())
        })
    }

    /// A random key of the current database that has not expired. Needs the whole.
    pub fn random_key(&mut self, random: u64) -> Option<Vec<u8>> {
        if let Store::Overlay(overlay) = &self.store {
            return random_over(overlay, self.db, self.now_ms, random);
        }
        if !self.is_whole() {
            return None;
        }
        if !matches!(self.store, Store::Locked(_)) {
            return match self.keyspace.intents.load(Ordering::Relaxed) {
                0 => self.keyspace.random_key(self.db, self.now_ms, random),
                _ => self.random_underway(random),
            };
        }
        let Store::Locked(guard) = &self.store else { return None };
        let mut random = random;
        for _ in 0..100 {
            random = stdx::hash::hash_u64(random);
            let key = random_in(|shard| &guard.get(shard).dbs[self.db], random)?;
            if key.expire_ms().is_none_or(|at| at > self.now_ms) {
                return Some(key.key().to_vec());
            }
        }
        None
    }

    /// Empties a database (None: all); what was in it is freed elsewhere. Needs the whole. Returns the keys removed.
    pub fn flush(&mut self, db: Option<usize>) -> usize {
        if let Store::Overlay(overlay) = &mut self.store {
            match db {
                Some(db) => overlay.flush(db),
                None => (0..self.keyspace.all_databases()).for_each(|db| overlay.flush(db)),
            }
            self.changes.dirty += 1;
            return 0;
        }
        if !self.is_whole() {
            return 0;
        }
        self.lock_whole();
        self.settle_edit();
        let dbs: SmallVec<[usize; 1]> = match db {
            Some(db) => SmallVec::from_elem(db, 1),
            None => (0..self.keyspace.all_databases()).collect(),
        };
        self.keyspace.underway.end(&self.keyspace.sequence, None);
        self.settle_counts();
        self.begin_write();
        self.empty(self.changes.lsn, &dbs, None)
    }

    /// Commits what empties databases, then exchanges some, and does that, as one step (I6); None: it was ended before. The view
    /// has all shards and has done nothing yet.
    pub(crate) fn decide_and_replace(
        &mut self,
        record: &Arc<Record>,
        dbs: &[usize],
        swaps: &[(usize, usize)],
    ) -> Option<Lsn> {
        let n = self.decide_last(record)?;
        self.empty(n, dbs, Some(record));
        swaps.iter().for_each(|(a, b)| self.exchange(n, *a, *b));
        Some(n)
    }

    /// `but`: a commit that means what they are from then on.
    fn empty(&mut self, lsn: Lsn, dbs: &[usize], but: Option<&Arc<Record>>) -> usize {
        self.settle_counts();
        let mut removed = self.removed_in(dbs);
        self.keyspace.underway.empty(&self.keyspace.sequence, dbs, but);
        // The others never had a key: who puts one into a database says so before the shard's lock is released (W3).
        let touched = self.keyspace.touched.load(Ordering::Relaxed);
        let Store::Locked(guard) = &mut self.store else { return 0 };
        self.keyspace.generation.fetch_add(1, Ordering::SeqCst);
        let walk = self.keyspace.walk_emptied(lsn);
        let emptied = dbs.iter().filter(|db| **db < touched);
        let removed = emptied.map(|db| self.keyspace.flush_db(guard, *db, &mut removed, walk.as_ref())).sum();
        walk.into_iter().for_each(|walk| walk.empty(self.keyspace, guard, dbs));
        self.changes.dirty += removed as u64;
        removed
    }

    /// What was removed from databases that are about to be emptied, and is still to be counted there (I10). O(databases +
    /// records · shards)
    fn removed_in(&mut self, dbs: &[usize]) -> Removed {
        let keyspace = self.keyspace;
        let mut removed = Removed::default();
        let Store::Locked(guard) = &mut self.store else { return removed };
        if keyspace.intents.load(Ordering::Relaxed) == 0 {
            return removed;
        }
        let mut goes = vec![false; keyspace.all_databases()];
        dbs.iter().for_each(|db| goes[*db] = true);
        for shard in 0..SHARDS {
            let intents = &mut guard.get_mut(shard).intents;
            for (db, taken) in intents.take_removed(&keyspace.sequence, &goes) {
                removed.entry((db, shard)).or_default().join(taken);
            }
        }
        removed
    }

    fn lock_whole(&mut self) {
        stdx::panics::changes();
        if matches!(self.store, Store::Open) {
            self.store = Store::Locked(self.keyspace.lock(Bits::below(SHARDS)));
        }
    }

    /// Exchanges two databases. Needs the whole. Nobody who watches or waits for their keys is looked up: the former compare
    /// (`watched.rs`), for the latter the databases are reported ready.
    pub fn swap(&mut self, a: usize, b: usize) {
        if let Store::Overlay(overlay) = &mut self.store {
            overlay.swap(a, b, self.keyspace.all_databases());
            self.changes.dirty += 1;
            return;
        }
        if !self.is_whole() || a == b {
            return;
        }
        self.lock_whole();
        self.settle_edit();
        self.keyspace.underway.end(&self.keyspace.sequence, None);
        self.settle_counts();
        self.begin_write();
        self.exchange(self.changes.lsn, a, b);
    }

    fn exchange(&mut self, lsn: Lsn, a: usize, b: usize) {
        let Store::Locked(guard) = &mut self.store else { return };
        self.keyspace.underway.swap(&self.keyspace.sequence, a, b);
        self.keyspace.walk_swapped(lsn).into_iter().for_each(|walk| walk.swap(a, b));
        self.keyspace.swap_dbs(guard, a, b, self.now_ms);
        self.changes.ready.extend([a, b].map(Ready::Database));
        self.changes.dirty += 1;
    }
}

/// A key of an overlay behind a random place in the hash order; an overlay may have to be given a chunk first.
fn random_over(overlay: &Overlay, db: usize, now_ms: u64, random: u64) -> Option<Vec<u8>> {
    for from in [random, 0] {
        let mut position = from;
        loop {
            let mut found: Option<Vec<u8>> = None;
            let (_, next) = overlay.visit_chunk(db, position, now_ms, &mut |key, _| {
                found.get_or_insert_with(|| key.to_vec());
            })?;
            if found.is_some() {
                return found;
            }
            match next {
                Some(next) => position = next,
                None => break,
            }
        }
    }
    None
}

fn random_in<'a>(
    directory: impl Fn(usize) -> &'a crate::segment::Directory,
    random: u64,
) -> Option<EntryRef<'a>> {
    // Choose the shard by its share of the keys, so that a few keys in one shard are not favoured.
    let total: usize = (0..SHARDS).map(|shard| directory(shard).len()).sum();
    if total == 0 {
        return None;
    }
    let mut nth = (random >> 8) as usize % total;
    for shard in 0..SHARDS {
        let len = directory(shard).len();
        if nth < len {
            return directory(shard).random(stdx::hash::hash_u64(random));
        }
        nth -= len;
    }
    None
}

/// As how many keys one counts: what is to be copied or matched of a long one takes as long as many short ones.
fn scan_weight(key: &[u8]) -> usize {
    1 + key.len() / SCAN_BYTES
}

/// Walks lines from a cursor until about `count` keys were visited; `line` visits one and tells the next position in
/// its shard and how many keys it saw.
fn scan_lines(cursor: u64, count: usize, mut line: impl FnMut(u64) -> (Option<u64>, usize)) -> u64 {
    // A cursor is a place in hash order; its lowest bit is always 0, so it is halved to stay positive in 64 bits.
    let mut position = cursor << 1;
    let mut visited = 0;
    for _ in 0..count.saturating_mul(10).max(64) {
        let (next, saw) = line(position);
        visited += saw;
        let shard = shard_of(position);
        position = match next {
            Some(next) => next,
            None if shard + 1 < SHARDS => (shard as u64 + 1) << (64 - crate::segment::SHARD_BITS),
            None => return 0,
        };
        if visited >= count {
            break;
        }
    }
    position >> 1
}

impl Keyspace {
    /// One SCAN call outside any other command: locks one shard at a time. See [`View::scan`].
    pub fn scan(
        &self,
        db: usize,
        cursor: u64,
        count: usize,
        now_ms: u64,
        f: &mut dyn FnMut(&[u8], Kind),
    ) -> u64 {
        scan_lines(cursor, count, |position| self.scan_line(db, position, now_ms, f))
    }

    fn scan_line(
        &self,
        db: usize,
        position: u64,
        now_ms: u64,
        f: &mut dyn FnMut(&[u8], Kind),
    ) -> (Option<u64>, usize) {
        let shard = shard_of(position);
        let guard = self.shards.lock_one(shard);
        let mut visited = 0;
        let next = guard.get(shard).dbs[db].visit_line(position, &mut |_, entry| {
            visited += scan_weight(entry.key());
            if entry.expire_ms().is_none_or(|at| at > now_ms) {
                f(entry.key(), entry.kind());
            }
        });
        (next, visited)
    }

    /// Who watches its keys is not told, however many they are: an EXEC looks itself (`watched.rs`).
    /// `removed`: see [`View::removed_in`]. `walk`: whose the tables are next, if it wants them.
    fn flush_db(
        &self,
        guard: &mut Guard<'_, Shard>,
        db: usize,
        removed: &mut Removed,
        walk: Option<&Replaced>,
    ) -> usize {
        self.note_replaced(db, None);
        let keys = self.len(db);
        if keys == 0 {
            // It has empty tables (W3), which may stay.
            return 0;
        }
        let known = walk.and_then(|walk| walk.wants(db));
        let mut emptied = Vec::with_capacity(SHARDS);
        for i in 0..SHARDS {
            stdx::cache::prefetch(&guard.get((i + AHEAD).min(SHARDS - 1)).dbs[db]);
            let Shard { dbs, walk, .. } = guard.get_mut(i);
            let directory = std::mem::take(&mut dbs[db]);
            let walk = walk.as_mut().filter(|walk| known.is_some_and(|known| walk.wants(known)));
            let removed = removed.remove(&(db, i));
            if removed.is_none() && (walk.is_none() || directory.len() == 0) {
                emptied.extend((directory.len() > 0).then_some(directory));
                continue;
            }
            let table = Arc::new(Mutex::new(directory));
            if let (Some(walk), Some(known)) = (walk, known) {
                walk.give_table(known, Given::new(&table, &self.flushing));
            }
            removed.into_iter().for_each(|removed| removed.count_in(&table));
        }
        self.free_later(emptied);
        self.counts[db].keys.store(0, Ordering::Relaxed);
        self.counts[db].expires.store(0, Ordering::Relaxed);
        self.counts[db].rooms.store(0, Ordering::Relaxed);
        self.counts[db].outside.store(0, Ordering::Relaxed);
        keys
    }

    /// Has tables freed elsewhere, some at a time: what is not freed yet is known about as well.
    pub(crate) fn free_later(&self, mut emptied: Vec<Directory>) {
        while !emptied.is_empty() {
            let some = emptied.split_off(emptied.len().saturating_sub(FREED_TOGETHER));
            let flushing = self.flushing.clone();
            flushing.fetch_add(1, Ordering::Relaxed);
            let keys: usize = some.iter().map(Directory::len).sum();
            stdx::reclaim::defer(keys * 100, move || {
                drop(some);
                flushing.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    fn swap_dbs(&self, guard: &mut Guard<'_, Shard>, a: usize, b: usize, now_ms: u64) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        (0..SHARDS).for_each(|shard| guard.get_mut(shard).dbs.swap(a, b));
        [a, b].iter().for_each(|db| self.note_replaced(*db, Some(now_ms)));
        self.touched.fetch_max(a.max(b) + 1, Ordering::Relaxed);
        let [a, b] = [&self.counts[a], &self.counts[b]];
        for (x, y) in
            [(&a.keys, &b.keys), (&a.expires, &b.expires), (&a.rooms, &b.rooms), (&a.outside, &b.outside)]
        {
            let old = x.load(Ordering::Relaxed);
            x.store(y.load(Ordering::Relaxed), Ordering::Relaxed);
            y.store(old, Ordering::Relaxed);
        }
        let fields = a.fields.swap(b.fields.load(Ordering::Relaxed), Ordering::Relaxed);
        b.fields.store(fields, Ordering::Relaxed);
    }

    /// RANDOMKEY outside any other command. Locks one shard at a time.
    pub fn random_key(&self, db: usize, now_ms: u64, random: u64) -> Option<Vec<u8>> {
        if self.len(db) == 0 {
            return None;
        }
        let mut random = random;
        for _ in 0..100 {
            let nth = random as usize % self.len(db).max(1);
            let mut before = 0;
            for shard in 0..SHARDS {
                let guard = self.shards.lock_one(shard);
                let directory = &guard.get(shard).dbs[db];
                if nth < before + directory.len() {
                    let entry = directory.random(stdx::hash::hash_u64(random))?;
                    if entry.expire_ms().is_none_or(|at| at > now_ms) {
                        return Some(entry.key().to_vec());
                    }
                    break;
                }
                before += directory.len();
            }
            random = stdx::hash::hash_u64(random);
        }
        None
    }
}
