//! Replies: all bytes for clients are made here.
//!
//! A `Reply` appends to one growing buffer, which the connection writes out once per turn. A handler calls
//! `map`, `double`, `null` and the like, and the protocol version decides the bytes:
//!
//! ```text
//! call          RESP3              RESP2
//! null          _                  $-1
//! null_array    _                  *-1
//! map(n)        %n                 *2n
//! set(n)        ~n                 *n
//! push(n)       >n                 *n
//! double(3.5)   ,3.5               $3 3.5
//! bool(true)    #t                 :1
//! verbatim      =7 txt:abc         $3 abc
//! big_number    (123               $3 123
//! ```
//!
//! An aggregate starts with its length. If that is known only afterwards, write the elements first and insert
//! the header at a [`Mark`]; this moves the bytes written since.
//!
//! Cost: `int`, `array` and `bulk` append one to three slices and branch once or twice. Lengths below 100 are
//! one store of fixed size. Eight digits are computed at once in a register and stored whole; the surplus is
//! then cut off. Numbers of more than ten digits are built on the stack, two digits per step. Figures: `cargo
//! run --release -p resp --example measure`.

use std::iter::{Copied, Peekable};
use std::slice::Iter;
use stdx::num::format_f64;

/// The longest header or integer line: type byte, 20 characters, CRLF.
const LINE_MAX: usize = 23;

/// A position in a [`Reply`], for inserting a header or returning to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(usize);

/// The bytes for one client, in its protocol version.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    buf: Vec<u8>,
    resp3: bool,
}

impl Reply {
    pub fn new(resp3: bool) -> Reply {
        Reply { buf: Vec::new(), resp3 }
    }

    /// A reply that appends to `buf`, to reuse its memory or to continue another reply.
    pub fn with_buffer(buf: Vec<u8>, resp3: bool) -> Reply {
        Reply { buf, resp3 }
    }

    pub fn resp3(&self) -> bool {
        self.resp3
    }

    /// Changes the protocol version from here on (HELLO).
    pub fn set_resp3(&mut self, resp3: bool) {
        self.resp3 = resp3;
    }

    // Lines.

    /// `+OK`
    #[inline]
    pub fn ok(&mut self) {
        self.buf.extend_from_slice(b"+OK\r\n");
    }

    /// A status line. Line breaks in `text` become spaces.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// A status line made of bytes that need not be UTF-8 (scripts).
    pub fn simple_bytes(&mut self, text: &[u8]) {
        self.line(b'+', text);
    }

    /// An error line. `text` starts with its code (`ERR ...`), without `-`. Line breaks at either end are
    /// dropped, others become spaces.
    pub fn error(&mut self, text: &str) {
        self.error_bytes(text.as_bytes());
    }

    /// An error line made of bytes that need not be UTF-8 (it may quote a client's argument).
    pub fn error_bytes(&mut self, text: &[u8]) {
        let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let start = text.iter().position(|byte| !is_break(byte)).unwrap_or(text.len());
        let end = text.iter().rposition(|byte| !is_break(byte)).map_or(start, |last| last + 1);
        self.line(b'-', &text[start..end]);
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.buf.reserve(text.len() + 3);
        self.buf.push(kind);
        let start = self.buf.len();
        self.buf.extend_from_slice(text);
        if memchr::memchr2(b'\r', b'\n', text).is_some() {
            let written = &mut self.buf[start..];
            written.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')).for_each(|byte| *byte = b' ');
        }
        self.buf.extend_from_slice(b"\r\n");
    }

    // Scalars.

