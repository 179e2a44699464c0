//! Sends pieces over several connections, in batches that suit the server.
//!
//! ```text
//! Sender::push ─► batch of a connection ─(large enough)─► thread: send all, read all replies ─► Account
//! ```
//!
//! - D1: pieces with the same route stay in order.
//! - D2: a batch is as many commands as the server answers in about [`ROUND`], and at most [`BATCH_BYTES`].
//! - D3: everything before the first piece without replies is safe: loading may begin again there.
//! - D4: small values for a server that has MRESTORE are gathered, several in one command, which is cheaper
//!   for it.
//! - D5: a piece that adds to a key has a batch of its own, after the reply to the piece that makes the key.
//!   It is not sent if the key was refused or existed already.

use crate::advice::about_server;
use crate::options::Existing;
use crate::rows::Place;
use crate::shape::Piece;
use crate::stop::Stop;
use crate::wire::Conn;
use dial::{Frame, put_count, put_word};
use reach::Address;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a batch should take.
const ROUND: Duration = Duration::from_millis(20);
const BATCH_BYTES: usize = 1 << 20;
const COMMANDS_MAX: usize = 20_000;
/// Most values gathered in one command, and their bytes. The server holds locks for a command, so it must be
/// short.
const MEMBERS: usize = 32;
const MEMBERS_BYTES: usize = 16 << 10;
/// Largest payload that is gathered.
pub const SMALL: usize = 1024;
/// Batches that may wait for a connection.
const WAITING: usize = 2;

/// Rows that an earlier run may have sent: their keys may exist without this being an error.
#[derive(Clone, Debug, Default)]
pub struct Earlier {
    /// The last of them; 0: there are none.
    pub line: u64,
    /// Rows that were refused, whose keys therefore belong to others.
    pub refused: BTreeSet<u64>,
}

impl Earlier {
    fn may_have_sent(&self, line: u64) -> bool {
        line > 0 && line <= self.line && !self.refused.contains(&line)
    }
}

/// The results of the pieces so far.
#[derive(Default)]
pub struct Account {
    pub rows: AtomicU64,
    pub values: AtomicU64,
    /// Keys that existed already.
    pub present: AtomicU64,
    pub bytes: AtomicU64,
    /// Values taken and values refused, by type where that is known.
    kinds: Mutex<BTreeMap<&'static str, [u64; 2]>>,
    /// The server refuses, or is gone: nothing more is sent.
    stopped: AtomicBool,
    /// Asked by a signal: nothing more is sent.
    stop: Stop,
    refusals: Mutex<Vec<Refusal>>,
    safe: Mutex<Safe>,
}

/// A piece that the server did not take.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The first row of the piece; 0 if no single row is to blame.
    pub line: u64,
    /// See [`Piece::name`].
    pub name: String,
    pub reason: String,
    /// Nothing more can be sent.
    pub fatal: bool,
}

/// Which pieces have their replies (D3).
#[derive(Default)]
struct Safe {
    /// Pieces on their way. Each of `marks` is a place that is safe once all pieces with smaller numbers have
    /// their replies.
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
        self.stopped.load(Relaxed) || self.stop.is_asked()
    }

    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// Takes the refusals since the last call.
    pub fn take_refusals(&self) -> Vec<Refusal> {
        std::mem::take(&mut *lock(&self.refusals))
    }

    /// The place before which everything was taken or refused by the server.
    pub fn safe_place(&self) -> Option<Place> {
        lock(&self.safe).place
    }

    /// Values taken and values refused, by type where that is known.
    pub fn kinds(&self) -> BTreeMap<&'static str, [u64; 2]> {
        lock(&self.kinds).clone()
    }

    fn count(&self, kind: &'static str, is_refused: bool) {
        lock(&self.kinds).entry(kind).or_default()[usize::from(is_refused)] += 1;
    }

    pub fn refuse(&self, line: u64, name: &str, reason: String, fatal: bool) {
        lock(&self.refusals).push(Refusal { line, name: name.to_owned(), reason, fatal });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A piece in a batch.
struct Entry {
    number: u64,
    line: u64,
    route: u64,
    begins: bool,
    adds: bool,
    name: String,
    kind: Option<&'static str>,
    rows: u64,
    commands: u32,
    gathered: bool,
}

#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    commands: usize,
    /// Words of the command that is being gathered, and the number of its values (D4).
    words: Vec<u8>,
    members: usize,
    /// The number of values of each gathered command.
    groups: Vec<usize>,
}

