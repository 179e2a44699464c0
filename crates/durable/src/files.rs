//! The files in `dir`: who may write there, what is loaded, and how.

use crate::Durability;
use crate::aof::Running;
use crate::loading::Load;
use crate::lock::{self, DirLock, NoLock};
use arc_swap::ArcSwapOption;
use config::Config;
use parking_lot::Mutex;
use persist::disk::{Disk, RealDisk};
use persist::{Damaged, IntoKeyspace, Options, Progress, Report, Unknown};
use rdb::file::LeftOut;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// See the module.
pub struct Files {
    pub(crate) config: Arc<Config>,
    /// Through it everything is written and removed.
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) progress: Progress,
    /// Loops look at it, so there is no lock.
    pub(crate) log: ArcSwapOption<Running>,
    home: Home,
}

/// The lock of `dir`, while the server writes there on its own (lock L4).
type Home = Arc<Mutex<Option<Arc<DirLock>>>>;

/// The use of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// There is a log to write, or there are save points.
    Keeps,
    /// It is read at the start, and written when a client asks for it.
    Now,
}

fn use_of(config: &Config) -> Use {
    let keeps = config.live.appendonly.get() || !config.live.save_points.is_empty();
    if keeps { Use::Keeps } else { Use::Now }
}

impl Files {
    /// Takes `dir` for this server, if it keeps its data there (lock L4). It comes before anything is looked
    /// at, and changes nothing but the lock. It waits some seconds for another server that is ending.
    ///
    /// Errors: `dir` is none, another server has it, or there is something wrong with the name of a file.
    pub fn open(config: &Arc<Config>) -> Result<Files, String> {
        Files::open_on(config, Arc::new(RealDisk))
    }

    /// As [`Files::open`], on this file system.
    pub(crate) fn open_on(config: &Arc<Config>, disk: Arc<dyn Disk>) -> Result<Files, String> {
        let files = Files {
            config: config.clone(),
            disk,
            progress: Progress::default(),
            log: ArcSwapOption::empty(),
            home: Home::default(),
        };
        let dir = files.dir();
        check_dir(dir.as_os_str().as_encoded_bytes())?;
        check_name("dbfilename", &config.live.dbfilename.get())?;
        check_name("appendfilename", &config.live.appendfilename.get())?;
        check_name("appenddirname", &config.live.appenddirname.get())?;
        if use_of(config) == Use::Keeps {
            match DirLock::take(&dir, lock::ENDING) {
                Ok(lock) => *files.home.lock() = Some(lock),
                // Its data can be loaded all the same.
                Err(why) if why.is_of_the_disk() && !config.live.appendonly.get() => {}
                Err(why) => return Err(why.to_string()),
            }
        }
        Ok(files)
    }

    /// Removes what saves of processes that are gone left behind, if the directory is this server's. O(names in
    /// it).
    pub fn tidy(&self) {
        let dir = self.dir();
        if self.home.lock().is_none() {
            if use_of(&self.config) == Use::Keeps {
                log::warn!("{} cannot be locked, so nothing can be written there", dir.display());
            }
            return;
        }
        match persist::remove_leftovers(&*self.disk, &dir) {
            Ok(0) => {}
            Ok(removed) => log::info!("removed {removed} unfinished snapshots of former processes"),
            Err(error) => log::warn!("{} cannot be read: {error}", dir.display()),
        }
    }

    /// Refuses a `dir` that another server has, or a name that cannot be used (CONFIG SET).
    pub(crate) fn observer(&self) -> FilesObserver {
        FilesObserver { config: self.config.clone(), home: self.home.clone(), ready: Mutex::default() }
    }

    /// The lock of a directory that is about to be written. A server that keeps its data there has it from now
    /// on.
    ///
    /// Errors: another server has it, or it cannot be written.
    pub(crate) fn hold(&self, dir: &Path) -> Result<Arc<DirLock>, String> {
        let lock = DirLock::take(dir, lock::LETTING_GO).map_err(|why: NoLock| why.to_string())?;
        lock.check()?;
        if use_of(&self.config) == Use::Keeps && dir == self.dir() {
            *self.home.lock() = Some(lock.clone());
        }
        Ok(lock)
    }

    /// The lock for a snapshot's file. None: it is a base, in the directory of a log that has its lock.
    ///
    /// Errors: another server has the directory, or it cannot be written.
    pub(crate) fn hold_for(&self, path: &Path) -> Result<Option<Arc<DirLock>>, String> {
        let dir = path.parent().unwrap_or(Path::new(""));
        if self.is_of_log(dir) { Ok(None) } else { self.hold(dir).map(Some) }
    }

    /// Bytes of the load under way: read so far, and in all.
    pub(crate) fn loaded_bytes(&self) -> (u64, u64) {
        (self.progress.read_bytes.load(Relaxed), self.progress.total_bytes.load(Relaxed))
    }

    /// Whether there is anything to load.
    pub(crate) fn loads_at_start(&self) -> bool {
        self.snapshot().exists() || (self.config.live.appendonly.get() && self.may_have_log())
    }

    /// Loads the log or a snapshot, and goes on with the log. Errors: a sentence; some keys may have been
    /// installed.
    pub(crate) fn load_at_start(&self, durability: &Arc<Durability>) -> Result<(), String> {
        match self.config.live.appendonly.get() {
            true => self.load_and_log(durability),
            false => self.load(durability, None),
        }
    }

