//! MONITOR, as clients see it.

use crate::support::{Client, Server, foreign};
use std::time::Duration;

/// Long enough for a line to come if it were sent.
const A_WHILE: Duration = Duration::from_millis(100);

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

/// Lines are left out as replies are: those of all commands after CLIENT REPLY OFF, and of the one command of
/// the monitor itself whose reply CLIENT REPLY SKIP leaves out. So do Redis and Valkey.
#[test]
fn a_monitor_without_replies_gets_no_lines() {
    let server = Server::start();
    for how in ["OFF", "SKIP"] {
        let (mut monitor, mut other) = (server.client(), server.client());
        monitor.send(format!("CLIENT REPLY {how}\r\nMONITOR\r\n"));
        while !other.call("CLIENT LIST").contains(" flags=O ") {}
        other.expect("SET k 1", "+OK");
        if how == "SKIP" {
            // The OK of MONITOR was left out.
            while words(&mut monitor) != "0 \"SET\" \"k\" \"1\"" {}
            monitor.expect("CLIENT REPLY ON", "+OK");
        } else {
            // Lines that came to the monitor before its next command are left out.
            monitor.request(&[b"SET", b"seen", how.as_bytes()]);
            while other.call("GET seen") != format!("\"{how}\"") {}
            assert_eq!(monitor.reply_within(A_WHILE), None);
            monitor.expect("CLIENT REPLY ON", "+OK");
        }
        assert_eq!(words(&mut monitor), "0 \"CLIENT\" \"REPLY\" \"ON\"");
        other.expect("SET k 2", "+OK");
        assert_eq!(words(&mut monitor), "0 \"SET\" \"k\" \"2\"");
        // Another ON changes nothing.
        monitor.expect("CLIENT REPLY ON", "+OK");
        assert_eq!(words(&mut monitor), "0 \"CLIENT\" \"REPLY\" \"ON\"");
        monitor.request(&[b"CLIENT", b"REPLY", b"SKIP"]);
        assert_eq!(words(&mut monitor), "0 \"CLIENT\" \"REPLY\" \"SKIP\"");
        monitor.request(&[b"ECHO", b"1"]);
        monitor.expect("ECHO 2", "\"2\"");
        assert_eq!(words(&mut monitor), "0 \"ECHO\" \"2\"");
        monitor.request(&[b"CLIENT", b"REPLY", b"OFF"]);
        // A later command of the monitor is done, so the one before is.
        monitor.request(&[b"SET", b"off", how.as_bytes()]);
        while other.call("GET off") != format!("\"{how}\"") {}
        other.expect("SET k 3", "+OK");
        monitor.request(&[b"SET", b"after", how.as_bytes()]);
        while other.call("GET after") != format!("\"{how}\"") {}
        assert_eq!(monitor.reply_within(A_WHILE), None);
        monitor.expect("CLIENT REPLY ON", "+OK");
        assert_eq!(words(&mut monitor), "0 \"CLIENT\" \"REPLY\" \"ON\"");
        // An ON behind a SKIP is answered, and shown.
        monitor.request(&[b"CLIENT", b"REPLY", b"SKIP"]);
        assert_eq!(words(&mut monitor), "0 \"CLIENT\" \"REPLY\" \"SKIP\"");
        monitor.expect("CLIENT REPLY ON", "+OK");
        assert_eq!(words(&mut monitor), "0 \"CLIENT\" \"REPLY\" \"ON\"");
    }
}

/// Other monitors see the command whose reply is left out.
#[test]
fn a_skipped_reply_hides_the_line_from_its_client_alone() {
    let server = Server::start();
    let (mut first, mut muted, mut last) = (server.client(), server.client(), server.client());
    for monitor in [&mut first, &mut muted, &mut last] {
        monitor.expect("MONITOR", "+OK");
    }
    let seen = ["0 \"CLIENT\" \"REPLY\" \"SKIP\"", "0 \"ECHO\" \"1\"", "0 \"ECHO\" \"2\""];
    muted.request(&[b"CLIENT", b"REPLY", b"SKIP"]);
    assert_eq!(words(&mut muted), seen[0]);
    muted.request(&[b"ECHO", b"1"]);
    muted.expect("ECHO 2", "\"2\"");
    assert_eq!(words(&mut muted), seen[2]);
    for monitor in [&mut first, &mut last] {
        for line in seen {
            assert_eq!(words(monitor), line);
        }
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

/// Calls of a script are shown behind the script, once, though a long one is begun on a loop and run again
/// elsewhere.
#[test]
fn a_monitor_sees_the_calls_of_scripts() {
    let server = Server::start();
    let (mut monitor, mut other) = (server.client(), server.client());
    monitor.expect("MONITOR", "+OK");
    let shown = |monitor: &mut Client| {
        let line = monitor.reply();
        line.split_once(" [").unwrap_or_else(|| panic!("no place: {line}")).1.to_owned()
    };
    other.expect("EVAL \"redis.call('SET', KEYS[1], 'v') return redis.call('GET', KEYS[1])\" 1 k", "\"v\"");
    assert!(shown(&mut monitor).contains("] \"EVAL\" "));
    assert_eq!(shown(&mut monitor), "0 lua] \"SET\" \"k\" \"v\"");
    assert_eq!(shown(&mut monitor), "0 lua] \"GET\" \"k\"");
    let long = "EVAL \"redis.call('INCR', 'n') for i = 1, 3e6 do end return redis.call('INCR', 'n')\" 0";
    other.expect(long, ":2");
    other.expect("PING", "+PONG");
    assert!(shown(&mut monitor).contains("] \"EVAL\" "));
    assert_eq!(shown(&mut monitor), "0 lua] \"INCR\" \"n\"");
    assert_eq!(shown(&mut monitor), "0 lua] \"INCR\" \"n\"");
    assert!(shown(&mut monitor).ends_with("] \"PING\""));
}
