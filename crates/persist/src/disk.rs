//! The calls to a file system, as a trait, so that tests can let them fail.

mod faulty;

pub use faulty::{Faults, Faulty};

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// A file system.
pub trait Disk: Send + Sync {
    /// Makes a file that is not there yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Gives a file another name, in place of what has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes names durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// The names in a directory.
    fn names(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
}

/// A file that is written from front to back.
pub trait DiskFile: Send {
    /// Writes some of the bytes, and says how many.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Makes what was written durable. After an error nothing is known of it: the file must be given up.
    fn sync_data(&mut self) -> io::Result<()>;
}

/// The file system there is.
pub struct RealDisk;

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name().into())).collect()
    }
}

impl DiskFile for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::Write::write(self, bytes)
    }

    fn sync_data(&mut self) -> io::Result<()> {
        File::sync_data(self)
    }
}
