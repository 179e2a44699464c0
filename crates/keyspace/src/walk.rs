//! A walk over everything as it was at one LSN, for a snapshot. It ends, and nobody waits for it.
//!
//! ```text
//! shard:  database 0 ············│ not passed ·············│ database 1 ·····
//!                     position ──┘      a write keeps the entry: queue ──► sink, before the walk goes on
//! ```
//!
//! - W1: a walk begins under all shard locks. It draws its LSN `s`, and every shard gets a [`ShardWalk`].
//!   There is one walk at a time.
//! - W2: the order is shard by shard, in each by database, in each by hash. A write at n > s to a key that is
//!   not passed puts the entry into the shard's queue and the key among those *done*. That is O(1), and all
//!   that a writer does for a walk.
//! - W3: queues are given to the sink before the walk goes on. So what is kept is bounded by how long that
//!   takes, not by how long the walk does.
//! - W4: commits at n ≤ s that are not folded are folded first, in all shards. Until then nothing is given to
//!   the sink. A fold at n ≤ s keeps nothing.
//! - W5: the walk knows tables by what they were called at `s` ([`Numbers`](crate::underway::Numbers)). A
//!   table that is emptied is handed to the walk. If that happens before all is folded (W4), the walk begins
//!   anew, at a later LSN.
//! - W6: a lock is held for lines of together some 16 KB or 100 entries. What was queued is given without a
//!   lock.
//! - W7: what is kept has a limit. Above half of it the shards that keep most are walked first. Above it the
//!   walk fails; writers go on.
//! - W8: keys that have expired and were not removed are given, with their time; those of hidden databases
//!   never are. Without a walk a write pays nothing: the word that tells of snapshots tells of walks.
//! - W9: a replacement of tables at n ≤ s is part of what the walk shows: the walk takes no notice of it.

mod round;
mod shard;
#[cfg(test)]
mod tests;

pub(crate) use round::{Replaced, Round, Slot};
pub(crate) use shard::{Given, ShardWalk, Write};

use crate::sequence::Lsn;
use crate::view::{Changes, View};
use crate::{Keyspace, SHARDS};
use round::State;
use std::sync::Arc;
use stdx::locks::Bits;
use value::Value;

/// Keys folded under one lock (W4).
const FOLDED_TOGETHER: usize = 32;
/// Most work under one lock, in entries (W6).
const UNDER_LOCK: usize = 100;
/// Bytes copied that count as one more entry: a hundredth of 16 KB (W6).
const ENTRY_BYTES: usize = 160;

/// Limits of a walk.
#[derive(Clone, Copy, Debug, Default)]
pub struct WalkLimits {
    /// Limit of the bytes kept for it; 0 for none (W7).
    pub bytes: u64,
}

/// Why a walk does not begin, or ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalkError {
    /// Another walk is under way.
    UnderWay,
    /// More had to be kept for it than it may (W7).
    TooLarge,
    /// It was cancelled.
    Cancelled,
}

impl std::fmt::Display for WalkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            WalkError::UnderWay => "another snapshot is being taken",
            WalkError::TooLarge => "writers replaced more than may be kept for the snapshot",
            WalkError::Cancelled => "the snapshot was cancelled",
        })
    }
}

impl std::error::Error for WalkError {}

/// How far a walk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walked {
    /// Go on calling.
    More,
    /// Everything was given, as of this LSN.
    Over(Lsn),
}

/// A key's value.
#[derive(Clone, Debug)]
pub enum WalkValue<'a> {
    /// A short string.
    Text(&'a [u8]),
    /// Anything else, shared with the keyspace.
    Value(Value),
}

/// A key as it was at the walk's LSN.
#[derive(Clone, Debug)]
pub struct WalkEntry<'a> {
    /// The number its database had then.
    pub db: usize,
    pub key: &'a [u8],
    pub value: WalkValue<'a>,
    /// Absolute, in milliseconds since 1970. It may have passed (W8).
    pub expire_ms: Option<u64>,
    /// When it was used last.
    access: u8,
}

impl WalkEntry<'_> {
    /// Seconds since the key was last used, in steps of 16 and up to 70 minutes.
    pub fn idle_s(&self, now_ms: u64) -> u64 {
        u64::from(crate::view::access_tick(now_ms).wrapping_sub(self.access)) * 16
    }
}

