//! Memory of scripts, transactions and long commands beside the data is bounded by `work-max-memory`. A
//! command that needs more gets an error with that name and has no effect. No key is evicted for it, and
//! afterwards all memory is given back.

use crate::held::{await_figure, figure};
use crate::support::{Client, Server, foreign};

/// The error of a command that needs too much.
const FULL: &str = "ERR this command needs more memory than 'work-max-memory' allows";
/// Work memory in these tests; none of it is in use when they begin.
const LIMIT: &str = "4mb";
const MB: usize = 1 << 20;

/// A server whose keys nearly fill its memory: anything counted as data would evict some.
fn full_server() -> Option<(Server, Client)> {
    if foreign() {
        return None;
    }
    let server = Server::start();
    let mut client = server.client();
    let value = "x".repeat(10_000);
    let words: String = (0..200).map(|i| format!(" key:{i} {value}")).collect();
    client.expect(&format!("MSET{words}"), "+OK");
    client.expect(&format!("CONFIG SET work-max-memory {LIMIT}"), "+OK");
    await_figure(&mut client, "reclaim_pending_bytes", |bytes| bytes == 0);
    let limit = figure(&mut client, "used_memory") + 8 * MB as u64;
    client.expect(&format!("CONFIG SET maxmemory-policy allkeys-lru maxmemory {limit}"), "+OK");
    Some((server, client))
}

/// Checks that all keys are there, and that all work memory is given back.
#[track_caller]
fn nothing_is_left(client: &mut Client, refused: u64) {
    client.expect("DBSIZE", ":200");
    assert_eq!(figure(client, "evicted_keys"), 0);
    assert!(figure(client, "work_refused") >= refused);
    // Lua keeps a little garbage until it is collected.
    client.expect("SCRIPT FLUSH", "+OK");
    client.expect("MEMORY PURGE", "+OK");
    await_figure(client, "used_memory_work", |bytes| bytes == 0);
    await_figure(client, "snapshots_open", |open| open == 0);
}

#[track_caller]
fn eval(client: &mut Client, script: &str) -> String {
    client.call_bytes(&[b"EVAL", script.as_bytes(), b"0"])
}

#[test]
fn a_script_that_remembers_without_end_is_ended_and_costs_nobody_a_key() {
    let Some((server, mut other)) = full_server() else { return };
    let mut client = server.client();
    let loops = [
        // Missing keys looked up one by one, with the results thrown away.
        "local i = 0 while true do i = i + 1 redis.call('GET', 'none' .. i) end",
        // Catching the error does not help.
        "local i = 0 while true do i = i + 1 pcall(redis.call, 'GET', 'none' .. i) end",
        "local i = 0 while true do i = i + 1 redis.pcall('GET', 'none' .. i) end",
        // Values that are written, new ones and one that grows.
        "local i = 0 while true do i = i + 1 redis.call('SET', 'new' .. i, ('x'):rep(1000)) end",
        "while true do redis.call('APPEND', 'one', ('x'):rep(1000)) end",
        "while true do redis.call('RPUSH', 'list', ('x'):rep(1000)) end",
        "local i = 0 while true do i = i + 1 redis.call('HSET', 'hash', i, ('x'):rep(100)) end",
        // Events of keys.
        "local i = 0 while true do i = i + 1 redis.call('DEL', 'key:0') redis.call('SET', 'key:0', i) end",
    ];
    other.expect("CONFIG SET notify-keyspace-events KA", "+OK");
    for script in loops {
        assert_eq!(eval(&mut client, script), format!("-{FULL}"), "{script}");
    }
    // Within a transaction too, which is then dropped as a whole.
    client.expect("MULTI", "+OK");
    client.expect("SET done 1", "+QUEUED");
    client.request(&[b"EVAL", loops[0].as_bytes(), b"0"]);
    client.expect_reply("+QUEUED");
    let told = client.call("EXEC");
    assert!(told.starts_with("-EXECABORT") && told.contains("work-max-memory"), "{told}");
    nothing_is_left(&mut other, loops.len() as u64);
}

