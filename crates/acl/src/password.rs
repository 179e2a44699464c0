//! Passwords: their hashes, the comparison, and fresh ones.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// A SHA-256.
pub(crate) type Hash = [u8; 32];

pub(crate) fn hash(password: &[u8]) -> Hash {
    Sha256::digest(password).into()
}

/// Whether a hash is one of some. O(hashes), always all of them: the duration does not tell which.
pub(crate) fn is_among<'a>(hash: &Hash, known: impl Iterator<Item = &'a [u8]>) -> bool {
    let found = known.fold(subtle::Choice::from(0), |found, one| found | one.ct_eq(&hash[..]));
    found.into()
}

/// Reads 64 lower-case hexadecimal digits.
pub(crate) fn parse(text: &[u8]) -> Option<Hash> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut hash = Hash::default();
    if text.len() != 2 * hash.len() {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(hash)
}

pub(crate) fn shown(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A password of so many bits from random bytes, as hexadecimal digits. `bytes` has at least so many bits.
pub fn generate(bits: usize, bytes: &[u8]) -> String {
    let mut text = shown(bytes);
    text.truncate(bits.div_ceil(4));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_read_as_they_are_shown() {
        let known = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
        assert_eq!(shown(&hash(b"a")), known);
        assert_eq!(parse(known.as_bytes()), Some(hash(b"a")));
        for wrong in [&known[1..], &known.to_uppercase(), &known.replace('c', "g")] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
        let known = [hash(b"a"), hash(b"b")];
        let known = || known.iter().map(|hash| &hash[..]);
        assert!(is_among(&hash(b"b"), known()));
        assert!(!is_among(&hash(b"c"), known()) && !is_among(&hash(b""), known().take(0)));
    }

    #[test]
    fn a_generated_password_has_as_many_digits_as_its_bits_need() {
        assert_eq!(generate(5, &[0xab, 0xcd]), "ab");
        assert_eq!(generate(4, &[0xab]), "a");
        assert_eq!(generate(16, &[0xab, 0x0d]), "ab0d");
    }
}
