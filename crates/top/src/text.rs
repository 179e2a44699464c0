//! Bytes, numbers and times as a terminal may show them.
//!
//! - **T1** A text made from bytes of a server has printable ASCII alone, so it cannot steer the terminal, and
//!   its length is its width.

/// Bytes as printable ASCII: all others, and the backslash, are escaped (T1). O(bytes).
pub fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\\"", "\"").replace("\\'", "'")
}

/// A text that cannot steer the terminal, in ASCII (T1): of letters beyond it the numbers. O(text).
pub fn ascii(text: &str) -> String {
    let one = |char: char| if char.is_ascii() { char.to_string() } else { char.escape_unicode().to_string() };
    text.chars().map(one).collect()
}

/// At most `max` characters of a text; if it is longer, the last two are dots. O(max).
pub fn cut(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(max.saturating_sub(2)).collect();
    short.push_str(&"..".chars().take(max).collect::<String>());
    short
}

/// A number in at most five characters: `1234`, `12.3k`, `123M`.
pub fn number(n: f64) -> String {
    scaled(n, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
}

/// Bytes in at most five characters, in powers of 1024: `512`, `12.3K`, `1.5G`.
pub fn bytes(n: f64) -> String {
    scaled(n, 1024.0, &["", "K", "M", "G", "T", "P", "E"])
}

fn scaled(n: f64, step: f64, units: &[&str]) -> String {
    let n = if n.is_finite() { n.max(0.0) } else { 0.0 };
    if n < 9999.5 {
        return format!("{n:.0}");
    }
    let (mut n, mut unit) = (n, 0);
    while n >= 999.5 && unit + 1 < units.len() {
        n /= step;
        unit += 1;
    }
    if n < 99.95 { format!("{n:.1}{}", units[unit]) } else { format!("{n:.0}{}", units[unit]) }
}

/// Microseconds in at most five characters: `64us`, `1.5ms`, `512ms`, `2.1s`, `15m`, `30h`.
pub fn micros(us: f64) -> String {
    let us = if us.is_finite() { us.max(0.0) } else { 0.0 };
    match us {
        us if us < 999.5 => format!("{us:.0}us"),
        us if us < 9_950.0 => format!("{:.1}ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0}ms", us / 1e3),
        us if us < 99_950_000.0 => format!("{:.1}s", us / 1e6),
        us if us < 999_500_000.0 => format!("{:.0}s", us / 1e6),
        us => span(us / 1e6),
    }
}

/// Seconds in at most five characters: `45s`, `12m`, `5h`, `30d`.
pub fn span(s: f64) -> String {
    let s = s.max(0.0);
    match s {
        s if s < 100.0 => format!("{s:.0}s"),
        s if s < 6_000.0 => format!("{:.0}m", s / 60.0),
        s if s < 172_800.0 => format!("{:.0}h", s / 3_600.0),
        s => format!("{:.0}d", (s / 86_400.0).min(9999.0)),
    }
}

/// The time of day in UTC of a time since 1970.
pub fn clock(unix_ms: u64) -> String {
    let s = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_steers_the_terminal() {
        let all: Vec<u8> = (0..=255).collect();
        assert!(shown(&all).bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        assert_eq!(shown(b"\x1b[2J it's \"a\" \xff"), "\\x1b[2J it's \"a\" \\xff");
        assert_eq!(shown("\u{202e}\u{4e2d}".as_bytes()), "\\xe2\\x80\\xae\\xe4\\xb8\\xad");
    }

    #[test]
    fn figures_take_five_characters_at_most() {
        for e in 0..18 {
            for n in [1.0, 1.5, 9.4, 9.96, 9.999] {
                let n = n * 10f64.powi(e);
                for text in [number(n), bytes(n), micros(n.min(1e15)), span(n)] {
                    assert!(text.len() <= 5, "{n}: {text}");
                }
            }
        }
        assert_eq!([number(12_340.0), number(9999.0), bytes(1536.0 * 1024.0)], ["12.3k", "9999", "1.5M"]);
        assert_eq!(
            [micros(64.0), micros(1500.0), micros(2.1e6), micros(1e9)],
            ["64us", "1.5ms", "2.1s", "17m"]
        );
        assert_eq!(clock(1_795_939_143_000), "07:59:03");
        assert_eq!([cut("abcdef", 6), cut("abcdefg", 6), cut("ab", 1)], ["abcdef", "abcd..", "."]);
    }
}
