//! Strings of half a gigabyte: one far bit, counting, combining, growing.

use super::{Attack, GIB, Guard, PLAIN, Stage, nothing, repeat, repeat_words};
use crate::load::Load;
use crate::random::mix;
use crate::wire;
use std::io;

const BIG: u64 = 512_000_000;
/// Size of the strings for APPEND and SETRANGE: room is left below the limit of a string.
const ROOMY: u64 = 400_000_000;
const CHUNK: u64 = 1 << 20;
const SMALL: [u8; 1024] = [b'+'; 1024];

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "setbit",
        what: "SETBIT of bit {} of a new key",
        size: 4_000_000_000,
        memory: (GIB, GIB),
        strike: |stage, k| {
            let command = format!("SETBIT far:{k} {} 1", stage.scaled(4_000_000_000));
            Ok(Box::new(move |attacker| {
                attacker.words(&format!("UNLINK far:{k}"))?;
                attacker.words(&command)
            }))
        },
        ..PLAIN
    },
    Attack {
        name: "bitcount",
        what: "BITCOUNT of {} bytes",
        size: BIG,
        memory: (GIB, 0),
        setup: |stage| noise(stage, b"a", BIG),
        strike: |_, _| repeat_words("BITCOUNT a"),
        ..PLAIN
    },
    Attack {
        name: "bitop",
        what: "BITOP AND of two of {} bytes",
        size: BIG,
        memory: (4 * GIB, GIB),
        setup: |stage| noise(stage, b"a", BIG).and_then(|_| noise(stage, b"b", BIG)),
        strike: |_, k| repeat_words(&format!("BITOP AND both:{k} a b")),
        ..PLAIN
    },
    Attack {
        name: "bitpos",
        what: "BITPOS of a 0 in {} bytes of ones",
        size: BIG,
        memory: (GIB, 0),
        setup: |stage| chunks(stage, b"a", BIG, |_| 0xff),
        strike: |_, _| repeat_words("BITPOS a 0"),
        ..PLAIN
    },
    Attack {
        name: "append",
        what: "APPEND of 16 bytes to {}",
        size: ROOMY,
        memory: (2 * GIB, 0),
        setup: |stage| noise(stage, b"a", ROOMY),
        strike: |_, _| {
            // Little each time: after seven million of these the string has its greatest length.
            let mut command = Vec::new();
            wire::command(&mut command, &[b"APPEND", b"a", &SMALL[..16]]);
            Ok(Box::new(move |attacker| attacker.exchange(&command, 1)))
        },
        ..PLAIN
    },
    Attack {
        name: "setrange",
        what: "SETRANGE of 1 KB in the middle of {} bytes",
        size: ROOMY,
        memory: (2 * GIB, 0),
        setup: |stage| noise(stage, b"a", ROOMY),
        strike: |stage, k| {
            let at = stage.scaled(ROOMY) / 2 + 1000 * k as u64;
            let mut command = Vec::new();
            wire::command(&mut command, &[b"SETRANGE", b"a", at.to_string().as_bytes(), &SMALL]);
            repeat(command)
        },
        ..PLAIN
    },
];

fn noise(stage: &Stage, key: &[u8], size: u64) -> io::Result<Guard> {
    chunks(stage, key, size, |i| mix(i) as u8)
}

/// Writes a string of `size` bytes at scale, in pieces; byte `i` is `byte(i % 1 MB)`.
fn chunks(stage: &Stage, key: &[u8], size: u64, byte: impl Fn(u64) -> u8) -> io::Result<Guard> {
    let size = stage.scaled(size);
    let chunk: Vec<u8> = (0..CHUNK).map(byte).collect();
    let mut at = 0;
    Load::connect(stage.server, 1, 1)?.run(2, None, &mut |out| {
        let length = CHUNK.min(size - at) as usize;
        if length == 0 {
            return false;
        }
        wire::command(out, &[b"SETRANGE", key, at.to_string().as_bytes(), &chunk[..length]]);
        at += length as u64;
        true
    })?;
    nothing()
}
