//! A shared limit, as for messages under way. While it is exceeded, only the clients that add much have to
//! wait.
//!
//! ```text
//! level above max ──► full, the n-th time ──► level at half of max ──► not full
//!                       └─ a client that adds SHARE or more meanwhile waits before it adds again
//! ```
//!
//! - C1: a client that added less than [`SHARE`] while it was full never waits. So the level is at most
//!   `max`, and for each client [`SHARE`] and the additions of one command.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The amount from which a client that adds while it is full has to wait.
pub const SHARE: usize = 10_000;

/// The level, and whether it is full.
#[derive(Default)]
pub struct Flood {
    level: AtomicUsize,
    /// The number of changes between full and not full; odd while it is full.
    times: AtomicU64,
}

/// The amount one client has added while it was full the n-th time.
#[derive(Clone, Copy, Default)]
pub struct Added {
    time: u64,
    sum: usize,
}

impl Flood {
    pub fn level(&self) -> usize {
        self.level.load(Ordering::Relaxed)
    }

    /// The number of the current time it is full; 0 if it is not full. Cost: one load.
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
            // If another thread was first, nothing is left to do.
            let _ = self.times.compare_exchange(times, times + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Added {
    /// Adds `count` for the time numbered `time`, a result of [`Flood::full`].
    pub fn add(&mut self, time: u64, count: usize) {
        let before = if self.time == time { self.sum } else { 0 };
        *self = Added { time, sum: before.saturating_add(count) };
    }

    /// Whether the client that added this has to wait.
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
