//! Keys that are rows of a database: which they are, reading through, keeping them fresh. The databases themselves are crate
//! `source`'s.
//!
//! ```text
//! GET item:42 ──route──► the source's own database of the keyspace ── there? ──► reply                        route
//!                                   │ no, and not known to have no row
//!                                   ▼
//!             hold the client, Source::want(42) ─► thread "sources" ─► Letter::Fill ─► install, wake, run it again   wait, fill
//! change feed ─► mark the id ─► Letter::Drop ─► remove the key
//! ```
//!
//! - Z1: a source's rows are in a hidden database of the keyspace, under the keys clients use; the one behind it holds the ids
//!   known to have no row, as empty strings. So KEYS, SCAN and DBSIZE do not show them, a source is emptied in O(1), and each has
//!   a budget of its own.
//! - Z2: a row is installed by a loop under the lock of its key, and only if no change of its id was told since its load began
//!   (`source::Marks`); a change is marked first and its key removed after. So nothing older than a change that was told stays; and of two
//!   loads the later is kept, so nobody reads backwards.
//! - Z3: who waits for the database is held like by CLIENT PAUSE: its command is run again when the row is there. Nobody else
//!   waits. A command is held for so many loads at most, then it gets an error.
//! - Z4: sources belong to database 0.
//! - Z5: who ends a source says so first and empties its databases then, which another source may get: what is still on its way
//!   for it finds it ended, under the lock of its key, or its [`RowPlace`] gone.

mod fetch;
mod fill;
mod pending;
mod removal;
mod route;
mod shelf;
mod sizing;
mod wait;
mod watch;

pub(crate) use fetch::{Fetch, first_key, run as fetch};
pub use fill::Fill;
pub use pending::Pending;
pub(crate) use removal::empty;
pub use removal::{Dropping, Removals};
pub use route::ask_ahead;
pub(crate) use route::{
    Plan, Routing, ask_ahead_for, came_since, db_for, keys_of, of_call, plan, preload, target,
    unfit_for_queue,
};
pub use sizing::Sizing;
pub use wait::{Arrival, Loading};
pub(crate) use wait::{
    TransactionRows, after_write, before_write, is_known, look, look_within, removed_before,
};
pub use watch::Watched;

use crate::mail::Mail;
use crate::works::Work;
use crate::{Local, Server};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use source::hub::{Asked, Cache, Loaded};
use source::{Change, Failure, Hub, Source, Spec};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Rows at most.
pub const MAX: usize = 16;
/// Hidden databases of a source (Z1).
pub const DATABASES: usize = 2;

/// Counters of what clients asked for; relaxed.
#[derive(Default)]
pub struct Seen {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    /// Answered from the knowledge that there is no row.
    pub negative_hits: AtomicU64,
    /// Given out after their time, because the database was down.
    pub stale: AtomicU64,
    /// Answered with an error.
    pub errors: AtomicU64,
    /// Items removed because their row changed.
    pub invalidated: AtomicU64,
    /// Those of them whose rows were loaded again at once, as they were in use.
    pub refreshed: AtomicU64,
    /// Rows not kept because they changed while they were loaded (Z2).
    pub refused: AtomicU64,
    /// From the commit of a change to its item's removal, the last and the longest, in milliseconds.
    pub lag_ms: AtomicU64,
    pub lag_max_ms: AtomicU64,
}

/// Where a source is: its rows' database, and a number of its own, for the database may be another's later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowPlace {
    pub db: usize,
    number: u64,
}

/// A source and its place.
pub struct Entry {
    pub source: Arc<Source>,
    /// Its rows; the database behind it has the ids without one.
    pub db: usize,
    number: u64,
    /// The server made it by itself: it stands in no configuration.
    is_own: bool,
    /// What its feed told and is not removed yet.
    pub queue: Arc<Removals>,
    pub seen: Seen,
    pub sizing: Sizing,
}

impl Entry {
    pub fn spec(&self) -> &Spec {
        &self.source.spec
    }

    pub fn place(&self) -> RowPlace {
        RowPlace { db: self.db, number: self.number }
    }

    /// Where ids are kept that have no row.
    pub fn absent_db(&self) -> usize {
        self.db + 1
    }

    fn shelf(&self) -> shelf::Shelf {
        shelf::Shelf { rows: self.db, absent: self.absent_db() }
    }

