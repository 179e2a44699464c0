//! The 1,024 words of a bitmap: combined, counted, filled, with the widest instructions the processor has.
//!
//! The loops are written once; compiled for AVX2 they run where the processor is found to have it.

use std::ops::ControlFlow;

/// One bit for each number of a chunk.
pub(super) type Words = [u64; 1024];

pub(super) const NONE: Words = [0; 1024];

/// The operation between two sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Elements of both.
    And,
    /// Elements of either.
    Or,
    /// Elements of exactly one.
    Xor,
    /// Elements of the first that the second has not.
    AndNot,
}

impl Op {
    #[inline(always)]
    fn on(self, a: u64, b: u64) -> u64 {
        match self {
            Op::And => a & b,
            Op::Or => a | b,
            Op::Xor => a ^ b,
            Op::AndNot => a & !b,
        }
    }
}

#[inline(always)]
fn combine_with(a: &Words, b: &Words, out: &mut Words, op: impl Fn(u64, u64) -> u64) -> u32 {
    let mut count = 0u64;
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = op(a, b);
        count += u64::from(out.count_ones());
    }
    count as u32
}

#[inline(always)]
fn combine_any(op: Op, a: &Words, b: &Words, out: &mut Words) -> u32 {
    match op {
        Op::And => combine_with(a, b, out, |a, b| Op::And.on(a, b)),
        Op::Or => combine_with(a, b, out, |a, b| Op::Or.on(a, b)),
        Op::Xor => combine_with(a, b, out, |a, b| Op::Xor.on(a, b)),
        Op::AndNot => combine_with(a, b, out, |a, b| Op::AndNot.on(a, b)),
    }
}

#[inline(always)]
fn count_any(words: &Words) -> u32 {
    words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>() as u32
}

#[inline(always)]
fn count_and_any(a: &Words, b: &Words) -> u32 {
    a.iter().zip(b).map(|(a, b)| u64::from((a & b).count_ones())).sum::<u64>() as u32
}

#[inline(always)]
fn count_runs_any(words: &Words) -> u32 {
    // A run begins where a bit is set and the one before it is not.
    let first = u64::from((words[0] & !(words[0] << 1)).count_ones());
    let rest = words.windows(2).map(|two| u64::from((two[1] & !(two[1] << 1 | two[0] >> 63)).count_ones()));
    (first + rest.sum::<u64>()) as u32
}

/// The same loops with AVX2.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{Op, Words};

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn combine(op: Op, a: &Words, b: &Words, out: &mut Words) -> u32 {
        super::combine_any(op, a, b, out)
    }

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn count(words: &Words) -> u32 {
        super::count_any(words)
    }

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn count_and(a: &Words, b: &Words) -> u32 {
        super::count_and_any(a, b)
    }

    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn count_runs(words: &Words) -> u32 {
        super::count_runs_any(words)
    }

    #[inline]
    pub(super) fn here() -> bool {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("popcnt")
    }
}

/// Combines two bitmaps into `out` and returns the number of set bits.
pub(super) fn combine(op: Op, a: &Words, b: &Words, out: &mut Words) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if wide::here() {
        // SAFETY: the processor has AVX2.
        return unsafe { wide::combine(op, a, b, out) };
    }
    combine_any(op, a, b, out)
}

/// Bits set.
pub(super) fn count(words: &Words) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if wide::here() {
        // SAFETY: the processor has AVX2.
        return unsafe { wide::count(words) };
    }
    count_any(words)
}

/// Bits set in both.
pub(super) fn count_and(a: &Words, b: &Words) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if wide::here() {
        // SAFETY: the processor has AVX2.
        return unsafe { wide::count_and(a, b) };
    }
    count_and_any(a, b)
}

/// Runs of set bits.
pub(super) fn count_runs(words: &Words) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if wide::here() {
        // SAFETY: the processor has AVX2.
        return unsafe { wide::count_runs(words) };
    }
    count_runs_any(words)
}

#[inline]
pub(super) fn has(words: &Words, low: u16) -> bool {
    words[low as usize / 64] >> (low % 64) & 1 == 1
}

#[inline]
pub(super) fn set(words: &mut Words, low: u16) {
    words[low as usize / 64] |= 1 << (low % 64);
}

#[inline]
pub(super) fn clear(words: &mut Words, low: u16) {
    words[low as usize / 64] &= !(1 << (low % 64));
}

#[inline]
pub(super) fn toggle(words: &mut Words, low: u16) {
    words[low as usize / 64] ^= 1 << (low % 64);
}

