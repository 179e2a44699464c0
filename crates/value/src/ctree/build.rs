//! Builds a tree from entries in order: full leaves, full nodes, O(1) per entry.

use super::leaf::{Item, Leaf};
use super::node::{Inner, Node, Slot};
use super::{FANOUT, Kind, LEAF_MAX, Tree};

/// Collects entries in order.
pub struct Builder<K: Kind> {
    leaf: Leaf,
    leaves: Vec<Slot<K>>,
}

impl<K: Kind> Builder<K> {
    pub fn new() -> Self {
        Builder { leaf: Leaf::with_space(0), leaves: Vec::new() }
    }

    /// Adds an entry behind the others.
    pub fn push(&mut self, item: Item<'_>) {
        if !self.leaf.fits(item.space(), LEAF_MAX) {
            self.seal(LEAF_MAX);
        }
        self.leaf.insert(self.leaf.len(), item);
    }

    fn seal(&mut self, next_space: usize) {
        let mut leaf = std::mem::replace(&mut self.leaf, Leaf::with_space(next_space));
        if !leaf.is_empty() {
            leaf.shrink();
            self.leaves.push(Slot::of(Node::from_leaf(leaf)));
        }
    }

    /// The tree of all entries added.
    pub fn finish(mut self) -> Tree<K> {
        self.seal(0);
        let mut level = self.leaves;
        let mut height = 0;
        while level.len() > 1 {
            height += 1;
            let (nodes, groups) = (level.len(), level.len().div_ceil(FANOUT));
            let mut rest = level.into_iter();
            // The groups are equally large, give or take one child.
            level = (0..groups)
                .map(|g| (g + 1) * nodes / groups - g * nodes / groups)
                .map(|size| Slot::of(Node::from_inner(Inner::new(height, rest.by_ref().take(size)))))
                .collect();
        }
        Tree::from_slot(level.pop(), 0)
    }
}

impl<K: Kind> Default for Builder<K> {
    fn default() -> Self {
        Builder::new()
    }
}
