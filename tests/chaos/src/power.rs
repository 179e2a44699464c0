//! `chaos power`: the calls of the real program to its files are recorded, and the server is started from what
//! a disk may hold if the power failed at any of them.
//!
//! ```text
//!  seed ─▶ server under strace ◀── clients, rewrites, saves        medium.rs: names and sectors that were synced,
//!             │                                                    and any of the others
//!             └─▶ trace.rs: its calls ─▶ up to a moment ──────────▶ image ─▶ start ─▶ load.rs: is there what was promised?
//! ```
//!
//! - P1: the program is the real one, and so is its disk. What it relies on is what it asked the kernel for,
//!   not what a test's disk saw.
//! - P2: an image is what a file system may leave that keeps the order of names, and of sectors none.

mod load;
mod medium;
mod trace;

use self::load::{Course, History, judge, play, read};
use self::medium::Medium;
use self::trace::Step;
use crate::Options;
use crate::crash::{Life, Start};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::rng::Rng;
use support::wire::Frame;

/// Outages of a record.
const IMAGES: usize = 24;
/// Calls that a fault is told with.
const STEPS_TOLD: usize = 40;
/// Time for the recorder to end its file.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Default)]
struct Tally {
    calls: usize,
    images: usize,
    promised: usize,
    continued: usize,
}

/// Runs all rounds. Returns the number of images that held, and the faults in words.
pub fn run(options: &Options) -> Result<(usize, Vec<String>), String> {
    let began = Instant::now();
    let root = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let root = root.join(format!("evenkeel-power-{}", std::process::id()));
    fs::create_dir_all(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    let root = fs::canonicalize(&root).map_err(|e| e.to_string())?;
    let (mut tally, mut faults) = (Tally::default(), Vec::new());
    for round in options.round..options.round + options.rounds {
        if let Err(why) = Round::new(options, round, &root).run(&mut tally) {
            faults.push(format!("in round {round}: {why}"));
            println!("power: to repeat about the same: --seed {} --round {round} --rounds 1", options.seed);
            break;
        }
    }
    println!(
        "power: {} images of {} recorded calls: {} units were promised and there, {} servers went on and were killed, in {:.0} s",
        tally.images,
        tally.calls,
        tally.promised,
        tally.continued,
        began.elapsed().as_secs_f64()
    );
    match faults.is_empty() {
        true => drop(fs::remove_dir_all(&root)),
        false => println!("power: the files are kept in {}", root.display()),
    }
    Ok((tally.images, faults))
}

struct Round<'o> {
    options: &'o Options,
    root: &'o Path,
    data: PathBuf,
    course: Course,
    args: Vec<String>,
    rng: Rng,
}

