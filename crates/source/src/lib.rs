//! Databases that are read through: rows by id, and a feed of changes. Knows no keyspace.
//!
//! ```text
//! misses ──► Hub: one thread with the drivers ──► Database::load ──► rows ──► Cache::loaded
//!            (one load per id, batches)           Database::follow ─► Feed ──► Cache::changed
//! ```
//!
//! - D1: a load that begins after [`Feed::changed`] was called reads rows that contain that change. Each
//!   driver guarantees this for its database. The cache adds: a row is kept only if no change of its id was
//!   reported since its load began. Together they exclude that an old row is kept after the news of a newer
//!   one.
//! - D2: a driver whose feed may have missed something says so ([`Feed::opened`] with [`Since::Unknown`],
//!   [`Feed::lost`]). Then everything kept of its source is dropped.
//! - D3: an id has one spelling ([`Database::accepts`]); another spelling names no row. So news of a row
//!   meets it under the one key it can be kept under.
#![deny(unsafe_code)]

pub mod demo;
mod files;
pub mod hub;
mod json;
mod marks;
#[cfg(feature = "mongodb")]
mod mongodb;
#[cfg(not(feature = "mongodb"))]
mod no_mongodb;
mod postgres;
mod sqlite;
#[cfg(test)]
mod testing;

pub use hub::{Hub, Source};
pub use mapping::{Form, Id, IdType, Pattern, Spec, Writes};
pub use marks::Marks;

#[cfg(not(feature = "mongodb"))]
use no_mongodb as mongodb;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub type Task<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The body of a row, in the form its source asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// One JSON object.
    Json(Vec<u8>),
    /// Columns and their values as text; null columns are left out.
    Fields(Vec<(Vec<u8>, Vec<u8>)>),
    /// The row exists and cannot be read: the reason. Clients that ask for it get an error.
    Unreadable(String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    pub id: Id,
    pub body: Body,
    /// When it was last changed, in milliseconds since 1970, if the source names a column for that.
    pub modified_ms: Option<u64>,
}

/// Why a database did not do what it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The database cannot be reached, or the connection broke.
    Down(String),
    /// The database took longer than the source allows.
    Slow,
    /// The database was reached, but a table, a column, a publication or a right is missing. The text says
    /// what to do.
    Refused(String),
    /// The feed cannot go on where it was.
    Lost(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Down(why) => write!(f, "database is down: {why}"),
            Failure::Slow => f.write_str("database did not answer in time"),
            Failure::Refused(why) => write!(f, "database refused: {why}"),
            Failure::Lost(why) => write!(f, "change feed cannot be resumed: {why}"),
        }
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// The same, without what is secret in the source's url.
    fn told(self, spec: &Spec) -> Failure {
        match self {
            Failure::Down(why) => Failure::Down(spec.told(&why)),
            Failure::Slow => Failure::Slow,
            Failure::Refused(why) => Failure::Refused(spec.told(&why)),
            Failure::Lost(why) => Failure::Lost(spec.told(&why)),
        }
    }
}

/// Where a feed begins to report changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// Where it broke off: nothing was missed.
    Resumed,
    /// Now. Earlier changes are unknown.
    Unknown,
}

/// A row was inserted, updated or removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    pub id: Id,
    /// Commit time of its transaction by the database's clock, in milliseconds since 1970; for measuring the
    /// lag.
    pub committed_ms: Option<u64>,
}

/// The receiver of changes. Its functions must return at once.
pub trait Feed: Send + Sync {
    /// The feed is open: every change from now on will be reported.
    fn opened(&self, since: Since);
    /// These rows changed, in the order of their commits. A load that begins after this call began must
    /// contain them (D1).
    fn changed(&self, changes: &[Change]);
    /// All rows may have changed (TRUNCATE, another table under the name …).
    fn lost(&self, why: &str);
    /// Everything that happened up to now was reported: a heartbeat, for measuring the lag.
    fn caught_up(&self);
}

/// A database with one table or collection. Each kind of database implements this.
pub trait Database: Send + Sync {
    /// Whether text is an id in its one spelling (D3). No I/O.
    fn accepts(&self, id: &[u8]) -> bool;

    /// Reads the rows with these ids, in any order, without those that do not exist. `ids` are accepted ones,
    /// each once. Cost: a round trip per call.
    fn load<'a>(&'a self, ids: &'a [Id]) -> Task<'a, Result<Vec<Row>, Failure>>;

    /// Follows the changes until that fails, and returns why. May be called again, and then resumes if it
    /// can.
    fn follow<'a>(&'a self, feed: &'a dyn Feed) -> Task<'a, Failure>;
}

/// Makes the driver of a kind of database; checks what can be checked without asking the database.
type Open = fn(&Spec) -> Result<Arc<dyn Database>, String>;

/// The kinds of databases, by the scheme of their urls; each driver adds its rows here.
const KINDS: &[(&str, Open)] = &[
    ("mongodb", mongodb::open),
    ("mongodb+srv", mongodb::open),
    ("postgres", postgres::open),
    ("postgresql", postgres::open),
    ("sqlite", sqlite::open),
];

/// Makes the driver for a source; nothing is connected yet. Must be called on the runtime its futures will
/// run on. Errors: an unknown scheme, and those of the driver.
pub fn open(spec: &Spec) -> Result<Arc<dyn Database>, String> {
    let scheme = spec.url.split_once(':').map_or("", |(scheme, _)| scheme);
    match KINDS.iter().find(|(name, _)| *name == scheme) {
        Some((_, open)) => open(spec).map_err(|error| spec.told(&error)),
        None => {
            let names: Vec<_> = KINDS.iter().map(|(name, _)| format!("{name}:")).collect();
            Err(format!("url '{}' must begin with one of {}", spec.shown_url(), names.join(" ")))
        }
    }
}
