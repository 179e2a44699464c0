//! The feed of a table in SQLite: triggers write the ids of changed rows into a table, and a thread reads
//! them.
//!
//! ```text
//! writer, any process: UPDATE products … ─► trigger ─► "evenkeel_changes_products.id": seq, id, at
//! thread, every POLL: PRAGMA data_version ─ moved ─► entries after `seq` ─► Feed::changed
//! ```
//!
//! - L1: an entry is committed with its change. Entries have consecutive numbers, and the newest is never
//!   removed. A server that finds the next number has missed nothing; one that does not drops everything.
//! - L2: a server that makes the triggers writes an entry without an id, which means that any row may have
//!   changed. So all servers of a file learn of the time without triggers.
//! - L3: entries are removed when they are older than KEPT_MS or more than KEPT. A server that is further
//!   behind finds a gap (L1).
//! - L4: rows that change without triggers do so by a change of the schema: another table under the name, an
//!   added column. Then everything is dropped.
//! - L5: REPLACE removes conflicting rows without running their delete triggers; other unique indexes cause
//!   such conflicts. For each such index a trigger writes the entries first (unique.rs). A trigger that
//!   SQLite cannot compile would fail the application's writes, so it is compiled before it is committed.
//! - L6: unrecorded changes lead to dropping everything before anything later is reported. Entries are read
//!   together with the schema, in which a missing trigger shows.
//!
//! Cost for a writer: one entry per changed row. A poll reads a number in shared memory (WAL) or in the
//! file's first page, whatever the size of the database. Polling takes 1 to 2 % of a core, and a change is
//! reported after half a POLL on average.

use super::unique::UniqueIndex;
use super::{Plan, Shared, Table, connect, failure, quoted, spelled};
use crate::{Change, Failure, Feed, Since};
use rusqlite::Connection;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const POLL: Duration = Duration::from_millis(2);
/// Time between two heartbeats, two checks of the file, and two removals of old entries.
const BEAT: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_secs(1);
const TIDY: Duration = Duration::from_secs(10);
/// How long entries are kept, and how many.
const KEPT_MS: i64 = 600_000;
const KEPT: i64 = 1_000_000;
/// Entries read, or removed, in one transaction.
const SLICE: i64 = 1000;

/// How far the changelog was reported, and the file and table it belongs to.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Position {
    seq: i64,
    file: File,
    table: String,
}

/// Device and inode number of a file.
type File = (u64, u64);

pub(super) enum Event {
    Opened(Since),
    Changed(Vec<Change>),
    Lost(&'static str),
    CaughtUp,
}

type Events = mpsc::Sender<(Event, Option<Position>)>;

/// Runs the thread and passes on its events; the position moves when a change was reported. Returns why it
/// ended.
pub(super) async fn follow(
    shared: &Arc<Shared>,
    position: &Mutex<Option<Position>>,
    feed: &dyn Feed,
) -> Failure {
    let (events, mut told) = mpsc::channel(16);
    let (ended, failed) = tokio::sync::oneshot::channel();
    let before = position.lock().unwrap_or_else(|e| e.into_inner()).clone();
    let of_thread = shared.clone();
    let thread = std::thread::Builder::new().name("sqlite-feed".into()).spawn(move || {
        let failure = Follower::open(&of_thread, events, before).and_then(|mut follower| follower.run());
        let _ = ended.send(failure.err());
    });
    if let Err(e) = thread {
        return Failure::Down(format!("cannot start a thread: {e}"));
    }
    while let Some((event, now)) = told.recv().await {
        match event {
            Event::Opened(since) => feed.opened(since),
            Event::Changed(changes) => feed.changed(&changes),
            Event::Lost(why) => feed.lost(why),
            Event::CaughtUp => feed.caught_up(),
        }
        if now.is_some() {
            *position.lock().unwrap_or_else(|e| e.into_inner()) = now;
        }
    }
    let failure = failed.await.ok().flatten();
    failure.unwrap_or_else(|| Failure::Down("the feed's thread has ended".into()))
}

pub(super) struct Follower<'a> {
    shared: &'a Shared,
    connection: Connection,
    events: Events,
    log: String,
    position: Position,
    data_version: i64,
    schema_version: i64,
}

