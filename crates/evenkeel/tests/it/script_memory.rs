//! Memory that scripts take: it is counted for them and limited, no key is evicted for it, and it is given
//! back.

use crate::eviction::{MIB, limit};
use crate::held::{await_figure, figure};
use crate::support::{Client, PATIENCE, Server, foreign};
use std::time::{Duration, Instant};

const NO_MEMORY: &str = "this command needs more memory than 'work-max-memory' allows";

/// A field of INFO as a number.
fn field(client: &mut Client, name: &str) -> u64 {
    let text = client.call("INFO everything");
    let line = text.split("\\r\\n").find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("no number {name} in {text}"))
}

#[track_caller]
fn await_field(client: &mut Client, name: &str, is_it: impl Fn(u64) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = field(client, name);
        if is_it(now) {
            return;
        }
        assert!(Instant::now() < deadline, "{name} is {now}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn eval(client: &mut Client, script: &str) -> String {
    client.call_bytes(&[b"EVAL", script.as_bytes(), b"0"])
}

#[test]
fn no_key_goes_for_what_scripts_hold_or_left() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    let max = limit(&mut client, "allkeys-lru", 6 * MIB);
    let value = "x".repeat(1000);
    (0..1000).for_each(|i| client.expect(&format!("SET key:{i} {value}"), "+OK"));
    // A quarter of all memory is for work: not enough for these.
    for script in [
        "return #('x'):rep(200000000)",
        "local t = {} for i = 1, 1e9 do t[i] = {i} end",
        "local one, t = ('x'):rep(1e6), {} for i = 1, 1000 do t[i] = one end return t",
        "local one, t = ('x'):rep(1e6), {} for i = 1, 1000 do t[i] = one end return #cjson.encode(t)",
        "return (('x'):rep(1e6):gsub('x', ('y'):rep(1000)))",
    ] {
        let said = eval(&mut client, script);
        assert!(said.starts_with("-ERR ") && said.contains(NO_MEMORY), "{script}: {said}");
    }
    // With more than all keys may have there is room, and still no reason to evict.
    client.expect(&format!("CONFIG SET work-max-memory {}", 4 * max), "+OK");
    for _ in 0..6 {
        let held = "local t = {} for i = 1, 25 do t[i] = ('x'):rep(1e6) .. i end
            for i = 1, 2e5 do local n = i * i end return #t";
        assert_eq!(eval(&mut client, held), ":25");
        other.expect(&format!("SET key:1 {value}"), "+OK");
    }
    assert_eq!(field(&mut other, "evicted_keys"), 0);
    other.expect("DBSIZE", ":1000");
    await_field(&mut other, "used_memory_vm_total", |bytes| bytes < 6 * MIB);
    await_field(&mut other, "used_memory_work", |bytes| bytes < 6 * MIB);
    await_field(&mut other, "used_memory", |bytes| bytes < max);
    other.expect("SET one more", "+OK");
}

#[test]
fn arguments_of_a_script_ask_before_they_are_copied() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("CONFIG SET work-max-memory 8mb", "+OK");
    let large = vec![b'x'; 20 << 20];
    for command in ["EVAL", "EVAL_RO"] {
        let said = client.call_bytes(&[command.as_bytes(), b"return #ARGV[1]", b"0", &large]);
        assert_eq!(said, format!("-ERR {NO_MEMORY}"));
        let said = client.call_bytes(&[command.as_bytes(), b"return #ARGV[1]", b"0", &large[..1 << 20]]);
        assert_eq!(said, ":1048576");
    }
}

#[test]
fn threads_without_work_keep_nothing_of_their_scripts() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut clients: Vec<Client> = (0..12).map(|_| server.client()).collect();
    // At the same time, so that each has a thread.
    let script = "local s = ('x'):rep(20000000) for i = 1, 1e5 do local n = i * i end return #s";
    for client in &mut clients {
        client.request(&[b"EVAL", script.as_bytes(), b"0"]);
    }
    clients.iter_mut().for_each(|client| client.expect_reply(":20000000"));
    await_field(&mut clients[0], "used_memory_vm_total", |bytes| bytes < 8 * MIB);
    await_field(&mut clients[0], "used_memory_work", |bytes| bytes < 8 * MIB);
}

#[test]
fn functions_keep_what_is_theirs_and_their_garbage_goes() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    let code = "#!lua name=f\nlocal calls = 0\nredis.register_function('f', function()
        local t = {} for i = 1, 20 do t[i] = ('x'):rep(1e6) .. i end calls = calls + 1 return #t end)";
    assert_eq!(client.call_bytes(&[b"FUNCTION", b"LOAD", code.as_bytes()]), "\"f\"");
    for _ in 0..3 {
        client.expect("FCALL f 0", ":20");
        await_field(&mut client, "used_memory_vm_functions", |bytes| bytes < 6 * MIB);
    }
}

#[test]
fn engines_forget_what_is_flushed() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    // So many arguments that a thread runs it.
    let words = vec![b"x".as_slice(); 300];
    for i in 0..400 {
        let script = format!("return #'{}{i}'", "x".repeat(8000));
        let said = client.call_bytes(&[&[b"EVAL", script.as_bytes(), b"0"], words.as_slice()].concat());
        assert!(said.starts_with(":800"), "{said}");
    }
    await_field(&mut client, "used_memory_vm_eval", |bytes| bytes > 3 * MIB);
    let before = field(&mut client, "used_memory_vm_eval");
    client.expect("MEMORY PURGE", "+OK");
    client.expect("SCRIPT FLUSH", "+OK");
    await_field(&mut client, "used_memory_vm_eval", |bytes| bytes < before - 2 * MIB);
    assert_eq!(eval(&mut client, "return 1"), ":1");
}

/// A script's replaced values wait to be freed; it does not go on while they are too much.
#[test]
fn a_script_that_replaces_large_values_waits_for_the_reclaimer() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut control, mut client) = (server.client(), server.client());
    control.expect(&format!("SET a {}", "x".repeat(1 << 20)), "+OK");
    control.expect("CONFIG SET reclaim-max-pending 4mb", "+OK");
    control.expect("DEBUG POINT reclaim HOLD 1", "+OK");
    await_figure(&mut control, "reclaim_max_pending_bytes", |bytes| bytes == 4 << 20);
    let script = "for i = 1, 40 do redis.call('BITOP', 'NOT', 'b', 'a') end return 'through'";
    client.request(&[b"EVAL", script.as_bytes(), b"2", b"a", b"b"]);
    await_figure(&mut control, "reclaim_full", |full| full == 1);
    control.expect("GET c", "(nil)");
    // It can be ended while it waits; a script that has finished is not there any more.
    control.expect("SCRIPT KILL", "+OK");
    let said = client.reply();
    assert!(said.contains("Script killed by user"), "{said}");
    let pending = figure(&mut control, "reclaim_pending_whole_bytes");
    assert!(pending < 16 << 20, "{pending} bytes wait");
    control.expect("DEBUG POINT reclaim OFF", "+OK");
    client.request(&[b"EVAL", script.as_bytes(), b"2", b"a", b"b"]);
    client.expect_reply("\"through\"");
}
