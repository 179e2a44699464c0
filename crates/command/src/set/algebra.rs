//! SINTER, SUNION, SDIFF, their STORE forms, SINTERCARD.
//!
//! A short result is computed inline and written straight into the reply. A long one runs on a worker, which
//! keeps the result and streams it. Integers are kept as a tree that shares with the walked set, other
//! members as one bit each.

use super::members::write;
use crate::options::{int, is};
use crate::table::{
    Begin, Command, DENYOOM, Find, KeySpec, MOVABLEKEYS, OW_UPDATE, READONLY, RO_ACCESS, Run, WRITE, acl,
};
use crate::{Budget, Cx, Error, STREAM_FROM, Stream};
use keyspace::{Class, View};
use resp::{Args, Reply};
use std::ops::ControlFlow::{self, Break, Continue};
use value::Held;
use value::set::algebra::{self, Answer, Taker};
use value::{Elem, Enc, Kind, Set, Value};

const ORDER: &[&str] = &["nondeterministic_output_order"];
const ALL: &[KeySpec] = &[KeySpec::range(1, -1, 1, RO_ACCESS)];
const INTO: &[KeySpec] = &[KeySpec::one(1, OW_UPDATE), KeySpec::range(2, -1, 1, RO_ACCESS)];

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("sinter", -2, Run::Read(sinter), READONLY, acl::SET)
        .keys(ALL)
        .tips(ORDER)
        .cost(inter_cost)
        .apart()
        .doc(
            "set",
            "1.0.0",
            "O(N*M) for the smallest of M sets having N members.",
            "Answers the members that all sets have.",
        ),
    Command::new("sinterstore", -3, Run::Write(sinterstore), WRITE | DENYOOM, acl::SET)
        .keys(INTO)
        .cost(inter_store_cost)
        .doc(
            "set",
            "1.0.0",
            "O(N*M) for the smallest of M sets having N members.",
            "Keeps the members that all sets have under another key.",
        ),
    Command::new("sintercard", -3, Run::Read(sintercard), READONLY | MOVABLEKEYS, acl::SET)
        .keys(&[KeySpec {
            uses: RO_ACCESS,
            begin: Begin::Index(1),
            find: Find::KeyNum { num: 0, first: 1, step: 1 },
            notes: "",
        }])
        .cost(card_cost)
        .apart()
        .doc(
            "set",
            "7.0.0",
            "O(N*M) for the smallest of M sets having N members.",
            "Counts the members that all sets have.",
        ),
    Command::new("sunion", -2, Run::Read(sunion), READONLY, acl::SET)
        .keys(ALL)
        .tips(ORDER)
        .cost(sum_cost)
        .apart()
        .doc(
            "set",
            "1.0.0",
            "O(N) for N members in all sets.",
            "Answers the members that any of the sets has.",
        ),
    Command::new("sunionstore", -3, Run::Write(sunionstore), WRITE | DENYOOM, acl::SET)
        .keys(INTO)
        .cost(sum_store_cost)
        .doc(
            "set",
            "1.0.0",
            "O(N) for N members in all sets.",
            "Keeps the members that any of the sets has under another key.",
        ),
    Command::new("sdiff", -2, Run::Read(sdiff), READONLY, acl::SET)
        .keys(ALL)
        .tips(ORDER)
        .cost(diff_cost)
        .apart()
        .doc(
            "set",
            "1.0.0",
            "O(N*M) for N members of the first of M sets.",
            "Answers the members of the first set that no other set has.",
        ),
    Command::new("sdiffstore", -3, Run::Write(sdiffstore), WRITE | DENYOOM, acl::SET)
        .keys(INTO)
        .cost(diff_store_cost)
        .doc(
            "set",
            "1.0.0",
            "O(N*M) for N members of the first of M sets.",
            "Keeps the members of the first set that no other set has under another key.",
        ),
];

// ----- costs -----------------------------------------------------------------------------------------------

/// Bytes of members that cost one step more, as members are hashed and compared.
const BYTES_PER_STEP: usize = 1024;

fn byte_steps(set: &Set) -> usize {
    set.mem_bytes() / BYTES_PER_STEP
}

fn steps(view: &View<'_>, keys: Args<'_>) -> impl Iterator<Item = usize> {
    let of = |set: &Set| set.len() + byte_steps(set);
    keys.iter().map(move |key| view.set(key).ok().flatten().map_or(0, of))
}