impl<'a> Follower<'a> {
    fn open(shared: &'a Shared, events: Events, before: Option<Position>) -> Result<Follower<'a>, Failure> {
        let file = file(&shared.plan)?;
        Follower::begin(shared, connect(&shared.plan)?, file, events, before)
    }

    pub(super) fn begin(
        shared: &'a Shared,
        connection: Connection,
        file: File,
        events: Events,
        before: Option<Position>,
    ) -> Result<Follower<'a>, Failure> {
        let mut follower = Follower {
            log: quoted(&name(&shared.plan, "changes")),
            data_version: version(&connection, "data_version")?,
            schema_version: version(&connection, "schema_version")?,
            position: Position { seq: 0, file, table: String::new() },
            shared,
            connection,
            events,
        };
        let table = follower.set_up()?;
        let (_, last) = follower.ends()?;
        follower.position.table = table;
        follower.position.seq = last;
        let mut resumed =
            before.filter(|before| Position { seq: last, ..before.clone() } == follower.position);
        if let Some(before) = &resumed
            && follower.named_since(before.seq)? != last - before.seq
        {
            resumed = None;
        }
        let since = if resumed.is_some() { Since::Resumed } else { Since::Unknown };
        follower.position.seq = resumed.map_or(last, |before| before.seq);
        follower.tell(Event::Opened(since));
        follower.read()?;
        Ok(follower)
    }

    /// Polls until the receiver of the events is gone. Errors: why the feed cannot go on.
    fn run(&mut self) -> Result<(), Failure> {
        let (mut beat, mut look, mut tidy) = (Instant::now(), Instant::now(), Instant::now());
        while !self.events.is_closed() {
            std::thread::sleep(POLL);
            match self.poll() {
                // A writer holds the file, so there is nothing new to read.
                Err(Failure::Slow) => continue,
                polled => polled?,
            }
            if beat.elapsed() >= BEAT {
                beat = Instant::now();
                self.tell(Event::CaughtUp);
            }
            if look.elapsed() >= LOOK {
                look = Instant::now();
                self.look()?;
            }
            if tidy.elapsed() >= TIDY {
                tidy = Instant::now();
                self.tidy();
            }
        }
        Ok(())
    }

    fn tell(&self, event: Event) {
        let _ = self.events.blocking_send((event, Some(self.position.clone())));
    }

    fn poll(&mut self) -> Result<(), Failure> {
        let now = version(&self.connection, "data_version")?;
        if now == self.data_version {
            return Ok(());
        }
        self.read()?;
        // Only now: a commit after the number was read moves it again.
        self.data_version = now;
        Ok(())
    }

    /// Handles a changed schema: makes sure that changes are recorded.
    fn alter(&mut self, schema: i64) -> Result<(), Failure> {
        let table = self.set_up().inspect_err(|failure| {
            if let Failure::Refused(_) = failure {
                self.tell(Event::Lost("the table is not what it was"));
            }
        })?;
        if table != self.position.table {
            self.position.table = table;
            self.tell(Event::Lost("the table was altered"));
        }
        // The version read before, so that a later change of the schema, or the one made here, is noticed.
        self.schema_version = schema;
        Ok(())
    }

    /// Reports the entries after the last one (L6).
    pub(super) fn read(&mut self) -> Result<(), Failure> {
        loop {
            let (entries, schema) = self.entries()?;
            if schema != self.schema_version {
                self.alter(schema)?;
                continue;
            }
            let Some(newest) = entries.last().map(|entry| entry.seq) else { break };
            let expected = self.position.seq + 1;
            let whole = entries[0].seq == expected && newest - expected + 1 == entries.len() as i64;
            // The position has not moved yet: if this fails, the gap is found again.
            if !whole {
                return self.start_over("entries of the changelog were missed");
            }
            self.position.seq = newest;
            if entries.iter().any(|entry| entry.all) {
                self.tell(Event::Lost("changes were not recorded for a time"));
            }
            let changes: Vec<_> = entries.into_iter().filter_map(|entry| entry.change).collect();
            if !changes.is_empty() {
                self.tell(Event::Changed(changes));
            }
        }
        match self.ends()? {
            (_, last) if last < self.position.seq => self.start_over("the changelog was emptied"),
            _ => Ok(()),
        }
    }

