//! A new base in place of a long log. The caller drives it: it takes a snapshot at the LSN of a mark, and
//! writes it to a file.
//!
//! ```text
//! begin ─► an empty file of commands, in the manifest          a failure leaves one more file
//!   caller: Outlet ◄ Mark at s; a snapshot at s ─► Rewriting::base (with `evenkeel-lsn` s and `evenkeel-epoch`), synced
//! finish ─► the base gets its name ─► the manifest: the base, the files behind the mark, the rest as history
//! failed ─► the temporary base is removed; nothing else was changed
//! ```
//!
//! - Y1: the manifest is replaced once, at the end: before that the old base and all files count, behind it
//!   the new ones.
//! - Y2: one rewrite at a time.
//! - Y3: a failed one is tried again after 1, 2, 4 … 60 minutes ([`Writer::wants_rewrite`]).

use crate::files::Lost;
use crate::files::local::{Directory, Rotated, locked};
use crate::files::manifest::{Entry, FileKind, Manifest};
use crate::stream::Mark;
use crate::writer::{RewriteStatus, Writer};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use stdx::clock::mono_ns;
use stdx::points::{self, Point};

const MINUTE_NS: u64 = 60_000_000_000;
const RETRY_MINUTES_MAX: u64 = 60;

/// A rewrite under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewriting {
    /// The mark that the caller puts into the stream.
    pub mark: Mark,
    /// The path of the base. The directory may be synced or not.
    pub base: PathBuf,
}

/// The reason why a rewrite did not begin or did not end.
#[derive(Debug)]
pub enum RewriteError {
    /// Another one is under way.
    Busy,
    /// It is not the current rewrite.
    Unknown,
    /// The log has not come to the mark.
    NotRotated,
    Io(io::Error),
}

impl fmt::Display for RewriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RewriteError::Busy => f.write_str("another rewrite of the log is under way"),
            RewriteError::Unknown => f.write_str("this rewrite of the log has ended"),
            RewriteError::NotRotated => f.write_str("the log has not come to the mark of the rewrite"),
            RewriteError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RewriteError {}

/// The state of rewrites.
#[derive(Debug)]
pub(crate) struct Rewrites {
    next: u64,
    running: Option<(Mark, u64)>,
    is_ok: bool,
    seconds: Option<u64>,
    failures: u32,
    failed_ns: u64,
    base_size_bytes: u64,
    /// The first file behind the base of a finished rewrite, until the log thread knows it.
    finished: Option<u64>,
}

impl Rewrites {
    pub(crate) fn new(base_size_bytes: u64) -> Rewrites {
        let (next, running, seconds, failures, failed_ns) = (1, None, None, 0, 0);
        Rewrites { next, running, is_ok: true, seconds, failures, failed_ns, base_size_bytes, finished: None }
    }

    pub(crate) fn base_size_bytes(&self) -> u64 {
        self.base_size_bytes
    }

    pub(crate) fn take_finished(&mut self) -> Option<u64> {
        self.finished.take()
    }

    pub(crate) fn status(&self) -> RewriteStatus {
        RewriteStatus {
            is_ok: self.is_ok,
            seconds: self.seconds,
            is_running: self.running.is_some(),
            failures: self.failures,
        }
    }

    fn ends(&mut self, is_ok: bool) {
        if let Some((_, began_ns)) = self.running.take() {
            self.seconds = Some((mono_ns() - began_ns) / 1_000_000_000);
        }
        self.is_ok = is_ok;
        if is_ok {
            self.failures = 0;
        } else {
            self.failures += 1;
            self.failed_ns = mono_ns();
        }
    }

    /// Whether it is too soon after a failure (Y3).
    fn rests(&self) -> bool {
        let minutes = RETRY_MINUTES_MAX.min(1 << self.failures.saturating_sub(1).min(6));
        self.failures > 0 && mono_ns() - self.failed_ns < minutes * MINUTE_NS
    }
}

impl Writer {
    /// Begins a rewrite: makes the file in which the log goes on behind the mark. Cost: four syncs.
    ///
    /// Errors: a rewrite is under way, or the file or the manifest cannot be written. The log stays as it
    /// was.
    pub fn begin_rewrite(&self) -> Result<Rewriting, RewriteError> {
        let shared = &self.shared;
        let mark = {
            let mut rewrites = locked(&shared.rewrites);
            if rewrites.running.is_some() {
                return Err(RewriteError::Busy);
            }
            let mark = Mark(rewrites.next);
            rewrites.next += 1;
            rewrites.running = Some((mark, mono_ns()));
            mark
        };
        let mut directory = locked(&shared.directory);
        directory.rotated = None;
        if let Err(error) = self.prepare_file(&mut directory) {
            locked(&shared.rewrites).ends(false);
            return Err(RewriteError::Io(error));
        }
        let base = shared.place.dir.join(format!("temp-rewrite-{}.rdb", mark.0));
        Ok(Rewriting { mark, base })
    }

