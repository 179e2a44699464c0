//! Another keyspace takes the place of this one: what is counted, and who hears of it.

use super::*;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use value::Hash;

/// Everything in a keyspace: database and key to value and expiry.
type Contents = BTreeMap<(usize, Vec<u8>), (usize, Option<u64>)>;

fn contents(keyspace: &Keyspace) -> Contents {
    let mut all = Contents::new();
    for db in 0..keyspace.all_databases() {
        let mut view = View::whole(keyspace, db, 1);
        let (mut cursor, mut keys) = (0, Vec::new());
        loop {
            cursor = view.scan(cursor, 1000, &mut |key, _| keys.push(key.to_vec()));
            if cursor == 0 {
                break;
            }
        }
        for key in keys {
            let owned = view.owned(&key).unwrap();
            all.insert((db, key), (owned.value.mem_bytes(), owned.expire_ms));
        }
        view.finish();
    }
    all
}

fn put(keyspace: &Keyspace, db: usize, key: &str, value: &str, expire_ms: Option<u64>) {
    let mut view = View::locked(keyspace, all(), db, 1);
    view.settle(&[(db, key.as_bytes())], true);
    view.put_string(key.as_bytes(), value.as_bytes(), expire_ms);
    view.changed(key.as_bytes(), Class::String, "set");
    view.finish();
}

fn fill(keyspace: &Keyspace, dbs: &[usize], seed: u64) {
    let mut dice = Dice(seed);
    for db in dbs {
        for _ in 0..2000 {
            let (key, value) = (some_key(&mut dice, 3000), some_value(&mut dice));
            put(keyspace, *db, &key, &value, (dice.below(3) == 0).then(|| 1000 + dice.below(1000)));
        }
    }
}

fn value_of(keyspace: &Keyspace, db: usize, key: &str) -> Option<String> {
    let view = View::locked(keyspace, all(), db, 1);
    let text = view.string(key.as_bytes()).unwrap().map(|text| String::from_utf8(text.to_vec()).unwrap());
    view.finish();
    text
}

/// Counts, bytes and expiries are those of the new data, in every database; hidden ones stay as they were.
#[test]
fn counts_and_bytes_are_those_of_the_new_data() {
    for seed in 1..=4 {
        let (keyspace, other) = (Keyspace::with_hidden(5, 2, 2), Keyspace::new(5));
        // Some are empty here, some there, some on both sides.
        fill(&keyspace, &[0, 1, 5, 6], seed);
        fill(&other, &[1, 2, 4], seed + 10);
        let hidden: Vec<_> = (5..7).map(|db| (keyspace.len(db), keyspace.entry_bytes(db))).collect();
        let mut expected = contents(&other);
        expected.extend(contents(&keyspace).into_iter().filter(|((db, _), _)| *db >= 5));
        let figures =
            |keyspace: &Keyspace, db| (keyspace.len(db), keyspace.expires(db), keyspace.entry_bytes(db));
        let theirs: Vec<_> = (0..5).map(|db| figures(&other, db)).collect();
        let generation = keyspace.generation();
        let ready = keyspace.take_over(other, None, 1).into_told().ready;
        assert!((0..5).all(|db| ready.contains(&Ready::Database(db))));
        assert_eq!((0..5).map(|db| figures(&keyspace, db)).collect::<Vec<_>>(), theirs);
        assert_eq!((5..7).map(|db| (keyspace.len(db), keyspace.entry_bytes(db))).collect::<Vec<_>>(), hidden);
        assert_eq!(contents(&keyspace), expected);
        assert!(keyspace.generation() > generation);
        keyspace.check_invariants();
        // They can be written to, emptied and replaced again.
        fill(&keyspace, &[0, 2], seed + 20);
        keyspace.check_invariants();
        keyspace.take_over(Keyspace::new(5), None, 1);
        assert!((0..5).all(|db| figures(&keyspace, db) == (0, 0, (0, 0))));
        keyspace.check_invariants();
    }
}

/// Fields with a time are known to the sweep behind a take-over.
#[test]
fn times_of_fields_come_along() {
    let (keyspace, other) = (Keyspace::new(2), Keyspace::new(2));
    let mut view = View::locked(&other, all(), 1, 1);
    let mut hash = Hash::default();
    hash.insert(b"f", b"v");
    hash.set_expire(b"f", Some(50));
    view.put(b"h", Value::Hash(hash), None);
    view.finish();
    keyspace.take_over(other, None, 1);
    assert!(keyspace.has_field_times());
    let (mut sweep, mut rounds) = (Sweep::default(), 0);
    while rounds < 3 {
        rounds += u64::from(sweep.step(&keyspace, 100, drop) == Swept::Round);
    }
    assert_eq!(keyspace.len(1), 0, "the sweep does not look at the hash");
    // Other data without such times: snapshots need no format that knows them.
    keyspace.take_over(Keyspace::new(2), None, 1);
    assert!(!keyspace.has_field_times());
}

