//! A snapshot: a walk in slices on a loop, and a thread that writes what the walk visits.
//!
//! ```text
//! loop:    Saving::advance ─► Walk::advance ─► Batch ─┐ queue without locks
//! writer:  SaveOut ◄──────────────────────────────────┘
//!              └─► the piece itself, when it had gone through the queue behind [`AHEAD`] bytes
//! ```
//!
//! - V1: the bytes that wait for the writer are bounded. The piece goes through the queue itself, and comes
//!   back when everything before it is written.
//! - V2: a failed writer goes on to empty its queue. So the piece comes back and ends the walk on its loop.
//! - V3: the caller that begins takes `busy`; the writer gives it back at the end.
//! - V4: the file is named as the snapshot begins. A CONFIG SET of `dir` or `dbfilename` is for the next one.

use super::{KeyFacts, Rewrite, SaveOut, SavePlan, trouble};
use crate::piece::{Desk, Letter, Piece, Step};
use crate::{Local, Server};
use keyspace::{Changes, Keyspace, Mark, Walk, WalkEntry, WalkLimits, WalkSink, WalkValue, Walked};
use parking_lot::Mutex;
use scripts::Libraries;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use stdx::points::{self, Point};
use stdx::threads::Breath;
use value::Value;

/// Keys of the walk per slice: some 20 µs.
const KEYS: usize = 150;
/// Keys, and below bytes, at which a batch goes to the writer.
const BATCH_KEYS: usize = 1024;
const BATCH_BYTES: usize = 128 * 1024;
/// Most bytes that may wait for the writer (V1).
const AHEAD: usize = 8 << 20;
/// Bytes that a large value counts for in the queue; it is shared, not copied.
const HANDLE_BYTES: usize = 256;
/// Least limit of the memory kept for a snapshot, unless configured.
const RETAINED_LEAST: u64 = 64 << 20;
/// Numbers of files for clients are above those of other temporary files.
const COPIES: u64 = 1 << 62;
/// Seconds that save points wait after a failure.
const RETRY_S: u64 = 5;

/// The reason for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// BGSAVE, SAVE, a save point.
    Save,
    /// The end of the server.
    Last,
    /// A base of the log.
    Rewrite,
    /// A file that a client is sent ([`Copied`]).
    Copy(Copied),
}

/// A snapshot for a client that wants the file alone. A part that is left out is as empty as in a new server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub client: u64,
    pub keys: bool,
    pub functions: bool,
}

impl Purpose {
    /// The file of a snapshot that begins now (V4). A rewrite's is another, which the log names. The file of a copy has
    /// this name until its client is sent it; a process that was killed leaves it behind, and a start removes it.
    fn file(self, server: &Server) -> PathBuf {
        server.config.together(|live| {
            let name = match self {
                Purpose::Copy(copied) => {
                    format!("temp-{}-{}.rdb", std::process::id(), COPIES | copied.client)
                }
                _ => live.dbfilename.string(),
            };
            PathBuf::from(live.dir.string()).join(name)
        })
    }
}

/// Figures and switches of snapshots. Those of one under way mean nothing when there is none.
pub(super) struct Saves {
    /// Taken while a snapshot is under way (V3); 0: none is.
    pub(super) busy: AtomicU8,
    /// A snapshot was asked for by BGSAVE SCHEDULE, or in a transaction.
    scheduled: AtomicBool,
    pub(super) is_rewrite: AtomicBool,
    cancelled: AtomicBool,
    /// Whole tables were replaced as a rewrite began: it has to begin again.
    anew: AtomicBool,
    /// The writer has failed (V2).
    broken: AtomicBool,
    pub(super) began_s: AtomicU64,
    pub(super) keys: AtomicU64,
    pub(super) total_keys: AtomicU64,
    pub(super) kept_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) foreign: AtomicU64,
    /// Writers replace more than the walk keeps up with: no rate limit holds now.
    pressed: AtomicBool,
    /// Count of writes before the snapshot under way, and before the last one that was saved.
    dirty_begun: AtomicU64,
    dirty_saved: AtomicU64,
    last_save_s: AtomicU64,
    tried_s: AtomicU64,
    pub(super) last_s: AtomicU64,
    pub(super) last_kept_bytes: AtomicU64,
    pub(super) count: AtomicU64,
    pub(super) failed: AtomicBool,
}