    /// The next entries, and the schema's version at the time of that read.
    fn entries(&self) -> Result<(Vec<Entry>, i64), Failure> {
        let _one_moment = self.connection.unchecked_transaction().map_err(failure)?;
        let sql = format!("SELECT seq, id, at FROM {} WHERE seq > ?1 ORDER BY seq LIMIT {SLICE}", self.log);
        let mut statement = self.connection.prepare_cached(&sql).map_err(failure)?;
        let entry = |row: &rusqlite::Row<'_>| {
            let id = row.get_ref(1)?;
            let at: Option<i64> = row.get(2).unwrap_or(None);
            let change = |id| Change { id, committed_ms: at.and_then(|at| u64::try_from(at).ok()) };
            let all = id == rusqlite::types::ValueRef::Null;
            Ok(Entry { seq: row.get(0)?, all, change: spelled(id).map(change) })
        };
        let entries = statement.query_map([self.position.seq], entry).map_err(failure)?;
        let entries = entries.collect::<Result<_, _>>().map_err(failure)?;
        Ok((entries, version(&self.connection, "schema_version")?))
    }

    /// Number of entries with an id after this one.
    fn named_since(&self, seq: i64) -> Result<i64, Failure> {
        let sql = format!("SELECT count(id) FROM {} WHERE seq > ?1", self.log);
        self.connection.query_row(&sql, [seq], |row| row.get(0)).map_err(failure)
    }

    fn start_over(&mut self, why: &'static str) -> Result<(), Failure> {
        self.position.seq = self.ends()?.1;
        self.tell(Event::Lost(why));
        Ok(())
    }

    /// The numbers of the oldest and of the newest entry.
    fn ends(&self) -> Result<(i64, i64), Failure> {
        let sql = format!("SELECT (SELECT min(seq) FROM {0}), (SELECT max(seq) FROM {0})", self.log);
        let mut statement = self.connection.prepare_cached(&sql).map_err(failure)?;
        let ends =
            |row: &rusqlite::Row<'_>| Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?));
        let (first, last) = statement.query_row([], ends).map_err(failure)?;
        Ok((first.unwrap_or(0), last.unwrap_or(0)))
    }

    /// Makes changelog and triggers, unless they are there. Returns the identity of the table.
    fn set_up(&self) -> Result<String, Failure> {
        let plan = &self.shared.plan;
        let table = Table::inspect(&self.connection, plan)?;
        self.shared.known.set(table.id_type);
        let triggers = triggers(plan, &table);
        if self.stands(&triggers)? {
            return Ok(table.identity);
        }
        let why = |e: Failure| match e {
            Failure::Refused(text) => Failure::Refused(format!(
                "changes of table '{}' are recorded by triggers, which cannot be made: {text}. Let the server write to {}, \
                 or start it once as a user who may (or set feed off)",
                plan.table,
                plan.path.display()
            )),
            other => other,
        };
        self.make(&triggers).map_err(failure).map_err(why)?;
        Ok(table.identity)
    }

    fn stands(&self, triggers: &[(String, String)]) -> Result<bool, Failure> {
        let sql =
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE";
        let found = super::pairs(&self.connection, sql, &self.shared.plan.table)?;
        let exists = "SELECT name, '' FROM sqlite_master WHERE type = 'table' AND name = ?1";
        let log = super::pairs(&self.connection, exists, &name(&self.shared.plan, "changes"))?;
        Ok(!log.is_empty() && triggers.iter().all(|trigger| found.contains(trigger)))
    }

    /// Makes all triggers in one transaction, so that no change falls between two of them.
    fn make(&self, triggers: &[(String, String)]) -> rusqlite::Result<()> {
        let mut sql = String::from("BEGIN IMMEDIATE;\n");
        let log = &self.log;
        sql += &format!("CREATE TABLE IF NOT EXISTS {log} (seq INTEGER PRIMARY KEY, id, at INTEGER);\n");
        for kind in KINDS {
            sql += &format!("DROP TRIGGER IF EXISTS {};\n", quoted(&name(&self.shared.plan, kind)));
        }
        triggers.iter().for_each(|(_, trigger)| sql += &format!("{trigger};\n"));
        // A new changelog begins above the numbers that any earlier one can have had (L1, L2).
        sql += &format!(
            "INSERT INTO {log} (seq, at) SELECT max({NOW} * 1000, coalesce(max(seq), 0) + 1), {NOW} FROM {log};\n"
        );
        let insert = format!("INSERT INTO {} DEFAULT VALUES", quoted(&self.shared.plan.table));
        // The application's own triggers may need functions that are not known here.
        let compiled = self.connection.prepare(&insert).is_ok();
        let made = self.connection.execute_batch(&sql).and_then(|()| {
            // A trigger is compiled with the statement that runs it.
            if compiled {
                self.connection.prepare(&insert)?;
            }
            self.connection.execute_batch("COMMIT")
        });
        made.inspect_err(|_| {
            let _ = self.connection.execute_batch("ROLLBACK");
        })
    }

    /// Checks that the file is still the one under its path.
    fn look(&self) -> Result<(), Failure> {
        let now = file(&self.shared.plan);
        if now.as_ref() == Ok(&self.position.file) {
            return Ok(());
        }
        self.shared.replaced.fetch_add(1, Ordering::SeqCst);
        now.and(Err(Failure::Lost("there is another file under the path".into())))
    }

    /// Removes old entries (L3), a few at a time, and none while another connection writes.
    pub(super) fn tidy(&self) {
        let _ = self.connection.busy_timeout(Duration::ZERO);
        for _ in 0..KEPT / SLICE {
            if !matches!(self.remove_slice(), Ok(true)) {
                break;
            }
            std::thread::sleep(POLL);
        }
        let _ = self.connection.busy_timeout(self.shared.plan.connect_timeout);
    }

    /// Removes a slice of entries; whether there was one to remove.
    fn remove_slice(&self) -> Result<bool, Failure> {
        let (first, last) = self.ends()?;
        let upto = (first + SLICE - 1).min(last - 1);
        let log = &self.log;
        let removed = self.connection.execute(
            &format!(
                "DELETE FROM {log} WHERE seq <= ?1 AND (?2 OR (SELECT at FROM {log} WHERE seq <= ?1 ORDER BY seq DESC \
                 LIMIT 1) < {NOW} - {KEPT_MS})"
            ),
            (upto, last - upto > KEPT),
        );
        Ok(removed.map_err(failure)? > 0)
    }
}

