//! The calls to a file system, as a trait, so that tests can let them fail.

mod faulty;
mod power;

pub use faulty::{Faults, Faulty, Gate};
pub use power::{Outage, Power, put_files};

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes that go to a disk or a worker at once.
pub(crate) const PIECE: usize = 256 * 1024;

/// The facts about a file that tell it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// Its file system, and its number there.
    pub id: (u64, u64),
    pub len: u64,
    /// The time of the last write, in nanoseconds since 1970.
    pub modified_ns: i128,
}

impl About {
    fn of(about: &Metadata) -> About {
        let modified_ns = i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec());
        About { id: (about.dev(), about.ino()), len: about.len(), modified_ns }
    }
}

/// A file system.
pub trait Disk: Send + Sync {
    /// Makes a file that is not there yet.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file for writing at offsets. It is there already, and is no link.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Makes a directory, if there is none.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;

    /// Gives a file another name, in place of what has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Makes names durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// The names in a directory.
    fn names(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;

    /// The file that has a name now. Links are not followed.
    fn about(&self, path: &Path) -> io::Result<About>;
}

/// A file that is written. Several threads may hold it.
#[expect(clippy::len_without_is_empty, reason = "nobody asks whether a file is empty")]
pub trait DiskFile: Send + Sync {
    /// Writes some of the bytes behind the last written ones, and returns how many.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Writes some of the bytes at an offset, and returns how many.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Makes the written bytes and the length durable. After an error nothing is known of them: the file must
    /// be given up.
    fn sync_data(&self) -> io::Result<()>;

    /// As `sync_data`, with all that the file system knows of the file.
    fn sync_all(&self) -> io::Result<()>;

    /// Cuts the file off.
    fn truncate(&self, len: u64) -> io::Result<()>;

    fn len(&self) -> io::Result<u64>;

    fn about(&self) -> io::Result<About>;

    /// Reserves room. The length stays.
    ///
    /// Errors: there is no room, or the file system cannot say.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
}

/// Writes all bytes at an offset. Interrupted writes go on.
pub(crate) fn write_all_at(file: &dyn DiskFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => {
                let written = written.min(bytes.len());
                offset += written as u64;
                bytes = &bytes[written..];
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A link is not followed.
const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

#[cfg(any(target_os = "linux", target_os = "android"))]
fn reserve(file: &File, offset: u64, len: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, offset, len)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn reserve(_: &File, _: u64, _: u64) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// A file in memory, for where none can be made on a disk, and a second handle that reads it. It takes so many
/// bytes. O(1)
///
/// Errors: the system has no memory for it.
pub fn in_memory(max_bytes: u64) -> io::Result<(Box<dyn DiskFile>, File)> {
    let file = File::from(rustix::fs::memfd_create("evenkeel", rustix::fs::MemfdFlags::CLOEXEC)?);
    let reader = file.try_clone()?;
    Ok((Box::new(InMemory { file, max_bytes, written: 0 }), reader))
}

/// Whether a file cannot be made because its folder is missing, or may not be written.
pub fn is_without_place(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
    )
}

/// See [`in_memory`].
struct InMemory {
    file: File,
    max_bytes: u64,
    written: u64,
}

impl DiskFile for InMemory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written + bytes.len() as u64 > self.max_bytes {
            let why = format!("a file in memory would exceed {} bytes", self.max_bytes);
            return Err(io::Error::new(ErrorKind::StorageFull, why));
        }
        let written = DiskFile::write(&mut self.file, bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        DiskFile::write_at(&self.file, bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        DiskFile::truncate(&self.file, len)
    }

    fn len(&self) -> io::Result<u64> {
        DiskFile::len(&self.file)
    }

    fn about(&self) -> io::Result<About> {
        DiskFile::about(&self.file)
    }

    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// The file system of the machine.
pub struct RealDisk;

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).custom_flags(NO_LINK).open(path)?;
        Ok(Box::new(file))
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        match fs::create_dir(dir) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
            made => made,
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name().into())).collect()
    }

    fn about(&self, path: &Path) -> io::Result<About> {
        Ok(About::of(&path.symlink_metadata()?))
    }
}

impl DiskFile for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::Write::write(self, bytes)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn sync_all(&self) -> io::Result<()> {
        File::sync_all(self)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn about(&self) -> io::Result<About> {
        Ok(About::of(&self.metadata()?))
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        reserve(self, offset, len)
    }
}
