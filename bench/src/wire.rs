//! Commands to bytes, and replies counted or read.
//!
//! The load generator needs no values, only the end of each reply and whether it is an error. [`Scanner`]
//! finds both without keeping anything, whatever chunks it is fed. [`Value`] reads the value too.

use std::io;

/// Appends one command as RESP.
pub fn command(out: &mut Vec<u8>, parts: &[&[u8]]) {
    header(out, b'*', parts.len());
    for part in parts {
        bulk(out, part);
    }
}

/// Appends the header of a command of `parts` parts; [`bulk`] appends the parts.
pub fn header(out: &mut Vec<u8>, kind: u8, parts: usize) {
    out.push(kind);
    decimal(out, parts as u64);
    out.extend_from_slice(b"\r\n");
}

pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

pub fn decimal(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Counts complete replies in a stream of bytes. Cost: O(1) per bulk body, one step per byte of header.
#[derive(Default)]
pub struct Scanner {
    /// Values missing until the present top-level reply is complete; 0 between replies.
    pending: u64,
    /// Bytes of a bulk body (and its line end) to be skipped.
    skip: usize,
    /// Type byte of the line being read, or 0 when a new one begins.
    kind: u8,
    number: u64,
    negative: bool,
    errors: u64,
    first_error: Vec<u8>,
}

impl Scanner {
    /// Takes the next bytes of the stream and returns the number of top-level replies they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> u64 {
        let mut complete = 0;
        let mut at = 0;
        while at < bytes.len() {
            if self.skip > 0 {
                let step = self.skip.min(bytes.len() - at);
                self.skip -= step;
                at += step;
                if self.skip == 0 {
                    complete += self.close();
                }
                continue;
            }
            let byte = bytes[at];
            at += 1;
            if self.kind == 0 {
                self.open(byte);
            } else if byte == b'\n' {
                complete += self.end_line();
            } else if byte.is_ascii_digit() && self.kind != b'-' {
                self.number = self.number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
            } else if self.kind == b'-' {
                if self.errors == 1 && byte != b'\r' && self.first_error.len() < 200 {
                    self.first_error.push(byte);
                }
            } else if byte == b'-' {
                self.negative = true;
            }
        }
        complete
    }

    /// Error replies seen, and the text of the first.
    pub fn errors(&self) -> (u64, String) {
        (self.errors, String::from_utf8_lossy(&self.first_error).into_owned())
    }

    /// Whether the stream is between two replies.
    pub fn at_rest(&self) -> bool {
        self.pending == 0 && self.kind == 0
    }

    fn open(&mut self, kind: u8) {
        self.pending = self.pending.max(1);
        self.kind = kind;
        self.number = 0;
        self.negative = false;
        self.errors += u64::from(kind == b'-');
    }

    fn end_line(&mut self) -> u64 {
        let kind = std::mem::take(&mut self.kind);
        match kind {
            b'$' | b'!' | b'=' if !self.negative => {
                self.skip = self.number as usize + 2;
                return 0;
            }
            b'*' | b'~' | b'>' if !self.negative => self.pending += self.number,
            b'%' => self.pending += 2 * self.number,
            _ => {}
        }
        self.close()
    }

    fn close(&mut self) -> u64 {
        self.pending -= 1;
        u64::from(self.pending == 0)
    }
}

/// A RESP2 reply as a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Value>),
}

impl Value {
    /// Reads one reply. Errors: the stream's, and `InvalidData` where it is not RESP2.
    pub fn read(from: &mut impl io::BufRead) -> io::Result<Value> {
        let mut line = Vec::new();
        from.read_until(b'\n', &mut line)?;
        let (kind, text) = match line.strip_suffix(b"\r\n") {
            Some([kind, rest @ ..]) => (*kind, String::from_utf8_lossy(rest).into_owned()),
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP2 reply: {text:?}"));
        Ok(match kind {
            b'+' => Value::Simple(text),
            b'-' => Value::Error(text),
            b':' => Value::Int(text.parse().map_err(|_| bad())?),
            b'$' | b'*' if text.starts_with('-') => Value::Nil,
            b'$' => {
                let mut body = vec![0; text.parse::<usize>().map_err(|_| bad())? + 2];
                from.read_exact(&mut body)?;
                body.truncate(body.len() - 2);
                Value::Bulk(body)
            }
            b'*' => {
                let n = text.parse::<usize>().map_err(|_| bad())?;
                Value::Array((0..n).map(|_| Value::read(from)).collect::<io::Result<_>>()?)
            }
            _ => return Err(bad()),
        })
    }

    /// The bulk or simple string's text, lossily; empty for anything else.
    pub fn text(&self) -> String {
        match self {
            Value::Simple(text) => text.clone(),
            Value::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: &[u8] =
        b"+OK\r\n:-12\r\n$3\r\nabc\r\n$-1\r\n*-1\r\n*2\r\n$0\r\n\r\n*1\r\n:5\r\n-ERR no 5\r\n*0\r\n";

    #[test]
    fn replies_are_counted_however_they_are_cut() {
        for step in 1..REPLIES.len() {
            let mut scanner = Scanner::default();
            let complete: u64 = REPLIES.chunks(step).map(|chunk| scanner.feed(chunk)).sum();
            assert_eq!(complete, 8, "in chunks of {step}");
            assert_eq!(scanner.errors(), (1, "ERR no 5".to_string()));
        }
    }

    #[test]
    fn values_read_back() {
        let mut from = REPLIES;
        let mut values = Vec::new();
        while !from.is_empty() {
            values.push(Value::read(&mut from).unwrap());
        }
        assert_eq!(values.len(), 8);
        assert_eq!(values[1], Value::Int(-12));
        assert_eq!(values[5], Value::Array(vec![Value::Bulk(vec![]), Value::Array(vec![Value::Int(5)])]));
    }

    #[test]
    fn commands_are_arrays_of_bulks() {
        let mut out = Vec::new();
        command(&mut out, &[b"GET", b"key:000000000010"]);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000010\r\n");
    }
}
