//! Eviction as commands see it: limits hold, the right keys go, and the hits are as good as they should be.

use crate::*;
use std::collections::{HashMap, HashSet, VecDeque};
use stdx::hash::hash_bytes;

const NOW: u64 = 1 << 40;

fn put(keyspace: &Keyspace, db: usize, key: &str, value: &[u8], expire_ms: Option<u64>) {
    let mut view = View::locked_one(keyspace, key.as_bytes(), db, NOW);
    view.put_string(key.as_bytes(), value, expire_ms);
    view.changed(key.as_bytes(), Class::String, "set");
    view.finish();
}

fn hit(keyspace: &Keyspace, key: &str) -> bool {
    let view = View::locked_one(keyspace, key.as_bytes(), 0, NOW);
    let there = view.exists(key.as_bytes());
    view.finish();
    there
}

/// Replays a trace against a cache of `capacity` entries: GET, and SET on a miss. Returns the hits.
fn replay(keyspace: &Keyspace, trace: &[u64], capacity: usize) -> usize {
    let mut hits = 0;
    for n in trace {
        let key = format!("k{n}");
        if hit(keyspace, &key) {
            hits += 1;
        } else {
            put(keyspace, 0, &key, b"v", None);
            keyspace.note_fullness(0, keyspace.len(0) as f64 / capacity as f64);
            while keyspace.len(0) > capacity {
                assert_ne!(keyspace.evict(0, NOW, &mut |_| ()), Evicted::Nothing);
            }
        }
        while keyspace.feed_accesses() {}
    }
    hits
}

fn lru(trace: &[u64], capacity: usize) -> usize {
    let (mut last, mut queue, mut hits) = (HashMap::new(), VecDeque::new(), 0);
    for (i, n) in trace.iter().enumerate() {
        hits += usize::from(last.insert(*n, i).is_some());
        queue.push_back((i, *n));
        while last.len() > capacity {
            let (at, n) = queue.pop_front().unwrap();
            if last.get(&n) == Some(&at) {
                last.remove(&n);
            }
        }
    }
    hits
}

/// Keys with Zipf-like popularity, and in between scans of keys that never come again.
fn trace(length: usize, keys: u64, scan: u64) -> Vec<u64> {
    let mut dice = 0x2545_f491_4f6c_dd1du64;
    let mut fresh = 1 << 40;
    (0..length as u64)
        .map(|i| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            if i % 1000 < scan {
                fresh += 1;
                return fresh;
            }
            let uniform = (dice >> 11) as f64 / (1u64 << 53) as f64;
            (keys as f64).powf(uniform) as u64
        })
        .collect()
}

#[test]
fn more_is_hit_than_by_exact_lru_in_caches_of_any_size() {
    for (capacity, keys, scan) in
        [(40, 2_000, 300), (300, 20_000, 300), (3_000, 100_000, 400), (9_000, 100_000, 500)]
    {
        let trace = trace(200_000, keys, scan);
        let keyspace = Keyspace::new(1);
        keyspace.set_eviction(0, Policy::Adaptive, 5);
        let (mine, lru) = (replay(&keyspace, &trace, capacity), lru(&trace, capacity));
        keyspace.check_invariants();
        assert!(mine > lru, "{capacity} entries: {mine} hits, LRU has {lru}");
    }
}

#[test]
fn a_loop_larger_than_the_cache_is_hit_where_lru_has_nothing() {
    let trace: Vec<u64> = (0..100_000).map(|i| i % 1000).collect();
    let keyspace = Keyspace::new(1);
    keyspace.set_eviction(0, Policy::Adaptive, 5);
    let hits = replay(&keyspace, &trace, 500);
    assert_eq!(lru(&trace, 500), 0);
    assert!(hits > 20_000, "{hits} of 100,000 hit, 50,000 is the optimum");
}

