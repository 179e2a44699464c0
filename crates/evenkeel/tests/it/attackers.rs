//! Every attacker that `no_wait.rs` does not hold is held where it is, and all others are served.
//!
//! A command that is never long (COPY, LSET, LTRIM, SETBIT at any offset …) cannot be held: its own loop does
//! it, and answers at once however large the value is.

use crate::held::{Hold, MANY, eval, eventually, held, held_while, lade, laden, others_are_served};
use crate::support::{Client, PATIENCE, Server, encode, encode_line, foreign};
use crate::waits::until;
use std::time::Instant;

/// The points at which a long commit is held.
const COMMIT: [&str; 2] = ["commit-place", "commit-fold"];

fn words(command: &str, words: impl Iterator<Item = String>) -> Vec<u8> {
    let words: Vec<String> = command.split(' ').map(str::to_owned).chain(words).collect();
    encode(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
}

#[test]
fn long_algebra_and_sorting() {
    let Some(server) = laden() else { return };
    for point in ["job-start", "job-end"] {
        assert!(held(&server, point, "SUNION big other").contains("\"m1\""));
        assert!(held(&server, point, "SINTERSTORE into big other").starts_with(':'));
        assert!(held(&server, point, "ZINTERSTORE into 2 zset zother").starts_with(':'));
        assert!(held(&server, point, "SORT list BY key:* GET # GET key:* ALPHA LIMIT 0 2").starts_with('['));
        let stored = held(&server, point, "SORT big BY key:* GET key:* ALPHA STORE into");
        assert_eq!(stored, format!(":{MANY}"));
    }
}

#[test]
fn long_searches_in_lists() {
    let Some(server) = laden() else { return };
    let middle = format!("e{}", MANY / 2);
    let mut client = server.client();
    client.expect("COPY list long", ":1");
    for point in ["job-start", "job-end"] {
        assert_eq!(held(&server, point, &format!("LPOS long {middle}")), format!(":{}", MANY / 2));
        assert_eq!(
            held(&server, point, &format!("LINSERT long BEFORE {middle} x")),
            format!(":{}", MANY + 1)
        );
        assert_eq!(held(&server, point, "LREM long 0 x"), ":1");
    }
}

#[test]
fn long_strings() {
    let Some(server) = laden() else { return };
    let mut client = server.client();
    client.expect("SETBIT wide 33554431 1", ":0");
    client.expect("SET text x", "+OK");
    // Missing values cost nothing, so there must be some.
    client.expect("BITOP NOT dense wide", ":4194304");
    for point in ["job-start", "job-end"] {
        assert_eq!(held(&server, point, "BITCOUNT dense"), ":33554431");
        assert_eq!(held(&server, point, "BITPOS dense 0"), ":33554431");
        assert_eq!(held(&server, point, "BITOP NOT into dense"), ":4194304");
        assert!(held(&server, point, "LCS text dense LEN").starts_with(':'));
    }
    assert_eq!(held(&server, "stream", "GETRANGE dense 0 -2").len(), 2 + 4 * ((4 << 20) - 1));
}

#[test]
fn very_many_arguments() {
    let Some(server) = laden() else { return };
    let mut client = server.client();
    let many = 2_000;
    for (command, each, done) in [
        ("SADD new", 1, format!(":{many}")),
        ("RPUSH new", 1, format!(":{many}")),
        ("HSET new", 2, format!(":{many}")),
        ("ZADD new", 2, format!(":{many}")),
    ] {
        let request = words(command, (0..many * each).map(|i| i.to_string()));
        for point in ["job-start", "job-end"] {
            let reply = held_while(&server, point, server.client(), &request, || others_are_served(&server));
            assert_eq!(reply, done, "{command}");
            client.expect("DEL new", ":1");
        }
    }
}

/// While half of a commit is placed it is visible to no client; while half of it is folded all of it is
/// visible to all.
#[test]
fn very_many_keys_at_once() {
    let Some(server) = laden() else { return };
    let keys = 3_000;
    let set = |to: &str| words("MSET", (0..keys).flat_map(|i| [format!("new:{i}"), to.to_owned()]));
    let del = words("DEL", (0..keys).map(|i| format!("new:{i}")));
    let some: Vec<String> = (0..40).map(|i| format!("new:{}", i * 70)).collect();
    let show = |seen: &str| {
        let mut client = server.client();
        let all = client.call(&format!("MGET {}", some.join(" ")));
        assert_eq!(all, format!("[{}]", vec![seen; some.len()].join(", ")));
        client.expect(
            "EVAL \"return redis.call('GET', KEYS[1])\" 1 new:70",
            if seen == "(nil)" { "(nil)" } else { seen },
        );
    };
    let cases = [
        (set("1"), "+OK", "(nil)", "\"1\""),
        (set("2"), "+OK", "\"1\"", "\"2\""),
        (del, ":3000", "\"2\"", "(nil)"),
    ];
    for (request, done, before, after) in &cases {
        let reply = held_while(&server, "commit-place", server.client(), request, || {
            others_are_served(&server);
            show(before);
        });
        assert_eq!(&reply, done);
        show(after);
    }
    for (request, done, _, after) in &cases {
        let reply = held_while(&server, "commit-fold", server.client(), request, || {
            show(after);
            others_are_served(&server);
            show(after);
        });
        assert_eq!(&reply, done);
        show(after);
    }
}

#[test]
fn who_writes_to_a_key_of_a_long_commit_goes_first_and_the_commit_follows() {
    let Some(server) = laden() else { return };
    let request = words("MSET", (0..3_000).flat_map(|i| [format!("key:{i}"), "new".to_owned()]));
    let mut client = server.client();
    let reply = held_while(&server, "commit-place", server.client(), &request, || {
        for i in 0..50 {
            client.expect(&format!("SET key:{} other", i * 60), "+OK");
            client.expect(&format!("APPEND key:{} s", i * 60), ":6");
        }
    });
    assert_eq!(reply, "+OK");
    client.expect("MGET key:0 key:60 key:2999", "[\"new\", \"new\", \"new\"]");
    let reply = held_while(&server, "commit-fold", server.client(), &request, || {
        for i in 0..50 {
            client.expect(&format!("APPEND key:{} s", i * 60), ":4");
        }
    });
    assert_eq!(reply, "+OK");
    client.expect("MGET key:0 key:1 key:2940", "[\"news\", \"new\", \"news\"]");
}

/// Reads the size of a value. A thread makes the payload, and it is sent as it is taken.
#[test]
fn the_payload_of_a_long_list() {
    let Some(server) = laden() else { return };
    for point in ["job-start", "job-end", "stream"] {
        let mut hold = Hold::first_at(&server, point);
        let mut attacker = server.client();
        attacker.send("DUMP list\r\n");
        hold.await_victim();
        others_are_served(&server);
        hold.release();
        attacker.skip("$".len());
    }
}

/// A change that only takes a path through a value is done by its loop, with a bounded part of the budget. It
/// goes to no thread.
#[test]
fn changes_within_large_values_go_to_no_thread() {
    if foreign() {
        return;
    }
    let server = lade(Server::start());
    let mut client = server.client();
    client.expect("SETRANGE long 30000000 x", ":30000001");
    let mut hold = Hold::some_at(&server, "job-start", 100);
    for (line, reply) in [
        ("COPY list other-list", ":1"),
        ("COPY big other-set", ":1"),
        ("LSET list 10000 x", "+OK"),
        ("LINDEX list 9999", "\"e9999\""),
        ("LTRIM list 100 -100", "+OK"),
        ("SETBIT bits 4000000000 1", ":0"),
        ("APPEND long tail", ":30000005"),
        ("SETRANGE long 15000000 middle", ":30000005"),
        ("GETRANGE long 15000000 15000005", "\"middle\""),
        ("RENAME other-list list", "+OK"),
    ] {
        client.expect(line, reply);
    }
    hold.await_victims(0);
}

/// The decision of a long commit counts for all, even before it is in the tables: EXEC finds its watched keys
/// touched, whichever way it runs.
#[test]
fn watched_keys_are_touched_by_a_commit_that_is_decided() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut control = server.client();
    let reads: String = (0..500).map(|i| format!("GET r:{i}\r\n")).collect();
    let writes: String = (0..500).map(|i| format!("INCR r:{i}\r\n")).collect();
    let ways = [
        ("short", "SET mine 1\r\n", 1, 1),
        ("with a script", "SET mine 1\r\nEVAL \"return 1\" 0\r\n", 2, 1),
        (
            "with a long script",
            "EVAL \"for i = 1, 1e6 do end return redis.call('SET', 'mine', 1)\" 0\r\n",
            1,
            1,
        ),
        ("long", writes.as_str(), 500, 1),
        ("long, reads only", reads.as_str(), 500, 1),
        ("much watched", "SET mine 1\r\n", 1, 450),
    ];
    let others = || (0..1_500).flat_map(|i| [format!("other:{i}"), i.to_string()]);
    for (way, queue, commands, watched) in ways {
        // Some of the keys are in shards that are folded late.
        for k in 0..4 {
            let keys: Vec<String> = (0..watched).map(|i| format!("w{k}:{i}")).collect();
            let mut watcher = server.client();
            control.send(words("MSET", keys.iter().flat_map(|key| [key.clone(), "old".into()])));
            control.expect_reply("+OK");
            watcher.expect(&format!("WATCH {}", keys.join(" ")), "+OK");
            let last = keys.last().into_iter().flat_map(|key| [key.clone(), "new".into()]);
            let reply = held_while(
                &server,
                "commit-fold",
                server.client(),
                &words("MSET", others().chain(last)),
                || {
                    watcher.send(format!("MULTI\r\n{queue}EXEC\r\n"));
                    watcher.expect_reply("+OK");
                    (0..commands).for_each(|_| watcher.expect_reply("+QUEUED"));
                    watcher.expect_reply("(nil array)");
                },
            );
            assert_eq!(reply, "+OK");
            assert_eq!(control.call("EXISTS mine"), ":0", "{way}");
        }
    }
}

