//! The generator behind `math.random`: the 48-bit linear congruence of `lrand48`, with the same numbers on
//! every machine.

/// The state of the generator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Default for Random {
    /// A new start each time, so that engines do not repeat each other.
    fn default() -> Self {
        Random(stdx::hash::hash_u64(stdx::clock::mono_ns()) >> 16)
    }
}

impl Random {
    pub(crate) fn seeded(seed: i32) -> Random {
        Random((u64::from(seed as u32) << 16) | 0x330e)
    }

    /// The next 31 bits.
    fn step(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(0x5_deec_e66d).wrapping_add(0xb) & ((1 << 48) - 1);
        (self.0 >> 17) as u32
    }

    /// The next number, in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        const MAX: u32 = i32::MAX as u32;
        f64::from(self.step() % MAX) / f64::from(MAX)
    }
}
