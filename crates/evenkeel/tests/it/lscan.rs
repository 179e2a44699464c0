//! LSCAN through sockets: walks of lists that others change, snapshots that are given up, transactions and
//! scripts.

use crate::held::{await_figure, figure};
use crate::support::{Client, PATIENCE, Server, foreign};
use std::time::{Duration, Instant};

const MANY: usize = 5_000;

const EXPIRED: &str =
    "-LSCANEXPIRED The snapshot of this cursor is no longer kept, start again with cursor 0";
const TOO_LARGE: &str = "-ERR The list is larger than lscan-max-bytes, it can only be walked without STABLE";

fn elements(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|i| format!("element:{i}")).collect()
}

/// A server with long lists; none if the server under test has no LSCAN.
fn laden(keys: &[&str]) -> Option<Server> {
    if foreign() {
        return None;
    }
    let server = Server::start();
    for key in keys {
        let pushed = server.client().call(&format!("RPUSH {key} {}", elements(0..MANY).join(" ")));
        assert_eq!(pushed, format!(":{MANY}"));
    }
    Some(server)
}

/// The cursor and the elements of a reply.
fn page(reply: &str) -> (String, Vec<String>) {
    let parts = reply.strip_prefix("[\"").and_then(|rest| rest.strip_suffix("]]")?.split_once("\", ["));
    let (cursor, found) = parts.unwrap_or_else(|| panic!("no page: {reply}"));
    let found = found.split(", ").filter(|word| !word.is_empty());
    (cursor.to_owned(), found.map(|word| word.trim_matches('"').to_owned()).collect())
}

#[track_caller]
fn lscan(client: &mut Client, words: &str) -> (String, Vec<String>) {
    page(&client.call(&format!("LSCAN {words}")))
}

/// The rest of a walk, 700 elements at a time.
fn rest(client: &mut Client, key: &str, mut cursor: String) -> Vec<String> {
    let mut seen = Vec::new();
    while cursor != "0" {
        let (next, found) = lscan(client, &format!("{key} {cursor} COUNT 700"));
        seen.extend(found);
        cursor = next;
    }
    seen
}

fn kept(client: &mut Client) -> (u64, u64) {
    (figure(client, "lscan_lists_kept"), figure(client, "lscan_bytes_kept"))
}

