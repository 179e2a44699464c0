//! A bystander: a client that sends small GETs on its own timetable and times the answers.
//!
//! ```text
//! this program ── starts ──▶ bystander process (SCHED_FIFO, memory locked, one thread that does nothing else)
//!      ▲    "ready"  ◀──────────┤  connects, then sends by the timetable until its standard input ends
//!      └──── histograms ◀───────┘  waits for the answers still out, prints, ends
//! ```
//!
//! 1. The loop is open. Requests leave at random moments drawn beforehand (Poisson, 1000 a second), answered
//!    or not. Latency counts from the moment a request *should* have left, so every request that a stall
//!    delays feels it. Bytes that a full socket refuses are sent later; the request's clock runs on.
//! 2. A late generator would blame the server. So it is a separate process, out of reach of page faults and
//!    allocations of the attackers. It asks for SCHED_FIFO and locked memory, sleeps in ppoll to the
//!    nanosecond, and reports its own lateness as send lag.
//! 3. The host of a virtual machine takes its cores for milliseconds, seen only in the kernel's account of
//!    stolen time. The account is read every [`SLICE`]. It has steps of 10 ms and may come late. So requests
//!    count as *undisturbed* only if it stands still in their slice and in the next. Not every host reports
//!    all it takes. So each core has a *canary*, a thread above all others that sleeps a millisecond at a
//!    time. It notes when it wakes more than [`LATE`] too late; requests of that slice and the one before are
//!    disturbed too. A server cannot delay a canary so long: the kernel delivers packets for 2 ms at most.
//!    Results never choose slices.
//! 4. A request without an answer when patience ends counts with the time it has waited so far.

use crate::client::Client;
use crate::endpoint::{Endpoint, Link};
use crate::random::Random;
use crate::report::time;
use crate::sys;
use crate::wire;
use dial::FrameCount;
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const CONNS: usize = 8;
const PER_SECOND: f64 = 1000.0;
/// Keys that the bystander reads. No test changes them.
pub const KEYS: u64 = 100;
/// Time to wait for the last answers.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two reads of the account of stolen time.
const SLICE: Duration = Duration::from_millis(100);
/// Sleep of a canary, and its allowed delay.
const NAP: Duration = Duration::from_millis(1);
const LATE: Duration = Duration::from_millis(3);
/// Answers in undisturbed slices from which a quantile of 99.9 % is meaningful.
const ENOUGH: u64 = 1000;
/// The first words of the command line of a bystander process. Programs with a bystander hand them to
/// [`process`].
pub const PART: [&str; 2] = ["bench", "bystander-process"];

/// The bystander's results, in nanoseconds.
#[derive(Clone)]
pub struct Seen {
    pub latency: Histogram<u64>,
    /// Latencies of requests sent while the host took nothing.
    pub undisturbed: Histogram<u64>,
    pub lag: Histogram<u64>,
    /// Whether the sender ran SCHED_FIFO.
    pub punctual: bool,
    /// Whether its memory was locked.
    pub locked: bool,
    pub unanswered: u64,
    /// Error replies, and the text of the first.
    pub errors: u64,
    pub error: String,
    /// The latencies of each [`SLICE`], one run behind the other.
    pub series: Vec<Moment>,
    /// CPU time the host gave to others, and the time watched.
    pub stolen: Duration,
    pub watched: Duration,
}

/// Latencies of the requests of one slice, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

/// Column heads that go with [`Seen::cells`].
pub const HEAD: [&str; 10] =
    ["p50", "p99", "p99.9", "max", "lag p99.9", "lag max", "stolen", "undisturbed", "its p99.9", "its max"];

impl Seen {
    pub fn new() -> io::Result<Seen> {
        let histogram = || Histogram::new_with_bounds(1, 3_600_000_000_000, 3).map_err(io::Error::other);
        Ok(Seen {
            latency: histogram()?,
            undisturbed: histogram()?,
            lag: histogram()?,
            punctual: false,
            locked: false,
            unanswered: 0,
            errors: 0,
            error: String::new(),
            series: Vec::new(),
            stolen: Duration::ZERO,
            watched: Duration::ZERO,
        })
    }

