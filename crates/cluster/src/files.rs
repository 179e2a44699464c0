//! The engine `file`: a directory on one machine, for development. Its processes see each other by it alone.
//!
//! ```text
//! DIR/format                            1
//! DIR/NAME/lock                         flock'ed by whoever reads or changes
//! DIR/NAME/00000000000000000712.map     a change: V and the value, or D; its number is its revision
//! DIR/NAME/compacted                    the last revision of which a change may be gone
//! DIR/NAME/leases/SHARD.712             flock'ed by the holder of epoch 712; in it: until when, by boot time
//! ```
//!
//! - FD1: revisions are contiguous: each change is one file, made by a rename under the lock. The newest file
//!   is never removed, so revisions, and with them epochs, never go back.
//! - FD2: a lease ends when its process ends, as the kernel takes its lock, or when its time passes (a process
//!   that is stopped). Whoever notices writes that down as a change. `flock` is one of the open file, not of
//!   the process: files are closed on exec, so children do not hold it on.
//! - FD3: a process that is killed leaves no half of a change, and no lock. A power failure may.
//!
//! Cost: each call lists the directory, some hundred names. A watch lists it each 50 ms.

use crate::coordinator::{
    CALL_LIMIT, Cas, Change, Coordinator, Ended, Entry, Held, Lease, NodeId, Renewed, Revision, ShardId,
    Stop, Trouble, boot_ns, check_key, next_key, random, shard_key,
};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The version of the directory's layout.
const FORMAT: u32 = 1;
/// The time between two looks of a watch.
const POLL: Duration = Duration::from_millis(50);
/// Changes that are kept for watches, beside the newest of each key.
const HISTORY: u64 = 256;
/// Digits of a revision in a file's name, and of a time in a lease's file.
const DIGITS: usize = 20;

/// A directory as coordinator. See the module.
pub struct Files {
    dir: PathBuf,
    shown: String,
    /// Names this object, so that an earlier process of the same node is another holder.
    session: u64,
    /// Locked files of own leases, by epoch.
    own: Mutex<HashMap<u64, File>>,
}

impl Files {
    /// Opens the directory, or makes it. Errors: a sentence that says what to do.
    pub fn open(dir: &Path, name: &str) -> Result<Files, String> {
        let wrong = |e: io::Error| format!("cluster-coordinator file:{}: {e}", dir.display());
        if !dir.is_absolute() {
            return Err(format!(
                "cluster-coordinator file:{}: name the directory from the root, as file:/tmp/cluster, so that all \
                 nodes mean the same one",
                dir.display()
            ));
        }
        let own = dir.join(name);
        fs::create_dir_all(own.join("leases")).map_err(wrong)?;
        let session = random()?;
        check_format(dir, session).map_err(wrong)?;
        let shown = format!("file:{} (development only)", dir.display());
        log::warn!("cluster-coordinator {shown}: all nodes must be on this machine");
        Ok(Files { dir: own, shown, session, own: Mutex::default() })
    }

