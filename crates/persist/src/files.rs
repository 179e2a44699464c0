//! The directory of the log, as Redis 7 keeps it: a base, files of commands that follow it, and a manifest
//! that names them.
//!
//! ```text
//! appendonly.aof.manifest ─► appendonly.aof.N.base.rdb ─► appendonly.aof.M.incr.aof ─► … M+1 … (the last one grows)
//! ```
//!
//! - F1: the manifest is the truth: a file that it does not name is garbage. It is replaced whole, by
//!   renaming.
//! - F2: a file that is followed by one with commands is durable, or the one behind it says from where on it
//!   is void ([`incr`]).
//! - F3: names are plain file names of this directory, and never links.
//! - F4: the names lead to the files that the server wrote. Somebody may have removed, moved or replaced them:
//!   the log's thread looks once a second ([`Files::check`]).

pub mod base;
pub mod begin;
pub(crate) mod incr;
pub(crate) mod local;
pub mod manifest;
pub mod repair;
pub mod tail;

use crate::disk::{About, Disk, DiskFile, write_all_at};
use manifest::{Entry, FileKind, Manifest};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::points::{self, Point};

/// The directory and the name that its files begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub dir: PathBuf,
    /// `appendfilename`.
    pub name: Vec<u8>,
}

impl Place {
    pub fn new(dir: impl Into<PathBuf>, name: impl Into<Vec<u8>>) -> Place {
        Place { dir: dir.into(), name: name.into() }
    }

    pub fn path(&self, name: &[u8]) -> PathBuf {
        self.dir.join(OsStr::from_bytes(name))
    }

    pub fn manifest(&self) -> PathBuf {
        self.path(&self.manifest_name())
    }

    pub(crate) fn manifest_name(&self) -> Vec<u8> {
        [&self.name[..], b".manifest"].concat()
    }

    pub(crate) fn incr_name(&self, seq: u64) -> Vec<u8> {
        [&self.name[..], format!(".{seq}.incr.aof").as_bytes()].concat()
    }

    pub(crate) fn base_name(&self, seq: u64) -> Vec<u8> {
        [&self.name[..], format!(".{seq}.base.rdb").as_bytes()].concat()
    }

    /// Whether a name is one that this log gives its files.
    pub(crate) fn is_own(&self, name: &[u8]) -> bool {
        let middle = |rest: &[u8]| {
            let seq = rest.strip_suffix(b".incr.aof").or_else(|| rest.strip_suffix(b".base.rdb"));
            seq.or_else(|| rest.strip_suffix(b".base.aof"))
                .is_some_and(|seq| !seq.is_empty() && seq.iter().all(u8::is_ascii_digit))
        };
        name.strip_prefix(&self.name[..]).and_then(|rest| rest.strip_prefix(b".")).is_some_and(middle)
    }
}

/// The files, and the manifest as it is on the disk.
pub(crate) struct Files {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) place: Place,
    pub(crate) manifest: Manifest,
    /// The manifest's file. `None`: this server has not written it.
    written: Option<About>,
}

/// The reason why the directory is not the log's any more (F4).
#[derive(Debug)]
pub(crate) enum Lost {
    /// A file is gone.
    Gone(String),
    /// Somebody has put something else in its place.
    Replaced(String),
    /// It cannot be looked at.
    Unknown(io::Error),
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lost::Gone(name) => write!(f, "{name} was removed or moved away while the server runs"),
            Lost::Replaced(name) => write!(f, "{name} was replaced or cut by somebody while the server runs"),
            Lost::Unknown(error) => error.fmt(f),
        }
    }
}

impl Files {
    pub(crate) fn new(disk: Arc<dyn Disk>, place: Place, manifest: Manifest) -> Files {
        Files { disk, place, manifest, written: None }
    }

    /// Whether the directory still has the manifest that this server wrote, and all files that it names (F4).
    /// Cost: a system call for each.
    pub(crate) fn check(&self) -> Result<(), Lost> {
        self.check_manifest()?;
        for entry in self.manifest.entries.iter().filter(|entry| entry.kind != FileKind::History) {
            self.about(&entry.name)?;
        }
        Ok(())
    }

    fn check_manifest(&self) -> Result<(), Lost> {
        let Some(written) = self.written else { return Ok(()) };
        let name = self.place.manifest_name();
        let about = self.about(&name)?;
        // Somebody may have written the same again.
        let is_same =
            || base::read_small(&self.place.manifest()).is_ok_and(|text| text == self.manifest.text());
        match about == written || (about.id == written.id && about.len == written.len && is_same()) {
            true => Ok(()),
            false => Err(Lost::Replaced(shown(&name))),
        }
    }

