//! PostgreSQL: rows by id over pipelined connections, changes by logical replication.
//!
//! ```text
//! load ─► one of `pool` connections ──► SELECT snapshot UNION ALL SELECT … ──► sees all reports? ─ no: again
//! follow ─► link.rs: START_REPLICATION … ──► pgoutput.rs ──► told.rs, then Feed::changed      (feed.rs)
//!       └─► another connection, twice a second: how far the log is, and whether the table is still the same
//! ```
//!
//! - P1: rows are read together with the snapshot they are seen in. They are read again until the snapshot
//!   contains every change of their ids that was reported before the load began (told.rs); so D1 holds.
//! - P2: the id column has a unique index of its own and is part of the replica identity, so every update and
//!   delete names it.
//! - P3: a row is given out only if its own id is spelled like the one asked for (D3).
//!
//! Values are what the database makes of a row as JSON. In a hash, text is itself, numbers and booleans are
//! as in JSON, arrays and objects are JSON, and nulls are left out. The session's time zone is UTC.
//!
//! TLS is configured as in libpq (tls.rs). The url names one host, the primary: a standby's rows are older
//! than the feed.
//!
//! Cost: a round trip per load. Batches on one connection do not wait for each other's answers.

mod feed;
mod link;
mod pgoutput;
mod table;
mod tls;
mod told;

use self::tls::Tls;
use crate::{Body, Database, Failure, Feed, Form, Id, IdType, Row, Spec, Task};
use mapping::spelling::Known;
use std::collections::HashSet;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use table::Table;
use tokio::sync::Mutex as Turn;
use tokio::time::Instant;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, Config, NoTls, Statement};
use told::{Entry, Snapshot, Told};

/// Shortest and longest time between two tries to see what was reported.
const AGAIN_MIN: Duration = Duration::from_micros(200);
const AGAIN_MAX: Duration = Duration::from_millis(10);

struct Postgres {
    spec: Spec,
    config: Config,
    tls: Tls,
    known: Known,
    told: Told,
    pool: Vec<Turn<Option<Arc<Session>>>>,
    next: AtomicUsize,
    place: Mutex<feed::Place>,
}

/// Makes the driver from the url; nothing is connected. Errors: a url that is wrong or names several hosts,
/// wrong TLS files.
pub(crate) fn open(spec: &Spec) -> Result<Arc<dyn Database>, String> {
    Ok(Arc::new(Postgres::new(spec)?))
}

