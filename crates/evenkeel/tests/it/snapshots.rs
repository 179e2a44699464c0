//! Snapshots on disk, and loading them.

use crate::support::{Client, PATIENCE, Server, foreign, run, said};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Waits until a line of INFO persistence is as wanted.
#[track_caller]
pub fn await_info(client: &mut Client, line: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let info = client.call("INFO persistence");
        if info.contains(line) {
            return;
        }
        assert!(Instant::now() < deadline, "no {line} in {info}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a server on the files of a folder.
pub fn start_in(dir: &Path, more: &[&str]) -> Server {
    let dir = dir.display().to_string();
    let all: Vec<&str> = ["--dir", &dir].iter().chain(more).copied().collect();
    Server::start_with(&all)
}

/// Waits until the data is loaded.
pub fn ready(server: &Server) -> Client {
    let mut client = server.client();
    await_info(&mut client, "\\nloading:0");
    client
}

fn temporary_files(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).expect("the folder").flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with("temp-")).count()
}

pub fn fill(client: &mut Client) {
    for line in [
        "SET text \"a short one\"",
        "SET number 12345",
        "SET later v PX 100000000",
        "RPUSH list a b 3 \"a longer element than the others\"",
        "SADD ints 1 2 3",
        "SADD words x y z",
        "HSET hash f v g 2",
        "HSET times f v g 2",
        "HPEXPIRE times 100000000 FIELDS 1 f",
        "ZADD scores 1 a 2.5 b -inf c",
        "SETBIT bits 100000 1",
        "R.SETBIT roaring 70000 1",
        "SELECT 9",
        "SET other db",
        "SELECT 0",
    ] {
        let reply = client.call(line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
    let script = "for i = 1, 3000 do redis.call('SET', 'many:' .. i, ('x'):rep(40)) end return 1";
    client.expect(&format!("EVAL \"{script}\" 0"), ":1");
    let library = "FUNCTION LOAD \"#!lua name=lib\\nredis.register_function('f', function() return 7 end)\"";
    client.expect(library, "\"lib\"");
}

#[test]
fn a_snapshot_holds_everything_and_a_start_loads_it() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (digest, times) = {
        let mut server = start_in(folder.path(), &[]);
        let mut client = ready(&server);
        fill(&mut client);
        client.expect("SAVE", "+OK");
        assert_eq!(temporary_files(folder.path()), 0);
        let times = (client.call("PEXPIRETIME later"), client.call("HPEXPIRETIME times FIELDS 2 f g"));
        let digest = client.call("DEBUG DIGEST");
        client.send("SHUTDOWN NOSAVE\r\n");
        assert_eq!(server.exit_code(), Some(0));
        (digest, times)
    };
    let server = start_in(folder.path(), &[]);
    let mut client = ready(&server);
    client.expect("DEBUG DIGEST", &digest);
    assert_eq!((client.call("PEXPIRETIME later"), client.call("HPEXPIRETIME times FIELDS 2 f g")), times);
    client.expect("FCALL f 0", ":7");
    client.expect("DBSIZE", ":3011");
    let info = client.call("INFO persistence");
    assert!(info.contains("rdb_changes_since_last_save:0\\r"), "{info}");
    assert!(info.contains("rdb_last_load_keys_loaded:3012\\r"), "{info}");
    client.expect("DEBUG RELOAD", "+OK");
    client.expect("DEBUG DIGEST", &digest);
}

/// A file without a checksum, as Redis 8.6 writes it: a key of which a module knows more, and a stream with
/// an idempotent producer, which is kept.
#[test]
fn a_file_of_redis_8_6_is_loaded_and_what_is_left_out_is_counted() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut file = b"REDIS0013\xfe\0".to_vec();
    file.extend(b"\xf3\x01\x01\x02\x03\x04\x05\x02hi\0\0\x04told\x01v");
    file.extend(b"\x1a\x06stream\0\0\x05\x01\0\0\0\0\x07\0\x40\x64\x40\x64\x01\x01p\x01\x01i\x05\x01\x01\0");
    file.extend(b"\0\x04last\x01w\xff\0\0\0\0\0\0\0\0");
    std::fs::write(folder.path().join("dump.rdb"), file).expect("room");
    let server = start_in(folder.path(), &[]);
    let mut client = ready(&server);
    client.expect("MGET told last", r#"["v", "w"]"#);
    client.expect(
        "XADD stream 5-1 f v",
        "-ERR The ID specified in XADD is equal or smaller than the target stream top item",
    );
    let stream = client.call("XINFO STREAM stream");
    assert!(stream.contains(r#""idmp-duration", :100, "idmp-maxsize", :100"#), "{stream}");
    assert!(stream.contains(r#""iids-added", :1, "iids-duplicates", :0"#), "{stream}");
    let info = client.call("INFO persistence");
    assert!(info.contains("rdb_last_load_keys_stripped:1\\r"), "{info}");
}

#[test]
fn one_snapshot_is_taken_at_a_time_and_can_be_cancelled() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("DEBUG POPULATE 5000 k 100", "+OK");
    client.expect("BGSAVE CANCEL", "-ERR Background saving is currently not in progress or scheduled");
    client.expect("BGSAVE NOW", "-ERR syntax error");
    client.expect("DEBUG POINT save-write HOLD 1", "+OK");
    client.expect("BGSAVE", "+Background saving started");
    client.expect("BGSAVE", "-ERR Background save already in progress");
    client.expect("SAVE", "-ERR Background save already in progress");
    client.expect("BGSAVE SCHEDULE", "-ERR Background save already in progress");
    await_info(&mut client, "rdb_bgsave_in_progress:1\\r");
    // Everybody goes on while the writer is held.
    client.expect("SET k:1 other", "+OK");
    client.expect("BGSAVE CANCEL", "+Background saving cancelled");
    client.expect("DEBUG POINT save-write OFF", "+OK");
    await_info(&mut client, "rdb_bgsave_in_progress:0\\r");
    assert!(!server.dir.path().join("dump.rdb").exists());
    assert_eq!(temporary_files(server.dir.path()), 0);
    let info = client.call("INFO persistence");
    assert!(info.contains("rdb_last_bgsave_status:ok\\r"), "{info}");
    // In a transaction it is scheduled.
    client.expect("MULTI", "+OK");
    client.expect("SAVE", "-ERR Command not allowed inside a transaction");
    client.expect("DISCARD", "+OK");
    client.expect("MULTI", "+OK");
    client.expect("BGSAVE", "+QUEUED");
    client.expect("EXEC", "[+Background saving scheduled]");
    await_info(&mut client, "rdb_saves:1\\r");
    assert!(server.dir.path().join("dump.rdb").exists());
}

#[test]
fn a_fault_of_the_writer_fails_the_snapshot_alone() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("DEBUG POPULATE 5000 k 100", "+OK");
    for point in ["save-write", "save-end"] {
        client.expect(&format!("DEBUG POINT {point} PANIC 1"), "+OK");
        client.expect("SAVE", "-ERR the snapshot failed: a fault in the server: see the log");
        assert_eq!(temporary_files(server.dir.path()), 0, "{point}");
    }
    client.expect("SAVE", "+OK");
    client.expect("DBSIZE", ":5000");
}

#[test]
fn save_points_begin_snapshots() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("SET a 1", "+OK");
    client.expect("CONFIG SET save \"1 3\"", "+OK");
    client.expect("MSET b 2 c 3", "+OK");
    await_info(&mut client, "rdb_saves:1\\r");
    await_info(&mut client, "rdb_changes_since_last_save:0\\r");
    server.await_words("(save 1 3): saving");
}

#[test]
fn a_failed_snapshot_stops_writes_and_nothing_else() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("data");
    std::fs::create_dir(&dir).expect("a folder");
    let server = start_in(&dir, &[]);
    let mut client = ready(&server);
    client.expect("SET k v", "+OK");
    client.expect("SAVE", "+OK");
    std::fs::remove_dir_all(&dir).expect("it goes");
    let failed = client.call("SAVE");
    assert!(failed.starts_with("-ERR the snapshot failed: ") && failed.contains("No such file"), "{failed}");
    // Without save points nobody counts on snapshots.
    client.expect("SET k w", "+OK");
    client.expect("CONFIG SET save \"3600 1\"", "+OK");
    await_info(&mut client, "rdb_last_bgsave_status:err\\r");
    let deadline = Instant::now() + PATIENCE;
    while !client.call("SET probe x").starts_with("-MISCONF ") {
        assert!(Instant::now() < deadline);
    }
    client.expect("GET k", "\"w\"");
    client.expect("PING", "+PONG");
    client.expect("PUBLISH c m", ":0");
    client.expect("MULTI", "+OK");
    let queued = client.call("SET k y");
    assert!(queued.starts_with("-MISCONF "), "{queued}");
    let aborted = client.call("EXEC");
    assert!(aborted.starts_with("-EXECABORT "), "{aborted}");
    let by_script = client.call("EVAL \"return redis.call('SET', KEYS[1], 'z')\" 1 k");
    assert!(by_script.contains("MISCONF"), "{by_script}");
    client.expect("EVAL \"return redis.call('GET', KEYS[1])\" 1 k", "\"w\"");
    std::fs::create_dir(&dir).expect("a folder");
    client.expect("SAVE", "+OK");
    client.expect("SET k again", "+OK");
}

#[test]
fn clients_are_told_of_a_load_that_is_under_way() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.expect("SET k v", "+OK");
    other.expect("MULTI", "+OK");
    other.expect("GET k", "+QUEUED");
    client.expect("DEBUG POINT file-load HOLD 1", "+OK");
    client.send("DEBUG RELOAD\r\n");
    let mut third = server.client();
    await_info(&mut third, "\\nloading:1\\r");
    for refused in ["GET k", "SET k w", "PING", "DBSIZE", "EVAL \"return 1\" 0", "BGSAVE"] {
        let reply = third.call(refused);
        assert!(reply.starts_with("-LOADING "), "{refused}: {reply}");
    }
    let aborted = other.call("EXEC");
    assert!(aborted.starts_with("-EXECABORT ") && aborted.contains("LOADING"), "{aborted}");
    third.expect("CONFIG GET maxmemory", "[\"maxmemory\", \"0\"]");
    third.expect("DEBUG POINT file-load OFF", "+OK");
    client.expect_reply("+OK");
    third.expect("GET k", "\"v\"");
}

