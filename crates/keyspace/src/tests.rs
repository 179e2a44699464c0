//! The keyspace against a plain map, with snapshots, expiry and cursors checked on the way.

use crate::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stdx::locks::Bits;
use value::{Set, StrRef, Value};

mod expiry;
mod near;
mod take_over;
mod told;
mod whole;

fn all() -> Bits {
    Bits::below(SHARDS)
}

fn set(keyspace: &Keyspace, key: &str, value: &str, expire: Option<u64>, now: u64) -> Changes {
    let mut view = View::locked(keyspace, Keyspace::shards_of([key.as_bytes()]), 0, now);
    view.put_string(key.as_bytes(), value.as_bytes(), expire);
    view.changed(key.as_bytes(), Class::String, "set");
    view.finish()
}

fn get(keyspace: &Keyspace, key: &str, now: u64) -> Option<String> {
    let view = View::locked(keyspace, Keyspace::shards_of([key.as_bytes()]), 0, now);
    let text = view.string(key.as_bytes()).unwrap().map(|s| String::from_utf8(s.to_vec()).unwrap());
    view.finish();
    text
}

fn del(keyspace: &Keyspace, key: &str, now: u64) -> bool {
    let mut view = View::locked(keyspace, Keyspace::shards_of([key.as_bytes()]), 0, now);
    let removed = view.remove(key.as_bytes());
    view.finish();
    removed
}

/// Key to value and expiry.
type Model = BTreeMap<String, (String, Option<u64>)>;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Values of very different sizes, so that entries move, grow, shrink, and leave the segment for a handle.
fn some_value(dice: &mut Dice) -> String {
    let len = [0, 3, 20, 40, 100, 250, 400, 3000, 20_000][dice.below(9) as usize];
    let letter = (b'a' + dice.below(26) as u8) as char;
    std::iter::repeat_n(letter, len).collect()
}

fn some_key(dice: &mut Dice, n: u64) -> String {
    let key = dice.below(n);
    // Now and then a key too long for the entry.
    if key.is_multiple_of(97) { format!("{}{key}", "k".repeat(300)) } else { format!("key:{key}") }
}

#[test]
fn random_writes_agree_with_a_plain_map_and_snapshots_do_not_move() {
    for seed in 1..=6 {
        let mut dice = Dice(seed * 7919);
        let keyspace = Keyspace::new(2);
        if seed % 2 == 0 {
            // Marks and time are kept, though nothing is evicted.
            keyspace.set_eviction(0, Policy::Adaptive, 5);
            keyspace.note_fullness(0, if seed > 3 { 1.0 } else { 0.0 });
        }
        let mut model: Model = BTreeMap::new();
        let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
        let mut now = 1_000_000;
        let keys = [50, 5_000, 40_000][seed as usize % 3];
        for step in 0..30_000 {
            let key = some_key(&mut dice, keys);
            now += dice.below(3);
            model.retain(|_, (_, expire)| step % 512 != 0 || expire.is_none_or(|at| at > now));
            let live = |m: &Model, k: &str| m.get(k).filter(|(_, e)| e.is_none_or(|at| at > now)).cloned();
            match dice.below(10) {
                0..=4 => {
                    let value = some_value(&mut dice);
                    let expire = (dice.below(3) == 0).then(|| now + 1 + dice.below(3000));
                    set(&keyspace, &key, &value, expire, now);
                    model.insert(key, (value, expire));
                }
                5..=6 => {
                    assert_eq!(del(&keyspace, &key, now), live(&model, &key).is_some());
                    model.remove(&key);
                }
                7 => {
                    let expire = (dice.below(2) == 0).then(|| now + 1 + dice.below(3000));
                    let mut view = View::locked(&keyspace, all(), 0, now);
                    let set = view.set_expire(key.as_bytes(), expire);
                    view.finish();
                    assert_eq!(set, live(&model, &key).is_some());
                    if set {
                        model.get_mut(&key).unwrap().1 = expire;
                    } else {
                        model.remove(&key);
                    }
                }
                _ => assert_eq!(get(&keyspace, &key, now), live(&model, &key).map(|(v, _)| v)),
            }
            if dice.below(3000) == 0 {
                snapshots.push((Snapshot::open(&keyspace).unwrap(), model.clone()));
            }
            if snapshots.len() > 4 || dice.below(9000) == 0 && !snapshots.is_empty() {
                let (snapshot, then) = snapshots.remove(0);
                check_snapshot(&keyspace, &snapshot, &then, now);
            }
            if step % 5000 == 0 {
                keyspace.check_invariants();
                keyspace.prune();
            }
        }
        for (snapshot, then) in &snapshots {
            check_snapshot(&keyspace, snapshot, then, now);
        }
        drop(snapshots);
        keyspace.prune();
        assert_eq!(keyspace.pre_images(), 0);
        // All keys go, and the segments with them.
        let keys: Vec<String> = model.keys().cloned().collect();
        keys.iter().for_each(|key| {
            del(&keyspace, key, now);
        });
        let mut sweep = Sweep::default();
        for _ in 0..3 {
            while sweep.step(&keyspace, u64::MAX, |_| {}) == Swept::More {}
        }
        keyspace.check_invariants();
        assert_eq!(keyspace.len(0), 0);
    }
}