/// RANDOMKEY returns an existing key: none that a decided commit removed, and perhaps one that it made, in
/// the tables or not.
#[test]
fn a_random_key_is_one_that_is_there_while_a_commit_is_under_way() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    let (make, remove) = (
        words("MSET", (0..1_500).flat_map(|i| [format!("k:{i}"), i.to_string()])),
        words("DEL", (0..1_500).map(|i| format!("k:{i}"))),
    );
    for (point, there) in [("commit-place", false), ("commit-fold", true)] {
        let reply = held_while(&server, point, server.client(), &make, || {
            (0..50).for_each(|_| assert_eq!(client.call("RANDOMKEY") != "(nil)", there, "at {point}"));
        });
        assert_eq!(reply, "+OK");
        let reply = held_while(&server, point, server.client(), &remove, || {
            (0..50).for_each(|_| assert_eq!(client.call("RANDOMKEY") == "(nil)", there, "at {point}"));
        });
        assert_eq!(reply, ":1500");
    }
}

#[test]
fn long_transactions_while_they_run_and_are_committed() {
    let Some(server) = laden() else { return };
    for (form, points) in [
        ("SET t:{i} {i}", &COMMIT[..]),
        ("INCR t:{i}", &["job-start", "job-end", "commit-place", "commit-fold"]),
    ] {
        for &point in points {
            let mut attacker = server.client();
            attacker.expect("MULTI", "+OK");
            let queue: String = (0..1_500).map(|i| form.replace("{i}", &i.to_string()) + "\r\n").collect();
            attacker.send(queue);
            attacker.skip("+QUEUED\r\n".len() * 1_500);
            let reply = held_while(&server, point, attacker, b"EXEC\r\n", || {
                let mut client = server.client();
                let seen = client.call("EXISTS t:0 t:500 t:1000 t:1499");
                assert_eq!(seen, if point == "commit-fold" { ":4" } else { ":0" });
                others_are_served(&server);
            });
            assert_eq!(reply.matches(", ").count(), 1_499, "{form} at {point}");
            let mut client = server.client();
            client.send(words("DEL", (0..1_500).map(|i| format!("t:{i}"))));
            client.expect_reply(":1500");
        }
    }
}

