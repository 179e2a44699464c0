//! EVENKEEL ITEMS: values with their time left, as HTTP shows keys.

use crate::facts;
use crate::hash::{is_long, walk::write_hash};
use crate::table::*;
use crate::{Cx, Error, Stream, string::STREAM_BYTES, write_string};
use keyspace::Times;
use resp::{Args, Reply};
use stdx::points::{self, Point};
use value::{Hash, Held, Str, StrRef, Value, ValueRef};

/// Steps for one key, and for a field of a hash.
const STEPS: usize = 4;

/// A row of the container `evenkeel`.
pub(crate) const ITEMS: Command =
    Command::new("evenkeel|items", -3, Run::Read(items), READONLY, acl::KEYSPACE)
        .facts(facts::FETCHES)
        .keys(&[KeySpec::range(2, -1, 1, RO_ACCESS)])
        .reply(crate::replies::all::<2>)
        .tips(&["nondeterministic_output_order"])
        .cost(|_, args| args.len() * STEPS)
        .doc(
            "server",
            "0.1.0",
            "O(N) for N keys and the fields of their hashes.",
            "Gives strings and hashes with the milliseconds they have left.",
        );

/// `EVENKEEL ITEMS key [key ...]`: for each key null, or its milliseconds to live (-1: no expiry) and its
/// value. The time of its last change, in milliseconds since 1970 and not in the future, is between them if
/// it is known. A key with another type than string or hash counts as missing.
///
/// Cost: O(n), n = keys and fields; more than 64 KB in all are streamed. Errors: none.
fn items(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let keys = args.from(2);
    let start = cx.out.len();
    cx.out.array(keys.len());
    points::trip(Point::Read);
    for (i, key) in keys.iter().enumerate() {
        if cx.out.len() - start > STREAM_BYTES || !write_short(cx, key)? {
            return stream_rest(cx, keys.from(i));
        }
    }
    Ok(())
}

/// Answers one item. False, and nothing written, if it is long. (Mostly there is one key, with a short
/// string.)
fn write_short(cx: &mut Cx<'_, '_>, key: &[u8]) -> Result<bool, Error> {
    let now_ms = cx.view.now_ms();
    let hit = match cx.view.item(key).map(|item| (item.value, item.times)) {
        Some((ValueRef::Str(StrRef::Flat(bytes)), times)) => {
            begin(cx.out, times, now_ms);
            cx.out.bulk(bytes);
            true
        }
        Some((ValueRef::Str(StrRef::Pair(pair)), times)) => {
            begin(cx.out, times, now_ms);
            cx.out.bulk_joined(pair.parts());
            true
        }
        Some((ValueRef::Str(_), _)) => return Ok(false),
        Some((ValueRef::Hash(hash), _)) if is_long(hash) => return Ok(false),
        Some((ValueRef::Hash(hash), times)) => {
            let fields = hash.len();
            cx.charge(fields / 8 * STEPS)?;
            let hash = crate::hash::live(cx, key)?.unwrap_or_default();
            begin(cx.out, times, now_ms);
            write_hash(cx.out, hash);
            true
        }
        _ => {
            cx.out.null();
            false
        }
    };
    cx.view.count_lookup(key, hit);
    Ok(true)
}

/// Writes the part in front of a value.
fn begin(out: &mut Reply, times: Times, now_ms: u64) {
    out.array(if times.changed_ms.is_some() { 3 } else { 2 });
    out.int(times.expire_ms.map_or(-1, |at| at.saturating_sub(now_ms) as i64));
    if let Some(changed_ms) = times.changed_ms {
        out.int(changed_ms.get().min(now_ms) as i64);
    }
}

/// Streams the items of the remaining keys, as they are now.
fn stream_rest(cx: &mut Cx<'_, '_>, keys: Args<'_>) -> Result<(), Error> {
    let mut rest = Vec::with_capacity(keys.len());
    for key in keys {
        cx.charge(STEPS)?;
        let times = cx.view.item(key).map(|item| item.times).unwrap_or_default();
        let value = match cx.view.value(key) {
            Some(ValueRef::Str(s)) => Some(Shown::Text(s.to_str())),
            Some(ValueRef::Hash(_)) => crate::hash::live(cx, key)?.map(Shown::Hash),
            _ => None,
        };
        cx.view.count_lookup(key, value.is_some());
        rest.push(value.map(|value| (times, value)));
    }
    let now_ms = cx.view.now_ms();
    cx.stream(Items { rest: rest.into_iter(), now_ms, open: None })
}

/// Answers a value with its times. A long value returns the rest after its beginning. A value of another type
/// than string or hash counts as missing. (Rows of databases have no fields that expire.)
pub fn write_item(out: &mut Reply, value: &Value, times: Times, now_ms: u64) -> Option<Box<dyn Stream>> {
    match value {
        Value::Str(text) => {
            begin(out, times, now_ms);
            write_string(out, text.as_ref())
        }
        Value::Hash(hash) => {
            begin(out, times, now_ms);
            write_hash(out, hash.clone())
        }
        _ => {
            out.null();
            None
        }
    }
}

enum Shown {
    Text(Str),
    Hash(Hash),
}

/// The remaining items.
struct Items {
    rest: std::vec::IntoIter<Option<(Times, Shown)>>,
    now_ms: u64,
    open: Option<Box<dyn Stream>>,
}

impl Stream for Items {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let stop = out.len().saturating_add(room);
        while out.len() < stop {
            if let Some(open) = &mut self.open {
                if !open.fill(out, stop - out.len()) {
                    self.open = None;
                }
                continue;
            }
            match self.rest.next() {
                None => return false,
                Some(None) => out.null(),
                Some(Some((times, value))) => {
                    begin(out, times, self.now_ms);
                    self.open = match value {
                        Shown::Text(text) => write_string(out, text.as_ref()),
                        Shown::Hash(hash) => write_hash(out, hash),
                    };
                }
            }
        }
        self.open.is_some() || self.rest.len() > 0
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.open.iter().for_each(|open| open.holds(held));
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    #[test]
    fn items_are_strings_and_hashes_with_the_time_they_have_left() {
        let mut db = Db::new();
        db.check(&[
            ("set s {}", "OK"),
            ("set t 5 px 1500", "OK"),
            ("hset h f v", "1"),
            ("rpush l x", "1"),
            ("evenkeel items s", "[[-1, \"{}\"]]"),
            ("evenkeel items t nosuch l", "[[1500, \"5\"], nil, nil]"),
            ("evenkeel items h s", "[[-1, [\"f\", \"v\"]], [-1, \"{}\"]]"),
        ]);
    }

    #[test]
    fn what_is_long_is_streamed_in_its_place() {
        Db::both(|mut db| {
            let long = "0123456789".repeat(20_000);
            db.run(&["MSET", "short", "s", "long", &long]);
            let fields: Vec<String> = (0..2000).flat_map(|n| [format!("f{n}"), format!("v{n}")]).collect();
            let hset: Vec<&str> =
                ["HSET", "h"].into_iter().chain(fields.iter().map(String::as_str)).collect();
            db.run(&hset);
            let all = db.line("hgetall h");
            assert_eq!(
                db.line("evenkeel items short long h none short"),
                format!("[[-1, \"s\"], [-1, {long:?}], [-1, {all}], nil, [-1, \"s\"]]")
            );
            assert!(db.streamed);
            assert_eq!(db.line("evenkeel items h"), format!("[[-1, {all}]]"));
        });
    }
}
