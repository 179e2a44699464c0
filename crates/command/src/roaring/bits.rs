//! Single bits and ranges of them: SETBIT, GETBIT, GETBITS, CLEARBITS, SETRANGE, SETFULL, BITCOUNT, BITPOS,
//! MIN, MAX, CLEAR.
//!
//! All cost O(log n) for each number named, n = bits, whatever the bitmap holds.

use super::{
    KEY_EXISTS, Narrow, Wide, Width, bit, checked, count, number, numbers, per_argument, rows, short,
};
use crate::table::{
    Command, DENYOOM, FAST, KeySpec, OW_INSERT, READONLY, RO_ACCESS, RW_UPDATE, Run, WRITE, acl,
};
use crate::{Cx, Error};
use keyspace::Class;
use resp::Args;
use value::Ints;

const READS: &[KeySpec] = &[KeySpec::one(1, RO_ACCESS)];
const UPDATES: &[KeySpec] = &[KeySpec::one(1, RW_UPDATE)];
const MAKES: &[KeySpec] = &[KeySpec::one(1, OW_INSERT)];

rows! {
    "setbit", 4, Write(setbit), WRITE | DENYOOM | FAST, UPDATES, short, "O(log N)",
        "Sets or clears a bit of a compressed bitmap and answers the old one.";
    "getbit", 3, Read(getbit), READONLY | FAST, READS, short, "O(log N)", "Answers a bit of a compressed bitmap.";
    "getbits", -3, Read(getbits), READONLY | FAST, READS, per_argument, "O(N) for N bits asked.",
        "Answers several bits of a compressed bitmap.";
    "clearbits", -3, Write(clearbits), WRITE | FAST, UPDATES, per_argument, "O(N) for N bits named.",
        "Clears several bits of a compressed bitmap.";
    "setrange", 4, Write(setrange), WRITE | DENYOOM | FAST, UPDATES, short, "O(log N), whatever the width.",
        "Sets the bits from one place up to, but not including, another.";
    "setfull", 2, Write(setfull), WRITE | DENYOOM | FAST, MAKES, short, "O(1)",
        "Makes a compressed bitmap with every bit set.";
    "bitcount", 2, Read(bitcount), READONLY | FAST, READS, short, "O(1)", "Counts the bits that are set.";
    "bitpos", 3, Read(bitpos), READONLY | FAST, READS, short, "O(log N)", "Finds the first bit that is set, or clear.";
    "min", 2, Read(min), READONLY | FAST, READS, short, "O(log N)", "Finds the first bit that is set.";
    "max", 2, Read(max), READONLY | FAST, READS, short, "O(log N)", "Finds the last bit that is set.";
    "clear", 2, Write(clear), WRITE | FAST, UPDATES, short, "O(1)", "Clears all bits and answers how many were set.";
}

/// `R.SETBIT key offset value`: sets or clears a bit and answers the old one.
///
/// Cost: O(log n), n = bits. Errors: WRONGTYPE, invalid offset, invalid value.
fn setbit<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let read = number::<W>(args.at(2), "offset").and_then(|at| Ok((at, bit(args.at(3), "value")?)));
    let (at, on) = checked::<W, _>(cx, key, read)?;
    let bits = cx.view.ints_or_new(key, W::KIND)?;
    let was = if on { !bits.insert(at) } else { bits.remove(at) };
    cx.view.changed(key, Class::Generic, "setbit");
    cx.out.int(was.into());
    Ok(())
}

/// `R.GETBIT key offset`: the bit, 0 without the key.
///
/// Cost: O(log n), n = bits. Errors: WRONGTYPE, invalid offset.
fn getbit<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let bits = cx.view.ints(key, W::KIND)?;
    let at = number::<W>(args.at(2), "offset")?;
    let hit = bits.is_some();
    cx.out.int(bits.is_some_and(|bits| bits.contains(at)).into());
    cx.view.count_lookup(key, hit);
    Ok(())
}

/// `R.GETBITS key offset [offset ...]`: the bits; an empty array without the key.
///
/// Cost: O(m · log n), m = offsets, n = bits. Errors: WRONGTYPE; invalid offset, if the key exists.
fn getbits<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let bits = cx.view.ints(key, W::KIND)?;
    let hit = bits.is_some();
    match bits {
        None => cx.out.array(0),
        Some(bits) => {
            let places = numbers::<W>(args.from(2), "offset")?;
            cx.out.array(places.len());
            places.into_iter().for_each(|at| cx.out.int(bits.contains(at).into()));
        }
    }
    cx.view.count_lookup(key, hit);
    Ok(())
}

