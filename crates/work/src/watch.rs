//! WATCH: keys a client watches, and the mark that any touch of them sets.

use crate::piece::{Desk, Piece, Step};
use crate::works::KEYS;
use keyspace::{Changes, Keyspace, View, Watched};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stdx::budget::Holding;

/// Keys watched in one slice, and forgotten.
pub const AT_A_STRETCH: usize = 200;

/// Keys of WATCH, and the mark that any touch of them sets.
#[derive(Default)]
pub struct Watch {
    pub dirty: Arc<AtomicBool>,
    /// Database and key, and what was there. A tree, for it never grows by leaps.
    pub keys: BTreeMap<(usize, Box<[u8]>), Watched>,
    /// Things that are watched besides, once EXEC has begun elsewhere.
    pub others: Option<Box<dyn Others>>,
    /// About what they take, of what work may hold.
    pub bytes: usize,
    pub holding: Holding,
}

/// Watched things that are no keys of the keyspace.
pub trait Others: Send {
    /// Whether one of them was told to have changed.
    fn are_marked(&self) -> bool;

    /// Forgets so many; true if some are left.
    fn forget_some(&mut self, count: usize) -> bool;
}

impl Watch {
    #[inline]
    pub fn has(&self, db: usize, key: &[u8]) -> bool {
        !self.keys.is_empty() && self.keys.contains_key(&(db, Box::from(key)))
    }

    /// Whether a key was touched in a way that sets no mark; leaves the view at any database. O(keys).
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

    /// Forgets so many watched keys; true if some are left.
    pub fn forget_some(&mut self, keyspace: &Keyspace, count: usize) -> bool {
        for _ in 0..count {
            let Some(((db, key), _)) = self.keys.pop_last() else {
                return self.others.as_mut().is_some_and(|others| others.forget_some(count));
            };
            keyspace.unwatch(db, &key, &self.dirty);
        }
        !self.keys.is_empty() || self.others.is_some()
    }

    /// Has what decided long commits have still to write of watched keys written, [`AT_A_STRETCH`] keys at a
    /// time; true if some are left. `last` is the last of them, `told` gets what is to be told. A snapshot
    /// shows what was decided before it, but the watches' mark is set only when it is written: so this comes
    /// between the snapshot and the look at the mark.
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

/// Watched keys nobody watches any more.
impl Piece for Watch {
    fn advance(mut self: Box<Self>, desk: &mut Desk<'_>) -> Step {
        match self.forget_some(&desk.work.keyspace, KEYS) {
            true => Step::More(self),
            false => Step::Over(None),
        }
    }
}