    #[inline]
    pub fn int(&mut self, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.header(b':', value),
            Err(_) => {
                let mut line = Backwards::new();
                line.put(b"\r\n");
                line.number(value.unsigned_abs());
                line.put(b":-");
                self.buf.extend_from_slice(line.text());
            }
        }
    }

    /// A bulk: `$<length>`, then the bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.buf.reserve(bytes.len() + LINE_MAX + 2);
        self.header(b'$', bytes.len() as u64);
        self.buf.extend_from_slice(bytes);
        self.buf.extend_from_slice(b"\r\n");
    }

    /// A bulk whose bytes lie in two places.
    pub fn bulk_joined(&mut self, (first, second): (&[u8], &[u8])) {
        self.buf.reserve(first.len() + second.len() + LINE_MAX + 2);
        self.header(b'$', (first.len() + second.len()) as u64);
        self.buf.extend_from_slice(first);
        self.buf.extend_from_slice(second);
        self.buf.extend_from_slice(b"\r\n");
    }

    /// A bulk, or null for `None`.
    #[inline]
    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// A bulk with the decimal digits of `value`.
    #[inline]
    pub fn bulk_int(&mut self, value: i64) {
        let mut line = [0; INT_MAX];
        let end = self.buf.len() + put_bulk_int(&mut line, value);
        // A fixed size is copied with two stores; the surplus is cut off.
        self.buf.extend_from_slice(&line);
        self.buf.truncate(end);
    }

    /// As `bulk_int`, for many numbers. Room is made once for all. For neighbours within 10,000 only four
    /// digits are computed.
    pub fn bulk_ints(&mut self, values: &[i64]) {
        let start = self.buf.len();
        self.buf.resize(start + values.len() * INT_MAX, 0);
        let (room, mut at) = (&mut self.buf[start..], 0);
        let mut values = values.iter().copied().peekable();
        while let Some(value) = values.next() {
            let len = put_bulk_int(line_at(room, at), value);
            let near = |next: &i64| (next.wrapping_sub(value) as u64) < BLOCK;
            if values.peek().is_some_and(near) && value >= BLOCK as i64 {
                at += put_block(room, at, len, value, &mut values);
            }
            at += len;
        }
        self.buf.truncate(start + at);
    }

    /// Null. (RESP2: the null bulk.)
    #[inline]
    pub fn null(&mut self) {
        self.buf.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Null in place of an array. (RESP2: the null array.)
    pub fn null_array(&mut self) {
        self.buf.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// A double, in the fewest digits that read back as `value`. (RESP2: a bulk.)
    pub fn double(&mut self, value: f64) {
        if self.resp3 {
            self.buf.push(b',');
            format_f64(value, &mut self.buf);
            self.buf.extend_from_slice(b"\r\n");
            return;
        }
        let start = self.buf.len();
        format_f64(value, &mut self.buf);
        let digits = self.buf.len() - start;
        self.header(b'$', digits as u64);
        self.buf[start..].rotate_left(digits);
        self.buf.extend_from_slice(b"\r\n");
    }

    /// A double in digits of the caller's choice. (RESP2: a bulk.)
    pub fn double_text(&mut self, digits: &str) {
        match self.resp3 {
            true => self.line(b',', digits.as_bytes()),
            false => self.bulk(digits.as_bytes()),
        }
    }

    /// A boolean. (RESP2: 1 or 0.)
    pub fn bool(&mut self, value: bool) {
        self.buf.extend_from_slice(match (self.resp3, value) {
            (true, true) => b"#t\r\n",
            (true, false) => b"#f\r\n",
            (false, true) => b":1\r\n",
            (false, false) => b":0\r\n",
        });
    }

    /// A number of any size, given as decimal text. (RESP2: a bulk.)
    pub fn big_number(&mut self, digits: &str) {
        if self.resp3 { self.line(b'(', digits.as_bytes()) } else { self.bulk(digits.as_bytes()) }
    }

    /// Text with a format of three letters, `txt` or `mkd`. (RESP2: a bulk.) Other lengths are cut or padded.
    pub fn verbatim(&mut self, format: &str, text: &[u8]) {
        self.buf.reserve(text.len() + 4 + LINE_MAX + 2);
        self.begin_verbatim(format, text.len());
        self.bulk_part(text);
        self.end_bulk();
    }

    /// Begins a verbatim text that is written in pieces, as [`begin_bulk`](Self::begin_bulk) does for a bulk.
    pub fn begin_verbatim(&mut self, format: &str, len: usize) {
        if !self.resp3 {
            return self.begin_bulk(len);
        }
        let mut prefix = [b' ', b' ', b' ', b':'];
        prefix[..3].iter_mut().zip(format.bytes()).for_each(|(to, from)| *to = from);
        self.header(b'=', len as u64 + 4);
        self.buf.extend_from_slice(&prefix);
    }

    // Aggregates: these write the header, and the caller then writes the elements.

    #[inline]
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len as u64);
    }

    /// A map of `pairs` keys and values. (RESP2: an array of twice as many elements.)
    pub fn map(&mut self, pairs: usize) {
        let (kind, len) = self.map_header(pairs);
        self.header(kind, len);
    }

    /// A set. (RESP2: an array.)
    pub fn set(&mut self, len: usize) {
        self.header(self.set_kind(), len as u64);
    }

    /// An out-of-band message. (RESP2: an array.)
    pub fn push(&mut self, len: usize) {
        self.header(if self.resp3 { b'>' } else { b'*' }, len as u64);
    }

    /// Attributes of the reply that follows: `pairs` keys and values. Returns whether to write them. In
    /// RESP2, which has no attributes, nothing is written.
    #[must_use = "in RESP2 the pairs must not be written"]
    pub fn attribute(&mut self, pairs: usize) -> bool {
        if self.resp3 {
            self.header(b'|', pairs as u64);
        }
        self.resp3
    }

    fn map_header(&self, pairs: usize) -> (u8, u64) {
        if self.resp3 { (b'%', pairs as u64) } else { (b'*', 2 * pairs as u64) }
    }

    fn set_kind(&self) -> u8 {
        if self.resp3 { b'~' } else { b'*' }
    }

    // Aggregates with a length that is known only afterwards.

    /// The current end of the reply.
    pub fn mark(&self) -> Mark {
        Mark(self.buf.len())
    }

    /// Turns everything written since `mark` into an array of `len` elements. O(bytes since).
    pub fn array_at(&mut self, mark: Mark, len: usize) {
        self.header_at(mark, b'*', len as u64);
    }

    /// Turns everything written since `mark` into a map of `pairs` pairs. O(bytes since).
    pub fn map_at(&mut self, mark: Mark, pairs: usize) {
        let (kind, len) = self.map_header(pairs);
        self.header_at(mark, kind, len);
    }

    /// Turns everything written since `mark` into a set of `len` elements. O(bytes since).
    pub fn set_at(&mut self, mark: Mark, len: usize) {
        self.header_at(mark, self.set_kind(), len as u64);
    }

    fn header_at(&mut self, mark: Mark, kind: u8, len: u64) {
        let end = self.buf.len();
        self.header(kind, len);
        let header = self.buf.len() - end;
        self.buf[mark.0..].rotate_right(header);
    }

    /// Drops everything written since `mark`.
    pub fn rewind(&mut self, mark: Mark) {
        self.buf.truncate(mark.0);
    }

    // A bulk in pieces: `begin_bulk`, pieces with the announced total length, `end_bulk`.

    pub fn begin_bulk(&mut self, len: usize) {
        self.header(b'$', len as u64);
    }

    pub fn bulk_part(&mut self, part: &[u8]) {
        self.buf.extend_from_slice(part);
    }

    pub fn bulk_zeros(&mut self, len: usize) {
        self.buf.resize(self.buf.len() + len, 0);
    }

    pub fn end_bulk(&mut self) {
        self.buf.extend_from_slice(b"\r\n");
    }

    /// Appends whole replies that were encoded earlier in the same protocol version, such as a message for
    /// many subscribers.
    pub fn encoded(&mut self, replies: &[u8]) {
        self.buf.extend_from_slice(replies);
    }

    // The buffer.

    pub fn as_bytes(&self) -> &[u8] {
        &self.buf
    }

    /// Bytes written.
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Drops everything beyond the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.buf.truncate(len);
    }

    pub fn clear(&mut self) {
        self.buf.clear();
    }

    /// Makes room for `bytes` more, for a reply that is known to be large.
    pub fn reserve(&mut self, bytes: usize) {
        self.buf.reserve(bytes);
    }

    pub fn capacity(&self) -> usize {
        self.buf.capacity()
    }

    /// Takes the bytes. Leaves an empty buffer without memory.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buf)
    }

    /// Exchanges the bytes with those of `other`, so that a connection can use two buffers.
    pub fn swap(&mut self, other: &mut Vec<u8>) {
        std::mem::swap(&mut self.buf, other);
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.buf
    }

    /// Appends a type byte, a number, CRLF.
    #[inline]
    fn header(&mut self, kind: u8, value: u64) {
        if value < 10 {
            self.buf.extend_from_slice(&[kind, b'0' + value as u8, b'\r', b'\n']);
        } else if value < 100 {
            let value = value as u8;
            self.buf.extend_from_slice(&[kind, b'0' + value / 10, b'0' + value % 10, b'\r', b'\n']);
        } else {
            self.long_header(kind, value);
        }
    }

    fn long_header(&mut self, kind: u8, value: u64) {
        if value < EIGHT_DIGITS_END {
            let (digits, len) = leading_digits(value as u32);
            self.padded(u128::from(kind) | digits << 8, 1 + len);
        } else {
            let mut line = Backwards::new();
            line.put(b"\r\n");
            line.number(value);
            line.put(&[kind]);
            self.buf.extend_from_slice(line.text());
        }
    }

    /// Appends the first (lowest) `len` bytes of `text`. All of it is stored, then the surplus is cut off.
    #[inline]
    fn padded(&mut self, text: u128, len: usize) {
        let end = self.buf.len() + len;
        self.buf.extend_from_slice(&text.to_le_bytes());
        self.buf.truncate(end);
        self.buf.extend_from_slice(b"\r\n");
    }
}

