//! Whole databases: emptying and exchanging them, with watchers and blocked clients of their keys.

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
    assert!(set(&keyspace, "other", "1", None, 1).told().ready.is_empty());
    assert!(!dirty.load(std::sync::atomic::Ordering::Relaxed));
    set(&keyspace, "watched", "1", None, 1);
    assert!(dirty.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(set(&keyspace, "queue", "1", None, 1).told().ready, [Ready::Key(0, Box::from(&b"queue"[..]))]);
    keyspace.unwatch(0, b"watched", &dirty);
    keyspace.unblock(0, b"queue");
    assert!(set(&keyspace, "queue", "1", None, 1).told().ready.is_empty());
}

/// Each of thousands of watchers is told once, and stopping a watch looks through none of the others.
#[test]
fn who_has_been_told_of_a_touch_is_kept_no_longer() {
    let keyspace = Keyspace::new(1);
    let watchers: Vec<_> = (0..10_000).map(|_| watch(&keyspace, 0, "hot").0).collect();
    assert!(watchers.iter().all(|mark| Arc::strong_count(mark) == 2));
    let (gone, stay) = watchers.split_at(5_000);
    gone.iter().for_each(|mark| keyspace.unwatch(0, b"hot", mark));
    put_in(&keyspace, 0, "hot", None);
    assert!(gone.iter().all(|mark| !mark.load(Ordering::Relaxed)));
    assert!(stay.iter().all(|mark| mark.load(Ordering::Relaxed)));
    // The reclaimer frees them.
    while watchers.iter().any(|mark| Arc::strong_count(mark) > 1) {
        std::thread::yield_now();
    }
    // A later watcher is told of later touches. A second unwatch removes no other watcher.
    let (late, _) = watch(&keyspace, 0, "hot");
    stay.iter().for_each(|mark| keyspace.unwatch(0, b"hot", mark));
    assert!(!late.load(Ordering::Relaxed));
    put_in(&keyspace, 0, "hot", None);
    assert!(late.load(Ordering::Relaxed));
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

/// FLUSHALL skips databases that never had a key, and empties all others, however they got their keys.
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
    // Flushing a database behind all that had keys does nothing.
    let keyspace = Keyspace::new(9);
    set(&keyspace, "kept", "v", None, 1);
    let mut view = View::open(&keyspace, 5, 1);
    assert_eq!(view.flush(Some(5)), 0);
    view.finish();
    assert_eq!(keyspace.len(0), 1);
}

/// Watches a key of a database, with a mark of its own.
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
    view.finish().into_told().ready
}

fn put_in(keyspace: &Arc<Keyspace>, db: usize, key: &str, expire_ms: Option<u64>) {
    let mut view = View::locked(keyspace, all(), db, 1);
    view.put_string(key.as_bytes(), b"v", expire_ms);
    view.changed(key.as_bytes(), Class::String, "set");
    view.finish();
}

/// A keyspace in which more keys are watched than an exchange looks at, or none.
fn watched_by(crowd: bool, databases: usize) -> Arc<Keyspace> {
    let keyspace = Keyspace::new(databases);
    let count = if crowd { 300 } else { 0 };
    (0..count).for_each(|i| drop(watch(&keyspace, 0, &format!("other{i}"))));
    keyspace
}

/// If very many keys are watched, an exchange marks nobody and names no key.
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
    for ((here, other, touched), crowd) in
        [(true, true, true), (true, false, true), (false, true, true), (false, false, false)]
            .into_iter()
            .flat_map(|case| [(case, false), (case, true)])
    {
        let keyspace = watched_by(crowd, 3);
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
        // A watch that begins now starts from the new state.
        let (at_0, at_1) = (watch(&keyspace, 0, "k"), watch(&keyspace, 1, "k"));
        assert!(!is_touched(&keyspace, 0, "k", &at_0, 1));
        assert!(!is_touched(&keyspace, 1, "k", &at_1, 1));
    }
}

/// A key that came with an exchange may be gone again at EXEC.
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
    for ((way, go), crowd) in ways.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let keyspace = watched_by(crowd, 2);
        put_in(&keyspace, 1, "k", Some(50));
        let watched = watch(&keyspace, 0, "k");
        assert!(!is_touched(&keyspace, 0, "k", &watched, 1));
        swap(&keyspace);
        go(&keyspace);
        assert!(is_touched(&keyspace, 0, "k", &watched, 100), "{way} {crowd}");
    }
    // An expiry in the old database is no touch for a watcher that found no key there.
    let keyspace = Keyspace::new(2);
    put_in(&keyspace, 0, "k", Some(50));
    swap(&keyspace);
    let mark = Arc::default();
    let mut view = View::locked(&keyspace, all(), 1, 60);
    let then = view.watch(b"k", &mark);
    view.finish();
    assert!(!is_touched(&keyspace, 1, "k", &(mark, then), 100));
}

