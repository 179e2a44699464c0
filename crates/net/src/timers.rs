//! When parked clients must be looked at again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Deadlines of clients; stale ones are skipped by whoever pops them.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Timers {
    pub(crate) fn add(&mut self, at_ms: u64, client: u64) {
        self.heap.push(Reverse((at_ms, client)));
    }

    /// A client whose deadline has come.
    pub(crate) fn due(&mut self, now_ms: u64) -> Option<u64> {
        match self.heap.peek() {
            Some(Reverse((at, _))) if *at <= now_ms => self.heap.pop().map(|Reverse((_, client))| client),
            _ => None,
        }
    }

    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}
