//! Set algebra: SINTER, SUNION, SDIFF and their relatives.
//!
//! Integers of large sets and everything else are computed separately ([`super`], S2).
//!
//! **Everything else**, and small sets: one set is iterated and its elements are looked up in the others. The
//! hash is computed once per element. Look-ups go in batches of 32: all leaves are found and prefetched, then
//! searched, so cache misses overlap. Two tries that share nodes are walked together instead
//! ([`crate::trie`]'s `walk`), which skips shared parts.
//!
//! **Integers**: where a set takes less than [`DENSE_BYTES`] per integer, trees are combined container by
//! container and the result is iterated ([`crate::ints`]). Otherwise its integers are looked up in the
//! others, ascending, which needs no memory. In a much larger set many are looked up at once; otherwise both
//! sets are walked. Answers that are kept or stored are always trees, which share with the sources.
//!
//! The caller limits a long run. `pause` is called about every 64 elements with the number since the last
//! call, and `Break` ends the run. The callback for the elements can end it too. A worker yields in `pause`.
//! An event loop gives up and hands the command to a worker.
//!
//! A stored result begins as an O(1) clone of the set most like it, and shares its nodes. A streamed result
//! is kept as an [`Answer`].

use super::{Members, Set};
use crate::elem::Elem;
use crate::ints::{self, Ints, Op, all_of, signed};
use crate::trie::{Iter, Leaf, Trie, locate, share, walk};
use std::borrow::Cow;
use std::ops::ControlFlow::{self, Break, Continue};

/// Called with an amount of work done; `Break` ends the run.
pub type Pause<'p> = &'p mut dyn FnMut(usize) -> ControlFlow<()>;

/// Receives elements; `Break` ends the run.
pub type Each<'a, 'f> = &'f mut dyn FnMut(Elem<'a>) -> ControlFlow<()>;

/// Receives elements, many integers at once.
pub trait Taker<'a> {
    fn take(&mut self, elem: Elem<'a>) -> ControlFlow<()>;

    /// Receives some integers, at most [`ints::PIECE`].
    fn take_ints(&mut self, ints: &[i64]) -> ControlFlow<()> {
        ints.iter().try_for_each(|&n| self.take(Elem::Int(n)))
    }
}

/// Passes elements on one by one.
struct Single<'a, 'f>(Each<'a, 'f>);

impl<'a> Taker<'a> for Single<'a, '_> {
    fn take(&mut self, elem: Elem<'a>) -> ControlFlow<()> {
        (self.0)(elem)
    }
}

const BATCH: usize = 32;

/// Bytes per integer below which integers are dense, so that whole containers are combined.
const DENSE_BYTES: usize = 1;

/// Integers looked up in order, many at once, in the time of one look-up of an element.
const INTS_PER_STEP: usize = 3;

/// About the number of single look-ups that it takes to look all elements of a set up in each of the others.
/// O(others).
pub fn work<'a>(set: &Set, others: impl Iterator<Item = &'a Set>) -> usize {
    let mut sets = 1;
    let mut ordered = true;
    for other in others {
        sets += 1;
        ordered &= is_ordered(other);
    }
    let ints = set.ints().map_or(0, |ints| ints.len() as usize);
    let ints_work = if ordered { ints / INTS_PER_STEP } else { ints };
    (ints_work + (set.len() - ints)) * sets
}

/// True if many integers are looked up in it at once.
fn is_ordered(set: &Set) -> bool {
    set.ints().is_some() || set.is_empty()
}

/// Calls `f` for every element that all sets have. O(smallest · sets).
pub fn inter<'a>(sets: &[&'a Set], pause: Pause<'_>, f: Each<'a, '_>) -> ControlFlow<()> {
    inter_to(sets, pause, &mut Single(f))
}

/// As [`inter`], for a taker.
pub fn inter_to<'a>(sets: &[&'a Set], pause: Pause<'_>, to: &mut dyn Taker<'a>) -> ControlFlow<()> {
    let mut by_len = sets.to_vec();
    by_len.sort_by_key(|set| set.len());
    let Some((&first, others)) = by_len.split_first() else { return Continue(()) };
    select(first, others, true, pause, to)
}

