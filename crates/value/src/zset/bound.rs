//! Bounds of ranges. They become ranks, so that every range is a range of ranks.

use super::entry::{Prefix, Scored, decode, member, prefix};
use crate::ctree::{Entry, Probe, Tree};

/// A bound by score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScoreBound {
    Incl(f64),
    Excl(f64),
}

/// A bound by member, for sets whose scores are all equal. (In others the result is some range, as in Redis.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexBound<'a> {
    /// `-`: in front of all.
    Min,
    /// `+`: behind all.
    Max,
    Incl(&'a [u8]),
    Excl(&'a [u8]),
}

impl LexBound<'_> {
    /// Whether a member lies at or behind this minimum.
    pub fn is_before(self, member: &[u8]) -> bool {
        match self {
            LexBound::Min => true,
            LexBound::Max => false,
            LexBound::Incl(at) => member >= at,
            LexBound::Excl(at) => member > at,
        }
    }

    /// Whether a member lies behind this maximum.
    pub fn is_passed_by(self, member: &[u8]) -> bool {
        match self {
            LexBound::Min => true,
            LexBound::Max => false,
            LexBound::Incl(at) => member > at,
            LexBound::Excl(at) => member >= at,
        }
    }
}

/// A bound for [`super::ZSet::rank_lower`].
pub trait Bound: Copy + sealed::Sealed {
    /// The bound that admits exactly what this one excludes, from the other side.
    fn flipped(self) -> Self;
}

pub(super) mod sealed {
    pub trait Sealed {
        #[expect(private_interfaces, reason = "sealed: only this module's types implement it")]
        fn rank_in(&self, order: &super::Tree<super::Scored>) -> usize;
    }
}

impl Bound for ScoreBound {
    fn flipped(self) -> Self {
        match self {
            ScoreBound::Incl(score) => ScoreBound::Excl(score),
            ScoreBound::Excl(score) => ScoreBound::Incl(score),
        }
    }
}

impl Bound for LexBound<'_> {
    fn flipped(self) -> Self {
        match self {
            LexBound::Incl(member) => LexBound::Excl(member),
            LexBound::Excl(member) => LexBound::Incl(member),
            end => end,
        }
    }
}

impl sealed::Sealed for ScoreBound {
    #[expect(private_interfaces, reason = "sealed: only this module's types implement it")]
    fn rank_in(&self, order: &Tree<Scored>) -> usize {
        order.seek(self).rank()
    }
}

impl sealed::Sealed for LexBound<'_> {
    #[expect(private_interfaces, reason = "sealed: only this module's types implement it")]
    fn rank_in(&self, order: &Tree<Scored>) -> usize {
        match self {
            LexBound::Min => 0,
            LexBound::Max => order.len(),
            LexBound::Incl(at) => order.seek(&Lex { member: at, prefix: prefix(at), with: false }).rank(),
            LexBound::Excl(at) => order.seek(&Lex { member: at, prefix: prefix(at), with: true }).rank(),
        }
    }
}

impl ScoreBound {
    #[inline]
    fn keeps_out(&self, score: f64) -> bool {
        match *self {
            ScoreBound::Incl(bound) => score < bound,
            ScoreBound::Excl(bound) => score <= bound,
        }
    }
}

impl Probe<Scored> for ScoreBound {
    #[inline]
    fn main_before(&self, score: f64) -> bool {
        self.keeps_out(score)
    }

    #[inline]
    fn main_ties(&self, _: f64) -> bool {
        false
    }

    fn rest_before(&self, _: Prefix) -> Option<bool> {
        None
    }

    #[inline]
    fn before(&self, entry: Entry<'_>) -> bool {
        self.keeps_out(decode(entry).1)
    }
}

/// The place in front of a member, or behind it (`with`).
struct Lex<'a> {
    member: &'a [u8],
    prefix: Prefix,
    with: bool,
}

impl Probe<Scored> for Lex<'_> {
    #[inline]
    fn main_before(&self, _: f64) -> bool {
        false
    }

    #[inline]
    fn main_ties(&self, _: f64) -> bool {
        true
    }

    #[inline]
    fn rest_before(&self, prefix: Prefix) -> Option<bool> {
        (prefix != self.prefix).then_some(prefix < self.prefix)
    }

    #[inline]
    fn before(&self, entry: Entry<'_>) -> bool {
        let member = member(entry);
        member < self.member || (self.with && member == self.member)
    }
}