/// WATCH sees an exchange of the databases: keys that were there, and those that came.
#[test]
fn watchers_see_an_exchange() {
    let (keyspace, other) = (Keyspace::new(2), Keyspace::new(2));
    put(&keyspace, 0, "old", "1", None);
    put(&keyspace, 0, "both", "1", None);
    put(&other, 0, "both", "1", None);
    put(&other, 0, "new", "1", None);
    let watch = |db: usize, key: &str| {
        let (mark, mut view) = (Arc::<AtomicBool>::default(), View::locked(&keyspace, all(), db, 1));
        let then = view.watch(key.as_bytes(), &mark);
        view.finish();
        (mark, then)
    };
    let keys = [(0, "old"), (0, "both"), (0, "new"), (0, "never"), (1, "never")];
    let watched = keys.map(|(db, key)| watch(db, key));
    keyspace.take_over(other, None, 1);
    let touched = keys.iter().zip(&watched).map(|((db, key), (mark, then))| {
        let view = View::locked(&keyspace, all(), *db, 1);
        mark.load(Ordering::Relaxed) || view.is_touched_since(key.as_bytes(), *then)
    });
    assert_eq!(touched.collect::<Vec<_>>(), [true, true, true, false, false]);
}

struct OneText;

impl Words for OneText {
    fn len(&self) -> usize {
        1
    }
    fn key(&self, _: usize) -> &[u8] {
        b"bulk"
    }
    fn value(&self, _: usize) -> Option<&[u8]> {
        Some(b"of before")
    }
}

/// Long commits that are undecided lose; what was decided and is not in a table yet goes with the old data.
#[test]
fn long_commits_do_not_reach_into_the_new_data() {
    for decided in [false, true] {
        let (keyspace, other) = (Keyspace::new(2), Keyspace::new(2));
        put(&keyspace, 0, "read", "1", None);
        put(&other, 0, "read", "2", None);
        let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 1);
        for i in 0..100 {
            view.put_string(format!("mine{i}").as_bytes(), b"v", None);
        }
        view.finish();
        let mut commits = [overlay.seal(1, None), Commit::bulk(&keyspace, 0, Arc::new(OneText), 2, None)];
        for commit in &mut commits {
            for _ in 0..2 {
                assert_eq!(commit.advance(1, 1, &mut Vec::new()), Progress::More);
            }
            while decided && !commit.is_decided() {
                assert_eq!(commit.advance(1, 100, &mut Vec::new()), Progress::More);
            }
        }
        keyspace.take_over(other, None, 1);
        for mut commit in commits {
            let ended = loop {
                match commit.advance(1, 100, &mut Vec::new()) {
                    Progress::More => {}
                    ended => break ended,
                }
            };
            assert_eq!(matches!(ended, Progress::Committed(_)), decided);
        }
        let names: Vec<_> = contents(&keyspace).into_keys().collect();
        assert_eq!(names, [(0, b"read".to_vec())]);
        assert_eq!(value_of(&keyspace, 0, "read").as_deref(), Some("2"));
        keyspace.check_invariants();
    }
}

/// A snapshot, and what was built on it, ends; another one begins behind it.
#[test]
fn snapshots_end_and_begin_anew() {
    let (keyspace, other) = (Keyspace::new(1), Keyspace::new(1));
    put(&keyspace, 0, "k", "old", None);
    put(&other, 0, "k", "new", None);
    let before = Snapshot::open(&keyspace).unwrap();
    put(&keyspace, 0, "k", "older", None);
    keyspace.take_over(other, None, 1);
    assert_eq!(before.ended(), Some(Ended::Flushed));
    let behind = Snapshot::open(&keyspace).unwrap();
    put(&keyspace, 0, "k", "newer", None);
    let owned = keyspace.read_at(0, b"k", behind.lsn()).unwrap();
    assert_eq!(format!("{:?}", owned.value), format!("{:?}", Value::Str(value::Str::from_slice(b"new"))));
    assert!(behind.is_current());
}

#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Readers for Heard {
    fn want_all(&self) -> bool {
        false
    }
    fn written(&self, _: &[u8]) {}
    fn changed(&self, key: Arc<[u8]>, _: Crowd) {
        self.0.lock().push(String::from_utf8_lossy(&key).into_owned());
    }
    fn emptied(&self, _: u64) {
        self.0.lock().push("all".to_owned());
    }
}

