//! Many nodes, one keyspace: which node has a slot, who leads a shard, and how that changes.
//!
//! ```text
//! coordinator ─► map ─► topology ─► a call: here, MOVED, or nobody
//!      ▲          │
//!      └── change, by compare and swap
//! ```
//!
//! No node asks another one who leads: that stands in the coordinator.

#![forbid(unsafe_code)]

pub mod change;
pub mod map;
pub mod show;
pub mod slots;
pub mod topology;
