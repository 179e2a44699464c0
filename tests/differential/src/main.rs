//! The differential tester: random commands to Evenkeel and to a real Redis, and every reply compared.
//!
//! ```text
//!   groups/*.txt ─ draw ─▶ stream of steps ─┬─▶ Evenkeel ─┐
//!   scripts/*.lua          (seed, number)   └─▶ oracle ───┴─▶ compare ─▶ tolerated.txt? ─▶ shrink, print
//! ```
//!
//! A run is many short streams. Each starts with empty servers and new connections and ends with a comparison
//! of every key. So any stream can be repeated alone (`--seed S --groups G --stream N`) and shortened by
//! leaving steps out. The streams of a group are numbered; oracle, protocol and limits follow from seed, group
//! and number, not from the worker, the time or other groups.
//!
//! 1. Results that depend on the time of day or on a server's own randomness are not compared literally; see
//!    [`step::Check`].
//! 2. Every difference is a failure unless a line of `tolerated.txt` names and explains it.

mod compare;
mod runner;
mod shrink;
mod table;
mod tolerated;

use evenkeel_differential::{grammar, identity, scenes, step};
use grammar::Group;
use identity::Identity;
use runner::{Failure, Pair, Setting};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use step::Step;
use support::rng::Rng;
use support::server::Server;
use support::wire;
use tolerated::Tolerated;

const HELP: &str = "\
Sends random commands to Evenkeel and to a real Redis and compares all replies.

  --server PATH       the server under test (default: the built evenkeel)
  --oracle PATH       what to compare with; may be repeated (default: redis-server on
                      the PATH, and the servers `make peers` built, if any)
  --commands N        how many commands in all (default 1000000)
  --seed N            which run (default 1)
  --groups a,b        only these command groups; --list-groups names them
  --stream N          only this stream of each group, printed as it is shrunk (see a failure's report)
  --workers N         streams at a time (default: number of cores)
  --resp 2|3          only this protocol
  --most N            end after N different failures (default 25)
  --tolerated FILE    the list of meant differences
  --implemented       leave out commands the server does not know (for work in progress)
  --no-shrink         print the last steps of a failing stream instead of shrinking it
";

/// Steps of a stream: long enough for keys to grow a history, short enough to shrink.
const STREAM: usize = 1000;
/// The words of Evenkeel for a feature that does not exist yet.
const UNFINISHED: &str = "does not exist in Evenkeel yet";

struct Options {
    server: PathBuf,
    oracles: Vec<PathBuf>,
    commands: usize,
    seed: u64,
    groups: Option<Vec<String>>,
    stream: Option<usize>,
    workers: usize,
    resp: Option<u32>,
    most: usize,
    tolerated: PathBuf,
    shrink: bool,
    implemented: bool,
    /// The oracles were named on the command line.
    named: bool,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match session(&options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("differential: {why}");
            ExitCode::from(2)
        }
    }
}

fn options() -> Result<Option<Options>, String> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut options = Options {
        server: default_server(),
        oracles: Vec::new(),
        commands: 1_000_000,
        seed: 1,
        groups: None,
        stream: None,
        workers: std::thread::available_parallelism().map_or(2, |n| n.get()),
        resp: None,
        most: 25,
        tolerated: root.join("tests/differential/tolerated.txt"),
        shrink: true,
        implemented: false,
        named: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value"));
        fn number<T: std::str::FromStr>(text: String) -> Result<T, String> {
            text.parse().map_err(|_| format!("not a number: {text}"))
        }
        match arg.as_str() {
            "--server" => options.server = value()?.into(),
            "--oracle" => options.oracles.push(value()?.into()),
            "--commands" => options.commands = number(value()?)?,
            "--seed" => options.seed = number(value()?)?,
            "--groups" => options.groups = Some(value()?.split(',').map(str::to_owned).collect()),
            "--stream" => options.stream = Some(number(value()?)?),
            "--workers" => options.workers = number::<usize>(value()?)?.max(1),
            "--resp" => options.resp = Some(number(value()?)?),
            "--most" => options.most = number(value()?)?,
            "--tolerated" => options.tolerated = value()?.into(),
            "--implemented" => options.implemented = true,
            "--no-shrink" => options.shrink = false,
            "--list-groups" => {
                grammar::groups().iter().for_each(|group| println!("{}", group.name));
                return Ok(None);
            }
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(None);
            }
            _ => return Err(format!("unknown option {arg}")),
        }
    }
    options.named = !options.oracles.is_empty();
    if !options.named {
        options.oracles = default_oracles();
    }
    Ok(Some(options))
}

/// The evenkeel beside this program: both are built into the same folder.
fn default_server() -> PathBuf {
    std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("evenkeel"))).unwrap_or_default()
}

