//! Turns any reply of a command (RESP3) into JSON, piece by piece.
//!
//! ```text
//! +OK, $…, =…     "text", or {"b64":"…"} if it is no UTF-8
//! $…, very long   {"cut":"its begin","bytes":n}
//! :…              a number, or {"int":"…"} beyond what a double holds; ( is {"int":"…"}
//! ,…              a number, or {"double":"inf"}
//! #t _            true null
//! -… !…           {"error":"…"}
//! * ~ >           [ … ]
//! %               { … } of the server's own answers, {"map":[[key,value], …]} of commands of clients
//! ```
//!
//! - N1: a text has no control characters and none that changes the direction of what is around it: they are
//!   escaped, so that a terminal shows nothing else than what is there.
//! - N2: it holds back at most [`TEXT_MAX`] bytes, and a frame for each open list.

use crate::reply::Broken;
use crate::words::encode;

/// Longest text that is passed on; of a longer one, this much of its begin.
pub const TEXT_MAX: usize = 64 * 1024;
/// Longest line of an error, or of a number.
const LINE_MAX: usize = 64 * 1024;

/// The form of maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maps {
    /// Their keys are texts, each there once.
    Objects,
    /// Their keys are anything.
    Pairs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    List,
    Object,
    Pairs,
}

/// An open list or map, and how many values of it still come.
struct Frame {
    left: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Header,
    /// This many bytes of a text.
    Bytes(u64),
    /// This many bytes of a line end.
    End(u8),
    Nothing,
}

/// The kind of text that comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Text {
    Plain,
    Verbatim,
    Error,
}

/// See the module.
pub struct Tree {
    maps: Maps,
    next: Next,
    /// The start of an incomplete line.
    line: Vec<u8>,
    frames: Vec<Frame>,
    /// The begin of a text, and its whole length.
    text: Vec<u8>,
    bytes: u64,
    kind: Text,
}

impl Tree {
    pub fn new(maps: Maps) -> Tree {
        Tree {
            maps,
            next: Next::Header,
            line: Vec::new(),
            frames: Vec::new(),
            text: Vec::new(),
            bytes: 0,
            kind: Text::Plain,
        }
    }

    /// Whether the reply is complete.
    pub fn is_done(&self) -> bool {
        self.next == Next::Nothing
    }

    /// Appends the JSON for the next piece of the reply. O(piece), and O([`TEXT_MAX`]) where a text ends.
    pub fn feed(&mut self, mut reply: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
        while !reply.is_empty() {
            match self.next {
                Next::Nothing => return Err(Broken),
                Next::Bytes(left) => {
                    let n = reply.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let room = TEXT_MAX + 4 - self.text.len().min(TEXT_MAX + 4);
                    self.text.extend_from_slice(&reply[..n.min(room)]);
                    reply = &reply[n..];
                    self.next = Next::Bytes(left - n as u64);
                    self.end_bytes(out);
                }
                Next::End(left) => {
                    reply = &reply[1..];
                    self.next = if left > 1 { Next::End(left - 1) } else { self.ended(out) };
                }
                Next::Header => {
                    let end = memchr::memchr(b'\n', reply).map_or(reply.len(), |at| at + 1);
                    if self.line.len() + end > LINE_MAX {
                        return Err(Broken);
                    }
                    self.line.extend_from_slice(&reply[..end]);
                    reply = &reply[end..];
                    if self.line.ends_with(b"\n") {
                        let line = std::mem::take(&mut self.line);
                        self.header(line.strip_suffix(b"\r\n").ok_or(Broken)?, out)?;
                        self.line = line;
                        self.line.clear();
                    }
                }
            }
        }
        Ok(())
    }

    fn header(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
        let (kind, rest) = line.split_first().ok_or(Broken)?;
        let is_key = self.is_key();
        if is_key && !matches!(kind, b'+' | b'$' | b':') {
            return Err(Broken);
        }
        match kind {
            b'$' | b'!' | b'=' if rest != b"-1" => return self.begin_text(*kind, number(rest)?, out),
            b'*' | b'~' | b'>' | b'%' if rest != b"-1" => return self.open(*kind, number(rest)?, out),
            b'+' => put_text(rest, None, is_key, out),
            b'-' => put_error(rest, out),
            b':' if is_key => put_text(rest, None, true, out),
            b':' => put_int(rest, out)?,
            b'(' => put_named("int", rest, out),
            b',' => put_double(rest, out),
            b'#' => out.extend_from_slice(if rest == b"t" { b"true" } else { b"false" }),
            b'_' | b'$' | b'*' => out.extend_from_slice(b"null"),
            _ => return Err(Broken),
        }
        self.next = self.ended(out);
        Ok(())
    }

    /// Whether the next value is the name of an object's field.
    fn is_key(&self) -> bool {
        self.frames.last().is_some_and(|frame| frame.kind == Kind::Object && frame.left.is_multiple_of(2))
    }

