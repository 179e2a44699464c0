//! MONITOR: a client sees the commands of all.
//!
//! - A command is shown when it begins, also if it is held on its way. A refused one is not shown.
//! - EXEC is shown behind the commands of its transaction. The first [`SHOWN_MAX`] of them are shown, up to
//!   64 KB.
//! - Calls of scripts are shown as those of `lua`, behind the script's own line, when the script has ended;
//!   the first thousand of them, up to 64 KB. A script that is killed or fails before its commit shows none.
//! - Commands of administration and passwords are not shown.
//! - A monitor whose replies are left out (CLIENT REPLY) gets no lines: neither those of commands that begin
//!   after OFF, up to the ON that ends it, nor that of the command whose reply SKIP leaves out.

use crate::act::{Act, PLAIN, Row};
use crate::parts::ReplyMode;
use crate::session::flag;
use crate::{Local, Server, Session};
use command::Flow;
use command::options::is;
use command::table::ADMIN;
use command::{Command, Error, facts};
use observe::calls;
use pubsub::{Kind, PubSub, monitor};
use resp::Args;

pub(super) const ACTIONS: &[Row] = &[Row("monitor", begin, PLAIN)];

/// Commands of one transaction that are shown.
const SHOWN_MAX: usize = 1000;
/// Bytes of lines above which no further one of a transaction is shown, as a loop has no time for more.
const SHOWN_BYTES: usize = 64 * 1024;

/// `MONITOR`: OK, and from then on a line for each command of any client. RESET ends it.
///
/// Cost: O(monitors). After that each command of any client costs a line, O(its words) up to 64 KB.
fn begin(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    if act.in_multi {
        return Err(Error::new("ERR MONITOR isn't allowed for DENY BLOCKING client"));
    }
    let (name, session) = (PubSub::monitors_name(), &mut *act.session);
    if session.subs.monitor.insert(name.clone()) {
        if session.speech.reply_mode != ReplyMode::Off {
            act.local.subscribers.add(Kind::Monitor, name, session.id);
        }
        act.server.pubsub.add_monitor(act.local.log.id, session.id);
        session.set_flag(flag::MONITOR, true);
    }
    act.out.ok();
    Ok(Flow::Done)
}

/// CLIENT REPLY OFF of a client that may be a monitor: it gets no lines from now on. O(log monitors).
pub(super) fn mute(local: &mut Local, session: &Session) {
    if let Some(name) = session.subs.monitor.first() {
        local.subscribers.remove(Kind::Monitor, name, session.id);
    }
}

/// CLIENT REPLY ON after an OFF: a monitor gets lines again. O(log monitors).
pub(super) fn unmute(local: &mut Local, session: &Session) {
    if let Some(name) = session.subs.monitor.first() {
        local.subscribers.add(Kind::Monitor, name, session.id);
    }
}

/// Ends what MONITOR began. O(monitors).
pub(crate) fn end(server: &Server, local: &mut Local, session: &mut Session) {
    if let Some(name) = session.subs.monitor.pop_first() {
        local.subscribers.remove(Kind::Monitor, &name, session.id);
        server.pubsub.remove_monitor(local.log.id, session.id);
        session.set_flag(flag::MONITOR, false);
    }
}

/// Shows a command that is about to run, once. O(its words, and those of the transaction) up to 64 KB, for
/// each monitor.
#[cold]
pub(crate) fn show(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>) {
    if std::mem::replace(&mut act.session.half.is_shown, true) || command.has(ADMIN) {
        return;
    }
    if command.is(facts::RUNS_QUEUE) {
        let Some(multi) = act.session.multi.as_ref().filter(|multi| !multi.broken) else { return };
        let mut bytes = 0;
        for (command, args) in multi.queue.iter().filter(|(command, _)| !command.has(ADMIN)).take(SHOWN_MAX) {
            bytes += send(act.server, act.session, command, args);
            if bytes > SHOWN_BYTES {
                break;
            }
        }
    }
    send(act.server, act.session, command, args);
}

/// Whether the reply of a command that begins is left out (CLIENT REPLY SKIP), and so its client's own line of
/// it. An ON is answered.
fn is_skipped(session: &Session, args: Args<'_>) -> bool {
    let ends =
        args.len() == 3 && ["client", "reply", "on"].iter().enumerate().all(|(i, word)| is(args.at(i), word));
    session.speech.reply_mode == ReplyMode::Skip && !ends
}

/// Sends the line of a command to the monitors, and gives its bytes.
fn send(server: &Server, session: &Session, command: &Command, args: Args<'_>) -> usize {
    let shown =
        |at: usize| if calls::is_secret(command, args, at) { &b"(redacted)"[..] } else { args.at(at) };
    let now_us = stdx::clock::wall_ns() / 1000;
    let words = (0..args.len()).map(shown);
    let line = monitor::line(now_us, session.db, &session.info.address, words);
    let bytes = line.len();
    let without = if is_skipped(session, args) { session.id } else { 0 };
    server.pubsub.monitor(line, without);
    bytes
}
