//! Fields by name: HSET HMSET HSETNX, HGET HMGET, HLEN HSTRLEN HEXISTS, HDEL HGETDEL.

use super::{is_due, live_len, per_argument, purge};
use crate::table::*;
use crate::{Cx, Error};
use keyspace::Class;
use resp::Args;
use value::Hash;

const NEW: u32 = WRITE | DENYOOM | FAST;

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("hset", -4, Run::Write(hset), NEW, acl::HASH)
        .portable(400)
        .keys(&[KeySpec::one(1, RW_UPDATE)])
        .cost(per_argument)
        .doc(
            "hash",
            "2.0.0",
            "O(1) per field, so O(N) for N fields.",
            "Gives fields of a hash values, making fields and hash if needed.",
        ),
    Command::new("hmset", -4, Run::Write(hmset), NEW, acl::HASH)
        .keys(&[KeySpec::one(1, RW_UPDATE)])
        .cost(per_argument)
        .doc("hash", "2.0.0", "O(N) for N fields.", "The older form of HSET, which answers OK."),
    Command::new("hsetnx", 4, Run::Write(hsetnx), NEW, acl::HASH).keys(&[KeySpec::one(1, RW_INSERT)]).doc(
        "hash",
        "2.0.0",
        "O(1)",
        "Gives a field a value unless the hash has that field.",
    ),
    Command::new("hget", 3, Run::Read(hget), READONLY | FAST, acl::HASH)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .doc("hash", "2.0.0", "O(1)", "Answers the value of a field."),
    Command::new("hmget", -3, Run::Read(hmget), READONLY | FAST, acl::HASH)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .cost(per_argument)
        .doc("hash", "2.0.0", "O(N) for N fields asked.", "Answers the values of several fields."),
    Command::new("hlen", 2, Run::Read(hlen), READONLY | FAST, acl::HASH).keys(&[KeySpec::one(1, RO)]).doc(
        "hash",
        "2.0.0",
        "O(1)",
        "Counts the fields of a hash.",
    ),
    Command::new("hstrlen", 3, Run::Read(hstrlen), READONLY | FAST, acl::HASH)
        .keys(&[KeySpec::one(1, RO)])
        .doc("hash", "3.2.0", "O(1)", "Tells how many bytes a field's value has."),
    Command::new("hexists", 3, Run::Read(hexists), READONLY | FAST, acl::HASH)
        .keys(&[KeySpec::one(1, RO)])
        .doc("hash", "2.0.0", "O(1)", "Tells whether a hash has a field."),
    Command::new("hdel", -3, Run::Write(hdel), WRITE | FAST, acl::HASH)
        .portable(204)
        .keys(&[KeySpec::one(1, RW_DELETE)])
        .cost(per_argument)
        .doc(
            "hash",
            "2.0.0",
            "O(N) for N fields named.",
            "Takes fields out of a hash; an empty hash disappears.",
        ),
    Command::new("hgetdel", -5, Run::Write(hgetdel), WRITE | FAST, acl::HASH)
        .portable(200)
        .keys(&[KeySpec::one(1, RW_ACCESS_DELETE)])
        .cost(per_argument)
        .effect(Effect::Noted)
        .doc("hash", "8.0.0", "O(N) for N fields named.", "Answers the values of fields and takes them out."),
];

/// Sets every pair and gives the number of new fields.
#[inline]
fn insert(hash: &mut Hash, pairs: Args<'_>) -> usize {
    (0..pairs.len()).step_by(2).filter(|&i| hash.insert(pairs.at(i), pairs.at(i + 1))).count()
}

/// Sets the pairs of `HSET` and `HMSET` and gives the number of new fields. Errors: arity, WRONGTYPE.
#[inline]
fn set_pairs(cx: &mut Cx<'_, '_>, args: Args<'_>, name: &str) -> Result<usize, Error> {
    let (key, pairs, now) = (args.at(1), args.from(2), cx.view.due_ms());
    if !pairs.len().is_multiple_of(2) {
        return Err(Error::Arity(name.to_owned()));
    }
    let added = match cx.view.hash_mut(key)? {
        Some(hash) if !is_due(hash, now) => insert(hash, pairs),
        Some(_) => {
            purge(cx, args, pairs, 2, Effect::Itself)?;
            insert(cx.view.hash_or_new(key)?, pairs)
        }
        None => insert(cx.view.hash_or_new(key)?, pairs),
    };
    cx.view.changed(key, Class::Hash, "hset");
    Ok(added)
}

/// `HSET key field value [field value ...]`: the number of new fields. The fields lose their expiry.
///
/// Cost: O(fields). Errors: arity, for a field without a value; WRONGTYPE.
fn hset(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let added = set_pairs(cx, args, "hset")?;
    cx.out.int(added as i64);
    Ok(())
}

/// `HMSET key field value [field value ...]`: OK. The fields lose their expiry.
///
/// Cost: O(fields). Errors: arity, for a field without a value; WRONGTYPE.
fn hmset(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    set_pairs(cx, args, "hmset")?;
    cx.out.ok();
    Ok(())
}

