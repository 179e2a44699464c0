//! `evenkeel stat`: a line for each interval, until the count is reached or the reader has gone.
//!
//! ```text
//! INFO, EVENKEEL NOW (else SLOWLOG GET and own PINGs) ──► Moment ──since the last──► Second ──► a line
//! ```
//!
//! Cost for the server: two or three commands an interval; where it does not tell latencies, ten PINGs more.

use crate::heat::{Heat, exact_us};
use crate::link::{Link, words};
use crate::moment::{Edge, Lag, Moment, Now, Program, Rates, Slow};
use crate::options::Stat;
use crate::reply::{Info, bytes};
use crate::text;
use dial::Frame;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant, SystemTime};

/// Lines of figures between two headers on a terminal.
const PAGE: u64 = 20;
/// PINGs in an interval, where the server does not tell latencies.
const PINGS: u32 = 10;
/// Time between two attempts to connect, at most.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs until the count is reached or nobody reads. Errors: the first connection or its first question
/// failed; the server tells nothing.
pub fn run(options: &Stat) -> Result<(), String> {
    let mut link = Link::open(options.place()?)?;
    let is_terminal = std::io::stdout().is_terminal();
    let mut printer = Printer { is_json: options.json, is_terminal, lines: 0 };
    let mut asker = Asker::new(options.every());
    let mut left = options.count;
    if !asker.ask(&mut link)?.tells_anything() {
        let why = asker.notes().pop().unwrap_or_else(|| "INFO has no figures".to_owned());
        return Err(format!("{}: {why}", link.place()));
    }
    let mut lost: Option<String> = None;
    let mut due = Instant::now() + options.every();
    while left != Some(0) {
        if let Some(why) = lost.take() {
            if !printer.lost(&why) || !reconnect(&mut link, &printer, &mut asker) {
                break;
            }
            due = Instant::now() + options.every();
        }
        match asker.wait_and_ask(&mut link, due) {
            Ok(second) => {
                if !asker.notes().iter().all(|note| printer.note(note)) || !printer.line(&second) {
                    break;
                }
                left = left.map(|left| left - 1);
                due = due.max(Instant::now() - options.every()) + options.every();
            }
            Err(why) => lost = Some(why),
        }
    }
    Ok(())
}

/// Connects again, however long it takes. False if nobody reads.
fn reconnect(link: &mut Link, printer: &Printer, asker: &mut Asker) -> bool {
    let mut last = String::new();
    loop {
        let connected = link.connect().and_then(|()| {
            *asker = Asker::new(asker.every);
            asker.ask(link).map(drop)
        });
        match connected {
            Ok(()) => return printer.note("connected again"),
            Err(why) if why != last && !printer.note(&why) => return false,
            Err(why) => last = why,
        }
        std::thread::sleep(AGAIN);
    }
}

/// Asks the server, and keeps what the next interval is compared with.
struct Asker {
    every: Duration,
    begin: Instant,
    before: Moment,
    /// The number of the first entry of the slow log that is new. None: it was not looked at.
    next_slow: Option<u64>,
    /// Refusals that were told, and those that were not yet.
    told: BTreeSet<String>,
    untold: Vec<String>,
    /// Round trips of PINGs in this interval, in microseconds.
    pings: Vec<u64>,
    has_now: bool,
}

/// The content of one line.
#[derive(Clone, Debug, Default)]
pub struct Second {
    pub unix_ms: u64,
    pub moment: Moment,
    pub rates: Rates,
    /// The server's own latencies in this interval.
    pub heat: Option<Heat>,
    /// Round trips of PINGs, where there are none of the server; sorted.
    pub pings: Vec<u64>,
    /// The longest new entry of the slow log, where the server does not tell who waits.
    pub slow: Option<Slow>,
}

impl Asker {
    fn new(every: Duration) -> Asker {
        Asker {
            every,
            begin: Instant::now(),
            before: Moment::default(),
            next_slow: None,
            told: BTreeSet::new(),
            untold: Vec::new(),
            pings: Vec::new(),
            has_now: true,
        }
    }

