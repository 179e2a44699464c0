//! Clients that wait for keys: very many of them, and for very many keys.

use crate::support::{Client, Server, encode, encode_line, foreign};
use crate::waits::until;

fn await_blocked(control: &mut Client, count: usize) {
    until("they are blocked", || {
        control.call("INFO clients").contains(&format!("blocked_clients:{count}\\r"))
    });
}

fn words(parts: &[&str], keys: usize, rest: &[&str]) -> Vec<u8> {
    let keys: Vec<String> = (0..keys).map(|i| format!("k{i}")).collect();
    let all = parts.iter().copied().chain(keys.iter().map(String::as_str)).chain(rest.iter().copied());
    encode(&all.map(str::as_bytes).collect::<Vec<_>>())
}

#[test]
fn those_who_waited_longest_are_served_however_many_they_are() {
    let server = Server::start();
    let mut control = server.client();
    // More clients than are served in one go.
    let mut waiters: Vec<Client> = Vec::new();
    for i in 0..120 {
        let mut client = server.client();
        // A wrong type: these get nothing.
        client.send(encode_line(if i % 10 == 3 { "BZPOPMIN jobs 0" } else { "BLPOP jobs 0" }));
        waiters.push(client);
        await_blocked(&mut control, i + 1);
    }
    let values: Vec<String> = (0..70).map(|i| format!("v{i}")).collect();
    let push: Vec<&[u8]> =
        [&b"RPUSH"[..], b"jobs"].into_iter().chain(values.iter().map(|value| value.as_bytes())).collect();
    control.send(encode(&push));
    control.expect_reply(":70");
    let (lists, mut zsets): (Vec<_>, Vec<_>) =
        waiters.into_iter().enumerate().partition(|(i, _)| i % 10 != 3);
    let mut lists = lists.into_iter().map(|(_, client)| client);
    for value in &values {
        let mut client = lists.next().expect("a waiter");
        client.expect_reply(&format!("[\"jobs\", \"{value}\"]"));
    }
    await_blocked(&mut control, 50);
    control.expect("EXISTS jobs", ":0");
    control.expect("ZADD jobs 1 a 2 b", ":2");
    for (score, member) in [(1, "a"), (2, "b")] {
        zsets.remove(0).1.expect_reply(&format!("[\"jobs\", \"{member}\", \"{score}\"]"));
    }
    // One after the other, and those behind the clients that left.
    drop(lists.next());
    await_blocked(&mut control, 47);
    for i in 0..5 {
        control.expect(&format!("LPUSH jobs w{i}"), ":1");
        lists.next().expect("a waiter").expect_reply(&format!("[\"jobs\", \"w{i}\"]"));
    }
    control.expect("EXISTS jobs", ":0");
    drop((lists, zsets));
    await_blocked(&mut control, 0);
}

#[test]
fn a_client_waits_for_very_many_keys() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut control = server.client();
    let (list, zset) = ("RPUSH k999 v w", "ZADD k999 1 v 2 w");
    for (request, fill, reply) in [
        (words(&["BLPOP"], 1000, &["0"]), list, "[\"k999\", \"v\"]"),
        (words(&["BRPOP"], 1000, &["0"]), list, "[\"k999\", \"w\"]"),
        (words(&["BZPOPMAX"], 1000, &["0"]), zset, "[\"k999\", \"w\", \"2\"]"),
        (words(&["BLMPOP", "0", "1000"], 1000, &["RIGHT", "COUNT", "2"]), list, "[\"k999\", [\"w\", \"v\"]]"),
        (words(&["BZMPOP", "0", "1000"], 1000, &["MIN"]), zset, "[\"k999\", [[\"v\", \"1\"]]]"),
    ] {
        let mut client = server.client();
        client.send(&request);
        // The client is registered before it looks at its keys a second time.
        until("it is blocked", || control.call("CLIENT LIST").contains(" flags=b "));
        // A key of another type wakes no client.
        control.expect("SET k5 x", "+OK");
        control.expect(fill, ":2");
        client.expect_reply(reply);
        control.expect("FLUSHALL", "+OK");
        // At once, if there is an element.
        control.expect(fill, ":2");
        client.send(&request);
        client.expect_reply(reply);
        control.expect("FLUSHALL", "+OK");
    }
    let refusal = "-ERR a command that waits may name 1000 keys at most, and no very long ones";
    control.send(words(&["BLPOP"], 1010, &["0"]));
    control.expect_reply(refusal);
    control.send(encode(&[b"BLPOP", &vec![b'x'; 1 << 20], b"0"]));
    control.expect_reply(refusal);
    control.expect("MULTI", "+OK");
    control.send(words(&["BLPOP"], 1010, &["0"]));
    control.expect_reply("+QUEUED");
    control.expect("EXEC", "[(nil array)]");
}

