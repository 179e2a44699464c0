//! Writes of all kinds, from a seed: few keys, so that they meet; order matters in most of them, so that what is
//! lost, doubled or exchanged is seen.

use super::bank::{pipeline, rest};
use super::stage::Stage;
use crate::grammar::{self, Table};
use support::rng::Rng;
use support::wire::Frame;

type Words = Vec<Vec<u8>>;

/// The words of a command without blanks in them.
pub fn words(text: &str) -> Words {
    text.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
}

/// Runs each of some commands, told as their numbers of words and their words.
const EACH: &str = "local i = 1 while i <= #ARGV do local n, c = tonumber(ARGV[i]), {} \
    for j = 1, n do c[j] = ARGV[i + j] end redis.pcall(unpack(c)) i = i + n + 1 end return 1";
const LIBRARY: &str = "#!lua name=lib%\nredis.register_function('add%', function(k, a) \
    return redis.call('RPUSH', k[1], a[1], #) end)";

/// One who writes everything.
pub fn mixer(stage: &Stage, rng: &mut Rng) {
    stage.write(|conn| {
        let db = *rng.pick(&[0, 0, 0, 1, 2, 3, 9]);
        let mut requests = vec![words(&format!("SELECT {db}"))];
        match rng.below(100) {
            0..55 => (0..rng.between(1, 12)).for_each(|_| requests.push(single(rng, stage.is_mixed))),
            55..72 => transaction(rng, stage.is_mixed, &mut requests),
            72..86 => requests.push(script(rng, stage.is_mixed)),
            86..91 => requests.push(function(rng)),
            91..96 => requests.push(long(rng)),
            _ => requests.extend(crowd(rng)),
        }
        pipeline(conn, &requests)?;
        rest(rng, 12);
        Ok(())
    });
}

/// Writes that take long here, and there.
pub fn heavy(stage: &Stage, rng: &mut Rng) {
    stage.write(|conn| {
        let mut requests = vec![words("SELECT 9")];
        (0..rng.between(1, 3)).for_each(|_| requests.push(long(rng)));
        pipeline(conn, &requests)?;
        rest(rng, 400);
        Ok(())
    });
}

/// Calls by the documents of the server: nearly right, hostile, of rare commands.
pub fn wild(stage: &Stage, rng: &mut Rng) {
    let mut table: Option<Table> = None;
    stage.write(|conn| {
        if table.is_none() {
            table = Table::read(conn, &LEFT_OUT.map(str::to_owned)).ok();
        }
        let Some(table) = &table else { return Err("no documents".into()) };
        let mut requests = vec![words(&format!("SELECT {}", rng.below(4)))];
        let wraps = rng.percent(20);
        if wraps {
            requests.push(words("MULTI"));
        }
        for _ in 0..rng.between(1, 10) {
            let call = table.call(rng);
            let first = call.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
            let is_left = LEFT_OUT.iter().any(|name| name.as_bytes() == first);
            // A bitmap of 2^64 numbers takes no memory, and cannot be written to any file.
            let is_left = is_left || first.starts_with(b"r64.") || first.ends_with(b"array");
            if !is_left && !call.is_empty() && !grammar::is_forbidden(&call, &[]) {
                requests.push(call);
            }
        }
        if wraps {
            requests.push(words("EXEC"));
        }
        pipeline(conn, &requests)?;
        rest(rng, 10);
        Ok(())
    });
}

/// Commands that would end, hold, silence or turn the connection or the server, or is of databases that keep sentences.
const LEFT_OUT: [&str; 62] = [
    "acl",
    "auth",
    "bgrewriteaof",
    "bgsave",
    "blmove",
    "blmpop",
    "blpop",
    "brpop",
    "brpoplpush",
    "bzmpop",
    "bzpopmax",
    "bzpopmin",
    "client",
    "cluster",
    "config",
    "debug",
    "discard",
    "eval",
    "eval_ro",
    "evalsha",
    "evalsha_ro",
    "evenkeel",
    "exec",
    "failover",
    "fcall",
    "fcall_ro",
    "flushall",
    "function",
    "hello",
    "hrandfield",
    "latency",
    "memory",
    "migrate",
    "module",
    "monitor",
    "move",
    "multi",
    "psubscribe",
    "psync",
    "punsubscribe",
    "quit",
    "replconf",
    "replicaof",
    "reset",
    "save",
    "script",
    "select",
    "shutdown",
    "slaveof",
    "slowlog",
    "srandmember",
    "zrandmember",
    "ssubscribe",
    "subscribe",
    "sunsubscribe",
    "swapdb",
    "sync",
    "unsubscribe",
    "wait",
    "waitaof",
    "xread",
    "xreadgroup",
];

