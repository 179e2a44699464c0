//! Whole hashes: HGETALL, HKEYS, HVALS, HSCAN. Large replies stream from a clone.

use super::{is_due, is_long, live};
use crate::options::ScanOptions;
use crate::table::*;
use crate::{Cx, Error, Stream};
use keyspace::View;
use resp::{Args, Reply};
use value::{Hash, Held};

const KEY: &[KeySpec] = &[KeySpec::one(1, RO_ACCESS)];

const fn whole(name: &'static str, run: Handler, summary: &'static str) -> Command {
    Command::new(name, 2, Run::Read(run), READONLY, acl::HASH)
        .keys(KEY)
        .reply(crate::replies::whole)
        .tips(&["nondeterministic_output_order"])
        .doc("hash", "2.0.0", "O(N) for N fields.", summary)
}

pub(crate) static COMMANDS: &[Command] = &[
    whole(
        "hgetall",
        |cx, args| answer(cx, args, HashPart::Both),
        "Lists all fields of a hash with their values.",
    ),
    whole("hkeys", |cx, args| answer(cx, args, HashPart::Fields), "Lists all fields of a hash."),
    whole("hvals", |cx, args| answer(cx, args, HashPart::Values), "Lists all values of a hash."),
    Command::new("hscan", -3, Run::Read(hscan), READONLY, acl::HASH)
        .keys(KEY)
        .tips(&["nondeterministic_output"])
        .cost(scan_cost)
        .doc(
            "hash",
            "2.8.0",
            "O(1) per call, O(N) for a whole walk.",
            "Walks through the fields of a hash by a cursor.",
        ),
];

/// The part of each field that is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HashPart {
    Fields,
    Values,
    Both,
}

impl HashPart {
    #[inline]
    fn write(self, out: &mut Reply, field: &[u8], value: &[u8]) {
        if self != HashPart::Values {
            out.bulk(field);
        }
        if self != HashPart::Fields {
            out.bulk(value);
        }
    }

    fn header(self, out: &mut Reply, len: usize) {
        match self {
            HashPart::Both => out.map(len),
            HashPart::Fields | HashPart::Values => out.array(len),
        }
    }
}

/// `HGETALL key`, `HKEYS key`, `HVALS key`: all fields, values, or both.
///
/// Cost: O(n), n = fields; a large hash is streamed. Errors: WRONGTYPE.
fn answer(cx: &mut Cx<'_, '_>, args: Args<'_>, part: HashPart) -> Result<(), Error> {
    let (key, now) = (args.at(1), cx.view.due_ms());
    let hash = cx.view.hash(key)?;
    let hit = hash.is_some();
    match hash {
        None => part.header(cx.out, 0),
        Some(hash) if is_long(hash) => {
            let hash = live(cx, key)?.unwrap_or_default();
            part.header(cx.out, hash.len());
            cx.stream(Fields { hash, part, next: 0 })?;
        }
        Some(hash) if is_due(hash, now) => {
            part.header(cx.out, hash.live_len(now));
            hash.iter_at(now).for_each(|(field, value)| part.write(cx.out, field, value));
        }
        Some(hash) => {
            part.header(cx.out, hash.len());
            hash.iter().for_each(|(field, value)| part.write(cx.out, field, value));
        }
    }
    cx.view.count_lookup(key, hit);
    Ok(())
}

/// Answers a hash in the form of HGETALL. None of its fields has expired. A large one writes its length and
/// returns the rest.
pub(crate) fn write_hash(out: &mut Reply, hash: Hash) -> Option<Box<dyn Stream>> {
    HashPart::Both.header(out, hash.len());
    if is_long(&hash) {
        return Some(Box::new(Fields { hash, part: HashPart::Both, next: 0 }));
    }
    hash.iter().for_each(|(field, value)| HashPart::Both.write(out, field, value));
    None
}

/// The fields of a hash from a rank on. None has expired.
struct Fields {
    hash: Hash,
    part: HashPart,
    next: usize,
}

impl Stream for Fields {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        for (field, value) in self.hash.iter_from(self.next) {
            self.part.write(out, field, value);
            self.next += 1;
            if out.len() >= end {
                break;
            }
        }
        self.next < self.hash.len()
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.hash.held().into_iter().for_each(held);
    }
}

fn scan_cost(view: &View<'_>, args: Args<'_>) -> usize {
    if args.len() == 3 {
        return 0;
    }
    let len = view.hash(args.at(1)).ok().flatten().map_or(0, Hash::len);
    ScanOptions::parse(args.from(3), &["novalues"]).map_or(0, |options| options.count.min(len) * 4)
}

/// `HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]`: `[cursor, fields and values]`.
///
/// Cost: O(fields visited). Errors: bad cursor, WRONGTYPE; syntax or COUNT not an integer, if the hash
/// exists.
fn hscan(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, now) = (args.at(1), cx.view.due_ms());
    let cursor = crate::options::cursor(args.at(2))?;
    let Some(hash) = cx.view.hash(key)? else {
        cx.out.array(2);
        cx.out.bulk(b"0");
        cx.out.array(0);
        cx.view.count_lookup(key, false);
        return Ok(());
    };
    let options = ScanOptions::parse(args.from(3), &["novalues"])?;
    let part = if options.bare { HashPart::Fields } else { HashPart::Both };
    let (mut found, mut count) = (Reply::new(false), 0);
    let mut walk = options.walk(&mut cx.budget);
    let next = hash.scan_entries(cursor, options.count, &mut |entry| {
        if walk.takes(entry.field) && entry.expire_at > now {
            part.write(&mut found, entry.field, entry.value);
            count += if options.bare { 1 } else { 2 };
        }
    });
    walk.end()?;
    cx.out.array(2);
    cx.out.bulk(itoa::Buffer::new().format(next).as_bytes());
    cx.out.array(count);
    cx.out.encoded(found.as_bytes());
    cx.view.count_lookup(key, true);
    Ok(())
}