/// `R.CLEARBITS key offset [offset ...] [COUNT]`: OK, or with COUNT the number of bits that were set. Null
/// without the key.
///
/// Cost: O(m · log n), m = offsets, n = bits. Errors: WRONGTYPE; invalid offset, if the key exists.
fn clearbits<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    if cx.view.ints(key, W::KIND)?.is_none() {
        cx.out.null();
        return Ok(());
    }
    let counts = args.last().is_some_and(|word| *word == *b"COUNT");
    let places = numbers::<W>(args.to(args.len() - usize::from(counts)).from(2), "offset")?;
    let cleared = remove::<W>(cx, key, &places)?;
    match counts {
        true => cx.out.int(cleared as i64),
        false => cx.out.ok(),
    }
    Ok(())
}

/// Clears some bits and gives the number of those that were set.
pub(super) fn remove<W: Width>(cx: &mut Cx<'_, '_>, key: &[u8], places: &[u64]) -> Result<usize, Error> {
    let Some(bits) = cx.view.ints_mut(key, W::KIND)? else { return Ok(0) };
    let cleared = places.iter().filter(|at| bits.remove(**at)).count();
    if cleared > 0 {
        cx.view.changed(key, Class::Generic, "setbit");
    }
    Ok(cleared)
}

/// `R.SETRANGE key start end`: sets bits and answers OK. `end` is the first position left alone, as in the
/// module's tests.
///
/// Cost: O(log n), n = bits, whatever the width. Errors: WRONGTYPE, invalid start, invalid end, `end` before
/// `start`.
fn setrange<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let read =
        number::<W>(args.at(2), "start").and_then(|start| Ok((start, number::<W>(args.at(3), "end")?)));
    let (start, end) = checked::<W, _>(cx, key, read)?;
    let bits = cx.view.ints(key, W::KIND)?;
    if end < start {
        return Err(Error::new("ERR invalid end: must be >= start"));
    }
    let was = bits.map(Ints::len);
    let bits = cx.view.ints_or_new(key, W::KIND)?;
    if start < end {
        bits.insert_range(start, end - 1);
    }
    if was != Some(bits.len()) {
        cx.view.changed(key, Class::Generic, "setbit");
    }
    cx.out.ok();
    Ok(())
}

/// `R.SETFULL key`: makes a bitmap with all bits set and answers OK.
///
/// Cost: O(1). Errors: WRONGTYPE, the key exists already.
fn setfull<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    if cx.view.ints(key, W::KIND)?.is_some() {
        return Err(KEY_EXISTS);
    }
    cx.view.ints_or_new(key, W::KIND)?.insert_range(0, W::MAX);
    cx.view.changed(key, Class::Generic, "setbit");
    cx.out.ok();
    Ok(())
}

/// `R.BITCOUNT key`: the number of set bits.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn bitcount<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let bits = cx.view.ints(args.at(1), W::KIND)?;
    let hit = bits.is_some();
    W::number(cx.out, bits.map_or(0, count));
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// Answers a position in the key's bitmap, or -1. Errors: WRONGTYPE.
fn place<W: Width>(
    cx: &mut Cx<'_, '_>,
    key: &[u8],
    find: impl FnOnce(&Ints) -> Option<u64>,
) -> Result<(), Error> {
    let bits = cx.view.ints(key, W::KIND)?;
    let hit = bits.is_some();
    match bits.and_then(find) {
        Some(at) => W::number(cx.out, at),
        None => cx.out.int(-1),
    }
    cx.view.count_lookup(key, hit);
    Ok(())
}

/// `R.BITPOS key bit`: the first such position, or -1. A bitmap ends with its last set bit; clear bits behind
/// it are not found.
///
/// Cost: O(log n), n = bits. Errors: WRONGTYPE, invalid bit.
fn bitpos<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let wanted = checked::<W, _>(cx, key, bit(args.at(2), "bit"))?;
    place::<W>(cx, key, |bits| match wanted {
        true => bits.min(),
        false => bits.next_absent(0).filter(|at| Some(*at) < bits.max()),
    })
}

/// `R.MIN key`: the position of the first set bit, or -1.
///
/// Cost: O(log n), n = bits. Errors: WRONGTYPE.
fn min<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    place::<W>(cx, args.at(1), Ints::min)
}

/// `R.MAX key`: the position of the last set bit, or -1.
///
/// Cost: O(log n), n = bits. Errors: WRONGTYPE.
fn max<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    place::<W>(cx, args.at(1), Ints::max)
}

/// `R.CLEAR key`: clears all bits and answers the number that were set, or null without the key.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn clear<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let Some(were) = cx.view.ints(key, W::KIND)?.map(count) else {
        cx.out.null();
        return Ok(());
    };
    if let (1.., Some(bits)) = (were, cx.view.ints_mut(key, W::KIND)?) {
        bits.clear();
        cx.view.changed(key, Class::Generic, "setbit");
    }
    cx.out.int(i64::try_from(were).unwrap_or(i64::MAX));
    Ok(())
}
