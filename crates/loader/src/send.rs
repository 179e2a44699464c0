//! Pieces on their way: several connections, batches that fit what the server takes.
//!
//! ```text
//! Sender::push ─► batch of the piece's connection ─(large enough)─► its thread: send all, read all replies ─► Account
//! ```
//!
//! - D1: pieces with the same route stay in order.
//! - D2: a batch is as many commands as the server answers in about [`ROUND`], and at most [`BATCH_BYTES`].
//! - D3: what stands in front of the first piece without its replies is safe: there loading may begin again.

use crate::rows::Place;
use crate::shape::Piece;
use crate::wire::{Address, Conn};
use resp::Frame;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a batch should take.
const ROUND: Duration = Duration::from_millis(20);
const BATCH_BYTES: usize = 1 << 20;
const COMMANDS_MAX: usize = 20_000;
/// Batches that wait for a connection.
const WAITING: usize = 2;

/// What became of the pieces so far.
#[derive(Default)]
pub struct Account {
    pub rows: AtomicU64,
    pub values: AtomicU64,
    /// Keys that were there already.
    pub present: AtomicU64,
    pub bytes: AtomicU64,
    /// The server refuses, or is gone: nothing more is sent.
    stopped: AtomicBool,
    refusals: Mutex<Vec<Refusal>>,
    safe: Mutex<Safe>,
}

/// A piece that the server did not take.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The first row of the piece; 0 if no single one is to blame.
    pub line: u64,
    /// See [`Piece::name`].
    pub name: String,
    pub reason: String,
    /// Nothing can be sent any more.
    pub fatal: bool,
}

/// Which pieces are through (D3).
#[derive(Default)]
struct Safe {
    /// Pieces on their way, and the place before which all is safe once they and all before them are through.
    open: BTreeSet<u64>,
    marks: VecDeque<(u64, Place)>,
    place: Option<Place>,
}

impl Safe {
    fn settle(&mut self) {
        let first_open = self.open.first().copied().unwrap_or(u64::MAX);
        while let Some((number, place)) =
            self.marks.front().copied().filter(|(number, _)| *number <= first_open)
        {
            debug_assert!(number <= first_open);
            self.place = Some(place);
            self.marks.pop_front();
        }
    }
}

impl Account {
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// Refusals since the last call.
    pub fn take_refusals(&self) -> Vec<Refusal> {
        std::mem::take(&mut *lock(&self.refusals))
    }

    /// Before here everything is with the server, or was refused by it.
    pub fn safe_place(&self) -> Option<Place> {
        lock(&self.safe).place
    }

    fn refuse(&self, line: u64, name: &str, reason: String, fatal: bool) {
        lock(&self.refusals).push(Refusal { line, name: name.to_owned(), reason, fatal });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a batch is made of, in order.
struct Entry {
    number: u64,
    line: u64,
    name: String,
    rows: u64,
    commands: u32,
}

#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    commands: usize,
}

struct Lane {
    batch: Batch,
    to: SyncSender<Batch>,
    /// Commands a batch should have (D2).
    target: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

/// Takes pieces and sends them.
pub struct Sender {
    lanes: Vec<Lane>,
    account: Arc<Account>,
    next: u64,
}

impl Sender {
    /// Connects. `stops`: the first refusal ends everything; `skips`: a key that is there already is no refusal.
    pub fn start(address: &Address, connections: usize, stops: bool, skips: bool) -> Result<Sender, String> {
        let account = Arc::new(Account::default());
        let mut lanes = Vec::new();
        for _ in 0..connections {
            let conn = Conn::open(address)?;
            let (to, from) = sync_channel(WAITING);
            let target = Arc::new(AtomicUsize::new(64));
            let worker = Worker { conn, account: account.clone(), target: target.clone(), stops, skips };
            let thread =
                std::thread::Builder::new().name("sender".to_owned()).spawn(move || worker.run(&from));
            let thread = thread.map_err(|e| format!("cannot start a thread: {e}"))?;
            lanes.push(Lane { batch: Batch::default(), to, target, thread });
        }
        Ok(Sender { lanes, account, next: 0 })
    }

    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Sends a piece, now or with others; waits while too much is on its way.
    pub fn push(&mut self, piece: Piece) {
        let number = self.next;
        self.next += 1;
        lock(&self.account.safe).open.insert(number);
        let at = piece.route as usize % self.lanes.len();
        let lane = &mut self.lanes[at];
        lane.batch.commands += piece.commands as usize;
        lane.batch.entries.push(Entry {
            number,
            line: piece.line,
            name: piece.name,
            rows: piece.rows,
            commands: piece.commands,
        });
        if lane.batch.bytes.is_empty() {
            lane.batch.bytes = piece.bytes;
        } else {
            lane.batch.bytes.extend_from_slice(&piece.bytes);
        }
        if lane.batch.bytes.len() >= BATCH_BYTES || lane.batch.commands >= lane.target.load(Relaxed) {
            self.flush(at);
        }
    }

