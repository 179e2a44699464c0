//! Streams: entries in the order of their IDs, and groups of consumers that read them.
//!
//! ```text
//! Stream ─► Body ─┬─ entries: tree by ID ─► packed blocks            tree.rs  block.rs
//!                 ├─ groups:  tree by name ─► Group ─┬─ pending      group.rs
//!                 │                                  └─ consumers ─► their pending
//!                 └─ producers ─► IDs of their messages              producers.rs
//! ```
//!
//! - M1: a clone is O(1), and no clone sees a change of another (values V1).
//! - M2: IDs of entries ascend, and none is above `last_id`.
//! - M3: an entry is pending for one consumer of a group at most, which the group's and the consumer's list
//!   both say. It need not be in the stream any more.
//! - M4: a block gets entries until it has the limits in [`crate::limits`], so trims by whole blocks leave
//!   about as many entries as Redis does.
//!
//! Cost: look-up and append O(log n), and a walk over one block. A snapshot's first change copies one path and
//! one block. Trims cut whole subtrees off.

mod block;
mod group;
mod id;
mod producers;
mod tree;

#[cfg(test)]
mod tests;

pub use block::{Entry, Fields};
pub use group::{Consumer, Group, GroupMut, Name, Pending};
pub use id::StreamId;
pub use producers::{Producer, Producers, Remembers};

use crate::arc::Arc;
use crate::limits::{STREAM_NODE_MAX_BYTES, STREAM_NODE_MAX_ENTRIES};
use crate::{Enc, Held};
use block::Block;
use std::mem::size_of;
use tree::Tree;

impl tree::Item for Arc<Block> {
    fn count(&self) -> u64 {
        Block::count(self)
    }

    fn bytes(&self) -> u64 {
        self.alloc_bytes()
    }
}

impl tree::Item for Arc<Group> {}

#[derive(Clone)]
struct Body {
    /// By the ID of the first entry a block had.
    entries: Tree<StreamId, Arc<Block>>,
    last_id: StreamId,
    max_deleted_id: StreamId,
    entries_added: u64,
    groups: Tree<Name, Arc<Group>>,
    /// Bytes of all groups.
    groups_bytes: usize,
    producers: Option<Arc<Producers>>,
}

/// A stream. 8 bytes; `clone` is O(1).
#[derive(Clone)]
pub struct Stream(Arc<Body>);

impl Default for Stream {
    fn default() -> Stream {
        Stream::new()
    }
}

impl Stream {
    /// The empty stream.
    pub fn new() -> Stream {
        Stream(Arc::new(Body {
            entries: Tree::new(),
            last_id: StreamId::MIN,
            max_deleted_id: StreamId::MIN,
            entries_added: 0,
            groups: Tree::new(),
            groups_bytes: 0,
            producers: None,
        }))
    }

    /// Number of entries. O(1).
    pub fn len(&self) -> usize {
        self.0.entries.sum().count as usize
    }

    /// True without entries. Such a stream may have groups.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Redis's name for the encoding.
    pub fn encoding(&self) -> Enc {
        Enc::Stream
    }

    /// Bytes of everything, shared parts counted fully. O(1).
    pub fn mem_bytes(&self) -> usize {
        let beside = self.0.groups_bytes + self.producers().map_or(0, Producers::mem_bytes);
        size_of::<Body>() + self.0.entries.sum().bytes as usize + beside
    }

    /// The root and memory that this handle keeps alive. O(height).
    pub fn held(&self) -> Option<Held> {
        let alone = self.0.entries.alone_bytes();
        let groups = if self.0.groups.alone_bytes() > 0 { self.0.groups_bytes } else { 0 };
        let producers = self.producers().map_or(0, Producers::alone_bytes);
        let body: &Body = &self.0;
        let bytes = size_of::<Body>() + alone + groups + producers;
        Some(Held { root: std::ptr::from_ref(body).addr(), owners: self.0.owners(), bytes })
    }

    /// Number of leaves: `radix-tree-keys` of XINFO. O(1).
    pub fn leaves(&self) -> usize {
        self.0.entries.len()
    }

    /// The highest ID ever added, or what was set.
    pub fn last_id(&self) -> StreamId {
        self.0.last_id
    }

    /// Sets the highest ID. It must not be below that of the last entry (M2).
    pub fn set_last_id(&mut self, id: StreamId) {
        self.0.make_mut().last_id = id;
    }

