//! XADD, XLEN, XDEL, XSETID, XCFGSET, XIDMPRECORD: entries, and the numbers of a stream.

use super::id::{NewId, Text, strict};
use super::idmp;
use super::refs::{self, Refs};
use super::trim::{Keep, Words};
use super::{CHANGE_STEPS, DELETES, GROUP, UPDATES, answer, changed_aside, per_word};
use crate::options::{int, is};
use crate::table::{Command, DENYOOM, Effect, FAST, KeySpec, READONLY, RO, RW_UPDATE, Run, WRITE, acl};
use crate::{Cx, Error};
use keyspace::Class;
use resp::{Args, OwnedArgs};
use std::borrow::Cow;
use value::stream::Remembers;
use value::{Stream, StreamId};

const ADDS: &[KeySpec] = &[KeySpec {
    notes: "UPDATE instead of INSERT because of the optional trimming feature",
    ..KeySpec::one(1, RW_UPDATE)
}];

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("xadd", -5, Run::Write(xadd), WRITE | DENYOOM | FAST, acl::STREAM)
        .portable(602)
        .keys(ADDS)
        .cost(|view, args| {
            let steps = |words: Words| {
                let message = words.message.map_or(0, |message| message.steps(args));
                message + words.steps(view, args.at(1))
            };
            args.len() * 2 + Words::parse(args, true, false).map_or(0, steps)
        })
        .tips(&["nondeterministic_output"])
        .doc(
            GROUP,
            "5.0.0",
            "O(log(N)) for N entries, and O(M) for M that a trim takes.",
            "Appends an entry to a stream.",
        ),
    Command::new("xlen", 2, Run::Read(xlen), READONLY | FAST, acl::STREAM).keys(&[KeySpec::one(1, RO)]).doc(
        GROUP,
        "5.0.0",
        "O(1)",
        "Answers how many entries a stream has.",
    ),
    Command::new("xdel", -3, Run::Write(xdel), WRITE | FAST, acl::STREAM).keys(DELETES).cost(per_word).doc(
        GROUP,
        "5.0.0",
        "O(M*log(N)) for M IDs of N.",
        "Takes entries out of a stream by their IDs.",
    ),
    Command::new("xsetid", -3, Run::Write(xsetid), WRITE | DENYOOM | FAST, acl::STREAM)
        .portable(700)
        .keys(UPDATES)
        .doc(GROUP, "5.0.0", "O(1)", "Sets the last ID of a stream; for servers rather than for people."),
    Command::new("xcfgset", -2, Run::Write(xcfgset), WRITE | FAST, acl::STREAM)
        .portable(500)
        .keys(UPDATES)
        .effect(Effect::Noted)
        .doc(GROUP, "8.6.0", "O(1)", "Sets how long, and how many, IDs of producers a stream remembers."),
    Command::new("xidmprecord", 5, Run::Write(xidmprecord), WRITE | DENYOOM | FAST, acl::STREAM)
        .portable(500)
        .keys(UPDATES)
        .effect(Effect::Noted)
        .doc(
            GROUP,
            "8.6.2",
            "O(log(N))",
            "Makes a stream remember the ID of an entry's producer; for servers.",
        ),
];

/// The ID of the new entry. Errors: those of [`xadd`] that depend on the stream.
fn new_id(stream: Option<&Stream>, wanted: NewId, now_ms: u64) -> Result<StreamId, Error> {
    let last = stream.map_or(StreamId::MIN, Stream::last_id);
    if last == StreamId::MAX {
        return Err(Error::new(
            "ERR The stream has exhausted the last possible ID, unable to add more items",
        ));
    }
    wanted
        .after(last, now_ms)
        .ok_or(Error::new("ERR The ID specified in XADD is equal or smaller than the target stream top item"))
}

