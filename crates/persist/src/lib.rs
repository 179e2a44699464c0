//! How the data gets to disk and back: snapshots as RDB files.
//!
//! ```text
//! file ─► load ─► reader: pieces of 256 KB ─► workers: decode ─► Install (a keyspace)
//!                      └─► sum
//! values ─► SaveFile ─► temp-<pid>-<n>.rdb ─► fdatasync ─► rename ─► fsync of the directory
//! file ─► describe ─► a report, in bounded memory
//! ```
//!
//! The bytes of a file are the affair of [`rdb::file`], and those of values of [`serial`]; here are threads, memory and disks.
//!
//! - P1: a file under its final name is whole and synced. A failure leaves the one before as it was.
//! - P2: damage is named with its offset, key and database. Nothing of a file is believed before it was checked.
#![forbid(unsafe_code)]

mod describe;
pub mod disk;
mod load;
mod order;
mod rings;
mod save;
pub mod stream;

pub use describe::{Database, Description, Large, Sum, Tally, describe};
pub use load::{
    Damaged, Install, IntoKeyspace, Loaded, NotTaken, Options, Progress, Report, Skipped, Unknown, load,
    load_file, set_aside,
};
pub use order::Order;
pub use save::{Kept, SaveError, SaveFile, Saved, Step, remove_leftovers};

/// Bytes that go to a disk or a worker at once.
const PIECE: usize = 256 * 1024;
