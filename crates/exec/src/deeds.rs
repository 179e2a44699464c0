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
//! - D2: the client is parked until all deeds are done, and messages for it wait as long (`Session::hushed`).
//!   So its connection shows subscriptions and reply as of one moment, as if locks had been held.
//! - D3: a stand-in does the deeds of a client that has disconnected; subscriptions of the stand-in end with
//!   it.
//! - D4: a deed's answer (INFO, CLIENT LIST …) is true after the commit, not at its place between the writes.
//!
//! Cost: O(1) for each deed, plus the deed's own. A slice takes [`SLICE_NS`], or one deed if that takes
//! longer.

use crate::act::Act;
use crate::mail::Mail;
use crate::piece::Delivery;
use crate::waits::Spent;
use crate::{Flow, Local, Server, Session};
use command::{Command, Stream, places};
use resp::{Args, Reply};
use scripts::{Answers, Body, Committed, Deed, ScriptRun, Spliced, say};
use std::sync::Arc;
use stdx::budget::Share;

/// Longest slice, in nanoseconds.
const SLICE_NS: u64 = 50_000;
/// Bytes of a reply that are put together in one slice.
const JOINED: usize = 16 * 1024;

/// The deeds of a committed script or transaction that are still to be done. See the module.
pub struct Deeds {
    run: ScriptRun,
    left: std::vec::IntoIter<Deed>,
    doing: Option<Doing>,
    /// The reply without the deeds' answers, and those answers.
    reply: Vec<u8>,
    answers: Answers,
    selected: Option<usize>,
    spent: Option<Box<Spent>>,
    /// The reply's part of `work-max-memory`.
    share: Option<Share>,
    /// The connection closes after the reply.
    closes: bool,
    stand_in: Option<Box<Session>>,
}

/// A deed under way, and its answer so far.
struct Doing {
    at: usize,
    index: usize,
    db: usize,
    out: Reply,
    stream: Option<Box<dyn Stream>>,
    began_ns: u64,
}

enum Step {
    More,
    /// The answer comes by mail.
    Waits,
    Over,
}

impl Deeds {
    /// `before`: the bytes of other replies that stood before this one.
    pub(crate) fn new(committed: Committed, before: usize) -> Box<Deeds> {
        let Committed { run, reply, told, spent, share } = committed;
        let mut deeds = told.deeds;
        for deed in deeds.iter_mut().filter(|_| before > 0) {
            if let Deed::Act { at, .. } = deed {
                *at -= before;
            }
        }
        let answers = Answers::with_capacity(deeds.len());
        Box::new(Deeds {
            run,
            left: deeds.into_iter(),
            doing: None,
            reply,
            answers,
            selected: told.selected,
            spent,
            share,
            closes: false,
            stand_in: None,
        })
    }

    pub fn client(&self) -> u64 {
        self.run.client
    }

    /// Takes an answer that came by mail.
    pub fn answered(&mut self, bytes: &[u8], stream: Option<Box<dyn Stream>>) {
        if let Some(doing) = &mut self.doing {
            doing.out.encoded(bytes);
            // An empty stream says that the answer is complete.
            doing.stream = Some(stream.unwrap_or_else(|| Box::new(Nothing)));
        }
    }

    /// Does the next deed, or a slice of it.
    fn step(&mut self, server: &Arc<Server>, local: &mut Local, session: Option<&mut Session>) -> Step {
        let mut doing = match (self.doing.take(), session.as_deref()) {
            (Some(doing), _) => doing,
            (None, session) => match (self.left.next(), session) {
                (None, _) => return Step::Over,
                (Some(Deed::Act { at, index, db }), Some(session)) => {
                    let (out, began_ns) = (Reply::new(session.resp3), local.log.clock_ns);
                    Doing { at, index, db, out, stream: None, began_ns }
                }
                (Some(deed), _) => {
                    say(&server.scripts, deed);
                    return Step::More;
                }
            },
        };
        let (Body::Exec(transaction), Some(session)) = (&self.run.body, session) else { return Step::More };
        let (command, args) = transaction.at(doing.index);
        let flow = match &mut doing.stream {
            Some(stream) => match stream.fill(&mut doing.out, JOINED) {
                true => Flow::Held(0),
                false => Flow::Done,
            },
            None => {
                local.incoming = transaction.kept(doing.index);
                let flow = perform_one(server, local, session, (command, args), &mut doing);
                local.incoming = None;
                flow
            }
        };
        match flow {
            Flow::Done => self.end(server, local, command, doing),
            Flow::Close => {
                self.closes = true;
                self.end(server, local, command, doing);
            }
            Flow::Stream(stream) => {
                doing.stream = Some(stream);
                self.doing = Some(doing);
            }
            // The deed goes on in the next slice.
            Flow::Held(_) => self.doing = Some(doing),
            Flow::Parked(_) => {
                self.doing = Some(doing);
                return Step::Waits;
            }
        }
        Step::More
    }

