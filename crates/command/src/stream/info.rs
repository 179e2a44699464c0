//! XINFO: facts about a stream, its groups and their consumers.

use super::answer::{self, Answer, Source};
use super::{GROUP, LOOK_STEPS, text};
use crate::options::{int, is};
use crate::table::{Command, Handler, KeySpec, LOADING, READONLY, RO_ACCESS, Run, STALE, acl};
use crate::{Cx, Error};
use keyspace::View;
use resp::{Args, Reply};
use value::stream::{Consumer, Entry, Group, Producers};
use value::{Stream, StreamId};

const KEY: &[KeySpec] = &[KeySpec::one(2, RO_ACCESS)];

const fn sub(name: &'static str, arity: i32, run: Handler, summary: &'static str) -> Command {
    Command::new(name, arity, Run::Read(run), READONLY, acl::STREAM)
        .keys(KEY)
        .doc(GROUP, "5.0.0", "O(1)", summary)
}

pub(crate) static COMMANDS: &[Command] = &[Command::new("xinfo", -2, Run::Container, 0, 0)
    .doc(GROUP, "5.0.0", "Depends on subcommand.", "Holds the commands that look at streams and groups.")
    .subs(&[
        sub("xinfo|consumers", 4, consumers, "Tells about the consumers of a group.")
            .cost(|view, args| {
                let group =
                    view.stream(args.at(2)).ok().flatten().and_then(|stream| stream.group(args.at(3)));
                group.map_or(0, Group::consumers).saturating_mul(LOOK_STEPS)
            })
            .tips(&["nondeterministic_output"]),
        sub("xinfo|groups", 3, groups, "Tells about the groups of a stream.")
            .cost(|view, args| groups_of(view, args).saturating_mul(LOOK_STEPS * 2)),
        sub("xinfo|stream", -3, stream, "Tells about a stream.").cost(stream_steps),
        Command::new("xinfo|help", 2, Run::Read(help), LOADING | STALE, acl::STREAM).doc(
            GROUP,
            "5.0.0",
            "O(1)",
            "Lists the subcommands.",
        ),
    ])];

fn groups_of(view: &View<'_>, args: Args<'_>) -> usize {
    view.stream(args.at(2)).ok().flatten().map_or(0, Stream::groups)
}

/// Looks a stream up. Errors: no such key, WRONGTYPE.
fn stream_of(cx: &mut Cx<'_, '_>, key: &[u8]) -> Result<Stream, Error> {
    let stream = cx.view.stream(key)?.cloned();
    cx.view.count_lookup(key, stream.is_some());
    stream.ok_or(Error::NoSuchKey)
}

fn number_or_null(out: &mut Reply, number: Option<i64>) {
    match number {
        Some(number) => out.int(number),
        None => out.null(),
    }
}

fn entry_or_null(out: &mut Reply, entry: Option<Entry<'_>>) {
    match entry {
        Some(entry) => answer::entry(out, &entry),
        None => out.null(),
    }
}

/// `XINFO CONSUMERS key group`: per consumer its name, pending entries, and milliseconds since it asked and
/// since it got something.
///
/// Cost: O(consumers). Errors: no such key, WRONGTYPE, NOGROUP.
fn consumers(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, name, now_ms) = (args.at(2), args.at(3), cx.view.now_ms());
    let stream = stream_of(cx, key)?;
    let group = stream.group(name).ok_or_else(|| {
        Error::from(format!("NOGROUP No such consumer group '{}' for key name '{}'", text(name), text(key)))
    })?;
    cx.charge(group.consumers().saturating_mul(LOOK_STEPS))?;
    cx.out.array(group.consumers());
    for (name, consumer) in group.iter_consumers() {
        cx.out.map(4);
        cx.out.bulk(b"name");
        cx.out.bulk(name);
        cx.out.bulk(b"pending");
        cx.out.int(consumer.pending_len() as i64);
        cx.out.bulk(b"idle");
        cx.out.int(now_ms.saturating_sub(consumer.seen_time_ms()) as i64);
        cx.out.bulk(b"inactive");
        cx.out.int(consumer.active_time_ms().map_or(-1, |active| now_ms.saturating_sub(active) as i64));
    }
    Ok(())
}

