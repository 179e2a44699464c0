//! Atomics and locks under one name, for files that `tests/models` also compiles with a model checker's in
//! their place.

pub use parking_lot::Mutex;
pub use std::sync::atomic;
