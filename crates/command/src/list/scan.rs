//! LSCAN: a list walked in parts.
//!
//! ```text
//! LSCAN key 0 ──► [cursor, elements] ──► LSCAN key cursor ──► … ──► ["0", elements]
//! ```
//!
//! A cursor is a position counted from a base that moves with the head ([`value::List::base`]). Pushes and
//! pops at the ends make no other element come twice or be missed. Inserts and removals between the head and
//! the cursor may. `STABLE` walks the list as it was at the first call ([`keyspace::cursors`]).

use super::{End, STREAM_BYTES, Slice, write, write_some};
use crate::options::{ScanOptions, cursor, is};
use crate::table::{Command, KeySpec, READONLY, RO_ACCESS, Run, acl};
use crate::{Budget, Cx, Error, STREAM_FROM};
use keyspace::cursors::Cursor;
use resp::{Args, Reply};
use std::ops::Range;
use value::List;

pub(crate) static COMMANDS: &[Command] = &[Command::new("lscan", -3, Run::Read(lscan), READONLY, acl::LIST)
    .keys(&[KeySpec::one(1, RO_ACCESS)])
    .doc(
        "list",
        "9.0.0",
        "O(log(L)+N) for every call that visits N elements of a list of L.",
        "Walks the elements of a list in parts.",
    )];

const EXPIRED: Error =
    Error::new("LSCANEXPIRED The snapshot of this cursor is no longer kept, start again with cursor 0");

const TOO_LARGE: Error =
    Error::new("ERR The list is larger than lscan-max-bytes, it can only be walked without STABLE");

/// `LSCAN key cursor [MATCH pattern] [COUNT count] [STABLE]`: `[cursor, elements]`, in the form of SSCAN.
///
/// A list that never had more than some 2 KB comes whole. The cursor of a STABLE walk needs no further word.
/// Such a walk ends with an error when its snapshot is too old, or when too many or too large ones are kept
/// (`lscan-max-age`, `lscan-max-bytes`). A list larger than `lscan-max-bytes` has no STABLE walk.
///
/// Cost: O(log n) and the elements visited, n = elements of the list. Errors: invalid cursor, syntax, COUNT
/// not an integer, WRONGTYPE, LSCANEXPIRED, too large.
fn lscan(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, told) = (args.at(1), cursor(args.at(2))?);
    let stable = (3..args.len()).find(|i| is(args.at(*i), "stable") && !is_value(args, *i));
    let mut words = resp::OwnedArgs::new();
    (3..args.len()).filter(|i| Some(*i) != stable).for_each(|i| words.push(args.at(i)));
    let options = ScanOptions::parse(words.args(), &[])?;
    let visited = cx.view.list(key)?.map_or(0, List::len).min(options.count);
    cx.charge(visited.min(STREAM_FROM))?;
    let keyed = stdx::hash::hash_bytes(key) ^ cx.view.db() as u64;
    let (cursors, now_ms) = (cx.view.cursors(), cx.view.now_ms());
    let (mut rest, mut kept, mut ended) = (None, None, None);
    if let Some(cursor) = Cursor::parse(told) {
        let list = cursors.find(cursor, keyed, now_ms).ok_or(EXPIRED)?;
        let part = ListPart::of(&list, cursor.position, &options);
        ended = part.is_last().then_some(cursor);
        let found = part.matching(&mut cx.budget)?;
        rest = part.write(cx.out, cursor.at(part.range.end), found);
    } else if let Some(list) = cx.view.list(key)? {
        if list.is_small() && told == 0 {
            let whole = ScanOptions { count: usize::MAX, ..options };
            let part = ListPart::of(list, 0, &whole);
            let found = part.matching(&mut cx.budget)?;
            rest = part.write(cx.out, 0, found);
        } else if stable.is_some() && told == 0 {
            let part = ListPart::of(list, 0, &options);
            // The match comes before the snapshot is kept, as a dropped run is repeated.
            let found = part.matching(&mut cx.budget)?;
            let cursor = if part.is_last() {
                0
            } else {
                let cursor = cursors.keep(keyed, list, now_ms).ok_or(TOO_LARGE)?;
                kept = Some(cursor);
                cursor.at(part.range.end)
            };
            rest = part.write(cx.out, cursor, found);
        } else {
            let from = if told == 0 { 0 } else { name_to_position(told).saturating_sub(list.base()).max(0) };
            let part = ListPart::of(list, from as usize, &options);
            let found = part.matching(&mut cx.budget)?;
            rest = part.write(cx.out, position_to_name(list.base() + part.range.end as i64), found);
        }
        cx.view.count_lookup(key, true);
    } else {
        ListPart::of(&List::new(), 0, &options).write(cx.out, 0, None);
        cx.view.count_lookup(key, false);
    }
    if let Some(rest) = rest
        && let Err(error) = cx.stream(rest)
    {
        kept.into_iter().for_each(|cursor| cursors.release(cursor)); // C1
        return Err(error);
    }
    if cx.caller.may_stream {
        ended.into_iter().for_each(|cursor| cursors.release(cursor)); // C1
    }
    Ok(())
}