impl Batch {
    fn push(&mut self, bytes: Vec<u8>, gathered: bool, replaces: bool) {
        if gathered {
            self.words.extend_from_slice(&bytes);
            self.members += 1;
            if self.members == MEMBERS || self.words.len() >= MEMBERS_BYTES {
                self.gather(replaces);
            }
            return;
        }
        self.gather(replaces);
        if self.bytes.is_empty() {
            self.bytes = bytes;
        } else {
            self.bytes.extend_from_slice(&bytes);
        }
    }

    /// Completes the command that is being gathered.
    fn gather(&mut self, replaces: bool) {
        let members = std::mem::take(&mut self.members);
        if members == 0 {
            return;
        }
        put_count(&mut self.bytes, 2 + 3 * members + usize::from(replaces));
        put_word(&mut self.bytes, b"MRESTORE");
        put_word(&mut self.bytes, members.to_string().as_bytes());
        self.bytes.append(&mut self.words);
        if replaces {
            put_word(&mut self.bytes, b"REPLACE");
        }
        self.groups.push(members);
    }
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
    replaces: bool,
}

impl Sender {
    /// Connects. `stops`: the first refusal ends everything. `existing` decides whether a key that exists is
    /// replaced, counted, or refused; it is never refused if `earlier` may have sent it. Errors: a connection
    /// or a thread cannot be made.
    pub fn start(
        address: &Address,
        connections: usize,
        stops: bool,
        existing: Existing,
        earlier: &Earlier,
        stop: &Stop,
    ) -> Result<Sender, String> {
        let skips = existing == Existing::Skip;
        let account = Arc::new(Account { stop: stop.clone(), ..Account::default() });
        let mut lanes = Vec::new();
        for _ in 0..connections {
            let conn = Conn::open(address, stop)?;
            let (to, from) = sync_channel(WAITING);
            let target = Arc::new(AtomicUsize::new(64));
            let (account, target_of) = (account.clone(), target.clone());
            let (barred, earlier) = (HashSet::new(), earlier.clone());
            let worker = Worker { conn, account, target: target_of, stops, skips, earlier, barred };
            let thread =
                std::thread::Builder::new().name("sender".to_owned()).spawn(move || worker.run(&from));
            let thread = thread.map_err(|e| format!("cannot start a thread: {e}"))?;
            lanes.push(Lane { batch: Batch::default(), to, target, thread });
        }
        Ok(Sender { lanes, account, next: 0, replaces: existing == Existing::Replace })
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
        if piece.adds {
            self.flush(at);
        }
        let adds = piece.adds;
        let lane = &mut self.lanes[at];
        lane.batch.commands += piece.commands as usize;
        lane.batch.entries.push(Entry {
            number,
            line: piece.line,
            route: piece.route,
            begins: piece.begins,
            adds,
            name: piece.name,
            kind: piece.kind,
            rows: piece.rows,
            commands: piece.commands,
            gathered: piece.gathered,
        });
        lane.batch.push(piece.bytes, piece.gathered, self.replaces);
        let full = lane.batch.bytes.len() >= BATCH_BYTES || lane.batch.commands >= lane.target.load(Relaxed);
        if full || adds {
            self.flush(at);
        }
    }

    /// Notes that everything up to `place` has been pushed.
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
        lane.batch.gather(self.replaces);
        let batch = std::mem::take(&mut lane.batch);
        // A thread that ended has recorded why.
        if !batch.entries.is_empty() && lane.to.send(batch).is_err() {
            self.account.stop();
        }
    }

    /// Sends the rest and waits for all replies.
    pub fn finish(mut self) {
        (0..self.lanes.len()).for_each(|at| self.flush(at));
        for lane in self.lanes {
            drop(lane.to);
            let _ = lane.thread.join();
        }
    }
}

/// The thread of one connection.
struct Worker {
    conn: Conn,
    account: Arc<Account>,
    target: Arc<AtomicUsize>,
    stops: bool,
    skips: bool,
    earlier: Earlier,
    /// Keys that were not made: nothing is added to them (D5).
    barred: HashSet<u64>,
}

impl Worker {
    fn run(mut self, from: &Receiver<Batch>) {
        while let Ok(batch) = from.recv() {
            if self.account.is_stopped() {
                continue;
            }
            let mut refused = HashSet::new();
            if !batch.entries.iter().any(|entry| entry.adds && self.barred.contains(&entry.route)) {
                let started = Instant::now();
                match self.exchange(&batch) {
                    Ok(some) => refused = some,
                    Err(reason) => {
                        let first = batch.entries.first();
                        let (line, name) = first.map_or((0, ""), |entry| (entry.line, &entry.name));
                        self.account.refuse(line, name, reason, true);
                        self.account.stop();
                        continue;
                    }
                }
                self.adapt(batch.commands, started.elapsed());
                self.account.bytes.fetch_add(batch.bytes.len() as u64, Relaxed);
            }
            let mut safe = lock(&self.account.safe);
            for entry in &batch.entries {
                // With `stops`, a refused piece is to be sent again by the next run.
                if !self.stops || !refused.contains(&entry.number) {
                    safe.open.remove(&entry.number);
                }
            }
            safe.settle();
        }
    }

