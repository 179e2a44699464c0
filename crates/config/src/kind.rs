//! The kinds of values that directives take: their parsing, their limits, and the form in which they show.
//!
//! ```text
//! words of a line, or the one value of CONFIG SET ──parse──▶ Parsed ──▶ Live      (what runs)
//!                                                              └─shown─▶ bytes     (what CONFIG GET answers)
//! ```
//!
//! - K1: `shown` parses back to the same `Parsed`, so the shown bytes alone are the configuration.
//!
//! Error texts are those of Redis 7.0 where it has one.

use super::{machine, words};
use std::fmt::Write as _;

/// Percent of the memory that `auto` stands for. The rest is for buffers, the allocator and the kernel.
pub(super) const AUTO_PERCENT: u64 = 75;

/// The values a directive takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `yes` or `no`.
    Bool,
    Int {
        min: i64,
        max: i64,
    },
    /// A whole number; one outside the range is silently set to its nearest end.
    Clamped {
        min: i64,
        max: i64,
    },
    /// File permissions, written in octal.
    Octal {
        max: i64,
    },
    /// Bytes: `1000`, `1k` (1000), `1kb` (1024), and so on to `gb`.
    Memory {
        min: i64,
        max: i64,
    },
    /// Bytes as [`Kind::Memory`], a share of the memory that this process may use (`75%`), or `auto` for
    /// [`AUTO_PERCENT`] of it. It shows as bytes.
    MemoryLimit,
    /// Bytes, or a share of maxmemory written `N%`.
    MemoryOrPercent,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any of these words, shown in this order.
    Choices(&'static [&'static str]),
    /// Any bytes; may be empty.
    Text,
    /// Words, shown separated by blanks.
    Words,
    /// `class hard soft seconds`, one or more times.
    OutputLimits,
    /// `seconds changes`, zero or more times; one empty word means none.
    SavePoints,
    /// Flags of keyspace notifications.
    Notify,
    Percentiles,
    OomScores,
    /// `host port`, or `no one`.
    ReplicaOf,
}

/// A parsed value.
#[derive(Clone, Debug, PartialEq)]
pub enum Parsed {
    Bool(bool),
    Int(i64),
    Percent(i64),
    /// The place in the list of choices.
    Choice(usize),
    /// A bit per place in the list of choices, or the flags of keyspace notifications.
    Mask(u32),
    Text(Vec<u8>),
    Limits([[i64; 3]; 3]),
    Percentiles(Vec<f64>),
    Pairs(Vec<(i64, i64)>),
}

impl Parsed {
    /// The number behind a number, choice or set of flags.
    ///
    /// # Panics
    /// If the value is a text or a list, which would be a mistake in the table.
    pub fn int(&self) -> i64 {
        match *self {
            Parsed::Int(n) => n,
            Parsed::Choice(n) => n as i64,
            Parsed::Mask(n) => n as i64,
            Parsed::Bool(b) => b as i64,
            _ => unreachable!("the table asks {self:?} for a number"),
        }
    }

    pub fn is_yes(&self) -> bool {
        matches!(self, Parsed::Bool(true))
    }
}

/// The classes of `client-output-buffer-limit`, in the order of
/// [`Live::output_limits`](super::Live::output_limits).
const CLASSES: [&str; 3] = ["normal", "slave", "pubsub"];

impl Kind {
    /// Whether the single value of CONFIG SET is a line of words.
    pub fn is_many_words(self) -> bool {
        matches!(
            self,
            Kind::Words
                | Kind::Choices(_)
                | Kind::OutputLimits
                | Kind::SavePoints
                | Kind::Percentiles
                | Kind::OomScores
                | Kind::ReplicaOf
        )
    }

    /// Whether a further line of a file adds to the lines before, or changes a part of their value.
    pub fn is_added_to(self) -> bool {
        matches!(self, Kind::SavePoints | Kind::OutputLimits)
    }

