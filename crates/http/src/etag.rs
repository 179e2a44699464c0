//! Tags of bodies, and conditions on them.

use twox_hash::XxHash3_128;

/// Length of a tag, quotes included.
pub const LEN: usize = 34;

/// The strong tag of a body. Equal bytes have equal tags in every process. O(n), some 50 ns for 1 KB.
pub fn of(body: &[u8]) -> [u8; LEN] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let hash = XxHash3_128::oneshot(body).to_be_bytes();
    let mut tag = [b'"'; LEN];
    for (to, byte) in tag[1..].chunks_exact_mut(2).zip(hash) {
        to.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    tag
}

/// Lines of tags that are read. More, which no client sends, are ignored.
pub const LINES: usize = 2;

/// The tags of a condition, from one line or several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tags<'a> {
    lines: [&'a [u8]; LINES],
    count: usize,
}

impl<'a> Tags<'a> {
    pub fn new(line: &'a [u8]) -> Tags<'a> {
        Tags { lines: [line, b""], count: 1 }
    }

    /// Adds a line. Lines beyond [`LINES`] are ignored.
    pub fn add(&mut self, line: &'a [u8]) {
        if let Some(place) = self.lines.get_mut(self.count) {
            *place = line;
            self.count += 1;
        }
    }

    /// All tags in one line.
    pub fn joined(&self) -> Box<[u8]> {
        self.lines[..self.count].join(&b", "[..]).into()
    }

    /// Whether this tag is named, or `*`, which also names a body without a tag. `strong`: a weak tag,
    /// `W/"a"`, does not name `"a"`. O(n).
    pub fn name(&self, tag: Option<&[u8]>, strong: bool) -> bool {
        let lines = &self.lines[..self.count];
        let mut elements = lines.iter().flat_map(|line| Elements(line));
        if elements.clone().eq([&b"*"[..]]) {
            return true;
        }
        let Some(tag) = tag else { return false };
        elements.any(|element| match element.strip_prefix(b"W/") {
            Some(weak) => !strong && weak == tag,
            None => element == tag,
        })
    }
}

/// The elements of a list between commas, without empty ones. A tag may contain a comma.
#[derive(Clone)]
struct Elements<'a>(&'a [u8]);

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let list = self.0.trim_ascii_start();
            if list.is_empty() {
                return None;
            }
            let tag = list.strip_prefix(b"W/").unwrap_or(list).strip_prefix(b"\"");
            let quoted = match tag {
                None => 0,
                Some(tag) => {
                    list.len() - tag.len() + memchr::memchr(b'"', tag).map_or(tag.len(), |end| end + 1)
                }
            };
            let end = memchr::memchr(b',', &list[quoted..]).map_or(list.len(), |comma| quoted + comma);
            self.0 = list.get(end + 1..).unwrap_or_default();
            let element = list[..end].trim_ascii_end();
            if !element.is_empty() {
                return Some(element);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_never_changes() {
        // Clients keep tags: with other bytes here, all of them would fetch everything again.
        assert_eq!(&of(b""), b"\"99aa06d3014798d86001c324468d497f\"");
        assert_ne!(of(b"a"), of(b"b"));
        assert!(of(&[7; 5000])[1..33].iter().all(u8::is_ascii_hexdigit));
    }

    #[test]
    fn lists_are_searched() {
        let named = |list: &str, strong| Tags::new(list.as_bytes()).name(Some(b"\"a\""), strong);
        for list in ["*", " * ", "\"a\"", "\"b\", \"a\"", "\"x,\" , W/\"b\",\"a\"", "\"\",\"a\""] {
            assert!(named(list, false) && named(list, true), "{list}");
        }
        for list in [", ,\"a\"", ",\"a\",", "\t,\"b\",, ,\"a\"", "b, \"a\"", "*, \"a\"", ", *", "*,,"] {
            assert!(named(list, false) && named(list, true), "{list}");
        }
        for list in ["W/\"a\"", ",W/\"a\"", "\"x,\" , W/\"a\",\"c\""] {
            assert!(named(list, false) && !named(list, true), "{list}");
        }
        for list in [
            "",
            ",",
            ", ,",
            ",*,\"b\"",
            "\"b\",*",
            "\",\"a\",\"",
            "a",
            "\"b\"",
            "\"a",
            "w/\"a\"",
            "\"b\" \"a\"",
            "\"aa\"",
            "*, \"b\"",
            "\",\"a",
        ] {
            assert!(!named(list, false), "{list}");
        }
    }

    #[test]
    fn several_lines_are_one_list() {
        let mut tags = Tags::new(b"\"b\"");
        assert!(!tags.name(Some(b"\"a\""), true));
        tags.add(b"\"c\", \"a\"");
        assert!(tags.name(Some(b"\"a\""), true) && tags.name(Some(b"\"b\""), true));
        assert_eq!(*tags.joined(), *b"\"b\", \"c\", \"a\"");
        let mut tags = Tags::new(b"");
        tags.add(b",\"a\"");
        assert!(tags.name(Some(b"\"a\""), true) && !tags.name(None, true));
        // Lines beyond the limit name nothing.
        (0..10).for_each(|_| tags.add(b"\"d\""));
        assert!(!tags.name(Some(b"\"d\""), true) && !tags.name(None, true));
        // `*` must be the only element.
        let mut tags = Tags::new(b"\"b\"");
        tags.add(b"*");
        assert!(!tags.name(Some(b"\"d\""), false) && !tags.name(None, false));
        assert!(Tags::new(b"*").name(None, true) && !Tags::new(b"\"a\"").name(None, false));
    }
}
