//! Glob patterns as KEYS, SCAN and PSUBSCRIBE understand them.
//!
//! ```text
//! *        any bytes, also none        ?        any one byte
//! [a-c^x]  a byte of the class         [^a-c]   a byte not in it
//! \x       x itself, whatever it is    other    itself
//! ```
//!
//! Every item but `*` matches exactly one byte. So a failed attempt only has to return to the *last* `*` and
//! let it take one more byte; a later `*` can take anything that an earlier one could. So the worst case is
//! O(pattern · text), where the recursive form is exponential.
//!
//! Corner cases, as Redis 7.0.15 decides them (`tests/data/glob.txt`):
//! - a class that is never closed ends with the pattern; an empty class `[]` matches no byte, `[^]` any byte;
//! - `]` ends a class wherever it stands, but may be the upper end of a range: `[a-]` is an unclosed class;
//! - empty text is matched by the empty pattern only, not by `*`;
//! - ranges may be given backwards; a `\` at the very end is a backslash.

/// Whether `text` matches `pattern`. `nocase` ignores the case of ASCII letters. Empty text is matched only
/// by the empty pattern, not by `*`: a command for which `*` means everything must not ask here.
///
/// O(pattern · text) at worst, O(pattern + text) for patterns with at most one `*`.
pub fn matches(pattern: &[u8], text: &[u8], nocase: bool) -> bool {
    Match::default().go_on(pattern, text, nocase, &mut { usize::MAX }).unwrap_or_default()
}

/// A match that can stop and go on later. It needs the same pattern and text each time.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// The next item of the pattern, and the next byte of the text.
    p: usize,
    t: usize,
    /// Where to resume: behind the last star, and at the first byte of text that it has not taken.
    retry: Option<(usize, usize)>,
}

impl Match {
    /// As [`matches`], but `None` after `looks` bytes of the pattern without a verdict. The bytes looked at
    /// are subtracted from `looks`.
    pub fn go_on(&mut self, pattern: &[u8], text: &[u8], nocase: bool, looks: &mut usize) -> Option<bool> {
        if text.is_empty() {
            return Some(pattern.is_empty());
        }
        let Match { p, t, retry } = self;
        let mut left = *looks;
        while *t < text.len() {
            if left == 0 {
                *looks = 0;
                return None;
            }
            if pattern.get(*p) == Some(&b'*') {
                *p += 1;
                left -= 1;
                *retry = Some((*p, *t));
                if *p == pattern.len() {
                    *looks = left;
                    return Some(true);
                }
                continue;
            }
            let (same, next) = match_one(pattern, *p, text[*t], nocase);
            left = left.saturating_sub((next - *p).max(1));
            if same {
                (*p, *t) = (next, *t + 1);
                continue;
            }
            match retry {
                None => {
                    *looks = left;
                    return Some(false);
                }
                Some((after_star, taken)) => {
                    *taken += 1;
                    (*p, *t) = (*after_star, *taken);
                }
            }
        }
        *looks = left;
        Some(pattern[*p..].iter().all(|&byte| byte == b'*'))
    }
}

/// Whether `byte` matches the item at `p` (not a star), and where the next item starts.
#[inline]
fn match_one(pattern: &[u8], p: usize, byte: u8, nocase: bool) -> (bool, usize) {
    match pattern[p..] {
        [] => (false, p),
        [b'?', ..] => (true, p + 1),
        [b'[', ..] => match_class(pattern, p + 1, byte, nocase),
        [b'\\', escaped, ..] => (same(escaped, byte, nocase), p + 2),
        [literal, ..] => (same(literal, byte, nocase), p + 1),
    }
}

/// Whether `byte` matches the class with its first byte at `p`, and where the class ends.
fn match_class(pattern: &[u8], mut p: usize, byte: u8, nocase: bool) -> (bool, usize) {
    let negated = pattern.get(p) == Some(&b'^');
    p += usize::from(negated);
    let mut found = false;
    loop {
        match pattern[p..] {
            [] => break,
            // An escaped byte in a class keeps its case.
            [b'\\', escaped, ..] => {
                found |= escaped == byte;
                p += 2;
            }
            [b']', ..] => {
                p += 1;
                break;
            }
            [a, b'-', b, ..] => {
                let fold = |byte: u8| if nocase { byte.to_ascii_lowercase() } else { byte };
                found |= (fold(a.min(b))..=fold(a.max(b))).contains(&fold(byte));
                p += 3;
            }
            [literal, ..] => {
                found |= same(literal, byte, nocase);
                p += 1;
            }
        }
    }
    (found != negated, p)
}

