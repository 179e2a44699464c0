//! Reasons why nothing may change for a while: expired keys stay where they are, and no long commit is decided.
//!
//! - ST1: each reason has one owner, who alone begins and ends it. So the end of one never ends another.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A reason without an end of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Data is loaded: it says itself which keys are removed.
    Load = 1,
    /// The log does not write: a removal could not be told.
    Log = 2,
    /// The server is about to end: a change could not be told any more.
    End = 4,
}

/// See the module. Besides the reasons without an end there is CLIENT PAUSE, which ends by itself.
#[derive(Default)]
pub struct Still {
    reasons: AtomicU32,
    /// The end of CLIENT PAUSE (milliseconds since 1970), shifted by one, and whether it holds all commands.
    /// 0: there is none.
    pause: AtomicU64,
}

/// A pause for clients: when it ends (milliseconds since 1970), and whether it holds all their commands or only
/// those that may change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paused {
    pub until_ms: u64,
    pub all: bool,
}

impl Paused {
    fn of(word: u64) -> Paused {
        Paused { until_ms: word >> 1, all: word & 1 != 0 }
    }

    fn word(self) -> u64 {
        self.until_ms << 1 | u64::from(self.all)
    }
}

impl Still {
    /// Begins or ends a reason. Only its owner does (ST1).
    pub fn set(&self, why: Why, on: bool) {
        if on {
            self.reasons.fetch_or(why as u32, Ordering::AcqRel);
        } else {
            self.reasons.fetch_and(!(why as u32), Ordering::AcqRel);
        }
    }

    #[inline]
    pub fn has(&self, why: Why) -> bool {
        self.reasons.load(Ordering::Acquire) & why as u32 != 0
    }

    /// Whether anything may not change now, for any reason.
    #[inline]
    pub fn is_on(&self, now_ms: u64) -> bool {
        self.reasons.load(Ordering::Acquire) != 0 || self.paused().until_ms > now_ms
    }

    /// Begins CLIENT PAUSE. Beside one that goes on, the later end and the stricter kind count for both, as in
    /// Redis. `until_ms` is less than 2⁶³.
    pub fn pause(&self, wanted: Paused, now_ms: u64) {
        let both = |word| {
            let Paused { until_ms, all } = Paused::of(word);
            let goes_on = until_ms > now_ms;
            let until_ms = if goes_on { wanted.until_ms.max(until_ms) } else { wanted.until_ms.max(1) };
            Some(Paused { until_ms, all: wanted.all || goes_on && all }.word())
        };
        let _ = self.pause.fetch_update(Ordering::AcqRel, Ordering::Acquire, both);
    }

    /// Ends CLIENT PAUSE, and no other reason (ST1).
    pub fn unpause(&self) {
        self.pause.store(0, Ordering::Release);
    }

    /// Ends CLIENT PAUSE if its time is over.
    pub fn end_pause(&self, now_ms: u64) {
        let word = self.pause.load(Ordering::Acquire);
        if word != 0 && Paused::of(word).until_ms <= now_ms {
            // A pause that began meanwhile is not ended.
            let _ = self.pause.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// CLIENT PAUSE, perhaps one whose time is over. Its end is 0 if there is none.
    #[inline]
    pub fn paused(&self) -> Paused {
        Paused::of(self.pause.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reason ends alone, in any order.
    #[test]
    fn no_reason_ends_another() {
        let reasons = [Why::Load, Why::Log, Why::End];
        for first in reasons {
            for second in reasons.into_iter().filter(|why| *why != first) {
                let still = Still::default();
                still.set(first, true);
                still.pause(Paused { until_ms: 50, all: false }, 10);
                still.set(second, true);
                still.set(first, false);
                assert!(still.is_on(60) && still.has(second) && !still.has(first));
                still.set(second, false);
                assert!(still.is_on(49) && !still.is_on(50), "the pause goes on alone");
                still.set(first, true);
                still.unpause();
                assert!(still.is_on(10) && still.has(first));
            }
        }
    }

    #[test]
    fn overlapping_pauses_have_the_later_end_and_the_stricter_kind() {
        let after = |pauses: &[(u64, bool)]| {
            let still = Still::default();
            pauses
                .iter()
                .for_each(|(until_ms, all)| still.pause(Paused { until_ms: *until_ms, all: *all }, 10));
            still.paused()
        };
        assert_eq!(after(&[(400, true), (20, false)]), Paused { until_ms: 400, all: true });
        assert_eq!(after(&[(400, false), (20, true)]), Paused { until_ms: 400, all: true });
        assert_eq!(after(&[(50, true), (400, false)]), Paused { until_ms: 400, all: true });
        assert_eq!(after(&[(50, false), (400, false)]), Paused { until_ms: 400, all: false });
        // A pause whose time is over counts for nothing.
        assert_eq!(after(&[(10, true), (400, false)]), Paused { until_ms: 400, all: false });
        let still = Still::default();
        still.pause(Paused { until_ms: u64::MAX >> 1, all: true }, 10);
        still.end_pause(1 << 60);
        assert_eq!(still.paused(), Paused { until_ms: u64::MAX >> 1, all: true });
        still.end_pause(u64::MAX >> 1);
        assert!(!still.is_on(0));
    }
}
