//! MGET, EXISTS and TOUCH of very many keys: read at a snapshot in the order of their words, in slices, while
//! others are served.
//!
//! - G1: nothing is sent before all keys were read: if whole tables are replaced meanwhile it begins again.
//! - G1: nothing is sent before all keys were read. If whole tables are replaced meanwhile, the reading
//!   begins again.
//! - G3: the collected values count as memory of work (`work-max-memory`), and too much of it is an error.
//!   Once the reply is sent, it counts like any streamed reply (`snapshots.rs` P3), so a client that does not
//!   read it is cut off.
//! - G2: short values are encoded as they are found. A long value is kept as a handle, and written as the
//!   socket drains.
//!
//! Cost: O(keys), some 0.15 µs each on the loop; memory O(reply), long values not counted.

use crate::works::Work;
use command::values::Open;
use command::{Command, Error, Held, Stream, write_string};
use keyspace::{Class, Look, Snapshot};
use observe::ClientInfo;
use resp::{Args, OwnedArgs, Reply};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stdx::budget::Holding;
use value::{Str, StrRef, ValueRef};

/// Keys read at a stretch.
const KEYS: usize = 64;
/// Bytes of a piece of the reply.
const PIECE: usize = 16 * 1024;

pub struct Gather {
    work: Arc<Work>,
    words: Arc<OwnedArgs>,
    db: usize,
    /// Keys that expire by then are absent.
    due_ms: u64,
    /// The time at which the keys count as used, if they do.
    used_ms: Option<u64>,
    snapshot: Option<Snapshot>,
    /// Words read so far.
    next: usize,
    /// EXISTS, TOUCH: the number of keys that were there. MGET: the values.
    counts: bool,
    found: i64,
    pieces: VecDeque<GatherPiece>,
    /// Bytes of all pieces, without those shared with the keyspace.
    piece_bytes: usize,
    /// Memory of the collected values (G3).
    holding: Holding,
    full: bool,
    encoded: Reply,
    /// All is read.
    sending: bool,
    open: Open,
}

/// Pieces whose long values are told at a time. Pieces behind them are told in their turn.
const TOLD: usize = 64;

enum GatherPiece {
    Encoded(Vec<u8>),
    Long(Str),
}

/// Its client, as its loop knows it.
pub struct Reader<'a> {
    pub info: &'a Arc<ClientInfo>,
    /// Set when it goes.
    pub gone: &'a Arc<AtomicBool>,
    pub db: usize,
    pub resp3: bool,
    pub look: Look,
}

impl Gather {
    /// The reader of a command of many words that only looks at its keys. `None`: it is another command, each
    /// miss is to be notified, or there is no place. Then it waits as other long work does.
    pub fn start(
        work: &Arc<Work>,
        reader: Reader<'_>,
        command: &Command,
        args: Args<'_>,
        incoming: Option<&Arc<OwnedArgs>>,
    ) -> Option<Box<Gather>> {
        let (counts, uses) = match command.name {
            "exists" => (true, false),
            "touch" => (true, true),
            "mget" => (false, true),
            _ => return None,
        };
        if work.keyspace.notifies(Class::KeyMiss) {
            return None;
        }
        let asker = crate::keys::walks(reader.info, command.name, reader.gone.clone());
        let snapshot = work.snapshots.try_open(asker)?;
        let now_ms = stdx::clock::wall_ms();
        Some(Box::new(Gather {
            work: work.clone(),
            words: incoming.cloned().unwrap_or_else(|| Arc::new(args.to_owned())),
            db: reader.db,
            due_ms: if reader.look.shows_expired { 0 } else { now_ms },
            used_ms: reader.look.used_ms.filter(|_| uses),
            snapshot: Some(snapshot),
            next: 1,
            counts,
            found: 0,
            pieces: VecDeque::new(),
            piece_bytes: 0,
            holding: Holding::default(),
            full: false,
            encoded: Reply::new(reader.resp3),
            sending: false,
            open: Open::default(),
        }))
    }

