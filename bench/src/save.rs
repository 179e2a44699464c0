//! What saving costs everybody else: snapshots, rewrites of the append-only log, and `appendfsync always`.
//!
//! A bystander reads with a fixed timetable while a writer sends a fixed number of SETs a second, first alone,
//! then while the server saves. The extra memory is what the servers themselves say (`rdb_last_cow_size`,
//! `aof_last_cow_size`). The rates under `always` are those of closed connections.

use crate::bystander::{self, Bystander, Seen};
use crate::client::Client;
use crate::fill;
use crate::load::Load;
use crate::random::{key40, mix, value40};
use crate::report::{Section, Table, bytes, count, median, time};
use crate::server::{Server, Target};
use crate::wire;
use dial::Frame;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

pub struct Options {
    pub keys: u64,
    /// Elements of each of the large values.
    pub elements: u64,
    /// SETs a second beside a save.
    pub writes: u64,
    pub seconds: f64,
    pub cases: Vec<String>,
}

/// The longest that a save may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// SETs that the writer sends together, once in so many milliseconds.
const TICK: Duration = Duration::from_millis(1);
const GETTERS: usize = 50;
const SETTERS: usize = 8;

/// Runs the cases that are asked for, or all. One that fails is a note, and the others are measured.
pub fn run(targets: &[Target], options: &Options) -> Result<Section, String> {
    let keys = count(options.keys);
    let cases: [(&str, String, Measure); 5] = [
        ("bgsave", format!("BGSAVE of {keys} keys"), |targets, options| beside(targets, options, "bgsave")),
        ("rewrite", format!("BGREWRITEAOF of {keys} keys"), |targets, options| {
            beside(targets, options, "rewrite")
        }),
        ("always", "GET beside SETs under appendfsync always".into(), always),
        ("everysec", "SET with appendfsync everysec".into(), everysec),
        ("load", format!("A start with a snapshot of {keys} keys"), load),
    ];
    let mut section = Section::new("Saving");
    for (case, caption, measure) in cases {
        if !options.cases.is_empty() && !options.cases.iter().any(|name| name == case) {
            continue;
        }
        match measure(targets, options) {
            Ok(table) => section.table(caption, table),
            Err(why) => section.note(format!("{caption}: not measured, {why}")),
        }
    }
    Ok(section)
}

/// Measures one case beside the other servers.
type Measure = fn(&[Target], &Options) -> Result<Table, String>;

fn failed(error: io::Error) -> String {
    error.to_string()
}

/// Strings, and one large value of each kind.
fn fill(server: &Server, options: &Options) -> io::Result<()> {
    fill::mset(server, options.keys)?;
    let n = options.elements;
    fill::collection(server, b"SADD", b"large:set", n, 1, |out, i| wire::put_word(out, &key40(i)))?;
    fill::collection(server, b"RPUSH", b"large:list", n, 1, |out, i| wire::put_word(out, &value40(i)))?;
    fill::collection(server, b"HSET", b"large:hash", n, 2, |out, i| {
        wire::put_word(out, &key40(i));
        wire::put_word(out, &value40(i));
    })?;
    fill::collection(server, b"ZADD", b"large:zset", n, 2, |out, i| {
        fill::decimal_part(out, mix(i) % 1_000_000);
        wire::put_word(out, &key40(i));
    })?;
    fill::collection(server, b"SADD", b"large:ints", n, 1, fill::decimal_part)?;
    bystander::prepare(server)
}

/// A number of INFO.
fn info(client: &mut Client, name: &str) -> io::Result<u64> {
    let text = match client.words("INFO")? {
        Frame::Bulk(text) => String::from_utf8_lossy(&text).into_owned(),
        other => format!("{other:?}"),
    };
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0))
}

/// Sends SETs to keys that are there, so many a second. It ends when this is dropped.
pub struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Duration>>>,
}

