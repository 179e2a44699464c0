//! The thread of the drivers: it loads missed rows and follows the feeds.
//!
//! ```text
//! want(id) ─► waiting: id → tickets ─┐                        ┌─► rows, failures ─► Cache::loaded
//!             queue: ids in order ───┴─► batches (gather.rs), at most `pool` at once, each within `timeout`
//! feed: follow ─► failed ─► wait a little, twice as long each time ─► follow …
//! ```
//!
//! - U1: an id is loaded once for all clients that wait for it. A client that asks before its row is
//!   installed waits for that load ([`Source::settle`]).
//! - U2: no load begins before the feed was open once: changes after such a load would not be reported.
//! - U3: every waiting client is answered: by a row, by its absence, or by a failure. It waits at most
//!   `timeout` in the queue and `timeout` for the load, and not at all while the database is known to be
//!   down. A row that is refused by the cache a second time still answers the clients that asked before its
//!   load began ([`Source::hand_over`]). So a row may change faster than it is loaded.
//! - U4: nothing here takes a lock of the cache; the cache is notified and does the work on its own threads.
//! - U5: `want` holds the lock for a look-up in a map that never grows.
//! - U6: changes are not remembered here. If the cache cannot keep pace, everything is dropped and the feed
//!   goes on.
//! - U7: while the feed cannot be followed, stale rows are not reported. After `blind` of that, the source
//!   tells since when ([`Source::blind_since_ms`]); older items count as past their time.
//!
//! Cost: a load in flight holds its ids and tickets; at most `queue` ids wait.

mod gather;
#[allow(unsafe_code, reason = "the one address of this crate's unsafe code")]
mod nap;

use crate::marks::Marks;
use crate::{Body, Change, Database, Failure, Feed, Id, Row, Since, Spec};
use gather::{ENOUGH, Pace};
use nap::Nap;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use stdx::points::{self, Point};
use tokio::sync::{Notify, mpsc, watch};

/// Most ids loaded together.
pub const BATCH: usize = 256;
/// Shortest and longest time between two attempts to follow a feed.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Time for which loads fail at once after the database was found down.
const DOWN_FOR: Duration = Duration::from_millis(200);
/// Least time between two loads that only probe whether the database is still down.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Ids marked in one go.
const MARKED: usize = 64;

/// A client that waits for an id, and its loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub loop_id: usize,
    pub client: u64,
}

/// Refused loads of an id from which on early clients get the loaded row. The id is then loaded again only if
/// a client waits.
const IN_VAIN: u32 = 2;

/// An id that was asked for.
pub struct Asked {
    pub id: Id,
    /// The clients that wait for it so far; none if it was only asked for ahead of time.
    pub tickets: Vec<Ticket>,
    /// None: there is no such row.
    pub row: Option<Row>,
}

/// The result of a load. Without a failure, the cache must settle each id or hand it over.
pub struct Loaded {
    /// The moment it began ([`Marks`]).
    pub began: u64,
    pub asked: Vec<Asked>,
    /// Why nothing was loaded.
    pub failure: Option<Failure>,
}

/// The cache in front of a source. Its functions must return at once.
pub trait Cache: Send + Sync {
    fn loaded(&self, loaded: Loaded);
    /// Removes what is kept of these rows, which are marked already. `refresh`: rows in use should be loaded
    /// again. False: too many removals wait, and none of these was accepted; then everything must be removed.
    fn changed(&self, changes: &[Change], refresh: bool) -> bool;
    /// Removes everything kept, which is marked already.
    fn lost(&self);
}

/// State of a feed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FeedState {
    Opening,
    Open,
    /// The feed broke: the reason.
    Broken(String),
    /// The source has none.
    Off,
}

