//! Keeps what the server did: seconds of a day, minutes of a week, who made whom wait, and for how long.
//!
//! ```text
//! statistics thread ──Second──► running minute ──sealed──► rings: seconds │ edges │ records │ minutes
//!                                                   └────► thread `history` ──► <dir>/history/*.hist, *.min
//! a command ──► Shares of the rings ──► columns, edges, records, incidents ──► reply
//! ```
//!
//! Nothing here knows the server: columns have names that their owner gives ([`Names`]).
//!
//! - Y1: the rings take at most the limit together, each its sixteenths of it; each drops its own oldest. The
//!   running minute and the marks are beside that, some 100 KB.
//! - Y2: sealed minutes never change. A reader takes shares of them and decodes without the lock.
//! - Y3: no call waits for a disk. Minutes that the thread cannot take are not written.
//! - Y4: what a disk holds is checked before it is believed; damage costs minutes, never the process.
//!
//! Cost: a second some 10 us. A reply decodes O(minutes asked for).
#![forbid(unsafe_code)]

mod codec;
mod event;
mod files;
pub mod heavy;
mod incidents;
mod minute;
pub mod pairs;
mod report;
mod rings;
mod row;
mod span;
mod thread;

pub use event::{Edge, Flows, Heavy, Kind, Mark, Party, Record};
pub use minute::{Sealed, Second};
pub use report::{Asked, Viewer, write_edges, write_party};
pub use row::{Figure, Names, OCTAVES, Row, Rule, Shape, Waited};
pub use span::{STEPS_MAX, Table};

use minute::Running;
use parking_lot::Mutex;
use rings::Rings;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Seconds that are kept as they came, for what happens now.
const LATEST: usize = 60;
/// Marks kept; the thread of files adds older ones.
const MARKS: usize = 500;

/// The history of one server, shared by its threads.
pub struct History {
    pub names: Names,
    limit_bytes: AtomicUsize,
    state: Mutex<State>,
    thread: thread::Writer,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    latest: VecDeque<Arc<Second>>,
    rings: Rings,
    marks: VecDeque<Mark>,
    next_record: u64,
    next_mark: Option<Mark>,
}

impl History {
    /// Creates an empty history.
    pub fn new(names: Names) -> History {
        History {
            names,
            limit_bytes: AtomicUsize::new(0),
            state: Mutex::default(),
            thread: thread::Writer::default(),
        }
    }

    /// Adds a second. `limit_bytes`: the memory of the rings; 0 forgets all. `dir`: where sealed minutes are
    /// written; None: nowhere. The first call with a directory begins to read what it has. O(second), and
    /// O(minute) at the end of a minute.
    pub fn add(self: &Arc<Self>, second: Second, limit_bytes: usize, dir: Option<PathBuf>) {
        self.limit_bytes.store(limit_bytes, Relaxed);
        if limit_bytes == 0 {
            let old = std::mem::take(&mut *self.state.lock());
            return drop(old);
        }
        if let Some(dir) = &dir {
            self.thread.load_once(self, dir);
        }
        let mut state = self.state.lock();
        let sealed = state.add(second, &self.names);
        if let Some(sealed) = &sealed {
            state.rings.push(sealed, limit_bytes);
        }
        drop(state);
        if let (Some(sealed), Some(dir)) = (sealed, dir) {
            self.thread.write(dir, sealed);
        }
    }

    /// Keeps a mark for the next second. O(1)
    pub fn mark_later(&self, mark: Mark) {
        self.state.lock().next_mark = Some(mark);
    }

    /// Adds the functions that were under way to the records of the running minute between two times.
    pub fn name_functions(&self, time_ms: RangeInclusive<u64>, frames: &[Vec<u8>]) {
        let mut state = self.state.lock();
        let records = state.running.iter_mut().flat_map(|running| &mut running.records);
        for record in records.filter(|record| time_ms.contains(&record.time_ms)) {
            record.frames = frames.to_vec();
        }
    }

    /// Seals the running minute and waits a moment until it is written. For an orderly end.
    pub fn end(&self, dir: Option<PathBuf>) {
        let sealed = self.state.lock().running.take().map(Running::seal);
        if let (Some(sealed), Some(dir)) = (sealed, dir) {
            self.thread.write(dir, Arc::new(sealed));
            self.thread.flush(std::time::Duration::from_millis(500));
        }
    }

    /// Adds minutes from a disk, in order of time, in front of those that are here.
    pub(crate) fn add_older(&self, sealed: Vec<Sealed>) {
        let limit = self.limit_bytes.load(Relaxed);
        let mut state = self.state.lock();
        let marks: Vec<Mark> = sealed.iter().flat_map(|sealed| sealed.marks.iter().cloned()).collect();
        for mark in marks.into_iter().rev() {
            if state.marks.len() < MARKS {
                state.marks.push_front(mark);
            }
        }
        sealed.into_iter().rev().for_each(|sealed| state.rings.push_older(&sealed, limit));
    }

    /// Bytes that the rings hold.
    pub fn bytes(&self) -> usize {
        self.state.lock().rings.bytes()
    }

    /// Seconds that are kept.
    pub fn seconds(&self) -> u64 {
        let state = self.state.lock();
        state.rings.seconds() + state.running.as_ref().map_or(0, |running| running.rows.len() as u64)
    }

    /// The latest seconds, oldest first, at most `count`. O(count)
    pub fn latest(&self, count: usize) -> Vec<Arc<Second>> {
        let state = self.state.lock();
        state.latest.iter().skip(state.latest.len().saturating_sub(count)).cloned().collect()
    }
}

impl State {
    /// Adds a second; gives the minute before it, if that is over. Its records are numbered here.
    fn add(&mut self, mut second: Second, names: &Names) -> Option<Arc<Sealed>> {
        self.next_record = self.next_record.max(second.unix_s * 1000);
        for record in &mut second.records {
            record.id = self.next_record;
            self.next_record += 1;
        }
        second.marks.splice(..0, self.next_mark.take());
        let minute = second.unix_s / 60;
        let is_over = self.running.as_ref().is_some_and(|running| running.minute != minute);
        let sealed = if is_over { self.running.take().map(Running::seal).map(Arc::new) } else { None };
        second.marks.iter().for_each(|mark| self.note(mark.clone()));
        self.running.get_or_insert_with(|| Running::new(minute)).add(&second, names);
        if self.latest.len() == LATEST {
            self.latest.pop_front();
        }
        self.latest.push_back(Arc::new(second));
        sealed
    }

    fn note(&mut self, mark: Mark) {
        if self.marks.len() == MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back(mark);
    }
}

#[cfg(test)]
mod tests;
