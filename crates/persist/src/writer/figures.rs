//! The figures of the log, for INFO.

use super::{LogState, Shared};
use crate::files::local::locked;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stdx::clock::mono_ns;

/// Counts of the threads.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) pending_bytes: AtomicU64,
    /// The LSN up to which everything is durable, whatever the policy.
    pub(super) synced_lsn: AtomicU64,
    pub(super) sync_is_pending: AtomicBool,
    pub(super) delayed_syncs: AtomicU64,
    pub(super) write_failed: AtomicBool,
    pub(crate) has_gap: AtomicBool,
    /// Somebody has put something else in the place of the log (writer K6).
    pub(crate) is_replaced: AtomicBool,
    /// The time of the last write, or at which there was nothing to write.
    moved_ns: AtomicU64,
    syncs: AtomicU64,
    sync_ns: AtomicU64,
    sync_max_ns: AtomicU64,
    sync_last_ns: AtomicU64,
}

impl Counters {
    pub(super) fn moves(&self) {
        self.moved_ns.store(mono_ns(), Ordering::Relaxed);
    }

    pub(super) fn still_ns(&self) -> u64 {
        mono_ns().saturating_sub(self.moved_ns.load(Ordering::Relaxed))
    }

    pub(super) fn synced(&self, ns: u64) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_ns.fetch_add(ns, Ordering::Relaxed);
        self.sync_max_ns.fetch_max(ns, Ordering::Relaxed);
        self.sync_last_ns.store(ns, Ordering::Relaxed);
    }
}

/// The times that syncs took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    pub last_ns: u64,
}

/// The last rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewriteStatus {
    pub is_ok: bool,
    /// Time of the last one that ended; None before the first.
    pub seconds: Option<u64>,
    pub is_running: bool,
    /// Failures since the last good one.
    pub failures: u32,
}

/// The figures of the log.
#[derive(Clone, Debug)]
pub struct Figures {
    /// `aof_current_size`: the base and the files behind it, without filler.
    pub current_size_bytes: u64,
    /// `aof_base_size`: the same at the start, or after the last rewrite.
    pub base_size_bytes: u64,
    /// `aof_buffer_length`: bytes taken and not written.
    pub buffer_length_bytes: u64,
    /// `aof_pending_bio_fsync`.
    pub pending_syncs: u64,
    /// `aof_delayed_fsync`: seconds in which the sync before was still under way.
    pub delayed_syncs: u64,
    /// `aof_last_write_status`.
    pub is_write_ok: bool,
    /// A failed sync has lost more than was kept. A rewrite is needed.
    pub has_gap: bool,
    pub rewrite: RewriteStatus,
    pub syncs: Latency,
    pub state: LogState,
}

pub(super) fn figures(shared: &Shared) -> Figures {
    let counters = &shared.counters;
    let rewrites = locked(&shared.rewrites);
    Figures {
        current_size_bytes: locked(&shared.sizes).all(),
        base_size_bytes: rewrites.base_size_bytes(),
        buffer_length_bytes: counters.pending_bytes.load(Ordering::Relaxed),
        pending_syncs: counters.sync_is_pending.load(Ordering::Relaxed).into(),
        delayed_syncs: counters.delayed_syncs.load(Ordering::Relaxed),
        is_write_ok: !counters.write_failed.load(Ordering::Relaxed),
        has_gap: counters.has_gap.load(Ordering::Relaxed),
        rewrite: rewrites.status(),
        syncs: Latency {
            count: counters.syncs.load(Ordering::Relaxed),
            total_ns: counters.sync_ns.load(Ordering::Relaxed),
            max_ns: counters.sync_max_ns.load(Ordering::Relaxed),
            last_ns: counters.sync_last_ns.load(Ordering::Relaxed),
        },
        state: locked(&shared.standing).told.clone(),
    }
}
