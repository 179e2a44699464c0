//! DBSIZE, FLUSHDB, FLUSHALL, SWAPDB: databases as a whole.

use crate::facts;
use crate::table::{Command, FAST, READONLY, Run, WRITE, acl};
use crate::{Cx, Error, options};
use resp::Args;

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("dbsize", 1, Run::Whole(dbsize), READONLY | FAST, acl::KEYSPACE)
        .tips(&["request_policy:all_shards", "response_policy:agg_sum"])
        .doc("server", "1.0.0", "O(1)", "How many keys the current database holds."),
    Command::new("flushdb", -1, Run::Whole(flushdb), WRITE, acl::DANGEROUS | acl::KEYSPACE)
        .portable(602)
        .facts(facts::FLUSHES)
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .doc("server", "1.0.0", "O(1); old values are freed elsewhere.", "Empties the current database."),
    Command::new("flushall", -1, Run::Whole(flushall), WRITE, acl::DANGEROUS | acl::KEYSPACE)
        .portable(602)
        .facts(facts::FLUSHES)
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .doc(
            "server",
            "1.0.0",
            "O(1) per database; old values are freed elsewhere.",
            "Empties all databases.",
        ),
    Command::new("swapdb", 3, Run::Whole(swapdb), WRITE | FAST, acl::DANGEROUS | acl::KEYSPACE)
        .facts(facts::FLUSHES | facts::SWAPS)
        .doc("server", "4.0.0", "O(1)", "Exchanges the contents of two databases."),
];

/// `DBSIZE`: the number of keys, with expired ones that are not yet removed.
///
/// Cost: O(1). Errors: none.
fn dbsize(cx: &mut Cx<'_, '_>, _: Args<'_>) -> Result<(), Error> {
    let len = cx.view.len();
    cx.out.int(len as i64);
    Ok(())
}

/// `FLUSHDB [ASYNC | SYNC]`: OK. The memory is freed elsewhere in both modes.
///
/// Cost: O(shards). Errors: syntax.
fn flushdb(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    check_mode(args)?;
    let db = cx.view.db();
    cx.view.flush(Some(db));
    cx.out.ok();
    Ok(())
}

/// `FLUSHALL [ASYNC | SYNC]`: OK. The memory is freed elsewhere in both modes.
///
/// Cost: O(shards · databases). Errors: syntax.
fn flushall(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    check_mode(args)?;
    cx.view.flush(None);
    cx.out.ok();
    Ok(())
}

/// Accepts both modes, which do the same: no client waits for memory to be freed. Errors: syntax.
fn check_mode(args: Args<'_>) -> Result<(), Error> {
    match args.get(1) {
        None => Ok(()),
        Some(mode) if args.len() == 2 && (options::is(mode, "async") || options::is(mode, "sync")) => Ok(()),
        Some(_) => Err(Error::Syntax),
    }
}

/// `SWAPDB index1 index2`: OK.
///
/// Cost: O(shards). Errors: not a number, out of range.
fn swapdb(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let first = index(args.at(1), "ERR invalid first DB index")?;
    let second = index(args.at(2), "ERR invalid second DB index")?;
    let databases = cx.view.databases() as i64;
    if [first, second].iter().any(|db| !(0..databases).contains(db)) {
        return Err(Error::new("ERR DB index is out of range"));
    }
    cx.view.swap(first as usize, second as usize);
    cx.out.ok();
    Ok(())
}

/// Reads a database's number. Errors: `error`, if it is not a 32-bit number.
fn index(arg: &[u8], error: &'static str) -> Result<i64, Error> {
    let number = stdx::num::parse_i64(arg).filter(|n| i32::try_from(*n).is_ok());
    number.ok_or(Error::new(error))
}
