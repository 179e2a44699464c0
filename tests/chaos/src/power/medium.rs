//! A disk as it was asked to be, and as it may be after the power failed.
//!
//! - M1: a synced file has its bytes. Each sector of 512 bytes that was written later is there or not, in no
//!   order; the length is one of those it had.
//! - M2: a name is durable when its directory was synced. Names that were not are kept up to some moment, in
//!   their order.
//! - M3: a directory without a durable name takes all that is in it along.

use super::trace::{Act, Step};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use support::rng::Rng;

const SECTOR: usize = 512;

type Names = BTreeMap<OsString, usize>;

#[derive(Clone, Default)]
struct Node {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// Sectors that were written and not synced.
    dirty: BTreeSet<usize>,
    /// The number of the sync that `synced` is of. Of two that overlap the later one to begin counts, whichever
    /// ends first.
    sync_nr: usize,
    is_dir: bool,
}

/// A change of one or two names, made at once.
#[derive(Clone)]
struct Change {
    takes: Option<(usize, OsString)>,
    gives: Option<(usize, OsString, usize)>,
    is_durable: bool,
}

/// An open file.
#[derive(Clone)]
struct Handle {
    node: usize,
    /// Duplicates share their place.
    place: usize,
}

/// See the module.
#[derive(Clone)]
pub struct Medium {
    root: PathBuf,
    nodes: Vec<Node>,
    /// The names in each directory, as the process sees them.
    names: HashMap<usize, Names>,
    /// The names that were there at the beginning.
    first: HashMap<usize, Names>,
    changes: Vec<Change>,
    handles: HashMap<i32, Handle>,
    places: Vec<u64>,
    /// Syncs under way, by thread.
    syncs: HashMap<u32, Sync>,
    syncs_begun: usize,
}

/// A sync that began.
#[derive(Clone)]
struct Sync {
    nr: usize,
    node: usize,
    /// What the file held then.
    then: Vec<u8>,
    /// The number of changes of names until then.
    changes: usize,
}

impl Medium {
    /// The disk with the files that a folder has now, all of them durable.
    pub fn new(root: &Path) -> io::Result<Medium> {
        let mut medium = Medium {
            root: root.to_owned(),
            nodes: vec![Node { is_dir: true, ..Node::default() }],
            names: HashMap::from([(0, Names::new())]),
            first: HashMap::new(),
            changes: Vec::new(),
            handles: HashMap::new(),
            places: Vec::new(),
            syncs: HashMap::new(),
            syncs_begun: 0,
        };
        medium.take_in(0, root)?;
        medium.first = medium.names.clone();
        Ok(medium)
    }

