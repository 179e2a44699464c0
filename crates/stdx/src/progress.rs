//! Checks that each step of a hand-written parser takes something, so that its loop ends.
//!
//! Cost: a comparison. A step that takes nothing is a bug and panics. A panic can be contained
//! ([`crate::panics`]); an endless loop cannot.

/// Returns `rest`, which a step left of `before`.
///
/// # Panics
/// Panics if the step took nothing.
#[inline]
#[track_caller]
pub fn shorter<'a, T>(before: &[T], rest: &'a [T]) -> &'a [T] {
    assert!(rest.len() < before.len(), "a parsing step took none of the {} items left", before.len());
    rest
}

/// Returns `next`, the end of a step that began at `at`.
///
/// # Panics
/// Panics if the end is not further on.
#[inline]
#[track_caller]
pub fn further(at: usize, next: usize) -> usize {
    assert!(next > at, "a parsing step ended at {next}, and began at {at}");
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
