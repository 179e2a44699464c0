//! The effect of one client's long command on the others. Every attack of [`crate::attack`] runs on each
//! server, with one attacker and with ten, beside a bystander ([`crate::bystander`]) that sends small GETs.
//!
//! Both sides are reported, as the promise is worth nothing if the attacker pays for it. Each row has its own
//! server process. The bystander is also watched without attackers, before the first row, between rows and
//! after the last one. All these times together are the baseline: the noise of this machine in this run. The
//! goals are set beyond it.
//!
//! Only requests sent while the host left the cores alone are judged, if there are enough of them. The full
//! table has all requests beside them. An interval in which the host took more than [`STOLEN_MAX`] of the
//! cores is watched again, a few times. The one with the least counts. The choice uses the kernel's account,
//! not the results.
//!
//! Goals, for Evenkeel's rows: p99.9 at most 1 ms and max at most 5 ms beyond the baseline; the attacker's
//! own time at most 1.2 times that at Redis, or at Valkey where Redis was not measured.

use crate::attack::{self, Attack, Attacker, Stage, Strike, Style, render};
use crate::bystander::{self, Bystander, Seen};
use crate::client::Client;
use crate::report::{Section, Table, absent, time};
use crate::server::{Server, Target, WITHOUT_TLS};
use crate::sys;
use dial::Frame;
use std::io;
use std::sync::Barrier;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub struct Options {
    pub scale: f64,
    /// Time that each row is watched.
    pub seconds: f64,
    /// Attacks to run; empty for all.
    pub attacks: Vec<String>,
    /// Numbers of attackers.
    pub attackers: Vec<u64>,
    /// Rows between two baselines.
    pub baseline_every: usize,
    /// Whether the attackers' threads run behind all others.
    pub demoted: bool,
    /// Most times that an interval is watched.
    pub tries: u64,
}

/// The attacks of a compact run.
pub const FEW: &[&str] = &["smembers", "sdiff", "keys", "hgetall", "lrange", "blacklist", "sort", "del"];

const P999_GOAL_NS: u64 = 1_000_000;
const MAX_GOAL_NS: u64 = 5_000_000;
const OWN_GOAL: f64 = 1.2;
/// Time before a strike, without attackers.
const LEAD: Duration = Duration::from_millis(200);
/// Pause before an operation answered BUSY is tried again.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// Lag above which the generator, not the server, is the likely cause.
const LATE_NS: u64 = 1_000_000;
/// Part of the cores' time above which an interval is watched again.
const STOLEN_MAX: f64 = 0.002;
/// Open files asked for: a crowd, twice, and some more.
const FILES: u64 = 32_768;
const MAXCLIENTS: &str = "12000";
const SUBJECT: &str = "Evenkeel";
/// The servers that own times are compared with: the first that was measured.
const PEERS: [&str; 2] = ["Redis", "Valkey"];

/// The result of one row on one server.
enum Outcome {
    Measured { own_ns: Vec<f64>, seen: Box<Seen> },
    NotSupported,
    Failed(String),
}

impl Outcome {
    /// The part of the cores that the host gave to others. None where a repeated watch is useless.
    fn stolen_part(&self) -> f64 {
        match self {
            Outcome::Measured { seen, .. } => seen.stolen_part(),
            _ => 0.0,
        }
    }
}

/// The fields of INFO about stalls, in this order.
const STALLS: [&str; 7] = ["seen", "named", "crowd", "os", "os_named", "unknown", "differing"];
type Stalls = [u64; STALLS.len()];

/// A row: `None` is the baseline.
struct Row {
    attack: Option<&'static Attack>,
    what: String,
    attackers: usize,
    server: String,
    outcome: Outcome,
}

