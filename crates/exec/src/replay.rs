//! Told commands, as a log gives them, change this server ([`apply`]).

use crate::Server;
use crate::mail::Mail;
use apply::Host;
use command::{Command, Error};
use keyspace::{Changes, Keyspace};
use pubsub::Shared;
use resp::Args;
use scripts::libraries;
use std::sync::Arc;

/// An execution of told commands by a server.
pub type Replay = apply::Replay<Server>;

impl Host for Server {
    fn keyspace(&self) -> &Arc<Keyspace> {
        &self.keyspace
    }

    fn tell(&self, changes: Changes) {
        if changes.is_quiet() {
            return;
        }
        let ready = Server::tell(self, changes);
        if !ready.is_empty() && self.loops() > 0 {
            self.send(0, Mail::Ready(ready));
        }
    }

    fn publish(&self, shard: bool, channel: &[u8], text: &[u8]) {
        self.pubsub.announce(shard, channel, || Shared::Own(text.into()));
    }

    fn change_libraries(
        &self,
        command: &'static Command,
        args: Args<'_>,
        in_group: bool,
    ) -> Result<(), Error> {
        let limits = self.scripts.limits(&self.config.live);
        let change = libraries::asked_for(command, args)?.prepare_from_file(&limits)?;
        match in_group {
            true => change.make(&self.scripts.code)?,
            false => _ = change.make_for_all(&self.scripts.code, &self.keyspace, None)?,
        }
        Ok(())
    }
}
