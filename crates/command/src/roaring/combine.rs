//! Several bitmaps: BITOP, DIFF, CONTAINS, JACCARD.
//!
//! They are combined container by container. The result shares the containers that only one of them has. A
//! run longer than a quantum goes to a worker, at a snapshot.

use super::arrays::replace;
use super::{Narrow, Wide, Width, checked, count, number, paced, present, rows, whole};
use crate::table::{Command, DENYOOM, KeySpec, OW_INSERT, READONLY, RO_ACCESS, RW_UPDATE, Run, WRITE, acl};
use crate::{Budget, Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use value::Ints;
use value::ints::Op;

const BOTH: &[KeySpec] = &[KeySpec::range(1, 1, 1, RO_ACCESS)];
const INTO: &[KeySpec] = &[KeySpec::one(1, OW_INSERT), KeySpec::range(2, 1, 1, RO_ACCESS)];
const FROM_MANY: &[KeySpec] = &[KeySpec::one(2, RW_UPDATE), KeySpec::range(3, -1, 1, RO_ACCESS)];

rows! {
    "bitop", -4, Write(bitop), WRITE | DENYOOM, FROM_MANY, bitop_cost, "O(N) for N containers that differ.",
        "Combines compressed bitmaps into another and counts its bits.";
    "diff", 4, Write(diff), WRITE | DENYOOM, INTO, diff_cost, "O(N) for N containers that differ.",
        "Keeps the bits of one bitmap that another has not.";
    "contains", -3, Read(contains), READONLY, BOTH, two_cost, "O(N) for N containers that differ.",
        "Tells whether two bitmaps have bits in common, or one has all of the other's.";
    "jaccard", 3, Read(jaccard), READONLY, BOTH, two_cost, "O(N) for N containers that differ.",
        "Answers the bits in both of two bitmaps as a part of the bits in either.";
}

fn sum_of(view: &View<'_>, keys: Args<'_>) -> usize {
    keys.iter().map(|key| whole(view, key)).sum()
}

fn bitop_cost(view: &View<'_>, args: Args<'_>) -> usize {
    sum_of(view, args.from(3))
}

fn diff_cost(view: &View<'_>, args: Args<'_>) -> usize {
    sum_of(view, args.from(2))
}

fn two_cost(view: &View<'_>, args: Args<'_>) -> usize {
    sum_of(view, args.to(3).from(1))
}

static EMPTY: Ints = Ints::new();

/// The way sources become a result. X is the first of them.
#[derive(Clone, Copy)]
enum How {
    /// Bits that all have, any has, or an odd number of them has.
    Each(Op),
    /// Bits that X has and any other.
    AndOr,
    /// Bits that exactly one has.
    One,
    /// Bits that X has and no other.
    Diff,
    /// Bits that any other has and X has not.
    Diff1,
}

impl How {
    fn parse(word: &[u8]) -> Option<How> {
        Some(match word {
            b"AND" => How::Each(Op::And),
            b"OR" => How::Each(Op::Or),
            b"XOR" => How::Each(Op::Xor),
            b"ANDOR" => How::AndOr,
            b"ONE" => How::One,
            b"DIFF" => How::Diff,
            b"DIFF1" => How::Diff1,
            _ => return None,
        })
    }
}

/// Combines two bitmaps and charges for it.
fn two(budget: &mut Budget<'_>, a: &Ints, op: Op, b: &Ints) -> Result<Ints, Error> {
    paced(budget, |pause| a.combine(op, b, pause))
}

/// Combines the first with each of the others in turn.
fn fold(budget: &mut Budget<'_>, op: Op, first: &Ints, others: &[&Ints]) -> Result<Ints, Error> {
    others.iter().try_fold(first.clone(), |so_far, other| two(budget, &so_far, op, other))
}

fn combined(budget: &mut Budget<'_>, how: How, sources: &[&Ints]) -> Result<Ints, Error> {
    let (x, others) = sources.split_first().ok_or(Error::Syntax)?;
    match how {
        How::Each(op) => fold(budget, op, x, others),
        How::Diff => fold(budget, Op::AndNot, x, others),
        How::AndOr => {
            let any = fold(budget, Op::Or, &EMPTY, others)?;
            two(budget, x, Op::And, &any)
        }
        How::Diff1 => {
            let any = fold(budget, Op::Or, &EMPTY, others)?;
            two(budget, &any, Op::AndNot, x)
        }
        How::One => {
            let (mut once, mut more) = (Ints::clone(x), Ints::new());
            for other in others {
                let again = two(budget, &once, Op::And, other)?;
                more = two(budget, &more, Op::Or, &again)?;
                let odd = two(budget, &once, Op::Xor, other)?;
                once = two(budget, &odd, Op::AndNot, &more)?;
            }
            Ok(once)
        }
    }
}

/// `R.BITOP operation destkey key [key ...]`, `R.BITOP NOT destkey key [last]`: the number of bits of the
/// result. Missing keys have no bits. The destination keeps its expiry, except with NOT.
///
/// Cost: O(n), n = containers of all sources that differ. Errors: WRONGTYPE of any key, syntax, arity,
/// invalid last.
fn bitop<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if *args.at(1) == *b"NOT" {
        return bitop_not::<W>(cx, args);
    }
    let how = How::parse(args.at(1)).ok_or(Error::Syntax)?;
    if args.len() < 5 {
        return Err(Error::Arity(W::BITOP.to_owned()));
    }
    let key = args.at(2);
    cx.view.ints(key, W::KIND)?;
    let sources = args.from(3).iter().map(|key| Ok(cx.view.ints(key, W::KIND)?.unwrap_or(&EMPTY)));
    let sources = sources.collect::<Result<Vec<&Ints>, Error>>()?;
    let result = combined(&mut cx.budget, how, &sources)?;
    W::number(cx.out, count(&result));
    *cx.view.ints_or_new(key, W::KIND)? = result;
    cx.view.changed(key, Class::Generic, "set");
    Ok(())
}

