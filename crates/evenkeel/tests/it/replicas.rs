//! Servers that follow this one: real ones, and a replica of a few lines that says exactly what a test wants.

use crate::support::{Client, PATIENCE, Server};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A line of INFO.
pub fn info(client: &mut Client, section: &str, name: &str) -> String {
    let text = client.call(&format!("INFO {section}"));
    // A Sentinel closes all connections of one whose role changes.
    if text == "(closed)" {
        return String::new();
    }
    let text = text.replace("\\r\\n", "\n");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

/// The words of a reply that is an array of strings.
fn words(reply: &str) -> Vec<String> {
    let inner = reply.trim_start_matches('[').trim_end_matches(']');
    inner.split(", ").filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// All that a server holds, in words that do not depend on how it holds it.
fn contents(server: &Server) -> BTreeMap<String, String> {
    let mut client = server.client();
    let mut all = BTreeMap::new();
    for db in 0..4 {
        client.expect(&format!("SELECT {db}"), "+OK");
        for key in words(&client.call("KEYS *")) {
            let kind = client.call(&format!("TYPE {key}"));
            let value = match &*kind {
                "+string" => client.call(&format!("GET {key}")),
                "+list" => client.call(&format!("LRANGE {key} 0 -1")),
                "+zset" => client.call(&format!("ZRANGE {key} 0 -1 WITHSCORES")),
                "+stream" => format!(
                    "{} {}",
                    client.call(&format!("XRANGE {key} - +")),
                    groups(&client.call(&format!("XINFO GROUPS {key}")))
                ),
                "+set" => sorted(words(&client.call(&format!("SMEMBERS {key}")))),
                "+hash" => {
                    let words = words(&client.call(&format!("HGETALL {key}")));
                    sorted(words.chunks(2).map(|pair| pair.join("=")).collect())
                }
                // It went between the two.
                _ => continue,
            };
            let expires = client.call(&format!("PEXPIRETIME {key}"));
            all.insert(format!("{db} {key}"), format!("{kind} {value} {expires}"));
        }
    }
    all.insert("functions".into(), client.call("FUNCTION LIST WITHCODE"));
    all
}

/// Groups of a stream without what versions of Redis count differently: entries read, and the lag.
fn groups(reply: &str) -> String {
    let mut parts = reply.split("\"entries-read\"");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once(']').map_or("", |(_, rest)| rest))
}

fn sorted(mut words: Vec<String>) -> String {
    words.sort_unstable();
    words.join(" ")
}

/// Differences between two servers, a few of them.
pub fn differences(a: &Server, b: &Server) -> Vec<String> {
    let (a, b) = (contents(a), contents(b));
    let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let differs = keys.into_iter().filter(|key| a.get(*key) != b.get(*key));
    let shown = |value: Option<&String>| {
        value.map_or("-".into(), |value| value.chars().take(150).collect::<String>())
    };
    differs.map(|key| format!("{key}: {} | {}", shown(a.get(key)), shown(b.get(key)))).take(20).collect()
}

/// Has one server follow another, and waits until it does.
pub fn follow(replica: &Server, primary: &Server) {
    replica.client().expect(&format!("REPLICAOF 127.0.0.1 {}", primary.addr.port()), "+OK");
    until("the link is up", || info(&mut replica.client(), "replication", "master_link_status") == "up");
}

/// Waits until a server that follows has its primary's offset, or that of its primary.
pub fn settle_at(primary: &Server, other: &Server) {
    let deadline = Instant::now() + PATIENCE;
    let offset = |server: &Server| info(&mut server.client(), "replication", "master_repl_offset");
    loop {
        let before = offset(primary);
        let up = info(&mut other.client(), "replication", "master_link_status") == "up";
        if up && offset(other) == before && offset(primary) == before {
            return;
        }
        if Instant::now() >= deadline {
            let said = |server: &Server| server.client().call("INFO replication");
            panic!("the offsets differ: {} {}", said(primary), said(other));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until all replicas have all.
fn settle(primary: &Server, replicas: usize) {
    let mut client = primary.client();
    client.expect("SET settled 1", "+OK");
    client.expect(&format!("WAIT {replicas} 60000"), &format!(":{replicas}"));
}

/// A write of each kind, with things that a replica could get wrong.
pub fn write_much(client: &mut Client, salt: usize) {
    for (command, reply) in [
        (format!("SET s{salt} text"), "+OK"),
        (format!("SET gone{salt} x PX 1"), "+OK"),
        (format!("SET kept{salt} x EX 1000"), "+OK"),
        ("INCRBYFLOAT float 0.1".into(), ""),
        ("APPEND long abc".into(), ""),
        (format!("RPUSH l{} a b c {salt}", salt % 3), ""),
        (format!("LPOP l{}", salt % 3), ""),
        (format!("SADD set {salt} {}", salt % 7), ""),
        ("SPOP set".into(), ""),
        (format!("HSET h f{salt} {salt} g {salt}"), ""),
        (format!("ZADD z {salt} m{} 1.5 x", salt % 11), ""),
        ("ZPOPMIN z".into(), ""),
        (format!("XADD st * f {salt}"), ""),
        ("XGROUP CREATE st g 0".into(), ""),
        ("XREADGROUP GROUP g me COUNT 1 STREAMS st >".into(), ""),
        (format!("SETRANGE r {} z", salt % 50), ""),
        ("PFADD hll a b c".into(), ""),
        ("GEOADD geo 13.361389 38.115556 Palermo".into(), ""),
        ("SETBIT bits 77 1".into(), ""),
        (format!("SELECT {}", salt % 4), "+OK"),
        (format!("SET elsewhere{salt} {salt}"), "+OK"),
        ("MULTI".into(), "+OK"),
        ("INCR one".into(), "+QUEUED"),
        ("INCR two".into(), "+QUEUED"),
        ("EXEC".into(), ""),
        (
            format!(
                "EVAL \"redis.call('SET',KEYS[1],'v','PXAT',1) return redis.call('INCRBY',KEYS[2],{salt})\" 2 past sum"
            ),
            "",
        ),
        ("SELECT 0".into(), "+OK"),
    ] {
        let said = client.call(&command);
        assert!(reply.is_empty() || said == reply, "{command}: {said}");
    }
}

/// A server that may follow, by its name.
fn peers() -> Vec<(&'static str, Server)> {
    let mut all = vec![("redis 7.0", Server::redis(&[]))];
    all.push(("redis 8.0", Server::peer("redis8-server", &[])));
    all.push(("valkey 9", Server::peer("valkey-server", &[])));
    all.into_iter().filter_map(|(name, server)| Some((name, server?))).collect()
}

#[test]
fn real_servers_follow_and_hold_the_same() {
    let primary = Server::start();
    let mut client = primary.client();
    (0..40).for_each(|salt| write_much(&mut client, salt));
    client.expect(
        "FUNCTION LOAD \"#!lua name=lib\\nredis.register_function('f', function() return 1 end)\"",
        "\"lib\"",
    );
    let peers = peers();
    peers.iter().for_each(|(_, peer)| follow(peer, &primary));
    (40..120).for_each(|salt| write_much(&mut client, salt));
    client.expect("SWAPDB 1 2", "+OK");
    client.expect("COPY s1 s1copy DB 3", ":1");
    settle(&primary, peers.len());
    for (name, peer) in &peers {
        assert_eq!(differences(&primary, peer), [""; 0], "{name}");
    }
    client.expect("FLUSHALL", "+OK");
    write_much(&mut client, 1);
    settle(&primary, peers.len());
    for (name, peer) in &peers {
        assert_eq!(differences(&primary, peer), [""; 0], "{name}, behind FLUSHALL");
    }
}

#[test]
fn a_replica_that_was_cut_off_gets_what_it_lacks() {
    let primary = Server::start();
    let mut client = primary.client();
    let peers = peers();
    peers.iter().for_each(|(_, peer)| follow(peer, &primary));
    let full = info(&mut client, "stats", "sync_full");
    for salt in 0..20 {
        write_much(&mut client, salt);
        client.call("CLIENT KILL TYPE replica");
        write_much(&mut client, 100 + salt);
    }
    settle(&primary, peers.len());
    for (name, peer) in &peers {
        assert_eq!(differences(&primary, peer), [""; 0], "{name}");
    }
    assert_eq!(info(&mut client, "stats", "sync_full"), full);
    let partial: usize = info(&mut client, "stats", "sync_partial_ok").parse().unwrap();
    assert!(partial >= peers.len(), "{partial}");
}

/// A replica of a few lines.
struct Fake {
    input: BufReader<TcpStream>,
    output: TcpStream,
}

impl Fake {
    fn connect(server: &Server) -> Fake {
        let output = TcpStream::connect(server.addr).unwrap();
        output.set_read_timeout(Some(PATIENCE)).unwrap();
        Fake { input: BufReader::new(output.try_clone().unwrap()), output }
    }

    fn send(&mut self, words: &str) {
        self.output.write_all(format!("{words}\r\n").as_bytes()).unwrap();
    }

    /// The next line that is not empty.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.input.read_line(&mut line).unwrap() > 0, "the connection ended");
            if !line.trim().is_empty() {
                return line.trim().to_owned();
            }
        }
    }

    fn ask(&mut self, words: &str) -> String {
        self.send(words);
        self.line()
    }

    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.input.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Reads a snapshot that ends with a mark.
    fn file_with_mark(&mut self) -> Vec<u8> {
        let header = self.line();
        let mark = header.strip_prefix("$EOF:").unwrap_or_else(|| panic!("{header}")).as_bytes().to_vec();
        assert_eq!(mark.len(), 40);
        let mut file = Vec::new();
        while !file.ends_with(&mark) {
            assert!(self.input.read_until(mark[39], &mut file).unwrap() > 0, "the file ended");
        }
        file.truncate(file.len() - 40);
        file
    }

    /// The id and the offset that a full sync was answered with.
    fn full_sync(&mut self) -> (String, u64) {
        let line = self.line();
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!((words.len(), words[0]), (3, "+FULLRESYNC"), "{line}");
        (words[1].to_owned(), words[2].parse().unwrap())
    }

    /// Whether the server closed the connection.
    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.input.read_to_end(&mut rest).is_ok()
    }
}

/// The next command of the stream, without PING.
fn command(fake: &mut Fake) -> Vec<String> {
    loop {
        let count: usize = fake.line()[1..].parse().unwrap();
        let word = |fake: &mut Fake| {
            let len: usize = fake.line()[1..].parse().unwrap();
            let word = fake.read(len + 2);
            String::from_utf8_lossy(&word[..len]).into_owned()
        };
        let mut words: Vec<String> = (0..count).map(|_| word(fake)).collect();
        words[0].make_ascii_uppercase();
        if words[0] != "PING" {
            return words;
        }
    }
}

#[test]
fn nothing_of_the_stream_comes_before_a_replica_has_read_its_mark() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("SET k v", "+OK");
    let mut fake = Fake::connect(&server);
    assert_eq!(fake.ask("REPLCONF listening-port 7777 capa eof capa psync2 capa something"), "+OK");
    assert_eq!(fake.ask("REPLCONF ip-address 10.0.0.7"), "+OK");
    fake.send("PSYNC ? -1");
    let (id, offset) = fake.full_sync();
    assert_eq!(id, info(&mut client, "replication", "master_replid"));
    let file = fake.file_with_mark();
    assert!(file.starts_with(b"REDIS") && file.len() > 50);
    client.expect("SET behind 1", "+OK");
    fake.output.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(fake.input.read(&mut [0]).is_err(), "bytes came before the first ACK");
    fake.output.set_read_timeout(Some(PATIENCE)).unwrap();
    fake.send(&format!("REPLCONF ACK {offset}"));
    assert_eq!(command(&mut fake), ["SELECT", "0"]);
    assert_eq!(command(&mut fake), ["SET", "behind", "1"]);
    let slave = info(&mut client, "replication", "slave0");
    assert!(slave.starts_with(&format!("ip=10.0.0.7,port=7777,state=online,offset={offset},")), "{slave}");
    let role = client.call("ROLE");
    assert!(role.contains(&format!("[\"10.0.0.7\", \"7777\", \"{offset}\"]")), "{role}");
    let listed = client.call("CLIENT LIST TYPE replica");
    assert!(listed.contains("flags=S"), "{listed}");
    // A reply would stand in the stream.
    fake.send("GET k");
    assert!(fake.is_closed());
    until("it is gone", || info(&mut client, "replication", "connected_slaves") == "0");
}