#[test]
fn each_policy_takes_only_what_it_may_until_there_is_nothing() {
    use Policy::*;
    for policy in [Adaptive, Random, VolatileAdaptive, VolatileRandom, VolatileTtl] {
        let keyspace = Keyspace::new(3);
        keyspace.set_eviction(0, policy, 5);
        let mut expiring = HashSet::new();
        for i in 0..3000 {
            let expires = i % 3 == 0;
            put(&keyspace, i % 2, &format!("k{i}"), &[b'x'; 400], expires.then_some(NOW + 1000 + i as u64));
            if expires {
                expiring.insert(i);
            }
        }
        keyspace.note_fullness(0, 1.0);
        let volatile = policy.is_volatile();
        let (mut removed, mut missed) = (0, 0);
        let mut last = [0; 2];
        loop {
            let mut events = Vec::new();
            keyspace.set_notify(Class::Evicted.bit());
            match keyspace.evict(0, NOW, &mut |changes| events.extend(changes.into_told().events)) {
                Evicted::Freed(bytes) => {
                    assert!(bytes >= 400, "the value stands outside of its entry");
                    removed += 1;
                    let event = events.pop().unwrap();
                    assert_eq!((event.class, event.name), (Class::Evicted, "evicted"));
                    let key: usize = std::str::from_utf8(&event.key[1..]).unwrap().parse().unwrap();
                    assert!(!volatile || expiring.contains(&key), "{policy:?} took {key}");
                    last[event.db] = key;
                }
                Evicted::Missed => missed += 1,
                Evicted::Nothing => break,
            }
            assert!(missed < 3000, "{policy:?} finds nobody");
        }
        keyspace.check_invariants();
        assert_eq!(removed, if volatile { 1000 } else { 3000 }, "{policy:?}");
        assert_eq!(keyspace.len(0) + keyspace.len(1), 3000 - removed);
        assert_eq!(keyspace.stats.evicted_keys.load(Ordering::Relaxed), removed as u64);
    }
}

#[test]
fn who_expires_first_goes_among_the_first() {
    let keyspace = Keyspace::new(1);
    keyspace.set_eviction(0, Policy::VolatileTtl, 64);
    (0..2000).for_each(|i| put(&keyspace, 0, &format!("k{i}"), b"v", Some(NOW + 1 + i)));
    keyspace.set_notify(Class::Evicted.bit());
    let mut sum = 0;
    for _ in 0..200 {
        let _ = keyspace.evict(0, NOW, &mut |changes| {
            let keys = changes.told().events.iter().map(|e| std::str::from_utf8(&e.key[1..]).unwrap());
            sum += keys.map(|n| n.parse::<u64>().unwrap()).sum::<u64>();
        });
    }
    // A random choice would give 1000.
    assert!(sum / 200 < 400, "mean rank of the evicted: {}", sum / 200);
}

#[test]
fn an_eviction_is_a_write_like_any_other() {
    struct Heard(std::sync::Mutex<Vec<Vec<Vec<u8>>>>);
    impl CommitSink for Heard {
        fn words(&self, _: At, words: &mut dyn Iterator<Item = &[u8]>) {
            self.0.lock().unwrap().push(words.map(<[u8]>::to_vec).collect());
        }

        fn shared(&self, _: At, _: Arc<dyn Effects>) {}

        fn mark(&self, _: Lsn, _: Mark) {}
    }
    let heard = Arc::new(Heard(std::sync::Mutex::new(Vec::new())));
    let keyspace = Keyspace::new(1);
    keyspace.listen(heard.clone());
    keyspace.set_eviction(0, Policy::Adaptive, 5);
    put(&keyspace, 0, "a", b"1", None);
    let dirty = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut view = View::locked_one(&keyspace, b"a", 0, NOW);
    view.watch(b"a", &dirty);
    view.finish();
    let snapshot = Snapshot::open(&keyspace).unwrap();
    assert!(matches!(keyspace.evict(0, NOW, &mut |_| ()), Evicted::Freed(_)));
    assert!(dirty.load(Ordering::Relaxed), "whoever watches the key is told");
    assert_eq!(keyspace.len(0), 0);
    assert!(keyspace.read_at(0, b"a", snapshot.lsn()).is_some(), "the snapshot still shows it");
    assert_eq!(*heard.0.lock().unwrap(), [[b"DEL".to_vec(), b"a".to_vec()]]);
}

