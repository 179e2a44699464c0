//! `evenkeel bench`, and the ground that `evenkeel-bench` stands on.
//!
//! ```text
//! Bench (words) ─► Target: checked, or started ─► for each Story: prepare, rounds in turns, clean ─► Outcome
//!                                                    └─ Bystander: a process of its own      ─► text, JSON, page
//! ```
//!
//! - **B1** Keys begin with [`options::PREFIX`]; no other key is written or removed, and nothing is flushed.
//! - **B2** A server that holds keys is not touched unless the user said so.
//! - **B3** Keys are removed after each story, also after an error or a signal.
#![forbid(unsafe_code)]

pub mod bystander;
pub mod client;
pub mod endpoint;
mod expect;
pub mod fill;
mod html;
pub mod load;
pub mod options;
mod outcome;
mod own;
pub mod random;
pub mod report;
mod stories;
mod svg;
pub mod sys;
mod target;
mod waits;
pub mod wire;

use loader::Stop;
use options::Bench;
use outcome::{Measured, Outcome, Shown, Told};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use stories::{Gathered, Run, Story};
use target::{Plan, Target};

pub use loader::Failure;

/// Whether `word` is the command that [`run`] takes.
pub fn is_command(word: &OsString) -> bool {
    word == "bench"
}

/// The command line that [`run`] takes, for completions and man pages.
pub fn command() -> clap::Command {
    <Bench as clap::CommandFactory>::command()
}

/// Runs `evenkeel bench` with its arguments, the name of the command first. Returns what to print. Mistakes in
/// the arguments, and requests for help, end the process. Takes over SIGINT and SIGTERM. Errors: nothing could
/// be measured, an expectation does not hold, a signal; what was measured is in the reason.
pub fn run(args: &[OsString]) -> Result<String, Failure> {
    let failed = |reason: String, exit_code| Failure::new(&reason, exit_code);
    match args.get(1).and_then(|word| word.to_str()) {
        Some(own::PART) => return Err(failed(own::become_server(&args[2..]).to_string(), 1)),
        Some(word) if word == bystander::PART[1] => {
            return bystander::process().map(|()| String::new()).map_err(|e| failed(e.to_string(), 1));
        }
        _ => {}
    }
    let bench = reach::read::<Bench>(args).unwrap_or_else(|error| error.exit());
    let stop = Stop::on_signals().map_err(|e| failed(format!("cannot handle signals: {e}"), 1))?;
    work(&bench, &stop).map_err(|reason| failed(reason, stop.exit_code().unwrap_or(1)))
}

fn work(bench: &Bench, stop: &Stop) -> Result<String, String> {
    let expectations = expect::read(&bench.expect)?;
    let stories = chosen(bench);
    if let Some(missing) =
        expectations.iter().find(|expected| stories.iter().all(|story| story.name != expected.story()))
    {
        return Err(format!(
            "--expect is about {}, which is not among the stories of this run",
            missing.story()
        ));
    }
    [&bench.json, &bench.html, &bench.md].into_iter().flatten().try_for_each(|path| check_writable(path))?;
    let targets = targets(bench, &stories, stop)?;
    let outcome = measure(bench, &stories, &targets, stop)?;
    if let Some(path) = &bench.json {
        write(path, &format!("{:#}\n", outcome.to_json()))?;
    }
    if let Some(path) = &bench.html {
        write(path, &html::page(&outcome))?;
    }
    if let Some(path) = &bench.md {
        write(path, &outcome.markdown())?;
    }
    let mut text = outcome.text();
    let checked: Vec<(bool, String)> =
        expectations.iter().map(|expectation| expectation.check(&outcome)).collect();
    checked.iter().for_each(|(_, sentence)| text.push_str(&format!("\n{sentence}")));
    let broken = checked.into_iter().filter(|(holds, _)| !holds).map(|(_, sentence)| sentence);
    let wrong: Vec<String> = outcome.failures().into_iter().chain(broken).collect();
    if wrong.is_empty() {
        return Ok(text);
    }
    // A reader that has gone is no error.
    let _ = writeln!(io::stdout(), "{text}");
    Err(wrong.join("\n"))
}

