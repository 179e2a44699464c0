//! What HTTP shows: which paths are which keys, and the pages about the server itself.
//!
//! ```text
//! /items/42          EVENKEEL ITEMS item:42
//! /items?ids=1,2     EVENKEEL ITEMS item:1 item:2
//! /metrics           the clerk's figures          /openapi.json   made when the sources change
//! ```
//!
//! `net` speaks HTTP; here is what it asks for.

pub mod metrics;
mod openapi;

use crate::call::{Flow, execute_row};
use crate::{Local, Server, Session};
use arc_swap::ArcSwap;
use command::{Command, Stream, places};
use resp::{Args, Reply};
use source::{Pattern, Spec};
use std::sync::{Arc, LazyLock, OnceLock};

/// What the pages tell of sources.
pub trait Sources: Send + Sync {
    /// Sources that cannot answer for the moment, each with the reason. Asked on event loops: microseconds.
    fn unready(&self) -> Vec<(String, String)>;
    /// Appends their figures.
    fn measure(&self, page: &mut metrics::Page);
}

/// Keys that a path shows.
pub struct Route {
    path: Box<[u8]>,
    pub pattern: Pattern,
    pub ttl_ms: u64,
}

/// What a path is, if it is anything.
pub enum Found<'a> {
    /// One item, by its id, still escaped.
    Item(&'a Route, &'a [u8]),
    /// Those of a list of ids.
    Items(&'a Route),
}

/// What is shown at the moment.
pub struct Shown {
    specs: Vec<Spec>,
    /// Longer paths first: `/items/special` before `/items`.
    routes: Vec<Route>,
    openapi: Arc<[u8]>,
}

impl Shown {
    fn of(specs: Vec<Spec>) -> Shown {
        let route = |spec: &Spec| {
            let path = spec.path.as_ref()?.as_bytes().into();
            Some(Route { path, pattern: spec.pattern.clone(), ttl_ms: spec.ttl.as_millis() as u64 })
        };
        let mut routes: Vec<Route> = specs.iter().filter_map(route).collect();
        routes.sort_by_key(|route| std::cmp::Reverse(route.path.len()));
        let openapi = openapi::describe(&specs).into_bytes().into();
        Shown { specs, routes, openapi }
    }

    /// Cost: O(sources).
    pub fn find<'a>(&'a self, path: &'a [u8]) -> Option<Found<'a>> {
        self.routes.iter().find_map(|route| match path.strip_prefix(&*route.path)? {
            [] => Some(Found::Items(route)),
            [b'/', id @ ..] if !id.is_empty() && !id.contains(&b'/') => Some(Found::Item(route, id)),
            _ => None,
        })
    }
}

/// See the module.
pub struct Http {
    shown: ArcSwap<Shown>,
    sources: OnceLock<Box<dyn Sources>>,
}

impl Default for Http {
    fn default() -> Http {
        Http { shown: ArcSwap::from_pointee(Shown::of(Vec::new())), sources: OnceLock::new() }
    }
}

impl Http {
    /// From now on the keys of these sources are shown, as far as they have a path.
    pub fn show(&self, specs: Vec<Spec>) {
        self.shown.store(Arc::new(Shown::of(specs)));
    }

    /// The sources shown now.
    pub fn specs(&self) -> Vec<Spec> {
        self.shown.load().specs.clone()
    }

    #[inline]
    pub fn shown(&self) -> arc_swap::Guard<Arc<Shown>> {
        self.shown.load()
    }

    /// Names who knows the state of the sources. Once.
    pub fn ask(&self, sources: Box<dyn Sources>) {
        let _ = self.sources.set(sources);
    }

    /// Why not everything can be answered; empty when it can.
    pub fn unready(&self) -> Vec<(String, String)> {
        self.sources.get().map(|sources| sources.unready()).unwrap_or_default()
    }

    pub(crate) fn measure(&self, page: &mut metrics::Page) {
        self.sources.get().into_iter().for_each(|sources| sources.measure(page));
    }
}

static ITEMS: LazyLock<&'static Command> = LazyLock::new(|| {
    let row = places::all().iter().find(|command| command.name == "evenkeel|items");
    row.copied().expect("the table has the row")
});

/// The words before the keys of [`items`].
pub const ITEMS_WORDS: [&[u8]; 2] = [b"EVENKEEL", b"ITEMS"];

/// Runs EVENKEEL ITEMS, whatever it may have been renamed to: the reply is RESP3.
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

/// Whether a token is the password; true if there is none.
pub fn admits(server: &Server, local: &Local, authorization: Option<&[u8]>) -> bool {
    let password = &server.config.live.requirepass;
    if password.is_empty() {
        return true;
    }
    let token = authorization.and_then(|line| {
        let (scheme, token) = line.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    let admitted = token.is_some_and(|token| crate::actions::connection::same(&password.get(), token));
    if !admitted {
        local.recorder.add(crate::stats::Counter::AuthDenied, 1);
    }
    admitted
}

/// Has the page of figures collected; it comes by mail, as a bulk string.
pub fn metrics(server: &Arc<Server>, local: &Local, session: &Session, out: &mut Reply) -> Flow {
    let (owner, loop_id, client) = (server.clone(), local.id, session.id);
    let sent = server.clerk.send(move || {
        let mut out = Reply::new(true);
        out.bulk(metrics::page(&owner).as_bytes());
        owner.send(loop_id, crate::mail::Mail::Reply { client, bytes: out.into_bytes(), stream: None });
    });
    if sent {
        return Flow::Parked(None);
    }
    out.error("ERR no thread could be started");
    Flow::Done
}

/// The description of what is shown, as a bulk string.
pub fn openapi(server: &Server, out: &mut Reply) -> Flow {
    let text = server.http.shown().openapi.clone();
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
        let shown = Shown::of(vec![
            spec("a item:{id} sqlite:x path /items"),
            spec("b sp:{id}:x sqlite:x path /items/special"),
            spec("c nowhere:{id} sqlite:x"),
        ]);
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
