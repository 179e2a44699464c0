//! The nodes of a set of integers: one word each, counted. All the unsafe code is here.
//!
//! ```text
//! word   null                nothing
//!        2                   Full: every number of the slot it stands in
//!        pointer             Branch: 16 children, each with its number of elements
//!        pointer | 1         leaf: [count | items | room | base, span, kind][items ...]
//!
//! leaf   Array    u16, ascending      one chunk of 65,536 numbers, up to 4,088 of them
//!        Runs     first, last         one chunk
//!        Bitmap   1,024 words         one chunk; the words lie in a block of their own of exactly 8 KB
//!        Bins     16 ends, u16        sixteen chunks with few elements each: see `bins`
//!        Sparse   u32 or u64          any wider slot with few elements
//! ```
//!
//! - N1: a `Node` owns one count of its block. Blocks with one owner are changed in place, shared ones copied
//!   first.
//! - N2: `items <= room`, and that many items lie behind the head; a block is as large as its room says.
//! - N3: the last owner of a branch with more than [`DEFER_BYTES`] below it leaves it to the reclaimer.

use super::bins::{Bins, ENDS};
use super::words::Words;
use crate::alone::{self, Below};
use crate::arc::Count;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

/// Bits of a slot that is one chunk.
pub(super) const CHUNK: u32 = 16;
/// Bits of the slot that holds all numbers.
pub(super) const ALL: u32 = 64;
/// Most items of an array: with its head 8 KB.
pub(super) const ARRAY_MAX: usize = 4088;
const DEFER_BYTES: usize = 64 << 10;

/// A node, or nothing. 8 bytes; `clone` raises a count.
pub(super) struct Node {
    raw: *mut u8,
}

const FULL: usize = 2;
const LEAF: usize = 1;

/// The form of a node.
pub(super) enum View<'a> {
    Empty,
    Full,
    Branch(&'a Branch),
    Leaf(Leaf<'a>),
}

/// Sixteen slots of `1 << shift` numbers each, from `prefix` on.
#[repr(C, align(8))]
pub(super) struct Branch {
    count: Count,
    pub(super) shift: u32,
    pub(super) prefix: u64,
    /// Bytes of the branch and everything below it.
    pub(super) bytes: usize,
    pub(super) child: [Node; 16],
    /// Elements of each child.
    pub(super) lens: [u64; 16],
}

#[repr(C, align(8))]
struct Head {
    count: Count,
    items: u16,
    room: u16,
    /// The first number of the slot. Its low bits, which are zeros, hold span and kind.
    base: u64,
}

const HEAD: usize = size_of::<Head>();
const _: () = assert!(HEAD == 16);

/// A borrowed leaf.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    head: NonNull<Head>,
    life: PhantomData<&'a Node>,
}

/// Consecutive numbers, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(super) struct Run {
    pub(super) first: u16,
    pub(super) last: u16,
}

/// The low bits of a number in a leaf of bins, or the end of one of its chunks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub(super) struct Low(pub(super) u16);

