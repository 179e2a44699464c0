//! The ends of a tree, reached without a descent.
//!
//! A queue changes only its two ends. Descending to them three times for every element (to find, to test, to
//! change) would be most of the cost. So a root remembers the inner nodes above its first and its last leaf:
//!
//! ```text
//! root ── back finger: ─────────┬──────────────┐
//!   └─► inner (height 2) ──► inner (height 1) ──► leaf
//! ```
//!
//! - E1: a finger names all inner nodes of its end's path, from height 1 up, or nothing. The nodes live as
//!   long as the root. `Node::root_mut`, through which all other changes below a root go, clears both
//!   fingers.
//! - E2: a change by a finger first checks that the root, the nodes and the leaf have one owner each, as a
//!   descent would. If not, the descent does the change, and copies. Reading needs no such check.
//! - E3: a change by a finger leaves at least one entry in the leaf and never splits or merges.
//!
//! Cost: O(height), with independent loads instead of a chain of them.

use std::ptr::NonNull;

use super::node::{Inner, Node, Root};
use super::{Form, Item, Kind, LEAF_MAX, Leaf, Tree};
use crate::ctree::leaf::Entry;

/// Trees higher than this (some 60 million entries) have no fingers.
const REACH: usize = 4;

/// The first or the last entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Front,
    Back,
}

/// The fingers of a root, front and back.
pub(super) struct Fingers<K: Kind>([Finger<K>; 2]);

type Finger<K> = [Option<NonNull<Inner<K>>>; REACH];

// SAFETY: the nodes belong to the root that has the fingers, which is Send and Sync with all below it.
unsafe impl<K: Kind> Send for Fingers<K> {}
// SAFETY: as above.
unsafe impl<K: Kind> Sync for Fingers<K> {}

impl<K: Kind> Fingers<K> {
    pub const NONE: Self = Fingers([[None; REACH]; 2]);

    fn get(&self, end: End) -> &Finger<K> {
        &self.0[end as usize]
    }
}

/// The child that leads to the end.
#[inline]
fn toward<K: Kind>(inner: &Inner<K>, end: End) -> usize {
    match end {
        End::Front => 0,
        End::Back => inner.len() - 1,
    }
}

impl<K: Kind> Root<K> {
    /// Sets both fingers (E1).
    fn point(&mut self) {
        for end in [End::Front, End::Back] {
            let mut finger = [None; REACH];
            let mut node = &self.node;
            while node.height() > 0 {
                let Some(place) = finger.get_mut(node.height() as usize - 1) else { return };
                *place = Some(node.inner_raw());
                node = node.inner().child(toward(node.inner(), end));
            }
            self.fingers.0[end as usize] = finger;
        }
    }

    /// The leaf at an end, if there is a finger.
    #[inline]
    fn end_leaf(&self, end: End) -> Option<&Leaf> {
        let low = self.fingers.get(end)[0]?;
        // SAFETY: alive as long as the root (E1), which is borrowed.
        let low = unsafe { low.as_ref() };
        Some(low.child(toward(low, end)).leaf())
    }

    /// Whether this unshared root may change the leaf at an end directly (E2).
    #[inline]
    fn owns_end(&self, end: End) -> bool {
        let path = self.fingers.get(end).iter().flatten();
        // SAFETY: alive as long as the root (E1), which is borrowed.
        let unshared = path.fold(true, |all, node| all & unsafe { node.as_ref() }.is_unique());
        unshared && self.end_leaf(end).is_some_and(Leaf::is_unique)
    }

