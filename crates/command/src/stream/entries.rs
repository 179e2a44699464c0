//! XADD, XLEN, XDEL, XSETID: entries, and the counters of a stream.

use super::id::{NewId, Text, strict};
use super::refs::{self, Refs};
use super::trim::{Keep, Words};
use super::{CHANGE_STEPS, DELETES, GROUP, UPDATES, answer, changed_aside, per_word};
use crate::options::{int, is};
use crate::table::{Command, DENYOOM, FAST, KeySpec, READONLY, RO, RW_UPDATE, Run, WRITE, acl};
use crate::{Cx, Error};
use keyspace::Class;
use resp::{Args, OwnedArgs};
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
            let trim = Words::parse(args, true, false).map_or(0, |words| words.steps(view, args.at(1)));
            args.len() * 2 + trim
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

/// `XADD key [NOMKSTREAM] [KEEPREF|DELREF|ACKED] [MAXLEN|MINID [=|~] threshold [LIMIT count]] *|id field value
/// [field value ...]`: the ID of the new entry; null if there is no stream and none may be made. A made ID is told as it was made.
///
/// Cost: O(log n + fields + m), m = entries that a trim takes. Errors: syntax, invalid or too small an ID,
/// arity, WRONGTYPE.
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
    let stream = cx.view.stream(key)?;
    if stream.is_none() && words.no_make {
        cx.out.null();
        return Ok(());
    }
    let id = new_id(stream, wanted, now_ms)?;
    let steps = words.steps(cx.view, key);
    cx.charge(CHANGE_STEPS + count + steps)?;
    let fields: Vec<(&[u8], &[u8])> =
        (words.fields..args.len()).step_by(2).map(|i| (args.at(i), args.at(i + 1))).collect();
    let stream = cx.view.stream_or_new(key)?;
    stream.append(id, &fields);
    let trimmed = words.trim(stream);
    let (gone, len) = (trimmed.gone, stream.len());
    answer::id(cx.out, id);
    cx.view.changed(key, Class::Stream, "xadd");
    if gone > 0 {
        cx.view.notify(key, Class::Stream, "xtrim");
    }
    let is_portable = words.refs.is_none() && !words.approx && matches!(wanted, NewId::Given(_));
    if !is_portable && cx.view.listens() {
        let told = told(args, &words, id, (gone > 0).then_some(len));
        cx.effects.push(told);
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
