//! `chaos crash`: a server is killed again and again while clients write, and what it has after each start is
//! held against what was sent, acknowledged and promised.
//!
//! ```text
//!  seed ─▶ plan of a round ─▶ writers, a reader, rewrites, saves, settings ─▶ kill -9 at a moment, or at a named point
//!             ▲                                                                  │
//!             └── judge.rs ◀── start ◀── kills during starts, damaged copies ◀── doctor, a copy of the files
//! ```
//!
//! - C5: the folder lives on over the rounds. What is there after a start is where the next round begins.
//! - C6: damage is done to copies only.

mod disk;
mod files;
mod judge;
mod life;
mod model;
mod play;
mod writer;

use self::files::Health;
use self::judge::{Past, differences, judge, read_state};
pub use self::life::{Life, Start};
use self::model::State;
use self::play::{End, Plan};
use crate::Options;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::rng::Rng;
use support::wire::Frame;

/// The figures of all rounds.
#[derive(Default)]
struct Tally {
    rounds: u64,
    acked: usize,
    promised: usize,
    lost: usize,
    lost_ms: u64,
    at_points: usize,
    missed_points: usize,
    torn: usize,
    damaged: usize,
    in_starts: usize,
    begun_anew: usize,
    by_redis: usize,
}

struct Course<'o> {
    options: &'o Options,
    root: PathBuf,
    data: PathBuf,
    /// Everything that is known to be there.
    state: State,
    past: Option<Past>,
    start_ms: u64,
    tally: Tally,
}

