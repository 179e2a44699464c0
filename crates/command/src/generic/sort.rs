//! SORT and SORT_RO.
//!
//! The elements are copied out, weighed, sorted and answered. The keys of BY and GET follow from the
//! elements. A run that meets keys its view does not know names all it can, and is repeated once they are
//! loaded. It changes nothing before.
//!
//! ```text
//!   elements ─► weights (BY) ─► GET's values, in their order ─► sorted: (weight, number of the element) ─► answered
//! ```
//!
//! With LIMIT, GET's values are looked up once the order is known. Values are not copied before they are
//! answered.

use crate::options::{int, is};
use crate::table::*;
use crate::{Budget, Cx, Error, STREAM_FROM, Stream};
use keyspace::{Class, View};
use resp::{Args, Reply};
use std::borrow::Cow;
use std::cmp::Ordering;
use value::{Held, List, StrRef, Value, ValueRef};

const BY_GET: &str = "For the optional BY/GET keyword: the key names follow from the elements";
const STORE: &str = "For the optional STORE keyword, which may stand anywhere";

const fn unknown(uses: Use, notes: &'static str) -> KeySpec {
    KeySpec { uses, begin: Begin::Unknown, find: Find::Unknown, notes }
}

/// SORT's options. A word taken by one is not an option. The last STORE counts.
const SORT_OPTIONS: OptionWords =
    OptionWords { from: 2, takes: &[("limit", 2), ("by", 1), ("get", 1), ("store", 1)] };

const STORED: KeySpec = KeySpec {
    begin: Begin::Last { word: "store", options: SORT_OPTIONS },
    notes: STORE,
    ..KeySpec::range(0, 0, 1, OW_UPDATE)
};

const CATEGORIES: u32 = acl::SET | acl::SORTEDSET | acl::LIST | acl::DANGEROUS;
const COMPLEXITY: &str = "O(N+M*log(M)) for N elements of which M are sorted.";

pub(crate) static COMMANDS: &[Command] = &[
    Command::new(
        "sort",
        -2,
        Run::Write(|cx, args| sort(cx, args, true)),
        WRITE | DENYOOM | MOVABLEKEYS,
        CATEGORIES,
    )
    .keys(&[KeySpec::one(1, RO_ACCESS), unknown(RO_ACCESS, BY_GET), STORED])
    .cost(cost)
    .doc(
        "generic",
        "1.0.0",
        COMPLEXITY,
        "Sorts a list, set or sorted set, and answers or stores the result.",
    ),
    Command::new(
        "sort_ro",
        -2,
        Run::Read(|cx, args| sort(cx, args, false)),
        READONLY | MOVABLEKEYS,
        CATEGORIES,
    )
    .keys(&[KeySpec::one(1, RO_ACCESS), unknown(RO_ACCESS, BY_GET)])
    .cost(cost)
    .doc("generic", "7.0.0", COMPLEXITY, "Sorts a list, set or sorted set and answers the result."),
];

fn cost(view: &View<'_>, args: Args<'_>) -> usize {
    let len = view.value(args.at(1)).map_or(0, |value| len(&value));
    len * 4 + len * (usize::BITS - len.leading_zeros()) as usize
}

fn len(value: &ValueRef<'_>) -> usize {
    match value {
        ValueRef::Str(_) | ValueRef::Stream(_) | ValueRef::Roaring(_) | ValueRef::Roaring64(_) => 0,
        ValueRef::List(v) => v.len(),
        ValueRef::Set(v) => v.len(),
        ValueRef::ZSet(v) => v.len(),
        ValueRef::Hash(v) => v.len(),
    }
}

struct SortOptions<'a> {
    descending: bool,
    alpha: bool,
    limit: Option<(i64, i64)>,
    by: Option<&'a [u8]>,
    get: Vec<&'a [u8]>,
    store: Option<&'a [u8]>,
}