#[test]
fn a_replica_that_cannot_read_a_mark_is_told_the_length() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("SET k v", "+OK");
    let mut fake = Fake::connect(&server);
    fake.send("PSYNC ? -1");
    fake.full_sync();
    let len: usize = fake.line()[1..].parse().unwrap();
    assert!(fake.read(len).starts_with(b"REDIS"));
    client.expect("SET behind 1", "+OK");
    assert_eq!(command(&mut fake)[0], "SELECT");
    assert_eq!(command(&mut fake), ["SET", "behind", "1"]);
    let mut old = Fake::connect(&server);
    old.send("SYNC");
    let len: usize = old.line()[1..].parse().unwrap();
    assert!(old.read(len).starts_with(b"REDIS"));
    client.expect("SET behind 2", "+OK");
    while command(&mut old) != ["SET", "behind", "2"] {}
}

#[test]
fn psync_goes_on_within_the_backlog_alone() {
    let server = Server::start();
    let mut client = server.client();
    let mut first = Fake::connect(&server);
    first.send("PSYNC ? -1");
    let (id, offset) = first.full_sync();
    client.expect("SET k 1", "+OK");
    client.expect("SET k 2", "+OK");
    until("it was told", || info(&mut client, "replication", "master_repl_offset") != offset.to_string());
    let mut again = Fake::connect(&server);
    assert_eq!(again.ask(&format!("PSYNC {id} {}", offset + 1)), format!("+CONTINUE {id}"));
    assert_eq!(command(&mut again), ["SELECT", "0"]);
    assert_eq!(command(&mut again), ["SET", "k", "1"]);
    for words in [
        format!("PSYNC {id} 99999999"),
        format!("PSYNC {} {}", "0".repeat(40), offset + 1),
        format!("PSYNC {id} -5"),
    ] {
        let mut other = Fake::connect(&server);
        other.send(&words);
        other.full_sync();
    }
    let mut wrong = Fake::connect(&server);
    assert_eq!(wrong.ask(&format!("PSYNC {id} x")), "-ERR value is not an integer or out of range");
    assert_eq!(info(&mut client, "stats", "sync_partial_err"), "3");
}

