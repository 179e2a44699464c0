//! The sparse form of registers: runs of equal registers, in their order.
//!
//! ```text
//! 00llllll            ZERO   l+1 (1..=64) registers of 0
//! 01llllll llllllll   XZERO  l+1 (1..=16384) registers of 0
//! 1vvvvvll            VAL    l+1 (1..=4) registers of v+1 (1..=32)
//! ```
//!
//! Cost: a look or a change passes over the runs in front, about a nanosecond for each.

use super::sketch::REGISTERS;
use stdx::progress::further;

/// The highest rank a run can have.
const RANK_MAX: u8 = 32;
/// The longest run of a ZERO, and of a VAL.
const ZERO_MAX: usize = 64;
const VALUE_MAX: usize = 4;
/// Bytes of the longest sparse form: each register as an XZERO of its own.
pub(crate) const BYTES_MAX: usize = 2 * REGISTERS;

/// A run of equal registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub rank: u8,
    pub len: usize,
    /// Its number of bytes.
    pub bytes: usize,
}

/// The run that begins at `at`. None: the bytes end there, or in the middle of it.
pub(crate) fn span(bytes: &[u8], at: usize) -> Option<Span> {
    let first = *bytes.get(at)?;
    Some(match first >> 6 {
        0 => Span { rank: 0, len: usize::from(first & 0x3f) + 1, bytes: 1 },
        1 => {
            let second = *bytes.get(at + 1)?;
            Span { rank: 0, len: (usize::from(first & 0x3f) << 8 | usize::from(second)) + 1, bytes: 2 }
        }
        _ => Span { rank: (first >> 2 & 0x1f) + 1, len: usize::from(first & 3) + 1, bytes: 1 },
    })
}

/// The runs up to the end, or to a run that is cut off.
pub(crate) fn spans(bytes: &[u8]) -> impl Iterator<Item = Span> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let span = span(bytes, at)?;
        at += span.bytes;
        Some(span)
    })
}

/// Whether the runs are whole and make up all registers, none beyond. O(bytes), at most [`BYTES_MAX`].
pub(crate) fn is_whole(bytes: &[u8]) -> bool {
    if bytes.len() > BYTES_MAX {
        return false;
    }
    let (len, used) = spans(bytes).fold((0, 0), |(len, used), span| (len + span.len, used + span.bytes));
    len == REGISTERS && used == bytes.len()
}

/// The sparse form of registers that are all 0.
pub(crate) fn empty() -> [u8; 2] {
    zeros(REGISTERS).0
}

/// A run of zeros in its shortest form, and its number of bytes.
fn zeros(len: usize) -> ([u8; 2], usize) {
    let code = len - 1;
    if len <= ZERO_MAX { ([code as u8, 0], 1) } else { ([0x40 | (code >> 8) as u8, code as u8], 2) }
}

fn value(rank: u8, len: usize) -> u8 {
    0x80 | (rank - 1) << 2 | (len - 1) as u8
}

/// A place to search from: the start of a run, its first register, and the start of the run before.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hint {
    at: usize,
    first: usize,
    before: Option<usize>,
}

/// The outcome for a register that was to be raised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Raised {
    No,
    Yes,
    /// The change does not fit into this form.
    TooLarge,
}

/// Raises a register to a rank, in the sparse form from `base` on in `bytes`, which is whole. `hint` is where
/// to search from, and is moved on; registers come in ascending order, or with a fresh hint. A change that
/// makes `bytes` longer than `limit` is not made. O(bytes behind the hint).
pub(crate) fn raise(
    bytes: &mut Vec<u8>,
    base: usize,
    hint: &mut Hint,
    (register, rank): (usize, u8),
    limit: usize,
) -> Raised {
    if rank > RANK_MAX {
        return Raised::TooLarge;
    }
    let mut here = Hint { at: hint.at.max(base), ..*hint };
    let mut last = here;
    let found = loop {
        let Some(span) = span(bytes, here.at) else { return Raised::No };
        if register < here.first + span.len {
            break span;
        }
        last = here;
        let at = further(here.at, here.at + span.bytes);
        here = Hint { at, first: here.first + span.len, before: Some(here.at) };
    };
    *hint = last;
    if found.rank >= rank {
        return Raised::No;
    }
    let (new, len) = replacement(found, register - here.first, rank);
    if len > found.bytes && bytes.len() + len - found.bytes > limit {
        return Raised::TooLarge;
    }
    bytes.splice(here.at..here.at + found.bytes, new[..len].iter().copied());
    join(bytes, here.before.unwrap_or(base));
    Raised::Yes
}