/// Calls `f` for every element of `first` that none of the others has. O(first · others).
pub fn diff<'a>(first: &'a Set, others: &[&'a Set], pause: Pause<'_>, f: Each<'a, '_>) -> ControlFlow<()> {
    diff_to(first, others, pause, &mut Single(f))
}

/// As [`diff`], for a taker.
pub fn diff_to<'a>(
    first: &'a Set,
    others: &[&'a Set],
    pause: Pause<'_>,
    to: &mut dyn Taker<'a>,
) -> ControlFlow<()> {
    select(first, others, false, pause, to)
}

/// Gives a taker the elements of `first` that all others have (`want`), or none (`!want`).
fn select<'a>(
    first: &'a Set,
    others: &[&'a Set],
    want: bool,
    pause: Pause<'_>,
    to: &mut dyn Taker<'a>,
) -> ControlFlow<()> {
    if first.is_empty() {
        return Continue(());
    }
    if let Some(ints) = first.ints() {
        select_ints(ints, others, want, pause, to)?;
    }
    match others {
        [other] if kin(first, other) => walk_two(first, other, want, pause, &mut |elem| to.take(elem)),
        others => batches(first, others, want, pause, &mut |elem, _, alive| {
            if alive { to.take(elem) } else { Continue(()) }
        }),
    }
}

/// As [`select`], for the integers of a large set.
fn select_ints(
    ints: &Ints,
    others: &[&Set],
    want: bool,
    pause: Pause<'_>,
    to: &mut dyn Taker<'_>,
) -> ControlFlow<()> {
    if is_dense(ints) || others.iter().any(|other| other.ints().is_some_and(|other| other.ptr_eq(ints))) {
        let Some(kept) = combined(ints, others, want, pause) else { return Break(()) };
        return each_int(&kept, 0, pause, to);
    }
    let per_step = if others.iter().all(|other| is_ordered(other)) { INTS_PER_STEP } else { 1 };
    let mut others: Vec<Lookup> = others.iter().map(|other| Lookup::planned(ints, other)).collect();
    let mut iter = ints.iter();
    loop {
        let keys = iter.piece();
        if keys.is_empty() {
            return Continue(());
        }
        let mut alive = all_of(keys.len());
        for other in &mut others {
            let found = other.find(keys, alive);
            alive &= if want { found } else { !found };
            if alive == 0 {
                break;
            }
        }
        let (mut ints, mut len) = ([0; ints::PIECE], 0);
        for (i, &key) in keys.iter().enumerate() {
            // The next one overwrites an unwanted one.
            ints[len] = signed::value(key);
            len += (alive >> i & 1) as usize;
        }
        to.take_ints(&ints[..len])?;
        pause((keys.len() * (others.len() + 1)).div_ceil(per_step))?;
    }
}

