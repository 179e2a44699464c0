//! Pre-images: the entries that writes replaced while snapshots were active, per shard and key, in the order
//! of the writes.
//!
//! - H1: a key touched at LSN n while a snapshot was active has its old state at n; a key's pre-images
//!   ascend. A read at s takes the first with n > s, else the table.
//! - H2: pre-images go a generation at a time. The young generation becomes old when the old one is freed. A
//!   generation is freed when no snapshot needs any of it. So overlapping snapshots keep only what the
//!   lifetime of each one needs.
//! - H3: `bytes` estimates the memory that pre-images keep alive. A small value counts with its text. A large
//!   value shares content with the table, so the caller's `weigh` estimates it.
//! - H4: pruning is rare, and many short snapshots in a row could keep every version of a large value. So a
//!   write prunes first when the pre-images since the last pruning take as much as that one left (`is_due`).
//!
//! `tests/models` runs this file with `sequence.rs` in every order of their steps.

use crate::entry::Owned;
use crate::sequence::Lsn;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A replaced entry: the LSN of the write, its author (`stdx::doing`), the old entry, and how many bytes that
/// keeps alive at most.
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
    /// The newest LSN of a pre-image.
    newest: Lsn,
    bytes: usize,
}

/// Pre-images in two generations, so that old ones go at once while new ones keep coming (H2).
#[derive(Default)]
pub(crate) struct PreImages {
    old: Images,
    young: Images,
    /// Bytes that the last pruning left, and bytes of the versions kept since, each counted in whole.
    left: usize,
    since: usize,
}

/// A write does not prune while fewer bytes than this came to the shard (H4).
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

    /// Forgets everything. The reclaimer frees large contents.
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

    /// Bytes the pre-images keep alive, at most.
    pub(crate) fn bytes(&self) -> usize {
        self.old.bytes + self.young.bytes
    }

    /// Keeps `before` if a snapshot is newer than the key's last pre-image. `newest`: the newest active
    /// snapshot. `weigh` gets the key's last pre-image and the bytes it was said to keep alive. It returns
    /// how many those are after this write, and how many new ones at most.
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
        // Young pre-images of a key come after its old ones.
        let earlier = old.map.get_mut(&id).and_then(|chain| chain.last_mut());
        let chain = young.map.entry(id);
        let last = match &chain {
            Entry::Occupied(chain) => chain.get().last(),
            Entry::Vacant(_) => earlier.as_deref(),
        };
        let image = if last.map(|image| image.lsn).is_none_or(|last| last <= newest && last != lsn) {
            // A commit is folded at an LSN that may be older than later writes of others.
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

    /// The author of the first write to the key after `s`. `None` if the key has no such pre-image.
    pub(crate) fn changed_by(&self, db: usize, key: &[u8], s: Lsn) -> Option<u64> {
        Some(self.first_after(db, key, s)?.by)
    }

    fn first_after(&self, db: usize, key: &[u8], s: Lsn) -> Option<&PreImage> {
        self.old.first_after(db, key, s).or_else(|| self.young.first_after(db, key, s))
    }

    /// The state of the key at `s`. `None`: it is unchanged, and the table answers.
    pub(crate) fn at(&self, db: usize, key: &[u8], s: Lsn) -> Option<Option<&Owned>> {
        Some(self.first_after(db, key, s)?.before.as_ref())
    }

    /// Keys that a snapshot at `s` may have to look up here.
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

    /// Whether a write should prune before it adds a pre-image (H4).
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.since >= FEW_BYTES.max(self.left)
    }

    /// Forgets everything. The reclaimer frees large contents.
    pub(crate) fn clear(&mut self) {
        self.old.clear();
        self.young.clear();
        (self.left, self.since) = (0, 0);
    }
}