/// `00`, `01`, ... `99`.
static PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut i = 0;
    while i < 100 {
        pairs[i] = [b'0' + (i / 10) as u8, b'0' + (i % 10) as u8];
        i += 1;
    }
    pairs
};

/// Numbers that differ only in their last digits, and how many digits these are.
const BLOCK: u64 = 10_000;
const BLOCK_DIGITS: usize = 4;

/// Room for any integer as a bulk, with the surplus that is stored behind it.
const INT_MAX: usize = 32;

/// The room for an integer at `at`, made earlier by the caller.
#[inline]
fn line_at(room: &mut [u8], at: usize) -> &mut [u8; INT_MAX] {
    room[at..].first_chunk_mut().expect("room was made for all")
}

/// Writes the next numbers that differ from `value` only in the last four digits, behind `value`, which
/// stands at `at` in `len` bytes. Returns how many bytes it wrote.
fn put_block(
    room: &mut [u8],
    at: usize,
    len: usize,
    value: i64,
    next: &mut Peekable<Copied<Iter<'_, i64>>>,
) -> usize {
    let head = *line_at(room, at);
    let block = value as u64 / BLOCK * BLOCK;
    let lower_at = len - BLOCK_DIGITS - 2;
    let mut end = at + len;
    while let Some(value) = next.next_if(|&next| next > 0 && (next as u64).wrapping_sub(block) < BLOCK) {
        let line = line_at(room, end);
        *line = head;
        let lower = (value as u64 - block) as usize;
        line[lower_at..lower_at + 2].copy_from_slice(&PAIRS[lower / 100]);
        line[lower_at + 2..lower_at + 4].copy_from_slice(&PAIRS[lower % 100]);
        end += len;
    }
    end - at - len
}

