//! A strict reader of RESP2 and RESP3 that keeps nothing. It finds the end of each reply, and bytes that are
//! not RESP.
//!
//! It is stricter than clients are: a line ends with CR LF and contains neither before that, numbers are
//! numbers, a push is alone. Cost: O(bytes); memory: one line, or one piece.

/// Depth above which a reply counts as malformed. Lua tables that contain themselves come as deep as Lua's
/// stack allows.
const DEPTH_MAX: usize = 100_000;
/// Bytes kept of a reply's text.
const TEXT_MAX: usize = 256;
/// Length above which a line counts as malformed.
const LINE_MAX: usize = 4 << 20;

/// A whole reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its first byte.
    pub mark: u8,
    /// The beginning of its text; empty for aggregates.
    pub text: Vec<u8>,
}

/// An aggregate whose elements are still coming.
struct Open {
    left: u64,
    /// It precedes a reply and is not one itself.
    attribute: bool,
}

#[derive(Default)]
pub struct Scan {
    buffer: Vec<u8>,
    at: usize,
    open: Vec<Open>,
    /// The bulk being read: its mark, and its number of remaining bytes.
    bulk: Option<(u8, u64)>,
    text: Vec<u8>,
    first: u8,
}

impl Scan {
    /// Takes bytes from the socket.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole reply. `None`: more bytes are needed. Errors: the bytes that are not RESP, in words.
    pub fn next(&mut self) -> Result<Option<Reply>, String> {
        loop {
            let leaf = match self.bulk {
                Some((mark, left)) => match self.pass(mark, left)? {
                    false => return Ok(None),
                    true => true,
                },
                None => match self.line()? {
                    None => return Ok(None),
                    Some(line) => self.head(&line)?,
                },
            };
            if leaf && self.close() {
                return Ok(Some(Reply { mark: self.first, text: std::mem::take(&mut self.text) }));
            }
        }
    }

    /// Whether a reply has begun and not ended.
    #[cfg(test)]
    fn is_amid(&self) -> bool {
        self.at < self.buffer.len() || self.bulk.is_some() || !self.open.is_empty()
    }

