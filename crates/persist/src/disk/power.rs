//! A disk in memory that loses its power, for tests.
//!
//! - B1: after an outage a file has all synced bytes. Each sector of 512 bytes that was not synced is there
//!   or not, in no order.
//! - B2: names that were not synced are kept up to some moment, in their order. A sync of a directory makes the
//!   names in it durable, and not that of itself. What is in a directory whose own name is lost is lost with
//!   it.
//! - B3: a sync that fails loses the sectors. Later syncs succeed, and do not bring them back.

use super::{About, Disk, DiskFile};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SECTOR: usize = 512;

#[derive(Clone, Default)]
struct Node {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// Sectors that were written and not synced.
    dirty: BTreeSet<usize>,
    /// The offset at which `write` goes on.
    at: u64,
}

#[derive(Clone)]
enum Name {
    Gives(PathBuf, usize),
    Takes(PathBuf),
    /// A directory is made, removed, or has another name.
    Makes(PathBuf),
    Unmakes(PathBuf),
    Moves(PathBuf, PathBuf),
}

/// Names of files and of directories. A directory that was there from the start is not among them.
#[derive(Clone, Default)]
struct Names {
    files: BTreeMap<PathBuf, usize>,
    dirs: BTreeSet<PathBuf>,
    /// Directories that do not exist though something may be in them.
    gone: BTreeSet<PathBuf>,
}

#[derive(Default)]
struct Model {
    nodes: Vec<Node>,
    names: Names,
    durable: Names,
    pending: Vec<Name>,
    calls: u64,
    dies_at: Option<u64>,
    sync_fails_at: Option<u64>,
    syncs: u64,
    /// Bytes that all files together may still take.
    room: Option<u64>,
}

/// The disk. Clones are the same one.
#[derive(Clone, Default)]
pub struct Power {
    model: Arc<Mutex<Model>>,
}

/// The files after an outage, by path.
pub type Outage = BTreeMap<PathBuf, Vec<u8>>;

impl Power {
    /// A disk with files that are durable.
    pub fn new(files: Outage) -> Power {
        let disk = Power::default();
        for (path, bytes) in files {
            let mut model = disk.model();
            model.nodes.push(Node { now: bytes.clone(), synced: bytes, ..Node::default() });
            let node = model.nodes.len() - 1;
            model.names.files.insert(path.clone(), node);
            model.durable.files.insert(path, node);
        }
        disk
    }

    /// The power fails before the call with this number. From then on every call fails.
    pub fn dies_at(&self, call: u64) {
        self.model().dies_at = Some(call);
    }

    /// The power fails now.
    pub fn dies(&self) {
        self.model().dies_at = Some(0);
    }

    pub fn is_dead(&self) -> bool {
        let model = self.model();
        model.dies_at.is_some_and(|at| model.calls >= at)
    }

    /// The sync with this number, counted from 0, fails (B3).
    pub fn sync_fails_at(&self, sync: u64) {
        self.model().sync_fails_at = Some(sync);
    }

    /// Limits the bytes in all files together.
    pub fn set_room(&self, bytes: Option<u64>) {
        self.model().room = bytes;
    }

    pub fn calls(&self) -> u64 {
        self.model().calls
    }

    pub fn syncs(&self) -> u64 {
        self.model().syncs
    }

    /// The files as they are, without an outage.
    pub fn files(&self) -> Outage {
        let model = self.model();
        model.names.files.iter().map(|(path, node)| (path.clone(), model.nodes[*node].now.clone())).collect()
    }

    /// The files as they may be after an outage now.
    pub fn outage(&self, seed: u64) -> Outage {
        let mut random = Random(seed | 1);
        let model = self.model();
        let mut names = model.durable.clone();
        let kept = random.below(model.pending.len() + 1);
        model.pending[..kept].iter().for_each(|name| name.apply(&mut names));
        let mut file = |node: &usize| model.nodes[*node].outage(&mut random);
        let there = names.files.iter().filter(|(path, _)| !names.is_lost(path));
        there.map(|(path, node)| (path.clone(), file(node))).collect()
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk for one more call, if it lives.
    fn call(&self) -> io::Result<MutexGuard<'_, Model>> {
        let mut model = self.model();
        if model.dies_at.is_some_and(|at| model.calls >= at) {
            return Err(Errno::IO.into());
        }
        model.calls += 1;
        Ok(model)
    }
}