/// Every request may hold a little whatever the others hold, but those that one MULTI keeps are one piece of
/// work.
#[test]
fn a_transaction_of_many_requests_that_are_long_each_is_bounded() {
    let Some((server, mut other)) = full_server() else { return };
    other.expect("CONFIG SET work-max-memory 16mb", "+OK");
    let mut client = server.client();
    let value = vec![b'x'; 200_000];
    client.expect("MULTI", "+OK");
    let mut queue = |i: usize| client.call_bytes(&[b"SET", format!("new:{i}").as_bytes(), &value]);
    let queued = (0..200).take_while(|i| queue(*i) == "+QUEUED").count();
    // A request takes the buffer it came in, which may be larger.
    assert!((30..=84).contains(&queued), "{queued} requests of 200 kB are queued");
    let told = client.call("EXEC");
    assert!(told.starts_with("-EXECABORT"), "{told}");
    client.expect("PING", "+PONG");
    nothing_is_left(&mut other, 1);
}

#[test]
fn messages_of_a_script_count_as_its_own() {
    let Some((server, mut other)) = full_server() else { return };
    let (mut client, mut subscriber) = (server.client(), server.client());
    assert!(subscriber.call("SUBSCRIBE news").starts_with('['));
    let script = "while true do redis.call('PUBLISH', 'news', ('x'):rep(1000)) end";
    assert_eq!(eval(&mut client, script), format!("-{FULL}"));
    nothing_is_left(&mut other, 1);
    // None of its events was sent.
    client.expect("PUBLISH news end", ":1");
    subscriber.expect_reply("[\"message\", \"news\", \"end\"]");
}

#[test]
fn a_count_that_cannot_be_answered_is_refused_before_it_is_begun() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect(&format!("CONFIG SET work-max-memory {LIMIT}"), "+OK");
    client.expect("SADD s a", ":1");
    client.expect("HSET h f v", ":1");
    client.expect("ZADD z 1 m", ":1");
    let counted = [
        "SRANDMEMBER s -1000000000000000000",
        "HRANDFIELD h -1000000000000000000",
        "HRANDFIELD h -1000000000000000000 WITHVALUES",
        "ZRANDMEMBER z -1000000000000000000",
        "ZRANDMEMBER z -1000000000000000000 WITHSCORES",
        "SRANDMEMBER s -3000000",
    ];
    for line in counted {
        // The other commands of the transaction are done, as with any command that fails.
        client.expect("MULTI", "+OK");
        client.expect("INCR n", "+QUEUED");
        client.expect(line, "+QUEUED");
        client.expect("GET n", "+QUEUED");
        let told = client.call("EXEC");
        assert!(told.contains(&format!(", -{FULL}, \"")), "{line}: {told}");
        let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
        let told = eval(&mut client, &format!("return redis.call({})", words.join(", ")));
        assert!(told.starts_with(&format!("-{FULL} script: ")), "{line}: {told}");
        let told = eval(&mut client, &format!("return redis.pcall({})", words.join(", ")));
        assert_eq!(told, format!("-{FULL}"), "{line}");
    }
    client.expect("GET n", &format!("\"{}\"", counted.len()));
    // A reply that fits is sent.
    client.expect("MULTI", "+OK");
    client.expect("SRANDMEMBER s -3", "+QUEUED");
    client.expect("EXEC", "[[\"a\", \"a\", \"a\"]]");
    client.expect("MULTI", "+OK");
    client.expect("SRANDMEMBER s -100000", "+QUEUED");
    assert_eq!(client.call("EXEC").matches("\"a\"").count(), 100_000);
    await_figure(&mut client, "used_memory_work", |bytes| bytes == 0);
}

