//! SORT and SORT_RO.
//!
//! The elements are copied out, weighed, sorted and answered. Keys that BY and GET point to follow from the elements, so
//! a run that meets keys its view does not know yet is repeated once they are loaded; it changes nothing before.

use crate::options::{int, is};
use crate::table::*;
use crate::{Cx, Error, STREAM_FROM, Stream};
use keyspace::{Class, View};
use resp::{Args, Reply};
use std::cmp::Ordering;
use value::{Held, List, Value, ValueRef};

const BY_GET: &str = "For the optional BY/GET keyword: the key names follow from the elements";
const STORE: &str = "For the optional STORE keyword, which may stand anywhere";

const fn unknown(uses: Use, notes: &'static str) -> KeySpec {
    KeySpec { uses, begin: Begin::Unknown, find: Find::Unknown, notes }
}

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
    .keys(&[KeySpec::one(1, RO_ACCESS), unknown(RO_ACCESS, BY_GET), unknown(OW_UPDATE, STORE)])
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
        ValueRef::Str(_) | ValueRef::Roaring(_) | ValueRef::Roaring64(_) => 0,
        ValueRef::List(v) => v.len(),
        ValueRef::Set(v) => v.len(),
        ValueRef::ZSet(v) => v.len(),
        ValueRef::Hash(v) => v.len(),
    }
}

