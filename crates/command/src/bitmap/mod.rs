//! Strings as rows of bits: single bits, counts and searches, combinations, integers of any width.
//!
//! Bit 0 is the highest bit of byte 0. A string may be sparse: parts never written are not stored, and the
//! commands skip them without a look (`Run::Zeros`).

pub(crate) mod bit;
pub(crate) mod combine;
pub(crate) mod field;
mod kernel;

use crate::{Cx, Error, options};

const BAD_OFFSET: Error = Error::new("ERR bit offset is not an integer or out of range");

/// A bit's position, within the size limit of strings. With `unit`, `#n` is the n-th unit of so many bits.
/// Errors: bad offset.
fn offset(cx: &Cx<'_, '_>, word: &[u8], unit: Option<u32>) -> Result<u64, Error> {
    let (digits, factor) = match (word, unit) {
        ([b'#', digits @ ..], Some(unit)) => (digits, i64::from(unit)),
        _ => (word, 1),
    };
    let at = stdx::num::parse_i64(digits).and_then(|at| at.checked_mul(factor)).ok_or(BAD_OFFSET)?;
    let too_far = at / 8 >= options::max_string_bytes() as i64 && !cx.caller.in_replay;
    if at < 0 || too_far { Err(BAD_OFFSET) } else { Ok(at as u64) }
}
