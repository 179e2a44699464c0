//! The modes of redis-cli, and the file of a snapshot that SYNC sends.

use crate::support::{Client, Server};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs redis-cli to its end, a good one. None, with a notice, where there is none.
fn cli(server: &Server, words: &[&str], input: &str) -> Option<String> {
    let (said, ended_well) = cli_ends(server, words, input)?;
    assert!(ended_well, "{words:?}: {said}");
    Some(said)
}

/// The words of redis-cli, and whether it ended well.
fn cli_ends(server: &Server, words: &[&str], input: &str) -> Option<(String, bool)> {
    let port = server.addr.port().to_string();
    let mut cli = Command::new("redis-cli");
    let cli = cli
        .args(["-p", &port])
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let Ok(mut cli) = cli.spawn() else {
        eprintln!("no redis-cli: not tried");
        return None;
    };
    std::io::Write::write_all(&mut cli.stdin.take().expect("its input"), input.as_bytes()).expect("it reads");
    let output = cli.wait_with_output().expect("its output");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Some((said, output.status.success()))
}

/// A string, one value of each other type, an expiry, a second database and a library.
fn fill(client: &mut Client) {
    for line in [
        "SET text \"a word\"",
        "SET late x PXAT 99999999999999",
        "RPUSH list a b c",
        "SADD set a b c",
        "HSET hash f v g w",
        "ZADD zset 1.5 a 2 b",
        "XADD stream 1-1 f v",
        "PFADD hll a b c",
        "EVAL \"for i = 1, 20000 do redis.call('SET', 'n:' .. i, i) end\" 0",
        "FUNCTION LOAD \"#!lua name=l\\nredis.register_function('f', function() return 7 end)\"",
        "SELECT 9",
        "SET nine 9",
    ] {
        let reply = client.call(line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
}

/// A server that loads a file.
fn loaded(own: bool, folder: &str, file: &str) -> Option<Server> {
    let words = ["--dir", folder, "--dbfilename", file];
    if !own {
        return Server::redis(&words);
    }
    let server = Server::start_with(&words);
    while server.client().call("PING").starts_with("-LOADING") {
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(server)
}

#[test]
fn a_snapshot_taken_by_redis_cli_has_all_the_data() {
    let server = Server::start();
    fill(&mut server.client());
    let folder = server.dir.path().display().to_string();
    let file = format!("{folder}/copy.rdb");
    let Some(said) = cli(&server, &["--rdb", &file], "") else { return };
    assert!(said.contains("Transfer finished with success"), "{said}");
    let mut client = server.client();
    let names = ["text", "list", "set", "hash", "zset", "stream", "hll", "n:1", "n:20000"];
    let before: Vec<String> = names.iter().map(|name| client.call(&format!("DUMP {name}"))).collect();
    for own in [true, false] {
        let Some(other) = loaded(own, &folder, "copy.rdb") else { continue };
        let mut there = other.client();
        there.expect("DBSIZE", ":20008");
        there.expect("PEXPIRETIME late", ":99999999999999");
        there.expect("FCALL f 0", ":7");
        if own {
            let after: Vec<String> = names.iter().map(|name| there.call(&format!("DUMP {name}"))).collect();
            assert!(after == before, "a value differs");
        }
        there.expect("SELECT 9", "+OK");
        there.expect("GET nine", "\"9\"");
    }
    // It is no BGSAVE: nothing counts as saved, and no file is left.
    assert!(client.call("INFO persistence").contains("rdb_saves:0"));
    let left = std::fs::read_dir(server.dir.path()).expect("the folder").flatten();
    assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().contains("temp-")).count(), 0);
}

#[test]
fn libraries_alone_are_taken_by_redis_cli() {
    let server = Server::start();
    fill(&mut server.client());
    let folder = server.dir.path().display().to_string();
    let file = format!("{folder}/functions.rdb");
    let Some(said) = cli(&server, &["--functions-rdb", &file], "") else { return };
    assert!(said.contains("Transfer finished with success"), "{said}");
    for own in [true, false] {
        let Some(other) = loaded(own, &folder, "functions.rdb") else { continue };
        other.client().expect("DBSIZE", ":0");
        other.client().expect("FCALL f 0", ":7");
    }
}

/// The number before a word of a text: of `has 3 items`, before `items`, 3.
fn number_before(said: &str, word: &str) -> Option<u64> {
    said.split(word).next()?.split_whitespace().next_back()?.parse().ok()
}

/// The lines of a summary that tell the largest key of each type.
#[test]
fn redis_cli_finds_the_largest_keys() {
    let server = Server::start();
    fill(&mut server.client());
    let Some(said) = cli(&server, &["--bigkeys"], "") else { return };
    assert!(said.contains("Sampled 20008 keys in the keyspace!"), "{said}");
    let largest = |name: &str| {
        let line = said.lines().find(|line| line.contains(&format!(" found '\"{name}\"' has ")));
        line.and_then(|line| line.split(" has ").nth(1)).unwrap_or_else(|| panic!("no {name}: {said}"))
    };
    for (name, size) in [
        ("list", "3 items"),
        ("set", "3 members"),
        ("hash", "2 fields"),
        ("zset", "2 members"),
        ("stream", "1 entries"),
    ] {
        assert_eq!(largest(name), size);
    }
    assert!(largest("hll").ends_with(" bytes"), "{said}");
    let said = cli(&server, &["--memkeys"], "").expect("it was there");
    assert!(said.contains("Sampled 20008 keys in the keyspace!"), "{said}");
    let mut client = server.client();
    for name in ["list", "set", "hash", "zset", "stream"] {
        let line = said.lines().find(|line| line.contains(&format!(" found '\"{name}\"' has "))).expect(name);
        let bytes = number_before(line, " bytes").expect("a number");
        assert_eq!(client.call(&format!("MEMORY USAGE {name}")), format!(":{bytes}"), "{name}");
        assert!(bytes > 20, "{line}");
    }
}

#[test]
fn redis_cli_finds_the_hottest_key() {
    let server = Server::start_with(&["--maxmemory-policy", "allkeys-lfu"]);
    let mut client = server.client();
    fill(&mut client);
    client.expect("SELECT 0", "+OK");
    let heat = "EVAL \"local p = redis.call('DUMP', 'text') \
                return redis.call('RESTORE', 'hot', 0, p, 'FREQ', 255)\" 0";
    client.expect(heat, "+OK");
    let freq = client.call("OBJECT FREQ hot");
    let Some(said) = cli(&server, &["--hotkeys"], "") else { return };
    assert!(said.contains("Sampled 20009 keys in the keyspace!"), "{said}");
    let first = said.lines().find(|line| line.starts_with("hot key found")).expect("a hot key");
    let freq = freq.trim_start_matches(':');
    assert_eq!(first, format!("hot key found with counter: {freq}\tkeyname: \"hot\""));
    // Without such a policy there are no frequencies.
    client.expect("CONFIG SET maxmemory-policy allkeys-lru", "+OK");
    let (said, ended_well) = cli_ends(&server, &["--hotkeys"], "").expect("it was there");
    assert!(!ended_well && said.contains("An LFU maxmemory policy is not selected"), "{said}");
}

#[test]
fn redis_cli_measures_and_watches() {
    let server = Server::start();
    fill(&mut server.client());
    let Some(said) = cli(&server, &["--latency", "-i", "0.2"], "") else { return };
    let figures: Vec<f64> = said.split_whitespace().map(|word| word.parse().expect(&said)).collect();
    assert!(figures.len() == 4 && figures[0] <= figures[1] && figures[3] >= 1.0, "{said}");
    let port = server.addr.port().to_string();
    let mut stat = Command::new("redis-cli")
        .args(["-p", &port, "--stat", "-i", "0.005"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it was there");
    // It goes on for ever, and writes when its buffer is full.
    let mut said = vec![0; 2000];
    let read = stat.stdout.as_mut().map(|out| std::io::Read::read_exact(out, &mut said));
    stat.kill().and_then(|()| stat.wait()).expect("it ends");
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(matches!(read, Some(Ok(()))), "{said}");
    let line = said.lines().find(|line| line.starts_with("20009 ")).unwrap_or_else(|| panic!("{said}"));
    // Keys, memory, clients, blocked, requests, connections.
    let columns: Vec<&str> = line.split_whitespace().collect();
    assert!(columns.len() >= 6, "{line}");
    assert!(columns[1].ends_with('M') || columns[1].ends_with('K'), "{line}");
    assert!(columns[2].parse::<u64>().expect(line) >= 1 && columns[3] == "0", "{line}");
    assert!(columns[4].parse::<u64>().expect(line) >= 12, "{line}");
}

#[test]
fn redis_cli_lists_pipes_and_speaks() {
    let server = Server::start();
    fill(&mut server.client());
    let Some(said) = cli(&server, &["--scan", "--pattern", "n:777"], "") else { return };
    assert_eq!(said, "n:777\n");
    let said = cli(&server, &["--scan"], "").expect("it was there");
    let mut names: Vec<&str> = said.lines().collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), said.lines().count()), (20_008, 20_008));
    for (words, says) in [
        (&["-r", "3", "-i", "0.01", "PING"][..], "PONG\nPONG\nPONG\n"),
        (&["-3", "HGETALL", "hash"], "f v\ng w\n"),
    ] {
        assert_eq!(cli(&server, words, "").as_deref(), Some(says), "{words:?}");
    }
    let said = cli(&server, &["--pipe"], "SET piped 1\r\nINCR piped\r\n").expect("it was there");
    assert!(said.contains("errors: 0, replies: 2"), "{said}");
    let wrong = "INCR piped\r\nLPUSH piped x\r\n";
    let (said, ended_well) = cli_ends(&server, &["--pipe"], wrong).expect("it was there");
    assert!(!ended_well && said.contains("errors: 1, replies: 2"), "{said}");
    server.client().expect("GET piped", "\"3\"");
}

