//! Decides whether other programs crowd the machine, and which priority threads of long work take then.
//!
//! Long work usually runs behind everything else ([`LAST`]): it gets what the event loops leave. Behind other
//! programs that fill the cores it would get next to nothing, even when the loops are idle. While other
//! programs fill the cores, new long work therefore ranks just behind them ([`BESIDE_OTHERS`]).
//!
//! ```text
//!   background thread, every second ──► /proc/stat: busy at normal priority - the loops' own
//!                             ├──► 60 % of the cores or more: crowded
//!                             └──► less than 40 %: not any more
//! ```
//!
//! - D1: a thread keeps its rank: without privileges Linux lets no thread rise. The pool (`pool.rs`) has
//!   threads of both ranks, and running work keeps the rank it began with.
//! - D2: only time at normal priority or above counts. Programs with nice 1 to 19 stand back by themselves,
//!   and the server's own long work is nice in both ranks. Kernel time counts, also when the kernel works for
//!   long work; long work may so crowd itself, and ranks higher.
//! - D3: cores that this process may not use do not count, nor does time that a hypervisor gives to others.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The usual nice value of long work. A loop and such a thread that want the same core share it 69 : 1.
pub const LAST: i32 = 19;
/// The nice value of long work on a crowded machine. It shares a core 4 : 5 with a program at normal
/// priority.
pub const BESIDE_OTHERS: i32 = 1;

/// The share of all cores, in percent, from which a machine becomes crowded, and from which it stays crowded.
const ENTER: f64 = 60.0;
const STAY: f64 = 40.0;

/// The priority of a thread of long work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rank {
    Last,
    BesideOthers,
}

impl Rank {
    pub const ALL: [Rank; 2] = [Rank::Last, Rank::BesideOthers];

    pub fn nice(self) -> i32 {
        match self {
            Rank::Last => LAST,
            Rank::BesideOthers => BESIDE_OTHERS,
        }
    }
}

/// The time of the cores this process may use since the machine started, in ticks.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Cores {
    /// Time at normal priority or above: programs, the kernel, interrupts.
    busy: u64,
    all: u64,
}

impl Cores {
    /// Adds up the lines of `/proc/stat` whose core is `mine`. Source: proc_stat(5).
    fn parse(text: &str, mine: impl Fn(usize) -> bool) -> Cores {
        let mut sum = Cores::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            // The first line, without a number, is the sum of all.
            let core = words.next().and_then(|word| word.strip_prefix("cpu")?.parse::<usize>().ok());
            if core.is_some_and(&mine) {
                let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
                let [user, nice, system, idle, io_wait, interrupts, soft] =
                    std::array::from_fn(|at| ticks.get(at).copied().unwrap_or(0));
                let busy = user + system + interrupts + soft;
                sum = Cores { busy: sum.busy + busy, all: sum.all + busy + nice + idle + io_wait };
            }
        }
        sum
    }

    fn now() -> Cores {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        match rustix::thread::sched_getaffinity(None) {
            Ok(set) => Cores::parse(&text, |core| core < rustix::thread::CpuSet::MAX_CPU && set.is_set(core)),
            Err(_) => Cores::parse(&text, |_| true),
        }
    }

    /// The share of the cores, in percent, that all but this process's loops had since `then`. None: no time
    /// passed, or a counter fell.
    fn others(self, then: Cores, loops_ticks: f64) -> Option<f64> {
        let all = self.all.checked_sub(then.all).filter(|all| *all > 0)?;
        let busy = self.busy.checked_sub(then.busy)?;
        Some((busy as f64 - loops_ticks).max(0.0) * 100.0 / all as f64)
    }
}

/// How busy the machine is, as the background thread last saw it.
#[derive(Default)]
pub struct Crowd {
    crowded: AtomicBool,
    /// The last look, and the processor time of all loops then, in ticks. Only the background thread uses it.
    last: Mutex<Option<(Cores, f64)>>,
    /// The busy ticks of the last look, and its time. Only the background thread uses it.
    ticks: Mutex<(u64, u64)>,
    /// Thousandths of a core that were busy between the last two looks. The bits above [`MILLI_BITS`] are the
    /// time of the last look, in milliseconds. 0: not known. It is one word, so that loops need no lock: the
    /// background thread runs behind all others, and might hold a lock for long.
    busy: AtomicU64,
}

/// Bits for busy cores: enough for sixteen thousand. The other bits last for thirty years.
const MILLI_BITS: u32 = 24;

/// The age up to which a look still describes the present.
const FRESH_MS: u64 = 1500;

impl Crowd {
    /// The rank for long work that begins now. Cost: one load.
    pub fn rank(&self) -> Rank {
        if self.crowded.load(Relaxed) { Rank::BesideOthers } else { Rank::Last }
    }

