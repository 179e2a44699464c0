//! Large reads: set algebra, whole collections, all keys, sorting.

use super::{Attack, GIB, Guard, PLAIN, Stage, nothing, repeat_words};
use crate::fill;
use crate::random::{Scattered, hex16, mix};
use crate::wire;
use std::io;

const MILLION: u64 = 1_000_000;

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "sdiff",
        what: "SDIFF of two sets of {}",
        strike: |_, _| repeat_words("SDIFF a b"),
        ..TWO_SETS
    },
    Attack {
        name: "sunion",
        what: "SUNION of two sets of {}",
        strike: |_, _| repeat_words("SUNION a b"),
        ..TWO_SETS
    },
    Attack {
        name: "sinter",
        what: "SINTER of two sets of {}",
        strike: |_, _| repeat_words("SINTER a b"),
        ..TWO_SETS
    },
    Attack {
        name: "smembers",
        what: "SMEMBERS of {}",
        strike: |_, _| repeat_words("SMEMBERS a"),
        ..TWO_SETS
    },
    Attack {
        name: "hgetall",
        what: "HGETALL of {}",
        size: MILLION,
        memory: (GIB, GIB / 16),
        setup: |stage| {
            fill::collection(stage.server, b"HSET", b"h", stage.scaled(MILLION), 2, |out, i| {
                wire::put_word(out, &hex16(i)[..10]);
                wire::put_word(out, &hex16(!i)[..10]);
            })?;
            nothing()
        },
        strike: |_, _| repeat_words("HGETALL h"),
        ..PLAIN
    },
    Attack {
        name: "lrange",
        what: "LRANGE 0 -1 of {}",
        size: 2 * MILLION,
        memory: (GIB, GIB / 16),
        setup: |stage| numbers(stage, b"l", stage.scaled(2 * MILLION)),
        strike: |_, _| repeat_words("LRANGE l 0 -1"),
        ..PLAIN
    },
    Attack {
        name: "zrange",
        what: "ZRANGE 0 -1 of {}",
        size: MILLION,
        memory: (GIB, GIB / 16),
        setup: |stage| zset(stage, b"z", stage.scaled(MILLION), 0),
        strike: |_, _| repeat_words("ZRANGE z 0 -1"),
        ..PLAIN
    },
    Attack {
        name: "keys",
        what: "KEYS * over {} keys",
        size: MILLION,
        memory: (GIB, GIB / 8),
        setup: |stage| fill::mset(stage.server, stage.scaled(MILLION)).and_then(|_| nothing()),
        strike: |_, _| repeat_words("KEYS *"),
        ..PLAIN
    },
    Attack {
        name: "keys10m",
        what: "KEYS * over {} keys",
        size: 10 * MILLION,
        memory: (4 * GIB, GIB / 2),
        setup: |stage| fill::mset(stage.server, stage.scaled(10 * MILLION)).and_then(|_| nothing()),
        strike: |_, _| repeat_words("KEYS *"),
        ..PLAIN
    },
    Attack { name: "sort", what: "SORT of {}", strike: |_, _| repeat_words("SORT l"), ..SORTED },
    Attack {
        name: "sort-store",
        what: "SORT of {}, STORE",
        strike: |_, k| repeat_words(&format!("SORT l STORE sorted:{k}")),
        ..SORTED
    },
    Attack {
        name: "sort-by-get",
        what: "SORT of {}, BY and GET",
        strike: |_, _| repeat_words("SORT l BY w:* GET v:*"),
        ..SORTED_BY
    },
    Attack {
        name: "sort-by-get-store",
        what: "SORT of {}, BY, GET and STORE",
        strike: |_, k| repeat_words(&format!("SORT l BY w:* GET v:* STORE sorted:{k}")),
        ..SORTED_BY
    },
    Attack {
        name: "zunionstore",
        what: "ZUNIONSTORE of two of {}",
        strike: |_, k| repeat_words(&format!("ZUNIONSTORE z:{k} 2 z1 z2")),
        ..TWO_ZSETS
    },
    Attack {
        name: "zinterstore",
        what: "ZINTERSTORE of two of {}",
        strike: |_, k| repeat_words(&format!("ZINTERSTORE z:{k} 2 z1 z2")),
        ..TWO_ZSETS
    },
];

/// Two sets that share half their members.
const TWO_SETS: Attack = Attack {
    size: MILLION,
    memory: (GIB, GIB / 8),
    setup: |stage| {
        let n = stage.scaled(MILLION);
        set(stage, b"a", n, 0)?;
        set(stage, b"b", n, n / 2)?;
        nothing()
    },
    ..PLAIN
};

const SORTED: Attack = Attack {
    size: MILLION,
    memory: (GIB, GIB / 8),
    setup: |stage| numbers(stage, b"l", stage.scaled(MILLION)),
    ..PLAIN
};

/// A list of numbers out of order, each with a weight and a text beside it.
const SORTED_BY: Attack = Attack {
    size: MILLION,
    memory: (GIB, GIB / 8),
    setup: |stage| {
        let n = stage.scaled(MILLION);
        let mut order = Scattered::new(n);
        fill::collection(stage.server, b"RPUSH", b"l", n, 1, |out, _| {
            fill::decimal_part(out, order.next().unwrap_or(0))
        })?;
        fill::each(stage.server, 0..n, |out, i| {
            let (weight, text) = (format!("w:{i}"), format!("v:{i}"));
            let value = (mix(i) >> 40).to_string();
            wire::command(
                out,
                &[b"MSET", weight.as_bytes(), value.as_bytes(), text.as_bytes(), &hex16(i)[..10]],
            );
        })?;
        nothing()
    },
    ..PLAIN
};

const TWO_ZSETS: Attack = Attack {
    size: MILLION / 2,
    memory: (GIB, GIB / 4),
    setup: |stage| {
        let n = stage.scaled(MILLION / 2);
        zset(stage, b"z1", n, 0)?;
        zset(stage, b"z2", n, n / 2)
    },
    ..PLAIN
};

/// A set of the 16-byte members `from..from + n`.
pub fn set(stage: &Stage, key: &[u8], n: u64, from: u64) -> io::Result<()> {
    fill::collection(stage.server, b"SADD", key, n, 1, |out, i| wire::put_word(out, &hex16(from + i)))
        .map(|_| ())
}

/// A list of random numbers below 2³².
fn numbers(stage: &Stage, key: &[u8], n: u64) -> io::Result<Guard> {
    fill::collection(stage.server, b"RPUSH", key, n, 1, |out, i| fill::decimal_part(out, mix(i) >> 32))?;
    nothing()
}

fn zset(stage: &Stage, key: &[u8], n: u64, from: u64) -> io::Result<Guard> {
    fill::collection(stage.server, b"ZADD", key, n, 2, |out, i| {
        fill::decimal_part(out, mix(from + i) >> 32);
        wire::put_word(out, &hex16(from + i));
    })?;
    nothing()
}