/// For a watcher that found no key, such a key is as absent as before.
#[test]
fn a_key_that_had_expired_when_it_came_is_no_touch() {
    for (removed, crowd) in [(false, false), (true, false), (false, true), (true, true)] {
        let keyspace = watched_by(crowd, 2);
        put_in(&keyspace, 1, "k", Some(50));
        let watched = watch(&keyspace, 0, "k");
        let mut view = View::open(&keyspace, 0, 60);
        view.swap(0, 1);
        view.finish();
        if removed {
            let mut view = View::locked(&keyspace, all(), 0, 100);
            view.expire_if_due(b"k");
            view.finish();
            assert_eq!(keyspace.len(0), 0);
        }
        assert!(!is_touched(&keyspace, 0, "k", &watched, 100), "{removed} {crowd}");
        put_in(&keyspace, 0, "k", None);
        assert!(is_touched(&keyspace, 0, "k", &watched, 100), "{removed} {crowd}");
    }
}

/// An absent key that no exchange brought is untouched, whatever else became of its database.
#[test]
fn a_key_that_never_came_is_untouched() {
    for crowd in [false, true] {
        let keyspace = watched_by(crowd, 2);
        put_in(&keyspace, 1, "another", None);
        let watched = watch(&keyspace, 0, "k");
        let flush = || {
            View::open(&keyspace, 0, 1).flush(Some(0));
        };
        flush();
        assert!(!is_touched(&keyspace, 0, "k", &watched, 1), "{crowd}");
        swap(&keyspace);
        flush();
        swap(&keyspace);
        // With a crowd it cannot be known any more (A3).
        assert_eq!(is_touched(&keyspace, 0, "k", &watched, 1), crowd);
        // A later watcher begins with what is there now.
        let later = watch(&keyspace, 0, "k");
        put_in(&keyspace, 1, "k", None);
        assert!(!is_touched(&keyspace, 0, "k", &later, 1), "{crowd}");
        swap(&keyspace);
        assert!(is_touched(&keyspace, 0, "k", &later, 1) && is_touched(&keyspace, 0, "k", &watched, 1));
    }
}

const DATABASES: usize = 3;
type Databases = [BTreeMap<String, String>; DATABASES];

/// A step on several databases.
#[derive(Clone, Debug)]
enum Act {
    Put(usize, String, String),
    Remove(usize, String),
    Swap(usize, usize),
    Flush(usize),
}

impl Act {
    fn random(dice: &mut Dice, value: &str, whole: u64) -> Act {
        let (db, key) = (dice.below(DATABASES as u64) as usize, format!("k{}", dice.below(40)));
        match dice.below(100) {
            n if n < whole => Act::Swap(db, dice.below(DATABASES as u64) as usize),
            n if n < whole * 3 / 2 => Act::Flush(db),
            n if n < 70 => Act::Put(db, key, value.into()),
            _ => Act::Remove(db, key),
        }
    }

    fn on_model(&self, model: &mut Databases) {
        match self {
            Act::Put(db, key, value) => drop(model[*db].insert(key.clone(), value.clone())),
            Act::Remove(db, key) => drop(model[*db].remove(key)),
            Act::Swap(a, b) => model.swap(*a, *b),
            Act::Flush(db) => model[*db].clear(),
        }
    }

    /// Runs the step in a view that holds, or may lock, what it needs.
    fn on_view(&self, view: &mut View<'_>) {
        match self {
            Act::Put(db, key, value) => {
                view.select(*db);
                view.put_string(key.as_bytes(), value.as_bytes(), None);
                view.changed(key.as_bytes(), Class::String, "set");
            }
            Act::Remove(db, key) => {
                view.select(*db);
                if view.remove(key.as_bytes()) {
                    view.changed(key.as_bytes(), Class::Generic, "del");
                }
            }
            Act::Swap(a, b) => view.swap(*a, *b),
            Act::Flush(db) => _ = view.flush(Some(*db)),
        }
    }

    /// Runs the step as a short command.
    fn on_keyspace(&self, keyspace: &Keyspace) {
        let mut view = match self {
            Act::Put(db, key, _) | Act::Remove(db, key) => {
                let mut view = View::locked(keyspace, Keyspace::shards_of([key.as_bytes()]), 0, 1);
                if view.has_intents() {
                    view.settle(&[(*db, key.as_bytes())], true);
                }
                view
            }
            Act::Swap(..) | Act::Flush(_) => View::open(keyspace, 0, 1),
        };
        self.on_view(&mut view);
        view.finish();
    }
}