fn transaction(rng: &mut Rng, is_mixed: bool, requests: &mut Vec<Words>) {
    if rng.percent(20) {
        requests.push(words("WATCH s1 s2"));
    }
    requests.push(words("MULTI"));
    let many = if rng.percent(4) { rng.between(500, 2500) } else { rng.between(1, 12) };
    for _ in 0..many {
        match rng.below(60) {
            0 => requests.push(script(rng, is_mixed)),
            1 => requests.push(words("KEYS s*")),
            2 => requests.push(words(&format!("SELECT {}", rng.below(4)))),
            3 if many < 100 => requests.push(function(rng)),
            4 if many < 100 && rng.percent(10) => requests.push(long(rng)),
            _ => requests.push(single(rng, is_mixed)),
        }
    }
    requests.push(words(if rng.percent(5) { "DISCARD" } else { "EXEC" }));
}

fn script(rng: &mut Rng, is_mixed: bool) -> Words {
    let mut call = vec![b"EVAL".to_vec()];
    match rng.below(10) {
        0 => {
            let text = "for i = 1, tonumber(ARGV[1]) do redis.call('INCR', KEYS[1]) \
                        redis.call('SET', 'loop' .. i % 50, i, 'PX', 5000) end";
            call.push(text.into());
            call.extend(words(&format!("1 n{} {}", rng.below(5), rng.between(1, 8000))));
        }
        1 => {
            // Its writes are its own affair: times and random members.
            let text = "local t = redis.call('TIME') redis.call('SET', KEYS[1], t[1] .. '.' .. t[2]) \
                        local m = redis.call('SRANDMEMBER', KEYS[2]) if m then redis.call('SADD', KEYS[3], m) end \
                        redis.call('HSET', 'rand', math.random(100), t[2]) return redis.call('SPOP', KEYS[2])";
            call.push(text.into());
            call.extend(words(&format!("3 s{} S{} S{}", rng.below(30), rng.below(10), rng.below(10))));
        }
        2 => {
            call.push(b"redis.call('RPUSH', KEYS[1], ARGV[1]) return redis.error_reply('half')".to_vec());
            call.extend(words(&format!("1 l{} {}", rng.below(10), rng.next() % 1000)));
        }
        3 => {
            call.push(b"redis.call('SELECT', ARGV[1]) redis.call('INCR', KEYS[1]) return 1".to_vec());
            call.extend(words(&format!("1 n{} {}", rng.below(5), rng.below(4))));
        }
        _ => {
            call.extend([EACH.as_bytes().to_vec(), b"0".to_vec()]);
            for _ in 0..rng.between(1, 25) {
                let one = single(rng, is_mixed);
                call.push(one.len().to_string().into_bytes());
                call.extend(one);
            }
        }
    }
    call
}

fn function(rng: &mut Rng) -> Words {
    let nr = rng.below(3);
    match rng.below(12) {
        0..3 => {
            let text = LIBRARY.replace('%', &nr.to_string()).replace('#', &rng.below(100).to_string());
            let mut call = words("FUNCTION LOAD REPLACE");
            call.push(text.into_bytes());
            call
        }
        3 => words(&format!("FUNCTION DELETE lib{nr}")),
        4 if rng.percent(20) => words("FUNCTION FLUSH"),
        _ => words(&format!("FCALL add{nr} 1 l{} {}", rng.below(10), rng.next() % 1000)),
    }
}

