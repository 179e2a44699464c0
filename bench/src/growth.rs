//! Growth to many keys, and the loss of most of them.
//!
//! There are two runs for each server. One fills it and removes 94 % of the keys, scattered, by pipelined
//! UNLINK. The other fills it with keys of which 94 % expire within one window of seconds. A bystander
//! watches each phase separately: idle, growing, shrinking. Memory is read when the server is full and when
//! it has come to rest. It is compared with a fresh server that was filled only with the survivors.
//!
//! Goals for Evenkeel: p99.9 at most 1 ms and max at most 5 ms beyond the idle phase; the last expired key
//! freed within 20 s; memory afterwards at most twice that of the survivors.

use crate::bystander::{self, Bystander, Seen};
use crate::fill;
use crate::random::{Random, Scattered, key40, mix, value40};
use crate::report::{Section, Table, absent, bytes, count, time};
use crate::server::{Server, Target};
use crate::wire;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub struct Options {
    pub keys: u64,
    /// The seconds within which keys expire.
    pub window_s: u64,
    /// Time after the window to wait for the last expired key.
    pub tail_s: u64,
}

/// Life of the keys that are not to expire here.
const TTL_S: u64 = 86_400;
/// Resident memory afterwards, over that of the survivors.
const GOAL: f64 = 2.0;

/// Seconds within which the last expired key must be freed.
const TAIL_GOAL_S: f64 = 20.0;
const P999_GOAL_NS: u64 = 1_000_000;
const MAX_GOAL_NS: u64 = 5_000_000;
/// Time that the bystander is watched alone.
const NOBODY: Duration = Duration::from_secs(5);

/// Whether key `i` is one of the 6 % that stay.
fn survives(i: u64) -> bool {
    mix(i ^ 0xabcd) % 100 < 6
}

/// The results of both runs.
struct Losing {
    /// The first one is the idle phase.
    phases: Vec<Phase>,
    memory: Memory,
    notes: Vec<String>,
}

struct Phase {
    name: &'static str,
    took: String,
    seen: Seen,
    /// Whether garbage was still waiting too late.
    late: bool,
}

/// Resident bytes.
struct Memory {
    empty: u64,
    full: u64,
    after: u64,
}

impl Phase {
    fn new(name: &'static str, took: String, seen: Seen) -> Phase {
        Phase { name, took, seen, late: false }
    }

    /// The goals it misses, in words.
    fn verdict(&self, nobody: &Seen) -> String {
        let seen = &self.seen;
        let mut missed = Vec::new();
        if seen.at(0.999) > nobody.at(0.999) + P999_GOAL_NS {
            missed.push("p99.9");
        }
        if seen.longest() > nobody.longest() + MAX_GOAL_NS || seen.unanswered + seen.errors > 0 {
            missed.push("max");
        }
        if self.late {
            missed.push("freed late");
        }
        if missed.is_empty() { "met".to_string() } else { format!("**{}**", missed.join(", ")) }
    }
}

