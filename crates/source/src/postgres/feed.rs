//! The feed of PostgreSQL: publication, slot, stream.
//!
//! ```text
//! connect twice ─► check the table ─► publication (or make it) ─► slot ─► START_REPLICATION ─► opened ─► …
//! ```
//!
//! - R1: a temporary slot begins when it is made, so earlier changes are unknown. A named slot is resumed at
//!   the place where this process stopped. After a restart of the process, where nothing is kept, it goes on
//!   at the present.
//! - R2: transactions that committed before the beginning are not reported, yet some may still be unseen then
//!   (told.rs). So transactions in progress are waited for, briefly, before `opened`. If one ends later
//!   without having been reported, everything is dropped.
//! - R3: the position of the log is read twice a second; when the stream has reached it, nothing is left to
//!   report. The same query reads whatever must stay the same ([`Table::identity_sql`]). If that differs, the
//!   feed begins anew.
//!   A replica identity may change and change back between two of them. So each message about the table or a
//!   partition must say that updates and deletes name the id.
//! - R4: silence ends the feed, on both connections, after a few times `connect-timeout`; every heartbeat
//!   asks the stream for a sign of life. Decoding something large takes longer than that. So after each
//!   failure the patience doubles, until the stream has passed the log's position of that time.

use super::link::{Link, Streamed};
use super::pgoutput::{self, Message, Relation};
use super::told::Snapshot;
use super::{Postgres, Table, failure, literal, quoted, value};
use crate::{Change, Failure, Feed, Since, Spec, Task};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_postgres::{Client, Statement};

/// Time between two heartbeats.
const BEAT: Duration = Duration::from_millis(500);
/// Most doublings of the patience with a silent stream.
const MAX_DOUBLINGS: u32 = 4;
/// How long transactions in progress are waited for: by the database while it makes a slot, and by R2.
const SLOT: Duration = Duration::from_secs(60);
const SETTLE: Duration = Duration::from_secs(1);
/// Changes reported at once.
const PIECE: usize = 1000;

/// Where the feed stopped.
#[derive(Default)]
pub(super) struct Place {
    /// Identity of the database and of its history.
    system: Option<String>,
    /// Everything before this was reported. Only of a named slot.
    position: Option<u64>,
    /// Transactions before it that may not be visible yet and will not be reported.
    unsettled: Vec<u64>,
    /// How often in a row the stream was given up for silence (R4), and how far the log was then.
    pub(super) silences: u32,
    silent_at: u64,
}

fn place(driver: &Postgres) -> MutexGuard<'_, Place> {
    driver.place.lock().unwrap_or_else(|e| e.into_inner())
}

fn refused<T>(why: String) -> Result<T, Failure> {
    Err(Failure::Refused(why))
}

/// The failure of a feed whose updates and deletes no longer name the id: any row may have changed.
fn unnamed(id: &str) -> Failure {
    Failure::Lost(format!("updates and deletes did not name column '{id}': the replica identity was altered"))
}

async fn within<T>(
    limit: Duration,
    what: &str,
    task: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = || Failure::Down(format!("{what} takes longer than {} s", limit.as_secs_f32()));
    timeout(limit, task).await.unwrap_or_else(|_| Err(late()))
}

pub(super) async fn follow(driver: &Postgres, feed: &dyn Feed) -> Failure {
    let (mut follower, since) = match Follower::open(driver, feed).await {
        Ok(opened) => opened,
        Err(failure) => return failure,
    };
    // Loads get their connections now: the first ones would otherwise wait for them, within the time for a
    // load.
    for _ in 0..driver.pool.len() {
        if driver.session().await.is_err() {
            break;
        }
    }
    feed.opened(since);
    let failure = match follower.run().await {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    // The stream may repeat its complaint at this position, so the next one begins at the present.
    if !matches!(failure, Failure::Down(_)) {
        place(driver).position = None;
    }
    failure
}

struct Follower<'a> {
    driver: &'a Postgres,
    feed: &'a dyn Feed,
    table: Table,
    link: Link,
    watch: Arc<Watch>,
    identity: String,
    /// The last message about the table's columns.
    relation: Option<Relation>,
    /// Index of the id in a row, and the transaction that is being reported.
    id_at: usize,
    transaction: Option<(u32, Option<u64>)>,
    changes: Vec<Change>,
    /// Everything before `reached` was reported; `newest` is the furthest position of the log seen.
    reached: u64,
    newest: u64,
    /// R2: transactions in progress at the beginning that were not reported since.
    unsettled: Vec<u64>,
    /// The oldest heartbeat that the stream has not caught up with.
    awaited: Option<Beat>,
}