/// Removes the members of a list of victims from a set, one by one.
const BLACKLIST: &str = "local n = 0 for _, m in ipairs(redis.call('SMEMBERS', 'victims')) do if \
     redis.call('SISMEMBER', 'other', m) == 1 then n = n + redis.call('SREM', 'victims', m) end end return n";

#[test]
fn scripts_that_read_and_write_very_many_keys() {
    let Some(server) = laden() else { return };
    let mut client = server.client();
    let reads =
        "local n = 0 for i = 1, 20000 do n = n + redis.call('EXISTS', 'key:' .. i % 7000) end return n";
    let writes =
        "for i = 1, 3000 do redis.call('SET', 'made:' .. i, i) end return redis.call('GET', 'made:7')";
    for point in ["script-start", "script-step", "script-end"] {
        client.expect("COPY big victims", ":1");
        assert_eq!(held(&server, point, &eval(BLACKLIST)), format!(":{}", MANY / 2));
        client.expect("SCARD victims", &format!(":{}", MANY / 2));
        client.expect("DEL victims", ":1");
        assert_eq!(held(&server, point, &eval(reads)), ":20000");
    }
    for point in ["script-step", "script-end", "commit-place", "commit-fold"] {
        let reply = held_while(&server, point, server.client(), &encode_line(&eval(writes)), || {
            others_are_served(&server);
            let seen = server.client().call("EXISTS made:1 made:1500 made:3000");
            assert_eq!(seen, if point == "commit-fold" { ":3" } else { ":0" }, "at {point}");
        });
        assert_eq!(reply, "\"7\"");
        client.send(words("DEL", (1..=3_000).map(|i| format!("made:{i}"))));
        client.expect_reply(":3000");
    }
}

