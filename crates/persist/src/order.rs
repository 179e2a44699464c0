//! Makes one stream, in the order of the LSNs, from the rings of many threads.
//!
//! ```text
//! loop 1: [n=7 SET ..][n=9 -> shared] ─┐  look: settled LSN p, all rings, sort,
//! loop 2: [n=8 DEL ..]                ─┴─► everything up to p, framed ─► blocks ─► outlets
//! ```
//!
//! - T3: within a ring, entries of one LSN stay in order; entries of different LSNs may be mixed. So they are
//!   sorted stably.
//! - O1: a group of several commands stands in MULTI … EXEC, SELECT where the database changes. No group is
//!   split.
//! - O2: the thread looks every 5 ms while anything comes, and at once for a full chunk or a bell. After a
//!   while without anything it sleeps, and the next entry wakes it. No entry is missed: the writer draws its
//!   LSN, puts the entry, and then looks whether the thread sleeps. The thread says that it sleeps, and then
//!   looks whether an LSN was drawn.
//! - O3: a panic of the thread loses what it had taken, and ends nothing. Outlets hear of it ([`Item::Break`]),
//!   and get nothing more before a mark behind everything that may be lost: behind such a mark a snapshot
//!   has it all. Nothing that was lost counts as given.
//! - O5: the log names the place in the replicas' history at the end of each look that gave it something, and
//!   a little later where only the history went on. An outlet that goes is told the place last.
//! - O4: outlets come and go between two looks ([`Order::add`], [`Order::remove`]). One that comes hears of all
//!   that is told from then on; one that goes has been given all that was told before.

mod frame;
pub(crate) mod shared;

use crate::rings::{self, LEN, Pool, Putter, Taker};
#[cfg(doc)]
use crate::stream::Item;
use crate::stream::{HistoryPlace, Outlet};
use frame::Framer;
use keyspace::{At, CommitSink, Effects, Keyspace, Lsn, Mark, To};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Longer commands are kept apart from the ring.
const WORDS_MAX: usize = 4096;
/// Room for the first line of a command, before its words, and for a line before a word.
const LINE: usize = 32;
/// Bytes of the room that a thread encodes commands in, at first.
const ROOM_FOR_WORDS: usize = 2 * WORDS_MAX;
/// Bytes that effects told by pointer count as, until they are written out.
const SHARED: usize = 4096;
/// Time between two looks while anything comes, and the number of vain looks after which the thread sleeps.
const EVERY: Duration = Duration::from_millis(5);
const IN_VAIN: u32 = 20;
/// Time between two places that are named for their own sake (O5).
const PLACES: Duration = Duration::from_millis(200);
/// Bytes of entries whose room is kept for the next look.
const ROOM: usize = 4 * 1024 * 1024;
/// Chunks there are from the start.
const CHUNKS: usize = 8;

/// The kinds of entries, and their receivers, in the bits of an entry's info above its length.
const KIND: u64 = 0xf << 16;
const COMMAND: u64 = 0;
const LONG: u64 = 1 << 16;
const LIST: u64 = 2 << 16;
const MARK: u64 = 3 << 16;
const CARRIED: u64 = 4 << 16;
const REPLICAS: u64 = 1 << 20;
const LOG: u64 = 1 << 21;
const HAS_DB: u64 = 1 << 22;

fn info(kind: u64, at: At) -> u64 {
    let to = match at.to {
        To::All => REPLICAS | LOG,
        To::Replicas => REPLICAS,
        To::Log => LOG,
    };
    kind | to | at.db.map_or(0, |db| HAS_DB | u64::from(db) << 32)
}

/// An effect that has no place in a ring.
enum Large {
    /// A command: its bytes, and the offset at which it begins.
    Long(Vec<u8>, usize),
    List(Arc<dyn Effects>),
}

impl Large {
    /// The bytes that it counts as while it waits.
    fn counts(&self) -> usize {
        match self {
            Large::Long(bytes, from) => bytes.len() - from,
            Large::List(_) => SHARED,
        }
    }
}

