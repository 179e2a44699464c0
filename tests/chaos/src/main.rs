//! Five programs that try to break a server: `fuzz` by its input, `soak` by everything that can happen at once,
//! `crash` by ends at any moment, `power` by disks that lose what was not synced, `replicas` by everything that
//! can happen to servers that follow each other.
//!
//! ```text
//!  seed ─▶ fuzz: calls from COMMAND DOCS, nearly right, hostile, half, no protocol at all ─▶ alive? answered? bounded?
//!       └▶ soak: scripts, jobs, transfers, pops, pauses, flushes, eviction, readers that stop ─▶ sums right? nothing left?
//!       └▶ crash: writers, rewrites, saves, kill -9, cut and damaged files, full disks ─▶ is there what was promised?
//!       └▶ power: the real program's calls, recorded, and starts from what an outage may leave ─▶ the same question
//!       └▶ replicas: kills, cuts, promotions, chains ─▶ whole transactions everywhere? equal at rest? promises of WAIT kept?
//! ```
//!
//! 1. The requests follow from the seed; their times, and the events that result, do not.
//! 2. Nothing is compared with a clock, except with a limit that cannot be missed by accident (`--hang`).

mod crash;
mod episode;
mod fuzz;
mod grammar;
mod leftovers;
mod line;
mod peer;
mod power;
mod replicas;
mod scan;
mod scripts;
mod soak;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
Tries to break Evenkeel, and says whether it held.

  chaos fuzz [options]     clients that send all kinds of requests, and what is none
  chaos soak [options]     everything at once, with invariants; at the end nothing may be left
  chaos crash [options]    kill -9 again and again; what was promised must be there
  chaos power [options]    starts from what an outage may leave of the files (needs strace)
  chaos replicas [options] servers that follow each other, while everything happens to them

  --server PATH       the server under test (default: the built evenkeel)
  --seed N            which run (default 1)
  --seconds S         how long (default 600 for fuzz, 300 for soak)
  --connections N     players of the fuzzer (default 6)
  --maxmemory SIZE    the server's limit (default 300mb)
  --cap-mb N          resident memory that counts as a fault (default 1024)
  --data-mb N         RLIMIT_DATA of the server, a last resort for the machine; 0: none (default 6144)
  --slack-mb N        more memory in use at the end than at the start (default 32; three times that resident)
  --hang S            silence that counts as a fault (default 120)
  --patience S        how long what is left over may take to go (default 60)

soak only:
  --only a,b          only these actors, by names that it prints

crash and power:
  --rounds N          how many (default 1000; for power 40, of 24 images each)
  --fsync MODE        only this appendfsync (default: another one each round)
  --dir D             where the files are (default: the folder for temporary files)

crash only:
  --grace-ms N        how old a write must be to be there without `always` (default 2000)
  --without a,b       leave out points, or: function (no libraries), order (no end in order), temporary (the doctor sees
                      no unfinished files)
  --tell-all          a line for each round
  --only a,b          only these parts: rounds, mount and limit (full disks)

replicas only:
  --steps N           of each seed (default 60); seeds follow each other for --seconds, or --rounds of them
  --rest-every N      steps between two comparisons (default 10)
  --with PATH         a redis-server or valkey-server that takes part; may be repeated
  --without a,b       without these players: mixer, heavy, wild, restorer, teller, pairs, flusher, auditor, leech
  --tell-all          a line for each step

fuzz only:
  --round N           the first round (default 0); every round has a server of its own
  --round-seconds S   how long a round lasts (default 60)
  --faults N          end after N different faults (default 1)
  --without a,b       commands to leave out, to see what hides behind a known fault
  --not BYTES         what is sent may not contain this (\\0 is a zero byte); may be repeated
  --allow-panics      contained panics are no fault
  --no-blame          do not look for who did it
  --peer PATH         a valkey-benchmark; with --fuzz in it, it goes first, a tenth of the time in each of its modes
";

pub struct Options {
    pub server: PathBuf,
    pub seed: u64,
    pub time: Duration,
    pub connections: usize,
    pub maxmemory: String,
    pub cap_mb: u64,
    pub data_mb: u64,
    pub slack_mb: u64,
    pub hang: Duration,
    pub patience: Duration,
    pub round: u64,
    pub round_time: Duration,
    pub rounds: u64,
    pub grace_ms: u64,
    pub fsync: Option<String>,
    pub dir: Option<PathBuf>,
    pub tells_all: bool,
    pub faults: usize,
    pub without: Vec<String>,
    pub not: Vec<Vec<u8>>,
    pub only: Vec<String>,
    pub allows_panics: bool,
    pub blames: bool,
    pub peer: Option<PathBuf>,
    pub steps: usize,
    pub rest_every: usize,
    pub peers: Vec<PathBuf>,
}

impl Options {
    fn new(time: Duration) -> Options {
        Options {
            server: std::env::current_exe().unwrap_or_default().with_file_name("evenkeel"),
            seed: 1,
            time,
            connections: 6,
            maxmemory: "300mb".into(),
            cap_mb: 1024,
            data_mb: 6144,
            slack_mb: 32,
            hang: Duration::from_secs(120),
            patience: Duration::from_secs(60),
            round: 0,
            round_time: Duration::from_secs(60),
            rounds: 1000,
            grace_ms: 2000,
            fsync: None,
            dir: None,
            tells_all: false,
            faults: 1,
            without: Vec::new(),
            not: Vec::new(),
            only: Vec::new(),
            allows_panics: false,
            blames: true,
            peer: None,
            steps: 60,
            rest_every: 10,
            peers: Vec::new(),
        }
    }
}