    /// The highest ID that was removed.
    pub fn max_deleted_id(&self) -> StreamId {
        self.0.max_deleted_id
    }

    /// Sets the highest ID that was removed.
    pub fn set_max_deleted_id(&mut self, id: StreamId) {
        self.0.make_mut().max_deleted_id = id;
    }

    /// Number of entries that were ever added.
    pub fn entries_added(&self) -> u64 {
        self.0.entries_added
    }

    /// Sets the number of entries that were ever added.
    pub fn set_entries_added(&mut self, count: u64) {
        self.0.make_mut().entries_added = count;
    }

    /// The ID of the first entry, 0-0 without entries. O(log n).
    pub fn first_id(&self) -> StreamId {
        self.first().map_or(StreamId::MIN, |entry| entry.id)
    }

    /// Adds an entry at the end. False, and nothing is done, unless its ID is above `last_id`. O(log n +
    /// fields); a shared block is copied.
    pub fn append(&mut self, id: StreamId, fields: &[(&[u8], &[u8])]) -> bool {
        if id <= self.0.last_id {
            return false;
        }
        let body = self.0.make_mut();
        let (entries_max, bytes_max) = (STREAM_NODE_MAX_ENTRIES.get(), STREAM_NODE_MAX_BYTES.get());
        let last = body.entries.last().map(|(_, block)| block.takes(fields, entries_max, bytes_max));
        match last {
            Some(true) => body.entries.change_last(|block| block.make_mut().push(id, fields)),
            last => {
                if last.is_some() {
                    body.entries.change_last(|block| {
                        // A shared block is not copied only to be made shorter.
                        if let Some(block) = block.get_mut() {
                            block.close();
                        }
                    });
                }
                body.entries.insert(id, Arc::new(Block::new(id, fields)));
            }
        }
        body.last_id = id;
        body.entries_added = body.entries_added.saturating_add(1);
        true
    }

