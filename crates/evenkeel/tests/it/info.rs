//! INFO's figures, as monitoring reads them: they live.

use crate::support::{Client, PATIENCE, Server};
use std::time::{Duration, Instant};

/// A field of INFO as a number; what is behind a comma is not read.
fn field(client: &mut Client, section: &str, name: &str) -> f64 {
    let text = client.call(&format!("INFO {section}"));
    let line = text.split("\\r\\n").find_map(|line| line.strip_prefix(&format!("{name}:")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.parse().unwrap_or_else(|_| panic!("{name} is {line}"))
}

/// Waits until a field is what it should be: some are measured now and then.
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
        await_field(&mut client, "memory", name, |bytes| bytes > 10_000.0);
    }
    for name in ["used_memory_scripts_eval", "used_memory_functions", "used_memory_scripts"] {
        assert!(field(&mut client, "memory", name) > 0.0, "{name}");
    }
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
