//! The view's commands for the whole keyspace: SCAN, RANDOMKEY, FLUSH, SWAPDB.

use super::*;
use crate::Counts;
use crate::intent::TakenAway;
use crate::record::Record;
use crate::segment::Directory;
use crate::walk::{Given, Replaced};
use smallvec::SmallVec;
use std::collections::HashMap;
use stdx::sync::Mutex;

/// Keys removed by bulks, by database and shard.
pub(super) type Removed = HashMap<(usize, usize), TakenAway>;

/// Shards whose tables one task to the reclaimer frees.
const FREED_TOGETHER: usize = 16;
/// Keys of long commits folded per lock of their shard.
const FOLDED_TOGETHER: usize = 32;
/// Shards that RANDOMKEY folds and searches as a last resort while long commits are under way.
const LAST_SHARDS: usize = 16;
/// SCAN counts a key once more for each of these bytes.
const SCAN_BYTES: usize = 512;
/// How many shards ahead tables are prefetched in a walk over all.
const AHEAD: usize = 4;

impl View<'_> {
    /// Whether the view holds all shards, or may lock them. An overlay does neither: it shows the whole in
    /// chunks.
    pub fn is_whole(&self) -> bool {
        match &self.store {
            Store::Locked(guard) => guard.held().is_superset(&Bits::below(SHARDS)),
            Store::Overlay(_) | Store::Kept(_) => false,
            Store::Open => true,
        }
    }

    /// Whether the handler asked for keys that are not known yet. Its work is then dropped, and it runs again
    /// once they are. It should ask for every key it can name, and return.
    pub fn awaits_keys(&self) -> bool {
        matches!(&self.store, Store::Overlay(overlay) if overlay.has_missing())
    }

    /// One SCAN call: visits name and type of about `count` keys from `cursor` on, fewer if they are long.
    /// Returns the next cursor, 0 at the end. A key that is present from the first call to the last is
    /// visited; an expired key is not. Needs the whole. An overlay may need a chunk first; then the handler
    /// runs again.
    pub fn scan(&mut self, cursor: u64, count: usize, f: &mut dyn FnMut(&[u8], Kind)) -> u64 {
        let (db, now_ms) = (self.db, self.due_ms);
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
        let (keyspace, db, now_ms) = (self.keyspace, self.db, self.due_ms);
        scan_lines(cursor, count, |position| {
            if keyspace.intents.load(Ordering::Relaxed) != 0 {
                // Commits are folded first, so that their keys are found in the table.
                self.fold_shard(shard_of(position));
            }
            keyspace.scan_line(db, position, now_ms, f)
        })
    }

    /// Folds the commits of a shard into its table, some keys at a time. O(their keys).
    fn fold_shard(&mut self, shard: usize) {
        let mut all = false;
        while !all {
            let mut view = View::locked(self.keyspace, Bits::one(shard), self.db, self.now_ms);
            all = view.fold_committed(FOLDED_TOGETHER);
            self.changes.join(view.finish());
        }
    }

    /// As `random_key` while long commits are under way. A commit may have removed a key that is in the
    /// tables, or added one that is not. Usually O(1), up to a hundred tries; O(keys of [`LAST_SHARDS`])
    /// while nearly all keys come or go.
    fn random_underway(&mut self, random: u64) -> Option<Vec<u8>> {
        let (keyspace, db, due_ms) = (self.keyspace, self.db, self.due_ms);
        for n in 0..100 {
            let Some(key) = keyspace.random_key(db, due_ms, stdx::hash::hash_u64(random ^ n)) else { break };
            let mut view = View::locked_one(keyspace, &key, db, self.now_ms);
            view.due_ms = due_ms;
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
            entry.expire_ms().is_none_or(|at| at > due_ms).then(|| entry.key().to_vec())
        })
    }

    /// A random key of the current database that has not expired. Needs the whole. Gives up after a hundred
    /// expired keys.
    pub fn random_key(&mut self, random: u64) -> Option<Vec<u8>> {
        if let Store::Overlay(overlay) = &self.store {
            return random_over(overlay, self.db, self.due_ms, random);
        }
        if !self.is_whole() {
            return None;
        }
        if !matches!(self.store, Store::Locked(_)) {
            return match self.keyspace.intents.load(Ordering::Relaxed) {
                0 => self.keyspace.random_key(self.db, self.due_ms, random),
                _ => self.random_underway(random),
            };
        }
        let Store::Locked(guard) = &self.store else { return None };
        let mut random = random;
        for _ in 0..100 {
            random = stdx::hash::hash_u64(random);
            let key = random_in(|shard| &guard.get(shard).dbs[self.db], random)?;
            if key.expire_ms().is_none_or(|at| at > self.due_ms) {
                return Some(key.key().to_vec());
            }
        }
        None
    }

    /// Empties a database (`None`: all) and returns how many keys it had. The reclaimer frees them. Needs the
    /// whole.
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

    /// Commits, empties databases and then exchanges some, in one step (I6). `None`: the record was ended
    /// before. The view must hold all shards and have done nothing yet.
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
        self.keyspace.note_recent_all(lsn);
        self.tell_all_readers(lsn);
        self.settle_counts();
        let mut removed = self.removed_in(dbs);
        self.keyspace.underway.empty(&self.keyspace.sequence, dbs, but);
        // The other databases never had a key. A view that adds the first one counts it before it releases
        // the shard's lock (W3).
        let touched = self.keyspace.touched.load(Ordering::Relaxed);
        let Store::Locked(guard) = &mut self.store else { return 0 };
        self.keyspace.generation.fetch_add(1, Ordering::SeqCst);
        let walk = self.keyspace.walk_emptied(lsn);
        dbs.iter().for_each(|db| self.keyspace.forget_ttl(*db));
        let mut count = 0;
        for db in dbs.iter().copied().filter(|db| *db < touched) {
            let gone = self.keyspace.flush_db(guard, db, &mut removed, walk.as_ref());
            if gone > 0 {
                // A client that waits with a group of consumers learns that it is gone.
                self.changes.tell().ready.push(Ready::Database(db));
            }
            count += gone;
        }
        walk.into_iter().for_each(|walk| walk.empty(self.keyspace, guard, dbs));
        self.changes.dirty += count as u64;
        count
    }

    /// Takes keys that bulks removed from databases about to be emptied, to be counted there (I10).
    /// O(databases + records · shards).
    pub(super) fn removed_in(&mut self, dbs: &[usize]) -> Removed {
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

    /// Exchanges two databases. Needs the whole. No watcher or blocked client is looked up: watchers compare
    /// on their own (`watched.rs`), and for blocked clients both databases are reported ready.
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
        self.keyspace.note_recent_all(lsn);
        self.tell_all_readers(lsn);
        let Store::Locked(guard) = &mut self.store else { return };
        self.keyspace.underway.swap(&self.keyspace.sequence, a, b);
        self.keyspace.walk_swapped(lsn).into_iter().for_each(|walk| walk.swap(a, b));
        self.keyspace.swap_dbs(guard, a, b, self.now_ms);
        self.changes.tell().ready.extend([a, b].map(Ready::Database));
        self.changes.dirty += 1;
    }
}

