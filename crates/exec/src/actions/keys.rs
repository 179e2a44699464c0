//! KEYS, in slices: every key as it was at one moment, a segment at a time, while others are served in between.

use crate::call::Flow;
use crate::{Server, Session};
use command::Stream;
use keyspace::Snapshot;
use resp::{Args, Reply};
use std::collections::VecDeque;
use std::sync::Arc;

/// Keys matched under one lock and in one slice: one segment has at most 1,000.
struct Keys {
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
    encoded: Reply,
    sending: bool,
}

/// Bytes of a piece.
const PIECE: usize = 32 * 1024;

/// `KEYS pattern`: cost O(keys · (pattern + key)), in slices of a segment; memory O(reply).
pub(crate) fn start(server: &Arc<Server>, session: &Session, args: Args<'_>) -> Flow {
    Flow::Stream(Box::new(Keys {
        snapshot: None,
        server: server.clone(),
        db: session.db,
        pattern: args.at(1).into(),
        now_ms: stdx::clock::wall_ms(),
        position: Some(0),
        found: 0,
        pieces: VecDeque::new(),
        encoded: Reply::new(session.resp3),
        sending: false,
    }))
}

impl Keys {
    /// Opens the snapshot, or a new one if whole tables were replaced meanwhile; false if none is to be had now.
    fn ready(&mut self) -> bool {
        if self.snapshot.as_ref().is_some_and(Snapshot::is_current) {
            return true;
        }
        self.position = Some(0);
        self.found = 0;
        self.encoded.clear();
        self.pieces.clear();
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
            self.pieces.push_back(self.encoded.take());
        }
    }
}

impl Stream for Keys {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        if self.sending {
            let end = out.len().saturating_add(room);
            while let Some(piece) = self.pieces.pop_front() {
                out.encoded(&piece);
                if out.len() >= end {
                    break;
                }
            }
            return !self.pieces.is_empty();
        }
        if !self.ready() {
            return true;
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
}
