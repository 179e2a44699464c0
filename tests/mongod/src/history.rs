//! A collection of a replica set: a history of changes, a majority that has only a part of it, and readers as
//! late as allowed.
//!
//! ```text
//! oplog   1 2 3 4 5 │ 6 7 8     ◄ applied here: `readConcern local` sees it; a failover may take it back
//!               │   └ committed: change streams report up to here
//!               └ seen by a late member: a majority read may be as old, unless it asks for a later time
//! ```
//!
//! So a read without `majority` can see changes that never happened, and a read without `afterClusterTime`
//! can see less than a stream has reported.

use mongodb::bson::{Bson, DateTime, Document, Timestamp, doc};
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Insert,
    Update,
    Replace,
    Delete,
    Drop,
    Rename,
    Noop,
}

/// One entry of the oplog.
#[derive(Clone, Debug)]
pub struct Entry {
    pub time: Timestamp,
    pub op: Op,
    pub id: Bson,
    /// The document after the write.
    pub document: Option<Document>,
    /// The number of the write, over all ids.
    pub version: i64,
}

/// A place in the stream of events: behind all up to a time, and so many events of the next.
pub type Place = (Timestamp, u32);

pub struct History {
    oplog: Vec<Entry>,
    committed: usize,
    now: Timestamp,
    version: i64,
    /// Start of the known places.
    begins: Timestamp,
    /// Writes get the time of the write before, as they are of one transaction.
    together: bool,
}

/// A key to compare values by: numbers by their value, whatever their type.
fn key(id: &Bson) -> String {
    match id {
        Bson::Int32(n) => format!("n{}", f64::from(*n)),
        Bson::Int64(n) => format!("n{}", *n as f64),
        Bson::Double(n) => format!("n{n}"),
        Bson::String(text) => format!("s{text}"),
        other => format!("{other:?}"),
    }
}

impl History {
    pub(crate) fn new() -> History {
        let start = Timestamp { time: 1_700_000_000, increment: 1 };
        let first = Entry { time: start, op: Op::Noop, id: Bson::Null, document: None, version: 0 };
        History { oplog: vec![first], committed: 1, now: start, version: 0, begins: start, together: false }
    }

    fn tick(&mut self) -> Timestamp {
        if self.together {
            return self.now;
        }
        self.now.increment += 1;
        if self.now.increment > 50 {
            self.now = Timestamp { time: self.now.time + 1, increment: 1 };
        }
        self.now
    }

    fn add(&mut self, op: Op, id: Bson, document: Option<Document>) -> i64 {
        self.version += 1;
        let (time, version) = (self.tick(), self.version);
        self.oplog.push(Entry { time, op, id, document, version });
        version
    }

    /// Writes a document, with the number of the write as `v`. Returns that number.
    pub fn write(&mut self, id: Bson, fields: Document) -> i64 {
        let exists = self.find(std::slice::from_ref(&id), self.oplog.len()).pop().is_some();
        let op = match (exists, self.version % 2) {
            (false, _) => Op::Insert,
            (true, 0) => Op::Update,
            _ => Op::Replace,
        };
        let mut document = doc! { "_id": id.clone(), "v": self.version + 1 };
        document.extend(fields);
        self.add(op, id, Some(document))
    }

    /// Writes documents that do not exist yet.
    pub fn insert(&mut self, ids: impl Iterator<Item = Bson>) {
        for id in ids {
            let document = doc! { "_id": id.clone(), "v": self.version + 1 };
            self.add(Op::Insert, id, Some(document));
        }
    }

    pub fn remove(&mut self, id: Bson) -> i64 {
        match self.find(std::slice::from_ref(&id), self.oplog.len()).pop() {
            Some(_) => self.add(Op::Delete, id, None),
            None => 0,
        }
    }

    /// Writes in one transaction: a majority has all of it or nothing, and its events have one time.
    pub fn transact(&mut self, writes: impl FnOnce(&mut History)) {
        self.tick();
        self.together = true;
        writes(self);
        self.together = false;
    }

    /// The length, extended to the end of the transaction of its last entry.
    pub fn whole(&self, mut len: usize) -> usize {
        while len < self.oplog.len() && self.oplog[len].time == self.oplog[len - 1].time {
            len += 1;
        }
        len
    }

    /// Drops or renames the collection.
    pub fn clear(&mut self, op: Op) {
        self.add(op, Bson::Null, None);
    }

    pub fn noop(&mut self) {
        let (time, version) = (self.tick(), self.version);
        self.oplog.push(Entry { time, op: Op::Noop, id: Bson::Null, document: None, version });
    }

    /// Gives a majority the first `n` more entries, or all there are.
    pub fn commit(&mut self, n: usize) {
        self.committed = self.whole(self.committed.saturating_add(n).min(self.oplog.len()));
    }

    pub fn uncommitted(&self) -> usize {
        self.oplog.len() - self.committed
    }

    /// A failover: changes without a majority are undone.
    pub fn roll_back(&mut self) {
        self.oplog.truncate(self.committed);
        self.noop();
        self.commit(1);
    }

    /// Cuts the oplog: no place up to now is known any more.
    pub fn forget(&mut self) {
        self.noop();
        self.commit(usize::MAX);
        self.begins = self.now;
    }

    pub fn begins(&self) -> Timestamp {
        self.begins
    }