/// The runs that take a run's place when its register `at` gets a rank, and their number of bytes.
fn replacement(old: Span, at: usize, rank: u8) -> ([u8; 5], usize) {
    let (mut new, mut used) = ([0; 5], 0);
    let rest = |len: usize, used: &mut usize, new: &mut [u8; 5]| {
        if len == 0 {
            return;
        }
        if old.rank > 0 {
            new[*used] = value(old.rank, len);
            *used += 1;
        } else {
            let (code, bytes) = zeros(len);
            new[*used..*used + bytes].copy_from_slice(&code[..bytes]);
            *used += bytes;
        }
    };
    rest(at, &mut used, &mut new);
    new[used] = value(rank, 1);
    used += 1;
    rest(old.len - at - 1, &mut used, &mut new);
    (new, used)
}

/// Joins equal neighbours among the five runs from `at` on, where a VAL can hold both.
fn join(bytes: &mut Vec<u8>, mut at: usize) {
    for _ in 0..5 {
        let Some(left) = span(bytes, at) else { return };
        let right = span(bytes, at + left.bytes);
        match right {
            Some(right) if left.rank > 0 && left.rank == right.rank && left.len + right.len <= VALUE_MAX => {
                bytes[at + 1] = value(left.rank, left.len + right.len);
                bytes.remove(at);
            }
            _ => at += left.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn registers(bytes: &[u8]) -> Vec<u8> {
        spans(bytes).flat_map(|span| std::iter::repeat_n(span.rank, span.len)).collect()
    }

    proptest! {
        #[test]
        fn raised_registers_are_those_of_an_array(
            raises in prop::collection::vec((0usize..200, 1u8..=33), 1..300),
            spread in 1usize..80,
        ) {
            let mut bytes = empty().to_vec();
            let mut model = vec![0u8; REGISTERS];
            for (register, rank) in raises {
                let at = register * spread % REGISTERS;
                let raised = raise(&mut bytes, 0, &mut Hint::default(), (at, rank), 3000);
                let expect = if rank > 32 { Raised::TooLarge }
                    else if model[at] < rank { Raised::Yes } else { Raised::No };
                prop_assert_eq!(raised, expect);
                if expect == Raised::Yes {
                    model[at] = rank;
                }
                prop_assert!(is_whole(&bytes));
            }
            prop_assert_eq!(registers(&bytes), model);
        }

        /// A hint changes the way to a register, not the bytes.
        #[test]
        fn hints_change_nothing(ranks in prop::collection::vec(0u8..4, 0..400), old in prop::collection::vec(0u8..4, 0..400)) {
            let mut slow = empty().to_vec();
            for (at, rank) in old.iter().enumerate().filter(|(_, rank)| **rank > 0) {
                raise(&mut slow, 0, &mut Hint::default(), (at * 3, *rank), 3000);
            }
            let mut quick = slow.clone();
            let mut hint = Hint::default();
            for (at, rank) in ranks.iter().enumerate().filter(|(_, rank)| **rank > 0) {
                raise(&mut slow, 0, &mut Hint::default(), (at * 2, *rank), 3000);
                raise(&mut quick, 0, &mut hint, (at * 2, *rank), 3000);
                prop_assert_eq!(&quick, &slow);
            }
        }

        #[test]
        fn any_bytes_are_looked_at_without_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..80), at in 0usize..REGISTERS) {
            let whole = is_whole(&bytes);
            prop_assert!(!whole || registers(&bytes).len() == REGISTERS);
            raise(&mut bytes, 0, &mut Hint::default(), (at, 5), 3000);
        }
    }

    #[test]
    fn broken_forms_are_seen() {
        assert!(is_whole(&[0x7f, 0xff]));
        let broken: [&[u8]; 7] = [
            &[],
            &[0x7f],
            &[0x7f, 0xfe],
            &[0x7f, 0xff, 0x00],
            &[0x7f, 0xff, 0x40],
            &[0x80, 0x7f, 0xff],
            &[0xff; 4095],
        ];
        assert!(broken.iter().all(|bytes| !is_whole(bytes)));
        assert!(!is_whole(&vec![0; BYTES_MAX + 1]));
        assert!(is_whole(&[0xff; 4096]) && is_whole(&vec![0; REGISTERS]));
    }
}
