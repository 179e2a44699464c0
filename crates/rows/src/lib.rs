//! Keys that are rows of a database: which keys they are, and how they are read through and kept fresh. Crate
//! `source` has the databases themselves.
//!
//! ```text
//! GET item:42 ──route──► the source's own database of the keyspace ── there? ──► reply                        route
//!                                   │ no, and not known to have no row
//!                                   ▼
//!             hold the client, Source::want(42) ─► thread "sources" ─► Letter::Fill ─► install, wake, run it again   wait, fill
//! change feed ─► mark the id ─► Letter::Drop ─► remove the key
//! ```
//!
//! - Z1: a source's rows are in a hidden database of the keyspace, under the keys that clients use. The
//!   database behind it holds the ids known to have no row, as empty strings. So KEYS, SCAN and DBSIZE do not
//!   show them, a source is emptied in O(1), and each has a budget of its own.
//! - Z2: a loop installs a row under the lock of its key, and only if no change of its id was told since its
//!   load began (`source::Marks`). A change is marked first, and its key is removed after that. So no row
//!   older than a told change stays. Of two loads the later is kept, so no client reads backwards.
//! - Z3: a client that waits for the database is held as by CLIENT PAUSE, and its command runs again when the
//!   row is there. No other client waits. A command is held for a limited number of loads, then it gets an
//!   error.
//! - Z4: sources belong to database 0.
//! - Z5: a source is marked as ended first, and its databases are emptied after that; another source may get
//!   them. A row still on its way finds the source ended, under the lock of its key, or its [`RowPlace`]
//!   gone.
//! - Z6: nothing here tells others of changes. The caller tells the changes it is given, and then delivers
//!   letters.

#![forbid(unsafe_code)]

mod dropping;
mod entry;
mod fetch;
mod figures;
mod fill;
mod front;
mod lent;
mod pending;
mod removals;
mod route;
mod shelf;
mod sizing;
mod wait;
mod watch;

pub use dropping::{Dropping, empty};
pub use entry::{Entry, RowPlace, Seen};
pub use fetch::{Fetch, Fetched, first_key, run as fetch};
pub use figures::{Kind, figures, hit_ratios};
pub use fill::Fill;
pub use front::{House, Letter, News};
pub use lent::{Arrival, Lent};
pub use pending::Pending;
pub use removals::Removals;
pub use route::{Plan, Routing, ask_ahead, came_since, db_for, of_call, plan, preload, unfit_for_queue};
pub use sizing::Sizing;
pub use wait::{
    Asker, Loading, Stop, TransactionRows, after_write, before_write, is_known, look, look_within,
    removed_before,
};
pub use watch::Watched;

use arc_swap::ArcSwap;
use front::Front;
use keyspace::{Changes, Keyspace};
use parking_lot::Mutex;
use source::hub::Cache;
use source::{Hub, Source, Spec};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Largest number of sources.
pub const MAX: usize = 16;
/// Hidden databases of a source (Z1).
pub const DATABASES: usize = 2;

/// All sources of the server.
pub struct Rows {
    keyspace: Arc<Keyspace>,
    /// Number of the server's loops.
    loops: usize,
    house: Box<dyn House>,
    list: ArcSwap<Vec<Arc<Entry>>>,
    any: AtomicBool,
    hub: OnceLock<Hub>,
    /// The lock of the list. It counts all sources so far.
    changing: Mutex<u64>,
}

impl Rows {
    /// The rows of a server with that keyspace and so many loops, without sources yet.
    pub fn new(keyspace: Arc<Keyspace>, loops: usize, house: Box<dyn House>) -> Arc<Rows> {
        Arc::new(Rows {
            keyspace,
            loops,
            house,
            list: ArcSwap::default(),
            any: AtomicBool::new(false),
            hub: OnceLock::new(),
            changing: Mutex::new(0),
        })
    }

    /// Whether there are any. It is all that ordinary commands pay.
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

    /// Adds a source and begins to serve it. Errors: faults of it that show without its database.
    pub fn add(self: &Arc<Self>, spec: Spec) -> Result<(), String> {
        self.add_by(spec, false, |hub, spec, cache| hub.add(spec, cache))
    }

    /// As `add`, for a source that the server makes by itself: CONFIG REWRITE leaves it out.
    pub fn add_own(self: &Arc<Self>, spec: Spec) -> Result<(), String> {
        self.add_by(spec, true, |hub, spec, cache| hub.add(spec, cache))
    }

