//! Parses client queries in place.
//!
//! The caller owns the read buffer, and always passes it from the first byte that is not consumed:
//!
//! ```text
//! buf:   *3 CRLF $3 CRLF SET CRLF $1 CRLF k CRLF $5 CRLF hel|           (more to come)
//!                        ^^^               ^             ^pos
//!                        spans[0]          spans[1]      the parser resumes here
//! ```
//!
//! Nothing is consumed while a command is incomplete. The parser remembers `pos` (the start of the part not
//! yet understood), how many words are still to come, and the announced length of the current word. The next
//! call continues there (R3). The words of a complete command are spans from the buffer's start, valid until
//! the caller drops `used` bytes. Words of inline commands may contain escapes, so they are copied to a
//! buffer of the parser.
//!
//! It is as lenient as Redis: the byte after a header's CR is skipped unseen. It is stricter in two points:
//!
//! - A bulk that does not end with CR LF is refused, as in Valkey 9: its length was wrong, and what follows
//!   could be taken for a command.
//! - A header or inline line over 64 KB is refused even if it arrived whole (R2). Redis's answer depends on how
//!   the bytes were cut.

use crate::{Args, ProtocolError, Span, inline};

/// Longest inline command, and longest count or length line, in bytes.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Words and bytes per word allowed before AUTH.
const UNAUTHENTICATED_WORDS_MAX: i64 = 10;
const UNAUTHENTICATED_BULK_BYTES_MAX: i64 = 16 * 1024;
/// Span memory kept between commands.
const SPANS_KEPT: usize = 1024;
/// After this many words a command's announced count is believed. Room is made for all of them, so that the
/// list is not copied as it grows.
const SPANS_BELIEVED: usize = 1024;
/// Above this many words the list is never moved: it takes half a megabyte.
const SPANS_MOVED: usize = 64 * 1024;

/// Limits on the input of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Words per command (Redis 6.2: 1024 * 1024; Redis 7: `i32::MAX`).
    pub words_max: usize,
    /// `proto-max-bulk-len`: bytes per word.
    pub bulk_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { words_max: 1024 * 1024, bulk_bytes_max: 512 * 1024 * 1024 }
    }
}

/// Outcome of one call of [`Parser::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A command, with its words in [`Parser::args`]. Drop `used` bytes when done with them.
    Command { used: usize },
    /// An empty line or empty array: drop `used` bytes and go on. A replica's bare newline is one of these.
    Empty { used: usize },
    /// The command is incomplete. At least `need` more bytes are needed before another call can succeed.
    /// Inside a bulk this is exactly the missing part, so a reader may reserve it.
    More { need: usize },
}

/// The parser of one connection. It takes a few dozen bytes, and allocates its span list on the first
/// command.
#[derive(Debug, Default)]
pub struct Parser {
    limits: Limits,
    unauthenticated: bool,
    /// Bytes of the current command understood so far; 0 between commands.
    pos: usize,
    /// Bytes up to here, counted from the command's start, hold no line end behind `pos`. If not 0, `pos <=
    /// scanned`.
    scanned: usize,
    /// Words of the current multibulk still to come; 0 between commands.
    left: usize,
    /// The announced length of the word at `pos`, once its header is understood.
    bulk: Option<usize>,
    spans: Vec<Span>,
    /// Unquoted words of an inline command.
    text: Vec<u8>,
    inline: bool,
    failed: Option<ProtocolError>,
}

impl Parser {
    pub fn new(limits: Limits) -> Parser {
        Parser { limits, ..Parser::default() }
    }

    /// Changes the limits. They apply from the next header on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Sets whether the client is authenticated. Otherwise only small commands are accepted.
    pub fn set_authenticated(&mut self, authenticated: bool) {
        self.unauthenticated = !authenticated;
    }

    /// Whether the last call left a command half read.
    pub fn is_mid_command(&self) -> bool {
        self.pos != 0 || self.scanned != 0
    }