impl<'a> SortOptions<'a> {
    fn parse(args: Args<'a>, may_store: bool) -> Result<SortOptions<'a>, Error> {
        let mut o = SortOptions {
            descending: false,
            alpha: false,
            limit: None,
            by: None,
            get: Vec::new(),
            store: None,
        };
        let mut i = 2;
        while i < args.len() {
            let (word, left) = (args.at(i), args.len() - i - 1);
            i += match word {
                w if is(w, "asc") => {
                    o.descending = false;
                    1
                }
                w if is(w, "desc") => {
                    o.descending = true;
                    1
                }
                w if is(w, "alpha") => {
                    o.alpha = true;
                    1
                }
                w if is(w, "limit") && left >= 2 => {
                    o.limit = Some((int(args.at(i + 1))?, int(args.at(i + 2))?));
                    3
                }
                w if is(w, "store") && left >= 1 && may_store => {
                    o.store = Some(args.at(i + 1));
                    2
                }
                w if is(w, "by") && left >= 1 => {
                    o.by = Some(args.at(i + 1));
                    2
                }
                w if is(w, "get") && left >= 1 => {
                    o.get.push(args.at(i + 1));
                    2
                }
                _ => return Err(Error::Syntax),
            };
        }
        Ok(o)
    }

    /// Whether elements may be equal to the sort, so that other servers order them in another way.
    fn leaves_ties(&self) -> bool {
        self.alpha && self.by.is_some_and(|pattern| pattern.contains(&b'*'))
    }

    /// Whether fields of hashes are looked at.
    fn reads_fields(&self) -> bool {
        let of_field = |pattern: &&[u8]| pattern.windows(2).any(|two| two == b"->");
        self.by.iter().chain(&self.get).any(of_field)
    }

    /// Whether to sort. BY a pattern without `*` means: do not sort.
    fn sorts(&self) -> bool {
        self.by.is_none_or(|by| by.contains(&b'*'))
    }

    fn window(&self, len: usize) -> std::ops::Range<usize> {
        let Some((offset, count)) = self.limit else { return 0..len };
        let start = offset.clamp(0, len as i64) as usize;
        let end = if count < 0 { len } else { start.saturating_add(count as usize).min(len) };
        start..end
    }
}

/// Bytes of an element besides its text: its place in the list, in the weights, and in the order.
const ELEMENT_BYTES: usize = 64;
/// Bytes of a stored element above which it is counted before it is copied.
const LONG: usize = 1024;

/// The weights of the elements, each with the element's number.
enum Weights<'v> {
    Numbers(Vec<(u64, u32)>),
    Texts(Vec<(Option<Cow<'v, [u8]>>, u32)>),
    /// The elements themselves, as text.
    Own,
}

/// `SORT key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA] [STORE
/// destination]`, and SORT_RO without STORE: the elements, or the number stored.
///
/// Cost: O(n + m·log m), n = elements, m = elements sorted. Errors: syntax, LIMIT not an integer, WRONGTYPE,
/// weights that are not numbers, out of work memory.
fn sort(cx: &mut Cx<'_, '_>, args: Args<'_>, may_store: bool) -> Result<(), Error> {
    let options = SortOptions::parse(args, may_store)?;
    let mut elements = elements(cx, args.at(1), &options)?;
    look_out(cx.view, &mut cx.budget, &elements, &options)?;
    let must_sort = must_sort(cx, args.at(1), &options);
    let (view, budget): (&View<'_>, _) = (cx.view, &mut cx.budget);
    let weights = match must_sort {
        true => Some(weigh(view, budget, &elements, &options)?),
        false => None,
    };
    // Without LIMIT all elements are wanted: their keys can be named before the order is known.
    let all = match options.limit {
        None if !options.get.is_empty() => Some(Gotten::of(view, budget, elements.iter(), &options)?),
        _ => None,
    };
    if view.awaits_keys() {
        return Ok(());
    }
    let order = match weights {
        Some(weights) => order(weights, &elements, &options),
        None => (0..elements.len() as u32).collect(),
    };
    let order = &order[options.window(elements.len())];
    if options.get.is_empty() {
        let elements = order.iter().map(|i| std::mem::take(&mut elements[*i as usize])).collect();
        return match options.store {
            Some(destination) => {
                let list = listed(cx, &elements)?;
                store(cx, destination, list, &options)
            }
            None => answer(cx, elements),
        };
    }
    let gotten = match all {
        Some(all) => all.in_order(order),
        None => {
            let chosen = order.iter().map(|i| &elements[*i as usize]);
            Gotten::of(view, budget, chosen, &options)?
        }
    };
    if view.awaits_keys() {
        return Ok(());
    }
    match options.store {
        Some(destination) => {
            let list = gotten.listed(budget)?;
            drop(gotten);
            store(cx, destination, list, &options)
        }
        None => gotten.answer(cx.out, budget),
    }
}

/// Position of the key that a SORT stores to. O(words).
pub fn sort_destination(args: Args<'_>) -> Option<usize> {
    let (mut i, mut found) = (2, None);
    while let Some(word) = args.get(i) {
        match word {
            w if is(w, "limit") => i += 3,
            w if is(w, "by") || is(w, "get") => i += 2,
            w if is(w, "store") => {
                found = Some(i + 1);
                i += 2;
            }
            _ => i += 1,
        }
    }
    found.filter(|at| *at < args.len())
}

/// Checks whether BY and GET point to keys that are kept elsewhere, which must not count as absent. O(n ·
/// patterns) if there are such keys. Errors: such a key.
fn look_out(
    view: &View<'_>,
    budget: &mut Budget<'_>,
    elements: &[Vec<u8>],
    options: &SortOptions<'_>,
) -> Result<(), Error> {
    let Some(elsewhere) = view.elsewhere() else { return Ok(()) };
    let by = options.by.filter(|_| options.sorts());
    let patterns: Vec<_> = by.into_iter().chain(options.get.iter().copied()).map(Pattern::parse).collect();
    let mut name = Vec::new();
    for element in elements {
        for pattern in &patterns {
            budget.charge(1)?;
            if pattern.name(element, &mut name)
                && let Some(why) = elsewhere(&name)
            {
                return Err(why.into());
            }
        }
    }
    Ok(())
}

/// Whether to sort. A set has no order of its own, so it is also sorted where the result must not depend on
/// chance.
fn must_sort(cx: &Cx<'_, '_>, key: &[u8], options: &SortOptions<'_>) -> bool {
    let is_set = matches!(cx.view.value(key), Some(ValueRef::Set(_)));
    options.sorts() || is_set && (options.store.is_some() || cx.caller.in_script)
}

fn elements(cx: &mut Cx<'_, '_>, key: &[u8], options: &SortOptions<'_>) -> Result<Vec<Vec<u8>>, Error> {
    let n = cx.view.value(key).map_or(0, |value| len(&value));
    cx.charge(n)?;
    let bytes = match cx.view.value(key) {
        Some(ValueRef::List(list)) => list.mem_bytes(),
        Some(ValueRef::Set(set)) => set.mem_bytes(),
        Some(ValueRef::ZSet(zset)) => zset.mem_bytes(),
        _ => 0,
    };
    cx.budget.take(bytes.saturating_add(n.saturating_mul(ELEMENT_BYTES)))?;
    Ok(match cx.view.value(key) {
        None => Vec::new(),
        Some(ValueRef::List(list)) => {
            let mut elements: Vec<Vec<u8>> = list.iter().map(|e| e.to_vec()).collect();
            // Unsorted, a list or a sorted set comes in the direction asked for.
            if options.descending && !options.sorts() {
                elements.reverse();
            }
            elements
        }
        Some(ValueRef::Set(set)) => set.iter().map(|e| e.to_vec()).collect(),
        Some(ValueRef::ZSet(zset)) if options.descending && !options.sorts() => match zset.len() {
            0 => Vec::new(),
            len => zset.iter_rev_from(len - 1).map(|(member, _)| member.to_vec()).collect(),
        },
        Some(ValueRef::ZSet(zset)) => zset.iter_from(0).map(|(member, _)| member.to_vec()).collect(),
        Some(_) => return Err(Error::WrongType),
    })
}

/// Finds the weights of the elements. O(n).
fn weigh<'v>(
    view: &'v View<'_>,
    budget: &mut Budget<'_>,
    elements: &'v [Vec<u8>],
    options: &SortOptions<'v>,
) -> Result<Weights<'v>, Error> {
    let alpha = options.alpha || !options.sorts();
    let by = options.by.filter(|_| options.sorts()).map(Pattern::parse);
    let (mut numbers, mut texts, mut name) = (Vec::new(), Vec::new(), Vec::new());
    match (&by, alpha) {
        (None, true) => {
            budget.charge(2 * elements.len())?;
            return Ok(Weights::Own);
        }
        (Some(_), true) => texts.reserve(elements.len()),
        (_, false) => numbers.reserve(elements.len()),
    }
    for (element, i) in elements.iter().zip(0..) {
        budget.charge(2)?;
        match &by {
            Some(by) if alpha => texts.push((by.find(view, element, &mut name), i)),
            Some(by) => {
                let text = by.find(view, element, &mut name);
                numbers.push((sortable(text.map_or(Ok(0.0), |text| number(&text))?), i));
            }
            None => numbers.push((sortable(number(element)?), i)),
        }
    }
    Ok(if alpha { Weights::Texts(texts) } else { Weights::Numbers(numbers) })
}

/// The elements' numbers in sorted order. Equal weights are ordered by the elements, so that the result is
/// always the same. O(n·log n).
fn order(weights: Weights<'_>, elements: &[Vec<u8>], options: &SortOptions<'_>) -> Vec<u32> {
    let element = |i: &u32| &elements[*i as usize];
    let directed = |order: Ordering| if options.descending { order.reverse() } else { order };
    match weights {
        Weights::Numbers(mut numbers) => {
            numbers.sort_unstable_by(|(x, a), (y, b)| {
                directed(x.cmp(y).then_with(|| element(a).cmp(element(b))))
            });
            numbers.into_iter().map(|(_, i)| i).collect()
        }
        Weights::Texts(mut texts) => {
            texts.sort_unstable_by(|(x, _), (y, _)| directed(x.cmp(y)));
            texts.into_iter().map(|(_, i)| i).collect()
        }
        Weights::Own => {
            let mut order: Vec<u32> = (0..elements.len() as u32).collect();
            order.sort_unstable_by(|a, b| directed(element(a).cmp(element(b))));
            order
        }
    }
}

/// A whole number in the order of the floats. The two zeros are equal.
fn sortable(number: f64) -> u64 {
    let bits = (number + 0.0).to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

/// Reads a number as strtod does: leading blanks and an empty text are allowed. Hexadecimal is not.
fn number(text: &[u8]) -> Result<f64, Error> {
    let text = text.trim_ascii_start();
    if text.is_empty() {
        return Ok(0.0);
    }
    let decimal = !text.iter().any(|b| matches!(b, b'x' | b'X'));
    decimal
        .then(|| stdx::num::parse_f64(text))
        .flatten()
        .ok_or(Error::new("ERR One or more scores can't be converted into double"))
}

/// A BY or GET pattern.
enum Pattern<'a> {
    /// `#`: the element itself.
    Element,
    /// A key, as the parts before and behind the element, and a field of it if it is a hash.
    Key(&'a [u8], &'a [u8], Option<&'a [u8]>),
    /// A pattern without `*`.
    Nothing,
}

impl<'a> Pattern<'a> {
    fn parse(pattern: &'a [u8]) -> Pattern<'a> {
        if *pattern == *b"#" {
            return Pattern::Element;
        }
        let Some(star) = pattern.iter().position(|b| *b == b'*') else { return Pattern::Nothing };
        let (before, behind) = (&pattern[..star], &pattern[star + 1..]);
        // An arrow at the very end is part of the key.
        let arrow = behind.windows(2).position(|w| w == b"->").filter(|at| at + 2 < behind.len());
        match arrow {
            Some(at) => Pattern::Key(before, &behind[..at], Some(&behind[at + 2..])),
            None => Pattern::Key(before, behind, None),
        }
    }

    /// Writes the name of the key for an element. False if the pattern names none. O(1).
    fn name(&self, element: &[u8], name: &mut Vec<u8>) -> bool {
        let Pattern::Key(before, behind, _) = self else { return false };
        name.clear();
        [*before, element, *behind].iter().for_each(|part| name.extend_from_slice(part));
        true
    }

    /// The value for an element, or None. `name` is a buffer for the key's name. O(1).
    fn find<'v>(&self, view: &'v View<'_>, element: &'v [u8], name: &mut Vec<u8>) -> Option<Cow<'v, [u8]>> {
        let Pattern::Key(_, _, field) = self else {
            return matches!(self, Pattern::Element).then_some(Cow::Borrowed(element));
        };
        self.name(element, name);
        match (view.value(name)?, field) {
            (ValueRef::Hash(hash), Some(field)) => hash.get_at(field, view.due_ms()).map(Cow::Borrowed),
            (ValueRef::Str(StrRef::Flat(text)), None) => Some(Cow::Borrowed(text)),
            (ValueRef::Str(s), None) => Some(Cow::Owned(s.to_vec())),
            _ => None,
        }
    }
}

/// The values of the GET patterns, element by element.
struct Gotten<'v> {
    patterns: usize,
    found: Vec<Option<Cow<'v, [u8]>>>,
}

