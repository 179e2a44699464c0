//! Deadlines of parked clients.

use std::collections::{BTreeMap, BTreeSet};

/// At most one deadline per client. All costs are O(log clients): trees, because they never grow by leaps.
#[derive(Default)]
pub(crate) struct Timers {
    queue: BTreeSet<(u64, u64)>,
    of: BTreeMap<u64, u64>,
}

impl Timers {
    /// Sets a client's deadline; an earlier one is replaced.
    pub(crate) fn set(&mut self, client: u64, at_ms: u64) {
        if let Some(before) = self.of.insert(client, at_ms) {
            self.queue.remove(&(before, client));
        }
        self.queue.insert((at_ms, client));
    }

    /// Removes a client's deadline.
    pub(crate) fn forget(&mut self, client: u64) {
        if let Some(at_ms) = self.of.remove(&client) {
            self.queue.remove(&(at_ms, client));
        }
    }

    /// Takes a client whose deadline has come.
    pub(crate) fn due(&mut self, now_ms: u64) -> Option<u64> {
        let (_, client) = self.queue.first().copied().filter(|(at_ms, _)| *at_ms <= now_ms)?;
        self.forget(client);
        Some(client)
    }

    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.queue.first().map(|(at_ms, _)| *at_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_due_in_order_and_once() {
        let mut timers = Timers::default();
        for (client, at_ms) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            timers.set(client, at_ms);
        }
        timers.set(3, 40);
        timers.forget(4);
        timers.forget(9);
        assert_eq!((timers.next_ms(), timers.due(9)), (Some(10), None));
        let due: Vec<u64> = std::iter::from_fn(|| timers.due(50)).collect();
        assert_eq!(due, [2, 1, 3]);
        assert_eq!(timers.next_ms(), None);
    }

    /// A client that waits again and again, each time with a distant deadline, leaves nothing behind.
    #[test]
    fn deadlines_that_are_not_needed_any_more_do_not_pile_up() {
        let mut timers = Timers::default();
        for n in 0..100_000 {
            timers.set(7, 1_000_000 + n);
            if n % 3 == 0 {
                timers.forget(7);
            }
        }
        assert!(timers.queue.len() <= 1 && timers.of.len() <= 1);
    }
}
