//! Growing to many keys and losing most of them again.
//!
//! Two runs for each server. One fills it and removes 94 % of the keys, scattered, by pipelined UNLINK; the other
//! fills it with keys of which 94 % expire within one window of seconds. A bystander watches every phase. Memory is
//! looked at when full and when the server has come to rest; what the survivors need is their share of the growth.

use crate::bystander::{self, Bystander, Seen};
use crate::fill;
use crate::random::{Random, Scattered, key40, mix, value40};
use crate::report::{Section, Table, bytes, count};
use crate::server::{Server, Target};
use crate::wire;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub struct Options {
    pub keys: u64,
    /// The seconds within which keys expire.
    pub window_s: u64,
    /// How long after the window the last expired key is waited for.
    pub tail_s: u64,
}

/// Resident memory afterwards, against what the survivors need.
const GOAL: f64 = 2.0;

/// Whether key `i` is one of the 6 % that stay.
fn survives(i: u64) -> bool {
    mix(i ^ 0xabcd) % 100 < 6
}

/// What both runs are described by.
struct Losing {
    rows: Vec<(&'static str, String, Option<Seen>)>,
    memory: Vec<String>,
    notes: Vec<String>,
}

pub fn run(targets: &[Target], options: &Options) -> Section {
    let mut section = Section::new("Growing and shrinking");
    let mut latency = Table::new(&[&["phase, server", "took"], &bystander::HEAD[..]].concat());
    let mut memory =
        Table::new(&["run, server", "empty", "full", "after", "survivors need", "after/need", "goal"]);
    let mut method = None;
    let mut rows: Vec<(usize, Vec<String>)> = Vec::new();
    let mut memory_rows: Vec<(usize, Vec<String>)> = Vec::new();
    for target in targets {
        let label = &target.label;
        let mut fill_time = Duration::ZERO;
        for (order, name) in ["UNLINK", "expiry"].into_iter().enumerate() {
            let result = match order {
                0 => by_unlink(target, options, &mut fill_time),
                _ => by_expiry(target, options, fill_time),
            };
            match result {
                Ok(losing) => {
                    for (i, (phase, took, seen)) in losing.rows.into_iter().enumerate() {
                        let mut row = vec![format!("{phase}, {label}"), took];
                        if let Some(seen) = seen {
                            row.extend(seen.cells());
                            method = Some(seen.method());
                        }
                        rows.push((order * 10 + i, row));
                    }
                    let start = format!("{name}, {label}");
                    memory_rows.push((order, [vec![start], losing.memory].concat()));
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
    section.table("Resident memory", memory);
    method.into_iter().for_each(|method| section.note(method));
    section
}

fn by_unlink(target: &Target, options: &Options, fill_time: &mut Duration) -> Result<Losing, String> {
    let server = Server::start(target)?;
    unlink_run(&server, options, fill_time).map_err(|e| e.to_string())
}

fn unlink_run(server: &Server, options: &Options, fill_time: &mut Duration) -> io::Result<Losing> {
    bystander::prepare(server)?;
    server.settle(Duration::from_secs(2));
    let empty = server.rss();
    let bystander = Bystander::start(server)?;
    let filled = fill::strings(server, options.keys, 86_400)?;
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
        rows: vec![
            ("filling", seconds(filled.elapsed), Some(grown)),
            ("UNLINK", seconds(removed.elapsed), Some(shrunk)),
        ],
        memory: memory_cells(empty, full, server.rss(), options),
        notes: Vec::new(),
    };
    check_survivors(server, options, &mut losing)?;
    Ok(losing)
}

fn by_expiry(target: &Target, options: &Options, fill_time: Duration) -> Result<Losing, String> {
    let server = Server::start(target)?;
    expiry_run(&server, options, fill_time).map_err(|e| e.to_string())
}

fn expiry_run(server: &Server, options: &Options, fill_time: Duration) -> io::Result<Losing> {
    bystander::prepare(server)?;
    server.settle(Duration::from_secs(2));
    let empty = server.rss();
    // The first key dies when, by the other run's fill time, the last one has been there for seconds.
    let lead = fill_time.mul_f64(1.5) + Duration::from_secs(4);
    let opens = Instant::now() + lead;
    let opens_ms = (SystemTime::now() + lead).duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
    let mut random = Random(7);
    let filled = fill::each(server, 0..options.keys, |out, i| {
        let mut at = Vec::new();
        let within = if survives(i) { 86_400_000 } else { random.below(options.window_s * 1000) };
        wire::decimal(&mut at, opens_ms + within);
        wire::command(out, &[b"SET", &key40(i), &value40(i), b"PXAT", &at]);
    })?;
    let late = Instant::now().saturating_duration_since(opens);
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
    let took = match left > expected {
        true => format!("{} s + {:.1} s, {} left", options.window_s, tail.as_secs_f64(), left - expected),
        false => format!("{} s + {:.1} s", options.window_s, tail.as_secs_f64()),
    };
    let mut losing = Losing {
        rows: vec![("expiry", took, Some(seen))],
        memory: memory_cells(empty, full, server.rss(), options),
        notes: Vec::new(),
    };
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

fn memory_cells(empty: u64, full: u64, after: u64, options: &Options) -> Vec<String> {
    let share = survivors(options) as f64 / options.keys as f64;
    let need = empty + (full.saturating_sub(empty) as f64 * share) as u64;
    let ratio = after as f64 / need as f64;
    let mut cells: Vec<String> = [empty, full, after, need].iter().map(|&n| bytes(n)).collect();
    cells.push(format!("{ratio:.2}"));
    cells.push(format!("≤ {GOAL}"));
    cells
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
