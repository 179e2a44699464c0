//! Latencies in octaves, as EVENKEEL NOW and HISTORY tell them, or as measured here.

use dial::Frame;

/// Octaves: below 1 us, 1 to 2 us, ... 4.2 s and more.
pub const OCTAVES: usize = 24;

/// How many requests took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    pub counts: [u64; OCTAVES],
}

impl Heat {
    /// Reads the counts of a reply. What is missing counts as 0.
    pub fn read(reply: &Frame) -> Heat {
        let mut heat = Heat::default();
        let counts = crate::reply::list(reply).iter().map(|n| crate::reply::count(n).unwrap_or(0));
        heat.counts.iter_mut().zip(counts).for_each(|(sum, n)| *sum = n);
        heat
    }

    /// Counts one request.
    pub fn note(&mut self, us: u64) {
        let octave = (u64::BITS - us.leading_zeros()) as usize;
        self.counts[octave.min(OCTAVES - 1)] += 1;
    }

    pub fn sum(&self) -> u64 {
        crate::reply::sum(self.counts)
    }

    /// Microseconds that a share of the requests took at most: the end of their octave. `u64::MAX`: 4.2 s or
    /// more. None without requests.
    pub fn at_most_us(&self, share: f64) -> Option<u64> {
        let all = self.sum();
        let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        let octave = self.counts.iter().position(|n| {
            seen = n.saturating_add(seen);
            seen >= wanted
        })?;
        Some(if octave == OCTAVES - 1 { u64::MAX } else { 1 << octave })
    }
}

/// The share of sorted times that is reached, exactly. None without times.
pub fn exact_us(sorted: &[u64], share: f64) -> Option<u64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_ends_of_octaves() {
        let mut heat = Heat::default();
        assert_eq!(heat.at_most_us(0.5), None);
        [0, 1, 3, 3, 1000].iter().for_each(|us| heat.note(*us));
        assert_eq!([heat.counts[0], heat.counts[1], heat.counts[2], heat.counts[10]], [1, 1, 2, 1]);
        assert_eq!([0.2, 0.5, 0.99].map(|share| heat.at_most_us(share)), [Some(1), Some(4), Some(1024)]);
        heat.note(u64::MAX);
        assert_eq!(heat.at_most_us(1.0), Some(u64::MAX));
    }

    #[test]
    fn measured_times_have_exact_quantiles() {
        let times: Vec<u64> = (1..=100).collect();
        assert_eq!([0.5, 0.99, 0.999].map(|share| exact_us(&times, share)), [Some(50), Some(99), Some(100)]);
        assert_eq!(exact_us(&[], 0.5), None);
    }
}
