//! What one client's long command does to everybody else.
//!
//! An attacker repeats one expensive command as fast as answers come; a bystander ([`crate::bystander`]) meanwhile
//! sends small GETs. Both sides are reported: the promise is worth nothing if the attacker pays for it.

use crate::blacklist;
use crate::bystander::{self, Bystander, Seen};
use crate::fill;
use crate::random::{hex16, mix};
use crate::report::{Section, Table, count, time};
use crate::server::{Server, Target};
use crate::wire;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub struct Options {
    pub elements: u64,
    /// How long each attack goes on.
    pub seconds: f64,
    /// Attacks to run; empty for all.
    pub attacks: Vec<String>,
}

/// How many big sets the DEL attack has to delete, and the pause between two.
const DELETIONS: u64 = 3;
const DELETION_PAUSE: Duration = Duration::from_millis(300);

struct Attack {
    name: &'static str,
    what: &'static str,
    run: fn(&Server, &Options) -> io::Result<Vec<f64>>,
}

const ATTACKS: &[Attack] = &[
    Attack {
        name: "none",
        what: "nobody",
        run: |_, options| {
            sleep(Duration::from_secs_f64(options.seconds));
            Ok(Vec::new())
        },
    },
    Attack {
        name: "smembers",
        what: "SMEMBERS",
        run: |s, o| repeat(s, o.seconds, &[b"SMEMBERS", b"big:set1"]),
    },
    Attack {
        name: "sdiff",
        what: "SDIFF",
        run: |s, o| repeat(s, o.seconds, &[b"SDIFF", b"big:set1", b"big:set2"]),
    },
    Attack { name: "keys", what: "KEYS *", run: |s, o| repeat(s, o.seconds, &[b"KEYS", b"*"]) },
    Attack { name: "hgetall", what: "HGETALL", run: |s, o| repeat(s, o.seconds, &[b"HGETALL", b"big:hash"]) },
    Attack {
        name: "lrange",
        what: "LRANGE 0 -1",
        run: |s, o| repeat(s, o.seconds, &[b"LRANGE", b"big:list", b"0", b"-1"]),
    },
    Attack {
        name: "eval",
        what: "blacklist script",
        run: |s, o| repeat_encoded(s, o.seconds, &blacklist::script_request()),
    },
    Attack {
        name: "sort",
        what: "SORT, LIMIT 0 10",
        run: |s, o| repeat(s, o.seconds, &[b"SORT", b"big:list", b"LIMIT", b"0", b"10"]),
    },
    Attack { name: "del", what: "DEL of a set", run: delete_sets },
];

pub fn run(targets: &[Target], options: &Options) -> Section {
    let mut section = Section::new("What a bystander notices of somebody's long command");
    let mut servers = Vec::new();
    for target in targets {
        match Server::start(target) {
            Ok(server) => servers.push(server),
            Err(error) => section.note(error),
        }
    }
    let mut table = Table::new(&[&["attacker, server", "attacker's time"], &bystander::HEAD[..]].concat());
    // One server at a time, so that only one is full of data.
    let mut results: Vec<(usize, Vec<String>)> = Vec::new();
    let mut method = None;
    for server in servers {
        let chosen =
            |attack: &Attack| options.attacks.is_empty() || options.attacks.iter().any(|a| a == attack.name);
        if let Err(error) = prepare(&server, options, &chosen) {
            section.note(format!("{}: preparing the data: {error}", server.label));
            continue;
        }
        for (order, attack) in ATTACKS.iter().enumerate().filter(|(_, attack)| chosen(attack)) {
            match under_attack(&server, attack, options) {
                Ok((mean, seen)) => {
                    let mut row = vec![format!("{}, {}", attack.what, server.label), mean];
                    row.extend(seen.cells());
                    results.push((order, row));
                    method = Some(seen.method());
                }
                Err(error) => section.note(format!("{}, {}: {error}", server.label, attack.what)),
            }
        }
    }
    results.sort_by_key(|(order, _)| *order);
    results.into_iter().for_each(|(_, row)| table.row(row));
    section.table(
        format!(
            "Keyspace and collections of {}; each attack repeated for {} s",
            count(options.elements),
            options.seconds
        ),
        table,
    );
    method.into_iter().for_each(|method| section.note(method));
    section.note("The attacker's time is the mean from sending to the last byte of the reply, one attacker.");
    section
}

fn prepare(server: &Server, options: &Options, chosen: &dyn Fn(&Attack) -> bool) -> io::Result<()> {
    let n = options.elements;
    let needs = |name: &str| ATTACKS.iter().any(|attack| attack.name == name && chosen(attack));
    bystander::prepare(server)?;
    if needs("smembers") || needs("sdiff") {
        set(server, b"big:set1", n, 0)?;
        set(server, b"big:set2", n, n / 2)?;
    }
    if needs("keys") {
        fill::strings(server, n, 86_400)?;
    }
    if needs("hgetall") {
        fill::collection(server, b"HSET", b"big:hash", n, 2, |out, i| {
            wire::bulk(out, &hex16(i)[..10]);
            wire::bulk(out, &hex16(!i)[..10]);
        })?;
    }
    if needs("lrange") || needs("sort") {
        fill::collection(server, b"RPUSH", b"big:list", n, 1, |out, i| {
            fill::decimal_part(out, mix(i) >> 32)
        })?;
    }
    if needs("eval") {
        blacklist::prepare(server)?;
    }
    if needs("del") {
        (0..DELETIONS).try_for_each(|k| set(server, format!("doomed:{k}").as_bytes(), n, 0))?;
    }
    server.settle(Duration::from_secs(10));
    Ok(())
}

fn set(server: &Server, key: &[u8], n: u64, from: u64) -> io::Result<()> {
    fill::collection(server, b"SADD", key, n, 1, |out, i| wire::bulk(out, &hex16(from + i))).map(|_| ())
}

fn under_attack(server: &Server, attack: &Attack, options: &Options) -> io::Result<(String, Seen)> {
    let bystander = Bystander::start(server)?;
    let times = (attack.run)(server, options);
    let seen = bystander.stop();
    let times = times?;
    let mean = mean_time(&times);
    server.settle(Duration::from_secs(5));
    Ok((mean, seen?))
}

/// Sends `command` again and again for `seconds`; returns how long each took, in nanoseconds.
pub fn repeat(server: &Server, seconds: f64, command: &[&[u8]]) -> io::Result<Vec<f64>> {
    let mut encoded = Vec::new();
    wire::command(&mut encoded, command);
    repeat_encoded(server, seconds, &encoded)
}

fn repeat_encoded(server: &Server, seconds: f64, command: &[u8]) -> io::Result<Vec<f64>> {
    let mut client = server.client()?;
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let mut times = Vec::new();
    while Instant::now() < until {
        times.push(client.discard(command, 1)?.as_nanos() as f64);
    }
    Ok(times)
}

/// The mean of `times` and how many they are, for the report.
pub fn mean_time(times: &[f64]) -> String {
    match times.len() {
        0 => String::new(),
        n => format!("{} × {n}", time(times.iter().sum::<f64>() / n as f64)),
    }
}

fn delete_sets(server: &Server, _: &Options) -> io::Result<Vec<f64>> {
    let mut client = server.client()?;
    let mut times = Vec::new();
    for k in 0..DELETIONS {
        sleep(DELETION_PAUSE);
        let mut command = Vec::new();
        wire::command(&mut command, &[b"DEL", format!("doomed:{k}").as_bytes()]);
        times.push(client.discard(&command, 1)?.as_nanos() as f64);
    }
    sleep(DELETION_PAUSE);
    Ok(times)
}