fn default_oracles() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed =
        std::env::split_paths(&path).map(|dir| dir.join("redis-server")).find(|file| file.exists());
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let peers = std::env::var_os("EVENKEEL_PEERS").map(PathBuf::from);
    let peers = peers.unwrap_or_else(|| home.join(".cache/evenkeel-peers")).join("bin");
    let built = ["redis8-server", "valkey-server"].map(|name| peers.join(name)).into_iter();
    let mut found: Vec<PathBuf> = installed.into_iter().chain(built.filter(|file| file.exists())).collect();
    found.dedup();
    found
}

struct Oracle {
    binary: PathBuf,
    identity: Identity,
}

/// A stream of a run.
struct Plan {
    /// Its number among those of its group.
    number: usize,
    group: usize,
    oracle: usize,
}

#[derive(Default)]
struct Totals {
    commands: usize,
    streams: usize,
    /// Per group and oracle: streams run, streams failed.
    cells: BTreeMap<(usize, usize), (usize, usize)>,
    /// By signature: the number of failures, and the report of the first.
    failures: BTreeMap<String, (usize, String)>,
}

fn session(options: &Options) -> Result<usize, String> {
    let text = std::fs::read_to_string(&options.tolerated)
        .map_err(|e| format!("cannot read {}: {e}", options.tolerated.display()))?;
    let mut tolerated =
        Tolerated::parse(&text).map_err(|e| format!("{}: {e}", options.tolerated.display()))?;
    if options.implemented {
        tolerated.add(&format!("* | * | *{UNFINISHED}* | * | work in progress (--implemented)"))?;
    }
    let groups = grammar::groups();
    let oracles = identify(options)?;
    let plans = plan(options, &groups, &oracles)?;
    let started = Instant::now();
    let names: Vec<String> = oracles.iter().map(|oracle| oracle.identity.name()).collect();
    println!("differential: {} streams against {}, seed {}", plans.len(), names.join(", "), options.seed);

    let mut totals = Totals::default();
    if options.stream.is_none() && options.groups.is_none() && !options.implemented {
        for (at, oracle) in oracles.iter().enumerate() {
            if oracle.identity.flavour != "redis" && !options.named {
                continue;
            }
            let found = table::compare_tables(&options.server, &oracle.binary, &names[at], &tolerated)
                .map_err(|e| format!("{}: {e}", names[at]))?;
            totals.commands += found.compared;
            for report in found.differences {
                totals
                    .failures
                    .insert(format!("table {} {report}", names[at]), (1, format!("{}: {report}", names[at])));
            }
        }
    }
    let shared = Shared {
        options,
        groups: &groups,
        oracles: &oracles,
        tolerated: &tolerated,
        plans: &plans,
        next: AtomicUsize::new(0),
        enough: AtomicBool::new(false),
        totals: Mutex::new(totals),
        known: Mutex::default(),
    };
    let workers = options.workers.min(plans.len().max(1));
    let outcome: Result<(), String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(|| shared.work())).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().map_err(|_| "a worker panicked".to_owned()).and_then(|outcome| outcome)
        })
    });
    outcome?;
    let totals = shared.totals.into_inner().map_err(|_| "a worker panicked")?;
    report(&groups, &names, &totals, &tolerated);
    println!(
        "differential: {} commands in {} streams, {:.0} s; {} differences tolerated by list; {} different failures",
        totals.commands,
        totals.streams,
        started.elapsed().as_secs_f64(),
        tolerated.len(),
        totals.failures.len(),
    );
    let failed = totals.cells.values().filter(|(_, failed)| *failed > 0).count();
    let failed = failed.max(usize::from(!totals.failures.is_empty()));
    println!("differential: {} passed, {failed} failed", totals.cells.len().saturating_sub(failed));
    Ok(totals.failures.len())
}

fn identify(options: &Options) -> Result<Vec<Oracle>, String> {
    if options.oracles.is_empty() {
        return Err("no oracle: install redis-server, or `make peers`".to_owned());
    }
    let identify = |binary: &PathBuf| {
        let server = Server::start(binary).map_err(|e| format!("{}: {e}", binary.display()))?;
        let identity = Identity::of(server.addr).map_err(|e| format!("{}: {e}", binary.display()))?;
        Ok(Oracle { binary: binary.clone(), identity })
    };
    options.oracles.iter().map(identify).collect()
}

