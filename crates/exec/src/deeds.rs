//! What a script or transaction does besides its writes: it publishes, writes into the log, and a transaction acts on its
//! connection and on the server (SUBSCRIBE, CONFIG SET, CLIENT KILL …). All of it happens with the commit.
//!
//! ```text
//! EXEC ─► over an overlay: [ +OK  ·  :1  · ] ─► commit ─► deeds, in slices ─► [ +OK  +PONG  :1  +OK ] ─► reply
//!                                 └──────┴─ places of answers ───┘
//! ```
//!
//! - D1: a deed is done once, after the commit, in the order of the commands. Who is killed, loses a race for good, or finds
//!   what it watched touched has done none.
//! - D2: the client is parked until all are done, and messages for it wait as long (`Session::hushed`): to whoever reads its
//!   connection its subscriptions and the reply are of one moment, as if locks had been held.
//! - D3: deeds of a client that has gone are done by a stand-in, whose subscriptions end with it.
//! - D4: what a deed tells (INFO, CLIENT LIST …) is true after the commit, not at its place between the writes.
//!
//! Cost: O(1) for each deed besides its own; a slice takes [`SLICE_NS`], or one deed if that takes longer.

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

/// How long a slice may take.
const SLICE_NS: u64 = 50_000;
/// Bytes of a reply that are put together at a stretch.
const JOINED: usize = 16 * 1024;

/// What is left to do of something that is committed. See the module.
pub struct Deeds {
    run: ScriptRun,
    left: std::vec::IntoIter<Deed>,
    doing: Option<Doing>,
    /// The reply without the answers of the deeds, and these.
    reply: Vec<u8>,
    answers: Answers,
    selected: Option<usize>,
    spent: Option<Box<Spent>>,
    /// The reply's part of `work-max-memory`.
    share: Option<Share>,
    /// The connection is closed after the reply.
    closes: bool,
    stand_in: Option<Box<Session>>,
}

/// An act under way, and what it has answered so far.
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
    /// The reply has stood behind `before` bytes of something else.
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

    /// The answer one of them waited for.
    pub fn answered(&mut self, bytes: &[u8], stream: Option<Box<dyn Stream>>) {
        if let Some(doing) = &mut self.doing {
            doing.out.encoded(bytes);
            // An empty one says that all is there.
            doing.stream = Some(stream.unwrap_or_else(|| Box::new(Nothing)));
        }
    }

    /// Does the next deed, or some of it.
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
            // There is more of it.
            Flow::Held(_) => self.doing = Some(doing),
            Flow::Parked(_) => {
                self.doing = Some(doing);
                return Step::Waits;
            }
        }
        Step::More
    }

    /// An act is done.
    fn end(&mut self, server: &Server, local: &mut Local, command: &'static Command, doing: Doing) {
        let error = doing.out.as_bytes().strip_prefix(b"-");
        error.into_iter().for_each(|text| local.log.recorder.error(text));
        let failed = error.is_some();
        let ns = local.log.lap().saturating_sub(doing.began_ns);
        let timed = server.config.live.latency_tracking.get();
        local.log.recorder.within(places::of(command), ns, failed, timed);
        self.answers.add(doing.at, doing.out.into_bytes());
    }

    /// All are done: the reply.
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

/// Performs an act outside of all locks; `doing` gets what it answers.
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
    server.actions.perform(&mut act, command, args).unwrap_or_else(|error| {
        doing.out.truncate(mark);
        doing.out.error(&error.text());
        Flow::Done
    })
}

/// Does a slice of the deeds; `session` is their client's, if that is still there. None: not yet done.
pub fn advance_deeds(
    server: &Arc<Server>,
    local: &mut Local,
    session: Option<&mut Session>,
    mut deeds: Box<Deeds>,
) -> Option<Delivery> {
    let mut stand_in = deeds.stand_in.take();
    let mut session = match (session, &deeds.run.body) {
        (None, Body::Exec(transaction)) => {
            let new = || Box::new(Session::new(transaction.info().clone(), true));
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

/// The deeds of a client that wait for an answer. O(1).
pub fn waiting_deeds(local: &mut Local, client: u64) -> Option<Box<Deeds>> {
    local.acting.remove(&client)
}

/// A stream that is at its end.
struct Nothing;

impl Stream for Nothing {
    fn fill(&mut self, _: &mut Reply, _: usize) -> bool {
        false
    }
}