fn check_snapshot(keyspace: &Keyspace, snapshot: &Snapshot, then: &Model, now: u64) {
    let mut seen = BTreeSet::new();
    let mut position = Some(0);
    while let Some(at) = position {
        position = keyspace.visit_at(snapshot.lsn(), 0, at, &mut |key, expire, _| {
            if expire.is_none_or(|at| at > now) {
                assert!(seen.insert(String::from_utf8(key.to_vec()).unwrap()), "a key was shown twice");
            }
        });
    }
    let expected: BTreeSet<String> =
        then.iter().filter(|(_, (_, e))| e.is_none_or(|at| at > now)).map(|(k, _)| k.clone()).collect();
    assert_eq!(seen, expected);
    for (key, (value, expire)) in then.iter().step_by(7) {
        let owned = keyspace.read_at(0, key.as_bytes(), snapshot.lsn());
        // A key that expired before the snapshot may have been swept.
        if let Some(owned) = owned {
            assert_eq!(owned.expire_ms, *expire);
            assert!(matches!(&owned.value, Value::Str(s) if s.as_ref().to_vec() == value.as_bytes()));
        } else {
            assert!(expire.is_some_and(|at| at <= now));
        }
    }
}

#[test]
fn a_cursor_finds_every_key_that_stays_through_growth_and_shrinking() {
    let keyspace = Keyspace::new(1);
    let stay: BTreeSet<String> = (0..3_000).map(|i| format!("stay:{i}")).collect();
    stay.iter().for_each(|key| drop(set(&keyspace, key, "v", None, 1)));
    for (grow, count) in [(true, 7), (false, 10), (true, 100), (false, 1)] {
        let mut found = BTreeSet::new();
        let mut cursor = 0;
        let mut turn = 0;
        loop {
            cursor = keyspace.scan(0, cursor, count, 1, &mut |key, _| {
                found.insert(String::from_utf8(key.to_vec()).unwrap());
            });
            for i in 0..40 {
                let key = format!("come-and-go:{}", turn * 40 + i);
                if grow {
                    set(&keyspace, &key, "v", None, 1);
                } else {
                    del(&keyspace, &key, 1);
                }
            }
            turn += 1;
            if cursor == 0 {
                break;
            }
        }
        assert!(stay.is_subset(&found), "grow {grow} count {count}");
        keyspace.check_invariants();
    }
}

#[test]
fn a_cursor_counts_a_long_key_as_many() {
    let keyspace = Keyspace::new(1);
    let long = "x".repeat(100_000);
    (0..1_000).for_each(|i| drop(set(&keyspace, &format!("{long}{i}"), "v", None, 1)));
    let (mut cursor, mut found, mut most) = (0, BTreeSet::new(), 0);
    loop {
        let before = found.len();
        cursor = keyspace.scan(0, cursor, 1_000, 1, &mut |key, _| _ = found.insert(key.to_vec()));
        most = most.max(found.len() - before);
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(found.len(), 1_000);
    // A thousand short keys at once: at most some five, and those in the line of the last.
    assert!(most < 50, "{most}");
}

#[test]
fn an_overlay_is_seen_by_nobody_until_it_commits_whole() {
    let keyspace = Keyspace::new(1);
    set(&keyspace, "a", "1", None, 1);
    let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
    overlay.load(0, [&b"a"[..]]);
    let mut view = View::overlay(&keyspace, &mut overlay, 0, 1);
    view.put_string(b"b", b"2", None);
    view.changed(b"b", Class::String, "set");
    assert!(view.remove(b"a"));
    view.finish();
    assert!(!overlay.load_missing(), "what is overwritten need not be loaded");
    assert_eq!((get(&keyspace, "a", 1), get(&keyspace, "b", 1)), (Some("1".into()), None));
    assert!(overlay.commit(1, None).is_ok());
    assert_eq!(get(&keyspace, "a", 1), None);
    assert_eq!(get(&keyspace, "b", 1), Some("2".into()));
}

#[test]
fn an_overlay_that_read_what_changed_since_does_not_commit() {
    let keyspace = Keyspace::new(1);
    set(&keyspace, "seen", "1", None, 1);
    for absent in [false, true] {
        let key: &[u8] = if absent { b"absent" } else { b"seen" };
        let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
        overlay.load(0, [key, b"out"]);
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 1);
        assert_eq!(view.exists(key), !absent);
        view.put_string(b"out", b"x", None);
        view.finish();
        set(&keyspace, std::str::from_utf8(key).unwrap(), "changed", None, 1);
        assert!(overlay.commit(1, None).is_err());
        assert_eq!(get(&keyspace, "out", 1), None);
        del(&keyspace, "absent", 1);
    }
}

