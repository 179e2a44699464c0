//! Rows that arrive for a waiting client, and rows that are lent to it and not kept.

use super::entry::{Entry, RowPlace};
use keyspace::{Payload, Times, View};
use source::Id;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use value::Value;

/// The news of rows that a client waits for.
#[derive(Clone, Debug)]
pub enum Arrival {
    /// They were loaded. The client has to look.
    Loaded,
    /// A row that is not kept, as it changed meanwhile. It answers what this client asked for all the same.
    Lent(Arc<Lent>),
    /// The error for the client, unless there is an item past its time.
    Failed(Arc<str>),
    /// The source was removed.
    Gone,
}

/// A row in its kept form.
pub(super) enum Made {
    Text(Vec<u8>),
    Value(Value),
}

impl Made {
    pub(super) fn payload<'a>(&'a self, key: &[u8]) -> Payload<'a> {
        match self {
            Made::Text(text) => Payload::text(key, text),
            Made::Value(value) => Payload::value(key, value),
        }
    }
}

/// A row that is not kept, for clients that had asked for it before it was loaded.
pub struct Lent {
    pub(super) place: RowPlace,
    pub(super) began: u64,
    pub(super) key: Id,
    pub(super) row: Option<Made>,
    pub(super) changed_ms: Option<NonZeroU64>,
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({})", String::from_utf8_lossy(&self.key))
    }
}

impl Lent {
    pub(super) fn key(&self) -> &Id {
        &self.key
    }

    /// Whether it was loaded after that moment.
    pub(super) fn is_after(&self, (place, at): (RowPlace, u64)) -> bool {
        self.place == place && self.began > at
    }

    /// Puts it into its place for as long as the view is held. The caller takes it away again. O(row).
    pub(super) fn show(&self, view: &mut View<'_>, entry: &Entry) {
        let key = &*self.key;
        let times =
            Times { expire_ms: Some(entry.expire_ms(key, view.now_ms())), changed_ms: self.changed_ms };
        entry.shelf().show(view, key, self.row.as_ref().map(|row| (row.payload(key), times)));
    }
}
