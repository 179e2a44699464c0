//! Repeatable random data: the same bytes for every server and every run.

/// SplitMix64's mixing step: an invertible scramble of `n`.
pub fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of random numbers.
pub struct Random(pub u64);

impl Random {
    #[allow(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Sixteen hexadecimal digits that differ for different `n`.
pub fn hex16(n: u64) -> [u8; 16] {
    let bits = mix(n);
    std::array::from_fn(|i| HEX[(bits >> (60 - 4 * i)) as usize & 15])
}

/// A 40-byte key: `session:` and 32 hexadecimal digits.
pub fn key40(n: u64) -> [u8; 40] {
    let mut key = *b"session:0000000000000000ffffffffffffffff";
    key[8..24].copy_from_slice(&hex16(n));
    key[24..].copy_from_slice(&hex16(!n));
    key
}

/// A 40-byte value that differs for different `n`.
pub fn value40(n: u64) -> [u8; 40] {
    let mut value = *b"value-of:0000000000000000:some-more-text";
    value[9..25].copy_from_slice(&hex16(n ^ 0x5555));
    value
}

/// `prefix` and `n` in twelve decimal digits, as redis-benchmark writes its keys.
pub fn numbered<'a>(prefix: &[u8], n: u64, room: &'a mut [u8; 32]) -> &'a [u8] {
    let end = prefix.len() + 12;
    room[..prefix.len()].copy_from_slice(prefix);
    let mut rest = n;
    for slot in room[prefix.len()..end].iter_mut().rev() {
        *slot = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    &room[..end]
}

/// Visits 0..n in a scattered but repeatable order, each once. Cost: O(1) a step, no memory.
pub struct Scattered {
    n: u64,
    mask: u64,
    at: u64,
    left: u64,
}

impl Scattered {
    pub fn new(n: u64) -> Scattered {
        let size = n.max(1).next_power_of_two();
        Scattered { n, mask: size - 1, at: 0, left: size }
    }
}

impl Iterator for Scattered {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        while self.left > 0 {
            self.left -= 1;
            // A linear congruence with c odd and a ≡ 1 (mod 4) has full period modulo a power of two.
            self.at =
                (self.at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f)) & self.mask;
            if self.at < self.n {
                return Some(self.at);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_order_visits_each_number_once() {
        for n in [0, 1, 2, 3, 7, 8, 1000, 4097] {
            let mut seen: Vec<u64> = Scattered::new(n).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn keys_have_their_length_and_differ() {
        assert_ne!(key40(1), key40(2));
        assert_eq!(numbered(b"key:", 42, &mut [0; 32]), b"key:000000000042");
    }
}
