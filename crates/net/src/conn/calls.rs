//! Commands of the API under way on a connection: one after the other, their replies made JSON.
//!
//! ```text
//! Run ──done, or a stream──► Translate ──► the next: Run … the last: the response ends
//!  │ └─ held: Run again              ▲
//!  └─ parked: Away ──its mail────────┘
//! ```
//!
//! - CA1: a step runs one command, or translates [`PART`] bytes, and the loop's quantum stands between two
//!   steps.
//!   A client that does not read gets no further step, so a stream of events loses events and nobody waits.
//! - CA2: a command that waits for others does so for [`PATIENCE_MS`]. What cannot be ended in another way ends
//!   with its connection.
//! - CA3: each command passes the same gates as any client's (`exec::call`): rights, memory, pauses, the log.
//!
//! Cost: up to [`WHOLE`] bytes of an answer are gathered, so that its length is known.

use super::http::{Desk, PART, WHOLE};
use super::output::Streaming;
use super::{Conn, State, Tools};
use exec::pages::api::{self, Call, Place};
use exec::pages::{gate, logins};
use exec::session::flag;
use exec::{Flow, Local, Server};
use http::json::{Maps, Tree, put_error};
use http::response::{self, EVENTS, JSON};
use http::{Framing, reply};
use resp::{OwnedArgs, Reply};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long a command may wait for others.
const PATIENCE_MS: u64 = 5_000;
/// Interval of a stream's events.
const SECOND_MS: u64 = 1_000;
/// Interval of comments in a stream, which keep a connection through proxies open, in seconds.
const COMMENT_S: u64 = 15;

/// The purpose of the commands.
enum Kind {
    /// One command, whose reply is the body.
    Show,
    /// Some; the body is the list of their replies.
    List,
    /// One, again and again, as events. It ends with the session of its cookie. `news`: what
    /// happened comes next, not the second's figures.
    Events { key: Option<logins::Key>, news: bool, _place: Place },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Run,
    Away,
    Translate,
}

/// See the module.
pub(super) struct Calls {
    kind: Kind,
    framing: Framing,
    /// The line for the access log, without its status.
    line: Option<String>,
    /// The command of a path.
    call: Option<Call>,
    commands: Vec<OwnedArgs>,
    db: usize,
    reads_only: bool,
    /// The command that is next or under way, and since when.
    at: usize,
    since_ms: Option<u64>,
    /// From when on its latency counts (monotonic clock): the request came, or the command before it was
    /// through.
    came_ns: u64,
    stage: Stage,
    tree: Tree,
    reply: Vec<u8>,
    translated: usize,
    body: Vec<u8>,
    /// The head is written: the body follows in pieces.
    begun: bool,
    /// When the next event is due.
    due_ms: u64,
    /// From when on the news of a stream are not yet told; 0: from now on.
    news_ms: u64,
}

/// The result of a step.
enum Step {
    On,
    /// The response is whole: its status.
    Done(u16),
    Closed,
}

impl Calls {
    fn new(kind: Kind, call: Option<Call>, commands: Vec<OwnedArgs>) -> Calls {
        let is_list = matches!(kind, Kind::List);
        Calls {
            kind,
            framing: Framing::LAST,
            line: None,
            call,
            commands,
            db: 0,
            reads_only: true,
            at: 0,
            since_ms: None,
            came_ns: 0,
            stage: Stage::Run,
            tree: Tree::new(if is_list { Maps::Pairs } else { Maps::Objects }),
            reply: Vec::new(),
            translated: 0,
            body: Vec::new(),
            begun: false,
            due_ms: 0,
            news_ms: 0,
        }
    }

    /// The command behind a path.
    pub(super) fn show(call: Call) -> Calls {
        Calls::new(Kind::Show, Some(call), Vec::new())
    }

    /// A list of commands of a client.
    pub(super) fn list(commands: Vec<OwnedArgs>, db: usize, reads_only: bool) -> Calls {
        Calls { db, reads_only, body: b"[".to_vec(), ..Calls::new(Kind::List, None, commands) }
    }

    /// A stream of events.
    pub(super) fn stream(call: Call, place: Place, key: Option<logins::Key>) -> Calls {
        Calls::new(Kind::Events { key, news: false, _place: place }, Some(call), Vec::new())
    }

