//! Reads replies back: for scripts, which look at the replies of their commands, and for test clients.
//!
//! Unlike the parser of queries, this reader is strict: every line and every bulk ends in CR LF. It takes
//! RESP2 and RESP3. Attributes are read and dropped. Memory grows with the bytes given, not with announced
//! lengths. Nesting is limited to [`MAX_DEPTH`], so the stack is safe.

use crate::Reply;
use stdx::num::{parse_f64, parse_i64};

/// The deepest nesting of aggregates that is read.
pub const MAX_DEPTH: usize = 128;
/// Most elements that room is reserved for before any was read.
const RESERVE_MAX: usize = 1024;

/// One reply.
#[derive(Clone, PartialEq)]
pub enum Frame {
    Simple(Vec<u8>),
    /// Text without the `-`.
    Error(Vec<u8>),
    Int(i64),
    Bulk(Vec<u8>),
    /// RESP3's null, or RESP2's null bulk.
    Null,
    /// RESP2's null array.
    NullArray,
    Array(Vec<Frame>),
    Map(Vec<(Frame, Frame)>),
    Set(Vec<Frame>),
    Double(f64),
    Bool(bool),
    BigNumber(Vec<u8>),
    Verbatim {
        format: [u8; 3],
        text: Vec<u8>,
    },
    Push(Vec<Frame>),
}

/// As the bytes on the wire, with those escaped that are no printable ASCII. O(bytes).
impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut wire = Reply::new(true);
        match self {
            Frame::NullArray => return f.write_str("*-1\\r\\n"),
            frame => frame.write(&mut wire),
        }
        write!(f, "{}", wire.as_bytes().escape_ascii())
    }
}

/// Why bytes are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// No reply starts with this byte.
    UnknownType(u8),
    /// A length or number is malformed.
    BadNumber,
    /// A line or bulk does not end in CR LF.
    BadEnd,
    /// `#` without `t` or `f`, `_` followed by bytes, or a verbatim text without a format.
    BadValue,
    /// Aggregates are nested deeper than [`MAX_DEPTH`].
    TooDeep,
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::UnknownType(byte) => write!(f, "no reply starts with '{}'", byte.escape_ascii()),
            FrameError::BadNumber => f.write_str("bad number in reply"),
            FrameError::BadEnd => f.write_str("missing line end in reply"),
            FrameError::BadValue => f.write_str("bad value in reply"),
            FrameError::TooDeep => f.write_str("reply nested too deeply"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Reads the reply at the start of `buf`. Returns it and its length in bytes; `None` if it is incomplete.
///
/// O(bytes of the reply). It starts over each time: if a large reply arrives in many reads, ask [`FrameEnd`]
/// first.
pub fn read_frame(buf: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
    let mut reader = Reader { buf, pos: 0 };
    match reader.frame(0) {
        Ok(frame) => Ok(Some((frame, reader.pos))),
        Err(Stop::Incomplete) => Ok(None),
        Err(Stop::Bad(error)) => Err(error),
    }
}

enum Stop {
    Incomplete,
    Bad(FrameError),
}

impl From<FrameError> for Stop {
    fn from(error: FrameError) -> Stop {
        Stop::Bad(error)
    }
}

struct Reader<'a> {
    buf: &'a [u8],
    /// Start of the unread part; at most `buf.len()`.
    pos: usize,
}

impl<'a> Reader<'a> {
    fn frame(&mut self, depth: usize) -> Result<Frame, Stop> {
        if depth > MAX_DEPTH {
            return Err(FrameError::TooDeep.into());
        }
        loop {
            let kind = *self.buf.get(self.pos).ok_or(Stop::Incomplete)?;
            if !b"+-:$*_,#(!=%~>|".contains(&kind) {
                return Err(FrameError::UnknownType(kind).into());
            }
            self.pos += 1;
            let line = self.line()?;
            return Ok(match kind {
                b'+' => Frame::Simple(line.to_vec()),
                b'-' => Frame::Error(line.to_vec()),
                b':' => Frame::Int(parse_i64(line).ok_or(FrameError::BadNumber)?),
                b',' => Frame::Double(double(line)?),
                b'(' => Frame::BigNumber(big_number(line)?),
                b'#' => Frame::Bool(boolean(line)?),
                b'_' if line.is_empty() => Frame::Null,
                b'$' => match length(line)? {
                    None => Frame::Null,
                    Some(len) => Frame::Bulk(self.bulk(len)?.to_vec()),
                },
                b'!' => Frame::Error(self.bulk(some_length(line)?)?.to_vec()),
                b'=' => verbatim(self.bulk(some_length(line)?)?)?,
                b'*' => match length(line)? {
                    None => Frame::NullArray,
                    Some(len) => Frame::Array(self.frames(len, depth)?),
                },
                b'~' => Frame::Set(self.frames(some_length(line)?, depth)?),
                b'>' => Frame::Push(self.frames(some_length(line)?, depth)?),
                b'%' => Frame::Map(self.pairs(some_length(line)?, depth)?),
                b'|' => {
                    self.pairs(some_length(line)?, depth)?;
                    continue;
                }
                _ => return Err(FrameError::BadValue.into()),
            });
        }
    }

