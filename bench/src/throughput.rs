//! Server CPU time per request.
//!
//! Requests per second on one machine say as much about the generator as about the server. So the figure is
//! the server's on-CPU time over all its threads, divided by the requests. The servers run side by side, idle
//! unless asked, and take turns round by round, so that a disturbance of the machine hits all alike. Each
//! figure is the median of the rounds. Data and commands are those of redis-benchmark (3-byte values, `-r
//! 100000`).

use crate::fill;
use crate::load::Load;
use crate::random::{Random, numbered};
use crate::report::{Section, Table, absent, median};
use crate::server::{Server, Target};
use crate::wire;
use std::io;
use std::time::Duration;

const KEYSPACE: u64 = 100_000;

pub struct Options {
    pub rounds: usize,
    pub conns: usize,
    /// Requests of a round, unpipelined. Pipelined rounds have ten times as many.
    pub requests: u64,
    /// Empty for all.
    pub commands: Vec<String>,
}

/// A measured command: its name, and a function that writes one.
struct Test {
    name: &'static str,
    /// Prepares a round, given the number of requests that will follow.
    prepare: fn(&Server, u64) -> io::Result<()>,
    write: fn(&mut Vec<u8>, &mut Random),
}

const TESTS: &[Test] = &[
    Test {
        name: "set",
        prepare: nothing,
        write: |out, random| keyed(out, random, b"SET", b"key:", Some(b"xxx")),
    },
    Test { name: "get", prepare: all_keys, write: |out, random| keyed(out, random, b"GET", b"key:", None) },
    Test {
        name: "incr",
        prepare: nothing,
        write: |out, random| keyed(out, random, b"INCR", b"counter:", None),
    },
    Test {
        name: "lpush",
        prepare: empty_list,
        write: |out, _| wire::command(out, &[b"LPUSH", b"mylist", b"xxx"]),
    },
    Test { name: "rpop", prepare: full_list, write: |out, _| wire::command(out, &[b"RPOP", b"mylist"]) },
    Test {
        name: "sadd",
        prepare: nothing,
        write: |out, random| member(out, random, &[b"SADD", b"myset"], None),
    },
    Test {
        name: "hset",
        prepare: nothing,
        write: |out, random| member(out, random, &[b"HSET", b"myhash"], Some(b"xxx")),
    },
    Test {
        name: "zadd",
        prepare: nothing,
        write: |out, random| member(out, random, &[b"ZADD", b"myzset", b"0"], None),
    },
    Test {
        name: "lrange_100",
        prepare: hundred_list,
        write: |out, _| wire::command(out, &[b"LRANGE", b"mylist", b"0", b"99"]),
    },
    Test { name: "mset", prepare: nothing, write: mset },
    Test {
        name: "xadd",
        prepare: nothing,
        write: |out, _| wire::command(out, &[b"XADD", b"mystream", b"*", b"field", b"xxx"]),
    },
    Test {
        name: "xread",
        prepare: stream,
        write: |out, _| {
            wire::command(out, &[b"XREAD", b"COUNT", b"10", b"STREAMS", b"mystream", b"500-0"]);
        },
    },
    Test {
        name: "xreadgroup",
        prepare: grouped_stream,
        write: |out, _| {
            let words: [&[u8]; 8] =
                [b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"1", b"STREAMS", b"mystream"];
            wire::put_count(out, words.len() + 1);
            words.iter().for_each(|word| wire::put_word(out, word));
            wire::put_word(out, b">");
        },
    },
    Test {
        name: "xack",
        prepare: read_stream,
        write: |out, random| {
            let id = (1 + random.below(KEYSPACE)).to_string();
            wire::command(out, &[b"XACK", b"mystream", b"g", id.as_bytes()]);
        },
    },
    Test {
        name: "pfadd",
        prepare: nothing,
        write: |out, random| member(out, random, &[b"PFADD", b"myhll"], None),
    },
    Test {
        name: "geoadd",
        prepare: nothing,
        write: |out, random| {
            let place = [random.below(170), random.below(170)].map(|n| (n as i64 - 85).to_string());
            member(out, random, &[b"GEOADD", b"mygeo", place[0].as_bytes(), place[1].as_bytes()], None);
        },
    },
    Test { name: EVAL, prepare: all_keys, write: |out, random| eval(out, random) },
];

const EVAL: &str = "eval_get";
/// Most CPU time, relative to Redis.
const EVAL_GOAL: f64 = 1.5;

pub fn run(targets: &[Target], options: &Options) -> Section {
    let mut section = Section::new("Server CPU time per request");
    let mut servers = Vec::new();
    for target in targets {
        match Server::start(target) {
            Ok(server) => servers.push(server),
            Err(error) => section.note(error),
        }
    }
    for (pipeline, goal) in [(1, 0.85), (16, 0.7)] {
        let table = measure(&servers, options, pipeline, goal, &mut section.notes);
        section.table(
            format!(
                "{} connections, pipeline {pipeline}: CPU µs per request (thousand requests/s), medians of {} rounds; goal ≤ {goal} × Valkey",
                options.conns, options.rounds
            ),
            table,
        );
    }
    section
}