/// Ten read one file; one of them goes in the middle, and one never reads.
#[test]
fn replicas_share_a_snapshot_and_do_not_disturb_each_other() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("DEBUG POPULATE 50000 key 50", "+OK");
    let mut all: Vec<Fake> = (0..10).map(|_| Fake::connect(&server)).collect();
    for fake in &mut all {
        assert_eq!(fake.ask("REPLCONF capa eof"), "+OK");
        fake.send("PSYNC ? -1");
    }
    let places: Vec<_> = all.iter_mut().map(Fake::full_sync).collect();
    drop(all.remove(3));
    let idle = all.remove(4);
    for n in 0..2000 {
        client.expect(&format!("SET key:{n} new"), "+OK");
    }
    let files: Vec<Vec<u8>> = all.iter_mut().map(Fake::file_with_mark).collect();
    assert!(
        files
            .iter()
            .all(|file| file.ends_with(&files[0][files[0].len() - 8..]) && file.starts_with(b"REDIS"))
    );
    for (fake, (_, offset)) in all.iter_mut().zip(&places) {
        fake.send(&format!("REPLCONF ACK {offset}"));
        while command(fake) != ["SET", "key:1999", "new"] {}
    }
    client.expect("GET key:7", "\"new\"");
    drop(idle);
}

