//! The packed leaf of a stream: some entries, one after another, in one text.
//!
//! ```text
//! names: cell …                                        the fields of the first entry
//! bytes: entry …     entry: ms - base, seq, fields · 2 + shared, cell …
//! cell:  length + 1, the text      0, the number of a blob: a text of more than INLINE_MAX bytes
//! ```
//!
//! Numbers have seven bits a byte. `seq` counts from that of the base if `ms` is the base's. The cells of an
//! entry that shares the names are its values, of another entry names and values in turn.
//!
//! - P1: IDs ascend, none is below `base`, and `last` is the last one.
//! - P2: a block has at most [`BYTES_MAX`] bytes, unless it has one entry only.
//! - P3: `marks` has the places of the entries number 16, 32 and so on, as far as it goes.
//!
//! Cost: an entry is found by walking over those behind the mark before it. A removal writes the block anew.

use super::id::StreamId;
use crate::arc::Blob;
use crate::elem::INLINE_MAX;
use std::mem::size_of;

/// A block that gets no more entries.
const BYTES_MAX: usize = 8 << 10;
/// An entry of more bytes has a block of its own.
const LARGE: usize = 4 << 10;

/// Entries between two marks, and the number of marks.
const STRIDE: usize = 16;
const MARKS: usize = 8;

/// Entries of a stream, in one text.
#[derive(Clone)]
pub(super) struct Block {
    base: StreamId,
    last: StreamId,
    count: u32,
    /// Entries removed in the middle: they count for the limit of entries, as in Redis.
    removed: u32,
    names_len: u32,
    marks: [u16; MARKS],
    names: Box<[u8]>,
    bytes: Vec<u8>,
    blobs: Vec<Blob>,
    /// Bytes of all blobs.
    heap: usize,
}

/// A borrowed entry of a stream.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    pub id: StreamId,
    block: &'a Block,
    /// The cells.
    from: usize,
    to: usize,
    len: usize,
    shares_names: bool,
}

/// The fields and values of an entry.
#[derive(Clone)]
pub struct Fields<'a> {
    names: Option<Cells<'a>>,
    cells: Cells<'a>,
    left: usize,
}

#[derive(Clone)]
struct Cells<'a> {
    bytes: &'a [u8],
    at: usize,
    blobs: &'a [Blob],
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[inline]
fn number(bytes: &[u8], at: &mut usize) -> u64 {
    let first = bytes[*at];
    if first < 0x80 {
        *at += 1;
        return u64::from(first);
    }
    let (mut number, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return number;
        }
        shift += 7;
    }
}

impl<'a> Cells<'a> {
    fn read(&mut self) -> &'a [u8] {
        match number(self.bytes, &mut self.at) {
            0 => &self.blobs[number(self.bytes, &mut self.at) as usize],
            len => {
                let from = self.at;
                self.at += len as usize - 1;
                &self.bytes[from..self.at]
            }
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let name = match &mut self.names {
            Some(names) => names.read(),
            None => self.cells.read(),
        };
        Some((name, self.cells.read()))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Fields<'_> {}

impl<'a> Entry<'a> {
    /// Number of fields.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without fields. No server writes such an entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The fields and their values.
    pub fn fields(&self) -> Fields<'a> {
        let cells = Cells { bytes: &self.block.bytes, at: self.from, blobs: &self.block.blobs };
        let names = Cells { bytes: &self.block.names, at: 0, blobs: &self.block.blobs };
        Fields { names: self.shares_names.then_some(names), cells, left: self.len }
    }

    /// Bytes of all fields and values. O(fields).
    pub fn bytes(&self) -> usize {
        self.fields().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl std::fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}: {} fields", self.id.ms, self.id.seq, self.len)
    }
}

/// Bytes that a cell has at most.
fn room(text: &[u8]) -> usize {
    if text.len() > INLINE_MAX { 10 } else { text.len() + 2 }
}

