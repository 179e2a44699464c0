//! One server at a time changes the files in `dir`.
//!
//! ```text
//! dir/evenkeel.lock, flock'ed ─► DirLock, shared by all that write in dir ─► the last one lets go
//! ```
//!
//! - L1: nothing in `dir` is moved, cut, replaced or removed without the lock. Reading needs none.
//! - L2: the lock is that of the open file, so it ends with the process, however that ends. The file itself
//!   means nothing; it names the process for the message.
//! - L3: the locked file is the one that has the name. A file that was removed meanwhile is left, and the next
//!   one is tried.
//! - L4: a server with a log or save points has the lock from before it looks at a file until its end. Any
//!   other takes it for a snapshot, and removes the file behind it.

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The file in `dir`.
const NAME: &str = "evenkeel.lock";
/// How long a start waits for a process that is ending.
pub(crate) const ENDING: Duration = Duration::from_secs(2);
/// How long others wait: for a lock of this process that is let go of just now.
pub(crate) const LETTING_GO: Duration = Duration::from_millis(200);
/// Time between two tries.
const TRY: Duration = Duration::from_millis(10);

/// The reason why there is no lock.
#[derive(Debug)]
pub enum NoLock {
    /// Another process has it. 0: its number is not known.
    Held(PathBuf, u32),
    /// Something else than a plain file has the name.
    NotPlain(PathBuf),
    /// The directory cannot be written, for example.
    Io(PathBuf, io::Error),
}

impl NoLock {
    /// Whether a server that only reads may go on all the same.
    pub fn is_of_the_disk(&self) -> bool {
        matches!(self, NoLock::Io(..))
    }
}

impl fmt::Display for NoLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoLock::Held(path, pid) => {
                let process = if *pid == 0 { "another process".to_owned() } else { format!("process {pid}") };
                write!(
                    f,
                    "{} is locked by {process}: another server uses this directory. Stop it, or choose another dir",
                    path.display()
                )
            }
            NoLock::NotPlain(path) => write!(f, "{} is no plain file: remove it", path.display()),
            NoLock::Io(path, error) => write!(f, "{} cannot be locked: {error}", path.display()),
        }
    }
}

/// The lock of a directory. See the module.
pub struct DirLock {
    path: PathBuf,
    /// Another one after the file was removed by somebody.
    file: Mutex<File>,
}

impl DirLock {
    /// Takes the lock of a directory, waiting some time for another process. For a thread that may wait.
    ///
    /// Errors: see [`NoLock`].
    pub fn take(dir: &Path, patience: Duration) -> Result<Arc<DirLock>, NoLock> {
        // Two locks of one process would keep each other out (L2).
        static HELD: Mutex<Vec<Weak<DirLock>>> = Mutex::new(Vec::new());
        let path = dir.join(NAME);
        let until = Instant::now() + patience;
        loop {
            {
                let mut held = HELD.lock();
                held.retain(|lock| lock.strong_count() > 0);
                let mut ours = held.iter().filter_map(Weak::upgrade);
                if let Some(ours) = ours.find(|lock| is_same(&path, &lock.file.lock())) {
                    return Ok(ours);
                }
                match lock_file(&path) {
                    Ok(file) => {
                        let lock = Arc::new(DirLock { path, file: Mutex::new(file) });
                        held.push(Arc::downgrade(&lock));
                        return Ok(lock);
                    }
                    Err(NoLock::Held(..)) if Instant::now() < until => {}
                    Err(why) => return Err(why),
                }
            }
            std::thread::sleep(TRY);
        }
    }