impl<'v> Gotten<'v> {
    /// Looks up the values. O(elements · patterns). Errors: out of work memory, a refused charge.
    fn of(
        view: &'v View<'_>,
        budget: &mut Budget<'_>,
        elements: impl ExactSizeIterator<Item = &'v Vec<u8>> + Clone,
        options: &SortOptions<'v>,
    ) -> Result<Gotten<'v>, Error> {
        let (patterns, mut name) = (options.get.len(), Vec::new());
        budget.take((elements.len() * patterns).saturating_mul(size_of::<Option<Cow<'_, [u8]>>>()))?;
        let mut found = Vec::with_capacity(elements.len() * patterns);
        let each: Vec<Pattern<'_>> = options.get.iter().map(|pattern| Pattern::parse(pattern)).collect();
        for element in elements {
            budget.charge(1 + patterns)?;
            let owned = |found: &Option<Cow<'_, [u8]>>| match found {
                Some(Cow::Owned(text)) => text.len(),
                _ => 0,
            };
            for pattern in &each {
                let text = pattern.find(view, element, &mut name);
                let bytes = owned(&text);
                if bytes > 0 {
                    budget.take(bytes)?;
                }
                found.push(text);
            }
        }
        Ok(Gotten { patterns, found })
    }

    fn in_order(mut self, order: &[u32]) -> Gotten<'v> {
        let places =
            order.iter().flat_map(|i| (0..self.patterns).map(move |j| *i as usize * self.patterns + j));
        let found = places.map(|at| self.found[at].take()).collect();
        Gotten { found, ..self }
    }

    fn answer(&self, out: &mut Reply, budget: &mut Budget<'_>) -> Result<(), Error> {
        out.array(self.found.len());
        for found in &self.found {
            budget.charge_reply(out.len(), 1)?;
            out.bulk_or_null(found.as_deref());
        }
        Ok(())
    }

    fn listed(&self, budget: &mut Budget<'_>) -> Result<List, Error> {
        let mut list = List::new();
        for found in &self.found {
            budget.charge(1)?;
            let bytes = found.as_deref().map_or(0, <[u8]>::len);
            if bytes >= LONG {
                budget.take(bytes)?;
            }
            list.push_back(found.as_deref().unwrap_or_default());
        }
        Ok(list)
    }
}

