//! ZADD, ZINCRBY, ZREM, ZSCORE, ZMSCORE, ZCARD, ZRANK, ZREVRANK, ZSCAN.

use super::{GROUP, LOG, is_packed, per_argument};
use crate::options::{ScanOptions, float, is, note_decimals};
use crate::table::{
    Command, DENYOOM, FAST, KeySpec, READONLY, RO, RO_ACCESS, RW_ACCESS_UPDATE, RW_DELETE, RW_UPDATE, Run,
    WRITE, acl,
};
use crate::{Cx, Error};
use keyspace::Class;
use resp::{Args, Reply};
use value::{Enc, ZSet};

const READ_ONE: &[KeySpec] = &[KeySpec::one(1, RO_ACCESS)];

pub(crate) static COMMANDS: &[Command] =
    &[
        Command::new("zadd", -4, Run::Write(zadd), WRITE | DENYOOM | FAST, acl::SORTEDSET)
            .portable(602)
            .keys(&[KeySpec::one(1, RW_UPDATE)])
            .cost(per_argument)
            .doc(
                GROUP,
                "1.2.0",
                "O(log(N)) per member, N members there.",
                "Puts members with scores into a sorted set, or gives members new scores.",
            ),
        Command::new("zincrby", 4, Run::Write(zincrby), WRITE | DENYOOM | FAST, acl::SORTEDSET)
            .keys(&[KeySpec::one(1, RW_ACCESS_UPDATE)])
            .doc(GROUP, "1.2.0", LOG, "Adds to a member's score, taking an absent one for zero."),
        Command::new("zrem", -3, Run::Write(zrem), WRITE | FAST, acl::SORTEDSET)
            .portable(204)
            .keys(&[KeySpec::one(1, RW_DELETE)])
            .cost(per_argument)
            .doc(
                GROUP,
                "1.2.0",
                "O(M*log(N)) for M names and N members.",
                "Takes members out of a sorted set; an empty one disappears.",
            ),
        Command::new("zscore", 3, Run::Read(zscore), READONLY | FAST, acl::SORTEDSET).keys(READ_ONE).doc(
            GROUP,
            "1.2.0",
            "O(1)",
            "Answers the score of a member.",
        ),
        Command::new("zmscore", -3, Run::Read(zmscore), READONLY | FAST, acl::SORTEDSET)
            .keys(READ_ONE)
            .cost(per_argument)
            .doc(GROUP, "6.2.0", "O(N) for N names.", "Answers the scores of several members."),
        Command::new("zcard", 2, Run::Read(zcard), READONLY | FAST, acl::SORTEDSET)
            .keys(&[KeySpec::one(1, RO)])
            .doc(GROUP, "1.2.0", "O(1)", "Counts the members of a sorted set."),
        Command::new("zrank", -3, Run::Read(zrank), READONLY | FAST, acl::SORTEDSET).keys(READ_ONE).doc(
            GROUP,
            "2.0.0",
            LOG,
            "Tells how many members stand in front of one.",
        ),
        Command::new("zrevrank", -3, Run::Read(zrevrank), READONLY | FAST, acl::SORTEDSET)
            .keys(READ_ONE)
            .doc(GROUP, "2.0.0", LOG, "Tells how many members stand behind one."),
        Command::new("zscan", -3, Run::Read(zscan), READONLY, acl::SORTEDSET)
            .keys(READ_ONE)
            .tips(&["nondeterministic_output"])
            .cost(scan_cost)
            .doc(
                GROUP,
                "2.8.0",
                "O(1) per call, O(N) for a whole walk.",
                "Walks through members and scores by a cursor.",
            ),
    ];

// ----- adding ----------------------------------------------------------------------------------------------

/// The options of ZADD.
#[derive(Clone, Copy, Default)]
pub(crate) struct Options {
    pub nx: bool,
    pub xx: bool,
    gt: bool,
    lt: bool,
    pub ch: bool,
    incr: bool,
}