/// The file that SYNC sends: a bulk without its last line end.
pub fn sent_file(client: &mut Client) -> Vec<u8> {
    let mut head = client.raw(1);
    while !head.ends_with(b"\r\n") {
        head.extend(client.raw(1));
    }
    let head = String::from_utf8_lossy(&head);
    let len = head.trim_end().strip_prefix('$').and_then(|len| len.parse().ok());
    client.raw(len.unwrap_or_else(|| panic!("no file: {head}")))
}

#[test]
fn sync_is_for_those_who_want_the_file_alone() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("REPLCONF", "+OK");
    client.expect("REPLCONF rdb-only", "-ERR syntax error");
    client.expect("REPLCONF rdb-only x", "-ERR value is not an integer or out of range");
    client.expect("REPLCONF rdb-filter-only abc", "-ERR Unsupported rdb-filter-only option: abc");
    client.expect("REPLCONF foo 1", "-ERR Unrecognized REPLCONF option: foo");
    client.expect("REPLCONF listening-port x", "-ERR value is not an integer or out of range");
    client.expect("REPLCONF listening-port 1 ip-address a capa eof", "+OK");
    client.expect("REPLCONF rdb-only 1", "+OK");
    client.expect("RESET", "+RESET");
    client.expect("REPLCONF rdb-only 1 rdb-filter-only \"\"", "+OK");
    // Two files one behind the other, and the connection serves on.
    for _ in 0..2 {
        client.send("SYNC\r\nPING\r\n");
        assert!(sent_file(&mut client).starts_with(b"REDIS"));
        client.expect_reply("+PONG");
    }
    client.expect("MULTI", "+OK");
    assert!(client.call("SYNC").starts_with("-ERR"));
}

/// The file is sent while other clients go on, and a client that leaves takes nothing with it.
#[test]
fn a_client_that_leaves_in_the_middle_of_its_file_leaves_nothing() {
    let server = Server::start();
    let mut client = server.client();
    client.expect(
        "EVAL \"for i = 1, 40 do redis.call('SET', 'k' .. i, ('x'):rep(1000000) .. math.random()) end\" 0",
        "(nil)",
    );
    for round in 0..3 {
        let mut reader = server.client();
        reader.expect("REPLCONF rdb-only 1", "+OK");
        reader.send("SYNC\r\n");
        if round > 0 {
            reader.raw(100);
        }
        drop(reader);
        client.expect("SET k1 small", "+OK");
    }
    let mut reader = server.client();
    reader.expect("REPLCONF rdb-only 1", "+OK");
    reader.send("SYNC\r\n");
    assert!(reader.raw(3000).starts_with(b"$"));
    client.expect("DBSIZE", ":40");
    let left = std::fs::read_dir(server.dir.path()).expect("the folder").flatten();
    assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().contains("temp-")).count(), 0);
}