    /// Waits for the lock, and lists what is there. Errors: somebody holds it for too long.
    fn lock(&self) -> Result<Locked<'_>, Trouble> {
        let until = Instant::now() + CALL_LIMIT;
        loop {
            match self.try_lock()? {
                Some(locked) => return Ok(locked),
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                None => return Err(self.trouble("lock", "another process holds it")),
            }
        }
    }

    /// None: somebody has the lock.
    fn try_lock(&self) -> Result<Option<Locked<'_>>, Trouble> {
        let wrong = |e: io::Error| self.trouble("lock", &e.to_string());
        let file = open_file(&self.dir.join("lock")).map_err(wrong)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
            Err(e) => return Err(wrong(e.into())),
        }
        let changes = self.list()?;
        let newest = changes.last_key_value().map_or(0, |(revision, _)| *revision);
        let mut keys = BTreeMap::new();
        for (revision, key) in &changes {
            keys.insert(key.clone(), *revision);
        }
        Ok(Some(Locked { at: self, _file: file, keys, changes, newest }))
    }

    /// The changes that are there, by revision.
    fn list(&self) -> Result<BTreeMap<Revision, String>, Trouble> {
        let wrong = |e: io::Error| self.trouble("", &e.to_string());
        let mut found = BTreeMap::new();
        for item in fs::read_dir(&self.dir).map_err(wrong)? {
            let name = item.map_err(wrong)?.file_name();
            let name = name.to_string_lossy();
            if let Some((revision, key)) = name.split_once('.')
                && revision.len() == DIGITS
                && let Ok(revision) = revision.parse()
            {
                found.insert(revision, key.replace('~', "/"));
            }
        }
        Ok(found)
    }

    /// A change's file. Some with nothing in it: a removal.
    fn change(&self, revision: Revision, key: &str) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = fs::read(self.path_of(revision, key))?;
        match bytes.first() {
            Some(b'V') => {
                bytes.remove(0);
                Ok(Some(bytes))
            }
            Some(b'D') => Ok(None),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    fn path_of(&self, revision: Revision, key: &str) -> PathBuf {
        self.dir.join(format!("{revision:0DIGITS$}.{}", key.replace('/', "~")))
    }

    fn lease_path(&self, shard: &str, epoch: u64) -> PathBuf {
        self.dir.join("leases").join(format!("{shard}.{epoch}"))
    }

    fn compacted(&self) -> Revision {
        let text = fs::read_to_string(self.dir.join("compacted"));
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn trouble(&self, file: &str, why: &str) -> Trouble {
        Trouble::new(format!("{}: {why}", self.dir.join(file).display()))
    }

    /// The change as a watch tells it. None: it is gone.
    fn told(&self, revision: Revision, key: &str) -> Result<Option<Change>, Trouble> {
        match self.change(revision, key) {
            Ok(value) => {
                let entry = value.map(|value| entry(key, revision, value));
                Ok(Some(Change { key: key.to_owned(), revision, entry }))
            }
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.trouble(key, &e.to_string())),
        }
    }

    /// Tells the changes behind `after` in order, and moves it.
    fn tell_from(
        &self,
        prefix: &str,
        after: &mut Revision,
        seen: &mut dyn FnMut(Change),
    ) -> Result<(), Ended> {
        let broken = |trouble| Ended::Broken(trouble);
        let changes = self.list().map_err(broken)?;
        while let Some(key) = changes.get(&(*after + 1)) {
            let Some(change) = self.told(*after + 1, key).map_err(broken)? else { break };
            *after += 1;
            if key.starts_with(prefix) {
                seen(change);
            }
        }
        // A hole: it is compacted, or the list was made while files came.
        let behind = changes.last_key_value().is_some_and(|(newest, _)| newest > after);
        if behind && self.compacted() > *after { Err(Ended::Compacted) } else { Ok(()) }
    }
}

impl Coordinator for Files {
    fn describe(&self) -> String {
        self.shown.clone()
    }

    fn acquire(&self, shard: &ShardId, me: &NodeId, ttl: Duration) -> Result<Lease, Held> {
        let until = boot_ns() + ttl.as_nanos() as u64;
        let mut locked = self.lock().map_err(Held::Trouble)?;
        locked.acquire(shard, me, ttl, until)
    }

    fn renew(&self, lease: &Lease) -> Renewed {
        let until = boot_ns() + lease.ttl.as_nanos() as u64;
        let mut locked = match self.lock() {
            Ok(locked) => locked,
            Err(trouble) => return Renewed::Unknown(trouble),
        };
        match locked.is_own(lease) {
            Ok(true) => {}
            Ok(false) => return Renewed::Lost,
            Err(trouble) => return Renewed::Unknown(trouble),
        }
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        match own.get(&lease.epoch).map(|file| write_until(file, until)) {
            Some(Ok(())) => Renewed::Kept,
            Some(Err(e)) => Renewed::Unknown(self.trouble("leases", &e.to_string())),
            None => Renewed::Lost,
        }
    }

    fn release(&self, lease: Lease, next: Option<&NodeId>) -> Result<(), Trouble> {
        let mut locked = self.lock()?;
        if locked.is_own(&lease)? {
            if let Some(next) = next {
                let until = boot_ns() + lease.ttl.as_nanos() as u64;
                locked.put(&next_key(&lease.shard), Some(format!("{next} {until}").as_bytes()))?;
            }
            locked.end(&lease.shard, lease.epoch)?;
        }
        self.own.lock().unwrap_or_else(PoisonError::into_inner).remove(&lease.epoch);
        Ok(())
    }

    fn read(&self, prefix: &str) -> Result<(Revision, Vec<Entry>), Trouble> {
        let mut locked = self.lock()?;
        locked.end_leases(prefix)?;
        let mut entries = Vec::new();
        for (key, revision) in locked.keys.iter().filter(|(key, _)| key.starts_with(prefix)) {
            if let Some(value) = locked.value(key)? {
                entries.push(entry(key, *revision, value));
            }
        }
        Ok((locked.newest, entries))
    }

    fn cas(&self, key: &str, expected: Revision, value: Option<&[u8]>) -> Cas {
        match check_key(key).and_then(|()| self.lock()).and_then(|mut at| at.cas(key, expected, value)) {
            Ok(answer) => answer,
            Err(trouble) => Cas::Unknown(trouble),
        }
    }

