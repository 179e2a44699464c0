//! The log in the directory, as a [`Log`].
//!
//! - H1: a written batch counts when it is durable. With [`LocalLog::set_durable`] that is so when `append`
//!   returns.
//! - H2: a file whose sync failed is never written again. All batches since its last good sync are kept, and
//!   go to a new file. The old one is cut back to its durable part. The new file names the LSN behind which
//!   it goes on (incr E3).
//! - H3: if more was unsynced than may be kept, the new file begins behind a gap. [`LocalLog::has_gap`] says
//!   so until a rewrite has made a new base behind it.
//! - H4: before a file is followed by another it is durable (files F2).
//! - H5: effects that were lost before they came here are a gap, too. The first file behind it is that of the
//!   next mark.

use super::incr::{IncrFile, last_select};
use super::manifest::{Entry, FileKind, Manifest};
use super::{Files, Lost, Place};
use crate::disk::{Disk, DiskFile};
use crate::load::aof::scan::{Scan, Unit};
use crate::log::{Append, Batch, Log, Position, Record, Records};
use crate::stream::Mark;
use keyspace::Lsn;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stdx::points::{self, Point};

/// A place in the stream where the log changed its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotated {
    pub(crate) mark: Mark,
    /// The first file behind it.
    pub(crate) seq: u64,
}

/// The directory, shared with the threads that rewrite and remove. Its lock may be held as long as the disk
/// takes.
pub(crate) struct Directory {
    pub(crate) files: Files,
    /// A file that was made for the next mark.
    pub(crate) prepared: Option<(u64, Arc<dyn DiskFile>)>,
    pub(crate) rotated: Option<Rotated>,
}

/// Bytes of the base and of each file of commands.
#[derive(Default)]
pub(crate) struct Sizes {
    pub(crate) base: u64,
    pub(crate) incrs: BTreeMap<u64, u64>,
}

impl Sizes {
    pub(crate) fn all(&self) -> u64 {
        self.base + self.incrs.values().sum::<u64>()
    }
}

impl Directory {
    /// The file that comes next.
    fn next_file(&mut self, drops: &[u64]) -> io::Result<(u64, Arc<dyn DiskFile>)> {
        match self.prepared.take() {
            Some(prepared) => Ok(prepared),
            None => self.files.add_incr(drops),
        }
    }
}

/// A batch that is not durable yet.
struct Unsynced {
    batch: Batch,
    /// The database that is selected before it.
    db: Option<u64>,
    end: u64,
}

/// The log in the directory. See the module.
pub(crate) struct LocalLog {
    directory: Arc<Mutex<Directory>>,
    sizes: Arc<Mutex<Sizes>>,
    place: Place,
    pub(crate) incr: IncrFile,
    epoch: u64,
    /// The last LSN that was appended, and the last that is durable.
    last: Lsn,
    durable: Lsn,
    /// The number of the last batch.
    number: Option<u64>,
    /// The database that is selected behind the last batch.
    db: Option<u64>,
    unsynced: VecDeque<Unsynced>,
    unsynced_bytes: u64,
    unsynced_max: u64,
    /// More is unsynced than was kept.
    is_beyond: bool,
    /// The first file behind a gap.
    gap: Option<u64>,
    /// Effects were lost, and no mark has come since (H5).
    is_torn: bool,
    /// The sync of the file failed (H2).
    is_broken: bool,
    /// The file has failed before anything in it counted.
    is_void: bool,
    /// Files with nothing that counts.
    drops: Vec<u64>,
    is_durable: bool,
    pads: bool,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A log in a directory that has none, without threads. An append is durable when it is done.
///
/// Errors: the file or the manifest cannot be made.
pub fn local_log(disk: Arc<dyn Disk>, place: Place, epoch: u64) -> io::Result<impl Log> {
    disk.make_dir(&place.dir)?;
    let files = Files::new(disk, place, Manifest::default());
    let directory = Arc::new(Mutex::new(Directory { files, prepared: None, rotated: None }));
    let mut log = LocalLog::begin((directory, Arc::default()), epoch, 0, &[], 0)?;
    log.set_durable(true);
    Ok(log)
}

impl LocalLog {
    /// Goes on behind an LSN, in a file of its own. The files that are dropped have nothing.
    pub(crate) fn begin(
        (directory, sizes): (Arc<Mutex<Directory>>, Arc<Mutex<Sizes>>),
        epoch: u64,
        last: Lsn,
        drops: &[u64],
        unsynced_max: u64,
    ) -> io::Result<LocalLog> {
        let (seq, file, place) = {
            let mut directory = locked(&directory);
            let (seq, file) = directory.next_file(drops)?;
            (seq, file, directory.files.place.clone())
        };
        Ok(LocalLog {
            directory,
            sizes,
            place,
            incr: IncrFile::new(file, seq, epoch, last),
            epoch,
            last,
            durable: last,
            number: None,
            db: None,
            unsynced: VecDeque::new(),
            unsynced_bytes: 0,
            unsynced_max,
            is_beyond: false,
            gap: None,
            is_torn: false,
            is_broken: false,
            is_void: false,
            drops: Vec::new(),
            is_durable: false,
            pads: false,
        })
    }