/// FLUSHDB and very many keys, in one script or transaction: no client sees the database empty or partly
/// filled.
#[test]
fn what_empties_a_database_and_fills_it_again() {
    let Some(server) = laden() else { return };
    let script = "redis.call('FLUSHDB') for i = 1, 3000 do redis.call('SET', 'made:' .. i, i) end return redis.call('DBSIZE')";
    let queue: String = (1..=3_000).map(|i| format!("SET made:{i} {i}\r\n")).collect();
    let mut watcher = server.client();
    watcher.expect("SELECT 1", "+OK");
    for (transaction, point, flushed_again) in [
        (false, "script-end", false),
        (false, "commit-place", false),
        (false, "commit-fold", false),
        (false, "commit-fold", true),
        (true, "commit-place", false),
        (true, "commit-fold", false),
        (true, "commit-fold", true),
    ] {
        let mut attacker = server.client();
        attacker.expect("SELECT 1", "+OK");
        attacker.expect("FLUSHDB", "+OK");
        attacker.expect("MSET old x made:2 before", "+OK");
        let request = match transaction {
            true => {
                attacker.expect("MULTI", "+OK");
                attacker.expect("FLUSHDB", "+QUEUED");
                attacker.send(&queue);
                attacker.skip("+QUEUED\r\n".len() * 3_000);
                attacker.expect("DBSIZE", "+QUEUED");
                b"EXEC\r\n".to_vec()
            }
            false => encode_line(&eval(script)),
        };
        watcher.expect("WATCH old", "+OK");
        let decided = point == "commit-fold";
        let reply = held_while(&server, point, attacker, &request, || {
            others_are_served(&server);
            let mut other = server.client();
            other.expect("SELECT 1", "+OK");
            other.expect("GET made:2", if decided { "\"2\"" } else { "\"before\"" });
            other.expect("EXISTS old made:1 made:1500 made:3000", if decided { ":3" } else { ":1" });
            if decided {
                other.expect("APPEND made:1 s", ":2");
                other.expect("SET old again", "+OK");
            }
            if flushed_again {
                other.expect("FLUSHDB", "+OK");
                other.expect("SET made:3 other", "+OK");
            }
        });
        let (counted, kind) = (":3000", if transaction { "transaction" } else { "script" });
        assert!(
            reply.ends_with(counted) || reply.ends_with(&format!("{counted}]")),
            "{kind} at {point}: {reply}"
        );
        watcher.expect("MULTI", "+OK");
        watcher.expect("DBSIZE", "+QUEUED");
        watcher.expect("EXEC", "(nil array)");
        match (decided, flushed_again) {
            (_, true) => {
                watcher.expect("MGET made:1 made:3 old", "[(nil), \"other\", (nil)]");
                watcher.expect("DBSIZE", ":1");
            }
            (true, _) => {
                watcher.expect("MGET made:1 made:3000 old", "[\"1s\", \"3000\", \"again\"]");
                watcher.expect("DBSIZE", ":3001");
            }
            (false, _) => {
                watcher.expect("MGET made:1 made:3000 old", "[\"1\", \"3000\", (nil)]");
                watcher.expect("DBSIZE", ":3000");
            }
        }
    }
}

