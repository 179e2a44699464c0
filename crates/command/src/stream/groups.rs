//! XGROUP: groups and their consumers.

use super::id::{any, strict};
use super::{CHANGE_STEPS, GROUP, changed_aside, text};
use crate::options::{int, is};
use crate::table::{
    Command, DENYOOM, Handler, KeySpec, LOADING, RW_DELETE, RW_INSERT, RW_UPDATE, Run, STALE, WRITE, acl,
};
use crate::{Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use value::{Stream, StreamId};

const fn sub(
    name: &'static str,
    arity: i32,
    (run, flags): (Handler, u32),
    keys: &'static [KeySpec],
    doc: (&'static str, &'static str, &'static str),
) -> Command {
    Command::new(name, arity, Run::Write(run), WRITE | flags, acl::STREAM)
        .keys(keys)
        .doc(GROUP, doc.0, doc.1, doc.2)
}

const INSERTS: &[KeySpec] = &[KeySpec::one(2, RW_INSERT)];
const UPDATES: &[KeySpec] = &[KeySpec::one(2, RW_UPDATE)];
const DELETES: &[KeySpec] = &[KeySpec::one(2, RW_DELETE)];

pub(crate) static COMMANDS: &[Command] = &[Command::new("xgroup", -2, Run::Container, 0, 0)
    .doc(GROUP, "5.0.0", "Depends on subcommand.", "Holds the commands for groups of consumers.")
    .subs(&[
        sub(
            "xgroup|create",
            -5,
            (create, DENYOOM),
            INSERTS,
            ("5.0.0", "O(1)", "Makes a group of consumers."),
        )
        .portable(700),
        sub(
            "xgroup|setid",
            -5,
            (setid, 0),
            UPDATES,
            ("5.0.0", "O(1)", "Sets the last entry that a group has read."),
        )
        .portable(700),
        sub(
            "xgroup|destroy",
            4,
            (destroy, 0),
            DELETES,
            ("5.0.0", "O(log(N)) for N groups.", "Removes a group with all that is pending in it."),
        ),
        sub(
            "xgroup|createconsumer",
            5,
            (createconsumer, DENYOOM),
            INSERTS,
            ("6.2.0", "O(log(N)) for N consumers.", "Makes a consumer in a group."),
        ),
        sub(
            "xgroup|delconsumer",
            5,
            (delconsumer, 0),
            DELETES,
            (
                "5.0.0",
                "O(M*log(P)) for M of P pending entries.",
                "Removes a consumer with what is pending for it.",
            ),
        )
        .cost(|view, args| pending_of(view, args).saturating_mul(CHANGE_STEPS)),
        Command::new("xgroup|help", 2, Run::Read(help), LOADING | STALE, acl::STREAM).doc(
            GROUP,
            "5.0.0",
            "O(1)",
            "Lists the subcommands.",
        ),
    ])];

/// The entries that are pending for the consumer that is named.
fn pending_of(view: &View<'_>, args: Args<'_>) -> usize {
    let stream = view.stream(args.at(2)).ok().flatten();
    let group = stream.and_then(|stream| stream.group(args.at(3)));
    group.and_then(|group| group.consumer(args.at(4))).map_or(0, |consumer| consumer.pending_len())
}

fn bad_subcommand(name: &[u8]) -> Error {
    Error::from(format!(
        "ERR unknown subcommand or wrong number of arguments for '{}'. Try XGROUP HELP.",
        text(name)
    ))
}

/// The options of CREATE and SETID: MKSTREAM, and ENTRIESREAD as a number or unknown.
fn options(args: Args<'_>, makes: bool) -> Result<(bool, Option<u64>), Error> {
    let (mut make, mut read, mut i) = (false, None, 5);
    while let Some(word) = args.get(i) {
        if makes && is(word, "mkstream") {
            make = true;
            i += 1;
        } else if is(word, "entriesread") && i + 1 < args.len() {
            read = match int(args.at(i + 1))? {
                -1 => None,
                n => Some(
                    u64::try_from(n)
                        .map_err(|_| Error::new("ERR value for ENTRIESREAD must be positive or -1"))?,
                ),
            };
            i += 2;
        } else {
            return Err(bad_subcommand(args.at(1)));
        }
    }
    Ok((make, read))
}

/// The stream that must exist. Errors: WRONGTYPE, no key.
fn stream_of<'v>(view: &'v View<'_>, key: &[u8]) -> Result<&'v Stream, Error> {
    view.stream(key)?.ok_or(Error::new(
        "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM \
         option to create an empty stream automatically.",
    ))
}

/// The stream with a group that must exist. Errors: WRONGTYPE, no key, NOGROUP.
fn stream_with<'v>(view: &'v View<'_>, key: &[u8], group: &[u8]) -> Result<&'v Stream, Error> {
    let stream = stream_of(view, key)?;
    if stream.group(group).is_none() {
        return Err(Error::from(format!(
            "NOGROUP No such consumer group '{}' for key name '{}'",
            text(group),
            text(key)
        )));
    }
    Ok(stream)
}

/// `XGROUP CREATE key group id|$ [MKSTREAM] [ENTRIESREAD count]`: OK.
///
/// Cost: O(log g), g = groups. Errors: syntax, not an integer, WRONGTYPE, no key, invalid ID, BUSYGROUP.
fn create(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (make, read) = options(args, true)?;
    let (key, name) = (args.at(2), args.at(3));
    let stream = match make {
        true => cx.view.stream(key)?,
        false => Some(stream_of(cx.view, key)?),
    };
    if args.len() > 8 {
        return Err(bad_subcommand(args.at(1)));
    }
    let id = match args.at(4) {
        b"$" => stream.map_or(StreamId::MIN, Stream::last_id),
        word => strict(word)?,
    };
    if stream.is_some_and(|stream| stream.group(name).is_some()) {
        return Err(Error::new("BUSYGROUP Consumer Group name already exists"));
    }
    let is_new = stream.is_none();
    cx.view.stream_or_new(key)?.create_group(name, id, read);
    match is_new {
        true => cx.view.changed(key, Class::Stream, "xgroup-create"),
        false => changed_aside(cx, key, "xgroup-create"),
    }
    cx.out.ok();
    Ok(())
}

/// `XGROUP SETID key group id|$ [ENTRIESREAD count]`: OK.
///
/// Cost: O(log g), g = groups. Errors: syntax, not an integer, WRONGTYPE, no key, NOGROUP, invalid ID.
fn setid(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (_, read) = options(args, false)?;
    let (key, name) = (args.at(2), args.at(3));
    let stream = stream_with(cx.view, key, name)?;
    if args.len() > 7 {
        return Err(bad_subcommand(args.at(1)));
    }
    let id = match args.at(4) {
        b"$" => stream.last_id(),
        word => any(word, 0)?,
    };
    if let Some(mut group) = cx.view.stream_mut(key)?.and_then(|stream| stream.group_mut(name)) {
        group.set_id(id, read);
    }
    changed_aside(cx, key, "xgroup-setid");
    cx.out.ok();
    Ok(())
}

/// `XGROUP DESTROY key group`: 1, or 0 if there is no such group. Clients that wait in it are told.
///
/// Cost: O(log g), g = groups. Errors: WRONGTYPE, no key.
fn destroy(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, name) = (args.at(2), args.at(3));
    if stream_of(cx.view, key)?.group(name).is_none() {
        cx.out.int(0);
        return Ok(());
    }
    if let Some(stream) = cx.view.stream_mut(key)? {
        stream.destroy_group(name);
    }
    // As in Redis, this ends no transaction that watches the stream.
    cx.view.count_change();
    cx.view.woken(key, Class::Stream, "xgroup-destroy");
    cx.out.int(1);
    Ok(())
}

/// `XGROUP CREATECONSUMER key group consumer`: 1, or 0 if it exists.
///
/// Cost: O(log c), c = consumers. Errors: WRONGTYPE, no key, NOGROUP.
fn createconsumer(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, name, now_ms) = (args.at(2), args.at(3), cx.view.now_ms());
    let group = stream_with(cx.view, key, name)?.group(name);
    if group.is_some_and(|group| group.consumer(args.at(4)).is_some()) {
        cx.out.int(0);
        return Ok(());
    }
    if let Some(mut group) = cx.view.stream_mut(key)?.and_then(|stream| stream.group_mut(name)) {
        group.create_consumer(args.at(4), now_ms);
    }
    changed_aside(cx, key, "xgroup-createconsumer");
    cx.out.int(1);
    Ok(())
}

