//! The promises of a coordinator (C1 to C5), for all engines alike.

use crate::children::Process;
use cluster::coordinator::{
    Cas, Change, Coordinator, Ended, Entry, Held, Lease, NodeId, Renewed, Revision, ShardId, Stop,
    acquire_known, boot_ns, cas_known,
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The shard of most tests.
pub const SHARD: &str = "0000000000000000000000000000000000000001";
/// For tests of leases that end; at etcd's least.
pub const TTL: Duration = Duration::from_secs(2);
/// For one that another process renews each 300 ms.
pub const HELD: Duration = Duration::from_secs(5);
/// The longest that a test waits.
const LONG: Duration = Duration::from_secs(90);

/// A running engine with nothing in it.
pub trait Engine: Sync {
    /// The text that another process opens.
    fn spec(&self) -> String;

    /// Another candidate, as by another process.
    fn open(&self) -> Arc<dyn Coordinator> {
        crate::children::open(&self.spec())
    }
}

/// Makes the tests of an engine. The expression starts one.
#[macro_export]
macro_rules! conformance {
    ($engine:expr) => {
        $crate::conformance!(
            $engine,
            one_holder,
            epochs_grow,
            released_and_taken,
            released_for_another,
            a_lease_that_nobody_renews_ends,
            a_killed_holder,
            acquired_twice,
            changes_of_a_key,
            reads_by_prefix,
            a_watch_tells_all_in_order,
            a_watch_of_shards,
            a_large_map,
            counters,
            counting_processes
        );
    };
    ($engine:expr, $($test:ident),*) => {
        $(#[test]
        fn $test() {
            $crate::suite::$test(&$engine);
        })*
    };
}

pub fn id(text: &str) -> ShardId {
    ShardId::new(text).expect("an id")
}

pub fn node(text: &str) -> NodeId {
    NodeId::new(text).expect("an id")
}

fn far() -> Instant {
    Instant::now() + LONG
}

/// Asks until it is true.
pub fn eventually(what: &str, mut ask: impl FnMut() -> bool) {
    let until = far();
    while !ask() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Takes the lease, for longer than any test lasts; answers that are not known are asked again.
pub fn acquire(at: &dyn Coordinator, who: &str) -> Result<Lease, Held> {
    acquire_known(at, &id(SHARD), &node(who), LONG, far())
}

/// Takes the lease, for a time that passes.
pub fn acquire_short(at: &dyn Coordinator, who: &str) -> Lease {
    acquire_known(at, &id(SHARD), &node(who), TTL, far()).expect("free")
}

/// Gives it back; a call without an answer is made again.
pub fn release(at: &dyn Coordinator, lease: &Lease, next: Option<&NodeId>) {
    eventually("an answer", || at.release(lease.clone(), next).is_ok());
}

/// Reads, as soon as there is an answer.
pub fn read(at: &dyn Coordinator, prefix: &str) -> (Revision, Vec<Entry>) {
    let mut answer = None;
    eventually("an answer", || {
        answer = at.read(prefix).ok();
        answer.is_some()
    });
    answer.expect("an answer")
}

/// Renews it; a call without an answer is made again.
pub fn renew(at: &dyn Coordinator, lease: &Lease) -> Renewed {
    let mut answer = Renewed::Lost;
    eventually("an answer", || {
        answer = at.renew(lease);
        !matches!(answer, Renewed::Unknown(_))
    });
    answer
}

/// Takes it as soon as it is free.
pub fn acquire_later(at: &dyn Coordinator, who: &str) -> Lease {
    let mut lease = None;
    eventually("a free lease", || {
        lease = acquire(at, who).ok();
        lease.is_some()
    });
    lease.expect("a lease")
}

pub fn put(at: &dyn Coordinator, key: &str, expected: Revision, value: &[u8]) -> Revision {
    match cas_known(at, key, expected, Some(value), far()) {
        Cas::Done(revision) => revision,
        other => panic!("{key} at {expected}: {other:?}"),
    }
}

fn holder(at: &dyn Coordinator) -> Option<(String, u64)> {
    let (_, entries) = read(at, "shard/");
    let entry = entries.into_iter().find(|entry| entry.key == format!("shard/{SHARD}"))?;
    Some((String::from_utf8(entry.value).expect("an id"), entry.epoch))
}

pub fn one_holder(engine: &dyn Engine) {
    let (a, b) = (engine.open(), engine.open());
    let lease = acquire(&*a, "a").expect("free");
    assert!(lease.epoch > 0 && lease.node == node("a") && &*lease.shard == SHARD);
    assert_eq!(acquire(&*b, "b"), Err(Held::By(node("a"))));
    assert_eq!(holder(&*b), Some(("a".to_owned(), lease.epoch)));
    assert_eq!(renew(&*a, &lease), Renewed::Kept);
    assert_eq!(acquire(&*b, "b"), Err(Held::By(node("a"))));
    // The same node again, after a restart: it holds nothing.
    assert_eq!(acquire(&*b, "a"), Err(Held::By(node("a"))));
    // Another shard is another lease.
    let other = acquire_known(&*b, &id("2"), &node("b"), LONG, far()).expect("free");
    assert_eq!(renew(&*b, &other), Renewed::Kept);
    // Sixteen at once, round after round: one has it.
    release(&*a, &lease, None);
    for _ in 0..5 {
        let all: Vec<_> = (0..16).map(|n| (engine.open(), format!("n{n}"))).collect();
        let got: Vec<_> = std::thread::scope(|scope| {
            let each =
                |(at, who): &(Arc<dyn Coordinator>, String)| acquire(&**at, who).map(|l| (at.clone(), l));
            let threads: Vec<_> = all.iter().map(|one| scope.spawn(move || each(one))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let won: Vec<_> = got.into_iter().filter_map(Result::ok).collect();
        assert_eq!(won.len(), 1, "{:?}", won.iter().map(|(_, lease)| lease).collect::<Vec<_>>());
        for (at, lease) in won {
            release(&*at, &lease, None);
        }
    }
}

pub fn epochs_grow(engine: &dyn Engine) {
    let mut last = 0;
    for round in 0..6 {
        let at = engine.open();
        let lease = acquire(&*at, if round % 2 == 0 { "a" } else { "b" }).expect("free");
        assert!(lease.epoch > last, "{} behind {last}", lease.epoch);
        last = lease.epoch;
        // Other keys change meanwhile.
        put(&*at, &format!("node/{round}"), 0, b"{}");
        release(&*at, &lease, None);
    }
}

pub fn released_and_taken(engine: &dyn Engine) {
    let (a, b) = (engine.open(), engine.open());
    let lease = acquire(&*a, "a").expect("free");
    let held = lease.clone();
    release(&*a, &lease, None);
    assert_eq!(holder(&*b), None);
    let next = acquire(&*b, "b").expect("free at once");
    assert!(next.epoch > held.epoch);
    // The old one is over, and ends nothing more.
    assert_eq!(renew(&*a, &held), Renewed::Lost);
    release(&*a, &held, None);
    assert_eq!(renew(&*b, &next), Renewed::Kept);
}

pub fn released_for_another(engine: &dyn Engine) {
    let (a, b, c) = (engine.open(), engine.open(), engine.open());
    let lease = acquire(&*a, "a").expect("free");
    release(&*a, &lease, Some(&node("c")));
    assert_eq!(acquire(&*b, "b"), Err(Held::For(node("c"))));
    let got = acquire(&*c, "c").expect("it is kept for it");
    assert_eq!(acquire(&*b, "b"), Err(Held::By(node("c"))));
    release(&*c, &got, None);
    // A node that never comes has it for one TTL only.
    let got = acquire_short(&*c, "c");
    let before = boot_ns();
    release(&*c, &got, Some(&node("gone")));
    acquire_later(&*b, "b");
    assert!(boot_ns() - before >= TTL.as_nanos() as u64);
}

pub fn a_lease_that_nobody_renews_ends(engine: &dyn Engine) {
    let (a, b) = (engine.open(), engine.open());
    let sent = boot_ns();
    let lease = acquire_short(&*a, "a");
    let next = acquire_later(&*b, "b");
    // C2: never before its time.
    assert!(boot_ns() - sent >= TTL.as_nanos() as u64);
    assert!(next.epoch > lease.epoch);
    assert_eq!(renew(&*a, &lease), Renewed::Lost);
    assert_eq!(renew(&*b, &next), Renewed::Kept);
}

pub fn a_killed_holder(engine: &dyn Engine) {
    let at = engine.open();
    let mut process = Process::start("hold a", &engine.spec());
    let epoch: u64 = process.told("HELD").parse().expect("an epoch");
    // It lasts past its TTL, as it is renewed.
    let begun = Instant::now();
    while begun.elapsed() < HELD + HELD / 4 {
        assert_eq!(acquire(&*at, "b"), Err(Held::By(node("a"))));
        assert_eq!(process.told("RENEWED"), "Kept");
    }
    process.kill();
    assert!(acquire_later(&*at, "b").epoch > epoch);
}

pub fn acquired_twice(engine: &dyn Engine) {
    let at = engine.open();
    let lease = acquire(&*at, "a").expect("free");
    // As behind an answer that did not come.
    assert_eq!(acquire(&*at, "a"), Ok(lease.clone()));
    assert_eq!(renew(&*at, &lease), Renewed::Kept);
    assert_eq!(acquire(&*at, "b"), Err(Held::By(node("a"))));
}

pub fn changes_of_a_key(engine: &dyn Engine) {
    let at = engine.open();
    let cas = |expected, value: Option<&[u8]>| cas_known(&*at, "map", expected, value, far());
    assert_eq!(cas(7, Some(b"x")), Cas::Conflict(0));
    let Cas::Done(first) = cas(0, Some(b"one")) else { panic!("not made") };
    assert!(first > 0);
    assert_eq!(at.cas("map", 0, Some(b"two")), Cas::Conflict(first));
    let Cas::Done(second) = cas(first, Some(b"two")) else { panic!("not changed") };
    assert!(second > first);
    assert_eq!(at.cas("map", first, Some(b"three")), Cas::Conflict(second));
    assert_eq!(at.cas("map", first, None), Cas::Conflict(second));
    let Cas::Done(gone) = cas(second, None) else { panic!("not removed") };
    assert!(gone > second);
    assert_eq!(at.cas("map", second, Some(b"four")), Cas::Conflict(0));
    let Cas::Done(again) = cas(0, Some(b"\x00\xff\"\n")) else { panic!("not made again") };
    assert!(again > gone);
    let (now, entries) = read(&*at, "map");
    assert!(now >= again);
    assert_eq!((entries[0].value.as_slice(), entries[0].revision), (b"\x00\xff\"\n".as_slice(), again));
    // Keys that are none are refused, and change nothing.
    for bad in ["", "/map", "a//b", "../up", "a b"] {
        assert!(matches!(at.cas(bad, 0, Some(b"x")), Cas::Unknown(_)), "{bad}");
    }
    assert_eq!(read(&*at, "").1.len(), 1);
}

pub fn reads_by_prefix(engine: &dyn Engine) {
    let (at, other) = (engine.open(), engine.open());
    for key in ["offer/1/b", "offer/1/a", "offer/10/a", "node/a", "map"] {
        put(&*at, key, 0, key.as_bytes());
    }
    let keys = |prefix: &str| {
        let (_, entries) = read(&*other, prefix);
        for entry in &entries {
            assert_eq!(entry.value, entry.key.as_bytes());
        }
        entries.into_iter().map(|entry| entry.key).collect::<Vec<_>>()
    };
    assert_eq!(keys("offer/1/"), ["offer/1/a", "offer/1/b"]);
    assert_eq!(keys("offer/"), ["offer/1/a", "offer/1/b", "offer/10/a"]);
    assert_eq!(keys("map"), ["map"]);
    assert_eq!(keys("nothing/"), [""; 0]);
    assert_eq!(keys(""), ["map", "node/a", "offer/1/a", "offer/1/b", "offer/10/a"]);
}

/// A watch on a thread of its own.
pub struct Watch {
    pub changes: Receiver<Change>,
    stop: Stop,
    thread: Option<std::thread::JoinHandle<Ended>>,
}

impl Watch {
    pub fn start(at: Arc<dyn Coordinator>, prefix: &'static str, after: Revision) -> Watch {
        let (tell, changes): (Sender<Change>, _) = channel();
        let stop = Stop::new();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            at.watch(prefix, after, &stopped, &mut |change| {
                let _ = tell.send(change);
            })
        });
        Watch { changes, stop, thread: Some(thread) }
    }

    pub fn next(&self) -> Change {
        self.changes.recv_timeout(LONG).expect("a change")
    }

    /// Waits until it ends by itself.
    pub fn ended(mut self) -> Ended {
        self.thread.take().expect("a thread").join().expect("no panic")
    }

    pub fn end(self) {
        self.stop.stop();
        assert_eq!(self.ended(), Ended::Stopped);
    }
}

pub fn a_watch_tells_all_in_order(engine: &dyn Engine) {
    let (at, writer) = (engine.open(), engine.open());
    put(&*writer, "map", 0, b"before");
    let (after, _) = read(&*at, "");
    // A watch begins where its candidate has read.
    let other = engine.open();
    assert_eq!(read(&*other, "").0, after);
    // Half of the changes come before the watch begins, half under it.
    let written = Mutex::new(Vec::new());
    let write = |from: u32, to: u32| {
        let mut known = std::collections::HashMap::new();
        for n in from..to {
            let key = ["node/a", "offer/1/a", "map"][n as usize % 3];
            let expected = *known.entry(key).or_insert_with(|| {
                let (_, entries) = read(&*writer, key);
                entries.iter().find(|entry| entry.key == key).map_or(0, |entry| entry.revision)
            });
            let value = (n % 7 != 6 || expected == 0).then(|| n.to_string());
            let answer = cas_known(&*writer, key, expected, value.as_ref().map(String::as_bytes), far());
            let Cas::Done(revision) = answer else { panic!("{key}: {answer:?}") };
            known.insert(key, if value.is_some() { revision } else { 0 });
            written.lock().expect("a list").push((key.to_owned(), revision, value.map(String::into_bytes)));
        }
    };
    write(0, 60);
    let all = Watch::start(at.clone(), "", after);
    let offers = Watch::start(other, "offer/", after);
    write(60, 120);
    let written = written.into_inner().expect("a list");
    for (watch, prefix) in [(&all, ""), (&offers, "offer/")] {
        for (key, revision, value) in written.iter().filter(|(key, ..)| key.starts_with(prefix)) {
            let change = watch.next();
            assert_eq!((&change.key, change.revision), (key, *revision));
            assert_eq!(change.entry.map(|entry| entry.value), *value);
        }
    }
    // Again from the middle, as after a break.
    let middle = Watch::start(at, "", written[100].1);
    assert_eq!(middle.next().revision, written[101].1);
    middle.end();
    all.end();
    offers.end();
}

pub fn a_watch_of_shards(engine: &dyn Engine) {
    let (at, a) = (engine.open(), engine.open());
    let (after, _) = read(&*at, "shard/");
    let watch = Watch::start(at, "shard/", after);
    let key = format!("shard/{SHARD}");
    // Waits for the shard to have this holder. States may come twice, never out of order.
    let until = |wanted: Option<(&str, u64)>| loop {
        let change = watch.next();
        if change.key != key {
            continue;
        }
        let now = change.entry.map(|entry| (String::from_utf8(entry.value).expect("an id"), entry.epoch));
        if now.as_ref().map(|(who, epoch)| (who.as_str(), *epoch)) == wanted {
            break;
        }
    };
    let lease = acquire(&*a, "a").expect("free");
    until(Some(("a", lease.epoch)));
    release(&*a, &lease, None);
    until(None);
    // One that is not renewed any more ends without anybody's call.
    let lease = acquire_short(&*a, "b");
    until(Some(("b", lease.epoch)));
    until(None);
    watch.end();
}

pub fn a_large_map(engine: &dyn Engine) {
    let (a, b) = (engine.open(), engine.open());
    let (after, _) = read(&*b, "");
    let watch = Watch::start(b.clone(), "map", after);
    let mut expected = 0;
    for round in 0..5u8 {
        let map: Vec<u8> = (0..200 * 1024u32).map(|n| b'a' + ((n + u32::from(round)) % 23) as u8).collect();
        expected = put(&*a, "map", expected, &map);
        assert!(read(&*b, "map").1[0].value == map);
        let change = watch.next();
        assert!(change.revision == expected && change.entry.expect("a value").value == map);
    }
    watch.end();
}

/// Adds to a counter, with values that say whose they are.
pub fn count(at: &dyn Coordinator, times: u32, who: &str) {
    for _ in 0..times {
        loop {
            let Ok((_, entries)) = at.read("map") else { continue };
            let (revision, value) = entries.first().map_or((0, 0), |entry| {
                let text = String::from_utf8_lossy(&entry.value);
                (entry.revision, text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0u32))
            });
            let next = format!("{} {who} {}", value + 1, std::process::id());
            match cas_known(at, "map", revision, Some(next.as_bytes()), far()) {
                Cas::Done(_) => break,
                Cas::Conflict(_) => {}
                Cas::Unknown(trouble) => panic!("{trouble}"),
            }
        }
    }
}

fn counted(at: &dyn Coordinator) -> u32 {
    let (_, entries) = read(at, "map");
    String::from_utf8_lossy(&entries[0].value).split(' ').next().expect("a number").parse().expect("a number")
}

pub fn counters(engine: &dyn Engine) {
    let shared = engine.open();
    std::thread::scope(|scope| {
        for n in 0..20 {
            let at = if n % 2 == 0 { shared.clone() } else { engine.open() };
            scope.spawn(move || count(&*at, 10, &format!("thread {n}")));
        }
    });
    assert_eq!(counted(&*shared), 200);
}

pub fn counting_processes(engine: &dyn Engine) {
    let at = engine.open();
    let mut all: Vec<_> = (0..3).map(|_| Process::start("count 40", &engine.spec())).collect();
    count(&*at, 40, "parent");
    for process in &mut all {
        process.told("COUNTED");
    }
    assert_eq!(counted(&*at), 160);
}