    /// Says how the response is framed, and what the access log tells of it.
    pub(super) fn of(self, framing: Framing, line: Option<String>) -> Calls {
        Calls { framing, line, ..self }
    }

    fn is_list(&self) -> bool {
        matches!(self.kind, Kind::List)
    }

    fn is_events(&self) -> bool {
        matches!(self.kind, Kind::Events { .. })
    }

    /// Notes the reply of a command that was elsewhere.
    pub(super) fn replied(&mut self, reply: Vec<u8>) {
        (self.reply, self.translated, self.stage) = (reply, 0, Stage::Translate);
    }

    /// Frees what is large on another thread.
    pub(super) fn discard(self) {
        if self.reply.len() + self.body.len() >= exec::job::MANY_BYTES {
            stdx::reclaim::discard((self.reply, self.body));
        }
    }
}

impl Conn {
    /// Does a step of the commands under way.
    pub(super) fn step_calls(&mut self, server: &Arc<Server>, local: &mut Local, tools: &mut Tools) {
        let Some(mut calls) = self.as_http().and_then(|http| http.calls.take()) else { return };
        let desk = &mut tools.desk;
        let step = match calls.stage {
            Stage::Run => self.next_call(&mut calls, server, local, desk),
            Stage::Translate => self.translate_call(&mut calls, local, desk),
            // Its mail was lost with a panic.
            Stage::Away => Step::Closed,
        };
        desk.tidy();
        match step {
            Step::On => {
                if let Some(http) = self.as_http() {
                    http.calls = Some(calls);
                }
            }
            Step::Closed => (self.stream, self.session.speech.closing) = (None, true),
            Step::Done(status) => {
                self.session.select(0);
                if !calls.framing.keep || calls.is_events() && calls.begun {
                    self.session.speech.closing = true;
                }
                self.answered(server, local, status, calls.line.take(), String::new);
                calls.discard();
            }
        }
    }

    /// Runs the next command, if there is one and it is due.
    fn next_call(
        &mut self,
        calls: &mut Calls,
        server: &Arc<Server>,
        local: &mut Local,
        desk: &mut Desk,
    ) -> Step {
        if calls.is_list() && calls.at == calls.commands.len() {
            return self.end_list(calls, local, desk);
        }
        if !self.is_due(calls, server, local) {
            if self.state != State::Running {
                return Step::On;
            }
            let framing = calls.framing;
            self.write(|out| {
                if calls.begun {
                    response::end_pieces(framing, out)
                }
            });
            return Step::Done(200);
        }
        self.run_call(calls, server, local, desk)
    }

    /// Whether the next event is due. If not, the connection sleeps, or the stream is at its end.
    fn is_due(&mut self, calls: &mut Calls, server: &Server, local: &Local) -> bool {
        let Kind::Events { key, news, .. } = &calls.kind else { return true };
        let now_ms = local.log.now_ms;
        let over = key.is_some_and(|key| {
            let cookie = logins::spell(&key);
            server.http.logins.find(cookie.as_bytes(), &server.acl, now_ms).is_none()
        });
        if self.eof || over {
            return false;
        }
        if *news {
            return true;
        }
        if now_ms < calls.due_ms {
            self.state = State::Held(calls.due_ms);
            return false;
        }
        calls.due_ms = (now_ms / SECOND_MS + 1) * SECOND_MS;
        true
    }

    /// Runs the command that is next, if it may run.
    fn execute_call(
        &mut self,
        calls: &Calls,
        server: &Arc<Server>,
        local: &mut Local,
        out: &mut Reply,
    ) -> Flow {
        let session = &mut self.session;
        if let Some(Call { row, words }) = &calls.call {
            return exec::http::execute_row(server, local, session, row, words.args(), out);
        }
        session.select(calls.db);
        let args = calls.commands[calls.at].args();
        let refused = match exec::call::resolve(args) {
            Ok(command) => {
                let user = session.login.user.user();
                gate::refusal(user, command, args, calls.reads_only).map(str::to_owned)
            }
            Err(error) => Some(error.text().into_owned()),
        };
        match refused {
            Some(refusal) => {
                out.error(&refusal);
                Flow::Done
            }
            None => exec::execute(server, local, session, args.into(), out),
        }
    }

