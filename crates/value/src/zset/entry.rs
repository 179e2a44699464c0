//! How members and scores lie in the tree, and how a place among them is found.

use std::cmp::Ordering;

use crate::ctree::{Entry, Item, Kind, Probe};
use crate::list::{short_int, short_len};

/// Integers of more bytes are written as they are.
const INT_MAX: usize = 6;

/// The kind of a sorted set's tree.
pub(super) enum Scored {}

/// An entry's score and the first sixteen bytes of its member, padded with zeros.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct Digest {
    pub score: f64,
    pub prefix: u128,
}

impl Kind for Scored {
    type Sep = Digest;

    #[inline]
    fn sep(entry: Entry<'_>) -> Digest {
        let (member, score) = decode(entry);
        Digest { score, prefix: prefix(member) }
    }

    #[inline]
    fn weight(entry: Entry<'_>) -> u64 {
        let outside = if entry.is_big() { entry.big().1.len() + 24 } else { 0 };
        (2 + entry.bytes.len() + outside) as u64
    }
}

/// The first sixteen bytes: unequal prefixes order as their members do, equal ones say nothing.
#[inline]
pub(super) fn prefix(member: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let len = member.len().min(16);
    bytes[..len].copy_from_slice(&member[..len]);
    u128::from_be_bytes(bytes)
}

#[inline]
pub(super) fn decode(entry: Entry<'_>) -> (&[u8], f64) {
    let (score, member) = split(entry);
    let score = match (score, entry.tag & 7) {
        (&[a, b, c, d, e, f, g, h], 0) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        (short, _) => short_int(short) as f64,
    };
    (member, score)
}

/// The written score and the member.
#[inline]
fn split(entry: Entry<'_>) -> (&[u8], &[u8]) {
    let width = match entry.tag & 7 {
        0 => 8,
        n => n as usize - 1,
    };
    if entry.is_big() { entry.big() } else { entry.bytes.split_at(width) }
}

/// The member alone.
#[inline]
pub(super) fn member(entry: Entry<'_>) -> &[u8] {
    split(entry).1
}

#[inline]
pub(super) fn with_item<R>(member: &[u8], score: f64, f: impl FnOnce(Item<'_>) -> R) -> R {
    let n = score as i64;
    // The round trip keeps fractions, -0.0 and the infinities as they are.
    if (n as f64).to_bits() == score.to_bits() && short_len(n) <= INT_MAX {
        let len = short_len(n);
        return f(Item { tag: 1 + len as u8, head: &n.to_le_bytes()[..len], tail: member });
    }
    f(Item { tag: 0, head: &score.to_le_bytes(), tail: member })
}

/// The place of a member with a score: in front of the first entry that is not less.
pub(super) struct At<'a> {
    member: &'a [u8],
    digest: Digest,
}

impl<'a> At<'a> {
    #[inline]
    pub fn new(member: &'a [u8], score: f64) -> Self {
        At { member, digest: Digest { score, prefix: prefix(member) } }
    }

    /// Whether the entry lies in front of (member, score).
    #[inline]
    pub fn precedes(&self, member: &[u8], score: f64) -> bool {
        self.digest.score < score || (self.digest.score == score && self.member < member)
    }
}

impl Probe<Scored> for At<'_> {
    #[inline]
    fn sep_before(&self, sep: &Digest) -> Option<bool> {
        let order = sep.score.partial_cmp(&self.digest.score).unwrap_or(Ordering::Equal);
        match order.then(sep.prefix.cmp(&self.digest.prefix)) {
            Ordering::Less => Some(true),
            Ordering::Greater => Some(false),
            Ordering::Equal => None,
        }
    }

    #[inline]
    fn before(&self, entry: Entry<'_>) -> bool {
        let (member, score) = decode(entry);
        score < self.digest.score || (score == self.digest.score && member < self.member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctree::Leaf;

    #[test]
    fn scores_come_back_bit_by_bit() {
        let whole =
            [0.0, 1.0, -1.0, 127.0, 128.0, 1e9, 1.7e12, -140_737_488_355_328.0, 140_737_488_355_328.0, 1e300];
        let odd = [-0.0, 0.1, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, f64::MAX, 9.3e18, -9.3e18];
        for score in whole.into_iter().chain(odd) {
            for member in [&b""[..], b"m", &[7; 600]] {
                let mut leaf = Leaf::with_space(0);
                with_item(member, score, |item| leaf.insert(0, item));
                let (m, s) = decode(leaf.entry(0));
                assert_eq!((m, s.to_bits()), (member, score.to_bits()));
            }
        }
    }
}
