//! Threads: how they are scheduled, and where their memory comes from.
//!
//! An allocator's arena has locks. A demoted thread that is preempted while it holds one would keep an event loop waiting
//! for as long as it waits for the processor itself, so loops have an arena each, and all demoted threads share another:
//! what one of them freed the next one uses again, instead of fresh pages.

use std::cell::Cell;
use std::ffi::c_uint;
use std::sync::OnceLock;
use tikv_jemalloc_ctl::raw;

/// The arena of all demoted threads.
static BACKGROUND: OnceLock<Option<c_uint>> = OnceLock::new();

/// A new arena, if the allocator has any to give.
fn create_arena() -> Option<c_uint> {
    // SAFETY: the name ends with a zero byte, and what it yields is an `unsigned`.
    unsafe { raw::read::<c_uint>(b"arenas.create\0") }.ok()
}

/// Lets the calling thread allocate from an arena.
fn use_arena(arena: Option<c_uint>) {
    if let Some(arena) = arena {
        // SAFETY: the name ends with a zero byte, and what it takes is an `unsigned`. If it is refused nothing changes.
        let _ = unsafe { raw::write::<c_uint>(b"thread.arena\0", arena) };
    }
}

/// Gives the calling thread, an event loop, an arena of its own.
pub fn own_arena() {
    use_arena(create_arena());
}

/// Bytes that threads have freed and the allocator keeps for them, as of its last epoch; it counts them as allocated.
pub fn cached_bytes() -> usize {
    // 4096 stands for all arenas together.
    // SAFETY: the name ends with a zero byte, and what it yields is a `size_t`.
    unsafe { raw::read::<usize>(b"stats.arenas.4096.tcache_bytes\0") }.unwrap_or(0)
}

/// The time on a processor an event loop asks for at once: the least that Linux gives.
#[cfg(target_os = "linux")]
const PROMPT_SLICE_NS: u64 = 100_000;

/// Lets the calling thread, an event loop, run soon after it was woken up: it asks for many short turns on a processor in
/// place of few long ones (its share stays the same), and so, from Linux 6.12 on, takes the place of a thread that is in
/// the middle of a longer turn, demoted ones included. Without, loops beside a script on two cores waited for a core for
/// 1.4–3.6 ms at the 99.9th percentile, with it 0.7–0.9. What the system refuses is left as it is.
pub fn prompt() {
    #[cfg(target_os = "linux")]
    // SAFETY: plain system calls on the calling thread.
    unsafe {
        let thread = libc::syscall(libc::SYS_gettid) as libc::id_t;
        if libc::sched_getscheduler(0) == libc::SCHED_OTHER {
            schedule(libc::SCHED_OTHER, libc::getpriority(libc::PRIO_PROCESS, thread), PROMPT_SLICE_NS);
        }
    }
}

/// Gives the calling thread a policy, a priority, and turns of so many nanoseconds on a processor; false if the system
/// refuses.
#[cfg(target_os = "linux")]
fn schedule(policy: libc::c_int, nice: libc::c_int, slice_ns: u64) -> bool {
    /// `struct sched_attr` of Linux in its first version.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: policy as u32,
        flags: 0,
        nice,
        priority: 0,
        runtime: slice_ns,
        deadline: 0,
        period: 0,
    };
    // SAFETY: a plain system call on the calling thread; the structure is of the size it says.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

/// Makes the calling thread one that never preempts another when it wakes up, but has its share of the processor: for
/// threads that may hold locks which event loops need.
pub fn yielding() {
    #[cfg(target_os = "linux")]
    // SAFETY: a plain system call on the calling thread with a valid, initialised parameter.
    unsafe {
        let param: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &param);
    }
}

/// The time on a processor a demoted thread has at once: longer than a loop's, which may then take its place.
#[cfg(target_os = "linux")]
const DEMOTED_SLICE_NS: u64 = 200_000;

/// Makes the calling thread background work: SCHED_BATCH and a nice value. Measured with both of two cores saturated by such
/// threads at nice 19, a server thread of normal priority keeps its 99.9th percentile at 73–188 µs; without, 1.2–12.7 ms.
/// What the system refuses is left as it is. It allocates from the arena of all demoted threads.
///
/// Its small share of a processor comes in short turns too, if it [breathes](Breath) now and then. Else a loop that has
/// just used more than its share cannot take its place until the next tick of the clock: 4 ms.
///
/// It is never less nice than before, which Linux would not let it be.
pub fn demote(nice: i32) {
    use_arena(*BACKGROUND.get_or_init(create_arena));
    #[cfg(target_os = "linux")]
    // SAFETY: plain system calls on the calling thread with valid, initialised parameters.
    unsafe {
        let thread = libc::syscall(libc::SYS_gettid) as libc::id_t;
        let nice = nice.max(libc::getpriority(libc::PRIO_PROCESS, thread));
        if !schedule(libc::SCHED_BATCH, nice, DEMOTED_SLICE_NS) {
            let param: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(0, libc::SCHED_BATCH, &param);
            libc::setpriority(libc::PRIO_PROCESS, thread, nice);
        }
    }
}

/// Nanoseconds between two breaths.
const BREATH_NS: u64 = 200_000;
/// Calls between two looks at the clock.
const CALLS: u32 = 4;

/// When a demoted thread last let others have the processor.
#[derive(Default)]
pub struct Breath {
    calls: Cell<u32>,
    last_ns: Cell<u64>,
}

impl Breath {
    /// Called at least every few dozen microseconds; now and then lets others have the processor. Cost: a count, at times
    /// the clock, every 0.2 ms a system call.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> c_uint {
        // SAFETY: as in `use_arena`.
        unsafe { raw::read::<c_uint>(b"thread.arena\0") }.expect("an arena")
    }

    #[test]
    fn loops_have_arenas_of_their_own_and_demoted_threads_share_one() {
        let on_a_thread = |prepare: fn()| {
            let run = move || {
                prepare();
                arena()
            };
            std::thread::spawn(run).join().expect("an arena")
        };
        let loops = [on_a_thread(own_arena), on_a_thread(own_arena)];
        let demoted = [on_a_thread(|| demote(19)), on_a_thread(|| demote(1))];
        assert_ne!(loops[0], loops[1]);
        assert_eq!(demoted[0], demoted[1]);
        assert!(!loops.contains(&demoted[0]));
    }
}