/// A command that takes long, or one that makes it take long.
fn long(rng: &mut Rng) -> Words {
    let (a, b, c) = (rng.below(3), rng.below(3), rng.below(3));
    let from = rng.below(20) * 1000;
    match rng.below(22) {
        0..4 => many(&format!("SADD big{a}"), 4000, |i| vec![format!("member{}", from + i)]),
        4..6 => {
            many(&format!("ZADD bigz{a}"), 2000, |i| vec![(i % 97).to_string(), format!("m{}", from + i)])
        }
        6 => many(&format!("RPUSH bigl{a}"), 3000, |i| vec![format!("e{}", from + i)]),
        7 => many(&format!("HSET bigh{a}"), 2000, |i| vec![format!("f{}", from + i), i.to_string()]),
        8 => words(&format!("SUNIONSTORE bigu{c} big{a} big{b} bigu{c}")),
        9 => words(&format!("SDIFFSTORE bigd{c} big{a} big{b}")),
        10 => words(&format!("ZUNIONSTORE bigzu{c} 2 bigz{a} bigz{b} WEIGHTS 1.5 2")),
        11 => words(&format!("ZINTERSTORE bigzi{c} 2 bigz{a} big{b}")),
        12 => words(&format!("SORT big{a} ALPHA LIMIT 10 5000 STORE bigs{c}")),
        13 => words(&format!("ZREMRANGEBYRANK bigz{a} 10 {}", 1000 + from / 2)),
        14 => words(&format!("COPY big{a} bigu{c} REPLACE")),
        15 => words(&format!("{} big{a} bigz{b} bigu{c}", rng.pick(&["DEL", "UNLINK"]))),
        16 => vec![b"SET".to_vec(), format!("huge{a}").into(), text(rng, 3 << 20)],
        17 => vec![b"APPEND".to_vec(), format!("huge{a}").into(), text(rng, 200 << 10)],
        18 => words(&format!("SETRANGE huge{a} {} middle{from}", rng.below(3 << 20))),
        19 => words(&format!("DEL huge{a}")),
        20 => words(&format!("BITOP XOR hugex huge{a} huge{b}")),
        _ => words(&format!("LTRIM bigl{a} {} -1", rng.below(2000))),
    }
}

fn many(head: &str, most: usize, mut each: impl FnMut(usize) -> Vec<String>) -> Words {
    let mut call = words(head);
    (0..most).for_each(|i| call.extend(each(i).into_iter().map(String::into_bytes)));
    call
}

fn text(rng: &mut Rng, most: usize) -> Vec<u8> {
    let (len, salt) = (rng.between(1, most), rng.next() as u8);
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ salt).collect()
}

/// Very many keys at once.
fn crowd(rng: &mut Rng) -> Vec<Words> {
    let n = rng.between(100, 3000);
    match rng.below(4) {
        0 => vec![many("MSET", n, |i| vec![format!("m{i}"), i.to_string()])],
        1 => vec![many("DEL", n, |i| vec![format!("m{i}")])],
        2 => {
            let px = rng.between(1, 3000);
            (0..n).map(|i| words(&format!("SET m{i} {i} PX {}", px + i % 100))).collect()
        }
        _ => {
            let mut all = vec![words("MULTI")];
            all.extend((0..n).map(|i| words(&format!("SET m{i} {n}"))));
            all.push(words("EXEC"));
            all
        }
    }
}

/// A key, mostly of the type that is meant.
fn key(rng: &mut Rng, family: &str) -> String {
    let family = if rng.percent(4) { *rng.pick(&["s", "l", "h", "S", "z", "x", "b", "p"]) } else { family };
    let most = if family == "s" { 30 } else { 8 };
    format!("{family}{}", rng.below(most))
}

/// One short command.
fn single(rng: &mut Rng, is_mixed: bool) -> Words {
    let line = match rng.below(11) {
        0..3 => strings(rng),
        3 => lists(rng),
        4 => hashes(rng, is_mixed),
        5 => sets(rng),
        6 => sorted(rng),
        7 => streams(rng),
        8 => others(rng),
        9 => keys(rng),
        _ => {
            let size = if rng.percent(2) { 200_000 } else { 200 };
            return vec![b"SET".to_vec(), key(rng, "s").into_bytes(), text(rng, size)];
        }
    };
    words(&line)
}