/// A replica that loads slowly is not cut off by what is written meanwhile, and nothing is lost.
#[test]
fn a_sync_ends_at_any_rate_of_writes() {
    let server = Server::start_with(&[
        "--client-output-buffer-limit",
        "replica 1mb 1mb 1",
        "--repl-backlog-size",
        "1mb",
    ]);
    let mut client = server.client();
    let mut fake = Fake::connect(&server);
    assert_eq!(fake.ask("REPLCONF capa eof"), "+OK");
    fake.send("PSYNC ? -1");
    let (_, offset) = fake.full_sync();
    fake.file_with_mark();
    let value = "v".repeat(1 << 20);
    for n in 0..80 {
        client.expect(&format!("SET k{n} {value}"), "+OK");
    }
    until("the stream went to the disk", || {
        let bytes: u64 = info(&mut client, "memory", "mem_replication_backlog").parse().unwrap();
        bytes < 50 << 20
    });
    std::thread::sleep(Duration::from_millis(1500));
    fake.send(&format!("REPLCONF ACK {offset}"));
    assert_eq!(command(&mut fake)[0], "SELECT");
    for n in 0..80 {
        let words = command(&mut fake);
        assert!(words.len() == 3 && words[1] == format!("k{n}") && words[2] == value, "{n}: {:.40?}", words);
    }
}

