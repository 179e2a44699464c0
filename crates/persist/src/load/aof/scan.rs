//! Finds whole units in a file of commands, without applying them.
//!
//! A unit is a batch where the file has lines about batches ([`crate::files::incr`]), else a command or MULTI
//! … EXEC.
//!
//! - A1: memory is a window of [`WINDOW`] bytes. Only [`Window::range`] takes more, for a command that is
//!   whole.
//! - A2: no count and no length is trusted: both are compared with the rest of the file.
//! - A3: a scan takes O(bytes), each looked at a bounded number of times.

use crate::files::incr::{LINE, LINE_MAX, Line, is_select};
use rdb::crc64;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// Bytes of the window.
const WINDOW: usize = 256 << 10;
/// Bytes of a line that begins with `#`, as in Redis, and of a count or length.
const NOTE_MAX: u64 = 1024;
const HEADER_MAX: u64 = 32;
/// The least that a word of a command takes.
const WORD_MIN: u64 = 6;

/// Bytes at offsets.
pub trait ReadAt: Send + Sync {
    /// Reads some bytes; 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        (**self).read_at(buffer, offset)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        let len = buffer.len().min(self.len() - from);
        buffer[..len].copy_from_slice(&self[from..from + len]);
        Ok(len)
    }
}

/// A part of a file in memory.
pub(crate) struct Window<'f> {
    file: Box<dyn ReadAt + 'f>,
    len: u64,
    base: u64,
    bytes: Vec<u8>,
}

impl<'f> Window<'f> {
    pub(crate) fn new(file: Box<dyn ReadAt + 'f>, len: u64) -> Window<'f> {
        Window { file, len, base: 0, bytes: Vec::new() }
    }

    /// Bytes that the file has.
    ///
    /// # Panics
    /// Panics if it does not have them.
    pub(crate) fn range(&mut self, from: u64, to: u64) -> io::Result<&[u8]> {
        assert!(from <= to && to <= self.len, "{from}..{to} of {}", self.len);
        if from < self.base || to > self.base + self.bytes.len() as u64 {
            self.fill(from, (to - from) as usize)?;
        }
        let start = (from - self.base) as usize;
        Ok(&self.bytes[start..start + (to - from) as usize])
    }

    fn fill(&mut self, from: u64, least: usize) -> io::Result<()> {
        let left = usize::try_from(self.len - from).unwrap_or(usize::MAX);
        let want = least.max(WINDOW).min(left);
        self.bytes.clear();
        self.bytes.shrink_to(want.max(WINDOW));
        self.bytes.resize(want, 0);
        self.base = from;
        let mut read = 0;
        while read < want {
            match self.file.read_at(&mut self.bytes[read..], from + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.bytes.clear();
                    return Err(error);
                }
            }
        }
        self.bytes.truncate(read);
        if read < least { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// At least `most` bytes from an offset on, or as many as the file has.
    fn upto(&mut self, from: u64, most: u64) -> io::Result<&[u8]> {
        let to = self.len.min(from + most);
        self.range(from, to)
    }

    /// The checksum of a range, continued.
    fn sum(&mut self, mut sum: u64, mut from: u64, to: u64) -> io::Result<u64> {
        while from < to {
            let end = to.min(from + WINDOW as u64 / 4);
            sum = crc64(sum, self.range(from, end)?);
            from = end;
        }
        Ok(sum)
    }
}

/// The kinds of commands that a scan tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    Multi,
    Exec,
    Select,
    Other,
}

/// The item at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Command {
        end: u64,
        kind: CommandKind,
    },
    Note {
        end: u64,
    },
    End,
    /// The file ends within it.
    Torn,
    Bad(&'static str),
}

/// The result of reading a number in a header.
enum Header {
    Number { value: u64, end: u64 },
    Torn,
    Bad,
}

