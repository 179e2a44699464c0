//! TLS on a loop: which clients shake hands first, and what becomes of the records of the others.

use super::EventLoop;
use crate::handshakes::Newcomer;
use crate::transport::{Event, Received, Transport};

impl EventLoop {
    /// Whether a client of a listener with TLS may be accepted now. If not, it is tried again soon.
    pub(super) fn has_room_for_handshake(&mut self, listener: usize) -> bool {
        if !self.listeners.is_secure(listener)
            || self.listeners.handshakes.as_ref().is_some_and(|handshakes| handshakes.has_room())
        {
            return true;
        }
        (self.accepting[listener], self.starved) = (false, true);
        false
    }

    /// Welcomes a client, or lets it shake hands first.
    pub(super) fn meet<T: Transport>(&mut self, io: &mut T, listener: usize, newcomer: Newcomer) {
        let Some(handshakes) =
            self.listeners.handshakes.as_ref().filter(|_| self.listeners.is_secure(listener))
        else {
            return self.welcome(io, newcomer);
        };
        let observe = &self.server.observe;
        let clients = observe.clients.len() + handshakes.pending();
        if clients >= self.server.config.live.maxclients.size() {
            // Without a handshake it cannot be told why.
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

    /// Opens records and serves what they say.
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
        match opened {
            Ok(false) => {}
            Ok(true) => self.end(slot),
            Err(e) => {
                if let Some(conn) = self.conns[slot].as_ref() {
                    log::info!("client {} closed: {e}", conn.session.id);
                }
                self.doom(slot);
            }
        }
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
