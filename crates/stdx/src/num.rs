//! Numbers as text: strict integers and lenient floats from clients, and floats for replies.
//!
//! An integer is accepted only in the form in which it would be printed, so parsing and printing give the
//! same bytes. A set may store `42` as an integer but must keep `042` as text. A float is accepted as C's
//! `strtod` takes it, as a whole string without blanks.
//!
//! Sources: parsing as observed on Redis 7.0.15; printed doubles in the form of Redis 7.2.

/// Longest text of an `i64`, in bytes.
pub const I64_TEXT_MAX: usize = 20;

/// The number that `text` spells in canonical form: no sign but `-`, no leading zeros, no blanks, not `-0`.
/// O(length), at most 20.
#[inline]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (digits, negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        digits => (digits, false),
    };
    if digits.len() > 19 {
        return None;
    }
    let magnitude = parse_u64(digits)?;
    match negative {
        false => i64::try_from(magnitude).ok(),
        true if magnitude == 0 || magnitude > 1 << 63 => None,
        true => Some((magnitude as i64).wrapping_neg()),
    }
}

/// As [`parse_i64`], for `0..=u64::MAX`.
#[inline]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    match text {
        [] => return None,
        [b'0'] => return Some(0),
        [b'0', ..] => return None,
        _ if text.len() > 20 => return None,
        _ => {}
    }
    let mut value = 0u64;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = if text.len() < 20 {
            value * 10 + u64::from(digit)
        } else {
            value.checked_mul(10)?.checked_add(u64::from(digit))?
        };
    }
    Some(value)
}

/// The double that `text` spells: decimal or hexadecimal, with or without exponent, or any spelling of
/// infinity. Refuses text that `strtod` would not read whole, blanks, NaN, and numbers that overflow to
/// infinity or underflow to zero. O(length).
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    let (unsigned, negative) = match text {
        [b'-', rest @ ..] => (rest, true),
        [b'+', rest @ ..] => (rest, false),
        rest => (rest, false),
    };
    let magnitude = match unsigned {
        [b'0', b'x' | b'X', rest @ ..] => hex_float(rest)?,
        [b'0'..=b'9' | b'.', ..] => decimal_float(unsigned)?,
        word if word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"infinity") => f64::INFINITY,
        _ => return None,
    };
    Some(if negative { -magnitude } else { magnitude })
}

/// Parses a decimal. `text` starts with a digit or a point.
fn decimal_float(text: &[u8]) -> Option<f64> {
    // A double holds every integer with this few digits.
    if text.len() <= 15 && text.iter().all(u8::is_ascii_digit) {
        return Some(text.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')) as f64);
    }
    // The standard library reads the same decimal forms as `strtod`, and rounds as exactly.
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let out_of_range = value.is_infinite() || (value == 0.0 && has_nonzero_mantissa(text));
    (!out_of_range).then_some(value)
}

fn has_nonzero_mantissa(text: &[u8]) -> bool {
    text.iter().take_while(|byte| !matches!(byte, b'e' | b'E')).any(|byte| matches!(byte, b'1'..=b'9'))
}

/// Parses the text behind `0x`.
fn hex_float(text: &[u8]) -> Option<f64> {
    let (mantissa, sticky, exponent) = hex_parts(text)?;
    let value = scale(mantissa, sticky, exponent);
    let out_of_range = value.is_infinite() || (value == 0.0 && mantissa != 0);
    (!out_of_range).then_some(value)
}

/// Parses hex digits with an optional point, then an optional `p` and decimal exponent. Returns a mantissa of
/// up to 124 bits, whether nonzero digits follow it, and the power of two of its last bit.
pub(crate) fn hex_parts(text: &[u8]) -> Option<(u128, bool, i64)> {
    let (mut mantissa, mut exponent, mut sticky) = (0u128, 0i64, false);
    let (mut seen_digit, mut seen_point) = (false, false);
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        match (*byte as char).to_digit(16) {
            Some(digit) if mantissa >> 120 == 0 => {
                mantissa = mantissa << 4 | u128::from(digit);
                exponent -= if seen_point { 4 } else { 0 };
                seen_digit = true;
            }
            Some(digit) => {
                sticky |= digit != 0;
                exponent += if seen_point { 0 } else { 4 };
            }
            None if *byte == b'.' && !seen_point => seen_point = true,
            None => break,
        }
        rest = tail;
    }
    if !seen_digit {
        return None;
    }
    match rest {
        [] => {}
        [b'p' | b'P', digits @ ..] => exponent = exponent.saturating_add(exponent_digits(digits)?),
        _ => return None,
    }
    Some((mantissa, sticky, exponent))
}