    /// Waits for the end of the interval, and measures meanwhile if it must.
    fn wait_and_ask(&mut self, link: &mut Link, due: Instant) -> Result<Second, String> {
        let step = (self.every / PINGS).max(Duration::from_millis(50));
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.ask(link);
            }
            if self.has_now {
                std::thread::sleep(left);
            } else {
                self.pings.push(link.ping_us()?);
                std::thread::sleep(step.min(due.saturating_duration_since(Instant::now())));
            }
        }
    }

    fn ask(&mut self, link: &mut Link) -> Result<Second, String> {
        let mut requests = vec![words("INFO")];
        if self.has_now {
            requests.push(words("EVENKEEL NOW"));
            let long = self.every >= Duration::from_secs(2);
            requests
                .extend(long.then(|| words(&format!("EVENKEEL HISTORY -{} 0 1", self.every.as_millis()))));
        } else {
            requests.push(words("SLOWLOG GET 16"));
        }
        let replies = link.ask(&requests)?;
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(self.take(&replies, unix.as_millis() as u64, self.begin.elapsed().as_micros() as u64))
    }

    /// Reads the replies to INFO, to NOW or SLOWLOG, and to HISTORY.
    fn take(&mut self, replies: &[Frame], unix_ms: u64, at_us: u64) -> Second {
        let mut second =
            Second { unix_ms, moment: Moment { at_us, ..Moment::default() }, ..Second::default() };
        match replies.first() {
            Some(Frame::Error(text)) => self.refused("INFO", text),
            Some(info) => second.moment.info = Info::parse(bytes(info)),
            None => {}
        }
        match replies.get(1) {
            Some(Frame::Error(text)) if self.has_now => {
                if Program::of(&second.moment.info) == Program::Evenkeel {
                    self.refused("EVENKEEL NOW", text);
                }
                self.has_now = false;
            }
            Some(now) if self.has_now => {
                second.moment.now = Now::read(now);
                let long = replies.get(2).and_then(heat_of_history);
                second.heat = long.or(second.moment.now.as_ref().map(|now| now.second));
            }
            Some(Frame::Error(text)) => self.refused("SLOWLOG", text),
            Some(slow) => second.slow = self.new_slow(Slow::read(slow)),
            None => {}
        }
        second.pings = std::mem::take(&mut self.pings);
        second.pings.sort_unstable();
        second.rates = Rates::between(&self.before, &second.moment);
        self.before = second.moment.clone();
        second
    }

    /// The longest entry that was not there the last time.
    fn new_slow(&mut self, entries: Vec<Slow>) -> Option<Slow> {
        let next = entries.iter().map(|slow| slow.id + 1).max();
        let begin = self.next_slow.replace(next.unwrap_or(0))?;
        entries.into_iter().filter(|slow| slow.id >= begin).max_by_key(|slow| slow.us)
    }

    fn refused(&mut self, command: &str, text: &[u8]) {
        let note = format!("{command}: {}", text::shown(text));
        if self.told.insert(note.clone()) {
            self.untold.push(note);
        }
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.untold)
    }
}

/// All latencies of a reply to HISTORY.
fn heat_of_history(reply: &Frame) -> Option<Heat> {
    let octaves = crate::reply::field(reply, "heat")?;
    let mut heat = Heat::default();
    let columns = crate::reply::list(octaves).iter().map(crate::reply::list);
    for (sum, columns) in heat.counts.iter_mut().zip(columns) {
        *sum = crate::reply::sum(columns.iter().filter_map(crate::reply::count));
    }
    Some(heat)
}

/// Where the latencies of a line come from.
const FROM_SERVER: &str = "server";
const FROM_PING: &str = "ping";

impl Second {
    /// Whether the server told any figure.
    pub fn tells_anything(&self) -> bool {
        !self.moment.info.is_empty() || self.moment.now.is_some()
    }

    /// Half, 99 and 99.9 of a hundred, in microseconds, and where they come from.
    fn latency(&self) -> (&'static str, [Option<u64>; 3]) {
        let shares = [0.5, 0.99, 0.999];
        match &self.heat {
            Some(heat) => (FROM_SERVER, shares.map(|share| heat.at_most_us(share))),
            None => (FROM_PING, shares.map(|share| exact_us(&self.pings, share))),
        }
    }

    fn edge(&self) -> Option<&Edge> {
        self.moment.now.as_ref()?.edges.first()
    }

    /// The columns of a line.
    fn columns(&self) -> Vec<String> {
        let info = &self.moment.info;
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let counted = |name| or_none(info.count(name).map(|n| text::number(n as f64)));
        let rate = |n: Option<f64>| or_none(n.map(text::number));
        let flow = |n: Option<f64>| or_none(n.map(text::bytes));
        let (_, latency) = self.latency();
        let mut columns = vec![
            text::clock(self.unix_ms),
            rate(self.rates.ops),
            or_none(self.rates.hits.map(|share| format!("{:.1}", share * 100.0))),
        ];
        columns.extend(latency.map(|us| or_none(us.map(micros))));
        columns.extend([counted("connected_clients"), counted("blocked_clients")]);
        columns.push(or_none(info.count("used_memory").map(|n| text::bytes(n as f64))));
        columns.extend([rate(self.rates.evicted), rate(self.rates.expired)]);
        columns.extend([flow(self.rates.input), flow(self.rates.output)]);
        columns.push(match self.moment.lag() {
            Some(Lag::Leads(_, ms) | Lag::Follows(ms)) => micros(ms.saturating_mul(1000)),
            Some(Lag::Down) => "down".to_owned(),
            Some(Lag::Alone) | None => "-".to_owned(),
        });
        columns
    }

