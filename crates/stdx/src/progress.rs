//! Loops that take a text apart by hand say at each step that they took something: one that does not would never end.
//!
//! Cost: a comparison. A step that took nothing is a mistake of the program, and a panic can be contained
//! ([`crate::panics`]); a loop that runs for ever cannot.

/// What a step left of `before`.
///
/// # Panics
/// It took nothing.
#[inline]
#[track_caller]
pub fn shorter<'a, T>(before: &[T], rest: &'a [T]) -> &'a [T] {
    assert!(rest.len() < before.len(), "a step took nothing of {} that were left", before.len());
    rest
}

/// Where a step that began at `at` ended.
///
/// # Panics
/// It is not further on.
#[inline]
#[track_caller]
pub fn further(at: usize, next: usize) -> usize {
    assert!(next > at, "a step ended at {next}, where it began at {at}");
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_takes_nothing_is_told() {
        assert_eq!(shorter(b"ab", b"b"), b"b");
        assert_eq!(further(1, 2), 2);
        let stuck = || crate::panics::contain(|| shorter(b"a", b"a").len()).is_err();
        assert!(stuck() && crate::panics::contain(|| further(2, 2)).is_err());
    }
}
