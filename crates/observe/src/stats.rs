//! Counters of every thread, by command. Writing takes no lock, except for errors; reading adds threads up.
//!
//! ```text
//! loop 0: Recorder ──writes──▶ Cells ┐
//! loop 1: Recorder ──writes──▶ Cells ├──reads── Registry ──▶ INFO, LATENCY HISTOGRAM
//! worker: Recorder ──writes──▶ Cells ┘
//! ```
//!
//! A cell has one writer, which loads, adds and stores; readers may see the value a moment late. A reset only
//! starts a new generation: cells of an older one read as zero, and their writer clears them before its next
//! write.
//!
//! - N1: only the [`Recorder`] that owns cells stores into them, and it is not shared between threads.
//! - N2: cells carry the generation they count for; a reader ignores cells of any other.
//! - N3: a histogram allocates 1 KB per power of two of run time that was seen, at most 24 times.
//! - N4: a command that counted anything is marked as used, so that a reader skips the hundreds that never
//!   ran.
//!
//! Costs: recording a command is about three plain additions. Reading is O(threads) for a figure, O(threads ·
//! commands used) for a sum over commands, and O(threads · 3072) for a histogram.

use history::OCTAVES;
use parking_lot::{Mutex, RwLock};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, OnceLock};

/// Error names counted per thread. The limit is that of Redis: scripts cannot invent names without end.
pub const ERROR_KINDS_MAX: usize = 128;
/// The longest error name that is counted as such; longer ones count as `ERR`.
const ERROR_NAME_BYTES_MAX: usize = 64;

/// A figure that every thread keeps. The names follow INFO stats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    ConnectionsReceived,
    ConnectionsRejected,
    /// Read as the sum over all commands.
    CommandsProcessed,
    NetInputBytes,
    NetOutputBytes,
    ReadsProcessed,
    WritesProcessed,
    KeyspaceHits,
    KeyspaceMisses,
    ExpiredKeys,
    ExpiredFields,
    ErrorReplies,
    AuthDenied,
    QueryBufferDisconnections,
    OutputBufferDisconnections,
    /// Clients closed because of `maxmemory-clients`.
    EvictedClients,
    LoopCycles,
    LoopDurationNs,
    /// Read as the run times of all commands, less [`Counter::AwayNs`].
    LoopCommandsNs,
    /// Run times of commands that ran away from their loop's turn.
    AwayNs,
    ExpireCycleUs,
    /// Commands whose work went on in a later slice or on a worker.
    Sliced,
    /// Commits repeated because another writer had changed keys they read.
    CommitRetries,
    /// Turns of a loop that served one client for longer than a quantum.
    Stalls,
    /// Bytes that Lua holds for scripts; the next is that for libraries of functions. Both are measured, not
    /// counted ([`Recorder::set`]).
    LuaBytes,
    LuaFunctionBytes,
    /// HTTP responses by class of status.
    Http2xx,
    Http3xx,
    Http4xx,
    Http5xx,
    /// Connections that moved to another loop.
    ConnectionsMoved,
}

const COUNTERS: usize = Counter::ConnectionsMoved as usize + 1;

/// A phase of a request that has a histogram of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Phase {
    /// The wait for the loop, if it took a quarter of a millisecond or more.
    Loop,
    Lock,
    Guard,
    Parked,
    Queued,
    Thread,
    Committing,
    Socket,
    Snapshot,
    Source,
    Reclaim,
    Messages,
    Pause,
    Replica,
    Log,
    /// Time in which a thread with long work did not run, since the system ran something else.
    Os,
}

/// The phases and their names.
pub const PHASES: [(Phase, &str); 16] = [
    (Phase::Loop, "waited-for-loop"),
    (Phase::Lock, "waited-for-lock"),
    (Phase::Guard, "waited-for-commit"),
    (Phase::Parked, "parked"),
    (Phase::Queued, "waited-for-thread"),
    (Phase::Thread, "ran-on-thread"),
    (Phase::Committing, "committing"),
    (Phase::Socket, "waited-for-socket"),
    (Phase::Snapshot, "waited-for-snapshot"),
    (Phase::Source, "waited-for-source"),
    (Phase::Reclaim, "waited-for-reclaim"),
    (Phase::Messages, "waited-for-messages"),
    (Phase::Pause, "waited-for-pause"),
    (Phase::Replica, "waited-for-replica"),
    (Phase::Log, "waited-for-log"),
    (Phase::Os, "descheduled"),
];

