//! Sets of integers in order: a radix tree over shared containers that suit the density of each region.
//!
//! ```text
//! Ints ─► Branch, 16 slots of 2^28 ─► Branch, 16 of 2^16 ─► chunk of 65,536: array, runs, or bitmap
//!                    │                        ├───────────► Full: all numbers of the slot, no memory
//!                    │                        └───────────► nothing
//!                    ├─► Bins: sixteen chunks with few numbers each, in one leaf
//!                    └► Sparse: up to some hundred numbers of a wide slot, 4 or 8 bytes each
//! ```
//!
//! The numbers are unsigned 64-bit ones; [`signed`] maps the elements of sets onto them, in order. Levels
//! without a choice are skipped, so the depth follows the numbers, not the width of the type. A whole set is
//! never converted: a region that becomes dense changes form chunk by chunk, by the insertion that makes it
//! so.
//!
//! - I1: a slot of a branch holds only numbers of its range. A branch or leaf is inside its slot, and may be
//!   narrower.
//! - I2: a branch has at least two children, or one that is Full; sixteen Full children are one Full slot.
//! - I3: a sparse leaf has at most [`limit`] numbers. The limit differs from slot to slot, so that the leaves
//!   of an evenly filled set do not grow all at once. A branch with fewer than [`FEW`] becomes a sparse leaf.
//! - I4: counts and bytes of every branch are exact after each change.
//!
//! Costs, with depth d at most 13 and about log16 of the number of leaves: look-up, insertion, removal, rank
//! and nth O(d + a leaf); a leaf is at most 8 KB. Ranges O(16 d), whatever their width. Combining two sets
//! O(parts that differ and are not wholly absent or full). Clone O(1); the first change under a clone copies
//! d branches of 280 bytes and a leaf. A large set is dropped by `stdx::reclaim`.

mod algebra;
mod bins;
mod chunk;
mod iter;
mod look;
mod node;
mod range;
mod search;
pub mod signed;
mod words;

pub use algebra::Pause;
pub use iter::{Iter, PIECE};
pub use words::Op;
pub(crate) use words::all_of;

use node::{ALL, Branch, CHUNK, Content, Leaf, Node, View};
use smallvec::SmallVec;

/// A set of unsigned 64-bit integers. 8 bytes; `clone` is O(1).
pub struct Ints {
    root: Node,
}

/// The containers of a set: how many of each kind, and their numbers of elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    pub branches: u64,
    pub sparse: u64,
    pub sparse_elements: u64,
    /// Chunks of 65,536 numbers with elements of sparse leaves.
    pub sparse_chunks: u64,
    pub arrays: u64,
    pub array_elements: u64,
    pub runs: u64,
    pub run_elements: u64,
    /// Runs in all of them.
    pub run_count: u64,
    pub bitmaps: u64,
    pub bitmap_elements: u64,
    /// Slots that are full, of whatever width.
    pub full: u64,
    pub full_elements: u128,
}

/// Elements below which a branch becomes a sparse leaf.
const FEW: u64 = 24;
/// Most elements of any sparse leaf.
const LIMIT_MAX: usize = 127;

/// The elements of a sparse leaf and one more.
type Few = SmallVec<[u64; LIMIT_MAX + 1]>;

/// Most elements of a sparse leaf for a slot (I3): 64 to 127, or 32 to 63 where bins can hold more.
#[inline]
fn limit(base: u64, span: u32) -> usize {
    let limit = LIMIT_MAX / 2 + 1 + (stdx::hash::hash_u64(base ^ u64::from(span)) >> 58) as usize;
    if span == bins::SPAN { limit / 2 } else { limit }
}

/// The first number of the slot of `span` bits around a number.
#[inline]
fn base_of(x: u64, span: u32) -> u64 {
    if span == ALL { 0 } else { x >> span << span }
}

/// True if a number is outside the slot of `span` bits that begins at `base`.
#[inline]
fn outside(x: u64, base: u64, span: u32) -> bool {
    span < ALL && (x ^ base) >> span != 0
}

/// The last number of a slot.
#[inline]
fn last_of(base: u64, span: u32) -> u64 {
    base | (u64::MAX >> (ALL - span))
}

