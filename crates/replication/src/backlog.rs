//! The stream of the replicas: its bytes by their offsets, and what they mean in LSNs.
//!
//! ```text
//! order thread ─ blocks, marks, turns ─► Backlog ◄─ pieces ─ feeds, on their loops
//!   pieces: [start 0 ....][start 70 ...][start 95 .....] end 140        holds keep pieces for feeds and spools
//! ```
//!
//! - B1: an offset counts bytes since its id began. The byte behind `end` is the next.
//! - B2: a piece is immutable. One below [`SMALL`] is joined with the next; none is longer than a sixteenth of
//!   the backlog, so that one large value does not make a loop of drops.
//! - B3: pieces are kept for `size_bytes`, and from the lowest hold on.
//! - B6: what only replicas hold that still load goes to a file without a name, so that a sync ends at any
//!   write rate and memory stays bounded ([`crate::spill`]).
//! - B4: after a break nothing that was given before can be continued: a new id, and feeds of before end
//!   (`life`). They end as well where the same history gets another id: a replica that is sent bytes of the new
//!   one would count them under the old one. What is kept stays, so that it returns for the rest.
//! - B5: a turn ends before the PING and the GETACK of its look, so that what waits for an LSN does not wait
//!   for an answer to these.

use crate::ids::Ids;
use keyspace::{Lsn, Mark};
use parking_lot::{Condvar, Mutex};
use persist::stream::{HistoryPlace, Item, Outlet, To};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes below which a piece is joined with the next.
const SMALL: usize = 16 * 1024;
/// Bytes that are added under the lock in one go: some 30 µs.
const PART: usize = 256 * 1024;
/// Turns that are kept. Older ones count as the oldest.
const TURNS: usize = 1 << 16;
/// Bytes beyond its size that a copy of the backlog may have.
const KEPT_BEYOND: usize = 32 << 20;
/// How long a snapshot waits for its mark in the stream.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of signs of life that are cut off at most.
const SIGNS_MAX: u64 = 1 << 20;
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const GETACK: &[u8] = b"*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n";

/// Bytes of the stream, and the offset of the first.
struct Piece {
    start: u64,
    len: usize,
    at: Place,
}

/// Where a piece is.
#[derive(Clone)]
enum Place {
    Memory(Arc<[u8]>),
    /// In the spill's file, from this byte on (B6).
    Disk(Arc<File>, u64),
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    fn in_memory(&self) -> usize {
        if matches!(self.at, Place::Memory(_)) { self.len } else { 0 }
    }
}

/// A look of the order thread: all up to an LSN ends at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub lsn: Lsn,
    pub end: u64,
    pub wall_ms: u64,
}

struct State {
    ids: Ids,
    is_active: bool,
    /// The bytes are those of this server's own primary.
    is_carried: bool,
    /// Neither PING nor GETACK is added: the end is to stay where it is.
    rests: bool,
    /// Another history's data come: nothing that was counted leads to what follows.
    is_gone: bool,
    /// The database behind what was carried.
    db: u32,
    pieces: VecDeque<Piece>,
    /// Bytes of all pieces, and of those in memory.
    held_bytes: u64,
    memory_bytes: u64,
    end: u64,
    turns: VecDeque<Turn>,
    /// The places that the log has named: the LSN and the offset of each.
    named: VecDeque<(Lsn, u64)>,
    /// Marks that passed: the LSN of each, its offset, and the database there.
    marks: BTreeMap<u64, (Lsn, u64, u32)>,
    /// Offsets from which on pieces are kept, by their owners (B3).
    holds: BTreeMap<u64, u64>,
    next_hold: u64,
    life: u64,
}

/// See the module.
pub struct Backlog {
    state: Mutex<State>,
    marked: Condvar,
    size_bytes: AtomicU64,
    wants_ping: AtomicBool,
    wants_ack: AtomicBool,
    /// Called when there is more to read. It must not wait.
    more: Box<dyn Fn() + Send + Sync>,
}

/// A reader's place. It keeps pieces until it is dropped.
pub struct Hold {
    backlog: Arc<Backlog>,
    number: u64,
    life: u64,
}

/// A mark in the stream: what follows it, and where it is.
pub struct Marked {
    pub hold: Hold,
    pub offset: u64,
    pub id: String,
    pub db: u32,
}

