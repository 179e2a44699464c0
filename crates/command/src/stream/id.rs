//! IDs as clients write them, and as they are answered.
//!
//! - I1: numbers are read as C reads them: blanks and a sign in front are allowed, and a zero byte ends the
//!   text.

use crate::Error;
use value::StreamId;

/// The longest text that is looked at.
const LONGEST: usize = 127;

fn invalid() -> Error {
    Error::new("ERR Invalid stream ID specified as stream command argument")
}

/// A number of 64 bits (I1).
fn number(text: &[u8]) -> Option<u64> {
    if let Some(value) = stdx::num::parse_u64(text) {
        return Some(value);
    }
    // A number in its plain form may not be negative.
    if stdx::num::parse_i64(text).is_some() {
        return None;
    }
    let digits = text.trim_ascii_start();
    let (digits, negative) = match digits {
        [b'-', rest @ ..] => (rest, true),
        [b'+', rest @ ..] => (rest, false),
        _ => (digits, false),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = std::str::from_utf8(digits).ok()?.parse::<u64>().ok()?;
    Some(if negative { value.wrapping_neg() } else { value })
}

/// Splits a text at its first `-`.
fn split(arg: &[u8]) -> Result<(&[u8], Option<&[u8]>), Error> {
    if arg.len() > LONGEST {
        return Err(invalid());
    }
    let text = arg.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(match text.iter().position(|byte| *byte == b'-') {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    })
}

/// `ms-seq` or `ms`, whose second number is then `missing`. Errors: invalid ID.
fn strict_or(arg: &[u8], missing: u64) -> Result<StreamId, Error> {
    let (ms, seq) = split(arg)?;
    let seq = seq.map_or(Some(missing), number);
    Ok(StreamId::new(number(ms).ok_or_else(invalid)?, seq.ok_or_else(invalid)?))
}

/// `ms-seq` or `ms`. Errors: invalid ID.
pub(super) fn strict(arg: &[u8]) -> Result<StreamId, Error> {
    strict_or(arg, 0)
}

/// As [`strict`], and `-` and `+` for the least and the greatest ID.
pub(super) fn any(arg: &[u8], missing: u64) -> Result<StreamId, Error> {
    match arg {
        b"-" => Ok(StreamId::MIN),
        b"+" => Ok(StreamId::MAX),
        _ => strict_or(arg, missing),
    }
}

/// The first ID of an interval, exclusive behind `(`. Errors: invalid ID, nothing behind it.
pub(super) fn start(arg: &[u8]) -> Result<StreamId, Error> {
    match arg {
        [b'(', rest @ ..] if !rest.is_empty() => {
            strict_or(rest, 0)?.next().ok_or(Error::new("ERR invalid start ID for the interval"))
        }
        _ => any(arg, 0),
    }
}

/// The last ID of an interval, exclusive behind `(`. Errors: invalid ID, nothing before it.
pub(super) fn end(arg: &[u8]) -> Result<StreamId, Error> {
    match arg {
        [b'(', rest @ ..] if !rest.is_empty() => {
            strict_or(rest, u64::MAX)?.prev().ok_or(Error::new("ERR invalid end ID for the interval"))
        }
        _ => any(arg, u64::MAX),
    }
}

/// The ID of a new entry, as XADD is told it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NewId {
    /// `*`: the time.
    Auto,
    /// `ms-*`: the next of this millisecond.
    AutoSeq(u64),
    Given(StreamId),
}

impl NewId {
    pub(super) fn parse(arg: &[u8]) -> Result<NewId, Error> {
        match split(arg)? {
            _ if arg == b"*" => Ok(NewId::Auto),
            (ms, Some(b"*")) => Ok(NewId::AutoSeq(number(ms).ok_or_else(invalid)?)),
            _ => Ok(NewId::Given(strict(arg)?)),
        }
    }

    /// The ID behind the last one of a stream. None: there is none that is greater.
    pub(super) fn after(self, last: StreamId, now_ms: u64) -> Option<StreamId> {
        let id = match self {
            NewId::Auto if now_ms > last.ms => StreamId::new(now_ms, 0),
            NewId::Auto => last.next()?,
            NewId::AutoSeq(ms) if ms == last.ms => StreamId::new(ms, last.seq.checked_add(1)?),
            NewId::AutoSeq(ms) => StreamId::new(ms, 0),
            NewId::Given(id) => id,
        };
        (id > last).then_some(id)
    }
}

/// An ID as text.
pub(super) struct Text([u8; 41], usize);

impl Text {
    pub(super) fn new(id: StreamId) -> Text {
        let (mut text, mut len) = ([0; 41], 0);
        let (mut ms, mut seq) = (itoa::Buffer::new(), itoa::Buffer::new());
        for part in [ms.format(id.ms).as_bytes(), b"-", seq.format(id.seq).as_bytes()] {
            text[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        Text(text, len)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_c_reads_numbers() {
        let id = |ms, seq| Ok(StreamId::new(ms, seq));
        for (text, expected) in [
            ("5", id(5, 0)),
            ("5-7", id(5, 7)),
            ("007-08", id(7, 8)),
            (" 5-+6", id(5, 6)),
            ("18446744073709551615-1", id(u64::MAX, 1)),
            ("18446744073709551616", Err(invalid())),
            ("5-", Err(invalid())),
            ("-5", Err(invalid())),
            ("-", Err(invalid())),
            ("+", Err(invalid())),
            ("", Err(invalid())),
            ("1-2-3", Err(invalid())),
            ("5--1", Err(invalid())),
            ("x", Err(invalid())),
            ("5-*", Err(invalid())),
        ] {
            assert_eq!(strict(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(any(b"+", 0), Ok(StreamId::MAX));
        assert_eq!(end(b"5"), id(5, u64::MAX));
        assert_eq!(start(b"(5-1"), id(5, 2));
        assert_eq!(end(b"(5"), id(5, u64::MAX - 1));
        assert!(start(b"(+").is_err() && start(b"(").is_err() && end(b"(0-0").is_err());
        assert_eq!(Text::new(StreamId::MAX).bytes(), b"18446744073709551615-18446744073709551615");
    }

    #[test]
    fn a_new_id_is_greater_than_the_last() {
        let last = StreamId::new(5, 7);
        let next = |id: NewId, now| id.after(last, now).map(|id| (id.ms, id.seq));
        assert_eq!(next(NewId::Auto, 9), Some((9, 0)));
        assert_eq!(next(NewId::Auto, 5), Some((5, 8)));
        assert_eq!(next(NewId::Auto, 1), Some((5, 8)));
        assert_eq!(next(NewId::AutoSeq(5), 9), Some((5, 8)));
        assert_eq!(next(NewId::AutoSeq(6), 9), Some((6, 0)));
        assert_eq!(next(NewId::AutoSeq(4), 9), None);
        assert_eq!(next(NewId::Given(last), 9), None);
        assert_eq!(NewId::AutoSeq(0).after(StreamId::MIN, 1), Some(StreamId::new(0, 1)));
        assert_eq!(NewId::Auto.after(StreamId::MAX, 1), None);
    }
}
