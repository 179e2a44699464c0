//! SQLite: rows by id from `pool` read connections, changes from a table that triggers write.
//!
//! ```text
//! load ──► one queue ──► `pool` threads, each with a connection ──► a transaction per batch, a lookup per id
//! follow ◄── thread with a connection: PRAGMA data_version, then the new entries (changelog.rs)
//! ```
//!
//! - Q1: a batch is read in a transaction that begins after `load` was called. In both journal modes a read
//!   begins at the newest commit. So the rows contain everything that this process saw committed, whatever
//!   process committed it, and in particular what the follower read from the changelog (D1).
//! - Q2: the id column has a unique index of its own, so a lookup finds at most one row, in O(log rows).
//! - Q3: a row is given out only if its own id is spelled like the one asked for. A column that compares
//!   without case would find the row of `abc` under `ABC`. News of its changes would not meet that key (D3).
//!
//! In JSON, integers, reals, text and null keep their types; a blob is a string of hexadecimal digits. In a
//! hash a blob is its bytes. Infinite reals are null in JSON. Ids of `id-type uuid` are text in small
//! letters.
//!
//! In rollback-journal mode a reader keeps writers from committing while it reads. Applications need a busy
//! timeout there, or WAL mode, in which readers and writers do not meet.

mod changelog;
mod unique;

use crate::files;
use crate::json;
use crate::{Body, Database, Failure, Feed, Form, Id, IdType, Row, Spec, Task};
use mapping::spelling::{self, Known};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use unique::{UniqueIndex, Unknown, quoted};

/// Steps of SQLite's virtual machine between two looks at the clock.
const STEPS: i32 = 1000;

/// The parts of a source's definition that the threads need.
struct Plan {
    path: PathBuf,
    table: String,
    id: String,
    id_type: IdType,
    columns: Option<Vec<String>>,
    modified: Option<String>,
    form: Form,
    connect_timeout: Duration,
}

struct Shared {
    plan: Plan,
    known: Known,
    /// Number of times that another file was found under the path. Connections opened earlier are of no use.
    replaced: AtomicU64,
}

impl Shared {
    fn new(spec: &Spec) -> Result<Shared, String> {
        let plan = Plan {
            path: path(&spec.url)?,
            table: spec.table.clone(),
            id: spec.id.clone().unwrap_or_else(|| "id".into()),
            id_type: spec.id_type,
            columns: spec.columns.clone(),
            modified: spec.modified.clone(),
            form: spec.form,
            connect_timeout: spec.connect_timeout,
        };
        Ok(Shared { plan, known: Known::new(spec.id_type), replaced: AtomicU64::new(0) })
    }
}

struct Job {
    ids: Vec<Id>,
    deadline: Instant,
    reply: oneshot::Sender<Result<Vec<Row>, Failure>>,
}

struct Sqlite {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
    timeout: Duration,
    /// How far the changelog was reported.
    position: Mutex<Option<changelog::Position>>,
}

/// Starts the threads; the file is opened with the first load. Errors: a wrong url, an id type that SQLite
/// has not, a thread that cannot start.
pub(crate) fn open(spec: &Spec) -> Result<Arc<dyn Database>, String> {
    if spec.id_type == IdType::ObjectId {
        return Err("SQLite has no ids of type objectid".into());
    }
    let shared = Arc::new(Shared::new(spec)?);
    let (jobs, queue) = mpsc::channel();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..spec.pool {
        let (shared, queue) = (shared.clone(), queue.clone());
        let started =
            std::thread::Builder::new().name("sqlite-load".into()).spawn(move || serve(&shared, &queue));
        started.map_err(|e| format!("cannot start a thread: {e}"))?;
    }
    Ok(Arc::new(Sqlite { shared, jobs, timeout: spec.timeout, position: Mutex::new(None) }))
}

impl Plan {
    /// The path by which the file may be opened now, and whether it must not be a link. Errors: `source-dirs`
    /// does not admit it.
    fn admitted(&self) -> Result<(PathBuf, bool), Failure> {
        files::admitted(&self.path).map_err(|why| Failure::Refused(format!("{}: {why}", self.path.display())))
    }
}

/// The path in `sqlite:path` or `sqlite:///absolute`.
fn path(url: &str) -> Result<PathBuf, String> {
    let rest = url.strip_prefix("sqlite:").unwrap_or(url);
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => return Err(format!("url '{url}' must be sqlite:path or sqlite:///path")),
        None => rest,
    };
    match path {
        "" => Err(format!("url '{url}' names no file")),
        ":memory:" => Err("a database in memory belongs to one connection: name a file".into()),
        // To SQLite a text that begins so would be a url.
        path if path.starts_with("file:") => Ok(PathBuf::from("./").join(path)),
        path => Ok(path.into()),
    }
}