/// The next bytes of the stream.
#[derive(Debug)]
pub enum Next {
    Bytes(Arc<[u8]>, usize),
    /// They are in a file: from this byte on, so many.
    Stored(Arc<File>, u64, usize),
    /// All was read.
    End,
    /// They are gone, or the stream broke (B4).
    Gone,
}

/// All that the backlog has.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The offset before the first byte.
    pub from: u64,
    pub bytes: Vec<u8>,
    /// Ends of whole groups, and the milliseconds since 1970 by which they were told.
    pub turns: Vec<(u64, u64)>,
    /// The database that is selected at the end.
    pub db: u32,
}

/// Figures for INFO.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub ids: Ids,
    pub is_active: bool,
    pub end: u64,
    pub first: u64,
    pub bytes: u64,
    /// Bytes in memory.
    pub memory_bytes: u64,
}

impl Backlog {
    pub fn new(size_bytes: u64, more: Box<dyn Fn() + Send + Sync>) -> Arc<Backlog> {
        Arc::new(Backlog {
            state: Mutex::new(State {
                ids: Ids::fresh(),
                is_active: false,
                is_carried: false,
                rests: false,
                is_gone: false,
                db: 0,
                pieces: VecDeque::new(),
                held_bytes: 0,
                memory_bytes: 0,
                end: 0,
                turns: VecDeque::new(),
                named: VecDeque::new(),
                marks: BTreeMap::new(),
                holds: BTreeMap::new(),
                next_hold: 0,
                life: 0,
            }),
            marked: Condvar::new(),
            size_bytes: AtomicU64::new(size_bytes),
            wants_ping: AtomicBool::new(false),
            wants_ack: AtomicBool::new(false),
            more,
        })
    }

    /// The outlet that hears of the stream and fills the backlog.
    pub fn outlet(self: &Arc<Self>) -> Box<dyn Outlet> {
        Box::new(Tap { backlog: self.clone(), grown: false })
    }

