//! A log into a server: the base, then the files of commands in their order.
//!
//! - U1: commands are applied in whole units only: a batch whose checksum fits, else a command or a whole
//!   MULTI … EXEC.
//! - U2: only the last file that has anything may end within a unit. It is cut there, with
//!   [`LogOptions::truncated`].
//! - U3: a batch whose LSN was reached before, in the same epoch or a later one, is not applied again, but
//!   for its SELECTs.
//! - U5: a file behind a gap (incr E7) that the base does not fill is left out, with all behind it. Nothing
//!   in them was told to be durable. With [`LogOptions::truncated`] they are kept beside the log.
//! - U4: damage before that is an error with the file and the offset, and nothing is changed on the disk.
//!
//! Cost: O(bytes). Memory: a window of 256 KB, or the longest command, and what [`load()`](super::load())
//! takes for a base.

pub(crate) mod scan;

use super::{Damaged, Install, Loaded, NotTaken, Options, Progress, Report, load, set_aside};
use crate::disk::Disk;
use crate::files::Place;
use crate::files::base::{self, Begins};
use crate::files::incr::parse_place;
use crate::files::manifest::{Entry, FileKind, Manifest, ManifestError};
use crate::stream::HistoryPlace;
use keyspace::Lsn;
use rdb::file::Damage;
use scan::{CommandKind, Scan, Token, Unit};
use std::fmt;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Takes the commands of a log, in their order. MULTI and EXEC are not among them.
pub trait Apply {
    /// Runs a command. SELECT is one of them; a file begins with database 0.
    ///
    /// Errors: the command cannot be run, and the load fails.
    fn apply(&mut self, args: &[&[u8]]) -> Result<(), String>;

    /// Begins a group: the commands up to its end take effect together. A command without a group stands
    /// alone.
    fn group_begin(&mut self) {}

    /// Errors: as `apply`.
    fn group_end(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Begins a file: database 0 is selected.
    fn file_begin(&mut self) {}
}

/// How a log is loaded.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    pub base: Options,
    /// `aof-load-truncated`: a torn end is cut off.
    pub truncated: bool,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { base: Options::default(), truncated: true }
    }
}

/// The reason why a log cannot be loaded.
#[derive(Debug)]
pub enum LogProblem {
    Io(io::Error),
    Manifest(ManifestError),
    /// The directory has files of a log, and no manifest that names them.
    NoManifest,
    Base(Damage<io::Error>),
    Damaged(&'static str),
    /// The file ends within a unit, and that may not be cut off.
    Torn,
    /// Effects before the file are in no file, and it may not be left out.
    BehindGap,
    /// A command was not taken.
    Refused(String),
}

/// The reason why a log cannot be loaded, and the place.
#[derive(Debug)]
pub struct LogError {
    pub file: PathBuf,
    pub offset: u64,
    pub what: LogProblem,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        match &self.what {
            LogProblem::Io(error) => write!(f, ": {error}"),
            LogProblem::Manifest(error) => write!(f, ": {error}"),
            LogProblem::NoManifest => {
                write!(f, ": the files of the log are there, and their manifest is not")
            }
            LogProblem::Base(damage) => write!(f, ": {damage}"),
            LogProblem::Damaged(why) => write!(f, ", offset {}: {why}", self.offset),
            LogProblem::BehindGap => {
                write!(
                    f,
                    ": an internal error lost writes before this file (aof-load-truncated yes leaves it out)"
                )
            }
            LogProblem::Torn => write!(f, ", offset {}: the file ends within a command", self.offset),
            LogProblem::Refused(why) => write!(f, ", offset {}: {why}", self.offset),
        }
    }
}

impl std::error::Error for LogError {}

/// A torn end that was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOff {
    pub file: PathBuf,
    /// The new end of the file.
    pub from: u64,
    pub bytes: u64,
}

/// The outcome of a load. [`crate::Writer::open`] goes on from it.
#[derive(Debug, Default)]
pub struct LoadedLog {
    pub manifest: Manifest,
    /// The last known LSN and its epoch. 0 if no file names one.
    pub lsn: Lsn,
    pub epoch: u64,
    pub commands: u64,
    /// Batches that were there twice.
    pub repeated: u64,
    /// Bytes of the base, and of the files of commands.
    pub base_bytes: u64,
    pub incr_bytes: u64,
    /// Torn ends. More than one only if the log was being mended when it ended.
    pub cut: Vec<CutOff>,
    /// Files behind a gap, which were left out (U5).
    pub left_out: Vec<PathBuf>,
    /// A file that another server appended to.
    pub is_foreign: bool,
    /// The report of a base that is an RDB file.
    pub base: Option<Report>,
    /// The place in the replicas' history that all of it is (incr E8).
    pub place: Option<HistoryPlace>,
    /// Numbers of files of commands that have none.
    pub(crate) empty: Vec<u64>,
}

