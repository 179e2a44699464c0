//! Eviction's notes on the slots of a segment: a byte each (`policy.rs`), whether the entry has an expiry,
//! and which keys were evicted lately.
//!
//! ```text
//!   Segment ─► Header ─► Marks   tick │ ghosts │ words: 8 bytes of slots each, then a bit per slot
//! ```
//!
//! - M1: a slot's byte is [`policy::EMPTY`] iff the slot has no entry. The byte moves with its entry.
//! - M2: ages are as of `tick`. The first use or change in a later tick ages the whole segment. So a segment
//!   pays for ageing once per tick in which it is used, and no thread walks over all segments.
//! - M3: words are loaded and stored whole, relaxed. A holder of the shard's lock may do so through a shared
//!   reference.
//!
//! Marks exist only once eviction is wanted. They take 1.3 KB for a whole segment, and up to 2 KB for ghosts
//! from its first eviction on.

use super::policy::{self, EMPTY, Ranks};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Ghosts of a bucket.
const BUCKET: usize = 8;
/// Most buckets: about 1.4 ghosts per entry of a full segment.
const BUCKETS: usize = 128;
/// The mark of no ghost: its frequency would be 15.
const NOBODY: u16 = 0xffff;

/// The time of a cache.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    pub(crate) tick: u32,
    pub(crate) threshold: policy::Threshold,
}

/// The marks of a segment. See the module.
pub(crate) struct Marks<W: ?Sized = [AtomicU64]> {
    tick: AtomicU32,
    /// How many words hold bytes. The words behind them hold a bit per slot: whether its entry expires.
    bytes: u32,
    ghosts: Vec<[u16; BUCKET]>,
    words: W,
}

/// Words for this many slots: of bytes, and of bits.
const fn words(slots: usize) -> (usize, usize) {
    (slots.div_ceil(8), slots.div_ceil(64))
}

impl Marks {
    /// Marks for this many slots without entries.
    pub(crate) fn new(slots: usize, tick: u32) -> Box<Marks> {
        fn sized<const WORDS: usize>(slots: usize, tick: u32) -> Box<Marks> {
            let (bytes, bits) = words(slots);
            debug_assert!(bytes + bits <= WORDS);
            Box::new(Marks {
                tick: AtomicU32::new(tick),
                bytes: bytes as u32,
                ghosts: Vec::new(),
                words: std::array::from_fn::<_, WORDS, _>(|i| {
                    AtomicU64::new(if i < bytes { u64::MAX } else { 0 })
                }),
            })
        }
        // The slots of each form of a table.
        match words(slots).0 {
            0..=2 => sized::<3>(slots, tick),
            3..=8 => sized::<9>(slots, tick),
            9..=35 => sized::<40>(slots, tick),
            _ => sized::<161>(slots, tick),
        }
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        &self.words[..self.bytes as usize]
    }

    #[inline]
    pub(crate) fn byte(&self, slot: usize) -> u8 {
        (self.words[slot / 8].load(Relaxed) >> (slot % 8 * 8)) as u8
    }

    #[inline]
    pub(crate) fn set(&self, slot: usize, byte: u8) {
        let (word, shift) = (&self.words[slot / 8], slot % 8 * 8);
        word.store(word.load(Relaxed) & !(0xff << shift) | u64::from(byte) << shift, Relaxed);
    }

    /// Marks a slot as free.
    pub(crate) fn clear(&mut self, slot: usize) {
        self.set(slot, EMPTY);
        self.set_expires(slot, false);
    }

    #[inline]
    pub(crate) fn expires(&self, slot: usize) -> bool {
        self.words[self.bytes as usize + slot / 64].load(Relaxed) >> (slot % 64) & 1 == 1
    }

    #[inline]
    pub(crate) fn set_expires(&mut self, slot: usize, expires: bool) {
        let (word, bit) = (self.words[self.bytes as usize + slot / 64].get_mut(), 1 << (slot % 64));
        if expires { *word |= bit } else { *word &= !bit }
    }

    /// Notes a use of the entry of a slot.
    #[inline]
    pub(crate) fn used(&self, slot: usize, time: Time) {
        if self.tick.load(Relaxed) != time.tick {
            self.grow_older(time);
        }
        if let Some(byte) = policy::used(self.byte(slot)) {
            self.set(slot, byte);
        }
    }

    /// Ages all bytes to the tick of `time` (M2). At most 143 words.
    #[cold]
    pub(crate) fn grow_older(&self, time: Time) {
        let from = self.tick.load(Relaxed);
        for word in self.words() {
            let old = word.load(Relaxed);
            if old != u64::MAX {
                word.store(policy::moved(old, from, time.tick, time.threshold), Relaxed);
            }
        }
        self.tick.store(time.tick, Relaxed);
    }

