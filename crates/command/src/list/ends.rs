//! LPUSH, RPUSH, LPUSHX, RPUSHX, LPOP, RPOP, LLEN, LMOVE, RPOPLPUSH, LMPOP: commands on the ends of lists.
//!
//! A push or a pop looks the key up once. A pop of many elements cuts the list in O(log n) and streams the
//! part cut off. It costs the server no more than a pop of one.

use super::{End, Slice, write, write_some};
use crate::options::{int, is};
use crate::table::{
    Command, DENYOOM, Effect, FAST, KeySpec, MOVABLEKEYS, READONLY, RO, RW_ACCESS_DELETE, RW_INSERT, Run,
    WRITE, acl,
};
use crate::{Cx, Error, STREAM_FROM};
use keyspace::{Class, View};
use resp::Args;
use value::{List, Value};

const PUSH_COMPLEXITY: &str = "O(1) per element, so O(N) for N elements.";
const POP_COMPLEXITY: &str = "O(N) for N elements answered.";
/// The keys of LMOVE and its kin.
pub(super) const MOVED: &[KeySpec] = &[KeySpec::one(1, RW_ACCESS_DELETE), KeySpec::one(2, RW_INSERT)];

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("lpush", -3, Run::Write(lpush), WRITE | DENYOOM | FAST, acl::LIST)
        .portable(204)
        .keys(&[KeySpec::one(1, RW_INSERT)])
        .cost(per_argument)
        .doc(
            "list",
            "1.0.0",
            PUSH_COMPLEXITY,
            "Puts elements in front of a list, making the list if needed.",
        ),
    Command::new("rpush", -3, Run::Write(rpush), WRITE | DENYOOM | FAST, acl::LIST)
        .portable(204)
        .keys(&[KeySpec::one(1, RW_INSERT)])
        .cost(per_argument)
        .doc(
            "list",
            "1.0.0",
            PUSH_COMPLEXITY,
            "Puts elements at the end of a list, making the list if needed.",
        ),
    Command::new("lpushx", -3, Run::Write(lpushx), WRITE | DENYOOM | FAST, acl::LIST)
        .portable(400)
        .keys(&[KeySpec::one(1, RW_INSERT)])
        .cost(per_argument)
        .doc("list", "2.2.0", PUSH_COMPLEXITY, "Puts elements in front of a list that is there already."),
    Command::new("rpushx", -3, Run::Write(rpushx), WRITE | DENYOOM | FAST, acl::LIST)
        .portable(400)
        .keys(&[KeySpec::one(1, RW_INSERT)])
        .cost(per_argument)
        .doc("list", "2.2.0", PUSH_COMPLEXITY, "Puts elements at the end of a list that is there already."),
    Command::new("lpop", -2, Run::Write(lpop), WRITE | FAST, acl::LIST)
        .portable(602)
        .keys(&[KeySpec::one(1, RW_ACCESS_DELETE)])
        .reply(crate::replies::counted)
        .doc(
            "list",
            "1.0.0",
            POP_COMPLEXITY,
            "Takes elements from the front of a list; an empty list disappears.",
        ),
    Command::new("rpop", -2, Run::Write(rpop), WRITE | FAST, acl::LIST)
        .portable(602)
        .keys(&[KeySpec::one(1, RW_ACCESS_DELETE)])
        .reply(crate::replies::counted)
        .doc(
            "list",
            "1.0.0",
            POP_COMPLEXITY,
            "Takes elements from the end of a list; an empty list disappears.",
        ),
    Command::new("llen", 2, Run::Read(llen), READONLY | FAST, acl::LIST).keys(&[KeySpec::one(1, RO)]).doc(
        "list",
        "1.0.0",
        "O(1)",
        "Counts the elements of a list.",
    ),
    Command::new("lmove", 5, Run::Write(lmove), WRITE | DENYOOM, acl::LIST).keys(MOVED).doc(
        "list",
        "6.2.0",
        "O(1)",
        "Takes an element from an end of one list, puts it at an end of another, and answers it.",
    ),
    Command::new("rpoplpush", 3, Run::Write(rpoplpush), WRITE | DENYOOM, acl::LIST).keys(MOVED).doc(
        "list",
        "1.2.0",
        "O(1)",
        "Takes the last element of one list, puts it in front of another, and answers it.",
    ),
    Command::new("lmpop", -4, Run::Write(lmpop), WRITE | MOVABLEKEYS, acl::LIST)
        .portable(602)
        .keys(&[KeySpec::numkeys(1, RW_ACCESS_DELETE)])
        .reply(crate::replies::popped::<1>)
        .effect(Effect::Noted)
        .doc(
            "list",
            "7.0.0",
            "O(N+M) for N keys and M elements answered.",
            "Takes elements from the first of several lists that is not empty.",
        ),
];