impl Default for Saves {
    fn default() -> Saves {
        let number = || AtomicU64::new(0);
        let switch = || AtomicBool::new(false);
        Saves {
            busy: AtomicU8::new(0),
            scheduled: switch(),
            is_rewrite: switch(),
            cancelled: switch(),
            anew: switch(),
            broken: switch(),
            began_s: number(),
            keys: number(),
            total_keys: number(),
            kept_bytes: number(),
            written_bytes: number(),
            foreign: number(),
            pressed: switch(),
            dirty_begun: number(),
            dirty_saved: number(),
            last_save_s: number(),
            tried_s: number(),
            last_s: AtomicU64::new(u64::MAX),
            last_kept_bytes: number(),
            count: number(),
            failed: switch(),
        }
    }
}

impl Saves {
    /// Writes since the last snapshot.
    pub(super) fn changes(&self, server: &Server) -> u64 {
        dirty(server).saturating_sub(self.dirty_saved.load(Relaxed))
    }

    /// The time of the last snapshot, in seconds since 1970. As in Redis, the start of the server counts as
    /// none.
    pub(super) fn last_save_s(&self, server: &Server) -> u64 {
        match self.last_save_s.load(Relaxed) {
            0 => server.started_ms / 1000,
            at => at,
        }
    }

    /// Notes that the keyspace and a file hold the same data.
    pub(super) fn nothing_changed(&self, server: &Server) {
        self.dirty_saved.store(dirty(server), Relaxed);
    }
}

fn dirty(server: &Server) -> u64 {
    server.keyspace.stats.dirty.load(Relaxed)
}

impl super::Durability {
    /// The time of the last snapshot, in seconds since 1970.
    pub(crate) fn last_save_s(&self, server: &Server) -> u64 {
        self.saves.last_save_s(server)
    }

    /// Schedules a snapshot, to be taken as soon as none is under way.
    pub(crate) fn schedule(&self) {
        self.saves.scheduled.store(true, Release);
    }

    /// Takes [`Durability::schedule`] back. False: no snapshot was scheduled.
    pub(crate) fn unschedule(&self) -> bool {
        self.saves.scheduled.swap(false, AcqRel)
    }
}

pub(crate) fn is_busy(server: &Server) -> bool {
    server.durability.saves.busy.load(Acquire) != 0
}

/// Ends the snapshot under way, soon. False: there is none.
pub(crate) fn cancel(server: &Server) -> bool {
    let busy = is_busy(server);
    server.durability.saves.cancelled.store(busy, Release);
    busy
}

/// Whether the rewrite under way has to begin again.
pub(super) fn is_anew(server: &Server) -> bool {
    server.durability.saves.anew.load(Acquire)
}

/// Takes `busy` (V3). False: a snapshot is under way.
pub(super) fn take(server: &Server) -> bool {
    server.durability.saves.busy.compare_exchange(0, 1, AcqRel, Relaxed).is_ok()
}

/// Gives `busy` back, of a caller that has taken it and begins nothing (V3).
pub(super) fn give_back(server: &Server) {
    server.durability.saves.busy.store(0, Release);
}

/// Called on the writer's thread with a snapshot's file, or why there is none, before another snapshot may begin.
pub(crate) type Done = Box<dyn FnOnce(Result<&Path, &str>) -> Answer + Send>;

/// Tells who waits, once another snapshot may begin: whoever was told may ask for the next one at once.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

/// The place where a piece begins.
pub(super) enum Where<'l> {
    Here(&'l mut Local),
    Loop(usize),
}

/// Begins a snapshot on this loop, to be taken in slices later; nothing is locked now. False: one is under
/// way.
pub(crate) fn begin(server: &Arc<Server>, local: &mut Local, purpose: Purpose, done: Option<Done>) -> bool {
    let taken = take(server);
    if taken {
        begin_taken(server, purpose, done, Where::Here(local));
    }
    taken
}

