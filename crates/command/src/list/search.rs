//! LPOS, LREM, LINSERT: elements by value.
//!
//! These commands walk the list. A walk is estimated beforehand and charged as it goes. Changes begin only
//! after the walk.

use super::End;
use crate::cx::Budget;
use crate::options::{int, is};
use crate::table::{Command, DENYOOM, KeySpec, READONLY, RO_ACCESS, RW_DELETE, RW_INSERT, Run, WRITE, acl};
use crate::{Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use std::ops::ControlFlow::{self, Break, Continue};
use std::ops::Range;
use value::{Elem, List};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("lpos", -3, Run::Read(lpos), READONLY, acl::LIST)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .cost(pos_cost)
        .doc(
            "list",
            "6.0.6",
            "O(N) for a list of N elements, less with MAXLEN or if found early.",
            "Tells at which positions an element stands.",
        ),
    Command::new("lrem", 4, Run::Write(lrem), WRITE, acl::LIST)
        .keys(&[KeySpec::one(1, RW_DELETE)])
        .cost(rem_cost)
        .doc(
            "list",
            "1.0.0",
            "O(N+M*log(N)) for a list of N elements of which M are removed.",
            "Removes elements that equal a given one.",
        ),
    Command::new("linsert", 5, Run::Write(linsert), WRITE | DENYOOM, acl::LIST)
        .keys(&[KeySpec::one(1, RW_INSERT)])
        .cost(insert_cost)
        .doc(
            "list",
            "2.2.0",
            "O(N) for N elements up to the one that is looked for.",
            "Puts an element in front of or behind another one.",
        ),
];

// ----- walking ---------------------------------------------------------------------------------------------

/// Elements between two charges.
const CHUNK: usize = 256;

/// Steps to compare `count` elements with a text. Long texts of equal length must be read.
fn walk_steps(count: usize, text: &[u8]) -> usize {
    count.saturating_mul(1 + text.len() / 512) / 8
}

fn cost(view: &View<'_>, key: &[u8], max: usize, text: &[u8]) -> usize {
    let len = view.list(key).ok().flatten().map_or(0, List::len);
    walk_steps(len.min(max), text)
}

fn pos_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let max = LposOptions::parse(args.from(3)).map_or(0, |options| options.max_len);
    cost(view, args.at(1), max, args.at(2))
}

fn rem_cost(view: &View<'_>, args: Args<'_>) -> usize {
    cost(view, args.at(1), usize::MAX, args.at(3))
}

fn insert_cost(view: &View<'_>, args: Args<'_>) -> usize {
    cost(view, args.at(1), usize::MAX, args.at(3))
}

/// Calls `f` with the position of each element equal to `text`, from one end on. Stops when `f` breaks or
/// after `max` elements.
fn each_match(
    budget: &mut Budget<'_>,
    list: &List,
    from: End,
    max: usize,
    text: &[u8],
    f: impl FnMut(usize) -> ControlFlow<()>,
) -> Result<(), Error> {
    match from {
        End::Left => walk(budget, list.iter().take(max).zip(0..), text, f),
        End::Right => walk(budget, list.iter_rev().take(max).zip((0..list.len()).rev()), text, f),
    }
}

fn walk<'a>(
    budget: &mut Budget<'_>,
    elements: impl Iterator<Item = (Elem<'a>, usize)>,
    text: &[u8],
    mut f: impl FnMut(usize) -> ControlFlow<()>,
) -> Result<(), Error> {
    let (wanted, price) = (Elem::parse(text), walk_steps(CHUNK, text));
    let mut paid = 0;
    for (element, at) in elements {
        if paid == 0 {
            budget.charge(price)?;
            paid = CHUNK;
        }
        paid -= 1;
        if element == wanted && f(at).is_break() {
            break;
        }
    }
    Ok(())
}

// ----- LPOS ------------------------------------------------------------------------------------------------

struct LposOptions {
    /// The match to begin with, from 1 on.
    rank: u64,
    from: End,
    /// None: one match, not as an array.
    count: Option<usize>,
    max_len: usize,
}

