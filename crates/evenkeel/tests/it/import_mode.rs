//! Import mode: expired keys stay for those who import, and for nobody else.
//!
//! With `EVENKEEL_TEST_SERVER` naming a Valkey 9 the same sentences are asked of it.

use crate::snapshots::{ready, start_in};
use crate::support::{Client, PATIENCE, Server, foreign};
use std::time::{Duration, Instant};

/// A server in import mode, an ordinary client and an import source.
fn importing() -> (Server, Client, Client) {
    let server = Server::start_with(&["--import-mode", "yes"]);
    let (ordinary, mut source) = (server.client(), server.client());
    source.expect("CLIENT IMPORT-SOURCE ON", "+OK");
    (server, ordinary, source)
}

/// One key of each kind, all expired, a hash with an expired field, and `kept`.
fn fill(source: &mut Client) {
    source.expect("FLUSHALL", "+OK");
    source.expect("SET text 1 PXAT 1", "+OK");
    for line in ["RPUSH list a b c", "SADD set a", "ZADD zset 1 a", "XADD stream 1-1 f v"] {
        source.call(line);
        let key = line.split(' ').nth(1).expect("a key");
        source.expect(&format!("PEXPIREAT {key} 1"), ":1");
    }
    source.expect("HSET hash f 1 g 2", ":2");
    source.expect("HPEXPIREAT hash 1 FIELDS 1 f", "[:1]");
    source.expect("SET kept x", "+OK");
}

