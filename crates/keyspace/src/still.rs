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
    /// A replica is about to lead: a change would be lost.
    Role = 8,
}

/// See the module. Besides the reasons without an end there is CLIENT PAUSE, which ends by itself.
#[derive(Default)]
pub struct Still {
    reasons: AtomicU32,
    /// The ends of the pause of all commands, and of that of writes (milliseconds since 1970). 0: there is
    /// none.
    all_until_ms: AtomicU64,
    writes_until_ms: AtomicU64,
}

/// A wish of CLIENT PAUSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pausing {
    /// All commands wait, as long as writes do.
    All,
    /// Commands that may change something wait. A pause of all goes on to its own end.
    Writes,
    /// The same, as a part of a transaction: a pause of all goes on as long.
    WritesWith,
}

/// The ends of CLIENT PAUSE (milliseconds since 1970): for all commands, and for those that may change
/// something. 0: they do not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paused {
    pub all_ms: u64,
    pub writes_ms: u64,
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

    /// Whether nothing may change now, for any reason.
    #[inline]
    pub fn is_on(&self, now_ms: u64) -> bool {
        self.reasons.load(Ordering::Acquire) != 0 || self.paused().writes_ms > now_ms
    }

    /// Begins CLIENT PAUSE. Beside one that goes on the later end and the stricter kind count, as in Redis. A
    /// pause of all holds a later CLIENT PAUSE there, unless both are of one transaction; so that one changes
    /// nothing for reads.
    pub fn pause(&self, pausing: Pausing, until_ms: u64, now_ms: u64) {
        let (before, until_ms) = (self.paused(), until_ms.max(1));
        let with_all = match pausing {
            Pausing::All => true,
            Pausing::Writes => false,
            Pausing::WritesWith => before.all_ms > now_ms,
        };
        self.writes_until_ms.fetch_max(until_ms, Ordering::AcqRel);
        if with_all {
            // A pause that is over is at most as late as now.
            self.all_until_ms.fetch_max(until_ms.max(before.writes_ms), Ordering::AcqRel);
        }
    }

    /// Ends CLIENT PAUSE, and no other reason (ST1).
    pub fn unpause(&self) {
        self.all_until_ms.store(0, Ordering::Release);
        self.writes_until_ms.store(0, Ordering::Release);
    }

    /// Ends CLIENT PAUSE if its time is over.
    pub fn end_pause(&self, now_ms: u64) {
        for until in [&self.all_until_ms, &self.writes_until_ms] {
            let at = until.load(Ordering::Acquire);
            if at != 0 && at <= now_ms {
                // A pause that began meanwhile is not ended.
                let _ = until.compare_exchange(at, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// CLIENT PAUSE, perhaps one whose time is over.
    #[inline]
    pub fn paused(&self) -> Paused {
        let all_ms = self.all_until_ms.load(Ordering::Acquire);
        Paused { all_ms, writes_ms: all_ms.max(self.writes_until_ms.load(Ordering::Acquire)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Keyspace, View};

    /// Every reason ends alone, in any order.
    #[test]
    fn no_reason_ends_another() {
        let reasons = [Why::Load, Why::Log, Why::End, Why::Role];
        for first in reasons {
            for second in reasons.into_iter().filter(|why| *why != first) {
                let still = Still::default();
                still.set(first, true);
                still.pause(Pausing::Writes, 50, 10);
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

    /// A reader leaves an expired key where it is while any reason goes on, and removes it after the last.
    #[test]
    fn an_expired_key_stays_until_the_last_reason_ends() {
        for (first, second) in
            [(Why::Load, Why::Log), (Why::Log, Why::End), (Why::End, Why::Role), (Why::Role, Why::Load)]
        {
            let keyspace = Keyspace::new(1);
            let mut view = View::locked_one(&keyspace, b"k", 0, 10);
            view.put_string(b"k", b"v", Some(20));
            view.finish();
            let read = || {
                let view = View::locked_one(&keyspace, b"k", 0, 30);
                assert!(!view.exists(b"k"));
                view.finish();
                keyspace.len(0)
            };
            keyspace.still.set(first, true);
            keyspace.still.pause(Pausing::Writes, 40, 10);
            keyspace.still.set(second, true);
            assert_eq!(read(), 1);
            keyspace.still.unpause();
            assert_eq!(read(), 1);
            keyspace.still.set(first, false);
            assert_eq!(read(), 1);
            keyspace.still.set(second, false);
            assert_eq!(read(), 0);
        }
    }

    #[test]
    fn overlapping_pauses_have_the_later_end_and_the_stricter_kind() {
        use Pausing::{All, Writes, WritesWith};
        let after = |pauses: &[(u64, Pausing)]| {
            let still = Still::default();
            pauses.iter().for_each(|(until_ms, pausing)| still.pause(*pausing, *until_ms, 10));
            let Paused { all_ms, writes_ms } = still.paused();
            (all_ms, writes_ms)
        };
        assert_eq!(after(&[(400, All), (20, Writes)]), (400, 400));
        assert_eq!(after(&[(400, Writes), (20, All)]), (400, 400));
        assert_eq!(after(&[(20, Writes), (400, All)]), (400, 400));
        assert_eq!(after(&[(50, Writes), (400, Writes), (60, Writes)]), (0, 400));
        assert_eq!(after(&[(50, All), (400, Writes)]), (50, 400));
        assert_eq!(after(&[(50, All), (400, WritesWith)]), (400, 400));
        // A pause whose time is over counts for nothing.
        assert_eq!(after(&[(10, All), (400, WritesWith)]), (10, 400));
        let still = Still::default();
        still.pause(All, u64::MAX >> 1, 10);
        still.end_pause(1 << 60);
        assert_eq!(still.paused().all_ms, u64::MAX >> 1);
        still.end_pause(u64::MAX >> 1);
        assert!(!still.is_on(0));
    }
}