    fn watch(&self, prefix: &str, after: Revision, stop: &Stop, seen: &mut dyn FnMut(Change)) -> Ended {
        let mut after = after;
        if self.compacted() > after {
            return Ended::Compacted;
        }
        loop {
            // If another process is at work it is asked again soon.
            let ended =
                self.try_lock().and_then(|locked| locked.map_or(Ok(()), |mut at| at.end_leases(prefix)));
            if let Err(trouble) = ended {
                return Ended::Broken(trouble);
            }
            if let Err(ended) = self.tell_from(prefix, &mut after, seen) {
                return ended;
            }
            if stop.wait(POLL) {
                return Ended::Stopped;
            }
        }
    }
}

/// The directory while nobody else changes it.
struct Locked<'a> {
    at: &'a Files,
    _file: File,
    /// The newest revision of each key, removed ones too.
    keys: BTreeMap<String, Revision>,
    changes: BTreeMap<Revision, String>,
    newest: Revision,
}

impl Locked<'_> {
    fn value(&self, key: &str) -> Result<Option<Vec<u8>>, Trouble> {
        let Some(revision) = self.keys.get(key) else { return Ok(None) };
        self.at.change(*revision, key).map_err(|e| self.at.trouble(key, &e.to_string()))
    }

    /// Writes a change at the next revision, which it returns (FD1).
    fn put(&mut self, key: &str, value: Option<&[u8]>) -> Result<Revision, Trouble> {
        let revision = self.newest + 1;
        let wrong = |e: io::Error| self.at.trouble(key, &e.to_string());
        let bytes = value.map_or_else(|| b"D".to_vec(), |value| [b"V", value].concat());
        let temporary = self.at.dir.join("tmp");
        fs::write(&temporary, bytes).map_err(wrong)?;
        fs::rename(&temporary, self.at.path_of(revision, key)).map_err(wrong)?;
        self.newest = revision;
        self.keys.insert(key.to_owned(), revision);
        self.changes.insert(revision, key.to_owned());
        self.forget()?;
        Ok(revision)
    }

    /// Removes changes that are old and not the newest of their keys.
    fn forget(&mut self) -> Result<(), Trouble> {
        if self.changes.len() < self.keys.len() + 2 * HISTORY as usize {
            return Ok(());
        }
        let wrong = |e: io::Error| self.at.trouble("compacted", &e.to_string());
        let up_to = self.newest - HISTORY;
        let temporary = self.at.dir.join("tmp");
        fs::write(&temporary, up_to.to_string()).map_err(wrong)?;
        fs::rename(&temporary, self.at.dir.join("compacted")).map_err(wrong)?;
        let old: Vec<_> =
            self.changes.range(..=up_to).map(|(revision, key)| (*revision, key.clone())).collect();
        for (revision, key) in old {
            let newest = self.keys.get(&key) == Some(&revision);
            if !newest || self.at.change(revision, &key).is_ok_and(|value| value.is_none()) {
                let _ = fs::remove_file(self.at.path_of(revision, &key));
                self.changes.remove(&revision);
                if newest {
                    self.keys.remove(&key);
                }
            }
        }
        Ok(())
    }

    fn cas(&mut self, key: &str, expected: Revision, value: Option<&[u8]>) -> Result<Cas, Trouble> {
        let now = match self.value(key)? {
            Some(_) => self.keys[key],
            None => 0,
        };
        match (now == expected, value) {
            (false, _) => Ok(Cas::Conflict(now)),
            (true, None) if now == 0 => Ok(Cas::Done(self.newest)),
            (true, value) => Ok(Cas::Done(self.put(key, value)?)),
        }
    }

    fn acquire(&mut self, shard: &ShardId, me: &NodeId, ttl: Duration, until: u64) -> Result<Lease, Held> {
        self.end_leases(&shard_key(shard)).map_err(Held::Trouble)?;
        let lease = |epoch| Lease { shard: shard.clone(), node: me.clone(), epoch, ttl, handle: epoch };
        if let Some(holder) = self.value(&shard_key(shard)).map_err(Held::Trouble)? {
            let epoch = self.keys[&shard_key(shard)];
            let own = self.at.own.lock().unwrap_or_else(PoisonError::into_inner);
            return match (own.get(&epoch), holder == self.holder(me)) {
                (Some(file), true) => match write_until(file, until) {
                    Ok(()) => Ok(lease(epoch)),
                    Err(e) => Err(Held::Trouble(self.at.trouble("leases", &e.to_string()))),
                },
                _ => Err(Held::By(node_of(&holder))),
            };
        }
        self.take(shard, me, until).map(lease)
    }

    /// Takes a lease that nobody holds. Returns its epoch.
    fn take(&mut self, shard: &ShardId, me: &NodeId, until: u64) -> Result<u64, Held> {
        let next = next_key(shard);
        if let Some(value) = self.value(&next).map_err(Held::Trouble)? {
            let text = String::from_utf8_lossy(&value).into_owned();
            let (node, kept) = text.split_once(' ').unwrap_or((&text, "0"));
            if node != &**me && boot_ns() < kept.parse().unwrap_or(0) {
                return Err(Held::For(node_of(node.as_bytes())));
            }
            self.put(&next, None).map_err(Held::Trouble)?;
        }
        let epoch = self.newest + 1;
        let wrong = |e: io::Error| Held::Trouble(self.at.trouble("leases", &e.to_string()));
        let file = open_file(&self.at.lease_path(shard, epoch)).map_err(wrong)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| wrong(e.into()))?;
        write_until(&file, until).map_err(wrong)?;
        let holder = self.holder(me);
        self.put(&shard_key(shard), Some(&holder)).map_err(Held::Unknown)?;
        self.at.own.lock().unwrap_or_else(PoisonError::into_inner).insert(epoch, file);
        Ok(epoch)
    }

    fn holder(&self, me: &NodeId) -> Vec<u8> {
        format!("{me} {:016x}", self.at.session).into_bytes()
    }

    /// Whether a lease is the shard's, and its time has not passed.
    fn is_own(&mut self, lease: &Lease) -> Result<bool, Trouble> {
        self.end_leases(&shard_key(&lease.shard))?;
        let held = self.value(&shard_key(&lease.shard))?.is_some();
        Ok(held && self.keys[&shard_key(&lease.shard)] == lease.epoch)
    }

    /// Writes down which leases have ended (FD2), of the shards whose keys may begin with `prefix`.
    fn end_leases(&mut self, prefix: &str) -> Result<(), Trouble> {
        let shards: Vec<_> = self
            .keys
            .iter()
            .filter_map(|(key, revision)| Some((key.strip_prefix("shard/")?.to_owned(), *revision)))
            .filter(|(shard, _)| !shard.contains('/'))
            .filter(|(shard, _)| prefix.is_empty() || format!("shard/{shard}").starts_with(prefix))
            .collect();
        for (shard, epoch) in shards {
            if self.value(&format!("shard/{shard}"))?.is_some() && self.has_ended(&shard, epoch)? {
                self.end(&shard, epoch)?;
            }
        }
        Ok(())
    }

    fn has_ended(&self, shard: &str, epoch: u64) -> Result<bool, Trouble> {
        let wrong = |e: io::Error| self.at.trouble("leases", &e.to_string());
        let file = match File::open(self.at.lease_path(shard, epoch)) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(true),
            Err(e) => return Err(wrong(e)),
        };
        let mut digits = [0; DIGITS];
        let read = file.read_exact_at(&mut digits, 0);
        let until: Option<u64> =
            read.ok().and_then(|()| std::str::from_utf8(&digits).ok()).and_then(|text| text.parse().ok());
        if until.is_none_or(|until| boot_ns() >= until) {
            return Ok(true);
        }
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(wrong(e.into())),
        }
    }

    fn end(&mut self, shard: &str, epoch: u64) -> Result<(), Trouble> {
        self.put(&format!("shard/{shard}"), None)?;
        let _ = fs::remove_file(self.at.lease_path(shard, epoch));
        Ok(())
    }
}

