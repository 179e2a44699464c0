//! Databases as a whole: emptied, exchanged, and who watches or waits for what is in them.

use super::*;
use std::sync::atomic::Ordering;

#[test]
fn watchers_and_waiters_hear_of_touches_of_their_key_only() {
    let keyspace = Keyspace::new(1);
    let dirty = Arc::new(AtomicBool::new(false));
    let mut view = View::locked(&keyspace, all(), 0, 1);
    view.watch(b"watched", &dirty);
    view.finish();
    keyspace.block(0, b"queue");
    assert!(set(&keyspace, "other", "1", None, 1).ready.is_empty());
    assert!(!dirty.load(std::sync::atomic::Ordering::Relaxed));
    set(&keyspace, "watched", "1", None, 1);
    assert!(dirty.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(set(&keyspace, "queue", "1", None, 1).ready, [Ready::Key(0, Box::from(&b"queue"[..]))]);
    keyspace.unwatch(0, b"watched", &dirty);
    keyspace.unblock(0, b"queue");
    assert!(set(&keyspace, "queue", "1", None, 1).ready.is_empty());
}

#[test]
fn flushing_and_swapping_act_on_whole_databases() {
    let keyspace = Keyspace::new(2);
    (0..3000).for_each(|i| drop(set(&keyspace, &format!("k{i}"), "v", (i % 2 == 0).then_some(1 << 40), 1)));
    let mut view = View::open(&keyspace, 0, 1);
    view.swap(0, 1);
    view.finish();
    assert_eq!((keyspace.len(0), keyspace.len(1), keyspace.expires(1)), (0, 3000, 1500));
    let mut view = View::open(&keyspace, 0, 1);
    assert_eq!(view.flush(None), 3000);
    view.finish();
    assert!(keyspace.is_empty());
    keyspace.check_invariants();
}

/// FLUSHALL passes over databases that never had a key: however one came by its keys, it is emptied.
#[test]
fn a_flush_finds_every_database_that_ever_had_a_key() {
    let keyspace = Keyspace::new(9);
    set(&keyspace, "swapped", "v", None, 1);
    let mut view = View::open(&keyspace, 0, 1);
    view.swap(0, 6);
    view.finish();
    let mut view = View::whole(&keyspace, 8, 1);
    view.put_string(b"of this view", b"v", None);
    assert_eq!(view.flush(None), 2);
    view.finish();
    assert!(keyspace.is_empty());
    keyspace.check_invariants();
    // One behind all that had keys has nothing, and its flush does nothing.
    let keyspace = Keyspace::new(9);
    set(&keyspace, "kept", "v", None, 1);
    let mut view = View::open(&keyspace, 5, 1);
    assert_eq!(view.flush(Some(5)), 0);
    view.finish();
    assert_eq!(keyspace.len(0), 1);
}

/// Watches a key of database 0 and 1, with a mark of its own.
fn watch(keyspace: &Arc<Keyspace>, db: usize, key: &str) -> (Arc<AtomicBool>, Watched) {
    let mark = Arc::default();
    let mut view = View::locked(keyspace, all(), db, 1);
    let then = view.watch(key.as_bytes(), &mark);
    view.finish();
    (mark, then)
}

fn is_touched(
    keyspace: &Arc<Keyspace>,
    db: usize,
    key: &str,
    (mark, then): &(Arc<AtomicBool>, Watched),
    now_ms: u64,
) -> bool {
    let touched = View::locked(keyspace, all(), db, now_ms).is_touched_since(key.as_bytes(), *then);
    touched || mark.load(Ordering::Relaxed)
}

fn swap(keyspace: &Arc<Keyspace>) -> Vec<Ready> {
    let mut view = View::open(keyspace, 0, 1);
    view.swap(0, 1);
    view.finish().ready
}

fn put_in(keyspace: &Arc<Keyspace>, db: usize, key: &str, expire_ms: Option<u64>) {
    let mut view = View::locked(keyspace, all(), db, 1);
    view.put_string(key.as_bytes(), b"v", expire_ms);
    view.changed(key.as_bytes(), Class::String, "set");
    view.finish();
}

/// However many watch and wait: an exchange marks nobody and names no key.
#[test]
fn an_exchange_looks_nobody_up() {
    let keyspace = Keyspace::new(2);
    let names: Vec<String> = (0..5_000).map(|i| format!("k{i}")).collect();
    let watched: Vec<_> = names.iter().map(|name| watch(&keyspace, 0, name)).collect();
    for name in &names {
        keyspace.block(0, name.as_bytes());
        put_in(&keyspace, 1, name, None);
    }
    assert_eq!(swap(&keyspace), [Ready::Database(0), Ready::Database(1)]);
    assert!(watched.iter().all(|(mark, _)| !mark.load(Ordering::Relaxed)));
    assert!(names.iter().zip(&watched).all(|(name, then)| is_touched(&keyspace, 0, name, then, 1)));
}

#[test]
fn who_watches_what_is_exchanged_notices_what_came_and_what_went() {
    for (here, other, touched) in
        [(true, true, true), (true, false, true), (false, true, true), (false, false, false)]
    {
        let keyspace = Keyspace::new(3);
        if here {
            put_in(&keyspace, 0, "k", None);
        }
        if other {
            put_in(&keyspace, 1, "k", None);
        }
        let (at_0, at_1, at_2) =
            (watch(&keyspace, 0, "k"), watch(&keyspace, 1, "k"), watch(&keyspace, 2, "k"));
        swap(&keyspace);
        assert_eq!(is_touched(&keyspace, 0, "k", &at_0, 1), touched, "{here} {other}");
        assert_eq!(is_touched(&keyspace, 1, "k", &at_1, 1), touched, "{here} {other}");
        assert!(!is_touched(&keyspace, 2, "k", &at_2, 1));
        // Who begins now has seen it.
        let (at_0, at_1) = (watch(&keyspace, 0, "k"), watch(&keyspace, 1, "k"));
        assert!(!is_touched(&keyspace, 0, "k", &at_0, 1));
        assert!(!is_touched(&keyspace, 1, "k", &at_1, 1));
    }
}

/// What came with an exchange may be gone again when it is looked for.
#[test]
fn what_came_and_went_again_is_noticed() {
    type Way = fn(&Arc<Keyspace>);
    let ways: [(&str, Way); 5] = [
        ("removed", |keyspace| {
            let mut view = View::locked(keyspace, all(), 0, 1);
            assert!(view.remove(b"k"));
            view.changed(b"k", Class::Generic, "del");
            view.finish();
        }),
        ("emptied", |keyspace| {
            View::open(keyspace, 0, 1).flush(Some(0));
        }),
        ("exchanged", |keyspace| drop(swap(keyspace))),
        ("expired", |_| {}),
        ("expired and removed", |keyspace| {
            let mut view = View::locked(keyspace, all(), 0, 100);
            view.expire_if_due(b"k");
            view.finish();
            assert_eq!(keyspace.len(0), 0);
        }),
    ];
    for (way, go) in ways {
        let keyspace = Keyspace::new(2);
        put_in(&keyspace, 1, "k", Some(50));
        let watched = watch(&keyspace, 0, "k");
        assert!(!is_touched(&keyspace, 0, "k", &watched, 1));
        swap(&keyspace);
        go(&keyspace);
        assert!(is_touched(&keyspace, 0, "k", &watched, 100), "{way}");
    }
    // What expires where it was is no touch to who did not find it there.
    let keyspace = Keyspace::new(2);
    put_in(&keyspace, 0, "k", Some(50));
    swap(&keyspace);
    let mark = Arc::default();
    let mut view = View::locked(&keyspace, all(), 1, 60);
    let then = view.watch(b"k", &mark);
    view.finish();
    assert!(!is_touched(&keyspace, 1, "k", &(mark, then), 100));
}
