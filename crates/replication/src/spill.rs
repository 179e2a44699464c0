//! Stream that waits for replicas which still load: from memory to a file, and back.
//!
//! - S1: the file has no name. It is begun anew when nothing of it is needed.
//! - S2: the order thread and the loops never wait for the disk: this runs on the thread `replicas`.

use crate::backlog::Backlog;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes beyond the backlog's size that stay in memory.
const ROOM: u64 = 32 << 20;

/// See the module.
#[derive(Default)]
pub(crate) struct Spill {
    file: Option<Arc<File>>,
    in_memory: bool,
    end: u64,
}

impl Spill {
    /// Stores what is too much for memory. `dir`: where the file is made. O(bytes)
    ///
    /// Errors: the disk's. What was not stored stays in memory.
    pub(crate) fn tend(&mut self, backlog: &Backlog, dir: &Path) -> io::Result<()> {
        self.tend_above(backlog, dir, ROOM)
    }

    /// Bytes of the file, if it is in memory. O(1)
    pub(crate) fn in_memory_bytes(&self) -> u64 {
        if self.in_memory { self.end } else { 0 }
    }

    fn tend_above(&mut self, backlog: &Backlog, dir: &Path, room: u64) -> io::Result<()> {
        if self.file.is_some() && backlog.stored_bytes() == 0 {
            (self.file, self.end) = (None, 0);
        }
        for (start, bytes) in backlog.to_store(room) {
            let file = match &self.file {
                Some(file) => file.clone(),
                None => {
                    let (file, in_memory) = place(dir)?;
                    self.in_memory = in_memory;
                    self.file.insert(Arc::new(file)).clone()
                }
            };
            file.write_all_at(&bytes, self.end)?;
            backlog.stored(start, bytes.len(), &file, self.end);
            self.end += bytes.len() as u64;
        }
        Ok(())
    }
}

/// A new file, and whether it is in memory, as `dir` is missing or may not be written: `repl-spool-max`
/// bounds it there as well.
fn place(dir: &Path) -> io::Result<(File, bool)> {
    match nameless(dir, u64::MAX) {
        Err(error) if persist::disk::is_without_place(error.kind()) => {
            Ok((persist::disk::in_memory(u64::MAX)?.1, true))
        }
        made => Ok((made?, false)),
    }
}

/// A new file without a name. For a moment it has one with this number, which belongs to the caller alone.
///
/// Errors: the disk's.
pub fn nameless(dir: &Path, number: u64) -> io::Result<File> {
    // A start removes what a killed process left between the two steps.
    let path = dir.join(format!("temp-{}-{number}.rdb", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backlog::{Hold, Next};
    use persist::stream::{Block, Item};

    fn read(hold: &Hold, mut at: u64) -> (Vec<u8>, usize) {
        let (mut all, mut stored) = (Vec::new(), 0);
        loop {
            match hold.read(at) {
                Next::Bytes(bytes, from) => all.extend_from_slice(&bytes[from..]),
                Next::Stored(file, place, len) => {
                    let mut bytes = vec![0; len];
                    file.read_exact_at(&mut bytes, place).unwrap();
                    all.extend_from_slice(&bytes);
                    stored += len;
                }
                Next::End => return (all, stored),
                Next::Gone => panic!("it is gone"),
            }
            at = 1 + all.len() as u64;
        }
    }

    #[test]
    fn a_file_in_memory_is_counted_until_nobody_needs_it() {
        let folder = tempfile::tempdir().unwrap();
        for (dir, in_memory) in [(folder.path().to_owned(), false), (folder.path().join("none"), true)] {
            let backlog = Backlog::new(1, Box::new(|| {}));
            backlog.begin(0);
            let mut tap = backlog.outlet();
            let id = backlog.figures().ids.id;
            let (hold, ..) = backlog.go_on(id.as_bytes(), 2).unwrap();
            let mut spill = Spill::default();
            for n in 0..10u8 {
                let bytes = vec![n; 20_000];
                tap.take(Item::Block(Block { first: n.into(), last: n.into(), bytes, groups: 1 }));
            }
            spill.tend_above(&backlog, &dir, 0).unwrap();
            assert_eq!(spill.in_memory_bytes() >= 100_000, in_memory, "{}", spill.in_memory_bytes());
            drop(hold);
            tap.take(Item::Block(Block { first: 10, last: 10, bytes: vec![0; 20_000], groups: 1 }));
            spill.tend_above(&backlog, &dir, 1 << 30).unwrap();
            assert_eq!((spill.in_memory_bytes(), spill.file.is_some()), (0, false));
        }
    }

    #[test]
    fn what_a_loading_replica_lacks_is_read_from_memory_and_from_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let backlog = Backlog::new(50_000, Box::new(|| {}));
        backlog.begin(0);
        let mut tap = backlog.outlet();
        let id = backlog.figures().ids.id;
        let (hold, at, _) = backlog.go_on(id.as_bytes(), 2).unwrap();
        let mut spill = Spill::default();
        let mut told = Vec::new();
        for n in 0..100u8 {
            let bytes = vec![n; 7_000];
            told.extend_from_slice(&bytes);
            tap.take(Item::Block(Block { first: n.into(), last: n.into(), bytes, groups: 1 }));
            spill.tend_above(&backlog, dir.path(), 10_000).unwrap();
        }
        assert!(backlog.figures().memory_bytes < 90_000);
        let (all, stored) = read(&hold, at);
        assert!(all == told && stored > 500_000, "{} of {}, {stored} stored", all.len(), told.len());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        drop(hold);
        tap.take(Item::Block(Block { first: 200, last: 200, bytes: vec![1; 60_000], groups: 1 }));
        assert_eq!(backlog.stored_bytes(), 0);
        spill.tend_above(&backlog, dir.path(), 10_000).unwrap();
        assert!(spill.file.is_none());
    }
}
