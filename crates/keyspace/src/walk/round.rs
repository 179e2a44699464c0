//! The state that all shards share for one begin of a walk.

use super::{ShardWalk, WalkFigures, WalkLimits, WalkMark};
use crate::sequence::Lsn;
use crate::shard::Shard;
use crate::underway::Numbers;
use crate::{Keyspace, SHARDS};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use stdx::locks::Guard;

const FOLDING: u8 = 0;
const WALKING: u8 = 1;
const ANEW: u8 = 2;
const TOO_LARGE: u8 = 3;
const OVER: u8 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Nothing was given yet (W4).
    Folding,
    Walking,
    /// Another round took its place (W5).
    Anew,
    TooLarge,
    Over,
}

/// The terms that stay when a walk begins anew.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) limits: WalkLimits,
    pub(super) mark: WalkMark,
    /// The bits of a hash that tell keys apart.
    pub(super) mask: u64,
    pub(super) anew: u64,
}

/// The memory kept in a shard.
#[derive(Default)]
struct OfShard {
    /// Entries in its queue.
    queued: AtomicU32,
    bytes: AtomicU64,
}

/// See the module.
pub(crate) struct Round {
    pub(super) lsn: Lsn,
    pub(super) numbers: Arc<Numbers>,
    /// Databases from this one on have nothing to be walked.
    pub(super) upto: usize,
    pub(super) terms: Terms,
    state: AtomicU8,
    /// Keys at the beginning, and those that were given.
    of: u64,
    given: AtomicU64,
    bytes: AtomicU64,
    /// Entries in all queues.
    queued: AtomicU64,
    shards: Box<[OfShard]>,
}

/// The walk of a keyspace, if there is one.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Option<Arc<Round>>>);

impl Slot {
    pub(super) fn get(&self) -> Option<Arc<Round>> {
        self.0.lock().clone()
    }

    pub(super) fn clear(&self) {
        *self.0.lock() = None;
    }
}

/// Begins a walk, or the same anew. Takes the place of what the shards have of the former.
pub(super) fn begin(keyspace: &Keyspace, guard: &mut Guard<'_, Shard>, terms: Terms) -> Arc<Round> {
    let upto = keyspace.touched.load(Relaxed).min(keyspace.visible);
    // Later decisions have later LSNs. Earlier ones are counted until they are folded.
    let listens = keyspace.listens();
    let lsn = if listens { keyspace.sequence.enter_and_draw() } else { keyspace.sequence.draw() };
    let state = if keyspace.has_intents_now() { FOLDING } else { WALKING };
    let round = Arc::new(Round {
        lsn,
        numbers: Numbers::new(keyspace.all_databases()),
        upto,
        state: AtomicU8::new(state),
        of: (0..upto).map(|db| keyspace.len(db) as u64).sum(),
        given: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        queued: AtomicU64::new(0),
        shards: (0..SHARDS).map(|_| OfShard::default()).collect(),
        terms,
    });
    for shard in 0..SHARDS {
        let fresh = Box::new(ShardWalk::new(&round, shard));
        guard.get_mut(shard).walk.replace(fresh).into_iter().for_each(ShardWalk::discard);
    }
    *keyspace.walk.0.lock() = Some(round.clone());
    keyspace.sequence.begin_walk();
    (round.terms.mark)(lsn);
    if listens {
        keyspace.sequence.tell.leave();
    }
    round
}

impl Round {
    pub(super) fn state(&self) -> State {
        match self.state.load(SeqCst) {
            FOLDING => State::Folding,
            WALKING => State::Walking,
            ANEW => State::Anew,
            TOO_LARGE => State::TooLarge,
            _ => State::Over,
        }
    }

    /// Whether anything is to be kept for it.
    pub(super) fn is_live(&self) -> bool {
        self.state.load(Relaxed) < ANEW
    }

    /// Whether something may still have to be folded.
    pub(super) fn is_folding(&self) -> bool {
        self.state.load(SeqCst) == FOLDING
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }

    /// All is folded.
    pub(super) fn go_on(&self) {
        self.change(FOLDING, WALKING);
    }

    pub(super) fn stop(&self) {
        self.state.store(OVER, SeqCst);
    }

    /// Counts what is kept in a shard; true if the walk fails by that (W7).
    pub(super) fn keep(&self, shard: usize, bytes: usize) -> bool {
        self.shards[shard].bytes.fetch_add(bytes as u64, Relaxed);
        let kept = self.bytes.fetch_add(bytes as u64, Relaxed) + bytes as u64;
        let limit = self.terms.limits.bytes;
        limit > 0 && kept > limit && (self.change(WALKING, TOO_LARGE) || self.change(FOLDING, TOO_LARGE))
    }

