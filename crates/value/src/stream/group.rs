//! Groups of consumers, and what is pending for them.
//!
//! ```text
//! Group ─┬─ pending: ID ─► (consumer, time, deliveries)
//!        ├─ by time, once somebody asked for it: (time, ID)
//!        └─ consumers: name ─► Consumer ─► IDs of its pending
//! ```
//!
//! - J1: an ID is in the group's list exactly if it is in that of the consumer named there, and in no other
//!   consumer's.
//! - J2: the index by time has pending entries only, each with its time. Those that were found to be deleted
//!   from the stream are left out of it.
//!
//! Cost: one delivery, acknowledgement or claim O(log n). A copy of a group is O(1).

use super::id::StreamId;
use super::tree::{Item, Tree};
use crate::arc::{Arc, Blob};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::mem::size_of;
use std::ops::{Deref, DerefMut};

/// The name of a group or a consumer. 8 bytes; `clone` is O(1).
#[derive(Clone)]
pub struct Name(Blob);

impl Name {
    /// A name of its own.
    pub fn new(name: &[u8]) -> Name {
        Name(Blob::new(name))
    }
}

impl Deref for Name {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        **self == **other
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.escape_ascii())
    }
}

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub consumer: Name,
    /// The time of the last delivery.
    pub time_ms: u64,
    /// Number of deliveries.
    pub count: u64,
}

impl Item for Pending {}

/// A consumer of a group.
#[derive(Clone)]
pub struct Consumer {
    seen_time_ms: u64,
    active_time_ms: Option<u64>,
    pending: Tree<StreamId, ()>,
}

impl Item for Arc<Consumer> {}

/// A group of consumers.
#[derive(Clone)]
pub struct Group {
    last_id: StreamId,
    entries_read: Option<u64>,
    pending: Tree<StreamId, Pending>,
    /// Made by the first CLAIM (J2).
    by_time: Option<Tree<(u64, StreamId), ()>>,
    consumers: Tree<Name, Arc<Consumer>>,
    /// Bytes of the consumers' names.
    names_bytes: usize,
}

/// Bytes of a group and its name.
pub(super) fn bytes(name: &Name, group: &Group) -> usize {
    size_of::<(Name, Arc<Group>)>() + Blob::alloc_size(name.len()) + group.mem_bytes()
}

impl Consumer {
    fn new(seen_time_ms: u64) -> Consumer {
        Consumer { seen_time_ms, active_time_ms: None, pending: Tree::new() }
    }

    /// The time of its last attempt to read or claim.
    pub fn seen_time_ms(&self) -> u64 {
        self.seen_time_ms
    }

    /// The time of its last successful one; None if there was none.
    pub fn active_time_ms(&self) -> Option<u64> {
        self.active_time_ms
    }

    /// Number of its pending entries. O(1).
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// The IDs of its pending entries from one on. O(log n) to begin.
    pub fn pending_from(&self, from: StreamId) -> impl Iterator<Item = StreamId> + Clone {
        self.pending.iter_from(&from).map(|(id, ())| *id)
    }

    /// The first ID that is pending for it.
    pub fn first_pending(&self) -> Option<StreamId> {
        self.pending.first().map(|(id, ())| *id)
    }

    /// The last ID that is pending for it.
    pub fn last_pending(&self) -> Option<StreamId> {
        self.pending.last().map(|(id, ())| *id)
    }

    /// True if the entry is pending for it.
    pub fn contains(&self, id: StreamId) -> bool {
        self.pending.get(&id).is_some()
    }
}

impl PartialEq for Consumer {
    fn eq(&self, other: &Consumer) -> bool {
        (self.seen_time_ms, self.active_time_ms) == (other.seen_time_ms, other.active_time_ms)
            && self.pending_from(StreamId::MIN).eq(other.pending_from(StreamId::MIN))
    }
}

impl Group {
    pub(super) fn new(last_id: StreamId, entries_read: Option<u64>) -> Group {
        Group {
            last_id,
            entries_read,
            pending: Tree::new(),
            by_time: None,
            consumers: Tree::new(),
            names_bytes: 0,
        }
    }

    /// The ID of the last entry delivered as a new one.
    pub fn last_id(&self) -> StreamId {
        self.last_id
    }

    /// Number of entries read; None if that is not known.
    pub fn entries_read(&self) -> Option<u64> {
        self.entries_read
    }

    /// Sets where the group stands.
    pub fn set_id(&mut self, last_id: StreamId, entries_read: Option<u64>) {
        (self.last_id, self.entries_read) = (last_id, entries_read);
    }