/// The counters of all threads.
#[derive(Debug)]
pub struct Registry {
    commands: usize,
    generation: AtomicU64,
    cells: RwLock<Vec<Arc<Cells>>>,
}

/// One thread's counters.
#[derive(Debug)]
struct Cells {
    generation: AtomicU64,
    counters: [AtomicU64; COUNTERS],
    commands: Box<[CommandCells]>,
    /// A bit per command that counted anything (N4).
    used: Box<[AtomicU64]>,
    phases: [Cellgram; PHASES.len()],
    /// Requests by the octave of their latency ([`octave`]).
    octaves: [AtomicU64; OCTAVES],
    /// The number of the event loop; None: another thread.
    event_loop: Option<usize>,
    /// Errors by name. They are rare enough for a lock, which only a reader contends.
    errors: Mutex<BTreeMap<Box<str>, u64>>,
}

#[derive(Debug, Default)]
struct CommandCells {
    calls: AtomicU64,
    ns: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
    histogram: Cellgram,
}

/// One command's counters over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandTotals {
    pub calls: u64,
    pub ns: u64,
    /// Commands refused before they ran: wrong arguments, no permission.
    pub rejected: u64,
    /// Commands that ran and answered an error.
    pub failed: u64,
}

impl CommandTotals {
    pub fn usec(&self) -> u64 {
        self.ns / 1000
    }

    pub fn usec_per_call(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.ns as f64 / 1000.0 / self.calls as f64 }
    }
}

impl Registry {
    /// Creates counters for a table of `commands` commands, in which sub-commands have places of their own.
    pub fn new(commands: usize) -> Arc<Registry> {
        Arc::new(Registry { commands, generation: AtomicU64::new(0), cells: RwLock::default() })
    }

    /// Creates the counters of one more thread. They stay in the sums when the recorder is dropped.
    pub fn recorder(self: &Arc<Registry>) -> Recorder {
        self.recorder_of(None)
    }