    pub fn set_size(&self, bytes: u64) {
        self.size_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Begins to count, behind an LSN: a new id, and no second one, as what was not counted would be skipped.
    /// O(1)
    pub fn begin(&self, lsn: Lsn) {
        let state = &mut *self.state.lock();
        state.ids = Ids::fresh();
        state.is_active = true;
        state.end += 1;
        state.forget();
        state.note_turn(lsn);
    }

    /// Where the stream ends: id, offset, database. None: it is not counted.
    pub fn position(&self) -> Option<(String, u64, usize)> {
        let state = self.state.lock();
        state.is_active.then(|| (state.ids.id.clone(), state.end, state.db as usize))
    }

    /// Goes on behind a place, with a history that was counted before the start. One who leads gives it a new
    /// id. `lsn`: that of the data. O(1)
    pub fn resume(&self, place: &HistoryPlace, follows: bool, lsn: Lsn) {
        let HistoryPlace { id, offset, db } = place;
        let state = &mut *self.state.lock();
        state.ids = match follows {
            true => Ids { id: id.clone(), second: None },
            false => Ids { second: Some((id.clone(), offset + 1)), ..Ids::fresh() },
        };
        (state.end, state.db, state.is_active) = (*offset, *db, true);
        state.forget();
        state.note_turn(lsn);
    }

    /// Adds no PING and no GETACK from now on, or does so again.
    pub fn rest(&self, rests: bool) {
        self.state.lock().rests = rests;
    }

    /// Drops all that was kept: the data are about to be another history's. O(pieces)
    pub fn data_go(&self) {
        let mut state = self.state.lock();
        state.is_gone = true;
        state.forget();
    }

    /// The stream goes on behind an offset of a history. What is kept stays if it leads there. Another id for
    /// the same history makes the one before the second, and returns true: feeds end (B4). O(pieces)
    pub fn goes_on(&self, id: &str, offset: u64, db: u32) -> bool {
        let state = &mut *self.state.lock();
        // Taken in any case: it is over with the first stream behind the new data.
        let is_gone = std::mem::take(&mut state.is_gone);
        let leads_there = state.is_active && state.end == offset && !is_gone;
        state.db = db;
        state.is_active = true;
        if state.ids.id == id && leads_there {
            return false;
        }
        let second = std::mem::replace(&mut state.ids, Ids { id: id.to_owned(), second: None });
        if leads_there {
            state.ids.second = Some((second.id, offset + 1));
            state.life += 1;
            return true;
        }
        if !state.pieces.is_empty() {
            let end = state.end;
            log::warn!(
                "the backlog ends at offset {end}, and the stream goes on behind {offset}: it was given up"
            );
        }
        state.end = offset;
        state.forget();
        false
    }

    /// Whether the stream ends with signs of life. They change nothing, so another server may well lack them.
    /// O(1)
    pub fn ends_with_signs(&self) -> bool {
        let state = self.state.lock();
        let ends = |sign: &[u8]| {
            let from = state.end.checked_sub(sign.len() as u64).filter(|from| *from >= state.first());
            from.and_then(|from| state.read(from)).is_some_and(|bytes| bytes == sign)
        };
        ends(PING) || ends(GETACK)
    }

    /// Cuts the end off the stream, if nothing but signs of life is behind an offset. Feeds end then (B4).
    /// O(bytes cut + turns cut)
    pub fn cut_signs(&self, to: u64) -> bool {
        let state = &mut *self.state.lock();
        let is_there = state.is_active && !state.is_gone && (state.first()..state.end).contains(&to);
        if !is_there || state.end - to > SIGNS_MAX || !state.read(to).is_some_and(|bytes| are_signs(&bytes)) {
            return false;
        }
        state.cut(to);
        true
    }

    /// Ends to count, and drops all pieces. O(pieces)
    pub fn end(&self) {
        let state = &mut *self.state.lock();
        state.is_active = false;
        state.forget();
    }

    /// Puts a PING into the stream, at the next look.
    pub fn ping(&self) {
        self.wants_ping.store(true, Ordering::Relaxed);
    }

    /// Asks the replicas for their offsets, at the next look.
    pub fn ask_acks(&self) {
        self.wants_ack.store(true, Ordering::Relaxed);
    }

    /// A copy of what is kept: its size, and [`KEPT_BEYOND`] more at most. O(bytes). Errors: a part is on disk, and
    /// cannot be read.
    pub fn kept(&self) -> std::io::Result<Kept> {
        let (mut kept, pieces) = {
            let state = self.state.lock();
            let turns = state.turns.iter().map(|turn| (turn.end, turn.wall_ms)).collect();
            let kept = Kept { from: state.first(), bytes: Vec::new(), turns, db: state.db };
            let pieces: Vec<_> = state.pieces.iter().map(|piece| (piece.len, piece.at.clone())).collect();
            (kept, pieces)
        };
        let limit = self.size_bytes.load(Ordering::Relaxed) as usize + KEPT_BEYOND;
        let mut over = pieces.iter().map(|(len, _)| *len).sum::<usize>().saturating_sub(limit);
        for (len, at) in pieces {
            if over > 0 {
                over = over.saturating_sub(len);
                kept.from += len as u64;
                continue;
            }
            match at {
                Place::Memory(bytes) => kept.bytes.extend_from_slice(&bytes),
                Place::Disk(file, offset) => {
                    let from = kept.bytes.len();
                    kept.bytes.resize(from + len, 0);
                    file.read_exact_at(&mut kept.bytes[from..], offset)?;
                }
            }
        }
        Ok(kept)
    }

    /// Whether the question of [`Backlog::ask_acks`] is still to be put into the stream.
    pub fn asks(&self) -> bool {
        self.wants_ack.load(Ordering::Relaxed)
    }

    /// O(1)
    pub fn figures(&self) -> Figures {
        let state = self.state.lock();
        Figures {
            ids: state.ids.clone(),
            is_active: state.is_active,
            end: state.end,
            first: state.first() + 1,
            bytes: state.end - state.first(),
            memory_bytes: state.memory_bytes,
        }
    }

    /// The end of the stream so far.
    pub fn end_offset(&self) -> u64 {
        self.state.lock().end
    }

    /// Decides a PSYNC: the wanted offset is that of the first byte that the replica lacks, counted from 1.
    /// `Some`: it goes on from the hold's place. O(log holds)
    pub fn go_on(self: &Arc<Self>, id: &[u8], wanted: i64) -> Option<(Hold, u64, String)> {
        let mut state = self.state.lock();
        let at = u64::try_from(wanted).ok()?.checked_sub(1)?;
        let known = state.is_active && state.ids.has(id, at);
        if !known || at < state.first() || at > state.end {
            return None;
        }
        let hold = state.hold(at);
        let id = state.ids.id.clone();
        let life = state.life;
        drop(state);
        Some((Hold { backlog: self.clone(), number: hold, life }, at, id))
    }

    /// Keeps all pieces from a mark on, of which an LSN is known. Waits for the mark. Gives its offset, and the
    /// id.
    ///
    /// Errors: it does not come, or the stream broke.
    pub fn at_mark(self: &Arc<Self>, mark: Mark, lsn: Lsn) -> Result<Marked, String> {
        let until = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        loop {
            if let Some((at, offset, db)) = state.marks.get(&mark.0).copied()
                && at == lsn
            {
                state.marks.remove(&mark.0);
                // Taking a hold before the mark's own is released keeps the pieces.
                let number = state.hold(offset);
                state.holds.remove(&mark.0);
                let (life, id) = (state.life, state.ids.id.clone());
                drop(state);
                return Ok(Marked { hold: Hold { backlog: self.clone(), number, life }, offset, id, db });
            }
            if self.marked.wait_until(&mut state, until).timed_out() {
                state.holds.remove(&mark.0);
                return Err("its place in the stream did not come".to_owned());
            }
        }
    }

    /// Takes the oldest pieces out of memory, to be stored, as long as more than the backlog's size and `room`
    /// bytes are there. O(pieces taken)
    pub(crate) fn to_store(&self, room: u64) -> Vec<(u64, Arc<[u8]>)> {
        let state = self.state.lock();
        let limit = self.size_bytes.load(Ordering::Relaxed) + room;
        let mut over = state.memory_bytes.saturating_sub(limit);
        let mut taken = Vec::new();
        for piece in &state.pieces {
            match &piece.at {
                _ if over == 0 => break,
                Place::Disk(..) => {}
                Place::Memory(bytes) => {
                    over = over.saturating_sub(piece.len as u64);
                    taken.push((piece.start, bytes.clone()));
                }
            }
        }
        taken
    }

    /// Says where a piece was stored. One that has gone, or grew meanwhile, stays as it is. O(log pieces)
    pub(crate) fn stored(&self, start: u64, len: usize, file: &Arc<File>, place: u64) {
        let mut state = self.state.lock();
        let at = state.pieces.partition_point(|piece| piece.start < start);
        if let Some(piece) = state.pieces.get_mut(at)
            && piece.start == start
            && piece.len == len
            && matches!(piece.at, Place::Memory(_))
        {
            piece.at = Place::Disk(file.clone(), place);
            state.memory_bytes -= len as u64;
        }
    }

    /// Bytes of pieces that are in a file. O(1)
    pub(crate) fn stored_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.held_bytes - state.memory_bytes
    }

