//! The hash function of the process, seeded at start so that clients cannot choose colliding keys.
//!
//! Keys use disjoint bits of it for shard, directory, bucket and tag; collections use it for their tries. The
//! same bytes hash alike within one process, and differently in the next.

use ahash::RandomState;
use std::sync::LazyLock;

static SEED: LazyLock<RandomState> = LazyLock::new(|| {
    let mut words = [0u64; 4];
    for word in &mut words {
        let mut bytes = [0u8; 8];
        // Without a source of entropy, the clock and the address of a static still differ between processes.
        if getrandom::fill(&mut bytes).is_err() {
            bytes = (crate::clock::wall_ns() ^ (&raw const SEED as u64).rotate_left(32)).to_le_bytes();
        }
        *word = u64::from_le_bytes(bytes);
    }
    RandomState::with_seeds(words[0], words[1], words[2], words[3])
});

/// Hashes bytes; every bit of the result is usable. Cost: O(n), about 3 ns for 16 bytes.
#[inline]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    SEED.hash_one(bytes)
}

/// Hashes an integer. The result is unrelated to the hash of its text.
#[inline]
pub fn hash_u64(n: u64) -> u64 {
    SEED.hash_one(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_inputs_hash_alike_and_high_and_low_bits_both_vary() {
        assert_eq!(hash_bytes(b"key"), hash_bytes(b"key"));
        let high: std::collections::HashSet<u64> = (0..1000u64).map(|n| hash_u64(n) >> 48).collect();
        let low: std::collections::HashSet<u64> = (0..1000u64).map(|n| hash_u64(n) & 0xffff).collect();
        assert!(high.len() > 950 && low.len() > 950);
    }
}