    fn line(&mut self) -> Result<Option<Vec<u8>>, String> {
        let rest = &self.buffer[self.at..];
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            let long = rest.len() > LINE_MAX;
            return if long { Err("a line without an end".into()) } else { Ok(None) };
        };
        let line = rest[..end].to_vec();
        self.at += end + 1;
        match line.split_last() {
            Some((b'\r', line)) if !line.contains(&b'\r') => Ok(Some(line.to_vec())),
            _ => Err(format!("a line that does not end with CR LF: {}", shown(&line))),
        }
    }

    /// Takes the first line of a reply or element. True: the line is all of it.
    fn head(&mut self, line: &[u8]) -> Result<bool, String> {
        let wrong = || format!("no reply: {}", shown(line));
        let (&mark, rest) = line.split_first().ok_or_else(wrong)?;
        let text = std::str::from_utf8(rest).ok();
        let number = || text.and_then(|text| text.parse::<i64>().ok()).ok_or_else(wrong);
        if self.open.is_empty() {
            self.first = mark;
            self.text = rest[..rest.len().min(TEXT_MAX)].to_vec();
        } else if mark == b'>' {
            return Err("a push inside a reply".into());
        }
        match mark {
            b'+' | b'-' => {}
            b':' => {
                number()?;
            }
            b',' => {
                text.and_then(|text| text.parse::<f64>().ok()).ok_or_else(wrong)?;
            }
            b'(' => {
                let digits = rest.strip_prefix(b"-").unwrap_or(rest);
                if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                    return Err(wrong());
                }
            }
            b'#' if rest == b"t" || rest == b"f" => {}
            b'_' if rest.is_empty() => {}
            b'$' | b'=' | b'!' => {
                let length = number()?;
                if self.open.is_empty() {
                    self.text.clear();
                }
                match length {
                    -1 if mark == b'$' => {}
                    0.. => {
                        self.bulk = Some((mark, length as u64));
                        return Ok(false);
                    }
                    _ => return Err(wrong()),
                }
            }
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                let length = number()?;
                if self.open.is_empty() {
                    self.text.clear();
                }
                let left = match length {
                    -1 if mark == b'*' => return Ok(true),
                    0.. if matches!(mark, b'%' | b'|') => 2 * length as u64,
                    0.. => length as u64,
                    _ => return Err(wrong()),
                };
                if self.open.len() >= DEPTH_MAX {
                    return Err("a reply of too many levels".into());
                }
                let attribute = mark == b'|';
                if left == 0 {
                    return Ok(!attribute);
                }
                self.open.push(Open { left, attribute });
                return Ok(false);
            }
            _ => return Err(wrong()),
        }
        Ok(true)
    }

    /// Skips bytes of a bulk. True: it has ended.
    fn pass(&mut self, mark: u8, left: u64) -> Result<bool, String> {
        let there = (self.buffer.len() - self.at) as u64;
        let some = there.min(left) as usize;
        if self.open.is_empty() && self.text.len() < TEXT_MAX {
            let kept = some.min(TEXT_MAX - self.text.len());
            self.text.extend_from_slice(&self.buffer[self.at..self.at + kept]);
        }
        self.at += some;
        let left = left - some as u64;
        self.bulk = Some((mark, left));
        if left > 0 || self.buffer.len() < self.at + 2 {
            return Ok(false);
        }
        let end = &self.buffer[self.at..self.at + 2];
        if end != b"\r\n" {
            return Err(format!("a text that does not end where it should: {}", shown(end)));
        }
        self.at += 2;
        self.bulk = None;
        Ok(true)
    }

    /// Closes a leaf, and the aggregates that end with it. True: the whole reply has ended.
    fn close(&mut self) -> bool {
        while let Some(open) = self.open.last_mut() {
            open.left -= 1;
            if open.left > 0 {
                return false;
            }
            let attribute = open.attribute;
            self.open.pop();
            if attribute {
                return false;
            }
        }
        true
    }
}

fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(60)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(u8, String)>, String> {
        let mut scan = Scan::default();
        let mut found = Vec::new();
        // Byte by byte: every place where a piece can end.
        for byte in bytes {
            scan.feed(&[*byte]);
            while let Some(reply) = scan.next()? {
                found.push((reply.mark as char as u8, String::from_utf8_lossy(&reply.text).into_owned()));
            }
        }
        assert!(!scan.is_amid(), "all of it was read");
        Ok(found)
    }

    #[test]
    fn whole_replies_are_told_apart() {
        let wire = b"+OK\r\n*2\r\n$3\r\na\r\n\r\n*0\r\n$-1\r\n%1\r\n+k\r\n,-inf\r\n>2\r\n+a\r\n:1\r\n|1\r\n+a\r\n+b\r\n=7\r\ntxt:abc\r\n_\r\n";
        let marks: Vec<u8> = read(wire).unwrap().iter().map(|(mark, _)| *mark).collect();
        assert_eq!(marks, b"+*$%>=_");
        assert_eq!(read(b"$5\r\nhello\r\n").unwrap(), [(b'$', "hello".to_owned())]);
    }

    #[test]
    fn what_is_no_reply_is_found() {
        for wire in [
            &b"+a\n"[..],
            b"+a\rb\r\n",
            b"\r\n",
            b":1x\r\n",
            b":\r\n",
            b"$3\r\nabcd\r\n",
            b"$-2\r\n",
            b"*-2\r\n",
            b"~-1\r\n",
            b"#x\r\n",
            b",abc\r\n",
            b"*1\r\n>1\r\n+a\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b"(12x\r\n",
        ] {
            assert!(read(wire).is_err(), "{}", shown(wire));
        }
    }
}