    /// Whether an append ends with a sync (H1).
    pub(crate) fn set_durable(&mut self, is_durable: bool) {
        self.is_durable = is_durable;
    }

    /// Sets whether batches end where filler lines begin. Without it the filler is cut off.
    ///
    /// Errors: the filler cannot be cut off. The log goes on all the same.
    pub(crate) fn set_pads(&mut self, pads: bool) -> io::Result<()> {
        let ends = self.pads && !pads;
        self.pads = pads;
        if ends { self.incr.cut() } else { Ok(()) }
    }

    pub(crate) fn pads(&self) -> bool {
        self.pads
    }

    pub(crate) fn set_unsynced_max(&mut self, bytes: u64) {
        self.unsynced_max = bytes;
    }

    pub(crate) fn last(&self) -> Lsn {
        self.last
    }

    pub(crate) fn has_gap(&self) -> bool {
        self.gap.is_some() || self.is_torn
    }

    /// Notes that effects behind the last batch are lost (H5).
    pub(crate) fn tears(&mut self) {
        self.is_torn = true;
    }

    /// Trusts the file no more: something that wrote it has panicked. The next sync goes on in another (H2).
    pub(crate) fn doubts(&mut self) {
        log::error!("{} is given up", self.path().display());
        self.is_broken = true;
    }

    /// Whether the file is not trusted, and no other was begun.
    pub(crate) fn is_doubted(&self) -> bool {
        self.is_broken
    }

    /// Notes that a rewrite has made a base of all before a file.
    pub(crate) fn based_before(&mut self, seq: u64) {
        self.gap = self.gap.filter(|gap| *gap > seq);
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.incr.synced == self.incr.end && !self.is_broken
    }

    /// The last LSN that is durable.
    pub(crate) fn durable(&self) -> Lsn {
        self.durable
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.place.path(&self.place.incr_name(self.incr.seq))
    }

    /// Whether the log on the disk is still this one (files F4). `waits`: also while another thread writes
    /// there.
    pub(crate) fn check(&self, waits: bool) -> Result<(), Lost> {
        let directory = match self.directory.try_lock() {
            Ok(directory) => directory,
            Err(_) if !waits => return Ok(()),
            Err(_) => locked(&self.directory),
        };
        directory.files.check()?;
        let name = self.place.incr_name(self.incr.seq);
        let found = directory.files.about(&name)?;
        let own = self.incr.file.about().map_err(Lost::Unknown)?;
        match found.id == own.id && own.len >= self.incr.end {
            true => Ok(()),
            false => Err(Lost::Replaced(String::from_utf8_lossy(&name).into_owned())),
        }
    }

    /// Makes all appended batches durable. If that fails, a new file does it (H2).
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if !self.is_broken && self.incr.end > self.incr.synced {
            if let Err(error) = self.incr.sync() {
                self.fails(&error);
            } else {
                self.synced_to(self.incr.end);
            }
        }
        if self.is_broken { self.afresh() } else { Ok(()) }
    }

