//! The duties of a log, whether it is a file here or a service elsewhere.
//!
//! - J1: one batch is on its way at a time, and is appended at the position that the one before gave.
//! - J2: positions rise, and are not dense.
//! - J3: [`Append::Unknown`] says nothing of the batch. The caller asks [`Log::end`] and [`Log::tail`] for
//!   its number first.

use crate::stream::Block;
use keyspace::Lsn;
use rdb::crc64;
use std::io;
use std::sync::Arc;

/// A place in a log: the number of a file, and an offset in it. A log without files has 0 for the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub file: u64,
    pub offset: u64,
}

/// Blocks that become durable together.
#[derive(Clone, Debug)]
pub struct Batch {
    pub epoch: u64,
    /// Counts the batches of an epoch.
    pub number: u64,
    pub first: Lsn,
    pub last: Lsn,
    pub blocks: Arc<[Block]>,
}

impl Batch {
    pub fn size_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes.len() as u64).sum()
    }

    /// The checksum of all batches so far, from that of those before. Cost: about a nanosecond per byte.
    pub fn sum(&self, before: u64) -> u64 {
        self.blocks.iter().fold(before, |sum, block| crc64(sum, &block.bytes))
    }
}

/// The outcome of an append.
#[derive(Debug)]
pub enum Append {
    /// It is there, and the log ends here.
    Done(Position),
    /// The log ends elsewhere: another epoch writes. The caller must stop.
    Conflict,
    /// It may be there (J3).
    Unknown,
    /// It is not there.
    Failed(io::Error),
}

/// A batch in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its end.
    pub position: Position,
    pub epoch: u64,
    pub first: Lsn,
    pub last: Lsn,
    pub bytes: Vec<u8>,
}

/// Batches that were read. They end at the first error.
pub type Records = Box<dyn Iterator<Item = io::Result<Record>> + Send>;

/// A log of batches.
pub trait Log: Send {
    /// Appends a batch (J1).
    fn append(&mut self, batch: &Batch, expected: Position) -> Append;

    /// The end of the log.
    fn end(&mut self) -> io::Result<Position>;

    /// The batches behind a position.
    fn tail(&mut self, from: Position) -> io::Result<Records>;

    /// Lets the log drop all before a position.
    fn trim(&mut self, before: Position) -> io::Result<()>;
}
