//! The one sequence of writes, and snapshots as points in it.
//!
//! - S1: a write draws its LSN while it holds the locks of every shard it changes, before the first change.
//! - S2: a snapshot is first published as active, then draws its LSN `s`. A writer that draws `n > s` sees it
//!   and keeps the old state. A writer with `n < s` already has its locks, and a read at `s` waits for them.
//! - S3: at most [`MAX_ACTIVE`] snapshots are active; more are refused. The last places are for short ones
//!   ([`Snapshot::open_short`]), so that long work never takes all.
//! - S4: a snapshot may be revoked. From then on nothing is kept for it, and its owner must discard what it
//!   read. Ask [`Snapshot::is_current`] after the last read, or under the locks of the keys relied on.
//!
//! `tests/models` runs this file, and broken variants of it, in every order of its steps.

use crate::tell::{Announce, Tell};
use crate::{MAX_ACTIVE, MAX_LONG};
use std::sync::Arc;
use stdx::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A position in the sequence of writes.
pub type Lsn = u64;

const FREE: Lsn = 0;
/// Published, but without an LSN yet. It counts as newer than everything.
const OPENING: Lsn = Lsn::MAX;
/// In `active`: a walk is under way.
const WALK: usize = 1 << (usize::BITS - 1);
/// In `active`: a sink listens to writes (`tell.rs`).
const LISTEN: usize = WALK >> 1;
/// Revoked (S4): it was too old, or what was kept for it too much.
const TOO_OLD: Lsn = Lsn::MAX - 1;
const TOO_LARGE: Lsn = Lsn::MAX - 2;

/// Why a snapshot can no longer be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// FLUSHALL, FLUSHDB or SWAPDB replaced whole tables since.
    Flushed,
    /// It was active for too long.
    TooOld,
    /// Too much was kept for it and others, and it was the oldest.
    TooLarge,
}

/// The LSN in a slot; a revoked snapshot counts as none.
fn active_lsn(place: Lsn) -> Lsn {
    if is_revoked(place) { FREE } else { place }
}

fn is_revoked(place: Lsn) -> bool {
    place == TOO_OLD || place == TOO_LARGE
}

/// The readers for which a write keeps the old entry.
#[derive(Clone, Copy, Default)]
pub(crate) struct Keeps(usize);

impl Keeps {
    /// Active snapshots.
    #[inline]
    pub(crate) fn snapshots(self) -> bool {
        self.0 & !(WALK | LISTEN) != 0
    }

    /// A walk (`walk.rs`).
    #[inline]
    pub(crate) fn walk(self) -> bool {
        self.0 & WALK != 0
    }

    /// Whether a sink listens to the write.
    #[inline]
    pub(crate) fn listens(self) -> bool {
        self.0 & LISTEN != 0
    }
}

pub(crate) struct Sequence {
    last: AtomicU64,
    active: AtomicUsize,
    slots: [AtomicU64; MAX_ACTIVE],
    pub(crate) tell: Tell,
}

impl Default for Sequence {
    fn default() -> Self {
        Sequence {
            last: AtomicU64::new(0),
            active: AtomicUsize::new(0),
            slots: std::array::from_fn(|_| AtomicU64::new(FREE)),
            tell: Tell::default(),
        }
    }
}

