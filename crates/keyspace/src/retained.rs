//! What active snapshots keep alive, and for how long: watched now and then, and limited.
//!
//! - R1: a snapshot's age counts from when it was first seen here, so opening one costs no look at a clock.
//! - R2: the oldest goes first: it needs all that was kept, the newer ones less.

use crate::sequence::{Ended, Lsn};
use crate::{Keyspace, Sequence};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long a snapshot may be active, and how many bytes may be kept alive for all of them. 0: no limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    pub age_ms: u64,
    pub bytes: u64,
}

/// A snapshot that was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    pub lsn: Lsn,
    pub why: Ended,
    pub age_ms: u64,
    /// What was kept for it and others.
    pub bytes: u64,
}

#[derive(Default)]
pub(crate) struct Retained {
    /// Active snapshots, and when they were first seen.
    seen: Mutex<Vec<(Lsn, u64)>>,
    pub(crate) bytes: AtomicU64,
    oldest_ms: AtomicU64,
}

impl Retained {
    /// Looks who is active; (LSN, age) of each.
    fn look(&self, sequence: &Sequence, now_ms: u64) -> Vec<(Lsn, u64)> {
        let mut seen = self.seen.lock();
        let active: Vec<Lsn> = sequence.lsns().collect();
        seen.retain(|(lsn, _)| active.contains(lsn));
        for lsn in active {
            if !seen.iter().any(|(known, _)| *known == lsn) {
                seen.push((lsn, now_ms));
            }
        }
        seen.iter().map(|(lsn, since)| (*lsn, now_ms.saturating_sub(*since))).collect()
    }
}

impl Keyspace {
    /// Frees what nobody needs, and revokes snapshots that are too old; and the oldest, if together with `others` (what else
    /// lives only because somebody reads it) too many bytes are kept. Once more if that is not enough, the next time.
    ///
    /// `now_ms`: a monotonic clock. Cost: as [`Keyspace::prune`], and O(snapshots²).
    pub fn limit_snapshots(&self, now_ms: u64, limits: Limits, others: u64) -> Vec<Revoked> {
        let bytes = self.prune() as u64;
        let active = self.retained.look(&self.sequence, now_ms);
        let oldest = active.iter().min().copied();
        self.retained.oldest_ms.store(oldest.map_or(0, |(_, age_ms)| age_ms), Ordering::Relaxed);
        let mut revoked = Vec::new();
        let mut revoke = |lsn, age_ms, why| {
            if self.sequence.revoke(lsn, why) {
                revoked.push(Revoked { lsn, why, age_ms, bytes });
            }
        };
        for (lsn, age_ms) in active {
            if limits.age_ms > 0 && age_ms > limits.age_ms {
                revoke(lsn, age_ms, Ended::TooOld);
            }
        }
        // What readers keep alive by other means is limited by who knows them.
        if let Some((lsn, age_ms)) = oldest
            && limits.bytes > 0
            && bytes + others > limits.bytes
            && bytes >= others
        {
            revoke(lsn, age_ms, Ended::TooLarge);
        }
        if !revoked.is_empty() {
            self.prune();
        }
        revoked
    }

    /// Bytes kept alive for snapshots, at most, and the age of the oldest in milliseconds: as of the last look.
    pub fn retained(&self) -> (u64, u64) {
        (self.retained.bytes.load(Ordering::Relaxed), self.retained.oldest_ms.load(Ordering::Relaxed))
    }

    /// The LSNs of active snapshots.
    pub fn snapshot_lsns(&self) -> Vec<Lsn> {
        self.sequence.lsns().collect()
    }

    /// Sets who is told that a snapshot was closed; only the first call counts. It must not wait.
    pub fn on_snapshot_closed(&self, told: impl Fn() + Send + Sync + 'static) {
        let _ = self.closed.set(Box::new(told));
    }

    pub(crate) fn closed_snapshot(&self) {
        if let Some(told) = self.closed.get() {
            told();
        }
    }
}