pub fn run(targets: &[Target], options: &Options) -> Section {
    let mut section = Section::new("Growing and shrinking");
    let mut latency = Table::new(&[&["phase, server", "took"], &bystander::HEAD[..], &["goals"]].concat());
    let mut memory =
        Table::new(&["run, server", "empty", "full", "after", "survivors need", "after/need", "goal"]);
    let mut method = None;
    let mut rows: Vec<(usize, Vec<String>)> = Vec::new();
    let mut memory_rows: Vec<(usize, Vec<String>)> = Vec::new();
    for target in targets {
        let label = &target.label;
        let mut fill_time = Duration::ZERO;
        let need = survivors_need(target, options);
        if let Err(error) = &need {
            section.note(format!("{label}, filled with the survivors only: {error}"));
        }
        for (order, name) in ["UNLINK", "expiry"].into_iter().enumerate() {
            let result = match order {
                0 => by_unlink(target, options, &mut fill_time),
                _ => by_expiry(target, options, fill_time),
            };
            match result {
                Ok(losing) => {
                    for (i, phase) in losing.phases.iter().enumerate() {
                        let mut row = vec![format!("{}, {label}", phase.name), phase.took.clone()];
                        row.extend(phase.seen.cells());
                        row.push(if i == 0 { String::new() } else { phase.verdict(&losing.phases[0].seen) });
                        rows.push((order * 10 + i, row));
                        method = Some(phase.seen.method());
                    }
                    let start = format!("{name}, {label}");
                    let cells = memory_cells(losing.memory, need.as_ref().ok().copied());
                    memory_rows.push((order, [vec![start], cells].concat()));
                    losing.notes.into_iter().for_each(|note| section.note(format!("{label}: {note}")));
                }
                Err(error) => section.note(format!("{label}, {name}: {error}")),
            }
        }
    }
    rows.sort_by_key(|(order, _)| *order);
    memory_rows.sort_by_key(|(order, _)| *order);
    rows.into_iter().for_each(|(_, row)| latency.row(row));
    memory_rows.into_iter().for_each(|(_, row)| memory.row(row));
    section.table(
        format!("A bystander while {} keys of 40 + 40 bytes come and 94 % of them go", count(options.keys)),
        latency,
    );
    section.table("Resident memory; what the survivors need: a fresh server filled with them only", memory);
    section.note(format!(
        "Goals: p99.9 and max at most {} and {} beyond the phase with nobody, the last expired key freed within \
         {TAIL_GOAL_S:.0} s",
        time(P999_GOAL_NS as f64),
        time(MAX_GOAL_NS as f64)
    ));
    method.into_iter().for_each(|method| section.note(method));
    section
}

fn by_unlink(target: &Target, options: &Options, fill_time: &mut Duration) -> Result<Losing, String> {
    let server = Server::start(target)?;
    unlink_run(&server, options, fill_time).map_err(|e| e.to_string())
}

fn unlink_run(server: &Server, options: &Options, fill_time: &mut Duration) -> io::Result<Losing> {
    let (empty, nobody) = begin(server)?;
    let bystander = Bystander::start(server)?;
    let filled = fill::strings(server, options.keys, TTL_S)?;
    *fill_time = filled.elapsed;
    server.settle(Duration::from_secs(5));
    let grown = bystander.stop()?;
    let full = server.rss();

    let bystander = Bystander::start(server)?;
    let doomed = Scattered::new(options.keys).filter(|&i| !survives(i));
    let removed = fill::each(server, doomed, |out, i| wire::command(out, &[b"UNLINK", &key40(i)]))?;
    server.settle(Duration::from_secs(30));
    let shrunk = bystander.stop()?;
    let mut losing = Losing {
        phases: vec![
            Phase::new("nobody", String::new(), nobody),
            Phase::new("growing", seconds(filled.elapsed), grown),
            Phase::new("shrinking by UNLINK", seconds(removed.elapsed), shrunk),
        ],
        memory: Memory { empty, full, after: server.rss() },
        notes: Vec::new(),
    };
    check_survivors(server, options, &mut losing)?;
    Ok(losing)
}

/// Resident bytes of the empty server, and the bystander's results there.
fn begin(server: &Server) -> io::Result<(u64, Seen)> {
    bystander::prepare(server)?;
    server.settle(Duration::from_secs(2));
    let bystander = Bystander::start(server)?;
    sleep(NOBODY);
    Ok((server.rss(), bystander.stop()?))
}

/// Resident bytes of a server that was filled only with the survivors.
fn survivors_need(target: &Target, options: &Options) -> Result<u64, String> {
    let server = Server::start(target)?;
    let fill = || {
        bystander::prepare(&server)?;
        let ttl = TTL_S.to_string();
        fill::each(&server, (0..options.keys).filter(|&i| survives(i)), |out, i| {
            wire::command(out, &[b"SET", &key40(i), &value40(i), b"EX", ttl.as_bytes()])
        })
    };
    fill().map_err(|e| e.to_string())?;
    server.settle(Duration::from_secs(20));
    Ok(server.rss())
}

