//! HOTKEYS: which keys take the most bytes and run time, wherever their commands run.

use crate::support::{Client, Server, encode_line};
use crate::waits::until;

const NONE: &str = "-ERR no hotkey tracking session in progress";

/// The bytes listed for a key.
fn bytes_of(client: &mut Client, key: &str) -> Option<u64> {
    let text = client.call("HOTKEYS GET");
    let list = text.split("\"by-net-bytes\", [").nth(1)?.split(']').next()?;
    let rest = list.split(&format!("\"{key}\", :")).nth(1)?;
    rest.split(',').next()?.parse().ok()
}

#[test]
fn a_session_has_its_states() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("HOTKEYS GET", "(nil)");
    client.expect("HOTKEYS STOP", NONE);
    client.expect("HOTKEYS RESET", "+OK");
    client.expect("HOTKEYS START", "-ERR METRICS parameter is required");
    client.expect("HOTKEYS START METRICS 2 CPU NET COUNT 5", "+OK");
    client.expect("HOTKEYS START METRICS 1 CPU", "-ERR hotkey tracking session already in progress");
    client.expect("HOTKEYS RESET", "-ERR hotkey tracking session in progress, stop tracking first");
    client.expect("SET k v", "+OK");
    assert!(
        client
            .call("HOTKEYS GET")
            .starts_with("[[\"tracking-active\", :1, \"sample-ratio\", :1, \"selected-slots\", [], ")
    );
    client.expect("HOTKEYS STOP", "+OK");
    client.expect("HOTKEYS STOP", NONE);
    let text = client.call("HOTKEYS GET");
    assert!(
        text.starts_with("[[\"tracking-active\", :0, ") && text.contains("\"by-cpu-time-us\", [\"k\", :"),
        "{text}"
    );
    client.expect("HOTKEYS RESET", "+OK");
    client.expect("HOTKEYS GET", "(nil)");
}

#[test]
fn bytes_count_for_the_keys_of_every_kind_of_command() {
    let server = Server::start();
    let (mut admin, mut client) = (server.client(), server.client());
    let value = "v".repeat(1000);
    (0..100).for_each(|i| client.expect(&format!("RPUSH list {value}"), &format!(":{}", i + 1)));
    admin.expect("HOTKEYS START METRICS 1 NET COUNT 64", "+OK");
    // In one piece, streamed, in a transaction, by a script, after a wait, and as a long request.
    client.expect("SET one v", "+OK");
    client.call("LRANGE list 0 -1");
    client.expect("MULTI", "+OK");
    client.expect("SET queued v", "+QUEUED");
    client.expect("EXEC", "[+OK]");
    client.expect("EVAL \"return redis.call('SET', KEYS[1], 'v')\" 1 scripted", "+OK");
    client.send(encode_line("BLPOP waited 0"));
    let mut pusher = server.client();
    until("it waits", || !pusher.call("INFO clients").contains("blocked_clients:0"));
    pusher.expect("LPUSH waited x", ":1");
    client.expect_reply("[\"waited\", \"x\"]");
    client.expect(&format!("SET long {}", "v".repeat(200_000)), "+OK");
    client.expect("MSET a 1 b 2", "+OK");
    admin.expect("HOTKEYS STOP", "+OK");
    assert_eq!(bytes_of(&mut admin, "one"), Some(29 + 5));
    assert_eq!(bytes_of(&mut admin, "queued"), Some(32 + 5));
    assert!(bytes_of(&mut admin, "list").is_some_and(|bytes| bytes > 100 * 1000));
    assert!(bytes_of(&mut admin, "scripted").is_some_and(|bytes| bytes > 50));
    assert!(bytes_of(&mut admin, "waited").is_some_and(|bytes| bytes > 60));
    assert!(bytes_of(&mut admin, "long").is_some_and(|bytes| bytes > 200_000));
    assert_eq!(bytes_of(&mut admin, "a"), bytes_of(&mut admin, "b"));
}

#[test]
fn transactions_that_run_away_from_their_loop_count_too() {
    let server = Server::start();
    let (mut admin, mut client) = (server.client(), server.client());
    admin.expect("HOTKEYS START METRICS 2 CPU NET COUNT 64", "+OK");
    let mut run = |lines: &[&str], times: usize| {
        client.expect("MULTI", "+OK");
        for line in std::iter::repeat_n(lines, times).flatten() {
            client.expect(line, "+QUEUED");
        }
        let reply = client.call("EXEC");
        assert!(reply.starts_with('[') && !reply.contains("-ERR"), "{reply}");
    };
    // On a worker, as a bulk, and over an overlay.
    run(&["INCR far", "GET missing"], 300);
    run(&["SET bulk v"], 600);
    run(&["EVAL \"return redis.call('INCR', KEYS[1])\" 1 inner", "SET beside v", "KEYS nosuch"], 1);
    admin.expect("HOTKEYS STOP", "+OK");
    let each = |request: &str| encode_line(request).len() as u64;
    // The replies are the numbers 1 to 300.
    let replies = 9 * 4 + 90 * 5 + 201 * 6;
    assert_eq!(bytes_of(&mut admin, "far"), Some(300 * each("INCR far") + replies));
    assert_eq!(bytes_of(&mut admin, "missing"), Some(300 * (each("GET missing") + 5)));
    // The first ones of a bulk are seen.
    assert_eq!(bytes_of(&mut admin, "bulk"), Some(128 * (each("SET bulk v") + 5)));
    assert_eq!(bytes_of(&mut admin, "beside"), Some(each("SET beside v") + 5));
    assert!(bytes_of(&mut admin, "inner").is_some_and(|bytes| bytes > 50));
}