impl Options {
    /// Reads the words in front of the pairs, and tells their number.
    fn parse(words: Args<'_>) -> (Options, usize) {
        let mut options = Options::default();
        // Most often there are no options.
        if words.first().and_then(|word| word.first()).is_some_and(u8::is_ascii_digit) {
            return (options, 0);
        }
        for (i, word) in words.iter().enumerate() {
            let option = match word.len() {
                2 if is(word, "nx") => &mut options.nx,
                2 if is(word, "xx") => &mut options.xx,
                2 if is(word, "gt") => &mut options.gt,
                2 if is(word, "lt") => &mut options.lt,
                2 if is(word, "ch") => &mut options.ch,
                4 if is(word, "incr") => &mut options.incr,
                _ => return (options, i),
            };
            *option = true;
        }
        (options, words.len())
    }

    fn check(&self, pairs: usize) -> Result<(), Error> {
        let Options { nx, xx, gt, lt, incr, .. } = *self;
        let text = match () {
            () if nx && xx => "ERR XX and NX options at the same time are not compatible",
            () if [nx, gt, lt].iter().filter(|given| **given).count() > 1 => {
                "ERR GT, LT, and/or NX options at the same time are not compatible"
            }
            () if incr && pairs > 1 => "ERR INCR option supports a single increment-element pair",
            () => return Ok(()),
        };
        Err(Error::new(text))
    }

    fn any_condition(&self) -> bool {
        self.nx || self.xx || self.gt || self.lt
    }

    /// Whether a score may replace another, or be new.
    fn admit(&self, old: Option<f64>, score: f64) -> bool {
        match old {
            None => !self.xx,
            Some(old) => !(self.nx || (self.gt && score <= old) || (self.lt && score >= old)),
        }
    }
}

/// Stores a score and returns the old one.
#[inline]
fn put(set: &mut ZSet, member: &[u8], mut score: f64) -> Option<f64> {
    if score == 0.0 && score.is_sign_negative() && set.encoding() == Enc::ListPack {
        let len = set.len() + usize::from(set.score(member).is_none());
        score = if is_packed(len, member) { 0.0 } else { score };
    }
    set.insert(member, score)
}

/// `ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member [score member ...]`: the number of new (CH: new or
/// changed) members; with INCR the new score or null.
///
/// Cost: O(m·log n), m = pairs, n = members. Errors: syntax, scores that are not floats, options that exclude
/// each other, WRONGTYPE; with INCR a score that is NaN.
fn zadd(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (options, words) = Options::parse(args.from(2));
    let pairs = args.from(2 + words);
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(Error::Syntax);
    }
    options.check(pairs.len() / 2)?;
    let (one, many);
    let scores: &[f64] = if pairs.len() == 2 {
        one = [float(pairs.at(0))?];
        &one
    } else {
        many = pairs.iter().step_by(2).map(float).collect::<Result<Vec<_>, _>>()?;
        &many
    };
    let before = cx.view.changes().made();
    if options.incr {
        increment(cx, args.at(1), options, scores[0], pairs.at(1))?;
    } else {
        add(cx, args.at(1), options, scores, |i| pairs.at(2 * i + 1))?;
    }
    if cx.view.changes().made() > before {
        note_decimals(cx, args, |i| i >= 2 + words && (i - words).is_multiple_of(2));
    }
    Ok(())
}

/// Adds members, the i-th with the i-th score, and answers the number of new (CH: new or changed) ones.
pub(crate) fn add<'a>(
    cx: &mut Cx<'_, '_>,
    key: &[u8],
    options: Options,
    scores: &[f64],
    member: impl Fn(usize) -> &'a [u8],
) -> Result<(), Error> {
    let each = || scores.iter().enumerate().map(|(i, score)| (score, member(i)));
    if options.any_condition() {
        // The key is not touched if nothing will change.
        let admitted = match cx.view.zset(key)? {
            None => !options.xx,
            Some(set) => each().any(|(score, member)| options.admit(set.score(member), *score)),
        };
        if !admitted {
            cx.out.int(0);
            return Ok(());
        }
    }
    let set = cx.view.zset_or_new(key)?;
    let (mut added, mut updated) = (0, 0);
    for (score, member) in each() {
        if options.any_condition() && !options.admit(set.score(member), *score) {
            continue;
        }
        match put(set, member, *score) {
            None => added += 1,
            Some(old) => updated += i64::from(old != *score),
        }
    }
    if added + updated > 0 {
        cx.view.changed(key, Class::ZSet, "zadd");
    }
    cx.out.int(if options.ch { added + updated } else { added });
    Ok(())
}