fn by_expiry(target: &Target, options: &Options, fill_time: Duration) -> Result<Losing, String> {
    let server = Server::start(target)?;
    expiry_run(&server, options, fill_time).map_err(|e| e.to_string())
}

fn expiry_run(server: &Server, options: &Options, fill_time: Duration) -> io::Result<Losing> {
    let (empty, nobody) = begin(server)?;
    // The first key expires when, by the other run's fill time, the last one has existed for seconds.
    let lead = fill_time.mul_f64(1.5) + Duration::from_secs(4);
    let opens = Instant::now() + lead;
    let opens_ms = (SystemTime::now() + lead).duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
    let mut random = Random(7);
    let bystander = Bystander::start(server)?;
    let filled = fill::each(server, 0..options.keys, |out, i| {
        let mut at = Vec::new();
        let within = if survives(i) { TTL_S * 1000 } else { random.below(options.window_s * 1000) };
        wire::decimal(&mut at, opens_ms + within);
        wire::command(out, &[b"SET", &key40(i), &value40(i), b"PXAT", &at]);
    })?;
    let late = Instant::now().saturating_duration_since(opens);
    let grown = bystander.stop()?;
    let full = server.rss();
    sleep(opens.saturating_duration_since(Instant::now()));

    let bystander = Bystander::start(server)?;
    let closes = opens + Duration::from_secs(options.window_s);
    sleep(closes.saturating_duration_since(Instant::now()));
    let mut client = server.client()?;
    let expected = survivors(options);
    let deadline = closes + Duration::from_secs(options.tail_s);
    let mut left = client.size()?;
    while left > expected && Instant::now() < deadline {
        sleep(Duration::from_millis(50));
        left = client.size()?;
    }
    let tail = closes.elapsed();
    let seen = bystander.stop()?;
    server.settle(Duration::from_secs(20));
    let remain = left > expected;
    let took = match remain {
        true => format!("{} s + {:.1} s, {} left", options.window_s, tail.as_secs_f64(), left - expected),
        false => format!("{} s + {:.1} s", options.window_s, tail.as_secs_f64()),
    };
    let mut shrinking = Phase::new("shrinking by expiry", took, seen);
    shrinking.late = remain || tail.as_secs_f64() > TAIL_GOAL_S;
    let mut losing = Losing {
        phases: vec![
            Phase::new("nobody, before expiry", String::new(), nobody),
            Phase::new("growing, keys that will expire", seconds(filled.elapsed), grown),
            shrinking,
        ],
        memory: Memory { empty, full, after: server.rss() },
        notes: Vec::new(),
    };
    check_survivors(server, options, &mut losing)?;
    if !late.is_zero() {
        let fill_s = filled.elapsed.as_secs_f64();
        losing.notes.push(format!(
            "expiry began {:.1} s before the fill ({fill_s:.1} s) was done",
            late.as_secs_f64()
        ));
    }
    Ok(losing)
}

fn survivors(options: &Options) -> u64 {
    bystander::KEYS + (0..options.keys).filter(|&i| survives(i)).count() as u64
}

fn check_survivors(server: &Server, options: &Options, losing: &mut Losing) -> io::Result<()> {
    let (left, expected) = (server.client()?.size()?, survivors(options));
    if left != expected {
        losing.notes.push(format!("{left} keys are left where {expected} were expected"));
    }
    Ok(())
}

fn memory_cells(memory: Memory, need: Option<u64>) -> Vec<String> {
    let mut cells: Vec<String> =
        [memory.empty, memory.full, memory.after].iter().map(|&n| bytes(n)).collect();
    cells.push(need.map_or(absent(), bytes));
    let ratio = need.map(|need| memory.after as f64 / need as f64);
    cells.push(ratio.map_or(absent(), |ratio| format!("{ratio:.2}")));
    let verdict = match ratio {
        Some(ratio) if ratio <= GOAL => ": met",
        Some(_) => ": **missed**",
        None => "",
    };
    cells.push(format!("≤ {GOAL}{verdict}"));
    cells
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
