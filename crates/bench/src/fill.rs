//! Fills a server with data, fast.

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::load::{Load, Outcome};
use crate::random::{key40, value40};
use crate::wire;
use std::io;

/// Connections and pipeline of a fill: enough to keep a server busy, few enough for short queues.
const CONNS: usize = 4;
const PIPELINE: usize = 50;
/// Elements of a collection sent with one command.
const BATCH: u64 = 100;

/// Sends one command per number of `numbers`, pipelined over a few connections.
pub fn each(
    server: impl AsRef<Endpoint>,
    mut numbers: impl Iterator<Item = u64>,
    mut write: impl FnMut(&mut Vec<u8>, u64),
) -> io::Result<Outcome> {
    Load::connect(server, CONNS, 1)?.run(PIPELINE, None, &mut |out| match numbers.next() {
        Some(n) => {
            write(out, n);
            true
        }
        None => false,
    })
}

/// `SET key value EX ttl_s` for the 40-byte keys `0..n`.
pub fn strings(server: impl AsRef<Endpoint>, n: u64, ttl_s: u64) -> io::Result<Outcome> {
    let mut ttl = Vec::new();
    wire::decimal(&mut ttl, ttl_s);
    each(server, 0..n, |out, i| wire::command(out, &[b"SET", &key40(i), &value40(i), b"EX", &ttl]))
}

/// The 40-byte keys `0..n` without expiry, a hundred with each MSET: the quickest way to make many.
pub fn mset(server: impl AsRef<Endpoint>, n: u64) -> io::Result<Outcome> {
    let mut at = 0;
    Load::connect(server, CONNS, 1)?.run(4, None, &mut |out| {
        let end = (at + BATCH).min(n);
        if at == end {
            return false;
        }
        wire::put_count(out, 1 + 2 * (end - at) as usize);
        wire::put_word(out, b"MSET");
        for i in at..end {
            wire::put_word(out, &key40(i));
            wire::put_word(out, &value40(i));
        }
        at = end;
        true
    })
}

/// Adds elements `0..n` to the collection at `key`, a hundred with each command: `command key part..`.
/// `parts` appends the `per_element` arguments of one element.
pub fn collection(
    server: impl AsRef<Endpoint>,
    command: &[u8],
    key: &[u8],
    n: u64,
    per_element: u64,
    mut parts: impl FnMut(&mut Vec<u8>, u64),
) -> io::Result<Outcome> {
    let mut load = Load::connect(server, 1, 1)?;
    let mut at = 0;
    load.run(10, None, &mut |out| {
        let end = (at + BATCH).min(n);
        if at == end {
            return false;
        }
        wire::put_count(out, (2 + (end - at) * per_element) as usize);
        wire::put_word(out, command);
        wire::put_word(out, key);
        for i in at..end {
            parts(out, i);
        }
        at = end;
        true
    })
}

/// Appends `n` as a decimal bulk.
pub fn decimal_part(out: &mut Vec<u8>, n: u64) {
    let mut digits = Vec::with_capacity(20);
    wire::decimal(&mut digits, n);
    wire::put_word(out, &digits);
}

/// Sends a command for each number below `n`, one behind the other on one connection, pipelined.
pub fn in_order(
    server: impl AsRef<Endpoint>,
    n: u64,
    mut write: impl FnMut(&mut Vec<u8>, u64),
) -> io::Result<()> {
    const TOGETHER: u64 = 1_000;
    let (mut client, mut commands) = (Client::connect(server)?, Vec::new());
    for from in (0..n).step_by(TOGETHER as usize) {
        let upto = (from + TOGETHER).min(n);
        commands.clear();
        (from..upto).for_each(|i| write(&mut commands, i));
        client.discard(&commands, upto - from)?;
    }
    Ok(())
}
