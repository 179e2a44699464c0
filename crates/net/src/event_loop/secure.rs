//! TLS on a loop: which clients shake hands first, and what becomes of the records of the others.

use super::EventLoop;
use crate::conn::Conn;
use crate::handshakes::Newcomer;
use crate::transport::{Event, Received, Transport};
use exec::Session;

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

    /// Sends the last record of a connection that is being closed, if none is half out.
    pub(super) fn say_last<T: Transport>(&self, io: &mut T, slot: usize, conn: &mut Conn) {
        if conn.sent_with == self.submissions {
            return;
        }
        if let Some(record) = conn.last_record() {
            // The peer may be gone.
            let _ = io.send(slot, &mut conn.socket, record, 0);
        }
    }
}

/// Makes a client the user that its certificate names. The only user is `default`: a client with that name needs
/// no password, and other names change nothing.
pub(super) fn log_in(session: &mut Session, names: &[Vec<u8>]) {
    session.authenticated |= names.iter().any(|name| name == b"default");
}
