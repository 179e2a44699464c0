//! The listpacks of streams.
//!
//! ```text
//! entries │ removed │ names │ name … │ 0 │ entry …
//! entry: flags │ ms - first │ seq - first │ (fields │ name, value …  or, with SAME, value …) │ elements before
//! ```
//!
//! The first ID is that of the node, which stands before the listpack.

use super::listpack::{Listpack, back_len};
use crate::{Item, Malformed};

const REMOVED: i64 = 1;
const SAME: i64 = 2;

/// Texts one after another.
#[derive(Default)]
struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn push(&mut self, item: Item<'_>) {
        item.with(|text| self.bytes.extend_from_slice(text));
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(from, to)| &self.bytes[from..*to])
    }
}

/// Reads the entries of a node in order. It checks what it passes.
pub(crate) struct Node<'a> {
    items: Listpack<'a>,
    first: (u64, u64),
    names: Texts,
    values: Texts,
    /// Entries that are still to come: those there are, and those removed.
    left: (i64, i64),
}

impl<'a> Node<'a> {
    pub(crate) fn new(first: (u64, u64), blob: &'a [u8]) -> Result<Node<'a>, Malformed> {
        let items = Listpack::new(blob)?;
        let mut node = Node { items, first, names: Texts::default(), values: Texts::default(), left: (0, 0) };
        node.left = (node.number()?, node.number()?);
        if node.left.0 < 0 || node.left.1 < 0 {
            return Err(Malformed);
        }
        for _ in 0..node.number()? {
            let name = node.item()?;
            node.names.push(name);
        }
        if node.number()? != 0 {
            return Err(Malformed);
        }
        Ok(node)
    }

    fn item(&mut self) -> Result<Item<'a>, Malformed> {
        self.items.next().ok_or(Malformed)?
    }

    fn number(&mut self) -> Result<i64, Malformed> {
        match self.item()? {
            Item::Int(number) => Ok(number),
            Item::Bytes(_) => Err(Malformed),
        }
    }

    /// Reads the next entry that was not removed, and gives its ID and its fields and values to `f`. False at
    /// the end.
    pub(crate) fn next(
        &mut self,
        f: impl for<'f> FnOnce((u64, u64), &mut dyn Iterator<Item = (&'f [u8], &'f [u8])>),
    ) -> Result<bool, Malformed> {
        loop {
            let flags = match self.items.next().transpose()? {
                Some(Item::Int(flags)) if (0..=3).contains(&flags) => flags,
                Some(_) => return Err(Malformed),
                None => return if self.left == (0, 0) { Ok(false) } else { Err(Malformed) },
            };
            let id = (offset(self.first.0, self.number()?), offset(self.first.1, self.number()?));
            let same = flags & SAME != 0;
            self.values.clear();
            let texts = if same {
                self.names.ends.len() as i64
            } else {
                self.number()?.checked_mul(2).ok_or(Malformed)?
            };
            for _ in 0..texts {
                let text = self.item()?;
                self.values.push(text);
            }
            if self.number()? != texts + if same { 3 } else { 4 } {
                return Err(Malformed);
            }
            if flags & REMOVED != 0 {
                self.left.1 -= 1;
                continue;
            }
            self.left.0 -= 1;
            if same {
                f(id, &mut self.names.iter().zip(self.values.iter()));
            } else {
                let values = self.values.iter().skip(1).step_by(2);
                f(id, &mut self.values.iter().step_by(2).zip(values));
            }
            return Ok(true);
        }
    }
}

/// A part of an ID, by its difference to the node's. Servers let large differences wrap; the sink checks that
/// IDs ascend.
fn offset(first: u64, by: i64) -> u64 {
    first.wrapping_add_signed(by)
}

/// Builds the listpack of a node.
pub struct NodeWriter {
    bytes: Vec<u8>,
    elements: usize,
    first: (u64, u64),
    names: Vec<Vec<u8>>,
}

const HEADER: usize = 6;

