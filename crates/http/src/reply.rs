//! Reads items from a reply of the server (RESP3) and turns them into JSON.
//!
//! ```text
//! items   *n  of  _                              missing
//!                 *2  :left-ms  value            -1: it does not expire
//!                 *3  :left-ms  :changed-ms  value
//! value   $n …                                   already JSON, passed on unchanged
//!         %n of $field $text                     an object of strings
//! ```
//!
//! - J1: [`Json`] takes its input in any pieces. It holds back at most a line and an incomplete character.
//! - J2: strings of an object become valid UTF-8, whatever their bytes are.

/// How long an item is good, and when it changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Milliseconds it may still be kept; `None`: unknown.
    pub left_ms: Option<u64>,
    /// When it last changed (milliseconds since 1970).
    pub changed_ms: Option<u64>,
}

/// The start of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin<'a> {
    /// The error text without its `-`.
    Error(&'a [u8]),
    Missing,
    /// A text: its length, and its position in the reply.
    Text(Kept, usize, usize),
    /// An object: the position of its header.
    Object(Kept, usize),
}

/// Reads the start of a reply with one item. `None`: it is no such reply. O(1), or O(n) for an error.
pub fn begin(reply: &[u8]) -> Option<Begin<'_>> {
    let mut at = 0;
    match line(reply, &mut at)? {
        (b'-', _) => return Some(Begin::Error(reply[1..].strip_suffix(b"\r\n")?)),
        (b'*', 1) => {}
        _ => return None,
    }
    let ints = match line(reply, &mut at)? {
        (b'_', _) => return Some(Begin::Missing),
        (b'*', 2) => 1,
        (b'*', 3) => 2,
        _ => return None,
    };
    let mut kept = Kept { left_ms: None, changed_ms: None };
    for i in 0..ints {
        let (b':', n) = line(reply, &mut at)? else { return None };
        let n = u64::try_from(n).ok();
        if i == 0 { kept.left_ms = n } else { kept.changed_ms = n }
    }
    let header = at;
    match line(reply, &mut at)? {
        (b'$', n) => Some(Begin::Text(kept, usize::try_from(n).ok()?, at)),
        (b'%', _) => Some(Begin::Object(kept, header)),
        _ => None,
    }
}

/// Reads the start of a reply that is one text or an error. `None`: it is neither.
pub fn text(reply: &[u8]) -> Option<Begin<'_>> {
    let mut at = 0;
    match line(reply, &mut at)? {
        (b'-', _) => Some(Begin::Error(reply[1..].strip_suffix(b"\r\n")?)),
        (b'$', n) => {
            Some(Begin::Text(Kept { left_ms: None, changed_ms: None }, usize::try_from(n).ok()?, at))
        }
        _ => None,
    }
}

/// The text of an error reply.
pub fn error(reply: &[u8]) -> Option<&[u8]> {
    reply.strip_prefix(b"-")?.strip_suffix(b"\r\n")
}

/// The type and the number in the line at `at`. Moves `at` behind the line.
fn line(reply: &[u8], at: &mut usize) -> Option<(u8, i64)> {
    let rest = &reply[*at..];
    let end = memchr::memchr(b'\n', rest)?;
    let (kind, number) = rest.get(..end.checked_sub(1)?)?.split_first()?;
    *at += end + 1;
    Some((*kind, if matches!(kind, b'-' | b'_') { 0 } else { decimal(number)? }))
}

fn decimal(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let n = digits.iter().fold(0, |n, digit| n * 10 + i64::from(digit - b'0'));
    Some(if negative { -n } else { n })
}

/// The reply has another form than expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// The next part of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// The number of items.
    Items,
    Item,
    /// This many numbers, then a value.
    Numbers(u8),
    Value,
    /// A field or its text.
    Word,
    /// The bytes of a value or a word.
    Bytes,
    /// This many bytes of a line end.
    End(u8),
    Nothing,
}

/// Turns a reply into JSON, piece by piece.
pub struct Json {
    next: Next,
    /// The start of an incomplete line.
    line: Vec<u8>,
    /// Whether the items form a list.
    listed: bool,
    items: u64,
    /// Words of an object still to come. If odd, a text comes next.
    words: u64,
    in_object: bool,
    /// Bytes of a value or word still to come.
    bytes: u64,
    text: Text,
}

/// The longest header.
const LINE_MAX: usize = 32;

impl Json {
    /// For a reply with any number of items. They become a list; a missing one becomes `null`.
    pub fn list() -> Json {
        Json::from(Next::Items, true)
    }

    /// For the rest of a reply with one item, from its value on ([`Begin::Object`]).
    pub fn value() -> Json {
        Json::from(Next::Value, false)
    }

    fn from(next: Next, listed: bool) -> Json {
        Json {
            next,
            line: Vec::new(),
            listed,
            items: 1,
            words: 0,
            in_object: false,
            bytes: 0,
            text: Text::default(),
        }
    }

