//! `maxmemory-clients`: clients are closed, the largest first, while all together take more than it allows.
//!
//! ```text
//! weighing: some connections a turn ─► the loop's sum, and its heaviest clients ─► the end of the round
//!                                            │ told to Clients, which adds the loops up │
//!                                            └──── too much, and none is heavier elsewhere: close it
//! ```
//!
//! Clients that asked for CLIENT NO-EVICT count in the sum, and are not closed.
//!
//! - V1: nothing walks over all connections in one go: a round visits them in slices, and ends with at most
//!   [`HEAVY`] of them.
//! - V2: a client is closed only while no loop has a heavier one, as far as the loops have told.
//!
//! Cost: O(1) for each connection of a slice, and O(HEAVY) for one that is among the heaviest. A client may so
//! take more than the limit for a round: some 100 ms, and longer with very many connections.

use super::EventLoop;
use exec::session::flag;
use exec::stats::Counter;
use std::sync::atomic::Ordering;

/// Clients that a round may close.
const HEAVY: usize = 32;

/// The heaviest clients that a round has met so far: bytes, slot and number, the heaviest first.
#[derive(Default)]
pub(super) struct Heaviest(Vec<(u64, usize, u64)>);

impl Heaviest {
    fn add(&mut self, bytes: u64, slot: usize, client: u64) {
        let at = self.0.partition_point(|(more, ..)| *more >= bytes);
        if at < HEAVY {
            self.0.truncate(HEAVY - 1);
            self.0.insert(at, (bytes, slot, client));
        }
    }

    /// The bytes of the heaviest one; 0 if there is none.
    fn bytes(&self) -> u64 {
        self.0.first().map_or(0, |(bytes, ..)| *bytes)
    }
}

impl EventLoop {
    /// Adds up what a connection takes, and notes it if it may be closed for that.
    pub(super) fn weigh(&mut self, slot: usize) {
        // A client that is being closed counts no more.
        let Some(conn) = self.conns[slot].as_deref().filter(|conn| !conn.doomed) else { return };
        let bytes = conn.weigh(&mut self.weighing.sum);
        let info = &conn.session.info;
        if info.flags.load(Ordering::Relaxed) & flag::NO_EVICT == 0 {
            self.weighing.heaviest.add(bytes, slot, info.id);
        }
    }

    /// Ends a round: tells its sum, and closes clients while that is too much (V1, V2).
    pub(super) fn end_weighing(&mut self) {
        let heaviest = std::mem::take(&mut self.weighing.heaviest);
        let (clients, loop_id) = (&self.server.observe.clients, self.local.log.id);
        clients.note_buffers(loop_id, std::mem::take(&mut self.weighing.sum), heaviest.bytes());
        let limit = self.server.config.live.clients_limit_bytes();
        if limit == 0 {
            return;
        }
        for (at, &(bytes, slot, client)) in heaviest.0.iter().enumerate() {
            let next = heaviest.0.get(at + 1).map_or(0, |(bytes, ..)| *bytes);
            if !self.server.observe.clients.gives_up(loop_id, bytes, next, limit) {
                return;
            }
            let is_it = |conn: &crate::conn::Conn| conn.session.id == client;
            if let Some(conn) = self.conns[slot].as_deref().filter(|conn| is_it(conn)) {
                // Work under way for it holds memory, too.
                conn.session.info.killed.store(true, Ordering::Relaxed);
                log::info!(
                    "client {client} closed: it takes {bytes} bytes, and all together more than maxmemory-clients"
                );
                self.local.log.recorder.add(Counter::EvictedClients, 1);
                self.doom(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_are_kept_in_order() {
        let mut heaviest = Heaviest::default();
        for n in 0..1000u64 {
            heaviest.add(n * 7919 % 1000, n as usize, n);
        }
        let bytes: Vec<u64> = heaviest.0.iter().map(|(bytes, ..)| *bytes).collect();
        assert_eq!(bytes, (1000 - HEAVY as u64..1000).rev().collect::<Vec<_>>());
        assert_eq!(heaviest.bytes(), 999);
    }
}