    /// Ends a deed.
    fn end(&mut self, server: &Server, local: &mut Local, command: &'static Command, doing: Doing) {
        let error = doing.out.as_bytes().strip_prefix(b"-");
        error.into_iter().for_each(|text| local.log.recorder.error(text));
        let failed = error.is_some();
        let ns = local.log.lap().saturating_sub(doing.began_ns);
        let timed = server.config.live.latency_tracking.get();
        local.log.recorder.within(places::of(command), ns, failed, timed);
        self.answers.add(doing.at, doing.out.into_bytes());
    }

    /// Makes the reply, once all deeds are done.
    fn deliver(self: Box<Self>, resp3: bool) -> Delivery {
        let Deeds { run, reply, answers, selected, spent, share, .. } = *self;
        let (client, mut out) = (run.client, Reply::new(resp3));
        crate::job::discard(run);
        let mut spliced = Spliced::new(reply, answers, share);
        let (bytes, stream): (_, Option<Box<dyn Stream>>) = match spliced.is_whole() {
            true => (spliced.take(), None),
            false => {
                let more = spliced.fill(&mut out, JOINED);
                (out.into_bytes(), if more { Some(Box::new(spliced)) } else { None })
            }
        };
        Delivery { client, bytes, stream, spent, selected }
    }
}

/// Performs a deed outside all locks; `doing` gets its answer.
fn perform_one(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    (command, args): (&'static Command, Args<'_>),
    doing: &mut Doing,
) -> Flow {
    session.select(doing.db);
    let mark = doing.out.len();
    let out = &mut doing.out;
    let mut act =
        Act { server, local, session, out, view: None, in_script: false, in_multi: true, committed: true };
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
    let mut stand_in = deeds.stand_in.take();
    let mut session = match (session, &deeds.run.body) {
        (None, Body::Exec(transaction)) => {
            let new = || Box::new(Session::new(transaction.info().clone(), &server.acl, true));
            Some(&mut **stand_in.get_or_insert_with(new))
        }
        (session, _) => session,
    };
    if let Some(session) = &mut session {
        session.hushed = true;
    }
    let until = local.log.lap() + SLICE_NS;
    loop {
        match deeds.step(server, local, session.as_deref_mut()) {
            Step::Over => break,
            Step::More if local.log.lap() < until => {}
            Step::More => {
                deeds.stand_in = stand_in;
                server.send(local.log.id, Mail::Deeds(deeds));
                return None;
            }
            Step::Waits => {
                deeds.stand_in = stand_in;
                local.acting.insert(deeds.client(), deeds);
                return None;
            }
        }
    }
    let resp3 = session.as_ref().map_or(deeds.run.resp3, |session| session.resp3);
    if let Some(session) = session {
        deeds.selected.into_iter().for_each(|db| session.select(db));
        session.closing |= deeds.closes;
    }
    if let Some(mut session) = stand_in {
        crate::actions::leave_all(server, local, &mut session);
    }
    Some(deeds.deliver(resp3))
}

/// The deeds of a client that wait for an answer by mail. O(1).
pub fn waiting_deeds(local: &mut Local, client: u64) -> Option<Box<Deeds>> {
    local.acting.remove(&client)
}

/// A stream without bytes.
struct Nothing;

impl Stream for Nothing {
    fn fill(&mut self, _: &mut Reply, _: usize) -> bool {
        false
    }
}
