//! A connection that speaks HTTP: requests become commands, their replies become responses.
//!
//! ```text
//! input ──► request ──► EVENKEEL ITEMS ──► reply in the desk ──► response in `out`   at once: nearly always
//!                            │ worker, stream, database
//!                            └──► Open ──► its reply, piece by piece ──► `out`
//! ```
//!
//! - P1: a request stays in the input until its command has run; a held one is parsed again.
//! - P2: no request runs before the one before it is answered: responses come in order.
//! - P3: after a refusal the connection announces its end, stops sending, and drops input until the peer has
//!   read the response ([`LINGER_MS`]). Closing at once could destroy the response.
//!
//! Cost: a request that is answered at once allocates nothing.

use super::api::{NOT_OURS, file_of, path_of, takes_body};
use super::calls::Calls;
use super::hosts::is_ours;
use super::output::Streaming;
use super::{Conn, Doing, Next, Speech, State, Tools, add_response};
use crate::socket::Socket;
use exec::call::BROKEN;
use exec::http::{Found, ITEMS_WORDS, Shown};
use exec::{Flow, Local, Server, Session};
use http::body::Body;
use http::date::Today;
use http::reply::{self, Begin, Broken, Json};
use http::response::{self, Freshness, JSON, Life, METRICS, Verdict};
use http::{Condition, Framing, KeptCondition, Parsed, Request, request, target};
use resp::{OwnedArgs, Reply};
use std::sync::Arc;
use stdx::panics;

/// Longest reply that is gathered, so that its length and its tag are known; a longer one is sent piece by
/// piece.
pub(super) const WHOLE: usize = 64 * 1024 + 256;
/// Bytes of a reply translated at a time.
pub(super) const PART: usize = 16 * 1024;
/// How long a refused connection stays for its peer to read why.
const LINGER_MS: u64 = 2_000;
/// Requests behind one that waits for a row, and their bytes, that are searched for rows they will ask for.
const AHEAD: usize = 32;
const AHEAD_BYTES: usize = 16 * 1024;
/// Capacity above which a buffer of the desk is freed.
const DESK: usize = 256 * 1024;

/// Scratch buffers to serve HTTP with: one desk for all connections of a loop.
pub(crate) struct Desk {
    args: OwnedArgs,
    pub(super) reply: Reply,
    /// A key, or ids.
    pub(super) key: Vec<u8>,
    /// Unescaped ids, or JSON.
    pub(super) text: Vec<u8>,
    pub(super) today: Today,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk {
            args: OwnedArgs::new(),
            reply: Reply::new(true),
            key: Vec::new(),
            text: Vec::new(),
            today: Today::default(),
        }
    }
}

impl Desk {
    /// Frees what a long request made large.
    pub(super) fn tidy(&mut self) {
        if self.reply.capacity() > DESK {
            stdx::reclaim::discard(self.reply.take());
        }
        if self.text.capacity() > DESK {
            stdx::reclaim::discard(std::mem::take(&mut self.text));
        }
    }
}

