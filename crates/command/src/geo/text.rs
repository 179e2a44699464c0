//! Numbers as geographic replies show them.

use resp::Reply;

/// Writes a distance with four digits behind the point, a half rounded to the even digit.
pub(super) fn write_distance(out: &mut Reply, distance: f64) {
    let scaled = (distance * 10_000.0).round_ties_even();
    // A distance that is no number is the lowest of all.
    let scaled = if scaled.is_nan() { i64::MIN } else { scaled as i64 };
    let sign = if scaled < 0 { "-" } else { "" };
    let digits = scaled.unsigned_abs();
    out.bulk(format!("{sign}{}.{:04}", digits / 10_000, digits % 10_000).as_bytes());
}

/// Writes a coordinate with up to 17 digits behind the point. (RESP3: as a double.)
pub(super) fn write_coordinate(out: &mut Reply, degrees: f64) {
    out.double_text(&plain(degrees));
}

/// The exact decimal digits of a number below 1000, rounded to 17 behind the point, without zeros at the end.
fn plain(value: f64) -> String {
    const SCALE: u128 = 100_000_000_000_000_000;
    let bits = value.to_bits();
    let sign = if value < 0.0 { "-" } else { "" };
    let (exponent, mantissa) = ((bits >> 52 & 0x7ff) as i32, u128::from(bits & ((1 << 52) - 1) | 1 << 52));
    // The value is mantissa / 2^shift.
    let shift = 1075 - exponent;
    debug_assert!(shift > 42, "below 1000");
    // So small a number has 17 zeros: 2^53 * 10^17 is below 2^110.
    if shift >= 112 {
        return "0".to_owned();
    }
    let scaled = mantissa * SCALE;
    let (whole, rest, half) = (scaled >> shift, scaled & ((1 << shift) - 1), 1 << (shift - 1));
    let digits = whole + u128::from(rest > half || rest == half && whole & 1 == 1);
    let text = format!("{sign}{}.{:017}", digits / SCALE, digits % SCALE);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_have_all_their_digits() {
        for (value, text) in [
            (13.361_389_338_970_184, "13.36138933897018433"),
            (85.05112878, "85.0511287799999991"),
            (180.0, "180"),
            (0.0, "0"),
            (-0.5, "-0.5"),
            (-179.999_997_317_790_99, "-179.99999731779098511"),
        ] {
            assert_eq!(plain(value), text);
        }
    }

    #[test]
    fn digits_are_those_of_the_standard_library() {
        for i in 1..20_000u32 {
            let value = f64::from(i) * std::f64::consts::E.powi(i as i32 % 40 - 35) % 181.0;
            let expected = format!("{value:.17}");
            let expected = expected.trim_end_matches('0').trim_end_matches('.');
            assert_eq!(plain(value), expected, "{value:e}");
        }
    }

    #[test]
    fn distances_have_four_digits() {
        for (value, text) in [
            (0.0, "0.0000"),
            (166_274.151_56, "166274.1516"),
            (0.000_04, "0.0000"),
            (0.000_06, "0.0001"),
            (9.999_96, "10.0000"),
        ] {
            let mut out = Reply::new(false);
            write_distance(&mut out, value);
            assert_eq!(out.as_bytes(), format!("${}\r\n{text}\r\n", text.len()).as_bytes());
        }
    }
}
