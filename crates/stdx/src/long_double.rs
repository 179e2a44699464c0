//! Sums of decimal texts in the precision that clients of INCRBYFLOAT rely on.
//!
//! Adding `0.1` to `3.0` must give `3.1`, not `3.10000000000000009`. C servers use the 80-bit `long double`
//! of x86-64, printed with 17 decimals. This does the same arithmetic in integers, so every machine gives the
//! same digits: 64 bits of mantissa, each step rounded once to nearest even.
//!
//! ```text
//! value = (-1)^negative * mantissa * 2^exponent      mantissa = 0, or its top bit is set
//! ```
//!
//! There are two differences from the hardware, which no printed sum shows. Values below 10^-45 count as zero
//! (17 decimals never show them), and there is no negative zero.
//!
//! Cost: tens of nanoseconds for numbers of usual size; O(digits²) in words of 19 digits beyond that, below a
//! millisecond due to [`TEXT_MAX`]. Digits are checked against recorded answers of a real server
//! (`tests/data/incrbyfloat.txt`).

use crate::num::{exponent_digits, hex_parts};

/// The longest text accepted, in bytes.
pub const TEXT_MAX: usize = 5 * 1024 - 1;
/// Decimals printed.
const DECIMALS: u32 = 17;
const DECIMALS_SCALE: u128 = 10u128.pow(DECIMALS);
/// All finite values are below `2^EXPONENT_END`.
const EXPONENT_END: i64 = 16384;
/// Decimal exponents of the leading digit. Above the first everything is infinite, below the last everything
/// is zero, and below the middle one nothing is visible.
const DECIMAL_OVERFLOW: i64 = 4933;
const DECIMAL_INVISIBLE: i64 = -45;
const DECIMAL_UNDERFLOW: i64 = -4951;
/// The least power of two that does not round to zero.
const BINARY_UNDERFLOW: i64 = -16446;

/// A number with 64 significant bits, or infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongDouble {
    infinite: bool,
    negative: bool,
    mantissa: u64,
    exponent: i64,
}

impl LongDouble {
    const ZERO: LongDouble = LongDouble { infinite: false, negative: false, mantissa: 0, exponent: 0 };

    /// Parses `text` as [`crate::num::parse_f64`] does, with a wider range and precision.
    pub fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.len() > TEXT_MAX {
            return None;
        }
        let (unsigned, negative) = match text {
            [b'-', rest @ ..] => (rest, true),
            [b'+', rest @ ..] => (rest, false),
            rest => (rest, false),
        };
        let magnitude = match unsigned {
            [b'0', b'x' | b'X', rest @ ..] => parse_hex(rest)?,
            [b'0'..=b'9' | b'.', ..] => parse_decimal(unsigned)?,
            word if word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"infinity") => {
                LongDouble { infinite: true, ..LongDouble::ZERO }
            }
            _ => return None,
        };
        Some(LongDouble { negative, ..magnitude })
    }

    pub fn is_finite(&self) -> bool {
        !self.infinite
    }

    /// Appends the number with 17 decimals, without trailing zeros: `3.1`, `-0.5`, `5200`, `0`. Infinity is
    /// `inf`.
    pub fn format(&self, out: &mut Vec<u8>) {
        if self.infinite {
            return out.extend_from_slice(if self.negative { b"-inf" } else { b"inf" });
        }
        if self.exponent >= 0 {
            self.sign(out);
            Big::from(u128::from(self.mantissa)).shifted_left(self.exponent as usize).format(out);
            return;
        }
        let shift = -self.exponent;
        let (mut whole, fraction) = match shift {
            0..64 => (self.mantissa >> shift, self.mantissa & ((1 << shift) - 1)),
            _ => (0, self.mantissa),
        };
        let mut decimals = 0;
        if shift < 128 {
            let scaled = u128::from(fraction) * DECIMALS_SCALE;
            decimals = round_half_even(scaled, shift as u32, false);
        }
        if decimals == DECIMALS_SCALE {
            (whole, decimals) = (whole + 1, 0);
        }
        if whole == 0 && decimals == 0 {
            return out.push(b'0');
        }
        self.sign(out);
        out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
        if decimals != 0 {
            let text = format!(".{decimals:017}");
            out.extend_from_slice(text.trim_end_matches('0').as_bytes());
        }
    }

    fn sign(&self, out: &mut Vec<u8>) {
        if self.negative && self.mantissa != 0 {
            out.push(b'-');
        }
    }

    /// `value * 2^exponent`, rounded. `sticky`: the true value is a little more.
    fn rounded(value: u128, sticky: bool, exponent: i64) -> LongDouble {
        if value == 0 {
            return LongDouble::ZERO;
        }
        let bits = 128 - value.leading_zeros();
        let (mantissa, exponent) = if bits <= 64 {
            // A caller with a sticky bit passes more than 64 bits.
            debug_assert!(!sticky);
            ((value as u64) << (64 - bits), exponent - i64::from(64 - bits))
        } else {
            let drop = bits - 64;
            match round_half_even(value, drop, sticky) {
                carried if carried >> 64 != 0 => (1 << 63, exponent + i64::from(drop) + 1),
                kept => (kept as u64, exponent + i64::from(drop)),
            }
        };
        LongDouble { infinite: exponent + 64 > EXPONENT_END, negative: false, mantissa, exponent }
    }
}

