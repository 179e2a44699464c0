//! TLS on a loop: which clients shake hands first, and what becomes of the records of the others.

use super::EventLoop;
use crate::handshakes::Newcomer;
use crate::transport::{Event, Received, Transport};

impl EventLoop {
    /// Whether a client of a listener with TLS may be accepted now. If not, it is tried again soon.
    pub(super) fn has_room_for_handshake(&mut self, listener: usize) -> bool {
        if !self.is_secure(listener)
            || self.doors.handshakes.as_ref().is_some_and(|handshakes| handshakes.has_room())
        {
            return true;
        }
        self.doors.pause(listener);
        self.starved = true;
        false
    }

    /// Whether clients of this listener shake hands first.
    fn is_secure(&self, listener: usize) -> bool {
        self.doors.at(listener).is_some_and(|door| door.is_secure)
    }

    /// Welcomes a client, or lets it shake hands first.
    pub(super) fn meet<T: Transport>(&mut self, io: &mut T, listener: usize, newcomer: Newcomer) {
        let Some(handshakes) = self.doors.handshakes.as_ref().filter(|_| self.is_secure(listener)) else {
            return self.welcome(io, newcomer);
        };
        let observe = &self.server.observe;
        let clients = observe.clients.len() + handshakes.pending();
        let full = clients >= self.server.config.live.maxclients.size();
        if full || self.is_crowded(&newcomer.address, handshakes.pending_of(&newcomer.address)) {
            // Without a handshake, which costs far more than a refusal, it cannot be told why.
            observe.clients.refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return;
        }
        handshakes.begin(newcomer);
    }

    /// Receives records, and serves what they say.
    pub(super) fn receive_sealed<T: Transport>(&mut self, io: &mut T, slot: usize, event: &Event) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        let mut room = std::mem::take(&mut self.sealed);
        match conn.receive_sealed(io, event, &mut room) {
            Ok(Received::Bytes(sealed)) => self.open_records(slot, sealed),
            Ok(Received::Appended(_) | Received::Nothing) => {}
            Ok(Received::Ended) => self.end(slot),
            Err(_) => self.lose(slot),
        }
        self.sealed = room;
        if self.conns[slot].as_ref().is_some_and(|conn| conn.listening && !conn.wants_input()) {
            self.listen(io, slot);
        }
    }

    /// Opens received records and serves what they say. If there are more than fit into a quantum, the others
    /// wait for the connection's next turn.
    pub(super) fn open_records(&mut self, slot: usize, sealed: &[u8]) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        let mut plain = std::mem::take(&mut self.opened);
        plain.clear();
        let opened = conn.open(sealed, &mut plain);
        if conn.owes_records() {
            self.mark_dirty(slot);
        }
        if !plain.is_empty() {
            self.came(slot, plain.len(), &plain);
        }
        self.opened = plain;
        if let Err(e) = opened {
            if let Some(conn) = self.conns[slot].as_ref() {
                log::info!("client {} closed: {e}", conn.session.id);
            }
            return self.doom(slot);
        }
        let Some(conn) = self.conns[slot].as_ref() else { return };
        if conn.has_sealed() {
            self.queue(slot);
        } else if conn.heard_farewell() && !conn.session.speech.closing {
            self.end(slot);
        }
    }

    /// Opens the next of the records that wait, of a connection whose turn it is. What they say is kept for the
    /// turn.
    #[cold]
    pub(super) fn open_waiting(&mut self, slot: usize) {
        // It is in the queue, so nothing runs yet.
        self.open_records(slot, &[]);
        // More may be received then.
        self.mark_dirty(slot);
    }

    /// Serves what a client has said together with its handshake.
    pub(super) fn hear_early(&mut self, slot: usize, early: &[u8]) {
        if !early.is_empty() {
            self.came(slot, early.len(), early);
        }
        if self.conns[slot].as_ref().is_some_and(|conn| conn.heard_farewell()) {
            self.end(slot);
        }
    }
}