impl Block {
    /// A block of one entry.
    pub(super) fn new(id: StreamId, fields: &[(&[u8], &[u8])]) -> Block {
        let mut block = Block {
            base: id,
            last: id,
            count: 0,
            removed: 0,
            names_len: fields.len() as u32,
            marks: [0; MARKS],
            names: Box::default(),
            bytes: Vec::new(),
            blobs: Vec::new(),
            heap: 0,
        };
        let mut names = Vec::new();
        fields.iter().for_each(|(name, _)| block.put_cell(&mut names, name));
        block.names = names.into();
        block.push(id, fields);
        block
    }

    pub(super) fn base(&self) -> StreamId {
        self.base
    }

    pub(super) fn last_id(&self) -> StreamId {
        self.last
    }

    pub(super) fn count(&self) -> u64 {
        u64::from(self.count)
    }

    /// Bytes of the block and all it owns.
    pub(super) fn alloc_bytes(&self) -> u64 {
        let blobs = self.heap + self.blobs.capacity() * size_of::<Blob>();
        (size_of::<Block>() + self.names.len() + self.bytes.capacity() + blobs) as u64
    }

    /// Whether an entry of these fields is added here rather than to a new block.
    pub(super) fn takes(&self, fields: &[(&[u8], &[u8])], entries_max: usize, bytes_max: usize) -> bool {
        let bytes = self.bytes.len() + self.heap + self.names.len();
        let mut large = 0;
        (entries_max == 0 || ((self.count + self.removed) as usize) < entries_max)
            && (bytes_max == 0 || bytes < bytes_max)
            && self.bytes.len() < BYTES_MAX - LARGE
            && fields.iter().all(|(name, value)| {
                large += room(name) + room(value);
                large <= LARGE
            })
    }

    fn put_cell(&mut self, out: &mut Vec<u8>, text: &[u8]) {
        if text.len() > INLINE_MAX {
            put_number(out, 0);
            put_number(out, self.blobs.len() as u64);
            self.heap += Blob::alloc_size(text.len());
            self.blobs.push(Blob::new(text));
        } else {
            put_number(out, text.len() as u64 + 1);
            out.extend_from_slice(text);
        }
    }

    fn shares(&self, fields: &[(&[u8], &[u8])]) -> bool {
        let mut names = Cells { bytes: &self.names, at: 0, blobs: &self.blobs };
        self.names_len as usize == fields.len() && fields.iter().all(|(name, _)| names.read() == *name)
    }

    /// Adds an entry behind the others.
    pub(super) fn push(&mut self, id: StreamId, fields: &[(&[u8], &[u8])]) {
        let shares = self.shares(fields);
        let mut bytes = std::mem::take(&mut self.bytes);
        if let (count, 0) = (self.count as usize / STRIDE, self.count as usize % STRIDE)
            && (1..=MARKS).contains(&count)
        {
            self.marks[count - 1] = bytes.len() as u16; // P2
        }
        put_number(&mut bytes, id.ms - self.base.ms);
        put_number(&mut bytes, if id.ms == self.base.ms { id.seq - self.base.seq } else { id.seq });
        put_number(&mut bytes, (fields.len() as u64) << 1 | u64::from(shares));
        for (name, value) in fields {
            if !shares {
                self.put_cell(&mut bytes, name);
            }
            self.put_cell(&mut bytes, value);
        }
        self.bytes = bytes;
        self.last = id;
        self.count += 1;
    }

    /// Gives back room that is not needed: nothing more is added.
    pub(super) fn close(&mut self) {
        self.bytes.shrink_to_fit();
        self.blobs.shrink_to_fit();
    }

    /// The ID of the entry that begins there, and the place behind the ID.
    #[inline]
    fn id_at(&self, mut at: usize) -> (StreamId, usize) {
        let ms = self.base.ms + number(&self.bytes, &mut at);
        let seq = number(&self.bytes, &mut at);
        let seq = if ms == self.base.ms { self.base.seq + seq } else { seq };
        (StreamId { ms, seq }, at)
    }