/// Writes files over what a directory has.
pub fn put_files(files: &Outage, dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        fs::remove_file(entry?.path())?;
    }
    files.iter().try_for_each(|(path, bytes)| fs::write(path, bytes))
}

impl Name {
    fn apply(&self, names: &mut Names) {
        match self {
            Name::Gives(path, node) => drop(names.files.insert(path.clone(), *node)),
            Name::Takes(path) => drop(names.files.remove(path)),
            Name::Makes(dir) => {
                names.dirs.insert(dir.clone());
                names.gone.remove(dir);
            }
            Name::Unmakes(dir) => {
                names.dirs.remove(dir);
                names.gone.insert(dir.clone());
            }
            Name::Moves(from, to) => {
                let inside: Vec<_> =
                    names.files.keys().filter(|path| path.starts_with(from)).cloned().collect();
                for path in inside {
                    let moved = path.strip_prefix(from).map(|rest| to.join(rest));
                    if let (Ok(moved), Some(node)) = (moved, names.files.remove(&path)) {
                        names.files.insert(moved, node);
                    }
                }
                Name::Unmakes(from.clone()).apply(names);
                Name::Makes(to.clone()).apply(names);
            }
        }
    }

    /// Whether a sync of this directory makes it durable (B2).
    fn is_in(&self, dir: &Path) -> bool {
        let path = match self {
            Name::Gives(path, _) | Name::Takes(path) | Name::Makes(path) | Name::Unmakes(path) => path,
            Name::Moves(path, _) => path,
        };
        path.parent() == Some(dir)
    }
}

impl Names {
    /// Whether a file is in a directory that does not exist.
    fn is_lost(&self, path: &Path) -> bool {
        path.ancestors().any(|dir| self.gone.contains(dir))
    }

    fn has_dir(&self, dir: &Path) -> bool {
        self.dirs.contains(dir) || self.files.keys().any(|path| path.starts_with(dir) && path != dir)
    }
}

impl Model {
    fn name(&mut self, name: Name) {
        name.apply(&mut self.names);
        self.pending.push(name);
    }

    fn node(&self, path: &Path) -> io::Result<usize> {
        self.names.files.get(path).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn about(&self, node: usize) -> About {
        About { id: (0, node as u64), len: self.nodes[node].now.len() as u64, modified_ns: 0 }
    }

    fn has_room(&self, more: usize) -> bool {
        let taken: usize = self.names.files.values().map(|node| self.nodes[*node].now.len()).sum();
        self.room.is_none_or(|room| (taken + more) as u64 <= room)
    }
}

impl Node {
    fn write(&mut self, bytes: &[u8], at: usize) {
        let (end, from) = (at + bytes.len(), at.min(self.now.len()));
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        self.now[at..end].copy_from_slice(bytes);
        self.dirty.extend(from / SECTOR..end.div_ceil(SECTOR));
    }

    fn sync(&mut self) {
        self.synced.resize(self.now.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            copy(&self.now, &mut self.synced, sector);
        }
    }