    fn run_call(
        &mut self,
        calls: &mut Calls,
        server: &Arc<Server>,
        local: &mut Local,
        desk: &mut Desk,
    ) -> Step {
        desk.reply.clear();
        if calls.since_ms.is_none() {
            let is_first = calls.at == 0 && !calls.is_events();
            calls.came_ns = if is_first { local.log.came_ns } else { local.log.clock_ns };
        }
        local.log.came_ns = calls.came_ns;
        let since_ms = *calls.since_ms.get_or_insert(local.log.now_ms);
        let flow = self.execute_call(calls, server, local, &mut desk.reply);
        if !matches!(flow, Flow::Held(_)) {
            calls.since_ms = None;
        }
        match flow {
            Flow::Done => calls.replied(desk.reply.take()),
            Flow::Stream(stream) => {
                self.reads_on = stream.reads_on();
                self.stream = Some(Streaming::new(stream));
                calls.replied(desk.reply.take());
            }
            Flow::Parked(timeout_ms) => {
                let waits = self.session.info.flags.load(Ordering::Relaxed) & flag::BLOCKED != 0;
                let timeout_ms = if waits {
                    Some(timeout_ms.map_or(PATIENCE_MS, |ms| ms.min(PATIENCE_MS)))
                } else {
                    timeout_ms
                };
                self.state = State::Parked(timeout_ms.map(|ms| local.log.now_ms + ms));
                calls.stage = Stage::Away;
            }
            Flow::Held(until_ms) if local.log.now_ms < since_ms + PATIENCE_MS => {
                self.state = State::Held(until_ms)
            }
            Flow::Held(_) => {
                // CA2: what it waits for is dropped with its session.
                calls.replied(b"-ERR the command was given up: it waited for five seconds\r\n".to_vec());
                calls.framing.keep = false;
                calls.commands.truncate(calls.at + 1);
            }
            Flow::Close => return Step::Closed,
        }
        Step::On
    }

    /// Makes the next piece of a reply JSON.
    fn translate_call(&mut self, calls: &mut Calls, local: &Local, desk: &mut Desk) -> Step {
        if !calls.is_list()
            && calls.translated == 0
            && let Some(error) = reply::error(&calls.reply)
        {
            return self.fail(calls, local, desk, error);
        }
        let put = if calls.translated < calls.reply.len() {
            let to = calls.reply.len().min(calls.translated + PART);
            let piece = &calls.reply[std::mem::replace(&mut calls.translated, to)..to];
            calls.tree.feed(piece, &mut calls.body)
        } else if let Some(stream) = &mut self.stream {
            desk.reply.clear();
            if !stream.reply.fill(&mut desk.reply, PART) {
                self.stream = None;
            }
            calls.tree.feed(desk.reply.as_bytes(), &mut calls.body)
        } else {
            Err(reply::Broken)
        };
        if put.is_err() {
            log::error!("HTTP client {} is closed: its reply is malformed", self.session.id);
            return Step::Closed;
        }
        let is_whole = calls.translated == calls.reply.len() && self.stream.is_none();
        if is_whole && !calls.tree.is_done() {
            return Step::Closed;
        }
        if is_whole {
            return self.end_reply(calls, local, desk);
        }
        if calls.body.len() >= WHOLE {
            self.write_begin(calls, local, desk);
        }
        Step::On
    }

    /// Goes on after a whole reply.
    fn end_reply(&mut self, calls: &mut Calls, local: &Local, desk: &mut Desk) -> Step {
        let used = std::mem::take(&mut calls.reply);
        if used.len() >= exec::job::MANY_BYTES {
            stdx::reclaim::discard(used);
        }
        (calls.stage, calls.at) = (Stage::Run, calls.at + 1);
        match calls.kind {
            Kind::Show => self.end_body(calls, local, desk),
            Kind::List => {
                calls.tree = Tree::new(Maps::Pairs);
                if calls.at < calls.commands.len() {
                    calls.body.push(b',');
                }
                if calls.body.len() >= WHOLE {
                    self.write_begin(calls, local, desk);
                }
                Step::On
            }
            Kind::Events { .. } => {
                self.end_event(calls, local, desk);
                Step::On
            }
        }
    }

