//! Texts of a server for a terminal.

/// Characters shown of a text, at most.
const MAX: usize = 400;

/// A text of a server as one line of a terminal: letters and printable ASCII stay; control characters, those
/// that turn the direction of writing, line ends and bytes that are no UTF-8 are escaped, so that no text steers
/// the terminal. Only the begin of a long one is shown. Showing it twice changes nothing. O(bytes shown).
pub fn shown(text: impl AsRef<[u8]>) -> String {
    let text = text.as_ref();
    // A character has four bytes at most.
    let begin = &text[..text.len().min(4 * MAX)];
    let line = plain(begin);
    let is_cut = begin.len() < text.len();
    match line.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}..", &line[..end]),
        None if is_cut => format!("{line}.."),
        None => line,
    }
}

/// As [`shown`], but all of it. O(bytes).
pub fn plain(text: impl AsRef<[u8]>) -> String {
    let mut line = String::new();
    for chunk in text.as_ref().utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                ' '..='~' => line.push(char),
                char if char.is_alphanumeric() => line.push(char),
                char => line.extend(char.escape_debug()),
            }
        }
        line.push_str(&chunk.invalid().escape_ascii().to_string());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_steers_the_terminal() {
        assert_eq!(shown("ERR it's \"a\" \\ \u{fc}"), "ERR it's \"a\" \\ \u{fc}");
        assert_eq!(shown(b"\x1b[2J\x07\xff\x9b\r\n"), "\\u{1b}[2J\\u{7}\\xff\\x9b\\r\\n");
        assert_eq!(shown("a\u{202e}b\u{2066}\u{9b}"), "a\\u{202e}b\\u{2066}\\u{9b}");
        let all: Vec<u8> = (0..=255).collect();
        let once = shown(&all);
        assert!(once.chars().all(|char| !char.is_control()));
        assert_eq!(shown(&once), once);
    }

    #[test]
    fn of_a_long_text_the_begin_is_shown() {
        for text in ["x".repeat(1 << 20), "\u{fc}".repeat(1 << 20), "\x1b".repeat(1 << 20)] {
            let line = shown(&text);
            assert!(line.ends_with("..") && line.chars().count() == MAX + 2, "{}", line.len());
        }
        assert_eq!(shown("y".repeat(MAX)), "y".repeat(MAX));
    }
}