/// Loads the log of a directory. `None`: there is none.
///
/// A single file from before Redis 7, in the directory above, becomes the base first. Files are changed only
/// at their ends (U2), and only after everything was applied.
///
/// Errors: see [`LogProblem`]. Keys may have been installed and commands applied by then.
pub fn load_log(
    disk: &dyn Disk,
    place: &Place,
    options: LogOptions,
    install: &dyn Install,
    apply: &mut dyn Apply,
    progress: &Progress,
) -> Result<Option<LoadedLog>, LogError> {
    let Some(manifest) = read_manifest(disk, place)? else { return Ok(None) };
    let mut files = Vec::new();
    for entry in manifest.entries.iter().filter(|entry| entry.kind != FileKind::History) {
        files.push(LogFile::open(place, entry)?);
    }
    files.sort_by_key(|file| file.kind != FileKind::Base);
    progress.total_bytes.store(files.iter().map(|file| file.len).sum(), Ordering::Relaxed);
    let mut loading = Loading {
        options,
        apply,
        progress,
        found: LoadedLog { manifest, ..LoadedLog::default() },
        last: (0, 0),
        passed: 0,
        place: None,
    };
    for index in 0..files.len() {
        if loading.is_behind_gap(&files[index])? {
            loading.leave_out(&files[index..])?;
            break;
        }
        loading.file(&files, index, install)?;
    }
    for path in &loading.found.left_out {
        let kept = set_aside(disk, path, 0).map_err(|error| LogError {
            file: path.clone(),
            offset: 0,
            what: LogProblem::Io(error),
        })?;
        log::error!(
            "{}: an internal error lost writes before this file; it is kept in {}",
            path.display(),
            kept.display()
        );
    }
    for file in files.iter().filter(|file| file.ends_at.get() < file.len) {
        let cut = cut_off(disk, &file.path, file.ends_at.get());
        cut.map_err(|error| file.error(file.ends_at.get(), LogProblem::Io(error)))?;
    }
    let (mut found, place) = (loading.found, loading.place);
    (found.epoch, found.lsn) = loading.last;
    let is_all = !found.is_foreign && found.left_out.is_empty();
    found.place = place.filter(|(lsn, _)| *lsn == found.lsn && is_all).map(|(_, place)| place);
    Ok(Some(found))
}

pub(crate) fn cut_off(disk: &dyn Disk, path: &Path, len: u64) -> io::Result<()> {
    let file = disk.open(path)?;
    file.truncate(len)?;
    file.sync_all()
}

/// Reads the manifest. An old single file is made the base of a new one.
pub(crate) fn read_manifest(disk: &dyn Disk, place: &Place) -> Result<Option<Manifest>, LogError> {
    let path = place.manifest();
    let error = |what| LogError { file: path.clone(), offset: 0, what };
    let text = match base::read_small(&path) {
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => None,
        text => Some(text.map_err(|problem| error(LogProblem::Io(problem)))?),
    };
    let manifest = match text {
        Some(text) => Some(Manifest::parse(&text).map_err(|problem| error(LogProblem::Manifest(problem)))?),
        None => None,
    };
    let upgraded = base::upgrade(disk, place, manifest).map_err(|problem| error(LogProblem::Io(problem)))?;
    if upgraded.is_none() && base::has_files(disk, place) {
        return Err(error(LogProblem::NoManifest));
    }
    Ok(upgraded)
}

/// A file of the log that is open.
pub(crate) struct LogFile {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) len: u64,
    pub(crate) kind: FileKind,
    pub(crate) seq: u64,
    /// The end of the part that counts.
    pub(crate) ends_at: std::cell::Cell<u64>,
}