    /// Writes the events of a reply, and says which command is next: news come after each second.
    fn end_event(&mut self, calls: &mut Calls, local: &Local, desk: &mut Desk) {
        calls.tree = Tree::new(Maps::Objects);
        let now_ms = local.log.now_ms;
        let json = std::mem::take(&mut calls.body);
        if !calls.begun {
            self.begin_events(calls, local, desk);
        }
        let second = now_ms / SECOND_MS;
        let event = |name: &str, json: &[u8]| {
            [format!("id: {second}\nevent: {name}\ndata: ").as_bytes(), json, b"\n\n"].concat()
        };
        let Kind::Events { news, .. } = &mut calls.kind else { return };
        let mut events = Vec::new();
        if *news {
            let (next_ms, found) = api::news(&json).unwrap_or((now_ms, Vec::new()));
            (calls.news_ms, *news) = (next_ms, false);
            events.extend(found.into_iter().map(|(name, json)| event(name, json)));
            calls.call = Call::of_stream();
        } else {
            if second.is_multiple_of(COMMENT_S) {
                events.push(b": \n\n".to_vec());
            }
            events.push(event("second", &json));
            if calls.news_ms == 0 {
                calls.news_ms = now_ms;
            }
            *news = true;
            calls.call = Call::of_news(calls.news_ms);
        }
        self.write(|out| events.iter().for_each(|event| response::piece(calls.framing, event, out)));
    }

    /// Writes the head of a stream, and its first event.
    fn begin_events(&mut self, calls: &mut Calls, local: &Local, desk: &mut Desk) {
        calls.begun = true;
        let (framing, now_ms) = (calls.framing, local.log.now_ms);
        let hello = format!("retry: 2000\nevent: hello\ndata: {{\"time_ms\":{now_ms}}}\n\n");
        let date = desk.today.at(now_ms);
        self.write(|out| {
            response::begin_answer(framing, date, EVENTS, out);
            response::piece(framing, hello.as_bytes(), out);
        });
    }

    fn end_list(&mut self, calls: &mut Calls, local: &Local, desk: &mut Desk) -> Step {
        calls.body.push(b']');
        self.end_body(calls, local, desk)
    }

    /// Writes the rest of a body, or all of the response.
    fn end_body(&mut self, calls: &mut Calls, local: &Local, desk: &mut Desk) -> Step {
        let (framing, date) = (calls.framing, desk.today.at(local.log.now_ms));
        let (body, begun) = (&calls.body, calls.begun);
        self.write(|out| match begun {
            false => response::answer(framing, date, "", body, out),
            true if framing.head => {}
            true => {
                response::piece(framing, body, out);
                response::end_pieces(framing, out);
            }
        });
        Step::Done(200)
    }

    /// Writes what is there of a long body, and its head before it.
    fn write_begin(&mut self, calls: &mut Calls, local: &Local, desk: &mut Desk) {
        let date = desk.today.at(local.log.now_ms);
        if !calls.begun {
            // With no length and no chunks (HTTP/1.0), the end of the connection is the end of the body.
            calls.framing.keep &= calls.framing.http11;
        }
        let (framing, body, begun) = (calls.framing, &mut calls.body, calls.begun);
        self.write(|out| {
            if !begun {
                response::begin_answer(framing, date, JSON, out);
            }
            if !framing.head {
                response::piece(framing, body, out);
            }
        });
        body.clear();
        calls.begun = true;
    }

    /// Answers with the error of the one command.
    fn fail(&mut self, calls: &Calls, local: &Local, desk: &mut Desk, error: &[u8]) -> Step {
        let (framing, date) = (calls.framing, desk.today.at(local.log.now_ms));
        if calls.is_events() && calls.begun {
            let mut event = b"event: failed\ndata: ".to_vec();
            put_error(error, &mut event);
            event.extend_from_slice(b"\n\n");
            self.write(|out| {
                response::piece(framing, &event, out);
                response::end_pieces(framing, out);
            });
            return Step::Done(200);
        }
        let (status, detail) = response::failure(error);
        // A word of the request is not what was expected.
        let status = if status == 500 && error.starts_with(b"ERR ") { 400 } else { status };
        self.write(|out| response::problem(status, framing, date, &detail, out));
        Step::Done(status)
    }
}
