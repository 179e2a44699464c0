//! Loops over bytes, written so that the compiler makes vector code.

/// The index of the first byte other than `byte`.
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

/// Replaces each byte of `to` by `f` of it and the byte beside it.
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
        fn finding_agrees_with_looking_at_every_byte(
            mut bytes in prop::collection::vec(prop_oneof![Just(0), Just(255), any::<u8>()], 0..700),
            same: bool,
            fill: bool,
        ) {
            if same {
                let last = bytes.len() * 9 / 10;
                bytes[..last].fill(if fill { 255 } else { 0 });
            }
            for byte in [0, 255] {
                prop_assert_eq!(first_other(&bytes, byte), bytes.iter().position(|b| *b != byte));
            }
        }
    }
}
