//! The allocator's figures, for INFO and MEMORY STATS.
//!
//! jemalloc keeps its figures per thread and adds them up when its epoch advances. Cost: microseconds.
//!
//! jemalloc counts freed memory in a thread's cache as allocated; here it does not count. Such memory comes
//! and goes by hundreds of kilobytes, so a small `maxmemory` would be exceeded at one moment and not at the
//! next.

use exec::info::Allocator;
use tikv_jemalloc_ctl::stats_print::{Options, stats_print};
use tikv_jemalloc_ctl::{background_thread, epoch, max_background_threads, stats};

/// How long unused memory stays. Ten seconds of a script's garbage are more than a small `maxmemory` leaves.
const UNUSED_MS: usize = 1000;

/// The allocator's figures now; zero where it does not tell.
pub fn allocator() -> Allocator {
    // Without a new epoch the figures are those of the last one.
    let _ = epoch::advance();
    let bytes = |figure: Result<usize, tikv_jemalloc_ctl::Error>| figure.unwrap_or(0) as u64;
    Allocator {
        allocated: bytes(stats::allocated::read()).saturating_sub(machine::threads::cached_bytes() as u64),
        active: bytes(stats::active::read()),
        resident: bytes(stats::resident::read()),
    }
}

/// Lets a thread of the allocator return unused memory. Otherwise any thread that allocates or frees may have
/// to do so, even an event loop, and it takes long if there is much.
///
/// Memory that a script or a large request has freed is returned within a second or two, before others are
/// short of memory.
pub fn purge_aside() {
    if !machine::threads::return_unused_after(UNUSED_MS) {
        log::warn!("the allocator keeps unused memory for ten seconds");
    }
    // One thread is enough, and it has this thread's priority; further ones would get that of the thread that
    // starts them.
    let _ = max_background_threads::write(1);
    if let Err(e) = background_thread::write(true) {
        log::warn!("no thread returns unused memory, so event loops may have to: {e}");
    }
}

/// The allocator's own report, for people.
pub fn allocator_report() -> String {
    let mut text = Vec::new();
    match stats_print(&mut text, Options::default()) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(e) => format!("The allocator gives no report: {e}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_shows() {
        let before = allocator();
        let block = std::hint::black_box(vec![1u8; 8 << 20]);
        let after = allocator();
        assert!(after.allocated >= before.allocated + (4 << 20), "{before:?} {after:?}");
        assert!(after.allocated <= after.active && after.active <= after.resident);
        drop(block);
    }

    #[test]
    fn what_waits_in_a_threads_cache_does_not_count() {
        const SIZE: usize = 30 << 10;
        let blocks: Vec<_> = (0..8).map(|_| std::hint::black_box(vec![1u8; SIZE])).collect();
        drop(blocks);
        let all = || {
            let _ = epoch::advance();
            stats::allocated::read().unwrap()
        };
        let cached = machine::threads::cached_bytes();
        assert!(all() > 0 && machine::threads::cached_bytes() >= 4 * SIZE, "{cached} bytes are cached");
        // Another thread may allocate between the figures, but hardly as much as is cached.
        let told = allocator().allocated as usize;
        assert!(told + 3 * SIZE <= all(), "{told} of {}", all());
    }
}