    /// Keeps nothing for a mark any more.
    pub fn forget_mark(&self, mark: Mark) {
        let mut state = self.state.lock();
        state.marks.remove(&mark.0);
        state.holds.remove(&mark.0);
    }

    /// The end offset of all up to an LSN, rounded up to the end of a turn. `None`: it was not given yet. O(log
    /// turns)
    pub fn offset_behind(&self, lsn: Lsn) -> Option<u64> {
        let state = self.state.lock();
        let at = state.turns.partition_point(|turn| turn.lsn < lsn);
        state.turns.get(at).map(|turn| turn.end)
    }

    /// The end offset of all up to an LSN, without signs of life behind it; `u64::MAX` while it has not come.
    /// O(log turns + signs)
    pub fn told_offset(&self, lsn: Lsn) -> u64 {
        let state = self.state.lock();
        let at = state.turns.partition_point(|turn| turn.lsn < lsn);
        let Some(end) = state.turns.get(at).map(|turn| turn.end) else { return u64::MAX };
        let mut told = end;
        for sign in [GETACK, PING, GETACK, PING] {
            let from = told.saturating_sub(sign.len() as u64).max(state.first());
            if state.read(from).is_some_and(|bytes| bytes.starts_with(sign))
                && told - from == sign.len() as u64
            {
                told = from;
            }
        }
        told
    }

    /// The last offset that the log has named at or below an LSN. O(log names)
    pub fn named_offset(&self, lsn: Lsn) -> u64 {
        let state = self.state.lock();
        let at = state.named.partition_point(|(named, _)| *named <= lsn);
        match at.checked_sub(1).and_then(|at| state.named.get(at)) {
            Some((_, offset)) => *offset,
            None => state.first(),
        }
    }

