//! Tags of bodies, and conditions on them.

use twox_hash::XxHash3_128;

/// Length of a tag, quotes included.
pub const LEN: usize = 34;

/// The strong tag of a body: equal bytes have equal tags, in every process. Cost: O(n), some 50 ns for 1 KB.
pub fn of(body: &[u8]) -> [u8; LEN] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let hash = XxHash3_128::oneshot(body).to_be_bytes();
    let mut tag = [b'"'; LEN];
    for (to, byte) in tag[1..].chunks_exact_mut(2).zip(hash) {
        to.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    tag
}

/// Lines of tags that are looked at: of more, which no client sends, the others name nothing.
pub const LINES: usize = 2;

/// The tags a client names, in one line or several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tags<'a> {
    lines: [&'a [u8]; LINES],
    count: usize,
}

impl<'a> Tags<'a> {
    pub fn new(line: &'a [u8]) -> Tags<'a> {
        Tags { lines: [line, b""], count: 1 }
    }

    /// A further line.
    pub fn add(&mut self, line: &'a [u8]) {
        if let Some(place) = self.lines.get_mut(self.count) {
            *place = line;
            self.count += 1;
        }
    }

    /// All in one line.
    pub fn joined(&self) -> Box<[u8]> {
        self.lines[..self.count].join(&b", "[..]).into()
    }

    /// Whether a tag is named, or all are: that is what a body without one answers to. `strong`: a weak tag, `W/"a"`, is not `"a"`.
    /// Cost: O(n).
    pub fn name(&self, tag: Option<&[u8]>, strong: bool) -> bool {
        let lines = &self.lines[..self.count];
        match (lines, tag) {
            ([line], _) if line.trim_ascii() == b"*" => true,
            (lines, Some(tag)) => lines.iter().any(|line| matches(line, tag, strong)),
            (_, None) => false,
        }
    }
}

/// Whether a list names a tag.
fn matches(list: &[u8], tag: &[u8], strong: bool) -> bool {
    let mut rest = list;
    // Tags are taken one by one: a comma may stand within one.
    loop {
        rest = rest.trim_ascii_start();
        let weak = rest.strip_prefix(b"W/");
        rest = weak.unwrap_or(rest);
        let Some(inner) = rest.strip_prefix(b"\"") else { return false };
        let Some(end) = memchr::memchr(b'"', inner) else { return false };
        if !(strong && weak.is_some()) && rest[..end + 2] == *tag {
            return true;
        }
        rest = inner[end + 1..].trim_ascii_start();
        match rest.strip_prefix(b",") {
            Some(next) => rest = next,
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_never_changes() {
        // Clients keep them: other bytes here would make all of them ask again.
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
        for list in ["W/\"a\"", "\"x,\" , W/\"a\",\"c\""] {
            assert!(named(list, false) && !named(list, true), "{list}");
        }
        for list in ["", "a", "\"b\"", "\"a", "w/\"a\"", "\"b\" \"a\"", "\"aa\"", "*, \"b\"", "\",\"a"] {
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
        // More than there can be name nothing.
        (0..10).for_each(|_| tags.add(b"\"d\""));
        assert!(!tags.name(Some(b"\"d\""), true) && !tags.name(None, true));
        // All is all there can be.
        let mut tags = Tags::new(b"\"b\"");
        tags.add(b"*");
        assert!(!tags.name(Some(b"\"d\""), false) && !tags.name(None, false));
        assert!(Tags::new(b"*").name(None, true) && !Tags::new(b"\"a\"").name(None, false));
    }
}
