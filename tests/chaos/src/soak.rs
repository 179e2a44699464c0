//! `chaos soak`: everything that can happen to a server at once, with claims that must hold all the time, and
//! at the end.
//!
//! ```text
//!   actors (soak/*.rs), each with Rng(seed, nr) ─► one server ◄─ watch: alive? memory? panics?
//!   all have gone ─► nothing is left (leftovers.rs)
//! ```
//!
//! - S1: a reply agrees with the actor's claim, or is an error that says that nothing was done
//!   ([`may_fail`]).
//! - S2: FLUSHALL empties everything at one moment. An actor that finds nothing asks whether one was under
//!   way ([`Stage::flushes`]).
//! - S3: at the end leftovers get no help: something that only SCRIPT KILL would end counts as left.

mod bank;
mod crowd;
mod data;
mod work;

use crate::Options;
use crate::fuzz::{is_told, serve};
use crate::leftovers::{self, Slack, State};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::rng::Rng;
use support::wire::{Conn, Frame};

/// The context of every actor.
pub struct Stage {
    addr: SocketAddr,
    http: SocketAddr,
    hang: Duration,
    stop: AtomicBool,
    /// FLUSHALLs sent, and answered.
    begun: AtomicU64,
    ended: AtomicU64,
    longest_us: AtomicU64,
    pings: AtomicUsize,
    subscribers: AtomicUsize,
}

/// An actor's life: the number of replies checked against its claim, or the claim that failed.
type Actor = fn(&Stage, &mut Rng) -> Result<usize, String>;

/// The actors, and their numbers.
const CAST: &[(&str, usize, Actor)] = &[
    ("bystander", 1, crowd::bystander),
    ("teller", 2, bank::teller),
    ("auditor", 1, bank::auditor),
    ("reader of own writes", 1, data::own_writes),
    ("counter", 1, data::counter),
    ("long EXECs", 1, data::stamper),
    ("reader of long EXECs", 1, data::stamp_reader),
    ("producer", 1, data::producer),
    ("consumer", 2, data::consumer),
    ("SCAN and KEYS", 1, data::scanner),
    ("expiries", 1, data::expiries),
    ("FLUSHALL and SWAPDB", 1, data::flusher),
    ("jobs", 2, work::jobs),
    ("scripts that end", 1, work::scripts),
    ("scripts that do not", 1, work::endless),
    ("functions", 1, work::functions),
    ("settings", 1, work::settings),
    ("pauses", 1, work::pauses),
    ("publisher", 1, crowd::publisher),
    ("subscriber", 2, crowd::subscriber),
    ("readers that stop", 1, crowd::stopped_reader),
    ("half requests", 1, crowd::half_requests),
    ("who comes and goes", 1, crowd::passers_by),
    ("HTTP", 1, crowd::http),
];

impl Stage {
    fn on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    fn conn(&self, db: usize) -> Result<Conn, String> {
        let mut conn = Conn::open(self.addr).map_err(|e| format!("a connection: {e}"))?;
        conn.set_patience(self.hang);
        match conn.call(&["SELECT", &db.to_string()]) {
            Frame::Simple(_) => Ok(conn),
            other => Err(format!("SELECT was answered {other}")),
        }
    }

    /// FLUSHALLs answered so far. They cannot undo anything that is true now.
    fn flushes(&self) -> u64 {
        self.ended.load(SeqCst)
    }

    /// Whether another FLUSHALL may have come since there were so many.
    fn was_flushed(&self, since: u64) -> bool {
        self.begun.load(SeqCst) > since
    }
}

/// S1: words of errors after which nothing was done.
const MAY_FAIL: &[&str] = &[
    "OOM",
    "EXECABORT",
    "killed by user",
    "script-max-time",
    "snapshot-max",
    "work-max-memory",
    "not enough memory",
    "NOTBUSY",
    "UNBLOCKED",
    "Function not found",
    "No matching script",
];

fn may_fail(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    MAY_FAIL.iter().any(|words| text.contains(words))
}

/// Sends a request. `None`: nothing was done, as an error said. Errors: every other error, silence, bytes
/// that are not RESP.
fn ask<A: AsRef<[u8]>>(conn: &mut Conn, words: &[A]) -> Result<Option<Frame>, String> {
    let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_ref().to_vec()).collect();
    let reply = conn.call_bytes(&words);
    judge(&words, reply)
}

fn judge(words: &[Vec<u8>], reply: Frame) -> Result<Option<Frame>, String> {
    let said = || words.iter().take(4).map(|word| support::wire::quote(word)).collect::<Vec<_>>().join(" ");
    match &reply {
        Frame::Error(text) if may_fail(text) => Ok(None),
        Frame::Error(_) | Frame::Gone(_) => Err(format!("{} was answered {reply}", said())),
        _ => Ok(Some(reply)),
    }
}

fn tell(conn: &mut Conn, line: &str) -> Result<Option<Frame>, String> {
    ask(conn, &line.split(' ').collect::<Vec<_>>())
}

