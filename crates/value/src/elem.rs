//! An element as it is stored: canonical decimal integers as integers, everything else as bytes.
//!
//! The text of an element determines its form (E1): [`Elem::parse`] is the only way from text. So two
//! elements are equal exactly if their forms are, and an integer hashes as an integer everywhere.

use crate::place;
use stdx::num::parse_i64;

/// Bytes above which an element is in its own block; a leaf holds a pointer to it.
pub const INLINE_MAX: usize = 512;

/// An element of a set or list, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elem<'a> {
    Int(i64),
    Bytes(&'a [u8]),
}

impl<'a> Elem<'a> {
    /// The form of a text (E1). O(1): texts of more than 20 bytes are not integers.
    #[inline]
    pub fn parse(text: &'a [u8]) -> Elem<'a> {
        match parse_i64(text) {
            Some(n) => Elem::Int(n),
            None => Elem::Bytes(text),
        }
    }

    /// The hash of the element, for the `_elem` functions of `Set`. O(length).
    #[inline]
    pub fn hash(&self) -> u64 {
        match *self {
            Elem::Int(n) => place::of_int(n),
            Elem::Bytes(bytes) => place::of_bytes(bytes),
        }
    }

    /// Length of the text.
    #[inline]
    pub fn len(&self) -> usize {
        match *self {
            Elem::Int(n) => {
                let digits = n.unsigned_abs().checked_ilog10().map_or(1, |log| log as usize + 1);
                digits + usize::from(n < 0)
            }
            Elem::Bytes(bytes) => bytes.len(),
        }
    }

    /// True for the empty text.
    pub fn is_empty(&self) -> bool {
        matches!(self, Elem::Bytes([]))
    }

    /// Appends the text to `out`.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>) {
        self.with(|text| out.extend_from_slice(text));
    }

    /// Calls `f` with the text.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        match *self {
            Elem::Int(n) => f(itoa::Buffer::new().format(n).as_bytes()),
            Elem::Bytes(bytes) => f(bytes),
        }
    }

    /// The text, owned.
    pub fn to_vec(&self) -> Vec<u8> {
        self.with(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_integers_are_integers() {
        for n in [0, 1, -1, 9, 10, 99, 100, -100, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
            let text = n.to_string();
            let elem = Elem::parse(text.as_bytes());
            assert_eq!(elem, Elem::Int(n));
            assert_eq!((elem.len(), elem.to_vec()), (text.len(), text.into_bytes()));
        }
        for text in [
            "",
            "-",
            "-0",
            "00",
            "01",
            "+1",
            " 1",
            "1 ",
            "1a",
            "9223372036854775808",
            "-9223372036854775809",
            "x",
        ] {
            assert_eq!(Elem::parse(text.as_bytes()), Elem::Bytes(text.as_bytes()));
        }
    }
}
