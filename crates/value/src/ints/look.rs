//! Look-ups in a set of integers: membership, order statistics, neighbours.
//!
//! Many numbers are looked up at once. All their leaves are found and prefetched before the first is
//! searched, so that cache misses overlap. Where the numbers ascend, each look-up begins at the last branch
//! of the one before.

use super::bins::SPAN;
use super::node::{ALL, Branch, CHUNK, Content, Leaf, Node, View};
use super::words::{all_of, ones};
use super::{Few, Ints, base_of, chunk, last_of, outside, search, words};

/// True if the number is below the node.
#[inline]
pub(super) fn contains(node: &Node, x: u64) -> bool {
    let mut node = node;
    loop {
        match node.view() {
            View::Branch(branch) => {
                if outside(x, branch.prefix, branch.span()) {
                    return false;
                }
                node = &branch.child[branch.slot(x)];
            }
            View::Leaf(leaf) => return leaf_contains(leaf, x),
            View::Empty => return false,
            View::Full => return true,
        }
    }
}

#[inline]
pub(super) fn leaf_contains(leaf: Leaf<'_>, x: u64) -> bool {
    if outside(x, leaf.base(), leaf.span()) {
        return false;
    }
    match leaf.content() {
        Content::Sparse4(items) => search::contains(items, (x - leaf.base()) as u32),
        Content::Sparse8(items) => search::contains(items, x - leaf.base()),
        Content::Bins(bins) => bins.contains(x),
        _ => chunk::contains(leaf, x as u16),
    }
}

/// Finds which of up to 128 numbers with a bit in `alive` are below the node, as bits.
pub(super) fn contains_each(node: &Node, numbers: &[u64], alive: u128) -> u128 {
    let mut near = None;
    let mut half = |i: usize, alive: u64| {
        let numbers = numbers.get(i * HALF..).unwrap_or(&[]);
        contains_some(node, &numbers[..numbers.len().min(HALF)], alive, &mut near)
    };
    u128::from(half(0, alive as u64)) | u128::from(half(1, (alive >> HALF) as u64)) << HALF
}

/// Numbers whose leaves are found before any is searched.
const HALF: usize = 64;

/// As [`contains_each`], for up to 64 numbers. `near` is the last branch on the way to the number before.
#[inline]
fn contains_some<'a>(root: &'a Node, numbers: &[u64], alive: u64, near: &mut Option<&'a Branch>) -> u64 {
    let mut leaves = [None; HALF];
    let (mut found, mut asked) = (0, 0);
    for i in ones(alive & all_of(numbers.len()) as u64) {
        let x = numbers[i];
        let mut node = match *near {
            Some(branch) if !outside(x, branch.prefix, branch.span()) => &branch.child[branch.slot(x)],
            _ => root,
        };
        while let View::Branch(branch) = node.view() {
            if outside(x, branch.prefix, branch.span()) {
                break;
            }
            *near = Some(branch);
            node = &branch.child[branch.slot(x)];
        }
        match node.view() {
            View::Leaf(leaf) => {
                match *near {
                    Some(branch) if branch.shift == SPAN => {
                        leaf.prefetch_bins(x, branch.lens[branch.slot(x)])
                    }
                    _ => leaf.prefetch(),
                }
                leaves[i] = Some(leaf);
                asked |= 1 << i;
            }
            View::Full => found |= 1 << i,
            View::Empty | View::Branch(_) => {}
        }
    }
    for i in ones(asked) {
        if let Some(leaf) = leaves[i] {
            found |= u64::from(leaf_contains(leaf, numbers[i])) << i;
        }
    }
    found
}

/// Collects the elements of a leaf of few.
pub(super) fn put_few(leaf: Leaf<'_>, few: &mut Few) {
    let base = leaf.base();
    match leaf.content() {
        Content::Array(items) => few.extend(items.iter().map(|&low| base | u64::from(low))),
        Content::Sparse4(items) => few.extend(items.iter().map(|&item| base + u64::from(item))),
        Content::Sparse8(items) => few.extend(items.iter().map(|&item| base + item)),
        Content::Runs(_) | Content::Bitmap(..) | Content::Bins(_) => each_of(leaf, &mut |x| few.push(x)),
    }
}

