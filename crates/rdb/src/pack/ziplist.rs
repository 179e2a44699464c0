//! Ziplists, the forerunners of listpacks (until Redis 6.2).
//!
//! ```text
//! bytes in all, u32 │ start of the last element, u32 │ elements, u16 (65535: count them) │ element … │ 0xff
//! element: length of the one before (1 byte, or 0xfe and 4) │ encoding and data
//!
//! 00llllll  text of l bytes      01llllll + 1  text          10______ + 4   text, lengths big-endian
//! c0 d0 e0  + 2, 4, 8 bytes, signed                          f0 + 3, fe + 1 bytes, signed f1 to fd   0 to 12
//! ```

use super::int;
use crate::{Item, Malformed, Reader};

const END: u8 = 0xff;
const LONG_BEFORE: u8 = 0xfe;
const UNKNOWN: u16 = u16::MAX;
const HEADER: usize = 10;

/// The elements of a ziplist.
pub(crate) struct Ziplist<'a> {
    rest: Reader<'a>,
    len: usize,
    last_at: usize,
    announced: u16,
    seen: usize,
    /// Start and length of the element before.
    before_at: usize,
    before_len: usize,
}

impl<'a> Ziplist<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Ziplist<'a>, Malformed> {
        let mut rest = Reader::new(bytes);
        let total = u32::from_le_bytes(rest.array()?);
        let last_at = u32::from_le_bytes(rest.array()?) as usize;
        let announced = u16::from_le_bytes(rest.array()?);
        if total as usize != bytes.len() {
            return Err(Malformed);
        }
        let (before_at, before_len) = (HEADER, 0);
        Ok(Ziplist { rest, len: bytes.len(), last_at, announced, seen: 0, before_at, before_len })
    }

    fn at(&self) -> usize {
        self.len - self.rest.rest().len()
    }

    fn element(&mut self) -> Result<Item<'a>, Malformed> {
        let rest = &mut self.rest;
        let first = rest.byte()?;
        match first {
            0..0x40 => rest.bytes(usize::from(first)).map(Item::Bytes),
            0x40..0x80 => {
                let len = usize::from(first & 0x3f) << 8 | usize::from(rest.byte()?);
                rest.bytes(len).map(Item::Bytes)
            }
            0x80 => {
                let len = u32::from_be_bytes(rest.array()?) as usize;
                rest.bytes(len).map(Item::Bytes)
            }
            0xc0 => int::<2>(rest).map(Item::Int),
            0xd0 => int::<4>(rest).map(Item::Int),
            0xe0 => int::<8>(rest).map(Item::Int),
            0xf0 => int::<3>(rest).map(Item::Int),
            0xfe => int::<1>(rest).map(Item::Int),
            0xf1..0xfe => Ok(Item::Int(i64::from(first) - 0xf1)),
            _ => Err(Malformed),
        }
    }

    fn read(&mut self) -> Result<Option<Item<'a>>, Malformed> {
        let at = self.at();
        let before = match self.rest.byte()? {
            END => {
                let counted = self.announced == UNKNOWN || usize::from(self.announced) == self.seen;
                let sound = counted && self.rest.is_empty() && self.last_at == self.before_at;
                return if sound { Ok(None) } else { Err(Malformed) };
            }
            LONG_BEFORE => u32::from_le_bytes(self.rest.array()?) as usize,
            len => usize::from(len),
        };
        if before != self.before_len {
            return Err(Malformed);
        }
        let item = self.element()?;
        (self.before_at, self.before_len) = (at, self.at() - at);
        self.seen += 1;
        Ok(Some(item))
    }
}

impl<'a> Iterator for Ziplist<'a> {
    type Item = Result<Item<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}
