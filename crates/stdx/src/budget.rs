//! Limits the memory that long work holds in all, and shares it fairly.
//!
//! ```text
//!   script, job, EXEC ─► Share::grow ─► free part? ─► its fair share? ─► room for all? ─► Full
//! ```
//!
//! - B1: the first [`FREE`] bytes of a share are not counted, so short work touches no shared word.
//! - B2: a share may always grow to a [`FAIR`]th of the limit. So one that fills the budget does not make
//!   others fail. The whole stays under the limit plus a `FAIR`th of it for each further share.
//! - B3: a dropped share gives everything back.
//! - B4: a [`Holding`] has no share until it holds more than the free bytes: short work does not touch the
//!   budget.
//!
//! Cost: a comparison within what was granted; else one atomic addition.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a share that are not counted.
pub const FREE: u64 = 64 << 10;
/// Every share may have the limit divided by this.
pub const FAIR: u64 = 64;
/// How many bytes a share asks for beyond its need.
const AHEAD: u64 = 64 << 10;

/// A limit, and the bytes held under it.
#[derive(Default, Debug)]
pub struct Budget {
    /// 0: no limit.
    limit: AtomicU64,
    used: AtomicU64,
    refused: AtomicU64,
}

/// The budget has no room for the bytes asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl Budget {
    /// Sets the bytes that all shares may hold together; 0 is no limit. Bytes that are held already stay.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// The limit in bytes; 0 is no limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Bytes held now, without the free part of each share (B1).
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// How often a share was refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// A share that holds nothing yet.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), held: 0, granted: FREE }
    }
}

/// The bytes that one piece of work holds.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    held: u64,
    /// Includes the free part (B1).
    granted: u64,
}

impl Share {
    /// Takes `bytes` more. `Full`: nothing was taken, and the work should fail. O(1).
    #[inline]
    pub fn grow(&mut self, bytes: u64) -> Result<(), Full> {
        self.try_grow(bytes).inspect_err(|Full| _ = self.budget.refused.fetch_add(1, Relaxed))
    }

    /// As [`grow`](Share::grow), for work that waits instead of failing: a refusal is not counted. O(1).
    #[inline]
    pub fn try_grow(&mut self, bytes: u64) -> Result<(), Full> {
        let held = self.held.saturating_add(bytes);
        if held > self.granted {
            self.ask(held)?;
        }
        self.held = held;
        Ok(())
    }

    /// Gives `bytes` back. O(1).
    pub fn shrink(&mut self, bytes: u64) {
        self.held = self.held.saturating_sub(bytes);
        let keep = self.held.saturating_add(AHEAD).max(FREE);
        if keep < self.granted {
            self.budget.used.fetch_sub(self.granted - keep, Relaxed);
            self.granted = keep;
        }
    }

    /// Holds exactly `bytes` from now on; as [`grow`](Share::grow) or [`shrink`](Share::shrink).
    pub fn set(&mut self, bytes: u64) -> Result<(), Full> {
        if bytes >= self.held {
            return self.grow(bytes - self.held);
        }
        self.shrink(self.held - bytes);
        Ok(())
    }

    /// Takes `bytes` more even if there is no room: the caller has found other memory for them. Others get
    /// less.
    pub fn force(&mut self, bytes: u64) {
        self.held = self.held.saturating_add(bytes);
        if self.held > self.granted {
            self.budget.used.fetch_add(self.held - self.granted, Relaxed);
            self.granted = self.held;
        }
    }

    /// Bytes this share holds.
    pub fn held(&self) -> u64 {
        self.held
    }

    #[cold]
    fn ask(&mut self, held: u64) -> Result<(), Full> {
        let limit = self.budget.limit();
        let granted = held.saturating_add(AHEAD);
        let more = granted - self.granted;
        let all = self.budget.used.fetch_add(more, Relaxed).saturating_add(more);
        // B2
        if limit > 0 && held > limit / FAIR && all > limit {
            self.budget.used.fetch_sub(more, Relaxed);
            return Err(Full);
        }
        self.granted = granted;
        Ok(())
    }
}