#[test]
fn replies_of_a_transaction_are_bounded_together() {
    let Some((server, mut other)) = full_server() else { return };
    let mut client = server.client();
    let members: String = (0..1000).map(|i| format!(" {i:0100}")).collect();
    other.expect("DEL key:0", ":1");
    other.expect(&format!("RPUSH key:0{members}"), ":1000");
    // GET of the same element again and again: memory holds it once, and the reply would be 100 times as
    // long.
    let gets = " GET #".repeat(100);
    client.expect("MULTI", "+OK");
    client.expect(&format!("SORT key:0 ALPHA{gets}"), "+QUEUED");
    client.expect("PING", "+QUEUED");
    client.expect("EXEC", &format!("[-{FULL}, +PONG]"));
    client.expect("MULTI", "+OK");
    client.expect(&format!("SORT key:0 ALPHA{gets}"), "+QUEUED");
    client.expect("GET key:1x", "+QUEUED");
    client.expect("EXEC", &format!("[-{FULL}, (nil)]"));
    // Outside a transaction as well: nothing can be sent before the whole reply is there.
    client.expect(&format!("SORT key:0 ALPHA{gets}"), &format!("-{FULL}"));
    nothing_is_left(&mut other, 3);
}

#[test]
fn large_values_in_the_reply_of_a_transaction_are_not_copied() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut control, mut client) = (server.client(), server.client());
    let value = vec![b'v'; 20 * MB];
    assert_eq!(control.call_bytes(&[b"SET", b"big", &value]), "+OK");
    control.expect(&format!("CONFIG SET work-max-memory {LIMIT}"), "+OK");
    await_figure(&mut control, "reclaim_pending_bytes", |bytes| bytes == 0);
    let before = server.resident_bytes();
    // The reply is of the moment of the transaction, even if the key changes before it is read.
    client.send(
        "MULTI\r\nGET big\r\nGETRANGE big 1 -1\r\nMGET big none big\r\nAPPEND big w\r\nGET big\r\nEXEC\r\n",
    );
    let queued = ["+OK", "+QUEUED", "+QUEUED", "+QUEUED", "+QUEUED", "+QUEUED"];
    queued.into_iter().for_each(|reply| client.expect_reply(reply));
    await_figure(&mut control, "total_commands_processed", |commands| commands > 8);
    await_figure(&mut control, "worker_jobs_running", |running| running == 0);
    assert!(server.resident_bytes() < before + 60 * MB as u64, "a copy for each of them would be 100 MB");
    let bulk = |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let (whole, longer) = (bulk(&value), bulk(&[&value[..], b"w"].concat()));
    let length = format!(":{}\r\n", value.len() + 1);
    let parts: [&[u8]; 8] = [
        b"*5\r\n",
        &whole,
        &bulk(&value[1..]),
        b"*3\r\n",
        &[&whole[..], b"$-1\r\n"].concat(),
        &whole,
        length.as_bytes(),
        &longer,
    ];
    let expected = parts.concat();
    assert!(client.raw(expected.len()) == expected, "the reply is another");
    client.expect("PING", "+PONG");
    await_figure(&mut control, "used_memory_work", |bytes| bytes == 0);
}

/// A figure of a client in CLIENT LIST.
fn listed(control: &mut Client, id: &str, name: &str) -> usize {
    let line = control.call(&format!("CLIENT LIST ID {id}"));
    let at = line.find(&format!(" {name}=")).unwrap_or_else(|| panic!("no {name} in {line}"));
    let digits = &line[at + name.len() + 2..];
    digits[..digits.bytes().take_while(u8::is_ascii_digit).count()].parse().expect("a number")
}

