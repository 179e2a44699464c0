//! Long work that runs elsewhere still answers from one moment, whatever other clients do meanwhile.

use crate::support::{Client, PATIENCE, Server, encode_line, foreign};
use std::time::{Duration, Instant};

/// Sends a command, waits until it is held at a point, lets another client act, and returns the reply.
fn meanwhile(server: &Server, point: &str, line: &str, others: impl FnOnce(&mut Client)) -> String {
    let (mut slow, mut control) = (server.client(), server.client());
    control.expect(&format!("DEBUG POINT {point} HOLD 1"), "+OK");
    slow.send(encode_line(line));
    let deadline = Instant::now() + PATIENCE;
    while control.call(&format!("DEBUG POINT {point}")) != ":1" {
        assert!(Instant::now() < deadline, "{line} did not come to {point}");
        std::thread::sleep(Duration::from_millis(1));
    }
    others(&mut control);
    control.expect(&format!("DEBUG POINT {point} OFF"), "+OK");
    slow.reply()
}

/// Reads `a`, takes its time, reads `b`.
const BOTH: &str = "EVAL \"local a = redis.call('GET', 'a') for i = 1, 3000000 do end return {a, redis.call('GET', 'b')}\" 0";

#[test]
fn a_script_sees_both_of_two_keys_before_a_change_or_both_after_it() {
    if foreign() {
        return;
    }
    let server = Server::start();
    server.client().expect("MSET a 1 b 1", "+OK");
    let seen = meanwhile(&server, "script-step", BOTH, |other| other.expect("MSET a 2 b 2", "+OK"));
    assert!(["[\"1\", \"1\"]", "[\"2\", \"2\"]"].contains(&&*seen), "{seen}");
}

/// Declared keys are all read when the first is asked for: here after one of them was overwritten, and after
/// others changed them.
#[test]
fn a_script_that_overwrites_before_it_reads_is_of_one_moment() {
    if foreign() {
        return;
    }
    let server = Server::start();
    server.client().expect("MSET a 1 b 1", "+OK");
    let script = "EVAL \"redis.call('SET', KEYS[1], 'own') for i = 1, 3000000 do end \
        local a, b, none = redis.call('GET', KEYS[1]), redis.call('GETSET', KEYS[2], 'own'), redis.call('GET', KEYS[3]) \
        return {a, b, none, redis.call('GET', KEYS[2])}\" 3 a b none";
    let seen = meanwhile(&server, "script-step", script, |other| other.expect("MSET a 2 b 2", "+OK"));
    let stands = match &*seen {
        "[\"own\", \"1\", (nil), \"own\"]" => r#"["2", "2", (nil)]"#,
        "[\"own\", \"2\", (nil), \"own\"]" => r#"["own", "own", (nil)]"#,
        _ => panic!("{seen}"),
    };
    server.client().expect("MGET a b none", stands);
}

/// A FLUSHDB makes snapshots unreadable; a script that only reads must notice that, too.
#[test]
fn a_script_that_reads_beside_a_flush_sees_all_or_nothing() {
    if foreign() {
        return;
    }
    let server = Server::start();
    for flush in ["FLUSHDB", "FLUSHALL", "SWAPDB 0 1"] {
        server.client().expect("MSET a 1 b 1", "+OK");
        let seen = meanwhile(&server, "script-step", BOTH, |other| other.expect(flush, "+OK"));
        assert!(["[\"1\", \"1\"]", "[(nil), (nil)]"].contains(&&*seen), "{flush}: {seen}");
    }
}

#[test]
fn a_sort_whose_keys_are_found_on_the_way_sees_all_or_nothing() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("RPUSH ids 2 1", ":2");
    client.expect("MSET weight_1 10 weight_2 20 name_1 one name_2 two", "+OK");
    let sort = "SORT ids BY weight_* GET name_*";
    client.expect(sort, "[\"one\", \"two\"]");
    let seen = meanwhile(&server, "job-start", sort, |other| {
        other.expect("MSET weight_1 20 weight_2 10 name_1 ONE name_2 TWO", "+OK");
    });
    assert!(["[\"one\", \"two\"]", "[\"TWO\", \"ONE\"]"].contains(&&*seen), "{seen}");
    let seen = meanwhile(&server, "job-start", sort, |other| other.expect("FLUSHALL", "+OK"));
    assert!(["[\"TWO\", \"ONE\"]", "[]"].contains(&&*seen), "{seen}");
}
