//! XACK, XPENDING: entries that a group has given out and that are not done.

use super::idmp;
use super::{CHANGE_STEPS, GROUP, LOOK_STEPS, READS, UPDATES, answer, count, group_of, id, per_word};
use crate::options::{int, is};
use crate::table::{Command, FAST, READONLY, Run, WRITE, acl};
use crate::{Cx, Error};
use keyspace::View;
use resp::{Args, Reply};
use value::stream::Group;
use value::{Stream, StreamId};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("xack", -4, Run::Write(xack), WRITE | FAST, acl::STREAM).keys(UPDATES).cost(per_word).doc(
        GROUP,
        "5.0.0",
        "O(M*log(P)) for M IDs of P pending.",
        "Says that entries of a group are done.",
    ),
    Command::new("xpending", -3, Run::Read(xpending), READONLY, acl::STREAM)
        .keys(READS)
        .cost(steps)
        .tips(&["nondeterministic_output"])
        .doc(
            GROUP,
            "5.0.0",
            "O(log(P)+M) for M of P pending entries, O(C) for the consumers of a summary.",
            "Tells which entries of a group are not done.",
        ),
];

/// `XACK key group id [id ...]`: the number of entries that were pending.
///
/// Told ones may be records of producers ([`idmp`]).
///
/// Cost: O(m·log p), m = IDs, p = pending entries. Errors: WRONGTYPE, invalid ID; neither without a group.
fn xack(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if cx.caller.in_replay && idmp::replay(cx, args)? {
        return Ok(());
    }
    let (key, name) = (args.at(1), args.at(2));
    let Some(group) = cx.view.stream(key)?.and_then(|stream| stream.group(name)) else {
        cx.out.int(0);
        return Ok(());
    };
    let ids = args.from(3).iter().map(id::strict).collect::<Result<Vec<_>, _>>()?;
    if !ids.iter().any(|id| group.pending(*id).is_some()) {
        cx.out.int(0);
        return Ok(());
    }
    cx.charge(ids.len() * CHANGE_STEPS)?;
    let mut done = 0;
    if let Some(mut group) = cx.view.stream_mut(key)?.and_then(|stream| stream.group_mut(name)) {
        done = ids.iter().filter(|id| group.ack(**id)).count();
    }
    cx.view.count_change();
    cx.out.int(done as i64);
    Ok(())
}

/// The words of the long form.
struct PendingQuery<'a> {
    idle_ms: u64,
    from: StreamId,
    to: StreamId,
    count: usize,
    consumer: Option<&'a [u8]>,
}

impl<'a> PendingQuery<'a> {
    /// None: the summary.
    fn parse(args: Args<'a>) -> Result<Option<PendingQuery<'a>>, Error> {
        if args.len() == 3 {
            return Ok(None);
        }
        if !(6..=9).contains(&args.len()) {
            return Err(Error::Syntax);
        }
        let (mut at, mut idle_ms) = (3, 0);
        if is(args.at(3), "idle") {
            idle_ms = u64::try_from(int(args.at(4))?).unwrap_or(0);
            if args.len() < 8 {
                return Err(Error::Syntax);
            }
            at = 5;
        }
        let count = count(args.at(at + 2))?;
        let (from, to) = (id::start(args.at(at))?, id::end(args.at(at + 1))?);
        Ok(Some(PendingQuery { idle_ms, from, to, count, consumer: args.get(at + 3) }))
    }
}

fn steps(view: &View<'_>, args: Args<'_>) -> usize {
    let Some(group) = view.stream(args.at(1)).ok().flatten().and_then(|stream| stream.group(args.at(2)))
    else {
        return 0;
    };
    match PendingQuery::parse(args) {
        Ok(Some(wanted)) => {
            let pending = match wanted.consumer {
                Some(name) => group.consumer(name).map_or(0, |consumer| consumer.pending_len()),
                None => group.pending_len(),
            };
            // With a least idle time any number of entries may be passed over.
            let most = if wanted.idle_ms > 0 { pending } else { pending.min(wanted.count) };
            most.saturating_mul(LOOK_STEPS)
        }
        _ => group.consumers().saturating_mul(LOOK_STEPS),
    }
}

/// `XPENDING key group [[IDLE ms] start end count [consumer]]`: a summary, or per entry its ID, consumer,
/// idle time and number of deliveries.
///
/// Cost: O(log p + m), p = pending entries, m = entries looked at; of a summary O(consumers). Errors: syntax,
/// not an integer, invalid ID, empty interval, WRONGTYPE, NOGROUP.
fn xpending(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let wanted = PendingQuery::parse(args)?;
    let (key, name) = (args.at(1), args.at(2));
    group_of(cx.view, key, name)?;
    let steps = steps(cx.view, args);
    cx.charge(steps)?;
    let now_ms = cx.view.now_ms();
    let (_, group): (&Stream, &Group) = group_of(cx.view, key, name)?;
    match wanted {
        None => summary(cx.out, group),
        Some(wanted) => list(cx.out, group, &wanted, now_ms),
    }
    cx.view.count_lookup(key, true);
    Ok(())
}

fn summary(out: &mut Reply, group: &Group) {
    out.array(4);
    out.int(group.pending_len() as i64);
    let (Some(first), Some(last)) = (group.first_pending(), group.last_pending()) else {
        out.null();
        out.null();
        return out.null_array();
    };
    answer::id(out, first);
    answer::id(out, last);
    let busy = || group.iter_consumers().filter(|(_, consumer)| consumer.pending_len() > 0);
    out.array(busy().count());
    for (name, consumer) in busy() {
        out.array(2);
        out.bulk(name);
        out.bulk_int(consumer.pending_len() as i64);
    }
}

fn list(out: &mut Reply, group: &Group, wanted: &PendingQuery<'_>, now_ms: u64) {
    let ids: Box<dyn Iterator<Item = StreamId>> = match wanted.consumer.map(|name| group.consumer(name)) {
        None => Box::new(group.pending_from(wanted.from).map(|(id, _)| id)),
        Some(Some(consumer)) => Box::new(consumer.pending_from(wanted.from)),
        Some(None) => Box::new(std::iter::empty()),
    };
    let (mark, mut len) = (out.mark(), 0);
    for id in ids.take_while(|id| *id <= wanted.to) {
        if len == wanted.count {
            break;
        }
        let Some(pending) = group.pending(id) else { continue };
        let idle_ms = now_ms.saturating_sub(pending.time_ms);
        if idle_ms < wanted.idle_ms {
            continue;
        }
        len += 1;
        out.array(4);
        answer::id(out, id);
        out.bulk(&pending.consumer);
        out.int(idle_ms as i64);
        out.int(pending.count as i64);
    }
    out.array_at(mark, len);
}
