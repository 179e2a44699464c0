//! Set algebra: SINTER, SUNION, SDIFF and their relatives.
//!
//! Every kernel iterates one set and looks its elements up in the others, the hash computed once per element. Look-ups go
//! in batches of 32: first all leaves are found and asked from memory, then searched, so cache misses overlap. Two
//! tries that share nodes are walked together instead ([`crate::trie`]'s `walk`), which skips what both share.
//!
//! A long run is bounded by its caller: `pause` is called with the number of elements looked at since the last time,
//! about every 64, and breaks the run off by `Break`; so does the callback for the elements. A worker uses `pause` to
//! yield, an event loop to give up and hand the command to a worker.
//!
//! Results that are stored begin as an O(1) clone of the set they resemble most, and share its nodes.
//! Results that are streamed can be kept as [`Ranks`], one bit per element of the iterated set.

use super::{Elements, Set};
use crate::elem::Elem;
use crate::trie::{Leaf, locate, share, walk};
use std::ops::ControlFlow::{self, Break, Continue};

/// Called with an amount of work done; `Break` ends the run.
pub type Pause<'p> = &'p mut dyn FnMut(usize) -> ControlFlow<()>;

/// Receives elements; `Break` ends the run.
pub type Each<'a, 'f> = &'f mut dyn FnMut(Elem<'a>) -> ControlFlow<()>;

const BATCH: usize = 32;

/// Calls `f` for every element that all sets have. O(smallest · sets).
pub fn inter<'a>(sets: &[&'a Set], pause: Pause<'_>, f: Each<'a, '_>) -> ControlFlow<()> {
    let mut by_len = sets.to_vec();
    by_len.sort_by_key(|set| set.len());
    let Some((&first, others)) = by_len.split_first() else { return Continue(()) };
    match others {
        _ if first.is_empty() => Continue(()),
        [other] if kin(first, other) => walk_two(first, other, true, pause, f),
        others => batches(first, others, true, pause, &mut |elem, _, alive| {
            if alive { f(elem) } else { Continue(()) }
        }),
    }
}

/// Calls `f` for every element of `first` that none of the others has. O(first · others).
pub fn diff<'a>(first: &'a Set, others: &[&'a Set], pause: Pause<'_>, f: Each<'a, '_>) -> ControlFlow<()> {
    match others {
        _ if first.is_empty() => Continue(()),
        [other] if kin(first, other) => walk_two(first, other, false, pause, f),
        others => batches(first, others, false, pause, &mut |elem, _, alive| {
            if alive { f(elem) } else { Continue(()) }
        }),
    }
}

/// Calls `f` for every element that any of the sets has, once. O(elements · sets).
pub fn union<'a>(sets: &[&'a Set], pause: Pause<'_>, f: Each<'a, '_>) -> ControlFlow<()> {
    for (i, set) in sets.iter().enumerate() {
        diff(set, &sets[..i], pause, f)?;
    }
    Continue(())
}

/// One bit per element of a set, by rank: which of them a long command answers. n/8 bytes.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    words: Vec<u64>,
    ones: usize,
}

/// The elements of `first` that none of the others has, as ranks in `first`. None if `pause` broke off.
pub fn diff_ranks(first: &Set, others: &[&Set], pause: Pause<'_>) -> Option<Ranks> {
    ranks(first, others, false, pause)
}

/// The elements of `first` that all others have, as ranks in `first`. None if `pause` broke off.
pub fn inter_ranks(first: &Set, others: &[&Set], pause: Pause<'_>) -> Option<Ranks> {
    ranks(first, others, true, pause)
}

