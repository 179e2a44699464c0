//! Bulk commands (MSET, DEL): they set or remove many keys whatever those hold. The keys stay in the
//! command's words.

use super::FOLDED;
use crate::Keyspace;
use crate::segment::Directory;
use crate::view::{Class, View};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use stdx::sync::Mutex;

/// Hashes of keys, and the keys' numbers among the words.
pub(super) type Numbered = Vec<(u64, u32)>;

/// The words of a bulk command: keys, and what to set them to. They stay where they are.
pub trait Words: Send + Sync {
    /// How many keys there are.
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn key(&self, i: usize) -> &[u8];
    /// The value to set. `None`: the key is to be removed, as are all keys of the bulk.
    fn value(&self, i: usize) -> Option<&[u8]>;
    /// Whether nothing may be set if one of the keys exists.
    fn only_new(&self) -> bool {
        false
    }
    /// Fetches keys into the cache, in [`FETCHES`] steps, one call each. `keys`: hash and number of each.
    /// Ignore a number that is not below `len`.
    fn prefetch(&self, _keys: &[(u64, u32)], _step: usize) {}
}

/// Steps of [`Words::prefetch`].
pub(super) const FETCHES: usize = 3;

/// A bulk under way.
pub(crate) struct Bulk {
    pub(super) words: Arc<dyn Words>,
    pub(super) db: usize,
    /// Removed keys that existed at the decision (I10).
    pub(super) found: AtomicUsize,
    /// The time of its decision.
    pub(super) decided_ms: AtomicU64,
    /// A key exists that had to be new (I11).
    pub(super) refused: AtomicBool,
    /// Keys to be counted in tables that were emptied before the keys were folded.
    gone: Mutex<Vec<Gone>>,
}

/// Removed keys of bulks in one table. Folded ones are counted already, the others are not.
#[derive(Default)]
pub(crate) struct TakenAway(pub(super) Vec<(Arc<Bulk>, Numbered)>);

impl TakenAway {
    pub(crate) fn join(&mut self, other: TakenAway) {
        self.0.extend(other.0);
    }

    /// Counts them in their table, by the bulk that removed them.
    pub(crate) fn count_in(self, table: &Arc<Mutex<Directory>>) {
        for (bulk, list) in self.0 {
            bulk.gone.lock().push(Gone { list, table: table.clone() });
        }
    }
}

/// Keys of a bulk, and the table they may stand in. Nothing else changes that table.
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

    /// Counts up to `keys` keys of tables that are gone. True if none is left.
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

    /// Sets a key as its word says, or removes it. The event names the database by its number at the time of
    /// the command.
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

/// Sorts the keys of one shard by hash. The last of several equal keys counts. O(keys · log keys).
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