    /// As `add`, with a given driver.
    pub fn add_with(self: &Arc<Self>, spec: Spec, database: Arc<dyn source::Database>) -> Result<(), String> {
        self.add_by(spec, false, |hub, spec, cache| hub.add_with(spec, database, cache))
    }

    fn add_by(
        self: &Arc<Self>,
        spec: Spec,
        is_own: bool,
        start: impl FnOnce(&Hub, Spec, Box<dyn Cache>) -> Result<Arc<Source>, String>,
    ) -> Result<(), String> {
        let mut so_far = self.changing.lock();
        let list = self.list();
        goes_with(&list, &spec)?;
        let first = self.keyspace.databases();
        let free =
            (0..MAX).map(|i| first + i * DATABASES).find(|db| list.iter().all(|entry| entry.db != *db));
        let Some(db) = free else { return Err(format!("there are {MAX} sources already")) };
        *so_far += 1;
        let place = RowPlace { db, number: *so_far };
        let queue = Arc::new(Removals::default());
        let front = Front {
            rows: Arc::downgrade(self),
            place,
            queue: queue.clone(),
            pattern: spec.pattern.clone(),
            home: self.number(db) % self.loops,
        };
        let (hub, budget) = (self.hub()?, spec.budget);
        self.keyspace.set_grace(db, spec.stale_if_error.as_millis() as u64);
        let source = start(hub, spec, Box::new(front))?;
        self.house.limit(self.number(db), budget);
        let (seen, sizing) = (Seen::default(), Sizing::default());
        let entry = Arc::new(Entry { source, db, number: place.number, is_own, queue, seen, sizing });
        let more: Vec<_> = list.iter().cloned().chain([entry]).collect();
        self.house.show(&more);
        self.put(more);
        self.any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The number of the place whose rows are in this database.
    fn number(&self, db: usize) -> usize {
        (db - self.keyspace.databases()) / DATABASES
    }

    /// Replaces the list of sources, also for commands that come upon keys while they run.
    fn put(&self, list: Vec<Arc<Entry>>) {
        let list = Arc::new(list);
        self.list.store(list.clone());
        let why = move |key: &[u8]| {
            let entry = list.iter().find(|entry| entry.spec().pattern.id(key).is_some())?;
            Some(route::not_together(entry, key).text().into_owned())
        };
        let any = !self.list().is_empty();
        self.keyspace.set_elsewhere(any.then(|| Arc::new(why) as keyspace::Elsewhere));
    }

    /// The sources that CONFIG REWRITE writes.
    pub fn written(&self) -> Vec<Spec> {
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

    /// Ends a source and gives up all that is kept of it (Z5). False: there is none of that name. It takes
    /// locks, so no demoted thread may call it.
    pub fn remove(&self, name: &[u8], now_ms: u64, told: &mut Vec<Changes>) -> bool {
        let _one_at_a_time = self.changing.lock();
        let Some(entry) = self.by_name(name) else { return false };
        let rest: Vec<_> = self.list().iter().filter(|other| other.db != entry.db).cloned().collect();
        self.any.store(!rest.is_empty(), Ordering::Relaxed);
        self.house.show(&rest);
        self.put(rest);
        entry.source.remove();
        self.house.limit(self.number(entry.db), 0);
        empty(&self.keyspace, &entry, now_ms, told);
        true
    }

    /// Gives up all that is kept of a source, as a letter asked. Does nothing if it has ended.
    pub fn flush(&self, place: RowPlace, now_ms: u64, told: &mut Vec<Changes>) {
        if let Some(entry) = self.at(place) {
            entry.queue.begin_flush();
            empty(&self.keyspace, &entry, now_ms, told);
            entry.queue.end_flush();
        }
    }

    /// Notes the sizes of the sources' caches, now and then. `fullness` is that of the source of a number.
    pub fn note_sizes(&self, fullness: impl Fn(usize) -> f64) {
        if !self.any() {
            return;
        }
        for entry in self.list().iter() {
            let full = fullness(self.number(entry.db)) >= 0.9;
            entry.sizing.note_items(self.keyspace.len(entry.db) as u64, full);
        }
    }
}

/// Whether a source may be added to others. Errors: the reason why not.
fn goes_with(list: &[Arc<Entry>], spec: &Spec) -> Result<(), String> {
    for other in list {
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
    Ok(())
}

/// Keeps changes that others must hear of. Most have nothing to tell.
#[inline]
fn note(told: &mut Vec<Changes>, changes: Changes) {
    if !changes.is_quiet() {
        told.push(changes);
    }
}
