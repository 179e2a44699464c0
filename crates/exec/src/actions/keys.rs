//! KEYS and large SCANs, in slices, while others are served in between. KEYS shows every key as it was at one moment, a
//! segment at a time; SCAN gives its own, weaker guarantee.

use crate::call::Flow;
use crate::job::Delivery;
use crate::mail::Mail;
use crate::waits::Spent;
use crate::works::{Owner, Work};
use crate::{Local, Server, Session, snapshots};
use command::options::ScanOptions;
use command::{Held, Stream};
use keyspace::{Snapshot, View};
use resp::{Args, OwnedArgs, Reply};
use std::collections::VecDeque;
use std::sync::Arc;

/// Keys matched under one lock and in one slice: one segment has at most 1,000.
pub struct Keys {
    client: u64,
    spent: Spent,
    snapshot: Option<Snapshot>,
    server: Arc<Server>,
    db: usize,
    pattern: Box<[u8]>,
    now_ms: u64,
    /// The next segment; None: all seen.
    position: Option<u64>,
    found: usize,
    /// The encoded keys in pieces, so that nothing large is ever copied or freed at once.
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of all pieces there were.
    piece_bytes: usize,
    encoded: Reply,
    sending: bool,
}

/// Bytes of a piece.
const PIECE: usize = 32 * 1024;

/// Keys a SCAN may visit at a stretch.
pub(crate) const SCAN_AT_ONCE: usize = 1000;

