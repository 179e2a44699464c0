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
pub mod sieve;
pub mod six;
pub mod sync;
pub mod threads;
pub mod turns;
