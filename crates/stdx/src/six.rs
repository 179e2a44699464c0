//! Numbers of six bits, packed without gaps from the lowest bit on: four in three bytes.
//!
//! ```text
//! byte 0           byte 1           byte 2
//! 1 1 0 0 0 0 0 0  2 2 2 2 1 1 1 1  3 3 3 3 3 3 2 2      the number to which each bit belongs, the highest bit first
//! ```
//!
//! On x86-64 with AVX2, a few vector instructions do 32 numbers. They are asked for by name: a compiler makes
//! good ones of loops only if it inlines all that is in them, which no build profile promises.
//!
//! Cost: some 0.6 µs for 16,384 numbers with AVX2, two to three times that without.

/// Numbers in three packed bytes.
const FOUR: usize = 4;

/// Raises each number to the packed one of the same place. Numbers or packed bytes without a counterpart are
/// left alone. O(numbers).
pub fn raise(numbers: &mut [u8], packed: &[u8]) {
    let done = wide::raise(numbers, packed);
    raise_each(&mut numbers[done..], &packed[done / FOUR * 3..]);
}

fn raise_each(numbers: &mut [u8], packed: &[u8]) {
    for (four, bits) in numbers.as_chunks_mut::<FOUR>().0.iter_mut().zip(packed.as_chunks::<3>().0) {
        let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], 0]);
        four[0] = four[0].max(bits as u8 & 0x3f);
        four[1] = four[1].max((bits >> 6) as u8 & 0x3f);
        four[2] = four[2].max((bits >> 12) as u8 & 0x3f);
        four[3] = four[3].max((bits >> 18) as u8 & 0x3f);
    }
}

/// Packs numbers, of which the lowest six bits count. A number without room, and one that is in no group of
/// four, is left out. O(numbers).
pub fn pack(numbers: &[u8], packed: &mut [u8]) {
    let done = wide::pack(numbers, packed);
    pack_each(&numbers[done..], &mut packed[done / FOUR * 3..]);
}

fn pack_each(numbers: &[u8], packed: &mut [u8]) {
    for (four, bits) in numbers.as_chunks::<FOUR>().0.iter().zip(packed.as_chunks_mut::<3>().0) {
        let number = |i: usize| u32::from(four[i] & 0x3f) << (6 * i);
        let [a, b, c, _] = (number(0) | number(1) | number(2) | number(3)).to_le_bytes();
        *bits = [a, b, c];
    }
}