impl<'o> Round<'o> {
    fn new(options: &'o Options, round: u64, root: &'o Path) -> Round<'o> {
        let mut rng = Rng::named(options.seed, "power", round);
        let fsync = match &options.fsync {
            Some(fsync) => fsync.as_str(),
            None => ["always", "everysec", "always"][(round % 3) as usize],
        };
        let turns_on = rng.percent(35);
        let course = Course { is_always: fsync == "always", turns_on, seed: options.seed ^ (round << 20) };
        let preallocates = rng.pick(&["auto", "yes", "no"]);
        let mut args: Vec<String> =
            ["--appendfsync", fsync, "--aof-preallocate", preallocates, "--auto-aof-rewrite-percentage", "0"]
                .map(str::to_owned)
                .to_vec();
        args.extend(["--appendonly".to_owned(), if turns_on { "no" } else { "yes" }.to_owned()]);
        Round { options, root, data: root.join("data"), course, args, rng }
    }

    fn run(mut self, tally: &mut Tally) -> Result<(), String> {
        let _ = fs::remove_dir_all(&self.data);
        fs::create_dir_all(&self.data).map_err(|e| e.to_string())?;
        let mut medium = Medium::new(&self.data).map_err(|e| e.to_string())?;
        let (history, steps) = self.record()?;
        if let Some(fault) = history.faults.first() {
            return Err(fault.clone());
        }
        tally.calls += steps.len();
        let mut moments: Vec<usize> = (0..IMAGES).map(|_| self.rng.below(steps.len() + 1)).collect();
        moments.sort_unstable();
        let mut done = 0;
        for moment in moments {
            for step in &steps[done..moment] {
                medium.apply(step)?;
            }
            done = moment;
            let cut_us = steps.get(moment).map_or(u64::MAX, |step| step.at_us);
            let words =
                format!("{:?}, {:?}, call {moment} of {}", self.args, self.course.turns_on, steps.len());
            let last = &steps[moment.saturating_sub(STEPS_TOLD)..moment];
            self.outage(&medium, cut_us, &history, tally).map_err(|why| {
                let told: Vec<String> = last.iter().map(|step| format!("    {step}")).collect();
                format!("{words}: {why}\nthe calls before:\n{}", told.join("\n"))
            })?;
            tally.images += 1;
        }
        Ok(())
    }

    /// A server in use, and its calls.
    fn record(&self) -> Result<(History, Vec<Step>), String> {
        let record = self.root.join("calls");
        let mut words = trace::prefix(&record);
        words.push(self.options.server.display().to_string());
        let mut life = match Life::start_by(&words, &self.data, &self.args, &self.root.join("log-recorded"))?
        {
            Start::Ready(life) => life,
            Start::Ended(status, said) => {
                return Err(format!("the server does not start ({status}):\n{said}"));
            }
        };
        let history = play(self.course, || life.conn()).map_err(|why| format!("{why}\n{}", life.said()))?;
        let pid = life.pid();
        life.kill();
        let ended = format!("{pid} ");
        let is_whole = || {
            let text = fs::read(&record).unwrap_or_default();
            let end = String::from_utf8_lossy(&text[text.len().saturating_sub(4000)..]).into_owned();
            end.lines().any(|line| line.starts_with(&ended) && line.contains("+++ killed by SIGKILL"))
        };
        let began = Instant::now();
        while !is_whole() {
            if began.elapsed() > PATIENCE {
                return Err("the recorder does not end its file".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok((history, trace::read(&record)?))
    }

    /// Starts from what an outage may leave, and looks at what is there.
    fn outage(
        &mut self,
        medium: &Medium,
        cut_us: u64,
        history: &History,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let image = self.root.join("image");
        let _ = fs::remove_dir_all(&image);
        fs::create_dir_all(&image).map_err(|e| e.to_string())?;
        medium.outage(&mut self.rng, &image).map_err(|e| e.to_string())?;
        let logged = match (self.course.turns_on, history.based_us) {
            (false, _) => true,
            (true, Some(based)) if based < cut_us => true,
            // The log was not asked for yet, or CONFIG SET was not answered: the file of the configuration says
            // no.
            (true, _) => false,
        };
        let mut args = self.args.clone();
        if let (true, Some(last)) = (logged, args.last_mut()) {
            "yes".clone_into(last);
        }
        let life = self.start(&image, &args)?;
        let found = read(&mut life.conn()?)?;
        tally.promised +=
            judge(history, cut_us, logged, &found).map_err(|why| format!("{why}\n{}", life.said()))?;
        if logged && self.rng.percent(20) {
            tally.continued += 1;
            self.goes_on(life, &image, &args, &found)?;
        }
        Ok(())
    }

    /// Behind an outage the log goes on.
    fn goes_on(&self, mut life: Life, image: &Path, args: &[String], found: &[usize]) -> Result<(), String> {
        let mut conn = life.conn()?;
        conn.call(&["SET", "probe", "x"]);
        let synced = conn.call(&["WAITAOF", "1", "0", "600000"]);
        if !matches!(synced.items(), Some([Frame::Int(1), _])) {
            return Err(format!("WAITAOF behind an outage was answered {synced}\n{}", life.said()));
        }
        life.kill();
        let life = self.start(image, args)?;
        let mut conn = life.conn()?;
        let probe = conn.call(&["GET", "probe"]);
        match probe.text() == Some(b"x") && read(&mut conn)? == found {
            true => Ok(()),
            false => Err(format!("the second start has other data; the probe is {probe}\n{}", life.said())),
        }
    }

    fn start(&self, dir: &Path, args: &[String]) -> Result<Life, String> {
        match Life::start(&self.options.server, dir, args, &self.root.join("log-started"))? {
            Start::Ready(life) => Ok(life),
            Start::Ended(status, said) => Err(format!("the server does not start ({status}):\n{said}")),
        }
    }
}