    /// Notes that another thread has synced a file up to an offset, or failed to.
    pub(crate) fn was_synced(&mut self, seq: u64, end: u64, synced: io::Result<()>) -> io::Result<()> {
        if seq != self.incr.seq {
            return Ok(());
        }
        match synced {
            Ok(()) => {
                self.synced_to(end);
                Ok(())
            }
            Err(error) => {
                self.fails(&error);
                self.afresh()
            }
        }
    }

    fn fails(&mut self, error: &io::Error) {
        log::error!("{} cannot be synced, and is given up: {error}", self.path().display());
        self.is_broken = true;
    }

    fn synced_to(&mut self, end: u64) {
        self.incr.synced = self.incr.synced.max(end);
        while self.unsynced.front().is_some_and(|first| first.end <= end) {
            if let Some(first) = self.unsynced.pop_front() {
                self.unsynced_bytes -= first.batch.size_bytes();
                self.durable = first.batch.last;
            }
        }
        if self.incr.synced == self.incr.end {
            (self.is_beyond, self.durable) = (false, self.last);
        }
    }

    /// Puts all batches since the last good sync into a new file (H2).
    pub(crate) fn afresh(&mut self) -> io::Result<()> {
        points::reach(Point::LogAfresh);
        if !self.is_beyond && !self.is_void {
            let has_durable = self.incr.has_durable();
            match self.incr.ahead.cut(&*self.incr.file, self.incr.synced) {
                Err(error) if has_durable => return Err(error),
                _ => {}
            }
            if !has_durable {
                self.drops.push(self.incr.seq);
            } else if let Err(error) = self.incr.file.sync_all() {
                log::warn!("a file of the log that was given up cannot be synced: {error}");
            }
        }
        let (seq, file) = locked(&self.directory).next_file(&self.drops)?;
        let from = if self.is_beyond { self.last } else { self.durable };
        if self.is_beyond {
            self.gap = Some(seq);
        }
        let mut incr = IncrFile::new(file, seq, self.epoch, from);
        self.note_size(self.incr.seq, self.incr.synced);
        let written = self.write_unsynced(&mut incr);
        self.incr = incr;
        if let Err(error) = written {
            self.drops.push(seq);
            (self.incr.synced, self.is_broken, self.is_void) = (0, true, true);
            return Err(error);
        }
        self.drops.clear();
        (self.is_broken, self.is_beyond, self.is_void) = (false, false, false);
        self.synced_to(self.incr.end);
        self.note_size(seq, self.incr.end);
        Ok(())
    }

    fn write_unsynced(&mut self, incr: &mut IncrFile) -> io::Result<()> {
        for unsynced in &mut self.unsynced {
            incr.write(&unsynced.batch, unsynced.db, self.pads)?;
            unsynced.end = incr.end;
        }
        if incr.end > incr.synced { incr.sync() } else { Ok(()) }
    }

    fn note_size(&self, seq: u64, bytes: u64) {
        locked(&self.sizes).incrs.insert(seq, bytes);
    }

    /// Goes on in another file behind a mark (H4).
    pub(crate) fn rotate(&mut self, lsn: Lsn, mark: Mark) -> io::Result<()> {
        points::reach(Point::LogRotate);
        self.sync()?;
        self.close_file();
        let drops = if self.incr.has_batches() { Vec::new() } else { vec![self.incr.seq] };
        let (seq, file) = {
            let mut directory = locked(&self.directory);
            let (seq, file) = directory.next_file(&drops)?;
            directory.rotated = Some(Rotated { mark, seq });
            (seq, file)
        };
        let reached = self.last;
        if std::mem::take(&mut self.is_torn) {
            // The next batch stands behind the mark, not behind the last batch (incr E3).
            (self.gap, self.last, self.durable) = (Some(seq), self.last.max(lsn), self.durable.max(lsn));
        }
        self.incr = IncrFile::new(file, seq, self.epoch, self.last).behind_gap(reached);
        Ok(())
    }

    /// Writes at the end of a durable file that it is durable, and cuts the filler off.
    pub(crate) fn close_file(&mut self) {
        let closed = self.incr.cut().and_then(|()| match self.incr.has_batches() {
            true => self.incr.write_end(),
            false => Ok(()),
        });
        if let Err(error) = closed {
            log::warn!("{} cannot be closed: {error}", self.path().display());
        }
        self.note_size(self.incr.seq, self.incr.end);
    }

