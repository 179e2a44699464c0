//! Time: the wall clock for expiry, and one monotonic clock for everything that is measured.

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

/// Nanoseconds since the first call in this process; never goes back. Cost: about 20 ns.
#[inline]
pub fn mono_ns() -> u64 {
    START.elapsed().as_nanos() as u64
}

fn wall() -> Duration {
    // A clock before 1970 is read as 1970 rather than refused.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
