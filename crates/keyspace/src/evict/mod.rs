//! Eviction: which keys go when memory is short.
//!
//! ```text
//!   reads, overwrites ──► the slot's byte (marks.rs)           one byte, unless used this tick already
//!                    └──► ring of this thread ─► mini-caches   which threshold would hit most (minis.rs)
//!   insertions ─────────► time, ghosts
//!   a writer over the limit, or an idle loop ─► evict: one victim of a sample of 64 neighbouring slots
//! ```
//!
//! A [`Budget`] is a set of databases with one policy. The visible databases share one budget; each group of
//! hidden ones has its own. The caller sets the limit and decides what counts towards it.
//!
//! - V1: while eviction is off, all this costs one branch.
//! - V2: an eviction holds one shard's lock at a time, for microseconds, as a GET does.
//! - V3: an eviction is a write like any other: it has an LSN, pre-images, watchers, sink and notification.
//!   Keys that a long commit covers stay.
//! - V4: ghosts remember keys that were evicted, or removed because their origin changed; not deleted or
//!   expired ones. A cache of few entries has one queue of ghosts; a larger one has them in its segments.
//! - V5: time stands still while there is plenty of room. Until the cache is full, its capacity is estimated
//!   from how full it is, so that the first keys do not look unused.
//! - V6: a use counts once per tick. A GET would fetch the line of the slot's byte for nothing else. So that
//!   byte is not read if the entry's last use and now lie in the same 16 seconds within one tick.
//! - V7: the databases of a hidden budget compete, half a sample each. Many new entries of one that are not
//!   used again drive out no used entry of the other.
//!
//! Cost of an eviction: a lock, 64 bytes of a table, a removal; under 1 µs. If each shard holds few entries,
//! up to 64 segments are visited.

mod marks;
mod minis;
pub(crate) mod policy;
#[cfg(test)]
mod tests;

pub(crate) use marks::{Marks, Time};

use crate::segment::Spot;
use crate::shard::Shard;
use crate::view::Changes;
use crate::{Keyspace, SHARDS, View, shard_of};
use minis::{Ghosts, Minis};
use parking_lot::Mutex;
use policy::{CANDIDATES, FIRST, RANKS, Ranks, TICKS};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use stdx::hash::hash_bytes;
use stdx::locks::{Bits, Guard};

/// Entries looked at for one eviction, and segments at most.
const SAMPLE: usize = 64;
const SEGMENTS: usize = 64;
/// Entries looked at, at least, to find the one that expires first.
const SOONEST: usize = 16;
/// A cache of at most this many entries has one queue of ghosts (V4).
const FEW: usize = 4096;
/// Shares of its limit: from `SOME` on a budget's time goes on (V5), from `FULL` on it counts as full.
const SOME: f64 = 0.25;
const FULL: f64 = 0.9;
/// Accesses a thread keeps for the mini-caches. Further ones are lost.
const RING: usize = 512;

/// Which keys are evicted. The names are Redis's, but `Adaptive` stands for both LRU and LFU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Policy {
    None,
    Adaptive,
    Random,
    /// As above, among keys with an expiry only.
    VolatileAdaptive,
    VolatileRandom,
    /// The key that expires first.
    VolatileTtl,
}

impl Policy {
    fn of(number: u8) -> Policy {
        use Policy::*;
        [None, Adaptive, Random, VolatileAdaptive, VolatileRandom, VolatileTtl][number as usize]
    }

    fn is_volatile(self) -> bool {
        matches!(self, Policy::VolatileAdaptive | Policy::VolatileRandom | Policy::VolatileTtl)
    }

    fn is_adaptive(self) -> bool {
        matches!(self, Policy::Adaptive | Policy::VolatileAdaptive)
    }
}

/// The result of [`Keyspace::evict`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evicted {
    /// Removed a key of this many bytes.
    Freed(u64),
    /// Found no victim this time. A further call may find one.
    Missed,
    /// No key may be evicted.
    Nothing,
}

