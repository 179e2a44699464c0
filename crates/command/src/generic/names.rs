//! DEL, UNLINK, EXISTS, TYPE, TOUCH, RENAME, RENAMENX, COPY, MOVE.
//!
//! A removal frees nothing here: large values go to the reclaimer. A copy shares the original: O(1) for every
//! type.

use crate::facts;
use crate::options::{int, is};
use crate::table::*;
use crate::{Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use stdx::points::{self, Point};

const EACH: &[KeySpec] = &[KeySpec::range(1, -1, 1, RO)];
const EACH_GONE: &[KeySpec] = &[KeySpec::range(1, -1, 1, RM_DELETE)];
const SUMMED: &[&str] = &["request_policy:multi_shard", "response_policy:agg_sum"];

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("del", -2, Run::Write(del), WRITE, acl::KEYSPACE)
        .facts(facts::REMOVES)
        .keys(EACH_GONE)
        .tips(SUMMED)
        .cost(per_key)
        .doc("generic", "1.0.0", "O(N) for N keys; their values are freed elsewhere.", "Removes keys."),
    Command::new("unlink", -2, Run::Write(del), WRITE | FAST, acl::KEYSPACE)
        .facts(facts::REMOVES)
        .keys(EACH_GONE)
        .tips(SUMMED)
        .cost(per_key)
        .doc("generic", "4.0.0", "O(N) for N keys.", "Removes keys; the memory is freed elsewhere."),
    Command::new("exists", -2, Run::Read(exists), READONLY | FAST, acl::KEYSPACE)
        .facts(facts::FETCHES)
        .keys(EACH)
        .tips(SUMMED)
        .cost(per_key)
        .doc("generic", "1.0.0", "O(N) for N keys.", "Counts the keys that exist."),
    Command::new("touch", -2, Run::Read(touch), READONLY | FAST, acl::KEYSPACE)
        .facts(facts::TOUCHES)
        .keys(EACH)
        .tips(SUMMED)
        .cost(per_key)
        .doc("generic", "3.2.1", "O(N) for N keys.", "Marks keys as used just now and counts them."),
    Command::new("type", 2, Run::Read(kind), READONLY | FAST, acl::KEYSPACE)
        .keys(&[KeySpec::one(1, RO)])
        .doc("generic", "1.0.0", "O(1)", "Names the type of a key's value."),
    Command::new("rename", 3, Run::Write(rename), WRITE, acl::KEYSPACE)
        .keys(&[KeySpec::one(1, RW_ACCESS_DELETE), KeySpec::one(2, OW_UPDATE)])
        .doc("generic", "1.0.0", "O(1)", "Gives a value another key, replacing the old value there."),
    Command::new("renamenx", 3, Run::Write(renamenx), WRITE | FAST, acl::KEYSPACE)
        .keys(&[KeySpec::one(1, RW_ACCESS_DELETE), KeySpec::one(2, OW_INSERT)])
        .doc("generic", "1.0.0", "O(1)", "Gives a value another key, unless that is taken."),
    Command::new("copy", -3, Run::Write(copy), WRITE | DENYOOM, acl::KEYSPACE)
        .portable(602)
        .keys(&[KeySpec::one(1, RO_ACCESS), KeySpec::one(2, OW_UPDATE)])
        .doc("generic", "6.2.0", "O(1): the copy shares the original.", "Copies a value to another key."),
    Command::new("move", 3, Run::Write(move_key), WRITE | FAST, acl::KEYSPACE)
        .keys(&[KeySpec { uses: Use(&["RW", "access", "update"]), ..KeySpec::one(1, RO) }])
        .doc("generic", "1.0.0", "O(1)", "Gives a key to another database, unless it has one of that name."),
];

fn per_key(_: &View<'_>, args: Args<'_>) -> usize {
    args.len() * 4
}

/// `DEL key [key ...]`, `UNLINK key [key ...]`: the number of removed keys.
///
/// Cost: O(keys). Errors: none.
fn del(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let mut removed = 0;
    for key in args.from(1).iter() {
        if cx.view.remove(key) {
            cx.view.changed(key, Class::Generic, "del");
            removed += 1;
        }
    }
    cx.out.int(removed);
    Ok(())
}

/// `EXISTS key [key ...]`: the number of keys that exist. A repeated key counts again. The look-up does not
/// count as a use.
///
/// Cost: O(keys). Errors: none.
fn exists(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    cx.view.set_quiet(true);
    touch(cx, args)
}

/// `TOUCH key [key ...]`: as EXISTS, but it counts as a use of the keys that exist.
///
/// Cost: O(keys). Errors: none.
fn touch(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let mut found = 0;
    for key in args.from(1).iter() {
        let hit = cx.view.exists(key);
        cx.view.count_lookup(key, hit);
        found += i64::from(hit);
    }
    cx.out.int(found);
    Ok(())
}

