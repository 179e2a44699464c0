//! Strings as numbers: INCR, DECR, INCRBY, DECRBY, INCRBYFLOAT.
//!
//! The number is read in place and written from a buffer on the stack. A key keeps its expiry.

use crate::table::{Command, DENYOOM, FAST, KeySpec, RW_ACCESS_UPDATE, Run, WRITE, acl};
use crate::{Cx, Effect, Error, options};
use keyspace::Class;
use resp::Args;
use stdx::long_double::{LongDouble, TEXT_MAX};

const KEY: &[KeySpec] = &[KeySpec::one(1, RW_ACCESS_UPDATE)];
const FLAGS: u32 = WRITE | DENYOOM | FAST;

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("incr", 2, Run::Write(incr), FLAGS, acl::STRING).keys(KEY).doc(
        "string",
        "1.0.0",
        "O(1)",
        "Adds one to the integer a key holds; a missing key counts as 0.",
    ),
    Command::new("decr", 2, Run::Write(decr), FLAGS, acl::STRING).keys(KEY).doc(
        "string",
        "1.0.0",
        "O(1)",
        "Takes one from the integer a key holds; a missing key counts as 0.",
    ),
    Command::new("incrby", 3, Run::Write(incrby), FLAGS, acl::STRING).keys(KEY).doc(
        "string",
        "1.0.0",
        "O(1)",
        "Adds to the integer a key holds; a missing key counts as 0.",
    ),
    Command::new("decrby", 3, Run::Write(decrby), FLAGS, acl::STRING).keys(KEY).doc(
        "string",
        "1.0.0",
        "O(1)",
        "Takes from the integer a key holds; a missing key counts as 0.",
    ),
    Command::new("incrbyfloat", 3, Run::Write(incrbyfloat), FLAGS, acl::STRING)
        .portable(600)
        .keys(KEY)
        .effect(Effect::Noted)
        .doc("string", "2.6.0", "O(1)", "Adds to the decimal number a key holds; a missing key counts as 0."),
];

/// `INCR key`: adds one and answers the new number. A missing key counts as 0.
///
/// Cost: O(1). Errors: WRONGTYPE, not an integer, overflow.
fn incr(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    add(cx, args.at(1), 1)
}

/// `DECR key`: subtracts one and answers the new number. A missing key counts as 0.
///
/// Cost: O(1). Errors: WRONGTYPE, not an integer, overflow.
fn decr(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    add(cx, args.at(1), -1)
}

/// `INCRBY key increment`: answers the new number. A missing key counts as 0.
///
/// Cost: O(1). Errors: increment or value not an integer, WRONGTYPE, overflow.
fn incrby(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    add(cx, args.at(1), options::int(args.at(2))?)
}

/// `DECRBY key decrement`: answers the new number. A missing key counts as 0.
///
/// Cost: O(1). Errors: decrement or value not an integer, WRONGTYPE, overflow.
fn decrby(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let by = options::int(args.at(2))?.checked_neg().ok_or(Error::new("ERR decrement would overflow"))?;
    add(cx, args.at(1), by)
}

#[inline]
fn add(cx: &mut Cx<'_, '_>, key: &[u8], by: i64) -> Result<(), Error> {
    let new = cx.view.change_int(key, |old| {
        let old = old.map_or(Some(0), |text| text.as_i64()).ok_or(Error::NotInteger)?;
        old.checked_add(by).ok_or(Error::new("ERR increment or decrement would overflow"))
    })?;
    cx.view.changed(key, Class::String, "incrby");
    cx.out.int(new);
    Ok(())
}