impl std::ops::Add for LongDouble {
    type Output = LongDouble;

    /// The sum, rounded once; infinite if either term is. There is no NaN: ask `is_finite`.
    fn add(self, other: LongDouble) -> LongDouble {
        if self.infinite || other.infinite {
            return LongDouble { infinite: true, ..if self.infinite { self } else { other } };
        }
        if self.mantissa == 0 || other.mantissa == 0 {
            return if self.mantissa == 0 { other } else { self };
        }
        let larger_first = (self.exponent, self.mantissa) >= (other.exponent, other.mantissa);
        let (large, small) = if larger_first { (self, other) } else { (other, self) };
        // 63 bits below the large mantissa hold every bit of the small one that can matter, except its last
        // bits.
        let distance = large.exponent - small.exponent;
        let (a, b) = (u128::from(large.mantissa) << 63, u128::from(small.mantissa) << 63);
        let (b, sticky) =
            if distance < 128 { (b >> distance, b >> distance << distance != b) } else { (0, true) };
        let sum = if large.negative == small.negative { a + b } else { a - b - u128::from(sticky) };
        LongDouble { negative: large.negative, ..LongDouble::rounded(sum, sticky, large.exponent - 63) }
    }
}

/// `value / 2^drop` to nearest even, `0 < drop < 128`.
fn round_half_even(value: u128, drop: u32, sticky: bool) -> u128 {
    let (kept, lost) = (value >> drop, value & ((1 << drop) - 1));
    let half = 1u128 << (drop - 1);
    let up = lost > half || (lost == half && (sticky || kept & 1 == 1));
    kept + u128::from(up)
}

fn parse_hex(text: &[u8]) -> Option<LongDouble> {
    let (mantissa, sticky, exponent) = hex_parts(text)?;
    if mantissa == 0 {
        return Some(LongDouble::ZERO);
    }
    let top = 128 - i64::from(mantissa.leading_zeros()) + exponent;
    if !(BINARY_UNDERFLOW..=EXPONENT_END).contains(&top) {
        return None;
    }
    let value = LongDouble::rounded(mantissa, sticky, exponent);
    value.is_finite().then_some(value)
}

/// Parses a decimal. `text` starts with a digit or a point.
fn parse_decimal(text: &[u8]) -> Option<LongDouble> {
    let (digits, mut exponent) = match text.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&text[..at], exponent_digits(&text[at + 1..])?),
        None => (text, 0),
    };
    let (mut value, mut significant, mut seen_point, mut seen_digit) = (Big::default(), 0i64, false, false);
    for &byte in digits {
        match byte {
            b'.' if !seen_point => seen_point = true,
            b'0'..=b'9' => {
                seen_digit = true;
                exponent -= i64::from(seen_point);
                significant += i64::from(significant > 0 || byte != b'0');
                value.push_digit(byte - b'0');
            }
            _ => return None,
        }
    }
    let value = value.finish();
    // The exponent of the leading digit decides whether there is anything to compute.
    match significant + exponent - 1 {
        _ if !seen_digit => None,
        _ if significant == 0 => Some(LongDouble::ZERO),
        top if !(DECIMAL_UNDERFLOW..=DECIMAL_OVERFLOW).contains(&top) => None,
        top if top < DECIMAL_INVISIBLE => Some(LongDouble::ZERO),
        _ => Some(value.times_power_of_ten(exponent)).filter(LongDouble::is_finite),
    }
}

