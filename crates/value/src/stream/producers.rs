//! Messages of idempotent producers that a stream remembers: the ID of each, and its entry.
//!
//! ```text
//! Producers ─┬─ by name: producer ─► Producer ─┬─ by its ID: ID ─► ID of the entry
//!            │                                 └─ by age: (ID of the entry, ID)
//!            └─ by newest: (ID of the newest entry, producer)
//! ```
//!
//! - D1: an ID is in a producer's list by age exactly if it is in the one by ID, with the same entry. The entry
//!   need not be in the stream any more.
//! - D2: each producer has an ID at least, and stands in the list by newest with its newest entry.
//! - D3: nothing is forgotten by a clock: the caller says up to which time. So two servers that are told the same
//!   remember the same.
//!
//! Cost: a message O(log n). It forgets [`FORGOTTEN`] IDs of its producer and as many old producers at most, so
//! the memory is that of what lives, and of what nobody asked about since. A copy is O(1).

use super::group::Name;
use super::id::StreamId;
use super::tree::{Item, Tree};
use crate::arc::{Arc, Blob};
use crate::limits::{STREAM_IDMP_DURATION, STREAM_IDMP_MAXSIZE};
use std::mem::size_of;

/// IDs, and producers, that a new message has forgotten at most.
const FORGOTTEN: usize = 8;

/// Settings: the time for which IDs are remembered, and their number for each producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembers {
    duration_s: u32,
    most: u32,
}

impl Remembers {
    /// The longest time, in seconds, and the largest number.
    pub const LONGEST_S: u32 = 86_400;
    pub const MOST: u32 = 10_000;

    /// Both numbers, brought into their limits.
    pub fn new(duration_s: u64, most: u64) -> Remembers {
        let within = |number: u64, limit: u32| number.clamp(1, u64::from(limit)) as u32;
        Remembers {
            duration_s: within(duration_s, Remembers::LONGEST_S),
            most: within(most, Remembers::MOST),
        }
    }

    /// Settings of streams that were told nothing else (`stream-idmp-duration`, `stream-idmp-maxsize`).
    pub fn usual() -> Remembers {
        Remembers::new(STREAM_IDMP_DURATION.get() as u64, STREAM_IDMP_MAXSIZE.get() as u64)
    }

    /// Seconds.
    pub fn duration_s(self) -> u64 {
        u64::from(self.duration_s)
    }

    /// IDs of each producer.
    pub fn most(self) -> u64 {
        u64::from(self.most)
    }

    /// The latest time whose messages are forgotten at another time.
    pub fn until_ms(self, now_ms: u64) -> Option<u64> {
        now_ms.checked_sub(self.duration_s() * 1000)
    }
}

impl Item for StreamId {}

/// A producer, with the IDs of its messages that are remembered.
#[derive(Clone)]
pub struct Producer {
    by_iid: Tree<Name, StreamId>,
    by_age: Tree<(StreamId, Name), ()>,
    /// Bytes of the IDs.
    iids_bytes: usize,
}

impl Item for Arc<Producer> {
    fn bytes(&self) -> u64 {
        self.mem_bytes() as u64
    }
}

impl Producer {
    fn new() -> Producer {
        Producer { by_iid: Tree::new(), by_age: Tree::new(), iids_bytes: 0 }
    }

    /// Number of IDs. O(1).
    pub fn len(&self) -> usize {
        self.by_iid.len()
    }

    /// True without IDs. No producer is empty once it is in its list (D2).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry of an ID. O(log n).
    pub fn get(&self, iid: &[u8]) -> Option<StreamId> {
        self.by_iid.get(iid).copied()
    }

