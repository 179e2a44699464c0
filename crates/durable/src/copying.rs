//! A full copy of another server's data, as its replica loads it: in place of the present data, or beside them.
//!
//! ```text
//! in their place: log ends ─► LOADING, tables emptied ─► file ─► tables ───────────► log begins anew
//! beside:         file ─► second keyspace; readers go on ─► log ends ─► take-over ─► log begins anew
//! ```
//!
//! - CO1: the old log ends before the first table is emptied or exchanged, and hears nothing later. A crash
//!   before the new one has its base leaves the old log, or a beginning that a start puts aside (`aof.rs` A1):
//!   the data of before or none, never a part of both.
//! - CO2: a copy beside the data that fails has changed nothing.
//! - CO3: what leads on from the present data is told when they go ([`Copying::goes`]), and what leads on from
//!   the copy before the log begins anew ([`Copying::came`]).

use crate::files::tell_left_out;
use crate::loading::{Load, empty};
use crate::saving::LOOP;
use crate::{Durability, Incoming};
use keyspace::{Changes, Keyspace};
use persist::{Damaged, IntoKeyspace, Options, Progress, Unknown};
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use stdx::points::{self, Point};
use work::piece::{Desk, Letter, Piece, Step};

/// A full copy on its way.
pub struct Copying<'c> {
    pub file: &'c mut (dyn Read + Send),
    /// Bytes of all of it, if that is known.
    pub bytes: Option<u64>,
    /// Bytes of memory that the other server uses for it, if it says so.
    pub used_bytes: Option<u64>,
    /// Called once, before the first table is emptied or exchanged. Without a call the present data stay.
    pub goes: &'c dyn Fn(),
    /// Called once the data are those of the copy, with the database in which the stream goes on.
    pub came: &'c dyn Fn(usize),
}

/// The experience with copies so far.
#[derive(Default)]
pub(crate) struct State {
    /// Bytes here for a thousand bytes of memory there, in the last copy; 0: there was none.
    ratio_milli: AtomicU64,
}

/// Bounds of the ratio: a server may say anything about its memory.
const RATIO_MILLI: std::ops::RangeInclusive<u64> = 100..=10_000;

impl Durability {
    /// The memory that a copy will take here, about, by what the other server uses for it. O(1).
    pub fn copy_bytes(&self, used_bytes: u64) -> u64 {
        let milli = match self.copies.ratio_milli.load(Relaxed) {
            0 => 1000,
            milli => milli,
        };
        u64::try_from(u128::from(used_bytes) * u128::from(milli) / 1000).unwrap_or(u64::MAX)
    }

    pub(crate) fn note_ratio(&self, bytes: u64, used_bytes: Option<u64>) {
        if let Some(theirs) = used_bytes.filter(|bytes| *bytes > 0) {
            let milli = u128::from(bytes) * 1000 / u128::from(theirs);
            let milli = u64::try_from(milli).unwrap_or(u64::MAX);
            self.copies.ratio_milli.store(milli.clamp(*RATIO_MILLI.start(), *RATIO_MILLI.end()), Relaxed);
        }
    }

    /// Loads a copy in place of all data. Keys whose time has passed stay: the other server says when they go.
    /// Commands that need the data are refused meanwhile. Gives the count of keys. For a thread that may wait.
    /// O(bytes), on all cores.
    ///
    /// Errors: a sentence; no data are there then.
    pub fn load_copy(self: &Arc<Self>, copying: Copying<'_>) -> Result<u64, String> {
        let load = Load::begin(self);
        self.pass_all_loops();
        self.put_log_down();
        (copying.goes)();
        let loaded = self.load_in_place(&load, &copying.figures(), copying.file);
        match &loaded {
            Ok((_, db)) => {
                let bytes = self.keyspace.all_entry_bytes();
                self.note_ratio(bytes.0 + bytes.1, copying.used_bytes);
                (copying.came)(*db);
            }
            Err(_) => {
                empty(&self.keyspace);
                let _ = self.host.flush_libraries();
            }
        }
        drop(load);
        self.take_log_up();
        loaded.map(|(keys, _)| keys)
    }

