//! A reader of RESP2 and RESP3 that shares no line with the server under test, and a blocking connection on
//! top.
//!
//! Numbers inside frames stay text: `,3.5` and `,3.50` are different replies here.

use dial::Address;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Frame {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Int(i64),
    Bulk(Vec<u8>),
    /// `$-1`
    NullBulk,
    /// `*-1`
    NullArray,
    /// `_`
    Null,
    Array(Vec<Frame>),
    Map(Vec<(Frame, Frame)>),
    Set(Vec<Frame>),
    Push(Vec<Frame>),
    Double(Vec<u8>),
    Bool(bool),
    BigNumber(Vec<u8>),
    Verbatim(Vec<u8>),
    /// No frame came: the connection closed, or nothing arrived in time.
    Gone(&'static str),
}

impl Frame {
    pub fn is_error(&self) -> bool {
        matches!(self, Frame::Error(_))
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Frame::NullBulk | Frame::NullArray | Frame::Null)
    }

    /// The elements of any aggregate except a map.
    pub fn items(&self) -> Option<&[Frame]> {
        match self {
            Frame::Array(items) | Frame::Set(items) | Frame::Push(items) => Some(items),
            _ => None,
        }
    }

    /// The text of a leaf, if it has one.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Frame::Simple(text)
            | Frame::Error(text)
            | Frame::Bulk(text)
            | Frame::Double(text)
            | Frame::BigNumber(text)
            | Frame::Verbatim(text) => Some(text),
            _ => None,
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Frame::Simple(_) => "simple",
            Frame::Error(_) => "error",
            Frame::Int(_) => "int",
            Frame::Bulk(_) => "bulk",
            Frame::NullBulk => "null bulk",
            Frame::NullArray => "null array",
            Frame::Null => "null",
            Frame::Array(_) => "array",
            Frame::Map(_) => "map",
            Frame::Set(_) => "set",
            Frame::Push(_) => "push",
            Frame::Double(_) => "double",
            Frame::Bool(_) => "bool",
            Frame::BigNumber(_) => "big number",
            Frame::Verbatim(_) => "verbatim",
            Frame::Gone(_) => "nothing",
        }
    }

    /// Every leaf in order, aggregates flattened.
    pub fn leaves<'a>(&'a self, out: &mut Vec<&'a Frame>) {
        match self {
            Frame::Array(items) | Frame::Set(items) | Frame::Push(items) => {
                items.iter().for_each(|item| item.leaves(out));
            }
            Frame::Map(pairs) => {
                for (key, value) in pairs {
                    key.leaves(out);
                    value.leaves(out);
                }
            }
            leaf => out.push(leaf),
        }
    }
}

/// Text in the form of redis-cli: quoted and escaped if necessary, shortened in the middle if long.
pub fn quote(text: &[u8]) -> String {
    const LONGEST: usize = 160;
    if text.len() > LONGEST {
        let (head, tail) = (&text[..80], &text[text.len() - 20..]);
        return format!("{}...({} bytes)...{}", quote_all(head), text.len(), quote_all(tail));
    }
    quote_all(text)
}

