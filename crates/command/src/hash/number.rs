//! Values of fields as numbers. A field keeps its expiry.

use super::expiry::note_times;
use super::purge;
use crate::table::*;
use crate::{Cx, Error, options};
use keyspace::Class;
use resp::Args;
use stdx::long_double::{LongDouble, TEXT_MAX};

const KEY: &[KeySpec] = &[KeySpec::one(1, RW_ACCESS_UPDATE)];

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("hincrby", 4, Run::Write(hincrby), WRITE | DENYOOM | FAST, acl::HASH).keys(KEY).doc(
        "hash",
        "2.0.0",
        "O(1)",
        "Adds to the integer in a field; a missing field counts as 0.",
    ),
    Command::new("hincrbyfloat", 4, Run::Write(hincrbyfloat), WRITE | DENYOOM | FAST, acl::HASH)
        .portable(200)
        .keys(KEY)
        .effect(Effect::Noted)
        .doc("hash", "2.6.0", "O(1)", "Adds to the decimal number in a field; a missing field counts as 0."),
];

fn store(cx: &mut Cx<'_, '_>, args: Args<'_>, text: &[u8], effect: Effect) -> Result<(), Error> {
    purge(cx, args, args.to(3).from(2), 1, effect)?;
    cx.view.hash_or_new(args.at(1))?.insert_keep_ttl(args.at(2), text);
    Ok(())
}

/// `HINCRBY key field increment`: adds and answers the new number. A missing field counts as 0.
///
/// Cost: O(1). Errors: increment or value not an integer, WRONGTYPE, overflow.
fn hincrby(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, now) = (args.at(1), cx.view.due_ms());
    let by = options::int(args.at(3))?;
    let old = match cx.view.hash(key)?.and_then(|hash| hash.get_at(args.at(2), now)) {
        Some(text) => stdx::num::parse_i64(text).ok_or(Error::new("ERR hash value is not an integer"))?,
        None => 0,
    };
    let new = old.checked_add(by).ok_or(Error::new("ERR increment or decrement would overflow"))?;
    let at = cx.view.hash(key)?.and_then(|hash| hash.expire_at(args.at(2)).flatten()).filter(|at| *at > now);
    let (mut digits, effect) =
        (itoa::Buffer::new(), if at.is_some() { Effect::Noted } else { Effect::Itself });
    let text = digits.format(new).as_bytes();
    store(cx, args, text, effect)?;
    cx.view.changed(key, Class::Hash, "hincrby");
    if at.is_some() {
        note(cx, key, args.at(2), text, at);
    }
    cx.out.int(new);
    Ok(())
}

/// `HINCRBYFLOAT key field increment`: adds in the precision of INCRBYFLOAT and answers the new number. A
/// missing field counts as 0.
///
/// Cost: O(1). Errors: increment or value not a float, WRONGTYPE, a result that is NaN or infinite.
fn hincrbyfloat(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, field, now) = (args.at(1), args.at(2), cx.view.due_ms());
    let by = LongDouble::parse(args.at(3)).ok_or(Error::NotFloat)?;
    if !by.is_finite() {
        return Err(Error::new("ERR value is NaN or Infinity"));
    }
    let old = match cx.view.hash(key)?.and_then(|hash| hash.get_at(field, now)) {
        Some(text) if text.len() > TEXT_MAX => None,
        Some(text) => LongDouble::parse(text),
        None => LongDouble::parse(b"0"),
    };
    let new = old.ok_or(Error::new("ERR hash value is not a float"))? + by;
    if !new.is_finite() {
        return Err(Error::new("ERR increment would produce NaN or Infinity"));
    }
    let mut text = Vec::new();
    new.format(&mut text);
    store(cx, args, &text, Effect::Noted)?;
    cx.view.changed(key, Class::Hash, "hincrbyfloat");
    let at = cx.view.hash(key)?.and_then(|hash| hash.expire_at(field)).flatten();
    note(cx, key, field, &text, at);
    cx.out.bulk(&text);
    Ok(())
}

/// Notes a new number, in words that old servers know. The field's time comes anew: when a log is read it may
/// have come, and Redis 8 adds to nothing then.
fn note(cx: &mut Cx<'_, '_>, key: &[u8], field: &[u8], text: &[u8], at: Option<u64>) {
    cx.effect(&[b"HSET", key, field, text]);
    if let Some(at) = at {
        note_times(cx, key, at, std::iter::once(field));
    }
}
