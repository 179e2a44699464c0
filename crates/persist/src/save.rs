//! A snapshot on its way to disk.
//!
//! ```text
//! header, AUX, functions ─► database ─► keys … ─► database … ─► finish: end and sum, fdatasync, rename, fsync of the directory
//!              all through one buffer, 256 KB at a time, into temp-<pid>-<n>.rdb
//! ```
//!
//! - V1: a file has its final name only when all of it is durable; that of SYNC is read once and removed, and
//!   is not synced. A failure or a drop before that removes the temporary file, and touches nothing else.
//! - V2: after a failed write or sync nothing more is written, and `finish` gives that failure.
//! - V3: large values pass through in pieces ([`serial::encode_into`]).

use crate::disk::{self, Disk, DiskFile, PIECE, RealDisk};
use keyspace::{Lsn, Mark};
use rdb::file::{self, Format};
use rdb::{Dialect, crc64};
use rustix::process::{Pid, test_kill_process};
use serial::{Failure, Out};
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use value::{Str, Value};

/// Bytes after which the file is synced on the way, so that the last sync is short.
const SYNC_EVERY: u64 = 32 << 20;

/// The first version of the format that holds the use of keys.
const VERSION_ACCESSES: u16 = 9;

/// The step of a save that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Create,
    Write,
    Sync,
    Rename,
    /// The new file has its name, and a power failure may take it away again.
    SyncDirectory,
}

/// The reason why a save failed. The file before is as it was, unless the step says otherwise.
#[derive(Debug)]
pub struct SaveError {
    pub step: Step,
    pub path: PathBuf,
    pub error: io::Error,
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.step {
            Step::Create => "cannot create",
            Step::Write => "cannot write",
            Step::Sync => "cannot sync",
            Step::Rename => "cannot rename to",
            Step::SyncDirectory => "the file is in place, but its directory cannot be synced:",
        };
        write!(f, "{what} {}: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for SaveError {}

/// The figures of a finished save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    pub bytes: u64,
    pub keys: u64,
    /// The checksum at the end.
    pub sum: u64,
}

/// The facts of a key beside its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The expiry, in milliseconds since 1970.
    pub expire_ms: Option<u64>,
    /// Seconds since its last use. `freq` is the frequency of its use.
    pub idle_s: Option<u64>,
    pub freq: Option<u8>,
}

/// A snapshot that replicas read while it is written. Its file has no name.
pub trait Spool: Send + Sync {
    /// The mark of its moment in the stream.
    fn mark(&self) -> Mark;

    /// The dialect, and the version; 0: the lowest that holds the data.
    fn format(&self) -> (Dialect, u16);

    /// Values of Evenkeel's own types: as `foreign-types`, 0 keeps them, 1 fails, 2 leaves them out.
    fn foreign(&self) -> i64;

    /// The file has begun, as of this LSN; `in_memory`: it is on no disk. Gives facts for its header. It
    /// may wait for the mark.
    ///
    /// Errors: the mark does not come.
    fn begun(&self, lsn: Lsn, file: File, in_memory: bool) -> Result<Vec<(&'static str, String)>, String>;

    /// So many bytes can be read.
    fn grown(&self, bytes: u64);

    /// The snapshot has ended: the bytes of the whole file, or why there is none.
    fn ended(&self, whole: Result<u64, &str>);
}

/// A file that is being written. See the module.
pub struct SaveFile {
    disk: Arc<dyn Disk>,
    file: Option<Box<dyn DiskFile>>,
    target: PathBuf,
    temporary: PathBuf,
    format: Format,
    buffer: Vec<u8>,
    sum: u64,
    written: u64,
    synced: u64,
    keys: u64,
    has_sum: bool,
    passes: bool,
    /// The first failure (V2).
    failed: Option<(Step, ErrorKind, String)>,
}

impl SaveFile {
    /// Begins a file that will have the name `target`, and writes its header. The directory must be there.
    ///
    /// Errors: no temporary file can be made beside it, or the version of the format is too old for the
    /// values.
    pub fn create(disk: Arc<dyn Disk>, target: &Path, format: Format) -> Result<SaveFile, SaveError> {
        if format.version < rdb::VERSION_VALUES {
            let error = io::Error::new(ErrorKind::InvalidInput, "this version of the format is too old");
            return Err(SaveError { step: Step::Create, path: target.into(), error });
        }
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = target.with_file_name(format!("temp-{}-{nth}.rdb", std::process::id()));
        let file = disk.create(&temporary).map_err(|error| SaveError {
            step: Step::Create,
            path: temporary.clone(),
            error,
        })?;
        Ok(SaveFile::begun(disk, file, target.into(), temporary, format))
    }

    /// Begins a file in memory, of so many bytes at most, for readers alone. Gives what reads it as well.
    ///
    /// Errors: the system has no memory for it.
    pub fn in_memory(format: Format, max_bytes: u64) -> Result<(SaveFile, File), SaveError> {
        let made = disk::in_memory(max_bytes);
        let (file, reader) =
            made.map_err(|error| SaveError { step: Step::Create, path: "a file in memory".into(), error })?;
        let mut out =
            SaveFile::begun(Arc::new(RealDisk), file, "a file in memory".into(), PathBuf::new(), format);
        out.passes = true;
        Ok((out, reader))
    }

