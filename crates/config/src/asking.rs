//! CONFIG GET in steps: its patterns are compared with all names, one after the other.

use crate::table::{find, table};
use std::collections::HashSet;
use stdx::sieve::Sieve;

/// A CONFIG GET under way. It needs the same patterns each time.
pub struct Asking {
    values: Vec<Vec<u8>>,
    names: Vec<(&'static str, usize)>,
    longest: usize,
    /// The next pattern, and the next name for it.
    pattern: usize,
    name: usize,
    sieve: Sieve,
    /// The settings found: the name as it is shown, and its row.
    found: Vec<(Vec<u8>, usize)>,
    seen: HashSet<Vec<u8>>,
}

impl Asking {
    pub(crate) fn of(values: Vec<Vec<u8>>) -> Asking {
        let rows = table().iter().enumerate();
        let names: Vec<_> = rows.flat_map(|(at, row)| row.names().map(move |name| (name, at))).collect();
        let longest = names.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let (sieve, found, seen) = (Sieve::new(true, longest), Vec::new(), HashSet::new());
        Asking { values, names, longest, pattern: 0, name: 0, sieve, found, seen }
    }

    /// Compares until so many bytes were looked at. False: nothing is left. `word` gives each of `count`
    /// patterns.
    pub fn step<'a>(&mut self, count: usize, word: impl Fn(usize) -> &'a [u8], looks: &mut usize) -> bool {
        while self.pattern < count {
            if *looks == 0 {
                return true;
            }
            let pattern = word(self.pattern);
            if !pattern.iter().any(|b| b"*?[\\".contains(b)) {
                // The answer repeats a plain name as the client wrote it.
                *looks = looks.saturating_sub(pattern.len() + 1);
                if let Some(at) = find(pattern) {
                    self.note(pattern, at);
                }
            } else {
                while let Some((name, at)) = self.names.get(self.name).copied() {
                    match self.sieve.passes(pattern, name.as_bytes(), looks) {
                        None => return true,
                        Some(true) => self.note(name.as_bytes(), at),
                        Some(false) => {}
                    }
                    self.name += 1;
                }
            }
            (self.pattern, self.name) = (self.pattern + 1, 0);
            self.sieve = Sieve::new(true, self.longest);
        }
        false
    }

    fn note(&mut self, name: &[u8], at: usize) {
        if self.seen.insert(name.to_ascii_lowercase()) {
            self.found.push((name.to_vec(), at));
        }
    }

    /// Names and values.
    pub fn found(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let Asking { found, values, .. } = self;
        found.into_iter().map(|(name, at)| (name, values[at].clone())).collect()
    }
}
