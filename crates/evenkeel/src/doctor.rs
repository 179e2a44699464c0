//! `evenkeel doctor`: checks and describes the files of a server that is not running, and cuts a torn end
//! off.
//!
//! Memory is bounded whatever the files say. Exit codes: 0 if everything is sound, 1 if something is not, 2
//! for a wrong call.

use durable::DirLock;
use indicatif::{ProgressBar, ProgressStyle};
use persist::disk::RealDisk;
use persist::{Place, describe, describe_log, repair_log};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub const HELP: &str = "\
usage: evenkeel doctor FILE|DIR [--fix]
       evenkeel doctor lost-N.aof [--replay HOST:PORT]

Checks an RDB file, the directory of an append-only log, or a directory that holds both, and describes what is there: keys by
type, the largest values, bytes by prefix, expiries, and damage with its offset. The server that uses them should not be running.

  --fix       cut off the torn end of an append-only log
  --replay    run the writes that were lost to another primary at that server, which may have newer ones by now
";

/// The result of a call: the text, and whether all is sound.
pub struct Finding {
    pub text: String,
    pub is_sound: bool,
}

/// Runs `evenkeel doctor` with the words behind it.
///
/// Errors: a wrong call, or nothing to look at.
pub fn run(words: &[OsString]) -> Result<Finding, String> {
    let (mut path, mut fixes, mut replays) = (None, false, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--help" | "-h") => return Ok(Finding { text: HELP.to_owned(), is_sound: true }),
            Some("--fix") => fixes = true,
            Some("--replay") => {
                let to = words.next().and_then(|to| to.to_str()).ok_or("--replay needs HOST:PORT")?;
                replays = Some(to.to_owned());
            }
            Some(option) if option.starts_with("--") => {
                return Err(format!("There is no option {option}; there are --fix and --replay.\n\n{HELP}"));
            }
            _ if path.is_none() => path = Some(PathBuf::from(word)),
            _ => return Err(format!("One file or directory at a time.\n\n{HELP}")),
        }
    }
    let path = path.ok_or_else(|| HELP.to_owned())?;
    if is_lost(&path) {
        return lost(&path, replays.as_deref());
    }
    if path.is_dir() { directory(&path, fixes) } else { file(&path) }
}

/// A file of writes that were lost to another primary.
fn is_lost(path: &Path) -> bool {
    let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
    name.starts_with(b"lost-") && name.ends_with(b".aof") && path.is_file()
}

/// Lost writes that are shown.
const LOST_SHOWN: usize = 20;

fn lost(path: &Path, replays: Option<&str>) -> Result<Finding, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let about = crate::replicas::lost::describe(path).map_err(failed)?;
    let certain =
        if about.is_certain { "the new primary lacks them" } else { "the new primary may have some of them" };
    let whole = if about.is_whole { "" } else { "; earlier ones are not in the file" };
    let mut text = format!(
        "{}\n{} writes of history {}, offsets {} to {}: {certain}{whole}\n",
        path.display(),
        about.commands,
        about.id,
        about.first,
        about.end
    );
    let (dir, name) = (path.parent().unwrap_or(Path::new(".")), about.name.as_str());
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    for write in crate::replicas::lost::writes(dir, name, LOST_SHOWN)? {
        let words: Vec<String> = write.words.iter().map(|word| word.escape_ascii().to_string()).collect();
        let _ = writeln!(text, "  {} ms, database {}: {}", write.wall_ms, write.db, words.join(" "));
    }
    if about.commands > LOST_SHOWN as u64 {
        let _ = writeln!(text, "  .. and {} more", about.commands - LOST_SHOWN as u64);
    }
    if let Some(to) = replays {
        let (done, refused) = crate::replicas::lost::replay(path, to)?;
        let _ = writeln!(text, "{done} writes were run at {to}, {refused} of them were refused");
        return Ok(Finding { text, is_sound: refused == 0 });
    }
    Ok(Finding { text, is_sound: true })
}