    /// Part of the time of all cores that the host gave to others.
    pub fn stolen_part(&self) -> f64 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.stolen.as_secs_f64() / (self.watched.as_secs_f64() * cores as f64).max(1e-9)
    }

    /// The latencies that say most about the server: the undisturbed ones, if they are enough.
    fn telling(&self) -> &Histogram<u64> {
        if self.undisturbed.len() < ENOUGH { &self.latency } else { &self.undisturbed }
    }

    /// Nanoseconds at quantile `q` of the telling latencies.
    pub fn at(&self, q: f64) -> u64 {
        self.telling().value_at_quantile(q)
    }

    /// The longest of the telling latencies, in nanoseconds.
    pub fn longest(&self) -> u64 {
        self.telling().max()
    }

    /// 99.9 % and the longest of the telling latencies, in words.
    pub fn tail(&self) -> String {
        format!("{} / {}", time(self.at(0.999) as f64), self.faults(time(self.longest() as f64)))
    }

    pub fn cells(&self) -> Vec<String> {
        let at = |q| time(self.latency.value_at_quantile(q) as f64);
        let lag = time(self.lag.value_at_quantile(0.999) as f64);
        let stolen = format!("{:.1} %", 100.0 * self.stolen_part());
        let undisturbed = &self.undisturbed;
        let part = 100.0 * undisturbed.len() as f64 / (self.latency.len() as f64).max(1.0);
        let quiet = time(undisturbed.value_at_quantile(0.999) as f64);
        let lag_max = time(self.lag.max() as f64);
        let mut cells = vec![at(0.5), at(0.99), at(0.999), self.worst(), lag, lag_max, stolen];
        cells.extend([format!("{part:.0} %"), quiet, time(undisturbed.max() as f64)]);
        cells
    }

    /// The longest wait in words, with requests that got no answer or an error.
    pub fn worst(&self) -> String {
        self.faults(time(self.latency.max() as f64))
    }

    fn faults(&self, mut max: String) -> String {
        if self.unanswered > 0 {
            max = format!("≥ {max}, {} unanswered", self.unanswered);
        }
        if self.errors > 0 {
            max = format!("{max}, {} errors", self.errors);
        }
        max
    }

    /// Adds the results of another bystander.
    pub fn merge(&mut self, other: &Seen) -> io::Result<()> {
        self.latency.add(&other.latency).map_err(io::Error::other)?;
        self.undisturbed.add(&other.undisturbed).map_err(io::Error::other)?;
        self.lag.add(&other.lag).map_err(io::Error::other)?;
        self.punctual = other.punctual;
        self.locked = other.locked;
        self.unanswered += other.unanswered;
        if self.errors == 0 {
            self.error.clone_from(&other.error);
        }
        self.errors += other.errors;
        self.series.extend(&other.series);
        self.stolen += other.stolen;
        self.watched += other.watched;
        Ok(())
    }

    /// The method of measurement, for the report.
    pub fn method(&self) -> String {
        let class =
            if self.punctual { "SCHED_FIFO" } else { "normal priority: SCHED_FIFO was not permitted" };
        let memory = if self.locked { "memory locked" } else { "memory not locked: not permitted" };
        format!(
            "Bystander: GET at {PER_SECOND:.0}/s, open loop (Poisson) over {CONNS} connections, latency from the \
             intended send time, a process of its own at {class}, {memory}; lag is its own lateness in sending, \
             which the latencies include"
        )
    }

    fn print(&self, mut out: impl Write) -> io::Result<()> {
        let histograms = [("latency", &self.latency), ("undisturbed", &self.undisturbed), ("lag", &self.lag)];
        for (name, histogram) in histograms {
            for value in histogram.iter_recorded() {
                writeln!(out, "{name} {} {}", value.value_iterated_to(), value.count_at_value())?;
            }
        }
        for Moment { p50, p99, max } in &self.series {
            writeln!(out, "slice {p50} {p99} {max}")?;
        }
        let error = self.error.replace(['\r', '\n'], " ");
        writeln!(out, "errors {} {error}", self.errors)?;
        writeln!(
            out,
            "unanswered {}\npunctual {}\nlocked {}",
            self.unanswered, self.punctual as u8, self.locked as u8
        )?;
        writeln!(out, "end")
    }

    fn read(from: impl BufRead) -> io::Result<Seen> {
        let mut seen = Seen::new()?;
        for line in from.lines() {
            let line = line?;
            let (name, rest) = line.split_once(' ').unwrap_or((&line, ""));
            let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
            let number = first.parse::<u64>().unwrap_or(0);
            let times = second.parse().unwrap_or(0);
            match name {
                "latency" => seen.latency.saturating_record_n(number, times),
                "undisturbed" => seen.undisturbed.saturating_record_n(number, times),
                "lag" => seen.lag.saturating_record_n(number, times),
                "slice" => {
                    let rest: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
                    if let [p50, p99, max] = rest[..] {
                        seen.series.push(Moment { p50, p99, max });
                    }
                }
                "errors" => (seen.errors, seen.error) = (number, second.to_string()),
                "unanswered" => seen.unanswered = number,
                "punctual" => seen.punctual = number == 1,
                "locked" => seen.locked = number == 1,
                "end" => return Ok(seen),
                _ => return Err(io::Error::other(format!("the bystander: {line}"))),
            }
        }
        Err(io::Error::other("the bystander ended without a result"))
    }
}