    /// Makes the file behind the mark. A directory that was lost is made again (files F4).
    fn prepare_file(&self, directory: &mut Directory) -> io::Result<()> {
        match directory.files.check() {
            Ok(()) => {}
            Err(Lost::Unknown(error)) => return Err(error),
            Err(lost) if self.shared.is_running() => {
                // The log's thread has to know first: until then it tells that writes are durable.
                self.shared.looks_now.store(true, Ordering::Relaxed);
                self.shared.bell.notify_all();
                return Err(io::Error::other(lost.to_string()));
            }
            Err(lost) => {
                directory.prepared = None;
                directory.files.restore(&lost)?;
            }
        }
        if directory.prepared.is_none() {
            directory.prepared = Some(directory.files.add_incr(&[])?);
        }
        Ok(())
    }

    /// Ends a rewrite whose base is written: it takes the place of the old one and of all files before the
    /// mark (Y1). Waits until the log has come to the mark, for the time of `log-stuck` at most.
    ///
    /// Errors: the rewrite has failed, and the log is as before.
    pub fn finish_rewrite(&self, rewriting: &Rewriting, base_bytes: u64) -> Result<(), RewriteError> {
        self.is_running(rewriting)?;
        let finished = self.replace_base(rewriting, base_bytes);
        match &finished {
            Err(_) => self.fail_rewrite(rewriting),
            Ok(seq) => {
                let all = locked(&self.shared.sizes).all();
                let mut rewrites = locked(&self.shared.rewrites);
                rewrites.ends(true);
                (rewrites.base_size_bytes, rewrites.finished) = (all, Some(*seq));
                drop(rewrites);
                locked(&self.shared.queue).has_base = true;
                self.shared.bell.notify_all();
            }
        }
        // Also after a failure: its files may be history already.
        self.shared.clear_history();
        finished.map(drop)
    }

    /// Gives a rewrite up, for example if the base cannot be written.
    pub fn fail_rewrite(&self, rewriting: &Rewriting) {
        if self.is_running(rewriting).is_err() {
            return;
        }
        if let Err(error) = self.shared.disk.remove(&rewriting.base)
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("{} cannot be removed: {error}", rewriting.base.display());
        }
        locked(&self.shared.rewrites).ends(false);
    }

    /// Whether a rewrite is due: the log has grown by `percentage` since the last one, and has at least
    /// `min_size_bytes`. With 0 percent it never is. It is also due when a failed sync has left a gap, which
    /// only a new base fills.
    pub fn wants_rewrite(&self, percentage: u64, min_size_bytes: u64) -> bool {
        let size = locked(&self.shared.sizes).all();
        let rewrites = locked(&self.shared.rewrites);
        let base = rewrites.base_size_bytes.max(1);
        let growth = (size.saturating_sub(base) as u128 * 100 / u128::from(base)) as u64;
        let has_grown = percentage > 0 && size >= min_size_bytes && growth >= percentage;
        let has_gap = self.shared.counters.has_gap.load(Ordering::Relaxed);
        let waits_for_person = self.shared.counters.is_replaced.load(Ordering::Relaxed);
        (has_grown || has_gap) && !waits_for_person && rewrites.running.is_none() && !rewrites.rests()
    }

    fn is_running(&self, rewriting: &Rewriting) -> Result<(), RewriteError> {
        let running = locked(&self.shared.rewrites).running;
        running.filter(|(mark, _)| *mark == rewriting.mark).map(drop).ok_or(RewriteError::Unknown)
    }

    /// Replaces the base. Returns the first file behind it.
    fn replace_base(&self, rewriting: &Rewriting, base_bytes: u64) -> Result<u64, RewriteError> {
        let shared = &self.shared;
        let patience = shared.settings().stuck;
        let is_before =
            |rotated: Option<Rotated>| rotated.is_none_or(|rotated| rotated.mark != rewriting.mark);
        let directory = locked(&shared.directory);
        let waited =
            shared.rotated.wait_timeout_while(directory, patience, |directory| is_before(directory.rotated));
        let (mut directory, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(rotated) = directory.rotated.filter(|rotated| rotated.mark == rewriting.mark) else {
            return Err(RewriteError::NotRotated);
        };
        let seq = directory.files.manifest.last_base_seq() + 1;
        let name = shared.place.base_name(seq);
        shared.disk.rename(&rewriting.base, &shared.place.path(&name)).map_err(RewriteError::Io)?;
        shared.disk.sync_dir(&shared.place.dir).map_err(RewriteError::Io)?;
        points::reach(Point::LogBase);
        let mut manifest = Manifest { entries: vec![Entry { name, seq, kind: FileKind::Base }] };
        for entry in &directory.files.manifest.entries {
            let stays = entry.kind == FileKind::Incr && entry.seq >= rotated.seq;
            let kind = if stays { FileKind::Incr } else { FileKind::History };
            manifest.entries.push(Entry { kind, ..entry.clone() });
        }
        directory.files.put(manifest).map_err(RewriteError::Io)?;
        let mut sizes = locked(&shared.sizes);
        sizes.base = base_bytes;
        sizes.incrs.retain(|incr, _| *incr >= rotated.seq);
        Ok(rotated.seq)
    }
}