type Rings = Mutex<Vec<Taker<Large>>>;

/// Numbers of the orders, for their threads.
static ORDERS: AtomicU64 = AtomicU64::new(1);

/// A thread's ring, and the bytes it encodes a command in.
struct Voice {
    of: u64,
    putter: Putter<Large>,
    scratch: Vec<u8>,
}

thread_local! {
    static VOICES: RefCell<Vec<Voice>> = const { RefCell::new(Vec::new()) };
}

/// The order thread, and the sink that feeds it. See the module.
pub struct Order {
    id: u64,
    keyspace: Arc<Keyspace>,
    pool: Pool,
    /// Rings of threads that the order thread has not met yet.
    coming: Rings,
    /// Bytes in rings that are known by whole chunks, and what is large; and bytes that the thread holds. The
    /// thread may take a chunk before it is counted, so the first figure may be below zero for a moment.
    waiting: AtomicIsize,
    held: AtomicUsize,
    /// The thread sleeps, or is told to look (O2).
    asleep: AtomicBool,
    rung: AtomicBool,
    /// It ends when everything up to here is given.
    until: AtomicU64,
    /// Outlets that come and go (O4). None: the thread has ended.
    changes: Mutex<Option<Vec<Change>>>,
    outlets: AtomicU64,
    sleeper: OnceLock<Thread>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An outlet comes, or goes once all up to an LSN was given (O4). The sender goes when that is done.
enum Change {
    Add(u64, Box<dyn Outlet>, SyncSender<()>),
    Remove(u64, Lsn, SyncSender<()>),
}

impl Order {
    /// Starts the thread. It hears of what is told once [`Keyspace::listen`] is called with it.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn start(keyspace: &Arc<Keyspace>, outlets: Vec<Box<dyn Outlet>>) -> std::io::Result<Arc<Order>> {
        let order = Arc::new(Order {
            id: ORDERS.fetch_add(1, Ordering::Relaxed),
            keyspace: keyspace.clone(),
            pool: Pool::new(CHUNKS),
            coming: Mutex::default(),
            waiting: AtomicIsize::new(0),
            held: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            rung: AtomicBool::new(false),
            until: AtomicU64::new(Lsn::MAX),
            changes: Mutex::new(Some(Vec::new())),
            outlets: AtomicU64::new(outlets.len() as u64),
            sleeper: OnceLock::new(),
            thread: Mutex::default(),
        });
        let mine = order.clone();
        let thread =
            thread::Builder::new().name("order".into()).spawn(move || Looking::new(mine, outlets).run());
        let thread = thread?;
        let _ = order.sleeper.set(thread.thread().clone());
        *order.thread.lock() = Some(thread);
        Ok(order)
    }

    /// Bytes told that the outlets have not been given yet. A ring counts by whole chunks. O(1).
    pub fn pending_bytes(&self) -> usize {
        self.waiting.load(Ordering::Relaxed).max(0) as usize + self.held.load(Ordering::Relaxed)
    }

    /// Makes the thread look now, as a reply waits for its effects. O(1), with a system call if it is the
    /// first bell.
    pub fn bell(&self) {
        if !self.rung.swap(true, Ordering::AcqRel)
            && let Some(sleeper) = self.sleeper.get()
        {
            sleeper.unpark();
        }
    }

    /// Adds an outlet, and returns its number (O4). Waits for the thread, some milliseconds at most while it
    /// works.
    pub fn add(&self, outlet: Box<dyn Outlet>) -> u64 {
        let number = self.outlets.fetch_add(1, Ordering::Relaxed);
        self.change(|done| Change::Add(number, outlet, done));
        number
    }

    /// Removes an outlet, by its number (O4). Waits for the thread.
    pub fn remove(&self, number: u64) {
        self.keyspace.mark_now(Mark::PLACE);
        let upto = self.keyspace.last_lsn();
        self.change(|done| Change::Remove(number, upto, done));
    }