#[test]
fn hidden_databases_have_budgets_of_their_own() {
    let keyspace = Keyspace::with_hidden(2, 2, 1);
    keyspace.set_eviction(1, Policy::Adaptive, 5);
    (0..100).for_each(|i| (0..4).for_each(|db| put(&keyspace, db, &format!("k{i}"), b"v", None)));
    while keyspace.evict(1, NOW, &mut |_| ()) != Evicted::Nothing {}
    let left: Vec<usize> = (0..4).map(|db| keyspace.len(db)).collect();
    assert_eq!((left, keyspace.databases()), (vec![100, 100, 0, 100], 2));
    assert_eq!(keyspace.evict(0, NOW, &mut |_| ()), Evicted::Nothing, "the others are not to be evicted");
    assert!(keyspace.entry_bytes(2) == (0, 0) && keyspace.entry_bytes(3).0 > 0);
}

/// The databases of a budget must not simply be evicted from in proportion to their entries.
#[test]
fn a_flood_in_one_database_drives_out_nothing_that_is_used_in_the_other() {
    let keyspace = Keyspace::with_hidden(1, 2, 2);
    keyspace.set_eviction(1, Policy::Adaptive, 5);
    let capacity = 2000;
    let held = || keyspace.len(1) + keyspace.len(2);
    let fill = |db: usize, key: &str| {
        put(&keyspace, db, key, b"v", None);
        keyspace.note_fullness(1, held() as f64 / capacity as f64);
        while held() > capacity {
            assert_ne!(keyspace.evict(1, NOW, &mut |_| ()), Evicted::Nothing);
        }
    };
    let is_there = |key: &str| {
        let view = View::locked_one(&keyspace, key.as_bytes(), 1, NOW);
        let there = view.exists(key.as_bytes());
        view.finish();
        there
    };
    (0..200).for_each(|n| fill(1, &format!("row{n}")));
    for n in 0..40_000 {
        fill(2, &format!("absent{n}"));
        is_there(&format!("row{}", n % 200));
    }
    keyspace.check_invariants();
    let left = (0..200).filter(|n| is_there(&format!("row{n}"))).count();
    assert!(left > 190, "{left} of 200 are left");
    // Keys that are no longer used go, too.
    (40_000..80_000).for_each(|n| fill(2, &format!("absent{n}")));
    assert!(keyspace.len(1) < 150, "{} of 200 are left", keyspace.len(1));
}

#[test]
fn keys_that_were_there_before_eviction_was_switched_on_are_known_by_their_last_use() {
    let keyspace = Keyspace::new(1);
    (0..5000).for_each(|i| put(&keyspace, 0, &format!("k{i}"), b"v", None));
    keyspace.set_eviction(0, Policy::Adaptive, 5);
    keyspace.note_fullness(0, 1.0);
    let later = NOW + 16_384 * 20;
    for i in 0..1000 {
        let key = format!("k{i}");
        let view = View::locked_one(&keyspace, key.as_bytes(), 0, later);
        assert!(view.exists(key.as_bytes()));
        view.finish();
    }
    for _ in 0..3000 {
        assert!(matches!(keyspace.evict(0, later, &mut |_| ()), Evicted::Freed(_)));
    }
    keyspace.check_invariants();
    let left = (0..1000).filter(|i| hit(&keyspace, &format!("k{i}"))).count();
    assert!(left > 900, "{left} of 1000 keys that are used stay");
}

#[test]
fn a_key_whose_origin_changed_comes_back_as_used_as_it_was() {
    for keys in [100, 6000] {
        let keyspace = Keyspace::new(1);
        keyspace.set_eviction(0, Policy::Adaptive, 0);
        (0..keys).for_each(|n| put(&keyspace, 0, &format!("k{n}"), b"v", None));
        keyspace.note_fullness(0, 1.0);
        for (key, freq, again) in [("k1", 5, 5), ("k2", 1, 1), ("k3", 0, 1)] {
            let mut view = View::locked_one(&keyspace, key.as_bytes(), 0, NOW);
            view.set_freq(key.as_bytes(), freq);
            assert_eq!(view.remove_to_return(key.as_bytes()), Some(freq > 0), "{keys} keys, {key}");
            assert_eq!(view.remove_to_return(key.as_bytes()), None);
            view.finish();
            put(&keyspace, 0, key, b"w", None);
            let view = View::locked_one(&keyspace, key.as_bytes(), 0, NOW);
            assert_eq!(view.freq(key.as_bytes()), Some(again), "{keys} keys, {key}");
            view.finish();
        }
    }
}