impl Postgres {
    fn new(spec: &Spec) -> Result<Postgres, String> {
        let (url, tls) = Tls::of(&spec.url)?;
        let mut config = Config::from_str(&url).map_err(|e| format!("url: {}", chain(&e)))?;
        match (config.get_hosts().len(), config.get_hostaddrs().len()) {
            (0, 0) => return Err("the url names no host".into()),
            (0..2, 0..2) => {}
            _ => return Err("the url names several hosts: name the primary".into()),
        }
        if spec.id_type == IdType::ObjectId {
            return Err("PostgreSQL has no ids of type objectid".into());
        }
        if config.get_user().is_none() {
            config.user("postgres");
        }
        let by_socket = matches!(config.get_hosts(), [Host::Unix(_)]) && config.get_hostaddrs().is_empty();
        config.ssl_mode(if by_socket { SslMode::Disable } else { tls.mode });
        config.application_name(config.get_application_name().unwrap_or("evenkeel").to_owned());
        config.connect_timeout(spec.connect_timeout);
        // A peer that is gone is noticed; a slow one is not mistaken for it.
        config
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(2))
            .keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(10));
        Ok(Postgres {
            config,
            tls,
            known: Known::new(spec.id_type),
            told: Told::default(),
            pool: (0..spec.pool).map(|_| Turn::default()).collect(),
            next: AtomicUsize::new(0),
            place: Mutex::default(),
            spec: spec.clone(),
        })
    }

    /// Makes a connection for anything but replication, and reads its table.
    async fn connect(&self) -> Result<(Client, Table), Failure> {
        let connecting = async {
            // The spawned task ends with its client, or reports the connection's end to it.
            let client = match self.tls.connector() {
                None => {
                    let (client, connection) = self.config.connect(NoTls).await.map_err(failure)?;
                    tokio::spawn(connection);
                    client
                }
                Some(tls) => {
                    let (client, connection) = self.config.connect(tls).await.map_err(failure)?;
                    tokio::spawn(connection);
                    client
                }
            };
            client
                .batch_execute("SET timezone = 'UTC'; SET client_encoding = 'UTF8'")
                .await
                .map_err(failure)?;
            let table = Table::inspect(&client, &self.spec).await?;
            Ok((client, table))
        };
        let result = tokio::time::timeout(self.spec.connect_timeout, connecting).await;
        let (client, table) =
            result.unwrap_or_else(|_| Err(Failure::Down("cannot connect in time".into())))?;
        self.known.set(table.id_type);
        Ok((client, table))
    }

    /// The next connection of the pool, made if needed, and its index.
    async fn session(&self) -> Result<(Arc<Session>, usize), Failure> {
        let nr = self.next.fetch_add(1, Ordering::Relaxed) % self.pool.len();
        let mut place = self.pool[nr].lock().await;
        if let Some(session) = place.as_ref().filter(|session| !session.client.is_closed()) {
            return Ok((session.clone(), nr));
        }
        let (client, table) = self.connect().await?;
        // The database gives up first, so that the connection stays usable.
        let limit = (self.spec.timeout.as_millis() as u64 * 9 / 10).max(1);
        let settings = format!(
            "SET statement_timeout = {limit}; SELECT set_config(name, 'force_generic_plan', false) \
             FROM pg_settings WHERE name = 'plan_cache_mode'"
        );
        // A lookup by a unique index needs one plan; planning would take longer than the lookup.
        client.batch_execute(&settings).await.map_err(failure)?;
        let select = client.prepare(&table.select(&self.spec)).await.map_err(failure)?;
        let session = Arc::new(Session { client, select });
        *place = Some(session.clone());
        Ok((session, nr))
    }

    /// Drops a failed connection from the pool, unless another load has done so.
    async fn discard(&self, session: &Arc<Session>, nr: usize) {
        let mut place = self.pool[nr].lock().await;
        if place.as_ref().is_some_and(|current| Arc::ptr_eq(current, session)) {
            *place = None;
        }
    }

    /// Reads the rows until they contain all that was reported (P1).
    async fn rows(&self, ids: &[Id], told: &[Arc<Entry>]) -> Result<Vec<Row>, Failure> {
        let mut pause = AGAIN_MIN;
        let mut retried = false;
        loop {
            let (session, nr) = self.session().await?;
            // A slow database reports it before this time; silence may mean a broken line.
            let silence = self.spec.timeout * 19 / 20;
            let asked = session.rows(ids, &self.known, self.spec.form);
            let found = match tokio::time::timeout(silence, asked).await {
                Ok(found) => found,
                Err(_) => {
                    self.discard(&session, nr).await;
                    return Err(Failure::Slow);
                }
            };
            match found {
                Ok((rows, snapshot)) => {
                    self.told.seen(&snapshot);
                    if snapshot.sees_all(told, ids) {
                        return Ok(rows);
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(AGAIN_MAX);
                }
                Err(Failure::Slow) => return Err(Failure::Slow),
                Err(failure) => {
                    self.discard(&session, nr).await;
                    // A connection that lay idle through a restart of the database is replaced without an
                    // error.
                    if retried || !matches!(failure, Failure::Down(_)) {
                        return Err(failure);
                    }
                    retried = true;
                }
            }
        }
    }
}

impl Database for Postgres {
    fn accepts(&self, id: &[u8]) -> bool {
        self.known.accepts(id)
    }

    /// Cost: a round trip; more while a reported transaction is not visible yet.
    fn load<'a>(&'a self, ids: &'a [Id]) -> Task<'a, Result<Vec<Row>, Failure>> {
        Box::pin(async move {
            let told = self.told.now();
            let deadline = Instant::now() + self.spec.timeout;
            match tokio::time::timeout_at(deadline, self.rows(ids, &told)).await {
                Ok(result) => result,
                Err(_) => Err(Failure::Slow),
            }
        })
    }

