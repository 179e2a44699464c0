//! Memory in use, the decision which client may have more, and the debt of evictions.
//!
//! ```text
//!   the allocator's figures ─► rest ─┐
//!   (every few ms, the clerk)        ├─► used ─► above the limit?  a write evicts up to 16 keys, loops go on
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
//! - R3: a writer pays for memory with at most [`AT_ONCE`] evictions. The rest is the loops' debt, paid in
//!   slices of [`SLICE_NS`]. A writer far above the limit pays in slices too, and runs only then.
//! - R4: each source also has a budget of its own, for its hidden databases. When the whole is short, budgets
//!   give in proportion to what they hold; so the policy's time of each also depends on how full the whole
//!   is.
//!
//! Cost: one load when nothing is limited; else O(databases in use) for a write below the limit.

use crate::{Local, Server, Session};
pub(crate) use command::OOM;
use command::{Command, table};
use config::Live;
use keyspace::{Changes, Evicted, Keyspace, Policy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use stdx::budget::{Budget, Holding};

/// Evictions that one write pays for.
const AT_ONCE: usize = 16;
/// Longest slice of evictions, in nanoseconds.
const SLICE_NS: u64 = 50_000;
/// Milliseconds between two looks at the allocator, while something may take memory; then, while all only
/// read.
const LOOK_MS: u64 = 4;
const LOOK_IDLE_MS: u64 = 100;
/// Weight of the mean of what segments take beside entries, in looks at the allocator.
const SMOOTH: i64 = 64;
/// One in so many writes reports the fullness to the policy.
const NOTED: u32 = 32;
/// Longest wait of a writer without any eviction, in milliseconds.
const PATIENCE_MS: u64 = 500;

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

/// The decision about a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Run,
    /// Memory is short, and nothing can be evicted.
    Short,
    /// The command is run again when more is evicted.
    Wait,
}

