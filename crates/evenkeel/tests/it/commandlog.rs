//! COMMANDLOG: slow commands, large requests and large replies, each with its size, and no secret. MODULE
//! refuses by name what it cannot do.

use crate::support::{Client, Server};

const TYPE: &str = "-ERR type should be one of the following: slow, large-request, large-reply";
const COUNT: &str = "-ERR count should be greater than or equal to -1";
const FORGET: [&str; 3] =
    ["COMMANDLOG RESET large-request", "COMMANDLOG RESET large-reply", "COMMANDLOG RESET slow"];

fn server() -> Server {
    Server::start_with(&["--commandlog-request-larger-than", "-1", "--commandlog-reply-larger-than", "-1"])
}

/// The amounts and words of a log's entries, newest first.
fn entries(client: &mut Client, kind: &str) -> Vec<(u64, String)> {
    let text = client.call(&format!("COMMANDLOG GET -1 {kind}"));
    let entry = |entry: &str| {
        let (amount, rest) = entry.split_once(", [")?;
        let words = rest.split_once(']')?.0.replace('"', "");
        Some((amount.rsplit(':').next()?.parse().ok()?, words.replace(", ", " ")))
    };
    text.split("], [:").filter_map(entry).collect()
}

#[test]
fn large_requests_and_replies_are_logged_with_their_bytes() {
    let server = server();
    let (mut admin, mut client) = (server.client(), server.client());
    client.expect("SET k 0123456789012345678901234567890123456789", "+OK");
    admin.expect("CONFIG SET commandlog-request-larger-than 20 commandlog-reply-larger-than 40", "+OK");
    FORGET.iter().for_each(|line| admin.expect(line, "+OK"));
    client.expect("PING", "+PONG");
    client.expect("GET k", "\"0123456789012345678901234567890123456789\"");
    client.expect("ECHO 0123456789", "\"0123456789\"");
    admin.expect("CONFIG SET commandlog-request-larger-than -1 commandlog-reply-larger-than -1", "+OK");
    let requests = entries(&mut admin, "large-request");
    assert!(requests.contains(&(20, "GET k".into())), "{requests:?}");
    assert!(requests.contains(&(31, "ECHO 0123456789".into())), "{requests:?}");
    assert!(!requests.iter().any(|(_, words)| words == "PING"), "{requests:?}");
    assert_eq!(entries(&mut admin, "large-reply"), [(47, "GET k".into())]);
    admin.expect("COMMANDLOG LEN large-reply", ":1");
    FORGET.iter().for_each(|line| admin.expect(line, "+OK"));
    admin.expect("COMMANDLOG LEN large-reply", ":0");
    admin.expect("COMMANDLOG LEN large-request", ":0");
}

#[test]
fn a_reply_counts_in_full_however_it_is_made() {
    let server = server();
    let (mut admin, mut client) = (server.client(), server.client());
    let value = "v".repeat(1000);
    (0..300).for_each(|i| client.expect(&format!("RPUSH list {value}"), &format!(":{}", i + 1)));
    admin.expect("CONFIG SET commandlog-reply-larger-than 300000", "+OK");
    client.call("LRANGE list 0 -1");
    client.expect("MULTI", "+OK");
    client.expect("LRANGE list 0 -1", "+QUEUED");
    client.call("EXEC");
    client.call("EVAL \"return redis.call('LRANGE', 'list', 0, -1)\" 0");
    admin.expect("CONFIG SET commandlog-reply-larger-than -1", "+OK");
    let bytes = "*300\r\n".len() as u64 + 300 * (1000 + "$1000\r\n\r\n".len() as u64);
    let replies = entries(&mut admin, "large-reply");
    assert_eq!(replies.len(), 3, "{replies:?}");
    assert!(replies[0].1.starts_with("EVAL "), "{replies:?}");
    assert!(replies[1..].iter().all(|(_, words)| words == "LRANGE list 0 -1"), "{replies:?}");
    assert!(replies.iter().all(|(amount, _)| *amount == bytes), "{replies:?}");
}

