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

pub mod base;
pub(crate) mod incr;
pub(crate) mod local;
pub mod manifest;
pub mod repair;

use crate::disk::{Disk, DiskFile, write_all_at};
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
}

impl Files {
    pub(crate) fn new(disk: Arc<dyn Disk>, place: Place, manifest: Manifest) -> Files {
        Files { disk, place, manifest }
    }

    /// Replaces the manifest (F1).
    ///
    /// Errors: it is not known then which of the two is there; both must be sound.
    pub(crate) fn put(&mut self, manifest: Manifest) -> io::Result<()> {
        let renamed = put_manifest(&*self.disk, &self.place, &manifest);
        // A reader sees the new one, though a power failure may take it away.
        if !matches!(renamed, Err(Unput { is_renamed: false, .. })) {
            self.manifest = manifest;
        }
        renamed.map_err(|unput| unput.error)
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
    is_renamed: bool,
}

/// Writes a manifest beside the present one, and renames it over that.
pub(crate) fn put_manifest(disk: &dyn Disk, place: &Place, manifest: &Manifest) -> Result<(), Unput> {
    let before = |error| Unput { error, is_renamed: false };
    let temporary = place.path(&[b"temp-", &place.manifest_name()[..]].concat());
    let file = create_anew(disk, &temporary).map_err(before)?;
    write_all_at(&*file, &manifest.text(), 0).and_then(|()| file.sync_data()).map_err(before)?;
    points::reach(Point::LogManifest);
    disk.rename(&temporary, &place.manifest()).map_err(before)?;
    disk.sync_dir(&place.dir).map_err(|error| Unput { error, is_renamed: true })
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
