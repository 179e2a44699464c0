//! Long commits under way, and what the databases they mean are called now: whole tables are emptied or exchanged without a look
//! at what is still to be written into them.
//!
//! ```text
//! a commit's Numbers    known (when it placed its intents): 0 1 2      SWAPDB 0 1: 1 0 2      FLUSHDB 1: - 0 2
//! ```
//!
//! - N1: a commit stands here from before its first intent until after its last. While it is undecided its numbers are those of
//!   everybody: who replaces tables ends all commits that are undecided first. One that is undecided still came after that, and
//!   has no intents yet.
//! - N2: numbers change with all shards locked, and are read with the lock of some shard held.
//! - N3: what was to be written into a table that is gone has no number: nobody finds it, and it is dropped instead of folded.
//!
//! Cost of replacing a table: O(commits under way).

use crate::record::{Fate, Record};
use crate::sequence::Sequence;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use stdx::sync::Mutex;

/// No number: the table is gone, or has come since.
const NONE: u32 = u32::MAX;

/// What a commit's databases are called now, and what it knows those of today by.
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
    /// Every database is called what it is known by. O(databases).
    pub(crate) fn new(databases: usize) -> Arc<Numbers> {
        let each = || (0..databases as u32).map(AtomicU32::new).collect();
        Arc::new(Numbers { now: each(), known: each() })
    }

    /// What a database is called now; None: it was emptied (N3).
    pub(crate) fn now(&self, known: usize) -> Option<usize> {
        at(&self.now, known)
    }

    /// What a database is known by; None: it was emptied since.
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

/// See the module.
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

    /// Before tables are replaced: ends what is undecided, but for one (N1).
    pub(crate) fn end(&self, sequence: &Sequence, but: Option<&Arc<Record>>) {
        for (record, _) in self.list.lock().iter().filter(|(record, _)| !is(record, but)) {
            record.end(sequence);
        }
    }

    /// Databases are emptied. One commit may mean what they are from then on.
    pub(crate) fn empty(&self, sequence: &Sequence, dbs: &[usize], but: Option<&Arc<Record>>) {
        self.each_decided(sequence, |record, numbers| {
            if !is(record, but) {
                dbs.iter().for_each(|db| numbers.empty(*db));
            }
        });
    }

    /// Two databases are exchanged.
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

    /// Against the tables themselves: which one stands at which number.
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