#[test]
fn who_waits_for_what_comes_with_an_exchange_of_databases_is_served_however_many_they_are() {
    let server = Server::start();
    let (mut control, mut other) = (server.client(), server.client());
    // More than are looked at in one go.
    let mut waiters: Vec<Client> = Vec::new();
    for i in 0..100 {
        let mut client = server.client();
        client.send(encode_line(&format!("BLPOP jobs:{i} 0")));
        waiters.push(client);
    }
    await_blocked(&mut control, 100);
    other.expect("SELECT 1", "+OK");
    // One key has another type, one has more elements, and one client waits for a key that neither database
    // has.
    other.expect("SADD jobs:7 m", ":1");
    (0..99).filter(|i| *i != 7).for_each(|i| other.expect(&format!("RPUSH jobs:{i} v{i}"), ":1"));
    other.expect("RPUSH jobs:8 more", ":2");
    // A second exchange while the first is still being handled, and a third that brings everything back.
    control.send("SWAPDB 0 1\r\nSWAPDB 1 2\r\nSWAPDB 2 1\r\n");
    (0..3).for_each(|_| control.expect_reply("+OK"));
    for (i, client) in waiters.iter_mut().enumerate().filter(|(i, _)| *i != 7 && *i != 99) {
        client.expect_reply(&format!("[\"jobs:{i}\", \"v{i}\"]"));
    }
    await_blocked(&mut control, 2);
    control.expect("DBSIZE", ":2");
    control.expect("LRANGE jobs:8 0 -1", "[\"more\"]");
    control.expect("DEL jobs:7", ":1");
    control.expect("RPUSH jobs:7 a", ":1");
    control.expect("RPUSH jobs:99 b", ":1");
    waiters[7].expect_reply("[\"jobs:7\", \"a\"]");
    waiters[99].expect_reply("[\"jobs:99\", \"b\"]");
}

/// The end of a client is noticed although it has sent so much behind its wait that no more is read. Its
/// elements go to the living.
#[test]
fn who_goes_with_much_sent_behind_his_wait_waits_no_more() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut control = server.client();
    // It may also leave before it comes to wait.
    for before in [0, 3_000] {
        let mut waiter = server.client();
        waiter.send(encode_line("PING").repeat(before));
        waiter.send(encode_line("BLPOP nosuch 0"));
        if before == 0 {
            await_blocked(&mut control, 1);
        }
        // No more than the system takes over: the end comes behind it.
        waiter.send(encode_line("PING").repeat(10_500));
        waiter.end_sending();
        until("he is gone", || control.call("INFO clients").contains("connected_clients:1\\r"));
        control.expect("RPUSH nosuch a", ":1");
        control.expect("LLEN nosuch", ":1");
        control.expect("DEL nosuch", ":1");
    }
}

/// Replies from before such a wait reach a client that still reads.
#[test]
fn who_says_that_nothing_more_comes_hears_what_was_answered_before_his_wait() {
    let server = Server::start();
    for before in [1, 500] {
        let mut client = server.client();
        client.send([encode_line("ECHO last").repeat(before), encode_line("BLPOP nosuch 0")].concat());
        client.end_sending();
        (0..before).for_each(|_| client.expect_reply("\"last\""));
        client.expect_reply("(closed)");
    }
}

/// A client registered for half of its keys is served, unblocked or removed as if it had them all, and leaves
/// nothing behind.
#[test]
fn who_is_not_registered_for_all_its_keys_yet_may_be_served_or_leave() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut control = server.client();
    let blpop = words(&["BLPOP"], 1000, &["0"]);
    let held = |control: &mut Client| {
        control.expect("DEBUG POINT register HOLD 1", "+OK");
        let mut client = server.client();
        let id = client.call("CLIENT ID");
        client.send(&blpop);
        until("half of it is there", || control.call("DEBUG POINT register") == ":1");
        await_blocked(control, 1);
        (client, id)
    };
    let nobody_waits = |control: &mut Client| {
        control.expect("DEBUG POINT register OFF", "+OK");
        await_blocked(control, 0);
        for key in [0, 1, 499, 998, 999] {
            control.expect(&format!("RPUSH k{key} x"), ":1");
        }
        control.expect("DBSIZE", ":5");
        control.expect("FLUSHALL", "+OK");
    };
    // A key it is registered for.
    let (mut client, _) = held(&mut control);
    control.expect("RPUSH k3 v", ":1");
    client.expect_reply("[\"k3\", \"v\"]");
    nobody_waits(&mut control);
    // It waits for the same again while it is taken off.
    client.send(&blpop);
    await_blocked(&mut control, 1);
    control.expect("RPUSH k998 w", ":1");
    client.expect_reply("[\"k998\", \"w\"]");
    nobody_waits(&mut control);
    // A key it is not registered for yet: it looks once more when it is.
    let (mut client, _) = held(&mut control);
    control.expect("RPUSH k999 v", ":1");
    control.expect("LLEN k999", ":1");
    control.expect("DEBUG POINT register OFF", "+OK");
    client.expect_reply("[\"k999\", \"v\"]");
    nobody_waits(&mut control);
    let (mut client, id) = held(&mut control);
    control.expect(&format!("CLIENT UNBLOCK {}", id.trim_start_matches(':')), ":1");
    client.expect_reply("(nil array)");
    nobody_waits(&mut control);
    let (client, _) = held(&mut control);
    drop(client);
    await_blocked(&mut control, 0);
    nobody_waits(&mut control);
}

