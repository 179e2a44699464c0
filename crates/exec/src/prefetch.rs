//! The keys of a batch of commands, brought nearer before they run.

use crate::{Server, Session};
use resp::Batch;

/// Commands of a batch whose keys are looked at before they run.
const LOOKED_AT: usize = 32;
/// Different keys from which on fetching them together pays.
const FETCH_FROM: usize = 4;

/// Hashes of the first arguments of a batch's commands, as far as they are known.
#[derive(Default)]
pub struct Hashes {
    hashes: [u64; LOOKED_AT],
    known: u32,
}

impl Hashes {
    #[inline]
    pub fn of(&self, i: usize) -> Option<u64> {
        (i < LOOKED_AT && self.known >> i & 1 == 1).then(|| self.hashes[i])
    }
}

/// Fetches the keys of a batch of commands into the cache, as far as they are simple ones, and tells their
/// hashes.
pub fn prefetch(server: &Server, session: &Session, batch: &Batch, input: &[u8]) -> Hashes {
    let (mut known, mut different, mut n) = (Hashes::default(), [0u64; LOOKED_AT], 0);
    let mut last: (&[u8], u64) = (&[], 0);
    for i in 0..batch.len().min(LOOKED_AT) {
        let Some(key) = batch.args(i, input).get(1) else { continue };
        // For a command without a key there this fetches something for nothing; that is rare and harmless.
        if n == 0 || key != last.0 {
            last = (key, stdx::hash::hash_bytes(key));
            different[n] = last.1;
            n += 1;
        }
        known.hashes[i] = last.1;
        known.known |= 1 << i;
    }
    if n >= FETCH_FROM {
        server.keyspace.prefetch(session.db, &different[..n]);
    }
    known
}
