//! Figures about this process from the system and the allocator. The background thread collects them ten times
//! a second, so that no loop waits for them.
//!
//! ```text
//!   first loop, every 100 ms ──task──▶ background thread: look, sample ──▶ atomics ──▶ INFO, on any loop
//! ```
//!
//! - M1: reading takes no lock: the background thread runs behind all others, and might hold a lock for long.
//! - M2: the figures are not from one moment, and as old as the background thread's last task. The split of
//!   processor time needs a file of every thread, and may be [`CPU_MS`] older.

use crate::crowd::Crowd;
use crate::info::{self, Allocator, Cpu};
use crate::stats::Speeds;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Milliseconds between two looks at the processor time of all threads.
const CPU_MS: u64 = 1000;

/// An atomic `f64`.
#[derive(Default)]
struct Float(AtomicU64);

impl Float {
    fn set(&self, to: f64) {
        self.0.store(to.to_bits(), Relaxed);
    }

    fn value(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }
}

/// The latest figures. Cost of reading: a few loads.
#[derive(Default)]
pub struct Measured {
    allocated: AtomicU64,
    active: AtomicU64,
    resident: AtomicU64,
    /// Memory of the process that is in RAM, in bytes.
    process: AtomicU64,
    speeds: [Float; 5],
    cpu_ms: AtomicU64,
    /// The share of the processor time that was spent in the kernel.
    system_share: Float,
    loops_system_s: Float,
    loops_user_s: Float,
}

impl Measured {
    /// Stores the allocator's figures.
    pub fn note_allocator(&self, now: Allocator) {
        self.allocated.store(now.allocated, Relaxed);
        self.active.store(now.active, Relaxed);
        self.resident.store(now.resident, Relaxed);
    }

    pub fn note_speeds(&self, now: Speeds) {
        let all = [now.commands, now.input_kb, now.output_kb, now.cycles, now.cycle_us];
        self.speeds.iter().zip(all).for_each(|(kept, now)| kept.set(now));
    }

    /// Reads the system's figures, and lets `crowd` look at the machine. Reads files; cost: microseconds, and
    /// every [`CPU_MS`] O(threads + cores).
    pub fn sample(&self, now_ms: u64, crowd: &Crowd) {
        self.process.store(info::resident_bytes(), Relaxed);
        let then_ms = self.cpu_ms.load(Relaxed);
        if then_ms != 0 && (then_ms..then_ms + CPU_MS).contains(&now_ms) {
            return;
        }
        self.cpu_ms.store(now_ms, Relaxed);
        let cpu = info::cpu();
        let all_s = cpu.system_s + cpu.user_s;
        self.system_share.set(if all_s > 0.0 { cpu.system_s / all_s } else { 0.5 });
        self.loops_system_s.set(cpu.loops_system_s);
        self.loops_user_s.set(cpu.loops_user_s);
        crowd.look(cpu.loops_system_s + cpu.loops_user_s);
    }

    pub fn allocator(&self) -> Allocator {
        Allocator {
            allocated: self.allocated.load(Relaxed),
            active: self.active.load(Relaxed),
            resident: self.resident.load(Relaxed),
        }
    }

    /// Memory of the process that is in RAM, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.process.load(Relaxed)
    }

    pub fn speeds(&self) -> Speeds {
        let [commands, input_kb, output_kb, cycles, cycle_us] =
            std::array::from_fn(|at| self.speeds[at].value());
        Speeds { commands, input_kb, output_kb, cycles, cycle_us }
    }

    /// Processor time. The sum is exact; its split is up to [`CPU_MS`] older.
    pub fn cpu(&self) -> Cpu {
        let (all_s, system) = (info::process_cpu_s(), self.system_share.value());
        Cpu {
            system_s: all_s * system,
            user_s: all_s * (1.0 - system),
            loops_system_s: self.loops_system_s.value(),
            loops_user_s: self.loops_user_s.value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_read() {
        let measured = Measured::default();
        let said = Allocator { allocated: 1, active: 2, resident: 3 };
        measured.note_allocator(said);
        let now = measured.allocator();
        assert_eq!((now.allocated, now.active, now.resident), (1, 2, 3));
        let speeds = Speeds { commands: 1.5, input_kb: 2.5, output_kb: 3.5, cycles: 4.5, cycle_us: 5.5 };
        measured.note_speeds(speeds);
        assert_eq!(measured.speeds(), speeds);
    }

    #[test]
    fn processor_time_is_split_at_most_once_a_second_and_always_adds_up() {
        let measured = Measured::default();
        let crowd = Crowd::default();
        measured.sample(5_000, &crowd);
        measured.system_share.set(0.25);
        for (now_ms, split_again) in [(5_100, false), (5_999, false), (6_000, true)] {
            measured.sample(now_ms, &crowd);
            assert_eq!(measured.cpu_ms.load(Relaxed) == now_ms, split_again, "{now_ms}");
        }
        // The clock was set back.
        measured.sample(1_000, &crowd);
        assert_eq!(measured.cpu_ms.load(Relaxed), 1_000);
        let (before_s, cpu, after_s) = (info::process_cpu_s(), measured.cpu(), info::process_cpu_s());
        let sum_s = cpu.system_s + cpu.user_s;
        assert!(before_s - 1e-9 <= sum_s && sum_s <= after_s + 1e-9, "{before_s} {cpu:?} {after_s}");
        assert!(measured.resident_bytes() > 100_000);
    }
}
