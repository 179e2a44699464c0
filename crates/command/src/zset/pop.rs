//! ZPOPMIN, ZPOPMAX, ZMPOP and their blocking forms BZPOPMIN, BZPOPMAX, BZMPOP.

use super::remove::{removal_steps, take};
use super::{Form, GROUP, ScoredSlice, Slices, len_of, pieces};
use crate::options::{int, is, timeout_ms};
use crate::table::{
    BLOCKING, Command, Effect, FAST, KeySpec, MOVABLEKEYS, RW_ACCESS_DELETE, Run, WRITE, acl,
};
use crate::{Cx, Error, STREAM_FROM};
use keyspace::View;
use resp::Args;
use value::ZSet;

const ONE: &[KeySpec] = &[KeySpec::one(1, RW_ACCESS_DELETE)];
const MANY: &[KeySpec] = &[KeySpec::range(1, -2, 1, RW_ACCESS_DELETE)];
const POPS: &str = "O(log(N)*M) for M of N members.";
const POPS_OF_MANY: &str = "O(K) + O(M*log(N)) for K keys and M of N members.";

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("zpopmin", -2, Run::Write(zpopmin), WRITE | FAST, acl::SORTEDSET)
        .keys(ONE)
        .reply(crate::replies::counted)
        .cost(pop_cost)
        .doc(GROUP, "5.0.0", POPS, "Takes the lowest members out of a sorted set and answers them."),
    Command::new("zpopmax", -2, Run::Write(zpopmax), WRITE | FAST, acl::SORTEDSET)
        .keys(ONE)
        .reply(crate::replies::counted)
        .cost(pop_cost)
        .doc(GROUP, "5.0.0", POPS, "Takes the highest members out of a sorted set and answers them."),
    Command::new("bzpopmin", -3, Run::Write(bzpopmin), WRITE | FAST | BLOCKING, acl::SORTEDSET)
        .portable(500)
        .keys(MANY)
        .effect(Effect::Noted)
        .doc(
            GROUP,
            "5.0.0",
            "O(log(N)) for N members.",
            "Takes the lowest member out of the first sorted set that has one, waiting for it.",
        ),
    Command::new("bzpopmax", -3, Run::Write(bzpopmax), WRITE | FAST | BLOCKING, acl::SORTEDSET)
        .portable(500)
        .keys(MANY)
        .effect(Effect::Noted)
        .doc(
            GROUP,
            "5.0.0",
            "O(log(N)) for N members.",
            "Takes the highest member out of the first sorted set that has one, waiting for it.",
        ),
    Command::new("zmpop", -4, Run::Write(zmpop), WRITE | MOVABLEKEYS, acl::SORTEDSET)
        .portable(500)
        .keys(&[KeySpec::numkeys(1, RW_ACCESS_DELETE)])
        .reply(crate::replies::popped::<1>)
        .effect(Effect::Noted)
        .cost(|view, args| many_cost(view, args.from(1)))
        .doc(
            GROUP,
            "7.0.0",
            POPS_OF_MANY,
            "Takes the lowest or highest members out of the first sorted set that has any.",
        ),
    Command::new("bzmpop", -5, Run::Write(bzmpop), WRITE | BLOCKING | MOVABLEKEYS, acl::SORTEDSET)
        .portable(500)
        .keys(&[KeySpec::numkeys(2, RW_ACCESS_DELETE)])
        .reply(crate::replies::popped::<2>)
        .effect(Effect::Noted)
        .cost(|view, args| many_cost(view, args.from(2)))
        .doc(
            GROUP,
            "7.0.0",
            POPS_OF_MANY,
            "Takes the lowest or highest members out of the first sorted set that has any, waiting for them.",
        ),
];

/// An end of the order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScoreEnd {
    Min,
    Max,
}

impl ScoreEnd {
    fn event(self) -> &'static str {
        match self {
            ScoreEnd::Min => "zpopmin",
            ScoreEnd::Max => "zpopmax",
        }
    }

    /// The equivalent command, for logs.
    fn command(self) -> &'static [u8] {
        match self {
            ScoreEnd::Min => b"ZPOPMIN",
            ScoreEnd::Max => b"ZPOPMAX",
        }
    }

    /// The `count` members at this end of `len`, the outermost first.
    fn slice(self, count: usize, len: usize) -> ScoredSlice {
        match self {
            ScoreEnd::Min => ScoredSlice { ranks: 0..count, reverse: false },
            ScoreEnd::Max => ScoredSlice { ranks: len - count..len, reverse: true },
        }
    }
}

