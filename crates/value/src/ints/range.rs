//! Ranges of any width: set, cleared or inverted, by whole slots where they are covered.
//!
//! A range splits at most the two slots at its ends on each level. Everything between them becomes Full or
//! nothing. Only an inversion visits the contents of the range.

use super::node::{Branch, CHUNK, Node, View};
use super::words::Op;
use super::{
    Few, Ints, base_of, bins, build, chunk, divided, extent, few_of, insert_new, last_of, limit, placed,
    remove_present, settle, shift_between,
};

/// The change to a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Do {
    Set,
    Clear,
    Flip,
}

impl Do {
    /// The equivalent operation between a set and the range.
    fn op(self) -> Op {
        match self {
            Do::Set => Op::Or,
            Do::Clear => Op::AndNot,
            Do::Flip => Op::Xor,
        }
    }
}

impl Ints {
    /// Adds all numbers from `first` to `last`, both included. O(16 d); replaced containers are freed.
    pub fn insert_range(&mut self, first: u64, last: u64) {
        self.range(Do::Set, first, last);
    }

    /// Removes all numbers from `first` to `last`, both included. O(16 d); removed containers are freed.
    pub fn remove_range(&mut self, first: u64, last: u64) {
        self.range(Do::Clear, first, last);
    }

    /// Inverts the numbers from `first` to `last`, both included. O(16 d + containers in the range).
    pub fn flip_range(&mut self, first: u64, last: u64) {
        self.range(Do::Flip, first, last);
    }

    fn range(&mut self, what: Do, first: u64, last: u64) {
        if first <= last {
            range(&mut self.root, 0, super::ALL, first, last, what);
        }
    }
}

/// The numbers in the slot of `span` bits at `base` that the node has not.
pub(super) fn complement(node: &Node, base: u64, span: u32) -> Node {
    let mut node = node.clone();
    range(&mut node, base, span, base, last_of(base, span), Do::Flip);
    node
}

/// Removes the numbers from `first` to `last` from a node in the slot of `span` bits at `base`.
pub(super) fn clear(node: &mut Node, base: u64, span: u32, first: u64, last: u64) {
    range(node, base, span, first, last, Do::Clear);
}

/// Applies a change to the numbers from `first` to `last`, which are within the slot of `span` bits at
/// `base`.
fn range(node: &mut Node, base: u64, span: u32, first: u64, last: u64, what: Do) {
    let whole = first == base && last == last_of(base, span);
    match (node.view(), what) {
        (View::Empty, Do::Clear) | (View::Full, Do::Set) => {}
        (View::Empty, _) => *node = filled(base, span, first, last),
        (View::Full, Do::Flip) | (_, Do::Clear) if whole => *node = Node::EMPTY,
        (_, Do::Set) if whole => *node = Node::FULL,
        (View::Full, _) if span == CHUNK => *node = chunk::all_but(base, first as u16, last as u16),
        (View::Full, _) => {
            *node = divided(span, base);
            in_branch(node, span, first, last, what);
        }
        (View::Leaf(leaf), _) if leaf.is_bins() => {
            *node = bins::opened(leaf);
            range(node, base, span, first, last, what);
        }
        (View::Leaf(leaf), _) if !leaf.is_chunk() => sparse(node, base, span, first, last, what),
        (View::Leaf(leaf), _) => {
            let inside = base_of(first, CHUNK) == leaf.base() && base_of(last, CHUNK) == leaf.base();
            match inside {
                true => {
                    let changed = chunk::with_range(what.op(), leaf, first as u16, last as u16);
                    *node = placed(changed, first, CHUNK, span);
                }
                false => wider(node, base, span, first, last, what),
            }
        }
        (View::Branch(branch), _) => {
            let end = last_of(branch.prefix, branch.span());
            match first >= branch.prefix && last <= end {
                true => in_branch(node, span, first, last, what),
                false => wider(node, base, span, first, last, what),
            }
        }
    }
}

/// The numbers of a range in an empty slot.
fn filled(base: u64, span: u32, first: u64, last: u64) -> Node {
    if first == base && last == last_of(base, span) {
        return Node::FULL;
    }
    if span > CHUNK && last - first < limit(base, span) as u64 / 2 {
        let few: Few = (first..=last).collect();
        return build(&few, span, base);
    }
    if (first ^ last) >> CHUNK == 0 {
        let own = base_of(first, CHUNK);
        let range =
            if last - first < 0xFFFF { chunk::range(own, first as u16, last as u16) } else { Node::FULL };
        return placed(range, first, CHUNK, span);
    }
    let mut node = Node::from_branch(Branch::new(shift_between(first, last), first));
    in_branch(&mut node, span, first, last, Do::Set);
    node
}

/// Applies a change inside a branch, which covers the range.
fn in_branch(node: &mut Node, span: u32, first: u64, last: u64, what: Do) {
    let Some(branch) = node.branch_mut() else { unreachable!("a branch") };
    let shift = branch.shift;
    for slot in branch.slot(first)..=branch.slot(last) {
        let base = branch.base(slot);
        let (from, to) = (first.max(base), last.min(last_of(base, shift)));
        branch.change(slot, |child| range(child, base, shift, from, to, what));
    }
    settle(node, span);
}

/// Applies a change to a range that reaches beyond the branch or chunk in the slot.
fn wider(node: &mut Node, base: u64, span: u32, first: u64, last: u64, what: Do) {
    let (own_base, own_span) = extent(node);
    let own_last = last_of(own_base, own_span);
    if what == Do::Clear {
        // Only present numbers can be removed.
        if first <= own_last && last >= own_base {
            let (from, to) = (first.max(own_base), last.min(own_last));
            match from == own_base && to == own_last {
                true => *node = Node::EMPTY,
                false => range(node, base, span, from, to, what),
            }
        }
        return;
    }
    let old = std::mem::replace(node, Node::EMPTY);
    let shift = shift_between(first.min(own_base), last.max(own_last));
    let mut branch = Branch::new(shift, own_base);
    branch.hang(branch.slot(own_base), old);
    *node = Node::from_branch(branch);
    in_branch(node, span, first, last, what);
}

/// Applies a change to a slot with few numbers: first the range alone, then those numbers again.
fn sparse(node: &mut Node, base: u64, span: u32, first: u64, last: u64, what: Do) {
    let few = few_of(node);
    let inside = |x: &u64| (first..=last).contains(x);
    if what == Do::Clear {
        let left: Few = few.iter().copied().filter(|x| !inside(x)).collect();
        if left.len() < few.len() {
            *node = build(&left, span, base);
        }
        return;
    }
    *node = filled(base, span, first, last);
    for x in few {
        match (inside(&x), what) {
            (true, Do::Flip) => remove_present(node, span, x),
            (true, _) => {}
            (false, _) => insert_new(node, span, x),
        }
    }
}
