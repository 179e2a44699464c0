//! Reading keys as of a snapshot: one, several, or a part of the hash order.

use super::near::KeyBatch;
use super::{Found, KeyBatches, Visitor};
use crate::entry::{EntryRef, Owned};
use crate::segment::SHARD_BITS;
use crate::sequence::{Lsn, Sequence};
use crate::shard::Shard;
use crate::{Keyspace, shard_of};
use smallvec::SmallVec;
use std::ops::Range;
use stdx::hash::hash_bytes;
use stdx::locks::{Bits, Guard};

/// Keys whose shards are locked together: as many as a core fetches into its cache at once. With more, loops
/// that read for scripts meet in the same shards and hold up other clients.
const AT_ONCE: usize = 8;

/// The state of a key at `s`: its first pre-image with a later LSN, else the result of a commit up to `s`,
/// else the table.
pub(crate) fn read_at(
    sequence: &Sequence,
    shard: &Shard,
    db: usize,
    hash: u64,
    key: &[u8],
    s: Lsn,
) -> Option<Owned> {
    if let Some(before) = shard.pre.at(db, key, s) {
        return before.cloned();
    }
    if !shard.intents.is_empty()
        && let Some(becomes) = shard.intents.at(sequence, db, hash, key, s)
    {
        return becomes;
    }
    shard.dbs[db].find(hash, key).map(|entry: EntryRef<'_>| entry.to_owned())
}

impl Keyspace {
    fn lock_all(&self, hashes: impl Iterator<Item = u64>) -> Guard<'_, Shard> {
        let mut shards = Bits::EMPTY;
        hashes.for_each(|hash| shards.insert(shard_of(hash)));
        self.shards.lock(shards)
    }

    /// As [`read_at`]. The key counts as used at `used_ms`, if given.
    pub(super) fn read_in(
        &self,
        shard: &Shard,
        db: usize,
        hash: u64,
        key: &[u8],
        s: Lsn,
        used_ms: Option<u64>,
    ) -> Option<Owned> {
        if shard.pre.is_empty() && shard.intents.is_empty() {
            return self.use_entry(shard, db, hash, key, used_ms).map(|entry| entry.to_owned());
        }
        self.use_entry(shard, db, hash, key, used_ms);
        read_at(&self.sequence, shard, db, hash, key, s)
    }

    /// The entry of a key as it is now. It counts as used at `used_ms`, if given.
    fn use_entry<'a>(
        &self,
        shard: &'a Shard,
        db: usize,
        hash: u64,
        key: &[u8],
        used_ms: Option<u64>,
    ) -> Option<EntryRef<'a>> {
        let spot = shard.dbs[db].spot(hash, key)?;
        let entry = EntryRef::new(spot.entry());
        if let Some(now_ms) = used_ms {
            self.note_use(db, hash, spot, entry, now_ms);
        }
        Some(entry)
    }

    /// The state of a key at an active snapshot's LSN. Locks its shard for one look-up.
    pub fn read_at(&self, db: usize, key: &[u8], s: Lsn) -> Option<Owned> {
        let hash = hash_bytes(key);
        let shard = shard_of(hash);
        let guard = self.shards.lock_one(shard);
        read_at(&self.sequence, guard.get(shard), db, hash, key, s)
    }

    /// Reads some keys as of `s`, and adds the results to `found`, in the same order. `keys` has the hash,
    /// database and name of each, best sorted by hash. They count as used at `used_ms`; with `None` they do
    /// not. Locks a shard once for neighbours in `keys`. O(keys).
    pub fn read_batch<'a>(
        &self,
        s: Lsn,
        used_ms: Option<u64>,
        keys: impl Iterator<Item = (u64, usize, &'a [u8])> + Clone,
        found: &mut Vec<Option<Owned>>,
    ) {
        let mut guard: Option<(usize, stdx::locks::Guard<'_, Shard>)> = None;
        let ahead = keys.clone();
        for (i, (hash, db, key)) in keys.enumerate() {
            let shard = shard_of(hash);
            if guard.as_ref().is_none_or(|(held, _)| *held != shard) {
                drop(guard.take());
                let taken = self.shards.lock_one(shard);
                let near = ahead.clone().skip(i).take_while(|(hash, ..)| shard_of(*hash) == shard);
                near.clone().for_each(|(hash, db, _)| taken.get(shard).dbs[db].prefetch_line(hash));
                near.for_each(|(hash, db, _)| taken.get(shard).dbs[db].prefetch_entry(hash));
                guard = Some((shard, taken));
            }
            if let Some((_, guard)) = &guard {
                found.push(self.read_in(guard.get(shard), db, hash, key, s, used_ms));
            }
        }
    }

    /// Reads some keys as of `s` into `found`, in their order. `keys` has the hash and name of each;
    /// `used_ms` is as for [`Keyspace::read_batch`]. Locks and fetches [`AT_ONCE`] keys at a time. O(keys).
    pub fn read_many<'a>(
        &self,
        s: Lsn,
        used_ms: Option<u64>,
        db: usize,
        mut keys: impl Iterator<Item = (u64, &'a [u8])>,
        found: &mut KeyBatches,
    ) {
        loop {
            let some: SmallVec<[(u64, &[u8]); AT_ONCE]> = keys.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return;
            }
            self.read_together(s, used_ms, db, &some, found);
        }
    }

    fn read_together(
        &self,
        s: Lsn,
        used_ms: Option<u64>,
        db: usize,
        keys: &[(u64, &[u8])],
        found: &mut KeyBatches,
    ) {
        let guard = self.lock_all(keys.iter().map(|(hash, _)| *hash));
        keys.iter().for_each(|(hash, _)| guard.get(shard_of(*hash)).dbs[db].prefetch_line(*hash));
        keys.iter().for_each(|(hash, _)| guard.get(shard_of(*hash)).dbs[db].prefetch_entry(*hash));
        for &(hash, key) in keys {
            let shard = guard.get(shard_of(hash));
            let before = shard.pre.at(db, key, s);
            let made = match before.is_none() && !shard.intents.is_empty() {
                true => shard.intents.at(&self.sequence, db, hash, key, s),
                false => None,
            };
            let room = found.room(db);
            match (before, &made) {
                (Some(Some(owned)), _) | (None, Some(Some(owned))) => room.push_owned(hash, key, owned),
                (Some(None), _) | (None, Some(None)) => room.push(hash, key),
                (None, None) => match self.use_entry(shard, db, hash, key, used_ms) {
                    Some(entry) => room.push_entry(hash, entry),
                    None => room.push(hash, key),
                },
            }
        }
    }

    /// Reads, as of `s`, at most `count` of the keys of which only the names are known; true when all are
    /// read. Locks and fetches [`AT_ONCE`] keys at a time. O(count).
    pub fn read_asked(&self, s: Lsn, used_ms: Option<u64>, keys: &mut KeyBatches, count: usize) -> bool {
        if let Some((batch, which)) = keys.unread(count) {
            for from in which.clone().step_by(AT_ONCE) {
                self.learn_together(s, used_ms, batch, from..which.end.min(from + AT_ONCE));
            }
        }
        keys.are_read()
    }

    fn learn_together(&self, s: Lsn, used_ms: Option<u64>, batch: &mut KeyBatch, which: Range<usize>) {
        let db = batch.db;
        let hashes: SmallVec<[u64; AT_ONCE]> = which.clone().map(|i| batch.named(i).0).collect();
        let guard = self.lock_all(hashes.iter().copied());
        hashes.iter().for_each(|hash| guard.get(shard_of(*hash)).dbs[db].prefetch_line(*hash));
        hashes.iter().for_each(|hash| guard.get(shard_of(*hash)).dbs[db].prefetch_entry(*hash));
        for i in which {
            let (hash, key) = batch.named(i);
            let shard = guard.get(shard_of(hash));
            let before = shard.pre.at(db, key, s);
            let made = match before.is_none() && !shard.intents.is_empty() {
                true => shard.intents.at(&self.sequence, db, hash, key, s),
                false => None,
            };
            match (before, &made) {
                (Some(Some(owned)), _) | (None, Some(Some(owned))) => batch.learn_owned(i, owned),
                (Some(None), _) | (None, Some(None)) => {}
                (None, None) => {
                    let entry = self.use_entry(shard, db, hash, key, used_ms);
                    entry.into_iter().for_each(|entry| batch.learn_entry(i, entry));
                }
            }
        }
    }

    /// Gives value and expiry of some keys at `s` to `f`, in their order, until it returns false. Returns how
    /// many keys `f` got. `used_ms`: as for [`Keyspace::read_batch`]. Locks and fetches [`AT_ONCE`] keys at a
    /// time, and calls `f` under the locks. O(keys).
    pub fn read_each(
        &self,
        s: Lsn,
        used_ms: Option<u64>,
        db: usize,
        keys: &[&[u8]],
        f: &mut dyn FnMut(Option<Found<'_>>) -> bool,
    ) -> usize {
        for (n, some) in keys.chunks(AT_ONCE).enumerate() {
            if let Some(given) = self.read_each_together(s, used_ms, db, some, f) {
                return n * AT_ONCE + given;
            }
        }
        keys.len()
    }

    /// As `read_each`, with all locks at once. `Some(n)`: `f` returned false at the n-th key.
    fn read_each_together(
        &self,
        s: Lsn,
        used_ms: Option<u64>,
        db: usize,
        keys: &[&[u8]],
        f: &mut dyn FnMut(Option<Found<'_>>) -> bool,
    ) -> Option<usize> {
        let hashes: SmallVec<[u64; AT_ONCE]> = keys.iter().map(|key| hash_bytes(key)).collect();
        let guard = self.lock_all(hashes.iter().copied());
        hashes.iter().for_each(|hash| guard.get(shard_of(*hash)).dbs[db].prefetch_line(*hash));
        hashes.iter().for_each(|hash| guard.get(shard_of(*hash)).dbs[db].prefetch_entry(*hash));
        for (i, (key, hash)) in keys.iter().zip(&hashes).enumerate() {
            let shard = guard.get(shard_of(*hash));
            let before = shard.pre.at(db, key, s);
            let made = match before.is_none() && !shard.intents.is_empty() {
                true => shard.intents.at(&self.sequence, db, *hash, key, s),
                false => None,
            };
            let more = match (before, &made) {
                (Some(then), _) => f(then.map(|owned| (owned.value.as_ref(), owned.expire_ms))),
                (None, Some(made)) => f(made.as_ref().map(|owned| (owned.value.as_ref(), owned.expire_ms))),
                (None, None) => {
                    let entry = self.use_entry(shard, db, *hash, key, used_ms);
                    f(entry.map(|entry| (entry.value(), entry.expire_ms())))
                }
            };
            if !more {
                return Some(i + 1);
            }
        }
        None
    }

    /// Adds about `count` keys from `hash` on, as of `s`, to `found`. Returns the end (exclusive) of the part
    /// of the hash order that this covers. Returns `hash`, having read nothing, if the shard has intents or
    /// more than `count` pre-images. O(count), under one shard's lock.
    pub fn read_near(&self, s: Lsn, db: usize, hash: u64, count: usize, found: &mut KeyBatches) -> u64 {
        let shard_id = shard_of(hash);
        let guard = self.shards.lock_one(shard_id);
        let shard = guard.get(shard_id);
        if !shard.intents.is_empty() || shard.pre.len_at(s) > count {
            return hash;
        }
        let (mut seen, mut to) = (0, hash);
        while seen < count && shard_of(to) == shard_id {
            let next = shard.dbs[db].visit_line(to, &mut |at, entry| {
                seen += 1;
                if at >= to && shard.pre.at(db, entry.key(), s).is_none() {
                    found.room(db).push_entry(at, entry);
                }
            });
            match next {
                Some(next) => to = next,
                // The last line of this shard was visited.
                None => {
                    to = match shard_id + 1 {
                        crate::SHARDS => u64::MAX,
                        next => (next as u64) << (64 - SHARD_BITS),
                    };
                    break;
                }
            }
            seen += 1;
        }
        for (key, before) in shard.pre.iter_at(db, s) {
            let at = hash_bytes(key);
            if let (true, Some(before)) = ((hash..to).contains(&at), before) {
                found.room(db).push_owned(at, key, before);
            }
        }
        to
    }

    /// Visits the keys of the segment at `position` as of `s`, and returns the next position. Expired keys
    /// are included; filter by expiry. O(entries of a segment), under its shard's lock.
    pub fn visit_at(&self, s: Lsn, db: usize, position: u64, f: &mut Visitor<'_>) -> Option<u64> {
        let shard_id = shard_of(position);
        let guard = self.shards.lock_one(shard_id);
        let shard = guard.get(shard_id);
        let made = |hash, key: &[u8]| match shard.intents.is_empty() {
            true => None,
            false => shard.intents.at(&self.sequence, db, hash, key, s),
        };
        let next = shard.dbs[db].visit_segment(position, &mut |entry| {
            let replaced = !shard.intents.is_empty() && made(hash_bytes(entry.key()), entry.key()).is_some();
            if !replaced && shard.pre.at(db, entry.key(), s).is_none() {
                f(entry.key(), entry.expire_ms(), entry.kind());
            }
        });
        let end = next.map_or(u64::MAX, |next| next - 1);
        // Keys that changed or went since stand in the pre-images. They belong to this part of the hash
        // order.
        if !shard.pre.is_empty() {
            for (key, before) in shard.pre.iter_at(db, s) {
                let hash = hash_bytes(key);
                let here = shard_of(hash) == shard_id && (position..=end).contains(&hash);
                if let (true, Some(before)) = (here, before) {
                    f(key, before.expire_ms, before.value.kind());
                }
            }
        }
        // Keys committed up to the snapshot that are not in the table yet.
        for placed in shard.intents.made_by(&self.sequence, s) {
            placed.each_within(db, (position, end), &mut |key, becomes| {
                if let (Some(owned), None) = (becomes, shard.pre.at(db, key, s)) {
                    f(key, owned.expire_ms, owned.value.kind());
                }
            });
        }
        next.or_else(|| (shard_id as u64 + 1 < crate::SHARDS as u64).then(|| (shard_id as u64 + 1) << 56))
    }
}
