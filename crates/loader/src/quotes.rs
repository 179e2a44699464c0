//! Finds misplaced quotes in CSV: bytes are checked on their way to the reader, which itself accepts them.
//!
//! ```text
//! file ─► Watched ─► csv::Reader ─► record, up to some offset ─► is there a fault before it?
//! ```
//!
//! - Q1: fields are separated as the reader separates them, so a fault lies in the record that it spoils.
//! - Q2: a quote that is never closed does not fill the memory: a field ends at [`FIELD_MAX`] bytes.
//!
//! Cost: O(bytes); without quotes, a search for them and for line ends.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::rc::Rc;

/// Longest quoted field; servers take no longer value.
const FIELD_MAX: u64 = 512 << 20;

pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A misplaced quote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where the quoted field begins.
    pub offset: u64,
    pub line: u64,
    /// The quote is never closed; otherwise other text follows the closed one.
    pub is_open: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Field {
    #[default]
    Start,
    Plain,
    Quoted,
    /// Behind a quote within a quoted field: the field's end, or the first of two quotes.
    Quote,
}

/// State of the check after the bytes so far.
#[derive(Debug)]
pub struct Quotes {
    delimiter: u8,
    field: Field,
    offset: u64,
    line: u64,
    /// Offset and line of the field's first quote.
    began: (u64, u64),
    faults: VecDeque<Fault>,
}

impl Quotes {
    /// The state before the first byte.
    pub fn new(delimiter: u8) -> Quotes {
        let (field, faults) = (Field::Start, VecDeque::new());
        Quotes { delimiter, field, offset: 0, line: 1, began: (0, 0), faults }
    }

    /// Takes the first fault before this offset.
    pub fn fault_before(&mut self, offset: u64) -> Option<Fault> {
        let found = self.faults.front().copied().filter(|fault| fault.offset < offset)?;
        self.faults.retain(|fault| fault.offset >= offset);
        Some(found)
    }

    fn look_at(&mut self, bytes: &[u8]) {
        let quoted = matches!(self.field, Field::Quoted | Field::Quote);
        if !quoted && !bytes.contains(&b'"') {
            let Some(last) = bytes.last() else { return };
            self.field = if self.ends_field(*last) { Field::Start } else { Field::Plain };
            self.offset += bytes.len() as u64;
            self.line += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            return;
        }
        let skipped = if self.offset == 0 && bytes.starts_with(BYTE_ORDER_MARK) { 3 } else { 0 };
        self.offset += skipped as u64;
        bytes[skipped..].iter().for_each(|byte| self.step(*byte));
    }

    fn ends_field(&self, byte: u8) -> bool {
        byte == self.delimiter || matches!(byte, b'\n' | b'\r')
    }

    fn step(&mut self, byte: u8) {
        self.field = match (self.field, byte) {
            (Field::Start, b'"') => {
                self.began = (self.offset, self.line);
                Field::Quoted
            }
            (Field::Quoted, b'"') => Field::Quote,
            (Field::Quote, b'"') | (Field::Quoted, _) => Field::Quoted,
            (_, byte) if self.ends_field(byte) => Field::Start,
            (Field::Quote, _) => {
                self.fault(false);
                Field::Plain
            }
            (Field::Start | Field::Plain, _) => Field::Plain,
        };
        self.offset += 1;
        self.line += u64::from(byte == b'\n');
    }

    fn fault(&mut self, is_open: bool) {
        let (offset, line) = self.began;
        self.faults.push_back(Fault { offset, line, is_open });
    }

    /// Notes that there are no more bytes.
    fn end(&mut self) {
        if self.field == Field::Quoted {
            self.fault(true);
            self.field = Field::Start;
        }
    }
}

/// An input whose quotes are checked while it is read.
pub struct Watched {
    input: Box<dyn Read>,
    quotes: Rc<RefCell<Quotes>>,
}

impl Watched {
    pub fn new(input: Box<dyn Read>, delimiter: u8) -> (Watched, Rc<RefCell<Quotes>>) {
        let quotes = Rc::new(RefCell::new(Quotes::new(delimiter)));
        (Watched { input, quotes: quotes.clone() }, quotes)
    }
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        let mut quotes = self.quotes.borrow_mut();
        if count == 0 && !buffer.is_empty() {
            quotes.end();
        }
        quotes.look_at(&buffer[..count]);
        if quotes.field == Field::Quoted && quotes.offset - quotes.began.0 > FIELD_MAX {
            let line = quotes.began.1;
            return Err(io::Error::other(format!(
                "line {line}: the quote that begins there is not closed within 512 MB"
            )));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The faults of a text read in pieces of this length: line, and whether the quote stays open.
    fn faults(text: &str, piece: usize) -> Vec<(u64, bool)> {
        let mut quotes = Quotes::new(b',');
        text.as_bytes().chunks(piece).for_each(|bytes| quotes.look_at(bytes));
        quotes.end();
        let all = std::iter::from_fn(|| {
            let next = quotes.faults.front()?.offset + 1;
            quotes.fault_before(next)
        });
        all.map(|fault| (fault.line, fault.is_open)).collect()
    }

    #[test]
    fn quotes_that_do_not_fit_are_found_however_the_text_comes() {
        for (text, expected) in [
            ("a,b\n1,\"x\"\r\n2,\"y \"\"z\"\"\"\n", &[][..]),
            ("1,5\" pipe\n2, \"x\"\n", &[]),
            ("a\n\"x\ny\"\nb\n\"open\nto the end", &[(5, true)]),
            ("1,\"a\"b\n2,\"c\nd\" ,3\n", &[(1, false), (2, false)]),
            ("1,\"a\"b\"c,d\"\n", &[(1, false)]),
            ("\"", &[(1, true)]),
            ("\"\"", &[]),
            ("1,\"a\"\"", &[(1, true)]),
            ("\u{feff}\"id\",x\n", &[]),
        ] {
            assert_eq!(faults(text, text.len()), expected, "{text:?}");
            if !text.starts_with('\u{feff}') {
                (1..text.len())
                    .for_each(|piece| assert_eq!(faults(text, piece), expected, "{text:?} by {piece}"));
            }
        }
    }
}
