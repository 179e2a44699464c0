//! A small seeded generator, so that a seed names the same run on every machine and for ever.
//!
//! SplitMix64: one addition and three multiplications per number, one word of state. Streams get their own
//! generator by hashing (seed, stream number), so the order in which workers take streams changes nothing.

#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    /// Streams of one seed are independent of each other.
    pub fn new(seed: u64, stream: u64) -> Rng {
        let mut rng = Rng(seed ^ stream.wrapping_mul(0xD134_2543_DE82_EF95));
        rng.next();
        rng.next();
        rng
    }

    /// Streams of a name are independent of those of other names, whatever others there are.
    pub fn named(seed: u64, name: &str, stream: u64) -> Rng {
        // FNV-1a, which is the same for ever.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Rng::new(seed ^ name.bytes().fold(0xcbf2_9ce4_8422_2325, mix), stream)
    }

    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..n`; `n` must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// An integer in `low..=high`.
    pub fn integer(&mut self, low: i64, high: i64) -> i64 {
        low + (self.next() % ((high - low) as u64 + 1)) as i64
    }

    /// True in `percent` of a hundred calls.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_the_same_numbers_for_ever() {
        let mut rng = Rng::new(1, 2);
        let numbers: Vec<u64> = (0..3).map(|_| rng.next()).collect();
        let mut again = Rng::new(1, 2);
        assert_eq!(numbers, [again.next(), again.next(), again.next()]);
        assert_ne!(Rng::new(1, 3).next(), numbers[0]);
        for _ in 0..1000 {
            assert!(rng.below(7) < 7 && (3..=5).contains(&rng.between(3, 5)));
            assert!((-9..=-8).contains(&rng.integer(-9, -8)));
        }
    }
}
