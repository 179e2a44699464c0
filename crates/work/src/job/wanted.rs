//! The keys that a job needs: their names, and their values as they are read.

use super::Body;
use keyspace::{KeyBatches, Keyspace, Lsn, Owned};

/// Bytes of a key to be read, and of the value found.
pub(super) const WANTED_BYTES: usize = size_of::<(u64, u32, Name)>() + size_of::<Option<Owned>>();

/// The state of the keyspace at which keys are read.
#[derive(Clone, Copy)]
pub(super) struct When {
    pub(super) lsn: Lsn,
    /// The time at which the keys count as used, if they do. Those of TOUCH do, now.
    pub(super) used_ms: Option<u64>,
    pub(super) now_ms: u64,
}

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
    pub(super) fn read_some(
        &mut self,
        body: &Body,
        keyspace: &Keyspace,
        When { lsn, used_ms, now_ms }: When,
        count: usize,
    ) -> bool {
        if self.found.len() == self.keys.len() {
            return keyspace.read_asked(lsn, used_ms, &mut self.asked, count);
        }
        let end = (self.found.len() + count).min(self.keys.len());
        let keys = &self.keys[self.found.len()..end];
        let used_by = |name: &Name| used_ms.or_else(|| body.touches(name).then_some(now_ms));
        for keys in keys.chunk_by(|(.., one), (.., next)| used_by(one) == used_by(next)) {
            let batch = keys.iter().map(|(hash, db, name)| (*hash, *db as usize, body.name(name)));
            keyspace.read_batch(lsn, used_by(&keys[0].2), batch, &mut self.found);
        }
        self.found.len() == self.keys.len() && self.asked.is_empty()
    }
}
