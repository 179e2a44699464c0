//! When a connection's bytes came, so that the latency of its requests is known.
//!
//! ```text
//! bytes:  ░░░░░░░░░████████████████▒▒▒▒▒▒▒▒▒▒▒▒▒
//!         run      came at `ns`    `next`    `last`
//! ```
//!
//! Three times are kept, not one for each piece. So behind much that waits, a request counts as having come a
//! little earlier than it did, never later.

/// The times of the bytes that have not run. Cost: some comparisons for each piece and each quantum.
#[derive(Default)]
pub(crate) struct Came {
    /// Bytes received in all.
    received: u64,
    /// The time of the oldest that has not run; 0: none came yet.
    ns: u64,
    /// The places from which on bytes came at a later time.
    next: Option<(u64, u64)>,
    last: Option<(u64, u64)>,
}

impl Came {
    /// Notes `n` bytes that came at that time. `waits`: bytes before them have not run.
    #[inline]
    pub(crate) fn came(&mut self, n: usize, now_ns: u64, waits: bool) {
        if !waits {
            (self.ns, self.next, self.last) = (now_ns, None, None);
        } else if self.next.is_none() {
            self.next = Some((self.received, now_ns));
        } else {
            self.last = Some((self.received, now_ns));
        }
        self.received += n as u64;
    }

    /// The time of the first of the last `unread` bytes.
    #[inline]
    pub(crate) fn first_of(&mut self, unread: usize) -> u64 {
        let run = self.received.saturating_sub(unread as u64);
        while let Some((from, ns)) = self.next.filter(|(from, _)| *from <= run) {
            debug_assert!(from <= self.received);
            (self.ns, self.next) = (ns, self.last.take());
        }
        self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_alone_counts_from_its_own_time() {
        let mut came = Came::default();
        came.came(10, 5, false);
        assert_eq!(came.first_of(10), 5);
        came.came(10, 9, false);
        assert_eq!(came.first_of(10), 9);
    }

    #[test]
    fn a_long_queue_counts_no_later_than_it_came_and_ages_are_bounded() {
        let mut came = Came::default();
        came.came(100, 1, false);
        (2..50).for_each(|ns| came.came(100, ns, true));
        assert_eq!(came.first_of(4900), 1);
        // The second piece is next; of the others only the last place is known.
        assert_eq!(came.first_of(4750), 2);
        assert_eq!(came.first_of(150), 2);
        assert_eq!(came.first_of(100), 49);
        // A client that never waits for its replies.
        for ns in 50..500 {
            came.came(100, ns, true);
            assert!(ns - came.first_of(100) <= 2);
        }
    }
}
