//! Reading arguments: numbers, time-outs, keywords, with Redis's errors.

use crate::Error;

/// A signed 64-bit integer in canonical form, or "value is not an integer or out of range".
#[inline]
pub fn int(arg: &[u8]) -> Result<i64, Error> {
    stdx::num::parse_i64(arg).ok_or(Error::NotInteger)
}

/// A float as strtod reads it, or "value is not a valid float".
pub fn float(arg: &[u8]) -> Result<f64, Error> {
    stdx::num::parse_f64(arg).ok_or(Error::NotFloat)
}

/// Whether an argument is this keyword, in any case.
#[inline]
pub fn is(arg: &[u8], keyword: &str) -> bool {
    arg.eq_ignore_ascii_case(keyword.as_bytes())
}

/// A blocking command's time-out in seconds, fractions allowed: None = for ever (0).
pub fn timeout_ms(arg: &[u8]) -> Result<Option<u64>, Error> {
    let seconds =
        stdx::num::parse_f64(arg).ok_or(Error::new("ERR timeout is not a float or out of range"))?;
    let ms = (seconds * 1000.0).ceil();
    if ms > (i64::MAX as f64) {
        return Err(Error::new("ERR timeout is out of range"));
    }
    if ms < 0.0 {
        return Err(Error::new("ERR timeout is negative"));
    }
    Ok((ms > 0.0).then_some(ms as u64))
}

/// Turns an index that may count from the end into one from the start, clamped to 0 at the low end.
#[inline]
pub fn from_end(index: i64, len: usize) -> i64 {
    if index < 0 { (index + len as i64).max(0) } else { index }
}

/// The elements `start..=stop` of `len`, both possibly counted from the end, as a half-open range (empty if none).
#[inline]
pub fn range(start: i64, stop: i64, len: usize) -> std::ops::Range<usize> {
    let start = from_end(start, len);
    let stop = if stop < 0 { stop + len as i64 } else { stop.min(len as i64 - 1) };
    if start > stop || start >= len as i64 { 0..0 } else { start as usize..stop as usize + 1 }
}
