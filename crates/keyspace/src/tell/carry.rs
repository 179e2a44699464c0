//! The bytes of the primary's stream on their way to this server's own replicas.
//!
//! ```text
//! link: begin(bytes of a command) ─► it runs ─► its effect is told: takes all of them, at its LSN
//!                                         └───► nothing is told: done() ─► the next effect, or apart()
//! ```
//!
//! - CA1: one thread begins, ends and takes back: that of the link's loop. An effect may be told by another.
//! - CA2: what was begun is told once: a command that runs again later is taken back first.
//! - CA3: when the link ends, what its offset counts is told, also if it changed nothing: the next link goes on
//!   behind that offset. The rest is dropped, and comes again.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Default)]
pub(super) struct Carry {
    is_there: AtomicBool,
    bytes: Mutex<Bytes>,
}

#[derive(Default)]
struct Bytes {
    /// Bytes of commands that are done and told nothing, and the database behind them.
    done: Vec<u8>,
    db: u32,
    /// How many of these bytes the link's offset counts, and the database behind them (CA3).
    counted: usize,
    counted_db: u32,
    /// Bytes of the command under way.
    begun: Option<(u32, Vec<u8>)>,
}

impl Carry {
    /// Cost: one load.
    #[inline]
    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Takes all, with the command under way.
    #[cold]
    pub(super) fn take(&self) -> Option<(u32, Vec<u8>)> {
        let mut bytes = self.bytes.lock();
        bytes.end();
        self.is_there.store(false, Ordering::Relaxed);
        bytes.counted = 0;
        let done = std::mem::take(&mut bytes.done);
        (!done.is_empty()).then_some((bytes.db, done))
    }
}

impl Carry {
    /// A command begins. `counts`: the link's offset counts all before it.
    pub(super) fn begin(&self, bytes: &[u8], db: u32, counts: bool) {
        let mut all = self.bytes.lock();
        all.end();
        if counts {
            (all.counted, all.counted_db) = (all.done.len(), all.db);
        }
        all.begun = Some((db, bytes.to_vec()));
        self.is_there.store(true, Ordering::Relaxed);
    }

    /// It has ended, in this database.
    pub(super) fn done(&self, db: u32) {
        let mut all = self.bytes.lock();
        if let Some(begun) = &mut all.begun {
            begun.0 = db;
        }
        all.end();
    }

    /// It will run again later.
    pub(super) fn again(&self) {
        self.bytes.lock().begun = None;
    }

    /// The link has ended: keeps what its offset counts, to be told (CA3).
    pub(super) fn keep_counted(&self) {
        let mut all = self.bytes.lock();
        let all = &mut *all;
        all.begun = None;
        all.done.truncate(all.counted);
        all.db = all.counted_db;
        self.is_there.store(!all.done.is_empty(), Ordering::Relaxed);
    }

    /// Nothing of all this is told.
    pub(super) fn nothing(&self) {
        *self.bytes.lock() = Bytes::default();
        self.is_there.store(false, Ordering::Relaxed);
    }
}

impl Bytes {
    fn end(&mut self) {
        if let Some((db, bytes)) = self.begun.take() {
            self.db = db;
            match self.done.is_empty() {
                true => self.done = bytes,
                false => self.done.extend_from_slice(&bytes),
            }
        }
    }
}
