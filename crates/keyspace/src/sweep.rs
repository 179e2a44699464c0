//! Active expiry: removes expired keys and hash fields, walking all segments in quanta. It does not sample.
//!
//! Removals are writes like any other: each quantum has an LSN, and the sink hears of every removal under the
//! lock.
//!
//! Each segment knows its soonest expiry, so a segment with nothing due costs one memory access. A round over
//! 40 million keys takes some 60,000 of those.

use crate::{Keyspace, SHARDS, View};
use std::sync::atomic::Ordering;
use stdx::hash::hash_u64;
use stdx::locks::Bits;

/// Segments visited per lock.
const SEGMENTS: usize = 16;
/// Keys and fields removed per lock.
const REMOVALS: usize = 128;

/// The position of the sweep. One for the keyspace, or one per event loop over disjoint shards.
#[derive(Default)]
pub struct Sweep {
    shard: usize,
    db: usize,
    position: Option<u64>,
    due: Vec<Box<[u8]>>,
}

/// The result of a quantum.
#[derive(PartialEq, Eq, Debug)]
pub enum Swept {
    /// A round over all keys ended.
    Round,
    /// There is more to visit.
    More,
}

impl Sweep {
    /// Does one quantum. `told` gets the events of the removals after the lock is released.
    pub fn step(&mut self, keyspace: &Keyspace, now_ms: u64, mut told: impl FnMut(crate::Changes)) -> Swept {
        if !keyspace.active_expire() {
            return Swept::Round;
        }
        if !keyspace.can_expire(self.db) {
            // Import mode began, or the last key that expires has gone.
            self.due.clear();
            self.position = None;
        }
        if !self.due.is_empty() {
            let rest = self.due.len().saturating_sub(REMOVALS);
            let batch = self.due.split_off(rest);
            told(self.remove_expired(keyspace, batch, now_ms));
            return Swept::More;
        }
        if let Some(position) = self.position.take() {
            let mut guard = keyspace.shards.lock_one(self.shard);
            let directory = &mut guard.get_mut(self.shard).dbs[self.db];
            if let Some(at) =
                directory.random(hash_u64(position ^ now_ms)).and_then(|entry| entry.expire_ms())
                && at > now_ms
            {
                keyspace.note_ttl(self.db, at - now_ms);
            }
            let mut next = Some(position);
            for _ in 0..SEGMENTS {
                let Some(at) = next else { break };
                next = directory.expired(at, now_ms, &mut self.due);
                if !self.due.is_empty() {
                    break;
                }
            }
            self.position = next;
            if self.position.is_some() || !self.due.is_empty() {
                return Swept::More;
            }
        }
        self.advance(keyspace)
    }

    /// Goes to the next shard and database with anything that can expire.
    fn advance(&mut self, keyspace: &Keyspace) -> Swept {
        loop {
            self.shard += 1;
            if self.shard >= SHARDS {
                self.shard = 0;
                self.db += 1;
                while self.db < keyspace.all_databases() && !keyspace.can_expire(self.db) {
                    keyspace.forget_ttl(self.db);
                    self.db += 1;
                }
                if self.db >= keyspace.all_databases() {
                    self.db = 0;
                    self.shard = 0;
                    self.position = keyspace.can_expire(0).then_some(0);
                    if self.position.is_none() {
                        keyspace.forget_ttl(0);
                        // Database 0 has nothing: the next round starts at a database that has.
                        self.shard = SHARDS;
                    }
                    return Swept::Round;
                }
            }
            if keyspace.can_expire(self.db) {
                self.position = Some((self.shard as u64) << 56);
                return Swept::More;
            }
            self.shard = SHARDS;
        }
    }

    /// Removes expired keys and fields. Keys that may have more to remove are queued again.
    fn remove_expired(&mut self, keyspace: &Keyspace, keys: Vec<Box<[u8]>>, now_ms: u64) -> crate::Changes {
        let mut view = View::locked(keyspace, Bits::one(self.shard), self.db, now_ms);
        view.set_quiet(true);
        let mut left = REMOVALS;
        for key in keys {
            if view.is_covered(self.db, &key) {
                // A long commit will soon release the key.
                self.due.push(key);
                continue;
            }
            view.expire_if_due(&key);
            if left > 0 {
                let mut gone: Vec<Box<[u8]>> = Vec::new();
                view.expire_fields(&key, std::iter::empty(), left, &mut |field| gone.push(field.into()));
                if !gone.is_empty() {
                    left = left.saturating_sub(gone.len());
                    let fields = gone.iter().map(|field| &**field);
                    let words: Vec<&[u8]> = [&b"HDEL"[..], &key].into_iter().chain(fields).collect();
                    keyspace.tell_sink(view.changes().lsn, self.db, &words);
                }
                view.remove_if_empty(&key);
            }
            if left == 0 {
                // The key may have more expired fields. Its segment is visited again only in the next round.
                self.due.push(key);
            }
        }
        view.finish()
    }
}

impl Keyspace {
    /// Frees pre-images that no snapshot needs. Returns how many bytes the others keep alive. O(shards); call
    /// it now and then.
    pub fn prune(&self) -> usize {
        let prune = |shard| {
            let mut guard = self.shards.lock_one(shard);
            let pre = &mut guard.get_mut(shard).pre;
            if pre.is_empty() {
                return 0;
            }
            // The lock is held: a snapshot that opens later does not need these pre-images.
            pre.prune(self.sequence.oldest());
            pre.bytes()
        };
        let bytes = (0..SHARDS).map(prune).sum();
        self.retained.bytes.store(bytes as u64, Ordering::Relaxed);
        bytes
    }

    /// Keys with pre-images. O(shards).
    pub fn pre_images(&self) -> usize {
        (0..SHARDS).map(|shard| self.shards.lock_one(shard).get(shard).pre.len()).sum()
    }

    /// As `count_lookup`, for many.
    pub fn count_lookups(&self, hits: u64, misses: u64) {
        self.stats.hits.fetch_add(hits, Ordering::Relaxed);
        self.stats.misses.fetch_add(misses, Ordering::Relaxed);
    }

    /// Counts a look-up for `keyspace_hits` or `keyspace_misses`.
    #[inline]
    pub fn count_lookup(&self, hit: bool) {
        let counter = if hit { &self.stats.hits } else { &self.stats.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