impl NodeWriter {
    /// A node of so many entries. Its ID is that of the first, whose names are shared by those that have the
    /// same.
    pub fn new<'n>(first: (u64, u64), entries: u64, names: impl Iterator<Item = &'n [u8]>) -> NodeWriter {
        let names = names.map(<[u8]>::to_vec).collect();
        let mut node = NodeWriter { bytes: vec![0; HEADER], elements: 0, first, names };
        node.int(entries as i64);
        node.int(0);
        node.int(node.names.len() as i64);
        let names = std::mem::take(&mut node.names);
        names.iter().for_each(|name| node.text(name));
        node.names = names;
        node.int(0);
        node
    }

    /// Adds an entry. O(bytes).
    pub fn entry<'n>(
        &mut self,
        id: (u64, u64),
        fields: impl ExactSizeIterator<Item = (&'n [u8], &'n [u8])> + Clone,
    ) {
        let len = fields.len();
        let same = len == self.names.len()
            && fields.clone().zip(&self.names).all(|((name, _), known)| name == known);
        self.int(if same { SAME } else { 0 });
        self.int(id.0.wrapping_sub(self.first.0) as i64);
        self.int(id.1.wrapping_sub(self.first.1) as i64);
        if !same {
            self.int(len as i64);
        }
        for (name, value) in fields {
            if !same {
                self.text(name);
            }
            self.text(value);
        }
        self.int(if same { len as i64 + 3 } else { 2 * len as i64 + 4 });
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never true: a node has a header.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The listpack. None if it is too long for its header.
    pub fn finish(mut self) -> Option<Vec<u8>> {
        self.bytes.push(0xff);
        let total = u32::try_from(self.bytes.len()).ok()?;
        let elements = u16::try_from(self.elements).unwrap_or(u16::MAX);
        self.bytes[..4].copy_from_slice(&total.to_le_bytes());
        self.bytes[4..HEADER].copy_from_slice(&elements.to_le_bytes());
        Some(self.bytes)
    }

    fn text(&mut self, text: &[u8]) {
        // A canonical number is written as one, as servers do.
        let number =
            (text.len() <= 20).then(|| std::str::from_utf8(text).ok()?.parse::<i64>().ok()).flatten();
        if let Some(number) = number.filter(|number| itoa::Buffer::new().format(*number).as_bytes() == text) {
            return self.int(number);
        }
        let from = self.bytes.len();
        match text.len() {
            len @ 0..64 => self.bytes.push(0x80 | len as u8),
            len @ 64..4096 => self.bytes.extend([0xe0 | (len >> 8) as u8, len as u8]),
            len => {
                self.bytes.push(0xf0);
                self.bytes.extend_from_slice(&(len as u32).to_le_bytes());
            }
        }
        self.bytes.extend_from_slice(text);
        self.close(from);
    }

    fn int(&mut self, number: i64) {
        let from = self.bytes.len();
        let bytes = number.to_le_bytes();
        match number {
            0..=127 => self.bytes.push(number as u8),
            -4096..=4095 => {
                let bits = number as u16 & 0x1fff;
                self.bytes.extend([0xc0 | (bits >> 8) as u8, bits as u8]);
            }
            -0x8000..=0x7fff => self.wide(0xf1, &bytes[..2]),
            -0x80_0000..=0x7f_ffff => self.wide(0xf2, &bytes[..3]),
            -0x8000_0000..=0x7fff_ffff => self.wide(0xf3, &bytes[..4]),
            _ => self.wide(0xf4, &bytes),
        }
        self.close(from);
    }

    fn wide(&mut self, mark: u8, bytes: &[u8]) {
        self.bytes.push(mark);
        self.bytes.extend_from_slice(bytes);
    }

    /// Ends the element that began there.
    fn close(&mut self, from: usize) {
        let (back, len) = back_len(self.bytes.len() - from);
        self.bytes.extend_from_slice(&back[..len]);
        self.elements += 1;
    }
}
