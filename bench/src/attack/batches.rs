//! Large commands, and many commands at once.

use super::{Attack, Attacker, GIB, PLAIN, Stage, Strike};
use crate::fill;
use crate::random::{hex16, mix};
use crate::wire;
use std::io;

const SIZE: u64 = 100_000;

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "mset",
        what: "MSET of {} pairs",
        strike: |stage, k| {
            plain(many(b"MSET", None, stage, |out, i| {
                wire::put_word(out, &own_key(k, i));
                wire::put_word(out, &hex16(i));
            }))
        },
        ..BATCH
    },
    Attack {
        name: "sadd",
        what: "SADD of {} members",
        strike: |stage, k| afresh(k, many(b"SADD", Some(k), stage, |out, i| wire::put_word(out, &hex16(i)))),
        ..BATCH
    },
    Attack {
        name: "rpush",
        what: "RPUSH of {} elements",
        strike: |stage, k| afresh(k, many(b"RPUSH", Some(k), stage, |out, i| wire::put_word(out, &hex16(i)))),
        ..BATCH
    },
    Attack {
        name: "hset",
        what: "HSET of {} fields",
        strike: |stage, k| {
            afresh(
                k,
                many(b"HSET", Some(k), stage, |out, i| {
                    wire::put_word(out, &hex16(i));
                    wire::put_word(out, &hex16(!i));
                }),
            )
        },
        ..BATCH
    },
    Attack {
        name: "zadd",
        what: "ZADD of {} members",
        strike: |stage, k| {
            afresh(
                k,
                many(b"ZADD", Some(k), stage, |out, i| {
                    fill::decimal_part(out, mix(i) >> 32);
                    wire::put_word(out, &hex16(i));
                }),
            )
        },
        ..BATCH
    },
    Attack { name: "del-many", what: "DEL of {} keys", strike: delete_many, ..BATCH },
    Attack { name: "pipeline", what: "a pipeline of {} SET", strike: pipeline, ..BATCH },
    Attack { name: "multi", what: "MULTI, {} SET, EXEC", strike: multi, ..BATCH },
];

const BATCH: Attack = Attack { size: SIZE, memory: (GIB / 2, GIB / 16), ..PLAIN };

/// A key of attacker `k`.
fn own_key(k: usize, i: u64) -> Vec<u8> {
    format!("batch:{k}:{i}").into_bytes()
}

/// One command with as many parts as the batch has.
fn many(command: &[u8], key: Option<usize>, stage: &Stage, part: impl Fn(&mut Vec<u8>, u64)) -> Vec<u8> {
    let mut parts = Vec::new();
    (0..stage.scaled(SIZE)).for_each(|i| part(&mut parts, i));
    let bulks = stage.scaled(SIZE) as usize * bulks_per_part(&part);
    let mut out = Vec::new();
    wire::put_count(&mut out, 1 + usize::from(key.is_some()) + bulks);
    wire::put_word(&mut out, command);
    if let Some(k) = key {
        wire::put_word(&mut out, format!("batch:{k}").as_bytes());
    }
    out.append(&mut parts);
    out
}

fn bulks_per_part(part: &impl Fn(&mut Vec<u8>, u64)) -> usize {
    let mut one = Vec::new();
    part(&mut one, 0);
    one.iter().filter(|&&byte| byte == b'$').count()
}

fn plain(command: Vec<u8>) -> io::Result<Strike> {
    Ok(Box::new(move |attacker| attacker.exchange(&command, 1)))
}

/// Removes the attacker's value first, untimed.
fn afresh(k: usize, command: Vec<u8>) -> io::Result<Strike> {
    Ok(Box::new(move |attacker| {
        attacker.words(&format!("UNLINK batch:{k}"))?;
        attacker.exchange(&command, 1)
    }))
}

/// Writes the keys first, untimed.
fn delete_many(stage: &Stage, k: usize) -> io::Result<Strike> {
    let write = many(b"MSET", None, stage, |out, i| {
        wire::put_word(out, &own_key(k, i));
        wire::put_word(out, &hex16(i));
    });
    let delete = many(b"DEL", None, stage, |out, i| wire::put_word(out, &own_key(k, i)));
    Ok(Box::new(move |attacker: &mut Attacker| {
        attacker.exchange(&write, 1)?;
        attacker.exchange(&delete, 1)
    }))
}

fn sets(stage: &Stage, k: usize, out: &mut Vec<u8>) {
    for i in 0..stage.scaled(SIZE) {
        wire::command(out, &[b"SET", &own_key(k, i), &hex16(i)]);
    }
}

fn pipeline(stage: &Stage, k: usize) -> io::Result<Strike> {
    let (mut out, n) = (Vec::new(), stage.scaled(SIZE));
    sets(stage, k, &mut out);
    Ok(Box::new(move |attacker| attacker.exchange(&out, n)))
}

fn multi(stage: &Stage, k: usize) -> io::Result<Strike> {
    let (mut out, n) = (Vec::new(), stage.scaled(SIZE));
    wire::command(&mut out, &[b"MULTI"]);
    sets(stage, k, &mut out);
    wire::command(&mut out, &[b"EXEC"]);
    Ok(Box::new(move |attacker| attacker.exchange(&out, n + 2)))
}
