//! Five caches of at most 256 keys, one per threshold, that all see the same small part of accesses. The one
//! with the most hits decides the threshold of the real cache.
//!
//! - M1: a key takes part if its hash is among the first 256/C of all hashes, with C entries in the cache.
//!   The keys are the same for all five, so the comparison is paired.
//! - M2: LRU is one of the five. It is the fallback when the hot set changes.
//! - M3: a decision needs 5 accesses per entry and a lead of 0.2 %. Then all counts fade by a fifth.
//!
//! Cost of an access: about 400 ns; at C = 1M one access in 4,000 pays it. All five take 20 KB.

use super::policy::{self, CANDIDATES, EMPTY, FIRST, RANKS, TICKS};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Most entries of a mini-cache.
pub(crate) const ENTRIES: usize = 256;
/// Slots looked at for a victim.
const SAMPLE: usize = 32;

/// A queue of recently evicted keys with their frequencies.
#[derive(Default)]
pub(crate) struct Ghosts {
    freqs: HashMap<u64, (u8, u64)>,
    queue: VecDeque<(u64, u64)>,
    number: u64,
}

impl Ghosts {
    /// Remembers a key. Above `capacity` the oldest is forgotten. O(1).
    pub(crate) fn put(&mut self, hash: u64, freq: u8, capacity: usize) {
        self.number += 1;
        self.freqs.insert(hash, (freq, self.number));
        self.queue.push_back((hash, self.number));
        // Two at a time, so that a queue with a lowered capacity shrinks.
        for _ in 0..2 {
            if self.queue.len() <= capacity {
                break;
            }
            if let Some((hash, number)) = self.queue.pop_front()
                && self.freqs.get(&hash).is_some_and(|(_, newest)| *newest == number)
            {
                self.freqs.remove(&hash);
            }
        }
    }

