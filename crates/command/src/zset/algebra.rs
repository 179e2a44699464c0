//! ZUNION, ZINTER, ZDIFF, their STORE forms, ZINTERCARD. Members of plain sets count with a score of 1.
//!
//! ```text
//! sources, the smallest first ──► score and member of each result, unordered ──sort──► reply, or a set built at once
//! (a difference: as given)        union: a table by member; inter: the smallest is walked
//! ```
//!
//! The sources are in Redis's order, because sums of floats depend on it. A result that equals a source (a
//! single key, or the others are empty) is a clone of that source.

use super::range::store;
use super::{Form, GROUP, ScoredSlice, answer, build, is_packed, note_result};
use crate::cx::Budget;
use crate::options::{int, is, is_hex};
use crate::table::{Command, DENYOOM, KeySpec, MOVABLEKEYS, OW_UPDATE, READONLY, RO_ACCESS, Run, WRITE, acl};
use crate::{Cx, Error, STREAM_FROM, Stream};
use keyspace::View;
use resp::{Args, Reply};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::ControlFlow::{self, Break, Continue};
use value::{Elem, Held, Set, ValueRef, ZSet};

const FROM: &[KeySpec] = &[KeySpec::numkeys(1, RO_ACCESS)];
const INTO: &[KeySpec] = &[KeySpec::one(1, OW_UPDATE), KeySpec::numkeys(2, RO_ACCESS)];
const UNION: &str = "O(N)+O(M*log(M)) for N members in all inputs and M in the result.";
const INTER: &str = "O(N*K)+O(M*log(M)) for N members of the smallest of K inputs and M in the result.";
const DIFF: &str = "O(N*K) for N members of the first of K inputs, and sorting the rest of a plain set.";

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("zunion", -3, Run::Read(zunion), READONLY | MOVABLEKEYS, acl::SORTEDSET)
        .keys(FROM)
        .cost(|view, args| union_steps(view, args.from(1)))
        .apart()
        .doc(GROUP, "6.2.0", UNION, "Answers the members that any input has, their scores combined."),
    Command::new("zunionstore", -4, Run::Write(zunionstore), WRITE | DENYOOM | MOVABLEKEYS, acl::SORTEDSET)
        .keys(INTO)
        .cost(|view, args| 2 * union_steps(view, args.from(2)))
        .doc(GROUP, "2.0.0", UNION, "Keeps the members that any input has under another key."),
    Command::new("zinter", -3, Run::Read(zinter), READONLY | MOVABLEKEYS, acl::SORTEDSET)
        .keys(FROM)
        .cost(|view, args| inter_steps(view, args.from(1)))
        .apart()
        .doc(GROUP, "6.2.0", INTER, "Answers the members that all inputs have, their scores combined."),
    Command::new("zinterstore", -4, Run::Write(zinterstore), WRITE | DENYOOM | MOVABLEKEYS, acl::SORTEDSET)
        .keys(INTO)
        .cost(|view, args| 2 * inter_steps(view, args.from(2)))
        .doc(GROUP, "2.0.0", INTER, "Keeps the members that all inputs have under another key."),
    Command::new("zdiff", -3, Run::Read(zdiff), READONLY | MOVABLEKEYS, acl::SORTEDSET)
        .keys(FROM)
        .cost(|view, args| diff_steps(view, args.from(1)))
        .apart()
        .doc(GROUP, "6.2.0", DIFF, "Answers the members of the first input that no other has."),
    Command::new("zdiffstore", -4, Run::Write(zdiffstore), WRITE | DENYOOM | MOVABLEKEYS, acl::SORTEDSET)
        .keys(INTO)
        .cost(|view, args| 2 * diff_steps(view, args.from(2)))
        .doc(
            GROUP,
            "6.2.0",
            DIFF,
            "Keeps the members of the first input that no other has under another key.",
        ),
    Command::new("zintercard", -3, Run::Read(zintercard), READONLY | MOVABLEKEYS, acl::SORTEDSET)
        .keys(FROM)
        .cost(card_steps)
        .apart()
        .doc(
            GROUP,
            "7.0.0",
            "O(N*K) for N members of the smallest of K inputs.",
            "Counts the members that all inputs have.",
        ),
];

// ----- costs -----------------------------------------------------------------------------------------------