/// Runs all rounds. Gives the numbers of what passed, and the faults in words.
pub fn run(options: &Options) -> Result<(usize, Vec<String>), String> {
    let root = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let root = root.join(format!("evenkeel-crash-{}", std::process::id()));
    fs::create_dir_all(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    let mut faults = Vec::new();
    let plays = |part: &str| options.only.is_empty() || options.only.iter().any(|only| only == part);
    let mut passed = 0;
    if plays("rounds") {
        passed += rounds(options, &root, &mut faults)?;
    }
    for (part, full) in [("mount", disk::Full::Mounted), ("limit", disk::Full::Limited)] {
        for fsync in ["always", "everysec"] {
            if !plays(part) || !faults.is_empty() {
                continue;
            }
            match disk::run(&options.server, &root, &full, fsync) {
                Ok(text) => println!("crash: full disk by {part}, {fsync}: {text}"),
                Err(why) => faults.push(format!("full disk by {part}, {fsync}: {why}")),
            }
            passed += usize::from(faults.is_empty());
        }
    }
    if faults.is_empty() {
        let _ = fs::remove_dir_all(&root);
    } else {
        println!("crash: the files are kept in {}", root.display());
    }
    Ok((passed, faults))
}

fn rounds(options: &Options, root: &Path, faults: &mut Vec<String>) -> Result<usize, String> {
    let began = Instant::now();
    let data = root.join("data");
    fs::create_dir_all(&data).map_err(|e| e.to_string())?;
    let mut course = Course {
        options,
        root: root.to_owned(),
        data,
        state: State::new(),
        past: None,
        start_ms: 100,
        tally: Tally::default(),
    };
    for round in options.round..=options.round + options.rounds {
        let is_last = round == options.round + options.rounds;
        let plan = Plan::new(options, round, course.data.clone());
        if let Err(why) = course.round(&plan, is_last) {
            faults.push(format!("in round {round} ({plan}): {why}"));
            println!("crash: to repeat: --seed {} --rounds {}", options.seed, round - options.round + 1);
            break;
        }
        if round % 50 == 49 {
            println!("crash: {} rounds, {:.0} s", course.tally.rounds, began.elapsed().as_secs_f64());
        }
    }
    let tally = &course.tally;
    println!(
        "crash: {} rounds: {} units acknowledged, {} of them promised; {} others lost, up to {} ms old; \
         {} kills at points ({} not reached), {} during starts, {} torn ends, {} damaged copies, {} folders read by Redis, \
         {} begun anew, in {:.0} s",
        tally.rounds,
        tally.acked,
        tally.promised,
        tally.lost,
        tally.lost_ms,
        tally.at_points,
        tally.missed_points,
        tally.in_starts,
        tally.torn,
        tally.damaged,
        tally.by_redis,
        tally.begun_anew,
        began.elapsed().as_secs_f64()
    );
    Ok(tally.rounds as usize)
}

impl Course<'_> {
    fn round(&mut self, plan: &Plan, is_last: bool) -> Result<(), String> {
        let mut rng = plan.rng(0);
        let health = self.examine()?;
        if self.past.is_some() {
            self.damage(plan, &mut rng)?;
        }
        self.kill_starts(plan, &mut rng)?;
        let mut life = self.revive(plan, health)?;
        if is_last {
            return life.end();
        }
        let (past, played) = play::play(&mut life, plan);
        self.tally.rounds += 1;
        match plan.end {
            End::Point(..) if played.reached => self.tally.at_points += 1,
            End::Point(..) => self.tally.missed_points += 1,
            _ => {}
        }
        let fault = played.fault.map(|fault| format!("{fault}\n{}", life.said()));
        self.past = Some(past);
        fault.map_or(Ok(()), Err)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Keeps a copy of what the crash left, and has it examined.
    fn examine(&mut self) -> Result<Health, String> {
        let Some(past) = &self.past else { return Ok(Health::Sound) };
        let left = self.path("left");
        files::copy_anew(&self.data, &left)?;
        if past.is_void {
            return Ok(Health::Torn);
        }
        if self.options.without.iter().any(|without| without == "temporary") {
            files::remove_temporary(&left)?;
        }
        let health = files::doctor(&self.options.server, &left)?;
        self.tally.torn += usize::from(health == Health::Torn);
        Ok(health)
    }

    /// Starts from damaged copies (C6).
    fn damage(&mut self, plan: &Plan, rng: &mut Rng) -> Result<(), String> {
        let Some(past) = self.past.as_ref().filter(|past| !past.is_void && rng.percent(15)) else {
            return Ok(());
        };
        let copy = self.path("damaged");
        files::copy_anew(&self.path("left"), &copy)?;
        let Some(damage) = files::damage(&copy, rng)? else { return Ok(()) };
        let what = &damage.what;
        self.tally.damaged += 1;
        match (
            Life::start(&self.options.server, &copy, &plan.args, &self.path("log-damaged"))?,
            &damage.refused,
        ) {
            (Start::Ended(status, said), Some(file)) => {
                let is_told = said.contains(file.as_str()) && said.contains("offset");
                if status.code() != Some(1) || !is_told {
                    return Err(format!("{what}: it ended ({status}), and does not say where:\n{said}"));
                }
                Ok(())
            }
            (Start::Ended(status, said), None) => {
                Err(format!("{what}: it does not start ({status}):\n{said}"))
            }
            (Start::Ready(life), Some(_)) => Err(format!("{what}: it started:\n{}", life.said())),
            (Start::Ready(mut life), None) => {
                let now = read_state(&mut life.conn()?)?;
                let unpromised = Past { is_void: true, ..past.clone() };
                judge(&self.state, &unpromised, &now).map_err(|why| format!("{what}: {why}"))?;
                self.goes_on(&mut life, &copy, plan).map_err(|why| format!("{what}: {why}"))
            }
        }
    }

    /// Behind an end that was cut off the log goes on.
    fn goes_on(&self, life: &mut Life, copy: &Path, plan: &Plan) -> Result<(), String> {
        let mut conn = life.conn()?;
        conn.call(&["SET", "probe", "x"]);
        let synced = conn.call(&["WAITAOF", "1", "0", "600000"]);
        if !matches!(synced.items(), Some([Frame::Int(1), _])) {
            return Err(format!("WAITAOF behind a cut was answered {synced}"));
        }
        life.kill();
        match Life::start(&self.options.server, copy, &plan.args, &self.path("log-damaged"))? {
            Start::Ready(life) => match life.conn()?.call(&["GET", "probe"]) {
                got if got.text() == Some(b"x") => Ok(()),
                got => Err(format!("a write behind a cut is {got} after the next start")),
            },
            Start::Ended(status, said) => Err(format!("the second start failed ({status}):\n{said}")),
        }
    }

    /// Kills it while it starts.
    fn kill_starts(&mut self, plan: &Plan, rng: &mut Rng) -> Result<(), String> {
        if !rng.percent(20) {
            return Ok(());
        }
        for _ in 0..rng.between(1, 2) {
            let mut life =
                Life::spawn(&self.options.server, &self.data, &plan.args, &self.path("log-killed"))?;
            std::thread::sleep(Duration::from_millis(rng.below(self.start_ms as usize * 5 / 4) as u64));
            if let Some(how) = life.ended().filter(|how| !how.contains("in use")) {
                return Err(format!("in a start: {how}"));
            }
            life.kill();
            self.tally.in_starts += 1;
        }
        Ok(())
    }

    fn start(&mut self, plan: &Plan) -> Result<Life, String> {
        let began = Instant::now();
        match Life::start(
            &self.options.server,
            &self.data,
            &plan.args,
            &self.path(&format!("log-{}", plan.round % 2)),
        )? {
            Start::Ready(life) => {
                self.start_ms = began.elapsed().as_millis() as u64 + 1;
                Ok(life)
            }
            Start::Ended(status, said) => Err(format!("the server does not start ({status}):\n{said}")),
        }
    }

    /// Starts it, and judges what is there.
    fn revive(&mut self, plan: &Plan, health: Health) -> Result<Life, String> {
        let life = self.start(plan)?;
        let now = read_state(&mut life.conn()?)?;
        let Some(past) = self.past.take() else {
            self.state = now;
            return Ok(life);
        };
        match judge(&self.state, &past, &now) {
            Ok(verdict) => {
                self.tally.acked += verdict.acked;
                self.tally.promised += verdict.promised;
                self.tally.lost += verdict.lost;
                self.tally.lost_ms = self.tally.lost_ms.max(verdict.lost_ms);
                if self.options.tells_all {
                    println!(
                        "crash: {}: {} units acknowledged, {} promised, {} lost ({} ms)",
                        past.title, verdict.acked, verdict.promised, verdict.lost, verdict.lost_ms
                    );
                }
            }
            Err(_) if past.is_void => return self.begin_anew(life, plan),
            Err(why) => return Err(format!("after {}: {why}\n{}", past.title, life.said())),
        }
        if plan.round % 10 == 9 && !past.is_void {
            self.by_redis(&now, health)?;
        }
        self.state = now;
        self.put_away()?;
        Ok(life)
    }

    /// A log without a base was lost with all it had, as it may be.
    fn begin_anew(&mut self, mut life: Life, plan: &Plan) -> Result<Life, String> {
        life.kill();
        fs::remove_dir_all(&self.data)
            .and_then(|()| fs::create_dir_all(&self.data))
            .map_err(|e| e.to_string())?;
        self.tally.begun_anew += 1;
        self.state = State::new();
        self.start(plan)
    }

    /// Removes logs that the server has put aside.
    fn put_away(&self) -> Result<(), String> {
        for entry in fs::read_dir(&self.data).map_err(|e| e.to_string())?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&format!("{}.", files::LOG)) {
                fs::remove_dir_all(entry.path()).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    /// A real Redis reads the same from the same files. Of a torn batch it would take the commands that are
    /// whole.
    fn by_redis(&mut self, now: &State, health: Health) -> Result<(), String> {
        let redis = Path::new("redis-server");
        let copy = self.path("redis");
        files::copy_anew(&self.path("left"), &copy)?;
        if health == Health::Torn {
            files::cut_torn_end(&self.options.server, &copy)?;
        }
        let args = ["--appendonly", "yes"].map(str::to_owned);
        let mut life = match Life::start(redis, &copy, &args, &self.path("log-redis")) {
            Ok(Start::Ready(life)) => life,
            Ok(Start::Ended(status, said)) => {
                return Err(format!("Redis does not start ({status}):\n{said}"));
            }
            Err(_) => return Ok(()),
        };
        let read = read_state(&mut life.conn()?)?;
        life.kill();
        self.tally.by_redis += 1;
        let differing = differences(now, &read);
        if differing.is_empty() {
            return Ok(());
        }
        Err(format!("Evenkeel and Redis read different things:\n    {}", differing.join("\n    ")))
    }
}
