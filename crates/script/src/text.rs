//! Numbers as text, in the forms that Lua programs see.

/// Appends `value` as C's `%.{precision}g` prints it.
pub(crate) fn write_general(value: f64, precision: usize, out: &mut Vec<u8>) {
    if value.is_nan() {
        out.extend_from_slice(if value.is_sign_negative() { b"-nan" } else { b"nan" });
        return;
    }
    if value.is_infinite() {
        out.extend_from_slice(if value < 0.0 { b"-inf" } else { b"inf" });
        return;
    }
    let precision = precision.max(1);
    // The digits fit into the precision, so nothing is rounded.
    if let Some(whole) = exact_integer(value)
        && 10u64.checked_pow(precision as u32).is_none_or(|bound| whole.unsigned_abs() < bound)
    {
        write_int(whole, out);
        return;
    }
    let mut scientific = Fixed::default();
    let _ = std::fmt::Write::write_fmt(&mut scientific, format_args!("{:.*e}", precision - 1, value));
    let text = scientific.bytes();
    let e = memchr::memchr(b'e', text).unwrap_or(text.len());
    let exponent: i32 = std::str::from_utf8(text.get(e + 1..).unwrap_or_default())
        .ok()
        .and_then(|t| t.parse().ok())
        .unwrap_or(0);
    let (negative, mantissa) = match text.first() {
        Some(b'-') => (true, &text[1..e]),
        _ => (false, &text[..e]),
    };
    if negative {
        out.push(b'-');
    }
    let mut digits: smallvec::SmallVec<[u8; 32]> = mantissa.iter().copied().filter(|&c| c != b'.').collect();
    while digits.len() > 1 && digits.last() == Some(&b'0') {
        digits.pop();
    }
    write_digits(&digits, exponent, precision, out);
}

/// Appends `0.ddd · 10^(exponent + 1)`, of at least one digit: with an exponent where `%g` has one.
#[inline]
fn write_digits(digits: &[u8], exponent: i32, precision: usize, out: &mut Vec<u8>) {
    if exponent < -4 || exponent >= precision as i32 {
        out.push(digits[0]);
        if digits.len() > 1 {
            out.push(b'.');
            out.extend_from_slice(&digits[1..]);
        }
        out.push(b'e');
        out.push(if exponent < 0 { b'-' } else { b'+' });
        let magnitude = exponent.unsigned_abs();
        if magnitude < 10 {
            out.push(b'0');
        }
        out.extend_from_slice(itoa::Buffer::new().format(magnitude).as_bytes());
    } else if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.resize(out.len() + (-exponent - 1) as usize, b'0');
        out.extend_from_slice(digits);
    } else {
        let whole = exponent as usize + 1;
        for i in 0..whole {
            out.push(digits.get(i).copied().unwrap_or(b'0'));
        }
        if digits.len() > whole {
            out.push(b'.');
            out.extend_from_slice(&digits[whole..]);
        }
    }
}

/// The integer that `value` exactly is, within ±2^52 (where every integer is a double). Minus zero is none.
pub(crate) fn exact_integer(value: f64) -> Option<i64> {
    const BOUND: f64 = (1u64 << 52) as f64;
    ((-BOUND..=BOUND).contains(&value)
        && value == value.trunc()
        && (value != 0.0 || value.is_sign_positive()))
    .then_some(value as i64)
}

/// Appends a decimal integer.
#[inline]
pub(crate) fn write_int(value: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// C's `(long long)` of a double. A value that does not fit becomes the smallest integer, as on x86.
pub(crate) fn cut(value: f64) -> i64 {
    if value >= 9_223_372_036_854_775_808.0 || value.is_nan() { i64::MIN } else { value as i64 }
}

#[derive(Default)]
struct Fixed {
    bytes: smallvec::SmallVec<[u8; 64]>,
}

impl Fixed {
    fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

impl std::fmt::Write for Fixed {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }
}
