//! Reads of strings, also with a change of the expiry or removal of the key.
//!
//! A string longer than 64 KB is answered as a stream that owns a clone of the value. A later write does not
//! change the reply, and the key is free at once. MGET streams all values from the first long one on.

use super::expiry::{self, Compare, Of, Options, Unit};
use super::{BYTES_PER_STEP, STREAM_BYTES, Text, read, write, write_range};
use crate::facts;
use crate::table::{
    Command, DENYOOM, FAST, KeySpec, READONLY, RM_DELETE, RO, RO_ACCESS, Run, Use, WRITE, acl,
};
use crate::table::{RW_ACCESS_DELETE, RW_ACCESS_UPDATE, RW_DELETE_VARIABLE};
use crate::{Cx, Effect, Error, Stream, options};
use keyspace::{Class, View};
use resp::{Args, Reply};
use value::{Held, Str, StrRef, ValueRef};

const SUBSTRING_COST: &str = "O(N) where N is the length of the returned string. The complexity is ultimately \
    determined by the returned length, but because creating a substring from an existing string is very cheap, it can \
    be considered O(1) for small strings.";

const RW_EXPIRY: KeySpec =
    KeySpec { notes: "RW and UPDATE because it changes the TTL", ..KeySpec::one(1, RW_ACCESS_UPDATE) };
const GETSET_KEY: Use = RW_ACCESS_UPDATE;

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("get", 2, Run::Read(get), READONLY | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .reply(crate::replies::whole)
        .doc("string", "1.0.0", "O(1)", "Gives the string a key holds."),
    Command::new("mget", -2, Run::Read(mget), READONLY | FAST, acl::STRING)
        .facts(facts::FETCHES)
        .keys(&[KeySpec::range(1, -1, 1, RO_ACCESS)])
        .reply(crate::replies::all::<1>)
        .tips(&["request_policy:multi_shard"])
        .cost(|_, args| args.len() * MGET_STEPS)
        .doc(
            "string",
            "1.0.0",
            "O(N) where N is the number of keys to retrieve.",
            "Gives the strings of many keys.",
        ),
    Command::new("getex", -2, Run::Write(getex), WRITE | FAST, acl::STRING)
        .portable(206)
        .facts(facts::READS_VALUE)
        .keys(&[RW_EXPIRY])
        .reply(crate::replies::whole)
        .effect(Effect::Noted)
        .doc("string", "6.2.0", "O(1)", "Gives the string of a key and changes when it expires."),
    Command::new("getdel", 2, Run::Write(getdel), WRITE | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, RW_ACCESS_DELETE)])
        .reply(crate::replies::whole)
        .doc("string", "6.2.0", "O(1)", "Gives the string of a key and removes the key."),
    Command::new("getset", 3, Run::Write(getset), WRITE | DENYOOM | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, GETSET_KEY)])
        .reply(crate::replies::whole)
        .cost(super::argument_cost::<2>)
        .doc("string", "1.0.0", "O(1)", "Sets a key to a string and gives the one it held before."),
    Command::new("delifeq", 3, Run::Write(delifeq), WRITE | FAST, acl::STRING)
        .effect(Effect::Noted)
        .portable(100)
        .keys(&[KeySpec::one(1, RM_DELETE)])
        .cost(super::argument_cost::<2>)
        .doc("string", "9.0.0", "O(1)", "Removes a key if its string equals the one given."),
    Command::new("digest", 2, Run::Read(digest), READONLY | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .cost(expiry::digest_cost)
        .doc(
            "string",
            "8.4.0",
            "O(N) where N is the length of the string.",
            "Gives the XXH3 hash of the string a key holds.",
        ),
    Command::new("delex", -2, Run::Write(delex), WRITE | FAST, acl::STRING)
        .effect(Effect::Noted)
        .portable(100)
        .keys(&[KeySpec::one(1, RW_DELETE_VARIABLE)])
        .cost(delex_cost)
        .doc(
            "string",
            "8.4.0",
            "O(N) where N is the length of the string compared or hashed.",
            "Removes a key, on a condition about its string if wanted.",
        ),
    Command::new("strlen", 2, Run::Read(strlen), READONLY | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, RO)])
        .doc("string", "2.2.0", "O(1)", "Tells how many bytes the string of a key has."),
    Command::new("getrange", 4, Run::Read(getrange), READONLY, acl::STRING)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .reply(crate::replies::between)
        .doc("string", "2.4.0", SUBSTRING_COST, "Gives a part of the string a key holds."),
    Command::new("substr", 4, Run::Read(getrange), READONLY, acl::STRING)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .reply(crate::replies::between)
        .doc("string", "1.0.0", SUBSTRING_COST, "The old name of GETRANGE."),
];