    /// Loads a snapshot's file, if there is one, into an empty keyspace: the one that was just written, or,
    /// without any, the one of the configuration. Errors: a sentence; some keys may have been installed.
    pub(crate) fn load(&self, durability: &Arc<Durability>, written: Option<&Path>) -> Result<(), String> {
        let path = written.map_or_else(|| self.snapshot(), Path::to_path_buf);
        if !path.exists() {
            return Ok(());
        }
        let load = Load::begin(durability);
        self.load_file(&path, durability, &load)
    }

    pub(crate) fn dir(&self) -> PathBuf {
        PathBuf::from(self.config.live.dir.string())
    }

    pub(crate) fn snapshot(&self) -> PathBuf {
        self.config.together(|live| PathBuf::from(live.dir.string()).join(live.dbfilename.string()))
    }

    pub(crate) fn options(&self) -> Options {
        let live = &self.config.live;
        Options {
            workers: 0,
            damaged: if live.load_damaged.get() == 1 { Damaged::KeepPrefix } else { Damaged::Refuse },
            unknown: if live.load_unknown.get() == 1 { Unknown::Skip } else { Unknown::Refuse },
        }
    }

    /// Loads a snapshot.
    pub(crate) fn load_file(&self, path: &Path, durability: &Durability, load: &Load) -> Result<(), String> {
        let options = self.options();
        let began = std::time::Instant::now();
        let into = IntoKeyspace::new(&durability.keyspace, stdx::clock::wall_ms(), |code| load.library(code));
        let into = into.merging(load.merges());
        let report = persist::load_file(path, options, &into, &self.progress)
            .map_err(|damage| format!("{}: {damage}", path.display()))?;
        load.note(report.keys.saturating_sub(into.expired()), into.expired());
        for (db, key, kind) in report.skipped.names.iter().take(SKIPPED_SHOWN) {
            log::warn!("left out: key '{}' of database {db}, {kind}", key.escape_ascii());
        }
        if report.skipped.count > 0 {
            log::warn!("{} keys were left out: their types are not supported", report.skipped.count);
        }
        tell_left_out(&report, load);
        if let Some(damage) = &report.damage {
            let rest = persist::set_aside(&*self.disk, path, damage.from)
                .map_err(|error| format!("the damaged rest of {} cannot be kept: {error}", path.display()))?;
            log::error!("{} is damaged: {damage}. Its rest is kept in {}", path.display(), rest.display());
            load.note_damage(rest.display().to_string());
        }
        let is_all = report.damage.is_none() && report.skipped.count == 0;
        load.note_place(into.place().filter(|_| is_all));
        let (keys, expired) = (report.keys.saturating_sub(into.expired()), into.expired());
        let took = began.elapsed().as_secs_f64();
        log::info!("loaded {}: {keys} keys, {expired} expired ones left out, in {took:.2} s", path.display());
        Ok(())
    }
}

/// Says what of the keys of a file was left out, and counts it for INFO.
pub(crate) fn tell_left_out(report: &Report, load: &Load) {
    let LeftOut { keys_with_metadata } = report.left_out;
    load.note_stripped(keys_with_metadata);
    if keys_with_metadata > 0 {
        log::warn!("metadata of modules was left out of {keys_with_metadata} keys");
    }
}

/// Keys that are named in the log.
const SKIPPED_SHOWN: usize = 20;

/// A name of a file or directory has to be one of `dir`.
fn check_name(directive: &str, name: &[u8]) -> Result<(), String> {
    if name.is_empty() || name.contains(&b'/') || name == b"." || name == b".." {
        return Err(format!("{directive} can't be a path, just a filename"));
    }
    Ok(())
}

/// Whether `dir` is a directory.
fn check_dir(dir: &[u8]) -> Result<(), String> {
    let dir = String::from_utf8_lossy(dir).into_owned();
    match std::fs::metadata(&dir) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(format!("Can't use the directory {dir}: Not a directory")),
        Err(error) => {
            let text = error.to_string();
            Err(format!(
                "Can't use the directory {dir}: {}",
                text.split(" (os error").next().unwrap_or(&text)
            ))
        }
    }
}

/// See [`Files::observer`].
pub(crate) struct FilesObserver {
    config: Arc<Config>,
    home: Home,
    /// The lock of the directory that a change under way names.
    ready: Mutex<Option<Arc<DirLock>>>,
}

impl config::Observer for FilesObserver {
    fn prepare(&self, config: &Config, changes: &[(&config::Directive, Vec<u8>)]) -> Result<(), String> {
        let value = |name| changes.iter().find(|(row, _)| row.name == name).map(|(_, value)| &value[..]);
        let begins_log = value("appendonly") == Some(b"yes");
        let dir = value("dir");
        if dir.is_none() && !begins_log {
            return Ok(());
        }
        let dir = dir.map_or_else(|| config.live.dir.get().to_vec(), <[u8]>::to_vec);
        check_dir(&dir)?;
        // The one that is left is let go of once this one is there.
        match DirLock::take(Path::new(OsStr::from_bytes(&dir)), lock::LETTING_GO) {
            Ok(lock) => *self.ready.lock() = Some(lock),
            Err(why) if why.is_of_the_disk() && !begins_log => {}
            Err(why) => return Err(why.to_string()),
        }
        Ok(())
    }

    fn settle(&self) {
        let ready = self.ready.lock().take();
        // A server that keeps nothing lets go of it.
        if ready.is_some() && use_of(&self.config) == Use::Keeps {
            *self.home.lock() = ready;
        }
    }

    fn give_up(&self) {
        *self.ready.lock() = None;
    }

    fn check(&self, directive: &config::Directive, value: &config::Parsed) -> Result<(), String> {
        let text = directive.kind.shown(value);
        match directive.name {
            "dbfilename" => check_name("dbfilename", &text),
            _ => Ok(()),
        }
    }
}
