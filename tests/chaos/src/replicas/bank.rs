//! Sentences that hold on every server at every moment: sums of accounts, pairs that rise together, and
//! counters of which WAIT said that a replica has them.

use super::load::words;
use super::stage::{NOBODY, Stage};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use support::rng::Rng;
use support::wire::{Conn, Frame};

/// The accounts are in this database. SWAPDB exchanges it with the next.
pub const BANK: usize = 10;
/// A pair is in this database and the next one.
pub const PAIRS: usize = 6;
pub const COUNTERS: usize = 5;
const ACCOUNTS: usize = 40;
const EACH: i64 = 1000;

const OPEN: &str = "if redis.call('EXISTS', 'acct:0') == 0 then \
    for i = 0, tonumber(ARGV[1]) - 1 do redis.call('SET', 'acct:' .. i, ARGV[2]) end end return 1";
const TRANSFER: &str = "local a, b = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2]) \
    if not a or not b then return 0 end \
    redis.call('SET', KEYS[1], tonumber(a) - tonumber(ARGV[1])) for i = 1, tonumber(ARGV[2]) do end \
    redis.call('SET', KEYS[2], tonumber(b) + tonumber(ARGV[1])) return 1";
/// Many transfers in one script, so that it takes long.
const ROUND: &str = "if redis.call('EXISTS', 'acct:0') == 0 then return 0 end local n = tonumber(ARGV[1]) \
    for r = 1, tonumber(ARGV[2]) do for i = 0, n - 1 do redis.call('DECRBY', 'acct:' .. i, r + i) \
    redis.call('INCRBY', 'acct:' .. (i + r) % n, r + i) end end return 1";
const SUM: &str = "local n, sum = 0, 0 for i = 0, tonumber(ARGV[1]) - 1 do local v = redis.call('GET', 'acct:' .. i) \
    if v then n = n + 1 sum = sum + tonumber(v) end end return {n, sum}";

/// Sends requests at once, and reads a reply to each. Errors: the connection is gone.
pub fn pipeline(conn: &mut Conn, requests: &[Vec<Vec<u8>>]) -> Result<Vec<Frame>, String> {
    let mut out = Vec::new();
    requests.iter().for_each(|request| support::wire::encode(request, &mut out));
    conn.send(&out);
    let replies: Vec<Frame> = requests.iter().map(|_| conn.read()).collect();
    match replies.iter().find(|reply| matches!(reply, Frame::Gone(_)) || is_refusal(reply)) {
        Some(reply) => Err(reply.to_string()),
        None => Ok(replies),
    }
}

/// This server takes no writes, or does not answer at all now.
fn is_refusal(reply: &Frame) -> bool {
    let words: [&[u8]; 6] =
        [b"READONLY", b"LOADING", b"MASTERDOWN", b"NOREPLICAS", b"UNBLOCKED", b"EXECABORT"];
    matches!(reply, Frame::Error(text) if words.iter().any(|word| text.starts_with(word)))
}

/// Moves money.
pub fn teller(stage: &Stage, rng: &mut Rng) {
    let mut done = 0u64;
    stage.write(|conn| {
        done += 1;
        let mut requests = vec![words(&format!("SELECT {BANK}"))];
        if done % 10 == 1 {
            requests.push(script(OPEN, &[], &[&ACCOUNTS.to_string(), &EACH.to_string()]));
        }
        let a = rng.below(ACCOUNTS);
        let b = (a + rng.between(1, ACCOUNTS - 1)) % ACCOUNTS;
        let (a, b, n) = (format!("acct:{a}"), format!("acct:{b}"), rng.between(1, 20).to_string());
        match rng.below(12) {
            0..4 => {
                let spin = if rng.percent(10) { rng.below(300_000) } else { 0 }.to_string();
                requests.push(script(TRANSFER, &[&a, &b], &[&n, &spin]));
            }
            4..6 => requests.extend([words("MULTI"), script(TRANSFER, &[&a, &b], &[&n, "0"]), words("EXEC")]),
            6 => requests.push(script(ROUND, &[], &[&ACCOUNTS.to_string(), &rng.between(1, 60).to_string()])),
            _ => {
                pipeline(conn, &requests)?;
                let many = if rng.percent(8) { 1500 } else { rng.between(1, 8) };
                return plain_transfers(conn, rng, many);
            }
        }
        pipeline(conn, &requests)?;
        rest(rng, 4);
        Ok(())
    });
}

