//! Two tries walked together, to find the entries of one whose key is in the other.
//!
//! Both are ordered by the same hash, so a subtree of one meets exactly one subtree of the other. Where both
//! have the same node (a clone that was changed elsewhere), the answer for all its entries is known without a
//! look. Cost: O(smaller parts that differ · log) for common entries. O(n) for entries of the first that are
//! not in the second, as each is reported.

use super::find;
use super::iter::Iter;
use super::kind::EntryKind;
use super::node::{Inner, Node, View};
use std::ops::ControlFlow::{self, Continue};

/// Calls `f` for the entries of `a` whose key is in `b` (`want`) or is not (`!want`), in no particular order.
/// `f` may end the walk. So may `pause`, which is called about every 64 entries.
///
/// # Safety
/// Both trees live unchanged for `'a`.
pub(crate) unsafe fn walk<'a, K: EntryKind>(
    a: Node<K>,
    b: Node<K>,
    want: bool,
    pause: &mut dyn FnMut(usize) -> ControlFlow<()>,
    f: &mut dyn FnMut(K::Entry<'a>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    Walk { want, pause, f }.nodes(a, b, 0)
}

/// True if the two trees share a node within `levels` levels below these. O(16^levels).
///
/// # Safety
/// Both trees live.
pub(crate) unsafe fn share<K: EntryKind>(a: Node<K>, b: Node<K>, levels: usize) -> bool {
    if a == b {
        return true;
    }
    // SAFETY: the caller's.
    unsafe {
        match (a.view(), b.view()) {
            (View::Inner(a), View::Inner(b)) if levels > 0 => {
                (0..16).any(|slot| share(a.child(slot), b.child(slot), levels - 1))
            }
            _ => false,
        }
    }
}

struct Walk<'w, 'a, K: EntryKind> {
    want: bool,
    pause: &'w mut dyn FnMut(usize) -> ControlFlow<()>,
    f: &'w mut dyn FnMut(K::Entry<'a>) -> ControlFlow<()>,
}

impl<'a, K: EntryKind> Walk<'_, 'a, K> {
    /// Two nodes of level `depth` that cover the same hashes.
    fn nodes(&mut self, a: Node<K>, b: Node<K>, depth: usize) -> ControlFlow<()> {
        if a == b {
            return if self.want { self.all(a) } else { (self.pause)(1) };
        }
        // SAFETY: `walk`'s.
        match unsafe { (a.view(), b.view()) } {
            (View::Inner(a), View::Inner(b)) => self.inner(a, b, depth),
            (View::Inner(_), View::Leaf(_)) if self.want => self.few_in_many(b, a, depth),
            _ => self.probe(a, b, depth),
        }
    }

    fn inner(&mut self, a: &Inner<K>, b: &Inner<K>, depth: usize) -> ControlFlow<()> {
        for (start, end) in a.runs() {
            let (child, other) = (a.child(start), b.child(start));
            if child == other && b.run(start) == (start, end) {
                self.nodes(child, other, depth + 1)?;
            } else if child.leaf().is_some() && end - start > 1 {
                // A leaf over several slots, against any node: look its entries up.
                self.probe_below(child, b, depth)?;
            } else if b.run(start) == (start, end) {
                self.nodes(child, other, depth + 1)?;
            } else {
                // One slot of `a` against a leaf of `b` over several.
                self.probe(child, other, depth + 1)?;
            }
        }
        Continue(())
    }

    /// All entries of `a`, each looked up in `b`.
    fn probe(&mut self, a: Node<K>, b: Node<K>, depth: usize) -> ControlFlow<()> {
        // SAFETY: `walk`'s.
        let entries = unsafe { Iter::from_rank(Some(a), 0) };
        for (i, entry) in entries.enumerate() {
            let key = K::key(entry);
            if find(b, depth, K::hash(key), key).is_some() == self.want {
                (self.f)(entry)?;
            }
            if i % 64 == 63 {
                (self.pause)(64)?;
            }
        }
        (self.pause)(1)
    }

    /// All entries of the leaf `a`, looked up below the inner node `b` of level `depth`.
    fn probe_below(&mut self, a: Node<K>, b: &Inner<K>, depth: usize) -> ControlFlow<()> {
        // SAFETY: `walk`'s.
        for entry in unsafe { Iter::from_rank(Some(a), 0) } {
            let key = K::key(entry);
            let hash = K::hash(key);
            let below = b.child(super::slot_at(hash, depth));
            if find(below, depth + 1, hash, key).is_some() == self.want {
                (self.f)(entry)?;
            }
        }
        (self.pause)(a.len())
    }

    /// The entries of `many` whose keys are in the leaf `few`, found from the few.
    fn few_in_many(&mut self, few: Node<K>, many: Node<K>, depth: usize) -> ControlFlow<()> {
        // SAFETY: `walk`'s.
        for entry in unsafe { Iter::from_rank(Some(few), 0) } {
            let key = K::key(entry);
            if let Some((leaf, i)) = find(many, depth, K::hash(key), key) {
                // SAFETY: `walk`'s.
                (self.f)(unsafe { leaf.entry(i) })?;
            }
        }
        (self.pause)(few.len())
    }

    fn all(&mut self, a: Node<K>) -> ControlFlow<()> {
        // SAFETY: `walk`'s.
        for (i, entry) in unsafe { Iter::from_rank(Some(a), 0) }.enumerate() {
            (self.f)(entry)?;
            if i % 64 == 63 {
                (self.pause)(64)?;
            }
        }
        Continue(())
    }
}