fn measure(
    servers: &[Server],
    options: &Options,
    pipeline: usize,
    goal: f64,
    notes: &mut Vec<String>,
) -> Table {
    let mut head = vec!["command"];
    head.extend(servers.iter().map(|server| server.label.as_str()));
    let place = |label: &str| servers.iter().position(|server| server.label == label);
    let subject = place("Evenkeel");
    let compared = place("Valkey").zip(subject);
    if compared.is_some() {
        head.extend(["Evenkeel/Valkey", "goal"]);
    }
    let mut table = Table::new(&head);
    let requests = if pipeline == 1 { options.requests } else { options.requests * 10 };
    let chosen =
        |test: &&Test| options.commands.is_empty() || options.commands.iter().any(|name| name == test.name);
    for test in TESTS.iter().filter(chosen) {
        let mut cpu = vec![Vec::new(); servers.len()];
        let mut rate = vec![Vec::new(); servers.len()];
        for round in 0..options.rounds {
            for (i, server) in servers.iter().enumerate() {
                let size = Round { conns: options.conns, pipeline, requests, warm: round == 0 };
                match one_round(server, test, &size, &plain) {
                    Ok((cpu_us, per_second)) => {
                        cpu[i].push(cpu_us);
                        rate[i].push(per_second);
                    }
                    Err(error) if round == 0 => {
                        notes.push(format!("{}, {}: {error}", server.label, test.name))
                    }
                    Err(_) => {}
                }
            }
        }
        let cpu: Vec<f64> = cpu.iter_mut().map(|values| median(values)).collect();
        let mut row = vec![test.name.to_string()];
        for (us, rates) in cpu.iter().zip(&mut rate) {
            row.push(if us.is_nan() { absent() } else { format!("{us:.2} ({:.0}k)", median(rates) / 1e3) });
        }
        let (reference, goal) = match test.name {
            EVAL => (place("Redis"), EVAL_GOAL),
            _ => (place("Valkey"), goal),
        };
        if let Some((reference, subject)) = reference.zip(subject).filter(|_| compared.is_some()) {
            let ratio = cpu[subject] / cpu[reference];
            row.push(if ratio.is_nan() { absent() } else { format!("{ratio:.2}") });
            let met = if ratio <= goal { "met" } else { "missed" };
            row.push(if test.name == EVAL {
                format!("{met} (≤ {goal} × Redis)")
            } else {
                met.to_string()
            });
        }
        table.row(row);
    }
    table
}

/// The size of a round.
pub struct Round {
    pub conns: usize,
    pub pipeline: usize,
    pub requests: u64,
    /// Half as many requests more come first, uncounted.
    pub warm: bool,
}

/// Opens a round's connections, so many.
pub type Connect<'a> = &'a dyn Fn(&Server, usize) -> io::Result<Load>;

/// Connections of plain RESP.
pub fn plain(server: &Server, conns: usize) -> io::Result<Load> {
    Load::connect(server, conns, 1)
}

/// A round of GET. See [`one_round`].
pub fn get_round(server: &Server, round: &Round, connect: Connect) -> io::Result<(f64, f64)> {
    let get = TESTS.iter().find(|test| test.name == "get");
    one_round(server, get.ok_or(io::ErrorKind::NotFound)?, round, connect)
}

/// Prepares, connects, waits for quiet, loads. Returns CPU µs per request and requests/s.
fn one_round(server: &Server, test: &Test, round: &Round, connect: Connect) -> io::Result<(f64, f64)> {
    let &Round { conns, pipeline, requests, warm } = round;
    let warm_up = if warm { requests / 2 } else { 0 };
    (test.prepare)(server, requests + warm_up)?;
    let mut load = connect(server, conns)?;
    let mut random = Random(u64::from(server.port));
    let mut go = |count: u64| {
        let mut left = count;
        load.run(pipeline, None, &mut |out| {
            if left == 0 {
                return false;
            }
            left -= 1;
            (test.write)(out, &mut random);
            true
        })
    };
    if warm {
        go(warm_up)?;
    }
    server.settle(Duration::from_secs(5));
    let before = server.cpu_ns();
    let outcome = go(requests)?;
    let cpu_ns = server.cpu_ns() - before;
    let n = outcome.replies as f64;
    Ok((cpu_ns as f64 / 1e3 / n, n / outcome.elapsed.as_secs_f64()))
}

