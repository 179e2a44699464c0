//! Argument parsing: numbers, time-outs and keywords, with Redis's errors.

use crate::{Budget, Cx, Error};
use resp::{Args, OwnedArgs};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use stdx::glob::Match;

/// `proto-max-bulk-len`.
static MAX_STRING_BYTES: AtomicUsize = AtomicUsize::new(512 << 20);

/// The longest string a command may build (`proto-max-bulk-len`).
#[inline]
pub fn max_string_bytes() -> usize {
    MAX_STRING_BYTES.load(Relaxed)
}

/// Sets the longest string a command may build.
pub fn set_max_string_bytes(bytes: usize) {
    MAX_STRING_BYTES.store(bytes, Relaxed);
}

/// Refuses a string of `len` bytes that would grow by `more` past `proto-max-bulk-len`. A replay is not
/// refused.
pub fn check_string_size(cx: &Cx<'_, '_>, len: usize, more: usize) -> Result<(), Error> {
    let total = len.saturating_add(more);
    if total > i64::MAX as usize || (total > max_string_bytes() && !cx.caller.in_replay) {
        return Err(Error::new("ERR string exceeds maximum allowed size (proto-max-bulk-len)"));
    }
    Ok(())
}

/// A signed 64-bit integer in canonical form. Errors: value is not an integer or out of range.
#[inline]
pub fn int(arg: &[u8]) -> Result<i64, Error> {
    stdx::num::parse_i64(arg).ok_or(Error::NotInteger)
}

/// A float as strtod reads it. Errors: value is not a valid float.
pub fn float(arg: &[u8]) -> Result<f64, Error> {
    stdx::num::parse_f64(arg).ok_or(Error::NotFloat)
}

/// Whether an argument is this keyword, in any case.
#[inline]
pub fn is(arg: &[u8], keyword: &str) -> bool {
    arg.eq_ignore_ascii_case(keyword.as_bytes())
}

/// A blocking command's time-out in seconds, fractions allowed. None = for ever (0). Errors: not a float, out
/// of range, negative.
pub fn timeout_ms(arg: &[u8], now_ms: u64) -> Result<Option<u64>, Error> {
    let seconds =
        stdx::num::parse_f64(arg).ok_or(Error::new("ERR timeout is not a float or out of range"))?;
    let ms = (seconds * 1000.0).ceil();
    if ms > (i64::MAX as f64) {
        return Err(OUT_OF_RANGE);
    }
    if ms < 0.0 {
        return Err(Error::new("ERR timeout is negative"));
    }
    ending(ms as u64, now_ms).map(|ms| (ms > 0).then_some(ms))
}

const OUT_OF_RANGE: Error = Error::new("ERR timeout is out of range");

/// A time-out in milliseconds, as WAIT and BLOCK take it; 0: for ever. Errors: not an integer, out of range,
/// negative.
pub fn timeout_whole_ms(arg: &[u8], now_ms: u64) -> Result<u64, Error> {
    let ms = stdx::num::parse_i64(arg).ok_or(Error::new("ERR timeout is not an integer or out of range"))?;
    ending(u64::try_from(ms).map_err(|_| Error::new("ERR timeout is negative"))?, now_ms)
}

/// The time-out, if its end can be told in milliseconds since 1970. Errors: out of range.
fn ending(ms: u64, now_ms: u64) -> Result<u64, Error> {
    match ms.checked_add(now_ms) {
        Some(end) if i64::try_from(end).is_ok() => Ok(ms),
        _ => Err(OUT_OF_RANGE),
    }
}

/// Turns an index that may count from the end into one from the start, clamped to 0 at the low end.
#[inline]
pub fn from_end(index: i64, len: usize) -> i64 {
    if index < 0 { (index + len as i64).max(0) } else { index }
}

/// The elements `start..=stop` of `len` as a half-open range, empty if there are none. Both may count from
/// the end.
#[inline]
pub fn range(start: i64, stop: i64, len: usize) -> std::ops::Range<usize> {
    let start = from_end(start, len);
    let stop = if stop < 0 { stop + len as i64 } else { stop.min(len as i64 - 1) };
    if start > stop || start >= len as i64 { 0..0 } else { start as usize..stop as usize + 1 }
}

/// A SCAN cursor, spelt in any way that Redis 8 takes: blanks before it, a sign, zeros, and bytes behind a
/// NUL. A
/// negative number that fits 64 bits and is spelt plainly is none; others count from 2^64 down. O(length).
/// Errors: invalid cursor.
pub fn cursor(arg: &[u8]) -> Result<u64, Error> {
    if let Some(plain) = stdx::num::parse_u64(arg) {
        return Ok(plain);
    }
    let text = arg.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_plain = stdx::num::parse_i64(text).is_some_and(|number| number < 0);
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let word = &text[text.iter().take_while(|byte| is_blank(byte)).count()..];
    let (is_negative, digits) = match word {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let number = digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    });
    let number =
        number.filter(|_| !digits.is_empty() && !is_plain).ok_or(Error::new("ERR invalid cursor"))?;
    Ok(if is_negative { number.wrapping_neg() } else { number })
}