/// Begins a snapshot. The caller has taken `busy`.
pub(super) fn begin_taken(server: &Arc<Server>, purpose: Purpose, done: Option<Done>, at: Where<'_>) {
    let saves = &server.durability.saves;
    let now_s = stdx::clock::wall_ms() / 1000;
    for (number, value) in [(&saves.began_s, now_s), (&saves.tried_s, now_s)] {
        number.store(value, Relaxed);
    }
    for number in [&saves.keys, &saves.kept_bytes, &saves.written_bytes, &saves.foreign] {
        number.store(0, Relaxed);
    }
    for switch in [&saves.scheduled, &saves.cancelled, &saves.anew, &saves.broken, &saves.pressed] {
        switch.store(false, Release);
    }
    saves.total_keys.store(keys(&server.keyspace), Relaxed);
    saves.dirty_begun.store(dirty(server), Relaxed);
    let ((queue, batches), (give_back, empty)) = (channel(), channel());
    saves.is_rewrite.store(purpose == Purpose::Rewrite, Release);
    let file = purpose.file(server);
    let piece = Box::new(Saving {
        server: server.clone(),
        purpose,
        file: file.clone(),
        walk: None,
        queue,
        empty,
        taking: Taking::default(),
    });
    // A rewrite begins on the disk.
    let (first, piece) = match (purpose, &at) {
        (Purpose::Rewrite, Where::Here(local)) => (Some((local.log.id, piece)), None),
        (Purpose::Rewrite, Where::Loop(loop_id)) => (Some((*loop_id, piece)), None),
        _ => (None, Some(piece)),
    };
    let began = Instant::now();
    let writer = Writer {
        server: server.clone(),
        purpose,
        file,
        first,
        rewrite: None,
        batches,
        give_back,
        done,
        began,
    };
    // The clerk starts the thread, because that may take longer than a quantum.
    let made = server.observe.clerk.send(move || writer.start());
    if !made {
        log::error!("a snapshot was not begun: no thread could be started");
    }
    let Some(piece) = piece else { return };
    match at {
        Where::Here(local) => local.works.push(piece),
        Where::Loop(loop_id) => (server.work.post)(loop_id, Letter::Back(piece)),
    }
}

fn keys(keyspace: &Keyspace) -> u64 {
    (0..keyspace.databases()).map(|db| keyspace.len(db) as u64).sum()
}

/// Decides whether failed snapshots stop writes.
pub(super) fn judge(server: &Server) {
    let live = &server.config.live;
    let stops = live.stop_writes_on_save_error.get() && !live.save_points.is_empty();
    server.durability.set(trouble::SAVE_FAILED, stops && server.durability.saves.failed.load(Relaxed));
}

/// Begins a snapshot that is scheduled, or due by a save point.
pub(super) fn tend(server: &Arc<Server>, local: &mut Local) {
    let saves = &server.durability.saves;
    if is_busy(server) {
        return;
    }
    if saves.scheduled.load(Acquire) {
        begin(server, local, Purpose::Save, None);
        return;
    }
    let (now_s, changes) = (local.log.now_ms / 1000, saves.changes(server));
    if changes == 0 || server.durability.storage().is_none() {
        return;
    }
    if saves.failed.load(Relaxed) && now_s < saves.tried_s.load(Relaxed) + RETRY_S {
        return;
    }
    let passed_s = now_s.saturating_sub(saves.last_save_s(server));
    let points = server.config.live.save_points.get();
    if let Some((seconds, least)) = pairs(&points).find(|(s, least)| passed_s > *s && changes >= *least) {
        log::info!("{changes} changes in {passed_s} s (save {seconds} {least}): saving");
        begin(server, local, Purpose::Save, None);
    }
}

fn pairs(points: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let mut numbers = points.split(|b| *b == b' ').filter_map(stdx::num::parse_i64).map(|n| n.max(0) as u64);
    std::iter::from_fn(move || Some((numbers.next()?, numbers.next()?)))
}

// ----- on the loop ------------------------------------------------------------------------------------------