impl<'a> Follower<'a> {
    async fn open(driver: &'a Postgres, feed: &'a dyn Feed) -> Result<(Follower<'a>, Since), Failure> {
        let limit = driver.spec.connect_timeout;
        let (client, table) = driver.connect().await?;
        table.check_feed(&driver.spec)?;
        let link = within(limit, "connecting", Link::connect(&driver.config, &driver.tls)).await;
        let mut link = link.map_err(|failure| with_right(driver, failure))?;
        let name = publication(&driver.spec);
        within(limit * 5, "making a publication", publish(&client, &table, &name)).await?;
        let watch = within(limit, "preparing", Watch::prepare(client, &table, &driver.spec, &name)).await?;
        let identity = within(limit, "a heartbeat", watch.beat()).await?.identity;
        driver.note_system(&within(limit, "identifying", link.query("IDENTIFY_SYSTEM")).await?);
        let (slot, begin) = slot(driver, &mut link).await?;
        let (unsettled, position) = match begin {
            Some(position) => (place(driver).unsettled.clone(), position),
            None => {
                let (position, unsettled) = within(limit * 5, "beginning", watch.settle()).await?;
                // A temporary slot begins where it was made, which is earlier.
                (unsettled, if driver.spec.slot.is_some() { position } else { 0 })
            }
        };
        let (high, low) = (position >> 32, position as u32);
        let start = format!(
            "START_REPLICATION SLOT {} LOGICAL {high:X}/{low:X} (proto_version '1', publication_names {})",
            quoted(&slot),
            literal_plain(&quoted(&name))
        );
        within(limit * 5, "starting replication", link.stream(&start)).await?;
        let follower = Follower {
            driver,
            feed,
            table,
            link,
            watch: Arc::new(watch),
            identity,
            relation: None,
            id_at: 0,
            transaction: None,
            changes: Vec::new(),
            reached: position,
            newest: position,
            unsettled,
            awaited: None,
        };
        Ok((follower, if begin.is_some() { Since::Resumed } else { Since::Unknown }))
    }

    async fn run(&mut self) -> Result<std::convert::Infallible, Failure> {
        let limit = self.driver.spec.connect_timeout * 5;
        let patience = limit.max(4 * BEAT) * (1 << place(self.driver).silences.min(MAX_DOUBLINGS));
        // Counts beats, not time: a process that was itself stopped has heard nothing either.
        let mut unanswered = 0;
        let mut beats = tokio::time::interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asked: Option<Task<'static, Result<Beat, Failure>>> = None;
        let mut taken = 0usize;
        loop {
            tokio::select! {
                streamed = self.link.next() => {
                    unanswered = 0;
                    match streamed? {
                        Streamed::Data(data) => {
                            let data = data.to_vec();
                            self.take(&data)?;
                            taken += 1;
                            // A long transaction must not delay the loads of all sources.
                            if taken.is_multiple_of(PIECE) {
                                tokio::task::yield_now().await;
                            }
                        }
                        Streamed::Alive { end, asks } => {
                            if self.transaction.is_none() {
                                self.reach(end);
                            }
                            if asks {
                                within(limit, "an answer", self.link.status(self.reached, false)).await?;
                            }
                        }
                    }
                }
                now = async { asked.as_mut().expect("asked").await }, if asked.is_some() => {
                    asked = None;
                    self.take_beat(now?)?;
                    within(limit, "a heartbeat", self.link.status(self.reached, true)).await?;
                    unanswered += 1;
                }
                _ = beats.tick(), if asked.is_none() => {
                    if BEAT * unanswered > patience {
                        return Err(self.silent());
                    }
                    let watch = self.watch.clone();
                    asked = Some(Box::pin(async move { within(limit, "a heartbeat", watch.beat()).await }));
                }
            }
        }
    }

    /// Gives the stream up for silence (R4).
    fn silent(&self) -> Failure {
        let mut place = place(self.driver);
        place.silences += 1;
        place.silent_at = self.newest;
        Failure::Down("the change feed is silent".into())
    }

    fn take_beat(&mut self, now: Beat) -> Result<(), Failure> {
        self.driver.told.seen(&now.snapshot);
        self.newest = self.newest.max(now.position);
        if now.identity != self.identity {
            return Err(Failure::Lost("the table or its publication was altered".into()));
        }
        // The older one is what the stream may have reached by now.
        self.awaited.get_or_insert(now);
        self.reach(self.reached);
        Ok(())
    }

