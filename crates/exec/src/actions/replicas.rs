//! Servers that follow this one: PSYNC, SYNC and REPLCONF; WAIT and WAITAOF; ROLE.

use super::persistence;
use crate::act::{Act, PLAIN, Row};
use crate::held;
use crate::session::flag;
use command::options::{int, is, timeout_whole_ms};
use command::{Error, Flow};
use keyspace::Lsn;
use observe::waits::Lacking;
use resp::Args;
use role::replicas::{Asked, Waits};
use std::sync::atomic::Ordering;

pub(super) const ACTIONS: &[Row] = &[
    Row("psync", psync, PLAIN),
    Row("sync", sync, PLAIN),
    Row("replconf", replconf, PLAIN),
    Row("wait", wait, PLAIN),
    Row("waitaof", waitaof, PLAIN),
];

/// Bytes of an address that REPLCONF may name.
const ADDRESS_MAX: usize = 255;
/// Milliseconds until a command that waits for replicas looks again, if none of them says anything.
const LOOK_MS: u64 = 100;
/// The same for one that waits for the log here.
const LOOK_AT_LOG_MS: u64 = 2;

/// `PSYNC id offset`: the client follows from now on. The answer, a snapshot and the stream come from its feed.
///
/// Cost: O(1); a snapshot takes O(keys) in slices. Errors: the offset is no number; a command of before is not
/// answered yet; FAILOVER is said to a primary, or to a replica with another history.
fn psync(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let offset = stdx::num::parse_i64(args.at(2)).ok_or(Error::NotInteger)?;
    if args.len() > 3 && is(args.at(3), "failover") {
        match takes_over(act, args.at(1))? {
            true => {}
            false => return Ok(held::retry_later(act.session, act.local, 1)),
        }
    }
    follow(act, Some((args.at(1).to_vec(), offset)))
}

/// Whether this server leads by now, as its primary has told it to. Errors: it is none of its replicas.
fn takes_over(act: &mut Act<'_, '_>, id: &[u8]) -> Result<bool, Error> {
    let role = &act.server.role;
    let begun = std::mem::take(&mut act.session.half.takes_over);
    if !role.follows() {
        return if begun {
            Ok(true)
        } else {
            Err(Error::new("ERR PSYNC FAILOVER can't be sent to a master."))
        };
    }
    if !begun {
        let own = role.figures().and_then(|following| following.id).unwrap_or_default();
        if !own.as_bytes().eq_ignore_ascii_case(id) {
            return Err(Error::new("ERR PSYNC FAILOVER replid must match my replid."));
        }
        stdx::panics::changes();
        log::info!("the primary at {} lets this server lead", act.session.info.address);
        role.wish(None, || ()).map_err(Error::new)?;
        act.server.config.note("replicaof", b"");
    }
    act.session.half.takes_over = true;
    Ok(false)
}

/// `SYNC`: behind `REPLCONF rdb-only 1` the file of a snapshot alone; else the client follows, as by PSYNC, but
/// says nothing afterwards.
///
/// Cost: O(keys) in slices. Errors: as of PSYNC; why the snapshot failed.
fn sync(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if act.session.copy_wish.file_alone {
        return persistence::send_file(act, args);
    }
    follow(act, None)
}

fn follow(act: &mut Act<'_, '_>, goes_on: Option<(Vec<u8>, i64)>) -> Result<Flow, Error> {
    if act.session.feed.is_some() {
        // As in Redis, a second request changes nothing.
        return Ok(Flow::Done);
    }
    if act.server.cluster.get().is_some_and(|member| !member.may_answer()) {
        // It may have come back with less than its replicas have.
        return Err(Error::new("NOMASTERLINK this node does not lead its shard"));
    }
    if act.server.role.follows() && !act.server.role.is_linked() {
        return Err(Error::new("NOMASTERLINK Can't SYNC while not connected with my master"));
    }
    if !act.out.is_empty() || act.session.multi.is_some() {
        return Err(Error::new("ERR SYNC and PSYNC are invalid with pending output"));
    }
    let Some(replicas) = act.server.replicas.get() else {
        return Err(Error::new("NOMASTERLINK this server keeps no stream for replicas"));
    };
    let said = act.session.said.take().map(|said| *said).unwrap_or_default();
    let own = act.session.info.address.rsplit_once(':').map_or("", |(host, _)| host);
    let own = own.trim_start_matches('[').trim_end_matches(']');
    let is_mute = goes_on.is_none() && said.port == 0;
    let asked = Asked {
        client: act.session.id,
        loop_id: act.local.log.id,
        address: said.address.unwrap_or_else(|| own.to_owned()),
        port: said.port,
        eof: said.eof && goes_on.is_some(),
        is_ours: said.is_ours,
        version: said.version,
        goes_on,
        is_mute,
    };
    act.session.feed = Some(replicas.follow(asked));
    act.session.set_flag(flag::REPLICA, true);
    Ok(Flow::Done)
}

