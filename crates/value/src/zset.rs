//! Sorted sets: members in order of their scores, also found by name.
//!
//! ```text
//! handle (8 bytes) ─┬─ null                     empty
//!                   ├─ leaf                     up to 128 members, about 2 KB, in order, searched whole
//!                   └─ pair + 1 ─┬─► trie       member -> score                     trie/
//!                                └─► tree       (score, member) in order            ctree/
//! ```
//!
//! Both hold the member: finding it through the other would cost another walk, and a scan by hash needs it in
//! the trie. An entry of the tree is `[score | member]`. The tag gives the form of the score: 0 for eight
//! bytes, `1 + n` for an integer of n bytes (none for zero).
//!
//! - Z1: entries ascend strictly by (score, member); `-0.0` equals `0.0`, NaN is never stored, members are
//!   compared as bytes.
//! - Z2: tree and trie of a pair hold the same members with the same scores.
//! - Z3: a handle that is not a pair is a tree of one leaf at most.
//!
//! Costs, n = members: clone O(1). Every operation by member, by rank or by bound O(log n). Removing k by
//! rank O(log n) for the order and O(k) for the members. Members over 512 bytes are blocks of their own.

mod bound;
mod entry;

use std::mem::ManuallyDrop;
use std::ops::ControlFlow::{self, Continue};
use std::ops::Range;
use std::ptr::NonNull;

use crate::arc::Arc;
use crate::ctree::{Builder, Iter, LEAF_MAX, RevIter, Tree};
use crate::place;
use crate::trie::{Scores, Trie};
use crate::{Enc, limits};
pub use bound::{Bound, LexBound, ScoreBound};
use entry::{At, Scored, decode, member, with_item};

/// Members of a single leaf, at most.
const PACKED_MAX: usize = 128;

/// Members, and bytes of them, below which a pair becomes a leaf again.
const PACKED_AGAIN: usize = PACKED_MAX / 2;
const PACKED_AGAIN_BYTES: u64 = LEAF_MAX as u64 / 2;

/// Members of a range removed between two pauses.
const PIECE: usize = 64;

/// Flag of the tree: Redis would call the set a skiplist.
const SKIP: u8 = 1;

/// A sorted set. 8 bytes; clone O(1).
pub struct ZSet {
    /// The pointer of a `Tree` (Z3), or that of a pair + 1; owns it.
    raw: *mut (),
}

// SAFETY: a sorted set owns a `Tree` or an `Arc<Pair>`, which are both Send and Sync.
unsafe impl Send for ZSet {}
// SAFETY: as above.
unsafe impl Sync for ZSet {}

#[derive(Clone, Default)]
struct Pair {
    members: Trie<Scores>,
    order: Tree<Scored>,
}

impl ZSet {
    /// An empty set. Does not allocate.
    pub const fn new() -> ZSet {
        ZSet { raw: std::ptr::null_mut() }
    }

