//! One life of the server: clients write, something happens to the log, and the end comes.

use super::files::LOG;
use super::judge::Past;
use super::life::{Life, info};
use super::writer::{Author, Promise, Stage, WRITERS, read, write};
use crate::Options;
use std::fmt;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use support::rng::Rng;
use support::wire::{Conn, Frame};

const MODES: [&str; 3] = ["always", "everysec", "no"];
/// Points, and the commands that lead to them.
const POINTS: [(&str, &str); 11] = [
    ("log-write", "PING"),
    ("log-sync", "PING"),
    ("log-incr", "BGREWRITEAOF"),
    ("log-manifest", "BGREWRITEAOF"),
    ("log-rotate", "BGREWRITEAOF"),
    ("log-base", "BGREWRITEAOF"),
    (SECOND_MANIFEST, "BGREWRITEAOF"),
    ("log-unlink", "BGREWRITEAOF"),
    ("save-walk", "BGREWRITEAOF"),
    ("save-write", "BGREWRITEAOF"),
    ("save-end", "BGSAVE"),
];
/// The manifest that names a new base.
const SECOND_MANIFEST: &str = "log-manifest-base";
/// Silence of the connection that directs, which waits for no disk.
const SILENCE: Duration = Duration::from_secs(600);
/// Time in which a point is reached, or not.
const REACHED_WITHIN: Duration = Duration::from_secs(5);
/// Time for a base.
const PATIENCE: Duration = Duration::from_secs(600);

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Moment,
    Point(&'static str, &'static str),
    InOrder,
}

/// A switch of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    None,
    /// It is ended, and the crash comes.
    Off,
    /// It is ended and begun, and the crash comes soon.
    OnSoon,
    /// It is ended and begun, and goes on.
    OffAndOn,
}

/// The plan of a round, from the seed.
pub struct Plan {
    pub round: u64,
    pub args: Vec<String>,
    pub end: End,
    seed: u64,
    fsync: &'static str,
    /// Writes as old as this are there without `always`, too, if the machine lives on.
    grace_ms: u64,
    switch: Switch,
    events: usize,
    lasts_ms: usize,
    /// Whether writers load libraries.
    loads: bool,
    data: PathBuf,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (end, switch, more) = (self.end, self.switch, self.args[4..8].join(" "));
        write!(f, "{}, end {end:?}, log {switch:?}, {more}", self.fsync)
    }
}

impl Plan {
    pub fn new(options: &Options, round: u64, data: PathBuf) -> Plan {
        let mut rng = Rng::new(options.seed, round * 64 + 60);
        let any = MODES[rng.below(3)];
        let fsync = MODES.into_iter().find(|mode| options.fsync.as_deref() == Some(mode)).unwrap_or(any);
        let grows = *rng.pick(&["16kb", "200kb", "2mb", "64mb"]);
        let fills = *rng.pick(&["auto", "auto", "yes", "no"]);
        let end = match rng.below(100) {
            0..35 => {
                let left_out = |point: &str| options.without.iter().any(|without| without == point);
                let points: Vec<_> = POINTS.into_iter().filter(|(point, _)| !left_out(point)).collect();
                let (point, by) = rng.pick(&points);
                End::Point(point, by)
            }
            35..41 if !options.without.iter().any(|without| without == "order") => End::InOrder,
            _ => End::Moment,
        };
        let switch = match rng.below(36) {
            0 => Switch::Off,
            1 => Switch::OnSoon,
            2 => Switch::OffAndOn,
            _ => Switch::None,
        };
        let words = [
            "--appendonly",
            "yes",
            "--appendfsync",
            fsync,
            "--aof-preallocate",
            fills,
            "--auto-aof-rewrite-min-size",
            grows,
            "--enable-debug-command",
            "yes",
            "--busy-reply-threshold",
            "600000",
        ];
        Plan {
            round,
            args: words.map(str::to_owned).to_vec(),
            end,
            seed: options.seed,
            fsync,
            grace_ms: options.grace_ms,
            switch,
            events: rng.below(4),
            lasts_ms: if rng.percent(5) { 3500 } else { rng.between(20, 600) },
            loads: !options.without.iter().any(|without| without == "function"),
            data,
        }
    }

