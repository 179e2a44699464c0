//! The reply gates of one connection: bytes that may not leave before what they tell of is durable.
//!
//! ```text
//! out: +PONG | +OK +PONG | :2       the first bytes may leave, the next when effects up to LSN 17 are
//! durable, the last            ▲ 17        ▲ 21       with 21
//! ```
//!
//! - GA1: a gate holds all bytes behind it, so replies leave in order; a later gate asks for more.
//!
//! Cost: one comparison per slice of commands, and one per flush, as long as what is visible is durable.

use keyspace::Lsn;
use std::collections::VecDeque;

/// See the module. Places count from the first byte that has not left.
#[derive(Default)]
pub(crate) struct Gates(VecDeque<(usize, Lsn)>);

impl Gates {
    /// Whether no byte is known to wait.
    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes from this place on wait for that LSN.
    #[cold]
    pub(crate) fn close(&mut self, from: usize, lsn: Lsn) {
        // Bytes behind a gate of the same or a later LSN wait for it anyway (GA1).
        if self.0.back().is_none_or(|(_, before)| *before < lsn) {
            self.0.push_back((from, lsn));
        }
    }

    /// Opens those that waited for no more than this LSN. Gives how many of so many bytes may leave.
    pub(crate) fn free(&mut self, bytes: usize, durable: Lsn) -> usize {
        while self.0.front().is_some_and(|(_, lsn)| *lsn <= durable) {
            self.0.pop_front();
        }
        self.0.front().map_or(bytes, |(from, _)| (*from).min(bytes))
    }

    /// Notes that so many bytes have left. O(gates).
    pub(crate) fn left(&mut self, bytes: usize) {
        self.0.iter_mut().for_each(|(from, _)| *from = from.saturating_sub(bytes));
    }

    /// Nothing is sent any more.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_and_when_they_may() {
        let mut gates = Gates::default();
        assert_eq!((gates.are_open(), gates.free(10, 0)), (true, 10));
        gates.close(4, 17);
        gates.close(6, 17);
        gates.close(8, 21);
        assert_eq!((gates.free(10, 16), gates.are_open()), (4, false));
        gates.left(4);
        assert_eq!(gates.free(6, 16), 0);
        assert_eq!(gates.free(6, 17), 4);
        gates.left(4);
        assert_eq!((gates.free(2, 20), gates.free(2, 21), gates.are_open()), (0, 2, true));
    }
}