/// Steps for one key of MGET.
const MGET_STEPS: usize = 3;

/// `GET key`: the string, or null.
///
/// Cost: O(n), n = bytes of the string; a long chunked string is streamed. Errors: WRONGTYPE.
#[inline]
fn get(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if let Some(rest) = read(cx, args.at(1), |s, out, _| Ok(write(out, s)))? {
        cx.stream(rest)?;
    }
    Ok(())
}

/// `MGET key [key ...]`: the strings, in an array. A key without a string answers null.
///
/// Cost: O(n), n = keys and bytes; values of more than 64 KB in all are streamed. Errors: none.
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
            Some(ValueRef::Str(StrRef::Pair(pair))) => cx.out.bulk_joined(pair.parts()),
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
    cx.stream(Texts { rest: values.into_iter(), open: None })?;
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

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.open.iter().for_each(|text| text.holds(held));
    }
}

/// `GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]`: the string, or null; changes the expiry. A Unix
/// time in the past removes the key.
///
/// The time is checked only if the key holds a string. For an entry of a hidden database the caller decides
/// how long the entry is kept ([`getex_asks`]).
///
/// Cost: as GET. Errors: syntax, WRONGTYPE, bad time.
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
        _ if cx.view.is_hidden() => {}
        (Some(at), Some((Unit::ExAt | Unit::PxAt, _))) if cx.is_past(at) => {
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
        cx.stream(rest)?;
    }
    Ok(())
}

/// The expiry that a GETEX asks for: a time in milliseconds since 1970, or no expiry (`Some(None)`). None if
/// it has no option or a wrong one. O(words).
pub fn getex_asks(args: Args<'_>, now_ms: u64) -> Option<Option<u64>> {
    let options = Options::parse(args.from(2), Of::GetEx).ok()?;
    match options.expire {
        Some((unit, time)) => Some(Some(unit.deadline(time, now_ms, "getex").ok()?)),
        None => options.persist.then_some(None),
    }
}

/// `GETDEL key`: the string, or null; removes the key.
///
/// Cost: as GET. Errors: WRONGTYPE.
fn getdel(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let (found, rest) = read(cx, key, |s, out, _| Ok((s.is_some(), write(out, s))))?;
    if found {
        cx.view.remove(key);
        cx.view.changed(key, Class::Generic, "del");
    }
    if let Some(rest) = rest {
        cx.stream(rest)?;
    }
    Ok(())
}

/// `GETSET key value`: the old string, or null. The old expiry goes with the old value.
///
/// Cost: as GET, plus O(n), n = bytes of the value. Errors: WRONGTYPE.
fn getset(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let rest = read(cx, key, |s, out, _| Ok(write(out, s)))?;
    cx.view.put_string(key, args.at(2), None);
    cx.view.changed(key, Class::String, "set");
    if let Some(rest) = rest {
        cx.stream(rest)?;
    }
    Ok(())
}

/// `DELIFEQ key value`: 1 if the key was removed, else 0.
///
/// Cost: O(n), n = bytes of `value`. Errors: WRONGTYPE.
fn delifeq(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let equal = cx.view.string(key)?.is_some_and(|s| s == *args.at(2));
    if equal {
        cx.view.remove(key);
        cx.view.changed(key, Class::Generic, "del");
        cx.effect(&[b"DEL", key]);
    }
    cx.out.int(equal.into());
    Ok(())
}