/// Transfers by plain commands in one EXEC, if there are accounts.
fn plain_transfers(conn: &mut Conn, rng: &mut Rng, many: usize) -> Result<(), String> {
    let there = pipeline(conn, &[words("WATCH acct:0"), words("EXISTS acct:0")])?;
    if there[1] != Frame::Int(1) {
        return pipeline(conn, &[words("UNWATCH")]).map(drop);
    }
    let mut requests = vec![words("MULTI")];
    for _ in 0..many {
        let (a, b, n) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS), rng.between(1, 20));
        requests.push(words(&format!("DECRBY acct:{a} {n}")));
        if rng.percent(10) {
            requests.push(words("KEYS acct:1*"));
        }
        requests.push(words(&format!("INCRBY acct:{b} {n}")));
    }
    requests.push(words("EXEC"));
    pipeline(conn, &requests).map(drop)
}

fn script(text: &str, keys: &[&str], args: &[&str]) -> Vec<Vec<u8>> {
    let head = ["EVAL".to_owned(), text.to_owned(), keys.len().to_string()];
    let rest = keys.iter().chain(args).map(|word| (*word).to_owned());
    head.into_iter().chain(rest).map(String::into_bytes).collect()
}

/// Raises both of a pair, in two databases.
pub fn pairs(stage: &Stage, rng: &mut Rng) {
    stage.write(|conn| {
        let other = PAIRS + 1;
        let n = rng.below(5);
        let mut requests = vec![words("MULTI")];
        requests.push(words(&format!("SELECT {PAIRS}")));
        requests.push(words(&format!("INCR pair{n}")));
        if rng.percent(5) {
            requests.extend((0..400).map(|i| words(&format!("SET fill{i} {n}"))));
        }
        requests.extend([words(&format!("SELECT {other}")), words(&format!("INCR pair{n}")), words("EXEC")]);
        pipeline(conn, &requests)?;
        rest(rng, 6);
        Ok(())
    });
}

/// Counts, and asks with WAIT whether a replica has it.
pub fn counter(stage: &Stage, rng: &mut Rng, nr: usize) {
    stage.write(|conn| {
        let _calm = stage.calm.read().unwrap_or_else(PoisonError::into_inner);
        let epoch = stage.epoch();
        let n = {
            let mut counter = stage.counter(nr);
            counter.sent += 1;
            counter.sent
        };
        let set = words(&format!("SET ctr{nr} {n}"));
        let mut requests = vec![words(&format!("SELECT {COUNTERS}"))];
        let at = match rng.below(6) {
            0 => {
                requests.extend([words("MULTI"), set, words("INCR within"), words("EXEC")]);
                4
            }
            1 => {
                let text = "for i = 1, tonumber(ARGV[2]) do redis.call('SET', 'spin', i) end \
                            return redis.call('SET', KEYS[1], ARGV[1])";
                let key = format!("ctr{nr}");
                requests.push(script(text, &[&key], &[&n.to_string(), &rng.below(3000).to_string()]));
                1
            }
            _ => {
                requests.push(set);
                1
            }
        };
        let waits = rng.percent(70);
        let replies = pipeline(conn, &requests)?;
        let done = match &replies[at] {
            Frame::Simple(_) | Frame::Bulk(_) => true,
            Frame::Array(items) => items.first().is_some_and(|item| !item.is_error()),
            _ => false,
        };
        if !done {
            return Err("the counter was not set".into());
        }
        if stage.epoch() == epoch {
            stage.counter(nr).acked = n;
        }
        if waits && let Frame::Int(1..) = conn.call(&["WAIT", "1", "300"]) {
            let mut counter = stage.counter(nr);
            if stage.epoch() == epoch {
                counter.waited = n;
                stage.waits.fetch_add(1, Relaxed);
            }
        }
        rest(rng, 10);
        Ok(())
    });
}

/// Empties all now and then, and exchanges databases. Counters wait meanwhile, and their promises end.
pub fn flusher(stage: &Stage, rng: &mut Rng) {
    let mut units = 0u64;
    stage.write(|conn| {
        units += 1;
        rest(rng, 120);
        match rng.below(40) {
            0 if units > 20 => {
                let _calm = stage.calm.write().unwrap_or_else(PoisonError::into_inner);
                stage.forget_promises();
                let all = *rng.pick(&["FLUSHALL", "FLUSHALL ASYNC", "FLUSHALL SYNC"]);
                // As long as it may still be done, nobody counts.
                pipeline(conn, &[words(all)]).map(drop)
            }
            1..6 => {
                let swap = *rng.pick(&["SWAPDB 0 1", "SWAPDB 2 3", "SWAPDB 10 11", "SWAPDB 1 2"]);
                pipeline(conn, &[words(swap)]).map(drop)
            }
            6 => pipeline(conn, &[words("MULTI"), words("SWAPDB 0 3"), words("INCR swapped"), words("EXEC")])
                .map(drop),
            _ => Ok(()),
        }
    });
}

