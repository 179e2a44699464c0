//! Calls in a cluster: who answers for their keys.
//!
//! - CL1: the keys of a call, or of a transaction's queue, are in one slot.
//! - CL2: what has read or written here as a primary marks its client: its replies leave only while this node
//!   may answer (`net` looks again when it sends).

use crate::Server;
use crate::act::Act;
use crate::held::{self, Stop, held};
use crate::mail::Mail;
use crate::session::flag;
use cluster::commands::barred;
use cluster::member::{Member, Route};
use cluster::show::{Endpoint, Reader};
use cluster::slots::{self, Joined};
use command::table::READONLY;
use command::{Command, Error, facts};
use observe::waits::Lacking;
use resp::Args;
use role::Address;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Keys that are looked at under one lock.
const BATCH: usize = 64;

const CROSSSLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// Refuses a call whose keys are another node's, or nobody's now.
#[inline]
pub(crate) fn route(act: &mut Act<'_, '_>, command: &'static Command, args: Args<'_>) -> Result<(), Stop> {
    match act.server.cluster.get() {
        None => Ok(()),
        Some(member) => route_in(act, member, command, args),
    }
}

fn route_in(
    act: &mut Act<'_, '_>,
    member: &Arc<Member>,
    command: &'static Command,
    args: Args<'_>,
) -> Result<(), Stop> {
    if let Some(error) = barred(command.name, args) {
        return Err(Stop::Refused(Error::new(error)));
    }
    let queued = act.session.multi.is_some() && !command.is(facts::INSIDE_MULTI);
    let runs_queue = command.is(facts::RUNS_QUEUE);
    let refuse = |error: Error| if runs_queue { Stop::Aborted(error) } else { Stop::Refused(error) };
    let slot = match (&act.session.multi, runs_queue) {
        (Some(multi), true) if multi.broken => Joined::None,
        (Some(multi), true) => multi.slot,
        _ => slot_of(command, args),
    };
    let changes = match &act.session.multi {
        Some(multi) if runs_queue => multi.changes,
        // As in Redis, a script is sent to the primary unless its command is a read.
        _ => command.is_write() || command.is(facts::SCRIPT) && !command.has(READONLY),
    };
    let slot = match slot {
        Joined::Several => return Err(refuse(Error::new(CROSSSLOT))),
        Joined::One(slot) => Some(slot),
        Joined::None => None,
    };
    if let Some(slot) = slot {
        match member.route(slot, changes, act.session.settings.reads_here, reader(act)) {
            Route::Here => {}
            Route::Wait => {
                held::waits_for_replica(act.session, Lacking::Successor, act.local.log.clock_ns);
                return Err(held(act, act.local.log.now_ms + 1));
            }
            Route::Refused(text) => return Err(refuse(text.into())),
        }
        if queued && let Some(multi) = &mut act.session.multi {
            multi.slot.join(slot);
        }
    }
    act.session.tells_keys |= (slot.is_some() || changes || command.has(READONLY)) && member.serves();
    Ok(())
}

/// The client as one who is told where nodes are.
pub(crate) fn reader(act: &Act<'_, '_>) -> Reader {
    let endpoint = Endpoint::of(act.server.config.live.cluster_endpoint.get());
    Reader { endpoint, tls: act.session.info.flags.load(Ordering::Relaxed) & flag::SECURE != 0 }
}

/// The slot of a call's keys, or of its channels of shards. O(keys)
fn slot_of(command: &Command, args: Args<'_>) -> Joined {
    let mut joined = Joined::None;
    let mut note = |key: &[u8]| joined.join(slots::of_key(key));
    match command.name {
        "spublish" => note(args.at(1)),
        "ssubscribe" => (1..args.len()).for_each(|at| note(args.at(at))),
        _ => drop(command.each_key(args, &mut |at, _| note(args.at(at)))),
    }
    joined
}

impl Server {
    /// Whether what this node has answered as a primary may not leave any more (CL2). O(1)
    #[inline]
    pub fn withholds(&self) -> bool {
        self.cluster.get().is_some_and(|member| member.withholds())
    }

    /// Whether the keys of a script's call are this node's. O(keys). Errors: the words of Redis.
    pub(crate) fn script_may_touch(
        &self,
        client: u64,
        command: &Command,
        args: Args<'_>,
    ) -> Result<(), Error> {
        let Some(member) = self.cluster.get().filter(|_| !self.role.is_link(client)) else { return Ok(()) };
        let mut all_mine = true;
        command.each_key(args, &mut |at, _| all_mine &= member.owns(slots::of_key(args.at(at))));
        match all_mine {
            true => barred(command.name, args).map_or(Ok(()), |error| Err(Error::new(error))),
            false => Err(Error::new("ERR Script attempted to access a non local key in a cluster node")),
        }
    }

    /// Visits the keys of a slot, in a database, until that returns false. Some keys of one shard are locked at
    /// a time. O(keys); not for a loop.
    pub(crate) fn each_key_in_slot(&self, db: usize, slot: u16, visit: &mut dyn FnMut(&[u8]) -> bool) {
        let (mut cursor, mut goes_on) = (0, true);
        while goes_on {
            let mut see = |key: &[u8]| goes_on = goes_on && (slots::of_key(key) != slot || visit(key));
            cursor = self.keyspace.scan(db, cursor, BATCH, stdx::clock::wall_ms(), &mut |key, _| see(key));
            goes_on &= cursor != 0;
        }
    }

    /// Follows a primary that the map names. It may be said again. O(1). Errors: nobody could carry it out.
    pub fn follow_primary(&self, primary: Address) -> Result<(), &'static str> {
        self.role.wish(Some(primary), || self.refuse_writes()).map(drop)
    }

    /// Has calls that are held looked at again. O(loops)
    pub fn retry_held(&self) {
        (0..self.loops()).for_each(|id| self.send(id, Mail::Retry));
    }

    /// Whether there are keys. O(databases)
    pub(crate) fn has_keys(&self) -> bool {
        (0..self.keyspace.databases()).any(|db| self.keyspace.len(db) > 0)
    }
}
