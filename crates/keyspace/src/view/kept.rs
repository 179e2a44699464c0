//! Reading at length without locks: the values of a command's keys, kept as they were when it had them.
//!
//! A value is shared by a clone in O(1), so a loop that reads a large one for some hundred microseconds need not have its shard
//! locked meanwhile: readers of the same key on other loops would wait for all of it, and not for a look-up.

use super::*;

/// More keys stay locked: what is kept is looked for one by one.
const KEPT_MAX: usize = 32;

/// What a view has of keys whose shards are locked no more.
#[derive(Default)]
pub(super) struct Kept(Vec<(Box<[u8]>, Option<Owned>)>);

impl Kept {
    /// O(keys).
    #[inline]
    pub(super) fn get(&self, key: &[u8]) -> Option<&Owned> {
        let found = self.0.iter().find(|(kept, _)| **kept == *key);
        debug_assert!(found.is_some(), "a key the command did not name");
        found.and_then(|(_, owned)| owned.as_ref())
    }
}

impl View<'_> {
    /// Gives the locks back and goes on with the values that `keys` have now, which are all the view will be asked for; it must
    /// not have changed anything, and be asked for values only. Does nothing where it has no locks, or for more than 32
    /// keys. Cost: O(keys), each O(1).
    pub fn keep_only<'a>(&mut self, keys: impl Iterator<Item = &'a [u8]>) {
        debug_assert!(self.changes.lsn == 0, "a view that wrote");
        if !matches!(self.store, Store::Locked(_)) {
            return;
        }
        let mut kept = Vec::new();
        for key in keys {
            if kept.len() == KEPT_MAX {
                return;
            }
            kept.push((key.into(), self.owned(key)));
        }
        self.drop_stale();
        self.settle_counts();
        self.store = Store::Kept(Kept(kept));
    }
}
