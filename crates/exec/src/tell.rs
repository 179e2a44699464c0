//! The whole answer to "who hears of a write?"
//!
//! ```text
//! under the locks of the keys   the effect, in the order of the sequence        log_effect, `CommitSink`
//! after them (X3)               keyspace events, messages, who waits for keys   after
//! before the reply leaves       its connection waits until that is durable      Session::gate, `net::gates`
//! ```
//!
//! A reply waits for the effects of its own command, and for those on the keys that it tells of
//! ([`Server::gate_of`]), errors and nulls included. So no client is told what a power failure could take back.

use crate::mail::Mail;
use crate::{Local, Server, Session, blocking};
use command::effects::Ran;
use command::{Command, Run, facts, table};
use keyspace::{Changes, Lsn, Ready, Told, View};
use resp::Args;
use work::Watch;

impl Server {
    /// Hands a write's effect to the sink. The caller still holds the locks.
    pub(crate) fn log_effect(&self, ran: Ran<'_>, view: &View<'_>) {
        command::effects::log(&self.keyspace, view, ran);
    }

    /// Tells the outside of a command's changes (X3). Returns the keys whose waiters have to be served.
    pub(crate) fn tell(&self, changes: Changes) -> Vec<Ready> {
        let Told { events, runs, mut ready } = changes.into_told();
        if !events.is_empty() {
            self.pubsub.notify(&events);
        }
        runs.into_iter().for_each(|run| self.pubsub.announce_run(run));
        self.park.begin_rounds(&mut ready);
        ready
    }

    /// As `tell`, and serves the waiters.
    #[inline]
    pub fn after(&self, local: &mut Local, changes: Changes) {
        local.newest = local.newest.max(changes.lsn);
        if !changes.is_quiet() {
            self.tell_and_serve(local, changes);
        }
    }

    #[cold]
    fn tell_and_serve(&self, local: &mut Local, changes: Changes) {
        let ready = self.tell(changes);
        if !ready.is_empty() {
            blocking::serve(self, local, ready);
        }
    }

    /// The LSN up to which effects are durable. A reply that tells of a later one waits in its connection.
    #[inline]
    pub fn durable(&self) -> Lsn {
        self.keyspace.durable()
    }

    /// Sets the LSN up to which effects are durable, and releases the replies that waited for it.
    pub fn set_durable(&self, lsn: Lsn) {
        self.keyspace.set_durable(lsn);
        self.loops.iter().for_each(|mailbox| mailbox.send(Mail::Durable));
    }

    /// Raises the client's gate for a reply that tells of these keys, which others may have changed. The keys
    /// are locked.
    #[inline]
    pub(crate) fn gate_of(&self, session: &mut Session, view: &View<'_>, command: &Command, args: Args<'_>) {
        if self.keyspace.gates() {
            self.close_gate(session, view, command, args);
        }
    }

    #[cold]
    fn close_gate(&self, session: &mut Session, view: &View<'_>, command: &Command, args: Args<'_>) {
        let mut gate = session.gate.lsn;
        if facts::has_unknown_keys(command, args) || matches!(command.run, Run::Whole(_)) {
            gate = gate.max(self.keyspace.last_lsn());
        }
        command.each_key(args, &mut |i, _| gate = gate.max(view.recent(args.at(i))));
        session.gate.lsn = gate;
    }

    /// Raises the client's gate for a reply that tells of these keys. No locks are held, and the reply is
    /// known: a write that it saw has drawn its LSN. O(keys), each under its shard's lock.
    pub(crate) fn gate_of_keys(&self, session: &mut Session, keys: impl Iterator<Item = u64>) {
        if self.keyspace.gates() {
            session.gate.lsn = session.gate.lsn.max(self.keyspace.recent(keys));
        }
    }

    /// The same for the keys that a command's row names.
    pub(crate) fn gate_of_words(&self, session: &mut Session, command: &Command, args: Args<'_>) {
        if !self.keyspace.gates() {
            return;
        }
        if facts::has_unknown_keys(command, args) {
            return self.gate_of_all(session);
        }
        let mut keys = Vec::new();
        command.each_key(args, &mut |i, _| keys.push(stdx::hash::hash_bytes(args.at(i))));
        self.gate_of_keys(session, keys.into_iter());
    }

    /// Raises the client's gate for the reply of an action, by what its row says. No locks are held. Scripts
    /// and EXEC know their keys better, and WATCH tells nothing.
    #[inline]
    pub(crate) fn gate_of_action(&self, session: &mut Session, command: &Command, args: Args<'_>) {
        if !self.keyspace.gates() {
            return;
        }
        if command.is(facts::TELLS_LIBRARIES) {
            session.gate.lsn = session.gate.lsn.max(self.keyspace.recent_beside());
        }
        let own = facts::SCRIPT | facts::WATCHES;
        if !command.keys.is_empty() && !command.is(own) && !command.has(table::PUBSUB) {
            self.gate_of_words(session, command, args);
        }
    }

    /// Raises the client's gate for an EXEC that found a watched key touched.
    pub(crate) fn gate_of_watched(&self, session: &mut Session, watch: &Watch) {
        self.gate_of_keys(session, watch.keys.keys().map(|(_, key)| stdx::hash::hash_bytes(key)));
    }

    /// Raises the client's gate for a reply that may tell of anything.
    pub fn gate_of_all(&self, session: &mut Session) {
        if self.keyspace.gates() {
            session.gate.lsn = session.gate.lsn.max(self.keyspace.last_lsn());
        }
    }

    /// Notes the keys that a parked command's reply will tell of, if the command only reads and names them
    /// all.
    pub(crate) fn park_gate(&self, session: &mut Session, command: &Command, args: Args<'_>) {
        session.gate.saw = None;
        if !self.keyspace.gates()
            || !matches!(command.run, Run::Read(_))
            || facts::has_unknown_keys(command, args)
        {
            return;
        }
        let mut keys = Vec::new();
        command.each_key(args, &mut |i, _| keys.push(stdx::hash::hash_bytes(args.at(i))));
        session.gate.saw = (!keys.is_empty()).then_some(keys);
    }

    /// The gate of a reply that comes by mail: the LSN of the keys that were noted, else of everything
    /// visible now. O(keys noted).
    #[inline]
    pub fn gate_of_mail(&self, session: &mut Session) -> Lsn {
        let saw = session.gate.saw.take();
        session.wrote = self.keyspace.last_lsn();
        if !self.keyspace.gates() {
            return 0;
        }
        match saw {
            Some(keys) => self.keyspace.recent(keys.into_iter()),
            // Libraries change before their LSN is drawn, under a lock that the first takes.
            None => self.keyspace.recent_beside().max(self.keyspace.last_lsn()),
        }
    }
}
