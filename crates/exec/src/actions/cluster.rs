//! CLUSTER and its kin. What the map says, and what changes it, is in crate `cluster`.

use super::answer::{aside, help};
use crate::act::{Act, PLAIN, Row};
use crate::session::flag;
use cluster::commands::{Answer, Ground, perform};
use command::options::int;
use command::{Error, Flow};
use resp::Args;
use std::sync::atomic::Ordering;

pub(super) const ACTIONS: &[Row] = &[
    Row("asking", asking, PLAIN),
    Row("readonly", |act, _| reads_here(act, true), PLAIN),
    Row("readwrite", |act, _| reads_here(act, false), PLAIN),
    Row("cluster|addslots", cluster, PLAIN),
    Row("cluster|addslotsrange", cluster, PLAIN),
    Row("cluster|bumpepoch", cluster, PLAIN),
    Row("cluster|count-failure-reports", cluster, PLAIN),
    Row("cluster|countkeysinslot", count_keys_in_slot, PLAIN),
    Row("cluster|delslots", cluster, PLAIN),
    Row("cluster|delslotsrange", cluster, PLAIN),
    Row("cluster|failover", cluster, PLAIN),
    Row("cluster|flushslots", cluster, PLAIN),
    Row("cluster|forget", cluster, PLAIN),
    Row("cluster|getkeysinslot", keys_in_slot, PLAIN),
    Row("cluster|info", cluster, PLAIN),
    Row("cluster|keyslot", cluster, PLAIN),
    Row("cluster|links", cluster, PLAIN),
    Row("cluster|meet", cluster, PLAIN),
    Row("cluster|myid", cluster, PLAIN),
    Row("cluster|myshardid", cluster, PLAIN),
    Row("cluster|nodes", cluster, PLAIN),
    Row("cluster|replicas", cluster, PLAIN),
    Row("cluster|replicate", cluster, PLAIN),
    Row("cluster|reset", cluster, PLAIN),
    Row("cluster|saveconfig", cluster, PLAIN),
    Row("cluster|set-config-epoch", cluster, PLAIN),
    Row("cluster|setslot", cluster, PLAIN),
    Row("cluster|shards", cluster, PLAIN),
    Row("cluster|slaves", cluster, PLAIN),
    Row("cluster|slots", cluster, PLAIN),
    Row("cluster|help", |act, _| help(act, "CLUSTER", cluster::commands::HELP), PLAIN),
];

/// The error of all these where there is no cluster.
const DISABLED: Error = Error::new("ERR This instance has cluster support disabled");

/// A subcommand of CLUSTER. O(1) on the loop but for what is shown, which is O(nodes + ranges); what changes
/// the map waits for the coordinator on a thread. Errors: as Redis; the coordinator cannot be reached.
fn cluster(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let member = act.server.cluster.get().ok_or(DISABLED)?;
    let name = String::from_utf8_lossy(args.at(1)).to_lowercase();
    let is_empty = !act.server.has_keys();
    let ground = Ground { reader: crate::cluster::reader(act), is_empty };
    match perform(member, &name, args, &ground, act.out).map_err(Error::from)? {
        Answer::Now => Ok(Flow::Done),
        Answer::Later(run) => aside(act, "map-change", run),
    }
}

/// `CLUSTER COUNTKEYSINSLOT slot`: of the selected database. O(keys), on a thread of its own. Errors: no slot.
fn count_keys_in_slot(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    act.server.cluster.get().ok_or(DISABLED)?;
    let slot = as_slot(int(args.at(2))?).ok_or(Error::new("ERR Invalid slot"))?;
    let (server, db) = (act.server.clone(), act.session.db);
    aside(act, "slot", move |out| {
        let mut keys = 0..;
        server.each_key_in_slot(db, slot, &mut |_| keys.next().is_some());
        out.int(keys.start);
    })
}

/// `CLUSTER GETKEYSINSLOT slot count`: of the selected database. O(keys), on a thread of its own. Errors: no
/// slot, or no count.
fn keys_in_slot(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    act.server.cluster.get().ok_or(DISABLED)?;
    let (slot, count) = (int(args.at(2))?, int(args.at(3))?);
    let (Some(slot), Ok(count)) = (as_slot(slot), usize::try_from(count)) else {
        return Err(Error::new("ERR Invalid slot or number of keys"));
    };
    let (server, db) = (act.server.clone(), act.session.db);
    aside(act, "slot", move |out| {
        let mut keys: Vec<Box<[u8]>> = Vec::new();
        server.each_key_in_slot(db, slot, &mut |key| {
            if keys.len() < count {
                keys.push(key.into());
            }
            keys.len() < count
        });
        out.array(keys.len());
        keys.iter().for_each(|key| out.bulk(key));
    })
}

fn as_slot(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|slot| usize::from(*slot) < cluster::slots::SLOTS)
}

/// `ASKING`. No slot is ever half moved, so it says nothing.
fn asking(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    act.server.cluster.get().ok_or(DISABLED)?;
    act.out.ok();
    Ok(Flow::Done)
}

/// `READONLY`, `READWRITE`: whether a client reads here although another node leads. O(1). Errors: this is no
/// cluster, and the client cannot be sent to the primary (`CLIENT CAPA redirect`).
fn reads_here(act: &mut Act<'_, '_>, reads: bool) -> Result<Flow, Error> {
    let can_be_sent = act.session.info.flags.load(Ordering::Relaxed) & flag::CAPA_REDIRECT != 0;
    if !can_be_sent && act.server.cluster.get().is_none() {
        return Err(DISABLED);
    }
    act.session.settings.reads_here = reads;
    act.out.ok();
    Ok(Flow::Done)
}
