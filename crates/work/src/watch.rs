//! WATCH: the keys that a client watches, and the mark that any touch of them sets.

use crate::piece::{Desk, Piece, Step};
use crate::works::KEYS;
use keyspace::{Changes, Keyspace, View, Watched};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::budget::Holding;

/// Watched keys that are settled, or forgotten, in one slice.
pub const AT_A_STRETCH: usize = 50;

/// Keys of WATCH, and the mark that any touch of them sets.
#[derive(Default)]
pub struct Watch {
    pub dirty: Arc<AtomicBool>,
    /// Database and key, and the state that was there. It is a tree, which never grows by leaps.
    pub keys: BTreeMap<(usize, Box<[u8]>), Watched>,
    /// Watched things besides keys, once EXEC has begun elsewhere.
    pub others: Option<Box<dyn Others>>,
    /// About the bytes that they take from the budget of work.
    pub bytes: usize,
    pub holding: Holding,
}

/// Watched things that are no keys of the keyspace.
pub trait Others: Send {
    /// Whether a change of one of them was told.
    fn are_marked(&self) -> bool;

    /// Forgets so many. True if some are left.
    fn forget_some(&mut self, count: usize) -> bool;
}

impl Watch {
    #[inline]
    pub fn has(&self, db: usize, key: &[u8]) -> bool {
        !self.keys.is_empty() && self.keys.contains_key(&(db, Box::from(key)))
    }

    /// Whether a key was touched in a way that sets no mark. Leaves the view at any database. O(keys).
    pub fn is_touched(&self, view: &mut View<'_>) -> bool {
        self.keys.iter().any(|((db, key), then)| {
            view.select(*db);
            view.is_touched_since(key, *then)
        })
    }

    /// Whether a key was touched in a way that sets a mark, or one of the others has changed. O(others)
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.dirty.load(Ordering::Acquire) || self.others.as_ref().is_some_and(|others| others.are_marked())
    }

    /// Forgets so many watched keys. True if some are left.
    pub fn forget_some(&mut self, keyspace: &Keyspace, count: usize) -> bool {
        for _ in 0..count {
            let Some(((db, key), _)) = self.keys.pop_last() else {
                return self.others.as_mut().is_some_and(|others| others.forget_some(count));
            };
            keyspace.unwatch(db, &key, &self.dirty);
        }
        !self.keys.is_empty() || self.others.is_some()
    }

    /// Folds decided long commits on watched keys, [`AT_A_STRETCH`] keys at a time. True if some are left.
    /// `last` is the last key done, and `told` gets the changes to be told. A snapshot shows all that was
    /// decided before it, but a watch's mark is set only by the fold. So this comes between the snapshot and
    /// the look at the mark.
    ///
    /// Cost: O([`AT_A_STRETCH`] · log keys).
    pub fn settle_some(
        &self,
        keyspace: &Keyspace,
        now_ms: u64,
        last: &mut Option<(usize, Box<[u8]>)>,
        told: &mut Vec<Changes>,
    ) -> bool {
        if !keyspace.has_intents() {
            return false;
        }
        let from = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.keys.range((from, Bound::Unbounded)).map(|(key, _)| key);
        let mut now = None;
        for (db, key) in rest.by_ref().take(AT_A_STRETCH) {
            let mut view = View::locked_one(keyspace, key, *db, now_ms);
            if view.has_intents() {
                view.settle(&[(*db, key)], false);
            }
            told.push(view.finish());
            now = Some((*db, key));
        }
        let more = rest.next().is_some();
        *last = now.filter(|_| more).map(|(db, key)| (db, key.clone()));
        more
    }
}

/// Watched keys that are given up, forgotten in slices.
impl Piece for Watch {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        match self.forget_some(&desk.work.keyspace, KEYS) {
            true => Step::More(self),
            false => Step::Over(None),
        }
    }
}
