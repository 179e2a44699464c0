//! Keys and fields that expire: absent at once, swept, and told.

use super::told::{Sink, Told};
use super::*;

#[test]
fn an_expired_key_is_absent_at_once_and_the_sweep_finds_every_one() {
    let keyspace = Keyspace::new(3);
    for db in [0, 2] {
        for i in 0..20_000 {
            let key = format!("k{i}");
            let mut view = View::locked(&keyspace, Keyspace::shards_of([key.as_bytes()]), db, 1);
            view.put_string(key.as_bytes(), b"v", Some(1000 + i % 2 * 100_000));
            view.finish();
        }
    }
    assert_eq!(get(&keyspace, "k0", 999), Some("v".into()));
    assert_eq!(get(&keyspace, "k0", 1000), None);
    let (mut sweep, mut rounds) = (Sweep::default(), 0);
    while rounds < 2 {
        rounds += usize::from(sweep.step(&keyspace, 1000, |_| {}) == Swept::Round);
    }
    assert_eq!((keyspace.len(0), keyspace.len(1), keyspace.len(2)), (10_000, 0, 10_000));
    keyspace.check_invariants();
}

/// Import mode: an expired key stays until a write meets it, and those who import have it.
#[test]
fn expired_keys_stay_in_import_mode() {
    let keyspace = Keyspace::new(1);
    keyspace.set_imports(true);
    let view_at = |live: bool| {
        let mut view = View::locked(&keyspace, all(), 0, 100);
        if live {
            view.set_expired_live();
        }
        view
    };
    let fill = || {
        let mut view = View::locked(&keyspace, all(), 0, 1);
        for key in [b"a", b"b", b"c"] {
            view.put_string(key, b"v", Some(50));
        }
        view.finish();
    };
    fill();
    let mut sweep = Sweep::default();
    let mut sweep_all = |told: &mut dyn FnMut()| {
        for _ in 0..1000 {
            sweep.step(&keyspace, 100, |_| told());
        }
    };
    sweep_all(&mut || panic!("swept"));
    let view = view_at(false);
    assert!(!view.exists(b"a"));
    assert_eq!(view.finish().expired, 0);
    let view = view_at(true);
    assert!(view.exists(b"a") && view.exists(b"c"));
    view.finish();
    // A view that writes removes what it has met, so that the log hears of it.
    let mut view = view_at(false);
    assert!(!view.exists(b"a"));
    view.put_string(b"b", b"new", None);
    view.finish();
    let view = view_at(true);
    assert!(!view.exists(b"a") && view.exists(b"c"));
    assert_eq!(view.expire_ms(b"b"), Some(None));
    view.finish();
    // An importer goes on with an expired key, over an overlay too.
    fill();
    for shows_expired in [false, true] {
        let look = Look { used_ms: None, shows_expired };
        let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), look);
        overlay.load(0, [&b"c"[..]]);
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 100);
        assert_eq!(view.exists(b"c"), shows_expired);
        view.put_string(b"d", b"v", None);
        view.finish();
        overlay.commit(100, None).unwrap_or_else(|_| panic!("nobody else writes"));
        assert_eq!(view_at(true).exists(b"c"), shows_expired);
        fill();
    }
    keyspace.set_imports(false);
    sweep_all(&mut || {});
    assert_eq!(keyspace.len(0), 1);
    keyspace.check_invariants();
}

