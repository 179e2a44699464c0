//! Sixteen chunks in one leaf: a slot of 2^20 numbers with few numbers in each chunk.
//!
//! ```text
//! [ends: 16][lows ...]     end of each chunk's numbers; the low 16 bits of all numbers, chunk by chunk
//! ```
//!
//! A million random 32-bit numbers are 15 to a chunk. Separate arrays would need a head each and a branch
//! above. They would also outgrow one size of block after the other in step, and leave the allocator with
//! pages full of holes. One leaf with 244 numbers takes 536 bytes.
//!
//! - B1: the ends ascend, the last is the number of lows; the lows of each chunk ascend.
//! - B2: a leaf has at least [`FEW`] and at most [`most`] numbers. The maximum differs from slot to slot, so
//!   that an evenly filled set does not split all its leaves at once. A branch of arrays becomes such a leaf
//!   at [`AT_MOST`] numbers.
//!
//! Costs: look-ups O(log of a chunk's numbers); a change moves 2 KB at most; combining two O(numbers), with 4
//! KB of stack.

use super::node::{Branch, CHUNK, Content, Leaf, Low, Node, View};
use super::{FEW, Few, Op, base_of, build};
use smallvec::SmallVec;

/// Bits of the slot of such a leaf.
pub(super) const SPAN: u32 = CHUNK + 4;
/// Numbers up to which a branch of arrays becomes one leaf when it is put in order.
pub(super) const AT_MOST: u64 = 256;
/// Most numbers of any such leaf.
const MOST: usize = 1023;
/// Words before the lows.
pub(super) const ENDS: usize = 16;

/// The words of a leaf, taken apart.
#[derive(Clone, Copy)]
pub(super) struct Bins<'a> {
    ends: &'a [Low; ENDS],
    lows: &'a [Low],
}

type Words = SmallVec<[Low; 512]>;

/// Most numbers of the leaf of a slot (B2).
#[inline]
pub(super) fn most(base: u64) -> u64 {
    MOST as u64 / 2 + 1 + (stdx::hash::hash_u64(base) >> 55)
}

#[inline]
fn bin_of(x: u64) -> usize {
    (x >> CHUNK) as usize & 15
}

impl<'a> Bins<'a> {
    #[inline]
    pub(super) fn of(words: &'a [Low]) -> Bins<'a> {
        let Some((ends, lows)) = words.split_first_chunk() else { unreachable!("ends stand first (B1)") };
        Bins { ends, lows }
    }

    #[inline]
    fn start(&self, bin: usize) -> usize {
        if bin == 0 { 0 } else { self.ends[bin - 1].0 as usize }
    }

    /// The lows of a chunk.
    #[inline]
    fn bin(&self, bin: usize) -> &'a [Low] {
        &self.lows[self.start(bin)..self.ends[bin].0 as usize]
    }

    #[inline]
    pub(super) fn contains(&self, x: u64) -> bool {
        super::search::contains(self.bin(bin_of(x)), Low(x as u16))
    }

    /// Number of elements smaller than a number of the slot.
    #[inline]
    pub(super) fn rank(&self, x: u64) -> usize {
        let bin = bin_of(x);
        self.start(bin) + self.bin(bin).partition_point(|low| low.0 < x as u16)
    }

    /// The distance from the base of the number with that many smaller ones.
    pub(super) fn nth(&self, rank: usize) -> Option<u64> {
        let low = self.lows.get(rank)?;
        let bin = self.ends.partition_point(|end| end.0 as usize <= rank);
        Some((bin as u64) << CHUNK | u64::from(low.0))
    }

    /// The chunks and their distances from the base, from the chunk of a number on. Of that chunk only
    /// numbers not below it.
    #[inline]
    pub(super) fn chunks_from(self, x: u64) -> impl Iterator<Item = (u64, &'a [Low])> {
        let first = bin_of(x);
        (first..ENDS).map(move |bin| {
            let from = if bin == first && x != 0 { self.rank(x) } else { self.start(bin) };
            ((bin as u64) << CHUNK, &self.lows[from..self.ends[bin].0 as usize])
        })
    }

    /// The distances from the base, ascending.
    #[inline]
    pub(super) fn each(self, mut f: impl FnMut(u64)) {
        for (start, lows) in self.chunks_from(0) {
            lows.iter().for_each(|low| f(start | u64::from(low.0)));
        }
    }

    /// Number of chunks that are not empty.
    pub(super) fn chunks(&self) -> u64 {
        (0..ENDS).filter(|&bin| !self.bin(bin).is_empty()).count() as u64
    }

    /// Asserts B1.
    pub(super) fn check_invariants(&self) {
        assert!(self.ends.is_sorted() && self.ends[ENDS - 1].0 as usize == self.lows.len(), "B1");
        (0..ENDS).for_each(|bin| assert!(self.bin(bin).is_sorted_by(|a, b| a < b), "B1"));
    }
}

/// The bins of a node that has such a leaf.
#[inline]
fn bins_of(node: &Node) -> Bins<'_> {
    match node.view() {
        View::Leaf(leaf) => of_leaf(leaf),
        _ => unreachable!("a leaf of bins"),
    }
}

