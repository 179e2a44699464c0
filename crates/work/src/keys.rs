//! KEYS and large SCANs, in slices, while others are served in between. KEYS shows every key as it was at one
//! moment, a segment at a time; SCAN gives its own, weaker guarantee.

use crate::piece::{Delivery, Desk, Piece, Step, Who};
use crate::snapshots::{self, Asker, Class, StopSign};
use crate::works::Work;
use command::options::ScanOptions;
use command::{Held, Stream};
use keyspace::{Changes, Keyspace, Snapshot, View};
use observe::ClientInfo;
use observe::waits::Spent;
use resp::{Args, OwnedArgs, Reply};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use stdx::glob::Match;

/// Bytes of a pattern that are looked at under one lock, and in one slice, some 25 µs.
const LOOKS: usize = 16 * 1024;

/// Keys on their way through a pattern. Keys for which a slice has no time are decided in the next ones,
/// without a lock.
#[derive(Default)]
struct Sieve {
    open: VecDeque<Box<[u8]>>,
    /// How far the first of them is.
    matching: Match,
    /// Steps that may be taken yet.
    looks: usize,
}

impl Sieve {
    /// Whether a key matches, if there is time to find out.
    fn takes(&mut self, pattern: Option<&[u8]>, key: &[u8]) -> bool {
        let Some(pattern) = pattern else { return true };
        match Match::default().go_on(pattern, key, false, &mut self.looks) {
            Some(verdict) => verdict,
            None => {
                self.open.push_back(key.into());
                false
            }
        }
    }

    /// Begins a slice: decides the keys left from the last ones, and tells which of them match. False if some
    /// are left still.
    fn begin(&mut self, pattern: Option<&[u8]>, f: &mut dyn FnMut(&[u8])) -> bool {
        self.looks = LOOKS;
        while let (Some(pattern), Some(key)) = (pattern, self.open.front()) {
            let Some(verdict) = self.matching.go_on(pattern, key, false, &mut self.looks) else {
                return false;
            };
            if verdict {
                f(key);
            }
            self.open.pop_front();
            self.matching = Match::default();
        }
        true
    }
}

/// The pattern that keys are matched with. `None`: it matches everything.
fn needed(pattern: &[u8]) -> Option<&[u8]> {
    (*pattern != *b"*").then_some(pattern)
}

/// KEYS: one segment, of at most 1,000 keys, is gone through under one lock and in one slice.
pub struct Keys {
    info: Arc<ClientInfo>,
    /// Set when its client goes.
    gone: Arc<AtomicBool>,
    loop_id: usize,
    spent: Spent,
    snapshot: Option<Snapshot>,
    work: Arc<Work>,
    db: usize,
    pattern: Box<[u8]>,
    sieve: Sieve,
    /// Keys that expire by then are absent.
    due_ms: u64,
    /// The next segment. `None`: all were seen.
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

/// Bytes of a pattern times keys that are matched at a stretch.
const MATCHED_AT_ONCE: usize = 4096;

/// A SCAN with a large COUNT, or a pattern that may take long.
pub struct Scan {
    keyspace: Arc<Keyspace>,
    tell: Tell,
    db: usize,
    /// Expired keys are there.
    shows_expired: bool,
    args: OwnedArgs,
    sieve: Sieve,
    cursor: u64,
    left: usize,
    /// All keys were visited.
    walked: bool,
    found: usize,
    pieces: VecDeque<Vec<u8>>,
    encoded: Reply,
    sending: bool,
}

/// Tells the changes that a walk made (exec X3).
pub type Tell = Box<dyn Fn(Changes) + Send>;

/// The cursor and COUNT of a long SCAN: COUNT is more than [`SCAN_AT_ONCE`], or the pattern may have to be
/// gone through again and again. `None`: it is a short one.
pub fn long_scan(args: Args<'_>) -> Option<(u64, usize)> {
    let cursor = command::options::cursor(args.at(1)).ok()?;
    let options = ScanOptions::parse(args.from(2), &["type"]).ok()?;
    let slow = options.pattern.is_some_and(|pattern| is_slow(pattern, options.count));
    (options.count > SCAN_AT_ONCE || slow).then_some((cursor, options.count))
}

/// Whether matching so many keys may take longer than a slice. Only the part behind a star is looked at
/// again.
fn is_slow(pattern: &[u8], keys: usize) -> bool {
    let before_star = pattern.iter().position(|byte| *byte == b'*').unwrap_or(pattern.len());
    let behind = pattern.len().saturating_sub(before_star + 1);
    behind * keys + pattern.len() > MATCHED_AT_ONCE
}

impl Scan {
    /// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]` from a cursor on, so many keys
    /// ([`long_scan`]). Cost: O(count · (pattern + key)) at best, in slices; memory O(reply).
    pub fn new(
        keyspace: Arc<Keyspace>,
        tell: Tell,
        (db, shows_expired): (usize, bool),
        resp3: bool,
        (args, cursor, left): (OwnedArgs, u64, usize),
    ) -> Box<Scan> {
        Box::new(Scan {
            keyspace,
            tell,
            db,
            shows_expired,
            args,
            sieve: Sieve::default(),
            cursor,
            left,
            walked: false,
            found: 0,
            pieces: VecDeque::new(),
            encoded: Reply::new(resp3),
            sending: false,
        })
    }