/// A decimal exponent with optional sign, clamped to where everything over- or underflows.
pub(crate) fn exponent_digits(text: &[u8]) -> Option<i64> {
    let (digits, negative) = match text {
        [b'-', rest @ ..] => (rest, true),
        [b'+', rest @ ..] => (rest, false),
        rest => (rest, false),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0i64, |sum, digit| (sum * 10 + i64::from(digit - b'0')).min(1 << 40));
    Some(if negative { -value } else { value })
}

/// `mantissa * 2^exponent`, rounded once to nearest even. `sticky`: the true mantissa is a little more.
fn scale(mantissa: u128, sticky: bool, exponent: i64) -> f64 {
    if mantissa == 0 {
        return 0.0;
    }
    let top = 127 - i64::from(mantissa.leading_zeros()) + exponent;
    if top > 1023 {
        return f64::INFINITY;
    }
    if top < -1075 {
        return 0.0;
    }
    // The weight of the last bit kept: 53 bits, fewer for a subnormal result.
    let last = (top - 52).max(-1074);
    let shift = last - exponent;
    if shift <= 0 {
        return mantissa as f64 * power_of_two(exponent);
    }
    let wide = mantissa << 1 | u128::from(sticky);
    let (kept, lost) = (wide >> (shift + 1), wide & ((1 << (shift + 1)) - 1));
    let half = 1u128 << shift;
    let round_up = lost > half || (lost == half && kept & 1 == 1);
    (kept as u64 + u64::from(round_up)) as f64 * power_of_two(last)
}

/// `2^exponent` for -1074..=1023, exact.
fn power_of_two(exponent: i64) -> f64 {
    if exponent >= -1022 {
        f64::from_bits(((exponent + 1023) as u64) << 52)
    } else {
        f64::from_bits(1 << (exponent + 1074))
    }
}

/// Appends `value` as replies show it: the fewest digits that read back as the same double. Whole numbers up
/// to 2^62 are written plainly. Others get an exponent when seven or more zeros would be written.
///
/// Examples: `3`, `3.5`, `-0`, `inf`, `-inf`, `nan`, `1e+20`, `1.1e-7`. At most 25 bytes.
pub fn format_f64(value: f64, out: &mut Vec<u8>) {
    const PLAIN_MAX: f64 = (1u64 << 62) as f64;
    if value.is_nan() {
        return out.extend_from_slice(b"nan");
    }
    if value.is_infinite() {
        return out.extend_from_slice(if value > 0.0 { b"inf" } else { b"-inf" });
    }
    if value == 0.0 {
        return out.extend_from_slice(if value.is_sign_negative() { b"-0" } else { b"0" });
    }
    if value.abs() <= PLAIN_MAX && value as i64 as f64 == value {
        return out.extend_from_slice(itoa::Buffer::new().format(value as i64).as_bytes());
    }
    if let Some((whole, decimals)) = few_decimals(value.abs()) {
        return short_form(value < 0.0, whole, decimals, out);
    }
    if value < 0.0 {
        out.push(b'-');
    }
    let mut buffer = ryu::Buffer::new();
    let text = buffer.format_finite(value.abs()).as_bytes();
    if !plain_form(value.abs(), text, out) {
        let (digits, count, exponent) = shortest_digits(text);
        lay_out(&digits[..count], exponent, out);
    }
}

