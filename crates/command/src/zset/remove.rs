//! ZREMRANGEBYRANK, ZREMRANGEBYSCORE, ZREMRANGEBYLEX.

use super::{GROUP, LOG_PLUS, lex_bound, score_bound};
use crate::options::int;
use crate::table::{Command, KeySpec, RW_DELETE, Run, WRITE, acl};
use crate::{Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use std::ops::Range;
use value::{LexBound, ScoreBound, ZSet};

const ONE: &[KeySpec] = &[KeySpec::one(1, RW_DELETE)];

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("zremrangebyrank", 4, Run::Write(zremrangebyrank), WRITE, acl::SORTEDSET)
        .keys(ONE)
        .cost(|view, args| steps(view, args, by_rank(args)))
        .doc(GROUP, "2.0.0", LOG_PLUS, "Takes the members between two ranks out of a sorted set."),
    Command::new("zremrangebyscore", 4, Run::Write(zremrangebyscore), WRITE, acl::SORTEDSET)
        .keys(ONE)
        .cost(|view, args| steps(view, args, by_score(args)))
        .doc(GROUP, "1.2.0", LOG_PLUS, "Takes the members between two scores out of a sorted set."),
    Command::new("zremrangebylex", 4, Run::Write(zremrangebylex), WRITE, acl::SORTEDSET)
        .keys(ONE)
        .cost(|view, args| steps(view, args, by_lex(args)))
        .doc(GROUP, "2.8.9", LOG_PLUS, "Takes the members between two texts out of a sorted set."),
];

/// What is to go.
enum Wanted<'a> {
    Rank(i64, i64),
    Score(ScoreBound, ScoreBound),
    Lex(LexBound<'a>, LexBound<'a>),
}

impl Wanted<'_> {
    /// O(log n).
    fn ranks(&self, set: &ZSet) -> Range<usize> {
        match self {
            Wanted::Rank(start, stop) => crate::options::range(*start, *stop, set.len()),
            Wanted::Score(min, max) => set.ranks(min, max),
            Wanted::Lex(min, max) => set.ranks(min, max),
        }
    }
}

fn by_rank(args: Args<'_>) -> Result<Wanted<'_>, Error> {
    Ok(Wanted::Rank(int(args.at(2))?, int(args.at(3))?))
}

fn by_score(args: Args<'_>) -> Result<Wanted<'_>, Error> {
    Ok(Wanted::Score(score_bound(args.at(2))?, score_bound(args.at(3))?))
}

fn by_lex(args: Args<'_>) -> Result<Wanted<'_>, Error> {
    Ok(Wanted::Lex(lex_bound(args.at(2))?, lex_bound(args.at(3))?))
}

fn steps(view: &View<'_>, args: Args<'_>, wanted: Result<Wanted<'_>, Error>) -> usize {
    match (wanted, view.zset(args.at(1))) {
        (Ok(wanted), Ok(Some(set))) => removal_steps(wanted.ranks(set).len(), set.len()),
        _ => 0,
    }
}

/// Removing `gone` of `len` neighbours. All of them are one pointer; else each is looked for by name, or each that
/// stays is put into a new table, whichever are fewer.
pub(super) fn removal_steps(gone: usize, len: usize) -> usize {
    gone.min(len - gone) * 4
}

/// `ZREMRANGEBYRANK key start stop`
///
/// Cost: O(log n + min(m, n - m)), m = members removed. Errors: no integers, WRONGTYPE.
fn zremrangebyrank(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    remove(cx, args, by_rank(args)?, "zremrangebyrank")
}

/// `ZREMRANGEBYSCORE key min max`. Cost and errors as above.
fn zremrangebyscore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    remove(cx, args, by_score(args)?, "zremrangebyscore")
}

/// `ZREMRANGEBYLEX key min max`. Cost and errors as above.
fn zremrangebylex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    remove(cx, args, by_lex(args)?, "zremrangebylex")
}

fn remove(cx: &mut Cx<'_, '_>, args: Args<'_>, wanted: Wanted<'_>, event: &'static str) -> Result<(), Error> {
    let key = args.at(1);
    let ranks = cx.view.zset(key)?.map_or(0..0, |set| wanted.ranks(set));
    cx.out.int(ranks.len() as i64);
    take(cx, key, ranks, event)
}

/// Removes members by rank and says so; a set without members disappears.
pub(super) fn take(
    cx: &mut Cx<'_, '_>,
    key: &[u8],
    ranks: Range<usize>,
    event: &'static str,
) -> Result<(), Error> {
    if ranks.is_empty() {
        return Ok(());
    }
    if cx.view.zset(key)?.is_some_and(|set| set.len() == ranks.len()) {
        cx.view.remove(key);
        cx.view.changed(key, Class::ZSet, event);
        cx.view.notify(key, Class::Generic, "del");
        return Ok(());
    }
    if let Some(set) = cx.view.zset_mut(key)? {
        set.remove_rank_range(ranks);
        cx.view.changed(key, Class::ZSet, event);
    }
    Ok(())
}
