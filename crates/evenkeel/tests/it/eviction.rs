//! `maxmemory`: which keys go when memory is short, and what is refused when none can go.

use crate::held::Hold;
use crate::support::{Client, PATIENCE, Server, foreign};
use std::time::{Duration, Instant};

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.";
pub const MIB: u64 = 1 << 20;

/// A field of INFO as a number.
fn field(client: &mut Client, name: &str) -> u64 {
    let text = client.call("INFO everything");
    let line = text.split("\\r\\n").find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("no number {name} in {text}"))
}

/// Makes the server name functions it was stalled in. The first time it learns where all functions are, which
/// takes a megabyte or two for good; on a busy machine this could happen at any moment.
fn let_it_learn_names(client: &mut Client) {
    client.expect("DEBUG POINT loop DELAY 20000", "+OK");
    let deadline = Instant::now() + PATIENCE;
    while !client.call("EVENKEEL STALLS").contains("\"in\", [\"") {
        assert!(Instant::now() < deadline, "no stall was seen");
        client.expect("DEBUG STALL", "+OK");
    }
    client.expect("DEBUG POINT loop OFF", "+OK");
}

/// Sets `maxmemory` to what is used now, 9 MiB at least, and `more` bytes. Returns it.
pub fn limit(client: &mut Client, policy: &str, more: u64) -> u64 {
    let_it_learn_names(client);
    let limit = field(client, "used_memory").max(9 * MIB) + more;
    client.expect(&format!("CONFIG SET maxmemory-policy {policy} maxmemory {limit}"), "+OK");
    limit
}

fn set(client: &mut Client, key: usize, value: &[u8], expires: bool) -> String {
    let (key, ttl): (String, &[&[u8]]) =
        (format!("key:{key}"), if expires { &[b"EX", b"1000"] } else { &[] });
    client.call_bytes(&[&[b"SET", key.as_bytes(), value], ttl].concat())
}