#[test]
fn what_is_queued_and_watched_is_bounded_and_shown() {
    let Some((server, mut other)) = full_server() else { return };
    let mut client = server.client();
    let id = client.call("CLIENT ID").trim_start_matches(':').to_owned();
    let value = "y".repeat(50_000);
    let idle = listed(&mut other, &id, "tot-mem");
    client.expect("MULTI", "+OK");
    (0..20).for_each(|i| client.expect(&format!("SET key:{i} {value}"), "+QUEUED"));
    assert!(listed(&mut other, &id, "multi-mem") >= MB - MB / 20);
    assert!(listed(&mut other, &id, "tot-mem") >= idle + MB - MB / 20);
    await_figure(&mut other, "used_memory_work", |bytes| bytes >= MB as u64 - MB as u64 / 20);
    let refused = (0..200).find(|_| client.call(&format!("SET key:1 {value}")) == format!("-{FULL}"));
    assert!(refused.is_some_and(|n| (50..70).contains(&n)), "{refused:?}");
    assert_eq!(listed(&mut other, &id, "multi-mem"), 0, "it was given up");
    client.expect("SET key:1 v", "+QUEUED");
    client.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.");
    // Watched keys.
    let name = "k".repeat(1000);
    let watched = |from: usize| (from..from + 150).map(|i| format!(" {name}{i}")).collect::<String>();
    client.expect(&format!("WATCH{}", watched(0)), "+OK");
    assert!(listed(&mut other, &id, "tot-mem") >= idle + 150_000);
    let refused = (1..200).find(|i| client.call(&format!("WATCH{}", watched(i * 150))) == format!("-{FULL}"));
    assert!(refused.is_some_and(|n| n > 10), "{refused:?}");
    // Whether the dropped keys were touched is no longer known.
    client.expect("MULTI", "+OK");
    client.expect("SET key:1 v", "+QUEUED");
    client.expect("EXEC", "(nil array)");
    client.expect("MULTI", "+OK");
    client.expect("EXISTS key:1", "+QUEUED");
    client.expect("EXEC", "[:1]");
    nothing_is_left(&mut other, 2);
}

#[test]
fn long_commands_that_need_too_much_fail_and_leave_nothing() {
    let Some((server, mut other)) = full_server() else { return };
    let mut client = server.client();
    // Without a limit of the data, so that there is something to work on.
    other.expect("CONFIG SET maxmemory 0", "+OK");
    let many: String = (0..60_000).map(|i| format!(" member-{i:08}")).collect();
    other.expect(&format!("SADD set{many}"), ":60000");
    other.expect(&format!("RPUSH list{many}"), ":60000");
    for line in [
        // A result, keys that are looked up, and a list that is sorted.
        "ZUNIONSTORE into 1 set",
        "SORT list BY weight:*:of-all-of-them ALPHA LIMIT 0 1",
        "SORT list ALPHA STORE into",
    ] {
        other.expect("CONFIG SET work-max-memory 1mb", "+OK");
        client.expect(line, &format!("-{FULL}"));
        client.expect("EXISTS into", ":0");
        await_figure(&mut other, "used_memory_work", |bytes| bytes == 0);
        other.expect("CONFIG SET work-max-memory 100mb", "+OK");
        let told = client.call(line);
        assert!(!told.starts_with('-'), "{line}: {told}");
        client.call("DEL into");
    }
    await_figure(&mut other, "snapshots_open", |open| open == 0);
    assert_eq!(figure(&mut other, "evicted_keys"), 0);
}

#[test]
fn a_long_list_of_values_is_bounded_before_it_is_sent() {
    let Some((server, mut other)) = full_server() else { return };
    let mut client = server.client();
    let keys = " key:7".repeat(2000);
    // Large values may be streamed within the limit; these are small.
    client.expect(&format!("MGET{keys}"), &format!("-{FULL}"));
    let keys = " key:7".repeat(200);
    assert!(client.call(&format!("MGET{keys}")).len() > 2_000_000);
    nothing_is_left(&mut other, 1);
}

#[test]
fn while_memory_is_full_what_frees_it_or_reads_can_be_queued() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut admin, mut client) = (server.client(), server.client());
    client.expect("RPUSH l a b", ":2");
    client.expect("SET k v", "+OK");
    admin.expect("CONFIG SET maxmemory 1", "+OK");
    const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.";
    client.expect("SET k w", OOM);
    client.expect("MULTI", "+OK");
    for line in ["LPOP l", "GET k", "DEL k", "EXISTS k"] {
        client.expect(line, "+QUEUED");
    }
    client.expect("EXEC", "[\"a\", \"v\", :1, :0]");
    // A command that may need more is refused, as outside.
    client.expect("MULTI", "+OK");
    client.expect("GET k", "+QUEUED");
    client.expect("SET k w", OOM);
    client.expect("DEL l", "+QUEUED");
    client.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.");
    client.expect("LLEN l", ":1");
}