/// An entry as it is told: of a shard, without its holder's session.
fn entry(key: &str, revision: Revision, value: Vec<u8>) -> Entry {
    let of_shard = key.starts_with("shard/");
    let value = if of_shard { first_word(&value).to_vec() } else { value };
    Entry { key: key.to_owned(), value, revision, epoch: if of_shard { revision } else { 0 } }
}

fn first_word(value: &[u8]) -> &[u8] {
    value.split(|b| *b == b' ').next().unwrap_or_default()
}

/// The node that a holder's value names.
fn node_of(value: &[u8]) -> NodeId {
    let text = String::from_utf8_lossy(first_word(value));
    NodeId::new(&text).unwrap_or_else(|_| NodeId::new("unknown").expect("a word"))
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// One write of a fixed length, so it is there whole or not at all.
fn write_until(file: &File, until: u64) -> io::Result<()> {
    file.write_all_at(format!("{until:0DIGITS$}").as_bytes(), 0)
}

/// Refuses a directory of a newer layout; names the layout in a new one.
fn check_format(dir: &Path, session: u64) -> io::Result<()> {
    let path = dir.join("format");
    match fs::read_to_string(&path) {
        Ok(text) => match text.trim().parse::<u32>() {
            Ok(format) if format <= FORMAT => Ok(()),
            Ok(format) => Err(io::Error::other(format!(
                "the directory has format {format}, and this version knows up to {FORMAT}: update this node, or name \
                 an empty directory"
            ))),
            Err(_) => Err(io::Error::other("'format' is no number: name an empty directory")),
        },
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let temporary = dir.join(format!("format.{session:016x}"));
            fs::write(&temporary, format!("{FORMAT}\n"))?;
            fs::rename(&temporary, &path)
        }
        Err(e) => Err(e),
    }
}