    /// Notes that everything before a position was reported.
    fn reach(&mut self, end: u64) {
        self.reached = self.reached.max(end);
        let mut place = self::place(self.driver);
        if self.reached >= place.silent_at {
            place.silences = 0;
        }
        if self.driver.spec.slot.is_some() {
            place.position = Some(self.reached);
            // Another opening may have left as many.
            if place.unsettled != self.unsettled {
                place.unsettled.clone_from(&self.unsettled);
            }
        }
        drop(place);
        let Some(beat) = self.awaited.take_if(|beat| beat.position <= self.reached) else { return };
        let before = self.unsettled.len();
        self.unsettled.retain(|xid| !beat.snapshot.has_ended(*xid));
        if self.unsettled.len() < before {
            self.feed.lost("a transaction that was being committed when the feed was opened has ended");
            self::place(self.driver).unsettled.clone_from(&self.unsettled);
        }
        self.feed.caught_up();
    }

    fn take(&mut self, data: &[u8]) -> Result<(), Failure> {
        let garbled = || Failure::Down("the change feed sent an unexpected message".into());
        match pgoutput::read(data).ok_or_else(garbled)? {
            Message::Begin { xid, committed_ms } => {
                self.unsettled.retain(|other| *other as u32 != xid);
                self.transaction = Some((xid, committed_ms));
            }
            Message::Commit { end } => {
                self.tell();
                self.transaction = None;
                self.reach(end);
            }
            Message::Relation(relation) if relation.id == self.table.oid => self.take_relation(relation)?,
            Message::Relation(relation) if self.table.partitions.contains(&relation.id) => {
                self.take_partition(&relation)?;
            }
            Message::Insert { relation, new } if relation == self.table.oid => self.change(&new, None)?,
            Message::Update { relation, old, new } if relation == self.table.oid => {
                self.change(&new, old.as_deref())?;
            }
            Message::Delete { relation, old } if relation == self.table.oid => self.change(&old, None)?,
            Message::Truncate(relations) if relations.contains(&self.table.oid) => {
                self.lose("the table was truncated")
            }
            _ => {}
        }
        Ok(())
    }

    fn take_relation(&mut self, relation: Relation) -> Result<(), Failure> {
        let id = self.driver.spec.id.as_deref().unwrap_or("id");
        let at = relation.columns.iter().position(|column| column.name == id);
        let Some(at) = at else {
            return Err(Failure::Lost(format!("the publication leaves out column '{id}'")));
        };
        if !relation.columns[at].is_key {
            return Err(unnamed(id));
        }
        self.id_at = at;
        if self.relation.as_ref().is_some_and(|before| *before != relation) {
            self.lose("the table was altered");
        }
        self.relation = Some(relation);
        Ok(())
    }

    /// Checks a message about a partition, whose own replica identity says what its updates and deletes name.
    fn take_partition(&self, partition: &Relation) -> Result<(), Failure> {
        let id = self.driver.spec.id.as_deref().unwrap_or("id");
        let named = partition.columns.iter().any(|column| column.name == id && column.is_key);
        if named { Ok(()) } else { Err(unnamed(id)) }
    }

    /// Records a changed row: the ids it has and had.
    fn change(&mut self, row: &[Option<&[u8]>], old: Option<&[Option<&[u8]>]>) -> Result<(), Failure> {
        let id = |row: &[Option<&[u8]>]| row.get(self.id_at).copied().flatten().map(<[u8]>::to_vec);
        let (now, before) = (id(row), old.and_then(id));
        // An old row is sent if the replica identity changed, and then contains it.
        if (now.is_none() && before.is_none()) || (old.is_some() && before.is_none()) {
            self.lose("a change does not name its row");
            return Ok(());
        }
        let committed_ms = self.transaction.and_then(|(_, ms)| ms);
        let before = before.filter(|before| Some(before) != now.as_ref());
        let ids = before.into_iter().chain(now);
        self.changes.extend(ids.map(|id| Change { id: id.into(), committed_ms }));
        if self.changes.len() >= PIECE {
            self.tell();
        }
        Ok(())
    }

    fn tell(&mut self) {
        if !self.changes.is_empty() {
            let xid = self.transaction.map_or(0, |(xid, _)| xid);
            self.driver.told.add(xid, &self.changes);
            self.feed.changed(&self.changes);
            self.changes.clear();
        }
    }

