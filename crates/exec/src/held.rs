//! A command that cannot run at this moment: its client is held and runs it again.

use crate::pause::Pause;
use crate::session::flag;
use crate::waits::What;
use crate::{Flow, Local, Server, Session};
use command::Command;
use resp::Args;

/// Whether a long commit is protected against writers of this command's keys.
#[cold]
pub(crate) fn is_guarded(server: &Server, local: &Local, command: &Command, args: Args<'_>) -> bool {
    let mut keys = Vec::new();
    command.each_key(args, &mut |i, _| keys.push(args.at(i)));
    note_guard(local, server.keyspace.guarded(keys.into_iter(), local.log.now_ms))
}

/// Notes the client whose commit holds a client up. False: none does.
pub(crate) fn note_guard(local: &Local, guarded: Option<keyspace::Guarded>) -> bool {
    if let Some(guarded) = guarded {
        local.guard.set(guarded.client);
    }
    guarded.is_some()
}

/// Holds a client for a protected commit: its command is run again in a moment.
pub(crate) fn wait_for_guard(session: &Session, local: &Local) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    if session.guarded.get().is_none() {
        session.guarded.set(Some((local.guard.get(), local.log.clock_ns)));
    }
    Flow::Held(local.log.now_ms + 1)
}

/// Notes that a client waits for the end of CLIENT PAUSE.
pub(crate) fn for_pause(pause: &Pause, session: &mut Session, now_ns: u64) {
    session.set_flag(flag::BLOCKED, true);
    session.postponed.get_or_insert_with(|| pause.postpone());
    session.waits_for_itself(What::Pause, now_ns);
}

/// Holds a client because another loop is doing what its command depends on: it is run again in a moment.
pub(crate) fn retry(session: &Session, local: &Local) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    Flow::Held(local.log.now_ms + 1)
}

/// Holds a client for so many milliseconds, then runs its command again.
pub(crate) fn retry_later(session: &Session, local: &Local, ms: u64) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    Flow::Held(local.log.now_ms + ms)
}

/// Ends a slice of a command, which goes on in this loop's next turn (`Half::done` says where).
pub(crate) fn go_on(session: &Session, local: &Local) -> Flow {
    session.set_flag(flag::BLOCKED, true);
    Flow::Held(local.log.now_ms)
}
