//! Where a source's rows are kept, and the ids without one: what is done to both under the lock of a key.
//!
//! - B1: a key has a row, or the knowledge that there is none, or nothing. Bringing one takes the other away.
//! - B2: that holds for what is lent, too. Loops' clocks differ: an item may be past its time for the loop
//!   that lends and not for the next one, which would answer something older than what was lent.
//! - B3: a row is kept only as the marks admit it, looked at under the lock; what changed is marked before it
//!   is removed (Z2).

use keyspace::{Payload, Times, View};
use source::Marks;

/// The two databases of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shelf {
    pub rows: usize,
    pub absent: usize,
}

/// The find of a load: the row, or until when it is known that there is none.
pub(super) enum Found<'a> {
    Row(Payload<'a>, Times),
    Nothing { until_ms: u64 },
}

impl Shelf {
    /// Keeps what a load that began then found, if nothing newer is known. The view, which holds the key's
    /// shard, is left in the rows.
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

    /// Puts what is lent where it would be, for as long as the view is held. The caller takes it away again
    /// ([`Shelf::take_back`]). The item that was there is older.
    pub(super) fn show(self, view: &mut View<'_>, key: &[u8], row: Option<(Payload<'_>, Times)>) {
        self.clear(view, key);
        if let Some((row, times)) = row {
            view.put_with(key, row, times);
        }
    }

    /// Ends what [`Shelf::show`] began.
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