    /// Parses the words after a directive's name. `now` is the value as currently shown; parts that the words
    /// do not name keep it. An error is a sentence for the user.
    pub fn parse(self, args: &[Vec<u8>], now: &[u8]) -> Result<Parsed, String> {
        if self.is_many_words() {
            return self.parse_many(args, now);
        }
        let [arg] = args else { return Err("wrong number of arguments".into()) };
        let text = String::from_utf8_lossy(arg);
        match self {
            Kind::Bool => parse_bool(&text).map(Parsed::Bool),
            Kind::Int { min, max } => {
                in_range(parse_int(&text)?, min, max, "argument must be between").map(Parsed::Int)
            }
            Kind::Clamped { min, max } => Ok(Parsed::Int(parse_int(&text)?.clamp(min, max))),
            Kind::Octal { max } => parse_octal(&text, max).map(Parsed::Int),
            Kind::Memory { min, max } => {
                let bytes = parse_memory(&text).ok_or("argument must be a memory value")?;
                in_range(bytes, min, max, "argument must be between").map(Parsed::Int)
            }
            Kind::MemoryLimit => parse_memory_limit(&text, machine::memory_bytes).map(Parsed::Int),
            Kind::MemoryOrPercent => parse_memory_or_percent(&text),
            Kind::Choice(names) => position(names, &text).map(Parsed::Choice).ok_or_else(|| one_of(names)),
            Kind::Notify => notify_flags(arg).map(Parsed::Mask).ok_or_else(|| NOTIFY_ERROR.into()),
            _ => Ok(Parsed::Text(arg.clone())),
        }
    }

    fn parse_many(self, args: &[Vec<u8>], now: &[u8]) -> Result<Parsed, String> {
        let texts: Vec<String> = match args {
            // CONFIG SET passes all words in one. An empty word is an empty list.
            [one] => String::from_utf8_lossy(one).split_whitespace().map(str::to_owned).collect(),
            _ => args.iter().map(|a| String::from_utf8_lossy(a).into_owned()).collect(),
        };
        let texts: &[String] = &texts;
        match self {
            Kind::Choices(names) => parse_choices(names, texts),
            Kind::OutputLimits => parse_limits(texts, now),
            Kind::SavePoints => parse_pairs(texts).ok_or_else(|| "Invalid save parameters".into()),
            Kind::Percentiles => parse_percentiles(texts),
            Kind::OomScores => parse_oom_scores(texts),
            Kind::ReplicaOf => parse_replicaof(texts),
            _ => Ok(Parsed::Text(texts.join(" ").into_bytes())),
        }
    }

    /// The form in which a value is kept, and which CONFIG GET answers.
    pub fn shown(self, value: &Parsed) -> Vec<u8> {
        let mut out = String::new();
        match (self, value) {
            (_, Parsed::Text(text)) => return text.clone(),
            (_, Parsed::Bool(yes)) => out.push_str(if *yes { "yes" } else { "no" }),
            (Kind::Octal { .. }, Parsed::Int(n)) => out = format!("{n:o}"),
            (_, Parsed::Int(n)) => out = n.to_string(),
            (_, Parsed::Percent(n)) => out = format!("{n}%"),
            (Kind::Choice(names), Parsed::Choice(at)) => out.push_str(names[*at]),
            (Kind::Choices(names), Parsed::Mask(mask)) => {
                let chosen: Vec<&str> =
                    (0..names.len()).filter(|i| mask >> i & 1 == 1).map(|i| names[i]).collect();
                out = chosen.join(" ");
            }
            (_, Parsed::Mask(flags)) => return notify_shown(*flags),
            (_, Parsed::Limits(limits)) => {
                for (class, [hard, soft, seconds]) in CLASSES.iter().zip(limits) {
                    let _ = write!(out, "{class} {hard} {soft} {seconds} ");
                }
            }
            (_, Parsed::Percentiles(list)) => {
                out = list.iter().map(f64::to_string).collect::<Vec<_>>().join(" ");
            }
            (_, Parsed::Pairs(pairs)) => {
                out = pairs.iter().map(|(a, b)| format!("{a} {b}")).collect::<Vec<_>>().join(" ");
            }
            (kind, value) => unreachable!("{kind:?} never parses to {value:?}"),
        }
        out.trim_end().as_bytes().to_vec()
    }

