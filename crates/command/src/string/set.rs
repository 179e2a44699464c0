//! Writes of whole strings. `SET` and `MSET` without options are the hottest writes: one put, one `changed`.
//!
//! For a relative time the log receives the absolute form (`SET key value PXAT ms`), as the conditions were
//! met when the command ran.

use super::expiry::{self, Of, Options, Unit};
use super::{BYTES_PER_STEP, argument_cost, read, write};
use crate::facts;
use crate::table::{Begin, Command, DENYOOM, FAST, Find, KeySpec, MOVABLEKEYS, Run, Use, WRITE, acl};
use crate::table::{OW_INSERT, OW_UPDATE};
use crate::{Cx, Error, options};
use keyspace::{Class, View};
use resp::Args;

const N_KEYS: &str = "O(N) where N is the number of keys to set.";

const SET_KEY: KeySpec = KeySpec {
    notes: "RW and ACCESS due to the optional `GET` argument",
    ..KeySpec::one(1, Use(&["RW", "access", "update", "variable_flags"]))
};
const MSETEX_KEYS: KeySpec = KeySpec {
    uses: OW_UPDATE,
    begin: Begin::Index(1),
    find: Find::KeyNum { num: 0, first: 1, step: 2 },
    notes: "",
};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("set", -3, Run::Write(set), WRITE | DENYOOM, acl::STRING)
        .portable(602)
        .facts(facts::SETS)
        .keys(&[SET_KEY])
        .reply(set_reply)
        .cost(set_cost)
        .doc("string", "1.0.0", "O(1)", "Sets a key to a string, whatever it held, on conditions if wanted."),
    Command::new("setnx", 3, Run::Write(setnx), WRITE | DENYOOM | FAST, acl::STRING)
        .keys(&[KeySpec::one(1, OW_INSERT)])
        .cost(argument_cost::<2>)
        .doc("string", "1.0.0", "O(1)", "Sets a key to a string if there is no such key."),
    Command::new("setex", 4, Run::Write(setex), WRITE | DENYOOM, acl::STRING)
        .portable(602)
        .keys(&[KeySpec::one(1, OW_UPDATE)])
        .cost(argument_cost::<3>)
        .doc("string", "2.0.0", "O(1)", "Sets a key to a string that expires after so many seconds."),
    Command::new("psetex", 4, Run::Write(psetex), WRITE | DENYOOM, acl::STRING)
        .portable(602)
        .keys(&[KeySpec::one(1, OW_UPDATE)])
        .cost(argument_cost::<3>)
        .doc("string", "2.6.0", "O(1)", "Sets a key to a string that expires after so many milliseconds."),
    Command::new("mset", -3, Run::Write(mset), WRITE | DENYOOM, acl::STRING)
        .facts(facts::REPLACES)
        .keys(&[KeySpec::range(1, -1, 2, OW_UPDATE)])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .cost(many_cost)
        .doc("string", "1.0.1", N_KEYS, "Sets many keys to strings at once."),
    Command::new("msetnx", -3, Run::Write(msetnx), WRITE | DENYOOM, acl::STRING)
        .keys(&[KeySpec::range(1, -1, 2, OW_INSERT)])
        .cost(many_cost)
        .doc("string", "1.0.1", N_KEYS, "Sets many keys to strings at once if none of them exists."),
    Command::new("msetex", -4, Run::Write(msetex), WRITE | DENYOOM | MOVABLEKEYS, acl::STRING)
        .portable(602)
        .keys(&[MSETEX_KEYS])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .cost(many_cost)
        .doc(
            "string",
            "9.1.0",
            N_KEYS,
            "Sets many keys to strings with one expiry, on conditions if wanted.",
        ),
];

/// Steps to set one key among many.
const STEPS_PER_KEY: usize = 6;

/// Steps of SET. With options there may be a second long argument, to compare with, or a string to hash.
fn set_cost(view: &View<'_>, args: Args<'_>) -> usize {
    if args.len() == 3 {
        return args.at(2).len() / BYTES_PER_STEP;
    }
    let hashed = if expiry::asks_digest(args.from(3)) { expiry::digest_cost(view, args) } else { 0 };
    hashed + args.bytes() / BYTES_PER_STEP
}

