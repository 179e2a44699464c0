//! A file system that fails as it is told, for tests.

use super::{About, Disk, DiskFile, RealDisk};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The faults of a disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Largest number of bytes written at a time.
    pub short: Option<usize>,
    /// Every other write is interrupted.
    pub interrupts: bool,
    /// Writes fail with this error after so many bytes of all files.
    pub writes: Option<(u64, Errno)>,
    pub create: Option<Errno>,
    /// Syncs fail from this one on, counted from 0.
    pub sync: Option<(u32, Errno)>,
    pub rename: Option<Errno>,
    pub sync_dir: Option<Errno>,
    pub remove: Option<Errno>,
    /// The next sync fails, once. Later ones succeed, and say nothing of what was lost.
    pub sync_once: Option<Errno>,
    pub truncate: Option<Errno>,
    /// So many of the next calls panic, as by a bug.
    pub panics: u32,
}

/// Holds the threads that write or sync, as a disk that hangs.
#[derive(Default)]
pub struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub fn set_closed(&self, closed: bool) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = closed;
        self.opened.notify_all();
    }

    /// Waits while it is closed.
    pub fn pass(&self) {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(closed, |closed| *closed).unwrap_or_else(PoisonError::into_inner));
    }
}

#[derive(Default)]
struct State {
    faults: Faults,
    written: u64,
    calls: u64,
    syncs: u32,
    /// The calls in order, without writes.
    log: Vec<&'static str>,
}

/// The real file system with faults.
#[derive(Clone, Default)]
pub struct Faulty {
    state: Arc<Mutex<State>>,
    pub gate: Arc<Gate>,
}

impl Faulty {
    pub fn new(faults: Faults) -> Faulty {
        let disk = Faulty::default();
        disk.set(faults);
        disk
    }

    /// Sets the faults from now on.
    pub fn set(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The calls so far: `create`, `open`, `sync`, `truncate`, `rename`, `sync_dir`, `remove`.
    pub fn log(&self) -> Vec<&'static str> {
        self.state().log.clone()
    }

    /// Bytes that were written to all files.
    pub fn written(&self) -> u64 {
        self.state().written
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[expect(clippy::panic, reason = "what it is for")]
    fn panics(&self) {
        let panics = {
            let left = &mut self.state().faults.panics;
            let panics = *left > 0;
            *left = left.saturating_sub(1);
            panics
        };
        if panics {
            panic!("the disk was told to panic");
        }
    }

    /// Notes a call, and lets it fail.
    fn does(&self, what: &'static str, fault: impl FnOnce(&Faults) -> Option<Errno>) -> io::Result<()> {
        self.panics();
        let mut state = self.state();
        state.log.push(what);
        fault(&state.faults).map_or(Ok(()), |errno| Err(errno.into()))
    }
}

impl Disk for Faulty {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.does("create", |faults| faults.create)?;
        let file = RealDisk.create(path)?;
        Ok(Box::new(FaultyFile { file, disk: self.clone() }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.does("open", |faults| faults.create)?;
        let file = RealDisk.open(path)?;
        Ok(Box::new(FaultyFile { file, disk: self.clone() }))
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.make_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.does("rename", |faults| faults.rename)?;
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.does("remove", |faults| faults.remove)?;
        RealDisk.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.does("remove", |faults| faults.remove)?;
        RealDisk.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.does("sync_dir", |faults| faults.sync_dir)?;
        RealDisk.sync_dir(dir)
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        RealDisk.names(dir)
    }

    fn about(&self, path: &Path) -> io::Result<About> {
        RealDisk.about(path)
    }
}

struct FaultyFile {
    file: Box<dyn DiskFile>,
    disk: Faulty,
}

impl FaultyFile {
    /// Number of bytes that may be written now, or the error.
    fn admits(&self, len: usize) -> io::Result<usize> {
        self.disk.gate.pass();
        self.disk.panics();
        let mut state = self.disk.state();
        state.calls += 1;
        if state.faults.interrupts && state.calls.is_multiple_of(2) {
            return Err(Errno::INTR.into());
        }
        let mut len = len.min(state.faults.short.unwrap_or(usize::MAX));
        if let Some((after, errno)) = state.faults.writes {
            let room = after.saturating_sub(state.written);
            if room == 0 {
                return Err(errno.into());
            }
            len = len.min(usize::try_from(room).unwrap_or(usize::MAX));
        }
        Ok(len)
    }

    fn syncs(&self) -> io::Result<()> {
        self.disk.gate.pass();
        let nth = {
            let mut state = self.disk.state();
            state.syncs += 1;
            if let Some(errno) = state.faults.sync_once.take() {
                return Err(errno.into());
            }
            state.syncs - 1
        };
        let fails = |faults: &Faults| faults.sync.filter(|(from, _)| nth >= *from).map(|(_, errno)| errno);
        self.disk.does("sync", fails)
    }
}

impl DiskFile for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.admits(bytes.len())?;
        let written = self.file.write(&bytes[..len])?;
        self.disk.state().written += written as u64;
        Ok(written)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let len = self.admits(bytes.len())?;
        let written = self.file.write_at(&bytes[..len], offset)?;
        self.disk.state().written += written as u64;
        Ok(written)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.syncs()?;
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.syncs()?;
        self.file.sync_all()
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.disk.does("truncate", |faults| faults.truncate)?;
        self.file.truncate(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn about(&self) -> io::Result<About> {
        self.file.about()
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }
}