/// `TYPE key`: the name of the type, or `none`.
///
/// Cost: O(1). Errors: none.
fn kind(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    cx.view.set_quiet(true);
    let kind = cx.view.kind(args.at(1));
    cx.out.simple(kind.map_or("none", |kind| kind.name()));
    Ok(())
}

/// `RENAME key newkey`: OK. The expiry moves along.
///
/// Cost: O(1). Errors: no such key.
fn rename(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (from, to) = (args.at(1), args.at(2));
    if from == to {
        if !cx.view.exists(from) {
            return Err(Error::NoSuchKey);
        }
        cx.out.ok();
        return Ok(());
    }
    relabel(cx, from, to)?;
    cx.out.ok();
    Ok(())
}

/// `RENAMENX key newkey`: 1 if it was renamed, 0 if `newkey` exists. The expiry moves along.
///
/// Cost: O(1). Errors: no such key.
fn renamenx(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (from, to) = (args.at(1), args.at(2));
    if !cx.view.exists(from) {
        return Err(Error::NoSuchKey);
    }
    let free = from != to && !cx.view.exists(to);
    if free {
        relabel(cx, from, to)?;
    }
    cx.out.int(free.into());
    Ok(())
}

fn relabel(cx: &mut Cx<'_, '_>, from: &[u8], to: &[u8]) -> Result<(), Error> {
    let owned = cx.view.take(from).ok_or(Error::NoSuchKey)?;
    // The old value is removed first, so that the key counts as new, as in Redis.
    cx.view.remove(to);
    cx.view.put(to, owned.value, owned.expire_ms);
    cx.view.changed(from, Class::Generic, "rename_from");
    cx.view.changed(to, Class::Generic, "rename_to");
    Ok(())
}

fn database(cx: &Cx<'_, '_>, arg: &[u8]) -> Result<usize, Error> {
    let db = int(arg)?;
    if i32::try_from(db).is_err() {
        let text = "ERR value is out of range, value must between -2147483648 and 2147483647";
        return Err(Error::new(text));
    }
    if db < 0 || db >= cx.view.databases() as i64 {
        return Err(Error::new("ERR DB index is out of range"));
    }
    Ok(db as usize)
}

const SAME: Error = Error::new("ERR source and destination objects are the same");

/// `COPY source destination [DB destination-db] [REPLACE]`: 1 if it was copied, else 0.
///
/// Cost: O(1) for every type; the next write to either side copies a path. Errors: syntax, bad database,
/// source and destination the same.
fn copy(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let here = cx.view.db();
    let (mut db, mut replace, mut i) = (here, false, 3);
    while i < args.len() {
        if is(args.at(i), "replace") {
            replace = true;
            i += 1;
        } else if is(args.at(i), "db") && i + 1 < args.len() {
            db = database(cx, args.at(i + 1))?;
            i += 2;
        } else {
            return Err(Error::Syntax);
        }
    }
    let (from, to) = (args.at(1), args.at(2));
    if db == here && from == to {
        return Err(SAME);
    }
    let owned = cx.view.owned(from);
    cx.view.count_lookup(from, owned.is_some());
    cx.view.select(db);
    let free = replace || owned.is_none() || !cx.view.exists(to);
    let copied = match owned {
        Some(owned) if free => {
            cx.view.remove(to);
            cx.view.put(to, owned.value, owned.expire_ms);
            points::trip(Point::Change);
            cx.view.changed(to, Class::Generic, "copy_to");
            1
        }
        _ => 0,
    };
    cx.view.select(here);
    cx.out.int(copied);
    Ok(())
}

/// `MOVE key db`: 1 if it was moved, 0 if the key is missing here or exists there.
///
/// Cost: O(1). Errors: bad database, source and destination the same.
fn move_key(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, here) = (args.at(1), cx.view.db());
    let db = database(cx, args.at(2))?;
    if db == here {
        return Err(SAME);
    }
    if !cx.view.exists(key) {
        cx.out.int(0);
        return Ok(());
    }
    cx.view.select(db);
    let taken = cx.view.exists(key);
    cx.view.select(here);
    if taken {
        cx.out.int(0);
        return Ok(());
    }
    if let Some(owned) = cx.view.take(key) {
        cx.view.select(db);
        cx.view.put(key, owned.value, owned.expire_ms);
        cx.view.select(here);
        cx.view.changed(key, Class::Generic, "move_from");
        cx.view.select(db);
        cx.view.changed(key, Class::Generic, "move_to");
        cx.view.select(here);
    }
    cx.out.int(1);
    Ok(())
}
