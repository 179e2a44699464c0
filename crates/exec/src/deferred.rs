//! Deferred effects: those of a script or transaction besides its writes. Both publish and write into the log;
//! a transaction also acts on its connection and on the server (SUBSCRIBE, CONFIG SET, CLIENT KILL …). Deferred
//! effects are done after the commit.
//!
//! ```text
//! EXEC ─► over an overlay: [ +OK  ·  :1  · ] ─► commit ─► deferred effects ─► [ +OK  +PONG  :1  +OK ] ─► reply
//!                                 └──────┴─ places of answers ───┘
//! ```
//!
//! - D1: a deferred effect is done once, after the commit, in the order of the commands. A script or
//!   transaction that is killed, loses its race for good, or finds a watched key touched has no deferred
//!   effects.
//! - D2: the client is parked until all deferred effects are done, and messages for it wait as long
//!   (`Speech::muted`). So its connection shows subscriptions and reply as of one moment, as if locks had been
//!   held.
//! - D3: a stand-in does the deferred effects of a client that has disconnected; subscriptions of the stand-in
//!   end with it.
//! - D4: a deferred effect's answer (INFO, CLIENT LIST …) is true after the commit, not at its place between
//!   the writes.
//! - D5: DEBUG SLEEP holds back no deferred effect. The reply is held back once all are done (transaction T5),
//!   and is dropped if the client disconnects meanwhile.
//!
//! Cost: O(1) for each deferred effect, plus the effect's own. A slice takes [`SLICE_NS`], or one deferred
//! effect if that takes longer. The data are `scripts::Deferred`.

use crate::act::Act;
use crate::mail::Mail;
use crate::{Local, Server, Session};
use command::Flow;
use command::{Command, places};
use resp::{Args, OwnedArgs, Reply};
use scripts::{Body, Deferred, DeferredEffect, Doing, say};
use std::sync::Arc;
use work::piece::Delivery;

/// Longest slice, in nanoseconds.
const SLICE_NS: u64 = 50_000;
enum Step {
    More,
    /// The answer comes by mail.
    Waits,
    Over,
}

/// Does the next deferred effect, or a slice of it.
fn step(all: &mut Deferred, server: &Arc<Server>, local: &mut Local, session: Option<&mut Session>) -> Step {
    let mut doing = match (all.doing.take(), session.as_deref()) {
        (Some(doing), _) => doing,
        (None, session) => match (all.pop(), session) {
            (None, _) => return Step::Over,
            (Some(DeferredEffect::Act { at, index, db }), Some(session)) => {
                let (out, began_ns) = (Reply::new(session.speech.resp3), local.log.clock_ns);
                Doing { at, index, db, out, stream: None, began_ns }
            }
            (Some(effect), _) => {
                say(&server.scripts, effect);
                return Step::More;
            }
        },
    };
    let (Body::Exec(transaction), Some(session)) = (&all.run.body, session) else { return Step::More };
    let (command, args) = transaction.at(doing.index);
    let flow = match doing.stream.is_some() {
        true if doing.fill() => Flow::Held(0),
        true => Flow::Done,
        false => {
            let kept = transaction.kept(doing.index);
            let flow = perform_one((server, local, session), (command, args), kept.as_ref(), &mut doing);
            all.sleep_ms = all.sleep_ms.saturating_add(std::mem::take(&mut session.half.sleep_ms));
            flow
        }
    };
    match flow {
        Flow::Done => end(all, server, local, command, doing),
        Flow::Close => {
            all.closes = true;
            end(all, server, local, command, doing);
        }
        Flow::Stream(stream) => {
            doing.stream = Some(stream);
            all.doing = Some(doing);
        }
        // The deferred effect goes on in the next slice.
        Flow::Held(_) => all.doing = Some(doing),
        Flow::Parked(_) => {
            all.doing = Some(doing);
            return Step::Waits;
        }
    }
    Step::More
}

/// Ends a deferred effect.
fn end(deferred: &mut Deferred, server: &Server, local: &mut Local, command: &'static Command, doing: Doing) {
    let error = doing.out.as_bytes().strip_prefix(b"-");
    error.into_iter().for_each(|text| local.log.recorder.error(text));
    let failed = error.is_some();
    let ns = local.log.lap().saturating_sub(doing.began_ns);
    let timed = server.config.live.latency_tracking.get();
    local.log.recorder.within(places::of(command), ns, failed, timed);
    deferred.add(doing);
}