/// The state of a connection that speaks HTTP.
pub(crate) struct Http {
    /// Bytes at the input's begin that were already searched for the end of the head.
    looked: usize,
    /// Bytes of a body still to be dropped.
    skip: u64,
    /// The request whose reply is on its way, or is being translated.
    open: Option<Box<Open>>,
    /// Commands of the API under way.
    pub(super) calls: Option<Box<Calls>>,
    /// The client was told to send the body of the request at the input's begin.
    told: bool,
    /// When a request was last whole, or something was last sent.
    pub(crate) progress_ms: u64,
    linger: Linger,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Linger {
    No,
    /// Lingers as soon as all is sent.
    Wanted,
    Until(u64),
}

/// The kind of response.
#[derive(Clone, Copy)]
enum Ask {
    Item(Life),
    Items,
    Page(&'static str),
}

/// A request that could not be answered at once.
pub(super) struct Open {
    ask: Ask,
    framing: Framing,
    condition: KeptCondition,
    /// The line for the access log, without its status.
    line: Option<String>,
    /// Whether its reply has come.
    replied: bool,
    /// The reply, or its begin; `at` is how much of it is translated.
    reply: Vec<u8>,
    at: usize,
    /// State of the response's body, once its head is written.
    body: Option<Body>,
}

/// Result of serving a request.
pub(super) enum Went {
    Answered(u16),
    Open(Box<Open>),
    Calls(Box<Calls>),
    Held(u64),
    Closed,
}

/// The page that a path names.
enum Page<'a> {
    Welcome,
    Health,
    Ready,
    Metrics,
    Openapi,
    Keys(Found<'a>),
}

impl<'a> Page<'a> {
    fn of(shown: &'a Shown, path: &'a [u8]) -> Option<Page<'a>> {
        Some(match path {
            b"/" => Page::Welcome,
            b"/healthz" => Page::Health,
            b"/readyz" => Page::Ready,
            b"/metrics" => Page::Metrics,
            b"/openapi.json" => Page::Openapi,
            path => Page::Keys(shown.find(path)?),
        })
    }
}

/// Makes the response to a peer that is not let in.
pub(crate) fn refusal(status: u16, detail: &str, now_ms: u64) -> Vec<u8> {
    let mut out = Vec::new();
    response::problem(status, Framing::LAST, Today::default().at(now_ms), detail, &mut out);
    out
}

impl Conn {
    /// Makes a connection that speaks HTTP. The password is checked with each request.
    pub(crate) fn http(socket: Socket, mut session: Session, server: &Server, now_ms: u64) -> Conn {
        (session.login.authenticated, session.speech.resp3) = (true, true);
        session.info.resp.store(3, std::sync::atomic::Ordering::Relaxed);
        session.info.text.lock().lib_name = b"http".to_vec();
        let http = Http {
            looked: 0,
            skip: 0,
            open: None,
            calls: None,
            told: false,
            progress_ms: now_ms,
            linger: Linger::No,
        };
        Conn { speech: Speech::Http(Box::new(http)), ..Conn::new(socket, session, server) }
    }

    pub(super) fn as_http(&mut self) -> Option<&mut Http> {
        match &mut self.speech {
            Speech::Http(http) => Some(http),
            Speech::Resp(_) => None,
        }
    }

    pub(crate) fn is_http(&self) -> bool {
        matches!(self.speech, Speech::Http(_))
    }

    /// When it last sent a whole request or took bytes, in milliseconds since 1970; None: it speaks RESP.
    pub(crate) fn http_idle_since_ms(&self) -> Option<u64> {
        match &self.speech {
            Speech::Http(http) => Some(http.progress_ms),
            Speech::Resp(_) => None,
        }
    }

    /// Whether a reply is being translated.
    pub(super) fn is_translating(&self) -> bool {
        matches!(&self.speech, Speech::Http(http) if http.open.as_ref().is_some_and(|open| open.replied))
    }

    /// Whether commands of the API are under way.
    pub(super) fn is_calling(&self) -> bool {
        matches!(&self.speech, Speech::Http(http) if http.calls.is_some())
    }

    /// Runs the next request of the input; false if none can run now.
    pub(super) fn run_request(
        &mut self,
        server: &Arc<Server>,
        local: &mut Local,
        desk: &mut Desk,
        input: &[u8],
    ) -> bool {
        panics::begin();
        self.doing = Doing::Parsing(self.out.len());
        let Speech::Http(http) = &mut self.speech else { return false };
        let drop = http.skip.min((input.len() - self.start) as u64);
        http.skip -= drop;
        self.start += drop as usize;
        if http.skip == 0 && http.looked == 0 {
            // Blank lines before a request are taken for the end of a body.
            let blank = |byte: &&u8| matches!(byte, b'\r' | b'\n');
            self.start += input[self.start..].iter().take_while(blank).count();
        }
        let rest = &input[self.start..];
        match request::parse(rest, &mut http.looked) {
            Parsed::More => {
                (self.need, self.enough) = (1, rest.len() + 1);
                false
            }
            Parsed::Refused(refused) => {
                (http.looked, self.start) = (0, input.len());
                let date = desk.today.at(local.log.now_ms);
                self.write(|out| response::problem(refused.status, Framing::LAST, date, refused.detail, out));
                self.close_gently();
                self.answered(server, local, refused.status, None, || "- (malformed)".into());
                true
            }
            Parsed::Request(request, used) => {
                let taken = match self.whole_body(&request, &rest[used..], used) {
                    Some(taken) => taken,
                    None => return false,
                };
                (self.need, self.enough) = (1, 1);
                self.doing = Doing::Command(self.out.len());
                let request = if taken { request.awaits() } else { request };
                self.serve(server, local, desk, (&request, taken), &rest[used..], used);
                true
            }
        }
    }

