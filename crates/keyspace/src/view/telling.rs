//! The view's account of its writes: modifications, keys that blocked clients may wait for, keyspace
//! notifications.

use super::*;
use crate::happened::{Happened, Happening, Run};

/// A keyspace notification to be published.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    pub db: usize,
    pub class: Class,
    pub name: &'static str,
    pub key: Box<[u8]>,
}

/// Keys with more events than this are published in slices.
const RUN: usize = 16;

/// The effects of a command that others must hear of (W2).
#[derive(Default, Debug)]
pub struct Changes {
    /// The LSN of the write; 0 if nothing was written.
    pub lsn: Lsn,
    /// Number of modifications (Redis's `dirty`).
    pub dirty: u64,
    /// The part of them that are keys which had expired.
    pub expired: u64,
    /// The part of them that others made, and that this view has put in its place (`View::write_at`).
    pub(crate) others: u64,
    /// Apart, because most commands have nothing to tell.
    told: Option<Box<Told>>,
}

/// The part of a command's effects that is told after it (W2).
#[derive(Default, Debug)]
pub struct Told {
    pub events: Vec<Event>,
    /// Keys with more than [`RUN`] events.
    pub runs: Vec<Run>,
    /// Keys and databases where blocked clients may find something now.
    pub ready: Vec<Ready>,
}

/// Nothing to tell.
static NOTHING: Told = Told { events: Vec::new(), runs: Vec::new(), ready: Vec::new() };

/// A place where a blocked client may find something now.
#[derive(Debug, PartialEq, Eq)]
pub enum Ready {
    /// Database and name of a touched key that a client is blocked on.
    Key(usize, Box<[u8]>),
    /// A whole database: it was exchanged.
    Database(usize),
}

impl Changes {
    /// Own modifications, without the removals of expired keys.
    pub fn made(&self) -> u64 {
        self.dirty - self.expired - self.others
    }

    /// Whether nobody has to be told anything.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.told.is_none()
    }

    /// The part that has to be told.
    pub fn told(&self) -> &Told {
        self.told.as_deref().unwrap_or(&NOTHING)
    }

    /// Takes what has to be told.
    pub fn into_told(self) -> Told {
        self.told.map(|told| *told).unwrap_or_default()
    }

    #[cold]
    pub(crate) fn tell(&mut self) -> &mut Told {
        self.told.get_or_insert_default()
    }

    /// Adds events and ready keys of another view.
    pub fn join(&mut self, other: Changes) {
        let Some(other) = other.told else { return };
        let mine = self.tell();
        mine.events.extend(other.events);
        mine.runs.extend(other.runs);
        mine.ready.extend(other.ready);
    }
}

impl View<'_> {
    /// Reports a modification of the key: marks its watchers, reports it ready to blocked clients, notifies.
    #[inline]
    pub fn changed(&mut self, key: &[u8], class: Class, event: &'static str) {
        self.changed_in(self.db, key, class, event);
    }

    /// As `changed`, for a database that had the number `seen_in` when it happened.
    #[inline]
    pub(crate) fn changed_in(&mut self, seen_in: usize, key: &[u8], class: Class, event: &'static str) {
        if let Store::Overlay(overlay) = &mut self.store {
            self.changes.dirty += 1;
            return overlay.tell(self.db, key, class, event, true);
        }
        self.changed_often(key, 1);
        if let Store::Locked(_) = &self.store {
            self.push_event(seen_in, key, class, event);
        }
    }

    /// As `changed`, `times` times and without a notification. Not in an overlay. O(1).
    #[inline]
    pub(crate) fn changed_often(&mut self, key: &[u8], times: u64) {
        self.changes.dirty += times;
        self.tell_readers(key);
        let (db, shard) = (self.db, shard_of(self.hash_of(key)));
        if let Store::Locked(guard) = &mut self.store {
            let interest = &mut guard.get_mut(shard).interest;
            if !interest.is_empty() && interest.touch(db, key) {
                self.changes.tell().ready.push(Ready::Key(db, key.into()));
            }
        }
    }

    /// Counts a modification that neither watchers, blocked clients nor subscribers hear of. O(1).
    #[inline]
    pub fn count_change(&mut self) {
        self.changes.dirty += 1;
    }

    /// Reports a change to clients that are blocked on the key, and notifies of it. Its watchers are not
    /// marked.
    pub fn woken(&mut self, key: &[u8], class: Class, event: &'static str) {
        if let Store::Overlay(overlay) = &mut self.store {
            overlay.wake(self.db, key);
        }
        self.wake(key);
        self.notify(key, class, event);
    }

    /// As [`View::woken`], without a notification and not in an overlay.
    pub(crate) fn wake(&mut self, key: &[u8]) {
        let (db, shard) = (self.db, shard_of(self.hash_of(key)));
        if let Store::Locked(guard) = &self.store
            && guard.get(shard).interest.is_awaited(db, key)
        {
            self.changes.tell().ready.push(Ready::Key(db, key.into()));
        }
    }

    /// Publishes a notification without a modification.
    #[inline]
    pub fn notify(&mut self, key: &[u8], class: Class, event: &'static str) {
        self.notify_in(self.db, key, class, event);
    }

    #[inline]
    pub(crate) fn notify_in(&mut self, seen_in: usize, key: &[u8], class: Class, event: &'static str) {
        match &mut self.store {
            Store::Overlay(overlay) => {
                if self.keyspace.notifies(class) {
                    overlay.tell(self.db, key, class, event, false);
                }
            }
            Store::Locked(_) | Store::Kept(_) | Store::Open => self.push_event(seen_in, key, class, event),
        }
    }

    /// Publishes the events of a key from a script or transaction. O([`RUN`]).
    pub(crate) fn notify_all(&mut self, key: &[u8], happened: Box<Happened>) {
        if happened.len() > RUN {
            return self.changes.tell().runs.push(Run { key: key.into(), happened });
        }
        for Happening { class, name, db } in (0..happened.len()).filter_map(|i| happened.get(i)) {
            self.notify_in(db, key, class, name);
        }
    }

    #[inline]
    pub(super) fn push_event(&mut self, db: usize, key: &[u8], class: Class, name: &'static str) {
        if self.keyspace.notifies(class) && db < self.keyspace.databases() {
            self.changes.tell().events.push(Event { db, class, name, key: key.into() });
        }
    }

    /// The LSN that a reply about a key has to wait for; 0 for none. If its shard is not locked, it is the
    /// last LSN of all.
    pub fn recent(&self, key: &[u8]) -> Lsn {
        let keyspace = self.keyspace;
        let (hash, durable) = (hash_bytes(key), keyspace.durable());
        let Store::Locked(guard) = &self.store else { return keyspace.last_lsn() };
        let shard = guard.get(shard_of(hash));
        let lsn = shard.recent.of(hash, durable).max(keyspace.durable.all.load(Ordering::Acquire));
        if lsn > durable { lsn } else { 0 }
    }

    /// Counts look-ups that found a key.
    pub fn count_hits(&self, hits: u64) {
        self.keyspace.count_lookups(hits, 0);
    }

    /// Counts a look-up for `keyspace_hits` or `keyspace_misses`. A miss may be notified.
    #[inline]
    pub fn count_lookup(&mut self, key: &[u8], hit: bool) {
        self.keyspace.count_lookup(hit);
        if !hit {
            self.notify(key, Class::KeyMiss, "keymiss");
        }
    }
}
