//! Listpacks.
//!
//! ```text
//! bytes in all, u32 │ elements, u16 (65535: count them) │ element … │ 0xff
//! element: encoding and data │ their length, 7 bits a byte, to be read backwards
//!
//! 0nnnnnnn  0 to 127         110nnnnn + 1   13 bits, signed      f1 f2 f3 f4   + 2, 3, 4, 8 bytes, signed
//! 10llllll  text of l bytes  1110llll + 1   text of l bytes      f0            text, its length in 4 bytes
//! ```

use super::int;
use crate::{Item, Malformed, Reader};

const END: u8 = 0xff;
const UNKNOWN: u16 = u16::MAX;

/// The elements of a listpack.
pub(crate) struct Listpack<'a> {
    rest: Reader<'a>,
    announced: u16,
    seen: usize,
}

impl<'a> Listpack<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Listpack<'a>, Malformed> {
        let mut rest = Reader::new(bytes);
        let total = u32::from_le_bytes(rest.array()?);
        let announced = u16::from_le_bytes(rest.array()?);
        if total as usize != bytes.len() {
            return Err(Malformed);
        }
        Ok(Listpack { rest, announced, seen: 0 })
    }

    /// The number of elements that it announces; 65,535 stands for more.
    pub(crate) fn announced(&self) -> usize {
        usize::from(self.announced)
    }

    fn element(&mut self, first: u8) -> Result<Item<'a>, Malformed> {
        let rest = &mut self.rest;
        let text = |rest: &mut Reader<'a>, len: usize| rest.bytes(len).map(Item::Bytes);
        match first {
            0..0x80 => Ok(Item::Int(i64::from(first))),
            0x80..0xc0 => text(rest, usize::from(first & 0x3f)),
            0xc0..0xe0 => {
                let bits = u16::from(first & 0x1f) << 8 | u16::from(rest.byte()?);
                // 13 bits with a sign: shifted up, and down again.
                Ok(Item::Int(i64::from((bits << 3) as i16 >> 3)))
            }
            0xe0..0xf0 => {
                let len = usize::from(first & 0xf) << 8 | usize::from(rest.byte()?);
                text(rest, len)
            }
            0xf0 => {
                let len = u32::from_le_bytes(rest.array()?) as usize;
                text(rest, len)
            }
            0xf1 => int::<2>(rest).map(Item::Int),
            0xf2 => int::<3>(rest).map(Item::Int),
            0xf3 => int::<4>(rest).map(Item::Int),
            0xf4 => int::<8>(rest).map(Item::Int),
            _ => Err(Malformed),
        }
    }

    fn read(&mut self) -> Result<Option<Item<'a>>, Malformed> {
        let before = self.rest.rest().len();
        let first = self.rest.byte()?;
        if first == END {
            let counted = self.announced == UNKNOWN || usize::from(self.announced) == self.seen;
            return if counted && self.rest.is_empty() { Ok(None) } else { Err(Malformed) };
        }
        let item = self.element(first)?;
        let len = before - self.rest.rest().len();
        let (back, back_len) = back_len(len);
        if self.rest.bytes(back_len)? != &back[..back_len] {
            return Err(Malformed);
        }
        self.seen += 1;
        Ok(Some(item))
    }
}

impl<'a> Iterator for Listpack<'a> {
    type Item = Result<Item<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// The length of an element as written behind it: highest bits first, all bytes but the first marked.
pub(super) fn back_len(len: usize) -> ([u8; 5], usize) {
    let bytes = match len {
        0..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    };
    let mut back = [0; 5];
    for (i, byte) in back[..bytes].iter_mut().enumerate() {
        let low = (len >> (7 * (bytes - 1 - i))) as u8 & 0x7f;
        *byte = if i == 0 { low } else { low | 0x80 };
    }
    (back, bytes)
}