fn steps(count: usize, len: usize) -> usize {
    let count = count.min(len);
    removal_steps(count, len) + count.min(STREAM_FROM)
}

fn pop_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let count = args.get(2).and_then(stdx::num::parse_i64).map_or(1, |n| usize::try_from(n).unwrap_or(0));
    steps(count, len_of(view, args.at(1)))
}

fn many_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let Ok(Many { keys, count, .. }) = Many::parse(args) else { return 0 };
    let len = keys.iter().map(|key| len_of(view, key)).find(|len| *len > 0);
    keys.len() + len.map_or(0, |len| steps(count, len))
}

/// Removes `count` members and writes them, without a header. A long rest is returned for a stream.
fn pop(
    cx: &mut Cx<'_, '_>,
    key: &[u8],
    end: ScoreEnd,
    count: usize,
    form: Form,
) -> Result<Option<Slices>, Error> {
    let Some(set) = cx.view.zset(key)? else { return Ok(None) };
    let slice = end.slice(count, set.len());
    let rest = pieces(cx.out, set, slice.clone(), form);
    take(cx, key, slice.ranks, end.event())?;
    Ok(rest)
}

fn stream(cx: &mut Cx<'_, '_>, rest: Option<Slices>) -> Result<(), Error> {
    rest.map_or(Ok(()), |rest| cx.stream(rest))
}

/// `ZPOPMIN key [count]`: removes the members with the lowest scores and answers them.
///
/// Cost: O(m·log n), m = members popped, n = members. Errors: syntax, count negative, WRONGTYPE.
fn zpopmin(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    pop_one_key(cx, args, ScoreEnd::Min)
}

/// `ZPOPMAX key [count]`: removes the members with the highest scores and answers them.
///
/// Cost: O(m·log n), m = members popped, n = members. Errors: syntax, count negative, WRONGTYPE.
fn zpopmax(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    pop_one_key(cx, args, ScoreEnd::Max)
}

fn pop_one_key(cx: &mut Cx<'_, '_>, args: Args<'_>, end: ScoreEnd) -> Result<(), Error> {
    if args.len() > 3 {
        return Err(Error::Syntax);
    }
    let count = match args.get(2).map(int) {
        None => 1,
        Some(Ok(n)) if n >= 0 => n as usize,
        Some(_) => return Err(Error::new("ERR value is out of range, must be positive")),
    };
    let key = args.at(1);
    let count = count.min(cx.view.zset(key)?.map_or(0, ZSet::len));
    // Only RESP3 with a count answers pairs.
    let form = if args.len() == 3 { Form::of(cx.out, true) } else { Form::Flat };
    form.header(cx.out, count);
    let rest = pop(cx, key, end, count, form)?;
    stream(cx, rest)?;
    Ok(())
}

/// The first key that holds members, and their number. Errors: WRONGTYPE of a key in front of it.
fn first_filled<'a>(view: &View<'_>, keys: Args<'a>) -> Result<Option<(&'a [u8], usize)>, Error> {
    for key in keys.iter() {
        if let Some(set) = view.zset(key)?.filter(|set| !set.is_empty()) {
            return Ok(Some((key, set.len())));
        }
    }
    Ok(None)
}

/// `BZPOPMIN key [key ...] timeout`: `[key, member, score]`, or a null array on a time-out. Logged as
/// ZPOPMIN.
///
/// Cost: O(k + log n), k = keys, n = members. Errors: bad time-out, WRONGTYPE of a key in front of the first
/// filled one.
fn bzpopmin(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    pop_or_wait(cx, args, ScoreEnd::Min)
}

/// `BZPOPMAX key [key ...] timeout`: `[key, member, score]`, or a null array on a time-out. Logged as
/// ZPOPMAX.
///
/// Cost: O(k + log n), k = keys, n = members. Errors: bad time-out, WRONGTYPE of a key in front of the first
/// filled one.
fn bzpopmax(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    pop_or_wait(cx, args, ScoreEnd::Max)
}