/// Waits until no more is used than allowed; some memory is freed a little later.
#[track_caller]
pub fn await_below(client: &mut Client, limit: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let used = field(client, "used_memory");
        // The server knows only a mean of what half-empty pages take.
        if used <= limit + limit / 20 {
            return;
        }
        assert!(Instant::now() < deadline, "{used} bytes are used of {limit}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_policy_keeps_the_limit_and_takes_what_it_may() {
    if foreign() {
        return;
    }
    let names = [
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "volatile-ttl",
    ];
    for policy in names {
        let server = Server::start();
        let mut client = server.client();
        let limit = limit(&mut client, policy, 4 * MIB);
        let volatile = policy.starts_with("volatile");
        // Short values and long ones; those that do not expire would fit twice.
        for i in 0..8000 {
            let (size, lasts) = (if i % 2 == 0 { 100 } else { 3000 }, i % 8 == 0);
            let reply = set(&mut client, i, &vec![b'x'; size], !lasts);
            assert_eq!(reply, "+OK", "{policy}, key {i}");
        }
        await_below(&mut client, limit);
        // The last of the debt may be paid between two questions.
        let deadline = Instant::now() + PATIENCE;
        let (mut left, mut evicted) = (0, 0);
        while left + evicted != 8000 {
            assert!(Instant::now() < deadline, "{policy}: {left} left, {evicted} evicted");
            (left, evicted) = (field_keys(&mut client), field(&mut client, "evicted_keys"));
        }
        assert!(evicted > 1000 && left > 250, "{policy}: {left} left");
        let stayed = (0..1000).filter(|i| client.call(&format!("EXISTS key:{}", 8 * i)) == ":1").count();
        assert_eq!(stayed == 1000, volatile, "{policy}: {stayed} of 1000 keys that do not expire stay");
    }
}

fn field_keys(client: &mut Client) -> u64 {
    client.call("DBSIZE").trim_start_matches(':').parse().unwrap()
}

#[test]
fn what_is_refused_while_nothing_can_be_evicted_is_what_redis_refuses() {
    for mine in [true, false] {
        let server = if mine { Server::start() } else { Server::redis(&[]).unwrap_or_else(Server::start) };
        let (mut a, mut b) = (server.client(), server.client());
        a.expect("MSET a 1 x 1 l 2", "+OK");
        // With volatile policies there is no key to evict either.
        for policy in ["noeviction", "volatile-lru", "volatile-ttl"] {
            let short = format!("CONFIG SET maxmemory 100kb maxmemory-policy {policy}");
            let plenty = "CONFIG SET maxmemory 0";
            b.expect(&short, "+OK");
            a.expect("SET b 2", OOM);
            a.expect("LPUSH list 1", OOM);
            a.expect("APPEND a 1", OOM);
            a.expect("GET a", "\"1\"");
            a.expect("EXPIRE nothing 1000", ":0");
            a.expect("DEL nothing", ":0");
            // Redis queues nothing then, since queued commands take memory; here that is bounded in another
            // way.
            a.expect("MULTI", "+OK");
            a.expect("SET x 2", OOM);
            a.expect("GET a", if mine { "+QUEUED" } else { OOM });
            a.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.");
            // Memory becomes short between the queue and EXEC.
            b.expect(plenty, "+OK");
            a.expect("MULTI", "+OK");
            a.expect("SET x 1", "+QUEUED");
            b.expect(&short, "+OK");
            let oom = "-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.";
            a.expect("EXEC", oom);
            b.expect(plenty, "+OK");
            a.expect("MULTI", "+OK");
            a.expect("GET x", "+QUEUED");
            a.expect("DEL zz", "+QUEUED");
            b.expect(&short, "+OK");
            a.expect("EXEC", "[\"1\", :0]");
            b.expect(plenty, "+OK");
        }
    }
}

#[test]
fn scripts_are_refused_what_redis_refuses_them() {
    for mine in [true, false] {
        let server = if mine { Server::start() } else { Server::redis(&[]).unwrap_or_else(Server::start) };
        let (mut a, mut b) = (server.client(), server.client());
        let code = "#!lua name=f\nlocal set = function(k) return redis.call('set', k[1], 1) end\n\
                    redis.register_function('plain', set)\n\
                    redis.register_function{function_name='bold', callback=set, flags={'allow-oom'}}";
        a.expect("SET a 1", "+OK");
        assert_eq!(a.call_bytes(&[b"FUNCTION", b"LOAD", code.as_bytes()]), "\"f\"");
        b.expect("CONFIG SET maxmemory 100kb", "+OK");
        let mut eval =
            |script: &str, key: &str| a.call_bytes(&[b"EVAL", script.as_bytes(), b"1", key.as_bytes()]);
        let said = eval("return redis.call('set', KEYS[1], 1)", "x");
        assert!(said.starts_with(OOM) && said.contains("script: "), "{said}");
        assert_eq!(eval("return redis.pcall('set', KEYS[1], 1)", "x"), OOM);
        assert_eq!(eval("return redis.call('get', KEYS[1])", "a"), "\"1\"");
        // A script that has written is not stopped half-way.
        assert_eq!(eval("redis.call('del', 'zz') return redis.call('set', KEYS[1], 1)", "x"), "+OK");
        assert_eq!(eval("#!lua\nreturn redis.call('get', KEYS[1])", "a"), OOM);
        assert_eq!(eval("#!lua flags=allow-oom\nreturn redis.call('set', KEYS[1], 1)", "x"), "+OK");
        assert_eq!(eval("#!lua flags=no-writes\nreturn redis.call('get', KEYS[1])", "a"), "\"1\"");
        a.expect("FCALL plain 1 x", OOM);
        a.expect("FCALL bold 1 x", "+OK");
        // In a transaction the queue is checked, and then each script.
        b.expect("CONFIG SET maxmemory 0", "+OK");
        a.expect("MULTI", "+OK");
        a.request(&[b"EVAL", b"return redis.call('set', KEYS[1], 1)", b"1", b"x"]);
        a.expect_reply("+QUEUED");
        b.expect("CONFIG SET maxmemory 100kb", "+OK");
        let said = a.call("EXEC");
        assert!(said.starts_with(&format!("[{OOM} script: ")), "{said}");
    }
}

#[test]
fn frequency_and_idleness_are_told_as_the_name_of_the_policy_says() {
    for mine in [true, false] {
        let server = if mine { Server::start() } else { Server::redis(&[]).unwrap_or_else(Server::start) };
        let mut client = server.client();
        client.expect("SET a 1", "+OK");
        // Whole seconds: a slow machine may need some.
        let idle_s = client.call("OBJECT IDLETIME a");
        assert!(idle_s.strip_prefix(':').is_some_and(|s| s.parse::<u64>().is_ok_and(|s| s < 60)), "{idle_s}");
        let lru = "-ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
                   switching between policies at runtime LRU and LFU data will take some time to adjust.";
        let lfu = "-ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching \
                   between policies at runtime LRU and LFU data will take some time to adjust.";
        client.expect("OBJECT FREQ a", lru);
        client.expect("OBJECT FREQ none", "(nil)");
        client.expect("CONFIG SET maxmemory-policy allkeys-lfu", "+OK");
        client.expect("OBJECT IDLETIME a", lfu);
        client.expect("OBJECT IDLETIME none", "(nil)");
        client.expect("CONFIG SET lfu-decay-time 0", "+OK");
        client.expect("SET fresh text", "+OK");
        client.expect("OBJECT FREQ fresh", ":5");
    }
}

/// EXISTS is no use of a key: checking for it does not keep it.
#[test]
fn to_ask_about_a_key_is_no_use_of_it() {
    let copy: &[u8] =
        b"return redis.call('restore', KEYS[2], 0, redis.call('dump', KEYS[1]), 'REPLACE', 'IDLETIME', 1000)";
    let about = [
        "EXISTS k",
        "TYPE k",
        "TTL k",
        "PEXPIRETIME k",
        "OBJECT ENCODING k",
        "MEMORY USAGE k",
        "SCAN 0",
        "WATCH k",
    ];
    let uses = ["TOUCH k", "STRLEN k", "DUMP k", "SET k v NX", "EXPIRE k 100", "PERSIST k", "COPY k other"];
    for mine in [true, false] {
        let server = if mine { Server::start() } else { Server::redis(&[]).unwrap_or_else(Server::start) };
        let (mut client, mut asking) = (server.client(), server.client());
        client.expect("SET origin v", "+OK");
        client.expect("CONFIG SET maxmemory-policy allkeys-lru maxmemory 1gb", "+OK");
        let mut is_idle_after = |requests: &[&str]| {
            assert_eq!(client.call_bytes(&[b"EVAL", copy, b"2", b"origin", b"k"]), "+OK");
            for request in requests {
                let reply = asking.call(request);
                assert!(!reply.starts_with('-'), "{request}: {reply}");
            }
            client.call("OBJECT IDLETIME k").trim_start_matches(':').parse::<u64>().unwrap() >= 900
        };
        let many = format!("EXISTS k{}", " none".repeat(1000));
        for request in about.iter().copied().chain([&*many]) {
            assert!(is_idle_after(&[request]), "{request}");
        }
        assert!(is_idle_after(&["MULTI", "EXISTS k", "TTL k", "EXEC"]), "in a transaction");
        assert!(is_idle_after(&["WATCH k", "MULTI", "PING", "EXEC"]), "watched");
        for request in uses {
            assert!(!is_idle_after(&[request]), "{request}");
        }
        assert!(!is_idle_after(&["MULTI", "EXISTS k", "GET k", "EXEC"]), "read after it was asked about");
    }
}

#[test]
fn keys_that_are_used_stay() {
    if foreign() {
        return;
    }
    for policy in ["allkeys-lru", "allkeys-lfu"] {
        let server = Server::start();
        let mut client = server.client();
        limit(&mut client, policy, 7 * MIB);
        (0..200).for_each(|i| drop(set(&mut client, i, &[b'x'; 2000], false)));
        for i in 1000..12_000 {
            set(&mut client, i, &[b'x'; 2000], false);
            // A key that is used every 200 insertions in a cache of thousands stays.
            client.expect(&format!("TOUCH key:{}", i % 200), ":1");
        }
        assert!(field(&mut client, "evicted_keys") > 500);
    }
}

#[test]
fn large_values_go_as_small_ones_do() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    let limit = limit(&mut client, "allkeys-lru", 24 * MIB);
    let members: String = (0..20_000).map(|i| format!(" member:{i}")).collect();
    for i in 0..60 {
        let reply = match i % 3 {
            0 => client.call_bytes(&[b"SET", format!("s{i}").as_bytes(), &vec![b'x'; 2 << 20]]),
            1 => client.call(&format!("SADD s{i}{members}")),
            _ => client.call(&format!("RPUSH s{i}{members}")),
        };
        assert!(!reply.starts_with('-'), "{reply}");
    }
    await_below(&mut client, limit);
    assert!(field_keys(&mut client) >= 5, "some of them fit");
    // A value that grows in place counts like a new one.
    for i in 0..400 {
        client.call_bytes(&[b"APPEND", b"grows", &[b'y'; 50_000]]);
        client.expect("STRLEN grows", &format!(":{}", 50_000 * (i + 1)));
    }
    await_below(&mut client, limit);
}