/// Takes what a walk gives.
pub trait WalkSink {
    /// Takes a key. Each comes once, in no order. It is called with a shard locked: it copies short texts and
    /// notes handles, and never waits.
    fn entry(&mut self, entry: WalkEntry<'_>);

    /// Takes the changes of long commits that the walk folded (W4). No lock is held.
    fn told(&mut self, changes: Changes);
}

/// Figures of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkFigures {
    /// Its LSN, the last one if it began anew.
    pub lsn: Lsn,
    /// Keys given to the sink, of so many.
    pub keys: u64,
    pub of: u64,
    /// Bytes kept for it by writers, at most.
    pub bytes: u64,
    /// How often it began anew (W5).
    pub anew: u64,
}

/// Takes the LSN of a walk, under all shard locks. It is called again if the walk begins anew (W5): the last
/// call counts.
pub type WalkMark = Arc<dyn Fn(Lsn) + Send + Sync>;

/// A shard's queue, on its way to the sink.
struct Taken {
    queue: shard::Queued,
    shard: usize,
}

/// See the module. Dropped, it is cancelled.
pub struct Walk {
    keyspace: Arc<Keyspace>,
    round: Arc<Round>,
    /// Shards before it have nothing left to fold.
    folded: usize,
    /// The shard it is in, and those that it has not begun or not ended.
    here: Option<usize>,
    ahead: Bits,
    taken: Option<Taken>,
    /// How it ended.
    ended: Option<Result<Walked, WalkError>>,
}

impl Walk {
    /// Begins a walk (W1). Errors: another one is under way. Cost: all shard locks for some 20 µs.
    pub fn begin(keyspace: &Arc<Keyspace>, limits: WalkLimits) -> Result<Walk, WalkError> {
        Walk::begin_marked(keyspace, limits, Arc::new(|_| {}))
    }

    /// As `begin`. `mark` gets the LSN while no client can write.
    pub fn begin_marked(
        keyspace: &Arc<Keyspace>,
        limits: WalkLimits,
        mark: WalkMark,
    ) -> Result<Walk, WalkError> {
        Walk::begin_with(keyspace, limits, mark, u64::MAX)
    }

    /// `mask`: the bits of a hash that tell keys apart.
    fn begin_with(
        keyspace: &Arc<Keyspace>,
        limits: WalkLimits,
        mark: WalkMark,
        mask: u64,
    ) -> Result<Walk, WalkError> {
        if keyspace.walk.get().is_some() {
            return Err(WalkError::UnderWay);
        }
        let mut guard = keyspace.shards.lock_all();
        if keyspace.walk.get().is_some() {
            return Err(WalkError::UnderWay);
        }
        let round = round::begin(keyspace, &mut guard, round::Terms { limits, mark, mask, anew: 0 });
        drop(guard);
        Ok(Walk {
            keyspace: keyspace.clone(),
            round,
            folded: 0,
            here: None,
            ahead: Bits::below(SHARDS),
            taken: None,
            ended: None,
        })
    }

    /// The LSN of what it shows. It stays as it is once an entry was given (W4).
    pub fn lsn(&self) -> Lsn {
        self.current().lsn
    }

    pub fn figures(&self) -> WalkFigures {
        self.current().figures()
    }

    /// Whether the walk keeps more than half of its limit. If so, the caller must not slow it down (W7).
    pub fn is_pressed(&self) -> bool {
        self.round.is_pressed()
    }

    /// The round that counts: this one, or the one that took its place.
    fn current(&self) -> Arc<Round> {
        match self.ended {
            None => self.keyspace.walk.get().unwrap_or_else(|| self.round.clone()),
            Some(_) => self.round.clone(),
        }
    }

    /// Walks over about so many keys, some 0.1 µs each. Errors: the limit (W7), or the walk was cancelled.
    /// Whatever was given then counts for nothing. A call after the end returns the same result.
    pub fn advance(
        &mut self,
        now_ms: u64,
        keys: usize,
        sink: &mut dyn WalkSink,
    ) -> Result<Walked, WalkError> {
        let mut left = keys.max(1);
        while left > 0 {
            if let Some(ended) = self.ended {
                return ended;
            }
            let spent = match self.round.state() {
                State::Folding => self.fold(now_ms, left, sink),
                State::Walking => self.go(left, sink),
                State::Anew => {
                    self.take_up();
                    1
                }
                State::TooLarge => {
                    self.end(Err(WalkError::TooLarge));
                    0
                }
                State::Over => {
                    self.end(Err(WalkError::Cancelled));
                    0
                }
            };
            left = left.saturating_sub(spent);
        }
        self.ended.unwrap_or(Ok(Walked::More))
    }

