//! Unpacks LZF, the compression of strings in this format.
//!
//! ```text
//! 000lllll                       then l + 1 bytes as they are
//! lllooooo oooooooo              l + 2 bytes (l < 7) from o + 1 bytes back in what was unpacked so far
//! 111ooooo llllllll oooooooo     l + 9 of them
//! ```
//!
//! A copy may run into what it writes itself: it then repeats the last o + 1 bytes.

use crate::Malformed;

/// Three bytes make at most so many.
const MOST_FROM_THREE: usize = 264;

/// Unpacks to exactly `len` bytes. Cost: O(`len`), which is checked against the input before memory is taken (D1).
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
        // A copy of itself: "a" and then 9 + 90 times the byte before.
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

    proptest! {
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
