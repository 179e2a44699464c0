//! From a command's arguments to its reply: look-up, gates, plan, run, effects.

use crate::act::Act;
use crate::actions::monitor;
use crate::fetching;
use crate::gates::{self, Admitted};
use crate::half;
use crate::held::Stop;
use crate::inline::{run, run_in};
use crate::parts::ReplyMode;
use crate::session::flag;
use crate::{Local, Server, Session};
use command::{Command, Error, Stream};
pub use command::{Flow, INLINE_STEPS, resolve};
use observe::calls::Ran;
use observe::hotkeys::Hotkeys;
use observe::lasting;
use observe::waits::{Away, BIG_NS, Request, SLOW_NS};
use resp::{Args, OwnedArgs, Reply};
use rows::Plan;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use work::job;

/// The words of a command, as they came to its loop.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    pub args: Args<'a>,
    /// The same words, if they are many: a caller that keeps them takes a share, not a copy.
    pub kept: Option<&'a Arc<OwnedArgs>>,
    /// The hash of the first argument, if it is known.
    pub key_hash: Option<u64>,
}

impl<'a> From<Args<'a>> for Words<'a> {
    fn from(args: Args<'a>) -> Words<'a> {
        Words { args, kept: None, key_hash: None }
    }
}

/// Runs one command of a client. `out` gets the reply, behind what it holds already.
pub fn execute(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    words: Words<'_>,
    out: &mut Reply,
) -> Flow {
    stdx::panics::begin();
    if session.link.is_some() {
        return crate::obey::execute(server, local, session, words, out);
    }
    let Words { args, kept, key_hash } = words;
    let mark = out.len();
    if session.speech.reply_mode == ReplyMode::SkipNext {
        session.speech.reply_mode = ReplyMode::Skip;
    }
    let mut act = Act { kept, key_hash, ..Act::of_client(server, local, session, out) };
    let resolved = resolve(args);
    let command = resolved.as_ref().ok().copied();
    let flow = match resolved {
        Ok(command) => match kept.and_then(|words| command::bounds::refusal(command, words)) {
            None => serve(&mut act, command, args),
            Some(error) => refuse(&mut act, Some(command), &error),
        },
        Err(error) => match unresolved(&mut act, args, error) {
            Flow::Close => return Flow::Close,
            flow => flow,
        },
    };
    let (session, out) = (act.session, act.out);
    if !matches!(flow, Flow::Held(_)) {
        half::over(server, act.local, session, command);
    }
    if let Flow::Held(_) = flow {
        if session.speech.reply_mode != ReplyMode::On {
            out.truncate(mark);
            session.speech.take_told(out);
        }
        return flow;
    }
    match session.speech.reply_mode {
        ReplyMode::On | ReplyMode::SkipNext => flow,
        ReplyMode::Off => muted(flow, mark, session, out),
        // The reply that is to be dropped comes by mail.
        ReplyMode::Skip if matches!(flow, Flow::Parked(_)) => flow,
        ReplyMode::Skip => {
            session.speech.reply_mode = ReplyMode::On;
            muted(flow, mark, session, out)
        }
    }
}

/// Runs one command whose row is known, for a client that always gets a reply (no CLIENT REPLY).
pub fn execute_row(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    command: &'static Command,
    args: Args<'_>,
    out: &mut Reply,
) -> Flow {
    stdx::panics::begin();
    let flow = serve(&mut Act::of_client(server, local, session, out), command, args);
    if !matches!(flow, Flow::Held(_)) {
        half::over(server, local, session, Some(command));
    }
    flow
}

/// Answers a command that panicked before it changed anything (`stdx::panics`) and resets the state that it
/// left in its session. The bytes it wrote are taken back already.
#[cold]
pub fn recover(server: &Server, local: &mut Local, session: &mut Session, out: &mut Reply) {
    local.log.lap();
    session.rows.give_up();
    session.speech.muted = false;
    half::over(server, local, session, None);
    session.set_flag(flag::BLOCKED, false);
    if let Some(multi) = &mut session.multi {
        multi.broken = true;
        session.set_flag(flag::DIRTY_EXEC, true);
    } else if session.info.flags.load(Ordering::Relaxed) & flag::MULTI != 0 {
        // EXEC had taken it.
        crate::multi::leave(server, local, session);
    }
    server.observe.stats.rejected(&local.log, None, job::BROKEN);
    match session.speech.reply_mode {
        ReplyMode::On | ReplyMode::SkipNext => out.error(job::BROKEN),
        ReplyMode::Off => {}
        ReplyMode::Skip => session.speech.reply_mode = ReplyMode::On,
    }
}

/// The error text of [`recover`], for other protocols.
pub const BROKEN: &str = job::BROKEN;

