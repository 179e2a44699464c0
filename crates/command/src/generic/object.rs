//! OBJECT and MEMORY USAGE: facts about a value besides its contents.

use crate::options::{int, is};
use crate::table::*;
use crate::{Cx, Error};
use keyspace::View;
use resp::Args;
use stdx::points::{self, Point};
use value::{Enc, ValueRef};

const KEY: &[KeySpec] = &[KeySpec::one(2, RO)];
const VARIES: &[&str] = &["nondeterministic_output"];

const fn sub(name: &'static str, run: Handler, since: &'static str, summary: &'static str) -> Command {
    Command::new(name, 3, Run::Read(run), READONLY, acl::KEYSPACE)
        .keys(KEY)
        .tips(VARIES)
        .doc("generic", since, "O(1)", summary)
}

pub(crate) static COMMANDS: &[Command] = &[Command::new("object", -2, Run::Container, 0, 0)
    .doc("generic", "2.2.3", "Depends on subcommand.", "Holds the commands that look at how a value is kept.")
    .subs(&[
        sub(
            "object|encoding",
            encoding,
            "2.2.3",
            "Names how the value is encoded, in the words clients know.",
        ),
        sub("object|freq", freq, "4.0.0", "Tells how often a key is used; needs an LFU policy."),
        sub("object|idletime", idletime, "2.2.3", "Tells for how many seconds a key was not used."),
        sub("object|refcount", refcount, "2.2.3", "Tells how many references a value has: always one."),
        Command::new("object|help", 2, Run::Read(help), LOADING | STALE, acl::KEYSPACE).doc(
            "generic",
            "6.2.0",
            "O(1)",
            "Lists the subcommands.",
        ),
    ])];

/// `MEMORY USAGE`: a row of the container `memory`.
pub(crate) const MEMORY_USAGE: Command = Command::new("memory|usage", -3, Run::Read(usage), READONLY, 0)
    .keys(KEY)
    .doc("server", "4.0.0", "O(1)", "Tells how many bytes a key and its value take.");

/// Redis's name for the encoding of a value.
pub(crate) fn encoding_of(view: &View<'_>, key: &[u8]) -> Option<Enc> {
    Some(match view.value(key)? {
        ValueRef::Str(_) if view.is_raw(key) => Enc::Raw,
        ValueRef::Str(s) => s.encoding(),
        ValueRef::List(v) => v.encoding(),
        ValueRef::Hash(v) => v.encoding(),
        ValueRef::Set(v) => v.encoding(),
        ValueRef::ZSet(v) => v.encoding(),
        ValueRef::Stream(v) => v.encoding(),
        // Redis gives this for every module's value.
        ValueRef::Roaring(_) | ValueRef::Roaring64(_) => Enc::Raw,
    })
}

/// `OBJECT ENCODING key`: the encoding, or null.
///
/// Cost: O(1). Errors: none.
fn encoding(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    cx.view.set_quiet(true);
    let name = encoding_of(cx.view, args.at(2)).map(Enc::name);
    cx.out.bulk_or_null(name.map(str::as_bytes));
    Ok(())
}

/// OBJECT FREQ of a new key, and its growth for each further count of the 14. Together they fill Redis's
/// range.
pub(super) const FREQ_NEW: i64 = 5;
pub(super) const FREQ_STEP: i64 = 17;

/// `OBJECT FREQ key`: a number in steps of 17, or null. It counts the recent periods in which the key was
/// used, not the uses.
///
/// Cost: O(1). Errors: no LFU policy.
fn freq(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    cx.view.set_quiet(true);
    match cx.view.freq(args.at(2)) {
        None => cx.out.null(),
        Some(_) if !cx.view.tells_freq() => {
            return Err(Error::new(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
                 switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
        Some(freq) => cx.out.int(i64::from(freq) * FREQ_STEP + FREQ_NEW),
    }
    Ok(())
}

/// `OBJECT IDLETIME key`: seconds since the last use, in steps of 16 and up to 70 minutes, or null.
///
/// Cost: O(1). Errors: an LFU policy.
fn idletime(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    cx.view.set_quiet(true);
    match cx.view.idle_s(args.at(2)) {
        None => cx.out.null(),
        Some(_) if cx.view.tells_freq() => {
            return Err(Error::new(
                "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between \
                 policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
        Some(seconds) => cx.out.int(seconds as i64),
    }
    Ok(())
}

/// `OBJECT REFCOUNT key`: 1, or null.
///
/// Cost: O(1). Errors: none.
fn refcount(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    cx.view.set_quiet(true);
    if cx.view.exists(args.at(2)) {
        cx.out.int(1)
    } else {
        cx.out.null()
    }
    Ok(())
}

/// `OBJECT HELP`: the subcommands.
///
/// Cost: O(1). Errors: none.
fn help(cx: &mut Cx<'_, '_>, _: Args<'_>) -> Result<(), Error> {
    let lines = [
        "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "ENCODING <key>",
        "    How the value is encoded, in the words clients know.",
        "FREQ <key>",
        "    How often the key is used.",
        "IDLETIME <key>",
        "    For how many seconds the key was not used.",
        "REFCOUNT <key>",
        "    References to the value.",
        "HELP",
        "    These lines.",
    ];
    cx.out.array(lines.len());
    lines.iter().for_each(|line| cx.out.simple(line));
    Ok(())
}

/// `MEMORY USAGE key [SAMPLES count]`: bytes, or null. The number is exact where Redis estimates. Memory
/// shared by several values counts for each.
///
/// Cost: O(1). Errors: syntax, SAMPLES not an integer.
fn usage(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let mut i = 3;
    while i < args.len() {
        if !is(args.at(i), "samples") || i + 1 >= args.len() {
            return Err(Error::Syntax);
        }
        if int(args.at(i + 1))? < 0 {
            return Err(Error::Syntax);
        }
        i += 2;
    }
    cx.view.set_quiet(true);
    points::trip(Point::Read);
    match usage_bytes(cx.view, args.at(2)) {
        Some(bytes) => cx.out.int(bytes as i64),
        None => cx.out.null(),
    }
    Ok(())
}

/// Bytes of a key and its value. None: there is no such key. O(1)
pub(crate) fn usage_bytes(view: &View<'_>, key: &[u8]) -> Option<u64> {
    let inside = match view.value(key)? {
        // A short string is in the entry.
        ValueRef::Str(s) if s.len() < 300 => 0,
        ValueRef::Str(s) => s.to_str().mem_bytes(),
        ValueRef::List(v) => v.mem_bytes(),
        ValueRef::Hash(v) => v.mem_bytes(),
        ValueRef::Set(v) => v.mem_bytes(),
        ValueRef::ZSet(v) => v.mem_bytes(),
        ValueRef::Stream(v) => v.mem_bytes(),
        ValueRef::Roaring(v) | ValueRef::Roaring64(v) => v.mem_bytes(),
    };
    // A slot of the table and its share of the empty ones: about 11 bytes.
    Some((view.entry_bytes(key) + 11 + inside) as u64)
}