#[test]
fn an_overlay_counts_what_it_takes_and_nothing_that_it_shares() {
    let keyspace = Keyspace::new(1);
    let mut members = Set::new();
    (0..50_000).for_each(|i| assert!(members.insert(format!("member {i}").as_bytes())));
    let large = members.mem_bytes();
    let mut view = View::locked(&keyspace, all(), 0, 1);
    view.put(b"s", Value::Set(members), None);
    view.finish();
    let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
    assert_eq!(overlay.bytes(), 0);
    overlay.load(0, [&b"s"[..]]);
    let known = overlay.bytes();
    assert!(known < 4096, "{known} of {large}");
    // A large value is changed a little, and copied to another key.
    let mut view = View::overlay(&keyspace, &mut overlay, 0, 1);
    assert!(view.set_mut(b"s").unwrap().unwrap().remove(b"member 7"));
    view.changed(b"s", Class::Set, "srem");
    view.finish();
    assert!(overlay.bytes() < known + 8192, "{}", overlay.bytes());
    // After enough changes it is a full copy.
    for i in 100..40_000 {
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 1);
        assert!(view.set_mut(b"s").unwrap().unwrap().remove(format!("member {i}").as_bytes()));
        view.changed(b"s", Class::Set, "srem");
        view.finish();
    }
    assert!(overlay.bytes() < 2 * large + 8192, "{} of {large}", overlay.bytes());
    // New values, and one that grows.
    overlay.reset();
    assert!((known..known + 64).contains(&overlay.bytes()), "{}", overlay.bytes());
    let text = [b'x'; 1000];
    for i in 0..1000 {
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 1);
        view.put_string(format!("new {i}").as_bytes(), &text, None);
        view.finish();
    }
    let written = overlay.bytes();
    assert!((1_000_000..1_500_000).contains(&written), "{written}");
    // An overwritten value is not counted twice.
    for i in 0..1000 {
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 1);
        view.put_string(format!("new {i}").as_bytes(), &text, None);
        view.finish();
    }
    assert_eq!(overlay.bytes(), written);
    // Keys that do not exist.
    for i in 0..1000 {
        assert!(View::overlay(&keyspace, &mut overlay, 0, 1).value(format!("none {i}").as_bytes()).is_none());
    }
    insert_missing(&keyspace, &mut overlay, 2000);
    assert!(overlay.bytes() >= written + 64_000, "{}", overlay.bytes() - written);
}

#[test]
fn a_collection_changed_under_a_snapshot_is_kept_as_it_was() {
    let keyspace = Keyspace::new(1);
    let mut members = Set::new();
    (0..5000).for_each(|i| assert!(members.insert(format!("member {i}").as_bytes())));
    let mut view = View::locked(&keyspace, all(), 0, 1);
    view.put(b"s", Value::Set(members), None);
    view.finish();
    let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
    let mut view = View::locked(&keyspace, all(), 0, 1);
    assert!(view.set_mut(b"s").unwrap().unwrap().remove(b"member 7"));
    view.changed(b"s", Class::Set, "srem");
    view.finish();
    overlay.load(0, [&b"s"[..]]);
    let view = View::overlay(&keyspace, &mut overlay, 0, 1);
    assert_eq!(view.set(b"s").unwrap().unwrap().len(), 5000);
    drop(view);
    let view = View::locked(&keyspace, all(), 0, 1);
    assert_eq!(view.set(b"s").unwrap().unwrap().len(), 4999);
}

#[test]
fn a_random_key_is_any_key_with_similar_chances() {
    let keyspace = Keyspace::new(1);
    (0..100).for_each(|i| drop(set(&keyspace, &format!("k{i}"), "v", None, 1)));
    let mut counts = BTreeMap::new();
    for i in 0..20_000u64 {
        let key = keyspace.random_key(0, 1, stdx::hash::hash_u64(i)).unwrap();
        *counts.entry(key).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 100);
    assert!(counts.values().all(|n| (60..600).contains(n)), "{counts:?}");
}

#[test]
fn a_string_edited_in_place_keeps_its_length_and_says_raw() {
    let keyspace = Keyspace::new(1);
    set(&keyspace, "s", "hello", None, 1);
    let mut view = View::locked(&keyspace, all(), 0, 1);
    if let Some(StrMut::Inline(bytes)) = view.string_mut(b"s").unwrap() {
        bytes[0] = b'j';
    }
    assert!(view.is_raw(b"s"));
    assert!(matches!(view.string(b"s"), Ok(Some(StrRef::Flat(b"jello")))));
}