/// Reads on any server, at any time, and says where a sentence does not hold.
pub fn auditor(stage: &Stage, rng: &mut Rng) {
    while stage.is_on() {
        let nr = rng.below(stage.ports.len());
        let Ok(mut conn) = super::node::connect(stage.ports[nr]) else {
            rest(rng, 40);
            continue;
        };
        for _ in 0..rng.between(1, 60) {
            let said = if rng.percent(70) { audit_bank(&mut conn, rng) } else { audit_pairs(&mut conn, rng) };
            match said {
                Ok(true) => {
                    stage.audits.fetch_add(1, Relaxed);
                }
                Ok(false) => break,
                Err(what) => {
                    let leader = stage.leader();
                    let leads = if leader == NOBODY { "nobody".into() } else { leader.to_string() };
                    stage.fault(format!("on node {nr}, while {leads} leads: {what}"));
                    return;
                }
            }
            if !stage.is_on() || conn.is_gone() {
                break;
            }
            rest(rng, 6);
        }
        rest(rng, 10);
    }
}

/// False: this server says nothing now.
fn audit_bank(conn: &mut Conn, rng: &mut Rng) -> Result<bool, String> {
    let db = BANK + rng.below(2);
    let all = |range: std::ops::Range<usize>| {
        let mut request = words("MGET");
        request.extend(range.map(|i| format!("acct:{i}").into_bytes()));
        request
    };
    let select = words(&format!("SELECT {db}"));
    let half = ACCOUNTS / 2;
    let (seen, how) = match rng.below(3) {
        0 => {
            let Ok(replies) = pipeline(conn, &[select, all(0..ACCOUNTS)]) else { return Ok(false) };
            (replies[1].items().map(counted), "MGET")
        }
        1 => {
            let requests = [select, words("MULTI"), all(half..ACCOUNTS), all(0..half), words("EXEC")];
            let Ok(replies) = pipeline(conn, &requests) else { return Ok(false) };
            let halves = replies[4].items().unwrap_or_default();
            let halves: Vec<_> = halves.iter().filter_map(Frame::items).map(counted).collect();
            let whole = halves.iter().fold((0, 0), |all, some| (all.0 + some.0, all.1 + some.1));
            ((halves.len() == 2).then_some(whole), "EXEC of two MGET")
        }
        _ => {
            let mut request = script(SUM, &[], &[&ACCOUNTS.to_string()]);
            request[0] = b"EVAL_RO".to_vec();
            let Ok(replies) = pipeline(conn, &[select, request]) else { return Ok(false) };
            let seen = match replies[1].items() {
                Some([Frame::Int(n), Frame::Int(sum)]) => Some((*n as usize, *sum)),
                _ => None,
            };
            (seen, "a script")
        }
    };
    match seen {
        None => Ok(false),
        Some((0, 0)) => Ok(true),
        Some((ACCOUNTS, sum)) if sum == EACH * ACCOUNTS as i64 => Ok(true),
        Some((n, sum)) => Err(format!("{how} found {sum} in {n} of {ACCOUNTS} accounts of database {db}")),
    }
}

fn audit_pairs(conn: &mut Conn, rng: &mut Rng) -> Result<bool, String> {
    let n = rng.below(5);
    let get = words(&format!("GET pair{n}"));
    let requests = [
        words("MULTI"),
        words(&format!("SELECT {PAIRS}")),
        get.clone(),
        words(&format!("SELECT {}", PAIRS + 1)),
        get,
        words("EXEC"),
    ];
    let Ok(replies) = pipeline(conn, &requests) else { return Ok(false) };
    match replies[5].items() {
        Some([_, one, _, other]) if one == other => Ok(true),
        Some([_, one, _, other]) => Err(format!("pair {n} is {one} and {other}")),
        _ => Ok(false),
    }
}

/// The number of accounts, and their sum.
fn counted(items: &[Frame]) -> (usize, i64) {
    let number = |item: &Frame| std::str::from_utf8(item.text()?).ok()?.parse::<i64>().ok();
    let held: Vec<i64> = items.iter().filter_map(number).collect();
    (held.len(), held.iter().sum())
}

/// A pause of some milliseconds.
pub fn rest(rng: &mut Rng, most_ms: u64) {
    std::thread::sleep(Duration::from_millis(rng.next() % (most_ms + 1)));
}
