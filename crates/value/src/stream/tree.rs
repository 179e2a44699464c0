//! The ordered map below streams: a persistent B+ tree with counts.
//!
//! ```text
//! Tree ─► inner: first key, sum, child … ─► leaf: (key, item) …
//! ```
//!
//! - T1: all leaves have the same depth, and no node is empty.
//! - T2: keys ascend. A child's key is at most its first key, and above all keys of the child before.
//! - T3: a child's sum is that of its items.
//! - T4: a node with one owner is changed in place; a shared one is copied first (values V2).
//!
//! Cost: look-up and change O(log n). A copied node has at most [`LEAF`] items or [`FANOUT`] children.

use crate::alone::{self, Below};
use crate::arc::Arc;
use std::borrow::Borrow;
use std::mem::{size_of, take};

/// Items of a leaf, at most.
const LEAF: usize = 64;
/// Children of an inner node, at most.
const FANOUT: usize = 32;
/// Larger trees are freed elsewhere.
const DEFER_BYTES: u64 = 64 << 10;

/// A key of a tree.
pub(super) trait Key: Ord + Clone + Send + Sync + 'static {}

impl<K: Ord + Clone + Send + Sync + 'static> Key for K {}

/// An item of a tree, and what the tree adds up of it.
pub(super) trait Item: Clone + Send + Sync + 'static {
    /// Entries that the item stands for.
    fn count(&self) -> u64 {
        1
    }

    /// Bytes that the item occupies outside its leaf.
    fn bytes(&self) -> u64 {
        0
    }
}

impl Item for () {}

/// The sums that a tree keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub items: u64,
    pub count: u64,
    pub bytes: u64,
}

impl Sum {
    fn of<K, V: Item>(item: &V) -> Sum {
        Sum { items: 1, count: item.count(), bytes: item.bytes() + size_of::<(K, V)>() as u64 }
    }

    fn plus(self, other: Sum) -> Sum {
        Sum {
            items: self.items.wrapping_add(other.items),
            count: self.count.wrapping_add(other.count),
            bytes: self.bytes.wrapping_add(other.bytes),
        }
    }

    fn minus(self, other: Sum) -> Sum {
        Sum {
            items: self.items.wrapping_sub(other.items),
            count: self.count.wrapping_sub(other.count),
            bytes: self.bytes.wrapping_sub(other.bytes),
        }
    }
}

/// A persistent ordered map. Clone: O(1).
pub(super) struct Tree<K: Key, V: Item> {
    root: Option<Node<K, V>>,
    sum: Sum,
}

enum Node<K: Key, V: Item> {
    Leaf(Arc<Vec<(K, V)>>),
    Inner(Arc<Vec<Child<K, V>>>),
}

struct Child<K: Key, V: Item> {
    key: K,
    sum: Sum,
    node: Node<K, V>,
}

impl<K: Key, V: Item> Clone for Tree<K, V> {
    fn clone(&self) -> Self {
        Tree { root: self.root.clone(), sum: self.sum }
    }
}

impl<K: Key, V: Item> Clone for Node<K, V> {
    fn clone(&self) -> Self {
        match self {
            Node::Leaf(leaf) => Node::Leaf(leaf.clone()),
            Node::Inner(inner) => Node::Inner(inner.clone()),
        }
    }
}

impl<K: Key, V: Item> Clone for Child<K, V> {
    fn clone(&self) -> Self {
        Child { key: self.key.clone(), sum: self.sum, node: self.node.clone() }
    }
}

impl<K: Key, V: Item> Child<K, V> {
    fn of(node: Node<K, V>) -> Self {
        let (key, sum) = match &node {
            Node::Leaf(leaf) => (leaf[0].0.clone(), leaf_sum(leaf)),
            Node::Inner(inner) => (inner[0].key.clone(), inner_sum(inner)),
        };
        Child { key, sum, node }
    }
}

fn leaf_sum<K: Key, V: Item>(leaf: &[(K, V)]) -> Sum {
    leaf.iter().fold(Sum::default(), |sum, (_, item)| sum.plus(Sum::of::<K, V>(item)))
}

fn inner_sum<K: Key, V: Item>(inner: &[Child<K, V>]) -> Sum {
    inner.iter().fold(Sum::default(), |sum, child| sum.plus(child.sum))
}

/// The child that a key belongs to.
fn child_of<K: Key + Borrow<Q>, V: Item, Q: Ord + ?Sized>(inner: &[Child<K, V>], key: &Q) -> usize {
    inner.partition_point(|child| child.key.borrow() <= key).saturating_sub(1)
}