/// The sweep lists keys under one lock and removes them under another: between the two, their database may be
/// exchanged.
#[test]
fn keys_whose_database_is_exchanged_amid_a_sweep_are_swept_in_the_next_round() {
    let keyspace = Keyspace::new(2);
    for i in 0..100 {
        let key = format!("k{i}");
        let mut view = View::locked(&keyspace, Keyspace::shards_of([key.as_bytes()]), 0, 1);
        view.put_string(key.as_bytes(), b"v", Some(1000));
        view.finish();
    }
    let (mut sweep, mut rounds, mut steps) = (Sweep::default(), 0, 0);
    while rounds < 9 {
        rounds += usize::from(sweep.step(&keyspace, 1000, |_| {}) == Swept::Round);
        steps += 1;
        if rounds < 6 && stdx::hash::hash_u64(steps).is_multiple_of(3) {
            let mut view = View::open(&keyspace, 0, 1);
            view.swap(0, 1);
            view.finish();
        }
    }
    keyspace.check_invariants();
    assert_eq!((keyspace.len(0), keyspace.len(1)), (0, 0));
}

/// Stores a hash and gives every third of its `n` fields an expiry, directly or through an overlay.
fn put_hash(keyspace: &Arc<Keyspace>, db: usize, key: &str, n: usize, at: u64, over: bool) {
    let mut hash: value::Hash = (0..n).map(|i| (format!("f{i}"), "v")).collect();
    if over {
        (0..n).step_by(3).for_each(|i| assert!(hash.set_expire(format!("f{i}").as_bytes(), Some(at))));
    }
    let mut view = View::locked(keyspace, Keyspace::shards_of([key.as_bytes()]), db, 1);
    view.put(key.as_bytes(), Value::Hash(hash), None);
    if !over {
        let hash = view.hash_mut(key.as_bytes()).unwrap().unwrap();
        (0..n).step_by(3).for_each(|i| assert!(hash.set_expire(format!("f{i}").as_bytes(), Some(at))));
        view.field_expires(key.as_bytes(), at);
    }
    view.finish();
}

#[test]
fn the_sweep_removes_expired_fields_and_the_hashes_left_empty() {
    let keyspace = Keyspace::new(3);
    keyspace.set_notify(u32::MAX);
    for i in 0..5000 {
        // Some split and merge their segments later on.
        put_hash(&keyspace, 2, &format!("h{i}"), 1 + i % 3, 1000, i % 2 == 0);
    }
    put_hash(&keyspace, 2, "large", 9000, 1000, false);
    put_hash(&keyspace, 2, "later", 9, 2000, true);
    keyspace.check_invariants();
    let (mut sweep, mut rounds, mut events) = (Sweep::default(), 0, std::collections::BTreeMap::new());
    while rounds < 3 {
        let swept = sweep.step(&keyspace, 1000, |changes| {
            assert!(changes.dirty as usize <= 2 * 128, "a quantum is bounded");
            changes.told().events.iter().for_each(|event| *events.entry(event.name).or_insert(0) += 1);
        });
        rounds += usize::from(swept == Swept::Round);
    }
    keyspace.check_invariants();
    // A third of the hashes had one field only, which expired.
    assert_eq!(keyspace.len(2), 5000 - 1667 + 2);
    assert_eq!(events["del"], 1667);
    assert!(events["hexpired"] > 5000 + 3000 / 128);
    assert_eq!(keyspace.stats.expired_fields.load(Ordering::Relaxed), 5000 + 3000);
    let mut view = View::locked(&keyspace, Keyspace::shards_of([&b"large"[..], b"later"]), 2, 1000);
    assert_eq!(view.hash(b"large").unwrap().map(value::Hash::len), Some(6000));
    assert_eq!(view.hash(b"later").unwrap().map(value::Hash::len), Some(9));
    assert!(!view.expire_fields(b"later", std::iter::empty(), 10, &mut |_| {}));
    view.finish();
}

