//! What writes replaced while snapshots were active: per shard, per key, in the order of the writes.
//!
//! - H1: a key touched by a write with LSN n while a snapshot was active has what was there before, at n; several per key in
//!   ascending order. Reading at s: the first with n > s, else the table.
//! - H2: they go a generation at a time: what is kept becomes old when nothing older is left, and goes when no snapshot needs
//!   any of it. So what snapshots that overlap without end keep is bounded by how long each of them lives.
//! - H3: `bytes` is about what they keep alive: the text of small values, and of large ones, which share with what the
//!   table has now, what the caller says (`weigh`).
//! - H4: whoever prunes comes now and then only; many short snapshots in between, one after the other, would let every version
//!   of a large value pile up that a write of each replaces. So a write prunes first when what was kept since the last pruning,
//!   shared or not, is as much as that one left (`is_due`).
//!
//! `tests/models` runs this file with `sequence.rs` in every order of their steps.

use crate::entry::Owned;
use crate::sequence::Lsn;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// What a write replaced: the LSN of that write, what its thread was doing (`stdx::doing`), the entry before it, and how many
/// bytes that keeps alive at most.
struct PreImage {
    lsn: Lsn,
    by: u64,
    before: Option<Owned>,
    bytes: usize,
}

type KeyId = (usize, Box<[u8]>);

/// Bytes of a kept key beside its text and value.
pub(crate) const KEPT: usize = 120;

#[derive(Default)]
struct Images {
    map: HashMap<KeyId, Vec<PreImage>>,
    /// The newest LSN anything was kept at.
    newest: Lsn,
    bytes: usize,
}

/// Two generations, so that what is old can go at once while new ones come all the time (H2).
#[derive(Default)]
pub(crate) struct PreImages {
    old: Images,
    young: Images,
    /// Bytes that were left by the last pruning, and those of what was kept since, each version in whole.
    left: usize,
    since: usize,
}

/// What a shard keeps of less is not worth a look by a write (H4).
const FEW_BYTES: usize = 128 << 10;

impl Images {
    fn first_after(&self, db: usize, key: &[u8], s: Lsn) -> Option<&PreImage> {
        if self.newest <= s || self.map.is_empty() {
            return None;
        }
        self.map.get(&(db, Box::from(key)))?.iter().find(|image| image.lsn > s)
    }

    fn len_at(&self, s: Lsn) -> usize {
        if self.newest <= s { 0 } else { self.map.len() }
    }

    fn iter_at(&self, db: usize, s: Lsn) -> impl Iterator<Item = (&[u8], &PreImage)> {
        let map = (self.newest > s).then_some(&self.map);
        map.into_iter()
            .flatten()
            .filter(move |((d, _), _)| *d == db)
            .filter_map(move |((_, key), chain)| Some((&key[..], chain.iter().find(|image| image.lsn > s)?)))
    }

    /// Forgets everything; what is much is freed elsewhere.
    fn clear(&mut self) {
        let Images { map, .. } = std::mem::take(self);
        if map.len() > 64 {
            stdx::reclaim::defer(map.len() * 64, move || drop(map));
        }
    }
}

impl PreImages {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.young.map.is_empty() && self.old.map.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.old.map.len() + self.young.map.len()
    }

    /// Bytes they keep alive, at most.
    pub(crate) fn bytes(&self) -> usize {
        self.old.bytes + self.young.bytes
    }

    /// Keeps `before` unless no snapshot older than the last kept one needs it. `newest`: the newest active snapshot.
    /// `weigh` tells, of what is kept last and the bytes it was said to keep alive before this write, how many it does now, and
    /// how many more it would at most.
    pub(crate) fn keep(
        &mut self,
        db: usize,
        key: &[u8],
        lsn: Lsn,
        newest: Lsn,
        before: impl FnOnce() -> Option<Owned>,
        weigh: impl FnOnce(Option<&Owned>, usize) -> (usize, usize),
    ) {
        let PreImages { old, young, since, .. } = self;
        let id = (db, key.into());
        // What is new of a key stands behind what is old of it.
        let earlier = old.map.get_mut(&id).and_then(|chain| chain.last_mut());
        let chain = young.map.entry(id);
        let last = match &chain {
            Entry::Occupied(chain) => chain.get().last(),
            Entry::Vacant(_) => earlier.as_deref(),
        };
        let image = if last.map(|image| image.lsn).is_none_or(|last| last <= newest && last != lsn) {
            // A commit is folded at an LSN that may be older than what others wrote since.
            young.newest = young.newest.max(lsn);
            let chain = chain.or_default();
            chain.push(PreImage { lsn, by: stdx::doing::now(), before: before(), bytes: 0 });
            chain.last_mut()
        } else if let Entry::Occupied(chain) = chain {
            chain.into_mut().last_mut()
        } else {
            None
        };
        let (image, sum) = match (image, earlier) {
            (Some(image), _) => (image, &mut young.bytes),
            (None, Some(image)) => (image, &mut old.bytes),
            (None, None) => return,
        };
        let (bytes, whole) = weigh(image.before.as_ref(), image.bytes);
        let bytes = bytes.max(image.bytes);
        *since += whole;
        *sum += bytes - std::mem::replace(&mut image.bytes, bytes);
    }

    /// Whose write was the first after `s`, as far as one is kept: None if nothing changed since.
    pub(crate) fn changed_by(&self, db: usize, key: &[u8], s: Lsn) -> Option<u64> {
        Some(self.first_after(db, key, s)?.by)
    }

    fn first_after(&self, db: usize, key: &[u8], s: Lsn) -> Option<&PreImage> {
        self.old.first_after(db, key, s).or_else(|| self.young.first_after(db, key, s))
    }

    /// What was there at `s`: None if nothing changed since, so that the table answers.
    pub(crate) fn at(&self, db: usize, key: &[u8], s: Lsn) -> Option<Option<&Owned>> {
        Some(self.first_after(db, key, s)?.before.as_ref())
    }

    /// Keys kept, as far as a snapshot at `s` may have to look at them.
    pub(crate) fn len_at(&self, s: Lsn) -> usize {
        self.old.len_at(s) + self.young.len_at(s)
    }

    pub(crate) fn iter_at(&self, db: usize, s: Lsn) -> impl Iterator<Item = (&[u8], Option<&Owned>)> {
        let young = self.young.iter_at(db, s);
        let young = young.filter(move |(key, _)| self.old.first_after(db, key, s).is_none());
        self.old.iter_at(db, s).chain(young).map(|(key, image)| (key, image.before.as_ref()))
    }

    /// Forgets what no snapshot from `oldest` on needs, a generation at a time. O(1).
    pub(crate) fn prune(&mut self, oldest: Lsn) {
        if self.old.newest <= oldest {
            self.old.clear();
            std::mem::swap(&mut self.old, &mut self.young);
        }
        if self.old.newest <= oldest {
            self.old.clear();
        }
        (self.left, self.since) = (self.bytes(), 0);
    }

    /// Whether a write should prune before it adds to them (H4).
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.since >= FEW_BYTES.max(self.left)
    }

    /// Forgets everything; large contents are freed elsewhere.
    pub(crate) fn clear(&mut self) {
        self.old.clear();
        self.young.clear();
        (self.left, self.since) = (0, 0);
    }
}
