//! Committing something long: intents in the shards, decided by one atomic step.
//!
//! ```text
//! record:  preparing ──► deciding ──► committed at n
//!              └──► aborted
//! shard:   intents: [ (record, its cells of this shard sorted by hash, how many of them are placed) ]
//! ```
//!
//! An overlay with many keys is committed in batches. For each key it read or wrote, the commit locks the
//! shard, checks that the key is unchanged since the snapshot, and covers it with an intent. One atomic word
//! then decides for all keys. Afterwards each key is *folded*: written to the table at LSN n.
//!
//! - I1: a key under an undecided intent is not written. A short writer aborts that record first
//!   ([`View::settle`]); a long one does so unless the record is older. So a validated key stays valid.
//! - I2: a record's LSN n is drawn after `deciding` (`record.rs`). A reader takes its position p with all its
//!   locks held and sees the record iff n ≤ p. A record undecided at that time gets n > p.
//! - I3: a writer folds a committed intent on its key first. So a key has at most one such intent.
//! - I4: an intent's cell is in its shard's list or taken. Only a holder of the shard's lock reaches it.
//! - I5: `Keyspace::intents` counts the records that may have intents. At 0 no shard is searched for any.
//! - I6: a commit that empties or exchanges databases does so with its decision, under all locks
//!   (`intent/deciding.rs`).
//! - I7: keys read in batches have a list of their own (`Cells::Read`), dropped after the decision.
//! - I8: keys are covered unseen if the shard has no intents of others and, for an overlay, no change since
//!   the snapshot. A bulk needs only the former. Expiries are checked at the decision.
//! - I9: an intent names a database by its number at placing. `Numbers` (`underway.rs`) has the current one.
//! - I10: a bulk counts a removed key when it is folded, as of the decision. Until then only emptying the
//!   table takes the key away (`cover`); it is counted in the old table.
//! - I11: if all keys must be new (MSETNX), each is looked at when covered. One that exists refuses the
//!   commit.
//!
//! Cost: placing and folding O(1) per key, in batches; a look-up O(records in the shard · log cells).

mod bulk;
mod deciding;

use crate::beside::Beside;
use crate::entry::Owned;
use crate::overlay::{Cell, Names, Overlay, Parts, ReadKeys, apply, is_live};
use crate::record::{Fate, Record};
use crate::sequence::{Lsn, Sequence, Snapshot};
use crate::tell::Announce;
use crate::underway::Numbers;
use crate::view::{Changes, View};
use crate::{Conflict, Keyspace};
pub(crate) use bulk::TakenAway;
pub use bulk::Words;
use bulk::{Bulk, FETCHES, Numbered, order};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stdx::hash::hash_bytes;
use stdx::locks::Bits;
use value::{Str, Value};

/// One key of a commit. The cell is gone once the key is folded.
pub(crate) struct Intent {
    pub(crate) hash: u64,
    pub(crate) db: u32,
    pub(crate) key: Box<[u8]>,
    pub(crate) cell: Option<Cell>,
}

/// A record's intents in one shard.
pub(crate) struct Placed {
    pub(crate) record: Arc<Record>,
    pub(crate) cells: Cells,
    /// Maps the record's databases to their current numbers (I9).
    numbers: Arc<Numbers>,
    /// How many cells are placed.
    upto: usize,
    /// The next cells are already being fetched into the cache.
    begun: bool,
}

/// A record's plans for the keys of one shard, sorted by hash.
pub(crate) enum Cells {
    /// Keys of an overlay.
    Full(Vec<Intent>),
    /// Keys of a bulk: hash and number of each. No key stands here twice.
    Bulk(Arc<Bulk>, Numbered),
    /// Keys that an overlay read in batches and did not write: hash and place of each (I7).
    Read(Arc<Names>, Vec<(u64, u32)>),
}

/// Marks a key of a bulk that is folded.
const FOLDED: u32 = u32::MAX;

/// The effect of folding on a key.
enum Decided<'a> {
    Cell(Cell),
    Word(&'a Bulk, usize),
}

impl Cells {
    fn len(&self) -> usize {
        match self {
            Cells::Full(cells) => cells.len(),
            Cells::Bulk(_, list) | Cells::Read(_, list) => list.len(),
        }
    }

    fn hash(&self, i: usize) -> u64 {
        match self {
            Cells::Full(cells) => cells[i].hash,
            Cells::Bulk(_, list) | Cells::Read(_, list) => list[i].0,
        }
    }

    fn is(&self, i: usize, db: usize, key: &[u8]) -> bool {
        match self {
            Cells::Full(cells) => {
                cells[i].cell.is_some() && cells[i].db as usize == db && *cells[i].key == *key
            }
            Cells::Bulk(bulk, list) => {
                list[i].1 != FOLDED && bulk.db == db && bulk.words.key(list[i].1 as usize) == key
            }
            Cells::Read(names, list) => names.at(list[i].1) == (db, key),
        }
    }

