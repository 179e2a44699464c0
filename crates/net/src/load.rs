//! How busy the loops are, and where new connections go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How busy each loop is, in thousandths of the last interval.
#[derive(Clone)]
pub(crate) struct Load(pub(crate) Arc<[AtomicU64]>);

impl Load {
    pub(crate) fn new(loops: usize) -> Load {
        Load((0..loops).map(|_| AtomicU64::new(0)).collect())
    }

    /// Whether the loops leave less than a tenth of the cores they run on.
    pub(crate) fn is_full(&self) -> bool {
        self.0.iter().map(|busy| busy.load(Ordering::Relaxed)).sum::<u64>() > 900 * self.0.len() as u64
    }

    pub(crate) fn of(&self, id: usize) -> u64 {
        self.0[id].load(Ordering::Relaxed)
    }

    /// Where a new connection goes: to the first loop unless that is busy and another is less so. Spreading early would
    /// only add wake-ups across cores.
    pub(crate) fn place(&self) -> usize {
        let least = (0..self.0.len()).min_by_key(|id| (self.of(*id), *id)).unwrap_or(0);
        if self.of(0) > 700 && self.of(least) + 200 < self.of(0) { least } else { 0 }
    }
}