impl<K: Key, V: Item> Node<K, V> {
    fn len(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.len(),
            Node::Inner(inner) => inner.len(),
        }
    }

    fn is_unique(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.is_unique(),
            Node::Inner(inner) => inner.is_unique(),
        }
    }

    /// Inserts or replaces. Gives the change of the sum, and the part split off on the right. `last`: nothing
    /// stands behind this node.
    fn insert(&mut self, key: K, item: V, last: bool) -> (Sum, Option<Child<K, V>>) {
        match self {
            Node::Leaf(leaf) => insert_in_leaf(leaf.make_mut(), key, item, last),
            Node::Inner(inner) => {
                let inner = inner.make_mut();
                let at = child_of(inner, &key);
                let last = last && at + 1 == inner.len();
                if key < inner[at].key {
                    inner[at].key = key.clone();
                }
                let (change, split) = inner[at].node.insert(key, item, last);
                inner[at].sum = inner[at].sum.plus(change);
                let Some(right) = split else { return (change, None) };
                inner[at].sum = inner[at].sum.minus(right.sum);
                inner.insert(at + 1, right);
                if inner.len() <= FANOUT {
                    return (change, None);
                }
                let middle = if last { FANOUT } else { FANOUT / 2 };
                let right = inner.split_off(middle);
                (change, Some(Child::of(Node::Inner(Arc::new(right)))))
            }
        }
    }

    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut node = self;
        loop {
            match node {
                Node::Inner(inner) => node = &inner[child_of(inner, key)].node,
                Node::Leaf(leaf) => {
                    let at = leaf.partition_point(|(other, _)| other.borrow() < key);
                    return leaf.get(at).filter(|(other, _)| other.borrow() == key).map(|(_, item)| item);
                }
            }
        }
    }

    /// Changes the last item. Gives the change of the sum.
    fn change_last(&mut self, f: impl FnOnce(&mut V)) -> Sum {
        match self {
            Node::Leaf(leaf) => {
                let Some((_, item)) = leaf.make_mut().last_mut() else { return Sum::default() };
                let before = Sum::of::<K, V>(item);
                f(item);
                Sum::of::<K, V>(item).minus(before)
            }
            Node::Inner(inner) => {
                let Some(child) = inner.make_mut().last_mut() else { return Sum::default() };
                let change = child.node.change_last(f);
                child.sum = child.sum.plus(change);
                change
            }
        }
    }

    /// Removes the item of a key. None if there is none: then nothing was copied. `is_there`: the key is
    /// known to be there. A node of its own is changed on the way down; below a shared one the key is looked
    /// up first.
    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q, is_there: bool) -> Option<(Sum, V)>
    where
        K: Borrow<Q>,
    {
        let is_there = is_there || !self.is_unique() && self.find(key).map(|_| true)?;
        match self {
            Node::Leaf(leaf) => {
                let leaf = leaf.make_mut();
                let at = leaf.binary_search_by(|(other, _)| other.borrow().cmp(key)).ok()?;
                let (_, item) = leaf.remove(at);
                Some((Sum::of::<K, V>(&item), item))
            }
            Node::Inner(inner) => {
                let inner = inner.make_mut();
                let at = child_of(inner, key);
                let (change, item) = inner[at].node.remove(key, is_there)?;
                inner[at].sum = inner[at].sum.minus(change);
                tidy(inner, at);
                Some((change, item))
            }
        }
    }

    /// Takes out all items with smaller keys: their sum, and the nodes they stand in.
    fn cut<Q: Ord + ?Sized>(&mut self, key: &Q, cut: &mut Vec<Node<K, V>>) -> Sum
    where
        K: Borrow<Q>,
    {
        match self {
            Node::Leaf(leaf) => {
                let at = leaf.partition_point(|(other, _)| other.borrow() < key);
                if at == 0 {
                    return Sum::default();
                }
                let gone: Vec<_> = leaf.make_mut().drain(..at).collect();
                let sum = leaf_sum(&gone);
                cut.push(Node::Leaf(Arc::new(gone)));
                sum
            }
            Node::Inner(inner) => {
                let at = child_of(inner, key);
                let inner = inner.make_mut();
                let gone: Vec<_> = inner.drain(..at).collect();
                let mut sum = inner_sum(&gone);
                if at > 0 {
                    cut.push(Node::Inner(Arc::new(gone)));
                }
                let below = inner[0].node.cut(key, cut);
                inner[0].sum = inner[0].sum.minus(below);
                sum = sum.plus(below);
                tidy(inner, 0);
                sum
            }
        }
    }

    fn absorb(&mut self, right: Node<K, V>) {
        match (self, right) {
            (Node::Leaf(left), Node::Leaf(mut right)) => left.make_mut().append(right.make_mut()),
            (Node::Inner(left), Node::Inner(mut right)) => left.make_mut().append(right.make_mut()),
            _ => unreachable!("neighbours have the same depth"), // T1
        }
    }

    fn room(&self) -> usize {
        if let Node::Leaf(_) = self { LEAF } else { FANOUT }
    }

    fn check(&self) -> (Sum, usize) {
        assert!(self.len() > 0 && self.len() <= self.room(), "T1");
        match self {
            Node::Leaf(leaf) => {
                assert!(leaf.is_sorted_by(|a, b| a.0 < b.0), "T2");
                (leaf_sum(leaf), 1)
            }
            Node::Inner(inner) => {
                let mut depth = None;
                for child in inner.iter() {
                    let (sum, below) = child.node.check();
                    assert_eq!(sum, child.sum, "T3");
                    assert_eq!(*depth.get_or_insert(below), below, "T1");
                }
                (inner_sum(inner), 1 + depth.unwrap_or_default())
            }
        }
    }
}

