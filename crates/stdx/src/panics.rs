//! Panics: where one is contained, and where it ends the process.
//!
//! A panic is a mistake of the program. What it was in the middle of is in no known state, so a thread that works on what
//! all share cannot go on, and must not just end: whoever it served would wait for ever.
//!
//! - X1: work that changes nothing but what it owns is [`contain`]ed: it fails, its thread goes on.
//! - X2: everywhere else a panic ends the process, which says where and why ([`is_contained`] is asked by its hook).

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// Runs `work`, whose panic is an error: its message. What `work` changes by reference must be thrown away then.
///
/// # Errors
/// It panicked.
pub fn contain<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    let before = CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(before);
    result.map_err(|panic| {
        CAUGHT.fetch_add(1, Ordering::Relaxed);
        message(&*panic)
    })
}

/// Declares that all of this thread's work is contained by somebody else: a runtime, say.
pub fn contained_here() {
    CONTAINED.set(true);
}

/// Whether a panic of this thread is contained now.
pub fn is_contained() -> bool {
    CONTAINED.get()
}

/// Panics contained since the start.
pub fn caught() -> u64 {
    CAUGHT.load(Ordering::Relaxed)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contained_panic_is_an_error_with_its_message() {
        assert_eq!(contain(|| 1), Ok(1));
        let inner = || {
            assert!(is_contained());
            let nested = contain(|| std::panic::panic_any("a word"));
            assert!(is_contained() && nested == Err::<(), _>("a word".to_owned()));
            panic!("{}", 7);
        };
        assert_eq!(contain(inner), Err::<(), _>("7".to_owned()));
        assert!(!is_contained() && caught() >= 2);
    }
}