/// `ZINCRBY key increment member`: adds to a score and answers the new one. A new member begins at 0.
///
/// Cost: O(log n), n = members. Errors: not a float, WRONGTYPE, infinities that cancel out.
fn zincrby(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if Options::parse(args.to(3).from(2)).1 > 0 {
        // Redis reads this as a ZADD with an option and no pair.
        return Err(Error::Syntax);
    }
    let by = float(args.at(2))?;
    let before = cx.view.changes().made();
    increment(cx, args.at(1), Options::default(), by, args.at(3))?;
    if cx.view.changes().made() > before {
        note_decimals(cx, args, |i| i == 2);
    }
    Ok(())
}

/// Adds to a score and answers the new one, or null if the options forbid it.
fn increment(cx: &mut Cx<'_, '_>, key: &[u8], options: Options, by: f64, member: &[u8]) -> Result<(), Error> {
    let old = cx.view.zset(key)?.and_then(|set| set.score(member));
    // NX and XX are checked before the sum, GT and LT after it.
    if (options.nx && old.is_some()) || (options.xx && old.is_none()) {
        cx.out.null();
        return Ok(());
    }
    let score = old.map_or(by, |old| old + by);
    if score.is_nan() {
        return Err(Error::new("ERR resulting score is not a number (NaN)"));
    }
    if !options.admit(old, score) {
        cx.out.null();
        return Ok(());
    }
    if old != Some(score) {
        put(cx.view.zset_or_new(key)?, member, score);
        cx.view.changed(key, Class::ZSet, "zincr");
    }
    cx.out.double(score);
    Ok(())
}

/// `ZREM key member [member ...]`: the number of removed members. An empty set is removed.
///
/// Cost: O(m·log n), m = members named, n = members. Errors: WRONGTYPE.
fn zrem(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, members) = (args.at(1), args.from(2));
    let found = cx.view.zset(key)?.is_some_and(|set| members.iter().any(|m| set.score(m).is_some()));
    if !found {
        cx.out.int(0);
        return Ok(());
    }
    let set = cx.view.zset_or_new(key)?;
    let removed = members.iter().filter(|member| set.remove(member).is_some()).count();
    cx.view.changed(key, Class::ZSet, "zrem");
    cx.view.remove_if_empty(key);
    cx.out.int(removed as i64);
    Ok(())
}

// ----- asking ----------------------------------------------------------------------------------------------

/// Writes a score, or null.
fn write_score(out: &mut Reply, score: Option<f64>) {
    match score {
        Some(score) => out.double(score),
        None => out.null(),
    }
}