impl Window<'_> {
    pub(crate) fn token(&mut self, at: u64) -> io::Result<Token> {
        if at == self.len {
            return Ok(Token::End);
        }
        match self.range(at, at + 1)?[0] {
            b'#' => {
                let text = self.upto(at, NOTE_MAX)?;
                let (end, len) = (memchr::memchr(b'\n', text), text.len() as u64);
                Ok(match end {
                    Some(end) => Token::Note { end: at + end as u64 + 1 },
                    None if len < NOTE_MAX => Token::Torn,
                    None => Token::Bad("a note is too long"),
                })
            }
            b'*' => self.command(at),
            _ => Ok(Token::Bad("this is no command")),
        }
    }

    /// `*<number>` or `$<number>`.
    fn header(&mut self, at: u64, sign: u8) -> io::Result<Header> {
        let text = self.upto(at, HEADER_MAX)?;
        let len = text.len() as u64;
        let Some(end) = memchr::memchr(b'\n', text) else {
            let is_plain = text.iter().enumerate().all(|(i, byte)| match i {
                0 => *byte == sign,
                _ => byte.is_ascii_digit() || *byte == b'\r',
            });
            return Ok(if len < HEADER_MAX && is_plain { Header::Torn } else { Header::Bad });
        };
        let digits = text[..end].strip_suffix(b"\r").and_then(|text| text.strip_prefix(&[sign]));
        let is_plain =
            |digits: &&[u8]| (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
        Ok(match digits.filter(is_plain) {
            Some(digits) => {
                let value = digits.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0'));
                Header::Number { value, end: at + end as u64 + 1 }
            }
            None => Header::Bad,
        })
    }

    fn command(&mut self, from: u64) -> io::Result<Token> {
        let (words, mut at) = match self.header(from, b'*')? {
            Header::Number { value, end } => (value, end),
            Header::Torn => return Ok(Token::Torn),
            Header::Bad => return Ok(Token::Bad("the number of words is not a number")),
        };
        if words == 0 {
            return Ok(Token::Bad("a command has no words"));
        }
        // A2
        if words > (self.len - at) / WORD_MIN {
            return Ok(Token::Torn);
        }
        let mut kind = CommandKind::Other;
        for word in 0..words {
            let (len, start) = match self.header(at, b'$')? {
                Header::Number { value, end } => (value, end),
                Header::Torn => return Ok(Token::Torn),
                Header::Bad => return Ok(Token::Bad("the length of a word is not a number")),
            };
            if len + 2 > self.len - start {
                return Ok(Token::Torn);
            }
            if word == 0 && len <= 6 {
                kind = kind_of(self.range(start, start + len)?, words);
            }
            at = start + len + 2;
            if self.range(at - 2, at)? != b"\r\n" {
                return Ok(Token::Bad("a word does not end where it should"));
            }
        }
        Ok(Token::Command { end: at, kind })
    }

    /// The words of a whole command.
    pub(crate) fn words(&mut self, from: u64, to: u64) -> io::Result<Vec<&[u8]>> {
        let bytes = self.range(from, to)?;
        let (words, mut at) = plain_header(bytes, 0);
        let mut args = Vec::with_capacity(words.min(bytes.len()));
        for _ in 0..words {
            let (len, start) = plain_header(bytes, at);
            args.push(&bytes[start..start + len]);
            at = start + len + 2;
        }
        Ok(args)
    }
}

/// A number that is known to be sound, and the end of its line.
fn plain_header(bytes: &[u8], at: usize) -> (usize, usize) {
    let mut end = at + 1;
    let mut value = 0;
    while bytes[end].is_ascii_digit() {
        value = value * 10 + usize::from(bytes[end] - b'0');
        end += 1;
    }
    (value, end + 2)
}

fn kind_of(name: &[u8], words: u64) -> CommandKind {
    match name {
        name if name.eq_ignore_ascii_case(b"multi") && words == 1 => CommandKind::Multi,
        name if name.eq_ignore_ascii_case(b"exec") && words == 1 => CommandKind::Exec,
        name if name.eq_ignore_ascii_case(b"select") && words == 2 => CommandKind::Select,
        _ => CommandKind::Other,
    }
}

/// The next part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Commands to apply. The line of a batch.
    Whole {
        from: u64,
        to: u64,
        line: Option<Line>,
    },
    /// Nothing more but notes.
    End,
    /// The rest of an unfinished write. All before `from` is whole.
    Torn {
        from: u64,
    },
    Damaged {
        offset: u64,
        why: &'static str,
    },
}

/// The place where a scan stopped, and the reason.
struct Stop {
    at: u64,
    why: &'static str,
    /// Commands reach to the very end of the file, and one of them is SELECT.
    is_whole: bool,
}

