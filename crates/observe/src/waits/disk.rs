//! The last calls of the append-only log to its disk.
//!
//! ```text
//! log's threads ─ note ─► the last KEPT calls ◄─ longest_since ─ a loop, for a reply that waited long
//! ```
//!
//! - D1: a call is noted before its bytes are told to be durable. So a reply that waited for it finds it.
//!
//! Cost: a lock and O(1) for each call; O([`KEPT`]) for each long wait.

use parking_lot::Mutex;
use std::collections::VecDeque;

/// Calls that are kept.
const KEPT: usize = 64;

/// A call to the disk that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskCall {
    /// Its name among the events of LATENCY.
    pub name: &'static str,
    pub ns: u64,
    /// When it ended, by the monotonic clock.
    pub ended_ns: u64,
}

/// The last calls.
#[derive(Debug, Default)]
pub struct DiskCalls(Mutex<VecDeque<DiskCall>>);

impl DiskCalls {
    /// Notes a call that has just ended. Cost: O(1).
    pub fn note(&self, call: DiskCall) {
        let mut calls = self.0.lock();
        if calls.len() == KEPT {
            calls.pop_front();
        }
        calls.push_back(call);
    }

    /// The longest call that was under way at `since_ns` (monotonic clock) or began later. Cost: O([`KEPT`]).
    pub fn longest_since(&self, since_ns: u64) -> Option<DiskCall> {
        let calls = self.0.lock();
        calls.iter().filter(|call| call.ended_ns >= since_ns).max_by_key(|call| call.ns).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_call_of_a_wait_is_found_among_the_last() {
        let calls = DiskCalls::default();
        assert_eq!(calls.longest_since(0), None);
        let call = |name, ended_ns, ns| DiskCall { name, ns, ended_ns };
        calls.note(call("before", 99, 90));
        calls.note(call("write", 110, 5));
        calls.note(call("sync", 190, 80));
        assert_eq!(calls.longest_since(100).map(|call| call.name), Some("sync"));
        assert_eq!(calls.longest_since(90).map(|call| call.name), Some("before"));
        assert_eq!(calls.longest_since(191), None);
        (0..KEPT as u64).for_each(|n| calls.note(call("later", 200 + n, 1)));
        assert_eq!(calls.longest_since(0).map(|call| call.name), Some("later"));
        assert_eq!(calls.0.lock().len(), KEPT);
    }
}
