//! The keys that a job needs: their names, and their values as they are read.

use super::Body;
use keyspace::{KeyBatches, Keyspace, Lsn, Owned};

/// Bytes of a key to be read, and of the value found.
pub(super) const WANTED_BYTES: usize = size_of::<(u64, u32, Name)>() + size_of::<Option<Owned>>();

/// Keys to be read.
#[derive(Default)]
pub struct Wanted {
    /// Sorted by hash: hash, database, and where the name stands.
    pub keys: Vec<(u64, u32, Name)>,
    /// The values of the first keys.
    pub found: Vec<Option<Owned>>,
    /// Keys a handler asked for in vain.
    pub asked: KeyBatches,
}

/// The place of a key's name.
pub enum Name {
    /// This word of this call.
    Word(u32, u32),
    Own(Box<[u8]>),
}

impl Wanted {
    pub(super) fn sorted(mut keys: Vec<(u64, u32, Name)>) -> Wanted {
        keys.sort_unstable_by_key(|(hash, ..)| *hash);
        let found = Vec::with_capacity(keys.len());
        Wanted { keys, found, asked: KeyBatches::default() }
    }

    /// Reads the next keys at a snapshot. True when all are read. O(count).
    pub(crate) fn read_some(
        &mut self,
        body: &Body,
        keyspace: &Keyspace,
        (s, used_ms): (Lsn, Option<u64>),
        count: usize,
    ) -> bool {
        if self.found.len() == self.keys.len() {
            return keyspace.read_asked(s, used_ms, &mut self.asked, count);
        }
        let end = (self.found.len() + count).min(self.keys.len());
        let batch = self.keys[self.found.len()..end].iter();
        let batch = batch.map(|(hash, db, name)| (*hash, *db as usize, body.name(name)));
        keyspace.read_batch(s, used_ms, batch, &mut self.found);
        self.found.len() == self.keys.len() && self.asked.is_empty()
    }
}