    /// The largest wait with its culprit; or what was slow.
    fn worst(&self) -> String {
        if let Some(edge) = self.edge() {
            let culprit = text::cut(edge.culprit.label(), 24);
            let waiters = text::cut(&edge.waiters(), 36);
            return format!("{culprit} > {waiters} ({}, {})", edge.cause, micros(edge.us));
        }
        let slow = |slow: &Slow| {
            format!("slow: {} of {}, {}", text::cut(slow.command(), 16), slow.client(), micros(slow.us))
        };
        self.slow.as_ref().map(slow).unwrap_or_default()
    }

    pub fn json(&self) -> Value {
        let info = &self.moment.info;
        let (from, latency) = self.latency();
        let latency = latency.map(|us| us.filter(|us| *us != u64::MAX));
        let edge = self.edge().map(|edge| {
            json!({"culprit": edge.culprit.label(), "command": edge.culprit.command, "waiter": edge.waiter.label(), "clients": edge.waiter.clients,
                   "for": edge.cause, "waits": edge.waits, "us": edge.us, "longest_us": edge.longest_us})
        });
        let slow = self
            .slow
            .as_ref()
            .map(|slow| json!({"client": slow.client(), "command": slow.command(), "us": slow.us}));
        let (lag_ms, link_up) = match self.moment.lag() {
            Some(Lag::Leads(_, ms)) => (Some(ms), None),
            Some(Lag::Follows(ms)) => (Some(ms), Some(true)),
            Some(Lag::Down) => (None, Some(false)),
            Some(Lag::Alone) | None => (None, None),
        };
        json!({
            "time_ms": self.unix_ms,
            "server": (!info.is_empty()).then(|| Program::of(info).name()),
            "ops": self.rates.ops, "hit_rate": self.rates.hits,
            "latency_us": {"from": from, "p50": latency[0], "p99": latency[1], "p999": latency[2]},
            "clients": info.count("connected_clients"), "blocked": info.count("blocked_clients"),
            "memory": info.count("used_memory"),
            "evicted": self.rates.evicted, "expired": self.rates.expired,
            "input_bytes": self.rates.input, "output_bytes": self.rates.output,
            "replica_lag_ms": lag_ms, "link_up": link_up,
            "worst": edge, "slow": slow,
        })
    }
}

/// Microseconds; the last octave has no end.
pub fn micros(us: u64) -> String {
    if us == u64::MAX { ">4s".to_owned() } else { text::micros(us as f64) }
}

const NAMES: [&str; 14] = [
    "time", "ops/s", "hit%", "p50", "p99", "p99.9", "cli", "blk", "mem", "evi/s", "exp/s", "in/s", "out/s",
    "lag",
];

/// Prints lines. Each function returns false once nobody reads.
struct Printer {
    is_json: bool,
    is_terminal: bool,
    lines: u64,
}

impl Printer {
    fn line(&mut self, second: &Second) -> bool {
        if self.is_json {
            return say(&second.json().to_string());
        }
        let is_due = self.lines == 0 || self.is_terminal && self.lines.is_multiple_of(PAGE);
        self.lines += 1;
        (!is_due || say(&header(second))) && say(&row(&second.columns(), &second.worst()))
    }

    fn note(&self, note: &str) -> bool {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let unix_ms = unix.as_millis() as u64;
        match self.is_json {
            true => say(&json!({"time_ms": unix_ms, "note": note}).to_string()),
            false => say(&format!("{} -- {note}", text::clock(unix_ms))),
        }
    }

    fn lost(&mut self, why: &str) -> bool {
        self.lines = 0;
        self.note(&format!("lost {why}; trying again"))
    }
}

/// The line of names, and above it what the latencies are.
fn header(second: &Second) -> String {
    let latency = match second.latency().0 {
        FROM_SERVER => "latency: the server's own, at most, without the network; waits: of the last 10 s",
        _ => "latency: round trips of this tool's PINGs, up to ten an interval",
    };
    let names: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    format!("times in UTC; {latency}\n{}", row(&names, "who makes whom wait"))
}

fn row(columns: &[String], worst: &str) -> String {
    let mut line = format!("{:<8}", columns[0]);
    columns[1..].iter().for_each(|column| line.push_str(&format!(" {column:>5}")));
    format!("{line}  {worst}").trim_end().to_owned()
}

/// Prints a line. False: nobody reads any more.
pub fn say(line: &str) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}

#[cfg(test)]
mod tests;