pub fn run(targets: &[Target], options: &Options) -> Result<(Section, Section), String> {
    let chosen: Vec<&Attack> = attack::all()
        .filter(|a| options.attacks.is_empty() || options.attacks.iter().any(|name| name == a.name))
        .collect();
    if let Some(name) = options.attacks.iter().find(|name| !attack::all().any(|a| a.name == **name)) {
        let names: Vec<&str> = attack::all().map(|a| a.name).collect();
        return Err(format!("no attack is called '{name}'; there are {}", names.join(",")));
    }
    let files = sys::raise_files(FILES);
    let targets: Vec<Target> = targets
        .iter()
        .map(|t| match t.label == SUBJECT {
            true => t.with(&["--maxclients", MAXCLIENTS, "--watch-neighbours", "always"]),
            false => t.with(&["--maxclients", MAXCLIENTS]),
        })
        .collect();
    let waits = Section::new("Appendix: EVENKEEL WAITS and EVENKEEL STALLS");
    let mut bench = Bench { options, rows: Vec::new(), stalls: [0; STALLS.len()], waits };
    for target in &targets {
        bench.baseline(target);
    }
    let mut since = 0;
    for attack in chosen {
        for &attackers in &options.attackers {
            for target in &targets {
                bench.attack(target, attack, attackers.max(1) as usize);
            }
            since += 1;
            if since == options.baseline_every {
                since = 0;
                targets.iter().for_each(|target| bench.baseline(target));
            }
        }
    }
    if since > 0 {
        targets.iter().for_each(|target| bench.baseline(target));
    }
    let section = bench.report(files);
    Ok((section, bench.waits))
}

struct Bench<'a> {
    options: &'a Options,
    rows: Vec<Row>,
    /// Stalls that the watchdog saw in the rows of [`SUBJECT`] with attackers: see [`STALLS`].
    stalls: Stalls,
    waits: Section,
}