    /// The shown value as lines of a file, without the directive's name. Empty: no line is needed.
    pub fn lines(self, shown: &[u8], default: &[u8]) -> Vec<Vec<u8>> {
        let text = String::from_utf8_lossy(shown);
        match self {
            Kind::Text if shown.is_empty() && default.is_empty() => Vec::new(),
            Kind::ReplicaOf if shown.is_empty() => Vec::new(),
            Kind::Text | Kind::Notify => vec![words::quote(shown)],
            Kind::Memory { .. } | Kind::MemoryLimit => {
                vec![memory_with_unit(text.parse().unwrap_or(0)).into_bytes()]
            }
            Kind::OutputLimits => limit_lines(&text, &String::from_utf8_lossy(default)),
            Kind::SavePoints if !shown.is_empty() => {
                let words: Vec<&str> = text.split(' ').collect();
                words.chunks(2).map(|pair| pair.join(" ").into_bytes()).collect()
            }
            _ if shown.is_empty() => vec![b"\"\"".to_vec()],
            Kind::Words => {
                let quoted: Vec<Vec<u8>> = shown.split(|&b| b == b' ').map(words::quote_if_needed).collect();
                vec![quoted.join(&b' ')]
            }
            _ => vec![shown.to_vec()],
        }
    }
}

fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        _ if text.eq_ignore_ascii_case("yes") => Ok(true),
        _ if text.eq_ignore_ascii_case("no") => Ok(false),
        _ => Err("argument must be 'yes' or 'no'".into()),
    }
}

fn parse_int(text: &str) -> Result<i64, String> {
    let canonical = text.parse::<i64>().ok().filter(|n| n.to_string() == text);
    canonical.ok_or_else(|| "argument couldn't be parsed into an integer".into())
}

fn in_range(n: i64, min: i64, max: i64, what: &str) -> Result<i64, String> {
    if (min..=max).contains(&n) { Ok(n) } else { Err(format!("{what} {min} and {max} inclusive")) }
}

fn parse_octal(text: &str, max: i64) -> Result<i64, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mode = digits.then(|| i64::from_str_radix(text, 8).ok()).flatten();
    let mode = mode.ok_or("argument couldn't be parsed as an octal number")?;
    if mode <= max { Ok(mode) } else { Err(format!("argument must be between 0 and {max:o} inclusive")) }
}

/// Parses bytes as redis.conf writes them: `k`, `m`, `g` are powers of 1000, `kb`, `mb`, `gb` of 1024. None:
/// not such a text, or more than an `i64` holds.
pub fn parse_memory(text: &str) -> Option<i64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit: i64 = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<i64>().ok()?.checked_mul(unit)
}

/// Parses a [`Kind::MemoryLimit`]; `available` tells how much memory there is.
fn parse_memory_limit(text: &str, available: impl FnOnce() -> Option<u64>) -> Result<i64, String> {
    let share = match text.strip_suffix('%') {
        Some(share) => share.parse().ok().filter(|share| (1..=100).contains(share)),
        None if text.eq_ignore_ascii_case("auto") => Some(AUTO_PERCENT),
        None => return parse_memory(text).ok_or_else(|| "argument must be a memory value".into()),
    };
    let share = share.ok_or("the share of the memory must be between 1% and 100%")?;
    let bytes = available().ok_or("it is not known how much memory this machine has; name the bytes")?;
    i64::try_from(u128::from(bytes) * u128::from(share) / 100).map_err(|_| "too much memory".into())
}

fn parse_memory_or_percent(text: &str) -> Result<Parsed, String> {
    match text.strip_suffix('%') {
        Some(share) => match share.parse::<i64>() {
            Ok(n @ 0..=100) => Ok(Parsed::Percent(n)),
            Ok(n) if n > 100 => Err("percentage argument must be less or equal to 100".into()),
            _ => Err("argument must be a memory or percent value".into()),
        },
        None => parse_memory(text)
            .map(Parsed::Int)
            .ok_or_else(|| "argument must be a memory or percent value".into()),
    }
}

fn memory_with_unit(bytes: i64) -> String {
    for (unit, name) in [(1 << 30, "gb"), (1 << 20, "mb"), (1 << 10, "kb")] {
        if bytes != 0 && bytes % unit == 0 {
            return format!("{}{name}", bytes / unit);
        }
    }
    bytes.to_string()
}

fn position(names: &[&str], text: &str) -> Option<usize> {
    names.iter().position(|name| name.eq_ignore_ascii_case(text))
}

fn one_of(names: &[&str]) -> String {
    format!("argument(s) must be one of the following: {}", names.join(", "))
}