/// `XGROUP DELCONSUMER key group consumer`: the number of entries that were pending for it.
///
/// Cost: O(m·log p), m = its pending entries, p = all. Errors: WRONGTYPE, no key, NOGROUP.
fn delconsumer(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, name) = (args.at(2), args.at(3));
    let group = stream_with(cx.view, key, name)?.group(name);
    let Some(pending) = group.and_then(|group| group.consumer(args.at(4))).map(|c| c.pending_len()) else {
        cx.out.int(0);
        return Ok(());
    };
    cx.charge(pending.saturating_mul(CHANGE_STEPS))?;
    if let Some(mut group) = cx.view.stream_mut(key)?.and_then(|stream| stream.group_mut(name)) {
        group.delete_consumer(args.at(4));
    }
    changed_aside(cx, key, "xgroup-delconsumer");
    cx.out.int(pending as i64);
    Ok(())
}

/// `XGROUP HELP`: the subcommands.
///
/// Cost: O(1). Errors: none.
fn help(cx: &mut Cx<'_, '_>, _: Args<'_>) -> Result<(), Error> {
    let lines = [
        "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CREATE <key> <groupname> <id|$> [option]",
        "    A new group. Options: MKSTREAM makes the stream if there is none;",
        "    ENTRIESREAD <count> says how many entries it has read.",
        "CREATECONSUMER <key> <groupname> <consumer>",
        "    A new consumer in a group.",
        "DELCONSUMER <key> <groupname> <consumer>",
        "    Removes a consumer with what is pending for it.",
        "DESTROY <key> <groupname>",
        "    Removes a group.",
        "SETID <key> <groupname> <id|$> [ENTRIESREAD <count>]",
        "    The last entry that a group has read.",
        "HELP",
        "    These lines.",
    ];
    cx.out.array(lines.len());
    lines.iter().for_each(|line| cx.out.simple(line));
    Ok(())
}