    /// Milliseconds since 1970 at which the stream had reached an offset; 0: not known. O(log turns)
    pub fn reached_ms(&self, offset: u64) -> u64 {
        let state = self.state.lock();
        let at = state.turns.partition_point(|turn| turn.end < offset);
        state.turns.get(at).map_or(0, |turn| turn.wall_ms)
    }
}

/// Whether these are signs of life alone. O(bytes)
fn are_signs(mut bytes: &[u8]) -> bool {
    while let Some(rest) = bytes.strip_prefix(PING).or_else(|| bytes.strip_prefix(GETACK)) {
        bytes = rest;
    }
    bytes.is_empty()
}

impl State {
    fn first(&self) -> u64 {
        self.pieces.front().map_or(self.end, |piece| piece.start)
    }

    fn hold(&mut self, at: u64) -> u64 {
        self.next_hold += 1;
        self.holds.insert(self.next_hold, at);
        self.next_hold
    }

    /// Drops all that was given (B4).
    fn forget(&mut self) {
        self.pieces.clear();
        self.turns.clear();
        self.named.clear();
        self.marks.clear();
        (self.held_bytes, self.memory_bytes) = (0, 0);
        self.life += 1;
    }

    /// All bytes from an offset on. None: a part of them is in a file. O(bytes)
    fn read(&self, from: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let at = self.pieces.partition_point(|piece| piece.end() <= from);
        for piece in self.pieces.range(at..) {
            let Place::Memory(part) = &piece.at else { return None };
            bytes.extend_from_slice(&part[from.saturating_sub(piece.start) as usize..]);
        }
        Some(bytes)
    }

    /// Ends the stream at an offset of before. O(pieces and turns cut)
    fn cut(&mut self, to: u64) {
        while let Some(last) = self.pieces.back_mut().filter(|last| last.end() > to) {
            let kept = to.saturating_sub(last.start) as usize;
            let gone = (last.len - kept) as u64;
            self.held_bytes -= gone;
            self.memory_bytes -= if last.in_memory() > 0 { gone } else { 0 };
            match &last.at {
                Place::Memory(bytes) if kept > 0 => last.at = Place::Memory(bytes[..kept].into()),
                _ if kept > 0 => {}
                _ => {
                    self.pieces.pop_back();
                    continue;
                }
            }
            last.len = kept;
        }
        self.end = to;
        if let Some(last) = self.turns.back().filter(|last| last.end > to).copied() {
            self.turns.retain(|turn| turn.end <= to);
            self.note_turn(last.lsn);
        }
        for (_, offset) in self.named.iter_mut().rev().take_while(|(_, offset)| *offset > to) {
            *offset = to;
        }
        self.life += 1;
    }

    /// Adds bytes in pieces (B2).
    fn append(&mut self, mut bytes: &[u8], size_bytes: u64) {
        let longest = (size_bytes / 16).max(SMALL as u64) as usize;
        let added = bytes.len() as u64;
        if let Some(last) = self.pieces.back_mut().filter(|last| last.len < SMALL)
            && let Place::Memory(before) = &last.at
        {
            let part = bytes.len().min(longest - last.len);
            last.at = Place::Memory([&before[..], &bytes[..part]].concat().into());
            last.len += part;
            self.end += part as u64;
            bytes = &bytes[part..];
        }
        for piece in bytes.chunks(longest) {
            self.pieces.push_back(Piece {
                start: self.end,
                len: piece.len(),
                at: Place::Memory(piece.into()),
            });
            self.end += piece.len() as u64;
        }
        self.held_bytes += added;
        self.memory_bytes += added;
        self.trim(size_bytes);
    }

    /// Drops what nobody keeps (B3).
    fn trim(&mut self, size_bytes: u64) {
        let held = self.holds.values().min().copied().unwrap_or(self.end);
        while let Some(first) = self.pieces.front() {
            let rest = self.held_bytes - first.len as u64;
            if rest < size_bytes || first.end() > held {
                return;
            }
            self.memory_bytes -= first.in_memory() as u64;
            self.held_bytes = rest;
            self.pieces.pop_front();
        }
    }

    fn note_turn(&mut self, lsn: Lsn) {
        let turn = Turn { lsn, end: self.end, wall_ms: stdx::clock::wall_ms() };
        // A look that gave nothing moves the LSN of the end.
        match self.turns.back_mut().filter(|last| last.end == turn.end) {
            Some(last) => last.lsn = lsn,
            None => self.turns.push_back(turn),
        }
        if self.turns.len() > TURNS {
            self.turns.pop_front();
        }
    }
}

