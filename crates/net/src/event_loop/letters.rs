//! Letters from other threads: each is opened on the loop whose client it is about.
//!
//! ```text
//! other loops, workers, the log ─► mailbox ─all at once─► mail ─in slices─► exec, or the connection itself
//! ```
//!
//! - L1: letters are opened in the order they came, with [`SLICE_NS`] a turn at most.
//! - L2: a letter about a client that has gone is dropped: its reply has no reader.
//! - L3: an answer that comes by mail passes the gate of the log before it is sent.
//!
//! Cost: one lock of the mailbox a turn with letters; O(1) a letter but for opened gates.

use super::{EventLoop, SLICE_NS};
use crate::conn::{Conn, State};
use crate::doors::Change;
use crate::handshakes::Newcomer;
use crate::listed::List;
use crate::transport::Transport;
use exec::mail::{Mail, Moved};
use exec::parts::Moving;
use exec::pubsub::Encoded;
use exec::waits::Spent;
use exec::{After, Session, Sessions};
use std::collections::HashMap;

impl EventLoop {
    pub(super) fn read_mail<T: Transport>(&mut self, io: &mut T) {
        let until = self.local.log.lap() + SLICE_NS;
        self.server.mailbox(self.local.log.id).drain(&mut self.letters);
        self.mail.extend(self.letters.drain(..));
        while let Some(letter) = self.mail.pop_front() {
            self.open(io, letter);
            if self.local.log.lap() >= until {
                return;
            }
        }
    }

    /// Opens a letter. Those that are not about connections are exec's.
    fn open<T: Transport>(&mut self, io: &mut T, letter: Mail) {
        let mut done = std::mem::take(&mut self.done);
        let mut sessions = Table { by_id: &self.by_id, conns: &mut self.conns };
        let after = exec::receive(&self.server, &mut self.local, &mut sessions, letter, &mut done);
        self.deliver_all(done);
        match after {
            After::Nothing => {}
            After::Parked { client, until_ms, timeout_ms } => self.park(client, until_ms, timeout_ms),
            After::LookAgain => self.releasing = Some(0),
            After::OpenGates => self.open_gates(),
            After::Inbox(client) => self.open_inbox(client),
            After::Unopened(letter) => self.open_own(io, letter),
        }
    }

    /// Opens a letter about connections.
    fn open_own<T: Transport>(&mut self, io: &mut T, letter: Mail) {
        match letter {
            Mail::Publish(message) => self.publishing.push_back(self.local.subscribers.fan_out(message)),
            Mail::Kill { client } => match self.by_id.get(&client) {
                Some(&slot) => self.doom(slot),
                None => self.pass_on_kill(client),
            },
            Mail::Adopt(any) => match any.downcast::<Box<Conn>>() {
                Ok(conn) => self.adopt(io, *conn),
                Err(any) => match any.downcast::<Newcomer>() {
                    Ok(newcomer) => self.welcome(io, *newcomer),
                    Err(any) => {
                        if let Ok(change) = any.downcast::<Change>() {
                            self.doors.change(*change);
                        }
                    }
                },
            },
            Mail::Moving { client, to } => self.tell_moved(client, to.as_deref()),
            Mail::Fed => self.feed(),
            Mail::Shutdown => self.stopping = true,
            _ => {}
        }
    }

    /// More effects are durable: connections whose replies waited for that are looked at again. O(connections
    /// that wait)
    pub(super) fn open_gates(&mut self) {
        while let Some(slot) = self.lists.pop(List::Gated, &mut self.conns) {
            self.mark_dirty(slot);
        }
        self.feed();
    }

    /// A client hears that another server leads. A write of its that was held until then has not run: the
    /// connection closes without an answer, so that the client repeats it there. So it does for a wait for
    /// keys, which took nothing, or it is sent there (CLIENT CAPA redirect). O(1)
    fn tell_moved(&mut self, client: u64, to: Option<&Moved>) {
        let Some(&slot) = self.by_id.get(&client) else { return };
        let Some(conn) = self.conns[slot].as_mut() else { return };
        let has_waited = std::mem::take(&mut conn.session.settings.ended_wait);
        let (hears, resp3) = (conn.session.settings.moving != Moving::Off, conn.session.speech.resp3);
        let answer = match to {
            Some(_) if hears => Vec::new(),
            Some(to) => role::replicas::redirected(&to.to, resp3),
            None => role::replicas::unblocked(resp3),
        };
        if let Some(to) = to {
            self.tell_place(slot, to);
        }
        if let Some(conn) = self.conns[slot].as_mut().filter(|_| has_waited) {
            conn.session.speech.closing |= hears || to.is_none();
            self.deliver(client, answer, None, None);
        }
    }

