//! A shard: the part of all databases behind one short lock, with what others want to know about its keys.
//!
//! - H1: `pre` holds what was there before writes that took place while a snapshot was active (`preimages.rs`).
//! - H2: `interest` holds keys that are WATCHed or that clients are blocked on; empty in ordinary life, so
//!   that a write pays one branch. It is by the database's number: when whole tables are replaced nothing is looked up here.
//! - H3: `intents` holds the keys of long commits under way (`intent.rs`); empty in ordinary life too.

use crate::intent::Intents;
use crate::preimages::PreImages;
use crate::segment::Directory;
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

#[derive(Default)]
struct Interested {
    /// Their marks, and how often the database had been exchanged before.
    watchers: Vec<(Arc<AtomicBool>, u64)>,
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

    pub(crate) fn watch(&mut self, db: usize, key: &[u8], dirty: Arc<AtomicBool>, swaps: u64) {
        self.map.entry((db, key.into())).or_default().watchers.push((dirty, swaps));
    }

    pub(crate) fn unwatch(&mut self, db: usize, key: &[u8], dirty: &Arc<AtomicBool>) {
        self.update(db, key, |interested| interested.watchers.retain(|(w, _)| !Arc::ptr_eq(w, dirty)));
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
        interested.watchers.iter().for_each(|(w, _)| w.store(true, Ordering::Release));
        interested.blocked > 0
    }

    /// A key expired: marks those who watched it before its database was exchanged for the last time.
    pub(crate) fn expire(&self, db: usize, key: &[u8], swaps: u64) {
        let watchers = self.map.get(&(db, Box::from(key))).into_iter().flat_map(|i| &i.watchers);
        watchers.filter(|(_, then)| *then != swaps).for_each(|(w, _)| w.store(true, Ordering::Release));
    }
}