/// Calls `f` for every element, ascending, of a node that is not full and contains nothing full.
pub(super) fn each(node: &Node, f: &mut dyn FnMut(u64)) {
    match node.view() {
        View::Empty => {}
        View::Full => unreachable!("called on few elements"),
        View::Branch(branch) => branch.child.iter().for_each(|child| each(child, f)),
        View::Leaf(leaf) => each_of(leaf, f),
    }
}

fn each_of(leaf: Leaf<'_>, f: &mut dyn FnMut(u64)) {
    let base = leaf.base();
    match leaf.content() {
        Content::Array(items) => items.iter().for_each(|&low| f(base | u64::from(low))),
        Content::Runs(runs) => {
            runs.iter().flat_map(|run| run.first..=run.last).for_each(|low| f(base | u64::from(low)));
        }
        Content::Bitmap(bits, _) => words::each(bits, |low| f(base | u64::from(low))),
        Content::Sparse4(items) => items.iter().for_each(|&item| f(base + u64::from(item))),
        Content::Sparse8(items) => items.iter().for_each(|&item| f(base + item)),
        Content::Bins(bins) => bins.each(|item| f(base | item)),
    }
}

/// Number of elements of the node, in a slot that begins at `base`, below `x`.
fn rank(node: &Node, base: u64, x: u64) -> u64 {
    let (mut node, mut base, mut below) = (node, base, 0);
    loop {
        match node.view() {
            View::Empty => return below,
            View::Full => return below + (x - base),
            View::Branch(branch) => {
                if outside(x, branch.prefix, branch.span()) {
                    return below + if x < branch.prefix { 0 } else { branch.len() };
                }
                let slot = branch.slot(x);
                below += branch.lens[..slot].iter().sum::<u64>();
                (node, base) = (&branch.child[slot], branch.base(slot));
            }
            View::Leaf(leaf) => return below + leaf_rank(leaf, x),
        }
    }
}

fn leaf_rank(leaf: Leaf<'_>, x: u64) -> u64 {
    let base = leaf.base();
    if outside(x, base, leaf.span()) {
        return if x < base { 0 } else { leaf.len() };
    }
    match leaf.content() {
        Content::Sparse4(items) => items.partition_point(|&item| base + u64::from(item) < x) as u64,
        Content::Sparse8(items) => items.partition_point(|&item| base + item < x) as u64,
        Content::Bins(bins) => bins.rank(x) as u64,
        _ => chunk::rank(leaf, x as u16),
    }
}

/// The first element from `x` on, of a node in the slot of `span` bits at `base`.
fn next(node: &Node, base: u64, span: u32, x: u64) -> Option<u64> {
    if x > last_of(base, span) {
        return None;
    }
    match node.view() {
        View::Empty => None,
        View::Full => Some(x.max(base)),
        View::Branch(branch) => {
            if x > last_of(branch.prefix, branch.span()) {
                return None;
            }
            let from = if x <= branch.prefix { 0 } else { branch.slot(x) };
            (from..16).find_map(|slot| next(&branch.child[slot], branch.base(slot), branch.shift, x))
        }
        View::Leaf(leaf) => {
            let base = leaf.base();
            if x > last_of(base, leaf.span()) {
                return None;
            }
            let from = x.max(base) - base;
            match leaf.content() {
                Content::Sparse4(items) => {
                    let at = items.partition_point(|&item| u64::from(item) < from);
                    items.get(at).map(|&item| base + u64::from(item))
                }
                Content::Sparse8(items) => {
                    items.get(items.partition_point(|&item| item < from)).map(|&item| base + item)
                }
                Content::Bins(bins) => bins.nth(bins.rank(from)).map(|item| base | item),
                _ => chunk::next(leaf, from as u16).map(|low| base | u64::from(low)),
            }
        }
    }
}

/// The first number from `x` on inside the slot of `span` bits at `base` that is not an element.
fn next_absent(node: &Node, base: u64, span: u32, x: u64) -> Option<u64> {
    let (x, last) = (x.max(base), last_of(base, span));
    if x > last {
        return None;
    }
    match node.view() {
        View::Empty => Some(x),
        View::Full => None,
        View::Branch(branch) => {
            if outside(x, branch.prefix, branch.span()) {
                return Some(x);
            }
            let slots = branch.slot(x)..16;
            let mut inside =
                slots.map(|slot| next_absent(&branch.child[slot], branch.base(slot), branch.shift, x));
            inside.find_map(|found| found).or_else(|| after(branch.prefix, branch.span(), last))
        }
        View::Leaf(leaf) if outside(x, leaf.base(), leaf.span()) => Some(x),
        View::Leaf(leaf) if leaf.is_chunk() => match chunk::next_absent(leaf, x as u16) {
            Some(low) => Some(leaf.base() | u64::from(low)),
            None => after(leaf.base(), CHUNK, last),
        },
        View::Leaf(leaf) => {
            let mut x = x;
            while leaf_contains(leaf, x) {
                x = x.checked_add(1).filter(|x| *x <= last)?;
            }
            Some(x)
        }
    }
}

