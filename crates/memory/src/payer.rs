//! Paying for memory: what a writer evicts, whether it waits or is refused, and the loops' slices of the debt
//! (R3).

use crate::{Data, Memory};
use keyspace::{Changes, Evicted};
use std::sync::atomic::Ordering::Relaxed;

/// Evictions that one write pays for.
const AT_ONCE: usize = 16;
/// Longest slice of evictions, in nanoseconds.
const SLICE_NS: u64 = 50_000;
/// One in so many writes reports the fullness to the policy.
const NOTED: u32 = 32;
/// Longest wait of a writer without any eviction, in milliseconds.
const PATIENCE_MS: u64 = 500;

/// The decision about a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Run,
    /// Memory is short, and nothing can be evicted.
    Short,
    /// The command is run again when more is evicted; it then shows what is given here.
    Wait(Waited),
}

/// Since when a writer waits for evictions (milliseconds since 1970), and how many keys were evicted by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waited {
    since_ms: u64,
    evicted: u64,
}

/// Evicts on behalf of a loop, and keeps what others must hear of it.
pub struct Payer<'a> {
    memory: &'a Memory,
    data: Data<'a>,
    told: Vec<Changes>,
}

impl<'a> Payer<'a> {
    pub fn new(memory: &'a Memory, data: Data<'a>) -> Payer<'a> {
        Payer { memory, data, told: Vec::new() }
    }

    /// The changes to be told. The caller tells all of them.
    pub fn into_told(self) -> Vec<Changes> {
        self.told
    }

    /// Checks memory before a command that may need some: evicts if necessary (R3). `asked` counts the loop's
    /// calls; `waited` is from the client's last [`Verdict::Wait`]. Cost: O(databases in use) below the limit,
    /// up to [`AT_ONCE`] evictions above it, and up to [`SLICE_NS`] far above it.
    pub fn admit(&mut self, asked: &mut u32, waited: Option<Waited>) -> Verdict {
        let (memory, Data { keyspace, now_ms, .. }) = (self.memory, self.data);
        let limit = memory.limit.load(Relaxed);
        if limit == 0 {
            return Verdict::Run;
        }
        memory.stir();
        let used = memory.used(keyspace);
        *asked = asked.wrapping_add(1);
        if asked.is_multiple_of(NOTED) {
            // The policy's time must go on while keys come, even if the background thread does not get to run.
            keyspace.note_fullness(0, used as f64 / limit as f64);
        }
        if used <= limit {
            return Verdict::Run;
        }
        memory.note_over(true, now_ms);
        match self.pay(limit, &mut Pace::evictions(AT_ONCE)) {
            Paid::Enough => Verdict::Run,
            Paid::Nothing => Verdict::Short,
            Paid::Some => self.owe(limit, waited),
        }
    }

    /// Decides about a writer that has paid and left a debt.
    fn owe(&mut self, limit: u64, waited: Option<Waited>) -> Verdict {
        let (memory, Data { keyspace, now_ms, .. }) = (self.memory, self.data);
        memory.owes.store(true, Relaxed);
        let slack = (limit / 32).clamp(256 << 10, 64 << 20);
        let far = memory.used(keyspace) > limit + slack;
        let evicted = keyspace.stats.evicted_keys.load(Relaxed);
        let since_ms = waited.filter(|then| then.evicted == evicted).map_or(now_ms, |then| then.since_ms);
        match far {
            false => Verdict::Run,
            true if now_ms.abs_diff(since_ms) > PATIENCE_MS => Verdict::Short,
            true => {
                self.pay(limit, &mut Pace::slice());
                Verdict::Wait(Waited { since_ms, evicted })
            }
        }
    }

    /// Pays a slice of the debt, for each budget that is over its limit. `is_paused`: whether CLIENT PAUSE
    /// stops writes. Cost: up to [`SLICE_NS`].
    pub fn pay_all(&mut self, is_paused: impl FnOnce() -> bool) {
        let (memory, mut pace) = (self.memory, Pace::slice());
        let mut owes = false;
        for source in 0..memory.limits.len() {
            let limit = memory.limits[source].load(Relaxed);
            while limit > 0 && memory.used_by(self.data.keyspace, source) > limit {
                let evicted = if pace.step() { self.evict(1 + source) } else { Evicted::Missed };
                owes |= pace.left > 0 && evicted == Evicted::Missed;
                if evicted == Evicted::Nothing || pace.until_ns.is_some_and(|at| stdx::clock::mono_ns() >= at)
                {
                    owes |= evicted != Evicted::Nothing;
                    break;
                }
            }
        }
        let limit = memory.limit.load(Relaxed);
        // A source can give its rows again. Other keys must not change while CLIENT PAUSE stops writes.
        if limit > 0 && !is_paused() {
            let paid = self.pay(limit, &mut pace);
            owes |= paid == Paid::Some;
            if paid == Paid::Enough {
                memory.note_over(false, self.data.now_ms);
            }
        }
        memory.owes.store(owes, Relaxed);
    }

    /// Evicts from all budgets until memory in use is below the limit, or the slice is over.
    fn pay(&mut self, limit: u64, pace: &mut Pace) -> Paid {
        while self.memory.used(self.data.keyspace) > limit {
            if !pace.step() {
                return Paid::Some;
            }
            let Some(budget) = self.memory.choose(self.data) else { return Paid::Nothing };
            self.evict(budget);
        }
        Paid::Enough
    }

    fn evict(&mut self, budget: usize) -> Evicted {
        self.data.keyspace.evict(budget, self.data.now_ms, &mut |changes| {
            if !changes.is_quiet() {
                self.told.push(changes);
            }
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use config::Live;
    use keyspace::{Class, Keyspace, View};

    const NOW: u64 = 1 << 40;

    /// A keyspace of 200 keys with 1 KB each, and a limit.
    fn filled(limit: i64) -> (Live, Memory, std::sync::Arc<Keyspace>) {
        let (live, memory, keyspace) = (Live::default(), Memory::new(0), Keyspace::new(1));
        // allkeys-lru
        live.maxmemory_policy.set(4);
        live.maxmemory_bytes.set(limit);
        memory.configure(&keyspace, &live);
        for n in 0..200 {
            let key = format!("k{n}");
            let mut view = View::locked_one(&keyspace, key.as_bytes(), 0, NOW);
            view.put_string(key.as_bytes(), &[b'v'; 1024], None);
            view.changed(key.as_bytes(), Class::String, "set");
            view.finish();
        }
        (live, memory, keyspace)
    }

    fn payer<'a>(memory: &'a Memory, keyspace: &'a Keyspace) -> Payer<'a> {
        Payer::new(memory, Data { keyspace, sources: false, now_ms: NOW })
    }

    #[test]
    fn a_writer_pays_a_little_and_loops_pay_the_rest() {
        let (_live, memory, keyspace) = filled(64 << 10);
        assert_eq!(payer(&memory, &keyspace).admit(&mut 0, None), Verdict::Run);
        let left = keyspace.len(0);
        assert!((200 - AT_ONCE..200).contains(&left), "{left}");
        assert!(memory.owes());
        payer(&memory, &keyspace).pay_all(|| true);
        assert_eq!(keyspace.len(0), left, "CLIENT PAUSE stops writes");
        memory.owes.store(true, Relaxed);
        while memory.owes() {
            payer(&memory, &keyspace).pay_all(|| false);
        }
        assert!(memory.used(&keyspace) <= 64 << 10);
        assert!(keyspace.len(0) > 0, "no more is evicted than is owed");
    }

    #[test]
    fn a_writer_far_above_the_limit_waits_and_one_that_finds_no_victim_is_short() {
        let (live, memory, keyspace) = filled(64 << 10);
        memory.rest.store(16 << 20, Relaxed);
        let mut asked = 0;
        assert!(matches!(payer(&memory, &keyspace).admit(&mut asked, None), Verdict::Wait(_)));
        assert_eq!(asked, 1);
        // noeviction
        live.maxmemory_policy.set(7);
        memory.configure(&keyspace, &live);
        assert_eq!(payer(&memory, &keyspace).admit(&mut asked, None), Verdict::Short);
        live.maxmemory_bytes.set(0);
        memory.configure(&keyspace, &live);
        assert_eq!(payer(&memory, &keyspace).admit(&mut asked, None), Verdict::Run);
    }

    /// Patience counts from the first wait, and begins anew whenever a key was evicted.
    #[test]
    fn a_writer_whose_wait_brought_no_eviction_is_short_after_a_while() {
        let (_live, memory, keyspace) = filled(64 << 10);
        memory.rest.store(16 << 20, Relaxed);
        let evicted = keyspace.stats.evicted_keys.load(Relaxed);
        let owe =
            |since_ms, evicted| payer(&memory, &keyspace).owe(64 << 10, Some(Waited { since_ms, evicted }));
        assert_eq!(owe(NOW - PATIENCE_MS - 1, evicted), Verdict::Short);
        let waits = owe(NOW - PATIENCE_MS - 1, evicted + 1);
        assert_eq!(waits, Verdict::Wait(Waited { since_ms: NOW, evicted }));
    }
}
