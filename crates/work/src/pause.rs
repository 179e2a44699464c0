//! CLIENT PAUSE: its end, and the commands that wait for it.

use command::{Command, facts};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// See the module.
#[derive(Default)]
pub struct Pause {
    /// The end of the pause of all commands, and of that of writes (milliseconds since 1970). 0: there is none.
    all_until_ms: AtomicU64,
    writes_until_ms: AtomicU64,
    /// Number of long writes on their way that it holds.
    pub held: AtomicUsize,
    /// Number of clients whose command it holds.
    postponed: Arc<AtomicUsize>,
    /// No long commit may be decided for another reason ([`Pause::stop_commits`]).
    commits_stopped: AtomicBool,
}

/// A client whose command CLIENT PAUSE holds, counted as long as this is.
pub struct Postponed(Arc<AtomicUsize>);

impl Drop for Postponed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pause {
    #[inline]
    pub fn is_on(&self) -> bool {
        self.until_ms() != 0
    }

    /// Begins a pause. A longer pause of the same kind is not shortened; one of the other kind goes on beside it.
    pub fn set(&self, until_ms: u64, writes_only: bool) {
        let until = if writes_only { &self.writes_until_ms } else { &self.all_until_ms };
        until.fetch_max(until_ms.max(1), Ordering::AcqRel);
    }

    pub fn clear(&self) {
        self.all_until_ms.store(0, Ordering::Release);
        self.writes_until_ms.store(0, Ordering::Release);
    }

    /// Ends it if its time is over. True if it goes on.
    #[inline]
    pub fn goes_on(&self, now_ms: u64) -> bool {
        for until in [&self.all_until_ms, &self.writes_until_ms] {
            let at = until.load(Ordering::Acquire);
            if at != 0 && at <= now_ms {
                // A pause that began meanwhile is not ended.
                let _ = until.compare_exchange(at, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        self.until_ms() > now_ms
    }

    /// Stops the decisions of long commits, or allows them again. Held work goes on when a loop looks again.
    pub fn stop_commits(&self, stopped: bool) {
        self.commits_stopped.store(stopped, Ordering::Release);
    }

    /// Whether nothing may change now: CLIENT PAUSE of either kind, or [`stop_commits`](Self::stop_commits).
    #[inline]
    pub fn stops_writes(&self, now_ms: u64) -> bool {
        self.until_ms() > now_ms || self.commits_stopped.load(Ordering::Acquire)
    }

    /// Milliseconds since 1970 at which writes are free again. 0: there is no pause.
    #[inline]
    pub fn until_ms(&self) -> u64 {
        let all_ms = self.all_until_ms.load(Ordering::Acquire);
        all_ms.max(self.writes_until_ms.load(Ordering::Acquire))
    }

    /// The end of the pause (milliseconds since 1970), and whether it holds only writes. `None`: there is no
    /// pause.
    #[inline]
    pub fn state(&self, now_ms: u64) -> Option<(u64, bool)> {
        let writes_only = self.all_until_ms.load(Ordering::Acquire) <= now_ms;
        Some((self.until_ms(), writes_only)).filter(|(until_ms, _)| *until_ms > now_ms)
    }

    /// Number of clients that wait for its end: with a command that has not run, or a long write that is not
    /// committed.
    pub fn waiting(&self) -> usize {
        self.postponed.load(Ordering::Relaxed) + self.held.load(Ordering::Relaxed)
    }

    /// Counts one more client whose command it holds.
    pub fn postpone(&self) -> Postponed {
        self.postponed.fetch_add(1, Ordering::Relaxed);
        Postponed(self.postponed.clone())
    }

    /// The time until which this command must wait (milliseconds since 1970). `queued_changes` says whether the
    /// queue of an EXEC may change anything.
    #[inline]
    pub fn holds(
        &self,
        command: &Command,
        queued_changes: impl FnOnce() -> bool,
        now_ms: u64,
    ) -> Option<u64> {
        if !self.goes_on(now_ms) || command.is(facts::PAUSES) {
            return None;
        }
        let changes = command.is_write()
            || command.may_replicate()
            || command.is(facts::RUNS_QUEUE) && queued_changes();
        let until_ms = if changes { self.until_ms() } else { self.all_until_ms.load(Ordering::Acquire) };
        Some(until_ms).filter(|until_ms| *until_ms > now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_pause_has_its_own_end() {
        let find = |name: &[u8]| command::registry::find(name).unwrap();
        let (get, set, exec) = (find(b"get"), find(b"set"), find(b"exec"));
        let held = |pause: &Pause, command, now_ms| pause.holds(command, || false, now_ms);
        let pause = Pause::default();
        assert_eq!((held(&pause, set, 0), pause.is_on()), (None, false));
        pause.set(50, false);
        pause.set(400, true);
        assert_eq!((held(&pause, get, 10), held(&pause, set, 10)), (Some(50), Some(400)));
        assert_eq!(pause.state(10), Some((400, false)));
        assert_eq!((held(&pause, get, 50), held(&pause, set, 50)), (None, Some(400)));
        assert_eq!((held(&pause, exec, 50), pause.holds(exec, || true, 50)), (None, Some(400)));
        assert_eq!(pause.state(50), Some((400, true)));
        // A shorter pause shortens nothing.
        pause.set(100, true);
        pause.set(900, false);
        pause.set(60, false);
        assert_eq!((held(&pause, get, 60), held(&pause, set, 60)), (Some(900), Some(900)));
        assert!(pause.stops_writes(899) && !pause.stops_writes(900) && !pause.goes_on(900));
        assert!(!pause.is_on());
        pause.set(u64::MAX >> 1, false);
        pause.clear();
        assert_eq!((held(&pause, get, 1), pause.is_on()), (None, false));
    }
}