fn insert_in_leaf<K: Key, V: Item>(
    leaf: &mut Vec<(K, V)>,
    key: K,
    item: V,
    last: bool,
) -> (Sum, Option<Child<K, V>>) {
    let sum = Sum::of::<K, V>(&item);
    let at = match leaf.binary_search_by(|(other, _)| other.cmp(&key)) {
        Ok(at) => {
            let old = std::mem::replace(&mut leaf[at].1, item);
            return (sum.minus(Sum::of::<K, V>(&old)), None);
        }
        Err(at) => at,
    };
    if last && at == LEAF {
        return (sum, Some(Child::of(Node::Leaf(Arc::new(vec![(key, item)])))));
    }
    leaf.insert(at, (key, item));
    if leaf.len() <= LEAF {
        return (sum, None);
    }
    let right = leaf.split_off(LEAF / 2);
    (sum, Some(Child::of(Node::Leaf(Arc::new(right)))))
}

/// Takes an empty child out, and merges a small one with a neighbour.
fn tidy<K: Key, V: Item>(inner: &mut Vec<Child<K, V>>, at: usize) {
    let (len, room) = (inner[at].node.len(), inner[at].node.room());
    if len == 0 {
        inner.remove(at);
        return;
    }
    if len > room / 4 {
        return;
    }
    let left = if at + 1 < inner.len() { at } else { at.saturating_sub(1) };
    if left + 1 < inner.len() && inner[left].node.len() + inner[left + 1].node.len() <= room * 3 / 4 {
        let right = inner.remove(left + 1);
        inner[left].sum = inner[left].sum.plus(right.sum);
        inner[left].node.absorb(right.node);
    }
}

impl<K: Key, V: Item> Tree<K, V> {
    pub(super) const fn new() -> Self {
        Tree { root: None, sum: Sum { items: 0, count: 0, bytes: 0 } }
    }

    pub(super) fn sum(&self) -> Sum {
        self.sum
    }

    /// Number of items.
    pub(super) fn len(&self) -> usize {
        self.sum.items as usize
    }