/// Steps of SET's reply. Only GET answers a value.
fn set_reply(view: &View<'_>, args: Args<'_>) -> usize {
    let gets = args.from(3).iter().any(|word| options::is(word, "get"));
    if gets { crate::replies::whole(view, args) } else { 0 }
}

fn many_cost(_: &View<'_>, args: Args<'_>) -> usize {
    args.len() / 2 * STEPS_PER_KEY + args.bytes() / BYTES_PER_STEP
}

/// `SET key value [NX | XX | IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET] [EX s | PX ms |
/// EXAT s | PXAT ms | KEEPTTL]`: OK, or null if a condition was not met. With GET it is the old string or
/// null. A key that is absent meets IFNE and IFDNE.
///
/// Cost: O(n), n = bytes of the value, and of the old string for its digest. Errors: syntax, bad time;
/// WRONGTYPE, only with GET or a comparison; a digest of another length, if there is a string. Source: Redis
/// 8.4.
#[inline]
fn set(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if args.len() > 3 {
        return set_with_options(cx, args);
    }
    let key = args.at(1);
    cx.view.put_string(key, args.at(2), None);
    cx.view.changed(key, Class::String, "set");
    cx.out.ok();
    Ok(())
}

fn set_with_options(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, value) = (args.at(1), args.at(2));
    let options = Options::parse(args.from(3), Of::Set)?;
    let deadline = options.deadline(cx, "set")?;
    let mut rest = None;
    if options.get {
        rest = read(cx, key, |s, out, _| Ok(write(out, s)))?;
    }
    let met = if options.nx || options.xx {
        cx.view.exists(key) == options.xx
    } else if let Some(compare) = options.compare {
        let Cx { view, budget, .. } = cx;
        compare.is_met(view.string(key)?, budget)?
    } else {
        true
    };
    if met {
        let expire = if options.keep_ttl { cx.view.expire_ms(key).flatten() } else { deadline };
        put(cx, key, value, expire, deadline.is_some());
        note_set(cx, key, value, options.keep_ttl, deadline);
    }
    match (options.get, met) {
        (true, _) => {}
        (false, true) => cx.out.ok(),
        (false, false) => cx.out.null(),
    }
    if let Some(rest) = rest {
        cx.stream(rest)?;
    }
    Ok(())
}

/// Notes a SET whose conditions were met, in words that old servers know.
fn note_set(cx: &mut Cx<'_, '_>, key: &[u8], value: &[u8], keeps_ttl: bool, deadline: Option<u64>) {
    match deadline {
        Some(at) => cx.effect(&[b"SET", key, value, b"PXAT", itoa::Buffer::new().format(at).as_bytes()]),
        None if keeps_ttl => cx.effect(&[b"SET", key, value, b"KEEPTTL"]),
        None => cx.effect(&[b"SET", key, value]),
    }
}

/// Stores one string and reports the change. `expires`: the expiry is new.
fn put(cx: &mut Cx<'_, '_>, key: &[u8], value: &[u8], expire_ms: Option<u64>, expires: bool) {
    cx.view.put_string(key, value, expire_ms);
    cx.view.changed(key, Class::String, "set");
    if expires {
        cx.view.notify(key, Class::Generic, "expire");
    }
}

/// `SETNX key value`: 1 if it was set, 0 if the key exists.
///
/// Cost: O(n), n = bytes of the value. Errors: none.
fn setnx(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let absent = !cx.view.exists(key);
    if absent {
        put(cx, key, args.at(2), None, false);
    }
    cx.out.int(absent.into());
    Ok(())
}

/// `SETEX key seconds value`: OK.
///
/// Cost: O(n), n = bytes of the value. Errors: bad time.
fn setex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    set_for(cx, args, Unit::Ex, "setex")
}

/// `PSETEX key milliseconds value`: OK.
///
/// Cost: O(n), n = bytes of the value. Errors: bad time.
fn psetex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    set_for(cx, args, Unit::Px, "psetex")
}

fn set_for(cx: &mut Cx<'_, '_>, args: Args<'_>, unit: Unit, command: &str) -> Result<(), Error> {
    let (key, value) = (args.at(1), args.at(3));
    let at = unit.deadline(args.at(2), cx.view.now_ms(), command)?;
    put(cx, key, value, Some(at), true);
    cx.effect(&[b"SET", key, value, b"PXAT", itoa::Buffer::new().format(at).as_bytes()]);
    cx.out.ok();
    Ok(())
}