/// Inverts the bits up to the last of the source, or up to `last` if that is more.
fn bitop_not<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if args.len() > 5 {
        return Err(Error::Arity(W::BITOP.to_owned()));
    }
    let key = args.at(2);
    let read = args.get(4).map(|word| number::<W>(word, "last")).transpose();
    let asked = checked::<W, _>(cx, key, read)?;
    cx.view.ints(key, W::KIND)?;
    let source = cx.view.ints(args.at(3), W::KIND)?.unwrap_or(&EMPTY);
    let mut all = Ints::new();
    if let Some(last) = source.max().max(asked) {
        all.insert_range(0, last);
    }
    let result = two(&mut cx.budget, &all, Op::AndNot, source)?;
    W::number(cx.out, count(&result));
    cx.view.put(key, W::value(result), None);
    cx.view.changed(key, Class::Generic, "set");
    Ok(())
}

/// `R.DIFF destkey key1 key2`: stores the bits of the first that the second has not, and answers OK.
///
/// Cost: O(n), n = containers that differ. Errors: WRONGTYPE of any key, no such key.
fn diff<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    cx.view.ints(key, W::KIND)?;
    let (a, b) = (present::<W>(cx.view, args.at(2))?, present::<W>(cx.view, args.at(3))?);
    let result = two(&mut cx.budget, a, Op::AndNot, b)?;
    replace::<W>(cx, key, result)
}

/// `R.CONTAINS key1 key2 [ALL | ALL_STRICT | EQ]`: 1 or 0. Without a mode the bitmaps must have bits in
/// common. ALL: the first has all bits of the second. ALL_STRICT: it also has others. EQ: they are equal.
///
/// Cost: O(n), n = containers that differ. Errors: WRONGTYPE, no such key, invalid mode.
fn contains<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (a, b) = (present::<W>(cx.view, args.at(1))?, present::<W>(cx.view, args.at(2))?);
    let mode = if args.len() == 4 { args.at(3) } else { b"" };
    let budget = &mut cx.budget;
    let is = match mode {
        b"" if args.len() != 4 => paced(budget, |pause| a.intersects(b, pause))?,
        b"ALL" => paced(budget, |pause| b.is_subset(a, pause))?,
        b"ALL_STRICT" => b.len() < a.len() && paced(budget, |pause| b.is_subset(a, pause))?,
        b"EQ" => a.len() == b.len() && paced(budget, |pause| a.is_subset(b, pause))?,
        _ => return Err(format!("ERR invalid mode argument: {}", String::from_utf8_lossy(mode)).into()),
    };
    cx.out.int(is.into());
    Ok(())
}

/// `R.JACCARD key1 key2`: the bits of both divided by the bits of either; -1 for two bitmaps without bits.
///
/// Cost: O(n), n = containers that differ. Errors: WRONGTYPE, no such key.
fn jaccard<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (a, b) = (present::<W>(cx.view, args.at(1))?, present::<W>(cx.view, args.at(2))?);
    let part = match *args.at(1) == *args.at(2) {
        true => Some(1.0),
        false => paced(&mut cx.budget, |pause| a.jaccard(b, pause))?,
    };
    cx.out.double(part.unwrap_or(-1.0));
    Ok(())
}
