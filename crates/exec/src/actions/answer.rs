//! Answers that are collected outside the loops.
//!
//! | by | for | bound |
//! |---|---|---|
//! | the reporter ([`elsewhere`]) | what the server has: figures, lists of its own | one after the other |
//! | demoted threads ([`report`]) | what a client's words can make long | in slices, each client its share |
//! | a thread of its own ([`aside`]) | what waits for a disk, and what changes code | `work::asides` |
//!
//! The background thread collects no client's answer: vital work waits for it.

use crate::act::{Act, Collect, Rest};
use crate::held;
use crate::mail::Mail;
use crate::{Local, Server, Session};
use command::{Command, Error, Flow};
use observe::waits::What;
use resp::{Args, OwnedArgs, Reply};
use std::sync::Arc;
use work::asides::Aside;
use work::reports::{self, MakeReport, Recipient, Report};

/// Performs an action for a script that waits on its thread. `deliver` gets the answer, at once or from
/// another thread.
pub(crate) fn perform_for_script(
    (server, local, session): (&Arc<Server>, &mut Local, &mut Session),
    (command, args): (&'static Command, Args<'_>),
    resp3: bool,
    deliver: impl Fn(Vec<u8>) + Clone + Send + 'static,
) {
    let (client, gone) = (session.id, session.cancel.clone());
    let (mut own, mut rest) = (Reply::new(resp3), None);
    // No locks are held, and the script's thread waits as long as it takes.
    let client_act = Act::of_client(server, local, session, &mut own);
    let collects = Some(&mut rest);
    let mut act = Act { in_script: true, in_multi: true, committed: true, collects, ..client_act };
    stdx::panics::begin();
    let flow = stdx::panics::contain(|| server.actions.perform(&mut act, command, args));
    let flow = flow.unwrap_or_else(|_| Err(Error::new(work::job::BROKEN)));
    let mut out = Reply::new(own.resp3());
    let rest: Collect = match (flow, rest) {
        (Err(error), _) => {
            out.error(&error.text());
            return deliver(out.into_bytes());
        }
        (Ok(Flow::Parked(_)), Some(Rest::Whole(collect))) => collect,
        (Ok(Flow::Parked(_)), Some(Rest::InSteps(make))) => {
            let answer = Box::new(deliver.clone());
            if !server.reports.begin(Recipient { client, gone, out, deliver: answer }, make) {
                deliver(NO_THREAD.to_vec());
            }
            return;
        }
        (Ok(Flow::Stream(mut stream)), _) => {
            out.encoded(own.as_bytes());
            Box::new(move |out| while stream.fill(out, usize::MAX) {})
        }
        (Ok(Flow::Done | Flow::Close), _) => return deliver(own.into_bytes()),
        (Ok(Flow::Parked(_) | Flow::Held(_)), _) => {
            out.error("ERR This Redis command is not allowed from script");
            return deliver(out.into_bytes());
        }
    };
    let answer = deliver.clone();
    let sent = server.observe.reporter.send(move || {
        contained(&mut out, rest);
        answer(out.into_bytes());
    });
    if !sent {
        deliver(NO_THREAD.to_vec());
    }
}

const NO_THREAD: &[u8] = b"-ERR no thread could be started\r\n";

/// Collects the answer of a caller that cannot wait ([`Act::is_pressed`]), or leaves the collecting to a
/// script's thread. `Err`: it is to be collected elsewhere.
fn here<C: FnOnce(&mut Reply) + Send + 'static>(act: &mut Act<'_, '_>, collect: C) -> Result<Flow, C> {
    if act.is_pressed() {
        collect(act.out);
        return Ok(Flow::Done);
    }
    if let Some(rest) = &mut act.collects {
        **rest = Some(Rest::Whole(Box::new(collect)));
        return Ok(Flow::Parked(None));
    }
    Err(collect)
}

/// Lets the reporter collect an answer from what the server has; that takes milliseconds at most. O(1) on the
/// loop: the client is parked until the answer comes. A caller that cannot wait ([`Act::is_pressed`]) gets it
/// at once. Errors: there is no thread.
pub(crate) fn elsewhere(
    act: &mut Act<'_, '_>,
    collect: impl FnOnce(&mut Reply) + Send + 'static,
) -> Result<Flow, Error> {
    let collect = match here(act, collect) {
        Ok(flow) => return Ok(flow),
        Err(collect) => collect,
    };
    let (server, loop_id, client) = (act.server.clone(), act.local.log.id, act.session.id);
    let mut out = Reply::new(act.out.resp3());
    stdx::panics::changes();
    let sent = act.server.observe.reporter.send(move || {
        contained(&mut out, collect);
        server.send(loop_id, Mail::Reply { client, bytes: out.into_bytes(), stream: None });
    });
    if !sent {
        return Err(Error::new("ERR no thread could be started"));
    }
    Ok(Flow::Parked(None))
}