/// SWAPDB behind very many keys, in one script or transaction: no client sees one without the other. If
/// others swap or empty databases, the rest of the writes follows its database.
#[test]
fn what_writes_very_much_and_exchanges_databases() {
    let Some(server) = laden() else { return };
    let script = "redis.call('RPUSH', 'queue', 'e') for i = 1, 3000 do redis.call('SET', 'made:' .. i, i) end \
                  redis.call('SWAPDB', 1, 2) redis.call('SET', 'here', 'y') return redis.call('DBSIZE')";
    let queue: String = (1..=3_000).map(|i| format!("SET made:{i} {i}\r\n")).collect();
    let mut clients: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for (db, client) in clients.iter_mut().enumerate() {
        client.expect(&format!("SELECT {db}"), "+OK");
    }
    for (transaction, point, again, place) in [
        (false, "script-end", "PING", 2),
        (false, "commit-place", "PING", 2),
        (false, "commit-fold", "PING", 2),
        (false, "commit-fold", "SWAPDB 1 2", 1),
        (true, "commit-place", "PING", 2),
        (true, "commit-fold", "PING", 2),
        (true, "commit-fold", "SWAPDB 3 2", 3),
        (true, "commit-fold", "FLUSHDB", 0),
    ] {
        (1..4).for_each(|db| clients[db].expect("FLUSHDB", "+OK"));
        clients[1].expect("SET made:2 before", "+OK");
        clients[2].expect("SET there x", "+OK");
        let (mut attacker, mut waiter) = (server.client(), server.client());
        attacker.expect("SELECT 1", "+OK");
        waiter.expect("SELECT 2", "+OK");
        waiter.send("BLPOP queue 0\r\n");
        until("it waits", || clients[0].call("INFO clients").contains("blocked_clients:1\\r"));
        let request = match transaction {
            true => {
                attacker.expect("MULTI", "+OK");
                attacker.expect("RPUSH queue e", "+QUEUED");
                attacker.send(&queue);
                attacker.skip("+QUEUED\r\n".len() * 3_000);
                ["SWAPDB 1 2", "SET here y", "DBSIZE"]
                    .iter()
                    .for_each(|line| attacker.expect(line, "+QUEUED"));
                b"EXEC\r\n".to_vec()
            }
            false => encode_line(&eval(script)),
        };
        let decided = point == "commit-fold";
        let reply = held_while(&server, point, attacker, &request, || {
            others_are_served(&server);
            if decided {
                waiter.expect_reply("[\"queue\", \"e\"]");
                clients[1].expect("EXISTS there here made:2", ":2");
                clients[2].expect("EXISTS there made:1 made:1500 made:3000", ":3");
                clients[2].expect("APPEND made:1 s", ":2");
            } else {
                clients[1].expect("GET made:2", "\"before\"");
                clients[2].expect("EXISTS there made:1 made:1500 made:3000", ":1");
            }
            assert!(!clients[2].call(again).starts_with('-'));
        });
        assert!(reply.ends_with(":2") || reply.ends_with(":2]"), "{transaction} at {point}: {reply}");
        if !decided {
            waiter.expect_reply("[\"queue\", \"e\"]");
        }
        for (db, client) in clients.iter_mut().enumerate().skip(1) {
            let there = if db == place { 3_000 } else { 0 };
            let other =
                if (db == 1 && again != "SWAPDB 1 2") || (db == 2 && again == "SWAPDB 1 2") { 2 } else { 0 };
            client.expect("DBSIZE", &format!(":{}", there + other));
            if there > 0 {
                client.expect("GET made:1", if decided { "\"1s\"" } else { "\"1\"" });
            }
        }
    }
}

