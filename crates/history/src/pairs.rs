//! The waits of a second by cause, culprit and waiter: a bounded number of sums.

use std::collections::HashMap;

/// Pairs with sums of their own; further ones share one.
pub const PAIRS_MAX: usize = 1024;

/// Waits added up.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Total {
    pub waits: u64,
    pub ns: u64,
    pub max_ns: u64,
}

impl Total {
    pub fn add(&mut self, ns: u64) {
        self.waits += 1;
        self.ns = self.ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }
}

/// The numbers of cause, culprit and waiter. Names come later: so a loop that notes a wait compares numbers
/// alone.
pub type Key = (u8, u64, u64);

/// Sums by pair, each with its longest wait. Cost: O(1) for a wait.
#[derive(Debug)]
pub struct Pairs<T> {
    sums: HashMap<Key, (Total, T)>,
    pub others: Total,
}

impl<T> Default for Pairs<T> {
    fn default() -> Pairs<T> {
        Pairs { sums: HashMap::new(), others: Total::default() }
    }
}

impl<T> Pairs<T> {
    /// Adds a wait. `longest` is called if it is the longest of its pair so far.
    pub fn add(&mut self, key: Key, ns: u64, longest: impl FnOnce() -> T) {
        let is_full = self.sums.len() >= PAIRS_MAX;
        match self.sums.get_mut(&key) {
            Some((total, wait)) => {
                if ns >= total.max_ns {
                    *wait = longest();
                }
                total.add(ns);
            }
            None if is_full => self.others.add(ns),
            None => _ = self.sums.insert(key, (Total { waits: 1, ns, max_ns: ns }, longest())),
        }
    }

    /// The sums, and the longest wait of each.
    pub fn into_sums(self) -> impl Iterator<Item = (Total, T)> {
        self.sums.into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_keep_their_longest_wait_and_are_bounded() {
        let mut pairs = Pairs::default();
        for (n, ns) in [10, 30, 20].into_iter().enumerate() {
            pairs.add((0, 7, 1), ns, || n);
        }
        (0..5000).for_each(|waiter| pairs.add((1, 9, waiter), 1, || 0));
        assert_eq!(pairs.others, Total { waits: 5001 - 1024, ns: 5001 - 1024, max_ns: 1 });
        let sums: Vec<_> = pairs.into_sums().collect();
        assert_eq!(sums.len(), PAIRS_MAX);
        assert!(sums.contains(&(Total { waits: 3, ns: 60, max_ns: 30 }, 1)));
    }
}