/// `MSET key value [key value ...]`: OK. The last value of a repeated key stays.
///
/// Cost: O(n), n = keys and bytes. Errors: arity, for a key without a value.
fn mset(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if args.len().is_multiple_of(2) {
        return Err(Error::Arity("mset".to_owned()));
    }
    cx.charge(args.len())?;
    for i in (1..args.len()).step_by(2) {
        cx.view.put_string(args.at(i), args.at(i + 1), None);
        cx.view.changed(args.at(i), Class::String, "set");
    }
    cx.out.ok();
    Ok(())
}

/// `MSETNX key value [key value ...]`: 1 if none of the keys existed and all were set, else 0.
///
/// Cost: O(n), n = keys and bytes. Errors: arity, for a key without a value.
fn msetnx(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if args.len().is_multiple_of(2) {
        return Err(Error::Arity("msetnx".to_owned()));
    }
    cx.charge(args.len())?;
    let mut keys = (1..args.len()).step_by(2).map(|i| args.at(i));
    if keys.any(|key| cx.view.exists(key)) {
        cx.out.int(0);
        return Ok(());
    }
    for i in (1..args.len()).step_by(2) {
        put(cx, args.at(i), args.at(i + 1), None, false);
    }
    cx.out.int(1);
    Ok(())
}

