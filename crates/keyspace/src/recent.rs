//! Keys whose last write is not durable yet: a reply that tells of such a key waits until it is.
//!
//! - R1: they are kept only while replies wait for a log ([`Keyspace::gates`]), and dropped together when the
//!   newest of a shard is durable.
//! - R2: two keys of one hash count as one. So do equal names in several databases.
//! - R3: a flush or an exchange of databases counts for all keys.
//! - R4: a change beside the keys is made and noted under one shard's lock (beside B1).
//!
//! Cost: O(1) a write and a read, only while replies wait.

use crate::beside::BESIDE;
use crate::sequence::Lsn;
use crate::{Keyspace, shard_of};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use stdx::locks::Bits;

/// More room than this is given back when the keys are dropped.
const ROOM: usize = 1024;

/// The LSN up to which writes are durable. `Lsn::MAX`: no reply waits for that.
pub(crate) struct Durable {
    upto: AtomicU64,
    /// The last write to whole databases (R3).
    pub(crate) all: AtomicU64,
    /// The last change beside the keys, such as one of libraries (R4).
    beside: AtomicU64,
    /// Keys that are kept.
    keys: AtomicUsize,
}

impl Default for Durable {
    fn default() -> Durable {
        Durable {
            upto: AtomicU64::new(Lsn::MAX),
            all: AtomicU64::new(0),
            beside: AtomicU64::new(0),
            keys: AtomicUsize::new(0),
        }
    }
}

/// The keys of one shard. See the module.
#[derive(Default)]
pub(crate) struct Recent {
    keys: HashMap<u64, Lsn>,
    newest: Lsn,
}

impl Recent {
    #[cold]
    pub(crate) fn note(&mut self, hash: u64, lsn: Lsn, kept: &Durable) {
        let durable = kept.upto.load(Ordering::Acquire);
        if self.newest <= durable && !self.keys.is_empty() {
            kept.keys.fetch_sub(self.keys.len(), Ordering::Relaxed);
            if self.keys.capacity() > ROOM {
                let keys = std::mem::take(&mut self.keys);
                stdx::reclaim::defer(keys.len() * 16, move || drop(keys));
            } else {
                self.keys.clear();
            }
        }
        let of = self.keys.entry(hash).or_insert_with(|| {
            kept.keys.fetch_add(1, Ordering::Relaxed);
            lsn
        });
        *of = (*of).max(lsn);
        self.newest = self.newest.max(lsn);
    }

    pub(crate) fn of(&self, hash: u64, durable: Lsn) -> Lsn {
        if self.newest <= durable {
            return 0;
        }
        self.keys.get(&hash).copied().unwrap_or(0)
    }
}

impl Keyspace {
    /// Whether replies wait until what they tell of is durable. Cost: one load.
    #[inline]
    pub fn gates(&self) -> bool {
        self.durable.upto.load(Ordering::Relaxed) != Lsn::MAX
    }

    /// The LSN up to which writes are durable.
    #[inline]
    pub fn durable(&self) -> Lsn {
        self.durable.upto.load(Ordering::Acquire)
    }

    /// The number of keys kept: those written since, and some that are durable by now. It is at most the
    /// number of keys that the log may have waiting.
    pub fn undurable_keys(&self) -> usize {
        self.durable.keys.load(Ordering::Relaxed)
    }

    /// The LSN that a reply about keys has to wait for, by their hashes; 0 for none. While commits wait to be
    /// folded, it is the last LSN of all. O(keys), each under its shard's lock.
    pub fn recent(&self, keys: impl Iterator<Item = u64>) -> Lsn {
        let durable = self.durable();
        if self.intents.load(Ordering::Acquire) > 0 {
            return self.last_lsn();
        }
        let of = |hash: u64| {
            let shard = shard_of(hash);
            self.shards.lock_one(shard).get(shard).recent.of(hash, durable)
        };
        let newest = keys.map(of).fold(self.durable.all.load(Ordering::Acquire), Lsn::max);
        if newest > durable { newest } else { 0 }
    }

    /// The LSN that a reply about what stands beside the keys has to wait for; 0 for none. Call it once the
    /// reply is known, without locks: one shard's lock is taken, so a change that the reply saw is noted by
    /// then (R4).
    pub fn recent_beside(&self) -> Lsn {
        drop(self.lock(Bits::one(BESIDE)));
        let newest = self.durable.beside.load(Ordering::Acquire);
        let newest = newest.max(self.durable.all.load(Ordering::Acquire));
        if newest > self.durable() { newest } else { 0 }
    }

    /// Notes a change beside the keys, under its lock (R4).
    pub(crate) fn note_recent_beside(&self, lsn: Lsn) {
        if self.gates() {
            self.durable.beside.fetch_max(lsn, Ordering::AcqRel);
        }
    }

    /// Sets the LSN up to which writes are durable. `Lsn::MAX`: whatever is visible counts as durable.
    pub fn set_durable(&self, lsn: Lsn) {
        self.durable.upto.store(lsn, Ordering::Release);
    }

    /// Makes whatever is visible by now wait for the current LSN, as nothing was noted before. Call it after
    /// [`Keyspace::set_durable`]: a write that did not see that has already drawn its LSN.
    pub fn doubt_all(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.durable.all.fetch_max(self.last_lsn(), Ordering::AcqRel);
    }

    /// Whole databases were replaced (R3).
    pub(crate) fn note_recent_all(&self, lsn: Lsn) {
        if self.gates() {
            self.durable.all.fetch_max(lsn, Ordering::AcqRel);
        }
    }
}