/// Counters of a source, relaxed.
#[derive(Default)]
pub struct Counters {
    pub loads: AtomicU64,
    pub loaded_rows: AtomicU64,
    pub absent_rows: AtomicU64,
    pub failures: AtomicU64,
    /// Sum of the loads' times, and the longest, in microseconds.
    pub load_us: AtomicU64,
    pub load_max_us: AtomicU64,
    /// Reported row changes.
    pub changes: AtomicU64,
    /// Time from commit to arrival here, the last and the longest, in milliseconds.
    pub lag_ms: AtomicU64,
    pub lag_max_ms: AtomicU64,
    /// How often everything was dropped: gaps in the feed, TRUNCATE …
    pub lost: AtomicU64,
    /// How often the feed was opened.
    pub opened: AtomicU64,
    /// When the feed was last known to have reported everything, in milliseconds since 1970.
    pub caught_up_ms: AtomicU64,
    pub full: AtomicU64,
}

/// An id that is queued or being loaded.
struct Asking {
    tickets: Vec<Ticket>,
    /// Number of tickets that came before its load began.
    early: usize,
    /// When the first of the later tickets came.
    since: Instant,
    /// Loads whose row the cache refused.
    in_vain: u32,
}

#[derive(Default)]
struct Waiting {
    ids: HashMap<Id, Asking>,
    queue: VecDeque<(Id, Instant)>,
    down: Option<Down>,
}

/// The last load failed.
struct Down {
    /// Until then loads fail without asking the database.
    until: Instant,
    failure: Failure,
    /// An id that was not loaded, and when it was last asked for.
    id: Id,
    asked: Instant,
}

/// A source that is being served.
pub struct Source {
    pub spec: Spec,
    pub marks: Marks,
    pub counters: Counters,
    cache: Box<dyn Cache>,
    waiting: Mutex<Waiting>,
    feed: Mutex<FeedState>,
    /// Why everything was last dropped.
    loss: Mutex<String>,
    /// Changes come faster than the cache removes them (U6).
    flooded: AtomicBool,
    wake: Notify,
    /// Signals that enough ids wait for a load to begin.
    enough: Notify,
    loading: AtomicUsize,
    paused: AtomicBool,
    removed: watch::Sender<bool>,
    /// The feed was open once (U2).
    ready: AtomicBool,
    started: Instant,
    /// When the feed had last reported everything, in milliseconds after `started`.
    sight_ms: AtomicU64,
    /// See [`Source::blind_since_ms`].
    blind_since_ms: AtomicU64,
    database: std::sync::OnceLock<Arc<dyn Database>>,
}

