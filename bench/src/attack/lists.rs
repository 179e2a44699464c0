//! Long lists: copied, read in pieces, changed in the middle.

use super::{Attack, Attacker, GIB, LONG, PLAIN, Stage, Style, nothing, repeat_words};
use crate::fill;
use crate::wire;
use std::io;
use std::time::Duration;

const LONG_LIST: u64 = 10_000_000;
/// Elements read with one LRANGE.
const PIECE: u64 = 1000;

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "copy",
        what: "COPY of a list of {}",
        memory: (GIB, GIB / 4),
        strike: |_, k| {
            Ok(Box::new(move |attacker| {
                attacker.words(&format!("UNLINK copy:{k}"))?;
                attacker.words(&format!("COPY list copy:{k}"))
            }))
        },
        ..IN_A_LIST
    },
    Attack {
        name: "dump",
        what: "DUMP of a list of {}",
        strike: |_, _| repeat_words("DUMP list"),
        ..IN_A_LIST
    },
    Attack {
        name: "lrange-pieces",
        what: "LRANGE by 1000 through a list of {}",
        strike: |stage, _| {
            let n = stage.scaled(LONG_LIST);
            Ok(Box::new(move |attacker| pieces(attacker, n)))
        },
        ..IN_A_LIST
    },
    Attack {
        name: "linsert",
        what: "LINSERT in the middle of {}",
        strike: |stage, _| {
            let n = stage.scaled(LONG_LIST);
            Ok(Box::new(move |attacker| {
                attacker.words(&format!("LINSERT list BEFORE {} inserted", name(n / 2)))
            }))
        },
        ..IN_A_LIST
    },
    Attack {
        name: "lrem",
        what: "LREM of one in the middle of {}",
        strike: |stage, k| {
            // Positions are far apart: a removal moves the attacker's mark, which must not overwrite
            // another's.
            let middle = stage.scaled(LONG_LIST) / 2 + 100 * k as u64;
            Ok(Box::new(move |attacker| {
                attacker.words(&format!("LSET list {middle} marked:{k}"))?;
                attacker.words(&format!("LREM list 1 marked:{k}"))
            }))
        },
        ..IN_A_LIST
    },
    Attack {
        name: "lset",
        what: "LSET in the middle of {}",
        strike: |stage, k| {
            let n = stage.scaled(LONG_LIST);
            repeat_words(&format!("LSET list {} by:{k}", n / 2 + k as u64))
        },
        ..IN_A_LIST
    },
    Attack {
        name: "ltrim",
        what: "LTRIM of {} to its middle half",
        style: Style::Once(LONG),
        memory: (GIB / 2, GIB / 16),
        setup: |_| nothing(),
        refill: |stage| (0..stage.attackers).try_for_each(|k| renew(stage, k, stage.own_share(LONG_LIST))),
        strike: |stage, k| {
            let n = stage.own_share(LONG_LIST);
            Ok(Box::new(move |attacker| attacker.words(&format!("LTRIM list:{k} {} {}", n / 4, n / 4 * 3))))
        },
        ..IN_A_LIST
    },
];

const IN_A_LIST: Attack = Attack {
    size: LONG_LIST,
    memory: (GIB / 2, GIB / 32),
    setup: |stage| {
        list(stage, b"list", stage.scaled(LONG_LIST))?;
        nothing()
    },
    ..PLAIN
};

/// Element `i`.
fn name(i: u64) -> String {
    format!("e{i:09}")
}

fn renew(stage: &Stage, k: usize, n: u64) -> io::Result<()> {
    let key = format!("list:{k}");
    stage.server.client()?.words(&format!("UNLINK {key}"))?;
    list(stage, key.as_bytes(), n)
}

fn list(stage: &Stage, key: &[u8], n: u64) -> io::Result<()> {
    fill::collection(stage.server, b"RPUSH", key, n, 1, |out, i| wire::put_word(out, name(i).as_bytes()))
        .map(|_| ())
}

fn pieces(attacker: &mut Attacker, n: u64) -> io::Result<Duration> {
    let mut total = Duration::ZERO;
    for from in (0..n).step_by(PIECE as usize) {
        total += attacker.words(&format!("LRANGE list {from} {}", from + PIECE - 1))?;
    }
    Ok(total)
}
