//! Everything a client is told, and when: besides its replies, in the slow log, in INFO, about watched keys.

use crate::support::{Client, PATIENCE, Server, foreign};
use std::time::{Duration, Instant};

/// Waits until a reply contains these words.
#[track_caller]
fn eventually_says(client: &mut Client, line: &str, words: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let got = client.call(line);
        if got.contains(words) {
            return;
        }
        assert!(Instant::now() < deadline, "{line} still answers {got}, without {words}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn subscribed(word: &str, name: &str, count: u32) -> String {
    format!("[\"{word}\", \"{name}\", :{count}]")
}

/// CLIENT REPLY leaves replies out. Confirmations of subscriptions and messages are not replies.
#[test]
fn subscriptions_are_confirmed_though_replies_are_left_out() {
    let server = Server::start();
    let mut publisher = server.client();
    for resp3 in [false, true] {
        let push = if resp3 { ">" } else { "" };
        for mode in ["OFF", "SKIP"] {
            let mut client = if resp3 { server.client3() } else { server.client() };
            client.send(format!("CLIENT REPLY {mode}\r\nSUBSCRIBE a b\r\n"));
            client.expect_reply(&format!("{push}{}", subscribed("subscribe", "a", 1)));
            client.expect_reply(&format!("{push}{}", subscribed("subscribe", "b", 2)));
            publisher.expect("PUBLISH a hello", ":1");
            client.expect_reply(&format!("{push}[\"message\", \"a\", \"hello\"]"));
            client.send("UNSUBSCRIBE\r\n");
            client.expect_reply(&format!("{push}{}", subscribed("unsubscribe", "a", 1)));
            client.expect_reply(&format!("{push}{}", subscribed("unsubscribe", "b", 0)));
            client.send("CLIENT REPLY ON\r\nPING\r\n");
            client.expect_reply("+OK");
            client.expect_reply("+PONG");
        }
        for (word, name) in [("subscribe", "x"), ("psubscribe", "x*"), ("ssubscribe", "x")] {
            let mut client = if resp3 { server.client3() } else { server.client() };
            let off = word.replacen("sub", "unsub", 1);
            client.send(format!("CLIENT REPLY OFF\r\n{word} {name}\r\n{off} {name}\r\nPING\r\n{off}\r\n"));
            client.expect_reply(&format!("{push}{}", subscribed(word, name, 1)));
            client.expect_reply(&format!("{push}{}", subscribed(&off, name, 0)));
            let nothing = if resp3 { "(null)" } else { "(nil)" };
            let last = client.reply();
            assert!(
                last.starts_with(&format!("{push}[\"{off}\", ")) && last.ends_with(", :0]"),
                "{last} {nothing}"
            );
        }
    }
}

#[test]
fn a_transaction_that_is_not_answered_confirms_its_subscriptions() {
    let server = Server::start();
    for slow in ["", "CONFIG GET maxmemory\r\n"] {
        let mut client = server.client3();
        client.send(format!(
            "CLIENT REPLY OFF\r\nMULTI\r\nSUBSCRIBE a\r\n{slow}SET k v\r\nEXEC\r\nCLIENT REPLY ON\r\n"
        ));
        client.expect_reply(&format!(">{}", subscribed("subscribe", "a", 1)));
        client.expect_reply("+OK");
    }
}

/// More names than are handled in one slice.
#[test]
fn many_subscriptions_are_confirmed_one_by_one() {
    let server = Server::start();
    let mut client = server.client3();
    let names: String = (0..1000).map(|i| format!(" c{i}")).collect();
    client.send(format!("CLIENT REPLY SKIP\r\nSUBSCRIBE{names}\r\nPING\r\n"));
    for i in 0..1000 {
        client.expect_reply(&format!(">{}", subscribed("subscribe", &format!("c{i}"), i + 1)));
    }
    client.expect_reply("+PONG");
}

fn log_of(client: &mut Client, word: &str) -> usize {
    client.call("SLOWLOG GET -1").matches(&format!("[\"{word}\"")).count()
}

fn calls(client: &mut Client, command: &str) -> String {
    let stats = client.call("INFO commandstats");
    let line = stats.split("\\r\\n").find(|line| line.starts_with(&format!("cmdstat_{command}:")));
    let figures =
        line.map(|line| line.split(',').filter(|part| !part.starts_with("usec")).collect::<Vec<_>>());
    figures.map_or_else(String::new, |figures| figures.join(",").replace(&format!("cmdstat_{command}:"), ""))
}

/// As in Redis 8: a command that waits for a key is counted and logged when the wait is over.
#[test]
fn what_waits_is_in_the_slow_log_when_it_is_over() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, mut control) = (server.client(), server.client());
    let id = client.call("CLIENT ID")[1..].to_owned();
    control.expect("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 1000000", "+OK");
    let ends = ["RPUSH k v", "timeout", "CLIENT UNBLOCK {id} TIMEOUT", "CLIENT UNBLOCK {id} ERROR"];
    for (round, end) in ends.iter().enumerate() {
        let seconds = if *end == "timeout" { "0.05" } else { "0" };
        if *end != "timeout" {
            client.send(format!("BLPOP k {seconds}\r\n"));
            eventually_says(&mut control, "INFO clients", "blocked_clients:1");
            assert_eq!(log_of(&mut control, "BLPOP"), round, "before {end}");
            control.call(&end.replace("{id}", &id));
            client.reply();
        } else {
            client.call(&format!("BLPOP k {seconds}"));
        }
        assert_eq!(log_of(&mut control, "BLPOP"), round + 1, "after {end}");
    }
    assert_eq!(calls(&mut control, "blpop"), "calls=4,rejected_calls=0,failed_calls=1");
    // A call with a wrong number of words counts as refused, of a subcommand, too.
    control.expect("STRLEN", "-ERR wrong number of arguments for 'strlen' command");
    control.expect("STRLEN a", ":0");
    assert_eq!(calls(&mut control, "strlen"), "calls=1,rejected_calls=1,failed_calls=0");
    control.call("CLIENT SETNAME");
    assert!(calls(&mut control, "client|setname").contains("rejected_calls=1"));
    client.send("BLPOP k 0\r\n");
    eventually_says(&mut control, "INFO clients", "blocked_clients:1");
    assert_eq!(calls(&mut control, "blpop"), "calls=4,rejected_calls=0,failed_calls=1");
    control.expect(&format!("CLIENT KILL ID {id}"), ":1");
    eventually_says(&mut control, "INFO clients", "blocked_clients:0");
    assert_eq!(log_of(&mut control, "BLPOP"), 4);
}

