//! XCLAIM, XAUTOCLAIM: pending entries that change their consumer.

use super::answer::{Answer, Source};
use super::{CHANGE_STEPS, Claimed, GROUP, answer, group_of, id, meet_consumer, note, note_group, text};
use crate::options::{int, is};
use crate::table::{Command, Effect, FAST, KeySpec, RW_DELETE, RW_UPDATE, Run, WRITE, acl};
use crate::{Cx, Error};
use resp::{Args, Reply};
use value::stream::Group;
use value::{Stream, StreamId};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("xclaim", -6, Run::Write(xclaim), WRITE | FAST, acl::STREAM)
        .portable(700)
        .keys(&[KeySpec::one(1, RW_UPDATE)])
        .effect(Effect::Noted)
        .cost(super::per_word)
        .tips(&["nondeterministic_output"])
        .doc(
            GROUP,
            "5.0.0",
            "O(M*log(P)) for M IDs of P pending.",
            "Makes entries pending for another consumer of their group.",
        ),
    Command::new("xautoclaim", -6, Run::Write(xautoclaim), WRITE | FAST, acl::STREAM)
        .portable(602)
        .keys(&[KeySpec::one(1, RW_DELETE)])
        .effect(Effect::Noted)
        .cost(|view, args| {
            let group = group_of(view, args.at(1), args.at(2));
            group.map_or(0, |(_, group)| Auto::parse(args).map_or(0, |auto| auto.steps(group)))
        })
        .tips(&["nondeterministic_output"])
        .doc(
            GROUP,
            "6.2.0",
            "O(M*log(P)) for M entries looked at, of P pending.",
            "Makes entries that have been pending for long pending for another consumer.",
        ),
];

/// The options of XCLAIM behind its IDs.
#[derive(Default)]
struct ClaimOptions {
    time_ms: Option<i64>,
    count: Option<u64>,
    force: bool,
    just_id: bool,
    last_id: StreamId,
}

impl ClaimOptions {
    fn parse(args: Args<'_>, mut i: usize, now_ms: u64) -> Result<ClaimOptions, Error> {
        let mut options = ClaimOptions::default();
        let number = |i: usize, name: &str| {
            int(args.at(i)).map_err(|_| Error::from(format!("ERR Invalid {name} option argument for XCLAIM")))
        };
        while let Some(word) = args.get(i) {
            let more = i + 1 < args.len();
            i += 1;
            if is(word, "force") {
                options.force = true;
            } else if is(word, "justid") {
                options.just_id = true;
            } else if is(word, "idle") && more {
                options.time_ms = Some((now_ms as i64).wrapping_sub(number(i, "IDLE")?));
                i += 1;
            } else if is(word, "time") && more {
                options.time_ms = Some(number(i, "TIME")?);
                i += 1;
            } else if is(word, "retrycount") && more {
                options.count = u64::try_from(number(i, "RETRYCOUNT")?).ok();
                i += 1;
            } else if is(word, "lastid") && more {
                options.last_id = id::strict(args.at(i))?;
                i += 1;
            } else {
                return Err(Error::from(format!("ERR Unrecognized XCLAIM option '{}'", text(word))));
            }
        }
        Ok(options)
    }

    /// When the entries were delivered: never in the future, but for a replay.
    fn delivered_ms(&self, now_ms: u64, in_replay: bool) -> u64 {
        let given = self.time_ms.and_then(|time| u64::try_from(time).ok());
        given.filter(|time| in_replay || *time <= now_ms).unwrap_or(now_ms)
    }
}

/// The fate of pending entries.
#[derive(Default)]
struct Fates {
    /// Claimed, with the counts they get.
    claimed: Vec<(StreamId, u64)>,
    /// Pending, and no longer in the stream.
    gone: Vec<StreamId>,
}