impl Bench<'_> {
    /// Measures until the host has left the cores alone, or for the last time.
    fn undisturbed(&self, mut measure: impl FnMut() -> Outcome) -> Outcome {
        let mut best = measure();
        for _ in 1..self.options.tries {
            if best.stolen_part() <= STOLEN_MAX {
                break;
            }
            let next = measure();
            if next.stolen_part() < best.stolen_part() {
                best = next;
            }
        }
        best
    }

    fn baseline(&mut self, target: &Target) {
        let outcome = self.undisturbed(|| self.watch_nobody(target));
        self.add(None, "nobody".to_string(), 0, target, outcome);
    }

    fn watch_nobody(&self, target: &Target) -> Outcome {
        let measured = Server::start(target).and_then(|server| {
            let measure = || {
                bystander::prepare(&server)?;
                server.settle(Duration::from_secs(2));
                let watching = Bystander::start(&server)?;
                sleep(Duration::from_secs_f64(self.options.seconds));
                watching.stop()
            };
            measure().map_err(|e| e.to_string())
        });
        match measured {
            Ok(seen) => Outcome::Measured { own_ns: Vec::new(), seen: Box::new(seen) },
            Err(error) => Outcome::Failed(error),
        }
    }

    fn attack(&mut self, target: &Target, attack: &'static Attack, attackers: usize) {
        let (mut what, mut waits, mut stalls) = (attack.name.to_string(), None, [0; STALLS.len()]);
        let outcome = self
            .undisturbed(|| self.watch_attack(target, attack, attackers, &mut what, &mut waits, &mut stalls));
        if target.label == SUBJECT {
            if let Some(waits) = waits {
                self.waits.block(format!("{attackers} × {what}"), waits);
            }
            self.stalls.iter_mut().zip(stalls).for_each(|(all, more)| *all += more);
        }
        self.add(Some(attack), what, attackers, target, outcome);
    }

    /// Watches an attack. `what` and `waits` get a description and the server's report of waits. The
    /// watchdog's counts are added to `stalls`.
    fn watch_attack(
        &self,
        target: &Target,
        attack: &'static Attack,
        attackers: usize,
        what: &mut String,
        waits: &mut Option<String>,
        stalls: &mut Stalls,
    ) -> Outcome {
        let mut server = match Server::start(&target.at(attack.door)) {
            Ok(server) => server,
            Err(error) if error.contains(WITHOUT_TLS) => return Outcome::NotSupported,
            Err(error) => return Outcome::Failed(error),
        };
        let stage = Stage { server: &server, scale: self.options.scale, attackers };
        *what = attack.describe(&stage);
        let outcome = match watch(attack, &stage, self.options, stalls) {
            Ok((own_ns, seen)) => Outcome::Measured { own_ns, seen: Box::new(seen) },
            Err(error) if is_unknown(&error) => Outcome::NotSupported,
            Err(error) => Outcome::Failed(error.to_string()),
        };
        let outcome = match (outcome, server.obituary()) {
            (Outcome::Failed(error), Some(end)) => Outcome::Failed(format!("{error}; {end}")),
            (outcome, None) => outcome,
            (_, Some(end)) => Outcome::Failed(end),
        };
        *waits = waits_of(&server);
        outcome
    }

    fn add(
        &mut self,
        attack: Option<&'static Attack>,
        what: String,
        n: usize,
        target: &Target,
        outcome: Outcome,
    ) {
        let row = Row { attack, what, attackers: n, server: target.label.clone(), outcome };
        eprintln!("{}", row.cells(None).join(" | "));
        self.rows.push(row);
    }

    /// The baseline of `server`: all times without attackers together.
    fn noise(&self, server: &str) -> Option<Seen> {
        let mut noise = Seen::new().ok()?;
        for row in self.rows.iter().filter(|row| row.attack.is_none() && row.server == server) {
            if let Outcome::Measured { seen, .. } = &row.outcome {
                noise.merge(seen).ok()?;
            }
        }
        (!noise.latency.is_empty()).then_some(noise)
    }

    /// The peer's row beside `row`.
    fn beside(&self, row: &Row, server: &str) -> Option<&Row> {
        let same = |other: &&Row| {
            row.attack.is_some()
                && other.attack.map(|a| a.name) == row.attack.map(|a| a.name)
                && other.attackers == row.attackers
                && other.server == server
        };
        self.rows.iter().find(same)
    }

    /// Evenkeel's own time over the peer's.
    fn ratio(&self, row: &Row) -> Option<f64> {
        if row.server != SUBJECT {
            return None;
        }
        let peer = PEERS.iter().find_map(|peer| self.beside(row, peer)?.own_mean())?;
        Some(row.own_mean()? / peer).filter(|ratio| ratio.is_finite())
    }

    /// The goals that a row of ours misses, in words. Empty where there are none.
    fn verdict(&self, row: &Row, noise: Option<&Seen>) -> String {
        if row.server != SUBJECT || row.attack.is_none() {
            return String::new();
        }
        let Outcome::Measured { seen, .. } = &row.outcome else { return String::new() };
        let (floor, floor_max) = noise.map_or((0, 0), |noise| (noise.at(0.999), noise.longest()));
        let mut missed = Vec::new();
        if seen.at(0.999) > floor + P999_GOAL_NS {
            missed.push("p99.9");
        }
        if seen.longest() > floor_max + MAX_GOAL_NS || seen.unanswered > 0 || seen.errors > 0 {
            missed.push("max");
        }
        if self.ratio(row).is_some_and(|ratio| ratio > OWN_GOAL) {
            missed.push("own time");
        }
        let mut text =
            if missed.is_empty() { "met".to_string() } else { format!("**{}**", missed.join(", ")) };
        if !missed.is_empty() && seen.lag.value_at_quantile(0.999) > LATE_NS {
            text.push_str(" (generator late)");
        }
        text
    }

    fn report(&self, files: u64) -> Section {
        let mut section = Section::new("What a bystander notices of somebody's long command");
        let head =
            [&["attackers, server", "own time"], &bystander::HEAD[..], &["own/peer's", "goals"]].concat();
        let mut table = Table::new(&head);
        let noise = self.noise(SUBJECT);
        let (mut judged, mut met) = (0, 0);
        for row in &self.rows {
            let verdict = self.verdict(row, noise.as_ref());
            judged += usize::from(!verdict.is_empty());
            met += usize::from(verdict == "met");
            let mut cells = row.cells(Some(head.len() - 2));
            cells.push(self.ratio(row).map_or(String::new(), |ratio| format!("{ratio:.2}")));
            cells.push(verdict);
            table.row(cells);
            if let Outcome::Failed(error) = &row.outcome {
                section.note(format!("{}: {error}", row.name()));
            }
            if let Outcome::Measured { seen, .. } = &row.outcome
                && seen.errors > 0
            {
                section.note(format!("{}: {} errors, one is: {}", row.name(), seen.errors, seen.error));
            }
        }
        section.table(self.summary_caption(), self.summary());
        section.table("The same in full", table);
        section.note(format!("{met} of {judged} rows of {SUBJECT} meet their goals"));
        if let Some(noise) = &noise {
            section.note(format!(
                "Goals: p99.9 ≤ {} and max ≤ {} (the baseline of this run, all its rows together, and {} and {} \
                 beyond it); own time ≤ {OWN_GOAL} × that of {} (or {}, where that has none)",
                time((noise.at(0.999) + P999_GOAL_NS) as f64),
                time((noise.longest() + MAX_GOAL_NS) as f64),
                time(P999_GOAL_NS as f64),
                time(MAX_GOAL_NS as f64),
                PEERS[0],
                PEERS[1],
            ));
            section.note(noise.method());
        }
        if let [seen, named, crowd, os, os_named, unknown, differing] = self.stalls
            && seen > 0
        {
            let part = |n: u64| 100.0 * n as f64 / seen as f64;
            section.note(format!(
                "Turns of {SUBJECT}'s loops over 1 ms that its watchdog saw beside attackers: {seen}, of which the loop's own \
                 account names a culprit for {named} ({:.0} %), a crowd of short requests for {crowd} ({:.0} %), the system, which let \
                 others have the core, for {os} ({:.0} %; by name who had it for {os_named} of them), and nobody for {unknown} ({:.1} %); {differing} in which watchdog and account \
                 differ",
                part(named),
                part(crowd),
                part(os),
                part(unknown),
            ));
        }
        let class = if self.options.demoted { "SCHED_BATCH, nice 19" } else { "normal priority" };
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        section.note(format!(
            "Server, attackers and bystander share {cores} cores; attackers' threads: {class}; a row's server is a \
             process of its own; {files} open files permitted"
        ));
        section.note(
            "Stolen: what the host gave of the cores to others. An interval with more than 0.2 % of it is watched again, up \
             to so many times as --tries says, and that with the least is shown. Undisturbed: what was asked in the tenths of a \
             second, and this part of all, in which and after which the kernel's account of it stood still and threads of \
             the highest priority, one on each core, were woken at most 3 ms late; goals and the short table are \
             of these, where they are 1000 answers at least.",
        );
        section.note(
            "Own time: mean from sending an operation to the last byte of its reply. Attacks that destroy something \
             are repeated in rounds: the refill between them is not watched, the strike and 1–3 s after it are.",
        );
        section
    }

    fn servers(&self) -> Vec<String> {
        let mut servers: Vec<String> = Vec::new();
        for row in &self.rows {
            if !servers.contains(&row.server) {
                servers.push(row.server.clone());
            }
        }
        servers
    }

    fn summary_caption(&self) -> String {
        format!(
            "Bystander's p99.9 / max, and the attackers' own mean time; {} s per row, sizes × {}",
            self.options.seconds, self.options.scale
        )
    }

    /// One line for each attack, for a README.
    fn summary(&self) -> Table {
        let servers = self.servers();
        let own: Vec<String> = servers.iter().map(|server| format!("own, {server}")).collect();
        let mut head = vec!["attackers"];
        head.extend(servers.iter().map(String::as_str));
        head.extend(own.iter().map(String::as_str));
        head.push("goals");
        let mut table = Table::new(&head);
        let noises: Vec<Option<Seen>> = servers.iter().map(|server| self.noise(server)).collect();
        let mut first = vec!["nobody (all baselines)".to_string()];
        first.extend(noises.iter().map(|noise| noise.as_ref().map_or(absent(), Seen::tail)));
        table.row(first);
        let lead = servers.first().map_or("", String::as_str);
        let ours = noises.get(servers.iter().position(|s| s == SUBJECT).unwrap_or(usize::MAX));
        let ours = ours.and_then(Option::as_ref);
        for row in self.rows.iter().filter(|row| row.attack.is_some() && row.server == lead) {
            let mut cells = vec![format!("{} × {}", row.attackers, row.what)];
            let beside: Vec<Option<&Row>> = servers.iter().map(|server| self.beside(row, server)).collect();
            cells.extend(beside.iter().map(|row| match row.map(|row| &row.outcome) {
                Some(Outcome::Measured { seen, .. }) => seen.tail(),
                Some(Outcome::NotSupported) => "not supported".to_string(),
                Some(Outcome::Failed(_)) => "failed".to_string(),
                None => absent(),
            }));
            cells.extend(beside.iter().map(|row| row.and_then(Row::own_mean).map_or(absent(), time)));
            cells.push(self.beside(row, SUBJECT).map_or(String::new(), |row| self.verdict(row, ours)));
            table.row(cells);
        }
        table
    }
}