#[test]
fn a_walk_neither_repeats_nor_skips_what_stays() {
    let Some(server) = laden(&["l"]) else { return };
    let (mut walker, mut other) = (server.client(), server.client());
    let (mut cursor, mut seen) = lscan(&mut walker, "l 0 COUNT 90");
    for round in 0.. {
        let change = ["RPOPLPUSH l l", "LPUSH l x y z", "LTRIM l 4 -1"][round % 3];
        other.call(change);
        let (next, found) = lscan(&mut walker, &format!("l {cursor} COUNT 90"));
        seen.extend(found);
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    // Some elements at the end went to the front, where the walk had already been.
    let len = seen.len();
    assert!((MANY - 60..MANY).contains(&len), "{len} elements");
    assert_eq!(seen, elements(0..len));
}

#[test]
fn a_stable_walk_shows_one_moment_whatever_others_do() {
    let Some(server) = laden(&["l"]) else { return };
    let (mut walker, mut other) = (server.client(), server.client());
    let (cursor, first) = lscan(&mut walker, "l 0 STABLE COUNT 300");
    let (lists, bytes) = kept(&mut other);
    assert!(lists == 1 && bytes > MANY as u64, "{lists} lists, {bytes} bytes");
    other.expect("LINSERT l BEFORE element:4000 new", &format!(":{}", MANY + 1));
    other.expect("LREM l 0 element:4001", ":1");
    let again = lscan(&mut walker, &format!("l {cursor} COUNT 300"));
    other.expect("DEL l", ":1");
    // Any page may be asked for again, on any connection, for its key alone.
    assert_eq!(lscan(&mut other, &format!("l {cursor} COUNT 300")), again);
    other.expect(&format!("LSCAN k {cursor}"), EXPIRED);
    other.expect("SELECT 1", "+OK");
    other.expect(&format!("LSCAN l {cursor}"), EXPIRED);
    let seen = [first, rest(&mut walker, "l", cursor.clone())].concat();
    assert_eq!(seen, elements(0..MANY));
    assert_eq!(kept(&mut other), (0, 0), "the walk has ended");
    walker.expect(&format!("LSCAN l {cursor}"), EXPIRED);
}

#[test]
fn a_snapshot_goes_when_it_is_too_old() {
    let Some(server) = laden(&["l"]) else { return };
    let mut client = server.client();
    let (cursor, _) = lscan(&mut client, "l 0 STABLE");
    client.expect("CONFIG SET lscan-max-age 1", "+OK");
    let deadline = Instant::now() + PATIENCE;
    while client.call(&format!("LSCAN l {cursor}")) != EXPIRED {
        assert!(Instant::now() < deadline, "it is kept");
        std::thread::sleep(Duration::from_millis(20));
    }
    await_figure(&mut client, "lscan_lists_kept", |lists| lists == 0);
    assert_eq!(kept(&mut client), (0, 0));
    // A client that starts again gets on.
    client.expect("CONFIG SET lscan-max-age 3600", "+OK");
    let (cursor, first) = lscan(&mut client, "l 0 STABLE COUNT 4000");
    assert_eq!([first, rest(&mut client, "l", cursor)].concat(), elements(0..MANY));
}

#[test]
fn snapshots_take_no_more_than_they_may() {
    let Some(server) = laden(&["a", "b"]) else { return };
    let mut client = server.client();
    let (a, _) = lscan(&mut client, "a 0 STABLE");
    let (_, bytes) = kept(&mut client);
    // There is room for one snapshot, and the later one gets it.
    client.expect(&format!("CONFIG SET lscan-max-bytes {}", bytes + bytes / 2), "+OK");
    let (b, _) = lscan(&mut client, "b 0 STABLE");
    client.expect(&format!("LSCAN a {a}"), EXPIRED);
    assert_eq!(rest(&mut client, "b", b).len(), MANY - 10);
    // A client told to start again could not get on: the list itself is too large.
    client.expect(&format!("CONFIG SET lscan-max-bytes {}", bytes / 2), "+OK");
    for _ in 0..3 {
        client.expect("LSCAN a 0 STABLE", TOO_LARGE);
    }
    client.expect("MULTI", "+OK");
    client.expect("LSCAN a 0 STABLE", "+QUEUED");
    client.expect("EXEC", &format!("[{TOO_LARGE}]"));
    let script = "EVAL \"return redis.pcall('LSCAN', KEYS[1], 0, 'STABLE').err\" 1 a";
    client.expect(script, &format!("{:?}", &TOO_LARGE[1..]));
    assert_eq!(lscan(&mut client, &format!("a 0 STABLE COUNT {MANY}")), ("0".to_owned(), elements(0..MANY)));
    let (cursor, first) = lscan(&mut client, "a 0");
    assert_eq!([first, rest(&mut client, "a", cursor)].concat(), elements(0..MANY));
    client.expect("CONFIG SET lscan-max-bytes 0", "+OK");
    let (cursor, _) = lscan(&mut client, "a 0 STABLE");
    assert_eq!(rest(&mut client, "a", cursor).len(), MANY - 10);
}

#[test]
fn transactions_walk_and_begin_walks() {
    let Some(server) = laden(&["l"]) else { return };
    let mut client = server.client();
    let (cursor, _) = lscan(&mut client, "l 0 STABLE COUNT 1000");
    client.expect("MULTI", "+OK");
    let before = format!("LSCAN l {cursor} COUNT 3");
    for line in ["RPUSH l last", "LSCAN l 0 STABLE COUNT 10", "DEL l", "LSCAN l 0 STABLE", &before] {
        client.expect(line, "+QUEUED");
    }
    let reply = client.call("EXEC");
    let inner = reply.strip_prefix(&format!("[:{}, ", MANY + 1)).unwrap_or_else(|| panic!("{reply}"));
    let (begun, inner) = inner.split_once(", :1, ").expect("DEL's reply");
    let (begun, first) = page(begun);
    let (empty, inner) = inner.split_once("]], ").expect("a page of none");
    assert_eq!(empty, "[\"0\", [");
    let (_, of_before) = page(inner.strip_suffix(']').expect("the end"));
    assert_eq!(of_before, elements(1000..1003), "the walk that was begun before");
    // The list as it was in the middle of the transaction.
    let seen = [first, rest(&mut client, "l", begun)].concat();
    assert_eq!((&seen[..MANY], &*seen[MANY]), (&elements(0..MANY)[..], "last"));
    assert_eq!(rest(&mut client, "l", cursor), elements(1000..MANY));
}

#[test]
fn scripts_walk_lists_however_long_they_run() {
    let Some(server) = laden(&["l"]) else { return };
    let mut client = server.client();
    let walk = "local words, seen = {KEYS[1], 0, 'COUNT', 100, ARGV[2]}, 0 \
                repeat local page = redis.call('LSCAN', unpack(words)) \
                words[2], seen = page[1], seen + #page[2] until page[1] == '0' \
                for i = 1, tonumber(ARGV[1]) do end return seen";
    // A loop gives up a long read, and a thread runs it again from its start.
    for words in [&["0"][..], &["0", "STABLE"], &["3000000"], &["3000000", "STABLE"]] {
        let mut all: Vec<&[u8]> = vec![b"EVAL", walk.as_bytes(), b"1", b"l"];
        all.extend(words.iter().map(|word| word.as_bytes()));
        assert_eq!(client.call_bytes(&all), format!(":{MANY}"), "{words:?}");
    }
    // The same with an earlier cursor, whose walk ends with the first run.
    let (cursor, _) = lscan(&mut client, "l 0 STABLE COUNT 1000");
    let end = "local page = redis.call('LSCAN', KEYS[1], ARGV[1], 'COUNT', 100000) \
               for i = 1, 3000000 do end return page[1] .. ' ' .. #page[2]";
    for _ in 0..2 {
        let reply = client.call_bytes(&[b"EVAL", end.as_bytes(), b"1", b"l", cursor.as_bytes()]);
        assert_eq!(reply, format!("\"0 {}\"", MANY - 1000));
    }
    client.expect("LLEN l", &format!(":{MANY}"));
}

#[test]
fn mistakes_are_told() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("SET s x", "+OK");
    client.expect("LSCAN s 0", "-WRONGTYPE Operation against a key holding the wrong kind of value");
    for (line, reply) in [
        ("LSCAN l", "-ERR wrong number of arguments for 'lscan' command"),
        ("LSCAN l x", "-ERR invalid cursor"),
        ("LSCAN l 0 COUNT", "-ERR syntax error"),
        ("LSCAN l 0 STABLE STABLE", "-ERR syntax error"),
        ("LSCAN l 0 STABLE", "[\"0\", []]"),
        ("LSCAN l 18446744073709551615", EXPIRED),
        ("LSCAN l 18446744073709551616", "-ERR invalid cursor"),
        ("LSCAN l 9223372036854775807 COUNT 9223372036854775807", "[\"0\", []]"),
    ] {
        client.expect(line, reply);
    }
}