    fn begin_text(&mut self, kind: u8, bytes: u64, out: &mut Vec<u8>) -> Result<(), Broken> {
        self.kind = match kind {
            b'!' => Text::Error,
            b'=' => Text::Verbatim,
            _ => Text::Plain,
        };
        self.text.clear();
        (self.bytes, self.next) = (bytes, Next::Bytes(bytes));
        self.end_bytes(out);
        Ok(())
    }

    /// Ends a text when all its bytes have come.
    fn end_bytes(&mut self, out: &mut Vec<u8>) {
        if self.next != Next::Bytes(0) {
            return;
        }
        let is_key = self.is_key();
        let cut = (self.bytes > TEXT_MAX as u64).then_some(self.bytes);
        let shown = &self.text[..self.text.len().min(TEXT_MAX)];
        match self.kind {
            Text::Plain => put_text(shown, cut, is_key, out),
            Text::Verbatim => put_text(shown.get(4..).unwrap_or_default(), cut, is_key, out),
            Text::Error => put_error(shown, out),
        }
        self.text.clear();
        self.next = Next::End(2);
    }

    fn open(&mut self, kind: u8, count: u64, out: &mut Vec<u8>) -> Result<(), Broken> {
        let kind = match (kind, self.maps) {
            (b'%', Maps::Objects) => Kind::Object,
            (b'%', Maps::Pairs) => Kind::Pairs,
            _ => Kind::List,
        };
        let left = if kind == Kind::List { Some(count) } else { count.checked_mul(2) };
        out.extend_from_slice(match kind {
            Kind::List => b"[",
            Kind::Object => b"{",
            Kind::Pairs if count > 0 => b"{\"map\":[[",
            Kind::Pairs => b"{\"map\":[",
        });
        if count > 0 {
            self.frames.push(Frame { left: left.ok_or(Broken)?, kind });
            self.next = Next::Header;
            return Ok(());
        }
        out.extend_from_slice(match kind {
            Kind::List => b"]",
            Kind::Object => b"}",
            Kind::Pairs => b"]}",
        });
        self.next = self.ended(out);
        Ok(())
    }

    /// Continues after a whole value.
    fn ended(&mut self, out: &mut Vec<u8>) -> Next {
        while let Some(frame) = self.frames.last_mut() {
            frame.left -= 1;
            if frame.left > 0 {
                out.extend_from_slice(match (frame.kind, frame.left.is_multiple_of(2)) {
                    (Kind::Object, false) => b":",
                    (Kind::Pairs, true) => b"],[",
                    _ => b",",
                });
                return Next::Header;
            }
            out.extend_from_slice(match frame.kind {
                Kind::List => b"]",
                Kind::Object => b"}",
                Kind::Pairs => b"]]}",
            });
            self.frames.pop();
        }
        Next::Nothing
    }
}

fn number(text: &[u8]) -> Result<u64, Broken> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Broken)
}

/// Appends a text, or the begin of one that has `cut` bytes.
fn put_text(text: &[u8], cut: Option<u64>, is_key: bool, out: &mut Vec<u8>) {
    if cut.is_some() && !is_key {
        out.extend_from_slice(b"{\"cut\":");
    }
    match (std::str::from_utf8(text), is_key) {
        (Ok(text), _) => put_string(text, out),
        // The last character may be cut.
        (Err(error), false) if cut.is_some() && error.error_len().is_none() => {
            put_string(std::str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default(), out);
        }
        (Err(_), false) => {
            out.extend_from_slice(b"{\"b64\":\"");
            encode(text, out);
            out.extend_from_slice(b"\"}");
        }
        (Err(_), true) => put_string(&String::from_utf8_lossy(text), out),
    }
    if let Some(bytes) = cut.filter(|_| !is_key) {
        out.extend_from_slice(format!(",\"bytes\":{bytes}}}").as_bytes());
    }
}

/// Appends an object with one text.
fn put_named(name: &str, text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    put_string(&String::from_utf8_lossy(text), out);
    out.push(b'}');
}

/// Appends an error, given without its `-`. O(n).
pub fn put_error(text: &[u8], out: &mut Vec<u8>) {
    put_named("error", text, out);
}

/// Largest whole number that a double holds with all its neighbours.
const EXACT: u64 = (1 << 53) - 1;

fn put_int(text: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
    let n: i64 = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Broken)?;
    if n.unsigned_abs() > EXACT {
        put_named("int", text, out);
    } else {
        out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
    }
    Ok(())
}

fn put_double(text: &[u8], out: &mut Vec<u8>) {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_number = digits.first().is_some_and(u8::is_ascii_digit)
        && digits.last().is_some_and(u8::is_ascii_digit)
        && digits
            .iter()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    if is_number { out.extend_from_slice(text) } else { put_named("double", text, out) }
}