/// The number after a slot, if it is not beyond `last`.
fn after(base: u64, span: u32, last: u64) -> Option<u64> {
    last_of(base, span).checked_add(1).filter(|x| *x <= last)
}

impl Ints {
    /// Finds which of up to 128 numbers with a bit in `alive` are elements, as bits. Fastest if they ascend:
    /// see the module.
    pub fn contains_each(&self, numbers: &[u64], alive: u128) -> u128 {
        contains_each(&self.root, numbers, alive)
    }

    /// Number of elements below a number. O(d + a leaf).
    pub fn rank(&self, x: u64) -> u64 {
        rank(&self.root, 0, x)
    }

    /// Number of elements in a range, both ends included. O(d + a leaf).
    pub fn count_range(&self, first: u64, last: u64) -> u128 {
        if first > last {
            return 0;
        }
        u128::from(self.rank(last)) + u128::from(self.contains(last)) - u128::from(self.rank(first))
    }

    /// The element with that many smaller ones. O(d + a leaf).
    pub fn nth(&self, rank: u64) -> Option<u64> {
        if u128::from(rank) >= self.len() {
            return None;
        }
        let (mut node, mut base, mut left) = (&self.root, 0, rank);
        loop {
            match node.view() {
                View::Empty => return None,
                View::Full => return Some(base + left),
                View::Branch(branch) => {
                    let mut slot = 0;
                    while left >= branch.lens[slot] {
                        left -= branch.lens[slot];
                        slot += 1;
                    }
                    (node, base) = (&branch.child[slot], branch.base(slot));
                }
                View::Leaf(leaf) => return leaf_nth(leaf, left),
            }
        }
    }

    /// The smallest element. O(d + a leaf).
    pub fn min(&self) -> Option<u64> {
        self.next(0)
    }

    /// The largest element. O(d + a leaf).
    pub fn max(&self) -> Option<u64> {
        let (mut node, mut slot_last) = (&self.root, u64::MAX);
        loop {
            match node.view() {
                View::Empty => return None,
                View::Full => return Some(slot_last),
                View::Branch(branch) => {
                    let slot = branch.child.iter().rposition(|child| !child.is_empty())?;
                    (node, slot_last) = (&branch.child[slot], last_of(branch.base(slot), branch.shift));
                }
                View::Leaf(leaf) if leaf.is_chunk() => {
                    return chunk::last(leaf).map(|low| leaf.base() | u64::from(low));
                }
                View::Leaf(leaf) => return leaf_nth(leaf, leaf.len() - 1),
            }
        }
    }

    /// The first element from a number on: the position of the first 1. O(d + a leaf).
    pub fn next(&self, from: u64) -> Option<u64> {
        next(&self.root, 0, ALL, from)
    }

    /// The elements as runs of consecutive numbers, both ends included, ascending. Each O(16 d + a leaf).
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut from = Some(0);
        std::iter::from_fn(move || {
            let first = self.next(from?)?;
            let last = self.next_absent(first).map_or(u64::MAX, |end| end - 1);
            from = last.checked_add(1);
            Some((first, last))
        })
    }

    /// The first number from `from` on that is not an element: the position of the first 0. O(16 d + a leaf).
    pub fn next_absent(&self, from: u64) -> Option<u64> {
        next_absent(&self.root, 0, ALL, from)
    }
}

fn leaf_nth(leaf: Leaf<'_>, rank: u64) -> Option<u64> {
    let base = leaf.base();
    match leaf.content() {
        Content::Sparse4(items) => items.get(rank as usize).map(|&item| base + u64::from(item)),
        Content::Sparse8(items) => items.get(rank as usize).map(|&item| base + item),
        Content::Bins(bins) => bins.nth(rank as usize).map(|item| base | item),
        _ => chunk::nth(leaf, rank).map(|low| base_of(base, CHUNK) | u64::from(low)),
    }
}