    fn lose(&mut self, why: &str) {
        if let Some((xid, _)) = self.transaction {
            self.driver.told.add(xid, &[]);
        }
        self.feed.lost(why);
    }
}

impl Postgres {
    /// Forgets what belongs to another database: one that was restored, or a standby that took over.
    fn note_system(&self, identified: &[Vec<Option<String>>]) {
        let row = identified.first().map_or(&[][..], |row| &row[..row.len().min(2)]);
        let system = Some(row.iter().flatten().cloned().collect::<Vec<_>>().join(" "));
        let mut place = place(self);
        if place.system != system {
            self.told.clear();
            *place = Place { system, ..Place::default() };
        }
    }
}

/// Adds what to do if the user must not replicate.
fn with_right(driver: &Postgres, failure: Failure) -> Failure {
    match failure {
        Failure::Refused(why) if why.contains("walsender") || why.contains("WAL sender") => {
            let user = quoted(driver.config.get_user().unwrap_or("postgres"));
            Failure::Refused(format!("{why}. As a user who may, run: ALTER ROLE {user} REPLICATION"))
        }
        other => other,
    }
}

/// The query of each heartbeat, and its connection.
struct Watch {
    client: Client,
    beat: Statement,
}

struct Beat {
    position: u64,
    snapshot: Snapshot,
    identity: String,
}

impl Watch {
    async fn prepare(
        client: Client,
        table: &Table,
        spec: &Spec,
        publication: &str,
    ) -> Result<Watch, Failure> {
        let (snapshot, identity) = (table.snapshot(), table.identity_sql(spec, publication));
        let sql = format!("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8, {snapshot}, {identity}");
        let beat = client.prepare(&sql).await.map_err(failure)?;
        Ok(Watch { client, beat })
    }

    async fn beat(&self) -> Result<Beat, Failure> {
        let row = self.client.query_one(&self.beat, &[]).await.map_err(failure)?;
        let snapshot = Snapshot::parse(value(&row, 1)?);
        let snapshot = snapshot.ok_or_else(|| Failure::Down("the database returned no snapshot".into()))?;
        Ok(Beat { position: value::<i64>(&row, 0)? as u64, snapshot, identity: value(&row, 2)? })
    }

    /// Returns a position, and the transactions in progress after it that still are (R2).
    async fn settle(&self) -> Result<(u64, Vec<u64>), Failure> {
        let began = Instant::now();
        let position = self.beat().await?.position;
        // A snapshot leaves out transactions newer than the newest that ended, so this makes one that ends.
        self.client.query_one("SELECT txid_current()", &[]).await.map_err(failure)?;
        let mut unsettled = self.beat().await?.snapshot.in_progress;
        while !unsettled.is_empty() && began.elapsed() < SETTLE {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = self.beat().await?.snapshot;
            unsettled.retain(|xid| !now.has_ended(*xid));
        }
        Ok((position, unsettled))
    }
}

/// The publication's name.
fn publication(spec: &Spec) -> String {
    let mut name = spec.publication.clone().unwrap_or_else(|| format!("evenkeel_{}", spec.name));
    // The database would cut it too.
    while name.len() > 63 {
        name.pop();
    }
    name
}

