//! Loops over bytes, written so that the compiler makes vector code of them.

/// Set bits. Carry-save adders turn 16 words into one word of sixteens, so that few words need to be counted.
pub(super) fn count_ones(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<128>();
    let mut total = 0;
    let (mut ones, mut twos, mut fours, mut eights) = (0, 0, 0, 0);
    for block in blocks {
        let word = |i: usize| u64::from_ne_bytes(block[8 * i..8 * i + 8].try_into().unwrap_or_default());
        let mut carry4 = [0; 4];
        let mut carry8 = [0; 2];
        for half in 0..2 {
            for quarter in 0..2 {
                let at = 8 * half + 4 * quarter;
                let (a, b);
                (ones, a) = add(ones, word(at), word(at + 1));
                (ones, b) = add(ones, word(at + 2), word(at + 3));
                (twos, carry4[2 * half + quarter]) = add(twos, a, b);
            }
            (fours, carry8[half]) = add(fours, carry4[2 * half], carry4[2 * half + 1]);
        }
        let sixteens;
        (eights, sixteens) = add(eights, carry8[0], carry8[1]);
        total += 16 * u64::from(sixteens.count_ones());
    }
    total += 8 * u64::from(eights.count_ones()) + 4 * u64::from(fours.count_ones());
    total += 2 * u64::from(twos.count_ones()) + u64::from(ones.count_ones());
    total + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

/// Adds three bits in each of 64 columns: sum and carry.
#[inline]
fn add(a: u64, b: u64, c: u64) -> (u64, u64) {
    let both = a ^ b;
    (both ^ c, a & b | both & c)
}

/// The first byte that is not `byte`.
pub(super) fn first_other(bytes: &[u8], byte: u8) -> Option<usize> {
    let pattern = u64::from_ne_bytes([byte; 8]);
    let (blocks, _) = bytes.as_chunks::<64>();
    let same = |block: &&[u8; 64]| {
        let (words, _) = block.as_chunks::<8>();
        words.iter().fold(0, |differ, word| differ | (u64::from_ne_bytes(*word) ^ pattern)) == 0
    };
    let skipped = blocks.iter().take_while(same).count() * 64;
    bytes[skipped..].iter().position(|b| *b != byte).map(|at| skipped + at)
}

/// `f` of each byte of `to` and the one beside it.
#[inline]
pub(super) fn combine(to: &mut [u8], with: &[u8], f: impl Fn(u8, u8) -> u8) {
    to.iter_mut().zip(with).for_each(|(to, with)| *to = f(*to, *with));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counting_and_finding_agree_with_looking_at_every_byte(
            mut bytes in prop::collection::vec(prop_oneof![Just(0), Just(255), any::<u8>()], 0..700),
            same: bool,
            fill: bool,
        ) {
            if same {
                let last = bytes.len() * 9 / 10;
                bytes[..last].fill(if fill { 255 } else { 0 });
            }
            prop_assert_eq!(count_ones(&bytes), bytes.iter().map(|b| u64::from(b.count_ones())).sum::<u64>());
            for byte in [0, 255] {
                prop_assert_eq!(first_other(&bytes, byte), bytes.iter().position(|b| *b != byte));
            }
        }
    }
}