    /// The item of a key.
    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.root.as_ref()?.find(key)
    }

    /// The last item whose key is at most this one.
    pub(super) fn floor<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let test = |other: &K| other.borrow() <= key;
        let mut node = self.root.as_ref()?;
        // A child's key may be below its first one (T2); then the answer ends the child before.
        let mut fallback: Option<&Node<K, V>> = None;
        loop {
            match node {
                Node::Inner(inner) => {
                    let at = inner.partition_point(|child| test(&child.key)).saturating_sub(1);
                    if at > 0 {
                        fallback = Some(&inner[at - 1].node);
                    }
                    node = &inner[at].node;
                }
                Node::Leaf(leaf) => {
                    let at = leaf.partition_point(|(key, _)| test(key));
                    if at > 0 {
                        return Some((&leaf[at - 1].0, &leaf[at - 1].1));
                    }
                    return fallback.map(last_of);
                }
            }
        }
    }

    pub(super) fn first(&self) -> Option<(&K, &V)> {
        let mut node = self.root.as_ref()?;
        loop {
            match node {
                Node::Inner(inner) => node = &inner[0].node,
                Node::Leaf(leaf) => return leaf.first().map(|(key, item)| (key, item)),
            }
        }
    }

    pub(super) fn last(&self) -> Option<(&K, &V)> {
        self.root.as_ref().map(last_of)
    }

    /// The item at which so many entries have been passed, and the number of those before it.
    pub(super) fn at_count(&self, count: u64) -> Option<(&K, &V, u64)> {
        let mut node = self.root.as_ref()?;
        let mut before = 0;
        loop {
            match node {
                Node::Inner(inner) => {
                    let found = inner.iter().find(|child| {
                        let here = before + child.sum.count > count;
                        before += if here { 0 } else { child.sum.count };
                        here
                    });
                    node = &found?.node;
                }
                Node::Leaf(leaf) => {
                    let found = leaf.iter().find(|(_, item)| {
                        let here = before + item.count() > count;
                        before += if here { 0 } else { item.count() };
                        here
                    });
                    return found.map(|(key, item)| (key, item, before));
                }
            }
        }
    }

    /// The bytes that stand before a key.
    pub(super) fn sum_before<Q: Ord + ?Sized>(&self, key: &Q) -> Sum
    where
        K: Borrow<Q>,
    {
        let mut sum = Sum::default();
        let mut next = self.root.as_ref();
        while let Some(node) = next {
            next = match node {
                Node::Inner(inner) => {
                    let at = child_of(inner, key);
                    sum = sum.plus(inner_sum(&inner[..at]));
                    Some(&inner[at].node)
                }
                Node::Leaf(leaf) => {
                    let at = leaf.partition_point(|(other, _)| other.borrow() < key);
                    sum = sum.plus(leaf_sum(&leaf[..at]));
                    None
                }
            };
        }
        sum
    }

    /// An item to be changed. Its count and bytes must stay.
    pub(super) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (mut node, mut is_there) = (self.root.as_mut()?, false);
        loop {
            // A shared node is copied only if the key is there.
            is_there = is_there || !node.is_unique() && node.find(key).map(|_| true)?;
            match node {
                Node::Inner(inner) => {
                    let inner = inner.make_mut();
                    let at = child_of(inner, key);
                    node = &mut inner[at].node;
                }
                Node::Leaf(leaf) => {
                    let leaf = leaf.make_mut();
                    let at = leaf.partition_point(|(other, _)| other.borrow() < key);
                    let found = leaf.get_mut(at).filter(|(other, _)| other.borrow() == key);
                    return found.map(|(_, item)| item);
                }
            }
        }
    }

    /// Changes the item of a key that is there, with its count and bytes.
    pub(super) fn change<Q: Ord + ?Sized>(&mut self, key: &Q, f: impl FnOnce(&mut V))
    where
        K: Borrow<Q>,
    {
        let Some(item) = self.get_mut(key) else { return };
        let before = Sum::of::<K, V>(item);
        f(item);
        let change = Sum::of::<K, V>(item).minus(before);
        self.sum = self.sum.plus(change);
        let mut next = self.root.as_mut();
        while let Some(Node::Inner(inner)) = next {
            let inner = inner.make_mut();
            let at = child_of(inner, key);
            inner[at].sum = inner[at].sum.plus(change);
            next = Some(&mut inner[at].node);
        }
    }

    /// Changes the last item, with its count and bytes.
    pub(super) fn change_last(&mut self, f: impl FnOnce(&mut V)) {
        if let Some(root) = &mut self.root {
            self.sum = self.sum.plus(root.change_last(f));
        }
    }

    /// Inserts or replaces.
    pub(super) fn insert(&mut self, key: K, item: V) {
        let Some(root) = &mut self.root else {
            self.sum = Sum::of::<K, V>(&item);
            self.root = Some(Node::Leaf(Arc::new(vec![(key, item)])));
            return;
        };
        let (change, split) = root.insert(key, item, true);
        self.sum = self.sum.plus(change);
        if let Some(right) = split {
            let left = Child::of(root.clone());
            self.root = Some(Node::Inner(Arc::new(vec![left, right])));
        }
    }

    /// Removes the item of a key.
    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (change, item) = self.root.as_mut()?.remove(key, false)?;
        self.sum = self.sum.minus(change);
        self.lower();
        Some(item)
    }

    /// Removes all items with smaller keys; many are freed elsewhere. O(log n). Gives their sum.
    pub(super) fn cut_below<Q: Ord + ?Sized>(&mut self, key: &Q) -> Sum
    where
        K: Borrow<Q>,
    {
        let mut gone = Vec::new();
        let Some(root) = &mut self.root else { return Sum::default() };
        let sum = root.cut(key, &mut gone);
        self.sum = self.sum.minus(sum);
        self.lower();
        if sum.bytes > DEFER_BYTES {
            stdx::reclaim::defer(sum.bytes as usize, move || drop(gone));
        }
        sum
    }

    /// Gives the root up while it has one child or none.
    fn lower(&mut self) {
        while let Some(root) = &self.root {
            match root {
                Node::Inner(inner) if inner.len() == 1 => {
                    let child = inner[0].node.clone();
                    self.root = Some(child);
                }
                root if root.len() == 0 => self.root = None,
                _ => return,
            }
        }
    }

    pub(super) fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { above: Vec::new(), leaf: [].iter() };
        if let Some(root) = &self.root {
            iter.enter(root, &|_| false);
        }
        iter
    }

    /// The items from a key on.
    pub(super) fn iter_from<Q: Ord + ?Sized>(&self, key: &Q) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let mut iter = Iter { above: Vec::new(), leaf: [].iter() };
        if let Some(root) = &self.root {
            iter.enter(root, &|other: &K| other.borrow() < key);
        }
        iter
    }

    /// An estimate of the bytes that no other version shares. O(height).
    pub(super) fn alone_bytes(&self) -> usize {
        match &self.root {
            Some(root) if root.is_unique() => alone::bytes(root, self.sum.bytes as usize),
            _ => 0,
        }
    }

    pub(super) fn check_invariants(&self) {
        match &self.root {
            Some(root) => assert_eq!(root.check().0, self.sum, "T3"),
            None => assert_eq!(self.sum, Sum::default(), "T3"),
        }
        let keys: Vec<&K> = self.iter().map(|(key, _)| key).collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "T2");
        assert!(keys.iter().all(|key| self.get::<K>(key).is_some()), "T2");
    }
}