/// Quotes text for a command of the replication protocol, which knows no backslashes.
fn literal_plain(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Makes sure that a publication reports all changes of the table.
async fn publish(client: &Client, table: &Table, name: &str) -> Result<(), Failure> {
    let (sql_name, of) = (quoted(name), table.sql_name());
    let root = if table.is_partitioned { " WITH (publish_via_partition_root = true)" } else { "" };
    let found = "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, \
                 coalesce((to_jsonb(p) ->> 'pubviaroot')::bool, false) FROM pg_publication p WHERE pubname = $1";
    let mut row = client.query_opt(found, &[&name]).await.map_err(failure)?;
    if row.is_none() {
        let make = format!("CREATE PUBLICATION {sql_name} FOR TABLE {of}{root}");
        alter(client, &make).await?;
        row = client.query_opt(found, &[&name]).await.map_err(failure)?;
    }
    let Some(row) = row else { return refused(format!("publication {sql_name} was dropped")) };
    if !value(&row, 0)? {
        return refused(format!(
            "publication {sql_name} leaves out some kinds of changes: ALTER PUBLICATION {sql_name} \
             SET (publish = 'insert, update, delete, truncate')"
        ));
    }
    if table.is_partitioned && !value(&row, 1)? {
        return refused(format!(
            "table {of} is partitioned: ALTER PUBLICATION {sql_name} SET (publish_via_partition_root = true)"
        ));
    }
    let member = "SELECT to_jsonb(p) ->> 'rowfilter' FROM pg_publication_tables p \
                  WHERE pubname = $1 AND schemaname = $2 AND tablename = $3";
    let membership = client.query_opt(member, &[&name, &table.schema, &table.name]).await.map_err(failure)?;
    match membership.map(|row| value::<Option<String>>(&row, 0)).transpose()? {
        Some(None) => Ok(()),
        Some(Some(filter)) => refused(format!(
            "publication {sql_name} leaves out rows of {of} (WHERE {filter}): ALTER PUBLICATION {sql_name} SET TABLE {of}"
        )),
        None => alter(client, &format!("ALTER PUBLICATION {sql_name} ADD TABLE {of}")).await,
    }
}

/// Runs a statement that makes the publication right. If that is not allowed, the error says what to run.
async fn alter(client: &Client, sql: &str) -> Result<(), Failure> {
    match client.batch_execute(sql).await {
        // Another server was faster.
        Err(e) if matches!(e.code().map(|code| code.code()), Some("42710" | "23505")) => Ok(()),
        Err(e) => match failure(e) {
            Failure::Refused(why) => refused(format!("{why}. As a user who may, run: {sql}")),
            other => Err(other),
        },
        Ok(()) => Ok(()),
    }
}

/// Finds or makes the slot; returns its name, and the position it is resumed at, if it is (R1).
async fn slot(driver: &Postgres, link: &mut Link) -> Result<(String, Option<u64>), Failure> {
    let limit = driver.spec.connect_timeout;
    let Some(name) = &driver.spec.slot else {
        let name = temporary_name(&driver.spec.name);
        make_slot(link, &name, " TEMPORARY").await?;
        return Ok((name, None));
    };
    let find = format!(
        "SELECT s.plugin, s.database = current_database(), s.active_pid, to_jsonb(s) ->> 'wal_status', \
         s.confirmed_flush_lsn - '0/0' FROM pg_replication_slots s WHERE s.slot_name = {}",
        literal(name)
    );
    let found = within(limit, "looking for the slot", link.query(&find)).await?.into_iter().next();
    let Some(found) = found else {
        make_slot(link, name, "").await?;
        return Ok((name.clone(), None));
    };
    let value = |at: usize| found.get(at).cloned().flatten();
    if value(0).as_deref() != Some("pgoutput") || value(1).as_deref() != Some("t") {
        return refused(format!("slot '{name}' is not one of this database with plugin pgoutput"));
    }
    if let Some(pid) = value(2) {
        return refused(format!(
            "slot '{name}' is in use by process {pid} of the database: each server needs one of its own"
        ));
    }
    let confirmed = value(4).and_then(|position| position.parse::<u64>().ok());
    let Some(confirmed) = confirmed.filter(|_| value(3).as_deref() != Some("lost")) else {
        log::warn!("source {}: slot '{name}' was invalidated and is made anew", driver.spec.name);
        within(limit, "dropping the slot", link.query(&format!("DROP_REPLICATION_SLOT {}", quoted(name))))
            .await?;
        make_slot(link, name, "").await?;
        return Ok((name.clone(), None));
    };
    // A slot that was made anew by another server or user has missed what lies between.
    let position = place(driver).position.filter(|position| confirmed <= *position);
    Ok((name.clone(), position))
}

async fn make_slot(link: &mut Link, name: &str, kind: &str) -> Result<(), Failure> {
    let make = format!("CREATE_REPLICATION_SLOT {}{kind} LOGICAL pgoutput NOEXPORT_SNAPSHOT", quoted(name));
    let made = timeout(SLOT, link.query(&make)).await;
    let waits = "the database makes no replication slot until all older transactions have ended \
                 (pg_stat_activity shows them)";
    made.unwrap_or_else(|_| Err(Failure::Down(waits.into()))).map(|_| ())
}

/// A name that no other server uses: small letters, digits, _.
fn temporary_name(source: &str) -> String {
    use std::hash::{BuildHasher, RandomState};
    let plain =
        source.bytes().map(|b| if b.is_ascii_alphanumeric() { b.to_ascii_lowercase() as char } else { '_' });
    let plain: String = plain.take(30).collect();
    format!("evenkeel_{plain}_{:016x}", RandomState::new().hash_one(std::process::id()))
}
