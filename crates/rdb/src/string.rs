//! Lengths and strings of the format.

use crate::{Item, Malformed, lzf};
use std::borrow::Cow;

/// First bytes of a length.
const BITS_6: u8 = 0;
const BITS_14: u8 = 1;
const BITS_32: u8 = 0x80;
const BITS_64: u8 = 0x81;

/// First bytes of strings that do not start with a length.
const INT_8: u8 = 0xc0;
const INT_16: u8 = 0xc1;
const INT_32: u8 = 0xc2;
pub(crate) const COMPRESSED: u8 = 0xc3;

/// Appends a length.
pub fn put_len(out: &mut Vec<u8>, len: u64) {
    put_len_as_wide(out, len, len);
}

/// Appends a length, in as many bytes as `larger` would take.
pub(crate) fn put_len_as_wide(out: &mut Vec<u8>, len: u64, larger: u64) {
    match larger {
        0..0x40 => out.push(len as u8),
        0x40..0x4000 => out.extend_from_slice(&(0x4000 | len as u16).to_be_bytes()),
        0x4000..=0xffff_ffff => {
            out.push(BITS_32);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
        _ => {
            out.push(BITS_64);
            out.extend_from_slice(&len.to_be_bytes());
        }
    }
}

/// Appends a string: as a number if it is a canonical 32-bit integer, else as it is. O(length).
pub fn put_text(out: &mut Vec<u8>, bytes: &[u8]) {
    match parse_i32(bytes) {
        Some(number) => put_int(out, i64::from(number)),
        None => put_string(out, bytes),
    }
}

/// Appends the text of a number, as short as possible.
pub fn put_int(out: &mut Vec<u8>, number: i64) {
    if let Ok(number) = i8::try_from(number) {
        out.extend_from_slice(&[INT_8, number as u8]);
    } else if let Ok(number) = i16::try_from(number) {
        out.push(INT_16);
        out.extend_from_slice(&number.to_le_bytes());
    } else if let Ok(number) = i32::try_from(number) {
        out.push(INT_32);
        out.extend_from_slice(&number.to_le_bytes());
    } else {
        put_string(out, itoa::Buffer::new().format(number).as_bytes());
    }
}

/// The number with this canonical text.
fn parse_i32(text: &[u8]) -> Option<i32> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        [b'0'] if digits.len() == text.len() => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 10 => {}
        _ => return None,
    }
    let mut value = 0i64;
    for digit in digits {
        value = value * 10 + i64::from(digit.wrapping_sub(b'0'));
        if !digit.is_ascii_digit() {
            return None;
        }
    }
    i32::try_from(if digits.len() < text.len() { -value } else { value }).ok()
}

/// Appends a string unchanged: its length and its bytes.
pub fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads a body from front to back. After an error its position has no meaning.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(body: &'a [u8]) -> Reader<'a> {
        Reader { rest: body }
    }

    /// The bytes that are not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.rest.split_first().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*first)
    }

    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(n).ok_or(Malformed)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Reads a length. It may exceed the bytes there are: compare it before you take memory for it.
    pub fn len(&mut self) -> Result<u64, Malformed> {
        let first = self.byte()?;
        self.len_after(first)
    }

    fn len_after(&mut self, first: u8) -> Result<u64, Malformed> {
        match (first >> 6, first) {
            (BITS_6, _) => Ok(u64::from(first)),
            (BITS_14, _) => Ok(u64::from(first & 0x3f) << 8 | u64::from(self.byte()?)),
            (_, BITS_32) => Ok(u64::from(u32::from_be_bytes(self.array()?))),
            (_, BITS_64) => Ok(u64::from_be_bytes(self.array()?)),
            _ => Err(Malformed),
        }
    }

    /// Reads a string in any encoding. A string that stands there unchanged is borrowed.
    pub fn string(&mut self) -> Result<Cow<'a, [u8]>, Malformed> {
        Ok(match self.text()? {
            Text::Plain(bytes) => Cow::Borrowed(bytes),
            Text::Unpacked(bytes) => Cow::Owned(bytes),
            Text::Number(number) => Cow::Owned(itoa::Buffer::new().format(number).into()),
        })
    }

    /// As `string`, with numbers as numbers.
    pub(crate) fn text(&mut self) -> Result<Text<'a>, Malformed> {
        let first = self.byte()?;
        let number = match first {
            INT_8 => i64::from(i8::from_le_bytes(self.array()?)),
            INT_16 => i64::from(i16::from_le_bytes(self.array()?)),
            INT_32 => i64::from(i32::from_le_bytes(self.array()?)),
            COMPRESSED => {
                let packed = self.small_len()?;
                let unpacked = self.small_len()?;
                return lzf::unpack(self.bytes(packed)?, unpacked).map(Text::Unpacked);
            }
            _ => {
                let len = usize::try_from(self.len_after(first)?).map_err(|_| Malformed)?;
                return self.bytes(len).map(Text::Plain);
            }
        };
        Ok(Text::Number(number))
    }

    /// The unpacked length that the next string announces. Does not read it.
    pub(crate) fn unpacked_len(&self) -> Result<usize, Malformed> {
        let mut ahead = *self;
        match ahead.byte()? {
            INT_8 | INT_16 | INT_32 => Ok(0),
            COMPRESSED => {
                ahead.small_len()?;
                ahead.small_len()
            }
            first => usize::try_from(ahead.len_after(first)?).map_err(|_| Malformed),
        }
    }

    /// Skips a string without unpacking it. Returns the unpacked length that it announces.
    pub(crate) fn skip_string(&mut self) -> Result<usize, Malformed> {
        let unpacked = self.unpacked_len()?;
        let first = self.byte()?;
        let len = match first {
            INT_8 => 1,
            INT_16 => 2,
            INT_32 => 4,
            COMPRESSED => {
                let packed = self.small_len()?;
                self.small_len()?;
                packed
            }
            _ => usize::try_from(self.len_after(first)?).map_err(|_| Malformed)?,
        };
        self.bytes(len)?;
        Ok(unpacked)
    }

    fn small_len(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.len()?).map_err(|_| Malformed)
    }
}

