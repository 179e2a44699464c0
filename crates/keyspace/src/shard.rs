//! A shard: a part of all databases behind one short lock, with the watchers, blocked clients and intents of
//! its keys.
//!
//! - H1: `pre` holds the state before writes that happened while a snapshot was active (`preimages.rs`).
//! - H2: `interest` holds keys that are WATCHed or that clients are blocked on. It is usually empty, so a
//!   write pays one branch. It goes by database number: emptying whole tables looks up nothing here, and
//!   exchanging them only few keys (`view/watched.rs` A4).
//! - H3: `intents` holds the keys of long commits under way (`intent.rs`). It is usually empty, too.
//! - H4: `walk` says how far a walk over everything is, if there is one (`walk.rs`).
//! - H5: `readers` holds the keys that clients keep copies of (`tracked.rs`). It is empty while nobody does.

use crate::intent::Intents;
use crate::preimages::PreImages;
use crate::segment::Directory;
use crate::tracked::ShardReaders;
use crate::walk::ShardWalk;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::hash::hash_bytes;

#[derive(Default)]
pub(crate) struct Shard {
    /// Keys whose last write is not durable.
    pub(crate) recent: crate::recent::Recent,
    pub(crate) dbs: Vec<Directory>,
    pub(crate) pre: PreImages,
    pub(crate) interest: Interest,
    pub(crate) intents: Intents,
    pub(crate) walk: Option<Box<ShardWalk>>,
    pub(crate) readers: ShardReaders,
}

/// A watcher's mark, and the number of exchanges of its database when the WATCH began.
type Mark = (Arc<AtomicBool>, u64);

/// With more watchers than this, the reclaimer frees the list.
const FORGOTTEN_AT_ONCE: usize = 64;

#[derive(Default)]
struct Interested {
    /// Marks of the watchers by address. A watcher that was marked is removed.
    watchers: HashMap<usize, Mark>,
    blocked: usize,
}

impl Interested {
    /// Marks and forgets the watchers.
    fn mark_all(&mut self) {
        let told = std::mem::take(&mut self.watchers);
        told.values().for_each(|(mark, _)| mark.store(true, Ordering::Release));
        if told.len() > FORGOTTEN_AT_ONCE {
            stdx::reclaim::defer(told.len() * size_of::<(usize, Mark)>(), move || drop(told));
        }
    }
}

/// A key with its hash in front, so that long names are rarely compared.
type Hashed = (u64, usize, Box<[u8]>);

fn hashed(db: usize, key: &[u8]) -> Hashed {
    (hash_bytes(key), db, key.into())
}

/// A tree, for it never grows by leaps: clients may watch millions of keys.
#[derive(Default)]
pub(crate) struct Interest {
    map: BTreeMap<Hashed, Interested>,
}

impl Interest {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn watch(&mut self, db: usize, key: &[u8], dirty: Arc<AtomicBool>, swaps: u64) {
        let address = Arc::as_ptr(&dirty) as usize;
        self.map.entry(hashed(db, key)).or_default().watchers.insert(address, (dirty, swaps));
    }

    pub(crate) fn unwatch(&mut self, db: usize, key: &[u8], dirty: &Arc<AtomicBool>) {
        let address = Arc::as_ptr(dirty) as usize;
        self.update(db, key, |interested| _ = interested.watchers.remove(&address));
    }

    pub(crate) fn block(&mut self, db: usize, key: &[u8]) {
        self.map.entry(hashed(db, key)).or_default().blocked += 1;
    }

    pub(crate) fn unblock(&mut self, db: usize, key: &[u8]) {
        self.update(db, key, |interested| interested.blocked = interested.blocked.saturating_sub(1));
    }

    fn update(&mut self, db: usize, key: &[u8], f: impl FnOnce(&mut Interested)) {
        let id = hashed(db, key);
        if let Some(interested) = self.map.get_mut(&id) {
            f(interested);
            if interested.watchers.is_empty() && interested.blocked == 0 {
                self.map.remove(&id);
            }
        }
    }

    /// Marks and forgets the watchers of a touched key. True if a client is blocked on it. O(log keys +
    /// watchers since the last touch).
    pub(crate) fn touch(&mut self, db: usize, key: &[u8]) -> bool {
        let mut blocked = false;
        self.update(db, key, |interested| {
            interested.mark_all();
            blocked = interested.blocked > 0;
        });
        blocked
    }

    /// Whether a client is blocked on a key. O(log keys)
    pub(crate) fn is_awaited(&self, db: usize, key: &[u8]) -> bool {
        !self.map.is_empty()
            && self.map.get(&hashed(db, key)).is_some_and(|interested| interested.blocked > 0)
    }

    /// The keys, and the numbers of exchanges when each WATCH on them began. O(watchers)
    pub(crate) fn watched(&self) -> impl Iterator<Item = (usize, &[u8], impl Iterator<Item = u64>)> {
        self.map
            .iter()
            .map(|((_, db, key), its)| (*db, &**key, its.watchers.values().map(|(_, swaps)| *swaps)))
    }

    /// As [`Interest::touch`], for all keys that are touched. O(keys)
    pub(crate) fn touch_those(&mut self, is_touched: impl Fn(usize, &[u8]) -> bool) {
        self.map.retain(|(_, db, key), interested| {
            if !interested.watchers.is_empty() && is_touched(*db, key) {
                interested.mark_all();
            }
            !interested.watchers.is_empty() || interested.blocked > 0
        });
    }

    /// Marks watchers of an expired key that began before the last exchange of its database.
    pub(crate) fn expire(&mut self, db: usize, key: &[u8], swaps: u64) {
        self.update(db, key, |interested| {
            let before = interested.watchers.values().filter(|(_, then)| *then != swaps);
            before.for_each(|(mark, _)| mark.store(true, Ordering::Release));
        });
    }
}
