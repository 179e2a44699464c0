//! ZRANDMEMBER: members by rank, each as likely as any other.

use super::{Form, GROUP, ScoredSlice, answer, len_of};
use crate::options::{int, is};
use crate::set::random::{BULK_MIN, distinct};
use crate::table::{Command, KeySpec, READONLY, RO_ACCESS, Run, acl};
use crate::{Cx, Error, STREAM_FROM, Stream};
use keyspace::View;
use resp::{Args, Reply};
use value::{Held, ZSet};

pub(crate) static COMMANDS: &[Command] =
    &[Command::new("zrandmember", -2, Run::Read(zrandmember), READONLY, acl::SORTEDSET)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .reply(crate::replies::counted)
        .tips(&["nondeterministic_output"])
        .cost(cost)
        .doc(
            GROUP,
            "6.2.0",
            "O(N) for N members answered.",
            "Answers random members of a sorted set and leaves them there.",
        )];

/// Steps to draw members. Writing is streamed.
fn cost(view: &View<'_>, args: Args<'_>) -> usize {
    let len = len_of(view, args.at(1));
    match args.get(2).and_then(stdx::num::parse_i64) {
        Some(count) if count > 0 && (count as usize) < len => count as usize * 4,
        _ => 1,
    }
}

/// `ZRANDMEMBER key [count [WITHSCORES]]`: a random member or null; with a count an array. A negative count
/// allows repetitions.
///
/// Cost: O(count · log n), n = members. Errors: count not an integer or out of range, syntax, WRONGTYPE.
fn zrandmember(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let Some(count) = args.get(2) else { return one(cx, key) };
    let count = int(count)?;
    if count == i64::MIN {
        let text =
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
        return Err(Error::new(text));
    }
    let with_scores = match args.get(3) {
        None => false,
        Some(word) if args.len() == 4 && is(word, "withscores") => true,
        Some(_) => return Err(Error::Syntax),
    };
    if with_scores && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(Error::OutOfRange);
    }
    let len = cx.view.zset(key)?.map_or(0, ZSet::len);
    let form = Form::of(cx.out, with_scores);
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if len == 0 || wanted == 0 {
        cx.out.array(0);
    } else if count < 0 {
        repeated(cx, key, wanted, form)?;
    } else if wanted >= len {
        let rest = cx
            .view
            .zset(key)?
            .and_then(|set| answer(cx.out, set, ScoredSlice { ranks: 0..len, reverse: false }, form));
        if let Some(rest) = rest {
            cx.stream(rest)?;
        }
    } else {
        different(cx, key, wanted, len, form)?;
    }
    cx.view.count_lookup(key, len > 0);
    Ok(())
}

fn one(cx: &mut Cx<'_, '_>, key: &[u8]) -> Result<(), Error> {
    let len = cx.view.zset(key)?.map_or(0, ZSet::len);
    let rank = if len == 0 { 0 } else { cx.random_below(len) };
    let member = cx.view.zset(key)?.and_then(|set| set.nth(rank)).map(|(member, _)| member);
    cx.out.bulk_or_null(member);
    cx.view.count_lookup(key, len > 0);
    Ok(())
}

/// Answers members drawn with repetitions.
fn repeated(cx: &mut Cx<'_, '_>, key: &[u8], wanted: usize, form: Form) -> Result<(), Error> {
    let seed = cx.random();
    let Some(set) = cx.view.zset(key)?.cloned() else { return Ok(()) };
    cx.expect_reply(wanted.saturating_mul(BULK_MIN))?;
    form.header(cx.out, wanted);
    let mut draws = RepeatedScored { set, left: wanted, seed, form };
    if wanted > STREAM_FROM {
        cx.stream(draws)?;
    } else {
        draws.fill(cx.out, usize::MAX);
    }
    Ok(())
}