/// The shift of the branch that separates two numbers of different chunks.
#[inline]
fn shift_between(a: u64, b: u64) -> u32 {
    (63 - (a ^ b).leading_zeros()) & !3
}

impl Ints {
    /// The empty set. Allocates nothing.
    #[inline]
    pub const fn new() -> Ints {
        Ints { root: Node::EMPTY }
    }

    /// The set of all numbers.
    pub const fn all() -> Ints {
        Ints { root: Node::FULL }
    }

    /// Number of elements, up to 2^64. O(1).
    #[inline]
    pub fn len(&self) -> u128 {
        if self.root.is_full() { 1 << ALL } else { u128::from(self.root.len(0)) }
    }

    /// True without elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.root.is_empty()
    }

    /// The root and memory that this handle keeps alive. None if it keeps nothing.
    pub fn held(&self) -> Option<crate::Held> {
        self.root.held()
    }

    /// Bytes of all blocks, shared ones counted fully. O(1).
    #[inline]
    pub fn mem_bytes(&self) -> usize {
        self.root.bytes()
    }

    /// True if both are clones of each other without later changes. O(1).
    #[inline]
    pub fn ptr_eq(&self, other: &Ints) -> bool {
        self.root.same(&other.root)
    }

    /// True if the number is an element.
    #[inline]
    pub fn contains(&self, x: u64) -> bool {
        look::contains(&self.root, x)
    }

    /// Adds a number. True if it is new; otherwise nothing is copied.
    #[inline]
    pub fn insert(&mut self, x: u64) -> bool {
        if self.contains(x) {
            return false;
        }
        insert_new(&mut self.root, ALL, x);
        true
    }

    /// Removes a number. False if it is absent.
    #[inline]
    pub fn remove(&mut self, x: u64) -> bool {
        if !self.contains(x) {
            return false;
        }
        remove_present(&mut self.root, ALL, x);
        true
    }

    /// Adds the number if it is absent, else removes it. True if it is present now.
    pub fn toggle(&mut self, x: u64) -> bool {
        if self.remove(x) {
            return false;
        }
        insert_new(&mut self.root, ALL, x);
        true
    }

    /// Removes everything. O(1).
    pub fn clear(&mut self) {
        *self = Ints::new();
    }

    /// Brings every chunk into its smallest form. O(n), with `pause` as in the algebra. False if `pause`
    /// broke off; the work done so far stays.
    pub fn optimize(&mut self, pause: Pause<'_>) -> bool {
        optimize(&mut self.root, pause)
    }

    /// Counts containers. O(containers).
    pub fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::default();
        add_statistics(&self.root, ALL, &mut statistics);
        statistics
    }

    /// Asserts the invariants of all nodes. O(n).
    pub fn check_invariants(&self) {
        check(&self.root, 0, ALL);
    }
}

impl Default for Ints {
    fn default() -> Ints {
        Ints::new()
    }
}

impl Clone for Ints {
    #[inline]
    fn clone(&self) -> Ints {
        Ints { root: self.root.clone() }
    }
}

impl Extend<u64> for Ints {
    fn extend<I: IntoIterator<Item = u64>>(&mut self, numbers: I) {
        numbers.into_iter().for_each(|x| {
            self.insert(x);
        });
    }
}

impl FromIterator<u64> for Ints {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Ints {
        let mut ints = Ints::new();
        ints.extend(numbers);
        ints
    }
}

impl std::fmt::Debug for Ints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} integers, {:?}", self.len(), self.iter().take(16).collect::<Vec<u64>>())
    }
}

const _: () = assert!(size_of::<Ints>() == 8);

// ----- changes of one number -------------------------------------------------------------------------------

