//! Races: the losses of a long commit to other writes, and the protection it earns by them (job J3).

use keyspace::{Keyspace, Protection};
use observe::waits::{Ahead, Spent};
use std::sync::Arc;

/// Lost races from which on a commit is protected (job J3).
pub(crate) const PROTECT_FROM: u32 = 3;
/// Milliseconds for which an attempt is protected.
const PROTECTED_MS: u64 = 50;
/// Lost races from which on it is protected for as long as it takes.
const INSIST_FROM: u32 = 8;
/// The least of that time, in milliseconds.
const INSISTS_MS: u64 = 1000;

/// The attempts of a long commit.
#[derive(Default)]
pub struct Races {
    pub lost: u32,
    /// The client to which the last race was lost, and the time of all lost attempts.
    pub lost_to: Option<Ahead>,
    /// The begin of the first attempt: the older of two long commits wins.
    pub age: u64,
    /// An attempt has ended by an alarm.
    pub doomed: bool,
    /// The keys of the last attempt, sorted.
    hashes: Option<Box<[u64]>>,
    protection: Option<Protection>,
}

impl Races {
    /// Begins now.
    pub fn new() -> Races {
        Races { age: stdx::clock::mono_ns(), ..Races::default() }
    }

    /// Remembers the keys of an attempt, if they may have to be protected. Cost: O(keys · log keys).
    pub fn remember(&mut self, hashes: impl FnOnce() -> Box<[u64]>) {
        if self.lost + 1 >= PROTECT_FROM {
            self.hashes = Some(hashes());
        }
    }

    /// Adds the races to the account of its time.
    pub fn told(&self, spent: Spent) -> Spent {
        Spent { lost: self.lost, lost_to: self.lost_to, ..spent }
    }

    /// Ends its protection: writers of its keys need not wait for memory that is freed later (J3).
    pub fn end(&mut self) {
        self.protection = None;
    }

    /// Counts another lost race, and raises the protection that the commit has earned (J3). All attempts so
    /// far took `took_ns`.
    pub fn lose(&mut self, keyspace: &Arc<Keyspace>, client: u64, now_ms: u64, took_ns: u64) {
        self.lost += 1;
        self.protection = None;
        let insists_ms = (took_ns / 1_000_000).max(INSISTS_MS);
        let for_ms = if self.lost >= INSIST_FROM { insists_ms } else { PROTECTED_MS };
        if let Some(hashes) = self.hashes.take() {
            self.protection =
                Some(Protection::raise(keyspace, hashes, now_ms.saturating_add(for_ms), client));
        }
    }
}
