//! Keys read together with their neighbours: how an overlay sees them, and what a commit then checks.

use super::*;

#[test]
fn what_is_read_near_a_key_is_what_is_read_key_by_key() {
    let keyspace = Keyspace::new(2);
    let name = |i: u64| format!("key {i}");
    (0..20_000).for_each(|i| drop(set(&keyspace, &name(i), &i.to_string(), None, 1)));
    let snapshot = Snapshot::open(&keyspace).unwrap();
    (0..2_000).step_by(3).for_each(|i| assert!(del(&keyspace, &name(i * 10), 1)));
    (20_000..20_500).for_each(|i| drop(set(&keyspace, &name(i), "late", None, 1)));
    let mut overlay = Overlay::new(snapshot, None);
    let (mut looked_at, mut adopted, mut dice) = (0, 0, Dice(99));
    for _ in 0..3_000 {
        let key = name(dice.below(21_000));
        let hash = stdx::hash::hash_bytes(key.as_bytes());
        let s = overlay.snapshot().lsn();
        if overlay.knows(0, key.as_bytes()) && dice.below(2) == 0 {
            looked_at += 1;
        } else if overlay.adopt(0, key.as_bytes()) {
            adopted += 1;
        } else if !overlay.knows(0, key.as_bytes()) {
            overlay.load(0, [key.as_bytes()]);
            let mut near = KeyBatches::default();
            let to = keyspace.read_near(s, 0, hash, 100, &mut near);
            overlay.insert_near(0, hash, to, near);
        }
        let view = View::overlay(&keyspace, &mut overlay, 0, 1);
        let seen = view.string(key.as_bytes()).unwrap().map(|s| s.to_vec());
        let expected = keyspace.read_at(0, key.as_bytes(), s).map(|owned| match owned.value {
            Value::Str(s) => s.as_ref().to_vec(),
            other => panic!("{:?}", other.kind()),
        });
        assert_eq!(seen, expected, "{key}");
    }
    assert!(!overlay.has_missing());
    assert!(adopted > 700 && looked_at > 700, "{adopted} and {looked_at} of 3000 were near another");
}

#[test]
fn very_many_keys_are_read_as_one_by_one() {
    let keyspace = Keyspace::new(2);
    let name = |i: u64| format!("key {i}");
    let long = "x".repeat(5_000);
    let shown = |owned: Option<Owned>| {
        owned.map(|owned| match owned.value {
            Value::Str(s) => (s.as_ref().to_vec(), owned.expire_ms),
            other => panic!("{:?}", other.kind()),
        })
    };
    (0..6_000).for_each(|i| drop(set(&keyspace, &name(i), if i % 7 == 0 { &long } else { "then" }, None, 1)));
    let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
    let s = overlay.snapshot().lsn();
    (0..2_000).step_by(3).for_each(|i| assert!(del(&keyspace, &name(i), 1)));
    (2_000..8_000).step_by(3).for_each(|i| drop(set(&keyspace, &name(i), "later", Some(90_000), 1)));
    let names: Vec<String> = (0..9_000).chain(5..9).map(name).collect();
    let asked: Vec<_> =
        names.iter().map(|name| (stdx::hash::hash_bytes(name.as_bytes()), name.as_bytes())).collect();
    let mut batches = KeyBatches::default();
    asked.chunks(100).for_each(|asked| keyspace.read_many(s, None, 0, asked.iter().copied(), &mut batches));
    assert_eq!(batches.len(), 9_004);
    overlay.insert_many(batches);
    for name in &names {
        assert!(overlay.knows(0, name.as_bytes()));
        let view = View::overlay(&keyspace, &mut overlay, 0, 1);
        assert_eq!(
            shown(view.owned(name.as_bytes())),
            shown(keyspace.read_at(0, name.as_bytes(), s)),
            "{name}"
        );
    }
    assert!(!overlay.has_missing());
    // A key that came twice may be marked twice.
    assert!((9_000..=9_004).contains(&overlay.len()));
    overlay.adopt_read();
    assert_eq!((overlay.len(), overlay.near_read()), (9_000, 0));
    for name in &names {
        let view = View::overlay(&keyspace, &mut overlay, 0, 1);
        assert_eq!(
            shown(view.owned(name.as_bytes())),
            shown(keyspace.read_at(0, name.as_bytes(), s)),
            "{name}"
        );
    }
    // A key that was absent and exists now is a lost race, too.
    let mut view = View::overlay(&keyspace, &mut overlay, 0, 1);
    view.put_string(b"other", b"1", None);
    drop(view);
    assert!(overlay.commit(1, None).is_err());
}

