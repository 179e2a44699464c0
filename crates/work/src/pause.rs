//! CLIENT PAUSE: its end, and the commands that wait for it.

use command::{Command, facts};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// See the module.
#[derive(Default)]
pub struct Pause {
    /// 0 without a pause. Else its end (milliseconds since 1970), shifted. The last bit says that it holds
    /// only writes.
    word: AtomicU64,
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
        self.word.load(Ordering::Acquire) != 0
    }

    /// Begins a pause. A longer or stricter pause is not weakened by a later one.
    pub fn set(&self, until_ms: u64, writes_only: bool) {
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let (until_ms, writes_only) = match word {
                0 => (until_ms, writes_only),
                _ => (until_ms.max(word >> 1), writes_only && word & 1 == 1),
            };
            Some(until_ms.clamp(1, u64::MAX >> 1) << 1 | u64::from(writes_only))
        });
    }

    pub fn clear(&self) {
        self.word.store(0, Ordering::Release);
    }

    /// Ends it if its time is over. True if it goes on.
    #[inline]
    pub fn goes_on(&self, now_ms: u64) -> bool {
        let word = self.word.load(Ordering::Acquire);
        if word != 0 && word >> 1 <= now_ms {
            // A pause that began meanwhile is not ended.
            let _ = self.word.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        word >> 1 > now_ms
    }

    /// Stops the decisions of long commits, or allows them again. Held work goes on when a loop looks again.
    pub fn stop_commits(&self, stopped: bool) {
        self.commits_stopped.store(stopped, Ordering::Release);
    }

    /// Whether nothing may change now: CLIENT PAUSE of either kind, or [`stop_commits`](Self::stop_commits).
    #[inline]
    pub fn stops_writes(&self, now_ms: u64) -> bool {
        self.word.load(Ordering::Acquire) >> 1 > now_ms || self.commits_stopped.load(Ordering::Acquire)
    }

    /// Milliseconds since 1970 at which it ends.
    #[inline]
    pub fn until_ms(&self) -> u64 {
        self.word.load(Ordering::Acquire) >> 1
    }

    /// The end of the pause (milliseconds since 1970), and whether it holds only writes. `None`: there is no
    /// pause.
    #[inline]
    pub fn state(&self, now_ms: u64) -> Option<(u64, bool)> {
        let word = self.word.load(Ordering::Acquire);
        (word >> 1 > now_ms).then_some((word >> 1, word & 1 == 1))
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

    /// Whether this command must wait. `queued_writes` says whether the queue of an EXEC has writes.
    #[inline]
    pub fn holds(&self, command: &Command, queued_writes: impl FnOnce() -> bool, now_ms: u64) -> bool {
        if !self.goes_on(now_ms) {
            return false;
        }
        let changes =
            command.is_write() || command.may_replicate() || command.is(facts::RUNS_QUEUE) && queued_writes();
        let writes_only = self.word.load(Ordering::Acquire) & 1 == 1;
        !command.is(facts::PAUSES) && (changes || !writes_only)
    }
}
