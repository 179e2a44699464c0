//! Under `appendfsync always` no reply of any kind tells of what is not durable: errors and nulls no more than
//! values.

use crate::snapshots::{ready, start_in};
use crate::support::{Client, Server, encode_line, foreign};
use crate::waits::until;
use std::time::Duration;

const ALWAYS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always", "--log-stuck", "600"];

/// How long a reply that must not come is waited for.
const SILENCE: Duration = Duration::from_millis(200);

const LIBRARY: &str = "\"#!lua name=new\\nredis.register_function{function_name='f', callback=function() return 7 end, \
     flags={'no-writes'}}\"";
const OLD_LIBRARY: &str =
    "\"#!lua name=old\\nredis.register_function{function_name='g', callback=function() return 8 end}\"";

/// Durable before the disk hangs.
const BEFORE: &[&str] = &[
    "MSET untouched 1 text abc s abc gone x ttl 1 wide:1 a",
    "RPUSH queue only",
    "RPUSH kept a b",
    "RPUSH ends y",
    "XADD x 1-1 f v",
    "XADD y 1-1 f v",
    "XGROUP CREATE y g 0",
];

/// Written while the disk hangs: nobody knows whether it will be there.
const WRITES: &[&str] = &[
    "XGROUP CREATE x g 0",
    "XGROUP DESTROY y g",
    "RPUSH list a",
    "SET s word",
    "DEL gone",
    "SET busy 1",
    "LPOP queue",
    "SET watched 2",
    "SET wide:1 b",
    "PERSIST ttl",
];

/// Calls whose replies depend on those writes, and the beginnings of the replies.
fn questions() -> Vec<(String, &'static str)> {
    let wide: String = (0..700).map(|n| format!(" wide:{n}")).collect();
    let mut all: Vec<(String, &str)> = [
        ("XGROUP CREATE x g 0", "-BUSYGROUP Consumer Group name already exists"),
        ("XREADGROUP GROUP g c STREAMS y >", "-NOGROUP "),
        ("XPENDING y g", "-NOGROUP "),
        ("XINFO CONSUMERS y g", "-NOGROUP "),
        ("GET list", "-WRONGTYPE "),
        ("INCR s", "-ERR value is not an integer"),
        ("LPOP busy", "-WRONGTYPE "),
        ("RENAME gone other", "-ERR no such key"),
        ("LSET gone 0 x", "-ERR no such key"),
        ("OBJECT ENCODING gone", "(nil)"),
        ("OBJECT ENCODING list", "\"listpack\""),
        ("DEBUG OBJECT gone", "-ERR no such key"),
        ("DEBUG OBJECT list", "+Value at:"),
        ("RESTORE busy 0 x", "-BUSYKEY "),
        ("COPY gone other", ":0"),
        ("SORT busy", "-WRONGTYPE "),
        ("SORT ends BY nosort GET bus*", "[\"1\"]"),
        ("EVAL \"return redis.call('LLEN', KEYS[1])\" 1 busy", "-WRONGTYPE "),
        ("EVAL \"return redis.pcall('LLEN', KEYS[1])\" 1 busy", "-WRONGTYPE "),
        ("EVAL_RO \"return redis.call('EXISTS', KEYS[1])\" 1 gone", ":0"),
        ("BLPOP queue 0.02", "(nil"),
        ("XREAD BLOCK 20 STREAMS x 1-1", "(nil"),
        ("DBSIZE", ":"),
        ("KEYS *", "["),
        ("SCAN 0", "["),
        ("SCAN 0 COUNT 100000", "["),
        ("RANDOMKEY", "\""),
        ("MEMORY USAGE busy", ":"),
        ("TTL ttl", ":-1"),
        ("GET busy", "\"1\""),
    ]
    .map(|(line, reply)| (line.to_owned(), reply))
    .into();
    all.push((format!("MGET{wide}"), "[(nil), \"b\""));
    all.push((format!("EXISTS{wide}"), ":1"));
    all
}

/// Begins calls of one client each, in order, and answers once all have run.
fn run_all(server: &Server, free: &mut Client, lines: &[&str], name: &str) -> Client {
    let mut writer = server.client();
    for line in lines {
        writer.send(encode_line(line));
    }
    writer.send(format!("CLIENT SETNAME {name}\r\n"));
    until("all have run", || free.call("CLIENT LIST").contains(&format!("name={name} ")));
    writer
}