/// Reads all databases as one command.
fn look_at_all(keyspace: &Keyspace) -> Databases {
    let names: Vec<String> = (0..40).map(|i| format!("k{i}")).collect();
    let mut view = View::locked(keyspace, all(), 0, 1);
    if view.has_intents() {
        let each = |db| names.iter().map(move |name| (db, name.as_bytes()));
        view.settle(&(0..DATABASES).flat_map(each).collect::<Vec<_>>(), false);
    }
    std::array::from_fn(|db| {
        view.select(db);
        let text =
            |name: &String| Some(String::from_utf8(view.string(name.as_bytes()).unwrap()?.to_vec()).unwrap());
        names.iter().filter_map(|name| Some((name.clone(), text(name)?))).collect()
    })
}

struct Long {
    commit: Commit,
    acts: Vec<Act>,
    reads: Vec<(usize, String, Option<String>)>,
    /// Whether it is a DEL, and how many of its keys existed.
    removes: bool,
    removed: usize,
}

fn begin_long(keyspace: &Arc<Keyspace>, dice: &mut Dice, step: u64) -> Long {
    if dice.below(2) == 0 {
        let db = dice.below(DATABASES as u64) as usize;
        let removes = dice.below(2) == 0;
        let word = |i| (format!("k{}", dice.below(40)), (!removes).then(|| format!("bulk {step} {i}")));
        let words: Vec<_> = (0..20).map(word).collect();
        let act = |(key, value): &(String, Option<String>)| match value {
            Some(value) => Act::Put(db, key.clone(), value.clone()),
            None => Act::Remove(db, key.clone()),
        };
        let acts = words.iter().map(act).collect();
        return Long {
            commit: Commit::bulk(keyspace, db, Arc::new(Given(words)), step, None),
            acts,
            reads: Vec::new(),
            removes,
            removed: 0,
        };
    }
    let mut overlay = Overlay::new(Snapshot::open(keyspace).unwrap(), None);
    let mut reads = Vec::new();
    for _ in 0..dice.below(5) {
        let (db, key) = (dice.below(DATABASES as u64) as usize, format!("k{}", dice.below(40)));
        overlay.load(db, [key.as_bytes()]);
        let view = View::overlay(keyspace, &mut overlay, db, 1);
        let seen = view.string(key.as_bytes()).unwrap().map(|s| String::from_utf8(s.to_vec()).unwrap());
        drop(view);
        reads.push((db, key, seen));
    }
    let acts: Vec<Act> = (0..15).map(|i| Act::random(dice, &format!("long {step} {i}"), 8)).collect();
    for act in &acts {
        act.on_view(&mut View::overlay(keyspace, &mut overlay, 0, 1));
        // A removal misses its key first, and is run again.
        if overlay.load_missing() {
            act.on_view(&mut View::overlay(keyspace, &mut overlay, 0, 1));
        }
    }
    Long { commit: overlay.seal(step, None), acts, reads, removes: false, removed: 0 }
}

/// Long commits that write, empty and exchange databases run beside short commands that do the same. Writes
/// still to be folded when a table is replaced go with that table.
#[test]
fn long_commits_empty_and_exchange_databases_at_one_moment() {
    let (mut committed, mut lost) = (0, 0);
    for seed in 1..=150u64 {
        let mut dice = Dice(seed * 7_919);
        let keyspace = Keyspace::new(DATABASES);
        let mut model = Databases::default();
        let mut longs: Vec<Long> = Vec::new();
        let mut snapshots: Vec<(Snapshot, Databases)> = Vec::new();
        for step in 0..600u64 {
            match dice.below(30) {
                0 | 1 if longs.len() < 3 => longs.push(begin_long(&keyspace, &mut dice, step)),
                2 => {
                    let act = Act::random(&mut dice, &format!("short {step}"), 25);
                    act.on_keyspace(&keyspace);
                    act.on_model(&mut model);
                }
                3 => assert_eq!(look_at_all(&keyspace), model, "step {step} of {seed}"),
                4 if snapshots.len() < 3 => {
                    snapshots.push((Snapshot::open(&keyspace).unwrap(), model.clone()));
                }
                5 if !snapshots.is_empty() => {
                    let (snapshot, then) = snapshots.remove(0);
                    for (db, key) in (0..DATABASES).flat_map(|db| (0..40).map(move |i| (db, format!("k{i}"))))
                    {
                        let read = keyspace.read_at(db, key.as_bytes(), snapshot.lsn());
                        let seen = read.map(|owned| match owned.value {
                            Value::Str(s) => String::from_utf8(s.as_ref().to_vec()).unwrap(),
                            _ => unreachable!("only strings"),
                        });
                        if snapshot.is_current() {
                            assert_eq!(seen.as_ref(), then[db].get(&key), "step {step} of {seed}");
                        }
                    }
                }
                _ if !longs.is_empty() => {
                    let i = dice.below(longs.len() as u64) as usize;
                    let long = &mut longs[i];
                    let before = long.commit.is_decided();
                    let progress = long.commit.advance(1, 1 + dice.below(3) as usize, &mut Vec::new());
                    if !before && long.commit.is_decided() {
                        for (db, key, seen) in &long.reads {
                            assert_eq!(model[*db].get(key), seen.as_ref(), "it read what has changed");
                        }
                        let keys = model.iter().map(BTreeMap::len).sum::<usize>();
                        long.acts.iter().for_each(|act| act.on_model(&mut model));
                        if long.removes {
                            long.removed = keys - model.iter().map(BTreeMap::len).sum::<usize>();
                        }
                    }
                    match progress {
                        Progress::More => continue,
                        Progress::Committed(_) => committed += 1,
                        Progress::Lost => lost += 1,
                    }
                    assert_eq!(long.commit.found(), long.removed, "step {step} of {seed}");
                    longs.remove(i);
                }
                _ => {}
            }
        }
        for mut long in longs.into_iter().filter(|long| long.commit.is_decided()) {
            while long.commit.advance(1, 100, &mut Vec::new()) == Progress::More {}
        }
        drop(snapshots);
        assert_eq!(keyspace.intents.load(Ordering::Relaxed), 0);
        assert_eq!(look_at_all(&keyspace), model);
        (0..DATABASES).for_each(|db| assert_eq!(keyspace.len(db), model[db].len()));
        keyspace.check_invariants();
    }
    assert!(committed > 500 && lost > 300, "{committed} committed, {lost} lost");
}

