//! Publishes the events of one key in a script or transaction, in slices: there may be millions.
//!
//! It goes no faster than the deliveries: it pauses while [`PubSub::is_busy`].

use crate::message::Shared;
use crate::notify::{keyevent_channel, keyspace_channel};
use crate::{Passing, PubSub};
use config::notify;
use keyspace::{Happening, Lsn, Run};

/// Messages per step: some 10 µs.
const MESSAGES: usize = 16;

/// A run of events that is being published.
pub struct Running {
    run: Run,
    /// Messages dealt with: two per event, also if they are not wanted.
    done: usize,
    /// The message that still has patterns to pass.
    passing: Option<Box<Passing>>,
    gate: Lsn,
}

impl Running {
    pub(super) fn new(run: Run, gate: Lsn) -> Running {
        Running { run, done: 0, passing: None, gate }
    }

    /// The memory it takes while it waits, about, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.run.key.len() + self.run.happened.bytes()
    }

    /// Publishes up to [`MESSAGES`] messages. True if all are published, or there are no subscribers.
    pub(super) fn advance(&mut self, pubsub: &PubSub) -> bool {
        if self.passing.is_none() && pubsub.is_unheard() {
            return true;
        }
        for _ in 0..MESSAGES {
            if let Some(passing) = &mut self.passing
                && pubsub.pass(passing).is_none()
            {
                return false;
            }
            self.passing = None;
            if pubsub.is_busy() {
                return false;
            }
            let Some(what) = self.run.happened.get(self.done / 2) else { return true };
            self.passing = self.publish(pubsub, what);
            self.done += 1;
        }
        false
    }

    fn publish(&self, pubsub: &PubSub, Happening { class, name, db }: Happening) -> Option<Box<Passing>> {
        let (key, keyspace) = (&*self.run.key, &pubsub.keyspace);
        if !keyspace.notifies(class) || db >= keyspace.databases() {
            return None;
        }
        let wanted = pubsub.config.live.notify.get() as u32;
        let published = match self.done % 2 {
            0 if wanted & notify::KEYSPACE != 0 => {
                let channel = keyspace_channel(db, key);
                pubsub.publish(false, &channel, self.gate, || Shared::Own(name.as_bytes().into()))
            }
            1 if wanted & notify::KEYEVENT != 0 => {
                let channel = keyevent_channel(db, name);
                pubsub.publish(false, channel.as_bytes(), self.gate, || Shared::Own(key.into()))
            }
            _ => return None,
        };
        published.err()
    }
}
