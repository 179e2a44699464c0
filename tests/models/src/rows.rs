// The way of a row of a database: `marks.rs` and `shelf.rs` as they are. Played: a database, its feed and the
// removal of changed rows, one load per id, and loops with different clocks. Also played: a keyspace of two
// keys with a shard each, and the judge of the answers.
//
// The claim: no answer is older than one that had ended before it was asked for. Nor is it older than a
// reported change whose item was removed by then. A row's states are numbers that grow; 0: there is no row.

use super::marks::Marks;
use super::shelf::{Found, Shelf};
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Mutex, MutexGuard};
use loom::thread;
use std::sync::Arc;

const IDS: usize = 2;
const SHELF: Shelf = Shelf { rows: 0, absent: 1 };

/// The end of old cached entries. A loop with a late clock still takes them as valid.
const ENDS_MS: u64 = 1;
const LATE_MS: u64 = 0;
const PUNCTUAL_MS: u64 = 1;
/// The end of loaded entries.
const LASTS_MS: u64 = 100;

// ----- a keyspace ------------------------------------------------------------------------------------------

pub(crate) struct Payload<'a>(usize, std::marker::PhantomData<&'a ()>);

#[derive(Clone, Copy)]
pub(crate) struct Times {
    expire_ms: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    state: usize,
    expire_ms: u64,
}

/// The rows' entry of a key, and the entry for keys without a row.
type Shard = [Option<Entry>; 2];

pub(crate) struct View<'a> {
    shard: MutexGuard<'a, Shard>,
    db: usize,
}

impl View<'_> {
    pub(crate) fn select(&mut self, db: usize) {
        self.db = db;
    }

    pub(crate) fn put_with(&mut self, _: &[u8], row: Payload<'_>, times: Times) {
        self.shard[self.db] = Some(Entry { state: row.0, expire_ms: times.expire_ms });
    }

    pub(crate) fn put_string(&mut self, _: &[u8], _: &[u8], expire_ms: Option<u64>) {
        self.shard[self.db] = Some(Entry { state: 0, expire_ms: expire_ms.unwrap() });
    }

    pub(crate) fn remove(&mut self, _: &[u8]) -> bool {
        self.shard[self.db].take().is_some()
    }

    /// As `wait.rs` does it: the row, or the absence, that is valid at this time.
    fn known(&self, now_ms: u64) -> Option<usize> {
        let good = |db: usize| self.shard[db].filter(|entry| entry.expire_ms > now_ms).map(|entry| entry.state);
        good(SHELF.rows).or_else(|| good(SHELF.absent))
    }
}

// ----- a source --------------------------------------------------------------------------------------------

/// A mistake in the played parts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A change is marked after its item is removed.
    MarkedAfterRemoval,
    /// A row lent to one command is shown to the next.
    LentForEver,
    /// An answer to a list has a row from before it was asked for.
    ListKept,
    /// The schema is checked before the entries of the changelog are read.
    SchemaFirst,
}

#[derive(Default)]
struct Database {
    rows: [usize; IDS],
    /// The ids that triggers recorded, in order.
    entries: Vec<usize>,
    schema: usize,
}

struct Source {
    marks: Marks,
    database: Mutex<Database>,
    shards: [Mutex<Shard>; IDS],
    /// Ids that are being loaded.
    loading: Mutex<[bool; IDS]>,
    /// The judge's lower bound of each answer.
    known: [AtomicUsize; IDS],
    fault: Fault,
}

/// A row that was loaded and not kept.
#[derive(Clone, Copy)]
struct Lent {
    began: u64,
    state: usize,
}

fn id(at: usize) -> &'static [u8] {
    [b"a", b"b"][at]
}

fn payload<'a>(state: usize) -> (Payload<'a>, Times) {
    (Payload(state, std::marker::PhantomData), Times { expire_ms: LASTS_MS })
}

impl Source {
    /// Rows have this state in the database, and are cached until [`ENDS_MS`].
    fn new(state: usize, fault: Fault) -> Arc<Source> {
        let entry = Some(Entry { state, expire_ms: ENDS_MS });
        let cached = if state == 0 { [None, entry] } else { [entry, None] };
        Arc::new(Source {
            marks: Marks::default(),
            database: Mutex::new(Database { rows: [state; IDS], ..Database::default() }),
            shards: std::array::from_fn(|_| Mutex::new(cached)),
            loading: Mutex::new([false; IDS]),
            known: std::array::from_fn(|_| AtomicUsize::new(state)),
            fault,
        })
    }

