//! What writes replaced while snapshots were active: per shard, per key, in the order of the writes.
//!
//! - H1: a key touched by a write with LSN n while a snapshot was active has what was there before, at n; several per key in
//!   ascending order. Reading at s: the first with n > s, else the table.
//!
//! `tests/models` runs this file with `sequence.rs` in every order of their steps.

use crate::entry::Owned;
use crate::sequence::Lsn;
use std::collections::HashMap;

/// What a write replaced: the LSN of that write and the entry before it.
type PreImage = (Lsn, Option<Owned>);

type KeyId = (usize, Box<[u8]>);

#[derive(Default)]
pub(crate) struct PreImages {
    map: HashMap<KeyId, Vec<PreImage>>,
    /// The newest LSN anything was kept at.
    newest: Lsn,
}

impl PreImages {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Keeps `before` unless no snapshot older than the last kept one needs it. `newest`: the newest active snapshot.
    pub(crate) fn keep(
        &mut self,
        db: usize,
        key: &[u8],
        lsn: Lsn,
        newest: Lsn,
        before: impl FnOnce() -> Option<Owned>,
    ) {
        let chain = self.map.entry((db, key.into())).or_default();
        if chain.last().is_none_or(|(last, _)| *last <= newest && *last != lsn) {
            chain.push((lsn, before()));
            // A commit is folded at an LSN that may be older than what others wrote since.
            self.newest = self.newest.max(lsn);
        }
    }

    /// What was there at `s`: None if nothing changed since, so that the table answers.
    pub(crate) fn at(&self, db: usize, key: &[u8], s: Lsn) -> Option<Option<&Owned>> {
        if self.newest <= s || self.map.is_empty() {
            return None;
        }
        let chain = self.map.get(&(db, Box::from(key)))?;
        chain.iter().find(|(lsn, _)| *lsn > s).map(|(_, before)| before.as_ref())
    }

    /// Keys kept, as far as a snapshot at `s` may have to look at them.
    pub(crate) fn len_at(&self, s: Lsn) -> usize {
        if self.newest <= s { 0 } else { self.map.len() }
    }

    pub(crate) fn iter_at(&self, db: usize, s: Lsn) -> impl Iterator<Item = (&[u8], Option<&Owned>)> {
        let map = (self.newest > s).then_some(&self.map);
        map.into_iter().flatten().filter(move |((d, _), _)| *d == db).filter_map(move |((_, key), chain)| {
            let (_, before) = chain.iter().find(|(lsn, _)| *lsn > s)?;
            Some((&key[..], before.as_ref()))
        })
    }

    /// Forgets everything if no snapshot from `oldest` on needs it. O(1).
    pub(crate) fn prune(&mut self, oldest: Lsn) {
        if self.newest <= oldest && !self.map.is_empty() {
            self.clear();
        }
    }

    /// Forgets everything; large contents are freed elsewhere.
    pub(crate) fn clear(&mut self) {
        let map = std::mem::take(&mut self.map);
        if map.len() > 64 {
            stdx::reclaim::defer(map.len() * 64, move || drop(map));
        }
    }
}