/// Answers members that are all different.
fn different(cx: &mut Cx<'_, '_>, key: &[u8], wanted: usize, len: usize, form: Form) -> Result<(), Error> {
    let ranks = distinct(cx, wanted, len)?.unwrap_or_default();
    let Some(set) = cx.view.zset(key)?.cloned() else { return Ok(()) };
    form.header(cx.out, ranks.len());
    let mut chosen = ChosenScored { set, ranks, next: 0, form };
    if wanted > STREAM_FROM {
        cx.stream(chosen)?;
    } else {
        chosen.fill(cx.out, usize::MAX);
    }
    Ok(())
}

struct RepeatedScored {
    set: ZSet,
    left: usize,
    seed: u64,
    form: Form,
}

impl Stream for RepeatedScored {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while self.left > 0 {
            self.seed = stdx::hash::hash_u64(self.seed);
            let rank = ((self.seed as u128 * self.set.len() as u128) >> 64) as usize;
            let (member, score) = self.set.nth(rank).unwrap_or((b"", 0.0));
            self.form.write(out, member, score);
            self.left -= 1;
            if out.len() >= end {
                break;
            }
        }
        self.left > 0
    }

    fn repeats(&self) -> bool {
        true
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.set.held().into_iter().for_each(held);
    }
}

struct ChosenScored {
    set: ZSet,
    ranks: Vec<usize>,
    next: usize,
    form: Form,
}

impl Stream for ChosenScored {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        for rank in &self.ranks[self.next..] {
            let (member, score) = self.set.nth(*rank).unwrap_or((b"", 0.0));
            self.form.write(out, member, score);
            self.next += 1;
            if out.len() >= end {
                break;
            }
        }
        self.next < self.ranks.len()
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.set.held().into_iter().for_each(held);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;
    use resp::Frame;
    use std::collections::BTreeSet;

    fn texts(frame: &Frame) -> Vec<Vec<u8>> {
        frame.elements().expect("an array").iter().map(|e| e.text().expect("text").to_vec()).collect()
    }

    #[test]
    fn positive_counts_give_different_members_and_negative_ones_repeat() {
        let mut db = Db::new();
        for i in 0..1000 {
            db.run(&["zadd", "z", &i.to_string(), &format!("m{i}")]);
        }
        for (count, expected) in [("5", 5), ("700", 700), ("5000", 1000)] {
            let found = texts(&db.call(&["zrandmember", "z", count]));
            assert_eq!((found.len(), found.iter().collect::<BTreeSet<_>>().len()), (expected, expected));
        }
        for (count, expected) in [("-5", 5), ("-3000", 3000)] {
            assert_eq!(texts(&db.call(&["zrandmember", "z", count])).len(), expected);
        }
        assert_eq!(texts(&db.call(&["zrandmember", "z", "-700", "withscores"])).len(), 1400);
    }

    #[test]
    fn scores_stand_beside_their_members() {
        let mut db = Db::new();
        db.check(&[
            ("zadd z 1 a", "1"),
            ("zrandmember z", "\"a\""),
            ("zrandmember z 3", r#"["a"]"#),
            ("zrandmember z -2 withscores", r#"["a", "1", "a", "1"]"#),
            ("zrandmember z 0 withscores", "[]"),
            ("zrandmember nope", "nil"),
            ("zrandmember nope 3", "[]"),
        ]);
        db.resp3().check(&[("zrandmember z -2 withscores", r#"[["a", 1], ["a", 1]]"#)]);
    }

    #[test]
    fn mistakes_are_told_in_redis_order() {
        let mut db = Db::new();
        let range =
            "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
        db.check(&[
            ("set s v", "OK"),
            ("zrandmember s x junk", "-ERR value is not an integer or out of range"),
            ("zrandmember s -9223372036854775808", range),
            ("zrandmember s -9223372036854775807 junk", "-ERR syntax error"),
            ("zrandmember s 1 withscores junk", "-ERR syntax error"),
            ("zrandmember s -9223372036854775807 withscores", "-ERR value is out of range"),
            ("zrandmember s", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("zrandmember s 0", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ]);
    }
}