#[inline]
fn of_leaf(leaf: Leaf<'_>) -> Bins<'_> {
    let Content::Bins(bins) = leaf.content() else { unreachable!("a leaf of bins") };
    bins
}

/// A leaf of ascending numbers of one slot, at least FEW.
pub(super) fn from_numbers(numbers: &[u64]) -> Node {
    let mut words: Words = SmallVec::from_elem(Low(0), ENDS);
    for &x in numbers {
        words[bin_of(x)].0 += 1;
        words.push(Low(x as u16));
    }
    sum_up(&mut words);
    Node::leaf(base_of(numbers[0], SPAN), SPAN, &words)
}

/// Turns the counts of all chunks into ends.
fn sum_up(words: &mut [Low]) {
    (1..ENDS).for_each(|bin| words[bin].0 += words[bin - 1].0);
}

/// Adds an absent number of the slot. There must be room (B2).
#[inline]
pub(super) fn insert(node: &mut Node, x: u64) {
    let at = ENDS + bins_of(node).rank(x);
    node.splice(at..at, &[Low(x as u16)]);
    count(node, bin_of(x), 1);
}

/// Removes a present number.
#[inline]
pub(super) fn remove(node: &mut Node, x: u64) {
    let at = ENDS + bins_of(node).rank(x);
    node.splice::<Low>(at..at + 1, &[]);
    count(node, bin_of(x), u16::MAX);
}

/// Adds to the ends from a chunk on.
#[inline]
fn count(node: &mut Node, bin: usize, by: u16) {
    let Some(ends) = node.items_mut::<Low>().and_then(|words| words.first_chunk_mut::<ENDS>()) else {
        unreachable!("a leaf that was just changed")
    };
    for (i, end) in ends.iter_mut().enumerate() {
        end.0 = end.0.wrapping_add(if i >= bin { by } else { 0 });
    }
}

/// The same numbers as a branch of arrays, or as one array if they are in one chunk.
pub(super) fn opened(leaf: Leaf<'_>) -> Node {
    let bins = of_leaf(leaf);
    let mut branch = Branch::new(CHUNK, leaf.base());
    let mut last = Node::EMPTY;
    for bin in 0..ENDS {
        let lows: SmallVec<[u16; 128]> = bins.bin(bin).iter().map(|low| low.0).collect();
        let array = Node::leaf(branch.base(bin), CHUNK, &lows);
        if lows.len() as u64 == leaf.len() {
            last = array;
        } else if !lows.is_empty() {
            branch.hang(bin, array);
        }
    }
    if last.is_empty() { Node::from_branch(branch) } else { last }
}

/// A branch of arrays with few numbers, as a leaf; None for any other.
pub(super) fn closed(branch: &Branch) -> Option<Node> {
    if branch.shift != CHUNK || !(FEW..=AT_MOST).contains(&branch.len()) {
        return None;
    }
    let mut words: Words = SmallVec::from_elem(Low(0), ENDS);
    for (bin, child) in branch.child.iter().enumerate() {
        match child.view() {
            View::Empty => {}
            View::Leaf(leaf) => {
                let Content::Array(items) = leaf.content() else { return None };
                words.extend(items.iter().map(|&low| Low(low)));
            }
            View::Full | View::Branch(_) => return None,
        }
        words[bin] = Low((words.len() - ENDS) as u16);
    }
    Some(Node::leaf(branch.prefix, SPAN, &words))
}

/// Two leaves of one slot combined, for a slot of `span` bits.
pub(super) fn combine(op: Op, a: Leaf<'_>, b: Leaf<'_>, span: u32) -> Node {
    let (x, y) = (of_leaf(a), of_leaf(b));
    let mut words = [Low(0); ENDS + 2 * MOST];
    let Some((ends, lows)) = words.split_first_chunk_mut::<ENDS>() else { unreachable!("room for the ends") };
    let mut len = 0;
    for (bin, end) in ends.iter_mut().enumerate() {
        len += merge(op, x.bin(bin), y.bin(bin), &mut lows[len..]);
        end.0 = len as u16;
    }
    let same_as = |leaf: Leaf<'_>| leaf.len() == len as u64 && op != Op::Xor;
    match len as u64 {
        0 => Node::EMPTY,
        _ if same_as(a) => a.share(),
        _ if same_as(b) && op != Op::AndNot => b.share(),
        1..FEW => {
            let mut few = Few::new();
            Bins::of(&words[..ENDS + len]).each(|x| few.push(a.base() | x));
            build(&few, span, base_of(few[0], span))
        }
        _ => {
            let node = Node::leaf(a.base(), SPAN, &words[..ENDS + len]);
            match node.view() {
                View::Leaf(leaf) if leaf.len() > most(leaf.base()) => opened(leaf),
                _ => node,
            }
        }
    }
}

/// Writes the combined lows of two chunks and returns their number. It has no branch that depends on them.
#[inline]
fn merge(op: Op, a: &[Low], b: &[Low], out: &mut [Low]) -> usize {
    let (only_a, both, only_b) = match op {
        Op::And => (false, true, false),
        Op::Or => (true, true, true),
        Op::Xor => (true, false, true),
        Op::AndNot => (true, false, false),
    };
    let (mut i, mut j, mut len) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        let (x, y) = (a[i], b[j]);
        out[len] = x.min(y);
        len += usize::from((x < y) & only_a | (x == y) & both | (x > y) & only_b);
        i += usize::from(x <= y);
        j += usize::from(y <= x);
    }
    for (rest, kept) in [(&a[i..], only_a), (&b[j..], only_b)] {
        let rest = if kept { rest } else { &[] };
        out[len..len + rest.len()].copy_from_slice(rest);
        len += rest.len();
    }
    len
}

/// Number of elements that two leaves of one slot have in common.
pub(super) fn count_and(a: Leaf<'_>, b: Leaf<'_>) -> u64 {
    let (x, y) = (of_leaf(a), of_leaf(b));
    (0..ENDS).map(|bin| common(x.bin(bin), y.bin(bin))).sum()
}

fn common(a: &[Low], b: &[Low]) -> u64 {
    let (mut i, mut j, mut common) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        let (x, y) = (a[i], b[j]);
        common += u64::from(x == y);
        i += usize::from(x <= y);
        j += usize::from(y <= x);
    }
    common
}
