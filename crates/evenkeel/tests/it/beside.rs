//! A full copy that is loaded beside the present data: clients read these until the copy takes their place.

use crate::replicas::{differences, follow, info, settle_at, until, write_much};
use crate::support::{Client, PATIENCE, Server};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::proxy::Proxy;
use support::rng::Rng;

/// Keys that readers compare.
const KEYS: usize = 300;
/// Keys that make the copy long, with the bytes of each.
const MANY: usize = 20_000;
const BYTES: usize = 150;

fn follow_at(replica: &mut Client, primary: SocketAddr) {
    replica.expect(&format!("REPLICAOF {} {}", primary.ip(), primary.port()), "+OK");
}

/// Writes a state that readers can tell from others: equal values, a library, and some keys more.
fn fill(client: &mut Client, word: &str, more: usize) {
    let pairs: Vec<String> = (0..KEYS).map(|i| format!("k{i} {word}")).collect();
    client.expect(&format!("MSET {}", pairs.join(" ")), "+OK");
    let code = format!(
        "#!lua name=lib\\nredis.register_function{{function_name='f', flags={{'no-writes'}}, callback=function() return '{word}' end}}"
    );
    client.expect(&format!("FUNCTION LOAD REPLACE \"{code}\""), "\"lib\"");
    if more > 0 {
        client.expect(&format!("DEBUG POPULATE {more} {word} {BYTES}"), "+OK");
    }
    client.expect("SELECT 3", "+OK");
    client.expect(&format!("SET elsewhere {word}"), "+OK");
    client.expect("SELECT 0", "+OK");
}

/// A primary with many keys, and a way to it that is slow.
fn slow_primary(pace: u64) -> Option<(Server, Proxy)> {
    let args = ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"];
    let primary = Server::redis(&args)?;
    fill(&mut primary.client(), "new", MANY);
    let proxy = Proxy::to(primary.addr, &[]);
    proxy.slow(pace);
    Some((primary, proxy))
}

/// A server with data of its own.
fn with_old_data(args: &[&str]) -> Server {
    let replica = Server::start_with(&[&["--repl-diskless-load", "swapdb"], args].concat());
    fill(&mut replica.client(), "old", 0);
    replica
}

fn awaits_copy(client: &mut Client) {
    until("no copy is loaded", || info(client, "persistence", "async_loading") == "1");
}

/// Reads everything that can be read in one command, again and again. Gives how often it was old, and new.
/// `seen`: how often it was old so far.
fn read_all(addr: SocketAddr, ends: &AtomicBool, seen: &AtomicUsize) -> (usize, usize) {
    let mut client = Client::to(addr);
    let all = |word: &str| format!("[{}]", vec![format!("\"{word}\""); KEYS].join(", "));
    let names: Vec<String> = (0..KEYS).map(|i| format!("k{i}")).collect();
    let (mget, old, new) = (format!("MGET {}", names.join(" ")), all("old"), all("new"));
    let (mut olds, mut news) = (0, 0);
    while !ends.load(Ordering::Relaxed) {
        let said = client.call(&mget);
        if said == old {
            assert_eq!(news, 0, "the old data came back");
            olds += 1;
            seen.store(olds, Ordering::Relaxed);
        } else {
            assert_eq!(said, new);
            news += 1;
        }
        let several = ["MULTI", "GET k0", "FCALL f 0", "DBSIZE", "SELECT 3", "GET elsewhere", "SELECT 0"];
        several.iter().for_each(|line| client.send(format!("{line}\r\n")));
        several.iter().for_each(|_| drop(client.reply()));
        let said = client.call("EXEC");
        let state = |word: &str, keys| format!("[\"{word}\", \"{word}\", :{keys}, +OK, \"{word}\", +OK]");
        let (old, new) = (state("old", KEYS), state("new", KEYS + MANY));
        assert!(said == old && news == 0 || said == new, "half of it: {said}");
        news += usize::from(said == new);
        let size = client.call("DBSIZE");
        assert!(size == format!(":{KEYS}") || size == format!(":{}", KEYS + MANY), "half of it: {size}");
    }
    (olds, news)
}