    /// The file of the log that has a name.
    pub(crate) fn about(&self, name: &[u8]) -> Result<About, Lost> {
        self.disk.about(&self.place.path(name)).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Lost::Gone(shown(name)),
            _ => Lost::Unknown(error),
        })
    }

    /// Makes the directory again that was lost (F4). What somebody put in its place is put aside.
    pub(crate) fn restore(&mut self, lost: &Lost) -> io::Result<()> {
        if matches!(lost, Lost::Replaced(_)) {
            begin::put_aside(&*self.disk, &self.place.dir, "before")?;
        }
        self.written = None;
        begin::make_place(&*self.disk, &self.place)
    }

    /// Replaces the manifest (F1). That of somebody else stays (F4).
    ///
    /// Errors: it is not known then which of the two is there; both must be sound.
    pub(crate) fn put(&mut self, manifest: Manifest) -> io::Result<()> {
        if let Err(lost @ Lost::Replaced(_)) = self.check_manifest() {
            return Err(io::Error::other(lost.to_string()));
        }
        let renamed = put_manifest(&*self.disk, &self.place, &manifest);
        // A reader sees the new one, though a power failure may take it away.
        let written = match &renamed {
            Ok(written) => Some(*written),
            Err(unput) => unput.renamed,
        };
        if written.is_some() {
            (self.manifest, self.written) = (manifest, written);
        }
        renamed.map(drop).map_err(|unput| unput.error)
    }

    /// Makes the next file of commands, empty, and names it in the manifest.
    /// Files that are dropped become history.
    pub(crate) fn add_incr(&mut self, drops: &[u64]) -> io::Result<(u64, Arc<dyn DiskFile>)> {
        let seq = self.manifest.last_incr_seq() + 1;
        let name = self.place.incr_name(seq);
        let file = create_anew(&*self.disk, &self.place.path(&name))?;
        self.disk.sync_dir(&self.place.dir)?;
        points::reach(Point::LogIncr);
        let mut manifest = self.manifest.clone();
        let is_dropped = |entry: &Entry| entry.kind == FileKind::Incr && drops.contains(&entry.seq);
        manifest.entries.iter_mut().filter(|entry| is_dropped(entry)).for_each(|entry| {
            entry.kind = FileKind::History;
        });
        manifest.entries.push(Entry { name, seq, kind: FileKind::Incr });
        self.put(manifest)?;
        Ok((seq, file.into()))
    }

    /// The files of history.
    pub(crate) fn history(&self) -> Vec<Entry> {
        self.manifest.entries.iter().filter(|entry| entry.kind == FileKind::History).cloned().collect()
    }

    /// Takes files of history that are gone out of the manifest.
    pub(crate) fn forget(&mut self, gone: &[Entry]) -> io::Result<()> {
        let mut manifest = self.manifest.clone();
        manifest.entries.retain(|entry| !gone.contains(entry));
        self.put(manifest)
    }
}

/// The reason why a manifest is not durable.
pub(crate) struct Unput {
    pub(crate) error: io::Error,
    renamed: Option<About>,
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Writes a manifest beside the present one, and renames it over that.
pub(crate) fn put_manifest(disk: &dyn Disk, place: &Place, manifest: &Manifest) -> Result<About, Unput> {
    let before = |error| Unput { error, renamed: None };
    let temporary = place.path(&[b"temp-", &place.manifest_name()[..]].concat());
    let file = create_anew(disk, &temporary).map_err(before)?;
    write_all_at(&*file, &manifest.text(), 0).and_then(|()| file.sync_data()).map_err(before)?;
    points::reach(Point::LogManifest);
    let written = file.about().map_err(before)?;
    disk.rename(&temporary, &place.manifest()).map_err(before)?;
    disk.sync_dir(&place.dir).map_err(|error| Unput { error, renamed: Some(written) })?;
    Ok(written)
}

/// Makes a file that no manifest names, in place of a leftover.
pub(crate) fn create_anew(disk: &dyn Disk, path: &Path) -> io::Result<Box<dyn DiskFile>> {
    match disk.create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            disk.remove(path)?;
            disk.create(path)
        }
        created => created,
    }
}

/// Bytes that are freed at once.
const STEP: u64 = 64 << 20;

/// Removes a file, if it is there. A large one is cut first, so that no call takes long.
pub(crate) fn remove_in_steps(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    if let Ok(file) = disk.open(path) {
        let mut len = file.len()?;
        while len > STEP {
            len -= STEP;
            file.truncate(len)?;
        }
    }
    match disk.remove(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => {
            points::reach(Point::LogUnlink);
            removed
        }
    }
}