#[test]
fn without_counted_uses_a_key_is_in_use_for_minutes() {
    for policy in [Policy::None, Policy::Adaptive] {
        let keyspace = Keyspace::new(1);
        keyspace.set_eviction(0, policy, 0);
        for (key, idle_s, in_use) in [("new", 0, true), ("old", 400, false)] {
            put(&keyspace, 0, key, b"v", None);
            let mut view = View::locked_one(&keyspace, key.as_bytes(), 0, NOW);
            view.set_idle(key.as_bytes(), idle_s);
            assert_eq!(view.remove_to_return(key.as_bytes()), Some(in_use), "{key}");
            view.finish();
        }
    }
}

#[test]
fn shards_whose_last_key_is_evicted_take_nothing() {
    let keyspace = Keyspace::new(1);
    keyspace.set_eviction(0, Policy::Adaptive, 0);
    keyspace.note_fullness(0, 1.0);
    let tables = || (0..SHARDS).map(|s| keyspace.shards.lock_one(s).get(s).dbs[0].footprint()).sum::<usize>();
    for _ in 0..2 {
        (0..300).for_each(|n| put(&keyspace, 0, &format!("k{n}"), b"v", None));
        assert!(tables() > 100 * 256);
        (0..300).for_each(|_| assert!(matches!(keyspace.evict(0, NOW, &mut |_| ()), Evicted::Freed(_))));
        assert_eq!((keyspace.len(0), tables()), (0, 0));
        assert_eq!(keyspace.entry_bytes(0), (0, 0));
    }
}

#[test]
fn what_is_read_at_a_snapshot_counts_as_used_unless_nobody_is_to_know() {
    let keyspace = Keyspace::new(1);
    keyspace.set_eviction(0, Policy::Adaptive, 0);
    let keys = ["batch", "many", "each", "overlay"];
    for key in keys {
        put(&keyspace, 0, key, b"v", None);
    }
    keyspace.note_fullness(0, 1.0);
    let (before, now) = (NOW, NOW + 1_600_000);
    // Each use lies in another tick; otherwise all would count as one.
    let grow_older = || (0..8).for_each(|n| put(&keyspace, 0, &format!("more{n}"), b"v", None));
    let idle_and_freq = |key: &str| {
        let mut view = View::locked_one(&keyspace, key.as_bytes(), 0, now);
        view.set_quiet(true);
        let told = (view.idle_s(key.as_bytes()), view.freq(key.as_bytes()));
        view.finish();
        told
    };
    let read = |used_ms| {
        let snapshot = Snapshot::open(&keyspace).unwrap();
        let hash = |key: &str| hash_bytes(key.as_bytes());
        let (s, [batch, many, ..]) = (snapshot.lsn(), keys.map(|key| (hash(key), key.as_bytes())));
        keyspace.read_batch(s, used_ms, [(batch.0, 0, batch.1)].into_iter(), &mut Vec::new());
        keyspace.read_many(s, used_ms, 0, [many].into_iter(), &mut crate::KeyBatches::default());
        keyspace.read_each(s, used_ms, 0, &[b"each"], &mut |found| found.is_some());
        crate::Overlay::new(snapshot, used_ms).load(0, [&b"overlay"[..]]);
    };
    grow_older();
    read(None);
    for key in keys {
        assert_eq!(idle_and_freq(key), (Some((now - before) / 16_384 * 16), Some(0)), "{key}");
    }
    read(Some(now));
    for key in keys {
        assert_eq!(idle_and_freq(key), (Some(0), Some(1)), "{key}");
    }
}
