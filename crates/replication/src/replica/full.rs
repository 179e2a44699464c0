//! The file of a full sync, as a reader: of a known length, or up to a mark of forty bytes.

use std::io::{self, ErrorKind, Read};

/// The header before the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Header {
    Length(u64),
    /// The file ends where these forty bytes are.
    Mark([u8; 40]),
}

impl Header {
    /// Reads a line without its end. None: an empty line, a sign of life. Errors: the primary's, or a sentence.
    pub(super) fn of(line: &[u8]) -> Result<Option<Header>, String> {
        if line.is_empty() {
            return Ok(None);
        }
        let strange = || format!("the file was announced by: {}", line.escape_ascii());
        if let Some(error) = line.strip_prefix(b"-") {
            return Err(String::from_utf8_lossy(error).into_owned());
        }
        let rest = line.strip_prefix(b"$").ok_or_else(strange)?;
        if let Some(mark) = rest.strip_prefix(b"EOF:") {
            return mark.try_into().map(|mark| Some(Header::Mark(mark))).map_err(|_| strange());
        }
        let length = std::str::from_utf8(rest).ok().and_then(|text| text.parse().ok());
        length.map(|length| Some(Header::Length(length))).ok_or_else(strange)
    }
}

/// Bytes that came and are not used yet.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    from: usize,
}

/// Bytes read at once.
const READ: usize = 64 * 1024;

impl Buffer {
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.from..]
    }

    pub(super) fn take_rest(&mut self) -> Vec<u8> {
        let rest = self.rest().to_vec();
        *self = Buffer::default();
        rest
    }

    pub(super) fn drop_front(&mut self, n: usize) {
        self.from += n;
        if self.from == self.bytes.len() {
            self.bytes.clear();
            self.from = 0;
        }
    }

    /// Reads more behind the rest. Ok(0): the peer ended.
    pub(super) fn fill(&mut self, input: &mut impl Read) -> io::Result<usize> {
        self.bytes.drain(..std::mem::take(&mut self.from));
        let had = self.bytes.len();
        self.bytes.resize(had + READ, 0);
        let read = input.read(&mut self.bytes[had..]);
        self.bytes.truncate(had + *read.as_ref().unwrap_or(&0));
        read
    }

    /// A whole line without its end, if there is one. Errors: it is longer than any line can be.
    pub(super) fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.rest().iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                let line = self.rest()[..at].strip_suffix(b"\r").unwrap_or(&self.rest()[..at]).to_vec();
                self.drop_front(at + 1);
                Ok(Some(line))
            }
            None if self.rest().len() > LINE_MAX => {
                Err(io::Error::new(ErrorKind::InvalidData, "a line of the primary has no end"))
            }
            None => Ok(None),
        }
    }
}

const LINE_MAX: usize = 64 * 1024;

/// The bytes of one file, out of a buffer and the stream behind it.
pub(super) struct FileReader<'b, R> {
    buffer: &'b mut Buffer,
    input: R,
    header: Header,
    /// Bytes of the file that were given out.
    pub(super) given: u64,
    ended: bool,
}