/// The way ascending integers are looked up in a set.
enum Lookup<'a> {
    /// One by one.
    Probe(&'a Set),
    /// Both are walked side by side.
    Beside(Box<ints::Iter<'a>>),
}

/// How many times as many integers a set may have and still be walked.
const BESIDE_MAX: u128 = 4;

impl<'a> Lookup<'a> {
    fn planned(ints: &Ints, set: &'a Set) -> Lookup<'a> {
        match set.ints() {
            Some(own) if own.len() <= ints.len() * BESIDE_MAX && !is_dense(own) => {
                Lookup::Beside(Box::new(own.iter_from(ints.min().unwrap_or(0))))
            }
            _ => Lookup::Probe(set),
        }
    }

    /// The integers with a bit in `alive` that the set has, and perhaps others.
    fn find(&mut self, keys: &[u64], alive: u128) -> u128 {
        match self {
            Lookup::Probe(set) => look_up_keys(set, keys, alive),
            Lookup::Beside(iter) => iter.meet(keys),
        }
    }
}

/// True if it is better to combine whole containers than to look numbers up.
fn is_dense(ints: &Ints) -> bool {
    ((ints.mem_bytes() / DENSE_BYTES) as u128) < ints.len()
}

/// The integers with a bit in `alive` that the set has.
fn look_up_keys(set: &Set, keys: &[u64], alive: u128) -> u128 {
    if let Some(ints) = set.ints() {
        return ints.contains_each(keys, alive);
    }
    if set.is_empty() {
        return 0;
    }
    let mut found = 0;
    for (i, &key) in keys.iter().enumerate() {
        let elem = Elem::Int(signed::value(key));
        let here = alive >> i & 1 == 1 && set.contains_elem(elem, elem.hash());
        found |= u128::from(here) << i;
    }
    found
}

/// The integers that all others have (`want`), or none, as a set. None if `pause` broke off.
fn combined(ints: &Ints, others: &[&Set], want: bool, pause: Pause<'_>) -> Option<Ints> {
    let mut kept = ints.clone();
    for other in others {
        // The integers of a small set are made a tree for this.
        let few = if other.ints().is_some() { 0 } else { other.len() };
        if pause(1 + few * 4) == Break(()) {
            return None;
        }
        let op = if want { Op::And } else { Op::AndNot };
        kept = kept.combine(op, &ints_of(other), pause)?;
    }
    Some(kept)
}

/// The integers of any set: those of a large one, or the few of a small one.
fn ints_of(set: &Set) -> Cow<'_, Ints> {
    match set.ints() {
        Some(ints) => Cow::Borrowed(ints),
        None => Cow::Owned(set.iter().filter_map(int).map(signed::key).collect()),
    }
}

fn int(elem: Elem<'_>) -> Option<i64> {
    match elem {
        Elem::Int(n) => Some(n),
        Elem::Bytes(_) => None,
    }
}

/// Gives a taker the integers from a key on.
fn each_int(ints: &Ints, from: u64, pause: Pause<'_>, to: &mut dyn Taker<'_>) -> ControlFlow<()> {
    let mut iter = ints.iter_from(from);
    loop {
        let keys = iter.piece();
        if keys.is_empty() {
            return Continue(());
        }
        take_keys(keys, to)?;
        pause(keys.len())?;
    }
}

/// Gives a taker the integers of a piece.
fn take_keys<'a, T: Taker<'a> + ?Sized>(keys: &[u64], to: &mut T) -> ControlFlow<()> {
    let mut ints = [0; ints::PIECE];
    ints.iter_mut().zip(keys).for_each(|(int, &key)| *int = signed::value(key));
    to.take_ints(&ints[..keys.len()])
}

/// Number of sets above which they are joined into a new one, instead of searched for each element.
pub const MANY: usize = 8;

/// True if removing the elements of all others is less work than looking each element of `first` up in all.
/// O(others).
pub fn are_many(first: &Set, others: &[&Set]) -> bool {
    let total: usize = others.iter().map(|set| set.len()).sum();
    others.len() > MANY && total < first.len().saturating_mul(others.len() / 2)
}

/// Calls `f` for every element that any of the sets has, once. O(elements · sets).
pub fn union<'a>(sets: &[&'a Set], pause: Pause<'_>, f: Each<'a, '_>) -> ControlFlow<()> {
    union_to(sets, pause, &mut Single(f))
}

/// As [`union`], for a taker.
pub fn union_to<'a>(sets: &[&'a Set], pause: Pause<'_>, to: &mut dyn Taker<'a>) -> ControlFlow<()> {
    for (i, set) in sets.iter().enumerate() {
        select(set, &sets[..i], false, pause, to)?;
    }
    Continue(())
}

/// The elements of a set that a long command answers. Integers are a tree that shares containers with the
/// set, everything else is one bit per element. At most n/8 bytes beside the shared part.
pub struct Answer {
    set: Set,
    ints: Ints,
    ranks: Ranks,
    /// The key of the next integer, while there may be one.
    next_key: Option<u64>,
    next_rank: usize,
}