fn present<'v>(view: &'v View<'_>, keys: Args<'v>) -> impl Iterator<Item = &'v Set> {
    keys.iter().map(|key| view.set(key).ok().flatten().unwrap_or(&EMPTY))
}

fn inter_steps(view: &View<'_>, keys: Args<'_>) -> usize {
    steps(view, keys).min().unwrap_or(0) * keys.len().max(1)
}

/// Steps of a difference. Each element is looked up in all other sets, or the members of the others are
/// removed.
fn diff_steps(view: &View<'_>, keys: Args<'_>) -> usize {
    let first = steps(view, keys).next().unwrap_or(0);
    let all = first.saturating_mul(keys.len().max(1));
    if keys.len() > algebra::MANY { all.min(steps(view, keys).sum()) } else { all }
}

fn sum_steps(view: &View<'_>, keys: Args<'_>) -> usize {
    // A union of many sets builds a new set.
    steps(view, keys).sum::<usize>() * if keys.len() > algebra::MANY { 8 } else { 2 }
}

fn inter_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let sets = || present(view, args.from(1));
    let least = sets().min_by_key(|set| set.len());
    least.map_or(0, |least| algebra::work(least, sets().skip(1)) + byte_steps(least) * args.len())
}

fn inter_store_cost(view: &View<'_>, args: Args<'_>) -> usize {
    inter_steps(view, args.from(2))
}

/// Dense integers are counted container by container, so they cost no more than their bytes.
fn card_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let Some(keys) = numkeys(args) else { return 0 };
    let one = |set: &Set| set.len().min(set.mem_bytes() / 8) + byte_steps(set);
    let least = keys.iter().map(|key| view.set(key).ok().flatten().map_or(0, one)).min();
    least.unwrap_or(0) * keys.len().max(1)
}

fn diff_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let keys = args.from(1);
    if keys.len() > algebra::MANY {
        return diff_steps(view, keys);
    }
    let mut sets = present(view, keys);
    sets.next().map_or(0, |first| byte_steps(first) * keys.len() + algebra::work(first, sets))
}

fn diff_store_cost(view: &View<'_>, args: Args<'_>) -> usize {
    diff_steps(view, args.from(2))
}

fn sum_cost(view: &View<'_>, args: Args<'_>) -> usize {
    sum_steps(view, args.from(1))
}

fn sum_store_cost(view: &View<'_>, args: Args<'_>) -> usize {
    sum_steps(view, args.from(2))
}

// ----- reading ---------------------------------------------------------------------------------------------

/// Most members of a result that is rebuilt for its encoding: Redis's default for its largest set of
/// integers.
const REBUILT_MAX: usize = 512;

static EMPTY: Set = Set::new();

/// Counts the look-ups of some keys as hits and misses, up to the first key of another type.
fn count_lookups(view: &mut View<'_>, keys: Args<'_>) {
    let mut hits = 0;
    for key in keys.iter() {
        match view.kind(key) {
            Some(kind) => {
                hits += 1;
                if kind != Kind::Set {
                    break;
                }
            }
            None => view.count_lookup(key, false),
        }
    }
    view.count_hits(hits);
}

/// The sets of some keys. A missing key is an empty set. Errors: WRONGTYPE of any key.
fn sets<'v>(view: &'v View<'_>, keys: Args<'_>) -> Result<Vec<&'v Set>, Error> {
    keys.iter().map(|key| Ok(view.set(key)?.unwrap_or(&EMPTY))).collect()
}

/// Charges the work of a kernel and keeps the refusal.
macro_rules! pause {
    ($budget:expr, $refused:ident) => {
        &mut |steps| match $budget.charge(steps) {
            Ok(()) => Continue(()),
            Err(error) => {
                $refused = Some(error);
                Break(())
            }
        }
    };
}

type Kernel = for<'a> fn(&[&'a Set], algebra::Pause<'_>, &mut dyn Taker<'a>) -> ControlFlow<()>;

fn diff_kernel<'a>(sets: &[&'a Set], pause: algebra::Pause<'_>, to: &mut dyn Taker<'a>) -> ControlFlow<()> {
    algebra::diff_to(sets[0], &sets[1..], pause, to)
}