/// Measures the cost for a GET of noting its use for eviction. The same server runs without a limit, and with
/// one that its keys just fit, in turns.
pub fn touch(target: &Target, options: &Options) -> Result<Section, String> {
    let goal = 1.02;
    let mut section = Section::new("What eviction costs a GET");
    let mut table = Table::new(&["pipeline", "without a limit", "keys just fit", "ratio", "goal"]);
    let server = Server::start(target)?;
    let measured = |pipeline: usize| -> io::Result<[f64; 2]> {
        let requests = if pipeline == 1 { options.requests } else { options.requests * 10 };
        let mut cpu = [Vec::new(), Vec::new()];
        for round in 0..options.rounds {
            for (limited, cpu) in cpu.iter_mut().enumerate() {
                limit(&server, limited == 1)?;
                let size = Round { conns: options.conns, pipeline, requests, warm: round == 0 };
                cpu.push(get_round(&server, &size, &plain)?.0);
            }
        }
        Ok(cpu.map(|mut values| median(&mut values)))
    };
    for pipeline in [1, 16] {
        let [without, with] = measured(pipeline).map_err(|e| e.to_string())?;
        let ratio = with / without;
        table.row(vec![
            pipeline.to_string(),
            format!("{without:.2}"),
            format!("{with:.2}"),
            format!("{ratio:.3}"),
            if ratio <= goal { "met" } else { "missed" }.to_string(),
        ]);
    }
    section.table(
        format!(
            "{} connections: CPU µs per GET, medians of {} rounds by turns; goal ≤ {goal} × without a limit",
            options.conns, options.rounds
        ),
        table,
    );
    Ok(section)
}

/// Sets a limit a little above the memory in use, or none.
fn limit(server: &Server, limited: bool) -> io::Result<()> {
    let mut client = server.client()?;
    all_keys(server, 0)?;
    let used = match client.words("INFO memory")? {
        dial::Frame::Bulk(text) => used_memory(&String::from_utf8_lossy(&text)),
        _ => None,
    };
    let used = used.ok_or_else(|| io::Error::other("INFO memory tells no used_memory"))?;
    let limit = if limited { used + used / 50 } else { 0 };
    client.words(&format!("CONFIG SET maxmemory-policy allkeys-lru maxmemory {limit}")).map(|_| ())
}

fn used_memory(info: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix("used_memory:"))?.trim().parse().ok()
}

fn nothing(_: &Server, _: u64) -> io::Result<()> {
    Ok(())
}

fn all_keys(server: &Server, _: u64) -> io::Result<()> {
    fill::each(server, 0..KEYSPACE, |out, n| {
        wire::command(out, &[b"SET", numbered(b"key:", n, &mut [0; 32]), b"xxx"])
    })
    .map(|_| ())
}

fn empty_list(server: &Server, _: u64) -> io::Result<()> {
    server.client()?.words("DEL mylist").map(|_| ())
}

fn full_list(server: &Server, requests: u64) -> io::Result<()> {
    empty_list(server, 0)?;
    fill::collection(server, b"LPUSH", b"mylist", requests, 1, |out, _| wire::put_word(out, b"xxx"))
        .map(|_| ())
}

fn hundred_list(server: &Server, _: u64) -> io::Result<()> {
    full_list(server, 1000)
}

/// A stream of 1,000 entries, with IDs from 1-0 on.
fn stream(server: &Server, _: u64) -> io::Result<()> {
    entries(server, 1_000)
}

fn entries(server: &Server, n: u64) -> io::Result<()> {
    server.client()?.words("DEL mystream")?;
    fill::in_order(server, n, |out, i| {
        let id = format!("{}-0", i + 1);
        wire::command(out, &[b"XADD", b"mystream", id.as_bytes(), b"field", b"xxx"]);
    })?;
    server.client()?.words("XGROUP CREATE mystream g 0").map(|_| ())
}

/// A stream with an entry for each request to come.
fn grouped_stream(server: &Server, requests: u64) -> io::Result<()> {
    entries(server, requests)
}

/// A stream whose entries a consumer has read.
fn read_stream(server: &Server, _: u64) -> io::Result<()> {
    entries(server, KEYSPACE)?;
    server.client()?.words(&format!("XREADGROUP GROUP g c COUNT {KEYSPACE} STREAMS mystream >")).map(|_| ())
}

fn keyed(out: &mut Vec<u8>, random: &mut Random, name: &[u8], prefix: &[u8], value: Option<&[u8]>) {
    let mut room = [0; 32];
    let key = numbered(prefix, random.below(KEYSPACE), &mut room);
    match value {
        Some(value) => wire::command(out, &[name, key, value]),
        None => wire::command(out, &[name, key]),
    }
}

fn member(out: &mut Vec<u8>, random: &mut Random, start: &[&[u8]], value: Option<&[u8]>) {
    wire::put_count(out, start.len() + 1 + usize::from(value.is_some()));
    start.iter().for_each(|part| wire::put_word(out, part));
    wire::put_word(out, numbered(b"element:", random.below(KEYSPACE), &mut [0; 32]));
    value.into_iter().for_each(|part| wire::put_word(out, part));
}

fn eval(out: &mut Vec<u8>, random: &mut Random) {
    let key = random.below(KEYSPACE);
    let script = b"return redis.call('GET', KEYS[1])";
    wire::command(out, &[b"EVAL", script, b"1", numbered(b"key:", key, &mut [0; 32])]);
}

fn mset(out: &mut Vec<u8>, random: &mut Random) {
    wire::put_count(out, 21);
    wire::put_word(out, b"MSET");
    for _ in 0..10 {
        wire::put_word(out, numbered(b"key:", random.below(KEYSPACE), &mut [0; 32]));
        wire::put_word(out, b"xxx");
    }
}