/// The elements of `first` that none of the others has. None if `pause` broke off.
pub fn diff_answer(first: &Set, others: &[&Set], pause: Pause<'_>) -> Option<Answer> {
    answer(first, others, false, pause)
}

/// The elements of `first` that all others have. None if `pause` broke off.
pub fn inter_answer(first: &Set, others: &[&Set], pause: Pause<'_>) -> Option<Answer> {
    answer(first, others, true, pause)
}

fn answer(first: &Set, others: &[&Set], want: bool, pause: Pause<'_>) -> Option<Answer> {
    let ints = match first.ints() {
        Some(ints) => combined(ints, others, want, pause)?,
        None => Ints::new(),
    };
    let ranks = ranks(first, others, want, pause)?;
    Some(Answer { set: first.clone(), ints, ranks, next_key: Some(0), next_rank: 0 })
}

impl Answer {
    /// Number of elements, with those already taken.
    pub fn len(&self) -> usize {
        self.ints.len() as usize + self.ranks.len()
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The set it keeps alive, if that is large. O(1).
    pub fn held(&self) -> Option<crate::Held> {
        self.set.held()
    }

    /// Gives a taker the remaining elements, until it breaks off. Integers given together are taken together.
    /// False if nothing is left.
    pub fn take(&mut self, to: &mut dyn for<'a> Taker<'a>) -> bool {
        if let Some(from) = self.next_key {
            let mut iter = self.ints.iter_from(from);
            loop {
                let keys = iter.piece();
                let Some(last) = keys.last() else { break };
                self.next_key = last.checked_add(1);
                if take_keys(keys, to) == Break(()) {
                    return true;
                }
            }
            self.next_key = None;
        }
        for (rank, elem) in self.ranks.elements(&self.set, self.next_rank) {
            self.next_rank = rank + 1;
            if to.take(elem) == Break(()) {
                return true;
            }
        }
        false
    }
}

/// The number of elements that all sets have. O(smallest · sets), less where integers are dense. None if
/// `pause` broke off.
pub fn inter_len(sets: &[&Set], pause: Pause<'_>) -> Option<usize> {
    let mut by_len = sets.to_vec();
    by_len.sort_by_key(|set| set.len());
    let Some((&first, others)) = by_len.split_first() else { return Some(0) };
    let mut count = 0;
    if let Some(ints) = first.ints() {
        // The last set need only be counted.
        count = match others.split_last() {
            Some((last, others)) => {
                combined(ints, others, true, pause)?.count_common(&ints_of(last), pause)? as usize
            }
            None => ints.len() as usize,
        };
    }
    let done = batches(first, others, true, pause, &mut |_, _, alive| {
        count += usize::from(alive);
        Continue(())
    });
    (done == Continue(())).then_some(count)
}

/// One bit per element of a set that is not among `ints`, by rank.
#[derive(Default)]
struct Ranks {
    words: Vec<u64>,
    ones: usize,
}

fn ranks(first: &Set, others: &[&Set], want: bool, pause: Pause<'_>) -> Option<Ranks> {
    let len = first.members.iter().len();
    let mut ranks = Ranks { words: vec![0; len.div_ceil(64)], ones: 0 };
    let done = batches(first, others, want, pause, &mut |_, rank, alive| {
        if alive {
            ranks.words[rank / 64] |= 1 << (rank % 64);
            ranks.ones += 1;
        }
        Continue(())
    });
    (done == Continue(())).then_some(ranks)
}

impl Ranks {
    /// Number of ranks.
    fn len(&self) -> usize {
        self.ones
    }

    #[inline]
    fn contains(&self, rank: usize) -> bool {
        self.words.get(rank / 64).is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// The elements of those ranks with their ranks, from a rank on. `set` is the set that the ranks were
    /// made from.
    fn elements<'a>(&'a self, set: &'a Set, from: usize) -> impl Iterator<Item = (usize, Elem<'a>)> {
        (from..).zip(set.members.iter_from(from)).filter(|&(rank, _)| self.contains(rank))
    }
}

impl Set {
    /// The elements that all sets have, as a new set. None if `pause` broke off.
    pub fn intersection(sets: &[&Set], pause: Pause<'_>) -> Option<Set> {
        let mut by_len = sets.to_vec();
        by_len.sort_by_key(|set| set.len());
        let Some((&first, others)) = by_len.split_first() else { return Some(Set::new()) };
        let ints = match first.ints() {
            Some(ints) => combined(ints, others, true, pause)?,
            None => Ints::new(),
        };
        with_others(ints, first, others, true, pause)
    }