fn same(a: u8, b: u8, nocase: bool) -> bool {
    a == b || (nocase && a.eq_ignore_ascii_case(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, taken literally: exponential.
    fn naive(pattern: &[u8], text: &[u8], nocase: bool) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|taken| naive(rest, &text[taken..], nocase)),
            (_, []) => false,
            (_, [byte, rest @ ..]) => {
                let (same, next) = match_one(pattern, 0, *byte, nocase);
                same && naive(&pattern[next..], rest, nocase)
            }
        }
    }

    #[test]
    fn letters_may_be_compared_without_case() {
        for (pattern, text) in
            [("ab*", "ABc"), ("[a-c]x", "BX"), ("[A-C]", "b"), ("[xyz]", "Y"), ("\\a", "A")]
        {
            assert!(matches(pattern.as_bytes(), text.as_bytes(), true), "{pattern} {text}");
            assert!(!matches(pattern.as_bytes(), text.as_bytes(), false), "{pattern} {text}");
        }
        assert!(!matches(b"[\\a]", b"A", true));
    }

    #[test]
    fn many_stars_do_not_take_forever() {
        let pattern = b"a*".repeat(2000);
        let text = b"a".repeat(20_000);
        assert!(!matches(&[&pattern[..], b"b"].concat(), &text, false));
        assert!(matches(&pattern, &text, false));
        assert!(matches(&b"*".repeat(100_000), &text, false));
    }

    #[test]
    fn a_match_that_stops_looks_at_no_more_than_it_may() {
        let (pattern, text) = ([&b"a*".repeat(100)[..], b"b"].concat(), b"a".repeat(5000));
        let (mut matching, mut slices) = (Match::default(), 0);
        let verdict = loop {
            let mut looks = 100;
            let verdict = matching.go_on(&pattern, &text, false, &mut looks);
            slices += 1;
            match verdict {
                Some(verdict) => break verdict,
                None => assert_eq!(looks, 0),
            }
        };
        assert!(!verdict && slices > 5000 / 100, "{slices}");
        // An item is not divided: a class is read whole.
        let class = [&b"*["[..], &[b'x'; 1000], b"]"].concat();
        let mut looks = 10;
        assert_eq!(Match::default().go_on(&class, b"ax", false, &mut looks), None);
        assert_eq!(looks, 0);
        let mut looks = 10_000;
        assert_eq!(Match::default().go_on(&class, b"ax", false, &mut looks), Some(true));
        assert_eq!(looks, 10_000 - 1 - 2 * 1002);
    }

    #[test]
    fn verdicts_are_those_of_a_real_server() {
        let mut cases = 0;
        for line in include_str!("../tests/data/glob.txt").lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [verdict, pattern, text] = fields[..] else { panic!("three fields: {line}") };
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), false), verdict == "yes", "{line}");
            cases += 1;
        }
        assert!(cases > 500);
    }

    proptest! {
        #[test]
        fn as_the_definition_says(pattern in r"[ab*?\[\]^\-\\A]{0,9}", text in r"[abAB\]\-^\\]{0,8}", nocase: bool) {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assume!(!text.is_empty());
            prop_assert_eq!(matches(pattern, text, nocase), naive(pattern, text, nocase));
            let mut slowly = Match::default();
            let verdict = std::iter::repeat_with(|| slowly.go_on(pattern, text, nocase, &mut 1)).find_map(|v| v);
            prop_assert_eq!(verdict, Some(naive(pattern, text, nocase)));
        }

        #[test]
        fn any_bytes_are_a_pattern(pattern: Vec<u8>, text: Vec<u8>, nocase: bool) {
            let _ = matches(&pattern, &text, nocase);
        }

        #[test]
        fn escaping_everything_matches_itself_only(text: Vec<u8>, other: Vec<u8>) {
            let pattern: Vec<u8> = text.iter().flat_map(|&byte| [b'\\', byte]).collect();
            prop_assert!(matches(&pattern, &text, false));
            prop_assert_eq!(matches(&pattern, &other, false), text == other);
        }
    }
}