/// A key of an overlay from a random place in the hash order on. The overlay may need a chunk first.
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
    // Chooses the shard by its share of the keys, so that keys in a small shard are not favoured.
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

/// How many keys a name counts as. Copying or matching a long name takes as long as many short ones.
fn scan_weight(key: &[u8]) -> usize {
    1 + key.len() / SCAN_BYTES
}

/// Walks lines from a cursor on until about `count` keys were visited. `line` visits one line and returns the
/// next position in its shard and how many keys it saw.
fn scan_lines(cursor: u64, count: usize, mut line: impl FnMut(u64) -> (Option<u64>, usize)) -> u64 {
    // A cursor is a place in hash order. Its lowest bit is always 0, so it is halved to stay positive in 64
    // bits.
    let mut position = cursor << 1;
    let mut visited = 0;
    // An empty shard is a line. So one call gets through a small database, whose few keys are in many shards.
    for _ in 0..count.saturating_mul(10).max(2 * SHARDS) {
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
    /// One SCAN call outside a command. Locks one shard at a time. See [`View::scan`].
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

    /// Empties a database and returns its number of keys. No watcher is told, however many there are: EXEC
    /// looks itself (`watched.rs`). For `removed` see [`View::removed_in`]. A `walk` gets the tables if it
    /// wants them.
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
            // Its tables are empty (W3) and may stay.
            return 0;
        }
        self.replace_tables(guard, db, removed, walk, |_| Directory::default());
        self.counts[db].become_those_of(&Counts::default());
        keys
    }

    /// Puts tables in place of a database's. For the old ones see [`Keyspace::flush_db`].
    pub(super) fn replace_tables(
        &self,
        guard: &mut Guard<'_, Shard>,
        db: usize,
        removed: &mut Removed,
        walk: Option<&Replaced>,
        mut fresh: impl FnMut(usize) -> Directory,
    ) {
        let known = walk.and_then(|walk| walk.wants(db));
        let mut emptied = Vec::with_capacity(SHARDS);
        for i in 0..SHARDS {
            stdx::cache::prefetch(&guard.get((i + AHEAD).min(SHARDS - 1)).dbs[db]);
            let Shard { dbs, walk, .. } = guard.get_mut(i);
            let directory = std::mem::replace(&mut dbs[db], fresh(i));
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
    }

    /// Leaves tables to the reclaimer, some at a time, so that the rest stays known as unfreed.
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
        let marked = self.mark_exchanged(guard, (a, b), now_ms);
        (0..SHARDS).for_each(|shard| guard.get_mut(shard).dbs.swap(a, b));
        if !marked {
            [a, b].iter().for_each(|db| self.note_replaced(*db, Some(now_ms)));
        }
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

    /// RANDOMKEY outside a command. Locks one shard at a time. Gives up after a hundred expired keys.
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