    fn view(&self, at: usize) -> View<'_> {
        View { shard: self.shards[at].lock().unwrap(), db: SHELF.rows }
    }

    // ----- the database and its feed

    fn mark(&self, at: usize) {
        self.marks.mark([id(at)].into_iter());
    }

    fn remove(&self, at: usize) {
        let mut view = self.view(at);
        self.marks.removes(id(at));
        *view.shard = [None, None];
    }

    /// A row changes, and the change is reported and handled.
    fn change(&self, at: usize) {
        let state = {
            let mut database = self.database.lock().unwrap();
            database.rows[at] += 1;
            database.rows[at]
        };
        if self.fault == Fault::MarkedAfterRemoval {
            self.remove(at);
            self.mark(at);
        } else {
            self.mark(at);
            self.remove(at);
        }
        self.known[at].fetch_max(state, Ordering::SeqCst);
    }

    // ----- a loop

    /// A load of an id that no other loop loads.
    fn load(&self, at: usize) -> Result<(), Lent> {
        let began = self.marks.begin();
        let state = self.database.lock().unwrap().rows[at];
        let mut view = self.view(at);
        let found = match (payload(state), state) {
            (_, 0) => Found::Nothing { until_ms: LASTS_MS },
            ((row, times), _) => Found::Row(row, times),
        };
        let kept = SHELF.install(&mut view, &self.marks, (id(at), id(at)), began, found);
        if kept { Ok(()) } else { Err(Lent { began, state }) }
    }

    /// The known row, or the row lent to the command that asked at that time.
    fn look(&self, at: usize, now_ms: u64, asked: u64, lent: Option<Lent>) -> Option<usize> {
        let mut view = self.view(at);
        let lent = lent.filter(|lent| lent.began > asked || self.fault == Fault::LentForEver);
        match (view.known(now_ms), lent) {
            (None, Some(lent)) => {
                SHELF.show(&mut view, id(at), (lent.state > 0).then(|| payload(lent.state)));
                let found = view.known(now_ms).unwrap_or(0);
                SHELF.take_back(&mut view, id(at));
                Some(found)
            }
            (known, _) => known,
        }
    }

    /// A command asks for a row. None if another one loads it: the answer comes later. `lent`: the row lent
    /// to the connection.
    fn ask(&self, at: usize, now_ms: u64, lent: &mut Option<Lent>) -> Option<usize> {
        let asked = self.marks.now();
        if let Some(found) = self.look(at, now_ms, asked, *lent) {
            return Some(found);
        }
        if std::mem::replace(&mut self.loading.lock().unwrap()[at], true) {
            return None;
        }
        if let Err(not_kept) = self.load(at) {
            *lent = Some(not_kept);
        }
        self.loading.lock().unwrap()[at] = false;
        self.look(at, now_ms, asked, *lent)
    }

    // ----- the judge

    fn before(&self) -> [usize; IDS] {
        std::array::from_fn(|at| self.known[at].load(Ordering::SeqCst))
    }

    fn judge(&self, at: usize, before: usize, found: Option<usize>) {
        if let Some(found) = found {
            assert!(found >= before, "{found} after {before}");
            self.known[at].fetch_max(found, Ordering::SeqCst);
        }
    }

    /// A client that asks for a row once.
    fn read(&self, at: usize, now_ms: u64) {
        let before = self.before()[at];
        self.judge(at, before, self.ask(at, now_ms, &mut None));
    }
}

/// A row changes while two loops are asked for it. For one of them the cached row is past its time.
fn one_row(state: usize, fault: Fault) {
    let source = Source::new(state, fault);
    let writer = thread::spawn({
        let source = source.clone();
        move || source.change(0)
    });
    let punctual = thread::spawn({
        let source = source.clone();
        move || source.read(0, PUNCTUAL_MS)
    });
    source.read(0, LATE_MS);
    writer.join().unwrap();
    punctual.join().unwrap();
    source.read(0, LATE_MS);
}

