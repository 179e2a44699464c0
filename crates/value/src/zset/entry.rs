//! The form of members and scores in the tree, and the search for a place among them.

use crate::arc::Blob;
use crate::ctree::{Entry, Item, Kind, Probe};
use crate::elem::INLINE_MAX;
use crate::list::{short_int, short_len};

/// Bytes above which an integer score is written as a float.
const INT_MAX: usize = 6;

/// The kind of a sorted set's tree.
pub(super) enum Scored {}

impl Kind for Scored {
    /// The score.
    type Main = f64;
    type Rest = Prefix;

    #[inline]
    fn digest(entry: Entry<'_>) -> (f64, Prefix) {
        let (member, score) = decode(entry);
        (score, prefix(member))
    }

    #[inline]
    fn weight(entry: Entry<'_>) -> u64 {
        let (score, member) = split(entry);
        weight(score.len(), member.len())
    }
}

/// Bytes of an entry in the tree, slot and rounding aside.
#[inline]
fn weight(score: usize, member: usize) -> u64 {
    (2 + score + if member > INLINE_MAX { 8 + Blob::alloc_size(member) } else { member }) as u64
}

/// The first sixteen bytes, padded with zeros. Unequal prefixes order as their members do; equal ones do not
/// decide.
pub(super) type Prefix = [u64; 2];

#[inline]
pub(super) fn prefix(member: &[u8]) -> Prefix {
    let mut bytes = [0; 16];
    let len = member.len().min(16);
    bytes[..len].copy_from_slice(&member[..len]);
    let whole = u128::from_be_bytes(bytes);
    [(whole >> 64) as u64, whole as u64]
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
        return f(Item {
            tag: 1 + len as u8,
            head: &n.to_le_bytes()[..len],
            tail: member,
            weight: weight(len, member.len()),
        });
    }
    f(Item { tag: 0, head: &score.to_le_bytes(), tail: member, weight: weight(8, member.len()) })
}

/// The place of a member with a score: in front of the first entry that is not less.
pub(super) struct At<'a> {
    member: &'a [u8],
    score: f64,
    prefix: Prefix,
}

impl<'a> At<'a> {
    #[inline]
    pub fn new(member: &'a [u8], score: f64) -> Self {
        At { member, score, prefix: prefix(member) }
    }

    /// Whether the place is in front of the entry (member, score).
    #[inline]
    pub fn precedes(&self, (member, score): (&[u8], f64)) -> bool {
        self.score < score || (self.score == score && self.member < member)
    }
}

impl Probe<Scored> for At<'_> {
    #[inline]
    fn main_before(&self, score: f64) -> bool {
        score < self.score
    }

    #[inline]
    fn main_ties(&self, score: f64) -> bool {
        score == self.score
    }

    #[inline]
    fn rest_before(&self, prefix: Prefix) -> Option<bool> {
        (prefix != self.prefix).then_some(prefix < self.prefix)
    }

    #[inline]
    fn before(&self, entry: Entry<'_>) -> bool {
        let (member, score) = decode(entry);
        score < self.score || (score == self.score && member < self.member)
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
