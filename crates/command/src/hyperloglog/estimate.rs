//! Hashes of elements, and the number of elements that some registers stand for.
//!
//! The estimate is Ertl's improved one ("New cardinality estimation algorithms for HyperLogLog sketches"). Only
//! the number of registers of each rank counts, so registers are first gathered into a histogram.

use super::sketch::REGISTERS;

/// Bits of a hash that choose the register.
const INDEX_BITS: u32 = 14;
/// Bits of a hash whose lowest one bit gives the rank.
const RANK_BITS: u32 = 64 - INDEX_BITS;
const SEED: u64 = 0xadc8_3b19;
/// 1 / (2 · ln 2).
const ALPHA: f64 = 0.721_347_520_444_481_7;

/// The number of registers of each rank.
pub(crate) type Histogram = [u32; 64];

/// The register of an element and the rank it gives. O(bytes).
pub(crate) fn place(element: &[u8]) -> (usize, u8) {
    let hash = murmur(element);
    // The guard bit limits the rank to 51.
    let rest = hash >> INDEX_BITS | 1 << RANK_BITS;
    (hash as usize & (REGISTERS - 1), rest.trailing_zeros() as u8 + 1)
}

/// MurmurHash64A, read as little endian.
fn murmur(bytes: &[u8]) -> u64 {
    const MUL: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |word: u64| {
        let word = word.wrapping_mul(MUL);
        (word ^ word >> 47).wrapping_mul(MUL)
    };
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(MUL);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        hash = (hash ^ mix(u64::from_le_bytes(*word))).wrapping_mul(MUL);
    }
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash = (hash ^ last).wrapping_mul(MUL);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(MUL);
    hash ^ hash >> 47
}

/// The estimated number of elements. Cost: about 100 floating-point operations. Registers that no element can
/// have made may give any number.
pub(crate) fn cardinality(ranks: &Histogram) -> i64 {
    let all = REGISTERS as f64;
    let top = RANK_BITS as usize;
    let mut sum = all * tau((all - f64::from(ranks[top + 1])) / all);
    for rank in (1..=top).rev() {
        sum = 0.5 * (sum + f64::from(ranks[rank]));
    }
    sum += all * sigma(f64::from(ranks[0]) / all);
    let estimate = (ALPHA * all * all / sum).round();
    // Redis converts what does not fit as its processor does.
    if estimate < i64::MAX as f64 { estimate as i64 } else { i64::MIN }
}

/// The correction for empty registers. Ends when the sum no longer changes.
fn sigma(part: f64) -> f64 {
    if part == 1.0 {
        return f64::INFINITY;
    }
    let (mut power, mut factor, mut sum) = (part, 1.0, part);
    loop {
        power *= power;
        let before = sum;
        sum += power * factor;
        factor += factor;
        if sum == before {
            return sum;
        }
    }
}

/// The correction for full registers. Ends when the sum no longer changes.
fn tau(part: f64) -> f64 {
    if part == 0.0 || part == 1.0 {
        return 0.0;
    }
    let (mut root, mut factor, mut sum) = (part, 1.0, 1.0 - part);
    loop {
        root = root.sqrt();
        let before = sum;
        factor *= 0.5;
        sum -= (1.0 - root).powi(2) * factor;
        if sum == before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_near_the_number_of_elements() {
        for n in [0, 1, 10, 1000, 30_000, 200_000u32] {
            let mut registers = vec![0u8; REGISTERS];
            for i in 0..n {
                let (at, rank) = place(format!("element-{i}").as_bytes());
                registers[at] = registers[at].max(rank);
            }
            let mut ranks = [0; 64];
            registers.iter().for_each(|rank| ranks[usize::from(*rank)] += 1);
            let off = (cardinality(&ranks) - i64::from(n)).unsigned_abs() as f64;
            assert!(off <= 0.03 * f64::from(n), "{n}: off by {off}");
        }
    }

    #[test]
    fn registers_that_nothing_makes_give_some_number() {
        for rank in 0..64 {
            let mut ranks = [0; 64];
            ranks[rank] = REGISTERS as u32;
            cardinality(&ranks);
        }
    }
}