    /// Whether a time is applied here, or a majority has it. An entry is written for a time that would not
    /// come by itself.
    pub fn reaches(&mut self, time: Timestamp, majority: bool) -> bool {
        if self.applied_time() < time {
            self.noop();
            self.commit(usize::MAX);
        }
        (if majority { self.committed_time() } else { self.applied_time() }) >= time
    }

    pub fn committed_time(&self) -> Timestamp {
        self.oplog[self.committed - 1].time
    }

    pub fn applied_time(&self) -> Timestamp {
        self.oplog[self.oplog.len() - 1].time
    }

    pub fn committed_len(&self) -> usize {
        self.committed
    }

    pub fn applied_len(&self) -> usize {
        self.oplog.len()
    }

    /// Number of entries up to a time.
    pub fn len_at(&self, time: Timestamp) -> usize {
        self.oplog.partition_point(|entry| entry.time <= time)
    }

    /// The documents with these ids, as the first `len` entries make them.
    pub fn find(&self, ids: &[Bson], len: usize) -> Vec<Document> {
        let wanted: std::collections::HashSet<String> = ids.iter().map(key).collect();
        let mut found: HashMap<String, Document> = HashMap::new();
        for entry in &self.oplog[..len] {
            let id = key(&entry.id);
            match (entry.op, &entry.document) {
                (Op::Drop | Op::Rename, _) => found.clear(),
                (Op::Noop, _) => {}
                _ if !wanted.contains(&id) => {}
                (_, Some(document)) => drop(found.insert(id, document.clone())),
                (_, None) => drop(found.remove(&id)),
            }
        }
        found.into_values().collect()
    }

    /// Number of entries reported by the events up to a place.
    fn len_told(&self, (time, events): Place) -> usize {
        let before = self.oplog.partition_point(|entry| entry.time < time);
        let mut left = events as usize;
        let told = self.oplog[before..self.len_at(time)].iter().take_while(|entry| {
            let all = entry.events().len() <= left;
            left = left.saturating_sub(entry.events().len());
            all
        });
        before + told.count()
    }

    /// The number of the last write that touched an id, of those reported up to a place.
    pub fn touched(&self, id: &Bson, told: Place) -> i64 {
        let id = key(id);
        let touches = |entry: &&Entry| match entry.op {
            Op::Drop | Op::Rename => true,
            Op::Noop => false,
            _ => key(&entry.id) == id,
        };
        self.oplog[..self.len_told(told).min(self.committed)]
            .iter()
            .rev()
            .find(touches)
            .map_or(0, |entry| entry.version)
    }

    /// The writes that touched an id: their numbers, whether the document existed afterwards, times, and
    /// whether a majority has them.
    pub fn versions(&self, id: &Bson) -> Vec<(i64, bool, Timestamp, bool)> {
        let id = key(id);
        let entries = self.oplog.iter().enumerate();
        let touching = entries.filter(|(_, entry)| match entry.op {
            Op::Drop | Op::Rename => true,
            Op::Noop => false,
            _ => key(&entry.id) == id,
        });
        let told = |(at, entry): (usize, &Entry)| {
            (entry.version, entry.document.is_some(), entry.time, at < self.committed)
        };
        touching.map(told).collect()
    }

    /// Whether some write from `version` on left the id as `document` says (None: removed), and a majority
    /// has it.
    pub fn was_ever(&self, id: &Bson, version: i64, v: Option<i64>) -> bool {
        let id = key(id);
        self.oplog[..self.committed].iter().filter(|entry| entry.version >= version).any(|entry| match entry
            .op
        {
            Op::Drop | Op::Rename => v.is_none(),
            Op::Noop => false,
            _ => key(&entry.id) == id && entry.document.as_ref().map(|_| entry.version) == v,
        })
    }

    /// Committed events behind a place, at most `limit`, with the place behind each; and whether the last
    /// ends the stream.
    pub fn events(&self, after: Place, limit: usize) -> (Vec<(Place, Document)>, bool) {
        let mut events = Vec::new();
        let start = self.oplog.partition_point(|entry| entry.time < after.0);
        let mut last = (after.0, 0);
        for entry in &self.oplog[start.min(self.committed)..self.committed] {
            for event in entry.events() {
                let place = (entry.time, if entry.time == last.0 { last.1 + 1 } else { 1 });
                last = place;
                if place <= after {
                    continue;
                }
                let ends = event.get_str("operationType").is_ok_and(|name| name == "invalidate");
                events.push((place, event));
                if ends {
                    return (events, true);
                }
                if events.len() >= limit {
                    return (events, false);
                }
            }
        }
        (events, false)
    }
}

impl Entry {
    fn events(&self) -> Vec<Document> {
        let ns = doc! { "db": "shop", "coll": "items" };
        // Any time would do. This one lets a test know which write an event reports.
        let wall = DateTime::from_millis(self.version);
        let event = |name: &str| doc! { "operationType": name, "clusterTime": self.time, "wallTime": wall, "ns": ns.clone() };
        let change = |name: &str| {
            let mut event = event(name);
            event.insert("documentKey", doc! { "_id": self.id.clone() });
            if let Some(document) = self.document.as_ref().filter(|_| name != "update") {
                event.insert("fullDocument", document.clone());
            }
            event
        };
        match self.op {
            Op::Insert => vec![change("insert")],
            Op::Update => vec![change("update")],
            Op::Replace => vec![change("replace")],
            Op::Delete => vec![change("delete")],
            Op::Drop => vec![event("drop"), event("invalidate")],
            Op::Rename => vec![event("rename"), event("invalidate")],
            Op::Noop => vec![],
        }
    }
}
