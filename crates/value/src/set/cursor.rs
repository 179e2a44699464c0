//! Cursors of SSCAN, which mean the same in every form of a set.
//!
//! ```text
//! 0 .. 2^52              texts from that place of the trie on (the place is the cursor's upper bits of a hash)
//! 2^52 + code            integers from that value on; below 2^53, so exact where numbers are doubles
//!
//! code   2^49 steps of 2^14 values below -2^50, each value of -2^50..2^50, 2^49 steps of 2^14 values above
//! ```
//!
//! A cursor is the first place not visited yet. So an element present from the first step to the last is
//! visited by the step that passes it. Other elements may come, go or change form. A step of 2^14 values is
//! visited at once.

use super::Set;
use crate::elem::Elem;
use crate::ints::{Ints, signed};

/// Cursors from here on are codes of integers.
const INTEGERS: u64 = 1 << 52;
/// Distance from zero up to which each value has its own code.
const EXACT: i64 = 1 << 50;
const STEP: u32 = 14;
/// Number of codes below those of single values.
const LOW: u64 = (1 << 49) - (1 << 36);
const SINGLE: u64 = 2 << 50;

/// The code of the step an integer is in.
fn code(n: i64) -> u64 {
    match n {
        ..EXACT if n >= -EXACT => LOW + (n + EXACT) as u64,
        ..0 => (n.wrapping_sub(i64::MIN) as u64) >> STEP,
        _ => LOW + SINGLE + ((n - EXACT) as u64 >> STEP),
    }
}

/// The first integer of a step. For invalid codes, the largest integer.
fn first(code: u64) -> i64 {
    match code {
        ..LOW => i64::MIN.wrapping_add((code << STEP) as i64),
        _ if code - LOW < SINGLE => (code - LOW) as i64 - EXACT,
        _ if code - LOW - SINGLE < LOW => EXACT + ((code - LOW - SINGLE) << STEP) as i64,
        _ => i64::MAX,
    }
}

/// One step of SSCAN. See [`Set::scan`].
pub(super) fn scan(set: &Set, cursor: u64, count: usize, f: &mut dyn FnMut(Elem<'_>)) -> u64 {
    let Some(ints) = set.ints() else { return set.members.scan(cursor, count, f) };
    let mut visited = 0;
    if cursor < INTEGERS {
        let next = set.members.scan(cursor, count, &mut |elem| {
            visited += 1;
            f(elem);
        });
        if next != 0 || ints.is_empty() {
            return next;
        }
        if visited >= count {
            return INTEGERS;
        }
    }
    scan_ints(ints, cursor.saturating_sub(INTEGERS), count.max(1) - visited, f)
}

fn scan_ints(ints: &Ints, from: u64, count: usize, f: &mut dyn FnMut(Elem<'_>)) -> u64 {
    let (mut visited, mut last) = (0, None);
    for n in ints.iter_from(signed::key(first(from))).map(signed::value) {
        let code = code(n);
        if visited >= count && last != Some(code) {
            return INTEGERS + code;
        }
        f(Elem::Int(n));
        visited += 1;
        last = Some(code);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_with_values_and_lead_back_to_their_steps() {
        let edges = [i64::MIN, -EXACT, -1 << 14, 0, 1 << 14, EXACT, i64::MAX];
        let mut numbers: Vec<i64> =
            edges.iter().flat_map(|&n| (-3..=3).map(move |d| n.saturating_add(d))).collect();
        numbers.extend((0..62).map(|bit| 1 << bit));
        numbers.sort_unstable();
        let codes: Vec<u64> = numbers.iter().map(|&n| code(n)).collect();
        assert!(codes.is_sorted());
        for (&n, &code_of) in numbers.iter().zip(&codes) {
            let start = first(code_of);
            assert!(start <= n && n - start < 1 << STEP && code(start) == code_of, "{n}");
            assert!(code_of < INTEGERS);
            if n.unsigned_abs() < EXACT as u64 {
                assert_eq!(start, n);
            }
        }
        assert_eq!(first(u64::MAX >> 1), i64::MAX);
    }
}