    /// Bytes of its items, as they are counted for its budget.
    pub fn bytes(&self, server: &Server) -> u64 {
        let of = |db| server.keyspace.entry_bytes(db);
        let (rows, absent) = (of(self.db), of(self.absent_db()));
        rows.0 + rows.1 + absent.0 + absent.1
    }

    /// When an item that is installed now is to go: the time to live less a part that depends on the key alone, and the time it
    /// may be given out beyond that.
    pub fn expire_ms(&self, key: &[u8], now_ms: u64) -> u64 {
        let spec = self.spec();
        now_ms + self.ttl_ms(key) + spec.stale_if_error.as_millis() as u64
    }

    /// The time to live of a key's item. O(key).
    pub fn ttl_ms(&self, key: &[u8]) -> u64 {
        let ttl = self.spec().ttl.as_millis() as u64;
        let spread = ttl / 100 * self.spec().jitter;
        if spread == 0 { ttl } else { ttl - stdx::hash::hash_bytes(key) % (spread + 1) }
    }

    /// How an item that is there and has this expiry stands to its time to live; while the feed cannot be followed that is `blind`
    /// after its load.
    #[inline]
    fn age(&self, key: &[u8], expire_ms: Option<u64>, now_ms: u64) -> Age {
        let stale_ms = self.spec().stale_if_error.as_millis() as u64;
        let Some(kept_until) = expire_ms else { return Age::Fresh };
        let until = kept_until.saturating_sub(stale_ms);
        let until = match self.source.blind_since_ms() {
            0 => until,
            _ => {
                let loaded_ms = until.saturating_sub(self.ttl_ms(key));
                until.min(loaded_ms.saturating_add(self.spec().blind.as_millis() as u64))
            }
        };
        match () {
            () if until > now_ms => Age::Fresh,
            () if until.saturating_add(stale_ms) > now_ms => Age::Stale,
            () => Age::Over,
        }
    }
}

/// How an item stands to its time to live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Age {
    Fresh,
    /// Past it, and to be given out if the database is down.
    Stale,
    /// Of no use to anybody.
    Over,
}

/// All sources of the server.
#[derive(Default)]
pub struct Rows {
    list: ArcSwap<Vec<Arc<Entry>>>,
    any: AtomicBool,
    hub: OnceLock<Hub>,
    /// Held by who changes the list; how many there were so far.
    changing: Mutex<u64>,
}

