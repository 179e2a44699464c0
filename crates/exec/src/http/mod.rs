//! HTTP's pages: which paths show which keys, and the pages about the server itself.
//!
//! ```text
//! /items/42          EVENKEEL ITEMS item:42
//! /items?ids=1,2     EVENKEEL ITEMS item:1 item:2
//! /metrics           the clerk's figures          / and /openapi.json   made when the sources change
//! ```
//!
//! `net` speaks HTTP and asks for what is here. The paths change only with the sources.

pub mod metrics;
mod openapi;
mod welcome;

use crate::call::{Flow, execute_row};
use crate::fetching;
use crate::rows::Entry;
use crate::{Local, Server, Session};
use acl::{DEFAULT, User};
use arc_swap::ArcSwap;
use command::{Command, Stream, places};
use http::response::Life;
use parking_lot::Mutex;
use resp::{Args, Reply};
use source::{IdType, Pattern, Spec};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use stdx::points::{self, Point};

/// The keys that a path shows.
pub struct Route {
    path: Box<[u8]>,
    pub pattern: Pattern,
    id_type: IdType,
    ttl_ms: u64,
    max_age_ms: u64,
    /// The source; None: plain keys (DEBUG HTTP-SHOW).
    entry: Option<Arc<Entry>>,
}

impl Route {
    fn of(spec: &Spec, entry: Option<Arc<Entry>>) -> Option<Route> {
        let path = spec.path.as_ref()?.as_bytes().into();
        let (ttl_ms, max_age_ms) = (spec.ttl.as_millis() as u64, spec.max_age.as_millis() as u64);
        Some(Route { path, pattern: spec.pattern.clone(), id_type: spec.id_type, ttl_ms, max_age_ms, entry })
    }

    /// Checks an id. Errors: how it differs from `openapi`'s description. O(id).
    pub fn check(&self, id: &[u8]) -> Result<(), &'static str> {
        self.id_type.complaint(id).map_or(Ok(()), Err)
    }

    /// The life of a key's item that is read at that time or later. O(key).
    pub fn life(&self, key: &[u8], now_ms: u64) -> Life {
        let life = Life { ttl_ms: self.ttl_ms, max_age_ms: self.max_age_ms, now_ms, ..Life::default() };
        match &self.entry {
            Some(entry) => Life {
                ttl_ms: entry.ttl_ms(key),
                stale_ms: entry.spec().stale_if_error.as_millis() as u64,
                load_ms: entry.spec().timeout.as_millis() as u64,
                settled_ms: settled_ms(entry),
                ..life
            },
            None => life,
        }
    }
}

/// The meaning of a path.
pub enum Found<'a> {
    /// One item, by its id, still escaped.
    Item(&'a Route, &'a [u8]),
    /// The items of a list of ids.
    Items(&'a Route),
}

/// The paths that are shown now.
pub struct Shown {
    /// Longer paths first: `/items/special` before `/items`.
    routes: Vec<Route>,
    openapi: Arc<[u8]>,
    welcome: Arc<[u8]>,
}

impl Shown {
    fn of(entries: &[Arc<Entry>], plain: &[Spec]) -> Shown {
        let of_entry = |entry: &Arc<Entry>| Route::of(entry.spec(), Some(entry.clone()));
        let mut routes: Vec<Route> = entries.iter().filter_map(of_entry).collect();
        routes.extend(plain.iter().filter_map(|spec| Route::of(spec, None)));
        routes.sort_by_key(|route| std::cmp::Reverse(route.path.len()));
        let specs: Vec<&Spec> = entries.iter().map(|entry| entry.spec()).chain(plain).collect();
        let [openapi, welcome] = [openapi::describe(&specs), welcome::describe(&specs)];
        Shown { routes, openapi: openapi.into_bytes().into(), welcome: welcome.into_bytes().into() }
    }

    /// Finds the meaning of a path. Cost: O(sources).
    pub fn find<'a>(&'a self, path: &'a [u8]) -> Option<Found<'a>> {
        self.routes.iter().find_map(|route| match path.strip_prefix(&*route.path)? {
            [] => Some(Found::Items(route)),
            [b'/', id @ ..] if !id.is_empty() && !id.contains(&b'/') => Some(Found::Item(route, id)),
            _ => None,
        })
    }
}