/// Why an id cannot be waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Too many ids wait already.
    Full,
    Paused,
    /// No row can have this id.
    NoId,
    Removed,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Source {
    fn new(spec: Spec, cache: Box<dyn Cache>) -> Source {
        let places = spec.queue + spec.pool * BATCH;
        let waiting = Waiting {
            ids: HashMap::with_capacity(places),
            queue: VecDeque::with_capacity(places),
            down: None,
        };
        let feed = if spec.feed { FeedState::Opening } else { FeedState::Off };
        Source {
            ready: AtomicBool::new(!spec.feed),
            spec,
            marks: Marks::default(),
            counters: Counters::default(),
            cache,
            waiting: Mutex::new(waiting),
            feed: Mutex::new(feed),
            loss: Mutex::default(),
            flooded: AtomicBool::new(false),
            wake: Notify::new(),
            enough: Notify::new(),
            loading: AtomicUsize::new(0),
            paused: AtomicBool::new(false),
            removed: watch::Sender::new(false),
            started: Instant::now(),
            sight_ms: AtomicU64::new(0),
            blind_since_ms: AtomicU64::new(0),
            database: std::sync::OnceLock::new(),
        }
    }

    /// Whether text is an id in its one spelling.
    pub fn accepts(&self, id: &[u8]) -> bool {
        self.database.get().is_some_and(|database| database.accepts(id))
    }

    /// Asks for a row. The result comes by [`Cache::loaded`]. Errors: see [`Refusal`]. Cost: a short lock.
    pub fn want(&self, id: &[u8], ticket: Option<Ticket>) -> Result<(), Refusal> {
        if self.is_paused() {
            return Err(Refusal::Paused);
        }
        if !self.accepts(id) {
            return Err(Refusal::NoId);
        }
        let mut waiting = lock(&self.waiting);
        // Under the lock: after the removal no task would take it from the queue.
        if self.is_removed() {
            return Err(Refusal::Removed);
        }
        if let Some(asking) = waiting.ids.get_mut(id) {
            // A repeated request while its load is under way counts as new, since the load began earlier.
            let late = asking.tickets.get(asking.early..).unwrap_or_default();
            if let Some(ticket) = ticket.filter(|ticket| !late.contains(ticket)) {
                if late.is_empty() {
                    asking.since = Instant::now();
                }
                asking.tickets.push(ticket);
            }
            return Ok(());
        }
        if waiting.queue.len() >= self.spec.queue {
            self.counters.full.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::Full);
        }
        let since = Instant::now();
        let asking = Asking { tickets: ticket.into_iter().collect(), early: 0, since, in_vain: 0 };
        waiting.ids.insert(id.into(), asking);
        waiting.queue.push_back((id.into(), since));
        let queued = waiting.queue.len();
        drop(waiting);
        match queued {
            1 => self.wake.notify_one(),
            ENOUGH => self.enough.notify_one(),
            // The first id in the queue has woken the task, and a load that ends wakes it too.
            _ => {}
        }
        Ok(())
    }

    /// Returns all clients that wait for an id whose row the cache has installed.
    pub fn settle(&self, id: &[u8]) -> Vec<Ticket> {
        lock(&self.waiting).ids.remove(id).map(|asking| asking.tickets).unwrap_or_default()
    }

    /// Handles a row that the cache refused. The first time the id is queued again, and nothing is returned.
    /// From the second time on, the clients that asked before the load began are returned: the row was
    /// current while they waited. For later clients the id is loaded again.
    pub fn hand_over(&self, id: Id) -> Vec<Ticket> {
        let mut waiting = lock(&self.waiting);
        let Some(asking) = waiting.ids.get_mut(&id) else { return Vec::new() };
        asking.in_vain += 1;
        let mut early = Vec::new();
        if asking.in_vain < IN_VAIN {
            waiting.queue.push_back((id, Instant::now()));
        } else {
            let late = asking.tickets.split_off(std::mem::take(&mut asking.early).min(asking.tickets.len()));
            early = std::mem::replace(&mut asking.tickets, late);
            let since = asking.since;
            match asking.tickets.is_empty() {
                true => _ = waiting.ids.remove(&id),
                false => waiting.queue.push_front((id, since)),
            }
        }
        drop(waiting);
        self.wake.notify_one();
        early
    }

    /// Whether little waits, so that rows may be loaded that no client has asked for. Cost: a short lock.
    pub fn has_room(&self) -> bool {
        lock(&self.waiting).queue.len() < (self.spec.queue / 4).min(BATCH)
    }

    /// Number of ids in the queue, and of loads under way.
    pub fn load(&self) -> (usize, usize) {
        (lock(&self.waiting).queue.len(), self.loading.load(Ordering::Relaxed))
    }

    pub fn feed(&self) -> FeedState {
        lock(&self.feed).clone()
    }

    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Why everything was last dropped; empty if it never was.
    pub fn last_loss(&self) -> String {
        lock(&self.loss).clone()
    }

    /// Pauses loading, or resumes it. Changes are still followed.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
        // Clients whose load will not begin are answered.
        self.wake.notify_one();
    }

    /// When the feed had last reported everything, in milliseconds since 1970, if that was more than `blind`
    /// ago (U7); else 0.
    #[inline]
    pub fn blind_since_ms(&self) -> u64 {
        self.blind_since_ms.load(Ordering::Relaxed)
    }

    /// Seconds for which changes have not been followed, if that is longer than `blind`; else 0.
    pub fn blind_s(&self) -> u64 {
        if self.blind_since_ms() == 0 { 0 } else { self.unseen().as_secs() }
    }

    /// How long ago the feed had reported everything.
    fn unseen(&self) -> Duration {
        let sight = Duration::from_millis(self.sight_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(sight)
    }

    /// Notes that the feed has reported everything up to now.
    fn sees(&self) {
        self.sight_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
        if self.blind_since_ms.swap(0, Ordering::Relaxed) != 0 {
            log::info!("source {}: changes are followed again", self.spec.name);
        }
    }

    /// Notes and logs it when the feed has been out of sight for longer than `blind`.
    fn look_out(&self) {
        let unseen = self.unseen();
        if !self.spec.feed || unseen <= self.spec.blind {
            return;
        }
        let since = wall_ms().saturating_sub(unseen.as_millis() as u64).max(1);
        if self.blind_since_ms.swap(since, Ordering::Relaxed) == 0 && self.ready.load(Ordering::Relaxed) {
            log::warn!(
                "source {}: for {} s changes could not be followed: rows cached before that count as past their time",
                self.spec.name,
                unseen.as_secs()
            );
        }
    }

    /// Whether it could ever answer: its feed was open once, or it has none.
    pub fn has_been_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// The known reason why the database cannot be asked. If the last load failed, one is tried again, at
    /// most once a second, so that the database's return is noticed without clients. Cost: a short lock.
    pub fn trouble(&self) -> Option<String> {
        let down = self.probe();
        down.or_else(|| match self.feed() {
            FeedState::Opening => Some("change feed is not open yet".into()),
            FeedState::Broken(why) => Some(why),
            _ => None,
        })
    }

    /// The reason why the last load failed, if it did. If that was long ago, a load is tried.
    fn probe(&self) -> Option<String> {
        let mut waiting = lock(&self.waiting);
        let down = waiting.down.as_mut()?;
        let (text, now) = (down.failure.to_string(), Instant::now());
        let due = now >= down.asked + PROBE_EVERY;
        if due {
            down.asked = now;
        }
        let id = due.then(|| down.id.clone());
        drop(waiting);
        // While the source is paused the database is not asked.
        let _ = id.map(|id| self.want(&id, None));
        Some(text)
    }

    /// Removes the source: its tasks end, and waiting clients are answered.
    pub fn remove(&self) {
        self.removed.send_replace(true);
        self.wake.notify_one();
        self.enough.notify_one();
    }

    pub fn is_removed(&self) -> bool {
        *self.removed.borrow()
    }

    /// Drops everything that is kept of it.
    pub fn flush(&self) {
        self.marks.mark_all();
        log::trace!("source {}: all rows are dropped at {}", self.spec.name, self.marks.now());
        self.cache.lost();
    }

    /// Drops what is kept of some rows, as if they had changed.
    pub fn give_up<'a>(&self, ids: impl Iterator<Item = &'a [u8]>) {
        let changes: Vec<Change> = ids.map(|id| Change { id: id.into(), committed_ms: None }).collect();
        self.drop_changed(&changes, false);
    }

    fn drop_changed(&self, changes: &[Change], refresh: bool) {
        // A few at a time: other threads mark too, and must not wait long.
        for some in changes.chunks(MARKED) {
            self.marks.mark(some.iter().map(|change| &*change.id));
        }
        if log::log_enabled!(log::Level::Trace) {
            let (name, now) = (&self.spec.name, self.marks.now());
            changes.iter().for_each(|change| {
                log::trace!("source {name}: row {} changed, told by {now}", change.id.escape_ascii())
            });
        }
        let fits = self.cache.changed(changes, refresh);
        // Only now, so that what is counted waits to be removed or is removed.
        self.counters.changes.fetch_add(changes.len() as u64, Ordering::SeqCst);
        match (fits, self.flooded.swap(!fits, Ordering::Relaxed)) {
            (true, _) => {}
            (false, false) => Feed::lost(self, "more rows change at once than can be removed one by one"),
            // The flood was reported when it began.
            (false, true) => self.flush(),
        }
    }

    /// Takes the next ids to load; those that waited too long are the second list.
    fn take(&self) -> (Vec<Id>, Vec<Id>) {
        let mut waiting = lock(&self.waiting);
        let (mut ids, mut late) = (Vec::new(), Vec::new());
        while ids.len() < BATCH
            && let Some((id, since)) = waiting.queue.pop_front()
        {
            if since.elapsed() > self.spec.timeout {
                late.push(id);
                continue;
            }
            if let Some(asking) = waiting.ids.get_mut(&id) {
                asking.early = asking.tickets.len();
            }
            ids.push(id);
        }
        (ids, late)
    }

    /// Why nothing can be loaded now, if that is known.
    fn known_failure(&self) -> Option<Failure> {
        if self.is_removed() {
            return Some(Failure::Down("the source was removed".into()));
        }
        if self.is_paused() {
            return Some(Failure::Down("the source is paused".into()));
        }
        if !self.ready.load(Ordering::Relaxed) {
            return match self.feed() {
                FeedState::Broken(why) => Some(Failure::Down(why)),
                _ => None,
            };
        }
        let down = &lock(&self.waiting).down;
        down.as_ref().filter(|down| Instant::now() < down.until).map(|down| down.failure.clone())
    }

    /// Answers the clients that wait for these ids.
    fn answer(&self, began: u64, ids: Vec<Id>, rows: Vec<Row>, failure: Option<Failure>) {
        let mut rows: HashMap<Id, Row> = rows.into_iter().map(|row| (row.id.clone(), row)).collect();
        let mut waiting = lock(&self.waiting);
        let asked = ids.into_iter().map(|id| {
            let tickets = match failure {
                Some(_) => waiting.ids.remove(&id).map(|asking| asking.tickets),
                None => waiting.ids.get(&id).map(|asking| asking.tickets.clone()),
            };
            Asked { row: rows.remove(&id), id, tickets: tickets.unwrap_or_default() }
        });
        let asked = asked.collect();
        drop(waiting);
        self.cache.loaded(Loaded { began, asked, failure });
    }

    /// Answers the clients of rows that exist and cannot be read, and takes these out of both lists.
    fn answer_unreadable(&self, began: u64, ids: &mut Vec<Id>, rows: &mut Vec<Row>) {
        let is_one = |row: &mut Row| matches!(row.body, Body::Unreadable(_));
        for row in rows.extract_if(.., is_one).collect::<Vec<_>>() {
            let Body::Unreadable(why) = row.body else { continue };
            self.counters.failures.fetch_add(1, Ordering::Relaxed);
            ids.retain(|id| *id != row.id);
            self.answer(began, vec![row.id], Vec::new(), Some(Failure::Refused(why)));
        }
    }

    async fn load_batch(&self, database: &dyn Database, mut ids: Vec<Id>) {
        let (began, started) = (self.marks.begin(), Instant::now());
        while points::stays(Point::SourceAsk, 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let result = match tokio::time::timeout(self.spec.timeout, contained(database.load(&ids))).await {
            Ok(result) => result.unwrap_or_else(|panic| Err(Failure::Down(panic))),
            Err(_) => Err(Failure::Slow),
        };
        let result = result.map_err(|failure| failure.told(&self.spec));
        let counters = &self.counters;
        let us = started.elapsed().as_micros() as u64;
        counters.loads.fetch_add(1, Ordering::Relaxed);
        counters.load_us.fetch_add(us, Ordering::Relaxed);
        counters.load_max_us.fetch_max(us, Ordering::Relaxed);
        self.loading.fetch_sub(1, Ordering::Relaxed);
        match result {
            Ok(mut rows) => {
                lock(&self.waiting).down = None;
                self.answer_unreadable(began, &mut ids, &mut rows);
                counters.loaded_rows.fetch_add(rows.len() as u64, Ordering::Relaxed);
                counters
                    .absent_rows
                    .fetch_add(ids.len().saturating_sub(rows.len()) as u64, Ordering::Relaxed);
                self.answer(began, ids, rows, None);
            }
            Err(failure) => {
                counters.failures.fetch_add(1, Ordering::Relaxed);
                if failure != Failure::Slow {
                    let mut waiting = lock(&self.waiting);
                    if waiting.down.is_none() {
                        log::warn!("source {}: {failure}", self.spec.name);
                    }
                    let now = Instant::now();
                    let id = ids.first().cloned().unwrap_or_default();
                    waiting.down =
                        Some(Down { until: now + DOWN_FOR, failure: failure.clone(), id, asked: now });
                }
                self.answer(began, ids, Vec::new(), Some(failure));
            }
        }
        // More ids may wait, and a connection is free now.
        self.wake.notify_one();
    }

    /// Starts loads until the source is removed.
    async fn serve_loads(self: Arc<Self>, database: Arc<dyn Database>) {
        let (mut pace, nap) = (Pace::new(self.spec.gather, Instant::now()), Nap::new());
        loop {
            self.wake.notified().await;
            self.gather(&pace, &nap).await;
            let ids = self.start_loads(&database);
            if ids > 0 {
                pace.began(ids, Instant::now());
            }
            if self.is_removed() {
                return;
            }
        }
    }

    /// Waits until the ids in the queue should be loaded.
    async fn gather(&self, pace: &Pace, nap: &Nap) {
        loop {
            let wait = pace.wait(lock(&self.waiting).queue.len(), Instant::now());
            if wait.is_zero() || self.is_removed() {
                return;
            }
            tokio::select! {
                () = nap.take(wait) => {}
                () = self.enough.notified() => {}
            }
        }
    }

    /// Starts loads for the queue; returns how many ids they load.
    fn start_loads(self: &Arc<Self>, database: &Arc<dyn Database>) -> usize {
        let mut started = 0;
        loop {
            let failure = self.known_failure();
            let waits =
                !self.ready.load(Ordering::Relaxed) || self.loading.load(Ordering::Relaxed) >= self.spec.pool;
            if failure.is_none() && waits {
                return started;
            }
            let (ids, late) = self.take();
            if !late.is_empty() {
                self.answer(self.marks.begin(), late, Vec::new(), Some(Failure::Slow));
            }
            if ids.is_empty() {
                return started;
            }
            if failure.is_some() {
                self.answer(self.marks.begin(), ids, Vec::new(), failure);
                continue;
            }
            self.loading.fetch_add(1, Ordering::Relaxed);
            started += ids.len();
            let (source, database) = (self.clone(), database.clone());
            tokio::spawn(async move { source.load_batch(&*database, ids).await });
        }
    }

    /// Follows the feed until the source is removed.
    async fn serve_feed(self: Arc<Self>, database: Arc<dyn Database>) {
        let mut pause = RETRY_MIN;
        while !self.is_removed() {
            let began = Instant::now();
            let mut removed = self.removed.subscribe();
            let failure = tokio::select! {
                failure = contained(database.follow(&*self)) => failure.unwrap_or_else(Failure::Lost),
                _ = removed.wait_for(|removed| *removed) => return,
            };
            let failure = failure.told(&self.spec);
            if began.elapsed() > RETRY_MAX {
                pause = RETRY_MIN;
            }
            if let Failure::Lost(why) = &failure {
                Feed::lost(&*self, why);
            }
            let why = failure.to_string();
            let before = std::mem::replace(&mut *lock(&self.feed), FeedState::Broken(why.clone()));
            if before != FeedState::Broken(why.clone()) {
                log::warn!("source {}: change feed: {why}", self.spec.name);
            }
            self.wake.notify_one();
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Answers clients that waited longer than the source allows, even if no load begins.
    async fn watch_queue(self: Arc<Self>) {
        while !self.is_removed() {
            tokio::time::sleep(self.spec.timeout.min(Duration::from_millis(100))).await;
            self.look_out();
            let mut late = Vec::new();
            {
                let mut waiting = lock(&self.waiting);
                while waiting.queue.front().is_some_and(|(_, since)| since.elapsed() > self.spec.timeout) {
                    late.extend(waiting.queue.pop_front().map(|(id, _)| id));
                }
            }
            if !late.is_empty() {
                self.answer(self.marks.begin(), late, Vec::new(), Some(Failure::Slow));
            }
        }
    }
}

impl Feed for Source {
    fn opened(&self, since: Since) {
        let first = !self.ready.swap(true, Ordering::SeqCst);
        if first {
            // Nothing is kept yet. Later, missed changes must be reported or everything dropped first.
            self.sees();
        }
        self.counters.opened.fetch_add(1, Ordering::Relaxed);
        if since == Since::Unknown && !first {
            Feed::lost(self, "changes may have been missed while the feed was closed");
        }
        *lock(&self.feed) = FeedState::Open;
        // The database answers again.
        lock(&self.waiting).down = None;
        log::info!("source {}: change feed is open", self.spec.name);
        self.wake.notify_one();
    }

    fn changed(&self, changes: &[Change]) {
        self.drop_changed(changes, self.spec.refresh);
    }

    fn lost(&self, why: &str) {
        log::warn!("source {}: all cached rows are dropped: {why}", self.spec.name);
        self.counters.lost.fetch_add(1, Ordering::Relaxed);
        *lock(&self.loss) = why.into();
        self.flush();
    }

    fn caught_up(&self) {
        // A reader of this time also sees what was reported earlier.
        self.counters.caught_up_ms.store(wall_ms(), Ordering::Release);
        self.sees();
    }
}

fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Runs a driver's work; a panic becomes an error with its message.
async fn contained<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| match stdx::panics::contain(|| work.as_mut().poll(cx)) {
        Ok(polled) => polled.map(Ok),
        Err(message) => std::task::Poll::Ready(Err(format!("the driver panicked: {message}"))),
    })
    .await
}