    /// As [`Registry::recorder`], of the thread of an event loop.
    pub fn recorder_of(self: &Arc<Registry>, event_loop: Option<usize>) -> Recorder {
        let cells = Arc::new(Cells {
            generation: AtomicU64::new(self.generation.load(Acquire)),
            counters: std::array::from_fn(|_| AtomicU64::new(0)),
            commands: (0..self.commands).map(|_| CommandCells::default()).collect(),
            used: (0..self.commands.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            phases: std::array::from_fn(|_| Cellgram::default()),
            octaves: std::array::from_fn(|_| AtomicU64::new(0)),
            event_loop,
            errors: Mutex::default(),
        });
        self.cells.write().push(cells.clone());
        Recorder { registry: self.clone(), cells, one_thread: PhantomData }
    }

    /// Sets all counters to zero. O(1).
    pub fn reset(&self) {
        self.generation.fetch_add(1, Release);
    }

    /// Reads the cells of this generation (N2).
    fn read<R>(&self, each: impl FnMut(&Cells) -> R) -> Vec<R> {
        let generation = self.generation.load(Acquire);
        let cells = self.cells.read();
        let current = cells.iter().filter(|c| c.generation.load(Acquire) == generation);
        current.map(Arc::as_ref).map(each).collect()
    }

    /// The value of a counter over all threads. O(threads); O(threads · commands used) for a sum over
    /// commands.
    pub fn counter(&self, counter: Counter) -> u64 {
        match counter {
            Counter::CommandsProcessed => self.sum(|cell| &cell.calls),
            Counter::LoopCommandsNs => {
                let all = self.sum(|cell| &cell.ns);
                all.saturating_sub(self.counter(Counter::AwayNs))
            }
            kept => self.read(|cells| cells.counters[kept as usize].load(Relaxed)).iter().sum(),
        }
    }

    /// The sum of one cell over all commands.
    fn sum(&self, of: impl Fn(&CommandCells) -> &AtomicU64) -> u64 {
        self.read(|cells| cells.used().map(|at| of(&cells.commands[at]).load(Relaxed)).sum::<u64>())
            .iter()
            .sum()
    }

    /// The totals of all commands, by place in the command table. O(commands + threads · commands used).
    pub fn commands(&self) -> Vec<CommandTotals> {
        let mut totals = vec![CommandTotals::default(); self.commands];
        self.read(|cells| {
            for at in cells.used() {
                let (total, cell) = (&mut totals[at], &cells.commands[at]);
                total.calls += cell.calls.load(Relaxed);
                total.ns += cell.ns.load(Relaxed);
                total.rejected += cell.rejected.load(Relaxed);
                total.failed += cell.failed.load(Relaxed);
            }
        });
        totals
    }

    /// How many commands ran or were refused, on the thread with the most of them. O(threads · commands
    /// used).
    pub fn commands_used(&self) -> usize {
        self.read(|cells| cells.used().count()).into_iter().max().unwrap_or(0)
    }

    /// Run times of one command; empty if it was never timed. O(threads · 3072).
    pub fn histogram(&self, command: usize) -> Histogram {
        let mut merged = Histogram::default();
        self.read(|cells| {
            if let Some(cell) = cells.commands.get(command) {
                cell.histogram.add_to(&mut merged);
            }
        });
        merged
    }

    /// Run times of all commands together. O(threads · commands used · 3072).
    pub fn all_commands(&self) -> Histogram {
        let mut merged = Histogram::default();
        self.read(|cells| cells.used().for_each(|at| cells.commands[at].histogram.add_to(&mut merged)));
        merged
    }

    /// Requests by the octave of their latency. O(threads · octaves)
    pub fn octaves(&self) -> [u64; OCTAVES] {
        let mut sums = [0; OCTAVES];
        self.read(|cells| {
            sums.iter_mut().zip(&cells.octaves).for_each(|(sum, cell)| *sum += cell.load(Relaxed));
        });
        sums
    }

    /// For how long each event loop was in its turns, in nanoseconds. O(threads)
    pub fn busy_ns(&self) -> Vec<u64> {
        let mut busy = Vec::new();
        self.read(|cells| {
            if let Some(at) = cells.event_loop {
                busy.resize(busy.len().max(at + 1), 0);
                busy[at] += cells.counters[Counter::LoopDurationNs as usize].load(Relaxed);
            }
        });
        busy
    }

    pub fn phase(&self, phase: Phase) -> Histogram {
        let mut merged = Histogram::default();
        self.read(|cells| cells.phases[phase as usize].add_to(&mut merged));
        merged
    }

    /// Error replies by name, in order of names. O(threads · names).
    pub fn errors(&self) -> BTreeMap<Box<str>, u64> {
        let mut merged = BTreeMap::new();
        self.read(|cells| {
            for (name, count) in cells.errors.lock().iter() {
                *merged.entry(name.clone()).or_default() += count;
            }
        });
        merged
    }
}

/// The writing end of one thread's counters. It can move to another thread but not be shared (N1).
#[derive(Debug)]
pub struct Recorder {
    registry: Arc<Registry>,
    cells: Arc<Cells>,
    one_thread: PhantomData<Cell<()>>,
}

impl Recorder {
    /// Counts a command that ran on its loop. `timed`: also in its histogram (`latency-tracking`).
    #[inline]
    pub fn command(&self, command: usize, ns: u64, failed: bool, timed: bool) {
        let Some(cell) = self.current().command(command) else { return };
        add(&cell.calls, 1);
        add(&cell.ns, ns);
        if failed {
            add(&cell.failed, 1);
        }
        if timed {
            cell.histogram.record(ns);
        }
    }

    /// Counts a command that ran away from its loop. `ns` is the time on the loop and elsewhere together.
    pub fn finished(&self, command: usize, ns: u64, failed: bool, timed: bool) {
        let cells = self.current();
        add(&cells.counters[Counter::AwayNs as usize], ns);
        add(&cells.counters[Counter::Sliced as usize], 1);
        let Some(cell) = cells.command(command) else { return };
        add(&cell.calls, 1);
        add(&cell.ns, ns);
        if failed {
            add(&cell.failed, 1);
        }
        if timed {
            cell.histogram.record(ns);
        }
    }

