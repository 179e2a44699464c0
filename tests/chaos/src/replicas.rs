//! `chaos replicas`: servers that follow each other, directly and in chains, while everything happens to them
//! and to the ways between them, under writes of all kinds.
//!
//! ```text
//!  seed ─▶ 3 to 5 servers ◀─ writers, at the one that leads        auditors, at each ─▶ sums right at any moment?
//!             ▲   pipes.rs: a way for each pair that cuts, holds, delays
//!             └── steps.rs: kill -9, stop, cut, slow, follow another, promote, exchange, save, settings
//!  now and then all rests ─▶ offsets, ids, keys, times, functions equal? logs clean? memory bounded? (check.rs)
//! ```
//!
//! - H1: what EXEC or a script changes together is seen together, on every server at every moment (bank.rs).
//! - H2: what WAIT said of a replica is there after the primary was killed and the most advanced one promoted.
//! - H3: what was answered is there after an exchange of roles behind CLIENT PAUSE.
//! - H4: a cut within the backlog is followed by no full copy.
//! - H5: at rest all are equal.
//! - H6: what was answered before FAILOVER is there after it, without a full copy.
//! - The steps follow from the seed; when they meet the writes does not.

mod bank;
mod check;
mod leeches;
mod load;
mod node;
mod pipes;
mod stage;
mod steps;

use self::check::{differences, sizes, within};
use self::leeches::Leeches;
use self::node::{Info, Node, is_stall};
use self::pipes::Pipes;
use self::stage::Stage;
use crate::Options;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use support::rng::Rng;

/// Counters, each with a writer of its own.
const COUNTERS: usize = 2;
/// Words of a log that tell of a fault.
const BAD: [&str; 7] = ["panic", "diverge", "fault", "internal error", "no such command", "assertion", "BUG"];

/// The events of one run.
#[derive(Default)]
struct Tally {
    steps: usize,
    rests: usize,
    keys: usize,
    failovers: usize,
    handed_over: usize,
    promises: usize,
    calm_cuts: usize,
    full: i64,
    partial: i64,
}

struct Course<'o> {
    options: &'o Options,
    rng: Rng,
    nodes: Vec<Node>,
    pipes: Pipes,
    stage: Arc<Stage>,
    leeches: Arc<Leeches>,
    /// The server that each follows.
    upstream: Vec<Option<usize>>,
    told: Vec<String>,
    tally: Tally,
    began: Instant,
    /// Bytes of each log that were looked at.
    read: Vec<usize>,
}

/// Runs seeds until the time is over. Gives the numbers of what passed, and the faults in words.
pub fn run(options: &Options) -> Result<(usize, Vec<String>), String> {
    let root = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let began = Instant::now();
    let (mut passed, mut steps) = (0, 0);
    for seed in options.seed..options.seed + options.rounds {
        let dir = root.join(format!("evenkeel-replicas-{}-{seed}", std::process::id()));
        let left = options.time.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        let mut course = Course::new(options, seed, &dir)?;
        println!("replicas: seed {seed}: {}", course.shown());
        let outcome = course.all(left);
        println!("replicas: seed {seed}: {}", course.summary());
        steps += course.tally.steps;
        if let Err(why) = outcome {
            course.report(&why);
            println!("replicas: the files are in {}", dir.display());
            println!("replicas: to repeat: --seed {seed} --rounds 1 --steps {}", options.steps);
            return Ok((passed, vec![format!("seed {seed}: {why}")]));
        }
        drop(course);
        let _ = std::fs::remove_dir_all(&dir);
        passed += 1;
    }
    println!("replicas: {steps} steps in {passed} seeds, {:.0} s", began.elapsed().as_secs_f64());
    Ok((passed, Vec::new()))
}