pub(crate) fn no_answer_is_older_than_one_before() {
    one_row(1, Fault::None);
}

/// An absence is cached, and a row comes.
pub(crate) fn no_absence_is_older_than_a_row() {
    one_row(0, Fault::None);
}

pub(crate) fn marked_after_removal() {
    one_row(1, Fault::MarkedAfterRemoval);
}

/// One connection asks twice, while the row changes.
fn two_commands(fault: Fault) {
    let source = Source::new(1, fault);
    let writer = thread::spawn({
        let source = source.clone();
        move || {
            source.change(0);
            source.change(0);
        }
    });
    let mut lent = None;
    for _ in 0..2 {
        let before = source.before()[0];
        source.judge(0, before, source.ask(0, PUNCTUAL_MS, &mut lent));
    }
    writer.join().unwrap();
}

pub(crate) fn what_is_lent_is_for_one_command() {
    two_commands(Fault::None);
}

pub(crate) fn lent_for_ever() {
    two_commands(Fault::LentForEver);
}

/// A list of two rows: the first has to be loaded, the second is cached. Another client reads the first.
fn list(fault: Fault) {
    let source = Source::new(1, fault);
    let writer = thread::spawn({
        let source = source.clone();
        move || source.change(0)
    });
    let other = thread::spawn({
        let source = source.clone();
        move || source.read(0, LATE_MS)
    });
    // The old row of a connection that kept one.
    let kept = if fault == Fault::ListKept { source.ask(0, LATE_MS, &mut None) } else { None };
    let before = source.before();
    let first = kept.or_else(|| source.ask(0, PUNCTUAL_MS, &mut None));
    let second = source.ask(1, LATE_MS, &mut None);
    source.judge(0, before[0], first);
    source.judge(1, before[1], second);
    writer.join().unwrap();
    other.join().unwrap();
}

pub(crate) fn a_list_is_no_older_than_what_was_known() {
    list(Fault::None);
}

pub(crate) fn list_kept() {
    list(Fault::ListKept);
}

/// A trigger is dropped, an unrecorded row changes, then a recorded one. Reports are counted: as many changes
/// are known as were reported, the first ones first.
fn unrecorded(fault: Fault) {
    let source = Source::new(1, fault);
    let writer = thread::spawn({
        let source = source.clone();
        move || {
            source.database.lock().unwrap().schema += 1;
            source.database.lock().unwrap().rows[0] += 1;
            let mut database = source.database.lock().unwrap();
            database.rows[1] += 1;
            database.entries.push(1);
        }
    });
    let follower = thread::spawn({
        let source = source.clone();
        move || {
            let schema_before = source.database.lock().unwrap().schema;
            let (entries, schema) = {
                let database = source.database.lock().unwrap();
                (database.entries.clone(), database.schema)
            };
            let schema = if source.fault == Fault::SchemaFirst { schema_before } else { schema };
            if schema > 0 {
                source.marks.mark_all();
                (0..IDS).for_each(|at| source.remove(at));
            }
            for at in &entries {
                source.mark(*at);
                source.remove(*at);
            }
            if entries.len() == 1 {
                // The first of the two changes, as far as its writer can tell.
                source.known[0].fetch_max(2, Ordering::SeqCst);
            }
        }
    });
    source.read(0, LATE_MS);
    writer.join().unwrap();
    follower.join().unwrap();
    source.read(0, LATE_MS);
}

pub(crate) fn what_nobody_recorded_is_given_up_first() {
    unrecorded(Fault::None);
}

pub(crate) fn schema_first() {
    unrecorded(Fault::SchemaFirst);
}

/// WATCH, a read, EXEC: if the row read is no longer current, the marks say so (M4).
pub(crate) fn who_watches_is_told() {
    let source = Source::new(1, Fault::None);
    let writer = thread::spawn({
        let source = source.clone();
        move || source.change(0)
    });
    let then = source.marks.now();
    let read = source.ask(0, LATE_MS, &mut None);
    let again = source.ask(0, LATE_MS, &mut None);
    let touched = source.marks.was_touched(id(0), then);
    assert!(touched || read == again, "{read:?}, then {again:?}");
    writer.join().unwrap();
}