/// A log's directory, or one that holds such a directory and snapshots.
fn directory(dir: &Path, fixes: bool) -> Result<Finding, String> {
    let mut found = Finding { text: String::new(), is_sound: true };
    let mut seen = 0;
    for path in entries(dir)? {
        let one = match path.is_dir() {
            true => log_in(&path, fixes)?,
            false if is_temporary(&path) => None,
            false if path.extension().is_some_and(|ending| ending == "rdb") && !is_of_log(&path) => {
                Some(file(&path)?)
            }
            false => None,
        };
        seen += usize::from(one.is_some());
        found.join(one);
    }
    if let Some(log) = log_in(dir, fixes)? {
        return Ok(log);
    }
    match seen {
        0 => Err(format!("{}: neither an append-only log nor a snapshot is here.", dir.display())),
        _ => Ok(found),
    }
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    paths.sort();
    Ok(paths)
}

/// A file that was being written.
fn is_temporary(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"temp-"))
}

/// Bases are described with their log.
fn is_of_log(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().ends_with(b".base.rdb"))
}

/// The log of a directory, if it has a manifest.
fn log_in(dir: &Path, fixes: bool) -> Result<Option<Finding>, String> {
    const ENDING: &[u8] = b".manifest";
    let paths = entries(dir)?;
    let manifest = paths.iter().filter_map(|path| path.file_name()?.as_bytes().strip_suffix(ENDING)).next();
    let Some(name) = manifest else { return Ok(None) };
    let place = Place::new(dir, name.to_vec());
    let mut text = format!("{}\n", dir.display());
    let described = describe_log(&place, stdx::clock::wall_ms());
    let Some(log) = described.map_err(|error| error.to_string())? else { return Ok(None) };
    let _ = writeln!(text, "{log}");
    let mut is_sound = log.is_sound();
    if fixes {
        let _lock = lock(dir)?;
        let repaired = repair_log(&RealDisk, &place).map_err(|error| format!("{text}{error}"))?;
        for cut in &repaired.cut {
            let _ = writeln!(
                text,
                "{}: {} bytes behind offset {} were cut off",
                cut.file.display(),
                cut.bytes,
                cut.from
            );
        }
        if repaired.cut.is_empty() {
            text.push_str("nothing had to be repaired\n");
        }
    } else {
        is_sound &= !log.is_torn();
    }
    Ok(Some(Finding { text, is_sound }))
}

/// Keeps servers out of the directory that a log's is in. `None`: the disk cannot lock, and a copy needs no
/// lock.
///
/// Errors: a server uses it.
fn lock(dir: &Path) -> Result<Option<Arc<DirLock>>, String> {
    let above = match dir.file_name() {
        Some(_) => dir.parent().map(Path::to_path_buf),
        None => dir.canonicalize().ok().and_then(|whole| whole.parent().map(Path::to_path_buf)),
    };
    match DirLock::take(&above.unwrap_or_default(), Duration::ZERO) {
        Ok(lock) => Ok(Some(lock)),
        Err(why) if why.is_of_the_disk() => Ok(None),
        Err(why) => Err(why.to_string()),
    }
}

/// An RDB file.
fn file(path: &Path) -> Result<Finding, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(failed)?;
    let bar = ProgressBar::new(file.metadata().map_err(failed)?.len());
    // The template is right; a test draws it.
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {percent}%  {bytes} of {total_bytes}, {eta} left")
    {
        bar.set_style(style);
    }
    let described = describe(Counted { file, bar: &bar }, stdx::clock::wall_ms());
    bar.finish_and_clear();
    let description = described.map_err(|damage| format!("{}: {damage}", path.display()))?;
    let is_sound = description.damage.is_none();
    Ok(Finding { text: format!("{}\n{description}", path.display()), is_sound })
}

/// Shows how far a file was read.
struct Counted<'b> {
    file: File,
    bar: &'b ProgressBar,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.bar.inc(read as u64);
        Ok(read)
    }
}

impl Finding {
    fn join(&mut self, other: Option<Finding>) {
        let Some(other) = other else { return };
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(&other.text);
        self.is_sound &= other.is_sound;
    }
}

/// Whether a word of the command line asks for it.
pub fn is_asked(word: &OsString) -> bool {
    word.clone().into_vec() == b"doctor"
}
