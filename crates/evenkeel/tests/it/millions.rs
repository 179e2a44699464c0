//! The law with a million entries, for streams, places and HyperLogLogs: long commands are jobs or answer in
//! pieces, and answer right. A server built without optimization gets a tenth of that.
//!
//! ```text
//! DEBUG POINT job-end HOLD 1 ─▶ XTRIM of 1M ─▶ held off the loop ─▶ others: served ─▶ OFF ─▶ its reply
//! ```
//!
//! - M1: a command that comes to `job-start`, `job-end` or `stream` does not run in one go on a loop.
//! - M2: a command that is answered while nobody may pass `job-start` takes no time that grows with the value.
//!
//! No time is measured. Cost: some seconds to fill the server, which all cases share.

use crate::held::{Hold, held, lade, others_are_served};
use crate::support::{Client, Server, encode_line, foreign};

const ENTRIES: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
const SKETCHES: usize = 1000;
/// Requests sent together.
const TOGETHER: usize = 2_000;

/// A server with a stream and a set of places of [`ENTRIES`] each, and a thousand sketches.
fn laden() -> Server {
    let server = lade(Server::start());
    let mut client = server.client();
    piped(&mut client, ENTRIES, |i| {
        let id = format!("{}-1", i + 1);
        (format!("XADD s {id} n {}\r\n", i + 1), format!("${}\r\n{id}\r\n", id.len()))
    });
    let place = |i: usize| format!(" {}.{:03} {}.{:03} p{i}", i % 180, i % 1000, i % 80, i / 1000);
    piped(&mut client, ENTRIES / 20, |i| {
        let places: String = (20 * i..20 * (i + 1)).map(place).collect();
        (format!("GEOADD places{places}\r\n"), ":20\r\n".to_owned())
    });
    let words: String = (0..10_000).map(|i| format!(" e{i}")).collect();
    client.expect(&format!("PFADD sketch:0{words}"), ":1");
    client.expect("PFDEBUG ENCODING sketch:0", "+dense");
    piped(&mut client, SKETCHES - 1, |i| {
        (format!("COPY sketch:0 sketch:{}\r\n", i + 1), ":1\r\n".to_owned())
    });
    server
}

/// Sends numbered requests, many together, and compares their replies.
fn piped(client: &mut Client, count: usize, pair: impl Fn(usize) -> (String, String)) {
    for from in (0..count).step_by(TOGETHER) {
        let (requests, replies): (String, String) = (from..(from + TOGETHER).min(count)).map(&pair).unzip();
        client.send(requests);
        assert!(client.raw(replies.len()) == replies.as_bytes(), "not the replies expected from {from} on");
    }
}

/// The bytes of all entries in a reply.
fn entries_bytes() -> usize {
    let digits = |n: usize| n.ilog10() as usize + 1;
    let bulk = |len: usize| 1 + digits(len) + 2 + len + 2;
    let entry = |n: usize| 2 * "*2\r\n".len() + bulk(digits(n) + 2) + bulk(1) + bulk(digits(n));
    (1..=ENTRIES).map(entry).sum()
}

/// Holds a reply after its first piece, serves others, and reads the rest: its length without the entries (M1).
fn streamed(server: &Server, line: &str) -> usize {
    let mut hold = Hold::first_at(server, "stream");
    let mut attacker = server.client();
    attacker.send([encode_line(line), encode_line("ECHO the-end")].concat());
    hold.await_victim();
    others_are_served(server);
    hold.release();
    attacker.skip(entries_bytes());
    let mut rest = Vec::new();
    while !rest.ends_with(b"$7\r\nthe-end\r\n") {
        rest.extend(attacker.raw(1));
        assert!(rest.len() < 2000, "{line} answers more than its entries");
    }
    rest.len() - "$7\r\nthe-end\r\n".len()
}

fn answers_of_a_million_entries_stream(server: &Server) {
    let head = format!("*{ENTRIES}\r\n").len();
    assert_eq!(streamed(server, "XRANGE s - +"), head);
    assert_eq!(streamed(server, "XREVRANGE s + -"), head);
    assert_eq!(streamed(server, "XREAD STREAMS s 0"), head + "*1\r\n*2\r\n$1\r\ns\r\n".len());
    assert!(streamed(server, "XINFO STREAM s FULL COUNT 0") > head);
}

/// An entry, as replies show it.
fn entry(n: usize) -> String {
    format!("[\"{n}-1\", [\"n\", \"{n}\"]]")
}

