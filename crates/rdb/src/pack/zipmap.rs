//! Zipmaps, the small hashes of Redis before 2.6: fields and values in turn.
//!
//! ```text
//! pairs (254: count them) │ length │ field │ length │ unused │ value │ unused bytes │ … │ 0xff
//! length: one byte below 254, or 254 and 4 bytes, little-endian
//! ```

use crate::{Item, Malformed, Reader};

const END: u8 = 0xff;
const LONG: u8 = 0xfe;

/// The fields and values of a zipmap.
pub(crate) struct Zipmap<'a> {
    rest: Reader<'a>,
    announced: u8,
    seen: usize,
}

impl<'a> Zipmap<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Zipmap<'a>, Malformed> {
        let mut rest = Reader::new(bytes);
        let announced = rest.byte()?;
        Ok(Zipmap { rest, announced, seen: 0 })
    }

    fn read(&mut self) -> Result<Option<Item<'a>>, Malformed> {
        let is_field = self.seen.is_multiple_of(2);
        let len = match self.rest.byte()? {
            END => {
                let counted = self.announced >= LONG || usize::from(self.announced) * 2 == self.seen;
                let sound = is_field && counted && self.rest.is_empty();
                return if sound { Ok(None) } else { Err(Malformed) };
            }
            LONG => u32::from_le_bytes(self.rest.array()?) as usize,
            len => usize::from(len),
        };
        let unused = if is_field { 0 } else { usize::from(self.rest.byte()?) };
        let text = self.rest.bytes(len)?;
        self.rest.bytes(unused)?;
        self.seen += 1;
        Ok(Some(Item::Bytes(text)))
    }
}

impl<'a> Iterator for Zipmap<'a> {
    type Item = Result<Item<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}
