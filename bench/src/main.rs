//! `evenkeel-bench`: the figures in the README, measured beside Valkey and Redis on the same machine.
//!
//! ```text
//! evenkeel-bench [all|throughput|tls|memory|growth|lists|copies|loading|bystander|batch|blacklist|small|items|instances|save|touch|cache] [--option ..]
//! ```
//!
//! Every part starts the servers itself, on free loopback ports, with nothing saved to disk, and ends them.
//! The figures compared are hard to dispute. They are the scheduler's CPU time of the server, its resident
//! memory, and the latency for a bystander with a fixed timetable (`bystander.rs`).

mod attack;
mod attackers;
mod batch;
mod blacklist;
mod cache;
mod cgroup;
mod copies;
mod growth;
mod items;
mod lists;
mod loading;
mod memory;
mod save;
mod secure;
mod server;
mod small;
mod sys;
mod throughput;
mod tls;

use bench::{bystander, client, endpoint, fill, load, random, report, wire};
use report::{Report, Section};
use server::Target;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

const PARTS: &[&str] =
    &["blacklist", "bystander", "throughput", "tls", "memory", "growth", "lists", "copies", "small"];

const HELP: &str = "\
Usage: evenkeel-bench [PART] [--option value ..]

Parts:
  all          (default) all of them, compact: a few minutes
  throughput   server CPU per request     --rounds 5 --conns 50 --requests 60000 --commands set,get,..
  tls          server CPU per GET, TLS    --rounds 5 --conns 50 --requests 60000
  memory       bytes per key and element  --keys 1000000[,10000000] --elements 1000000
  growth       fill, lose 94 % of the keys --keys 20000000 --window 20 --tail 120
  lists        LPUSH pipelined by 1000    --elements 10000000
  copies       that list copied, six ways --elements 10000000 --ways RPOPLPUSH,COPY,..
  loading      rows as commands, by load  --elements 10000000 --hashes 5000000 --strings 10000000 (not part of all)
  bystander    latency beside attackers   --seconds 30 --attackers 1,10 --attacks smembers,sdiff,.. --scale 1.0
                                          --baseline-every 8 --tries 3 --attackers-normal (not behind all others)
  batch        batches of writes          --keys 100,2000,.. --sizes 1,10,.. --rounds 3 --seconds 0.5
  blacklist    the blacklist request      --rounds 5 --seconds 2 --callers 4 --shapes random,dense,many --ways a,c,..
  small        one core, 512 MiB          --keys 2000000 --requests 100000 --seconds 4
  items        rows of a PostgreSQL       --rows 100000 --big-rows 30000 --cached 30000 --conns 50 --rounds 3
                                          --seconds 3 --commits 500 --cases hot,cold,.. --source 'gather 200us'
                                          (not part of all)
  instances    several of them            --instances 5 --rows 10000 --cached 2500 --requests 2000000 --day 60
                                          (not part of all)
  save         beside snapshots and logs  --keys 5000000 --elements 1000000 --writes 20000 --seconds 5
                                          --cases bgsave,rewrite,always,everysec,load (not part of all)
  touch        what eviction costs a GET  --rounds 9 --conns 50 --requests 60000
  cache        hit ratios on real traces  --traces DIR --names web07,.. --permille 5,20,100 --requests 1000000
                                          --pipeline 64 --parallel CORES --value BYTES (not part of all)

For all parts:
  --md FILE         also write the report as Markdown
  --only A,B        only these servers (default Evenkeel, Valkey, Redis; bystander, batch, cache: the first and last)
  --evenkeel PATH   the binary (default: beside this one)
  --peers DIR       where `make peers` put the others
  --cpus 0,1        keep the servers on these cores
  --full            with `all`: the sizes of the single parts
";

