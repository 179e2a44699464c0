//! The options that SET, GETEX, MSETEX and DELEX share: conditions and expiry.
//!
//! An option may be repeated; the last one counts. An option that contradicts another is a syntax error. The
//! time itself is checked later, by [`Options::deadline`], because some commands look at the key in between.

use super::BYTES_PER_STEP;
use crate::options::{self, is};
use crate::{Budget, Cx, Error};
use keyspace::View;
use resp::Args;
use std::hash::Hasher;
use twox_hash::XxHash3_64;
use value::{StrRef, str};

/// Digits of a digest.
const DIGITS: usize = 16;

/// Bytes of unstored zeros that are hashed at a time.
static ZEROS: [u8; 4096] = [0; 4096];

/// The command whose options are read. Each takes only some of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Set,
    GetEx,
    MSetEx,
}

/// The unit and base of a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    Ex,
    Px,
    ExAt,
    PxAt,
}

impl Unit {
    fn named(word: &[u8]) -> Option<Unit> {
        match word.len() {
            2 if options::is(word, "EX") => Some(Unit::Ex),
            2 if options::is(word, "PX") => Some(Unit::Px),
            4 if options::is(word, "EXAT") => Some(Unit::ExAt),
            4 if options::is(word, "PXAT") => Some(Unit::PxAt),
            _ => None,
        }
    }

    pub(super) fn is_relative(self) -> bool {
        matches!(self, Unit::Ex | Unit::Px)
    }

    /// The time as milliseconds since 1970. Errors: not an integer; not positive, or too large for 64 bits.
    pub(super) fn deadline(self, time: &[u8], now_ms: u64, command: &str) -> Result<u64, Error> {
        let time = options::int(time)?;
        let factor = if matches!(self, Unit::Ex | Unit::ExAt) { 1000 } else { 1 };
        let base = if self.is_relative() { now_ms as i64 } else { 0 };
        time.checked_mul(factor)
            .filter(|ms| *ms > 0)
            .and_then(|ms| ms.checked_add(base))
            .map(|ms| ms as u64)
            .ok_or_else(|| Error::InvalidExpire(command.to_owned()))
    }
}

/// The options behind the key (and value).
#[derive(Clone, Copy, Default)]
pub(super) struct Options<'a> {
    pub nx: bool,
    pub xx: bool,
    pub compare: Option<Compare<'a>>,
    pub get: bool,
    pub keep_ttl: bool,
    pub persist: bool,
    pub expire: Option<(Unit, &'a [u8])>,
}

impl<'a> Options<'a> {
    pub(super) fn parse(words: Args<'a>, of: Of) -> Result<Options<'a>, Error> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            options.take(word, &mut words, of).ok_or(Error::Syntax)?;
        }
        Ok(options)
    }

    /// Reads one option. None if it is unknown, contradicts another, or lacks its argument.
    fn take(&mut self, word: &[u8], rest: &mut impl Iterator<Item = &'a [u8]>, of: Of) -> Option<()> {
        let is = |name| options::is(word, name);
        let sets = of != Of::GetEx;
        if let Some(unit) = Unit::named(word) {
            let other = self.expire.is_some_and(|(had, _)| had != unit);
            self.expire = Some((unit, rest.next()?));
            (!other && !self.keep_ttl && !self.persist).then_some(())
        } else if sets && is("NX") {
            self.nx = true;
            (!self.xx && self.compare.is_none()).then_some(())
        } else if sets && is("XX") {
            self.xx = true;
            (!self.nx && self.compare.is_none()).then_some(())
        } else if of == Of::Set && is("GET") {
            self.get = true;
            Some(())
        } else if of == Of::Set && Compare::is_word(word) {
            let first = self.compare.is_none();
            self.compare = Compare::named(word, rest.next()?);
            (first && !self.nx && !self.xx).then_some(())
        } else if sets && is("KEEPTTL") {
            self.keep_ttl = true;
            self.expire.is_none().then_some(())
        } else if of == Of::GetEx && is("PERSIST") {
            self.persist = true;
            self.expire.is_none().then_some(())
        } else {
            None
        }
    }

    /// The time of expiry, as milliseconds since 1970. Errors: those of [`Unit::deadline`].
    pub(super) fn deadline(&self, cx: &Cx<'_, '_>, command: &str) -> Result<Option<u64>, Error> {
        self.expire.map(|(unit, time)| unit.deadline(time, cx.view.now_ms(), command)).transpose()
    }
}

