//! For tests: counts the allocations of the calling thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn add(bytes: isize) {
    let _ = NOW.try_with(|now| {
        now.set(now.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: as the caller says.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The new block exists before the old one goes.
        add(size as isize);
        add(-(layout.size() as isize));
        // SAFETY: as the caller says.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Runs `f`. Returns its result, the peak of memory that this thread held above the current level, and what
/// it holds above it afterwards.
pub(crate) fn peak_of<R>(f: impl FnOnce() -> R) -> (R, usize, isize) {
    let before = NOW.get();
    PEAK.set(before);
    let result = f();
    (result, (PEAK.get() - before) as usize, NOW.get() - before)
}
