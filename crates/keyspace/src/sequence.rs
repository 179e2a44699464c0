//! One sequence of writes, and the snapshots that are points in it.
//!
//! - S1: a write draws its LSN while it holds the locks of every shard it changes, before the first change.
//! - S2: a snapshot is published as active first and draws its LSN `s` then. So a writer that draws `n > s` sees it, and
//!   keeps what was there before; a writer with `n < s` has its locks already, and whoever reads at `s` waits for them.
//! - S3: at most [`MAX_ACTIVE`] snapshots are active; opening one more is refused.
//!
//! `tests/models` runs this file, and broken variants of it, in every order of its steps.

use crate::MAX_ACTIVE;
use std::sync::Arc;
use stdx::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Position in the one sequence of writes.
pub type Lsn = u64;

const FREE: Lsn = 0;
/// Published, LSN not drawn yet: newer than everything.
const OPENING: Lsn = Lsn::MAX;

pub(crate) struct Sequence {
    last: AtomicU64,
    active: AtomicUsize,
    slots: [AtomicU64; MAX_ACTIVE],
}

impl Default for Sequence {
    fn default() -> Self {
        Sequence {
            last: AtomicU64::new(0),
            active: AtomicUsize::new(0),
            slots: std::array::from_fn(|_| AtomicU64::new(FREE)),
        }
    }
}

impl Sequence {
    /// Draws the next LSN (S1).
    #[inline]
    pub(crate) fn draw(&self) -> Lsn {
        self.last.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn last(&self) -> Lsn {
        self.last.load(Ordering::SeqCst)
    }

    /// True if a write that drew its LSN before asking must keep pre-images (S2).
    #[inline]
    pub(crate) fn any_active(&self) -> bool {
        self.active.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// The newest active snapshot, `OPENING` counting as newest; 0 if there is none.
    pub(crate) fn newest(&self) -> Lsn {
        self.slots.iter().map(|slot| slot.load(Ordering::SeqCst)).max().unwrap_or(FREE)
    }

    /// The oldest active snapshot; [`Lsn::MAX`] if there is none, 0 while one is being opened (its LSN may be drawn
    /// already, and what is kept for it must stay).
    pub(crate) fn oldest(&self) -> Lsn {
        let lsns = self.slots.iter().map(|slot| slot.load(Ordering::SeqCst)).filter(|lsn| *lsn != FREE);
        lsns.map(|lsn| if lsn == OPENING { 0 } else { lsn }).min().unwrap_or(Lsn::MAX)
    }

    /// Opens a snapshot: slot and LSN (S2). None at the limit (S3).
    fn open(&self) -> Option<(usize, Lsn)> {
        let slot = self.slots.iter().position(|slot| {
            slot.load(Ordering::Relaxed) == FREE
                && slot.compare_exchange(FREE, OPENING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        })?;
        self.active.fetch_add(1, Ordering::SeqCst);
        let lsn = self.draw();
        self.slots[slot].store(lsn, Ordering::SeqCst);
        Some((slot, lsn))
    }

    fn close(&self, slot: usize) {
        self.slots[slot].store(FREE, Ordering::SeqCst);
        self.active.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An immutable view of the whole keyspace at an LSN; closed when dropped. Opening and closing are O(1).
pub struct Snapshot {
    keyspace: Arc<crate::Keyspace>,
    slot: usize,
    lsn: Lsn,
    generation: u64,
}

impl Snapshot {
    /// None when too many are active (S3).
    pub fn open(keyspace: &Arc<crate::Keyspace>) -> Option<Snapshot> {
        let generation = keyspace.generation();
        let (slot, lsn) = keyspace.sequence.open()?;
        Some(Snapshot { keyspace: keyspace.clone(), slot, lsn, generation })
    }

    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// False once FLUSHALL, FLUSHDB or SWAPDB replaced whole tables since: then nothing may be read at it any more.
    pub fn is_current(&self) -> bool {
        self.generation == self.keyspace.generation()
    }

    pub fn keyspace(&self) -> &Arc<crate::Keyspace> {
        &self.keyspace
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.keyspace.sequence.close(self.slot);
    }
}
