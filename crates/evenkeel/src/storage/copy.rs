//! A snapshot's file as the reply of a client.
//!
//! ```text
//! dir/temp-<pid>-<n>.rdb ─opened, removed─► Copy ─a piece a turn─► $<length>\r\n<bytes>
//! ```
//!
//! - C1: a loop never waits for the disk. A piece that is not in memory is asked for, and looked for in the next turn.
//! - C2: the file has no name while it is sent. Its room is free once the reply is sent or dropped, or the process
//!   has ended.
//!
//! Cost: a system call for each piece of [`PIECE`] bytes.

use resp::Reply;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::path::Path;

/// Bytes read in one go, and bytes that are asked for ahead.
const PIECE: usize = 64 * 1024;
const AHEAD: u64 = 1 << 20;

/// See the module.
pub(super) struct Copy {
    file: File,
    at: u64,
    len: u64,
    has_begun: bool,
    buffer: Vec<u8>,
    /// Called if the rest cannot be read.
    broken: Option<Box<dyn FnOnce() + Send>>,
}

impl Copy {
    /// Opens a finished file, and takes its name away. For a thread that may wait.
    pub(super) fn take(path: &Path, broken: Box<dyn FnOnce() + Send>) -> io::Result<Copy> {
        let file = File::open(path);
        std::fs::remove_file(path)?;
        let file = file?;
        let len = file.metadata()?.len();
        Ok(Copy { file, at: 0, len, has_begun: false, buffer: vec![0; PIECE], broken: Some(broken) })
    }

    /// Reads some bytes if they are in memory (C1). `None`: they are not.
    fn read(&mut self, room: usize) -> io::Result<Option<usize>> {
        let room = room.clamp(1, PIECE).min((self.len - self.at) as usize);
        let into = &mut self.buffer[..room];
        match preadv2(&self.file, &mut [IoSliceMut::new(into)], self.at, ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN) => {
                fadvise(&self.file, self.at, NonZeroU64::new(AHEAD), Advice::WillNeed)?;
                Ok(None)
            }
            // A file system in memory knows no such read, and has no disk to wait for.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                Ok(Some(pread(&self.file, into, self.at)?))
            }
            read => Ok(Some(read?)),
        }
    }
}

impl exec::Stream for Copy {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        if !std::mem::replace(&mut self.has_begun, true) {
            out.encoded(format!("${}\r\n", self.len).as_bytes());
        }
        if self.at == self.len {
            return false;
        }
        match self.read(room) {
            Ok(Some(0)) | Err(_) => {
                log::error!("a snapshot for a client ended at byte {} of {}", self.at, self.len);
                if let Some(broken) = self.broken.take() {
                    broken();
                }
                false
            }
            Ok(Some(read)) => {
                out.encoded(&self.buffer[..read]);
                self.at += read as u64;
                self.at < self.len
            }
            Ok(None) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use exec::Stream;

    #[test]
    fn a_file_is_sent_whole_in_pieces_and_has_no_name_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rdb");
        for len in [0, 1, PIECE, 3 * PIECE + 7] {
            let bytes: Vec<u8> = (0..len).map(|n| (n * 7 / 3) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let mut copy = Copy::take(&path, Box::new(|| panic!("nothing is broken"))).unwrap();
            assert!(!path.exists());
            let mut out = Reply::new(false);
            while copy.fill(&mut out, 1000) {}
            let head = format!("${len}\r\n");
            assert_eq!(out.as_bytes(), [head.as_bytes(), &bytes].concat());
        }
    }

    #[test]
    fn a_file_that_is_cut_off_ends_its_reply() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rdb");
        std::fs::write(&path, [1; 100]).unwrap();
        let writer = File::options().write(true).open(&path).unwrap();
        let (told, hears) = std::sync::mpsc::channel();
        let mut copy = Copy::take(&path, Box::new(move || told.send(()).unwrap())).unwrap();
        writer.set_len(40).unwrap();
        let mut out = Reply::new(false);
        while copy.fill(&mut out, 1000) {}
        assert_eq!((out.len(), hears.try_recv()), (6 + 40, Ok(())));
    }
}