    fn begun(
        disk: Arc<dyn Disk>,
        file: Box<dyn DiskFile>,
        target: PathBuf,
        temporary: PathBuf,
        format: Format,
    ) -> SaveFile {
        let mut buffer = Vec::with_capacity(PIECE + PIECE / 2);
        file::put_header(&mut buffer, format);
        SaveFile {
            disk,
            file: Some(file),
            target,
            temporary,
            format,
            buffer,
            sum: 0,
            written: 0,
            synced: 0,
            keys: 0,
            has_sum: true,
            passes: false,
            failed: None,
        }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes so far, those in the buffer included.
    pub fn size_bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Writes a fact about the file.
    pub fn aux(&mut self, name: &[u8], value: &[u8]) -> Result<(), SaveError> {
        self.part(|out| file::put_aux(out, name, value))
    }

    /// Writes the code of a library.
    ///
    /// Errors: also that the format has no libraries. Nothing is written then.
    pub fn function(&mut self, code: &[u8]) -> Result<(), SaveError> {
        if self.format.version < rdb::VERSION_FUNCTIONS {
            return Err(self.refused("this version of the format has no functions"));
        }
        self.part(|out| file::put_function(out, code))
    }

    /// Begins a database. It has about so many keys. Each database comes once.
    pub fn database(&mut self, db: u32, keys: u64, expires: u64) -> Result<(), SaveError> {
        self.part(|out| {
            file::put_select(out, db);
            file::put_resize(out, keys, expires);
        })
    }

    /// Goes back to a database that came before.
    pub fn select(&mut self, db: u32) -> Result<(), SaveError> {
        self.part(|out| file::put_select(out, db))
    }

    /// Leaves out the sum at the end, as Redis does with `rdbchecksum no`.
    pub fn leave_out_sum(&mut self) {
        self.has_sum = false;
    }

    /// Has [`finish`](Self::finish) sync nothing, for a file that is read once and removed. So nothing fails
    /// once the file has its name.
    pub fn forgo_power_loss(&mut self) {
        self.passes = true;
    }

    /// Takes the file's name away, and gives what reads it. It gets no other name, and is not synced.
    ///
    /// Errors: it cannot be opened.
    pub fn take_name(&mut self) -> Result<File, SaveError> {
        let file = File::open(&self.temporary);
        let file = file.and_then(|file| self.disk.remove(&self.temporary).map(|()| file));
        let file =
            file.map_err(|error| SaveError { step: Step::Create, path: self.temporary.clone(), error })?;
        (self.temporary, self.passes) = (PathBuf::new(), true);
        Ok(file)
    }

    /// Bytes that can be read from the file.
    pub fn written_bytes(&self) -> u64 {
        self.written
    }

    /// Writes a key whose value is a short text, as [`key`](Self::key) does.
    pub fn text(&mut self, key: &[u8], text: &[u8], kept: Kept) -> Result<(), SaveError> {
        self.key(key, &Value::Str(Str::from_slice(text)), kept)
    }

    /// Writes a key, which must not have been written before. All fields are written, also those that have
    /// expired.
    ///
    /// Cost: O(bytes). Memory: one buffer (V3).
    ///
    /// Errors: also that a compressed bitmap is too long, or that the format has no fields that expire. In
    /// the last case nothing is written, and the file goes on.
    pub fn key(&mut self, key: &[u8], value: &Value, kept: Kept) -> Result<(), SaveError> {
        if serial::has_dialects(value) && !self.format.has_field_times() {
            return Err(self.refused("this version of the format has no fields that expire"));
        }
        let has_accesses = self.format.version >= VERSION_ACCESSES;
        self.part(|out| {
            if let Some(ms) = kept.expire_ms {
                file::put_expiry(out, ms);
            }
            if let Some(idle_s) = kept.idle_s.filter(|_| has_accesses) {
                file::put_idle(out, idle_s);
            }
            if let Some(freq) = kept.freq.filter(|_| has_accesses) {
                file::put_freq(out, freq);
            }
        })?;
        let dialect = self.format.dialect;
        match serial::encode_into(self, dialect, value, Some(key), None) {
            Ok(_) => {}
            Err(Failure::Stopped(Stopped)) => return Err(self.failure()),
            Err(failure) => {
                let why = failure.to_string();
                self.failed.get_or_insert((Step::Write, ErrorKind::InvalidInput, why));
                return Err(self.failure());
            }
        }
        self.keys += 1;
        Ok(())
    }

    /// Writes so many whole keys that were encoded elsewhere.
    pub fn entries(&mut self, bytes: &[u8], keys: u64) -> Result<(), SaveError> {
        for piece in bytes.chunks(PIECE) {
            self.part(|out| out.extend_from_slice(piece))?;
        }
        self.keys += keys;
        Ok(())
    }

    /// Ends the file and gives it its name (V1). Cost: the file's bytes in memory must reach the disk.
    pub fn finish(mut self) -> Result<Saved, SaveError> {
        self.part(file::put_end)?;
        self.flush().map_err(|Stopped| self.failure())?;
        let sum = if self.has_sum { self.sum } else { 0 };
        self.buffer.extend_from_slice(&sum.to_le_bytes());
        let synced = self.flush().and_then(|()| if self.passes { Ok(()) } else { self.sync() });
        synced.map_err(|Stopped| self.failure())?;
        self.file = None;
        if self.temporary.as_os_str().is_empty() {
            return Ok(Saved { bytes: self.written, keys: self.keys, sum });
        }
        if let Err(error) = self.disk.rename(&self.temporary, &self.target) {
            self.discard();
            return Err(SaveError { step: Step::Rename, path: self.target.clone(), error });
        }
        self.temporary = PathBuf::new();
        let dir = self.target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !self.passes
            && let Err(error) = self.disk.sync_dir(dir)
        {
            return Err(SaveError { step: Step::SyncDirectory, path: self.target.clone(), error });
        }
        Ok(Saved { bytes: self.written, keys: self.keys, sum })
    }

    /// Appends a small part, and writes a full buffer.
    fn part(&mut self, put: impl FnOnce(&mut Vec<u8>)) -> Result<(), SaveError> {
        if self.failed.is_none() {
            put(&mut self.buffer);
        }
        self.work(0).map_err(|Stopped| self.failure())
    }

    fn refused(&self, why: &str) -> SaveError {
        let error = io::Error::new(ErrorKind::InvalidInput, why);
        SaveError { step: Step::Write, path: self.target.clone(), error }
    }

    /// The first failure.
    fn failure(&self) -> SaveError {
        let failed = self.failed.clone();
        let (step, kind, text) = failed.unwrap_or((Step::Write, ErrorKind::Other, "given up".to_owned()));
        SaveError { step, path: self.temporary.clone(), error: io::Error::new(kind, text) }
    }

    fn fails(&mut self, step: Step, error: &io::Error) -> Stopped {
        self.failed.get_or_insert((step, error.kind(), error.to_string()));
        self.buffer.clear();
        Stopped
    }

    /// Writes the buffer.
    fn flush(&mut self) -> Result<(), Stopped> {
        self.sum = crc64(self.sum, &self.buffer);
        let Some(file) = &mut self.file else { return Err(Stopped) };
        let mut rest = &self.buffer[..];
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => {
                    let error = ErrorKind::WriteZero.into();
                    return Err(self.fails(Step::Write, &error));
                }
                Ok(written) => rest = &rest[written.min(rest.len())..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fails(Step::Write, &error)),
            }
        }
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        if self.written - self.synced >= SYNC_EVERY && !self.passes {
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Stopped> {
        let Some(file) = &mut self.file else { return Err(Stopped) };
        let synced = file.sync_data();
        self.synced = self.written;
        synced.map_err(|error| self.fails(Step::Sync, &error))
    }

    /// Removes the temporary file, if there is one.
    fn discard(&mut self) {
        self.file = None;
        if self.temporary.as_os_str().is_empty() {
            return;
        }
        if let Err(error) = self.disk.remove(&self.temporary) {
            log::warn!("{} cannot be removed: {error}", self.temporary.display());
        }
        self.temporary = PathBuf::new();
    }
}

impl Drop for SaveFile {
    fn drop(&mut self) {
        self.discard();
    }
}

/// The save has failed; [`SaveFile::finish`] says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the save has failed")
    }
}