fn answer(cx: &mut Cx<'_, '_>, elements: Vec<Vec<u8>>) -> Result<(), Error> {
    cx.out.array(elements.len());
    if elements.len() > STREAM_FROM {
        let bytes = elements.iter().map(|element| size_of::<Vec<u8>>() + element.capacity()).sum();
        return cx.stream(Elements { elements, bytes, next: 0 });
    }
    elements.iter().for_each(|element| cx.out.bulk(element));
    Ok(())
}

fn listed(cx: &mut Cx<'_, '_>, elements: &Vec<Vec<u8>>) -> Result<List, Error> {
    let mut list = List::new();
    for element in elements {
        cx.charge(1)?;
        list.push_back(element);
    }
    Ok(list)
}

struct Elements {
    elements: Vec<Vec<u8>>,
    /// Bytes of all elements.
    bytes: usize,
    next: usize,
}

impl Stream for Elements {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while self.next < self.elements.len() && out.len() < end {
            out.bulk(&self.elements[self.next]);
            self.next += 1;
        }
        self.next < self.elements.len()
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        held(Held::own(self, self.bytes));
    }
}

impl Drop for Elements {
    fn drop(&mut self) {
        let elements = std::mem::take(&mut self.elements);
        if elements.len() > STREAM_FROM {
            stdx::reclaim::defer(self.bytes, move || drop(elements));
        }
    }
}

