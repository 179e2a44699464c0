//! Something bounded that many clients fill, as messages under way: when it is full, those wait who filled it, others do not.
//!
//! ```text
//! level ── max ──► full: the n-th time ─► who adds SHARE or more during it waits with the next ─► half of max ─► not full
//! ```
//!
//! - C1: who added less than [`SHARE`] while it was full never waits. So it holds `max`, what one command of each client adds, and
//!   `SHARE` of each client, at most.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What a client may add while it is full.
pub const SHARE: usize = 10_000;

/// See the module.
#[derive(Default)]
pub struct Flood {
    level: AtomicUsize,
    /// How often it has become full or ceased to be: odd while it is.
    times: AtomicU64,
}

/// What a client has added while it was full the n-th time.
#[derive(Clone, Copy, Default)]
pub struct Added {
    time: u64,
    sum: usize,
}

impl Flood {
    pub fn level(&self) -> usize {
        self.level.load(Ordering::Relaxed)
    }

    /// Which time it is full; 0: it is not.
    #[inline]
    pub fn full(&self) -> u64 {
        let times = self.times.load(Ordering::Relaxed);
        if times & 1 == 1 { times } else { 0 }
    }

    pub fn add(&self, count: usize, max: usize) {
        if self.level.fetch_add(count, Ordering::Relaxed) + count > max {
            self.set(true);
        }
    }

    pub fn remove(&self, count: usize, max: usize) {
        if self.level.fetch_sub(count, Ordering::Release) - count <= max / 2 && self.full() != 0 {
            self.set(false);
        }
    }

    fn set(&self, full: bool) {
        let times = self.times.load(Ordering::Relaxed);
        if (times & 1 == 1) != full {
            // Who is beaten to it has nothing to do any more.
            let _ = self.times.compare_exchange(times, times + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Added {
    /// `time`: which time it was full.
    pub fn add(&mut self, time: u64, count: usize) {
        let before = if self.time == time { self.sum } else { 0 };
        *self = Added { time, sum: before.saturating_add(count) };
    }

    /// Whether who added this has to wait.
    pub fn is_too_much(&self, time: u64) -> bool {
        self.time == time && self.sum >= SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_filled_it_waits_until_half_is_left() {
        let (flood, mut filler, mut other) = (Flood::default(), Added::default(), Added::default());
        flood.add(100, 100);
        assert_eq!(flood.full(), 0);
        flood.add(2 * SHARE, 100);
        let time = flood.full();
        assert!(time > 0 && !filler.is_too_much(time));
        filler.add(time, SHARE);
        other.add(time, 1);
        other.add(time, SHARE - 2);
        assert!(filler.is_too_much(time) && !other.is_too_much(time));
        flood.remove(2 * SHARE, 100);
        assert_eq!(flood.full(), time, "more than half is left");
        flood.remove(50, 100);
        assert_eq!((flood.full(), flood.level()), (0, 50));
        flood.add(51, 100);
        let again = flood.full();
        assert!(again > time && !filler.is_too_much(again), "another time is counted anew");
        filler.add(again, SHARE - 1);
        assert!(!filler.is_too_much(again));
    }
}