/// Sends each call on a connection of its own.
fn ask(server: &Server, calls: Vec<(String, &'static str)>) -> Vec<(String, &'static str, Client)> {
    let begin = |(lines, reply): (String, &'static str)| {
        let mut client = server.client();
        lines.split("; ").for_each(|line| client.send(encode_line(line)));
        (lines, reply, client)
    };
    calls.into_iter().map(begin).collect()
}

/// Nothing comes while the disk hangs, and then all does.
fn all_wait(free: &mut Client, mut asked: Vec<(String, &'static str, Client)>) {
    std::thread::sleep(SILENCE);
    let mut early = Vec::new();
    for (lines, _, client) in &mut asked {
        let mut came = client.reply_within(Duration::from_millis(1));
        while matches!(came.as_deref(), Some("+OK" | "+QUEUED")) {
            came = client.reply_within(Duration::from_millis(1));
        }
        early.extend(came.map(|came| format!("{lines:.60}: {came:.80}")));
    }
    assert!(early.is_empty(), "answered before it was durable: {early:#?}");
    free.expect("DEBUG POINT log-sync OFF", "+OK");
    for (lines, reply, client) in &mut asked {
        let mut came = client.reply();
        while matches!(came.as_str(), "+OK" | "+QUEUED") {
            came = client.reply();
        }
        assert!(came.starts_with(*reply), "{lines:.60}: {came:.80}");
    }
}

#[test]
fn no_reply_tells_of_a_write_that_is_not_durable() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = start_in(folder.path(), ALWAYS);
    let mut free = ready(&server);
    BEFORE.iter().for_each(|line| drop(free.call(line)));
    free.expect("EXPIRE ttl 10000", ":1");
    let mut watching: Vec<_> = ["GET untouched", "EVAL \"return 1\" 0", "KEYS none", "PUBLISH c m"]
        .map(|queued| (server.client(), queued))
        .into_iter()
        .collect();
    for (client, queued) in &mut watching {
        client.expect("WATCH watched", "+OK");
        client.expect("MULTI", "+OK");
        client.expect(queued, "+QUEUED");
    }
    free.expect("DEBUG POINT log-sync HOLD 1", "+OK");
    let _writer = run_all(&server, &mut free, WRITES, "written");
    let mut asked = ask(&server, questions());
    asked.extend(ask(
        &server,
        vec![
            ("MULTI; GET list; EXEC".into(), "[-WRONGTYPE "),
            ("MULTI; LSET gone 0 x; EXEC".into(), "[-ERR no such key"),
            ("MULTI; DEBUG OBJECT gone; EXEC".into(), "[-ERR no such key"),
            ("MULTI; DBSIZE; EXEC".into(), "[:"),
        ],
    ));
    for (mut client, queued) in watching {
        client.send("EXEC\r\n");
        asked.push((format!("EXEC of {queued}"), "(nil", client));
    }
    // Calls that do not depend on them are answered at once.
    for (line, reply) in [
        ("PING", "+PONG"),
        ("GET untouched", "\"1\""),
        ("INCR text", "-ERR value is not an integer"),
        ("LPOP text", "-WRONGTYPE"),
        ("RENAME never other", "-ERR no such key"),
        ("EVAL \"return redis.call('LLEN', KEYS[1])\" 1 text", "-WRONGTYPE"),
        ("OBJECT ENCODING kept", "\"listpack\""),
        ("EVALSHA ffffffffffffffffffffffffffffffffffffffff 0", "-NOSCRIPT"),
        ("FUNCTION STATS", "{"),
        ("FCALL never 0", "-ERR Function not found"),
    ] {
        let mut client = server.client();
        let came = client.call(line);
        assert!(came.starts_with(reply) || line == "FUNCTION STATS", "{line}: {came}");
    }
    all_wait(&mut free, asked);
}

#[test]
fn no_reply_tells_of_a_library_that_is_not_durable() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = start_in(folder.path(), ALWAYS);
    let mut free = ready(&server);
    free.expect(&format!("FUNCTION LOAD {OLD_LIBRARY}"), "\"old\"");
    free.expect("SET untouched 1", "+OK");
    free.expect("DEBUG POINT log-sync HOLD 1", "+OK");
    let load = format!("FUNCTION LOAD {LIBRARY}");
    let _writer = run_all(&server, &mut free, &[&load, "FUNCTION DELETE old"], "loaded");
    let asked = ask(
        &server,
        vec![
            ("FUNCTION STATS".into(), ""),
            ("FUNCTION LIST".into(), ""),
            ("FUNCTION DUMP".into(), ""),
            ("FCALL f 0".into(), ":7"),
            ("FCALL_RO f 0".into(), ":7"),
            ("FCALL g 0".into(), "-ERR Function not found"),
            (load.clone(), "-ERR Library 'new' already exists"),
            ("FUNCTION DELETE old".into(), "-ERR Library not found"),
            ("MULTI; FUNCTION STATS; EXEC".into(), "["),
            ("MULTI; FUNCTION LIST; EXEC".into(), "["),
            ("MULTI; FCALL f 0; EXEC".into(), "[:7]"),
            ("MULTI; FCALL g 0; EXEC".into(), "[-ERR Function not found"),
        ],
    );
    let mut other = server.client();
    other.expect("GET untouched", "\"1\"");
    other.expect("EVAL \"return redis.call('GET', KEYS[1])\" 1 untouched", "\"1\"");
    all_wait(&mut free, asked);
}
