//! Cuts trees in two and joins them, both along one path. O(log n).

use super::Kind;
use super::node::{Inner, Node, Slot};

/// One tree of the entries of both, those of `left` first.
pub(super) fn join<K: Kind>(left: Option<Slot<K>>, right: Option<Slot<K>>) -> Option<Slot<K>> {
    let (mut left, mut right) = match (left, right) {
        (Some(left), Some(right)) => (left, right),
        (left, right) => return left.or(right),
    };
    let (count, weight, digest) = (left.count + right.count, left.weight + right.weight, left.digest);
    let height = left.height().max(right.height());
    let (node, split) = if left.height() > right.height() {
        let split = left.node.inner_mut().push_right(right);
        (left.node, split)
    } else if left.height() < right.height() {
        let split = right.node.inner_mut().push_left(left);
        (right.node, split)
    } else if left.node.should_merge(&right.node) {
        left.node.absorb(&right.node);
        (left.node, None)
    } else {
        (left.node, Some(right))
    };
    let Some(split) = split else { return Some(Slot { node, count, weight, digest }) };
    let rest = Slot { node, count: count - split.count, weight: weight - split.weight, digest };
    Some(Slot { node: Node::from_inner(Inner::new(height + 1, [rest, split])), count, weight, digest })
}

/// The first `at` entries of a tree, and the others. `0 < at < count`.
pub(super) fn split<K: Kind>(mut whole: Slot<K>, at: usize) -> (Option<Slot<K>>, Option<Slot<K>>) {
    if whole.height() == 0 {
        let leaf = whole.node.leaf_mut(0);
        let right = leaf.copy_range(at..leaf.len(), 0);
        leaf.remove(at..leaf.len());
        leaf.shrink();
        return (Some(Slot::of(whole.node)), Some(Slot::of(Node::from_leaf(right))));
    }
    let height = whole.height();
    let (child, before) = whole.node.inner().find(at, whole.count as usize);
    let mut slots: Vec<Slot<K>> = whole.node.inner().slots().collect();
    drop(whole);
    let right = slots.split_off(child + 1);
    let (mid_left, mid_right) = match slots.pop() {
        Some(mid) if at > before => split(mid, at - before),
        mid => (None, mid),
    };
    (join(pack(slots, height), mid_left), join(mid_right, pack(right, height)))
}

/// One tree of some neighbours.
fn pack<K: Kind>(mut slots: Vec<Slot<K>>, height: u8) -> Option<Slot<K>> {
    match slots.len() {
        0 | 1 => slots.pop(),
        _ => Some(Slot::of(Node::from_inner(Inner::new(height, slots)))),
    }
}
