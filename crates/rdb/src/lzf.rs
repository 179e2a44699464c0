//! LZF, the compression of strings in this format: packing and unpacking.
//!
//! ```text
//! 000lllll                       then l + 1 bytes as they are
//! lllooooo oooooooo              l + 2 bytes (l < 7) from o + 1 bytes back in what was unpacked so far
//! 111ooooo llllllll oooooooo     l + 9 of them
//! ```
//!
//! A copy may reach into its own output. It then repeats the last o + 1 bytes.
//!
//! ```text
//! packing:  ...a b c d...a b c e      a table of hashes remembers where each three bytes were last
//!              ▲─────────┘ back       equal bytes become a copy, bytes between copies stay
//! ```
//!
//! - F1: a block is packed by itself: its copies start and end in it. So packed blocks in a row are the
//!   packed form of the whole, and equal texts have equal packed forms.
//! - F2: the table only guesses. Its answer is compared with the text.

use crate::Malformed;

/// Most bytes packed at once. Positions in it fit in 16 bits (F1).
pub(crate) const BLOCK: usize = 64 * 1024;

const LITERAL_MAX: usize = 32;
const COPY_MIN: usize = 3;
const COPY_MAX: usize = 264;
/// The least number of copied bytes that needs the long form of a copy.
const COPY_LONG: usize = 9;
const BACK_MAX: usize = 8192;
/// After this many bytes without a copy only every second position is tried, later every third, and so on.
const PATIENCE: usize = 64;

/// Size of the table, as a power of two.
const FEWEST_PLACES_LOG2: u32 = 6;
const MOST_PLACES_LOG2: u32 = 13;

/// Packs blocks one after the other. Takes up to 16 KB.
#[derive(Default)]
pub(crate) struct Packer {
    /// Where three bytes with this hash were last seen in the block (F2).
    places: Vec<u16>,
    /// A 32-bit hash shifted by this is an index into the table.
    shift: u32,
}

impl Packer {
    /// A packer for a text of `len` bytes. A short text gets a small table.
    pub(crate) fn new(len: usize) -> Packer {
        let mut packer = Packer::default();
        packer.fit(len);
        packer
    }

    /// Goes on with a text of `len` bytes. O(size of the table) at worst.
    pub(crate) fn fit(&mut self, len: usize) {
        let log2 = len.max(1).ilog2().clamp(FEWEST_PLACES_LOG2, MOST_PLACES_LOG2);
        self.places.resize(1 << log2, 0);
        self.shift = 32 - log2;
    }

    /// Appends the packed form of a block of at most [`BLOCK`] bytes. It is at most a 32nd longer. O(length).
    pub(crate) fn pack(&mut self, block: &[u8], out: &mut Vec<u8>) {
        debug_assert!(block.len() <= BLOCK);
        self.places.fill(0);
        let (mut at, mut copied_to) = (0, 0);
        while let Some(three) = three(block, at) {
            let seen = self.exchange(three, at);
            let back = at - seen;
            if !(1..=BACK_MAX).contains(&back) || self::three(block, seen) != Some(three) {
                at += 1 + (at - copied_to) / PATIENCE;
                continue;
            }
            let count = common(&block[seen..], &block[at..]).min(COPY_MAX);
            put_literals(&block[copied_to..at], out);
            put_copy(back, count, out);
            at += count;
            copied_to = at;
            // So the text behind a copy is found again together with the copy's end.
            if let Some(three) = self::three(block, at - 1) {
                self.exchange(three, at - 1);
            }
        }
        put_literals(&block[copied_to..], out);
    }

    /// Where these three bytes may have been seen before, or 0. Remembers `at` for them.
    fn exchange(&mut self, [a, b, c]: [u8; COPY_MIN], at: usize) -> usize {
        let hash = u32::from_le_bytes([a, b, c, 0]).wrapping_mul(0x9e37_79b1);
        usize::from(std::mem::replace(&mut self.places[(hash >> self.shift) as usize], at as u16))
    }
}

fn three(block: &[u8], at: usize) -> Option<[u8; COPY_MIN]> {
    block.get(at..)?.first_chunk().copied()
}

/// Length of the common start of two texts. O(that length).
fn common(one: &[u8], other: &[u8]) -> usize {
    const WORD: usize = size_of::<u64>();
    let mut same = 0;
    for (a, b) in one.chunks_exact(WORD).zip(other.chunks_exact(WORD)).take(COPY_MAX / WORD) {
        if a != b {
            break;
        }
        same += WORD;
    }
    let rest = one[same..].iter().zip(&other[same..]).take(WORD);
    same + rest.take_while(|(a, b)| a == b).count()
}

fn put_literals(bytes: &[u8], out: &mut Vec<u8>) {
    for literal in bytes.chunks(LITERAL_MAX) {
        out.push(literal.len() as u8 - 1);
        out.extend_from_slice(literal);
    }
}

fn put_copy(back: usize, count: usize, out: &mut Vec<u8>) {
    let offset = back - 1;
    let (high, low) = ((offset >> 8) as u8, offset as u8);
    match count {
        ..COPY_LONG => out.extend_from_slice(&[((count - 2) as u8) << 5 | high, low]),
        _ => out.extend_from_slice(&[7 << 5 | high, (count - COPY_LONG) as u8, low]),
    }
}

/// Three bytes unpack to at most this many.
const MOST_FROM_THREE: usize = 264;