#[test]
fn an_eviction_is_told_to_listeners_and_to_whoever_watches() {
    if foreign() {
        return;
    }
    let server = Server::start_with(&["--notify-keyspace-events", "Ee"]);
    let (mut client, mut listener, mut watcher) = (server.client(), server.client(), server.client());
    listener.expect("SUBSCRIBE __keyevent@0__:evicted", "[\"subscribe\", \"__keyevent@0__:evicted\", :1]");
    set(&mut client, 0, &[b'x'; 2000], false);
    watcher.expect("WATCH key:0", "+OK");
    limit(&mut client, "allkeys-random", MIB);
    let mut i = 0;
    while client.call("EXISTS key:0") == ":1" {
        i += 1;
        assert_eq!(set(&mut client, i, &[b'x'; 2000], false), "+OK");
    }
    assert!(listener.reply().starts_with("[\"message\", \"__keyevent@0__:evicted\", \"key:"));
    watcher.expect("MULTI", "+OK");
    watcher.expect("PING", "+QUEUED");
    watcher.expect("EXEC", "(nil array)");
}

#[test]
fn a_limit_that_is_lowered_is_kept_without_a_write() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    let_it_learn_names(&mut client);
    let start = field(&mut client, "used_memory");
    (0..16_000).for_each(|i| drop(set(&mut client, i, &[b'x'; 1000], false)));
    let limit = start.max(9 * MIB) + 5 * MIB;
    client.expect(&format!("CONFIG SET maxmemory-policy allkeys-lfu maxmemory {limit}"), "+OK");
    await_below(&mut client, limit);
    assert!(field(&mut client, "evicted_keys") > 0);
    let left = field_keys(&mut client);
    assert!(left > 500, "only {left} keys are left of 8 MiB");
    assert!(field(&mut client, "total_eviction_exceeded_time") < 60_000);
    // Some may still be on their way out.
    client.expect("CONFIG SET maxmemory 0", "+OK");
    let deadline = Instant::now() + PATIENCE;
    loop {
        client.expect("CONFIG RESETSTAT", "+OK");
        match field(&mut client, "evicted_keys") {
            0 => break,
            more => assert!(Instant::now() < deadline, "{more} were evicted since"),
        }
    }
}

