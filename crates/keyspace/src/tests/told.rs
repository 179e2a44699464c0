//! Tests of what the sink is told of expired keys, and when: before whatever follows from their absence.

use super::*;

/// Writes that reached the sink: LSN, database, words.
pub(super) type Told = Arc<std::sync::Mutex<Vec<(Lsn, usize, Vec<String>)>>>;

pub(super) struct Sink(pub(super) Told);

impl CommitSink for Sink {
    fn words(&self, at: At, words: &mut dyn Iterator<Item = &[u8]>) {
        let words = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        self.0.lock().unwrap().push((at.lsn, at.db.unwrap() as usize, words));
    }

    fn shared(&self, at: At, effects: Arc<dyn Effects>) {
        effects.each(&mut |db, words| self.words(At { db, ..at }, words));
    }

    fn mark(&self, _: Lsn, _: Mark) {}
}

/// A keyspace with a sink, keys that expire at 1000, and one that does not.
fn world() -> (Arc<Keyspace>, Told) {
    let (keyspace, told) = (Keyspace::new(2), Told::default());
    keyspace.listen(Arc::new(Sink(told.clone())));
    for key in ["old", "older"] {
        set(&keyspace, key, "v", Some(1000), 1);
    }
    set(&keyspace, "stays", "v", None, 1);
    (keyspace, told)
}

fn words(told: &Told) -> Vec<String> {
    told.lock().unwrap().iter().map(|(_, _, words)| words.join(" ")).collect()
}

/// Commands of one word and a key.
struct List(Vec<[String; 2]>);

impl List {
    fn of(name: &str, keys: &[&str]) -> Announce {
        let commands = keys.iter().map(|key| [name.to_string(), key.to_string()]);
        Some(Arc::new(List(commands.collect())))
    }
}