/// Writes a bulk with the decimal digits of `value` to the start of a line and returns its length. Numbers of
/// 9 and 10 digits, the most common 32-bit numbers, take a path without a branch on the length.
#[inline]
fn put_bulk_int(line: &mut [u8; INT_MAX], value: i64) -> usize {
    let value = value as u64;
    if value < EIGHT_DIGITS_END {
        let (digits, len) = leading_digits(value as u32);
        let header = u32::from_le_bytes([b'$', b'0' + len as u8, b'\r', b'\n']);
        let text = u128::from(header) | digits << 32 | u128::from(CRLF) << (32 + 8 * len);
        line[..16].copy_from_slice(&text.to_le_bytes());
        4 + len + 2
    } else if value < TEN_DIGITS_END {
        let head = HEADS[(value / EIGHT_DIGITS_END) as usize];
        let lower = eight_digits((value % EIGHT_DIGITS_END) as u32) | ZEROS;
        let len = usize::from(head[7] & 7);
        line[..8].copy_from_slice(&head);
        line[len..len + 8].copy_from_slice(&lower.to_le_bytes());
        line[len + 8..len + 10].copy_from_slice(&CRLF.to_le_bytes());
        len + 10
    } else {
        put_long_bulk_int(line, value as i64)
    }
}

fn put_long_bulk_int(out: &mut [u8; INT_MAX], value: i64) -> usize {
    let mut line = Backwards::new();
    line.put(b"\r\n");
    let end = line.start;
    line.number(value.unsigned_abs());
    if value < 0 {
        line.put(b"-");
    }
    let digits = end - line.start;
    line.put(b"\r\n");
    line.number(digits as u64);
    line.put(b"$");
    out[..line.text().len()].copy_from_slice(line.text());
    line.text().len()
}