    /// Builds from members in ascending order of (score, member), each once. O(n).
    pub fn from_sorted<'a>(sorted: impl IntoIterator<Item = (&'a [u8], f64)>) -> ZSet {
        let (mut order, mut members) = (Builder::new(), Trie::new());
        let mut longest = 0;
        for (member, score) in sorted {
            longest = longest.max(member.len());
            with_item(member, score, |item| order.push(item));
            members.insert((member, score));
        }
        let mut order = order.finish();
        let packed = order.is_empty() || (order.as_leaf().is_some() && order.len() <= PACKED_MAX);
        if over_limits(order.len(), longest) {
            order.set_flags(SKIP);
        }
        let set =
            if packed { ZSet::from_order(order) } else { ZSet::from_pair(Arc::new(Pair { members, order })) };
        debug_assert!(set.iter().zip(set.iter_from(1)).all(|(a, b)| At::new(a.0, a.1).precedes(b)), "Z1");
        set
    }

    /// Members. O(1).
    #[inline]
    pub fn len(&self) -> usize {
        self.order().len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.raw.is_null()
    }

    #[inline]
    fn is_pair(&self) -> bool {
        self.raw.addr() & 1 == 1
    }

    #[inline]
    fn pair(&self) -> Option<&Pair> {
        if !self.is_pair() {
            return None;
        }
        // SAFETY: without the bit `raw` is an owned Arc, whose block lives as long as `self` is borrowed.
        unsafe {
            let pair: *const Pair = &**ManuallyDrop::new(self.arc());
            Some(&*pair)
        }
    }

    #[inline]
    fn order(&self) -> &Tree<Scored> {
        match self.pair() {
            Some(pair) => &pair.order,
            // SAFETY: `raw` is the pointer of a tree, and `Tree` is transparent.
            None => unsafe { &*(&raw const self.raw).cast() },
        }
    }

    /// # Safety
    /// The set is a pair; the result takes over its count, or must not be dropped.
    #[inline]
    unsafe fn arc(&self) -> Arc<Pair> {
        // SAFETY: `raw` is the pointer that `from_pair` got from `into_raw`, with the low bit set.
        unsafe { Arc::from_raw(NonNull::new_unchecked(self.raw.map_addr(|a| a & !1))) }
    }

    /// A set of a changed order: packed if the order is one leaf. The order decides whether leaves split, or
    /// stay apart after a removal between them (Z3).
    fn settled(order: Tree<Scored>) -> ZSet {
        let is_leaf = |order: &Tree<Scored>| order.is_empty() || order.as_leaf().is_some();
        if order.len() > PACKED_MAX {
            return ZSet::from_pair(paired(order));
        }
        if is_leaf(&order) {
            return ZSet::from_order(order);
        }
        let again = packed(&order);
        if is_leaf(&again) { ZSet::from_order(again) } else { ZSet::from_pair(paired(order)) }
    }

    fn from_order(order: Tree<Scored>) -> ZSet {
        ZSet { raw: order.into_raw() }
    }

    fn from_pair(pair: Arc<Pair>) -> ZSet {
        ZSet { raw: pair.into_raw().as_ptr().map_addr(|a| a | 1) }
    }

    fn take_pair(&mut self) -> Option<Arc<Pair>> {
        if !self.is_pair() {
            return None;
        }
        // SAFETY: a pair; the handle is emptied without dropping, so the count goes to the result.
        let arc = unsafe { self.arc() };
        self.raw = std::ptr::null_mut();
        Some(arc)
    }

    /// The tree of a set that is not a pair, taken out.
    fn take_order(&mut self) -> Tree<Scored> {
        assert!(!self.is_pair());
        // SAFETY: `raw` came from `from_order` and is forgotten here.
        unsafe { Tree::from_raw(std::mem::replace(&mut self.raw, std::ptr::null_mut())) }
    }

    /// Changes a pair, copied before if it is shared. A small one becomes a leaf afterwards.
    fn change_pair<R>(&mut self, f: impl FnOnce(&mut Pair) -> R) -> R {
        let mut arc = self.take_pair().expect("a pair");
        let result = f(arc.make_mut());
        let small = arc.order.len() < PACKED_AGAIN && arc.order.weight() < PACKED_AGAIN_BYTES;
        // A few long members may still take more than one leaf (Z3).
        let leaf =
            small.then(|| packed(&arc.order)).filter(|order| order.is_empty() || order.as_leaf().is_some());
        *self = leaf.map_or_else(|| ZSet::from_pair(arc), ZSet::from_order);
        result
    }

    /// Index and score of a member of a set that is not a pair.
    #[inline]
    fn find_packed(&self, wanted: &[u8]) -> Option<(usize, f64)> {
        let leaf = self.order().as_leaf()?;
        let i = leaf.iter().position(|entry| member(entry) == wanted)?;
        Some((i, decode(leaf.entry(i)).1))
    }

    /// The score of a member.
    #[inline]
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match self.pair() {
            Some(pair) => pair.members.get(member).map(|(_, score)| score),
            None => self.find_packed(member).map(|(_, score)| score),
        }
    }

    /// Members in front of this one. O(log n).
    pub fn rank(&self, member: &[u8]) -> Option<usize> {
        let Some(pair) = self.pair() else { return self.find_packed(member).map(|(i, _)| i) };
        let (_, score) = pair.members.get(member)?;
        Some(pair.order.seek(&At::new(member, score)).rank())
    }

    /// The member of a rank, and its score. O(log n).
    #[inline]
    pub fn nth(&self, rank: usize) -> Option<(&[u8], f64)> {
        self.order().get(rank).map(decode)
    }

    /// Adds a member or changes its score, and returns the old score. NaN is not stored. O(log n).
    pub fn insert(&mut self, member: &[u8], score: f64) -> Option<f64> {
        debug_assert!(!score.is_nan());
        if self.is_pair() {
            return self.insert_into_pair(member, score);
        }
        let found = self.find_packed(member);
        if score.is_nan() || found.is_some_and(|(_, old)| old == score) {
            return found.map(|(_, old)| old);
        }
        let skip = self.order().flags() & SKIP != 0 || over_limits(self.len() + 1, member.len());
        let mut order = self.take_order();
        if let Some((i, _)) = found {
            order.remove(&order.path_at(i), 1);
        }
        let path = order.seek(&At::new(member, score));
        with_item(member, score, |item| order.insert(&path, item));
        if found.is_none() && skip {
            order.set_flags(SKIP);
        }
        *self = ZSet::settled(order);
        found.map(|(_, old)| old)
    }

    fn insert_into_pair(&mut self, member: &[u8], score: f64) -> Option<f64> {
        let hash = place::of_bytes(member);
        let old = self.pair().and_then(|pair| pair.members.get_hashed(member, hash)).map(|(_, score)| score);
        if score.is_nan() || old == Some(score) {
            return old;
        }
        self.change_pair(|pair| {
            pair.members.insert_hashed((member, score), hash);
            pair.place(member, old, score);
            if old.is_none() && over_limits(pair.order.len(), member.len()) {
                pair.order.set_flags(SKIP);
            }
        });
        old
    }

    /// Removes a member and returns its score. O(log n).
    pub fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let Some(pair) = self.pair() else {
            let (i, score) = self.find_packed(member)?;
            let mut order = self.take_order();
            order.remove(&order.path_at(i), 1);
            *self = ZSet::settled(order);
            return Some(score);
        };
        let hash = place::of_bytes(member);
        let (_, score) = pair.members.get_hashed(member, hash)?;
        self.change_pair(|pair| {
            pair.members.remove_hashed(member, hash);
            let path = pair.order.seek(&At::new(member, score));
            pair.order.remove(&path, 1);
        });
        Some(score)
    }

    /// Number of members in front of a minimum. O(log n).
    pub fn rank_lower(&self, min: &impl Bound) -> usize {
        min.rank_in(self.order())
    }

    /// Number of members up to a maximum. O(log n).
    pub fn rank_upper(&self, max: &impl Bound) -> usize {
        max.flipped().rank_in(self.order())
    }

    /// The ranks of the members between two bounds; never reversed. O(log n).
    pub fn ranks(&self, min: &impl Bound, max: &impl Bound) -> Range<usize> {
        let start = self.rank_lower(min);
        start..self.rank_upper(max).max(start)
    }

    /// Removes the members of a range of ranks, as far as they exist, and returns their number. O(log n) for
    /// the order, O(min(k, n - k)) for the members.
    pub fn remove_rank_range(&mut self, ranks: Range<usize>) -> usize {
        self.remove_ranks(ranks, &mut |_| Continue(())).unwrap_or_default()
    }

    /// As [`ZSet::remove_rank_range`], with a `pause` after every [`PIECE`] members. None if `pause` broke
    /// off; some of the range may then be gone.
    pub fn remove_ranks(
        &mut self,
        ranks: Range<usize>,
        pause: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Option<usize> {
        let (start, end) = (ranks.start, ranks.end.min(self.len()));
        if start >= end {
            return Some(0);
        }
        if self.is_pair() && end - start > self.len() / 2 {
            self.keep_others(start..end, pause)?;
            return Some(end - start);
        }
        let mut left = end;
        while left > start {
            // Removal goes from the end, so that the other ranks stay valid.
            let piece = start.max(left.saturating_sub(PIECE))..left;
            left = piece.start;
            let len = piece.len();
            self.remove_few(piece);
            if pause(len).is_break() {
                return None;
            }
        }
        Some(end - start)
    }

    fn remove_few(&mut self, ranks: Range<usize>) {
        if self.is_pair() {
            return self.change_pair(|pair| pair.remove_few(ranks));
        }
        let mut order = self.take_order();
        order.remove_range(ranks);
        *self = ZSet::settled(order);
    }

    /// Removes most members of a pair: the few that stay go into a new trie. O(n - k).
    fn keep_others(
        &mut self,
        ranks: Range<usize>,
        pause: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Option<()> {
        let (mut order, mut members) = (self.order().clone(), Trie::new());
        order.remove_range(ranks);
        for (i, entry) in order.iter_from(0).enumerate() {
            members.insert(decode(entry));
            if i % PIECE == PIECE - 1 && pause(PIECE).is_break() {
                return None;
            }
        }
        *self = ZSet::from_pair(Arc::new(Pair { members, order }));
        self.change_pair(|_| ());
        Some(())
    }

    /// Removes all members.
    pub fn clear(&mut self) {
        *self = ZSet::new();
    }

    /// All members in order.
    pub fn iter(&self) -> Members<'_> {
        self.iter_from(0)
    }

    /// Members from a rank on, in order. O(log n), then O(1) each.
    pub fn iter_from(&self, rank: usize) -> Members<'_> {
        Members(self.order().iter_from(rank))
    }

    /// The member of a rank, then those in front of it, backwards. Empty if there is no such rank.
    pub fn iter_rev_from(&self, rank: usize) -> RevMembers<'_> {
        RevMembers(self.order().iter_rev_from(rank))
    }

    /// Visits about `count` members and returns the next cursor, 0 at the end. Members present all the time
    /// are visited at least once. Small sets are visited all at once.
    pub fn scan(&self, cursor: u64, count: usize, f: &mut dyn FnMut(&[u8], f64)) -> u64 {
        match self.pair() {
            Some(pair) => pair.members.scan(cursor, count, &mut |(member, score)| f(member, score)),
            None => {
                self.iter().for_each(|(member, score)| f(member, score));
                0
            }
        }
    }

    /// `listpack` or `skiplist`, as Redis would have it after the same commands.
    pub fn encoding(&self) -> Enc {
        if self.order().flags() & SKIP != 0 { Enc::SkipList } else { Enc::ListPack }
    }

    /// The root and memory that this handle keeps alive. O(height).
    pub fn held(&self) -> Option<crate::Held> {
        let order = self.order().held()?;
        let members = self.pair().map_or(0, |pair| pair.members.alone_bytes());
        Some(crate::Held { bytes: members + order.bytes, ..order })
    }

    /// Approximate bytes of everything the set owns, shared or not. O(1).
    pub fn mem_bytes(&self) -> usize {
        let members = self.pair().map_or(0, |pair| size_of::<Pair>() + 8 + pair.members.mem_bytes());
        size_of::<ZSet>() + members + self.order().mem_bytes()
    }

    /// Panics if an invariant does not hold. O(n log n).
    pub fn check_invariants(&self) {
        let order = self.order();
        order.check_invariants();
        let pairs = self.iter().zip(self.iter_from(1));
        pairs.for_each(|(a, b)| assert!(At::new(a.0, a.1).precedes(b), "Z1"));
        match self.pair() {
            None => {
                assert!(
                    order.len() <= PACKED_MAX && (order.is_empty() || order.as_leaf().is_some()),
                    "Z3: {} members, weight {}, one leaf: {}",
                    order.len(),
                    order.weight(),
                    order.as_leaf().is_some()
                )
            }
            Some(pair) => {
                pair.members.check_invariants();
                assert_eq!(pair.members.len(), order.len(), "Z2");
                for (member, score) in self.iter() {
                    assert_eq!(
                        pair.members.get(member).map(|found| found.1.to_bits()),
                        Some(score.to_bits()),
                        "Z2"
                    );
                }
            }
        }
    }

    /// Bytes of the order and of the members: for measurements. O(n).
    pub fn shape(&self) -> (usize, usize) {
        (self.order().shape().2, self.pair().map_or(0, |pair| pair.members.mem_bytes()))
    }
}

