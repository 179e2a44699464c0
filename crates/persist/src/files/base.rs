//! The base: the state that the files of commands go on from.
//!
//! It is an RDB file, or commands, or an RDB file with commands behind it. Before Redis 7 the whole log was
//! one such file, `appendonly.aof` in the directory of the data. It becomes the base in the way of Redis: the
//! manifest is written first, then the file moves.

use super::manifest::{Entry, FileKind, Manifest};
use super::{Place, put_manifest};
use crate::disk::Disk;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The kind of a base, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    Rdb,
    Commands,
}

/// Looks at the first bytes of a base.
pub(crate) fn begins(file: &File) -> io::Result<Begins> {
    let mut magic = [0; 6];
    let mut read = 0;
    while read < magic.len() {
        match FileExt::read_at(file, &mut magic[read..], read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let magic = &magic[..read];
    Ok(if magic.starts_with(b"REDIS") || magic == b"VALKEY" { Begins::Rdb } else { Begins::Commands })
}

/// Opens a plain file for reading; links, devices and directories are refused (F3).
pub(crate) fn open_plain(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "this is no plain file"))
}

/// Bytes of a manifest that are read. One that has more is refused.
const SMALL: u64 = (4 << 20) + 1;

pub(crate) fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    open_plain(path)?.take(SMALL).read_to_end(&mut text)?;
    Ok(text)
}

/// Whether files of a log that have anything are in the directory. The first file is made before the first
/// manifest, and is empty.
pub(crate) fn has_files(disk: &dyn Disk, place: &Place) -> bool {
    let names = disk.names(&place.dir).unwrap_or_default();
    let is_filled = |name: &PathBuf| place.dir.join(name).metadata().is_ok_and(|about| about.len() > 0);
    names.iter().any(|name| place.is_own(name.as_os_str().as_bytes()) && is_filled(name))
}

/// The place of a log of one file: beside the directory, or moved into it.
fn single(place: &Place) -> PathBuf {
    let above = place.dir.parent().unwrap_or(Path::new("."));
    above.join(std::ffi::OsStr::from_bytes(&place.name))
}

/// Makes a log of one file the base, if there is one and no manifest names others. Returns the manifest that
/// counts then.
pub(crate) fn upgrade(
    disk: &dyn Disk,
    place: &Place,
    manifest: Option<Manifest>,
) -> io::Result<Option<Manifest>> {
    let (old, moved) = (single(place), place.path(&place.name));
    let is_there = |path: &Path| path.symlink_metadata().is_ok_and(|about| about.is_file());
    let begun = |manifest: &Manifest| {
        let only = manifest.entries.first().filter(|_| manifest.entries.len() == 1);
        only.is_some_and(|only| only.kind == FileKind::Base && only.name == place.name)
    };
    match &manifest {
        None if is_there(&old) => {}
        // It ended between the two steps.
        Some(manifest) if begun(manifest) && !is_there(&moved) && is_there(&old) => {}
        _ => return Ok(manifest),
    }
    disk.make_dir(&place.dir)?;
    let entry = Entry { name: place.name.clone(), seq: 1, kind: FileKind::Base };
    let manifest = Manifest { entries: vec![entry] };
    put_manifest(disk, place, &manifest).map_err(|unput| unput.error)?;
    disk.rename(&old, &moved)?;
    disk.sync_dir(&place.dir)?;
    disk.sync_dir(old.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    log::info!("{} is the base of the log in {} now", old.display(), place.dir.display());
    Ok(Some(manifest))
}
