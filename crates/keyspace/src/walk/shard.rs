//! A walk's state in one shard: its position, and the entries that writes replaced ahead of it.

use super::{ENTRY_BYTES, Round, WalkEntry, WalkSink, WalkValue};
use crate::Keyspace;
use crate::entry::{EntryRef, Owned};
use crate::overlay::{Wide, WideEntry};
use crate::segment::{Directory, SHARD_BITS};
use crate::sequence::{Lsn, Sequence};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stdx::queue::Queue;
use stdx::sync::Mutex;
use value::{StrRef, Value};

/// Bytes of a kept entry beside its key and value, and of a key that is done.
const KEPT: usize = 96;
const DONE: usize = 16;
/// Bytes copied by a change of a shared value, on average at most.
const EDIT_BYTES: usize = 2048;
/// Short strings are given as texts.
const TEXT_MAX: usize = 320;

/// A write to a key, about to happen.
pub(crate) struct Write<'a> {
    pub(crate) db: usize,
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
    pub(crate) lsn: Lsn,
    /// The value is changed where it is: what is kept shares most with what it becomes.
    pub(crate) edits: bool,
}

/// All keys of a hash are done.
#[derive(Clone, Copy)]
struct Id(u64);

impl WideEntry for Id {
    const NONE: Id = Id(u64::MAX);

    #[inline]
    fn is_none(&self) -> bool {
        self.0 == u64::MAX
    }

    #[inline]
    fn half(&self) -> u32 {
        self.0 as u32
    }
}

/// Keys of a table that the walk passes over: their entries were kept, or there were none.
///
/// A hash stands for all its keys if no other key of the table had it and all is folded, for a key that comes
/// later was not there at `s`. Else a key is noted by its name.
#[derive(Default)]
struct Done {
    ids: Wide<Id>,
    names: HashSet<Box<[u8]>>,
    bytes: usize,
}

impl Done {
    fn has(&self, id: u64, key: &[u8]) -> bool {
        self.ids.find(id, |other| other.0 == id).is_some()
            || !self.names.is_empty() && self.names.contains(key)
    }

    /// Adds a key that is not there; how many bytes that takes.
    fn add(&mut self, id: u64, key: &[u8], by_name: bool) -> usize {
        let bytes = if by_name || Id(id).is_none() {
            self.names.insert(key.into());
            KEPT + key.len()
        } else {
            self.ids.insert(Id(id));
            DONE
        };
        self.bytes += bytes;
        bytes
    }
}

/// An entry that a write replaced.
struct KeptEntry {
    db: usize,
    key: Box<[u8]>,
    owned: Owned,
    access: u8,
    bytes: usize,
}

/// Entries that writes replaced in a shard.
#[derive(Default)]
pub(super) struct Queued {
    entries: Queue<KeptEntry>,
    /// Bytes that they keep alive since they were changed once more.
    more: usize,
}

impl Queued {
    /// Gives some to the sink, of so many entries' cost; what was spent, and whether none is left.
    pub(super) fn give(
        &mut self,
        round: &Round,
        shard: usize,
        most: usize,
        sink: &mut dyn WalkSink,
    ) -> (usize, bool) {
        let (mut spent, mut keys, mut bytes) = (0, 0, 0);
        while spent < most
            && let Some(KeptEntry { db, key, owned, access, bytes: kept }) = self.entries.pop_front()
        {
            let Owned { value, expire_ms } = owned;
            spent += give(sink, db, &key, as_text(&value).ok_or(&value), expire_ms, access);
            (keys, bytes) = (keys + 1, bytes + kept);
        }
        let empty = self.entries.is_empty();
        if empty {
            bytes += std::mem::take(&mut self.more);
        }
        round.gave(keys);
        round.give_back(shard, bytes);
        (spent.max(1), empty)
    }
}

fn as_text(value: &Value) -> Option<&[u8]> {
    match value {
        Value::Str(text) => match text.as_ref() {
            StrRef::Flat(bytes) if bytes.len() <= TEXT_MAX => Some(bytes),
            _ => None,
        },
        _ => None,
    }
}

