//! Strings as texts: set, read, count, edit, compare. Commands on single bits are in `bitmap`.
//!
//! - X1: no command copies a long string in one go. A read answers with a stream that shares the value's
//!   chunks; an edit changes only the chunks it touches.
//! - X2: a command that only reads a string counts its look-up (`keyspace_hits`). A command about to write
//!   does not.

pub(crate) mod counter;
pub(crate) mod edit;
mod expiry;
pub(crate) mod get;
pub(crate) mod lcs;
pub(crate) mod set;

pub use get::getex_asks;

use crate::{Budget, Cx, Error, Stream};
use keyspace::View;
use resp::Reply;
use std::ops::Range;
use value::{Held, Str, StrRef, str::Run};

/// Length above which a string is answered as a stream.
pub(crate) const STREAM_BYTES: usize = 64 << 10;

/// Bytes copied or combined in a step.
pub(crate) const BYTES_PER_STEP: usize = 400;

/// Looks up a string, counts the look-up, and calls `f` with it, the reply and the budget. Errors: WRONGTYPE,
/// those of `f`.
#[inline]
pub(crate) fn read<R>(
    cx: &mut Cx<'_, '_>,
    key: &[u8],
    f: impl FnOnce(Option<StrRef<'_>>, &mut Reply, &mut Budget<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let found = cx.view.string(key);
    let hit = !matches!(found, Ok(None));
    let result = match found {
        Ok(s) => f(s, cx.out, &mut cx.budget),
        Err(wrong_type) => Err(wrong_type.into()),
    };
    // A dropped run is repeated; the repetition counts the look-up.
    if !matches!(result, Err(Error::Budget | Error::Cancelled)) {
        cx.view.count_lookup(key, hit);
    }
    result
}

/// Answers a string or null. A part too long to write now comes back, for [`Cx::stream`].
#[inline]
fn write(out: &mut Reply, s: Option<StrRef<'_>>) -> Option<Text> {
    match s {
        None => out.null(),
        Some(StrRef::Flat(bytes)) => out.bulk(bytes),
        Some(StrRef::Pair(pair)) => out.bulk_joined(pair.parts()),
        Some(s) => return write_range(out, s, 0..s.len()),
    }
    None
}

/// Answers a string. A part too long to write now comes back.
pub fn write_string(out: &mut Reply, s: StrRef<'_>) -> Option<Box<dyn Stream>> {
    write(out, Some(s)).map(|rest| Box::new(rest) as Box<dyn Stream>)
}

/// As [`write`], for a part of a string.
fn write_range(out: &mut Reply, s: StrRef<'_>, range: Range<usize>) -> Option<Text> {
    out.begin_bulk(range.len());
    if range.len() > STREAM_BYTES {
        return Some(Text { of: s.to_str(), at: range.start, end: range.end });
    }
    write_runs(out, s, range);
    out.end_bulk();
    None
}

fn write_runs(out: &mut Reply, s: StrRef<'_>, range: Range<usize>) {
    for run in s.runs(range) {
        match run {
            Run::Bytes(bytes) => out.bulk_part(bytes),
            Run::Zeros(n) => out.bulk_zeros(n as usize),
        }
    }
}

/// The bytes of a bulk whose header is already written.
struct Text {
    of: Str,
    at: usize,
    end: usize,
}

impl Stream for Text {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let to = self.at.saturating_add(room.max(1)).min(self.end);
        write_runs(out, self.of.as_ref(), self.at..to);
        self.at = to;
        if to == self.end {
            out.end_bulk();
        }
        to < self.end
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.of.held().into_iter().for_each(held);
    }
}

/// Steps to store the argument at `i`.
fn argument_cost<const I: usize>(_: &View<'_>, args: resp::Args<'_>) -> usize {
    args.get(I).map_or(0, <[u8]>::len) / BYTES_PER_STEP
}