/// The condition about the string of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Compare<'a> {
    Is(&'a [u8]),
    IsNot(&'a [u8]),
    HasDigest(&'a [u8]),
    LacksDigest(&'a [u8]),
}

impl<'a> Compare<'a> {
    /// The condition that this word and its argument make. None if it is no such word.
    pub(super) fn named(word: &[u8], argument: &'a [u8]) -> Option<Compare<'a>> {
        match word.len() {
            4 if is(word, "IFEQ") => Some(Compare::Is(argument)),
            4 if is(word, "IFNE") => Some(Compare::IsNot(argument)),
            5 if is(word, "IFDEQ") => Some(Compare::HasDigest(argument)),
            5 if is(word, "IFDNE") => Some(Compare::LacksDigest(argument)),
            _ => None,
        }
    }

    /// Whether a word names a condition.
    pub(super) fn is_word(word: &[u8]) -> bool {
        Compare::named(word, b"").is_some()
    }

    /// Whether the string, or its absence, meets the condition. A digest is looked at only if there is a
    /// string.
    ///
    /// Cost: O(n), n = bytes of the argument, or of the string for its digest. Errors: a digest of another
    /// length, those of the budget.
    pub(super) fn is_met(self, s: Option<StrRef<'_>>, budget: &mut Budget<'_>) -> Result<bool, Error> {
        let Some(s) = s else { return Ok(matches!(self, Compare::IsNot(_) | Compare::LacksDigest(_))) };
        match self {
            Compare::Is(bytes) => Ok(s == *bytes),
            Compare::IsNot(bytes) => Ok(s != *bytes),
            Compare::HasDigest(digits) => has_digest(s, digits, budget),
            Compare::LacksDigest(digits) => Ok(!has_digest(s, digits, budget)?),
        }
    }
}

/// Steps to hash the string of the key at argument 1.
pub(super) fn digest_cost(view: &View<'_>, args: Args<'_>) -> usize {
    match view.string(args.at(1)) {
        Ok(Some(s)) => s.len() / BYTES_PER_STEP,
        _ => 0,
    }
}

/// Whether one of these words asks for a digest.
pub(super) fn asks_digest(words: Args<'_>) -> bool {
    words.iter().any(|word| word.len() == 5 && Compare::is_word(word))
}

/// The digest of a string: the 64-bit XXH3 of its bytes, as hexadecimal digits. Nothing is copied.
///
/// Cost: O(n), n = bytes, unstored zeros included. Errors: those of the budget.
pub(super) fn digest(s: StrRef<'_>, budget: &mut Budget<'_>) -> Result<[u8; DIGITS], Error> {
    let hash = hash(s, budget)?;
    Ok(std::array::from_fn(|i| b"0123456789abcdef"[(hash >> (60 - 4 * i) & 15) as usize]))
}

fn has_digest(s: StrRef<'_>, digits: &[u8], budget: &mut Budget<'_>) -> Result<bool, Error> {
    if digits.len() != DIGITS {
        return Err(Error::new("ERR must be exactly 16 hexadecimal characters"));
    }
    Ok(digits.eq_ignore_ascii_case(&digest(s, budget)?))
}

/// The hash of a string. O(n), with its unstored zeros. Errors: those of the budget.
fn hash(s: StrRef<'_>, budget: &mut Budget<'_>) -> Result<u64, Error> {
    if let StrRef::Flat(bytes) = s {
        budget.charge(bytes.len() / BYTES_PER_STEP)?;
        return Ok(XxHash3_64::oneshot(bytes));
    }
    let mut hasher = XxHash3_64::new();
    for run in s.runs(0..s.len()) {
        match run {
            str::Run::Bytes(bytes) => {
                budget.charge(1 + bytes.len() / BYTES_PER_STEP)?;
                hasher.write(bytes);
            }
            str::Run::Zeros(n) => {
                let mut left = n as usize;
                while left > 0 {
                    let part = left.min(ZEROS.len());
                    budget.charge(1 + part / BYTES_PER_STEP)?;
                    hasher.write(&ZEROS[..part]);
                    left -= part;
                }
            }
        }
    }
    Ok(hasher.finish())
}