    fn writes(&self, i: usize) -> bool {
        match self {
            Cells::Full(cells) => cells[i].cell.as_ref().is_some_and(Cell::writes),
            Cells::Bulk(..) => true,
            Cells::Read(..) => false,
        }
    }

    fn only_read(&self) -> bool {
        matches!(self, Cells::Read(..))
    }

    /// The keys of a bulk that removes, and the bulk itself.
    fn removed(&mut self) -> Option<(&Arc<Bulk>, &mut Numbered)> {
        match self {
            Cells::Bulk(bulk, list) if bulk.removes() => Some((bulk, list)),
            _ => None,
        }
    }

    /// An empty list of the same kind.
    fn none_like(&self) -> Cells {
        match self {
            Cells::Read(names, _) => Cells::Read(names.clone(), Vec::new()),
            Cells::Full(_) | Cells::Bulk(..) => Cells::Full(Vec::new()),
        }
    }

    /// The new state of the key; `None` if it does not change.
    fn becomes(&self, i: usize) -> Option<Option<Owned>> {
        match self {
            Cells::Full(cells) => {
                cells[i].cell.as_ref().filter(|cell| cell.dirty).map(|cell| cell.now.clone())
            }
            Cells::Bulk(bulk, list) => {
                let value = bulk.words.value(list[i].1 as usize);
                Some(value.map(|bytes| Owned { value: Value::Str(Str::from_slice(bytes)), expire_ms: None }))
            }
            Cells::Read(..) => None,
        }
    }

    /// Whether each key must be looked at before it is covered (I11).
    fn only_new(&self) -> bool {
        matches!(self, Cells::Bulk(bulk, _) if bulk.words.only_new())
    }

    /// The bulk that these keys belong to, if any.
    fn bulk(&self) -> Option<Arc<Bulk>> {
        match self {
            Cells::Bulk(bulk, _) => Some(bulk.clone()),
            Cells::Full(_) | Cells::Read(..) => None,
        }
    }

    /// Takes what is to be done about a key. `bulk`: from [`Cells::bulk`].
    fn take<'a>(&mut self, i: usize, bulk: Option<&'a Bulk>) -> Option<Decided<'a>> {
        match self {
            Cells::Full(cells) => cells[i].cell.take().map(Decided::Cell),
            Cells::Bulk(_, list) => match std::mem::replace(&mut list[i].1, FOLDED) {
                FOLDED => None,
                word => bulk.map(|bulk| Decided::Word(bulk, word as usize)),
            },
            Cells::Read(..) => None,
        }
    }

    /// Database and name of a key that is not folded.
    fn key(&self, i: usize) -> Option<(usize, &[u8])> {
        match self {
            Cells::Full(cells) => cells[i].cell.is_some().then_some((cells[i].db as usize, &*cells[i].key)),
            Cells::Bulk(bulk, list) => {
                (list[i].1 != FOLDED).then(|| (bulk.db, bulk.words.key(list[i].1 as usize)))
            }
            Cells::Read(names, list) => Some(names.at(list[i].1)),
        }
    }

    /// The database of a key that is not folded and may have to be looked up in the table.
    fn db(&self, i: usize) -> Option<usize> {
        match self {
            Cells::Full(cells) => cells[i].cell.is_some().then_some(cells[i].db as usize),
            Cells::Bulk(bulk, list) => (list[i].1 != FOLDED).then_some(bulk.db),
            Cells::Read(..) => None,
        }
    }

    /// Fetches keys, and short strings they are set to, into the cache. They may lie in another core's cache,
    /// and not in the order of the hashes.
    fn prefetch(&self, which: Range<usize>, steps: Range<usize>) {
        match self {
            Cells::Full(cells) if steps.contains(&0) => cells[which].iter().for_each(Intent::prefetch),
            Cells::Bulk(bulk, list) => {
                // A folded key has no word; nothing is fetched for it.
                steps.for_each(|step| bulk.words.prefetch(&list[which.clone()], step));
            }
            Cells::Full(_) | Cells::Read(..) => {}
        }
    }

    /// Drops the last cell.
    fn pop(&mut self) {
        match self {
            Cells::Full(cells) => drop(cells.pop()),
            Cells::Bulk(_, list) | Cells::Read(_, list) => drop(list.pop()),
        }
    }
}

impl Intent {
    fn prefetch(&self) {
        let ends = self.key.as_ptr_range();
        stdx::cache::prefetch_at(ends.start);
        stdx::cache::prefetch_at(ends.end.wrapping_sub(1));
        if let Some(Owned { value: Value::Str(text), .. }) = self.cell.as_ref().and_then(Cell::current) {
            text.prefetch();
        }
    }
}

impl Placed {
    fn placed(&self) -> usize {
        self.upto.min(self.cells.len())
    }

