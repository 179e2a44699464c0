//! A small seeded generator: what the clients ask for follows from the seed. When they ask, and so what happens, does
//! not: a failing seed fails again with a good chance, not with certainty.

#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    /// Streams of one seed are independent of each other.
    pub fn new(seed: u64, stream: u64) -> Rng {
        let mut rng =
            Rng(seed.wrapping_mul(0xA076_1D64_78BD_642F) ^ stream.wrapping_mul(0xD134_2543_DE82_EF95));
        rng.next();
        rng.next();
        rng
    }

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

    /// True in `percent` of a hundred calls.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