/// A scan of one file.
pub(crate) struct Scan<'f> {
    pub(crate) window: Window<'f>,
    /// The line at the head, if the file has lines.
    pub(crate) head: Option<Line>,
    seed: u64,
    sum: u64,
    last: u64,
    /// Everything before is whole.
    pub(crate) at: u64,
    /// Nothing was read, and the file has no head.
    at_head: bool,
    /// The offset from which on another server has appended.
    pub(crate) foreign_from: Option<u64>,
}

impl<'f> Scan<'f> {
    /// Begins at an offset, behind a snapshot that precedes the commands.
    pub(crate) fn new(file: Box<dyn ReadAt + 'f>, len: u64, from: u64) -> io::Result<Scan<'f>> {
        let window = Window::new(file, len);
        let mut scan = Scan {
            window,
            head: None,
            seed: 0,
            sum: 0,
            last: 0,
            at: from,
            at_head: from == 0,
            foreign_from: None,
        };
        if from == 0
            && let Some((line, end)) = scan.line(0, None)?
            && line.bytes == 0
        {
            (scan.head, scan.seed, scan.sum) = (Some(line), line.synced, line.sum);
            (scan.at, scan.last, scan.at_head) = (end, line.last, false);
        }
        Ok(scan)
    }

    /// The line about a batch at an offset, and its end.
    fn line(&mut self, at: u64, seed: Option<u64>) -> io::Result<Option<(Line, u64)>> {
        let text = self.window.upto(at, LINE_MAX as u64)?;
        let Some(end) = memchr::memchr(b'\n', text).filter(|_| text.starts_with(LINE)) else {
            return Ok(None);
        };
        let line = Line::parse(&text[..=end], seed);
        Ok(line.map(|line| (line, at + end as u64 + 1)))
    }

    pub(crate) fn next(&mut self) -> io::Result<Unit> {
        if self.head.is_some() && self.foreign_from.is_none() {
            return self.batch();
        }
        let unit = self.group()?;
        match unit {
            // The line at the head is durable before anything follows it.
            _ if self.at_head && self.window.upto(0, LINE.len() as u64)? == LINE => self.bad_head(),
            // It did not reach the disk, but the length did.
            Unit::Damaged { .. } if self.at_head && self.is_blank()? => Ok(Unit::Torn { from: 0 }),
            unit => {
                self.at_head = false;
                Ok(unit)
            }
        }
    }

    /// The first line is one about a batch, and not sound.
    fn bad_head(&mut self) -> io::Result<Unit> {
        self.at = 0;
        let is_cut = !self.window.upto(0, LINE_MAX as u64)?.contains(&b'\n');
        let why = "the line at the head of the file is damaged";
        Ok(if is_cut { Unit::Torn { from: 0 } } else { Unit::Damaged { offset: 0, why } })
    }

    /// Whether a file that holds no more than a head could is all zeros.
    fn is_blank(&mut self) -> io::Result<bool> {
        let bytes = self.window.upto(0, LINE_MAX as u64)?;
        let is_blank = bytes.iter().all(|byte| *byte == 0);
        Ok(is_blank && self.window.len <= LINE_MAX as u64)
    }

    /// The next command or transaction.
    fn group(&mut self) -> io::Result<Unit> {
        let from = self.at;
        let (mut at, mut begun) = (from, None);
        loop {
            match self.window.token(at)? {
                Token::Note { end } => at = end,
                Token::Command { end, kind } => {
                    let start = *begun.get_or_insert(at);
                    match (kind, start == at) {
                        (CommandKind::Multi, true) => {}
                        (CommandKind::Multi, false) => {
                            return Ok(Unit::Damaged { offset: at, why: "MULTI stands within MULTI" });
                        }
                        (CommandKind::Exec, true) => {
                            return Ok(Unit::Damaged { offset: at, why: "EXEC stands without MULTI" });
                        }
                        (CommandKind::Exec, false) | (CommandKind::Select | CommandKind::Other, true) => {
                            self.at = end;
                            return Ok(Unit::Whole { from: start, to: end, line: None });
                        }
                        (CommandKind::Select | CommandKind::Other, false) => {}
                    }
                    at = end;
                }
                Token::End if begun.is_none() => {
                    self.at = at;
                    return Ok(Unit::End);
                }
                Token::End | Token::Torn => return Ok(Unit::Torn { from }),
                Token::Bad(why) => return Ok(Unit::Damaged { offset: at, why }),
            }
        }
    }

    /// The next batch.
    fn batch(&mut self) -> io::Result<Unit> {
        let from = self.at;
        match self.find_batch()? {
            Ok(unit) => Ok(unit),
            // E4. It may have cut off what it took for torn, and gone on behind whole commands of a batch.
            Err(stop) if stop.is_whole || self.is_foreign(from)? => {
                self.foreign_from = Some(from);
                self.group()
            }
            // E2
            Err(stop) if self.is_known_durable(from)? => Ok(Unit::Damaged { offset: stop.at, why: stop.why }),
            Err(_) => Ok(Unit::Torn { from }),
        }
    }

    fn find_batch(&mut self) -> io::Result<Result<Unit, Stop>> {
        let from = self.at;
        let (mut at, mut in_multi, mut commands) = (from, false, false);
        let mut selects = false;
        let stop = |at, why| Ok(Err(Stop { at, why, is_whole: false }));
        loop {
            match self.window.token(at)? {
                Token::Note { end } => {
                    if self.window.upto(at, LINE.len() as u64)? == LINE {
                        return self.ends_batch(from, at, in_multi);
                    }
                    at = end;
                }
                Token::Command { end, kind } => {
                    match (kind, in_multi) {
                        (CommandKind::Multi, true) => return stop(at, "MULTI stands within MULTI"),
                        (CommandKind::Exec, false) => return stop(at, "EXEC stands without MULTI"),
                        (CommandKind::Multi, false) => in_multi = true,
                        (CommandKind::Exec, true) => in_multi = false,
                        _ => {}
                    }
                    commands = true;
                    selects |= kind == CommandKind::Select;
                    at = end;
                }
                Token::End if !commands => return Ok(Ok(Unit::End)),
                Token::End if !in_multi && selects => {
                    return Ok(Err(Stop { at, why: "the line of a batch is missing", is_whole: true }));
                }
                Token::End | Token::Torn => return stop(at, "the file ends within a batch"),
                Token::Bad(why) => return stop(at, why),
            }
        }
    }

    /// A line stands at `at`: whether it is that of the batch before it.
    fn ends_batch(&mut self, from: u64, at: u64, in_multi: bool) -> io::Result<Result<Unit, Stop>> {
        let stop = |why| Ok(Err(Stop { at, why, is_whole: false }));
        let Some((line, end)) = self.line(at, Some(self.seed))? else {
            return stop("the line about a batch is damaged");
        };
        let goes_on = line.first > self.last || (line.bytes == 0 && line.last == self.last);
        if line.bytes != at - from || !goes_on || in_multi {
            return stop("the line about a batch does not match it");
        }
        let sum = self.window.sum(self.sum, from, at)?;
        if sum != line.sum {
            return stop("the checksum of a batch does not match");
        }
        (self.at, self.sum, self.last) = (end, sum, line.last);
        Ok(Ok(Unit::Whole { from, to: at, line: Some(line) }))
    }

    /// Whether commands at an offset were appended by another server (E4).
    fn is_foreign(&mut self, mut at: u64) -> io::Result<bool> {
        loop {
            let text = self.window.upto(at, 32)?;
            if text.starts_with(b"#TS:") {
                return Ok(true);
            }
            match self.window.token(at)? {
                Token::Note { end } if self.window.range(at, at + 2)? == b"#-" => at = end,
                Token::Command { .. } => return Ok(is_select(self.window.upto(at, 32)?)),
                _ => return Ok(false),
            }
        }
    }

    /// Whether a later line says that a batch at an offset was durable (E2).
    fn is_known_durable(&mut self, from: u64) -> io::Result<bool> {
        let (mut at, overlap) = (from, LINE_MAX as u64);
        while at < self.window.len {
            let text = self.window.upto(at, WINDOW as u64 / 2)?;
            let len = text.len() as u64;
            // The line end before it may be what is damaged. A value cannot imitate a line (E1).
            let places: Vec<u64> =
                memchr::memmem::find_iter(text, b"#EK 1 ").map(|place| place as u64).collect();
            for place in places {
                let line = self.line(at + place, Some(self.seed))?;
                if line.is_some_and(|(line, _)| line.synced > from) {
                    return Ok(true);
                }
            }
            if at + len == self.window.len {
                break;
            }
            at += len - overlap;
        }
        Ok(false)
    }
}
