//! Long work: jobs, scripts that end and that do not, functions; with settings and pauses meanwhile.

use super::{Stage, ask, pipeline, rest, tell, words};
use std::time::Duration;
use support::rng::Rng;
use support::wire::{Frame, encode};

const DB: usize = 1;

/// Long commands of every plan.
pub fn jobs(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(DB)?, 0);
    while stage.on() {
        let (a, b) = (rng.below(4), rng.below(4));
        let set = || format!("big:{a}");
        match rng.below(12) {
            0 | 1 => {
                let mut line = words(&format!("SADD {}", set()));
                let from = rng.below(100_000);
                line.extend((from..from + 30_000).map(|i| i.to_string().into_bytes()));
                ask(&mut conn, &line)?;
                tell(&mut conn, &format!("EXPIRE {} 100", set()))?;
            }
            2 => {
                let mut line = words("MSET");
                (0..5000).for_each(|i| line.extend([format!("m:{i}").into_bytes(), b"v".to_vec()]));
                ask(&mut conn, &line)?;
            }
            3 => {
                let mut line = words("UNLINK");
                line.extend((0..5000).map(|i| format!("m:{i}").into_bytes()));
                ask(&mut conn, &line)?;
            }
            _ => {
                let line = match rng.below(11) {
                    0 => format!("SDIFF big:{a} big:{b}"),
                    1 => format!("SORT big:{a} LIMIT 0 100"),
                    2 => format!("SUNIONSTORE sum big:{a} big:{b}"),
                    3 => format!("SINTERCARD 2 big:{a} big:{b}"),
                    4 => format!("SMEMBERS big:{a}"),
                    5 => format!("ZUNIONSTORE zsum 2 big:{a} big:{b}"),
                    6 => format!("DEL big:{a}"),
                    7 => format!("COPY big:{a} copy REPLACE"),
                    8 => format!("SORT big:{a} BY nosuch:* STORE sorted"),
                    9 => "MEMORY USAGE sum SAMPLES 0".to_owned(),
                    _ => "KEYS *".to_owned(),
                };
                tell(&mut conn, &line)?;
                if rng.percent(20) {
                    // Short times to live, so that eviction can remove them when memory is short.
                    for key in ["sum", "zsum", "sorted", "copy"] {
                        tell(&mut conn, &format!("PEXPIRE {key} 1000"))?;
                    }
                }
            }
        }
        done += 1;
        rest(rng, 30);
    }
    Ok(done)
}

/// Scripts that take a while, read and write a lot, or fail.
pub fn scripts(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    const TEXTS: &[&str] = &[
        "for i = 1, tonumber(ARGV[1]) do end return 1",
        "for i = 1, tonumber(ARGV[1]) % 3000 do redis.call('SET', 'sc:' .. i, i, 'EX', 100) end return 1",
        "local n = 0 for i = 1, 3000 do if redis.call('GET', 'sc:' .. i) then n = n + 1 end end return n",
        "return #redis.call('KEYS', '*')",
        "local t = {} for i = 1, 20000 do t[i] = ('x'):rep(100) .. i end return #t",
        "return #('x'):rep(5000000)",
        "redis.call('PUBLISH', 'from-scripts', 'x') return redis.call('DBSIZE')",
    ];
    let (mut conn, mut done) = (stage.conn(DB)?, 0);
    while stage.on() {
        let text = format!("{} -- {}", rng.pick(TEXTS), rng.below(300));
        ask(&mut conn, &["EVAL", &text, "0", &rng.below(2_000_000).to_string()])?;
        done += 1;
        rest(rng, 20);
    }
    Ok(done)
}

const ENDLESS: &[&str] = &[
    "while true do end",
    "while true do redis.call('GET', 'nothing') end",
    "while true do redis.call('SET', 'nothing', 1) end",
    "while true do pcall(redis.call, 'GET', 'nothing') end",
    "while true do string.rep('x', 1000) end",
];

/// Scripts without an end, and all ways to end them: SCRIPT KILL, CLIENT KILL, a connection that closes.
pub fn endless(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut control, mut done) = (stage.conn(DB)?, 0);
    // The last clients leave while their scripts run, and nothing else ends those scripts (S3).
    let mut last = 6;
    while stage.on() || last > 0 {
        let way = if stage.on() { rng.below(3) } else { 1 + last % 2 };
        last -= usize::from(!stage.on());
        let mut conn = stage.conn(DB)?;
        let id = conn.call(&["CLIENT", "ID"]).to_string();
        let id = id.trim_start_matches(':');
        let mut bytes = Vec::new();
        let text = *rng.pick(ENDLESS);
        match rng.below(4) {
            // A transaction, which is as endless.
            0 => {
                encode(&words("MULTI"), &mut bytes);
                encode(&[b"EVAL".to_vec(), text.into(), b"0".to_vec()], &mut bytes);
                encode(&words("EXEC"), &mut bytes);
            }
            _ => encode(&[b"EVAL".to_vec(), text.into(), b"0".to_vec()], &mut bytes),
        }
        conn.send(&bytes);
        rest(rng, 100);
        match way {
            0 => {
                tell(&mut control, "SCRIPT KILL")?;
                // The script may not have begun; then the kill is repeated.
                let mut ended = None;
                for _ in 0..600 {
                    ended = conn.read_within(Duration::from_millis(100));
                    let waits = matches!(&ended, Some(Frame::Simple(_)) | None);
                    if !waits {
                        break;
                    }
                    tell(&mut control, "SCRIPT KILL")?;
                }
                let killed = |frame: &Frame| frame.is_error() || frame.items().is_some();
                if !ended.as_ref().is_some_and(killed) {
                    return Err(format!(
                        "SCRIPT KILL did not end {text:?}: {ended:?}",
                        ended = ended.map(|f| f.to_string())
                    ));
                }
            }
            1 => {
                let reply = control.call(&["CLIENT", "KILL", "ID", id]);
                if number_of(&reply) != Some(1) {
                    return Err(format!("CLIENT KILL of one who runs a script was answered {reply}"));
                }
            }
            _ => drop(conn),
        }
        done += 1;
        rest(rng, 50);
    }
    Ok(done)
}