/// Calls `f` for each word that a range touches, with the bits of the range in it.
#[inline]
fn masks(first: u16, last: u16, mut f: impl FnMut(usize, u64)) {
    let (from, to) = (first as usize / 64, last as usize / 64);
    for i in from..=to {
        let mut mask = u64::MAX;
        if i == from {
            mask &= u64::MAX << (first % 64);
        }
        if i == to {
            mask &= u64::MAX >> (63 - last % 64);
        }
        f(i, mask);
    }
}

/// Combines the bitmap with the range from `first` to `last`, as if that were the second operand.
pub(super) fn with_range(op: Op, words: &mut Words, first: u16, last: u16) {
    debug_assert!(op != Op::And);
    masks(first, last, |i, mask| words[i] = op.on(words[i], mask));
}

/// Bits set from `first` to `last`.
pub(super) fn count_range(words: &Words, first: u16, last: u16) -> u32 {
    let mut count = 0;
    masks(first, last, |i, mask| count += (words[i] & mask).count_ones());
    count
}

/// The first set bit from `low` on.
pub(super) fn next(words: &Words, low: u16) -> Option<u16> {
    let mut i = low as usize / 64;
    let mut word = words[i] & u64::MAX << (low % 64);
    while word == 0 {
        i += 1;
        word = *words.get(i)?;
    }
    Some((i * 64) as u16 + word.trailing_zeros() as u16)
}

/// The first bit from `low` on that is not set.
pub(super) fn next_absent(words: &Words, low: u16) -> Option<u16> {
    let mut i = low as usize / 64;
    let mut word = !words[i] & u64::MAX << (low % 64);
    while word == 0 {
        i += 1;
        word = !*words.get(i)?;
    }
    Some((i * 64) as u16 + word.trailing_zeros() as u16)
}

/// The last set bit.
pub(super) fn last(words: &Words) -> Option<u16> {
    let i = words.iter().rposition(|&word| word != 0)?;
    Some((i * 64) as u16 + 63 - words[i].leading_zeros() as u16)
}

/// The set bit with `rank` set bits before it.
pub(super) fn nth(words: &Words, mut rank: u32) -> Option<u16> {
    for (i, &word) in words.iter().enumerate() {
        let ones = word.count_ones();
        if rank < ones {
            let left = (0..rank).fold(word, |word, _| word & (word - 1));
            return Some((i * 64) as u16 + left.trailing_zeros() as u16);
        }
        rank -= ones;
    }
    None
}

/// Calls `f` for every set bit, ascending.
#[inline]
pub(super) fn each(words: &Words, mut f: impl FnMut(u16)) {
    for (i, &word) in words.iter().enumerate() {
        let mut word = word;
        while word != 0 {
            f((i * 64) as u16 + word.trailing_zeros() as u16);
            word &= word - 1;
        }
    }
}

/// The positions of the set bits, ascending.
#[inline]
pub fn ones(bits: u64) -> impl Iterator<Item = usize> {
    let mut left = bits;
    std::iter::from_fn(move || {
        let at = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (at < 64).then_some(at)
    })
}

/// Calls `f` for the position of each set bit, ascending.
#[inline]
pub fn each_one<B>(bits: u128, mut f: impl FnMut(usize) -> ControlFlow<B>) -> ControlFlow<B> {
    ones(bits as u64).try_for_each(&mut f)?;
    ones((bits >> 64) as u64).try_for_each(|at| f(64 + at))
}

/// The lowest `count` bits set, up to 128.
#[inline]
pub fn all_of(count: usize) -> u128 {
    if count == 0 { 0 } else { u128::MAX >> (128 - count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    #[test]
    fn both_ways_of_counting_and_combining_agree() {
        let mut rng = Rng::new(5);
        for density in [1u64, 3, 60] {
            let mut make = || -> Words {
                std::array::from_fn(|_| {
                    (0..density).fold(rng.next(), |word, _| word | rng.next() & rng.next())
                })
            };
            let (a, b) = (make(), make());
            for op in [Op::And, Op::Or, Op::Xor, Op::AndNot] {
                let (mut wide, mut plain) = (NONE, NONE);
                assert_eq!(combine(op, &a, &b, &mut wide), combine_any(op, &a, &b, &mut plain));
                assert!(wide == plain && count(&wide) == count_any(&plain));
                assert_eq!(count_runs(&wide), count_runs_any(&plain));
                assert_eq!(count_and(&wide, &a), count_and_any(&plain, &a));
                let mut runs = 0;
                let mut before = false;
                (0..=u16::MAX).for_each(|low| {
                    runs += u32::from(has(&wide, low) && !before);
                    before = has(&wide, low);
                });
                assert_eq!(runs, count_runs(&wide));
            }
        }
    }
}