    /// Whether the lock still keeps others out. A file that somebody removed is made anew. Cost: two system
    /// calls.
    ///
    /// Errors: another process has the lock now.
    pub fn check(&self) -> Result<(), String> {
        let mut file = self.file.lock();
        if is_same(&self.path, &file) {
            return Ok(());
        }
        match lock_file(&self.path) {
            Ok(again) => {
                log::warn!("{} was removed or replaced, and is made anew", self.path.display());
                *file = again;
                Ok(())
            }
            // The directory is gone, for example: what was in it is missed elsewhere.
            Err(NoLock::Io(..)) => Ok(()),
            Err(why) => Err(why.to_string()),
        }
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Before the lock ends, so that nobody else has the file (L3).
        if is_same(&self.path, self.file.get_mut()) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether a name is that of an open file.
fn is_same(path: &Path, file: &File) -> bool {
    let id = |about: io::Result<Metadata>| about.map(|about| (about.dev(), about.ino())).ok();
    let named = id(path.symlink_metadata());
    named.is_some() && named == id(file.metadata())
}

/// Makes and locks a file, if nobody has it locked.
fn lock_file(path: &Path) -> Result<File, NoLock> {
    // One that was removed between the two calls is tried again (L3).
    for _ in 0..100 {
        let file = open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(NoLock::Held(path.into(), holder(file))),
            Err(Errno::NOLCK | Errno::NOTSUP | Errno::NOSYS) => {
                log::warn!(
                    "{}: this file system has no locks; nothing keeps other servers out",
                    path.display()
                );
            }
            Err(error) => return Err(NoLock::Io(path.into(), error.into())),
        }
        if is_same(path, &file) {
            // The number is for people; a full disk may lack it.
            let _ = file.set_len(0).and_then(|()| writeln!(&file, "{}", std::process::id()));
            return Ok(file);
        }
    }
    Err(NoLock::Io(path.into(), ErrorKind::NotFound.into()))
}

fn open(path: &Path) -> Result<File, NoLock> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = flags.bits().cast_signed();
    let opened =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path);
    match opened {
        Ok(file) if file.metadata().is_ok_and(|about| about.is_file()) => Ok(file),
        Ok(_) => Err(NoLock::NotPlain(path.into())),
        // The error does not say whether it is that of a link or of a directory.
        Err(_) if path.symlink_metadata().is_ok_and(|about| !about.is_file()) => {
            Err(NoLock::NotPlain(path.into()))
        }
        Err(error) => Err(NoLock::Io(path.into(), error)),
    }
}

/// The process that the file names. 0: it names none.
fn holder(file: File) -> u32 {
    let mut text = String::new();
    let read = file.take(32).read_to_string(&mut text);
    read.ok().and_then(|_| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> usize {
        std::fs::read_dir(dir).expect("a folder").count()
    }

    /// Takes the lock as another process would.
    fn foreign(dir: &Path) -> File {
        let file = open(&dir.join(NAME)).expect("room");
        flock(&file, FlockOperation::NonBlockingLockExclusive).expect("it is free");
        writeln!(&file, "4711").expect("room");
        file
    }

    fn take(dir: &Path) -> Result<Arc<DirLock>, NoLock> {
        DirLock::take(dir, Duration::ZERO)
    }

    #[test]
    fn a_lock_keeps_others_out_and_is_shared_here() {
        let dir = tempfile::tempdir().expect("a folder");
        let other = foreign(dir.path());
        let refused = take(dir.path()).err().expect("it is held");
        assert!(refused.to_string().contains("evenkeel.lock is locked by process 4711"), "{refused}");
        drop(other);
        // The file of a killed process means nothing.
        let first = take(dir.path()).expect("it is free");
        let second = take(&dir.path().join(".")).expect("it is ours");
        assert!(Arc::ptr_eq(&first, &second));
        drop(first);
        assert_eq!(names(dir.path()), 1);
        assert!(second.check().is_ok());
        drop(second);
        assert_eq!(names(dir.path()), 0);
    }

    #[test]
    fn a_lock_whose_file_is_removed_is_taken_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let lock = take(dir.path()).expect("it is free");
        std::fs::remove_file(dir.path().join(NAME)).expect("it is there");
        assert!(lock.check().is_ok());
        assert_eq!(names(dir.path()), 1);
        std::fs::remove_file(dir.path().join(NAME)).expect("it is there");
        let other = foreign(dir.path());
        let lost = lock.check().expect_err("another has it");
        assert!(lost.contains("4711"), "{lost}");
        // The file of the other stays.
        drop(lock);
        assert_eq!(names(dir.path()), 1);
        drop(other);
    }

    #[test]
    fn what_is_no_plain_file_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(NAME);
        let refused = || matches!(take(dir.path()), Err(NoLock::NotPlain(_)));
        std::fs::create_dir(&path).expect("room");
        assert!(refused());
        std::fs::remove_dir(&path).expect("it is empty");
        let target = dir.path().join("precious");
        std::fs::write(&target, "text").expect("room");
        std::os::unix::fs::symlink(&target, &path).expect("room");
        assert!(refused());
        assert_eq!(std::fs::read(&target).expect("it is there"), b"text");
        assert!(take(&dir.path().join("none")).is_err_and(|why| why.is_of_the_disk()));
    }
}