    fn change(&self, change: impl FnOnce(SyncSender<()>) -> Change) {
        let (done, wait) = sync_channel(1);
        match &mut *self.changes.lock() {
            Some(changes) => changes.push(change(done)),
            None => return,
        }
        self.bell();
        // The thread drops the sender, done or not.
        let _ = wait.recv();
    }

    /// Ends listening, gives the outlets all effects told until then, and ends the thread. Waits for that.
    pub fn stop(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            self.until.store(self.keyspace.unlisten(), Ordering::Release);
            self.rung.store(false, Ordering::Release);
            self.bell();
            // Its panics are contained (O3).
            let _ = thread.join();
        }
    }

    /// Calls `put` with this thread's ring; it returns the bytes of the chunk that became full.
    #[inline]
    fn put(&self, put: impl FnOnce(&mut Voice) -> Option<usize>) {
        let full = VOICES.with_borrow_mut(|voices| {
            let place = voices.iter().position(|voice| voice.of == self.id);
            let place = place.unwrap_or_else(|| self.raise(voices));
            put(&mut voices[place])
        });
        if let Some(bytes) = full {
            self.waiting.fetch_add(bytes as isize, Ordering::Relaxed);
            self.bell();
        }
        if self.asleep.load(Ordering::SeqCst) {
            self.bell();
        }
    }

    /// A ring for a thread that has none.
    #[cold]
    fn raise(&self, voices: &mut Vec<Voice>) -> usize {
        let (putter, taker) = rings::ring(&self.pool);
        self.coming.lock().push(taker);
        voices.retain(|voice| !voice.putter.is_ended());
        voices.push(Voice { of: self.id, putter, scratch: vec![0; ROOM_FOR_WORDS] });
        voices.len() - 1
    }
}

/// Encodes a command behind [`LINE`] bytes; returns where it begins and ends. Bytes behind its end mean
/// nothing.
#[inline]
fn encode(scratch: &mut Vec<u8>, words: &mut dyn Iterator<Item = &[u8]>) -> Range<usize> {
    let (mut at, mut count) = (LINE, 0usize);
    if scratch.len() < LINE {
        scratch.resize(ROOM_FOR_WORDS, 0);
    }
    for word in words {
        count += 1;
        let (head, len) = word_line(word.len());
        let need = at + LINE + word.len() + LINE;
        if word.len() > WORDS_MAX {
            // No room is cleared for it first.
            scratch.truncate(at);
            [&head[..len], word, b"\r\n"].iter().for_each(|part| scratch.extend_from_slice(part));
            at = scratch.len();
            continue;
        }
        // One look at the room for all of the word.
        if scratch.len() < need {
            scratch.resize(need + ROOM_FOR_WORDS, 0);
        }
        let room = &mut scratch[at..need];
        room[..LINE].copy_from_slice(&head);
        room[len..len + word.len()].copy_from_slice(word);
        at += len + word.len() + 2;
        room[len + word.len()..len + word.len() + 2].copy_from_slice(b"\r\n");
    }
    let mut digits = itoa::Buffer::new();
    let count = digits.format(count).as_bytes();
    let from = LINE - 3 - count.len();
    scratch[from] = b'*';
    scratch[from + 1..LINE - 2].copy_from_slice(count);
    scratch[LINE - 2..LINE].copy_from_slice(b"\r\n");
    from..at
}

/// The line before a word of so many bytes, and its length. The rest of the array means nothing.
#[inline]
fn word_line(bytes: usize) -> ([u8; LINE], usize) {
    let mut line = [b'$'; LINE];
    if bytes < 100 {
        let (tens, ones) = (b'0' + (bytes / 10) as u8, b'0' + (bytes % 10) as u8);
        let short = bytes < 10;
        (line[1], line[2], line[3]) = if short { (ones, b'\r', b'\n') } else { (tens, ones, b'\r') };
        line[4] = b'\n';
        return (line, if short { 4 } else { 5 });
    }
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(bytes).as_bytes();
    let len = 1 + digits.len();
    line[1..len].copy_from_slice(digits);
    line[len..len + 2].copy_from_slice(b"\r\n");
    (line, len + 2)
}