/// The vector instructions. Each function returns how many numbers it has done: all but the last few, or none.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::FOUR;
    use std::arch::x86_64::*;

    /// Numbers done together, and their packed bytes.
    const NUMBERS: usize = 32;
    const PACKED: usize = 24;
    /// Packed bytes that a group loads or stores: the second half is a whole vector, and begins at 12.
    const REACH: usize = 28;

    /// The groups whose reach is inside both slices.
    fn groups(numbers: usize, packed: usize) -> usize {
        let reached = packed.checked_sub(REACH).map_or(0, |behind| behind / PACKED + 1);
        (numbers / NUMBERS).min(reached)
    }

    pub(super) fn raise(numbers: &mut [u8], packed: &[u8]) -> usize {
        if !is_x86_feature_detected!("avx2") {
            return 0;
        }
        let groups = groups(numbers.len(), packed.len());
        // SAFETY: AVX2 is there; `groups` is what both slices have room for.
        unsafe { raise_groups(numbers.as_mut_ptr(), packed.as_ptr(), groups) };
        groups * NUMBERS
    }

    pub(super) fn pack(numbers: &[u8], packed: &mut [u8]) -> usize {
        if !is_x86_feature_detected!("avx2") {
            return 0;
        }
        // Two more fours follow, whose six bytes overwrite the zeros behind the last group.
        let groups = groups(numbers.len().saturating_sub(2 * FOUR), packed.len().saturating_sub(2));
        // SAFETY: as above.
        unsafe { pack_groups(numbers.as_ptr(), packed.as_mut_ptr(), groups) };
        groups * NUMBERS
    }

    /// # Safety
    ///
    /// - AVX2 is there.
    /// - `numbers` has 32 bytes for each group, exclusively.
    /// - `packed` has 24 bytes for each group, and four more.
    #[target_feature(enable = "avx2")]
    unsafe fn raise_groups(mut numbers: *mut u8, mut packed: *const u8, groups: usize) {
        // Three bytes become the low ones of a word of four.
        #[rustfmt::skip]
        let spread = _mm256_setr_epi8(
            0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1,
            0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1,
        );
        for _ in 0..groups {
            // SAFETY: the caller has 28 bytes of `packed` and 32 of `numbers` from here on.
            unsafe {
                let both = _mm256_loadu2_m128i(packed.add(PACKED / 2).cast(), packed.cast());
                let words = _mm256_shuffle_epi8(both, spread);
                let first = _mm256_and_si256(words, _mm256_set1_epi32(0x3f));
                let second = _mm256_and_si256(_mm256_slli_epi32::<2>(words), _mm256_set1_epi32(0x3f00));
                let third = _mm256_and_si256(_mm256_slli_epi32::<4>(words), _mm256_set1_epi32(0x3f_0000));
                let fourth = _mm256_and_si256(_mm256_slli_epi32::<6>(words), _mm256_set1_epi32(0x3f00_0000));
                let theirs = _mm256_or_si256(_mm256_or_si256(first, second), _mm256_or_si256(third, fourth));
                let ours = _mm256_loadu_si256(numbers.cast());
                _mm256_storeu_si256(numbers.cast(), _mm256_max_epu8(ours, theirs));
                (numbers, packed) = (numbers.add(NUMBERS), packed.add(PACKED));
            }
        }
    }

    /// # Safety
    ///
    /// - AVX2 is there.
    /// - `numbers` has 32 bytes for each group.
    /// - `packed` has 24 bytes for each group, and four more, exclusively. The four get zeros.
    #[target_feature(enable = "avx2")]
    unsafe fn pack_groups(mut numbers: *const u8, mut packed: *mut u8, groups: usize) {
        // The low three bytes of each word of four, side by side.
        #[rustfmt::skip]
        let close = _mm256_setr_epi8(
            0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1,
            0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1,
        );
        for _ in 0..groups {
            // SAFETY: the caller has 32 bytes of `numbers` and 28 of `packed` from here on.
            unsafe {
                let words = _mm256_loadu_si256(numbers.cast());
                let first = _mm256_and_si256(words, _mm256_set1_epi32(0x3f));
                let second = _mm256_and_si256(_mm256_srli_epi32::<2>(words), _mm256_set1_epi32(0xfc0));
                let third = _mm256_and_si256(_mm256_srli_epi32::<4>(words), _mm256_set1_epi32(0x3f000));
                let fourth = _mm256_and_si256(_mm256_srli_epi32::<6>(words), _mm256_set1_epi32(0xfc_0000));
                let bits = _mm256_or_si256(_mm256_or_si256(first, second), _mm256_or_si256(third, fourth));
                let bits = _mm256_shuffle_epi8(bits, close);
                // The second half is stored last: it overwrites the zeros behind the first.
                _mm_storeu_si128(packed.cast(), _mm256_castsi256_si128(bits));
                _mm_storeu_si128(packed.add(PACKED / 2).cast(), _mm256_extracti128_si256::<1>(bits));
                (numbers, packed) = (numbers.add(NUMBERS), packed.add(PACKED));
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod wide {
    pub(super) fn raise(_: &mut [u8], _: &[u8]) -> usize {
        0
    }

    pub(super) fn pack(_: &[u8], _: &mut [u8]) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The number of a place, bit by bit.
    fn number(packed: &[u8], place: usize) -> u8 {
        (0..6)
            .map(|bit| 6 * place + bit)
            .fold(0, |number, at| number | ((packed[at / 8] >> (at % 8) & 1) << (at - 6 * place)))
    }

    proptest! {
        #[test]
        fn packed_numbers_raise_those_of_the_same_place(
            packed in prop::collection::vec(any::<u8>(), 0..200),
            numbers in prop::collection::vec(0u8..64, 0..260),
        ) {
            let mut raised = numbers.clone();
            raise(&mut raised, &packed);
            let fours = (numbers.len() / 4).min(packed.len() / 3);
            for (place, raised) in raised.into_iter().enumerate() {
                let theirs = if place < 4 * fours { number(&packed, place) } else { 0 };
                prop_assert_eq!(raised, numbers[place].max(theirs), "place {}", place);
            }
        }

        #[test]
        fn numbers_are_packed_in_the_room_there_is(
            numbers in prop::collection::vec(any::<u8>(), 0..260),
            room in 0usize..200,
        ) {
            let mut packed = vec![0xa5; room];
            pack(&numbers, &mut packed);
            let fours = (numbers.len() / 4).min(room / 3);
            for (place, ours) in numbers.iter().enumerate().take(4 * fours) {
                prop_assert_eq!(number(&packed, place), ours & 0x3f, "place {}", place);
            }
            let mut slow = vec![0xa5; room];
            pack_each(&numbers, &mut slow);
            prop_assert_eq!(packed, slow);
        }

        #[test]
        fn every_way_raises_alike(
            packed in prop::collection::vec(any::<u8>(), 0..200),
            numbers in prop::collection::vec(0u8..64, 0..260),
        ) {
            let (mut fast, mut slow) = (numbers.clone(), numbers);
            raise(&mut fast, &packed);
            raise_each(&mut slow, &packed);
            prop_assert_eq!(fast, slow);
        }
    }
}
