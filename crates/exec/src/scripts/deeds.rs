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

use super::*;
use crate::call::Flow;
use command::Stream;
use resp::Args;
use stdx::budget::Share;

/// How long a slice may take.
const SLICE_NS: u64 = 50_000;
/// So many deeds that answer nothing are done with the commit.
const FEW: usize = 32;
/// Bytes of a reply that are put together at a stretch.
const JOINED: usize = 16 * 1024;
/// Bytes of short answers kept together.
const CHUNK: usize = 16 * 1024;

pub(super) enum Deed {
    /// To a channel of shards or not.
    Publish(bool, Vec<u8>, Vec<u8>),
    Log(i32, Vec<u8>),
    /// Scripts of a draft become known.
    Keep(Vec<(Sha, Arc<Kept>)>),
    /// A command of the transaction, in this database: its answer belongs at that place of the reply.
    Act {
        at: usize,
        index: usize,
        db: usize,
    },
}

/// Does the deeds of a script if they are few; false if they have to be done in slices.
pub(super) fn do_few(server: &Server, told: &mut Told) -> bool {
    let few = told.deeds.len() <= FEW && !told.deeds.iter().any(|deed| matches!(deed, Deed::Act { .. }));
    if few {
        told.deeds.drain(..).for_each(|deed| say(server, deed));
    }
    few
}

/// Publishes, or writes into the log.
pub(super) fn say(server: &Server, deed: Deed) {
    match deed {
        Deed::Log(level, message) => write_log(level, &message),
        Deed::Keep(scripts) => server.scripts.code.take_over(scripts),
        Deed::Publish(shard, channel, message) => {
            server.tell_message(shard, &channel, &message);
            let message = || crate::pubsub::Shared::Own((&*message).into());
            server.pubsub.announce(shard, &channel, message);
        }
        // Its transaction does it.
        Deed::Act { .. } => {}
    }
}

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
    /// `reply` has stood behind `before` bytes of something else.
    pub(super) fn new(
        run: ScriptRun,
        (reply, before): (Vec<u8>, usize),
        told: Told,
        (spent, share): (Option<Box<Spent>>, Option<Share>),
    ) -> Box<Deeds> {
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
                    let (out, began_ns) = (Reply::new(session.resp3), local.clock_ns);
                    Doing { at, index, db, out, stream: None, began_ns }
                }
                (Some(deed), _) => {
                    say(server, deed);
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
        error.into_iter().for_each(|text| local.recorder.error(text));
        let failed = error.is_some();
        let ns = local.lap().saturating_sub(doing.began_ns);
        let timed = server.config.live.latency_tracking.get();
        local.recorder.within(places::of(command), ns, failed, timed);
        self.answers.add(doing.at, doing.out.into_bytes());
    }

    /// All are done: the reply.
    fn deliver(self: Box<Self>, resp3: bool) -> Delivery {
        let Deeds { run, reply, answers, selected, spent, share, .. } = *self;
        let (client, mut out) = (run.client, Reply::new(resp3));
        crate::job::discard(run);
        let mut spliced = Spliced { reply, read: 0, answers, left: 0, share };
        let (bytes, stream): (_, Option<Box<dyn Stream>>) = match spliced.answers.places.is_empty() {
            true => (std::mem::take(&mut spliced.reply), None),
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
    let until = local.lap() + SLICE_NS;
    loop {
        match deeds.step(server, local, session.as_deref_mut()) {
            Step::Over => break,
            Step::More if local.lap() < until => {}
            Step::More => {
                deeds.stand_in = stand_in;
                server.send(local.id, Mail::Deeds(deeds));
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

/// Answers in the order of their places. Short ones stand in one allocation with others.
struct Answers {
    /// Where in the reply, and how long.
    places: VecDeque<(usize, usize)>,
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that are read.
    read: usize,
}

impl Answers {
    fn with_capacity(count: usize) -> Answers {
        Answers { places: VecDeque::with_capacity(count), chunks: VecDeque::new(), read: 0 }
    }

    fn add(&mut self, at: usize, answer: Vec<u8>) {
        self.places.push_back((at, answer.len()));
        match self.chunks.back_mut() {
            Some(last) if last.len() + answer.len() <= CHUNK => last.extend_from_slice(&answer),
            _ if answer.len() < CHUNK => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.extend_from_slice(&answer);
                self.chunks.push_back(chunk);
            }
            _ => self.chunks.push_back(answer),
        }
    }

    /// The next bytes, at most so many.
    fn take(&mut self, count: usize, out: &mut Reply) -> usize {
        let Some(first) = self.chunks.front() else { return count };
        let count = count.min(first.len() - self.read);
        out.encoded(&first[self.read..self.read + count]);
        self.read += count;
        if self.read == first.len() {
            self.read = 0;
            crate::job::drop_bytes(self.chunks.pop_front().unwrap_or_default());
        }
        count
    }
}

/// A reply with the answers of deeds at their places.
struct Spliced {
    reply: Vec<u8>,
    read: usize,
    answers: Answers,
    /// Bytes of the current answer that are not written yet.
    left: usize,
    /// Its part of `work-max-memory`.
    share: Option<Share>,
}

impl Stream for Spliced {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len() + room;
        while out.len() < end {
            let free = end - out.len();
            if self.left > 0 {
                self.left -= self.answers.take(self.left.min(free), out);
                continue;
            }
            let next = self.answers.places.front().copied();
            let to = next.map_or(self.reply.len(), |(at, _)| at);
            let count = (to - self.read).min(free);
            out.encoded(&self.reply[self.read..self.read + count]);
            self.read += count;
            match next {
                _ if self.read < to => {}
                Some((_, len)) => {
                    self.left = len;
                    self.answers.places.pop_front();
                }
                None => return false,
            }
        }
        true
    }
}

impl Drop for Spliced {
    fn drop(&mut self) {
        crate::job::drop_bytes(std::mem::take(&mut self.reply));
        self.share = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of all sizes at all places, in one go and in pieces, against plain strings.
    #[test]
    fn answers_come_to_stand_at_their_places() {
        for room in [1, 7, 100, 5_000, 1 << 20] {
            let (mut answers, mut reply, mut whole) = (Answers::with_capacity(0), Vec::new(), Vec::new());
            for i in 0..60usize {
                let own = format!("+{i}\r\n").repeat(i % 4);
                reply.extend_from_slice(own.as_bytes());
                whole.extend_from_slice(own.as_bytes());
                let answer = vec![b'a' + (i % 26) as u8; [0, 1, 500, CHUNK - 1, CHUNK, 3 * CHUNK][i % 6]];
                answers.add(reply.len(), answer.clone());
                whole.extend_from_slice(&answer);
            }
            reply.extend_from_slice(b":1\r\n");
            whole.extend_from_slice(b":1\r\n");
            let mut spliced = Spliced { reply, read: 0, answers, left: 0, share: None };
            let mut out = Reply::new(false);
            let mut before = 0;
            while spliced.fill(&mut out, room) {
                assert!(out.len() <= before + room);
                before = out.len();
            }
            assert!(out.as_bytes() == whole, "room {room}");
        }
    }
}