/// The streams of a run. Groups take part by their share; oracles that know a group take turns. A stream
/// depends on the seed, its group and its number there alone: other groups change nothing.
fn plan(options: &Options, groups: &[Group], oracles: &[Oracle]) -> Result<Vec<Plan>, String> {
    if let Some(names) = &options.groups
        && let Some(unknown) = names.iter().find(|name| !groups.iter().any(|group| group.name == *name))
    {
        return Err(format!("no group {unknown}; see --list-groups"));
    }
    let wanted =
        |group: &Group| options.groups.as_ref().is_none_or(|names| names.iter().any(|n| n == group.name));
    let mut tickets = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        // Evenkeel words its replies as Redis does. Valkey has other texts, so it is asked only about its own
        // additions, unless it is named on the command line.
        let fits = |oracle: &Oracle| {
            let asked = oracle.identity.flavour == "redis" || group.since == grammar::Since::Valkey9;
            group.since.known_to(&oracle.identity) && (asked || options.named)
        };
        let known: Vec<usize> = (0..oracles.len()).filter(|&o| fits(&oracles[o])).collect();
        if wanted(group) && !known.is_empty() {
            tickets.extend((0..group.share).map(|_| (at, known.clone())));
        }
    }
    if tickets.is_empty() {
        return Err("no oracle knows the groups asked for".to_owned());
    }
    let streams = options.commands.div_ceil(STREAM);
    let coprime = |n: &usize| (2..=*n).all(|d| !n.is_multiple_of(d) || !tickets.len().is_multiple_of(d));
    let stride = (tickets.len() * 5 / 8..).find(coprime).unwrap_or(1).max(1);
    let plan = |number: usize, (group, known): &(usize, Vec<usize>)| {
        let mut rng = Rng::named(options.seed ^ 0x5eed, groups[*group].name, number as u64);
        Plan { number, group: *group, oracle: known[rng.below(known.len())] }
    };
    if let Some(only) = options.stream {
        tickets.dedup_by_key(|(group, _)| *group);
        return Ok(tickets.iter().map(|ticket| plan(only, ticket)).collect());
    }
    let mut numbers = vec![0..; groups.len()];
    // A walk over the tickets gives every group its exact share; the stride scatters them over the run.
    let walk = (0..streams).map(|at| &tickets[(at * stride) % tickets.len()]);
    Ok(walk.filter_map(|ticket| Some(plan(numbers[ticket.0].next()?, ticket))).collect())
}

struct Shared<'a> {
    options: &'a Options,
    groups: &'a [Group],
    oracles: &'a [Oracle],
    tolerated: &'a Tolerated,
    plans: &'a [Plan],
    next: AtomicUsize,
    enough: AtomicBool,
    totals: Mutex<Totals>,
    /// The commands that the server is known to have, or not.
    known: Mutex<BTreeMap<Vec<u8>, bool>>,
}