    /// The rest of the line at `pos`, without its end.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.buf[self.pos..];
        let end = memchr::memchr2(b'\r', b'\n', rest).ok_or(Stop::Incomplete)?;
        if rest[end] == b'\n' {
            return Err(FrameError::BadEnd.into());
        }
        match rest.get(end + 1) {
            None => Err(Stop::Incomplete),
            Some(b'\n') => {
                self.pos += end + 2;
                Ok(&rest[..end])
            }
            Some(_) => Err(FrameError::BadEnd.into()),
        }
    }

    fn bulk(&mut self, len: usize) -> Result<&'a [u8], Stop> {
        let rest = &self.buf[self.pos..];
        if rest.len() < len.saturating_add(2) {
            return Err(Stop::Incomplete);
        }
        if &rest[len..len + 2] != b"\r\n" {
            return Err(FrameError::BadEnd.into());
        }
        self.pos += len + 2;
        Ok(&rest[..len])
    }

    fn frames(&mut self, len: usize, depth: usize) -> Result<Vec<Frame>, Stop> {
        let mut frames = Vec::with_capacity(self.plausible(len));
        for _ in 0..len {
            frames.push(self.frame(depth + 1)?);
        }
        Ok(frames)
    }

    fn pairs(&mut self, len: usize, depth: usize) -> Result<Vec<(Frame, Frame)>, Stop> {
        let mut pairs = Vec::with_capacity(self.plausible(len));
        for _ in 0..len {
            pairs.push((self.frame(depth + 1)?, self.frame(depth + 1)?));
        }
        Ok(pairs)
    }

    /// How many of `len` announced elements to reserve room for. A frame takes at least three bytes.
    fn plausible(&self, len: usize) -> usize {
        len.min((self.buf.len() - self.pos) / 3).min(RESERVE_MAX)
    }
}

/// Parses a length; `None` for -1.
fn length(line: &[u8]) -> Result<Option<usize>, FrameError> {
    match parse_i64(line) {
        Some(-1) => Ok(None),
        Some(len) => usize::try_from(len).map(Some).map_err(|_| FrameError::BadNumber),
        None => Err(FrameError::BadNumber),
    }
}

fn some_length(line: &[u8]) -> Result<usize, FrameError> {
    length(line)?.ok_or(FrameError::BadNumber)
}

fn double(line: &[u8]) -> Result<f64, FrameError> {
    match line {
        b"nan" | b"-nan" => Ok(f64::NAN),
        _ => parse_f64(line).ok_or(FrameError::BadNumber),
    }
}

fn boolean(line: &[u8]) -> Result<bool, FrameError> {
    match line {
        b"t" => Ok(true),
        b"f" => Ok(false),
        _ => Err(FrameError::BadValue),
    }
}

fn big_number(line: &[u8]) -> Result<Vec<u8>, FrameError> {
    let digits = line.strip_prefix(b"-").unwrap_or(line);
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if is_number { Ok(line.to_vec()) } else { Err(FrameError::BadNumber) }
}

fn verbatim(bytes: &[u8]) -> Result<Frame, FrameError> {
    match bytes {
        [a, b, c, b':', text @ ..] => Ok(Frame::Verbatim { format: [*a, *b, *c], text: text.to_vec() }),
        _ => Err(FrameError::BadValue),
    }
}

