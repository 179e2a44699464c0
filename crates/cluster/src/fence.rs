//! Until when this node may answer as the primary of its shard.
//!
//! - FE1: the time is that before the last kept renewal was *sent*, plus the lease's, less a margin. It is that of the
//!   clock which counts the machine's sleep, so a node that was stopped finds itself behind it.
//! - FE2: a renewal raises the time of its own lease alone: an answer that comes late, behind the lease's end, raises
//!   nothing.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Time of a lease that is not used: two clocks do not run alike.
pub const MARGIN_NS: u64 = 500_000_000;

/// See the module.
#[derive(Default)]
pub struct Fence {
    /// Nanoseconds of the boot clock; 0: this node leads nothing.
    until_ns: AtomicU64,
    /// Which lease, counted from 1.
    generation: Mutex<u64>,
}

impl Fence {
    /// Whether this node may answer at a time. Cost: one load.
    #[inline]
    pub fn allows(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns.load(Ordering::Acquire)
    }

    /// Nanoseconds that are left.
    pub fn left_ns(&self, now_ns: u64) -> u64 {
        self.until_ns.load(Ordering::Acquire).saturating_sub(now_ns)
    }

    /// Begins with another lease, which allows nothing yet; returns its number.
    pub fn begin(&self) -> u64 {
        let mut generation = self.generation.lock();
        self.until_ns.store(0, Ordering::Release);
        *generation += 1;
        *generation
    }

    /// Raises the time to that of a renewal. False: that lease is over.
    pub fn raise(&self, generation: u64, sent_ns: u64, ttl_ns: u64) -> bool {
        let current = self.generation.lock();
        if *current != generation {
            return false;
        }
        self.until_ns.fetch_max((sent_ns + ttl_ns).saturating_sub(MARGIN_NS), Ordering::AcqRel);
        true
    }

    /// Ends whatever there is.
    pub fn close(&self) {
        self.begin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_allows_answers_for_its_time_less_the_margin() {
        let (fence, s) = (Fence::default(), 1_000_000_000);
        assert!(!fence.allows(0));
        let first = fence.begin();
        assert!(!fence.allows(10 * s), "it was not renewed yet");
        assert!(fence.raise(first, 10 * s, 3 * s));
        assert!(fence.allows(12 * s) && !fence.allows(12 * s + MARGIN_NS));
        // A renewal that was sent earlier and answered later.
        assert!(fence.raise(first, 9 * s, 3 * s));
        assert_eq!(fence.left_ns(12 * s), MARGIN_NS);
    }

    #[test]
    fn a_late_answer_of_another_lease_raises_nothing() {
        let (fence, s) = (Fence::default(), 1_000_000_000);
        let first = fence.begin();
        fence.raise(first, s, 3 * s);
        fence.close();
        assert!(!fence.allows(s));
        assert!(!fence.raise(first, 2 * s, 3 * s) && !fence.allows(2 * s));
        let second = fence.begin();
        assert!(fence.raise(second, 2 * s, 3 * s) && fence.allows(2 * s));
    }
}