    /// The IDs with their entries, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, StreamId)> {
        self.by_age.iter().map(|((id, iid), ())| (iid, *id))
    }

    /// Number of IDs whose entries are later than this time. O(log n).
    fn since(&self, until_ms: Option<u64>) -> usize {
        let before = |until: u64| self.by_age.sum_before(&(behind(until), Name::new(b""))).items as usize;
        self.len() - until_ms.map_or(0, before)
    }

    fn mem_bytes(&self) -> usize {
        let each = size_of::<(Name, StreamId)>() + size_of::<((StreamId, Name), ())>();
        size_of::<Producer>() + self.len() * each + self.iids_bytes
    }

    fn newest(&self) -> Option<StreamId> {
        self.by_age.last().map(|((id, _), ())| *id)
    }

    fn insert(&mut self, iid: &[u8], id: StreamId) {
        self.remove(iid);
        let iid = Name::new(iid);
        self.iids_bytes += Blob::alloc_size(iid.len());
        self.by_iid.insert(iid.clone(), id);
        self.by_age.insert((id, iid), ());
    }

    fn remove(&mut self, iid: &[u8]) {
        let Some((name, id)) = self.by_iid.floor(iid).filter(|(name, _)| ***name == *iid) else { return };
        let at = (*id, name.clone());
        self.by_iid.remove(iid);
        self.by_age.remove(&at);
        self.iids_bytes -= Blob::alloc_size(iid.len());
    }

    fn remove_oldest(&mut self) {
        if let Some(((_, iid), ())) = self.by_age.first() {
            let iid = iid.clone();
            self.remove(&iid);
        }
    }
}

/// The first ID behind a time.
fn behind(ms: u64) -> StreamId {
    StreamId::new(ms.saturating_add(1), 0)
}

/// All producers of a stream. See the module.
#[derive(Clone)]
pub struct Producers {
    remembers: Remembers,
    added: u64,
    repeated: u64,
    by_name: Tree<Name, Arc<Producer>>,
    by_newest: Tree<(StreamId, Name), ()>,
    /// Bytes of all producers and their names.
    bytes: usize,
}

impl Producers {
    pub(super) fn new(remembers: Remembers) -> Producers {
        let (by_name, by_newest) = (Tree::new(), Tree::new());
        Producers { remembers, added: 0, repeated: 0, by_name, by_newest, bytes: 0 }
    }

    /// Settings of what is remembered.
    pub fn remembers(&self) -> Remembers {
        self.remembers
    }

    /// Messages with an ID that were ever added, and those that were not because theirs was known.
    pub fn counts(&self) -> (u64, u64) {
        (self.added, self.repeated)
    }

    /// Sets both numbers.
    pub fn set_counts(&mut self, added: u64, repeated: u64) {
        (self.added, self.repeated) = (added, repeated);
    }

    /// Sets them. If that changes anything, all is forgotten: true. O(1); what
    /// is large is freed elsewhere.
    pub fn set(&mut self, remembers: Remembers) -> bool {
        let changes = self.remembers != remembers;
        if changes {
            let counts = self.counts();
            *self = Producers::new(remembers);
            self.set_counts(counts.0, counts.1);
        }
        changes
    }

    /// Number of producers, those included whose time is over. O(1).
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// True without producers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A producer. O(log n).
    pub fn get(&self, pid: &[u8]) -> Option<&Producer> {
        self.by_name.get(pid).map(|producer| &**producer)
    }

    /// The entry of a message that was added less than the time to remember ago. O(log n).
    pub fn find(&self, pid: &[u8], iid: &[u8], now_ms: u64) -> Option<StreamId> {
        let until_ms = self.remembers.until_ms(now_ms);
        self.get(pid)?.get(iid).filter(|id| until_ms.is_none_or(|until| id.ms > until))
    }