/// Replacing tables does not look at the keys that long commits still have to write.
#[test]
fn replacing_tables_looks_at_nothing_that_is_still_to_be_written() {
    for exchanged in [true, false] {
        let keyspace = Keyspace::new(2);
        let words: Vec<_> = (0..3_000).map(|i| (format!("k{i}"), Some("v".to_owned()))).collect();
        let mut commit = Commit::bulk(&keyspace, 0, Arc::new(Given(words)), 1, None);
        while !commit.is_decided() {
            assert_eq!(commit.advance(1, 100, &mut Vec::new()), Progress::More);
        }
        let left = || {
            let guard = keyspace.shards.lock_all();
            let placed = (0..SHARDS).flat_map(|shard| &guard.get(shard).intents.0);
            placed.map(|placed| placed.left()).sum::<usize>()
        };
        assert_eq!(left(), 3_000);
        match exchanged {
            true => drop(swap(&keyspace)),
            false => _ = View::open(&keyspace, 0, 1).flush(None),
        }
        assert_eq!((left(), keyspace.len(0), keyspace.len(1)), (3_000, 0, 0));
        while commit.advance(1, 100, &mut Vec::new()) == Progress::More {}
        assert_eq!(left(), 0);
        assert_eq!((keyspace.len(0), keyspace.len(1)), (0, if exchanged { 3_000 } else { 0 }));
        keyspace.check_invariants();
    }
}

/// Keys that expire while a DEL is being folded existed at its decision, no matter which reader meets them.
#[test]
fn a_long_removal_counts_what_was_there_when_it_was_decided() {
    for way in 0..4 {
        let keyspace = Keyspace::new(1);
        for i in 0..300u64 {
            // A third expires before the decision, a third after it.
            put_in(&keyspace, 0, &format!("k{i}"), [None, Some(5), Some(15)][i as usize % 3]);
        }
        let words = (0..400).map(|i| (format!("k{i}"), None)).collect();
        let mut commit = Commit::bulk(&keyspace, 0, Arc::new(Given(words)), 1, None);
        while !commit.is_decided() {
            assert_eq!(commit.advance(10, 50, &mut Vec::new()), Progress::More);
        }
        match way {
            0 => {
                // The sweep meets covered keys again and again.
                let mut sweep = Sweep::default();
                (0..1000).for_each(|_| _ = sweep.step(&keyspace, 20, drop));
            }
            1 => {
                let names: Vec<String> = (0..300).map(|i| format!("k{i}")).collect();
                let pairs: Vec<_> = names.iter().map(|name| (0, name.as_bytes())).collect();
                let mut view = View::locked(&keyspace, all(), 0, 20);
                view.settle(&pairs, false);
                assert!(names.iter().all(|name| !view.exists(name.as_bytes())));
                view.finish();
            }
            2 => _ = View::open(&keyspace, 0, 20).flush(Some(0)),
            _ => {}
        }
        while commit.advance(20, 50, &mut Vec::new()) == Progress::More {}
        assert_eq!((commit.found(), keyspace.len(0)), (200, 0), "way {way}");
        keyspace.check_invariants();
    }
}