/// An open connection follows changes of settings.
#[test]
fn a_connection_follows_every_setting_that_is_changed_and_changed_back() {
    if foreign() {
        return;
    }
    const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.";
    const NOAUTH: &str = "-NOAUTH Authentication required.";
    let wide = format!("MSET{}", " a b".repeat(10));
    let drawn = "EVAL \"return #redis.call('SRANDMEMBER', 's', '-100000')\" 0";
    let script = "EVAL \"return redis.call('SET', 'k', 1)\" 0";
    // The directive, the value that matters, and the reply under it on a connection that existed before.
    type Case<'a> = (&'a str, &'a str, &'a str);
    let table: &[(&str, &str, &[Case<'_>])] = &[
        (
            "maxmemory",
            "1",
            &[
                ("SET k 1", OOM, "+OK"),
                (script, OOM, "+OK"),
                ("FCALL set 0", OOM, "+OK"),
                ("MULTI;GET k;EXEC", "[\"1\"]", "[\"1\"]"),
                (&format!("MULTI;{script};EXEC"), &format!("[{OOM}"), "[+OK]"),
            ],
        ),
        ("requirepass", "secret", &[("GET k", NOAUTH, "\"1\""), (&wide, "-ERR Protocol", "+OK")]),
        (
            "work-max-memory",
            "100kb",
            &[
                (drawn, &format!("-{FULL}"), ":100000"),
                ("MULTI;SRANDMEMBER s -100000;EXEC", &format!("[-{FULL}]"), "[[\"a\", "),
            ],
        ),
        ("notify-keyspace-events", "E$", &[("EVAL \"return redis.call('SET', 'k', 1)\" 0", "+OK", "+OK")]),
    ];
    for (directive, value, lines) in table {
        let server = Server::start();
        let (mut admin, mut before) = (server.client(), server.client());
        let code =
            "#!lua name=f\nredis.register_function('set', function() return redis.call('SET', 'k', 1) end)";
        assert_eq!(admin.call_bytes(&[b"FUNCTION", b"LOAD", code.as_bytes()]), "\"f\"");
        admin.expect("SADD s a", ":1");
        admin.expect("SET k 1", "+OK");
        admin.expect("PING", "+PONG");
        let shown = admin.call(&format!("CONFIG GET {directive}"));
        let usual = shown.split('"').nth(3).expect("a value").to_owned();
        let say = |client: &mut Client, line: &str| {
            let parts: Vec<&str> = line.split(';').collect();
            parts.into_iter().map(|part| client.call(part)).last().expect("a reply")
        };
        for (line, changed, unchanged) in *lines {
            // A client that needed no password to log in stays logged in.
            let mut here = if *directive == "requirepass" {
                admin.expect(&format!("CONFIG SET {directive} {value}"), "+OK");
                server.client()
            } else {
                let told = say(&mut before, line);
                assert!(told.starts_with(unchanged), "{directive} as ever, {line:.60}: {told:.200}");
                admin.expect(&format!("CONFIG SET {directive} {value}"), "+OK");
                std::mem::replace(&mut before, server.client())
            };
            let told = say(&mut here, line);
            assert!(told.starts_with(changed), "{directive} {value}, {line:.60}: {told:.200}");
            admin.expect(&format!("CONFIG SET {directive} \"{usual}\""), "+OK");
            if told.starts_with("-ERR Protocol") {
                assert!(here.is_closed_within(crate::support::PATIENCE));
                here = server.client();
            }
            let told = say(&mut here, line);
            assert!(told.starts_with(unchanged), "{directive} changed back, {line:.60}: {told:.200}");
        }
    }
}

#[test]
fn how_long_a_word_may_be_is_what_the_setting_says_now() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut admin, mut first, mut second) = (server.client(), server.client(), server.client());
    let (header, value) = ("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048577\r\n", "x".repeat(MB + 1));
    first.expect("PING", "+PONG");
    second.expect("PING", "+PONG");
    admin.expect("CONFIG SET proto-max-bulk-len 1mb", "+OK");
    first.send(header);
    first.expect_reply("-ERR Protocol error: invalid bulk length");
    second.expect("PING", "+PONG");
    admin.expect("CONFIG SET proto-max-bulk-len 2mb", "+OK");
    second.send(format!("{header}{value}\r\n"));
    second.expect_reply("+OK");
}

