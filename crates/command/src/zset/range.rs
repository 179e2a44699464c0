//! ZRANGE and its older forms, ZRANGESTORE, ZCOUNT, ZLEXCOUNT.

use super::{
    Form, GROUP, LOG, LOG_PLUS, ScoredSlice, answer, between, build, has_scores, is_packed, lex_bound,
    note_result, score_bound,
};
use crate::options::{int, is};
use crate::table::{Command, DENYOOM, FAST, KeySpec, OW_UPDATE, READONLY, RO_ACCESS, Run, WRITE, acl};
use crate::{Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use std::ops::Range;
use value::{Enc, LexBound, ScoreBound, Value, ZSet};

const READ_ONE: &[KeySpec] = &[KeySpec::one(1, RO_ACCESS)];

pub(crate) static COMMANDS: &[Command] =
    &[
        Command::new("zrange", -4, Run::Read(zrange), READONLY, acl::SORTEDSET)
            .keys(READ_ONE)
            .reply(|view, args| reply_steps(view, args, None, None))
            .doc(GROUP, "1.2.0", LOG_PLUS, "Answers the members between two ranks, scores or members."),
        Command::new("zrevrange", -4, Run::Read(zrevrange), READONLY, acl::SORTEDSET)
            .keys(READ_ONE)
            .reply(|view, args| reply_steps(view, args, Some(By::Rank), Some(true)))
            .doc(GROUP, "1.2.0", LOG_PLUS, "Answers the members between two ranks counted from the highest."),
        Command::new("zrangebyscore", -4, Run::Read(zrangebyscore), READONLY, acl::SORTEDSET)
            .keys(READ_ONE)
            .reply(|view, args| reply_steps(view, args, Some(By::Score), Some(false)))
            .doc(GROUP, "1.0.5", LOG_PLUS, "Answers the members whose scores lie between two."),
        Command::new("zrevrangebyscore", -4, Run::Read(zrevrangebyscore), READONLY, acl::SORTEDSET)
            .keys(READ_ONE)
            .reply(|view, args| reply_steps(view, args, Some(By::Score), Some(true)))
            .doc(
                GROUP,
                "2.2.0",
                LOG_PLUS,
                "Answers the members whose scores lie between two, the highest first.",
            ),
        Command::new("zrangebylex", -4, Run::Read(zrangebylex), READONLY, acl::SORTEDSET)
            .keys(READ_ONE)
            .reply(|view, args| reply_steps(view, args, Some(By::Lex), Some(false)))
            .doc(GROUP, "2.8.9", LOG_PLUS, "Answers the members that lie between two texts."),
        Command::new("zrevrangebylex", -4, Run::Read(zrevrangebylex), READONLY, acl::SORTEDSET)
            .keys(READ_ONE)
            .reply(|view, args| reply_steps(view, args, Some(By::Lex), Some(true)))
            .doc(GROUP, "2.8.9", LOG_PLUS, "Answers the members that lie between two texts, the last first."),
        Command::new("zrangestore", -5, Run::Write(zrangestore), WRITE | DENYOOM, acl::SORTEDSET)
            .keys(&[KeySpec::one(1, OW_UPDATE), KeySpec::one(2, RO_ACCESS)])
            .cost(store_cost)
            .doc(GROUP, "6.2.0", LOG_PLUS, "Keeps a range of a sorted set under another key."),
        Command::new("zcount", 4, Run::Read(zcount), READONLY | FAST, acl::SORTEDSET).keys(READ_ONE).doc(
            GROUP,
            "2.0.0",
            LOG,
            "Counts the members whose scores lie between two.",
        ),
        Command::new("zlexcount", 4, Run::Read(zlexcount), READONLY | FAST, acl::SORTEDSET)
            .keys(READ_ONE)
            .doc(GROUP, "2.8.9", LOG, "Counts the members that lie between two texts."),
    ];

// ----- what is wanted --------------------------------------------------------------------------------------

/// The unit of a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

/// The settings fixed by a command's name. `None`: an option may set it.
#[derive(Clone, Copy)]
struct Fixed {
    by: Option<By>,
    reverse: Option<bool>,
    store: bool,
}

#[derive(Clone, Copy)]
enum RangeBounds<'a> {
    Rank(i64, i64),
    Score(ScoreBound, ScoreBound),
    Lex(LexBound<'a>, LexBound<'a>),
}

/// A range command's arguments.
struct RangeQuery<'a> {
    bounds: RangeBounds<'a>,
    reverse: bool,
    offset: i64,
    /// Negative: all.
    limit: i64,
    with_scores: bool,
}

