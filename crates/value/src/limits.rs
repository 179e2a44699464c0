//! The limits that decide the reply of `OBJECT ENCODING`. The actual form of values does not depend on them.
//!
//! They are process-wide, set by `CONFIG SET` and read without synchronization. A change that runs at the
//! same time follows one limit or the other.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

/// One limit: an atomic number with Redis's default.
pub struct Limit(AtomicUsize);

impl Limit {
    const fn new(value: usize) -> Limit {
        Limit(AtomicUsize::new(value))
    }

    /// The limit now.
    #[inline]
    pub fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Sets the limit for later changes. Existing values keep their encoding.
    pub fn set(&self, value: usize) {
        self.0.store(value, Relaxed);
    }
}

pub static SET_MAX_INTSET_ENTRIES: Limit = Limit::new(512);
pub static SET_MAX_LISTPACK_ENTRIES: Limit = Limit::new(128);
pub static SET_MAX_LISTPACK_VALUE: Limit = Limit::new(64);
pub static HASH_MAX_LISTPACK_ENTRIES: Limit = Limit::new(512);
pub static HASH_MAX_LISTPACK_VALUE: Limit = Limit::new(64);
pub static ZSET_MAX_LISTPACK_ENTRIES: Limit = Limit::new(128);
pub static ZSET_MAX_LISTPACK_VALUE: Limit = Limit::new(64);
/// Largest number of entries of a stream's leaf; 0 is no limit. It decides what approximate trims leave.
pub static STREAM_NODE_MAX_ENTRIES: Limit = Limit::new(100);
/// Bytes from which on a stream's leaf gets no more entries; 0 is no limit.
pub static STREAM_NODE_MAX_BYTES: Limit = Limit::new(4096);
/// Seconds for which a stream remembers what producers sent, and the number of messages of each. They decide
/// nothing about encodings.
pub static STREAM_IDMP_DURATION: Limit = Limit::new(100);
pub static STREAM_IDMP_MAXSIZE: Limit = Limit::new(100);

static LIST_MAX_LISTPACK_SIZE: AtomicI64 = AtomicI64::new(-2);

/// `list-max-listpack-size`: entries if positive, -1 to -5 mean 4 to 64 KB.
pub fn list_max_listpack_size() -> i64 {
    LIST_MAX_LISTPACK_SIZE.load(Relaxed)
}

/// Sets `list-max-listpack-size`.
pub fn set_list_max_listpack_size(value: i64) {
    LIST_MAX_LISTPACK_SIZE.store(value, Relaxed);
}