    /// Counts a command that ran within a script or a transaction, whose own time includes `ns`.
    pub fn within(&self, command: usize, ns: u64, failed: bool, timed: bool) {
        let cells = self.current();
        add(&cells.counters[Counter::CommandsProcessed as usize], 1);
        let Some(cell) = cells.command(command) else { return };
        add(&cell.calls, 1);
        add(&cell.ns, ns);
        if failed {
            add(&cell.failed, 1);
        }
        if timed {
            cell.histogram.record(ns);
        }
    }

    /// Counts many runs of one command as [`Recorder::within`] does. `ns` is the time of all runs together.
    pub fn within_many(&self, command: usize, (calls, failed, ns): (u64, u64, u64), times: Option<&Times>) {
        let cells = self.current();
        add(&cells.counters[Counter::CommandsProcessed as usize], calls);
        let Some(cell) = cells.command(command) else { return };
        add(&cell.calls, calls);
        add(&cell.failed, failed);
        add(&cell.ns, ns);
        if let Some(times) = times {
            cell.histogram.add_all(times);
        }
    }

    /// Adds the time a request spent in a phase.
    pub fn phase(&self, phase: Phase, ns: u64) {
        self.current().phases[phase as usize].record(ns);
    }

    /// Counts a request that came that long before its reply. Cost: one addition.
    #[inline]
    pub fn latency(&self, ns: u64) {
        add(&self.current().octaves[octave(ns)], 1);
    }

    /// Counts a command that was refused before it ran.
    pub fn rejected(&self, command: usize) {
        if let Some(cell) = self.current().command(command) {
            add(&cell.rejected, 1);
        }
    }

    /// Counts an error reply; `text` is the reply without its '-'.
    pub fn error(&self, text: &[u8]) {
        self.errors(error_name(text), 1);
    }

    /// Counts `n` error replies of a name. Beyond [`ERROR_KINDS_MAX`] names, a new one counts in the total
    /// only.
    pub fn errors(&self, name: &str, n: u64) {
        let cells = self.current();
        add(&cells.counters[Counter::ErrorReplies as usize], n);
        let mut errors = cells.errors.lock();
        if let Some(count) = errors.get_mut(name) {
            *count += n;
        } else if errors.len() < ERROR_KINDS_MAX {
            errors.insert(name.into(), n);
        }
    }

    pub fn add(&self, counter: Counter, n: u64) {
        add(&self.current().counters[counter as usize], n);
    }

    /// Counts a turn of this thread's loop.
    pub fn turn(&self, ns: u64) {
        let cells = self.current();
        add(&cells.counters[Counter::LoopCycles as usize], 1);
        add(&cells.counters[Counter::LoopDurationNs as usize], ns);
    }

    /// Sets this thread's part of a figure that is measured, not counted.
    pub fn set(&self, measure: Counter, now: u64) {
        self.current().counters[measure as usize].store(now, Relaxed);
    }

    /// The cells, cleared first if there was a reset since the last write.
    #[inline]
    fn current(&self) -> &Cells {
        let generation = self.registry.generation.load(Relaxed);
        if self.cells.generation.load(Relaxed) != generation {
            self.begin(generation);
        }
        &self.cells
    }

    #[cold]
    fn begin(&self, generation: u64) {
        self.cells.clear();
        self.cells.generation.store(generation, Release);
    }
}

impl Cells {
    /// A command's cells, for writing (N1). Marks the command as used (N4).
    #[inline]
    fn command(&self, command: usize) -> Option<&CommandCells> {
        let cell = self.commands.get(command)?;
        if cell.calls.load(Relaxed) == 0 {
            let word = &self.used[command / 64];
            word.store(word.load(Relaxed) | 1 << (command % 64), Relaxed);
        }
        Some(cell)
    }

