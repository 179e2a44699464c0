//! A file into a keyspace, on all cores.
//!
//! ```text
//! caller: FileReader ─► pieces of 256 KB ─► queue ─► workers: decode ─► Install
//!                └─► blocks ─► a thread that sums them
//! ```
//!
//! - L1: at most [`QUEUED`] pieces a worker wait. They, the loaded data and one large value a worker are all
//!   the memory.
//! - L2: the reported error is the first in the file, whichever thread found it first.
//! - L3: with [`Damaged::KeepPrefix`] pieces are installed in their order, and nothing behind the damage is.
//! - L4: the checksum is known last. If only it is wrong, all keys have been installed by then.
//!
//! Cost: O(bytes), decoding spread over the workers.

pub(crate) mod aof;
mod aside;
mod facts;
mod install;
mod worker;

pub use aof::scan::ReadAt;
pub use aof::{Apply, CutOff, LoadedLog, LogError, LogOptions, LogProblem, load_log};
pub use aside::set_aside;
pub use facts::{Facts, facts};
pub use install::{Install, IntoKeyspace, Loaded, NotTaken};

use crate::disk::PIECE;
use rdb::crc64;
use rdb::file::{Damage, EntryHead, FileReader, Format, Input, LeftOut, Part, Problem};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, ScopedJoinHandle};
use worker::{Piece, Raw, Workers};

/// Largest number of pieces that wait for a worker.
const QUEUED: usize = 2;
/// Largest number of entries of a piece.
const PIECE_ENTRIES: usize = 4096;
/// Blocks that wait to be summed.
const BLOCKS: usize = 16;
/// Names of skipped keys that are kept.
const NAMES_MAX: usize = 1000;

/// The treatment of a damaged file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Damaged {
    /// An error. The caller must throw away all that was installed so far.
    #[default]
    Refuse,
    /// The keys before the damage are kept, and the rest is reported.
    KeepPrefix,
}

/// The treatment of sound values of kinds that are not supported, such as values of modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    #[default]
    Refuse,
    /// They are left out, and named.
    Skip,
}

/// How a file is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Threads that decode; 0 for as many as there are cores.
    pub workers: usize,
    pub damaged: Damaged,
    pub unknown: Unknown,
}

/// The progress of a load, for replies meanwhile.
#[derive(Debug, Default)]
pub struct Progress {
    pub read_bytes: AtomicU64,
    pub total_bytes: AtomicU64,
    pub keys: AtomicU64,
}

/// Keys that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    pub count: u64,
    /// Database, name and kind of the first thousand.
    pub names: Vec<(u64, Box<[u8]>, String)>,
}

impl Skipped {
    fn add(&mut self, db: u64, key: &[u8], what: String) {
        self.count += 1;
        if self.names.len() < NAMES_MAX {
            self.names.push((db, key.into(), what));
        }
    }
}

/// The outcome of a load.
#[derive(Debug)]
pub struct Report {
    pub format: Format,
    /// Keys given to the [`Install`].
    pub keys: u64,
    pub skipped: Skipped,
    /// Parts that were left out of keys that were loaded.
    pub left_out: LeftOut,
    /// Bytes of the file that were understood. Something else may follow: the log that a snapshot precedes.
    pub bytes: u64,
    /// Whether a checksum stood there and fitted.
    pub is_summed: bool,
    /// The damage, with [`Damaged::KeepPrefix`]: everything before [`Damage::from`] was installed, nothing
    /// behind it.
    pub damage: Option<Damage<io::Error>>,
}

impl Report {
    /// Bytes of a file of `total_bytes` that were not loaded because of damage.
    pub fn left_bytes(&self, total_bytes: u64) -> u64 {
        self.damage.as_ref().map_or(0, |damage| total_bytes.saturating_sub(damage.from))
    }
}

/// Loads a file.
///
/// Errors: as for [`load`], or the file cannot be opened.
pub fn load_file(
    path: &Path,
    options: Options,
    install: &dyn Install,
    progress: &Progress,
) -> Result<Report, Damage<io::Error>> {
    let input = |error| Damage { offset: 0, from: 0, db: None, key: None, what: Problem::Input(error) };
    let file = File::open(path).map_err(input)?;
    let total = file.metadata().map_err(input)?.len();
    progress.total_bytes.store(total, Ordering::Relaxed);
    load(file, options, install, progress)
}

