//! Memory in use, the decision which client may have more, and the debt of evictions.
//!
//! ```text
//!   the allocator's figures ─► rest ─┐
//!   (every few ms, the background thread)        ├─► used ─► above the limit?  a write evicts up to 16 keys, loops go on
//!   bytes of entries (each write) ───┘           far above it?      a writer waits for them
//!                                                no victim?         OOM
//! ```
//!
//! - R1: `used` is the memory that allocator and segments have handed out, less three parts: garbage that
//!   waits for the reclaimer, values that only snapshots or streamed replies keep alive, and memory of work
//!   beside the data (`work-max-memory`). Between two looks at the allocator only the bytes of entries are
//!   counted.
//! - R2: the space of tables, dead entries and half-full pages enters `used` as a slow mean while keys are
//!   evicted. Taken as it is, a page half emptied by an eviction would call for the next eviction.
//! - R3: a writer pays for memory with at most `payer::AT_ONCE` evictions. The rest is the loops' debt, paid in
//!   slices of `payer::SLICE_NS`. A writer far above the limit pays in slices too, and runs only then.
//! - R4: each source also has a budget of its own, for its hidden databases. When the whole is short, budgets
//!   give in proportion to what they hold; so the policy's time of each also depends on how full the whole
//!   is.
//!
//! Cost: one load when nothing is limited; else O(databases in use) for a write below the limit.

#![forbid(unsafe_code)]

mod payer;

pub use payer::{Payer, Verdict, Waited};

use config::Live;
use keyspace::{Keyspace, Policy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use stdx::budget::{Budget, Holding};

/// Milliseconds between two looks at the allocator, while something may take memory; then, while all only
/// read.
const LOOK_MS: u64 = 4;
const LOOK_IDLE_MS: u64 = 100;
/// Weight of the mean of what segments take beside entries, in looks at the allocator.
const SMOOTH: i64 = 64;

/// Limits, figures and debt of memory. See the module.
pub struct Memory {
    /// 0: none.
    limit: AtomicU64,
    /// There is some limit: of the whole, or of a source.
    limited: AtomicBool,
    /// Limits of the sources' budgets.
    limits: Box<[AtomicU64]>,
    /// Some budget is over its limit and has something to evict.
    owes: AtomicBool,
    /// Bytes in use beside entries and segments; negative while values share content.
    rest: AtomicI64,
    /// Bytes of segments beside rooms of entries (R2), and the bytes of rooms at that time.
    excess: AtomicI64,
    rooms: AtomicU64,
    evicted: AtomicU64,
    looked_ms: AtomicU64,
    looking: AtomicBool,
    /// Connections whose requests wait for memory.
    pub thirsty: AtomicUsize,
    /// Memory may have been taken since the last look.
    stirred: AtomicBool,
    /// Since when the limit is exceeded (milliseconds since 1970); 0: it is not.
    over_since_ms: AtomicU64,
    over_ms: AtomicU64,
    lfu: AtomicBool,
    /// The budget of what scripts, transactions and long commands hold beside the data (`work-max-memory`).
    pub work: Arc<Budget>,
}

/// The decision about a long request that is being received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incoming {
    /// Memory is held for the request.
    Held,
    /// There is no memory now; there may be later.
    Waits,
    /// The request can never fit.
    Never,
}

/// The data that limits are kept for, at a time.
#[derive(Clone, Copy)]
pub struct Data<'a> {
    pub keyspace: &'a Keyspace,
    /// Whether any key is a row of a source.
    pub sources: bool,
    /// Milliseconds since 1970.
    pub now_ms: u64,
}

impl Memory {
    /// Makes budgets for so many sources.
    pub fn new(sources: usize) -> Memory {
        Memory {
            limit: AtomicU64::new(0),
            limited: AtomicBool::new(false),
            limits: (0..sources).map(|_| AtomicU64::new(0)).collect(),
            owes: AtomicBool::new(false),
            rest: AtomicI64::new(0),
            excess: AtomicI64::new(0),
            rooms: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            looked_ms: AtomicU64::new(0),
            looking: AtomicBool::new(false),
            thirsty: AtomicUsize::new(0),
            stirred: AtomicBool::new(false),
            over_since_ms: AtomicU64::new(0),
            over_ms: AtomicU64::new(0),
            lfu: AtomicBool::new(false),
            work: Arc::default(),
        }
    }

