//! ZREMRANGEBYRANK, ZREMRANGEBYSCORE, ZREMRANGEBYLEX.

use super::{GROUP, LOG_PLUS, NOTED, between, has_scores, lex_bound, score_bound};
use crate::options::int;
use crate::table::{Command, KeySpec, RW_DELETE, Run, WRITE, acl};
use crate::{Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use std::ops::ControlFlow::{Break, Continue};
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

/// Members removed by name between two pauses.
const PIECE: usize = 64;

/// The range to remove.
enum RemovedRange<'a> {
    Rank(i64, i64),
    Score(ScoreBound, ScoreBound),
    Lex(LexBound<'a>, LexBound<'a>),
}

impl RemovedRange<'_> {
    /// The ranks of the range. O(log n).
    fn ranks(&self, set: &ZSet) -> Range<usize> {
        match self {
            RemovedRange::Rank(start, stop) => crate::options::range(*start, *stop, set.len()),
            RemovedRange::Score(min, max) => set.ranks(min, max),
            RemovedRange::Lex(min, max) => set.ranks(min, max),
        }
    }
}

fn by_rank(args: Args<'_>) -> Result<RemovedRange<'_>, Error> {
    Ok(RemovedRange::Rank(int(args.at(2))?, int(args.at(3))?))
}

fn by_score(args: Args<'_>) -> Result<RemovedRange<'_>, Error> {
    Ok(RemovedRange::Score(score_bound(args.at(2))?, score_bound(args.at(3))?))
}

fn by_lex(args: Args<'_>) -> Result<RemovedRange<'_>, Error> {
    Ok(RemovedRange::Lex(lex_bound(args.at(2))?, lex_bound(args.at(3))?))
}

fn steps(view: &View<'_>, args: Args<'_>, wanted: Result<RemovedRange<'_>, Error>) -> usize {
    match (wanted, view.zset(args.at(1))) {
        (Ok(wanted), Ok(Some(set))) => removal_steps(wanted.ranks(set).len(), set.len()),
        _ => 0,
    }
}

/// Steps to remove `gone` neighbours of `len`. All of them go in one step. Else each removed one is looked up
/// by name, or each remaining one is put into a new table, whichever are fewer.
pub(super) fn removal_steps(gone: usize, len: usize) -> usize {
    gone.min(len - gone) * 4
}

/// `ZREMRANGEBYRANK key start stop`: the number of removed members.
///
/// Cost: O(log n + min(m, n - m)), n = members, m = members removed. Errors: not an integer, WRONGTYPE.
fn zremrangebyrank(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    remove(cx, args, by_rank(args)?, "zremrangebyrank")
}

/// `ZREMRANGEBYSCORE key min max`: the number of removed members.
///
/// Cost: as ZREMRANGEBYRANK. Errors: bad bounds, WRONGTYPE.
fn zremrangebyscore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    remove(cx, args, by_score(args)?, "zremrangebyscore")
}

/// `ZREMRANGEBYLEX key min max`: the number of removed members. Which those are is not promised if scores
/// differ, but all of them lie in the range.
///
/// Cost: as ZREMRANGEBYRANK; O(log n + m · log n) if scores differ. Errors: bad bounds, WRONGTYPE.
fn zremrangebylex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (min, max) = (lex_bound(args.at(2))?, lex_bound(args.at(3))?);
    if cx.view.zset(args.at(1))?.is_some_and(has_scores) {
        return remove_named(cx, args.at(1), min, max);
    }
    remove(cx, args, RemovedRange::Lex(min, max), "zremrangebylex")
}

/// Removes the members of a range that lie between two texts, where scores differ. Other servers would find
/// others, so they are told by name.
fn remove_named(cx: &mut Cx<'_, '_>, key: &[u8], min: LexBound<'_>, max: LexBound<'_>) -> Result<(), Error> {
    let steps = cx.view.zset(key)?.map_or(0, |set| set.ranks(&min, &max).len() * 4);
    cx.charge(steps)?;
    let Some(set) = cx.view.zset(key)? else { return Ok(()) };
    let gone: Vec<Vec<u8>> = between(set, min, max).map(|(member, _)| member.to_vec()).collect();
    cx.out.int(gone.len() as i64);
    if gone.is_empty() {
        return Ok(());
    }
    if let Some(set) = cx.view.zset_mut(key)? {
        for gone in gone.chunks(PIECE) {
            gone.iter().for_each(|member| _ = set.remove(member));
            cx.budget.pause()?;
        }
        cx.view.changed(key, Class::ZSet, "zremrangebylex");
    }
    cx.view.remove_if_empty(key);
    for gone in gone.chunks(NOTED) {
        let words: Vec<&[u8]> =
            [&b"ZREM"[..], key].into_iter().chain(gone.iter().map(Vec::as_slice)).collect();
        cx.effect(&words);
    }
    Ok(())
}

fn remove(
    cx: &mut Cx<'_, '_>,
    args: Args<'_>,
    wanted: RemovedRange<'_>,
    event: &'static str,
) -> Result<(), Error> {
    let key = args.at(1);
    let ranks = cx.view.zset(key)?.map_or(0..0, |set| wanted.ranks(set));
    cx.out.int(ranks.len() as i64);
    take(cx, key, ranks, event)
}

/// Removes members by rank and reports the change. An empty set is removed.
pub(super) fn take(
    cx: &mut Cx<'_, '_>,
    key: &[u8],
    ranks: Range<usize>,
    event: &'static str,
) -> Result<(), Error> {
    if ranks.is_empty() {
        return Ok(());
    }
    let len = cx.view.zset(key)?.map_or(0, ZSet::len);
    if len == ranks.len() {
        cx.view.remove(key);
        cx.view.changed(key, Class::ZSet, event);
        cx.view.notify(key, Class::Generic, "del");
        return Ok(());
    }
    cx.charge(removal_steps(ranks.len(), len))?;
    let mut refused = None;
    if let Some(set) = cx.view.zset_mut(key)? {
        let budget = &mut cx.budget;
        set.remove_ranks(ranks, &mut |_| match budget.pause() {
            Ok(()) => Continue(()),
            Err(error) => {
                refused = Some(error);
                Break(())
            }
        });
        cx.view.changed(key, Class::ZSet, event);
    }
    refused.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    #[test]
    fn ranges_go_and_the_last_takes_the_key_with_it() {
        Db::both(|mut db| {
            db.check(&[("zadd z 1 a 2 b 3 c 4 d 5 e", "5")]);
            db.events();
            db.check(&[
                ("zremrangebyrank z 5 9", "0"),
                ("zremrangebyrank z 3 1", "0"),
                ("zremrangebyrank z -1 -1", "1"),
                ("zremrangebyscore z (1 2", "1"),
                ("zremrangebylex z [c [c", "1"),
                ("zrange z 0 -1", r#"["a", "d"]"#),
                ("zremrangebyscore z -inf +inf", "2"),
                ("zremrangebyscore z -inf +inf", "0"),
            ]);
            let events = [
                "zremrangebyrank:z",
                "zremrangebyscore:z",
                "zremrangebylex:z",
                "zremrangebyscore:z",
                "del:z",
            ];
            assert_eq!(db.events(), events);
            db.check(&[("exists z", "0")]);
        });
    }

    /// Which members a search by member finds is not promised if scores differ. Those outside stay.
    #[test]
    fn members_of_other_scores_stay_if_they_are_outside() {
        Db::both(|mut db| {
            db.check(&[("zadd z 1 c 2 a 3 b 4 e 5 d", "5"), ("zremrangebylex z [b [c", "1")]);
            let told = db.effect_lines();
            let left = db.line("zrange z 0 -1");
            assert!(told == ["ZREM z b"] || told == ["ZREM z c"], "{told:?}");
            assert!(["a", "d", "e"].iter().all(|member| left.contains(member)), "{left}");
            db.check(&[("zremrangebylex z - +", "4"), ("exists z", "0")]);
            db.check(&[("zadd z 1 a 1 b 1 c", "3"), ("zremrangebylex z [a [b", "2")]);
            assert!(!db.effect_lines().iter().any(|line| line.starts_with("ZREM z a b")));
        });
    }

    #[test]
    fn bounds_are_looked_at_before_the_key() {
        let mut db = Db::new();
        db.check(&[
            ("set s v", "OK"),
            ("zremrangebyrank s x 1", "-ERR value is not an integer or out of range"),
            ("zremrangebyscore nope x 1", "-ERR min or max is not a float"),
            ("zremrangebylex s a 1", "-ERR min or max not valid string range item"),
            ("zremrangebyrank s 0 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ]);
    }

    #[test]
    fn the_estimate_follows_what_must_be_touched() {
        let mut db = Db::new();
        for i in 0..1000 {
            db.run(&["zadd", "z", &i.to_string(), &format!("m{i}")]);
        }
        assert_eq!(db.cost(&["zremrangebyrank", "z", "0", "-1"]), 0);
        assert_eq!(db.cost(&["zremrangebyscore", "z", "10", "19"]), 40);
        assert_eq!(db.cost(&["zremrangebyrank", "z", "10", "-1"]), 40);
        assert_eq!(db.line("zremrangebyrank z 10 -11"), "980");
        assert_eq!(db.line("zcard z"), "20");
        assert_eq!(db.line("zscore z m995"), "\"995\"");
    }

    #[test]
    fn long_ranges_go_in_pieces() {
        Db::both(|mut db| {
            let words: Vec<String> = (0..4000).flat_map(|i| [i.to_string(), format!("m{i:04}")]).collect();
            let words = ["zadd", "z"].into_iter().map(str::to_owned).chain(words).collect::<Vec<_>>();
            // Few of many, most of them, and by popping: removed or remaining members are handled 64 at a
            // time.
            for (line, reply, pieces) in [
                ("zremrangebyrank z 1 1280", "1280", 20),
                ("zremrangebyscore z -inf 2719", "2720", 20),
                ("zremrangebylex z [m0100 [m0739", "640", 10),
            ] {
                db.call(&words);
                assert_eq!(db.line(line), reply);
                assert!((pieces..pieces + 5).contains(&db.looks), "{line}: {}", db.looks);
            }
            db.call(&words);
            db.line("zpopmax z 1280");
            assert!((20..25).contains(&db.looks), "{}", db.looks);
            assert_eq!(db.line("zcard z"), "2720");
        });
    }
}