/// A key on its way to the writer.
struct Item {
    db: u32,
    key: u32,
    /// Length of a short text, in bytes; else `value` holds the value.
    text: u32,
    facts: KeyFacts,
    value: Option<Value>,
}

/// Keys on their way to the writer: names and short texts one after the other, and their items.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    items: Vec<Item>,
}

impl Batch {
    fn new() -> Batch {
        // The buffer does not grow under a lock, unless a key is very long.
        Batch { bytes: Vec::with_capacity(BATCH_BYTES * 2), items: Vec::with_capacity(BATCH_KEYS + 2 * KEYS) }
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES || self.items.len() >= BATCH_KEYS
    }
}

/// The form in which uses of keys are written.
#[derive(Clone, Copy, Default)]
enum Uses {
    #[default]
    None,
    Idle,
}

/// Keys that the walk visits, collected into batches.
#[derive(Default)]
struct Taking {
    batch: Batch,
    told: Vec<Changes>,
    now_ms: u64,
    uses: Uses,
    header: Arc<Mutex<Header>>,
    has_begun: bool,
    /// The snapshot becomes the base of the log.
    rewrite: Option<Rewrite>,
    /// Bytes in the queue since the piece last went through it (V1).
    ahead: usize,
}

/// The facts before the keys, as of the walk's moment.
#[derive(Default)]
struct Header {
    lsn: u64,
    libraries: Option<Arc<Libraries>>,
    sizes: Vec<(u64, u64)>,
    has_field_times: bool,
}

impl WalkSink for Taking {
    fn entry(&mut self, entry: WalkEntry<'_>) {
        let batch = &mut self.batch;
        batch.bytes.extend_from_slice(entry.key);
        let (text, value) = match &entry.value {
            WalkValue::Text(text) => {
                batch.bytes.extend_from_slice(text);
                (text.len() as u32, None)
            }
            WalkValue::Value(value) => (0, Some(value.clone())),
        };
        let idle_s = matches!(self.uses, Uses::Idle).then(|| entry.idle_s(self.now_ms));
        let facts = KeyFacts { expire_ms: entry.expire_ms, idle_s, freq: None };
        batch.items.push(Item { db: entry.db as u32, key: entry.key.len() as u32, text, facts, value });
    }

    fn told(&mut self, changes: Changes) {
        self.told.push(changes);
    }
}

enum Message {
    Begin(SavePlan, Header),
    Batch(Batch),
    /// The piece, to be sent back (V1).
    Piece(usize, Box<Saving>),
    /// All keys have been sent.
    End,
    /// The walk was given up, for this reason.
    Gave(String),
}

/// The loop's part of a snapshot. See the module.
struct Saving {
    server: Arc<Server>,
    purpose: Purpose,
    file: PathBuf,
    walk: Option<Walk>,
    queue: Sender<Message>,
    /// Batches that were written, to be filled again.
    empty: Receiver<Batch>,
    taking: Taking,
}

impl Piece for Saving {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let saves = &self.server.durability.saves;
        if saves.cancelled.load(Acquire) || saves.broken.load(Acquire) {
            return self.give_up("it was cancelled");
        }
        if self.walk.is_none() && points::stays(Point::SaveBegin, 0) {
            return Step::More(self);
        }
        if self.walk.is_some() && !self.taking.has_begun && points::stays(Point::SaveWalk, 0) {
            return Step::More(self);
        }
        let Some(walk) = &mut self.walk else { return self.begin(desk) };
        self.taking.now_ms = desk.now_ms;
        let walked = walk.advance(desk.now_ms, KEYS, &mut self.taking);
        let (figures, pressed) = (walk.figures(), walk.is_pressed());
        if figures.anew > 0 && self.taking.rewrite.is_some() {
            // The mark in the stream belongs to the walk's first begin.
            saves.anew.store(true, Release);
            self.server.durability.schedule_rewrite();
            return self.give_up("databases were exchanged or emptied as it began");
        }
        saves.keys.store(figures.keys, Relaxed);
        saves.kept_bytes.store(figures.bytes, Relaxed);
        saves.pressed.store(pressed, Relaxed);
        self.taking.told.drain(..).for_each(|changes| desk.tell(changes));
        match walked {
            Ok(Walked::More) if !self.taking.batch.is_full() => Step::More(self),
            Ok(Walked::More) => {
                self.send();
                self.wait_if_far_ahead(desk.loop_id)
            }
            Ok(Walked::Over(_)) => {
                self.send();
                self.post(Message::End);
                Step::Over(None)
            }
            Err(why) => self.give_up(&why.to_string()),
        }
    }
}