/// Writes members until the reply is `end` bytes long.
struct Writer<'o> {
    out: &'o mut Reply,
    count: usize,
    end: usize,
}

impl Writer<'_> {
    fn wrote(&mut self, count: usize) -> ControlFlow<()> {
        self.count += count;
        if self.out.len() < self.end { Continue(()) } else { Break(()) }
    }
}

impl<'a> Taker<'a> for Writer<'_> {
    fn take(&mut self, elem: Elem<'a>) -> ControlFlow<()> {
        write(self.out, elem);
        self.wrote(1)
    }

    fn take_ints(&mut self, ints: &[i64]) -> ControlFlow<()> {
        self.out.bulk_ints(ints);
        self.wrote(ints.len())
    }
}

/// Writes the result of a kernel as it comes, and its length afterwards.
fn answer(out: &mut Reply, budget: &mut Budget<'_>, sets: &[&Set], kernel: Kernel) -> Result<(), Error> {
    let (mark, mut refused) = (out.mark(), None);
    let mut writer = Writer { out, count: 0, end: usize::MAX };
    let _ = kernel(sets, pause!(budget, refused), &mut writer);
    if let Some(error) = refused {
        return Err(error);
    }
    let Writer { out, count, .. } = writer;
    out.set_at(mark, count);
    Ok(())
}

/// A result, written piece by piece.
struct Chosen(Answer);

impl Stream for Chosen {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        self.0.take(&mut Writer { out, count: 0, end })
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.0.held().into_iter().for_each(held);
    }
}

/// Several results in a row: a union is each set without the earlier ones.
struct Union {
    parts: Vec<Chosen>,
}

impl Stream for Union {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while let Some(part) = self.parts.last_mut() {
            let left = end.saturating_sub(out.len());
            if left == 0 || part.fill(out, left) {
                return true;
            }
            self.parts.pop();
        }
        false
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.parts.iter().for_each(|part| part.holds(held));
    }
}

/// Whether the result should be kept and streamed.
fn is_large(cx: &Cx<'_, '_>, len: usize) -> bool {
    cx.caller.may_stream && len > 16 * STREAM_FROM
}

/// `SINTER key [key ...]`: members present in every set. A missing key is an empty set.
///
/// Cost: O(n·m), n = members of the smallest set, m = keys. Errors: WRONGTYPE.
fn sinter(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let keys = args.from(1);
    count_lookups(cx.view, keys);
    let mut all = sets(cx.view, keys)?;
    all.sort_by_key(|set| set.len());
    if !is_large(cx, all[0].len()) {
        return answer(cx.out, &mut cx.budget, &all, algebra::inter_to);
    }
    let mut refused = None;
    let found = algebra::inter_answer(all[0], &all[1..], pause!(cx.budget, refused));
    stream_one(cx, found, refused)
}

/// `SDIFF key [key ...]`: members of the first set that no other set has.
///
/// Cost: O(min(n·m, k)), n = members of the first set, m = keys, k = members of all. Errors: WRONGTYPE.
fn sdiff(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let keys = args.from(1);
    count_lookups(cx.view, keys);
    let all = sets(cx.view, keys)?;
    let mut refused = None;
    if algebra::are_many(all[0], &all[1..]) {
        let found = Set::remainder(all[0], &all[1..], pause!(cx.budget, refused));
        return whole(cx, found, refused);
    }
    if !is_large(cx, all[0].len()) {
        return answer(cx.out, &mut cx.budget, &all, diff_kernel);
    }
    let found = algebra::diff_answer(all[0], &all[1..], pause!(cx.budget, refused));
    stream_one(cx, found, refused)
}

/// Answers a computed set.
fn whole(cx: &mut Cx<'_, '_>, found: Option<Set>, refused: Option<Error>) -> Result<(), Error> {
    let Some(found) = found else { return Err(refused.unwrap_or(Error::Cancelled)) };
    cx.out.set(found.len());
    super::members::answer(cx, found)
}

fn stream_one(cx: &mut Cx<'_, '_>, found: Option<Answer>, refused: Option<Error>) -> Result<(), Error> {
    let Some(found) = found else { return Err(refused.unwrap_or(Error::Cancelled)) };
    cx.out.set(found.len());
    cx.stream(Chosen(found))?;
    Ok(())
}