    /// A stream of random numbers for a part of the round.
    pub fn rng(&self, part: u64) -> Rng {
        Rng::new(self.seed, self.round * 64 + 61 + part)
    }
}

/// How a round went, beside what is to be judged.
#[derive(Default)]
pub struct Played {
    /// The point was reached.
    pub reached: bool,
    pub fault: Option<String>,
}

/// The end, as it came.
#[derive(Default)]
struct Came {
    reached: bool,
    /// Since when the log may have been held.
    held_ms: Option<u64>,
    is_void: bool,
    is_whole: bool,
}

fn promise(fsync: &str) -> Promise {
    if fsync == "always" { Promise::Always } else { Promise::InTime }
}

/// Plays a round to its end.
pub fn play(life: &mut Life, plan: &Plan) -> (Past, Played) {
    let stage = Stage::new(life.addr, promise(plan.fsync));
    let mut played = Played::default();
    let (mut came, mut killed_ms) = (Came::default(), 0);
    let mut units = Vec::new();
    std::thread::scope(|scope| {
        let stage = &stage;
        let author = |nr| Author::new(plan.seed, plan.round, nr, plan.loads);
        let writers: Vec<_> = (0..WRITERS).map(|nr| scope.spawn(move || write(stage, author(nr)))).collect();
        let reader = scope.spawn(move || read(stage, plan.rng(1)));
        let directed = direct(stage, life, plan, &mut came);
        killed_ms = stage.ms();
        stage.stop.store(true, SeqCst);
        played.fault = life.ended().filter(|_| !came.is_whole).or(directed.err());
        life.kill();
        for writer in writers {
            match writer.join() {
                Ok((sent, fault)) => {
                    units.push(sent);
                    played.fault = played.fault.take().or(fault);
                }
                Err(_) => played.fault = Some("a writer panicked".into()),
            }
        }
        played.fault =
            played.fault.take().or(reader.join().unwrap_or_else(|_| Some("the reader panicked".into())));
    });
    units.resize_with(WRITERS, Vec::new);
    played.reached = came.reached;
    let past = Past {
        title: format!("round {} ({plan})", plan.round),
        units,
        seen: stage.seen.into_inner().unwrap_or_else(PoisonError::into_inner),
        killed_ms,
        safe_ms: came.held_ms.unwrap_or(killed_ms).min(killed_ms).saturating_sub(plan.grace_ms),
        is_whole: came.is_whole,
        is_void: came.is_void,
    };
    (past, played)
}

/// Lets things happen, up to the end.
fn direct(stage: &Stage, life: &mut Life, plan: &Plan, came: &mut Came) -> Result<(), String> {
    let (mut conn, mut rng) = (life.conn()?, plan.rng(2));
    conn.set_patience(SILENCE);
    let part = plan.lasts_ms / (plan.events + 1);
    for _ in 0..plan.events {
        rest(&mut rng, part);
        event(stage, &mut conn, &mut rng)?;
    }
    if plan.switch != Switch::None {
        switch(stage, life, &mut conn, plan, &mut rng, came)?;
        if plan.switch != Switch::OffAndOn {
            return Ok(());
        }
    }
    match plan.end {
        End::Moment => rest(&mut rng, 2 * part),
        End::Point(point, by) => {
            rest(&mut rng, part);
            came.held_ms = Some(stage.ms());
            came.reached = hold(&mut conn, point, by)?;
            rest(&mut rng, 20);
        }
        End::InOrder => {
            rest(&mut rng, part);
            came.is_whole = true;
            life.end()?;
        }
    }
    Ok(())
}

fn rest(rng: &mut Rng, most_ms: usize) {
    std::thread::sleep(Duration::from_micros(rng.below(most_ms * 1000 + 1) as u64));
}