enum Program {
    Fuzz,
    Soak,
    Crash,
    Power,
    Replicas,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(Some((_, options))) if !options.server.exists() => {
            eprintln!("there is no {}: build it with `cargo build -p evenkeel`", options.server.display());
            ExitCode::from(2)
        }
        Ok(Some((Program::Fuzz, options))) => fuzz_all(&options),
        Ok(Some((Program::Soak, options))) => soak_all(&options),
        Ok(Some((Program::Crash, options))) => told("crash", &options, crash::run),
        Ok(Some((Program::Power, options))) => told("power", &options, power::run),
        Ok(Some((Program::Replicas, options))) => told("replicas", &options, replicas::run),
        Ok(None) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Err(mistake) => {
            eprintln!("{mistake}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn fuzz_all(options: &Options) -> ExitCode {
    let began = Instant::now();
    println!("fuzz: seed {}, {} s", options.seed, options.time.as_secs());
    let (mut passed, mut failed) = (0, 0);
    if let Some(peer) = &options.peer {
        let (good, bad) = peer::run(peer, options);
        passed += good;
        failed += bad;
    }
    match fuzz::run(options) {
        Ok((tally, found)) => {
            println!(
                "fuzz: {} requests in {} episodes, {} replies read, {} answers demanded, longest wait {:.1} ms, peak {} MB in {:.0} s",
                tally.requests,
                tally.episodes,
                tally.replies,
                tally.asked,
                tally.longest_us as f64 / 1e3,
                tally.peak_bytes >> 20,
                began.elapsed().as_secs_f64()
            );
            found.iter().for_each(|(title, (times, _))| println!("fuzz: FAULT, {times} times: {title}"));
            passed += usize::from(found.is_empty());
            failed += found.len();
        }
        Err(why) => {
            println!("fuzz: {why}");
            failed += 1;
        }
    }
    println!("fuzz: {passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn soak_all(options: &Options) -> ExitCode {
    println!("soak: seed {}, {} s", options.seed, options.time.as_secs());
    let failures = match soak::run(options) {
        Ok(failures) => failures,
        Err(why) => vec![why],
    };
    failures.iter().for_each(|failure| println!("FAULT: {failure}"));
    println!("soak: {} passed, {} failed", usize::from(failures.is_empty()), failures.len());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What passed, and the faults in words.
type Outcome = Result<(usize, Vec<String>), String>;

fn told(program: &str, options: &Options, run: fn(&Options) -> Outcome) -> ExitCode {
    println!("{program}: seed {}, {} rounds", options.seed, options.rounds);
    let (passed, faults) = run(options).unwrap_or_else(|why| (0, vec![why]));
    faults.iter().for_each(|fault| println!("FAULT: {fault}"));
    println!("{program}: {passed} passed, {} failed", faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<(Program, Options)>, String> {
    let (program, seconds) = match args.next().as_deref() {
        Some("fuzz") => (Program::Fuzz, 600),
        Some("soak") => (Program::Soak, 300),
        Some("crash") => (Program::Crash, 0),
        Some("power") => (Program::Power, 0),
        Some("replicas") => (Program::Replicas, 600),
        Some("--help" | "-h") => return Ok(None),
        _ => return Err("which: fuzz, soak, crash, power or replicas?".into()),
    };
    let mut options = Options::new(Duration::from_secs(seconds));
    if matches!(program, Program::Power) {
        options.rounds = 40;
    }
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{arg} needs a number"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--server" => options.server = value()?.into(),
            "--seed" => options.seed = number(value()?)?,
            "--seconds" => options.time = Duration::from_secs(number(value()?)?),
            "--connections" => options.connections = number(value()?)? as usize,
            "--rounds" => options.rounds = number(value()?)?,
            "--grace-ms" => options.grace_ms = number(value()?)?,
            "--fsync" => options.fsync = Some(fsync(value()?)?),
            "--tell-all" => options.tells_all = true,
            "--dir" => options.dir = Some(value()?.into()),
            "--maxmemory" => options.maxmemory = value()?,
            "--cap-mb" => options.cap_mb = number(value()?)?,
            "--data-mb" => options.data_mb = number(value()?)?,
            "--slack-mb" => options.slack_mb = number(value()?)?,
            "--hang" => options.hang = Duration::from_secs(number(value()?)?),
            "--patience" => options.patience = Duration::from_secs(number(value()?)?),
            "--round" => options.round = number(value()?)?,
            "--round-seconds" => options.round_time = Duration::from_secs(number(value()?)?),
            "--faults" => options.faults = number(value()?)? as usize,
            "--without" => {
                options.without = value()?.split(',').map(|name| name.trim().to_lowercase()).collect()
            }
            "--only" => options.only = value()?.split(',').map(|name| name.trim().to_owned()).collect(),
            "--not" => options.not.push(value()?.replace("\\0", "\0").into_bytes()),
            "--allow-panics" => options.allows_panics = true,
            "--no-blame" => options.blames = false,
            "--steps" => options.steps = number(value()?)? as usize,
            "--rest-every" => options.rest_every = number(value()?)? as usize,
            "--with" => options.peers.push(value()?.into()),
            "--peer" => options.peer = Some(value()?.into()),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(Some((program, options)))
}

fn fsync(mode: String) -> Result<String, String> {
    match mode.as_str() {
        "always" | "everysec" | "no" => Ok(mode),
        _ => Err(format!("--fsync {mode}: always, everysec or no")),
    }
}