#[test]
fn readers_see_the_old_data_or_the_new_and_are_never_refused() {
    let Some((primary, proxy)) = slow_primary(2000) else { return };
    let replica = with_old_data(&[]);
    let (addr, ends) = (replica.addr, Arc::<AtomicBool>::default());
    let (its_end, seen) = (ends.clone(), Arc::<AtomicUsize>::default());
    let its_seen = seen.clone();
    let reader = std::thread::spawn(move || read_all(addr, &its_end, &its_seen));
    let mut client = replica.client();
    follow_at(&mut client, proxy.addr);
    awaits_copy(&mut client);
    // The copy hardly goes on before the old data were read beside it.
    proxy.slow(20);
    let before = seen.load(Ordering::Relaxed);
    until("the old data are read", || seen.load(Ordering::Relaxed) > before + 3);
    proxy.slow(2000);
    let text = client.call("INFO persistence");
    for line in [
        "loading:0",
        "loading_start_time:",
        "loading_loaded_bytes:",
        "loading_rdb_used_mem:",
        "loading_eta_seconds:",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
    assert_eq!(info(&mut client, "replication", "master_sync_in_progress"), "1");
    for line in ["BGSAVE", "REPLICAOF NO ONE", "BGREWRITEAOF", "SAVE"] {
        let said = client.call(line);
        assert!(
            said.starts_with("-LOADING ") || info(&mut client, "persistence", "async_loading") == "0",
            "{said}"
        );
    }
    client.expect("PING", "+PONG");
    until("the link stays down", || info(&mut client, "replication", "master_link_status") == "up");
    std::thread::sleep(Duration::from_millis(50));
    ends.store(true, Ordering::Relaxed);
    let (olds, news) = reader.join().expect("what it read");
    assert!(olds > 3 && news > 0, "{olds} old, {news} new");
    assert_eq!(info(&mut client, "persistence", "async_loading"), "0");
    primary.client().expect("SET behind 1", "+OK");
    until("the stream does not go on", || client.call("GET behind") == "\"1\"");
    client.expect("FCALL f 0", "\"new\"");
    // Keys of the copy count as used when they came.
    let idle: u64 = client.call("OBJECT IDLETIME k5")[1..].parse().expect("seconds");
    assert!(idle < 600, "{idle}");
}

/// Other makes of primaries, and Evenkeel itself: all kinds of values come beside the old data.
#[test]
fn copies_of_every_make_take_the_place_of_the_old_data() {
    let args = ["--repl-diskless-sync-delay", "0"];
    let makes = [
        Some(Server::start()),
        Server::redis(&["--repl-diskless-sync", "no"]),
        Server::peer("redis8-server", &args),
        Server::peer("valkey-server", &args),
    ];
    for primary in makes.into_iter().flatten() {
        let mut from = primary.client();
        (0..30).for_each(|salt| write_much(&mut from, salt));
        fill(&mut from, "new", 3000);
        let replica = with_old_data(&[]);
        write_much(&mut replica.client(), 99);
        follow(&replica, &primary);
        (30..50).for_each(|salt| write_much(&mut from, salt));
        settle_at(&primary, &replica);
        assert_eq!(differences(&primary, &replica), [""; 0]);
        replica.await_words("the copy is loaded beside the present data");
    }
}

/// A transaction that holds a command of those is refused at its end; one of reads runs.
#[test]
fn transactions_run_beside_a_copy_unless_they_hold_a_refused_command() {
    let Some((_primary, proxy)) = slow_primary(500) else { return };
    let replica = with_old_data(&[]);
    let (mut client, mut other) = (replica.client(), replica.client());
    client.expect("MULTI", "+OK");
    client.expect("BGSAVE SCHEDULE", "+QUEUED");
    other.expect("DEBUG POINT take-over HOLD 1", "+OK");
    follow_at(&mut other, proxy.addr);
    until("the copy does not come", || other.call("DEBUG POINT take-over") == ":1");
    assert_eq!(info(&mut other, "persistence", "async_loading"), "1");
    let said = client.call("EXEC");
    assert!(said.starts_with("-EXECABORT Transaction discarded because of: LOADING "), "{said}");
    client.expect("MULTI", "+OK");
    client.expect("GET k1", "+QUEUED");
    client.expect("EXEC", "[\"old\"]");
    other.expect("DEBUG POINT take-over OFF", "+OK");
    until("the copy does not take their place", || client.call("GET k1") == "\"new\"");
}

/// The connection is cut at any byte of the copy: the old data stay as they are, and the next try succeeds.
#[test]
fn a_copy_that_is_cut_leaves_the_old_data() {
    let args = ["--repl-diskless-sync-delay", "0"];
    let Some(primary) = Server::redis(&args) else { return };
    fill(&mut primary.client(), "new", MANY);
    let mut rng = Rng::new(3, 1);
    let cuts = [rng.below(3000) + 900, rng.below(MANY * BYTES / 8), rng.below(MANY * BYTES / 8) + 100_000];
    let proxy = Proxy::to(primary.addr, &cuts.map(|cut| cut as u64));
    let replica = with_old_data(&[]);
    let mut client = replica.client();
    follow_at(&mut client, proxy.addr);
    while proxy.cuts_left() > 0 || proxy.connections() <= cuts.len() as u64 {
        let before = info(&mut client, "replication", "master_full_syncs");
        let said = client.call("MGET k0 k299");
        let size = client.call("DBSIZE");
        if before == "0" && info(&mut client, "replication", "master_full_syncs") == "0" {
            assert_eq!((&*said, size), ("[\"old\", \"old\"]", format!(":{KEYS}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    until("no error is shown", || replica.output().contains("the full copy failed"));
    until("the link stays down", || info(&mut client, "replication", "master_link_status") == "up");
    settle_at(&primary, &replica);
    assert_eq!(differences(&primary, &replica), [""; 0]);
}

/// The words of each PSYNC that a primary heard.
type Asked = Arc<Mutex<Vec<String>>>;

/// A primary of a few lines: each connection gets the next of these files, the last one again and again.
fn fake_primary(files: Vec<Vec<u8>>) -> (SocketAddr, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, asked) = (listener.local_addr().unwrap(), Asked::default());
    let heard = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let n = heard.lock().unwrap().len().min(files.len() - 1);
            let _ = serve(stream.unwrap(), &files[n], &heard);
        }
    });
    (addr, asked)
}

/// The id of its history; the offset is 100 behind each file.
const ID: &str = "0123456789012345678901234567890123456789";

/// Says what a primary says up to its file.
fn serve(mut stream: TcpStream, file: &[u8], asked: &Asked) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let word = |lines: &mut std::io::Lines<BufReader<TcpStream>>| {
        let line = lines.next()?.ok()?;
        Some(if line.starts_with('$') { lines.next()?.ok()? } else { line })
    };
    loop {
        let count: usize = word(&mut lines)?.strip_prefix('*')?.parse().ok()?;
        let words: Vec<String> = (0..count).map(|_| word(&mut lines)).collect::<Option<_>>()?;
        match &*words[0] {
            "PING" => stream.write_all(b"+PONG\r\n").ok()?,
            "PSYNC" => {
                asked.lock().unwrap().push(words[1..].join(" "));
                break;
            }
            _ => stream.write_all(b"+OK\r\n").ok()?,
        }
    }
    let header = format!("+FULLRESYNC {ID} 100\r\n${}\r\n", file.len());
    stream.write_all(header.as_bytes()).ok()?;
    stream.write_all(file).ok()?;
    // It closes the connection, or reads on.
    while word(&mut lines).is_some_and(|word| !word.contains("ACK")) {}
    Some(())
}

/// The bytes of a snapshot of a server with the state `new`.
fn snapshot() -> Vec<u8> {
    let server = Server::start();
    let mut client = server.client();
    fill(&mut client, "new", 500);
    client.expect("SAVE", "+OK");
    std::fs::read(server.dir.path().join("dump.rdb")).unwrap()
}

/// Damaged files, and kinds of values that are not known, leave the old data, and the error says where it is.
#[test]
fn a_damaged_copy_leaves_the_old_data_and_says_where() {
    let whole = snapshot();
    let mut rng = Rng::new(4, 1);
    let mut flipped = whole.clone();
    flipped[whole.len() / 2 + rng.below(1000)] ^= 0x40;
    let unknown = [&b"REDIS0010\xfe\x00\x00\x03key\x01v"[..], b"\xc8\x05other\x00"].concat();
    let beyond = [&b"REDIS0010\xfe\x40\xff\x00\x03key\x01v"[..], &[0xff; 9]].concat();
    let (addr, asked) = fake_primary(vec![flipped, unknown, beyond, whole]);
    let replica = with_old_data(&[]);
    let mut client = replica.client();
    follow_at(&mut client, addr);
    until("the damage is not told", || replica.output().matches("the full copy failed: ").count() >= 3);
    let text = replica.output();
    for words in ["file offset 18, database 0: ", "there is no database 255 here"] {
        assert!(text.contains(words), "no {words} in {text}");
    }
    assert!(text.matches("the full copy failed: file offset ").count() >= 3, "{text}");
    if asked.lock().unwrap().len() <= 3 && info(&mut client, "replication", "master_full_syncs") == "0" {
        client.expect("MGET k0 k299", "[\"old\", \"old\"]");
        client.expect("DBSIZE", &format!(":{KEYS}"));
        client.expect("FCALL f 0", "\"old\"");
    }
    until("the copy does not come", || client.call("GET k0") == "\"new\"");
    client.expect("DBSIZE", &format!(":{}", KEYS + 500));
}

/// As long as the old data are there, so is their place in the stream: it is asked for again behind a copy that
/// failed. If they went for it, everything is asked for.
#[test]
fn the_place_in_the_stream_stays_with_the_old_data() {
    let whole = snapshot();
    let mut damaged = whole.clone();
    damaged[whole.len() - 1] ^= 1;
    for (way, third) in [("swapdb", format!("{ID} 101")), ("flush-before-load", "? -1".to_owned())] {
        let (addr, asked) = fake_primary(vec![whole.clone(), damaged.clone(), whole.clone()]);
        let replica = with_old_data(&["--repl-diskless-load", way]);
        follow_at(&mut replica.client(), addr);
        until("it does not ask again", || asked.lock().unwrap().len() >= 3);
        let said = asked.lock().unwrap()[..3].to_vec();
        assert_eq!(said, ["? -1".to_owned(), format!("{ID} 101"), third], "{way}");
    }
}

/// Clients with something in hand learn of the new data: watchers, those that keep copies, blocked ones.
#[test]
fn clients_with_something_in_hand_hear_of_the_take_over() {
    let Some((primary, proxy)) = slow_primary(2000) else { return };
    primary.client().expect("XADD stream 5-0 f v", "\"5-0\"");
    let replica = with_old_data(&[]);
    let mut client = replica.client();
    let (mut touched, mut untouched) = (replica.client(), replica.client());
    for (watcher, key) in [(&mut touched, "k7"), (&mut untouched, "never")] {
        watcher.expect(&format!("WATCH {key}"), "+OK");
        watcher.expect("MULTI", "+OK");
        watcher.expect(&format!("GET {key}"), "+QUEUED");
    }
    let mut keeps = replica.client3();
    keeps.expect("CLIENT TRACKING ON", "+OK");
    keeps.expect("GET k7", "\"old\"");
    let mut blocked = replica.client();
    client.expect("DEBUG POINT take-over HOLD 1", "+OK");
    follow_at(&mut client, proxy.addr);
    until("the copy does not come", || client.call("DEBUG POINT take-over") == ":1");
    blocked.send("XREAD BLOCK 0 STREAMS stream 0\r\n");
    until("it is not blocked", || info(&mut client, "clients", "blocked_clients") == "1");
    client.expect("DEBUG POINT take-over OFF", "+OK");
    blocked.expect_reply("[[\"stream\", [[\"5-0\", [\"f\", \"v\"]]]]]");
    touched.expect("EXEC", "(nil array)");
    untouched.expect("EXEC", "[(nil)]");
    keeps.expect_reply(">[\"invalidate\", (null)]");
    client.expect("GET k7", "\"new\"");
}

/// A snapshot, a stable cursor and a long read that began before end with the data of before.
#[test]
fn what_was_begun_on_the_old_data_ends_with_them() {
    let Some((_primary, proxy)) = slow_primary(2000) else { return };
    let replica = with_old_data(&["--dbfilename", "old.rdb"]);
    let mut client = replica.client();
    let elements: Vec<String> = (0..3000).map(|i| format!("{i:06}")).collect();
    client.expect(&format!("RPUSH list {}", elements.join(" ")), ":3000");
    let first = client.call("LSCAN list 0 STABLE COUNT 1000");
    let cursor = first[2..].split('"').next().unwrap().to_owned();
    client.expect("DEBUG POINT save-walk HOLD 1", "+OK");
    assert_eq!(client.call("BGSAVE"), "+Background saving started");
    until("it is not held", || client.call("DEBUG POINT save-walk") == ":1");
    follow_at(&mut client, proxy.addr);
    until("the link stays down", || info(&mut client, "replication", "master_link_status") == "up");
    client.expect("EXISTS list", ":0");
    let second = client.call(&format!("LSCAN list {cursor} COUNT 5000"));
    assert!(second.contains("\"001000\"") && second.contains("\"002999\""), "{second}");
    client.expect("DEBUG POINT save-walk OFF", "+OK");
    until("the snapshot goes on", || info(&mut client, "persistence", "rdb_bgsave_in_progress") == "0");
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(replica.dir.path().join("old.rdb"), dir.path().join("dump.rdb")).unwrap();
    let again = Server::start_with(&["--dir", dir.path().to_str().unwrap()]);
    let mut other = again.client();
    until("it does not load", || other.call("DBSIZE") == format!(":{}", KEYS + 1));
    other.expect("MGET k0 k299", "[\"old\", \"old\"]");
    other.expect("LLEN list", ":3000");
    other.expect("FCALL f 0", "\"old\"");
}

/// Starts again from the files of a server that was killed, without its primary. Gives what it holds.
fn state_alone(data: &str) -> String {
    let alone = Server::start_with(&["--dir", data, "--appendonly", "yes", "--replicaof", "no one"]);
    let mut client = alone.client();
    until("it does not load", || !client.call("DBSIZE").starts_with('-'));
    let (size, value) = (client.call("DBSIZE"), client.call("GET k0"));
    let library = client.call("FCALL f 0");
    format!("{size} {value} {}", if library.starts_with('-') { "none" } else { &library })
}

/// A kill at any moment around the take-over leaves the old data, or the new ones, or none; never some of both.
/// With its primary the server is a whole replica again.
#[test]
fn a_kill_around_the_take_over_leaves_no_half_state() {
    let Some((primary, proxy)) = slow_primary(0) else { return };
    let old = format!(":{KEYS} \"old\" \"old\"");
    let new = format!(":{} \"new\" \"new\"", KEYS + MANY);
    let none = ":0 (nil) none".to_owned();
    let steps: [(&str, &[&String]); 5] = [
        ("take-over", &[&old]),
        ("taken-over", &[&old]),
        ("save-walk", &[&old, &none]),
        ("log-base", &[&old, &none]),
        ("", &[&new]),
    ];
    for (point, states) in steps {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().to_str().unwrap();
        let args = ["--dir", data, "--appendonly", "yes", "--appendfsync", "always"];
        let mut replica = with_old_data(&args);
        let mut client = replica.client();
        if !point.is_empty() {
            client.expect(&format!("DEBUG POINT {point} HOLD 1"), "+OK");
        }
        follow_at(&mut client, proxy.addr);
        match point {
            "" => {
                until("the copy does not come", || client.call("GET k0") == "\"new\"");
                until("the log has no base", || {
                    info(&mut client, "persistence", "aof_rewrites") == "2"
                        && !is_unfinished(&folder.path().join("appendonlydir"))
                });
            }
            _ => until("it does not come there", || client.call(&format!("DEBUG POINT {point}")) == ":1"),
        }
        if point == "take-over" {
            client.expect("MGET k0 k299", "[\"old\", \"old\"]");
        }
        replica.signal("KILL");
        replica.exit_code();
        let state = state_alone(data);
        assert!(states.iter().any(|known| **known == state), "killed at {point:?} it holds {state}");
        let again = Server::start_with(&["--dir", data, "--appendonly", "yes"]);
        until("it does not load", || !again.client().call("DBSIZE").starts_with('-'));
        follow(&again, &primary);
        settle_at(&primary, &again);
        assert_eq!(differences(&primary, &again), [""; 0], "killed at {point:?}");
    }
}

fn is_unfinished(dir: &Path) -> bool {
    !dir.exists() || dir.join("unfinished").exists()
}

/// Writes behind the take-over are in the log that begins with it.
#[test]
fn the_log_goes_on_behind_the_take_over() {
    let Some((primary, proxy)) = slow_primary(0) else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let mut replica = with_old_data(&["--dir", data, "--appendonly", "yes"]);
    let mut client = replica.client();
    for round in 0..3 {
        // Each copy takes the place of the one before, and of its log.
        follow_at(&mut client, proxy.addr);
        until("the link stays down", || info(&mut client, "replication", "master_link_status") == "up");
        write_much(&mut primary.client(), round);
        settle_at(&primary, &replica);
        client.expect("REPLICAOF NO ONE", "+OK");
        until("it does not lead", || client.call(&format!("SET own{round} 1")) == "+OK");
    }
    until("the log has no base", || !is_unfinished(&folder.path().join("appendonlydir")));
    until("an old log stays", || {
        let names = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().starts_with("appendonlydir")).count() == 1
    });
    client.expect("SET last 1", "+OK");
    client.expect("WAITAOF 1 0 0", "[:1, :0]");
    replica.signal("KILL");
    replica.exit_code();
    let alone = Server::start_with(&["--dir", data, "--appendonly", "yes"]);
    let mut client = alone.client();
    until("it does not load", || !client.call("DBSIZE").starts_with('-'));
    client.expect("MGET k0 own1 own2 last", "[\"new\", (nil), \"1\", \"1\"]");
    client.expect("DEL own2 last", ":2");
    assert_eq!(differences(&primary, &alone), [""; 0]);
}