/// A request for a victim.
#[derive(Clone, Copy)]
pub(crate) struct Find<'a> {
    /// Ranks by use. `None`: use does not matter.
    pub(crate) ranks: Option<&'a Ranks>,
    /// Only entries with an expiry.
    pub(crate) expiring: bool,
    /// The entry that expires first.
    pub(crate) soonest: bool,
    /// Entries to look at, and segments at most.
    pub(crate) want: usize,
    pub(crate) segments: usize,
    pub(crate) time: Time,
    /// Turns an access byte into ticks without use, for segments without marks.
    pub(crate) idle: &'a dyn Fn(u8) -> u8,
}

/// A victim with its shard, and the shard's lock if it was the last one visited.
type Seen<'a> = (usize, Found, Option<Guard<'a, Shard>>);

/// A victim. The lowest rank goes first.
pub(crate) struct Found {
    pub(crate) rank: u64,
    pub(crate) byte: u8,
    pub(crate) key: Box<[u8]>,
}

/// Databases that share a policy and its time. All fields are relaxed: a lost update loses a bit of a
/// statistic.
pub(crate) struct Budget {
    databases: Range<usize>,
    policy: AtomicU8,
    samples: AtomicUsize,
    /// Entries it holds when full. 0: it is far from full, and time stands still (V5).
    entries: AtomicUsize,
    /// Time: ticks, and below, in `progress`, the way to the next one in fourteenths of entries.
    tick: AtomicU32,
    /// When the last tick began, as an access tick ([`crate::view::access_tick`]).
    ticked: AtomicU8,
    progress: AtomicU64,
    /// The index in [`CANDIDATES`].
    candidate: AtomicUsize,
    /// Hashes below this take part in the mini-caches.
    below: AtomicU64,
    minis: Mutex<Option<Box<Minis>>>,
    ghosts: Mutex<Ghosts>,
    dice: AtomicU64,
}

thread_local! {
    /// Budget and hash of accesses for the mini-caches.
    static ACCESSES: RefCell<Vec<(usize, u64)>> = const { RefCell::new(Vec::new()) };
}

impl Budget {
    fn new(databases: Range<usize>) -> Budget {
        Budget {
            databases,
            policy: AtomicU8::new(0),
            samples: AtomicUsize::new(SOONEST),
            entries: AtomicUsize::new(0),
            tick: AtomicU32::new(0),
            ticked: AtomicU8::new(0),
            progress: AtomicU64::new(0),
            candidate: AtomicUsize::new(FIRST),
            below: AtomicU64::new(0),
            minis: Mutex::default(),
            ghosts: Mutex::default(),
            dice: AtomicU64::new(stdx::clock::wall_ns()),
        }
    }

    fn policy(&self) -> Policy {
        Policy::of(self.policy.load(Relaxed))
    }

    #[inline]
    fn time(&self) -> Time {
        let candidate = self.candidate.load(Relaxed);
        Time { tick: self.tick.load(Relaxed), threshold: CANDIDATES[candidate] }
    }

    /// Advances time by one insertion.
    fn insertion(&self, access: u8) {
        let entries = self.entries.load(Relaxed) as u64;
        if entries == 0 {
            return;
        }
        let mut progress = self.progress.fetch_add(TICKS, Relaxed) + TICKS;
        while progress >= entries {
            match self.progress.compare_exchange(progress, progress - entries, Relaxed, Relaxed) {
                Ok(_) => {
                    self.tick.fetch_add(1, Relaxed);
                    self.ticked.store(access, Relaxed);
                    progress -= entries;
                }
                Err(now) => progress = now,
            }
        }
    }

    /// Buckets of ghosts per segment. `None`: there is one queue for all.
    fn buckets(&self) -> Option<usize> {
        let entries = self.entries.load(Relaxed);
        (entries > FEW).then(|| marks::buckets(entries / SHARDS))
    }

    fn random(&self) -> u64 {
        stdx::hash::hash_u64(self.dice.fetch_add(1, Relaxed))
    }
}

/// All budgets. The first is that of the visible databases.
pub(crate) struct Evict {
    on: AtomicBool,
    lfu: AtomicBool,
    /// Visible databases, and hidden ones per budget.
    visible: usize,
    together: usize,
    budgets: Box<[Budget]>,
}