    /// Bytes of the group, shared parts counted fully. O(1).
    pub fn mem_bytes(&self) -> usize {
        let each = size_of::<(StreamId, Pending)>() + size_of::<(StreamId, ())>();
        let consumer = size_of::<Consumer>() + size_of::<(Name, Arc<Consumer>)>();
        let indexed = self.by_time.as_ref().map_or(0, Tree::len) * size_of::<((u64, StreamId), ())>();
        let pending = self.pending.len() * each + indexed;
        size_of::<Group>() + pending + self.consumers.len() * consumer + self.names_bytes
    }

    /// Number of pending entries. O(1).
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// A pending entry. O(log n).
    pub fn pending(&self, id: StreamId) -> Option<&Pending> {
        self.pending.get(&id)
    }

    /// The pending entries from an ID on. O(log n) to begin.
    pub fn pending_from(&self, from: StreamId) -> impl Iterator<Item = (StreamId, &Pending)> + Clone {
        self.pending.iter_from(&from).map(|(id, pending)| (*id, pending))
    }

    /// The first ID that is pending.
    pub fn first_pending(&self) -> Option<StreamId> {
        self.pending.first().map(|(id, _)| *id)
    }

    /// The last ID that is pending.
    pub fn last_pending(&self) -> Option<StreamId> {
        self.pending.last().map(|(id, _)| *id)
    }

    /// Whether pending entries are found by their time. True if nothing is pending.
    pub fn is_indexed(&self) -> bool {
        self.by_time.is_some() || self.pending.len() == 0
    }

    /// Makes the index by time. O(p · log p), p = pending entries; O(1) if it is there.
    pub fn index(&mut self) {
        if self.by_time.is_none() {
            let mut index = Tree::new();
            self.pending.iter().for_each(|(id, pending)| index.insert((pending.time_ms, *id), ()));
            self.by_time = Some(index);
        }
    }

    /// Number of indexed entries that were delivered up to a time. O(log n).
    pub fn delivered_until(&self, time_ms: u64) -> usize {
        let behind = time_ms.saturating_add(1);
        self.by_time.as_ref().map_or(0, |index| index.sum_before(&(behind, StreamId::MIN)).items as usize)
    }

