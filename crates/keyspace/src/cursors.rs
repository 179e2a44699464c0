//! Stable list cursors: LSCAN … STABLE walks a list exactly as it was at the first call.
//!
//! ```text
//! LSCAN key 0 STABLE ─► a clone of the list, O(1) ─► place id mod PLACES ─► cursor: top bit | id | position
//! LSCAN key cursor   ─► the same place, if it is still the same id's
//! ```
//!
//! - U1: a cursor belongs to one key. It ends by its age, by the bytes of all cursors, or by the number of
//!   places. A client with an ended cursor gets an error, never another list.
//! - U2: each place has its own lock, held for the exchange of one handle. Clients do not meet there.
//! - U3: `bytes` is the sum of the kept lists' sizes, shared with the keyspace or not.
//!
//! Cost: keeping, finding, releasing O(1); making room O(places).

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use value::List;

/// Most cursors at a time. The next one replaces the oldest.
const PLACES: usize = 1024;
/// Marks a cursor of this kind. The bits below hold id and position.
const MARK: u64 = 1 << 63;
/// Bits of the position.
const POSITION_BITS: u32 = 40;
const ID_BITS: u32 = 63 - POSITION_BITS;

/// Limits on the age of a kept list, in seconds, and on the bytes of all. 0: no limit.
pub static MAX_AGE_S: AtomicU64 = AtomicU64::new(3600);
pub static MAX_BYTES: AtomicUsize = AtomicUsize::new(1 << 30);

struct KeptList {
    id: u64,
    key: u64,
    list: List,
    bytes: usize,
    since_ms: u64,
}

/// All lists kept for cursors.
pub struct Cursors {
    places: Box<[Mutex<Option<KeptList>>]>,
    next: AtomicU64,
    bytes: AtomicUsize,
}

impl Default for Cursors {
    fn default() -> Cursors {
        Cursors {
            places: (0..PLACES).map(|_| Mutex::default()).collect(),
            // So that ids differ from those of an earlier run of the server.
            next: AtomicU64::new(stdx::hash::hash_u64(stdx::clock::mono_ns())),
            bytes: AtomicUsize::new(0),
        }
    }
}

/// A parsed cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    id: u64,
    /// The element that comes next.
    pub position: usize,
}

impl Cursor {
    /// Parses a cursor of a client; `None` if it is of another kind.
    pub fn parse(cursor: u64) -> Option<Cursor> {
        let id = (cursor & !MARK) >> POSITION_BITS;
        let position = (cursor & ((1 << POSITION_BITS) - 1)) as usize;
        (cursor & MARK != 0).then_some(Cursor { id, position })
    }

    /// The cursor for the client, for the same list at another position.
    pub fn at(self, position: usize) -> u64 {
        MARK | self.id << POSITION_BITS | position as u64
    }
}

impl Cursors {
    /// Keeps a list for the client that walks it. `None` if it alone exceeds the limit.
    pub fn keep(&self, key: u64, list: &List, now_ms: u64) -> Option<Cursor> {
        let bytes = list.mem_bytes();
        let max = MAX_BYTES.load(Relaxed);
        if max != 0 && bytes > max || list.len() >= 1 << POSITION_BITS {
            return None;
        }
        let id = self.next.fetch_add(1, Relaxed) & ((1 << ID_BITS) - 1);
        self.bytes.fetch_add(bytes, Relaxed);
        self.put(
            id as usize % PLACES,
            Some(KeptList { id, key, list: list.clone(), bytes, since_ms: now_ms }),
        );
        if max != 0 {
            // The oldest lists stand behind the newest.
            let mut place = id as usize;
            for _ in 1..PLACES {
                if self.bytes.load(Relaxed) <= max {
                    break;
                }
                place += 1;
                self.put(place % PLACES, None);
            }
        }
        Some(Cursor { id, position: 0 })
    }

    /// The list of a cursor, if it is still kept (U1).
    pub fn find(&self, cursor: Cursor, key: u64, now_ms: u64) -> Option<List> {
        let place = self.places[cursor.id as usize % PLACES].lock();
        let kept = place.as_ref().filter(|kept| kept.id == cursor.id && kept.key == key)?;
        (!is_old(kept, now_ms)).then(|| kept.list.clone())
    }

    /// Drops the list of a cursor that has been walked to the end.
    pub fn release(&self, cursor: Cursor) {
        let place = cursor.id as usize % PLACES;
        let ours = self.places[place].lock().as_ref().is_some_and(|kept| kept.id == cursor.id);
        if ours {
            self.put(place, None);
        }
    }

    /// Drops lists that are too old. O(places).
    pub fn prune(&self, now_ms: u64) {
        if self.bytes.load(Relaxed) == 0 {
            return;
        }
        for place in 0..PLACES {
            let old = self.places[place].lock().as_ref().is_some_and(|kept| is_old(kept, now_ms));
            if old {
                self.put(place, None);
            }
        }
    }

    /// How many lists are kept, and their bytes. O(places).
    pub fn kept(&self) -> (usize, usize) {
        (self.places.iter().filter(|place| place.lock().is_some()).count(), self.bytes.load(Relaxed))
    }

    /// Replaces the list of a place. The old list is freed after the lock is released; a large one by the
    /// reclaimer.
    fn put(&self, place: usize, kept: Option<KeptList>) {
        let former = std::mem::replace(&mut *self.places[place].lock(), kept);
        if let Some(former) = former {
            self.bytes.fetch_sub(former.bytes, Relaxed);
        }
    }
}

fn is_old(kept: &KeptList, now_ms: u64) -> bool {
    let max_s = MAX_AGE_S.load(Relaxed);
    max_s != 0 && now_ms.saturating_sub(kept.since_ms) > max_s * 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(n: usize) -> List {
        (0..n).map(|i| i.to_string()).collect()
    }

    #[test]
    fn a_cursor_finds_its_list_until_it_is_released_or_too_old() {
        let cursors = Cursors::default();
        let cursor = cursors.keep(7, &list(1000), 5_000).expect("kept");
        let told = Cursor::parse(cursor.at(300)).expect("of this kind");
        assert_eq!(told.position, 300);
        assert_eq!(cursors.find(told, 7, 6_000).map(|list| list.len()), Some(1000));
        assert!(cursors.find(told, 8, 6_000).is_none(), "U1");
        assert!(cursors.find(told, 7, 5_000 + 3_600_001).is_none());
        cursors.prune(5_000 + 3_600_001);
        assert_eq!(cursors.kept(), (0, 0), "U3");
        let other = cursors.keep(7, &list(10), 0).expect("kept");
        cursors.release(other);
        assert!(cursors.find(other, 7, 0).is_none());
        assert_eq!(Cursor::parse(17), None);
    }

    #[test]
    fn the_newest_take_the_places_of_the_oldest() {
        let cursors = Cursors::default();
        let all: Vec<Cursor> = (0..PLACES + 5).map(|_| cursors.keep(1, &list(1), 0).expect("kept")).collect();
        for (i, cursor) in all.iter().enumerate() {
            assert_eq!(cursors.find(*cursor, 1, 0).is_some(), i >= 5, "{i}");
        }
        assert_eq!(cursors.kept().0, PLACES);
    }
}
