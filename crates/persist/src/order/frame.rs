//! Groups as bytes: SELECT, MULTI and EXEC around what was told, in blocks.

use super::{CARRIED, Entry, LIST, LOG, LONG, Large, MARK, REPLICAS, Taken};
use crate::files::incr::put_place;
use crate::stream::{Block, HistoryPlace, Item, Outlet};
use keyspace::{Lsn, Mark, To};
use std::sync::Arc;
use stdx::points::{self, Point};

/// About the size of a block in bytes. A larger group is a block of its own.
const BLOCK: usize = 256 * 1024;
const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Makes blocks for an outlet.
pub(super) struct Framer {
    /// [`LOG`] or [`REPLICAS`].
    hears: u64,
    /// [`Outlet::since`].
    since: Lsn,
    outlet: Box<dyn Outlet>,
    out: Out,
    first: Lsn,
    last: Lsn,
    groups: u32,
    /// Replicas hear the bytes of this server's primary, and no effect of its own.
    carries: bool,
    /// Effects up to here may be lost: nothing is given before a mark behind it (O3).
    lost_upto: Option<Lsn>,
    /// The log goes on in a file that names no place yet (incr E8).
    wants_place: bool,
}

/// A block under way.
#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    /// The database of the next command. `None`: it has to be selected.
    db: Option<u32>,
    /// Commands of the group, and the offset of its MULTI.
    commands: usize,
    multi_at: usize,
}

impl Out {
    /// Makes ready for a command: selects its database, and begins the group.
    fn begin(&mut self, db: Option<u32>, alone: bool) {
        if let Some(db) = db.filter(|db| self.db != Some(*db)) {
            let mut digits = itoa::Buffer::new();
            self.command(&mut [b"SELECT", digits.format(db).as_bytes()].into_iter());
            self.db = Some(db);
        }
        if self.commands == 0 {
            self.multi_at = 0;
        }
        if self.commands == 0 && !alone {
            self.multi_at = self.bytes.len();
            self.bytes.extend_from_slice(MULTI);
        }
        self.commands += 1;
    }