/// `ZSCORE key member`: the score, or null.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn zscore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let set = cx.view.zset(args.at(1))?;
    let hit = set.is_some();
    write_score(cx.out, set.and_then(|set| set.score(args.at(2))));
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `ZMSCORE key member [member ...]`: the scores, or null for each missing one.
///
/// Cost: O(members named). Errors: WRONGTYPE.
fn zmscore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let set = cx.view.zset(args.at(1))?;
    let hit = set.is_some();
    cx.out.array(args.len() - 2);
    for member in args.from(2).iter() {
        write_score(cx.out, set.and_then(|set| set.score(member)));
    }
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `ZCARD key`: the number of members; 0 for a missing key.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn zcard(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let set = cx.view.zset(args.at(1))?;
    let hit = set.is_some();
    cx.out.int(set.map_or(0, ZSet::len) as i64);
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `ZRANK key member [WITHSCORE]`: the number of members in front of this one, or null.
///
/// Cost: O(log n), n = members. Errors: arity, syntax, WRONGTYPE.
fn zrank(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    rank(cx, args, "zrank", |rank, _| rank)
}

/// `ZREVRANK key member [WITHSCORE]`: the number of members behind this one, or null.
///
/// Cost: O(log n), n = members. Errors: arity, syntax, WRONGTYPE.
fn zrevrank(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    rank(cx, args, "zrevrank", |rank, len| len - 1 - rank)
}

fn rank(
    cx: &mut Cx<'_, '_>,
    args: Args<'_>,
    name: &str,
    turn: fn(usize, usize) -> usize,
) -> Result<(), Error> {
    if args.len() > 4 {
        return Err(Error::Arity(name.to_owned()));
    }
    let with_score = match args.get(3) {
        None => false,
        Some(word) if is(word, "withscore") => true,
        Some(_) => return Err(Error::Syntax),
    };
    let (key, member) = (args.at(1), args.at(2));
    let set = cx.view.zset(key)?;
    let hit = set.is_some();
    let found = set.and_then(|set| Some((turn(set.rank(member)?, set.len()), set)));
    match found {
        None if with_score => cx.out.null_array(),
        None => cx.out.null(),
        Some((rank, set)) => {
            if with_score {
                cx.out.array(2);
            }
            cx.out.int(rank as i64);
            if with_score {
                write_score(cx.out, set.score(member));
            }
        }
    }
    cx.view.count_lookup(key, hit);
    Ok(())
}

/// Steps for the members that one call visits.
fn scan_cost(view: &keyspace::View<'_>, args: Args<'_>) -> usize {
    let count = ScanOptions::parse(args.from(3), &["noscores"]).map_or(0, |options| options.count);
    view.zset(args.at(1)).ok().flatten().map_or(0, ZSet::len).min(count) * 4
}

/// `ZSCAN key cursor [MATCH pattern] [COUNT count] [NOSCORES]`: `[cursor, members and scores]`. NOSCORES is
/// Valkey's.
///
/// Cost: O(members visited). Errors, in this order: invalid cursor, WRONGTYPE, syntax or COUNT not an
/// integer. The options of a missing key are not checked.
fn zscan(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let cursor = crate::options::cursor(args.at(2))?;
    let Some(set) = cx.view.zset(args.at(1))? else {
        cx.out.array(2);
        cx.out.bulk(b"0");
        cx.out.array(0);
        cx.view.count_lookup(args.at(1), false);
        return Ok(());
    };
    let options = ScanOptions::parse(args.from(3), &["noscores"])?;
    let mut found = Reply::new(false);
    let (mut count, mut text) = (0, Vec::new());
    let long = set.encoding() == Enc::SkipList;
    let mut walk = options.walk(&mut cx.budget);
    let next = set.scan(cursor, options.count, &mut |member, score| {
        if !walk.takes(member) {
            return;
        }
        found.bulk(member);
        count += 1;
        if !options.bare {
            text.clear();
            match long {
                true => format_17(score, &mut text),
                false => stdx::num::format_f64(score, &mut text),
            }
            found.bulk(&text);
            count += 1;
        }
    });
    walk.end()?;
    cx.out.array(2);
    cx.out.bulk(next.to_string().as_bytes());
    cx.out.array(count);
    cx.out.encoded(found.as_bytes());
    cx.view.count_lookup(args.at(1), true);
    Ok(())
}

/// Writes a score of a skiplist for ZSCAN: C's `%.17g`, not the shortest text.
fn format_17(score: f64, out: &mut Vec<u8>) {
    if !score.is_finite() {
        return stdx::num::format_f64(score, out);
    }
    let exact = format!("{score:.16e}");
    let (mantissa, exponent) = exact.split_once('e').unwrap_or((&exact, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let text = if (-4..17).contains(&exponent) {
        trim(&format!("{score:.*}", (16 - exponent) as usize))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.unsigned_abs())
    };
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::format_17;
    use crate::testing::Db;

    #[test]
    fn zadd_counts_new_members_and_with_ch_changed_ones() {
        Db::both(|mut db| {
            db.check(&[
                ("zadd z 1 a 2 b", "2"),
                ("zadd z 1 a 3 b 4 c", "1"),
                ("zadd z ch 1 a 5 b 6 d", "2"),
                ("zrange z 0 -1 withscores", r#"["a", "1", "c", "4", "b", "5", "d", "6"]"#),
                ("zadd z 1 x 2 x", "1"),
                ("zscore z x", "\"2\""),
            ]);
            assert_eq!(db.events(), ["new:z", "zadd:z", "zadd:z", "zadd:z", "zadd:z"]);
        });
    }

    #[test]
    fn conditions_hold_members_back_and_touch_nothing_if_none_is_left() {
        Db::both(|mut db| {
            db.check(&[("zadd z 5 a", "1")]);
            db.events();
            db.check(&[
                ("zadd z nx 6 a", "0"),
                ("zadd z gt ch 5 a", "0"),
                ("zadd z lt ch 6 a", "0"),
                ("zadd z xx 1 b", "0"),
                ("zadd nope xx 1 b", "0"),
            ]);
            assert_eq!(db.events(), [] as [&str; 0]);
            db.check(&[("exists nope", "0")]);
            db.check(&[
                ("zadd z nx 6 a 7 b", "1"),
                ("zadd z gt ch 8 b 1 a", "1"),
                ("zadd z lt ch 1 a 9 b", "1"),
                ("zadd z xx ch 3 c 4 a", "1"),
                ("zrange z 0 -1 withscores", r#"["a", "4", "b", "8"]"#),
            ]);
        });
    }

    #[test]
    fn mistakes_of_zadd_are_told_in_redis_order() {
        let mut db = Db::new();
        db.check(&[
            ("set s v", "OK"),
            ("zadd z nx xx", "-ERR syntax error"),
            ("zadd z 1 a 2", "-ERR syntax error"),
            ("zadd z nx xx x a", "-ERR XX and NX options at the same time are not compatible"),
            ("zadd z nx gt x a", "-ERR GT, LT, and/or NX options at the same time are not compatible"),
            ("zadd z lt gt 1 a", "-ERR GT, LT, and/or NX options at the same time are not compatible"),
            ("zadd z incr 1 a 2 b", "-ERR INCR option supports a single increment-element pair"),
            ("zadd s 1 a nan b", "-ERR value is not a valid float"),
            ("zadd s 1 a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("zincrby s x b", "-ERR value is not a valid float"),
            ("zincrby s nx b", "-ERR syntax error"),
            ("zrem s a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("exists z", "0"),
        ]);
    }

    #[test]
    fn increments_answer_the_score_or_null_and_never_make_nan() {
        Db::both(|mut db| {
            db.check(&[
                ("zincrby z 1.5 a", "\"1.5\""),
                ("zadd z incr 0 a", "\"1.5\""),
                ("zadd z nx incr 1 a", "nil"),
                ("zadd z xx incr 1 b", "nil"),
                ("zadd z gt incr -1 a", "nil"),
                ("zadd z lt incr -1 a", "\"0.5\""),
                ("zadd z inf a", "0"),
                ("zadd z nx incr -inf a", "nil"),
                ("zincrby z -inf a", "-ERR resulting score is not a number (NaN)"),
                ("zscore z a", "\"inf\""),
            ]);
            assert_eq!(db.events(), ["new:z", "zincr:z", "zincr:z", "zadd:z"]);
        });
    }

    #[test]
    fn a_negative_zero_shows_only_where_redis_has_a_skiplist() {
        let mut db = Db::new();
        let long = "m".repeat(65);
        db.check(&[("zadd z -0 a", "1"), ("zscore z a", "\"0\"")]);
        assert_eq!(db.run(&["zadd", "z", "-0", &long, "-0", "b"]), "2");
        assert_eq!(db.run(&["zmscore", "z", "a", &long, "b"]), r#"["0", "-0", "-0"]"#);
    }

    #[test]
    fn removing_the_last_member_removes_the_key() {
        Db::both(|mut db| {
            db.check(&[("zadd z 1 a 2 b", "2"), ("zrem z q", "0"), ("zrem nope a", "0")]);
            db.events();
            db.check(&[("zrem z a a q", "1"), ("zrem z b", "1")]);
            assert_eq!(db.events(), ["zrem:z", "zrem:z", "del:z"]);
            db.check(&[("exists z", "0")]);
        });
    }

    #[test]
    fn ranks_count_from_either_end() {
        let mut db = Db::new();
        db.check(&[
            ("zadd z 1 a 2 b 3 c", "3"),
            ("zrank z b", "1"),
            ("zrevrank z c", "0"),
            ("zrank z a withscore", r#"[0, "1"]"#),
            ("zrank z q withscore", "nil array"),
            ("zrank nope q withscore", "nil array"),
            ("zrank z q", "nil"),
            ("zrank z a x", "-ERR syntax error"),
            ("zrevrank z a withscore x", "-ERR wrong number of arguments for 'zrevrank' command"),
        ]);
        let mut db = db.resp3();
        db.check(&[
            ("zrevrank z a withscore", "[2, 1]"),
            ("zrank z q withscore", "nil"),
            ("zscore z b", "2"),
            ("zmscore z a q", "[1, nil]"),
            ("zincrby z 1 a", "2"),
        ]);
    }

    #[test]
    fn zscan_reads_its_options_only_if_there_is_a_set() {
        let mut db = Db::new();
        db.check(&[
            ("set s v", "OK"),
            ("zadd z 0.1 a 2 b", "2"),
            ("zscan z 0", r#"["0", ["a", "0.1", "b", "2"]]"#),
            ("zscan z 0 match b count 5", r#"["0", ["b", "2"]]"#),
            ("zscan z 0 noscores", r#"["0", ["a", "b"]]"#),
            ("zscan z 0 count 0", "-ERR syntax error"),
            ("zscan nope 0 count 0", r#"["0", []]"#),
            ("zscan nope x", "-ERR invalid cursor"),
            ("zscan s 0 count 0", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ]);
    }

    #[test]
    fn zscan_visits_all_of_a_large_set() {
        let mut db = Db::new();
        for i in 0..1000 {
            db.run(&["zadd", "z", &i.to_string(), &format!("m{i}")]);
        }
        let (mut cursor, mut seen) = ("0".to_owned(), std::collections::BTreeSet::new());
        loop {
            let reply = db.call(&["zscan", "z", &cursor, "noscores"]);
            let [next, found] = reply.elements().expect("an array") else { panic!("two elements") };
            seen.extend(found.elements().expect("an array").iter().map(|m| m.text().expect("text").to_vec()));
            cursor = String::from_utf8_lossy(next.text().expect("text")).into_owned();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(seen.len(), 1000);
    }

    #[test]
    fn seventeen_digits_are_those_of_c() {
        let text = |score| {
            let mut out = Vec::new();
            format_17(score, &mut out);
            String::from_utf8(out).expect("text")
        };
        let table = [
            (0.0, "0"),
            (-0.0, "-0"),
            (3.0, "3"),
            (-2.5, "-2.5"),
            (0.1, "0.10000000000000001"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1e22, "1e+22"),
            (1e-4, "0.0001"),
            (1e-7, "9.9999999999999995e-08"),
            (1.0 / 3.0, "0.33333333333333331"),
            (12345678901234567890.0, "1.2345678901234567e+19"),
            (1e300, "1.0000000000000001e+300"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        table.iter().for_each(|(score, expected)| assert_eq!(text(*score), *expected));
    }
}
