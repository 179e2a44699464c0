//! LRANGE, LINDEX, LSET, LTRIM: elements by position.

use super::{End, STREAM_BYTES, Slice, write, write_some};
use crate::options::{int, range};
use crate::table::{Command, DENYOOM, KeySpec, READONLY, RO_ACCESS, RW_DELETE, RW_UPDATE, Run, WRITE, acl};
use crate::{Cx, Error, STREAM_FROM};
use keyspace::Class;
use resp::Args;
use value::List;

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("lrange", 4, Run::Read(lrange), READONLY, acl::LIST)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .reply(crate::replies::between)
        .doc(
            "list",
            "1.0.0",
            "O(log(L)+N) for N elements of a list of L.",
            "Answers the elements from one position to another.",
        ),
    Command::new("lindex", 3, Run::Read(lindex), READONLY, acl::LIST)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .doc("list", "1.0.0", "O(log(N)) for a list of N elements.", "Answers the element at a position."),
    Command::new("lset", 4, Run::Write(lset), WRITE | DENYOOM, acl::LIST)
        .keys(&[KeySpec::one(1, RW_UPDATE)])
        .doc("list", "1.0.0", "O(log(N)) for a list of N elements.", "Replaces the element at a position."),
    Command::new("ltrim", 4, Run::Write(ltrim), WRITE, acl::LIST).keys(&[KeySpec::one(1, RW_DELETE)]).doc(
        "list",
        "1.0.0",
        "O(log(N)) for a list of N elements.",
        "Keeps the elements from one position to another and drops the others.",
    ),
];

/// `LRANGE key start stop`: the elements of a range, both ends included. A large range streams from an O(1)
/// clone.
///
/// Cost: O(log n) and the reply, n = elements of the list. Errors: not an integer, WRONGTYPE.
fn lrange(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let (start, stop) = (int(args.at(2))?, int(args.at(3))?);
    let Some(list) = cx.view.list(key)? else {
        cx.out.array(0);
        cx.view.count_lookup(key, false);
        return Ok(());
    };
    let mut left = range(start, stop, list.len());
    let (max, end) = (STREAM_FROM, cx.out.len() + STREAM_BYTES);
    cx.out.array(left.len());
    left.start += write_some(cx.out, list, left.clone(), End::Left, max, end);
    let rest = (!left.is_empty()).then(|| Slice { list: list.clone(), left, from: End::Left });
    cx.view.count_lookup(key, true);
    if let Some(rest) = rest {
        cx.stream(rest)?;
    }
    Ok(())
}

/// The position of an element, perhaps counted from the end. None beyond the ends.
#[inline]
fn position(list: &List, index: i64) -> Option<usize> {
    let index = if index < 0 { index + list.len() as i64 } else { index };
    usize::try_from(index).ok().filter(|index| *index < list.len())
}

/// `LINDEX key index`: the element at a position, or null.
///
/// Cost: O(log n), n = elements of the list. Errors: WRONGTYPE, then not an integer.
fn lindex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let list = cx.view.list(key)?;
    let hit = list.is_some();
    match list {
        None => cx.out.null(),
        Some(list) => match position(list, int(args.at(2))?).and_then(|i| list.get(i)) {
            Some(element) => write(cx.out, element),
            None => cx.out.null(),
        },
    }
    cx.view.count_lookup(key, hit);
    Ok(())
}

/// `LSET key index element`: replaces an element and answers OK.
///
/// Cost: O(log n), n = elements of the list. Errors, in this order: WRONGTYPE, no such key, not an integer,
/// index out of range.
fn lset(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let list = cx.view.list(key)?.ok_or(Error::NoSuchKey)?;
    let at = position(list, int(args.at(2))?).ok_or(Error::IndexOutOfRange)?;
    if let Some(list) = cx.view.list_mut(key)? {
        list.set(at, args.at(3));
    }
    cx.view.changed(key, Class::List, "lset");
    cx.out.ok();
    Ok(())
}