/// Elements of one command that is noted.
const NOTED: usize = 512;

/// Notes the result instead of the command, as another server may find another one. A field that has expired
/// here is still there on it, and equal elements come in another order. O(elements).
fn note(cx: &mut Cx<'_, '_>, destination: &[u8], list: &List) {
    cx.effect(&[b"DEL", destination]);
    let elements: Vec<Vec<u8>> = list.iter().map(|elem| elem.to_vec()).collect();
    for elements in elements.chunks(NOTED) {
        let words: Vec<&[u8]> =
            [&b"RPUSH"[..], destination].into_iter().chain(elements.iter().map(Vec::as_slice)).collect();
        cx.effect(&words);
    }
}

fn store(
    cx: &mut Cx<'_, '_>,
    destination: &[u8],
    list: List,
    options: &SortOptions<'_>,
) -> Result<(), Error> {
    cx.out.int(list.len() as i64);
    if (options.reads_fields() || options.leaves_ties()) && cx.view.listens() {
        note(cx, destination, &list);
    }
    if !list.is_empty() {
        cx.view.put(destination, Value::List(list), None);
        cx.view.changed(destination, Class::List, "sortstore");
    } else if cx.view.remove(destination) {
        cx.view.changed(destination, Class::Generic, "del");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Db, Over};

    #[test]
    fn elements_are_sorted_by_themselves_by_keys_and_by_fields() {
        // Over an overlay: the keys of BY and GET are not locked beforehand.
        let mut db = Db::new().over(Over::Overlay);
        db.check(&[
            ("rpush l 10 9 -1 1 0 -0 1e2", "7"),
            ("sort l", "[\"-1\", \"-0\", \"0\", \"1\", \"9\", \"10\", \"1e2\"]"),
            ("sort l desc limit 1 2", "[\"10\", \"9\"]"),
            ("sort l alpha limit 0 3", "[\"-0\", \"-1\", \"0\"]"),
            ("sort l by nosort limit 0 2", "[\"10\", \"9\"]"),
            ("sort l by nosort desc limit 0 2", "[\"1e2\", \"-0\"]"),
            ("rpush n a b c a", "4"),
            ("sort n", "-ERR One or more scores can't be converted into double"),
            ("mset w_a 3 w_b 1 name_a A name_b_x Bx", "OK"),
            ("hset h_a f 5 g left", "2"),
            ("hset h_c f 2", "1"),
            ("sort n by w_*", "[\"c\", \"b\", \"a\", \"a\"]"),
            (
                "sort n by w_* desc get # get name_* get name_*_x get nothing limit 1 2",
                "[\"a\", \"A\", nil, nil, \"b\", nil, \"Bx\", nil]",
            ),
            (
                "sort n by h_*->f get h_*->g get w_*",
                "[nil, \"1\", nil, nil, \"left\", \"3\", \"left\", \"3\"]",
            ),
            ("sort n by w_* alpha get # get w_*->f", "[\"c\", nil, \"b\", nil, \"a\", nil, \"a\", nil]"),
            ("sort n by name_*", "-ERR One or more scores can't be converted into double"),
            ("sort n by w_* get w_* get # store into", "8"),
            ("lrange into 0 -1", "[\"\", \"c\", \"1\", \"b\", \"3\", \"a\", \"3\", \"a\"]"),
            ("sort n by w_* limit 9 1 store into", "0"),
            ("exists into", "0"),
            ("sort n by h_*->f alpha store n", "4"),
            ("lrange n 0 -1", "[\"b\", \"c\", \"a\", \"a\"]"),
            ("sort h_a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("sort nothing by w_* get #", "[]"),
        ]);
    }

    /// Many elements, some repeated: each gets its own value, in the order asked for.
    #[test]
    fn many_elements_come_in_order_with_what_is_theirs() {
        let mut db = Db::new().over(Over::Overlay);
        for i in 0..3_000u32 {
            let (element, weight) = (format!("{}", i % 1_000), format!("{}", i % 1_000 * 7_919 % 1_000));
            db.run(&["RPUSH", "l", &element]);
            db.run(&["SET", &format!("w:{element}"), &weight]);
            db.run(&["SET", &format!("v:{element}"), &format!("value {weight}")]);
        }
        let values = |from: usize, to: usize| {
            let each: Vec<String> = (from..to).map(|i| format!("\"value {}\"", i / 3)).collect();
            format!("[{}]", each.join(", "))
        };
        assert_eq!(db.line("sort l by w:* get v:*"), values(0, 3_000));
        assert_eq!(db.line("sort l by w:* get v:* limit 10 5"), values(10, 15));
        assert_eq!(db.line("sort l by w:* get v:* store into"), "3000");
        assert_eq!(db.line("lrange into 0 -1"), values(0, 3_000));
    }
}
