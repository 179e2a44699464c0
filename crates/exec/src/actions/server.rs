//! The server's clock, and commands about modules, of which there are none.

use super::answer::help;
use crate::act::{Act, PLAIN, Row};
use command::Error;
use command::Flow;
use command::helps;
use command::options::{int, is};
use observe::info::EVENKEEL_VERSION;
use resp::{Args, Reply};

pub(super) const ACTIONS: &[Row] = &[
    Row("time", time, PLAIN),
    Row("lolwut", lolwut, PLAIN),
    Row("module|list", module_list, PLAIN),
    Row("module|load", no_modules, PLAIN),
    Row("module|loadex", no_modules, PLAIN),
    Row("module|unload", no_modules, PLAIN),
    Row("module|help", |act, _| help(act, "MODULE", helps::MODULE), PLAIN),
];

fn time(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let us = stdx::clock::wall_ns() / 1000;
    act.out.array(2);
    act.out.bulk_int((us / 1_000_000) as i64);
    act.out.bulk_int((us % 1_000_000) as i64);
    Ok(Flow::Done)
}

/// `LOLWUT [VERSION n] ...`: the same ship for every version.
fn lolwut(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len() >= 3 && is(args.at(1), "version") {
        int(args.at(2))?;
    }
    act.out.verbatim("txt", format!("{}\nEvenkeel ver. {EVENKEEL_VERSION}\n", helps::SHIP).as_bytes());
    Ok(Flow::Done)
}

/// Parks only this client, and then gives it `answer`. None: at once; Some(0): for ever. In a transaction, at
/// once: it cannot wait.
pub(super) fn sleep(
    act: &mut Act<'_, '_>,
    name: &'static str,
    ms: Option<u64>,
    answer: Reply,
) -> Result<Flow, Error> {
    let (Some(ms), false) = (ms, act.in_multi || act.in_script) else {
        act.out.encoded(answer.as_bytes());
        return Ok(Flow::Done);
    };
    let timeout_ms = (ms > 0).then_some(ms);
    Ok(crate::blocking::sleep(act.server, act.local, act.session, name, timeout_ms, answer))
}

fn module_list(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.array(0);
    Ok(Flow::Done)
}

/// `MODULE LOAD | LOADEX | UNLOAD`: refused, whatever `enable-module-command` says. O(1)
fn no_modules(_: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let name = args.at(1).escape_ascii().to_string().to_uppercase();
    Err(format!("ERR MODULE {name} is not possible: Evenkeel loads no modules").into())
}