impl Evict {
    pub(crate) fn new(visible: usize, hidden: usize, together: usize) -> Evict {
        let firsts = (visible..visible + hidden).step_by(together.max(1));
        let hidden = firsts.map(|db| Budget::new(db..db + together));
        let budgets = std::iter::once(Budget::new(0..visible)).chain(hidden).collect();
        Evict { on: AtomicBool::new(false), lfu: AtomicBool::new(false), visible, together, budgets }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    #[inline]
    fn number(&self, db: usize) -> usize {
        if db < self.visible { 0 } else { 1 + (db - self.visible) / self.together }
    }

    /// Whether uses of a database's keys are counted: not while there is plenty of room (V5).
    pub(crate) fn counts_uses(&self, db: usize) -> bool {
        let budget = &self.budgets[self.number(db)];
        budget.policy().is_adaptive() && budget.entries.load(Relaxed) > 0
    }

    /// Forgets how keys of the visible databases were used: others take their place. All shards are locked.
    /// O(1)
    pub(crate) fn forget_uses(&self) {
        let budget = &self.budgets[0];
        for figure in [&budget.below, &budget.progress] {
            figure.store(0, Relaxed);
        }
        budget.entries.store(0, Relaxed);
        budget.candidate.store(FIRST, Relaxed);
        let ghosts = std::mem::take(&mut *budget.ghosts.lock());
        stdx::reclaim::discard((ghosts, budget.minis.lock().take()));
    }

    /// Notes a read or overwrite of an entry. `last` is the access tick of its previous use, `now` that of
    /// this one.
    #[inline]
    pub(crate) fn used(&self, db: usize, hash: u64, spot: Spot, last: u8, now: u8) {
        let number = self.number(db);
        let budget = &self.budgets[number];
        // The byte shows a use in this tick already (V6) and need not be fetched.
        if last != now || budget.ticked.load(Relaxed) == now {
            spot.used(budget.time());
        }
        self.accessed(number, hash);
    }

    /// Puts an access into this thread's ring, if the key takes part in the mini-caches.
    #[inline]
    fn accessed(&self, number: usize, hash: u64) {
        // Uses other bits than those that choose shard, segment and line.
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
        if mixed < self.budgets[number].below.load(Relaxed) {
            keep_access(number, hash);
        }
    }
}

#[cold]
fn keep_access(number: usize, hash: u64) {
    let _ = ACCESSES.try_with(|ring| {
        let mut ring = ring.borrow_mut();
        // A command that looks at a key several times uses it once.
        if ring.len() < RING && ring.last() != Some(&(number, hash)) {
            ring.push((number, hash));
        }
    });
}

impl Keyspace {
    /// Sets the policy of a budget: 0 for the visible databases, `n` for the n-th group of hidden ones.
    /// `samples` is the least number of keys among which the one that expires first is chosen.
    pub fn set_eviction(&self, budget: usize, policy: Policy, samples: usize) {
        let budgets = &self.evict.budgets;
        budgets[budget].policy.store(policy as u8, Relaxed);
        budgets[budget].samples.store(samples.clamp(SOONEST, SAMPLE), Relaxed);
        let on = budgets.iter().any(|budget| budget.policy() != Policy::None);
        self.evict.on.store(on, Relaxed);
    }

    /// Tells which share of its limit a budget uses (V5). Call it now and then. O(databases).
    pub fn note_fullness(&self, budget: usize, part: f64) {
        let budget = &self.evict.budgets[budget];
        let held = self.evictable(budget);
        let full = part >= FULL;
        let entries = match budget.entries.load(Relaxed) {
            _ if part < SOME => 0,
            _ if !full => (held as f64 / part) as usize,
            0 => held,
            so_far => (7 * so_far + held + 4) / 8,
        };
        budget.entries.store(entries, Relaxed);
        let below = match entries {
            n if n == 0 || !full => 0,
            n if n <= minis::ENTRIES => u64::MAX,
            n => u64::MAX / n as u64 * minis::ENTRIES as u64,
        };
        budget.below.store(if budget.policy().is_adaptive() { below } else { 0 }, Relaxed);
    }