/// `Some((whole, millionths))` if `value` has at most six decimals and fifteen digits, as most scores do. So
/// few digits identify a double, so they are also its shortest form.
fn few_decimals(value: f64) -> Option<(u64, u32)> {
    const MILLION: f64 = 1e6;
    if value >= 1e9 {
        return None;
    }
    let scaled = (value * MILLION + 0.5) as u64;
    // A double holds both whole numbers exactly, so the quotient is the double nearest to that decimal.
    if scaled == 0 || scaled as f64 / MILLION != value {
        return None;
    }
    Some((scaled / 1_000_000, (scaled % 1_000_000) as u32))
}

/// Appends `whole.millionths` without trailing zeros. `millionths` is not 0.
fn short_form(negative: bool, whole: u64, mut millionths: u32, out: &mut Vec<u8>) {
    let mut decimals = [0u8; 6];
    for digit in decimals.iter_mut().rev() {
        *digit = b'0' + (millionths % 10) as u8;
        millionths /= 10;
    }
    let shown = decimals.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1);
    if negative {
        out.push(b'-');
    }
    out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
    out.push(b'.');
    out.extend_from_slice(&decimals[..shown]);
}

/// Appends the printer's `text` of `value` if it has the right form: no exponent, and few zeros or few
/// decimals.
fn plain_form(value: f64, text: &[u8], out: &mut Vec<u8>) -> bool {
    // The range in which the printer writes no exponent.
    if !(1e-5..1e16).contains(&value) {
        return false;
    }
    let Some(point) = memchr::memchr(b'.', text) else { return false };
    let decimals = text.len() - point - 1;
    let plain = decimals < 7 || (0.001..10_000.0).contains(&value);
    if plain {
        out.extend_from_slice(text);
    }
    plain
}

/// Digits and exponent such that the number printed as `text` is `digits * 10^exponent`, without trailing
/// zeros.
fn shortest_digits(text: &[u8]) -> ([u8; 17], usize, i32) {
    let (mut digits, mut count, mut exponent) = ([0u8; 17], 0, 0i32);
    let (mut seen_point, mut i) = (false, 0);
    while i < text.len() && text[i] != b'e' {
        match text[i] {
            b'.' => seen_point = true,
            b'0' if count == 0 => exponent -= i32::from(seen_point),
            // Behind 17 digits only zeros of a plainly written whole number follow.
            _ if count == 17 => exponent += i32::from(!seen_point),
            digit => {
                digits[count] = digit;
                count += 1;
                exponent -= i32::from(seen_point);
            }
        }
        i += 1;
    }
    if i < text.len() {
        exponent += parse_i64(&text[i + 1..]).unwrap_or(0) as i32;
    }
    while count > 1 && digits[count - 1] == b'0' {
        count -= 1;
        exponent += 1;
    }
    (digits, count, exponent)
}

