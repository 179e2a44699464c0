//! The load of the loops, and the loops to which connections should go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Load above which a loop gives connections away, and how much less the receiving loop must have, in
/// thousandths.
const FULL: u64 = 800;
const APART: u64 = 300;
/// Most load of two loops that one could carry alone, which makes a request cheaper, and the least of either
/// that makes joining worth it.
const ONE: u64 = 1000;
const SOME: u64 = 50;

/// The load of each loop in the last interval, in thousandths.
#[derive(Clone)]
pub(crate) struct Load(pub(crate) Arc<[AtomicU64]>);

impl Load {
    pub(crate) fn new(loops: usize) -> Load {
        Load((0..loops).map(|_| AtomicU64::new(0)).collect())
    }

    /// Whether the loops together are idle for less than a tenth of their time.
    pub(crate) fn is_full(&self) -> bool {
        self.0.iter().map(|busy| busy.load(Ordering::Relaxed)).sum::<u64>() > 900 * self.0.len() as u64
    }

    pub(crate) fn of(&self, id: usize) -> u64 {
        self.0[id].load(Ordering::Relaxed)
    }

    /// The loop to which connections of a full loop should go, and how many of the `served` ones: half of
    /// what would even out the load, at least one. `None`: the loop is not full, no other has much less load,
    /// or one connection more would only swap the two.
    pub(crate) fn surplus(&self, id: usize, served: usize) -> Option<(usize, usize)> {
        let mine = self.of(id);
        let (to, least) = (0..self.0.len()).map(|id| (id, self.of(id))).min_by_key(|(_, busy)| *busy)?;
        if mine < FULL || least + APART > mine {
            return None;
        }
        let spare = served as u64 * (mine - least);
        (served > 1 && spare >= mine).then(|| (to, (spare / (4 * mine)).max(1) as usize))
    }

    /// The first of the loops before this one that could do the work of both.
    pub(crate) fn companion(&self, id: usize) -> Option<usize> {
        let mine = self.of(id);
        let fits = |other: &usize| self.of(*other) >= SOME && self.of(*other) + mine <= ONE;
        (0..id).find(fits).filter(|_| mine >= SOME)
    }

    /// Loop for a new connection: the first, unless it is busy and another is less so. Spreading early would
    /// only add wake-ups across cores.
    pub(crate) fn place(&self) -> usize {
        let least = (0..self.0.len()).min_by_key(|id| (self.of(*id), *id)).unwrap_or(0);
        if self.of(0) > 700 && self.of(least) + 200 < self.of(0) { least } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(busy: &[u64]) -> Load {
        Load(busy.iter().map(|busy| AtomicU64::new(*busy)).collect())
    }

    #[test]
    fn a_full_loop_gives_to_the_idlest_what_evens_them_out_in_steps() {
        assert_eq!(load(&[1000, 400, 0, 100]).surplus(0, 100), Some((2, 25)));
        assert_eq!(load(&[100, 1000]).surplus(1, 100), Some((0, 22)));
        assert_eq!(load(&[900, 600]).surplus(0, 3), Some((1, 1)));
        // In order: the two would only change places; it has one connection; it is not full; none has much
        // less; it is alone.
        assert_eq!(load(&[900, 600]).surplus(0, 2), None);
        assert_eq!(load(&[1000, 0]).surplus(0, 1), None);
        assert_eq!(load(&[790, 0]).surplus(0, 100), None);
        assert_eq!(load(&[1000, 750]).surplus(0, 100), None);
        assert_eq!(load(&[1000]).surplus(0, 100), None);
    }

    #[test]
    fn two_that_are_one_loops_work_come_together_on_the_first() {
        let busy = load(&[550, 300, 20, 350]);
        assert_eq!([0, 1, 2, 3].map(|id| busy.companion(id)), [None, Some(0), None, Some(0)]);
        let busy = load(&[700, 0, 310, 400]);
        assert_eq!([1, 2, 3].map(|id| busy.companion(id)), [None, None, Some(2)]);
        // Loops that were joined do not part again.
        assert_eq!(load(&[950, 0]).companion(1), None);
    }

    /// Whatever the connections cost, giving comes to an end and no loop gets more than the giver had.
    #[test]
    fn steps_come_to_rest() {
        for connections in [2, 3, 50, 1000] {
            let (mut mine, mut other, mut steps) = (connections, 0, 0);
            // Each costs so much that all of them together would fill two loops.
            let busy = |n: usize| (n as u64 * 2000 / connections as u64).min(1000);
            while let Some((to, n)) = load(&[busy(mine), busy(other)]).surplus(0, mine) {
                assert_eq!(to, 1);
                (mine, other, steps) = (mine - n, other + n, steps + 1);
                assert!(mine + n >= other && steps < 20, "{connections}");
            }
            assert!(busy(mine) - busy(other) < APART || mine <= 2, "{connections}: {mine} and {other}");
            assert_eq!(load(&[busy(other), busy(mine)]).surplus(0, other), None, "{connections}");
        }
    }
}