/// A running bystander; [`Bystander::stop`] ends it.
pub struct Bystander {
    child: Child,
    from: BufReader<ChildStdout>,
    began: Instant,
    stolen_before: Duration,
}

/// Writes the keys that bystanders read.
pub fn prepare(server: impl AsRef<Endpoint>) -> io::Result<()> {
    let server = server.as_ref();
    let mut client = Client::connect(server)?;
    (0..KEYS).try_for_each(|n| client.call(&[b"SET", &key(server, n), b"xxx"]).map(|_| ()))
}

fn key(server: &Endpoint, n: u64) -> Vec<u8> {
    server.key(&format!("bystander:{n}"))
}

impl Bystander {
    /// Starts one and waits until it is connected. Its keys must have been prepared.
    pub fn start(server: impl AsRef<Endpoint>) -> io::Result<Bystander> {
        let mut command = Command::new(std::env::current_exe()?);
        // A Ctrl-C at the terminal is not for it.
        command.args(PART).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(stdin) = &mut child.stdin {
            writeln!(stdin, "{}", server.as_ref().to_json())?;
        }
        let from = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let (began, stolen_before) = (Instant::now(), sys::stolen());
        let mut bystander = Bystander { child, from: BufReader::new(from), began, stolen_before };
        let mut line = String::new();
        bystander.from.read_line(&mut line)?;
        match line.trim_end() {
            "ready" => Ok(bystander),
            other => Err(io::Error::other(format!("the bystander did not start: {other}"))),
        }
    }

    /// Ends the timetable, waits for the answers still out, and returns the results.
    pub fn stop(mut self) -> io::Result<Seen> {
        drop(self.child.stdin.take());
        let stolen = sys::stolen() - self.stolen_before;
        Ok(Seen { stolen, watched: self.began.elapsed(), ..Seen::read(&mut self.from)? })
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The bystander process: reads where the server is from a line of its input, and ends with that.
pub fn process() -> io::Result<()> {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let server = Endpoint::from_json(&serde_json::from_str(&line)?);
    let mut traffic = match Traffic::connect(&server) {
        Ok(traffic) => traffic,
        Err(error) => {
            println!("{error}");
            return Err(error);
        }
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        stopped.store(true, Ordering::Relaxed);
    });
    traffic.seen.locked = sys::lock_memory();
    traffic.seen.punctual = sys::become_punctual(1);
    traffic.slices.stops = watch_cores();
    println!("ready");
    match traffic.run(&stop) {
        Ok(()) => traffic.seen.print(io::stdout().lock()),
        Err(error) => {
            println!("{error}");
            Err(error)
        }
    }
}

struct Conn {
    link: Box<dyn Link>,
    scanner: FrameCount,
    /// Bytes that the socket has not taken yet.
    out: VecDeque<u8>,
    /// The link has taken bytes that it has not sent.
    unsent: bool,
    /// Intended send times of the requests without an answer, oldest first.
    waiting: VecDeque<Instant>,
}

/// Times at which a core stood still: from the planned waking of its canary to the actual one.
type Stops = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// Starts a canary on each core (3), for as long as the process lives.
fn watch_cores() -> Stops {
    let stops = Stops::default();
    for core in 0..std::thread::available_parallelism().map_or(1, usize::from) {
        let stops = stops.clone();
        std::thread::spawn(move || {
            if !(sys::pin(core) && sys::become_punctual(2)) {
                return;
            }
            loop {
                let due = Instant::now() + NAP;
                std::thread::sleep(NAP);
                let woken = Instant::now();
                if woken > due + LATE {
                    stops.lock().unwrap_or_else(PoisonError::into_inner).push((due, woken));
                }
            }
        });
    }
    stops
}

/// The kernel's account of stolen time, slice by slice, and the latencies in each.
struct Slices {
    began: Instant,
    stops: Stops,
    /// Time stolen up to the beginning of each slice.
    stolen: Vec<Duration>,
    /// Slice in which a request should have left, and its latency in nanoseconds.
    seen: Vec<(u32, u64)>,
}

impl Slices {
    fn new(stops: Stops) -> Slices {
        Slices { began: Instant::now(), stops, stolen: Vec::new(), seen: Vec::with_capacity(1 << 16) }
    }