impl Out for SaveFile {
    type Stop = Stopped;

    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    fn work(&mut self, _: usize) -> Result<(), Stopped> {
        if self.failed.is_some() {
            self.buffer.clear();
            return Err(Stopped);
        }
        if self.buffer.len() >= PIECE { self.flush() } else { Ok(()) }
    }
}

/// Removes temporary files of processes that are gone, or that have this process's number, and returns how
/// many. It is meant for the start, before anything is saved.
///
/// Errors: the directory cannot be read. A file that cannot be removed is named in the log.
pub fn remove_leftovers(disk: &dyn Disk, dir: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for name in disk.names(dir)? {
        if !is_leftover(name.as_os_str()) {
            continue;
        }
        match disk.remove(&dir.join(&name)) {
            Ok(()) => removed += 1,
            Err(error) => log::warn!("{} cannot be removed: {error}", dir.join(&name).display()),
        }
    }
    Ok(removed)
}

/// Whether a name is `temp-<pid>-<n>.rdb` of a process that does not run.
fn is_leftover(name: &OsStr) -> bool {
    let words = || {
        let (pid, nth) = name.to_str()?.strip_prefix("temp-")?.strip_suffix(".rdb")?.split_once('-')?;
        nth.parse::<u64>().ok()?;
        pid.parse::<i32>().ok()
    };
    let Some(pid) = words().and_then(Pid::from_raw) else { return false };
    let runs = || test_kill_process(pid) != Err(rustix::io::Errno::SRCH);
    pid.as_raw_nonzero().get().unsigned_abs() == std::process::id() || !runs()
}