/// Reads around key 0, and returns the overlay and the names it has without knowing them.
fn overlay_with_near(keyspace: &Arc<Keyspace>, name: &dyn Fn(u64) -> String) -> (Overlay, Vec<String>) {
    let mut overlay = Overlay::new(Snapshot::open(keyspace).unwrap(), None);
    // Starts at the beginning of the shard: key 0 may be its last key.
    let shard = crate::shard_of(stdx::hash::hash_bytes(name(0).as_bytes()));
    let hash = (shard as u64) << (u64::BITS - SHARDS.ilog2());
    let mut near = KeyBatches::default();
    let to = keyspace.read_near(overlay.snapshot().lsn(), 0, hash, 100, &mut near);
    let names: Vec<String> =
        near.names().map(|(_, name)| String::from_utf8_lossy(name).into_owned()).collect();
    overlay.insert_near(0, hash, to, near);
    assert!(names.len() > 2 && overlay.is_empty());
    (overlay, names)
}

#[test]
fn what_was_looked_at_near_a_key_is_checked_and_what_was_not_is_not() {
    let name = |i: u64| format!("key {i}");
    let seen = |overlay: &mut Overlay, keyspace: &Arc<Keyspace>, key: &str| {
        let view = View::overlay(keyspace, overlay, 0, 1);
        view.string(key.as_bytes()).unwrap().map(|s| String::from_utf8_lossy(&s.to_vec()).into_owned())
    };
    // Others meanwhile change the key that was read, and one that was only there.
    for (read_changes, written_after) in [(false, false), (true, false), (false, true), (true, true)] {
        let keyspace = Keyspace::new(1);
        (0..20_000).for_each(|i| drop(set(&keyspace, &name(i), &i.to_string(), None, 1)));
        let (mut overlay, near) = overlay_with_near(&keyspace, &name);
        assert_eq!(seen(&mut overlay, &keyspace, &near[0]), get(&keyspace, &near[0], 1));
        assert_eq!(seen(&mut overlay, &keyspace, &near[0]), get(&keyspace, &near[0], 1));
        assert!(!overlay.has_missing());
        assert_eq!((overlay.len(), overlay.near_read()), (1, 1));
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 1);
        view.put_string(b"other", b"1", None);
        if written_after {
            view.put_string(near[0].as_bytes(), b"mine", None);
        }
        // A change in place: the old value is known without a further read.
        assert!(view.set_expire(near[2].as_bytes(), Some(50_000)));
        drop(view);
        assert!(!overlay.has_missing());
        assert_eq!(seen(&mut overlay, &keyspace, &near[2]), get(&keyspace, &near[2], 1));
        drop(set(&keyspace, &near[1], "theirs", None, 1));
        if read_changes {
            drop(set(&keyspace, &near[0], "theirs", None, 1));
        }
        assert_eq!(overlay.commit(1, None).is_err(), read_changes);
        let expected = match (read_changes, written_after) {
            (true, _) => Some("theirs"),
            (false, true) => Some("mine"),
            (false, false) => near[0].strip_prefix("key "),
        };
        assert_eq!(get(&keyspace, &near[0], 1).as_deref(), expected);
        keyspace.check_invariants();
    }
}

#[test]
fn a_flush_takes_what_was_looked_at_near_a_key_with_it() {
    let name = |i: u64| format!("key {i}");
    let keyspace = Keyspace::new(1);
    (0..20_000).for_each(|i| drop(set(&keyspace, &name(i), &i.to_string(), None, 1)));
    let (mut overlay, near) = overlay_with_near(&keyspace, &name);
    let view = View::overlay(&keyspace, &mut overlay, 0, 1);
    assert!(view.string(near[0].as_bytes()).unwrap().is_some());
    drop(view);
    overlay.flush(0);
    let view = View::overlay(&keyspace, &mut overlay, 0, 1);
    assert!(near.iter().all(|key| view.string(key.as_bytes()).unwrap().is_none()));
    drop(view);
    assert!(!overlay.has_missing());
    assert!(overlay.commit(1, None).is_ok());
    assert_eq!(keyspace.len(0), 0);
}