/// The paths, and the pages made from them. See the module.
pub struct Http {
    shown: ArcSwap<Shown>,
    /// Plain keys that are shown as if they belonged to sources.
    plain: Mutex<Vec<Spec>>,
}

impl Default for Http {
    fn default() -> Http {
        Http { shown: ArcSwap::from_pointee(Shown::of(&[], &[])), plain: Mutex::default() }
    }
}

impl Http {
    /// Shows the keys of these sources from now on, if they have a path.
    pub(crate) fn show(&self, entries: &[Arc<Entry>]) {
        let plain = self.plain.lock();
        self.shown.store(Arc::new(Shown::of(entries, &plain)));
    }

    /// Adds plain keys to those that the sources show, as if this source owned them. None: no plain keys any
    /// more.
    pub(crate) fn show_plain(&self, spec: Option<Spec>, entries: &[Arc<Entry>]) {
        let mut plain = self.plain.lock();
        match spec {
            Some(spec) => plain.push(spec),
            None => plain.clear(),
        }
        self.shown.store(Arc::new(Shown::of(entries, &plain)));
    }

    #[inline]
    pub fn shown(&self) -> arc_swap::Guard<Arc<Shown>> {
        self.shown.load()
    }
}

/// The last moment up to which all changes of rows are told and their items gone; 0: none is known.
fn settled_ms(entry: &Entry) -> u64 {
    // In this order, because a change that is told later may already wait by then.
    let caught_up_ms = entry.source.counters.caught_up_ms.load(Ordering::Acquire);
    if entry.queue.waiting().0 == 0 { caught_up_ms } else { 0 }
}

/// The state of the server's sources, for health checks.
pub struct Readiness {
    /// Each source was able to answer at some time. This stays true when a database fails: cached items are
    /// still answered, and a load balancer would remove all servers at once.
    pub is_ready: bool,
    /// A line for each source that cannot load rows now.
    pub trouble: Vec<String>,
}

/// Asks all sources for their state. Cost: a short lock per source.
pub fn readiness(server: &Server) -> Readiness {
    let list = server.rows.list();
    let reason = |entry: &Arc<Entry>| {
        let paused = entry.source.is_paused().then(|| "paused".to_owned());
        let reason = paused.or_else(|| entry.source.trouble())?;
        Some(format!("source '{}': {reason}", entry.spec().name))
    };
    let is_ready = list.iter().all(|entry| entry.source.has_been_ready());
    Readiness { is_ready, trouble: list.iter().filter_map(reason).collect() }
}

static ITEMS: LazyLock<&'static Command> = LazyLock::new(|| {
    places::all().iter().find(|row| row.name == "evenkeel|items").expect("the table has the row")
});

/// The words before the keys of [`items`].
pub const ITEMS_WORDS: [&[u8]; 2] = [b"EVENKEEL", b"ITEMS"];

/// Runs EVENKEEL ITEMS, even if it was renamed. The reply is RESP3.
#[inline]
pub fn items(
    server: &Arc<Server>,
    local: &mut Local,
    session: &mut Session,
    args: Args<'_>,
    out: &mut Reply,
) -> Flow {
    local.key_hash = None;
    execute_row(server, local, session, &ITEMS, args, out)
}

/// Requests the rows of an EVENKEEL ITEMS that stands behind a waiting one, if its user may read them.
pub fn ask_ahead(server: &Server, local: &Local, session: &Session, user: &User, args: Args<'_>) {
    let databases = server.keyspace.databases();
    if user.may(acl::Call { command: &ITEMS, args, db: session.db, databases }).is_err() {
        return;
    }
    fetching::ask_ahead_for(server, local, session, &ITEMS, args);
}

/// Whether a request may be answered at all: its token names a user, or none is needed. Its session acts as
/// that user from then on. Counts a refusal. Cost: one hash, unless the token is that of the last request.
pub fn admits(server: &Server, local: &Local, session: &mut Session, authorization: Option<&[u8]>) -> bool {
    let generation = server.acl.generation();
    if session
        .token
        .as_ref()
        .is_some_and(|(known, seen)| *seen == generation && known == authorization.unwrap_or_default())
    {
        return true;
    }
    let Some(user) = user_of(server, authorization) else {
        session.token = None;
        local.log.recorder.add(crate::stats::Counter::AuthDenied, 1);
        return false;
    };
    session.become_user(user);
    session.token = Some((authorization.unwrap_or_default().to_vec(), generation));
    true
}