    /// Applies the configuration.
    pub fn configure(&self, keyspace: &Keyspace, live: &Live) {
        let limit = live.maxmemory_bytes.size() as u64;
        let (mut policy, lfu) = policy_of(live.maxmemory_policy.get());
        if keyspace.imports() || limit == 0 && !lfu {
            policy = Policy::None;
        }
        keyspace.set_eviction(0, policy, live.maxmemory_samples.size());
        keyspace.set_lfu(lfu);
        self.lfu.store(lfu, Relaxed);
        self.limit.store(limit, Relaxed);
        self.looked_ms.store(0, Relaxed);
        self.note_limited();
    }

    /// Sets the limit of long work: the directive's, or a quarter of `maxmemory` or of the machine's memory.
    pub fn limit_work(&self, live: &Live, machine_bytes: u64) {
        let limit = match (live.work_max_bytes.size() as u64, live.maxmemory_bytes.size() as u64) {
            (0, 0) => machine_bytes / 4,
            (0, max) => max / 4,
            (bytes, _) => bytes,
        };
        self.work.set_limit(limit);
    }

    /// Limits the bytes of a source's entries; 0 is no limit.
    pub fn limit_source(&self, keyspace: &Keyspace, source: usize, bytes: u64) {
        self.limits[source].store(bytes, Relaxed);
        keyspace.set_eviction(1 + source, Policy::Adaptive, 0);
        // Figures of the source that had this place before no longer count.
        keyspace.note_fullness(1 + source, 0.0);
        self.note_limited();
    }

    fn note_limited(&self) {
        let sources = self.limits.iter().any(|limit| limit.load(Relaxed) > 0);
        self.limited.store(self.limit.load(Relaxed) > 0 || sources || self.lfu.load(Relaxed), Relaxed);
    }

