//! A bystander: somebody who sends small GETs on a timetable of his own and times the answers.
//!
//! The loop is open. Requests leave at random moments drawn beforehand (Poisson, 1000 a second), whether or not
//! earlier ones were answered, and latency counts from the moment a request *should* have left, so a stall of the
//! server is felt by every request it delays and not by one alone. A generator that is late itself would blame the
//! server: the thread asks for SCHED_FIFO, and its own lateness is kept and reported as send lag.

use crate::random::Random;
use crate::report::time;
use crate::server::Server;
use crate::sys;
use crate::wire::{self, Scanner};
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CONNS: usize = 8;
const PER_SECOND: f64 = 1000.0;
/// Keys the bystander reads; they stay whatever a test does to the others.
pub const KEYS: u64 = 100;
/// How long the last answers are waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the bystander saw, in nanoseconds.
pub struct Seen {
    pub latency: Histogram<u64>,
    pub lag: Histogram<u64>,
    /// Whether the sender ran SCHED_FIFO.
    pub punctual: bool,
    pub unanswered: u64,
}

/// Column heads that go with [`Seen::cells`].
pub const HEAD: [&str; 5] = ["p50", "p99", "p99.9", "max", "send lag p99.9"];

impl Seen {
    pub fn cells(&self) -> Vec<String> {
        let at = |q| time(self.latency.value_at_quantile(q) as f64);
        let mut max = time(self.latency.max() as f64);
        if self.unanswered > 0 {
            max = format!("{} unanswered", self.unanswered);
        }
        let lag = time(self.lag.value_at_quantile(0.999) as f64);
        vec![at(0.5), at(0.99), at(0.999), max, lag]
    }

    /// How the figures were taken, for the report.
    pub fn method(&self) -> String {
        let class =
            if self.punctual { "SCHED_FIFO" } else { "normal priority: SCHED_FIFO was not permitted" };
        format!(
            "Bystander: GET at {PER_SECOND:.0}/s, open loop (Poisson) over {CONNS} connections, latency from the \
             intended send time, thread at {class}"
        )
    }
}

/// A running bystander; [`Bystander::stop`] ends it.
pub struct Bystander {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Seen>>,
}

/// Writes the keys bystanders read.
pub fn prepare(server: &Server) -> io::Result<()> {
    let mut client = server.client()?;
    (0..KEYS).try_for_each(|n| client.words(&format!("SET bystander:{n} xxx")).map(|_| ()))
}

impl Bystander {
    /// Starts one; its keys must have been prepared.
    pub fn start(server: &Server) -> io::Result<Bystander> {
        let mut traffic = Traffic::connect(server.port)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || traffic.run(&stopped));
        Ok(Bystander { stop, thread })
    }

    /// Ends the timetable, waits for the answers still out, and returns what was seen.
    pub fn stop(self) -> io::Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the bystander panicked")))
    }
}

struct Conn {
    stream: TcpStream,
    scanner: Scanner,
    /// Intended send times of the requests without an answer, oldest first.
    waiting: VecDeque<Instant>,
}

struct Traffic {
    conns: Vec<Conn>,
    fds: Vec<i32>,
    random: Random,
    out: Vec<u8>,
    seen: Seen,
}

impl Traffic {
    fn connect(port: u16) -> io::Result<Traffic> {
        let mut conns = Vec::new();
        for _ in 0..CONNS {
            let stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            conns.push(Conn { stream, scanner: Scanner::default(), waiting: VecDeque::new() });
        }
        let histogram = || Histogram::new_with_bounds(1, 600_000_000_000, 3).map_err(io::Error::other);
        Ok(Traffic {
            fds: conns.iter().map(|conn| conn.stream.as_raw_fd()).collect(),
            conns,
            random: Random(u64::from(port)),
            out: Vec::new(),
            seen: Seen { latency: histogram()?, lag: histogram()?, punctual: false, unanswered: 0 },
        })
    }

    fn run(&mut self, stop: &AtomicBool) -> io::Result<Seen> {
        self.seen.punctual = sys::become_punctual();
        let mut readable = Vec::new();
        let mut next = Instant::now();
        let mut turn = 0;
        let mut give_up = None;
        loop {
            let now = Instant::now();
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
            sys::wait_readable(&self.fds, &mut readable, wait)?;
            for i in (0..CONNS).filter(|&i| readable[i]) {
                self.receive(i)?;
            }
        }
        self.seen.unanswered = self.conns.iter().map(|conn| conn.waiting.len() as u64).sum();
        let empty = Histogram::new_with_bounds(1, 2, 1).map_err(io::Error::other)?;
        Ok(Seen {
            latency: std::mem::replace(&mut self.seen.latency, empty.clone()),
            lag: std::mem::replace(&mut self.seen.lag, empty),
            ..self.seen
        })
    }

    fn send(&mut self, i: usize, intended: Instant) -> io::Result<()> {
        let key = format!("bystander:{}", self.random.below(KEYS));
        self.out.clear();
        wire::command(&mut self.out, &[b"GET", key.as_bytes()]);
        let conn = &mut self.conns[i];
        if conn.stream.write(&self.out)? != self.out.len() {
            return Err(io::Error::other("the server has stopped reading from the bystander"));
        }
        conn.waiting.push_back(intended);
        let lag = intended.elapsed().as_nanos() as u64;
        self.seen.lag.saturating_record(lag.max(1));
        Ok(())
    }

    fn receive(&mut self, i: usize) -> io::Result<()> {
        let conn = &mut self.conns[i];
        let mut buffer = [0; 16 << 10];
        let n = match conn.stream.read(&mut buffer) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed a bystander"));
            }
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        for _ in 0..conn.scanner.feed(&buffer[..n]) {
            let intended = conn.waiting.pop_front().ok_or(io::ErrorKind::InvalidData)?;
            self.seen.latency.saturating_record(intended.elapsed().as_nanos() as u64);
        }
        match conn.scanner.errors() {
            (0, _) => Ok(()),
            (_, text) => Err(io::Error::other(format!("the bystander got an error: {text}"))),
        }
    }
}
