//! The load: streams of the differential tester, and between them what it cannot send: times that pass, keys
//! that expire soon, long work of several clients at once, the sweep, and evictions.

use crate::world::quote;
use evenkeel_differential::grammar::{self, Group};
use evenkeel_differential::identity::Identity;
use evenkeel_differential::scenes::Generator;
use evenkeel_differential::step::{Action, Step};
use keyspace::Policy;
use support::rng::Rng;

/// Clients of a world.
pub const CLIENTS: usize = 4;

/// Groups with commands that change keys, or libraries.
const GROUPS: &[&str] = &[
    "keys",
    "strings",
    "bitmaps",
    "lists",
    "blocking",
    "hashes",
    "field_ttl",
    "serialized",
    "sets",
    "zsets",
    "streams",
    "hyperloglog",
    "sort",
    "transactions",
    "scripts",
    "functions",
    "pubsub",
    "additions",
];

pub enum Move {
    Step(Step),
    /// A call whose reply is not waited for.
    Start(usize, Vec<Vec<u8>>),
    Call(usize, Vec<Vec<u8>>),
    Pass(u64),
    Sweep,
    Evict(Policy, usize),
    Compare,
}

impl Move {
    pub fn text(&self) -> String {
        match self {
            Move::Step(step) => {
                format!("{}: {}", step.client, step.text().chars().take(200).collect::<String>())
            }
            Move::Start(client, words) => format!("{client}, later: {}", quote(words)),
            Move::Call(client, words) => format!("{client}: {}", quote(words)),
            Move::Pass(ms) => format!("{ms} ms pass"),
            Move::Sweep => "sweep".into(),
            Move::Evict(policy, keys) => format!("evict {keys} {policy:?}"),
            Move::Compare => "compare".into(),
        }
    }
}

/// The moves of a round, at least so many.
pub fn round(seed: u64, round: u64, count: usize) -> Vec<Move> {
    let groups = grammar::groups();
    let known: Vec<&Group> = groups.iter().filter(|group| GROUPS.contains(&group.name)).collect();
    let group = known[round as usize % known.len()];
    // Other groups change nothing for this one.
    let mut rng = Rng::named(seed, group.name, round / known.len() as u64);
    let valkey = group.name == "additions" || rng.percent(30);
    let identity = match valkey {
        true => Identity { flavour: "valkey".into(), version: (9, 1) },
        false => Identity { flavour: "redis".into(), version: (8, 0) },
    };
    let fits = group.since.known_to(&identity);
    let group = if fits { group } else { known[0] };
    let stream = Generator { groups: &groups, group, oracle: &identity, rng: rng.clone(), out: Vec::new() };
    let mut moves = Vec::new();
    for step in stream.stream(count) {
        if rng.percent(15) {
            extra(&mut rng, &mut moves);
        }
        let ends = matches!(step.action, Action::Dump);
        if ends || rng.percent(3) {
            moves.push(Move::Compare);
        }
        moves.push(Move::Step(step));
    }
    moves.push(Move::Compare);
    moves
}

