//! What a directive is. The rows themselves are in [`rows`](super::rows).
//!
//! - T1: every name and alias is written in lower case and appears once.
//! - T2: every default parses, is shown as written, and is allowed by its own row.

use super::kind::{Kind, Parsed};
use super::live::Live;
use super::rows;
use std::collections::HashMap;
use std::sync::OnceLock;

/// One directive of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Directive {
    pub name: &'static str,
    /// Other names under which it can be read and set.
    pub aliases: &'static [&'static str],
    pub kind: Kind,
    /// In the form CONFIG GET answers.
    pub default: &'static str,
    pub effect: Effect,
    pub change: Change,
    /// Holds a secret: never log its value.
    pub secret: bool,
    pub unit: &'static str,
    /// One line: what it is for.
    pub doc: &'static str,
    /// Hands a new value to whatever runs.
    pub live: fn(&Live, &Parsed),
}

/// What setting a directive does here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    Works,
    /// Taken and shown again, with no effect; and why that harms nobody.
    Accepted(&'static str),
    /// Only these values are taken; and why others are refused.
    Only(&'static [&'static str], &'static str),
}

/// When a directive can be set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Also by CONFIG SET.
    Anytime,
    /// By CONFIG SET only if `enable-protected-configs` allows it.
    Protected,
    /// In the file and on the command line only.
    Startup,
}

impl Directive {
    const fn new(name: &'static str, kind: Kind, default: &'static str) -> Directive {
        Directive {
            name,
            aliases: &[],
            kind,
            default,
            effect: Effect::Works,
            change: Change::Anytime,
            secret: false,
            unit: "",
            doc: "",
            live: |_, _| (),
        }
    }

    pub(super) const fn aka(mut self, aliases: &'static [&'static str]) -> Directive {
        self.aliases = aliases;
        self
    }

    pub(super) const fn live(mut self, live: fn(&Live, &Parsed)) -> Directive {
        self.live = live;
        self
    }

    pub(super) const fn accepted(mut self, reason: &'static str) -> Directive {
        self.effect = Effect::Accepted(reason);
        self
    }

    pub(super) const fn only(mut self, allowed: &'static [&'static str], reason: &'static str) -> Directive {
        self.effect = Effect::Only(allowed, reason);
        self
    }

    pub(super) const fn startup(mut self) -> Directive {
        self.change = Change::Startup;
        self
    }

    pub(super) const fn protected(mut self) -> Directive {
        self.change = Change::Protected;
        self
    }

    pub(super) const fn secret(mut self) -> Directive {
        self.secret = true;
        self
    }

    pub(super) const fn unit(mut self, unit: &'static str) -> Directive {
        self.unit = unit;
        self
    }

    pub(super) const fn doc(mut self, doc: &'static str) -> Directive {
        self.doc = doc;
        self
    }

    /// Understands the words after the name; `now` is the current value as shown. The answer is the value and the
    /// form in which it is kept. Errors are sentences for the person who wrote the words.
    pub fn accept(&self, args: &[Vec<u8>], now: &[u8]) -> Result<(Parsed, Vec<u8>), String> {
        let value = self.kind.parse(args, now)?;
        let shown = self.kind.shown(&value);
        match self.effect {
            Effect::Only(allowed, reason) if !allowed.iter().any(|a| a.as_bytes() == shown) => {
                Err(reason.into())
            }
            _ => Ok((value, shown)),
        }
    }

    /// All names, the first being the one it is kept under.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

pub(super) const fn flag(name: &'static str, default: &'static str) -> Directive {
    Directive::new(name, Kind::Bool, default)
}

pub(super) const fn int(name: &'static str, min: i64, max: i64, default: &'static str) -> Directive {
    Directive::new(name, Kind::Int { min, max }, default)
}

pub(super) const fn memory(name: &'static str, min: i64, default: &'static str) -> Directive {
    Directive::new(name, Kind::Memory { min, max: i64::MAX }, default).unit("bytes")
}

pub(super) const fn choice(
    name: &'static str,
    of: &'static [&'static str],
    default: &'static str,
) -> Directive {
    Directive::new(name, Kind::Choice(of), default)
}

pub(super) const fn text(name: &'static str, default: &'static str) -> Directive {
    Directive::new(name, Kind::Text, default)
}

pub(super) const fn special(name: &'static str, kind: Kind, default: &'static str) -> Directive {
    Directive::new(name, kind, default)
}

/// The place of a directive in [`table`], by any of its names in any case. O(1).
pub fn find(name: &[u8]) -> Option<usize> {
    static PLACES: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    let places = PLACES.get_or_init(|| {
        let rows = table().iter().enumerate();
        rows.flat_map(|(at, row)| row.names().map(move |name| (name, at))).collect()
    });
    places.get(std::str::from_utf8(name).ok()?.to_ascii_lowercase().as_str()).copied()
}

/// All directives, in the order of this crate's own groups.
pub fn table() -> &'static [Directive] {
    static TABLE: OnceLock<Vec<Directive>> = OnceLock::new();
    TABLE.get_or_init(|| rows::GROUPS.iter().flat_map(|(_, rows)| rows.iter().copied()).collect())
}

/// The directive whose name is closest to a mistyped one, if any is close.
pub fn nearest(name: &[u8]) -> Option<&'static str> {
    let name = String::from_utf8_lossy(&name[..name.len().min(64)]).to_ascii_lowercase();
    let names = table().iter().flat_map(Directive::names);
    let (distance, best) = names.map(|known| (distance(&name, known), known)).min()?;
    (distance <= 1 + name.len() / 5).then_some(best)
}

/// Letters to insert, remove or replace to get from one name to the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_lower_case_and_unique() {
        let mut seen = HashSet::new();
        for name in table().iter().flat_map(Directive::names) {
            assert_eq!(name, name.to_ascii_lowercase());
            assert!(seen.insert(name), "{name} twice");
        }
    }

    #[test]
    fn defaults_parse_to_themselves_and_are_allowed() {
        for row in table() {
            let args = if row.kind.is_many_words() {
                super::super::words::split(row.default.as_bytes()).unwrap()
            } else {
                vec![row.default.as_bytes().to_vec()]
            };
            let (_, shown) = row.accept(&args, b"").unwrap_or_else(|e| panic!("{}: {e}", row.name));
            assert_eq!(shown, row.default.as_bytes(), "{}", row.name);
            assert!(row.doc.ends_with('.'), "{} needs a sentence", row.name);
        }
    }

    #[test]
    fn directives_are_found_by_any_name_in_any_case() {
        assert_eq!(find(b"PORT"), find(b"port"));
        assert_eq!(find(b"slaveof"), find(b"replicaof"));
        assert_eq!(find(b"nonsense"), None);
        assert_eq!(find(b"\xff"), None);
    }

    #[test]
    fn a_mistyped_name_is_recognised() {
        assert_eq!(nearest(b"maxmemry"), Some("maxmemory"));
        assert_eq!(nearest(b"prot"), None);
        assert_eq!(nearest(b"tcp_keepalive"), Some("tcp-keepalive"));
        assert_eq!(nearest(b"completely-different-thing"), None);
    }
}