#[test]
fn an_answer_that_is_collected_elsewhere_counts_with_its_whole_time() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("CONFIG SET slowlog-log-slower-than 20000", "+OK");
    client.expect("DEBUG SLEEP 0.03", "+OK");
    assert_eq!(log_of(&mut client, "DEBUG"), 1);
}

#[test]
fn who_waits_for_the_end_of_a_pause_is_blocked_and_info_tells_of_the_pause() {
    let server = Server::start();
    let (mut held, mut control) = (server.client(), server.client());
    let none = "paused_reason:none\\r\\npaused_actions:none\\r\\npaused_timeout_milliseconds:0\\r\\n";
    let has_lines = !foreign();
    assert!(!has_lines || control.call("INFO clients").contains(none), "{}", control.call("INFO clients"));
    for (mode, actions) in [("WRITE", "write"), ("ALL", "all")] {
        control.expect(&format!("CLIENT PAUSE 100000 {mode}"), "+OK");
        held.send("SET k v\r\n");
        if mode == "ALL" {
            control.expect("CLIENT UNPAUSE", "+OK");
            held.expect_reply("+OK");
            control.expect("MULTI", "+OK");
            control.expect("CLIENT PAUSE 100000 ALL", "+QUEUED");
            control.expect("INFO clients", "+QUEUED");
            let told = control.call("EXEC");
            assert!(!has_lines || told.contains("paused_actions:all"), "{told}");
            control.expect("CLIENT UNPAUSE", "+OK");
            continue;
        }
        eventually_says(&mut control, "INFO clients", "blocked_clients:1");
        let told = control.call("INFO clients");
        let wanted = format!("paused_reason:client_pause\\r\\npaused_actions:{actions}\\r\\n");
        assert!(!has_lines || told.contains(&wanted), "{told}");
        control.expect("CLIENT UNPAUSE", "+OK");
        held.expect_reply("+OK");
        eventually_says(&mut control, "INFO clients", "blocked_clients:0");
    }
}