#[test]
fn the_sink_hears_of_every_key_and_field_that_expires() {
    let (keyspace, told) = (Keyspace::new(2), Told::default());
    keyspace.listen(Arc::new(Sink(told.clone())));
    (0..1000).for_each(|i| {
        set(&keyspace, &format!("k{i}"), "v", Some(if i % 2 == 0 { 1000 } else { 9000 }), 1);
    });
    put_hash(&keyspace, 1, "h", 900, 1000, false);
    put_hash(&keyspace, 1, "all", 1, 1000, false);
    let before = keyspace.last_lsn();
    assert!(told.lock().unwrap().is_empty(), "a view tells nothing of what its handler did");
    let (mut sweep, mut rounds) = (Sweep::default(), 0);
    while rounds < 3 {
        rounds += usize::from(sweep.step(&keyspace, 1000, |_| {}) == Swept::Round);
    }
    let told = std::mem::take(&mut *told.lock().unwrap());
    assert!(told.iter().all(|(lsn, ..)| (before + 1..=keyspace.last_lsn()).contains(lsn)));
    let with = |name: &'static str| told.iter().filter(move |(_, _, words)| words[0] == name);
    let keys: BTreeSet<&str> = with("DEL").map(|(_, _, words)| &*words[1]).collect();
    let due: BTreeSet<String> = (0..1000).step_by(2).map(|i| format!("k{i}")).collect();
    assert_eq!(keys, due.iter().map(String::as_str).collect());
    assert_eq!(with("DEL").count(), 500);
    assert!(with("DEL").all(|(_, db, words)| *db == 0 && words.len() == 2));
    let fields = with("HDEL").map(|(_, db, words)| {
        assert_eq!(*db, 1);
        words.len() - 2
    });
    assert_eq!(fields.sum::<usize>(), 300 + 1, "a hash left empty goes with its last field");
}

#[test]
fn the_sink_hears_of_a_key_a_command_finds_expired() {
    let (keyspace, told) = (Keyspace::new(1), Told::default());
    keyspace.listen(Arc::new(Sink(told.clone())));
    for key in ["read", "written"] {
        set(&keyspace, key, "v", Some(1000), 1);
    }
    assert_eq!(get(&keyspace, "read", 1000), None);
    assert_eq!(get(&keyspace, "read", 1000), None);
    let changes = set(&keyspace, "written", "w", None, 1000);
    let told = told.lock().unwrap();
    let words: Vec<_> = told.iter().map(|(_, _, words)| words.join(" ")).collect();
    assert_eq!(words, ["DEL read", "DEL written"]);
    assert_eq!(changes.lsn, keyspace.last_lsn());
}

#[test]
fn the_sweep_knows_about_how_long_keys_live() {
    let keyspace = Keyspace::new(2);
    assert_eq!(keyspace.avg_ttl_ms(0), 0);
    (0..5000).for_each(|i| {
        set(&keyspace, &format!("k{i}"), "v", Some(100_000 + i % 100), 1);
    });
    let (mut sweep, mut rounds) = (Sweep::default(), 0);
    while rounds < 2 {
        rounds += usize::from(sweep.step(&keyspace, 1, |_| {}) == Swept::Round);
    }
    assert!((99_000..101_000).contains(&keyspace.avg_ttl_ms(0)), "{}", keyspace.avg_ttl_ms(0));
    (0..5000).for_each(|i| assert!(del(&keyspace, &format!("k{i}"), 1)));
    assert_eq!(keyspace.avg_ttl_ms(0), 0);
    // The mean of keys that are gone is not that of new ones: neither after a round of the sweep nor after a
    // flush.
    while sweep.step(&keyspace, 1, |_| {}) != Swept::Round {}
    let sampled = |sweep: &mut Sweep, ttl_ms: u64| {
        set(&keyspace, "k", "v", Some(ttl_ms + 1), 1);
        let mut rounds = 0;
        while rounds < 2 {
            rounds += usize::from(sweep.step(&keyspace, 1, |_| {}) == Swept::Round);
        }
        keyspace.avg_ttl_ms(0)
    };
    assert_eq!(sampled(&mut sweep, 5_000), 5_000);
    let mut view = crate::View::whole(&keyspace, 0, 1);
    view.flush(Some(0));
    view.finish();
    assert_eq!(sampled(&mut sweep, 900_000), 900_000);
}
