//! Sorted sets: members and scores, ranges, pops, random members, algebra.
//!
//! Every range, by rank, score or member, first becomes a range of ranks, in O(log n). The members answered,
//! stored or removed are then a [`ScoredSlice`]. Long answers stream from an O(1) clone of the set.

pub(crate) mod algebra;
pub(crate) mod members;
pub(crate) mod pop;
pub(crate) mod random;
pub(crate) mod range;
pub(crate) mod remove;

use crate::string::STREAM_BYTES;
use crate::{Cx, Error, STREAM_FROM, Stream};
use keyspace::View;
use resp::{Args, Reply};
use std::ops::Range;
use stdx::num::format_f64;
use value::{Held, LexBound, ScoreBound, ZSet, limits};

/// The group's name in COMMAND DOCS.
const GROUP: &str = "sorted-set";

/// The complexity in the rows of commands that search.
const LOG: &str = "O(log(N)) for N members.";
const LOG_PLUS: &str = "O(log(N)+M) for M of N members.";

/// About five steps per argument.
fn per_argument(_: &View<'_>, args: Args<'_>) -> usize {
    args.len() * 5
}

/// Members of the set of a key; 0 if there is none.
fn len_of(view: &View<'_>, key: &[u8]) -> usize {
    view.zset(key).ok().flatten().map_or(0, ZSet::len)
}

// ----- bounds ----------------------------------------------------------------------------------------------

/// A bound by score: a number, exclusive behind `(`. It is read as in C: an empty text is 0, too large a
/// number is infinite, a zero byte ends the text. Hexadecimal is refused, as in Redis 8. Errors: not a float.
fn score_bound(arg: &[u8]) -> Result<ScoreBound, Error> {
    let (text, exclusive) = match arg {
        [b'(', rest @ ..] => (rest, true),
        all => (all, false),
    };
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let score = match text {
        [] => Some(0.0),
        _ => std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok()),
    };
    let score = score.filter(|score| !score.is_nan());
    let score = score.ok_or(Error::new("ERR min or max is not a float"))?;
    Ok(if exclusive { ScoreBound::Excl(score) } else { ScoreBound::Incl(score) })
}

/// A bound by member: `-`, `+`, `[member`, `(member`. Errors: not a valid range item.
fn lex_bound(arg: &[u8]) -> Result<LexBound<'_>, Error> {
    match arg {
        b"-" => Ok(LexBound::Min),
        b"+" => Ok(LexBound::Max),
        [b'[', member @ ..] => Ok(LexBound::Incl(member)),
        [b'(', member @ ..] => Ok(LexBound::Excl(member)),
        _ => Err(Error::new("ERR min or max not valid string range item")),
    }
}

/// Whether scores differ, so that ranges by member promise nothing. O(log n).
fn has_scores(set: &ZSet) -> bool {
    let score = |rank| set.nth(rank).map(|(_, score)| score);
    score(0) != score(set.len().saturating_sub(1))
}

/// The members that lie between two bounds, of those that a search by them finds. Without
/// [`has_scores`] these are all. O(log n + m), m = members found.
fn between<'s>(set: &'s ZSet, min: LexBound<'s>, max: LexBound<'s>) -> impl Iterator<Item = (&'s [u8], f64)> {
    let ranks = set.ranks(&min, &max);
    let found = set.iter_from(ranks.start).take(ranks.len());
    found.filter(move |(member, _)| min.is_before(member) && !max.is_passed_by(member))
}

/// Members of one command that is noted.
const NOTED: usize = 512;

/// Notes the result of a command that others would execute differently. O(members).
pub(crate) fn note_result(cx: &mut Cx<'_, '_>, destination: &[u8], result: &ZSet) {
    if !cx.view.listens() {
        return;
    }
    cx.effect(&[b"DEL", destination]);
    let mut texts = Vec::with_capacity(2 * NOTED);
    let mut members = result.iter().peekable();
    while members.peek().is_some() {
        texts.clear();
        for (member, score) in members.by_ref().take(NOTED) {
            let mut text = Vec::new();
            format_f64(score, &mut text);
            texts.extend([text, member.to_vec()]);
        }
        let words: Vec<&[u8]> =
            [&b"ZADD"[..], destination].into_iter().chain(texts.iter().map(Vec::as_slice)).collect();
        cx.effect(&words);
    }
}