    /// Whether the reply is complete.
    pub fn is_done(&self) -> bool {
        self.next == Next::Nothing
    }

    /// Appends the JSON for the next piece of the reply. O(piece).
    pub fn feed(&mut self, mut reply: &[u8], out: &mut Vec<u8>) -> Result<(), Broken> {
        while !reply.is_empty() {
            match self.next {
                Next::Nothing => return Err(Broken),
                Next::Bytes => {
                    let n = reply.len().min(usize::try_from(self.bytes).unwrap_or(usize::MAX));
                    self.put(&reply[..n], out);
                    reply = &reply[n..];
                    self.bytes -= n as u64;
                    self.end_bytes(out);
                }
                Next::End(left) => {
                    reply = &reply[1..];
                    match left {
                        1 => self.end_value(out),
                        left => self.next = Next::End(left - 1),
                    }
                }
                _ => reply = self.take_line(reply, out)?,
            }
        }
        Ok(())
    }

    /// Takes the bytes of a line. Returns the rest.
    fn take_line<'a>(&mut self, reply: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], Broken> {
        let end = memchr::memchr(b'\n', reply).map_or(reply.len(), |at| at + 1);
        if self.line.len() + end > LINE_MAX {
            return Err(Broken);
        }
        self.line.extend_from_slice(&reply[..end]);
        if self.line.ends_with(b"\n") {
            let (kind, n) = line(&self.line, &mut 0).ok_or(Broken)?;
            self.line.clear();
            self.header(kind, n, out)?;
        }
        Ok(&reply[end..])
    }

    fn header(&mut self, kind: u8, n: i64, out: &mut Vec<u8>) -> Result<(), Broken> {
        let count = || u64::try_from(n).map_err(|_| Broken);
        match (self.next, kind) {
            (Next::Items, b'*') => {
                self.items = count()?;
                out.push(b'[');
                self.next = Next::Item;
                if self.items == 0 {
                    out.push(b']');
                    self.next = Next::Nothing;
                }
            }
            (Next::Item, b'_') => {
                out.extend_from_slice(b"null");
                self.end_item(out);
            }
            (Next::Item, b'*') if n == 2 || n == 3 => self.next = Next::Numbers(n as u8 - 1),
            (Next::Numbers(1), b':') => self.next = Next::Value,
            (Next::Numbers(more), b':') => self.next = Next::Numbers(more - 1),
            (Next::Value, b'$') => self.begin_bytes(count()?, out),
            (Next::Value, b'%') => {
                self.words = count()?.checked_mul(2).ok_or(Broken)?;
                self.in_object = true;
                out.push(b'{');
                self.next_word(out);
            }
            (Next::Word, b'$') => {
                out.push(b'"');
                self.begin_bytes(count()?, out);
            }
            _ => return Err(Broken),
        }
        Ok(())
    }

    fn begin_bytes(&mut self, n: u64, out: &mut Vec<u8>) {
        self.bytes = n;
        self.next = Next::Bytes;
        self.end_bytes(out);
    }

    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.in_object {
            self.text.put(bytes, out);
        } else {
            out.extend_from_slice(bytes);
        }
    }

    /// Ends a value or word when all its bytes have come.
    fn end_bytes(&mut self, out: &mut Vec<u8>) {
        if self.bytes > 0 {
            return;
        }
        if self.in_object {
            self.text.end(out);
            out.push(b'"');
        }
        self.next = Next::End(2);
    }

    /// Continues after a value or word and its line end.
    fn end_value(&mut self, out: &mut Vec<u8>) {
        if self.in_object {
            self.words -= 1;
            match self.words {
                0 => {}
                left if left % 2 == 1 => out.push(b':'),
                _ => out.push(b','),
            }
            return self.next_word(out);
        }
        self.end_item(out);
    }

    fn next_word(&mut self, out: &mut Vec<u8>) {
        if self.words > 0 {
            self.next = Next::Word;
            return;
        }
        out.push(b'}');
        self.in_object = false;
        self.end_item(out);
    }

    fn end_item(&mut self, out: &mut Vec<u8>) {
        self.items -= 1;
        self.next = if self.items == 0 { Next::Nothing } else { Next::Item };
        match (self.listed, self.items) {
            (true, 0) => out.push(b']'),
            (true, _) => out.push(b','),
            (false, _) => {}
        }
    }
}

/// A string that becomes part of JSON, in pieces.
#[derive(Default)]
struct Text {
    /// The start of an incomplete character.
    open: Vec<u8>,
}

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

impl Text {
    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.open.is_empty() {
            return self.put_whole(bytes, out);
        }
        let mut joined = std::mem::take(&mut self.open);
        joined.extend_from_slice(bytes);
        self.put_whole(&joined, out);
    }

    fn put_whole(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(text) => return escape(text, out),
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            // Valid up to here.
            escape(std::str::from_utf8(valid).unwrap_or_default(), out);
            match error.error_len() {
                Some(n) => {
                    out.extend_from_slice(REPLACEMENT); // J2
                    bytes = &rest[n..];
                }
                None => return self.open.extend_from_slice(rest),
            }
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if !self.open.is_empty() {
            out.extend_from_slice(REPLACEMENT);
            self.open.clear();
        }
    }
}

