//! The requested items: ranks by Zipf's law, scattered over the ids.

use crate::random::{Random, Scattered};

/// A sequence of ids drawn beforehand, so that drawing costs nothing during the measurement.
#[derive(Clone)]
pub struct Zipf {
    sequence: Vec<u32>,
    at: usize,
    /// The share of requests for the most popular ranks, summed up.
    cumulative: Vec<f64>,
}

const DRAWN: usize = 1 << 20;

impl Zipf {
    /// Ids below `n`; rank r is asked for in proportion to 1 / r^`exponent`. Cost: O(n + drawn × log n).
    pub fn new(n: u64, exponent: f64, seed: u64) -> Zipf {
        let mut cumulative: Vec<f64> = (1..=n).map(|rank| (rank as f64).powf(-exponent)).collect();
        let mut sum = 0.0;
        cumulative.iter_mut().for_each(|share| {
            sum += *share;
            *share = sum;
        });
        cumulative.iter_mut().for_each(|share| *share /= sum);
        let ids: Vec<u32> = Scattered::new(n).map(|id| id as u32).collect();
        let mut random = Random(seed);
        let mut draw = || {
            let at = random.unit();
            ids[cumulative.partition_point(|&share| share < at).min(ids.len() - 1)]
        };
        let sequence = (0..DRAWN).map(|_| draw()).collect();
        Zipf { sequence, at: 0, cumulative }
    }

    /// The next id. After a million it begins again.
    pub fn next(&mut self) -> u64 {
        let id = self.sequence[self.at];
        self.at = (self.at + 1) % self.sequence.len();
        u64::from(id)
    }

    /// The share of requests that a cache of the `items` most popular ones answers.
    pub fn best(&self, items: u64) -> f64 {
        let last = (items as usize).min(self.cumulative.len()).checked_sub(1);
        last.map_or(0.0, |last| self.cumulative[last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn the_popular_ones_are_as_popular_as_said() {
        let mut zipf = Zipf::new(1000, 0.99, 1);
        let mut counts: HashMap<u64, u64> = HashMap::new();
        (0..DRAWN).for_each(|_| *counts.entry(zipf.next()).or_default() += 1);
        assert!(counts.keys().all(|&id| id < 1000));
        let mut counts: Vec<u64> = counts.into_values().collect();
        counts.sort_unstable_by_key(|&count| std::cmp::Reverse(count));
        let top: u64 = counts[..100].iter().sum();
        assert!((top as f64 / DRAWN as f64 - zipf.best(100)).abs() < 0.005);
        assert!((zipf.best(1000) - 1.0).abs() < 1e-9);
    }
}