    /// Whether anything is limited. Cost: one load.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.limited.load(Relaxed)
    }

    /// Holds memory for a request of so many bytes: from the budget of work, or from what the data leave free
    /// below `maxmemory`. Without `maxmemory` nothing is held. Cost: O(databases in use).
    pub fn hold_request(&self, keyspace: &Keyspace, holding: &mut Holding, bytes: u64) -> Incoming {
        let limit = self.limit.load(Relaxed);
        if limit == 0 {
            holding.take();
            return Incoming::Held;
        }
        if bytes <= limit && holding.try_set(&self.work, bytes).is_ok() {
            return Incoming::Held;
        }
        let (used, others) = (self.used(keyspace), self.work.used().saturating_sub(holding.held()));
        let fits = |with: u64| used.saturating_add(with).saturating_add(bytes) <= limit;
        match () {
            () if fits(others) => {
                holding.force(&self.work, bytes);
                Incoming::Held
            }
            // The request waits for other work to end, not for evictions.
            () if bytes <= limit && (bytes <= self.work.limit() || fits(0)) => Incoming::Waits,
            () => Incoming::Never,
        }
    }

    /// Bytes of work that are no reason to evict. Work above its limit stands in room that the data left
    /// free.
    fn apart(&self) -> u64 {
        match self.work.limit() {
            0 => self.work.used(),
            limit => self.work.used().min(limit + limit / 4),
        }
    }

    /// Notes that memory is about to be taken, so that the allocator is asked soon. O(1).
    #[inline]
    pub fn stir(&self) {
        if !self.stirred.load(Relaxed) {
            self.stirred.store(true, Relaxed);
        }
    }

    /// Whether a loop should go on evicting. Without a limit there is no debt.
    pub fn owes(&self) -> bool {
        self.owes.load(Relaxed) && self.is_limited()
    }

    /// Bytes that some entries take of a budget: their own, and their part of the segments' excess. A few
    /// entries have a segment each; their part is not more than their own bytes.
    fn weigh(&self, (rooms, outside): (u64, u64)) -> u64 {
        let (excess, all) = (self.excess.load(Relaxed).max(0), self.rooms.load(Relaxed).max(1));
        let part = (u128::from(rooms) * excess as u128 / u128::from(all)) as u64;
        rooms + part.min(rooms) + outside
    }

    /// Bytes that allocator and segments have handed out, with what waits to be freed or is kept for others
    /// (R1). Exact right after a look at the allocator; later only entries are counted. O(databases in use).
    pub fn handed_out(&self, keyspace: &Keyspace, streamed: u64) -> u64 {
        let outside = keyspace.all_entry_bytes().1 + Keyspace::segment_bytes() as u64;
        let waiting = stdx::reclaim::pending_bytes() + keyspace.retained().0 + streamed + self.apart();
        (self.rest.load(Relaxed) + (outside + waiting) as i64).max(0) as u64
    }

    /// Bytes in use (R1).
    fn used(&self, keyspace: &Keyspace) -> u64 {
        let (rooms, outside) = keyspace.all_entry_bytes();
        // Segments that are given back count at once.
        let segments = (rooms as i64 + self.excess.load(Relaxed)).min(Keyspace::segment_bytes() as i64);
        (self.rest.load(Relaxed) + segments + outside as i64).max(0) as u64
    }

    /// Updates the mean excess of segments (R2).
    fn note_segments(&self, keyspace: &Keyspace, rooms: u64) {
        let now = (Keyspace::segment_bytes() as i64 - rooms as i64).max(0);
        let evicted = keyspace.stats.evicted_keys.load(Relaxed);
        let so_far = self.excess.load(Relaxed);
        let smooth = self.evicted.swap(evicted, Relaxed) != evicted && so_far > 0 && now > so_far;
        let excess = if smooth { so_far + (now - so_far) / SMOOTH } else { now };
        self.excess.store(excess, Relaxed);
        self.rooms.store(rooms, Relaxed);
    }

    /// Milliseconds for which the limit is exceeded now, and was in all.
    pub fn exceeded_ms(&self, now_ms: u64) -> (u64, u64) {
        let now = match self.over_since_ms.load(Relaxed) {
            0 => 0,
            since => now_ms.saturating_sub(since),
        };
        (now, self.over_ms.load(Relaxed) + now)
    }

    /// CONFIG RESETSTAT: resets the figures.
    pub fn reset_stat(&self, now_ms: u64) {
        self.over_ms.store(0, Relaxed);
        if self.over_since_ms.load(Relaxed) != 0 {
            self.over_since_ms.store(now_ms, Relaxed);
        }
    }

    fn note_over(&self, over: bool, now_ms: u64) {
        let since = self.over_since_ms.load(Relaxed);
        if over && since == 0 {
            self.over_since_ms.store(now_ms.max(1), Relaxed);
        } else if !over && since != 0 && self.over_since_ms.swap(0, Relaxed) == since {
            self.over_ms.fetch_add(now_ms.saturating_sub(since), Relaxed);
        }
    }

    /// Begins a look at the allocator, if one is due. True: the caller has [`Memory::look`] called aside and
    /// then calls [`Memory::end_look`]. Cost: O(1), or O(snapshots) when it is due.
    pub fn begin_look(&self, keyspace: &Keyspace, now_ms: u64) -> bool {
        let looked = self.looked_ms.load(Relaxed);
        let pause = if self.stirred.load(Relaxed) || self.owes() { LOOK_MS } else { LOOK_IDLE_MS };
        let due = now_ms >= looked + pause || now_ms < looked;
        let begins = due
            && self.looked_ms.compare_exchange(looked, now_ms, Relaxed, Relaxed).is_ok()
            && !self.looking.swap(true, Relaxed);
        if begins {
            if keyspace.active_snapshots() > 0 {
                // The bytes kept for snapshots must be as fresh as the bytes evicted.
                keyspace.prune();
            }
            self.stirred.store(false, Relaxed);
        }
        begins
    }

    /// Ends a look, so that the next one may begin.
    pub fn end_look(&self) {
        self.looking.store(false, Relaxed);
    }

    /// Asks the allocator (R1, R2). `allocated` gives the bytes it has handed out, `streamed` those that only
    /// streamed replies hold. Gives the bytes that allocator and segments have. Takes tens to hundreds of
    /// microseconds: not for a loop.
    pub fn look(&self, data: Data<'_>, streamed: impl Fn() -> u64, allocated: impl FnOnce() -> u64) -> u64 {
        let Data { keyspace, now_ms, .. } = data;
        // The figures are not of one moment, and this thread may wait between them. So each is taken before and
        // after, and the larger one counts. Memory in use may seem too little until the next look, never too
        // much: nothing is evicted for what is gone.
        let apart = || {
            let pinned = keyspace.retained().0 + streamed();
            // Small segments come from the allocator, but are counted as segments.
            let outside = keyspace.all_entry_bytes().1 as i64 + Keyspace::little_bytes() as i64;
            (outside, (stdx::reclaim::pending_bytes() + pinned + self.apart()) as i64)
        };
        let before = apart();
        let allocated = allocated() as i64;
        let after = apart();
        let (outside, waiting) = (before.0.max(after.0), before.1.max(after.1));
        let (rooms, _) = keyspace.all_entry_bytes();
        if !keyspace.is_flushing() {
            self.note_segments(keyspace, rooms);
        }
        self.rest.store(allocated - outside - waiting, Relaxed);

        let limit = self.limit.load(Relaxed);
        let used = self.used(keyspace);
        // Without a limit the present keys count as full, if the frequency of their use is wanted.
        let unlimited = if self.lfu.load(Relaxed) { 1.0 } else { 0.0 };
        keyspace.note_fullness(0, if limit > 0 { used as f64 / limit as f64 } else { unlimited });
        self.note_over(limit > 0 && used > limit, now_ms);
        let mut owes = limit > 0 && used > limit && self.choose(data).is_some();
        for source in 0..self.limits.len() {
            keyspace.note_fullness(1 + source, self.fullness(keyspace, source));
            let limit = self.limits[source].load(Relaxed);
            owes |= limit > 0 && self.used_by(keyspace, source) > limit;
        }
        if owes && self.is_limited() {
            self.owes.store(true, Relaxed);
        }
        allocated as u64 + Keyspace::pool_bytes() as u64
    }

    /// Bytes of a source's entries.
    fn used_by(&self, keyspace: &Keyspace, source: usize) -> u64 {
        self.weigh(keyspace.budget_bytes(1 + source))
    }

    /// The part of its room that a source has filled, by its own limit or the whole's, whichever is nearer. 0
    /// without limits. O(databases in use).
    pub fn fullness(&self, keyspace: &Keyspace, source: usize) -> f64 {
        let part = |limit: &AtomicU64, used: &dyn Fn() -> u64| match limit.load(Relaxed) {
            0 => 0.0,
            limit => used() as f64 / limit as f64,
        };
        let own = part(&self.limits[source], &|| self.used_by(keyspace, source));
        own.max(part(&self.limit, &|| self.used(keyspace)))
    }

    /// Chooses a budget that has something to evict, in proportion to what it holds (R4).
    fn choose(&self, data: Data<'_>) -> Option<usize> {
        let Data { keyspace, sources, .. } = data;
        let weight = |budget| match keyspace.has_victims(budget) {
            true => self.weigh(keyspace.budget_bytes(budget)).max(1),
            false => 0,
        };
        let budgets = 0..=self.limits.len();
        if !sources {
            return (weight(0) > 0).then_some(0);
        }
        let all: u64 = budgets.clone().map(weight).sum();
        let mut nth = stdx::hash::hash_u64(stdx::clock::mono_ns()) % all.max(1);
        for budget in budgets.clone() {
            let here = weight(budget);
            if nth < here {
                return Some(budget);
            }
            nth -= here;
        }
        budgets.into_iter().find(|budget| weight(*budget) > 0)
    }
}

