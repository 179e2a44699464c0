//! What came, in the order in which it is served: others' requests go before the rest of what one connection has sent, and
//! before those who go when many go at once.
//!
//! ```text
//! events:  requests, in the order they came ─────────► served first, FRESH at a time
//! arrears: further bytes of who has sent much ───────► a chore, once the events told before are served
//! endings: who goes, when many do ───────────────────► another, likewise
//! ```
//!
//! - R1: what is told of a connection is served in the order it was told: whatever comes behind its arrears joins them.
//! - R2: a slot is free for another connection only behind all that was told of the one before.
//!
//! Arrears hold at most the transport's receive buffers (128 a loop) and a few events per connection.

use super::{CHORE_NS, EventLoop};
use crate::transport::{Event, Transport};
use std::sync::atomic::Ordering;

/// Events that wait to be served from which on those of connections that end are served after the others.
const ENDINGS: usize = 16;
/// So many buffers of bytes from one connection that wait to be served are among what others asked; further ones come behind it.
const AMONG: u32 = 2;

impl EventLoop {
    /// Who sends much has many buffers filled at once, ten of them 128: others' requests do not stand behind more than [`AMONG`] of
    /// each. What is told of a connection stays in order.
    pub(super) fn sort_bytes(&mut self, slot: usize, event: Event) {
        match self.conns[slot].as_mut() {
            Some(conn) if conn.arrears > 0 || conn.queued || conn.holds_much() || conn.among >= AMONG => {
                self.stand_behind(slot, event)
            }
            Some(conn) => {
                conn.among += 1;
                self.events.push_back(event);
            }
            None => self.events.push_back(event),
        }
    }

    pub(super) fn stand_behind(&mut self, slot: usize, event: Event) {
        if let Some(conn) = self.conns[slot].as_mut() {
            conn.arrears += 1;
        }
        self.arrears.push_back((self.taken + self.events.len() as u64, event));
    }

    /// Takes in bytes that came behind others, for one chore's time.
    pub(super) fn serve_arrears<T: Transport>(&mut self, io: &mut T) {
        if self.arrears.is_empty() {
            return;
        }
        let until = self.local.lap() + CHORE_NS;
        while self.arrears.front().is_some_and(|(after, _)| *after <= self.taken) {
            let Some((_, event)) = self.arrears.pop_front() else { return };
            if let Some(slot) = event.slot()
                && let Some(conn) = self.conns[slot].as_mut()
            {
                conn.arrears -= 1;
            }
            self.serve(io, event);
            if self.local.lap() >= until {
                return;
            }
        }
    }

    /// Where many go at once, others' requests come first: each ending costs its connection and its slot some microseconds. Endings
    /// keep their order, and come after what was told before them. Who waits in a command takes nothing from now on.
    pub(super) fn sort_in<T: Transport>(&mut self, io: &mut T, event: Event) {
        let goes = match event {
            Event::Ended(slot) | Event::Broken(slot) | Event::Half(slot) | Event::Last(slot) => Some(slot),
            Event::Free(_) => None,
            _ => return self.events.push_back(event),
        };
        if let Some(slot) = goes
            && let Some(conn) = self.conns[slot].as_mut()
        {
            if conn.is_blocked() {
                conn.session.cancel.store(true, Ordering::Relaxed);
            }
            if conn.arrears > 0 {
                return self.stand_behind(slot, event);
            }
            if self.events.len() < ENDINGS && self.endings.is_empty() {
                return self.events.push_back(event);
            }
            io.put_off(slot, &conn.socket);
        }
        self.endings.push_back((self.taken + self.events.len() as u64, event));
    }

    /// Hears of those who go, for one chore's time.
    pub(super) fn hear_endings<T: Transport>(&mut self, io: &mut T) {
        if self.endings.is_empty() {
            return;
        }
        let until = self.local.lap() + CHORE_NS;
        while self.endings.front().is_some_and(|(after, _)| *after <= self.taken) {
            let Some((_, event)) = self.endings.pop_front() else { return };
            match event {
                // What is left of the slot's connection comes first.
                Event::Free(_) if !self.arrears.is_empty() => self.arrears.push_back((self.taken, event)),
                event => self.serve(io, event),
            }
            if self.local.lap() >= until {
                return;
            }
        }
    }
}