fn strings(rng: &mut Rng) -> String {
    let (k, other, n) = (key(rng, "s"), key(rng, "s"), rng.below(1000));
    match rng.below(20) {
        0 => format!("SET {k} {n} PX {}", *rng.pick(&[1, 2, 20, 500, 3000])),
        1 => format!("SET {k} {n} KEEPTTL"),
        2 => format!("SET {k} {n} NX EX 2"),
        3 => format!("SET {k} {n} XX GET PXAT 1"),
        4 => format!("APPEND {k} {n}"),
        5 => format!("GETEX {k} PX {}", rng.between(1, 900)),
        6 => format!("GETDEL {k}"),
        7 => format!("INCRBYFLOAT f{} 0.{n}", n % 4),
        8 => format!("DECRBY n{} {n}", n % 5),
        9 => format!("MSETNX {k} {n} {other} {n}"),
        10 => format!("SETRANGE {k} {} x{n}", n % 300),
        11 => format!("GETSET {k} {n}"),
        12 => format!("PSETEX {k} {} {n}", rng.between(1, 300)),
        13 => format!("SETNX {k} {n}"),
        14 => format!("MSET {k} {n} {other} {n}"),
        15 => format!("GETEX {k} PERSIST"),
        16 => format!("SET {k} {n} EX 1000"),
        _ => format!("INCR n{}", n % 5),
    }
}

fn lists(rng: &mut Rng) -> String {
    let (k, other, n) = (key(rng, "l"), key(rng, "l"), rng.below(1000));
    match rng.below(14) {
        0 => format!("LPOP {k} {}", n % 4 + 1),
        1 => format!("LMOVE {k} {other} LEFT RIGHT"),
        2 => format!("RPOPLPUSH {k} {other}"),
        3 => format!("LINSERT {k} BEFORE {} {n}", n % 50),
        4 => format!("LREM {k} {} {}", n as i64 % 5 - 2, n % 50),
        5 => format!("LTRIM {k} 0 200"),
        6 => format!("LSET {k} {} {n}", n as i64 % 10 - 5),
        7 => format!("LMPOP 2 {k} {other} LEFT COUNT 3"),
        8 => format!("BLPOP {k} {other} 0.02"),
        9 => format!("BLMOVE {k} {other} RIGHT LEFT 0.02"),
        10 => format!("RPUSHX {k} {n}"),
        11 => format!("BLMPOP 0.02 2 {k} {other} RIGHT COUNT 2"),
        12 => format!("LPUSH {k} {n} a b"),
        _ => format!("RPUSH {k} {} {n}", n % 50),
    }
}

fn hashes(rng: &mut Rng, is_mixed: bool) -> String {
    let (k, n) = (key(rng, "h"), rng.below(1000));
    let f = format!("f{}", n % 12);
    match rng.below(if is_mixed { 7 } else { 18 }) {
        0 => format!("HDEL {k} {f}"),
        1 => format!("HINCRBY {k} {f} {n}"),
        2 => format!("HINCRBYFLOAT {k} float 0.{n}"),
        3 => format!("HSETNX {k} {f} {n}"),
        4..7 => format!("HSET {k} {f} {n} g{n} {n}"),
        7 => format!("HPEXPIRE {k} {} FIELDS 1 {f}", *rng.pick(&[1, 2, 50, 900, 4000])),
        8 => format!("HEXPIRE {k} 1 NX FIELDS 2 {f} f1"),
        9 => format!("HPERSIST {k} FIELDS 1 {f}"),
        10 => format!("HPEXPIREAT {k} 1 FIELDS 1 {f}"),
        11 => format!("HGETEX {k} PX {} FIELDS 1 {f}", rng.between(1, 500)),
        12 => format!("HGETDEL {k} FIELDS 2 {f} f2"),
        13 => format!("HSETEX {k} PX {} FIELDS 1 {f} {n}", rng.between(1, 500)),
        14 => format!("HSETEX {k} FNX KEEPTTL FIELDS 1 {f} {n}"),
        15 => format!("HSETEX {k} PXAT 1 FIELDS 1 {f} {n}"),
        _ => format!("HEXPIRE {k} 1000 FIELDS 1 {f}"),
    }
}