impl Writer {
    pub fn start(server: &Server, keys: u64, per_second: u64) -> io::Result<Writer> {
        let (mut client, stop) = (server.client()?, Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let each = (per_second as f64 * TICK.as_secs_f64()).max(1.0) as u64;
        let thread = spawn(move || {
            let (mut n, mut longest, mut due) = (0u64, Duration::ZERO, Instant::now());
            while !stopped.load(Ordering::Relaxed) {
                let mut commands = Vec::new();
                for _ in 0..each {
                    n += 1;
                    wire::command(&mut commands, &[b"SET", &key40(mix(n) % keys.max(1)), &value40(n)]);
                }
                let began = Instant::now();
                client.discard(&commands, each)?;
                longest = longest.max(began.elapsed());
                due += TICK;
                sleep(due.saturating_duration_since(Instant::now()));
            }
            Ok(longest)
        });
        Ok(Writer { stop, thread: Some(thread) })
    }

    /// Ends it; the longest that it waited for the replies to one tick's SETs.
    fn stop(mut self) -> io::Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = self.thread.take().map(JoinHandle::join);
        joined.and_then(Result::ok).unwrap_or_else(|| Err(io::Error::other("the writer panicked")))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What a bystander sees while a server saves and a writer writes.
fn beside(targets: &[Target], options: &Options, case: &str) -> Result<Table, String> {
    let head =
        ["server", "alone p99.9 / max", "while saving p99.9 / max", "longest SETs alone", "while saving"];
    let mut table = Table::new(&[&head[..], &["took", "kept", "of memory"]].concat());
    for target in targets {
        let more: &[&str] = if case == "rewrite" { &["--appendonly", "yes"] } else { &[] };
        let server = Server::start(&target.with(more))?;
        let row = beside_one(&server, options, case).map_err(failed)?;
        table.row([vec![target.label.clone()], row].concat());
    }
    Ok(table)
}

fn beside_one(server: &Server, options: &Options, case: &str) -> io::Result<Vec<String>> {
    fill(server, options)?;
    let mut client = server.client()?;
    if case == "rewrite" {
        // The fill may have begun one.
        await_zero(&mut client, "aof_rewrite_in_progress")?;
    }
    server.settle(Duration::from_secs(30));
    let (alone, alone_set) = watch(server, options, |_| {
        sleep(Duration::from_secs_f64(options.seconds));
        Ok(())
    })?;
    let (command, busy, kept) = match case {
        "rewrite" => ("BGREWRITEAOF", "aof_rewrite_in_progress", "aof_last_cow_size"),
        _ => ("BGSAVE", "rdb_bgsave_in_progress", "rdb_last_cow_size"),
    };
    let mut took = Duration::ZERO;
    let (saving, saving_set) = watch(server, options, |client| {
        let began = Instant::now();
        client.words(command)?;
        await_zero(client, busy)?;
        took = began.elapsed();
        Ok(())
    })?;
    let (kept, used) = (info(&mut client, kept)?, info(&mut client, "used_memory")?);
    Ok(vec![
        alone.tail(),
        saving.tail(),
        time(alone_set.as_nanos() as f64),
        time(saving_set.as_nanos() as f64),
        time(took.as_nanos() as f64),
        bytes(kept),
        format!("{:.1} %", 100.0 * kept as f64 / used.max(1) as f64),
    ])
}

/// Watches with a bystander, beside a writer, while something runs.
fn watch(
    server: &Server,
    options: &Options,
    run: impl FnOnce(&mut Client) -> io::Result<()>,
) -> io::Result<(Seen, Duration)> {
    let mut client = server.client()?;
    let writer = Writer::start(server, options.keys, options.writes)?;
    let bystander = Bystander::start(server)?;
    run(&mut client)?;
    let seen = bystander.stop()?;
    Ok((seen, writer.stop()?))
}

/// Waits until a number of INFO is zero.
pub fn await_zero(client: &mut Client, name: &str) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    // It may begin a moment later.
    sleep(Duration::from_millis(100));
    while info(client, name)? != 0 {
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("{name} does not end")));
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A load of closed connections for some seconds; requests a second.
fn rate(server: &Server, conns: usize, seconds: f64, write: impl Fn(&mut Vec<u8>, u64)) -> io::Result<f64> {
    let mut n = 0;
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let outcome = Load::connect(server, conns, 1)?.run(1, Some(until), &mut |out| {
        n += 1;
        write(out, n);
        true
    })?;
    Ok(outcome.replies as f64 / outcome.elapsed.as_secs_f64())
}

fn get(keys: u64) -> impl Fn(&mut Vec<u8>, u64) {
    move |out, n| wire::command(out, &[b"GET", &key40(mix(n) % keys)])
}

fn set(keys: u64) -> impl Fn(&mut Vec<u8>, u64) {
    move |out, n| wire::command(out, &[b"SET", &key40(mix(n) % keys), &value40(n)])
}

/// GETs of 50 connections, alone and beside 8 that SET other keys; and SETs of 50 connections.
fn always(targets: &[Target], options: &Options) -> Result<Table, String> {
    let head = [
        "server",
        "GET/s alone",
        "beside 8 SET",
        "p99.9 / max alone",
        "beside 8 SET",
        "SET/s of 8",
        "SET/s of 50",
    ];
    let mut table = Table::new(&head);
    for target in targets {
        let server = Server::start(&target.with(&["--appendonly", "yes", "--appendfsync", "always"]))?;
        let row = always_one(&server, options).map_err(failed)?;
        table.row([vec![target.label.clone()], row].concat());
    }
    Ok(table)
}

fn always_one(server: &Server, options: &Options) -> io::Result<Vec<String>> {
    const KEYS: u64 = 100_000;
    fill::mset(server, KEYS)?;
    bystander::prepare(server)?;
    let seconds = options.seconds;
    let watched = || -> io::Result<(f64, Seen)> {
        let bystander = Bystander::start(server)?;
        let rate = rate(server, GETTERS, seconds, get(KEYS))?;
        Ok((rate, bystander.stop()?))
    };
    let (alone, alone_seen) = watched()?;
    let (beside, setting) = std::thread::scope(|scope| {
        let setters = scope.spawn(|| {
            // Keys that nobody reads.
            rate(server, SETTERS, seconds, |out, n| {
                wire::command(out, &[b"SET", &key40(KEYS + n % 1000), &value40(n)])
            })
        });
        let beside = watched();
        (beside, setters.join().unwrap_or_else(|_| Err(io::Error::other("the setters panicked"))))
    });
    let ((beside, beside_seen), setting) = (beside?, setting?);
    let sets = rate(server, GETTERS, seconds, set(KEYS))?;
    let whole = |rate: f64| format!("{rate:.0}");
    Ok(vec![whole(alone), whole(beside), alone_seen.tail(), beside_seen.tail(), whole(setting), whole(sets)])
}

/// SETs with and without a log: rate and CPU time of the server for each.
fn everysec(targets: &[Target], options: &Options) -> Result<Table, String> {
    let mut table =
        Table::new(&["server", "pipeline", "SET/s without", "with", "ratio", "CPU each without", "with"]);
    for target in targets {
        for pipeline in [1usize, 16] {
            let mut figures = Vec::new();
            for log in ["no", "yes"] {
                let server = Server::start(&target.with(&[
                    "--appendonly",
                    log,
                    "--auto-aof-rewrite-percentage",
                    "0",
                ]))?;
                let (mut rates, mut costs) = (Vec::new(), Vec::new());
                for _ in 0..3 {
                    let (rate, cost) = sets(&server, pipeline, options.seconds).map_err(failed)?;
                    rates.push(rate);
                    costs.push(cost);
                }
                figures.push((median(&mut rates), median(&mut costs)));
            }
            let [(without, cpu_without), (with, cpu_with)] = figures[..] else { continue };
            table.row(vec![
                target.label.clone(),
                pipeline.to_string(),
                format!("{without:.0}"),
                format!("{with:.0}"),
                format!("{:.2}", with / without),
                time(cpu_without),
                time(cpu_with),
            ]);
        }
    }
    Ok(table)
}

fn sets(server: &Server, pipeline: usize, seconds: f64) -> io::Result<(f64, f64)> {
    const KEYS: u64 = 100_000;
    let (mut n, write) = (0, set(KEYS));
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let cpu = server.cpu_ns();
    let outcome = Load::connect(server, GETTERS, 1)?.run(pipeline, Some(until), &mut |out| {
        n += 1;
        write(out, n);
        true
    })?;
    let cost = (server.cpu_ns() - cpu) as f64 / outcome.replies.max(1) as f64;
    Ok((outcome.replies as f64 / outcome.elapsed.as_secs_f64(), cost))
}

/// How long a start takes until the data is there.
fn load(targets: &[Target], options: &Options) -> Result<Table, String> {
    let mut table = Table::new(&["server", "file", "loaded in", "CPU of the server"]);
    for target in targets {
        let dir =
            std::env::temp_dir().join(format!("evenkeel-bench-load-{}-{}", std::process::id(), target.label));
        std::fs::create_dir_all(&dir).map_err(failed)?;
        let row = load_one(target, options, &dir);
        let _ = std::fs::remove_dir_all(&dir);
        table.row([vec![target.label.clone()], row?].concat());
    }
    Ok(table)
}

fn load_one(target: &Target, options: &Options, dir: &Path) -> Result<Vec<String>, String> {
    let target = target.with(&["--dir", &dir.display().to_string()]);
    {
        let server = Server::start(&target)?;
        fill(&server, options).map_err(failed)?;
        let mut client = server.client().map_err(failed)?;
        client.words("SAVE").map_err(failed)?;
    }
    let size = std::fs::metadata(dir.join("dump.rdb")).map_err(failed)?.len();
    let began = Instant::now();
    let server = Server::start(&target)?;
    let took = began.elapsed();
    Ok(vec![bytes(size), time(took.as_nanos() as f64), time(server.cpu_whole_ns() as f64)])
}