#[test]
fn waiters_and_their_keys_are_counted() {
    let server = Server::start();
    let (mut a, mut b, mut control) = (server.client(), server.client(), server.client());
    a.send("BLPOP k1 k2 0\r\n");
    b.send("BLPOP k2 k3 1000\r\n");
    eventually_says(&mut control, "INFO clients", "blocked_clients:2");
    let told = control.call("INFO clients");
    assert!(told.contains("clients_in_timeout_table:1"), "{told}");
    assert!(foreign() || told.contains("total_blocking_keys:3"), "{told}");
    control.expect("RPUSH k2 x y", ":2");
    a.reply();
    b.reply();
    eventually_says(&mut control, "INFO clients", "clients_in_timeout_table:0");
    assert!(foreign() || control.call("INFO clients").contains("total_blocking_keys:0"));
}

/// Makes a key that has expired, in database 1.
fn expired_in_1(client: &mut Client, key: &str) {
    client.expect("SELECT 1", "+OK");
    client.expect(&format!("SET {key} v PX 1"), "+OK");
    // No command looks at it, and the sweep may find it or not.
    std::thread::sleep(Duration::from_millis(5));
    client.expect("SELECT 0", "+OK");
}

#[test]
fn an_expired_key_that_comes_with_an_exchange_is_as_absent_as_before() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    for (what, change, aborts) in [
        ("comes expired", &["SWAPDB 0 1"][..], false),
        ("comes expired, and is looked for", &["SWAPDB 0 1", "GET k"], false),
        ("comes expired, and is made", &["SWAPDB 0 1", "SET k new"], true),
        ("comes expired, and goes", &["SWAPDB 0 1", "DEL k"], false),
        ("comes expired, and is flushed", &["SWAPDB 0 1", "FLUSHDB"], true),
    ] {
        client.expect("FLUSHALL", "+OK");
        expired_in_1(&mut client, "k");
        client.expect("WATCH k", "+OK");
        other.expect("SELECT 0", "+OK");
        change.iter().for_each(|line| drop(other.call(line)));
        client.expect("MULTI", "+OK");
        client.expect("PING", "+QUEUED");
        // The database was replaced twice: its contents in between are not known here.
        if what.ends_with("flushed") {
            client.call("EXEC");
            continue;
        }
        client.expect("EXEC", if aborts { "(nil array)" } else { "[+PONG]" });
    }
}

#[test]
fn a_key_that_comes_alive_with_an_exchange_and_expires_then_was_touched() {
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    for look in ["PING", "GET k"] {
        let deadline = Instant::now() + PATIENCE;
        // On a slow machine the key expires before it comes.
        loop {
            client.expect("UNWATCH", "+OK");
            client.expect("FLUSHALL", "+OK");
            client.expect("WATCH k", "+OK");
            for line in ["SELECT 1", "SET k v PX 300", "SWAPDB 0 1", "SELECT 0"] {
                other.expect(line, "+OK");
            }
            if other.call("EXISTS k") == ":1" {
                break;
            }
            assert!(Instant::now() < deadline);
        }
        while other.call("EXISTS k") == ":1" {
            assert!(Instant::now() < deadline);
        }
        other.call(look);
        client.expect("MULTI", "+OK");
        client.expect("PING", "+QUEUED");
        client.expect("EXEC", "(nil array)");
    }
}