/// Writes `digits * 10^exponent` plainly if that takes few zeros, else with an exponent.
fn lay_out(digits: &[u8], exponent: i32, out: &mut Vec<u8>) {
    let count = digits.len() as i32;
    let scientific = exponent + count - 1;
    if (0..8).contains(&exponent) {
        out.extend_from_slice(digits);
        out.extend(std::iter::repeat_n(b'0', exponent as usize));
    } else if exponent < 0 && (exponent > -7 || scientific.abs() < 4) {
        let point = count + exponent;
        if point <= 0 {
            out.extend_from_slice(b"0.");
            out.extend(std::iter::repeat_n(b'0', -point as usize));
            out.extend_from_slice(digits);
        } else {
            let (whole, fraction) = digits.split_at(point as usize);
            out.extend_from_slice(whole);
            out.push(b'.');
            out.extend_from_slice(fraction);
        }
    } else {
        out.push(digits[0]);
        if digits.len() > 1 {
            out.push(b'.');
            out.extend_from_slice(&digits[1..]);
        }
        out.extend_from_slice(if scientific < 0 { b"e-" } else { b"e+" });
        out.extend_from_slice(itoa::Buffer::new().format(scientific.unsigned_abs()).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_the_standard_library_reads_them() {
        let plain = [
            "0",
            "7",
            "007",
            "10",
            "999999999999999",
            "9999999999999999",
            "000000000000000",
            "123456789012345678",
        ];
        for text in plain {
            assert_eq!(parse_f64(text.as_bytes()), Some(text.parse::<f64>().unwrap()), "{text}");
            assert_eq!(
                parse_f64(format!("-{text}").as_bytes()),
                Some(-text.parse::<f64>().unwrap()),
                "-{text}"
            );
        }
        assert!(parse_f64(b"-0").unwrap().is_sign_negative());
    }
    use proptest::prelude::*;

    #[test]
    fn integers_are_taken_only_as_they_would_be_printed() {
        for text in ["0", "1", "-1", "9223372036854775807", "-9223372036854775808", "1000000000000000000"] {
            assert_eq!(parse_i64(text.as_bytes()), text.parse().ok(), "{text}");
        }
        for text in [
            "",
            "-",
            "-0",
            "+1",
            "01",
            "-01",
            " 1",
            "1 ",
            "1a",
            "9223372036854775808",
            "-9223372036854775809",
            "--1",
            "18446744073709551615",
            "00",
            "0x1",
            "99999999999999999999",
            "-10000000000000000000",
        ] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"99999999999999999999"), None);
        assert_eq!(parse_u64(b"-1"), None);
    }

    #[test]
    fn doubles_are_taken_as_strtod_takes_them() {
        let good: &[(&str, f64)] = &[
            ("1", 1.0),
            ("-1.5", -1.5),
            ("+.5", 0.5),
            ("5.", 5.0),
            ("1e5", 1e5),
            ("1E-5", 1e-5),
            ("00012", 12.0),
            ("inf", f64::INFINITY),
            ("-Inf", f64::NEG_INFINITY),
            ("+INFINITY", f64::INFINITY),
            ("0x10", 16.0),
            ("0x1.8p1", 3.0),
            ("-0X.8", -0.5),
            ("0x1p-1074", 5e-324),
            ("0x1.fffffffffffffp1023", f64::MAX),
            ("4.9e-324", 5e-324),
            ("0e999999", 0.0),
            ("0x0p5", 0.0),
            ("0x1.", 1.0),
            ("-0", -0.0),
            ("0x1.00000000000008p0", 1.0),
            ("0x1.000000000000080000001p0", 1.0 + f64::EPSILON),
            ("0x1.00000000000018p0", 1.0 + 2.0 * f64::EPSILON),
        ];
        for (text, value) in good {
            assert_eq!(parse_f64(text.as_bytes()).map(f64::to_bits), Some(value.to_bits()), "{text}");
        }
        for text in [
            "",
            " 1",
            "1 ",
            "nan",
            "-nan",
            "nan(1)",
            "1e",
            "e5",
            ".",
            "+",
            "-",
            "1.2.3",
            "0x",
            "0xg",
            "0x1p",
            "0x1pz",
            "1e400",
            "-1e400",
            "1e-400",
            "0x1p1024",
            "0x1p-1080",
            "infin",
            "in",
            "1_0",
            "0x.p1",
            "--1",
            "+-1",
            "1e+",
            "\u{661}",
        ] {
            assert_eq!(parse_f64(text.as_bytes()), None, "{text}");
        }
    }

    fn shown(value: f64) -> String {
        let mut out = Vec::new();
        format_f64(value, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn doubles_are_shown_in_the_short_form() {
        let cases: &[(f64, &str)] = &[
            (3.0, "3"),
            (3.5, "3.5"),
            (-3.5, "-3.5"),
            (0.0, "0"),
            (-0.0, "-0"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
            (1e20, "1e+20"),
            (1.1e-7, "1.1e-7"),
            (0.1, "0.1"),
            (1e18, "1000000000000000000"),
            (4.6e18, "4600000000000000000"),
            (4.7e18, "4.7e+18"),
            (1e100, "1e+100"),
            (0.001, "0.001"),
            (0.000001, "0.000001"),
            (1e-7, "1e-7"),
            (1.5e-5, "0.000015"),
            (1.2345678e-5, "1.2345678e-5"),
            (123456789.125, "123456789.125"),
            (f64::MAX, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (1e22, "1e+22"),
            (1.2345e22, "1.2345e+22"),
            (12345678901234568000000.0, "12345678901234568000000"),
            (0.30000000000000004, "0.30000000000000004"),
            (1e-10, "1e-10"),
            (1.0e-310, "1e-310"),
        ];
        for (value, text) in cases {
            assert_eq!(shown(*value), *text);
        }
    }

    #[test]
    fn doubles_are_shown_as_a_real_server_shows_them() {
        let mut cases = 0;
        for line in include_str!("../tests/data/doubles.txt").lines().filter(|line| !line.starts_with('#')) {
            let (bits, text) = line.split_once('\t').unwrap();
            assert_eq!(shown(f64::from_bits(u64::from_str_radix(bits, 16).unwrap())), text, "{bits}");
            cases += 1;
        }
        assert!(cases > 500);
    }

    proptest! {
        #[test]
        fn any_integer_reads_back(value: i64) {
            prop_assert_eq!(parse_i64(value.to_string().as_bytes()), Some(value));
        }

        #[test]
        fn a_taken_integer_prints_as_it_came(text in "-?[0-9]{1,21}") {
            if let Some(value) = parse_i64(text.as_bytes()) {
                prop_assert_eq!(value.to_string(), text);
            }
        }

        #[test]
        fn any_double_reads_back(bits: u64) {
            let value = f64::from_bits(bits);
            prop_assume!(!value.is_nan());
            let text = shown(value);
            prop_assert!(text.len() <= 25);
            prop_assert_eq!(parse_f64(text.as_bytes()).map(f64::to_bits), Some(bits));
        }

        #[test]
        fn short_doubles_read_back(whole in -1_000_000_000i64..1_000_000_000, scale in 0u32..18) {
            let value = whole as f64 / 10f64.powi(scale as i32);
            prop_assert_eq!(parse_f64(shown(value).as_bytes()), Some(value));
        }

        #[test]
        fn the_short_way_and_the_long_way_agree(scaled in -1_000_000_000_000_000i64..1_000_000_000_000_000, shift in 0u32..45) {
            let value = (scaled >> shift) as f64 / 1e6;
            prop_assume!(value.fract() != 0.0);
            let (digits, count, exponent) = shortest_digits(ryu::Buffer::new().format_finite(value.abs()).as_bytes());
            let mut long_way = if value < 0.0 { b"-".to_vec() } else { Vec::new() };
            lay_out(&digits[..count], exponent, &mut long_way);
            prop_assert_eq!(shown(value).into_bytes(), long_way);
        }

        #[test]
        fn hexadecimal_doubles_are_exact(bits: u64) {
            let value = f64::from_bits(bits & !(1 << 63));
            prop_assume!(value.is_finite() && value != 0.0);
            let (mantissa, exponent) = match value.to_bits() >> 52 {
                0 => (value.to_bits(), -1074),
                biased => (value.to_bits() & ((1 << 52) - 1) | 1 << 52, biased as i64 - 1075),
            };
            let text = format!("0x{mantissa:x}p{exponent}");
            prop_assert_eq!(parse_f64(text.as_bytes()), Some(value), "{}", text);
        }

        #[test]
        fn any_bytes_are_read_without_panic(text: Vec<u8>) {
            let _ = (parse_i64(&text), parse_u64(&text), parse_f64(&text));
        }
    }
}
