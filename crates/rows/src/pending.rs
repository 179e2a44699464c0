//! The rows a client's command waits for, or was given: a part of its session.

use super::{Entry, Fetch, Loading, Routing};
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub struct Pending {
    /// The rows the command waits for.
    pub loading: Option<Loading>,
    /// A key whose row is there for the command that runs, and for no other. The caller takes it away again.
    pub lent: Option<Box<[u8]>>,
    /// Since when (monotonic clock) a command waited that now has its rows.
    pub loaded_since_ns: Option<u64>,
    /// The command has very many keys, and not all were asked for the source they belong to yet.
    pub(super) routing: Option<Box<Routing>>,
    /// The values the command has found of several keys so far.
    pub(super) fetch: Option<Box<Fetch>>,
    /// The source the keys of the command that runs belong to.
    pub source: Option<Arc<Entry>>,
}

impl Pending {
    /// The command waits for no row any more.
    pub(super) fn end_loading(&mut self) {
        if let Some(loading) = self.loading.take() {
            self.loaded_since_ns = Some(loading.since_ns);
        }
    }

    /// The command has ended before its time.
    pub fn give_up(&mut self) {
        (self.source, self.loading, self.routing, self.fetch) = (None, None, None, None);
    }
}