/// After random removals of nearly all keys, the pages are given back without a sweep.
#[test]
fn pages_follow_what_lives() {
    let keyspace = Keyspace::new(1);
    let value = "v".repeat(40);
    (0..200_000).for_each(|i| drop(set(&keyspace, &format!("key:{i:036}"), &value, None, 1)));
    let full = keyspace.footprint();
    (0..200_000).filter(|i| i % 16 != 0).for_each(|i| assert!(del(&keyspace, &format!("key:{i:036}"), 1)));
    let after = keyspace.footprint();
    keyspace.check_invariants();
    assert!(full / 200_000 <= 105, "{} bytes per key", full / 200_000);
    // One table and two pages per shard are left: the least this many shards can have.
    assert!(after <= SHARDS * (8192 + 3 * 4096), "{full} bytes full, {after} after");
}

/// A long commit under way, and what the model must become when it is decided.
struct Attempt {
    commit: Commit,
    writes: Vec<(String, Option<String>)>,
    reads: Vec<(String, Option<String>)>,
    removes: bool,
    /// How many of the keys existed.
    removed: usize,
    /// Whether it empties the database before it writes.
    flushes: bool,
}

struct Given(Vec<(String, Option<String>)>);

impl Words for Given {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn key(&self, i: usize) -> &[u8] {
        self.0[i].0.as_bytes()
    }
    fn value(&self, i: usize) -> Option<&[u8]> {
        self.0[i].1.as_ref().map(|value| value.as_bytes())
    }
}

/// An MSET or a DEL of many keys, some named twice.
fn begin_bulk(keyspace: &Arc<Keyspace>, dice: &mut Dice, age: u64) -> Attempt {
    let removes = dice.below(2) == 0;
    let words = (0..1 + dice.below(40))
        .map(|i| (format!("k{}", dice.below(60)), (!removes).then(|| format!("bulk {age} {i}"))));
    let words: Vec<_> = words.collect();
    let commit = Commit::bulk(keyspace, 0, Arc::new(Given(words.clone())), age, None);
    Attempt { commit, writes: words, reads: Vec::new(), removes, removed: 0, flushes: false }
}

/// Reads the missed keys, `count` at a time.
fn insert_missing(keyspace: &Keyspace, overlay: &mut Overlay, count: usize) {
    let mut asked = overlay.take_missing();
    while !keyspace.read_asked(overlay.snapshot().lsn(), None, &mut asked, count) {}
    overlay.insert_many(asked);
}

fn begin(keyspace: &Arc<Keyspace>, dice: &mut Dice, model: &Model, age: u64) -> Attempt {
    if dice.below(3) == 0 {
        return begin_bulk(keyspace, dice, age);
    }
    let mut overlay = Overlay::new(Snapshot::open(keyspace).unwrap(), None);
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    let (mut used, mut flushes) = (BTreeSet::new(), false);
    for i in 0..1 + dice.below(40) {
        if dice.below(100) == 0 {
            View::overlay(keyspace, &mut overlay, 0, 1).flush(Some(0));
            writes.clear();
            flushes = true;
        }
        let key = format!("k{}", dice.below(60));
        if !used.insert(key.clone()) {
            continue;
        }
        let blind = dice.below(3) == 0;
        if !blind && dice.below(2) == 0 {
            overlay.load(0, [key.as_bytes()]);
        } else if !blind {
            assert_eq!(View::overlay(keyspace, &mut overlay, 0, 1).expire_ms(key.as_bytes()), None);
            insert_missing(keyspace, &mut overlay, 1);
        }
        let mut view = View::overlay(keyspace, &mut overlay, 0, 1);
        if !blind {
            let seen = view.string(key.as_bytes()).unwrap().map(|s| String::from_utf8(s.to_vec()).unwrap());
            assert_eq!(seen, model.get(&key).filter(|_| !flushes).map(|(v, _)| v.clone()));
            if !flushes {
                reads.push((key.clone(), seen));
            }
        }
        match dice.below(3) {
            0 if !blind => {}
            1 if !blind => {
                view.remove(key.as_bytes());
                writes.push((key, None));
            }
            _ => {
                let value = format!("long {age} {i}");
                view.put_string(key.as_bytes(), value.as_bytes(), None);
                view.changed(key.as_bytes(), Class::String, "set");
                writes.push((key, Some(value)));
            }
        }
        view.finish();
    }
    assert!(!overlay.has_missing());
    Attempt { commit: overlay.seal(age, None), writes, reads, removes: false, removed: 0, flushes }
}

/// Reads several keys at once, as a command does.
fn read_many(keyspace: &Keyspace, keys: &[String]) -> Vec<Option<String>> {
    let names: Vec<&[u8]> = keys.iter().map(|k| k.as_bytes()).collect();
    let mut view = View::locked(keyspace, Keyspace::shards_of(names.iter().copied()), 0, 1);
    if view.has_intents() {
        let pairs: Vec<_> = names.iter().map(|name| (0, *name)).collect();
        view.settle(&pairs, false);
    }
    let found = names
        .iter()
        .map(|k| view.string(k).unwrap().map(|s| String::from_utf8(s.to_vec()).unwrap()))
        .collect();
    view.finish();
    found
}

