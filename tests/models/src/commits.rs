// Long commits beside readers, short writers and each other: `intent.rs` as it is, on the stage of
// `stage.rs`. There are two keys, each in its own shard; commits place and fold one key at a time.

use super::intent::{Commit, Intent, Progress, Words};
use super::sequence::Snapshot;
use super::stage::{Cell, Keyspace, Overlay, View, number, owned};
use crate::stdx::hash::hash_bytes;
use crate::stdx::locks::Bits;
use loom::thread;
use std::sync::Arc;

const A: &[u8] = b"a";
const B: &[u8] = b"b";
const BOTH: Bits = Bits::EMPTY.with(0).with(1);

/// Words of an MSET of both keys, or of a DEL, or of an MSETNX.
struct Pair(Option<u8>, [u8; 1], bool);

impl Words for Pair {
    fn len(&self) -> usize {
        2
    }
    fn key(&self, i: usize) -> &[u8] {
        [A, B][i]
    }
    fn value(&self, _: usize) -> Option<&[u8]> {
        self.0.is_some().then_some(&self.1)
    }
    fn only_new(&self) -> bool {
        self.2
    }
}

fn run(mut commit: Commit) -> Progress {
    loop {
        match commit.advance(0, 1, &mut Vec::new()) {
            Progress::More => {}
            ended => return ended,
        }
    }
}

/// A long transaction: reads both keys at a snapshot and adds one to each. Returns the new numbers, if it was
/// committed.
fn increment(keyspace: &Arc<Keyspace>, age: u64) -> Option<[u64; 2]> {
    increment_each(keyspace, age, [A, B])
}

/// As [`increment`], for some keys.
fn increment_each<const N: usize>(keyspace: &Arc<Keyspace>, age: u64, keys: [&[u8]; N]) -> Option<[u64; N]> {
    let snapshot = Snapshot::open(keyspace).unwrap();
    let base = keys.map(|key| keyspace.read_at(key, snapshot.lsn()));
    let made = base.each_ref().map(|base| number(base.as_ref()) + 1);
    let cells = keys.into_iter().zip(base).zip(made).map(|((key, base), made)| Intent {
        hash: hash_bytes(key),
        db: 0,
        key: key.into(),
        cell: Some(Cell { base, now: owned(made), dirty: true, loaded: true }),
    });
    let overlay = Overlay { snapshot, cells: cells.collect(), flushes: false, swaps: false };
    matches!(run(overlay.seal(age, None)), Progress::Committed(_)).then_some(made)
}

/// FLUSHDB, then a SET of the first key, in one long transaction. Returns whether it was committed.
fn empty_and_set(keyspace: &Arc<Keyspace>, age: u64, to: u64) -> bool {
    let snapshot = Snapshot::open(keyspace).unwrap();
    let cell = Cell { base: None, now: owned(to), dirty: true, loaded: false };
    let cells = vec![Intent { hash: hash_bytes(A), db: 0, key: A.into(), cell: Some(cell) }];
    let overlay = Overlay { snapshot, cells, flushes: true, swaps: false };
    matches!(run(overlay.seal(age, None)), Progress::Committed(_))
}

/// A SET of both keys, then SWAPDB, in one long transaction. Returns whether it was committed.
fn set_and_swap(keyspace: &Arc<Keyspace>, age: u64, to: u64) -> bool {
    let snapshot = Snapshot::open(keyspace).unwrap();
    let set = |key: &[u8]| {
        let cell = Cell { base: None, now: owned(to), dirty: true, loaded: false };
        Intent { hash: hash_bytes(key), db: 0, key: key.into(), cell: Some(cell) }
    };
    let overlay = Overlay { snapshot, cells: vec![set(A), set(B)], flushes: false, swaps: true };
    matches!(run(overlay.seal(age, None)), Progress::Committed(_))
}

/// A long MSET of both keys, or a DEL for 0. Returns the number of old keys, if it was committed.
fn set(keyspace: &Arc<Keyspace>, age: u64, to: u8) -> Option<usize> {
    let words = Arc::new(Pair((to > 0).then_some(to), [to], false));
    let mut commit = Commit::bulk(keyspace, 0, words, age, None);
    loop {
        match commit.advance(0, 1, &mut Vec::new()) {
            Progress::More => {}
            Progress::Committed(_) => return Some(commit.found()),
            Progress::Lost => return None,
        }
    }
}

/// A long MSETNX of both keys. Returns whether it was done, unless it lost.
fn set_new(keyspace: &Arc<Keyspace>, age: u64, to: u8) -> Option<bool> {
    let mut commit = Commit::bulk(keyspace, 0, Arc::new(Pair(Some(to), [to], true)), age, None);
    loop {
        match commit.advance(0, 1, &mut Vec::new()) {
            Progress::More => {}
            Progress::Committed(_) => return Some(true),
            Progress::Lost => return commit.is_refused().then_some(false),
        }
    }
}