/// As [`quote`], at full length.
pub fn quote_all(text: &[u8]) -> String {
    let plain = |b: &u8| b.is_ascii_graphic() && !b"\"'\\".contains(b);
    if !text.is_empty() && text.iter().all(plain) {
        return String::from_utf8_lossy(text).into_owned();
    }
    let mut out = String::from("\"");
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend(['\\', byte as char]),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b' '..=b'~' => out.push(byte as char),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out.push('"');
    out
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, open: &str, items: &[Frame]| {
            write!(f, "{open}")?;
            for (at, item) in items.iter().take(40).enumerate() {
                write!(f, "{}{item}", if at == 0 { "" } else { ", " })?;
            }
            write!(f, "{}]", if items.len() > 40 { ", ..." } else { "" })
        };
        match self {
            Frame::Simple(text) => write!(f, "+{}", quote(text)),
            Frame::Error(text) => write!(f, "-{}", String::from_utf8_lossy(text).replace('\0', "\\x00")),
            Frame::Int(number) => write!(f, ":{number}"),
            Frame::Bulk(text) => f.write_str(&quote(text)),
            Frame::NullBulk => f.write_str("$-1"),
            Frame::NullArray => f.write_str("*-1"),
            Frame::Null => f.write_str("_"),
            Frame::Array(items) => list(f, &format!("*{}[", items.len()), items),
            Frame::Set(items) => list(f, &format!("~{}[", items.len()), items),
            Frame::Push(items) => list(f, &format!(">{}[", items.len()), items),
            Frame::Map(pairs) => {
                write!(f, "%{}[", pairs.len())?;
                for (at, (key, value)) in pairs.iter().take(40).enumerate() {
                    write!(f, "{}{key}: {value}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Frame::Double(text) => write!(f, ",{}", String::from_utf8_lossy(text)),
            Frame::Bool(value) => write!(f, "#{}", if *value { 't' } else { 'f' }),
            Frame::BigNumber(text) => write!(f, "({}", String::from_utf8_lossy(text)),
            Frame::Verbatim(text) => write!(f, "={}", quote(text)),
            Frame::Gone(why) => write!(f, "<{why}>"),
        }
    }
}

/// A request as every client library writes it.
pub fn encode(args: &[Vec<u8>], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

/// One blocking connection. Once it failed it stays failed: every later read gives [`Frame::Gone`].
pub struct Conn {
    line: dial::Conn,
    gone: Option<&'static str>,
    patience: Duration,
}

/// Time after which a server without a reply counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

impl Conn {
    pub fn open(addr: SocketAddr) -> io::Result<Conn> {
        let address = Address { connect: PATIENCE, ..Address::from(addr).with_timeout(PATIENCE) };
        Ok(Conn { line: dial::Conn::open(&address)?, gone: None, patience: PATIENCE })
    }

    /// Sets the time after which a server without a reply counts as hung.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// True once the server closed this connection or stopped answering on it.
    pub fn is_gone(&self) -> bool {
        self.gone.is_some()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        if self.gone.is_none() && self.line.send(bytes).is_err() {
            // The peer may have answered before it closed, so reads must find out.
        }
    }

    /// Closes the sending half.
    pub fn end_sending(&mut self) {
        let _ = self.line.end_sending();
    }

    /// Sends one request and reads one reply.
    pub fn call(&mut self, args: &[&str]) -> Frame {
        let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.as_bytes().to_vec()).collect();
        self.call_bytes(&args)
    }

    pub fn call_bytes(&mut self, args: &[Vec<u8>]) -> Frame {
        let mut out = Vec::new();
        encode(args, &mut out);
        self.send(&out);
        self.read()
    }

    /// Waits for the next frame.
    pub fn read(&mut self) -> Frame {
        match self.read_within(self.patience) {
            Some(frame) => frame,
            None => {
                self.gone = Some("no reply");
                Frame::Gone("no reply")
            }
        }
    }

    /// The next frame, or `None` if it does not come within `patience`.
    pub fn read_within(&mut self, patience: Duration) -> Option<Frame> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(frame) = self.buffered() {
                return Some(frame);
            }
            if let Some(why) = self.gone {
                return Some(Frame::Gone(why));
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            self.fill(left.max(Duration::from_micros(100)));
        }
    }

    /// Whether a reply (or the end of the connection) arrives within `patience`. It is left to be read.
    pub fn has_reply(&mut self, patience: Duration) -> bool {
        let complete = |conn: &Conn| !matches!(parse(conn.line.received(), &mut 0, 0), Ok(None));
        if !complete(self) && self.gone.is_none() {
            self.fill(patience);
        }
        self.gone.is_some() || complete(self)
    }

    fn buffered(&mut self) -> Option<Frame> {
        let mut end = 0;
        match parse(self.line.received(), &mut end, 0) {
            Ok(frame) => {
                self.line.consume(if frame.is_some() { end } else { 0 });
                frame
            }
            Err(why) => {
                self.gone = Some(why);
                Some(Frame::Gone(why))
            }
        }
    }

    fn fill(&mut self, patience: Duration) {
        match self.line.receive(patience) {
            Ok(_) | Err(dial::Error::Late) => {}
            Err(_) => self.gone = Some("connection closed"),
        }
    }
}

/// Reads one frame at `at`. `Ok(None)`: more bytes are needed. A large array that arrives in pieces is parsed
/// again from its start, which is fast enough for the sizes used here.
fn parse(input: &[u8], at: &mut usize, depth: usize) -> Result<Option<Frame>, &'static str> {
    if depth > 64 {
        return Err("reply nested too deeply");
    }
    let Some(line) = line(input, at) else { return Ok(None) };
    let Some((&mark, rest)) = line.split_first() else { return Err("empty reply line") };
    let text = || rest.to_vec();
    Ok(Some(match mark {
        b'+' => Frame::Simple(text()),
        b'-' => Frame::Error(text()),
        b':' => Frame::Int(number(rest)?),
        b',' => Frame::Double(text()),
        b'(' => Frame::BigNumber(text()),
        b'#' => Frame::Bool(rest == b"t"),
        b'_' => Frame::Null,
        b'$' | b'=' | b'!' => {
            let length = number(rest)?;
            if length < 0 {
                return Ok(Some(Frame::NullBulk));
            }
            let end = *at + length as usize;
            if input.len() < end + 2 {
                return Ok(None);
            }
            let body = input[*at..end].to_vec();
            if &input[end..end + 2] != b"\r\n" {
                return Err("bulk reply without its line end");
            }
            *at = end + 2;
            match mark {
                b'$' => Frame::Bulk(body),
                b'=' => Frame::Verbatim(body),
                _ => Frame::Error(body),
            }
        }
        b'*' | b'~' | b'>' => {
            let length = number(rest)?;
            if length < 0 {
                return Ok(Some(Frame::NullArray));
            }
            let Some(items) = many(input, at, length as usize, depth)? else { return Ok(None) };
            match mark {
                b'*' => Frame::Array(items),
                b'~' => Frame::Set(items),
                _ => Frame::Push(items),
            }
        }
        b'%' => {
            let Some(items) = many(input, at, 2 * number(rest)? as usize, depth)? else { return Ok(None) };
            let mut items = items.into_iter();
            let mut pairs = Vec::new();
            while let (Some(key), Some(value)) = (items.next(), items.next()) {
                pairs.push((key, value));
            }
            Frame::Map(pairs)
        }
        _ => return Err("unknown reply type"),
    }))
}

fn many(input: &[u8], at: &mut usize, n: usize, depth: usize) -> Result<Option<Vec<Frame>>, &'static str> {
    let mut items = Vec::with_capacity(n.min(4096));
    for _ in 0..n {
        let Some(item) = parse(input, at, depth + 1)? else { return Ok(None) };
        items.push(item);
    }
    Ok(Some(items))
}

fn line<'a>(input: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let rest = &input[*at..];
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    *at += end + 2;
    Some(&rest[..end])
}

fn number(text: &[u8]) -> Result<i64, &'static str> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or("reply with a bad number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reply_type_is_read_and_a_prefix_is_not() {
        let wire = b"*5\r\n$2\r\nab\r\n:-7\r\n%1\r\n+k\r\n,1.5\r\n~1\r\n#t\r\n_\r\n";
        let mut at = 0;
        let frame = parse(wire, &mut at, 0).unwrap().unwrap();
        assert_eq!(at, wire.len());
        assert_eq!(frame.to_string(), "*5[ab, :-7, %1[+k: ,1.5], ~1[#t], _]");
        for cut in 0..wire.len() {
            assert!(parse(&wire[..cut], &mut 0, 0).unwrap().is_none(), "prefix of {cut} bytes");
        }
    }
}