fn write_one(keyspace: &Keyspace, key: &str, value: Option<&str>) {
    let mut view = View::locked(keyspace, Keyspace::shards_of([key.as_bytes()]), 0, 1);
    if view.has_intents() {
        view.settle(&[(0, key.as_bytes())], true);
    }
    match value {
        Some(value) => view.put_string(key.as_bytes(), value.as_bytes(), None),
        None => drop(view.remove(key.as_bytes())),
    }
    view.changed(key.as_bytes(), Class::String, "x");
    view.finish();
}

#[test]
fn long_commits_are_seen_whole_or_not_at_all_whoever_comes_between() {
    let (mut committed, mut lost, mut flushed) = (0, 0, 0);
    for seed in 1..=60u64 {
        let mut dice = Dice(seed * 104_729);
        let keyspace = Keyspace::new(1);
        let mut model: Model = BTreeMap::new();
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
        for step in 0..2500u64 {
            match dice.below(24) {
                0 if attempts.len() < 3 => attempts.push(begin(&keyspace, &mut dice, &model, step)),
                1 => {
                    let key = format!("k{}", dice.below(60));
                    let value = (dice.below(3) != 0).then(|| format!("short {step}"));
                    write_one(&keyspace, &key, value.as_deref());
                    match value {
                        Some(value) => drop(model.insert(key, (value, None))),
                        None => drop(model.remove(&key)),
                    }
                }
                2..=4 => {
                    let keys: Vec<String> = (0..8).map(|_| format!("k{}", dice.below(60))).collect();
                    let expected: Vec<_> =
                        keys.iter().map(|k| model.get(k).map(|(v, _)| v.clone())).collect();
                    assert_eq!(read_many(&keyspace, &keys), expected);
                }
                5 if snapshots.len() < 3 => {
                    snapshots.push((Snapshot::open(&keyspace).unwrap(), model.clone()));
                }
                6 if !snapshots.is_empty() => {
                    let (snapshot, then) = snapshots.remove(0);
                    if snapshot.is_current() {
                        check_snapshot(&keyspace, &snapshot, &then, 1);
                    }
                }
                7 => {
                    let (mut found, mut cursor) = (BTreeSet::new(), 0);
                    let mut view = View::open(&keyspace, 0, 1);
                    loop {
                        cursor = view.scan(cursor, 10, &mut |key, _| {
                            found.insert(String::from_utf8(key.to_vec()).unwrap());
                        });
                        if cursor == 0 {
                            break;
                        }
                    }
                    assert_eq!(found, model.keys().cloned().collect());
                }
                8 if dice.below(30) == 0 => {
                    let mut view = View::open(&keyspace, 0, 1);
                    view.flush(None);
                    view.finish();
                    model.clear();
                }
                _ if !attempts.is_empty() => {
                    let i = dice.below(attempts.len() as u64) as usize;
                    let attempt = &mut attempts[i];
                    let before = attempt.commit.is_decided();
                    let keys = 1 + dice.below(4) as usize;
                    let progress = attempt.commit.advance(1, keys, &mut Vec::new());
                    if !before && attempt.commit.is_decided() {
                        for (key, seen) in &attempt.reads {
                            assert_eq!(
                                model.get(key).map(|(v, _)| v),
                                seen.as_ref(),
                                "it read what has changed"
                            );
                        }
                        if attempt.removes {
                            let there = attempt.writes.iter().filter(|(key, _)| model.contains_key(key));
                            attempt.removed = there.map(|(key, _)| key).collect::<BTreeSet<_>>().len();
                        }
                        if attempt.flushes {
                            model.clear();
                            flushed += 1;
                        }
                        for (key, value) in attempt.writes.drain(..) {
                            match value {
                                Some(value) => drop(model.insert(key, (value, None))),
                                None => drop(model.remove(&key)),
                            }
                        }
                    }
                    match progress {
                        Progress::More => continue,
                        Progress::Committed(_) => committed += 1,
                        Progress::Lost => lost += 1,
                    }
                    assert_eq!(attempt.commit.found(), attempt.removed);
                    attempts.remove(i);
                }
                _ => {}
            }
        }
        for mut attempt in attempts {
            if attempt.commit.is_decided() {
                while attempt.commit.advance(1, 100, &mut Vec::new()) == Progress::More {}
            }
        }
        drop(snapshots);
        assert_eq!(keyspace.intents.load(Ordering::Relaxed), 0);
        let keys: Vec<String> = (0..60).map(|i| format!("k{i}")).collect();
        let expected: Vec<_> = keys.iter().map(|k| model.get(k).map(|(v, _)| v.clone())).collect();
        assert_eq!(read_many(&keyspace, &keys), expected);
        keyspace.check_invariants();
    }
    assert!(
        committed > 300 && lost > 300 && flushed > 20,
        "{committed} committed, {lost} lost, {flushed} flushed"
    );
}

