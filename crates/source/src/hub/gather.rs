//! When a load begins: misses that come soon after each other are loaded together.
//!
//! ```text
//! loads:   |1|            |1|      |1|-------------|7|-------------|6|--|16|
//! misses:   .              .        . .. . .  . .   . . . .  ..      ................
//!          few: at once                many: `gather` after the one before, or when [`ENOUGH`] wait
//! ```
//!
//! A load costs the database, the kernel and the driver more than its rows do. So many misses at once are
//! loaded together.
//!
//! - A1: a miss waits for others only if at least [`EXPECTED`] ids are expected within `gather`, and at most
//!   for `gather`.

use std::time::{Duration, Instant};

/// Ids that do not wait for more.
pub(super) const ENOUGH: usize = 16;
/// Ids that must be expected within `gather` for a miss to wait.
const EXPECTED: f64 = 2.0;
/// How far back the rate of misses is averaged.
const MEMORY: Duration = Duration::from_millis(20);

/// The rate of misses.
pub(super) struct Pace {
    gather: Duration,
    /// When the last load began.
    last: Instant,
    per_second: f64,
}

impl Pace {
    pub(super) fn new(gather: Duration, now: Instant) -> Pace {
        Pace { gather, last: now, per_second: 0.0 }
    }

    /// Notes that a load of `ids` ids begins.
    pub(super) fn began(&mut self, ids: usize, now: Instant) {
        let past = now.duration_since(self.last).as_secs_f64().max(1e-6);
        let weight = 1.0 - (-past / MEMORY.as_secs_f64()).exp();
        self.per_second += weight * (ids as f64 / past - self.per_second);
        self.last = now;
    }

    /// How long the waiting ids should wait for more.
    pub(super) fn wait(&self, waiting: usize, now: Instant) -> Duration {
        let few = self.per_second * self.gather.as_secs_f64() < EXPECTED;
        if waiting == 0 || waiting >= ENOUGH || few {
            return Duration::ZERO;
        }
        self.gather.saturating_sub(now.duration_since(self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATHER: Duration = Duration::from_micros(500);

    /// A pace after a second of loads of `ids` ids, `every_us` microseconds apart.
    fn paced(ids: usize, every_us: u64) -> (Pace, Instant) {
        let mut now = Instant::now();
        let mut pace = Pace::new(GATHER, now);
        for _ in 0..1_000_000 / every_us {
            now += Duration::from_micros(every_us);
            pace.began(ids, now);
        }
        (pace, now)
    }

    #[test]
    fn few_misses_do_not_wait() {
        let (pace, now) = paced(1, 1000);
        assert_eq!(pace.wait(1, now + Duration::from_micros(1)), Duration::ZERO);
        // Nor do the first of all, or those after a pause.
        assert_eq!(Pace::new(GATHER, now).wait(1, now), Duration::ZERO);
        let (mut pace, now) = paced(7, 500);
        pace.began(1, now + Duration::from_secs(1));
        assert_eq!(pace.wait(1, now + Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn many_wait_for_each_other_for_a_while() {
        for (ids, every_us) in [(7, 500), (1, 100)] {
            let (pace, now) = paced(ids, every_us);
            let later = |us| now + Duration::from_micros(us);
            assert_eq!(pace.wait(1, later(100)), Duration::from_micros(400), "{ids} every {every_us} us");
            assert_eq!(pace.wait(ENOUGH - 1, later(499)), Duration::from_micros(1));
            assert_eq!(pace.wait(1, later(500)), Duration::ZERO);
            assert_eq!((pace.wait(0, later(1)), pace.wait(ENOUGH, later(1))), Default::default());
        }
        let (mut pace, now) = paced(7, 500);
        pace.gather = Duration::ZERO;
        assert_eq!(pace.wait(1, now), Duration::ZERO);
    }
}
