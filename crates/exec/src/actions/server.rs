//! The server's clock, and commands about replicas, modules and a cluster, none of which exist.

use super::answer::help;
use crate::act::{Act, PLAIN, Row};
use crate::session::flag;
use command::Flow;
use command::options::{int, is, timeout_whole_ms};
use command::{Command, Error, registry};
use observe::info::EVENKEEL_VERSION;
use resp::{Args, Reply};

pub(super) const ACTIONS: &[Row] = &[
    Row("time", time, PLAIN),
    Row("lolwut", lolwut, PLAIN),
    Row("replicaof", replicaof, PLAIN),
    Row("slaveof", replicaof, PLAIN),
    Row("role", role, PLAIN),
    Row("wait", wait, PLAIN),
    Row("waitaof", waitaof, PLAIN),
    Row("module|list", module_list, PLAIN),
    Row("module|load", no_modules, PLAIN),
    Row("module|loadex", no_modules, PLAIN),
    Row("module|unload", no_modules, PLAIN),
    Row("module|help", |act, _| help(act, "MODULE", MODULE_HELP), PLAIN),
    Row("asking", no_cluster, PLAIN),
    Row("readonly", no_cluster, PLAIN),
    Row("readwrite", no_cluster, PLAIN),
    Row("cluster|addslots", no_cluster, PLAIN),
    Row("cluster|addslotsrange", no_cluster, PLAIN),
    Row("cluster|bumpepoch", no_cluster, PLAIN),
    Row("cluster|count-failure-reports", no_cluster, PLAIN),
    Row("cluster|countkeysinslot", no_cluster, PLAIN),
    Row("cluster|delslots", no_cluster, PLAIN),
    Row("cluster|delslotsrange", no_cluster, PLAIN),
    Row("cluster|failover", no_cluster, PLAIN),
    Row("cluster|flushslots", no_cluster, PLAIN),
    Row("cluster|forget", no_cluster, PLAIN),
    Row("cluster|getkeysinslot", no_cluster, PLAIN),
    Row("cluster|info", no_cluster, PLAIN),
    Row("cluster|keyslot", no_cluster, PLAIN),
    Row("cluster|links", no_cluster, PLAIN),
    Row("cluster|meet", no_cluster, PLAIN),
    Row("cluster|myid", no_cluster, PLAIN),
    Row("cluster|myshardid", no_cluster, PLAIN),
    Row("cluster|nodes", no_cluster, PLAIN),
    Row("cluster|replicas", no_cluster, PLAIN),
    Row("cluster|replicate", no_cluster, PLAIN),
    Row("cluster|reset", no_cluster, PLAIN),
    Row("cluster|saveconfig", no_cluster, PLAIN),
    Row("cluster|set-config-epoch", no_cluster, PLAIN),
    Row("cluster|setslot", no_cluster, PLAIN),
    Row("cluster|shards", no_cluster, PLAIN),
    Row("cluster|slaves", no_cluster, PLAIN),
    Row("cluster|slots", no_cluster, PLAIN),
    Row("cluster|help", |act, _| help(act, "CLUSTER", CLUSTER_HELP), PLAIN),
];

const MODULE_HELP: &[&str] = &["LIST", "    The modules in use: there are none."];

const CLUSTER_HELP: &[&str] = &["(all others)", "    Refused: this server is not part of a cluster."];

/// Refuses the subcommands of CLUSTER, and READONLY and its like.
fn no_cluster(_: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    Err(Error::new("ERR This instance has cluster support disabled"))
}

fn time(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    let us = stdx::clock::wall_ns() / 1000;
    act.out.array(2);
    act.out.bulk_int((us / 1_000_000) as i64);
    act.out.bulk_int((us % 1_000_000) as i64);
    Ok(Flow::Done)
}

/// A ship on an even keel.
const SHIP: &str = r"
                 |    |    |
                )_)  )_)  )_)
               )___))___))___)\
              )____)____)_____)\\
            _____|____|____|____\\\__
   ---------\                      /---------
     ~~~~ ~~~\____________________/~~~ ~~~~
        ~~~~      ~~~      ~~~~      ~~~
  ------+------+------+--0--+------+------+------
               on an even keel
";

