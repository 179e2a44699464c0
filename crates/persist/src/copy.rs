//! A snapshot's file on its way to clients.
//!
//! ```text
//! dir/temp-<pid>-<n>.rdb ─opened, removed─► FileCopy ─a piece a turn─► the client's loop
//!                              └─ still written, for replicas: Spool says how far it is
//! ```
//!
//! - C1: a loop never waits for the disk. A piece that is not in memory is asked for, and looked for in the
//!   next turn.
//! - C2: the file has no name while it is sent. Its room is free once the reply is sent or dropped, or the
//!   process has ended.
//!
//! Cost: a system call for each piece of [`PIECE`] bytes.

use crate::disk::Disk;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

/// Bytes read in one go, and bytes that are asked for ahead.
const PIECE: usize = 64 * 1024;
const AHEAD: u64 = 1 << 20;

/// See the module.
pub struct FileCopy {
    file: Arc<File>,
    at: u64,
    size_bytes: u64,
    buffer: Vec<u8>,
}

/// The next bytes of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Read<'a> {
    /// There are some, and perhaps more.
    Bytes(&'a [u8]),
    /// They are on their way from the disk.
    Later,
    /// All were read.
    End,
    /// The rest cannot be read.
    Broken,
}

impl FileCopy {
    /// Opens a finished file, and takes its name away. For a thread that may wait.
    pub fn take(disk: &dyn Disk, path: &Path) -> io::Result<FileCopy> {
        let file = File::open(path);
        disk.remove(path)?;
        let file = file?;
        let size_bytes = file.metadata()?.len();
        Ok(FileCopy { file: Arc::new(file), at: 0, size_bytes, buffer: vec![0; PIECE] })
    }

    /// Reads a file from its begin on while it is written ([`FileCopy::grow`]). O(1)
    pub fn follow(file: Arc<File>) -> FileCopy {
        FileCopy { file, at: 0, size_bytes: 0, buffer: vec![0; PIECE] }
    }

    /// Says that the file has so many bytes by now. O(1)
    pub fn grow(&mut self, size_bytes: u64) {
        self.size_bytes = self.size_bytes.max(size_bytes);
    }

    /// Bytes read so far. O(1)
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Bytes of the whole file. O(1).
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether all was read. O(1).
    pub fn is_at_end(&self) -> bool {
        self.at == self.size_bytes
    }

    /// The next bytes, some `room` at most. It never waits for the disk (C1). O(bytes), in one system call.
    pub fn read(&mut self, room: usize) -> Read<'_> {
        if self.is_at_end() {
            return Read::End;
        }
        match self.fill(room) {
            Ok(Some(0)) | Err(_) => {
                log::error!("a snapshot for a client ended at byte {} of {}", self.at, self.size_bytes);
                Read::Broken
            }
            Ok(Some(read)) => {
                self.at += read as u64;
                Read::Bytes(&self.buffer[..read])
            }
            Ok(None) => Read::Later,
        }
    }

    /// Reads some bytes if they are in memory (C1). None: they are not.
    fn fill(&mut self, room: usize) -> io::Result<Option<usize>> {
        let room = room.clamp(1, PIECE).min((self.size_bytes - self.at) as usize);
        read_if_cached(&self.file, self.at, &mut self.buffer[..room])
    }
}

/// Reads bytes of a file from a place on, if they are in memory (C1). None: they are not, and were asked for.
/// O(bytes), in a system call.
pub fn read_if_cached(file: &File, at: u64, into: &mut [u8]) -> io::Result<Option<usize>> {
    match preadv2(file, &mut [IoSliceMut::new(into)], at, ReadWriteFlags::NOWAIT) {
        Err(Errno::AGAIN) => {
            fadvise(file, at, NonZeroU64::new(AHEAD), Advice::WillNeed)?;
            Ok(None)
        }
        // A file system in memory knows no such read, and has no disk to wait for.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(Some(pread(file, into, at)?)),
        read => Ok(Some(read?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    /// All bytes of a file, and whether they are all.
    fn read_all(copy: &mut FileCopy) -> (Vec<u8>, bool) {
        let mut all = Vec::new();
        loop {
            match copy.read(1000) {
                Read::Bytes(bytes) => all.extend_from_slice(bytes),
                Read::Later => {}
                Read::End => return (all, true),
                Read::Broken => return (all, false),
            }
        }
    }

    #[test]
    fn a_file_is_read_whole_in_pieces_and_has_no_name_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rdb");
        for len in [0, 1, PIECE, 3 * PIECE + 7] {
            let bytes: Vec<u8> = (0..len).map(|n| (n * 7 / 3) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let mut copy = FileCopy::take(&RealDisk, &path).unwrap();
            assert!(!path.exists());
            assert_eq!(copy.size_bytes(), len as u64);
            assert!(read_all(&mut copy) == (bytes, true));
        }
    }

    #[test]
    fn a_file_that_is_cut_off_is_broken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rdb");
        std::fs::write(&path, [1; 100]).unwrap();
        let writer = File::options().write(true).open(&path).unwrap();
        let mut copy = FileCopy::take(&RealDisk, &path).unwrap();
        writer.set_len(40).unwrap();
        assert_eq!(read_all(&mut copy), (vec![1; 40], false));
    }
}