/// `REPLCONF option value ..`: what a replica says of itself before PSYNC, and of its place afterwards.
///
/// - `listening-port`, `ip-address`, `capa`, `version`: for PSYNC. Unknown words of `capa` are taken.
/// - `ack offset [fack offset]`, `getack`: have no answer.
/// - `rdb-only 0|1`, `rdb-filter-only names`: it wants the file alone.
///
/// Cost: O(options), and O(replicas) for `ack`. Errors: as Redis; the options before a wrong one hold.
fn replconf(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    if args.len().is_multiple_of(2) {
        return Err(Error::Syntax);
    }
    let mut heard = (None, None);
    for at in (1..args.len()).step_by(2) {
        let (option, value) = (args.at(at), args.at(at + 1));
        let number = || stdx::num::parse_i64(value).ok_or(Error::NotInteger);
        match () {
            () if is(option, "ack") => heard.0 = Some(number()?.max(0) as u64),
            () if is(option, "fack") => heard.1 = Some(number()?.max(0) as u64),
            () if is(option, "getack") => return Ok(Flow::Done),
            () => say(act, option, value)?,
        }
    }
    if heard != (None, None) {
        // As in Redis: from a client that is no replica it means nothing.
        if let (Some(replicas), true) = (act.server.replicas.get(), act.session.feed.is_some()) {
            replicas.heard(act.session.id, heard.0, heard.1);
        }
        return Ok(Flow::Done);
    }
    act.out.ok();
    Ok(Flow::Done)
}

/// Notes one option of REPLCONF.
fn say(act: &mut Act<'_, '_>, option: &[u8], value: &[u8]) -> Result<(), Error> {
    if persistence::wish(act, option, value)? {
        return Ok(());
    }
    if is(option, "evenkeel-peer") {
        act.session.settings.is_peer = act.server.cluster.get().is_some();
        return Ok(());
    }
    let said = act.session.said.get_or_insert_default();
    match () {
        () if is(option, "listening-port") => {
            let port = stdx::num::parse_i64(value).ok_or(Error::NotInteger)?;
            said.port = u16::try_from(port).unwrap_or_default();
        }
        () if is(option, "ip-address") => {
            if value.len() > ADDRESS_MAX {
                return Err("ERR REPLCONF ip-address provided by replica instance is too long"
                    .to_owned()
                    .into());
            }
            // It stands in INFO's lines.
            let is_plain = value.iter().all(|b| b.is_ascii_graphic() && !matches!(b, b',' | b'='));
            said.address = is_plain.then(|| String::from_utf8_lossy(value).into_owned());
        }
        () if is(option, "capa") => {
            said.eof |= is(value, "eof");
            said.is_ours |= is(value, "evenkeel");
        }
        () if is(option, "version") => {
            let major = value.split(|b| *b == b'.').next().and_then(stdx::num::parse_i64);
            said.version = major.and_then(|major| u32::try_from(major).ok()).unwrap_or_default();
        }
        () if is(option, "rdb-no-compress") => {}
        () => {
            let option = String::from_utf8_lossy(option);
            return Err(format!("ERR Unrecognized REPLCONF option: {option}").into());
        }
    }
    Ok(())
}

/// Longest wait for the stream, in milliseconds.
const STREAM_MS: u64 = 100;

/// Holds a client that asks for offsets until they include all that was written before it asked, as in Redis.
/// None: they do, or it is asked in a transaction. O(log turns)
pub(super) fn wait_for_offsets(act: &mut Act<'_, '_>) -> Option<Flow> {
    let waits = act.session.half.counted.take();
    let replicas = act.server.replicas.get()?;
    if act.in_multi || act.in_script || act.server.role.follows() {
        return None;
    }
    let now_ms = act.local.log.now_ms;
    let (lsn, until_ms) = waits.unwrap_or_else(|| (act.server.keyspace.last_lsn(), now_ms + STREAM_MS));
    if replicas.has_counted(lsn) || now_ms >= until_ms {
        return None;
    }
    act.session.half.counted = Some((lsn, until_ms));
    Some(held::retry_later(act.session, act.local, 1))
}

/// `ROLE` of a primary: `master`, the offset, and address, port and offset of each replica. Cost: O(replicas).
pub(super) fn primary_role(act: &mut Act<'_, '_>) -> Result<Flow, Error> {
    let figures = act.server.replicas.get().map(|replicas| replicas.figures()).unwrap_or_default();
    act.out.array(3);
    act.out.bulk(b"master");
    act.out.int(figures.offset as i64);
    let online: Vec<_> = figures.replicas.iter().filter(|replica| replica.state == "online").collect();
    act.out.array(online.len());
    for replica in online {
        act.out.array(3);
        act.out.bulk(replica.address.as_bytes());
        act.out.bulk(replica.port.to_string().as_bytes());
        act.out.bulk(replica.offset.to_string().as_bytes());
    }
    Ok(Flow::Done)
}

