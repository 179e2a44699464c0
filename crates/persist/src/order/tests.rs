//! The laws of the stream: LSNs rise, each effect comes once, no group is split, and only visible databases
//! are told.

use super::*;
use crate::stream::{Block, Item};
use keyspace::{Class, EffectVisitor, Overlay, Snapshot, View};
use std::collections::HashSet;
use std::sync::mpsc;

/// A thing that an outlet was given.
#[derive(Debug)]
enum Given {
    Item(Item),
    Turn(Lsn),
}

struct Pipe(mpsc::Sender<Given>, To);

impl Outlet for Pipe {
    fn take(&mut self, item: Item) {
        let _ = self.0.send(Given::Item(item));
    }

    fn turn(&mut self, upto: Lsn) {
        let _ = self.0.send(Given::Turn(upto));
    }

    fn hears(&self) -> To {
        self.1
    }
}

fn pipe(to: To) -> (Box<dyn Outlet>, mpsc::Receiver<Given>) {
    let (sender, receiver) = mpsc::channel();
    (Box::new(Pipe(sender, to)), receiver)
}

/// Each length of a line, and words that need more room than there is.
#[test]
fn words_are_encoded_whatever_their_lengths() {
    let mut scratch = Vec::new();
    let lens = [0, 1, 9, 10, 99, 100, 999, 1000, WORDS_MAX, WORDS_MAX + 1, 3 * ROOM_FOR_WORDS, 7];
    let mut commands: Vec<Vec<usize>> = vec![vec![], lens.to_vec(), lens.iter().rev().copied().collect()];
    commands.extend(lens.iter().map(|len| vec![*len]));
    commands.push(vec![5; 20_000]);
    for lens in commands {
        let words: Vec<Vec<u8>> = lens.iter().map(|len| vec![b'w'; *len]).collect();
        let mut expected = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| {
            expected += &format!("${}\r\n{}\r\n", word.len(), String::from_utf8_lossy(word));
        });
        let range = encode(&mut scratch, &mut words.iter().map(Vec::as_slice));
        assert!(scratch[range] == *expected.as_bytes(), "{lens:?}");
    }
}

/// Commands, with a database each.
struct List(Vec<(u32, Vec<Vec<u8>>)>);

impl Effects for List {
    fn each(&self, visit: &mut EffectVisitor<'_>) {
        self.0.iter().for_each(|(db, words)| visit(Some(*db), &mut words.iter().map(|word| &word[..])));
    }

    fn bytes(&self) -> usize {
        self.0.iter().flat_map(|(_, words)| words).map(Vec::len).sum()
    }
}

fn list(commands: &[(u32, &str)]) -> Arc<dyn Effects> {
    let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    Arc::new(List(commands.iter().map(|(db, line)| (*db, words(line))).collect()))
}

/// The commands in some bytes, each as a line. Long words are shortened.
fn lines(mut bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    let number = |bytes: &mut &[u8], sign: u8| {
        assert_eq!(bytes[0], sign);
        let end = bytes.iter().position(|byte| *byte == b'\r').unwrap();
        let number: usize = std::str::from_utf8(&bytes[1..end]).unwrap().parse().unwrap();
        *bytes = &bytes[end + 2..];
        number
    };
    while !bytes.is_empty() {
        let words = (0..number(&mut bytes, b'*')).map(|_| {
            let len = number(&mut bytes, b'$');
            let word = String::from_utf8_lossy(&bytes[..len]).into_owned();
            bytes = &bytes[len + 2..];
            if word.len() > 40 { format!("({})", word.len()) } else { word }
        });
        lines.push(words.collect::<Vec<_>>().join(" "));
    }
    lines
}

/// All that an outlet was given, after the order has ended: lines, and marks as lines.
fn all(given: mpsc::Receiver<Given>) -> Vec<String> {
    let mut all = Vec::new();
    for given in given {
        match given {
            Given::Item(Item::Block(block)) => all.extend(lines(&block.bytes)),
            Given::Item(Item::Mark(_, Mark(number))) => all.push(format!("mark {number}")),
            Given::Item(Item::Break(..)) => all.push("break".to_owned()),
            Given::Turn(_) => {}
        }
    }
    all
}

fn begin(keyspace: &Arc<Keyspace>, outlets: Vec<Box<dyn Outlet>>) -> Arc<Order> {
    let order = Order::start(keyspace, outlets).expect("a thread");
    keyspace.listen(order.clone());
    order
}

