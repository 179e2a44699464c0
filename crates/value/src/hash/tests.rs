//! Hashes against `BTreeMap`, with clones and field expiry.

use super::*;
use crate::testing::{Rng, rounds};
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

fn compare(hash: &Hash, model: &Model) {
    hash.check_invariants();
    let owned = |e: Entry<'_>| (e.field.to_vec(), (e.value.to_vec(), e.expire_at));
    let all: Vec<_> = hash.entries_from(0).map(owned).collect();
    assert_eq!(hash.len(), model.len());
    assert_eq!(all.iter().cloned().collect::<Model>(), *model);
    for (field, (value, time)) in model {
        assert_eq!(hash.get(field), Some(&value[..]));
        assert_eq!(hash.expire_at(field), Some((*time != NEVER).then_some(*time)));
    }
    assert_eq!(hash.next_expiry(), model.values().map(|v| v.1).min().filter(|&time| time != NEVER));
    let middle = all.len() / 2;
    assert_eq!(hash.nth_entry(middle).map(owned), all.get(middle).cloned());
    for now in [0, 300, 700, 2000] {
        let live = model.values().filter(|v| v.1 > now).count();
        assert_eq!((hash.live_len(now), hash.iter_at(now).count()), (live, live));
    }
}

#[test]
fn a_hash_agrees_with_the_model_with_expiries_and_clones() {
    for seed in 0..rounds(60) {
        let mut rng = Rng::new(seed);
        let range = [20, 150, 1500][(seed % 3) as usize];
        let long = [0, 700][(seed / 3 % 2) as usize];
        let (mut hash, mut model) = (Hash::new(), Model::new());
        let mut clones: Vec<(Hash, Model)> = Vec::new();
        for _ in 0..3000 {
            let field = rng.text(range, long);
            let length = [0, 40, 1500][rng.below(3) as usize];
            let value = rng.text(100_000, length);
            let time = 1 + rng.below(1000);
            match rng.below(12) {
                0..=3 => {
                    let new = model.insert(field.clone(), (value.clone(), NEVER)).is_none();
                    assert_eq!(hash.insert(&field, &value), new);
                }
                4 => {
                    let kept = model.get(&field).map_or(NEVER, |v| v.1);
                    let new = model.insert(field.clone(), (value.clone(), kept)).is_none();
                    assert_eq!(hash.insert_keep_ttl(&field, &value), new);
                }
                5 | 6 => assert_eq!(hash.take(&field), model.remove(&field).map(|v| v.0)),
                7..=9 => {
                    let time = if rng.below(4) == 0 { None } else { Some(time) };
                    assert_eq!(hash.set_expire(&field, time), model.contains_key(&field));
                    model.entry(field).and_modify(|v| v.1 = time.unwrap_or(NEVER));
                }
                10 if rng.below(20) == 0 => {
                    let limit = rng.below(30) as usize;
                    let mut gone = Vec::new();
                    let removed = hash.remove_expired(time, limit, &mut |field| gone.push(field.to_vec()));
                    assert_eq!(removed, gone.len());
                    assert!(gone.iter().all(|field| model.remove(field).is_some_and(|v| v.1 <= time)));
                    assert!(removed == limit || model.values().all(|v| v.1 > time));
                }
                _ => {}
            }
            match rng.below(200) {
                0 => clones.push((hash.clone(), model.clone())),
                1 if !clones.is_empty() => {
                    let (hash, model) = clones.swap_remove(rng.below(clones.len() as u64) as usize);
                    compare(&hash, &model);
                }
                2 => compare(&hash, &model),
                3 if !clones.is_empty() => {
                    (hash, model) = clones.swap_remove(rng.below(clones.len() as u64) as usize);
                }
                _ => {}
            }
        }
        compare(&hash, &model);
        clones.iter().for_each(|(hash, model)| compare(hash, model));
    }
}

#[test]
fn encodings_follow_redis() {
    let small = |n: u32| (0..n).map(|i| (i.to_string(), "v")).collect::<Hash>();
    assert_eq!((small(512).encoding(), small(513).encoding()), (Enc::ListPack, Enc::HashTable));
    let mut hash = small(3);
    assert!(hash.set_expire(b"1", Some(5)) && hash.encoding() == Enc::ListPackEx);
    assert!(hash.set_expire(b"1", None) && hash.encoding() == Enc::ListPackEx);
    hash.insert(b"1", &[b'v'; 65]);
    assert_eq!(hash.encoding(), Enc::HashTable);
    hash.insert(b"1", b"v");
    assert_eq!(hash.encoding(), Enc::HashTable);
    assert!(!hash.set_expire(b"absent", Some(1)));
    assert_eq!(hash.expire_at(b"absent"), None);
}

#[test]
fn small_hashes_keep_the_order_of_insertion() {
    let names = ["z", "a", "m", "b", "q"];
    let mut hash: Hash = names.iter().map(|n| (n, n)).collect();
    hash.insert(b"a", b"another, longer value than before");
    hash.remove(b"m");
    let order: Vec<&[u8]> = hash.iter().map(|(field, _)| field).collect();
    assert_eq!(order, [b"z", b"a", b"b", b"q"]);
}

#[test]
fn a_hash_begun_for_many_is_the_one_made_field_by_field() {
    for seed in 0..rounds(600) {
        let mut rng = Rng::new(seed);
        let (range, long) = ([4, 40, 400][(seed % 3) as usize], [0, 40, 900][(seed / 3 % 3) as usize]);
        let count = 1 + rng.below(range);
        let entries: Vec<(Vec<u8>, Vec<u8>, u64)> = (0..count)
            .map(|_| {
                let expire_at = if rng.below(5) == 0 { 1 + rng.below(1000) } else { NEVER };
                (rng.text(range, long), rng.text(100_000, long), expire_at)
            })
            .collect();
        let entry = |(field, value, expire_at): &'_ (Vec<u8>, Vec<u8>, u64)| -> Entry<'static> {
            // Leaked: a few bytes of a test.
            Entry { field: field.clone().leak(), value: value.clone().leak(), expire_at: *expire_at }
        };
        let bytes: usize = entries.iter().map(|(field, value, _)| field.len() + value.len()).sum();
        // The announced numbers may be true, too small, too large, or nonsense.
        let fields = [count as usize, 0, count as usize / 2, usize::MAX][rng.below(4) as usize];
        let bytes = [bytes + entries.len() * 2, 0, bytes / 2, usize::MAX][rng.below(4) as usize];
        let (mut whole, mut single) = (Hash::begun(entry(&entries[0]), fields, bytes), Hash::new());
        single.put(entry(&entries[0]));
        let mut model: Model = [(entries[0].0.clone(), (entries[0].1.clone(), entries[0].2))].into();
        compare(&whole, &model);
        for each in &entries[1..] {
            let new = model.insert(each.0.clone(), (each.1.clone(), each.2)).is_none();
            assert_eq!((whole.put(entry(each)), single.put(entry(each))), (new, new));
        }
        compare(&whole, &model);
        assert!(whole.entries_from(0).eq(single.entries_from(0)), "the order as well");
        assert_eq!(whole.encoding(), single.encoding());
        let kept = whole.clone();
        for each in entries.iter().filter(|_| seed % 2 == 0) {
            whole.remove(&each.0);
        }
        whole.check_invariants();
        assert_eq!(whole.is_empty(), seed % 2 == 0);
        compare(&kept, &model);
    }
}