#[test]
fn a_damaged_file_is_named_and_its_sound_part_loaded_only_if_asked_for() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("dump.rdb");
    {
        let server = start_in(folder.path(), &["--rdbcompression", "no"]);
        let mut client = ready(&server);
        client.expect("DEBUG POPULATE 2000 k 50", "+OK");
        client.expect("SAVE", "+OK");
    }
    let mut bytes = std::fs::read(&file).expect("the file");
    bytes.truncate(bytes.len() / 2);
    std::fs::write(&file, &bytes).expect("the file");
    let dir = folder.path().display().to_string();
    let output = run(&["--port", "0", "--unixsocket", &format!("{dir}/s"), "--save", "", "--dir", &dir]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("dump.rdb: ") && text.contains("offset"), "{text}");
    assert_eq!(std::fs::read(&file).expect("the file"), bytes);
    let server = start_in(folder.path(), &["--load-damaged", "keep-prefix"]);
    let mut client = ready(&server);
    let keys: usize = client.call("DBSIZE").trim_start_matches(':').parse().expect("a number");
    assert!((800..1200).contains(&keys), "{keys}");
    await_info(&mut client, "damaged-1");
    assert!(folder.path().join("damaged-1").exists());
}

#[test]
fn the_end_saves_if_there_are_save_points_or_it_is_asked_for() {
    if foreign() {
        return;
    }
    for (save, end, saved) in [
        ("3600 1", "TERM", true),
        ("", "TERM", false),
        ("3600 1", "SHUTDOWN", true),
        ("3600 1", "SHUTDOWN NOSAVE", false),
        ("", "SHUTDOWN SAVE", true),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = start_in(folder.path(), &["--save", save]);
        let mut client = ready(&server);
        client.expect("SET k v", "+OK");
        match end {
            "TERM" => server.signal("TERM"),
            command => client.send(format!("{command}\r\n")),
        }
        assert_eq!(server.exit_code(), Some(0), "{save:?} {end}");
        assert_eq!(folder.path().join("dump.rdb").exists(), saved, "{save:?} {end}");
    }
}