#[test]
fn transfers_between_threads_keep_their_sum() {
    let keyspace = Keyspace::new(1);
    let accounts: Vec<String> = (0..300).map(|i| format!("account {i}")).collect();
    accounts.iter().for_each(|a| write_one(&keyspace, a, Some("100")));
    let number = |text: Option<String>| text.map_or(0, |t| t.parse::<i64>().unwrap());
    std::thread::scope(|scope| {
        for t in 0..3u64 {
            let (keyspace, accounts) = (&keyspace, &accounts);
            scope.spawn(move || {
                let mut dice = Dice(t * 7 + 13);
                for round in 0..120 {
                    // Moves one from each account of the first half to the second, in pieces.
                    loop {
                        let mut overlay = Overlay::new(Snapshot::open(keyspace).unwrap(), None);
                        overlay.load(0, accounts.iter().map(|a| a.as_bytes()));
                        let mut view = View::overlay(keyspace, &mut overlay, 0, 1);
                        for (i, account) in accounts.iter().enumerate() {
                            let text = view.string(account.as_bytes()).unwrap();
                            let had: i64 =
                                String::from_utf8(text.unwrap().to_vec()).unwrap().parse().unwrap();
                            let now = had + if i < 150 { -1 } else { 1 };
                            view.put_string(account.as_bytes(), now.to_string().as_bytes(), None);
                        }
                        view.finish();
                        let mut commit = overlay.seal(t * 1000 + round, None);
                        let ended = loop {
                            match commit.advance(1, 1 + dice.below(20) as usize, &mut Vec::new()) {
                                Progress::More => {}
                                ended => break ended,
                            }
                        };
                        if ended != Progress::Lost {
                            break;
                        }
                    }
                }
            });
        }
        for t in 0..2u64 {
            let (keyspace, accounts) = (&keyspace, &accounts);
            scope.spawn(move || {
                let mut dice = Dice(t + 77);
                for _ in 0..300 {
                    // Short commands move between two accounts; every reader sees the same sum.
                    let pair = [0, 1].map(|_| accounts[dice.below(300) as usize].clone());
                    if pair[0] != pair[1] && dice.below(8) == 0 {
                        let names: Vec<_> = pair.iter().map(|a| (0, a.as_bytes())).collect();
                        let shards = Keyspace::shards_of(pair.iter().map(|a| a.as_bytes()));
                        let mut view = View::locked(keyspace, shards, 0, 1);
                        view.settle(&names, true);
                        for (account, by) in pair.iter().zip([-5, 5]) {
                            let text = view.string(account.as_bytes()).unwrap().map(|s| s.to_vec());
                            let had = number(text.map(|t| String::from_utf8(t).unwrap()));
                            view.put_string(account.as_bytes(), (had + by).to_string().as_bytes(), None);
                        }
                        view.finish();
                    }
                    let all = read_many(keyspace, accounts);
                    assert_eq!(all.into_iter().map(number).sum::<i64>(), 30_000);
                }
            });
        }
    });
    keyspace.check_invariants();
}

#[test]
fn many_keys_are_locked_and_found_however_many_they_are() {
    let keyspace = Keyspace::new(2);
    let names: Vec<String> = (0..200).map(|n| format!("key {n}")).collect();
    for count in [0, 1, 2, 63, 64, 65, 200] {
        let mut keys = KeySet::default();
        names[..count].iter().for_each(|name| keys.add(name.as_bytes()));
        let mut view = View::locked_many(&keyspace, &keys, 0, 1);
        for name in &names[..count] {
            view.put_string(name.as_bytes(), format!("{count}").as_bytes(), None);
        }
        view.finish();
        names[..count].iter().for_each(|name| assert_eq!(get(&keyspace, name, 1), Some(count.to_string())));
    }
    keyspace.check_invariants();
}