/// The items of a leaf.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    Array(&'a [u16]),
    Runs(&'a [Run]),
    Bitmap(&'a Words, u32),
    /// Distances from the base.
    Sparse4(&'a [u32]),
    Sparse8(&'a [u64]),
    Bins(Bins<'a>),
}

const ARRAY: u8 = 0;
const RUNS: u8 = 1;
const BITMAP: u8 = 2;
const SPARSE4: u8 = 3;
const SPARSE8: u8 = 4;
const BINS: u8 = 5;

/// A type of item in a leaf.
///
/// # Safety
/// Plain data without padding, aligned to at most 8; `KIND` belongs to this type alone.
pub(super) unsafe trait Item: Copy {
    const KIND: u8;
}

// SAFETY: plain numbers.
unsafe impl Item for u16 {
    const KIND: u8 = ARRAY;
}
// SAFETY: two plain numbers.
unsafe impl Item for Run {
    const KIND: u8 = RUNS;
}
// SAFETY: plain numbers.
unsafe impl Item for u32 {
    const KIND: u8 = SPARSE4;
}
// SAFETY: plain numbers.
unsafe impl Item for u64 {
    const KIND: u8 = SPARSE8;
}
// SAFETY: plain numbers.
unsafe impl Item for Low {
    const KIND: u8 = BINS;
}

// SAFETY: shared blocks are only read; counts are atomic; the rest is plain numbers.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

impl Node {
    pub(super) const EMPTY: Node = Node { raw: std::ptr::null_mut() };
    pub(super) const FULL: Node = Node { raw: std::ptr::without_provenance_mut(FULL) };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.raw.is_null()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.raw.addr() == FULL
    }

    /// True if both are the same block, or both empty, or both full.
    #[inline]
    pub(super) fn same(&self, other: &Node) -> bool {
        self.raw == other.raw
    }

    #[inline]
    fn head(&self) -> Option<NonNull<Head>> {
        if self.raw.addr() & LEAF == 0 {
            return None;
        }
        NonNull::new(self.raw.map_addr(|addr| addr & !LEAF).cast())
    }

    #[inline]
    pub(super) fn view(&self) -> View<'_> {
        if let Some(head) = self.head() {
            return View::Leaf(Leaf { head, life: PhantomData });
        }
        match self.raw.addr() {
            0 => View::Empty,
            FULL => View::Full,
            // SAFETY: neither empty nor full nor tagged as a leaf: made by `from_branch`, alive by N1.
            _ => View::Branch(unsafe { &*self.raw.cast::<Branch>() }),
        }
    }

    pub(super) fn from_branch(branch: Branch) -> Node {
        Node { raw: Box::into_raw(Box::new(branch)).cast() }
    }

    /// The branch for changing it, copied first if it is shared. None for other nodes.
    #[inline]
    pub(super) fn branch_mut(&mut self) -> Option<&mut Branch> {
        let View::Branch(branch) = self.view() else { return None };
        if !branch.count.unique() {
            *self = Node::from_branch(branch.copy());
        }
        // SAFETY: a branch with one owner, which is borrowed mutably (N1).
        Some(unsafe { &mut *self.raw.cast::<Branch>() })
    }

    /// A leaf of these items, which must ascend. Empty if there are none.
    pub(super) fn leaf<T: Item>(base: u64, span: u32, items: &[T]) -> Node {
        if items.is_empty() {
            return Node::EMPTY;
        }
        Node::spliced(base, span, &[], items, &[])
    }

    /// A new leaf of three pieces.
    fn spliced<T: Item>(base: u64, span: u32, before: &[T], middle: &[T], after: &[T]) -> Node {
        let items = before.len() + middle.len() + after.len();
        let room = room_for::<T>(items);
        let head = allocate(base, span, T::KIND, items, room, HEAD + room * size_of::<T>());
        // SAFETY: `room >= items` items fit behind the head.
        unsafe {
            let at = head.cast::<u8>().add(HEAD).cast::<T>().as_ptr();
            at.copy_from_nonoverlapping(before.as_ptr(), before.len());
            at.add(before.len()).copy_from_nonoverlapping(middle.as_ptr(), middle.len());
            let rest = at.add(before.len() + middle.len());
            rest.copy_from_nonoverlapping(after.as_ptr(), after.len());
        }
        Node { raw: head.cast::<u8>().as_ptr().map_addr(|addr| addr | LEAF) }
    }

    /// A chunk of words with `count` bits set: neither none nor all.
    pub(super) fn bitmap(base: u64, words: &Words, count: u32) -> Node {
        debug_assert!((1..1 << CHUNK).contains(&count));
        let block = Box::into_raw(Box::new(*words));
        let head = allocate(base, CHUNK, BITMAP, count as usize, 0, HEAD + size_of::<*mut Words>());
        // SAFETY: the pointer's place is behind the head.
        unsafe { head.cast::<u8>().add(HEAD).cast::<*mut Words>().write(block) };
        Node { raw: head.cast::<u8>().as_ptr().map_addr(|addr| addr | LEAF) }
    }

    /// The words of a bitmap and their count, for changing them; copied first if shared.
    pub(super) fn words_mut(&mut self) -> Option<(&mut Words, &mut u16)> {
        let View::Leaf(leaf) = self.view() else { return None };
        let Content::Bitmap(words, count) = leaf.content() else { return None };
        if !leaf.is_unique() {
            *self = Node::bitmap(leaf.base(), words, count);
        }
        let head = self.head()?;
        // SAFETY: a bitmap with one owner, which is borrowed mutably (N1); its words are its own.
        unsafe {
            let words = *head.cast::<u8>().add(HEAD).cast::<*mut Words>().as_ref();
            Some((&mut *words, &mut (*head.as_ptr()).items))
        }
    }

    /// Replaces a range of a leaf's items by `with`. The leaf must hold items of this type. It becomes empty
    /// with its last item.
    pub(super) fn splice<T: Item>(&mut self, range: Range<usize>, with: &[T]) {
        let Some(head) = self.head() else { unreachable!("a leaf") };
        let leaf = Leaf { head, life: PhantomData };
        let items = leaf.items::<T>();
        let len = items.len() - range.len() + with.len();
        if len == 0 {
            *self = Node::EMPTY;
            return;
        }
        let room = leaf.head().room as usize;
        let roomy = len <= room && (len * 3 >= room || room <= room_for::<T>(8));
        if !roomy || !leaf.is_unique() {
            let (before, after) = (&items[..range.start], &items[range.end..]);
            *self = Node::spliced(leaf.base(), leaf.span(), before, with, after);
            return;
        }
        let tail = items.len() - range.end;
        // SAFETY: one owner, borrowed mutably (N1); all items before and after lie inside the room (N2).
        unsafe {
            let at = head.cast::<u8>().add(HEAD).cast::<T>().as_ptr();
            at.add(range.end).copy_to(at.add(range.start + with.len()), tail);
            at.add(range.start).copy_from_nonoverlapping(with.as_ptr(), with.len());
            (*head.as_ptr()).items = len as u16;
        }
    }

    /// The items of a leaf with one owner. None for other nodes.
    pub(super) fn items_mut<T: Item>(&mut self) -> Option<&mut [T]> {
        let head = self.head()?;
        let leaf = Leaf { head, life: PhantomData };
        if leaf.kind() != T::KIND || !leaf.is_unique() {
            return None;
        }
        // SAFETY: items of this type lie behind the head (N2) of a leaf with one owner, which is borrowed
        // mutably (N1).
        unsafe {
            let at = head.cast::<u8>().add(HEAD).cast::<T>();
            Some(std::slice::from_raw_parts_mut(at.as_ptr(), leaf.head().items as usize))
        }
    }

    /// Number of elements. `span` is that of the slot, at most 60 if the node may be full.
    #[inline]
    pub(super) fn len(&self, span: u32) -> u64 {
        match self.view() {
            View::Empty => 0,
            View::Full => 1 << span,
            View::Branch(branch) => branch.len(),
            View::Leaf(leaf) => leaf.len(),
        }
    }

    /// The memory that an owner of the node keeps alive. O(height).
    pub(super) fn held(&self) -> Option<crate::Held> {
        let (owners, bytes) = match self.view() {
            View::Empty | View::Full => return None,
            View::Branch(branch) => (branch.count.owners(), alone::bytes(branch, branch.bytes)),
            View::Leaf(leaf) => (leaf.head().count.owners(), leaf.bytes()),
        };
        Some(crate::Held { root: self.raw.addr(), owners, bytes })
    }

    /// Bytes of the node and everything below it. O(1).
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        match self.view() {
            View::Empty | View::Full => 0,
            View::Branch(branch) => branch.bytes,
            View::Leaf(leaf) => leaf.bytes(),
        }
    }
}

impl Clone for Node {
    #[inline]
    fn clone(&self) -> Node {
        match self.view() {
            View::Empty | View::Full => {}
            View::Branch(branch) => branch.count.retain(),
            View::Leaf(leaf) => leaf.head().count.retain(),
        }
        Node { raw: self.raw }
    }
}

impl Drop for Node {
    #[inline]
    fn drop(&mut self) {
        match self.view() {
            View::Empty | View::Full => {}
            View::Branch(branch) => {
                if branch.count.release() {
                    let (orphan, bytes) = (Orphan(self.raw.cast()), branch.bytes);
                    orphan.free_somewhere(bytes);
                }
            }
            View::Leaf(leaf) => {
                if leaf.head().count.release() {
                    free_leaf(leaf.head);
                }
            }
        }
    }
}

impl<'a> Below for &'a Branch {
    fn each_child(self, told: &mut dyn FnMut(u64, bool, Option<&'a Branch>)) {
        for node in &self.child {
            match node.view() {
                View::Empty | View::Full => {}
                View::Branch(branch) => told(branch.bytes as u64, branch.count.unique(), Some(branch)),
                View::Leaf(leaf) => told(leaf.bytes() as u64, leaf.is_unique(), None),
            }
        }
    }
}

/// A branch without owners.
struct Orphan(*mut Branch);

// SAFETY: this is the only pointer to it, and its contents are Send.
unsafe impl Send for Orphan {}

impl Orphan {
    #[inline(never)]
    fn free_somewhere(self, bytes: usize) {
        match bytes > DEFER_BYTES {
            true => {
                // SAFETY: made by `Box` in `from_branch`; this is the only pointer, and it is freed only
                // below.
                let alone = alone::bytes(unsafe { &*self.0 }, bytes);
                stdx::reclaim::defer_version(bytes, alone, move || self.free());
            }
            false => self.free(),
        }
    }

    fn free(self) {
        // SAFETY: made by `Box` in `from_branch`; its count is gone.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

fn free_leaf(head: NonNull<Head>) {
    let leaf = Leaf { head, life: PhantomData };
    // SAFETY: the last owner is gone; the block was allocated with this size, a bitmap's words by `Box`.
    unsafe {
        if leaf.kind() == BITMAP {
            drop(Box::from_raw(head.cast::<u8>().add(HEAD).cast::<*mut Words>().read()));
        }
        dealloc(head.as_ptr().cast(), layout(leaf.block_bytes()));
    }
}

fn layout(size: usize) -> Layout {
    // SAFETY: 8 is a power of two and sizes are far below the limit.
    unsafe { Layout::from_size_align_unchecked(size, 8) }
}

fn allocate(base: u64, span: u32, kind: u8, items: usize, room: usize, size: usize) -> NonNull<Head> {
    debug_assert!(span == ALL && base == 0 || base & ((1 << span) - 1) == 0 && span >= CHUNK);
    // SAFETY: the size is at least that of a head.
    unsafe {
        let Some(block) = NonNull::new(alloc(layout(size))) else { handle_alloc_error(layout(size)) };
        let head = block.cast::<Head>();
        head.write(Head {
            count: Count::one(),
            items: items as u16,
            room: room as u16,
            base: base | u64::from(span) << 8 | u64::from(kind),
        });
        head
    }
}

/// Items in a block with room for at least `items`, so that none of the allocator's block is wasted. The size
/// classes are the usual ones: sixteens up to 128, four per doubling above.
fn room_for<T>(items: usize) -> usize {
    let size = HEAD + items * size_of::<T>();
    let step = if size <= 128 { 16 } else { 1 << ((size - 1).ilog2() - 2) };
    (size.next_multiple_of(step) - HEAD) / size_of::<T>()
}

impl<'a> Leaf<'a> {
    #[inline]
    fn head(&self) -> &'a Head {
        // SAFETY: the node is borrowed for 'a, or its last owner is about to free it.
        unsafe { self.head.as_ref() }
    }

    #[inline]
    fn kind(&self) -> u8 {
        self.head().base as u8
    }

    #[inline]
    fn is_unique(&self) -> bool {
        self.head().count.unique()
    }

    /// Bits of the slot the leaf was made for. Its actual slot may be wider.
    #[inline]
    pub(super) fn span(&self) -> u32 {
        (self.head().base >> 8) as u8 as u32
    }

    /// Adds a handle of the leaf.
    pub(super) fn share(&self) -> Node {
        self.head().count.retain();
        Node { raw: self.head.cast::<u8>().as_ptr().map_addr(|addr| addr | LEAF) }
    }

    /// Asks the processor to fetch the leaf's beginning.
    #[inline]
    pub(super) fn prefetch(&self) {
        let start = self.head.as_ptr().cast::<u8>();
        (0..128).step_by(64).for_each(|line| crate::trie::prefetch(start.wrapping_add(line)));
    }

    /// As `prefetch`, for a look-up of a number among `len` of a leaf that may be one of bins.
    #[inline]
    pub(super) fn prefetch_bins(&self, x: u64, len: u64) {
        const SLOT: u64 = 1 << super::bins::SPAN;
        let start = self.head.as_ptr().cast::<u8>();
        let guess = (x % SLOT * len.min(SLOT) / SLOT) as usize * size_of::<Low>();
        crate::trie::prefetch(start);
        crate::trie::prefetch(start.wrapping_add(HEAD + ENDS * size_of::<Low>() + guess));
    }

    /// The first number of the slot the leaf is made for.
    #[inline]
    pub(super) fn base(&self) -> u64 {
        self.head().base & !0xFFFF
    }

    #[inline]
    pub(super) fn is_chunk(&self) -> bool {
        self.kind() <= BITMAP
    }

    #[inline]
    pub(super) fn is_bins(&self) -> bool {
        self.kind() == BINS
    }

    /// True for a leaf of whole numbers.
    #[inline]
    pub(super) fn is_sparse(&self) -> bool {
        matches!(self.kind(), SPARSE4 | SPARSE8)
    }

    /// The items. Panics if they are of another type.
    #[inline]
    fn items<T: Item>(&self) -> &'a [T] {
        assert_eq!(self.kind(), T::KIND);
        // SAFETY: items of this type lie behind the head (N2), unchanged as long as the node is borrowed.
        unsafe {
            let at = self.head.cast::<u8>().add(HEAD).cast::<T>();
            std::slice::from_raw_parts(at.as_ptr(), self.head().items as usize)
        }
    }

    #[inline]
    pub(super) fn content(&self) -> Content<'a> {
        match self.kind() {
            ARRAY => Content::Array(self.items()),
            RUNS => Content::Runs(self.items()),
            SPARSE4 => Content::Sparse4(self.items()),
            SPARSE8 => Content::Sparse8(self.items()),
            BINS => Content::Bins(Bins::of(self.items())),
            // SAFETY: a bitmap has a pointer to its words behind its head.
            _ => unsafe {
                let words = *self.head.cast::<u8>().add(HEAD).cast::<*mut Words>().as_ref();
                Content::Bitmap(&*words, u32::from(self.head().items))
            },
        }
    }

    /// Elements. O(1), O(runs) for runs.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        match self.kind() {
            RUNS => self.items::<Run>().iter().map(|run| u64::from(run.len())).sum(),
            BINS => u64::from(self.head().items) - ENDS as u64,
            _ => u64::from(self.head().items),
        }
    }

    fn block_bytes(&self) -> usize {
        let item = match self.kind() {
            ARRAY | BINS => 2,
            RUNS | SPARSE4 => 4,
            SPARSE8 => 8,
            _ => return HEAD + size_of::<*mut Words>(),
        };
        HEAD + self.head().room as usize * item
    }

    /// Bytes of all blocks, as the allocator hands them out.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        match self.kind() {
            BITMAP => size_of::<Words>() + 32,
            _ => self.block_bytes().next_multiple_of(16),
        }
    }

    /// Asserts N2 and that the items ascend.
    pub(super) fn check_invariants(&self) {
        assert!(self.head().items > 0);
        let clean = |n: u64| self.span() == ALL || n >> self.span() == 0;
        match self.content() {
            Content::Array(items) => assert!(items.is_sorted_by(|a, b| a < b) && items.len() <= ARRAY_MAX),
            Content::Runs(runs) => {
                assert!(runs.iter().all(|run| run.first <= run.last));
                assert!(runs.windows(2).all(|two| u32::from(two[0].last) + 1 < u32::from(two[1].first)));
                assert!(self.len() < 1 << CHUNK);
            }
            Content::Bitmap(words, count) => {
                assert_eq!(words.iter().map(|word| word.count_ones()).sum::<u32>(), count);
            }
            Content::Sparse4(items) => {
                assert!(self.span() <= 32 && items.is_sorted_by(|a, b| a < b));
                assert!(items.iter().all(|&n| clean(u64::from(n))));
            }
            Content::Sparse8(items) => {
                assert!(self.span() > 32 && items.is_sorted_by(|a, b| a < b));
                assert!(items.iter().all(|&n| clean(n)));
            }
            Content::Bins(bins) => {
                assert_eq!(self.span(), super::bins::SPAN);
                bins.check_invariants();
            }
        }
        assert_eq!(self.is_chunk(), self.span() == CHUNK);
        if self.kind() != BITMAP {
            assert!(self.head().items <= self.head().room);
        }
    }
}