    /// Everything up to `place` has been pushed.
    pub fn mark(&mut self, place: Place) {
        let mut safe = lock(&self.account.safe);
        match safe.marks.back_mut().filter(|(number, _)| *number == self.next) {
            Some(last) => last.1 = place,
            None => safe.marks.push_back((self.next, place)),
        }
        safe.settle();
    }

    fn flush(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        let batch = std::mem::take(&mut lane.batch);
        // A thread that ended has said why.
        if !batch.entries.is_empty() && lane.to.send(batch).is_err() {
            self.account.stop();
        }
    }

    /// Sends what is left and waits for all replies.
    pub fn finish(mut self) {
        (0..self.lanes.len()).for_each(|at| self.flush(at));
        for lane in self.lanes {
            drop(lane.to);
            let _ = lane.thread.join();
        }
    }
}

/// One connection's thread.
struct Worker {
    conn: Conn,
    account: Arc<Account>,
    target: Arc<AtomicUsize>,
    stops: bool,
    skips: bool,
}

impl Worker {
    fn run(mut self, from: &Receiver<Batch>) {
        while let Ok(batch) = from.recv() {
            if self.account.is_stopped() {
                continue;
            }
            let started = Instant::now();
            if let Err(reason) = self.exchange(&batch) {
                let (line, name) = batch.entries.first().map_or((0, ""), |entry| (entry.line, &entry.name));
                self.account.refuse(line, name, reason, true);
                self.account.stop();
                continue;
            }
            self.adapt(batch.commands, started.elapsed());
            self.account.bytes.fetch_add(batch.bytes.len() as u64, Relaxed);
            let mut safe = lock(&self.account.safe);
            for entry in &batch.entries {
                safe.open.remove(&entry.number);
            }
            safe.settle();
        }
    }

    /// D2: twice as much at most, half as much at least.
    fn adapt(&self, commands: usize, took: Duration) {
        let fits = commands as f64 * ROUND.as_secs_f64() / took.as_secs_f64().max(1e-6);
        let now = self.target.load(Relaxed);
        self.target.store((fits as usize).clamp(now / 2, now * 2).clamp(1, COMMANDS_MAX), Relaxed);
    }

    fn exchange(&mut self, batch: &Batch) -> Result<(), String> {
        self.conn.send(&batch.bytes)?;
        for entry in &batch.entries {
            let mut taken = true;
            for _ in 0..entry.commands {
                match self.conn.reply()? {
                    Frame::Error(text) if self.skips && text.starts_with(b"BUSYKEY") => {
                        self.account.present.fetch_add(1, Relaxed);
                        taken = false;
                    }
                    Frame::Error(text) => {
                        self.refuse(entry, String::from_utf8_lossy(&text).into_owned());
                        taken = false;
                    }
                    // SET with NX.
                    Frame::Null if self.skips => {
                        self.account.present.fetch_add(1, Relaxed);
                        taken = false;
                    }
                    Frame::Null => {
                        self.refuse(entry, "BUSYKEY Target key name already exists.".to_owned());
                        taken = false;
                    }
                    _ => {}
                }
            }
            self.account.rows.fetch_add(if taken { entry.rows } else { 0 }, Relaxed);
            self.account.values.fetch_add(taken.into(), Relaxed);
        }
        Ok(())
    }

    fn refuse(&self, entry: &Entry, reason: String) {
        self.account.refuse(entry.line, &entry.name, reason, false);
        if self.stops {
            self.account.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_safe_when_all_before_it_are_through() {
        let mut safe = Safe::default();
        let place = |line| Place { line, offset: line * 10 };
        safe.open.extend([0, 1, 2]);
        safe.marks.extend([(1, place(1)), (3, place(3))]);
        safe.open.remove(&1);
        safe.settle();
        assert_eq!(safe.place, None);
        safe.open.remove(&0);
        safe.settle();
        assert_eq!(safe.place, Some(place(1)));
        safe.open.remove(&2);
        safe.settle();
        assert_eq!((safe.place, safe.marks.len()), (Some(place(3)), 0));
    }
}