impl LogFile {
    pub(crate) fn open(place: &Place, entry: &Entry) -> Result<LogFile, LogError> {
        let path = place.path(&entry.name);
        let opened = base::open_plain(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        match opened {
            Ok((len, file)) => {
                let (kind, seq, ends_at) = (entry.kind, entry.seq, len.into());
                Ok(LogFile { path, file, len, kind, seq, ends_at })
            }
            Err(error) => Err(LogError { file: path, offset: 0, what: LogProblem::Io(error) }),
        }
    }

    fn error(&self, offset: u64, what: LogProblem) -> LogError {
        LogError { file: self.path.clone(), offset, what }
    }

    fn io<T>(&self, offset: u64, result: io::Result<T>) -> Result<T, LogError> {
        result.map_err(|error| self.error(offset, LogProblem::Io(error)))
    }
}

/// The LSN behind which the next file with a head goes on. `None`: no later file has anything whole.
pub(crate) fn goes_on_behind(later: &[LogFile]) -> io::Result<Option<Option<(u64, Lsn)>>> {
    for file in later {
        let mut scan = Scan::new(Box::new(&file.file), file.len, 0)?;
        if scan.head.is_some_and(|head| head.is_behind_gap()) {
            // U5: it is left out, and so is the rest.
            return Ok(None);
        }
        let head = scan.head.map(|head| (head.epoch, head.last));
        match scan.next()? {
            Unit::End | Unit::Torn { from: 0 } => {}
            Unit::Torn { .. } if head.is_some() => {}
            _ => return Ok(Some(head)),
        }
    }
    Ok(None)
}

struct Loading<'l> {
    options: LogOptions,
    apply: &'l mut dyn Apply,
    progress: &'l Progress,
    found: LoadedLog,
    /// The last epoch and LSN (U3).
    last: (u64, Lsn),
    /// Bytes of the files before.
    passed: u64,
    /// The last place that a batch named, and its LSN.
    place: Option<(Lsn, HistoryPlace)>,
}