#[test]
fn an_end_whose_snapshot_fails_does_not_happen() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("data");
    std::fs::create_dir(&dir).expect("a folder");
    let mut server = start_in(&dir, &["--save", "3600 1000000"]);
    let mut client = ready(&server);
    client.expect("CONFIG SET stop-writes-on-bgsave-error no", "+OK");
    client.expect("SET k v", "+OK");
    std::fs::remove_dir_all(&dir).expect("it goes");
    client.expect("SHUTDOWN", "-ERR Errors trying to SHUTDOWN. Check logs.");
    client.expect("SET k w", "+OK");
    client.expect("SHUTDOWN ABORT", "-ERR No shutdown in progress.");
    assert!(server.is_running());
    client.send("SHUTDOWN FORCE\r\n");
    assert_eq!(server.exit_code(), Some(0));
}

/// Each of many snapshots, taken during transfers of several kinds, holds all of the money.
#[test]
fn a_snapshot_is_of_one_moment() {
    if foreign() {
        return;
    }
    const ACCOUNTS: usize = 40;
    let rounds = std::env::var("EVENKEEL_SNAPSHOTS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let server = Server::start();
    let mut client = server.client();
    client.expect("DEBUG POPULATE 20000 other 40", "+OK");
    for account in 0..ACCOUNTS {
        client.expect(&format!("SET {{a}}{account} 100"), "+OK");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let script = "redis.call('DECRBY', KEYS[1], ARGV[1]) redis.call('INCRBY', KEYS[2], ARGV[1]) return 1";
    let movers: Vec<_> = (0..3usize)
        .map(|mover| {
            let (mut client, stop) = (server.client(), stop.clone());
            std::thread::spawn(move || {
                let mut seed = mover as u64 + 1;
                let mut next = |n: usize| {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (seed >> 33) as usize % n
                };
                while !stop.load(Ordering::Relaxed) {
                    let (from, to, sum) = (next(ACCOUNTS), next(ACCOUNTS), next(20));
                    match mover {
                        0 => {
                            client.call("MULTI");
                            client.call(&format!("DECRBY {{a}}{from} {sum}"));
                            client.call(&format!("INCRBY {{a}}{to} {sum}"));
                            client.call("EXEC");
                        }
                        1 => {
                            let call = format!("EVAL \"{script}\" 2 {{a}}{from} {{a}}{to} {sum}");
                            client.expect(&call, ":1");
                        }
                        _ => {
                            // Two commands of one moment: all keys are written anew.
                            client.call(&format!("RENAME {{a}}{from} {{a}}{from}"));
                            client.call(&format!("COPY {{a}}{to} copy{to} REPLACE"));
                        }
                    }
                }
            })
        })
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    for round in 0..rounds {
        client.expect("SAVE", "+OK");
        let copy = folder.path().join(format!("{round}.rdb"));
        std::fs::copy(server.dir.path().join("dump.rdb"), copy).expect("a copy");
    }
    stop.store(true, Ordering::Relaxed);
    movers.into_iter().for_each(|mover| mover.join().expect("a mover"));
    let dir = folder.path().display().to_string();
    for round in 0..rounds {
        let name = format!("{round}.rdb");
        let judge = Server::start_with(&["--dir", &dir, "--dbfilename", &name]);
        let mut client = ready(&judge);
        let sum = format!(
            "EVAL \"local s = 0 for i = 0, {} do s = s + redis.call('GET', '{{a}}' .. i) end return s\" 0",
            ACCOUNTS - 1
        );
        client.expect(&sum, &format!(":{}", ACCOUNTS * 100));
    }
}