/// A SET as the server runs it.
fn set(keyspace: &Keyspace, db: usize, key: &str, value: &[u8]) -> Lsn {
    let mut view = View::locked_one(keyspace, key.as_bytes(), db, 1000);
    view.put_string(key.as_bytes(), value, None);
    view.changed(key.as_bytes(), Class::String, "set");
    if view.is_told() {
        let words: [&[u8]; 3] = [b"SET", key.as_bytes(), value];
        keyspace.tell(At::db(view.changes().lsn, db), &mut words.into_iter());
    }
    view.finish().lsn
}

/// An overlay that sets a key in each database, committed at once or in pieces.
fn both(keyspace: &Arc<Keyspace>, key: &str, sealed: bool) -> bool {
    let mut overlay = Overlay::new(Snapshot::open(keyspace).unwrap(), None);
    for db in 0..2 {
        let mut view = View::overlay(keyspace, &mut overlay, db, 1000);
        view.put_string(key.as_bytes(), b"v", None);
        view.changed(key.as_bytes(), Class::String, "set");
        view.finish();
    }
    let line = format!("SET {key} v");
    let noted = keyspace.listens().then(|| list(&[(0, &line), (1, &line)]));
    if !sealed {
        return overlay.commit(1000, noted).is_ok();
    }
    let mut commit = overlay.seal(1, noted);
    loop {
        match commit.advance(1000, 10, &mut Vec::new()) {
            keyspace::Progress::More => {}
            keyspace::Progress::Committed(_) => return true,
            keyspace::Progress::Lost => return false,
        }
    }
}

#[test]
fn groups_are_framed() {
    let keyspace = Keyspace::with_hidden(2, 1, 1);
    let ((log, heard), (replicas, sent)) = (pipe(To::Log), pipe(To::Replicas));
    let order = begin(&keyspace, vec![log, replicas]);
    set(&keyspace, 0, "a", b"1");
    set(&keyspace, 1, "a", &[b'x'; 5000]);
    set(&keyspace, 2, "hidden", b"1");
    assert!(both(&keyspace, "b", false) && both(&keyspace, "c", true));
    keyspace.tell_apart(To::Replicas, &mut [&b"PUBLISH"[..], b"ch", b"m"].into_iter()).unwrap();
    keyspace.mark_now(Mark(7)).unwrap();
    set(&keyspace, 1, "d-of-13-bytes", b"1");
    keyspace.tell_shared(set(&keyspace, 2, "h", b""), list(&[(2, "SET h v")]));
    keyspace.tell_shared(set(&keyspace, 2, "h", b""), list(&[(2, "SET h v"), (1, "SET e v")]));
    order.stop();
    let expected = "SELECT 0|SET a 1|SELECT 1|SET a (5000)|SELECT 0|MULTI|SET b v|SELECT 1|SET b v|EXEC|SELECT 0|MULTI|\
        SET c v|SELECT 1|SET c v|EXEC|PUBLISH ch m|mark 7|SELECT 1|SET d-of-13-bytes 1|SET e v";
    let expected: Vec<&str> = expected.split('|').collect();
    drop(order);
    // A mark of the log is no affair of the replicas: the database of before goes on for them.
    let mark = expected.iter().position(|line| line.starts_with("mark")).expect("a mark");
    let told = [&expected[..mark], &expected[mark + 2..]].concat();
    assert_eq!(all(sent), told);
    let logged: Vec<&str> = expected.into_iter().filter(|line| !line.starts_with("PUBLISH")).collect();
    assert_eq!(all(heard), logged);
}