    /// Looks at the machine. The background thread calls it once a second; `loops_s` is the processor time of
    /// all loops so far. Cost: O(cores), and a read of `/proc/stat`.
    pub fn look(&self, loops_s: f64) {
        let ticks_per_second = rustix::param::clock_ticks_per_second();
        let cores = Cores::now();
        self.note_busy(cores.busy, stdx::clock::mono_ns(), ticks_per_second);
        self.note(cores, loops_s * ticks_per_second as f64);
    }

    fn note_busy(&self, ticks: u64, now_ns: u64, ticks_per_second: u64) {
        let (then, then_ns) = std::mem::replace(&mut *self.ticks.lock(), (ticks, now_ns));
        let milli = |ticks: u64| {
            (ticks * 1_000_000_000_000).checked_div(ticks_per_second * now_ns.saturating_sub(then_ns))
        };
        let told = ticks.checked_sub(then).filter(|_| then_ns > 0).and_then(milli);
        let word = |milli: u64| ((now_ns / 1_000_000) << MILLI_BITS) | milli.min((1 << MILLI_BITS) - 1);
        self.busy.store(told.map_or(0, word), Relaxed);
    }

    /// How many cores were busy in the last second, in thousandths. It counts the cores this process may use,
    /// time at normal priority or above, and this process's loops. None: not known. Cost: one load.
    pub fn busy_milli(&self, now_ns: u64) -> Option<u64> {
        let word = self.busy.load(Relaxed);
        let age_ms = (now_ns / 1_000_000).saturating_sub(word >> MILLI_BITS);
        (word != 0 && age_ms <= FRESH_MS).then_some(word & ((1 << MILLI_BITS) - 1))
    }

    fn note(&self, now: Cores, loops_ticks: f64) {
        let Some((then, loops_then)) = self.last.lock().replace((now, loops_ticks)) else { return };
        if let Some(others) = now.others(then, loops_ticks - loops_then) {
            let least = if self.crowded.load(Relaxed) { STAY } else { ENTER };
            self.crowded.store(others >= least, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_of_this_process_are_added_up() {
        let text = "cpu  99 99 99 99 99 99 99 99 0 0\ncpu0 10 20 3 40 5 1 2 70 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\n\
                    cpu12 100 0 0 0 0 0 0 0 0 0\nintr 5 4 3\ncpufoo 7\n";
        assert_eq!(Cores::parse(text, |core| core == 0), Cores { busy: 16, all: 81 });
        assert_eq!(Cores::parse(text, |core| core != 1), Cores { busy: 116, all: 181 });
        assert_eq!(Cores::parse("", |_| true), Cores::default());
        let now = Cores::now();
        assert!(now.all > 0 && now.busy <= now.all, "{now:?}");
    }

    #[test]
    fn how_many_cores_are_busy_is_known_for_a_second() {
        let (crowd, second) = (Crowd::default(), 1_000_000_000);
        assert_eq!(crowd.busy_milli(0), None);
        crowd.note_busy(5000, second, 100);
        assert_eq!(crowd.busy_milli(second), None);
        crowd.note_busy(5150, 2 * second, 100);
        assert_eq!((crowd.busy_milli(3 * second), crowd.busy_milli(4 * second)), (Some(1500), None));
        // A counter that falls proves nothing.
        crowd.note_busy(10, 3 * second, 100);
        assert_eq!(crowd.busy_milli(3 * second), None);
    }

    #[test]
    fn a_machine_is_crowded_by_others_and_stays_so_for_a_while() {
        let crowd = Crowd::default();
        let (mut cores, mut loops) = (Cores { busy: 1000, all: 5000 }, 70.0);
        let mut second = |busy, of_them_loops| {
            cores = Cores { busy: cores.busy + busy, all: cores.all + 200 };
            loops += of_them_loops;
            crowd.note(cores, loops);
            crowd.rank()
        };
        // One look proves nothing.
        assert_eq!(second(200, 0.0), Rank::Last);
        // The loops' own work does not make the machine crowded.
        assert_eq!(second(200, 150.0), Rank::Last);
        assert_eq!(second(119, 0.0), Rank::Last);
        assert_eq!(second(120, 0.0), Rank::BesideOthers);
        assert_eq!(second(80, 0.0), Rank::BesideOthers);
        assert_eq!(second(79, 0.0), Rank::Last);
        assert_eq!(second(140, 30.0), Rank::Last);
        assert_eq!(second(150, 30.0), Rank::BesideOthers);
        // No time was counted, or counters fell: the state stays.
        crowd.note(Cores { busy: 0, all: 0 }, 0.0);
        assert_eq!(crowd.rank(), Rank::BesideOthers);
        crowd.note(Cores { busy: 0, all: 0 }, 0.0);
        assert_eq!(crowd.rank(), Rank::BesideOthers);
    }
}