impl Saving {
    /// Begins the walk, and takes the libraries of the same moment.
    fn begin(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let server = self.server.clone();
        let live = &server.config.live;
        let used = server.observe.measured.allocator().allocated;
        let bytes = match live.save_retained_bytes.size() as u64 {
            0 => (used / 10).max(RETAINED_LEAST),
            bytes => bytes,
        };
        self.taking.uses = if matches!(live.maxmemory_policy.get(), 0 | 4) { Uses::Idle } else { Uses::None };
        self.taking.batch = Batch::new();
        let (header, at) = (self.taking.header.clone(), server.clone());
        let purpose = self.purpose;
        let place = self.taking.rewrite.as_ref().map(|rewrite| Mark(rewrite.mark));
        let mark = Arc::new(move |lsn| {
            if let Some(place) = place {
                at.keyspace.tell_mark(lsn, place);
            }
            *header.lock() = Header::of(&at, lsn, purpose);
        });
        match Walk::begin_marked(&desk.work.keyspace, WalkLimits { bytes }, mark) {
            Ok(mut walk) if matches!(self.purpose, Purpose::Copy(Copied { keys: false, .. })) => {
                walk.cancel();
                self.send();
                self.post(Message::End);
                Step::Over(None)
            }
            Ok(walk) => {
                self.walk = Some(walk);
                Step::More(self)
            }
            Err(why) => self.give_up(&why.to_string()),
        }
    }

    fn post(&self, message: Message) {
        // The writer lives until it hears how the walk ends, unless its thread could not be started.
        if self.queue.send(message).is_err() {
            self.server.durability.saves.broken.store(true, Release);
        }
    }

    /// Sends the collected keys. The header goes before the first.
    fn send(&mut self) {
        if !std::mem::replace(&mut self.taking.has_begun, true) {
            let header = std::mem::take(&mut *self.taking.header.lock());
            let plan = self.plan(&header);
            self.post(Message::Begin(plan, header));
        }
        let handles = self.taking.batch.items.iter().filter(|item| item.value.is_some()).count();
        self.taking.ahead += self.taking.batch.bytes.len() + handles * HANDLE_BYTES;
        let next = self.empty.try_recv().unwrap_or_else(|_| Batch::new());
        let full = std::mem::replace(&mut self.taking.batch, next);
        self.post(Message::Batch(full));
    }

    fn wait_if_far_ahead(mut self: Box<Self>, loop_id: usize) -> Step {
        if self.taking.ahead < AHEAD {
            return Step::More(self);
        }
        self.taking.ahead = 0;
        let queue = self.queue.clone();
        match queue.send(Message::Piece(loop_id, self)) {
            Ok(()) => Step::Over(None),
            Err(unsent) => match unsent.0 {
                Message::Piece(_, piece) => piece.give_up("no thread could be started"),
                _ => Step::Over(None),
            },
        }
    }

    /// Ends the walk here, on the loop (V2).
    fn give_up(mut self: Box<Self>, why: &str) -> Step {
        if let Some(walk) = &mut self.walk {
            walk.cancel();
        }
        if self.queue.send(Message::Gave(why.to_owned())).is_err() {
            // There never was a writer.
            ended(&self.server, self.purpose, Instant::now(), &Err("no thread could be started".into()));
        }
        Step::Over(None)
    }