impl Hold {
    /// The next bytes at an offset: a piece, and where in it they begin. What lies before is kept no longer.
    /// O(log pieces)
    pub fn read(&self, at: u64) -> Next {
        let mut state = self.backlog.state.lock();
        if state.life != self.life || at < state.first() {
            return Next::Gone;
        }
        state.holds.insert(self.number, at);
        let behind = state.pieces.partition_point(|piece| piece.start <= at);
        match behind.checked_sub(1).and_then(|index| state.pieces.get(index)) {
            Some(piece) if at < piece.end() => {
                let from = (at - piece.start) as usize;
                match &piece.at {
                    Place::Memory(bytes) => Next::Bytes(bytes.clone(), from),
                    Place::Disk(file, place) => {
                        Next::Stored(file.clone(), place + from as u64, piece.len - from)
                    }
                }
            }
            _ if at == state.end => Next::End,
            _ => Next::Gone,
        }
    }

    /// Bytes between an offset and the end.
    pub fn behind(&self, at: u64) -> u64 {
        self.backlog.end_offset().saturating_sub(at)
    }

    /// Another hold of the same pieces. O(log holds)
    pub fn again(&self) -> Hold {
        let mut state = self.backlog.state.lock();
        let at = state.holds.get(&self.number).copied().unwrap_or(state.end);
        let number = state.hold(at);
        Hold { backlog: self.backlog.clone(), number, life: self.life }
    }

    /// Whether the stream broke meanwhile (B4).
    pub fn is_broken(&self) -> bool {
        self.backlog.state.lock().life != self.life
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.backlog.state.lock().holds.remove(&self.number);
    }
}

/// Fills the backlog, on the order thread.
struct Tap {
    backlog: Arc<Backlog>,
    /// Something came since the loops were told.
    grown: bool,
}

impl Outlet for Tap {
    fn take(&mut self, item: Item) {
        let size_bytes = self.backlog.size_bytes.load(Ordering::Relaxed);
        if let Item::Block(block) = &item {
            // Loops take the lock, so it is held for a part at a time.
            for part in block.bytes.chunks(PART) {
                let mut state = self.backlog.state.lock();
                if state.is_active {
                    state.append(part, size_bytes);
                    self.grown = true;
                }
            }
            return;
        }
        let mut state = self.backlog.state.lock();
        if !state.is_active {
            return;
        }
        match item {
            Item::Block(_) => {}
            Item::Mark(lsn, mark) => {
                let end = state.end;
                match mark {
                    Mark::CARRIED => state.is_carried = true,
                    Mark::OWN => {
                        state.is_carried = false;
                        state.ids.go_on(end);
                        state.life += 1;
                    }
                    _ => {}
                }
                // The own stream begins with SELECT behind a mark.
                let db = if state.is_carried { state.db } else { 0 };
                state.marks.insert(mark.0, (lsn, end, db));
                // Until the snapshot has a hold of its own. Numbers of marks are far above those of holds.
                state.holds.insert(mark.0, end);
                self.backlog.marked.notify_all();
            }
            Item::Break(..) => {
                state.ids = Ids::fresh();
                state.forget();
            }
        }
        self.grown = true;
    }

    fn turn(&mut self, upto: Lsn) {
        let mut state = self.backlog.state.lock();
        if state.is_active {
            state.note_turn(upto);
            self.grown = true;
        }
    }

    fn selected(&mut self, db: u32) {
        self.backlog.state.lock().db = db;
    }

    fn looked(&mut self) {
        let (ping, ack) = (&self.backlog.wants_ping, &self.backlog.wants_ack);
        let words = [(ping, PING), (ack, GETACK)];
        for (wanted, bytes) in words {
            if wanted.load(Ordering::Relaxed) && wanted.swap(false, Ordering::Relaxed) {
                let size_bytes = self.backlog.size_bytes.load(Ordering::Relaxed);
                let mut state = self.backlog.state.lock();
                if state.is_active && !state.is_carried && !state.rests {
                    state.append(bytes, size_bytes);
                    self.grown = true;
                }
            }
        }
        if std::mem::take(&mut self.grown) {
            (self.backlog.more)();
        }
    }