/// Clients that keep copies are told that all are old.
#[test]
fn readers_are_told_that_all_copies_are_old() {
    let (keyspace, heard) = (Keyspace::new(1), Arc::<Heard>::default());
    keyspace.set_readers(heard.clone());
    keyspace.set_tracking(true);
    put(&keyspace, 0, "k", "v", None);
    let mut view = View::locked(&keyspace, all(), 0, 1);
    view.track(b"k", &mut Reader { client: 7, floor: 0, number: &mut |_, _| 1 });
    view.finish();
    keyspace.take_over(Keyspace::new(1), None, 1);
    assert_eq!((&**heard.0.lock(), keyspace.tracked()), (&["all".to_owned()][..], (0, 0)));
}

struct Code(Mutex<Vec<&'static str>>);

impl Beside for Code {
    fn holds(&self) -> bool {
        true
    }
    fn make(&self) {
        self.0.lock().push("made");
    }
}

#[derive(Default)]
struct Told(Mutex<Vec<Lsn>>);

impl CommitSink for Told {
    fn words(&self, at: At, _: &mut dyn Iterator<Item = &[u8]>) {
        self.0.lock().push(at.lsn);
    }
    fn shared(&self, at: At, _: Arc<dyn Effects>) {
        self.0.lock().push(at.lsn);
    }
    fn mark(&self, _: Lsn, _: Mark) {}
}

/// Libraries change with the data, and nobody who listens is told of either.
#[test]
fn libraries_come_along_and_nothing_is_told() {
    let (keyspace, code, told) = (Keyspace::new(1), Code(Mutex::default()), Arc::<Told>::default());
    keyspace.listen(told.clone());
    let (before, changes) = (keyspace.last_lsn(), keyspace.take_over(Keyspace::new(1), Some(&code), 1));
    assert!(changes.lsn > before && keyspace.settled() >= changes.lsn);
    assert_eq!((code.0.lock().len(), told.0.lock().len()), (1, 0));
}

/// An eviction budget that was full knows nothing of the old keys, and finds victims among the new ones.
#[test]
fn eviction_goes_on_with_the_new_keys() {
    let (keyspace, other) = (Keyspace::new(1), Keyspace::new(1));
    keyspace.set_eviction(0, Policy::Adaptive, 5);
    (0..3000).for_each(|i| put(&keyspace, 0, &format!("old{i}"), "v", None));
    keyspace.note_fullness(0, 1.0);
    (0..500).for_each(|_| _ = keyspace.evict(0, 1, &mut drop));
    (0..3000).for_each(|i| put(&other, 0, &format!("new{i}"), "v", None));
    keyspace.take_over(other, None, 1);
    keyspace.note_fullness(0, 1.0);
    let mut evicted = 0;
    while evicted < 2000 {
        match keyspace.evict(0, 1, &mut drop) {
            Evicted::Freed(_) => evicted += 1,
            Evicted::Missed => {}
            Evicted::Nothing => panic!("no victim"),
        }
    }
    (0..500).for_each(|i| put(&keyspace, 0, &format!("old{i}"), "v", None));
    assert_eq!(keyspace.len(0), 1500);
    keyspace.check_invariants();
}

/// For measuring, in a release build: how long all locks are held while ten million keys change places.
#[test]
#[ignore = "it takes some gigabytes and half a minute"]
fn ten_million_keys_change_places_at_once() {
    let filled = |word: &str| {
        let keyspace = Keyspace::with_hidden(16, 2, 2);
        for i in 0..10_000_000u64 {
            let key = format!("{word}:{i}");
            let mut view = View::locked_one(&keyspace, key.as_bytes(), (i % 4) as usize, 1);
            view.put_string(key.as_bytes(), b"value:0123456789", None);
            view.finish();
        }
        keyspace
    };
    stdx::reclaim::start();
    let (keyspace, mut longest_us) = (filled("old"), 0);
    for round in 0..3 {
        let other = filled("new");
        let began = std::time::Instant::now();
        let changes = keyspace.take_over(other, None, 1);
        let us = began.elapsed().as_micros();
        drop(changes);
        println!("round {round}: {us} us");
        longest_us = longest_us.max(us);
        assert_eq!((0..4).map(|db| keyspace.len(db)).sum::<usize>(), 10_000_000);
        stdx::reclaim::flush();
    }
    println!("the longest: {longest_us} us");
}
