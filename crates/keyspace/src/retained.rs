//! Limits on what active snapshots keep alive, and for how long.
//!
//! - R1: a snapshot's age counts from when it was first seen here, so opening one needs no clock.
//! - R2: the oldest snapshot goes first: it needs everything that is kept, newer ones less.

use crate::sequence::{Ended, Lsn};
use crate::{Keyspace, Sequence};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Limits on the age of a snapshot and on the bytes kept alive for all. 0: no limit.
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
    /// Bytes kept for it and others.
    pub bytes: u64,
}

#[derive(Default)]
pub(crate) struct Retained {
    /// Active snapshots, and when each was first seen.
    seen: Mutex<Vec<(Lsn, u64)>>,
    pub(crate) bytes: AtomicU64,
    oldest_ms: AtomicU64,
}

impl Retained {
    /// Updates the list of active snapshots. Returns LSN and age of each.
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
    /// Frees pre-images that no snapshot needs, and revokes snapshots that are too old. If too many bytes are
    /// kept, it also revokes the oldest one; the next call continues. `others` are bytes that live only
    /// because a client reads them. They count as well.
    ///
    /// `now_ms` is a monotonic clock. Cost: as [`Keyspace::prune`], and O(snapshots²).
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
        // If `others` is the larger part, its owner limits it.
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

    /// Bytes kept alive for snapshots, at most, and the age of the oldest in milliseconds. As of the last
    /// look.
    pub fn retained(&self) -> (u64, u64) {
        (self.retained.bytes.load(Ordering::Relaxed), self.retained.oldest_ms.load(Ordering::Relaxed))
    }

    /// The LSNs of active snapshots.
    pub fn snapshot_lsns(&self) -> Vec<Lsn> {
        self.sequence.lsns().collect()
    }

    /// Sets the receiver of closed snapshots. Only the first call counts. The receiver must not wait.
    pub fn on_snapshot_closed(&self, told: impl Fn() + Send + Sync + 'static) {
        let _ = self.closed.set(Box::new(told));
    }

    pub(crate) fn closed_snapshot(&self) {
        if let Some(told) = self.closed.get() {
            told();
        }
    }
}
