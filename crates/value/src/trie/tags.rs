//! Sixteen one-byte tags compared at once.

/// A bit for each of the sixteen bytes at `tags` that equals `tag`.
///
/// # Safety
/// Sixteen bytes at `tags` are readable and initialized.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) unsafe fn equal(tags: *const u8, tag: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: SSE2 is part of x86-64; the caller's.
    unsafe {
        let group = _mm_loadu_si128(tags.cast());
        _mm_movemask_epi8(_mm_cmpeq_epi8(group, _mm_set1_epi8(tag as i8))) as u32
    }
}

/// As above, for every other processor.
///
/// # Safety
/// Sixteen bytes at `tags` are readable and initialized.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) unsafe fn equal(tags: *const u8, tag: u8) -> u32 {
    // SAFETY: the caller's.
    unsafe { portable(&*tags.cast::<[u8; 16]>(), tag) }
}

/// As [`equal`], for 32 bytes.
///
/// # Safety
/// 32 bytes at `tags` are readable and initialized.
#[inline]
pub(super) unsafe fn equal_32(tags: *const u8, tag: u8) -> u64 {
    // SAFETY: the caller's.
    unsafe { u64::from(equal(tags, tag) | equal(tags.add(16), tag) << 16) }
}

/// As [`equal`], for 64 bytes.
///
/// # Safety
/// 64 bytes at `tags` are readable and initialized.
#[inline]
pub(super) unsafe fn equal_64(tags: *const u8, tag: u8) -> u64 {
    // SAFETY: the caller's.
    unsafe { equal_32(tags, tag) | equal_32(tags.add(32), tag) << 32 }
}

#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
fn portable(tags: &[u8; 16], tag: u8) -> u32 {
    tags.iter().enumerate().fold(0, |hits, (i, &t)| hits | u32::from(t == tag) << i)
}

/// Asks the processor to fetch the cache line at `at`, which need not be valid.
#[inline]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_ways_of_comparing_agree() {
        let mut tags = [0u8; 16];
        for round in 0..2000u64 {
            for (i, tag) in tags.iter_mut().enumerate() {
                *tag = (stdx::hash::hash_u64(round * 16 + i as u64) & 7) as u8;
            }
            for tag in 0..9 {
                // SAFETY: sixteen bytes.
                let fast = unsafe { super::equal(tags.as_ptr(), tag) };
                assert_eq!(fast, super::portable(&tags, tag));
            }
        }
    }
}
