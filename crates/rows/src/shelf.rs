//! The places of a source's rows and of its ids without a row. All changes of both happen under the lock of a
//! key.
//!
//! - B1: a key has a row, or the knowledge that there is none, or nothing. Bringing one removes the other.
//! - B2: this also holds for lent rows. Loops' clocks differ. An item may be past its time for the loop that
//!   lends and not for the next one, which would then answer an older row than the lent one.
//! - B3: a row is kept only as the marks admit it, under the lock. A change is marked before its item is
//!   removed (Z2).

use keyspace::{Payload, Times, View};
use source::Marks;

/// The two databases of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shelf {
    pub rows: usize,
    pub absent: usize,
}

/// The result of a load: the row, or the time until which its absence is known.
pub(super) enum Found<'a> {
    Row(Payload<'a>, Times),
    Nothing { until_ms: u64 },
}

impl Shelf {
    /// Keeps the result of a load that began at that moment, if nothing newer is known. The view holds the
    /// key's shard, and is left in the database of the rows.
    pub(super) fn install(
        self,
        view: &mut View<'_>,
        marks: &Marks,
        (id, key): (&[u8], &[u8]),
        began: u64,
        found: Found<'_>,
    ) -> bool {
        let kept = marks.admit(id, began);
        if kept {
            self.put(view, key, found);
        }
        kept
    }

    fn put(self, view: &mut View<'_>, key: &[u8], found: Found<'_>) {
        match found {
            Found::Row(row, times) => {
                view.put_with(key, row, times);
                view.select(self.absent);
                view.remove(key);
            }
            Found::Nothing { until_ms } => {
                view.remove(key);
                view.select(self.absent);
                view.put_string(key, b"", Some(until_ms));
            }
        }
        view.select(self.rows);
    }

    /// Puts a lent row into its place for as long as the view is held. The caller takes it away again
    /// ([`Shelf::take_back`]). An item that was there is older.
    pub(super) fn show(self, view: &mut View<'_>, key: &[u8], row: Option<(Payload<'_>, Times)>) {
        self.clear(view, key);
        if let Some((row, times)) = row {
            view.put_with(key, row, times);
        }
    }

    /// Undoes [`Shelf::show`].
    pub(super) fn take_back(self, view: &mut View<'_>, key: &[u8]) {
        view.select(self.rows);
        view.remove(key);
    }

    /// Forgets all that is known of a key.
    fn clear(self, view: &mut View<'_>, key: &[u8]) {
        view.select(self.absent);
        view.remove(key);
        view.select(self.rows);
        view.remove(key);
    }
}
