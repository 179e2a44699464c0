//! The machine beneath a process: scheduling, stacks of its threads, arenas of the allocator. Nothing here
//! knows of Redis.

pub mod sched;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod stacks;
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[path = "no_stacks.rs"]
pub mod stacks;
pub mod threads;