/// Collects an answer that the client's words can make long (`work::reports`). O(1) on the loop: the client
/// is parked until the answer comes. A caller that cannot wait ([`Act::is_pressed`]) gets it at once.
/// `gather` may take locks, the report must not. Errors: there is no thread.
pub(crate) fn report<R: Report + 'static>(
    act: &mut Act<'_, '_>,
    gather: impl FnOnce() -> R + Send + 'static,
) -> Result<Flow, Error> {
    let make: MakeReport = Box::new(|| Box::new(gather()));
    if act.is_pressed() {
        reports::at_once(make, act.out);
        return Ok(Flow::Done);
    }
    if let Some(rest) = &mut act.collects {
        **rest = Some(Rest::InSteps(make));
        return Ok(Flow::Parked(None));
    }
    let (server, loop_id, client) = (act.server.clone(), act.local.log.id, act.session.id);
    let deliver = Box::new(move |bytes| server.send(loop_id, Mail::Reply { client, bytes, stream: None }));
    let (gone, out) = (act.session.cancel.clone(), Reply::new(act.out.resp3()));
    stdx::panics::changes();
    match act.server.reports.begin(Recipient { client, gone, out, deliver }, make) {
        true => Ok(Flow::Parked(None)),
        false => Err(Error::new("ERR no thread could be started")),
    }
}

/// Collects an answer; a panic in it becomes an error of this client alone.
fn contained(out: &mut Reply, collect: impl FnOnce(&mut Reply)) {
    let mark = out.len();
    if stdx::panics::contain(|| collect(&mut *out)).is_err() {
        out.truncate(mark);
        out.error(work::job::BROKEN);
    }
}

/// Collects an answer that may take long, on a thread of its own. O(1) on the loop: the client is parked
/// until the answer comes, or tries again if it has a thread already or all are taken. A caller that cannot
/// wait ([`Act::is_pressed`]) gets it at once. The thread is not demoted: `collect` may take shard locks.
/// Errors: there is no thread.
pub(crate) fn aside(
    act: &mut Act<'_, '_>,
    name: &str,
    collect: impl FnOnce(&mut Reply) + Send + 'static,
) -> Result<Flow, Error> {
    let collect = match here(act, collect) {
        Ok(flow) => return Ok(flow),
        Err(collect) => collect,
    };
    let (client, now_ms) = (act.session.id, act.local.log.now_ms);
    let Some(thread) = Aside::take(client, now_ms) else {
        act.session.waits_for_itself(What::Thread, act.local.log.clock_ns);
        return Ok(held::retry(act.session, act.local));
    };
    let (server, loop_id) = (act.server.clone(), act.local.log.id);
    let mut out = Reply::new(act.out.resp3());
    let run = move || {
        contained(&mut out, collect);
        drop(thread);
        server.send(loop_id, Mail::Reply { client, bytes: out.into_bytes(), stream: None });
    };
    stdx::panics::changes();
    match std::thread::Builder::new().name(name.into()).spawn(run) {
        Ok(_) => Ok(Flow::Parked(None)),
        Err(e) => Err(format!("ERR no thread could be started: {e}").into()),
    }
}

/// The words of the command, to keep. O(1) if they are many, else O(words).
pub(super) fn kept(act: &Act<'_, '_>, args: Args<'_>) -> Arc<OwnedArgs> {
    match act.kept {
        Some(words) if !act.is_pressed() && words.args().len() == args.len() => words.clone(),
        _ => Arc::new(args.to_owned()),
    }
}

/// Answers HELP of a container: its subcommands, with descriptions. O(lines)
pub(super) fn help(act: &mut Act<'_, '_>, container: &str, lines: &[&str]) -> Result<Flow, Error> {
    act.out.array(lines.len() + 3);
    act.out.simple(&format!("{container} <subcommand> [<arg> ...]. Subcommands are:"));
    lines.iter().for_each(|line| act.out.simple(line));
    act.out.simple("HELP");
    act.out.simple("    Print this text.");
    Ok(Flow::Done)
}