/// The user of a request: of a token `name:password`, or `default` by its password, or by none if it needs
/// none. Cost: two hashes at most.
pub fn user_of(server: &Server, authorization: Option<&[u8]>) -> Option<Arc<User>> {
    let token = authorization.and_then(|line| {
        let (scheme, token) = line.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    let acl = &server.acl;
    let Some(token) = token else { return acl.is_open().then(|| acl.everybody()) };
    let colon = token.iter().position(|byte| *byte == b':');
    let named = colon.and_then(|at| acl.admits(&token[..at], &token[at + 1..]));
    named.or_else(|| acl.admits(DEFAULT, token))
}

/// Whether the session's user may see the page of figures: it may run INFO.
pub fn may_see_metrics(server: &Server, session: &mut Session) -> bool {
    session.user.refresh(&server.acl, true) && session.user.user().may_call("info")
}

/// Lets the clerk collect the page of figures. It comes by mail, as a bulk string.
pub fn metrics(server: &Arc<Server>, local: &Local, session: &Session, out: &mut Reply) -> Flow {
    let (owner, loop_id, client) = (server.clone(), local.log.id, session.id);
    stdx::panics::changes();
    let sent = server.observe.clerk.send(move || {
        let mut out = Reply::new(true);
        match stdx::panics::contain(|| {
            points::trip(Point::Report);
            metrics::page(&owner)
        }) {
            Ok(page) => out.bulk(page.as_bytes()),
            Err(_) => out.error(crate::job::BROKEN),
        }
        owner.send(loop_id, crate::mail::Mail::Reply { client, bytes: out.into_bytes(), stream: None });
    });
    if sent {
        return Flow::Parked(None);
    }
    out.error("ERR no thread could be started");
    Flow::Done
}

/// Writes the OpenAPI description, as a bulk string.
pub fn openapi(server: &Server, out: &mut Reply) -> Flow {
    page(server.http.shown().openapi.clone(), out)
}

/// Writes the welcome page, as a bulk string.
pub fn welcome(server: &Server, out: &mut Reply) -> Flow {
    page(server.http.shown().welcome.clone(), out)
}

fn page(text: Arc<[u8]>, out: &mut Reply) -> Flow {
    out.begin_bulk(text.len());
    Flow::Stream(Box::new(Page { text, at: 0 }))
}

struct Page {
    text: Arc<[u8]>,
    at: usize,
}

impl Stream for Page {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let to = self.at.saturating_add(room).min(self.text.len());
        out.bulk_part(&self.text[self.at..to]);
        self.at = to;
        let more = to < self.text.len();
        if !more {
            out.end_bulk();
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Spec {
        Spec::parse(text.split(' ')).unwrap()
    }

    #[test]
    fn paths_are_found() {
        let plain = [
            spec("a item:{id} sqlite:x path /items"),
            spec("b sp:{id}:x sqlite:x path /items/special"),
            spec("c nowhere:{id} sqlite:x"),
        ];
        let shown = Shown::of(&[], &plain);
        let found = |path: &str| {
            shown.find(path.as_bytes()).map(|found| match found {
                Found::Item(route, id) => format!("{} {}", route.pattern, String::from_utf8_lossy(id)),
                Found::Items(route) => route.pattern.to_string(),
            })
        };
        assert_eq!(found("/items/42").as_deref(), Some("item:{id} 42"));
        assert_eq!(found("/items").as_deref(), Some("item:{id}"));
        assert_eq!(found("/items/special").as_deref(), Some("sp:{id}:x"));
        assert_eq!(found("/items/special/%2F").as_deref(), Some("sp:{id}:x %2F"));
        for path in ["", "/", "/items/", "/items/1/2", "/itemsx", "/nowhere/1"] {
            assert_eq!(found(path), None, "{path}");
        }
    }

    #[test]
    fn a_page_is_written_in_pieces() {
        let mut page = Page { text: (*b"0123456789").into(), at: 0 };
        let mut out = Reply::new(true);
        out.begin_bulk(10);
        while page.fill(&mut out, 3) {}
        assert_eq!(out.as_bytes(), b"$10\r\n0123456789\r\n");
    }
}
