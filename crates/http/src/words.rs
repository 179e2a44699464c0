//! Reads the JSON that clients send: lists of commands, and flat objects.
//!
//! ```text
//! [["GET","a"],["SET",{"b64":"/w=="},7]]        commands, of words: a text, bytes, or a number as it is
//! written {"user":"oncall","allow":true}                fields: texts, numbers, true or false
//! ```
//!
//! Cost: O(body). Nothing is allocated but `text`, a work buffer that holds one word.

use crate::target::Complaint;

/// Most commands in a body.
pub const COMMANDS_MAX: usize = 64;

/// A part of a list of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part<'a> {
    Word(&'a [u8]),
    /// The end of a command.
    End,
}

/// Reads a list of commands and gives each word, and each command's end, to `each`. Errors: it is no such
/// list; it has more than [`COMMANDS_MAX`] commands, or an empty one.
pub fn commands(body: &[u8], text: &mut Vec<u8>, mut each: impl FnMut(Part<'_>)) -> Result<usize, Complaint> {
    let mut input = Input { rest: body };
    let mut count = 0;
    input.list(|input| {
        count += 1;
        if count > COMMANDS_MAX {
            return Err("there are more than 64 commands");
        }
        let mut words = 0;
        input.list(|input| {
            words += 1;
            input.word(text)?;
            each(Part::Word(text));
            Ok(())
        })?;
        each(Part::End);
        if words == 0 { Err("a command has no words") } else { Ok(()) }
    })?;
    input.end()?;
    Ok(count)
}

/// Reads a flat object and gives the name and the text of each field to `each`. Errors: it is none.
pub fn fields(body: &[u8], text: &mut Vec<u8>, mut each: impl FnMut(&[u8], &[u8])) -> Result<(), Complaint> {
    let mut input = Input { rest: body };
    let mut name = Vec::new();
    input.expect(b'{')?;
    if input.next() == Some(b'}') {
        input.expect(b'}')?;
        return input.end();
    }
    loop {
        input.text(&mut name)?;
        input.expect(b':')?;
        input.word(text)?;
        each(&name, text);
        match input.take()? {
            b',' => {}
            b'}' => return input.end(),
            _ => return Err(MALFORMED),
        }
    }
}

const MALFORMED: Complaint = "the body is not the JSON that is expected here";

struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// The next byte that is no space.
    fn next(&mut self) -> Option<u8> {
        let space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        self.rest = &self.rest[self.rest.iter().take_while(space).count()..];
        self.rest.first().copied()
    }

    fn take(&mut self) -> Result<u8, Complaint> {
        let byte = self.next().ok_or(MALFORMED)?;
        self.rest = &self.rest[1..];
        Ok(byte)
    }

    fn expect(&mut self, wanted: u8) -> Result<(), Complaint> {
        if self.take()? == wanted { Ok(()) } else { Err(MALFORMED) }
    }

    fn end(&mut self) -> Result<(), Complaint> {
        if self.next().is_none() { Ok(()) } else { Err(MALFORMED) }
    }

    fn list(&mut self, mut element: impl FnMut(&mut Self) -> Result<(), Complaint>) -> Result<(), Complaint> {
        self.expect(b'[')?;
        if self.next() == Some(b']') {
            return self.expect(b']');
        }
        loop {
            element(self)?;
            match self.take()? {
                b',' => {}
                b']' => return Ok(()),
                _ => return Err(MALFORMED),
            }
        }
    }

    /// A text, bytes, a number, true or false.
    fn word(&mut self, text: &mut Vec<u8>) -> Result<(), Complaint> {
        match self.next().ok_or(MALFORMED)? {
            b'"' => self.text(text),
            b'{' => self.bytes(text),
            _ => {
                text.clear();
                let of_number =
                    |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
                let (word, rest) = self.rest.split_at(self.rest.iter().take_while(of_number).count());
                let number = word.first().is_some_and(|byte| *byte == b'-' || byte.is_ascii_digit());
                let digits =
                    word.iter().all(|byte| !byte.is_ascii_alphabetic() || matches!(byte, b'e' | b'E'));
                if !(number && digits || word == b"true" || word == b"false") {
                    return Err(MALFORMED);
                }
                text.extend_from_slice(word);
                self.rest = rest;
                Ok(())
            }
        }
    }

    /// `{"b64": "…"}`.
    fn bytes(&mut self, text: &mut Vec<u8>) -> Result<(), Complaint> {
        self.expect(b'{')?;
        self.text(text)?;
        if text != b"b64" {
            return Err("a word is a text, a number, or an object with b64");
        }
        self.expect(b':')?;
        self.text(text)?;
        self.expect(b'}')?;
        let bytes = decode(text).ok_or("b64 is no base64")?;
        text.clear();
        text.extend_from_slice(&bytes);
        Ok(())
    }

    fn text(&mut self, text: &mut Vec<u8>) -> Result<(), Complaint> {
        self.expect(b'"')?;
        text.clear();
        loop {
            let end = memchr::memchr2(b'"', b'\\', self.rest).ok_or(MALFORMED)?;
            let plain = &self.rest[..end];
            if plain.iter().any(|byte| *byte < 0x20) {
                return Err(MALFORMED);
            }
            text.extend_from_slice(plain);
            let ends = self.rest[end] == b'"';
            self.rest = &self.rest[end + 1..];
            if ends {
                break;
            }
            self.escape(text)?;
        }
        // Bytes that are no text come as base64.
        std::str::from_utf8(text).map_or(Err("the body is not UTF-8"), |_| Ok(()))
    }

    fn escape(&mut self, text: &mut Vec<u8>) -> Result<(), Complaint> {
        let (byte, rest) = self.rest.split_first().ok_or(MALFORMED)?;
        self.rest = rest;
        text.push(match byte {
            b'"' | b'\\' | b'/' => *byte,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 8,
            b'f' => 12,
            b'u' => {
                let mut code = self.unit()?;
                if (0xd800..0xdc00).contains(&code) && self.rest.starts_with(b"\\u") {
                    self.rest = &self.rest[2..];
                    let low = self.unit()?;
                    if !(0xdc00..0xe000).contains(&low) {
                        return Err(MALFORMED);
                    }
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                }
                let character = char::from_u32(code).ok_or(MALFORMED)?;
                text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(MALFORMED),
        });
        Ok(())
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Result<u32, Complaint> {
        let (digits, rest) = self.rest.split_at_checked(4).ok_or(MALFORMED)?;
        self.rest = rest;
        digits
            .iter()
            .try_fold(0, |code, digit| Ok(code * 16 + (*digit as char).to_digit(16).ok_or(MALFORMED)?))
    }
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends bytes as base64. O(n).
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for three in bytes.chunks(3) {
        let n = three.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let letter = LETTERS[(n >> (18 - 6 * at) & 63) as usize];
            out.push(if at > three.len() { b'=' } else { letter });
        }
    }
}

/// Reads base64. None: it is none.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let full = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for four in full.chunks(4) {
        let mut n = 0u32;
        for letter in four {
            n = n << 6
                | match letter {
                    b'A'..=b'Z' => u32::from(letter - b'A'),
                    b'a'..=b'z' => u32::from(letter - b'a') + 26,
                    b'0'..=b'9' => u32::from(letter - b'0') + 52,
                    b'+' => 62,
                    b'/' => 63,
                    _ => return None,
                };
        }
        n <<= 6 * (4 - four.len());
        let bytes = n.to_be_bytes();
        out.extend_from_slice(bytes.get(1..four.len())?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(body: &str) -> Result<Vec<Vec<Vec<u8>>>, Complaint> {
        let (mut all, mut command) = (Vec::new(), Vec::new());
        commands(body.as_bytes(), &mut Vec::new(), |part| match part {
            Part::Word(word) => command.push(word.to_vec()),
            Part::End => all.push(std::mem::take(&mut command)),
        })?;
        Ok(all)
    }

    #[test]
    fn commands_are_read() {
        let all =
            read(r#" [ ["GET","a\n\u20ac\ud83d\ude00\""] , ["SET", {"b64":"/wA="}, -7.5e3] ] "#).unwrap();
        assert_eq!(all[0], [b"GET".to_vec(), "a\n\u{20ac}\u{1f600}\"".as_bytes().to_vec()]);
        assert_eq!(all[1], [b"SET".to_vec(), vec![0xff, 0], b"-7.5e3".to_vec()]);
        assert_eq!(read("[]"), Ok(Vec::new()));
        for bad in [
            "",
            "[",
            "[[]]",
            "[[\"a\"]",
            "[[\"a\"]]x",
            "[\"a\"]",
            "{}",
            "[[null]]",
            "[[\"a\",]]",
            "[[\"\\x\"]]",
            "[[\"\\ud800\"]]",
            "[[\"\\ud800\\u0041\"]]",
            "[[{\"b64\":\"a\"}]]",
            "[[{\"x\":\"\"}]]",
            "[[\"a\nb\"]]",
            "[[[\"a\"]]]",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let many = |n: usize| format!("[{}]", vec!["[\"a\"]"; n].join(","));
        assert_eq!(read(&many(COMMANDS_MAX)).unwrap().len(), COMMANDS_MAX);
        assert!(read(&many(COMMANDS_MAX + 1)).is_err());
        let raw = commands(b"[[\"\xff\"]]", &mut Vec::new(), |_| {});
        assert!(raw.is_err());
    }

    #[test]
    fn fields_are_read() {
        let mut found = Vec::new();
        let read = |body: &str, found: &mut Vec<String>| {
            fields(body.as_bytes(), &mut Vec::new(), |name, text| {
                found.push(format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(text)));
            })
        };
        assert_eq!(read(r#"{"user":"a","allow":true}"#, &mut found), Ok(()));
        assert_eq!(found, ["user=a", "allow=true"]);
        assert_eq!(read(" {} ", &mut found), Ok(()));
        for bad in ["", "{", "[]", "{\"a\"}", "{\"a\":}", "{\"a\":[]}", "{\"a\":\"b\"", "{\"a\":\"b\"}}"] {
            assert!(read(bad, &mut found).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn words_come_back_whatever_they_are(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 1..5),
            text in any::<String>(),
        ) {
            let mut body = b"[[".to_vec();
            for word in &words {
                body.extend_from_slice(b"{\"b64\":\"");
                encode(word, &mut body);
                body.extend_from_slice(b"\"},");
            }
            body.extend_from_slice(serde_json::to_string(&text).unwrap().as_bytes());
            body.extend_from_slice(b"]]");
            let all = read(std::str::from_utf8(&body).unwrap()).unwrap();
            let mut expected = words;
            expected.push(text.into_bytes());
            prop_assert_eq!(all, [expected]);
        }

        #[test]
        fn no_body_makes_it_panic(body in "[\\[\\]{}\",:\\\\ub64a0-9 ]{0,40}") {
            let _ = read(&body);
            let _ = fields(body.as_bytes(), &mut Vec::new(), |_, _| {});
        }
    }
}