/// Appends a text in the form that JSON needs between quotes. O(n).
pub fn escape(text: &str, out: &mut Vec<u8>) {
    let bytes = text.as_bytes();
    let mut from = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if *byte >= 0x20 && *byte != b'"' && *byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[from..at]);
        from = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            byte => {
                let digit = |n: u8| b"0123456789abcdef"[usize::from(n)];
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
    out.extend_from_slice(&bytes[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json(mut json: Json, reply: &[u8], step: usize) -> Result<String, Broken> {
        let mut out = Vec::new();
        reply.chunks(step).try_for_each(|piece| json.feed(piece, &mut out))?;
        assert!(json.is_done());
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn one_item_begins() {
        let kept = |left_ms, changed_ms| Kept { left_ms, changed_ms };
        assert_eq!(begin(b"*1\r\n*2\r\n:-1\r\n$2\r\n{}\r\n"), Some(Begin::Text(kept(None, None), 2, 17)));
        assert_eq!(begin(b"*1\r\n*3\r\n:7\r\n:8\r\n%0\r\n"), Some(Begin::Object(kept(Some(7), Some(8)), 16)));
        assert_eq!(begin(b"*1\r\n_\r\n"), Some(Begin::Missing));
        assert_eq!(begin(b"-ERR no\r\n"), Some(Begin::Error(b"ERR no")));
        for bad in [
            "",
            "*1",
            "*1\r\n",
            "*2\r\n_\r\n",
            "*1\r\n*2\r\n$1\r\na\r\n",
            "*1\r\n*2\r\n:x\r\n$1\r\n",
            "\n",
            "\r\n",
        ] {
            assert_eq!(begin(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(text(b"$3\r\nabc\r\n"), Some(Begin::Text(kept(None, None), 3, 4)));
    }

    #[test]
    fn lists_become_lists_however_they_are_cut() {
        let reply = b"*4\r\n*2\r\n:-1\r\n$7\r\n{\"a\":1}\r\n_\r\n*3\r\n:5\r\n:6\r\n%2\r\n$1\r\na\r\n$4\r\n\"\n\xff\x01\r\n$0\r\n\r\n\
                      $3\r\n\xe2\x82\xac\r\n*2\r\n:0\r\n%0\r\n";
        for step in 1..=reply.len() {
            let expected = "[{\"a\":1},null,{\"a\":\"\\\"\\n\u{fffd}\\u0001\",\"\":\"\u{20ac}\"},{}]";
            assert_eq!(json(Json::list(), reply, step).as_deref(), Ok(expected), "in pieces of {step}");
        }
        assert_eq!(json(Json::list(), b"*0\r\n", 1).as_deref(), Ok("[]"));
        assert_eq!(
            json(Json::value(), b"%1\r\n$1\r\na\r\n$2\r\n\xe2\x82\r\n", 3).unwrap(),
            "{\"a\":\"\u{fffd}\"}"
        );
        for bad in [
            "*1\r\n:1\r\n",
            "*-1\r\n",
            "*1\r\n*2\r\n_\r\n",
            "+OK\r\n",
            "*0\r\nx",
            "*1\r\n*2\r\n:1\r\n%1\r\n:1\r\n",
        ] {
            assert!(json(Json::list(), bad.as_bytes(), 100).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn objects_are_json_whatever_their_strings_are(
            pairs in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..20), prop::collection::vec(any::<u8>(), 0..20)), 0..9),
            step in 1usize..40,
        ) {
            let mut reply = format!("%{}\r\n", pairs.len()).into_bytes();
            for word in pairs.iter().flat_map(|(field, text)| [field, text]) {
                reply.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                reply.extend_from_slice(word);
                reply.extend_from_slice(b"\r\n");
            }
            let text = json(Json::value(), &reply, step).unwrap();
            let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
            for (field, text) in &pairs {
                let last = pairs.iter().rev().find(|(f, _)| String::from_utf8_lossy(f) == String::from_utf8_lossy(field));
                let expected = last.map_or(text, |(_, text)| text);
                prop_assert_eq!(&parsed[&*String::from_utf8_lossy(field)], &*String::from_utf8_lossy(expected));
            }
        }

        #[test]
        fn nothing_makes_it_panic(reply in "[*%$:_0-3\\-\r\n]{0,60}", step in 1usize..9) {
            let (mut list, mut out) = (Json::list(), Vec::new());
            let _ = reply.as_bytes().chunks(step).try_for_each(|piece| list.feed(piece, &mut out));
            let _ = begin(reply.as_bytes());
        }
    }
}