/// FLUSHALL ends the process of Redis that writes the copy. The old data stay until one comes through.
#[test]
fn flushes_of_the_primary_during_the_copy_end_well() {
    let args = ["--repl-diskless-sync-delay", "0", "--rdb-key-save-delay", "100"];
    let Some(primary) = Server::redis(&args) else { return };
    let replica = with_old_data(&[]);
    let (mut from, mut client) = (primary.client(), replica.client());
    fill(&mut from, "new", MANY);
    follow_at(&mut client, primary.addr);
    awaits_copy(&mut client);
    let mut has_old = true;
    for round in 0..4 {
        // A copy that began right behind FLUSHALL may come through.
        let said = client.call("MGET k0 k299");
        assert!(said.starts_with('['), "{said}");
        has_old &= said == "[\"old\", \"old\"]";
        assert!(has_old || info(&mut client, "replication", "master_full_syncs") != "0", "{said}");
        let began = Instant::now();
        from.expect("FLUSHALL", "+OK");
        fill(&mut from, &format!("new{round}"), MANY);
        std::thread::sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
    }
    from.expect("CONFIG SET rdb-key-save-delay 0", "+OK");
    until("the link stays down", || info(&mut client, "replication", "master_link_status") == "up");
    settle_at(&primary, &replica);
    client.expect("MGET k0 k299", "[\"new3\", \"new3\"]");
    assert_eq!(client.call("DBSIZE"), from.call("DBSIZE"));
}