impl<'a> RangeQuery<'a> {
    /// Reads `start stop [options]`. The order of the checks is Redis's: options, their conflicts, bounds.
    fn parse(args: Args<'a>, fixed: Fixed) -> Result<RangeQuery<'a>, Error> {
        let (mut by, mut reverse, mut with_scores) = (fixed.by, fixed.reverse, false);
        let (mut offset, mut limit) = (0, -1);
        let mut i = 2;
        while i < args.len() {
            let word = args.at(i);
            if !fixed.store && is(word, "withscores") {
                with_scores = true;
            } else if is(word, "limit") && i + 2 < args.len() {
                (offset, limit) = (int(args.at(i + 1))?, int(args.at(i + 2))?);
                i += 2;
            } else if reverse.is_none() && is(word, "rev") {
                reverse = Some(true);
            } else if by.is_none() && is(word, "bylex") {
                by = Some(By::Lex);
            } else if by.is_none() && is(word, "byscore") {
                by = Some(By::Score);
            } else {
                return Err(Error::Syntax);
            }
            i += 1;
        }
        let (by, reverse) = (by.unwrap_or(By::Rank), reverse.unwrap_or(false));
        if limit != -1 && by == By::Rank {
            return Err(Error::new(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if with_scores && by == By::Lex {
            return Err(Error::new("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
        }
        let (min, max) = if reverse { (args.at(1), args.at(0)) } else { (args.at(0), args.at(1)) };
        let bounds = match by {
            By::Rank => RangeBounds::Rank(int(args.at(0))?, int(args.at(1))?),
            By::Score => RangeBounds::Score(score_bound(min)?, score_bound(max)?),
            By::Lex => RangeBounds::Lex(lex_bound(min)?, lex_bound(max)?),
        };
        Ok(RangeQuery { bounds, reverse, offset, limit, with_scores })
    }

    /// The members of the range. O(log n).
    fn slice(&self, set: &ZSet) -> ScoredSlice {
        let len = set.len();
        let ranks = match &self.bounds {
            RangeBounds::Rank(start, stop) => {
                let found = crate::options::range(*start, *stop, len);
                if self.reverse { len - found.end..len - found.start } else { found }
            }
            RangeBounds::Score(min, max) => self.limited(set, set.ranks(min, max)),
            RangeBounds::Lex(min, max) => self.limited(set, set.ranks(min, max)),
        };
        ScoredSlice { ranks, reverse: self.reverse }
    }

    /// Whether another server may find other members: scores differ within a range by member, or a negative
    /// offset goes by the encoding.
    fn is_vague(&self, set: &ZSet) -> bool {
        match self.bounds {
            RangeBounds::Rank(..) => false,
            RangeBounds::Score(..) => self.offset < 0,
            RangeBounds::Lex(..) => self.offset < 0 || has_scores(set),
        }
    }

    /// Applies LIMIT to a range of ranks. As in Redis 8 and Valkey, a negative offset counts from the other
    /// end in a skiplist, and leaves nothing in a listpack.
    fn limited(&self, set: &ZSet, ranks: Range<usize>) -> Range<usize> {
        let len = ranks.len();
        let skip = match usize::try_from(self.offset) {
            Ok(offset) => offset.min(len),
            Err(_) if set.encoding() != Enc::SkipList => len,
            Err(_) => {
                let back = usize::try_from(self.offset.unsigned_abs()).unwrap_or(usize::MAX);
                len.checked_sub(back).unwrap_or(len)
            }
        };
        let take = usize::try_from(self.limit).unwrap_or(usize::MAX).min(len - skip);
        match self.reverse {
            true => ranks.end - skip - take..ranks.end - skip,
            false => ranks.start + skip..ranks.start + skip + take,
        }
    }
}

// ----- answering -------------------------------------------------------------------------------------------

/// `ZRANGE key start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`: the members of a range.
///
/// Cost: O(log n) and the reply, n = members; a long reply is streamed. Errors: syntax, bad bounds,
/// WRONGTYPE.
fn zrange(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    range(cx, args, None, None)
}

/// `ZREVRANGE key start stop [WITHSCORES]`: the members between two ranks, the highest first.
///
/// Cost and errors: as ZRANGE.
fn zrevrange(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    range(cx, args, Some(By::Rank), Some(true))
}

/// `ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]`: the members between two scores.
///
/// Cost and errors: as ZRANGE.
fn zrangebyscore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    range(cx, args, Some(By::Score), Some(false))
}

/// `ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]`: the members between two scores, the
/// highest first.
///
/// Cost and errors: as ZRANGE.
fn zrevrangebyscore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    range(cx, args, Some(By::Score), Some(true))
}

/// `ZRANGEBYLEX key min max [LIMIT offset count]`: the members between two texts.
///
/// Cost and errors: as ZRANGE.
fn zrangebylex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    range(cx, args, Some(By::Lex), Some(false))
}

/// `ZREVRANGEBYLEX key max min [LIMIT offset count]`: the members between two texts, the last first.
///
/// Cost and errors: as ZRANGE.
fn zrevrangebylex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    range(cx, args, Some(By::Lex), Some(true))
}

/// Number of members in the reply.
fn reply_steps(view: &View<'_>, args: Args<'_>, by: Option<By>, reverse: Option<bool>) -> usize {
    let Ok(query) = RangeQuery::parse(args.from(2), Fixed { by, reverse, store: false }) else { return 0 };
    view.zset(args.at(1)).ok().flatten().map_or(0, |set| query.slice(set).ranks.len())
}

fn range(cx: &mut Cx<'_, '_>, args: Args<'_>, by: Option<By>, reverse: Option<bool>) -> Result<(), Error> {
    let query = RangeQuery::parse(args.from(2), Fixed { by, reverse, store: false })?;
    let key = args.at(1);
    let Some(set) = cx.view.zset(key)? else {
        cx.out.array(0);
        cx.view.count_lookup(key, false);
        return Ok(());
    };
    let form = Form::of(cx.out, query.with_scores);
    let rest = answer(cx.out, set, query.slice(set), form);
    cx.view.count_lookup(key, true);
    if let Some(rest) = rest {
        cx.stream(rest)?;
    }
    Ok(())
}

/// `ZCOUNT key min max`: the number of members between two scores.
///
/// Cost: O(log n), n = members. Errors: bad bounds, WRONGTYPE.
fn zcount(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (min, max) = (score_bound(args.at(2))?, score_bound(args.at(3))?);
    let set = cx.view.zset(args.at(1))?;
    let (hit, count) = (set.is_some(), set.map_or(0, |set| set.ranks(&min, &max).len()));
    cx.out.int(count as i64);
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `ZLEXCOUNT key min max`: the number of members between two texts.
///
/// Cost: O(log n), n = members. Errors: bad bounds, WRONGTYPE.
fn zlexcount(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (min, max) = (lex_bound(args.at(2))?, lex_bound(args.at(3))?);
    let set = cx.view.zset(args.at(1))?;
    let (hit, count) = (set.is_some(), set.map_or(0, |set| set.ranks(&min, &max).len()));
    cx.out.int(count as i64);
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

// ----- storing ---------------------------------------------------------------------------------------------

const STORE: Fixed = Fixed { by: None, reverse: None, store: true };

fn store_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let Ok(query) = RangeQuery::parse(args.from(3), STORE) else { return 0 };
    let Ok(Some(set)) = view.zset(args.at(2)) else { return 0 };
    let wanted = query.slice(set).ranks.len();
    if wanted == set.len() { 1 } else { wanted * 5 }
}

/// `ZRANGESTORE dst src start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count]`: stores a range and answers
/// its number of members. BYLEX over members of different scores stores some that lie in the range.
///
/// Cost: O(log n + m), n = members, m = members stored; the whole of a large set in O(1). Errors: syntax, bad
/// bounds, WRONGTYPE of src.
fn zrangestore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let query = RangeQuery::parse(args.from(3), STORE)?;
    let (to, from) = (args.at(1), args.at(2));
    let set = cx.view.zset(from)?;
    let (hit, result) = match (set, query.bounds) {
        (None, _) => (false, ZSet::new()),
        (Some(set), RangeBounds::Lex(min, max)) if has_scores(set) => {
            let found: Vec<_> = between(set, min, max).collect();
            let ranks = query.limited(set, 0..found.len());
            (true, build(ranks.len(), found[ranks].iter().copied()))
        }
        (Some(set), _) => {
            let ranks = query.slice(set).ranks;
            let whole = ranks.len() == set.len() && !is_packed(set.len(), b"");
            let copy = || build(ranks.len(), set.iter_from(ranks.start).take(ranks.len()));
            (true, if whole { set.clone() } else { copy() })
        }
    };
    if set.is_some_and(|set| query.is_vague(set)) {
        note_result(cx, to, &result);
    }
    cx.view.count_lookup(from, hit);
    store(cx, to, result, "zrangestore");
    Ok(())
}

/// Puts a result under a key and answers its number of members. An empty result removes the key.
pub(crate) fn store(cx: &mut Cx<'_, '_>, key: &[u8], result: ZSet, event: &'static str) {
    cx.out.int(result.len() as i64);
    if !result.is_empty() {
        cx.view.put(key, Value::ZSet(result), None);
        cx.view.changed(key, Class::ZSet, event);
    } else if cx.view.remove(key) {
        cx.view.changed(key, Class::Generic, "del");
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    /// Makes members `a` to `e` with scores 1 to 5.
    fn five() -> Db {
        let mut db = Db::new();
        db.check(&[("zadd z 1 a 2 b 3 c 4 d 5 e", "5")]);
        db
    }

    #[test]
    fn what_others_might_not_find_is_told_as_it_is() {
        Db::both(|mut db| {
            db.check(&[("zadd z 1 c 2 a 3 b 4 e 5 d", "5"), ("zrangestore d z [a [c bylex", "3")]);
            assert_eq!(db.effect_lines(), ["DEL d", "ZADD d 1 c 2 a 3 b"]);
            db.check(&[("zrange d 0 -1", r#"["c", "a", "b"]"#)]);
            db.check(&[("zrangestore d z [c [a bylex rev limit 1 1", "1")]);
            assert_eq!(db.effect_lines(), ["DEL d", "ZADD d 2 a"]);
            db.check(&[("zrangestore d z -inf inf byscore limit -1 2", "0")]);
            assert_eq!(db.effect_lines(), ["DEL d"]);
            db.check(&[("zrangestore d z -inf inf byscore limit 0 2", "2"), ("zadd y 1 a 1 b", "2")]);
            db.check(&[("zrangestore d y - + bylex", "2")]);
            assert!(db.effect_lines().is_empty());
        });
    }

    #[test]
    fn hexadecimal_numbers_are_told_as_decimals() {
        Db::both(|mut db| {
            db.check(&[("zadd z CH 0x10 0x1 1.5 b", "2")]);
            assert_eq!(db.effect_lines(), ["zadd z CH 16 0x1 1.5 b"]);
            db.check(&[("zincrby z -0X1p-1 b", "\"1\"")]);
            assert_eq!(db.effect_lines(), ["zincrby z -0.5 b"]);
            for same in ["zadd z 0x10 0x1", "zincrby z 0x0 b", "zadd z nx 0x9 b", "zadd z 7 b"] {
                db.line(same);
                assert!(db.effect_lines().is_empty(), "{same}");
            }
            db.check(&[("zunionstore d 1 z weights 0x2", "2")]);
            assert_eq!(db.effect_lines(), ["DEL d", "ZADD d 14 b 32 0x1"]);
        });
    }

    #[test]
    fn ranks_may_count_from_the_end() {
        five().check(&[
            ("zrange z 0 1", r#"["a", "b"]"#),
            ("zrange z -2 -1", r#"["d", "e"]"#),
            ("zrange z -9 9", r#"["a", "b", "c", "d", "e"]"#),
            ("zrange z 3 1", "[]"),
            ("zrange z 9 10", "[]"),
            ("zrange z 0 1 rev", r#"["e", "d"]"#),
            ("zrevrange z 1 2 withscores", r#"["d", "4", "c", "3"]"#),
            ("zrange nope 0 -1", "[]"),
        ]);
    }

    #[test]
    fn scores_and_members_bound_ranges() {
        five().check(&[
            ("zrange z (1 3 byscore", r#"["b", "c"]"#),
            ("zrange z 3 (1 byscore rev", r#"["c", "b"]"#),
            ("zrangebyscore z -inf +inf limit 1 2 withscores", r#"["b", "2", "c", "3"]"#),
            ("zrevrangebyscore z +inf -inf limit 1 2", r#"["d", "c"]"#),
            ("zrangebyscore z 2 5 limit 0 -1", r#"["b", "c", "d", "e"]"#),
            ("zrangebyscore z 2 5 limit 1 0", "[]"),
            ("zrangebyscore z 2 5 limit 7 1", "[]"),
            ("zrangebyscore z 2 5 limit -1 5", "[]"),
            ("zrangebyscore z 5 2", "[]"),
            ("zrangebylex z [b (d", r#"["b", "c"]"#),
            ("zrevrangebylex z + [c", r#"["e", "d", "c"]"#),
            ("zrange z + - bylex", "[]"),
            ("zrange z + - bylex rev limit 0 2", r#"["e", "d"]"#),
            ("zcount z (1 5", "4"),
            ("zcount z \"\" 1e400", "5"),
            ("zcount z inf -inf", "0"),
            ("zcount z \"(1\\x00\" 5", "4"),
            ("zcount z 0x1 5", "-ERR min or max is not a float"),
            ("zlexcount z - +", "5"),
            ("zlexcount z (a [c", "2"),
            ("zcount nope 0 1", "0"),
        ]);
    }

    #[test]
    fn a_negative_offset_counts_from_the_end_of_a_skiplist() {
        let mut db = five();
        assert_eq!(db.run(&["zadd", "z", "6", &"m".repeat(65)]), "1");
        db.check(&[
            ("zrangebyscore z 1 5 limit -2 9", r#"["d", "e"]"#),
            ("zrevrangebyscore z 5 1 limit -2 9", r#"["b", "a"]"#),
            ("zrangebyscore z 1 5 limit -6 9", "[]"),
            ("zrangebyscore z 1 5 limit -9223372036854775808 9", "[]"),
        ]);
    }

    #[test]
    fn mistakes_are_told_in_redis_order() {
        let mut db = five();
        db.check(&[
            ("set s v", "OK"),
            (
                "zrange z 0 1 limit 0 1",
                "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ),
            ("zrange z 0 1 limit 0 -1", r#"["a", "b"]"#),
            (
                "zrange z a b bylex withscores",
                "-ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ),
            ("zrange z a b bylex", "-ERR min or max not valid string range item"),
            ("zrange z a b byscore", "-ERR min or max is not a float"),
            ("zrange s a b", "-ERR value is not an integer or out of range"),
            ("zrange s 0 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("zrange z 0 1 rev rev", "-ERR syntax error"),
            ("zrange z 0 1 limit 1", "-ERR syntax error"),
            ("zrange z 0 1 limit x 1 junk", "-ERR value is not an integer or out of range"),
            ("zrevrange z 0 1 byscore", "-ERR syntax error"),
            ("zrangestore d z 0 1 withscores", "-ERR syntax error"),
            ("zrangestore d s 0 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("zcount s nan 1", "-ERR min or max is not a float"),
            ("zlexcount s - q", "-ERR min or max not valid string range item"),
        ]);
    }

    #[test]
    fn scores_are_pairs_in_resp3() {
        five().resp3().check(&[
            ("zrange z 0 1 withscores", r#"[["a", 1], ["b", 2]]"#),
            ("zrange z 0 1", r#"["a", "b"]"#),
        ]);
    }

    #[test]
    fn long_ranges_are_streamed_in_both_directions() {
        let mut db = Db::new();
        for i in 0..2000 {
            db.run(&["zadd", "z", &i.to_string(), &format!("m{i}")]);
        }
        let expected: Vec<_> = (100..1900).map(|i| format!("\"m{i}\"")).collect();
        assert_eq!(db.line("zrange z 100 1899"), format!("[{}]", expected.join(", ")));
        assert!(db.streamed);
        let expected: Vec<_> = (100..1900).rev().map(|i| format!("\"m{i}\", \"{i}\"")).collect();
        assert_eq!(
            db.line("zrangebyscore z 100 1899 withscores limit 0 3"),
            r#"["m100", "100", "m101", "101", "m102", "102"]"#
        );
        assert!(!db.streamed);
        assert_eq!(
            db.line("zrange z (1900 100 byscore rev withscores"),
            format!("[{}]", expected.join(", "))
        );
        assert!(db.streamed);
    }

    #[test]
    fn zrangestore_replaces_what_was_there_or_removes_it() {
        Db::both(|mut db| {
            db.check(&[
                ("zadd z 1 a 2 b 3 c", "3"),
                ("set d v", "OK"),
                ("zrangestore d z 0 1 rev", "2"),
                ("zrange d 0 -1 withscores", r#"["b", "2", "c", "3"]"#),
                ("zrangestore z z (1 +inf byscore limit 1 1", "1"),
                ("zrange z 0 -1", r#"["c"]"#),
            ]);
            db.events();
            db.check(&[("zrangestore d z 5 9", "0"), ("zrangestore d nope 0 -1", "0")]);
            assert_eq!(db.events(), ["del:d", "keymiss:nope"]);
            db.check(&[("exists d", "0")]);
        });
    }

    #[test]
    fn a_whole_large_set_is_stored_at_once() {
        Db::both(|mut db| {
            for i in 0..300 {
                db.run(&["zadd", "z", &i.to_string(), &format!("m{i}")]);
            }
            assert_eq!(db.cost(&["zrangestore", "d", "z", "0", "-1"]), 1);
            db.check(&[("zrangestore d z 0 -1", "300"), ("zrem d m0", "1"), ("zcard z", "300")]);
            db.check(&[("zrangestore d z 0 9", "10"), ("zadd d 1 m300", "1"), ("zcard z", "300")]);
        });
    }
}