/// `XADD key [NOMKSTREAM] [KEEPREF|DELREF|ACKED] [IDMPAUTO pid|IDMP pid iid] [MAXLEN|MINID [=|~] threshold
/// [LIMIT count]] *|id field value [field value ...]`: the ID of the new entry; null if there is no stream and
/// none may be made. A made ID is told as it was made. A message that the stream remembers makes no entry
/// ([`super::idmp`]).
///
/// Cost: O(log n + fields + m), m = entries that a trim takes; with IDMPAUTO O(bytes). Errors: syntax, invalid
/// or too small an ID, arity, WRONGTYPE.
fn xadd(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let words = Words::parse(args, true, cx.caller.in_replay)?;
    let count = args.len().saturating_sub(words.fields);
    let wanted = match words.id {
        Some(id) if count >= 2 && count % 2 == 0 => id,
        _ => return Err(Error::Arity("xadd".into())),
    };
    if wanted == NewId::Given(StreamId::MIN) {
        return Err(Error::new("ERR The ID specified in XADD must be greater than 0-0"));
    }
    let (key, now_ms) = (args.at(1), cx.view.now_ms());
    if words.no_make && cx.view.stream(key)?.is_none() {
        cx.out.null();
        return Ok(());
    }
    let message = words.message.map(|message| message.message(cx, args, words.fields)).transpose()?;
    if let Some(message) = message.as_ref().filter(|_| !cx.caller.in_replay)
        && let Some(id) = message.repeats(cx, key)?
    {
        answer::id(cx.out, id);
        return Ok(());
    }
    let id = new_id(cx.view.stream(key)?, wanted, now_ms)?;
    // A log of Redis tells no time but that of the entry.
    let at_ms = if cx.caller.in_replay { id.ms } else { now_ms };
    let steps = words.steps(cx.view, key);
    cx.charge(CHANGE_STEPS + count + steps)?;
    let fields: Vec<(&[u8], &[u8])> =
        (words.fields..args.len()).step_by(2).map(|i| (args.at(i), args.at(i + 1))).collect();
    let stream = cx.view.stream_or_new(key)?;
    stream.append(id, &fields);
    message.iter().for_each(|message| message.remember(stream, id, at_ms));
    let trimmed = words.trim(stream);
    let (gone, len) = (trimmed.gone, stream.len());
    answer::id(cx.out, id);
    cx.view.changed(key, Class::Stream, "xadd");
    if gone > 0 {
        cx.view.notify(key, Class::Stream, "xtrim");
    }
    let is_portable =
        words.refs.is_none() && !words.approx && matches!(wanted, NewId::Given(_)) && words.message.is_none();
    if !is_portable && cx.view.listens() {
        let told = told(args, &words, id, (gone > 0).then_some(len));
        cx.effects.push(told);
        message.map_or(Ok(()), |message| message.tell(cx, key, id, at_ms))?;
        refs::tell_gone(cx, key, &trimmed.ids);
        refs::tell_dropped(cx, key, &trimmed.dropped);
    }
    Ok(())
}

/// XADD as the log receives it. `len`: what an approximate trim has left.
fn told(args: Args<'_>, words: &Words, id: StreamId, len: Option<usize>) -> OwnedArgs {
    let mut told = OwnedArgs::new();
    told.push(b"XADD");
    told.push(args.at(1));
    let keep = match words.refs {
        // The entries that went are told one by one.
        Some(Refs::Acked) => None,
        _ => words.keep,
    };
    let keep = if words.approx && keep.is_some() { len.map(|len| Keep::Len(len as u64)) } else { keep };
    match keep {
        None => {}
        Some(Keep::Len(len)) => {
            [b"MAXLEN", &b"="[..], len.to_string().as_bytes()].iter().for_each(|word| told.push(word));
        }
        Some(Keep::From(first)) => {
            [b"MINID", &b"="[..], Text::new(first).bytes()].iter().for_each(|word| told.push(word));
        }
    }
    told.push(Text::new(id).bytes());
    args.from(words.fields).iter().for_each(|word| told.push(word));
    told
}

/// `XLEN key`: the number of entries.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn xlen(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let stream = cx.view.stream(args.at(1))?;
    let (hit, len) = (stream.is_some(), stream.map_or(0, Stream::len));
    cx.out.int(len as i64);
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `XDEL key id [id ...]`: the number of entries taken out. They stay pending where they are.
///
/// Cost: O(m·log n), m = IDs. Errors: WRONGTYPE, invalid ID; neither if there is no stream.
fn xdel(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let Some(stream) = cx.view.stream(key)? else {
        cx.out.int(0);
        return Ok(());
    };
    let ids = args.from(2).iter().map(strict).collect::<Result<Vec<_>, _>>()?;
    if !ids.iter().any(|id| stream.contains(*id)) {
        cx.out.int(0);
        return Ok(());
    }
    cx.charge(CHANGE_STEPS * ids.len())?;
    let mut gone = 0;
    if let Some(stream) = cx.view.stream_mut(key)? {
        gone = ids.iter().filter(|id| stream.remove(**id)).count();
    }
    cx.out.int(gone as i64);
    cx.view.changed(key, Class::Stream, "xdel");
    Ok(())
}