    /// Whether the body of a request is taken, of which `behind` is what came. None: more of it has to come.
    fn whole_body(&mut self, request: &Request<'_>, behind: &[u8], used: usize) -> Option<bool> {
        if !takes_body(request) {
            return Some(false);
        }
        let body = request.awaits().body as usize;
        let lacking = body.saturating_sub(behind.len());
        let told = self.as_http().is_some_and(|http| std::mem::replace(&mut http.told, lacking > 0));
        if lacking == 0 {
            return Some(true);
        }
        if request.expects && !told {
            self.write(response::go_on);
        }
        (self.need, self.enough) = (lacking, used + body);
        None
    }

    /// Answers a request that panicked. `parsed`: the request stands at `start`.
    pub(super) fn recover_request(
        &mut self,
        server: &Arc<Server>,
        local: &mut Local,
        tools: &mut Tools,
        input: &[u8],
        parsed: bool,
    ) -> Next {
        exec::call::recover(server, local, &mut self.session, &mut Reply::new(true));
        self.drop_open();
        tools.desk = Desk::default();
        let again = panics::contain(|| request::parse(&input[self.start..], &mut 0));
        let date = tools.desk.today.at(local.log.now_ms);
        let Ok(Parsed::Request(request, used)) = again else {
            self.write(|out| response::problem(500, Framing::LAST, date, BROKEN, out));
            self.answered(server, local, 500, None, || "- (a panic)".into());
            return self.give_up(input);
        };
        let framing = if parsed { Framing::of(&request) } else { Framing::LAST };
        self.write(|out| response::problem(500, framing, date, BROKEN, out));
        self.answered(server, local, 500, None, || line_of(&request));
        if !parsed {
            return self.give_up(input);
        }
        self.start += used;
        if let Some(http) = self.as_http() {
            (http.skip, http.progress_ms, http.looked, http.told) =
                (request.body, local.log.now_ms, 0, false);
        }
        if !request.keep {
            self.end_with(request.expects || request.body > 0);
        }
        Next::Continue
    }