/// The keys of `numkeys key [key ...] ...`, if the number fits.
fn keys_of(args: Args<'_>) -> Option<Args<'_>> {
    let count = stdx::num::parse_i64(args.at(0)).and_then(|n| usize::try_from(n).ok())?;
    (count < args.len()).then(|| args.to(count + 1).from(1))
}

fn lens(view: &View<'_>, args: Args<'_>) -> Vec<usize> {
    let len = |key| ScoreSource::find(view, key).map_or(0, |source| source.len());
    keys_of(args).map_or_else(Vec::new, |keys| keys.iter().map(len).collect())
}

fn union_steps(view: &View<'_>, args: Args<'_>) -> usize {
    lens(view, args).iter().sum::<usize>() * 6
}

fn inter_steps(view: &View<'_>, args: Args<'_>) -> usize {
    let lens = lens(view, args);
    lens.iter().min().map_or(0, |min| min * (2 * lens.len() + 4))
}

fn diff_steps(view: &View<'_>, args: Args<'_>) -> usize {
    let lens = lens(view, args);
    lens.first().map_or(0, |first| first * (2 * lens.len().min(8) + 2))
}

fn card_steps(view: &View<'_>, args: Args<'_>) -> usize {
    let lens = lens(view, args.from(1));
    lens.iter().min().map_or(0, |min| min * 2 * lens.len())
}

/// Charges work in portions.
pub(crate) struct Meter<'b, 'a> {
    budget: &'b mut Budget<'a>,
    steps: usize,
}

impl<'b, 'a> Meter<'b, 'a> {
    pub(crate) fn new(budget: &'b mut Budget<'a>) -> Meter<'b, 'a> {
        Meter { budget, steps: 0 }
    }

    /// Takes memory for bytes that the run collects. Errors: out of work memory.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Error> {
        self.budget.take(bytes)
    }

    /// Charges the rest.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.budget.charge(std::mem::take(&mut self.steps))
    }

    #[inline]
    pub(crate) fn charge(&mut self, steps: usize) -> Result<(), Error> {
        self.steps += steps;
        if self.steps < 256 {
            return Ok(());
        }
        self.budget.charge(std::mem::take(&mut self.steps))
    }
}

// ----- inputs ----------------------------------------------------------------------------------------------

