//! Splits a line into words: inline commands, and other texts that are quoted as in `redis-cli`.
//!
//! Blanks separate words. A word may contain one quoted part, which ends it: a blank or the end follows the
//! closing quote. Inside `"..."` a backslash starts `\n \r \t \b \a \xHH`, or stands for the next character.
//! Inside `'...'` only `\'` is special. Outside quotes a backslash is an ordinary character. Observed on
//! Redis 7.0.15, where a vertical tab separates words only before a word starts.

use crate::{OwnedArgs, ProtocolError, Span};
use stdx::progress::shorter;

/// Splits `line` into words. `None` if its quotes do not balance. O(bytes).
pub fn split_line(line: &[u8]) -> Option<OwnedArgs> {
    let (mut text, mut spans, mut owned) = (Vec::new(), Vec::new(), OwnedArgs::new());
    split_into(line, &mut text, &mut spans).ok()?;
    owned.extend(crate::Args::new(&text, &spans).iter());
    Some(owned)
}

/// Appends the unquoted words of `line` to `text`, and their places in it to `spans`.
pub(crate) fn split_into(
    line: &[u8],
    text: &mut Vec<u8>,
    spans: &mut Vec<Span>,
) -> Result<(), ProtocolError> {
    let mut rest = line;
    loop {
        rest = skip_blanks(rest);
        if rest.is_empty() {
            return Ok(());
        }
        let start = text.len();
        rest = shorter(rest, word(rest, text)?);
        spans.push(Span::new(start, text.len()));
    }
}

/// Reads one word and returns the rest.
fn word<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        let Some((&byte, tail)) = rest.split_first() else { return Ok(rest) };
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => return Ok(tail),
            b'"' => return ends_word(double_quoted(tail, text)?),
            b'\'' => return ends_word(single_quoted(tail, text)?),
            _ => text.push(byte),
        }
        rest = tail;
    }
}

/// Checks that a blank or nothing follows a closing quote.
fn ends_word(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    match rest.first() {
        Some(&byte) if !is_blank(byte) => Err(ProtocolError::UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [b'"', tail @ ..] => return Ok(tail),
            [b'\\', b'x', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                text.push(hex(*high) << 4 | hex(*low));
                tail
            }
            [b'\\', escaped, tail @ ..] => {
                text.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                tail
            }
            [byte, tail @ ..] => {
                text.push(*byte);
                tail
            }
            [] => return Err(ProtocolError::UnbalancedQuotes),
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [b'\'', tail @ ..] => return Ok(tail),
            [b'\\', b'\'', tail @ ..] => {
                text.push(b'\'');
                tail
            }
            [byte, tail @ ..] => {
                text.push(*byte);
                tail
            }
            [] => return Err(ProtocolError::UnbalancedQuotes),
        }
    }
}

fn skip_blanks(line: &[u8]) -> &[u8] {
    let blanks = line.iter().take_while(|&&byte| is_blank(byte)).count();
    &line[blanks..]
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_to_their_end(line in prop::collection::vec(prop::sample::select(&b"\0\r\n\t \x0b\x0c\"'\\xa1\xff"[..]), 0..40)) {
            if let Some(words) = words(&line) {
                prop_assert!(words.len() <= line.len() && words.concat().len() <= line.len());
            }
        }
    }

    fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
        split_line(line).map(|owned| owned.args().iter().map(<[u8]>::to_vec).collect())
    }

    #[test]
    fn quoting_is_that_of_a_real_server() {
        let cases: &[(&[u8], &[&[u8]])] = &[
            (b"ECHO \"a\\x41\\n\\q\\\\\"", &[b"ECHO", b"aA\nq\\"]),
            (b"ECHO 'a\\x41\\''", &[b"ECHO", b"a\\x41'"]),
            (b"ECHO a\"b c\"", &[b"ECHO", b"ab c"]),
            (b"ECHO \"a\"\x0b", &[b"ECHO", b"a"]),
            (b"ECHO a\x0bb", &[b"ECHO", b"a\x0bb"]),
            (b"  ", &[]),
            (b"", &[]),
            (b"ECHO \"\"", &[b"ECHO", b""]),
            (b"foo\rbar", &[b"foo", b"bar"]),
            (b"\x0bPING", &[b"PING"]),
            (b"ECHO \\x41", &[b"ECHO", b"\\x41"]),
            (b"ECHO \"\\x4\"", &[b"ECHO", b"x4"]),
            (b"\"\" a", &[b"", b"a"]),
        ];
        for (line, expect) in cases {
            assert_eq!(
                words(line).as_deref(),
                Some(&expect.iter().map(|w| w.to_vec()).collect::<Vec<_>>()[..])
            );
        }
        for line in [
            &b"PING \""[..],
            b"PING \"a\"b",
            b"ECHO a\"b c\"d",
            b"ECHO a'b'\"c\"",
            b"ECHO \"a\\\"",
            b"'",
            b"'\\'",
        ] {
            assert_eq!(words(line), None, "{}", line.escape_ascii());
        }
    }
}
