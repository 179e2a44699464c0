//! Scripts that take long.

use super::{Attack, GIB, PLAIN, Stage, nothing, repeat};
use crate::blacklist;
use crate::fill;
use crate::random::key40;
use crate::wire;

/// Turns of the loop that take Redis some five seconds.
const TURNS: u64 = 200_000_000;

const LOOP: &str = "local x = 0 for i = 1, tonumber(ARGV[1]) do x = x + i % 7 end return x";
const READ: &str = "for i = 1, #KEYS do redis.call('GET', KEYS[i]) end return #KEYS";
const WRITE: &str = "for i = 1, #KEYS do redis.call('SET', KEYS[i], ARGV[1]) end return #KEYS";
const UNDECLARED: &str = "\
local read, n = 0, tonumber(ARGV[1])
for i = 1, n do if redis.call('GET', 'undeclared:' .. i) then read = read + 1 end end
for i = 1, n / 10 do redis.call('SET', 'undeclared:' .. i, ARGV[2]) end
return 'done'";

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "blacklist",
        what: "blacklist script, X of 100k",
        setup: |stage| blacklist::prepare(stage.server).and_then(|()| nothing()),
        strike: |_, _| repeat(blacklist::script_request()),
        ..PLAIN
    },
    Attack {
        name: "lua-cpu",
        what: "Lua loop of {} turns, no command",
        size: TURNS,
        strike: |stage, _| repeat(script(LOOP, 0, &[&number(stage.scaled(TURNS))])),
        ..PLAIN
    },
    Attack {
        name: "lua-read",
        what: "Lua reads {} keys",
        size: 1_000_000,
        memory: (GIB, GIB / 4),
        setup: |stage| fill::mset(stage.server, stage.scaled(1_000_000)).and_then(|_| nothing()),
        strike: |stage, _| repeat(script(READ, stage.scaled(1_000_000), &[])),
        ..PLAIN
    },
    Attack {
        name: "lua-write",
        what: "Lua writes {} keys",
        size: 100_000,
        strike: |stage, _| repeat(script(WRITE, stage.scaled(100_000), &[b"written"])),
        ..PLAIN
    },
    Attack {
        name: "lua-undeclared",
        what: "Lua reads {} undeclared keys and writes a tenth",
        size: 100_000,
        setup,
        strike: |stage, k| {
            let value = format!("by {k}");
            let n = number(stage.scaled(100_000));
            repeat(script(UNDECLARED, 0, &[&n, value.as_bytes()]))
        },
        ..PLAIN
    },
];

fn setup(stage: &Stage) -> std::io::Result<super::Guard> {
    let n = stage.scaled(100_000);
    fill::each(stage.server, 1..n + 1, |out, i| {
        wire::command(out, &[b"SET", format!("undeclared:{i}").as_bytes(), b"at first"])
    })?;
    nothing()
}

fn number(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}

/// EVAL of `text` with the keys `0..keys` of a fill.
fn script(text: &str, keys: u64, arguments: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    wire::put_count(&mut out, 3 + keys as usize + arguments.len());
    wire::put_word(&mut out, b"EVAL");
    wire::put_word(&mut out, text.as_bytes());
    fill::decimal_part(&mut out, keys);
    (0..keys).for_each(|i| wire::put_word(&mut out, &key40(i)));
    arguments.iter().for_each(|argument| wire::put_word(&mut out, argument));
    out
}