/// The start of a bulk whose last eight digits follow, by the one or two digits before them; and its length.
static HEADS: [[u8; 8]; 100] = {
    let mut heads = [[0; 8]; 100];
    let mut i = 0;
    while i < 100 {
        let (tens, ones) = (b'0' + (i / 10) as u8, b'0' + (i % 10) as u8);
        heads[i] = if i < 10 {
            [b'$', b'9', b'\r', b'\n', ones, 0, 0, 5]
        } else {
            [b'$', b'1', b'0', b'\r', b'\n', tens, ones, 7]
        };
        i += 1;
    }
    heads
};

const CRLF: u16 = u16::from_le_bytes(*b"\r\n");
/// Eight times the digit 0.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// A short text that is written from its end.
struct Backwards {
    bytes: [u8; Backwards::SIZE],
    start: usize,
}

impl Backwards {
    /// The longest text: a bulk of an integer of 20 characters, `$20 CRLF <digits> CRLF`.
    const SIZE: usize = 32;

    #[inline]
    fn new() -> Backwards {
        Backwards { bytes: [0; Backwards::SIZE], start: Backwards::SIZE }
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.start -= bytes.len();
        self.bytes[self.start..self.start + bytes.len()].copy_from_slice(bytes);
    }

    #[inline]
    fn number(&mut self, mut value: u64) {
        while value >= 100 {
            self.put(&PAIRS[(value % 100) as usize]);
            value /= 100;
        }
        if value >= 10 {
            self.put(&PAIRS[value as usize]);
        } else {
            self.put(&[b'0' + value as u8]);
        }
    }

