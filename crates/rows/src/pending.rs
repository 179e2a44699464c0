//! The rows that a client's command waits for, or was given: a part of its session.

use super::{Entry, Fetch, Loading, Routing};
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub struct Pending {
    /// The rows the command waits for.
    pub loading: Option<Loading>,
    /// A key whose row is there for the running command, and for no other. The caller takes it away again.
    pub lent: Option<Box<[u8]>>,
    /// The begin of the wait of a command that now has its rows (monotonic clock).
    pub loaded_since_ns: Option<u64>,
    /// The routing of a command of very many keys, while not all of them were looked at.
    pub(super) routing: Option<Box<Routing>>,
    /// The values that a command of several keys has found so far.
    pub(super) fetch: Option<Box<Fetch>>,
    /// The source of the running command's keys.
    pub source: Option<Arc<Entry>>,
}

impl Pending {
    /// Ends the wait for rows.
    pub(super) fn end_loading(&mut self) {
        if let Some(loading) = self.loading.take() {
            self.loaded_since_ns = Some(loading.since_ns);
        }
    }

    /// Gives everything up, as the command has ended before its time.
    pub fn give_up(&mut self) {
        (self.source, self.loading, self.routing, self.fetch) = (None, None, None, None);
    }
}