    fn outage(&self, random: &mut Random) -> Vec<u8> {
        let mut file = self.synced.clone();
        let keeps_all = random.below(4) == 0;
        let len = match random.below(3) {
            0 => self.synced.len(),
            1 => self.now.len(),
            _ => {
                let (low, high) =
                    (self.synced.len().min(self.now.len()), self.synced.len().max(self.now.len()));
                low + random.below(high - low + 1)
            }
        };
        file.resize(if keeps_all { self.now.len() } else { len }, 0);
        for sector in &self.dirty {
            if keeps_all || random.below(2) == 0 {
                copy(&self.now, &mut file, *sector);
            }
        }
        file
    }
}

fn copy(from: &[u8], to: &mut [u8], sector: usize) {
    let start = sector * SECTOR;
    let end = (start + SECTOR).min(from.len()).min(to.len());
    if start < end {
        to[start..end].copy_from_slice(&from[start..end]);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % end.max(1)
    }
}

impl Disk for Power {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut model = self.call()?;
        if model.names.files.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        model.nodes.push(Node::default());
        let node = model.nodes.len() - 1;
        model.name(Name::Gives(path.into(), node));
        Ok(Box::new(PowerFile { disk: self.clone(), node }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let node = self.call()?.node(path)?;
        Ok(Box::new(PowerFile { disk: self.clone(), node }))
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        let mut model = self.call()?;
        if !model.names.has_dir(dir) {
            // Until its name is durable, it is not there.
            if !model.durable.has_dir(dir) {
                model.durable.gone.insert(dir.into());
            }
            model.name(Name::Makes(dir.into()));
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut model = self.call()?;
        if model.names.has_dir(from) {
            model.durable.gone.insert(to.into());
            model.name(Name::Moves(from.into(), to.into()));
            return Ok(());
        }
        let node = model.node(from)?;
        // One change of the directory: both names at once.
        model.name(Name::Gives(to.into(), node));
        model.name(Name::Takes(from.into()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut model = self.call()?;
        model.node(path)?;
        model.name(Name::Takes(path.into()));
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let mut model = self.call()?;
        model.name(Name::Unmakes(dir.into()));
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut model = self.call()?;
        let pending = std::mem::take(&mut model.pending);
        let (synced, rest): (Vec<_>, Vec<_>) = pending.into_iter().partition(|name| name.is_in(dir));
        synced.iter().for_each(|name| name.apply(&mut model.durable));
        model.pending = rest;
        Ok(())
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let model = self.model();
        let inside = model.names.files.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| path.file_name().map(PathBuf::from)).collect())
    }

    fn about(&self, path: &Path) -> io::Result<About> {
        let model = self.model();
        if model.names.has_dir(path) {
            return Ok(About { id: (1, 0), len: 0, modified_ns: 0 });
        }
        model.node(path).map(|node| model.about(node))
    }
}

struct PowerFile {
    disk: Power,
    node: usize,
}

impl PowerFile {
    fn put(&self, bytes: &[u8], offset: Option<u64>) -> io::Result<usize> {
        let mut model = self.disk.call()?;
        let at = offset.unwrap_or(model.nodes[self.node].at) as usize;
        let grows = (at + bytes.len()).saturating_sub(model.nodes[self.node].now.len());
        if grows > 0 && !model.has_room(grows) {
            return Err(Errno::NOSPC.into());
        }
        let node = &mut model.nodes[self.node];
        node.write(bytes, at);
        if offset.is_none() {
            node.at += bytes.len() as u64;
        }
        Ok(bytes.len())
    }

    fn sync(&self) -> io::Result<()> {
        let mut model = self.disk.call()?;
        model.syncs += 1;
        let node = self.node;
        if model.sync_fails_at == Some(model.syncs - 1) {
            // B3
            model.nodes[node].dirty.clear();
            return Err(Errno::IO.into());
        }
        model.nodes[node].sync();
        Ok(())
    }
}

impl DiskFile for PowerFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes, None)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.put(bytes, Some(offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut model = self.disk.call()?;
        let node = &mut model.nodes[self.node];
        node.now.resize(len as usize, 0);
        let sectors = node.now.len().div_ceil(SECTOR);
        node.dirty.retain(|sector| *sector < sectors);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.model().nodes[self.node].now.len() as u64)
    }

    fn about(&self) -> io::Result<About> {
        Ok(self.disk.model().about(self.node))
    }

    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        self.disk.call().map(drop)
    }
}
