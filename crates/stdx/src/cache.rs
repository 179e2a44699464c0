//! Fetching memory into the cache before it is needed, so that several waits for it overlap.

/// Fetches the cache line of a reference. It has no other effect. About a nanosecond.
#[inline(always)]
pub fn prefetch<T>(at: &T) {
    prefetch_at(std::ptr::from_ref(at));
}

/// As [`prefetch`], for a pointer that need not point to anything.
#[inline(always)]
pub fn prefetch_at<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