    fn of(&self, moment: Instant) -> usize {
        (moment.saturating_duration_since(self.began).as_nanos() / SLICE.as_nanos()) as usize
    }

    /// Reads the account if a slice has begun since the last time. Slices slept through get the next reading,
    /// and so does the one before: they are not distinguished.
    fn tick(&mut self, now: Instant) {
        let slice = self.of(now);
        if slice >= self.stolen.len() {
            self.stolen.resize(slice + 1, sys::stolen());
        }
    }

    fn saw(&mut self, intended: Instant, latency: u64) {
        self.seen.push((self.of(intended) as u32, latency));
    }

    /// The slices in their order; those without a request are left out.
    fn series(&self) -> Vec<Moment> {
        let mut slices: Vec<Vec<u64>> = Vec::new();
        for (slice, latency) in &self.seen {
            let slice = *slice as usize;
            if slice >= slices.len() {
                slices.resize(slice + 1, Vec::new());
            }
            slices[slice].push(*latency);
        }
        slices.iter_mut().filter(|slice| !slice.is_empty()).map(|slice| moment(slice)).collect()
    }

    /// Latencies of requests in undisturbed slices: nothing was stolen in the slice or the next, and no core
    /// stood still. The last two slices are unknown.
    fn undisturbed(&self) -> impl Iterator<Item = u64> {
        let mut stood = vec![false; self.stolen.len()];
        for (from, to) in self.stops.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let slices = self.of(*from).saturating_sub(1)..=self.of(*to);
            stood.iter_mut().take(slices.end() + 1).skip(*slices.start()).for_each(|stood| *stood = true);
        }
        let still = move |slice: usize| match (self.stolen.get(slice), self.stolen.get(slice + 2)) {
            (Some(before), Some(after)) => before == after && !stood[slice],
            _ => false,
        };
        self.seen.iter().filter(move |(slice, _)| still(*slice as usize)).map(|(_, latency)| *latency)
    }
}

fn moment(latencies: &mut [u64]) -> Moment {
    latencies.sort_unstable();
    let at = |q: f64| latencies[((latencies.len() - 1) as f64 * q).round() as usize];
    Moment { p50: at(0.5), p99: at(0.99), max: at(1.0) }
}

struct Traffic {
    slices: Slices,
    conns: Vec<Conn>,
    random: Random,
    /// The requests, encoded.
    requests: Vec<Vec<u8>>,
    buffer: Vec<u8>,
    seen: Seen,
}

impl Traffic {
    fn connect(server: &Endpoint) -> io::Result<Traffic> {
        let mut conns = Vec::new();
        for _ in 0..CONNS {
            let link = server.link()?;
            let waiting = VecDeque::with_capacity(16 << 10);
            conns.push(Conn {
                link,
                scanner: FrameCount::default(),
                out: VecDeque::new(),
                unsent: false,
                waiting,
            });
        }
        let request = |n| {
            let mut out = Vec::new();
            wire::command(&mut out, &[b"GET", &key(server, n)]);
            out
        };
        Ok(Traffic {
            slices: Slices::new(Stops::default()),
            conns,
            random: Random(server.seed),
            requests: (0..KEYS).map(request).collect(),
            buffer: vec![0; 64 << 10],
            seen: Seen::new()?,
        })
    }

    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        self.slices = Slices::new(self.slices.stops.clone());
        let mut next = Instant::now();
        let mut turn = 0;
        let mut give_up = None;
        loop {
            let now = Instant::now();
            self.slices.tick(now);
            let wait = if stop.load(Ordering::Relaxed) {
                let end = *give_up.get_or_insert(now + PATIENCE);
                if now > end || self.conns.iter().all(|conn| conn.waiting.is_empty()) {
                    break;
                }
                Duration::from_millis(10)
            } else if now >= next {
                self.send(turn % CONNS, next)?;
                turn += 1;
                next += Duration::from_secs_f64(-self.random.unit().ln() / PER_SECOND);
                continue;
            } else {
                next - now
            };
            for i in self.await_any(wait)? {
                self.conns[i].flush()?;
                self.receive(i)?;
            }
        }
        for intended in self.conns.iter().flat_map(|conn| &conn.waiting) {
            self.seen.unanswered += 1;
            let latency = intended.elapsed().as_nanos() as u64;
            self.seen.latency.saturating_record(latency);
            self.slices.saw(*intended, latency);
        }
        self.slices.undisturbed().for_each(|latency| self.seen.undisturbed.saturating_record(latency));
        self.seen.series = self.slices.series();
        for conn in &self.conns {
            let (errors, text) = conn.scanner.errors();
            if errors > 0 {
                (self.seen.errors, self.seen.error) = (self.seen.errors + errors, text);
            }
        }
        Ok(())
    }

    /// Waits, and returns the connections with something to do.
    fn await_any(&self, wait: Duration) -> io::Result<Vec<usize>> {
        let fds: Vec<_> = self.conns.iter().map(|conn| conn.link.fd()).collect();
        let wants = self.conns.iter().map(|conn| conn.unsent || !conn.out.is_empty());
        let mut polled: Vec<_> = fds.iter().zip(wants).map(|(fd, write)| sys::polled(fd, write)).collect();
        sys::wait_any(&mut polled, wait)?;
        Ok((0..CONNS).filter(|&i| !polled[i].revents().is_empty()).collect())
    }

    fn send(&mut self, i: usize, intended: Instant) -> io::Result<()> {
        let lag = intended.elapsed().as_nanos() as u64;
        self.seen.lag.saturating_record(lag.max(1));
        let request = &self.requests[self.random.below(KEYS) as usize];
        let conn = &mut self.conns[i];
        conn.waiting.push_back(intended);
        let taken = match conn.out.is_empty() {
            true => conn.write(request)?,
            false => 0,
        };
        conn.out.extend(&request[taken..]);
        Ok(())
    }

    fn receive(&mut self, i: usize) -> io::Result<()> {
        let conn = &mut self.conns[i];
        let mut complete = 0;
        conn.link.receive(&mut self.buffer, &mut |bytes| complete += conn.scanner.feed(bytes))?;
        for _ in 0..complete {
            let intended = conn.waiting.pop_front().ok_or(io::ErrorKind::InvalidData)?;
            let latency = intended.elapsed().as_nanos() as u64;
            self.seen.latency.saturating_record(latency);
            self.slices.saw(intended, latency);
        }
        Ok(())
    }
}

