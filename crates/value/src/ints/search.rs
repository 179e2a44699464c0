//! Looks up a number in a short ascending slice.

/// Items compared at once at the end of a search.
const WINDOW: usize = 32;
/// Items compared at once around the place where one should be.
const GUESSED: usize = 64;

/// A number of a leaf.
pub(super) trait Number: Copy + Ord {}

impl Number for u16 {}
impl Number for super::node::Low {}
impl Number for u32 {}
impl Number for u64 {}

/// True if the slice has the number. O(log n), without a branch that depends on the contents: a processor
/// cannot predict the numbers of a large set.
#[inline]
pub(super) fn contains<T: Number>(items: &[T], item: T) -> bool {
    match items.len() {
        0..4 => items.iter().fold(false, |found, &other| found | (other == item)),
        4..8 => both_ends(items, item),
        8..=WINDOW => four_windows(items, item),
        _ => in_window(items, item),
    }
}

/// As `contains`, for items spread evenly over all 16-bit numbers: looks where the number should be.
#[inline]
pub(super) fn contains_low(items: &[u16], low: u16) -> bool {
    if items.len() <= GUESSED {
        return contains(items, low);
    }
    let guess = (items.len() * low as usize) >> 16;
    let from = guess.saturating_sub(GUESSED / 2).min(items.len() - GUESSED);
    match items[from..].first_chunk::<GUESSED>() {
        Some(window) if window[0] <= low && low <= window[GUESSED - 1] => has(window, low),
        _ => in_window(items, low),
    }
}

/// Searches slices of 4 to 8 items: the first and the last four of them.
#[inline]
fn both_ends<T: Number>(items: &[T], item: T) -> bool {
    let (Some(first), Some(last)) = (items.first_chunk::<4>(), items.last_chunk::<4>()) else { return false };
    has(first, item) | has(last, item)
}

/// Searches slices of 8 to 32 items: four windows of eight, which overlap in short ones. All these lengths
/// share one path, as the next leaf's length cannot be predicted.
#[inline]
fn four_windows<T: Number>(items: &[T], item: T) -> bool {
    let last = items.len() - 8;
    [0, 8, 16, 24].iter().fold(false, |found, &from| {
        found | items[last.min(from)..].first_chunk::<8>().is_some_and(|window| has(window, item))
    })
}

#[inline]
fn in_window<T: Number>(items: &[T], item: T) -> bool {
    let (mut from, mut len) = (0, items.len());
    while len > WINDOW {
        let half = len / 2;
        from = std::hint::select_unpredictable(items[from + half] <= item, from + half, from);
        len -= half;
    }
    let from = from.min(items.len() - WINDOW);
    items[from..].first_chunk::<WINDOW>().is_some_and(|window| has(window, item))
}

/// Compares all items, which the compiler vectorizes.
#[inline]
fn has<T: Number, const N: usize>(items: &[T; N], item: T) -> bool {
    items.iter().fold(false, |found, &other| found | (other == item))
}

#[cfg(test)]
mod tests {
    use super::{contains, contains_low};

    #[test]
    fn every_item_is_found_and_nothing_else() {
        for len in 0..200u32 {
            let items: Vec<u32> = (0..len).map(|i| i * 2 + 1).collect();
            for x in 0..len * 2 + 3 {
                assert_eq!(contains(&items, x), x % 2 == 1 && x < len * 2, "{x} of {len}");
            }
        }
    }

    #[test]
    fn a_wrong_guess_finds_no_less() {
        // Evenly spread, all at one end, in two heaps, and at both ends.
        let spreads: [fn(u32) -> u32; 5] = [
            |i| i * 37,
            |i| i * 2,
            |i| 65_535 - i * 2,
            |i| i / 3 + (i % 3) * 20_000,
            |i| ((i % 2) * 65_535) ^ i,
        ];
        for spread in spreads {
            for len in [1, 31, 63, 64, 65, 66, 100, 129, 500, 1_700] {
                let mut items: Vec<u16> = (0..len).map(|i| spread(i) as u16).collect();
                items.sort_unstable();
                items.dedup();
                let mut left = items.iter().peekable();
                for low in 0..=u16::MAX {
                    let is_item = left.next_if_eq(&&low).is_some();
                    assert_eq!(contains_low(&items, low), is_item, "{low} of {len}");
                }
            }
        }
    }
}
