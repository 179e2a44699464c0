//! The linearizability tester: concurrent clients on a real server, and a search for an order that explains
//! every reply.
//!
//! ```text
//!  seed ─▶ plan ─┬─▶ groups: random operations on few keys ──▶ history ──▶ check (against model)
//!                └─▶ invariants: bank, stamps, queue, noise, streams, jobs, caches ─▶ claims that hold in every reply
//! ```
//!
//! Every seed gets its own server. The requests follow from the seed, the timing does not. So a failing seed
//! may have to be repeated (`--seeds 17..17 --repeat 50`).
//!
//! 1. The checker can fail: its unit tests hold histories that must be rejected. `tests` below runs the whole
//!    machinery against a small correct server and against wrong mutants of it.
//! 2. Nothing is compared with a clock: an operation takes place between its invocation and its return, no
//!    matter when.

mod caches;
mod check;
mod consumers;
mod groups;
mod invariants;
mod leaders;
mod model;
mod run;
mod speech;
mod streams;
mod wire;

#[cfg(test)]
mod tests;

use groups::Plan;
use run::Outcome;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
Runs concurrent clients on Evenkeel and checks that what they saw is linearizable.

  --server PATH    the server under test (default: the built evenkeel)
  --seeds A..B     which runs, both ends included (default 1..20)
  --seconds S      how long each lasts (default 1; fractions are taken)
  --repeat N       each seed so many times (default 1)
  --dbsize         hold DBSIZE, too, to one moment (it may count a write of many keys half done)
  --leaders        three servers, and the lead goes to and fro between two of them (FAILOVER)
  --plan           only print what each seed stands for
";

struct Options {
    server: PathBuf,
    seeds: std::ops::RangeInclusive<u64>,
    time: Duration,
    repeat: usize,
    plan: bool,
    dbsize: bool,
    leaders: bool,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            eprintln!("{mistake}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    if options.plan {
        options.seeds.for_each(|seed| println!("{:?}", Plan::of(seed)));
        return ExitCode::SUCCESS;
    }
    if !options.server.exists() {
        eprintln!("there is no {}: build it with `cargo build -p evenkeel`", options.server.display());
        return ExitCode::from(2);
    }
    run_all(&options)
}

fn run_all(options: &Options) -> ExitCode {
    let began = Instant::now();
    let (mut passed, mut failed) = (0, 0);
    let mut sum = Outcome::default();
    for seed in options.seeds.clone() {
        for _ in 0..options.repeat {
            let outcome = match options.leaders {
                true => leaders::seed(&options.server, &Plan::of_leaders(seed), options.time),
                false => {
                    let plan = Plan { dbsize: options.dbsize, ..Plan::of(seed) };
                    run::seed(&options.server, &plan, options.time)
                }
            };
            sum.operations += outcome.operations;
            sum.invariants += outcome.invariants;
            sum.undecided += outcome.undecided;
            if outcome.failures.is_empty() {
                passed += 1;
                if passed % 100 == 0 {
                    println!("linear: seed {seed}, {passed} runs passed so far");
                }
                continue;
            }
            failed += 1;
            let mode = if options.leaders { " --leaders" } else { "" };
            println!("FAILED:{mode} --seeds {seed}..{seed} --seconds {}", options.time.as_secs_f64());
            outcome.failures.iter().for_each(|failure| println!("{failure}"));
        }
    }
    println!(
        "linear: {} operations ordered, {} replies held to an invariant, {} histories undecided in {:.0} s",
        sum.operations,
        sum.invariants,
        sum.undecided,
        began.elapsed().as_secs_f64()
    );
    println!("linear: {passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options {
        server: built_server(),
        seeds: 1..=20,
        time: Duration::from_secs(1),
        repeat: 1,
        plan: false,
        dbsize: false,
        leaders: false,
    };
    let mut args = args;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--dbsize" => options.dbsize = true,
            "--leaders" => options.leaders = true,
            "--plan" => options.plan = true,
            "--server" => options.server = value()?.into(),
            "--seeds" => options.seeds = seeds(&value()?)?,
            "--repeat" => options.repeat = value()?.parse().map_err(|_| "--repeat needs a number")?,
            "--seconds" => {
                let seconds: f64 = value()?.parse().map_err(|_| "--seconds needs a number")?;
                options.time = Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?;
            }
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(Some(options))
}

fn seeds(text: &str) -> Result<std::ops::RangeInclusive<u64>, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| text.trim_start_matches('=').parse().map_err(|_| format!("bad seeds: {text}"));
    Ok(number(from)?..=number(to)?)
}

/// The server beside this program.
fn built_server() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.with_file_name("evenkeel")
}
