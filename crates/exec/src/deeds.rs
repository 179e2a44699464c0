//! Deeds: the effects of a script or transaction besides its writes. Both publish and write into the log; a
//! transaction also acts on its connection and on the server (SUBSCRIBE, CONFIG SET, CLIENT KILL …). Deeds
//! are done after the commit.
//!
//! ```text
//! EXEC ─► over an overlay: [ +OK  ·  :1  · ] ─► commit ─► deeds ─► [ +OK  +PONG  :1  +OK ] ─► reply
//!                                 └──────┴─ places of answers ───┘
//! ```
//!
//! - D1: a deed is done once, after the commit, in the order of the commands. A script or transaction that is
//!   killed, loses its race for good, or finds a watched key touched has no deeds.
//! - D2: the client is parked until all deeds are done, and messages for it wait as long (`Speech::hushed`).
//!   So its connection shows subscriptions and reply as of one moment, as if locks had been held.
//! - D3: a stand-in does the deeds of a client that has disconnected; subscriptions of the stand-in end with
//!   it.
//! - D4: a deed's answer (INFO, CLIENT LIST …) is true after the commit, not at its place between the writes.
//! - D5: DEBUG SLEEP holds back no deed. The reply is held back once all are done (transaction T5), and is
//!   dropped if the client disconnects meanwhile.
//!
//! Cost: O(1) for each deed, plus the deed's own. A slice takes [`SLICE_NS`], or one deed if that takes
//! longer. The data are `scripts::Deeds`.

use crate::act::Act;
use crate::mail::Mail;
use crate::{Local, Server, Session};
use command::Flow;
use command::{Command, places};
use resp::{Args, OwnedArgs, Reply};
use scripts::{Body, Deed, Deeds, Doing, say};
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

/// Does the next deed, or a slice of it.
fn step(deeds: &mut Deeds, server: &Arc<Server>, local: &mut Local, session: Option<&mut Session>) -> Step {
    let mut doing = match (deeds.doing.take(), session.as_deref()) {
        (Some(doing), _) => doing,
        (None, session) => match (deeds.pop(), session) {
            (None, _) => return Step::Over,
            (Some(Deed::Act { at, index, db }), Some(session)) => {
                let (out, began_ns) = (Reply::new(session.speech.resp3), local.log.clock_ns);
                Doing { at, index, db, out, stream: None, began_ns }
            }
            (Some(deed), _) => {
                say(&server.scripts, deed);
                return Step::More;
            }
        },
    };
    let (Body::Exec(transaction), Some(session)) = (&deeds.run.body, session) else { return Step::More };
    let (command, args) = transaction.at(doing.index);
    let flow = match doing.stream.is_some() {
        true if doing.fill() => Flow::Held(0),
        true => Flow::Done,
        false => {
            let kept = transaction.kept(doing.index);
            let flow = perform_one((server, local, session), (command, args), kept.as_ref(), &mut doing);
            deeds.sleep_ms = deeds.sleep_ms.saturating_add(std::mem::take(&mut session.half.sleep_ms));
            flow
        }
    };
    match flow {
        Flow::Done => end(deeds, server, local, command, doing),
        Flow::Close => {
            deeds.closes = true;
            end(deeds, server, local, command, doing);
        }
        Flow::Stream(stream) => {
            doing.stream = Some(stream);
            deeds.doing = Some(doing);
        }
        // The deed goes on in the next slice.
        Flow::Held(_) => deeds.doing = Some(doing),
        Flow::Parked(_) => {
            deeds.doing = Some(doing);
            return Step::Waits;
        }
    }
    Step::More
}

/// Ends a deed.
fn end(deeds: &mut Deeds, server: &Server, local: &mut Local, command: &'static Command, doing: Doing) {
    let error = doing.out.as_bytes().strip_prefix(b"-");
    error.into_iter().for_each(|text| local.log.recorder.error(text));
    let failed = error.is_some();
    let ns = local.log.lap().saturating_sub(doing.began_ns);
    let timed = server.config.live.latency_tracking.get();
    local.log.recorder.within(places::of(command), ns, failed, timed);
    deeds.add(doing);
}

/// Performs a deed outside all locks; `doing` gets its answer.
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

/// Does a slice of the deeds. `session`: their client's, if it is still connected. None: some are left.
pub fn advance_deeds(
    server: &Arc<Server>,
    local: &mut Local,
    session: Option<&mut Session>,
    mut deeds: Box<Deeds>,
) -> Option<Delivery> {
    let mut stand_in = local.stand_ins.remove(&deeds.client());
    let is_connected = session.is_some();
    let mut session = match (session, &deeds.run.body) {
        (None, Body::Exec(transaction)) => {
            let new = || Box::new(Session::new(transaction.info().clone(), &server.acl, true));
            Some(&mut **stand_in.get_or_insert_with(new))
        }
        (session, _) => session,
    };
    if let Some(session) = &mut session {
        session.speech.hushed = true;
    }
    let until = local.log.lap() + SLICE_NS;
    loop {
        match step(&mut deeds, server, local, session.as_deref_mut()) {
            Step::Over => break,
            Step::More if local.log.lap() < until => {}
            Step::More => {
                keep(local, stand_in);
                server.send(local.log.id, Mail::Deeds(deeds));
                return None;
            }
            Step::Waits => {
                keep(local, stand_in);
                local.acting.insert(deeds.client(), deeds);
                return None;
            }
        }
    }
    if deeds.sleep_ms > 0
        && let Some(session) = session.as_deref().filter(|_| is_connected && !deeds.closes)
    {
        let timeout_ms = Some(std::mem::take(&mut deeds.sleep_ms));
        let answer = Reply::new(session.speech.resp3);
        crate::blocking::sleep(server, local, session, "exec", timeout_ms, answer);
        deeds.sleeps = timeout_ms;
        local.acting.insert(deeds.client(), deeds);
        return None;
    }
    let resp3 = session.as_ref().map_or(deeds.run.resp3, |session| session.speech.resp3);
    if let Some(session) = session {
        deeds.selected.into_iter().for_each(|db| session.select(db));
        session.speech.closing |= deeds.closes;
    }
    if let Some(mut session) = stand_in {
        crate::actions::pubsub::leave_all(server, local, &mut session);
    }
    Some(deeds.deliver(resp3))
}

/// The milliseconds for which a client's reply is held back, its deeds being done (D5). O(1)
pub(crate) fn sleeps_ms(local: &Local, client: u64) -> Option<u64> {
    local.acting.get(&client).and_then(|deeds| deeds.sleeps)
}

/// Drops the reply of a client that disconnected while it was held back (D5).
pub(crate) fn forget_sleeper(local: &mut Local, client: u64) {
    if sleeps_ms(local, client).is_some() {
        local.acting.remove(&client);
    }
}

/// Keeps a stand-in until the next slice of its client's deeds (D3).
fn keep(local: &mut Local, stand_in: Option<Box<Session>>) {
    stand_in.into_iter().for_each(|session| _ = local.stand_ins.insert(session.id, session));
}

/// The deeds of a client that wait for an answer by mail. O(1).
pub fn waiting_deeds(local: &mut Local, client: u64) -> Option<Box<Deeds>> {
    local.acting.remove(&client)
}