    /// All producers by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Producer)> {
        self.by_name.iter().map(|(name, producer)| (name, &**producer))
    }

    /// Numbers of producers and of IDs that are remembered now. O(producers · log n).
    pub fn live(&self, now_ms: u64) -> (usize, usize) {
        let until_ms = self.remembers.until_ms(now_ms);
        let from = (until_ms.map_or(StreamId::MIN, behind), Name::new(b""));
        let live = self.by_newest.iter_from(&from).filter_map(|((_, name), ())| self.get(name));
        live.fold((0, 0), |(pids, iids), producer| (pids + 1, iids + producer.since(until_ms)))
    }

    /// Remembers a message, and counts it. Forgets some of what is older than the time to remember, and what is
    /// too much (D3). O(log n).
    pub fn add(&mut self, pid: &[u8], iid: &[u8], id: StreamId, now_ms: u64) {
        self.added = self.added.saturating_add(1);
        let (until_ms, most) = (self.remembers.until_ms(now_ms), self.remembers.most as usize);
        self.change(pid, |producer| {
            producer.insert(iid, id);
            while producer.len() > most {
                producer.remove_oldest();
            }
            let Some(until_ms) = until_ms else { return };
            for _ in 0..FORGOTTEN {
                let is_old = producer.by_age.first().is_some_and(|((id, _), ())| id.ms <= until_ms);
                if !is_old || producer.len() == 1 {
                    break;
                }
                producer.remove_oldest();
            }
        });
        until_ms.into_iter().for_each(|until_ms| self.forget_old(pid, until_ms));
    }

    /// Remembers a message of a file. False if its ID is known, or it is one too many. O(log n).
    pub fn load(&mut self, pid: &[u8], iid: &[u8], id: StreamId) -> bool {
        let known = self.get(pid);
        if known.is_some_and(|known| known.get(iid).is_some() || known.len() >= self.remembers.most as usize)
        {
            return false;
        }
        self.change(pid, |producer| producer.insert(iid, id));
        true
    }

    /// Changes a producer, or makes it. It must not be empty behind that.
    fn change(&mut self, pid: &[u8], change: impl FnOnce(&mut Producer)) {
        let known = self.by_name.floor(pid).filter(|(name, _)| ***name == *pid).map(|(name, _)| name.clone());
        let name = known.unwrap_or_else(|| Name::new(pid));
        let mut producer = self.take(&name).unwrap_or_else(|| Arc::new(Producer::new()));
        change(producer.make_mut());
        self.bytes += bytes(&name, &producer);
        producer.newest().into_iter().for_each(|newest| self.by_newest.insert((newest, name.clone()), ()));
        self.by_name.insert(name, producer);
    }

    /// Takes a producer out of both lists.
    fn take(&mut self, name: &Name) -> Option<Arc<Producer>> {
        let producer = self.by_name.remove(&**name)?;
        self.bytes -= bytes(name, &producer);
        producer.newest().into_iter().for_each(|newest| _ = self.by_newest.remove(&(newest, name.clone())));
        Some(producer)
    }

    /// Forgets some producers whose last message is older than this, but not that one.
    fn forget_old(&mut self, but: &[u8], until_ms: u64) {
        for _ in 0..FORGOTTEN {
            let Some(((newest, name), ())) = self.by_newest.first() else { return };
            if newest.ms > until_ms || **name == *but {
                return;
            }
            let name = name.clone();
            self.take(&name);
        }
    }

    pub(super) fn mem_bytes(&self) -> usize {
        size_of::<Producers>() + self.bytes
    }

    pub(super) fn alone_bytes(&self) -> usize {
        if self.by_name.alone_bytes() > 0 { self.bytes } else { 0 }
    }

    pub(super) fn check_invariants(&self) {
        self.by_name.check_invariants();
        self.by_newest.check_invariants();
        assert_eq!(self.by_name.len(), self.by_newest.len(), "D2");
        for (name, producer) in self.iter() {
            producer.by_iid.check_invariants();
            producer.by_age.check_invariants();
            assert_eq!(producer.by_iid.len(), producer.by_age.len(), "D1");
            assert!(producer.iter().all(|(iid, id)| producer.get(iid) == Some(id)), "D1");
            let newest = producer.newest().expect("D2");
            assert!(self.by_newest.get(&(newest, name.clone())).is_some(), "D2");
            let iids: usize = producer.iter().map(|(iid, _)| Blob::alloc_size(iid.len())).sum();
            assert_eq!(producer.iids_bytes, iids);
        }
        let all: usize = self.by_name.iter().map(|(name, producer)| bytes(name, producer)).sum();
        assert_eq!(self.bytes, all);
    }
}

impl PartialEq for Producers {
    /// Compares all but the number of repeated messages, which is told late.
    fn eq(&self, other: &Producers) -> bool {
        let of = |all: &Producers| (all.remembers, all.added, all.len());
        of(self) == of(other)
            && self.iter().zip(other.iter()).all(|(a, b)| a.0 == b.0 && a.1.iter().eq(b.1.iter()))
    }
}

/// Bytes of a producer and its name.
fn bytes(name: &Name, producer: &Producer) -> usize {
    let places = size_of::<(Name, Arc<Producer>)>() + size_of::<((StreamId, Name), ())>();
    places + Blob::alloc_size(name.len()) + producer.mem_bytes()
}

#[cfg(test)]
mod tests {
    use super::super::Stream;
    use super::*;
    use crate::testing::{Rng, rounds};
    use std::collections::BTreeMap;

    fn id(ms: u64) -> StreamId {
        StreamId::new(ms, 0)
    }