/// `LTRIM key start stop`: keeps a range, both ends included, and answers OK.
///
/// Cost: O(log n), n = elements of the list; large parts are freed elsewhere. Errors: not an integer,
/// WRONGTYPE.
fn ltrim(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let (start, stop) = (int(args.at(2))?, int(args.at(3))?);
    cx.out.ok();
    let Some(list) = cx.view.list(key)? else { return Ok(()) };
    let keep = range(start, stop, list.len());
    if keep.len() == list.len() {
        // Redis counts this as a change of the key too.
        cx.view.changed(key, Class::List, "ltrim");
        return Ok(());
    }
    if let Some(list) = cx.view.list_mut(key)? {
        list.remove_range(keep.end..list.len());
        list.remove_range(0..keep.start);
    }
    cx.view.changed(key, Class::List, "ltrim");
    cx.view.remove_if_empty(key);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    const INTEGER: &str = "-ERR value is not an integer or out of range";

    #[test]
    fn ranges_are_cut_to_the_list() {
        Db::both(|mut db| {
            db.check(&[
                ("rpush l a b c d", "4"),
                ("lrange l 0 -1", r#"["a", "b", "c", "d"]"#),
                ("lrange l -100 1", r#"["a", "b"]"#),
                ("lrange l 2 100", r#"["c", "d"]"#),
                ("lrange l -2 -2", r#"["c"]"#),
                ("lrange l 3 1", "[]"),
                ("lrange l 4 9", "[]"),
                ("lrange l -9223372036854775808 9223372036854775807", r#"["a", "b", "c", "d"]"#),
                ("lrange none 0 -1", "[]"),
                ("lrange none a b", INTEGER),
                ("set s x", "OK"),
                ("lrange s 0 b", INTEGER),
                ("lrange s 0 1", WRONG),
            ]);
        });
    }

    #[test]
    fn large_ranges_stream() {
        Db::both(|mut db| {
            let mut words = vec!["rpush".to_string(), "l".into()];
            words.extend((0..3000).map(|i| format!("element {i}")));
            db.call(&words);
            let all: Vec<_> = words[2..].iter().map(|word| format!("{word:?}")).collect();
            for (range, expected) in [("0 -1", &all[..]), ("5 516", &all[5..517]), ("5 517", &all[5..518])] {
                assert_eq!(db.line(&format!("lrange l {range}")), format!("[{}]", expected.join(", ")));
                assert_eq!(db.streamed, expected.len() > 512);
            }
            db.caller.may_stream = false;
            assert_eq!(db.line("lrange l 0 -1"), format!("[{}]", all.join(", ")));
            assert!(!db.streamed);
            db.steps = 10;
            assert_eq!(db.line("lrange l 0 -1"), "-ERR internal: run dropped");
        });
    }

    #[test]
    fn long_elements_stream_however_few() {
        Db::both(|mut db| {
            let long = "x".repeat(50_000);
            db.run(&["rpush", "l", &long, &long, &long, "end"]);
            assert_eq!(db.line("lrange l 1 -1"), format!("[\"{long}\", \"{long}\", \"end\"]"));
            assert!(db.streamed);
            assert_eq!(db.line("lrange l 2 2"), format!("[\"{long}\"]"));
            assert!(!db.streamed);
        });
    }

    #[test]
    fn elements_are_read_and_replaced_by_position() {
        Db::both(|mut db| {
            db.check(&[("rpush l a b c", "3"), ("set s x", "OK")]);
            db.events();
            db.check(&[
                ("lindex l 0", r#""a""#),
                ("lindex l -1", r#""c""#),
                ("lindex l 3", "nil"),
                ("lindex l -4", "nil"),
                ("lindex none x", "nil"),
                ("lindex s x", WRONG),
                ("lindex l x", INTEGER),
                ("lset l 1 B", "OK"),
                ("lset l -1 7", "OK"),
                ("lrange l 0 -1", r#"["a", "B", "7"]"#),
                ("lset l 3 x", "-ERR index out of range"),
                ("lset l -4 x", "-ERR index out of range"),
                ("lset none x x", "-ERR no such key"),
                ("lset s x x", WRONG),
                ("lset l x x", INTEGER),
            ]);
            assert_eq!(db.events(), ["keymiss:none", "lset:l", "lset:l"]);
        });
    }

    #[test]
    fn trimming_keeps_the_range() {
        Db::both(|mut db| {
            db.check(&[("rpush l a b c d e f", "6"), ("set s x", "OK")]);
            db.events();
            db.check(&[
                ("ltrim l 0 -1", "OK"),
                ("ltrim l 1 -2", "OK"),
                ("lrange l 0 -1", r#"["b", "c", "d", "e"]"#),
                ("ltrim l -2 100", "OK"),
                ("lrange l 0 -1", r#"["d", "e"]"#),
                ("ltrim l 5 3", "OK"),
                ("lpushx l x", "0"),
                ("ltrim none 0 1", "OK"),
                ("ltrim none 0 x", INTEGER),
                ("ltrim s 0 x", INTEGER),
                ("ltrim s 0 1", WRONG),
            ]);
            assert_eq!(db.events(), ["ltrim:l", "ltrim:l", "ltrim:l", "ltrim:l", "del:l"]);
        });
    }
}