    /// The elements that any set has, as a new set that shares the nodes of the largest. O(elements of the
    /// others · log).
    pub fn union(sets: &[&Set], pause: Pause<'_>) -> Option<Set> {
        let largest = (0..sets.len()).max_by_key(|&i| sets[i].len());
        let Some(largest) = largest else { return Some(Set::new()) };
        let mut result = sets[largest].clone();
        for (_, set) in sets.iter().enumerate().filter(|&(i, _)| i != largest) {
            let joint = match (result.ints(), set.ints()) {
                // A walk through both would read everything for a few.
                (Some(own), Some(ints)) if ints.len() > own.len() / 8 => {
                    Some(own.combine(Op::Or, ints, pause)?)
                }
                _ => None,
            };
            let rest = if joint.is_some() { set.texts() } else { set.iter() };
            if let Some(joint) = joint {
                result.put_ints(joint);
            }
            for elem in rest {
                result.insert_elem(elem, elem.hash());
                if pause(1) == Break(()) {
                    return None;
                }
            }
        }
        Some(result)
    }

    /// The elements of `first` that none of the others has, as a new set that shares the nodes of `first`.
    /// For each other set O(k · log), k = its elements or the rest of the first, whichever are fewer.
    pub fn remainder(first: &Set, others: &[&Set], pause: Pause<'_>) -> Option<Set> {
        let mut rest = first.clone();
        for set in others {
            if rest.is_empty() {
                break;
            }
            let done = if rest.len() < set.len() / 4 {
                rest.keep_what_lacks(set, pause)
            } else {
                rest.take_away(set, pause)
            };
            if done == Break(()) {
                return None;
            }
        }
        Some(rest)
    }

    /// Removes the elements of another. O(its elements · log).
    fn take_away(&mut self, other: &Set, pause: Pause<'_>) -> ControlFlow<()> {
        other.iter().try_for_each(|elem| {
            self.remove_elem(elem, elem.hash());
            pause(1)
        })
    }

    /// Removes the elements of another. O(own elements · log).
    fn keep_what_lacks(&mut self, other: &Set, pause: Pause<'_>) -> ControlFlow<()> {
        let has = |elem: &Elem<'_>| other.contains_elem(*elem, elem.hash());
        let mut common = false;
        for elem in self.iter() {
            pause(1)?;
            common = has(&elem);
            if common {
                break;
            }
        }
        if !common {
            return Continue(());
        }
        let mut kept = Set::new();
        for elem in self.iter() {
            pause(1)?;
            if !has(&elem) {
                kept.insert_elem(elem, elem.hash());
            }
        }
        *self = kept;
        Continue(())
    }

