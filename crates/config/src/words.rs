//! Splits a configuration line into words, with quotes and escapes, and quotes words for a file.
//!
//! A line is words separated by blanks. A word may be quoted, and a closing quote must end it. `"..."` knows
//! the escapes `\n \r \t \b \a \xHH`, and takes any other escaped byte as itself; `'...'` knows only `\'`.
//!
//! - W1: [`split`] turns [`quote`]d text back into the text, for any bytes.
//!
//! Source: the format of redis.conf, checked on Redis 7.0.

use stdx::progress::further;

/// Splits a line into words. `None` if a quote does not close, or more text follows it. O(length).
pub fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        while at < line.len() && is_blank(line[at]) {
            at += 1;
        }
        if at == line.len() {
            return Some(words);
        }
        let (word, next) = word(line, at)?;
        words.push(word);
        at = further(at, next);
    }
}

/// Reads the word at `at`, which is not blank. Returns it, and the place where the next one may start.
fn word(line: &[u8], mut at: usize) -> Option<(Vec<u8>, usize)> {
    let mut word = Vec::new();
    while at < line.len() && !is_blank(line[at]) {
        match line[at] {
            b'"' => at = double_quoted(line, at + 1, &mut word)?,
            b'\'' => at = single_quoted(line, at + 1, &mut word)?,
            byte => {
                word.push(byte);
                at += 1;
                continue;
            }
        }
        // A closing quote ends the word.
        return (at == line.len() || is_blank(line[at])).then_some((word, at));
    }
    Some((word, at))
}

fn double_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        match (line.get(at)?, line.get(at + 1)) {
            (b'"', _) => return Some(at + 1),
            (b'\\', Some(b'x')) if hex_pair(line, at + 2).is_some() => {
                word.push(hex_pair(line, at + 2)?);
                at += 4;
            }
            (b'\\', Some(&escaped)) => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => other,
                });
                at += 2;
            }
            (&byte, _) => {
                word.push(byte);
                at += 1;
            }
        }
    }
}

fn single_quoted(line: &[u8], mut at: usize, word: &mut Vec<u8>) -> Option<usize> {
    loop {
        match (line.get(at)?, line.get(at + 1)) {
            (b'\'', _) => return Some(at + 1),
            (b'\\', Some(b'\'')) => {
                word.push(b'\'');
                at += 2;
            }
            (&byte, _) => {
                word.push(byte);
                at += 1;
            }
        }
    }
}

fn hex_pair(line: &[u8], at: usize) -> Option<u8> {
    let digit = |at: usize| line.get(at).and_then(|&b| (b as char).to_digit(16));
    Some((digit(at)? * 16 + digit(at + 1)?) as u8)
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b || byte == 0
}

/// The text in double quotes. Quotes, backslashes and bytes that are not printable ASCII are escaped.
pub fn quote(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    out.push(b'"');
    for &byte in text {
        match byte {
            b'\\' | b'"' => out.extend([b'\\', byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            7 => out.extend(b"\\a"),
            8 => out.extend(b"\\b"),
            b' '..=b'~' => out.push(byte),
            _ => out.extend(format!("\\x{byte:02x}").bytes()),
        }
    }
    out.push(b'"');
    out
}

/// The word as it may stand in a file: without quotes if it needs none.
pub fn quote_if_needed(text: &[u8]) -> Vec<u8> {
    let plain = |b: &u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'\\' | b'#');
    if !text.is_empty() && text.iter().all(plain) { text.to_vec() } else { quote(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Option<Vec<String>> {
        Some(split(line.as_bytes())?.into_iter().map(|w| String::from_utf8_lossy(&w).into_owned()).collect())
    }

    #[test]
    fn blanks_separate_and_quotes_hold_together() {
        assert_eq!(words("  a  b\tc ").unwrap(), ["a", "b", "c"]);
        assert_eq!(words(r#"save """#).unwrap(), ["save", ""]);
        assert_eq!(
            words(r#"x "a b" 'c d' 'it\'s' "\x41\n\q""#).unwrap(),
            ["x", "a b", "c d", "it's", "A\nq"]
        );
        assert_eq!(words("").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn an_open_quote_or_text_after_a_closed_one_is_refused() {
        for line in [r#"port "1"#, "port 'a", r#"a "b"c"#, r#"a "\"#] {
            assert_eq!(words(line), None, "{line}");
        }
    }

    #[test]
    fn any_bytes_are_read_to_their_end() {
        let hard = b"\0\r\n\t \x0b\x0c\"'\\xa1=#\xff";
        let mut seed = 1;
        let mut random = |below: usize| {
            seed = stdx::hash::hash_u64(seed);
            seed as usize % below
        };
        for _ in 0..20_000 {
            let line: Vec<u8> = (0..random(30)).map(|_| hard[random(hard.len())]).collect();
            if let Some(words) = split(&line) {
                assert!(words.len() + words.iter().map(Vec::len).sum::<usize>() <= 2 * line.len());
            }
        }
        assert_eq!(words("a\0b\0\0\u{b}c\0").unwrap(), ["a", "b", "c"]);
    }

    #[test]
    fn any_bytes_survive_quoting() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(split(&quote(&all)).unwrap(), std::slice::from_ref(&all));
        assert_eq!(split(&quote_if_needed(b"plain")).unwrap(), [b"plain".to_vec()]);
        assert_eq!(split(&quote_if_needed(b"")).unwrap(), [b"".to_vec()]);
    }
}
