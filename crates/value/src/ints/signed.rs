//! Signed integers as unsigned ones in the same order: the sign bit is inverted.

/// The key of a signed integer.
#[inline]
pub const fn key(n: i64) -> u64 {
    n as u64 ^ 1 << 63
}

/// The integer of a key.
#[inline]
pub const fn value(key: u64) -> i64 {
    (key ^ 1 << 63) as i64
}