    fn tell_place(&mut self, slot: usize, to: &Moved) {
        let Some(conn) = self.conns[slot].as_mut() else { return };
        let Moving::On { named } = conn.session.settings.moving else { return };
        conn.session.settings.moving = Moving::Told;
        let before = conn.told;
        let more = conn.push(&Encoded::Short(to.message(named).into()), 0, &mut self.pool);
        self.told += conn.told - before;
        let is_held = matches!(conn.state, State::Held(_)) && conn.session.waits_for_successor();
        if is_held {
            conn.session.speech.closing = true;
            conn.release();
        }
        if more || is_held {
            self.queue(slot);
        }
        self.mark_dirty(slot);
    }

    /// There is more for replicas: their connections are continued, and those that lag too far are closed.
    /// O(replicas of this loop)
    pub(super) fn feed(&mut self) {
        for _ in 0..self.lists.len(List::Fed) {
            let Some(slot) = self.lists.pop(List::Fed, &mut self.conns) else { return };
            let Some(conn) = self.conns[slot].as_mut().filter(|conn| !conn.doomed) else { continue };
            conn.feed();
            self.lists.add(List::Fed, slot, &mut **conn);
            if !self.exceeds_output_limit(slot) {
                self.queue(slot);
            }
        }
    }

    /// Delivers all, and keeps their list for the next.
    pub(super) fn deliver_all(&mut self, mut done: Vec<exec::piece::Delivery>) {
        done.drain(..).for_each(|delivery| self.deliver_done(delivery));
        self.done = done;
    }

    fn deliver_done(&mut self, done: exec::piece::Delivery) {
        if let (Some(db), Some(&slot)) = (done.selected, self.by_id.get(&done.client))
            && let Some(conn) = self.conns[slot].as_mut()
        {
            conn.session.select(db);
        }
        self.deliver(done.client, done.bytes, done.stream, done.spent);
    }

    /// A client waits for keys from now on.
    fn park(&mut self, client: u64, until_ms: Option<u64>, timeout_ms: Option<u64>) {
        let Some(&slot) = self.by_id.get(&client) else { return };
        let Some(conn) = self.conns[slot].as_mut() else { return };
        conn.state = State::Parked(until_ms.or(timeout_ms.map(|ms| self.local.log.now_ms + ms)));
        if let Some(Some(at)) = conn.new_deadline() {
            self.timers.set(client, at);
        }
        if conn.is_orphaned() {
            self.doom(slot);
        }
    }

    pub(super) fn deliver(
        &mut self,
        client: u64,
        bytes: Vec<u8>,
        stream: Option<Box<dyn exec::Stream>>,
        spent: Option<Box<Spent>>,
    ) {
        let Some(&slot) = self.by_id.get(&client) else { return };
        let Some(conn) = self.conns[slot].as_mut() else { return };
        let stream =
            exec::waited::ended(&self.server, &mut self.local, &mut conn.session, spent, &bytes, stream);
        let gate = self.server.gate_of_mail(&mut conn.session);
        conn.resume(bytes, stream, gate);
        self.mark_dirty(slot);
        self.queue(slot);
        if self.server.keyspace.is_tracking() {
            self.open_inbox(client);
        }
    }
}

/// The clients of a loop.
struct Table<'a> {
    by_id: &'a HashMap<u64, usize>,
    conns: &'a mut [Option<Box<Conn>>],
}

impl Sessions for Table<'_> {
    fn session(&mut self, client: u64) -> Option<&mut Session> {
        let slot = *self.by_id.get(&client)?;
        self.conns[slot].as_mut().map(|conn| &mut conn.session)
    }

    fn waits_until(&self, client: u64) -> Option<u64> {
        let slot = *self.by_id.get(&client)?;
        self.conns[slot].as_ref().and_then(|conn| conn.waits_until())
    }
}
