//! A report of a log's directory, and the repair of a torn end. Nothing is loaded.
//!
//! Cost: O(bytes). Memory: a window per file, and that of [`crate::describe()`] for a base.

use super::Place;
use super::base::{self, Begins};
use super::manifest::{FileKind, Manifest};
use crate::describe::{Description, describe};
use crate::disk::Disk;
use crate::load::aof::scan::{CommandKind, ReadAt, Scan, Token, Unit};
use crate::load::aof::{CutOff, LogError, LogFile, LogProblem, cut_off, goes_on_behind};
use std::fmt;
use std::io;

const BEHIND_GAP: &str = "an internal error lost writes before this file; a start leaves it out";

/// The contents of a file of commands, or of a base.
#[derive(Debug, Default)]
pub struct LogFileDescription {
    pub name: String,
    pub kind: Option<FileKind>,
    pub bytes: u64,
    /// A base that is an RDB file, or begins as one.
    pub rdb: Option<Description>,
    /// Batches with checksums, all of which fit.
    pub batches: u64,
    pub commands: u64,
    pub transactions: u64,
    /// LSNs of the first and the last batch, and the epoch of the file.
    pub first_lsn: Option<u64>,
    pub last_lsn: Option<u64>,
    pub epoch: Option<u64>,
    /// The end of the whole commands. Behind it is filler, or a torn rest.
    pub ends_at: u64,
    pub is_torn: bool,
    /// Effects before the file were lost (incr E7).
    behind_gap: bool,
    /// The offset from which on another server appended.
    pub foreign_from: Option<u64>,
    pub damage: Option<(u64, &'static str)>,
}

/// The contents of a log's directory.
#[derive(Debug)]
pub struct LogDescription {
    pub manifest: Manifest,
    pub files: Vec<LogFileDescription>,
    /// The reason why it cannot be loaded, as far as this can be seen without running a command.
    pub problem: Option<LogError>,
}

impl LogDescription {
    /// Whether a server starts from it. A torn end is cut off by its start.
    pub fn is_sound(&self) -> bool {
        self.problem.is_none() && self.files.iter().all(|file| !file.is_damaged())
    }

    pub fn is_torn(&self) -> bool {
        self.files.iter().any(|file| file.is_torn)
    }
}

impl LogFileDescription {
    fn is_damaged(&self) -> bool {
        self.damage.is_some() || self.rdb.as_ref().is_some_and(|rdb| rdb.damage.is_some())
    }
}

/// Reads a file of commands. Damage is in the description. Cost: O(bytes). Errors: the file cannot be read.
pub fn check_file(file: &dyn ReadAt, len: u64, from: u64) -> io::Result<LogFileDescription> {
    let mut about = LogFileDescription { bytes: len, ..LogFileDescription::default() };
    let mut scan = Scan::new(Box::new(file), len, from)?;
    about.epoch = scan.head.map(|head| head.epoch);
    about.behind_gap = scan.head.is_some_and(|head| head.is_behind_gap());
    loop {
        match scan.next()? {
            Unit::Whole { from, to, line } => {
                about.count(&mut scan, from, to)?;
                if let Some(line) = line.filter(|line| line.bytes > 0) {
                    about.batches += 1;
                    about.first_lsn.get_or_insert(line.first);
                    about.last_lsn = Some(line.last);
                }
            }
            Unit::End => break,
            Unit::Torn { .. } => {
                about.is_torn = true;
                break;
            }
            Unit::Damaged { offset, why } => {
                about.damage = Some((offset, why));
                break;
            }
        }
    }
    (about.ends_at, about.foreign_from) = (scan.at, scan.foreign_from);
    Ok(about)
}

impl LogFileDescription {
    fn count(&mut self, scan: &mut Scan<'_>, from: u64, to: u64) -> io::Result<()> {
        let mut at = from;
        while at < to {
            at = match scan.window.token(at)? {
                Token::Note { end } => end,
                Token::Command { end, kind } => {
                    match kind {
                        CommandKind::Multi => self.transactions += 1,
                        CommandKind::Exec => {}
                        CommandKind::Select | CommandKind::Other => self.commands += 1,
                    }
                    end
                }
                _ => to,
            };
        }
        Ok(())
    }
}

/// Describes a directory. `None`: there is no manifest.
///
/// Errors: the manifest cannot be read, or is refused.
pub fn describe_log(place: &Place, now_ms: u64) -> Result<Option<LogDescription>, LogError> {
    let path = place.manifest();
    let error = |what| LogError { file: path.clone(), offset: 0, what };
    let text = match base::read_small(&path) {
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|problem| error(LogProblem::Io(problem)))?,
    };
    let manifest = Manifest::parse(&text).map_err(|problem| error(LogProblem::Manifest(problem)))?;
    let mut about = LogDescription { manifest, files: Vec::new(), problem: None };
    let entries = about.manifest.entries.iter().filter(|entry| entry.kind != FileKind::History);
    let mut files = Vec::new();
    for entry in entries {
        match LogFile::open(place, entry) {
            Ok(file) => files.push(file),
            Err(problem) => about.problem = Some(problem),
        }
    }
    for file in &files {
        let described = describe_file(file, now_ms);
        about.files.push(described.map_err(|problem| error(LogProblem::Io(problem)))?);
    }
    // A base that fills the gap has no files of commands between itself and this one.
    let mut is_first = true;
    for file in about.files.iter_mut().filter(|file| file.kind == Some(FileKind::Incr)) {
        if file.behind_gap && !is_first {
            file.damage = Some((0, BEHIND_GAP));
        }
        is_first = false;
    }
    if about.problem.is_none() {
        about.problem = torn_in_the_middle(&files, &about.files).err();
    }
    Ok(Some(about))
}