fn parse_choices(names: &[&str], texts: &[String]) -> Result<Parsed, String> {
    let mut mask = 0;
    for text in texts {
        mask |= 1 << position(names, text).ok_or_else(|| one_of(names))?;
    }
    Ok(Parsed::Mask(if mask == 0 { 1 } else { mask }))
}

/// Parses limits by class. Classes that are not named keep their limits of `now`.
fn parse_limits(texts: &[String], now: &[u8]) -> Result<Parsed, String> {
    if texts.is_empty() || !texts.len().is_multiple_of(4) {
        return Err("Wrong number of arguments in buffer limit configuration.".into());
    }
    let mut limits = [[0; 3]; 3];
    let now = String::from_utf8_lossy(now);
    let kept: Vec<&str> = now.split(' ').collect();
    for (limit, text) in limits.iter_mut().zip(kept.chunks(4)) {
        *limit = std::array::from_fn(|i| text.get(i + 1).and_then(|n| n.parse().ok()).unwrap_or(0));
    }
    for group in texts.chunks(4) {
        let name = group[0].to_ascii_lowercase();
        let class = if name == "replica" { Some(1) } else { position(&CLASSES, &name) };
        let class = class.ok_or("Invalid client class specified in buffer limit configuration.")?;
        let seconds = group[3].parse().ok().filter(|&s: &i64| s >= 0);
        limits[class] = match (parse_memory(&group[1]), parse_memory(&group[2]), seconds) {
            (Some(hard), Some(soft), Some(seconds)) => [hard, soft, seconds],
            _ => {
                return Err(
                    "Error in hard, soft or soft_seconds setting in buffer limit configuration.".into()
                );
            }
        };
    }
    Ok(Parsed::Limits(limits))
}

fn limit_lines(shown: &str, default: &str) -> Vec<Vec<u8>> {
    let (shown, default): (Vec<&str>, Vec<&str>) = (shown.split(' ').collect(), default.split(' ').collect());
    let mut lines = Vec::new();
    for (now, usual) in shown.chunks(4).zip(default.chunks(4)) {
        if let ([class, hard, soft, seconds], true) = (now, now != usual) {
            let class = if *class == "slave" { "replica" } else { class };
            let unit = |bytes: &str| memory_with_unit(bytes.parse().unwrap_or(0));
            lines.push(format!("{class} {} {} {seconds}", unit(hard), unit(soft)).into_bytes());
        }
    }
    lines
}

fn parse_pairs(texts: &[String]) -> Option<Parsed> {
    let mut pairs = Vec::new();
    for pair in texts.chunks(2) {
        let [seconds, changes] = pair else { return None };
        let (seconds, changes) = (seconds.parse().ok()?, changes.parse().ok()?);
        if seconds < 1 || changes < 0 {
            return None;
        }
        pairs.push((seconds, changes));
    }
    Some(Parsed::Pairs(pairs))
}

fn parse_percentiles(texts: &[String]) -> Result<Parsed, String> {
    let mut list = Vec::new();
    for text in texts {
        let p: f64 = text.parse().map_err(|_| "Invalid latency-tracking-info-percentiles parameters")?;
        if !(0.0..=100.0).contains(&p) {
            return Err("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]".into());
        }
        list.push(p);
    }
    Ok(Parsed::Percentiles(list))
}

fn parse_oom_scores(texts: &[String]) -> Result<Parsed, String> {
    if texts.len() != 3 {
        return Err("wrong number of arguments".into());
    }
    let valid = |text: &String| matches!(text.parse::<i64>(), Ok(-2000..=2000));
    if !texts.iter().all(valid) {
        return Err("Invalid oom-score-adj-values, elements must be between -2000 and 2000.".into());
    }
    Ok(Parsed::Text(texts.join(" ").into_bytes()))
}

/// Parses `host port` or `no one`, which is shown as the empty value.
fn parse_replicaof(texts: &[String]) -> Result<Parsed, String> {
    match texts {
        [] => Ok(Parsed::Text(Vec::new())),
        [no, one] if no.eq_ignore_ascii_case("no") && one.eq_ignore_ascii_case("one") => {
            Ok(Parsed::Text(Vec::new()))
        }
        [host, port] if matches!(port.parse::<u16>(), Ok(1..)) => {
            Ok(Parsed::Text(format!("{host} {port}").into_bytes()))
        }
        [_, _] => Err("Invalid master port".into()),
        _ => Err("wrong number of arguments".into()),
    }
}