impl Database for Sqlite {
    fn accepts(&self, id: &[u8]) -> bool {
        self.shared.known.accepts(id)
    }

    /// Cost: two hand-overs between threads, and a lookup per id.
    fn load<'a>(&'a self, ids: &'a [Id]) -> Task<'a, Result<Vec<Row>, Failure>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let deadline = Instant::now() + self.timeout;
            let ended = || Failure::Down("the driver's threads have ended".into());
            self.jobs.send(Job { ids: ids.to_vec(), deadline, reply }).map_err(|_| ended())?;
            match tokio::time::timeout_at(deadline.into(), answer).await {
                Ok(answer) => answer.unwrap_or_else(|_| Err(ended())),
                Err(_) => Err(Failure::Slow),
            }
        })
    }

    fn follow<'a>(&'a self, feed: &'a dyn Feed) -> Task<'a, Failure> {
        Box::pin(changelog::follow(&self.shared, &self.position, feed))
    }
}

/// Serves loads on a thread of the pool until the driver is dropped.
fn serve(shared: &Shared, queue: &Mutex<mpsc::Receiver<Job>>) {
    let mut reader: Option<Reader> = None;
    loop {
        let next = queue.lock().unwrap_or_else(|e| e.into_inner()).recv();
        let Ok(job) = next else { return };
        if job.reply.is_closed() {
            continue;
        }
        let replaced = shared.replaced.load(Ordering::SeqCst);
        let usable = reader.take().filter(|reader| reader.replaced == replaced);
        let opened = usable.map_or_else(|| Reader::open(shared, replaced), Ok);
        let result = opened.and_then(|opened| {
            let rows = opened.rows(shared, &job.ids, job.deadline);
            // A connection that failed, other than by being late, is not used again.
            reader = Some(opened).filter(|_| matches!(rows, Ok(_) | Err(Failure::Slow)));
            rows
        });
        let _ = job.reply.send(result);
    }
}

/// A connection that loads.
struct Reader {
    connection: Connection,
    select: String,
    /// When the running statement is given up, in microseconds after `epoch`.
    deadline_us: Arc<AtomicU64>,
    epoch: Instant,
    replaced: u64,
}

impl Reader {
    fn open(shared: &Shared, replaced: u64) -> Result<Reader, Failure> {
        let plan = &shared.plan;
        let connection = connect(plan)?;
        let table = Table::inspect(&connection, plan)?;
        shared.known.set(table.id_type);
        connection.execute_batch("PRAGMA query_only = 1").map_err(failure)?;
        let (epoch, deadline_us) = (Instant::now(), Arc::new(AtomicU64::new(u64::MAX)));
        let until = deadline_us.clone();
        let late = move || epoch.elapsed().as_micros() as u64 > until.load(Ordering::Relaxed);
        connection.progress_handler(STEPS, Some(late)).map_err(failure)?;
        Ok(Reader { connection, select: select(plan), deadline_us, epoch, replaced })
    }

    /// Reads the rows with these ids, as of one moment after the call (Q1).
    fn rows(&self, shared: &Shared, ids: &[Id], deadline: Instant) -> Result<Vec<Row>, Failure> {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(Failure::Slow);
        }
        let until = deadline.saturating_duration_since(self.epoch).as_micros() as u64;
        self.deadline_us.store(until, Ordering::Relaxed);
        self.connection.busy_timeout(remaining).map_err(failure)?;
        let _transaction = self.connection.unchecked_transaction().map_err(failure)?;
        let mut statement = self.connection.prepare_cached(&self.select).map_err(failure)?;
        let (form, id_type) = (shared.plan.form, shared.known.get());
        let mut rows = Vec::with_capacity(ids.len());
        for id in ids {
            let mut found = match (id_type, spelling::integer(id), spelling::text(id)) {
                (IdType::Integer, Some(n), _) => statement.query([n]),
                (IdType::Text | IdType::Uuid, _, Some(text)) => statement.query([text]),
                _ => continue,
            }
            .map_err(failure)?;
            if let Some(row) = found.next().map_err(failure)? {
                rows.extend(read(row, id, form).map_err(failure)?);
            }
        }
        Ok(rows)
    }
}