impl<'b, R: Read> FileReader<'b, R> {
    pub(super) fn new(buffer: &'b mut Buffer, input: R, header: Header) -> FileReader<'b, R> {
        FileReader { buffer, input, header, given: 0, ended: false }
    }

    /// Bytes of the whole file, if that is known.
    pub(super) fn length(&self) -> Option<u64> {
        if let Header::Length(length) = self.header { Some(length) } else { None }
    }

    pub(super) fn input(&mut self) -> &mut R {
        &mut self.input
    }

    /// Reads what the loader left. O(that).
    pub(super) fn drain(&mut self) -> io::Result<()> {
        let mut waste = [0; 4096];
        while self.read(&mut waste)? > 0 {}
        Ok(())
    }

    /// How many bytes in the buffer are of the file, up to about `wanted`, and the length of the mark if it is
    /// right behind them.
    fn at_hand(&self, wanted: usize) -> (usize, Option<usize>) {
        let rest = self.buffer.rest();
        match &self.header {
            Header::Length(length) => {
                let left = usize::try_from(length - self.given).unwrap_or(usize::MAX);
                (rest.len().min(left), (left <= rest.len()).then_some(0))
            }
            Header::Mark(mark) => {
                let part = &rest[..rest.len().min(wanted.saturating_add(mark.len()))];
                match part.windows(mark.len()).position(|bytes| bytes == mark) {
                    Some(at) => (at, Some(mark.len())),
                    // The last bytes may be the beginning of the mark.
                    None => (part.len().saturating_sub(mark.len() - 1), None),
                }
            }
        }
    }
}

impl<R: Read> Read for FileReader<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.ended || out.is_empty() {
            return Ok(0);
        }
        loop {
            let (bytes, end) = self.at_hand(out.len());
            if bytes > 0 {
                let n = bytes.min(out.len());
                out[..n].copy_from_slice(&self.buffer.rest()[..n]);
                self.buffer.drop_front(n);
                self.given += n as u64;
                return Ok(n);
            }
            if let Some(mark) = end {
                self.buffer.drop_front(mark);
                self.ended = true;
                return Ok(0);
            }
            if self.buffer.fill(&mut self.input)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that gives some bytes at a time.
    struct Drops<'a>(&'a [u8], usize);

    impl Read for Drops<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(self.0.len()).min(out.len());
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    const MARK: &[u8; 40] = b"0000000000111111111122222222223333333333";

    #[test]
    fn headers_are_lengths_or_marks() {
        assert_eq!(Header::of(b"").unwrap(), None);
        assert_eq!(Header::of(b"$17").unwrap(), Some(Header::Length(17)));
        let line = [b"$EOF:", &MARK[..]].concat();
        assert_eq!(Header::of(&line).unwrap(), Some(Header::Mark(*MARK)));
        for line in [&b"$-1"[..], b"$EOF:short", b"+OK", b"$", b"17"] {
            assert!(Header::of(line).unwrap_err().starts_with("the file was announced by"));
        }
        assert_eq!(Header::of(b"-ERR disk").unwrap_err(), "ERR disk");
    }

    /// However the bytes come, the file ends where it ends, and what follows stays in the buffer.
    #[test]
    fn a_file_ends_at_its_length_or_mark_however_it_comes() {
        // A part of the mark within the file is no mark.
        let file = [b"REDIS", &MARK[..39], b"x", &MARK[1..]].concat();
        for step in [1, 2, 7, 39, 40, 41, 1000] {
            for header in [Header::Length(file.len() as u64), Header::Mark(*MARK)] {
                let mark = if header == Header::Mark(*MARK) { &MARK[..] } else { &[] };
                let all = [&file, mark, b"*1\r\n"].concat();
                let mut input = Drops(&all, step);
                let mut buffer = Buffer::default();
                let mut reader = FileReader::new(&mut buffer, &mut input, header);
                let mut got = Vec::new();
                let mut piece = [0; 5];
                loop {
                    let n = reader.read(&mut piece).unwrap();
                    if n == 0 {
                        break;
                    }
                    got.extend_from_slice(&piece[..n]);
                }
                assert_eq!(reader.given, file.len() as u64);
                assert_eq!(got, file);
                let mut rest = buffer.take_rest();
                input.read_to_end(&mut rest).unwrap();
                assert_eq!(rest, b"*1\r\n");
            }
        }
    }

    #[test]
    fn a_file_that_breaks_off_is_an_error() {
        for header in [Header::Length(10), Header::Mark(*MARK)] {
            let mut buffer = Buffer::default();
            let mut input: &[u8] = b"short";
            let mut reader = FileReader::new(&mut buffer, &mut input, header);
            assert_eq!(reader.drain().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn lines_end_with_or_without_a_return() {
        let mut buffer = Buffer::default();
        let mut input: &[u8] = b"\n+OK\r\n+half";
        buffer.fill(&mut input).unwrap();
        assert_eq!(buffer.line().unwrap(), Some(Vec::new()));
        assert_eq!(buffer.line().unwrap(), Some(b"+OK".to_vec()));
        assert_eq!(buffer.line().unwrap(), None);
        assert_eq!(buffer.rest(), b"+half");
    }
}
