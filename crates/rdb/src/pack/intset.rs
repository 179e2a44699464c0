//! Intsets: `bytes of one number, u32 │ numbers, u32 │ number …`, ascending, little-endian.

use crate::{Item, Malformed, Reader};

/// The numbers of an intset.
pub(crate) struct Intset<'a> {
    rest: Reader<'a>,
    width: u32,
    last: Option<i64>,
}

impl<'a> Intset<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Intset<'a>, Malformed> {
        let mut rest = Reader::new(bytes);
        let width = u32::from_le_bytes(rest.array()?);
        let count = u32::from_le_bytes(rest.array()?);
        let len = u64::from(count).checked_mul(u64::from(width));
        if !matches!(width, 2 | 4 | 8) || len != Some(rest.rest().len() as u64) {
            return Err(Malformed);
        }
        Ok(Intset { rest, width, last: None })
    }

    fn read(&mut self) -> Result<i64, Malformed> {
        let number = match self.width {
            2 => super::int::<2>(&mut self.rest),
            4 => super::int::<4>(&mut self.rest),
            _ => super::int::<8>(&mut self.rest),
        }?;
        if self.last.is_some_and(|last| last >= number) {
            return Err(Malformed);
        }
        self.last = Some(number);
        Ok(number)
    }
}

impl<'a> Iterator for Intset<'a> {
    type Item = Result<Item<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.read().map(Item::Int))
    }
}