    /// A command by its words.
    fn command(&mut self, words: &mut dyn Iterator<Item = &[u8]>) {
        let words: smallvec::SmallVec<[&[u8]; 16]> = words.collect();
        let mut digits = itoa::Buffer::new();
        self.bytes.push(b'*');
        self.bytes.extend_from_slice(digits.format(words.len()).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
        for word in words {
            self.bytes.push(b'$');
            self.bytes.extend_from_slice(digits.format(word.len()).as_bytes());
            self.bytes.extend_from_slice(b"\r\n");
            self.bytes.extend_from_slice(word);
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    /// Ends the group: one command stands alone. True if there was any.
    fn end(&mut self, alone: bool) -> bool {
        let commands = std::mem::take(&mut self.commands);
        match commands {
            0 => {}
            _ if alone || self.multi_at == usize::MAX => {}
            1 => drop(self.bytes.drain(self.multi_at..self.multi_at + MULTI.len())),
            _ => self.bytes.extend_from_slice(EXEC),
        }
        commands > 0
    }
}

impl Framer {
    pub(super) fn new(outlet: Box<dyn Outlet>) -> Framer {
        let hears = if outlet.hears() == To::Replicas { REPLICAS } else { LOG };
        Framer {
            hears,
            since: outlet.since(),
            outlet,
            out: Out::default(),
            first: 0,
            last: 0,
            groups: 0,
            carries: false,
            lost_upto: None,
            wants_place: hears == LOG,
        }
    }

    /// Adds all that was told at one LSN (O1). O(its bytes).
    pub(super) fn group(&mut self, group: &[Entry], taken: &Taken) {
        if group[0].lsn <= self.since || self.lost_upto.is_some() && !self.mends(group) {
            return;
        }
        points::trip(Point::LogOrder);
        let (hears, carries) = (self.hears, self.carries);
        let heard = || {
            // In one mode the bytes of the primary, in the other all else.
            let is_of_mode = move |entry: &&Entry| match entry.kind() {
                MARK => true,
                kind => (kind == CARRIED) == carries,
            };
            group.iter().filter(move |entry| entry.info & hears != 0).filter(is_of_mode)
        };
        let (mut count, mut bytes, mut lists) = (0, 0, false);
        for entry in heard() {
            count += 1;
            lists |= entry.kind() == LIST;
            bytes += match (entry.kind(), &taken.large.get(entry.at)) {
                (LONG | CARRIED, Some(Some(Large::Long(bytes, _)))) => bytes.len(),
                (LIST, Some(Some(Large::List(effects)))) => effects.bytes() + effects.bytes() / 4,
                _ => entry.len(),
            };
        }
        if count == 0 {
            return;
        }
        if self.out.bytes.len() + bytes > BLOCK {
            self.close();
        }
        if self.out.bytes.is_empty() {
            self.out.bytes.reserve(bytes.max((taken.bytes.len() + taken.bytes.len() / 8).min(BLOCK)));
        }
        let alone = count == 1 && !lists;
        for entry in heard() {
            self.entry(entry, taken, alone);
        }
        if self.out.end(alone) {
            self.last = group[0].lsn;
            self.first = if self.groups == 0 { self.last } else { self.first };
            self.groups += 1;
        }
        if self.out.bytes.len() >= BLOCK {
            self.close();
        }
    }

    fn entry(&mut self, entry: &Entry, taken: &Taken, alone: bool) {
        let out = &mut self.out;
        match entry.kind() {
            MARK => {
                let mark = Mark(taken.body(entry).try_into().map_or(0, u64::from_le_bytes));
                if mark == Mark::PLACE {
                    // A group of no bytes: the line comes at the end of the block.
                    (out.commands, out.multi_at) = (1, usize::MAX);
                    return;
                }
                out.commands = 0;
                self.mark(entry.lsn, mark);
                self.carries = match mark {
                    Mark::OWN => false,
                    Mark::CARRIED => true,
                    _ => self.carries,
                };
            }
            CARRIED => {
                if let Some(Large::Long(bytes, _)) = &taken.large[entry.at] {
                    out.bytes.extend_from_slice(bytes);
                    // Whole groups of the primary, as they are.
                    out.commands += 1;
                    out.multi_at = usize::MAX;
                    out.db = entry.db();
                }
            }
            LONG | LIST => match &taken.large[entry.at] {
                Some(Large::Long(bytes, from)) => {
                    out.begin(entry.db(), alone);
                    out.bytes.extend_from_slice(&bytes[*from..]);
                }
                Some(Large::List(effects)) => effects.each(&mut |db, words| {
                    out.begin(db, alone);
                    out.command(words);
                }),
                None => {}
            },
            _ => {
                out.begin(entry.db(), alone);
                out.bytes.extend_from_slice(taken.body(entry));
            }
        }
    }

    /// A mark stands between two groups, and the next one says its database.
    fn mark(&mut self, lsn: Lsn, mark: Mark) {
        self.close();
        self.out.db.into_iter().for_each(|db| self.outlet.selected(db));
        if !self.carries || matches!(mark, Mark::OWN | Mark::CARRIED) {
            self.out.db = None;
        }
        self.wants_place = self.hears == LOG;
        self.outlet.take(Item::Mark(lsn, mark));
    }

    /// Gives the block under way, and the place in the history that it ends at (incr E8). Returns its LSN.
    /// None: there is none.
    pub(super) fn close_at(&mut self, place: &HistoryPlace) -> Option<Lsn> {
        let gives = self.groups > 0;
        if gives {
            put_place(&mut self.out.bytes, self.last, place);
            self.wants_place = false;
        }
        self.close();
        gives.then_some(self.last)
    }

    /// The log names the place of all that was given.
    pub(super) fn named(&mut self, lsn: Lsn) {
        self.outlet.named(lsn);
    }

    /// The place in the history of all that was given. None: it does not count one.
    pub(super) fn place(&mut self) -> Option<HistoryPlace> {
        if self.hears == LOG || self.lost_upto.is_some() {
            return None;
        }
        self.out.db.into_iter().for_each(|db| self.outlet.selected(db));
        self.outlet.place()
    }

    /// Whether it is that of a log that has to name the place, even if it has named it before.
    pub(super) fn wants_place(&self) -> bool {
        self.wants_place && self.lost_upto.is_none()
    }

    pub(super) fn is_of_log(&self) -> bool {
        self.hears == LOG
    }

    /// Gives the block under way.
    pub(super) fn close(&mut self) {
        if self.groups == 0 {
            return;
        }
        let bytes = std::mem::take(&mut self.out.bytes);
        let groups = std::mem::take(&mut self.groups);
        let block = Block { first: self.first, last: self.last, bytes, groups };
        self.outlet.take(Item::Block(block));
    }

    /// Gives up what was not given yet, and all that comes before a mark behind an LSN (O3).
    pub(super) fn breaks(&mut self, upto: Lsn, why: &Arc<str>) {
        (self.out, self.groups, self.lost_upto) = (Out::default(), 0, Some(upto));
        // It may be this that panics. Without a further turn it takes nothing for durable.
        let _ = stdx::panics::contain(|| self.outlet.take(Item::Break(upto, why.clone())));
    }

    /// Whether a group is a mark behind all that was lost. Then everything is given again.
    #[cold]
    fn mends(&mut self, group: &[Entry]) -> bool {
        let lost_upto = self.lost_upto.unwrap_or(0);
        let mark = |entry: &Entry| entry.kind() == MARK && entry.info & self.hears != 0;
        let mends = group.iter().any(|entry| mark(entry) && entry.lsn > lost_upto);
        if mends {
            self.lost_upto = None;
        }
        mends
    }

    /// All up to an LSN was given.
    pub(super) fn turn(&mut self, upto: Lsn) {
        if self.lost_upto.is_none() {
            self.outlet.turn(upto);
        }
    }

    /// A look has ended.
    pub(super) fn looked(&mut self) {
        self.outlet.looked();
    }
}
