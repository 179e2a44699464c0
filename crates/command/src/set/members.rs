//! SADD, SREM, SISMEMBER, SMISMEMBER, SCARD, SMEMBERS, SMOVE, SSCAN.

use crate::options::ScanOptions;
use crate::string::STREAM_BYTES;
use crate::table::{
    Command, DENYOOM, FAST, KeySpec, READONLY, RO, RO_ACCESS, RW_ACCESS_DELETE, RW_DELETE, RW_INSERT, Run,
    WRITE, acl,
};
use crate::{Cx, Error, STREAM_FROM, Stream};
use keyspace::{Class, View};
use resp::{Args, Reply};
use value::{Elem, Held, Set};

pub(crate) static COMMANDS: &[Command] =
    &[
        Command::new("sadd", -3, Run::Write(sadd), WRITE | DENYOOM | FAST, acl::SET)
            .portable(204)
            .keys(&[KeySpec::one(1, RW_INSERT)])
            .cost(per_argument)
            .doc(
                "set",
                "1.0.0",
                "O(1) per member, so O(N) for N members.",
                "Puts members into a set, making the set if needed.",
            ),
        Command::new("srem", -3, Run::Write(srem), WRITE | FAST, acl::SET)
            .portable(204)
            .keys(&[KeySpec::one(1, RW_DELETE)])
            .cost(per_argument)
            .doc(
                "set",
                "1.0.0",
                "O(N) for N members named.",
                "Takes members out of a set; an empty set disappears.",
            ),
        Command::new("sismember", 3, Run::Read(sismember), READONLY | FAST, acl::SET)
            .keys(&[KeySpec::one(1, RO)])
            .doc("set", "1.0.0", "O(1)", "Tells whether something is a member of a set."),
        Command::new("smismember", -3, Run::Read(smismember), READONLY | FAST, acl::SET)
            .keys(&[KeySpec::one(1, RO_ACCESS)])
            .cost(per_argument)
            .doc(
                "set",
                "6.2.0",
                "O(N) for N members asked.",
                "Tells for each of several things whether it is a member.",
            ),
        Command::new("scard", 2, Run::Read(scard), READONLY | FAST, acl::SET)
            .keys(&[KeySpec::one(1, RO)])
            .doc("set", "1.0.0", "O(1)", "Counts the members of a set."),
        Command::new("smembers", 2, Run::Read(smembers), READONLY, acl::SET)
            .keys(&[KeySpec::one(1, RO_ACCESS)])
            .reply(crate::replies::whole)
            .tips(&["nondeterministic_output_order"])
            .doc("set", "1.0.0", "O(N) for N members.", "Lists all members of a set."),
        Command::new("smove", 4, Run::Write(smove), WRITE | FAST, acl::SET)
            .keys(&[KeySpec::one(1, RW_ACCESS_DELETE), KeySpec::one(2, RW_INSERT)])
            .doc("set", "1.0.0", "O(1)", "Takes a member out of a set and adds it to another."),
        Command::new("sscan", -3, Run::Read(sscan), READONLY, acl::SET)
            .keys(&[KeySpec::one(1, RO_ACCESS)])
            .tips(&["nondeterministic_output"])
            .cost(scan_cost)
            .doc(
                "set",
                "2.8.0",
                "O(1) per call, O(N) for a whole walk.",
                "Walks through the members of a set by a cursor.",
            ),
    ];

/// About four steps per argument.
pub(super) fn per_argument(_: &View<'_>, args: Args<'_>) -> usize {
    args.len() * 4
}

/// Steps for the members that one call visits.
fn scan_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let count = ScanOptions::parse(args.from(3), &[]).map_or(0, |options| options.count);
    view.set(args.at(1)).ok().flatten().map_or(0, Set::len).min(count) * 4
}

/// Writes a member.
#[inline]
pub(crate) fn write(out: &mut Reply, elem: Elem<'_>) {
    match elem {
        Elem::Int(n) => out.bulk_int(n),
        Elem::Bytes(bytes) => out.bulk(bytes),
    }
}

/// `SADD key member [member ...]`: the number of new members.
///
/// Cost: O(members named). Errors: WRONGTYPE.
fn sadd(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let set = cx.view.set_or_new(key)?;
    let added = args.from(2).iter().filter(|member| set.insert(member)).count();
    if added > 0 {
        cx.view.changed(key, Class::Set, "sadd");
    }
    cx.out.int(added as i64);
    Ok(())
}

