// The base of `record.rs` and `sequence.rs`, played: a listener that notes at which LSNs commits were told.

use super::sequence::Lsn;
use crate::stdx::sync::Mutex;
use std::sync::Arc;

pub trait Effects: Send + Sync {}

pub type Announce = Option<Arc<dyn Effects>>;

/// Effects without words.
pub(crate) struct Something;

impl Effects for Something {}

#[derive(Default)]
pub(crate) struct Tell(pub(crate) Mutex<Vec<Lsn>>);

impl Tell {
    pub(crate) fn enter(&self, _: impl FnOnce() -> Lsn) {}

    pub(crate) fn leave(&self) {}

    pub(crate) fn shared(&self, lsn: Lsn, _: Arc<dyn Effects>) {
        self.0.lock().push(lsn);
    }
}