    /// Number of fields, whether the entry shares the names, the place of its cells and the place behind
    /// them. `at`: behind its ID.
    #[inline]
    fn cells_at(&self, mut at: usize) -> (usize, bool, usize, usize) {
        let head = number(&self.bytes, &mut at);
        let (len, shares_names) = ((head >> 1) as usize, head & 1 == 1);
        let mut to = at;
        for _ in 0..if shares_names { len } else { 2 * len } {
            match number(&self.bytes, &mut to) {
                0 => drop(number(&self.bytes, &mut to)),
                len => to += len as usize - 1,
            }
        }
        (len, shares_names, at, to)
    }

    /// The entry that begins there, and the place behind it.
    fn entry_at(&self, at: usize) -> (Entry<'_>, usize) {
        let (id, at) = self.id_at(at);
        let (len, shares_names, from, to) = self.cells_at(at);
        (Entry { id, block: self, from, to, len, shares_names }, to)
    }

    /// The place and the number of the first entry that is not below an ID.
    fn seek(&self, id: StreamId) -> (usize, usize) {
        if id > self.last {
            return (self.bytes.len(), self.count as usize);
        }
        let marked = ((self.count as usize - 1) / STRIDE).min(MARKS);
        let mark = self.marks[..marked].iter().rposition(|at| self.id_at(usize::from(*at)).0 <= id); // P3
        let (mut at, mut number) = mark.map_or((0, 0), |i| (usize::from(self.marks[i]), STRIDE * (i + 1)));
        loop {
            let (found, cells) = self.id_at(at);
            if found >= id {
                return (at, number);
            }
            (at, number) = (self.cells_at(cells).3, number + 1);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        self.iter_at(0)
    }

    /// The entries from a place on.
    fn iter_at(&self, at: usize) -> impl Iterator<Item = Entry<'_>> {
        let mut at = at;
        std::iter::from_fn(move || {
            let (entry, next) = (at < self.bytes.len()).then(|| self.entry_at(at))?;
            at = next;
            Some(entry)
        })
    }

    /// The entry behind this one of the block.
    pub(super) fn after(&self, entry: &Entry<'_>) -> Option<Entry<'_>> {
        (entry.to < self.bytes.len()).then(|| self.entry_at(entry.to).0)
    }

    pub(super) fn get(&self, id: StreamId) -> Option<Entry<'_>> {
        self.first_from(id).filter(|entry| entry.id == id)
    }

    /// The first entry that is not below.
    pub(super) fn first_from(&self, id: StreamId) -> Option<Entry<'_>> {
        let (at, _) = self.seek(id);
        (at < self.bytes.len()).then(|| self.entry_at(at).0)
    }

    /// The number of entries below.
    pub(super) fn rank(&self, id: StreamId) -> u64 {
        self.seek(id).1 as u64
    }

    /// The same without some entries; None if none is left.
    pub(super) fn without(&self, gone: impl Fn(&Entry<'_>) -> bool) -> Option<Block> {
        let mut block: Option<Block> = None;
        let mut fields = Vec::new();
        for entry in self.iter().filter(|entry| !gone(entry)) {
            fields.clear();
            fields.extend(entry.fields());
            match &mut block {
                Some(block) => block.push(entry.id, &fields),
                None => {
                    let mut first = Block::new(entry.id, &fields);
                    first.removed = self.removed;
                    block = Some(first);
                }
            }
        }
        if let Some(block) = &mut block {
            block.removed += self.count - block.count;
            block.close();
        }
        block
    }

    pub(super) fn check_invariants(&self) {
        let ids: Vec<StreamId> = self.iter().map(|entry| entry.id).collect();
        assert!(ids.is_sorted_by(|a, b| a < b) && ids[0] >= self.base, "P1");
        assert_eq!((ids.last(), ids.len()), (Some(&self.last), self.count as usize), "P1");
        assert!(self.bytes.len() <= BYTES_MAX || self.count == 1, "P2");
        ids.iter().enumerate().for_each(|(i, id)| assert_eq!(self.rank(*id), i as u64, "P3"));
        assert_eq!(self.heap, self.blobs.iter().map(|blob| Blob::alloc_size(blob.len())).sum::<usize>());
    }
}
