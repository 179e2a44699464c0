//! How long to wait for a peer that sends something, but never all of it.

use std::time::{Duration, Instant};

/// The time that each byte earns: a peer may be as slow as 1 KB a second.
const EACH_BYTE: Duration = Duration::from_millis(1);

/// The limits that all bytes together earn at most, so that an endless reply ends.
const EARNED_MAX: u32 = 10;

/// A limit of time for one reply, which bytes of it extend.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    /// When the first bytes came, and how much time all of them earned.
    since: Option<(Instant, Duration)>,
}

impl Patience {
    /// `limit`: the longest wait for the first byte, and of any later wait.
    pub fn new(limit: Duration) -> Patience {
        Patience { limit, since: None }
    }

    /// The same, but the first wait may be in several parts: the time runs from now on.
    pub fn running(limit: Duration) -> Patience {
        Patience { limit, since: Some((Instant::now(), Duration::ZERO)) }
    }

    /// So many bytes came.
    pub fn came(&mut self, bytes: usize) {
        let earned = EACH_BYTE.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX));
        let (since, before) = self.since.unwrap_or((Instant::now(), Duration::ZERO));
        let all = before.saturating_add(earned).min(self.limit.saturating_mul(EARNED_MAX));
        self.since = Some((since, all));
    }

    /// The longest that the next bytes may take. None: the time is used up.
    pub fn left(&self) -> Option<Duration> {
        let Some((since, earned)) = self.since else { return Some(self.limit) };
        let left = self.limit.saturating_add(earned).checked_sub(since.elapsed())?;
        Some(left.min(self.limit)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_earn_time_and_a_trickle_uses_it_up() {
        let mut patience = Patience::new(Duration::from_millis(20));
        assert_eq!(patience.left(), Some(Duration::from_millis(20)));
        patience.came(1_000_000);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(patience.left(), Some(Duration::from_millis(20)), "many bytes came");
        for each in [1, 1_000_000] {
            let mut patience = Patience::new(Duration::from_millis(20));
            let begin = Instant::now();
            for n in 0.. {
                let Some(_) = patience.left() else { break };
                assert!(begin.elapsed() < Duration::from_secs(60), "a reply is waited for without end");
                std::thread::sleep(Duration::from_millis(1));
                // A trickle of one byte, or a flood.
                patience.came(if n == 0 || each > 1 { each } else { 0 });
            }
        }
    }
}
