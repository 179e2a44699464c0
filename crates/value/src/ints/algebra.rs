//! Two sets of integers combined: both trees are walked together, slot by slot.
//!
//! ```text
//! nothing, Full, the same node    known without looking: the result shares it
//! Sparse against anything         its few numbers are looked up, or added, or removed
//! Branch against Branch           slot by slot; where one is narrower, against one slot of the other
//! Bins against Bins               sixteen pairs of short arrays, merged; against anything else as a branch of arrays
//! chunk against chunk             arrays probe, bitmaps and runs are combined word by word
//! ```
//!
//! So the plan follows the density of each region, and the result shares the parts that only one side has.
//! The caller limits a long run. For every pair of leaves, `pause` is called with an amount of work (about as
//! many look-ups). `Break` ends the run.

use super::node::{Branch, CHUNK, Leaf, Node, View};
use super::range::complement;
use super::words::{all_of, each_one};
use super::{
    ALL, Few, Ints, Op, bins, build, chunk, extent, few_of, insert_new, look, outside, placed,
    remove_present, settle, shift_between,
};
use std::ops::ControlFlow::{self, Continue};

/// Called with an amount of work done; `Break` ends the run.
pub type Pause<'p> = &'p mut dyn FnMut(usize) -> ControlFlow<()>;

/// Work to combine two chunks, in look-ups.
const CHUNK_WORK: usize = 64;
/// Work to combine two leaves of bins, in look-ups.
const BINS_WORK: usize = 128;

impl Ints {
    /// Combines two sets into a new one that shares what it can. None if `pause` broke off.
    pub fn combine(&self, op: Op, other: &Ints, pause: Pause<'_>) -> Option<Ints> {
        let mut walk = Walk { op, pause, stopped: false };
        let root = walk.combine(&self.root, &other.root, 0, ALL);
        (!walk.stopped).then_some(Ints { root })
    }

    /// Number of common elements. O(parts that differ). None if `pause` broke off.
    pub fn count_common(&self, other: &Ints, pause: Pause<'_>) -> Option<u128> {
        if self.root.is_full() {
            return Some(other.len());
        }
        if other.root.is_full() || self.ptr_eq(other) {
            return Some(self.len());
        }
        let mut walk = Walk { op: Op::And, pause, stopped: false };
        let count = walk.count(&self.root, &other.root, ALL);
        (!walk.stopped).then_some(u128::from(count))
    }

    /// True if they have an element in common. None if `pause` broke off.
    pub fn intersects(&self, other: &Ints, pause: Pause<'_>) -> Option<bool> {
        Some(self.count_common(other, pause)? > 0)
    }

    /// True if the other has all elements of this set. None if `pause` broke off.
    pub fn is_subset(&self, other: &Ints, pause: Pause<'_>) -> Option<bool> {
        if self.len() > other.len() {
            return Some(false);
        }
        Some(self.count_common(other, pause)? == self.len())
    }

    /// The size of the intersection divided by that of the union. Inner None for two empty sets, outer None
    /// if `pause` broke off.
    pub fn jaccard(&self, other: &Ints, pause: Pause<'_>) -> Option<Option<f64>> {
        let common = self.count_common(other, pause)?;
        let either = self.len() + other.len() - common;
        Some((either > 0).then(|| common as f64 / either as f64))
    }
}

impl PartialEq for Ints {
    /// Same elements. O(n), O(1) for unchanged clones.
    fn eq(&self, other: &Ints) -> bool {
        let go = &mut |_| Continue(());
        self.len() == other.len() && self.count_common(other, go) == Some(self.len())
    }
}

impl Eq for Ints {}

struct Walk<'p> {
    op: Op,
    pause: Pause<'p>,
    stopped: bool,
}

