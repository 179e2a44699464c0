//! Compressed bitmaps through sockets: scripts that filter lists by a blacklist, transactions, long answers,
//! long commands.

use crate::support::{Client, Server, foreign};
use std::collections::BTreeSet;

const LISTS: usize = 10;

/// A list's name and its ids.
type List = (String, BTreeSet<u64>);

/// The blacklist, and lists of which a few ids are blacklisted, all below 2^32.
fn lists() -> (BTreeSet<u64>, Vec<List>) {
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        seed >> 32
    };
    let x: BTreeSet<u64> = (0..20_000).map(|_| random()).collect();
    let few: Vec<u64> = x.iter().copied().step_by(97).collect();
    let list = |i: usize| {
        let hits = few.iter().skip(i).step_by(LISTS).copied();
        (format!("Y{i}"), hits.chain((0..2_500).map(|_| random())).collect())
    };
    (x, (0..LISTS).map(list).collect())
}

fn fill(client: &mut Client, command: &str, key: &str, ids: &BTreeSet<u64>) {
    let words: Vec<String> = ids.iter().map(u64::to_string).collect();
    for part in words.chunks(5_000) {
        client.call(&format!("{command} {key} {}", part.join(" ")));
    }
}

fn filled(server: &Server) -> (Client, Vec<List>) {
    let mut client = server.client();
    let (x, lists) = lists();
    fill(&mut client, "R.APPENDINTARRAY", "X", &x);
    lists.iter().for_each(|(key, ids)| fill(&mut client, "R.APPENDINTARRAY", key, ids));
    let left = |(key, ids): List| (key, ids.difference(&x).copied().collect());
    (client, lists.into_iter().map(left).collect())
}

fn answer(ids: &BTreeSet<u64>) -> String {
    let ids: Vec<String> = ids.iter().map(|id| format!(":{id}")).collect();
    format!("[{}]", ids.join(", "))
}

fn run(client: &mut Client, script: &str, keys: &[&str]) -> String {
    let count = keys.len().to_string();
    let mut words: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), count.as_bytes()];
    words.extend(keys.iter().map(|key| key.as_bytes()));
    client.request(&words);
    client.reply()
}

/// The way of servers without a difference: turn X's bits round in Y, keep the bits that both have.
const BY_XOR: &str = "redis.call('R.BITOP', 'XOR', 'tmp', KEYS[2], KEYS[1]) \
    redis.call('R.BITOP', 'AND', 'tmp', KEYS[2], 'tmp') \
    local ids = redis.call('R.GETINTARRAY', 'tmp') redis.call('DEL', 'tmp') return ids";

/// Quicker, at the price of Y.
const BY_CLEARING: &str = "redis.call('R.BITOP', 'AND', 'tmp', KEYS[2], KEYS[1]) \
    for _, id in ipairs(redis.call('R.GETINTARRAY', 'tmp')) do redis.call('R.SETBIT', KEYS[2], id, 0) end \
    redis.call('DEL', 'tmp') return redis.call('R.GETINTARRAY', KEYS[2])";

const BY_DIFF: &str = "redis.call('R.DIFF', 'tmp', KEYS[2], KEYS[1]) \
    local ids = redis.call('R.GETINTARRAY', 'tmp') redis.call('DEL', 'tmp') return ids";

#[test]
fn scripts_filter_lists_by_a_blacklist() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, left) = filled(&server);
    for script in [BY_XOR, BY_DIFF, BY_CLEARING] {
        for (key, ids) in &left {
            assert_eq!(run(&mut client, script, &["X", key]), answer(ids), "{key}: {script}");
        }
    }
    // By now the lists themselves have no blacklisted ids.
    for (key, ids) in &left {
        client.expect(&format!("R.BITCOUNT {key}"), &format!(":{}", ids.len()));
        client.expect(&format!("R.CONTAINS X {key}"), ":0");
    }
    client.expect("EXISTS tmp", ":0");
}

#[test]
fn the_same_in_transactions_and_without_a_script() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, left) = filled(&server);
    for (key, ids) in &left {
        client.expect(&format!("R.BITOP DIFF kept {key} X"), &format!(":{}", ids.len()));
        client.expect("R.GETINTARRAY kept", &answer(ids));
        client.expect("MULTI", "+OK");
        client.expect(&format!("R.DIFF tmp {key} X"), "+QUEUED");
        client.expect("R.GETINTARRAY tmp", "+QUEUED");
        client.expect("DEL tmp", "+QUEUED");
        client.expect("EXEC", &format!("[+OK, {}, :1]", answer(ids)));
    }
}

#[test]
fn what_is_long_is_done_aside() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    // 4,000 chunks in which a bitmap is the shortest form.
    let script = "for i = 0, 3999 do local from = i * 65536 for j = 0, 15 do \
        redis.call('R.SETRANGE', KEYS[1], from + j * 4000, from + j * 4000 + 1000 + i % 7) end end";
    assert_eq!(run(&mut client, script, &["a"]), "(nil)");
    client.expect("R.SETFULL all", "+OK");
    client.expect("R.BITOP NOT b a", ":197947562");
    client.request(&[b"R.BITOP", b"XOR", b"c", b"a", b"b"]);
    for i in 0..100 {
        other.expect(&format!("R.SETBIT small {i} 1"), ":0");
    }
    assert_eq!(client.reply(), ":262139466");
    client.expect("R.JACCARD a b", "\"0\"");
    client.expect("COPY b d", ":1");
    client.expect("R.SETBIT d 0 1", ":0");
    client.expect("R.CONTAINS d b ALL_STRICT", ":1");
    client.expect("R.BITOP AND e all d", ":197947563");
}

#[test]
fn a_long_answer_is_streamed_from_what_was_there() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.expect("R.SETRANGE k 1000 401000", "+OK");
    client.request(&[b"R.GETINTARRAY", b"k"]);
    other.expect("R.CLEAR k", ":400000");
    let numbers: BTreeSet<u64> = (1000..401_000).collect();
    let reply = client.reply();
    // It was cleared before or after, but not while it was written.
    assert!(reply == answer(&numbers) || reply == "[]", "{}", reply.len());
    client.expect("R64.SETRANGE w 18446744073709551600 18446744073709551615", "+OK");
    client.expect("R64.MAX w", "\"18446744073709551614\"");
}

#[test]
fn they_are_found_by_their_type_and_told_apart_by_digest() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    client.expect("R.SETINTARRAY narrow 1 2", "+OK");
    client.expect("R64.SETINTARRAY wide 1 2", "+OK");
    client.expect("SET text 12", "+OK");
    client.expect("SCAN 0 TYPE reroaring COUNT 100000", r#"["0", ["narrow"]]"#);
    client.expect("SCAN 0 TYPE roaring64 COUNT 100000", r#"["0", ["wide"]]"#);
    let digest = client.call("DEBUG DIGEST-VALUE narrow");
    assert_ne!(digest, client.call("DEBUG DIGEST-VALUE wide"));
    client.expect("COPY narrow copy", ":1");
    assert_eq!(digest, client.call("DEBUG DIGEST-VALUE copy"));
    client.expect("R.SETBIT copy 1 0", ":1");
    assert_ne!(digest, client.call("DEBUG DIGEST-VALUE copy"));
    client.expect("R.SETBIT copy", "-ERR wrong number of arguments for 'R.SETBIT' command");
}