impl Frame {
    /// Writes the frame as a handler would. In RESP2 most types become simpler ones.
    pub fn write(&self, out: &mut Reply) {
        match self {
            Frame::Simple(text) => out.simple_bytes(text),
            Frame::Error(text) => out.error_bytes(text),
            Frame::Int(value) => out.int(*value),
            Frame::Bulk(bytes) => out.bulk(bytes),
            Frame::Null => out.null(),
            Frame::NullArray => out.null_array(),
            Frame::Double(value) => out.double(*value),
            Frame::Bool(value) => out.bool(*value),
            Frame::BigNumber(digits) => out.big_number(&String::from_utf8_lossy(digits)),
            Frame::Verbatim { format, text } => out.verbatim(&String::from_utf8_lossy(format), text),
            Frame::Array(frames) => {
                out.array(frames.len());
                frames.iter().for_each(|frame| frame.write(out));
            }
            Frame::Set(frames) => {
                out.set(frames.len());
                frames.iter().for_each(|frame| frame.write(out));
            }
            Frame::Push(frames) => {
                out.push(frames.len());
                frames.iter().for_each(|frame| frame.write(out));
            }
            Frame::Map(pairs) => {
                out.map(pairs.len());
                for (key, value) in pairs {
                    key.write(out);
                    value.write(out);
                }
            }
        }
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Frame::Error(_))
    }

    /// The bytes of a text of any kind.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Frame::Simple(text) | Frame::Error(text) | Frame::Bulk(text) | Frame::BigNumber(text) => {
                Some(text)
            }
            Frame::Verbatim { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The text of [`Frame::text`] as far as it is UTF-8; empty for frames without a text. O(its bytes).
    pub fn lossy(&self) -> String {
        String::from_utf8_lossy(self.text().unwrap_or_default()).into_owned()
    }

    pub fn is_ok(&self) -> bool {
        matches!(self, Frame::Simple(text) if text == b"OK")
    }

    /// Whether it is an error whose text contains `words`. O(its bytes times theirs).
    pub fn is_error_with(&self, words: &str) -> bool {
        matches!(self, Frame::Error(text) if String::from_utf8_lossy(text).contains(words))
    }

    /// An integer, or a text that is one in decimal.
    pub fn number(&self) -> Option<i64> {
        self.as_int().or_else(|| parse_i64(self.text()?))
    }

    pub fn as_int(&self) -> Option<i64> {
        if let Frame::Int(value) = self { Some(*value) } else { None }
    }

    /// The elements of an array; `None` for everything else.
    pub fn into_array(self) -> Option<Vec<Frame>> {
        if let Frame::Array(frames) = self { Some(frames) } else { None }
    }

    /// The elements of an array, set or push.
    pub fn elements(&self) -> Option<&[Frame]> {
        match self {
            Frame::Array(frames) | Frame::Set(frames) | Frame::Push(frames) => Some(frames),
            _ => None,
        }
    }
}

/// Finds the end of a reply without building it. It looks at each byte once, in however many reads the reply
/// arrives.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameEnd {
    /// Bytes understood so far.
    pos: usize,
    /// Frames still to come. 0 before the first call means one.
    left: u64,
    /// No line end stands between `pos` and here.
    scanned: usize,
    /// Frames of this reply so far.
    frames: u64,
}

impl FrameEnd {
    pub fn new() -> FrameEnd {
        FrameEnd::default()
    }

    /// The end of the reply at the start of `buf`, if it is complete; then start over with the rest. `buf`
    /// must hold the bytes of the last call and some more. O(new bytes). Does not look into lines or limit
    /// the depth.
    pub fn find(&mut self, buf: &[u8]) -> Result<Option<usize>, FrameError> {
        if self.left == 0 {
            (self.left, self.frames) = (1, 0);
        }
        while self.left > 0 {
            if !self.step(buf)? {
                return Ok(None);
            }
        }
        let end = self.pos;
        *self = FrameEnd { frames: self.frames, ..FrameEnd::default() };
        Ok(Some(end))
    }

    /// The frames that the last call passed, in this reply: itself, and all within. O(1).
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Passes one scalar or header.
    fn step(&mut self, buf: &[u8]) -> Result<bool, FrameError> {
        let Some(&kind) = buf.get(self.pos) else { return Ok(false) };
        let from = self.scanned.max(self.pos + 1);
        let Some(line) = memchr::memchr(b'\n', buf.get(from..).unwrap_or(&[])) else {
            self.scanned = buf.len();
            return Ok(false);
        };
        let next = from + line + 1;
        let text = buf[self.pos + 1..next].strip_suffix(b"\r\n").ok_or(FrameError::BadEnd)?;
        let (skip, more) = match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => (0, 0),
            b'$' => (length(text)?.map_or(0, |len| len.saturating_add(2)), 0),
            b'!' | b'=' => (some_length(text)?.saturating_add(2), 0),
            b'*' => (0, length(text)?.unwrap_or(0) as u64),
            b'~' | b'>' => (0, some_length(text)? as u64),
            b'%' => (0, (some_length(text)? as u64).saturating_mul(2)),
            b'|' => (0, (some_length(text)? as u64).saturating_mul(2).saturating_add(1)),
            other => return Err(FrameError::UnknownType(other)),
        };
        if buf.len() - next < skip {
            self.scanned = next - 1;
            return Ok(false);
        }
        self.pos = next + skip;
        self.frames += 1;
        self.left = (self.left - 1).checked_add(more).ok_or(FrameError::BadNumber)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<(Frame, usize)>, FrameError> {
        read_frame(text.as_bytes())
    }