impl CommitSink for Order {
    fn words(&self, at: At, words: &mut dyn Iterator<Item = &[u8]>) {
        self.put(|Voice { putter, scratch, .. }| {
            let range = encode(scratch, words);
            let len = range.len();
            if len <= WORDS_MAX {
                return putter.put(&self.pool, at.lsn, info(COMMAND, at) | len as u64, &scratch[range]);
            }
            scratch.truncate(range.end);
            let from = range.start;
            self.waiting.fetch_add(len as isize, Ordering::Relaxed);
            let large = Large::Long(std::mem::take(scratch), from);
            putter.put_large(&self.pool, at.lsn, info(LONG, at), large)
        });
    }

    fn shared(&self, at: At, effects: Arc<dyn Effects>) {
        self.waiting.fetch_add(SHARED as isize, Ordering::Relaxed);
        self.put(|Voice { putter, .. }| {
            putter.put_large(&self.pool, at.lsn, info(LIST, at), Large::List(effects))
        });
    }

    fn mark(&self, lsn: Lsn, mark: Mark) {
        let (number, to) = (mark.0, mark.to());
        let info = info(MARK, At { lsn, db: None, to }) | size_of::<u64>() as u64;
        self.put(|Voice { putter, .. }| putter.put(&self.pool, lsn, info, &number.to_le_bytes()));
    }

    fn carried(&self, lsn: Lsn, db: u32, bytes: Vec<u8>) {
        let info = info(CARRIED, At { lsn, db: Some(db), to: To::Replicas });
        self.waiting.fetch_add(bytes.len() as isize, Ordering::Relaxed);
        self.put(|Voice { putter, .. }| putter.put_large(&self.pool, lsn, info, Large::Long(bytes, 0)));
    }
}

/// An entry that was taken from a ring.
struct Entry {
    lsn: Lsn,
    info: u64,
    /// The place of its bytes, or of its large effect.
    at: usize,
}

impl Entry {
    fn kind(&self) -> u64 {
        self.info & KIND
    }

    fn len(&self) -> usize {
        (self.info & LEN) as usize
    }

    fn db(&self) -> Option<u32> {
        (self.info & HAS_DB != 0).then_some((self.info >> 32) as u32)
    }
}

/// Entries, and what they consist of.
#[derive(Default)]
struct Taken {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    large: Vec<Option<Large>>,
}

impl Taken {
    /// Takes all that a ring has; returns the bytes of its chunks that were left.
    fn take(&mut self, ring: &mut Taker<Large>, pool: &Pool) -> usize {
        let (Taken { entries, bytes, large }, larges) = (self, ring.larges());
        ring.take(pool, &mut |lsn, info, body| {
            let at = match info & KIND {
                LONG | LIST | CARRIED => {
                    large.push(larges.next());
                    large.len() - 1
                }
                _ => bytes.len(),
            };
            rings::copy(body, (info & LEN) as usize, bytes);
            entries.push(Entry { lsn, info, at });
        })
    }

    /// The bytes that the large effects of some entries count as.
    fn large_bytes(&self, entries: &[Entry]) -> usize {
        let large = entries.iter().filter(|entry| matches!(entry.kind(), LONG | LIST | CARRIED));
        large.map(|entry| self.large[entry.at].as_ref().map_or(0, Large::counts)).sum()
    }