/// Sends a command. Errors: one, but for the news that something is under way.
fn tell(conn: &mut Conn, words: &[&str]) -> Result<Frame, String> {
    let reply = conn.call(words);
    // Another snapshot or rewrite is under way.
    let news: [&[u8]; 2] = [b"ERR Background", b"ERR Another child process"];
    let is_news = matches!(&reply, Frame::Error(text) if news.iter().any(|begin| text.starts_with(begin)));
    match reply {
        Frame::Error(_) | Frame::Gone(_) if !is_news => {
            Err(format!("{} was answered {reply}", words.join(" ")))
        }
        _ => Ok(reply),
    }
}

/// Holds the server at a point. False: it does not come there.
fn hold(conn: &mut Conn, point: &str, by: &str) -> Result<bool, String> {
    let first = if point == SECOND_MANIFEST { "log-base" } else { point };
    tell(conn, &["DEBUG", "POINT", first, "HOLD", "1"])?;
    tell(conn, &[by])?;
    let is_there = is_reached(conn, first)?;
    if point != SECOND_MANIFEST || !is_there {
        return Ok(is_there);
    }
    tell(conn, &["DEBUG", "POINT", "log-manifest", "HOLD", "1"])?;
    tell(conn, &["DEBUG", "POINT", first, "OFF"])?;
    is_reached(conn, "log-manifest")
}

fn is_reached(conn: &mut Conn, point: &str) -> Result<bool, String> {
    let began = Instant::now();
    while began.elapsed() < REACHED_WITHIN {
        if let Frame::Int(1..) = tell(conn, &["DEBUG", "POINT", point])? {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(false)
}

/// One thing that may happen to a log.
fn event(stage: &Stage, conn: &mut Conn, rng: &mut Rng) -> Result<(), String> {
    match rng.below(8) {
        0..3 => tell(conn, &["BGREWRITEAOF"]).map(drop),
        3 => tell(conn, &["BGSAVE"]).map(drop),
        4 => tell(conn, &["BGSAVE", "CANCEL"]).map(drop),
        5 => {
            let fills = *rng.pick(&["auto", "yes", "no"]);
            tell(conn, &["CONFIG", "SET", "aof-preallocate", fills]).map(drop)
        }
        _ => {
            let mode = *rng.pick(&MODES);
            // The weaker promise holds from before the command, the stronger one from behind it.
            stage.begin(Promise::InTime);
            tell(conn, &["CONFIG", "SET", "appendfsync", mode])?;
            stage.begin(promise(mode));
            Ok(())
        }
    }
}

/// CONFIG SET appendonly: what is acknowledged without a log, or before its base is done, is not promised.
fn switch(
    stage: &Stage,
    life: &Life,
    conn: &mut Conn,
    plan: &Plan,
    rng: &mut Rng,
    came: &mut Came,
) -> Result<(), String> {
    let ended = || life.said().matches("the append-only log was ended").count();
    let ends = ended();
    let before = stage.promise();
    let bases = |conn: &mut Conn| info(conn, "aof_rewrites").and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    stage.begin(Promise::Nothing);
    tell(conn, &["CONFIG", "SET", "appendonly", "no"])?;
    rest(rng, 150);
    if plan.switch == Switch::Off {
        return Ok(());
    }
    // The log ends on a thread of its own.
    let began = Instant::now();
    while ended() == ends {
        if began.elapsed() > PATIENCE {
            return Err(format!("the log does not end in {} s", PATIENCE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let had = bases(conn);
    came.is_void = true;
    tell(conn, &["CONFIG", "SET", "appendonly", "yes"])?;
    if plan.switch == Switch::OnSoon {
        rest(rng, 60);
        return Ok(());
    }
    let began = Instant::now();
    while bases(conn) == had || plan.data.join(LOG).join("unfinished").exists() {
        if began.elapsed() > PATIENCE {
            return Err(format!("a log that was begun has no base after {} s", PATIENCE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(50));
    came.is_void = false;
    stage.begin(before);
    rest(rng, 100);
    Ok(())
}