    /// The leaves, in order.
    pub fn iter_leaves(&self) -> impl Iterator<Item = Leaf<'_>> {
        self.0.entries.iter().map(|(_, block)| Leaf(block))
    }

    fn block_of(&self, id: StreamId) -> Option<&Block> {
        self.0.entries.floor(&id).map(|(_, block)| &**block)
    }

    /// The entry of an ID. O(log n + a block).
    pub fn get(&self, id: StreamId) -> Option<Entry<'_>> {
        self.block_of(id)?.get(id)
    }

    /// True if the entry is there.
    pub fn contains(&self, id: StreamId) -> bool {
        self.get(id).is_some()
    }

    /// The first entry. O(log n).
    pub fn first(&self) -> Option<Entry<'_>> {
        self.0.entries.first()?.1.iter().next()
    }

    /// The last entry. O(log n + a block).
    pub fn last(&self) -> Option<Entry<'_>> {
        let (_, block) = self.0.entries.last()?;
        block.get(block.last_id())
    }

    /// The ID of the last entry. O(log n).
    pub fn last_entry_id(&self) -> Option<StreamId> {
        self.0.entries.last().map(|(_, block)| block.last_id())
    }

    /// The entries of these IDs, both included, in ascending order. O(log n + a block) to begin.
    pub fn range(&self, from: StreamId, to: StreamId) -> Range<'_> {
        let key = self.0.entries.floor(&from).map_or(from, |(key, _)| *key);
        let mut blocks = self.0.entries.iter_from(&key);
        let (mut block, mut next) = (None, None);
        while next.is_none()
            && let Some((_, found)) = blocks.next()
        {
            (block, next) = (Some(&**found), found.first_from(from));
        }
        Range { blocks, block, next, to }
    }

    /// The same entries in descending order.
    pub fn range_back(&self, from: StreamId, to: StreamId) -> RangeBack<'_> {
        RangeBack { stream: self, from, to: Some(to), entries: Vec::new() }
    }

    /// Number of entries before an ID.
    fn rank(&self, id: StreamId) -> u64 {
        let Some((key, block)) = self.0.entries.floor(&id) else { return 0 };
        self.0.entries.sum_before(key).count + block.rank(id)
    }

    /// Number of entries of these IDs, both included. O(log n + a block).
    pub fn count(&self, from: StreamId, to: StreamId) -> usize {
        if from > to {
            return 0;
        }
        let end = to.next().map_or(self.len() as u64, |behind| self.rank(behind));
        (end - self.rank(from)) as usize
    }

    /// Removes an entry, and raises `max_deleted_id` to its ID. False if there is none. O(log n + a block).
    pub fn remove(&mut self, id: StreamId) -> bool {
        if !self.contains(id) {
            return false;
        }
        let body = self.0.make_mut();
        let key = body.entries.floor(&id).map_or(id, |(key, _)| *key);
        body.without(key, &|entry| entry.id == id);
        body.max_deleted_id = body.max_deleted_id.max(id);
        true
    }

    /// Keeps the newest `n` entries, and gives the number of those removed. `approx`: whole leaves only, and
    /// `limit` entries at most unless it is 0. O(log n + a block); with a limit O(leaves removed · log n).
    pub fn trim_to_len(&mut self, n: u64, approx: bool, limit: u64) -> u64 {
        let excess = (self.len() as u64).saturating_sub(n);
        if excess == 0 {
            return 0;
        }
        let most = if approx && limit > 0 { excess.min(limit) } else { excess };
        let body = self.0.make_mut();
        let Some((key, _, before)) = body.entries.at_count(most) else {
            // All go.
            return body.cut(None);
        };
        let key = *key;
        let mut removed = if before > 0 { body.cut(Some(key)) } else { 0 };
        if !approx && removed < excess {
            let rest = excess - removed;
            let last = body.entries.get(&key).and_then(|block| block.iter().nth(rest as usize - 1));
            if let Some(last) = last.map(|entry| entry.id) {
                body.without(key, &|entry| entry.id <= last);
                removed = excess;
            }
        }
        removed
    }

    /// Number of the entries that [`Stream::trim_to_len`] would remove. O(log n)
    pub fn trims(&self, n: u64, approx: bool, limit: u64) -> u64 {
        let excess = (self.len() as u64).saturating_sub(n);
        match approx {
            false => excess,
            true => {
                let most = if limit > 0 { excess.min(limit) } else { excess };
                self.0.entries.at_count(most).map_or(self.len() as u64, |(.., before)| before)
            }
        }
    }

    /// Number of entries below an ID. O(log n + a block)
    pub fn below(&self, id: StreamId) -> u64 {
        self.rank(id)
    }

    /// Whether a group has an entry pending. O(groups · log p)
    pub fn is_pending(&self, id: StreamId) -> bool {
        self.iter_groups().any(|(_, group)| group.pending(id).is_some())
    }

    /// Whether a group still needs an entry: it has it pending, or has not read that far. O(groups · log p)
    pub fn is_referenced(&self, id: StreamId) -> bool {
        self.iter_groups().any(|(_, group)| group.last_id() < id || group.pending(id).is_some())
    }

    /// Removes the entries below an ID, and gives their number. `approx` and `limit` as in
    /// [`Stream::trim_to_len`], and so is the cost.
    pub fn trim_below(&mut self, below: StreamId, approx: bool, limit: u64) -> u64 {
        let excess = self.rank(below);
        if excess == 0 {
            return 0;
        }
        self.trim_to_len(self.len() as u64 - excess, approx, limit)
    }

    /// True if both are clones of each other without later changes. O(1).
    pub fn ptr_eq(&self, other: &Stream) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// Asserts the invariants of all parts. O(n).
    pub fn check_invariants(&self) {
        let body = &self.0;
        body.entries.check_invariants();
        let mut before: Option<StreamId> = None;
        for (key, block) in body.entries.iter() {
            block.check_invariants();
            assert!(before < Some(*key) && *key <= block.base(), "M2");
            before = Some(block.last_id());
        }
        assert!(before.is_none_or(|last| last <= body.last_id), "M2");
        body.groups.check_invariants();
        body.groups.iter().for_each(|(_, group)| group.check_invariants());
        let bytes: usize = body.groups.iter().map(|(name, group)| group::bytes(name, group)).sum();
        assert_eq!(body.groups_bytes, bytes);
        body.producers.iter().for_each(|producers| producers.check_invariants());
    }
}

/// Producers.
impl Stream {
    /// The producers that are remembered; None: there never was one, and nothing was set.
    pub fn producers(&self) -> Option<&Producers> {
        self.0.producers.as_deref()
    }

    /// Settings of what is remembered.
    pub fn remembers(&self) -> Remembers {
        self.producers().map_or_else(Remembers::usual, Producers::remembers)
    }