    /// Heap bytes held.
    pub fn mem_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.text.capacity()
    }

    /// Tries to parse one command at the start of `buf`.
    ///
    /// `buf` starts at the first byte that is not consumed. After `More` these are the same bytes and some
    /// more, after `Command` or `Empty` the bytes behind `used`. O(new bytes). After an error the connection
    /// must be closed; further calls repeat the error.
    pub fn parse(&mut self, buf: &[u8]) -> Result<Parsed, ProtocolError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let parsed = if self.left > 0 {
            self.words(buf)
        } else {
            match buf.first() {
                None => Ok(Parsed::More { need: 1 }),
                Some(b'*') => self.multibulk(buf),
                Some(_) => self.inline(buf),
            }
        };
        if let Err(error) = parsed {
            self.failed = Some(error);
        }
        parsed
    }

    /// The words of the command just parsed. `buf` must be the slice that [`Parser::parse`] was given.
    #[inline]
    pub fn args<'a>(&'a self, buf: &'a [u8]) -> Args<'a> {
        Args::new(if self.inline { &self.text } else { buf }, &self.spans)
    }

    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Takes the words of the command just parsed.
    pub(crate) fn take_spans(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.spans)
    }

    /// A guess, from the words so far, at the size of the command that is half read; 0 while too few have
    /// come.
    pub fn expected_bytes(&self) -> usize {
        let come = self.spans.len();
        if self.left == 0 || come < 64 {
            return 0;
        }
        let bytes = (self.pos / come + 1).saturating_mul(come + self.left);
        bytes.saturating_add(bytes / 16)
    }

    pub(crate) fn inline_text(&self) -> Option<&[u8]> {
        self.inline.then_some(&self.text)
    }

    /// Parses `*<count> CRLF`, then the words.
    fn multibulk(&mut self, buf: &[u8]) -> Result<Parsed, ProtocolError> {
        let Some((count, next)) = self.header(buf, ProtocolError::TooBigMultibulkCount)? else {
            return Ok(Parsed::More { need: 1 });
        };
        let count = count.ok_or(ProtocolError::InvalidMultibulkLength)?;
        if count > 0 && count as u64 > self.limits.words_max as u64 {
            return Err(ProtocolError::InvalidMultibulkLength);
        }
        if self.unauthenticated && count > UNAUTHENTICATED_WORDS_MAX {
            return Err(ProtocolError::UnauthenticatedMultibulkLength);
        }
        if count <= 0 {
            self.between_commands();
            return Ok(Parsed::Empty { used: next });
        }
        self.start_command();
        self.pos = next;
        self.left = count as usize;
        self.words(buf)
    }

    /// Parses the words still to come, as far as `buf` holds them.
    fn words(&mut self, buf: &[u8]) -> Result<Parsed, ProtocolError> {
        while self.left > 0 {
            let len = match self.bulk {
                Some(len) => len,
                None => match self.bulk_header(buf)? {
                    Some(len) => len,
                    None => return Ok(Parsed::More { need: 1 }),
                },
            };
            let (start, end) = (self.pos, self.pos + len);
            if buf.len() < end + 2 {
                self.bulk = Some(len);
                return Ok(Parsed::More { need: end + 2 - buf.len() });
            }
            if buf[end..end + 2] != *b"\r\n" {
                return Err(ProtocolError::InvalidTerminator);
            }
            if self.spans.len() == self.spans.capacity() {
                // Room for as many again as have come: an announced word may never come. With very many words
                // room for all, since moving them again takes long.
                let more = if self.spans.len() < SPANS_MOVED {
                    self.spans.len().max(SPANS_BELIEVED)
                } else {
                    self.left
                };
                self.spans.reserve_exact(self.left.min(more));
            }
            self.spans.push(Span::new(start, end));
            self.bulk = None;
            self.pos = end + 2;
            self.left -= 1;
        }
        let used = self.pos;
        self.between_commands();
        Ok(Parsed::Command { used })
    }

    /// Parses `$<length> CRLF` at `pos`, moves `pos` behind it and returns the length.
    #[inline]
    fn bulk_header(&mut self, buf: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let Some((len, next)) = self.header(buf, ProtocolError::TooBigBulkCount)? else {
            return Ok(None);
        };
        if buf[self.pos] != b'$' {
            return Err(ProtocolError::ExpectedDollar(buf[self.pos]));
        }
        let len = len.filter(|&len| len >= 0).ok_or(ProtocolError::InvalidBulkLength)?;
        if len as u64 > self.limits.bulk_bytes_max as u64 {
            return Err(ProtocolError::InvalidBulkLength);
        }
        if self.unauthenticated && len > UNAUTHENTICATED_BULK_BYTES_MAX {
            return Err(ProtocolError::UnauthenticatedBulkLength);
        }
        if next as u64 + len as u64 + 2 > u64::from(u32::MAX) {
            return Err(ProtocolError::TooBigRequest);
        }
        self.pos = next;
        Ok(Some(len as usize))
    }

    /// Parses a type byte at `pos`, a decimal, CR and any byte. Returns the number (`None` if it is not one)
    /// and the end of the header; `None` if the line is not complete.
    #[inline]
    fn header(
        &mut self,
        buf: &[u8],
        too_big: ProtocolError,
    ) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
        // Nearly every header has one to three digits.
        match buf.get(self.pos..) {
            Some(&[_, a @ b'0'..=b'9', b'\r', _, ..]) => Ok(Some((Some(digit(a)), self.pos + 4))),
            Some(&[_, a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', _, ..]) => {
                Ok(Some((Some(digit(a) * 10 + digit(b)), self.pos + 5)))
            }
            Some(&[_, a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b'\r', _, ..]) => {
                Ok(Some((Some(digit(a) * 100 + digit(b) * 10 + digit(c)), self.pos + 6)))
            }
            _ => self.long_header(buf, too_big),
        }
    }

    #[inline(never)]
    fn long_header(
        &mut self,
        buf: &[u8],
        too_big: ProtocolError,
    ) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
        match self.line_end(buf, b'\r', too_big)? {
            Some(end) if end + 1 < buf.len() => {
                // A line may be just its CR, even without a type byte.
                let digits = buf.get(self.pos + 1..end).unwrap_or(&[]);
                self.scanned = 0;
                Ok(Some((stdx::num::parse_i64(digits), end + 2)))
            }
            Some(end) => {
                self.scanned = end;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// The end of the line that starts at `pos`. Looks only at new bytes.
    fn line_end(
        &mut self,
        buf: &[u8],
        mark: u8,
        too_big: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        let from = self.scanned.max(self.pos);
        let until = buf.len().min(self.pos + INLINE_BYTES_MAX + 1);
        if let Some(found) = memchr::memchr(mark, buf.get(from..until).unwrap_or(&[])) {
            return Ok(Some(from + found));
        }
        if buf.len() - self.pos > INLINE_BYTES_MAX {
            return Err(too_big);
        }
        self.scanned = until;
        Ok(None)
    }

    /// Parses a line of words.
    fn inline(&mut self, buf: &[u8]) -> Result<Parsed, ProtocolError> {
        let Some(end) = self.line_end(buf, b'\n', ProtocolError::TooBigInline)? else {
            return Ok(Parsed::More { need: 1 });
        };
        let line = &buf[..end];
        self.start_command();
        inline::split_into(line.strip_suffix(b"\r").unwrap_or(line), &mut self.text, &mut self.spans)?;
        self.inline = true;
        self.between_commands();
        let used = end + 1;
        Ok(if self.spans.is_empty() { Parsed::Empty { used } } else { Parsed::Command { used } })
    }

    /// Forgets the words of the previous command.
    #[inline]
    fn start_command(&mut self) {
        self.spans.clear();
        self.text.clear();
        self.inline = false;
        if self.spans.capacity() > SPANS_KEPT {
            self.spans = Vec::new();
        }
    }

    #[inline]
    fn between_commands(&mut self) {
        self.pos = 0;
        self.scanned = 0;
    }
}

fn digit(byte: u8) -> i64 {
    i64::from(byte - b'0')
}