    fn serve(
        &mut self,
        server: &Arc<Server>,
        local: &mut Local,
        desk: &mut Desk,
        (request, taken): (&Request<'_>, bool),
        behind: &[u8],
        used: usize,
    ) {
        let taken = if taken { request.body } else { 0 };
        let went = self.answer(server, local, desk, (request, &behind[..taken as usize]));
        desk.tidy();
        if let Went::Held(until) = went {
            self.state = State::Held(until); // P1
            if self.session.rows.loading.is_some() && request.keep {
                self.ask_ahead(server, local, desk, after_body(behind, request.body));
            }
            return;
        }
        self.start += used + taken as usize;
        let Some(http) = self.as_http() else { return };
        (http.skip, http.progress_ms) = (request.body - taken, local.log.now_ms);
        match went {
            Went::Open(open) => http.open = Some(open),
            Went::Calls(calls) => http.calls = Some(calls),
            Went::Answered(status) => {
                if !request.keep {
                    self.end_with(request.expects || request.body > 0);
                }
                self.answered(server, local, status, None, || line_of(request));
            }
            Went::Held(_) | Went::Closed => self.session.speech.closing = true,
        }
    }

    /// Answers a request, or begins to.
    fn answer(
        &mut self,
        server: &Arc<Server>,
        local: &mut Local,
        desk: &mut Desk,
        (request, body): (&Request<'_>, &[u8]),
    ) -> Went {
        match (path_of(request), file_of(request)) {
            (Some(path), _) => self.answer_api(server, local, desk, (request, body), path),
            (None, Some(file)) => self.answer_file(server, local, desk, request, file),
            (None, None) => self.answer_page(server, local, desk, request),
        }
    }

    /// Answers a request for a page about the server, or for items.
    fn answer_page(
        &mut self,
        server: &Arc<Server>,
        local: &mut Local,
        desk: &mut Desk,
        request: &Request<'_>,
    ) -> Went {
        let shown = server.http.shown();
        let page = Page::of(&shown, request.path);
        let open = matches!(page, Some(Page::Health));
        if !open && let Some((status, detail)) = self.shuts_out(server, local, request) {
            return self.problem(local, desk, request, status, detail);
        }
        let Some(page) = page else {
            return self.problem(local, desk, request, 404, "nothing is shown at this path");
        };
        if !request.method.reads() {
            return self.problem(local, desk, request, 405, "only GET and HEAD are served");
        }
        desk.reply.clear();
        let (ask, flow) = match page {
            Page::Health => {
                let body = response::facts(&exec::http::health(server));
                return self.json_page(local, desk, request, &body);
            }
            Page::Ready => return self.ready_page(server, local, desk, request),
            Page::Metrics if !exec::http::may_see_metrics(server, &mut self.session) => {
                return self.problem(local, desk, request, 403, "the user may not run INFO");
            }
            Page::Metrics => {
                let flow = exec::http::metrics(server, local, &self.session, &mut desk.reply);
                (Ask::Page(METRICS), flow)
            }
            Page::Openapi => (Ask::Page(JSON), shown.openapi(&mut desk.reply)),
            Page::Welcome => (Ask::Page(JSON), shown.welcome(&mut desk.reply)),
            Page::Keys(found) => {
                let ask = match name_keys(&found, request, desk, local.log.now_ms) {
                    Ok(ask) => ask,
                    Err(complaint) => return self.problem(local, desk, request, 400, complaint),
                };
                let args = desk.args.args();
                (
                    ask,
                    exec::http::execute_row(
                        server,
                        local,
                        &mut self.session,
                        &exec::http::ITEMS,
                        args,
                        &mut desk.reply,
                    ),
                )
            }
        };
        self.follow(server, local, desk, request, ask, flow)
    }

    /// Why a request gets nothing of the server: status and text.
    fn shuts_out(
        &mut self,
        server: &Server,
        local: &Local,
        request: &Request<'_>,
    ) -> Option<(u16, &'static str)> {
        if !exec::http::admits(server, local, &mut self.session, request.authorization) {
            return Some((401, "a password is needed, as a bearer token"));
        }
        // A token of a user without a password proves nothing.
        let proves = request.authorization.is_some() && !self.session.login.user.user().needs_no_password();
        (!proves && !is_ours(server, request.host)).then_some((421, NOT_OURS))
    }

    /// Asks for the rows of the requests behind one that waits for its own, so that they are loaded together.
    /// Cost: O([`AHEAD_BYTES`]).
    #[cold]
    fn ask_ahead(&self, server: &Server, local: &Local, desk: &mut Desk, input: &[u8]) {
        let shown = server.http.shown();
        let mut rest = &input[..input.len().min(AHEAD_BYTES)];
        for _ in 0..AHEAD {
            let blank = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            let Parsed::Request(request, used) = request::parse(&rest[blank..], &mut 0) else { return };
            rest = after_body(&rest[blank + used..], request.body);
            let found = match Page::of(&shown, request.path) {
                Some(Page::Keys(found)) if request.method.reads() => Some(found),
                _ => None,
            };
            if let Some(found) = found
                && let Some(user) = exec::http::user_of(&server.acl, request.authorization)
                && name_keys(&found, &request, desk, local.log.now_ms).is_ok()
            {
                exec::http::ask_ahead(server, local, &self.session, &user, desk.args.args());
            }
            if !request.keep {
                return;
            }
        }
    }

    /// Makes the response once the command of a request has run, or has begun to.
    fn follow(
        &mut self,
        server: &Server,
        local: &Local,
        desk: &mut Desk,
        request: &Request<'_>,
        ask: Ask,
        flow: Flow,
    ) -> Went {
        let framing = Framing::of(request);
        let open = |reply: &[u8], replied| {
            Went::Open(Box::new(Open {
                ask,
                framing,
                condition: request.condition.keep(),
                line: server.config.live.http_access_log.get().then(|| line_of(request)),
                replied,
                reply: reply.to_vec(),
                at: 0,
                body: None,
            }))
        };
        match flow {
            Flow::Done if desk.reply.len() <= WHOLE => {
                let Desk { reply, text, today, .. } = desk;
                let date = today.at(local.log.now_ms);
                let (reply, condition) = (reply.as_bytes(), request.condition);
                Went::Answered(self.write(|out| whole(ask, framing, condition, date, reply, text, out)))
            }
            Flow::Done => open(desk.reply.as_bytes(), true),
            Flow::Stream(stream) => {
                self.stream = Some(Streaming::new(stream));
                open(desk.reply.as_bytes(), true)
            }
            Flow::Parked(timeout_ms) => {
                self.state = State::Parked(timeout_ms.map(|ms| local.log.now_ms + ms));
                open(&[], false)
            }
            Flow::Held(until) => Went::Held(until),
            Flow::Close => Went::Closed,
        }
    }

    fn problem(
        &mut self,
        local: &Local,
        desk: &mut Desk,
        request: &Request<'_>,
        status: u16,
        detail: &str,
    ) -> Went {
        let date = desk.today.at(local.log.now_ms);
        self.write(|out| response::problem(status, Framing::of(request), date, detail, out));
        Went::Answered(status)
    }

    fn ready_page(&mut self, server: &Server, local: &Local, desk: &mut Desk, request: &Request<'_>) -> Went {
        let state = exec::http::readiness(server);
        match state.is_ready {
            true => self.state_page(local, desk, request, "ready", &state.trouble),
            false => self.problem(local, desk, request, 503, &state.trouble.join("; ")),
        }
    }

    fn state_page(
        &mut self,
        local: &Local,
        desk: &mut Desk,
        request: &Request<'_>,
        state: &str,
        trouble: &[String],
    ) -> Went {
        self.json_page(local, desk, request, &response::state(state, trouble))
    }

    fn json_page(&mut self, local: &Local, desk: &mut Desk, request: &Request<'_>, body: &[u8]) -> Went {
        let date = desk.today.at(local.log.now_ms);
        self.write(|out| response::text(200, Framing::of(request), date, JSON, body, out));
        Went::Answered(200)
    }

    /// Notes the reply to the open request.
    pub(super) fn replied(&mut self, reply: Vec<u8>) {
        if let Some(calls) = self.as_http().and_then(|http| http.calls.as_mut()) {
            return calls.replied(reply);
        }
        if let Some(open) = self.as_http().and_then(|http| http.open.as_mut()) {
            (open.reply, open.replied) = (reply, true);
        }
    }

    /// Translates a piece of the open request's reply.
    pub(super) fn translate(&mut self, server: &Server, local: &Local, desk: &mut Desk) {
        let Some(mut open) = self.as_http().and_then(|http| http.open.take()) else { return };
        let done = match open.body.take() {
            None => self.begin_body(&mut open, local, desk),
            Some(body) => self.go_on(&mut open, body, desk).map(|through| through.then_some(200)),
        };
        desk.tidy();
        match done {
            Ok(None) => {
                if let Some(http) = self.as_http() {
                    http.open = Some(open);
                }
            }
            Ok(Some(status)) => {
                if !open.framing.keep {
                    self.end_with(false);
                }
                self.answered(server, local, status, open.line.take(), String::new);
                stdx::reclaim::discard(open.reply);
            }
            Err(Broken) => {
                log::error!("HTTP client {} is closed: its reply is malformed", self.session.id);
                (self.stream, self.session.speech.closing) = (None, true); // H3
            }
        }
    }

    /// Writes the head of a response; or all of it, and returns its status.
    fn begin_body(&mut self, open: &mut Open, local: &Local, desk: &mut Desk) -> Result<Option<u16>, Broken> {
        let date = desk.today.at(local.log.now_ms);
        let condition = open.condition.get();
        let begin = begin(open.ask, &open.reply);
        if open.reply.len() <= WHOLE
            && let Some(stream) = &mut self.stream
        {
            desk.reply.clear();
            if !stream.reply.fill(&mut desk.reply, PART) {
                self.stream = None;
            }
            open.reply.extend_from_slice(desk.reply.as_bytes());
            return Ok(None);
        }
        let short = self.stream.is_none() && open.reply.len() <= WHOLE;
        if short || matches!(begin, Some(Begin::Error(_) | Begin::Missing)) {
            let (reply, text) = (&open.reply, &mut desk.text);
            let status = self.write(|out| whole(open.ask, open.framing, condition, date, reply, text, out));
            return Ok(Some(status));
        }
        let (content_type, freshness) = match (open.ask, begin) {
            (Ask::Page(content_type), _) => (content_type, Freshness::UNKNOWN),
            (Ask::Item(life), Some(Begin::Text(kept, ..) | Begin::Object(kept, _))) => {
                (JSON, Freshness::of(kept, &life))
            }
            _ => (JSON, Freshness::UNKNOWN),
        };
        let verdict = match open.ask {
            Ask::Page(_) => Verdict::Send,
            _ => freshness.verdict(condition, None),
        };
        if verdict != Verdict::Send {
            self.stream = None;
            let framing = open.framing;
            return Ok(Some(self.write(|out| match verdict {
                Verdict::Failed => response::failed(framing, date, out),
                _ => response::unchanged(framing, date, &freshness, out),
            })));
        }
        let chunked = open.framing.http11;
        let (body, len) = match (open.ask, begin) {
            (_, Some(Begin::Text(_, len, at))) => {
                open.at = at;
                (Body::Text(len), Some(len))
            }
            (_, Some(Begin::Object(_, at))) => {
                open.at = at;
                (Body::Json { json: Json::value(), chunked }, None)
            }
            (Ask::Items, None) => (Body::Json { json: Json::list(), chunked }, None),
            _ => return Err(Broken),
        };
        // With no length and no chunks (HTTP/1.0), the end of the connection is the end of the body.
        open.framing.keep &= len.is_some() || chunked;
        let framing = open.framing;
        self.write(|out| response::streamed(framing, date, content_type, &freshness, len, out));
        if framing.head {
            self.stream = None;
            return Ok(Some(200));
        }
        open.body = Some(body);
        Ok(None)
    }

    /// Writes the next piece of a body; true if that was the last.
    fn go_on(&mut self, open: &mut Open, mut body: Body, desk: &mut Desk) -> Result<bool, Broken> {
        let mut taken = Taken::of(&mut self.out);
        let out = &mut taken.bytes;
        let put = if open.at < open.reply.len() {
            let to = open.reply.len().min(open.at + PART);
            let piece = &open.reply[std::mem::replace(&mut open.at, to)..to];
            body.put(piece, &mut desk.text, out)
        } else if let Some(stream) = &mut self.stream {
            desk.reply.clear();
            if !stream.reply.fill(&mut desk.reply, PART) {
                self.stream = None;
            }
            body.put(desk.reply.as_bytes(), &mut desk.text, out)
        } else {
            Ok(())
        };
        let through = self.stream.is_none() && open.at == open.reply.len();
        let ended = match (put, through) {
            (Err(broken), _) => Err(broken),
            (Ok(()), true) => body.end(out).map(|()| true),
            (Ok(()), false) => {
                open.body = Some(body);
                Ok(false)
            }
        };
        drop(taken);
        ended
    }

    /// Lets `write` append a response to the output.
    pub(super) fn write<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut out = Taken::of(&mut self.out);
        write(&mut out.bytes)
    }

    /// Counts an answered request and writes the access log.
    pub(super) fn answered(
        &self,
        server: &Server,
        local: &Local,
        status: u16,
        line: Option<String>,
        make: impl FnOnce() -> String,
    ) {
        add_response(local, status);
        if server.config.live.http_access_log.get() {
            let line = line.unwrap_or_else(make);
            log::info!("{} {line} {status}", self.session.info.address);
        }
    }

    // ----- the end -----------------------------------------------------------------------------------------

    fn end_with(&mut self, gently: bool) {
        if gently {
            return self.close_gently();
        }
        self.session.speech.closing = true;
    }

    /// Runs nothing more, but lets the peer read what was written before the connection closes (P3).
    fn close_gently(&mut self) {
        self.session.speech.closing = true;
        if let Some(http) = self.as_http() {
            http.linger = Linger::Wanted;
        }
    }

    /// Decides, when everything is sent, whether the connection stays for a while; and until when, if that is
    /// new.
    pub(crate) fn linger(&mut self, now_ms: u64) -> (bool, Option<u64>) {
        if self.ended {
            return (false, None);
        }
        let linger = self.as_http().map_or(Linger::No, |http| http.linger);
        match linger {
            Linger::No => (false, None),
            Linger::Until(at) => (now_ms < at, None),
            Linger::Wanted => {
                let until = now_ms + LINGER_MS;
                self.socket.end_sending();
                if let Some(http) = self.as_http() {
                    http.linger = Linger::Until(until);
                }
                (true, Some(until))
            }
        }
    }

    /// Whether it only waits to be closed, and has waited long enough.
    pub(crate) fn has_lingered(&self, now_ms: u64) -> bool {
        matches!(&self.speech, Speech::Http(http) if matches!(http.linger, Linger::Until(at) if at <= now_ms))
    }

    /// Drops the open request; a large reply is freed on another thread.
    pub(super) fn drop_open(&mut self) {
        if let Some(calls) = self.as_http().and_then(|http| http.calls.take()) {
            calls.discard();
        }
        if let Some(open) = self.as_http().and_then(|http| http.open.take())
            && open.reply.len() >= exec::job::MANY_BYTES
        {
            stdx::reclaim::discard(open.reply);
        }
    }
}

/// The output buffer, borrowed to append to. It goes back on drop, also after a panic.
struct Taken<'a> {
    home: &'a mut Reply,
    bytes: Vec<u8>,
}

impl Taken<'_> {
    fn of(home: &mut Reply) -> Taken<'_> {
        let mut bytes = Vec::new();
        home.swap(&mut bytes);
        Taken { home, bytes }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.home.swap(&mut self.bytes);
    }
}

