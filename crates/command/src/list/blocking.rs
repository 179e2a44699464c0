//! BLPOP, BRPOP, BLMOVE, BRPOPLPUSH, BLMPOP: blocking forms of LPOP, RPOP, LMOVE, RPOPLPUSH and LMPOP.
//!
//! Each tries first. Without an element it changes nothing and asks to wait; it runs again when one of its
//! keys is filled. The log receives the pop, not the wait.

use super::End;
use super::ends::{MOVED, Several, move_one, pop_one};
use crate::options::timeout_ms;
use crate::table::{
    BLOCKING, Command, DENYOOM, Effect, KeySpec, MOVABLEKEYS, RW_ACCESS_DELETE, Run, WRITE, acl,
};
use crate::{Cx, Error};
use resp::Args;

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("blpop", -3, Run::Write(blpop), WRITE | BLOCKING, acl::LIST)
        .portable(200)
        .keys(&[KeySpec::range(1, -2, 1, RW_ACCESS_DELETE)])
        .effect(Effect::Noted)
        .doc(
            "list",
            "2.0.0",
            "O(N) for N keys.",
            "Takes the first element of the first list that is not empty, or waits for one.",
        ),
    Command::new("brpop", -3, Run::Write(brpop), WRITE | BLOCKING, acl::LIST)
        .portable(200)
        .keys(&[KeySpec::range(1, -2, 1, RW_ACCESS_DELETE)])
        .effect(Effect::Noted)
        .doc(
            "list",
            "2.0.0",
            "O(N) for N keys.",
            "Takes the last element of the first list that is not empty, or waits for one.",
        ),
    Command::new("blmove", 6, Run::Write(blmove), WRITE | DENYOOM | BLOCKING, acl::LIST)
        .keys(MOVED)
        .effect(Effect::Noted)
        .doc(
            "list",
            "6.2.0",
            "O(1)",
            "Moves an element from an end of one list to an end of another, or waits for one.",
        ),
    Command::new("brpoplpush", 4, Run::Write(brpoplpush), WRITE | DENYOOM | BLOCKING, acl::LIST)
        .keys(MOVED)
        .effect(Effect::Noted)
        .doc(
            "list",
            "2.2.0",
            "O(1)",
            "Moves the last element of one list to the front of another, or waits for one.",
        ),
    Command::new("blmpop", -5, Run::Write(blmpop), WRITE | BLOCKING | MOVABLEKEYS, acl::LIST)
        .portable(602)
        .keys(&[KeySpec::numkeys(2, RW_ACCESS_DELETE)])
        .reply(crate::replies::popped::<2>)
        .effect(Effect::Noted)
        .doc(
            "list",
            "7.0.0",
            "O(N+M) for N keys and M elements answered.",
            "Takes elements from the first of several lists that is not empty, or waits for one.",
        ),
];

/// `BLPOP key [key ...] timeout`: `[key, element]` from the front of the first list, or a null array on a
/// time-out.
///
/// Cost: O(k + log n), k = keys, n = elements of the list. Errors: bad time-out, WRONGTYPE of a key before
/// the first list.
fn blpop(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    pop_or_wait(cx, args, End::Left)
}

/// `BRPOP key [key ...] timeout`: `[key, element]` from the end of the first list, or a null array on a
/// time-out.
///
/// Cost: O(k + log n), k = keys, n = elements of the list. Errors: bad time-out, WRONGTYPE of a key before
/// the first list.
fn brpop(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    pop_or_wait(cx, args, End::Right)
}

fn pop_or_wait(cx: &mut Cx<'_, '_>, args: Args<'_>, end: End) -> Result<(), Error> {
    let last = args.len() - 1;
    let timeout = timeout_ms(args.at(last), cx.view.now_ms())?;
    for key in args.to(last).from(1).iter() {
        if cx.view.list(key)?.is_some() {
            cx.out.array(2);
            cx.out.bulk(key);
            pop_one(cx, key, end)?;
            cx.effect(&[end.pop_command(), key]);
            return Ok(());
        }
    }
    cx.block(timeout, true);
    Ok(())
}

/// `BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout`: the moved element, or a null array on a
/// time-out.
///
/// Cost: O(log n), n = elements of the longer list. Errors: syntax, bad time-out; WRONGTYPE of the source, or
/// of the destination if the source exists.
fn blmove(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (take, put) = (End::parse(args.at(3))?, End::parse(args.at(4))?);
    let timeout = timeout_ms(args.at(5), cx.view.now_ms())?;
    let (from, to) = (args.at(1), args.at(2));
    if !move_one(cx, from, to, take, put)? {
        wait_for_source(cx, timeout);
        return Ok(());
    }
    cx.effect(&[b"LMOVE", from, to, take.word(), put.word()]);
    Ok(())
}

/// `BRPOPLPUSH source destination timeout`: the moved element, or a null array on a time-out.
///
/// Cost: O(log n), n = elements of the longer list. Errors: bad time-out; WRONGTYPE of the source, or of the
/// destination if the source exists.
fn brpoplpush(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let timeout = timeout_ms(args.at(3), cx.view.now_ms())?;
    let (from, to) = (args.at(1), args.at(2));
    if !move_one(cx, from, to, End::Right, End::Left)? {
        wait_for_source(cx, timeout);
        return Ok(());
    }
    cx.effect(&[b"RPOPLPUSH", from, to]);
    Ok(())
}