/// `HSETNX key field value`: 1 if it was set, 0 if the field exists.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn hsetnx(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, field, now) = (args.at(1), args.at(2), cx.view.due_ms());
    let there = cx.view.hash(key)?.is_some_and(|hash| hash.get_at(field, now).is_some());
    if !there {
        purge(cx, args, args.to(3).from(2), 1, Effect::Itself)?;
        cx.view.hash_or_new(key)?.insert(field, args.at(3));
        cx.view.changed(key, Class::Hash, "hset");
    }
    cx.out.int((!there).into());
    Ok(())
}

/// `HGET key field`: the value, or null.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn hget(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let now = cx.view.due_ms();
    let hash = cx.view.hash(args.at(1))?;
    let hit = hash.is_some();
    cx.out.bulk_or_null(hash.and_then(|hash| hash.get_at(args.at(2), now)));
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `HMGET key field [field ...]`: the values, or null for each missing one.
///
/// Cost: O(fields named). Errors: WRONGTYPE.
fn hmget(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let now = cx.view.due_ms();
    let hash = cx.view.hash(args.at(1))?;
    let hit = hash.is_some();
    cx.out.array(args.len() - 2);
    for field in args.from(2).iter() {
        cx.out.bulk_or_null(hash.and_then(|hash| hash.get_at(field, now)));
    }
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `HLEN key`: the number of fields that have not expired.
///
/// Cost: O(1); O(e · log n) while e of n fields have expired and are not swept. Errors: WRONGTYPE.
fn hlen(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let now = cx.view.due_ms();
    let hash = cx.view.hash(args.at(1))?;
    let hit = hash.is_some();
    let len = match hash {
        Some(hash) if is_due(hash, now) => live_len(hash, now, &mut cx.budget)?,
        Some(hash) => hash.len(),
        None => 0,
    };
    cx.out.int(len as i64);
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `HSTRLEN key field`: bytes of the value; 0 if there is none.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn hstrlen(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let now = cx.view.due_ms();
    let hash = cx.view.hash(args.at(1))?;
    let hit = hash.is_some();
    let value = hash.and_then(|hash| hash.get_at(args.at(2), now));
    cx.out.int(value.map_or(0, <[u8]>::len) as i64);
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `HEXISTS key field`: 1 if the field exists, else 0.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn hexists(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let now = cx.view.due_ms();
    let hash = cx.view.hash(args.at(1))?;
    let hit = hash.is_some();
    cx.out.int(hash.is_some_and(|hash| hash.get_at(args.at(2), now).is_some()).into());
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `HDEL key field [field ...]`: the number of removed fields. An empty hash is removed.
///
/// Cost: O(fields named). Errors: WRONGTYPE.
fn hdel(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    purge(cx, args, args.from(2), 1, Effect::Itself)?;
    let Some(hash) = cx.view.hash_mut(key)? else {
        cx.out.int(0);
        return Ok(());
    };
    let removed = args.from(2).iter().filter(|field| hash.remove(field)).count();
    let empty = hash.is_empty();
    if removed > 0 {
        cx.view.changed(key, Class::Hash, "hdel");
    }
    if empty {
        cx.view.remove_if_empty(key);
    }
    cx.out.int(removed as i64);
    Ok(())
}

/// The fields of `FIELDS numfields field [field ...]`, which end the command. Errors: FIELDS missing, numbers
/// that disagree.
pub(super) fn counted<'a>(words: Args<'a>) -> Result<Args<'a>, Error> {
    counted_or(words, "ERR Number of fields must be a positive integer")
}

/// As [`counted`], with the error for a bad number.
pub(super) fn counted_or<'a>(words: Args<'a>, bad: &'static str) -> Result<Args<'a>, Error> {
    let missing = Error::new("ERR Mandatory argument FIELDS is missing or not at the right position");
    if !words.first().is_some_and(|word| crate::options::is(word, "fields")) {
        return Err(missing);
    }
    let count = words.get(1).and_then(stdx::num::parse_i64).filter(|count| *count > 0);
    let count = count.ok_or(Error::new(bad))?;
    if count as usize != words.len() - 2 {
        return Err(Error::new("ERR The `numfields` parameter must match the number of arguments"));
    }
    Ok(words.from(2))
}

/// `HGETDEL key FIELDS numfields field [field ...]`: the values, or null; removes the fields.
///
/// Cost: O(fields named). Errors: WRONGTYPE, FIELDS missing, numbers that disagree.
fn hgetdel(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    cx.view.hash(key)?;
    let fields = counted(args.from(2))?;
    purge(cx, args, fields, 1, Effect::Noted)?;
    cx.out.array(fields.len());
    let Some(hash) = cx.view.hash_mut(key)? else {
        fields.iter().for_each(|_| cx.out.null());
        return Ok(());
    };
    let mut effect: Vec<&[u8]> = vec![b"HDEL", key];
    for field in fields.iter() {
        cx.out.bulk_or_null(hash.get(field));
        if hash.remove(field) {
            effect.push(field);
        }
    }
    let empty = hash.is_empty();
    if effect.len() > 2 {
        cx.view.changed(key, Class::Hash, "hdel");
        cx.effect(&effect);
    }
    if empty {
        cx.view.remove_if_empty(key);
    }
    Ok(())
}
