//! Groups as bytes: SELECT, MULTI and EXEC around what was told, in blocks.

use super::{Entry, LIST, LOG, LONG, Large, MARK, REPLICAS, Taken};
use crate::stream::{Block, Item, Outlet};
use keyspace::{Lsn, Mark};
use std::sync::Arc;
use stdx::points::{self, Point};

/// About the size of a block in bytes. A larger group is a block of its own.
const BLOCK: usize = 256 * 1024;
const MULTI: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Makes blocks for outlets that hear of the same.
pub(super) struct Framer {
    /// [`LOG`] or [`REPLICAS`].
    hears: u64,
    outlets: Vec<Box<dyn Outlet>>,
    out: Out,
    first: Lsn,
    last: Lsn,
    groups: u32,
    /// Effects up to here may be lost: nothing is given before a mark behind it (O3).
    lost_upto: Option<Lsn>,
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
            _ if alone => {}
            1 => drop(self.bytes.drain(self.multi_at..self.multi_at + MULTI.len())),
            _ => self.bytes.extend_from_slice(EXEC),
        }
        commands > 0
    }
}

impl Framer {
    pub(super) fn new(hears: u64, outlets: Vec<Box<dyn Outlet>>) -> Framer {
        debug_assert!(hears == LOG || hears == REPLICAS);
        Framer { hears, outlets, out: Out::default(), first: 0, last: 0, groups: 0, lost_upto: None }
    }

    /// Adds all that was told at one LSN (O1). O(its bytes).
    pub(super) fn group(&mut self, group: &[Entry], taken: &Taken) {
        if self.lost_upto.is_some() && !self.mends(group) {
            return;
        }
        points::trip(Point::LogOrder);
        let hears = self.hears;
        let heard = || group.iter().filter(move |entry| entry.info & hears != 0);
        let (mut count, mut bytes, mut lists) = (0, 0, false);
        for entry in heard() {
            count += 1;
            lists |= entry.kind() == LIST;
            bytes += match (entry.kind(), &taken.large.get(entry.at)) {
                (LONG, Some(Some(Large::Long(bytes, _)))) => bytes.len(),
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
                let number = taken.body(entry).try_into().map_or(0, u64::from_le_bytes);
                out.commands = 0;
                self.mark(entry.lsn, Mark(number));
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
        self.out.db = None;
        self.outlets.iter_mut().for_each(|outlet| outlet.take(Item::Mark(lsn, mark)));
    }

    /// Gives the block under way.
    pub(super) fn close(&mut self) {
        let Some((last, others)) = self.outlets.split_last_mut().filter(|_| self.groups > 0) else { return };
        let bytes = std::mem::take(&mut self.out.bytes);
        let groups = std::mem::take(&mut self.groups);
        let block = Block { first: self.first, last: self.last, bytes, groups };
        others.iter_mut().for_each(|outlet| outlet.take(Item::Block(block.clone())));
        last.take(Item::Block(block));
    }

    /// Gives up what was not given yet, and all that comes before a mark behind an LSN (O3).
    pub(super) fn breaks(&mut self, upto: Lsn, why: &Arc<str>) {
        (self.out, self.groups, self.lost_upto) = (Out::default(), 0, Some(upto));
        for outlet in &mut self.outlets {
            // It may be this that panics. Without a further turn it takes nothing for durable.
            let _ = stdx::panics::contain(|| outlet.take(Item::Break(upto, why.clone())));
        }
    }

    /// Whether a group is a mark behind all that was lost. Then everything is given again.
    #[cold]
    fn mends(&mut self, group: &[Entry]) -> bool {
        let lost_upto = self.lost_upto.unwrap_or(0);
        let mends = group.iter().any(|entry| entry.kind() == MARK && entry.lsn > lost_upto);
        if mends {
            self.lost_upto = None;
        }
        mends
    }

    /// All up to an LSN was given.
    pub(super) fn turn(&mut self, upto: Lsn) {
        if self.lost_upto.is_some() {
            return;
        }
        self.outlets.iter_mut().for_each(|outlet| outlet.turn(upto));
    }
}