/// `MSETEX numkeys key value [key value ...] [NX | XX] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]`: 1 if all
/// were set, 0 if a key did not meet the condition.
///
/// Cost: O(n), n = keys and bytes. Errors: bad numkeys, syntax, bad time. Source: Valkey 9.1.
fn msetex(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let keys = options::int(args.at(1))
        .ok()
        .filter(|n| (1..=i64::from(i32::MAX)).contains(n))
        .ok_or(Error::new("ERR invalid numkeys value or out of range"))? as usize;
    let end = 2 + 2 * keys;
    if end > args.len() {
        return Err(Error::Syntax);
    }
    let options = Options::parse(args.from(end), Of::MSetEx)?;
    let deadline = options.deadline(cx, "msetex")?;
    cx.charge(args.len())?;
    let conditional = options.nx || options.xx;
    if conditional && (2..end).step_by(2).any(|i| cx.view.exists(args.at(i)) != options.xx) {
        cx.out.int(0);
        return Ok(());
    }
    for i in (2..end).step_by(2) {
        let key = args.at(i);
        let expire = if options.keep_ttl { cx.view.expire_ms(key).flatten() } else { deadline };
        put(cx, key, args.at(i + 1), expire, deadline.is_some());
    }
    let pairs = args.to(end).from(2);
    if deadline.is_some() || options.keep_ttl {
        for i in (0..pairs.len()).step_by(2) {
            note_set(cx, pairs.at(i), pairs.at(i + 1), options.keep_ttl, deadline);
        }
    } else {
        let words: Vec<&[u8]> = std::iter::once(&b"MSET"[..]).chain(pairs.iter()).collect();
        cx.effect(&words);
    }
    cx.out.int(1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    #[test]
    fn a_key_is_set_whatever_it_held_and_loses_its_expiry() {
        Db::both(|mut db| {
            db.check(&[
                ("set k v", "OK"),
                ("get k", "\"v\""),
                ("set k w EX 10", "OK"),
                ("set k x", "OK"),
                ("getex k PERSIST", "\"x\""),
                ("set k w EX 10 EX 20", "OK"),
                ("set k y KEEPTTL", "OK"),
            ]);
            assert_eq!(
                db.events(),
                ["new:k", "set:k", "set:k", "expire:k", "set:k", "set:k", "expire:k", "set:k"]
            );
            db.now_ms += 19_999;
            assert_eq!(db.line("get k"), "\"y\"");
            db.now_ms += 1;
            assert_eq!(db.line("get k"), "nil");
        });
    }

    #[test]
    fn conditions_decide_and_get_answers_the_old_value() {
        Db::both(|mut db| {
            db.check(&[
                ("set k v XX", "nil"),
                ("set k v XX GET", "nil"),
                ("set k v NX GET", "nil"),
                ("set k w NX", "nil"),
                ("set k w NX GET", "\"v\""),
                ("set k w XX GET", "\"v\""),
                ("set k x IFEQ v", "nil"),
                ("set k x IFEQ v GET", "\"w\""),
                ("set k x IFEQ w", "OK"),
                ("set k 13 IFEQ x GET", "\"x\""),
                ("set none 13 IFEQ x", "nil"),
                ("get k", "\"13\""),
            ]);
            assert_eq!(db.line("get none"), "nil");
        });
    }

    #[test]
    fn a_set_compares_the_string_that_is_there() {
        Db::both(|mut db| {
            let length = "-ERR must be exactly 16 hexadecimal characters";
            let kind = "-WRONGTYPE Operation against a key holding the wrong kind of value";
            db.check(&[
                ("set k hello IFNE x", "OK"),
                ("set k no ifne hello", "nil"),
                ("set k no IFNE hello GET", "\"hello\""),
                ("set k no IFDEQ 0000000000000000", "nil"),
                ("set k no IFDEQ zzzzzzzzzzzzzzzz GET", "\"hello\""),
                ("set k no IFDNE 9555e8555c62dcfd", "nil"),
                ("set k no IFDNE 9555E8555C62DCFD GET", "\"hello\""),
                ("set k no IFDEQ 123", length),
                ("set k no GET IFDNE 09555e8555c62dcfd", length),
                ("set k 123 IFDEQ 9555E8555c62dcfd EX 10", "OK"),
                ("set k hello GET IFDEQ 404a763b3f4c8c9a", "\"123\""),
                ("set k w IFDNE 404a763b3f4c8c9a", "OK"),
                ("set k v IFNE x GET", "\"w\""),
                ("get k", "\"v\""),
                ("set none 1 IFDEQ 123", "nil"),
                ("set none 1 IFDEQ 404a763b3f4c8c9a GET", "nil"),
                ("exists none", "0"),
                ("set new 1 IFDNE 123 GET", "nil"),
                ("set newer 1 IFDNE 123", "OK"),
                ("mget new newer", "[\"1\", \"1\"]"),
                ("rpush l a", "1"),
                ("set l v IFNE x", kind),
                ("set l v IFDNE 123", kind),
                ("set l v GET IFDEQ 123", kind),
                ("type l", "list"),
            ]);
        });
    }

    #[test]
    fn contradicting_options_and_bad_times_are_refused() {
        let mut db = Db::new();
        let syntax = "-ERR syntax error";
        let invalid = "-ERR invalid expire time in 'set' command";
        let integer = "-ERR value is not an integer or out of range";
        db.check(&[
            ("set k v NX XX", syntax),
            ("set k v EX 10 PX 10", syntax),
            ("set k v EX 10 KEEPTTL", syntax),
            ("set k v KEEPTTL EX abc", syntax),
            ("set k v PERSIST", syntax),
            ("set k v EX", syntax),
            ("set k v FOO", syntax),
            ("set k v IFEQ", syntax),
            ("set k v IFEQ a IFEQ a", syntax),
            ("set k v NX IFEQ a", syntax),
            ("set k v IFEQ a XX", syntax),
            ("set k v IFNE", syntax),
            ("set k v IFDEQ", syntax),
            ("set k v IFDNE", syntax),
            ("set k v IFEQ a IFNE b", syntax),
            ("set k v IFDEQ 123 IFDEQ 123", syntax),
            ("set k v XX IFDNE 123", syntax),
            ("set k v IFNE a NX", syntax),
            ("set k v EX abc", integer),
            ("set k v EX 0", invalid),
            ("set k v PX -1", invalid),
            ("set k v EX 9223372036854775807", invalid),
            ("set k v PX 9223372036854775807", invalid),
            ("set k v EXAT 9223372036854775807", invalid),
            ("setex k 0 v", "-ERR invalid expire time in 'setex' command"),
            ("psetex k a v", integer),
            ("set k", "-ERR wrong number of arguments for 'set' command"),
            ("set k v PXAT 9223372036854775807", "OK"),
            ("set k v KEEPTTL KEEPTTL", "OK"),
            ("set k v EXAT 1", "OK"),
            ("get k", "nil"),
        ]);
    }

    #[test]
    fn the_log_gets_absolute_times_and_no_conditions() {
        Db::both(|mut db| {
            db.now_ms = 1000;
            let mut noted = |line| {
                db.line(line);
                db.effect_lines()
            };
            assert_eq!(noted("set k v EX 1 NX GET"), ["SET k v PXAT 2000"]);
            assert_eq!(noted("set k w EX 1 NX"), [""; 0]);
            assert_eq!(noted("set k w PXAT 5000"), ["SET k w PXAT 5000"]);
            assert_eq!(noted("set k w GET KEEPTTL"), ["SET k w KEEPTTL"]);
            assert_eq!(noted("set k x IFEQ w"), ["SET k x"]);
            assert_eq!(noted("set k w IFEQ w"), [""; 0]);
            assert_eq!(noted("set k x IFNE w"), ["SET k x"]);
            assert_eq!(noted("set k y IFNE x PX 5"), [""; 0]);
            assert_eq!(noted("set k hello IFDNE 0000000000000000 PX 5"), ["SET k hello PXAT 1005"]);
            assert_eq!(noted("set k x IFDEQ 9555e8555c62dcfd KEEPTTL"), ["SET k x KEEPTTL"]);
            assert_eq!(noted("set k x IFDEQ 9555e8555c62dcfd"), [""; 0]);
            assert_eq!(noted("set k v XX"), ["SET k v"]);
            assert_eq!(noted("delifeq k w"), [""; 0]);
            assert_eq!(noted("delifeq k v"), ["DEL k"]);
            assert_eq!(noted("setex k 2 v"), ["SET k v PXAT 3000"]);
            assert_eq!(noted("psetex k 2 v"), ["SET k v PXAT 1002"]);
            assert_eq!(noted("msetex 2 a 1 b 2 XX EX 1"), [""; 0]);
            assert_eq!(noted("msetex 2 a 1 b 2 NX EX 1"), ["SET a 1 PXAT 2000", "SET b 2 PXAT 2000"]);
            assert_eq!(noted("msetex 2 a 1 b 2 KEEPTTL"), ["SET a 1 KEEPTTL", "SET b 2 KEEPTTL"]);
            assert_eq!(noted("msetex 2 a 1 b 2"), ["MSET a 1 b 2"]);
            assert_eq!(noted("getex k EX 1"), ["PEXPIREAT k 2000"]);
            assert_eq!(noted("getex k"), [""; 0]);
            assert_eq!(noted("getex k PERSIST"), ["PERSIST k"]);
            assert_eq!(noted("getex k PERSIST"), [""; 0]);
            assert_eq!(noted("getex k PXAT 1"), ["DEL k"]);
        });
    }

    #[test]
    fn many_keys_are_set_at_once_or_not_at_all() {
        Db::both(|mut db| {
            let numkeys = "-ERR invalid numkeys value or out of range";
            db.check(&[
                ("mset a 1 b", "-ERR wrong number of arguments for 'mset' command"),
                ("mset a 1 b 2 a 3", "OK"),
                ("mget a b c", "[\"3\", \"2\", nil]"),
                ("msetnx b 9 c 9", "0"),
                ("msetnx c 8 c 9", "1"),
                ("mget a b c", "[\"3\", \"2\", \"9\"]"),
                ("msetex 2 a 1 b 2 NX", "0"),
                ("msetex 2 a 1 d 2 XX", "0"),
                ("msetex 2 a 5 b 6 XX KEEPTTL", "1"),
                ("mget a b", "[\"5\", \"6\"]"),
                ("msetex 0 a 1", numkeys),
                ("msetex x a 1", numkeys),
                ("msetex 2147483648 a 1", numkeys),
                ("msetex 2147483647 a 1", "-ERR syntax error"),
                ("msetex 3 a 1 b 2", "-ERR syntax error"),
                ("msetex 1 a 1 b 2", "-ERR syntax error"),
                ("msetex 1 a 1 NX EX 0", "-ERR invalid expire time in 'msetex' command"),
                ("msetex 1 a 1 GET", "-ERR syntax error"),
            ]);
        });
    }
}
