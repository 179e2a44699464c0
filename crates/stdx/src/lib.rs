//! Basics for every crate: clock, numbers, glob patterns, pages, queues, locks. Nothing here knows of Redis.

pub mod bits;
pub mod budget;
pub mod cache;
pub mod clock;
pub mod doing;
pub mod glob;
pub mod hash;
pub mod letterbox;
pub mod locks;
pub mod long_double;
pub mod num;
pub mod pages;
pub mod panics;
pub mod points;
pub mod progress;
pub mod queue;
pub mod reclaim;
pub mod sched;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod stacks;
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[path = "no_stacks.rs"]
pub mod stacks;
pub mod sync;
pub mod threads;
pub mod turns;