/// Errors: the file could not be written after the run. It is left as it is.
fn check_writable(path: &Path) -> Result<(), String> {
    let was_there = path.symlink_metadata().is_ok();
    let opened = File::options().append(true).create(true).open(path);
    let opened = opened.map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    let is_file = opened.metadata().is_ok_and(|about| about.is_file());
    if !was_there && is_file {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// The stories to run. `all` leaves two out unless all servers are of our own: a snapshot replaces a file of
/// the server, and others have no database to read through.
fn chosen(bench: &Bench) -> Vec<&'static Story> {
    let mut stories = stories::chosen(&bench.stories);
    let is_named = |name: &str| bench.stories.iter().any(|named| named == name);
    if bench.against.is_some() || bench.server.is_named() || bench.beside.is_some() {
        stories.retain(|story| is_named(story.name) || !["save", "rows"].contains(&story.name));
    }
    stories
}

/// The servers, after all of them were looked at. Errors: one may not be measured.
fn targets(bench: &Bench, stories: &[&Story], stop: &Stop) -> Result<Vec<Target>, String> {
    let bytes = stories.iter().map(|story| story.bytes).max().unwrap_or(0) * bench.keys + (64 << 20);
    let plan = Plan { bytes, yes: bench.yes };
    let beside = bench.beside()?.map(|endpoint| Target::open(endpoint, plan, stop)).transpose()?;
    let first = match bench.against()? {
        Some(endpoint) => Target::open(endpoint, plan, stop)?,
        None => Target::start(plan, stop)?,
    };
    let mut targets: Vec<Target> = [first].into_iter().chain(beside).collect();
    targets.iter_mut().for_each(|target| target.endpoint.seed = bench.seed);
    Ok(targets)
}

fn measure(
    bench: &Bench,
    stories: &[&'static Story],
    targets: &[Target],
    stop: &Stop,
) -> Result<Outcome, String> {
    let rounds = bench.rounds.unwrap_or(if targets.len() > 1 { 2 } else { 1 });
    let run = Run { seconds: bench.seconds, keys: bench.keys, seed: bench.seed, stop };
    let mut told = Vec::new();
    for story in stories {
        if io::stderr().is_terminal() {
            let _ = writeln!(io::stderr(), "{}: one client {}", story.name, story.doing(bench.keys));
        }
        told.push(tell(story, targets, &run, rounds)?);
    }
    let measured = |target: &Target| Measured {
        name: target.name.clone(),
        version: target.version.clone(),
        place: target.endpoint.server.place.clone(),
        own: target.own,
    };
    let seen = told.iter().flat_map(|told| &told.shown).find_map(|shown| shown.seen.as_ref());
    Ok(Outcome {
        targets: targets.iter().map(measured).collect(),
        seconds: bench.seconds,
        keys: bench.keys,
        rounds,
        seed: bench.seed,
        began: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        machine: report::machine(),
        method: seen.map_or(String::new(), bystander::Seen::method),
        stories: told,
    })
}

/// Measures one story on all servers in turns, and removes its keys (B3). Errors: a signal; keys that could
/// not be removed.
fn tell(story: &'static Story, targets: &[Target], run: &Run<'_>, rounds: u16) -> Result<Told, String> {
    let mut results: Vec<io::Result<Gathered>> = targets
        .iter()
        .map(|target| {
            story.prepare(target, run)?;
            waits::forget(target)?;
            Ok(Gathered::default())
        })
        .collect();
    for round in 0..usize::from(rounds) {
        for turn in 0..targets.len() {
            // The first one changes from round to round.
            let i = if round % 2 == 0 { turn } else { targets.len() - 1 - turn };
            let Ok(gathered) = &mut results[i] else { continue };
            if run.stop.is_asked() {
                break;
            }
            if let Err(error) = story.round(&targets[i], run, gathered) {
                results[i] = Err(error);
            }
        }
    }
    let shown = targets.iter().zip(results).map(|(target, result)| shown(target, result)).collect();
    let mut uncleaned = Vec::new();
    for target in targets {
        if let Err(error) = clean(story, target) {
            uncleaned.push(format!(
                "keys evenkeel-bench:* may be left at {}: {error}",
                target.endpoint.server.place
            ));
        }
    }
    match (run.stop.check(), uncleaned.is_empty()) {
        (Ok(()), true) => Ok(Told { story, shown }),
        (Ok(()), false) => Err(uncleaned.join("\n")),
        (Err(why), true) => Err(format!("{why}; all keys of the benchmark are removed")),
        (Err(why), false) => Err(format!("{why}; {}", uncleaned.join("\n"))),
    }
}

fn shown(target: &Target, result: io::Result<Gathered>) -> Shown {
    let found = result.and_then(|gathered| Ok(Shown::of(gathered, waits::longest(target)?)));
    found.unwrap_or_else(|error| {
        let text = dial::shown(error.to_string());
        let unsupported = text.contains("unknown command") || error.kind() == io::ErrorKind::Unsupported;
        Shown { error: Some(text), unsupported, ..Shown::default() }
    })
}

/// Removes the keys. The snapshot of a server that is not ours is written again without them.
fn clean(story: &Story, target: &Target) -> io::Result<()> {
    target.clean()?;
    if story.name == "save" && !target.own {
        match stories::snapshot(target, &mut target.attacker()?) {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