impl Loading<'_> {
    /// Whether effects before a file are neither in earlier files nor in the base (U5).
    fn is_behind_gap(&self, file: &LogFile) -> Result<bool, LogError> {
        if file.kind == FileKind::Base {
            return Ok(false);
        }
        let scan = file.io(0, Scan::new(Box::new(&file.file), file.len, 0))?;
        Ok(scan.head.is_some_and(|head| head.is_behind_gap() && self.last < (head.epoch, head.last)))
    }

    /// Leaves files out, if that may be. They are cut, once they are kept beside the log.
    fn leave_out(&mut self, files: &[LogFile]) -> Result<(), LogError> {
        for file in files {
            if !self.options.truncated {
                return Err(file.error(0, LogProblem::BehindGap));
            }
            file.ends_at.set(0);
            self.found.empty.push(file.seq);
            self.found.left_out.extend((file.len > 0).then(|| file.path.clone()));
        }
        Ok(())
    }

    fn file(&mut self, files: &[LogFile], index: usize, install: &dyn Install) -> Result<(), LogError> {
        let file = &files[index];
        self.apply.file_begin();
        let from = match file.kind {
            FileKind::Base => self.base(file, install)?,
            _ => 0,
        };
        let mut scan = file.io(0, Scan::new(Box::new(&file.file), file.len, from))?;
        let mut any = false;
        loop {
            let at = scan.at;
            match file.io(at, scan.next())? {
                Unit::Whole { from, to, line } => {
                    any |= from < to;
                    let repeats =
                        line.is_some_and(|line| (line.epoch, line.last) <= self.last && line.bytes > 0);
                    self.found.repeated += u64::from(repeats);
                    self.unit(file, &mut scan, (from, to), (repeats, line.is_some()))?;
                    if let Some(line) = line.filter(|_| !repeats) {
                        self.last = self.last.max((line.epoch, line.last));
                    }
                }
                Unit::End => break,
                Unit::Torn { from } => {
                    self.torn(file, &files[index + 1..], from)?;
                    break;
                }
                Unit::Damaged { offset, why } => {
                    return Err(file.error(offset, LogProblem::Damaged(why)));
                }
            }
            self.progress.read_bytes.store(self.passed + scan.at, Ordering::Relaxed);
        }
        self.passed += file.len;
        self.ends(file, &scan, any);
        Ok(())
    }

    fn ends(&mut self, file: &LogFile, scan: &Scan<'_>, any: bool) {
        self.found.is_foreign |= scan.foreign_from.is_some();
        let bytes = file.ends_at.get().min(scan.at);
        match file.kind {
            FileKind::Base => self.found.base_bytes = file.ends_at.get(),
            _ => {
                file.ends_at.set(bytes);
                self.found.incr_bytes += bytes;
            }
        }
        if !any && file.kind == FileKind::Incr {
            self.found.empty.push(file.seq);
        }
        if let Some(head) = scan.head {
            self.last = self.last.max((head.epoch, head.last));
        }
    }

    /// Loads a base that is an RDB file, or begins as one. Returns the offset at which commands begin.
    fn base(&mut self, file: &LogFile, install: &dyn Install) -> Result<u64, LogError> {
        if file.io(0, base::begins(&file.file))? == Begins::Commands {
            return Ok(0);
        }
        let facts = Facts { inner: install, lsn: AtomicU64::new(0), epoch: AtomicU64::new(0) };
        let mut input = &file.file;
        file.io(0, input.seek(SeekFrom::Start(0)))?;
        let loaded = load(input, self.options.base, &facts, self.progress);
        let report = loaded.map_err(|damage| file.error(damage.offset, LogProblem::Base(damage)))?;
        let epoch = facts.epoch.into_inner();
        self.last = (epoch, facts.lsn.into_inner());
        let kept_prefix = self.options.base.damaged == Damaged::KeepPrefix && report.damage.is_some();
        let commands_from = if kept_prefix { file.len } else { report.bytes };
        self.found.base = Some(report);
        Ok(commands_from)
    }

    /// Applies the commands of a unit (U1). A repeated unit only selects (U3).
    fn unit(
        &mut self,
        file: &LogFile,
        scan: &mut Scan<'_>,
        (from, to): (u64, u64),
        (repeats, is_batch): (bool, bool),
    ) -> Result<(), LogError> {
        let mut at = from;
        while at < to {
            let token = file.io(at, scan.window.token(at))?;
            let taken = match token {
                Token::Note { end } => {
                    let text = file.io(at, scan.window.range(at, end))?;
                    self.place = parse_place(text).filter(|_| is_batch).or(self.place.take());
                    at = end;
                    continue;
                }
                Token::Command { kind: CommandKind::Multi, .. } => {
                    self.apply.group_begin();
                    Ok(())
                }
                Token::Command { kind: CommandKind::Exec, .. } => self.apply.group_end(),
                Token::Command { kind, end } => {
                    if repeats && kind != CommandKind::Select {
                        at = end;
                        continue;
                    }
                    self.found.commands += 1;
                    let args = file.io(at, scan.window.words(at, end))?;
                    self.apply.apply(&args)
                }
                // The unit was whole when the scan passed it.
                Token::End | Token::Torn | Token::Bad(_) => {
                    Err("the file changes while it is read".to_owned())
                }
            };
            taken.map_err(|why| file.error(at, LogProblem::Refused(why)))?;
            if let Token::Command { end, .. } = token {
                at = end;
            }
        }
        Ok(())
    }

    /// Handles a file that is torn at an offset: the rest is void, or it is an error (U2).
    fn torn(&mut self, file: &LogFile, later: &[LogFile], from: u64) -> Result<(), LogError> {
        let next = file.io(from, goes_on_behind(later))?;
        let is_void = match next {
            None => self.options.truncated,
            // Files E3: all that is missing here comes in that file.
            Some(Some((epoch, lsn))) => (epoch, lsn) <= self.last,
            Some(None) => false,
        };
        if !is_void {
            return Err(file.error(from, LogProblem::Torn));
        }
        let bytes = file.len - from;
        log::warn!(
            "{}: {bytes} bytes of a write that was not finished are cut off at {from}",
            file.path.display()
        );
        self.found.cut.push(CutOff { file: file.path.clone(), from, bytes });
        file.ends_at.set(from);
        Ok(())
    }
}

/// Notes the facts of the log in a base.
struct Facts<'i> {
    inner: &'i dyn Install,
    lsn: AtomicU64,
    epoch: AtomicU64,
}

impl Install for Facts<'_> {
    fn databases(&self) -> u64 {
        self.inner.databases()
    }

    fn aux(&self, name: &[u8], value: &[u8]) {
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        match (name, number) {
            (b"evenkeel-lsn", Some(lsn)) => self.lsn.store(lsn, Ordering::Relaxed),
            (b"evenkeel-epoch", Some(epoch)) => self.epoch.store(epoch, Ordering::Relaxed),
            _ => {}
        }
        self.inner.aux(name, value);
    }

    fn function(&self, code: &[u8]) -> Result<(), String> {
        self.inner.function(code)
    }

    fn install(&self, batch: &mut Vec<Loaded>) -> Result<(), NotTaken> {
        self.inner.install(batch)
    }
}