    /// Ends the walk. Whatever was given counts for nothing. Cost: each shard lock for a moment.
    pub fn cancel(&mut self) {
        if self.ended.is_none() {
            self.end(Err(WalkError::Cancelled));
        }
    }

    /// Goes on with the round that replaced this one (W5). Nothing was given yet (W4).
    fn take_up(&mut self) {
        self.round = self.current();
        (self.folded, self.here, self.ahead) = (0, None, Bits::below(SHARDS));
        debug_assert!(self.taken.is_none());
    }

    /// Folds what was committed up to `s` in the next shard (W4).
    fn fold(&mut self, now_ms: u64, left: usize, sink: &mut dyn WalkSink) -> usize {
        if self.folded == SHARDS || !self.keyspace.has_intents_now() {
            self.round.go_on();
            return 1;
        }
        let keys = left.min(FOLDED_TOGETHER);
        let mut view = View::locked(&self.keyspace, Bits::one(self.folded), 0, now_ms);
        if view.fold_upto(self.round.lsn, keys) {
            self.folded += 1;
        }
        let changes = view.finish();
        sink.told(changes);
        keys.div_ceil(4)
    }

    /// Gives what is queued, or the next lines.
    fn go(&mut self, left: usize, sink: &mut dyn WalkSink) -> usize {
        if let Some(taken) = &mut self.taken {
            let (spent, empty) = taken.queue.give(&self.round, taken.shard, left.min(UNDER_LOCK), sink);
            if empty {
                self.taken = None;
            }
            return spent;
        }
        if let Some(shard) = self.round.queued() {
            self.take(shard);
            return 1;
        }
        let Some(shard) = self.here.or_else(|| self.choose()) else {
            self.end(Ok(Walked::Over(self.round.lsn)));
            return 0;
        };
        self.here = Some(shard);
        self.walk_on(shard, left, sink)
    }

    fn take(&mut self, shard: usize) {
        let mut guard = self.keyspace.shards.lock_one(shard);
        let walk = guard.get_mut(shard).walk.as_mut().filter(|walk| walk.is_of(&self.round));
        self.taken = walk.map(|walk| Taken { queue: walk.take_queue(), shard });
    }

    /// The next lines of a shard. The lock is held for [`UNDER_LOCK`] entries' time.
    fn walk_on(&mut self, shard: usize, left: usize, sink: &mut dyn WalkSink) -> usize {
        let mut guard = self.keyspace.shards.lock_one(shard);
        let crate::shard::Shard { dbs, walk, .. } = guard.get_mut(shard);
        let Some(mine) = walk.as_mut().filter(|walk| walk.is_of(&self.round)) else { return 1 };
        let (spent, passed) = mine.walk_on(dbs, left.min(UNDER_LOCK), sink, &self.keyspace);
        if passed {
            // Entries queued since it was taken come next; no more can follow.
            self.taken = Some(Taken { queue: mine.take_queue(), shard });
            let rest = walk.take();
            drop(guard);
            (self.here, self.ahead) = (None, without(self.ahead, shard));
            drop(rest);
        }
        spent
    }

    /// The next shard: the one that keeps most where that matters (W7).
    fn choose(&self) -> Option<usize> {
        match self.is_pressed() {
            true => self.ahead.iter().max_by_key(|shard| self.round.bytes_of(*shard)),
            false => self.ahead.iter().next(),
        }
    }

    fn end(&mut self, how: Result<Walked, WalkError>) {
        // While a shard is locked nobody lets the walk begin anew.
        let guard = self.keyspace.shards.lock_one(0);
        self.round = self.current();
        self.ended = Some(how);
        self.round.stop();
        self.keyspace.sequence.end_walk();
        drop(guard);
        for shard in self.ahead.iter() {
            let walk = self.keyspace.shards.lock_one(shard).get_mut(shard).walk.take();
            walk.into_iter().for_each(ShardWalk::discard);
        }
        self.taken = None;
        self.keyspace.walk.clear();
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.cancel();
    }
}

fn without(bits: Bits, bit: usize) -> Bits {
    bits.iter().filter(|other| *other != bit).fold(Bits::EMPTY, |mut bits, bit| {
        bits.insert(bit);
        bits
    })
}