/// Loads what a reader gives. The caller's thread reads; others decode. See the module for cost and memory.
///
/// Errors: the file has no known version, is damaged, or has values that are not supported; or `install`
/// refuses. Keys may have been installed by then.
pub fn load<R: Read + Send>(
    reader: R,
    options: Options,
    install: &dyn Install,
    progress: &Progress,
) -> Result<Report, Damage<io::Error>> {
    let workers = match options.workers {
        0 => thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    };
    let (blocks, to_sum) = sync_channel::<Vec<u8>>(BLOCKS);
    let mut file = FileReader::new(Source { reader, blocks }, true)?;
    let shared = Workers::new(workers * QUEUED, file.format(), options, install, progress);
    let (read, computed, bytes, left_out) = thread::scope(|scope| {
        let summing = scope.spawn(move || to_sum.into_iter().fold(0, |sum, block| crc64(sum, &block)));
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(|| shared.work())).collect();
        let mut reading = Reading { install, progress, shared: &shared, piece: Piece::default(), pieces: 0 };
        let read = reading.read(&mut file);
        shared.close();
        workers.into_iter().for_each(joined);
        let (bytes, left_out) = (file.offset(), file.left_out());
        // No more blocks come.
        drop(file);
        (read, joined(summing), bytes, left_out)
    });
    let read = read.and_then(|stored| match stored {
        Some(stored) if stored != computed => {
            let what = Problem::Sum { stored, computed };
            Err(Damage { offset: bytes, from: bytes, db: None, key: None, what })
        }
        stored => Ok(stored.is_some()),
    });
    shared.report(read, bytes).map(|report| Report { left_out, ..report })
}

/// The result of a thread. Its panic goes on here.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why))
}

/// The reader, whose bytes are sent to be summed as they are passed.
struct Source<R> {
    reader: R,
    blocks: SyncSender<Vec<u8>>,
}

impl<R: Read> Input for Source<R> {
    type Error = io::Error;

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.reader.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    fn passed(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            // The other end is there as long as this one is.
            let _ = self.blocks.send(bytes.to_vec());
        }
    }
}

/// The caller's part.
struct Reading<'l> {
    install: &'l dyn Install,
    progress: &'l Progress,
    shared: &'l Workers<'l>,
    piece: Piece,
    pieces: u64,
}

/// The next step after a part.
enum Next {
    Go,
    Take,
    End(Option<u64>),
}

impl Reading<'_> {
    /// Reads to the end or to the damage, and sends all whole entries before it. Returns the checksum at the
    /// end.
    fn read<R: Read>(&mut self, file: &mut FileReader<Source<R>>) -> Result<Option<u64>, Damage<io::Error>> {
        let read = loop {
            match self.part(file) {
                // A piece was just sent: the moment to look.
                Ok(None) if self.piece.entries.is_empty() && self.shared.has_failed() => break Ok(None),
                Ok(None) => {}
                Ok(Some(end)) => break Ok(end),
                Err(damage) => break Err(damage),
            }
        };
        self.send(file.offset());
        read
    }

    /// Reads one part. `Some` at the end.
    fn part<R: Read>(
        &mut self,
        file: &mut FileReader<Source<R>>,
    ) -> Result<Option<Option<u64>>, Damage<io::Error>> {
        let next = match file.next_part()? {
            Part::Aux { name, value } => {
                self.install.aux(name, value);
                Next::Go
            }
            Part::Select(db) if db >= self.install.databases() => {
                let why = format!("there is no database {db} here (databases {})", self.install.databases());
                return Err(refused(file.offset(), Some(db), why));
            }
            Part::Function(code) => match self.install.function(code) {
                Ok(()) => Next::Go,
                Err(why) => {
                    return Err(refused(file.offset(), None, format!("a library of functions: {why}")));
                }
            },
            Part::ModuleAux { name, version } => {
                let name = name.escape_ascii();
                log::warn!("data of the module {name} (version {version}) beside the keys is left out");
                Next::Go
            }
            Part::Select(_) | Part::Resize { .. } | Part::SlotInfo { .. } => Next::Go,
            Part::Entry(head) => {
                if head.object.len() > PIECE {
                    self.piece.add(&head, &[]);
                    Next::Take
                } else {
                    self.piece.add(&head, head.object);
                    Next::Go
                }
            }
            Part::End { sum } => Next::End(sum),
        };
        match next {
            Next::Go => {
                if self.piece.bytes.len() >= PIECE || self.piece.entries.len() >= PIECE_ENTRIES {
                    self.send(file.offset());
                }
            }
            Next::Take => {
                // A large object is not copied.
                self.piece.large = file.take_object();
                self.send(file.offset());
            }
            Next::End(sum) => return Ok(Some(sum)),
        }
        Ok(None)
    }

    /// Hands over the gathered entries.
    fn send(&mut self, offset: u64) {
        self.progress.read_bytes.store(offset, Ordering::Relaxed);
        if self.piece.entries.is_empty() {
            return;
        }
        let mut piece = std::mem::take(&mut self.piece);
        piece.number = self.pieces;
        self.pieces += 1;
        self.shared.send(piece);
    }
}

fn refused(offset: u64, db: Option<u64>, why: String) -> Damage<io::Error> {
    Damage { offset, from: offset, db, key: None, what: Problem::Refused(why) }
}

impl Piece {
    /// Adds an entry. An empty object comes apart.
    fn add(&mut self, head: &EntryHead<'_>, object: &[u8]) {
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(head.key);
        let object_at = self.bytes.len();
        self.bytes.extend_from_slice(object);
        self.entries.push(Raw {
            db: head.db,
            key: key_at..object_at,
            object: object_at..self.bytes.len(),
            expire_ms: head.expire_ms,
            idle_s: head.idle_s,
            freq: head.freq,
            from: head.from,
        });
    }
}
