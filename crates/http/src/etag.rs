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

/// Whether a list of `If-None-Match` names a tag, or all. Compared weakly: `W/"a"` is `"a"`. Cost: O(n).
pub fn matches(list: &[u8], tag: &[u8]) -> bool {
    let mut rest = list.trim_ascii();
    if rest == b"*" {
        return true;
    }
    // Tags are taken one by one: a comma may stand within one.
    loop {
        rest = rest.trim_ascii_start();
        rest = rest.strip_prefix(b"W/").unwrap_or(rest);
        let Some(inner) = rest.strip_prefix(b"\"") else { return false };
        let Some(end) = memchr::memchr(b'"', inner) else { return false };
        if tag.len() == end + 2 && rest[..end + 2] == *tag {
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
        for list in ["*", " * ", "\"a\"", "W/\"a\"", "\"b\", \"a\"", "\"x,\" , W/\"a\",\"c\"", "\"\",\"a\""] {
            assert!(matches(list.as_bytes(), b"\"a\""), "{list}");
        }
        for list in ["", "a", "\"b\"", "\"a", "w/\"a\"", "\"b\" \"a\"", "\"aa\"", "*, \"b\"", "\",\"a"] {
            assert!(!matches(list.as_bytes(), b"\"a\""), "{list}");
        }
    }
}