/// The options of SCAN and its kin.
pub struct ScanOptions<'a> {
    pub pattern: Option<&'a [u8]>,
    /// About how many elements to visit.
    pub count: usize,
    /// TYPE of SCAN.
    pub kind: Option<&'a [u8]>,
    /// NOVALUES of HSCAN, NOSCORES of ZSCAN.
    pub bare: bool,
}

impl<'a> ScanOptions<'a> {
    /// Reads the options behind the cursor. `extra`: which of "type", "novalues", "noscores" the command
    /// knows. Errors: not an integer, syntax.
    pub fn parse(args: resp::Args<'a>, extra: &[&str]) -> Result<ScanOptions<'a>, Error> {
        let mut options = ScanOptions { pattern: None, count: 10, kind: None, bare: false };
        let mut i = 0;
        while i < args.len() {
            let (word, value) = (args.at(i), args.get(i + 1));
            let knows = |name: &str| extra.contains(&name) && is(word, name);
            match value {
                Some(value) if is(word, "count") => {
                    let count = int(value)?;
                    if count < 1 {
                        return Err(Error::Syntax);
                    }
                    options.count = count as usize;
                    i += 2;
                }
                Some(value) if is(word, "match") => {
                    // A pattern that matches everything needs no matching.
                    options.pattern = (*value != *b"*").then_some(value);
                    i += 2;
                }
                Some(value) if knows("type") => {
                    options.kind = Some(value);
                    i += 2;
                }
                _ if knows("novalues") || knows("noscores") => {
                    options.bare = true;
                    i += 1;
                }
                _ if is(word, "novalues") => {
                    return Err(Error::new("ERR NOVALUES option can only be used in HSCAN"));
                }
                _ => return Err(Error::Syntax),
            }
        }
        Ok(options)
    }

    /// Whether TYPE allows a type. An unknown TYPE allows none.
    pub fn wants(&self, kind: value::Kind) -> bool {
        self.kind.is_none_or(|name| name.eq_ignore_ascii_case(kind.name().as_bytes()))
    }

    /// Begins a walk over elements.
    pub(crate) fn walk<'o, 'b, 't>(&'o self, budget: &'b mut Budget<'t>) -> Walk<'o, 'b, 't> {
        Walk::of(self.pattern, budget)
    }
}

/// Steps for a visited element.
const VISIT_STEPS: usize = 2;
/// Bytes of a pattern compared in one step, and in one stretch.
const LOOKS_PER_STEP: usize = 32;
const LOOKS: usize = 4096;
/// Steps between two charges.
const CHARGED: usize = 128;

/// A walk over elements that matches each against a pattern. It charges as it goes, as the length of a match
/// is not known beforehand.
pub(crate) struct Walk<'o, 'b, 't> {
    pattern: Option<&'o [u8]>,
    budget: &'b mut Budget<'t>,
    due: usize,
    refused: Option<Error>,
}