/// A share for work that mostly holds little (B4).
#[derive(Debug, Default)]
pub struct Holding(Option<Share>);

impl Holding {
    /// Holds `bytes` in all from now on. `Full`: nothing changed. A comparison while it holds little.
    #[inline]
    pub fn set(&mut self, budget: &Arc<Budget>, bytes: u64) -> Result<(), Full> {
        if bytes <= FREE && self.0.is_none() {
            return Ok(());
        }
        self.0.get_or_insert_with(|| budget.share()).set(bytes)
    }

    /// As `set`, for work that waits if there is no room ([`Share::try_grow`]).
    pub fn try_set(&mut self, budget: &Arc<Budget>, bytes: u64) -> Result<(), Full> {
        let share = self.0.get_or_insert_with(|| budget.share());
        if bytes <= share.held() {
            return share.set(bytes);
        }
        share.try_grow(bytes - share.held())
    }

    /// As `set`, even if there is no room ([`Share::force`]).
    pub fn force(&mut self, budget: &Arc<Budget>, bytes: u64) {
        let share = self.0.get_or_insert_with(|| budget.share());
        share.force(bytes.saturating_sub(share.held()));
    }

    /// Bytes it holds; 0 if it never held more than the free ones.
    pub fn held(&self) -> u64 {
        self.0.as_ref().map_or(0, Share::held)
    }

    /// Takes the share, if there is one.
    pub fn take(&mut self) -> Option<Share> {
        self.0.take()
    }
}

impl Drop for Share {
    /// Gives everything back (B3).
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.granted - FREE, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn budget(limit: u64) -> Arc<Budget> {
        let budget = Arc::new(Budget::default());
        budget.set_limit(limit);
        budget
    }

    #[test]
    fn little_is_not_counted_and_all_is_given_back() {
        let budget = budget(64 * MB);
        let mut share = budget.share();
        share.grow(FREE).unwrap();
        assert_eq!(budget.used(), 0);
        share.grow(10 * MB).unwrap();
        assert!(budget.used() >= 10 * MB);
        share.shrink(10 * MB);
        assert!(budget.used() <= AHEAD);
        share.set(20 * MB).unwrap();
        drop(share);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn one_that_fills_the_budget_fails_and_others_still_get_their_part() {
        let budget = budget(64 * MB);
        let mut greedy = budget.share();
        while greedy.grow(MB).is_ok() {}
        assert!((62 * MB..=64 * MB).contains(&greedy.held()), "{}", greedy.held());
        let mut modest = budget.share();
        modest.grow(MB).unwrap();
        assert_eq!(modest.grow(MB), Err(Full));
        assert_eq!((modest.held(), budget.refused()), (MB, 2));
        drop(greedy);
        modest.grow(32 * MB).unwrap();
    }

    #[test]
    fn what_holds_little_never_asks() {
        let budget = budget(MB);
        let mut holding = Holding::default();
        for bytes in [0, FREE, 10] {
            holding.set(&budget, bytes).unwrap();
            assert_eq!((holding.held(), Arc::strong_count(&budget)), (0, 1));
        }
        holding.set(&budget, MB / 2).unwrap();
        assert_eq!((holding.set(&budget, 2 * MB), holding.held()), (Err(Full), MB / 2));
        holding.set(&budget, 10).unwrap();
        assert!(budget.used() <= AHEAD && holding.held() == 10);
        drop(holding.take());
        assert_eq!((budget.used(), Arc::strong_count(&budget)), (0, 1));
    }

    #[test]
    fn what_is_forced_leaves_others_their_part_only() {
        let budget = budget(64 * MB);
        let mut large = budget.share();
        large.force(100 * MB);
        let mut other = budget.share();
        other.grow(MB / 2).unwrap();
        assert_eq!(other.grow(10 * MB), Err(Full));
        large.force(MB);
        drop(large);
        other.grow(10 * MB).unwrap();
        drop(other);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn without_a_limit_nothing_is_refused_but_all_is_counted() {
        let budget = budget(0);
        let mut share = budget.share();
        share.grow(1 << 40).unwrap();
        assert!(budget.used() >= 1 << 40);
    }
}
