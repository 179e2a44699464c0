//! The console's API: who asks, whether a request may be answered, and what it begins.
//!
//! - A1: nothing is answered to a page of another origin, and to nobody whose cookie or token is wrong. Without
//!   either, the Host must be one of this server's names (`hosts.rs`).
//! - A2: what changes something is a POST of JSON, and if a browser could have added its cookie by itself,
//!   with a line that only the console's own pages can add.
//! - A3: a user does what its rights allow, and unless writes are allowed only what `pages::gate` lets pass. A
//!   token is used by programs, not by browsers: it is not restricted so.
//!
//! Commands are run by `calls.rs`.

use super::Conn;
use super::calls::Calls;
use super::hosts::is_ours;
use super::http::{Desk, Went};
use console::File;
use exec::pages::api::{self, Call, Path};
use exec::pages::logins::{self, Found};
use exec::{Local, Server};
use http::response::Stored;
use http::words::{self, Part};
use http::{Framing, Method, Request, response};
use resp::OwnedArgs;

/// Why a request by another name is refused.
pub(super) const NOT_OURS: &str =
    "the Host is none of this server's names; the directive http-hosts may name it";
const COOKIE: &[u8] = b"evenkeel";

/// How a request proved whose it is.
enum By {
    Token,
    Cookie(Found),
    /// The server needs no password.
    Nothing,
}

/// The reason why a request is not answered.
type Refused = (u16, &'static str);

/// One request, and what is known of it.
struct Asked<'a> {
    request: &'a Request<'a>,
    body: &'a [u8],
    path: Path,
}

/// The path of the API that a request names, if it names one at all.
pub(super) fn path_of(request: &Request<'_>) -> Option<Option<Path>> {
    request.path.strip_prefix(api::BEGIN).map(Path::of)
}

/// Whether the body of a request is taken, not dropped.
pub(super) fn takes_body(request: &Request<'_>) -> bool {
    request.method == Method::Post && matches!(path_of(request), Some(Some(_)))
}

