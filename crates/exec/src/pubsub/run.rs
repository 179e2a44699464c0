//! What happened to one key in a script or transaction, published in slices: it may have been millions of events.
//!
//! It goes no faster than it is delivered: while as many deliveries are under way as may be, it waits.

use super::{Passing, Shared};
use crate::Server;
use crate::events::{keyevent_channel, keyspace_channel};
use config::notify;
use keyspace::{Happening, Run};

/// Messages in one step: some 10 µs.
const MESSAGES: usize = 16;

/// See the module.
pub struct Running {
    run: Run,
    /// Messages published: two of each event, of which some are not wanted.
    done: usize,
    /// One that has patterns to pass.
    passing: Option<Box<Passing>>,
}

impl Running {
    pub(super) fn new(run: Run) -> Running {
        Running { run, done: 0, passing: None }
    }

    /// Bytes it takes while it waits, about.
    pub(super) fn bytes(&self) -> usize {
        self.run.key.len() + self.run.happened.bytes()
    }

    /// Publishes some; true if all are published, or nobody would hear of them.
    pub(super) fn advance(&mut self, server: &Server) -> bool {
        let pubsub = &server.pubsub;
        if self.passing.is_none() && pubsub.is_unheard() {
            return true;
        }
        for _ in 0..MESSAGES {
            if let Some(passing) = &mut self.passing
                && pubsub.pass(server, passing).is_none()
            {
                return false;
            }
            self.passing = None;
            if pubsub.is_busy() {
                return false;
            }
            let Some(what) = self.run.happened.get(self.done / 2) else { return true };
            self.passing = self.publish(server, what);
            self.done += 1;
        }
        false
    }

    fn publish(&self, server: &Server, Happening { class, name, db }: Happening) -> Option<Box<Passing>> {
        let (key, keyspace) = (&*self.run.key, &server.keyspace);
        if !keyspace.notifies(class) || db >= keyspace.databases() {
            return None;
        }
        let wanted = server.config.live.notify.get() as u32;
        let published = match self.done % 2 {
            0 if wanted & notify::KEYSPACE != 0 => {
                let channel = keyspace_channel(db, key);
                server.pubsub.publish(server, false, &channel, || Shared::Own(name.as_bytes().into()))
            }
            1 if wanted & notify::KEYEVENT != 0 => {
                let channel = keyevent_channel(db, name);
                server.pubsub.publish(server, false, channel.as_bytes(), || Shared::Own(key.into()))
            }
            _ => return None,
        };
        published.err()
    }
}