impl LposOptions {
    /// Reads `[RANK rank] [COUNT n] [MAXLEN n]`. Errors: syntax, not an integer, out of range.
    fn parse(args: Args<'_>) -> Result<LposOptions, Error> {
        let mut options = LposOptions { rank: 1, from: End::Left, count: None, max_len: usize::MAX };
        let natural = |arg, text| match int(arg) {
            Ok(n) if n >= 0 => Ok(n as usize),
            _ => Err(Error::new(text)),
        };
        for i in (0..args.len()).step_by(2) {
            let (word, value) = (args.at(i), args.get(i + 1).ok_or(Error::Syntax)?);
            if is(word, "rank") {
                let rank = not_least(int(value)?)?;
                if rank == 0 {
                    let text = "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... \
                                or use negative to start from the end of the list";
                    return Err(Error::new(text));
                }
                options.rank = rank.unsigned_abs();
                options.from = if rank > 0 { End::Left } else { End::Right };
            } else if is(word, "count") {
                options.count = Some(natural(value, "ERR COUNT can't be negative")?);
            } else if is(word, "maxlen") {
                let max = natural(value, "ERR MAXLEN can't be negative")?;
                options.max_len = if max == 0 { usize::MAX } else { max };
            } else {
                return Err(Error::Syntax);
            }
        }
        Ok(options)
    }
}

/// Refuses the one integer that has no opposite.
fn not_least(n: i64) -> Result<i64, Error> {
    if n == i64::MIN {
        let text =
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
        return Err(Error::new(text));
    }
    Ok(n)
}

/// `LPOS key element [RANK rank] [COUNT num-matches] [MAXLEN len]`: the position or null; with COUNT an array
/// of positions.
///
/// Cost: O(n), n = elements compared. Errors: those of the options, WRONGTYPE.
fn lpos(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, element) = (args.at(1), args.at(2));
    let LposOptions { rank, from, count, max_len } = LposOptions::parse(args.from(3))?;
    let list = cx.view.list(key)?;
    let hit = list.is_some();
    let (mark, mut skip, mut found) = (cx.out.mark(), rank - 1, 0);
    // COUNT 0 means all matches.
    let wanted = count.map_or(1, |count| if count == 0 { usize::MAX } else { count });
    if let Some(list) = list {
        each_match(&mut cx.budget, list, from, max_len, element, |at| {
            if skip > 0 {
                skip -= 1;
                return Continue(());
            }
            cx.out.int(at as i64);
            found += 1;
            if found < wanted { Continue(()) } else { Break(()) }
        })?;
    }
    match count {
        Some(_) => cx.out.array_at(mark, found),
        None if found == 0 => cx.out.null(),
        None => {}
    }
    cx.view.count_lookup(key, hit);
    Ok(())
}

// ----- LREM ------------------------------------------------------------------------------------------------

/// `LREM key count element`: removes equal elements and answers their number. Count > 0: from the front, < 0:
/// from the end, 0: all.
///
/// Cost: O(n + m · log n), n = elements of the list, m = runs of removed elements. Errors: not an integer,
/// WRONGTYPE.
fn lrem(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (key, element) = (args.at(1), args.at(3));
    let count = not_least(int(args.at(2))?)?;
    let from = if count < 0 { End::Right } else { End::Left };
    let wanted = if count == 0 { usize::MAX } else { count.unsigned_abs() as usize };
    let Some(list) = cx.view.list(key)? else {
        cx.out.int(0);
        return Ok(());
    };
    let (mut runs, mut found): (Vec<Range<usize>>, usize) = (Vec::new(), 0);
    each_match(&mut cx.budget, list, from, usize::MAX, element, |at| {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end += 1,
            Some(run) if run.start == at + 1 => run.start = at,
            _ => runs.push(at..at + 1),
        }
        found += 1;
        if found < wanted { Continue(()) } else { Break(()) }
    })?;
    cx.charge(runs.len() * 4)?;
    cx.out.int(found as i64);
    if found == 0 {
        return Ok(());
    }
    // Removal goes from the last position to the first, so that earlier positions stay valid.
    if from == End::Left {
        runs.reverse();
    }
    if let Some(list) = cx.view.list_mut(key)? {
        runs.into_iter().for_each(|run| list.remove_range(run));
    }
    cx.view.changed(key, Class::List, "lrem");
    cx.view.remove_if_empty(key);
    Ok(())
}