    /// The producers, to be changed. If there were none they get these settings. O(1).
    pub fn producers_mut(&mut self, otherwise: Remembers) -> &mut Producers {
        let producers = &mut self.0.make_mut().producers;
        producers.get_or_insert_with(|| Arc::new(Producers::new(otherwise))).make_mut()
    }

    /// The same stream without producers. O(1).
    pub fn without_producers(&self) -> Stream {
        let mut stream = self.clone();
        if stream.producers().is_some() {
            stream.0.make_mut().producers = None;
        }
        stream
    }
}

/// Groups.
impl Stream {
    /// Number of groups. O(1).
    pub fn groups(&self) -> usize {
        self.0.groups.len()
    }

    /// A group. O(log n).
    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.0.groups.get(name).map(|group| &**group)
    }

    /// A group to be changed. O(log n); shared parts of the way to it are copied.
    pub fn group_mut(&mut self, name: &[u8]) -> Option<GroupMut<'_>> {
        self.group(name)?;
        let body = self.0.make_mut();
        let group = body.groups.get_mut(name)?.make_mut();
        Some(GroupMut::new(group, &mut body.groups_bytes))
    }

    /// All groups by name.
    pub fn iter_groups(&self) -> impl Iterator<Item = (&Name, &Group)> {
        self.0.groups.iter().map(|(name, group)| (name, &**group))
    }

    /// Creates a group. False if there is one of this name. O(log n).
    pub fn create_group(&mut self, name: &[u8], last_id: StreamId, entries_read: Option<u64>) -> bool {
        if self.group(name).is_some() {
            return false;
        }
        let (name, group) = (Name::new(name), Group::new(last_id, entries_read));
        let body = self.0.make_mut();
        body.groups_bytes += group::bytes(&name, &group);
        body.groups.insert(name, Arc::new(group));
        true
    }

    /// Removes a group with its consumers; a large one is freed elsewhere. False if there is none. O(log n).
    pub fn destroy_group(&mut self, name: &[u8]) -> bool {
        if self.group(name).is_none() {
            return false;
        }
        let body = self.0.make_mut();
        if let Some(group) = body.groups.remove(name) {
            body.groups_bytes -= group::bytes(&Name::new(name), &group);
        }
        true
    }

    /// Entries that the group has not read yet; None if that is not known. Below 0 if the group was said to
    /// have read more than there was. O(log n). Source: XINFO GROUPS of Redis 8.
    pub fn lag(&self, group: &Group) -> Option<i64> {
        let (first, last) = (self.first_id(), group.last_id());
        if self.is_empty() {
            return Some(0);
        }
        if last < first && self.max_deleted_id() < first {
            return Some(self.len() as i64);
        }
        let known = group.entries_read().filter(|_| !self.has_tombstones_from(last));
        let read = known.or_else(|| self.estimate_read(last))?;
        Some(self.entries_added().wrapping_sub(read) as i64)
    }

    /// Number of entries ever added up to an ID; None if that is not known. O(log n).
    pub fn estimate_read(&self, id: StreamId) -> Option<u64> {
        let (added, deleted) = (self.entries_added(), self.max_deleted_id());
        if added == 0 {
            return Some(0);
        }
        if self.is_empty() && id <= self.last_id() {
            return Some(added);
        }
        if id != StreamId::MIN && id < deleted {
            return None;
        }
        if id >= self.last_id() {
            return (id == self.last_id()).then_some(added);
        }
        let first = self.first_id();
        if deleted != StreamId::MIN && deleted >= first {
            return None;
        }
        let trimmed = added.saturating_sub(self.len() as u64);
        match id.cmp(&first) {
            std::cmp::Ordering::Less => Some(trimmed),
            std::cmp::Ordering::Equal => Some(trimmed + 1),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// True if an entry of this ID or a higher one was removed, and one before it is still there. O(log n).
    pub fn has_tombstones_from(&self, from: StreamId) -> bool {
        let deleted = self.max_deleted_id();
        !self.is_empty() && deleted != StreamId::MIN && self.first_id() <= deleted && from <= deleted
    }

    /// Entries were delivered to a consumer of the group as new ones: the last becomes the group's last, and
    /// the group has read so many more. Those that are not above its last change neither. `pends`: they are
    /// pending for the consumer now, and for no other. False without such a group or consumer. O(m · log p),
    /// m = entries, p = pending ones.
    pub fn deliver(
        &mut self,
        group: &[u8],
        consumer: &[u8],
        ids: &[StreamId],
        now_ms: u64,
        pends: bool,
    ) -> bool {
        let Some(found) = self.group(group) else { return false };
        let (mut last, mut read) = (found.last_id(), found.entries_read());
        for id in ids {
            if last < *id {
                (last, read) = (*id, self.read_behind(last, read, *id));
            }
        }
        let Some(mut group) = self.group_mut(group) else { return false };
        if !group.touch_active(consumer, now_ms) {
            return false;
        }
        group.set_id(last, read);
        !pends || group.deliver(consumer, ids, now_ms)
    }

    /// The number of entries read once a group whose last is `last` has read `id` too.
    fn read_behind(&self, last: StreamId, read: Option<u64>, id: StreamId) -> Option<u64> {
        match read {
            Some(read) if last >= self.first_id() && !self.has_tombstones_from(last) => Some(read + 1),
            read if self.entries_added() == 0 => read,
            _ => self.estimate_read(id),
        }
    }
}

impl Body {
    /// Writes a block anew without some entries.
    fn without(&mut self, key: StreamId, gone: &dyn Fn(&Entry<'_>) -> bool) {
        let Some(block) = self.entries.get(&key) else { return };
        match block.without(gone) {
            Some(block) => self.entries.change(&key, |old| *old = Arc::new(block)),
            None => drop(self.entries.remove(&key)),
        }
    }

    /// Removes the blocks before a key, or all, and gives the number of their entries.
    fn cut(&mut self, below: Option<StreamId>) -> u64 {
        match below {
            Some(key) => self.entries.cut_below(&key).count,
            None => std::mem::replace(&mut self.entries, Tree::new()).sum().count,
        }
    }
}

impl PartialEq for Stream {
    /// Same entries, numbers, groups and producers. O(n), O(1) for unchanged clones.
    fn eq(&self, other: &Stream) -> bool {
        let numbers = |stream: &Stream| {
            (stream.len(), stream.last_id(), stream.max_deleted_id(), stream.entries_added())
        };
        let whole = |stream: &Stream| (StreamId::MIN, stream.last_id());
        let ((from, to), (other_from, other_to)) = (whole(self), whole(other));
        self.ptr_eq(other)
            || numbers(self) == numbers(other)
                && self
                    .range(from, to)
                    .zip(other.range(other_from, other_to))
                    .all(|(a, b)| a.id == b.id && a.fields().eq(b.fields()))
                && self.iter_groups().eq(other.iter_groups())
                && self.producers() == other.producers()
    }
}

impl Eq for Stream {}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "stream of {} entries, {} groups", self.len(), self.groups())
    }
}

