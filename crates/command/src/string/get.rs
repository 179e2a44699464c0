//! Reading strings, and reading while changing the expiry or removing the key.
//!
//! A string longer than 64 KB is answered as a stream that owns a clone of the value, so a later write changes nothing
//! of the reply and the key is free at once. MGET does the same with all values from the first long one on.

use super::expiry::{Of, Options, Unit};
use super::{STREAM_BYTES, Text, read, write, write_range};
use crate::table::{
    Command, DENYOOM, FAST, KeySpec, READONLY, RM_DELETE, RO, RO_ACCESS, Run, Use, WRITE, acl,
};
use crate::table::{RW_ACCESS_DELETE, RW_ACCESS_UPDATE};
use crate::{Cx, Effect, Error, Stream, options};
use keyspace::Class;
use resp::{Args, Reply};
use value::{Str, StrRef, ValueRef};

const SUBSTRING_COST: &str = "O(N) where N is the length of the returned string. The complexity is ultimately \
    determined by the returned length, but because creating a substring from an existing string is very cheap, it can \
    be considered O(1) for small strings.";

const RW_EXPIRY: KeySpec =
    KeySpec { notes: "RW and UPDATE because it changes the TTL", ..KeySpec::one(1, RW_ACCESS_UPDATE) };
const GETSET_KEY: Use = RW_ACCESS_UPDATE;

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("get", 2, Run::Read(get), READONLY | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .doc("string", "1.0.0", "O(1)", "Gives the string a key holds."),
    Command::new("mget", -2, Run::Read(mget), READONLY | FAST, acl::STRING)
        .keys(&[KeySpec::range(1, -1, 1, RO_ACCESS)])
        .tips(&["request_policy:multi_shard"])
        .cost(|_, args| args.len() * MGET_STEPS)
        .doc(
            "string",
            "1.0.0",
            "O(N) where N is the number of keys to retrieve.",
            "Gives the strings of many keys.",
        ),
    Command::new("getex", -2, Run::Write(getex), WRITE | FAST, acl::STRING)
        .keys(&[RW_EXPIRY])
        .effect(Effect::Noted)
        .doc("string", "6.2.0", "O(1)", "Gives the string of a key and changes when it expires."),
    Command::new("getdel", 2, Run::Write(getdel), WRITE | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, RW_ACCESS_DELETE)])
        .doc("string", "6.2.0", "O(1)", "Gives the string of a key and removes the key."),
    Command::new("getset", 3, Run::Write(getset), WRITE | DENYOOM | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, GETSET_KEY)])
        .cost(super::argument_cost::<2>)
        .doc("string", "1.0.0", "O(1)", "Sets a key to a string and gives the one it held before."),
    Command::new("delifeq", 3, Run::Write(delifeq), WRITE | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, RM_DELETE)])
        .doc("string", "9.0.0", "O(1)", "Removes a key if its string equals the one given."),
    Command::new("strlen", 2, Run::Read(strlen), READONLY | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, RO)])
        .doc("string", "2.2.0", "O(1)", "Tells how many bytes the string of a key has."),
    Command::new("getrange", 4, Run::Read(getrange), READONLY, acl::STRING)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .doc("string", "2.4.0", SUBSTRING_COST, "Gives a part of the string a key holds."),
    Command::new("substr", 4, Run::Read(getrange), READONLY, acl::STRING)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .doc("string", "1.0.0", SUBSTRING_COST, "The old name of GETRANGE."),
];

/// Steps for one key of MGET.
const MGET_STEPS: usize = 3;

/// `GET key`.
#[inline]
fn get(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if let Some(rest) = read(cx, args.at(1), |s, out, _| Ok(write(out, s)))? {
        cx.stream(rest);
    }
    Ok(())
}

/// `MGET key [key ...]`: a key without a string counts as missing.
///
/// Cost: O(n), n = keys; values of more than 64 KB in all are streamed.
fn mget(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let keys = args.from(1);
    let start = cx.out.len();
    cx.out.array(keys.len());
    for (i, key) in keys.iter().enumerate() {
        if i % 128 == 127 {
            cx.charge(128 * MGET_STEPS)?;
        }
        let found = cx.view.value(key);
        let hit = found.is_some();
        match found {
            Some(ValueRef::Str(StrRef::Flat(bytes))) => cx.out.bulk(bytes),
            // The rest of the array comes as a stream.
            Some(ValueRef::Str(_)) => return mget_stream(cx, keys.from(i)),
            _ => cx.out.null(),
        }
        cx.view.count_lookup(key, hit);
        if cx.out.len() - start > STREAM_BYTES && i + 1 < keys.len() {
            return mget_stream(cx, keys.from(i + 1));
        }
    }
    Ok(())
}

