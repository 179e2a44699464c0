//! REPLICAOF, its older name, FAILOVER and ROLE.

use super::replicas;
use crate::act::{Act, PLAIN, Row};
use command::options::{int, is};
use command::{Error, Flow};
use resp::Args;
use role::{Address, Failing, Failover};
use std::time::Duration;

pub(super) const ACTIONS: &[Row] = &[
    Row("replicaof", replicaof, PLAIN),
    Row("slaveof", replicaof, PLAIN),
    Row("failover", failover, PLAIN),
    Row("role", role, PLAIN),
];

/// `REPLICAOF host port | NO ONE`. It answers at once; the change goes on behind it. CONFIG REWRITE writes the
/// wish. O(1). Errors: the port is none.
fn replicaof(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let leads = is(args.at(1), "no") && is(args.at(2), "one");
    let primary = match leads {
        true => None,
        false => Some(Address::of_words(args.at(1), args.at(2))?),
    };
    stdx::panics::changes();
    let shown = primary.as_ref().map_or(String::new(), |Address { host, port }| format!("{host} {port}"));
    let changed = act.server.role.wish(primary, || act.server.refuse_writes()).map_err(Error::new)?;
    act.server.config.note("replicaof", shown.as_bytes());
    match changed || leads {
        true => act.out.ok(),
        false => act.out.simple("OK Already connected to specified master"),
    }
    Ok(Flow::Done)
}

/// `FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT ms]`: writes wait until a replica has everything; it leads
/// then, and this server follows it. It answers at once; INFO says how far it is.
///
/// Cost: O(replicas). Errors: as Redis; no such replica is online; another failover is under way.
fn failover(act: &mut Act<'_, '_>, args: Args<'_>) -> Result<Flow, Error> {
    let (mut wish, mut aborts, mut at) = (Failover::default(), false, 1);
    while at < args.len() {
        match () {
            () if is(args.at(at), "timeout") && at + 1 < args.len() && wish.timeout.is_none() => {
                let ms = int(args.at(at + 1))?;
                let ms = u64::try_from(ms).ok().filter(|ms| *ms > 0);
                let ms = ms.ok_or(Error::new("ERR FAILOVER timeout must be greater than 0"))?;
                wish.timeout = Some(Duration::from_millis(ms));
                at += 2;
            }
            () if is(args.at(at), "to") && at + 2 < args.len() && wish.to.is_none() => {
                let port = u16::try_from(int(args.at(at + 2))?).unwrap_or(0);
                wish.to = Some(Address { host: String::from_utf8_lossy(args.at(at + 1)).into_owned(), port });
                at += 3;
            }
            () if is(args.at(at), "force") && !wish.force => (wish.force, at) = (true, at + 1),
            () if is(args.at(at), "abort") && args.len() == 2 => (aborts, at) = (true, at + 1),
            () => return Err(Error::Syntax),
        }
    }
    let done = if aborts { act.server.role.abort_failover() } else { begin_failover(act, wish) };
    done.map_err(Error::new)?;
    act.out.ok();
    Ok(Flow::Done)
}

fn begin_failover(act: &mut Act<'_, '_>, wish: Failover) -> Result<(), &'static str> {
    let role = &act.server.role;
    if role.failing() == Failing::No && !role.follows() {
        let replicas =
            act.server.replicas.get().map(|replicas| replicas.figures().replicas).unwrap_or_default();
        if replicas.is_empty() {
            return Err("ERR FAILOVER requires connected replicas.");
        }
        if wish.force && (wish.timeout.is_none() || wish.to.is_none()) {
            return Err("ERR FAILOVER with force option requires both a timeout and target HOST and IP.");
        }
        if let Some(Address { host, port }) = &wish.to {
            let mut found =
                replicas.iter().filter(|replica| replica.port == *port && replica.address == *host);
            let found = found.next().ok_or("ERR FAILOVER target HOST and PORT is not a replica.")?;
            if found.state != "online" {
                return Err("ERR FAILOVER target replica is not online.");
            }
        }
    }
    stdx::panics::changes();
    role.fail_over(wish)
}

/// `ROLE`. Cost: O(replicas).
fn role(act: &mut Act<'_, '_>, _: Args<'_>) -> Result<Flow, Error> {
    if let Some(flow) = replicas::wait_for_offsets(act) {
        return Ok(flow);
    }
    let Some(following) = act.server.role.figures() else {
        return replicas::primary_role(act);
    };
    act.out.array(5);
    act.out.bulk(b"slave");
    act.out.bulk(following.host.as_bytes());
    act.out.int(following.port.into());
    act.out.bulk(following.state.as_bytes());
    act.out.int(following.offset.map_or(-1, |offset| offset as i64));
    Ok(Flow::Done)
}