/// Performs a deferred effect outside all locks; `doing` gets its answer.
fn perform_one(
    (server, local, session): (&Arc<Server>, &mut Local, &mut Session),
    (command, args): (&'static Command, Args<'_>),
    kept: Option<&Arc<OwnedArgs>>,
    doing: &mut Doing,
) -> Flow {
    session.select(doing.db);
    let mark = doing.out.len();
    let out = &mut doing.out;
    let client = Act::of_client(server, local, session, out);
    let mut act = Act { in_multi: true, committed: true, kept, ..client };
    let performed = server.actions.perform(&mut act, command, args);
    server.gate_of_action(act.session, command, args);
    performed.unwrap_or_else(|error| {
        doing.out.truncate(mark);
        doing.out.error(&error.text());
        Flow::Done
    })
}

/// Does a slice of the deferred effects. `session`: their client's, if it is still connected. None: some are
/// left.
pub fn advance_deferred(
    server: &Arc<Server>,
    local: &mut Local,
    session: Option<&mut Session>,
    mut deferred: Box<Deferred>,
) -> Option<Delivery> {
    let mut stand_in = local.stand_ins.remove(&deferred.client());
    let is_connected = session.is_some();
    let mut session = match (session, &deferred.run.body) {
        (None, Body::Exec(transaction)) => {
            let new = || Box::new(Session::new(transaction.info().clone(), &server.acl, true));
            Some(&mut **stand_in.get_or_insert_with(new))
        }
        (session, _) => session,
    };
    if let Some(session) = &mut session {
        session.speech.muted = true;
    }
    let until = local.log.lap() + SLICE_NS;
    loop {
        match step(&mut deferred, server, local, session.as_deref_mut()) {
            Step::Over => break,
            Step::More if local.log.lap() < until => {}
            Step::More => {
                keep(local, stand_in);
                server.send(local.log.id, Mail::Deferred(deferred));
                return None;
            }
            Step::Waits => {
                keep(local, stand_in);
                local.acting.insert(deferred.client(), deferred);
                return None;
            }
        }
    }
    if deferred.sleep_ms > 0
        && let Some(session) = session.as_deref().filter(|_| is_connected && !deferred.closes)
    {
        let timeout_ms = Some(std::mem::take(&mut deferred.sleep_ms));
        let answer = Reply::new(session.speech.resp3);
        crate::blocking::sleep(server, local, session, "exec", timeout_ms, answer);
        deferred.sleeps = timeout_ms;
        local.acting.insert(deferred.client(), deferred);
        return None;
    }
    let resp3 = session.as_ref().map_or(deferred.run.resp3, |session| session.speech.resp3);
    if let Some(session) = session {
        deferred.selected.into_iter().for_each(|db| session.select(db));
        session.speech.closing |= deferred.closes;
    }
    if let Some(mut session) = stand_in {
        crate::actions::pubsub::leave_all(server, local, &mut session);
    }
    Some(deferred.deliver(resp3))
}

/// The milliseconds for which a client's reply is held back, its deferred effects being done (D5). O(1)
pub(crate) fn sleeps_ms(local: &Local, client: u64) -> Option<u64> {
    local.acting.get(&client).and_then(|deferred| deferred.sleeps)
}

/// Drops the reply of a client that disconnected while it was held back (D5).
pub(crate) fn forget_sleeper(local: &mut Local, client: u64) {
    if sleeps_ms(local, client).is_some() {
        local.acting.remove(&client);
    }
}

/// Keeps a stand-in until the next slice of its client's deferred effects (D3).
fn keep(local: &mut Local, stand_in: Option<Box<Session>>) {
    stand_in.into_iter().for_each(|session| _ = local.stand_ins.insert(session.id, session));
}

/// The deferred effects of a client that wait for an answer by mail. O(1).
pub fn waiting_deferred(local: &mut Local, client: u64) -> Option<Box<Deferred>> {
    local.acting.remove(&client)
}