// ----- answering -------------------------------------------------------------------------------------------

/// Some neighbouring members, in ascending or descending order.
#[derive(Clone, Debug, PartialEq)]
struct ScoredSlice {
    ranks: Range<usize>,
    reverse: bool,
}

impl ScoredSlice {
    /// Skips the first members of the slice, which are done.
    fn pass(&mut self, members: usize) {
        match self.reverse {
            true => self.ranks.end -= members,
            false => self.ranks.start += members,
        }
    }
}

/// The parts of each member that are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Member,
    /// Member and score, one after the other.
    Flat,
    /// Member and score in an array of their own.
    Nested,
}

impl Form {
    /// The form of WITHSCORES in this protocol version.
    fn of(out: &Reply, with_scores: bool) -> Form {
        match (with_scores, out.resp3()) {
            (false, _) => Form::Member,
            (true, false) => Form::Flat,
            (true, true) => Form::Nested,
        }
    }

    /// Writes the header for a number of members.
    fn header(self, out: &mut Reply, members: usize) {
        out.array(if self == Form::Flat { 2 * members } else { members });
    }

    #[inline]
    fn write(self, out: &mut Reply, member: &[u8], score: f64) {
        if self == Form::Nested {
            out.array(2);
        }
        out.bulk(member);
        if self != Form::Member {
            out.double(score);
        }
    }
}

/// Writes a slice with its header. A long slice writes only the header; the stream has the rest.
fn answer(out: &mut Reply, set: &ZSet, slice: ScoredSlice, form: Form) -> Option<Slices> {
    form.header(out, slice.ranks.len());
    pieces(out, set, slice, form)
}

/// As [`answer`], without the header.
fn pieces(out: &mut Reply, set: &ZSet, slice: ScoredSlice, form: Form) -> Option<Slices> {
    let mut left = slice;
    // A few members may be long.
    if left.ranks.len() <= STREAM_FROM {
        let written = write(out, set, &left, form, out.len().saturating_add(STREAM_BYTES));
        left.pass(written);
    }
    (!left.ranks.is_empty()).then(|| Slices { set: set.clone(), left, form })
}

/// Writes members of a slice until the reply is `end` bytes long, at least one if there is one. Returns their
/// number.
fn write(out: &mut Reply, set: &ZSet, slice: &ScoredSlice, form: Form, end: usize) -> usize {
    let mut written = 0;
    let mut put = |(member, score): (&[u8], f64)| {
        form.write(out, member, score);
        written += 1;
        out.len() < end
    };
    let len = slice.ranks.len();
    if len > 0 && slice.reverse {
        let _ = set.iter_rev_from(slice.ranks.end - 1).take(len).all(&mut put);
    } else if len > 0 {
        let _ = set.iter_from(slice.ranks.start).take(len).all(&mut put);
    }
    written
}

/// A slice, written piece by piece.
struct Slices {
    set: ZSet,
    left: ScoredSlice,
    form: Form,
}

impl Stream for Slices {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        let written = write(out, &self.set, &self.left, self.form, end);
        self.left.pass(written);
        !self.left.ranks.is_empty()
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.set.held().into_iter().for_each(held);
    }
}

// ----- building --------------------------------------------------------------------------------------------

/// Whether Redis keeps this member, in a set of this size, in a listpack.
fn is_packed(len: usize, member: &[u8]) -> bool {
    len <= limits::ZSET_MAX_LISTPACK_ENTRIES.get() && member.len() <= limits::ZSET_MAX_LISTPACK_VALUE.get()
}

/// Builds a set of `len` members in order. A listpack has no negative zero, so a set that Redis would keep in
/// one has none either.
pub(crate) fn build<'a>(len: usize, sorted: impl Iterator<Item = (&'a [u8], f64)>) -> ZSet {
    if !is_packed(len, b"") {
        return ZSet::from_sorted(sorted);
    }
    let mut items: Vec<_> = sorted.collect();
    if items.iter().all(|(member, _)| is_packed(len, member)) {
        items.iter_mut().for_each(|(_, score)| *score += 0.0);
    }
    ZSet::from_sorted(items)
}