impl Memory {
    /// Makes budgets for so many sources.
    pub(crate) fn new(sources: usize) -> Memory {
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
    pub(crate) fn configure(&self, keyspace: &Keyspace, live: &Live) {
        let limit = live.maxmemory_bytes.size() as u64;
        let (mut policy, lfu) = policy_of(live.maxmemory_policy.get());
        if limit == 0 && !lfu {
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
    pub(crate) fn limit_work(&self, live: &Live, machine_bytes: u64) {
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

    /// Whether the client's command began while memory was short and nothing could be evicted. The session's
    /// note is of the last command that was checked, and without a limit no command is checked.
    pub(crate) fn is_short(&self, session: &Session) -> bool {
        session.short && self.is_limited()
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
    pub(crate) fn handed_out(&self, keyspace: &Keyspace, streamed: u64) -> u64 {
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
    pub(crate) fn exceeded_ms(&self, now_ms: u64) -> (u64, u64) {
        let now = match self.over_since_ms.load(Relaxed) {
            0 => 0,
            since => now_ms.saturating_sub(since),
        };
        (now, self.over_ms.load(Relaxed) + now)
    }

    /// CONFIG RESETSTAT: resets the figures.
    pub(crate) fn reset_stat(&self, now_ms: u64) {
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

/// Checks memory before a command that may need some: evicts if necessary (R3).
#[cold]
pub(crate) fn admit(server: &Server, local: &mut Local, session: &Session) -> Verdict {
    let memory = &server.memory;
    let limit = memory.limit.load(Relaxed);
    let waiting = session.short_since.take();
    if limit == 0 || server.work.pause.stops_writes(local.log.now_ms) {
        return Verdict::Run;
    }
    memory.stir();
    let used = memory.used(&server.keyspace);
    local.asked = local.asked.wrapping_add(1);
    if local.asked.is_multiple_of(NOTED) {
        // The policy's time must go on while keys come, even if the clerk does not get to run.
        server.keyspace.note_fullness(0, used as f64 / limit as f64);
    }
    if used <= limit {
        return Verdict::Run;
    }
    memory.note_over(true, local.log.now_ms);
    let mut told = Vec::new();
    let paid = pay(server, local.log.now_ms, limit, &mut Pace::evictions(AT_ONCE), &mut told);
    let verdict = match paid {
        Paid::Enough => Verdict::Run,
        Paid::Nothing => Verdict::Short,
        Paid::Some => {
            memory.owes.store(true, Relaxed);
            let slack = (limit / 32).clamp(256 << 10, 64 << 20);
            let far = memory.used(&server.keyspace) > limit + slack;
            let evicted = server.keyspace.stats.evicted_keys.load(Relaxed);
            let since =
                waiting.filter(|(_, then)| *then == evicted).map_or(local.log.now_ms, |(since, _)| since);
            match far {
                false => Verdict::Run,
                true if local.log.now_ms - since > PATIENCE_MS => Verdict::Short,
                true => {
                    pay(server, local.log.now_ms, limit, &mut Pace::slice(), &mut told);
                    session.short_since.set(Some((since, evicted)));
                    Verdict::Wait
                }
            }
        }
    };
    told.into_iter().for_each(|changes| server.after(local, changes));
    verdict
}

/// Whether a command is refused while memory is short.
pub(crate) fn is_denied(session: &Session, command: &Command) -> bool {
    match &session.multi {
        Some(multi) if command.is(command::facts::RUNS_QUEUE) => multi.queue.is_denied_oom(),
        _ => command.has(table::DENYOOM),
    }
}

/// Looks after memory, once per turn of a loop while something is limited. Has the allocator asked if that is
/// due, feeds the policy, and pays a slice of the debt.
pub fn tend(server: &Arc<Server>, local: &mut Local) {
    let memory = &server.memory;
    server.keyspace.feed_accesses();
    let looked = memory.looked_ms.load(Relaxed);
    let pause = if memory.stirred.load(Relaxed) || memory.owes() { LOOK_MS } else { LOOK_IDLE_MS };
    let due = local.log.now_ms >= looked + pause || local.log.now_ms < looked;
    if due
        && memory.looked_ms.compare_exchange(looked, local.log.now_ms, Relaxed, Relaxed).is_ok()
        && !memory.looking.swap(true, Relaxed)
    {
        if server.keyspace.active_snapshots() > 0 {
            // The bytes kept for snapshots must be as fresh as the bytes evicted.
            server.keyspace.prune();
        }
        memory.stirred.store(false, Relaxed);
        let (errand, now_ms) = (server.clone(), local.log.now_ms);
        // The allocator asks its arenas one by one, and a lock's holder may be preempted: no loop waits for
        // that.
        let sent = server.observe.clerk.send(move || {
            look(&errand, now_ms);
            errand.memory.looking.store(false, Relaxed);
        });
        if !sent {
            memory.looking.store(false, Relaxed);
        }
    }
    if memory.owes() {
        let mut told = Vec::new();
        pay_all(server, local.log.now_ms, &mut told);
        told.into_iter().for_each(|changes| server.after(local, changes));
    }
}

/// Asks the allocator (R1, R2). Gives the bytes that it and the segments have. On the clerk's thread; takes
/// tens to hundreds of microseconds.
pub(crate) fn look(server: &Server, now_ms: u64) -> u64 {
    let (memory, keyspace) = (&server.memory, &server.keyspace);
    // The figures are not of one moment, and this thread may wait between them. So each is taken before and
    // after, and the larger one counts. Memory in use may seem too little until the next look, never too
    // much: nothing is evicted for what is gone.
    let apart = || {
        let pinned = keyspace.retained().0 + server.work.snapshots.streamed();
        // Small segments come from the allocator, but are counted as segments.
        let outside = keyspace.all_entry_bytes().1 as i64 + Keyspace::little_bytes() as i64;
        (outside, (stdx::reclaim::pending_bytes() + pinned + memory.apart()) as i64)
    };
    let before = apart();
    let said = server.allocator();
    server.observe.measured.note_allocator(said);
    let allocated = said.allocated as i64;
    let after = apart();
    let (outside, waiting) = (before.0.max(after.0), before.1.max(after.1));
    let (rooms, _) = keyspace.all_entry_bytes();
    if !keyspace.is_flushing() {
        memory.note_segments(keyspace, rooms);
    }
    memory.rest.store(allocated - outside - waiting, Relaxed);

    let limit = memory.limit.load(Relaxed);
    let used = memory.used(keyspace);
    // Without a limit the present keys count as full, if the frequency of their use is wanted.
    let unlimited = if memory.lfu.load(Relaxed) { 1.0 } else { 0.0 };
    keyspace.note_fullness(0, if limit > 0 { used as f64 / limit as f64 } else { unlimited });
    memory.note_over(limit > 0 && used > limit, now_ms);
    let mut owes = limit > 0 && used > limit && choose(server).is_some();
    for source in 0..memory.limits.len() {
        keyspace.note_fullness(1 + source, fullness(server, source));
        let limit = memory.limits[source].load(Relaxed);
        owes |= limit > 0 && used_by(server, source) > limit;
    }
    if owes && memory.is_limited() {
        memory.owes.store(true, Relaxed);
    }
    allocated as u64 + Keyspace::pool_bytes() as u64
}

/// Bytes of a source's entries.
fn used_by(server: &Server, source: usize) -> u64 {
    let bytes = server.keyspace.budget_bytes(1 + source);
    server.memory.weigh(bytes)
}

/// The part of its room that a source has filled, by its own limit or the whole's, whichever is nearer. 0
/// without limits. O(databases in use).
pub(crate) fn fullness(server: &Server, source: usize) -> f64 {
    let memory = &server.memory;
    let part = |limit: &AtomicU64, used: &dyn Fn() -> u64| match limit.load(Relaxed) {
        0 => 0.0,
        limit => used() as f64 / limit as f64,
    };
    let own = part(&memory.limits[source], &|| used_by(server, source));
    own.max(part(&memory.limit, &|| memory.used(&server.keyspace)))
}

/// The rest of a slice of evictions.
struct Pace {
    left: usize,
    until_ns: Option<u64>,
}

impl Pace {
    fn evictions(left: usize) -> Pace {
        Pace { left, until_ns: None }
    }

    fn slice() -> Pace {
        Pace { left: usize::MAX, until_ns: Some(stdx::clock::mono_ns() + SLICE_NS) }
    }

    /// Takes one eviction. False: the slice is over.
    fn step(&mut self) -> bool {
        if self.left == 0 || self.until_ns.is_some_and(|until| stdx::clock::mono_ns() >= until) {
            return false;
        }
        self.left -= 1;
        true
    }
}

#[derive(PartialEq, Eq)]
enum Paid {
    /// The debt is paid.
    Enough,
    Some,
    /// Nothing can be evicted.
    Nothing,
}

/// Pays a slice for each budget that is over its limit.
fn pay_all(server: &Server, now_ms: u64, told: &mut Vec<Changes>) {
    let (memory, mut pace) = (&server.memory, Pace::slice());
    let mut owes = false;
    for source in 0..memory.limits.len() {
        let limit = memory.limits[source].load(Relaxed);
        while limit > 0 && used_by(server, source) > limit {
            let evicted = if pace.step() { evict(server, 1 + source, now_ms, told) } else { Evicted::Missed };
            owes |= pace.left > 0 && evicted == Evicted::Missed;
            if evicted == Evicted::Nothing || pace.until_ns.is_some_and(|at| stdx::clock::mono_ns() >= at) {
                owes |= evicted != Evicted::Nothing;
                break;
            }
        }
    }
    let limit = memory.limit.load(Relaxed);
    // A source can give its rows again. Other keys must not change while CLIENT PAUSE stops writes.
    if limit > 0 && !server.work.pause.stops_writes(now_ms) {
        let paid = pay(server, now_ms, limit, &mut pace, told);
        owes |= paid == Paid::Some;
        if paid == Paid::Enough {
            memory.note_over(false, now_ms);
        }
    }
    memory.owes.store(owes, Relaxed);
}

/// Evicts from all budgets until memory in use is below the limit, or the slice is over.
fn pay(server: &Server, now_ms: u64, limit: u64, pace: &mut Pace, told: &mut Vec<Changes>) -> Paid {
    while server.memory.used(&server.keyspace) > limit {
        if !pace.step() {
            return Paid::Some;
        }
        let Some(budget) = choose(server) else { return Paid::Nothing };
        evict(server, budget, now_ms, told);
    }
    Paid::Enough
}

/// Chooses a budget that has something to evict, in proportion to what it holds (R4).
fn choose(server: &Server) -> Option<usize> {
    let weight = |budget| match server.keyspace.has_victims(budget) {
        true => server.memory.weigh(server.keyspace.budget_bytes(budget)).max(1),
        false => 0,
    };
    let budgets = 0..=server.memory.limits.len();
    if !server.rows.any() {
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

fn evict(server: &Server, budget: usize, now_ms: u64, told: &mut Vec<Changes>) -> Evicted {
    server.keyspace.evict(budget, now_ms, &mut |changes| {
        if !changes.events.is_empty() {
            told.push(changes);
        }
    })
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
