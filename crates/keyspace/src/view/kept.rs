//! Long reads without locks: a command's values, kept as they were under the locks.
//!
//! Cloning shares a value in O(1). So a loop can read a large value for long without holding its shard:
//! readers of the same key on other loops wait only for a look-up.

use super::*;

/// With more keys than this, the shards stay locked: kept keys are searched one by one.
const KEPT_MAX: usize = 32;

/// The values of keys whose shards are no longer locked.
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
    /// Gives the locks back and goes on with the values that `keys` have now. Afterwards the view may be
    /// asked only for values of `keys`. It must not have changed anything. Does nothing if it has no locks,
    /// or for more than 32 keys. O(keys).
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
        if std::mem::take(&mut self.keep).listens() {
            // The expiries have been told.
            self.keyspace.sequence.tell.leave();
        }
        self.store = Store::Kept(Kept(kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Changes;

    fn with<T>(keyspace: &Keyspace, now_ms: u64, f: impl FnOnce(&mut View<'_>) -> T) -> (T, Changes) {
        let mut view = View::whole(keyspace, 0, now_ms);
        let done = f(&mut view);
        (done, view.finish())
    }

    fn texts(set: Option<&Set>) -> Vec<Vec<u8>> {
        let mut texts: Vec<_> =
            set.into_iter().flat_map(|set| set.iter().map(|elem| elem.to_vec())).collect();
        texts.sort();
        texts
    }

    #[test]
    fn what_is_kept_stays_while_others_write() {
        let keyspace = Keyspace::new(1);
        for (key, members) in [("a", 600), ("b", 3)] {
            with(&keyspace, 1, |view| {
                let set = view.set_or_new(key.as_bytes()).unwrap();
                (0..members).for_each(|n| assert!(set.insert(format!("member:{n}").as_bytes())));
                view.changed(key.as_bytes(), Class::Set, "sadd");
            });
        }
        with(&keyspace, 1, |view| view.put_string(b"text", b"short", Some(5_000)));
        with(&keyspace, 1, |view| view.put_string(b"old", b"gone", Some(10)));
        let keys: [&[u8]; 5] = [b"a", b"b", b"text", b"old", b"none"];
        let mut view = View::whole(&keyspace, 0, 100);
        view.keep_only(keys.into_iter());
        let before = texts(view.set(b"a").unwrap());
        assert_eq!(before.len(), 600);
        // All locks are released: otherwise these would wait for ever.
        with(&keyspace, 100, |other| assert!(other.set_mut(b"a").unwrap().unwrap().remove(b"member:7")));
        with(&keyspace, 100, |other| assert!(other.remove(b"b")));
        with(&keyspace, 100, |other| other.put_string(b"text", b"another", None));
        assert_eq!(texts(view.set(b"a").unwrap()), before);
        assert_eq!(view.set(b"b").unwrap().map(Set::len), Some(3));
        let (text, expire_ms) = view.string_and_expire(b"text").unwrap().unwrap();
        assert_eq!((text.to_vec(), expire_ms), (b"short".to_vec(), Some(5_000)));
        assert_eq!(view.set(b"text").err(), Some(WrongType));
        assert_eq!((view.kind(b"old"), view.kind(b"none")), (None, None));
        // The expired key was removed under the locks, and listeners are told.
        assert_eq!(view.finish().dirty, 1);
        with(&keyspace, 100, |view| {
            assert_eq!(view.set(b"a").unwrap().map(Set::len), Some(599));
            assert_eq!((view.exists(b"b"), view.exists(b"old")), (false, false));
        });
        assert_eq!(keyspace.len(0), 2);
    }

    #[test]
    fn very_many_keys_stay_locked() {
        let keyspace = Keyspace::new(1);
        let names: Vec<Vec<u8>> = (0..=KEPT_MAX).map(|n| format!("key:{n}").into_bytes()).collect();
        with(&keyspace, 1, |view| names.iter().for_each(|name| view.put_string(name, b"x", None)));
        let mut view = View::whole(&keyspace, 0, 1);
        view.keep_only(names.iter().map(Vec::as_slice));
        assert!(view.held() == Bits::below(SHARDS) && names.iter().all(|name| view.exists(name)));
    }
}