    /// The places of the commands that counted anything (N4), in order.
    fn used(&self) -> impl Iterator<Item = usize> {
        let words = self.used.iter().map(|word| word.load(Relaxed)).enumerate();
        words.flat_map(|(at, mut word)| {
            std::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                word &= word.wrapping_sub(1);
                (bit < 64).then_some(at * 64 + bit)
            })
        })
    }

    fn clear(&self) {
        self.counters.iter().for_each(|c| c.store(0, Relaxed));
        self.used.iter().for_each(|word| word.store(0, Relaxed));
        for cell in &self.commands {
            [&cell.calls, &cell.ns, &cell.rejected, &cell.failed].iter().for_each(|c| c.store(0, Relaxed));
            cell.histogram.clear();
        }
        self.phases.iter().for_each(Cellgram::clear);
        self.octaves.iter().for_each(|cell| cell.store(0, Relaxed));
        self.errors.lock().clear();
    }
}

/// Adds to a cell that has only this writer (N1): a plain load and store, no locked instruction.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

/// The name of an error: the word before the first blank, or `ERR` if that does not look like a name.
pub fn error_name(text: &[u8]) -> &str {
    let name = text.split(|&b| b == b' ').next().filter(|name| name.len() < text.len());
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"_-".contains(b);
    let name = name.filter(|n| !n.is_empty() && n.len() <= ERROR_NAME_BYTES_MAX && n.iter().all(plain));
    name.and_then(|n| std::str::from_utf8(n).ok()).unwrap_or("ERR")
}

/// The octave of a latency: 0 below 1 us, then one for each doubling, the last from 4.2 s on.
#[inline]
fn octave(ns: u64) -> usize {
    let us = ns / 1000;
    ((u64::BITS - us.leading_zeros()) as usize).min(OCTAVES - 1)
}

// A histogram of run times in ns: 128 buckets for each power of two, so a value is known to better than 1 %.
//
//   level 0: 0..128, width 1     level 1: 128..256, width 1     level n: 2^(n+6)..2^(n+7), width 2^(n-1)
//
// Values above a second count as a second.
const LEVELS: usize = 24;
const BUCKETS: usize = 128;
const NS_MAX: u64 = 1_000_000_000;

type Level = [AtomicU64; BUCKETS];

#[derive(Debug)]
struct Cellgram([OnceLock<Box<Level>>; LEVELS]);

impl Default for Cellgram {
    fn default() -> Cellgram {
        Cellgram(std::array::from_fn(|_| OnceLock::new()))
    }
}

impl Cellgram {
    #[inline]
    fn record(&self, ns: u64) {
        let (level, bucket) = place(ns.min(NS_MAX));
        let cells = self.0[level].get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))));
        add(&cells[bucket], 1);
    }

    fn add_all(&self, times: &Times) {
        for (level, counts) in self.0.iter().zip(&times.0) {
            let Some(counts) = counts else { continue };
            let cells = level.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))));
            cells.iter().zip(counts.iter()).for_each(|(cell, count)| add(cell, *count));
        }
    }

    fn clear(&self) {
        self.0.iter().filter_map(OnceLock::get).flat_map(|l| l.iter()).for_each(|c| c.store(0, Relaxed));
    }

    fn add_to(&self, merged: &mut Histogram) {
        for (cells, counts) in self.0.iter().zip(&mut merged.0) {
            let Some(cells) = cells.get() else { continue };
            let counts = counts.get_or_insert_with(|| Box::new([0; BUCKETS]));
            counts.iter_mut().zip(cells.iter()).for_each(|(count, cell)| *count += cell.load(Relaxed));
        }
    }
}

/// Run times that one thread collects before they are counted. O(1) per run time.
#[derive(Debug, Default)]
pub struct Times([Option<Box<[u64; BUCKETS]>>; LEVELS]);

impl Times {
    pub fn record(&mut self, ns: u64, times: u64) {
        let (level, bucket) = place(ns.min(NS_MAX));
        self.0[level].get_or_insert_with(|| Box::new([0; BUCKETS]))[bucket] += times;
    }
}

/// Level and bucket of a value.
fn place(ns: u64) -> (usize, usize) {
    if ns < BUCKETS as u64 {
        return (0, ns as usize);
    }
    let level = (63 - ns.leading_zeros() - 6) as usize;
    (level, (ns >> (level - 1)) as usize & (BUCKETS - 1))
}

