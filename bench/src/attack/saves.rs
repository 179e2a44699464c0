//! Snapshots and rewrites of the append-only log, while a client writes.

use super::{Attack, GIB, Guard, PLAIN, Stage, Strike};
use crate::fill;
use crate::save::{Writer, await_zero};
use std::io;
use std::time::Instant;

const KEYS: u64 = 5_000_000;
/// SETs a second of the client that writes.
const WRITES: u64 = 20_000;

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "bgsave",
        what: "BGSAVE of {} keys beside 20,000 SET/s",
        setup: |stage| written(stage),
        strike: |stage, _| saved(stage, "BGSAVE", "rdb_bgsave_in_progress"),
        ..SAVED
    },
    Attack {
        name: "rewrite",
        what: "BGREWRITEAOF of {} keys beside 20,000 SET/s",
        setup: |stage| {
            let mut client = stage.server.client()?;
            client.words("CONFIG SET auto-aof-rewrite-percentage 0")?;
            client.words("CONFIG SET appendonly yes")?;
            await_zero(&mut client, "aof_rewrite_in_progress")?;
            written(stage)
        },
        strike: |stage, _| saved(stage, "BGREWRITEAOF", "aof_rewrite_in_progress"),
        ..SAVED
    },
];

const SAVED: Attack = Attack { size: KEYS, memory: (3 * GIB, 0), ..PLAIN };

/// Fills, and writes until the guard is dropped.
fn written(stage: &Stage) -> io::Result<Guard> {
    let keys = stage.scaled(KEYS);
    fill::mset(stage.server, keys)?;
    Ok(Box::new(Writer::start(stage.server, keys, WRITES)?))
}

/// Begins a save, if none is under way, and waits until it has ended.
fn saved(stage: &Stage, command: &'static str, busy: &'static str) -> io::Result<Strike> {
    let mut client = stage.server.client()?;
    Ok(Box::new(move |_| {
        let began = Instant::now();
        match client.words(command) {
            Err(error) if !error.to_string().contains("already in progress") => return Err(error),
            _ => await_zero(&mut client, busy)?,
        }
        Ok(began.elapsed())
    }))
}