#[test]
fn a_request_that_cannot_be_held_is_refused_at_its_length() {
    let Some((server, mut other)) = full_server() else { return };
    let header = |bytes: usize| format!("*4\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n${bytes}\r\n");
    // Longer than all memory, and than work may hold while the data leave nothing free.
    let max = figure(&mut other, "maxmemory") as usize;
    for (bytes, why) in [(400 * MB, "is larger than 'maxmemory'"), (max - MB, "see 'work-max-memory'")] {
        let mut client = server.client();
        client.send(header(bytes));
        let told = client.reply();
        assert!(told.starts_with("-OOM ") && told.contains(why), "{told}");
        assert!(client.is_closed_within(crate::support::PATIENCE));
    }
    // A connection that waits for others' work to end is read from afterwards.
    let held: Vec<Client> = (0..2)
        .map(|_| {
            let mut client = server.client();
            client.send(header(7 * MB / 2));
            client
        })
        .collect();
    await_figure(&mut other, "used_memory_work", |bytes| bytes >= 7 * MB as u64 / 2);
    drop(held);
    await_figure(&mut other, "used_memory_work", |bytes| bytes == 0);
    let mut client = server.client();
    let text = "x".repeat(2 * MB);
    client.request(&[b"ECHO", text.as_bytes()]);
    client.expect_reply(&format!("\"{text}\""));
    // Small requests are not counted.
    client.expect("PING", "+PONG");
    other.expect("DBSIZE", ":200");
    assert_eq!(figure(&mut other, "evicted_keys"), 0);
    await_figure(&mut other, "used_memory_work", |bytes| bytes == 0);
}

#[test]
fn who_waits_for_a_password_needs_none_when_there_is_none_any_more() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut admin = server.client();
    admin.expect("CONFIG SET requirepass secret", "+OK");
    let mut client = server.client();
    client.expect("GET k", "-NOAUTH Authentication required.");
    admin.expect("CONFIG SET requirepass \"\"", "+OK");
    client.expect("GET k", "(nil)");
    // More and longer words, in one go, than a client may send before it logs in.
    let value = "x".repeat(20_000);
    client.expect(&format!("MSET{}", format!(" k {value}").repeat(20)), "+OK");
    assert!(client.call("HELLO 3").starts_with('{'));
    // The new password is asked of this client, not of one that was let in without one.
    admin.expect("CONFIG SET requirepass other", "+OK");
    client.expect("GET k", "-NOAUTH Authentication required.");
    admin.expect("EXISTS k", ":1");
    client.expect("AUTH other", "+OK");
    client.expect("EXISTS k", ":1");
}

#[test]
fn a_value_that_is_stored_as_it_came_counts_once() {
    let Some((_server, mut other)) = full_server() else { return };
    other.expect("FLUSHALL", "+OK");
    // With its copy in the keyspace it is more than work may hold.
    let text = "x".repeat(3 * MB);
    other.request(&[b"SET", b"large", text.as_bytes()]);
    other.expect_reply("+OK");
    other.expect("STRLEN large", &format!(":{}", text.len()));
    other.request(&[b"SET", b"large", text.as_bytes(), b"GET"]);
    other.expect_reply(&format!("\"{text}\""));
}