fn ranks(first: &Set, others: &[&Set], want: bool, pause: Pause<'_>) -> Option<Ranks> {
    let mut ranks = Ranks { words: vec![0; first.len().div_ceil(64)], ones: 0 };
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
    pub fn len(&self) -> usize {
        self.ones
    }

    /// True without ranks.
    pub fn is_empty(&self) -> bool {
        self.ones == 0
    }

    /// True if the rank is among them.
    #[inline]
    pub fn contains(&self, rank: usize) -> bool {
        self.words.get(rank / 64).is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// The elements of those ranks with their ranks, beginning at a rank. `set` is the set they were made of.
    pub fn elements<'a>(&'a self, set: &'a Set, from: usize) -> impl Iterator<Item = (usize, Elem<'a>)> {
        (from..).zip(set.iter_from(from)).filter(|&(rank, _)| self.contains(rank))
    }

    /// Bytes allocated.
    pub fn mem_bytes(&self) -> usize {
        self.words.len() * 8
    }
}

impl Set {
    /// The elements that all sets have, as a new set. None if `pause` broke off.
    pub fn intersection(sets: &[&Set], pause: Pause<'_>) -> Option<Set> {
        let mut result = Set::new();
        let done = inter(sets, pause, &mut |elem| {
            result.insert_elem(elem, elem.hash());
            Continue(())
        });
        (done == Continue(())).then_some(result)
    }

    /// The elements that any set has, as a new set that shares the nodes of the largest. O(the others · log).
    pub fn union(sets: &[&Set], pause: Pause<'_>) -> Option<Set> {
        let largest = (0..sets.len()).max_by_key(|&i| sets[i].len());
        let Some(largest) = largest else { return Some(Set::new()) };
        let mut result = sets[largest].clone();
        for (_, set) in sets.iter().enumerate().filter(|&(i, _)| i != largest) {
            for elem in set.iter() {
                result.insert_elem(elem, elem.hash());
                if pause(1) == Break(()) {
                    return None;
                }
            }
        }
        Some(result)
    }

    /// The elements of `first` that none of the others has, as a new set. If the others are smaller it shares the nodes of
    /// `first`: O(others · log), else O(first · others).
    pub fn difference(first: &Set, others: &[&Set], pause: Pause<'_>) -> Option<Set> {
        let removals: usize = others.iter().map(|set| set.len()).sum();
        if removals >= first.len() / 2 {
            let mut result = Set::new();
            let done = diff(first, others, pause, &mut |elem| {
                result.insert_elem(elem, elem.hash());
                Continue(())
            });
            return (done == Continue(())).then_some(result);
        }
        let mut result = first.clone();
        for elem in others.iter().flat_map(|set| set.iter()) {
            result.remove_elem(elem, elem.hash());
            if pause(1) == Break(()) {
                return None;
            }
        }
        Some(result)
    }
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

/// Calls `each` for all elements of `first` in their order, with rank and answer: whether all others have it (`want`), or
/// none has (`!want`).
fn batches<'a>(
    first: &'a Set,
    others: &[&Set],
    want: bool,
    pause: Pause<'_>,
    each: &mut dyn FnMut(Elem<'a>, usize, bool) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut elements = first.iter();
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

fn fill<'a>(elements: &mut Elements<'a>, batch: &mut [(Elem<'a>, u64); BATCH]) -> usize {
    let mut len = 0;
    while len < BATCH
        && let Some(elem) = elements.next()
    {
        batch[len] = (elem, elem.hash());
        len += 1;
    }
    len
}

/// Which of the elements with a bit in `alive` the set has.
fn look_up(set: &Set, batch: &[(Elem<'_>, u64)], alive: u32) -> u32 {
    let Some(node) = set.members.node() else { return 0 };
    let mut leaves: [Option<Leaf<super::Members>>; BATCH] = [None; BATCH];
    for (i, &(_, hash)) in batch.iter().enumerate() {
        if alive >> i & 1 == 1 {
            let leaf = locate(node, 0, hash);
            leaf.prefetch();
            leaves[i] = Some(leaf);
        }
    }
    let mut found = 0;
    for (i, &(elem, hash)) in batch.iter().enumerate() {
        if let Some(leaf) = leaves[i] {
            found |= u32::from(leaf.find(hash as u8, elem).is_some()) << i;
        }
    }
    found
}