    /// The plan of the file.
    fn plan(&self, header: &Header) -> SavePlan {
        let (server, rewrite) = (&self.server, self.taking.rewrite.as_ref());
        let live = &server.config.live;
        let version =
            config::RDB_VERSIONS.get(live.rdb_version.size()).and_then(|v| v.parse().ok()).unwrap_or(0);
        // A base has to hold everything.
        let version = if rewrite.is_some() { 0 } else { version };
        let has_functions = header.libraries.as_ref().is_some_and(|libraries| !libraries.code.is_empty());
        SavePlan {
            path: rewrite.map_or(&self.file, |rewrite| &rewrite.base).clone(),
            version,
            for_valkey: live.rdb_dialect.get() == 1,
            has_functions,
            has_field_times: header.has_field_times,
            sum: live.rdb_checksum.get(),
            passes: matches!(self.purpose, Purpose::Copy(_)),
            aux: vec![
                ("redis-ver", crate::info::REDIS_VERSION.to_owned()),
                ("redis-bits", usize::BITS.to_string()),
                ("ctime", (stdx::clock::wall_ms() / 1000).to_string()),
                ("used-mem", server.observe.measured.allocator().allocated.to_string()),
                ("aof-base", u8::from(rewrite.is_some()).to_string()),
                ("evenkeel-ver", crate::info::EVENKEEL_VERSION.to_owned()),
                ("evenkeel-lsn", header.lsn.to_string()),
                ("evenkeel-epoch", rewrite.map_or(0, |rewrite| rewrite.epoch).to_string()),
            ],
        }
    }
}

impl Header {
    /// Collects the header. All shards are locked.
    fn of(server: &Server, lsn: u64, purpose: Purpose) -> Header {
        let keyspace = &server.keyspace;
        server.durability.saves.dirty_begun.store(dirty(server), Relaxed);
        let has_functions = !matches!(purpose, Purpose::Copy(Copied { functions: false, .. }));
        let size = |db| (keyspace.len(db) as u64, keyspace.expires(db) as u64);
        Header {
            lsn,
            libraries: has_functions.then(|| server.scripts.code.libraries()),
            sizes: (0..keyspace.databases()).map(size).collect(),
            has_field_times: keyspace.has_field_times(),
        }
    }
}

// ----- on the writer's thread -------------------------------------------------------------------------------

struct Writer {
    server: Arc<Server>,
    purpose: Purpose,
    file: PathBuf,
    /// The piece of a rewrite and its loop, until the files are ready.
    first: Option<(usize, Box<Saving>)>,
    rewrite: Option<Rewrite>,
    batches: Receiver<Message>,
    give_back: Sender<Batch>,
    done: Option<Done>,
    began: Instant,
}

/// A file that is being written.
struct Open {
    out: Box<dyn SaveOut>,
    sizes: Vec<(u64, u64)>,
    db: Option<u32>,
    /// `foreign-types`: whether values of Evenkeel's own types are left out, or are an error.
    foreign: i64,
}

impl Writer {
    fn start(self) {
        let server = self.server.clone();
        let spawned = std::thread::Builder::new().name("save".into()).spawn(move || self.run());
        if let Err(error) = spawned {
            log::error!("a snapshot was not begun: {error}");
            // The queue goes with the writer: the piece finds that and ends the snapshot.
            server.durability.saves.broken.store(true, Release);
        }
    }

    fn run(mut self) {
        machine::threads::demote(self.server.observe.crowd.rank().nice());
        let (mut open, mut so_far) = (None, Ok(()));
        if let Err(why) = self.prepare() {
            return self.over(&Err(why));
        }
        let result = loop {
            let Ok(message) = self.batches.recv() else { break Err("it was given up".to_owned()) };
            match message {
                Message::Piece(loop_id, piece) => (self.server.work.post)(loop_id, Letter::Back(piece)),
                Message::Gave(why) => break so_far.and(Err(why)),
                Message::End => break so_far.and_then(|()| self.finish(open.take())),
                message if so_far.is_ok() => {
                    so_far = self.put(&mut open, message);
                    if so_far.is_err() {
                        open = None;
                        self.server.durability.saves.broken.store(true, Release);
                    }
                }
                _ => {}
            }
        };
        drop(open);
        let result = self.end_rewrite(result);
        self.over(&result);
    }

