//! WATCH: changes of a watched key that its mark does not show.
//!
//! A touch of a key sets its watchers' marks (`shard.rs`). An expiry, or a replacement of whole tables, marks
//! nobody: EXEC compares the state at WATCH with the state of now.
//!
//! - A1: a key that was present and is absent now was touched.
//! - A2: a key that was present was touched by any exchange of its database (SWAPDB).
//! - A3: an absent key was touched by a single exchange iff the exchange brought it, not expired at that
//!   time. Then it is present now, or was touched since; an expiry after the exchange is a touch
//!   ([`super::View::drop_expired`]). If tables were replaced more than once, or while long commits had
//!   something to write, the key counts as touched.
//!
//! - A4: an exchange while at most [`LOOKED_AT`] keys are watched, and no long commit is under way, marks the
//!   watchers of each key that one of the two databases has. To the others it is no exchange.
//!
//! Redis looks up all watched keys when it exchanges databases. This differs beyond A4, where A3 is more
//! careful: an absent key, after two exchanges or FLUSHDBs that did not bring it.

use super::*;
use std::sync::atomic::AtomicBool;

/// Watched keys that an exchange of databases looks at, and the bytes of their names.
const LOOKED_AT: usize = 256;
const LOOKED_AT_BYTES: usize = 64 << 10;

/// The state of a key and its database when the WATCH began.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    there: bool,
    swaps: u64,
    replaced: u64,
}

impl View<'_> {
    /// Marks `dirty` at each later touch of the key in the current database. Its shard must be locked.
    /// Commits on the key must be settled first, or folding them would count as a later touch.
    pub fn watch(&mut self, key: &[u8], dirty: &Arc<AtomicBool>) -> Watched {
        let there = self.exists(key);
        let (swaps, replaced) = self.keyspace.replaced(self.db);
        let (db, shard) = (self.db, shard_of(self.hash_of(key)));
        if let Store::Locked(guard) = &mut self.store {
            guard.get_mut(shard).interest.watch(db, key, dirty.clone(), swaps);
        }
        Watched { there, swaps, replaced }
    }

    /// Whether the key was touched since `then` in a way that marks nobody. Looks at the current database.
    pub fn is_touched_since(&self, key: &[u8], then: Watched) -> bool {
        let (swaps, replaced) = self.keyspace.replaced(self.db);
        match swaps == then.swaps {
            true => then.there && !self.exists(key), // A1
            false => then.there || replaced > then.replaced + 1 || self.came_along(key), // A2, A3
        }
    }

    /// Whether the key exists and had not expired at the last exchange of the database. It may have expired
    /// since.
    fn came_along(&self, key: &[u8]) -> bool {
        let at = self.keyspace.exchanged_ms(self.db);
        match &self.store {
            Store::Overlay(overlay) => overlay.get(self.db, key, at).is_some(),
            Store::Locked(_) | Store::Kept(_) | Store::Open => {
                let spot = self.spot(self.hash_of(key), key);
                spot.is_some_and(|spot| spot.entry().expire_ms().is_none_or(|expires| expires > at))
            }
        }
    }

    /// Marks watchers of a key that expired at `expired_ms`, if they cannot see it themselves (A1, A3). A key
    /// that expired before the last exchange does not count.
    pub(super) fn tell_expired(&mut self, hash: u64, key: &[u8], expired_ms: u64) {
        let (db, (swaps, _)) = (self.db, self.keyspace.replaced(self.db));
        if expired_ms <= self.keyspace.exchanged_ms(db) {
            return;
        }
        let interest = self.shard_mut(shard_of(hash)).map(|shard| &mut shard.interest);
        if let Some(interest) = interest.filter(|interest| !interest.is_empty()) {
            interest.expire(db, key, swaps);
        }
    }
}

impl Keyspace {
    /// How often a database was exchanged, and how often its tables were replaced in any way. Needs the lock
    /// of some shard.
    fn replaced(&self, db: usize) -> (u64, u64) {
        let counts = &self.counts[db];
        (counts.swaps.load(Ordering::Relaxed), counts.replaced.load(Ordering::Relaxed))
    }

    /// When a database was last exchanged (milliseconds since 1970). Needs the lock of some shard.
    fn exchanged_ms(&self, db: usize) -> u64 {
        self.counts[db].exchanged_ms.load(Ordering::Relaxed)
    }

    /// Marks the watchers of all keys that an exchange of these databases touches (A4). False: there are too
    /// many, and nobody was marked. Needs all locks. O(LOOKED_AT)
    pub(super) fn mark_exchanged(
        &self,
        guard: &mut Guard<'_, Shard>,
        (a, b): (usize, usize),
        now_ms: u64,
    ) -> bool {
        if self.intents.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let (mut keys, mut bytes) = (0, 0);
        for shard in 0..crate::SHARDS {
            for (db, key, mut began) in guard.get(shard).interest.watched() {
                (keys, bytes) = (keys + 1, bytes + key.len());
                // A watcher from before an exchange that marked nobody compares the numbers itself.
                let is_older = (db == a || db == b) && began.any(|swaps| swaps != self.replaced(db).0);
                if keys > LOOKED_AT || bytes > LOOKED_AT_BYTES || is_older {
                    return false;
                }
            }
        }
        if keys == 0 {
            return true;
        }
        for shard in 0..crate::SHARDS {
            let Shard { dbs, interest, .. } = guard.get_mut(shard);
            let is_there = |db: usize, hash, key: &[u8]| {
                let expire_ms = dbs[db].find(hash, key).map(|entry| entry.expire_ms());
                expire_ms.is_some_and(|at| at.is_none_or(|at| at > now_ms))
            };
            interest.touch_those(|db, key| {
                let hash = stdx::hash::hash_bytes(key);
                (db == a || db == b) && (is_there(a, hash, key) || is_there(b, hash, key))
            });
        }
        true
    }

    /// Notes that the tables of a database are replaced. `swaps`: the time, if by those of another database.
    /// Needs all locks.
    pub(super) fn note_replaced(&self, db: usize, swaps: Option<u64>) {
        let counts = &self.counts[db];
        if let Some(now_ms) = swaps {
            counts.exchanged_ms.store(now_ms, Ordering::Relaxed);
        }
        let swaps = swaps.is_some();
        counts.swaps.fetch_add(swaps.into(), Ordering::Relaxed);
        // Keys that are committed and not yet in the tables come and go unseen. So this counts twice (A3).
        let unseen = swaps && self.intents.load(Ordering::Relaxed) != 0;
        counts.replaced.fetch_add(1 + u64::from(unseen), Ordering::Relaxed);
    }
}
