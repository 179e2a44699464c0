//! The place of an element in a hash trie: its hash, bent so that tries use memory evenly.
//!
//! A trie cuts the space of hashes into regions of 2^-k, and all regions of one size hold about as many
//! elements. Plain hashes would make nearly all leaves of a large trie equally long at any time. They would
//! outgrow one size of block after the other together, and leave pages half in use: 30 % of a large set's
//! memory.
//!
//! Bent hashes give the first regions twice as many elements as the last, and the others something between.
//! Every length in between is then equally frequent, however many elements there are. Blocks given up by some
//! leaves are the ones that others need next. (The idea is that of spiral storage.)
//!
//! - B1: the place depends on the element alone. Tries use nothing else of a hash, for order, tags and
//!   cursors.

/// The place of bytes. O(length).
#[inline]
pub(crate) fn of_bytes(bytes: &[u8]) -> u64 {
    bend(stdx::hash::hash_bytes(bytes))
}

/// The place of an integer.
#[inline]
pub(crate) fn of_int(n: i64) -> u64 {
    bend(stdx::hash::hash_u64(n as u64))
}

/// (2x + x²) / 3 for x in 0..1: the density of the results falls from 3/2 to 3/4.
#[inline]
fn bend(hash: u64) -> u64 {
    const THIRD: u64 = u64::MAX / 3;
    let square = high(hash, hash);
    high(hash, 2 * THIRD) + high(square, THIRD)
}

/// The upper half of a product.
#[inline]
fn high(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::bend;

    #[test]
    fn places_ascend_with_the_hash_and_lie_twice_as_dense_at_the_start() {
        let steps: Vec<u64> = (0..=1024u64).map(|i| bend((i << 54).wrapping_sub(i / 1024))).collect();
        assert!(steps.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(steps[0] == 0 && steps[1024] > u64::MAX - 8);
        let below = |place: u64| steps.iter().filter(|&&step| step < place).count();
        let (first, last) = (below(1 << 60), 1024 - below(15 << 60));
        assert!((88..98).contains(&first) && (46..52).contains(&last), "{first} {last}");
    }
}