impl Conn {
    fn flush(&mut self) -> io::Result<()> {
        self.unsent = !self.link.flush()?;
        while !self.out.is_empty() {
            let (front, _) = self.out.as_slices();
            let front = front.to_vec();
            let n = self.write(&front)?;
            self.out.drain(..n);
            if n < front.len() {
                break;
            }
        }
        Ok(())
    }

    /// Writes as much as the connection takes, and returns the number of bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.link.send(bytes)?;
        self.unsent = !self.link.flush()?;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_survives_the_pipe() {
        let mut seen = Seen::new().unwrap();
        for n in [1, 500, 70_000, 12_345_678_901] {
            seen.latency.saturating_record(n);
            seen.undisturbed.saturating_record(n / 2);
            seen.lag.saturating_record(n / 7 + 1);
        }
        (seen.unanswered, seen.errors, seen.punctual) = (3, 2, true);
        seen.series = vec![moment(&mut [9, 5, 7]), moment(&mut [1])];
        assert_eq!(seen.series[0], Moment { p50: 7, p99: 9, max: 9 });
        seen.error = "BUSY running a script".to_string();
        let mut text = Vec::new();
        seen.print(&mut text).unwrap();
        let read = Seen::read(&text[..]).unwrap();
        assert_eq!(read.latency, seen.latency);
        assert_eq!(read.undisturbed, seen.undisturbed);
        assert_eq!(read.lag, seen.lag);
        assert_eq!(read.series, seen.series);
        assert_eq!((read.unanswered, read.errors, read.punctual, read.locked), (3, 2, true, false));
        assert_eq!(read.error, seen.error);
        assert!(Seen::read(&text[..20]).is_err());
    }

    #[test]
    fn what_is_asked_in_a_slice_with_stolen_time_or_just_before_one_is_disturbed() {
        let mut slices = Slices::new(Stops::default());
        let ticks = [0, 0, 0, 1, 1, 1, 1, 1];
        slices.stolen = ticks.map(|n| Duration::from_millis(10 * n)).to_vec();
        for slice in 0..9u32 {
            slices.saw(slices.began + SLICE * slice + SLICE / 2, u64::from(slice));
        }
        // Time was stolen between the beginnings of the third and the fourth. The slices after the last two
        // are unknown.
        assert_eq!(slices.undisturbed().collect::<Vec<_>>(), [0, 3, 4, 5]);
        // A core stood still from the end of the fifth until the beginning of the sixth.
        let end = slices.began + SLICE * 5;
        slices.stops.lock().unwrap().push((end - LATE, end + LATE));
        assert_eq!(slices.undisturbed().collect::<Vec<_>>(), [0]);
    }
}