/// Adds a number that is absent below a slot of `span` bits.
fn insert_new(node: &mut Node, span: u32, x: u64) {
    if let Some(branch) = covering_branch(node, x) {
        let (slot, shift) = (branch.slot(x), branch.shift);
        branch.change_by(slot, 1, |child| insert_new(child, shift, x));
        if branch.child[slot].is_full() {
            settle(node, span);
        }
        return;
    }
    match node.view() {
        View::Empty => *node = single(span, x),
        View::Full => unreachable!("the number is absent"),
        View::Branch(_) => beside(node, x),
        View::Leaf(leaf) if leaf.is_bins() => {
            if outside(x, leaf.base(), bins::SPAN) {
                beside(node, x);
            } else if leaf.len() < bins::most(leaf.base()) {
                bins::insert(node, x);
            } else {
                *node = bins::opened(leaf);
                insert_new(node, span, x);
            }
        }
        View::Leaf(leaf) if leaf.is_chunk() => {
            if !outside(x, leaf.base(), CHUNK) {
                chunk::insert(node, x as u16);
                if node.is_full() {
                    *node = placed(Node::FULL, x, CHUNK, span);
                }
            } else if leaf.len() < FEW {
                add_to_few(node, span, x);
            } else {
                beside(node, x);
            }
        }
        View::Leaf(leaf) => insert_sparse(node, leaf.base(), leaf.span(), span, x),
    }
}

/// The branch, unshared, if it covers the number.
#[inline]
fn covering_branch(node: &mut Node, x: u64) -> Option<&mut Branch> {
    let View::Branch(branch) = node.view() else { return None };
    if outside(x, branch.prefix, branch.span()) { None } else { node.branch_mut() }
}

fn insert_sparse(node: &mut Node, base: u64, own_span: u32, span: u32, x: u64) {
    let View::Leaf(leaf) = node.view() else { unreachable!("a leaf") };
    if outside(x, base, own_span) || leaf.len() as usize >= limit(base, own_span) {
        return add_to_few(node, span, x);
    }
    match leaf.content() {
        Content::Sparse4(items) => {
            let item = (x - base) as u32;
            let at = items.partition_point(|&other| other < item);
            node.splice(at..at, &[item]);
        }
        Content::Sparse8(items) => {
            let at = items.partition_point(|&other| other < x - base);
            node.splice(at..at, &[x - base]);
        }
        _ => unreachable!("a sparse leaf"),
    }
}

/// Rebuilds a leaf of few elements for its whole slot, with one more.
#[cold]
fn add_to_few(node: &mut Node, span: u32, x: u64) {
    let mut few = few_of(node);
    let at = few.partition_point(|&other| other < x);
    few.insert(at, x);
    *node = build(&few, span, base_of(x, span));
}

/// The elements of a node that has few.
fn few_of(node: &Node) -> Few {
    let mut few = Few::new();
    match node.view() {
        View::Leaf(leaf) => look::put_few(leaf, &mut few),
        _ => look::each(node, &mut |x| few.push(x)),
    }
    few
}

/// Puts a new branch over a node and a number outside it.
#[cold]
fn beside(node: &mut Node, x: u64) {
    let old = std::mem::replace(node, Node::EMPTY);
    let (base, _) = extent(&old);
    let shift = shift_between(base, x);
    let mut branch = Branch::new(shift, x);
    branch.hang(branch.slot(base), old);
    branch.hang(branch.slot(x), single(shift, x));
    *node = Node::from_branch(branch);
}

/// The start and span of a node that is neither empty nor full.
fn extent(node: &Node) -> (u64, u32) {
    match node.view() {
        View::Branch(branch) => (branch.prefix, branch.span()),
        View::Leaf(leaf) => (leaf.base(), leaf.span()),
        _ => unreachable!("a branch or leaf"),
    }
}

/// One number in a slot of `span` bits.
fn single(span: u32, x: u64) -> Node {
    build(&[x], span, base_of(x, span))
}

/// The node for some ascending numbers of a slot, at most a leaf and one.
fn build(numbers: &[u64], span: u32, base: u64) -> Node {
    let [first, .., last] = *numbers else {
        return numbers.first().map_or(Node::EMPTY, |_| sparse_or_array(numbers, span, base));
    };
    if span == CHUNK || numbers.len() <= limit(base, span) {
        return sparse_or_array(numbers, span, base);
    }
    if (first ^ last) >> CHUNK == 0 {
        return sparse_or_array(numbers, CHUNK, base_of(first, CHUNK));
    }
    if (first ^ last) >> bins::SPAN == 0 {
        return bins::from_numbers(numbers);
    }
    let mut branch = Branch::new(shift_between(first, last), first);
    let mut rest = numbers;
    while let Some(&x) = rest.first() {
        let slot = branch.slot(x);
        let (here, later) = rest.split_at(rest.partition_point(|&x| branch.slot(x) == slot));
        branch.hang(slot, build(here, branch.shift, branch.base(slot)));
        rest = later;
    }
    Node::from_branch(branch)
}

