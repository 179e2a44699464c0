//! Threads that leave the processor to others.

use std::cell::Cell;

/// Keeps the calling thread from preempting others when it wakes, with its full share of the processor. It is
/// meant for threads that may hold locks which event loops need.
pub fn yielding() {
    #[cfg(target_os = "linux")]
    // SAFETY: a plain system call on the calling thread with a valid, initialised parameter.
    unsafe {
        let param: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &param);
    }
}

/// Nanoseconds between two breaths.
const BREATH_NS: u64 = 200_000;
/// Calls between two looks at the clock.
const CALLS: u32 = 4;

/// When a demoted thread last yielded the processor.
#[derive(Default)]
pub struct Breath {
    calls: Cell<u32>,
    last_ns: Cell<u64>,
}

impl Breath {
    /// Call it at least every few dozen microseconds. Now and then it yields the processor. Costs a count, at
    /// times a look at the clock, and a system call every 0.2 ms.
    #[inline]
    pub fn breathe(&self) {
        let calls = self.calls.get() + 1;
        self.calls.set(calls % CALLS);
        if calls == CALLS {
            self.look();
        }
    }

    fn look(&self) {
        let now_ns = crate::clock::mono_ns();
        if now_ns - self.last_ns.get() >= BREATH_NS {
            self.last_ns.set(now_ns);
            std::thread::yield_now();
        }
    }
}
