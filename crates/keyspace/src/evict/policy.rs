//! The byte that eviction keeps per entry, and its rules.
//!
//! ```text
//!   byte:  freq (4 bits, 0–14) │ age (4 bits)      0xff: no entry
//!
//!   hit     age ≠ 0 ──► freq + 1, age 0            (age = 0: nothing, so a burst counts once)
//!   tick    age + 1, up to 15                      (a tick is a fourteenth of the cache in new keys)
//!   victim  the lowest of a sample, by a table of 256 ranks that one threshold τ makes
//! ```
//!
//! - E1: time is counted in insertions of new keys, never in accesses or seconds.
//! - E2: among entries unused for τ ticks the least used one goes; among equals the *youngest*. That resists
//!   loops and scans. Younger entries are in their grace period: they go after all others, the oldest first.
//! - E3: without a threshold ([`Threshold::Lru`]) the oldest entry goes; among equals the least used. So τ
//!   spans a family from "frequency with history" to LRU.

/// The byte of a slot without an entry.
pub(crate) const EMPTY: u8 = 0xff;
/// The highest frequency: 15 with age 15 would be [`EMPTY`].
const FREQ_MAX: u8 = 14;
const AGE_MAX: u8 = 15;
/// Ticks in which as many new keys come as the cache has entries.
pub(crate) const TICKS: u64 = 14;
/// Frequencies are halved after this many ticks, when four times as many new keys came as the cache has
/// entries.
const HALVING: u32 = 4 * TICKS as u32;

const LOW: u64 = 0x0101_0101_0101_0101;

/// When an entry's grace period ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Threshold {
    /// After this many ticks.
    Ticks(u8),
    /// Never: least recently used.
    Lru,
}

/// The candidate thresholds.
pub(crate) const CANDIDATES: [Threshold; 5] =
    [Threshold::Ticks(1), Threshold::Ticks(2), Threshold::Ticks(4), Threshold::Ticks(8), Threshold::Lru];
pub(crate) const FIRST: usize = 2;

/// Ranks by byte. The lowest rank goes first; 255 is no entry.
pub(crate) type Ranks = [u8; 256];

/// The ranks of all candidates.
pub(crate) static RANKS: [Ranks; 5] = {
    let mut all = [[255; 256]; 5];
    let mut i = 0;
    while i < 5 {
        all[i] = ranks(CANDIDATES[i]);
        i += 1;
    }
    all
};

const fn ranks(threshold: Threshold) -> Ranks {
    let mut ranks = [255; 256];
    let mut code = 0;
    while code < 240 {
        let (mine, mut below, mut other) = (order(code, threshold), 0, 0);
        while other < 240 {
            if order(other, threshold) < mine {
                below += 1;
            }
            other += 1;
        }
        ranks[code as usize] = below;
        code += 1;
    }
    ranks
}

/// The order of eviction: a lower number goes first (E2, E3).
const fn order(code: u8, threshold: Threshold) -> u16 {
    let (freq, age) = ((code >> 4) as u16, (code & 15) as u16);
    let oldest_first = (15 - age) << 4 | freq;
    match threshold {
        Threshold::Lru => oldest_first,
        Threshold::Ticks(ticks) if age >= ticks as u16 => freq << 4 | age,
        Threshold::Ticks(_) => 1 << 8 | oldest_first,
    }
}

/// The byte of an entry that was just put. `freq`: what its ghost remembered.
pub(crate) const fn fresh(freq: u8) -> u8 {
    (if freq < FREQ_MAX { freq } else { FREQ_MAX }) << 4
}

pub(crate) const fn freq(byte: u8) -> u8 {
    byte >> 4
}

/// The byte of an entry with this frequency and age in ticks.
pub(crate) fn byte(freq: u8, age: u8) -> u8 {
    fresh(freq) | age.min(AGE_MAX)
}

/// The byte after a use; `None` if it does not change.
#[inline]
pub(crate) fn used(byte: u8) -> Option<u8> {
    (byte & AGE_MAX != 0).then(|| fresh(freq(byte) + 1))
}

