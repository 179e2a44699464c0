//! Bits as lists of positions, and as text: SETINTARRAY, APPENDINTARRAY, DELETEINTARRAY, GETINTARRAY,
//! RANGEINTARRAY, SETBITARRAY, GETBITARRAY.
//!
//! Long answers stream from an O(1) clone. Their length is limited, because a bitmap that takes no memory may
//! have 2^64 bits. The limits: [`STREAMED_MAX`] positions, [`RANGE_MAX`] where the answer must be held whole,
//! text up to `proto-max-bulk-len`.

use super::bits::remove;
use super::{Narrow, Wide, Width, checked, numbers, per_argument, rows, short};
use crate::options::check_string_size;
use crate::table::{
    Command, DENYOOM, KeySpec, OW_INSERT, READONLY, RO_ACCESS, RW_DELETE, RW_INSERT, Run, WRITE, acl,
};
use crate::{Cx, Error, STREAM_FROM, Stream};
use keyspace::{Class, View};
use resp::{Args, Reply};
use std::marker::PhantomData;
use value::{Held, Ints};

const READS: &[KeySpec] = &[KeySpec::one(1, RO_ACCESS)];
const MAKES: &[KeySpec] = &[KeySpec::one(1, OW_INSERT)];
const ADDS: &[KeySpec] = &[KeySpec::one(1, RW_INSERT)];
const REMOVES: &[KeySpec] = &[KeySpec::one(1, RW_DELETE)];

rows! {
    "setintarray", -3, Write(setintarray), WRITE | DENYOOM, MAKES, per_argument, "O(N) for N bits named.",
        "Makes a compressed bitmap in which these bits are set.";
    "appendintarray", -3, Write(appendintarray), WRITE | DENYOOM, ADDS, per_argument, "O(N) for N bits named.",
        "Sets several bits of a compressed bitmap.";
    "deleteintarray", -3, Write(deleteintarray), WRITE, REMOVES, per_argument, "O(N) for N bits named.",
        "Clears several bits of a compressed bitmap, making it if needed.";
    "getintarray", 2, Read(getintarray), READONLY, READS, short, "O(N) for N bits that are set.",
        "Lists the bits that are set.";
    "rangeintarray", 4, Read(rangeintarray), READONLY, READS, short, "O(log N) and the bits answered.",
        "Lists the bits that are set, from one rank to another.";
    "setbitarray", 3, Write(setbitarray), WRITE | DENYOOM, MAKES, per_byte, "O(N) for N characters.",
        "Makes a compressed bitmap of a text of zeros and ones.";
    "getbitarray", 2, Read(getbitarray), READONLY, READS, short, "O(N) for a last bit N.",
        "Writes a compressed bitmap as a text of zeros and ones.";
}

/// Most positions that RANGEINTARRAY answers, and any command whose answer is held whole.
const RANGE_MAX: u64 = 100_000_000;
/// Most positions that are streamed.
const STREAMED_MAX: u64 = 1 << 32;

fn too_large(max: u64) -> Error {
    format!("Roaring: range too large: maximum {max} elements").into()
}

/// A character costs at most a step of a look-up.
fn per_byte(_: &View<'_>, args: Args<'_>) -> usize {
    args.at(2).len()
}

/// `R.SETINTARRAY key value [value ...]`: OK. The old bitmap and its expiry are replaced.
///
/// Cost: O(m · log n), m = values, n = bits. Errors: WRONGTYPE, invalid value.
fn setintarray<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let places = checked::<W, _>(cx, key, numbers::<W>(args.from(2), "value"))?;
    replace::<W>(cx, key, places.into_iter().collect())
}

/// Replaces a bitmap, with its expiry, and answers OK. Errors: WRONGTYPE.
pub(super) fn replace<W: Width>(cx: &mut Cx<'_, '_>, key: &[u8], bits: Ints) -> Result<(), Error> {
    cx.view.ints(key, W::KIND)?;
    cx.view.put(key, W::value(bits), None);
    cx.view.changed(key, Class::Generic, "set");
    cx.out.ok();
    Ok(())
}

/// `R.APPENDINTARRAY key value [value ...]`: sets bits and answers OK.
///
/// Cost: O(m · log n), m = values, n = bits. Errors: WRONGTYPE, invalid value.
fn appendintarray<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let places = checked::<W, _>(cx, key, numbers::<W>(args.from(2), "value"))?;
    let bits = cx.view.ints_or_new(key, W::KIND)?;
    if places.into_iter().filter(|at| bits.insert(*at)).count() > 0 {
        cx.view.changed(key, Class::Generic, "setbit");
    }
    cx.out.ok();
    Ok(())
}

/// `R.DELETEINTARRAY key value [value ...]`: clears bits and answers OK. A missing key becomes a bitmap
/// without bits.
///
/// Cost: O(m · log n), m = values, n = bits. Errors: WRONGTYPE, invalid value.
fn deleteintarray<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let places = checked::<W, _>(cx, key, numbers::<W>(args.from(2), "value"))?;
    if cx.view.ints(key, W::KIND)?.is_none() {
        return replace::<W>(cx, key, Ints::new());
    }
    remove::<W>(cx, key, &places)?;
    cx.out.ok();
    Ok(())
}