/// The bytes after a body of `body` bytes; nothing if the body is not whole.
fn after_body(input: &[u8], body: u64) -> &[u8] {
    usize::try_from(body).ok().and_then(|body| input.get(body..)).unwrap_or_default()
}

pub(super) fn line_of(request: &Request<'_>) -> String {
    let text = String::from_utf8_lossy;
    match request.query {
        Some(query) => format!("{} {}?{}", request.method_name, text(request.path), text(query)),
        None => format!("{} {}", request.method_name, text(request.path)),
    }
}

/// Puts the words of the command for the request's keys on the desk. Errors: an id is not allowed. Cost:
/// O(target).
fn name_keys(
    found: &Found<'_>,
    request: &Request<'_>,
    desk: &mut Desk,
    now_ms: u64,
) -> Result<Ask, target::Complaint> {
    let Desk { args, key, text, .. } = desk;
    args.clear();
    args.extend(ITEMS_WORDS);
    match found {
        Found::Item(route, id) => {
            key.clear();
            key.extend_from_slice(&route.pattern.prefix);
            target::unescape(id, key)?;
            route.check(&key[route.pattern.prefix.len()..])?;
            key.extend_from_slice(&route.pattern.suffix);
            args.push(key);
            Ok(Ask::Item(route.life(key, now_ms)))
        }
        Found::Items(route) => {
            target::ids(request.query.unwrap_or_default(), text, |id| {
                route.check(id)?;
                key.clear();
                key.extend_from_slice(&route.pattern.prefix);
                key.extend_from_slice(id);
                key.extend_from_slice(&route.pattern.suffix);
                args.push(key);
                Ok(())
            })?;
            Ok(Ask::Items)
        }
    }
}