#[test]
fn what_a_snapshot_pins_is_not_evicted_for_once_more() {
    if foreign() {
        return;
    }
    let server = Server::start_with(&["--snapshot-max-retained", "1gb"]);
    let mut client = server.client();
    limit(&mut client, "allkeys-random", 2 * MIB);
    (0..4000).for_each(|i| drop(set(&mut client, i, &[b'x'; 1000], false)));
    // A held job keeps a snapshot open, which pins evicted values; writers go on.
    let members: String = (0..20_000).map(|i| format!(" m{i}")).collect();
    client.expect("CONFIG SET maxmemory 0", "+OK");
    client.call(&format!("SADD big{members}"));
    limit(&mut client, "allkeys-random", 3 * MIB);
    let hold = Hold::first_at(&server, "job-end");
    let mut reader = server.client();
    reader.send("SORT big ALPHA LIMIT 0 1\r\n");
    for i in 4000..12_000 {
        assert_eq!(set(&mut client, i, &[b'x'; 1000], false), "+OK");
    }
    assert!(field(&mut client, "evicted_keys") > 2000);
    assert!(field_keys(&mut client) > 500, "{} keys are left", field_keys(&mut client));
    hold.release();
    reader.expect_reply("[\"m0\"]");
}

#[test]
fn bystanders_are_served_while_writers_evict_at_full_rate() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    limit(&mut client, "allkeys-lru", 8 * MIB);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for w in 0..3 {
            let (server, done) = (&server, &done);
            scope.spawn(move || {
                let mut client = server.client();
                let mut i = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let batch: String =
                        (0..50).map(|j| format!("SET w{w}:{} {}\r\n", i + j, "x".repeat(500))).collect();
                    client.send(batch);
                    (0..50).for_each(|_| client.expect_reply("+OK"));
                    i += 50;
                }
            });
        }
        // Each of these replies comes; the benchmarks measure how fast.
        for i in 0..2000 {
            client.expect(&format!("SET mine {i}"), "+OK");
            client.call("GET mine");
        }
        while field(&mut client, "evicted_keys") < 10_000 {
            client.expect("PING", "+PONG");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_client_that_does_not_touch_leaves_keys_as_unused_as_they_were() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, mut quiet) = (server.client(), server.client());
    client.expect("SET k v", "+OK");
    let copy = b"return redis.call('restore', KEYS[2], 0, redis.call('dump', KEYS[1]), 'IDLETIME', ARGV[1])";
    assert_eq!(client.call_bytes(&[b"EVAL", copy, b"2", b"k", b"old", b"1000"]), "+OK");
    let idle = |client: &mut Client| -> u64 {
        client.call("OBJECT IDLETIME old").trim_start_matches(':').parse().unwrap()
    };
    assert!((900..1100).contains(&idle(&mut client)));
    quiet.expect("CLIENT NO-TOUCH ON", "+OK");
    quiet.expect("GET old", "\"v\"");
    quiet.expect("MULTI", "+OK");
    quiet.expect("GET old", "+QUEUED");
    quiet.expect("EXEC", "[\"v\"]");
    assert!((900..1100).contains(&idle(&mut client)));
    // An explicit TOUCH counts as a use.
    quiet.expect("TOUCH old", ":1");
    assert!(idle(&mut client) < 100);
    quiet.expect("CLIENT NO-TOUCH OFF", "+OK");
    assert_eq!(client.call_bytes(&[b"EVAL", copy, b"2", b"k", b"older", b"1000"]), "+OK");
    quiet.expect("GET older", "\"v\"");
    assert!(client.call("OBJECT IDLETIME older").trim_start_matches(':').parse::<u64>().unwrap() < 100);
}