/// Whether the word at `i` belongs to the option before it.
fn is_value(args: Args<'_>, i: usize) -> bool {
    let option = |word: &[u8]| is(word, "match") || is(word, "count");
    // Words behind the cursor come in pairs up to a STABLE.
    let mut at = 3;
    while at < i {
        at += if option(args.at(at)) { 2 } else { 1 };
    }
    at > i
}

/// The elements that one call visits.
struct ListPart<'a> {
    list: &'a List,
    range: Range<usize>,
    options: &'a ScanOptions<'a>,
}

impl<'a> ListPart<'a> {
    fn of(list: &'a List, from: usize, options: &'a ScanOptions<'a>) -> ListPart<'a> {
        let from = from.min(list.len());
        ListPart { list, range: from..from.saturating_add(options.count).min(list.len()), options }
    }

    fn is_last(&self) -> bool {
        self.range.end == self.list.len()
    }

    /// The matching elements, written, and their number. None without a pattern.
    fn matching(&self, budget: &mut Budget<'_>) -> Result<Option<(Reply, usize)>, Error> {
        if self.options.pattern.is_none() {
            return Ok(None);
        }
        let (mut found, mut count) = (Reply::new(false), 0);
        let mut walk = self.options.walk(budget);
        for elem in self.list.iter_from(self.range.start).take(self.range.len()) {
            if elem.with(|text| walk.takes(text)) {
                write(&mut found, elem);
                count += 1;
            }
        }
        walk.end()?;
        Ok(Some((found, count)))
    }

    /// Writes the reply. Without a pattern it writes some elements and returns the rest, for a stream.
    fn write(&self, out: &mut Reply, cursor: u64, found: Option<(Reply, usize)>) -> Option<Slice> {
        out.array(2);
        out.bulk((if self.is_last() { 0 } else { cursor }).to_string().as_bytes());
        if let Some((found, count)) = found {
            out.array(count);
            out.encoded(found.as_bytes());
            return None;
        }
        let mut left = self.range.clone();
        out.array(left.len());
        let end = out.len() + STREAM_BYTES;
        left.start += write_some(out, self.list, left.clone(), End::Left, STREAM_FROM, end);
        (!left.is_empty()).then(|| Slice { list: self.list.clone(), left, from: End::Left })
    }
}

/// Positions, possibly negative, as cursors that are not 0: 0 is 1, -1 is 2, 1 is 3.
fn position_to_name(position: i64) -> u64 {
    if position >= 0 { 2 * position as u64 + 1 } else { 2 * position.unsigned_abs() }
}

fn name_to_position(name: u64) -> i64 {
    if name % 2 == 1 { (name / 2) as i64 } else { -((name / 2) as i64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::testing::Db;
    use resp::Frame;

    fn fill(db: &mut Db, range: std::ops::Range<usize>) {
        let words: Vec<String> = ["RPUSH", "l"]
            .into_iter()
            .map(String::from)
            .chain(range.map(|i| format!("element {i}")))
            .collect();
        db.call(&words);
    }

    /// One call: the next cursor and the elements.
    fn lscan(db: &mut Db, words: &[&str]) -> (String, Vec<String>) {
        let text = |frame: &Frame| match frame {
            Frame::Bulk(bytes) => String::from_utf8(bytes.clone()).expect("text"),
            other => panic!("{other:?}"),
        };
        match db.call(&[&["LSCAN", "l"], words].concat()) {
            Frame::Array(parts) => match &parts[..] {
                [cursor, Frame::Array(found)] => (text(cursor), found.iter().map(text).collect()),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_small_list_comes_whole_and_a_missing_one_is_empty() {
        Db::both(|mut db| {
            db.check(&[
                ("lscan l 0", "[\"0\", []]"),
                ("rpush l a b 7", "3"),
                ("lscan l 0 count 1", "[\"0\", [\"a\", \"b\", \"7\"]]"),
                ("lscan l 0 match [a7]", "[\"0\", [\"a\", \"7\"]]"),
                ("lscan l 0 stable", "[\"0\", [\"a\", \"b\", \"7\"]]"),
                ("lscan l 999", "[\"0\", []]"),
                ("lscan l x", "-ERR invalid cursor"),
                ("lscan l 0 count 0", "-ERR syntax error"),
                ("lscan l 0 count x", "-ERR value is not an integer or out of range"),
                ("lscan l 0 novalues", "-ERR NOVALUES option can only be used in HSCAN"),
                ("lscan l 0 match stable", "[\"0\", []]"),
                ("set s x", "OK"),
                ("lscan s 0", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ]);
        });
    }

    #[test]
    fn pushes_and_pops_at_the_ends_neither_repeat_nor_skip() {
        Db::both(|mut db| {
            fill(&mut db, 0..5000);
            let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
            let mut round = 0;
            loop {
                let (next, found) = lscan(&mut db, &[&cursor, "COUNT", "100"]);
                seen.extend(found);
                cursor = next;
                if cursor == "0" {
                    break;
                }
                round += 1;
                match round % 3 {
                    0 => drop(db.line("lpush l x y z")),
                    1 => drop(db.line("lpop l 5")),
                    _ => drop(db.line("ltrim l 2 -1")),
                }
            }
            let expected: Vec<String> = (0..5000).map(|i| format!("element {i}")).collect();
            assert_eq!(seen, expected);
            assert!(round > 40);
        });
    }

    #[test]
    fn what_was_popped_before_the_cursor_came_is_left_out() {
        Db::both(|mut db| {
            fill(&mut db, 0..5000);
            let (cursor, found) = lscan(&mut db, &["0"]);
            assert_eq!(found.len(), 10);
            db.check(&[("ltrim l 4990 -1", "OK")]);
            let (end, found) = lscan(&mut db, &[&cursor, "COUNT", "100"]);
            assert_eq!((&*end, found.len(), &*found[0]), ("0", 10, "element 4990"));
        });
    }

    #[test]
    fn a_stable_walk_shows_the_list_as_it_was_even_if_it_is_gone() {
        Db::both(|mut db| {
            fill(&mut db, 0..3000);
            let (mut cursor, mut seen) = lscan(&mut db, &["0", "STABLE", "COUNT", "700", "MATCH", "*5"]);
            let first = cursor.clone();
            db.check(&[
                ("linsert l before \"element 2900\" new", "3001"),
                ("lrem l 0 \"element 2995\"", "1"),
            ]);
            let again = lscan(&mut db, &[&first, "COUNT", "700", "MATCH", "*5"]);
            db.check(&[("del l", "1")]);
            assert_eq!(
                lscan(&mut db, &[&first, "COUNT", "700", "MATCH", "*5"]),
                again,
                "a page can be asked for again"
            );
            while cursor != "0" {
                let (next, found) = lscan(&mut db, &[&cursor, "COUNT", "700", "MATCH", "*5"]);
                seen.extend(found);
                cursor = next;
            }
            let expected: Vec<String> =
                (0..3000).filter(|i| i % 10 == 5).map(|i| format!("element {i}")).collect();
            assert_eq!(seen, expected);
            let expired =
                "-LSCANEXPIRED The snapshot of this cursor is no longer kept, start again with cursor 0";
            assert_eq!(db.line(&format!("lscan l {first}")), expired);
        });
    }

    #[test]
    fn a_snapshot_is_kept_for_its_key_and_its_time() {
        let mut db = Db::new();
        fill(&mut db, 0..3000);
        let (cursor, _) = lscan(&mut db, &["0", "STABLE"]);
        let expired =
            "-LSCANEXPIRED The snapshot of this cursor is no longer kept, start again with cursor 0";
        assert_eq!(db.line(&format!("lscan other {cursor}")), expired);
        db.now_ms += 3_600_000;
        assert_eq!(lscan(&mut db, &[&cursor]).1[0], "element 10");
        db.now_ms += 1;
        assert_eq!(db.line(&format!("lscan l {cursor}")), expired);
    }

    /// C1: a script is dropped after so many steps and repeated from its start.
    #[test]
    fn what_ends_or_begins_in_a_script_can_do_so_again() {
        let mut db = Db::new();
        fill(&mut db, 0..3000);
        let (cursor, _) = lscan(&mut db, &["0", "STABLE"]);
        db.caller.may_stream = false;
        let end = lscan(&mut db, &[&cursor, "COUNT", "5000"]);
        assert_eq!((&*end.0, end.1.len()), ("0", 2990));
        assert_eq!(lscan(&mut db, &[&cursor, "COUNT", "5000"]), end);
        // No client learns this cursor.
        db.steps = 600;
        assert!(db.run(&["LSCAN", "l", "0", "STABLE", "COUNT", "2900"]).starts_with('-'));
        assert_eq!(db.keyspace.cursors.kept().0, 1);
        (db.steps, db.caller.may_stream) = (100_000, true);
        assert_eq!(lscan(&mut db, &[&cursor, "COUNT", "5000"]), end);
        assert_eq!(db.keyspace.cursors.kept(), (0, 0));
    }

    #[test]
    fn a_large_page_is_streamed_and_one_with_a_pattern_costs_what_it_visits() {
        let mut db = Db::new();
        fill(&mut db, 0..100_000);
        let (cursor, found) = lscan(&mut db, &["0", "COUNT", "90000"]);
        assert!(db.streamed && found.len() == 90_000 && cursor != "0");
        db.steps = 2000;
        assert_eq!(lscan(&mut db, &["0", "COUNT", "500", "MATCH", "*77"]).1.len(), 5);
        assert!(
            db.run(&["LSCAN", "l", "0", "COUNT", "5000", "MATCH", "*77"]).starts_with("-"),
            "too much for a loop"
        );
    }

    #[test]
    fn positions_have_names_that_are_not_zero() {
        for position in [0, 1, -1, 17, -17, 1 << 40, -(1 << 40)] {
            assert_ne!(position_to_name(position), 0);
            assert_eq!(name_to_position(position_to_name(position)), position);
        }
    }
}