fn figure(client: &mut Client, name: &str) -> u64 {
    let info = client.call("INFO everything");
    let at = info.find(&format!("{name}:")).expect("the figure") + name.len() + 1;
    let digits: String = info[at..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[track_caller]
fn eventually(client: &mut Client, line: &str, reply: &str) {
    let deadline = Instant::now() + PATIENCE;
    while client.call(line) != reply {
        assert!(Instant::now() < deadline, "{line}: {}", client.call(line));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn only_a_server_in_import_mode_has_sources() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("CONFIG GET import-mode", r#"["import-mode", "no"]"#);
    for word in ["ON", "x"] {
        client.expect(&format!("CLIENT IMPORT-SOURCE {word}"), "-ERR Server is not in import mode");
    }
    client.expect("CLIENT IMPORT-SOURCE OFF", "+OK");
    client.expect("CONFIG SET import-mode yes", "+OK");
    client.expect("CLIENT IMPORT-SOURCE x", "-ERR syntax error");
    client.expect("CLIENT IMPORT-SOURCE on", "+OK");
    assert!(client.call("CLIENT INFO").contains(" flags=I "));
    assert!(client.call("CLIENT LIST FLAGS I").contains(" flags=I "));
    client.expect("CLIENT IMPORT-SOURCE OFF", "+OK");
    assert!(client.call("CLIENT INFO").contains(" flags=N "));
    // The mark outlives the mode, and RESET removes it.
    client.expect("CLIENT IMPORT-SOURCE ON", "+OK");
    client.expect("CONFIG SET import-mode no", "+OK");
    assert!(client.call("CLIENT INFO").contains(" flags=I "));
    client.expect("RESET", "+RESET");
    assert!(client.call("CLIENT INFO").contains(" flags=N "));
}

#[test]
fn expired_keys_are_there_for_sources_alone() {
    let (_server, mut ordinary, mut source) = importing();
    fill(&mut source);
    for (line, others, its) in [
        ("GET text", "(nil)", r#""1""#),
        ("MGET text kept", r#"[(nil), "x"]"#, r#"["1", "x"]"#),
        ("EXISTS text list", ":0", ":2"),
        ("TYPE zset", "+none", "+zset"),
        ("TTL text", ":-2", ":0"),
        ("PTTL text", ":-2", ":0"),
        ("PEXPIRETIME text", ":-2", ":1"),
        ("LRANGE list 0 -1", "[]", r#"["a", "b", "c"]"#),
        ("SORT list ALPHA", "[]", r#"["a", "b", "c"]"#),
        ("SCARD set", ":0", ":1"),
        ("ZSCORE zset a", "(nil)", r#""1""#),
        ("XLEN stream", ":0", ":1"),
        ("HGETALL hash", r#"["g", "2"]"#, r#"["f", "1", "g", "2"]"#),
        ("HMGET hash f g", r#"[(nil), "2"]"#, r#"["1", "2"]"#),
        ("HPTTL hash FIELDS 2 f g", "[:-2, :-1]", "[:0, :-1]"),
        ("HEXISTS hash f", ":0", ":1"),
        ("DBSIZE", ":7", ":7"),
        ("EVAL \"return redis.call('GET', KEYS[1])\" 1 text", "(nil)", r#""1""#),
        ("EVAL \"return redis.call('DBSIZE')\" 0", ":7", ":7"),
    ] {
        ordinary.expect(line, others);
        source.expect(line, its);
    }
    let all = ["text", "list", "set", "zset", "stream", "hash", "kept"];
    ordinary.expect_unordered("KEYS *", &all[5..]);
    source.expect_unordered("KEYS *", &all);
    for count in ["10", "5000"] {
        let found = |client: &mut Client| {
            let (mut cursor, mut found) = ("0".to_owned(), false);
            loop {
                let reply = client.call(&format!("SCAN {cursor} COUNT {count}"));
                found |= reply.contains("text");
                cursor = reply.split('"').nth(1).expect("a cursor").to_owned();
                if cursor == "0" {
                    return found;
                }
            }
        };
        assert_eq!((found(&mut ordinary), found(&mut source)), (false, true), "{count}");
    }
    for (client, reply) in [(&mut ordinary, "[(nil), :-2]"), (&mut source, r#"["1", :0]"#)] {
        client.expect("MULTI", "+OK");
        client.expect("GET text", "+QUEUED");
        client.expect("TTL text", "+QUEUED");
        client.expect("EXEC", reply);
    }
    // All this removed nothing.
    assert_eq!(figure(&mut ordinary, "expired_keys"), 0);
    source.expect("EXISTS text list set zset stream", ":5");
}

#[test]
fn long_commands_and_scripts_see_what_their_clients_see() {
    let (_server, mut ordinary, mut source) = importing();
    fill(&mut source);
    let many: String = (0..5000).map(|i| format!(" m{i}")).collect();
    source.expect(&format!("SADD big{many}"), ":5000");
    source.expect("SADD other x", ":1");
    source.expect("PEXPIREAT big 1", ":1");
    let wide = format!("{}{}", " text".repeat(600), " kept");
    for (line, others, its) in [
        ("SUNIONSTORE into big other".to_owned(), ":1", ":5001"),
        ("SDIFFSTORE into big other".to_owned(), ":0", ":5000"),
        ("SINTERCARD 1 big".to_owned(), ":0", ":5000"),
        (format!("EXISTS{wide}"), ":1", ":601"),
        ("EVAL \"local n = 0 for i = 1, 100000 do n = n + redis.call('EXISTS', KEYS[1]) end return n\" 1 text".to_owned(), ":0", ":100000"),
    ] {
        source.expect("COPY big spare", ":1");
        ordinary.expect(&line, others);
        source.expect("RENAME spare big", "+OK");
        source.expect(&line, its);
    }
    let wide: String = (0..600).map(|i| format!(" n{i} {i}")).collect();
    fill(&mut source);
    source.expect(&format!("MSETNX text 2{wide}"), ":0");
    let gone: String = (0..600).map(|i| format!(" n{i}")).collect();
    source.expect(&format!("DEL text list{gone}"), ":2");
    source.expect("EXISTS text list", ":0");
}

#[test]
fn a_source_goes_on_with_expired_keys() {
    let (_server, mut ordinary, mut source) = importing();
    for (line, reply, question, its) in [
        ("INCR text", ":2", "PTTL text", ":0"),
        ("APPEND text 5", ":2", "GET text", r#""15""#),
        ("SET text n KEEPTTL GET", r#""1""#, "PTTL text", ":0"),
        ("SET text n NX", "(nil)", "GET text", r#""1""#),
        ("GETDEL text", r#""1""#, "EXISTS text", ":0"),
        ("PERSIST text", ":1", "TTL text", ":-1"),
        ("EXPIREAT text 4000000000", ":1", "EXPIRETIME text", ":4000000000"),
        ("EXPIRE text 100 NX", ":0", "TTL text", ":0"),
        ("RENAME text moved", "+OK", "PTTL moved", ":0"),
        ("COPY text copied", ":1", "PTTL copied", ":0"),
        ("DEL text list", ":2", "EXISTS text list", ":0"),
        ("RPUSH list d", ":4", "PTTL list", ":0"),
        ("LPOP list", r#""a""#, "LLEN list", ":2"),
        ("BLPOP list 1", r#"["list", "a"]"#, "LLEN list", ":2"),
        ("LMOVE list to LEFT LEFT", r#""a""#, "LLEN list", ":2"),
        ("HINCRBY hash f 5", ":6", "HPTTL hash FIELDS 1 f", "[:0]"),
        ("HSET hash f 7", ":0", "HPTTL hash FIELDS 1 f", "[:-1]"),
        ("HPERSIST hash FIELDS 1 f", "[:1]", "HGET hash f", r#""1""#),
        ("ZINCRBY zset 2 a", r#""3""#, "PTTL zset", ":0"),
        ("EVAL \"return redis.call('INCR', KEYS[1])\" 1 text", ":2", "PTTL text", ":0"),
    ] {
        fill(&mut source);
        source.expect(line, reply);
        source.expect(question, its);
    }
    // To everybody else all this is still expired.
    fill(&mut source);
    source.expect("INCR text", ":2");
    ordinary.expect("GET text", "(nil)");
}

#[test]
fn a_write_of_another_client_begins_anew() {
    let (_server, mut ordinary, mut source) = importing();
    for (line, reply, question, its) in [
        ("INCR text", ":1", "TTL text", ":-1"),
        ("SET text n KEEPTTL", "+OK", "TTL text", ":-1"),
        ("SET text n XX", "(nil)", "TTL kept", ":-1"),
        ("RPUSH list d", ":1", "LRANGE list 0 -1", r#"["d"]"#),
        ("HINCRBY hash f 5", ":5", "HPTTL hash FIELDS 1 f", "[:-1]"),
        ("HINCRBY hash g 5", ":7", "HGET hash f", r#""1""#),
        ("RENAMENX kept text", ":1", "GET text", r#""x""#),
        ("EVAL \"return redis.call('INCR', KEYS[1])\" 1 text", ":1", "TTL text", ":-1"),
    ] {
        fill(&mut source);
        ordinary.expect(line, reply);
        source.expect(question, its);
    }
}

#[test]
fn a_time_that_has_passed_is_stored() {
    let (_server, mut ordinary, mut source) = importing();
    for by_source in [false, true] {
        for line in [
            "SET k v PXAT 1",
            "EXPIRE k -1",
            "EXPIREAT k 1",
            "PEXPIREAT k 0",
            "GETEX k PXAT 1",
            "HPEXPIREAT k 1 FIELDS 1 f",
            "HSETEX k PXAT 1 FIELDS 1 f 1",
            "HGETEX k PXAT 1 FIELDS 1 f",
        ] {
            source.expect("FLUSHALL", "+OK");
            let hash = line.starts_with('H');
            source.call(if hash { "HSET k f 1" } else { "SET k v" });
            let reply = match by_source {
                true => source.call(line),
                false => ordinary.call(line),
            };
            assert!(!reply.starts_with('-') && reply != ":0", "{line}: {reply}");
            let (question, others, its) = match hash {
                true => ("HGET k f", "(nil)", r#""1""#),
                false => ("GET k", "(nil)", r#""v""#),
            };
            ordinary.expect(question, others);
            source.expect(question, its);
        }
    }
    // No time lies before 1970.
    source.expect("SET k v", "+OK");
    source.expect("PEXPIREAT k -1", ":1");
    source.expect("EXISTS k", ":0");
    ordinary.expect("SET k v EX -1", "-ERR invalid expire time in 'set' command");
}

#[test]
fn watched_keys_expire_for_those_to_whom_they_are_gone() {
    let (_server, mut ordinary, mut source) = importing();
    // It must not expire before both watch it.
    loop {
        source.expect("UNWATCH", "+OK");
        ordinary.expect("UNWATCH", "+OK");
        source.expect("SET k v PX 300", "+OK");
        source.expect("WATCH k", "+OK");
        ordinary.expect("WATCH k", "+OK");
        if ordinary.call("EXISTS k") == ":1" {
            break;
        }
    }
    eventually(&mut ordinary, "EXISTS k", ":0");
    for (client, reply) in [(&mut ordinary, "(nil array)"), (&mut source, "[+PONG]")] {
        client.expect("MULTI", "+OK");
        client.expect("PING", "+QUEUED");
        client.expect("EXEC", reply);
    }
}

#[test]
fn a_blocked_source_is_served_from_an_expired_list() {
    let (server, mut ordinary, mut source) = importing();
    let (mut waiter, mut other) = (server.client(), server.client());
    waiter.expect("CLIENT IMPORT-SOURCE ON", "+OK");
    let name = other.call("CLIENT ID");
    // The ordinary client waits longer, but to it the list is not there.
    for (count, client) in [(1, &mut other), (2, &mut waiter)] {
        client.send("BLPOP list 0\r\n");
        let deadline = Instant::now() + PATIENCE;
        while figure(&mut ordinary, "blocked_clients") != count {
            assert!(Instant::now() < deadline, "the client does not wait");
        }
    }
    source.expect("MULTI", "+OK");
    source.expect("RPUSH list a", "+QUEUED");
    source.expect("PEXPIREAT list 1", "+QUEUED");
    source.expect("EXEC", "[:1, :1]");
    waiter.expect_reply(r#"["list", "a"]"#);
    ordinary.expect(&format!("CLIENT UNBLOCK {}", &name[1..]), ":1");
    other.expect_reply("(nil array)");
}

#[test]
fn expired_keys_go_when_the_mode_ends() {
    let (_server, mut ordinary, mut source) = importing();
    fill(&mut source);
    ordinary.expect("CONFIG SET import-mode no", "+OK");
    source.expect("GET text", "(nil)");
    eventually(&mut ordinary, "DBSIZE", ":2");
    eventually(&mut ordinary, "HLEN hash", ":1");
    assert_eq!(figure(&mut ordinary, "expired_keys"), 5);
}

#[test]
fn nothing_is_evicted_in_import_mode() {
    let (_server, mut ordinary, mut source) = importing();
    source.expect("CONFIG SET maxmemory-policy allkeys-lru", "+OK");
    source.expect("CONFIG SET maxmemory 8mb", "+OK");
    let value = "x".repeat(100_000);
    for client in [&mut source, &mut ordinary] {
        let mut refused = (0..200).map(|i| client.call(&format!("SET k{i} {value}")).starts_with("-OOM"));
        assert!(refused.any(|refused| refused), "the memory has no limit");
    }
    assert_eq!(figure(&mut ordinary, "evicted_keys"), 0);
    ordinary.expect("CONFIG SET import-mode no", "+OK");
    let deadline = Instant::now() + PATIENCE;
    while ordinary.call("SET k v") != "+OK" {
        assert!(Instant::now() < deadline, "nothing is evicted after import mode");
    }
}

/// Expired keys are read from the log as the source left them.
#[test]
fn the_log_has_what_sources_and_others_did() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["--appendonly", "yes", "--appendfsync", "always", "--import-mode", "yes"];
    let questions = [
        "GET text",
        "PEXPIRETIME text",
        "LRANGE list 0 -1",
        "PEXPIRETIME list",
        "SMEMBERS set",
        "SMEMBERS union",
        "GET script",
        "PEXPIRETIME script",
        "HGETALL hash",
        "HPEXPIRETIME hash FIELDS 2 f g",
        "ZRANGE zset 0 -1 WITHSCORES",
        "EXISTS kept n1",
        "XRANGE stream - +",
        "PTTL stream",
        "DBSIZE",
    ];
    let ask = |client: &mut Client| questions.map(|line| client.call(line));
    let known = {
        let mut server = start_in(folder.path(), &words);
        let (mut ordinary, mut source) = (ready(&server), server.client());
        source.expect("CLIENT IMPORT-SOURCE ON", "+OK");
        fill(&mut source);
        source.expect("INCR text", ":2");
        source.expect("SET script 5 PXAT 1", "+OK");
        source.expect("EVAL \"return redis.call('INCR', KEYS[1])\" 1 script", ":6");
        source.expect("HINCRBY hash f 5", ":6");
        source.expect("RPUSH list d", ":4");
        // To an ordinary client the set is gone, and the list begins anew.
        ordinary.expect("SADD more b", ":1");
        ordinary.expect("SUNIONSTORE union set more", ":1");
        ordinary.expect("MULTI", "+OK");
        ordinary.expect("EXISTS zset", "+QUEUED");
        ordinary.expect("INCR n1", "+QUEUED");
        ordinary.expect("EXEC", "[:0, :1]");
        let many: String = (0..600).map(|i| format!(" w{i} {i}")).collect();
        ordinary.expect("MULTI", "+OK");
        ordinary.expect("GET stream", "+QUEUED");
        ordinary.expect(&format!("MSET{many}"), "+QUEUED");
        ordinary.expect("EXEC", "[(nil), +OK]");
        source.expect("XADD stream 1-2 f v", r#""1-2""#);
        let known = ask(&mut source);
        server.signal("KILL");
        server.exit_code();
        known
    };
    let server = start_in(folder.path(), &words);
    let mut source = ready(&server);
    source.expect("CLIENT IMPORT-SOURCE ON", "+OK");
    assert_eq!(ask(&mut source), known);
}