#[test]
fn keys_that_scripts_and_long_commands_read_count_as_used() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut maker, mut client) = (server.client(), server.client());
    maker.expect("SET origin v", "+OK");
    let copy: &[u8] =
        b"return redis.call('restore', KEYS[2], 0, redis.call('dump', KEYS[1]), 'REPLACE', 'IDLETIME', 1000)";
    let mut is_idle_after = |client: &mut Client, request: &[&[u8]]| {
        assert_eq!(maker.call_bytes(&[b"EVAL", copy, b"2", b"origin", b"k"]), "+OK");
        let reply = client.call_bytes(request);
        assert!(!reply.starts_with('-'), "{reply}");
        maker.call("OBJECT IDLETIME k").trim_start_matches(':').parse::<u64>().unwrap() >= 900
    };
    let large = vec![b'x'; 200_000];
    let mut many: Vec<&[u8]> = vec![b"none"; 1000];
    many[0] = b"MGET";
    many[700] = b"k";
    let declared: &[&[u8]] = &[b"EVAL", b"return redis.call('get', KEYS[1])", b"1", b"k"];
    let named_late: &[&[u8]] = &[b"EVAL", b"return redis.call('get', ARGV[1])", b"0", b"k"];
    let away: &[&[u8]] =
        &[b"EVAL", b"for i = 1, 1000000 do end return redis.call('get', KEYS[1])", b"1", b"k"];
    let not_set: &[&[u8]] = &[b"SET", b"k", &large, b"NX"];
    for (what, request) in [
        ("a declared key", declared),
        ("another one", named_late),
        ("a long script", away),
        ("a long SET NX", not_set),
        ("a long MGET", &many),
    ] {
        client.expect("CLIENT NO-TOUCH ON", "+OK");
        assert!(is_idle_after(&mut client, request), "{what}, by a client that does not touch");
        client.expect("CLIENT NO-TOUCH OFF", "+OK");
        assert!(!is_idle_after(&mut client, request), "{what}");
    }
}
