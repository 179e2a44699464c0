//! `evenkeel-bench`: the figures in the README, measured beside Valkey and Redis on the same machine.
//!
//! ```text
//! evenkeel-bench [all|throughput|memory|growth|lists|bystander|blacklist] [--option value ..]
//! ```
//!
//! Every part starts the servers itself, on free loopback ports, with nothing saved to disk, and ends them. What
//! is compared is what cannot be argued with: the scheduler's CPU time of the server, its resident memory, and
//! the latency seen by a bystander who sends on a fixed timetable whatever the server does (`bystander.rs`).

#![allow(dead_code)]

mod client;
mod fill;
mod load;
mod memory;
mod random;
mod report;
mod server;
mod sys;
mod throughput;
mod wire;

use report::{Report, Section};
use std::collections::BTreeMap;
use std::process::ExitCode;

const HELP: &str = "\
Usage: evenkeel-bench [PART] [--option value ..]

Parts:
  all          (default) all of them, compact: a few minutes
  throughput   server CPU per request     --rounds 5 --conns 50 --requests 60000 --commands set,get,..
  memory       bytes per key and element  --keys 1000000[,10000000] --elements 1000000

For all parts:
  --md FILE         also write the report as Markdown
  --only A,B        only these servers (Evenkeel, Valkey, Redis)
  --evenkeel PATH   the binary (default: beside this one)
  --peers DIR       where `make peers` put the others
  --cpus 0,1        keep the servers on these cores
  --full            with `all`: the sizes of the single parts
";

/// `--name value` pairs, each taken once by whoever wants it.
struct Options(BTreeMap<String, String>);

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut args = args.peekable();
        let mut options = BTreeMap::new();
        while let Some(arg) = args.next() {
            let name = arg.strip_prefix("--").ok_or(format!("what is '{arg}'?"))?.to_string();
            let value = args.next_if(|next| !next.starts_with("--")).unwrap_or_default();
            options.insert(name, value);
        }
        Ok(Options(options))
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn flag(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    fn list(&mut self, name: &str) -> Vec<String> {
        let text = self.text(name).unwrap_or_default();
        text.split(',').filter(|s| !s.is_empty()).map(str::to_string).collect()
    }

    fn numbers(&mut self, name: &str) -> Result<Vec<u64>, String> {
        self.list(name)
            .iter()
            .map(|s| s.parse().map_err(|_| format!("--{name} wants numbers, not '{s}'")))
            .collect()
    }

    fn number(&mut self, name: &str, default: u64) -> Result<u64, String> {
        Ok(self.numbers(name)?.first().copied().unwrap_or(default))
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    let part = args.next_if(|arg| !arg.starts_with('-')).unwrap_or("all".to_string());
    if part == "help" || args.peek().is_some_and(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match Options::parse(args).and_then(|options| run(&part, options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel-bench: {error}\n\n{HELP}");
            ExitCode::FAILURE
        }
    }
}

fn run(part: &str, mut options: Options) -> Result<(), String> {
    let cpus: Vec<usize> = options.numbers("cpus")?.iter().map(|&n| n as usize).collect();
    let evenkeel = options.text("evenkeel");
    let peers = options.text("peers");
    let only = options.list("only");
    let markdown = options.text("md");
    let compact = part == "all" && !options.flag("full");
    let (mut targets, missing) = server::discover(evenkeel.as_deref(), peers.as_deref(), &cpus);
    targets
        .retain(|target| only.is_empty() || only.iter().any(|name| name.eq_ignore_ascii_case(&target.label)));

    let mut header = Section::new("Machine and servers");
    header.note(report::machine());
    for target in &targets {
        header.note(format!("{}: {}", target.label, target.version()));
    }
    missing.into_iter().for_each(|note| header.note(note));
    let mut report = Report::default();
    report.add(header);

    let wanted = |name: &str| part == "all" || part == name;
    let mut ran = false;
    if wanted("throughput") {
        let throughput = throughput::Options {
            rounds: options.number("rounds", if compact { 3 } else { 5 })? as usize,
            conns: options.number("conns", 50)? as usize,
            requests: options.number("requests", if compact { 30_000 } else { 60_000 })?,
            commands: options.list("commands"),
        };
        report.add(throughput::run(&targets, &throughput));
        ran = true;
    }
    if wanted("memory") {
        let mut keys = options.numbers("keys")?;
        if keys.is_empty() {
            keys.push(1_000_000);
        }
        let elements = options.number("elements", 1_000_000)?;
        report.add(memory::run(&targets, &memory::Options { keys, elements }));
        ran = true;
    }
    if !ran {
        return Err(format!("no part is called '{part}'"));
    }
    if let Some(path) = markdown {
        report.write_markdown(&path).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}
