//! Looking a number up in a short ascending slice.

/// Items compared at once at the end of a search.
const WINDOW: usize = 32;

/// A number of a leaf.
pub(super) trait Number: Copy + Ord {}

impl Number for u16 {}
impl Number for u32 {}
impl Number for u64 {}

/// True if the slice has the number. O(log n), without a branch that depends on what the slice holds: the numbers of a
/// large set are in no order a processor could guess.
#[inline]
pub(super) fn contains<T: Number>(items: &[T], item: T) -> bool {
    match items.len() {
        0..8 => items.iter().fold(false, |found, &other| found | (other == item)),
        8..16 => both_ends::<T, 8>(items, item),
        16..=WINDOW => both_ends::<T, 16>(items, item),
        _ => in_window(items, item),
    }
}

/// For slices of `N` to `2 N` items: the first and the last `N` of them.
#[inline]
fn both_ends<T: Number, const N: usize>(items: &[T], item: T) -> bool {
    let (Some(first), Some(last)) = (items.first_chunk::<N>(), items.last_chunk::<N>()) else { return false };
    has(first, item) | has(last, item)
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

/// Compared as a whole, which the compiler does many at once.
#[inline]
fn has<T: Number, const N: usize>(items: &[T; N], item: T) -> bool {
    items.iter().fold(false, |found, &other| found | (other == item))
}

#[cfg(test)]
mod tests {
    use super::contains;

    #[test]
    fn every_item_is_found_and_nothing_else() {
        for len in 0..200u32 {
            let items: Vec<u32> = (0..len).map(|i| i * 2 + 1).collect();
            for x in 0..len * 2 + 3 {
                assert_eq!(contains(&items, x), x % 2 == 1 && x < len * 2, "{x} of {len}");
            }
        }
    }
}
