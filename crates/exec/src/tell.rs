//! The whole answer to "who hears of a write?"
//!
//! ```text
//! under the locks of the keys   the effect, in the order of the sequence        log_effect, `CommitSink`
//! after them (X3)               keyspace events, messages, who waits for keys   after
//! before the reply leaves       its connection waits until that is durable      Session::gate, `net::gates`
//! ```
//!
//! A reply waits for the effects of its own command alone. A log that makes effects visible before they are
//! durable has to say which keys a read has to wait for.

use crate::mail::Mail;
use crate::{Local, Server, blocking};
use command::effects::Ran;
use keyspace::{Changes, Lsn, Ready, To, View};
use std::sync::atomic::Ordering;

impl Server {
    /// Hands a write's effect to whoever follows the sequence; the locks are still held.
    pub(crate) fn log_effect(&self, ran: Ran<'_>, view: &View<'_>) {
        command::effects::log(&self.keyspace, view, ran);
    }

    /// Tells a message to those that follow, who have subscribers of their own.
    pub(crate) fn tell_message(&self, shard: bool, channel: &[u8], message: &[u8]) {
        let name: &[u8] = if shard { b"SPUBLISH" } else { b"PUBLISH" };
        self.keyspace.tell_apart(To::Replicas, &mut [name, channel, message].into_iter());
    }

    /// Tells the outside what a command did (X3); gives what waiters are to be served with.
    pub(crate) fn tell(&self, mut changes: Changes) -> Vec<Ready> {
        if !changes.events.is_empty() {
            self.pubsub.notify(&changes.events);
        }
        changes.runs.drain(..).for_each(|run| self.pubsub.announce_run(run));
        if !changes.ready.is_empty() {
            self.park.begin_rounds(&mut changes.ready);
        }
        changes.ready
    }

    /// `tell`, and serves the waiters.
    #[inline]
    pub fn after(&self, local: &mut Local, changes: Changes) {
        local.newest = local.newest.max(changes.lsn);
        if !changes.events.is_empty() || !changes.runs.is_empty() || !changes.ready.is_empty() {
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

    /// Up to which LSN effects are durable. A reply that tells of a later one waits in its connection.
    #[inline]
    pub fn durable(&self) -> Lsn {
        self.durable.load(Ordering::Acquire)
    }

    /// Says up to which LSN effects are durable from now on, and lets go of the replies that waited for that.
    pub fn set_durable(&self, lsn: Lsn) {
        self.durable.store(lsn, Ordering::Release);
        self.loops.iter().for_each(|mailbox| mailbox.send(Mail::Durable));
    }

    /// The gate of a reply that comes by mail: it may tell of anything that is visible by now.
    #[inline]
    pub fn gate_of_mail(&self) -> Lsn {
        if self.durable() == Lsn::MAX { 0 } else { self.keyspace.last_lsn() }
    }
}