impl Row {
    fn name(&self) -> String {
        match self.attack {
            None => format!("nobody, {}", self.server),
            Some(_) => format!("{} × {}, {}", self.attackers, self.what, self.server),
        }
    }

    fn own_mean(&self) -> Option<f64> {
        match &self.outcome {
            Outcome::Measured { own_ns, .. } if !own_ns.is_empty() => {
                Some(own_ns.iter().sum::<f64>() / own_ns.len() as f64)
            }
            _ => None,
        }
    }

    /// Name, own time and the bystander's figures, or the fault. Filled up to `width` if it is given.
    fn cells(&self, width: Option<usize>) -> Vec<String> {
        let mut cells = vec![self.name()];
        match &self.outcome {
            Outcome::Measured { own_ns, seen } => {
                cells.push(mean_time(own_ns));
                cells.extend(seen.cells());
            }
            Outcome::NotSupported => cells.push("not supported".to_string()),
            Outcome::Failed(error) if width.is_none() => cells.push(format!("failed: {error}")),
            Outcome::Failed(_) => cells.push("failed".to_string()),
        }
        cells.resize(cells.len().max(width.unwrap_or(0)), String::new());
        cells
    }
}

/// The watchdog's counts so far, as the server reports them. Zeros if it has no watchdog.
fn stalls_of(server: &Server) -> Stalls {
    let Ok(Frame::Bulk(info)) = server.client().and_then(|mut c| c.words("INFO evenkeel")) else {
        return Stalls::default();
    };
    let info = String::from_utf8_lossy(&info);
    STALLS.map(|name| {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("loop_stalls_")?.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0)
    })
}