    /// Whether a budget has keys that may be evicted. O(databases).
    pub fn has_victims(&self, budget: usize) -> bool {
        self.evictable(&self.evict.budgets[budget]) > 0
    }

    /// [`Keyspace::entry_bytes`] of a budget. O(databases).
    pub fn budget_bytes(&self, budget: usize) -> (u64, u64) {
        let databases = self.evict.budgets[budget].databases.clone();
        databases.map(|db| self.entry_bytes(db)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }

    /// Sets whether the policy's name promises use counts, and not idle times.
    pub fn set_lfu(&self, lfu: bool) {
        self.evict.lfu.store(lfu, Relaxed);
    }

    pub(crate) fn is_lfu(&self) -> bool {
        self.evict.lfu.load(Relaxed)
    }

    /// Keys of a budget that may be evicted.
    fn evictable(&self, budget: &Budget) -> usize {
        budget.databases.clone().map(|db| self.evictable_in(budget, db)).sum()
    }

    fn evictable_in(&self, budget: &Budget, db: usize) -> usize {
        match budget.policy() {
            Policy::None => 0,
            policy if policy.is_volatile() => self.expires(db),
            _ => self.len(db),
        }
    }

    /// Gives accesses noted by this thread to the mini-caches, a few at a time. True if some are left. Never
    /// waits: accesses are lost while another thread has the mini-caches. About 400 ns per access.
    pub fn feed_accesses(&self) -> bool {
        const BATCH: usize = 64;
        ACCESSES.with_borrow_mut(|ring| {
            if ring.is_empty() {
                return false;
            }
            let rest = ring.len().saturating_sub(BATCH);
            for (number, hash) in ring.drain(rest..) {
                let Some(budget) = self.evict.budgets.get(number) else { continue };
                let Some(mut minis) = budget.minis.try_lock() else { continue };
                let candidate = minis.get_or_insert_default().access(hash, budget.entries.load(Relaxed));
                drop(minis);
                budget.candidate.store(candidate, Relaxed);
            }
            rest > 0
        })
    }

    /// Notes an entry under a new key.
    pub(crate) fn note_insert(&self, db: usize, hash: u64, spot: Spot, access: u8, shard: &mut Shard) {
        let number = self.evict.number(db);
        let budget = &self.evict.budgets[number];
        let buckets = budget.buckets();
        shard.dbs[db].note_insert(spot, hash, budget.time(), buckets);
        if buckets.is_none() {
            let mut ghosts = budget.ghosts.lock();
            if !ghosts.is_empty()
                && let Some(freq) = ghosts.take(hash)
            {
                spot.set_mark(policy::fresh(freq + 1));
            }
        }
        budget.insertion(access);
        self.evict.accessed(number, hash);
    }

    /// Notes a key that was removed though it is in use, with its use count. Its return counts as no further
    /// use.
    pub(crate) fn note_return(&self, db: usize, hash: u64, freq: u8, shard: &mut Shard) {
        let budget = &self.evict.budgets[self.evict.number(db)];
        self.remember(budget, db, hash, freq.saturating_sub(1), shard);
    }

    /// Makes a ghost (V4).
    fn remember(&self, budget: &Budget, db: usize, hash: u64, freq: u8, shard: &mut Shard) {
        match budget.buckets() {
            Some(buckets) => shard.dbs[db].put_ghost(hash, freq, buckets),
            None => budget.ghosts.lock().put(hash, freq, 2 * budget.entries.load(Relaxed)),
        }
    }

    /// Removes one key of a budget. `told` gets what must be told, after the lock is released.
    pub fn evict(&self, budget: usize, now_ms: u64, told: &mut dyn FnMut(Changes)) -> Evicted {
        let budget = &self.evict.budgets[budget];
        let policy = budget.policy();
        let random = budget.random();
        let Some(db) = self.choose(budget, random) else { return Evicted::Nothing };
        let now = crate::view::access_tick(now_ms);
        let want = match policy {
            Policy::VolatileTtl => budget.samples.load(Relaxed),
            policy if policy.is_adaptive() => SAMPLE,
            _ => 1,
        };
        let rival = self.rival(budget, db);
        let parts = 1 + usize::from(rival.is_some());
        let find = Find {
            ranks: policy.is_adaptive().then(|| &RANKS[budget.candidate.load(Relaxed)]),
            expiring: policy.is_volatile(),
            soonest: policy == Policy::VolatileTtl,
            want: want.div_ceil(parts),
            segments: SEGMENTS / parts,
            time: budget.time(),
            idle: &|access| now.wrapping_sub(access).min(15),
        };
        let of_rival = |db| self.search(db, random, find).map(|(shard, found, _)| (db, shard, found));
        let rival = rival.and_then(of_rival);
        let (db, shard, found) = match (self.search(db, random, find), rival) {
            (Some((shard, found, guard)), rival)
                if rival.as_ref().is_none_or(|(_, _, rival)| found.rank <= rival.rank) =>
            {
                // The usual case: the lock is still held.
                if let Some(guard) = guard {
                    return self.evict_found(budget, View::holding(self, guard, db, now_ms), found, told);
                }
                (db, shard, found)
            }
            (_, Some(rival)) => rival,
            _ => return Evicted::Missed,
        };
        let view = View::locked(self, Bits::one(shard), db, now_ms);
        self.evict_found(budget, view, found, told)
    }

    /// The lowest-ranked entry of a sample of a database.
    fn search(&self, db: usize, random: u64, mut find: Find<'_>) -> Option<Seen<'_>> {
        let mut best: Option<(usize, Found)> = None;
        for i in 0..SHARDS {
            let shard = (random as usize + i) % SHARDS;
            let mut guard = self.shards.lock_one(shard);
            let directory = &mut guard.get_mut(shard).dbs[db];
            if directory.len() == 0 || find.expiring && directory.expires() == 0 {
                continue;
            }
            let (seen, looked, found) = directory.find_victim(random.rotate_left(i as u32 % 61), &find);
            if let Some(found) = found
                && best.as_ref().is_none_or(|(_, best)| found.rank < best.rank)
            {
                best = Some((shard, found));
            }
            find.want = find.want.saturating_sub(seen);
            find.segments = find.segments.saturating_sub(looked);
            if find.want == 0 || find.segments == 0 || i + 1 == SHARDS {
                return best.map(|(at, found)| (at, found, (at == shard).then_some(guard)));
            }
        }
        best.map(|(at, found)| (at, found, None))
    }

    /// The other database of a hidden budget, if it has something to evict (V7).
    fn rival(&self, budget: &Budget, db: usize) -> Option<usize> {
        let mut others = budget.databases.clone().filter(|other| *other != db && *other >= self.visible);
        others.find(|other| self.evictable_in(budget, *other) > 0)
    }

    /// A random database of a budget, in proportion to its evictable keys.
    fn choose(&self, budget: &Budget, random: u64) -> Option<usize> {
        let all = self.evictable(budget);
        if all == 0 {
            return None;
        }
        let mut nth = (random >> 8) as usize % all;
        for db in budget.databases.clone() {
            let here = self.evictable_in(budget, db);
            if nth < here {
                return Some(db);
            }
            nth -= here;
        }
        // Some keys went meanwhile.
        budget.databases.clone().find(|db| self.evictable_in(budget, *db) > 0)
    }

    fn evict_found(
        &self,
        budget: &Budget,
        mut view: View<'_>,
        found: Found,
        told: &mut dyn FnMut(Changes),
    ) -> Evicted {
        let (hash, freq, db) = (hash_bytes(&found.key), policy::freq(found.byte).min(14), view.db());
        let freed = view.evict(hash, &found.key, budget.policy().is_volatile());
        if freed.is_some()
            && budget.policy().is_adaptive()
            && let Some(shard) = view.shard_mut(shard_of(hash))
        {
            self.remember(budget, db, hash, freq, shard);
        }
        told(view.finish());
        let Some(bytes) = freed else { return Evicted::Missed };
        self.counts[db].evicted.fetch_add(1, Relaxed);
        Evicted::Freed(bytes)
    }
}