fn number_of(frame: &Frame) -> Option<i64> {
    super::number(frame)
}

/// Libraries that are loaded, called, dumped, restored and deleted.
pub fn functions(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(DB)?, 0);
    while stage.on() {
        let nr = rng.below(5);
        match rng.below(6) {
            0 | 1 => {
                let filler = "-- filler\n".repeat(rng.below(200));
                let text = format!(
                    "#!lua name=lib{nr}\n{filler}redis.register_function('f{nr}', function(keys, args) \
                     redis.call('SET', keys[1], args[1], 'EX', 100) return redis.call('GET', keys[1]) end)"
                );
                ask(&mut conn, &["FUNCTION", "LOAD", "REPLACE", &text])?;
            }
            2 => {
                tell(&mut conn, "FUNCTION FLUSH")?;
            }
            3 => {
                let dump = tell(&mut conn, "FUNCTION DUMP")?;
                if let Some(payload) = dump.as_ref().and_then(Frame::text) {
                    let line: [&[u8]; 4] = [b"FUNCTION", b"RESTORE", payload, b"REPLACE"];
                    ask(&mut conn, &line)?;
                }
            }
            _ => {
                let value = rng.below(1000).to_string();
                let reply = ask(&mut conn, &["FCALL", &format!("f{nr}"), "1", "fk", &value])?;
                if reply.as_ref().is_some_and(|reply| reply.text() != Some(value.as_bytes())) {
                    return Err(format!(
                        "FCALL set {value} and read {}",
                        reply.map(|r| r.to_string()).unwrap_or_default()
                    ));
                }
            }
        }
        done += 1;
        rest(rng, 30);
    }
    Ok(done)
}

/// Directives that change while everything runs. The last value of each is its first.
const SETTINGS: &[(&str, &[&str])] = &[
    ("maxmemory", &["0", "1mb", "40mb", "100mb", "300mb"]),
    ("maxmemory-policy", &["volatile-ttl", "volatile-random", "noeviction", "volatile-lfu", "volatile-lru"]),
    ("notify-keyspace-events", &["KEA", "Kx", ""]),
    ("slowlog-log-slower-than", &["0", "-1", "100", "10000"]),
    ("slowlog-max-len", &["0", "1", "100000", "128"]),
    ("latency-monitor-threshold", &["1", "0"]),
    ("lua-memory-limit", &["1mb", "20mb", "1gb"]),
    ("script-max-time", &["100", "0"]),
    ("snapshot-max-retained", &["20mb", "0"]),
    ("reclaim-max-pending", &["1mb", "0"]),
    ("work-max-memory", &["1mb", "0"]),
    ("active-expire-effort", &["10", "1"]),
    ("hash-max-listpack-entries", &["0", "512"]),
    // Nobody is idle for so long: an actor's second connection may be for minutes.
    ("timeout", &["100000", "0"]),
];

pub fn settings(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(DB)?, 0);
    while stage.on() {
        let (name, values) = *rng.pick(SETTINGS);
        ask(&mut conn, &["CONFIG", "SET", name, *rng.pick(values)])?;
        rest(rng, 100);
        // Mostly the original value, or memory would be short all the time.
        if rng.percent(80) {
            ask(&mut conn, &["CONFIG", "SET", name, values[values.len() - 1]])?;
        }
        done += 1;
        rest(rng, 100);
    }
    let restored: Vec<_> = SETTINGS
        .iter()
        .map(|(name, values)| {
            ["CONFIG", "SET", *name, values[values.len() - 1]].map(|word| word.as_bytes().to_vec()).to_vec()
        })
        .collect();
    pipeline(&mut conn, &restored)?;
    Ok(done)
}

/// CLIENT PAUSE, which ends by itself or by CLIENT UNPAUSE.
pub fn pauses(stage: &Stage, rng: &mut Rng) -> Result<usize, String> {
    let (mut conn, mut done) = (stage.conn(DB)?, 0);
    while stage.on() {
        let mode = *rng.pick(&["WRITE", "ALL", "WRITE"]);
        tell(&mut conn, &format!("CLIENT PAUSE {} {mode}", rng.below(60)))?;
        if rng.percent(50) {
            tell(&mut conn, "CLIENT UNPAUSE")?;
        }
        done += 1;
        rest(rng, 500);
    }
    Ok(done)
}