/// A string that was read.
#[derive(Debug)]
pub(crate) enum Text<'a> {
    Plain(&'a [u8]),
    Unpacked(Vec<u8>),
    Number(i64),
}

impl Text<'_> {
    pub(crate) fn item(&self) -> Item<'_> {
        match self {
            Text::Plain(bytes) => Item::Bytes(bytes),
            Text::Unpacked(bytes) => Item::Bytes(bytes),
            Text::Number(number) => Item::Int(*number),
        }
    }

    /// The bytes, where a number is not allowed.
    pub(crate) fn bytes(&self) -> Result<&[u8], Malformed> {
        match self {
            Text::Plain(bytes) => Ok(bytes),
            Text::Unpacked(bytes) => Ok(bytes),
            Text::Number(_) => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_are_written_as_redis_writes_them() {
        let written = |len| {
            let mut out = Vec::new();
            put_len(&mut out, len);
            assert_eq!(Reader::new(&out).len(), Ok(len));
            out
        };
        assert_eq!(written(0), [0]);
        assert_eq!(written(63), [63]);
        assert_eq!(written(64), [0x40, 64]);
        assert_eq!(written(16_383), [0x7f, 0xff]);
        assert_eq!(written(16_384), [0x80, 0, 0, 0x40, 0]);
        assert_eq!(written(0xffff_ffff), [0x80, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(written(0x1_0000_0000), [0x81, 0, 0, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn every_encoding_of_a_string_is_read() {
        let read =
            |bytes: &[u8]| Reader::new(bytes).string().map(|s| String::from_utf8_lossy(&s).into_owned());
        assert_eq!(read(b"\x03abcd").as_deref(), Ok("abc"));
        assert_eq!(read(b"\xc0\xff").as_deref(), Ok("-1"));
        assert_eq!(read(b"\xc1\x00\x80").as_deref(), Ok("-32768"));
        assert_eq!(read(b"\xc2\x40\xe2\x01\x00").as_deref(), Ok("123456"));
        assert_eq!(read(b"\xc3\x06\x06\x02abc\x20\x02").as_deref(), Ok("abcabc"));
        for bad in
            [&b"\x03ab"[..], b"", b"\xc0", b"\xc4", b"\x82", b"\xc3\x07\x06\x02abc\x20\x02", b"\xc3\x01\xc0"]
        {
            assert_eq!(read(bad), Err(Malformed), "{bad:?}");
        }
        assert_eq!(read(b"\x81\xff\xff\xff\xff\xff\xff\xff\xff"), Err(Malformed));
    }

    proptest! {
        #[test]
        fn strings_come_back(bytes: Vec<u8>, len: u64) {
            let mut out = Vec::new();
            put_string(&mut out, &bytes);
            put_len(&mut out, len);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(&*reader.string().unwrap(), &bytes[..]);
            prop_assert_eq!(reader.len(), Ok(len));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.string().is_ok() {}
        }
    }
}