/// Waits for the source. A time-out answers a null array; where waiting is not allowed the reply is a null.
fn wait_for_source(cx: &mut Cx<'_, '_>, timeout: Option<u64>) {
    cx.block(timeout, cx.caller.may_block);
}

/// `BLMPOP timeout numkeys key [key ...] LEFT|RIGHT [COUNT count]`: `[key, elements]` from the first list, or
/// a null array on a time-out.
///
/// Cost: O(k + log n) and the reply, k = keys, n = elements of the list. Errors: numbers below 1, syntax, bad
/// time-out, WRONGTYPE of a key before the first list.
fn blmpop(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let several = Several::parse(args.from(2))?;
    let timeout = timeout_ms(args.at(1), cx.view.now_ms())?;
    if !several.pop(cx)? {
        cx.block(timeout, true);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::Block;
    use crate::testing::Db;

    const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

    fn waits(timeout_ms: Option<u64>) -> Option<Block> {
        Some(Block { timeout_ms, null_array: true, words: None })
    }

    #[test]
    fn with_something_there_nobody_waits() {
        Db::both(|mut db| {
            db.check(&[("rpush l a b c d e f", "6"), ("set s x", "OK")]);
            db.events();
            db.check(&[("blpop none l s 0", r#"["l", "a"]"#)]);
            assert_eq!(db.effect_lines(), ["LPOP l"]);
            db.check(&[("brpop l 0", r#"["l", "f"]"#)]);
            assert_eq!(db.effect_lines(), ["RPOP l"]);
            db.check(&[("blmove l m left right 0", r#""b""#)]);
            assert_eq!(db.effect_lines(), ["LMOVE l m LEFT RIGHT"]);
            db.check(&[("brpoplpush l m 0", r#""e""#)]);
            assert_eq!(db.effect_lines(), ["RPOPLPUSH l m"]);
            db.check(&[("blmpop 0 2 none l right count 9", r#"["l", ["d", "c"]]"#)]);
            assert_eq!(db.effect_lines(), ["RPOP l 2"]);
            let mut events = db.events();
            events.sort();
            let expected =
                ["del:l", "lpop:l", "lpop:l", "lpush:m", "new:m", "rpop:l", "rpop:l", "rpop:l", "rpush:m"];
            assert_eq!(events, expected);
        });
    }

    #[test]
    fn without_anything_they_wait() {
        Db::both(|mut db| {
            let commands = [
                ("blpop a b 0.25", Some(250)),
                ("brpop a b 0", None),
                ("blmove a b left left 1", Some(1000)),
                ("brpoplpush a b 1", Some(1000)),
                ("blmpop 2 1 a left", Some(2000)),
            ];
            for (command, timeout_ms) in commands {
                assert_eq!(db.line(command), "nil");
                assert_eq!(db.blocked, waits(timeout_ms), "{command}");
                assert!(db.effects.is_empty());
            }
        });
    }

    #[test]
    fn where_nobody_may_wait_the_answer_is_a_null() {
        let mut db = Db::new();
        db.caller.may_block = false;
        db.check(&[
            ("blpop a 0", "nil array"),
            ("brpop a 0", "nil array"),
            ("blmove a b left left 0", "nil"),
            ("brpoplpush a b 0", "nil"),
            ("blmpop 0 1 a left", "nil array"),
        ]);
    }

    #[test]
    fn the_first_wrong_argument_decides() {
        Db::both(|mut db| {
            db.check(&[
                ("set s x", "OK"),
                ("rpush l a", "1"),
                ("blpop none x", "-ERR timeout is not a float or out of range"),
                ("blpop s -1", "-ERR timeout is negative"),
                ("blpop none 1e300", "-ERR timeout is out of range"),
                ("blpop none 9223372036854775", "-ERR timeout is out of range"),
                ("xread block 9223372036854775807 streams none 0", "-ERR timeout is out of range"),
                ("xread block -1 streams none 0", "-ERR timeout is negative"),
                ("xread block 1.5 streams none 0", "-ERR timeout is not an integer or out of range"),
                ("blpop none s l 0", WRONG),
                ("blmove l s left middle x", "-ERR syntax error"),
                ("blmove l s left left x", "-ERR timeout is not a float or out of range"),
                ("blmove l s left left 0", WRONG),
                ("blmove s l left left 0", WRONG),
                ("brpoplpush none s x", "-ERR timeout is not a float or out of range"),
                ("blmpop x 0 l left", "-ERR numkeys should be greater than 0"),
                ("blmpop x 1 l middle", "-ERR syntax error"),
                ("blmpop -1 1 l left", "-ERR timeout is negative"),
                ("blmpop 0 1 none left count 0", "-ERR count should be greater than 0"),
                ("blmpop 0 1 s left", WRONG),
            ]);
        });
    }
}