/// The server's own report of waits, and of its loops' latest stalls, with those of the setup. None if it has
/// no such report.
fn waits_of(server: &Server) -> Option<String> {
    let mut text = String::new();
    for command in ["EVENKEEL WAITS", "EVENKEEL STALLS 20"] {
        let Ok(told @ Frame::Array(_)) = server.client().and_then(|mut c| c.words(command)) else {
            return None;
        };
        render(&told, 0, &mut text);
    }
    Some(text)
}

fn is_unknown(error: &io::Error) -> bool {
    error.to_string().contains("unknown command")
}

/// Sets the attack up and watches it. Returns the times of its operations and the bystander's figures. The
/// watchdog's counts, without those of the setup, are added to `stalls`.
fn watch(
    attack: &Attack,
    stage: &Stage,
    options: &Options,
    stalls: &mut Stalls,
) -> io::Result<(Vec<f64>, Seen)> {
    let (needs, available) = (attack.needs(stage), sys::memory_available());
    if needs > available {
        return Err(io::Error::other(format!(
            "needs some {} MiB, there are {}",
            needs >> 20,
            available >> 20
        )));
    }
    bystander::prepare(stage.server)?;
    let _guard = (attack.setup)(stage)?;
    let limit = Duration::from_secs_f64(options.seconds);
    let begun = Instant::now();
    let mut watched = Duration::ZERO;
    let mut seen = Seen::new()?;
    let mut own_ns = Vec::new();
    loop {
        (attack.refill)(stage)?;
        stage.server.settle(Duration::from_secs(10));
        let before = stalls_of(stage.server);
        let start = Instant::now();
        let (times, part) = round(attack, stage, options)?;
        watched += start.elapsed();
        let after = stalls_of(stage.server);
        stalls
            .iter_mut()
            .zip(before.iter().zip(after))
            .for_each(|(sum, (before, after))| *sum += after.saturating_sub(*before));
        own_ns.extend(times);
        seen.merge(&part)?;
        if attack.style == Style::Repeat || watched >= limit || begun.elapsed() >= 3 * limit {
            return Ok((own_ns, seen));
        }
    }
}