/// Answers words that are not a well-formed call of a command.
#[cold]
fn unresolved(act: &mut Act<'_, '_>, args: Args<'_>, error: Error) -> Flow {
    if is_http(args) {
        // A browser or a web server was tricked into posting commands here: they get no answer.
        log::warn!("client {} speaks HTTP: closed", act.session.id);
        return Flow::Close;
    }
    match error {
        Error::Arity(name) if name == "exec" => {
            crate::multi::leave(act.server, act.local, act.session);
            let error = Error::Arity(name).text().replacen("ERR ", "", 1);
            act.out.error(&format!("EXECABORT Transaction discarded because of: {error}"));
            Flow::Done
        }
        error => refuse(act, miscalled(&error), &error),
    }
}

/// The command that was called with a wrong number of words.
fn miscalled(error: &Error) -> Option<&'static Command> {
    let Error::Arity(name) = error else { return None };
    let mut names = name.split('|');
    let command = command::registry::find_own(names.next()?.as_bytes())?;
    names.next().map_or(Some(command), |sub| command::registry::find_sub(command, sub.as_bytes()))
}

fn is_http(args: Args<'_>) -> bool {
    args.at(0).eq_ignore_ascii_case(b"post") || args.at(0).eq_ignore_ascii_case(b"host:")
}

pub(crate) fn muted(flow: Flow, mark: usize, session: &mut Session, out: &mut Reply) -> Flow {
    out.truncate(mark);
    session.speech.take_told(out);
    match flow {
        Flow::Stream(stream) if stream.has_effects() => {
            Flow::Stream(Box::new(Muted { stream, dropped: Reply::new(out.resp3()) }))
        }
        Flow::Stream(_) => Flow::Done,
        flow => flow,
    }
}

/// A stream that runs for its side effects; its bytes are dropped (CLIENT REPLY).
struct Muted {
    stream: Box<dyn Stream>,
    dropped: Reply,
}

impl Stream for Muted {
    fn fill(&mut self, _: &mut Reply, room: usize) -> bool {
        let more = self.stream.fill(&mut self.dropped, room);
        self.dropped.clear();
        more
    }
}

/// Writes an error reply. Inside MULTI, an error also makes EXEC fail.
fn refuse(act: &mut Act<'_, '_>, command: Option<&'static Command>, error: &Error) -> Flow {
    if let Some(multi) = &mut act.session.multi {
        multi.broken = true;
        act.session.set_flag(flag::DIRTY_EXEC, true);
    }
    // Rows that the call waited for, or was given, are not the next call's.
    act.session.rows.give_up();
    act.server.observe.stats.rejected(&act.local.log, command, &error.text());
    act.out.error(&error.text());
    Flow::Done
}

/// Carries out a gate's decision about a command that does not run now.
fn stop(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>, stop: Stop) -> Flow {
    match stop {
        Stop::Queued => {
            let (live, info) = (&act.server.config.live, &act.session.info);
            act.server.observe.stats.requested(live, info, command, args);
            crate::multi::queue(act, command, args)
        }
        Stop::Held(until_ms) => Flow::Held(until_ms),
        Stop::Closed => Flow::Close,
        Stop::Refused(error) => refuse(act, Some(command), &error),
        Stop::Aborted(error) => {
            crate::multi::leave(act.server, act.local, act.session);
            refuse(act, Some(command), &error)
        }
    }
}

/// Bytes that a command has to give the reclaimer for its client to be held back the next time.
const GARBAGE: u64 = 16 * 1024;

