//! Checks that must hold for any text. `tests/hostile.rs` and `fuzz/` call them.

use stdx::glob;
use stdx::long_double::LongDouble;
use stdx::num::{format_f64, parse_f64, parse_i64, parse_u64};

/// Numbers: accepted text prints back, and the integers and doubles agree with each other.
pub fn num(text: &[u8]) {
    let int = parse_i64(text);
    if let Some(value) = int {
        assert_eq!(value.to_string().as_bytes(), text);
        assert_eq!(parse_f64(text), Some(value as f64));
    }
    if let Some(value) = parse_u64(text) {
        assert_eq!(value.to_string().as_bytes(), text);
        assert_eq!(i64::try_from(value).ok(), int);
    }
    let double = parse_f64(text);
    if let Some(value) = double {
        let mut shown = Vec::new();
        format_f64(value, &mut shown);
        assert!(shown.len() <= 25);
        assert_eq!(parse_f64(&shown).map(f64::to_bits), Some(value.to_bits()));
    }
    if let Some(value) = LongDouble::parse(text) {
        let mut shown = Vec::new();
        value.format(&mut shown);
        assert!(double.is_none() || double.is_some_and(f64::is_finite) == value.is_finite());
        // A printed number reads back as itself, up to the printed decimals.
        let again = LongDouble::parse(&shown).expect("own text");
        let mut shown_again = Vec::new();
        again.format(&mut shown_again);
        assert!(shown == shown_again || value.is_finite());
    } else {
        assert!(double.is_none(), "the wider type takes all the narrower does");
    }
}

/// Globs: the early stop and the definition agree. The first byte says where the pattern ends.
pub fn glob(data: &[u8]) {
    let [head, rest @ ..] = data else { return };
    let (pattern, text) = rest.split_at(usize::from(head & 0x7f).min(rest.len()));
    let nocase = head & 0x80 != 0;
    let verdict = glob::matches(pattern, text, nocase);
    let stars = pattern.iter().filter(|&&byte| byte == b'*').count();
    if stars <= 3 && text.len() <= 24 && !text.is_empty() {
        assert_eq!(verdict, by_definition(pattern, text, nocase));
    }
    let escaped: Vec<u8> = text.iter().flat_map(|&byte| [b'\\', byte]).collect();
    assert!(glob::matches(&escaped, text, nocase));
}

/// Tries every share that a star could take, cutting the pattern at its stars.
fn by_definition(pattern: &[u8], text: &[u8], nocase: bool) -> bool {
    let Some(star) = first_star(pattern) else {
        return glob::matches(pattern, text, nocase) || (pattern.is_empty() && text.is_empty());
    };
    let (head, tail) = (&pattern[..star], &pattern[star + 1..]);
    (0..=text.len()).any(|at| {
        glob::matches(head, &text[..at], nocase)
            && (at..=text.len()).any(|rest| by_definition(tail, &text[rest..], nocase))
    })
}

/// The first star that is neither in a class nor escaped.
fn first_star(pattern: &[u8]) -> Option<usize> {
    let mut i = 0;
    while i < pattern.len() {
        match pattern[i] {
            b'*' => return Some(i),
            b'\\' if i + 1 < pattern.len() => i += 2,
            b'[' => {
                i += 1;
                i += usize::from(pattern.get(i) == Some(&b'^'));
                loop {
                    match pattern[i..] {
                        [] => return None,
                        [b'\\', _, ..] => i += 2,
                        [b']', ..] => break,
                        [_, b'-', _, ..] => i += 3,
                        _ => i += 1,
                    }
                }
                i += 1;
            }
            _ => i += 1,
        }
    }
    None
}
