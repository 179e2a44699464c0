//! Active expiry: walks the segments in quanta and removes what has expired, keys and fields of hashes, without sampling
//! luck.
//!
//! Removals are writes like any other: each quantum has an LSN, and the sink hears of every removal under the lock.
//!
//! Each segment knows its soonest expiry, so a segment with nothing due costs one memory access. A whole round over
//! 40 million keys is some 60,000 of those.

use crate::{Keyspace, SHARDS, View};
use std::sync::atomic::Ordering;
use stdx::hash::hash_u64;
use stdx::locks::Bits;

/// Segments looked at per lock.
const SEGMENTS: usize = 16;
/// Keys, and fields, removed per lock: some 10 µs.
const REMOVALS: usize = 128;

/// Where the sweep stands; one per keyspace, or one per event loop over disjoint shards.
#[derive(Default)]
pub struct Sweep {
    shard: usize,
    db: usize,
    position: Option<u64>,
    due: Vec<Box<[u8]>>,
}

/// What a quantum of sweeping found.
#[derive(PartialEq, Eq, Debug)]
pub enum Swept {
    /// A round over all keys ended.
    Round,
    /// There is more to look at.
    More,
}

impl Sweep {
    /// Does one quantum: some tens of µs at most. `removed` hears of each key's events after its lock is released.
    pub fn step(&mut self, keyspace: &Keyspace, now_ms: u64, mut told: impl FnMut(crate::Changes)) -> Swept {
        if !keyspace.active_expire() {
            return Swept::Round;
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

    /// The next shard and database with anything that can expire.
    fn advance(&mut self, keyspace: &Keyspace) -> Swept {
        loop {
            self.shard += 1;
            if self.shard >= SHARDS {
                self.shard = 0;
                self.db += 1;
                while self.db < keyspace.all_databases() && !keyspace.can_expire(self.db) {
                    self.db += 1;
                }
                if self.db >= keyspace.all_databases() {
                    self.db = 0;
                    self.shard = 0;
                    self.position = keyspace.can_expire(0).then_some(0);
                    if self.position.is_none() {
                        // Nothing in database 0: the next round starts where something is.
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

    /// Removes what has expired of some keys; those with more than [`REMOVALS`] fields to go come again.
    fn remove_expired(&mut self, keyspace: &Keyspace, keys: Vec<Box<[u8]>>, now_ms: u64) -> crate::Changes {
        let mut view = View::locked(keyspace, Bits::one(self.shard), self.db, now_ms);
        view.set_quiet(true);
        let mut left = REMOVALS;
        for key in keys {
            if view.is_covered(self.db, &key) {
                // A long commit will be done with it soon.
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
                // Perhaps not all: its segment is looked at again otherwise only in the next round.
                self.due.push(key);
            }
        }
        view.finish()
    }
}

impl Keyspace {
    /// Frees pre-images nobody can need any more; how many bytes the others keep alive. Cost: O(shards) look-ups; call it
    /// now and then.
    pub fn prune(&self) -> usize {
        let prune = |shard| {
            let mut guard = self.shards.lock_one(shard);
            let pre = &mut guard.get_mut(shard).pre;
            // Asked with the lock held: a snapshot opened later does not need what stands here.
            pre.prune(self.sequence.oldest());
            pre.bytes()
        };
        let bytes = (0..SHARDS).map(prune).sum();
        self.retained.bytes.store(bytes as u64, Ordering::Relaxed);
        bytes
    }

    /// Keys kept for snapshots. Cost: O(shards).
    pub fn pre_images(&self) -> usize {
        (0..SHARDS).map(|shard| self.shards.lock_one(shard).get(shard).pre.len()).sum()
    }

    /// `count_lookup` of many.
    pub fn count_lookups(&self, hits: u64, misses: u64) {
        self.stats.hits.fetch_add(hits, Ordering::Relaxed);
        self.stats.misses.fetch_add(misses, Ordering::Relaxed);
    }

    /// Counts a look-up for `keyspace_hits` and `keyspace_misses`.
    #[inline]
    pub fn count_lookup(&self, hit: bool) {
        let counter = if hit { &self.stats.hits } else { &self.stats.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