/// Unpacks to exactly `len` bytes. O(`len`), which is checked against the input before memory is taken (D1).
pub(crate) fn unpack(mut input: &[u8], len: usize) -> Result<Vec<u8>, Malformed> {
    if len > input.len().saturating_mul(MOST_FROM_THREE) {
        return Err(Malformed);
    }
    let mut out = Vec::with_capacity(len);
    while let Some(control) = next(&mut input) {
        let control = usize::from(control);
        if control < 32 {
            let (literal, rest) = input.split_at_checked(control + 1).ok_or(Malformed)?;
            out.extend_from_slice(literal);
            input = rest;
        } else {
            let count = match control >> 5 {
                7 => usize::from(next(&mut input).ok_or(Malformed)?) + 9,
                count => count + 2,
            };
            let back = ((control & 31) << 8 | usize::from(next(&mut input).ok_or(Malformed)?)) + 1;
            copy_back(&mut out, back, count)?;
        }
        if out.len() > len {
            return Err(Malformed);
        }
    }
    if out.len() == len { Ok(out) } else { Err(Malformed) }
}

fn next(input: &mut &[u8]) -> Option<u8> {
    let (first, rest) = input.split_first()?;
    *input = rest;
    Some(*first)
}

fn copy_back(out: &mut Vec<u8>, back: usize, count: usize) -> Result<(), Malformed> {
    let from = out.len().checked_sub(back).ok_or(Malformed)?;
    if back >= count {
        out.extend_from_within(from..from + count);
    } else {
        (from..from + count).for_each(|i| out.push(out[i]));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn literals_and_copies_unpack() {
        assert_eq!(unpack(b"", 0), Ok(vec![]));
        assert_eq!(unpack(b"\x02abc", 3), Ok(b"abc".to_vec()));
        assert_eq!(unpack(b"\x02abc\x20\x02", 6), Ok(b"abcabc".to_vec()));
        // A copy of itself: "a", and then the byte before, 9 + 90 times.
        assert_eq!(unpack(b"\x00a\xe0\x5a\x00", 100), Ok(vec![b'a'; 100]));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (input, len) in [
            (&b"\x02ab"[..], 3),
            (b"\x02abc", 2),
            (b"\x02abc", 4),
            (b"\x20\x00", 3),
            (b"\x00a\xe0", 100),
            (b"\x00a\x20", 4),
            (b"\x00a\x20\x01", 4),
            (b"\x00a", usize::MAX),
            (b"", 1),
        ] {
            assert_eq!(unpack(input, len), Err(Malformed), "{input:?}");
        }
    }

    /// All blocks of a text, packed.
    fn packed(text: &[u8]) -> Vec<u8> {
        let (mut packer, mut out) = (Packer::new(text.len()), Vec::new());
        text.chunks(BLOCK).for_each(|block| packer.pack(block, &mut out));
        out
    }

    #[test]
    fn what_repeats_is_packed() {
        assert_eq!(packed(b""), b"");
        assert_eq!(packed(b"abc"), b"\x02abc");
        assert_eq!(packed(b"abcabc"), b"\x02abc\x20\x02");
        assert_eq!(packed(&[b'a'; 100]), b"\x00a\xe0\x5a\x00");
        // The farthest reachable position, and one beyond it.
        for (between, copies) in [(BACK_MAX - 3, true), (BACK_MAX - 2, false)] {
            let text = [b"xyz", &vec![b'-'; between][..], b"xyz"].concat();
            assert_eq!(packed(&text).ends_with(b"\x3f\xff"), copies, "{between}");
            assert_eq!(unpack(&packed(&text), text.len()), Ok(text));
        }
        let zeros = vec![0; 3 * BLOCK + 1];
        assert!(packed(&zeros).len() < zeros.len() / 80);
    }

    /// Texts that repeat themselves near and far, with all lengths of literals and copies, across the end of
    /// a block.
    fn repeating() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..80),
            proptest::collection::vec(0u8..3, 0..80),
            (any::<u8>(), 0..20_000usize).prop_map(|(byte, n)| vec![byte; n]),
        ];
        let parts = proptest::collection::vec(part, 1..8);
        (parts, proptest::collection::vec(any::<proptest::sample::Index>(), 0..40))
            .prop_map(|(parts, order)| order.iter().flat_map(|index| index.get(&parts)).copied().collect())
    }

    proptest! {
        #[test]
        fn what_is_packed_unpacks(text in prop_oneof![any::<Vec<u8>>(), repeating()]) {
            let packed = packed(&text);
            prop_assert!(packed.len() <= text.len() + text.len().div_ceil(LITERAL_MAX));
            prop_assert_eq!(unpack(&packed, text.len()), Ok(text));
        }

        #[test]
        fn what_is_common_is_counted(one in proptest::collection::vec(0u8..2, 0..600), n in 0usize..600, tail: u8) {
            let other = [&one[..n.min(one.len())], &[tail]].concat();
            let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(common(&one, &other).min(COPY_MAX), same.min(COPY_MAX));
        }

        #[test]
        fn any_bytes_are_unpacked_or_refused(input: Vec<u8>, len in 0usize..100_000) {
            if let Ok(out) = unpack(&input, len) {
                prop_assert_eq!(out.len(), len);
            }
        }

        #[test]
        fn literals_of_any_bytes_come_back(bytes: Vec<u8>) {
            let mut packed = Vec::new();
            for chunk in bytes.chunks(32) {
                packed.push(chunk.len() as u8 - 1);
                packed.extend_from_slice(chunk);
            }
            prop_assert_eq!(unpack(&packed, bytes.len()), Ok(bytes));
        }
    }
}
