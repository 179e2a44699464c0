//! A directory against a plain map, from one key to several segments and back.

use super::*;
use crate::shard_of;
use std::collections::{BTreeMap, BTreeSet};

fn below(dice: &mut u64, n: u64) -> u64 {
    *dice ^= *dice << 13;
    *dice ^= *dice >> 7;
    *dice ^= *dice << 17;
    *dice % n
}

/// Keys of the first shard, with their hashes.
fn keys(n: usize) -> Vec<(u64, Vec<u8>)> {
    let all = (0..).map(|i| format!("key:{i}").into_bytes());
    all.map(|key| (hash_bytes(&key), key)).filter(|(hash, _)| shard_of(*hash) == 0).take(n).collect()
}

fn put(directory: &mut Directory, hash: u64, key: &[u8], bytes: &[u8], expire_ms: Option<u64>) -> Put {
    let spot = directory.spot(hash, key);
    let times = Times { expire_ms, ..Times::default() };
    directory.put_at(spot, hash, key, Payload::Text { bytes, raw: false }, times, 0)
}

fn text(directory: &Directory, hash: u64, key: &[u8]) -> Option<(Vec<u8>, Option<u64>)> {
    let entry = directory.find(hash, key)?;
    match entry.value() {
        value::ValueRef::Str(s) => Some((s.to_vec(), entry.expire_ms())),
        _ => panic!("only strings were put"),
    }
}

#[test]
fn a_directory_agrees_with_a_plain_map_through_all_its_forms() {
    let keys = keys(2600);
    for seed in 1..=8u64 {
        let mut dice = seed * 0x9e37_79b9;
        let (mut directory, mut model) = (Directory::default(), BTreeMap::new());
        let mut time = Time { tick: 0, threshold: crate::evict::policy::CANDIDATES[2] };
        let (mut forms, mut depth) = (BTreeSet::new(), 0);
        // Some keys stay, and a walk in hash order must visit each of them while all else changes.
        let stay = if seed % 2 == 0 { 0 } else { 3 };
        for (i, (hash, key)) in keys.iter().enumerate().take(stay) {
            put(&mut directory, *hash, key, b"", None);
            model.insert(i, (Vec::new(), None));
        }
        for wanted in [5, 40, 200, 900, 2500, 1200, 300, 100, 20, 4, 0, 60, 0] {
            let (mut position, mut seen) = (Some(0), BTreeSet::new());
            for _ in 0..3000 {
                let few = (wanted as u64 * 2).clamp(8, keys.len() as u64);
                let i = below(&mut dice, few) as usize;
                let (hash, key) = &keys[i];
                let grow = model.len() < wanted || below(&mut dice, 3) == 0;
                if grow || i < stay {
                    let bytes = vec![b'a' + i as u8 % 26; [0, 5, 40, 250][below(&mut dice, 4) as usize]];
                    let expire = (below(&mut dice, 3) == 0).then(|| 1 + below(&mut dice, 1 << 40));
                    let done = put(&mut directory, *hash, key, &bytes, expire);
                    assert_eq!(done.was_there, model.insert(i, (bytes, expire)).is_some());
                    if seed > 4 && !done.was_there {
                        time.tick += u32::from(below(&mut dice, 50) == 0);
                        directory.note_insert(done.spot, *hash, time, Some(4));
                    }
                } else {
                    let removed = match below(&mut dice, 2) {
                        0 => directory.remove(*hash, key),
                        _ => directory.evict(*hash, key),
                    };
                    assert_eq!(removed, model.remove(&i).map(|(_, expire)| expire.is_some()));
                }
                // Above the wanted number any key is removed.
                if let (true, Some(last)) =
                    (model.len() > wanted.max(stay), model.keys().next_back().copied())
                {
                    let (hash, key) = &keys[last];
                    assert!(directory.remove(*hash, key).is_some());
                    model.remove(&last);
                }
                let (hash, key) = &keys[below(&mut dice, few) as usize];
                let expected = keys.iter().take(few as usize).position(|(h, _)| h == hash);
                assert_eq!(text(&directory, *hash, key), expected.and_then(|i| model.get(&i).cloned()));
                position = position.and_then(|at| {
                    directory.visit_line(at, &mut |hash, _| {
                        seen.insert(hash);
                    })
                });
                forms.extend(directory.segments().map(|segment| segment.lines));
                depth = depth.max(directory.depth);
            }
            directory.check_invariants();
            assert_eq!(directory.len(), model.len());
            assert!(position.is_none());
            assert!(
                keys[..stay].iter().all(|(hash, _)| seen.contains(hash)),
                "a walk missed a key that stays"
            );
        }
        assert!(forms.into_iter().eq(FORMS) && depth > 0);
        let small = directory.footprint();
        assert!(directory.segments().all(|segment| segment.lines == FORMS[0]));
        assert!(small <= directory.len() * (128 + 2048), "{} keys take {small} bytes", directory.len());
    }
}

#[test]
fn a_key_alone_in_its_shard_takes_less_than_400_bytes() {
    let mut directory = Directory::default();
    let (hash, key) = &keys(1)[0];
    for bytes in [&[b'a'; 40][..], &[b'b'; 80], &[b'c'; 20]] {
        for _ in 0..100 {
            put(&mut directory, *hash, key, bytes, None);
        }
        assert!(directory.footprint() < 400, "{} bytes", directory.footprint());
    }
    directory.check_invariants();
}