    /// The indexed entries with the times of their deliveries, the oldest first. O(log n) to begin.
    pub fn oldest(&self) -> impl Iterator<Item = (u64, StreamId)> + '_ {
        self.by_time.iter().flat_map(|index| index.iter().map(|(at, ())| *at))
    }

    /// Leaves an entry out of the index: it is no longer in the stream (J2). O(log n).
    pub fn leave_out(&mut self, time_ms: u64, id: StreamId) {
        self.by_time.iter_mut().for_each(|index| _ = index.remove(&(time_ms, id)));
    }

    /// Puts an entry into the index, if there is one.
    fn put_in(&mut self, time_ms: u64, id: StreamId) {
        self.by_time.iter_mut().for_each(|index| index.insert((time_ms, id), ()));
    }

    /// Number of consumers. O(1).
    pub fn consumers(&self) -> usize {
        self.consumers.len()
    }

    /// A consumer. O(log n).
    pub fn consumer(&self, name: &[u8]) -> Option<&Consumer> {
        self.consumers.get(name).map(|consumer| &**consumer)
    }

    /// All consumers by name.
    pub fn iter_consumers(&self) -> impl Iterator<Item = (&Name, &Consumer)> + Clone {
        self.consumers.iter().map(|(name, consumer)| (name, &**consumer))
    }

    /// Creates a consumer, seen now. False if there is one of this name. O(log n).
    pub fn create_consumer(&mut self, name: &[u8], now_ms: u64) -> bool {
        if self.consumers.get(name).is_some() {
            return false;
        }
        self.names_bytes += Blob::alloc_size(name.len());
        self.consumers.insert(Name::new(name), Arc::new(Consumer::new(now_ms)));
        true
    }

    /// Removes a consumer and all that is pending for it, and gives the number of these. O(its pending · log
    /// n), O(log n) if it has all.
    pub fn delete_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let consumer = self.consumers.remove(name)?;
        self.names_bytes -= Blob::alloc_size(name.len());
        let pending = consumer.pending.len();
        if pending == self.pending.len() {
            (self.pending, self.by_time) = (Tree::new(), None);
        } else {
            for (id, ()) in consumer.pending.iter() {
                let time_ms = self.pending.remove(id).map(|pending| pending.time_ms);
                time_ms.into_iter().for_each(|time_ms| self.leave_out(time_ms, *id));
            }
        }
        Some(pending)
    }

    /// Sets both times of a consumer. False if there is none.
    pub fn set_times(&mut self, consumer: &[u8], seen_time_ms: u64, active_time_ms: Option<u64>) -> bool {
        let Some(consumer) = self.consumers.get_mut(consumer) else { return false };
        let consumer = consumer.make_mut();
        (consumer.seen_time_ms, consumer.active_time_ms) = (seen_time_ms, active_time_ms);
        true
    }

    /// The consumer tried to read or claim. False if there is none.
    pub fn touch_seen(&mut self, consumer: &[u8], now_ms: u64) -> bool {
        let active = self.consumer(consumer).and_then(Consumer::active_time_ms);
        self.set_times(consumer, now_ms, active)
    }

    /// The consumer read or claimed something. False if there is none.
    pub fn touch_active(&mut self, consumer: &[u8], now_ms: u64) -> bool {
        self.set_times(consumer, now_ms, Some(now_ms))
    }

    /// Entries were delivered to a consumer, for the first time: they are pending for it, and for no other.
    /// False without such a consumer. O(log n) for each.
    pub(super) fn deliver(&mut self, consumer: &[u8], ids: &[StreamId], now_ms: u64) -> bool {
        let Some((name, _)) = self.consumers.floor(consumer).filter(|(name, _)| ***name == *consumer) else {
            return false;
        };
        let name = name.clone();
        let Some(state) = self.consumers.get_mut(consumer) else { return false };
        let (state, mut known) = (state.make_mut(), false);
        for id in ids {
            // A group that was set back may have some of them pending already.
            if self.pending.get(id).is_some() {
                known = true;
                continue;
            }
            state.pending.insert(*id, ());
            self.pending.insert(*id, Pending { consumer: name.clone(), time_ms: now_ms, count: 1 });
            self.by_time.iter_mut().for_each(|index| index.insert((now_ms, *id), ()));
        }
        !known || ids.iter().all(|id| self.claim(consumer, *id, now_ms, 1))
    }

    /// Makes an entry pending for a consumer with this time and number of deliveries, and for no other
    /// consumer. False without such a consumer. O(log n).
    pub fn claim(&mut self, consumer: &[u8], id: StreamId, time_ms: u64, count: u64) -> bool {
        let Some((name, _)) = self.consumers.floor(consumer).filter(|(name, _)| ***name == *consumer) else {
            return false;
        };
        let name = name.clone();
        let before = self.pending.get(&id).map(|pending| (pending.consumer.clone(), pending.time_ms));
        before.iter().for_each(|(_, time_ms)| self.leave_out(*time_ms, id));
        match before.map(|(owner, _)| owner) {
            Some(owner) if owner == name => {}
            owner => {
                if let Some(old) = owner.and_then(|owner| self.consumers.get_mut(&*owner)) {
                    old.make_mut().pending.remove(&id);
                }
                if let Some(new) = self.consumers.get_mut(consumer) {
                    new.make_mut().pending.insert(id, ());
                }
            }
        }
        self.pending.insert(id, Pending { consumer: name, time_ms, count });
        self.put_in(time_ms, id);
        true
    }

    /// An entry is no longer pending. False if it was not. O(log n).
    pub fn ack(&mut self, id: StreamId) -> bool {
        let Some(pending) = self.pending.remove(&id) else { return false };
        self.leave_out(pending.time_ms, id);
        if let Some(consumer) = self.consumers.get_mut(&*pending.consumer) {
            consumer.make_mut().pending.remove(&id);
        }
        true
    }

    pub(super) fn check_invariants(&self) {
        self.pending.check_invariants();
        self.consumers.check_invariants();
        let mut pending = 0;
        for (name, consumer) in self.iter_consumers() {
            consumer.pending.check_invariants();
            let is_here = |id| self.pending(id).is_some_and(|found| found.consumer == *name);
            assert!(consumer.pending_from(StreamId::MIN).all(is_here), "J1");
            pending += consumer.pending_len();
        }
        assert_eq!(pending, self.pending_len(), "J1");
        self.by_time.iter().for_each(Tree::check_invariants);
        assert!(self.oldest().all(|(time, id)| self.pending(id).is_some_and(|it| it.time_ms == time)), "J2");
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Group) -> bool {
        (self.last_id, self.entries_read) == (other.last_id, other.entries_read)
            && self.pending_from(StreamId::MIN).eq(other.pending_from(StreamId::MIN))
            && self.iter_consumers().eq(other.iter_consumers())
    }
}

/// A group that is being changed. Its stream learns the group's new size at the end.
pub struct GroupMut<'a> {
    group: &'a mut Group,
    all_bytes: &'a mut usize,
    before: usize,
}

impl<'a> GroupMut<'a> {
    pub(super) fn new(group: &'a mut Group, all_bytes: &'a mut usize) -> GroupMut<'a> {
        let before = group.mem_bytes();
        GroupMut { group, all_bytes, before }
    }
}

impl Deref for GroupMut<'_> {
    type Target = Group;

    fn deref(&self) -> &Group {
        self.group
    }
}

impl DerefMut for GroupMut<'_> {
    fn deref_mut(&mut self) -> &mut Group {
        self.group
    }
}

impl Drop for GroupMut<'_> {
    fn drop(&mut self) {
        *self.all_bytes = *self.all_bytes + self.group.mem_bytes() - self.before;
    }
}