/// `XINFO GROUPS key`: per group its name, consumers, pending entries, last ID, entries read and lag.
///
/// Cost: O(groups · log n). Errors: no such key, WRONGTYPE.
fn groups(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let stream = stream_of(cx, args.at(2))?;
    cx.charge(stream.groups().saturating_mul(LOOK_STEPS * 2))?;
    let out = &mut *cx.out;
    out.array(stream.groups());
    for (name, group) in stream.iter_groups() {
        out.map(6);
        out.bulk(b"name");
        out.bulk(name);
        out.bulk(b"consumers");
        out.int(group.consumers() as i64);
        out.bulk(b"pending");
        out.int(group.pending_len() as i64);
        out.bulk(b"last-delivered-id");
        answer::id(out, group.last_id());
        out.bulk(b"entries-read");
        number_or_null(out, group.entries_read().map(|read| read as i64));
        out.bulk(b"lag");
        number_or_null(out, stream.lag(group));
    }
    Ok(())
}

/// FULL's COUNT, if the words ask for FULL; 0: all.
fn full(args: Args<'_>) -> Result<Option<usize>, Error> {
    let wrong = || {
        Error::from(format!(
            "ERR unknown subcommand or wrong number of arguments for '{}'. Try XINFO HELP.",
            text(args.at(1))
        ))
    };
    match args.len() {
        3 => Ok(None),
        4 | 6 if is(args.at(3), "full") => match args.get(4) {
            None => Ok(Some(10)),
            Some(word) if is(word, "count") => Ok(Some(usize::try_from(int(args.at(5))?).unwrap_or(10))),
            Some(_) => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}

/// Steps to count what is remembered of producers.
fn producers_steps(stream: &Stream) -> usize {
    stream.producers().map_or(0, Producers::len).saturating_mul(LOOK_STEPS * 2)
}

/// Steps of the answer. FULL's entries are streamed, and not counted here.
fn stream_steps(view: &View<'_>, args: Args<'_>) -> usize {
    let Ok(Some(stream)) = view.stream(args.at(2)) else { return 0 };
    let Ok(Some(count)) = full(args) else { return producers_steps(stream) };
    let most = if count == 0 { usize::MAX } else { count };
    let of = |group: &Group| {
        let consumers = group.consumers();
        let listed = group.pending_len().min(most).saturating_mul(2);
        listed.saturating_add(consumers).saturating_mul(LOOK_STEPS)
    };
    let least = stream.groups().saturating_add(producers_steps(stream));
    stream.iter_groups().take(100).map(|(_, group)| of(group)).fold(least, usize::saturating_add)
}

/// Writes the fields that both forms begin with. Producers and IDs whose time is over are not counted.
/// O(producers · log n)
fn counters(out: &mut Reply, stream: &Stream, now_ms: u64) {
    for (name, value) in [
        ("length", stream.len() as i64),
        ("radix-tree-keys", stream.leaves() as i64),
        ("radix-tree-nodes", stream.leaves() as i64 + 1),
    ] {
        out.bulk(name.as_bytes());
        out.int(value);
    }
    out.bulk(b"last-generated-id");
    answer::id(out, stream.last_id());
    out.bulk(b"max-deleted-entry-id");
    answer::id(out, stream.max_deleted_id());
    out.bulk(b"entries-added");
    out.int(stream.entries_added() as i64);
    out.bulk(b"recorded-first-entry-id");
    answer::id(out, stream.first_id());
    let remembers = stream.remembers();
    let (pids, iids) = stream.producers().map_or((0, 0), |producers| producers.live(now_ms));
    let (added, repeated) = stream.producers().map_or((0, 0), Producers::counts);
    for (name, value) in [
        ("idmp-duration", remembers.duration_s()),
        ("idmp-maxsize", remembers.most()),
        ("pids-tracked", pids as u64),
        ("iids-tracked", iids as u64),
        ("iids-added", added),
        ("iids-duplicates", repeated),
    ] {
        out.bulk(name.as_bytes());
        out.int(value as i64);
    }
}

/// `XINFO STREAM key [FULL [COUNT count]]`: counters, first and last entry; or with FULL the entries and all
/// about groups. The numbers of tree nodes are those of this server.
///
/// Cost: O(log n · producers); with FULL O(entries and pending entries listed) more. Errors: no such key, WRONGTYPE, syntax.
fn stream(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (stream, now_ms) = (stream_of(cx, args.at(2))?, cx.view.now_ms());
    cx.charge(producers_steps(&stream))?;
    let Some(count) = full(args)? else {
        let out = &mut *cx.out;
        out.map(16);
        counters(out, &stream, now_ms);
        out.bulk(b"groups");
        out.int(stream.groups() as i64);
        out.bulk(b"first-entry");
        entry_or_null(out, stream.first());
        out.bulk(b"last-entry");
        entry_or_null(out, stream.last());
        return Ok(());
    };
    let most = if count == 0 { usize::MAX } else { count };
    let mut rest = Reply::new(cx.out.resp3());
    rest.bulk(b"groups");
    rest.array(stream.groups());
    for (name, group) in stream.iter_groups() {
        let listed = group.pending_len().min(most).saturating_mul(2).saturating_add(group.consumers());
        cx.charge(listed.saturating_mul(LOOK_STEPS))?;
        write_group(&mut rest, &stream, (name, group), most);
    }
    let head = |out: &mut Reply| {
        out.map(15);
        counters(out, &stream, now_ms);
        out.bulk(b"entries");
    };
    let mut answer = Answer::new(cx.out.resp3());
    answer.range(&stream, (StreamId::MIN, StreamId::MAX), most, None, head);
    answer.part(|_| {}, &stream, Source::Encoded { replies: rest.into_bytes(), next: 0 });
    answer.send(cx)
}

fn write_group(out: &mut Reply, stream: &Stream, (name, group): (&[u8], &Group), most: usize) {
    out.map(7);
    out.bulk(b"name");
    out.bulk(name);
    out.bulk(b"last-delivered-id");
    answer::id(out, group.last_id());
    out.bulk(b"entries-read");
    number_or_null(out, group.entries_read().map(|read| read as i64));
    out.bulk(b"lag");
    number_or_null(out, stream.lag(group));
    out.bulk(b"pel-count");
    out.int(group.pending_len() as i64);
    out.bulk(b"pending");
    out.array(group.pending_len().min(most));
    for (id, pending) in group.pending_from(StreamId::MIN).take(most) {
        out.array(4);
        answer::id(out, id);
        out.bulk(&pending.consumer);
        out.int(pending.time_ms as i64);
        out.int(pending.count as i64);
    }
    out.bulk(b"consumers");
    out.array(group.consumers());
    for (name, consumer) in group.iter_consumers() {
        write_consumer(out, group, (name, consumer), most);
    }
}

fn write_consumer(out: &mut Reply, group: &Group, (name, consumer): (&[u8], &Consumer), most: usize) {
    out.map(5);
    out.bulk(b"name");
    out.bulk(name);
    out.bulk(b"seen-time");
    out.int(consumer.seen_time_ms() as i64);
    out.bulk(b"active-time");
    out.int(consumer.active_time_ms().map_or(-1, |active| active as i64));
    out.bulk(b"pel-count");
    out.int(consumer.pending_len() as i64);
    out.bulk(b"pending");
    out.array(consumer.pending_len().min(most));
    for id in consumer.pending_from(StreamId::MIN).take(most) {
        let (time_ms, count) = group.pending(id).map_or((0, 0), |pending| (pending.time_ms, pending.count));
        out.array(3);
        answer::id(out, id);
        out.int(time_ms as i64);
        out.int(count as i64);
    }
}

/// `XINFO HELP`: the subcommands.
///
/// Cost: O(1). Errors: none.
fn help(cx: &mut Cx<'_, '_>, _: Args<'_>) -> Result<(), Error> {
    let lines = [
        "XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CONSUMERS <key> <groupname>",
        "    The consumers of a group.",
        "GROUPS <key>",
        "    The groups of a stream.",
        "STREAM <key> [FULL [COUNT <count>]]",
        "    A stream; with FULL also its entries, groups and consumers.",
        "HELP",
        "    These lines.",
    ];
    cx.out.array(lines.len());
    lines.iter().for_each(|line| cx.out.simple(line));
    Ok(())
}