fn last_of<K: Key, V: Item>(node: &Node<K, V>) -> (&K, &V) {
    let mut node = node;
    loop {
        match node {
            Node::Inner(inner) => node = &inner[inner.len() - 1].node,
            Node::Leaf(leaf) => {
                let (key, item) = &leaf[leaf.len() - 1];
                return (key, item);
            }
        }
    }
}

impl<K: Key, V: Item> Drop for Tree<K, V> {
    fn drop(&mut self) {
        if self.sum.bytes <= DEFER_BYTES {
            return;
        }
        let alone = self.alone_bytes();
        let root = take(&mut self.root);
        if root.as_ref().is_some_and(Node::is_unique) {
            stdx::reclaim::defer_version(self.sum.bytes as usize, alone, move || drop(root));
        }
    }
}

impl<'a, K: Key, V: Item> Below for &'a Node<K, V> {
    fn each_child(self, told: &mut dyn FnMut(u64, bool, Option<&'a Node<K, V>>)) {
        if let Node::Inner(inner) = self {
            for child in inner.iter() {
                told(child.sum.bytes, child.node.is_unique(), Some(&child.node));
            }
        }
    }
}

/// Items in ascending order.
pub(super) struct Iter<'a, K: Key, V: Item> {
    /// The siblings behind, from the root down.
    above: Vec<std::slice::Iter<'a, Child<K, V>>>,
    leaf: std::slice::Iter<'a, (K, V)>,
}

impl<K: Key, V: Item> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Iter { above: self.above.clone(), leaf: self.leaf.clone() }
    }
}

impl<'a, K: Key, V: Item> Iter<'a, K, V> {
    /// Goes down to the first item that is not passed.
    fn enter(&mut self, node: &'a Node<K, V>, passed: &dyn Fn(&K) -> bool) {
        let mut node = node;
        loop {
            match node {
                Node::Inner(inner) => {
                    let at = inner.partition_point(|child| passed(&child.key)).saturating_sub(1);
                    self.above.push(inner[at + 1..].iter());
                    node = &inner[at].node;
                }
                Node::Leaf(leaf) => {
                    self.leaf = leaf[leaf.partition_point(|(key, _)| passed(key))..].iter();
                    return;
                }
            }
        }
    }
}

impl<'a, K: Key, V: Item> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, item)) = self.leaf.next() {
                return Some((key, item));
            }
            match self.above.last_mut()?.next() {
                Some(child) => self.enter(&child.node, &|_| false),
                None => {
                    self.above.pop();
                }
            }
        }
    }
}