/// Sends requests at once and judges each reply.
fn pipeline(conn: &mut Conn, requests: &[Vec<Vec<u8>>]) -> Result<Vec<Option<Frame>>, String> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|words| support::wire::encode(words, &mut bytes));
    conn.send(&bytes);
    requests.iter().map(|words| judge(words, conn.read())).collect()
}

/// A whole number, from an integer or a text.
fn number(frame: &Frame) -> Option<i64> {
    match frame {
        Frame::Int(n) => Some(*n),
        _ => std::str::from_utf8(frame.text()?).ok()?.parse().ok(),
    }
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Waits a moment, so that the machine has other work.
fn rest(rng: &mut Rng, most_ms: usize) {
    std::thread::sleep(Duration::from_micros(rng.below(most_ms * 1000 + 1) as u64));
}

/// Runs the soak once. Returns the faults, in words.
pub fn run(options: &Options) -> Result<Vec<String>, String> {
    let (mut server, http) = serve(options)?;
    let mut control = Conn::open(server.addr).map_err(|e| e.to_string())?;
    control.set_patience(options.hang);
    // Special settings: keys without a time to live are never evicted, so sums can be checked.
    control.call(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    let stage = Stage {
        addr: server.addr,
        http,
        hang: options.hang,
        stop: AtomicBool::new(false),
        begun: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        longest_us: AtomicU64::new(0),
        pings: AtomicUsize::new(0),
        subscribers: AtomicUsize::new(0),
    };
    let before = State::of(&server, &mut control)?;
    let mut failures = Vec::new();
    let mut peak = 0;
    let began = Instant::now();
    let mut held = Vec::new();
    std::thread::scope(|scope| {
        let stage = &stage;
        let mut actors = Vec::new();
        let parts = CAST.iter().flat_map(|part| std::iter::repeat_n(part, part.1)).enumerate();
        let plays = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
        for (nr, (name, _, actor)) in parts.filter(|(_, part)| plays(part.0)) {
            let mut rng = Rng::new(options.seed, nr as u64);
            let play = move || actor(stage, &mut rng).inspect_err(|_| stage.stop.store(true, Relaxed));
            actors.push((*name, scope.spawn(play)));
        }
        while stage.on() && began.elapsed() < options.time {
            std::thread::sleep(Duration::from_millis(10));
            peak = peak.max(server.resident_bytes());
            if peak > options.cap_mb << 20 {
                failures.push(format!("{} MB resident with --maxmemory {}", peak >> 20, options.maxmemory));
                server.kill();
                stage.stop.store(true, Relaxed);
            } else if let Some(how) = server.ended() {
                failures.push(how);
                stage.stop.store(true, Relaxed);
            }
        }
        stage.stop.store(true, Relaxed);
        // An actor may have noticed first.
        failures.extend(server.ended());
        for (name, actor) in actors {
            match actor.join() {
                Ok(Ok(n)) => held.push((name, n)),
                Ok(Err(why)) => failures.push(format!("{name}: {why}")),
                Err(_) => failures.push(format!("{name} panicked")),
            }
        }
    });
    let replies: usize = held.iter().map(|(_, n)| n).sum();
    println!(
        "soak: {replies} replies held to a sentence by {} actors, {} PINGs, longest wait {:.1} ms, peak {} MB, {} FLUSHALLs in {:.0} s",
        CAST.iter().map(|part| part.1).sum::<usize>(),
        stage.pings.load(Relaxed),
        stage.longest_us.load(Relaxed) as f64 / 1e3,
        peak >> 20,
        stage.flushes(),
        began.elapsed().as_secs_f64()
    );
    held.iter().for_each(|(name, n)| println!("soak:   {name}: {n}"));
    if failures.is_empty() {
        let slack =
            Slack { used_bytes: options.slack_mb << 20, resident_bytes: 3 * (options.slack_mb << 20) };
        let (state, left) = leftovers::look(&server, &mut control, &before, slack, options.patience);
        failures.extend(left.into_iter().map(|line| format!("left when all have gone: {line}")));
        if let Some(1..) = state.number("panics_contained").filter(|_| !options.allows_panics) {
            failures.push("panics were contained".into());
        }
        println!(
            "soak: at the end {} MB resident (at the start {}), {} descriptors ({})",
            state.resident >> 20,
            before.resident >> 20,
            state.descriptors,
            before.descriptors
        );
    }
    if !failures.is_empty() {
        let log = server.log();
        let said = log.lines().filter(|line| is_told(line));
        said.take(12).for_each(|line| println!("  {line}"));
        let kept = std::env::temp_dir().join(format!("evenkeel-soak-{}.log", std::process::id()));
        match std::fs::write(&kept, &log) {
            Ok(()) => println!("soak: the server's whole log is kept in {}", kept.display()),
            Err(e) => println!("soak: the server's log could not be kept: {e}"),
        }
    }
    Ok(failures)
}