/// The largest value that counts in the same bucket.
fn top((level, bucket): (usize, usize)) -> u64 {
    if level == 0 { bucket as u64 } else { (((BUCKETS + bucket + 1) as u64) << (level - 1)) - 1 }
}

/// Run times added up over threads.
#[derive(Clone, Debug, Default)]
pub struct Histogram([Option<Box<[u64; BUCKETS]>>; LEVELS]);

impl PartialEq for Histogram {
    fn eq(&self, other: &Histogram) -> bool {
        self.counts().eq(other.counts())
    }
}

impl Eq for Histogram {}

impl Histogram {
    /// The counts above zero by level and bucket, which is the order of values.
    fn counts(&self) -> impl Iterator<Item = ((usize, usize), u64)> {
        let levels = self.0.iter().enumerate().filter_map(|(level, counts)| Some((level, counts.as_ref()?)));
        let all = levels.flat_map(|(level, counts)| {
            counts.iter().enumerate().map(move |(bucket, &count)| ((level, bucket), count))
        });
        all.filter(|&(_, count)| count > 0)
    }

    /// The counts by octave, as [`Registry::octaves`] has them, and the sum of all times in nanoseconds,
    /// each counted as its bucket's top.
    pub fn by_octave(&self) -> ([u64; OCTAVES], u64) {
        let (mut sums, mut ns) = ([0; OCTAVES], 0u64);
        for (place, count) in self.counts() {
            sums[octave(top(place))] += count;
            ns = ns.saturating_add(top(place).saturating_mul(count));
        }
        (sums, ns)
    }

    pub fn total(&self) -> u64 {
        self.0.iter().flatten().map(|counts| counts.iter().sum::<u64>()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    /// The run time in ns that `percent` of the runs did not exceed, rounded up to its bucket. 0 if there
    /// were no runs.
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = (percent / 100.0 * self.total() as f64 + 0.5) as u64;
        let mut left = rank.max(1);
        for (level, counts) in self.0.iter().enumerate() {
            let Some(counts) = counts else { continue };
            let here = counts.iter().sum();
            if left > here {
                left -= here;
                continue;
            }
            for (bucket, count) in counts.iter().enumerate() {
                if left <= *count {
                    return top((level, bucket));
                }
                left -= count;
            }
        }
        0
    }

    /// Doubling bounds in µs, and how many runs stayed within each. A bound that adds no run is left out.
    ///
    /// The bounds are the tops of the buckets of 1024, 2048, ... ns, in whole µs: 1, 2, 4, 8, 16, 33, 66, ...
    pub fn doubling(&self) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        let (mut seen, total) = (0, self.total());
        let mut counts = self.counts().peekable();
        let mut bound = 1024;
        while seen < total {
            let before = seen;
            while let Some((_, count)) = counts.next_if(|(p, _)| *p <= place(bound)) {
                seen += count;
            }
            if seen > before {
                out.push((top(place(bound)) / 1000, seen));
            }
            bound *= 2;
        }
        out
    }
}

/// Rates per second of some counters: the mean over the last [`SAMPLES`] samples.
#[derive(Debug, Default)]
pub struct Rates {
    last: Option<(u64, [u64; RATES])>,
    samples: [[f64; RATES]; SAMPLES],
    next: usize,
}

const SAMPLES: usize = 16;
const RATES: usize = 5;

impl Rates {
    /// Takes a sample of the counters; to be called about ten times a second. Ignored unless `now_ms` has
    /// grown.
    pub fn sample(&mut self, now_ms: u64, registry: &Registry) {
        let counters = [
            Counter::CommandsProcessed,
            Counter::NetInputBytes,
            Counter::NetOutputBytes,
            Counter::LoopCycles,
            Counter::LoopDurationNs,
        ];
        let now = counters.map(|counter| registry.counter(counter));
        if let Some((then_ms, then)) = self.last {
            if now_ms <= then_ms {
                return;
            }
            let seconds = (now_ms - then_ms) as f64 / 1000.0;
            // After a reset a counter is smaller than it was.
            self.samples[self.next] =
                std::array::from_fn(|i| now[i].saturating_sub(then[i]) as f64 / seconds);
            self.next = (self.next + 1) % SAMPLES;
        }
        self.last = Some((now_ms, now));
    }