/// Bytes that a replica has read are not kept for it.
#[test]
fn memory_does_not_grow_with_what_replicas_have_read() {
    let server = Server::start_with(&["--repl-backlog-size", "1mb"]);
    let mut client = server.client();
    client.expect("SET k 1", "+OK");
    let (mut full, mut partial) = (Fake::connect(&server), Fake::connect(&server));
    full.send("PSYNC ? -1");
    let (id, offset) = full.full_sync();
    let len: usize = full.line()[1..].parse().unwrap();
    full.read(len);
    assert_eq!(partial.ask(&format!("PSYNC {id} {}", offset + 1)), format!("+CONTINUE {id}"));
    let value = "v".repeat(100_000);
    for n in 0..100 {
        client.expect(&format!("SET k{n} {value}"), "+OK");
        for fake in [&mut full, &mut partial] {
            while command(fake)[0] != "SET" {}
        }
    }
    let kept: u64 = info(&mut client, "replication", "repl_backlog_histlen").parse().unwrap();
    assert!(kept < 3 << 20, "{kept}");
}

/// A value larger than the limit does not make a loop of drops.
#[test]
fn a_large_value_cuts_nobody_off() {
    let server = Server::start_with(&[
        "--client-output-buffer-limit",
        "replica 8mb 8mb 60",
        "--repl-backlog-size",
        "1mb",
    ]);
    let mut client = server.client();
    let mut fake = Fake::connect(&server);
    fake.send("PSYNC ? -1");
    let (_, offset) = fake.full_sync();
    let len: usize = fake.line()[1..].parse().unwrap();
    fake.read(len);
    fake.send(&format!("REPLCONF ACK {offset}"));
    let value = "v".repeat(6 << 20);
    for _ in 0..3 {
        client.expect(&format!("SET k {value}"), "+OK");
        while command(&mut fake)[0] != "SET" {}
    }
    // One that does not read at all is cut off.
    for _ in 0..30 {
        client.expect(&format!("SET k {value}"), "+OK");
    }
    until("it is cut off", || info(&mut client, "replication", "connected_slaves") == "0");
}

/// The folder of the data is gone, or may not be written: a copy is kept in memory, if that may hold it.
#[test]
fn a_copy_needs_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let primary = Server::start_with(&["--dir", data.to_str().unwrap()]);
    let mut client = primary.client();
    (0..30).for_each(|salt| write_much(&mut client, salt));
    client.expect(&format!("SET large {}", "x".repeat(300_000)), "+OK");
    std::fs::remove_dir_all(&data).unwrap();
    let replica = Server::start();
    follow(&replica, &primary);
    settle(&primary, 1);
    assert_eq!(differences(&primary, &replica), [""; 0]);
    // More than memory is to hold.
    client.expect("CONFIG SET repl-spool-max 1000", "+OK");
    let refused = Server::start();
    refused.client().expect(&format!("REPLICAOF 127.0.0.1 {}", primary.addr.port()), "+OK");
    until("the log says why", || primary.output().contains("a file in memory would exceed 1000 bytes"));
    client.expect("CONFIG SET repl-spool-max 1gb", "+OK");
    until("it is up", || info(&mut refused.client(), "replication", "master_link_status") == "up");
}

/// A copy in memory is counted as long as somebody reads it.
#[test]
fn a_copy_in_memory_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let primary = Server::start_with(&["--dir", data.to_str().unwrap(), "--rdbcompression", "no"]);
    let mut client = primary.client();
    // More than sockets hold.
    client.expect("SETRANGE large 50000000 x", ":50000001");
    let ask =
        |client: &mut Client| -> u64 { info(client, "memory", "mem_replication_files").parse().unwrap() };
    let mut reader = primary.client();
    reader.send("PSYNC ? -1\r\n");
    until("a copy is on its way", || client.call("INFO replication").contains("state=send_bulk"));
    until("it is whole", || primary.output().contains("a snapshot for replicas was taken"));
    assert_eq!(ask(&mut client), 0, "it is on the disk");
    drop(reader);
    until("it has gone", || info(&mut client, "replication", "connected_slaves") == "0");
    std::fs::remove_dir_all(&data).unwrap();
    let mut reader = primary.client();
    reader.send("PSYNC ? -1\r\n");
    until("all of it is counted", || ask(&mut client) > 50_000_000);
    drop(reader);
    until("it has gone", || ask(&mut client) == 0);
}

