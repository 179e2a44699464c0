//! Dates in HTTP, as `Sun, 06 Nov 1994 08:49:37 GMT`. Two older forms are read as well.

/// Length of a date.
pub const LEN: usize = 29;

/// The date of now, spelled once a second.
pub struct Today {
    second: u64,
    text: [u8; LEN],
}

impl Default for Today {
    fn default() -> Today {
        Today { second: 0, text: spell(0) }
    }
}

impl Today {
    /// The date of a moment (milliseconds since 1970).
    #[inline]
    pub fn at(&mut self, now_ms: u64) -> &[u8; LEN] {
        if now_ms / 1000 != self.second {
            self.second = now_ms / 1000;
            self.text = spell(self.second);
        }
        &self.text
    }
}

const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed";
const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";

/// Spells a moment in seconds since 1970, up to the year 9999.
pub fn spell(unix_s: u64) -> [u8; LEN] {
    let unix_s = unix_s.min(253_402_300_799);
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil(days);
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    let name = |names: &[u8], at: usize| [names[3 * at], names[3 * at + 1], names[3 * at + 2]];
    text[..3].copy_from_slice(&name(DAYS, (days % 7) as usize));
    text[8..11].copy_from_slice(&name(MONTHS, month as usize - 1));
    let mut two = |at: usize, n: u64| {
        text[at] = b'0' + (n / 10 % 10) as u8;
        text[at + 1] = b'0' + (n % 10) as u8;
    };
    two(5, day);
    two(12, year / 100);
    two(14, year % 100);
    two(17, second / 3600);
    two(20, second / 60 % 60);
    two(23, second % 60);
    text
}

/// Reads a date in any of the three forms of RFC 9110, as seconds since 1970. `None`: it is no date, or
/// before 1970. O(1).
///
/// ```text
/// Sun, 06 Nov 1994 08:49:37 GMT        Sunday, 06-Nov-94 08:49:37 GMT        Sun Nov  6 08:49:37 1994
/// ```
pub fn parse(text: &[u8]) -> Option<u64> {
    let word = |from: usize, to: usize| text.get(from..to);
    let (year, month, day, time) = match text.len() {
        LEN => {
            let at = at(number(word(12, 16)?)?, word(8, 11)?, word(5, 7)?, word(17, 25)?)?;
            // The weekday and the separators must be right as well.
            return (spell(at) == text).then_some(at);
        }
        24 => (number(word(20, 24)?)?, word(4, 7)?, word(8, 10)?, word(11, 19)?),
        _ => {
            let comma = memchr::memchr(b',', text)?;
            let rest = text[comma..].strip_prefix(b", ")?.strip_suffix(b" GMT")?;
            let year = number(rest.get(7..9)?)?;
            // Two digits mean 1970 to 2069.
            (if year < 70 { 2000 } else { 1900 } + year, rest.get(3..6)?, rest.get(..2)?, rest.get(10..)?)
        }
    };
    at(year, month, day, time)
}

/// The moment of a year, the name of a month, a day and `08:49:37`.
fn at(year: u64, month: &[u8], day: &[u8], time: &[u8]) -> Option<u64> {
    let month = MONTHS.chunks_exact(3).position(|name| name == month)? as u64 + 1;
    let day = number(day.trim_ascii_start())?;
    let &[h1, h2, b':', m1, m2, b':', s1, s2] = time else { return None };
    let (hour, minute, second) = (number(&[h1, h2])?, number(&[m1, m2])?, number(&[s1, s2])?);
    if !(1970..=9999).contains(&year) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days_until(year, month, day);
    // A day such as 30 February does not exist.
    (civil(days) == (year, month, day)).then_some(days * 86_400 + hour * 3600 + minute * 60 + second.min(59))
}

fn number(digits: &[u8]) -> Option<u64> {
    let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    all.then(|| digits.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')))
}

/// Days from 1970 to a date; the inverse of [`civil`].
fn days_until(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + day.max(1) - 1;
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).saturating_sub(719_468)
}

/// Year, month and day of a day since 1970. Computes with a year that begins in March, so that a leap day is
/// its last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_spelled() {
        for (unix_s, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT"),
            (1_709_251_200, "Fri, 01 Mar 2024 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(std::str::from_utf8(&spell(unix_s)), Ok(text));
        }
        let mut today = Today::default();
        assert_eq!(today.at(784_111_777_999), &spell(784_111_777));
        assert_eq!(today.at(784_111_778_000), &spell(784_111_778));
    }

    #[test]
    fn three_forms_are_read_and_nothing_else() {
        for text in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(parse(text.as_bytes()), Some(784_111_777), "{text}");
            for at in 0..text.len() {
                // A cut or changed byte must not give another moment.
                assert!(parse(&text.as_bytes()[..at]).is_none(), "{text} cut at {at}");
                let mut changed = text.as_bytes().to_vec();
                changed[at] = b'x';
                let found = parse(&changed);
                assert!(found.is_none() || found == Some(784_111_777), "{text} changed at {at}");
            }
        }
        assert_eq!(parse(b"Tuesday, 29-Feb-00 00:00:00 GMT"), Some(951_782_400));
        assert_eq!(parse(b"Tue, 29 Feb 2000 00:00:00 GMT"), Some(951_782_400));
        for bad in [
            "",
            "0",
            "yesterday",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Wed, 31 Dec 1969 23:59:59 GMT",
            "Wed, 30 Feb 2000 00:00:00 GMT",
            "Thu Feb 29 00:00:00 2001",
            "Thu Feb  0 00:00:00 2001",
            "Sun Nov  6 24:00:00 1994",
            "Sunday, 06-Nov-94 08:49:37 GM",
            ", ",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }

    /// Compares with counting days one by one, over more than an era of 400 years.
    #[test]
    fn every_day_follows_the_one_before() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..160_000 {
            assert_eq!(civil(days), (year, month, day));
            assert_eq!(days_until(year, month, day), days);
            assert_eq!(parse(&spell(days * 86_400 + 86_399)), Some(days * 86_400 + 86_399));
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let last = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > last {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }
}
