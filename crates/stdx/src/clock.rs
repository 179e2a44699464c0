//! Time: a wall clock for expiry, and a monotonic clock for measuring.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since 1970. May jump when the clock of the machine is set.
pub fn wall_ms() -> u64 {
    wall().as_millis() as u64
}

/// Microseconds since 1970.
pub fn wall_us() -> u64 {
    wall().as_micros() as u64
}

/// Nanoseconds since 1970.
pub fn wall_ns() -> u64 {
    wall().as_nanos() as u64
}

/// CPU time of the calling thread, in nanoseconds. Cost: a system call.
pub fn thread_cpu_ns() -> u64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64
}

/// Nanoseconds since the first call in this process; never goes back. Cost: about 20 ns.
#[inline]
pub fn mono_ns() -> u64 {
    START.elapsed().as_nanos() as u64
}

fn wall() -> Duration {
    // A clock before 1970 reads as 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A monotonic clock for one thread that costs a few nanoseconds to read. It adds the processor's counter to
/// the system's clock at the last `set`. Where the counter is not reliable it reads the system's clock.
#[derive(Clone, Copy, Debug)]
pub struct Ticker {
    base_ns: u64,
    base_ticks: u64,
}

impl Ticker {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Ticker {
        Ticker { base_ns: mono_ns(), base_ticks: ticks() }
    }

    /// Reads the system's clock. Call it each turn of a loop, so that errors of the counter's scale do not
    /// matter.
    pub fn set(&mut self) -> u64 {
        *self = Ticker::new();
        self.base_ns
    }

    /// Nanoseconds on the scale of [`mono_ns`].
    #[inline]
    pub fn now_ns(&self) -> u64 {
        let scale = *SCALE;
        if scale == 0 {
            return mono_ns();
        }
        self.base_ns + (((ticks().wrapping_sub(self.base_ticks)) as u128 * scale as u128) >> 32) as u64
    }
}

/// Nanoseconds per tick, times 2^32; 0 if ticks cannot be used. Measured once, over two milliseconds.
static SCALE: LazyLock<u64> = LazyLock::new(|| {
    if !ticks_are_steady() {
        return 0;
    }
    let (ns, started) = (mono_ns(), ticks());
    while mono_ns() - ns < 2_000_000 {
        std::hint::spin_loop();
    }
    let (spent_ns, spent) = (mono_ns() - ns, ticks().wrapping_sub(started));
    if spent == 0 { 0 } else { (((spent_ns as u128) << 32) / spent as u128) as u64 }
});

#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: reading the time stamp counter has no precondition on x86-64.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "x86_64")]
fn ticks_are_steady() -> bool {
    use std::arch::x86_64::__cpuid;
    // Bit 8 of EDX of leaf 0x80000007: the counter runs at a constant rate in all states.
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx >> 8 & 1 == 1
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks_are_steady() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticker_agrees_with_the_system_clock() {
        let mut ticker = Ticker::new();
        for _ in 0..3 {
            ticker.set();
            std::thread::sleep(Duration::from_millis(3));
            let (fast, slow) = (ticker.now_ns(), mono_ns());
            // The thread may have been descheduled between the two readings. Still the ticker must not be
            // ahead.
            assert!(fast <= slow + 100_000, "{fast} {slow}");
        }
        assert!(ticker.now_ns() <= ticker.now_ns());
    }
}