/// `--name value` pairs, and the names given on the command line.
struct Options {
    values: BTreeMap<String, String>,
    used: BTreeSet<String>,
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut args = args.peekable();
        let mut values = BTreeMap::new();
        while let Some(arg) = args.next() {
            let name = arg.strip_prefix("--").ok_or(format!("'{arg}' does not begin with --"))?.to_string();
            let value = args.next_if(|next| !next.starts_with("--")).unwrap_or_default();
            values.insert(name, value);
        }
        Ok(Options { values, used: BTreeSet::new() })
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.used.insert(name.to_string());
        self.values.get(name).cloned()
    }

    fn flag(&mut self, name: &str) -> bool {
        self.text(name).is_some()
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

    fn numbers_or(&mut self, name: &str, default: &[u64]) -> Result<Vec<u64>, String> {
        let numbers = self.numbers(name)?;
        Ok(if numbers.is_empty() { default.to_vec() } else { numbers })
    }

    fn list_or(&mut self, name: &str, default: &[&str]) -> Vec<String> {
        let list = self.list(name);
        if list.is_empty() { default.iter().map(|s| s.to_string()).collect() } else { list }
    }

    fn decimal(&mut self, name: &str, default: f64) -> Result<f64, String> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => match text.parse::<f64>() {
                Ok(n) if n.is_finite() && n > 0.0 => Ok(n),
                _ => Err(format!("--{name} wants a number above 0, not '{text}'")),
            },
        }
    }

    fn number(&mut self, name: &str, default: u64) -> Result<u64, String> {
        Ok(self.numbers(name)?.first().copied().unwrap_or(default))
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    let part = args.next_if(|arg| !arg.starts_with('-')).unwrap_or("all".to_string());
    if part == bystander::PART[0] && args.peek().is_some_and(|arg| arg == bystander::PART[1]) {
        return bystander::process().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
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
    let usual: &[&str] =
        if matches!(part, "bystander" | "batch" | "cache") { &["Evenkeel", "Redis"] } else { &[] };
    let only = options.list_or("only", usual);
    let markdown = options.text("md");
    let full = options.flag("full");
    let compact = part == "all" && !full;
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

    let parts: &[&str] = if part == "all" { PARTS } else { &[part] };
    for part in parts {
        measure(part, &targets, &mut options, compact)?.into_iter().for_each(|section| report.add(section));
        if let Some(path) = &markdown {
            report.write_markdown(path).map_err(|e| format!("{path}: {e}"))?;
        }
    }
    for name in options.values.keys().filter(|&name| !options.used.contains(name)) {
        eprintln!("evenkeel-bench: --{name} was not used by this part");
    }
    Ok(())
}

fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64)
}

