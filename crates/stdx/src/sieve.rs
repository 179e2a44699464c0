//! A glob pattern for many names: it is read once, in steps, and then compared with each name, in steps.
//!
//! ```text
//! pattern ──read, a step at a time──► items: * ? byte class ──► one name after the other
//!                 └─► needs more bytes than the longest name has: nothing matches, the rest is not read
//! ```
//!
//! - V1: reading costs O(pattern); it ends early where nothing can match any more. Items take memory for the
//!   longest name, not for the pattern: stars in a row are one item, and a class is a set of bytes.
//! - V2: comparing costs O(name · (items of one star)), whatever the classes of the pattern look like.
//! - V3: the verdicts are those of [`crate::glob`].

/// One item of a pattern that was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Item {
    Star,
    Any,
    Byte(u8),
    /// A class, by its number.
    Class(u32),
}

/// A set of bytes.
#[derive(Clone, Copy, Default)]
struct Bytes([u64; 4]);

impl Bytes {
    fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte / 64)] >> (byte % 64) & 1 == 1
    }

    fn add(&mut self, byte: u8) {
        self.0[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    /// Adds all bytes from `low` to `high`. O(1)
    fn add_range(&mut self, low: u8, high: u8) {
        for (i, word) in self.0.iter_mut().enumerate() {
            let first = usize::from(low).max(64 * i);
            let last = usize::from(high).min(64 * i + 63);
            if first <= last {
                *word |= (u64::MAX >> (63 - (last - first))) << (first % 64);
            }
        }
    }
}

/// A class that is being read.
#[derive(Default)]
struct Class {
    negated: bool,
    /// Bytes that are in it as they are; and bytes that are in it in lower case, without regard to case.
    exact: Bytes,
    folded: Bytes,
}

impl Class {
    fn bytes(&self, nocase: bool) -> Bytes {
        let mut bytes = Bytes::default();
        for byte in 0..=u8::MAX {
            let folded = if nocase { byte.to_ascii_lowercase() } else { byte };
            if (self.exact.has(byte) || self.folded.has(folded)) != self.negated {
                bytes.add(byte);
            }
        }
        bytes
    }
}

/// A pattern that is compared with names of a limited length. See the module.
pub struct Sieve {
    nocase: bool,
    longest: usize,
    /// How much of the pattern has been read, and a class that is not over.
    read: usize,
    class: Option<Class>,
    is_read: bool,
    /// Items that take a byte each.
    least: usize,
    items: Vec<Item>,
    classes: Vec<Bytes>,
    /// The state of the comparison with the current name: as in [`crate::glob::Match`].
    at: (usize, usize),
    retry: Option<(usize, usize)>,
}

impl Sieve {
    /// A sieve for names of up to `longest` bytes. `nocase` ignores the case of ASCII letters. O(1)
    pub fn new(nocase: bool, longest: usize) -> Sieve {
        Sieve {
            nocase,
            longest,
            read: 0,
            class: None,
            is_read: false,
            least: 0,
            items: Vec::new(),
            classes: Vec::new(),
            at: (0, 0),
            retry: None,
        }
    }

    /// Whether `name` matches; `None` after `looks` bytes or items without a verdict. What was looked at is
    /// subtracted from `looks`. Pattern and name are the same in each call until there is a verdict, and the
    /// pattern is the same for all names.
    pub fn passes(&mut self, pattern: &[u8], name: &[u8], looks: &mut usize) -> Option<bool> {
        while !self.is_read {
            if *looks == 0 {
                return None;
            }
            let before = self.read;
            self.read_item(pattern);
            *looks = looks.saturating_sub((self.read - before).max(1));
        }
        if name.is_empty() {
            return Some(pattern.is_empty());
        }
        if self.least > name.len() {
            *looks = looks.saturating_sub(1);
            return Some(false);
        }
        let verdict = self.compare(name, looks)?;
        (self.at, self.retry) = ((0, 0), None);
        Some(verdict)
    }

    /// Reads an item, or a part of a class.
    fn read_item(&mut self, pattern: &[u8]) {
        let rest = &pattern[self.read..];
        if let Some(class) = &mut self.class {
            let taken = match *rest {
                [] => 0,
                [b'\\', escaped, ..] => {
                    class.exact.add(escaped);
                    2
                }
                [b']', ..] => 1,
                [a, b'-', b, ..] => {
                    let fold = |byte: u8| if self.nocase { byte.to_ascii_lowercase() } else { byte };
                    class.folded.add_range(fold(a.min(b)), fold(a.max(b)));
                    3
                }
                [literal, ..] => {
                    class.folded.add(if self.nocase { literal.to_ascii_lowercase() } else { literal });
                    1
                }
            };
            let over = matches!(rest, [] | [b']', ..]);
            self.read += taken;
            if over && let Some(class) = self.class.take() {
                self.items.push(Item::Class(self.classes.len() as u32));
                self.classes.push(class.bytes(self.nocase));
            }
            return;
        }
        let (item, taken) = match *rest {
            [] => {
                self.is_read = true;
                return;
            }
            [b'*', ..] => {
                if self.items.last() != Some(&Item::Star) {
                    self.items.push(Item::Star);
                }
                self.read += 1;
                return;
            }
            [b'?', ..] => (Some(Item::Any), 1),
            [b'[', b'^', ..] => (None, 2),
            [b'[', ..] => (None, 1),
            [b'\\', escaped, ..] => (Some(Item::Byte(escaped)), 2),
            [literal, ..] => (Some(Item::Byte(literal)), 1),
        };
        self.read += taken;
        self.least += 1;
        if self.least > self.longest {
            // V1
            self.is_read = true;
        } else if let Some(item) = item {
            self.items.push(item);
        } else {
            self.class = Some(Class { negated: taken == 2, ..Class::default() });
        }
    }

    fn compare(&mut self, name: &[u8], looks: &mut usize) -> Option<bool> {
        let (mut p, mut t) = self.at;
        while t < name.len() {
            if *looks == 0 {
                self.at = (p, t);
                return None;
            }
            *looks -= 1;
            let byte = name[t];
            let same = match self.items.get(p) {
                Some(Item::Star) => {
                    p += 1;
                    self.retry = Some((p, t));
                    if p == self.items.len() {
                        return Some(true);
                    }
                    continue;
                }
                None => false,
                Some(Item::Any) => true,
                Some(Item::Byte(known)) => {
                    *known == byte || (self.nocase && known.eq_ignore_ascii_case(&byte))
                }
                Some(Item::Class(number)) => self.classes[*number as usize].has(byte),
            };
            if same {
                (p, t) = (p + 1, t + 1);
                continue;
            }
            let Some((behind_star, taken)) = &mut self.retry else { return Some(false) };
            *taken += 1;
            (p, t) = (*behind_star, *taken);
        }
        Some(self.items[p..].iter().all(|item| *item == Item::Star))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob;
    use proptest::prelude::*;

    fn longest(names: &[&[u8]]) -> usize {
        names.iter().map(|name| name.len()).max().unwrap_or_default()
    }

    /// The verdicts about names, with so many looks a step, and the number of steps.
    fn sift(pattern: &[u8], names: &[&[u8]], nocase: bool, looks: usize) -> (Vec<bool>, usize) {
        let (mut sieve, mut steps) = (Sieve::new(nocase, longest(names)), 0);
        let verdict = |name: &&[u8]| loop {
            steps += 1;
            if let Some(verdict) = sieve.passes(pattern, name, &mut { looks }) {
                break verdict;
            }
        };
        (names.iter().map(verdict).collect(), steps)
    }

    #[test]
    fn what_needs_more_bytes_than_any_name_has_is_not_read_to_its_end() {
        let mut sieve = Sieve::new(true, 20);
        let pattern = b"*[a-z]".repeat(13_000);
        let mut looks = 1000;
        assert_eq!(sieve.passes(&pattern, b"client|no-evict", &mut looks), Some(false));
        assert!(looks > 800 && sieve.items.len() <= 2 * 20 + 1, "{looks}");
        // One class that is never closed.
        let pattern = b"*[a-z".repeat(13_000);
        let mut looks = usize::MAX;
        let mut sieve = Sieve::new(true, 20);
        assert_eq!(sieve.passes(&pattern, b"GET", &mut looks), Some(true));
        assert_eq!((sieve.items.len(), sieve.classes.len()), (2, 1));
        looks = 10;
        assert_eq!(sieve.passes(&pattern, b"0", &mut looks), Some(false));
        assert!(looks > 0);
    }

    #[test]
    fn many_stars_take_steps_in_proportion_to_pattern_and_name() {
        let pattern = [&b"*a".repeat(2000)[..], b"b"].concat();
        let name = b"a".repeat(20_000);
        let (verdicts, steps) = sift(&pattern, &[&name, b"ab"], false, 100);
        assert_eq!(verdicts, [false, false]);
        assert!((2..2000).contains(&steps), "{steps}");
    }

    #[test]
    fn verdicts_are_those_of_a_real_server() {
        for line in include_str!("../tests/data/glob.txt").lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [verdict, pattern, text] = fields[..] else { panic!("three fields: {line}") };
            let (verdicts, _) = sift(pattern.as_bytes(), &[text.as_bytes()], false, 3);
            assert_eq!(verdicts, [verdict == "yes"], "{line}");
        }
    }

    proptest! {
        #[test]
        fn as_one_by_one(
            pattern in r"[ab*?\[\]^\-\\AZz]{0,12}",
            names in proptest::collection::vec(r"[abAB\]\-^\\zZ]{0,8}", 1..5),
            nocase: bool,
            looks in 1usize..5,
        ) {
            let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
            let expected: Vec<bool> =
                names.iter().map(|name| glob::matches(pattern.as_bytes(), name, nocase)).collect();
            prop_assert_eq!(&sift(pattern.as_bytes(), &names, nocase, looks).0, &expected);
        }

        #[test]
        fn any_bytes_are_a_pattern(pattern: Vec<u8>, name: Vec<u8>, nocase: bool) {
            let expected = glob::matches(&pattern, &name, nocase);
            prop_assert_eq!(sift(&pattern, &[&name], nocase, 7).0, [expected]);
        }
    }
}