impl Sequence {
    /// Draws the next LSN (S1).
    #[inline]
    pub(crate) fn draw(&self) -> Lsn {
        self.last.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether a sink listens to writes.
    #[inline]
    pub(crate) fn listens(&self) -> bool {
        self.active.load(Ordering::SeqCst) & LISTEN != 0
    }

    /// Notes that a sink listens to writes from now on, or that none does. All shards are locked.
    pub(crate) fn set_listens(&self, listens: bool) {
        match listens {
            true => self.active.fetch_or(LISTEN, Ordering::SeqCst),
            false => self.active.fetch_and(!LISTEN, Ordering::SeqCst),
        };
    }

    /// Draws the LSN of something that is told. The thread leaves its slot when all is told (`tell/slots.rs`
    /// T1).
    pub(crate) fn enter_and_draw(&self) -> Lsn {
        self.tell.enter(|| self.last());
        self.draw()
    }

    /// Draws an LSN at which `tell` tells something.
    pub(crate) fn draw_told(&self, tell: impl FnOnce(Lsn)) -> Lsn {
        let lsn = self.enter_and_draw();
        tell(lsn);
        self.tell.leave();
        lsn
    }

    /// Draws the LSN of a long commit, and tells its effects. O(1).
    pub(crate) fn draw_and_tell(&self, effects: Announce) -> Lsn {
        match effects {
            Some(effects) if self.listens() => self.draw_told(|lsn| self.tell.shared(lsn, effects)),
            Some(unheard) => {
                stdx::reclaim::defer(1, move || drop(unheard));
                self.draw()
            }
            None => self.draw(),
        }
    }

    /// Goes on behind an LSN.
    pub(crate) fn start_at(&self, lsn: Lsn) {
        self.last.fetch_max(lsn, Ordering::SeqCst);
    }

    pub(crate) fn last(&self) -> Lsn {
        self.last.load(Ordering::SeqCst)
    }

    /// The readers for which a write, which drew its LSN before asking, must keep the old entry (S2).
    #[inline]
    pub(crate) fn keeps(&self) -> Keeps {
        Keeps(self.active.load(Ordering::SeqCst))
    }

    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed) & !(WALK | LISTEN)
    }

    /// A walk begins; all shards are locked.
    pub(crate) fn begin_walk(&self) {
        self.active.fetch_or(WALK, Ordering::SeqCst);
    }

    /// Ends the keeping of entries for a walk. A shard is locked. A second call changes nothing.
    pub(crate) fn end_walk(&self) {
        self.active.fetch_and(!WALK, Ordering::SeqCst);
    }

    /// The newest active snapshot; `OPENING` is the newest of all. 0 if there is none.
    pub(crate) fn newest(&self) -> Lsn {
        self.slots.iter().map(|slot| active_lsn(slot.load(Ordering::SeqCst))).max().unwrap_or(FREE)
    }

    /// The oldest active snapshot, or [`Lsn::MAX`] if there is none. 0 while one is being opened: it may have
    /// drawn its LSN already, and the entries kept for it must stay.
    pub(crate) fn oldest(&self) -> Lsn {
        let lsns = self.slots.iter().map(|slot| active_lsn(slot.load(Ordering::SeqCst)));
        let lsns = lsns.filter(|lsn| *lsn != FREE);
        lsns.map(|lsn| if lsn == OPENING { 0 } else { lsn }).min().unwrap_or(Lsn::MAX)
    }

    /// Opens a snapshot in one of `places`; returns its slot and LSN (S2). `None` at the limit (S3).
    fn open(&self, places: std::ops::Range<usize>) -> Option<(usize, Lsn)> {
        let (first, places) = (places.start, &self.slots[places]);
        let place = places.iter().position(|slot| {
            slot.load(Ordering::Relaxed) == FREE
                && slot.compare_exchange(FREE, OPENING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        })?;
        let slot = first + place;
        self.active.fetch_add(1, Ordering::SeqCst);
        let lsn = self.draw();
        self.slots[slot].store(lsn, Ordering::SeqCst);
        Some((slot, lsn))
    }

    fn close(&self, slot: usize) {
        if !is_revoked(self.slots[slot].swap(FREE, Ordering::SeqCst)) {
            self.active.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Revokes the snapshot at this LSN (S4); false if it is no longer active.
    pub(crate) fn revoke(&self, lsn: Lsn, why: Ended) -> bool {
        let to = if why == Ended::TooOld { TOO_OLD } else { TOO_LARGE };
        let swap =
            |slot: &AtomicU64| slot.compare_exchange(lsn, to, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        let revoked = self.slots.iter().any(swap);
        if revoked {
            self.active.fetch_sub(1, Ordering::SeqCst);
        }
        revoked
    }

    /// The LSNs of active snapshots, unordered. Those being opened are left out.
    pub(crate) fn lsns(&self) -> impl Iterator<Item = Lsn> {
        let lsns = self.slots.iter().map(|slot| active_lsn(slot.load(Ordering::SeqCst)));
        lsns.filter(|lsn| *lsn != FREE && *lsn != OPENING)
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
    /// Opens a snapshot for long work. `None` if too many are active (S3).
    pub fn open(keyspace: &Arc<crate::Keyspace>) -> Option<Snapshot> {
        Snapshot::open_in(keyspace, 0..MAX_LONG)
    }

    /// Opens a snapshot that is closed within about a quantum. It has places that long work cannot take.
    /// `None` if too many are active.
    pub fn open_short(keyspace: &Arc<crate::Keyspace>) -> Option<Snapshot> {
        Snapshot::open_in(keyspace, MAX_LONG..MAX_ACTIVE).or_else(|| Snapshot::open(keyspace))
    }

    fn open_in(keyspace: &Arc<crate::Keyspace>, places: std::ops::Range<usize>) -> Option<Snapshot> {
        let generation = keyspace.generation();
        let (slot, lsn) = keyspace.sequence.open(places)?;
        Some(Snapshot { keyspace: keyspace.clone(), slot, lsn, generation })
    }

    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Whether the snapshot can still be read. False once it was revoked, or whole tables were replaced.
    pub fn is_current(&self) -> bool {
        self.ended().is_none()
    }

    /// Why the snapshot is no longer current; `None` if it is.
    pub fn ended(&self) -> Option<Ended> {
        match self.keyspace.sequence.slots[self.slot].load(Ordering::SeqCst) {
            TOO_OLD => Some(Ended::TooOld),
            TOO_LARGE => Some(Ended::TooLarge),
            _ => (self.generation != self.keyspace.generation()).then_some(Ended::Flushed),
        }
    }

    pub fn keyspace(&self) -> &Arc<crate::Keyspace> {
        &self.keyspace
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.keyspace.sequence.close(self.slot);
        // Only snapshots of long work are waited for.
        if self.slot < MAX_LONG {
            self.keyspace.closed_snapshot();
        }
    }
}