struct Entry {
    seq: i64,
    all: bool,
    change: Option<Change>,
}

/// Milliseconds since 1970, in SQL that any version of SQLite can run.
const NOW: &str = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";

const KINDS: [&str; 5] = ["insert", "update", "delete", "before_insert", "before_update"];

/// The name of a trigger or of the changelog, made of the table and its id column.
fn name(plan: &Plan, kind: &str) -> String {
    format!("evenkeel_{kind}_{}.{}", plan.table, plan.id)
}

/// The triggers: their names and their SQL.
fn triggers(plan: &Plan, table: &Table) -> Vec<(String, String)> {
    let (log, on, id) = (quoted(&name(plan, "changes")), quoted(&plan.table), quoted(&plan.id));
    let trigger = |kind: &str, when: &str, body: &str| {
        let name = name(plan, kind);
        let sql = format!("CREATE TRIGGER {} {when} ON {on} BEGIN {body} END", quoted(&name));
        (name, sql)
    };
    let entry = |of: &str| format!("INSERT INTO {log} (id, at) VALUES ({of}.{id}, {NOW});");
    let other = format!(
        "INSERT INTO {log} (id, at) SELECT NEW.{id}, {NOW} WHERE NEW.{id} IS NOT OLD.{id} COLLATE BINARY;"
    );
    let mut made = vec![
        trigger("insert", "AFTER INSERT", &entry("NEW")),
        trigger("update", "AFTER UPDATE", &format!("{} {other}", entry("OLD"))),
        trigger("delete", "AFTER DELETE", &entry("OLD")),
    ];
    if !table.unique.is_empty() {
        let in_the_way = |unless: &str| {
            let of_index = |index: &UniqueIndex| {
                let conflicts = index.conflicts(&plan.table, &table.columns);
                format!(
                    "INSERT INTO {log} (id, at) SELECT {on}.{id}, {NOW} FROM {on} WHERE {conflicts}{unless};"
                )
            };
            table.unique.iter().map(of_index).collect::<Vec<_>>().join(" ")
        };
        made.push(trigger("before_insert", "BEFORE INSERT", &in_the_way("")));
        let not_itself = format!(" AND {on}.{id} IS NOT OLD.{id} COLLATE BINARY");
        made.push(trigger("before_update", "BEFORE UPDATE", &in_the_way(&not_itself)));
    }
    made
}

fn version(connection: &Connection, which: &str) -> Result<i64, Failure> {
    let mut statement = connection.prepare_cached(&format!("PRAGMA {which}")).map_err(failure)?;
    statement.query_row([], |row| row.get(0)).map_err(failure)
}

fn file(plan: &Plan) -> Result<File, Failure> {
    let found = std::fs::metadata(plan.admitted()?.0);
    let found = found.map_err(|e| Failure::Down(format!("{}: {e}", plan.path.display())))?;
    Ok((found.dev(), found.ino()))
}
