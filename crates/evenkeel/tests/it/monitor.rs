//! MONITOR, as clients see it.

use crate::support::{Client, Server, foreign};

/// The words of a line, without its time and its client.
fn words(client: &mut Client) -> String {
    let line = client.reply();
    let (head, words) = line.split_once("] ").unwrap_or_else(|| panic!("no line: {line}"));
    let (time, place) = head.split_once(" [").unwrap_or_else(|| panic!("no place: {line}"));
    assert!(time.trim_start_matches('+').parse::<f64>().is_ok_and(|s| s > 1e9), "{line}");
    assert!(place.contains("127.0.0.1:"), "{line}");
    format!("{} {words}", place.split(' ').next().unwrap_or_default())
}

#[test]
fn a_monitor_sees_what_others_do() {
    let server = Server::start();
    let (mut monitor, mut other) = (server.client(), server.client());
    monitor.expect("MONITOR", "+OK");
    other.expect("SELECT 3", "+OK");
    other.request(&[b"SET", b"k", b"a \"b\"\n"]);
    other.expect_reply("+OK");
    other.expect("NOSUCH x", "-ERR unknown command 'NOSUCH', with args beginning with: 'x' ");
    other.expect("CONFIG SET maxclients 1000", "+OK");
    other.call("AUTH somebody secret");
    other.expect("MULTI", "+OK");
    other.expect("INCR n", "+QUEUED");
    other.expect("GET n", "+QUEUED");
    other.expect("EXEC", "[:1, \"1\"]");
    let seen = [
        "0 \"SELECT\" \"3\"",
        "3 \"SET\" \"k\" \"a \\\"b\\\"\\n\"",
        "3 \"AUTH\" \"(redacted)\" \"(redacted)\"",
        "3 \"MULTI\"",
        "3 \"INCR\" \"n\"",
        "3 \"GET\" \"n\"",
        "3 \"EXEC\"",
    ];
    for line in seen {
        assert_eq!(words(&mut monitor), line);
    }
    assert!(other.call("CLIENT LIST").contains(" flags=O "), "no monitor is listed");
    if !foreign() {
        // A monitor may go on with other commands; RESET ends it.
        monitor.expect("RESET", "+RESET");
        other.expect("GET k", "\"a \\\"b\\\"\\n\"");
        monitor.expect("PING", "+PONG");
    }
}

/// A reader of messages that does not read them is closed, and nobody waits for it.
#[test]
fn a_monitor_that_does_not_read_is_cut_off() {
    if foreign() {
        return;
    }
    let server = Server::start_with(&["--client-output-buffer-limit", "replica 1mb 0 0"]);
    let (mut monitor, mut other) = (server.client(), server.client());
    monitor.expect("MONITOR", "+OK");
    let line = format!("SET k {}", "x".repeat(60_000));
    for _ in 0..1000 {
        other.expect(&line, "+OK");
        if !other.call("CLIENT LIST").contains(" flags=O ") {
            return;
        }
    }
    panic!("60 MB of lines, and the monitor is still there:\n{}", server.output());
}