/// `XSETID key last-id [ENTRIESADDED count] [MAXDELETEDID id]`: OK.
///
/// Cost: O(log n). Errors: invalid ID, not an integer, syntax, no such key, WRONGTYPE, IDs or counts that
/// contradict the stream.
fn xsetid(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let id = strict(args.at(2))?;
    let (mut added, mut deleted, mut i) = (None, StreamId::MIN, 3);
    while let Some(word) = args.get(i) {
        match args.get(i + 1) {
            Some(value) if is(word, "entriesadded") => {
                let count = int(value)?;
                added =
                    Some(u64::try_from(count).map_err(|_| Error::new("ERR entries_added must be positive"))?);
            }
            Some(value) if is(word, "maxdeletedid") => {
                deleted = strict(value)?;
                if id < deleted {
                    return Err(Error::new(
                        "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                    ));
                }
            }
            _ => return Err(Error::Syntax),
        }
        i += 2;
    }
    let key = args.at(1);
    check_set(cx.view.stream(key)?.ok_or(Error::NoSuchKey)?, id, added, cx.caller.in_replay)?;
    if let Some(stream) = cx.view.stream_mut(key)? {
        stream.set_last_id(id);
        added.into_iter().for_each(|added| stream.set_entries_added(added));
        if deleted != StreamId::MIN {
            stream.set_max_deleted_id(deleted);
        }
    }
    changed_aside(cx, key, "xsetid");
    cx.out.ok();
    Ok(())
}

/// Whether a stream may get this last ID and count. A log of Redis 7.0 may go below the highest deleted ID.
fn check_set(stream: &Stream, id: StreamId, added: Option<u64>, in_replay: bool) -> Result<(), Error> {
    let small = if id < stream.max_deleted_id() && !in_replay {
        "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
    } else if stream.last().is_some_and(|last| id < last.id) {
        "ERR The ID specified in XSETID is smaller than the target stream top item"
    } else if added.is_some_and(|added| !stream.is_empty() && stream.len() as u64 > added) {
        "ERR The entries_added specified in XSETID is smaller than the target stream length"
    } else {
        return Ok(());
    };
    Err(Error::new(small))
}

/// A number of XCFGSET, named once. Errors: a second one, not an integer, out of range.
fn setting(
    args: Args<'_>,
    i: usize,
    name: &str,
    most: u32,
    before: Option<u64>,
) -> Result<Option<u64>, Error> {
    if before.is_some() {
        return Err(Error::from(format!("ERR {name} specified multiple times")));
    }
    let number = int(args.at(i + 1))?;
    let unit = if name == "IDMP-DURATION" { "seconds" } else { "entries" };
    let refused = || Error::from(format!("ERR {name} must be between 1 and {most} {unit}"));
    let number = u64::try_from(number).ok().filter(|number| (1..=u64::from(most)).contains(number));
    number.ok_or_else(refused).map(Some)
}

/// `XCFGSET key [IDMP-DURATION seconds] [IDMP-MAXSIZE messages]`: OK. If that changes anything, the stream
/// forgets what it remembered.
///
/// Cost: O(1). Errors: no such key, WRONGTYPE, syntax, not an integer, out of range, no number.
fn xcfgset(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let stream = cx.view.stream(key)?.ok_or(Error::NoSuchKey)?;
    let (known, is_set) = (stream.remembers(), stream.producers().is_some());
    let (mut duration_s, mut most, mut i) = (None, None, 2);
    while let Some(word) = args.get(i) {
        let more = i + 1 < args.len();
        if more && is(word, "idmp-duration") {
            duration_s = setting(args, i, "IDMP-DURATION", Remembers::LONGEST_S, duration_s)?;
        } else if more && is(word, "idmp-maxsize") {
            most = setting(args, i, "IDMP-MAXSIZE", Remembers::MOST, most)?;
        } else {
            return Err(Error::Syntax);
        }
        i += 2;
    }
    if duration_s.is_none() && most.is_none() {
        return Err(Error::new("ERR At least one parameter must be specified"));
    }
    let wanted = Remembers::new(duration_s.unwrap_or(known.duration_s()), most.unwrap_or(known.most()));
    if (!is_set || wanted != known)
        && let Some(stream) = cx.view.stream_mut(key)?
    {
        stream.producers_mut(wanted).set(wanted);
        cx.view.count_change();
        idmp::tell_settings(cx, key)?;
    }
    cx.out.ok();
    Ok(())
}

/// `XIDMPRECORD key pid iid id`: OK. The stream remembers that the entry came with this ID of this producer.
/// The logs of Redis have it.
///
/// Cost: O(log n). Errors: invalid ID, empty words, no such key, WRONGTYPE, no such entry, the ID is remembered
/// with another entry.
fn xidmprecord(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, pid, iid, id) = (args.at(1), args.at(2), args.at(3), strict(args.at(4))?);
    if pid.is_empty() {
        return Err(Error::new("ERR producer ID must be non-empty"));
    }
    if iid.is_empty() {
        return Err(Error::new("ERR idempotent ID must be non-empty"));
    }
    let stream = cx.view.stream(key)?.ok_or(Error::NoSuchKey)?;
    if !stream.contains(id) {
        return Err(Error::new("ERR No such message in stream"));
    }
    let known = stream.producers().and_then(|producers| producers.get(pid)?.get(iid));
    if known.is_some_and(|known| known != id) {
        return Err(Error::new("ERR IID already exists for this producer with a different stream ID"));
    }
    if known.is_none() {
        let message = idmp::Message { pid, iid: Cow::Borrowed(iid) };
        if let Some(stream) = cx.view.stream_mut(key)? {
            message.remember(stream, id, 0);
        }
        cx.view.count_change();
        if cx.view.listens() {
            message.tell(cx, key, id, 0)?;
        }
    }
    cx.out.ok();
    Ok(())
}