/// Short answers about a long stream are right, while long commands are held off the loop.
fn short_answers_are_right(server: &Server) {
    let mut hold = Hold::first_at(server, "job-end");
    let (mut attacker, mut client) = (server.client(), server.client());
    client.expect("COPY s doomed REPLACE", ":1");
    attacker.send(encode_line("XTRIM doomed MAXLEN 0"));
    hold.await_victim();
    let (first, last, middle) = (entry(1), entry(ENTRIES), entry(ENTRIES / 2));
    client.expect("XLEN doomed", &format!(":{ENTRIES}"));
    client.expect("XRANGE s - + COUNT 1", &format!("[{first}]"));
    client.expect("XREVRANGE s + - COUNT 1", &format!("[{last}]"));
    client.expect(&format!("XRANGE s {0} {0}", ENTRIES / 2), &format!("[{middle}]"));
    client.expect(&format!("XRANGE s ({ENTRIES}-1 +"), "[]");
    client.expect(&format!("XREVRANGE s + {ENTRIES}"), &format!("[{last}]"));
    client.expect(&format!("XREAD STREAMS s {}-1", ENTRIES - 1), &format!("[[\"s\", [{last}]]]"));
    let info = client.call("XINFO STREAM s");
    for part in [
        format!("\"length\", :{ENTRIES}"),
        format!("\"last-generated-id\", \"{ENTRIES}-1\""),
        format!("\"entries-added\", :{ENTRIES}"),
        format!("\"first-entry\", {first}"),
        format!("\"last-entry\", {last}"),
    ] {
        assert!(info.contains(&part), "{part}: {info}");
    }
    client.expect("ZCARD places", &format!(":{ENTRIES}"));
    hold.release();
    attacker.expect_reply(&format!(":{ENTRIES}"));
    client.expect("XLEN doomed", ":0");
}

fn long_commands_are_jobs(server: &Server) {
    let mut client = server.client();
    let names: String = (0..SKETCHES).map(|i| format!(" sketch:{i}")).collect();
    let counted = client.call("PFCOUNT sketch:0");
    for point in ["job-start", "job-end"] {
        client.expect("COPY s doomed REPLACE", ":1");
        assert_eq!(held(server, point, "XTRIM doomed MAXLEN 0"), format!(":{ENTRIES}"));
        client.expect("COPY s doomed REPLACE", ":1");
        let kept = ENTRIES / 10;
        let trim = format!("XTRIM doomed MINID {}", ENTRIES - kept + 1);
        assert_eq!(held(server, point, &trim), format!(":{}", ENTRIES - kept));
        client.expect("XLEN doomed", &format!(":{kept}"));
        let first = entry(ENTRIES - kept + 1);
        client.expect("XRANGE doomed - + COUNT 1", &format!("[{first}]"));
        client.expect("XREVRANGE doomed + - COUNT 1", &format!("[{}]", entry(ENTRIES)));
        assert_eq!(held(server, point, &format!("PFMERGE merged{names}")), "+OK");
        client.expect("PFCOUNT merged", &counted);
        assert_eq!(held(server, point, &format!("PFCOUNT{names}")), counted);
        let near = held(server, point, "GEOSEARCH places FROMLONLAT 90 40 BYRADIUS 20000 km ASC COUNT 3");
        assert_eq!(near.matches("\"p").count(), 3, "{near}");
        let stored =
            held(server, point, "GEOSEARCHSTORE near places FROMLONLAT 90 40 BYBOX 2000 2000 km ASC COUNT 5");
        assert_eq!(stored, ":5");
        // No two places on earth are farther apart.
        let all =
            held(server, point, "GEOSEARCHSTORE all places FROMLONLAT 90 40 BYRADIUS 21000 km STOREDIST");
        assert_eq!(all, format!(":{ENTRIES}"));
    }
}

fn a_copy_shares_what_it_copies(server: &Server) {
    let mut client = server.client();
    let hold = Hold::first_at(server, "job-start");
    for key in ["s", "places", "sketch:0"] {
        client.expect(&format!("COPY {key} copy:{key}"), ":1"); // M2
    }
    hold.release();
    client.expect("XADD copy:s 9000000-1 n more", "\"9000000-1\"");
    client.expect("XLEN s", &format!(":{ENTRIES}"));
}

fn what_goes_is_freed_elsewhere(server: &Server) {
    let mut client = server.client();
    client.expect("RENAME copy:places places", "+OK");
    // Only the last owner frees anything.
    client.expect("DEL doomed s", ":2");
    for line in ["DEL copy:s", "UNLINK places"] {
        let mut hold = Hold::first_at(server, "reclaim");
        client.expect(line, ":1");
        hold.await_victim();
        others_are_served(server);
        hold.release();
    }
}

#[test]
fn a_million_of_anything_new_is_nobodys_business() {
    if foreign() {
        return;
    }
    let server = laden();
    answers_of_a_million_entries_stream(&server);
    short_answers_are_right(&server);
    long_commands_are_jobs(&server);
    a_copy_shares_what_it_copies(&server);
    what_goes_is_freed_elsewhere(&server);
}