/// The bits of `notify-keyspace-events` and their letters, in the order in which they are shown.
pub mod notify {
    /// Publish to `__keyspace@<db>__:<key>`.
    pub const KEYSPACE: u32 = 1 << 0;
    /// Publish to `__keyevent@<db>__:<event>`.
    pub const KEYEVENT: u32 = 1 << 1;
    pub const GENERIC: u32 = 1 << 2;
    pub const STRING: u32 = 1 << 3;
    pub const LIST: u32 = 1 << 4;
    pub const SET: u32 = 1 << 5;
    pub const HASH: u32 = 1 << 6;
    pub const ZSET: u32 = 1 << 7;
    pub const EXPIRED: u32 = 1 << 8;
    pub const EVICTED: u32 = 1 << 9;
    pub const STREAM: u32 = 1 << 10;
    pub const KEY_MISS: u32 = 1 << 11;
    pub const MODULE: u32 = 1 << 13;
    pub const NEW: u32 = 1 << 14;
    /// The classes that `A` stands for: all but misses and new keys.
    pub const ALL: u32 = GENERIC | STRING | LIST | SET | HASH | ZSET | EXPIRED | EVICTED | STREAM | MODULE;

    pub(super) const LETTERS: [(u8, u32); 14] = [
        (b'g', GENERIC),
        (b'$', STRING),
        (b'l', LIST),
        (b's', SET),
        (b'h', HASH),
        (b'z', ZSET),
        (b'x', EXPIRED),
        (b'e', EVICTED),
        (b'd', MODULE),
        (b't', STREAM),
        (b'n', NEW),
        (b'K', KEYSPACE),
        (b'E', KEYEVENT),
        (b'm', KEY_MISS),
    ];
}

const NOTIFY_ERROR: &str = "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.";

fn notify_flags(text: &[u8]) -> Option<u32> {
    let mut flags = 0;
    for &letter in text {
        flags |= match letter {
            b'A' => notify::ALL,
            _ => notify::LETTERS.iter().find(|(l, _)| *l == letter)?.1,
        };
    }
    Some(flags)
}

