//! What a run looked at, in all and between two charges.

use std::cell::Cell;

thread_local! {
    static SEEN: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

pub(crate) fn note() {
    let (all, most) = SEEN.get();
    let gap = stdx::visits::take();
    SEEN.set((all + gap, most.max(gap)));
}

pub(crate) fn take() -> (usize, usize) {
    stdx::visits::take();
    SEEN.replace((0, 0))
}