fn pop_or_wait(cx: &mut Cx<'_, '_>, args: Args<'_>, end: ScoreEnd) -> Result<(), Error> {
    let last = args.len() - 1;
    let timeout = timeout_ms(args.at(last), cx.view.now_ms())?;
    let Some((key, _)) = first_filled(cx.view, args.to(last).from(1))? else {
        cx.block(timeout, true);
        return Ok(());
    };
    cx.out.array(3);
    cx.out.bulk(key);
    pop(cx, key, end, 1, Form::Flat)?;
    cx.effect(&[end.command(), key]);
    Ok(())
}

/// The arguments `numkeys key [key ...] MIN|MAX [COUNT count]`.
struct Many<'a> {
    keys: Args<'a>,
    end: ScoreEnd,
    count: usize,
}

impl<'a> Many<'a> {
    fn parse(args: Args<'a>) -> Result<Many<'a>, Error> {
        let keys = match int(args.at(0)) {
            Ok(n) if n > 0 => n as usize,
            _ => return Err(Error::new("ERR numkeys should be greater than 0")),
        };
        // The end is named behind the keys.
        let at = keys.saturating_add(1);
        let end = match args.get(at) {
            Some(word) if is(word, "min") => ScoreEnd::Min,
            Some(word) if is(word, "max") => ScoreEnd::Max,
            _ => return Err(Error::Syntax),
        };
        let count = match (args.get(at + 1), args.get(at + 2)) {
            (None, _) => 1,
            (Some(word), Some(count)) if is(word, "count") => match int(count) {
                Ok(n) if n > 0 => n as usize,
                _ => return Err(Error::new("ERR count should be greater than 0")),
            },
            _ => return Err(Error::Syntax),
        };
        if args.len() > at + 3 {
            return Err(Error::Syntax);
        }
        Ok(Many { keys: args.to(at).from(1), end, count })
    }

    /// Pops from the first filled key. False if there is none.
    fn pop(&self, cx: &mut Cx<'_, '_>) -> Result<bool, Error> {
        let Some((key, len)) = first_filled(cx.view, self.keys)? else { return Ok(false) };
        let count = self.count.min(len);
        cx.out.array(2);
        cx.out.bulk(key);
        cx.out.array(count);
        let rest = pop(cx, key, self.end, count, Form::Nested)?;
        cx.effect(&[self.end.command(), key, count.to_string().as_bytes()]);
        stream(cx, rest)?;
        Ok(true)
    }
}

/// `ZMPOP numkeys key [key ...] MIN|MAX [COUNT count]`: `[key, members and scores]` of the first filled key,
/// or a null array. Logged as ZPOPMIN or ZPOPMAX.
///
/// Cost: O(k + m·log n), k = keys, m = members popped, n = members. Errors: bad numkeys, syntax, bad count,
/// WRONGTYPE of a key in front of the first filled one.
fn zmpop(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if !Many::parse(args.from(1))?.pop(cx)? {
        cx.out.null_array();
    }
    Ok(())
}

/// `BZMPOP timeout numkeys key [key ...] MIN|MAX [COUNT count]`: as ZMPOP, or a null array on a time-out.
///
/// Cost: as ZMPOP. Errors: as ZMPOP, and a bad time-out, which is checked after the other arguments.
fn bzmpop(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let many = Many::parse(args.from(2))?;
    let timeout = timeout_ms(args.at(1), cx.view.now_ms())?;
    if !many.pop(cx)? {
        cx.block(timeout, true);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    #[test]
    fn the_ends_are_popped_outermost_first() {
        Db::both(|mut db| {
            db.check(&[("zadd z 1 a 2 b 3 c 4 d", "4")]);
            db.events();
            db.check(&[
                ("zpopmin z 0", "[]"),
                ("zpopmin nope", "[]"),
                ("zpopmin z", r#"["a", "1"]"#),
                ("zpopmax z 2", r#"["d", "4", "c", "3"]"#),
                ("zpopmax z 9", r#"["b", "2"]"#),
            ]);
            assert_eq!(db.events(), ["zpopmin:z", "zpopmax:z", "zpopmax:z", "del:z"]);
            db.check(&[("exists z", "0")]);
        });
    }

    #[test]
    fn only_resp3_with_a_count_answers_pairs() {
        let mut db = Db::new().resp3();
        db.check(&[
            ("zadd z 1 a 2 b 3 c 4 d", "4"),
            ("zpopmin z", r#"["a", 1]"#),
            ("zpopmin z 1", r#"[["b", 2]]"#),
            ("zmpop 1 z min", r#"["z", [["c", 3]]]"#),
            ("bzpopmin z 0", r#"["z", "d", 4]"#),
            ("zmpop 1 z min", "nil"),
            ("zpopmin z", "[]"),
        ]);
    }

    #[test]
    fn the_first_filled_key_gives_and_wrong_types_in_front_of_it_are_errors() {
        Db::both(|mut db| {
            db.check(&[
                ("zadd z 1 a 2 b 3 c", "3"),
                ("set s v", "OK"),
                ("zmpop 2 nope z max count 2", r#"["z", [["c", "3"], ["b", "2"]]]"#),
            ]);
            assert_eq!(db.effect_lines(), ["ZPOPMAX z 2"]);
            db.check(&[
                ("zmpop 2 nope s max", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
                ("bzpopmin s z 0", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
                ("zmpop 1 nope max", "nil array"),
                ("bzmpop 0 2 z s min count 5", r#"["z", [["a", "1"]]]"#),
            ]);
            assert_eq!(db.effect_lines(), ["ZPOPMIN z 1"]);
            db.check(&[("zadd z 1 a", "1"), ("bzpopmax nope z s 0", r#"["z", "a", "1"]"#)]);
            assert_eq!(db.effect_lines(), ["ZPOPMAX z"]);
        });
    }

    #[test]
    fn waiting_changes_nothing_and_a_transaction_does_not_wait() {
        let mut db = Db::new();
        db.line("bzpopmin a b 1.5");
        let block = db.blocked.clone().expect("blocked");
        assert_eq!((block.timeout_ms, block.null_array), (Some(1500), true));
        db.line("bzmpop 0 1 a min");
        assert_eq!(db.blocked.clone().expect("blocked").timeout_ms, None);
        db.caller.may_block = false;
        db.check(&[("bzpopmin a 0", "nil array"), ("bzmpop 0 1 a min", "nil array")]);
    }

    #[test]
    fn mistakes_are_told_in_redis_order() {
        let mut db = Db::new();
        db.check(&[
            ("set s v", "OK"),
            ("zpopmin s -1", "-ERR value is out of range, must be positive"),
            ("zpopmin s x", "-ERR value is out of range, must be positive"),
            ("zpopmin s x 1", "-ERR syntax error"),
            ("zpopmin s 0", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("bzpopmin s x", "-ERR timeout is not a float or out of range"),
            ("bzpopmin s -1", "-ERR timeout is negative"),
            ("zmpop 0 s min", "-ERR numkeys should be greater than 0"),
            ("zmpop 4 s t min", "-ERR syntax error"),
            ("zmpop 1 s x", "-ERR syntax error"),
            ("zmpop 1 s min count 0", "-ERR count should be greater than 0"),
            ("zmpop 1 s min count 1 count 1", "-ERR syntax error"),
            ("zmpop 1 s min count", "-ERR syntax error"),
            ("bzmpop x 0 s min", "-ERR numkeys should be greater than 0"),
            ("bzmpop x 1 s min", "-ERR timeout is not a float or out of range"),
            ("zmpop 9223372036854775807 s min", "-ERR syntax error"),
        ]);
    }

    #[test]
    fn many_popped_members_are_streamed() {
        Db::both(|mut db| {
            for i in 0..1500 {
                db.run(&["zadd", "z", &i.to_string(), &format!("m{i}")]);
            }
            let pairs = |range: &mut dyn Iterator<Item = i32>| {
                range.map(|i| format!("\"m{i}\", \"{i}\"")).collect::<Vec<_>>().join(", ")
            };
            assert_eq!(db.line("zpopmin z 600"), format!("[{}]", pairs(&mut (0..600))));
            assert!(db.streamed);
            assert_eq!(db.line("zpopmax z 9999"), format!("[{}]", pairs(&mut (600..1500).rev())));
            assert!(db.streamed);
            assert_eq!(db.line("exists z"), "0");
        });
    }
}
