//! What a view tells of its writes: how many there were, who may be waiting for a key, keyspace notifications.

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

/// More events of one key are published in slices.
const RUN: usize = 16;

/// What a command did, for whoever must hear of it (W2).
#[derive(Default, Debug)]
pub struct Changes {
    /// The LSN of the write; 0 if nothing was written.
    pub lsn: Lsn,
    /// How many modifications (Redis's `dirty`).
    pub dirty: u64,
    pub events: Vec<Event>,
    /// Those of keys to which much happened.
    pub runs: Vec<Run>,
    /// What somebody may be blocked on and find now.
    pub ready: Vec<Ready>,
}

/// Where somebody who is blocked may find something now.
#[derive(Debug, PartialEq, Eq)]
pub enum Ready {
    /// A key somebody is blocked on was touched: database and name.
    Key(usize, Box<[u8]>),
    /// All that is in a database: it was exchanged.
    Database(usize),
}

impl Changes {
    /// Adds what must be told of another view's changes.
    pub fn join(&mut self, other: Changes) {
        self.events.extend(other.events);
        self.runs.extend(other.runs);
        self.ready.extend(other.ready);
    }
}

impl View<'_> {
    /// Says that the key was modified: marks whoever WATCHes it, wakes whoever waits for it, notifies.
    #[inline]
    pub fn changed(&mut self, key: &[u8], class: Class, event: &'static str) {
        self.changed_in(self.db, key, class, event);
    }

    /// `changed`, for listeners to whom the database had another number when it happened.
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

    /// `changed` so many times, but for the notifications. Not in an overlay. O(1)
    #[inline]
    pub(crate) fn changed_often(&mut self, key: &[u8], times: u64) {
        self.changes.dirty += times;
        let (db, shard) = (self.db, shard_of(self.hash_of(key)));
        if let Store::Locked(guard) = &mut self.store {
            let interest = &mut guard.get_mut(shard).interest;
            if !interest.is_empty() && interest.touch(db, key) {
                self.changes.ready.push(Ready::Key(db, key.into()));
            }
        }
    }

    /// A notification without a modification.
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

    /// What happened to a key in a script or transaction. O([`RUN`])
    pub(crate) fn notify_all(&mut self, key: &[u8], happened: Box<Happened>) {
        if happened.len() > RUN {
            return self.changes.runs.push(Run { key: key.into(), happened });
        }
        for Happening { class, name, db } in (0..happened.len()).filter_map(|i| happened.get(i)) {
            self.notify_in(db, key, class, name);
        }
    }

    #[inline]
    pub(super) fn push_event(&mut self, db: usize, key: &[u8], class: Class, name: &'static str) {
        if self.keyspace.notifies(class) && db < self.keyspace.databases() {
            self.changes.events.push(Event { db, class, name, key: key.into() });
        }
    }

    /// Counts look-ups that found something.
    pub fn count_hits(&self, hits: u64) {
        self.keyspace.count_lookups(hits, 0);
    }

    /// Counts a look-up for `keyspace_hits` and `keyspace_misses`; a miss may be notified.
    #[inline]
    pub fn count_lookup(&mut self, key: &[u8], hit: bool) {
        self.keyspace.count_lookup(hit);
        if !hit {
            self.notify(key, Class::KeyMiss, "keymiss");
        }
    }
}