    /// Keys that are not folded yet.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        (0..self.cells.len()).filter(|i| self.cells.key(*i).is_some()).count()
    }

    /// The first placed cell with this hash or a greater one.
    fn from(&self, hash: u64) -> usize {
        let (mut low, mut high) = (0, self.placed());
        while low < high {
            let middle = (low + high) / 2;
            if self.cells.hash(middle) < hash { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The place of a key's intent, unless it is folded.
    pub(crate) fn find(&self, db: usize, hash: u64, key: &[u8]) -> Option<usize> {
        let db = self.numbers.known(db)?;
        (self.from(hash)..self.placed())
            .take_while(|i| self.cells.hash(*i) == hash)
            .find(|i| self.cells.is(*i, db, key))
    }

    /// Visits the changed keys of a database in a range of hashes that are not folded, with what they become.
    pub(crate) fn each_within(
        &self,
        db: usize,
        (from, to): (u64, u64),
        f: &mut dyn FnMut(&[u8], Option<Owned>),
    ) {
        let Some(db) = self.numbers.known(db).filter(|_| !self.cells.only_read()) else { return };
        for i in (self.from(from)..self.placed()).take_while(|i| self.cells.hash(*i) <= to) {
            if let Some((_, key)) = self.cells.key(i).filter(|(at, _)| *at == db)
                && let Some(becomes) = self.cells.becomes(i)
            {
                f(key, becomes);
            }
        }
    }
}

/// The intents of one shard. Usually empty.
#[derive(Default)]
pub(crate) struct Intents(pub(crate) Vec<Placed>);

impl Intents {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a record that is not aborted has an intent on the key.
    pub(crate) fn cover(&self, sequence: &Sequence, db: usize, hash: u64, key: &[u8]) -> bool {
        self.0.iter().any(|p| p.find(db, hash, key).is_some() && p.record.fate(sequence) != Fate::Aborted)
    }

    /// The state of a key at `p` as made by a committed record that is not folded yet.
    pub(crate) fn at(
        &self,
        sequence: &Sequence,
        db: usize,
        hash: u64,
        key: &[u8],
        p: Lsn,
    ) -> Option<Option<Owned>> {
        self.0.iter().find_map(|placed| {
            let at = placed.find(db, hash, key)?;
            let seen = matches!(placed.record.fate(sequence), Fate::Committed(n) if n <= p);
            seen.then(|| placed.cells.becomes(at)).flatten()
        })
    }

    /// The intents of records committed up to `p`.
    pub(crate) fn made_by(&self, sequence: &Sequence, p: Lsn) -> impl Iterator<Item = &Placed> {
        self.0
            .iter()
            .filter(move |placed| matches!(placed.record.fate(sequence), Fate::Committed(n) if n <= p))
    }

    /// Takes the keys that bulks removed from databases about to be emptied, folded or not, with their
    /// databases. O(records).
    pub(crate) fn take_removed(&mut self, sequence: &Sequence, emptied: &[bool]) -> Vec<(usize, TakenAway)> {
        let committed = |placed: &&mut Placed| matches!(placed.record.fate(sequence), Fate::Committed(_));
        let taken = self.0.iter_mut().filter(committed).filter_map(|Placed { cells, numbers, .. }| {
            let (bulk, list) = cells.removed().filter(|(_, list)| !list.is_empty())?;
            let db = numbers.now(bulk.db).filter(|db| emptied[*db])?;
            Some((db, TakenAway(vec![(bulk.clone(), std::mem::take(list))])))
        });
        taken.collect()
    }

    fn remove(&mut self, record: &Arc<Record>) -> Option<Placed> {
        let at = self.0.iter().position(|placed| Arc::ptr_eq(&placed.record, record))?;
        Some(self.0.swap_remove(at))
    }

    /// Removes one of a record's two lists here: the keys it only read, or the others.
    fn remove_some(&mut self, record: &Arc<Record>, only_read: bool) -> Option<Placed> {
        let is_it = |p: &Placed| p.cells.only_read() == only_read && Arc::ptr_eq(&p.record, record);
        let at = self.0.iter().position(is_it)?;
        Some(self.0.swap_remove(at))
    }
}

/// The state of a commit.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// Call `advance` again.
    More,
    Committed(Lsn),
    /// A key it read has changed. Run again on a new snapshot.
    Lost,
}

enum Stage {
    /// The keys of a bulk are sorted into shards.
    Sorting(usize),
    Placing(usize),
    Folding(usize, Lsn),
    Withdrawing(usize),
}

/// A long commit under way. Call [`Commit::advance`] until it ends. A drop before that withdraws it.
pub struct Commit {
    keyspace: Arc<Keyspace>,
    /// Closed with the decision: otherwise folding would keep pre-images for it.
    snapshot: Option<Snapshot>,
    record: Arc<Record>,
    /// The earliest expiry of a key that it read as present.
    expires_ms: u64,
    parts: Vec<(usize, Cells)>,
    stage: Stage,
    counted: bool,
    bulk: Option<Arc<Bulk>>,
    /// Databases that are emptied with the decision, and those exchanged after that (I6).
    flushed: Vec<usize>,
    swaps: Vec<(usize, usize)>,
    /// A change that is made with the decision (beside B3).
    beside: Option<Box<dyn Beside>>,
    numbers: Arc<Numbers>,
    /// The client that made it lose (`stdx::doing`); 0 if none.
    lost_to: u64,
    /// How often listening had begun when its effects were noted (tell T7).
    epoch: u64,
}

impl Commit {
    /// O(keys).
    pub(crate) fn new(parts: Parts, age: u64, announce: Announce) -> Commit {
        let Parts { snapshot, ran_ms, shards, read, expires_ms, flushed, swaps, beside } = parts;
        let relied_on = |intent: &Intent| expiry_relied_on(intent.cell.as_ref()?, ran_ms);
        let expiries = shards.iter().flat_map(|(_, cells)| cells.iter().filter_map(relied_on));
        let expires_ms = expiries.fold(expires_ms, u64::min);
        let (keyspace, snapshot) = (snapshot.keyspace().clone(), Some(snapshot));
        let ReadKeys { names, places } = read;
        let read = places.into_iter().enumerate().filter(|(_, places)| !places.is_empty());
        let read = read.map(|(shard, places)| (shard, Cells::Read(names.clone(), places)));
        let full = shards.into_iter().map(|(shard, cells)| (shard, Cells::Full(cells)));
        let numbers = Numbers::new(keyspace.all_databases());
        Commit {
            keyspace,
            snapshot,
            record: Record::new(age, announce),
            expires_ms,
            parts: read.chain(full).collect(),
            stage: Stage::Placing(0),
            counted: false,
            bulk: None,
            flushed,
            swaps,
            beside,
            numbers,
            lost_to: 0,
            epoch: 0,
        }
    }

    /// A commit that sets or removes many keys, whatever they hold. It needs no snapshot. Each key is looked
    /// up and copied when it is folded. O(shards).
    pub fn bulk(
        keyspace: &Arc<Keyspace>,
        db: usize,
        words: Arc<dyn Words>,
        age: u64,
        announce: Announce,
    ) -> Commit {
        let epoch = keyspace.listen_epoch();
        let (bulk, announce) = (Bulk::new(words, db), keyspace.group(Vec::new(), announce));
        Commit {
            keyspace: keyspace.clone(),
            snapshot: None,
            record: Record::new(age, announce),
            expires_ms: u64::MAX,
            parts: (0..crate::SHARDS).map(|shard| (shard, Cells::Bulk(bulk.clone(), Vec::new()))).collect(),
            stage: Stage::Sorting(0),
            counted: false,
            bulk: Some(bulk),
            flushed: Vec::new(),
            swaps: Vec::new(),
            beside: None,
            numbers: Numbers::new(keyspace.all_databases()),
            lost_to: 0,
            epoch,
        }
    }

    /// How many keys a bulk removed that existed. Complete once it is committed.
    pub fn found(&self) -> usize {
        self.bulk.as_ref().map_or(0, |bulk| bulk.found.load(Ordering::Relaxed))
    }

    /// Whether it lost because a key exists that had to be new. A retry would lose again.
    pub fn is_refused(&self) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| bulk.refused.load(Ordering::Relaxed))
    }

    /// The author of the write that made it lose (`stdx::doing`); 0 if none.
    pub fn lost_to(&self) -> u64 {
        self.lost_to
    }

    /// The hashes of all keys, sorted. Must be asked before the first `advance`. O(keys · log keys).
    pub fn hashes(&self) -> Box<[u64]> {
        if let Some(Bulk { words, .. }) = self.bulk.as_deref() {
            let mut hashes: Vec<u64> = (0..words.len()).map(|i| hash_bytes(words.key(i))).collect();
            hashes.sort_unstable();
            return hashes.into();
        }
        let each = |cells: &Cells| (0..cells.len()).map(|i| cells.hash(i)).collect::<Vec<u64>>();
        let mut hashes: Vec<u64> = self.parts.iter().flat_map(|(_, cells)| each(cells)).collect();
        hashes.sort_unstable();
        hashes.into()
    }

    /// Whether it is committed, though perhaps not yet in the table.
    pub fn is_decided(&self) -> bool {
        matches!(self.stage, Stage::Folding(..))
    }

    /// Whether it may still be decided either way.
    pub fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Sorting(_) | Stage::Placing(_))
    }

    /// Aborts an undecided commit. `advance` then withdraws what it placed and returns `Lost`.
    pub fn give_up(&mut self) {
        if self.is_open() {
            self.record.end(&self.keyspace.sequence);
            self.stage = Stage::Withdrawing(0);
        }
    }

    /// Whether it is undecided and at least half of its shards are covered. Always false within one shard.
    pub fn is_half_covered(&self) -> bool {
        matches!(self.stage, Stage::Placing(part) if part > 0 && 2 * part >= self.parts.len())
    }

    /// Whether it is decided and at least half of its shards are folded. Always false within one shard.
    pub fn is_half_folded(&self) -> bool {
        matches!(self.stage, Stage::Folding(part, _) if part > 0 && 2 * part >= self.parts.len())
    }

    /// Does up to `keys` keys' worth of work, in one shard. Adds to `told` what must be told afterwards.
    pub fn advance(&mut self, now_ms: u64, keys: usize, told: &mut Vec<Changes>) -> Progress {
        let keyspace = self.keyspace.clone();
        if !self.counted {
            self.counted = true;
            keyspace.underway.add(&self.record, &self.numbers);
            keyspace.intents.fetch_add(1, Ordering::SeqCst);
            // Listening that begins from here on ends the record.
            if self.epoch != keyspace.listen_epoch() {
                self.give_up();
            }
        }
        match self.stage {
            Stage::Sorting(next) => {
                self.sort(next, keys * 8);
                Progress::More
            }
            Stage::Placing(part) if part == self.parts.len() => self.decide(&keyspace, now_ms, told),
            Stage::Placing(part) => {
                self.stage = self.place_some(&keyspace, part, (now_ms, keys), told);
                Progress::More
            }
            Stage::Folding(part, n) if part == self.parts.len() => {
                if self.bulk.as_ref().is_some_and(|bulk| !bulk.count_gone(&keyspace, keys)) {
                    return Progress::More;
                }
                self.uncount(&keyspace);
                Progress::Committed(n)
            }
            Stage::Folding(part, n) => {
                let mut view = View::locked(&keyspace, Bits::one(self.parts[part].0), 0, now_ms);
                if view.fold_some(&self.record, n, keys) {
                    self.stage = Stage::Folding(part + 1, n);
                }
                told.push(view.finish());
                Progress::More
            }
            Stage::Withdrawing(part) if part >= self.parts.len() => {
                self.uncount(&keyspace);
                Progress::Lost
            }
            Stage::Withdrawing(part) => {
                self.withdraw(&keyspace, part);
                self.stage = Stage::Withdrawing(part + 1);
                Progress::More
            }
        }
    }

    /// Places some intents of one shard, unless the commit has lost a race. Gives the next stage.
    fn place_some(
        &mut self,
        keyspace: &Arc<Keyspace>,
        part: usize,
        (now_ms, keys): (u64, usize),
        told: &mut Vec<Changes>,
    ) -> Stage {
        let (shard, cells) = &mut self.parts[part];
        if let Cells::Bulk(bulk, list) = cells {
            order(bulk, list);
        }
        let mut view = View::locked(keyspace, Bits::one(*shard), 0, now_ms);
        let open = self.record.fate(&keyspace.sequence) == Fate::Open;
        let current = self.snapshot.as_ref().is_none_or(Snapshot::is_current);
        let placed = match open && current {
            true => {
                let s = self.snapshot.as_ref().map_or(0, Snapshot::lsn);
                view.place((&self.record, &self.numbers), cells, (s, now_ms), keys)
            }
            false => Err(Conflict { by: self.record.ended_by() }),
        };
        told.push(view.finish());
        match placed {
            Ok(true) => Stage::Placing(part + 1),
            Ok(false) => Stage::Placing(part),
            Err(Conflict { by }) => {
                (self.snapshot, self.lost_to) = (None, by);
                self.record.end(&keyspace.sequence);
                Stage::Withdrawing(0)
            }
        }
    }

    /// Sorts the next keys of a bulk into shards.
    fn sort(&mut self, next: usize, count: usize) {
        let Some(bulk) = &self.bulk else { return };
        let end = (next + count).min(bulk.words.len());
        let fair = bulk.words.len() / crate::SHARDS;
        for i in next..end {
            let hash = hash_bytes(bulk.words.key(i));
            if let Cells::Bulk(_, list) = &mut self.parts[crate::shard_of(hash)].1 {
                if list.capacity() == 0 {
                    // Nearly always enough. The cap keeps a very large bulk from growing all lists at once.
                    list.reserve((fair + fair / 4 + 8).min(512));
                }
                list.push((hash, i as u32));
            }
        }
        self.stage = Stage::Sorting(end);
        if end == bulk.words.len() {
            self.parts.retain(|(_, cells)| cells.len() > 0);
            self.stage = Stage::Placing(0);
        }
    }

    fn withdraw(&mut self, keyspace: &Keyspace, part: usize) {
        let (shard, cells) = &mut self.parts[part];
        let placed = keyspace.shards.lock_one(*shard).get_mut(*shard).intents.remove(&self.record);
        let rest = std::mem::replace(cells, Cells::Full(Vec::new()));
        let bytes = 100 * (rest.len() + placed.as_ref().map_or(0, |placed| placed.cells.len()));
        stdx::reclaim::defer(bytes, move || drop((rest, placed)));
    }

    fn uncount(&mut self, keyspace: &Keyspace) {
        if std::mem::take(&mut self.counted) {
            keyspace.underway.remove(&self.record);
            keyspace.intents.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Commit {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        let keyspace = self.keyspace.clone();
        if let Fate::Committed(_) = self.record.end(&keyspace.sequence) {
            // The process is ending. A decided commit stays visible through its intents.
            return;
        }
        (0..self.parts.len()).for_each(|part| self.withdraw(&keyspace, part));
        self.uncount(&keyspace);
    }
}

impl View<'_> {
    /// Whether a shard of this view has intents. If so, `settle` its keys before anything else.
    #[inline]
    pub fn has_intents(&self) -> bool {
        self.keyspace().intents.load(Ordering::Relaxed) != 0 && self.any_intents()
    }

    /// Brings the tables up to date for some keys. Folds commits that the reader may see; for a writer, also
    /// aborts undecided ones. Must come before any read, with all keys of the command at once (I2).
    ///
    /// Cost: O(keys · records).
    pub fn settle(&mut self, keys: &[(usize, &[u8])], writes: bool) {
        let position = match writes {
            true => Lsn::MAX,
            false => self.keyspace().sequence.last(),
        };
        let hashes: Vec<u64> = keys.iter().map(|(_, key)| stdx::hash::hash_bytes(key)).collect();
        if writes {
            for ((db, key), hash) in keys.iter().zip(&hashes) {
                self.each_record(*db, *hash, key, &mut |record, sequence| {
                    record.end(sequence);
                });
            }
        }
        for ((db, key), hash) in keys.iter().zip(&hashes) {
            self.fold_key(*db, *hash, key, position);
        }
    }

    /// As `settle`, as a writer, for every intent of the locked shards. O(intents).
    pub fn settle_all(&mut self) {
        let records = self.records_held();
        for record in &records {
            if let Fate::Committed(n) = record.end(&self.keyspace().sequence) {
                while !self.fold_some(record, n, usize::MAX) {}
            }
        }
    }
}

