//! The decision of a long commit, with all that happens at that moment besides its keys.

use super::{Commit, Progress, Stage};
use crate::beside::BESIDE;
use crate::sequence::{Lsn, Snapshot};
use crate::view::{Changes, View};
use crate::{Keyspace, SHARDS};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stdx::locks::Bits;

impl Commit {
    /// Decides the commit, unless it has lost a race.
    pub(super) fn decide(
        &mut self,
        keyspace: &Arc<Keyspace>,
        now_ms: u64,
        told: &mut Vec<Changes>,
    ) -> Progress {
        // A flush of whole tables has aborted the record, or comes after it.
        let current = self.snapshot.take().is_none_or(|snapshot: Snapshot| snapshot.is_current());
        let due = now_ms >= self.expires_ms || !current;
        if let Some(bulk) = &self.bulk {
            bulk.decided_ms.store(now_ms, Ordering::Relaxed);
        }
        let decided = match due {
            true => None,
            false if self.replaces() || self.beside.is_some() => self.decide_locked(keyspace, now_ms, told),
            false => self.record.decide(&keyspace.sequence),
        };
        match decided {
            Some(n) => self.stage = Stage::Folding(0, n),
            None => {
                self.lost_to = self.record.ended_by();
                self.record.end(&keyspace.sequence);
                self.stage = Stage::Withdrawing(0);
            }
        }
        Progress::More
    }

    /// Whether it empties or exchanges databases.
    fn replaces(&self) -> bool {
        !self.flushed.is_empty() || !self.swaps.is_empty()
    }

    /// Decides it together with what is no key of it (I6, beside B3).
    fn decide_locked(
        &mut self,
        keyspace: &Arc<Keyspace>,
        now_ms: u64,
        told: &mut Vec<Changes>,
    ) -> Option<Lsn> {
        let replaces = self.replaces();
        let shards = if replaces { Bits::below(SHARDS) } else { Bits::one(BESIDE) };
        let mut view = View::locked(keyspace, shards, 0, now_ms);
        let holds = self.beside.as_ref().is_none_or(|beside| beside.holds());
        let decided = match (holds, replaces) {
            (false, _) => None,
            (true, true) => view.decide_and_replace(&self.record, &self.flushed, &self.swaps),
            (true, false) => self.record.decide(&keyspace.sequence),
        };
        if let (Some(beside), Some(lsn)) = (&self.beside, decided) {
            beside.make();
            keyspace.note_recent_beside(lsn);
            keyspace.changed_beside();
        }
        told.push(view.finish());
        decided
    }
}
