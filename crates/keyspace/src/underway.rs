//! Long commits under way, and the numbers their databases have today. So whole tables are emptied or
//! exchanged without a look at what is still to be written into them.
//!
//! ```text
//!   a commit's Numbers    as known (at placing): 0 1 2      SWAPDB 0 1: 1 0 2      FLUSHDB 1: - 0 2
//! ```
//!
//! - N1: a commit is listed from before its first intent until after its last. Replacing tables first ends
//!   all undecided commits, so an undecided one uses the numbers of today. A commit that is undecided after
//!   that came later and has no intents yet.
//! - N2: numbers change with all shards locked, and are read with the lock of some shard held.
//! - N3: writes into a table that is gone have no number. They are never found, and dropped instead of
//!   folded.
//!
//! Cost of replacing a table: O(commits under way).

use crate::record::{Fate, Record};
use crate::sequence::Sequence;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use stdx::sync::Mutex;

/// No number: the table is gone, or it came later.
const NONE: u32 = u32::MAX;

/// Maps the database numbers of a commit to the current ones, and back.
pub(crate) struct Numbers {
    now: Box<[AtomicU32]>,
    known: Box<[AtomicU32]>,
}

fn at(numbers: &[AtomicU32], i: usize) -> Option<usize> {
    let number = numbers.get(i)?.load(Ordering::Relaxed);
    (number != NONE).then_some(number as usize)
}

fn set(numbers: &[AtomicU32], i: Option<usize>, to: Option<usize>) {
    if let Some(number) = i.and_then(|i| numbers.get(i)) {
        number.store(to.map_or(NONE, |to| to as u32), Ordering::Relaxed);
    }
}

impl Numbers {
    /// Numbers that have not changed. O(databases).
    pub(crate) fn new(databases: usize) -> Arc<Numbers> {
        let each = || (0..databases as u32).map(AtomicU32::new).collect();
        Arc::new(Numbers { now: each(), known: each() })
    }

    /// The current number of a database that the commit knows as `known`. `None`: it was emptied (N3).
    pub(crate) fn now(&self, known: usize) -> Option<usize> {
        at(&self.now, known)
    }

    /// The commit's number for the current database `now`. `None`: it was emptied since.
    pub(crate) fn known(&self, now: usize) -> Option<usize> {
        at(&self.known, now)
    }

    pub(crate) fn empty(&self, db: usize) {
        set(&self.now, self.known(db), None);
        set(&self.known, Some(db), None);
    }

    pub(crate) fn swap(&self, a: usize, b: usize) {
        let (was_a, was_b) = (self.known(a), self.known(b));
        set(&self.known, Some(a), was_b);
        set(&self.known, Some(b), was_a);
        set(&self.now, was_a, Some(b));
        set(&self.now, was_b, Some(a));
    }
}

/// The list of long commits under way. See the module.
pub(crate) struct Underway {
    list: Mutex<Vec<(Arc<Record>, Arc<Numbers>)>>,
}

impl Default for Underway {
    fn default() -> Underway {
        Underway { list: Mutex::new(Vec::new()) }
    }
}

impl Underway {
    pub(crate) fn add(&self, record: &Arc<Record>, numbers: &Arc<Numbers>) {
        self.list.lock().push((record.clone(), numbers.clone()));
    }

    pub(crate) fn remove(&self, record: &Arc<Record>) {
        self.list.lock().retain(|(other, _)| !Arc::ptr_eq(other, record));
    }

    /// Ends all undecided commits except `but`. Call it before tables are replaced (N1).
    pub(crate) fn end(&self, sequence: &Sequence, but: Option<&Arc<Record>>) {
        for (record, _) in self.list.lock().iter().filter(|(record, _)| !is(record, but)) {
            record.end(sequence);
        }
    }

    /// Notes that databases are emptied. `but`: a commit that means the databases as they are after this.
    pub(crate) fn empty(&self, sequence: &Sequence, dbs: &[usize], but: Option<&Arc<Record>>) {
        self.each_decided(sequence, |record, numbers| {
            if !is(record, but) {
                dbs.iter().for_each(|db| numbers.empty(*db));
            }
        });
    }

    /// Notes that two databases are exchanged.
    pub(crate) fn swap(&self, sequence: &Sequence, a: usize, b: usize) {
        self.each_decided(sequence, |_, numbers| numbers.swap(a, b));
    }

    fn each_decided(&self, sequence: &Sequence, mut f: impl FnMut(&Arc<Record>, &Numbers)) {
        for (record, numbers) in self.list.lock().iter() {
            if record.fate(sequence) != Fate::Open {
                f(record, numbers);
            }
        }
    }
}

fn is(record: &Arc<Record>, other: Option<&Arc<Record>>) -> bool {
    other.is_some_and(|other| Arc::ptr_eq(record, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the numbers with the tables themselves.
    #[test]
    fn numbers_follow_their_tables() {
        let mut dice = 7u64;
        let mut below = |n: usize| {
            dice = stdx::hash::hash_u64(dice);
            dice as usize % n
        };
        for _ in 0..200 {
            let numbers = Numbers::new(4);
            let mut tables: Vec<Option<usize>> = (0..4).map(Some).collect();
            for _ in 0..12 {
                let (a, b) = (below(4), below(4));
                match below(4) {
                    0 => {
                        tables[a] = None;
                        numbers.empty(a);
                    }
                    _ => {
                        tables.swap(a, b);
                        numbers.swap(a, b);
                    }
                }
                for i in 0..4 {
                    assert_eq!(numbers.known(i), tables[i]);
                    assert_eq!(numbers.now(i), tables.iter().position(|table| *table == Some(i)));
                }
            }
            assert_eq!((numbers.now(4), numbers.known(4)), (None, None));
        }
    }
}