/// Changes a group accordingly, and tells it.
fn settle(cx: &mut Cx<'_, '_>, claim: &Claimed<'_>, fates: &Fates) -> Result<(), Error> {
    let Claimed { key, group, consumer, time_ms } = *claim;
    let now_ms = cx.view.now_ms();
    meet_consumer(cx, key, group, consumer)?;
    if fates.claimed.is_empty() && fates.gone.is_empty() {
        return Ok(());
    }
    if let Some(mut group) = cx.view.stream_mut(key)?.and_then(|stream| stream.group_mut(group)) {
        for id in &fates.gone {
            group.ack(*id);
        }
        for (id, count) in &fates.claimed {
            group.claim(consumer, *id, time_ms, *count);
        }
        if !fates.claimed.is_empty() {
            group.touch_active(consumer, now_ms);
        }
    }
    cx.view.count_change();
    if !fates.gone.is_empty() {
        note(cx, &[b"XACK", key, group], &fates.gone, &[]);
    }
    claim.tell(cx, &fates.claimed);
    Ok(())
}

/// `XCLAIM key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-ms] [RETRYCOUNT count] [FORCE]
/// [JUSTID] [LASTID id]`: the entries that are pending for the consumer now, or their IDs. Pending entries that
/// the stream has no more are forgotten. Told with absolute times.
///
/// Cost: O(m·log p), m = IDs, p = pending entries. Errors: WRONGTYPE, NOGROUP, bad numbers, invalid ID, unknown
/// option.
fn xclaim(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, name, now_ms) = (args.at(1), args.at(2), cx.view.now_ms());
    group_of(cx.view, key, name)?;
    let idle = int(args.at(4)).map_err(|_| Error::new("ERR Invalid min-idle-time argument for XCLAIM"))?;
    let ids: Vec<StreamId> = args.from(5).iter().map_while(|word| id::strict(word).ok()).collect();
    let options = ClaimOptions::parse(args, 5 + ids.len(), now_ms)?;
    cx.charge(ids.len() * CHANGE_STEPS)?;
    let (stream, group) = group_of(cx.view, key, name)?;
    let raises = options.last_id > group.last_id();
    let fates = fates(stream, name, &ids, &options, (u64::try_from(idle).unwrap_or(0), now_ms))?;
    if raises {
        let read = group.entries_read();
        if let Some(mut group) = cx.view.stream_mut(key)?.and_then(|stream| stream.group_mut(name)) {
            group.set_id(options.last_id, read);
        }
        cx.view.count_change();
    }
    let time_ms = options.delivered_ms(now_ms, cx.caller.in_replay);
    settle(cx, &Claimed { key, group: name, consumer: args.at(3), time_ms }, &fates)?;
    if raises {
        note_group(cx, key, name)?;
    }
    let stream = cx.view.stream(key)?.cloned().unwrap_or_default();
    let (len, source) = source(&fates, options.just_id);
    answer::array(cx, &stream, len, source)
}

/// The fate of the IDs of an XCLAIM.
fn fates(
    stream: &Stream,
    group: &[u8],
    ids: &[StreamId],
    options: &ClaimOptions,
    (idle_ms, now_ms): (u64, u64),
) -> Result<Fates, Error> {
    let group = stream.group(group).ok_or(Error::Syntax)?;
    let mut fates = Fates::default();
    // An ID that is named twice was claimed just now by its first.
    let mut again: std::collections::HashMap<StreamId, u64> = std::collections::HashMap::new();
    for id in ids {
        let pending = group.pending(*id);
        if !stream.contains(*id) {
            fates.gone.extend(pending.filter(|_| !fates.gone.contains(id)).map(|_| *id));
            continue;
        }
        let delivered_ms = options.delivered_ms(now_ms, false);
        let (time_ms, count) = match (again.get(id), pending) {
            (Some(count), _) => (Some(delivered_ms), *count),
            (None, Some(pending)) => (Some(pending.time_ms), pending.count),
            (None, None) if options.force => (None, 1),
            (None, None) => continue,
        };
        if time_ms.is_some_and(|time| now_ms.saturating_sub(time) < idle_ms) {
            continue;
        }
        let count = options.count.unwrap_or(count + u64::from(!options.just_id));
        again.insert(*id, count);
        fates.claimed.push((*id, count));
    }
    Ok(fates)
}