type Opened = std::sync::mpsc::Sender<Result<(), String>>;

/// Handle of the drivers' thread.
pub struct Hub {
    add: mpsc::UnboundedSender<(Arc<Source>, Opened)>,
}

impl Hub {
    /// Starts the thread.
    pub fn start() -> std::io::Result<Hub> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (add, mut added) = mpsc::unbounded_channel::<(Arc<Source>, Opened)>();
        std::thread::Builder::new().name("sources".into()).spawn(move || {
            machine::threads::prompt();
            // The runtime contains the panics of tasks, `contained` those of drivers.
            stdx::panics::contained_here();
            runtime.block_on(async move {
                while let Some((source, opened)) = added.recv().await {
                    let _ = opened.send(serve(source));
                }
            });
        })?;
        Ok(Hub { add })
    }

    /// Begins to serve a source. Errors: what is known to be wrong without asking the database. Waits for the
    /// thread, some microseconds.
    pub fn add(&self, spec: Spec, cache: Box<dyn Cache>) -> Result<Arc<Source>, String> {
        self.start_source(Source::new(spec, cache))
    }

    /// As [`Hub::add`], with a given driver.
    pub fn add_with(
        &self,
        spec: Spec,
        database: Arc<dyn Database>,
        cache: Box<dyn Cache>,
    ) -> Result<Arc<Source>, String> {
        let source = Source::new(spec, cache);
        let _ = source.database.set(database);
        self.start_source(source)
    }

    fn start_source(&self, source: Source) -> Result<Arc<Source>, String> {
        let source = Arc::new(source);
        let (opened, result) = std::sync::mpsc::channel();
        let ended = || "the thread of the sources has ended".to_owned();
        self.add.send((source.clone(), opened)).map_err(|_| ended())?;
        result.recv().map_err(|_| ended())??;
        Ok(source)
    }
}

/// Starts a source's tasks; must be called on the runtime.
fn serve(source: Arc<Source>) -> Result<(), String> {
    if source.database.get().is_none() {
        let _ = source.database.set(crate::open(&source.spec)?);
    }
    let Some(database) = source.database.get().cloned() else { return Ok(()) };
    tokio::spawn(source.clone().serve_loads(database.clone()));
    tokio::spawn(source.clone().watch_queue());
    if source.spec.feed {
        tokio::spawn(source.serve_feed(database));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
