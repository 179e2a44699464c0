//! Which transactions were told lately, and whether a snapshot sees them.
//!
//! ```text
//! COMMIT: the record is written ─► it may be decoded, sent and told ─► its backend leaves the list of those in progress
//!                                                      └──────── between: a load does not see it yet ────────┘
//! ```
//!
//! A commit counts for readers when its backend leaves that list, a little after its record was written, and much later if it waits
//! for a synchronous standby. So the feed may tell a change that a load begun afterwards still misses. Therefore:
//!
//! - T1: a transaction is in the list before its changes are told.
//! - T2: a load takes the list when it begins, and reads the rows and the snapshot they were read in with one statement. If one of
//!   those transactions touched an id of the load and the snapshot does not see it, the load reads again.
//! - T3: what some snapshot saw every later one sees: it leaves the list.
//!
//! Cost: an entry per told transaction, however long it is, until the next load or heartbeat. A load copies pointers.

use crate::{Change, Id};
use std::sync::{Arc, Mutex};

/// Ids remembered of a transaction; one that touched more may have touched any.
const IDS: usize = 64;

pub(super) struct Entry {
    xid: u32,
    /// None: any.
    ids: Option<Box<[Id]>>,
}

impl Entry {
    pub fn touched(&self, ids: &[Id]) -> bool {
        self.ids.as_ref().is_none_or(|mine| mine.iter().any(|id| ids.contains(id)))
    }
}

#[derive(Default)]
pub(super) struct Told(Mutex<Vec<Arc<Entry>>>);

impl Told {
    /// These changes are going to be told (T1); none: all rows.
    pub fn add(&self, xid: u32, changes: &[Change]) {
        let few = (1..=IDS).contains(&changes.len());
        let ids = few.then(|| changes.iter().map(|change| change.id.clone()).collect());
        let mut list = self.list();
        // A long one is told in many pieces.
        let known = list.last().is_some_and(|last| last.xid == xid && last.ids.is_none());
        if !known {
            list.push(Arc::new(Entry { xid, ids }));
        }
    }

    /// What was told up to now (T2).
    pub fn now(&self) -> Vec<Arc<Entry>> {
        self.list().clone()
    }

    /// Forgets what a snapshot sees (T3).
    pub fn seen(&self, snapshot: &Snapshot) {
        self.list().retain(|entry| !snapshot.sees(entry.xid));
    }

    /// Forgets everything: it is another database.
    pub fn clear(&self) {
        self.list().clear();
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Entry>>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// What a statement sees: everything before `xmin`, nothing from `xmax` on, and in between all but those in progress.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Snapshot {
    xmin: u64,
    xmax: u64,
    pub in_progress: Vec<u64>,
}

impl Snapshot {
    /// Reads `xmin:xmax:xid,xid…`.
    pub fn parse(text: &str) -> Option<Snapshot> {
        let mut parts = text.splitn(3, ':');
        let (xmin, xmax, list) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?);
        let xids = list.split(',').filter(|xid| !xid.is_empty());
        let in_progress = xids.map(|xid| xid.parse().ok()).collect::<Option<_>>()?;
        Some(Snapshot { xmin, xmax, in_progress })
    }

    /// Whether a transaction that was told is seen. The feed has the lower half of its number: it is the one nearest to here.
    pub fn sees(&self, xid: u32) -> bool {
        let distance = xid.wrapping_sub(self.xmax as u32) as i32;
        self.has_ended(self.xmax.saturating_add_signed(distance.into()))
    }

    pub fn has_ended(&self, xid: u64) -> bool {
        xid < self.xmin || (xid < self.xmax && !self.in_progress.contains(&xid))
    }

    /// Whether everything is seen that those who were told touched these ids did.
    pub fn sees_all(&self, told: &[Arc<Entry>], ids: &[Id]) -> bool {
        told.iter().all(|entry| self.sees(entry.xid) || !entry.touched(ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_what_ended_before() {
        let snapshot = Snapshot::parse("10:20:10,15").unwrap();
        let seen: Vec<u32> = (5..25).filter(|xid| snapshot.sees(*xid)).collect();
        assert_eq!(seen, [5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19]);
        assert_eq!(Snapshot::parse("7:7:"), Some(Snapshot { xmin: 7, xmax: 7, in_progress: vec![] }));
        for bad in ["", "7", "7:7", "7:x:", "7:7:1,x"] {
            assert_eq!(Snapshot::parse(bad), None);
        }
        // Half of the number, on both sides of a wrap.
        let wrapped = Snapshot::parse("4294967290:4294967300:4294967295").unwrap();
        assert!(wrapped.sees(u32::MAX - 1) && !wrapped.sees(u32::MAX) && wrapped.sees(3) && !wrapped.sees(4));
    }

    #[test]
    fn what_is_told_stays_until_it_is_seen() {
        let change = |id: &str| Change { id: id.as_bytes().into(), committed_ms: None };
        let ids = |ids: &[&str]| -> Vec<Id> { ids.iter().map(|id| id.as_bytes().into()).collect() };
        let told = Told::default();
        told.add(12, &[change("a")]);
        told.add(15, &[change("b")]);
        let all = told.now();
        let blind = Snapshot::parse("10:20:15").unwrap();
        assert!(blind.sees_all(&all, &ids(&["a"])) && !blind.sees_all(&all, &ids(&["a", "b"])));
        told.seen(&blind);
        assert_eq!(told.now().len(), 1);
        told.add(15, &[]);
        told.add(15, &[change("c")]);
        assert!(!blind.sees_all(&told.now(), &ids(&["a"])) && told.now().len() == 2);
        told.seen(&Snapshot::parse("20:20:").unwrap());
        assert!(told.now().is_empty());
    }
}