/// Connects for reading and writing if the file may be written, else for reading. Never creates a file.
fn connect(plan: &Plan) -> Result<Connection, Failure> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let (path, is_bound) = plan.admitted()?;
    // The file is the one that was looked at, not a link that took its place.
    flags.set(OpenFlags::SQLITE_OPEN_NOFOLLOW, is_bound);
    let connection = Connection::open_with_flags(&path, flags)
        .map_err(|e| Failure::Down(format!("{}: {}", plan.path.display(), text_of(&e))))?;
    connection.busy_timeout(plan.connect_timeout).map_err(failure)?;
    Ok(connection)
}

/// The statement of a load: id, time of change, then the columns. They are qualified, because SQLite takes an
/// unknown quoted name for text.
fn select(plan: &Plan) -> String {
    let column = |name: &String| format!("t.{}", quoted(name));
    let columns = match &plan.columns {
        Some(names) => names.iter().map(column).collect::<Vec<_>>().join(", "),
        None => "t.*".into(),
    };
    let modified = plan.modified.as_ref().map_or_else(|| "NULL".into(), |name| milliseconds(&column(name)));
    let (id, table) = (column(&plan.id), quoted(&plan.table));
    format!("SELECT {id}, {modified}, {columns} FROM {table} AS t WHERE {id} = ?1")
}

/// The SQL for a column as milliseconds since 1970. Integers are milliseconds or, small ones, seconds. Reals
/// are seconds or, small ones, days of the Julian calendar. Text is any time that SQLite can read.
fn milliseconds(column: &str) -> String {
    format!(
        "CASE typeof({column}) WHEN 'integer' THEN iif({column} > 100000000000, {column}, {column} * 1000) \
         WHEN 'real' THEN CAST(iif({column} > 10000000.0, {column} * 1000.0, ({column} - 2440587.5) * 86400000.0) AS INTEGER) \
         WHEN 'text' THEN CAST(round((julianday({column}) - 2440587.5) * 86400000.0) AS INTEGER) END"
    )
}

/// Reads one row, if its id is spelled like the one asked for (Q3).
fn read(row: &rusqlite::Row<'_>, asked: &Id, form: Form) -> rusqlite::Result<Option<Row>> {
    if spelled(row.get_ref(0)?).as_deref() != Some(asked) {
        return Ok(None);
    }
    let modified_ms = row.get::<_, Option<i64>>(1).unwrap_or(None).and_then(|ms| u64::try_from(ms).ok());
    let statement = row.as_ref();
    let columns = (2..statement.column_count()).map(|at| Ok((statement.column_name(at)?, row.get_ref(at)?)));
    let body = match form {
        Form::Json => Body::Json(object(columns)?),
        Form::Hash => Body::Fields(fields(columns)?),
    };
    Ok(Some(Row { id: asked.clone(), body, modified_ms }))
}

/// An id as it stands in a key; None for values that cannot be one.
fn spelled(value: ValueRef<'_>) -> Option<Id> {
    match value {
        ValueRef::Integer(n) => Some(n.to_string().into_bytes().into()),
        ValueRef::Text(text) => Some(text.into()),
        _ => None,
    }
}

type Column<'a> = rusqlite::Result<(&'a str, ValueRef<'a>)>;

fn object<'a>(columns: impl Iterator<Item = Column<'a>>) -> rusqlite::Result<Vec<u8>> {
    let mut out = vec![b'{'];
    for column in columns {
        let (name, value) = column?;
        if out.len() > 1 {
            out.push(b',');
        }
        json::text(&mut out, name);
        out.push(b':');
        match value {
            ValueRef::Null => out.extend(b"null"),
            ValueRef::Integer(n) => out.extend(n.to_string().into_bytes()),
            ValueRef::Real(x) if x.is_finite() => out.extend(format!("{x:?}").into_bytes()),
            ValueRef::Real(_) => out.extend(b"null"),
            ValueRef::Text(text) => json::text(&mut out, &String::from_utf8_lossy(text)),
            ValueRef::Blob(bytes) => json::bytes(&mut out, bytes),
        }
    }
    out.push(b'}');
    Ok(out)
}

fn fields<'a>(columns: impl Iterator<Item = Column<'a>>) -> rusqlite::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut fields = Vec::new();
    for column in columns {
        let (name, value) = column?;
        let value = match value {
            ValueRef::Null => continue,
            ValueRef::Integer(n) => n.to_string().into_bytes(),
            ValueRef::Real(x) => format!("{x:?}").into_bytes(),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
        };
        fields.push((name.as_bytes().to_vec(), value));
    }
    Ok(fields)
}

/// A table as the schema describes it.
struct Table {
    id_type: IdType,
    /// Its root page and its text in the schema. If they differ, it is another table.
    identity: String,
    columns: Vec<String>,
    /// Its unique indexes. The index of the ids is left out where equal ids are spelled alike.
    unique: Vec<UniqueIndex>,
}