/// A short command that reads both keys.
fn look(keyspace: &Keyspace) -> [u64; 2] {
    let mut view = View::locked(keyspace, BOTH, 0, 0);
    if view.has_intents() {
        view.settle(&[(0, A), (0, B)], false);
    }
    [A, B].map(|key| number(view.get(key)))
}

/// A short command that reads both keys of both databases.
fn look_everywhere(keyspace: &Keyspace) -> [[u64; 2]; 2] {
    let mut view = View::locked(keyspace, BOTH, 0, 0);
    if view.has_intents() {
        view.settle(&[(0, A), (0, B), (1, A), (1, B)], false);
    }
    [0, 1].map(|db| {
        view.select(db);
        [A, B].map(|key| number(view.get(key)))
    })
}

/// A snapshot's reader: each key for itself.
fn look_back(keyspace: &Arc<Keyspace>) -> [u64; 2] {
    let snapshot = Snapshot::open(keyspace).unwrap();
    [A, B].map(|key| number(keyspace.read_at(key, snapshot.lsn()).as_ref()))
}

/// A short command that adds a number to some keys.
fn add(keyspace: &Keyspace, keys: &[&[u8]], more: u64) {
    let shards = keys.iter().fold(Bits::EMPTY, |bits, key| bits.with(hash_bytes(key) as usize));
    let mut view = View::locked(keyspace, shards, 0, 0);
    if view.has_intents() {
        let keys: Vec<_> = keys.iter().map(|key| (0, *key)).collect();
        view.settle(&keys, true);
    }
    for key in keys {
        let sum = number(view.get(key)) + more;
        view.set(key, owned(sum));
    }
}

fn spawn<T: 'static>(
    keyspace: &Arc<Keyspace>,
    f: impl FnOnce(&Arc<Keyspace>) -> T + 'static,
) -> thread::JoinHandle<T> {
    let keyspace = keyspace.clone();
    thread::spawn(move || f(&keyspace))
}

/// The final check: nothing is left of any commit.
fn at_the_end(keyspace: &Arc<Keyspace>) -> [u64; 2] {
    let seen = look(keyspace);
    let mut view = View::locked(keyspace, BOTH, 0, 0);
    assert!(!view.has_intents(), "intents are left");
    assert!([0, 1].iter().all(|i| view.shard(*i).unwrap().intents.is_empty()), "intents that are not counted");
    assert_eq!([A, B].map(|key| number(view.get(key))), seen);
    seen
}

/// A command, which takes its position with its locks held, sees all of a commit or nothing.
pub(crate) fn a_reader_sees_all_or_nothing() {
    let keyspace = Arc::<Keyspace>::default();
    let committer = spawn(&keyspace, |keyspace| increment(keyspace, 1));
    let seen = look(&keyspace);
    assert!(seen == [0, 0] || seen == [1, 1], "a torn command: {seen:?}");
    let again = look(&keyspace);
    assert!(again == seen || again == [1, 1], "a seen commit is gone: {again:?}");
    assert_eq!(committer.join().unwrap(), Some([1, 1]));
    assert_eq!(at_the_end(&keyspace), [1, 1]);
}

/// A snapshot sees all of a commit or nothing, whenever it reads its keys.
pub(crate) fn a_snapshot_sees_all_or_nothing() {
    let keyspace = Arc::<Keyspace>::default();
    let committer = spawn(&keyspace, |keyspace| set(keyspace, 1, 1));
    let seen = look_back(&keyspace);
    assert!(seen == [0, 0] || seen == [1, 1], "a torn snapshot: {seen:?}");
    committer.join().unwrap();
    assert_eq!(at_the_end(&keyspace), [1, 1]);
}

/// A short writer never waits, and neither it nor the commit overwrites a change it has not seen.
pub(crate) fn a_writer_goes_first_and_nothing_is_lost() {
    let keyspace = Arc::<Keyspace>::default();
    let committer = spawn(&keyspace, |keyspace| increment(keyspace, 1));
    add(&keyspace, &[B], 10);
    let expected = if committer.join().unwrap().is_some() { [1, 11] } else { [0, 10] };
    assert_eq!(at_the_end(&keyspace), expected);
}

/// A writer of both keys, a reader of both, and a commit.
pub(crate) fn readers_and_writers_beside_a_commit() {
    let keyspace = Arc::<Keyspace>::default();
    let committer = spawn(&keyspace, |keyspace| increment(keyspace, 1));
    let writer = spawn(&keyspace, |keyspace| add(keyspace, &[A, B], 10));
    let [a, b] = look(&keyspace);
    assert_eq!(a, b, "a torn command");
    writer.join().unwrap();
    let sum = if committer.join().unwrap().is_some() { 11 } else { 10 };
    assert_eq!(at_the_end(&keyspace), [sum, sum]);
}