fn sets(rng: &mut Rng) -> String {
    let (k, other, n) = (key(rng, "S"), key(rng, "S"), rng.below(1000));
    match rng.below(12) {
        0 => format!("SPOP {k}"),
        1 => format!("SPOP {k} {}", n % 5),
        2 => format!("SREM {k} {} {}", n % 40, n % 7),
        3 => format!("SMOVE {k} {other} {}", n % 40),
        4 => format!("SUNIONSTORE {k} {other} {}", key(rng, "S")),
        5 => format!("SINTERSTORE S{} {k} {other}", n % 8),
        6 => format!("SDIFFSTORE S{} {k} {other}", n % 8),
        7 => format!("SORT {k} ALPHA STORE l{}", n % 8),
        8 => format!("SADD {k} text{n}"),
        _ => format!("SADD {k} {} {n}", n % 40),
    }
}

fn sorted(rng: &mut Rng) -> String {
    let (k, other, n) = (key(rng, "z"), key(rng, "z"), rng.below(1000));
    match rng.below(16) {
        0 => format!("ZPOPMIN {k} {}", n % 3 + 1),
        1 => format!("ZPOPMAX {k}"),
        2 => format!("ZADD {k} GT CH {n} m{}", n % 30),
        3 => format!("ZADD {k} LT {n} m{}", n % 30),
        4 => format!("ZINCRBY {k} 0.{n} m{}", n % 30),
        5 => format!("ZADD {k} INCR 1.5 m{}", n % 30),
        6 => format!("ZREM {k} m{}", n % 30),
        7 => format!("ZREMRANGEBYSCORE {k} {} {n}", n / 2),
        8 => format!("ZREMRANGEBYRANK {k} 0 {}", n % 3),
        9 => format!("ZRANGESTORE z{} {k} 0 10 REV", n % 8),
        10 => format!("ZUNIONSTORE z{} 2 {k} {other} AGGREGATE MAX", n % 8),
        11 => format!("ZDIFFSTORE z{} 2 {k} {other}", n % 8),
        12 => format!("BZPOPMIN {k} {other} 0.02"),
        13 => format!("ZMPOP 2 {k} {other} MAX COUNT 2"),
        _ => format!("ZADD {k} {n} m{} -inf low{}", n % 30, n % 3),
    }
}

fn streams(rng: &mut Rng) -> String {
    let (k, n) = (format!("x{}", rng.below(5)), rng.below(1000));
    match rng.below(20) {
        0 => format!("XGROUP CREATE {k} g{} {} MKSTREAM", n % 3, *rng.pick(&["0", "$"])),
        1 => format!("XREADGROUP GROUP g{} c{} COUNT {} STREAMS {k} >", n % 3, n % 4, n % 5 + 1),
        2 => format!("XREADGROUP GROUP g{} c{} COUNT 2 NOACK STREAMS {k} >", n % 3, n % 4),
        3 => format!("XREADGROUP GROUP g{} c{} BLOCK 20 STREAMS {k} >", n % 3, n % 4),
        4 => format!("XACK {k} g{} {n}-1 {}-0", n % 3, n / 2),
        5 => format!("XAUTOCLAIM {k} g{} c{} 1 0 COUNT 5", n % 3, n % 4),
        6 => format!("XTRIM {k} MAXLEN ~ {}", n % 200),
        7 => format!("XTRIM {k} MAXLEN {}", 50 + n % 200),
        8 => format!("XADD {k} MAXLEN ~ 200 * f {n}"),
        9 => format!("XADD {k} NOMKSTREAM * f {n} g h"),
        10 => format!("XGROUP SETID {k} g{} {}", n % 3, *rng.pick(&["0", "$"])),
        11 => format!("XGROUP CREATECONSUMER {k} g{} c{}", n % 3, n % 6),
        12 => format!("XGROUP DELCONSUMER {k} g{} c{}", n % 3, n % 4),
        13 if rng.percent(20) => format!("XGROUP DESTROY {k} g{}", n % 3),
        14 => format!("XREADGROUP GROUP g{} c{} COUNT 3 STREAMS {k} 0", n % 3, n % 4),
        15 if rng.percent(20) => format!("DEL {k}"),
        16 => format!("XTRIM {k} MINID ~ {n}"),
        _ => format!("XADD {k} * f {n} salt {}", rng.next()),
    }
}

