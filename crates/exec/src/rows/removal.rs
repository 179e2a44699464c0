//! Removing what changed: what a feed tells waits here, and one loop removes it in slices, in the order it was told.
//!
//! ```text
//! Feed::changed ─► room? ─ yes ─► Letter::Drop ─► Work::Drop ─► removed, room again
//!                    └──── no ──► all of the source is given up: Letter::Flush; what waited before need not be done any more
//! ```
//!
//! - X1: keys of at most [`WAITING_MAX`] bytes wait, per source: a transaction may change more rows than there is memory.
//! - X2: a removal counts as waiting from before its feed goes on until the item is gone, and so does giving up everything.
//! - X3: removals of an earlier epoch than the queue's are made needless by a flush that comes after them.
//!
//! Cost: a short lock per key.

use super::{Entry, RowPlace};
use crate::{Local, Server};
use keyspace::View;
use source::Id;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::vec;

/// Bytes of keys that wait to be removed. Of usual keys these are 150,000: what a loop removes in some tenths of a second, longer
/// than which nothing should be old.
const WAITING_MAX: u64 = 8 << 20;
/// What a key takes beside its text.
const EACH: u64 = 32;

fn bytes_of(key: &Id) -> u64 {
    key.len() as u64 + EACH
}

/// What waits of a source.
#[derive(Default)]
pub struct Removals {
    keys: AtomicU64,
    bytes: AtomicU64,
    /// X3.
    epoch: AtomicU64,
    flushes: AtomicU64,
    /// A letter to flush is on its way, and not begun.
    sent: AtomicBool,
}

impl Removals {
    /// Removals that wait, a flush counting as one, and bytes of their keys.
    pub fn waiting(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        (load(&self.keys) + load(&self.flushes), load(&self.bytes))
    }