    /// Takes a key out; returns its use count.
    pub(crate) fn take(&mut self, hash: u64) -> Option<u8> {
        self.freqs.remove(&hash).map(|(freq, _)| freq)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// The policy with one threshold, over so few keys that it is written plainly.
struct Mini {
    candidate: usize,
    bytes: [u8; ENTRIES],
    keys: [u64; ENTRIES],
    places: HashMap<u64, usize>,
    ghosts: Ghosts,
    tick: u32,
    progress: u64,
    dice: u64,
}

impl Mini {
    fn new(candidate: usize) -> Mini {
        Mini {
            candidate,
            bytes: [EMPTY; ENTRIES],
            keys: [0; ENTRIES],
            places: HashMap::new(),
            ghosts: Ghosts::default(),
            tick: 0,
            progress: 0,
            dice: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Notes one access; true if it is a hit.
    fn access(&mut self, hash: u64, capacity: usize) -> bool {
        if let Some(&at) = self.places.get(&hash) {
            if let Some(byte) = policy::used(self.bytes[at]) {
                self.bytes[at] = byte;
            }
            return true;
        }
        while self.places.len() >= capacity {
            self.evict(capacity);
        }
        let freq = self.ghosts.take(hash).map_or(0, |freq| freq + 1);
        let at = self.bytes.iter().position(|byte| *byte == EMPTY).unwrap_or(0);
        self.bytes[at] = policy::fresh(freq);
        self.keys[at] = hash;
        self.places.insert(hash, at);
        self.progress += TICKS;
        while self.progress >= capacity as u64 {
            self.progress -= capacity as u64;
            self.age();
        }
        false
    }

    fn age(&mut self) {
        for bytes in self.bytes.as_chunks_mut::<8>().0 {
            let word = u64::from_le_bytes(*bytes);
            *bytes = policy::moved(word, self.tick, self.tick + 1, CANDIDATES[self.candidate]).to_le_bytes();
        }
        self.tick += 1;
    }

    fn evict(&mut self, capacity: usize) {
        let ranks = &RANKS[self.candidate];
        let (mut best, mut rank, mut seen) = (0, 255, 0);
        self.dice = self.dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let start = (self.dice >> 40) as usize;
        for i in 0..ENTRIES {
            // An odd step visits every slot once, with neighbours far apart.
            let at = (start + i * 101) % ENTRIES;
            if self.bytes[at] == EMPTY {
                continue;
            }
            if ranks[self.bytes[at] as usize] < rank {
                (best, rank) = (at, ranks[self.bytes[at] as usize]);
            }
            seen += 1;
            if seen == SAMPLE {
                break;
            }
        }
        self.places.remove(&self.keys[best]);
        self.ghosts.put(self.keys[best], policy::freq(self.bytes[best]), 2 * capacity);
        self.bytes[best] = EMPTY;
    }
}

/// The five mini-caches and their score. See the module.
pub(crate) struct Minis {
    minis: [Mini; 5],
    hits: [f64; 5],
    accesses: f64,
    since: usize,
    chosen: usize,
}

impl Default for Minis {
    fn default() -> Minis {
        Minis {
            minis: std::array::from_fn(Mini::new),
            hits: [0.0; 5],
            accesses: 0.0,
            since: 0,
            chosen: FIRST,
        }
    }
}

impl Minis {
    /// Notes one access to a key that takes part (M1) in a cache of `entries`. Returns the best candidate so
    /// far.
    pub(crate) fn access(&mut self, hash: u64, entries: usize) -> usize {
        let capacity = entries.clamp(1, ENTRIES);
        for (mini, hits) in self.minis.iter_mut().zip(&mut self.hits) {
            *hits += f64::from(u8::from(mini.access(hash, capacity)));
        }
        self.accesses += 1.0;
        self.since += 1;
        if self.since >= (5 * capacity).max(200) {
            self.decide();
        }
        self.chosen
    }

    /// Chooses the best candidate and fades the counts (M3).
    fn decide(&mut self) {
        self.since = 0;
        let best = (0..5).fold(self.chosen, |best, i| if self.hits[i] > self.hits[best] { i } else { best });
        if self.hits[best] > self.hits[self.chosen] + 0.002 * self.accesses {
            self.chosen = best;
        }
        self.hits.iter_mut().for_each(|hits| *hits *= 0.8);
        self.accesses *= 0.8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ghosts_forget_the_oldest_first() {
        let mut ghosts = Ghosts::default();
        (0..10).for_each(|hash| ghosts.put(hash, hash as u8, 4));
        assert_eq!(ghosts.take(5), None);
        assert_eq!(ghosts.take(6), Some(6));
        assert_eq!(ghosts.take(6), None);
        // A key that came again is as young as its last coming.
        let mut ghosts = Ghosts::default();
        [1, 2, 1, 3, 4].into_iter().for_each(|hash| ghosts.put(hash, 0, 3));
        assert_eq!((ghosts.take(1), ghosts.take(2)), (Some(0), None));
    }

    #[test]
    fn a_loop_makes_the_minis_choose_frequency_and_a_moving_set_makes_them_leave_it() {
        let mut minis = Minis::default();
        let mut chosen = 0;
        for i in 0..40_000u64 {
            chosen = minis.access(i % 400, 200);
        }
        assert_ne!(CANDIDATES[chosen], policy::Threshold::Lru);
        let hits: Vec<f64> = minis.hits.to_vec();
        assert!(hits[chosen] > 1.5 * hits[4].max(1.0), "a loop larger than the cache starves LRU: {hits:?}");
        // From here each key is used once more after 100 others, and never again.
        for i in 0..60_000u64 {
            minis.access(1_000_000 + i, 200);
            chosen = minis.access(1_000_000 + i.saturating_sub(100), 200);
        }
        assert!(
            matches!(CANDIDATES[chosen], policy::Threshold::Lru | policy::Threshold::Ticks(8)),
            "{chosen}"
        );
    }
}