fn others(rng: &mut Rng) -> String {
    let n = rng.below(1000);
    match rng.below(12) {
        0 => format!("SETBIT b{} {n} {}", n % 4, n % 2),
        1 => format!("BITFIELD b{} INCRBY u8 {n} 7 OVERFLOW SAT SET i16 #3 {n}", n % 4),
        2 => format!("BITOP {} b{} b1 b2", rng.pick(&["AND", "OR", "XOR"]), n % 4),
        3 => format!("PFADD p{} {n} a{n}", n % 3),
        4 => format!("PFMERGE p{} p1 p2", n % 3),
        5 => format!("GEOADD geo{} {}.5 {} place{}", n % 3, n % 170, n % 80, n % 20),
        6 => format!("GEOSEARCHSTORE geo{} geo1 FROMLONLAT 10 10 BYRADIUS 5000 km ASC COUNT 5", n % 3),
        7 => format!("PUBLISH news {n}"),
        8 => format!("SPUBLISH news {n}"),
        9 => format!("PFCOUNT p{} p1", n % 3),
        10 => format!("OBJECT ENCODING s{}", n % 30),
        _ => format!("SET swap{} {n}", n % 5),
    }
}

/// Commands for keys of any type.
fn keys(rng: &mut Rng) -> String {
    let any = |rng: &mut Rng| {
        let family = *rng.pick(&["s", "l", "h", "S", "z", "b"]);
        key(rng, family)
    };
    let (k, other, n) = (any(rng), any(rng), rng.below(1000));
    match rng.below(22) {
        0 => format!("PEXPIRE {k} {}", *rng.pick(&[1, 2, 3, 40, 700, 5000])),
        1 => format!("EXPIRE {k} 1 {}", rng.pick(&["NX", "XX", "GT", "LT"])),
        2 => format!("PEXPIREAT {k} 1"),
        3 => format!("PERSIST {k}"),
        4 => format!("RENAME {k} {other}"),
        5 => format!("RENAMENX {k} {other}"),
        6 => format!("COPY {k} {other} REPLACE"),
        7 => format!("COPY {k} {other} DB {}", n % 4),
        8 => format!("MOVE {k} {}", n % 4),
        9 => format!("UNLINK {k} {other}"),
        10 => format!("DEL {k}"),
        11 => format!("EXPIRE {k} -1"),
        12 => format!("TOUCH {k}"),
        13 if rng.percent(10) => "FLUSHDB".into(),
        14 if rng.percent(10) => "FLUSHDB ASYNC".into(),
        15 => format!("EXPIRE {k} 1000"),
        // Reading may remove what has expired.
        16 => format!("EXISTS {k} {other}"),
        17 => "RANDOMKEY".into(),
        18 => format!("GET {k}"),
        19 => format!("TYPE {k}"),
        20 => "DBSIZE".into(),
        _ => format!("TTL {k}"),
    }
}

/// The value of a key from one place to another, by DUMP and RESTORE.
pub fn restorer(stage: &Stage, rng: &mut Rng) {
    stage.write(|conn| {
        let (from, to) = (key(rng, "h"), key(rng, "z"));
        let family = *rng.pick(&["s", "l", "h", "S", "z", "x"]);
        let from = if rng.percent(50) { from } else { key(rng, family) };
        let replies = pipeline(conn, &[words("SELECT 0"), words(&format!("DUMP {from}"))])?;
        if let Frame::Bulk(payload) = &replies[1] {
            let ttl = *rng.pick(&[0, 0, 1, 300, 3000]);
            let mut call = words(&format!("RESTORE {to} {ttl}"));
            call.extend([payload.clone(), b"REPLACE".to_vec()]);
            pipeline(conn, &[call])?;
        }
        rest(rng, 60);
        Ok(())
    });
}
