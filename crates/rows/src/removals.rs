//! Items of a source that wait to be removed, counted and bounded. `dropping.rs` removes them.
//!
//! - X1: keys of at most [`WAITING_MAX`] bytes wait, per source. A transaction may change more rows than
//!   there is memory.
//! - X2: a removal counts as waiting from before its feed goes on until the item is gone, and so does giving
//!   up everything.
//! - X3: removals of an earlier epoch than the queue's are needless, for a flush comes after them.

use source::Id;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Largest number of bytes of keys that wait to be removed: 150,000 usual keys. A loop removes them in some
/// tenths of a second, and no item should be old for longer.
pub(super) const WAITING_MAX: u64 = 8 << 20;
/// Bytes of a key beside its text.
const EACH: u64 = 32;

pub(super) fn bytes_of(key: &Id) -> u64 {
    key.len() as u64 + EACH
}

/// The waiting removals of a source.
#[derive(Default)]
pub struct Removals {
    keys: AtomicU64,
    bytes: AtomicU64,
    /// The epoch of removals that come now (X3).
    epoch: AtomicU64,
    flushes: AtomicU64,
    /// A letter to flush is on its way, and not begun.
    sent: AtomicBool,
}

impl Removals {
    /// Number of waiting removals, with a flush counting as one, and the bytes of their keys.
    pub fn waiting(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        (load(&self.keys) + load(&self.flushes), load(&self.bytes))
    }

    /// Puts keys in. Returns their epoch and their bytes. `None`: there is no room (X1). One thread at a time
    /// has room for sure.
    pub(super) fn put(&self, keys: &[Id]) -> Option<(u64, u64)> {
        let bytes = keys.iter().map(bytes_of).sum();
        if self.bytes.load(Ordering::SeqCst) + bytes > WAITING_MAX {
            return None;
        }
        self.keys.fetch_add(keys.len() as u64, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        Some((self.epoch.load(Ordering::SeqCst), bytes))
    }

    pub(super) fn take(&self, keys: usize, bytes: u64) {
        self.keys.fetch_sub(keys as u64, Ordering::SeqCst);
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Notes that all is given up. Returns whether a letter has to be sent for it.
    pub(super) fn give_up(&self) -> bool {
        self.announce();
        self.claim()
    }

    /// Leaves out the waiting removals. This comes before a letter is relied on, so that its flush comes
    /// after all that is left out (X3).
    pub(super) fn announce(&self) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        // This comes last, so that keys that leave the queue for it are counted with it (X2).
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether no letter is on its way.
    pub(super) fn claim(&self) -> bool {
        let first = !self.sent.swap(true, Ordering::SeqCst);
        self.flushes.fetch_sub((!first).into(), Ordering::SeqCst);
        first
    }

    /// Begins a letter. Giving up from now on sends another.
    pub(super) fn begin_flush(&self) {
        self.sent.store(false, Ordering::SeqCst);
    }

    pub(super) fn end_flush(&self) {
        self.flushes.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn is_of_now(&self, epoch: u64) -> bool {
        epoch == self.epoch.load(Ordering::SeqCst)
    }
}