/// `WAIT numreplicas timeout`: waits until so many replicas have this client's last write, and answers how many
/// do. In a transaction or a script it answers at once.
///
/// Cost: O(replicas) each time one of them says what it has. Errors: a number is none.
fn wait(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let waits = act.session.half.waits.take();
    if act.server.role.follows() {
        if waits.is_some() {
            return Err(Error::new(role::replicas::UNBLOCKED));
        }
        return Err(Error::new(
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is \
             configured to be writable (which is not the default) writes to replicas are just local and are not \
             propagated.",
        ));
    }
    let wanted = int(args.at(1))?;
    let ms = timeout_whole_ms(args.at(2), act.local.log.now_ms)?;
    let lsn = waits.as_ref().map_or(act.session.wrote, |waits| waits.lsn);
    let have = reached(act, lsn, false);
    let ended = waits.as_ref().map_or(Ok(false), |waits| waits.is_ended())?;
    if ended || have as i64 >= wanted || !waits_on(act, waits, lsn, ms, true) {
        act.out.int(have as i64);
        return Ok(Flow::Done);
    }
    note_lacking(act, lsn, wanted, false);
    Ok(held::retry_later(act.session, act.local, left_ms(act, ms, LOOK_MS)))
}

/// `WAITAOF numlocal numreplicas timeout`: waits until this client's last write is durable here and at so many
/// replicas. Answers both counts.
///
/// Cost: O(replicas) each time something becomes durable. Errors: a number is none or out of range; there is no
/// log.
fn waitaof(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    // Whatever ends this call ends its wait: the next one waits for what is written by then.
    let waits = act.session.half.waits.take();
    if act.server.role.follows() {
        if waits.is_some() {
            return Err(Error::new(role::replicas::UNBLOCKED));
        }
        return Err(Error::new(
            "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas are just \
             local and are not propagated.",
        ));
    }
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
    let last = act.server.keyspace.last_lsn();
    let lsn = waits.as_ref().map_or(last, |waits| waits.lsn);
    let is_synced = is_synced(act, lsn, local > 0);
    let have = reached(act, act.session.wrote.min(lsn), true);
    let ended = waits.as_ref().map_or(Ok(false), |waits| waits.is_ended())?;
    let is_done = ended || (local == 0 || is_synced) && have as i64 >= replicas;
    if is_done || !waits_on(act, waits, lsn, ms, replicas > 0) {
        act.server.durability.synced(false);
        act.out.array(2);
        act.out.int(is_synced.into());
        act.out.int(have as i64);
        return Ok(Flow::Done);
    }
    if (have as i64) < replicas {
        note_lacking(act, act.session.wrote.min(lsn), replicas, true);
    }
    let look_ms = if local > 0 && !is_synced { LOOK_AT_LOG_MS } else { LOOK_MS };
    Ok(held::retry_later(act.session, act.local, left_ms(act, ms, look_ms)))
}

/// Whether everything up to an LSN is durable here. `wanted`: somebody waits for it.
fn is_synced(act: &Act<'_, '_>, lsn: Lsn, wanted: bool) -> bool {
    let durability = &act.server.durability;
    durability.has_files() && durability.synced(wanted).is_some_and(|synced| synced >= lsn)
}

/// Notes the replica that the client waits for.
fn note_lacking(act: &Act<'_, '_>, lsn: Lsn, wanted: i64, durable: bool) {
    let count = usize::try_from(wanted).unwrap_or(usize::MAX);
    let lacking = act.server.replicas.get().and_then(|replicas| replicas.lacking(lsn, count, durable));
    let lacking = lacking.map_or(Lacking::Nobody, Lacking::Replica);
    held::waits_for_replica(act.session, lacking, act.local.log.clock_ns);
}

/// Count of replicas that have all up to an LSN.
fn reached(act: &Act<'_, '_>, lsn: Lsn, durable: bool) -> usize {
    act.server.replicas.get().map_or(0, |replicas| replicas.reached(lsn, durable))
}

/// Whether the client goes on waiting, which is noted then. One that is gone does not. `asks`: for replicas,
/// which are asked now.
fn waits_on(act: &mut Act<'_, '_>, waits: Option<Box<Waits>>, lsn: Lsn, ms: u64, asks: bool) -> bool {
    let now_ms = act.local.log.now_ms;
    let since_ms = waits.as_ref().map_or(now_ms, |waits| waits.since_ms);
    let is_gone = act.session.cancel.load(Ordering::Relaxed);
    if act.in_multi || act.in_script || is_gone || ms > 0 && now_ms >= since_ms + ms {
        return false;
    }
    let waits = waits.unwrap_or_else(|| {
        let replicas = act.server.replicas.get().filter(|_| asks);
        Box::new(Waits::new(lsn, since_ms, replicas.map(|replicas| replicas.wait()), &act.session.info))
    });
    act.session.half.waits = Some(waits);
    true
}

/// Milliseconds until the command is run again: some, or the rest of its time.
fn left_ms(act: &Act<'_, '_>, ms: u64, some: u64) -> u64 {
    let since_ms = act.session.half.waits.as_ref().map_or(0, |waits| waits.since_ms);
    match ms {
        0 => some,
        ms => some.min((since_ms + ms).saturating_sub(act.local.log.now_ms)).max(1),
    }
}
