//! The threads that decode pieces and install their keys.

use super::{Damaged, Install, Loaded, NotTaken, Options, Progress, Report, Skipped, Unknown};
use rdb::file::{Damage, Format, Problem};
use serial::{Decoded, Failure};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Entries as they stand in the file.
#[derive(Default)]
pub(super) struct Piece {
    pub(super) number: u64,
    /// Keys and objects.
    pub(super) bytes: Vec<u8>,
    pub(super) entries: Vec<Raw>,
    /// The object of the last entry, if it has none among the bytes.
    pub(super) large: Vec<u8>,
}

pub(super) struct Raw {
    pub(super) db: u64,
    pub(super) key: Range<usize>,
    pub(super) object: Range<usize>,
    pub(super) expire_ms: Option<u64>,
    pub(super) idle_s: Option<u64>,
    pub(super) freq: Option<u8>,
    pub(super) from: u64,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Piece>,
    closed: bool,
    /// A worker panicked, so no thread waits any more.
    is_given_up: bool,
    /// The piece whose turn it is to be installed (L3).
    turn: u64,
    /// The last piece to be installed.
    ends_at: Option<u64>,
    /// The first damage in the file.
    failed: Option<Damage<io::Error>>,
    skipped: Skipped,
    /// Keys that were installed.
    keys: u64,
}

/// The queue, the turns and the outcome, shared by the threads.
pub(super) struct Workers<'l> {
    state: Mutex<State>,
    /// The three bells: a piece came or none will; there is room for one; a turn has passed.
    filled: Condvar,
    emptied: Condvar,
    turned: Condvar,
    queue_max: usize,
    format: Format,
    options: Options,
    install: &'l dyn Install,
    progress: &'l Progress,
}