/// `R.GETINTARRAY key`: the positions of all set bits.
///
/// Cost: O(n), n = set bits; a long answer is streamed. Errors: WRONGTYPE, range too large.
fn getintarray<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    answer::<W>(cx, args.at(1), 0, u64::MAX)
}

/// `R.RANGEINTARRAY key start end`: the positions of the bits between two ranks, both included.
///
/// Cost: O(log n) and the reply, n = set bits; a long answer is streamed. Errors: WRONGTYPE, invalid start,
/// invalid end, range too large.
fn rangeintarray<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let read = numbers::<W>(args.to(3).from(2), "start").and_then(|start| {
        let end = numbers::<W>(args.from(3), "end")?;
        Ok((start[0], end[0]))
    });
    let (start, end) = checked::<W, _>(cx, key, read)?;
    if start > end {
        cx.view.ints(key, W::KIND)?;
        cx.out.array(0);
        return Ok(());
    }
    let most = (end - start).saturating_add(1);
    if most > RANGE_MAX {
        cx.view.ints(key, W::KIND)?;
        return Err(too_large(RANGE_MAX));
    }
    answer::<W>(cx, key, start, most)
}

/// Answers up to `most` positions from a rank on. Errors: WRONGTYPE, range too large.
fn answer<W: Width>(cx: &mut Cx<'_, '_>, key: &[u8], rank: u64, most: u64) -> Result<(), Error> {
    let bits = cx.view.ints(key, W::KIND)?;
    let hit = bits.is_some();
    let empty = Ints::new();
    let bits = bits.unwrap_or(&empty);
    let left = bits.len().saturating_sub(rank.into()).min(most.into()) as u64;
    let limit = if cx.caller.may_stream { STREAMED_MAX } else { RANGE_MAX };
    if left > limit {
        return Err(too_large(limit));
    }
    if !cx.caller.may_stream {
        cx.budget.charge(left as usize / 2)?;
    }
    let places =
        ArrayPlaces::<W> { bits: bits.clone(), from: bits.nth(rank).unwrap_or(0), left, width: PhantomData };
    cx.view.count_lookup(key, hit);
    cx.out.array(left as usize);
    write(cx, left as usize, places)
}

/// Streams a long answer and writes a short one.
fn write(cx: &mut Cx<'_, '_>, len: usize, mut stream: impl Stream + 'static) -> Result<(), Error> {
    if len > STREAM_FROM {
        return cx.stream(stream);
    }
    if len > 0 {
        while stream.fill(cx.out, usize::MAX) {}
    }
    Ok(())
}

/// The positions of the bits from one on.
struct ArrayPlaces<W> {
    bits: Ints,
    from: u64,
    left: u64,
    width: PhantomData<W>,
}

impl<W: Width> Stream for ArrayPlaces<W> {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        let mut places = self.bits.iter_from(self.from);
        while self.left > 0 && out.len() < end {
            let Some(at) = places.next() else { unreachable!("as many as were counted") };
            W::number(out, at);
            // Behind the largest number nothing is left.
            self.from = at.wrapping_add(1);
            self.left -= 1;
        }
        self.left > 0
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.bits.held().into_iter().for_each(held);
    }
}

/// `R.SETBITARRAY key value`: OK. Each `1` sets the bit of its position; the old bitmap and its expiry are
/// replaced.
///
/// Cost: O(n), n = characters. Errors: WRONGTYPE.
fn setbitarray<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let digits = args.at(2).iter().zip(0..=W::MAX);
    let bits = digits.filter(|(digit, _)| **digit == b'1').map(|(_, at)| at).collect();
    replace::<W>(cx, args.at(1), bits)
}

/// `R.GETBITARRAY key`: zeros and ones up to the last set bit; `0` without bits, an empty text without the
/// key.
///
/// Cost: O(n), n = position of the last bit; a long answer is streamed. Errors: WRONGTYPE, too long for a
/// string.
fn getbitarray<W: Width>(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let Some(bits) = cx.view.ints(key, W::KIND)? else {
        cx.out.simple("");
        cx.view.count_lookup(key, false);
        return Ok(());
    };
    let last = bits.max().unwrap_or(0);
    check_string_size(cx, usize::try_from(last).unwrap_or(usize::MAX), 1)?;
    let digits = Digits { bits: bits.clone(), at: 0, end: last + 1 };
    if !cx.caller.may_stream {
        cx.charge((last / 64) as usize)?;
    }
    cx.view.count_lookup(key, true);
    cx.out.begin_bulk(last as usize + 1);
    write(cx, last as usize + 1, digits)
}

/// A bitmap as text from a position on, and the end of its bulk.
struct Digits {
    bits: Ints,
    at: u64,
    end: u64,
}

/// Characters made at once.
const PIECE: u64 = 4096;

impl Stream for Digits {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let full = out.len().saturating_add(room);
        while self.at < self.end && out.len() < full {
            let to = self.end.min(self.at + PIECE);
            let mut piece = [b'0'; PIECE as usize];
            for at in self.bits.iter_from(self.at).take_while(|at| *at < to) {
                piece[(at - self.at) as usize] = b'1';
            }
            out.bulk_part(&piece[..(to - self.at) as usize]);
            self.at = to;
        }
        if self.at == self.end {
            out.end_bulk();
        }
        self.at < self.end
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.bits.held().into_iter().for_each(held);
    }
}
