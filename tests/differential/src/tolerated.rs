//! The checked-in list of intended differences, `tolerated.txt`.
//!
//! One line each: `oracle | command | ours | theirs | reason`. The first four are globs (`*` and `?`) over
//! the texts the tester prints. `<number> | <same>` for ours and theirs means two texts of the same number.
//! `<same>` alone means two that differ only in bytes that are not UTF-8.
//!
//! The list is part of the project's promise. Every run prints its length, and the lines that no longer match
//! anything.

use crate::compare::Difference;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Tolerated {
    lines: Vec<Line>,
}

struct Line {
    oracle: String,
    command: String,
    ours: String,
    theirs: String,
    text: String,
    used: AtomicU64,
}

impl Tolerated {
    pub fn parse(text: &str) -> Result<Tolerated, String> {
        let mut lines = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let fields: Vec<&str> = line.splitn(5, " | ").map(str::trim).collect();
            let [oracle, command, ours, theirs, reason] = fields[..] else {
                return Err(format!("line {}: want oracle | command | ours | theirs | reason", at + 1));
            };
            if reason.len() < 10 {
                return Err(format!("line {}: a difference needs a reason", at + 1));
            }
            lines.push(Line {
                oracle: oracle.to_owned(),
                command: command.to_owned(),
                ours: ours.to_owned(),
                theirs: theirs.to_owned(),
                text: line.to_owned(),
                used: AtomicU64::new(0),
            });
        }
        Ok(Tolerated { lines })
    }

    /// Adds a line.
    pub fn add(&mut self, line: &str) -> Result<(), String> {
        self.lines.extend(Tolerated::parse(line)?.lines);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn allows(&self, oracle: &str, difference: &Difference) -> bool {
        let hit = self.lines.iter().find(|line| {
            glob(line.oracle.as_bytes(), oracle.as_bytes())
                && glob(line.command.as_bytes(), difference.command.as_bytes())
                && line.allows(&difference.ours, &difference.theirs)
        });
        if let Some(line) = hit {
            line.used.fetch_add(1, Ordering::Relaxed);
        }
        hit.is_some()
    }

    /// The lines, and how often each was needed.
    pub fn uses(&self) -> impl Iterator<Item = (&str, u64)> {
        self.lines.iter().map(|line| (line.text.as_str(), line.used.load(Ordering::Relaxed)))
    }
}

impl Line {
    fn allows(&self, ours: &str, theirs: &str) -> bool {
        if self.ours == "<number>" {
            return number(ours).is_some() && number(ours) == number(theirs);
        }
        if self.theirs == "<same>" {
            return glob(self.ours.as_bytes(), ours.as_bytes()) && ours == theirs;
        }
        glob(self.ours.as_bytes(), ours.as_bytes()) && glob(self.theirs.as_bytes(), theirs.as_bytes())
    }
}

/// The number in a bulk or a RESP3 double.
fn number(text: &str) -> Option<f64> {
    text.strip_prefix(',').unwrap_or(text).parse().ok()
}

/// Matches a glob: `*` any text, `?` one byte. Letter case is ignored because commands are sent in either.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == b'?' || pattern[p].eq_ignore_ascii_case(&text[t])) {
            p += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            p = at + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_texts() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("OBJECT ENCODING *", "object encoding t1", true),
            ("a*b*c", "a-b-b-c", true),
            ("a?c", "ac", false),
            ("abc", "abcd", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_line_without_a_reason_is_refused() {
        assert!(Tolerated::parse("* | GET * | a | b | x").is_err());
        assert_eq!(Tolerated::parse("# note\n* | GET * | a | b | because of this").map(|t| t.len()), Ok(1));
    }
}