/// `LOLWUT [VERSION n] ...`: the same ship for every version.
fn lolwut(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len() >= 3 && is(args.at(1), "version") {
        int(args.at(2))?;
    }
    act.out.verbatim("txt", format!("{SHIP}\nEvenkeel ver. {EVENKEEL_VERSION}\n").as_bytes());
    Ok(Flow::Done)
}

/// `REPLICAOF NO ONE` succeeds: the server is no replica. Errors: any other primary.
fn replicaof(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if !is(args.at(1), "no") || !is(args.at(2), "one") {
        return Err(Error::new("ERR REPLICAOF does not exist in Evenkeel yet: there is no replication"));
    }
    act.out.ok();
    Ok(Flow::Done)
}

fn role(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.out.array(3);
    act.out.bulk(b"master");
    act.out.int(0);
    act.out.array(0);
    Ok(Flow::Done)
}

/// `WAIT numreplicas timeout`: there are no replicas, so a client that wants some waits for the whole
/// time-out.
fn wait(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let wanted = int(args.at(1))?;
    let ms = timeout_whole_ms(args.at(2), act.local.log.now_ms)?;
    let mut answer = Reply::new(act.out.resp3());
    answer.int(0);
    sleep(act, "wait", (wanted > 0).then_some(ms), answer)
}

/// `WAITAOF numlocal numreplicas timeout`.
fn waitaof(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    // Whatever ends this call ends its wait: the next one waits for what is written by then.
    let waiting = act.session.half.aof_wait.take();
    let local = int(args.at(1))?;
    if !(0..=1).contains(&local) {
        return Err(Error::new("ERR value is out of range, value must between 0 and 1"));
    }
    let replicas = int(args.at(2))?;
    if replicas < 0 {
        return Err(Error::new("ERR value is out of range, must be positive"));
    }
    let ms = timeout_whole_ms(args.at(3), act.local.log.now_ms)?;
    if local > 0 && !act.server.config.live.appendonly.get() {
        return Err(Error::new(
            "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
        ));
    }
    let synced = wait_for_log(act, waiting, local > 0, replicas > 0, ms);
    let Ok(is_synced) = synced else { return Ok(crate::held::retry_later(act.session, act.local, LOOK_MS)) };
    let mut answer = Reply::new(act.out.resp3());
    answer.array(2);
    answer.int(is_synced.into());
    answer.int(0);
    sleep(act, "waitaof", (replicas > 0).then_some(ms), answer)
}

/// Milliseconds between two checks of WAITAOF.
const LOOK_MS: u64 = 2;

/// Whether everything before a WAITAOF is durable here. `waiting`: the LSN it waits for, and since when. Err: the client
/// goes on waiting.
fn wait_for_log(
    act: &mut Act<'_, '_>,
    waiting: Option<(keyspace::Lsn, u64)>,
    wanted: bool,
    replicas: bool,
    ms: u64,
) -> Result<bool, ()> {
    let durability = &act.server.durability;
    if !durability.has_files() {
        return Ok(false);
    }
    let (last, now_ms) = (act.server.keyspace.last_lsn(), act.local.log.now_ms);
    let (lsn, since_ms) = waiting.unwrap_or((last, now_ms));
    let is_synced = durability.synced(wanted).is_some_and(|synced| synced >= lsn);
    let is_late = ms > 0 && now_ms >= since_ms + ms;
    if wanted && !is_synced && !is_late && !replicas && !act.in_multi && !act.in_script {
        act.session.half.aof_wait = Some((lsn, since_ms));
        return Err(());
    }
    durability.synced(false);
    Ok(is_synced)
}

/// Parks only this client, and then gives it `answer`. None: at once; Some(0): for ever. In a transaction, at
/// once: it cannot wait.
pub(super) fn sleep(
    act: &mut Act<'_, '_>,
    name: &str,
    ms: Option<u64>,
    answer: Reply,
) -> Result<Flow, Error> {
    let command: Option<&'static Command> = registry::row(name);
    let (Some(ms), Some(command), false) = (ms, command, act.in_multi || act.in_script) else {
        act.out.encoded(answer.as_bytes());
        return Ok(Flow::Done);
    };
    let timeout_ms = (ms > 0).then_some(ms);
    stdx::panics::changes();
    act.server.park.sleep(act.local.log.id, act.session.id, command, timeout_ms, answer);
    act.session.set_flag(flag::BLOCKED, true);
    Ok(Flow::Parked(timeout_ms))
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
