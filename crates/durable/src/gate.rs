//! The gate of replies: up to where the log is durable, and whether replies wait for that.

use crate::Durability;
use parking_lot::Mutex;

/// Up to where the log is durable, and whether replies wait for that (A1).
///
/// A client that is told of `appendfsync always` relies on it from then on, and the log's thread learns of it
/// later. So the gate closes with the setting, and the thread cannot open it.
#[derive(Default)]
pub(crate) struct Gate(Mutex<Gated>);

#[derive(Default)]
struct Gated {
    /// Replies wait, if the log says so.
    is_used: bool,
    /// The setting is `always`.
    is_always: bool,
    /// The LSN up to which the log is durable. [`OPEN`]: no reply waits for that.
    lsn: u64,
}

const OPEN: u64 = u64::MAX;

impl Gated {
    /// The log's thread says how far everything is durable. True: that counts.
    fn durable(&mut self, lsn: u64) -> bool {
        if self.is_always && lsn == OPEN {
            return false;
        }
        // Durable effects stay durable.
        self.lsn = if self.lsn == OPEN { lsn } else { self.lsn.max(lsn) };
        true
    }

    /// The setting is this one; up to `synced` everything is durable. True: it changed. The thread may have
    /// heard of it first.
    fn set_always(&mut self, is_always: bool, synced: u64) -> bool {
        if self.is_always == is_always {
            return false;
        }
        self.is_always = is_always;
        self.lsn = match (is_always, self.lsn) {
            (true, OPEN) => synced,
            (true, lsn) => lsn,
            (false, _) => OPEN,
        };
        true
    }

    /// Replies wait as this says, also those that tell of what was written before: it was not noted.
    fn apply(&self, durability: &Durability) {
        durability.host.set_durable(self.lsn);
        if self.lsn != OPEN {
            durability.keyspace.doubt_all();
        }
    }
}

impl Gate {
    pub(crate) fn new(is_always: bool) -> Gate {
        Gate(Mutex::new(Gated { is_always, ..Gated::default() }))
    }

    /// The log's thread says how far everything is durable.
    pub(crate) fn durable(&self, durability: &Durability, lsn: u64) {
        let mut gate = self.0.lock();
        if gate.durable(lsn) && gate.is_used {
            durability.host.set_durable(gate.lsn);
        }
    }

    /// The setting changed; up to `synced` everything is durable.
    pub(crate) fn set_always(&self, durability: &Durability, is_always: bool, synced: u64) {
        let mut gate = self.0.lock();
        if gate.set_always(is_always, synced) && gate.is_used {
            gate.apply(durability);
        }
    }

    /// Makes replies wait from now on.
    pub(crate) fn close(&self, durability: &Durability) {
        let mut gate = self.0.lock();
        gate.is_used = true;
        gate.apply(durability);
    }

    /// Whether the log has its base, so that what it holds can be loaded.
    pub(crate) fn is_used(&self) -> bool {
        self.0.lock().is_used
    }

    /// No reply waits any more.
    pub(crate) fn open(&self, durability: &Durability) {
        self.0.lock().is_used = false;
        durability.host.set_durable(OPEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Earlier writes are doubted, whoever hears of `always` first: the client that set it or the log's thread.
    #[test]
    fn a_gate_closes_for_what_was_written_before() {
        let open = || {
            let mut gate = Gated::default();
            assert!(gate.durable(OPEN) && gate.lsn == OPEN);
            gate
        };
        let mut gate = open();
        assert!(gate.set_always(true, 5) && gate.lsn == 5);
        assert!(!gate.durable(OPEN) && gate.lsn == 5);
        assert!(gate.durable(7) && gate.lsn == 7);
        let mut gate = open();
        assert!(gate.durable(7));
        assert!(gate.set_always(true, 5) && gate.lsn == 7);
        assert!(!gate.set_always(true, 9) && gate.lsn == 7);
        // Its thread has heard of neither of these changes.
        assert!(gate.set_always(false, 9) && gate.lsn == OPEN);
        assert!(gate.durable(8));
        assert!(gate.set_always(true, 7) && gate.lsn == 8);
    }
}