    /// Changes the leaf at an end. `f` gets the leaf and the index of its outer entry. The entries and weight
    /// of all nodes above grow by the given amounts. Only after `owns_end`, and never if digests would
    /// change.
    #[inline]
    fn change_end(&mut self, end: End, count: i64, weight: i64, f: impl FnOnce(&mut Leaf, usize)) {
        debug_assert!(self.owns_end(end) && size_of::<(K::Main, K::Rest)>() == 0);
        self.base = self.base.wrapping_sub(if end == End::Front { count } else { 0 });
        self.len = self.len.wrapping_add_signed(count);
        self.weight = self.weight.wrapping_add_signed(weight);
        for node in self.fingers.get(end).iter().flatten() {
            // SAFETY: alive (E1) and owned by this root alone (E2), which is borrowed mutably.
            let inner = unsafe { &mut *node.as_ptr() };
            let at = toward(inner, end);
            inner.counts[at] = inner.counts[at].wrapping_add_signed(count);
            inner.weights[at] = inner.weights[at].wrapping_add_signed(weight);
        }
        let Some(mut low) = self.fingers.get(end)[0] else { unreachable!("there is a finger") };
        // SAFETY: as above.
        let low = unsafe { low.as_mut() };
        let at = toward(low, end);
        let leaf = low.child_mut(at).leaf_mut(0);
        let outer = if end == End::Front { 0 } else { leaf.len() };
        f(leaf, outer);
    }

    /// Asserts E1.
    pub fn check_fingers(&self) {
        for end in [End::Front, End::Back] {
            let finger = self.fingers.get(end);
            if finger[0].is_none() {
                assert!(finger.iter().all(Option::is_none), "E1");
                continue;
            }
            let mut node = &self.node;
            let height = node.height() as usize;
            while node.height() > 0 {
                assert_eq!(finger[node.height() as usize - 1], Some(node.inner_raw()), "E1");
                node = node.inner().child(toward(node.inner(), end));
            }
            assert!(finger[height..].iter().all(Option::is_none), "E1");
        }
    }
}

impl<K: Kind> Tree<K> {
    /// The root, if it has no other owner. Its fingers stay, so nothing may move below it.
    #[inline]
    fn unshared_root(&mut self) -> Option<&mut Root<K>> {
        self.node.as_mut().and_then(Node::unshared_root)
    }

    /// The first or last entry. O(1) in queues, else O(log n).
    #[inline]
    pub fn at_end(&self, end: End) -> Option<Entry<'_>> {
        if let Form::Root(root) = self.form()
            && let Some(leaf) = root.end_leaf(end)
        {
            return Some(leaf.entry(if end == End::Front { 0 } else { leaf.len() - 1 }));
        }
        match end {
            End::Front => self.get(0),
            End::Back => self.get(self.len().checked_sub(1)?),
        }
    }

    /// Adds an entry at an end of a tree without digests. Amortised O(1) in queues, else O(log n).
    pub fn push_end(&mut self, end: End, item: Item<'_>) {
        const { assert!(size_of::<(K::Main, K::Rest)>() == 0) };
        if let Some(root) = self.unshared_root()
            && root.owns_end(end)
            && root.end_leaf(end).is_some_and(|leaf| leaf.fits(item.space(), LEAF_MAX))
        {
            return root.change_end(end, 1, item.weight as i64, |leaf, outer| leaf.insert(outer, item));
        }
        let path = self.path_at(if end == End::Front { 0 } else { self.len() });
        self.insert(&path, item);
        self.point();
    }

    /// Removes the entry at an end of a tree without digests. False if it is empty. Amortised O(1) in queues,
    /// else O(log n).
    pub fn pop_end(&mut self, end: End) -> bool {
        const { assert!(size_of::<(K::Main, K::Rest)>() == 0) };
        if let Some(root) = self.unshared_root()
            && root.owns_end(end)
            && let Some(leaf) = root.end_leaf(end)
            && stays(leaf)
        {
            let outer = if end == End::Front { 0 } else { leaf.len() - 1 };
            let weight = K::weight(leaf.entry(outer)) as i64;
            root.change_end(end, -1, -weight, |leaf, _| leaf.remove(outer..outer + 1));
            return true;
        }
        let Some(last) = self.len().checked_sub(1) else { return false };
        let path = self.path_at(if end == End::Front { 0 } else { last });
        self.remove(&path, 1);
        self.point();
        true
    }

    /// Sets the fingers of a root without other owners.
    fn point(&mut self) {
        if let Some(root) = self.unshared_root() {
            root.point();
        }
    }
}

/// Whether a leaf that loses an entry needs no attention. Small ones get it every eighth time (T4).
#[inline]
fn stays(leaf: &Leaf) -> bool {
    leaf.len() > 1 && (leaf.used() > LEAF_MAX / 4 || !leaf.len().is_multiple_of(8))
}