/// Two long commits of the same keys: at least one is committed, and none overwrites one it has not seen.
pub(crate) fn two_transactions_lose_nothing() {
    let keyspace = Arc::<Keyspace>::default();
    let younger = spawn(&keyspace, |keyspace| increment(keyspace, 2));
    let older = increment(&keyspace, 1);
    let younger = younger.join().unwrap();
    let committed = [&older, &younger].iter().filter(|made| made.is_some()).count() as u64;
    assert!(committed > 0, "both lost");
    assert_eq!(at_the_end(&keyspace), [committed, committed]);
}

/// Commits without reads: both keys are from the same one at any time, and a DEL counts the keys it removed.
pub(crate) fn two_bulks_are_one_after_the_other() {
    let keyspace = Arc::<Keyspace>::default();
    let setter = spawn(&keyspace, |keyspace| set(keyspace, 2, 5));
    let found = set(&keyspace, 1, 0);
    let set = setter.join().unwrap();
    assert!(found.is_some() || set.is_some(), "both lost");
    let [a, b] = at_the_end(&keyspace);
    assert_eq!(a, b);
    match (found, set) {
        (Some(2), Some(_)) => assert_eq!(a, 0, "removed after it was set"),
        (Some(0), Some(_)) => assert_eq!(a, 5, "set after nothing was removed"),
        (Some(n), None) => assert_eq!((n, a), (0, 0)),
        (None, _) => assert_eq!(a, 5),
        (Some(n), Some(_)) => panic!("{n} keys were there"),
    }
}

/// A reader sees the old database, or the database emptied and filled again. A writer in between loses
/// nothing.
pub(crate) fn what_is_emptied_and_filled_is_seen_whole() {
    let keyspace = Arc::<Keyspace>::default();
    add(&keyspace, &[A, B], 1);
    let committer = spawn(&keyspace, |keyspace| empty_and_set(keyspace, 1, 7));
    let seen = look(&keyspace);
    assert!(seen == [1, 1] || seen == [7, 0], "a torn command: {seen:?}");
    add(&keyspace, &[B], 10);
    let committed = committer.join().unwrap();
    let there = at_the_end(&keyspace);
    match committed {
        true => assert!(there == [7, 10] || (there == [7, 0] && seen == [1, 1]), "{there:?} after {seen:?}"),
        false => assert_eq!(there, [1, 11]),
    }
}

/// Another long commit comes before the flush and its keys are removed, or comes after it, or loses.
pub(crate) fn who_empties_ends_the_others() {
    let keyspace = Arc::<Keyspace>::default();
    let other = spawn(&keyspace, |keyspace| set(keyspace, 1, 5).is_some());
    let emptied = empty_and_set(&keyspace, 2, 7);
    let set = other.join().unwrap();
    let there = at_the_end(&keyspace);
    match (set, emptied) {
        (true, true) => assert!(there == [5, 5] || there == [7, 0], "{there:?}"),
        (true, false) => assert_eq!(there, [5, 5]),
        (false, true) => assert_eq!(there, [7, 0]),
        (false, false) => panic!("both lost"),
    }
}

/// A commit that has read another old key is committed before the flush, or has read new data, or loses.
pub(crate) fn who_empties_ends_those_who_have_read() {
    let keyspace = Arc::<Keyspace>::default();
    add(&keyspace, &[A, B], 1);
    let other = spawn(&keyspace, |keyspace| increment_each(keyspace, 1, [B]));
    let emptied = empty_and_set(&keyspace, 2, 7);
    assert!(emptied, "it had no rival");
    match other.join().unwrap() {
        Some([2]) | None => assert_eq!(at_the_end(&keyspace), [7, 0]),
        Some(made) => assert_eq!((made, at_the_end(&keyspace)), ([1], [7, 1])),
    }
}

/// The writes of a long transaction and the exchange behind them are one step.
pub(crate) fn what_is_exchanged_is_seen_whole() {
    let keyspace = Arc::<Keyspace>::default();
    let committer = spawn(&keyspace, |keyspace| set_and_swap(keyspace, 1, 7));
    let seen = look_everywhere(&keyspace);
    assert!(seen == [[0, 0], [0, 0]] || seen == [[0, 0], [7, 7]], "torn: {seen:?}");
    assert!(committer.join().unwrap(), "it had no rival");
    assert_eq!(look_everywhere(&keyspace), [[0, 0], [7, 7]]);
    assert_eq!(at_the_end(&keyspace), [0, 0]);
}