    /// Visits some more keys. True when enough were visited, or all.
    fn collect(&mut self) -> bool {
        let Ok(options) = ScanOptions::parse(self.args.args().from(2), &["type"]) else { return true };
        let (encoded, found) = (&mut self.encoded, &mut self.found);
        let mut take = |key: &[u8]| {
            encoded.bulk(key);
            *found += 1;
        };
        if !self.sieve.begin(options.pattern, &mut take) {
            return false;
        }
        if self.left == 0 || self.walked {
            return true;
        }
        let count = self.left.min(SCAN_AT_ONCE);
        let sieve = &mut self.sieve;
        let mut view = View::open(&self.keyspace, self.db, stdx::clock::wall_ms());
        if self.shows_expired {
            view.set_expired_live();
        }
        self.cursor = view.scan(self.cursor, count, &mut |key, kind| {
            if options.wants(kind) && sieve.takes(options.pattern, key) {
                take(key);
            }
        });
        // A walk folds long commits into the table; a client may have waited for the keys it writes.
        (self.tell)(view.finish());
        self.left -= count;
        self.walked = self.cursor == 0;
        if self.encoded.len() >= PIECE {
            self.pieces.push_back(self.encoded.take());
        }
        (self.walked || self.left == 0) && self.sieve.open.is_empty()
    }
}

impl Stream for Scan {
    fn reads_on(&self) -> bool {
        true
    }

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

/// Writes pieces. False when none is left.
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

/// Describes a walk over many keys that asks for a place.
pub(super) fn walks(info: &Arc<ClientInfo>, command: &'static str, gone: Arc<AtomicBool>) -> Asker {
    let (sign, words) = (StopSign::default(), Vec::new());
    Asker {
        client: info.id,
        info: Some(info.clone()),
        command,
        class: Class::Walk,
        gave_way: 0,
        gone: Some(gone),
        for_client: true,
        sign,
        words,
    }
}

impl Keys {
    /// `KEYS pattern`: cost O(keys · (pattern + key)), in slices of a segment; memory O(reply). It waits if
    /// there are too many snapshots ([`Keys::open`]). `shows_expired`: expired keys are there.
    pub fn new(
        work: &Arc<Work>,
        (info, gone, loop_id): (Arc<ClientInfo>, Arc<AtomicBool>, usize),
        (db, shows_expired): (usize, bool),
        pattern: &[u8],
        resp3: bool,
    ) -> Box<Keys> {
        Box::new(Keys {
            info,
            gone,
            loop_id,
            spent: Spent::default(),
            snapshot: None,
            work: work.clone(),
            db,
            pattern: pattern.into(),
            sieve: Sieve::default(),
            due_ms: if shows_expired { 0 } else { stdx::clock::wall_ms() },
            position: Some(0),
            found: 0,
            pieces: VecDeque::new(),
            piece_bytes: 0,
            encoded: Reply::new(resp3),
            sending: false,
        })
    }

    /// Opens its snapshot. False: it has to wait for a place.
    pub fn open(&mut self) -> bool {
        let asker = walks(&self.info, "keys", self.gone.clone());
        self.snapshot = self.work.snapshots.open(self.loop_id, asker, &mut self.spent.waits);
        if self.snapshot.is_some() {
            self.spent.got_snapshot();
        }
        self.snapshot.is_some()
    }

    /// Makes sure of the snapshot. Opens a new one if whole tables were replaced meanwhile. False if there is
    /// none now.
    fn ready(&mut self) -> Result<bool, String> {
        let Some(snapshot) = &self.snapshot else { return Ok(self.reopen()) };
        match snapshot.ended() {
            None => Ok(true),
            Some(_) => snapshots::refusal(snapshot).map_or_else(|| Ok(self.reopen()), Err),
        }
    }