    fn take_in(&mut self, dir: usize, path: &Path) -> io::Result<()> {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let is_dir = entry.file_type()?.is_dir();
            let now = if is_dir { Vec::new() } else { fs::read(entry.path())? };
            let node = self.add(Node { synced: now.clone(), now, is_dir, ..Node::default() });
            self.names.entry(dir).or_default().insert(entry.file_name(), node);
            if is_dir {
                self.take_in(node, &entry.path())?;
            }
        }
        Ok(())
    }

    /// Does what the process asked for. Errors: that cannot have been.
    pub fn apply(&mut self, step: &Step) -> Result<(), String> {
        let act = &step.act;
        let done = match act {
            Act::Open { fd, path, truncates } => self.open(*fd, path, *truncates),
            Act::Close { fd } => {
                self.handles.remove(fd);
                Some(())
            }
            Act::Duplicate { from, to } => {
                match self.handles.get(from).cloned() {
                    Some(handle) => self.handles.insert(*to, handle),
                    None => self.handles.remove(to),
                };
                Some(())
            }
            Act::Write { fd, bytes, at } => {
                self.write(*fd, bytes, *at);
                Some(())
            }
            Act::Seek { fd, at } => {
                if let Some(handle) = self.handles.get(fd) {
                    self.places[handle.place] = *at;
                }
                Some(())
            }
            Act::Truncate { fd, len } => {
                if let Some(handle) = self.handles.get(fd) {
                    self.nodes[handle.node].truncate(*len as usize);
                }
                Some(())
            }
            Act::Syncs { fd, of } => {
                if let Some(Handle { node, .. }) = self.handles.get(fd).cloned() {
                    self.syncs_begun += 1;
                    let (nr, then) = (self.syncs_begun, self.nodes[node].now.clone());
                    self.syncs.insert(*of, Sync { nr, node, then, changes: self.changes.len() });
                }
                Some(())
            }
            Act::Synced { of, .. } => {
                self.synced(*of);
                Some(())
            }
            Act::Rename { from, to } => self.rename(from, to),
            Act::Remove { path } => self.remove(path),
            Act::MakeDir { path } => self.make_dir(path),
        };
        done.ok_or_else(|| format!("the record does not fit the files: {act:?}"))
    }

    /// The directory and last name of a path below the root. None: it is another path.
    fn place(&self, path: &Path) -> Option<(usize, OsString)> {
        let mut parts = path.components();
        let mut dir = 0;
        if path.is_absolute() {
            parts = path.strip_prefix(&self.root).ok()?.components();
        } else if let Some(fd) = path.to_str()?.strip_prefix('#').and_then(|rest| rest.split('/').next()) {
            dir = self.handles.get(&fd.parse().ok()?)?.node;
            parts.next();
        } else {
            return None;
        }
        let parts: Vec<OsString> = parts
            .filter_map(|part| if let Component::Normal(name) = part { Some(name.to_owned()) } else { None })
            .collect();
        let (last, above) = parts.split_last()?;
        for name in above {
            dir = *self.names.get(&dir)?.get(name)?;
        }
        Some((dir, last.clone()))
    }

    fn add(&mut self, node: Node) -> usize {
        let number = self.nodes.len();
        if node.is_dir {
            self.names.insert(number, Names::new());
        }
        self.nodes.push(node);
        number
    }

    fn change(&mut self, takes: Option<(usize, OsString)>, gives: Option<(usize, OsString, usize)>) {
        let change = Change { takes, gives, is_durable: false };
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    fn open(&mut self, fd: i32, path: &Path, truncates: bool) -> Option<()> {
        self.handles.remove(&fd);
        let node = if path == self.root {
            0
        } else if let Some((dir, name)) = self.place(path) {
            match self.names[&dir].get(&name) {
                Some(node) => *node,
                None => {
                    let node = self.add(Node::default());
                    self.change(None, Some((dir, name, node)));
                    node
                }
            }
        } else {
            return Some(());
        };
        if truncates {
            self.nodes[node].truncate(0);
        }
        self.places.push(0);
        self.handles.insert(fd, Handle { node, place: self.places.len() - 1 });
        Some(())
    }

    fn write(&mut self, fd: i32, bytes: &[u8], at: Option<u64>) {
        let Some(handle) = self.handles.get(&fd) else { return };
        let from = at.unwrap_or(self.places[handle.place]);
        if at.is_none() {
            self.places[handle.place] = from + bytes.len() as u64;
        }
        self.nodes[handle.node].write(bytes, from as usize);
    }

    fn synced(&mut self, of: u32) {
        let Some(Sync { nr, node, then, changes }) = self.syncs.remove(&of) else { return };
        if !self.nodes[node].is_dir {
            return self.nodes[node].sync(nr, then);
        }
        for change in &mut self.changes[..changes] {
            let is_in = change.gives.as_ref().is_some_and(|(dir, ..)| *dir == node)
                || change.takes.as_ref().is_some_and(|(dir, _)| *dir == node);
            change.is_durable |= is_in;
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Option<()> {
        let (Some(from), Some((dir, name))) = (self.place(from), self.place(to)) else { return Some(()) };
        let node = *self.names[&from.0].get(&from.1)?;
        self.change(Some(from), Some((dir, name, node)));
        Some(())
    }

    fn remove(&mut self, path: &Path) -> Option<()> {
        let Some((dir, name)) = self.place(path) else { return Some(()) };
        self.names[&dir].get(&name)?;
        self.change(Some((dir, name)), None);
        Some(())
    }

    fn make_dir(&mut self, path: &Path) -> Option<()> {
        let Some((dir, name)) = self.place(path) else { return Some(()) };
        let node = self.add(Node { is_dir: true, ..Node::default() });
        self.change(None, Some((dir, name, node)));
        Some(())
    }

    /// Writes the files as they may be after an outage now into an empty folder.
    pub fn outage(&self, rng: &mut Rng, into: &Path) -> io::Result<()> {
        // M2
        let open = self.changes.iter().filter(|change| !change.is_durable).count();
        let mut kept = if rng.percent(30) { open } else { rng.below(open + 1) };
        let mut names = self.first.clone();
        for change in &self.changes {
            if change.is_durable {
                change.apply(&mut names);
            } else if kept > 0 {
                change.apply(&mut names);
                kept -= 1;
            }
        }
        self.lay_down(0, &names, rng, into)
    }

    fn lay_down(
        &self,
        dir: usize,
        names: &HashMap<usize, Names>,
        rng: &mut Rng,
        into: &Path,
    ) -> io::Result<()> {
        let none = Names::new();
        for (name, node) in names.get(&dir).unwrap_or(&none) {
            let path = into.join(name);
            if self.nodes[*node].is_dir {
                fs::create_dir(&path)?;
                self.lay_down(*node, names, rng, &path)?;
            } else {
                fs::write(path, self.nodes[*node].outage(rng))?;
            }
        }
        Ok(())
    }

    /// The files as the process left them.
    #[cfg(test)]
    fn now(&self, path: &Path) -> Option<&[u8]> {
        let (dir, name) = self.place(path)?;
        Some(&self.nodes[*self.names[&dir].get(&name)?].now)
    }
}

impl Change {
    fn apply(&self, names: &mut HashMap<usize, Names>) {
        if let Some((dir, name)) = &self.takes {
            names.entry(*dir).or_default().remove(name);
        }
        if let Some((dir, name, node)) = &self.gives {
            names.entry(*dir).or_default().insert(name.clone(), *node);
        }
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

    fn truncate(&mut self, len: usize) {
        let from = len.min(self.now.len());
        let until = len.max(self.now.len());
        self.now.resize(len, 0);
        // What was cut off and grows again is zeros, which are not durable either.
        self.dirty.extend(from / SECTOR..until.div_ceil(SECTOR));
    }

    /// Makes durable what the file held when the sync began. What was written since is as unsure as before.
    fn sync(&mut self, nr: usize, then: Vec<u8>) {
        if nr < self.sync_nr {
            return;
        }
        self.sync_nr = nr;
        let sector = |bytes: &[u8], nr: usize| -> Vec<u8> {
            bytes[(nr * SECTOR).min(bytes.len())..((nr + 1) * SECTOR).min(bytes.len())].to_vec()
        };
        self.dirty.retain(|nr| sector(&self.now, *nr) != sector(&then, *nr));
        self.synced = then;
    }

    fn outage(&self, rng: &mut Rng) -> Vec<u8> {
        let keeps_all = rng.percent(25);
        let (low, high) = (self.synced.len().min(self.now.len()), self.synced.len().max(self.now.len()));
        let len = match rng.below(3) {
            _ if keeps_all => self.now.len(),
            0 => self.synced.len(),
            1 => self.now.len(),
            _ => rng.between(low, high),
        };
        let mut file = self.synced.clone();
        file.resize(len, 0);
        for nr in &self.dirty {
            let start = nr * SECTOR;
            let end = (start + SECTOR).min(self.now.len()).min(len);
            if start < end && (keeps_all || rng.percent(50)) {
                file[start..end].copy_from_slice(&self.now[start..end]);
            }
        }
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(act: Act) -> Step {
        Step { at_us: 0, act }
    }

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("evenkeel-medium-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn open(fd: i32, path: PathBuf) -> Act {
        Act::Open { fd, path, truncates: false }
    }

    /// A rename without a sync of the directory is there or not; synced bytes of a file with a durable name
    /// always are.
    #[test]
    fn what_is_durable_is_there_and_the_rest_may_be() {
        let (root, image) = (folder("root"), folder("image"));
        fs::write(root.join("old"), b"old").unwrap();
        let mut medium = Medium::new(&root).unwrap();
        let acts = [
            open(5, root.join("new")),
            Act::Write { fd: 5, bytes: vec![7; 2000], at: None },
            Act::Syncs { fd: 5, of: 1 },
            Act::Syncs { fd: 5, of: 2 },
            Act::Write { fd: 5, bytes: vec![8; 600], at: Some(1000) },
            Act::Synced { fd: 5, of: 2 },
            // It began earlier.
            Act::Synced { fd: 5, of: 1 },
            Act::Rename { from: root.join("new"), to: root.join("old") },
        ];
        acts.map(step).iter().for_each(|step| medium.apply(step).unwrap());
        assert_eq!(medium.now(&root.join("old")).unwrap()[1000], 8);
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            fs::remove_dir_all(&image).unwrap();
            fs::create_dir_all(&image).unwrap();
            medium.outage(&mut Rng::new(seed, 0), &image).unwrap();
            let old = fs::read(image.join("old")).unwrap();
            let is_new = old.len() == 2000 && old[..512] == [7; 512] && old[1999] == 7;
            assert!(old == b"old" || is_new, "{}", old.len());
            seen.insert((
                old.len(),
                image.join("new").exists(),
                old.get(1023).copied(),
                old.get(1535).copied(),
            ));
        }
        assert!(seen.contains(&(3, false, None, None)) && seen.contains(&(3, true, None, None)));
        // Sectors that were written since are there or not, each by itself.
        for (one, other) in [(7, 7), (7, 8), (8, 7), (8, 8)] {
            assert!(seen.contains(&(2000, false, Some(one), Some(other))), "{one} {other}");
        }
    }

    /// Names in a directory that was never made durable are gone with it.
    #[test]
    fn a_directory_without_a_name_takes_its_files_along() {
        let (root, image) = (folder("root2"), folder("image2"));
        let mut medium = Medium::new(&root).unwrap();
        let acts = [
            Act::MakeDir { path: root.join("d") },
            open(4, root.join("d/f")),
            open(5, root.join("d")),
            Act::Syncs { fd: 5, of: 1 },
            Act::Synced { fd: 5, of: 1 },
        ];
        acts.map(step).iter().for_each(|step| medium.apply(step).unwrap());
        let without = (0..50).filter(|seed| {
            fs::remove_dir_all(&image).unwrap();
            fs::create_dir_all(&image).unwrap();
            medium.outage(&mut Rng::new(*seed, 0), &image).unwrap();
            assert_eq!(image.join("d").exists(), image.join("d/f").exists());
            !image.join("d").exists()
        });
        assert!(without.count() > 0);
        let after = [open(6, root.clone()), Act::Syncs { fd: 6, of: 1 }, Act::Synced { fd: 6, of: 1 }];
        after.map(step).iter().for_each(|step| medium.apply(step).unwrap());
        fs::remove_dir_all(&image).unwrap();
        fs::create_dir_all(&image).unwrap();
        medium.outage(&mut Rng::new(1, 0), &image).unwrap();
        assert!(image.join("d/f").exists());
    }
}