/// An input of a command.
#[derive(Clone, Copy)]
enum ScoreSource<'v> {
    Absent,
    ZSet(&'v ZSet),
    Set(&'v Set),
}

impl<'v> ScoreSource<'v> {
    fn find(view: &'v View<'_>, key: &[u8]) -> Result<ScoreSource<'v>, Error> {
        match view.value(key) {
            None => Ok(ScoreSource::Absent),
            Some(ValueRef::ZSet(set)) => Ok(ScoreSource::ZSet(set)),
            Some(ValueRef::Set(set)) => Ok(ScoreSource::Set(set)),
            Some(_) => Err(Error::WrongType),
        }
    }

    fn len(&self) -> usize {
        match self {
            ScoreSource::Absent => 0,
            ScoreSource::ZSet(set) => set.len(),
            ScoreSource::Set(set) => set.len(),
        }
    }

    #[inline]
    fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            ScoreSource::Absent => None,
            ScoreSource::ZSet(set) => set.score(member),
            ScoreSource::Set(set) => set.contains(member).then_some(1.0),
        }
    }

    /// Visits all members, those of a sorted set in order.
    fn each(
        &self,
        f: &mut dyn FnMut(Cow<'v, [u8]>, f64) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        match self {
            ScoreSource::Absent => {}
            ScoreSource::ZSet(set) => {
                for (member, score) in set.iter() {
                    if f(Cow::Borrowed(member), score)?.is_break() {
                        break;
                    }
                }
            }
            ScoreSource::Set(set) => {
                for elem in set.iter() {
                    let member = match elem {
                        Elem::Bytes(bytes) => Cow::Borrowed(bytes),
                        Elem::Int(_) => Cow::Owned(elem.to_vec()),
                    };
                    if f(member, 1.0)?.is_break() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The way scores of one member are combined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    /// Combines two scores. Infinities that cancel out give 0. A comparison with NaN keeps the sum so far.
    fn combine(self, sum: f64, score: f64) -> f64 {
        match self {
            Aggregate::Sum => number(sum + score),
            Aggregate::Min => {
                if score < sum {
                    score
                } else {
                    sum
                }
            }
            Aggregate::Max => {
                if score > sum {
                    score
                } else {
                    sum
                }
            }
        }
    }
}

/// Replaces NaN (infinity times zero) by 0.
fn number(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SetOp {
    Union,
    Inter,
    Diff,
    Card,
}

/// A command's arguments and its sources.
struct AlgebraQuery<'v> {
    sources: Vec<(ScoreSource<'v>, f64)>,
    aggregate: Aggregate,
    with_scores: bool,
    /// 0: none.
    limit: usize,
}

impl<'v> AlgebraQuery<'v> {
    /// Reads `numkeys key [key ...] [options]`. The order of the checks is Redis's: number of keys, their
    /// types, options.
    fn parse(
        view: &'v View<'_>,
        args: Args<'_>,
        op: SetOp,
        name: &str,
        stores: bool,
    ) -> Result<AlgebraQuery<'v>, Error> {
        let count = int(args.at(0))?;
        if count < 1 {
            return Err(format!("ERR at least 1 input key is needed for '{name}' command").into());
        }
        let keys = keys_of(args).ok_or(Error::Syntax)?;
        let sources = keys.iter().map(|key| Ok((ScoreSource::find(view, key)?, 1.0)));
        let sources = sources.collect::<Result<_, Error>>()?;
        let mut query = AlgebraQuery { sources, aggregate: Aggregate::Sum, with_scores: false, limit: 0 };
        let combines = matches!(op, SetOp::Union | SetOp::Inter);
        let (options, mut i) = (args.from(1 + keys.len()), 0);
        while i < options.len() {
            let (word, left) = (options.at(i), options.len() - i - 1);
            if combines && left >= keys.len() && is(word, "weights") {
                for (source, weight) in query.sources.iter_mut().zip(options.from(i + 1).iter()) {
                    source.1 =
                        stdx::num::parse_f64(weight).ok_or(Error::new("ERR weight value is not a float"))?;
                }
                i += 1 + keys.len();
            } else if combines && left >= 1 && is(word, "aggregate") {
                query.aggregate = match options.at(i + 1) {
                    word if is(word, "sum") => Aggregate::Sum,
                    word if is(word, "min") => Aggregate::Min,
                    word if is(word, "max") => Aggregate::Max,
                    _ => return Err(Error::Syntax),
                };
                i += 2;
            } else if op != SetOp::Card && !stores && is(word, "withscores") {
                query.with_scores = true;
                i += 1;
            } else if op == SetOp::Card && left >= 1 && is(word, "limit") {
                query.limit = match int(options.at(i + 1)) {
                    Ok(n) if n >= 0 => n as usize,
                    _ => return Err(Error::new("ERR LIMIT can't be negative")),
                };
                i += 2;
            } else {
                return Err(Error::Syntax);
            }
        }
        if op != SetOp::Diff {
            query.sources.sort_by_key(|(source, _)| source.len());
        }
        Ok(query)
    }

    /// The source that equals the result, if there is one.
    fn unchanged(&self, op: SetOp) -> Option<&'v ZSet> {
        let source = match op {
            // The largest source; all others are empty.
            SetOp::Union => self.sources.split_last().filter(|(_, others)| all_empty(others))?.0,
            SetOp::Diff => self.sources.split_first().filter(|(_, others)| all_empty(others))?.0,
            SetOp::Inter | SetOp::Card => self.sources.first().filter(|_| self.sources.len() == 1)?,
        };
        match source {
            (ScoreSource::ZSet(set), 1.0) => Some(set),
            _ => None,
        }
    }

    fn perform(&self, op: SetOp, budget: &mut Budget<'_>) -> Result<Found<'v>, Error> {
        if let Some(set) = self.unchanged(op) {
            return Ok(Found::Unchanged(set));
        }
        let mut meter = Meter::new(budget);
        let mut items = match op {
            SetOp::Union => self.union(&mut meter)?,
            SetOp::Inter | SetOp::Card => self.inter(&mut meter)?,
            SetOp::Diff => self.diff(&mut meter)?,
        };
        let sorted = op == SetOp::Diff && matches!(self.sources.first(), Some((ScoreSource::ZSet(_), _)));
        if !sorted {
            meter.charge(items.len() * items.len().max(2).ilog2() as usize / 4)?;
            items.sort_unstable_by(order);
        }
        Ok(Found::Items(items))
    }

    fn union(&self, meter: &mut Meter<'_, '_>) -> Result<Vec<Item<'v>>, Error> {
        let mut sums: HashMap<Cow<'v, [u8]>, f64> = HashMap::new();
        for (source, weight) in &self.sources {
            sums.reserve(if sums.is_empty() { source.len() } else { 0 });
            source.each(&mut |member, score| {
                meter.charge(3)?;
                let score = number(score * weight);
                sums.entry(member)
                    .and_modify(|sum| *sum = self.aggregate.combine(*sum, score))
                    .or_insert(score);
                Ok(Continue(()))
            })?;
        }
        meter.charge(sums.len())?;
        Ok(sums.into_iter().map(|(member, score)| (score, member)).collect())
    }

    /// Visits the members that all sources have.
    fn each_common(
        &self,
        meter: &mut Meter<'_, '_>,
        f: &mut dyn FnMut(Cow<'v, [u8]>, f64) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let Some(((smallest, weight), others)) = self.sources.split_first() else { return Ok(()) };
        smallest.each(&mut |member, score| {
            meter.charge(2 * others.len() + 1)?;
            let mut sum = number(score * weight);
            for (other, weight) in others {
                let Some(score) = other.score(&member) else { return Ok(Continue(())) };
                sum = self.aggregate.combine(sum, score * weight);
            }
            Ok(f(member, sum))
        })
    }

    fn inter(&self, meter: &mut Meter<'_, '_>) -> Result<Vec<Item<'v>>, Error> {
        let mut items = Vec::new();
        self.each_common(meter, &mut |member, score| {
            items.push((score, member));
            Continue(())
        })?;
        Ok(items)
    }

    fn diff(&self, meter: &mut Meter<'_, '_>) -> Result<Vec<Item<'v>>, Error> {
        let Some(((first, _), others)) = self.sources.split_first() else { return Ok(Vec::new()) };
        let mut items = Vec::new();
        first.each(&mut |member, score| {
            meter.charge(1)?;
            for (other, _) in others {
                meter.charge(2)?;
                if other.score(&member).is_some() {
                    return Ok(Continue(()));
                }
            }
            items.push((score, member));
            Ok(Continue(()))
        })?;
        Ok(items)
    }
}

fn all_empty(sources: &[(ScoreSource<'_>, f64)]) -> bool {
    sources.iter().all(|(source, _)| source.len() == 0)
}

// ----- results ---------------------------------------------------------------------------------------------

type Item<'v> = (f64, Cow<'v, [u8]>);

/// The order of a sorted set.
fn order(a: &Item<'_>, b: &Item<'_>) -> Ordering {
    a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal).then_with(|| a.1.cmp(&b.1))
}

enum Found<'v> {
    Unchanged(&'v ZSet),
    /// In order.
    Items(Vec<Item<'v>>),
}

/// A computed result, written piece by piece.
struct Computed {
    text: Vec<u8>,
    /// Scores, and the end of each member in `text`.
    items: Vec<(f64, usize)>,
    next: usize,
    form: Form,
}

impl Computed {
    fn new(items: &[Item<'_>], form: Form) -> Computed {
        let mut text = Vec::with_capacity(items.iter().map(|(_, member)| member.len()).sum());
        let mut ends = Vec::with_capacity(items.len());
        for (score, member) in items {
            text.extend_from_slice(member);
            ends.push((*score, text.len()));
        }
        Computed { text, items: ends, next: 0, form }
    }
}

impl Stream for Computed {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while let Some((score, to)) = self.items.get(self.next) {
            let from = self.next.checked_sub(1).map_or(0, |previous| self.items[previous].1);
            self.form.write(out, &self.text[from..*to], *score);
            self.next += 1;
            if out.len() >= end {
                break;
            }
        }
        self.next < self.items.len()
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        held(Held::own(self, self.text.len() + self.items.len() * size_of::<(f64, usize)>()));
    }
}

/// Counts the look-ups of a command's keys.
fn count_lookups(cx: &mut Cx<'_, '_>, args: Args<'_>) {
    for key in keys_of(args).iter().flat_map(|keys| keys.iter()) {
        let hit = cx.view.exists(key);
        cx.view.count_lookup(key, hit);
    }
}

fn read(cx: &mut Cx<'_, '_>, args: Args<'_>, op: SetOp, name: &str) -> Result<(), Error> {
    let args = args.from(1);
    let query = AlgebraQuery::parse(cx.view, args, op, name, false)?;
    let form = Form::of(cx.out, query.with_scores);
    match query.perform(op, &mut cx.budget)? {
        Found::Unchanged(set) => {
            let all = ScoredSlice { ranks: 0..set.len(), reverse: false };
            if let Some(rest) = answer(cx.out, set, all, form) {
                cx.stream(rest)?;
            }
        }
        Found::Items(items) if items.len() > STREAM_FROM => {
            form.header(cx.out, items.len());
            let rest = Computed::new(&items, form);
            cx.stream(rest)?;
        }
        Found::Items(items) => {
            form.header(cx.out, items.len());
            items.iter().for_each(|(score, member)| form.write(cx.out, member, *score));
        }
    }
    count_lookups(cx, args);
    Ok(())
}

fn keep(cx: &mut Cx<'_, '_>, args: Args<'_>, op: SetOp, event: &'static str) -> Result<(), Error> {
    let (to, args) = (args.at(1), args.from(2));
    let query = AlgebraQuery::parse(cx.view, args, op, event, true)?;
    let result = match query.perform(op, &mut cx.budget)? {
        Found::Unchanged(set) if !is_packed(set.len(), b"") => set.clone(),
        Found::Unchanged(set) => build(set.len(), set.iter()),
        Found::Items(items) => build(items.len(), items.iter().map(|(score, member)| (&member[..], *score))),
    };
    count_lookups(cx, args);
    if args.iter().any(is_hex) {
        note_result(cx, to, &result);
    }
    store(cx, to, result, event);
    Ok(())
}

/// `ZUNION numkeys key [key ...] [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]`: the members of
/// any input.
///
/// Cost: O(n + m·log m), n = members of all inputs, m = members of the result. Errors: number of keys,
/// WRONGTYPE, syntax, weights.
fn zunion(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    read(cx, args, SetOp::Union, "zunion")
}

/// `ZUNIONSTORE destination numkeys key [key ...] [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX]`: stores the
/// union and answers its number of members.
///
/// Cost and errors: as ZUNION.
fn zunionstore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    keep(cx, args, SetOp::Union, "zunionstore")
}

/// `ZINTER numkeys key [key ...] [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]`: the members of
/// all inputs.
///
/// Cost: O(n·k + m·log m), n = members of the smallest input, k = keys, m = members of the result. Errors: as
/// ZUNION.
fn zinter(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    read(cx, args, SetOp::Inter, "zinter")
}

/// `ZINTERSTORE destination numkeys key [key ...] [WEIGHTS weight ...] [AGGREGATE SUM|MIN|MAX]`: stores the
/// intersection and answers its number of members.
///
/// Cost and errors: as ZINTER.
fn zinterstore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    keep(cx, args, SetOp::Inter, "zinterstore")
}