impl Pair {
    /// Puts a member into its place in the order.
    fn place(&mut self, member: &[u8], old: Option<f64>, score: f64) {
        let at = At::new(member, score);
        if let Some(old) = old {
            let from = self.order.seek(&At::new(member, old));
            let leaf = self.order.leaf_at(&from);
            let inside = from.index() > 0 && from.index() + 1 < leaf.len();
            if inside
                && !at.precedes(decode(leaf.entry(from.index() - 1)))
                && at.precedes(decode(leaf.entry(from.index() + 1)))
            {
                return with_item(member, score, |item| self.order.replace(&from, item)); // between its old neighbours
            }
            self.order.remove(&from, 1);
        }
        let to = self.order.seek(&at);
        with_item(member, score, |item| self.order.insert(&to, item));
    }

    fn remove_few(&mut self, ranks: Range<usize>) {
        for entry in self.order.iter_from(ranks.start).take(ranks.len()) {
            self.members.remove(member(entry));
        }
        self.order.remove_range(ranks);
    }
}

/// The tree of one leaf with the same entries and flags.
fn packed(order: &Tree<Scored>) -> Tree<Scored> {
    let mut builder = Builder::new();
    for (member, score) in order.iter_from(0).map(decode) {
        with_item(member, score, |item| builder.push(item));
    }
    let mut leaf = builder.finish();
    leaf.set_flags(order.flags());
    leaf
}

