//! Replies as fields with names. Nothing is expected of a server: what is missing or of another kind is absent.

use crate::text::shown;
use dial::Frame;
use std::collections::HashMap;

/// The value that a reply has under a name. A map of RESP3, or an array of names and values. O(fields).
pub fn field<'a>(reply: &'a Frame, name: &str) -> Option<&'a Frame> {
    let is = |frame: &Frame| bytes(frame) == name.as_bytes();
    match reply {
        Frame::Map(pairs) => pairs.iter().find(|pair| is(&pair.0)).map(|pair| &pair.1),
        Frame::Array(flat) => flat.chunks_exact(2).find(|pair| is(&pair[0])).map(|pair| &pair[1]),
        _ => None,
    }
}

/// The pairs of a map, in order. O(1) each.
pub fn pairs(reply: &Frame) -> Vec<(&Frame, &Frame)> {
    match reply {
        Frame::Map(pairs) => pairs.iter().map(|pair| (&pair.0, &pair.1)).collect(),
        Frame::Array(flat) => flat.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
        _ => Vec::new(),
    }
}

/// The elements of a list; none of what is no list.
pub fn list(reply: &Frame) -> &[Frame] {
    match reply {
        Frame::Array(list) | Frame::Set(list) | Frame::Push(list) => list,
        _ => &[],
    }
}

/// The bytes of a text; none of what is no text.
pub fn bytes(reply: &Frame) -> &[u8] {
    match reply {
        Frame::Bulk(text) | Frame::Simple(text) | Frame::Verbatim { text, .. } | Frame::Error(text) => text,
        _ => b"",
    }
}

/// The largest number that a server is believed: a thousand times as much is still a number, and a double holds
/// it.
const BELIEVED: u64 = (1 << 53) - 1;

/// A number, also one written as text. Negative ones are 0, and none is above 2^53 - 1.
pub fn count(reply: &Frame) -> Option<u64> {
    match reply {
        Frame::Int(n) => Some(u64::try_from(*n).unwrap_or(0).min(BELIEVED)),
        Frame::Bulk(text) | Frame::Simple(text) => counted(std::str::from_utf8(text).ok()?),
        _ => None,
    }
}

/// The number that a text is, as [`count`] has it.
pub fn counted(text: &str) -> Option<u64> {
    let number = text.parse::<i128>().ok()?;
    Some(u64::try_from(number.max(0)).unwrap_or(BELIEVED).min(BELIEVED))
}

/// A sum, however large its parts are.
pub fn sum(parts: impl IntoIterator<Item = u64>) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

/// The number under a name; 0 without one.
pub fn count_of(reply: &Frame, name: &str) -> u64 {
    field(reply, name).and_then(count).unwrap_or(0)
}

/// The text under a name, as a terminal may show it.
pub fn text_of(reply: &Frame, name: &str) -> String {
    field(reply, name).map(|text| shown(bytes(text))).unwrap_or_default()
}

/// Any reply in lines, those of nested ones indented, as a terminal may show them. O(bytes).
pub fn lines(reply: &Frame, indent: usize, out: &mut Vec<String>) {
    const DEEP: usize = 12;
    let pad = " ".repeat(indent);
    match reply {
        Frame::Map(_) => pairs(reply).iter().for_each(|pair| named(pair.0, pair.1, indent, out)),
        // A map of RESP2: names are texts.
        Frame::Array(flat)
            if !flat.is_empty()
                && flat.len().is_multiple_of(2)
                && flat.iter().step_by(2).all(|name| matches!(name, Frame::Bulk(_)))
                && flat.iter().skip(1).step_by(2).any(|value| !matches!(value, Frame::Bulk(_))) =>
        {
            pairs(reply).iter().for_each(|pair| named(pair.0, pair.1, indent, out));
        }
        Frame::Array(list) | Frame::Set(list) | Frame::Push(list) if indent < DEEP => {
            list.iter().for_each(|one| lines(one, indent + 2, out));
        }
        one => out.push(format!("{pad}{}", one_line(one))),
    }
}

fn named(name: &Frame, value: &Frame, indent: usize, out: &mut Vec<String>) {
    let pad = " ".repeat(indent);
    let name = one_line(name);
    if list(value).is_empty() && !matches!(value, Frame::Map(_)) {
        out.push(format!("{pad}{name:<18} {}", one_line(value)));
    } else {
        out.push(format!("{pad}{name}"));
        lines(value, indent + 2, out);
    }
}

fn one_line(reply: &Frame) -> String {
    match reply {
        Frame::Int(n) => n.to_string(),
        Frame::Double(n) => n.to_string(),
        Frame::Bool(yes) => yes.to_string(),
        Frame::BigNumber(digits) => shown(digits),
        text => shown(bytes(text)),
    }
}

/// The fields of INFO.
#[derive(Clone, Debug, Default)]
pub struct Info {
    fields: HashMap<String, String>,
}

impl Info {
    /// Reads the text of INFO. Lines without a colon are left out. O(bytes).
    pub fn parse(text: &[u8]) -> Info {
        let lines = text.split(|byte| *byte == b'\n').filter_map(|line| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let at = line.iter().position(|byte| *byte == b':')?;
            Some((shown(&line[..at]), shown(&line[at + 1..])))
        });
        Info { fields: lines.collect() }
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// A number as [`count`] has it; None as well if it is none.
    pub fn count(&self, name: &str) -> Option<u64> {
        counted(self.text(name)?)
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.count(name).is_some_and(|n| n != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Fields whose names begin so, in the order of the rest of their names.
    pub fn beginning(&self, with: &str) -> Vec<(&str, &str)> {
        let mut found: Vec<(&str, &str)> = self
            .fields
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(with)?, value.as_str())))
            .collect();
        found.sort_unstable();
        found
    }
}

/// One of the parts of `a=1,b=2`.
pub fn part<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    list.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}