#[test]
fn an_overlay_shows_the_whole_as_of_its_snapshot_with_its_own_changes() {
    let keyspace = Keyspace::new(2);
    let name = |i: u64| format!("key {i}");
    (0..5_000).for_each(|i| drop(set(&keyspace, &name(i), "v", (i % 50 == 0).then_some(10), 1)));
    let mut expected: BTreeSet<String> = (0..5_000).filter(|i| i % 50 != 0).map(name).collect();
    let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
    // Others change the keys; the overlay does not see it.
    for i in 0..500 {
        del(&keyspace, &name(i * 3), 20);
    }
    (9_000..9_200).for_each(|i| drop(set(&keyspace, &name(i), "late", None, 20)));
    for i in (0..300).map(|i| i * 7) {
        overlay.load(0, [name(i).as_bytes()]);
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 20);
        view.remove(name(i).as_bytes());
        view.finish();
        expected.remove(&name(i));
    }
    for i in 7_000..7_050 {
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 20);
        view.put_string(name(i).as_bytes(), b"mine", None);
        view.finish();
        expected.insert(name(i));
    }
    let s = overlay.snapshot().lsn();
    let whole = |overlay: &mut Overlay, count: usize| loop {
        let (mut found, mut cursor) = (BTreeSet::new(), 0);
        let mut view = View::overlay(&keyspace, overlay, 0, 20);
        loop {
            cursor = view.scan(cursor, count, &mut |key, kind| {
                assert_eq!(kind, value::Kind::Str);
                assert!(found.insert(String::from_utf8(key.to_vec()).unwrap()), "shown twice");
            });
            if cursor == 0 {
                break;
            }
        }
        view.finish();
        match overlay.take_wanted_chunk() {
            Some((db, position, want)) => {
                let mut chunk = Chunk::default();
                while !keyspace.extend_chunk(s, db, position, want, &mut chunk) {}
                overlay.insert_chunk(db, position, chunk);
            }
            None => break found,
        }
    };
    assert_eq!(whole(&mut overlay, 100), expected);
    let mut view = View::overlay(&keyspace, &mut overlay, 0, 20);
    for i in 0..200u64 {
        let key = view.random_key(stdx::hash::hash_u64(i)).unwrap();
        assert!(expected.contains(std::str::from_utf8(&key).unwrap()));
    }
    view.flush(Some(0));
    view.put_string(b"after", b"x", None);
    assert_eq!(view.len(), 1);
    view.finish();
    assert_eq!(whole(&mut overlay, 10), BTreeSet::from(["after".to_string()]));
    assert!(overlay.commit(20, None).is_err(), "it removed keys that others removed meanwhile");
    let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
    let mut view = View::overlay(&keyspace, &mut overlay, 0, 20);
    view.flush(None);
    view.put_string(b"after", b"x", None);
    view.finish();
    assert!(overlay.commit(20, None).is_ok());
    assert_eq!((keyspace.len(0), get(&keyspace, "after", 20)), (1, Some("x".into())));
    keyspace.check_invariants();
}

/// A random step of a handler on three databases, the same for a view of everything and an overlay of a twin.
fn act_on(view: &mut View<'_>, dice: &mut Dice) -> String {
    let key = format!("k{}", dice.below(20));
    let key = key.as_bytes();
    view.select(dice.below(3) as usize);
    match dice.below(12) {
        0..4 => view.put_string(key, format!("{}", dice.below(100)).as_bytes(), None),
        4 | 5 => return format!("{}", view.remove(key)),
        6 => return format!("{}", view.set_expire(key, Some(100))),
        7 => view.swap(dice.below(3) as usize, dice.below(3) as usize),
        8 if dice.below(4) == 0 => drop(view.flush(Some(view.db()))),
        9 => return format!("{}", view.len()),
        10 => return format!("{:?}", view.expire_ms(key)),
        _ => return format!("{:?}", view.string(key).unwrap().map(|s| s.to_vec())),
    }
    String::new()
}

#[test]
fn an_overlay_exchanges_databases_as_the_keyspace_does() {
    for seed in 1..200 {
        let (plain, twin) = (Keyspace::new(3), Keyspace::new(3));
        for keyspace in [&plain, &twin] {
            let mut view = View::whole(keyspace, 0, 1);
            (0..10).for_each(|i| {
                view.select(i % 3);
                view.put_string(format!("k{i}").as_bytes(), b"first", None);
            });
            view.finish();
        }
        let mut overlay = Overlay::new(Snapshot::open(&twin).unwrap(), None);
        let mut view = View::whole(&plain, 0, 1);
        for step in 0..40 {
            let expected = act_on(&mut view, &mut Dice(seed * 1000 + step));
            let seen = loop {
                let mut over = View::overlay(&twin, &mut overlay, 0, 1);
                let seen = act_on(&mut over, &mut Dice(seed * 1000 + step));
                over.finish();
                // A step that missed keys changed nothing yet, and is run again.
                if !overlay.load_missing() {
                    break seen;
                }
            };
            assert_eq!(seen, expected, "step {step} of {seed}");
        }
        view.finish();
        overlay.commit(1, None).unwrap();
        let all = |keyspace: &Keyspace, db: usize| -> Vec<Option<Owned>> {
            (0..20).map(|i| keyspace.read_at(db, format!("k{i}").as_bytes(), Lsn::MAX)).collect()
        };
        for db in 0..3 {
            let text = |found: Vec<Option<Owned>>| format!("{found:?}");
            assert_eq!(text(all(&twin, db)), text(all(&plain, db)), "database {db} of {seed}");
        }
        plain.check_invariants();
        twin.check_invariants();
    }
}

