//! Glob patterns as KEYS, SCAN and PSUBSCRIBE understand them.
//!
//! ```text
//! *        any bytes, also none        ?        any one byte
//! [a-c^x]  a byte of the class         [^a-c]   a byte not in it
//! \x       x itself, whatever it is    other    itself
//! ```
//!
//! Every item but `*` matches exactly one byte. So a failed attempt only ever has to go back to the *last* `*` and
//! let it take one byte more: whatever an earlier `*` could take instead, the later one can make up for.
//! That makes the worst case O(pattern · text), where the recursive form is exponential.
//!
//! Corners, as observed on Redis 7.0.15 (`tests/data/glob.txt` records its verdicts):
//! - a class that is never closed ends with the pattern; an empty class `[]` matches nothing, `[^]` any byte;
//! - `]` ends a class wherever it stands, but may be the upper end of a range: `[a-]` is an unclosed class;
//! - empty text is matched by the empty pattern alone, not by `*`;
//! - ranges may be given backwards; a `\` at the very end is a backslash.

/// Whether `text` matches `pattern`; `nocase` ignores the case of ASCII letters. Empty text is
/// matched by the empty pattern only, not even by `*` (commands that take `*` to mean everything do not
/// ask here).
///
/// Cost: O(pattern · text) at worst, O(pattern + text) for patterns with at most one `*`.
pub fn matches(pattern: &[u8], text: &[u8], nocase: bool) -> bool {
    if text.is_empty() {
        return pattern.is_empty();
    }
    let (mut p, mut t) = (0, 0);
    // Where to resume: behind the last star, and the first byte of text it has not taken.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            if p == pattern.len() {
                return true;
            }
            continue;
        }
        if let Some(next) = match_one(pattern, p, text[t], nocase) {
            p = next;
            t += 1;
            continue;
        }
        match &mut retry {
            None => return false,
            Some((after_star, taken)) => {
                *taken += 1;
                (p, t) = (*after_star, *taken);
            }
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// Match `byte` against the item at `p` (no star): where the next item starts, or `None`.
fn match_one(pattern: &[u8], p: usize, byte: u8, nocase: bool) -> Option<usize> {
    match pattern[p..] {
        [] => None,
        [b'?', ..] => Some(p + 1),
        [b'[', ..] => {
            let (found, next) = match_class(pattern, p + 1, byte, nocase);
            found.then_some(next)
        }
        [b'\\', escaped, ..] => same(escaped, byte, nocase).then_some(p + 2),
        [literal, ..] => same(literal, byte, nocase).then_some(p + 1),
    }
}

/// Match `byte` against the class whose first byte is at `p`, and answer where the class ends.
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

    /// The definition, word for word: exponential.
    fn naive(pattern: &[u8], text: &[u8], nocase: bool) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|taken| naive(rest, &text[taken..], nocase)),
            (_, []) => false,
            (_, [byte, rest @ ..]) => {
                match_one(pattern, 0, *byte, nocase).is_some_and(|next| naive(&pattern[next..], rest, nocase))
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