/// The elements that answer a claim.
fn source(fates: &Fates, just_id: bool) -> (usize, Source) {
    let ids: Vec<StreamId> = fates.claimed.iter().map(|(id, _)| *id).collect();
    (ids.len(), if just_id { Source::ids(ids) } else { Source::entries(ids) })
}

/// The words of XAUTOCLAIM.
struct Auto {
    idle_ms: u64,
    start: StreamId,
    count: usize,
    just_id: bool,
}

/// Entries looked at for each one that may be answered.
const LOOKS: usize = 10;

impl Auto {
    fn parse(args: Args<'_>) -> Result<Auto, Error> {
        let idle =
            int(args.at(4)).map_err(|_| Error::new("ERR Invalid min-idle-time argument for XAUTOCLAIM"))?;
        let start = id::start(args.at(5))?;
        let (mut count, mut just_id, mut i) = (100, false, 6);
        while let Some(word) = args.get(i) {
            if is(word, "count") && i + 1 < args.len() {
                let most = i64::MAX / 16;
                let given = int(args.at(i + 1)).ok().filter(|n| (1..=most).contains(n));
                count = given.ok_or(Error::new("ERR COUNT must be > 0"))? as usize;
                i += 1;
            } else if is(word, "justid") {
                just_id = true;
            } else {
                return Err(Error::Syntax);
            }
            i += 1;
        }
        Ok(Auto { idle_ms: u64::try_from(idle).unwrap_or(0), start, count, just_id })
    }

    /// Steps it takes at most.
    fn steps(&self, group: &Group) -> usize {
        let all = group.pending_len().saturating_mul(CHANGE_STEPS);
        self.count.saturating_mul(CHANGE_STEPS + LOOKS).min(all)
    }
}

/// `XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]`: where to go on, the entries that
/// are pending for the consumer now, and the IDs of pending entries that the stream has no more. Told as XCLAIM
/// and XACK.
///
/// Cost: O(m·log p), m = entries looked at, at most ten times COUNT, p = pending entries. Errors: bad numbers,
/// invalid ID, syntax, WRONGTYPE, NOGROUP.
fn xautoclaim(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let auto = Auto::parse(args)?;
    let (key, name, now_ms) = (args.at(1), args.at(2), cx.view.now_ms());
    let steps = auto.steps(group_of(cx.view, key, name)?.1);
    cx.charge(steps)?;
    let (stream, group) = group_of(cx.view, key, name)?;
    let (mut fates, mut looks, mut left) = (Fates::default(), auto.count.saturating_mul(LOOKS), auto.count);
    let mut next = StreamId::MIN;
    for (id, pending) in group.pending_from(auto.start) {
        if looks == 0 || left == 0 {
            next = id;
            break;
        }
        looks -= 1;
        if !stream.contains(id) {
            fates.gone.push(id);
        } else if now_ms.saturating_sub(pending.time_ms) >= auto.idle_ms {
            fates.claimed.push((id, pending.count + u64::from(!auto.just_id)));
        } else {
            continue;
        }
        left -= 1;
    }
    settle(cx, &Claimed { key, group: name, consumer: args.at(3), time_ms: now_ms }, &fates)?;
    let stream = cx.view.stream(key)?.cloned().unwrap_or_default();
    let (len, source) = source(&fates, auto.just_id);
    let head = |out: &mut Reply| {
        out.array(3);
        answer::id(out, next);
        out.array(len);
    };
    let gone = fates.gone.len();
    let mut answer = Answer::new(cx.out.resp3());
    answer.part(head, &stream, source);
    answer.part(|out| out.array(gone), &stream, Source::ids(fates.gone));
    answer.send(cx)
}