    /// The bytes of a short command.
    fn body(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.at..entry.at + entry.len()]
    }

    /// The rest from an entry on, as its own value.
    fn rest(&mut self, from: usize) -> Taken {
        let mut rest = Taken::default();
        for entry in self.entries.drain(from..) {
            let at = match entry.info & KIND {
                LONG | LIST | CARRIED => {
                    rest.large.push(self.large[entry.at].take());
                    rest.large.len() - 1
                }
                _ => {
                    let at = rest.bytes.len();
                    rest.bytes.extend_from_slice(&self.bytes[entry.at..entry.at + entry.len()]);
                    at
                }
            };
            rest.entries.push(Entry { at, ..entry });
        }
        rest
    }
}

/// The thread's own.
struct Looking {
    order: Arc<Order>,
    rings: Vec<Taker<Large>>,
    /// Effects told above the settled LSN.
    taken: Taken,
    framers: Vec<(u64, Framer)>,
    leaving: Vec<(u64, Lsn, SyncSender<()>)>,
    /// All up to here was given.
    given: Lsn,
    /// Bytes that this look has taken, and that still count as waiting.
    owed: usize,
    in_vain: u32,
    /// The place that the log was told last, and when one was last asked for (O5).
    place: Option<HistoryPlace>,
    asked: Instant,
}

impl Looking {
    fn new(order: Arc<Order>, outlets: Vec<Box<dyn Outlet>>) -> Looking {
        let framers = (0..).zip(outlets).map(|(number, outlet)| (number, Framer::new(outlet))).collect();
        let (rings, leaving, taken) = (Vec::new(), Vec::new(), Taken::default());
        let asked = Instant::now();
        Looking { order, rings, taken, framers, leaving, given: 0, owed: 0, in_vain: 0, place: None, asked }
    }

    fn run(mut self) {
        loop {
            let until = self.order.until.load(Ordering::Acquire);
            self.order.rung.store(false, Ordering::Release);
            let came = stdx::panics::contain(|| self.look()).unwrap_or_else(|why| self.breaks(&why));
            let last = self.order.keyspace.last_lsn();
            if self.given >= until {
                // Nobody waits for a change that will not come.
                *self.order.changes.lock() = None;
                return;
            }
            self.in_vain = if came || self.owes_place() { 0 } else { self.in_vain + 1 };
            if self.in_vain < IN_VAIN {
                thread::park_timeout(EVERY);
                continue;
            }
            self.order.asleep.store(true, Ordering::SeqCst);
            match self.order.keyspace.last_lsn() == last && self.given >= last {
                true => thread::park(),
                false => thread::park_timeout(EVERY),
            }
            self.order.asleep.store(false, Ordering::SeqCst);
        }
    }

    /// Lets outlets come and go (O4).
    fn make_changes(&mut self) {
        let changes = self.order.changes.lock().as_mut().map(std::mem::take);
        for change in changes.into_iter().flatten() {
            match change {
                Change::Add(number, outlet, done) => {
                    self.framers.push((number, Framer::new(outlet)));
                    drop(done);
                }
                Change::Remove(number, upto, done) => self.leaving.push((number, upto, done)),
            }
        }
        let (framers, given) = (&mut self.framers, self.given);
        self.leaving.retain(|(number, upto, _)| {
            let stays = *upto > given;
            if !stays {
                framers.retain(|(other, _)| other != number);
            }
            stays
        });
    }

    fn each(&mut self, f: impl FnMut(&mut Framer)) {
        self.framers.iter_mut().map(|(_, framer)| framer).for_each(f);
    }

    /// Gives all settled effects (T2). True if anything had come.
    fn look(&mut self) -> bool {
        self.make_changes();
        let settled = self.order.keyspace.settled();
        // After the slots: a ring is raised before its thread leaves its slot.
        self.rings.append(&mut self.order.coming.lock());
        for i in (0..self.rings.len()).rev() {
            let closed = self.rings[i].is_closed();
            self.owed += self.taken.take(&mut self.rings[i], &self.order.pool);
            if closed {
                self.rings.swap_remove(i);
            }
        }
        let came = !self.taken.entries.is_empty();
        if came {
            self.order.held.store(self.taken.bytes.len(), Ordering::Relaxed);
            self.give(settled);
        }
        self.pays(self.owed);
        if settled > self.given {
            self.given = settled;
            self.each(|framer| framer.turn(settled));
        }
        self.each(Framer::looked);
        came
    }