/// The pair of a tree.
fn paired(order: Tree<Scored>) -> Arc<Pair> {
    let mut members = Trie::new();
    for entry in order.iter_from(0) {
        members.insert(decode(entry));
    }
    Arc::new(Pair { members, order })
}

/// Whether Redis keeps so many members, or one of this length, in a skiplist.
fn over_limits(len: usize, member_len: usize) -> bool {
    len > limits::ZSET_MAX_LISTPACK_ENTRIES.get() || member_len > limits::ZSET_MAX_LISTPACK_VALUE.get()
}

impl Clone for ZSet {
    #[inline]
    fn clone(&self) -> ZSet {
        if self.is_pair() {
            // SAFETY: a pair; the count of `self` is left alone.
            return ZSet::from_pair(Arc::clone(&ManuallyDrop::new(unsafe { self.arc() })));
        }
        ZSet::from_order(self.order().clone())
    }
}

impl Drop for ZSet {
    #[inline]
    fn drop(&mut self) {
        if self.take_pair().is_none() {
            self.take_order();
        }
    }
}

impl Default for ZSet {
    fn default() -> ZSet {
        ZSet::new()
    }
}

impl<M: AsRef<[u8]>> FromIterator<(M, f64)> for ZSet {
    fn from_iter<I: IntoIterator<Item = (M, f64)>>(members: I) -> ZSet {
        let mut set = ZSet::new();
        for (member, score) in members {
            set.insert(member.as_ref(), score);
        }
        set
    }
}

impl std::fmt::Debug for ZSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Members and scores in order.
pub struct Members<'a>(Iter<'a, Scored>);

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], f64);

    #[inline]
    fn next(&mut self) -> Option<(&'a [u8], f64)> {
        self.0.next().map(decode)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Members<'_> {}

/// Members and scores in reverse order.
pub struct RevMembers<'a>(RevIter<'a, Scored>);

impl<'a> Iterator for RevMembers<'a> {
    type Item = (&'a [u8], f64);

    #[inline]
    fn next(&mut self) -> Option<(&'a [u8], f64)> {
        self.0.next().map(decode)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for RevMembers<'_> {}

#[cfg(test)]
mod tests;
