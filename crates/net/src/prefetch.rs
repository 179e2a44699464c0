//! Prefetching: the keys of a batch of commands are brought into the cache before the commands run.

use keyspace::Keyspace;
use resp::Batch;

/// Commands of a batch whose keys are prefetched.
const LOOKED_AT: usize = 32;
/// Number of different keys from which on prefetching pays.
const FETCH_FROM: usize = 4;

/// Hashes of the first arguments of a batch's commands, where they are known.
#[derive(Default)]
pub(crate) struct Hashes {
    hashes: [u64; LOOKED_AT],
    known: u32,
}

impl Hashes {
    #[inline]
    pub(crate) fn of(&self, i: usize) -> Option<u64> {
        (i < LOOKED_AT && self.known >> i & 1 == 1).then(|| self.hashes[i])
    }
}

/// Prefetches the keys of a batch's simple commands. Gives their hashes. O(commands), 32 at most.
pub(crate) fn prefetch(keyspace: &Keyspace, db: usize, batch: &Batch, input: &[u8]) -> Hashes {
    let (mut known, mut different, mut n) = (Hashes::default(), [0u64; LOOKED_AT], 0);
    let mut last: (&[u8], u64) = (&[], 0);
    for i in 0..batch.len().min(LOOKED_AT) {
        let Some(key) = batch.args(i, input).get(1) else { continue };
        // A first argument that is no key is prefetched in vain; that is rare and harmless.
        if n == 0 || key != last.0 {
            last = (key, stdx::hash::hash_bytes(key));
            different[n] = last.1;
            n += 1;
        }
        known.hashes[i] = last.1;
        known.known |= 1 << i;
    }
    if n >= FETCH_FROM {
        keyspace.prefetch(db, &different[..n]);
    }
    known
}