/// A natural number of any size: 64-bit limbs, lowest first, without a zero limb at the end.
#[derive(Default)]
struct Big {
    limbs: Vec<u64>,
    /// Decimal digits that are read but not yet multiplied in, and ten to their number.
    pending: (u64, u64),
}

impl From<u128> for Big {
    fn from(value: u128) -> Big {
        let mut big = Big { limbs: vec![value as u64, (value >> 64) as u64], ..Big::default() };
        big.trim();
        big
    }
}

impl Big {
    /// Appends a decimal digit.
    fn push_digit(&mut self, digit: u8) {
        let (value, scale) = self.pending;
        self.pending = (value * 10 + u64::from(digit), scale.max(1) * 10);
        if self.pending.1 == 10u64.pow(19) {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let (value, scale) = std::mem::take(&mut self.pending);
        if scale > 1 {
            self.multiply_add(scale, value);
        }
    }

    fn finish(mut self) -> Big {
        self.flush();
        self
    }

    fn multiply_add(&mut self, factor: u64, addend: u64) {
        let mut carry = addend;
        for limb in &mut self.limbs {
            let product = u128::from(*limb) * u128::from(factor) + u128::from(carry);
            (*limb, carry) = (product as u64, (product >> 64) as u64);
        }
        self.limbs.push(carry);
        self.trim();
    }

    /// Divides in place and returns the remainder.
    fn divide(&mut self, divisor: u64) -> u64 {
        let mut rest = 0u64;
        for limb in self.limbs.iter_mut().rev() {
            let value = u128::from(rest) << 64 | u128::from(*limb);
            (*limb, rest) = ((value / u128::from(divisor)) as u64, (value % u128::from(divisor)) as u64);
        }
        self.trim();
        rest
    }

    fn trim(&mut self) {
        while self.limbs.last() == Some(&0) {
            self.limbs.pop();
        }
    }

    fn bits(&self) -> usize {
        self.limbs.last().map_or(0, |top| self.limbs.len() * 64 - top.leading_zeros() as usize)
    }

    fn shifted_left(&self, by: usize) -> Big {
        let (whole, part) = (by / 64, by % 64);
        let mut limbs = vec![0; whole];
        let mut carry = 0;
        for &limb in &self.limbs {
            limbs.push(limb << part | carry);
            carry = if part == 0 { 0 } else { limb >> (64 - part) };
        }
        limbs.push(carry);
        let mut big = Big { limbs, ..Big::default() };
        big.trim();
        big
    }

    /// `self * 10^exponent`, rounded. Since `10^n = 5^n * 2^n`, only the fives need work.
    fn times_power_of_ten(self, exponent: i64) -> LongDouble {
        const FIVES: u64 = 27;
        let fives = exponent.unsigned_abs();
        let steps = std::iter::repeat_n(FIVES, (fives / FIVES) as usize).chain([fives % FIVES]);
        let powers = steps.map(|step| 5u64.pow(step as u32));
        if exponent >= 0 {
            let mut value = self;
            powers.for_each(|power| value.multiply_add(power, 0));
            return value.rounded(false, exponent);
        }
        // Enough bits that at least 65 are left after the division. 5^n has fewer than 7n/3 + 1 bits.
        let shift = (67 + fives as usize * 7 / 3 + 1).saturating_sub(self.bits());
        let mut value = self.shifted_left(shift);
        let mut sticky = false;
        powers.for_each(|power| sticky |= value.divide(power) != 0);
        value.rounded(sticky, exponent - shift as i64)
    }

    /// `self * 2^exponent`, rounded.
    fn rounded(&self, sticky: bool, exponent: i64) -> LongDouble {
        let count = self.limbs.len();
        let limb = |i: usize| u128::from(self.limbs.get(i).copied().unwrap_or(0));
        if count <= 2 {
            return LongDouble::rounded(limb(1) << 64 | limb(0), sticky, exponent);
        }
        // The top 128 bits. The rest goes into the sticky bit.
        let drop = self.bits() - 128;
        let (whole, part) = (drop / 64, drop % 64);
        let window = |i: usize| {
            if part == 0 {
                limb(i)
            } else {
                (limb(i) >> part) | (limb(i + 1) << (64 - part)) & u128::from(u64::MAX)
            }
        };
        let top = window(whole + 1) << 64 | window(whole);
        let lost = self.limbs[..whole].iter().any(|&limb| limb != 0) || limb(whole) & ((1 << part) - 1) != 0;
        LongDouble::rounded(top, sticky || lost, exponent + drop as i64)
    }

    fn format(mut self, out: &mut Vec<u8>) {
        const CHUNK: u64 = 10u64.pow(19);
        let mut chunks = Vec::new();
        while !self.limbs.is_empty() {
            chunks.push(self.divide(CHUNK));
        }
        let mut text = itoa::Buffer::new();
        out.extend_from_slice(text.format(chunks.pop().unwrap_or(0)).as_bytes());
        for chunk in chunks.into_iter().rev() {
            out.extend_from_slice(format!("{chunk:019}").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(a: &str, b: &str) -> Option<String> {
        let sum = LongDouble::parse(a.as_bytes())? + LongDouble::parse(b.as_bytes())?;
        let mut out = Vec::new();
        sum.format(&mut out);
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn sums_are_those_of_a_real_server() {
        let mut cases = 0;
        for line in
            include_str!("../tests/data/incrbyfloat.txt").lines().filter(|line| !line.starts_with('#'))
        {
            let fields: Vec<&str> = line.split('\t').collect();
            let [a, b, expect] = fields[..] else { panic!("three fields: {line}") };
            assert_eq!(sum(a, b).as_deref(), Some(expect), "{line}");
            cases += 1;
        }
        assert!(cases > 500);
    }

    #[test]
    fn corners_are_those_of_a_real_server() {
        for (a, b, expect) in [
            ("3.0", "0.1", "3.1"),
            ("0", "1e-17", "0.00000000000000001"),
            ("0", "5e-18", "0"),
            ("-0", "-0", "0"),
            ("0x10", "1", "17"),
            ("1", "0x1p-3", "1.125"),
            ("17179869184", "1.5", "17179869185.5"),
            ("0.1", "0.2", "0.3"),
            ("1e17", "0.1", "100000000000000000.1015625"),
            ("9223372036854775807", "0.5", "9223372036854775807.5"),
            ("1", "+5", "6"),
            ("1", ".5", "1.5"),
            ("-3", "3", "0"),
            ("1", "1e-60", "1"),
            ("1", "-1e-4950", "1"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(expect), "{a} + {b}");
        }
        for text in [
            "nan",
            " 1",
            "1 ",
            "",
            "1e-5000",
            "1e5000",
            "1e",
            ".",
            "1.2.3",
            "0x",
            "1e4933",
            "0x1p16384",
            "0x1p-16500",
        ] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(sum("inf", "1").as_deref(), Some("inf"));
        assert!(!(LongDouble::parse(b"1e4932").unwrap() + LongDouble::parse(b"1e4932").unwrap()).is_finite());
        let huge = sum("1e4931", "1").unwrap();
        assert!(huge.starts_with("1000000000000000000006018949387963891323") && huge.len() == 4932);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(text: Vec<u8>) {
            let _ = LongDouble::parse(&text);
        }

        #[test]
        fn numbers_of_any_form_add_without_panic(
            a in "[-+]?[0-9]{0,60}\\.?[0-9]{0,60}(e[-+]?[0-9]{1,4})?",
            b in "[-+]?(0x)?[0-9a-f]{0,40}\\.?[0-9a-f]{0,9}(p[-+]?[0-9]{1,5})?",
        ) {
            let _ = sum(&a, &b);
        }

        #[test]
        fn integers_add_exactly(a in -(1i64 << 62)..(1 << 62), b in -(1i64 << 62)..(1 << 62)) {
            prop_assert_eq!(sum(&a.to_string(), &b.to_string()), Some((a + b).to_string()));
        }

        #[test]
        fn decimals_add_as_people_expect(a in -310_000i64..310_000, b in -310_000i64..310_000) {
            let text = |n: i64| format!("{}{}.{:04}", if n < 0 { "-" } else { "" }, n.abs() / 10_000, n.abs() % 10_000);
            let expect = text(a + b);
            let expect = expect.trim_end_matches('0').trim_end_matches('.');
            prop_assert_eq!(sum(&text(a), &text(b)), Some(if expect == "-0" { "0" } else { expect }.to_string()));
        }

        #[test]
        fn addition_commutes(a in "-?[0-9]{1,30}(\\.[0-9]{1,30})?", b in "-?[0-9]{1,30}(\\.[0-9]{1,30})?") {
            prop_assert_eq!(sum(&a, &b), sum(&b, &a));
        }
    }
}
