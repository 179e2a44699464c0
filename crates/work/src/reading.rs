//! Keys that a script's thread asks its loop for: the thread may lock no shard itself (scripts C5).

use crate::piece::{Desk, Piece, Step};
use keyspace::{Chunk, KeyBatches, Keyspace, Owned};
use parking_lot::{Condvar, Mutex};
use resp::OwnedArgs;
use std::sync::Arc;
use std::time::Duration;
use stdx::hash::hash_bytes;
use stdx::points::{self, Point};

/// The keys that are asked for.
pub enum Asked {
    /// Database and name.
    Named(Vec<(usize, Box<[u8]>)>),
    /// Words of a command, in one database: the number of the first, and the hash of each.
    Words(Arc<OwnedArgs>, usize, usize, Vec<u64>),
}

impl Asked {
    fn len(&self) -> usize {
        match self {
            Asked::Named(keys) => keys.len(),
            Asked::Words(_, _, _, hashes) => hashes.len(),
        }
    }
}

/// Keys of an active snapshot to be read, and the thread that waits for them.
pub struct ReadKeys {
    pub lsn: keyspace::Lsn,
    /// The time at which the keys count as used, if they do.
    pub used_ms: Option<u64>,
    pub asked: Asked,
    /// The values of the named ones.
    pub found: Vec<Option<Owned>>,
    /// The values of the words' keys.
    pub batches: KeyBatches,
    /// The number of keys around the first to read along with it, the hash up to which they go, and the keys.
    pub near: usize,
    pub until: u64,
    pub around: Around,
    /// A part of the whole in place of keys: database, first hash, and about how many keys.
    pub part: Option<(usize, u64, usize)>,
    pub chunk: Chunk,
    /// It could not be read, because of a mistake in the program.
    pub broken: bool,
    pub reply: Arc<Answer<Box<ReadKeys>>>,
}

/// Neighbours read at a stretch, some 10 µs.
const NEAR_AT_ONCE: usize = 100;

/// A part of the hash order, from the first key on to before `to`, with all keys in it.
#[derive(Default)]
pub struct Around {
    pub to: u64,
    pub keys: KeyBatches,
}

impl ReadKeys {
    /// Reads some more. True when all is read. Cost: O(count + near).
    pub(crate) fn read_some(&mut self, keyspace: &Keyspace, count: usize) -> bool {
        if let Some((db, position, want)) = self.part {
            return keyspace.extend_chunk(self.lsn, db, position, want, &mut self.chunk);
        }
        let from = self.found.len() + self.batches.len();
        let end = (from + count).min(self.asked.len());
        match &self.asked {
            Asked::Named(keys) => {
                let batch = keys[from..end].iter().map(|(db, key)| (hash_bytes(key), *db, &**key));
                keyspace.read_batch(self.lsn, self.used_ms, batch, &mut self.found);
            }
            Asked::Words(words, db, first, hashes) => {
                let words = words.args();
                let batch = (from..end).map(|i| (hashes[i], words.at(first + i)));
                keyspace.read_many(self.lsn, self.used_ms, *db, batch, &mut self.batches);
            }
        }
        end == self.asked.len() && self.read_around(keyspace)
    }

    /// Reads some of the keys near the first one. True when that is enough.
    fn read_around(&mut self, keyspace: &Keyspace) -> bool {
        let Asked::Named(keys) = &self.asked else { return true };
        let Some((db, first)) = keys.first().filter(|_| self.near > 0) else { return true };
        let around = &mut self.around;
        let from = if around.to == 0 { hash_bytes(first) } else { around.to };
        let before = around.keys.len();
        around.to = keyspace.read_near(self.lsn, *db, from, NEAR_AT_ONCE, &mut around.keys);
        // Nothing is read where too many commits are under way.
        let stuck = around.to == from || around.to >= self.until;
        self.near = self.near.saturating_sub((around.keys.len() - before).max(NEAR_AT_ONCE / 4));
        stuck || self.near == 0
    }

    /// Gives the keys to the thread that asked.
    pub fn answer(self: Box<Self>) {
        let reply = self.reply.clone();
        reply.put(self);
    }
}

impl Piece for ReadKeys {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        // It only reads (X1).
        let read = stdx::panics::contain(|| {
            points::trip(Point::Load);
            self.read_some(&desk.work.keyspace, crate::works::KEYS)
        });
        if read == Ok(false) {
            return Step::More(self);
        }
        self.broken = read.is_err();
        self.answer();
        Step::Over(None)
    }
}

/// The place where a thread waits for its answer.
pub struct Answer<T> {
    slot: Mutex<Option<T>>,
    came: Condvar,
}

impl<T> Default for Answer<T> {
    fn default() -> Answer<T> {
        Answer { slot: Mutex::new(None), came: Condvar::new() }
    }
}

impl<T> Answer<T> {
    pub fn put(&self, read: T) {
        *self.slot.lock() = Some(read);
        self.came.notify_one();
    }

    /// Waits for the answer. `None`: it did not come within a second.
    pub fn wait(&self) -> Option<T> {
        let mut slot = self.slot.lock();
        while slot.is_none() {
            if self.came.wait_for(&mut slot, Duration::from_secs(1)).timed_out() {
                return slot.take();
            }
        }
        slot.take()
    }
}