/// `INCRBYFLOAT key increment`: answers the new number, in the precision of the 80-bit floats clients know
/// (see `stdx::long_double`). A missing key counts as 0.
///
/// Cost: O(1). Errors: WRONGTYPE, increment or value not a float, a result that is NaN or infinite.
fn incrbyfloat(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let (old, expire) = match cx.view.string_and_expire(key)? {
        Some((s, _)) if s.len() > TEXT_MAX => return Err(Error::NotFloat),
        Some((s, expire)) => (LongDouble::parse(&s.contiguous()), expire),
        None => (LongDouble::parse(b"0"), None),
    };
    let old = old.ok_or(Error::NotFloat)?;
    let by = LongDouble::parse(args.at(2)).ok_or(Error::NotFloat)?;
    let new = old + by;
    if !new.is_finite() {
        return Err(Error::new("ERR increment would produce NaN or Infinity"));
    }
    let mut text = Vec::new();
    new.format(&mut text);
    cx.view.put_string(key, &text, expire);
    cx.view.changed(key, Class::String, "incrbyfloat");
    cx.effect(&[b"SET", key, &text, b"KEEPTTL"]);
    cx.out.bulk(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    #[test]
    fn integers_count_within_64_bits_and_keep_their_expiry() {
        Db::both(|mut db| {
            let int = "-ERR value is not an integer or out of range";
            let overflow = "-ERR increment or decrement would overflow";
            db.check(&[
                ("incr i", "1"),
                ("incrby i 10", "11"),
                ("decrby i -3", "14"),
                ("decr i", "13"),
                ("incrby i x", int),
                ("incrby i 9223372036854775807", overflow),
                ("decrby i -9223372036854775808", "-ERR decrement would overflow"),
                ("decrby i 9223372036854775807", "-9223372036854775794"),
                ("set i 9223372036854775807", "OK"),
                ("incr i", overflow),
                ("set i -9223372036854775808", "OK"),
                ("decr i", overflow),
                ("incr i", "-9223372036854775807"),
                ("sadd s x", "1"),
                ("incr s", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
                ("incrby s x", int),
            ]);
            for text in ["abc", "\" 1\"", "\"1 \"", "01", "+1", "-0", "1.0", "\"\"", "123456789012345678901"]
            {
                db.line(&format!("set t {text}"));
                assert_eq!(db.line("incr t"), int, "{text}");
            }
            db.check(&[("set e 5 PX 10", "OK"), ("incr e", "6")]);
            db.now_ms += 10;
            assert_eq!(db.line("incr e"), "1");
        });
    }

    #[test]
    fn decimals_are_added_as_clients_expect() {
        Db::both(|mut db| {
            let float = "-ERR value is not a valid float";
            let infinite = "-ERR increment would produce NaN or Infinity";
            db.check(&[
                ("set f 10.50 PX 10", "OK"),
                ("incrbyfloat f 0.1", "\"10.6\""),
                ("incrbyfloat f -5", "\"5.6\""),
                ("get f", "\"5.6\""),
            ]);
            assert_eq!(db.line("incrbyfloat f 5.0e3"), "\"5005.60000000000000009\"");
            assert_eq!(db.effect_lines(), ["SET f 5005.60000000000000009 KEEPTTL"]);
            db.now_ms += 10;
            db.check(&[
                ("incrbyfloat f 3", "\"3\""),
                ("incr f", "4"),
                ("incrbyfloat f x", float),
                ("incrbyfloat f nan", float),
                ("incrbyfloat f inf", infinite),
                ("set f x", "OK"),
                ("incrbyfloat f 1", float),
                ("set f inf", "OK"),
                ("incrbyfloat f 1", infinite),
                ("sadd s x", "1"),
                ("incrbyfloat s x", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ]);
            db.events();
            db.check(&[
                ("incr n", "1"),
                ("decrby n 1", "0"),
                ("incrbyfloat n 1", "\"1\""),
                ("incr s x", ARITY),
            ]);
            assert_eq!(db.events(), ["new:n", "incrby:n", "incrby:n", "incrbyfloat:n"]);
        });
    }

    const ARITY: &str = "-ERR wrong number of arguments for 'incr' command";
}