impl Table {
    fn inspect(connection: &Connection, plan: &Plan) -> Result<Table, Failure> {
        let refused = |why: String| Err(Failure::Refused(why));
        let (table, file) = (&plan.table, plan.path.display());
        let found = connection.query_row(
            "SELECT type, coalesce(sql, ''), rootpage FROM sqlite_master \
             WHERE name = ?1 COLLATE NOCASE AND type IN ('table', 'view')",
            [table],
            |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(2)?)),
        );
        let (kind, sql, root) = match found {
            Err(rusqlite::Error::QueryReturnedNoRows) => {
                return refused(format!("there is no table '{table}' in {file}"));
            }
            found => found.map_err(failure)?,
        };
        if kind == "view" {
            return refused(format!("'{table}' is a view: its changes cannot be followed"));
        }
        let columns =
            pairs(connection, "SELECT name, type FROM pragma_table_xinfo(?1) WHERE hidden <> 1", table)?;
        let asked = [&plan.id].into_iter().chain(plan.columns.iter().flatten()).chain(&plan.modified);
        for name in asked {
            if !columns.iter().any(|(column, _)| column.eq_ignore_ascii_case(name)) {
                let names: Vec<_> = columns.into_iter().map(|(name, _)| name).collect();
                return refused(format!(
                    "table '{table}' has no column '{name}' (it has {})",
                    names.join(", ")
                ));
            }
        }
        let declared = columns.iter().find(|(name, _)| name.eq_ignore_ascii_case(&plan.id));
        let declared = declared.map_or("", |(_, declared)| declared);
        let mut unique = unique::unique(connection, table).map_err(|unknown| match unknown {
            Unknown::Sqlite(error) => failure(error),
            Unknown::Text(index) => {
                Failure::Refused(format!("the definition of index '{index}' is not understood"))
            }
        })?;
        let has_ids = unique.iter().any(|index| index.is_of(&plan.id));
        // Without these affinities 1.0 equals 1, and has another spelling.
        let is_exact = is_integer(declared) || is_text(declared);
        unique.retain(|index| !(index.is_of(&plan.id) && index.is_plain() && is_exact));
        if !has_ids {
            let (name, id) = (quoted(table), quoted(&plan.id));
            return refused(format!(
                "column '{}' has no unique index: CREATE UNIQUE INDEX … ON {name} ({id})",
                plan.id
            ));
        }
        let id_type = id_type(plan, declared)?;
        let columns = columns.into_iter().map(|(name, _)| name).collect();
        Ok(Table { id_type, identity: format!("{root} {sql}"), columns, unique })
    }
}

/// The type of the ids: as configured, else by the affinity of the declared type.
fn id_type(plan: &Plan, declared: &str) -> Result<IdType, Failure> {
    if plan.id_type != IdType::Auto {
        return Ok(plan.id_type);
    }
    match () {
        _ if is_integer(declared) => Ok(IdType::Integer),
        _ if is_text(declared) => Ok(IdType::Text),
        _ if has(declared, &["UUID", "GUID"]) => Ok(IdType::Uuid),
        _ => Err(Failure::Refused(format!(
            "column '{}' is declared as '{declared}': set id-type to integer, text or uuid",
            plan.id
        ))),
    }
}

/// Whether a column declared like this has integer affinity; the next function: text affinity.
fn is_integer(declared: &str) -> bool {
    has(declared, &["INT"])
}

fn is_text(declared: &str) -> bool {
    !is_integer(declared) && has(declared, &["CHAR", "CLOB", "TEXT"])
}

fn has(declared: &str, words: &[&str]) -> bool {
    let declared = declared.to_ascii_uppercase();
    words.iter().any(|word| declared.contains(word))
}

fn pairs(connection: &Connection, sql: &str, table: &str) -> Result<Vec<(String, String)>, Failure> {
    let mut statement = connection.prepare(sql).map_err(failure)?;
    let rows = statement.query_map([table], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failure)?;
    rows.collect::<Result<_, _>>().map_err(failure)
}

fn failure(error: rusqlite::Error) -> Failure {
    use ErrorCode::*;
    let text = text_of(&error);
    match error.sqlite_error_code() {
        Some(OperationInterrupted | DatabaseBusy | DatabaseLocked) => Failure::Slow,
        Some(Unknown | ReadOnly | PermissionDenied | AuthorizationForStatementDenied | NotADatabase) => {
            Failure::Refused(text)
        }
        _ => Failure::Down(text),
    }
}

fn text_of(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(text)) => text.clone(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