impl Rows {
    /// Whether there are any: what ordinary commands pay.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub fn list(&self) -> Arc<Vec<Arc<Entry>>> {
        self.list.load_full()
    }

    /// The source a key of database 0 belongs to. Cost: O(sources).
    #[inline]
    pub fn of(&self, key: &[u8]) -> Option<Arc<Entry>> {
        self.list.load().iter().find(|entry| entry.spec().pattern.id(key).is_some()).cloned()
    }

    pub fn by_db(&self, db: usize) -> Option<Arc<Entry>> {
        self.list.load().iter().find(|entry| entry.db == db).cloned()
    }

    /// The source that is still in that place.
    pub fn at(&self, place: RowPlace) -> Option<Arc<Entry>> {
        self.list.load().iter().find(|entry| entry.place() == place).cloned()
    }

    pub fn by_name(&self, name: &[u8]) -> Option<Arc<Entry>> {
        self.list.load().iter().find(|entry| entry.spec().name.as_bytes() == name).cloned()
    }

    /// Adds a source and begins to serve it. Errors: what is wrong with it, as far as that can be known without its database.
    pub fn add(&self, server: &Arc<Server>, spec: Spec) -> Result<(), String> {
        self.add_by(server, spec, false, |hub, spec, cache| hub.add(spec, cache))
    }

    /// The same for one that the server makes by itself: CONFIG REWRITE leaves it out.
    pub fn add_own(&self, server: &Arc<Server>, spec: Spec) -> Result<(), String> {
        self.add_by(server, spec, true, |hub, spec, cache| hub.add(spec, cache))
    }

    /// The same with a driver of one's own.
    pub fn add_with(
        &self,
        server: &Arc<Server>,
        spec: Spec,
        database: Arc<dyn source::Database>,
    ) -> Result<(), String> {
        self.add_by(server, spec, false, |hub, spec, cache| hub.add_with(spec, database, cache))
    }

    fn add_by(
        &self,
        server: &Arc<Server>,
        spec: Spec,
        is_own: bool,
        start: impl FnOnce(&Hub, Spec, Box<dyn Cache>) -> Result<Arc<Source>, String>,
    ) -> Result<(), String> {
        let mut so_far = self.changing.lock();
        let list = self.list();
        for other in list.iter() {
            if other.spec().name == spec.name {
                return Err(format!("there is a source '{}' already", spec.name));
            }
            if other.spec().pattern.overlaps(&spec.pattern) {
                return Err(format!(
                    "keys '{}' overlap with those of source '{}'",
                    spec.pattern,
                    other.spec().name
                ));
            }
            if spec.path.is_some() && other.spec().path == spec.path {
                return Err(format!("source '{}' has that path already", other.spec().name));
            }
        }
        let first = server.keyspace.databases();
        let free =
            (0..MAX).map(|i| first + i * DATABASES).find(|db| list.iter().all(|entry| entry.db != *db));
        let Some(db) = free else { return Err(format!("there are {MAX} sources already")) };
        *so_far += 1;
        let place = RowPlace { db, number: *so_far };
        let queue = Arc::new(Removals::default());
        let front = Front {
            server: Arc::downgrade(server),
            place,
            queue: queue.clone(),
            pattern: spec.pattern.clone(),
            home: (db - first) / DATABASES % server.loops(),
        };
        let (hub, budget) = (self.hub()?, spec.budget);
        server.keyspace.set_grace(db, spec.stale_if_error.as_millis() as u64);
        let source = start(hub, spec, Box::new(front))?;
        server.memory.limit_source(&server.keyspace, (db - first) / DATABASES, budget);
        let (seen, sizing) = (Seen::default(), Sizing::default());
        let entry = Arc::new(Entry { source, db, number: place.number, is_own, queue, seen, sizing });
        let more: Vec<_> = list.iter().cloned().chain([entry]).collect();
        server.http.show(&more);
        self.put(server, more);
        self.any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// These are the sources from now on, also to those who come upon keys while they run.
    fn put(&self, server: &Server, list: Vec<Arc<Entry>>) {
        let list = Arc::new(list);
        self.list.store(list.clone());
        let why = move |key: &[u8]| {
            let entry = list.iter().find(|entry| entry.spec().pattern.id(key).is_some())?;
            Some(route::not_together(entry, key).text().into_owned())
        };
        let any = !self.list().is_empty();
        server.keyspace.set_elsewhere(any.then(|| Arc::new(why) as keyspace::Elsewhere));
    }

    /// What CONFIG REWRITE writes.
    pub(crate) fn written(&self) -> Vec<Spec> {
        self.list().iter().filter(|entry| !entry.is_own).map(|entry| entry.spec().clone()).collect()
    }

    fn hub(&self) -> Result<&Hub, String> {
        if self.hub.get().is_none() {
            let hub =
                Hub::start().map_err(|e| format!("the thread of the sources cannot be started: {e}"))?;
            let _ = self.hub.set(hub);
        }
        self.hub.get().ok_or_else(|| "no thread".into())
    }

    /// Ends a source; what is kept of it is given up (Z5). False if there is none of that name.
    pub fn remove(&self, server: &Server, local: &mut Local, name: &[u8]) -> bool {
        self.remove_by(server, name, |entry| empty(server, local, entry))
    }

    /// The same where only the server is at hand. Not on a demoted thread: it takes locks.
    pub(crate) fn take_back(&self, server: &Server, name: &[u8]) -> bool {
        self.remove_by(server, name, |entry| {
            removal::empty_by(server, entry, stdx::clock::wall_ms(), |changes| {
                let ready = server.tell(changes);
                if !ready.is_empty() {
                    server.send(0, Mail::Ready(ready));
                }
            })
        })
    }

    fn remove_by(&self, server: &Server, name: &[u8], empty: impl FnOnce(&Entry)) -> bool {
        let _one_at_a_time = self.changing.lock();
        let Some(entry) = self.by_name(name) else { return false };
        let rest: Vec<_> = self.list().iter().filter(|other| other.db != entry.db).cloned().collect();
        self.any.store(!rest.is_empty(), Ordering::Relaxed);
        server.http.show(&rest);
        self.put(server, rest);
        entry.source.remove();
        let number = (entry.db - server.keyspace.databases()) / DATABASES;
        server.memory.limit_source(&server.keyspace, number, 0);
        empty(&entry);
        true
    }
}