    fn load_in_place(
        &self,
        load: &Load,
        figures: &Figures,
        file: &mut (dyn Read + Send),
    ) -> Result<(u64, usize), String> {
        empty(&self.keyspace);
        self.host.flush_libraries()?;
        points::reach(Point::FileLoad);
        self.fill((&self.keyspace, 0), (load, figures), file, &|code| load.library(code))
    }

    /// Loads a copy beside the data, as [`Durability::load_copy`], and then puts it in their place in one step.
    /// Clients read the present data until then, and then the new ones. For a thread that may wait. O(bytes), on
    /// half of the cores; the memory of both.
    ///
    /// Errors: a sentence; the present data are as they were (CO2).
    pub fn load_beside(self: &Arc<Self>, copying: Copying<'_>) -> Result<u64, String> {
        let load = Load::begin_beside(self);
        let fresh = Keyspace::new(self.keyspace.databases());
        let loaded = self.fill_fresh(&fresh, (&load, &copying.figures()), copying.file);
        let (keys, db, libraries) = match loaded {
            Ok(loaded) => loaded,
            Err(why) => {
                fresh.discard();
                return Err(why);
            }
        };
        let bytes = fresh.all_entry_bytes().1 + fresh.footprint() as u64;
        self.note_ratio(bytes, copying.used_bytes);
        // Writes that were admitted before are told to the log that ends (CO1).
        self.pass_all_loops();
        self.put_log_down();
        (copying.goes)();
        points::reach(Point::TakeOver);
        let change = libraries.into_change();
        let take = || self.keyspace.take_over(fresh, Some(&*change), stdx::clock::wall_ms());
        let changes = observe::waits::while_taking_over(take);
        self.nothing_changed();
        (self.work.post)(LOOP, Letter::Back(Box::new(Tells(changes))));
        (copying.came)(db);
        drop(load);
        points::reach(Point::TakenOver);
        self.take_log_up();
        Ok(keys)
    }

    /// Fills a keyspace that nobody sees, to the end of the transfer. Gives the count of keys, the database of
    /// the stream, and the libraries.
    fn fill_fresh(
        &self,
        fresh: &Keyspace,
        about: (&Load, &Figures),
        file: &mut (dyn Read + Send),
    ) -> Result<(u64, usize, Box<dyn Incoming>), String> {
        let libraries = self.host.incoming_libraries()?;
        points::reach(Point::FileLoad);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let into = (fresh, (cores / 2).max(1));
        let (keys, db) = self.fill(into, about, file, &|code| libraries.load(code))?;
        // The end of the file is not that of its transfer: the connection may still be cut before that.
        drain(file).map_err(|error| error.to_string())?;
        Ok((keys, db, libraries))
    }

    /// Loads the file into a keyspace, on so many threads (0: one for each core).
    fn fill(
        &self,
        (into, workers): (&Keyspace, usize),
        (load, figures): (&Load, &Figures),
        file: &mut (dyn Read + Send),
        library: &(dyn Fn(&[u8]) -> Result<(), String> + Sync),
    ) -> Result<(u64, usize), String> {
        let options = Options { workers, damaged: Damaged::Refuse, unknown: Unknown::Refuse };
        let into = IntoKeyspace::new(into, 0, library);
        let own = Progress::default();
        let progress = self.files().map_or(&own, |files| &files.progress);
        progress.read_bytes.store(0, Relaxed);
        progress.total_bytes.store(figures.bytes, Relaxed);
        self.load.used_bytes.store(figures.used_bytes, Relaxed);
        let report = persist::load(file, options, &into, progress).map_err(|damage| damage.to_string())?;
        load.note(report.keys, 0);
        tell_left_out(&report, load);
        Ok((report.keys, into.stream_db()))
    }
}

/// Figures of a copy for INFO; 0: not known.
struct Figures {
    bytes: u64,
    used_bytes: u64,
}

impl Copying<'_> {
    fn figures(&self) -> Figures {
        Figures { bytes: self.bytes.unwrap_or(0), used_bytes: self.used_bytes.unwrap_or(0) }
    }
}

/// Reads what is left.
fn drain(file: &mut (dyn Read + Send)) -> io::Result<()> {
    let mut waste = [0; 4096];
    loop {
        match file.read(&mut waste) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Has a loop tell blocked clients of changes that were made on another thread.
struct Tells(Changes);

impl Piece for Tells {
    fn advance(self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        desk.tell(self.0);
        Step::Over(None)
    }
}
