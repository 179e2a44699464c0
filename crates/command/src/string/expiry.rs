//! The options that SET, GETEX and MSETEX share: conditions and expiry.
//!
//! An option may be repeated; the last one counts. An option that contradicts another is a syntax error. The
//! time itself is checked later, by [`Options::deadline`], because some commands look at the key in between.

use crate::{Cx, Error, options};
use resp::Args;

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
    pub if_equal: Option<&'a [u8]>,
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
            (!self.xx && self.if_equal.is_none()).then_some(())
        } else if sets && is("XX") {
            self.xx = true;
            (!self.nx && self.if_equal.is_none()).then_some(())
        } else if of == Of::Set && is("GET") {
            self.get = true;
            Some(())
        } else if of == Of::Set && is("IFEQ") {
            let first = self.if_equal.is_none();
            self.if_equal = Some(rest.next()?);
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
