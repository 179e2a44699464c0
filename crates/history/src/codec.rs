//! Numbers, texts and columns as bytes.
//!
//! ```text
//! number   7 bits a byte, lowest first, the top bit: more follows
//! column   differences of neighbours, zigzag; a run of zeros is 0 and its length less one
//! table    a bit for each column that is not all zero, then these columns
//! ```
//!
//! A reader takes bytes from a disk: every length is checked, and nothing is allocated for a length before its
//! bytes are seen.

/// Bytes being written.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    /// Writes a text, at most `max` bytes of it.
    pub fn text(&mut self, text: &[u8], max: usize) {
        let text = &text[..text.len().min(max)];
        self.number(text.len() as u64);
        self.0.extend_from_slice(text);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Writes a table: `columns` columns of `rows.len()` numbers each. O(numbers)
    pub fn table(&mut self, rows: &[Box<[u64]>], columns: usize) {
        let at = |row: &[u64], column: usize| row.get(column).copied().unwrap_or(0);
        for first in (0..columns).step_by(8) {
            let here = first..columns.min(first + 8);
            let bits = here.filter(|column| rows.iter().any(|row| at(row, *column) != 0));
            self.0.push(bits.fold(0, |bits, column| bits | 1 << (column - first)));
        }
        for column in 0..columns {
            if rows.iter().any(|row| at(row, column) != 0) {
                self.column(rows.iter().map(|row| at(row, column)));
            }
        }
    }

    fn column(&mut self, numbers: impl Iterator<Item = u64>) {
        let (mut before, mut zeros) = (0u64, 0u64);
        for number in numbers {
            let step = zigzag(number.wrapping_sub(before));
            before = number;
            if step == 0 {
                zeros += 1;
                continue;
            }
            self.zeros(&mut zeros);
            self.number(step);
        }
        self.zeros(&mut zeros);
    }

    fn zeros(&mut self, run: &mut u64) {
        if *run > 0 {
            self.0.push(0);
            self.number(*run - 1);
            *run = 0;
        }
    }
}

/// A difference with its sign in the lowest bit.
fn zigzag(difference: u64) -> u64 {
    let signed = difference as i64;
    ((signed << 1) ^ (signed >> 63)) as u64
}

fn unzigzag(n: u64) -> u64 {
    (n >> 1) ^ (n & 1).wrapping_neg()
}

/// Bytes being read. Each function returns None if they are not what a [`Writer`] wrote.
#[derive(Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn number(&mut self) -> Option<u64> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(n);
            }
        }
        None
    }

    /// A number that is at most `max`.
    pub fn count(&mut self, max: usize) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|n| *n <= max)
    }

    pub fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.count(self.0.len())?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(text)
    }

    /// A table of `rows` rows and `columns` columns. O(numbers)
    pub fn table(&mut self, rows: usize, columns: usize) -> Option<Vec<Box<[u64]>>> {
        let mut bits = Reader(self.0.get(..columns.div_ceil(8))?);
        self.0 = &self.0[columns.div_ceil(8)..];
        let mut table: Vec<Box<[u64]>> = (0..rows).map(|_| vec![0; columns].into_boxed_slice()).collect();
        for first in (0..columns).step_by(8) {
            let byte = bits.byte()?;
            for column in first..columns.min(first + 8) {
                if byte & 1 << (column - first) != 0 {
                    self.column(&mut table, column)?;
                }
            }
        }
        Some(table)
    }

    fn column(&mut self, table: &mut [Box<[u64]>], column: usize) -> Option<()> {
        let (mut number, mut at) = (0u64, 0);
        while at < table.len() {
            let step = self.number()?;
            let run = if step == 0 { self.count(table.len() - at - 1)? + 1 } else { 1 };
            number = number.wrapping_add(unzigzag(step));
            table[at..at + run].iter_mut().for_each(|row| row[column] = number);
            at += run;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_written_is_read(
            rows in proptest::collection::vec(proptest::collection::vec(prop_oneof![
                4 => Just(0u64), 2 => 0u64..300, 1 => any::<u64>()], 13), 0..70),
            text in proptest::collection::vec(any::<u8>(), 0..40),
            number in any::<u64>(),
        ) {
            let rows: Vec<Box<[u64]>> = rows.into_iter().map(Vec::into_boxed_slice).collect();
            let mut out = Writer::default();
            out.number(number);
            out.table(&rows, 13);
            out.text(&text, 20);
            let bytes = out.into_bytes();
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.number(), Some(number));
            prop_assert_eq!(reader.table(rows.len(), 13), Some(rows));
            prop_assert_eq!(reader.text(), Some(&text[..text.len().min(20)]));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn hostile_bytes_are_refused_or_read_but_never_more(
            bytes in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            let mut reader = Reader::new(&bytes);
            let _ = reader.table(60, 100);
            while reader.text().is_some() {}
            let _ = reader.number();
        }
    }

    #[test]
    fn a_calm_column_takes_some_bytes_only() {
        let rows: Vec<Box<[u64]>> = (0..60).map(|_| vec![1_000_000, 0].into_boxed_slice()).collect();
        let mut out = Writer::default();
        out.table(&rows, 2);
        assert!(out.len() <= 7, "{}", out.len());
    }
}