    pub(super) fn give_back(&self, shard: usize, bytes: usize) {
        self.shards[shard].bytes.fetch_sub(bytes as u64, Relaxed);
        self.bytes.fetch_sub(bytes as u64, Relaxed);
    }

    /// An entry came into the queue of a shard.
    pub(super) fn queue(&self, shard: usize) {
        self.shards[shard].queued.fetch_add(1, Relaxed);
        self.queued.fetch_add(1, Relaxed);
    }

    /// The queue of a shard was taken.
    pub(super) fn unqueue(&self, shard: usize) {
        let queued = self.shards[shard].queued.swap(0, Relaxed);
        self.queued.fetch_sub(u64::from(queued), Relaxed);
    }

    /// The shard with the longest queue, if any has one. O(shards), O(1) if none has.
    pub(super) fn queued(&self) -> Option<usize> {
        if self.queued.load(Relaxed) == 0 {
            return None;
        }
        let queued = |shard: &usize| self.shards[*shard].queued.load(Relaxed);
        (0..SHARDS).max_by_key(queued).filter(|shard| queued(shard) > 0)
    }

    /// Entries in all queues.
    #[cfg(test)]
    pub(super) fn all_queued(&self) -> u64 {
        self.queued.load(Relaxed)
    }

    pub(super) fn bytes_of(&self, shard: usize) -> u64 {
        self.shards[shard].bytes.load(Relaxed)
    }

    pub(super) fn gave(&self, keys: u64) {
        self.given.fetch_add(keys, Relaxed);
    }

    pub(super) fn is_pressed(&self) -> bool {
        let limit = self.terms.limits.bytes;
        limit > 0 && self.bytes.load(Relaxed) > limit / 2
    }

    pub(super) fn figures(&self) -> WalkFigures {
        let (keys, bytes) = (self.given.load(Relaxed), self.bytes.load(Relaxed));
        WalkFigures { lsn: self.lsn, keys, of: self.of, bytes, anew: self.terms.anew }
    }

    /// The walk's number of a database, if the walk has anything of it.
    #[inline]
    pub(super) fn known(&self, db: usize) -> Option<usize> {
        self.numbers.known(db).filter(|known| *known < self.upto)
    }
}

/// A walk whose tables are about to be replaced. All shards are locked until this is gone.
pub(crate) struct Replaced {
    round: Arc<Round>,
    /// Nothing was given yet, and not all is folded (W5).
    anew: bool,
}

impl Replaced {
    /// The walk's number of a database whose tables it wants.
    pub(crate) fn wants(&self, db: usize) -> Option<usize> {
        if self.anew { None } else { self.round.known(db) }
    }

    /// Databases were emptied.
    pub(crate) fn empty(self, keyspace: &Keyspace, guard: &mut Guard<'_, Shard>, dbs: &[usize]) {
        if self.anew {
            let terms = Terms { anew: self.round.terms.anew + 1, ..self.round.terms.clone() };
            begin(keyspace, guard, terms);
        } else {
            dbs.iter().for_each(|db| self.round.numbers.empty(*db));
        }
    }

    /// Two databases were exchanged.
    pub(crate) fn swap(self, a: usize, b: usize) {
        self.round.numbers.swap(a, b);
    }
}

impl Keyspace {
    fn walk_at(&self, lsn: Lsn) -> Option<Arc<Round>> {
        if !self.sequence.keeps().walk() {
            return None;
        }
        self.walk.get().filter(|round| round.is_live() && round.lsn < lsn)
    }

    /// The walk that has to know that databases are emptied at `lsn` (W5, W9). All shards are locked. O(1)
    pub(crate) fn walk_emptied(&self, lsn: Lsn) -> Option<Replaced> {
        let round = self.walk_at(lsn)?;
        if !self.has_intents_now() {
            round.go_on();
        }
        let anew = round.change(FOLDING, ANEW);
        Some(Replaced { round, anew })
    }

    /// The walk that has to know that databases are exchanged at `lsn`. All shards are locked. O(1)
    pub(crate) fn walk_swapped(&self, lsn: Lsn) -> Option<Replaced> {
        self.walk_at(lsn).map(|round| Replaced { round, anew: false })
    }

    /// As [`Keyspace::has_intents`], and what was decided before is seen.
    pub(crate) fn has_intents_now(&self) -> bool {
        self.intents.load(SeqCst) != 0
    }
}
