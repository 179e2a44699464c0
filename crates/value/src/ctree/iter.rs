//! Walking a tree leaf by leaf, in both directions.

use super::leaf::{Entry, Leaf};
use super::node::{Inner, Node};
use super::{Form, Kind, MAX_HEIGHT, Tree};

/// The way to a leaf: inner nodes from the lowest up, each with the child taken.
struct Trail<'a, K: Kind> {
    above: [Option<(&'a Inner<K>, u8)>; MAX_HEIGHT],
    height: usize,
}

impl<'a, K: Kind> Trail<'a, K> {
    /// The trail to entry `i` of a tree that has it, its leaf, and the index there.
    fn to(tree: &'a Tree<K>, mut i: usize) -> (Self, Option<&'a Leaf>, usize) {
        let mut trail = Trail { above: [None; MAX_HEIGHT], height: 0 };
        let mut node = match tree.form() {
            Form::Empty => return (trail, None, 0),
            Form::Leaf(leaf) => return (trail, Some(leaf), i),
            Form::Root(root) => &root.node,
        };
        trail.height = node.height() as usize;
        let mut total = tree.len();
        for level in (0..trail.height).rev() {
            let inner = node.inner();
            let (child, before) = inner.find(i, total);
            i -= before;
            total = inner.count_of(child);
            trail.above[level] = Some((inner, child as u8));
            node = inner.child(child);
        }
        (trail, Some(node.leaf()), i)
    }

    /// Moves to the next leaf, or the one before.
    fn step(&mut self, forward: bool) -> Option<&'a Leaf> {
        for level in 0..self.height {
            let (inner, child) = self.above[level]?;
            let next = if forward { child as usize + 1 } else { (child as usize).wrapping_sub(1) };
            if next < inner.len() {
                self.above[level] = Some((inner, next as u8));
                return Some(self.descend(inner.child(next), level, forward));
            }
        }
        None
    }

    fn descend(&mut self, mut node: &'a Node<K>, level: usize, forward: bool) -> &'a Leaf {
        for below in (0..level).rev() {
            let inner = node.inner();
            let child = if forward { 0 } else { inner.len() - 1 };
            self.above[below] = Some((inner, child as u8));
            node = inner.child(child);
        }
        node.leaf()
    }
}

/// Entries in order.
pub struct Iter<'a, K: Kind> {
    trail: Trail<'a, K>,
    leaf: Option<&'a Leaf>,
    index: usize,
    left: usize,
}

impl<'a, K: Kind> Iter<'a, K> {
    pub(super) fn new(tree: &'a Tree<K>, i: usize) -> Self {
        let (trail, leaf, index) = Trail::to(tree, i);
        Iter { trail, leaf, index, left: tree.len() - i }
    }
}

impl<'a, K: Kind> Iterator for Iter<'a, K> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        if self.left == 0 {
            return None;
        }
        let mut leaf = self.leaf?;
        if self.index == leaf.len() {
            leaf = self.trail.step(true)?;
            (self.leaf, self.index) = (Some(leaf), 0);
        }
        let entry = leaf.entry(self.index);
        self.index += 1;
        self.left -= 1;
        Some(entry)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<K: Kind> ExactSizeIterator for Iter<'_, K> {}

/// Entries in reverse order.
pub struct RevIter<'a, K: Kind> {
    trail: Trail<'a, K>,
    leaf: Option<&'a Leaf>,
    /// Entries of the leaf still to come.
    index: usize,
    left: usize,
}

impl<'a, K: Kind> RevIter<'a, K> {
    pub(super) fn new(tree: &'a Tree<K>, i: usize) -> Self {
        if i >= tree.len() {
            let trail = Trail { above: [None; MAX_HEIGHT], height: 0 };
            return RevIter { trail, leaf: None, index: 0, left: 0 };
        }
        let (trail, leaf, index) = Trail::to(tree, i);
        RevIter { trail, leaf, index: index + 1, left: i + 1 }
    }
}

impl<'a, K: Kind> Iterator for RevIter<'a, K> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        if self.left == 0 {
            return None;
        }
        let mut leaf = self.leaf?;
        if self.index == 0 {
            leaf = self.trail.step(false)?;
            (self.leaf, self.index) = (Some(leaf), leaf.len());
        }
        self.index -= 1;
        self.left -= 1;
        Some(leaf.entry(self.index))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<K: Kind> ExactSizeIterator for RevIter<'_, K> {}
