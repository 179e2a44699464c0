//! The rest of a damaged file, kept to be looked at.

use crate::disk::PIECE;
use crate::disk::{Disk, DiskFile};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Names that are tried.
const NAMES: u32 = 10_000;

/// Copies a file from an offset on ([`rdb::file::Damage::from`]) to `damaged-<n>` beside it, synced. Returns
/// the copy's path.
///
/// Cost: O(bytes). Errors: the file cannot be read or the copy not written. No part of the copy stays then.
pub fn set_aside(disk: &dyn Disk, path: &Path, from: u64) -> io::Result<PathBuf> {
    let mut rest = File::open(path)?;
    rest.seek(SeekFrom::Start(from))?;
    for n in 1..=NAMES {
        let copy = path.with_file_name(format!("damaged-{n}"));
        let mut file = match disk.create(&copy) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            created => created?,
        };
        let copied = copy_all(&mut rest, &mut *file);
        if copied.is_err() {
            let _ = disk.remove(&copy);
        }
        return copied.map(|()| copy);
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn copy_all(rest: &mut File, file: &mut dyn DiskFile) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let read = match rest.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return file.sync_data();
        }
        let mut bytes = &piece[..read];
        while !bytes.is_empty() {
            match file.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written.min(bytes.len())..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