/// Long answers are collected elsewhere, for scripts as well.
#[test]
fn scripts_are_told_what_takes_long() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("EVAL \"return #redis.call('MEMORY', 'MALLOC-STATS') > 100\" 0", ":1");
    let script =
        "EVAL \"redis.call('SET', KEYS[1], #redis.call('COMMAND')) return redis.call('GET', KEYS[1])\" 1 k";
    let count = client.call("COMMAND COUNT");
    client.expect(script, &format!("\"{}\"", &count[1..]));
    client.expect(
        "EVAL \"return redis.pcall('PUBSUB', 'CHANNELS', 'a', 'b')\" 0",
        "-ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP.",
    );
    client.expect("EVAL \"return type(redis.call('SLOWLOG', 'GET', '-1'))\" 0", "\"table\"");
    client.expect("MULTI", "+OK");
    client.expect("MEMORY MALLOC-STATS", "+QUEUED");
    client.expect("SET k 2", "+QUEUED");
    let all = client.call("EXEC");
    assert!(all.len() > 100 && all.ends_with(", +OK]"));
}

/// Values of other options are not options.
#[test]
fn keys_are_told_as_commands_use_them() {
    let server = Server::start();
    let mut client = server.client();
    for (words, keys) in [
        ("SORT l BY store GET store LIMIT 0 1", "[\"l\"]"),
        ("SORT l GET by STORE to", "[\"l\", \"to\"]"),
        ("SORT l STORE a GET store STORE b", "[\"l\", \"b\"]"),
        ("SORT l LIMIT 0 1 STORE d DESC", "[\"l\", \"d\"]"),
        ("SORT_RO l GET store BY by", "[\"l\"]"),
        ("MIGRATE h 1 \"\" 0 10 AUTH keys KEYS a keys b", "[\"a\", \"keys\", \"b\"]"),
        ("MIGRATE h 1 \"\" 0 10 COPY AUTH2 keys keys KEYS k", "[\"k\"]"),
        ("MIGRATE h 1 k 0 10 AUTH keys", "[\"k\"]"),
        ("SET get get", "[\"get\"]"),
        ("ZUNION 2 weights aggregate WEIGHTS 1 2 AGGREGATE MAX", "[\"weights\", \"aggregate\"]"),
        ("COPY db replace DB 1 REPLACE", "[\"db\", \"replace\"]"),
    ] {
        client.expect(&format!("COMMAND GETKEYS {words}"), keys);
    }
    client.expect("RPUSH l 2 1", ":2");
    client.expect("SORT l GET # STORE store", ":2");
    client.expect("SORT l BY store GET # LIMIT 0 1", "[\"2\"]");
    client.expect("LRANGE store 0 -1", "[\"1\", \"2\"]");
}

/// A small database is scanned by one call, though its keys are in many shards.
#[test]
fn scan_gets_through_a_small_database_at_once() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("SCAN 0", "[\"0\", []]");
    client.expect("MSET a 1 b 2 c 3", "+OK");
    client.expect("SCAN 0 MATCH none*", "[\"0\", []]");
    let all = client.call("SCAN 0");
    assert!(all.starts_with("[\"0\", [") && ["a", "b", "c"].iter().all(|key| all.contains(key)), "{all}");
}

/// CLIENT CACHING without its mode is told which mode it needs.
#[test]
fn client_caching_names_the_mode_that_it_needs() {
    let server = Server::start();
    let mut client = server.client3();
    for mode in ["ON BCAST", "ON"] {
        client.expect(&format!("CLIENT TRACKING {mode}"), "+OK");
        client.expect(
            "CLIENT CACHING YES",
            "-ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
        );
        client.expect(
            "CLIENT CACHING NO",
            "-ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
        );
        client.expect("CLIENT CACHING maybe", "-ERR syntax error");
        client.expect("CLIENT TRACKING OFF", "+OK");
    }
    let none = "-ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled";
    client.expect("CLIENT CACHING YES", none);
}