/// Whether a character controls what is shown around it (N1).
fn controls(character: char) -> bool {
    matches!(character, '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Appends a text in quotes. O(n).
pub fn put_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut from = 0;
    for (at, character) in text.char_indices().filter(|(_, character)| controls(*character)) {
        crate::reply::escape(&text[from..at], out);
        out.extend_from_slice(format!("\\u{:04x}", character as u32).as_bytes());
        from = at + character.len_utf8();
    }
    crate::reply::escape(&text[from..], out);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(maps: Maps, reply: &[u8], step: usize) -> Result<String, Broken> {
        let (mut tree, mut out) = (Tree::new(maps), Vec::new());
        reply.chunks(step).try_for_each(|piece| tree.feed(piece, &mut out))?;
        assert!(tree.is_done());
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn all_kinds_of_replies_become_json_however_they_are_cut() {
        let reply =
            b"*12\r\n+OK\r\n:-7\r\n$2\r\n\xff\x00\r\n$-1\r\n_\r\n#t\r\n,1.5\r\n,inf\r\n=6\r\ntxt:\"\n\r\n\
                      -ERR no\r\n:9223372036854775807\r\n~2\r\n%1\r\n$1\r\na\r\n*0\r\n%0\r\n";
        for step in 1..=reply.len() {
            let text = json(Maps::Pairs, reply, step).unwrap();
            assert_eq!(
                text,
                "[\"OK\",-7,{\"b64\":\"/wA=\"},null,null,true,1.5,{\"double\":\"inf\"},\"\\\"\\n\",\
                 {\"error\":\"ERR no\"},{\"int\":\"9223372036854775807\"},[{\"map\":[[\"a\",[]]]},{\"map\":[]}]]"
            );
        }
        let map = b"%2\r\n+a\r\n:1\r\n$1\r\nb\r\n%1\r\n:7\r\n(12\r\n";
        assert_eq!(json(Maps::Objects, map, 3).as_deref(), Ok("{\"a\":1,\"b\":{\"7\":{\"int\":\"12\"}}}"));
        assert_eq!(
            json(Maps::Pairs, map, 3).as_deref(),
            Ok("{\"map\":[[\"a\",1],[\"b\",{\"map\":[[7,{\"int\":\"12\"}]]}]]}")
        );
        for bad in ["x\r\n", "*1\r\n?\r\n", ":a\r\n", "+a\n", "$5\r\n", "*-2\r\n", "+OK\r\nx"] {
            let (mut tree, mut out) = (Tree::new(Maps::Pairs), Vec::new());
            assert!(tree.feed(bad.as_bytes(), &mut out).is_err() || !tree.is_done(), "{bad:?}");
        }
        assert!(json(Maps::Objects, b"%1\r\n*0\r\n:1\r\n", 9).is_err());
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        for (unit, shown) in [("\u{20ac}", TEXT_MAX / 3), ("a", TEXT_MAX)] {
            let text = unit.repeat(TEXT_MAX);
            let reply = format!("*2\r\n${}\r\n{text}\r\n:1\r\n", text.len());
            let json = json(Maps::Pairs, reply.as_bytes(), 7000).unwrap();
            let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
            if text.len() > TEXT_MAX {
                assert_eq!(parsed[0]["bytes"], text.len());
                assert_eq!(parsed[0]["cut"], unit.repeat(shown));
            } else {
                assert_eq!(parsed[0], text);
            }
            assert_eq!(parsed[1], 1);
        }
    }

    #[test]
    fn what_would_change_the_words_around_it_is_escaped() {
        let mut out = Vec::new();
        put_string("a\u{202e}b\u{7f}\u{9b}\u{2066}\u{1b}\u{feff}\u{e9}", &mut out);
        assert_eq!(out, "\"a\\u202eb\\u007f\\u009b\\u2066\\u001b\\ufeff\u{e9}\"".as_bytes());
    }

    proptest! {
        #[test]
        fn any_text_is_json(bytes in prop::collection::vec(any::<u8>(), 0..40), text in any::<String>(), step in 1usize..50) {
            for bytes in [&bytes, text.as_bytes()] {
                let mut reply = format!("${}\r\n", bytes.len()).into_bytes();
                reply.extend_from_slice(bytes);
                reply.extend_from_slice(b"\r\n");
                let parsed: serde_json::Value = serde_json::from_str(&json(Maps::Pairs, &reply, step).unwrap()).unwrap();
                match std::str::from_utf8(bytes) {
                    Ok(text) => prop_assert_eq!(parsed, text),
                    Err(_) => prop_assert!(parsed["b64"].is_string()),
                }
            }
        }

        #[test]
        fn nothing_makes_it_panic(reply in "[*%$:_~!=#,(0-3\\-a\r\n]{0,60}", step in 1usize..9) {
            for maps in [Maps::Objects, Maps::Pairs] {
                let (mut tree, mut out) = (Tree::new(maps), Vec::new());
                let _ = reply.as_bytes().chunks(step).try_for_each(|piece| tree.feed(piece, &mut out));
            }
        }
    }
}