/// About two steps per argument.
fn per_argument(_: &View<'_>, args: Args<'_>) -> usize {
    args.len() * 2
}

// ----- pushing ---------------------------------------------------------------------------------------------

/// `LPUSH key element [element ...]`: puts elements in front and answers the new length.
///
/// Cost: O(elements). Errors: WRONGTYPE.
fn lpush(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    push(cx, args, End::Left, true)
}

/// `RPUSH key element [element ...]`: appends elements and answers the new length.
///
/// Cost: O(elements). Errors: WRONGTYPE.
fn rpush(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    push(cx, args, End::Right, true)
}

/// `LPUSHX key element [element ...]`: as LPUSH if the list exists, else 0.
///
/// Cost: O(elements). Errors: WRONGTYPE.
fn lpushx(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    push(cx, args, End::Left, false)
}

/// `RPUSHX key element [element ...]`: as RPUSH if the list exists, else 0.
///
/// Cost: O(elements). Errors: WRONGTYPE.
fn rpushx(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    push(cx, args, End::Right, false)
}

#[inline]
fn push(cx: &mut Cx<'_, '_>, args: Args<'_>, end: End, create: bool) -> Result<(), Error> {
    let (key, elements) = (args.at(1), args.from(2));
    let len = match cx.view.list_mut(key)? {
        Some(list) => {
            end.push_each(list, elements.iter());
            list.len()
        }
        None if !create => {
            cx.out.int(0);
            return Ok(());
        }
        None => {
            let mut list = List::new();
            end.push_each(&mut list, elements.iter());
            cx.view.put(key, Value::List(list), None);
            elements.len()
        }
    };
    cx.view.changed(key, Class::List, end.pushed());
    cx.out.int(len as i64);
    Ok(())
}

// ----- popping ---------------------------------------------------------------------------------------------

/// `LPOP key [count]`: the first element or null; with a count an array, or a null array.
///
/// Cost: O(log n) and the reply, n = elements of the list. Errors: WRONGTYPE, count negative.
fn lpop(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    pop(cx, args, End::Left)
}

/// `RPOP key [count]`: the last element or null; with a count an array, or a null array.
///
/// Cost: O(log n) and the reply, n = elements of the list. Errors: WRONGTYPE, count negative.
fn rpop(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    pop(cx, args, End::Right)
}

#[inline]
fn pop(cx: &mut Cx<'_, '_>, args: Args<'_>, end: End) -> Result<(), Error> {
    let key = args.at(1);
    let Some(count) = args.get(2) else {
        if !pop_one(cx, key, end)? {
            cx.out.null();
        }
        return Ok(());
    };
    if args.len() > 3 {
        let name = if end == End::Left { "lpop" } else { "rpop" };
        return Err(Error::Arity(name.to_owned()));
    }
    let count = match int(count) {
        Ok(n) if n >= 0 => n as usize,
        _ => return Err(Error::new("ERR value is out of range, must be positive")),
    };
    match cx.view.list(key)? {
        None => cx.out.null_array(),
        Some(_) if count == 0 => cx.out.array(0),
        Some(list) => {
            let count = count.min(list.len());
            pop_some(cx, key, end, count)?;
        }
    }
    Ok(())
}

/// Pops an element and writes it. False, and nothing written, if there is no such list. Cost: O(log n).
#[inline]
pub(super) fn pop_one(cx: &mut Cx<'_, '_>, key: &[u8], end: End) -> Result<bool, Error> {
    let Some(list) = cx.view.list_mut(key)? else { return Ok(false) };
    let range = end.range(list.len(), 1);
    if let Some(element) = list.get(range.start) {
        write(cx.out, element);
    }
    list.remove_range(range);
    let emptied = list.is_empty();
    popped(cx, key, end, emptied);
    Ok(true)
}

