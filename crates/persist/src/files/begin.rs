//! How a log begins where there is none, and how one that was there is put aside.
//!
//! ```text
//! put_aside ─► mark_unfinished ─► Writer::open ─► a base ─► mark_finished
//! ```
//!
//! - A1: a log whose base is not written yet has a file [`UNFINISHED`] beside it. A start puts such a log
//!   aside: it lacks what was there before it began.
//! - A2: the name of a new directory, and of one that was put aside, is durable before anything else is done.
//!   So a power failure leaves the old log under one of its names, or the new one with its base.

use super::Place;
use crate::disk::Disk;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The file beside a log without a base (A1).
const UNFINISHED: &str = "unfinished";
/// Names that are tried.
const NAMES: u32 = 10_000;

/// The directory that holds another.
pub(crate) fn parent(dir: &Path) -> &Path {
    dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Gives the directory of a log another name, if anything is in it, and returns that. Cost: one sync.
///
/// Errors: the directory cannot be renamed, or too many were.
pub fn put_aside(disk: &dyn Disk, dir: &Path, why: &str) -> io::Result<Option<PathBuf>> {
    match disk.names(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Ok(names) if names.is_empty() => return Ok(None),
        _ => {}
    }
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for n in 1..NAMES {
        let other = dir.with_file_name(format!("{name}.{why}-{n}"));
        if disk.about(&other).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            disk.rename(dir, &other)?;
            disk.sync_dir(parent(dir))?;
            log::warn!("{} is now {}", dir.display(), other.display());
            return Ok(Some(other));
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, "too many directories were put aside beside it"))
}

/// Puts aside a log that never got its base (A1).
pub fn put_unfinished_aside(disk: &dyn Disk, place: &Place) -> io::Result<Option<PathBuf>> {
    match disk.about(&place.dir.join(UNFINISHED)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(_) => put_aside(disk, &place.dir, UNFINISHED),
    }
}

/// Makes the directory, if there is none.
pub fn make_place(disk: &dyn Disk, place: &Place) -> io::Result<()> {
    disk.make_dir(&place.dir)?;
    disk.sync_dir(parent(&place.dir))
}

/// Says that the log that is about to begin has no base yet (A1). The directory is made.
pub fn mark_unfinished(disk: &dyn Disk, place: &Place) -> io::Result<()> {
    make_place(disk, place)?;
    match disk.create(&place.dir.join(UNFINISHED)) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        created => drop(created?),
    }
    disk.sync_dir(&place.dir)
}

/// Says that the log has its base (A1).
pub fn mark_finished(disk: &dyn Disk, place: &Place) -> io::Result<()> {
    match disk.remove(&place.dir.join(UNFINISHED)) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        removed => removed?,
    }
    disk.sync_dir(&place.dir)
}

/// Removes a log that could not begin. Files that are not the log's stay, and the directory with them.
pub fn remove_unfinished(disk: &dyn Disk, place: &Place) -> io::Result<()> {
    let names = match disk.names(&place.dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    let manifest = place.manifest_name();
    let is_of_log = |name: &[u8]| place.is_own(name) || name == manifest || name.starts_with(b"temp-");
    for name in names.iter().filter(|name| is_of_log(name.as_os_str().as_bytes())) {
        disk.remove(&place.dir.join(name))?;
    }
    // Last: without it the rest would pass for a log.
    mark_finished(disk, place)?;
    if disk.names(&place.dir)?.is_empty() {
        disk.remove_dir(&place.dir)?;
        disk.sync_dir(parent(&place.dir))?;
    }
    Ok(())
}