impl Run {
    #[inline]
    pub(super) fn len(self) -> u32 {
        u32::from(self.last) - u32::from(self.first) + 1
    }
}

impl Branch {
    /// A branch without children.
    pub(super) fn new(shift: u32, within: u64) -> Branch {
        debug_assert!((CHUNK..ALL).contains(&shift) && shift.is_multiple_of(4));
        let prefix = if shift + 4 == ALL { 0 } else { within >> (shift + 4) << (shift + 4) };
        Branch {
            count: Count::one(),
            shift,
            prefix,
            bytes: size_of::<Branch>(),
            child: [const { Node::EMPTY }; 16],
            lens: [0; 16],
        }
    }

    fn copy(&self) -> Branch {
        let Branch { shift, prefix, bytes, lens, .. } = *self;
        Branch { count: Count::one(), shift, prefix, bytes, child: self.child.clone(), lens }
    }

    /// Elements.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.lens.iter().sum()
    }

    /// Bits of all its slots together.
    #[inline]
    pub(super) fn span(&self) -> u32 {
        self.shift + 4
    }

    /// The slot of a number the branch covers.
    #[inline]
    pub(super) fn slot(&self, x: u64) -> usize {
        (x >> self.shift) as usize & 15
    }

    /// The first number of a slot.
    #[inline]
    pub(super) fn base(&self, slot: usize) -> u64 {
        self.prefix | (slot as u64) << self.shift
    }

    /// Puts a child into an empty slot.
    pub(super) fn hang(&mut self, slot: usize, child: Node) {
        debug_assert!(self.child[slot].is_empty());
        self.lens[slot] = child.len(self.shift);
        self.bytes += child.bytes();
        self.child[slot] = child;
    }

    /// Changes the child of a slot and counts its contents anew.
    pub(super) fn change<R>(&mut self, slot: usize, f: impl FnOnce(&mut Node) -> R) -> R {
        let child = &mut self.child[slot];
        self.bytes -= child.bytes();
        let result = f(child);
        self.bytes += child.bytes();
        self.lens[slot] = child.len(self.shift);
        result
    }

    /// As `change`, where the growth of the child is known.
    #[inline]
    pub(super) fn change_by(&mut self, slot: usize, grows: i64, f: impl FnOnce(&mut Node)) {
        let child = &mut self.child[slot];
        self.bytes -= child.bytes();
        f(child);
        self.bytes += child.bytes();
        self.lens[slot] = self.lens[slot].wrapping_add_signed(grows);
    }
}