/// `SUNION key [key ...]`: members of any of the sets.
///
/// Cost: O(n·min(m, log n)), n = members of all sets, m = keys. Errors: WRONGTYPE.
fn sunion(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let keys = args.from(1);
    count_lookups(cx.view, keys);
    let all = sets(cx.view, keys)?;
    if all.len() > algebra::MANY {
        let mut refused = None;
        let found = Set::union(&all, pause!(cx.budget, refused));
        return whole(cx, found, refused);
    }
    if !is_large(cx, all.iter().map(|set| set.len()).sum()) {
        return answer(cx.out, &mut cx.budget, &all, algebra::union_to);
    }
    let (mut refused, mut parts, mut count) = (None, Vec::new(), 0);
    for (i, set) in all.iter().enumerate() {
        let part = algebra::diff_answer(set, &all[..i], pause!(cx.budget, refused));
        let Some(part) = part else { return Err(refused.unwrap_or(Error::Cancelled)) };
        count += part.len();
        parts.push(Chosen(part));
    }
    // The last part is written first: the order is free, and a finished part is popped.
    cx.out.set(count);
    cx.stream(Union { parts })?;
    Ok(())
}

// ----- storing ---------------------------------------------------------------------------------------------

/// Puts a result under a key and answers its number of members. An empty result removes the key.
fn store(cx: &mut Cx<'_, '_>, key: &[u8], result: Set, event: &'static str) -> Result<(), Error> {
    cx.out.int(result.len() as i64);
    if !result.is_empty() {
        cx.view.put(key, Value::Set(result), None);
        cx.view.changed(key, Class::Set, event);
    } else if cx.view.remove(key) {
        cx.view.changed(key, Class::Generic, "del");
    }
    Ok(())
}

/// A result in the encoding that Redis builds element by element. A copy of a set of texts may hold only
/// integers. Large sets have only one encoding.
fn rebuilt(result: Set) -> Set {
    if result.len() > REBUILT_MAX || result.encoding() == Enc::IntSet {
        return result;
    }
    let mut fresh = Set::new();
    result.iter().for_each(|member| {
        fresh.insert_elem(member, member.hash());
    });
    fresh
}

/// `SINTERSTORE destination key [key ...]`: stores the intersection and answers its number of members.
///
/// Cost: O(n·m), n = members of the smallest set, m = keys. Errors: WRONGTYPE of a source.
fn sinterstore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    count_lookups(cx.view, args.from(2));
    let all = sets(cx.view, args.from(2))?;
    let mut refused = None;
    let result = Set::intersection(&all, pause!(cx.budget, refused));
    let result = result.ok_or_else(|| refused.unwrap_or(Error::Cancelled))?;
    store(cx, args.at(1), result, "sinterstore")
}

/// `SUNIONSTORE destination key [key ...]`: stores the union and answers its number of members.
///
/// Cost: O(n·min(m, log n)), n = members of all sets, m = keys. Errors: WRONGTYPE of a source.
fn sunionstore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    count_lookups(cx.view, args.from(2));
    let all = sets(cx.view, args.from(2))?;
    let mut refused = None;
    let result = Set::union(&all, pause!(cx.budget, refused));
    let result = result.ok_or_else(|| refused.unwrap_or(Error::Cancelled))?;
    store(cx, args.at(1), rebuilt(result), "sunionstore")
}

/// `SDIFFSTORE destination key [key ...]`: stores the difference and answers its number of members.
///
/// Cost: O(min(n·m, k)), n = members of the first set, m = keys, k = members of all. Errors: WRONGTYPE of a
/// source.
fn sdiffstore(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    count_lookups(cx.view, args.from(2));
    let all = sets(cx.view, args.from(2))?;
    let mut refused = None;
    let result = Set::difference(all[0], &all[1..], pause!(cx.budget, refused));
    let result = result.ok_or_else(|| refused.unwrap_or(Error::Cancelled))?;
    store(cx, args.at(1), rebuilt(result), "sdiffstore")
}

