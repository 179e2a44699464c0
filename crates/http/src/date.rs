//! Dates as HTTP writes them: `Sun, 06 Nov 1994 08:49:37 GMT`.

/// Length of a date.
pub const LEN: usize = 29;

/// A date that is spelled anew once a second.
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

/// Spells a moment (seconds since 1970, up to the year 9999).
pub fn spell(unix_s: u64) -> [u8; LEN] {
    const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed";
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
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

/// Year, month and day of a day since 1970. The year begins in March here, so that the leap day is its last.
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

    /// Against counting days one by one, over more than an era of 400 years.
    #[test]
    fn every_day_follows_the_one_before() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..160_000 {
            assert_eq!(civil(days), (year, month, day));
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