/// `DIGEST key`: the digest of the string, or null.
///
/// Cost: O(n), n = bytes of the string. Errors: WRONGTYPE. Source: Redis 8.4.
fn digest(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    read(cx, args.at(1), |s, out, budget| {
        match s {
            Some(s) => out.bulk(&expiry::digest(s, budget)?),
            None => out.null(),
        }
        Ok(())
    })
}

/// `DELEX key [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest]`: 1 if the key was removed, else 0.
/// Without a condition it may hold anything. Without the key the condition is not looked at. The log receives
/// a DEL, which every server knows.
///
/// Cost: O(n), n = bytes of `value`, or of the string for its digest. Errors: number of arguments; and if the
/// key is there: no string, an unknown condition, a digest of another length. Source: Redis 8.4.
fn delex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if args.len() != 2 && args.len() != 4 {
        return Err(Error::Arity("delex".to_owned()));
    }
    let key = args.at(1);
    let goes = if args.len() == 2 { cx.view.exists(key) } else { may_go(cx, args)? };
    if goes {
        cx.view.remove(key);
        cx.view.changed(key, Class::Generic, "del");
        cx.effect(&[b"DEL", key]);
    }
    cx.out.int(goes.into());
    Ok(())
}

/// Whether there is a string that meets the condition of a DELEX.
fn may_go(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<bool, Error> {
    let Cx { view, budget, .. } = cx;
    let s = match view.value(args.at(1)) {
        None => return Ok(false),
        Some(ValueRef::Str(s)) => s,
        Some(_) => return Err(Error::new("ERR Key should be of string type if conditions are specified")),
    };
    Compare::named(args.at(2), args.at(3))
        .ok_or(Error::new("ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"))?
        .is_met(Some(s), budget)
}

fn delex_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let hashed = if expiry::asks_digest(args.from(2)) { expiry::digest_cost(view, args) } else { 0 };
    hashed + args.bytes() / BYTES_PER_STEP
}

/// `STRLEN key`: bytes of the string; 0 for a missing key.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn strlen(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    read(cx, args.at(1), |s, out, _| {
        out.int(s.map_or(0, |s| s.len()) as i64);
        Ok(())
    })
}

/// `GETRANGE key start end`: a part of the string. Both may count from the end; a part outside is cut off.
///
/// An `end` before the first byte counts as the first byte. With both counted from the end and `start` behind
/// `end`, the reply is empty.
///
/// Cost: O(n), n = bytes of the reply; a long part of a chunked string is streamed. Errors: not an integer,
/// WRONGTYPE.
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
        cx.stream(rest)?;
    }
    Ok(())
}

