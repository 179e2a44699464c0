//! WATCH of rows: EXEC is refused if a change of the row was told since, or its cached state differs.
//!
//! - H1: a change counts from its telling to the removal of its item. A client that watches between the two
//!   may still have read the older row ([`source::Marks::was_touched`]).
//! - H2: the cached item at EXEC is compared with that at WATCH, for a row can be loaded before its change is
//!   told. An item that was evicted, or had come to its time, says nothing.
//! - H3: two ids may share a slot of the marks. Then EXEC may be refused without need, but never passes
//!   wrongly.
//!
//! Cost: O(1) memory for a row, however large it is. A short lock at WATCH and at EXEC, and a look at
//! [`COMPARED`] bytes.

use super::wait::{Known, known};
use super::{Entry, Rows};
use command::Error;
use keyspace::{Keyspace, View};
use std::collections::BTreeMap;
use std::sync::Arc;
use stdx::hash::hash_bytes;
use value::{StrRef, ValueRef};

/// Bytes of a row that are compared. For a longer row only told changes count.
const COMPARED: usize = 16 * 1024;

/// Largest number of rows of one client, as they are all looked at in a stretch.
const ROWS_MAX: usize = 1000;

/// Rows that a client watches, by their keys.
#[derive(Default)]
pub struct Watched(BTreeMap<Box<[u8]>, WatchedRow>);

struct WatchedRow {
    entry: Arc<Entry>,
    /// The moment at which it was looked at (`source::Marks`).
    at: u64,
    seen: Cached,
}

/// The cached state of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cached {
    Nothing,
    /// There is no such row, as is known.
    Absent,
    /// A hash of the item, unless it is long.
    There(Option<u64>),
}

impl Cached {
    /// Looks at a row, in a view that holds the key's shard and is in the source's database.
    fn of(entry: &Entry, view: &mut View<'_>, key: &[u8]) -> Cached {
        match known(entry, view, key) {
            Known::Absent => Cached::Absent,
            Known::Item | Known::Stale => Cached::There(view.value(key).and_then(print)),
            Known::Nothing => Cached::Nothing,
        }
    }

    fn differs(self, before: Cached) -> bool {
        match (before, self) {
            (Cached::Nothing, _) | (_, Cached::Nothing) => false,
            (Cached::There(then), Cached::There(now)) => then.zip(now).is_some_and(|(then, now)| then != now),
            (then, now) => then != now,
        }
    }
}

fn print(value: ValueRef<'_>) -> Option<u64> {
    match value {
        ValueRef::Str(StrRef::Flat(text)) if text.len() <= COMPARED => Some(hash_bytes(text)),
        ValueRef::Hash(hash) if hash.mem_bytes() <= COMPARED => {
            // The sum does not depend on the order of the fields.
            let field = |(name, value): (&[u8], &[u8])| hash_bytes(name).rotate_left(1) ^ hash_bytes(value);
            Some(hash.iter().map(field).fold(hash.len() as u64, u64::wrapping_add))
        }
        _ => None,
    }
}

impl Watched {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Begins to watch a key if it is a row's. False: it is none. Errors: there are too many. Cost: a short
    /// lock.
    #[cold]
    pub fn begin(&mut self, rows: &Rows, now_ms: u64, key: &[u8]) -> Result<bool, Error> {
        let Some(entry) = rows.of(key) else { return Ok(false) };
        if self.0.contains_key(key) {
            return Ok(true);
        }
        if self.0.len() >= ROWS_MAX {
            return Err(format!("ERR a client can watch at most {ROWS_MAX} rows of sources").into());
        }
        // This comes before the look (H1).
        let at = entry.source.marks.now();
        let mut view = View::locked_one(&rows.keyspace, key, entry.db, now_ms);
        // A WATCH is no use of the key.
        view.set_quiet(true);
        let seen = Cached::of(&entry, &mut view, key);
        drop(view.finish());
        self.0.insert(key.into(), WatchedRow { entry, at, seen });
        Ok(true)
    }

    /// Whether a change of one was told, or its source has ended. O(rows · sources of one), without a lock.
    pub fn is_told(&self) -> bool {
        self.0.iter().any(|(key, row)| {
            let (source, id) = (&row.entry.source, row.entry.spec().pattern.id(key));
            source.is_removed() || id.is_none_or(|id| source.marks.was_touched(id, row.at))
        })
    }

    /// As `is_told`, and whether the cached state of one differs (H2). O(rows), a short lock each.
    pub fn is_changed(&self, keyspace: &Keyspace, now_ms: u64) -> bool {
        let differs = |key: &[u8], row: &WatchedRow| {
            let mut view = View::locked_one(keyspace, key, row.entry.db, now_ms);
            view.set_quiet(true);
            let now = Cached::of(&row.entry, &mut view, key);
            drop(view.finish());
            now.differs(row.seen)
        };
        self.is_told() || self.0.iter().any(|(key, row)| differs(key, row))
    }

    /// As `is_changed`, in a view that holds the shards of all of them. It is left in any database.
    pub fn is_changed_in(&self, view: &mut View<'_>) -> bool {
        let differs = |view: &mut View<'_>, key: &[u8], row: &WatchedRow| {
            view.select(row.entry.db);
            Cached::of(&row.entry, view, key).differs(row.seen)
        };
        self.is_told() || self.0.iter().any(|(key, row)| differs(view, key, row))
    }

    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.0.keys().map(|key| &**key)
    }

    /// Forgets some. True if some are left.
    pub fn forget_some(&mut self, count: usize) -> bool {
        for _ in 0..count {
            if self.0.pop_last().is_none() {
                return false;
            }
        }
        !self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_cached_says_nothing() {
        let (one, other) = (Cached::There(Some(1)), Cached::There(Some(2)));
        for seen in [Cached::Absent, one, Cached::There(None), Cached::Nothing] {
            assert!(!seen.differs(seen) && !Cached::Nothing.differs(seen) && !seen.differs(Cached::Nothing));
        }
        assert!(one.differs(other) && one.differs(Cached::Absent) && Cached::Absent.differs(one));
        assert!(!one.differs(Cached::There(None)) && Cached::There(None).differs(Cached::Absent));
    }
}
