//! Expired keys that a view meets: told before the view's own effect, and removed at its end (W6).

use super::*;
use std::collections::{HashMap, HashSet};

/// Expired keys that reads met. They are removed at the end.
#[derive(Default)]
pub(super) struct Stale {
    keys: Vec<(usize, Box<[u8]>)>,
    /// How many of the keys were looked at; and those that the sink was told of (W6).
    upto: usize,
    told: HashMap<usize, HashSet<Box<[u8]>>>,
}

impl View<'_> {
    /// Removes expired keys that reads met.
    #[inline]
    pub(super) fn drop_stale(&mut self) {
        if self.stale.get_mut().is_some() {
            self.remove_stale();
        }
    }

    #[cold]
    pub(super) fn remove_stale(&mut self) {
        if !self.leaves_expired() {
            let Some(stale) = self.stale.get_mut() else { return };
            let (keys, db) = (std::mem::take(&mut stale.keys), self.db);
            stale.upto = 0;
            for (db, key) in keys {
                self.db = db;
                self.mute = self.was_told(&key);
                self.expire_if_due(&key);
            }
            (self.db, self.mute) = (db, false);
        }
        *self.stale.get_mut() = None;
    }

    /// Whether expired keys that reads met stay: clients are paused, or the server is in import mode and the
    /// view wrote nothing. A view that wrote removes them in import mode too, for the sink has to hear of them
    /// before its effect.
    fn leaves_expired(&self) -> bool {
        let imports = self.keyspace.imports() && self.changes.lsn == 0;
        imports || self.keyspace.still.is_on(self.now_ms)
    }

    /// Notes that the key has expired.
    #[cold]
    pub(super) fn note_stale(&self, key: &[u8]) {
        self.stale.borrow_mut().get_or_insert_default().keys.push((self.db, key.into()));
    }

    /// Removes the key if it has expired; true if it did so.
    pub(super) fn drop_expired(&mut self, hash: u64, key: &[u8]) -> bool {
        let Store::Locked(guard) = &mut self.store else { return false };
        let entry = guard.get(shard_of(hash)).dbs[self.db].find(hash, key);
        let Some(expired_ms) = entry.and_then(|entry| entry.expire_ms()).filter(|at| *at <= self.due_ms)
        else {
            return false;
        };
        let intents = &guard.get(shard_of(hash)).intents;
        if !intents.is_empty() && intents.cover(&self.keyspace.sequence, self.db, hash, key) {
            // A long commit relies on the key or is about to replace it. Meanwhile it stays absent to all
            // readers.
            return false;
        }
        self.settle_edit();
        self.touch(hash, key, Touch::Replace);
        self.change(hash, |directory| (directory.remove(hash, key), -1, -1));
        self.keyspace.stats.expired_keys.fetch_add(1, Ordering::Relaxed);
        self.keyspace.counts[self.db].expired.fetch_add(1, Ordering::Relaxed);
        // A follower of the sequence has another clock. It must hear of the removal before the command's own
        // effect.
        if !self.forget_told(key) && !self.mute {
            self.keyspace.tell_sink(self.changes.lsn, self.db, &[b"DEL", key]);
        }
        self.tell_expired(hash, key, expired_ms);
        self.tell_waiters(hash, key);
        self.tell_readers(key);
        self.changes.dirty += 1;
        self.changes.expired += 1;
        self.push_event(self.db, key, Class::Expired, "expired");
        true
    }

    /// Tells the sink of expired keys that reads came across since it was told last (W6). O(those keys).
    #[cold]
    pub(super) fn tell_stale(&mut self) {
        if self.mute || !self.keep.listens() || self.keyspace.still.is_on(self.now_ms) {
            return;
        }
        let (lsn, due_ms) = (self.changes.lsn, self.due_ms);
        let Store::Locked(guard) = &self.store else { return };
        let Some(Stale { keys, upto, told }) = self.stale.get_mut().as_deref_mut() else { return };
        for (db, key) in &keys[*upto..] {
            let hash = hash_bytes(key);
            let entry = guard.get(shard_of(hash)).dbs[*db].find(hash, key);
            let due = entry.and_then(|entry| entry.expire_ms()).is_some_and(|at| at <= due_ms);
            if due && told.entry(*db).or_default().insert(key.clone()) {
                self.keyspace.tell_sink(lsn, *db, &[b"DEL", key]);
            }
        }
        *upto = keys.len();
    }

    /// Whether the sink was told that the key is gone, before it is.
    pub(super) fn was_told(&self, key: &[u8]) -> bool {
        let stale = self.stale.borrow();
        let told = stale.as_ref().and_then(|stale| stale.told.get(&self.db));
        told.is_some_and(|names| names.contains(key))
    }

    /// As `was_told`; the key may come again, with a time that has passed, and is told anew then.
    fn forget_told(&mut self, key: &[u8]) -> bool {
        let Some(stale) = self.stale.get_mut() else { return false };
        stale.told.get_mut(&self.db).is_some_and(|names| names.remove(key))
    }

    /// Lets clients that are blocked on a removed key look again: a group of consumers may be gone.
    fn tell_waiters(&mut self, hash: u64, key: &[u8]) {
        let db = self.db;
        if self.shard(shard_of(hash)).is_some_and(|shard| shard.interest.is_awaited(db, key)) {
            self.changes.tell().ready.push(Ready::Key(db, key.into()));
        }
    }

    /// Removes the key if it has expired, and tells watchers and listeners.
    pub fn expire_if_due(&mut self, key: &[u8]) {
        self.drop_expired(self.hash_of(key), key);
    }
}
