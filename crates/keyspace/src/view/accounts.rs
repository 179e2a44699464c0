//! The view's counts of keys, bytes and uses, and its removals for eviction.

use super::*;
use crate::overlay::Used;
use crate::segment::{Bytes, Directory, Put};

impl View<'_> {
    /// Counts keys that came or went in the current database (W3).
    #[inline]
    pub(super) fn count(&mut self, keys: i64, expires: i64, bytes: Bytes) {
        self.count_in(self.db, keys, expires, bytes);
    }

    #[inline]
    pub(super) fn count_in(&mut self, db: usize, keys: i64, expires: i64, bytes: Bytes) {
        if self.counted.0 != db {
            self.settle_counts();
            self.counted.0 = db;
        }
        self.counted.1 += keys;
        self.counted.2 += expires;
        self.counted.3 += bytes;
    }

    #[inline]
    pub(super) fn settle_counts(&mut self) {
        let (db, keys, expires, bytes) = std::mem::take(&mut self.counted);
        self.keyspace.count(db, keys, expires, bytes);
    }

    /// Counts the bytes of the value that was changed in place (W4).
    #[inline]
    pub(super) fn settle_edit(&mut self) {
        if let Some((shard, db, entry, before)) = self.editing.take() {
            let Store::Locked(guard) = &mut self.store else { return };
            let directory = &mut guard.get_mut(shard).dbs[db];
            let bytes = directory.bytes();
            directory.recount(entry, before);
            let came = directory.bytes() - bytes;
            self.count_in(db, 0, 0, came);
        }
    }

    /// Changes the directory of a key and counts the difference in bytes. `f` returns the differences in keys
    /// and in keys with an expiry.
    #[inline]
    pub(super) fn change<R>(
        &mut self,
        hash: u64,
        f: impl FnOnce(&mut Directory) -> (R, i64, i64),
    ) -> Option<R> {
        let db = self.db;
        let Store::Locked(guard) = &mut self.store else { return None };
        let directory = &mut guard.get_mut(shard_of(hash)).dbs[db];
        let bytes = directory.bytes();
        let (result, keys, expires) = f(directory);
        let came = directory.bytes() - bytes;
        self.count(keys, expires, came);
        Some(result)
    }

    /// For eviction: notes a key that came, or one that was overwritten, which counts as a use.
    #[cold]
    pub(super) fn note_put(&mut self, hash: u64, put: &Put) {
        let Store::Locked(guard) = &mut self.store else { return };
        let tick = access_tick(self.now_ms);
        if put.was_there {
            // The time of its last use is overwritten already.
            return self.keyspace.evict.used(self.db, hash, put.spot, !tick, tick);
        }
        self.keyspace.note_insert(self.db, hash, put.spot, tick, guard.get_mut(shard_of(hash)));
    }

    /// Evicts a key and returns the bytes of its entry. `None` if it is gone or a long commit relies on it.
    /// `expiring`: only if it still has an expiry.
    pub(crate) fn evict(&mut self, hash: u64, key: &[u8], expiring: bool) -> Option<u64> {
        let shard = self.shard(shard_of(hash))?;
        let entry = shard.dbs[self.db].find(hash, key)?;
        let (due, bytes) = (entry.expire_ms(), entry.all_bytes());
        let covered =
            !shard.intents.is_empty() && shard.intents.cover(&self.keyspace.sequence, self.db, hash, key);
        if covered || expiring && due.is_none() {
            return None;
        }
        if due.is_some_and(|at| at <= self.due_ms) {
            self.drop_expired(hash, key);
            return Some(bytes as u64);
        }
        self.touch(hash, key, Touch::Replace);
        self.change(hash, |directory| {
            let had_expire = directory.evict(hash, key);
            ((), -1, -i64::from(had_expire == Some(true)))
        });
        self.keyspace.stats.evicted_keys.fetch_add(1, Ordering::Relaxed);
        self.keyspace.tell_sink(self.changes.lsn, self.db, &[b"DEL", key]);
        self.tell_readers(key);
        let db = self.db;
        if self.shard_mut(shard_of(hash)).is_some_and(|shard| shard.interest.touch(db, key)) {
            // A client that waits with a group of consumers learns that it is gone. Others go on waiting.
            self.changes.tell().ready.push(Ready::Key(db, key.into()));
        }
        self.push_event(self.db, key, Class::Evicted, "evicted");
        Some(bytes as u64)
    }

    /// Removes a key that may come again, and remembers how often it was used. Returns whether it was in use:
    /// used again after it came or, if uses are not counted, used within five minutes. `None` if there is no
    /// such key. O(1).
    pub fn remove_to_return(&mut self, key: &[u8]) -> Option<bool> {
        const IN_USE_S: u64 = 300;
        let (hash, tick) = (hash_bytes(key), access_tick(self.now_ms));
        let Store::Locked(guard) = &self.store else { return self.remove(key).then_some(true) };
        let directory = &guard.get(shard_of(hash)).dbs[self.db];
        let counted = self.keyspace.evict.counts_uses(self.db);
        let freq = directory.spot(hash, key).and_then(|spot| spot.freq()).filter(|_| counted);
        let in_use = match freq {
            Some(freq) => freq > 0,
            None => directory
                .find(hash, key)
                .is_some_and(|entry| u64::from(tick.wrapping_sub(entry.access())) * 16 < IN_USE_S),
        };
        if !self.remove(key) {
            return None;
        }
        if let (Some(freq), Store::Locked(guard)) = (freq, &mut self.store) {
            self.keyspace.note_return(self.db, hash, freq, guard.get_mut(shard_of(hash)));
        }
        Some(in_use)
    }

    /// Seconds since a key was last used, in steps of 16 and up to 70 minutes. `None` if there is no such
    /// key.
    pub fn idle_s(&self, key: &[u8]) -> Option<u64> {
        match &self.store {
            Store::Locked(guard) => {
                let entry = self.entry(guard, key)?;
                Some(access_tick(self.now_ms).wrapping_sub(entry.access()) as u64 * 16)
            }
            Store::Overlay(_) | Store::Kept(_) | Store::Open => self.exists(key).then_some(0),
        }
    }

    /// Lets a key that was just put count as unused for `idle_s` seconds, in steps of 16 and up to 70
    /// minutes. O(1).
    pub fn set_idle(&mut self, key: &[u8], idle_s: u64) {
        let ago = (idle_s / 16).min(u64::from(u8::MAX)) as u8;
        match &mut self.store {
            Store::Overlay(overlay) => overlay.leave_used(self.db, key, Used::Idle(idle_s)),
            Store::Locked(guard) => {
                let hash = hash_bytes(key);
                if let Some(entry) = guard.get(shard_of(hash)).dbs[self.db].find(hash, key) {
                    entry.set_access(access_tick(self.now_ms).wrapping_sub(ago));
                }
            }
            Store::Kept(_) | Store::Open => {}
        }
    }

    /// Whether the policy's name promises use counts ([`View::freq`]).
    pub fn tells_freq(&self) -> bool {
        self.keyspace.is_lfu()
    }

    /// How often a key was used lately, 0 to 14. `None` if there is no such key; 0 if nothing is recorded.
    pub fn freq(&self, key: &[u8]) -> Option<u8> {
        match &self.store {
            Store::Locked(guard) => {
                self.entry(guard, key)?;
                let hash = self.hash_of(key);
                let spot = guard.get(shard_of(hash)).dbs[self.db].spot(hash, key)?;
                Some(spot.freq().unwrap_or(0))
            }
            Store::Overlay(_) | Store::Kept(_) | Store::Open => self.exists(key).then_some(0),
        }
    }

    /// Sets how often a key that was just put counts as used. Does nothing if uses are not recorded. O(1).
    pub fn set_freq(&mut self, key: &[u8], freq: u8) {
        match &mut self.store {
            Store::Overlay(overlay) => overlay.leave_used(self.db, key, Used::Often(freq)),
            Store::Locked(guard) => {
                let hash = hash_bytes(key);
                if let Some(spot) = guard.get(shard_of(hash)).dbs[self.db].spot(hash, key) {
                    spot.set_mark(crate::evict::policy::fresh(freq));
                }
            }
            Store::Kept(_) | Store::Open => {}
        }
    }

    /// Records a use of an entry, unless the view is quiet.
    #[inline]
    pub(super) fn note_use(&self, hash: u64, spot: Spot, entry: EntryRef<'_>) {
        if !self.quiet {
            self.keyspace.note_use(self.db, hash, spot, entry, self.now_ms);
        }
    }

    /// Notes that an entry is about to be changed in place (W4).
    #[inline]
    pub(super) fn edit(&mut self, hash: u64, entry: Raw) {
        if entry.has_handle() {
            self.editing = Some((shard_of(hash), self.db, entry, entry.outside_bytes()));
        }
    }
}

impl Keyspace {
    /// Records a use of an entry whose shard is locked. O(1).
    #[inline]
    pub(crate) fn note_use(&self, db: usize, hash: u64, spot: Spot, entry: EntryRef<'_>, now_ms: u64) {
        let (last, tick) = (entry.access(), access_tick(now_ms));
        if last != tick {
            entry.set_access(tick);
        }
        if self.evict.is_on() {
            self.evict.used(db, hash, spot, last, tick);
        }
    }
}
