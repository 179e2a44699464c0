//! WATCH: what of a watched key a touch does not tell.
//!
//! A touch of the key sets a mark (`shard.rs`). That it expired, or that whole tables were replaced, however many keys of them are
//! watched, marks nobody: who wants to know compares then with now.
//!
//! - A1: a key that was there and is not there any more was touched, whatever happened.
//! - A2: of a key that was there, any exchange of its database (SWAPDB) is a touch.
//! - A3: of a key that was not there, the one exchange since is a touch iff a key came with it that had not expired then: it is
//!   there now, or was touched since, which includes that it expired after the exchange ([`super::View::drop_expired`]). If tables
//!   were replaced more than once since, or while long commits had something to write, nobody knows what was there in between, and
//!   it counts as touched.
//!
//! Redis looks all of them up when it exchanges databases. It differs where A3 is more careful: an absent key, and two exchanges
//! or FLUSHDBs that brought none.

use super::*;
use std::sync::atomic::AtomicBool;

/// What a key, and its database, was when somebody began to watch it.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    there: bool,
    swaps: u64,
    replaced: u64,
}

impl View<'_> {
    /// Marks `dirty` at every touch of the key, whose shard is held, from now on, in the current database. What is
    /// committed but not yet in the tables must have been settled, or it would count as a touch that came later.
    pub fn watch(&mut self, key: &[u8], dirty: &Arc<AtomicBool>) -> Watched {
        let there = self.exists(key);
        let (swaps, replaced) = self.keyspace.replaced(self.db);
        let (db, shard) = (self.db, shard_of(self.hash_of(key)));
        if let Store::Locked(guard) = &mut self.store {
            guard.get_mut(shard).interest.watch(db, key, dirty.clone(), swaps);
        }
        Watched { there, swaps, replaced }
    }

    /// Whether a key of the current database was touched, since it began to be watched, in a way that marks nobody.
    pub fn is_touched_since(&self, key: &[u8], then: Watched) -> bool {
        let (swaps, replaced) = self.keyspace.replaced(self.db);
        match swaps == then.swaps {
            true => then.there && !self.exists(key), // A1
            false => then.there || replaced > then.replaced + 1 || self.came_along(key), // A2, A3
        }
    }

    /// Whether there is such a key that had not expired when the database was exchanged last, though it may have since.
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

    /// Tells those who watch a key that has expired, at `expired_ms`, if they have to be told: others look for themselves, and one
    /// that had expired when it was watched, or came with an exchange, does not count.
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
    /// How often a database was exchanged, and how often its tables were replaced in any way. With the lock of some shard held.
    fn replaced(&self, db: usize) -> (u64, u64) {
        let counts = &self.counts[db];
        (counts.swaps.load(Ordering::Relaxed), counts.replaced.load(Ordering::Relaxed))
    }

    /// When a database was last exchanged (milliseconds since 1970). With the lock of some shard held.
    fn exchanged_ms(&self, db: usize) -> u64 {
        self.counts[db].exchanged_ms.load(Ordering::Relaxed)
    }

    /// Notes that the tables of a database are replaced: by those of another, at that time, if `swaps`. With all locks held.
    pub(super) fn note_replaced(&self, db: usize, swaps: Option<u64>) {
        let counts = &self.counts[db];
        if let Some(now_ms) = swaps {
            counts.exchanged_ms.store(now_ms, Ordering::Relaxed);
        }
        let swaps = swaps.is_some();
        counts.swaps.fetch_add(swaps.into(), Ordering::Relaxed);
        // What is committed and not in the tables yet came and goes unseen: as if there were another time (A3).
        let unseen = swaps && self.intents.load(Ordering::Relaxed) != 0;
        counts.replaced.fetch_add(1 + u64::from(unseen), Ordering::Relaxed);
    }
}