    fn over(mut self, result: &Result<(), String>) {
        let file = result.as_ref().map(|()| &*self.file).map_err(String::as_str);
        // A copy has no name any more when the next snapshot, or the end of the server, may begin.
        let answer = self.done.take().map(|done| done(file));
        ended(&self.server, self.purpose, self.began, result);
        if let Some(answer) = answer {
            answer();
        }
    }

    /// Begins a rewrite on the disk, and only then on the loop.
    fn prepare(&mut self) -> Result<(), String> {
        let Some((loop_id, mut piece)) = self.first.take() else { return Ok(()) };
        let storage = self.server.durability.storage().ok_or("there are no files")?;
        let rewrite = storage.begin_rewrite()?;
        piece.taking.rewrite = Some(rewrite.clone());
        self.rewrite = Some(rewrite);
        (self.server.work.post)(loop_id, Letter::Back(piece));
        Ok(())
    }

    /// Installs the base of a rewrite, or reports that there is none.
    fn end_rewrite(&self, result: Result<(), String>) -> Result<(), String> {
        let (Some(_), Some(storage)) = (&self.rewrite, self.server.durability.storage()) else {
            return result;
        };
        let bytes = self.server.durability.saves.written_bytes.load(Relaxed);
        match result {
            Ok(()) => storage.end_rewrite(Ok(bytes)),
            Err(why) => {
                // The error is reported already.
                let _ = storage.end_rewrite(Err(()));
                Err(why)
            }
        }
    }

    /// Writes a message of the walk. A panic fails only this snapshot.
    fn put(&self, open: &mut Option<Open>, message: Message) -> Result<(), String> {
        let put = stdx::panics::contain(|| match message {
            Message::Begin(plan, header) => {
                *open = Some(self.open(&plan, header)?);
                Ok(())
            }
            Message::Batch(batch) => {
                points::reach(Point::SaveWrite);
                let file = open.as_mut().ok_or("it was not begun")?;
                file.write(&batch, &self.server)?;
                self.pace(file.out.written());
                let Batch { mut bytes, mut items } = batch;
                bytes.clear();
                items.clear();
                // The piece may have ended.
                let _ = self.give_back.send(Batch { bytes, items });
                Ok(())
            }
            _ => Ok(()),
        });
        put.unwrap_or_else(|_| Err("a fault in the server: see the log".to_owned()))
    }

    fn open(&self, plan: &SavePlan, header: Header) -> Result<Open, String> {
        let storage = self.server.durability.storage().ok_or("there are no files")?;
        let mut out = storage.create(plan)?;
        for code in header.libraries.iter().flat_map(|libraries| libraries.code.values()) {
            out.function(&code.text)?;
        }
        let foreign = if self.rewrite.is_some() { 0 } else { self.server.config.live.foreign_types.get() };
        Ok(Open { out, sizes: header.sizes, db: None, foreign })
    }

    /// Waits to keep to `save-rate-limit`, unless writers replace more than the walk keeps up with.
    fn pace(&self, written: u64) {
        let saves = &self.server.durability.saves;
        saves.written_bytes.store(written, Relaxed);
        loop {
            let rate = self.server.config.live.save_rate_bytes.size() as u64;
            let goes_on = rate == 0 || saves.pressed.load(Relaxed) || saves.cancelled.load(Relaxed);
            let due = Duration::from_secs_f64(written as f64 / rate.max(1) as f64);
            let early = due.saturating_sub(self.began.elapsed());
            if goes_on || early.is_zero() {
                return;
            }
            std::thread::sleep(early.min(Duration::from_millis(20)));
        }
    }

    fn finish(&self, open: Option<Open>) -> Result<(), String> {
        let open = open.ok_or("it was not begun")?;
        if self.server.durability.saves.cancelled.load(Acquire) {
            return Err("it was cancelled".to_owned());
        }
        let finished = stdx::panics::contain(|| {
            points::reach(Point::SaveEnd);
            open.out.finish()
        });
        let bytes = finished.unwrap_or_else(|_| Err("a fault in the server: see the log".to_owned()))?;
        self.server.durability.saves.written_bytes.store(bytes, Relaxed);
        Ok(())
    }
}

