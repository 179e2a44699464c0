//! Clock, numbers, glob patterns, pages, queues: what every crate may use. Has never heard of Redis.

pub mod clock;
pub mod glob;
pub mod hash;
pub mod letterbox;
pub mod locks;
pub mod long_double;
pub mod num;
pub mod pages;
pub mod points;
pub mod reclaim;
pub mod sync;
pub mod threads;
pub mod turns;