    /// The current rates. O(1).
    pub fn speeds(&self) -> Speeds {
        let mean = |rate: usize| self.samples.iter().map(|s| s[rate]).sum::<f64>() / SAMPLES as f64;
        let (cycles, loops_ns) = (mean(3), mean(4));
        Speeds {
            commands: mean(0),
            input_kb: mean(1) / 1024.0,
            output_kb: mean(2) / 1024.0,
            cycles,
            cycle_us: if cycles > 0.0 { loops_ns / cycles / 1000.0 } else { 0.0 },
        }
    }
}

/// Rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speeds {
    pub commands: f64,
    pub input_kb: f64,
    pub output_kb: f64,
    pub cycles: f64,
    /// The mean time of a cycle, in microseconds.
    pub cycle_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn threads_add_up_and_stay_after_their_recorders() {
        let registry = Registry::new(3);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let recorder = registry.recorder();
                std::thread::spawn(move || {
                    for n in 0..1000 {
                        recorder.command(1, 2000, n % 10 == 0, true);
                    }
                    recorder.rejected(2);
                    recorder.add(Counter::KeyspaceHits, 5);
                    recorder.error(b"WRONGTYPE Operation against");
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let totals = registry.commands();
        assert_eq!(totals[1], CommandTotals { calls: 4000, ns: 8_000_000, rejected: 0, failed: 400 });
        assert_eq!(
            (totals[1].usec(), totals[1].usec_per_call(), totals[0].usec_per_call()),
            (8000, 2.0, 0.0)
        );
        assert_eq!(totals[2].rejected, 4);
        assert_eq!(registry.counter(Counter::KeyspaceHits), 20);
        assert_eq!(registry.counter(Counter::CommandsProcessed), 4000);
        assert_eq!(registry.histogram(1).total(), 4000);
        assert_eq!(registry.errors(), BTreeMap::from([("WRONGTYPE".into(), 4)]));
    }

    #[test]
    fn after_a_reset_everything_counts_from_zero() {
        let registry = Registry::new(1);
        let (busy, idle) = (registry.recorder(), registry.recorder());
        for recorder in [&busy, &idle] {
            recorder.command(0, 1000, false, true);
            recorder.error(b"ERR x");
        }
        registry.reset();
        assert_eq!(registry.commands()[0], CommandTotals::default());
        assert!(registry.histogram(0).is_empty() && registry.errors().is_empty());
        busy.command(0, 500, false, true);
        assert_eq!(registry.commands()[0].calls, 1);
        assert_eq!(registry.histogram(0).total(), 1);
        busy.finished(0, 300, false, true);
        // A command that is not in the table is ignored.
        busy.command(7, 500, false, true);
        assert_eq!(registry.counter(Counter::CommandsProcessed), 2);
        assert_eq!(registry.counter(Counter::LoopCommandsNs), 500);
    }

    #[test]
    fn a_command_that_was_only_refused_is_summed_as_well() {
        let registry = Registry::new(200);
        let recorder = registry.recorder();
        recorder.rejected(199);
        recorder.within(64, 10, true, true);
        recorder.finished(63, 10, false, false);
        assert_eq!(registry.commands_used(), 3);
        let totals = registry.commands();
        assert_eq!((totals[199].rejected, totals[64].failed, totals[63].calls), (1, 1, 1));
        assert_eq!(registry.all_commands().total(), 1);
        registry.reset();
        recorder.rejected(1);
        assert_eq!(registry.commands_used(), 1);
        assert_eq!(registry.commands()[199], CommandTotals::default());
    }

    #[test]
    fn errors_are_counted_under_their_first_word() {
        for (text, name) in [
            ("WRONGTYPE Operation", "WRONGTYPE"),
            ("oneword", "ERR"),
            ("ERR x", "ERR"),
            ("", "ERR"),
            (" x", "ERR"),
            ("a:b c", "ERR"),
        ] {
            assert_eq!(error_name(text.as_bytes()), name, "{text}");
        }
        let registry = Registry::new(0);
        let recorder = registry.recorder();
        (0..1000).for_each(|n| recorder.error(format!("E{n} x").as_bytes()));
        assert_eq!(registry.errors().len(), ERROR_KINDS_MAX);
        assert_eq!(registry.counter(Counter::ErrorReplies), 1000);
    }

    #[test]
    fn bounds_double_as_clients_know_them() {
        let registry = Registry::new(1);
        let recorder = registry.recorder();
        for us in [1, 3, 3, 6, 15, 30, 60, 130, 262, 500, 2_000_000] {
            recorder.command(0, us * 1000, false, true);
        }
        let histogram = registry.histogram(0);
        let expect = [
            (1, 1),
            (4, 3),
            (8, 4),
            (16, 5),
            (33, 6),
            (66, 7),
            (132, 8),
            (264, 9),
            (528, 10),
            (1_082_130, 11),
        ];
        assert_eq!(histogram.doubling(), expect);
        // The bounds that a real Redis server prints for runs of 5 µs and of 200 µs.
        assert_eq!(top(place(5000)), 5023);
        assert_eq!(top(place(200_000)), 200_703);
        assert!(Histogram::default().doubling().is_empty());
    }

    #[test]
    fn rates_follow_the_counters_and_survive_a_reset() {
        let registry = Registry::new(1);
        let (recorder, mut rates) = (registry.recorder(), Rates::default());
        for tick in 0..=SAMPLES as u64 {
            rates.sample(tick * 100, &registry);
            recorder.add(Counter::NetInputBytes, 102_400);
            (0..10).for_each(|_| recorder.command(0, 1, false, false));
        }
        assert_eq!(rates.speeds().commands, 100.0);
        assert_eq!(rates.speeds().input_kb, 1000.0);
        registry.reset();
        rates.sample(10_000, &registry);
        rates.sample(10_000, &registry);
        assert!(rates.speeds().commands < 100.0);
    }

    proptest! {
        #[test]
        fn a_bucket_holds_its_value_closely(ns in 0..=NS_MAX) {
            let place = place(ns);
            prop_assert!(place.0 < LEVELS && place.1 < BUCKETS);
            prop_assert!(top(place) >= ns && top(place) - ns <= ns / 128);
        }

        #[test]
        fn percentiles_agree_with_sorting(mut values in prop::collection::vec(0..2_000_000u64, 1..200), percent in 1.0..=100.0f64) {
            let registry = Registry::new(1);
            let recorder = registry.recorder();
            values.iter().for_each(|&v| recorder.command(0, v, false, true));
            values.sort_unstable();
            let rank = ((percent / 100.0 * values.len() as f64 + 0.5) as usize).max(1).min(values.len());
            prop_assert_eq!(registry.histogram(0).percentile(percent), top(place(values[rank - 1])));
            prop_assert_eq!(registry.histogram(0).doubling().last().unwrap().1, values.len() as u64);
        }
    }

    #[test]
    fn requests_are_counted_by_the_octave_of_their_latency() {
        let registry = Registry::new(1);
        let (first, other) = (registry.recorder_of(Some(1)), registry.recorder_of(Some(0)));
        for (ns, place) in [(0, 0), (999, 0), (1000, 1), (1999, 1), (2000, 2), (1 << 40, 23), (u64::MAX, 23)]
        {
            assert_eq!(octave(ns), place, "{ns}");
            first.latency(ns);
        }
        // The floor of each octave is the first that counts in it.
        (1..OCTAVES).for_each(|at| assert_eq!(octave((1 << (at - 1)) * 1000), at));
        other.latency(5000);
        other.turn(70);
        first.turn(30);
        let octaves = registry.octaves();
        assert_eq!((octaves[0], octaves[1], octaves[3], octaves[23]), (2, 2, 1, 2));
        assert_eq!(registry.busy_ns(), [70, 30]);
        registry.reset();
        assert_eq!((registry.octaves().iter().sum::<u64>(), registry.busy_ns().len()), (0, 0));
    }
}
