//! CLIENT PAUSE, FAILOVER, and the end of the server: the commands and long writes that wait until things may change
//! again.

use command::{Command, facts};
use keyspace::{Keyspace, Why};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Interval of the looks of a thread that waits.
const LOOK: std::time::Duration = std::time::Duration::from_millis(10);
/// A time that never comes.
const NEVER_MS: u64 = u64::MAX >> 1;

/// See the module. When nothing may change, and why, says [`keyspace::Still`].
pub struct Pause {
    keyspace: Arc<Keyspace>,
    /// Number of long writes on their way that it holds.
    pub held: AtomicUsize,
    /// Number of clients whose command it holds.
    postponed: Arc<AtomicUsize>,
}

/// A client whose command is held, counted as long as this is.
pub struct Postponed(Arc<AtomicUsize>);

impl Drop for Postponed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pause {
    pub(crate) fn new(keyspace: Arc<Keyspace>) -> Pause {
        Pause { keyspace, held: AtomicUsize::new(0), postponed: Arc::default() }
    }

    /// Whether commands may be held: there is a CLIENT PAUSE, or the server is about to end.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.keyspace.still.paused().writes_ms != 0 || self.has_no_end()
    }

    /// Whether something else than CLIENT PAUSE holds writes: the server ends, or a replica is about to lead.
    fn has_no_end(&self) -> bool {
        self.keyspace.still.has(Why::End) || self.keyspace.still.has(Why::Role)
    }

    /// Whether writes wait since a replica is about to lead.
    pub fn is_of_role(&self) -> bool {
        self.keyspace.still.has(Why::Role)
    }

    /// Waits while nothing may change. Gives how long that took, in nanoseconds. It blocks: for a change
    /// that was asked for before, on a thread of its own.
    pub fn wait_for_writes(&self) -> u64 {
        let began = std::time::Instant::now();
        while self.stops_writes(stdx::clock::wall_ms()) {
            std::thread::sleep(LOOK);
        }
        began.elapsed().as_nanos() as u64
    }

    /// Whether nothing may change now, for any reason.
    #[inline]
    pub fn stops_writes(&self, now_ms: u64) -> bool {
        self.keyspace.still.is_on(now_ms)
    }

    /// The reason why clients are paused, as INFO names it; the end (milliseconds since 1970), and whether
    /// all their commands are. None: they are not.
    pub fn state(&self, now_ms: u64) -> Option<(&'static str, u64, bool)> {
        let paused = self.keyspace.still.paused();
        let all = paused.all_ms > now_ms;
        if self.keyspace.still.has(Why::End) {
            return Some(("shutdown_in_progress", NEVER_MS, all));
        }
        if self.keyspace.still.has(Why::Role) {
            return Some(("failover_in_progress", NEVER_MS, all));
        }
        (paused.writes_ms > now_ms).then_some(("client_pause", paused.writes_ms, all))
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

    /// The time until which this command must wait (milliseconds since 1970). `changes` says whether it may
    /// change or tell anything.
    #[inline]
    pub fn holds(&self, command: &Command, changes: impl FnOnce() -> bool, now_ms: u64) -> Option<u64> {
        let still = &self.keyspace.still;
        still.end_pause(now_ms);
        let (paused, ends) = (still.paused(), self.has_no_end());
        if paused.writes_ms == 0 && !ends || command.is(facts::PAUSES) {
            return None;
        }
        let writes_ms = if ends { NEVER_MS } else { paused.writes_ms };
        let until_ms = if writes_ms > paused.all_ms && changes() { writes_ms } else { paused.all_ms };
        Some(until_ms).filter(|until_ms| *until_ms > now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keyspace::Pausing;

    #[test]
    fn a_pause_and_the_servers_end_hold_commands_beside_each_other() {
        let keyspace = Keyspace::new(1);
        let (pause, still) = (Pause::new(keyspace.clone()), &keyspace.still);
        let find = |name: &[u8]| command::registry::find(name).unwrap();
        let (get, set) = (find(b"get"), find(b"set"));
        let held = |command: &Command, now_ms| pause.holds(command, || command.is_write(), now_ms);
        assert_eq!((held(set, 0), pause.is_on()), (None, false));
        still.pause(Pausing::Writes, 400, 10);
        assert_eq!((held(get, 10), held(set, 10)), (None, Some(400)));
        still.pause(Pausing::All, 50, 10);
        assert_eq!((held(get, 10), held(set, 10)), (Some(400), Some(400)));
        still.set(Why::End, true);
        assert_eq!((held(get, 10), held(set, 10)), (Some(400), Some(NEVER_MS)));
        assert_eq!(pause.state(10).unwrap().0, "shutdown_in_progress");
        // The end of the pause lets no write through while the server ends.
        still.unpause();
        assert_eq!((held(get, 10), held(set, 10), pause.is_on()), (None, Some(NEVER_MS), true));
        still.set(Why::End, false);
        assert_eq!((held(get, 10), held(set, 10), pause.is_on()), (None, None, false));
        // A load and a stopped log refuse writes elsewhere; they hold none.
        still.set(Why::Load, true);
        assert_eq!((held(set, 10), pause.is_on(), pause.stops_writes(10)), (None, false, true));
        still.set(Why::Load, false);
        still.pause(Pausing::All, 30, 10);
        assert_eq!((held(get, 30), pause.is_on()), (None, false));
    }
}
