//! HTTP's pages: which paths show which keys, and the texts about the server itself.
//!
//! ```text
//! /items/42          EVENKEEL ITEMS item:42
//! /items?ids=1,2     EVENKEEL ITEMS item:1 item:2
//! /metrics           the background thread's figures          / and /openapi.json   made when the sources change
//! ```
//!
//! `net` speaks HTTP and asks for what is here; `exec` runs the commands. The paths change only with the
//! sources.
#![forbid(unsafe_code)]

pub mod api;
mod figures;
pub mod gate;
pub mod logins;
mod openapi;
pub mod otlp;
mod welcome;

pub use figures::add_sources;

use arc_swap::ArcSwap;
use command::{Flow, Stream};
use http::response::Life;
use parking_lot::Mutex;
use resp::Reply;
use rows::{Entry, Rows};
use source::{IdType, Pattern, Spec};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

    /// Writes the OpenAPI description, as a bulk string.
    pub fn openapi(&self, out: &mut Reply) -> Flow {
        page(self.openapi.clone(), out)
    }

    /// Writes the welcome page, as a bulk string.
    pub fn welcome(&self, out: &mut Reply) -> Flow {
        page(self.welcome.clone(), out)
    }
}

/// The paths, and the pages made from them. See the module.
pub struct Pages {
    shown: ArcSwap<Shown>,
    /// Plain keys that are shown as if they belonged to sources.
    plain: Mutex<Vec<Spec>>,
    /// The console's sessions, and its streams.
    pub logins: logins::Logins,
    pub streams: api::Streams,
}

impl Default for Pages {
    fn default() -> Pages {
        let shown = ArcSwap::from_pointee(Shown::of(&[], &[]));
        Pages {
            shown,
            plain: Mutex::default(),
            logins: logins::Logins::default(),
            streams: api::Streams::default(),
        }
    }
}

impl Pages {
    /// Shows the keys of these sources from now on, if they have a path.
    pub fn show(&self, entries: &[Arc<Entry>]) {
        let plain = self.plain.lock();
        self.shown.store(Arc::new(Shown::of(entries, &plain)));
    }

    /// Adds plain keys to those that the sources show, as if this source owned them. None: no plain keys any
    /// more.
    pub fn show_plain(&self, spec: Option<Spec>, entries: &[Arc<Entry>]) {
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
pub fn readiness(rows: &Rows) -> Readiness {
    let list = rows.list();
    let reason = |entry: &Arc<Entry>| {
        let paused = entry.source.is_paused().then(|| "paused".to_owned());
        let reason = paused.or_else(|| entry.source.trouble())?;
        Some(format!("source '{}': {reason}", entry.spec().name))
    };
    let is_ready = list.iter().all(|entry| entry.source.has_been_ready());
    Readiness { is_ready, trouble: list.iter().filter_map(reason).collect() }
}

fn page(text: Arc<[u8]>, out: &mut Reply) -> Flow {
    out.begin_bulk(text.len());
    Flow::Stream(Box::new(PageText { text, at: 0 }))
}

struct PageText {
    text: Arc<[u8]>,
    at: usize,
}

impl Stream for PageText {
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
        let mut page = PageText { text: (*b"0123456789").into(), at: 0 };
        let mut out = Reply::new(true);
        out.begin_bulk(10);
        while page.fill(&mut out, 3) {}
        assert_eq!(out.as_bytes(), b"$10\r\n0123456789\r\n");
    }
}