struct Options<'a> {
    descending: bool,
    alpha: bool,
    limit: Option<(i64, i64)>,
    by: Option<&'a [u8]>,
    get: Vec<&'a [u8]>,
    store: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(args: Args<'a>, may_store: bool) -> Result<Options<'a>, Error> {
        let mut o =
            Options { descending: false, alpha: false, limit: None, by: None, get: Vec::new(), store: None };
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

    /// BY a pattern without `*` means: do not sort.
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

enum Weight {
    Number(f64),
    Text(Option<Vec<u8>>),
    /// The element itself, as text.
    Own,
}

/// `SORT key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]
/// [STORE destination]`
///
/// Cost: O(n + m·log m), n = elements, m = elements sorted. Errors: WRONGTYPE, weights that are no numbers.
fn sort(cx: &mut Cx<'_, '_>, args: Args<'_>, may_store: bool) -> Result<(), Error> {
    let options = Options::parse(args, may_store)?;
    let mut elements = elements(cx, args.at(1), &options)?;
    if must_sort(cx, args.at(1), &options) {
        elements = sorted(cx, elements, &options)?;
    }
    let window = options.window(elements.len());
    elements.truncate(window.end);
    elements.drain(..window.start);
    match options.store {
        Some(destination) => store(cx, destination, &elements, &options),
        None => answer(cx, elements, &options),
    }
}

/// A set has no order of its own: where the result must not depend on chance it is sorted even if that was not asked.
fn must_sort(cx: &Cx<'_, '_>, key: &[u8], options: &Options<'_>) -> bool {
    let is_set = matches!(cx.view.value(key), Some(ValueRef::Set(_)));
    options.sorts() || is_set && (options.store.is_some() || cx.caller.in_script)
}

fn elements(cx: &mut Cx<'_, '_>, key: &[u8], options: &Options<'_>) -> Result<Vec<Vec<u8>>, Error> {
    let n = cx.view.value(key).map_or(0, |value| len(&value));
    cx.charge(n)?;
    Ok(match cx.view.value(key) {
        None => Vec::new(),
        Some(ValueRef::List(list)) => list.iter().map(|e| e.to_vec()).collect(),
        Some(ValueRef::Set(set)) => set.iter().map(|e| e.to_vec()).collect(),
        // Unsorted, a sorted set comes in its own order, in the direction asked for.
        Some(ValueRef::ZSet(zset)) if options.descending && !options.sorts() => match zset.len() {
            0 => Vec::new(),
            len => zset.iter_rev_from(len - 1).map(|(member, _)| member.to_vec()).collect(),
        },
        Some(ValueRef::ZSet(zset)) => zset.iter_from(0).map(|(member, _)| member.to_vec()).collect(),
        Some(_) => return Err(Error::WrongType),
    })
}

fn sorted(cx: &mut Cx<'_, '_>, elements: Vec<Vec<u8>>, options: &Options<'_>) -> Result<Vec<Vec<u8>>, Error> {
    let alpha = options.alpha || !options.sorts();
    let mut weighed = Vec::with_capacity(elements.len());
    for element in elements {
        cx.charge(2)?;
        let text = match options.by {
            Some(pattern) if options.sorts() => Some(lookup(cx.view, pattern, &element)),
            _ => None,
        };
        let weight = match (alpha, text) {
            (true, Some(text)) => Weight::Text(text),
            (true, None) => Weight::Own,
            (false, Some(text)) => Weight::Number(text.map_or(Ok(0.0), |t| number(&t))?),
            (false, None) => Weight::Number(number(&element)?),
        };
        weighed.push((weight, element));
    }
    cx.charge(weighed.len())?;
    let descending = options.descending;
    weighed.sort_unstable_by(|a, b| {
        let order = compare(a, b);
        if descending { order.reverse() } else { order }
    });
    Ok(weighed.into_iter().map(|(_, element)| element).collect())
}

/// As strtod reads it: blanks in front and nothing at all are fine, hexadecimal is not.
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

/// Equal numbers are told apart by the elements themselves, so that the result is always the same.
fn compare(a: &(Weight, Vec<u8>), b: &(Weight, Vec<u8>)) -> Ordering {
    match (&a.0, &b.0) {
        (Weight::Number(x), Weight::Number(y)) => {
            x.partial_cmp(y).unwrap_or(Ordering::Equal).then_with(|| a.1.cmp(&b.1))
        }
        (Weight::Text(x), Weight::Text(y)) => x.cmp(y),
        _ => a.1.cmp(&b.1),
    }
}

/// What a BY or GET pattern gives for an element: `#`, a string, or a field of a hash. None: nothing there.
fn lookup(view: &View<'_>, pattern: &[u8], element: &[u8]) -> Option<Vec<u8>> {
    if *pattern == *b"#" {
        return Some(element.to_vec());
    }
    let star = pattern.iter().position(|b| *b == b'*')?;
    let arrow = pattern[star + 1..].windows(2).position(|w| w == b"->").map(|at| star + 1 + at);
    // An arrow at the very end is part of the key.
    let arrow = arrow.filter(|at| at + 2 < pattern.len());
    let end = arrow.unwrap_or(pattern.len());
    let key = [&pattern[..star], element, &pattern[star + 1..end]].concat();
    match (view.value(&key)?, arrow) {
        (ValueRef::Hash(hash), Some(at)) => {
            hash.get_at(&pattern[at + 2..], view.now_ms()).map(<[u8]>::to_vec)
        }
        (ValueRef::Str(s), None) => Some(s.to_vec()),
        _ => None,
    }
}

fn answer(cx: &mut Cx<'_, '_>, elements: Vec<Vec<u8>>, options: &Options<'_>) -> Result<(), Error> {
    if options.get.is_empty() {
        cx.out.array(elements.len());
        if elements.len() > STREAM_FROM {
            cx.stream(Elements { elements, next: 0 })?;
        } else {
            elements.iter().for_each(|element| cx.out.bulk(element));
        }
        return Ok(());
    }
    cx.charge(elements.len() * options.get.len())?;
    cx.out.array(elements.len() * options.get.len());
    for element in &elements {
        for pattern in &options.get {
            let found = lookup(cx.view, pattern, element);
            cx.out.bulk_or_null(found.as_deref());
        }
    }
    Ok(())
}

struct Elements {
    elements: Vec<Vec<u8>>,
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
        held(Held::own(self, self.elements.len() * 48));
    }
}

impl Drop for Elements {
    fn drop(&mut self) {
        let elements = std::mem::take(&mut self.elements);
        if elements.len() > STREAM_FROM {
            stdx::reclaim::defer(elements.len() * 48, move || drop(elements));
        }
    }
}

fn store(
    cx: &mut Cx<'_, '_>,
    destination: &[u8],
    elements: &[Vec<u8>],
    options: &Options<'_>,
) -> Result<(), Error> {
    let mut list = List::new();
    for element in elements {
        cx.charge(1 + options.get.len())?;
        if options.get.is_empty() {
            list.push_back(element);
        }
        for pattern in &options.get {
            list.push_back(&lookup(cx.view, pattern, element).unwrap_or_default());
        }
    }
    cx.out.int(list.len() as i64);
    if !list.is_empty() {
        cx.view.put(destination, Value::List(list), None);
        cx.view.changed(destination, Class::List, "sortstore");
    } else if cx.view.remove(destination) {
        cx.view.changed(destination, Class::Generic, "del");
    }
    Ok(())
}
