//! Limits for clients that do not read: on the output that waits for them, and on what their replies keep
//! alive.
//!
//! Some connections are checked ten times a second. A connection over its soft `client-output-buffer-limit` is
//! cut off when its time is up, even if nothing else happens to it. What streamed replies keep alive is
//! reported to `work::snapshots`, which knows the limits. Clients idle for longer than `timeout` are closed,
//! and those that have not logged in within `auth-timeout`.
//!
//! - I1: a client waits, and is not idle, while one of its requests waits to be read, to run or to be answered:
//!   a late server never closes it.

use super::{Conn, EventLoop, LOOKS, State};
use crate::listed::List;
use exec::snapshots::Streamed;
use exec::stats::Counter;
use std::sync::atomic::Ordering;

impl EventLoop {
    /// Closes a client that exceeds its output limit; true if it does.
    pub(super) fn exceeds_output_limit(&mut self, slot: usize) -> bool {
        let Some(conn) = self.conns[slot].as_mut() else { return false };
        if !conn.exceeds_output_limit(&self.server, self.local.log.now_ms) {
            if conn.is_over_soft_limit() {
                self.lists.add(List::Limited, slot, &mut **conn);
            }
            return false;
        }
        let id = conn.session.id;
        let who = match &conn.session.feed {
            Some(feed) => {
                // It may have come here between two looks at how replicas keep up.
                feed.name_slow();
                format!("the replica at {} (client {id})", conn.session.info.address)
            }
            None => format!("client {id}"),
        };
        let bytes = conn.bytes_to_send();
        log::warn!("{who} closed: {bytes} bytes wait for it, more than client-output-buffer-limit allows");
        self.local.log.recorder.add(Counter::OutputBufferDisconnections, 1);
        self.doom(slot);
        true
    }

    /// Checks some of the connections that are over their soft limit.
    pub(super) fn look_at_limited(&mut self) {
        for _ in 0..self.lists.len(List::Limited).min(LOOKS) {
            let Some(slot) = self.lists.pop(List::Limited, &mut self.conns) else { return };
            self.exceeds_output_limit(slot);
        }
    }

    /// Checks some of the long requests that are on their way.
    pub(super) fn look_at_hauls(&mut self) {
        for _ in 0..self.lists.len(List::Hauling).min(LOOKS) {
            let Some(slot) = self.lists.pop(List::Hauling, &mut self.conns) else { return };
            let Some(conn) = self.conns[slot].as_mut().filter(|conn| !conn.doomed) else { continue };
            let wanted = conn.wants_input();
            if conn.look_at_haul(&self.server, &self.local) {
                self.lists.add(List::Hauling, slot, &mut **conn);
            }
            if wanted != conn.wants_input() || conn.session.speech.closing {
                // More is read from it, or it is told why not.
                self.mark_dirty(slot);
            }
        }
    }

    /// Visits some of the streamed replies; reports at the end of each round what they keep alive.
    pub(super) fn look_at_streams(&mut self) {
        let mut left = self.streams_left.take().unwrap_or_else(|| self.lists.len(List::Streaming));
        for _ in 0..LOOKS {
            if left == 0 {
                let found = std::mem::take(&mut self.streams);
                return self.server.work.snapshots.note_streams(self.local.log.id, found);
            }
            let listed = self.lists.len(List::Streaming);
            let next = self.lists.pop(List::Streaming, &mut self.conns);
            // Connections that have gone are left out by the way, and count too.
            let passed = listed - self.lists.len(List::Streaming);
            let is_of_round = passed <= left;
            left = left.saturating_sub(passed);
            let Some(slot) = next else { continue };
            let Some(conn) = self.conns[slot].as_mut() else { continue };
            if !is_of_round {
                self.lists.add(List::Streaming, slot, &mut **conn);
                continue;
            }
            let Some(since_ms) = conn.streams_since_ms(self.local.log.now_ms) else { continue };
            self.lists.add(List::Streaming, slot, &mut **conn);
            let (loop_id, client) = (self.local.log.id, conn.session.id);
            let streams = &mut self.streams;
            conn.held(&mut |held| streams.push(Streamed { client, loop_id, since_ms, held }));
        }
        self.streams_left = Some(left);
    }

    /// Whether a client has had to log in for longer than `auth-timeout`. HTTP's requests name their users.
    fn is_late(&self, conn: &Conn) -> bool {
        let limit_ms = (self.server.config.live.auth_timeout_s.get() as u64).saturating_mul(1000);
        let waited_ms = self.local.log.now_ms.saturating_sub(conn.session.login.guest_since_ms);
        let has_to = conn.http_idle_since_ms().is_none() && !conn.session.login.is_let_in(&self.server.acl);
        limit_ms > 0 && has_to && waited_ms > limit_ms
    }

    /// Closes a client that has asked nothing for too long (I1), or has not logged in.
    pub(super) fn close_if_idle(&mut self, slot: usize) {
        let Some(conn) = self.conns[slot].as_ref().filter(|conn| !conn.is_link()) else { return };
        if self.is_late(conn) {
            self.doom(slot);
            return;
        }
        let live = &self.server.config.live;
        let (since_ms, limit) = match conn.http_idle_since_ms() {
            Some(since_ms) => (since_ms, &live.http_timeout_s),
            None => (conn.session.info.last_ms.load(Ordering::Relaxed), &live.timeout_s),
        };
        let (idle_ms, limit_ms) =
            (self.local.log.now_ms.saturating_sub(since_ms), (limit.get() as u64).saturating_mul(1000));
        let waits = conn.state != State::Running || !conn.session.subs.is_empty();
        // The socket is asked last: that costs a system call.
        if limit_ms > 0 && idle_ms > limit_ms && !waits && conn.asks_nothing() {
            self.doom(slot);
        }
    }
}
