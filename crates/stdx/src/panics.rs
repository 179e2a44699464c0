//! Panics: where one is contained, and where it ends the process.
//!
//! A panic is a bug. The data it interrupted is in an unknown state, so a thread that works on shared data
//! cannot go on. It must not just end either: its clients would wait for ever.
//!
//! - X1: work that changes only its own data is [`contain`]ed: it fails, and its thread goes on.
//! - X2: anywhere else a panic ends the process, which reports where and why. Its hook asks [`is_contained`].
//! - X3: work that may change shared data is contained until it does. It calls [`begin`] at its start and
//!   [`changes`] before its first change. From then on a panic ends the process, until the next `begin`.
//!
//! Cost: one store for each call of X3. [`contain`] allocates nothing unless there is a panic.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
    static CHANGED: Cell<bool> = const { Cell::new(false) };
}

static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// Runs `work`. A panic becomes an error with its message; then data that `work` changed by reference must be
/// thrown away.
///
/// # Errors
/// It panicked.
#[inline]
pub fn contain<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    let (contained, changed) = (CONTAINED.replace(true), CHANGED.replace(false));
    let result = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(contained);
    let changed_now = CHANGED.replace(changed);
    match result {
        Ok(result) => {
            CHANGED.set(changed || changed_now);
            Ok(result)
        }
        Err(panic) => Err(caught_one(panic, changed_now)),
    }
}

#[cold]
fn caught_one(panic: Box<dyn Any + Send>, changed: bool) -> String {
    if changed {
        // X3. If a hook is set, it has ended the process by now.
        resume_unwind(panic);
    }
    if !panic.is::<Elsewhere>() {
        CAUGHT.fetch_add(1, Ordering::Relaxed);
    }
    message(&*panic)
}

struct Elsewhere;

/// Continues a panic that was contained, counted and logged on another thread, which worked for this one.
pub fn go_on() -> ! {
    resume_unwind(Box::new(Elsewhere))
}

/// Marks the start of work that has changed nothing yet (X3).
#[inline]
pub fn begin() {
    CHANGED.set(false);
}

/// Marks that shared data is about to change (X3).
#[inline]
pub fn changes() {
    CHANGED.set(true);
}

/// Declares all of this thread's work contained by something else, such as a runtime.
pub fn contained_here() {
    CONTAINED.set(true);
}

/// Whether a panic of this thread would be contained now.
pub fn is_contained() -> bool {
    CONTAINED.get() && !CHANGED.get()
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

    #[test]
    fn a_panic_after_a_change_is_nobodys() {
        let outer = catch_unwind(|| {
            contain(|| {
                assert_eq!(contain(changes), Ok(()));
                // A change within the inner call counts outside, too.
                assert!(!is_contained());
                begin();
                assert!(is_contained());
                changes();
                assert!(contain(|| assert!(!is_contained(), "this one has changed nothing")).is_err());
                panic!("half of it is done");
            })
        });
        assert!(outer.is_err() && !is_contained());
    }
}