impl<'o> Course<'o> {
    fn new(options: &'o Options, seed: u64, dir: &Path) -> Result<Course<'o>, String> {
        let mut rng = Rng::named(seed, "replicas", 0);
        let count = rng.between(3, 5);
        let other: Option<&PathBuf> = match options.peers.is_empty() {
            true => None,
            false => Some(rng.pick(&options.peers)),
        };
        let mut nodes = Vec::new();
        for nr in 0..count {
            let (binary, is_ours) = match other {
                Some(other) if nr > 0 && rng.percent(50) => (other, false),
                _ => (&options.server, true),
            };
            let mut node = Node::new(nr, binary, is_ours, dir, settings(&mut rng, is_ours));
            node.appendonly = rng.percent(40);
            nodes.push(node);
        }
        let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
        let is_mixed = nodes.iter().any(|node| !node.is_ours);
        let mut upstream = vec![None];
        (1..count).for_each(|nr| upstream.push(Some(if rng.percent(60) { 0 } else { rng.below(nr) })));
        Ok(Course {
            options,
            rng,
            read: vec![0; count],
            pipes: Pipes::new(ports.clone()),
            stage: Arc::new(Stage::new(ports, COUNTERS, is_mixed)),
            leeches: Arc::default(),
            nodes,
            upstream,
            told: Vec::new(),
            tally: Tally::default(),
            began: Instant::now(),
        })
    }

    fn all(&mut self, time: Duration) -> Result<(), String> {
        for nr in 0..self.nodes.len() {
            let upstream = self.upstream_port(nr)?;
            self.nodes[nr].start(upstream)?;
        }
        self.stage.lead(0);
        let players = self.players();
        let outcome = self.steps(time);
        self.nodes.iter_mut().for_each(Node::go_on);
        self.stage.end();
        if outcome.is_ok() {
            players.into_iter().for_each(|player| drop(player.join()));
        } else {
            // The faults of the players belong to the report.
            std::thread::sleep(Duration::from_millis(200));
        }
        match self.stage.faults().first() {
            Some(fault) => Err(fault.clone()),
            None => outcome,
        }
    }

    fn players(&self) -> Vec<std::thread::JoinHandle<()>> {
        type Player = fn(&Stage, &mut Rng);
        let cast: [(&str, usize, Player); 8] = [
            ("mixer", 2, load::mixer),
            ("heavy", 1, load::heavy),
            ("wild", usize::from(!self.stage.is_mixed), load::wild),
            ("restorer", usize::from(!self.stage.is_mixed), load::restorer),
            ("teller", 2, bank::teller),
            ("pairs", 1, bank::pairs),
            ("flusher", 1, bank::flusher),
            ("auditor", 2, bank::auditor),
        ];
        let mut players = Vec::new();
        for (name, count, play) in cast {
            if self.options.without.iter().any(|without| without == name) {
                continue;
            }
            for nr in 0..count {
                let (stage, mut rng) = (self.stage.clone(), self.stream(name, nr));
                players.push(std::thread::spawn(move || play(&stage, &mut rng)));
            }
        }
        for nr in 0..COUNTERS {
            let (stage, mut rng) = (self.stage.clone(), self.stream("counter", nr));
            players.push(std::thread::spawn(move || bank::counter(&stage, &mut rng, nr)));
        }
        if !self.options.without.iter().any(|without| without == "leech") {
            let (stage, leeches, mut rng) =
                (self.stage.clone(), self.leeches.clone(), self.stream("leech", 0));
            players.push(std::thread::spawn(move || leeches::leech(&stage, &leeches, &mut rng)));
        }
        players
    }

    fn stream(&self, name: &str, nr: usize) -> Rng {
        Rng::named(self.rng.clone().next(), name, nr as u64)
    }

    fn steps(&mut self, time: Duration) -> Result<(), String> {
        self.rest()?;
        let began = Instant::now();
        let every = self.options.rest_every.max(1);
        for step in 0..self.options.steps {
            if began.elapsed() > time || self.stage.has_faults() {
                break;
            }
            self.step()?;
            self.tally.steps += 1;
            for node in &mut self.nodes {
                if let Some(how) = node.ended() {
                    return Err(how);
                }
            }
            if step % every == every - 1 {
                self.rest()?;
            }
        }
        if self.stage.has_faults() { Ok(()) } else { self.rest().and_then(|()| self.empty()) }
    }

    fn tell(&mut self, what: String) {
        let at = self.began.elapsed().as_secs_f64();
        let line = format!("{at:7.2} s  {what}");
        if self.options.tells_all {
            println!("{line}");
        }
        self.told.push(line);
    }

    /// Lets all come to rest, and compares (H5).
    fn rest(&mut self) -> Result<(), String> {
        self.tell("rest".into());
        self.pipes.heal();
        for nr in 0..self.nodes.len() {
            self.nodes[nr].go_on();
            if !self.nodes[nr].is_running() {
                self.start(nr)?;
            }
        }
        self.stage.pause(true);
        if !self.stage.quiet(self.options.hang) {
            return Err(format!("a writer gets no answer:\n  {}", self.clients()));
        }
        let leader = self.stage.leader();
        self.settled()?;
        // Expired keys go from the primary, and then everywhere.
        let order: Vec<&Node> = std::iter::once(leader)
            .chain((0..self.nodes.len()).filter(|nr| *nr != leader))
            .map(|nr| &self.nodes[nr])
            .collect();
        let (keys, found) = differences(&order)?;
        if !found.is_empty() {
            return Err(format!("they differ at rest:\n  {}", found.join("\n  ")));
        }
        self.tally.keys += keys;
        self.equal_sizes()?;
        self.clean()?;
        self.tally.rests += 1;
        self.stage.pause(false);
        Ok(())
    }

    /// The clients of all servers, to see who waits for what.
    fn clients(&self) -> String {
        let list = |node: &Node| {
            let reply = self.call(node.nr, "CLIENT LIST");
            let text = String::from_utf8_lossy(reply.text().unwrap_or_default()).into_owned();
            text.lines().map(|line| format!("node {}: {line}", node.nr)).collect::<Vec<_>>().join("\n  ")
        };
        self.nodes.iter().map(list).collect::<Vec<_>>().join("\n  ")
    }

    /// Waits until all have the leader's offset and id.
    fn settled(&mut self) -> Result<(), String> {
        let leader = self.stage.leader();
        let mut last = String::new();
        let nodes = &self.nodes;
        let is_so = within(self.options.patience, || {
            let infos: Vec<Option<Info>> = nodes.iter().map(Node::info).collect();
            let again = nodes[leader].info();
            let (Some(Some(first)), Some(again)) = (infos.get(leader), again) else { return false };
            let same = |info: &Option<Info>, nr: usize| match info {
                Some(info) if nr == leader => !info.follows(),
                Some(info) => {
                    info.is_up()
                        && !info.is_copying()
                        && info.offset() == first.offset()
                        && info.text("master_replid") == first.text("master_replid")
                }
                None => false,
            };
            last = infos
                .iter()
                .enumerate()
                .filter(|(nr, info)| !same(info, *nr))
                .map(|(nr, info)| {
                    format!(
                        "node {nr}: {}",
                        info.as_ref().map_or("no answer".into(), |info| info.shown(REPLICATION))
                    )
                })
                .collect::<Vec<_>>()
                .join("\n  ");
            last.is_empty() && first.offset() == again.offset()
        });
        if let Some(how) = self.nodes.iter_mut().find_map(Node::ended) {
            return Err(how);
        }
        match is_so {
            true => Ok(()),
            false => Err(format!(
                "they do not come to rest; node {leader} leads: {}\n  {last}",
                self.nodes[leader].info().map_or(String::new(), |info| info.shown(REPLICATION))
            )),
        }
    }

    /// Keys that expired are removed everywhere.
    fn equal_sizes(&self) -> Result<(), String> {
        let mut last = String::new();
        let is_so = within(Duration::from_secs(20), || {
            let all: Vec<_> = self.nodes.iter().map(sizes).collect();
            last = format!("{all:?}");
            all.windows(2).all(|pair| pair[0].is_ok() && pair[0] == pair[1])
        });
        if is_so { Ok(()) } else { Err(format!("DBSIZE stays different: {last}")) }
    }

    /// Nothing is wrong with the processes, their memory and their logs.
    fn clean(&mut self) -> Result<(), String> {
        for nr in 0..self.nodes.len() {
            if let Some(how) = self.nodes[nr].ended() {
                return Err(how);
            }
            let node = &self.nodes[nr];
            let resident = node.resident_bytes() >> 20;
            if resident > self.options.cap_mb {
                return Err(format!("node {} has {resident} MB in memory", node.name()));
            }
            let log = node.log();
            let fresh = log.get(self.read[nr]..).unwrap_or_default();
            let is_bad = |line: &&str| !is_stall(line) && BAD.iter().any(|word| line.contains(word));
            if let Some(line) = fresh.lines().find(|line| node.is_ours && is_bad(line)) {
                return Err(format!("node {} logged: {line}", node.name()));
            }
            self.read[nr] = log.len();
            if let Some(info) = node.info() {
                self.tally.full = self.tally.full.max(info.number("sync_full"));
                self.tally.partial = self.tally.partial.max(info.number("sync_partial_ok"));
            }
        }
        Ok(())
    }

    /// Without data little memory is left.
    fn empty(&mut self) -> Result<(), String> {
        self.tell("empty".into());
        self.stage.end();
        let _ = self.stage.quiet(self.options.hang);
        self.call(self.stage.leader(), "CONFIG SET repl-backlog-size 1mb");
        let leader = self.stage.leader();
        self.call(leader, "FLUSHALL");
        self.call(leader, "FUNCTION FLUSH");
        self.settled()?;
        let mut last = Vec::new();
        let limit = (self.options.slack_mb as i64 + 64) << 20;
        let is_so = within(self.options.patience, || {
            let used = |node: &Node| node.info().map_or(i64::MAX, |info| info.number("used_memory"));
            last = self.nodes.iter().map(used).collect();
            last.iter().all(|used| *used < limit)
        });
        if is_so { Ok(()) } else { Err(format!("memory in use without data: {last:?}")) }
    }

    fn shown(&self) -> String {
        let node = |node: &Node| {
            format!(
                "{}{} [{}]",
                node.name(),
                if node.appendonly { " with a log" } else { "" },
                node.settings()
            )
        };
        self.nodes.iter().map(node).collect::<Vec<_>>().join(", ")
    }

    fn summary(&self) -> String {
        let (tally, stage) = (&self.tally, &self.stage);
        format!(
            "{} steps, {} rests, {} keys compared; {} units written, {} looks, {} answers of WAIT, {} promises kept over {} \
             fail-overs, {} by FAILOVER; {} cuts without a copy; up to {} full and {} partial syncs of a primary; {:.0} s",
            tally.steps,
            tally.rests,
            tally.keys,
            stage.writes.load(Relaxed),
            stage.audits.load(Relaxed),
            stage.waits.load(Relaxed),
            tally.promises,
            tally.failovers,
            tally.handed_over,
            tally.calm_cuts,
            tally.full,
            tally.partial,
            self.began.elapsed().as_secs_f64()
        )
    }

    fn report(&self, why: &str) {
        println!("FAULT: {why}");
        for fault in self.stage.faults() {
            println!("also: {fault}");
        }
        println!("the last steps:");
        self.told[self.told.len().saturating_sub(60)..].iter().for_each(|line| println!("  {line}"));
        for node in &self.nodes {
            let info = node.info().map_or_else(|| "no answer".into(), |info| info.shown(REPLICATION));
            println!("--- node {}: sizes {:?}; {info}", node.nr, sizes(node));
            println!("--- the log of node {}:\n{}", node.name(), node.log_tail(30));
        }
    }
}

/// Fields of INFO that tell of replication.
const REPLICATION: &[&str] = &["role", "master_", "slave", "sync", "loading", "repl", "connected_slaves"];

/// The settings of a server, which differ.
fn settings(rng: &mut Rng, is_ours: bool) -> Vec<String> {
    let mut words = Vec::new();
    let mut set = |name: &str, value: &str| words.extend([format!("--{name}"), value.to_owned()]);
    set("repl-ping-replica-period", "1");
    set("repl-timeout", "6");
    set("repl-backlog-size", rng.pick::<&str>(&["1mb", "4mb", "16mb", "64mb"]));
    set("appendfsync", rng.pick::<&str>(&["everysec", "no", "always"]));
    if is_ours {
        set("event-loops", rng.pick::<&str>(&["1", "2", "3"]));
        if rng.percent(25) {
            set("work-max-memory", rng.pick::<&str>(&["4mb", "16mb"]));
        }
    } else {
        set("repl-diskless-sync-delay", "0");
        set("repl-diskless-load", rng.pick::<&str>(&["disabled", "swapdb"]));
        set("enable-debug-command", "yes");
    }
    words
}