/// Gives an entry to the sink; what that costs.
fn give(
    sink: &mut dyn WalkSink,
    db: usize,
    key: &[u8],
    value: Result<&[u8], &Value>,
    expire_ms: Option<u64>,
    access: u8,
) -> usize {
    let (value, len) = match value {
        Ok(text) => (WalkValue::Text(text), text.len()),
        Err(value) => (WalkValue::Value(value.clone()), 0),
    };
    sink.entry(WalkEntry { db, key, value, expire_ms, access });
    1 + (key.len() + len) / ENTRY_BYTES
}

/// A table that was emptied and is still walked (W5); a bulk may count in it meanwhile.
pub(crate) struct Given {
    table: Arc<Mutex<Directory>>,
    /// It waits to be freed.
    flushing: Arc<AtomicUsize>,
}

impl Given {
    pub(crate) fn new(table: &Arc<Mutex<Directory>>, flushing: &Arc<AtomicUsize>) -> Given {
        flushing.fetch_add(1, Ordering::Relaxed);
        Given { table: table.clone(), flushing: flushing.clone() }
    }

    /// Leaves the table to be freed elsewhere, unless another owner has it.
    fn free(mut self, keyspace: &Keyspace) {
        let table = std::mem::take(&mut self.table);
        keyspace.free_later(Arc::into_inner(table).map(Mutex::into_inner).into_iter().collect());
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.flushing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// See the module. Guarded by the lock of its shard.
pub(crate) struct ShardWalk {
    round: Arc<Round>,
    shard: usize,
    /// Keys before this database and hash are passed (W2).
    db: usize,
    at: u64,
    /// By the walk's number of the database, as in all that follows.
    done: HashMap<usize, Done>,
    queue: Queued,
    /// Large values in the queue, by hash: bytes that are counted of each, and all of it.
    large: HashMap<(usize, u64), (usize, usize)>,
    given: Vec<(usize, Given)>,
}

impl ShardWalk {
    pub(super) fn new(round: &Arc<Round>, shard: usize) -> ShardWalk {
        ShardWalk {
            round: round.clone(),
            shard,
            db: 0,
            at: first(shard),
            done: HashMap::new(),
            queue: Queued::default(),
            large: HashMap::new(),
            given: Vec::new(),
        }
    }

    pub(super) fn is_of(&self, round: &Arc<Round>) -> bool {
        Arc::ptr_eq(&self.round, round)
    }

    /// Leaves it to be freed elsewhere.
    pub(super) fn discard(self: Box<Self>) {
        let bytes = self.round.bytes_of(self.shard) as usize;
        if bytes + self.given.len() > 0 {
            stdx::reclaim::defer(bytes, move || drop(self));
        }
    }

    /// Keeps what a write is about to replace, if the walk needs it (W2). O(1)
    #[cold]
    pub(crate) fn keep(&mut self, sequence: &Sequence, dbs: &[Directory], write: &Write<'_>) {
        let Write { db, hash, key, lsn, edits } = *write;
        if lsn <= self.round.lsn || !self.round.is_live() {
            return;
        }
        let Some(known) = self.round.known(db).filter(|known| (*known, hash) >= (self.db, self.at)) else {
            return;
        };
        let (id, mask) = (hash & self.round.terms.mask, self.round.terms.mask);
        let done = self.done.entry(known).or_default();
        if done.has(id, key) {
            return self.weigh_again(sequence, (known, hash), edits);
        }
        // A key with the same hash may still have to be folded (W4).
        let by_name = self.round.is_folding() || dbs[db].has_twin(hash, key, mask);
        let mut bytes = done.add(id, key, by_name);
        if let Some(entry) = dbs[db].find(hash, key) {
            bytes += self.queue(known, hash, entry, edits);
        }
        self.count(sequence, bytes);
    }

    /// Puts an entry into the queue; how many bytes that keeps alive.
    fn queue(&mut self, known: usize, hash: u64, entry: EntryRef<'_>, edits: bool) -> usize {
        let (owned, access) = (entry.to_owned(), entry.access());
        let all = owned.value.mem_bytes();
        let alone = if edits { all.min(EDIT_BYTES) } else { owned.value.alone_bytes() };
        if all > alone + EDIT_BYTES {
            self.large.insert((known, hash), (alone, all));
        }
        let bytes = KEPT + entry.key().len() + alone;
        self.queue.entries.push_back(KeptEntry { db: known, key: entry.key().into(), owned, access, bytes });
        self.round.queue(self.shard);
        bytes
    }

    /// A key whose entry was kept is written once more: what is kept shares less with what it is now.
    fn weigh_again(&mut self, sequence: &Sequence, key: (usize, u64), edits: bool) {
        if self.large.is_empty() {
            return;
        }
        let Some((counted, all)) = self.large.get_mut(&key) else { return };
        let now = if edits { (*all).min(*counted + EDIT_BYTES) } else { *all };
        let more = now.saturating_sub(*counted);
        *counted += more;
        self.queue.more += more;
        self.count(sequence, more);
    }

    fn count(&mut self, sequence: &Sequence, bytes: usize) {
        if self.round.keep(self.shard, bytes) {
            // The walk has failed (W7).
            sequence.end_walk();
            let kept = (std::mem::take(&mut self.queue), std::mem::take(&mut self.done));
            stdx::reclaim::defer(self.round.bytes_of(self.shard) as usize, move || drop(kept));
        }
    }

    /// The queue, empty from here on.
    pub(super) fn take_queue(&mut self) -> Queued {
        self.round.unqueue(self.shard);
        self.large = HashMap::new();
        std::mem::take(&mut self.queue)
    }

    /// Whether it has not passed all of a database.
    pub(crate) fn wants(&self, known: usize) -> bool {
        self.db <= known
    }

    /// Takes over a table that was emptied (W5).
    pub(crate) fn give_table(&mut self, known: usize, table: Given) {
        self.given.push((known, table));
    }

    /// Gives the entries of the next lines, of so many entries' cost; what was spent, and whether all of the
    /// shard is passed.
    pub(super) fn walk_on(
        &mut self,
        dbs: &[Directory],
        most: usize,
        sink: &mut dyn WalkSink,
        keyspace: &Keyspace,
    ) -> (usize, bool) {
        let mut spent = 0;
        while spent < most {
            if self.db >= self.round.upto {
                return (spent, true);
            }
            let (cost, next) = match self.given.iter().find(|(known, _)| *known == self.db) {
                Some((_, Given { table, .. })) => self.line(&table.lock(), sink),
                None => match self.round.numbers.now(self.db) {
                    Some(now) => self.line(&dbs[now], sink),
                    None => (0, None),
                },
            };
            spent += 1 + cost;
            match next {
                Some(next) => self.at = next,
                None => self.pass(keyspace),
            }
        }
        (spent, self.db >= self.round.upto)
    }

    /// Gives the entries of the line it stands at; what that costs, and where the next one begins.
    fn line(&self, table: &Directory, sink: &mut dyn WalkSink) -> (usize, Option<u64>) {
        if table.len() == 0 {
            return (0, None);
        }
        let (at, mask) = (self.at, self.round.terms.mask);
        let done = self.done.get(&self.db);
        let (mut cost, mut keys) = (0, 0);
        let next = table.visit_line(at, &mut |hash, entry| {
            // A table that changed its form may have a line that began before.
            if hash < at || done.is_some_and(|done| done.has(hash & mask, entry.key())) {
                return;
            }
            keys += 1;
            let (db, key, expire_ms, access) = (self.db, entry.key(), entry.expire_ms(), entry.access());
            cost += match entry.text() {
                Some(text) => give(sink, db, key, Ok(text), expire_ms, access),
                None => give(sink, db, key, Err(&entry.to_owned().value), expire_ms, access),
            };
        });
        self.round.gave(keys);
        (cost, next)
    }

    /// The rest of a database is passed.
    fn pass(&mut self, keyspace: &Keyspace) {
        let known = self.db;
        (self.db, self.at) = (known + 1, first(self.shard));
        if let Some(done) = self.done.remove(&known) {
            self.round.give_back(self.shard, done.bytes);
            stdx::reclaim::defer(done.bytes, move || drop(done));
        }
        if let Some(at) = self.given.iter().position(|(given, _)| *given == known) {
            self.given.swap_remove(at).1.free(keyspace);
        }
    }
}

/// The first place of a shard in the hash order.
fn first(shard: usize) -> u64 {
    (shard as u64) << (64 - SHARD_BITS)
}