// ----- LINSERT ---------------------------------------------------------------------------------------------

/// `LINSERT key BEFORE|AFTER pivot element`: the new length, -1 without the pivot, 0 without the list.
///
/// Cost: O(n), n = elements up to the pivot. Errors: syntax, WRONGTYPE.
fn linsert(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let behind = match args.at(2) {
        word if is(word, "before") => 0,
        word if is(word, "after") => 1,
        _ => return Err(Error::Syntax),
    };
    let key = args.at(1);
    let Some(list) = cx.view.list(key)? else {
        cx.out.int(0);
        return Ok(());
    };
    let mut pivot = None;
    each_match(&mut cx.budget, list, End::Left, usize::MAX, args.at(3), |at| {
        pivot = Some(at);
        Break(())
    })?;
    let Some(pivot) = pivot else {
        cx.out.int(-1);
        return Ok(());
    };
    let len = list.len() + 1;
    if let Some(list) = cx.view.list_mut(key)? {
        list.insert(pivot + behind, args.at(4));
    }
    cx.view.changed(key, Class::List, "linsert");
    cx.out.int(len as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    const INTEGER: &str = "-ERR value is not an integer or out of range";
    const LEAST: &str =
        "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";

    #[test]
    fn positions_are_found_from_either_end() {
        Db::both(|mut db| {
            db.check(&[
                ("rpush l a b c a b c a", "7"),
                ("lpos l a", "0"),
                ("lpos l x", "nil"),
                ("lpos l a rank 2", "3"),
                ("lpos l a rank -1", "6"),
                ("lpos l a rank 4", "nil"),
                ("lpos l a count 0", "[0, 3, 6]"),
                ("lpos l a count 2", "[0, 3]"),
                ("lpos l a RANK -1 COUNT 0", "[6, 3, 0]"),
                ("lpos l a count 2 count 1", "[0]"),
                ("lpos l a rank 2 count 0 maxlen 4", "[3]"),
                ("lpos l a rank -1 maxlen 1", "6"),
                ("lpos l b rank -1 maxlen 1", "nil"),
                ("lpos l b rank -1 maxlen 1 count 0", "[]"),
                ("lpos l b rank -1 maxlen 0", "4"),
                ("lpos none a", "nil"),
                ("lpos none a count 0", "[]"),
            ]);
        });
    }

    #[test]
    fn bad_options_of_lpos_are_told_before_the_key_is_looked_at() {
        let zero = "-ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
                    negative to start from the end of the list";
        Db::both(|mut db| {
            db.check(&[
                ("set s x", "OK"),
                ("lpos s a rank 0", zero),
                ("lpos s a rank x", INTEGER),
                ("lpos s a rank -9223372036854775808", LEAST),
                ("lpos s a count -1", "-ERR COUNT can't be negative"),
                ("lpos s a count x", "-ERR COUNT can't be negative"),
                ("lpos s a maxlen x", "-ERR MAXLEN can't be negative"),
                ("lpos s a rank 1 count", "-ERR syntax error"),
                ("lpos s a foo 1", "-ERR syntax error"),
                ("lpos s a", WRONG),
            ]);
        });
    }

    #[test]
    fn removing_goes_from_the_end_it_is_told() {
        Db::both(|mut db| {
            db.check(&[("rpush l a b a a c a", "6"), ("set s x", "OK")]);
            db.events();
            db.check(&[
                ("lrem l 1 a", "1"),
                ("lrange l 0 -1", r#"["b", "a", "a", "c", "a"]"#),
                ("lrem l -2 a", "2"),
                ("lrange l 0 -1", r#"["b", "a", "c"]"#),
                ("lrem l 0 x", "0"),
                ("rpush l a a b a", "7"),
                ("lrem l 0 a", "4"),
                ("lrange l 0 -1", r#"["b", "c", "b"]"#),
                ("lrem l 9223372036854775807 b", "2"),
                ("lrem l -9223372036854775807 c", "1"),
                ("lpushx l x", "0"),
                ("lrem none 0 x", "0"),
                ("lrem s x x", INTEGER),
                ("lrem s -9223372036854775808 x", LEAST),
                ("lrem s 0 x", WRONG),
            ]);
            assert_eq!(db.events(), ["lrem:l", "lrem:l", "rpush:l", "lrem:l", "lrem:l", "lrem:l", "del:l"]);
        });
    }

    #[test]
    fn inserting_finds_the_first_pivot() {
        Db::both(|mut db| {
            db.check(&[("rpush l a b b", "3"), ("set s x", "OK")]);
            db.events();
            db.check(&[
                ("linsert l before b 1", "4"),
                ("linsert l AFTER b 2", "5"),
                ("linsert l before a 0", "6"),
                ("linsert l before x y", "-1"),
                ("linsert none after x y", "0"),
                ("linsert none around x y", "-ERR syntax error"),
                ("linsert s before x y", WRONG),
                ("lrange l 0 -1", r#"["0", "a", "1", "b", "2", "b"]"#),
            ]);
            assert_eq!(db.events(), ["linsert:l", "linsert:l", "linsert:l"]);
        });
    }

    #[test]
    fn walks_are_estimated_and_charged_before_anything_changes() {
        Db::both(|mut db| {
            let mut words = vec!["rpush".to_string(), "l".into()];
            words.extend((0..4000).map(|i| (i % 10).to_string()));
            db.call(&words);
            assert_eq!(db.cost(&["lrem", "l", "0", "3"]), 500);
            assert_eq!(db.cost(&["lpos", "l", "3", "maxlen", "80"]), 10);
            assert_eq!(db.cost(&["linsert", "l", "before", &"x".repeat(5120), "y"]), 5500);
            db.steps = 300;
            for command in ["lrem l 0 3", "linsert l after x y", "lpos l x"] {
                assert_eq!(db.line(command), "-ERR internal: run dropped");
            }
            db.check(&[
                ("lpos l 3", "3"),
                ("linsert l after 3 x", "4001"),
                ("lrem l 2 x", "-ERR internal: run dropped"),
            ]);
            db.steps = 10_000;
            db.check(&[("lrem l 0 3", "400"), ("lrem l -1 x", "1"), ("llen l", "3600"), ("lpos l 3", "nil")]);
        });
    }

    #[test]
    fn removing_agrees_with_a_dull_model() {
        let mut db = Db::new();
        let mut seed = 7u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let mut model: Vec<String> = (0..1 + next(300)).map(|_| next(3).to_string()).collect();
            let mut words = vec!["rpush".to_string(), "l".into()];
            words.extend(model.iter().cloned());
            db.call(&words);
            let (count, element) = (next(40) as i64 - 20, next(3).to_string());
            let mut left = if count == 0 { usize::MAX } else { count.unsigned_abs() as usize };
            let before = model.len();
            let mut keep = |e: &String| {
                *e != element || left == 0 || {
                    left -= 1;
                    false
                }
            };
            if count < 0 {
                model.reverse();
                model.retain(&mut keep);
                model.reverse();
            } else {
                model.retain(&mut keep);
            }
            assert_eq!(db.line(&format!("lrem l {count} {element}")), (before - model.len()).to_string());
            let all: Vec<_> = model.iter().map(|e| format!("\"{e}\"")).collect();
            assert_eq!(db.line("lrange l 0 -1"), format!("[{}]", all.join(", ")));
            db.line("del l");
        }
    }
}