    fn follow<'a>(&'a self, feed: &'a dyn Feed) -> Task<'a, Failure> {
        Box::pin(feed::follow(self, feed))
    }
}

/// A connection that loads.
struct Session {
    client: Client,
    select: Statement,
}

impl Session {
    async fn rows(&self, ids: &[Id], known: &Known, form: Form) -> Result<(Vec<Row>, Snapshot), Failure> {
        let accepted = ids.iter().filter(|id| known.accepts(id));
        let asked: Vec<&str> = accepted.filter_map(|id| std::str::from_utf8(id).ok()).collect();
        let found = self.client.query(&self.select, &[&asked]).await.map_err(failure)?;
        // Only text can equal another text in the database and yet be another key.
        let same: Option<HashSet<&str>> =
            (known.get() == IdType::Text).then(|| asked.iter().copied().collect());
        let mut snapshot = None;
        let mut rows = Vec::with_capacity(found.len().saturating_sub(1));
        for row in &found {
            let (id, body): (Option<&str>, &str) = (value(row, 0)?, value(row, 1)?);
            match id {
                None => snapshot = Snapshot::parse(body),
                Some(id) if same.as_ref().is_some_and(|same| !same.contains(id)) => {}
                Some(id) => {
                    let modified: Option<i64> = value(row, 2)?;
                    let modified_ms = modified.and_then(|ms| u64::try_from(ms).ok());
                    rows.push(Row { id: id.as_bytes().into(), body: body_of(body, form), modified_ms });
                }
            }
        }
        let snapshot = snapshot.ok_or_else(|| Failure::Down("the database returned no snapshot".into()))?;
        Ok((rows, snapshot))
    }
}

/// Reads a value of a row. Errors: it is not of type `T`, since the peer need not be a real PostgreSQL.
fn value<'a, T: FromSql<'a>>(row: &'a tokio_postgres::Row, at: usize) -> Result<T, Failure> {
    row.try_get(at).map_err(|e| Failure::Refused(chain(&e)))
}

fn body_of(json: &str, form: Form) -> Body {
    match form {
        Form::Json => Body::Json(json.as_bytes().to_vec()),
        Form::Hash => Body::Fields(fields(json)),
    }
}

/// Reads `[[name, text], …]`.
fn fields(json: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs: Vec<(String, Option<String>)> = serde_json::from_str(json).unwrap_or_default();
    let set = pairs.into_iter().filter_map(|(name, value)| Some((name.into_bytes(), value?.into_bytes())));
    set.collect()
}

/// Classifies a database's error by its code:
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>
fn failure_of(code: &str, text: String) -> Failure {
    match code {
        // Cancelled by the time limit, or waited too long for a lock.
        "57014" | "55P03" => Failure::Slow,
        _ if ["0A", "22", "28", "3D", "3F", "42", "55"].contains(&code.get(..2).unwrap_or("")) => {
            Failure::Refused(text)
        }
        _ => Failure::Down(text),
    }
}

fn failure(error: tokio_postgres::Error) -> Failure {
    match error.as_db_error() {
        Some(db) => {
            let hint = db.hint().map_or_else(String::new, |hint| format!(" ({hint})"));
            failure_of(db.code().code(), format!("{}{hint}", db.message()))
        }
        None => match chain(&error) {
            text if ["password", "authentication", "certificate"].iter().any(|word| text.contains(word)) => {
                Failure::Refused(text)
            }
            text => Failure::Down(text),
        },
    }
}

/// The texts of an error and of its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn password_of(config: &Config) -> Result<&[u8], Failure> {
    config
        .get_password()
        .ok_or_else(|| Failure::Refused("the database asks for a password, but the url has none".into()))
}

/// Quotes a name for SQL.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes text for SQL.
fn literal(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\'', "''");
    format!("E'{escaped}'")
}

#[cfg(test)]
mod tests;