#[test]
fn very_many_keys_that_expire_at_the_same_time() {
    let Some(server) = laden() else { return };
    let mut client = server.client();
    let mut hold = Hold::first_at(&server, "sweep");
    hold.await_victim();
    client.send(words("DEL", (0..5_000).map(|i| format!("key:{}", 8_000 + i))));
    client.expect_reply(":5000");
    let sets: String = (0..5_000).map(|i| format!("SET soon:{i} {i} PX 1\r\n")).collect();
    client.send(&sets);
    client.skip("+OK\r\n".len() * 5_000);
    client.expect("PEXPIRE hash 1", ":1");
    // Expired keys are gone for all clients, although all of them are still to be removed.
    eventually(&mut client, "EXISTS soon:1 soon:4999 hash", ":0");
    let keys: usize = client.call("DBSIZE")[1..].parse().expect("a number");
    assert!(keys > MANY - 5_000 + 4_000, "{keys} keys");
    client.expect("HSET hash f0 v0 f1 v1", ":2");
    others_are_served(&server);
    client.expect("SET soon:1 again", "+OK");
    hold.release();
    eventually(&mut client, "DBSIZE", &format!(":{}", MANY - 5_000 + 7));
    client.expect("GET soon:1", "\"again\"");
}

#[test]
fn freeing_what_expires_and_what_a_flush_leaves() {
    for line in ["PEXPIRE big 1", "FLUSHDB", "FLUSHDB ASYNC", "FLUSHDB SYNC", "COPY list big REPLACE"] {
        let Some(server) = laden() else { return };
        let mut hold = Hold::first_at(&server, "reclaim");
        let mut client = server.client();
        let reply = client.call(line);
        assert!(!reply.starts_with('-'), "{line} was answered {reply}");
        hold.await_victim();
        client.expect("SET a 1", "+OK");
        client.expect("INCR a", ":2");
        client.expect("SADD set a b c", ":3");
        client.expect(&eval("return redis.call('GET', 'a')"), "\"2\"");
        client.expect("DEL a set", ":2");
        hold.release();
        let deadline = Instant::now() + PATIENCE;
        while !client.call("INFO memory").contains("lazyfree_pending_objects:0") {
            assert!(Instant::now() < deadline, "garbage stays after {line}");
        }
    }
}

#[test]
fn looking_at_very_many_clients() {
    let Some(server) = laden() else { return };
    let mut crowd: Vec<Client> = (0..300).map(|_| server.client()).collect();
    crowd.iter_mut().for_each(|client| client.expect("PING", "+PONG"));
    assert!(held(&server, "stream", "CLIENT LIST").matches("cmd=ping").count() >= 300);
    let mut attacker = server.client();
    attacker.send("INFO everything\r\n".repeat(50));
    others_are_served(&server);
    (0..50).for_each(|_| assert!(attacker.reply().contains("connected_clients:30")));
}

#[test]
fn very_many_connections_at_once() {
    let Some(server) = laden() else { return };
    // Connecting waits for no acceptance: connections are in the listener's queue. Later some are served
    // while others arrive.
    let connecting = |server: &Server| (0..500).map(|_| server.client()).collect::<Vec<_>>();
    let mut crowd = connecting(&server);
    crowd.iter_mut().for_each(|client| client.send("PING\r\n"));
    others_are_served(&server);
    crowd.iter_mut().for_each(|client| client.expect_reply("+PONG"));
    drop(crowd);
    others_are_served(&server);
}