impl Walk<'_> {
    fn work(&mut self, amount: usize) {
        self.stopped = self.stopped || (self.pause)(amount).is_break();
    }

    /// Combines both nodes of the slot of `span` bits at `base`.
    fn combine(&mut self, a: &Node, b: &Node, base: u64, span: u32) -> Node {
        if self.stopped {
            return Node::EMPTY;
        }
        if a.same(b) {
            return if matches!(self.op, Op::And | Op::Or) { a.clone() } else { Node::EMPTY };
        }
        match (a.view(), b.view(), self.op) {
            (View::Empty, _, Op::And | Op::AndNot)
            | (_, View::Empty, Op::And)
            | (_, View::Full, Op::AndNot) => Node::EMPTY,
            (View::Empty, _, _) | (View::Full, _, Op::And) => b.clone(),
            (_, View::Empty, _) | (_, View::Full, Op::And) => a.clone(),
            (View::Full, _, Op::Or) | (_, View::Full, Op::Or) => Node::FULL,
            (View::Full, ..) => self.turned(b, base, span),
            (_, View::Full, _) => self.turned(a, base, span),
            (View::Leaf(few), _, _) if few.is_sparse() => self.few_and(a, b, base, span),
            (_, View::Leaf(few), _) if few.is_sparse() => self.and_few(a, b, base, span),
            (View::Leaf(x), View::Leaf(y), _) if x.is_bins() && y.is_bins() && x.base() == y.base() => {
                self.work(BINS_WORK);
                bins::combine(self.op, x, y, span)
            }
            (View::Leaf(x), _, _) if x.is_bins() => {
                let open = bins::opened(x);
                let node = self.combine(&open, b, base, span);
                if node.same(&open) { a.clone() } else { node }
            }
            (_, View::Leaf(y), _) if y.is_bins() => {
                let open = bins::opened(y);
                let node = self.combine(a, &open, base, span);
                if node.same(&open) { b.clone() } else { node }
            }
            (View::Leaf(x), View::Leaf(y), _) if x.base() == y.base() => {
                self.work(CHUNK_WORK);
                placed(chunk::combine(self.op, x, y), x.base(), CHUNK, span)
            }
            (View::Branch(x), View::Branch(y), _) if x.shift == y.shift && x.prefix == y.prefix => {
                self.slots(x, y, a, span)
            }
            _ => self.nested(a, b, span),
        }
    }

    /// The numbers of a slot that a node has not. The work is that of all its chunks.
    fn turned(&mut self, node: &Node, base: u64, span: u32) -> Node {
        let View::Branch(branch) = node.view() else {
            self.work(CHUNK_WORK);
            return complement(node, base, span);
        };
        // One step per branch, so that a long one can be broken off.
        let mut turned = Branch::new(branch.shift, branch.prefix);
        for slot in 0..16 {
            if self.stopped {
                return Node::EMPTY;
            }
            let child = match branch.child[slot].view() {
                View::Empty => Node::FULL,
                View::Full => Node::EMPTY,
                _ => self.turned(&branch.child[slot], branch.base(slot), branch.shift),
            };
            turned.hang(slot, child);
        }
        let mut inside = Node::from_branch(turned);
        settle(&mut inside, branch.span());
        if branch.span() == span {
            return inside;
        }
        // Everything of the slot beside the branch, and the rest of the branch.
        let mut around = Node::FULL;
        let last = super::last_of(branch.prefix, branch.span());
        super::range::clear(&mut around, base, span, branch.prefix, last);
        let inside = placed(inside, branch.prefix, branch.span(), span);
        Walk { op: Op::Or, pause: self.pause, stopped: false }.combine(&around, &inside, base, span)
    }

    /// A sparse leaf combined with a node that is neither empty nor full.
    fn few_and(&mut self, a: &Node, b: &Node, base: u64, span: u32) -> Node {
        match self.op {
            Op::And => self.kept(a, b, true, base, span),
            Op::AndNot => self.kept(a, b, false, base, span),
            Op::Or | Op::Xor => self.added(b, a, span),
        }
    }

    /// A node that is neither empty nor full, combined with a sparse leaf.
    fn and_few(&mut self, a: &Node, b: &Node, base: u64, span: u32) -> Node {
        match self.op {
            Op::And => self.kept(b, a, true, base, span),
            Op::AndNot | Op::Or | Op::Xor => self.added(a, b, span),
        }
    }

    /// The numbers of a sparse leaf that the other node has, or has not.
    fn kept(&mut self, few: &Node, other: &Node, want: bool, base: u64, span: u32) -> Node {
        let numbers = few_of(few);
        self.work(numbers.len());
        let all = all_of(numbers.len());
        let found = look::contains_each(other, &numbers, all);
        let kept = if want { found } else { all & !found };
        match kept {
            0 => Node::EMPTY,
            _ if kept == all => few.clone(),
            _ => build(&chosen(&numbers, kept), span, base),
        }
    }

    /// A node with a few numbers added, inverted, or removed.
    fn added(&mut self, node: &Node, few: &Node, span: u32) -> Node {
        let numbers: Few = few_of(few);
        self.work(numbers.len() * 4);
        let found = look::contains_each(node, &numbers, all_of(numbers.len()));
        let mut node = node.clone();
        for (i, &x) in numbers.iter().enumerate() {
            match (found >> i & 1 == 1, self.op) {
                (false, Op::Or | Op::Xor) => insert_new(&mut node, span, x),
                (true, Op::AndNot | Op::Xor) => remove_present(&mut node, span, x),
                _ => {}
            }
        }
        node
    }

    /// Combines two branches of the same slots. `a` is the first of them.
    fn slots(&mut self, x: &Branch, y: &Branch, a: &Node, span: u32) -> Node {
        let mut branch = Branch::new(x.shift, x.prefix);
        let mut unchanged = true;
        for slot in 0..16 {
            let child = self.combine(&x.child[slot], &y.child[slot], x.base(slot), x.shift);
            unchanged &= child.same(&x.child[slot]);
            if !child.is_empty() {
                branch.hang(slot, child);
            }
        }
        if unchanged {
            return a.clone();
        }
        settled(branch, span)
    }

    /// Combines two nodes, branches or chunks. One is within a slot of the other, or they are side by side.
    fn nested(&mut self, a: &Node, b: &Node, span: u32) -> Node {
        let ((a_base, a_span), (b_base, b_span)) = (extent(a), extent(b));
        match (a.view(), b.view()) {
            (View::Branch(wide), _) if a_span > b_span && !outside(b_base, wide.prefix, a_span) => {
                let slot = wide.slot(b_base);
                let child = self.combine(&wide.child[slot], b, wide.base(slot), wide.shift);
                match self.op {
                    Op::And => alone(wide, slot, child, span),
                    _ => replaced(a, slot, child, span),
                }
            }
            (_, View::Branch(wide)) if b_span > a_span && !outside(a_base, wide.prefix, b_span) => {
                let slot = wide.slot(a_base);
                let child = self.combine(a, &wide.child[slot], wide.base(slot), wide.shift);
                match self.op {
                    Op::And | Op::AndNot => alone(wide, slot, child, span),
                    _ => replaced(b, slot, child, span),
                }
            }
            _ => match self.op {
                Op::And => Node::EMPTY,
                Op::AndNot => a.clone(),
                Op::Or | Op::Xor => {
                    let mut branch = Branch::new(shift_between(a_base, b_base), a_base);
                    branch.hang(branch.slot(a_base), a.clone());
                    branch.hang(branch.slot(b_base), b.clone());
                    settled(branch, span)
                }
            },
        }
    }

    /// The number of elements that both nodes of a slot of `span` bits have. Not both are full if that is all
    /// numbers.
    fn count(&mut self, a: &Node, b: &Node, span: u32) -> u64 {
        if self.stopped {
            return 0;
        }
        if a.same(b) {
            return a.len(span);
        }
        match (a.view(), b.view()) {
            (View::Empty, _) | (_, View::Empty) => 0,
            (View::Full, _) => b.len(span),
            (_, View::Full) => a.len(span),
            (View::Leaf(few), _) if few.is_sparse() => self.count_few(a, b),
            (_, View::Leaf(few)) if few.is_sparse() => self.count_few(b, a),
            (View::Leaf(x), View::Leaf(y)) if x.is_bins() && y.is_bins() => self.count_bins(x, y),
            (View::Leaf(x), _) if x.is_bins() => self.count(&bins::opened(x), b, span),
            (_, View::Leaf(y)) if y.is_bins() => self.count(a, &bins::opened(y), span),
            (View::Leaf(x), View::Leaf(y)) => self.count_chunks(x, y),
            (View::Branch(x), View::Branch(y)) if x.shift == y.shift => {
                if x.prefix != y.prefix {
                    return 0;
                }
                (0..16).map(|slot| self.count(&x.child[slot], &y.child[slot], x.shift)).sum()
            }
            (View::Branch(x), View::Branch(y)) if x.shift < y.shift => self.count_nested(y, a),
            (View::Branch(x), _) => self.count_nested(x, b),
            (_, View::Branch(y)) => self.count_nested(y, a),
        }
    }

    fn count_nested(&mut self, wide: &Branch, narrow: &Node) -> u64 {
        let (base, _) = extent(narrow);
        if outside(base, wide.prefix, wide.span()) {
            return 0;
        }
        self.count(&wide.child[wide.slot(base)], narrow, wide.shift)
    }

    fn count_few(&mut self, few: &Node, other: &Node) -> u64 {
        let numbers = few_of(few);
        self.work(numbers.len());
        u64::from(look::contains_each(other, &numbers, all_of(numbers.len())).count_ones())
    }

    fn count_bins(&mut self, a: Leaf<'_>, b: Leaf<'_>) -> u64 {
        if a.base() != b.base() {
            return 0;
        }
        self.work(BINS_WORK);
        bins::count_and(a, b)
    }

    fn count_chunks(&mut self, a: Leaf<'_>, b: Leaf<'_>) -> u64 {
        if a.base() != b.base() {
            return 0;
        }
        self.work(CHUNK_WORK);
        chunk::count_and(a, b)
    }
}

/// The numbers whose bits are set, from a few.
fn chosen(numbers: &[u64], bits: u128) -> Few {
    let mut chosen = Few::new();
    let _ = each_one(bits, |i| {
        chosen.push(numbers[i]);
        Continue::<()>(())
    });
    chosen
}

/// A new branch, brought into order.
fn settled(branch: Branch, span: u32) -> Node {
    let mut node = Node::from_branch(branch);
    settle(&mut node, span);
    node
}

/// The rest of a branch with only one child.
fn alone(wide: &Branch, slot: usize, child: Node, span: u32) -> Node {
    placed(child, wide.base(slot), wide.shift, span)
}

/// A branch with another child in a slot.
fn replaced(node: &Node, slot: usize, child: Node, span: u32) -> Node {
    let mut node = node.clone();
    match node.view() {
        View::Branch(branch) if branch.child[slot].same(&child) => return node,
        _ => {}
    }
    if let Some(branch) = node.branch_mut() {
        branch.change(slot, |old| *old = child);
    }
    settle(&mut node, span);
    node
}
