//! Protection of a long commit that lost its races: writers of its keys wait a little.
//!
//! A long transaction on keys that others write often would lose for ever. After a few losses it raises a
//! [`Protection`] over the keys of its last attempt. Before a writer takes its locks, the caller asks
//! [`Keyspace::guarded`] and holds the writer back while that says so. Readers never ask.
//!
//! - D1: asking costs one load while there is no protection.
//! - D2: a protection ends when it is dropped or at its time, whichever comes first.

use crate::Keyspace;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stdx::hash::hash_bytes;

#[derive(Default)]
pub(crate) struct Guards {
    count: AtomicUsize,
    list: Mutex<Vec<Arc<Guard>>>,
}

struct Guard {
    /// Sorted. A key that shares its hash with a protected one is held up as well; that is rare and harmless.
    hashes: Box<[u64]>,
    until_ms: u64,
    client: u64,
}

/// The protection that a writer has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// The client whose commit is protected.
    pub client: u64,
    /// The latest end of the protection, in milliseconds since 1970.
    pub until_ms: u64,
}

/// A protection of some keys; it ends when dropped.
pub struct Protection {
    keyspace: Arc<Keyspace>,
    guard: Arc<Guard>,
}

impl Protection {
    /// Protects the keys with these sorted hashes ([`crate::Commit::hashes`]) until `until_ms`. O(1).
    pub fn raise(keyspace: &Arc<Keyspace>, hashes: Box<[u64]>, until_ms: u64, client: u64) -> Protection {
        let guard = Arc::new(Guard { hashes, until_ms, client });
        keyspace.guards.list.lock().push(guard.clone());
        keyspace.guards.count.fetch_add(1, Ordering::SeqCst);
        Protection { keyspace: keyspace.clone(), guard }
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        self.keyspace.guards.list.lock().retain(|guard| !Arc::ptr_eq(guard, &self.guard));
        self.keyspace.guards.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Keyspace {
    /// Whether any protection exists (D1).
    #[inline]
    pub fn has_guards(&self) -> bool {
        self.guards.count.load(Ordering::Relaxed) != 0
    }

    /// The protection that a writer of these keys has to wait for, if any. O(keys · protections · log keys).
    pub fn guarded<'a>(&self, keys: impl Iterator<Item = &'a [u8]>, now_ms: u64) -> Option<Guarded> {
        let list = self.guards.list.lock().clone();
        for hash in keys.map(hash_bytes) {
            for guard in &list {
                if guard.until_ms > now_ms && guard.hashes.binary_search(&hash).is_ok() {
                    return Some(Guarded { client: guard.client, until_ms: guard.until_ms });
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_of_protected_keys_wait_and_no_others() {
        let keyspace = Keyspace::new(1);
        let mut hashes: Vec<u64> = [&b"a"[..], b"b"].into_iter().map(hash_bytes).collect();
        hashes.sort_unstable();
        assert!(!keyspace.has_guards());
        let protection = Protection::raise(&keyspace, hashes.into(), 100, 7);
        let ask = |key: &'static [u8], now| keyspace.guarded([key].into_iter(), now);
        assert_eq!(ask(b"b", 99), Some(Guarded { client: 7, until_ms: 100 }));
        assert_eq!((ask(b"b", 100), ask(b"c", 1)), (None, None));
        drop(protection);
        assert!(!keyspace.has_guards());
        assert_eq!(ask(b"a", 1), None);
    }
}