impl<'l> Workers<'l> {
    pub(super) fn new(
        queue_max: usize,
        format: Format,
        options: Options,
        install: &'l dyn Install,
        progress: &'l Progress,
    ) -> Workers<'l> {
        Workers {
            state: Mutex::default(),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            turned: Condvar::new(),
            queue_max,
            format,
            options,
            install,
            progress,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a piece; waits while the queue is full.
    pub(super) fn send(&self, piece: Piece) {
        let mut state = self.state();
        while state.queue.len() >= self.queue_max && !state.is_given_up {
            state = self.emptied.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.queue.push_back(piece);
        self.filled.notify_one();
    }

    /// No more pieces come.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.filled.notify_all();
    }

    /// Whether damage was found, so that reading on is of no use.
    pub(super) fn has_failed(&self) -> bool {
        let state = self.state();
        state.failed.is_some() || state.is_given_up
    }

    pub(super) fn skip(&self, db: u64, key: &[u8], what: String) {
        self.state().skipped.add(db, key, what);
    }

    /// The next piece in the order of the file. `None`: no more come.
    fn next(&self) -> Option<Piece> {
        let mut state = self.state();
        loop {
            if let Some(piece) = state.queue.pop_front() {
                self.emptied.notify_one();
                return Some(piece);
            }
            if state.closed {
                return None;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The life of a worker.
    pub(super) fn work(&self) {
        let _leaves = Leaves(self);
        while let Some(piece) = self.next() {
            self.piece(&piece);
        }
    }

    fn piece(&self, piece: &Piece) {
        let mut batch = Vec::with_capacity(piece.entries.len());
        let mut places = Vec::with_capacity(piece.entries.len());
        let mut failed = None;
        for raw in &piece.entries {
            // A mistake of ours in a decoder refuses the file, and ends nothing else.
            let decoded = stdx::panics::contain(|| self.decode(piece, raw));
            match decoded.unwrap_or_else(|why| Err(Problem::Refused(format!("internal error: {why}")))) {
                Ok(Some(loaded)) => {
                    batch.push(loaded);
                    places.push(raw);
                }
                Ok(None) => {}
                Err(what) => {
                    failed = Some(damage(piece, raw, what));
                    break;
                }
            }
        }
        if self.awaits_turn(piece.number) {
            let keys = batch.len() as u64;
            match self.install.install(&mut batch) {
                Ok(()) => self.installed(keys),
                Err(not_taken) => failed = Some(self.not_taken(piece, &places, not_taken)),
            }
        }
        let mut state = self.state();
        if let Some(failed) = failed {
            state.ends_at = Some(state.ends_at.map_or(piece.number, |at| at.min(piece.number)));
            state.note(failed);
        }
        if self.in_order() {
            state.turn = state.turn.max(piece.number + 1);
            self.turned.notify_all();
        }
    }

    fn installed(&self, keys: u64) {
        self.state().keys += keys;
        self.progress.keys.fetch_add(keys, Ordering::Relaxed);
    }

    fn in_order(&self) -> bool {
        self.options.damaged == Damaged::KeepPrefix
    }

    /// Waits until the pieces before are installed, if that matters. False if no more are installed.
    fn awaits_turn(&self, number: u64) -> bool {
        if !self.in_order() {
            return true;
        }
        let mut state = self.state();
        while state.turn < number && !state.is_given_up {
            state = self.turned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.is_given_up && state.ends_at.is_none_or(|at| number < at)
    }

    /// An entry's value. `None`: it is left out, or nothing of it is left.
    fn decode(&self, piece: &Piece, raw: &Raw) -> Result<Option<Loaded>, Problem<io::Error>> {
        let object = match &piece.bytes[raw.object.clone()] {
            [] => &piece.large,
            object => object,
        };
        let decoded = serial::decode_body::<Infallible>(object, self.format.version, 0, &mut |_| Ok(()));
        let value = match decoded {
            Ok(Decoded::Value(value)) => value,
            Ok(Decoded::Expired) => return Ok(None),
            Err(Failure::Unsupported(what)) => {
                if self.options.unknown == Unknown::Skip {
                    self.skip(raw.db, &piece.bytes[raw.key.clone()], what.to_string());
                    return Ok(None);
                }
                return Err(Problem::Unsupported(what.to_string()));
            }
            Err(Failure::Malformed | Failure::Sum | Failure::TooLong) => return Err(Problem::Malformed),
            Err(Failure::Stopped(never)) => match never {},
        };
        let db = u32::try_from(raw.db).map_err(|_| Problem::Length)?;
        let key = piece.bytes[raw.key.clone()].into();
        let (expire_ms, idle_s, freq) = (raw.expire_ms, raw.idle_s, raw.freq);
        Ok(Some(Loaded { db, key, value, expire_ms, idle_s, freq }))
    }

    fn not_taken(&self, piece: &Piece, places: &[&Raw], why: NotTaken) -> Damage<io::Error> {
        let (index, what) = match why {
            NotTaken::Twice(index) => (index, Problem::Twice),
            NotTaken::Refused(index, why) => (index, Problem::Refused(why)),
        };
        self.installed(index as u64);
        match places.get(index) {
            Some(raw) => damage(piece, raw, what),
            None => Damage { offset: 0, from: 0, db: None, key: None, what },
        }
    }

    /// The outcome of the reading and of the workers.
    pub(super) fn report(
        &self,
        read: Result<bool, Damage<io::Error>>,
        bytes: u64,
    ) -> Result<Report, Damage<io::Error>> {
        let mut state = self.state();
        let is_summed = matches!(read, Ok(true));
        if let Err(damage) = read {
            state.note(damage);
        }
        let damage = state.failed.take();
        let mut report = Report {
            format: self.format,
            keys: state.keys,
            skipped: std::mem::take(&mut state.skipped),
            left_out: Default::default(),
            bytes,
            is_summed,
            damage: None,
        };
        match damage {
            None => Ok(report),
            Some(damage) if self.in_order() && damage.what.is_damage() => {
                report.is_summed = false;
                report.damage = Some(damage);
                Ok(report)
            }
            Some(damage) => Err(damage),
        }
    }
}

/// Wakes all threads when an install panics.
struct Leaves<'w, 'l>(&'w Workers<'l>);

impl Drop for Leaves<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state().is_given_up = true;
            self.0.turned.notify_all();
            self.0.emptied.notify_all();
        }
    }
}

impl State {
    /// Notes damage, unless there is some before it in the file (L2).
    fn note(&mut self, damage: Damage<io::Error>) {
        let sooner = self.failed.as_ref().is_none_or(|failed| damage.from < failed.from);
        if sooner {
            self.failed = Some(damage);
        }
    }
}

fn damage(piece: &Piece, raw: &Raw, what: Problem<io::Error>) -> Damage<io::Error> {
    let key = piece.bytes[raw.key.clone()].into();
    Damage { offset: raw.from, from: raw.from, db: Some(raw.db), key: Some(key), what }
}
