//! Time of the last change of a key's value. It is known for rows of databases only, which report it
//! themselves.

use super::*;

/// A key's value and its times.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    pub value: ValueRef<'a>,
    pub times: Times,
}

impl View<'_> {
    /// The value and times of a key, in one look-up. An overlay does not know the time of change.
    #[inline]
    pub fn item(&self, key: &[u8]) -> Option<Item<'_>> {
        match &self.store {
            Store::Locked(guard) => {
                self.entry(guard, key).map(|entry| Item { value: entry.value(), times: entry.times() })
            }
            Store::Overlay(overlay) => overlay
                .get(self.db, key, self.due_ms)
                .map(|seen| Item { value: seen.value(), times: seen.expire_ms().into() }),
            Store::Kept(kept) => {
                kept.get(key).map(|owned| Item { value: owned.value.as_ref(), times: owned.expire_ms.into() })
            }
            Store::Open => None,
        }
    }

    /// Stores a payload under the key with its times, and replaces any old value. A later write, or
    /// [`View::forget_changed`], drops the time of change. Not in an overlay. Cost: as [`View::put_string`].
    pub fn put_with(&mut self, key: &[u8], payload: Payload<'_>, times: Times) {
        debug_assert!(!self.is_overlay());
        self.put_payload(key, payload, times);
    }

    /// Drops the time of the last change of a key. O(1).
    pub fn forget_changed(&mut self, key: &[u8]) {
        let (hash, db) = (self.hash_of(key), self.db);
        if let Store::Locked(guard) = &mut self.store {
            guard.get_mut(shard_of(hash)).dbs[db].forget_changed(hash, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::num::NonZeroU64;

    struct Dice(u64);

    impl Dice {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (self.0 >> 33) % n
        }
    }

    /// Contents and times of each key.
    type Model = BTreeMap<Vec<u8>, (String, Times)>;

    fn text(value: ValueRef<'_>) -> String {
        match value {
            ValueRef::Str(text) => String::from_utf8(text.to_vec()).unwrap(),
            ValueRef::Hash(hash) => format!("a hash of {}", hash.len()),
            _ => panic!("neither a string nor a hash"),
        }
    }

    /// Some keys are too long for the entry.
    fn key_of(n: u64) -> Vec<u8> {
        if n.is_multiple_of(50) { vec![b'k'; 200 + n as usize] } else { format!("key:{n}").into_bytes() }
    }

    fn step(keyspace: &Keyspace, model: &mut Model, dice: &mut Dice) {
        let n = dice.below(300);
        let key = key_of(n);
        let mut view = View::locked_one(keyspace, &key, 0, 1000);
        let expire_ms = (dice.below(2) == 0).then(|| 2000 + dice.below(1000));
        let words = "x".repeat([0, 5, 70, 300, 5000][dice.below(5) as usize]);
        match dice.below(8) {
            0..=2 => {
                let times = Times { expire_ms, changed_ms: NonZeroU64::new(dice.below(3)) };
                let hash = Value::Hash((0..4u8).fold(Hash::default(), |mut hash, n| {
                    hash.insert(&[n], b"v");
                    hash
                }));
                let is_hash = dice.below(3) == 0;
                let payload =
                    if is_hash { Payload::value(&key, &hash) } else { Payload::text(&key, words.as_bytes()) };
                view.put_with(&key, payload, times);
                model.insert(key, (if is_hash { "a hash of 4".into() } else { words }, times));
            }
            3 => {
                view.put_string(&key, words.as_bytes(), expire_ms);
                model.insert(key, (words, expire_ms.into()));
            }
            4 | 5 => {
                view.set_expire(&key, expire_ms);
                model.entry(key).and_modify(|(_, times)| times.expire_ms = expire_ms);
            }
            6 => {
                view.forget_changed(&key);
                model.entry(key).and_modify(|(_, times)| times.changed_ms = None);
            }
            _ => {
                view.remove(&key);
                model.remove(&key);
            }
        }
        view.finish();
    }

    #[test]
    fn times_stay_with_what_they_are_of() {
        let (keyspace, mut model, mut dice) = (Keyspace::new(1), Model::new(), Dice(1));
        for round in 0..if cfg!(miri) { 3 } else { 60 } {
            (0..if cfg!(miri) { 100 } else { 1000 }).for_each(|_| step(&keyspace, &mut model, &mut dice));
            for n in 0..300u64 {
                let key = key_of(n);
                let view = View::locked_one(&keyspace, &key, 0, 1000);
                let found = view.item(&key).map(|item| (text(item.value), item.times));
                assert_eq!(found, model.get(&key).cloned(), "round {round}, key {n}");
                view.finish();
            }
            keyspace.check_invariants();
        }
    }

    #[test]
    fn only_what_has_a_time_of_change_pays_for_it() {
        let bytes = |changed_ms| {
            let keyspace = Keyspace::new(1);
            let mut view = View::locked_one(&keyspace, b"k", 0, 0);
            let times = Times { expire_ms: Some(1), changed_ms: NonZeroU64::new(changed_ms) };
            view.put_with(b"k", Payload::text(b"k", b"0123456"), times);
            view.finish();
            keyspace.entry_bytes(0).0
        };
        assert_eq!((bytes(0), bytes(1)), (24, 32));
    }
}