/// The expiry of a key that was present, if the commit relies on it. A key that expired before the run was
/// absent to it.
pub(crate) fn expiry_relied_on(cell: &Cell, ran_ms: u64) -> Option<u64> {
    let base = cell.base.as_ref().filter(|base| is_live(base, ran_ms))?;
    cell.current().and(base.expire_ms)
}

impl Overlay {
    /// Makes a commit that can be done in pieces, for an overlay of many keys. The commit with the smaller
    /// `age` wins against other long commits. Cost: O(keys · log keys), no lock taken.
    pub fn seal(mut self, age: u64, announce: Announce) -> Commit {
        let (announce, epoch) = (self.announce_expired(announce), self.listen_epoch());
        let mut commit = Commit::new(self.into_parts(), age, announce);
        commit.epoch = epoch;
        commit
    }
}

impl View<'_> {
    fn any_intents(&self) -> bool {
        self.held().iter().any(|shard| self.shard(shard).is_some_and(|s| !s.intents.is_empty()))
    }

    /// Whether a long commit under way relies on a key or is about to write it.
    pub(crate) fn is_covered(&self, db: usize, key: &[u8]) -> bool {
        let hash = stdx::hash::hash_bytes(key);
        let shard = self.shard(crate::shard_of(hash)).filter(|shard| !shard.intents.is_empty());
        shard.is_some_and(|shard| shard.intents.cover(&self.keyspace().sequence, db, hash, key))
    }

    fn records_held(&self) -> Vec<Arc<Record>> {
        let mut records: Vec<Arc<Record>> = Vec::new();
        for placed in self.held().iter().filter_map(|i| self.shard(i)).flat_map(|shard| &shard.intents.0) {
            if !records.iter().any(|known| Arc::ptr_eq(known, &placed.record)) {
                records.push(placed.record.clone());
            }
        }
        records
    }

    fn each_record(&self, db: usize, hash: u64, key: &[u8], f: &mut dyn FnMut(&Record, &Sequence)) {
        let Some(shard) = self.shard(crate::shard_of(hash)) else { return };
        for placed in &shard.intents.0 {
            if placed.find(db, hash, key).is_some() {
                f(&placed.record, &self.keyspace().sequence);
            }
        }
    }

    /// Folds commits on a key up to `position` (I3).
    fn fold_key(&mut self, db: usize, hash: u64, key: &[u8], position: Lsn) {
        let shard = crate::shard_of(hash);
        loop {
            let keyspace = self.keyspace();
            let found = self.shard(shard).into_iter().flat_map(|s| s.intents.0.iter().enumerate()).find_map(
                |(i, placed)| {
                    let at = placed.find(db, hash, key).filter(|_| !placed.cells.only_read())?;
                    match placed.record.fate(&keyspace.sequence) {
                        Fate::Committed(n) if n <= position => Some((i, at, n, placed.record.owner)),
                        _ => None,
                    }
                },
            );
            let Some((i, at, n, owner)) = found else { return };
            let Some(cells) = self.shard_mut(shard).map(|s| &mut s.intents.0[i].cells) else { return };
            let bulk = cells.bulk();
            let Some(decided) = cells.take(at, bulk.as_deref()) else { return };
            self.fold((n, owner), db, hash, key, decided);
        }
    }

    /// Writes a key at its commit's LSN, on behalf of `owner`, the commit's author: another client may be the
    /// one that folds.
    fn fold(&mut self, (n, owner): (Lsn, u64), db: usize, hash: u64, key: &[u8], decided: Decided<'_>) {
        let write = |view: &mut Self, key: &[u8]| match decided {
            Decided::Cell(cell) => apply(view, key, cell),
            Decided::Word(bulk, word) => bulk.apply(view, key, word),
        };
        stdx::doing::within(owner, || self.write_at(n, db, hash, key, write));
    }

    /// Places up to `keys` more of a record's intents. True if all are placed.
    fn place(
        &mut self,
        (record, numbers): (&Arc<Record>, &Arc<Numbers>),
        cells: &mut Cells,
        (s, now_ms): (Lsn, u64),
        keys: usize,
    ) -> Result<bool, Conflict> {
        let none = Conflict { by: 0 };
        let Some(shard) = self.held().iter().next() else { return Err(none) };
        let Some(intents) = self.shard_mut(shard).map(|s| &mut s.intents) else { return Err(none) };
        let mut mine = intents.remove_some(record, cells.only_read()).unwrap_or_else(|| {
            let none = cells.none_like();
            let cells = std::mem::replace(cells, none);
            Placed { record: record.clone(), cells, numbers: numbers.clone(), upto: 0, begun: false }
        });
        let asks = mine.cells.only_new();
        let alone = !asks && intents.0.iter().all(|other| Arc::ptr_eq(&other.record, record));
        let whatever = matches!(mine.cells, Cells::Bulk(..));
        if alone && (whatever || self.shard(shard).is_some_and(|shard| shard.pre.len_at(s) == 0)) {
            // I8
            mine.upto = mine.cells.len();
        }
        let end = (mine.upto + keys).min(mine.cells.len());
        if asks {
            let next = mine.upto..end;
            self.prefetch(shard, &mut mine, next, end..end + keys);
        }
        let mut checked = Ok(());
        while mine.upto < end && checked.is_ok() {
            let (i, hash) = (mine.upto, mine.cells.hash(mine.upto));
            let Some((db, key)) = mine.cells.key(i) else { break };
            checked = self.make_way(record, db, hash, key, mine.cells.writes(i));
            let relied_on = match &mine.cells {
                Cells::Full(cells) => cells[i].cell.as_ref().is_some_and(|cell| cell.loaded),
                Cells::Bulk(..) => false,
                Cells::Read(..) => true,
            };
            if checked.is_ok()
                && relied_on
                && let Some(by) = self.changed_since(db, key, s)
            {
                checked = Err(Conflict { by });
            }
            if let Cells::Bulk(bulk, _) = &mine.cells
                && asks
                && checked.is_ok()
                && self.is_there(db, hash, key, now_ms)
            {
                bulk.refused.store(true, Ordering::Relaxed);
                checked = Err(Conflict { by: 0 });
            }
            mine.upto += usize::from(checked.is_ok());
        }
        let all = mine.upto == mine.cells.len();
        mine.begun &= !all;
        if let Some(shard) = self.shard_mut(shard) {
            shard.intents.0.push(mine);
        }
        checked.map(|()| all)
    }

    /// Whether the table has the key and it has not expired. Other commits have no intents on it.
    fn is_there(&self, db: usize, hash: u64, key: &[u8], now_ms: u64) -> bool {
        let Some(shard) = self.shard(crate::shard_of(hash)) else { return false };
        let entry = shard.dbs[db].find(hash, key);
        entry.is_some_and(|entry| entry.expire_ms().is_none_or(|at| at > now_ms))
    }

    /// Clears the way to cover a key (I1): ends younger undecided commits and folds committed ones. Fails if
    /// an older long commit wants the key.
    fn make_way(
        &mut self,
        record: &Arc<Record>,
        db: usize,
        hash: u64,
        key: &[u8],
        writes: bool,
    ) -> Result<(), Conflict> {
        let keyspace = self.keyspace();
        let mut folds = false;
        for placed in self.shard(crate::shard_of(hash)).into_iter().flat_map(|shard| &shard.intents.0) {
            if Arc::ptr_eq(&placed.record, record) {
                // A record may both read and write a key.
                continue;
            }
            let Some(at) = placed.find(db, hash, key) else { continue };
            match placed.record.fate(&keyspace.sequence) {
                Fate::Open if !writes && !placed.cells.writes(at) => {}
                Fate::Open if placed.record.age < record.age => {
                    return Err(Conflict { by: placed.record.owner });
                }
                Fate::Open => folds |= matches!(placed.record.end(&keyspace.sequence), Fate::Committed(_)),
                Fate::Committed(_) => folds = true,
                Fate::Aborted => {}
            }
        }
        if folds {
            self.fold_key(db, hash, key, Lsn::MAX);
        }
        Ok(())
    }

    /// Folds up to `keys` of a committed record's intents in the locked shards. True when none is left.
    fn fold_some(&mut self, record: &Arc<Record>, n: Lsn, keys: usize) -> bool {
        let mut left = keys;
        for shard in self.held().iter() {
            let Some(shard_mut) = self.shard_mut(shard) else { continue };
            if let Some(read) = shard_mut.intents.remove_some(record, true) {
                stdx::reclaim::defer(16 * read.cells.len(), move || drop(read));
            }
            let Some(mut mine) = shard_mut.intents.remove(record) else { continue };
            let end = mine.cells.len();
            let from = end.saturating_sub(left);
            self.prefetch(shard, &mut mine, from..end, from.saturating_sub(left)..from);
            let bulk = mine.cells.bulk();
            while left > 0 && mine.cells.len() > 0 {
                left -= 1;
                let last = mine.cells.len() - 1;
                self.fold_at(n, &mut mine, last, bulk.as_deref());
                mine.cells.pop();
            }
            if mine.cells.len() > 0 {
                if let Some(shard) = self.shard_mut(shard) {
                    shard.intents.0.push(mine);
                }
                return false;
            }
        }
        true
    }

    /// Fetches the lines and entries of the next keys (`which`) into the cache, and starts on those that come
    /// `then`. The lines fetched first lead to the entries fetched last.
    fn prefetch(&self, shard: usize, placed: &mut Placed, which: Range<usize>, then: Range<usize>) {
        let Some(shard) = self.shard(shard) else { return };
        let Placed { cells, numbers, begun, .. } = placed;
        let some = |which: Range<usize>| {
            let end = which.end.min(cells.len());
            which.start.min(end)..end.min(which.start + 64)
        };
        let (which, then) = (some(which), some(then));
        let first = if std::mem::replace(begun, true) { 0..0 } else { which.clone() };
        let keys =
            |which: Range<usize>| which.filter_map(|i| Some((numbers.now(cells.db(i)?)?, cells.hash(i))));
        for coming in [first, then] {
            cells.prefetch(coming.clone(), 0..FETCHES - 1);
            keys(coming).for_each(|(db, hash)| shard.dbs[db].prefetch_line(hash));
        }
        cells.prefetch(which.clone(), FETCHES - 1..FETCHES);
        keys(which).for_each(|(db, hash)| shard.dbs[db].prefetch_entry(hash));
    }

    /// Folds one intent. Does nothing if its table is gone (I9). `bulk`: from [`Cells::bulk`].
    fn fold_at(&mut self, n: Lsn, placed: &mut Placed, i: usize, bulk: Option<&Bulk>) {
        let (hash, at) = (placed.cells.hash(i), (n, placed.record.owner));
        let Some(db) = placed.cells.db(i).and_then(|known| placed.numbers.now(known)) else { return };
        match (&mut placed.cells, bulk) {
            (Cells::Full(cells), _) => {
                let Intent { key, cell, .. } = &mut cells[i];
                if let Some(cell) = cell.take() {
                    self.fold(at, db, hash, key, Decided::Cell(cell));
                }
            }
            (Cells::Bulk(_, list), Some(bulk)) => {
                let word = list[i].1 as usize;
                self.fold(at, db, hash, bulk.words.key(word), Decided::Word(bulk, word));
            }
            (Cells::Bulk(..) | Cells::Read(..), _) => {}
        }
    }

    /// Folds up to `keys` intents of each committed record in the locked shards. True if nothing is left.
    pub(crate) fn fold_committed(&mut self, keys: usize) -> bool {
        self.fold_upto(Lsn::MAX, keys)
    }

    /// The same of records committed up to `s`.
    pub(crate) fn fold_upto(&mut self, s: Lsn, keys: usize) -> bool {
        self.records_held().iter().all(|record| match record.fate(&self.keyspace().sequence) {
            Fate::Committed(n) if n <= s => self.fold_some(record, n, keys),
            Fate::Committed(_) | Fate::Open | Fate::Aborted => true,
        })
    }

    /// Commits a record that empties or exchanges whole tables. Ends every other undecided commit first.
    /// `None` if the record was ended before. All shards are locked.
    pub(crate) fn decide_last(&mut self, record: &Arc<Record>) -> Option<Lsn> {
        let keyspace = self.keyspace();
        if record.fate(&keyspace.sequence) != Fate::Open {
            return None;
        }
        keyspace.underway.end(&keyspace.sequence, Some(record));
        record.decide(&keyspace.sequence)
    }
}