/// All attackers strike at once, once or for the seconds of the row, with a bystander beside them.
fn round(attack: &Attack, stage: &Stage, options: &Options) -> io::Result<(Vec<f64>, Seen)> {
    let mut ready = Vec::new();
    for k in 0..stage.attackers {
        ready.push((Attacker::connect(stage.server)?, (attack.strike)(stage, k)?));
    }
    let seconds = match attack.style {
        Style::Repeat => Duration::from_secs_f64(options.seconds),
        Style::Once(_) => Duration::ZERO,
    };
    let watching = Bystander::start(stage.server)?;
    sleep(LEAD);
    let gate = Barrier::new(stage.attackers);
    let results: Vec<io::Result<Vec<f64>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ready
            .into_iter()
            .map(|(mut attacker, mut strike)| {
                let gate = &gate;
                scope.spawn(move || {
                    if options.demoted {
                        sys::demote();
                    }
                    gate.wait();
                    let until = Instant::now() + seconds;
                    let mut times = Vec::new();
                    loop {
                        times.push(patiently(&mut attacker, &mut strike)?.as_nanos() as f64);
                        if Instant::now() >= until {
                            return Ok(times);
                        }
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("an attacker panicked"))))
            .collect()
    });
    if let Style::Once(after) = attack.style {
        sleep(after);
    }
    let seen = watching.stop();
    let mut own_ns = Vec::new();
    for times in results {
        own_ns.extend(times?.into_iter().filter(|&ns| ns > 0.0));
    }
    Ok((own_ns, seen?))
}

/// Does one operation. A server that answers BUSY because of a script is asked again, and that time counts.
fn patiently(attacker: &mut Attacker, strike: &mut Strike) -> io::Result<Duration> {
    let start = Instant::now();
    let mut waited = Duration::ZERO;
    loop {
        match strike(attacker) {
            Err(error) if error.to_string().starts_with("BUSY") => {
                sleep(BUSY_PAUSE);
                waited = start.elapsed();
            }
            result => return result.map(|took| took + waited),
        }
    }
}

/// Repeats one encoded command for `seconds`. Returns the time of each, in nanoseconds.
pub fn repeat(client: &mut Client, seconds: f64, command: &[u8]) -> io::Result<Vec<f64>> {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let mut times = Vec::new();
    while Instant::now() < until {
        times.push(client.discard(command, 1)?.as_nanos() as f64);
    }
    Ok(times)
}

/// The mean of `times` and their number, for the report.
pub fn mean_time(times: &[f64]) -> String {
    match times.len() {
        0 => String::new(),
        n => format!("{} × {n}", time(times.iter().sum::<f64>() / n as f64)),
    }
}
