//! A source of the server: its place, its counters, and the lifetime of its rows.

use super::removals::Removals;
use super::shelf::Shelf;
use super::sizing::Sizing;
use keyspace::Keyspace;
use source::{Source, Spec};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Counters of clients' requests, relaxed.
#[derive(Default)]
pub struct Seen {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    /// Requests answered from the knowledge that there is no row.
    pub negative_hits: AtomicU64,
    /// Items given out after their time, because the database was down.
    pub stale: AtomicU64,
    /// Requests answered with an error.
    pub errors: AtomicU64,
    /// Items removed because their row changed.
    pub invalidated: AtomicU64,
    /// Invalidated items whose rows were loaded again at once, as they were in use.
    pub refreshed: AtomicU64,
    /// Rows not kept because they changed while they were loaded (Z2).
    pub refused: AtomicU64,
    /// Time from the commit of a change to its item's removal, in milliseconds: the last and the longest.
    pub lag_ms: AtomicU64,
    pub lag_max_ms: AtomicU64,
}

/// The place of a source: its rows' database, and a number of its own, for the database may be another
/// source's later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowPlace {
    pub db: usize,
    pub(super) number: u64,
}

/// A source and its place.
pub struct Entry {
    pub source: Arc<Source>,
    /// The database of its rows. The one behind it has the ids without a row.
    pub db: usize,
    pub(super) number: u64,
    /// The server made it by itself, so it is in no configuration.
    pub(super) is_own: bool,
    /// Told changes whose items are not removed yet.
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

    /// The database of the ids without a row.
    pub fn absent_db(&self) -> usize {
        self.db + 1
    }

    pub(super) fn shelf(&self) -> Shelf {
        Shelf { rows: self.db, absent: self.absent_db() }
    }

    /// Bytes of its items, as counted for its budget.
    pub fn bytes(&self, keyspace: &Keyspace) -> u64 {
        let of = |db| keyspace.entry_bytes(db);
        let (rows, absent) = (of(self.db), of(self.absent_db()));
        rows.0 + rows.1 + absent.0 + absent.1
    }

    /// The expiry of an item that is installed now. It is the time to live, less a part that depends on the
    /// key alone, and the time for which it may be given out after that.
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

    /// The age of an item with this expiry. While the feed cannot be followed, its time ends `blind` after
    /// its load.
    #[inline]
    pub(super) fn age(&self, key: &[u8], expire_ms: Option<u64>, now_ms: u64) -> Age {
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

/// The age of an item in relation to its time to live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Age {
    Fresh,
    /// Past its time; given out if the database is down.
    Stale,
    /// Useless.
    Over,
}