/// A chunk that was taken before it was counted must not look like very much that waits: writes would be
/// refused.
#[test]
fn a_chunk_that_is_counted_late_is_not_too_much() {
    let keyspace = Keyspace::new(1);
    let (log, _heard) = pipe(To::Log);
    let order = begin(&keyspace, vec![log]);
    order.waiting.fetch_sub(65_536, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(order.pending_bytes(), 0);
    order.waiting.fetch_add(65_536, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(order.pending_bytes(), 0);
    order.stop();
}

#[test]
fn blocks_are_small_unless_a_group_is_large() {
    let keyspace = Keyspace::new(1);
    let (log, heard) = pipe(To::Log);
    let order = begin(&keyspace, vec![log]);
    (0..5000).for_each(|i| _ = set(&keyspace, 0, &format!("k{i}"), &[b'v'; 300]));
    let many: Vec<(u32, &str)> = vec![(0, "SET key value"); 50_000];
    // An LSN of their own, with nothing else for the log.
    let n = keyspace.tell_apart(To::Replicas, &mut [&b"PING"[..]].into_iter()).unwrap();
    keyspace.tell_shared(n, list(&many));
    set(&keyspace, 0, "a", b"v");
    order.stop();
    assert_eq!(order.pending_bytes() / 65_536, 0, "but for the last chunk");
    drop(order);
    let blocks: Vec<Block> = heard
        .into_iter()
        .filter_map(|given| match given {
            Given::Item(Item::Block(block)) => Some(block),
            _ => None,
        })
        .collect();
    assert!(blocks.iter().all(|block| block.bytes.len() <= 256 * 1024 || block.groups == 1));
    assert!(blocks.iter().any(|block| block.bytes.len() > 1_000_000));
    assert_eq!(blocks.iter().map(|block| block.groups).sum::<u32>(), 5002);
    assert!(blocks.windows(2).all(|pair| pair[0].last < pair[1].first));
}

/// Threads write and commit; listening begins while they do.
#[test]
fn the_laws_hold_under_load() {
    let keyspace = Keyspace::with_hidden(2, 1, 1);
    let (log, heard) = pipe(To::Log);
    let order = Order::start(&keyspace, vec![log]).unwrap();
    let (ends, drawn, sets) = (AtomicBool::new(false), Mutex::new(Vec::new()), AtomicU64::new(0));
    let (mut from, mut upto) = (0, 0);
    thread::scope(|scope| {
        for thread in 0..3 {
            let (keyspace, ends, drawn, sets) = (&keyspace, &ends, &drawn, &sets);
            scope.spawn(move || {
                let (mut i, mut mine) = (0u64, Vec::new());
                while !ends.load(Ordering::Relaxed) {
                    i += 1;
                    let key = format!("{thread}:{}", i % 100);
                    match i % 7 {
                        0 => _ = both(keyspace, &key, i % 2 == 0),
                        1 => _ = both(keyspace, "shared", i % 2 == 0),
                        2 => _ = set(keyspace, 2, &key, b"hidden"),
                        _ => {
                            let value = format!("{thread}-{i}");
                            let lsn = set(keyspace, (i % 2) as usize, &key, value.as_bytes());
                            mine.push((lsn, thread, i));
                            sets.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                drawn.lock().extend(mine);
            });
        }
        thread::sleep(Duration::from_millis(30));
        from = keyspace.listen(order.clone());
        let before = sets.load(Ordering::Relaxed);
        while sets.load(Ordering::Relaxed) < before + 300 {
            thread::sleep(Duration::from_millis(1));
        }
        upto = keyspace.mark_now(Mark(1)).unwrap();
        ends.store(true, Ordering::Relaxed);
    });
    order.stop();
    drop(order);
    let (mut last, mut turned, mut values, mut multi) = (0, 0, HashSet::new(), false);
    for given in heard {
        match given {
            Given::Item(Item::Block(block)) => {
                assert!(block.first > last && block.first > turned && block.last >= block.first);
                last = block.last;
                for line in lines(&block.bytes) {
                    match &*line {
                        "MULTI" => assert!(!std::mem::replace(&mut multi, true)),
                        "EXEC" => assert!(std::mem::replace(&mut multi, false)),
                        line if line.contains('-') => {
                            let value = line.rsplit(' ').next().unwrap();
                            assert!(!multi && values.insert(value.to_string()), "twice: {line}");
                        }
                        line => assert!(!line.contains("hidden") && line != "SELECT 2", "{line}"),
                    }
                }
                assert!(!multi, "a group is split");
            }
            Given::Item(Item::Mark(lsn, _)) => {
                assert!(lsn == upto && lsn > last);
                last = lsn;
            }
            Given::Item(Item::Break(_, why)) => panic!("{why}"),
            Given::Turn(upto) => {
                assert!(upto > turned && upto >= last);
                turned = upto;
            }
        }
    }
    let drawn = drawn.into_inner();
    let told = drawn.iter().filter(|(lsn, ..)| *lsn > from);
    let told: HashSet<String> = told.map(|(_, thread, i)| format!("{thread}-{i}")).collect();
    assert!(told.len() > 100 && told == values, "{} told of {}", values.len(), told.len());
}

#[test]
fn a_first_entry_wakes_the_thread() {
    let keyspace = Keyspace::new(1);
    let (log, heard) = pipe(To::Log);
    let order = begin(&keyspace, vec![log]);
    for _ in 0..2 {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !order.asleep.load(Ordering::SeqCst) {
            assert!(std::time::Instant::now() < deadline, "it never sleeps");
            thread::sleep(EVERY);
        }
        let lsn = set(&keyspace, 0, "a", b"v");
        loop {
            match heard.recv_timeout(Duration::from_secs(20)).expect("it wakes") {
                Given::Turn(upto) if upto >= lsn => break,
                _ => {}
            }
        }
    }
    order.stop();
}

/// Effects that cannot be written out.
struct Broken;

impl Effects for Broken {
    fn each(&self, visit: &mut EffectVisitor<'_>) {
        visit(Some(0), &mut [&b"SET"[..], b"half", b"1"].into_iter());
        panic!("a bug in a list");
    }

    fn bytes(&self) -> usize {
        1
    }
}

/// A panic ends neither the thread nor the process. What it may have lost is told once, and nothing counts as
/// given before a mark behind it.
#[test]
fn a_panic_loses_what_was_taken_and_the_stream_goes_on_behind_a_mark() {
    let keyspace = Keyspace::new(2);
    let (log, heard) = pipe(To::Log);
    let order = begin(&keyspace, vec![log]);
    let next = || heard.recv_timeout(Duration::from_secs(20)).expect("the thread lives");
    let before = set(&keyspace, 0, "before", b"1");
    while !matches!(next(), Given::Turn(upto) if upto >= before) {}
    let mut overlay = Overlay::new(Snapshot::open(&keyspace).unwrap(), None);
    let mut view = View::overlay(&keyspace, &mut overlay, 0, 1000);
    view.put_string(b"half", b"1", None);
    view.finish();
    let broken = overlay.commit(1000, Some(Arc::new(Broken))).expect("nobody else writes").lsn;
    let lost_upto = loop {
        match next() {
            Given::Item(Item::Break(upto, why)) => {
                assert!(why.contains("a bug in a list"), "{why}");
                break upto;
            }
            Given::Turn(upto) => assert!(upto < broken),
            Given::Item(other) => panic!("{other:?}"),
        }
    };
    assert!(lost_upto >= broken);
    set(&keyspace, 0, "unheard", &[b'x'; 5000]);
    keyspace.tell_shared(set(&keyspace, 0, "unheard", b"2"), list(&[(0, "SET unheard 3")]));
    let mark = keyspace.mark_now(Mark(5)).unwrap();
    let after = set(&keyspace, 0, "after", b"1");
    match next() {
        Given::Item(Item::Mark(lsn, Mark(5))) => assert_eq!(lsn, mark),
        other => panic!("{other:?}"),
    }
    let mut told = Vec::new();
    loop {
        match next() {
            Given::Item(Item::Block(block)) => told.extend(lines(&block.bytes)),
            Given::Turn(upto) if upto >= after => break,
            Given::Turn(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told, ["SELECT 0", "SET after 1"]);
    order.stop();
    assert_eq!(order.pending_bytes() / 65_536, 0, "but for the last chunk");
}

/// A snapshot whose mark may have come before what was lost does not have it.
#[test]
fn only_a_mark_behind_all_that_was_lost_mends_the_stream() {
    let (log, heard) = pipe(To::Log);
    let mut framer = Framer::new(log);
    let mark = |lsn: Lsn| {
        let at = At { lsn, db: None, to: To::All };
        let entry = Entry { lsn, info: info(MARK, at) | 8, at: 0 };
        (entry, Taken { bytes: lsn.to_le_bytes().to_vec(), ..Taken::default() })
    };
    framer.breaks(10, &Arc::from("a bug"));
    for lsn in [9, 10, 11] {
        let (entry, taken) = mark(lsn);
        framer.turn(lsn - 1);
        framer.group(&[entry], &taken);
    }
    framer.turn(11);
    drop(framer);
    let given: Vec<String> = heard.into_iter().map(|given| format!("{given:?}")).collect();
    assert_eq!(given, ["Item(Break(10, \"a bug\"))", "Item(Mark(11, Mark(11)))", "Turn(11)"]);
}