/// `ZDIFF numkeys key [key ...] [WITHSCORES]`: the members of the first input that no other has.
///
/// Cost: O(n·k), n = members of the first input, k = keys; a plain first input is also sorted. Errors: number
/// of keys, WRONGTYPE, syntax.
fn zdiff(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    read(cx, args, SetOp::Diff, "zdiff")
}

/// `ZDIFFSTORE destination numkeys key [key ...]`: stores the difference and answers its number of members.
///
/// Cost and errors: as ZDIFF.
fn zdiffstore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    keep(cx, args, SetOp::Diff, "zdiffstore")
}

/// `ZINTERCARD numkeys key [key ...] [LIMIT limit]`: the number of members that all inputs have, up to the
/// limit.
///
/// Cost: O(n·k), n = members of the smallest input, k = keys; less with a limit. Errors: number of keys,
/// WRONGTYPE, syntax, LIMIT negative.
fn zintercard(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let args = args.from(1);
    let query = AlgebraQuery::parse(cx.view, args, SetOp::Card, "zintercard", false)?;
    let limit = if query.limit == 0 { usize::MAX } else { query.limit };
    let count = if let [(only, _)] = &query.sources[..] {
        only.len().min(limit)
    } else {
        let (mut count, mut meter) = (0, Meter::new(&mut cx.budget));
        query.each_common(&mut meter, &mut |_, _| {
            count += 1;
            if count >= limit { Break(()) } else { Continue(()) }
        })?;
        count
    };
    cx.out.int(count as i64);
    count_lookups(cx, args);
    Ok(())
}

#[cfg(test)]
mod tests;
