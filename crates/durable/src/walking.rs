//! The loop's part of a snapshot: a piece of work that walks over the keys ([`crate::saving`]).

use crate::aof::Rewrite;
use crate::saving::{Copied, Purpose};
use crate::{Durability, Libraries};
use keyspace::{Changes, Mark, Walk, WalkEntry, WalkLimits, WalkSink, WalkValue, Walked};
use parking_lot::Mutex;
use persist::Kept;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;
use stdx::points::{self, Point};
use value::Value;
use work::piece::{Desk, Piece, Step};

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

/// A key on its way to the writer.
pub(crate) struct Item {
    pub(crate) db: u32,
    pub(crate) key: u32,
    /// Length of a short text, in bytes; else `value` holds the value.
    pub(crate) text: u32,
    pub(crate) facts: Kept,
    pub(crate) value: Option<Value>,
}

/// Keys on their way to the writer: names and short texts one after the other, and their items.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) items: Vec<Item>,
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
pub(crate) struct Header {
    pub(crate) lsn: u64,
    pub(crate) libraries: Option<Arc<dyn Libraries>>,
    pub(crate) sizes: Vec<(u64, u64)>,
    pub(crate) has_field_times: bool,
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
        let facts = Kept { expire_ms: entry.expire_ms, idle_s, freq: None };
        batch.items.push(Item { db: entry.db as u32, key: entry.key.len() as u32, text, facts, value });
    }

    fn told(&mut self, changes: Changes) {
        self.told.push(changes);
    }
}

pub(crate) enum Message {
    Begin(Header),
    Batch(Batch),
    /// The piece, to be sent back (V1).
    Piece(usize, Box<Saving>),
    /// All keys have been sent.
    End,
    /// The walk was given up, for this reason.
    Gave(String),
}

/// The loop's part of a snapshot. See [`crate::saving`].
pub(crate) struct Saving {
    durability: Arc<Durability>,
    purpose: Purpose,
    /// The place of its moment in the stream; a rewrite's is known later.
    mark: Option<Mark>,
    walk: Option<Walk>,
    queue: Sender<Message>,
    /// Batches that were written, to be filled again.
    empty: Receiver<Batch>,
    taking: Taking,
}

impl Piece for Saving {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let saves = &self.durability.saves;
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
            self.durability.schedule_rewrite();
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
    /// Makes the piece. `empty` gives batches back that were written.
    pub(crate) fn new(
        durability: &Arc<Durability>,
        (purpose, mark): (Purpose, Option<Mark>),
        queue: Sender<Message>,
        empty: Receiver<Batch>,
    ) -> Saving {
        let durability = durability.clone();
        Saving { durability, purpose, mark, walk: None, queue, empty, taking: Taking::default() }
    }

    /// Makes it the piece of a rewrite that has begun on the disk.
    pub(crate) fn is_for(&mut self, rewrite: Rewrite) {
        self.mark = Some(rewrite.mark());
        self.taking.rewrite = Some(rewrite);
    }

    /// Begins the walk, and takes the libraries of the same moment.
    fn begin(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        let durability = self.durability.clone();
        let live = &durability.config.live;
        let used = durability.observe.measured.allocator().allocated;
        let bytes = match live.save_retained_bytes.size() as u64 {
            0 => (used / 10).max(RETAINED_LEAST),
            bytes => bytes,
        };
        self.taking.uses = if matches!(live.maxmemory_policy.get(), 0 | 4) { Uses::Idle } else { Uses::None };
        self.taking.batch = Batch::new();
        let (header, at) = (self.taking.header.clone(), durability.clone());
        let purpose = self.purpose;
        let place = self.mark;
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
            self.durability.saves.broken.store(true, Release);
        }
    }

    /// Sends the collected keys. The header goes before the first.
    fn send(&mut self) {
        if !std::mem::replace(&mut self.taking.has_begun, true) {
            let header = std::mem::take(&mut *self.taking.header.lock());
            self.post(Message::Begin(header));
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
            self.durability.ended(self.purpose, Instant::now(), &Err("no thread could be started".into()));
        }
        Step::Over(None)
    }
}

impl Header {
    /// Collects the header. All shards are locked.
    fn of(durability: &Durability, lsn: u64, purpose: Purpose) -> Header {
        let keyspace = &durability.keyspace;
        durability.saves.dirty_begun.store(durability.dirty(), Relaxed);
        let has_functions = !matches!(purpose, Purpose::Copy(Copied { functions: false, .. }));
        let size = |db| (keyspace.len(db) as u64, keyspace.expires(db) as u64);
        Header {
            lsn,
            libraries: has_functions.then(|| durability.host.libraries()),
            sizes: (0..keyspace.databases()).map(size).collect(),
            has_field_times: keyspace.has_field_times(),
        }
    }
}