/// A client that waited for replicas without end, and went, kept its connection for ever.
#[test]
fn one_that_is_gone_waits_no_more() {
    let server = Server::start();
    let mut control = server.client();
    let connected = info(&mut control, "clients", "connected_clients");
    for (nr, command) in ["WAIT 1 0", "WAITAOF 0 1 0"].into_iter().enumerate() {
        for (rest, key) in [("", "none".to_owned()), ("SET behind{} 1\r\n", format!("behind{nr}"))] {
            let mut client = server.client();
            client.send(format!("{command}\r\n{}", rest.replace("{}", &nr.to_string())));
            until("it waits", || info(&mut control, "clients", "blocked_clients") == "1");
            drop(client);
            until("it is gone", || info(&mut control, "clients", "connected_clients") == connected);
            let ran = if rest.is_empty() { ":0" } else { ":1" };
            control.expect(&format!("EXISTS {key}"), ran);
        }
    }
}

#[test]
fn wait_counts_those_that_have_the_write() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("WAIT 0 0", ":0");
    client.expect("SET k 1", "+OK");
    client.expect("WAIT 1 50", ":0");
    let mut fake = Fake::connect(&server);
    fake.send("PSYNC ? -1");
    fake.full_sync();
    let len: usize = fake.line()[1..].parse().unwrap();
    fake.read(len);
    client.expect("SET k 2", "+OK");
    client.expect("WAIT 1 50", ":0");
    client.expect("MULTI", "+OK");
    client.expect("INCR k", "+QUEUED");
    client.expect("WAIT 1 0", "+QUEUED");
    client.expect("EXEC", "[:3, :0]");
    client.send("WAIT 1 0\r\n");
    // It is asked for its place, and says it.
    while command(&mut fake) != ["REPLCONF", "GETACK", "*"] {}
    fake.send("REPLCONF ACK 10000000");
    client.expect_reply(":1");
    client.expect("WAIT 2 50", ":1");
    client.expect("WAIT x 0", "-ERR value is not an integer or out of range");
    client.expect("WAIT 1 -1", "-ERR timeout is negative");
}

/// One who compares the offsets of two servers after the last answered write, to promote the other, relies on
/// an offset that tells of that write. The stream is made on a thread of its own, some milliseconds later.
#[test]
fn an_offset_tells_of_all_that_was_answered() {
    let primary = Server::start();
    let mut client = primary.client();
    let mut fake = Fake::connect(&primary);
    fake.send("PSYNC ? -1");
    until("it is counted", || info(&mut client, "replication", "repl_backlog_active") == "1");
    let mut last = 0;
    for n in 0..300 {
        client.expect(&format!("SET key {n}"), "+OK");
        let offset = match n % 2 {
            0 => info(&mut client, "replication", "master_repl_offset"),
            _ => words(&client.call("ROLE"))[1].trim_start_matches(':').to_owned(),
        };
        let offset: u64 = offset.parse().unwrap();
        assert!(offset > last, "behind write {n}: {offset}, as before");
        last = offset;
    }
}

