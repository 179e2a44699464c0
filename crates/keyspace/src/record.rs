//! The word that decides a long commit (`intent.rs`), in one atomic step of any thread.
//!
//! ```text
//! preparing ──► deciding ──► committed at n
//!     └──► aborted
//! ```
//!
//! - I2: the LSN n is drawn after `deciding`, under the record's mutex, by the first thread that needs it. So
//!   all see the same n, and a reader that took its position before and saw `preparing` is older than n.
//!
//! `tests/models` runs this file, and broken variants of it, in every order of its steps.

use crate::sequence::{Lsn, Sequence};
use crate::tell::Announce;
use std::sync::Arc;
use stdx::sync::Mutex;
use stdx::sync::atomic::{AtomicU64, Ordering};

const PREPARING: u64 = 0;
const ABORTED: u64 = 1;
const DECIDING: u64 = 2;
/// Words from here on hold the LSN of a committed record, plus this number.
const COMMITTED: u64 = 3;

/// The state of one long commit. See the module.
pub(crate) struct Record {
    word: AtomicU64,
    /// The effects, until they are told. That is once, before the commit is visible.
    announce: Mutex<Announce>,
    /// When the work of this attempt first began. The older of two records wins.
    pub(crate) age: u64,
    /// The client it belongs to, and below the one that aborted it (`stdx::doing`).
    pub(crate) owner: u64,
    ended_by: std::sync::atomic::AtomicU64,
}

/// The state of a record, as another thread meets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Open,
    Aborted,
    Committed(Lsn),
}

impl Record {
    pub(crate) fn new(age: u64, announce: Announce) -> Arc<Record> {
        let (word, announce) = (AtomicU64::new(PREPARING), Mutex::new(announce));
        Arc::new(Record { word, announce, age, owner: stdx::doing::now(), ended_by: Default::default() })
    }

    /// The state of the record. Finishes a decision that is under way (I2).
    pub(crate) fn fate(&self, sequence: &Sequence) -> Fate {
        match self.word.load(Ordering::SeqCst) {
            PREPARING => Fate::Open,
            ABORTED => Fate::Aborted,
            DECIDING => {
                let mut announce = self.announce.lock();
                match self.word.load(Ordering::SeqCst) {
                    DECIDING => {
                        let n = sequence.draw_and_tell(announce.take());
                        self.word.store(n + COMMITTED, Ordering::SeqCst);
                        Fate::Committed(n)
                    }
                    word => Fate::Committed(word - COMMITTED),
                }
            }
            word => Fate::Committed(word - COMMITTED),
        }
    }

    /// Aborts the record if it is undecided. Returns its state.
    pub(crate) fn end(&self, sequence: &Sequence) -> Fate {
        let aborted = self.word.compare_exchange(PREPARING, ABORTED, Ordering::SeqCst, Ordering::SeqCst);
        if aborted.is_err() {
            return self.fate(sequence);
        }
        self.ended_by.store(stdx::doing::now(), Ordering::Relaxed);
        Fate::Aborted
    }

    /// The client that aborted it; 0 if unknown, or not yet noted.
    pub(crate) fn ended_by(&self) -> u64 {
        self.ended_by.load(Ordering::Relaxed)
    }

    /// Commits the record if it is undecided, at an LSN drawn now.
    pub(crate) fn decide(&self, sequence: &Sequence) -> Option<Lsn> {
        self.word.compare_exchange(PREPARING, DECIDING, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        match self.fate(sequence) {
            Fate::Committed(n) => Some(n),
            Fate::Open | Fate::Aborted => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_decided_once() {
        let sequence = Sequence::default();
        let record = Record::new(1, None);
        assert_eq!(record.fate(&sequence), Fate::Open);
        assert_eq!(record.decide(&sequence), Some(1));
        assert_eq!(record.end(&sequence), Fate::Committed(1));
        let other = Record::new(2, None);
        assert_eq!(other.end(&sequence), Fate::Aborted);
        assert_eq!(other.decide(&sequence), None);
        assert_eq!(sequence.last(), 1);
    }

    #[test]
    fn whoever_meets_a_deciding_record_finishes_it() {
        let sequence = Sequence::default();
        let record = Record::new(1, None);
        record.word.store(DECIDING, Ordering::SeqCst);
        assert_eq!(record.end(&sequence), Fate::Committed(1));
        assert_eq!(record.fate(&sequence), Fate::Committed(1));
    }
}
