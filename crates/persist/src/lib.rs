//! The way of the data to disk and back: snapshots as RDB files, and a log of the changes.
//!
//! ```text
//! file ─► load ─► reader: pieces of 256 KB ─► workers: decode ─► Install (a keyspace)
//!                      └─► sum
//! values ─► SaveFile ─► temp-<pid>-<n>.rdb ─► fdatasync ─► rename ─► fsync of the directory
//! file ─► describe ─► a report, in bounded memory
//!
//! stream of blocks and marks ─► LogOutlet ─► Writer ─► appendonlydir ─► durable(lsn)
//! appendonlydir ─► load_log ─► Install (the base), Apply (the commands) ─► LoadedLog ─► Writer::open
//! appendonlydir ─► describe_log ─► a report; repair_log cuts a torn end off
//! ```
//!
//! The caller connects the log so:
//!
//! - At start: [`load_log`], then [`Writer::open`] with its outcome. [`Writer::outlet`] goes to the source of
//!   the stream.
//! - Replies wait for [`Hooks::durable`]. Writes are refused while [`Writer::state`] is stopped, or
//!   [`Writer::pending_bytes`] are too many.
//! - For a rewrite: [`Writer::begin_rewrite`] gives a mark for the stream. A snapshot at the mark's LSN goes
//!   to [`Rewriting::base`] with the facts `evenkeel-lsn` and `evenkeel-epoch` ([`Writer::epoch`]). Then
//!   comes [`Writer::finish_rewrite`] or [`Writer::fail_rewrite`].
//! - At the end: [`Writer::close`].
//!
//! The bytes of a file are the affair of [`rdb::file`], and those of values of [`serial`]. Threads, memory
//! and disks are here.
//!
//! - P1: a file under its final name is whole and synced. A failure leaves the one before as it was.
//! - P2: damage is named with its offset, key and database. Nothing of a file is believed before it is
//!   checked.
#![forbid(unsafe_code)]

mod copy;
mod describe;
pub mod disk;
mod files;
mod load;
pub mod log;
pub mod order;
mod rewrite;
mod rings;
mod save;
pub mod stream;
mod writer;

pub use copy::{FileCopy, Read, read_if_cached};
pub use describe::{Database, Description, Large, Sum, Tally, describe};
pub use files::Place;
pub use files::begin::{mark_finished, mark_unfinished, put_aside, put_unfinished_aside, remove_unfinished};
pub use files::local::local_log;
pub use files::manifest::{Entry, FileKind, Manifest, ManifestError};
pub use files::repair::{LogDescription, LogFileDescription, Repaired, check_file, describe_log, repair_log};
pub use files::tail::{Tail, copy_tail};
pub use load::{
    Apply, CutOff, Damaged, Facts, Install, IntoKeyspace, Loaded, LoadedLog, LogError, LogOptions,
    LogProblem, NotTaken, Options, Progress, ReadAt, Report, Skipped, Unknown, facts, load, load_file,
    load_log, set_aside,
};
pub use order::Order;
pub use rewrite::{RewriteError, Rewriting};
pub use save::{Kept, SaveError, SaveFile, Saved, Spool, Step, remove_leftovers};
pub use writer::{
    EVERYTHING, Figures, Fsync, Hooks, Latency, LogOutlet, LogState, Preallocate, RewriteStatus, Settings,
    Writer,
};
