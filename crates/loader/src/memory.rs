//! Memory that values may take.

use std::fs;

/// Bytes of memory available without swapping.
pub fn memory_available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(u64::MAX >> 10) << 10
}

/// Most bytes of a value: a quarter of what is available, as it is received, copied and sent on.
pub fn value_max() -> usize {
    usize::try_from(memory_available() / 4).unwrap_or(usize::MAX)
}
