//! Recently reported transactions, and whether a snapshot sees them.
//!
//! ```text
//! COMMIT: record written ─► it may be decoded, sent and reported ─► its backend leaves the list
//!                                           └─── between: a load does not see it yet ───┘
//! ```
//!
//! Readers see a commit when its backend leaves the list of transactions in progress. This is a little after
//! its record was written, and much later if it waits for a synchronous standby. So the feed may report a
//! change that a load begun afterwards still misses. Therefore:
//!
//! - T1: a transaction is in the list here before its changes are reported.
//! - T2: a load takes the list when it begins, and reads rows and snapshot with one statement. If a listed
//!   transaction touched an id of the load and the snapshot does not see it, the load reads again.
//! - T3: a transaction that some snapshot saw is seen by every later one, so it leaves the list.
//!
//! Cost: an entry per reported transaction, however long it is, until the next load or heartbeat. A load
//! copies pointers.

use crate::{Change, Id};
use std::sync::{Arc, Mutex};

/// Ids remembered of a transaction; one that touched more may have touched any.
const IDS: usize = 64;

pub(super) struct Entry {
    xid: u32,
    /// None: it may have touched any row.
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
    /// Adds changes that are about to be reported (T1); no changes: all rows.
    pub fn add(&self, xid: u32, changes: &[Change]) {
        let few = (1..=IDS).contains(&changes.len());
        let ids = few.then(|| changes.iter().map(|change| change.id.clone()).collect());
        let mut list = self.list();
        // A long transaction is reported in many pieces.
        let known = list.last().is_some_and(|last| last.xid == xid && last.ids.is_none());
        if !known {
            list.push(Arc::new(Entry { xid, ids }));
        }
    }

    /// All transactions reported up to now and not seen since (T2).
    pub fn now(&self) -> Vec<Arc<Entry>> {
        self.list().clone()
    }

    /// Forgets the transactions that a snapshot sees (T3).
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

/// The transactions a statement sees: all before `xmin`, none from `xmax` on, and in between all but those in
/// progress.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Snapshot {
    xmin: u64,
    xmax: u64,
    pub in_progress: Vec<u64>,
}

impl Snapshot {
    /// Reads `xmin:xmax:xid,xid…`; None: malformed.
    pub fn parse(text: &str) -> Option<Snapshot> {
        let mut parts = text.splitn(3, ':');
        let (xmin, xmax, list) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?);
        let xids = list.split(',').filter(|xid| !xid.is_empty());
        let in_progress = xids.map(|xid| xid.parse().ok()).collect::<Option<_>>()?;
        Some(Snapshot { xmin, xmax, in_progress })
    }

    /// Whether a reported transaction is seen. The feed knows only the lower half of its number; the nearest
    /// full number is taken.
    pub fn sees(&self, xid: u32) -> bool {
        let distance = xid.wrapping_sub(self.xmax as u32) as i32;
        self.has_ended(self.xmax.saturating_add_signed(distance.into()))
    }

    pub fn has_ended(&self, xid: u64) -> bool {
        xid < self.xmin || (xid < self.xmax && !self.in_progress.contains(&xid))
    }

    /// Whether every reported transaction that touched these ids is seen.
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
