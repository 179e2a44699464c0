//! Removals of changed items. A feed's changes wait here, and one loop removes their items in slices, in the
//! order of the feed.
//!
//! ```text
//! Feed::changed ─► room? ─ yes ─► Letter::Drop ─► a loop's work ─► removed, room again
//!                    └──── no ──► all of the source is given up: Letter::Flush; what waited before need not be done any more
//! ```
//!
//! Cost: a short lock per key.

use super::entry::{Entry, RowPlace};
use super::removals::{Removals, bytes_of};
use super::{Rows, note};
use keyspace::{Changes, Keyspace, View};
use source::Id;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::vec;

/// Items to be removed, as their rows changed.
pub struct Dropping {
    place: RowPlace,
    queue: Arc<Removals>,
    epoch: u64,
    keys: vec::IntoIter<Id>,
    /// Bytes of the remaining keys.
    bytes: u64,
    /// The commit of the oldest of the changes, in milliseconds since 1970.
    committed_ms: Option<u64>,
    /// Whether rows in use are loaded again.
    refresh: bool,
}

impl Dropping {
    /// Puts keys into the queue of their source. `None`: there is no room (X1).
    pub(super) fn put(
        queue: &Arc<Removals>,
        place: RowPlace,
        keys: Vec<Id>,
        committed_ms: Option<u64>,
        refresh: bool,
    ) -> Option<Dropping> {
        let (epoch, bytes) = queue.put(&keys)?;
        let (queue, keys) = (queue.clone(), keys.into_iter());
        Some(Dropping { place, queue, epoch, keys, bytes, committed_ms, refresh })
    }

    /// Removes some. True if there are more.
    pub fn advance(&mut self, rows: &Rows, now_ms: u64, count: usize, told: &mut Vec<Changes>) -> bool {
        let entry = rows.at(self.place).filter(|_| self.queue.is_of_now(self.epoch));
        let Some(entry) = entry else {
            self.leave();
            return false;
        };
        for key in self.keys.by_ref().take(count) {
            let (removed, changes) = remove(&rows.keyspace, &entry, &key, now_ms);
            note(told, changes);
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

    /// Takes the remaining keys out of the queue. Their memory is freed elsewhere.
    fn leave(&mut self) {
        let (keys, bytes) = (std::mem::take(&mut self.keys), std::mem::take(&mut self.bytes));
        self.queue.take(keys.len(), bytes);
        stdx::reclaim::discard(keys);
    }
}

impl Drop for Dropping {
    fn drop(&mut self) {
        if self.keys.len() > 0 {
            self.leave();
        }
    }
}

/// Loads a changed row in use again, unless there is more urgent work. So the next client that asks for it
/// need not wait.
fn refresh(entry: &Entry, key: &[u8]) {
    let source = &entry.source;
    if let Some(id) = entry.spec().pattern.id(key)
        && source.has_room()
        && source.want(id, None).is_ok()
    {
        entry.seen.refreshed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Removes all that is known of a key. Returns whether there was an item, and whether it was in use.
fn remove(keyspace: &Keyspace, entry: &Entry, key: &[u8], now_ms: u64) -> (Option<bool>, Changes) {
    let mut view = View::locked_one(keyspace, key, entry.db, now_ms);
    if view.has_intents() {
        view.settle(&[(entry.db, key), (entry.absent_db(), key)], true);
    }
    // A client that watches the row by now has seen the old one.
    if let Some(id) = entry.spec().pattern.id(key) {
        entry.source.marks.removes(id);
    }
    let removed = view.remove_to_return(key);
    // Whether or not there is an item: a client may have its copy of a row that is not kept any more.
    view.tell_readers(key);
    view.select(entry.absent_db());
    let known = view.remove(key);
    // This happens under the lock, as in `fill.rs`.
    log::trace!(
        "key {}: removed, was an item: {}, was known to be none: {known}",
        key.escape_ascii(),
        removed.is_some()
    );
    (removed, view.finish())
}

/// Removes all of a source. O(1) under all locks; the items are freed elsewhere.
pub fn empty(keyspace: &Keyspace, entry: &Entry, now_ms: u64, told: &mut Vec<Changes>) {
    for db in [entry.db, entry.absent_db()] {
        let mut view = View::whole(keyspace, db, now_ms);
        entry.source.marks.removes_all();
        view.flush(Some(db));
        note(told, view.finish());
    }
    log::trace!("source {}: emptied", entry.spec().name);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::removals::WAITING_MAX;

    const PLACE: RowPlace = RowPlace { db: 16, number: 1 };

    fn keys(count: usize, length: usize) -> Vec<Id> {
        vec![vec![b'x'; length].into(); count]
    }

    #[test]
    fn what_waits_is_counted_and_bounded() {
        let queue = Arc::new(Removals::default());
        let mut waiting = Vec::new();
        while let Some(dropping) = Dropping::put(&queue, PLACE, keys(1000, 20), None, true) {
            waiting.push(dropping);
        }
        let (count, bytes) = queue.waiting();
        assert_eq!((count, bytes), (waiting.len() as u64 * 1000, count * 52));
        assert!(bytes <= WAITING_MAX && bytes + 52_000 > WAITING_MAX);
        waiting.pop();
        assert!(Dropping::put(&queue, PLACE, keys(1, 20), None, true).is_some());
        waiting.clear();
        assert_eq!(queue.waiting(), (0, 0));
    }

    #[test]
    fn one_letter_is_sent_until_it_is_begun() {
        let queue = Arc::new(Removals::default());
        let dropping = Dropping::put(&queue, PLACE, keys(3, 1), None, true).unwrap();
        assert!(queue.give_up() && !queue.give_up());
        assert_eq!(queue.waiting(), (4, 99));
        assert!(!queue.is_of_now(dropping.epoch));
        drop(dropping);
        assert_eq!(queue.waiting(), (1, 0));
    }

    /// One thread gives everything up while the letter of another is handled and a change is told, in each
    /// order. If the letter were relied on before the change is left out, both could be over by then, and the
    /// row would stay old.
    #[test]
    fn what_is_left_out_is_followed_by_a_flush() {
        // Orders of four steps: announce, claim, flush, tell.
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
                    _ => told = Dropping::put(&queue, PLACE, keys(1, 1), None, true),
                }
            }
            let flushed = at(&order, 2) > at(&order, 3);
            let is_of_now = queue.is_of_now(told.as_ref().unwrap().epoch);
            assert!(is_of_now || flushed || comes, "{order:?}");
            assert_eq!(queue.waiting().0, 1 + u64::from(comes), "{order:?}");
        }
    }
}