/// A leaf: entries in a row, at least one.
#[derive(Clone, Copy)]
pub struct Leaf<'a>(&'a Block);

impl<'a> Leaf<'a> {
    /// Number of entries.
    pub fn count(&self) -> u64 {
        self.0.count()
    }

    /// The first entry.
    pub fn first(&self) -> Option<Entry<'a>> {
        self.entries().next()
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        self.0.iter()
    }
}

/// Entries in ascending order.
#[derive(Clone)]
pub struct Range<'a> {
    blocks: tree::Iter<'a, StreamId, Arc<Block>>,
    block: Option<&'a Block>,
    next: Option<Entry<'a>>,
    to: StreamId,
}

impl<'a> Iterator for Range<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let entry = self.next.filter(|entry| entry.id <= self.to)?;
        self.next = self.block.and_then(|block| block.after(&entry));
        if self.next.is_none() {
            self.block = self.blocks.next().map(|(_, block)| &**block);
            self.next = self.block.and_then(|block| block.iter().next());
        }
        Some(entry)
    }
}

/// Entries in descending order.
#[derive(Clone)]
pub struct RangeBack<'a> {
    stream: &'a Stream,
    from: StreamId,
    /// The last ID of what is to come; None if nothing is.
    to: Option<StreamId>,
    /// The rest of a block, in ascending order.
    entries: Vec<Entry<'a>>,
}

impl<'a> Iterator for RangeBack<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        while self.entries.is_empty() {
            let to = self.to?;
            let (key, block) = self.stream.0.entries.floor(&to)?;
            self.to = key.prev().filter(|to| *to >= self.from);
            self.entries.extend(block.iter().filter(|entry| entry.id >= self.from && entry.id <= to));
        }
        self.entries.pop()
    }
}