/// EXISTS and TOUCH of more keys than a loop looks at in one go.
#[test]
fn very_many_keys_are_counted_as_often_as_they_are_named() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut control = server.client();
    (0..1000).for_each(|i| control.send(format!("SET k{i} v\r\n")));
    (0..1000).for_each(|_| control.expect_reply("+OK"));
    control.expect("PEXPIREAT k7 1", ":1");
    control.expect("DEBUG SET-ACTIVE-EXPIRE 0", "+OK");
    control.expect("SET k8 v PX 1", "+OK");
    until("it has expired", || control.call("EXISTS k8") == ":0");
    let keys: Vec<String> = (0..30_000).map(|i| format!("k{}", i % 3000)).collect();
    for name in ["EXISTS", "TOUCH"] {
        let request: Vec<&[u8]> =
            [name].iter().copied().chain(keys.iter().map(|k| &**k)).map(str::as_bytes).collect();
        for events in ["", "Km"] {
            let set: [&[u8]; 4] = [b"CONFIG", b"SET", b"notify-keyspace-events", events.as_bytes()];
            assert_eq!(control.call_bytes(&set), "+OK");
            control.expect("CONFIG RESETSTAT", "+OK");
            control.request(&request);
            control.expect_reply(":9980");
            let stats = control.call("INFO stats");
            assert!(stats.contains("keyspace_hits:9980\\r"), "{stats}");
            assert!(stats.contains("keyspace_misses:20020\\r"), "{stats}");
        }
    }
}

/// MSETNX of more keys than a loop sets in one go: all or none, beside a client that sets one of them.
#[test]
fn very_many_new_keys_are_set_or_none() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    let pairs =
        |from: usize| words("MSETNX", (from..from + 20_000).flat_map(|i| [format!("k{i}"), "new".into()]));
    let expect = |client: &mut Client, from: usize, reply: &str| {
        client.send(pairs(from));
        client.expect_reply(reply);
    };
    expect(&mut client, 0, ":1");
    client.expect("DBSIZE", ":20000");
    expect(&mut client, 19_999, ":0");
    client.expect("DBSIZE", ":20000");
    client.expect("DEBUG SET-ACTIVE-EXPIRE 0", "+OK");
    client.expect("SET k19999 v PX 1", "+OK");
    // An expired key does not exist.
    until("it has expired", || client.call("GET k19999") == "(nil)");
    expect(&mut client, 19_999, ":1");
    client.expect("DBSIZE", ":39999");
    client.expect("GET k19999", "\"new\"");
    // A key is set while others are covered: before it is covered, or after.
    for point in COMMIT {
        client.expect("FLUSHALL", "+OK");
        other.expect(&format!("DEBUG POINT {point} HOLD 1"), "+OK");
        client.send(pairs(0));
        eventually(&mut other, &format!("DEBUG POINT {point}"), ":1");
        other.expect("SET k77 mine", "+OK");
        other.expect(&format!("DEBUG POINT {point} OFF"), "+OK");
        let decided = point == "commit-fold";
        client.expect_reply(if decided { ":1" } else { ":0" });
        client.expect("GET k77", "\"mine\"");
        client.expect("DBSIZE", if decided { ":20000" } else { ":1" });
    }
    // An odd number of words.
    client.send(words("MSETNX", (0..20_001).map(|i| i.to_string())));
    client.expect_reply("-ERR wrong number of arguments for 'msetnx' command");
}

/// Few members of many bytes each: hashing and comparing them takes long.
#[test]
fn algebra_of_long_members() {
    let Some(server) = laden() else { return };
    let mut client = server.client();
    for i in 0..150 {
        let member = format!("{}{i:03}", "x".repeat(30_000));
        assert_eq!(client.call_bytes(&[b"SADD", b"longs", member.as_bytes()]), ":1");
        if i > 0 {
            assert_eq!(client.call_bytes(&[b"SADD", b"other_longs", member.as_bytes()]), ":1");
        }
    }
    assert!(held(&server, "job-start", "SDIFF longs other_longs").starts_with("[\"xxx"));
    assert_eq!(held(&server, "job-start", "SINTERCARD 2 longs other_longs"), ":149");
    assert_eq!(held(&server, "job-start", "SINTERSTORE into longs other_longs"), ":149");
    assert_eq!(held(&server, "job-start", "SDIFFSTORE into longs other_longs"), ":1");
    assert_eq!(held(&server, "job-start", "SUNIONSTORE into longs other_longs"), ":150");
}