/// `SREM key member [member ...]`: the number of removed members. An empty set is removed.
///
/// Cost: O(members named). Errors: WRONGTYPE.
fn srem(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let Some(set) = cx.view.set_mut(key)? else {
        cx.out.int(0);
        return Ok(());
    };
    let removed = args.from(2).iter().filter(|member| set.remove(member)).count();
    if removed > 0 {
        cx.view.changed(key, Class::Set, "srem");
        cx.view.remove_if_empty(key);
    }
    cx.out.int(removed as i64);
    Ok(())
}

/// `SISMEMBER key member`: 1 if it is a member, else 0.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn sismember(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let set = cx.view.set(args.at(1))?;
    let (hit, is) = (set.is_some(), set.is_some_and(|set| set.contains(args.at(2))));
    cx.out.int(is.into());
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `SMISMEMBER key member [member ...]`: 1 or 0 for each.
///
/// Cost: O(members named). Errors: WRONGTYPE.
fn smismember(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let set = cx.view.set(args.at(1))?;
    cx.out.array(args.len() - 2);
    for member in args.from(2).iter() {
        cx.out.int(set.is_some_and(|set| set.contains(member)).into());
    }
    let hit = set.is_some();
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `SCARD key`: the number of members; 0 for a missing key.
///
/// Cost: O(1). Errors: WRONGTYPE.
fn scard(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let set = cx.view.set(args.at(1))?;
    let hit = set.is_some();
    cx.out.int(set.map_or(0, Set::len) as i64);
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `SMEMBERS key`: all members. A large set streams from an O(1) clone.
///
/// Cost: O(n), n = members. Errors: WRONGTYPE.
fn smembers(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let set = cx.view.set(args.at(1))?.cloned();
    cx.view.count_lookup(args.at(1), set.is_some());
    let set = set.unwrap_or_default();
    cx.out.set(set.len());
    answer(cx, set)
}

/// Writes all members, without a header. A large set is streamed.
pub(super) fn answer(cx: &mut Cx<'_, '_>, set: Set) -> Result<(), Error> {
    let mut members = Members { set, next: 0 };
    // A few members may be long.
    if members.set.len() > STREAM_FROM || members.fill(cx.out, STREAM_BYTES) {
        return cx.stream(members);
    }
    Ok(())
}

/// The members of a set from a rank on.
struct Members {
    set: Set,
    next: usize,
}

impl Stream for Members {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        for member in self.set.iter_from(self.next) {
            write(out, member);
            self.next += 1;
            if out.len() >= end {
                break;
            }
        }
        self.next < self.set.len()
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.set.held().into_iter().for_each(held);
    }
}

/// `SMOVE source destination member`: 1 if the member was moved, 0 if the source does not have it.
///
/// Cost: O(1). Errors: WRONGTYPE of either key, if the source exists.
fn smove(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (from, to, member) = (args.at(1), args.at(2), args.at(3));
    if !cx.view.exists(from) {
        cx.out.int(0);
        return Ok(());
    }
    let there = cx.view.set(from)?.is_some_and(|set| set.contains(member));
    cx.view.set(to)?;
    if from == to || !there {
        cx.out.int(there.into());
        return Ok(());
    }
    if let Some(set) = cx.view.set_mut(from)? {
        set.remove(member);
    }
    cx.view.changed(from, Class::Set, "srem");
    cx.view.remove_if_empty(from);
    if cx.view.set_or_new(to)?.insert(member) {
        cx.view.changed(to, Class::Set, "sadd");
    }
    cx.out.int(1);
    Ok(())
}

/// `SSCAN key cursor [MATCH pattern] [COUNT count]`: `[cursor, members]`.
///
/// Cost: O(members visited). Errors: bad cursor, WRONGTYPE; syntax or COUNT not an integer, if the set
/// exists.
fn sscan(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let cursor = crate::options::cursor(args.at(2))?;
    let Some(set) = cx.view.set(args.at(1))? else {
        cx.out.array(2);
        cx.out.bulk(b"0");
        cx.out.array(0);
        cx.view.count_lookup(args.at(1), false);
        return Ok(());
    };
    let options = ScanOptions::parse(args.from(3), &[])?;
    let mut found = Reply::new(false);
    let mut count = 0;
    let mut walk = options.walk(&mut cx.budget);
    let next = set.scan(cursor, options.count, &mut |member| {
        if member.with(|bytes| walk.takes(bytes)) {
            write(&mut found, member);
            count += 1;
        }
    });
    walk.end()?;
    cx.view.count_lookup(args.at(1), true);
    cx.out.array(2);
    cx.out.bulk(next.to_string().as_bytes());
    cx.out.array(count);
    cx.out.encoded(found.as_bytes());
    Ok(())
}