    /// Opens the snapshot, or a new one if whole tables were replaced meanwhile (G1). False if there is none
    /// now.
    fn ready(&mut self) -> bool {
        if self.snapshot.as_ref().is_some_and(Snapshot::is_current) {
            return true;
        }
        (self.next, self.found) = (1, 0);
        self.encoded.clear();
        self.pieces.clear();
        self.piece_bytes = 0;
        self.snapshot = Snapshot::open(&self.work.keyspace);
        self.snapshot.is_some()
    }

    /// Reads the next keys.
    fn read(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        let (keyspace, args) = (&self.work.keyspace, self.words.args());
        let keys: Vec<&[u8]> = args.from(self.next).iter().take(KEYS).collect();
        let (encoded, pieces, due) = (&mut self.encoded, &mut self.pieces, self.due_ms);
        let piece_bytes = &mut self.piece_bytes;
        let mut hits = 0;
        let read = keyspace.read_each(snapshot.lsn(), self.used_ms, self.db, &keys, &mut |found| {
            let value = found.filter(|(_, expire)| expire.is_none_or(|at| at > due)).map(|(value, _)| value);
            hits += i64::from(value.is_some());
            match value {
                _ if self.counts => {}
                Some(ValueRef::Str(StrRef::Flat(bytes))) => encoded.bulk(bytes),
                Some(ValueRef::Str(StrRef::Pair(pair))) => encoded.bulk_joined(pair.parts()),
                Some(ValueRef::Str(long)) => {
                    *piece_bytes += encoded.len() + size_of::<GatherPiece>();
                    pieces.push_back(GatherPiece::Encoded(encoded.take()));
                    pieces.push_back(GatherPiece::Long(long.to_str()));
                }
                _ => encoded.null(),
            }
            encoded.len() < PIECE
        });
        keyspace.count_lookups(hits as u64, (read as i64 - hits) as u64);
        self.found += hits;
        self.next += read;
        if self.encoded.len() >= PIECE {
            self.piece_bytes += self.encoded.len();
            self.pieces.push_back(GatherPiece::Encoded(self.encoded.take()));
        }
        let bytes = (self.piece_bytes + self.encoded.capacity()) as u64;
        self.full = self.holding.set(&self.work.budget, bytes).is_err();
    }

    fn send(&mut self, out: &mut Reply, room: usize) -> bool {
        let pieces = &mut self.pieces;
        self.open.fill(out, room, |out| match pieces.pop_front()? {
            GatherPiece::Encoded(bytes) => {
                out.encoded(&bytes);
                Some(None)
            }
            GatherPiece::Long(value) => Some(write_string(out, value.as_ref())),
        })
    }
}

impl Stream for Gather {
    fn reads_on(&self) -> bool {
        true
    }

    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        if self.sending {
            return self.send(out, room);
        }
        if !self.ready() {
            return true;
        }
        if self.full {
            out.error(&Error::work_memory().text());
            return false;
        }
        if self.next < self.words.len() {
            self.read();
            return true;
        }
        self.snapshot = None;
        if self.counts {
            out.int(self.found);
            return false;
        }
        self.piece_bytes += self.encoded.len();
        self.pieces.push_back(GatherPiece::Encoded(self.encoded.take()));
        out.array(self.words.len() - 1);
        drop(self.holding.take());
        self.sending = true;
        true
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        // While it collects, its bytes are counted elsewhere (G3).
        held(Held::own(self, if self.sending { self.piece_bytes } else { 1 }));
        for piece in self.pieces.iter().take(TOLD) {
            if let GatherPiece::Long(value) = piece {
                value.held().into_iter().for_each(&mut *held);
            }
        }
        self.open.holds(held);
    }
}

impl Drop for Gather {
    fn drop(&mut self) {
        crate::job::discard((self.words.clone(), std::mem::take(&mut self.pieces), self.holding.take()));
    }
}
