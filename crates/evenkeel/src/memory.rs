//! What the allocator says of itself, for INFO and MEMORY STATS.
//!
//! jemalloc keeps its figures per thread and adds them up when its epoch advances. Cost: microseconds.

use exec::info::Allocator;
use tikv_jemalloc_ctl::stats_print::{Options, stats_print};
use tikv_jemalloc_ctl::{epoch, stats};

/// The allocator's figures now; zero where it does not say.
pub fn allocator() -> Allocator {
    // Without a new epoch the figures are merely those of the last one.
    let _ = epoch::advance();
    let bytes = |figure: Result<usize, tikv_jemalloc_ctl::Error>| figure.unwrap_or(0) as u64;
    Allocator {
        allocated: bytes(stats::allocated::read()),
        active: bytes(stats::active::read()),
        resident: bytes(stats::resident::read()),
    }
}

/// The allocator's own account of itself, for people.
pub fn allocator_report() -> String {
    let mut text = Vec::new();
    match stats_print(&mut text, Options::default()) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(e) => format!("The allocator says nothing: {e}\n"),
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
}
