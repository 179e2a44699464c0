//! A shard: the part of all databases behind one short lock, with what others want to know about its keys.
//!
//! - H1: `pre` holds, for every key touched by a write with LSN n while a snapshot was active, what was there before,
//!   at n; several per key in ascending order. Reading at s: the first with n > s, else the table.
//! - H2: `interest` holds keys that are WATCHed or that clients are blocked on; empty in ordinary life, so
//!   that a write pays one branch.
//! - H3: `intents` holds the keys of long commits under way (`intent.rs`); empty in ordinary life too.

use crate::entry::Owned;
use crate::intent::Intents;
use crate::segment::Directory;
use crate::sequence::Lsn;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) type KeyId = (usize, Box<[u8]>);

#[derive(Default)]
pub(crate) struct Shard {
    pub(crate) dbs: Vec<Directory>,
    pub(crate) pre: PreImages,
    pub(crate) interest: Interest,
    pub(crate) intents: Intents,
}

/// What a write replaced: the LSN of that write and the entry before it.
type PreImage = (Lsn, Option<Owned>);

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

#[derive(Default)]
struct Interested {
    watchers: Vec<Arc<AtomicBool>>,
    blocked: usize,
}

#[derive(Default)]
pub(crate) struct Interest {
    map: HashMap<KeyId, Interested>,
}

impl Interest {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn watch(&mut self, db: usize, key: &[u8], dirty: Arc<AtomicBool>) {
        self.map.entry((db, key.into())).or_default().watchers.push(dirty);
    }

    pub(crate) fn unwatch(&mut self, db: usize, key: &[u8], dirty: &Arc<AtomicBool>) {
        self.update(db, key, |interested| interested.watchers.retain(|w| !Arc::ptr_eq(w, dirty)));
    }

    pub(crate) fn block(&mut self, db: usize, key: &[u8]) {
        self.map.entry((db, key.into())).or_default().blocked += 1;
    }

    pub(crate) fn unblock(&mut self, db: usize, key: &[u8]) {
        self.update(db, key, |interested| interested.blocked = interested.blocked.saturating_sub(1));
    }

    fn update(&mut self, db: usize, key: &[u8], f: impl FnOnce(&mut Interested)) {
        let id = (db, Box::from(key));
        if let Some(interested) = self.map.get_mut(&id) {
            f(interested);
            if interested.watchers.is_empty() && interested.blocked == 0 {
                self.map.remove(&id);
            }
        }
    }

    /// Marks the watchers of a touched key; true if somebody is blocked on it.
    pub(crate) fn touch(&self, db: usize, key: &[u8]) -> bool {
        let Some(interested) = self.map.get(&(db, Box::from(key))) else { return false };
        interested.watchers.iter().for_each(|w| w.store(true, Ordering::Release));
        interested.blocked > 0
    }

    /// The keys of a database somebody watches or waits for.
    pub(crate) fn keys(&self, db: usize) -> Vec<Box<[u8]>> {
        self.map.keys().filter(|(d, _)| *d == db).map(|(_, key)| key.clone()).collect()
    }
}