fn sparse_or_array(numbers: &[u64], span: u32, base: u64) -> Node {
    match span {
        CHUNK => {
            let items: SmallVec<[u16; LIMIT_MAX + 1]> = numbers.iter().map(|&x| x as u16).collect();
            Node::leaf(base, span, &items)
        }
        0..=32 => {
            let items: SmallVec<[u32; LIMIT_MAX + 1]> = numbers.iter().map(|&x| (x - base) as u32).collect();
            Node::leaf(base, span, &items)
        }
        _ => {
            let items: Few = numbers.iter().map(|&x| x - base).collect();
            Node::leaf(base, span, &items)
        }
    }
}

/// Removes a present number below a slot of `span` bits.
fn remove_present(node: &mut Node, span: u32, x: u64) {
    if node.is_full() {
        if span == CHUNK {
            *node = chunk::all_but(base_of(x, CHUNK), x as u16, x as u16);
            return;
        }
        *node = divided(span, x);
    }
    if let Some(branch) = node.branch_mut() {
        let (slot, shift) = (branch.slot(x), branch.shift);
        let was_full = branch.child[slot].is_full();
        branch.change_by(slot, -1, |child| remove_present(child, shift, x));
        // A full child may be alone, another may not (I2).
        let len = branch.len();
        if was_full || branch.child[slot].is_empty() || len < FEW || len == bins::AT_MOST && shift == CHUNK {
            settle(node, span);
        }
        return;
    }
    let View::Leaf(leaf) = node.view() else { unreachable!("the number is there") };
    let base = leaf.base();
    match leaf.content() {
        Content::Sparse4(items) => {
            let at = items.partition_point(|&other| u64::from(other) < x - base);
            node.splice::<u32>(at..at + 1, &[]);
        }
        Content::Sparse8(items) => {
            let at = items.partition_point(|&other| other < x - base);
            node.splice::<u64>(at..at + 1, &[]);
        }
        Content::Bins(_) if leaf.len() > FEW => bins::remove(node, x),
        Content::Bins(_) => {
            let few: Few = few_of(node).into_iter().filter(|&other| other != x).collect();
            *node = build(&few, span, base_of(x, span));
        }
        _ => chunk::remove(node, x as u16),
    }
}

/// A full slot as a branch of sixteen full ones.
fn divided(span: u32, within: u64) -> Node {
    let mut branch = Branch::new(span - 4, within);
    (0..16).for_each(|slot| branch.hang(slot, Node::FULL));
    Node::from_branch(branch)
}

/// A node for the `own_span` bits around a number, in a slot of `span` bits. The width of a full node is that
/// of its slot, so it gets a slot of its own.
fn placed(node: Node, within: u64, own_span: u32, span: u32) -> Node {
    if !node.is_full() || own_span == span {
        return node;
    }
    let mut above = Branch::new(own_span, within);
    above.hang(above.slot(within), node);
    Node::from_branch(above)
}

/// Brings a branch that may have lost or filled children into order (I2, I3). `span` is that of its slot.
fn settle(node: &mut Node, span: u32) {
    let View::Branch(branch) = node.view() else { return };
    let (prefix, own_span) = (branch.prefix, branch.span());
    let mut present = (0..16).filter(|&slot| !branch.child[slot].is_empty());
    let Some(first) = present.next() else {
        *node = Node::EMPTY;
        return;
    };
    let alone = present.next().is_none();
    if alone && !branch.child[first].is_full() {
        *node = branch.child[first].clone();
    } else if branch.child.iter().all(Node::is_full) {
        *node = placed(Node::FULL, prefix, own_span, span);
    } else if branch.len() < FEW {
        let few = few_of(node);
        *node = build(&few, span, base_of(few[0], span));
    } else if let Some(leaf) = bins::closed(branch) {
        *node = leaf;
    }
}