    fn named(&mut self, lsn: Lsn) {
        let mut state = self.backlog.state.lock();
        let end = state.end;
        state.named.push_back((lsn, end));
        if state.named.len() > TURNS {
            state.named.pop_front();
        }
    }

    fn place(&self) -> Option<HistoryPlace> {
        let state = self.backlog.state.lock();
        let counts = state.is_active && !state.is_gone;
        counts.then(|| HistoryPlace { id: state.ids.id.clone(), offset: state.end, db: state.db })
    }

    fn hears(&self) -> To {
        To::Replicas
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use persist::stream::Block;

    fn backlog(size_bytes: u64) -> (Arc<Backlog>, Box<dyn Outlet>) {
        let backlog = Backlog::new(size_bytes, Box::new(|| {}));
        backlog.begin(0);
        let outlet = backlog.outlet();
        (backlog, outlet)
    }

    fn block(bytes: &[u8], lsn: Lsn) -> Item {
        Item::Block(Block { first: lsn, last: lsn, bytes: bytes.to_vec(), groups: 1 })
    }

    fn read_all(hold: &Hold, mut at: u64) -> Vec<u8> {
        let mut all = Vec::new();
        while let Next::Bytes(bytes, from) = hold.read(at) {
            all.extend_from_slice(&bytes[from..]);
            at += (bytes.len() - from) as u64;
        }
        all
    }

    /// The data came anew, at another offset than the end before. A cut behind it found a backlog that seemed to
    /// be of the old data still, and dropped it.
    #[test]
    fn data_that_came_anew_are_old_at_the_next_cut() {
        let (backlog, mut tap) = backlog(1 << 20);
        tap.take(block(b"x", 1));
        backlog.data_go();
        assert!(!backlog.goes_on("other", 1000, 0));
        tap.take(block(b"yy", 2));
        let end = backlog.end_offset();
        assert!(!backlog.goes_on("other", end, 0));
        assert!(backlog.go_on(b"other", 1001).is_some(), "all behind the copy is there");
        // Another id for the same history keeps it, and ends those who count under the old one.
        let (hold, at, _) = backlog.go_on(b"other", 1001).unwrap();
        assert!(backlog.goes_on("third", end, 0));
        assert!(matches!(hold.read(at), Next::Gone));
        assert!(backlog.go_on(b"other", 1001).is_some());
    }

    #[test]
    fn a_replica_goes_on_where_it_was() {
        let (backlog, mut tap) = backlog(1 << 20);
        let begin = backlog.end_offset();
        tap.take(block(b"abc", 1));
        tap.turn(1);
        tap.take(block(b"defg", 2));
        tap.turn(2);
        let id = backlog.figures().ids.id;
        let (hold, at, _) = backlog.go_on(id.as_bytes(), begin as i64 + 3).expect("it is there");
        assert_eq!(read_all(&hold, at), b"cdefg");
        assert!(backlog.go_on(id.as_bytes(), begin as i64 + 9).is_none());
        assert!(backlog.go_on(&[b'0'; 40], begin as i64 + 3).is_none());
        assert_eq!(backlog.offset_behind(1), Some(begin + 3));
        assert_eq!((backlog.offset_behind(2), backlog.offset_behind(3)), (Some(begin + 7), None));
    }

    /// A replica that loads may keep gigabytes for itself. A copy of them all would not fit into memory.
    #[test]
    fn a_copy_is_not_larger_than_memory_allows() {
        let (backlog, mut tap) = backlog(1 << 20);
        let begin = backlog.end_offset();
        let id = backlog.figures().ids.id;
        let _hold = backlog.go_on(id.as_bytes(), begin as i64 + 1).unwrap();
        (0..40).for_each(|n| tap.take(block(&[n; 1 << 20], n.into())));
        let kept = backlog.kept().unwrap();
        assert!(kept.bytes.len() <= (1 << 20) + KEPT_BEYOND, "{}", kept.bytes.len());
        assert!(kept.bytes.len() >= KEPT_BEYOND, "{}", kept.bytes.len());
        assert_eq!(kept.from + kept.bytes.len() as u64, backlog.end_offset());
    }

    /// Replicas hear of what is durable, up to a place that a log names.
    #[test]
    fn a_log_names_how_far_replicas_may_hear() {
        let (backlog, mut tap) = backlog(1 << 20);
        let begin = backlog.end_offset();
        tap.take(block(b"abc", 1));
        assert_eq!(backlog.named_offset(1), begin);
        tap.named(1);
        tap.take(block(b"defg", 2));
        tap.turn(2);
        assert_eq!((backlog.named_offset(0), backlog.named_offset(2)), (begin, begin + 3));
        tap.named(2);
        assert_eq!((backlog.named_offset(1), backlog.named_offset(2)), (begin + 3, begin + 7));
    }

    #[test]
    fn pieces_are_kept_for_the_size_and_for_holds() {
        let (backlog, mut tap) = backlog(100_000);
        let begin = backlog.end_offset();
        let id = backlog.figures().ids.id;
        let (hold, at, _) = backlog.go_on(id.as_bytes(), begin as i64 + 1).unwrap();
        for n in 0..100 {
            tap.take(block(&[n; 5000], n.into()));
        }
        assert_eq!(read_all(&hold, at).len(), 500_000);
        tap.take(block(&[1; 5000], 200));
        let figures = backlog.figures();
        assert!((100_000..150_000).contains(&figures.bytes), "{figures:?}");
        assert!(matches!(hold.read(at), Next::Gone));
        drop(hold);
        tap.take(block(&[7; 1_000_000], 201));
        let longest = backlog.state.lock().pieces.iter().map(|piece| piece.len).max();
        assert!(longest <= Some(SMALL), "{longest:?}");
    }

    #[test]
    fn a_mark_keeps_what_follows_it() {
        let (backlog, mut tap) = backlog(1);
        tap.take(block(b"before", 1));
        let mark = Mark::of_replicas(7);
        tap.take(Item::Mark(2, mark));
        tap.take(block(b"behind", 3));
        let Marked { hold, offset: at, .. } = backlog.at_mark(mark, 2).unwrap();
        assert_eq!(read_all(&hold, at), b"behind");
        tap.take(Item::Break(4, Arc::from("lost")));
        assert!(matches!(hold.read(at), Next::Gone) && hold.is_broken());
    }

    /// The database moved on before the snapshot looked at its mark. Its replica applied the first commands to
    /// the later database.
    #[test]
    fn a_mark_keeps_its_database() {
        let (backlog, mut tap) = backlog(1 << 20);
        tap.take(Item::Mark(1, Mark::CARRIED));
        tap.selected(9);
        let mark = Mark::of_replicas(7);
        tap.take(Item::Mark(2, mark));
        tap.take(block(b"SELECT 10", 3));
        tap.selected(10);
        assert_eq!(backlog.at_mark(mark, 2).map(|marked| marked.db), Ok(9));
    }

    /// A server that led said PING once more, behind all that the one has which leads now.
    #[test]
    fn signs_of_life_alone_are_cut_off() {
        let (backlog, mut tap) = backlog(1 << 20);
        tap.take(block(b"xyz", 1));
        tap.turn(1);
        let (end, id) = (backlog.end_offset(), backlog.figures().ids.id);
        assert!(!backlog.ends_with_signs());
        backlog.ping();
        backlog.ask_acks();
        tap.turn(1);
        tap.looked();
        tap.turn(2);
        assert!(backlog.ends_with_signs());
        let (hold, at, _) = backlog.go_on(id.as_bytes(), end as i64 + 1).unwrap();
        assert!(!backlog.cut_signs(end - 1) && !backlog.cut_signs(end + 3), "that is no sign of life");
        assert!(backlog.cut_signs(end));
        assert_eq!((backlog.end_offset(), backlog.offset_behind(2)), (end, Some(end)));
        assert!(matches!(hold.read(at), Next::Gone));
        tap.take(block(b"behind", 3));
        let (hold, at, _) = backlog.go_on(id.as_bytes(), end as i64 - 2).unwrap();
        assert_eq!(read_all(&hold, at), b"xyzbehind");
        let figures = backlog.figures();
        assert_eq!((figures.bytes, figures.memory_bytes), (9, 9));
    }

    #[test]
    fn pings_and_questions_stand_behind_the_turn() {
        let (backlog, mut tap) = backlog(1 << 20);
        tap.take(block(b"x", 1));
        let end = backlog.end_offset();
        backlog.ping();
        backlog.ask_acks();
        tap.turn(1);
        tap.looked();
        assert_eq!(backlog.offset_behind(1), Some(end));
        assert_eq!(backlog.end_offset(), end + (PING.len() + GETACK.len()) as u64);
    }
}