/// Looks at how full the sources' caches are; now and then.
pub fn cron(server: &Server) {
    if !server.sources.any() {
        return;
    }
    for entry in server.sources.list().iter() {
        let number = (entry.db - server.keyspace.databases()) / DATABASES;
        let full = crate::memory::fullness(server, number) >= 0.9;
        entry.sizing.note_items(server.keyspace.len(entry.db) as u64, full);
    }
}

/// A loop takes a letter.
pub fn receive(server: &Server, local: &mut Local, letter: Letter) {
    match letter {
        Letter::Fill(fill) => local.works.push(Work::Fill(fill)),
        Letter::Drop(dropping) => local.works.push(Work::Drop(dropping)),
        Letter::Flush(place) => {
            if let Some(entry) = server.sources.at(place) {
                entry.queue.flush(server, local, &entry);
            }
        }
        Letter::Arrived(clients, arrival) => {
            local.arrived.extend(clients.into_iter().map(|client| (client, arrival.clone())));
        }
    }
}

/// What the thread of the sources tells a loop.
pub enum Letter {
    /// Rows to be installed.
    Fill(Box<Fill>),
    /// Items to be removed.
    Drop(Box<Dropping>),
    /// All of a source is to be removed.
    Flush(RowPlace),
    /// These clients may go on.
    Arrived(Vec<u64>, Arrival),
}

/// What the thread of the sources sees of the server.
struct Front {
    server: Weak<Server>,
    place: RowPlace,
    queue: Arc<Removals>,
    pattern: source::Pattern,
    /// The loop that removes what changed: one, so that it happens in order.
    home: usize,
}

impl Cache for Front {
    fn loaded(&self, loaded: Loaded) {
        let Some(server) = self.server.upgrade() else { return };
        match loaded.failure {
            Some(failure) => self.failed(&server, &failure, loaded.asked),
            None => self.arrived(&server, loaded),
        }
    }

    fn changed(&self, changes: &[Change], refresh: bool) -> bool {
        let Some(server) = self.server.upgrade() else { return true };
        let keys = changes.iter().map(|change| self.pattern.key(&change.id)).collect();
        let oldest = changes.iter().filter_map(|change| change.committed_ms).min();
        let Some(dropping) = self.queue.put(self.place, keys, oldest, refresh) else { return false };
        server.send(self.home, Mail::Source(Letter::Drop(Box::new(dropping))));
        true
    }

    fn lost(&self) {
        if let Some(server) = self.server.upgrade()
            && self.queue.give_up()
        {
            server.send(self.home, Mail::Source(Letter::Flush(self.place)));
        }
    }
}

impl Front {
    /// Each row goes to the loop of the first client that waits for it.
    fn arrived(&self, server: &Server, loaded: Loaded) {
        let mut by_loop: Vec<Vec<fill::Item>> = (0..server.loops()).map(|_| Vec::new()).collect();
        for asked in loaded.asked {
            let to = asked.tickets.first().map_or(self.home, |ticket| ticket.loop_id);
            let key = self.pattern.key(&asked.id);
            by_loop[to].push(fill::Item::new(key, asked));
        }
        for (to, items) in by_loop.into_iter().enumerate().filter(|(_, items)| !items.is_empty()) {
            let fill = Fill::new(self.place, loaded.began, items);
            server.send(to, Mail::Source(Letter::Fill(Box::new(fill))));
        }
    }

    fn failed(&self, server: &Server, failure: &Failure, asked: Vec<Asked>) {
        let name = server.sources.at(self.place).map(|entry| entry.spec().name.clone()).unwrap_or_default();
        let text: Arc<str> = error_text(&name, failure).into();
        let mut by_loop: HashMap<usize, Vec<u64>> = HashMap::new();
        for ticket in asked.iter().flat_map(|asked| &asked.tickets) {
            by_loop.entry(ticket.loop_id).or_default().push(ticket.client);
        }
        for (to, clients) in by_loop {
            server.send(to, Mail::Source(Letter::Arrived(clients, Arrival::Failed(text.clone()))));
        }
    }
}

fn error_text(name: &str, failure: &Failure) -> String {
    let word = if *failure == Failure::Slow { "SOURCESLOW" } else { "SOURCEDOWN" };
    // An error is one line.
    format!("{word} source '{name}': {failure}").replace(['\r', '\n'], " ")
}
