//! INFO's figures, as monitoring reads them: they change with the server.

use crate::support::{Client, PATIENCE, Server};
use std::time::{Duration, Instant};

/// A field of INFO as a number; text behind a comma is not read.
fn field(client: &mut Client, section: &str, name: &str) -> f64 {
    let text = client.call(&format!("INFO {section}"));
    let line = text.split("\\r\\n").find_map(|line| line.strip_prefix(&format!("{name}:")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.parse().unwrap_or_else(|_| panic!("{name} is {line}"))
}

/// Waits until a field has its expected value: some are measured now and then.
#[track_caller]
fn await_field(client: &mut Client, section: &str, name: &str, fits: impl Fn(f64) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let value = field(client, section, name);
        if fits(value) {
            return;
        }
        assert!(Instant::now() < deadline, "{name} is {value}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_expires_is_counted() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("SET gone v PX 1", "+OK");
    client.expect("SET kept v EX 1000", "+OK");
    await_field(&mut client, "stats", "expired_keys", |n| n == 1.0);
    let keyspace = |client: &mut Client| client.call("INFO keyspace");
    let deadline = Instant::now() + PATIENCE;
    while keyspace(&mut client).contains("avg_ttl=0") {
        assert!(Instant::now() < deadline, "{}", keyspace(&mut client));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(keyspace(&mut client).contains("db0:keys=1,expires=1,avg_ttl="), "{}", keyspace(&mut client));
    if client.call("HSET h gone 1 kept 2") == ":2" && client.call("HPEXPIRE h 1 FIELDS 1 gone") == "[:1]" {
        await_field(&mut client, "stats", "expired_subkeys", |n| n == 1.0);
    }
    client.expect("CONFIG RESETSTAT", "+OK");
    assert_eq!(field(&mut client, "stats", "expired_keys"), 0.0);
}

#[test]
fn scripts_and_libraries_are_counted_with_their_memory() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("EVAL \"return 1\" 0", ":1");
    client.expect("EVAL \"return 2\" 0", ":2");
    let code = "#!lua name=lib\\nredis.register_function('f', function() return 3 end)";
    client.expect(&format!("FUNCTION LOAD \"{code}\""), "\"lib\"");
    client.expect("FCALL f 0", ":3");
    for (name, wanted) in
        [("number_of_cached_scripts", 2.0), ("number_of_functions", 1.0), ("number_of_libraries", 1.0)]
    {
        assert_eq!(field(&mut client, "memory", name), wanted, "{name}");
    }
    for name in ["used_memory_vm_eval", "used_memory_vm_functions", "used_memory_vm_total", "used_memory_lua"]
    {
        let deadline = Instant::now() + PATIENCE;
        while field(&mut client, "memory", name) <= 10_000.0 {
            assert!(Instant::now() < deadline, "{name}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    for name in ["used_memory_scripts_eval", "used_memory_functions", "used_memory_scripts"] {
        assert!(field(&mut client, "memory", name) > 0.0, "{name}");
    }
}

#[test]
fn what_threads_for_scripts_hold_is_counted() {
    let server = Server::start();
    let mut client = server.client();
    // An event loop never loads a library that takes this long.
    let code = "#!lua name=large\nlocal t = {} for i = 1, 300000 do t[i] = i end \
                redis.register_function('size', function() return #t end)";
    client.expect(&format!("FUNCTION LOAD \"{code}\""), "\"large\"");
    client.expect("FCALL size 0", ":300000");
    let held = field(&mut client, "memory", "used_memory_vm_functions");
    assert!(held > 2_000_000.0, "{held}");
    client.expect("FUNCTION FLUSH", "+OK");
    client.expect("EVAL \"for i = 1, 20000000 do end return 1\" 0", ":1");
    await_field(&mut client, "memory", "used_memory_vm_functions", |left| left < held / 2.0);
}

#[test]
fn event_loops_and_their_rates_are_measured() {
    let server = Server::start();
    let mut client = server.client();
    let before = field(&mut client, "stats", "eventloop_cycles");
    for _ in 0..2000 {
        client.expect("SET k v", "+OK");
    }
    assert!(field(&mut client, "stats", "eventloop_cycles") >= before + 1000.0);
    let (turns, commands) = (
        field(&mut client, "stats", "eventloop_duration_sum"),
        field(&mut client, "stats", "eventloop_duration_cmd_sum"),
    );
    assert!(0.0 < commands && commands < turns, "{commands} of {turns}");
    for name in [
        "instantaneous_ops_per_sec",
        "instantaneous_input_kbps",
        "instantaneous_output_kbps",
        "instantaneous_eventloop_cycles_per_sec",
    ] {
        await_field(&mut client, "stats", name, |rate| rate > 0.0);
    }
}

/// The lines of a section, without its title.
fn lines_of(client: &mut Client, section: &str) -> Vec<String> {
    let text = client.call(&format!("INFO {section}"));
    let text = text.trim_matches('"').replace("\\r\\n", "\n").replace("\r\n", "\n");
    text.lines().filter(|line| line.contains(':')).map(String::from).collect()
}

/// Errors within scripts and transactions are counted as they happen, even if a script hides them. An error
/// that a script only passes on is not counted again.
#[test]
fn errors_within_scripts_and_transactions_are_counted_by_name() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("SET s x", "+OK");
    let fails = "redis.pcall('LPUSH', 's', 1)";
    let long = "for i = 1, 300000 do local x = i * i end";
    let cases: &[(&[&str], &[&str])] = &[
        (&["MULTI", "LPUSH s 1", "INCR s", "LPUSH s 1", "EXEC"], &["ERR:count=1", "WRONGTYPE:count=2"]),
        (&["EVAL \"return redis.call('LPUSH', 's', 1)\" 0"], &["WRONGTYPE:count=1"]),
        (
            &[&format!("EVAL \"{fails} redis.pcall('INCR', 's') return 1\" 0")],
            &["ERR:count=1", "WRONGTYPE:count=1"],
        ),
        (&[&format!("EVAL \"return {fails}\" 0")], &["WRONGTYPE:count=1"]),
        (&[&format!("EVAL \"{long} {fails} return {fails}\" 0")], &["WRONGTYPE:count=2"]),
        (&["EVAL \"pcall(redis.call, 'LPUSH', 's', 1) return 1\" 0"], &["WRONGTYPE:count=1"]),
        (&["EVAL \"return redis.error_reply('MYERR x')\" 0"], &["MYERR:count=1"]),
        (
            &[&format!("EVAL \"{fails} return redis.error_reply('MYERR x')\" 0")],
            &["MYERR:count=1", "WRONGTYPE:count=1"],
        ),
        (&["EVAL \"error('boo')\" 0"], &["ERR:count=1"]),
        (
            &["EVAL \"redis.pcall('NOSUCH') redis.pcall('GET') redis.pcall('SUBSCRIBE', 'x') return 1\" 0"],
            &["ERR:count=3"],
        ),
        (&["EVAL \"redis.call('NOSUCH')\" 0"], &["ERR:count=1"]),
        (
            &[
                "MULTI",
                &format!("EVAL \"return {fails}\" 0"),
                "EVAL \"return redis.call('LPUSH', 's', 1)\" 0",
                &format!("EVAL \"{fails} return 1\" 0"),
                "INCR s",
                "CONFIG SET nosuch 1",
                "EXEC",
            ],
            &["ERR:count=2", "WRONGTYPE:count=3"],
        ),
    ];
    for (lines, expected) in cases {
        client.expect("CONFIG RESETSTAT", "+OK");
        lines.iter().for_each(|line| {
            client.call(line);
        });
        let counted = lines_of(&mut client, "errorstats");
        let expected: Vec<String> = expected.iter().map(|line| format!("errorstat_{line}")).collect();
        assert_eq!(counted, expected, "{lines:?}");
    }
}

/// So are those of a transaction that runs as a job.
#[test]
fn errors_within_long_transactions_are_counted_by_name() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("SET s x", "+OK");
    client.expect("CONFIG RESETSTAT", "+OK");
    client.expect("MULTI", "+OK");
    for _ in 0..300 {
        client.expect("LPUSH s 1", "+QUEUED");
        client.expect("INCR s", "+QUEUED");
    }
    client.call("EXEC");
    assert_eq!(
        lines_of(&mut client, "errorstats"),
        ["errorstat_ERR:count=300", "errorstat_WRONGTYPE:count=300"]
    );
}

/// Events are counted at once; the sums that a loop makes over its clients appear soon.
#[test]
fn clients_are_counted_as_they_come_and_go() {
    let server = Server::start();
    let mut client = server.client();
    let fields = ["connected_clients", "pubsub_clients", "watching_clients", "total_watched_keys"];
    let show = |client: &mut Client| fields.map(|name| field(client, "clients", name));
    {
        let (mut reader, mut watcher) = (server.client(), server.client());
        reader.expect("SUBSCRIBE a", r#"["subscribe", "a", :1]"#);
        watcher.expect("WATCH x y z", "+OK");
        assert_eq!(show(&mut client), [3.0, 1.0, 1.0, 3.0]);
        watcher.expect("WATCH z v", "+OK");
        assert_eq!(show(&mut client), [3.0, 1.0, 1.0, 4.0]);
        watcher.expect("UNWATCH", "+OK");
        assert_eq!(show(&mut client), [3.0, 1.0, 0.0, 0.0]);
        watcher.expect("WATCH x", "+OK");
        watcher.expect("MULTI", "+OK");
        watcher.expect("EXEC", "[]");
        assert_eq!(show(&mut client), [3.0, 1.0, 0.0, 0.0]);
        watcher.expect("WATCH x", "+OK");
    }
    await_field(&mut client, "clients", "connected_clients", |n| n == 1.0);
    assert_eq!(show(&mut client), [1.0, 0.0, 0.0, 0.0]);
    client.expect("CONFIG SET client-query-buffer-limit 10000000", "+OK");
    let mut sender = server.client();
    sender.send(format!("*2\r\n$3\r\nGET\r\n$1000000\r\n{}", "x".repeat(500_000)).as_bytes());
    await_field(&mut client, "clients", "client_recent_max_input_buffer", |n| n >= 400_000.0);
    await_field(&mut client, "memory", "mem_clients_normal", |n| n >= 400_000.0);
}

/// Memory just written is in the very next figure, whether or not the allocator has been asked since.
#[test]
fn memory_just_taken_is_in_use_at_once() {
    let server = Server::start();
    let mut client = server.client();
    let before = field(&mut client, "memory", "used_memory");
    let value = "v".repeat(100_000);
    for n in 0..50 {
        client.expect(&format!("SET k{n} {value}"), "+OK");
    }
    let during = field(&mut client, "memory", "used_memory");
    assert!(during >= before + 4_500_000.0, "{before} {during}");
    client.expect("FLUSHALL", "+OK");
    await_field(&mut client, "memory", "used_memory", |n| n < before + 4_000_000.0);
}

#[test]
fn sizes_of_keys_are_counted_where_they_are_asked_for_by_name() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("SET a xyz", "+OK");
    client.expect("RPUSH l 1 2 3 4 5", ":5");
    client.expect("XADD x 1-1 a b", "\"1-1\"");
    let text = client.call("INFO keysizes");
    let lines = "# Keysizes\\r\\ndb0_distrib_strings_sizes:2=1\\r\\ndb0_distrib_lists_items:4=1\\r\\n";
    assert!(text.contains(lines), "{text}");
    for others in ["INFO", "INFO all", "INFO everything"] {
        assert!(!client.call(others).contains("distrib"), "{others}");
    }
    assert!(client.call("INFO keysizes clients").contains("connected_clients"));
    client.expect("MULTI", "+OK");
    client.expect("INFO keysizes", "+QUEUED");
    assert!(client.call("EXEC").contains("ERR keysizes are not counted in a transaction"));
}