/// The policy of a choice of `maxmemory-policy`, and whether it is an LFU one.
fn policy_of(choice: i64) -> (Policy, bool) {
    match choice {
        0 => (Policy::VolatileAdaptive, false),
        1 => (Policy::VolatileAdaptive, true),
        2 => (Policy::VolatileRandom, false),
        3 => (Policy::VolatileTtl, false),
        4 => (Policy::Adaptive, false),
        5 => (Policy::Adaptive, true),
        6 => (Policy::Random, false),
        _ => (Policy::None, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_policy_has_its_meaning() {
        let live = Live::default();
        let memory = Memory::new(0);
        let keyspace = Keyspace::new(1);
        for (choice, expected) in [(5, true), (1, true), (4, false), (7, false)] {
            live.maxmemory_policy.set(choice);
            memory.configure(&keyspace, &live);
            assert_eq!(memory.is_limited(), expected, "without a limit only what OBJECT FREQ shows matters");
        }
        live.maxmemory_bytes.set(1 << 20);
        memory.configure(&keyspace, &live);
        assert!(memory.is_limited());
    }

    #[test]
    fn nothing_is_owed_to_a_limit_that_is_gone() {
        let (live, memory, keyspace) = (Live::default(), Memory::new(0), Keyspace::new(1));
        live.maxmemory_bytes.set(1 << 20);
        memory.configure(&keyspace, &live);
        memory.owes.store(true, Relaxed);
        assert!(memory.owes());
        live.maxmemory_bytes.set(0);
        memory.configure(&keyspace, &live);
        assert!(!memory.owes(), "loops would never sleep again");
    }

    /// Long requests take from the budget of work, else from what the data leave free; else they wait or are
    /// refused.
    #[test]
    fn a_long_request_takes_what_is_free_and_waits_for_what_others_hold() {
        let (live, memory, keyspace) = (Live::default(), Memory::new(0), Keyspace::new(1));
        const MB: u64 = 1 << 20;
        let hold = |holding: &mut Holding, mb: u64| memory.hold_request(&keyspace, holding, mb * MB);
        let mut first = Holding::default();
        assert_eq!(hold(&mut first, 5000), Incoming::Held, "without maxmemory nothing is counted");
        assert_eq!(memory.work.used(), 0);
        live.maxmemory_bytes.set(300 * MB as i64);
        memory.configure(&keyspace, &live);
        memory.limit_work(&live, 0);
        assert_eq!(memory.work.limit(), 75 * MB);
        assert_eq!(hold(&mut first, 301), Incoming::Never);
        assert_eq!(hold(&mut first, 50), Incoming::Held);
        let before = memory.rest.load(Relaxed);
        // The data take most of the memory.
        memory.rest.store(before + 280 * MB as i64, Relaxed);
        let mut second = Holding::default();
        assert_eq!(hold(&mut second, 50), Incoming::Waits);
        assert_eq!(hold(&mut second, 1), Incoming::Held, "everybody has a part");
        assert_eq!(hold(&mut second, 80), Incoming::Never);
        first.take();
        assert_eq!(hold(&mut second, 50), Incoming::Held);
        // The data take little.
        memory.rest.store(before, Relaxed);
        assert_eq!(hold(&mut first, 200), Incoming::Held);
        assert_eq!(hold(&mut second, 150), Incoming::Waits);
        assert_eq!(memory.work.refused(), 0, "who waits has not failed");
        first.take();
        assert_eq!(hold(&mut second, 150), Incoming::Held);
        assert!(memory.apart() <= 94 * MB, "the rest counts as used");
        second.take();
        assert_eq!(memory.work.used(), 0);
    }

    #[test]
    fn time_over_the_limit_is_counted_while_it_lasts_and_after() {
        let memory = Memory::new(0);
        memory.note_over(true, 1000);
        memory.note_over(true, 1400);
        assert_eq!(memory.exceeded_ms(1500), (500, 500));
        memory.note_over(false, 1600);
        memory.note_over(false, 1700);
        assert_eq!(memory.exceeded_ms(2000), (0, 600));
        memory.note_over(true, 3000);
        memory.reset_stat(3500);
        assert_eq!(memory.exceeded_ms(3600), (100, 100));
    }

    #[test]
    fn entries_weigh_what_they_take_with_their_share_of_pages() {
        let memory = Memory::new(0);
        assert_eq!(memory.weigh((1000, 500)), 1500);
        memory.excess.store(1000, Relaxed);
        memory.rooms.store(4000, Relaxed);
        assert_eq!(memory.weigh((1000, 500)), 1750);
        memory.excess.store(1 << 20, Relaxed);
        assert_eq!(memory.weigh((1000, 500)), 2500);
    }
}