#[test]
fn a_long_request_a_waiting_one_and_a_queued_one_are_logged() {
    let server = server();
    let (mut admin, mut client) = (server.client(), server.client());
    admin.expect("CONFIG SET commandlog-request-larger-than 200000", "+OK");
    let value = "v".repeat(200_000);
    client.expect(&format!("SET k {value}"), "+OK");
    client.expect("MULTI", "+OK");
    client.expect(&format!("APPEND k {value}"), "+QUEUED");
    client.expect("EXEC", "[:400000]");
    admin.expect("CONFIG SET commandlog-request-larger-than 29", "+OK");
    admin.expect("COMMANDLOG RESET slow", "+OK");
    client.send(crate::support::encode_line("BLPOP l 0"));
    let mut pusher = server.client();
    pusher.expect("LPUSH l x", ":1");
    client.expect_reply("[\"l\", \"x\"]");
    admin.expect("CONFIG SET commandlog-request-larger-than -1", "+OK");
    let requests = entries(&mut admin, "large-request");
    let bytes = |command: &str| requests.iter().find(|(_, words)| words.starts_with(command)).map(|e| e.0);
    assert_eq!(bytes("SET"), Some("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$200000\r\n\r\n".len() as u64 + 200_000));
    assert_eq!(
        bytes("APPEND"),
        Some("*3\r\n$6\r\nAPPEND\r\n$1\r\nk\r\n$200000\r\n\r\n".len() as u64 + 200_000)
    );
    assert_eq!(bytes("BLPOP"), Some(29), "{requests:?}");
    let shown = requests.iter().find(|(_, words)| words.starts_with("SET")).map(|e| e.1.len());
    assert!(shown.is_some_and(|len| len < 200), "{requests:?}");
}

#[test]
fn secrets_stay_out_and_slowlog_is_a_view_of_the_slow_ones() {
    let server = server();
    let (mut admin, mut client) = (server.client(), server.client());
    admin.expect("CONFIG SET commandlog-request-larger-than 0 commandlog-execution-slower-than 0", "+OK");
    assert!(client.call("AUTH hidden").starts_with('-'));
    client.call("CONFIG SET requirepass hidden");
    client.call("CONFIG SET requirepass \"\"");
    admin.expect("CONFIG SET commandlog-request-larger-than -1 slowlog-log-slower-than -1", "+OK");
    for kind in ["large-request", "slow"] {
        let text = admin.call(&format!("COMMANDLOG GET -1 {kind}"));
        assert!(text.contains("\"AUTH\", \"(redacted)\"") && !text.contains("hidden"), "{text}");
    }
    assert_eq!(admin.call("SLOWLOG GET -1"), admin.call("COMMANDLOG GET -1 slow"));
    admin.expect(
        "CONFIG GET commandlog-execution-slower-than",
        "[\"commandlog-execution-slower-than\", \"-1\"]",
    );
    admin.expect("SLOWLOG RESET", "+OK");
    admin.expect("COMMANDLOG LEN SLOW", ":0");
}

#[test]
fn a_log_keeps_so_many_entries_as_its_directive_says() {
    let server = server();
    let mut client = server.client();
    client.expect("CONFIG SET commandlog-request-larger-than 0 commandlog-large-request-max-len 3", "+OK");
    (0..10).for_each(|_| client.expect("PING", "+PONG"));
    client.expect("COMMANDLOG LEN large-request", ":3");
    client.expect("CONFIG SET commandlog-large-request-max-len 0", "+OK");
    client.expect("PING", "+PONG");
    client.expect("COMMANDLOG LEN large-request", ":0");
    let refused = client.call("CONFIG SET commandlog-request-larger-than -2");
    assert!(refused.contains("argument must be between -1 and 9223372036854775807 inclusive"), "{refused}");
}

#[test]
fn wrong_words_are_refused_as_valkey_refuses_them() {
    let server = server();
    let mut client = server.client();
    client.expect("COMMANDLOG GET -2 nosuch", COUNT);
    client.expect("COMMANDLOG GET x slow", COUNT);
    client.expect("COMMANDLOG GET 1 nosuch", TYPE);
    client.expect("COMMANDLOG LEN nosuch", TYPE);
    client.expect("COMMANDLOG RESET nosuch", TYPE);
    client.expect("COMMANDLOG GET 1", "-ERR wrong number of arguments for 'commandlog|get' command");
    client.expect("COMMANDLOG NOSUCH", "-ERR unknown subcommand 'NOSUCH'. Try COMMANDLOG HELP.");
    assert!(client.call("COMMANDLOG HELP").contains("large-reply"));
    client.expect(
        "SLOWLOG GET 1 2",
        "-ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP.",
    );
}

#[test]
fn modules_are_refused_by_name() {
    let server = server();
    let mut client = server.client();
    client.expect("MODULE LOAD /tmp/x.so", "-ERR MODULE LOAD is not possible: Evenkeel loads no modules");
    client.expect(
        "MODULE LOADEX /tmp/x.so CONFIG a b ARGS c",
        "-ERR MODULE LOADEX is not possible: Evenkeel loads no modules",
    );
    client.expect("MODULE UNLOAD x", "-ERR MODULE UNLOAD is not possible: Evenkeel loads no modules");
    client.expect("MODULE LOAD", "-ERR wrong number of arguments for 'module|load' command");
    client.expect("MODULE LIST", "[]");
}