/// Runs one part. `compact` halves rounds and takes sizes that fit into minutes.
fn measure(
    part: &str,
    targets: &[Target],
    options: &mut Options,
    compact: bool,
) -> Result<Vec<Section>, String> {
    let sized = |full, small| if compact { small } else { full };
    let section = match part {
        "throughput" => {
            let options = throughput::Options {
                rounds: options.number("rounds", sized(5, 3))? as usize,
                conns: options.number("conns", 50)? as usize,
                requests: options.number("requests", sized(60_000, 30_000))?,
                commands: options.list("commands"),
            };
            throughput::run(targets, &options)
        }
        "tls" => {
            let options = throughput::Options {
                rounds: options.number("rounds", sized(5, 3))?.max(1) as usize,
                conns: options.number("conns", 50)? as usize,
                requests: options.number("requests", sized(60_000, 30_000))?,
                commands: Vec::new(),
            };
            tls::run(targets, &options)
        }
        "memory" => {
            let mut keys = options.numbers("keys")?;
            if keys.is_empty() {
                keys.push(1_000_000);
            }
            let elements = options.number("elements", 1_000_000)?;
            memory::run(targets, &memory::Options { keys, elements })
        }
        "growth" => {
            let options = growth::Options {
                keys: options.number("keys", sized(20_000_000, 2_000_000))?,
                window_s: options.number("window", sized(20, 5))?,
                tail_s: options.number("tail", sized(120, 20))?,
            };
            growth::run(targets, &options)
        }
        "lists" => {
            let elements = options.number("elements", sized(10_000_000, 2_000_000))?;
            lists::run(targets, &lists::Options { elements })
        }
        "copies" => {
            let elements = options.number("elements", sized(10_000_000, 2_000_000))?.max(1);
            copies::run(targets, &copies::Options { elements, ways: options.list("ways") })
        }
        "loading" => {
            let options = loading::Options {
                elements: options.number("elements", 10_000_000)?.max(1),
                hashes: options.number("hashes", 5_000_000)?.max(1),
                strings: options.number("strings", 10_000_000)?.max(1),
            };
            loading::run(targets, &options)?
        }
        "bystander" => {
            let few = if compact { attackers::FEW } else { &[] };
            let options = attackers::Options {
                scale: options.decimal("scale", 1.0)?,
                seconds: options.decimal("seconds", if compact { 2.0 } else { 30.0 })?,
                attacks: options.list_or("attacks", few),
                attackers: options.numbers_or("attackers", if compact { &[1] } else { &[1, 10] })?,
                baseline_every: options.number("baseline-every", 8)? as usize,
                demoted: !options.flag("attackers-normal"),
                tries: options.number("tries", 3)?,
            };
            let (section, appendix) = attackers::run(targets, &options)?;
            return Ok(vec![section, appendix]);
        }
        "batch" => {
            let options = batch::Options {
                keys: options.numbers_or("keys", batch::KEYS)?,
                sizes: options.numbers_or("sizes", batch::SIZES)?,
                rounds: options.number("rounds", 3)?.max(1) as usize,
                seconds: options.decimal("seconds", 0.5)?,
            };
            batch::run(targets, &options)?
        }
        "blacklist" => {
            let options = blacklist::Options {
                rounds: options.number("rounds", sized(5, 3))? as usize,
                seconds: options.number("seconds", sized(2, 1))? as f64,
                callers: options.number("callers", 4)? as usize,
                shapes: options.list("shapes"),
                ways: options.list("ways"),
            };
            blacklist::run(targets, &options)
        }
        "small" => {
            let options = small::Options {
                keys: options.number("keys", 2_000_000)?,
                requests: options.number("requests", sized(100_000, 30_000))?,
                seconds: options.number("seconds", sized(4, 2))? as f64,
            };
            small::run(targets, &options)
        }
        "items" => {
            let peers = options.text("peers");
            let options = items::Options {
                rows: options.number("rows", 100_000)?.max(1000),
                big_rows: options.number("big-rows", 30_000)?,
                cached: options.number("cached", 30_000)?,
                conns: options.number("conns", 50)? as usize,
                rounds: options.number("rounds", 3)?.max(1) as usize,
                seconds: options.decimal("seconds", 3.0)?,
                commits: options.number("commits", 500)?,
                cases: options.list("cases"),
                source: options.text("source").unwrap_or_default(),
            };
            items::run(targets, peers.as_deref(), &options)?
        }
        "instances" => {
            let options = items::instances::Options {
                rows: options.number("rows", 10_000)?.max(1000),
                cached: options.number("cached", 2_500)?.max(1),
                requests: options.number("requests", 2_000_000)?.max(1),
                day_s: options.number("day", 60)?.max(1),
                instances: options.number("instances", 5)?.clamp(1, 10),
            };
            items::instances::run(targets, &options)?
        }
        "save" => {
            let options = save::Options {
                keys: options.number("keys", 5_000_000)?.max(1),
                elements: options.number("elements", 1_000_000)?.max(1),
                writes: options.number("writes", 20_000)?,
                seconds: options.decimal("seconds", 5.0)?,
                cases: options.list("cases"),
            };
            save::run(targets, &options)?
        }
        "touch" => {
            let options = throughput::Options {
                rounds: options.number("rounds", 9)?.max(1) as usize,
                conns: options.number("conns", 50)? as usize,
                requests: options.number("requests", 60_000)?,
                commands: Vec::new(),
            };
            let evenkeel = targets.iter().find(|target| target.label == "Evenkeel");
            throughput::touch(evenkeel.ok_or("Evenkeel is missing")?, &options)?
        }
        "cache" => {
            let named = options.text("traces").map(PathBuf::from);
            let set = || std::env::var_os("EVENKEEL_TRACES").map(PathBuf::from);
            let options = cache::Options {
                traces: named.or_else(set).unwrap_or_else(|| PathBuf::from("../shared/traces")),
                names: options.list("names"),
                permille: options.numbers_or("permille", &[5, 20, 100])?,
                requests: options.number("requests", 1_000_000)? as usize,
                way: cache::Way {
                    pipeline: options.number("pipeline", 64)? as usize,
                    value: options.number("value", 0)? as usize,
                },
                parallel: options.number("parallel", cores())? as usize,
            };
            cache::run(targets, &options)?
        }
        _ => return Err(format!("no part is called '{part}'")),
    };
    Ok(vec![section])
}