    /// Adapts the size of batches (D2), at most to double and at least to half.
    fn adapt(&self, commands: usize, took: Duration) {
        let fits = commands as f64 * ROUND.as_secs_f64() / took.as_secs_f64().max(1e-6);
        let now = self.target.load(Relaxed);
        self.target.store((fits as usize).clamp(now / 2, now * 2).clamp(1, COMMANDS_MAX), Relaxed);
    }

    /// Sends a batch; returns the numbers of the refused pieces. Errors: those of the connection, and errors
    /// about the server that later rows would meet too.
    fn exchange(&mut self, batch: &Batch) -> Result<HashSet<u64>, String> {
        self.conn.send(&batch.bytes)?;
        let mut refused = HashSet::new();
        let (mut groups, mut answers) = (batch.groups.iter(), VecDeque::new());
        for entry in &batch.entries {
            let mut taken = true;
            for _ in 0..entry.commands {
                if entry.gathered && answers.is_empty() {
                    answers = self.answers(groups.next().copied().unwrap_or_default())?;
                }
                let reply = if entry.gathered { answers.pop_front() } else { None };
                let skips = self.skips || self.earlier.may_have_sent(entry.line);
                let reply = reply.map_or_else(|| self.conn.reply(), Ok)?;
                if let Frame::Error(text) = &reply
                    && let Some(reason) = about_server(&self.conn.place, text)
                {
                    return Err(reason);
                }
                let why = match reply {
                    Frame::Error(text) if skips && text.starts_with(b"BUSYKEY") => None,
                    Frame::Error(text) => Some(String::from_utf8_lossy(&text).into_owned()),
                    // The reply of SET with NX.
                    Frame::Null if skips => None,
                    Frame::Null => Some("BUSYKEY Target key name already exists.".to_owned()),
                    _ => continue,
                };
                taken = false;
                match why {
                    None => _ = self.account.present.fetch_add(1, Relaxed),
                    Some(why) => {
                        refused.insert(entry.number);
                        self.refuse(entry, why);
                    }
                }
            }
            let is_refused = refused.contains(&entry.number);
            if let Some(kind) = entry.kind.filter(|_| taken || is_refused) {
                self.account.count(kind, is_refused);
            }
            if !taken && entry.begins {
                self.barred.insert(entry.route);
            }
            self.account.rows.fetch_add(if taken { entry.rows } else { 0 }, Relaxed);
            self.account.values.fetch_add((taken && !entry.adds).into(), Relaxed);
        }
        Ok(refused)
    }

    /// Reads the reply of a gathered command, one answer for each value.
    fn answers(&mut self, members: usize) -> Result<VecDeque<Frame>, String> {
        match self.conn.reply()? {
            Frame::Array(answers) if answers.len() == members => Ok(answers.into()),
            // All values were refused.
            Frame::Error(text) => Ok(vec![Frame::Error(text); members].into()),
            _ => Err("the server did not answer with a reply for each value".to_owned()),
        }
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
    fn small_values_are_gathered_in_order() {
        let mut batch = Batch::default();
        let value = |n: usize| format!("k{n}").into_bytes();
        (0..MEMBERS + 2).for_each(|n| batch.push(value(n), true, true));
        batch.push(b"PING".to_vec(), false, true);
        batch.push(value(99), true, true);
        batch.gather(true);
        batch.gather(true);
        assert_eq!(batch.groups, [MEMBERS, 2, 1]);
        let text = batch.bytes.escape_ascii().to_string();
        let gathered = |values: &str, n: usize| {
            let words = 3 + 3 * n;
            let digits = n.to_string().len();
            format!(
                "*{words}\\r\\n$8\\r\\nMRESTORE\\r\\n${digits}\\r\\n{n}\\r\\n{values}$7\\r\\nREPLACE\\r\\n"
            )
        };
        let first: String = (0..MEMBERS).map(|n| format!("k{n}")).collect();
        assert_eq!(text, gathered(&first, MEMBERS) + &gathered("k32k33", 2) + "PING" + &gathered("k99", 1));
    }

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
