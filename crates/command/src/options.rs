//! Reading arguments: numbers, time-outs, keywords, with Redis's errors.

use crate::{Cx, Error};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// `proto-max-bulk-len`.
static MAX_STRING_BYTES: AtomicUsize = AtomicUsize::new(512 << 20);

/// The longest string a command may build (`proto-max-bulk-len`).
#[inline]
pub fn max_string_bytes() -> usize {
    MAX_STRING_BYTES.load(Relaxed)
}

/// Sets the longest string a command may build.
pub fn set_max_string_bytes(bytes: usize) {
    MAX_STRING_BYTES.store(bytes, Relaxed);
}

/// Refuses to let a string of `len` bytes grow by `more` past `proto-max-bulk-len`; what was settled elsewhere may.
pub fn check_string_size(cx: &Cx<'_, '_>, len: usize, more: usize) -> Result<(), Error> {
    let total = len.saturating_add(more);
    if total > i64::MAX as usize || (total > max_string_bytes() && !cx.caller.in_replay) {
        return Err(Error::new("ERR string exceeds maximum allowed size (proto-max-bulk-len)"));
    }
    Ok(())
}

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

/// A SCAN cursor, or "invalid cursor".
pub fn cursor(arg: &[u8]) -> Result<u64, Error> {
    stdx::num::parse_u64(arg).ok_or(Error::new("ERR invalid cursor"))
}

/// The options of SCAN and its kin.
pub struct ScanOptions<'a> {
    pub pattern: Option<&'a [u8]>,
    /// About how many elements to visit.
    pub count: usize,
    /// TYPE of SCAN.
    pub kind: Option<&'a [u8]>,
    /// NOVALUES of HSCAN, NOSCORES of ZSCAN.
    pub bare: bool,
}

impl<'a> ScanOptions<'a> {
    /// Reads the options behind the cursor. `extra`: which of "type", "novalues", "noscores" the command knows.
    pub fn parse(args: resp::Args<'a>, extra: &[&str]) -> Result<ScanOptions<'a>, Error> {
        let mut options = ScanOptions { pattern: None, count: 10, kind: None, bare: false };
        let mut i = 0;
        while i < args.len() {
            let (word, value) = (args.at(i), args.get(i + 1));
            let knows = |name: &str| extra.contains(&name) && is(word, name);
            match value {
                Some(value) if is(word, "count") => {
                    let count = int(value)?;
                    if count < 1 {
                        return Err(Error::Syntax);
                    }
                    options.count = count as usize;
                    i += 2;
                }
                Some(value) if is(word, "match") => {
                    // A pattern that matches everything needs no matching.
                    options.pattern = (*value != *b"*").then_some(value);
                    i += 2;
                }
                Some(value) if knows("type") => {
                    options.kind = Some(value);
                    i += 2;
                }
                _ if knows("novalues") || knows("noscores") => {
                    options.bare = true;
                    i += 1;
                }
                _ => return Err(Error::Syntax),
            }
        }
        Ok(options)
    }

    /// Whether TYPE allows a type; a type nobody has allows none.
    pub fn wants(&self, kind: value::Kind) -> bool {
        self.kind.is_none_or(|name| name.eq_ignore_ascii_case(kind.name().as_bytes()))
    }

    pub fn matches(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| stdx::glob::matches(pattern, name, false))
    }
}