/// The middle one copies again under the same id. Its replica keeps the old data until then, and misses nothing.
#[test]
fn a_replica_of_the_middle_one_has_no_gap() {
    let args = ["--repl-diskless-sync-delay", "0", "--repl-backlog-size", "16kb"];
    let Some(first) = Server::redis(&args) else { return };
    let proxy = Proxy::to(first.addr, &[]);
    let middle = Server::start_with(&["--repl-diskless-load", "swapdb"]);
    let last = Server::start_with(&["--repl-diskless-load", "swapdb"]);
    let (mut from, mut client, mut tail) = (first.client(), middle.client(), last.client());
    fill(&mut from, "old", MANY);
    follow_at(&mut client, proxy.addr);
    follow(&last, &middle);
    settle_at(&first, &middle);
    settle_at(&first, &last);
    let id = info(&mut client, "replication", "master_replid");
    for round in 0..2 {
        // More is written than the first one keeps.
        proxy.close(true);
        proxy.cut();
        until("the link stays up", || info(&mut client, "replication", "master_link_status") == "down");
        write_much(&mut from, round);
        from.expect(&format!("SET long {}", "x".repeat(100_000)), "+OK");
        fill(&mut from, &format!("new{round}"), 0);
        proxy.slow(1000);
        proxy.close(false);
        awaits_copy(&mut client);
        let online = info(&mut tail, "replication", "master_link_status");
        let word = if round == 0 { "\"old\"" } else { "\"new0\"" };
        if info(&mut client, "persistence", "async_loading") == "1" {
            assert_eq!((online.as_str(), &*tail.call("GET k0"), &*client.call("GET k0")), ("up", word, word));
        }
        proxy.slow(0);
        until("the link stays down", || info(&mut client, "replication", "master_link_status") == "up");
        write_much(&mut from, 10 + round);
        settle_at(&first, &middle);
        settle_at(&first, &last);
        assert_eq!(info(&mut client, "replication", "master_replid"), id, "another id");
        assert_eq!(differences(&first, &middle), [""; 0], "the middle one, round {round}");
        assert_eq!(differences(&first, &last), [""; 0], "the last one, round {round}");
    }
}