impl<'o, 'b, 't> Walk<'o, 'b, 't> {
    /// A walk that takes the elements that match a pattern, or all without a pattern.
    pub(crate) fn of(pattern: Option<&'o [u8]>, budget: &'b mut Budget<'t>) -> Walk<'o, 'b, 't> {
        Walk { pattern, budget, due: 0, refused: None }
    }

    /// Whether a visited element matches. False for all once the run has to end. O(pattern · name) at worst.
    pub(crate) fn takes(&mut self, name: &[u8]) -> bool {
        self.due += VISIT_STEPS;
        if !self.may_go_on() {
            return false;
        }
        let Some(pattern) = self.pattern else { return true };
        let mut matching = Match::default();
        loop {
            let mut looks = LOOKS;
            let verdict = matching.go_on(pattern, name, false, &mut looks);
            self.due += (LOOKS - looks) / LOOKS_PER_STEP;
            if !self.may_go_on() {
                return false;
            }
            if let Some(verdict) = verdict {
                return verdict;
            }
        }
    }

    fn may_go_on(&mut self) -> bool {
        if self.due >= CHARGED && self.refused.is_none() {
            self.refused = self.budget.charge(std::mem::take(&mut self.due)).err();
        }
        self.refused.is_none()
    }

    /// Ends the walk. Errors: the charge that was refused.
    pub(crate) fn end(self) -> Result<(), Error> {
        self.refused.map_or(Ok(()), Err)
    }
}

/// Whether a number is spelled in hexadecimal. Redis reads that and Valkey 9 does not.
pub(crate) fn is_hex(word: &[u8]) -> bool {
    let unsigned = word.strip_prefix(b"+").or(word.strip_prefix(b"-")).unwrap_or(word);
    matches!(unsigned, [b'0', b'x' | b'X', ..])
}

/// The words of a command behind its own name. Clients may call it by another one, which no reader of the log
/// knows. O(words).
pub(crate) fn own_words(args: Args<'_>) -> OwnedArgs {
    let name = crate::resolve(args).map_or(args.at(0), |command| command.name.as_bytes());
    std::iter::once(name).chain(args.iter().skip(1)).collect()
}

/// Notes a command with its numbers in decimal if any is spelled in hexadecimal, and nothing else. Each
/// number has been read before. O(numbers), O(words) if any is.
pub(crate) fn note_decimals(cx: &mut Cx<'_, '_>, args: Args<'_>, numbers: impl Fn(usize) -> bool) {
    let is_number = |(i, word): (usize, &[u8])| numbers(i) && is_hex(word);
    if !cx.view.listens() || !args.iter().enumerate().any(is_number) {
        return;
    }
    let decimal = |(i, word): (usize, &[u8])| match stdx::num::parse_f64(word) {
        Some(number) if numbers(i) => {
            let mut text = Vec::new();
            stdx::num::format_f64(number, &mut text);
            text
        }
        _ => word.to_vec(),
    };
    let own = own_words(args);
    let words: Vec<Vec<u8>> = own.args().iter().enumerate().map(decimal).collect();
    cx.effect(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::cursor;
    use crate::testing::Db;

    /// As Redis 8 takes them.
    #[test]
    fn a_cursor_may_be_spelt_in_many_ways() {
        let most = u64::MAX.to_string();
        let taken: [(&[u8], u64); 14] = [
            (b"0", 0),
            (b" 0", 0),
            (b"\t\x0b 17", 17),
            (b"+0", 0),
            (b"00", 0),
            (b"01", 1),
            (b" +1", 1),
            (b"-0", 0),
            (b"-01", u64::MAX),
            (b"-18446744073709551615", 1),
            (most.as_bytes(), u64::MAX),
            (b"9223372036854775808", 1 << 63),
            (b"00000000000000000000000000000000000000007", 7),
            (b"5\0x", 5),
        ];
        for (word, number) in taken {
            assert_eq!(cursor(word).unwrap(), number, "{}", word.escape_ascii());
        }
        let refused: [&[u8]; 12] = [
            b"",
            b" ",
            b"-1",
            b"-9223372036854775808",
            b"0 ",
            b"0x1",
            b"18446744073709551616",
            b"-18446744073709551616",
            b"+ 0",
            b"++1",
            b"-",
            b"\x00",
        ];
        for word in refused {
            assert_eq!(cursor(word).unwrap_err().text(), "ERR invalid cursor", "{}", word.escape_ascii());
        }
    }

    #[test]
    fn novalues_is_hscans_alone() {
        let mut db = Db::new();
        db.run(&["sadd", "s", "a"]);
        db.run(&["zadd", "z", "1", "a"]);
        for line in
            ["scan 0 novalues", "sscan s 0 NOVALUES", "zscan z 0 novalues x", "scan 0 novalues count 0"]
        {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(db.run(&words), "-ERR NOVALUES option can only be used in HSCAN", "{line}");
        }
        assert_eq!(db.run(&["scan", "0", "count", "0", "novalues"]), "-ERR syntax error");
    }

    /// A pattern that is scanned many times is charged for accordingly.
    #[test]
    fn matching_a_slow_pattern_is_charged_for() {
        let (pattern, name) = (format!("*{}b", "a".repeat(300)), "a".repeat(3000));
        let mut db = Db::new();
        db.run(&["sadd", "s", &name]);
        db.run(&["hset", "h", &name, "1"]);
        db.run(&["zadd", "z", "1", &name]);
        db.run(&["rpush", "l", &name]);
        db.run(&["set", &name, "1"]);
        let scans: [&[&str]; 6] = [
            &["sscan", "s", "0", "match", &pattern],
            &["hscan", "h", "0", "match", &pattern],
            &["zscan", "z", "0", "match", &pattern],
            &["lscan", "l", "0", "match", &pattern],
            &["scan", "0", "match", &pattern, "count", "1000"],
            &["keys", &pattern],
        ];
        for words in scans {
            db.steps = 1_000_000;
            assert!(!db.run(words).contains("aaa"));
            assert!(db.looks > 100 && db.most < 300, "{}: {} {}", words[0], db.looks, db.most);
            db.steps = 1000;
            assert_eq!(db.run(words), "-ERR internal: run dropped", "{}", words[0]);
        }
    }
}
