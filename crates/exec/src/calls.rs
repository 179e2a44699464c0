//! What is counted about every command that ran or was refused.

use crate::Session;
use command::Command;
use resp::Args;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of commands, shared by the loops.
#[derive(Default)]
pub struct Calls {
    processed: AtomicU64,
}

impl Calls {
    /// A command ran for `ns` nanoseconds.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub fn called(
        &self,
        _loop_id: usize,
        _command: &'static Command,
        _ns: u64,
        _failed: bool,
        _args: Args<'_>,
        _session: &Session,
        _reply: &[u8],
    ) {
        self.processed.fetch_add(1, Ordering::Relaxed);
    }

    /// A command was refused before it ran.
    pub fn rejected(&self, _command: Option<&'static Command>, _error: &str) {}

    pub fn processed(&self) -> u64 {
        self.processed.load(Ordering::Relaxed)
    }
}
