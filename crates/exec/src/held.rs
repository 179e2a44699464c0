//! A command that cannot run at this moment: its client is held and runs it again.

use crate::act::Act;
use crate::session::flag;
use crate::{Local, Server, Session};
use command::Flow;
use command::{Command, Error};
use observe::waits::{Lacking, What};
use resp::Args;
use work::pause::Pause;

/// The reason why a command does not run now.
pub(crate) enum Stop {
    /// The client's user is no more: its connection closes.
    Closed,
    Refused(Error),
    /// The command is refused, and the client's transaction is discarded.
    Aborted(Error),
    /// The command is run again at that time (milliseconds since 1970).
    Held(u64),
    /// The command becomes part of the client's transaction.
    Queued,
}

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
    if session.holds.guarded.get().is_none() {
        session.holds.guarded.set(Some((local.guard.get(), local.log.clock_ns)));
    }
    Flow::Held(local.log.now_ms + 1)
}

/// Notes that a client waits for the end of CLIENT PAUSE.
pub(crate) fn for_pause(pause: &Pause, session: &mut Session, now_ns: u64) {
    session.set_flag(flag::BLOCKED, true);
    session.holds.postponed.get_or_insert_with(|| pause.postpone());
    if pause.is_of_role() {
        waits_for_replica(session, Lacking::Successor, now_ns);
    } else {
        session.waits_for_itself(What::Pause, now_ns);
    }
}

/// Notes the replica that a client waits for by now.
pub(crate) fn waits_for_replica(session: &Session, lacking: Lacking, now_ns: u64) {
    let since_ns = session.holds.lacking.get().map_or(now_ns, |(_, since_ns)| since_ns);
    session.holds.lacking.set(Some((lacking, since_ns)));
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

/// Stops the command until that time, when it is run again.
pub(crate) fn held(act: &Act<'_, '_>, until_ms: u64) -> Stop {
    act.session.set_flag(flag::BLOCKED, true);
    Stop::Held(until_ms)
}
