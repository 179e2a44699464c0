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
//!
//! Cost: an entry is found by walking over those before it. A removal writes the block anew.

use super::StreamId;
use crate::arc::Blob;
use crate::elem::INLINE_MAX;
use std::mem::size_of;

/// A block that gets no more entries.
const BYTES_MAX: usize = 8 << 10;
/// An entry of more bytes has a block of its own.
const LARGE: usize = 4 << 10;

/// Entries of a stream, in one text.
#[derive(Clone)]
pub(super) struct Block {
    base: StreamId,
    last: StreamId,
    count: u32,
    /// Entries removed in the middle: they count for the limit of entries, as in Redis.
    removed: u32,
    names_len: u32,
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

fn number(bytes: &[u8], at: &mut usize) -> u64 {
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

    /// The entry that begins there, and the place behind it.
    fn entry_at(&self, at: usize) -> (Entry<'_>, usize) {
        let mut at = at;
        let ms = self.base.ms + number(&self.bytes, &mut at);
        let seq = number(&self.bytes, &mut at);
        let seq = if ms == self.base.ms { self.base.seq + seq } else { seq };
        let head = number(&self.bytes, &mut at);
        let (len, shares_names) = ((head >> 1) as usize, head & 1 == 1);
        let mut cells = Cells { bytes: &self.bytes, at, blobs: &self.blobs };
        (0..if shares_names { len } else { 2 * len }).for_each(|_| {
            cells.read();
        });
        let to = cells.at;
        (Entry { id: StreamId { ms, seq }, block: self, from: at, to, len, shares_names }, to)
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
        self.iter().find(|entry| entry.id >= id)
    }

    /// The number of entries below.
    pub(super) fn rank(&self, id: StreamId) -> u64 {
        self.iter().take_while(|entry| entry.id < id).count() as u64
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
        assert_eq!(self.heap, self.blobs.iter().map(|blob| Blob::alloc_size(blob.len())).sum::<usize>());
    }
}