/// The part from `start` to `end` of `len` units, both included and possibly counted from the end. None if it
/// is empty. The bitmap commands use it too.
pub(crate) fn clamp(start: i64, end: i64, len: usize) -> Option<std::ops::Range<usize>> {
    let len = len as i64;
    let place = |i: i64| if i < 0 { i.saturating_add(len).max(0) } else { i };
    let (start, end) = (place(start), place(end).min(len - 1));
    (start <= end).then(|| start as usize..end as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::clamp;
    use crate::testing::Db;
    use std::sync::atomic::Ordering::Relaxed;

    const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

    #[test]
    fn parts_are_cut_to_what_is_there() {
        let mut db = Db::new();
        let int = "-ERR value is not an integer or out of range";
        db.check(&[
            ("set k hello", "OK"),
            ("sadd s x", "1"),
            ("getrange k 0 -1", "\"hello\""),
            ("getrange k 1 2", "\"el\""),
            ("getrange k -2 -1", "\"lo\""),
            ("getrange k -1 -2", "\"\""),
            ("getrange k 5 10", "\"\""),
            ("getrange k -100 100", "\"hello\""),
            ("getrange k -100 -50", "\"h\""),
            ("getrange k -50 -100", "\"\""),
            ("getrange k -9223372036854775808 9223372036854775807", "\"hello\""),
            ("getrange none 0 -1", "\"\""),
            ("getrange s 0 -1", WRONG_TYPE),
            ("getrange s a 1", int),
            ("getrange k 1 b", int),
            ("substr k 1 1", "\"e\""),
            ("strlen k", "5"),
            ("strlen none", "0"),
            ("strlen s", WRONG_TYPE),
            ("get s", WRONG_TYPE),
            ("mget k none s k", "[\"hello\", nil, nil, \"hello\"]"),
        ]);
        assert_eq!(clamp(0, -1, 0), None);
    }

    #[test]
    fn long_strings_are_answered_as_streams_and_short_ones_at_once() {
        Db::both(|mut db| {
            let long = "0123456789".repeat(20_000);
            let quoted = format!("{long:?}");
            db.run(&["MSET", "k", &long, "short", "s"]);
            for line in ["get k", "getrange k 0 -1", "getex k", "set k x GET"] {
                assert_eq!(db.line(line), quoted, "{line}");
                assert!(db.streamed, "{line}");
                db.run(&["SET", "k", &long]);
            }
            assert_eq!(db.line("getrange k 3 70002"), format!("{:?}", &long[3..70_003]));
            assert!(db.streamed);
            assert_eq!(db.line("getrange k 3 60002"), format!("{:?}", &long[3..60_003]));
            assert!(!db.streamed);
            assert_eq!(
                db.line("mget short k none k short"),
                format!("[\"s\", {quoted}, nil, {quoted}, \"s\"]")
            );
            assert!(db.streamed);
            db.caller.may_stream = false;
            assert_eq!(db.line("mget k short"), format!("[{quoted}, \"s\"]"));
            assert_eq!(db.line("getdel k"), quoted);
            assert!(!db.streamed);
            assert_eq!(db.line("get k"), "nil");
        });
    }

    #[test]
    fn a_sparse_string_is_given_with_its_zeros() {
        let mut db = Db::new();
        db.check(&[("setrange k 100000 end", "100003"), ("getrange k 99998 -1", "\"\\x00\\x00end\"")]);
        let zeros = db.line("get k");
        assert_eq!(zeros.len(), 2 + 4 * 100_000 + 3);
        assert!(db.streamed);
    }

    #[test]
    fn many_values_are_streamed_from_where_the_reply_grows_long() {
        let mut db = Db::new();
        let value = "v".repeat(200);
        let keys: Vec<String> = (0..1000).map(|i| format!("k{i}")).collect();
        keys.iter().filter(|key| !key.ends_with('7')).for_each(|key| {
            db.run(&["SET", key, &value]);
        });
        let mut words = vec!["MGET"];
        words.extend(keys.iter().map(String::as_str));
        let expected = |key: &String| if key.ends_with('7') { "nil".into() } else { format!("{value:?}") };
        let expected = keys.iter().map(expected).collect::<Vec<_>>().join(", ");
        assert_eq!(db.run(&words), format!("[{expected}]"));
        assert!(db.streamed && db.cost(&words) > 2000);
        db.steps = 500;
        assert!(db.run(&words).starts_with("-ERR internal"));
    }

    #[test]
    fn look_ups_for_reading_are_counted_and_others_are_not() {
        let mut db = Db::new();
        let stats = db.keyspace.clone();
        let mut counted = |line: &str| {
            let before = (stats.stats.hits.load(Relaxed), stats.stats.misses.load(Relaxed));
            db.line(line);
            (stats.stats.hits.load(Relaxed) - before.0, stats.stats.misses.load(Relaxed) - before.1)
        };
        assert_eq!(counted("set k v"), (0, 0));
        for line in
            ["get k", "strlen k", "getrange k 0 0", "getex k EX 0", "set k v GET", "getset k v", "bitcount k"]
        {
            assert_eq!(counted(line), (1, 0), "{line}");
        }
        for line in [
            "get none",
            "getex none EX 0",
            "getdel none",
            "set none v XX GET",
            "bitpos none 1",
            "getbit none 1",
        ] {
            assert_eq!(counted(line), (0, 1), "{line}");
        }
        for line in [
            "set k v XX",
            "setnx k v",
            "append k v",
            "setbit k 1 1",
            "delifeq k x",
            "incr none",
            "strlen k x",
        ] {
            assert_eq!(counted(line), (0, 0), "{line}");
        }
        assert_eq!(counted("mget k k nope"), (2, 1));
        assert_eq!(counted("lcs k nope foo"), (1, 1));
        assert_eq!(counted("bitop and d k nope"), (1, 1));
        assert_eq!(counted("getdel d"), (1, 0));
    }

    #[test]
    fn getex_looks_at_the_key_before_the_time() {
        Db::both(|mut db| {
            let invalid = "-ERR invalid expire time in 'getex' command";
            db.check(&[
                ("set k v", "OK"),
                ("sadd s x", "1"),
                ("getex k EX 10 PERSIST", "-ERR syntax error"),
                ("getex k KEEPTTL", "-ERR syntax error"),
                ("getex k NX", "-ERR syntax error"),
                ("getex k EX 0", invalid),
                ("getex k EXAT 9223372036854775807", invalid),
                ("getex none EX 0", "nil"),
                ("getex s EX 0", WRONG_TYPE),
                ("getex none FOO", "-ERR syntax error"),
            ]);
            db.events();
            db.check(&[
                ("getex k", "\"v\""),
                ("getex k PERSIST", "\"v\""),
                ("getex k EX 10", "\"v\""),
                ("getex k PERSIST", "\"v\""),
                ("getex k PXAT 1", "\"v\""),
            ]);
            assert_eq!(db.events(), ["expire:k", "persist:k", "del:k"]);
            db.check(&[("get k", "nil"), ("set k v", "OK"), ("getex k PX 5", "\"v\"")]);
            db.now_ms += 5;
            assert_eq!(db.line("get k"), "nil");
        });
    }

    #[test]
    fn a_key_is_removed_when_it_was_read_or_equals() {
        Db::both(|mut db| {
            db.check(&[
                ("set k v", "OK"),
                ("delifeq k w", "0"),
                ("delifeq k v", "1"),
                ("delifeq k v", "0"),
                ("set k v EX 10", "OK"),
                ("getset k w", "\"v\""),
                ("getdel k", "\"w\""),
                ("getset k v", "nil"),
                ("sadd s x", "1"),
                ("delifeq s x", WRONG_TYPE),
                ("getdel s", WRONG_TYPE),
                ("getset s x", WRONG_TYPE),
            ]);
            db.now_ms += 20_000;
            assert_eq!(db.line("get k"), "\"v\"");
        });
    }

    #[test]
    fn a_digest_is_the_hash_of_the_bytes_in_16_digits() {
        Db::both(|mut db| {
            db.check(&[
                ("mset h hello e \"\" n 123 z v8", "OK"),
                ("digest h", "\"9555e8555c62dcfd\""),
                ("digest e", "\"2d06800538d394c2\""),
                ("digest n", "\"404a763b3f4c8c9a\""),
                ("digest z", "\"0cc76dbb41381419\""),
                ("digest none", "nil"),
                ("rpush l a", "1"),
                ("digest l", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
                ("digest h e", "-ERR wrong number of arguments for 'digest' command"),
            ]);
        });
    }

    /// Strings that are stored in one piece, in several, and with zeros in between that are not stored.
    #[test]
    fn how_a_string_is_stored_does_not_change_its_digest() {
        let mut db = Db::new();
        for len in [1usize, 240, 241, 5000, 70_000, 300_000] {
            let bytes: String = (0..len).map(|i| char::from(b'a' + (i * i % 23) as u8)).collect();
            let expected = format!("\"{:016x}\"", twox_hash::XxHash3_64::oneshot(bytes.as_bytes()));
            db.run(&["SET", "whole", &bytes]);
            db.line("del parts");
            let (first, second) = bytes.split_at(len / 3);
            db.run(&["APPEND", "parts", first]);
            db.run(&["APPEND", "parts", second]);
            assert_eq!(db.line("digest whole"), expected, "{len}");
            assert_eq!(db.line("digest parts"), expected, "{len}");
        }
        db.line("setrange sparse 1000000 end");
        let mut bytes = vec![0; 1_000_000];
        bytes.extend_from_slice(b"end");
        let expected = format!("\"{:016x}\"", twox_hash::XxHash3_64::oneshot(&bytes));
        assert_eq!(db.line("digest sparse"), expected);
    }

    #[test]
    fn unstored_zeros_are_paid_for() {
        let mut db = Db::new();
        db.line("setrange sparse 10000000 end");
        let least = 10_000_000 / crate::string::BYTES_PER_STEP;
        for words in [
            &["DIGEST", "sparse"][..],
            &["DELEX", "sparse", "IFDEQ", "0000000000000000"],
            &["SET", "sparse", "x", "IFDEQ", "0000000000000000"],
        ] {
            assert!(db.cost(words) >= least, "{words:?}");
        }
        db.steps = 1000;
        for line in ["digest sparse", "delex sparse ifdeq 0000000000000000"] {
            assert!(db.line(line).starts_with("-ERR internal"), "{line}");
        }
    }

    #[test]
    fn a_key_goes_if_its_string_meets_the_condition() {
        Db::both(|mut db| {
            for (condition, gone) in [
                ("IFEQ other", "0"),
                ("IFEQ 0hello", "0"),
                ("ifeq hello", "1"),
                ("IFNE hello", "0"),
                ("IfNe other", "1"),
                ("IFDEQ 0000000000000000", "0"),
                ("IFDEQ zzzzzzzzzzzzzzzz", "0"),
                ("IFDEQ 9555e8555c62dcfd", "1"),
                ("IFDEQ 9555E8555C62DCFD", "1"),
                ("IFDNE 9555e8555C62DCFD", "0"),
                ("IFDNE 0000000000000000", "1"),
                ("IFDNE zzzzzzzzzzzzzzzz", "1"),
                ("", "1"),
            ] {
                db.check(&[("set k hello", "OK")]);
                db.effect_lines();
                assert_eq!(db.line(&format!("delex k {condition}")), gone, "{condition}");
                let told: &[&str] = if gone == "1" { &["DEL k"] } else { &[] };
                assert_eq!(db.effect_lines(), told, "{condition}");
                assert_eq!(db.line("exists k"), if gone == "1" { "0" } else { "1" }, "{condition}");
            }
        });
    }

    #[test]
    fn a_condition_is_looked_at_only_if_there_is_a_string() {
        Db::both(|mut db| {
            let arity = "-ERR wrong number of arguments for 'delex' command";
            let length = "-ERR must be exactly 16 hexadecimal characters";
            let kind = "-ERR Key should be of string type if conditions are specified";
            db.check(&[
                ("delex none", "0"),
                ("delex none IFNE a", "0"),
                ("delex none IFDNE a", "0"),
                ("delex none FOO a", "0"),
                ("delex none IFEQ", arity),
                ("delex none IFEQ a b", arity),
                ("delex", arity),
                ("set k hello", "OK"),
                ("delex k FOO hello", "-ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"),
                ("delex k IFDEQ 555e8555c62dcfd", length),
                ("delex k IFDNE 09555e8555c62dcfd", length),
                ("delex k IFDNE \"\"", length),
                ("get k", "\"hello\""),
                ("rpush l a", "1"),
                ("delex l FOO a", kind),
                ("delex l IFDEQ a", kind),
                ("delex l IFNE a", kind),
                ("delex l", "1"),
                ("exists l", "0"),
            ]);
        });
    }
}