fn words(text: &str) -> Vec<Vec<u8>> {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn extra(rng: &mut Rng, moves: &mut Vec<Move>) {
    let client = 1 + rng.below(CLIENTS - 1);
    match rng.below(20) {
        0 if rng.percent(60) => past(rng, client, moves),
        0..=3 => moves.push(Move::Pass(*rng.pick(&[1, 5, 20, 200, 5_000, 1_000_000, 100_000_000]))),
        4 => moves.push(Move::Sweep),
        5 => {
            let policy =
                *rng.pick(&[Policy::Random, Policy::VolatileRandom, Policy::Adaptive, Policy::VolatileTtl]);
            moves.push(Move::Evict(policy, 1 + rng.below(3)));
        }
        6..=11 => moves.push(Move::Call(client, soon(rng))),
        12 => moves.push(Move::Call(
            client,
            words(rng.pick::<&str>(&[
                "FLUSHALL",
                "FLUSHDB",
                "FLUSHDB ASYNC",
                "SWAPDB 0 1",
                "SWAPDB 1 2",
                "MOVE s1 1",
                "MOVE h1 2",
                "COPY l1 l2 DB 1 REPLACE",
                "SELECT 1",
                "SELECT 0",
                "SELECT 0",
            ])),
        )),
        13..=15 => moves.push(Move::Start(client, long(rng))),
        16 => many(rng, client, moves),
        17 if rng.percent(50) => functions(rng, client, moves),
        17 => moves.push(Move::Call(client, bitmap(rng))),
        18 => moves.push(Move::Call(client, script(rng))),
        _ => moves.push(Move::Start(client, script(rng))),
    }
}

/// A transaction that changes libraries between its writes, and calls what it loaded. Its keys may be too many
/// for a commit at once.
fn functions(rng: &mut Rng, client: usize, moves: &mut Vec<Move>) {
    let mut call = |line: &str| moves.push(Move::Call(client, words(line)));
    call("MULTI");
    call(&format!("SET s{} before", rng.below(5)));
    let name = *rng.pick(&["x", "y", "z"]);
    let code = format!(
        "#!lua name={name}\nredis.register_function('call_{name}', function(keys) \
         return redis.call('RPUSH', keys[1], '{}') end)",
        rng.below(100)
    );
    let replace = if rng.percent(70) { &b"REPLACE"[..] } else { b"" };
    let load = [&b"FUNCTION"[..], b"LOAD", replace, code.as_bytes()];
    let load: Vec<Vec<u8>> = load.iter().filter(|word| !word.is_empty()).map(|word| word.to_vec()).collect();
    moves.push(Move::Call(client, load));
    let mut call = |line: &str| moves.push(Move::Call(client, words(line)));
    call(&format!("FCALL call_{name} 1 l{}", rng.below(3)));
    match rng.below(6) {
        0 => call("FUNCTION DELETE x"),
        1 => call("FUNCTION FLUSH"),
        2 => (0..200).for_each(|i| call(&format!("SET many{i} v"))),
        3 => call("FLUSHDB"),
        _ => {}
    }
    call(&format!("INCR n{}", rng.below(3)));
    call("EXEC");
}

/// A command that lets something expire soon.
fn soon(rng: &mut Rng) -> Vec<Vec<u8>> {
    let (n, ms, at) = (rng.below(5), 1 + rng.below(300), rng.below(5));
    let template = *rng.pick(&[
        "SET s{n} v PX {ms}",
        "SET s{n} w NX PX {ms}",
        "SET s{n} w XX EX 1 GET",
        "SET s{n} 5 KEEPTTL",
        "PSETEX s{n} {ms} 7",
        "GETEX s{n} PX {ms}",
        "PEXPIRE l{n} {ms}",
        "PEXPIRE h{n} {ms}",
        "PEXPIRE t{n} {ms} NX",
        "PEXPIRE z{n} {ms}",
        "EXPIRE s{n} -1",
        "HPEXPIRE h{n} {ms} FIELDS 3 a{at} f1 f2",
        "HSET h{n} f1 1 f2 2 a{at} x",
        "HSETEX h{n} PX {ms} FIELDS 2 f1 3 f2 4",
        "HSETEX h{n} FNX KEEPTTL FIELDS 1 a{at} 4",
        "HGETEX h{n} PX {ms} FIELDS 2 f1 a{at}",
        "HINCRBYFLOAT h{n} f1 1.5",
        "HINCRBY h{n} f2 1",
        "HDEL h{n} f1 a{at}",
        "HGETDEL h{n} FIELDS 2 f2 f1",
        "MSETEX 2 s{n} a s{at} b PX {ms}",
        "MSETEX 2 s{n} a s{at} b NX",
        "SUNIONSTORE t{n} t{at} t1 t2",
        "ZUNIONSTORE z{n} 2 z{at} z1",
        "SORT l{n} BY nosort GET h1->f1 GET # STORE l{at}",
        "SORT t{n} ALPHA BY h*->f1 GET h*->f2 STORE l{at}",
        "SINTERCARD 2 t{n} t{at}",
        "COPY h{n} h{at} REPLACE",
        "RENAME h{n} h{at}",
        "INCRBYFLOAT s{n} 0.5",
        "LMPOP 2 l{n} l{at} LEFT COUNT 2",
        "SPOP t{n} 2",
        "SPOP t{n}",
        "ZPOPMIN z{n} 2",
        "DELIFEQ s{n} w",
        "SET s{n} new IFEQ w GET",
        "PUBLISH c s{n}",
    ]);
    let fill = |template: &str| {
        template
            .replace("{n}", &n.to_string())
            .replace("{ms}", &ms.to_string())
            .replace("{at}", &at.to_string())
    };
    words(&fill(template))
}

/// A command that is a job, or a bulk.
fn long(rng: &mut Rng) -> Vec<Vec<u8>> {
    let n = rng.below(3);
    let mut line = match rng.below(8) {
        0 => format!("SUNIONSTORE t{n} t7 t8 t1 s8 t2"),
        1 => format!("SDIFFSTORE t{n} t7 t8"),
        2 => format!("ZUNIONSTORE z{n} 3 t7 t8 z1"),
        3 => "SORT t7 BY nosort ALPHA STORE l3".into(),
        4 => format!("SADD t{}", 7 + n),
        5 => "MSET".into(),
        6 => "DEL".into(),
        _ => "MSETNX".into(),
    };
    let from = rng.below(2000);
    for i in from..from + 1500 {
        match line.as_bytes()[1] {
            b'A' => line.push_str(&format!(" m{i}")),
            b'S' => line.push_str(&format!(" b{i} {n}")),
            b'E' => line.push_str(&format!(" b{i}")),
            _ => break,
        }
    }
    words(&line)
}

/// A transaction, mostly a long one.
fn many(rng: &mut Rng, client: usize, moves: &mut Vec<Move>) {
    let mut push = |line: String| moves.push(Move::Call(client, words(&line)));
    push("MULTI".into());
    let count = *rng.pick(&[3, 20, 900]);
    let plain = rng.percent(40);
    for i in 0..count {
        let n = rng.below(40);
        push(match rng.below(if plain { 1 } else { 12 }) {
            0..=4 => format!("SET b{n} {i}"),
            5 => format!("INCR s{}", n % 5),
            6 => format!("LPUSH s{} x", n % 5),
            7 => format!("DEL b{n} none"),
            8 => format!("PEXPIRE b{n} {}", n % 9 * 40),
            9 => format!("SET b{n} {i} NX"),
            10 => format!("SREM t1 none{n}"),
            _ => format!("SPOP t{}", n % 5),
        });
    }
    if !plain && rng.percent(40) {
        let other = ["SELECT 1", "FLUSHDB", "SWAPDB 0 1", "SUNIONSTORE t0 t7 t8", "PUBLISH c m", "KEYS *"];
        push((*rng.pick(&other)).into());
        push("SET after 1".into());
    }
    if rng.percent(50) {
        moves.push(Move::Call(client, script(rng)));
    }
    moves.push(Move::Start(client, words("EXEC")));
}

/// Keys that are written with a time that has passed, and what comes behind them: in a script that ends on its
/// loop or goes on elsewhere, or in a transaction that is short, long, or has a script.
fn past(rng: &mut Rng, client: usize, moves: &mut Vec<Move>) {
    let count = rng.between(3, 9);
    let mut lines: Vec<String> = (0..count).map(|_| past_line(rng)).collect();
    let key = format!("s{}", rng.below(3));
    match rng.below(5) {
        way @ 0..=1 => {
            let long = if way == 0 { "" } else { "for i = 1, 3000 do redis.call('RPUSH', 'l4', i) end " };
            let call = |line: &String| {
                let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
                format!("redis.pcall({}) ", words.join(", "))
            };
            let body = long.to_owned() + &lines.iter().map(call).collect::<String>();
            let script = [&b"EVAL"[..], body.as_bytes(), b"1", key.as_bytes()].map(<[u8]>::to_vec).to_vec();
            let start = if way == 0 { Move::Call } else { Move::Start };
            moves.push(start(client, script));
        }
        way => {
            let mut push = |line: &str| moves.push(Move::Call(client, words(line)));
            push("MULTI");
            if way == 3 {
                (0..900).for_each(|i| push(&format!("INCR b{}", i % 40)));
            }
            lines.drain(..).for_each(|line| push(&line));
            if way == 4 {
                moves.push(Move::Call(client, script(rng)));
            }
            moves.push(Move::Start(client, words("EXEC")));
        }
    }
}

fn past_line(rng: &mut Rng) -> String {
    let template = *rng.pick(&[
        "SET s{n} 10 PXAT 1",
        "SET s{n} 10 EXAT 1",
        "SET s{n} 10 PXAT 1600000000000",
        "SET s{n} 10 PXAT 1600000000000",
        "MSETEX 2 s{n} a s{m} 5 PXAT 1600000000000",
        "SET s{n} 10 NX PXAT 1",
        "SET s{n} 10 GET PXAT 1600000000000",
        "GETEX s{n} PXAT 1",
        "PEXPIREAT s{n} 1600000000000",
        "GET s{n}",
        "EXISTS s{n} s{m}",
        "INCR s{n}",
        "APPEND s{n} x",
        "SETRANGE s{n} 1 y",
        "SET s{n} 3 KEEPTTL",
        "SET s{n} 4 XX",
        "SETNX s{n} 6",
        "LPUSH s{n} a",
        "HSET s{n} f v",
        "SADD s{n} m",
        "RENAME s{n} s{m}",
        "RENAMENX s{m} s{n}",
        "COPY s{m} s{n}",
        "COPY s{n} s{m} DB 1",
        "MOVE s{n} 1",
        "SUNIONSTORE s{n} t1 s{m}",
        "BITOP NOT s{n} s{m}",
        "SORT s{m} STORE s{n}",
        "MSETNX s{n} 1 s{m} 2",
        "PERSIST s{n}",
        "DEL s{n}",
        "SWAPDB 0 1",
        "SELECT 1",
        "SELECT 0",
    ]);
    template.replace("{n}", &rng.below(3).to_string()).replace("{m}", &rng.below(3).to_string())
}

fn bitmap(rng: &mut Rng) -> Vec<Vec<u8>> {
    let (n, m, bit) = (rng.below(3), rng.below(3), rng.below(100));
    let template = *rng.pick(&[
        "R.SETBIT r{n} {bit} 1",
        "R.SETBIT r{n} {bit} 0",
        "R.APPENDINTARRAY r{n} 1 2 {bit}",
        "R.SETINTARRAY r{n} {bit} 9",
        "R.BITOP OR r{n} r{m} r1",
        "R.CLEARBITS r{n} {bit} 1",
        "R.SETRANGE r{n} {bit} 120",
        "DEL r{n}",
        "COPY r{n} r{m} REPLACE",
    ]);
    let line = template.replace("{n}", &n.to_string()).replace("{m}", &m.to_string());
    words(&line.replace("{bit}", &bit.to_string()))
}

/// A script; some take longer than a loop has.
fn script(rng: &mut Rng) -> Vec<Vec<u8>> {
    let bodies = [
        "redis.call('SET', KEYS[1], 1, 'PX', 30) redis.call('INCR', KEYS[1]) redis.pcall('LPUSH', KEYS[1], 1)",
        "for i = 1, 3000 do redis.call('RPUSH', KEYS[2], i) end redis.call('LTRIM', KEYS[2], 0, 9)",
        "for i = 1, 30 do redis.call('SET', 'b' .. i, i) end redis.call('DEL', 'b3', 'b4')",
        "if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('SET', 'absent', KEYS[1]) end",
        "redis.call('FLUSHDB') redis.call('SET', KEYS[1], 'x') redis.call('SWAPDB', 0, 1)",
        "redis.call('SELECT', 1) redis.call('SET', KEYS[1], 'x') redis.call('PUBLISH', 'c', 'm')",
        "redis.call('SPOP', 't1') redis.call('HINCRBYFLOAT', 'h1', 'f1', 0.25) redis.call('SADD', 't2', 'x')",
        "redis.call('SUNIONSTORE', 't0', 't7', 't8') redis.call('SET', KEYS[1], 1, 'NX')",
    ];
    let key = format!("s{}", rng.below(5));
    let mut words = vec![b"EVAL".to_vec(), rng.pick(&bodies).as_bytes().to_vec()];
    words.extend(self::words(&format!("2 {key} l{}", rng.below(5))));
    words
}