/// Pops `count` elements and writes them as an array. The list exists and has at least `count`, which is not
/// 0. Cost: O(log n) and the reply, which is streamed if it is large.
pub(super) fn pop_some(cx: &mut Cx<'_, '_>, key: &[u8], end: End, count: usize) -> Result<(), Error> {
    let streams = count > STREAM_FROM;
    if streams && !cx.caller.may_stream {
        // The charge comes before the first change.
        cx.charge(count / 2)?;
    }
    let Some(list) = cx.view.list_mut(key)? else { return Ok(()) };
    cx.out.array(count);
    let range = end.range(list.len(), count);
    let mut cut = None;
    if streams {
        cut = Some(match end {
            End::Left => {
                let rest = list.split_off(range.end);
                std::mem::replace(list, rest)
            }
            End::Right => list.split_off(range.start),
        });
    } else {
        write_some(cx.out, list, range.clone(), end, count, usize::MAX);
        list.remove_range(range);
    }
    let emptied = list.is_empty();
    popped(cx, key, end, emptied);
    if let Some(list) = cut {
        cx.stream(Slice { left: 0..list.len(), list, from: end })?;
    }
    Ok(())
}

/// Reports a pop. An empty list is removed.
#[inline]
fn popped(cx: &mut Cx<'_, '_>, key: &[u8], end: End, emptied: bool) {
    cx.view.changed(key, Class::List, end.popped());
    if emptied {
        cx.view.remove_if_empty(key);
    }
}

/// `LLEN key`: the number of elements; 0 for a missing key.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn llen(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let list = cx.view.list(args.at(1))?;
    let hit = list.is_some();
    cx.out.int(list.map_or(0, List::len) as i64);
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

// ----- moving ----------------------------------------------------------------------------------------------

/// `LMOVE source destination LEFT|RIGHT LEFT|RIGHT`: moves an element and answers it, or null without a
/// source.
///
/// Cost: O(log n), n = elements of the longer list. Errors: syntax; WRONGTYPE of the source, or of the
/// destination if the source exists.
fn lmove(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (take, put) = (End::parse(args.at(3))?, End::parse(args.at(4))?);
    if !move_one(cx, args.at(1), args.at(2), take, put)? {
        cx.out.null();
    }
    Ok(())
}

/// `RPOPLPUSH source destination`: moves the last element to the front and answers it, or null without a
/// source.
///
/// Cost: O(log n), n = elements of the longer list. Errors: WRONGTYPE of the source, or of the destination if
/// the source exists.
fn rpoplpush(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if !move_one(cx, args.at(1), args.at(2), End::Right, End::Left)? {
        cx.out.null();
    }
    Ok(())
}

/// Moves an element from an end of one list to an end of another, or of the same, and writes it. False, and
/// nothing written, without a source. Cost: O(log n).
pub(super) fn move_one(
    cx: &mut Cx<'_, '_>,
    from: &[u8],
    to: &[u8],
    take: End,
    put: End,
) -> Result<bool, Error> {
    if cx.view.list(from)?.is_none() {
        return Ok(false);
    }
    cx.view.list(to)?;
    let Some(source) = cx.view.list_mut(from)? else { return Ok(false) };
    let element = match take {
        End::Left => source.pop_front(),
        End::Right => source.pop_back(),
    };
    let Some(element) = element else { return Ok(false) };
    cx.out.bulk(&element);
    if from == to {
        put.push(source, &element);
        cx.view.changed(to, Class::List, put.pushed());
        cx.view.notify(from, Class::List, take.popped());
        return Ok(true);
    }
    let emptied = source.is_empty();
    match cx.view.list_mut(to)? {
        Some(list) => put.push(list, &element),
        None => {
            let list = List::from_iter([&element]);
            cx.view.put(to, Value::List(list), None);
        }
    }
    cx.view.changed(to, Class::List, put.pushed());
    popped(cx, from, take, emptied);
    Ok(true)
}

// ----- popping from one of several -------------------------------------------------------------------------

/// The arguments `numkeys key [key ...] LEFT|RIGHT [COUNT count]`.
pub(super) struct Several<'a> {
    keys: Args<'a>,
    end: End,
    count: usize,
}