/// Reads how a reply begins. None: it is not what was asked for, is a list, or its begin is not whole.
fn begin(ask: Ask, reply: &[u8]) -> Option<Begin<'_>> {
    match ask {
        Ask::Item(_) => reply::begin(reply),
        Ask::Page(_) => reply::text(reply),
        Ask::Items => reply::error(reply).map(Begin::Error),
    }
}

/// Writes the response for a whole reply; returns its status. Cost: O(reply).
fn whole(
    ask: Ask,
    framing: Framing,
    condition: Condition<'_>,
    date: &[u8; http::date::LEN],
    reply: &[u8],
    text: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> u16 {
    let begin = begin(ask, reply);
    let mut json = |json: Json, from: usize| {
        text.clear();
        let mut json = json;
        json.feed(&reply[from..], text).is_ok() && json.is_done()
    };
    match (ask, begin) {
        (_, Some(Begin::Error(error))) => {
            let (status, detail) = response::failure(error);
            response::problem(status, framing, date, &detail, out);
            return status;
        }
        (_, Some(Begin::Missing)) => {
            response::problem(404, framing, date, "there is no such item", out);
            return 404;
        }
        (Ask::Item(life), Some(Begin::Text(kept, len, at))) => {
            if let Some(body) = reply.get(at..at + len) {
                let freshness = Freshness::of(kept, &life);
                return response::tagged(framing, date, &freshness, condition, body, out);
            }
        }
        (Ask::Page(content_type), Some(Begin::Text(_, len, at))) => {
            if let Some(body) = reply.get(at..at + len) {
                response::text(200, framing, date, content_type, body, out);
                return 200;
            }
        }
        (Ask::Item(life), Some(Begin::Object(kept, at))) if json(Json::value(), at) => {
            let freshness = Freshness::of(kept, &life);
            return response::tagged(framing, date, &freshness, condition, text, out);
        }
        (Ask::Items, None) if json(Json::list(), 0) => {
            return response::tagged(framing, date, &Freshness::UNKNOWN, condition, text, out);
        }
        _ => {}
    }
    response::problem(500, framing, date, "internal error: the reply to this request is malformed", out);
    500
}
