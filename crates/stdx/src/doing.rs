//! What a thread is doing, as a word that whoever sets it can read again: so that work can be traced to whom it was done for by
//! code that knows nothing of clients.

use std::cell::Cell;

thread_local! {
    static DOING: Cell<u64> = const { Cell::new(0) };
}

/// From now on this thread does that. Cost: a nanosecond.
#[inline]
pub fn set(word: u64) {
    DOING.set(word);
}

/// What this thread does; 0 if nobody ever said.
#[inline]
pub fn now() -> u64 {
    DOING.get()
}

/// Does something of which it is known what it belongs to.
#[inline]
pub fn within<T>(word: u64, f: impl FnOnce() -> T) -> T {
    let _again = Again(DOING.replace(word));
    f()
}

/// Sets the word again, also when what came between panicked.
struct Again(u64);

impl Drop for Again {
    fn drop(&mut self) {
        DOING.set(self.0);
    }
}
