//! How many elements of values this thread has looked at: a measure of work that is no clock, for tests that show that
//! nothing looks at more than it should. In release builds nothing is counted.

use std::cell::Cell;

thread_local! {
    static VISITS: Cell<usize> = const { Cell::new(0) };
}

/// Counts `n` elements.
#[inline(always)]
pub fn note(n: usize) {
    if cfg!(debug_assertions) {
        VISITS.set(VISITS.get().wrapping_add(n));
    }
}

/// Elements counted since the last call.
pub fn take() -> usize {
    VISITS.replace(0)
}