    /// Some bytes do not wait any more.
    fn pays(&mut self, bytes: usize) {
        self.owed -= bytes;
        self.order.waiting.fetch_sub(bytes as isize, Ordering::Relaxed);
    }

    /// A look panicked: what it had taken is lost (O3). True: something had come.
    #[cold]
    fn breaks(&mut self, why: &str) -> bool {
        // All that is lost was drawn before.
        let upto = self.order.keyspace.last_lsn();
        log::error!("writes on their way to the log are lost, and it needs a new base: {why}");
        let taken = std::mem::take(&mut self.taken);
        self.owed += taken.large_bytes(&taken.entries);
        self.pays(self.owed);
        self.order.held.store(0, Ordering::Relaxed);
        let why = Arc::from(format!("an internal error lost writes on their way to it ({why})"));
        self.each(|framer| framer.breaks(upto, &why));
        true
    }

    /// Gives what is under way: to replicas, and then to the log, which hears where these are (O5).
    fn close(&mut self) {
        let replicas = self.framers.iter_mut().map(|(_, framer)| framer).filter(|framer| !framer.is_of_log());
        replicas.for_each(Framer::close);
        match self.present_place() {
            None => self.each(Framer::close),
            Some(place) => {
                let logs =
                    self.framers.iter_mut().map(|(_, framer)| framer).filter(|framer| framer.is_of_log());
                let told = logs.filter_map(|framer| framer.close_at(&place)).max();
                if let Some(lsn) = told {
                    self.place = Some(place);
                    self.each(|framer| framer.named(lsn));
                }
            }
        }
    }

    fn present_place(&mut self) -> Option<HistoryPlace> {
        self.framers.iter_mut().find_map(|(_, framer)| framer.place())
    }

    /// Whether the log does not know the place, which is asked for now and then (O5).
    fn owes_place(&mut self) -> bool {
        let is_new = self.framers.iter().any(|(_, framer)| framer.wants_place());
        let has_log = self.framers.iter().any(|(_, framer)| framer.is_of_log());
        let Some(place) = self.present_place().filter(|_| has_log) else { return false };
        let owes = is_new || self.place.as_ref() != Some(&place);
        if owes && self.asked.elapsed() >= PLACES {
            self.asked = Instant::now();
            self.order.keyspace.mark_now(Mark::PLACE);
        }
        owes
    }

    /// Gives the groups up to an LSN.
    fn give(&mut self, upto: Lsn) {
        self.taken.entries.sort_by_key(|entry| entry.lsn);
        let end = self.taken.entries.partition_point(|entry| entry.lsn <= upto);
        let rest = self.taken.rest(end);
        let mut taken = std::mem::replace(&mut self.taken, rest);
        let entries = std::mem::take(&mut taken.entries);
        self.owed += taken.large_bytes(&entries);
        for group in entries.chunk_by(|a, b| a.lsn == b.lsn) {
            self.each(|framer| framer.group(group, &taken));
            for entry in group.iter().filter(|entry| matches!(entry.kind(), LONG | LIST | CARRIED)) {
                if let Some(large) = taken.large[entry.at].take() {
                    self.pays(large.counts());
                }
            }
        }
        self.close();
        self.order.held.store(self.taken.bytes.len(), Ordering::Relaxed);
        // Its room is used again, unless a burst made it large.
        if self.taken.entries.is_empty() && taken.bytes.capacity() <= ROOM {
            taken.bytes.clear();
            taken.large.clear();
            self.taken = Taken { entries: cleared(entries), ..taken };
        }
    }
}

fn cleared(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.clear();
    entries
}

#[cfg(test)]
mod tests;