    /// The elements of `first` that none of the others has, as a new set. If the others are smaller it shares
    /// the nodes of `first`: O(others · log), else O(first · others).
    pub fn difference(first: &Set, others: &[&Set], pause: Pause<'_>) -> Option<Set> {
        if are_many(first, others) {
            return Set::remainder(first, others, pause);
        }
        let ints = match first.ints() {
            Some(ints) => combined(ints, others, false, pause)?,
            None => Ints::new(),
        };
        let removals: usize = others.iter().map(|set| set.members.iter().len()).sum();
        let Some(trie) = first.members.trie().filter(|trie| removals < trie.len() / 2) else {
            return with_others(ints, first, others, false, pause);
        };
        let mut rest = trie.clone();
        for elem in others.iter().flat_map(|set| set.members.iter()) {
            rest.remove_hashed(elem, elem.hash());
            if pause(1) == Break(()) {
                return None;
            }
        }
        Some(Set::from_parts(ints, rest))
    }
}

/// A new set of some integers and of the other elements that `first` shares with the others, or does not
/// share.
fn with_others(ints: Ints, first: &Set, others: &[&Set], want: bool, pause: Pause<'_>) -> Option<Set> {
    let (mut rest, mut few) = (Trie::new(), Set::new());
    let large = first.ints().is_some();
    let done = batches(first, others, want, pause, &mut |elem, _, alive| {
        match (alive, large) {
            (false, _) => {}
            (true, true) => drop(rest.insert(elem)),
            (true, false) => drop(few.insert_elem(elem, elem.hash())),
        }
        Continue(())
    });
    if done == Break(()) {
        return None;
    }
    Some(if large { Set::from_parts(ints, rest) } else { few })
}

/// True if the two share nodes near their roots, as a set and its changed clone do.
fn kin(a: &Set, b: &Set) -> bool {
    match (a.members.node(), b.members.node()) {
        // SAFETY: both sets are borrowed.
        (Some(a), Some(b)) => unsafe { share(a, b, 2) },
        _ => false,
    }
}

fn walk_two<'a>(a: &'a Set, b: &'a Set, want: bool, pause: Pause<'_>, f: Each<'a, '_>) -> ControlFlow<()> {
    match (a.members.node(), b.members.node()) {
        // SAFETY: both sets are borrowed for 'a.
        (Some(a), Some(b)) => unsafe { walk(a, b, want, pause, f) },
        _ => Continue(()),
    }
}

/// Calls `each` for all elements of `first` outside its `ints`, in order, with the rank and the answer. The
/// answer: all others have it (`want`), or none has (`!want`).
fn batches<'a>(
    first: &'a Set,
    others: &[&Set],
    want: bool,
    pause: Pause<'_>,
    each: &mut dyn FnMut(Elem<'a>, usize, bool) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut elements = first.members.iter();
    let mut batch = [(Elem::Int(0), 0); BATCH];
    let mut rank = 0;
    loop {
        let len = fill(&mut elements, &mut batch);
        if len == 0 {
            return Continue(());
        }
        let mut alive: u32 = if len == BATCH { u32::MAX } else { (1 << len) - 1 };
        for other in others {
            let found = look_up(other, &batch[..len], alive);
            alive &= if want { found } else { !found };
        }
        for (i, &(elem, _)) in batch[..len].iter().enumerate() {
            each(elem, rank + i, alive >> i & 1 == 1)?;
        }
        rank += len;
        pause(len * (others.len() + 1))?;
    }
}

fn fill<'a>(elements: &mut Iter<'a, Members>, batch: &mut [(Elem<'a>, u64); BATCH]) -> usize {
    let mut len = 0;
    while len < BATCH
        && let Some(elem) = elements.next()
    {
        batch[len] = (elem, elem.hash());
        len += 1;
    }
    len
}

/// The elements with a bit in `alive` that the set has.
fn look_up(set: &Set, batch: &[(Elem<'_>, u64)], alive: u32) -> u32 {
    let (mut found, mut alive) = (0, alive);
    if let Some(ints) = set.ints() {
        for (i, &(elem, _)) in batch.iter().enumerate() {
            if let Elem::Int(n) = elem {
                found |= u32::from(alive >> i & 1 == 1 && ints.contains(signed::key(n))) << i;
                alive &= !(1 << i);
            }
        }
    }
    let Some(node) = set.members.node() else { return found };
    let mut leaves: [Option<Leaf<Members>>; BATCH] = [None; BATCH];
    for (i, &(_, hash)) in batch.iter().enumerate() {
        if alive >> i & 1 == 1 {
            let leaf = locate(node, 0, hash);
            leaf.prefetch();
            leaves[i] = Some(leaf);
        }
    }
    for (i, &(elem, hash)) in batch.iter().enumerate() {
        if let Some(leaf) = leaves[i] {
            found |= u32::from(leaf.find(hash as u8, elem).is_some()) << i;
        }
    }
    found
}
