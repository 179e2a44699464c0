//! The type of a directive, and the table of all directives. The rows are in [`rows`](super::rows).
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
    /// Other names, under which it can be read and set.
    pub aliases: &'static [&'static str],
    pub kind: Kind,
    /// The default, in the form CONFIG GET answers.
    pub default: &'static str,
    pub effect: Effect,
    pub change: Change,
    /// True if the value is a secret, which must never be logged.
    pub secret: bool,
    /// True if a change is prepared where it may block, because it reads files or opens sockets: see
    /// [`Observer::prepare`](super::Observer::prepare).
    pub prepared: bool,
    pub unit: &'static str,
    /// The purpose, in one line for users.
    pub doc: &'static str,
    /// Puts a new value into effect.
    pub live: fn(&Live, &Parsed),
}

/// The effect of setting a directive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    Works,
    /// Any value is accepted and shown, without effect. The text says why that does no harm.
    Accepted(&'static str),
    /// Only these values are accepted. The text says why others are refused.
    Only(&'static [&'static str], &'static str),
}

/// The ways to set a directive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// The file, the command line and CONFIG SET.
    Anytime,
    /// The same, but CONFIG SET only if `enable-protected-configs` allows it.
    Protected,
    /// The file and the command line only.
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
            prepared: false,
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

    /// A change reads files or opens sockets. An observer knows the value by its name, so there need not be a
    /// live
    /// one.
    pub(super) const fn prepared(mut self) -> Directive {
        self.prepared = true;
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

    /// Parses the words after the name; `now` is the current value as shown. Returns the value, and the form
    /// in which it is kept. An error is a sentence for the user.
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

    /// As `accept`, for a further line of the files and options that are read at the start: save points add
    /// to those of the lines before, and `""` takes them back.
    pub fn accept_further(&self, args: &[Vec<u8>], now: &[u8]) -> Result<(Parsed, Vec<u8>), String> {
        let adds = matches!(self.kind, Kind::SavePoints) && !now.is_empty();
        if !adds || args.iter().all(Vec::is_empty) {
            return self.accept(args, now);
        }
        let before = now.split(|byte| *byte == b' ').map(<[u8]>::to_vec);
        self.accept(&before.chain(args.iter().cloned()).collect::<Vec<_>>(), now)
    }

    /// All names: the main name first, then the aliases.
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

/// The place of a directive in [`table`], by any of its names, in upper or lower case. O(1).
pub fn find(name: &[u8]) -> Option<usize> {
    static PLACES: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    let places = PLACES.get_or_init(|| {
        let rows = table().iter().enumerate();
        rows.flat_map(|(at, row)| row.names().map(move |name| (name, at))).collect()
    });
    places.get(std::str::from_utf8(name).ok()?.to_ascii_lowercase().as_str()).copied()
}

/// Whether the value given to a name may be a secret: that of a secret directive, or of a name that may be a
/// misspelt one. O(1).
pub fn may_be_secret(name: &[u8]) -> bool {
    find(name).is_none_or(|at| table()[at].secret)
}

/// All directives, in the order of this crate's own groups.
pub fn table() -> &'static [Directive] {
    static TABLE: OnceLock<Vec<Directive>> = OnceLock::new();
    TABLE.get_or_init(|| rows::GROUPS.iter().flat_map(|(_, rows)| rows.iter().copied()).collect())
}

/// The name of a directive that is closest to a mistyped one, if any is close. O(directives).
pub fn nearest(name: &[u8]) -> Option<&'static str> {
    let name = String::from_utf8_lossy(&name[..name.len().min(64)]).to_ascii_lowercase();
    let names = table().iter().flat_map(Directive::names);
    let (distance, best) = names.map(|known| (distance(&name, known), known)).min()?;
    (distance <= 1 + name.len() / 5).then_some(best)
}

/// The number of letters to insert, remove or replace to turn one name into the other.
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
