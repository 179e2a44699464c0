//! Shared by the tests of this crate: a seeded source of randomness, and texts of awkward lengths.

/// A small seeded generator (splitmix64).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// One of `keys` texts, the same text for the same key: mostly short, some up to `long` bytes long.
    pub(crate) fn text(&mut self, keys: u64, long: usize) -> Vec<u8> {
        let key = self.below(keys);
        let mut text = format!("k{key}").into_bytes();
        if long > 0 && key.is_multiple_of(3) {
            text.resize(text.len() + (key as usize * 37) % long, b'.');
        }
        text
    }
}

/// Number of seeds to try: fewer where the tests are interpreted.
pub(crate) fn rounds(n: u64) -> u64 {
    if cfg!(miri) { 1 } else { n }
}
