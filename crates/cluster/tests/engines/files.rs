//! The engine `file`: promises beside the suite.

use crate::children::Process;
use crate::suite::{Engine, SHARD, Watch, acquire, acquire_later, eventually, id, node, put};
use cluster::coordinator::{Cas, Ended, Held};
use rustix::process::Signal;
use std::time::Duration;

struct Directory(tempfile::TempDir);

impl Directory {
    fn new() -> Directory {
        Directory(tempfile::tempdir().expect("a folder"))
    }
}

impl Engine for Directory {
    fn spec(&self) -> String {
        format!("file:{}", self.0.path().display())
    }
}

crate::conformance!(Directory::new());

#[test]
fn a_stopped_process_loses_its_lease_and_hears_so() {
    let engine = Directory::new();
    let at = engine.open();
    let mut process = Process::start("hold a", &engine.spec());
    process.told("HELD");
    process.signal(Signal::STOP);
    let lease = acquire_later(&*at, "b");
    process.signal(Signal::CONT);
    let mut answer = process.told("RENEWED");
    while answer == "Kept" {
        answer = process.told("RENEWED");
    }
    assert_eq!(answer, "Lost");
    // The stopped one may have been stopped within a call, so this is asked behind its answer.
    assert_eq!(acquire(&*at, "b").map(|lease| lease.epoch), Ok(lease.epoch));
}

#[test]
fn a_lease_ends_with_its_process_and_is_not_inherited() {
    let engine = Directory::new();
    let at = engine.open();
    // Its time does not pass within the test.
    let lease = at.acquire(&id(SHARD), &node("a"), Duration::from_secs(600)).expect("free");
    // A child that outlives the holder has none of its files, but for the moment before it is another program.
    let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().expect("a child");
    drop(at);
    let next = acquire_later(&*engine.open(), "b");
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    assert!(next.epoch > lease.epoch);
}

/// Names of the changes in the directory.
fn changes(engine: &Directory) -> Vec<String> {
    let names = std::fs::read_dir(engine.0.path().join("test")).expect("a folder");
    let names = names.map(|item| item.expect("a name").file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| name.starts_with('0')).collect();
    names.sort();
    names
}

#[test]
fn a_watch_behind_what_is_kept_is_told_so() {
    let engine = Directory::new();
    let at = engine.open();
    let mut map = put(&*at, "map", 0, b"0");
    let early = map;
    let stays = put(&*at, "node/a", 0, b"stays");
    for n in 0..600u32 {
        map = put(&*at, "map", map, n.to_string().as_bytes());
    }
    assert_eq!(Watch::start(at.clone(), "", early).ended(), Ended::Compacted);
    assert!(changes(&engine).len() < 550, "{}", changes(&engine).len());
    // An old change that is the newest of its key is there; behind a read a watch goes on.
    let (after, entries) = at.read("").expect("an answer");
    assert_eq!(entries.iter().map(|entry| entry.revision).collect::<Vec<_>>(), [map, stays]);
    let watch = Watch::start(at.clone(), "", after);
    let next = put(&*at, "map", map, b"on");
    assert_eq!(watch.next().revision, next);
    watch.end();
    // A removal that is compacted frees the key, and revisions do not go back.
    let Cas::Done(gone) = at.cas("node/a", stays, None) else { panic!("not removed") };
    assert!(gone > next);
}

#[test]
fn processes_that_are_killed_anywhere_leave_no_half() {
    let engine = Directory::new();
    let at = engine.open();
    put(&*at, "map", 0, b"0 begun");
    let mut last = 0;
    for round in 0..12 {
        let mut process = Process::start("count 100000", &engine.spec());
        let begun = at.read("map").expect("an answer").0;
        eventually("changes", || at.read("map").expect("an answer").0 > begun + 3 + round * 5);
        process.kill();
        let (revision, entries) = at.read("map").expect("an answer");
        let text = String::from_utf8(entries[0].value.clone()).expect("text");
        let value: u64 = text.split(' ').next().expect("a number").parse().expect("a whole number");
        // Each change added one, so none was lost or done twice.
        assert_eq!(value, revision - 1, "{text}");
        assert!(value > last && text.ends_with(|end: char| end.is_ascii_digit()));
        last = value;
        put(&*at, "map", revision, format!("{} between 0", value + 1).as_bytes());
    }
}

#[test]
fn a_directory_of_a_newer_version_is_refused() {
    let engine = Directory::new();
    drop(engine.open());
    std::fs::write(engine.0.path().join("format"), "2\n").expect("a file");
    let access = cluster::Access::default();
    let error = cluster::open(&engine.spec(), "test", &access).err().expect("refused");
    assert!(error.contains("format 2") && error.contains("update this node"), "{error}");
    std::fs::write(engine.0.path().join("format"), "1\n").expect("a file");
    cluster::open(&engine.spec(), "test", &access).expect("opened");
    let error = cluster::open("file:here", "test", &access).err().expect("refused");
    assert!(error.contains("from the root"), "{error}");
}

#[test]
fn clusters_with_one_directory_are_apart() {
    let engine = Directory::new();
    let (a, b) =
        (engine.open(), cluster::open(&engine.spec(), "other", &cluster::Access::default()).expect("open"));
    put(&*a, "map", 0, b"a");
    put(&*b, "map", 0, b"b");
    acquire(&*a, "a").expect("free");
    acquire(&*b, "b").expect("free");
    assert_eq!(acquire(&*b, "c"), Err(Held::By(node("b"))));
    assert_eq!(a.read("map").expect("an answer").1[0].value, b"a");
}