/// Asks the gates, runs the command, and accounts for it.
pub(crate) fn serve(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>) -> Flow {
    let Admitted { plan, is_full, flooded } = match gates::admit(act, command, args) {
        Ok(admitted) => admitted,
        Err(reason) => return stop(act, command, args, reason),
    };
    let made = if flooded > 0 { pubsub::made() } else { 0 };
    let garbage = if is_full { stdx::reclaim::deferred() } else { 0 };
    let number = command::places::of(command);
    act.session.info.runs(number);
    let before = act.local.log.clock_ns;
    act.local.log.begin_command(act.session.id, number);
    if act.server.pubsub.is_monitored() {
        monitor::show(act, command, args);
    }
    let newest = act.local.newest;
    let mark = act.out.len();
    let author = crate::tracking::author(act.session);
    let flow = match plan {
        Plan::In(entry) => run_in(act, entry, command, args),
        Plan::Fetch(_) => {
            let flow = fetching::fetch(act, command, args);
            // Some of the keys are no rows.
            act.server.gate_of_all(act.session);
            flow
        }
        _ => run(act, command, args),
    };
    drop(author);
    if act.local.newest != newest {
        act.session.gate.lsn = act.session.gate.lsn.max(act.local.newest);
        act.session.wrote = act.local.newest;
    }
    if is_full && stdx::reclaim::deferred() - garbage >= GARBAGE {
        act.session.holds.garbage = stdx::reclaim::fullness();
    }
    if flooded > 0 {
        act.session.holds.published.add(flooded, pubsub::made() - made);
    }
    let ns = act.local.log.lap() - before;
    let spent = account(act, command, args, ns, &flow);
    match flow {
        Flow::Held(_) => return flow,
        Flow::Parked(_) => {
            away(act, command, args, before);
            act.server.park_gate(act.session, command, args);
            return flow;
        }
        _ => {}
    }
    act.session.info.last_ns.store(ns, Ordering::Relaxed);
    let (muted, reply) = (act.session.speech.is_muted(), &act.out.as_bytes()[mark..]);
    let (whole, written) = (!muted && !matches!(flow, Flow::Stream(_)), reply.len());
    let ran = Ran { command, number, ns, args, reply, whole, spent: spent.as_ref() };
    act.server.observe.stats.called(&act.local.log, &act.server.config.live, &act.session.info, ran);
    match flow {
        Flow::Stream(stream) if !muted => Flow::Stream(counted(act, command, args, written, stream)),
        flow => flow,
    }
}

/// The rest of a reply that is written piece by piece, with its bytes counted.
fn counted(
    act: &Act<'_, '_>,
    command: &'static Command,
    args: Args<'_>,
    written: usize,
    stream: Box<dyn Stream>,
) -> Box<dyn Stream> {
    let words = || observe::calls::words(command, args);
    let hotkeys = &act.server.observe.stats.hotkeys;
    let keys = if hotkeys.is_on() { Hotkeys::keys(command, args) } else { Vec::new() };
    lasting::counted(&act.server.observe, &act.session.info, (command, words), keys, written, stream)
}

/// Records where a command's time went, if it was held or took long; its client remembers that.
#[inline]
fn account(
    act: &mut Act<'_, '_>,
    command: &'static Command,
    args: Args<'_>,
    ns: u64,
    flow: &Flow,
) -> Option<Request> {
    let ends_wait = act.session.was_held() && !matches!(flow, Flow::Held(_));
    if ns < BIG_NS && !ends_wait {
        return None;
    }
    remember(act, command, args, ns, ends_wait)
}

#[cold]
fn remember(
    act: &mut Act<'_, '_>,
    command: &'static Command,
    args: Args<'_>,
    ns: u64,
    ends_wait: bool,
) -> Option<Request> {
    let (server, local, session) = (act.server, &mut *act.local, &mut *act.session);
    let mut spent = if ns >= BIG_NS { took_long(server, local, session, command, args, ns) } else { None };
    if ends_wait {
        let at = local.log.now_ms;
        let request = spent.get_or_insert_with(|| Request::ran(command.name, at, ns));
        crate::waited::end_waits(server, local, session, request);
    }
    spent.iter().for_each(|request| session.info.remember(request.clone()));
    spent
}

/// Records that a command took a quantum or more: the clients behind it in this turn waited for it.
#[cold]
fn took_long(
    server: &Server,
    local: &mut Local,
    session: &Session,
    command: &'static Command,
    args: Args<'_>,
    ns: u64,
) -> Option<Request> {
    let words = observe::calls::words(command, args);
    let (culprit, lock_ns) =
        local.log.piece(&server.observe, Some(session.info.clone()), command.name, words, ns);
    if ns < SLOW_NS {
        return None;
    }
    let behind = (culprit.client_id() != session.id).then(|| culprit.clone());
    let mut request = Request {
        unix_ms: local.log.now_ms,
        command: command.name,
        inline_ns: ns,
        lock_ns,
        os_ns: culprit.os_ns,
        behind,
        ..Request::default()
    };
    if let Some(late) = &local.log.turn.late {
        (request.loop_ns, request.behind) = (late.ns, Some(late.culprit.clone()));
        late.remembered.set(true);
    }
    Some(request)
}

/// Notes that the reply will come by mail. The command is counted and logged when the reply is there.
fn away(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>, began_ns: u64) {
    let (server, is_job) = (act.server, act.is_job);
    let words = observe::calls::words(command, args);
    let (came_ns, inline_ns) = (act.local.log.came_ns, act.local.log.clock_ns - began_ns);
    server.observe.stats.requested(&server.config.live, &act.session.info, command, args);
    let is_hot = server.observe.stats.hotkeys.is_on();
    let hot = is_hot.then(|| (Hotkeys::keys(command, args), args.wire_bytes()));
    act.session.away =
        Some(Box::new(Away { command, words, began_ns, came_ns, inline_ns, parked_ns: 0, hot, is_job }));
}
