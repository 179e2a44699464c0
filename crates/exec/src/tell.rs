//! The whole answer to "who hears of a write?"
//!
//! ```text
//! under the locks of the keys   the effect, in the order of the sequence        log_effect, `keyspace::CommitSink`
//! after them (X3)               keyspace events, messages, who waits for keys   after
//! before the reply leaves       nobody: what is visible is durable              reply_gate
//! ```

use crate::{Local, Server, blocking};
use command::{Command, Effect};
use keyspace::{Changes, Ready, View};
use resp::{Args, OwnedArgs};

impl Server {
    /// Hands a write's effect to whoever follows the sequence; the locks are still held.
    pub(crate) fn log_effect(
        &self,
        command: &Command,
        args: Args<'_>,
        effects: &[OwnedArgs],
        view: &View<'_>,
    ) {
        let (Some(sink), lsn) = (self.keyspace.sink(), view.changes().lsn) else { return };
        if lsn == 0 || !command.is_write() || view.changes().dirty == 0 {
            return;
        }
        if command.effect == Effect::Itself && effects.is_empty() {
            return sink.effect(lsn, view.db(), &mut args.iter());
        }
        for effect in effects {
            sink.effect(lsn, view.db(), &mut effect.args().iter());
        }
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

    /// The place of the reply gate: a reply that made or observed an effect is held until that LSN is durable. Nothing
    /// is durable yet, so nothing is held.
    #[inline]
    pub(crate) fn reply_gate(&self, _lsn: keyspace::Lsn) -> bool {
        true
    }
}