fn mget_stream(cx: &mut Cx<'_, '_>, keys: Args<'_>) -> Result<(), Error> {
    let mut values = Vec::with_capacity(keys.len());
    for (i, key) in keys.iter().enumerate() {
        if i % 128 == 127 {
            cx.charge(128 * MGET_STEPS)?;
        }
        let found = cx.view.value(key);
        let hit = found.is_some();
        values.push(found.and_then(|value| match value {
            ValueRef::Str(s) => Some(s.to_str()),
            _ => None,
        }));
        cx.view.count_lookup(key, hit);
    }
    cx.stream(Texts { rest: values.into_iter(), open: None });
    Ok(())
}

/// The remaining elements of MGET's array.
struct Texts {
    rest: std::vec::IntoIter<Option<Str>>,
    open: Option<Text>,
}

impl Stream for Texts {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let stop = out.len().saturating_add(room);
        while out.len() < stop {
            if let Some(text) = &mut self.open {
                if !text.fill(out, stop - out.len()) {
                    self.open = None;
                }
                continue;
            }
            match self.rest.next() {
                Some(value) => self.open = write(out, value.as_ref().map(Str::as_ref)),
                None => return false,
            }
        }
        self.open.is_some() || self.rest.len() > 0
    }
}

/// `GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]`: a time that is past removes the key.
///
/// The time is looked at only after the key was found to hold a string.
fn getex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let options = Options::parse(args.from(2), Of::GetEx)?;
    if !read(cx, key, |s, _, _| Ok(s.is_some()))? {
        cx.out.null();
        return Ok(());
    }
    let deadline = options.deadline(cx, "getex")?;
    let rest = write(cx.out, cx.view.string(key)?);
    match (deadline, options.expire) {
        (Some(at), Some((Unit::ExAt | Unit::PxAt, _))) if at <= cx.view.now_ms() => {
            cx.view.remove(key);
            cx.view.changed(key, Class::Generic, "del");
            cx.effect(&[b"DEL", key]);
        }
        (Some(at), _) => {
            cx.view.set_expire(key, Some(at));
            cx.view.changed(key, Class::Generic, "expire");
            cx.effect(&[b"PEXPIREAT", key, itoa::Buffer::new().format(at).as_bytes()]);
        }
        (None, _) if options.persist && cx.view.expire_ms(key).flatten().is_some() => {
            cx.view.set_expire(key, None);
            cx.view.changed(key, Class::Generic, "persist");
            cx.effect(&[b"PERSIST", key]);
        }
        (None, _) => {}
    }
    if let Some(rest) = rest {
        cx.stream(rest);
    }
    Ok(())
}

/// `GETDEL key`.
fn getdel(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let (found, rest) = read(cx, key, |s, out, _| Ok((s.is_some(), write(out, s))))?;
    if found {
        cx.view.remove(key);
        cx.view.changed(key, Class::Generic, "del");
    }
    if let Some(rest) = rest {
        cx.stream(rest);
    }
    Ok(())
}

/// `GETSET key value`: the old expiry goes with the old value.
fn getset(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let rest = read(cx, key, |s, out, _| Ok(write(out, s)))?;
    cx.view.put_string(key, args.at(2), None);
    cx.view.changed(key, Class::String, "set");
    if let Some(rest) = rest {
        cx.stream(rest);
    }
    Ok(())
}

/// `DELIFEQ key value`: 1 if the key was removed.
///
/// Cost: O(n), n = bytes of `value`.
fn delifeq(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let equal = cx.view.string(key)?.is_some_and(|s| s == *args.at(2));
    if equal {
        cx.view.remove(key);
        cx.view.changed(key, Class::Generic, "del");
    }
    cx.out.int(equal.into());
    Ok(())
}

/// `STRLEN key`.
fn strlen(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    read(cx, args.at(1), |s, out, _| {
        out.int(s.map_or(0, |s| s.len()) as i64);
        Ok(())
    })
}

/// `GETRANGE key start end`: both may count from the end; what lies outside is cut off.
///
/// An `end` before the first byte is taken as the first byte, unless both count from the end and stand in the wrong order.
fn getrange(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (start, end) = (options::int(args.at(2))?, options::int(args.at(3))?);
    let rest = read(cx, args.at(1), |s, out, _| {
        let Some(s) = s else {
            out.bulk(b"");
            return Ok(None);
        };
        let range = if start < 0 && end < 0 && start > end {
            0..0
        } else {
            clamp(start, end, s.len()).unwrap_or(0..0)
        };
        Ok(match s {
            StrRef::Flat(bytes) => {
                out.bulk(&bytes[range]);
                None
            }
            s => write_range(out, s, range),
        })
    })?;
    if let Some(rest) = rest {
        cx.stream(rest);
    }
    Ok(())
}

/// The part from `start` to `end`, both possibly counted from the end and both included, of something of `len` units. None if
/// it is empty. Shared with the bitmap commands.
pub(crate) fn clamp(start: i64, end: i64, len: usize) -> Option<std::ops::Range<usize>> {
    let len = len as i64;
    let place = |i: i64| if i < 0 { i.saturating_add(len).max(0) } else { i };
    let (start, end) = (place(start), place(end).min(len - 1));
    (start <= end).then(|| start as usize..end as usize + 1)
}