    /// Puts keys in; None if there is no room (X1). One thread at a time has room for sure.
    pub(super) fn put(
        self: &Arc<Self>,
        place: RowPlace,
        keys: Vec<Id>,
        committed_ms: Option<u64>,
        refresh: bool,
    ) -> Option<Dropping> {
        let bytes = keys.iter().map(bytes_of).sum();
        if self.bytes.load(Ordering::SeqCst) + bytes > WAITING_MAX {
            return None;
        }
        self.keys.fetch_add(keys.len() as u64, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        let epoch = self.epoch.load(Ordering::SeqCst);
        Some(Dropping {
            place,
            queue: self.clone(),
            epoch,
            keys: keys.into_iter(),
            bytes,
            committed_ms,
            refresh,
        })
    }

    fn take(&self, keys: usize, bytes: u64) {
        self.keys.fetch_sub(keys as u64, Ordering::SeqCst);
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// All is given up; whether a letter has to be sent that says so.
    pub(super) fn give_up(&self) -> bool {
        self.announce();
        self.claim()
    }

    /// What waits is left out from now on. That comes before a letter is relied on, so that its flush comes after what is left out
    /// (X3).
    fn announce(&self) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        // Only now, so that what leaves the queue for it is counted with it (X2).
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether no letter is on its way.
    fn claim(&self) -> bool {
        let first = !self.sent.swap(true, Ordering::SeqCst);
        self.flushes.fetch_sub((!first).into(), Ordering::SeqCst);
        first
    }

    /// A letter is begun: who gives up from now on sends another.
    fn begin_flush(&self) {
        self.sent.store(false, Ordering::SeqCst);
    }

    fn end_flush(&self) {
        self.flushes.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_of_now(&self, epoch: u64) -> bool {
        epoch == self.epoch.load(Ordering::SeqCst)
    }

    /// The letter came: does what it says.
    pub(super) fn flush(&self, server: &Server, local: &mut Local, entry: &Entry) {
        self.begin_flush();
        empty(server, local, entry);
        self.end_flush();
    }
}

/// Items to be removed: their rows changed.
pub struct Dropping {
    place: RowPlace,
    queue: Arc<Removals>,
    epoch: u64,
    keys: vec::IntoIter<Id>,
    /// Of those that are left.
    bytes: u64,
    /// When the oldest of the changes was committed, in milliseconds since 1970.
    committed_ms: Option<u64>,
    /// Whether rows in use are loaded again.
    refresh: bool,
}

impl Dropping {
    /// Removes some; true if there are more.
    pub(crate) fn advance(&mut self, server: &Server, local: &mut Local, count: usize) -> bool {
        let entry = server.sources.at(self.place).filter(|_| self.queue.is_of_now(self.epoch));
        let Some(entry) = entry else {
            self.leave();
            return false;
        };
        for key in self.keys.by_ref().take(count) {
            let removed = remove(server, local, &entry, &key);
            entry.seen.invalidated.fetch_add(removed.is_some().into(), Ordering::Relaxed);
            if removed == Some(true) && self.refresh {
                refresh(&entry, &key);
            }
            self.bytes -= bytes_of(&key);
            self.queue.take(1, bytes_of(&key));
        }
        if self.keys.len() > 0 {
            return true;
        }
        if let Some(at) = self.committed_ms {
            let lag = stdx::clock::wall_ms().saturating_sub(at);
            entry.seen.lag_ms.store(lag, Ordering::Relaxed);
            entry.seen.lag_max_ms.fetch_max(lag, Ordering::Relaxed);
        }
        false
    }

    /// Takes what is left out of the queue. Its memory is freed elsewhere.
    fn leave(&mut self) {
        self.queue.take(self.keys.len(), std::mem::take(&mut self.bytes));
        crate::job::discard(std::mem::take(&mut self.keys));
    }
}

impl Drop for Dropping {
    fn drop(&mut self) {
        if self.keys.len() > 0 {
            self.leave();
        }
    }
}

/// Has a row in use that changed loaded again, unless there is more urgent work: who asks for it next need not wait.
fn refresh(entry: &Entry, key: &[u8]) {
    let source = &entry.source;
    if let Some(id) = entry.spec().pattern.id(key)
        && source.has_room()
        && source.want(id, None).is_ok()
    {
        entry.seen.refreshed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Removes what is known of a key; whether there was an item, and whether it was in use.
fn remove(server: &Server, local: &mut Local, entry: &Entry, key: &[u8]) -> Option<bool> {
    let mut view = View::locked_one(&server.keyspace, key, entry.db, local.now_ms);
    if view.has_intents() {
        view.settle(&[(entry.db, key), (entry.absent_db(), key)], true);
    }
    // A client that watches the row by now has seen it as it was.
    if let Some(id) = entry.spec().pattern.id(key) {
        entry.source.marks.removes(id);
    }
    let removed = view.remove_to_return(key);
    view.select(entry.absent_db());
    let known = view.remove(key);
    // Under the lock, as in `fill.rs`.
    log::trace!(
        "key {}: removed, was an item: {}, was known to be none: {known}",
        key.escape_ascii(),
        removed.is_some()
    );
    server.after(local, view.finish());
    removed
}

/// Removes all of a source: O(1) under all locks, what was there is freed elsewhere.
pub(crate) fn empty(server: &Server, local: &mut Local, entry: &Entry) {
    empty_by(server, entry, local.now_ms, |changes| server.after(local, changes));
}

/// The same, whoever deals with what follows.
pub(super) fn empty_by(
    server: &Server,
    entry: &Entry,
    now_ms: u64,
    mut after: impl FnMut(keyspace::Changes),
) {
    for db in [entry.db, entry.absent_db()] {
        let mut view = View::whole(&server.keyspace, db, now_ms);
        entry.source.marks.removes_all();
        view.flush(Some(db));
        after(view.finish());
    }
    log::trace!("source {}: emptied", entry.spec().name);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: RowPlace = RowPlace { db: 16, number: 1 };

    fn keys(count: usize, length: usize) -> Vec<Id> {
        vec![vec![b'x'; length].into(); count]
    }

    #[test]
    fn what_waits_is_counted_and_bounded() {
        let queue = Arc::new(Removals::default());
        let mut waiting = Vec::new();
        while let Some(dropping) = queue.put(PLACE, keys(1000, 20), None, true) {
            waiting.push(dropping);
        }
        let (count, bytes) = queue.waiting();
        assert_eq!((count, bytes), (waiting.len() as u64 * 1000, count * 52));
        assert!(bytes <= WAITING_MAX && bytes + 52_000 > WAITING_MAX);
        waiting.pop();
        assert!(queue.put(PLACE, keys(1, 20), None, true).is_some());
        waiting.clear();
        assert_eq!(queue.waiting(), (0, 0));
    }

    #[test]
    fn one_letter_is_sent_until_it_is_begun() {
        let queue = Arc::new(Removals::default());
        let dropping = queue.put(PLACE, keys(3, 1), None, true).unwrap();
        assert!(queue.give_up() && !queue.give_up());
        assert_eq!(queue.waiting(), (4, 99));
        assert!(!queue.is_of_now(dropping.epoch));
        drop(dropping);
        assert_eq!(queue.waiting(), (1, 0));
    }

    /// One gives everything up while the letter of another is dealt with and a change is told, in each order. Where the letter was
    /// relied on before the change was left out, both could be over when it was: the row stayed old.
    #[test]
    fn what_is_left_out_is_followed_by_a_flush() {
        // Of four steps: announce, claim, flush, tell.
        let orders = (0..256).map(|n| [n % 4, n / 4 % 4, n / 16 % 4, n / 64]);
        let at = |order: &[usize; 4], step| order.iter().position(|other| *other == step);
        let whole = orders.filter(|order| (0..4).all(|step| at(order, step).is_some()));
        for order in whole.filter(|order| at(order, 0) < at(order, 1)) {
            let queue = Arc::new(Removals::default());
            assert!(queue.give_up());
            let (mut told, mut comes) = (None, true);
            for step in order {
                match step {
                    0 => queue.announce(),
                    1 => comes |= queue.claim(),
                    2 => {
                        queue.begin_flush();
                        queue.end_flush();
                        comes = false;
                    }
                    _ => told = queue.put(PLACE, keys(1, 1), None, true),
                }
            }
            let flushed = at(&order, 2) > at(&order, 3);
            let is_of_now = queue.is_of_now(told.as_ref().unwrap().epoch);
            assert!(is_of_now || flushed || comes, "{order:?}");
            assert_eq!(queue.waiting().0, 1 + u64::from(comes), "{order:?}");
        }
    }
}