/// The keys of `numkeys key [key ...]`, if the number is right.
fn numkeys(args: Args<'_>) -> Option<Args<'_>> {
    let count = stdx::num::parse_i64(args.at(1)).filter(|n| *n > 0)? as usize;
    (count + 2 <= args.len()).then(|| args.to(2 + count).from(2))
}

/// `SINTERCARD numkeys key [key ...] [LIMIT limit]`: the number of members present in every set, up to the
/// limit.
///
/// Cost: O(n·m), n = members of the smallest set, m = keys; less with a limit. Errors: bad numkeys, syntax,
/// LIMIT negative, WRONGTYPE.
fn sintercard(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    if int(args.at(1)).ok().is_none_or(|n| n <= 0) {
        return Err(Error::new("ERR numkeys should be greater than 0"));
    }
    let keys = numkeys(args).ok_or(Error::new("ERR Number of keys can't be greater than number of args"))?;
    let (mut limit, mut i) = (0, 2 + keys.len());
    while i < args.len() {
        if !is(args.at(i), "limit") || i + 1 >= args.len() {
            return Err(Error::Syntax);
        }
        limit = match int(args.at(i + 1)) {
            Ok(n) if n >= 0 => n as usize,
            _ => return Err(Error::new("ERR LIMIT can't be negative")),
        };
        i += 2;
    }
    count_lookups(cx.view, keys);
    let all = sets(cx.view, keys)?;
    let (mut refused, mut count) = (None, 0);
    if limit == 0 {
        let len = algebra::inter_len(&all, pause!(cx.budget, refused));
        cx.out.int(len.ok_or_else(|| refused.unwrap_or(Error::Cancelled))? as i64);
        return Ok(());
    }
    let _ = algebra::inter(&all, pause!(cx.budget, refused), &mut |_| {
        count += 1;
        if count >= limit { Break(()) } else { Continue(()) }
    });
    if let Some(error) = refused {
        return Err(error);
    }
    cx.out.int(count as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    /// As many sets as are joined or subtracted one by one: with integers, texts, a missing key and one of
    /// another type.
    #[test]
    fn very_many_sets_answer_as_few_do() {
        Db::both(|mut db| {
            db.run(&["SADD", "big", "a", "b", "c", "x", "1", "2", "3", "99"]);
            let keys: Vec<String> = (0..40).map(|i| format!("k{i}")).collect();
            for (i, key) in keys.iter().enumerate().filter(|(i, _)| i % 7 != 3) {
                db.run(&["SADD", key, ["a", "b", "c"][i % 3], &(i % 5).to_string()]);
            }
            let with = |first: &[&str]| -> Vec<String> {
                first.iter().map(|word| (*word).to_owned()).chain(keys.iter().cloned()).collect()
            };
            let mut run = |words: &[&str]| {
                let words = with(words);
                db.run(&words.iter().map(String::as_str).collect::<Vec<_>>())
            };
            let sorted = |reply: String| {
                let mut words: Vec<String> =
                    reply.split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect();
                words.retain(|word| !word.is_empty());
                words.sort();
                words.join(" ")
            };
            assert_eq!(sorted(run(&["SDIFF", "big"])), "99 x");
            assert_eq!(sorted(run(&["SUNION", "big"])), "0 1 2 3 4 99 a b c x");
            assert_eq!(run(&["SDIFFSTORE", "rest", "big"]), "2");
            assert_eq!(run(&["SUNIONSTORE", "all", "big"]), "10");
            db.run(&["LPUSH", "k39", "no set"]);
            db.run(&["DEL", "k39"]);
            db.run(&["LPUSH", "k39", "no set"]);
            for command in [&["SUNION", "big"][..], &["SDIFF", "big"], &["SUNIONSTORE", "d", "big"]] {
                let words = with(command);
                let reply = db.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
                assert!(reply.contains("WRONGTYPE"), "{reply}");
            }
        });
    }

    #[test]
    fn a_stored_result_of_integers_is_encoded_as_such() {
        Db::both(|mut db| {
            db.check(&[
                ("SADD all 1 2 3 text", "4"),
                ("SADD texts text", "1"),
                ("SDIFFSTORE numbers all texts", "3"),
                ("SUNIONSTORE union numbers numbers", "3"),
            ]);
            for key in ["numbers", "union"] {
                assert!(db.run(&["OBJECT", "ENCODING", key]).contains("intset"), "{key}");
            }
            assert!(db.run(&["OBJECT", "ENCODING", "all"]).contains("listpack"));
        });
    }
}
