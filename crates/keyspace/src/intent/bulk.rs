//! Commands that set or remove many keys whatever they are (MSET, DEL): their keys stay where they came in.

use super::FOLDED;
use crate::Keyspace;
use crate::segment::Directory;
use crate::view::{Class, View};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use stdx::sync::Mutex;

/// Hashes of keys, and their numbers among the words.
pub(super) type Numbered = Vec<(u64, u32)>;

/// Keys, and what they are to be set to, that stay where they are: the words of a command.
pub trait Words: Send + Sync {
    /// How many keys there are.
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn key(&self, i: usize) -> &[u8];
    /// None: the key is to be removed; then all are.
    fn value(&self, i: usize) -> Option<&[u8]>;
    /// Whether nothing is to be set if one of the keys is there.
    fn only_new(&self) -> bool {
        false
    }
    /// Brings keys nearer to the cache, with each of [`FETCHES`] steps after the other. Of each its hash, and its number if that
    /// is below `len`.
    fn prefetch(&self, _keys: &[(u64, u32)], _step: usize) {}
}

/// Steps of [`Words::prefetch`].
pub(super) const FETCHES: usize = 3;

/// A command that sets or removes many keys.
pub(crate) struct Bulk {
    pub(super) words: Arc<dyn Words>,
    pub(super) db: usize,
    /// Keys removed that were there when it was decided (I10).
    pub(super) found: AtomicUsize,
    /// The time of its decision.
    pub(super) decided_ms: AtomicU64,
    /// A key is there that had to be new (I11).
    pub(super) refused: AtomicBool,
    /// Keys to be counted in tables that were emptied before they were folded.
    gone: Mutex<Vec<Gone>>,
}

/// Keys that bulks removed from a table, and have not counted yet, or did when they were folded.
#[derive(Default)]
pub(crate) struct TakenAway(pub(super) Vec<(Arc<Bulk>, Numbered)>);

impl TakenAway {
    pub(crate) fn join(&mut self, other: TakenAway) {
        self.0.extend(other.0);
    }

    /// Has them counted in their table, by who removed them.
    pub(crate) fn count_in(self, table: &Arc<Mutex<Directory>>) {
        for (bulk, list) in self.0 {
            bulk.gone.lock().push(Gone { list, table: table.clone() });
        }
    }
}

/// Keys of a bulk and the table they may stand in, which nobody else changes any more.
struct Gone {
    list: Numbered,
    table: Arc<Mutex<Directory>>,
}

impl Bulk {
    pub(super) fn new(words: Arc<dyn Words>, db: usize) -> Arc<Bulk> {
        let (found, decided_ms, refused, gone) = Default::default();
        Arc::new(Bulk { words, db, found, decided_ms, refused, gone })
    }

    pub(super) fn removes(&self) -> bool {
        !self.words.is_empty() && self.words.value(0).is_none()
    }

    /// Counts up to `keys` of those whose tables are gone; true if none is left.
    pub(super) fn count_gone(&self, keyspace: &Keyspace, keys: usize) -> bool {
        let mut gone = self.gone.lock();
        let Some(Gone { list, table }) = gone.last_mut() else { return true };
        let decided_ms = self.decided_ms.load(Ordering::Relaxed);
        let some = list.split_off(list.len().saturating_sub(keys));
        let standing = table.lock();
        let there = some.iter().filter(|(_, word)| *word != FOLDED).filter(|(hash, word)| {
            let entry = standing.find(*hash, self.words.key(*word as usize));
            entry.is_some_and(|entry| entry.expire_ms().is_none_or(|at| at > decided_ms))
        });
        self.found.fetch_add(there.count(), Ordering::Relaxed);
        drop(standing);
        if list.is_empty()
            && let Some(Gone { table, .. }) = gone.pop()
        {
            keyspace.free_later(Arc::into_inner(table).map(Mutex::into_inner).into_iter().collect());
        }
        gone.is_empty()
    }

    /// Sets a key to what its word says, or removes it. Told of where it was when it happened.
    pub(super) fn apply(&self, view: &mut View<'_>, key: &[u8], word: usize) {
        match self.words.value(word) {
            Some(value) => {
                view.put_string(key, value, None);
                view.changed_in(self.db, key, Class::String, "set");
            }
            None => {
                let removed = view.at(self.decided_ms.load(Ordering::Relaxed), |view| view.remove(key));
                if removed {
                    self.found.fetch_add(1, Ordering::Relaxed);
                    view.changed_in(self.db, key, Class::Generic, "del");
                }
            }
        }
    }
}

/// Sorts the keys of one shard by hash; of a key named twice the last counts. O(keys · log keys), a few hundred.
pub(super) fn order(bulk: &Bulk, list: &mut Numbered) {
    list.sort_unstable();
    // `dedup_by` keeps the first of equals, so the later one is copied over it.
    list.dedup_by(|later, first| {
        let same = later.0 == first.0 && bulk.words.key(later.1 as usize) == bulk.words.key(first.1 as usize);
        if same {
            *first = *later;
        }
        same
    });
}