impl Drop for Writer {
    /// A thread that could not be started tells nobody; the caller waits.
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err("no thread could be started"))();
        }
    }
}

impl Open {
    fn write(&mut self, batch: &Batch, server: &Server) -> Result<(), String> {
        let (mut rest, breath) = (&batch.bytes[..], Breath::default());
        for item in &batch.items {
            let (key, behind) = rest.split_at(item.key as usize);
            let (text, behind) = behind.split_at(item.text as usize);
            rest = behind;
            if self.is_left_out(item, server)? {
                continue;
            }
            if self.db != Some(item.db) {
                self.db = Some(item.db);
                let sizes = self.sizes.get_mut(item.db as usize).map(std::mem::take);
                self.out.database(item.db as usize, sizes.filter(|sizes| sizes.0 > 0))?;
            }
            match &item.value {
                None => self.out.text(key, text, item.facts)?,
                Some(value) => self.out.value(key, value, item.facts)?,
            }
            breath.breathe();
        }
        Ok(())
    }

    /// Whether a value has a type of Evenkeel's own and is left out (`foreign-types`).
    fn is_left_out(&self, item: &Item, server: &Server) -> Result<bool, String> {
        if !matches!(item.value, Some(Value::Roaring(_) | Value::Roaring64(_))) {
            return Ok(false);
        }
        server.durability.saves.foreign.fetch_add(1, Relaxed);
        match self.foreign {
            0 => Ok(false),
            1 => Err("there is a compressed bitmap, and foreign-types is 'fail'".to_owned()),
            _ => Ok(true),
        }
    }
}

/// Ends a snapshot: notes its result and lets the next one begin (V3).
fn ended(server: &Server, purpose: Purpose, began: Instant, result: &Result<(), String>) {
    let saves = &server.durability.saves;
    let took = began.elapsed();
    if let Purpose::Copy(Copied { client, .. }) = purpose {
        match result {
            Ok(()) => log::info!("a snapshot for client {client} was taken in {:.2} s", took.as_secs_f64()),
            Err(why) => log::warn!("a snapshot for client {client} failed: {why}"),
        }
        return saves.busy.store(0, Release);
    }
    saves.last_s.store(took.as_secs(), Relaxed);
    saves.last_kept_bytes.store(saves.kept_bytes.load(Relaxed), Relaxed);
    let cancelled = saves.cancelled.load(Acquire);
    let failed_by_itself = !cancelled && !is_anew(server);
    if purpose == Purpose::Rewrite && (result.is_ok() || failed_by_itself) {
        server.durability.note_rewrite(result, took.as_secs());
    }
    match result {
        Ok(()) if purpose == Purpose::Rewrite => {
            log::info!("the append-only log was rewritten in {:.2} s", took.as_secs_f64());
        }
        Err(_) if purpose == Purpose::Rewrite && cancelled => {
            log::info!("the rewrite of the append-only log was cancelled");
        }
        Err(why) if purpose == Purpose::Rewrite && !failed_by_itself => {
            log::info!("the rewrite of the append-only log begins again: {why}");
        }
        Err(why) if purpose == Purpose::Rewrite => {
            log::error!("the append-only log was not rewritten: {why}")
        }
        Ok(()) => {
            saves.count.fetch_add(1, Relaxed);
            saves.failed.store(false, Relaxed);
            saves.last_save_s.store(stdx::clock::wall_ms() / 1000, Relaxed);
            saves.dirty_saved.store(saves.dirty_begun.load(Relaxed), Relaxed);
            let (keys, bytes) = (saves.keys.load(Relaxed), saves.written_bytes.load(Relaxed));
            log::info!("saved: {keys} keys, {bytes} bytes, in {:.2} s", took.as_secs_f64());
        }
        Err(_) if cancelled && purpose == Purpose::Save => log::info!("the snapshot was cancelled"),
        Err(why) => {
            saves.failed.store(true, Relaxed);
            log::error!("the snapshot failed: {why}");
        }
    }
    judge(server);
    saves.busy.store(0, Release);
}