    /// The dull model: by producer, its messages in the order of their entries.
    type Model = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, u64>>;

    #[test]
    fn what_is_remembered_is_what_a_dull_model_remembers() {
        for seed in 0..rounds(40) {
            let mut rng = Rng::new(seed);
            let (duration_s, most) = (1 + rng.below(3), 1 + rng.below(5));
            let (mut stream, mut model, mut now) = (Stream::new(), Model::new(), 100_000);
            let mut old = Vec::new();
            for _ in 0..200 {
                now += rng.below(700);
                let (pid, iid) = (vec![b'a' + rng.below(6) as u8], vec![b'0' + rng.below(9) as u8]);
                let until = now - duration_s * 1000;
                let expected = model.get(&pid).and_then(|iids| iids.get(&iid)).filter(|ms| **ms > until);
                let producers = stream.producers_mut(Remembers::new(duration_s, most));
                assert_eq!(producers.find(&pid, &iid, now), expected.map(|ms| id(*ms)));
                if expected.is_none() {
                    producers.add(&pid, &iid, id(now), now);
                    let iids = model.entry(pid).or_default();
                    iids.insert(iid, now);
                    while iids.len() > most as usize {
                        let oldest = iids.iter().min_by_key(|(_, ms)| **ms).map(|(iid, _)| iid.clone());
                        oldest.into_iter().for_each(|iid| _ = iids.remove(&iid));
                    }
                }
                let live = model.values().map(|iids| iids.values().filter(|ms| **ms > until).count());
                let live: Vec<usize> = live.filter(|count| *count > 0).collect();
                let found = stream.producers().map(|producers| producers.live(now));
                assert_eq!(found, Some((live.len(), live.iter().sum())));
                stream.check_invariants();
                if rng.below(20) == 0 {
                    old.push((stream.clone(), stream.mem_bytes()));
                }
            }
            for (stream, bytes) in old {
                stream.check_invariants();
                assert_eq!(stream.mem_bytes(), bytes, "a clone changed");
            }
        }
    }

    #[test]
    fn producers_that_went_leave_no_memory() {
        let mut stream = Stream::new();
        for now in 1..=20_000 {
            let producers = stream.producers_mut(Remembers::new(1, 100));
            producers.add(now.to_string().as_bytes(), b"1", id(now), now);
        }
        // Each lives a second, which is 1,000 of them.
        assert!(stream.producers().is_some_and(|producers| producers.len() <= 1_001));
        for now in 20_001..=40_000 {
            stream.producers_mut(Remembers::usual()).add(b"p", now.to_string().as_bytes(), id(now), now);
        }
        let (producers, bytes) = (stream.producers().expect("some"), stream.mem_bytes());
        assert_eq!((producers.len(), producers.get(b"p").map(Producer::len)), (1, Some(100)));
        assert!(bytes < 20_000, "{bytes}");
        stream.check_invariants();
    }

    #[test]
    fn other_settings_forget_everything_and_the_same_ones_nothing() {
        let mut stream = Stream::new();
        let producers = stream.producers_mut(Remembers::new(10, 100));
        producers.add(b"p", b"1", id(5_000), 5_000);
        assert!(!producers.set(Remembers::new(10, 100)) && producers.find(b"p", b"1", 6_000).is_some());
        assert!(producers.set(Remembers::new(10, 99)) && producers.find(b"p", b"1", 6_000).is_none());
        assert_eq!((producers.len(), producers.counts()), (0, (1, 0)));
        assert_eq!(Remembers::new(0, u64::MAX), Remembers { duration_s: 1, most: 10_000 });
    }

    #[test]
    fn a_file_may_not_name_an_id_twice_nor_too_many() {
        let mut stream = Stream::new();
        let producers = stream.producers_mut(Remembers::new(10, 2));
        assert!(producers.load(b"p", b"1", id(7)) && !producers.load(b"p", b"1", id(8)));
        assert!(producers.load(b"p", b"2", id(5)) && !producers.load(b"p", b"3", id(9)));
        assert!(producers.load(b"q", b"1", id(7)));
        assert_eq!(producers.counts(), (0, 0));
        stream.check_invariants();
        let bare = stream.without_producers();
        assert!(bare.producers().is_none() && stream.producers().is_some());
        assert!(bare.mem_bytes() < stream.mem_bytes());
    }
}