    fn reopen(&mut self) -> bool {
        self.position = Some(0);
        self.sieve = Sieve::default();
        self.found = 0;
        self.encoded.clear();
        self.pieces.clear();
        self.piece_bytes = 0;
        self.snapshot = None;
        self.snapshot = Snapshot::open(&self.work.keyspace);
        self.snapshot.is_some()
    }

    /// Does a slice: goes on with keys that are not decided, else through the next segment. False when there
    /// is nothing to do.
    fn collect(&mut self) -> bool {
        let Some(snapshot) = &self.snapshot else { return true };
        let (pattern, now, encoded, found) =
            (needed(&self.pattern), self.due_ms, &mut self.encoded, &mut self.found);
        let mut take = |key: &[u8]| {
            encoded.bulk(key);
            *found += 1;
        };
        if self.sieve.begin(pattern, &mut take) {
            let Some(position) = self.position else { return false };
            let sieve = &mut self.sieve;
            self.position =
                self.work.keyspace.visit_at(snapshot.lsn(), self.db, position, &mut |key, expire, _| {
                    if expire.is_none_or(|at| at > now) && sieve.takes(pattern, key) {
                        take(key);
                    }
                });
        }
        if self.encoded.len() >= PIECE {
            self.piece_bytes += self.encoded.len();
            self.pieces.push_back(self.encoded.take());
        }
        true
    }
}

impl Piece for Keys {
    /// Takes the snapshot it waits for. Then it streams.
    fn advance(mut self: Box<Self>, _: &mut Desk<'_>) -> Step {
        // No client waits for it any more.
        if self.is_useless() {
            return Step::Over(None);
        }
        if !self.open() {
            let ticket = self.spent.waits.map_or(0, |queued| queued.ticket);
            return Step::Queued(ticket, self);
        }
        let (client, spent) = (self.info.id, Some(Box::new(self.spent)));
        Step::Over(Some(Delivery { client, bytes: Vec::new(), stream: Some(self), spent, selected: None }))
    }

    fn who(&self) -> Who {
        Who { client: self.info.id, command: "keys", loop_id: self.loop_id }
    }

    fn is_useless(&self) -> bool {
        self.gone.load(Relaxed)
    }

    fn spent(&mut self) -> Option<&mut Spent> {
        Some(&mut self.spent)
    }
}

impl Stream for Keys {
    fn reads_on(&self) -> bool {
        true
    }

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
        if !self.collect() {
            self.snapshot = None;
            self.pieces.push_back(self.encoded.take());
            out.array(self.found);
            self.sending = true;
        }
        true
    }
    fn holds(&self, held: &mut dyn FnMut(Held)) {
        held(Held::own(self, self.piece_bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_slice_has_no_time_for_is_decided_in_the_next() {
        let pattern = format!("*{}?", "a".repeat(100));
        let keys: Vec<String> = (0..50).map(|i| "a".repeat(90 + 10 * (i % 3)) + &"b".repeat(900)).collect();
        let (mut sieve, mut found, mut slices) = (Sieve::default(), 0, 1);
        assert!(sieve.begin(Some(pattern.as_bytes()), &mut |_| panic!("there is nothing yet")));
        for key in &keys {
            found += usize::from(sieve.takes(Some(pattern.as_bytes()), key.as_bytes()));
        }
        assert!(!sieve.open.is_empty() && sieve.looks == 0);
        while !sieve.begin(Some(pattern.as_bytes()), &mut |_| found += 1) {
            assert_eq!(sieve.looks, 0);
            slices += 1;
        }
        assert!(slices > 5, "{slices}");
        let matching = |key: &&String| stdx::glob::matches(pattern.as_bytes(), key.as_bytes(), false);
        assert_eq!(found, keys.iter().filter(matching).count());
        assert!(needed(b"*").is_none() && sieve.takes(needed(b"*"), b"anything"));
    }

    #[test]
    fn patterns_that_are_gone_through_once_are_not_slow() {
        assert!(!is_slow(&[b'a'; 1000], 1000));
        assert!(!is_slow(b"user:*", 1000) && !is_slow(b"*:name", 500) && !is_slow(b"*", 1000));
        assert!(is_slow(b"*:name", 1000) && is_slow(&b"*a".repeat(300), 10) && is_slow(&[b'['; 5000], 1));
    }
}