impl Shared<'_> {
    /// One worker: takes streams until there are none, with its own servers.
    fn work(&self) -> Result<(), String> {
        let start =
            |binary: &PathBuf| Server::start(binary).map_err(|e| format!("{}: {e}", binary.display()));
        let mut ours = start(&self.options.server)?;
        let mut theirs: Vec<Option<Server>> = self.oracles.iter().map(|_| None).collect();
        while !self.enough.load(Ordering::Relaxed) {
            let Some(plan) = self.plans.get(self.next.fetch_add(1, Ordering::Relaxed)) else { break };
            let oracle = &self.oracles[plan.oracle];
            let slot = &mut theirs[plan.oracle];
            let server = match slot {
                Some(server) => server,
                None => slot.insert(start(&oracle.binary)?),
            };
            let name = oracle.identity.name();
            let mut pair = Pair { ours: &mut ours, theirs: server, oracle: &name, tolerated: self.tolerated };
            self.stream(plan, oracle, &mut pair)?;
        }
        Ok(())
    }

    fn stream(&self, plan: &Plan, oracle: &Oracle, pair: &mut Pair<'_>) -> Result<(), String> {
        let group = &self.groups[plan.group];
        let mut rng = Rng::named(self.options.seed, group.name, plan.number as u64);
        let resp3 = rng.percent(50);
        let setting = Setting {
            resp3: self.options.resp.map_or(resp3, |version| version == 3),
            small_limits: rng.percent(50),
            field_ttls: grammar::Since::New.known_to(&oracle.identity),
        };
        let generator =
            scenes::Generator { groups: self.groups, group, oracle: &oracle.identity, rng, out: Vec::new() };
        let mut steps = generator.stream(STREAM);
        if self.options.implemented {
            let mut conn = wire::Conn::open(pair.ours.addr).map_err(|e| e.to_string())?;
            steps.retain(|step| self.is_implemented(step, &mut conn));
        }
        let failure = runner::run(pair, setting, &steps).map_err(|e| e.to_string())?;
        let ran = failure.as_ref().map_or(steps.len(), |failure| failure.at + 1);
        let failed = failure.is_some();
        if let Some(failure) = failure {
            self.failed(plan, group, pair, setting, steps, failure);
        }
        let mut totals = self.totals.lock().map_err(|_| "a worker panicked")?;
        totals.commands += ran;
        totals.streams += 1;
        let cell = totals.cells.entry((plan.group, plan.oracle)).or_default();
        cell.0 += 1;
        cell.1 += usize::from(failed);
        Ok(())
    }

    fn is_implemented(&self, step: &Step, conn: &mut wire::Conn) -> bool {
        let (step::Action::Command(args) | step::Action::Start(args) | step::Action::Scan { args, .. }) =
            &step.action
        else {
            return true;
        };
        let Ok(mut known) = self.known.lock() else { return true };
        let name = args[0].to_ascii_uppercase();
        let args = [args[0].clone(), b"x".to_vec(), b"x".to_vec()];
        let probe = if name.starts_with(b"SUB") || name == b"SHUTDOWN" { &args[..1] } else { &args[..] };
        let is_known = |frame: wire::Frame| {
            !frame.to_string().starts_with("-ERR unknown command") && !frame.to_string().contains(UNFINISHED)
        };
        *known.entry(name).or_insert_with(|| is_known(conn.call_bytes(probe)))
    }

    /// Keeps a failure. The first of its kind is shrunk and written out.
    fn failed(
        &self,
        plan: &Plan,
        group: &Group,
        pair: &mut Pair<'_>,
        setting: Setting,
        steps: Vec<Step>,
        failure: Failure,
    ) {
        let signature = signature(&failure);
        {
            let Ok(mut totals) = self.totals.lock() else { return };
            if let Some((times, _)) = totals.failures.get_mut(&signature) {
                *times += 1;
                return;
            }
            totals.failures.insert(signature.clone(), (1, String::new()));
            if totals.failures.len() >= self.options.most {
                self.enough.store(true, Ordering::Relaxed);
            }
        }
        let (steps, failure) = if self.options.shrink {
            shrink::shrink(pair, setting, steps, failure)
        } else {
            let from = failure.at.saturating_sub(10);
            let at = failure.at;
            (steps[from..=at].to_vec(), failure)
        };
        let mut text = format!(
            "{} against {}, RESP{}, {} limits  (--seed {} --groups {} --stream {})\n",
            group.name,
            pair.oracle,
            if setting.resp3 { 3 } else { 2 },
            if setting.small_limits { "small" } else { "default" },
            self.options.seed,
            group.name,
            plan.number,
        );
        for step in &steps {
            let client = if step.client == 0 { String::new() } else { format!("[client {}] ", step.client) };
            text.push_str(&format!("    {client}{}\n", step.text()));
        }
        let Failure { difference, .. } = failure;
        text.push_str(&format!(
            "  of    {}\n  ours  {}\n  {:5} {}\n",
            difference.command, difference.ours, "its", difference.theirs
        ));
        println!("\nDIFFERENT: {text}");
        if let Ok(mut totals) = self.totals.lock() {
            totals.failures.insert(signature, (1, text));
        }
    }
}

/// The kind of a failure. Failures that differ only in keys and numbers are the same.
fn signature(failure: &Failure) -> String {
    let words = failure.difference.command.split(' ').next().unwrap_or("").to_uppercase();
    let shape = |text: &str| -> String {
        let shape: String = text.chars().take(40).map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        match shape.chars().next() {
            Some('-') => shape,
            Some(mark @ ('*' | '%' | '~' | '>' | ':' | '+' | '$' | '_' | ',' | '<')) => mark.to_string(),
            _ if text.len() < 16 && text.chars().all(|c| c.is_ascii_alphabetic()) => text.to_owned(),
            _ => "text".to_owned(),
        }
    };
    format!("{words} {} {}", shape(&failure.difference.ours), shape(&failure.difference.theirs))
}

fn report(groups: &[Group], names: &[String], totals: &Totals, tolerated: &Tolerated) {
    for ((group, oracle), (streams, failed)) in &totals.cells {
        let verdict = if *failed == 0 { "ok".to_owned() } else { format!("{failed} FAILED") };
        println!("  {:14} {:12} {streams:5} streams  {verdict}", groups[*group].name, names[*oracle]);
    }
    for (signature, (times, _)) in &totals.failures {
        println!("  {times:4} x {signature}");
    }
    let unused: Vec<&str> = tolerated.uses().filter(|(_, times)| *times == 0).map(|(line, _)| line).collect();
    if !unused.is_empty() && totals.failures.is_empty() {
        println!("tolerated.txt: {} lines matched nothing in this run:", unused.len());
        unused.iter().for_each(|line| println!("  {line}"));
    }
}
