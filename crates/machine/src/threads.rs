//! Threads: their scheduling, and the arena that their memory comes from.
//!
//! An allocator's arena has locks. A demoted thread preempted while it holds one would stall an event loop
//! that needs it. So each loop has an arena of its own. All demoted threads share another, where each reuses
//! pages that others freed.

use std::ffi::c_uint;
use std::sync::OnceLock;
use tikv_jemalloc_ctl::raw;

/// The arena of all demoted threads.
static BACKGROUND: OnceLock<Option<c_uint>> = OnceLock::new();

/// Makes an arena, if the allocator has one to give.
fn create_arena() -> Option<c_uint> {
    // SAFETY: the name ends with a zero byte, and what it yields is an `unsigned`.
    unsafe { raw::read::<c_uint>(b"arenas.create\0") }.ok()
}

/// Lets the calling thread allocate from an arena.
fn use_arena(arena: Option<c_uint>) {
    if let Some(arena) = arena {
        // SAFETY: the name ends with a zero byte, and what it takes is an `unsigned`. If it is refused
        // nothing changes.
        let _ = unsafe { raw::write::<c_uint>(b"thread.arena\0", arena) };
    }
}

/// Gives the calling thread, an event loop, an arena of its own.
pub fn own_arena() {
    use_arena(create_arena());
}

/// Makes the allocator return memory that was unused for so many milliseconds. It applies to the arena of the
/// first thread and to all that are made from now on. The allocator's own default is ten seconds. False if it
/// keeps that.
pub fn return_unused_after(ms: usize) -> bool {
    let names = [&b"arenas.dirty_decay_ms\0"[..], b"arena.0.dirty_decay_ms\0"];
    // SAFETY: the names end with a zero byte, and what they take is an `ssize_t`, not below -1.
    names.iter().all(|name| unsafe { raw::write::<isize>(name, ms as isize) }.is_ok())
}

/// Bytes that threads have freed and the allocator caches for them, as of its last epoch. It counts them as
/// allocated.
pub fn cached_bytes() -> usize {
    // 4096 stands for all arenas together.
    // SAFETY: the name ends with a zero byte, and what it yields is a `size_t`.
    unsafe { raw::read::<usize>(b"stats.arenas.4096.tcache_bytes\0") }.unwrap_or(0)
}

/// The time slice that an event loop asks for: the shortest that Linux gives.
#[cfg(target_os = "linux")]
const PROMPT_SLICE_NS: u64 = 100_000;

/// Lets the calling thread, an event loop, run soon after it wakes. It asks for many short time slices
/// instead of few long ones, with the same share. From Linux 6.12 on it then preempts a thread in a longer
/// slice, demoted ones included. Does nothing if the system refuses.
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

/// Sets policy, nice value and time slice of the calling thread. False if the system refuses.
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

/// The time slice of a demoted thread: longer than a loop's, so that a loop may preempt it.
#[cfg(target_os = "linux")]
const DEMOTED_SLICE_NS: u64 = 200_000;

/// Makes the calling thread background work: SCHED_BATCH, a nice value, and the arena of all demoted threads.
/// So event loops keep their latency when such threads use all cores. Ignores what the system refuses.
///
/// Its share comes in short slices if it breathes (`stdx::threads::Breath`) now and then. Otherwise a loop
/// that has just used up its share could not preempt it until the next tick of the clock, 4 ms.
///
/// The nice value is never lowered: Linux would refuse that.
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

/// Puts the calling thread into SCHED_FIFO at a real-time priority (1 is the lowest). Returns whether the
/// system allowed it.
pub fn real_time(priority: i32) -> bool {
    #[cfg(target_os = "linux")]
    {
        let param = libc::sched_param { sched_priority: priority };
        // SAFETY: pid 0 is the calling thread; `param` lives through the call.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = priority;
        false
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
