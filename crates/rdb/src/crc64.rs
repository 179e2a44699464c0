//! CRC-64 as in Redis: polynomial ad93d23594c935a9 (Jones), reflected, starting at 0, without final
//! inversion.
//!
//! Eight bytes are summed at once with eight tables: table `n` is the effect of a byte with `n` zero bytes
//! behind it.

/// The polynomial with its bits reversed, as a reflected sum needs it.
const POLYNOMIAL: u64 = 0xad93_d235_94c9_35a9_u64.reverse_bits();

static TABLES: [[u64; 256]; 8] = tables();

const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = tables[0][(before & 0xff) as usize] ^ (before >> 8);
            byte += 1;
        }
        n += 1;
    }
    tables
}

/// Continues from the sum of earlier bytes; `crc64(0, all)` is the sum of all. About a nanosecond per byte.
pub fn crc64(sum: u64, bytes: &[u8]) -> u64 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let sum = eights.iter().fold(sum, |sum, eight| {
        let mixed = sum ^ u64::from_le_bytes(*eight);
        mixed.to_le_bytes().iter().enumerate().fold(0, |s, (i, b)| s ^ TABLES[7 - i][usize::from(*b)])
    });
    rest.iter().fold(sum, |sum, b| TABLES[0][usize::from(sum as u8 ^ b)] ^ (sum >> 8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit.
    fn naive(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0, |sum, byte| {
            (0..8)
                .fold(sum ^ u64::from(*byte), |s, _| if s & 1 == 1 { (s >> 1) ^ POLYNOMIAL } else { s >> 1 })
        })
    }

    #[test]
    fn the_sum_of_the_digits_is_the_published_one() {
        assert_eq!(crc64(0, b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        assert_eq!(crc64(0, b""), 0);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_two_parts_have_the_naive_sum(bytes: Vec<u8>, cut: usize) {
            let (one, two) = bytes.split_at(cut.checked_rem(bytes.len() + 1).unwrap_or(0));
            prop_assert_eq!(crc64(crc64(0, one), two), naive(&bytes));
        }
    }
}