    fn one(text: &str) -> Frame {
        let (frame, used) = read(text).unwrap().unwrap();
        assert_eq!(used, text.len());
        frame
    }

    #[test]
    fn every_type_is_read() {
        assert_eq!(one("+OK\r\n"), Frame::Simple(b"OK".to_vec()));
        assert_eq!(one("-ERR x\r\n"), Frame::Error(b"ERR x".to_vec()));
        assert_eq!(one("!5\r\nERR x\r\n"), Frame::Error(b"ERR x".to_vec()));
        assert_eq!(one(":-5\r\n"), Frame::Int(-5));
        assert_eq!(one("$2\r\n\r\n\r\n"), Frame::Bulk(b"\r\n".to_vec()));
        assert_eq!(one("$-1\r\n"), Frame::Null);
        assert_eq!(one("_\r\n"), Frame::Null);
        assert_eq!(one("*-1\r\n"), Frame::NullArray);
        assert_eq!(one(",1.5\r\n"), Frame::Double(1.5));
        assert!(matches!(one(",nan\r\n"), Frame::Double(value) if value.is_nan()));
        assert_eq!(one("#t\r\n"), Frame::Bool(true));
        assert_eq!(one("(-12345678901234567890\r\n"), Frame::BigNumber(b"-12345678901234567890".to_vec()));
        assert_eq!(one("=5\r\ntxt:a\r\n"), Frame::Verbatim { format: *b"txt", text: b"a".to_vec() });
        assert_eq!(one("~1\r\n:1\r\n"), Frame::Set(vec![Frame::Int(1)]));
        assert_eq!(one(">1\r\n:1\r\n"), Frame::Push(vec![Frame::Int(1)]));
        assert_eq!(one("%1\r\n:1\r\n*0\r\n"), Frame::Map(vec![(Frame::Int(1), Frame::Array(vec![]))]));
        assert_eq!(one("|1\r\n+a\r\n+b\r\n|0\r\n:3\r\n"), Frame::Int(3));
    }

    #[test]
    fn texts_and_numbers_are_found() {
        assert_eq!(
            [":5\r\n", "$1\r\n5\r\n", "+x\r\n", "_\r\n"].map(|text| one(text).number()),
            [Some(5), Some(5), None, None]
        );
        assert!(one("+OK\r\n").is_ok() && !one("$2\r\nOK\r\n").is_ok());
        assert!(
            one("-ERR no key\r\n").is_error_with("no key") && !one("+no key\r\n").is_error_with("no key")
        );
        assert_eq!([one("+x\r\n").lossy(), one(":1\r\n").lossy()], ["x", ""]);
        assert_eq!(one("*1\r\n:1\r\n").into_array(), Some(vec![Frame::Int(1)]));
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        assert_eq!(read("x\r\n"), Err(FrameError::UnknownType(b'x')));
        assert_eq!(read(":1a\r\n"), Err(FrameError::BadNumber));
        assert_eq!(read("$-2\r\n"), Err(FrameError::BadNumber));
        assert_eq!(read("~-1\r\n"), Err(FrameError::BadNumber));
        assert_eq!(read("$1\r\nabc"), Err(FrameError::BadEnd));
        assert_eq!(read("+a\n"), Err(FrameError::BadEnd));
        assert_eq!(read("+a\rb"), Err(FrameError::BadEnd));
        assert_eq!(read("#x\r\n"), Err(FrameError::BadValue));
        assert_eq!(read("_x\r\n"), Err(FrameError::BadValue));
        assert_eq!(read("=2\r\nab\r\n"), Err(FrameError::BadValue));
        assert_eq!(read(&"*1\r\n".repeat(MAX_DEPTH + 2)), Err(FrameError::TooDeep));
        assert_eq!(read("*9223372036854775807\r\n:1\r\n"), Ok(None));
        assert_eq!(read("$9223372036854775807\r\n:1\r\n"), Ok(None));
    }
}