fn describe_file(file: &LogFile, now_ms: u64) -> io::Result<LogFileDescription> {
    let (mut from, mut rdb) = (0, None);
    if file.kind == FileKind::Base && base::begins(&file.file)? == Begins::Rdb {
        match describe(&file.file, now_ms) {
            Ok(description) => {
                from = if description.damage.is_some() { file.len } else { description.bytes };
                rdb = Some(description);
            }
            Err(damage) => {
                log::error!("{}: {damage}", file.path.display());
                let damage = Some((0, "this is not an RDB file of a known version"));
                return Ok(LogFileDescription { damage, ..named(file, LogFileDescription::default()) });
            }
        }
    }
    let about = check_file(&file.file, file.len, from)?;
    Ok(LogFileDescription { rdb, ..named(file, about) })
}

fn named(file: &LogFile, about: LogFileDescription) -> LogFileDescription {
    let name = file.path.file_name().map(|name| name.display().to_string()).unwrap_or_default();
    LogFileDescription { name, kind: Some(file.kind), bytes: file.len, ..about }
}

/// An error if a file is torn, and a later one goes on from the missing part.
fn torn_in_the_middle(files: &[LogFile], about: &[LogFileDescription]) -> Result<(), LogError> {
    let mut last = (0, 0);
    for (index, (file, about)) in files.iter().zip(about).enumerate() {
        if let (Some(epoch), Some(lsn)) = (about.epoch, about.last_lsn) {
            last = last.max((epoch, lsn));
        }
        if !about.is_torn {
            continue;
        }
        let error = |what| LogError { file: file.path.clone(), offset: about.ends_at, what };
        let next = goes_on_behind(&files[index + 1..]).map_err(|problem| error(LogProblem::Io(problem)))?;
        match next {
            None => {}
            Some(Some(from)) if from <= last => {}
            _ => return Err(error(LogProblem::Torn)),
        }
    }
    Ok(())
}

/// The outcome of a repair.
#[derive(Debug, Default)]
pub struct Repaired {
    pub cut: Vec<CutOff>,
}

/// Cuts a torn end off. Nothing else is changed.
///
/// Errors: there is no log; it has other damage, and nothing was changed; a file cannot be cut.
pub fn repair_log(disk: &dyn Disk, place: &Place) -> Result<Repaired, LogError> {
    let error = |offset, what| LogError { file: place.manifest(), offset, what };
    let Some(about) = describe_log(place, 0)? else {
        return Err(error(0, LogProblem::NoManifest));
    };
    if let Some(problem) = about.problem {
        return Err(problem);
    }
    if let Some((file, (offset, why))) = about.files.iter().find_map(|file| Some((file, file.damage?))) {
        return Err(LogError { file: place.dir.join(&file.name), offset, what: LogProblem::Damaged(why) });
    }
    let mut repaired = Repaired::default();
    let kept = about.manifest.entries.iter().filter(|entry| entry.kind != FileKind::History);
    for (entry, file) in kept.zip(&about.files).filter(|(_, file)| file.is_torn) {
        let (path, from) = (place.path(&entry.name), file.ends_at);
        if let Err(problem) = cut_off(disk, &path, from) {
            return Err(LogError { file: path, offset: from, what: LogProblem::Io(problem) });
        }
        repaired.cut.push(CutOff { file: path, from, bytes: file.bytes - from });
    }
    Ok(repaired)
}

impl fmt::Display for LogDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            write!(f, "{file}")?;
        }
        match &self.problem {
            Some(problem) => writeln!(f, "cannot be loaded: {problem}"),
            None if !self.is_sound() => writeln!(f, "cannot be loaded"),
            None if self.is_torn() => writeln!(f, "sound up to a torn end, which a start cuts off"),
            None => writeln!(f, "sound"),
        }
    }
}

impl fmt::Display for LogFileDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Some(FileKind::Base) => "base",
            Some(FileKind::History) => "history",
            _ => "commands",
        };
        writeln!(f, "{kind} {}: {} bytes", self.name, self.bytes)?;
        if let Some(rdb) = &self.rdb {
            rdb.to_string().lines().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        if self.rdb.is_none() || self.commands > 0 {
            writeln!(f, "  {} commands, {} transactions", self.commands, self.transactions)?;
        }
        if let (Some(first), Some(last), Some(epoch)) = (self.first_lsn, self.last_lsn, self.epoch) {
            let batches = self.batches;
            writeln!(f, "  {batches} batches with checksums, LSN {first} to {last}, epoch {epoch}")?;
        }
        if let Some(from) = self.foreign_from {
            writeln!(f, "  another server has appended from offset {from} on")?;
        }
        if let Some((offset, why)) = self.damage {
            return writeln!(f, "  damaged at offset {offset}: {why}");
        }
        match (self.is_torn, self.bytes - self.ends_at.min(self.bytes)) {
            (true, bytes) => writeln!(f, "  torn: the last {bytes} bytes, from offset {} on", self.ends_at),
            (false, bytes) if bytes > 0 => writeln!(f, "  {bytes} bytes prepared"),
            _ => Ok(()),
        }
    }
}