/// A commit before the exchange moves with its database, in the table or not. A commit after it writes into
/// the other database.
pub(crate) fn who_exchanges_loses_nothing_of_others() {
    let keyspace = Arc::<Keyspace>::default();
    let setter = spawn(&keyspace, |keyspace| set(keyspace, 1, 5).is_some());
    let mut view = View::locked(&keyspace, BOTH, 0, 0);
    view.swap(0, 1);
    view.finish();
    let seen = look_everywhere(&keyspace);
    let set = setter.join().unwrap();
    let there = look_everywhere(&keyspace);
    match set {
        true if seen == [[0, 0], [5, 5]] => assert_eq!(there, seen),
        true => assert_eq!(there, [[5, 5], [0, 0]]),
        false => assert_eq!(there, [[0, 0], [0, 0]]),
    }
    at_the_end(&keyspace);
}

/// A long DEL counts both keys, or comes after the FLUSHDB and finds none.
pub(crate) fn what_is_removed_is_counted_though_its_table_goes() {
    let keyspace = Arc::<Keyspace>::default();
    add(&keyspace, &[A, B], 1);
    let remover = spawn(&keyspace, |keyspace| set(keyspace, 1, 0));
    let mut view = View::locked(&keyspace, BOTH, 0, 0);
    view.flush();
    view.finish();
    let found = remover.join().unwrap();
    assert!(matches!(found, Some(2 | 0) | None), "{found:?} keys were there");
    assert_eq!(at_the_end(&keyspace), [0, 0]);
}

/// The same if a writer has changed one of them, and so folded it, in between.
pub(crate) fn what_is_folded_is_counted_once_though_its_table_goes() {
    let keyspace = Arc::<Keyspace>::default();
    add(&keyspace, &[A, B], 1);
    let remover = spawn(&keyspace, |keyspace| set(keyspace, 1, 0));
    add(&keyspace, &[A], 1);
    let mut view = View::locked(&keyspace, BOTH, 0, 0);
    view.flush();
    view.finish();
    let found = remover.join().unwrap();
    assert!(matches!(found, Some(2 | 0) | None), "{found:?} keys were there");
    assert_eq!(at_the_end(&keyspace), [0, 0]);
}

/// A long DEL that has found the first key cannot find the second in the other database.
pub(crate) fn what_was_found_is_of_one_database() {
    let keyspace = Arc::<Keyspace>::default();
    add(&keyspace, &[A, B], 1);
    let remover = spawn(&keyspace, |keyspace| set(keyspace, 1, 0));
    let mut view = View::locked(&keyspace, BOTH, 0, 0);
    view.swap(0, 1);
    view.finish();
    let found = remover.join().unwrap();
    let there = look_everywhere(&keyspace);
    match found {
        Some(2) => assert_eq!(there, [[0, 0], [0, 0]]),
        Some(0) | None => assert_eq!(there, [[0, 0], [1, 1]]),
        Some(n) => panic!("{n} keys were there"),
    }
    at_the_end(&keyspace);
}

/// A long MSETNX sets both keys or none, and none if one exists.
pub(crate) fn new_keys_are_new() {
    let keyspace = Arc::<Keyspace>::default();
    let setter = spawn(&keyspace, |keyspace| set_new(keyspace, 1, 5));
    add(&keyspace, &[B], 10);
    match (setter.join().unwrap(), at_the_end(&keyspace)) {
        (Some(true), there) => assert_eq!(there, [5, 15]),
        (Some(false) | None, there) => assert_eq!(there, [0, 10]),
    }
}

/// The same beside another long commit, which may be decided and not folded.
pub(crate) fn new_keys_are_new_beside_a_long_commit() {
    let keyspace = Arc::<Keyspace>::default();
    let setter = spawn(&keyspace, |keyspace| set_new(keyspace, 2, 5));
    let other = set(&keyspace, 1, 7);
    match (setter.join().unwrap(), other.is_some(), at_the_end(&keyspace)) {
        (_, true, there) => assert_eq!(there, [7, 7]),
        (Some(true), false, there) => assert_eq!(there, [5, 5]),
        (done, false, there) => panic!("{done:?} {there:?}"),
    }
}

/// A commit dropped half way leaves nothing, or all if it was decided.
pub(crate) fn a_dropped_commit_leaves_nothing_half_done() {
    let keyspace = Arc::<Keyspace>::default();
    let committer = spawn(&keyspace, |keyspace| {
        let words = Arc::new(Pair(Some(1), [1], false));
        let mut commit = Commit::bulk(keyspace, 0, words, 1, None);
        (0..3).for_each(|_| drop(commit.advance(0, 1, &mut Vec::new())));
    });
    add(&keyspace, &[B], 10);
    committer.join().unwrap();
    assert_eq!(at_the_end(&keyspace), [0, 10]);
}