// ----- as a whole ------------------------------------------------------------------------------------------

fn optimize(node: &mut Node, pause: Pause<'_>) -> bool {
    if let View::Leaf(leaf) = node.view() {
        if leaf.is_chunk() {
            *node = chunk::optimized(leaf);
        }
        return pause(64).is_continue();
    }
    let Some(branch) = node.branch_mut() else { return true };
    // Full chunks are Full already, so a branch neither empties nor fills.
    (0..16).all(|slot| branch.change(slot, |child| optimize(child, pause)))
}

fn add_statistics(node: &Node, span: u32, statistics: &mut Statistics) {
    match node.view() {
        View::Empty => {}
        View::Full => {
            statistics.full += 1;
            statistics.full_elements += 1 << span;
        }
        View::Branch(branch) => {
            statistics.branches += 1;
            branch.child.iter().for_each(|child| add_statistics(child, branch.shift, statistics));
        }
        View::Leaf(leaf) => {
            match leaf.content() {
                Content::Runs(runs) => statistics.run_count += runs.len() as u64,
                Content::Sparse4(items) => {
                    statistics.sparse_chunks +=
                        chunks(items.iter().map(|&item| leaf.base() + u64::from(item)));
                }
                Content::Sparse8(items) => {
                    statistics.sparse_chunks += chunks(items.iter().map(|&item| leaf.base() + item));
                }
                Content::Bins(bins) => statistics.sparse_chunks += bins.chunks(),
                _ => {}
            }
            let (containers, elements) = match leaf.content() {
                Content::Array(_) => (&mut statistics.arrays, &mut statistics.array_elements),
                Content::Runs(_) => (&mut statistics.runs, &mut statistics.run_elements),
                Content::Bitmap(..) => (&mut statistics.bitmaps, &mut statistics.bitmap_elements),
                _ => (&mut statistics.sparse, &mut statistics.sparse_elements),
            };
            *containers += 1;
            *elements += leaf.len();
        }
    }
}

/// Number of chunks that contain some ascending numbers.
fn chunks(numbers: impl Iterator<Item = u64>) -> u64 {
    let (mut chunks, mut last) = (0, None);
    for chunk in numbers.map(|x| x >> CHUNK) {
        chunks += u64::from(last.replace(chunk) != Some(chunk));
    }
    chunks
}

fn check(node: &Node, base: u64, span: u32) {
    match node.view() {
        View::Empty | View::Full => {}
        View::Leaf(leaf) => check_leaf(leaf, base, span),
        View::Branch(branch) => {
            assert!(branch.span() <= span && !outside(branch.prefix, base, span), "I1");
            assert!(branch.shift >= CHUNK && branch.shift.is_multiple_of(4), "I1");
            let present = branch.child.iter().filter(|child| !child.is_empty()).count();
            let full = branch.child.iter().filter(|child| child.is_full()).count();
            assert!(full < 16 && (present > 1 || present == 1 && full == 1), "I2");
            assert!(branch.len() >= FEW, "I3");
            let mut bytes = size_of::<Branch>();
            for slot in 0..16 {
                let child = &branch.child[slot];
                check(child, branch.base(slot), branch.shift);
                assert_eq!(child.len(branch.shift), branch.lens[slot], "I4");
                bytes += child.bytes();
            }
            assert_eq!(bytes, branch.bytes, "I4");
        }
    }
}

fn check_leaf(leaf: Leaf<'_>, base: u64, span: u32) {
    assert!(leaf.span() <= span && !outside(leaf.base(), base, span), "I1");
    leaf.check_invariants();
    match leaf.is_chunk() {
        true => chunk::check_invariants(leaf),
        false if leaf.is_bins() => {
            assert!((FEW..=bins::most(leaf.base())).contains(&leaf.len()), "B2");
        }
        false => assert!(leaf.len() as usize <= limit(leaf.base(), leaf.span()), "I3"),
    }
}

#[cfg(test)]
mod tests;