    fn appended(&mut self, batch: &Batch) {
        let bytes = batch.size_bytes();
        if self.unsynced_bytes + bytes > self.unsynced_max && !self.is_durable {
            self.unsynced.clear();
            (self.unsynced_bytes, self.is_beyond) = (0, true);
        }
        if !self.is_beyond {
            self.unsynced_bytes += bytes;
            self.unsynced.push_back(Unsynced { batch: batch.clone(), db: self.db, end: self.incr.end });
        }
        let selected = batch.blocks.iter().rev().find_map(|block| last_select(&block.bytes));
        (self.db, self.last, self.number) = (selected.or(self.db), batch.last, Some(batch.number));
        self.note_size(self.incr.seq, self.incr.end);
    }

    fn position(&self) -> Position {
        Position { file: self.incr.seq, offset: self.incr.end }
    }

    fn append_batch(&mut self, batch: &Batch) -> io::Result<()> {
        if self.is_broken {
            self.afresh()?;
        }
        // A batch that is tried again may have gone to a new file with the others.
        if self.number != Some(batch.number) {
            if batch.first <= self.last {
                return Err(io::Error::other("the LSNs of the stream go back"));
            }
            points::reach(Point::LogWrite);
            self.incr.write(batch, self.db, self.pads)?;
            self.appended(batch);
            points::reach(Point::LogSync);
        }
        if self.is_durable { self.sync() } else { Ok(()) }
    }
}

impl Log for LocalLog {
    fn append(&mut self, batch: &Batch, expected: Position) -> Append {
        if expected != self.position() {
            return Append::Conflict;
        }
        match self.append_batch(batch) {
            Ok(()) => Append::Done(self.position()),
            Err(error) => Append::Failed(error),
        }
    }

    fn end(&mut self) -> io::Result<Position> {
        Ok(self.position())
    }

    fn tail(&mut self, from: Position) -> io::Result<Records> {
        let directory = locked(&self.directory);
        let later = directory.files.manifest.incrs().filter(|entry| entry.seq >= from.file);
        let files = later.map(|entry| (entry.seq, directory.files.place.path(&entry.name))).collect();
        Ok(Box::new(Tail { files, scan: None, from }))
    }

    fn trim(&mut self, before: Position) -> io::Result<()> {
        let mut directory = locked(&self.directory);
        let is_old = |entry: &Entry| entry.kind == FileKind::Incr && entry.seq < before.file;
        let mut manifest: Manifest = directory.files.manifest.clone();
        manifest.entries.iter_mut().filter(|entry| is_old(entry)).for_each(|entry| {
            entry.kind = FileKind::History;
        });
        directory.files.put(manifest)
    }
}

/// The batches that end behind a position, file by file.
struct Tail {
    files: VecDeque<(u64, PathBuf)>,
    scan: Option<(u64, Scan<'static>)>,
    from: Position,
}

impl Tail {
    fn read(&mut self) -> io::Result<Option<Record>> {
        loop {
            let Some((seq, scan)) = &mut self.scan else {
                let Some((seq, path)) = self.files.pop_front() else { return Ok(None) };
                let file = File::open(path)?;
                let len = file.metadata()?.len();
                self.scan = Some((seq, Scan::new(Box::new(file), len, 0)?));
                continue;
            };
            match scan.next()? {
                Unit::Whole { from, to, line: Some(line) } if line.bytes > 0 => {
                    let position = Position { file: *seq, offset: scan.at };
                    if position > self.from {
                        let bytes = scan.window.range(from, to)?.to_vec();
                        let (epoch, first, last) = (line.epoch, line.first, line.last);
                        return Ok(Some(Record { position, epoch, first, last, bytes }));
                    }
                }
                Unit::Whole { .. } => {}
                Unit::End | Unit::Torn { .. } => self.scan = None,
                Unit::Damaged { why, .. } => return Err(io::Error::new(ErrorKind::InvalidData, why)),
            }
        }
    }
}

impl Iterator for Tail {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<io::Result<Record>> {
        let read = self.read();
        if read.is_err() {
            self.files.clear();
            self.scan = None;
        }
        read.transpose()
    }
}