/// Ages eight bytes by `ticks`.
#[inline]
pub(crate) fn older(word: u64, ticks: u32) -> u64 {
    let ages = word & (LOW * 15);
    let sum = ages + LOW * u64::from(ticks.min(15));
    let over = sum & (LOW * 16);
    let ages = (sum | (over - (over >> 4))) & (LOW * 15);
    word & !(LOW * 15) | ages
}

/// Whether the frequencies are halved between two ticks.
pub(crate) fn halves(from: u32, to: u32) -> bool {
    from / HALVING != to / HALVING
}

/// Halves the frequencies of those of eight bytes whose grace period is over.
pub(crate) fn halved(word: u64, threshold: Threshold) -> u64 {
    let above = match threshold {
        Threshold::Ticks(ticks) => ticks,
        Threshold::Lru => TICKS as u8,
    };
    let halve = |byte: u8| match byte {
        EMPTY => EMPTY,
        byte if byte & AGE_MAX > above => (freq(byte) / 2) << 4 | byte & AGE_MAX,
        byte => byte,
    };
    u64::from_le_bytes(word.to_le_bytes().map(halve))
}

/// Moves eight bytes from one tick to a later one.
#[inline]
pub(crate) fn moved(word: u64, from: u32, to: u32, threshold: Threshold) -> u64 {
    let word = older(word, to.wrapping_sub(from));
    if halves(from, to) { halved(word, threshold) } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ageing_of_eight_bytes_agrees_with_one_at_a_time() {
        for ticks in [0, 1, 3, 14, 15, 16, 1000] {
            for first in 0..=255u8 {
                let bytes: [u8; 8] = std::array::from_fn(|i| first.wrapping_add((37 * i) as u8));
                let plain = bytes.map(|b| b & 0xf0 | (u32::from(b & 15) + ticks).min(15) as u8);
                assert_eq!(older(u64::from_le_bytes(bytes), ticks).to_le_bytes(), plain);
            }
        }
        assert_eq!(older(u64::MAX, 7), u64::MAX);
        for threshold in CANDIDATES {
            assert_eq!(halved(u64::MAX, threshold), u64::MAX);
        }
    }

    #[test]
    fn the_least_of_a_sample_is_who_the_rules_say() {
        let goes_first = |threshold, a: (u8, u8), b: (u8, u8)| {
            let ranks = ranks(threshold);
            ranks[byte(a.0, a.1) as usize] < ranks[byte(b.0, b.1) as usize]
        };
        let four = Threshold::Ticks(4);
        // (freq, age): past the grace period the least used, of equals the youngest.
        assert!(goes_first(four, (0, 4), (1, 15)));
        assert!(goes_first(four, (2, 5), (2, 9)));
        // An entry in its grace period goes after all others, the oldest first.
        assert!(goes_first(four, (14, 4), (0, 3)));
        assert!(goes_first(four, (5, 3), (0, 2)));
        assert!(goes_first(Threshold::Lru, (14, 9), (0, 8)));
        assert!(goes_first(Threshold::Lru, (1, 9), (2, 9)));
        for threshold in CANDIDATES {
            let ranks = ranks(threshold);
            assert!(ranks[EMPTY as usize] == 255 && ranks[..240].iter().all(|rank| *rank < 240));
        }
    }

    #[test]
    fn a_burst_counts_once_a_tick_and_frequency_has_a_ceiling() {
        let mut byte = fresh(0);
        assert_eq!(used(byte), None);
        for n in 1..40 {
            byte = older(u64::from(byte), 1) as u8;
            byte = used(byte).unwrap();
            assert_eq!((freq(byte), byte & 15), (n.min(14), 0));
        }
        assert_eq!(halved(u64::from(super::byte(9, 5)), Threshold::Ticks(4)) as u8, super::byte(4, 5));
        assert_eq!(halved(u64::from(super::byte(9, 4)), Threshold::Ticks(4)) as u8, super::byte(9, 4));
    }
}