impl Effects for List {
    fn each(&self, visit: &mut EffectVisitor<'_>) {
        self.0.iter().for_each(|words| visit(Some(0), &mut words.iter().map(String::as_bytes)));
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// As the server does it: the effect is told with the locks held.
fn tell(keyspace: &Keyspace, lsn: Lsn, words: &[&[u8]]) {
    keyspace.tell_sink(lsn, 0, words);
}

#[test]
fn a_fold_tells_nothing_for_its_commit_has_told() {
    for removes in [false, true] {
        let (keyspace, told) = world();
        let name = if removes { "DEL" } else { "SET" };
        let announce = List::of(name, &["old", "older"]);
        let mut commit = if removes {
            let given = ["old", "older"].map(|key| (key.to_string(), None)).to_vec();
            Commit::bulk(&keyspace, 0, Arc::new(Given(given)), 1, announce)
        } else {
            let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
            let mut view = View::overlay(&keyspace, &mut overlay, 0, 2000);
            for key in ["old", "older"] {
                view.put_string(key.as_bytes(), b"new", None);
            }
            view.finish();
            overlay.seal(1, announce)
        };
        while commit.advance(2000, 1, &mut Vec::new()) == Progress::More {}
        let told = words(&told);
        assert_eq!(told, ["old", "older"].map(|key| format!("{name} {key}")));
        assert_eq!(keyspace.len(0), if removes { 1 } else { 3 });
    }
}

#[test]
fn expired_keys_that_a_command_read_are_told_before_its_effect() {
    let (keyspace, told) = world();
    let mut view = View::locked(&keyspace, all(), 0, 2000);
    assert!(!view.exists(b"old") && !view.exists(b"older") && !view.exists(b"old") && view.exists(b"stays"));
    view.put_string(b"sum", b"v", None);
    view.changed(b"sum", Class::String, "sunionstore");
    tell(&keyspace, view.changes().lsn, &[b"SUNIONSTORE", b"sum"]);
    // A later command of the same EXEC comes across another one, and one once more.
    view.put_string(b"soon", b"v", Some(1500));
    assert!(!view.exists(b"soon") && !view.exists(b"old"));
    view.put_string(b"old", b"again", None);
    tell(&keyspace, view.changes().lsn, &[b"SET", b"old"]);
    let changes = view.finish();
    let expected = ["DEL old", "DEL older", "SUNIONSTORE sum", "DEL soon", "SET old"];
    assert_eq!(words(&told), expected);
    assert!(told.lock().unwrap().iter().all(|(lsn, ..)| *lsn == changes.lsn));
    assert_eq!(get(&keyspace, "old", 2000), Some("again".into()));
    assert_eq!(keyspace.len(0), 3);
    keyspace.check_invariants();
}

#[test]
fn expired_keys_that_a_script_read_are_told_before_its_effects() {
    for (sealed, edits) in [(false, false), (false, true), (true, false), (true, true)] {
        let (keyspace, told) = world();
        let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
        overlay.load(0, [&b"old"[..]]);
        let mut read = KeyBatches::default();
        keyspace.read_near(overlay.snapshot().lsn(), 0, stdx::hash::hash_bytes(b"older"), 1, &mut read);
        let hash = stdx::hash::hash_bytes(b"older");
        overlay.insert_near(0, hash, hash + 1, read);
        for _ in 0..2 {
            let mut view = View::overlay(&keyspace, &mut overlay, 0, 2000);
            if edits {
                assert!(!view.set_expire(b"old", None) && view.take(b"older").is_none());
            }
            assert!(!view.exists(b"old") && !view.exists(b"older"));
            view.put_string(b"sum", b"v", Some(1900));
            assert!(!view.exists(b"sum"));
            view.put_string(b"sum", b"v", None);
            view.finish();
            assert!(!overlay.load_missing());
        }
        let kept = overlay.bytes();
        assert!(kept >= 8 + 64, "{kept}");
        let lsn = if sealed {
            let mut commit = overlay.seal(1, List::of("SET", &["sum"]));
            loop {
                match commit.advance(2000, 1, &mut Vec::new()) {
                    Progress::More => {}
                    Progress::Committed(n) => break n,
                    Progress::Lost => panic!("nobody was in its way"),
                }
            }
        } else {
            let changes = overlay.commit(2000, List::of("SET", &["sum"])).unwrap();
            assert_eq!(keyspace.len(0), 2);
            changes.lsn
        };
        assert!(told.lock().unwrap().iter().all(|(at, ..)| *at == lsn));
        let mut told = words(&told);
        assert_eq!(told.pop(), Some("SET sum".to_string()));
        told.sort();
        assert_eq!(told, ["DEL old", "DEL older"], "{sealed} {edits}");
    }
}

#[test]
fn a_script_that_runs_again_has_read_nothing() {
    let (keyspace, told) = world();
    let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
    overlay.load(0, [&b"old"[..]]);
    assert!(!View::overlay(&keyspace, &mut overlay, 0, 2000).exists(b"old"));
    overlay.reset();
    View::overlay(&keyspace, &mut overlay, 0, 2000).put_string(b"sum", b"v", None);
    overlay.commit(2000, None).unwrap();
    assert!(words(&told).is_empty());
}

/// A command may meet the absence of a key that the run wrote with a time that has passed, and write it so
/// again.
#[test]
fn what_a_run_wrote_with_a_past_time_is_gone_once_for_each_time_it_was_written() {
    let (keyspace, _told) = world();
    let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
    let mut view = View::overlay(&keyspace, &mut overlay, 0, 2000);
    view.put_string(b"stays", b"v", Some(1900));
    view.finish();
    let gone = |overlay: &mut Overlay| overlay.take_passed().len();
    assert_eq!(gone(&mut overlay), 0);
    for edits in [false, true, false] {
        let mut view = View::overlay(&keyspace, &mut overlay, 0, 2000);
        let absent = if edits { view.take(b"stays").is_none() } else { !view.exists(b"stays") };
        assert!(absent);
        view.put_string(b"stays", b"v", Some(1900));
        view.finish();
        assert_eq!(overlay.take_passed(), [(0, b"stays"[..].into())]);
        assert_eq!(gone(&mut overlay), 0);
    }
    // A command that only read tells nothing; the next that does tells it.
    assert!(!View::overlay(&keyspace, &mut overlay, 0, 2000).exists(b"stays"));
    assert!(!View::overlay(&keyspace, &mut overlay, 0, 2000).exists(b"stays"));
    assert_eq!((gone(&mut overlay), gone(&mut overlay)), (1, 0));
    // A run that begins again has written nothing.
    View::overlay(&keyspace, &mut overlay, 0, 2000).put_string(b"stays", b"v", Some(1900));
    assert!(!View::overlay(&keyspace, &mut overlay, 0, 2000).exists(b"stays"));
    overlay.reset();
    assert_eq!(gone(&mut overlay), 0);
}

/// An overlay that sets a key.
fn overlay(keyspace: &Arc<Keyspace>) -> Overlay {
    let mut overlay = Overlay::new(Snapshot::open(keyspace).unwrap(), None);
    View::overlay(keyspace, &mut overlay, 0, 1).put_string(b"a", b"v", None);
    overlay
}

fn run(mut commit: Commit) -> Progress {
    loop {
        match commit.advance(1, 1, &mut Vec::new()) {
            Progress::More => {}
            ended => return ended,
        }
    }
}

#[test]
fn work_begun_before_listening_begins_loses_its_race() {
    let (keyspace, told) = (Keyspace::new(1), Told::default());
    assert!(!keyspace.listens() && keyspace.tell_apart(To::All, &mut [&b"PING"[..]].into_iter()).is_none());
    let bulk = || {
        let given = vec![("b".to_string(), Some("v".to_string()))];
        Commit::bulk(&keyspace, 0, Arc::new(Given(given)), 1, List::of("SET", &["b"]))
    };
    let (early, sealed, whole) = (overlay(&keyspace), overlay(&keyspace).seal(1, None), bulk());
    let mut placed = overlay(&keyspace).seal(1, None);
    assert_eq!(placed.advance(1, 1, &mut Vec::new()), Progress::More);
    let from = keyspace.listen(Arc::new(Sink(told.clone())));
    assert!(keyspace.listens() && from == keyspace.last_lsn() && keyspace.settled() == from);
    assert!(early.commit(1, None).is_err());
    assert!([sealed, whole, placed].into_iter().all(|commit| run(commit) == Progress::Lost));
    assert!(words(&told).is_empty() && keyspace.is_empty() && !keyspace.has_intents());
    assert!(overlay(&keyspace).commit(1, List::of("SET", &["a"])).is_ok());
    assert!(matches!(run(bulk()), Progress::Committed(_)));
    let apart = keyspace.mark_now(Mark(1)).unwrap();
    assert!(apart > from && keyspace.settled() == apart);
    assert_eq!(words(&told), ["SET a", "SET b"]);
    let upto = keyspace.unlisten();
    assert!(matches!(run(bulk()), Progress::Committed(_)));
    set(&keyspace, "c", "v", None, 1);
    assert!(told.lock().unwrap().iter().all(|(lsn, ..)| (from..upto).contains(lsn)));
    assert_eq!(words(&told).len(), 2);
    keyspace.start_at(1 << 40);
    assert_eq!(keyspace.mark_now(Mark(2)), None);
    assert_eq!(set(&keyspace, "c", "v", None, 1).lsn, (1 << 40) + 1);
}

#[test]
fn listening_that_begins_in_the_middle_of_a_command_begins_for_the_next() {
    let (keyspace, told) = (Keyspace::new(1), Told::default());
    let mut over = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
    let view = View::overlay(&keyspace, &mut over, 0, 1);
    keyspace.listen(Arc::new(Sink(told)));
    assert!(keyspace.listens() && !view.listens());
    view.finish();
    let view = View::overlay(&keyspace, &mut over, 0, 1);
    keyspace.unlisten();
    assert!(!keyspace.listens() && view.listens());
}

#[test]
fn a_slot_is_left_with_its_view() {
    let (keyspace, told) = (Keyspace::new(1), Told::default());
    keyspace.listen(Arc::new(Sink(told)));
    let mut view = View::locked(&keyspace, all(), 0, 1);
    view.put_string(b"a", b"v", None);
    assert!(view.is_told());
    let lsn = view.changes().lsn;
    assert!(keyspace.settled() < lsn && std::panic::catch_unwind(debug_assert_no_slot).is_err());
    view.finish();
    assert_eq!(keyspace.settled(), lsn);
    debug_assert_no_slot();
}
