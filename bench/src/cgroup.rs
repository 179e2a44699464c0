//! A control group that limits the memory of the processes that join it, in either version of the interface.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of memory groups in each version, and the file with a group's limit.
const PLACES: [(&str, &str, &str); 2] = [
    ("version 2", "/sys/fs/cgroup", "memory.max"),
    ("version 1", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
];

/// A group of our own. It is removed when dropped; its processes must have ended by then.
pub struct MemoryGroup {
    kind: &'static str,
    path: PathBuf,
}

impl MemoryGroup {
    /// Makes a group with `limit` bytes. Errors: the last place tried, in words.
    pub fn new(limit: u64) -> Result<MemoryGroup, String> {
        let mut last = String::new();
        for (kind, root, file) in PLACES {
            match make(Path::new(root), file, limit) {
                Ok(path) => return Ok(MemoryGroup { kind, path }),
                Err(error) => last = format!("{kind}: {error}"),
            }
        }
        Err(last)
    }

    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The file that a process writes "0" to in order to join.
    pub fn joined_by(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

fn make(root: &Path, file: &str, limit: u64) -> io::Result<PathBuf> {
    let path = root.join(format!("evenkeel-bench-{}", std::process::id()));
    fs::create_dir(&path)?;
    let limited = match path.join(file) {
        // Where memory is not controlled the kernel does not make the file, and this program must not make
        // it.
        file if file.exists() => fs::write(file, limit.to_string()),
        _ => Err(io::Error::other("memory is not controlled here")),
    };
    if let Err(error) = limited {
        let _ = fs::remove_dir(&path);
        return Err(error);
    }
    Ok(path)
}