fn notify_shown(flags: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let all = flags & notify::ALL == notify::ALL;
    if all {
        out.push(b'A');
    }
    for (letter, flag) in notify::LETTERS {
        // Redis omits `n` after an `A`, though `A` does not include it.
        if flags & flag != 0 && !(all && (notify::ALL | notify::NEW) & flag != 0) {
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(kind: Kind, line: &str, now: &str) -> Result<String, String> {
        let args = words::split(line.as_bytes()).unwrap();
        let args = if args.is_empty() { vec![Vec::new()] } else { args };
        kind.parse(&args, now.as_bytes()).map(|v| String::from_utf8(kind.shown(&v)).unwrap())
    }

    #[test]
    fn a_limit_of_memory_may_be_a_share_of_what_there_is() {
        let limit = |text: &str, bytes| parse_memory_limit(text, || bytes);
        assert_eq!(limit("3mb", None), Ok(3 << 20));
        assert_eq!(limit("75%", Some(1000)), Ok(750));
        assert_eq!(limit("100%", Some(1000)), Ok(1000));
        assert_eq!(limit("AUTO", Some(1000)), Ok(750));
        for text in ["0%", "101%", "-1%", "%", "x%", "1.5%"] {
            assert!(limit(text, Some(1000)).is_err_and(|why| why.contains("between 1% and 100%")), "{text}");
        }
        assert!(limit("50%", None).is_err_and(|why| why.contains("not known")));
        assert!(limit("half", Some(1000)).is_err_and(|why| why.contains("memory value")));
        let kind = Kind::MemoryLimit;
        let parsed = kind.parse(&[b"auto".to_vec()], b"0").unwrap();
        assert_eq!(kind.parse(&[kind.shown(&parsed)], b"0"), Ok(parsed));
    }

    #[test]
    fn memory_is_understood_with_every_unit() {
        let kind = Kind::Memory { min: 0, max: i64::MAX };
        for (text, bytes) in [
            ("0", "0"),
            ("1k", "1000"),
            ("1KB", "1024"),
            ("3mb", "3145728"),
            ("1G", "1000000000"),
            ("7b", "7"),
        ] {
            assert_eq!(shown(kind, text, "").unwrap(), bytes);
        }
        for text in ["-1", "1.5gb", "12zz", "\"\"", "kb", "99999999999gb", "é"] {
            assert_eq!(shown(kind, text, "").unwrap_err(), "argument must be a memory value", "{text}");
        }
        assert_eq!(memory_with_unit(1 << 20), "1mb");
        assert_eq!(memory_with_unit(1500), "1500");
        assert_eq!(memory_with_unit(0), "0");
    }

    #[test]
    fn output_limits_keep_the_classes_not_named() {
        let now = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
        let then = shown(Kind::OutputLimits, "replica 1gb 2 3 pubsub 1 1 1", now).unwrap();
        assert_eq!(then, "normal 0 0 0 slave 1073741824 2 3 pubsub 1 1 1");
        assert_eq!(
            Kind::OutputLimits.lines(then.as_bytes(), now.as_bytes()),
            [b"replica 1gb 2 3".to_vec(), b"pubsub 1 1 1".to_vec()]
        );
        for (line, words) in [
            ("normal 1 2", "Wrong number"),
            ("foo 1 2 3", "Invalid client class"),
            ("normal -1 2 3", "Error in"),
        ] {
            assert!(shown(Kind::OutputLimits, line, now).unwrap_err().starts_with(words));
        }
    }

    #[test]
    fn notification_flags_are_shown_in_one_order() {
        for (given, expect) in [
            ("KEA", "AKE"),
            ("g$lshzxetd", "A"),
            ("KEg", "gKE"),
            ("xKE$n", "$xnKE"),
            ("AKEm", "AKEm"),
            ("An", "A"),
        ] {
            assert_eq!(shown(Kind::Notify, given, "").unwrap(), expect);
        }
        assert_eq!(shown(Kind::Notify, "Q", "").unwrap_err(), NOTIFY_ERROR);
        assert_eq!(shown(Kind::Notify, "", "").unwrap(), "");
    }

    #[test]
    fn numbers_outside_their_range_say_so() {
        let kind = Kind::Int { min: 0, max: 65535 };
        assert_eq!(shown(kind, "65536", "").unwrap_err(), "argument must be between 0 and 65535 inclusive");
        for text in ["abc", "+1", "01", "1x", "\"\"", "99999999999999999999"] {
            assert_eq!(shown(kind, text, "").unwrap_err(), "argument couldn't be parsed into an integer");
        }
        assert_eq!(shown(kind, "1 2", "").unwrap_err(), "wrong number of arguments");
        assert_eq!(shown(Kind::Clamped { min: 1, max: 500 }, "100000", "").unwrap(), "500");
        assert_eq!(shown(Kind::Octal { max: 0o777 }, "770", "").unwrap(), "770");
        assert!(shown(Kind::Octal { max: 0o777 }, "9", "").is_err());
        assert!(shown(Kind::Octal { max: 0o777 }, "1777", "").is_err());
    }

    #[test]
    fn lists_are_shown_in_one_line() {
        assert_eq!(shown(Kind::SavePoints, "60 1 2 3", "").unwrap(), "60 1 2 3");
        assert_eq!(shown(Kind::SavePoints, "", "").unwrap(), "");
        assert!(shown(Kind::SavePoints, "60 1 2", "").is_err());
        assert_eq!(shown(Kind::Percentiles, "50 99.90", "").unwrap(), "50 99.9");
        assert!(shown(Kind::Percentiles, "101", "").is_err());
        assert_eq!(shown(Kind::OomScores, "0 200 800", "").unwrap(), "0 200 800");
        assert_eq!(shown(Kind::ReplicaOf, "NO one", "").unwrap(), "");
        assert_eq!(shown(Kind::ReplicaOf, "h 6379", "").unwrap(), "h 6379");
        let flags = Kind::Choices(&["default", "save", "nosave", "now", "force"]);
        assert_eq!(shown(flags, "force now", "").unwrap(), "now force");
        assert_eq!(shown(flags, "", "").unwrap(), "default");
    }
}