/// A SCAN with a large COUNT.
struct Scan {
    server: Arc<Server>,
    db: usize,
    args: OwnedArgs,
    cursor: u64,
    left: usize,
    found: usize,
    pieces: VecDeque<Vec<u8>>,
    encoded: Reply,
    sending: bool,
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]` with a COUNT of more than [`SCAN_AT_ONCE`]; None if that is not
/// what it says. Cost: O(count) in slices; memory O(reply).
pub(crate) fn start_scan(server: &Arc<Server>, session: &Session, args: Args<'_>) -> Option<Flow> {
    let cursor = command::options::cursor(args.at(1)).ok()?;
    let options = ScanOptions::parse(args.from(2), &["type"]).ok()?;
    if options.count <= SCAN_AT_ONCE {
        return None;
    }
    Some(Flow::Stream(Box::new(Scan {
        server: server.clone(),
        db: session.db,
        args: args.to_owned(),
        cursor,
        left: options.count,
        found: 0,
        pieces: VecDeque::new(),
        encoded: Reply::new(session.resp3),
        sending: false,
    })))
}

impl Scan {
    /// Visits some more keys; true when enough were visited, or all.
    fn collect(&mut self) -> bool {
        let Ok(options) = ScanOptions::parse(self.args.args().from(2), &["type"]) else { return true };
        let (encoded, found) = (&mut self.encoded, &mut self.found);
        let count = self.left.min(SCAN_AT_ONCE);
        let mut view = View::open(&self.server.keyspace, self.db, stdx::clock::wall_ms());
        self.cursor = view.scan(self.cursor, count, &mut |key, kind| {
            if options.wants(kind) && options.matches(key) {
                encoded.bulk(key);
                *found += 1;
            }
        });
        // A walk writes to the table what long commits left to be written: somebody may have waited for that.
        let ready = self.server.tell(view.finish());
        if !ready.is_empty() {
            self.server.send(0, Mail::Ready(ready));
        }
        self.left -= count;
        if self.encoded.len() >= PIECE {
            self.pieces.push_back(self.encoded.take());
        }
        self.cursor == 0 || self.left == 0
    }
}

impl Stream for Scan {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        if self.sending {
            return send(&mut self.pieces, out, room);
        }
        if self.collect() {
            self.pieces.push_back(self.encoded.take());
            out.array(2);
            out.bulk(self.cursor.to_string().as_bytes());
            out.array(self.found);
            self.sending = true;
        }
        true
    }
}

/// Writes pieces; false when none is left.
fn send(pieces: &mut VecDeque<Vec<u8>>, out: &mut Reply, room: usize) -> bool {
    let end = out.len().saturating_add(room);
    while let Some(piece) = pieces.pop_front() {
        out.encoded(&piece);
        if out.len() >= end {
            break;
        }
    }
    !pieces.is_empty()
}

/// `KEYS pattern`: cost O(keys · (pattern + key)), in slices of a segment; memory O(reply). It waits if there are too many
/// snapshots.
pub(crate) fn start(server: &Arc<Server>, local: &mut Local, session: &Session, args: Args<'_>) -> Flow {
    let mut keys = Box::new(Keys {
        client: session.id,
        spent: Spent::default(),
        snapshot: None,
        server: server.clone(),
        db: session.db,
        pattern: args.at(1).into(),
        now_ms: stdx::clock::wall_ms(),
        position: Some(0),
        found: 0,
        pieces: VecDeque::new(),
        piece_bytes: 0,
        encoded: Reply::new(session.resp3),
        sending: false,
    });
    if keys.open(local.id) {
        return Flow::Stream(keys);
    }
    local.works.wait(Owner::Keys(keys));
    local.away = true;
    Flow::Parked(None)
}

/// Looks for a snapshot for a KEYS that waits for one.
pub(crate) fn submit(_: &Server, local: &mut Local, mut keys: Box<Keys>) {
    if !keys.open(local.id) {
        return local.works.wait(Owner::Keys(keys));
    }
    let (client, spent) = (keys.client, Some(keys.spent));
    local.works.push(Work::Deliver(Delivery {
        client,
        bytes: Vec::new(),
        stream: Some(keys),
        spent,
        selected: None,
    }));
}

impl Keys {
    fn open(&mut self, loop_id: usize) -> bool {
        let server = self.server.clone();
        let who = (self.client, "keys");
        self.snapshot = server.snapshots.open(&server, loop_id, who, &mut self.spent.waits);
        if self.snapshot.is_some() {
            self.spent.got_snapshot();
        }
        self.snapshot.is_some()
    }

    /// Makes sure of the snapshot. Opens a new one if whole tables were replaced meanwhile; false if none is to be had now.
    fn ready(&mut self) -> Result<bool, String> {
        let Some(snapshot) = &self.snapshot else { return Ok(self.reopen()) };
        match snapshot.ended() {
            None => Ok(true),
            Some(_) => snapshots::refusal(snapshot).map_or_else(|| Ok(self.reopen()), Err),
        }
    }

    fn reopen(&mut self) -> bool {
        self.position = Some(0);
        self.found = 0;
        self.encoded.clear();
        self.pieces.clear();
        self.piece_bytes = 0;
        self.snapshot = None;
        self.snapshot = Snapshot::open(&self.server.keyspace);
        self.snapshot.is_some()
    }

    fn collect(&mut self, position: u64) {
        let Some(snapshot) = &self.snapshot else { return };
        let all = *self.pattern == *b"*";
        let (pattern, now, encoded, found) = (&self.pattern, self.now_ms, &mut self.encoded, &mut self.found);
        self.position =
            self.server.keyspace.visit_at(snapshot.lsn(), self.db, position, &mut |key, expire, _| {
                let live = expire.is_none_or(|at| at > now);
                if live && (all || stdx::glob::matches(pattern, key, false)) {
                    encoded.bulk(key);
                    *found += 1;
                }
            });
        if self.encoded.len() >= PIECE {
            self.piece_bytes += self.encoded.len();
            self.pieces.push_back(self.encoded.take());
        }
    }
}

impl Stream for Keys {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        if self.sending {
            return send(&mut self.pieces, out, room);
        }
        match self.ready() {
            Ok(true) => {}
            Ok(false) => return true,
            Err(refusal) => {
                self.snapshot = None;
                out.error(&refusal);
                return false;
            }
        }
        match self.position {
            Some(position) => self.collect(position),
            None => {
                self.snapshot = None;
                self.pieces.push_back(self.encoded.take());
                out.array(self.found);
                self.sending = true;
            }
        }
        true
    }
    fn holds(&self, held: &mut dyn FnMut(Held)) {
        // Before, its snapshot is what is limited.
        if self.sending {
            held(Held::own(self, self.piece_bytes));
        }
    }
}
