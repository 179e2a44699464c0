//! The first line of scripts and libraries: `#!lua name=… flags=…`.

use stdx::progress::shorter;

/// The declarations in a script's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScriptFlags {
    /// The script has no header: it may do all that EVAL allows, and the other flags mean nothing.
    pub compat: bool,
    pub no_writes: bool,
    pub allow_oom: bool,
    pub allow_stale: bool,
    pub no_cluster: bool,
    pub allow_cross_slot_keys: bool,
}

impl ScriptFlags {
    /// The flags that the text of a script for EVAL declares. None: its header is wrong, or cut off. O(the
    /// header).
    pub fn of(body: &[u8]) -> Option<ScriptFlags> {
        script(body).ok().map(|(flags, _)| flags)
    }

    /// Sets the flag of this name; false if there is none.
    pub(crate) fn set(&mut self, name: &[u8]) -> bool {
        match name {
            b"no-writes" => self.no_writes = true,
            b"allow-oom" => self.allow_oom = true,
            b"allow-stale" => self.allow_stale = true,
            b"no-cluster" => self.no_cluster = true,
            b"allow-cross-slot-keys" => self.allow_cross_slot_keys = true,
            _ => return false,
        }
        true
    }

    /// The names of the set flags, in Redis's order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        [
            (self.no_writes, "no-writes"),
            (self.allow_oom, "allow-oom"),
            (self.allow_stale, "allow-stale"),
            (self.no_cluster, "no-cluster"),
            (self.allow_cross_slot_keys, "allow-cross-slot-keys"),
        ]
        .into_iter()
        .filter_map(|(set, name)| set.then_some(name))
    }
}

/// Reads the header of a script for EVAL. Returns its flags and the code from the header's line feed on, so
/// that line numbers stay right. An error is the full text ("ERR …").
pub(crate) fn script(body: &[u8]) -> Result<(ScriptFlags, &[u8]), String> {
    if !body.starts_with(b"#!") {
        return Ok((ScriptFlags { compat: true, ..ScriptFlags::default() }, body));
    }
    let end = memchr::memchr(b'\n', body).ok_or("ERR Invalid script shebang")?;
    let mut parts = words(&body[..end]).ok_or("ERR Invalid engine in script shebang")?.into_iter();
    let engine = parts.next().unwrap_or_default();
    if engine != b"#!lua" {
        return Err(format!("ERR Unexpected engine in script shebang: {}", String::from_utf8_lossy(&engine)));
    }
    let mut flags = ScriptFlags::default();
    for part in parts {
        let Some(list) = part.strip_prefix(b"flags=") else {
            return Err(format!("ERR Unknown lua shebang option: {}", String::from_utf8_lossy(&part)));
        };
        for flag in list.split(|&c| c == b',').filter(|f| !f.is_empty()) {
            if !flags.set(flag) {
                return Err(format!(
                    "ERR Unexpected flag in script shebang: {}",
                    String::from_utf8_lossy(flag)
                ));
            }
        }
    }
    Ok((flags, &body[end..]))
}

/// Reads the header of a library. Returns its name and the code from the header's line feed on. An error text
/// has no "ERR".
pub(crate) fn library(code: &[u8]) -> Result<(String, &[u8]), String> {
    if !code.starts_with(b"#!") {
        return Err("Missing library metadata".into());
    }
    let end = memchr::memchr(b'\n', code).ok_or("Invalid library metadata")?;
    let mut parts = words(&code[2..end]).ok_or("Invalid library metadata")?.into_iter();
    let mut name: Option<Vec<u8>> = None;
    let engine = parts.next();
    for part in parts {
        match strip_prefix_nocase(&part, b"name=") {
            Some(_) if name.is_some() => {
                return Err("Invalid metadata value, name argument was given multiple times".into());
            }
            Some(value) => name = Some(value.to_vec()),
            None => return Err(format!("Invalid metadata value given: {}", String::from_utf8_lossy(&part))),
        }
    }
    let name = name.ok_or("Library name was not given")?;
    if !valid_name(&name) {
        return Err(BAD_NAME.into());
    }
    match engine {
        Some(engine) if engine.eq_ignore_ascii_case(b"lua") => {}
        engine => {
            return Err(format!(
                "Engine '{}' not found",
                String::from_utf8_lossy(&engine.unwrap_or_default())
            ));
        }
    }
    Ok((String::from_utf8_lossy(&name).into_owned(), &code[end..]))
}