/// Pre-images go although snapshots overlap without end, and those of a revoked snapshot count no more.
#[test]
fn what_is_kept_goes_while_others_are_open_and_with_who_is_revoked() {
    let keyspace = Keyspace::new(1);
    set(&keyspace, "k", "0", None, 0);
    let mut open = std::collections::VecDeque::new();
    for n in 1..200 {
        open.push_back((Snapshot::open(&keyspace).unwrap(), n - 1));
        set(&keyspace, "k", &n.to_string(), None, 0);
        set(&keyspace, &format!("k{n}"), "x", None, 0);
        if open.len() > 3 {
            open.pop_front();
        }
        keyspace.prune();
        for (snapshot, then) in &open {
            let read = keyspace.read_at(0, b"k", snapshot.lsn()).unwrap();
            assert!(
                matches!(&read.value, Value::Str(s) if s.as_ref().to_vec() == then.to_string().into_bytes())
            );
        }
    }
    assert!(keyspace.pre_images() < 20, "{} keys are kept", keyspace.pre_images());

    let large = "x".repeat(100_000);
    set(&keyspace, "large", &large, None, 0);
    open.clear();
    let old = Snapshot::open(&keyspace).unwrap();
    let limits = Limits { age_ms: 1000, bytes: 150_000 };
    assert_eq!(keyspace.limit_snapshots(5, limits, 0), []);
    assert!(keyspace.retained().0 < 1000);
    assert!(del(&keyspace, "large", 0));
    assert_eq!(keyspace.limit_snapshots(900, limits, 0), []);
    let (bytes, age_ms) = keyspace.retained();
    assert!((100_000..110_000).contains(&bytes) && age_ms == 895, "{bytes} bytes, {age_ms} ms");
    // Together with bytes of others it is too much.
    let young = Snapshot::open(&keyspace).unwrap();
    let revoked = keyspace.limit_snapshots(901, limits, 60_000);
    assert_eq!(revoked.iter().map(|r| (r.lsn, r.why)).collect::<Vec<_>>(), [(old.lsn(), Ended::TooLarge)]);
    assert_eq!((old.ended(), young.ended()), (Some(Ended::TooLarge), None));
    assert!(keyspace.retained().0 == 0 && keyspace.active_snapshots() == 1);
    assert_eq!(keyspace.limit_snapshots(1902, limits, 0)[0].why, Ended::TooOld);
    assert!(!young.is_current() && keyspace.active_snapshots() == 0);
    set(&keyspace, "k", "last", None, 0);
    assert_eq!(keyspace.pre_images(), 0);
    drop((old, young));
    assert_eq!(keyspace.active_snapshots(), 0);
}

/// Each write finds a snapshot opened after the write before, and nothing else prunes.
#[test]
fn versions_of_a_large_value_do_not_pile_up_between_two_prunings() {
    let keyspace = Keyspace::new(1);
    let kept =
        || -> usize { (0..SHARDS).map(|shard| keyspace.shards.lock_one(shard).get(shard).pre.bytes()).sum() };
    let value = |n: usize| n.to_string().repeat(100_000 / n.to_string().len());
    set(&keyspace, "large", &value(0), None, 0);
    let first = Snapshot::open(&keyspace).unwrap();
    let mut last = Snapshot::open(&keyspace).unwrap();
    for n in 1..100 {
        set(&keyspace, "large", &value(n), None, 0);
        let read = keyspace.read_at(0, b"large", last.lsn()).unwrap();
        assert!(matches!(&read.value, Value::Str(s) if s.as_ref().to_vec() == value(n - 1).into_bytes()));
        last = Snapshot::open(&keyspace).unwrap();
    }
    // A snapshot in between may need all of them: they go in generations (H2).
    assert!(kept() > 9_000_000, "{} bytes", kept());
    drop(first);
    for n in 100..200 {
        set(&keyspace, "large", &value(n), None, 0);
        last = Snapshot::open(&keyspace).unwrap();
    }
    assert!(kept() < 500_000, "{} bytes", kept());
    set(&keyspace, "large", &value(200), None, 0);
    let read = keyspace.read_at(0, b"large", last.lsn()).unwrap();
    assert!(matches!(&read.value, Value::Str(s) if s.as_ref().to_vec() == value(199).into_bytes()));
}

#[test]
fn long_work_leaves_places_for_short_work() {
    let keyspace = Keyspace::new(1);
    let long: Vec<_> = (0..MAX_LONG).map(|_| Snapshot::open(&keyspace).unwrap()).collect();
    assert!(Snapshot::open(&keyspace).is_none());
    let short: Vec<_> = (MAX_LONG..MAX_ACTIVE).map(|_| Snapshot::open_short(&keyspace).unwrap()).collect();
    assert!(Snapshot::open_short(&keyspace).is_none());
    drop(short);
    assert!(Snapshot::open(&keyspace).is_none() && Snapshot::open_short(&keyspace).is_some());
    drop(long);
    assert!(Snapshot::open(&keyspace).is_some());
}