/// The log begins while the stream of a replica is under way. Effects that were told before, and not yet given to
/// anybody, came to the new log behind its begin, and it stopped.
#[test]
fn a_log_begins_while_a_replica_follows() {
    let (primary, replica) = (Server::start(), Server::start());
    follow(&replica, &primary);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let (stop, mut client) = (stop.clone(), primary.client());
            std::thread::spawn(move || {
                for n in 0.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    client.call(&format!("SET key{writer}-{} {n}", n % 100));
                }
            })
        })
        .collect();
    let mut client = primary.client();
    for round in 0..10 {
        client.expect("CONFIG SET appendonly yes", "+OK");
        until("the log is written", || info(&mut client, "persistence", "aof_enabled") == "1");
        until("its base is there", || info(&mut client, "persistence", "aof_rewrite_in_progress") == "0");
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(info(&mut client, "persistence", "aof_last_write_status"), "ok", "in round {round}");
        client.expect("CONFIG SET appendonly no", "+OK");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

#[test]
fn writes_are_refused_while_too_few_replicas_follow() {
    let server = Server::start_with(&["--min-replicas-to-write", "1"]);
    let mut client = server.client();
    let refused = "-NOREPLICAS Not enough good replicas to write.";
    client.expect("SET k 1", refused);
    client.expect("GET k", "(nil)");
    client.expect("MULTI", "+OK");
    client.expect("SET k 1", refused);
    client.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.");
    let script = client.call("EVAL \"return redis.call('SET','k','1')\" 0");
    assert!(script.contains("NOREPLICAS"), "{script}");
    let Some(peer) = Server::redis(&[]) else { return };
    follow(&peer, &server);
    until("writes are taken", || client.call("SET k 1") == "+OK");
    assert_eq!(info(&mut client, "replication", "min_slaves_good_slaves"), "1");
    peer.client().expect("REPLICAOF NO ONE", "+OK");
    until("writes are refused again", || client.call("SET k 1") == refused);
    client.expect("CONFIG SET min-replicas-to-write 0", "+OK");
    until("writes are taken again", || client.call("SET k 1") == "+OK");
}

/// Servers that do not know a type of Evenkeel's own get no snapshot with it.
#[test]
fn keys_of_own_types_keep_foreign_replicas_away() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("R.SETBIT r 1000 1", ":0");
    let mut fake = Fake::connect(&server);
    assert_eq!(fake.ask("REPLCONF capa eof"), "+OK");
    fake.send("PSYNC ? -1");
    assert!(fake.is_closed());
    let mut ours = Fake::connect(&server);
    assert_eq!(ours.ask("REPLCONF capa eof capa evenkeel"), "+OK");
    ours.send("PSYNC ? -1");
    ours.full_sync();
    assert!(!ours.file_with_mark().is_empty());
    client.expect("CONFIG SET foreign-replicas yes", "+OK");
    let mut fake = Fake::connect(&server);
    assert_eq!(fake.ask("REPLCONF capa eof"), "+OK");
    fake.send("PSYNC ? -1");
    fake.full_sync();
    assert!(!fake.file_with_mark().is_empty());
}

#[test]
fn the_backlog_goes_when_nobody_has_followed_for_long() {
    let server = Server::start_with(&["--repl-backlog-ttl", "1"]);
    let mut client = server.client();
    assert_eq!(info(&mut client, "replication", "repl_backlog_active"), "0");
    let mut fake = Fake::connect(&server);
    fake.send("PSYNC ? -1");
    let (first, _) = fake.full_sync();
    assert_eq!(info(&mut client, "replication", "repl_backlog_active"), "1");
    drop(fake);
    until("it is gone", || info(&mut client, "replication", "repl_backlog_active") == "0");
    client.expect("SET k uncounted", "+OK");
    let mut fake = Fake::connect(&server);
    fake.send(&format!("PSYNC {first} 2"));
    assert_ne!(fake.full_sync().0, first);
}

/// Whether a log in a folder has a manifest, so it can be loaded.
fn has_base(files: std::fs::ReadDir) -> bool {
    files.flatten().filter(|file| file.file_name() == "appendonlydir").any(|file| {
        let names = std::fs::read_dir(file.path()).into_iter().flatten().flatten();
        names.into_iter().any(|name| {
            let text = std::fs::read_to_string(name.path()).unwrap_or_default();
            name.file_name().to_string_lossy().ends_with(".manifest") && text.contains("type b")
        })
    })
}

/// Its log has what it acknowledged: nothing is applied behind the log's end.
#[test]
fn a_replica_that_ends_in_order_keeps_what_it_acknowledged() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().to_str().expect("a name");
    let logs = ["--appendonly", "yes", "--appendfsync", "everysec", "--dir", dir];
    let primary = Server::start();
    let mut replica = Server::start_with(&logs);
    follow(&replica, &primary);
    // The log begins anew behind the copy, and is one from its first base on.
    until("the log has its base", || {
        let said = replica.client().call("INFO persistence");
        said.contains("aof_rewrite_in_progress:0") && std::fs::read_dir(dir).is_ok_and(has_base)
    });
    let (mut client, mut kept) = (primary.client(), 0);
    for n in 0.. {
        client.expect(&format!("SET key:{n} {n}"), "+OK");
        if client.call("WAIT 1 200") != ":1" {
            break;
        }
        kept = n + 1;
        if n == 200 {
            replica.signal("TERM");
        }
    }
    assert_eq!(replica.exit_code(), Some(0));
    let again = Server::start_with(&logs);
    let mut client = again.client();
    until("it has loaded", || !client.call("DBSIZE").starts_with("-LOADING"));
    for n in 0..kept {
        client.expect(&format!("GET key:{n}"), &format!("\"{n}\""));
    }
}