/// The way of a copy is that of the directive; `auto` goes by the memory that there is.
#[test]
fn the_directive_and_memory_choose_the_way_of_a_copy() {
    let Some((primary, proxy)) = slow_primary(3000) else { return };
    let cases: [(&[&str], &str); 7] = [
        (&["swapdb"], "beside the present data"),
        (&["flush-before-load"], "in place of the present data"),
        (&["disabled"], "by way of a file"),
        (&["on-empty-db"], "by way of a file"),
        (&["auto", "--maxmemory", "4gb"], "beside the present data"),
        (&["auto", "--maxmemory", "6mb"], "in place of the present data"),
        (
            &["auto", "--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru"],
            "in place of the present data",
        ),
    ];
    for (args, way) in cases {
        let replica = Server::start_with(&[&["--repl-diskless-load"], args].concat());
        let mut client = replica.client();
        client.expect("CONFIG GET repl-diskless-load", &format!("[\"repl-diskless-load\", \"{}\"]", args[0]));
        fill(&mut client, "old", 0);
        follow_at(&mut client, proxy.addr);
        until("the copy does not come", || info(&mut client, "replication", "master_link_status") == "up");
        replica.await_words(&format!("the copy is loaded {way}"));
        settle_at(&primary, &replica);
        client.expect("MGET k0 k299", "[\"new\", \"new\"]");
        client.expect("DBSIZE", &format!(":{}", KEYS + MANY));
        client.expect("FCALL f 0", "\"new\"");
        let names = std::fs::read_dir(replica.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(names.into_iter().all(|name| !name.to_str().unwrap().starts_with("temp-")), "{args:?}");
    }
    // Nothing is there to be read: no memory is needed twice.
    let fresh = Server::start_with(&["--repl-diskless-load", "auto"]);
    follow_at(&mut fresh.client(), proxy.addr);
    fresh.await_words("the copy is loaded in place of the present data");
}
