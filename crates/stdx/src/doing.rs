//! A word per thread that says what it is doing. It traces work to the client it is done for, in code that
//! knows no clients. Only the setter knows what the word means.

use std::cell::Cell;

thread_local! {
    static DOING: Cell<u64> = const { Cell::new(0) };
}

/// Sets this thread's word. About a nanosecond.
#[inline]
pub fn set(word: u64) {
    DOING.set(word);
}

/// This thread's word; 0 if it was never set.
#[inline]
pub fn now() -> u64 {
    DOING.get()
}

/// Runs `f` with another word.
#[inline]
pub fn within<T>(word: u64, f: impl FnOnce() -> T) -> T {
    let _again = Again(DOING.replace(word));
    f()
}

/// Restores the word when dropped, also after a panic.
struct Again(u64);

impl Drop for Again {
    fn drop(&mut self) {
        DOING.set(self.0);
    }
}