    pub(crate) fn tick(&self) -> u32 {
        self.tick.load(Relaxed)
    }

    /// Ages two segments that are to be merged to the same tick.
    pub(crate) fn align(&self, other: &Marks, threshold: policy::Threshold) {
        let (mine, others) = (self.tick(), other.tick());
        // Ticks may wrap. The later one is less than half of all ticks ahead.
        let later = if mine.wrapping_sub(others) < u32::MAX / 2 { mine } else { others };
        let time = Time { tick: later, threshold };
        self.grow_older(time);
        other.grow_older(time);
    }

    /// The lowest-ranked of the next `want` entries from a slot on, and how many were looked at. `expiring`:
    /// only entries with an expiry. O(words visited).
    pub(crate) fn sample(
        &self,
        from: usize,
        want: usize,
        ranks: &Ranks,
        expiring: bool,
    ) -> (usize, Option<(u8, usize)>) {
        let (mut seen, mut best) = (0, None);
        let mut rank = EMPTY;
        let words = self.words();
        let first = from / 8;
        for at in (first..words.len()).chain(0..first) {
            let word = words[at].load(Relaxed);
            if word == u64::MAX || expiring && self.expires_of(at) == 0 {
                continue;
            }
            for (j, byte) in word.to_le_bytes().into_iter().enumerate() {
                if byte == EMPTY || expiring && !self.expires(at * 8 + j) {
                    continue;
                }
                seen += 1;
                if ranks[byte as usize] < rank {
                    rank = ranks[byte as usize];
                    best = Some((rank, at * 8 + j));
                }
            }
            if seen >= want {
                break;
            }
        }
        (seen, best)
    }

    /// The expiry bits of the slots of a word.
    fn expires_of(&self, word: usize) -> u8 {
        (self.words[self.bytes as usize + word / 8].load(Relaxed) >> (word % 8 * 8)) as u8
    }

    /// At most `want` slots with an entry, from a slot on and around. `expiring`: only entries with an
    /// expiry.
    pub(crate) fn some(&self, from: usize, want: usize, expiring: bool) -> impl Iterator<Item = usize> + '_ {
        // Bytes beyond the last slot read as empty.
        let slots = self.words().len() * 8;
        let slots = (from..slots).chain(0..from);
        slots.filter(move |slot| self.byte(*slot) != EMPTY && (!expiring || self.expires(*slot))).take(want)
    }

    /// Remembers an evicted key. `buckets`: how many a segment uses, for about two ghosts per entry.
    pub(crate) fn put_ghost(&mut self, hash: u64, freq: u8, buckets: usize) {
        if self.ghosts.len() < buckets {
            self.ghosts.reserve_exact(buckets - self.ghosts.len());
            self.ghosts.resize(buckets, [NOBODY; BUCKET]);
        }
        let (at, print) = ghost_place(hash, buckets);
        let bucket = &mut self.ghosts[at];
        bucket.copy_within(..BUCKET - 1, 1);
        bucket[0] = print << 4 | u16::from(freq);
    }

    /// Takes a ghost out and returns the frequency that it remembers.
    pub(crate) fn take_ghost(&mut self, hash: u64, buckets: usize) -> Option<u8> {
        let (at, print) = ghost_place(hash, buckets);
        let bucket = self.ghosts.get_mut(at)?;
        let i = bucket.iter().position(|ghost| *ghost != NOBODY && *ghost >> 4 == print)?;
        let freq = (bucket[i] & 15) as u8;
        bucket.copy_within(i + 1.., i);
        bucket[BUCKET - 1] = NOBODY;
        Some(freq)
    }

    /// Copies the ghosts of a segment into a half of it. Each half will ask only for its own.
    pub(crate) fn inherit(&mut self, from: &Marks) {
        self.ghosts.clone_from(&from.ghosts);
    }
}

/// Buckets per segment for a cache with this many entries per shard.
pub(crate) fn buckets(entries_per_shard: usize) -> usize {
    let wanted = (2 * entries_per_shard / BUCKET).max(1);
    // Powers of two, so that the number seldom changes.
    (wanted.next_power_of_two() / if wanted.is_power_of_two() { 1 } else { 2 }).min(BUCKETS)
}

