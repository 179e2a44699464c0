//! The contents of another keyspace in place of this one's, in one step: a full copy that was loaded beside the
//! data.
//!
//! ```text
//! loader ──► other keyspace ─┐
//! readers ─► this keyspace ──┴─► all locks: tables and counts change places ─► readers see the new data
//!                                    └─► old tables: the walk under way, then the reclaimer
//! ```
//!
//! - TO1: only visible databases change. Hidden ones, the rows of sources, stay.
//! - TO2: watchers, snapshots, overlays and blocked clients see an exchange of every database (SWAPDB).
//!   Long commits and a walk see that every database was emptied (`whole.rs`): decided keys that are not
//!   folded go with the old tables, and the walk gets these.
//! - TO3: a sink is told nothing of it: the caller ends the log before, and begins it anew behind it.
//! - TO4: counts are replaced and never zero in between, so that DBSIZE sees the old data or the new.

use super::*;

impl Keyspace {
    /// Puts the visible databases of another keyspace, which nobody uses any more, in place of this one's
    /// (TO1 to TO4). `beside` is made at the same LSN. Returns what must be told.
    ///
    /// Cost: all locks meanwhile, for O(shards · databases that ever had keys).
    pub fn take_over(&self, other: Arc<Keyspace>, beside: Option<&dyn Beside>, now_ms: u64) -> Changes {
        debug_assert_eq!(self.databases(), other.databases());
        let mut view = View::whole(self, 0, now_ms);
        view.exchange_all(&other, beside);
        let changes = view.finish();
        // Its tables are empty now, so this is short.
        drop(other);
        changes
    }

    /// Leaves all tables to the reclaimer, and what they held is gone. Nobody else uses this keyspace.
    /// O(shards · databases that ever had keys).
    pub fn discard(&self) {
        let mut view = View::whole(self, 0, 0);
        view.flush(None);
        let _ = view.finish();
    }
}

impl View<'_> {
    fn exchange_all(&mut self, other: &Keyspace, beside: Option<&dyn Beside>) {
        let keyspace = self.keyspace;
        // Nobody else locks it, so it does not matter which comes first.
        let mut theirs = other.shards.lock_all();
        keyspace.underway.end(&keyspace.sequence, None);
        self.settle_counts();
        self.begin_write();
        let lsn = self.changes.lsn;
        keyspace.note_recent_all(lsn);
        self.tell_all_readers(lsn);
        let dbs: Vec<usize> = (0..keyspace.visible.min(other.visible)).collect();
        let mut removed = self.removed_in(&dbs);
        keyspace.underway.empty(&keyspace.sequence, &dbs, None);
        keyspace.evict.forget_uses();
        // A walk that begins anew looks at databases up to this one.
        let theirs_touched = other.touched.load(Ordering::Relaxed);
        let touched = keyspace.touched.fetch_max(theirs_touched, Ordering::Relaxed).max(theirs_touched);
        let Store::Locked(guard) = &mut self.store else { return };
        keyspace.generation.fetch_add(1, Ordering::SeqCst);
        let walk = keyspace.walk_emptied(lsn);
        for db in dbs.iter().copied() {
            keyspace.note_replaced(db, Some(self.now_ms));
            if db >= touched {
                continue;
            }
            let fresh = |shard: usize| std::mem::take(&mut theirs.get_mut(shard).dbs[db]);
            keyspace.replace_tables(guard, db, &mut removed, walk.as_ref(), fresh);
            keyspace.counts[db].become_those_of(&other.counts[db]);
            keyspace.forget_ttl(db);
            let fields = other.counts[db].fields.load(Ordering::Relaxed);
            keyspace.counts[db].fields.store(fields, Ordering::Relaxed);
            self.changes.tell().ready.push(Ready::Database(db));
        }
        walk.into_iter().for_each(|walk| walk.empty(keyspace, guard, &dbs));
        self.changes.dirty += 1;
        keyspace.tell_replaced();
        if let Some(beside) = beside {
            self.changes_beside(beside);
        }
    }
}