impl<'a> Several<'a> {
    /// Reads the arguments from the number of keys on. Errors: numbers below 1, syntax.
    pub(super) fn parse(args: Args<'a>) -> Result<Several<'a>, Error> {
        let positive = |arg, text| match int(arg) {
            Ok(n) if n > 0 => Ok(n as usize),
            _ => Err(Error::new(text)),
        };
        let keys = positive(args.at(0), "ERR numkeys should be greater than 0")?;
        let end = End::parse(args.get(keys.saturating_add(1)).ok_or(Error::Syntax)?)?;
        let rest = args.from(keys + 2);
        let count = match (rest.len(), rest.first()) {
            (0, _) => 1,
            (2, Some(word)) if is(word, "count") => {
                positive(rest.at(1), "ERR count should be greater than 0")?
            }
            // The first COUNT is read before the words behind it.
            (3.., Some(word)) if is(word, "count") => {
                positive(rest.at(1), "ERR count should be greater than 0")?;
                return Err(Error::Syntax);
            }
            _ => return Err(Error::Syntax),
        };
        Ok(Several { keys: args.to(keys + 1).from(1), end, count })
    }

    /// Pops from the first list that exists. False, and nothing written, if there is none.
    pub(super) fn pop(&self, cx: &mut Cx<'_, '_>) -> Result<bool, Error> {
        for key in self.keys.iter() {
            let Some(len) = cx.view.list(key)?.map(List::len) else { continue };
            let (mark, count) = (cx.out.mark(), self.count.min(len));
            cx.out.array(2);
            cx.out.bulk(key);
            if let Err(error) = pop_some(cx, key, self.end, count) {
                cx.out.rewind(mark);
                return Err(error);
            }
            cx.effect(&[self.end.pop_command(), key, count.to_string().as_bytes()]);
            return Ok(true);
        }
        Ok(false)
    }
}

/// `LMPOP numkeys key [key ...] LEFT|RIGHT [COUNT count]`: `[key, elements]` from the first list, or a null
/// array.
///
/// Cost: O(k + log n) and the reply, k = keys, n = elements of the list. Errors: syntax, numbers below 1,
/// WRONGTYPE of a key before the first list.
fn lmpop(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if !Several::parse(args.from(1))?.pop(cx)? {
        cx.out.null_array();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

    #[test]
    fn pushing_puts_one_after_the_other_at_its_end() {
        Db::both(|mut db| {
            db.check(&[
                ("lpush l a b c", "3"),
                ("rpush l d e", "5"),
                ("lrange l 0 -1", r#"["c", "b", "a", "d", "e"]"#),
                ("lpushx l 1 2", "7"),
                ("rpushx l 3", "8"),
                ("lrange l 0 1", r#"["2", "1"]"#),
                ("lindex l -1", r#""3""#),
                ("lpushx none a", "0"),
                ("rpushx none a", "0"),
                ("llen none", "0"),
                ("llen l", "8"),
            ]);
            assert_eq!(db.events()[..4], ["new:l", "lpush:l", "rpush:l", "lpush:l"]);
            db.check(&[
                ("set s x", "OK"),
                ("lpush s a", WRONG),
                ("rpushx s a", WRONG),
                ("llen s", WRONG),
                ("lpush l", "-ERR wrong number of arguments for 'lpush' command"),
            ]);
        });
    }

    #[test]
    fn popping_takes_elements_and_the_last_takes_the_key() {
        Db::both(|mut db| {
            db.check(&[("rpush l a b c d e", "5")]);
            db.events();
            db.check(&[
                ("lpop l", r#""a""#),
                ("rpop l 2", r#"["e", "d"]"#),
                ("lpop l 0", "[]"),
                ("lpop l 9", r#"["b", "c"]"#),
                ("lpushx l x", "0"),
                ("rpush l a", "1"),
                ("rpop l", r#""a""#),
                ("lpushx l x", "0"),
            ]);
            let events = ["lpop:l", "rpop:l", "lpop:l", "del:l", "new:l", "rpush:l", "rpop:l", "del:l"];
            assert_eq!(db.events(), events);
        });
    }

    #[test]
    fn popping_nothing_answers_as_redis_does() {
        let positive = "-ERR value is out of range, must be positive";
        Db::both(|mut db| {
            db.check(&[
                ("set s x", "OK"),
                ("lpop none", "nil"),
                ("lpop none 2", "nil array"),
                ("rpop none 0", "nil array"),
                ("lpop none -1", positive),
                ("lpop s x", positive),
                ("lpop s -1", positive),
                ("lpop s 0", WRONG),
                ("rpop s", WRONG),
                ("lpop s 1 2", "-ERR wrong number of arguments for 'lpop' command"),
                ("rpop s 1 2", "-ERR wrong number of arguments for 'rpop' command"),
            ]);
        });
        let mut db = Db::new().resp3();
        db.check(&[("lpop none", "nil"), ("lpop none 2", "nil")]);
    }

    fn filled(mut db: Db, len: usize) -> Db {
        let mut words = vec!["rpush".to_string(), "l".into()];
        words.extend((0..len).map(|i| i.to_string()));
        db.call(&words);
        db
    }

    fn numbers(numbers: impl Iterator<Item = usize>) -> String {
        format!("[{}]", numbers.map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn popping_many_streams_what_was_cut_off() {
        Db::both(|db| {
            let mut db = filled(db, 5000);
            assert_eq!(db.line("lpop l 2000"), numbers(0..2000));
            assert!(db.streamed);
            assert_eq!(db.line("rpop l 1000"), numbers((4000..5000).rev()));
            assert!(db.streamed);
            assert_eq!(db.line("llen l"), "2000");
            assert_eq!(
                db.line("lmpop 1 l right count 9999"),
                format!("[\"l\", {}]", numbers((2000..4000).rev()))
            );
            assert_eq!(db.effect_lines(), ["RPOP l 2000"]);
            assert_eq!(db.line("exists l"), "0");
            let mut db = filled(Db::new(), 5000);
            db.caller.may_stream = false;
            assert_eq!(db.line("lpop l 2000"), numbers(0..2000));
            db.steps = 100;
            assert_eq!(db.line("lpop l 2000"), "-ERR internal: run dropped");
            assert_eq!(db.line("llen l"), "3000");
        });
    }

    #[test]
    fn moving_takes_here_and_puts_there() {
        Db::both(|mut db| {
            db.check(&[
                ("rpush l a b c", "3"),
                ("lmove l m left right", r#""a""#),
                ("lmove l m RIGHT LEFT", r#""c""#),
                ("lrange m 0 -1", r#"["c", "a"]"#),
                ("rpoplpush l m", r#""b""#),
                ("lpushx l x", "0"),
                ("lmove m m left right", r#""b""#),
                ("lrange m 0 -1", r#"["c", "a", "b"]"#),
            ]);
            let mut events = db.events();
            events.sort();
            let expected = [
                "del:l", "lpop:l", "lpop:m", "lpush:m", "lpush:m", "new:l", "new:m", "rpop:l", "rpop:l",
                "rpush:l", "rpush:m", "rpush:m",
            ];
            assert_eq!(events, expected);
            db.check(&[
                ("set s x", "OK"),
                ("lmove none s left right", "nil"),
                ("rpoplpush none s", "nil"),
                ("lmove m s left right", WRONG),
                ("lmove s m left right", WRONG),
                ("lmove m s left middle", "-ERR syntax error"),
                ("rpush one x", "1"),
                ("rpoplpush one one", r#""x""#),
                ("llen one", "1"),
            ]);
        });
    }

    #[test]
    fn a_move_tells_of_the_push_before_the_pop() {
        let mut db = Db::new();
        db.check(&[("rpush l a", "1"), ("lmove l m left right", r#""a""#), ("rpoplpush m m", r#""a""#)]);
        let events = ["new:l", "rpush:l", "new:m", "rpush:m", "lpop:l", "del:l", "lpush:m", "rpop:m"];
        assert_eq!(db.events(), events);
    }

    #[test]
    fn popping_from_several_takes_from_the_first_there_is() {
        Db::both(|mut db| {
            db.check(&[
                ("rpush l a b c", "3"),
                ("set s x", "OK"),
                ("lmpop 2 none l left", r#"["l", ["a"]]"#),
                ("lmpop 2 l s right count 5", r#"["l", ["c", "b"]]"#),
                ("lmpop 1 none left", "nil array"),
                ("lmpop 2 none s left", WRONG),
                ("lmpop 0 l left", "-ERR numkeys should be greater than 0"),
                ("lmpop x l left", "-ERR numkeys should be greater than 0"),
                ("lmpop 2 l left", "-ERR syntax error"),
                ("lmpop 9223372036854775807 l left", "-ERR syntax error"),
                ("lmpop 1 l middle", "-ERR syntax error"),
                ("lmpop 1 l left count", "-ERR syntax error"),
                ("lmpop 1 l left count 0", "-ERR count should be greater than 0"),
                ("lmpop 1 l left count 0 count 1", "-ERR count should be greater than 0"),
                ("lmpop 1 l left count 1 count 2", "-ERR syntax error"),
                ("lmpop 1 l left foo", "-ERR syntax error"),
            ]);
        });
    }
}