/// The file of the console that a request asks for.
pub(super) fn file_of(request: &Request<'_>) -> Option<&'static File> {
    let path = std::str::from_utf8(request.path.strip_prefix(b"/")?).ok()?;
    let file = console::FILES.iter().find(|file| file.path == path)?;
    // At `/` a program gets the server's own description.
    (!path.is_empty() || request.browser.takes_html).then_some(file)
}

/// Whether a request's token is that of a user who has a password ([`logins::proves`]).
fn proves(server: &Server, request: &Request<'_>) -> bool {
    request.authorization.is_some() && logins::proves(&server.acl, request.authorization)
}

impl Conn {
    /// Answers with a file of the console, which says nothing about the server.
    pub(super) fn answer_file(
        &mut self,
        server: &Server,
        local: &Local,
        desk: &mut Desk,
        request: &Request<'_>,
        file: &File,
    ) -> Went {
        let (framing, date) = (Framing::of(request), desk.today.at(local.log.now_ms));
        let refused = if !proves(server, request) && !is_ours(server, request.host) {
            Some((421, NOT_OURS))
        } else if !request.method.reads() {
            Some((405, "only GET and HEAD are served"))
        } else {
            None
        };
        let File { content_type, bytes, gzip, .. } = *file;
        let stored = Stored { content_type, bytes, gzip };
        let takes_gzip = request.browser.takes_gzip;
        Went::Answered(self.write(|out| match refused {
            Some((status, detail)) => {
                response::problem(status, framing, date, detail, out);
                status
            }
            None => response::file(framing, date, (&stored, takes_gzip), request.condition, out),
        }))
    }

    /// Answers a request to the API, or begins to. `body`: empty unless [`takes_body`].
    pub(super) fn answer_api(
        &mut self,
        server: &Server,
        local: &mut Local,
        desk: &mut Desk,
        (request, body): (&Request<'_>, &[u8]),
        path: Option<Path>,
    ) -> Went {
        let result = match path {
            Some(path) => self.try_answer(server, local, desk, &Asked { request, body, path }),
            None => Err((404, "the API has no such path")),
        };
        result.unwrap_or_else(|(status, detail)| {
            let methods = path.map_or("GET, HEAD", Path::methods);
            let date = desk.today.at(local.log.now_ms);
            self.write(|out| {
                response::problem_with(status, Framing::of(request), date, (detail, methods), out);
            });
            Went::Answered(status)
        })
    }

    fn try_answer(
        &mut self,
        server: &Server,
        local: &mut Local,
        desk: &mut Desk,
        asked: &Asked<'_>,
    ) -> Result<Went, Refused> {
        let Asked { request, path, .. } = asked;
        let found = self.cookie(server, local, request);
        if !proves(server, request) && found.is_none() && !is_ours(server, request.host) {
            return Err((
                421,
                "the Host is none of this server's names; the directive http-hosts may name it",
            ));
        }
        if request.browser.is_foreign(request.host) {
            return Err((403, "this request comes from a page of another origin"));
        }
        let is_post = request.method == Method::Post;
        if !path.methods().split(", ").any(|method| method == request.method_name) {
            return Err((405, "this path does not take this method"));
        }
        if is_post && !request.browser.sends_json {
            return Err((415, "the body must be JSON, and Content-Type: application/json say so"));
        }
        if is_post && !proves(server, request) && !request.browser.is_console {
            return Err((403, "without a token the request needs the line Evenkeel-Console: 1"));
        }
        if is_post && matches!(path, Path::Login) {
            return self.log_in(server, local, desk, asked);
        }
        let by = self.identify(server, local, request, found)?;
        match path {
            Path::Login => {
                let body = self.describe(server, &by);
                Ok(self.api_answer(local, desk, request, "", &body))
            }
            Path::Logout => {
                if let By::Cookie(found) = by {
                    server.http.logins.end(&found.key);
                }
                let lines = self.cookie_line("", "; Max-Age=0");
                Ok(self.api_answer(local, desk, request, &lines, b"{}"))
            }
            Path::Writes => self.allow_writes(server, local, desk, asked, by),
            Path::Commands => self.begin_commands(server, desk, asked, &by),
            Path::Stream => self.begin_stream(server, asked, by),
            Path::Show(view) => match view.call(request.query) {
                Ok(Some(call)) => Ok(self.begin_calls(server, asked, Calls::show(call))),
                Ok(None) => Err((404, "this server does not have the command behind this path")),
                Err(complaint) => Err((400, complaint)),
            },
        }
    }

    /// The session that a request's cookie names.
    fn cookie(&self, server: &Server, local: &Local, request: &Request<'_>) -> Option<Found> {
        let cookie = request.browser.cookie_of(COOKIE)?;
        server.http.logins.find(cookie, &server.acl, local.log.now_ms)
    }

    /// Whose request it is. The session acts as that user from then on.
    fn identify(
        &mut self,
        server: &Server,
        local: &Local,
        request: &Request<'_>,
        found: Option<Found>,
    ) -> Result<By, Refused> {
        let proves = proves(server, request);
        if !proves && let Some(found) = found {
            exec::http::act_as(&mut self.session, found.user.clone());
            return Ok(By::Cookie(found));
        }
        if !exec::http::admits(server, local, &mut self.session, request.authorization) {
            return Err((401, "log in, or send a password as a bearer token"));
        }
        Ok(if proves { By::Token } else { By::Nothing })
    }

    fn log_in(
        &mut self,
        server: &Server,
        local: &mut Local,
        desk: &mut Desk,
        asked: &Asked<'_>,
    ) -> Result<Went, Refused> {
        let (logins, now_ms) = (&server.http.logins, local.log.now_ms);
        if !logins.may_try(&self.session.info.address, now_ms) {
            return Err((429, "too many logins failed; try again in a second"));
        }
        let (mut name, mut password) = (b"default".to_vec(), Vec::new());
        words::fields(asked.body, &mut desk.text, |field, text| match field {
            b"user" if !text.is_empty() => name = text.to_vec(),
            b"password" => password = text.to_vec(),
            _ => {}
        })
        .map_err(|complaint| (400, complaint))?;
        let Some(user) = server.acl.admits(&name, &password) else {
            logins.failed(&self.session.info.address, now_ms);
            let token = [&name[..], b":"].concat();
            exec::http::refuse_login(server, local, &mut self.session, Some(&token));
            return Err((401, "this user or this password is wrong"));
        };
        let key =
            logins.begin(user.clone(), now_ms).map_err(|_| (503, "the system has no random numbers"))?;
        exec::http::act_as(&mut self.session, user.clone());
        let found = Found { user, key, writes_until_ms: 0 };
        let body = self.describe(server, &By::Cookie(found));
        let lines = self.cookie_line(&logins::spell(&key), "");
        Ok(self.api_answer(local, desk, asked.request, &lines, &body))
    }

    fn allow_writes(
        &mut self,
        server: &Server,
        local: &Local,
        desk: &mut Desk,
        asked: &Asked<'_>,
        by: By,
    ) -> Result<Went, Refused> {
        let By::Cookie(mut found) = by else {
            return Err((403, "only a session of the console is restricted"));
        };
        if !server.config.live.console_writes.get() {
            return Err((403, "the directive console-writes is no"));
        }
        let mut allowed = false;
        words::fields(asked.body, &mut desk.text, |field, text| {
            allowed |= field == b"allow" && text == b"true";
        })
        .map_err(|complaint| (400, complaint))?;
        found.writes_until_ms = server.http.logins.allow_writes(&found.key, allowed, local.log.now_ms);
        let body = self.describe(server, &By::Cookie(found));
        Ok(self.api_answer(local, desk, asked.request, "", &body))
    }

    fn begin_commands(
        &mut self,
        server: &Server,
        desk: &mut Desk,
        asked: &Asked<'_>,
        by: &By,
    ) -> Result<Went, Refused> {
        let db = database(server, asked.request, &mut desk.key)?;
        let (mut commands, mut command) = (Vec::new(), OwnedArgs::new());
        words::commands(asked.body, &mut desk.text, |part| match part {
            Part::Word(word) => command.push(word),
            Part::End => commands.push(std::mem::take(&mut command)),
        })
        .map_err(|complaint| (400, complaint))?;
        Ok(self.begin_calls(server, asked, Calls::list(commands, db, reads_only(server, by))))
    }

    fn begin_stream(&mut self, server: &Server, asked: &Asked<'_>, by: By) -> Result<Went, Refused> {
        let call =
            Call::of_stream().ok_or((404, "this server does not have the command behind this path"))?;
        let place = server.http.streams.take().ok_or((503, "there are 64 streams already"))?;
        let key = if let By::Cookie(found) = by { Some(found.key) } else { None };
        Ok(self.begin_calls(server, asked, Calls::stream(call, place, key)))
    }

    fn begin_calls(&mut self, server: &Server, asked: &Asked<'_>, calls: Calls) -> Went {
        let log = server.config.live.http_access_log.get();
        let line = log.then(|| super::http::line_of(asked.request));
        Went::Calls(Box::new(calls.of(Framing::of(asked.request), line)))
    }

    /// The answer to who it is, and what it may do.
    fn describe(&self, server: &Server, by: &By) -> Vec<u8> {
        let (by, writes, until_ms) = match by {
            By::Token => ("token", "yes", 0),
            By::Nothing | By::Cookie(_) if !server.config.live.console_writes.get() => (name_of(by), "no", 0),
            By::Cookie(Found { writes_until_ms: 0, .. }) | By::Nothing => (name_of(by), "locked", 0),
            By::Cookie(found) => ("cookie", "yes", found.writes_until_ms),
        };
        let user = self.session.login.user.user();
        api::describe(user, by, writes, until_ms, server.keyspace.databases())
    }

    fn api_answer(
        &mut self,
        local: &Local,
        desk: &mut Desk,
        request: &Request<'_>,
        lines: &str,
        body: &[u8],
    ) -> Went {
        let date = desk.today.at(local.log.now_ms);
        self.write(|out| response::answer(Framing::of(request), date, lines, body, out));
        Went::Answered(200)
    }

    fn cookie_line(&self, value: &str, more: &str) -> String {
        let secure = if self.is_secure() { "; Secure" } else { "" };
        format!("Set-Cookie: evenkeel={value}; Path=/; HttpOnly; SameSite=Strict{secure}{more}\r\n")
    }
}

fn name_of(by: &By) -> &'static str {
    match by {
        By::Token => "token",
        By::Cookie(_) => "cookie",
        By::Nothing => "nothing",
    }
}

/// Whether a request may only read (A3).
fn reads_only(server: &Server, by: &By) -> bool {
    match by {
        By::Token => false,
        By::Cookie(found) => !server.config.live.console_writes.get() || found.writes_until_ms == 0,
        By::Nothing => true,
    }
}

/// The database that a request names; else 0.
fn database(server: &Server, request: &Request<'_>, value: &mut Vec<u8>) -> Result<usize, Refused> {
    let query = request.query.unwrap_or_default();
    let is_there = http::target::parameter(query, "db", value).map_err(|complaint| (400, complaint))?;
    if !is_there {
        return Ok(0);
    }
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.filter(|db| *db < server.keyspace.databases()).ok_or((400, "there is no such database"))
}