/// Keys are missed in order and twice, changed by others meanwhile, and looked at in order and out of order.
#[test]
fn what_was_asked_for_in_vain_is_found_in_any_order() {
    let keyspace = Keyspace::new(2);
    let name = |i: u64| format!("key {i}");
    let long = "x".repeat(5_000);
    (0..6_000).for_each(|i| drop(set(&keyspace, &name(i), if i % 7 == 0 { &long } else { "then" }, None, 1)));
    for count in [1, 33, 5_000] {
        let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
        let s = overlay.snapshot().lsn();
        let mut dice = Dice(count as u64);
        let names: Vec<String> = (0..5_000).map(|_| name(dice.below(7_000))).collect();
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 1);
        names.iter().for_each(|name| assert_eq!(view.expire_ms(name.as_bytes()), None));
        view.select(1);
        assert_eq!(view.expire_ms(b"elsewhere"), None);
        view.select(0);
        // A missed key that is to be changed is there when the handler runs again.
        assert!(!view.set_expire(b"key 1", Some(50_000)));
        assert!(view.awaits_keys());
        drop(view);
        (0..600).for_each(|i| drop(set(&keyspace, &name(i), "later", Some(90_000), 1)));
        insert_missing(&keyspace, &mut overlay, count);
        let check = |overlay: &mut Overlay, name: &String| {
            let view = View::overlay(&keyspace, overlay, 0, 1);
            let seen = view.string(name.as_bytes()).unwrap().map(|s| s.to_vec());
            let then = keyspace.read_at(0, name.as_bytes(), s).map(|owned| match owned.value {
                Value::Str(s) => s.as_ref().to_vec(),
                other => panic!("{:?}", other.kind()),
            });
            assert_eq!(seen, then, "{name}");
        };
        names.iter().for_each(|name| check(&mut overlay, name));
        (0..5_000).for_each(|_| check(&mut overlay, &names[dice.below(5_000) as usize]));
        assert!(View::overlay(&keyspace, &mut overlay, 0, 1).set_expire(b"key 1", Some(50_000)));
        check(&mut overlay, &names[17]);
        assert!(!overlay.has_missing());
    }
}

/// A long commit that read very many keys. Either none of them changes, or one changes before or during the
/// commit, or one expires. Or an unread key in one of their shards changes.
#[test]
fn a_long_commit_checks_what_it_read_in_batches() {
    #[derive(PartialEq, Debug)]
    enum Meanwhile {
        Nothing,
        ReadBefore,
        ReadAfter,
        OthersBefore,
        Expiry,
    }
    let name = |i: u64| format!("key {i}");
    for (meanwhile, kept) in [
        (Meanwhile::Nothing, true),
        (Meanwhile::ReadBefore, false),
        (Meanwhile::ReadAfter, false),
        (Meanwhile::OthersBefore, true),
        (Meanwhile::Expiry, false),
    ] {
        let keyspace = Keyspace::new(1);
        (0..4_000).for_each(|i| drop(set(&keyspace, &name(i), "then", (i == 9).then_some(100), 1)));
        let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
        let view = View::overlay(&keyspace, &mut overlay, 0, 1);
        (0..2_000).for_each(|i| assert_eq!(view.expire_ms(name(i).as_bytes()), None));
        drop(view);
        insert_missing(&keyspace, &mut overlay, 100);
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 1);
        (0..2_000).for_each(|i| assert!(view.expire_ms(name(i).as_bytes()).is_some()));
        (1_000..1_200).for_each(|i| view.put_string(name(i).as_bytes(), b"mine", None));
        view.put_string(b"another", b"mine", None);
        drop(view);
        match meanwhile {
            Meanwhile::ReadBefore => write_one(&keyspace, &name(500), Some("theirs")),
            Meanwhile::OthersBefore => {
                (2_000..3_000).for_each(|i| write_one(&keyspace, &name(i), Some("theirs")));
            }
            _ => {}
        }
        let mut commit = overlay.seal(1, None);
        assert!(commit.hashes().is_sorted());
        let mut now_ms = 1;
        let ended = loop {
            match commit.advance(now_ms, 16, &mut Vec::new()) {
                Progress::More => {}
                ended => break ended,
            }
            match meanwhile {
                Meanwhile::ReadAfter if commit.is_half_covered() => {
                    write_one(&keyspace, &name(501), Some("theirs"));
                }
                Meanwhile::Expiry => now_ms = 200,
                _ => {}
            }
        };
        assert_eq!(ended != Progress::Lost, kept, "{meanwhile:?}");
        assert_eq!(get(&keyspace, "another", 1).is_some(), kept);
        assert_eq!(get(&keyspace, &name(1_100), 1).as_deref(), Some(if kept { "mine" } else { "then" }));
        assert_eq!(keyspace.intents.load(Ordering::Relaxed), 0);
        drop(commit);
        // Nothing of the commit is left: its keys can be written as usual.
        (0..2_000).for_each(|i| write_one(&keyspace, &name(i), Some("after")));
        keyspace.check_invariants();
    }
}
