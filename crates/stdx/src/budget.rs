//! Memory that long work may hold together, and who may have more of it.
//!
//! ```text
//!   script, job, EXEC ─► Share::grow ─► free part? ─► its fair share? ─► room for all? ─► Full
//! ```
//!
//! - B1: the first [`FREE`] bytes of a share are not counted, so short work touches no shared word.
//! - B2: a share grows while it is under a [`FAIR`]th of the limit, whoever holds the rest. So one that fills the budget
//!   does not make others fail, and the whole stays under the limit and a `FAIR`th of it for each further share.
//! - B3: what a share took it gives back when it is dropped.
//!
//! Costs: a comparison within what was granted; else one atomic addition.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a share that nobody counts.
pub const FREE: u64 = 64 << 10;
/// The part of the limit that every share may have.
pub const FAIR: u64 = 64;
/// A share asks for so many bytes more than it needs now.
const AHEAD: u64 = 64 << 10;

/// The limit, and what is held under it.
#[derive(Default, Debug)]
pub struct Budget {
    /// 0: none.
    limit: AtomicU64,
    used: AtomicU64,
    refused: AtomicU64,
}

/// The budget has no room for so much more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl Budget {
    /// Bytes that all shares may hold together; 0 is no limit. What is held already stays.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// The limit in bytes; 0 is none.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Bytes that are held now, beside the free part of each share (B1).
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// How often a share did not get what it asked for.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// A share that holds nothing yet.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { budget: self.clone(), held: 0, granted: FREE }
    }
}

/// What one piece of work holds.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    held: u64,
    /// With the free part (B1).
    granted: u64,
}

impl Share {
    /// Takes so many bytes more. `Full`: nothing was taken, and the work is to fail. O(1).
    #[inline]
    pub fn grow(&mut self, bytes: u64) -> Result<(), Full> {
        let held = self.held.saturating_add(bytes);
        if held > self.granted {
            self.ask(held)?;
        }
        self.held = held;
        Ok(())
    }

    /// Gives so many bytes back. O(1).
    pub fn shrink(&mut self, bytes: u64) {
        self.held = self.held.saturating_sub(bytes);
        let keep = self.held.saturating_add(AHEAD).max(FREE);
        if keep < self.granted {
            self.budget.used.fetch_sub(self.granted - keep, Relaxed);
            self.granted = keep;
        }
    }

    /// Holds exactly so many bytes from now on, as [`grow`](Share::grow) or [`shrink`](Share::shrink) would.
    pub fn set(&mut self, bytes: u64) -> Result<(), Full> {
        if bytes >= self.held {
            return self.grow(bytes - self.held);
        }
        self.shrink(self.held - bytes);
        Ok(())
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
            self.budget.refused.fetch_add(1, Relaxed);
            return Err(Full);
        }
        self.granted = granted;
        Ok(())
    }
}

impl Drop for Share {
    /// B3.
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
    fn without_a_limit_nothing_is_refused_but_all_is_counted() {
        let budget = budget(0);
        let mut share = budget.share();
        share.grow(1 << 40).unwrap();
        assert!(budget.used() >= 1 << 40);
    }
}
