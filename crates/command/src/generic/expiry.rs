//! EXPIRE and its kin, TTL and its kin, PERSIST.

use crate::options::{int, is};
use crate::table::*;
use crate::{Cx, Error};
use keyspace::Class;
use resp::Args;

const CHANGED: &[KeySpec] = &[KeySpec::one(1, RW_UPDATE)];
const ASKED: &[KeySpec] = &[KeySpec::one(1, RO_ACCESS)];
const NOW: &[&str] = &["nondeterministic_output"];

const fn setter(name: &'static str, run: Handler, since: &'static str, summary: &'static str) -> Command {
    Command::new(name, -3, Run::Write(run), WRITE | FAST, acl::KEYSPACE)
        .keys(CHANGED)
        .effect(Effect::Noted)
        .portable(206)
        .doc("generic", since, "O(1)", summary)
}

const fn getter(name: &'static str, run: Handler, since: &'static str, summary: &'static str) -> Command {
    Command::new(name, 2, Run::Read(run), READONLY | FAST, acl::KEYSPACE)
        .keys(ASKED)
        .doc("generic", since, "O(1)", summary)
}

pub(crate) static COMMANDS: &[Command] = &[
    setter(
        "expire",
        |cx, args| expire(cx, args, 1000, true),
        "1.0.0",
        "Lets a key expire in so many seconds.",
    ),
    setter(
        "pexpire",
        |cx, args| expire(cx, args, 1, true),
        "2.6.0",
        "Lets a key expire in so many milliseconds.",
    ),
    setter(
        "expireat",
        |cx, args| expire(cx, args, 1000, false),
        "1.2.0",
        "Lets a key expire at a Unix time.",
    ),
    setter(
        "pexpireat",
        |cx, args| expire(cx, args, 1, false),
        "2.6.0",
        "Lets a key expire at a Unix time in milliseconds.",
    ),
    Command::new("persist", 2, Run::Write(persist), WRITE | FAST, acl::KEYSPACE).keys(CHANGED).doc(
        "generic",
        "2.2.0",
        "O(1)",
        "Takes the expiry off a key.",
    ),
    getter("ttl", |cx, args| left(cx, args, true), "1.0.0", "Tells in how many seconds a key expires.")
        .tips(NOW),
    getter(
        "pttl",
        |cx, args| left(cx, args, false),
        "2.6.0",
        "Tells in how many milliseconds a key expires.",
    )
    .tips(NOW),
    getter("expiretime", |cx, args| when(cx, args, true), "7.0.0", "Tells at what Unix time a key expires."),
    getter(
        "pexpiretime",
        |cx, args| when(cx, args, false),
        "7.0.0",
        "Tells at what Unix time in milliseconds a key expires.",
    ),
];

#[derive(Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Conditions {
    fn parse(args: Args<'_>) -> Result<Conditions, Error> {
        let mut c = Conditions::default();
        for word in args.iter() {
            match word {
                word if is(word, "nx") => c.nx = true,
                word if is(word, "xx") => c.xx = true,
                word if is(word, "gt") => c.gt = true,
                word if is(word, "lt") => c.lt = true,
                word => {
                    return Err(format!("ERR Unsupported option {}", String::from_utf8_lossy(word)).into());
                }
            }
        }
        if c.nx && (c.xx || c.gt || c.lt) {
            return Err(Error::new("ERR NX and XX, GT or LT options at the same time are not compatible"));
        }
        if c.gt && c.lt {
            return Err(Error::new("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(c)
    }

    /// Whether a key that expires at `old` may expire at `new`. No expiry counts as never.
    fn allow(&self, old: Option<u64>, new: i64) -> bool {
        let later = old.is_some_and(|old| new > old as i64);
        let sooner = old.is_none_or(|old| new < old as i64);
        !(self.nx && old.is_some() || self.xx && old.is_none() || self.gt && !later || self.lt && !sooner)
    }
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`, and PEXPIRE, EXPIREAT, PEXPIREAT: 1 if the expiry was set, else
/// 0. A time in the past removes the key; in import mode only one before 1970 does.
///
/// Cost: O(1). Errors: unsupported options or options that exclude each other, not an integer, bad time.
fn expire(cx: &mut Cx<'_, '_>, args: Args<'_>, unit_ms: i64, relative: bool) -> Result<(), Error> {
    let key = args.at(1);
    let conditions = Conditions::parse(args.from(3))?;
    let amount = int(args.at(2))?;
    let base = if relative { cx.view.now_ms() as i64 } else { 0 };
    let at = amount
        .checked_mul(unit_ms)
        .and_then(|ms| ms.checked_add(base))
        .ok_or_else(|| Error::InvalidExpire(String::from_utf8_lossy(args.at(0)).to_lowercase()))?;
    let Some(old) = cx.view.expire_ms(key) else {
        cx.out.int(0);
        return Ok(());
    };
    if !conditions.allow(old, at) {
        cx.out.int(0);
        return Ok(());
    }
    if at < 0 && !cx.caller.in_replay || cx.is_past(at.max(0) as u64) {
        cx.view.remove(key);
        cx.view.changed(key, Class::Generic, "del");
        cx.effect(&[b"DEL", key]);
    } else {
        // To a view that shows expired keys, 0 is the time that has come.
        cx.view.set_expire(key, Some(at.max(1) as u64));
        cx.view.changed(key, Class::Generic, "expire");
        cx.effect(&[b"PEXPIREAT", key, at.to_string().as_bytes()]);
    }
    cx.out.int(1);
    Ok(())
}

/// `PERSIST key`: 1 if the key lost its expiry, else 0.
///
/// Cost: O(1). Errors: none.
fn persist(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let had = matches!(cx.view.expire_ms(key), Some(Some(_)));
    if had {
        cx.view.set_expire(key, None);
        cx.view.changed(key, Class::Generic, "persist");
    }
    cx.out.int(had.into());
    Ok(())
}

/// `TTL key`, `PTTL key`: the time left; -2 for no such key, -1 for no expiry. A key kept beyond its time has
/// 0 left.
///
/// Cost: O(1). Errors: none.
fn left(cx: &mut Cx<'_, '_>, args: Args<'_>, seconds: bool) -> Result<(), Error> {
    cx.view.set_quiet(true);
    let now = cx.view.now_ms();
    answer(cx, args, seconds, |at| at.saturating_sub(now))
}

/// `EXPIRETIME key`, `PEXPIRETIME key`: the Unix time of expiry; -2 for no such key, -1 for no expiry.
///
/// Cost: O(1). Errors: none.
fn when(cx: &mut Cx<'_, '_>, args: Args<'_>, seconds: bool) -> Result<(), Error> {
    cx.view.set_quiet(true);
    answer(cx, args, seconds, |at| at)
}

fn answer(cx: &mut Cx<'_, '_>, args: Args<'_>, seconds: bool, of: impl Fn(u64) -> u64) -> Result<(), Error> {
    let expire = cx.view.expire_ms(args.at(1));
    let grace_ms = cx.view.grace_ms();
    cx.view.count_lookup(args.at(1), expire.is_some());
    let good_until = expire.map(|at| at.map(|at| of(at.saturating_sub(grace_ms))));
    cx.out.int(match good_until {
        None => -2,
        Some(None) => -1,
        Some(Some(ms)) if seconds => ((ms + 500) / 1000) as i64,
        Some(Some(ms)) => ms as i64,
    });
    Ok(())
}