    #[inline]
    fn text(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// Numbers below this have at most eight digits.
const EIGHT_DIGITS_END: u64 = 100_000_000;
const TEN_DIGITS_END: u64 = 100 * EIGHT_DIGITS_END;

/// The text of `value` (below 10^8), first byte lowest, and its length.
#[inline]
fn leading_digits(value: u32) -> (u128, usize) {
    let digits = eight_digits(value);
    let zeros = (digits | 1 << 56).trailing_zeros() / 8;
    (u128::from((digits | ZEROS) >> (8 * zeros)), 8 - zeros as usize)
}

/// The eight digits of `value` (below 10^8) as numbers 0 to 9, the first digit in the lowest byte.
///
/// All at once: the word is split into two halves of four digits, then quarters of two, then eighths. Each
/// step is one multiplication, in place of a division per part.
#[inline]
fn eight_digits(value: u32) -> u64 {
    debug_assert!(value < 100_000_000);
    let halves = u64::from(value / 10_000) | u64::from(value % 10_000) << 32;
    // x * 10486 >> 20 is x / 100 for x < 10^4, and x * 103 >> 10 is x / 10 for x < 100.
    let hundreds = ((halves * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let quarters = hundreds | (halves - hundreds * 100) << 16;
    let tens = ((quarters * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (quarters - tens * 10) << 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn both(write: impl Fn(&mut Reply)) -> (String, String) {
        let text = |resp3| {
            let mut reply = Reply::new(resp3);
            write(&mut reply);
            String::from_utf8(reply.take()).unwrap()
        };
        (text(false), text(true))
    }

    #[test]
    fn each_version_gets_its_own_bytes() {
        type Write = fn(&mut Reply);
        let table: &[(Write, &str, &str)] = &[
            (|r| r.ok(), "+OK\r\n", "+OK\r\n"),
            (|r| r.simple("a\r\nb"), "+a  b\r\n", "+a  b\r\n"),
            (|r| r.error("ERR a\r\nb\n\r"), "-ERR a  b\r\n", "-ERR a  b\r\n"),
            (|r| r.error("\r\n"), "-\r\n", "-\r\n"),
            (|r| r.int(7), ":7\r\n", ":7\r\n"),
            (|r| r.int(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"),
            (|r| r.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n"),
            (|r| r.bulk_int(-120), "$4\r\n-120\r\n", "$4\r\n-120\r\n"),
            (|r| r.bulk_int(i64::MIN), "$20\r\n-9223372036854775808\r\n", "$20\r\n-9223372036854775808\r\n"),
            (|r| r.null(), "$-1\r\n", "_\r\n"),
            (|r| r.null_array(), "*-1\r\n", "_\r\n"),
            (|r| r.bulk_or_null(None), "$-1\r\n", "_\r\n"),
            (|r| r.double(3.5), "$3\r\n3.5\r\n", ",3.5\r\n"),
            (|r| r.double(f64::INFINITY), "$3\r\ninf\r\n", ",inf\r\n"),
            (|r| r.double(1.0 / 3.0), "$18\r\n0.3333333333333333\r\n", ",0.3333333333333333\r\n"),
            (|r| r.bool(true), ":1\r\n", "#t\r\n"),
            (|r| r.bool(false), ":0\r\n", "#f\r\n"),
            (|r| r.big_number("123"), "$3\r\n123\r\n", "(123\r\n"),
            (|r| r.verbatim("txt", b"abc"), "$3\r\nabc\r\n", "=7\r\ntxt:abc\r\n"),
            (|r| r.array(3), "*3\r\n", "*3\r\n"),
            (|r| r.map(6), "*12\r\n", "%6\r\n"),
            (|r| r.set(100), "*100\r\n", "~100\r\n"),
            (|r| r.push(3), "*3\r\n", ">3\r\n"),
            (|r| assert_eq!(r.attribute(1), r.resp3()), "", "|1\r\n"),
        ];
        for (write, resp2, resp3) in table {
            assert_eq!(both(write), (resp2.to_string(), resp3.to_string()));
        }
    }

    #[test]
    fn lengths_may_come_afterwards_and_replies_may_be_taken_back() {
        let mut reply = Reply::new(true);
        reply.ok();
        let mark = reply.mark();
        (0..12).for_each(|i| reply.int(i));
        reply.map_at(mark, 6);
        assert!(reply.as_bytes().starts_with(b"+OK\r\n%6\r\n:0\r\n:1\r\n"));
        assert!(reply.as_bytes().ends_with(b":9\r\n:10\r\n:11\r\n"));
        reply.rewind(mark);
        reply.array_at(mark, 0);
        reply.begin_bulk(5);
        reply.bulk_part(b"ab");
        reply.bulk_zeros(3);
        reply.end_bulk();
        assert_eq!(reply.as_bytes(), b"+OK\r\n*0\r\n$5\r\nab\0\0\0\r\n");
    }

    #[test]
    fn the_largest_integer_is_not_beside_the_smallest() {
        let mut reply = Reply::new(false);
        reply.bulk_ints(&[i64::MAX - 1, i64::MAX, i64::MIN, 9_999, 10_000, 10_001]);
        let texts =
            ["9223372036854775806", "9223372036854775807", "-9223372036854775808", "9999", "10000", "10001"];
        let expect: String = texts.map(|text| format!("${}\r\n{text}\r\n", text.len())).concat();
        assert_eq!(reply.take(), expect.into_bytes());
    }

    proptest! {
        #[test]
        fn numbers_are_decimal(value: i64, shift in 0u32..64) {
            let value = value >> shift;
            let mut reply = Reply::new(false);
            reply.int(value);
            prop_assert_eq!(reply.take(), format!(":{value}\r\n").into_bytes());
            reply.bulk_int(value);
            let text = value.to_string();
            prop_assert_eq!(reply.take(), format!("${}\r\n{text}\r\n", text.len()).into_bytes());
            let len = (value as u64 >> 1) as usize;
            reply.array(len);
            prop_assert_eq!(reply.take(), format!("*{len}\r\n").into_bytes());
        }

        #[test]
        fn integers_of_all_lengths_are_the_decimal_ones(digits in 0u32..19, value in any::<i64>()) {
            for value in [value % 10i64.pow(digits), 10i64.pow(digits), 10i64.pow(digits) - 1] {
                let mut reply = Reply::new(false);
                reply.bulk_int(value);
                let text = value.to_string();
                prop_assert_eq!(reply.take(), format!("${}\r\n{text}\r\n", text.len()).into_bytes());
            }
        }

        #[test]
        fn many_integers_are_one_after_the_other(values: Vec<i64>, shift in 0u32..64) {
            let values: Vec<i64> = values.into_iter().map(|value| value >> shift).collect();
            let (mut one, mut many) = (Reply::new(false), Reply::new(false));
            [&mut one, &mut many].into_iter().for_each(Reply::ok);
            values.iter().for_each(|&value| one.bulk_int(value));
            many.bulk_ints(&values);
            prop_assert_eq!(one.take(), many.take());
        }

        #[test]
        fn integers_near_each_other_are_the_decimal_ones(
            start in any::<i64>(),
            shift in 0u32..64,
            steps in prop::collection::vec(-300i64..5_000, 0..64),
        ) {
            let mut values = vec![start >> shift];
            values.extend(steps.iter().scan(start >> shift, |value, step| {
                *value = value.wrapping_add(*step);
                Some(*value)
            }));
            let mut many = Reply::new(false);
            many.bulk_ints(&values);
            let texts = values.iter().map(i64::to_string);
            let expect: String = texts.map(|text| format!("${}\r\n{text}\r\n", text.len())).collect();
            prop_assert_eq!(many.take(), expect.into_bytes());
        }

        #[test]
        fn eight_digits_are_the_decimal_ones(value in 0u32..100_000_000) {
            let digits = eight_digits(value).to_le_bytes().map(|digit| (b'0' + digit) as char);
            prop_assert_eq!(String::from_iter(digits), format!("{value:08}"));
        }

        #[test]
        fn bulks_carry_their_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut reply = Reply::new(false);
            reply.bulk(&bytes);
            let mut expect = format!("${}\r\n", bytes.len()).into_bytes();
            expect.extend_from_slice(&bytes);
            expect.extend_from_slice(b"\r\n");
            prop_assert_eq!(reply.take(), expect);
        }
    }
}