/// Many clients come, wait for many keys, are served or unblocked, and come again. Every element goes to one
/// of them.
#[test]
fn no_element_is_lost_among_those_who_wait_for_many_keys() {
    const CLIENTS: usize = 6;
    const ELEMENTS: usize = 1500;
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut control = server.client();
    let (ids, taken) = (std::sync::Mutex::new(Vec::new()), std::sync::atomic::AtomicUsize::new(0));
    let taker = |n: usize| {
        let mut client = server.client();
        ids.lock().unwrap().push(client.call("CLIENT ID").trim_start_matches(':').to_owned());
        let (mut mine, mut round) = (Vec::new(), n);
        loop {
            round += 1;
            // Few, some or many of the keys, from some key on.
            let keys: Vec<String> =
                (0..[3, 40, 300][round % 3]).map(|i| format!("k{}", (round * 37 + i) % 300)).collect();
            let all = ["BLPOP"].into_iter().chain(keys.iter().map(String::as_str)).chain(["end", "0"]);
            client.send(encode(&all.map(str::as_bytes).collect::<Vec<_>>()));
            let reply = client.reply();
            if reply.contains("\"end\"") {
                return mine;
            }
            if reply != "(nil array)" {
                taken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                mine.push(reply.split('"').nth(3).expect("a key and an element").to_owned());
            }
        }
    };
    let mut got: Vec<String> = std::thread::scope(|scope| {
        let taker = &taker;
        let takers: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || taker(n))).collect();
        until("all are there", || ids.lock().unwrap().len() == CLIENTS);
        let ids = ids.lock().unwrap().clone();
        for i in 0..ELEMENTS {
            control.call(&format!("LPUSH k{} e{i}", i * 71 % 300));
            if i % 7 == 0 {
                control.call(&format!("CLIENT UNBLOCK {}", ids[i % CLIENTS]));
            }
        }
        let mut left = server.client();
        until("all elements are taken", || {
            // A client that waits for few keys may wait for others than are left.
            ids.iter().for_each(|id| drop(left.call(&format!("CLIENT UNBLOCK {id}"))));
            taken.load(std::sync::atomic::Ordering::Relaxed) == ELEMENTS
        });
        (0..CLIENTS).for_each(|_| drop(control.call("LPUSH end x")));
        takers.into_iter().flat_map(|taker| taker.join().expect("it ends")).collect()
    });
    got.sort_unstable();
    let mut expected: Vec<String> = (0..ELEMENTS).map(|i| format!("e{i}")).collect();
    expected.sort_unstable();
    assert_eq!(got, expected);
    control.expect("DBSIZE", ":0");
    await_blocked(&mut control, 0);
}

/// The removal of a stream that belongs to no command ends the wait with a group of it.
#[test]
fn a_group_that_expired_or_was_evicted_is_told_to_its_waiters() {
    let server = Server::start();
    let (mut waiting, mut other) = (server.client(), server.client());
    let mut begin = |stream: &str| {
        let mut client = server.client();
        client.expect(&format!("XGROUP CREATE {stream} g $ MKSTREAM"), "+OK");
        client.send(encode_line(&format!("XREADGROUP GROUP g c BLOCK 0 STREAMS {stream} >")));
        until("it waits", || other.call("INFO clients").contains("blocked_clients:1"));
        client
    };
    let gone = |client: &mut Client| {
        let reply = client.reply();
        assert!(reply.starts_with("-NOGROUP"), "{reply}");
    };
    let mut client = begin("deleted");
    waiting.expect("DEL deleted", ":1");
    gone(&mut client);
    let mut client = begin("swept");
    waiting.expect("PEXPIRE swept 1", ":1");
    gone(&mut client);
    let mut client = begin("read");
    waiting.expect("DEBUG SET-ACTIVE-EXPIRE 0", "+OK");
    waiting.expect("PEXPIRE read 1", ":1");
    until("it is read as gone", || waiting.call("EXISTS read") == ":0");
    gone(&mut client);
    waiting.expect("DEBUG SET-ACTIVE-EXPIRE 1", "+OK");
    let mut client = begin("script");
    waiting.expect("PEXPIRE script 100000", ":1");
    waiting.expect(
        "EVAL \"redis.call('PEXPIREAT', KEYS[1], 1) return redis.call('EXISTS', KEYS[1])\" 1 script",
        ":0",
    );
    gone(&mut client);
    if foreign() {
        return;
    }
    let mut client = begin("evicted");
    waiting.expect("CONFIG SET maxmemory-policy allkeys-random maxmemory 1", "+OK");
    waiting.call("SET more v");
    gone(&mut client);
}