pub(crate) const BAD_NAME: &str = "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";

pub(crate) fn valid_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'_')
}

fn strip_prefix_nocase<'a>(text: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (head, tail) = text.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(tail)
}

/// Splits a line at blanks, with quotes as in redis-cli: `"a\x41\n"` and `'a\'b'`. `None` if quotes do not
/// match. A NUL ends the line.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let line = line.split(|c| *c == 0).next().unwrap_or_default();
    let mut words = Vec::new();
    let mut rest = skip_blanks(line);
    while !rest.is_empty() {
        let (word, tail) = word(rest)?;
        words.push(word);
        rest = skip_blanks(shorter(rest, tail));
    }
    Some(words)
}

fn skip_blanks(text: &[u8]) -> &[u8] {
    let blanks = text.iter().take_while(|c| is_blank(**c)).count();
    &text[blanks..]
}

fn is_blank(c: u8) -> bool {
    c.is_ascii_whitespace() || c == 0x0b
}

/// Reads one word of a text that begins with no blank. Returns it and the rest.
fn word(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    let mut rest = text;
    while let Some((&c, tail)) = rest.split_first() {
        match c {
            b' ' | b'\t' | b'\r' | b'\n' => break,
            b'"' | b'\'' => {
                rest = quoted(tail, c, &mut word)?;
                if rest.first().is_some_and(|c| !is_blank(*c)) {
                    return None;
                }
                break;
            }
            _ => word.push(c),
        }
        rest = tail;
    }
    Some((word, rest))
}

/// Reads up to the closing quote; returns the rest.
fn quoted<'a>(mut rest: &'a [u8], quote: u8, word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        let (&c, tail) = rest.split_first()?;
        rest = tail;
        match (c, rest) {
            (c, _) if c == quote => return Some(rest),
            (b'\\', [b'x', a, b, tail @ ..])
                if quote == b'"' && a.is_ascii_hexdigit() && b.is_ascii_hexdigit() =>
            {
                let digit = |c: u8| (c as char).to_digit(16).unwrap_or(0) as u8;
                word.push(digit(*a) << 4 | digit(*b));
                rest = tail;
            }
            (b'\\', [e, tail @ ..]) if quote == b'"' => {
                word.push(match e {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    e => *e,
                });
                rest = tail;
            }
            (b'\\', [b'\'', tail @ ..]) => {
                word.push(b'\'');
                rest = tail;
            }
            _ => word.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(line: &[u8]) -> Option<Vec<String>> {
        Some(words(line)?.iter().map(|word| word.escape_ascii().to_string()).collect())
    }

    #[test]
    fn a_nul_ends_a_header_and_the_reading_of_it() {
        for (line, right) in [
            (&b"lua \0"[..], Some(vec!["lua"])),
            (b"\0", Some(vec![])),
            (b"lua\0name=x", Some(vec!["lua"])),
            (b"lua \0\0 name=x", Some(vec!["lua"])),
            (b"lua 'a'\0b", Some(vec!["lua", "a"])),
            (b"lua 'a\0b'", None),
            (b"lua \x0b\x0c name=x\r", Some(vec!["lua", "name=x"])),
            (b"lua a\x0bb", Some(vec!["lua", "a\\x0bb"])),
            (b"'a'b", None),
            (b"\"\\x41\\n\\q\" '\\''", Some(vec!["A\\nq", "\\'"])),
        ] {
            let right = right.map(|words| words.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(split(line), right, "{}", line.escape_ascii());
        }
        assert_eq!(
            script(b"#!lua \0\nreturn 1").map(|(flags, code)| (flags.compat, code)),
            Ok((false, &b"\nreturn 1"[..]))
        );
        assert_eq!(library(b"#!lua \0 name=x\nreturn 1"), Err("Library name was not given".to_owned()));
    }

    proptest! {
        /// Reading ends for any header, and the words are no longer than it.
        #[test]
        fn any_bytes_are_read_to_their_end(line in prop::collection::vec(prop::sample::select(&b"\0\r\n\t \x0b\x0c\"'\\xa1=,#\xff"[..]), 0..40)) {
            if let Some(words) = words(&line) {
                prop_assert!(words.iter().map(Vec::len).sum::<usize>() <= line.len());
                prop_assert!(words.len() <= line.len());
            }
            let mut header = b"#!".to_vec();
            header.extend(&line);
            let _ = (script(&header), library(&header));
            header.push(b'\n');
            let _ = (script(&header), library(&header));
        }
    }
}
