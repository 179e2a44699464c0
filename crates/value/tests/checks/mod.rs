//! Operations read from arbitrary bytes, done to a value and to a plain model, with clones kept aside. Both
//! must agree all the way, and a clone must not change. The short runs of `tests/hostile.rs` and `fuzz/` call
//! this.
//!
//! A stream is a sequence of operations. The first byte selects one of [`SLOTS`] values and whether it is
//! cloned, the second the operation, and its arguments follow. Elements are made from a sort and a number, so
//! that the same element recurs and every form of storage occurs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::ControlFlow::Continue;
use value::{Hash, LexBound, List, ScoreBound, Set, Str, Stream, StreamId, ZSet};

/// Values alive at a time.
const SLOTS: usize = 3;
/// Size above which values are not made larger.
const ELEMENTS_MAX: usize = 6_000;
const STRING_MAX: usize = 300_000;
/// Operations between comparisons of everything.
const COMPARE_EVERY: usize = 100;

/// The remaining decisions.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    /// The next decision; zero once all are used up.
    fn byte(&mut self) -> u8 {
        let (&first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        first
    }

    fn number(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    fn below(&mut self, end: usize) -> usize {
        self.number() % end.max(1)
    }

    fn element(&mut self) -> Vec<u8> {
        let sort = self.byte();
        element(sort, self.number())
    }

    /// Several elements of one sort.
    fn elements(&mut self) -> Vec<Vec<u8>> {
        let (sort, first, count) = (self.byte(), self.number(), usize::from(self.byte()));
        (0..count).map(|i| element(sort, first + i * 7)).collect()
    }

    fn score(&mut self) -> f64 {
        const SCORES: [f64; 8] = [0.0, 1.0, -1.5, f64::INFINITY, f64::NEG_INFINITY, 1e300, 5e-324, -7.0];
        match self.byte() {
            few @ 0..64 => SCORES[usize::from(few % 8)],
            many => f64::from(many) * 0.25,
        }
    }
}

/// The `number`-th element of a sort.
fn element(sort: u8, number: usize) -> Vec<u8> {
    match sort % 10 {
        0 => number.to_string().into_bytes(),
        1 => (number as i64 - 32_768).to_string().into_bytes(),
        2 => (number as i64 - 32_768).wrapping_mul(1 << 47).to_string().into_bytes(),
        3 => format!("member:{number}").into_bytes(),
        4 => vec![number as u8; number >> 8 & 3],
        5 => [format!("{number}:").into_bytes(), vec![b'x'; number % 1_500]].concat(),
        6 => format!("0{number}").into_bytes(),
        7 => [i64::MAX, i64::MIN, 0, -1][number & 3].to_string().into_bytes(),
        8 => format!("{}", number % 300).into_bytes(),
        _ => format!("m{}", number % 300).into_bytes(),
    }
}

/// A type under test and its model.
trait Subject: Clone + Default {
    type Model: Clone + Default + Debug;

    /// Does one operation to both, and compares the answers.
    fn act(&mut self, model: &mut Self::Model, input: &mut Input<'_>);

    /// Combines the value with another one.
    fn meet(&mut self, _model: &mut Self::Model, _other: &Self, _other_model: &Self::Model) {}

    /// Compares everything, and checks the invariants.
    fn compare(&self, model: &Self::Model);
}

fn run<S: Subject>(data: &[u8]) {
    let mut input = Input(data);
    let mut slots: Vec<(S, S::Model)> = vec![Default::default(); SLOTS];
    for operation in 1.. {
        if input.0.is_empty() {
            break;
        }
        let how = usize::from(input.byte());
        let (here, there) = (how % SLOTS, how / SLOTS % SLOTS);
        match how {
            0..160 => {}
            160..200 => slots[there] = slots[here].clone(),
            200..210 => {
                let other = slots[there].clone();
                let (value, model) = &mut slots[here];
                value.meet(model, &other.0, &other.1);
            }
            _ => continue,
        }
        let (value, model) = &mut slots[here];
        value.act(model, &mut input);
        if operation % COMPARE_EVERY == 0 {
            slots.iter().for_each(|(value, model)| value.compare(model));
        }
    }
    slots.iter().for_each(|(value, model)| value.compare(model));
}

/// See [`Subject`], for sets.
#[allow(dead_code)]
pub fn set(data: &[u8]) {
    run::<Set>(data);
}

#[allow(dead_code)]
pub fn hash(data: &[u8]) {
    run::<Hash>(data);
}

#[allow(dead_code)]
pub fn list(data: &[u8]) {
    run::<List>(data);
}

#[allow(dead_code)]
pub fn zset(data: &[u8]) {
    run::<ZSet>(data);
}

#[allow(dead_code)]
pub fn str(data: &[u8]) {
    run::<Str>(data);
}

#[allow(dead_code)]
pub fn stream(data: &[u8]) {
    run::<Stream>(data);
}

impl Subject for Set {
    type Model = BTreeSet<Vec<u8>>;

    fn act(&mut self, model: &mut Self::Model, input: &mut Input<'_>) {
        match input.byte() % 12 {
            0..4 => {
                let text = input.element();
                assert_eq!(self.insert(&text), model.insert(text));
            }
            4..6 => {
                let text = input.element();
                assert_eq!(self.contains(&text), model.contains(&text));
                assert_eq!(self.remove(&text), model.remove(&text));
            }
            6 if !self.is_empty() => {
                let rank = input.below(self.len());
                let shown = self.nth(rank).map(|elem| elem.to_vec());
                let taken = self.remove_nth(rank);
                assert_eq!(shown, taken);
                assert!(model.remove(&taken.expect("the rank exists")));
            }
            7..9 if self.len() < ELEMENTS_MAX => {
                for text in input.elements() {
                    assert_eq!(self.insert(&text), model.insert(text));
                }
            }
            9 => {
                for text in input.elements() {
                    assert_eq!(self.remove(&text), model.remove(&text));
                }
            }
            10 => scan_while_changing(self, model, input),
            11 if input.byte() < 16 => {
                self.clear();
                model.clear();
            }
            _ => assert_eq!(self.nth(self.len()), None),
        }
        assert_eq!(self.len(), model.len());
    }

    fn meet(&mut self, model: &mut Self::Model, other: &Set, other_model: &Self::Model) {
        let texts = |set: &Set| set.iter().map(|elem| elem.to_vec()).collect::<BTreeSet<_>>();
        let pause = &mut |_| Continue(());
        let both = Set::intersection(&[self, other], pause).expect("pause never breaks off");
        assert_eq!(texts(&both), model.intersection(other_model).cloned().collect());
        let either = Set::union(&[self, other], pause).expect("pause never breaks off");
        assert_eq!(texts(&either), model.union(other_model).cloned().collect());
        let rest = Set::difference(self, &[other], pause).expect("pause never breaks off");
        [&both, &either, &rest].iter().for_each(|set| set.check_invariants());
        *model = model.difference(other_model).cloned().collect();
        *self = rest;
    }

    fn compare(&self, model: &Self::Model) {
        self.check_invariants();
        let all: Vec<Vec<u8>> = self.iter().map(|elem| elem.to_vec()).collect();
        assert_eq!(all.iter().cloned().collect::<BTreeSet<_>>(), *model);
        assert_eq!(all.len(), model.len());
        assert!(model.iter().all(|text| self.contains(text)));
        let from = all.len() / 3;
        assert!(self.iter_from(from).map(|elem| elem.to_vec()).eq(all[from..].iter().cloned()));
    }
}

/// Elements present from the first step to the last are seen, even if others come and go.
fn scan_while_changing(set: &mut Set, model: &mut BTreeSet<Vec<u8>>, input: &mut Input<'_>) {
    let mut lasting = model.clone();
    let mut seen = BTreeSet::new();
    let (mut cursor, mut steps) = (0, 0);
    loop {
        let known = |text: &Vec<u8>| model.contains(text);
        cursor = set.scan(cursor, 1 + usize::from(input.byte()), &mut |elem| {
            let text = elem.to_vec();
            assert!(known(&text), "shown but not there");
            seen.insert(text);
        });
        if cursor == 0 {
            break;
        }
        for text in input.elements() {
            if input.byte().is_multiple_of(2) {
                assert_eq!(set.remove(&text), model.remove(&text));
                lasting.remove(&text);
            } else {
                assert_eq!(set.insert(&text), model.insert(text));
            }
        }
        steps += 1;
        assert!(steps < 100_000, "a scan ends");
    }
    assert!(lasting.is_subset(&seen));
}

impl Subject for Hash {
    type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

    fn act(&mut self, model: &mut Self::Model, input: &mut Input<'_>) {
        match input.byte() % 12 {
            0..3 => {
                let (field, value) = (input.element(), input.element());
                assert_eq!(self.insert(&field, &value), model.insert(field, (value, None)).is_none());
            }
            3 => {
                let (field, value) = (input.element(), input.element());
                assert_eq!(self.insert_keep_ttl(&field, &value), !model.contains_key(&field));
                model.entry(field).or_default().0 = value;
            }
            4 => {
                let field = input.element();
                assert_eq!(self.get(&field), model.get(&field).map(|(value, _)| &value[..]));
                assert_eq!(self.take(&field), model.remove(&field).map(|(value, _)| value));
            }
            5 => {
                for field in input.elements() {
                    assert_eq!(self.remove(&field), model.remove(&field).is_some());
                }
            }
            6..8 if self.len() < ELEMENTS_MAX => {
                let value = input.element();
                for field in input.elements() {
                    assert_eq!(
                        self.insert(&field, &value),
                        model.insert(field, (value.clone(), None)).is_none()
                    );
                }
            }
            8..10 => {
                let time = Some(u64::from(input.byte())).filter(|time| time % 5 != 0);
                let few = input.elements();
                for field in few.into_iter().take(20) {
                    let known = model.get_mut(&field).map(|(_, expire_at)| *expire_at = time).is_some();
                    assert_eq!(self.set_expire(&field, time), known);
                    assert_eq!(self.expire_at(&field), known.then_some(time));
                }
            }
            10 => {
                let (now, limit) = (u64::from(input.byte()), usize::from(input.byte()));
                remove_expired(self, model, now, limit);
            }
            _ => {
                let now = u64::from(input.byte());
                let live = model.values().filter(|(_, time)| time.is_none_or(|time| time > now)).count();
                assert_eq!((self.live_len(now), self.iter_at(now).count()), (live, live));
            }
        }
        assert_eq!(self.len(), model.len());
        let soonest = model.values().filter_map(|(_, time)| *time).min();
        assert_eq!(self.has_ttls(), soonest.is_some());
        assert!(self.next_expiry() <= soonest);
    }

    fn compare(&self, model: &Self::Model) {
        self.check_invariants();
        let all: BTreeMap<_, _> = self
            .entries_from(0)
            .map(|entry| {
                (entry.field.to_vec(), (entry.value.to_vec(), self.expire_at(entry.field).flatten()))
            })
            .collect();
        assert_eq!(all, *model);
        let mut scanned = BTreeSet::new();
        let mut cursor = 0;
        loop {
            cursor = self.scan(cursor, 10, &mut |field, value| {
                assert_eq!(model.get(field).map(|(value, _)| &value[..]), Some(value));
                scanned.insert(field.to_vec());
            });
            if cursor == 0 {
                break;
            }
        }
        assert!(scanned.iter().eq(model.keys()));
    }
}

fn remove_expired(
    hash: &mut Hash,
    model: &mut BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>,
    now: u64,
    limit: usize,
) {
    let mut gone = BTreeSet::new();
    let removed = hash.remove_expired(now, limit, &mut |field| {
        assert!(gone.insert(field.to_vec()), "told twice");
    });
    assert_eq!(removed, gone.len());
    let expired = |time: Option<u64>| time.is_some_and(|time| time <= now);
    let due = model.values().filter(|(_, time)| expired(*time)).count();
    assert_eq!(removed, due.min(limit));
    for field in &gone {
        let (_, time) = model.remove(field).expect("it was there");
        assert!(expired(time));
    }
}

impl Subject for List {
    type Model = Vec<Vec<u8>>;

    fn act(&mut self, model: &mut Self::Model, input: &mut Input<'_>) {
        let at = |input: &mut Input<'_>, model: &Vec<Vec<u8>>| input.below(model.len() + 2);
        match input.byte() % 12 {
            0 => {
                let text = input.element();
                self.push_front(&text);
                model.insert(0, text);
            }
            1 => {
                let text = input.element();
                self.push_back(&text);
                model.push(text);
            }
            2 => {
                assert_eq!(self.pop_front(), (!model.is_empty()).then(|| model.remove(0)));
                assert_eq!(self.pop_back(), model.pop());
            }
            3 => {
                let (i, text) = (at(input, model), input.element());
                assert_eq!(self.set(i, &text), i < model.len());
                if let Some(old) = model.get_mut(i) {
                    *old = text;
                }
            }
            4 => {
                let (i, text) = (at(input, model), input.element());
                assert_eq!(self.insert(i, &text), i <= model.len());
                if i <= model.len() {
                    model.insert(i, text);
                }
            }
            5 => {
                let i = at(input, model);
                assert_eq!(self.remove(i), (i < model.len()).then(|| model.remove(i)));
            }
            6 => {
                let (start, len) = (at(input, model), usize::from(input.byte()));
                self.remove_range(start..start + len);
                let end = (start + len).min(model.len());
                model.drain(start.min(end)..end);
            }
            7..9 if self.len() < ELEMENTS_MAX => {
                for text in input.elements() {
                    self.push_back(&text);
                    model.push(text);
                }
            }
            9 => {
                // Cuts it and joins the parts the other way round.
                let i = at(input, model).min(model.len());
                let mut right = self.split_off(i);
                right.check_invariants();
                right.append(std::mem::take(self));
                *self = right;
                model.rotate_left(i);
            }
            10 => {
                let i = at(input, model);
                assert_eq!(self.get(i).map(|elem| elem.to_vec()).as_ref(), model.get(i));
                let after: Vec<_> = self.iter_from(i).take(20).map(|elem| elem.to_vec()).collect();
                assert!(after.iter().eq(model.iter().skip(i).take(20)));
            }
            _ => {
                let i = at(input, model);
                let before: Vec<_> = self.iter_rev_from(i).take(20).map(|elem| elem.to_vec()).collect();
                let expect = model.get(..i + 1).unwrap_or(&[]);
                assert!(before.iter().eq(expect.iter().rev().take(20)));
            }
        }
        assert_eq!(self.len(), model.len());
    }

    fn meet(&mut self, model: &mut Self::Model, other: &List, other_model: &Self::Model) {
        if model.len() + other_model.len() < ELEMENTS_MAX {
            self.append(other.clone());
            model.extend_from_slice(other_model);
        }
    }

    fn compare(&self, model: &Self::Model) {
        self.check_invariants();
        assert!(self.iter().map(|elem| elem.to_vec()).eq(model.iter().cloned()));
        assert!(self.iter_rev().map(|elem| elem.to_vec()).eq(model.iter().rev().cloned()));
    }
}

/// The members of a model in the order of the sorted set.
fn in_order(model: &BTreeMap<Vec<u8>, f64>) -> Vec<(&[u8], f64)> {
    let mut all: Vec<(&[u8], f64)> = model.iter().map(|(member, &score)| (&member[..], score)).collect();
    // Stable: members of equal score stay in the order of their bytes.
    all.sort_by(|a, b| a.1.partial_cmp(&b.1).expect("no NaN"));
    all
}

impl Subject for ZSet {
    type Model = BTreeMap<Vec<u8>, f64>;

    fn act(&mut self, model: &mut Self::Model, input: &mut Input<'_>) {
        match input.byte() % 12 {
            0..3 => {
                let (member, score) = (input.element(), input.score());
                assert_eq!(self.insert(&member, score), model.insert(member, score));
            }
            3..5 => {
                let member = input.element();
                assert_eq!(self.score(&member), model.get(&member).copied());
                assert_eq!(self.remove(&member), model.remove(&member));
            }
            5..8 if self.len() < ELEMENTS_MAX => {
                let (score, step) = (input.score(), f64::from(input.byte() % 4));
                for (i, member) in input.elements().into_iter().enumerate() {
                    let score = score + step * i as f64;
                    assert_eq!(self.insert(&member, score), model.insert(member, score));
                }
            }
            8 => {
                for member in input.elements() {
                    assert_eq!(self.remove(&member), model.remove(&member));
                }
            }
            9 => {
                let (start, len) = (input.below(model.len() + 2), usize::from(input.byte()));
                let gone: Vec<Vec<u8>> =
                    in_order(model).iter().skip(start).take(len).map(|(member, _)| member.to_vec()).collect();
                assert_eq!(self.remove_rank_range(start..start + len), gone.len());
                gone.iter().for_each(|member| {
                    model.remove(member);
                });
            }
            10 => by_score(self, model, input),
            _ => {
                let member = input.element();
                let rank = in_order(model).iter().position(|(other, _)| *other == member);
                assert_eq!(self.rank(&member), rank);
                by_member(self, model, &member);
            }
        }
        assert_eq!(self.len(), model.len());
    }

    fn compare(&self, model: &Self::Model) {
        self.check_invariants();
        let all = in_order(model);
        assert!(self.iter().eq(all.iter().copied()));
        let middle = all.len() / 2;
        assert!(self.iter_from(middle).eq(all[middle..].iter().copied()));
        assert!(self.iter_rev_from(middle).eq(all.iter().take(middle + 1).rev().copied()) || all.is_empty());
        let mut scanned = BTreeMap::new();
        let mut cursor = 0;
        loop {
            cursor = self.scan(cursor, 10, &mut |member, score| {
                scanned.insert(member.to_vec(), score);
            });
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(scanned, *model);
    }
}

fn by_score(zset: &ZSet, model: &BTreeMap<Vec<u8>, f64>, input: &mut Input<'_>) {
    let (min, max) = (input.score(), input.score());
    let below = |test: &dyn Fn(f64) -> bool| model.values().filter(|&&score| test(score)).count();
    assert_eq!(zset.rank_lower(&ScoreBound::Incl(min)), below(&|score| score < min));
    assert_eq!(zset.rank_lower(&ScoreBound::Excl(min)), below(&|score| score <= min));
    assert_eq!(zset.rank_upper(&ScoreBound::Incl(max)), below(&|score| score <= max));
    assert_eq!(zset.rank_upper(&ScoreBound::Excl(max)), below(&|score| score < max));
    let inside = zset.ranks(&ScoreBound::Incl(min), &ScoreBound::Excl(max));
    assert_eq!(inside.len(), below(&|score| min <= score && score < max));
}

/// Ranges by member, on a copy where all scores are equal.
fn by_member(zset: &ZSet, model: &BTreeMap<Vec<u8>, f64>, bound: &[u8]) {
    if model.len() > 400 {
        return;
    }
    let mut flat = zset.clone();
    model.keys().for_each(|member| {
        flat.insert(member, 3.0);
    });
    let before = model.keys().filter(|member| &member[..] < bound).count();
    let with = before + usize::from(model.contains_key(bound));
    assert_eq!(flat.rank_lower(&LexBound::Incl(bound)), before);
    assert_eq!(flat.rank_lower(&LexBound::Excl(bound)), with);
    assert_eq!(flat.ranks(&LexBound::Min, &LexBound::Incl(bound)), 0..with);
    assert_eq!(flat.ranks(&LexBound::Excl(bound), &LexBound::Max), with..model.len());
}

impl Subject for Str {
    type Model = Vec<u8>;

    fn act(&mut self, model: &mut Self::Model, input: &mut Input<'_>) {
        // Positions near the ends of flat strings and chunks, and anywhere.
        let place = |input: &mut Input<'_>| match input.byte() % 4 {
            0 => input.number() % 64,
            1 => input.number(),
            2 => (usize::from(input.byte()) << 12) + usize::from(input.byte()) % 5,
            _ => (16 << 10) + usize::from(input.byte()),
        };
        match input.byte() % 8 {
            0 if model.len() < STRING_MAX => {
                let text = input.element();
                self.append(&text);
                model.extend_from_slice(&text);
            }
            1 if model.len() < STRING_MAX => {
                let text = vec![input.byte(); place(input)];
                self.append(&text);
                model.extend_from_slice(&text);
            }
            2 => {
                let (at, text) = (place(input), input.element());
                self.write_at(at, &text);
                if !text.is_empty() {
                    model.resize(model.len().max(at + text.len()), 0);
                    model[at..at + text.len()].copy_from_slice(&text);
                }
            }
            3..5 => {
                let (at, bit, on) = (place(input), input.byte() % 8, !input.byte().is_multiple_of(4));
                let mask = 0x80 >> bit;
                let was = model.get(at).is_some_and(|byte| byte & mask != 0);
                assert_eq!(self.set_bit(at as u64 * 8 + u64::from(bit), on), was);
                model.resize(model.len().max(at + 1), 0);
                model[at] = if on { model[at] | mask } else { model[at] & !mask };
            }
            5 => {
                let len = place(input);
                self.truncate(len);
                model.truncate(len);
            }
            6 => {
                let start = place(input).min(model.len());
                let end = (start + place(input)).min(model.len());
                let mut out = b"before".to_vec();
                self.as_ref().copy_to(start..end, &mut out);
                assert_eq!(&out[6..], &model[start..end]);
            }
            _ => {
                let number = element(7, input.number());
                *self = Str::from_slice(&number);
                *model = number;
            }
        }
        assert_eq!(self.len(), model.len());
    }

    fn compare(&self, model: &Self::Model) {
        self.check_invariants();
        let text = self.as_ref();
        assert!(text.to_vec() == *model);
        assert!(*text.contiguous() == model[..]);
        assert_eq!(text.to_str().len(), model.len());
        assert_eq!(text.as_i64(), stdx::num::parse_i64(model));
        let middle = model.len() / 2;
        assert!(model.is_empty() || text.byte(middle) == model[middle]);
    }
}

/// Fields with their values.
type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A stream with one group at most.
#[derive(Clone, Debug, Default)]
struct StreamModel {
    entries: BTreeMap<StreamId, Fields>,
    last: StreamId,
    deleted: StreamId,
    added: u64,
    /// By ID: the consumer, and the number of deliveries.
    pending: BTreeMap<StreamId, (Vec<u8>, u64)>,
    consumers: BTreeSet<Vec<u8>>,
}

impl StreamModel {
    /// An ID of an entry, or one near it.
    fn id(&self, input: &mut Input<'_>) -> StreamId {
        let at = input.below(self.entries.len());
        let id = self.entries.keys().nth(at).copied().unwrap_or_default();
        if input.byte().is_multiple_of(4) { id.next().unwrap_or_default() } else { id }
    }

    fn trim(&mut self, count: usize) {
        (0..count).for_each(|_| drop(self.entries.pop_first()));
    }

    fn range(&self, from: StreamId, to: StreamId) -> Vec<StreamId> {
        self.entries.keys().copied().filter(|id| (from..=to).contains(id)).collect()
    }
}

/// The entry's fields and values.
fn fields_of(entry: &value::stream::Entry<'_>) -> Fields {
    entry.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

impl Subject for Stream {
    type Model = StreamModel;

    fn act(&mut self, model: &mut StreamModel, input: &mut Input<'_>) {
        match input.byte() % 12 {
            0..4 if model.entries.len() < ELEMENTS_MAX => {
                let (gap, names) = (u64::from(input.byte() % 4), input.byte());
                for value in input.elements() {
                    let id =
                        StreamId::new(model.last.ms + gap, if gap == 0 { model.last.seq + 1 } else { 7 });
                    let all: Fields =
                        (0..1 + names % 3).map(|i| (element(names, usize::from(i)), value.clone())).collect();
                    let few: Vec<(&[u8], &[u8])> = all.iter().map(|(a, b)| (&a[..], &b[..])).collect();
                    assert!(self.append(id, &few) && !self.append(id, &few));
                    model.entries.insert(id, all);
                    (model.last, model.added) = (id, model.added + 1);
                }
            }
            4 => {
                let id = model.id(input);
                let was = model.entries.remove(&id).is_some();
                assert_eq!(self.remove(id), was);
                model.deleted = if was { model.deleted.max(id) } else { model.deleted };
            }
            5 => {
                let keep = input.below(model.entries.len() + 3);
                let gone = model.entries.len().saturating_sub(keep);
                assert_eq!(self.trim_to_len(keep as u64, false, 0), gone as u64);
                model.trim(gone);
            }
            6 => {
                let below = model.id(input);
                let gone = model.entries.keys().filter(|id| **id < below).count();
                assert_eq!(self.trim_below(below, false, 0), gone as u64);
                model.trim(gone);
            }
            // Whole leaves only, so the number that goes is its own.
            7 => {
                let (keep, limit) = (input.below(model.entries.len() + 1), input.below(500) as u64);
                let gone = self.trim_to_len(keep as u64, true, limit);
                assert!(gone as usize <= model.entries.len() - keep && (limit == 0 || gone <= limit));
                model.trim(gone as usize);
            }
            8 | 9 => {
                self.create_group(b"g", StreamId::MIN, None);
                let (name, id, count) = (element(3, input.below(4)), model.id(input), input.number() as u64);
                let mut group = self.group_mut(b"g").expect("just created");
                assert_eq!(group.create_consumer(&name, 1), model.consumers.insert(name.clone()));
                assert!(group.claim(&name, id, 5, count));
                model.pending.insert(id, (name, count));
            }
            10 => {
                let Some(mut group) = self.group_mut(b"g") else { return };
                let id = model.id(input);
                assert_eq!(group.ack(id), model.pending.remove(&id).is_some());
                if input.byte() < 16 {
                    let name = element(3, input.below(4));
                    let own = model.pending.values().filter(|(owner, _)| *owner == name).count();
                    assert_eq!(group.delete_consumer(&name), model.consumers.remove(&name).then_some(own));
                    model.pending.retain(|_, (owner, _)| *owner != name);
                }
            }
            _ => {
                let (from, to) = (model.id(input), model.id(input));
                let range = model.range(from, to);
                assert_eq!(self.count(from, to), range.len());
                assert!(self.range(from, to).map(|entry| entry.id).eq(range.iter().copied()));
                assert!(self.range_back(from, to).map(|entry| entry.id).eq(range.iter().rev().copied()));
                assert_eq!(self.contains(from), model.entries.contains_key(&from));
            }
        }
        assert_eq!(self.len(), model.entries.len());
    }

    fn compare(&self, model: &StreamModel) {
        self.check_invariants();
        let entries = self.range(StreamId::MIN, StreamId::MAX).map(|entry| (entry.id, fields_of(&entry)));
        assert!(entries.eq(model.entries.iter().map(|(id, fields)| (*id, fields.clone()))));
        let numbers = (self.last_id(), self.max_deleted_id(), self.entries_added());
        assert_eq!(numbers, (model.last, model.deleted, model.added));
        let Some(group) = self.group(b"g") else { return };
        let pending = group.pending_from(StreamId::MIN).map(|(id, p)| (id, (p.consumer.to_vec(), p.count)));
        assert!(pending.eq(model.pending.iter().map(|(id, pending)| (*id, pending.clone()))));
    }
}