/// Bucket and fingerprint, from hash bits that choose neither shard nor directory nor, except in the deepest
/// segments, the line.
fn ghost_place(hash: u64, buckets: usize) -> (usize, u16) {
    let mixed = (hash & 0xffff_ffff).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 52) as usize % buckets, (mixed >> 36) as u16 & 0xfff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::{CANDIDATES, RANKS};

    /// The slots of each form of a table.
    const FORMS: [usize; 4] = [9, 63, 279, 1143];
    const TIME: Time = Time { tick: 0, threshold: CANDIDATES[2] };

    #[test]
    fn marks_agree_with_a_plain_array_of_frequencies_and_ages() {
        FORMS.into_iter().for_each(agree_with_a_plain_array);
    }

    fn agree_with_a_plain_array(slots: usize) {
        let mut marks = Marks::new(slots, 0);
        let mut plain: Vec<Option<(u8, u8, bool)>> = vec![None; slots];
        let mut dice = 88172645463325252u64;
        let mut below = |n: u64| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            dice % n
        };
        let (mut tick, mut last_halved) = (0u32, 0);
        for _ in 0..50_000 {
            let slot = below(slots as u64) as usize;
            match below(20) {
                0..=4 => {
                    let (freq, expires) = (below(3) as u8, below(2) == 0);
                    marks.grow_older(Time { tick, ..TIME });
                    marks.set(slot, policy::fresh(freq));
                    marks.set_expires(slot, expires);
                    plain[slot] = Some((freq, 0, expires));
                }
                5 => {
                    marks.set(slot, EMPTY);
                    marks.set_expires(slot, false);
                    plain[slot] = None;
                }
                6 if below(10) == 0 => {
                    tick += 1;
                    for (freq, age, _) in plain.iter_mut().flatten() {
                        *age = (*age + 1).min(15);
                        if tick % 56 == 0 && *age > 4 {
                            *freq /= 2;
                        }
                    }
                    last_halved = tick / 56;
                    // The segment is aged in every tick. Ageing over several ticks at once differs only in
                    // the halving in between.
                    marks.grow_older(Time { tick, ..TIME });
                }
                7 => {
                    let (start, expiring) = (slot / 8 * 8, below(2) == 0);
                    let (seen, best) = marks.sample(start, 64, &RANKS[2], expiring);
                    let of = |slot: usize| plain[slot].filter(|(_, _, expires)| *expires || !expiring);
                    let rank = |slot: usize| of(slot).map(|(f, a, _)| RANKS[2][policy::byte(f, a) as usize]);
                    let words = slots.div_ceil(8);
                    let order: Vec<usize> = (0..words * 8).map(|i| (start + i) % (words * 8)).collect();
                    let (mut count, mut least) = (0, None);
                    for word in order.chunks(8) {
                        for rank in word.iter().filter(|s| **s < slots).filter_map(|s| rank(*s)) {
                            count += 1;
                            least = Some(least.map_or(rank, |so_far: u8| so_far.min(rank)));
                        }
                        if count >= 64 {
                            break;
                        }
                    }
                    assert_eq!((seen, best.map(|(rank, _)| rank)), (count, least));
                    if let Some((rank_found, slot)) = best {
                        assert_eq!(rank(slot), Some(rank_found));
                    }
                }
                _ if plain[slot].is_some() => {
                    marks.used(slot, Time { tick, ..TIME });
                    if let Some((freq, age, _)) = &mut plain[slot]
                        && *age != 0
                    {
                        (*freq, *age) = ((*freq + 1).min(14), 0);
                    }
                }
                _ => {}
            }
        }
        assert!(last_halved > 1);
        for (slot, plain) in plain.iter().enumerate() {
            let byte = plain.map_or(EMPTY, |(freq, age, _)| policy::byte(freq, age));
            assert_eq!(marks.byte(slot), byte);
            assert_eq!(marks.expires(slot), plain.is_some_and(|(_, _, expires)| expires));
        }
    }

    #[test]
    fn ghosts_come_back_once_and_the_oldest_of_a_bucket_is_forgotten() {
        let mut marks = Marks::new(1143, 0);
        assert_eq!(marks.take_ghost(7, 1), None);
        (0..9u64).for_each(|n| marks.put_ghost(n * 0x1234_5678, n as u8, 1));
        assert_eq!(marks.take_ghost(0, 1), None);
        assert_eq!(marks.take_ghost(5 * 0x1234_5678, 1), Some(5));
        assert_eq!(marks.take_ghost(5 * 0x1234_5678, 1), None);
        assert_eq!(marks.take_ghost(8 * 0x1234_5678, 1), Some(8));
        assert_eq!((buckets(0), buckets(8), buckets(13), buckets(100_000)), (1, 2, 2, 128));
    }
}
