//! All keys: shards, segments, expiry, the sequence of writes and snapshots.
//!
//! ```text
//! Keyspace ── 256 shards, each behind a short lock
//!   shard  ── per database a directory of segments      segment.rs
//!             pre-images for active snapshots            sequence.rs, shard.rs
//!             watchers and blocked clients of a key      shard.rs
//!             clients that keep a copy of a key          tracked.rs
//!   evict  ── which keys go when memory is short        evict/
//!   View   ── what a command sees: locked shards, or an overlay at a snapshot   view.rs, overlay.rs
//!   Walk   ── everything as it was at one LSN, for a file or a replica   walk.rs
//! ```
//!
//! - K1: the hash of a key alone decides its shard, its place in the directory and its line. The serving path
//!   never allocates, copies or frees in proportion to the number of keys.
//! - K2: locks are taken in ascending shard order, all at once (`stdx::locks`), and released at the end of
//!   the command.
//! - K3: an expired key is absent to every reader from its millisecond on, swept or not.
//! - K4: an empty collection is removed; a compressed bitmap without bits stays.
//! - K5: under the same locks a write becomes visible, is kept for older snapshots, is counted, and is told
//!   to watchers.

mod beside;
pub mod cursors;
mod elsewhere;
mod entry;
mod evict;
mod guard;
mod happened;
mod intent;
mod overlay;
mod preimages;
mod recent;
mod record;
mod retained;
mod segment;
mod sequence;
mod shard;
mod still;
mod sweep;
mod tell;
#[cfg(test)]
mod tests;
mod tracked;
mod underway;
mod view;
mod walk;

pub use beside::{BESIDE, Beside};
pub use elsewhere::Elsewhere;
pub use entry::{EntryRef, Owned, Payload, StrMut, Times};
pub use evict::{Evicted, Policy};
pub use guard::{Guarded, Protection};
pub use happened::{Happened, Happening, Run};
pub use intent::{Commit, Progress, Words};
pub use overlay::{Chunk, Conflict, KeyBatches, Look, Lost, Overlay};
pub use retained::{Limits, Revoked};
pub use sequence::{Ended, Lsn, Snapshot};
pub use still::{Paused, Pausing, Still, Why};
pub use sweep::{Sweep, Swept};
pub use tell::{Announce, At, CommitSink, EffectVisitor, Effects, Mark, To, debug_assert_no_slot};
pub use tracked::{Author, Crowd, Reader, Readers};
pub use view::{Changes, Class, Event, Item, KeySet, Keys, Ready, Told, View, Watched, WrongType};
pub use walk::{Walk, WalkEntry, WalkError, WalkFigures, WalkLimits, WalkMark, WalkSink, WalkValue, Walked};

use sequence::Sequence;
use shard::Shard;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use stdx::hash::hash_bytes;
use stdx::locks::{Bits, Guard, Sharded};

/// Active snapshots of long work at once (S3).
pub const MAX_LONG: usize = 64;
/// Active snapshots of all kinds at once.
pub const MAX_ACTIVE: usize = MAX_LONG + 32;

/// Shards of a keyspace.
pub const SHARDS: usize = 1 << segment::SHARD_BITS;

#[derive(Default)]
struct Counts {
    keys: AtomicI64,
    expires: AtomicI64,
    /// Bytes of entries: in pages, and outside of them.
    rooms: AtomicI64,
    outside: AtomicI64,
    /// Whether a field of a hash ever got an expiry. It is cleared only when other data take the place of
    /// these: the sweep is cheap where nothing expires.
    fields: AtomicBool,
    /// Keys that expired, and that were evicted, since the start.
    expired: AtomicU64,
    evicted: AtomicU64,
    /// Mean time to live of the keys the sweep looked at.
    ttl_ms: AtomicU64,
    /// How much longer entries are kept than they are good ([`Keyspace::set_grace`]).
    grace_ms: AtomicU64,
    /// How often the database was exchanged, and how often its tables were replaced in any way
    /// (`view/watched.rs`).
    swaps: AtomicU64,
    replaced: AtomicU64,
    /// When the database was exchanged last (milliseconds since 1970).
    exchanged_ms: AtomicU64,
}

impl Counts {
    /// Takes over what is said of the keys that are there. All shards are locked. O(1)
    fn become_those_of(&self, other: &Counts) {
        let take = |to: &AtomicI64, from: &AtomicI64| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        take(&self.keys, &other.keys);
        take(&self.expires, &other.expires);
        take(&self.rooms, &other.rooms);
        take(&self.outside, &other.outside);
    }
}

/// Counters of the whole keyspace; all relaxed.
#[derive(Default)]
pub struct Stats {
    pub expired_keys: AtomicU64,
    pub expired_fields: AtomicU64,
    pub evicted_keys: AtomicU64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub dirty: AtomicU64,
}

/// All keys of the server, in all databases. See the module.
pub struct Keyspace {
    pub(crate) shards: Sharded<Shard>,
    pub(crate) sequence: Sequence,
    counts: Box<[Counts]>,
    /// Databases that can be selected.
    visible: usize,
    pub(crate) durable: recent::Durable,
    generation: AtomicU64,
    /// Wanted notification classes, as bits of [`Class`]; 0 = none.
    notify: AtomicU32,
    active_expire: AtomicU32,
    /// Why nothing may change now. A reader that meets an expired key leaves it in place then.
    pub still: Still,
    /// Import mode: nothing expires but by a write.
    imports: AtomicBool,
    /// It is a copy of another server's, which says what is removed.
    follows: AtomicBool,
    pub stats: Stats,
    /// Records that may have intents in shards (`intent.rs` I5).
    pub(crate) intents: AtomicUsize,
    pub(crate) underway: underway::Underway,
    pub(crate) walk: walk::Slot,
    pub(crate) guards: guard::Guards,
    pub cursors: cursors::Cursors,
    pub(crate) evict: evict::Evict,
    /// Batches of emptied tables that wait to be freed.
    flushing: Arc<AtomicUsize>,
    /// Databases from this one on never had a key.
    touched: AtomicUsize,
    pub(crate) retained: retained::Retained,
    pub(crate) elsewhere: elsewhere::Kept,
    closed: OnceLock<Box<dyn Fn() + Send + Sync>>,
    pub(crate) tracked: tracked::Tracked,
}

#[inline]
pub(crate) fn shard_of(hash: u64) -> usize {
    (hash >> (64 - segment::SHARD_BITS)) as usize
}

/// Keys fetched into the cache under one set of locks.
const PREFETCHED: usize = 16;

impl Keyspace {
    /// An empty keyspace with `databases` databases. Takes about 100 KB until keys come.
    pub fn new(databases: usize) -> Arc<Keyspace> {
        Keyspace::with_hidden(databases, 0, 1)
    }

    /// As `new`, with `hidden` further databases that no client can select. They come after the visible ones
    /// and publish no events. `together` of them share one eviction budget.
    pub fn with_hidden(visible: usize, hidden: usize, together: usize) -> Arc<Keyspace> {
        let databases = visible + hidden;
        let shard =
            || Shard { dbs: (0..databases).map(|_| Default::default()).collect(), ..Shard::default() };
        Arc::new(Keyspace {
            shards: Sharded::new((0..SHARDS).map(|_| shard())),
            sequence: Sequence::default(),
            counts: (0..databases).map(|_| Counts::default()).collect(),
            visible,
            durable: recent::Durable::default(),
            generation: AtomicU64::new(0),
            notify: AtomicU32::new(0),
            active_expire: AtomicU32::new(1),
            still: Still::default(),
            imports: AtomicBool::new(false),
            follows: AtomicBool::new(false),
            stats: Stats::default(),
            intents: AtomicUsize::new(0),
            underway: underway::Underway::default(),
            walk: walk::Slot::default(),
            guards: guard::Guards::default(),
            cursors: cursors::Cursors::default(),
            evict: evict::Evict::new(visible, hidden, together),
            flushing: Arc::default(),
            touched: AtomicUsize::new(0),
            retained: retained::Retained::default(),
            elsewhere: elsewhere::Kept::default(),
            closed: OnceLock::new(),
            tracked: tracked::Tracked::default(),
        })
    }

    /// Databases that a client can select.
    pub fn databases(&self) -> usize {
        self.visible
    }

    /// All databases; the hidden ones come last.
    pub fn all_databases(&self) -> usize {
        self.counts.len()
    }

    /// Mean time to live, in milliseconds, of a database's keys that expire; 0 if none does. The sweep
    /// samples it. O(1).
    pub fn avg_ttl_ms(&self, db: usize) -> u64 {
        if self.expires(db) == 0 { 0 } else { self.counts[db].ttl_ms.load(Ordering::Relaxed) }
    }

    /// Forgets the mean time to live of a database without keys that expire.
    pub(crate) fn forget_ttl(&self, db: usize) {
        self.counts[db].ttl_ms.store(0, Ordering::Relaxed);
    }

    /// Adds a sampled time to live to the mean, with a weight of 1/50.
    pub(crate) fn note_ttl(&self, db: usize, ms: u64) {
        let mean = &self.counts[db].ttl_ms;
        // Only the sweep writes it, and a lost sample does no harm.
        match mean.load(Ordering::Relaxed) {
            0 => mean.store(ms, Ordering::Relaxed),
            so_far => mean.store(so_far / 50 * 49 + ms / 50, Ordering::Relaxed),
        }
    }

    /// Sets the wanted notification classes ([`Class::bit`]).
    pub fn set_notify(&self, classes: u32) {
        self.notify.store(classes, Ordering::Relaxed);
    }

    #[inline]
    pub fn notifies(&self, class: Class) -> bool {
        self.notify.load(Ordering::Relaxed) & class.bit() != 0
    }

    /// Switches the sweep on or off (DEBUG SET-ACTIVE-EXPIRE).
    pub fn set_active_expire(&self, on: bool) {
        self.active_expire.store(on.into(), Ordering::Relaxed);
    }

    /// Switches import mode on or off (`import-mode`): expired keys stay until a write removes them, and times
    /// that have passed are stored as given.
    pub fn set_imports(&self, on: bool) {
        self.imports.store(on, Ordering::Relaxed);
    }

    /// Whether nothing that clients can see expires by itself: in import mode, and on a replica.
    #[inline]
    pub fn imports(&self) -> bool {
        self.imports.load(Ordering::Relaxed) || self.follows()
    }

    /// Begins or ends to follow another server: its own clock and memory remove nothing then that clients can
    /// see.
    pub fn set_follows(&self, on: bool) {
        self.follows.store(on, Ordering::Release);
    }

    /// Whether it follows another server.
    #[inline]
    pub fn follows(&self) -> bool {
        self.follows.load(Ordering::Acquire)
    }

    pub(crate) fn active_expire(&self) -> bool {
        self.active_expire.load(Ordering::Relaxed) != 0
    }

    /// Whether any long commit is under way, decided ones included. O(1).
    #[inline]
    pub fn has_intents(&self) -> bool {
        self.intents.load(Ordering::Relaxed) != 0
    }

    /// Keys in a database. Expired keys that are not swept yet count. O(1).
    pub fn len(&self, db: usize) -> usize {
        self.counts[db].keys.load(Ordering::Relaxed).max(0) as usize
    }

    pub fn is_empty(&self) -> bool {
        (0..self.all_databases()).all(|db| self.len(db) == 0)
    }

    /// Keys with an expiry in a database. O(1).
    pub fn expires(&self, db: usize) -> usize {
        self.counts[db].expires.load(Ordering::Relaxed).max(0) as usize
    }

    /// Whether the sweep has work in a database: keys that expire, or fields that ever did. Import mode
    /// protects the databases that clients can select. O(1).
    pub(crate) fn can_expire(&self, db: usize) -> bool {
        if self.imports() && db < self.databases() {
            return false;
        }
        self.expires(db) > 0 || self.counts[db].fields.load(Ordering::Relaxed)
    }

    /// Whether a visible database ever had a field with a time. O(databases).
    pub fn has_field_times(&self) -> bool {
        self.counts[..self.visible].iter().any(|counts| counts.fields.load(Ordering::Relaxed))
    }

    /// Notes that a database has fields that expire.
    pub(crate) fn note_fields(&self, db: usize) {
        if !self.counts[db].fields.load(Ordering::Relaxed) {
            self.counts[db].fields.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn count(&self, db: usize, keys: i64, expires: i64, bytes: segment::Bytes) {
        let counts = &self.counts[db];
        let add = |to: &AtomicI64, n: i64| {
            if n != 0 {
                to.fetch_add(n, Ordering::Relaxed);
            }
        };
        if keys > 0 && self.touched.load(Ordering::Relaxed) <= db {
            self.touched.fetch_max(db + 1, Ordering::Relaxed);
        }
        add(&counts.keys, keys);
        add(&counts.expires, expires);
        add(&counts.rooms, bytes.rooms);
        add(&counts.outside, bytes.outside);
    }

    /// Bytes of a database's entries: in the pages of its segments, and outside of them. O(1). Content that
    /// values share is counted once for each value.
    pub fn entry_bytes(&self, db: usize) -> (u64, u64) {
        let bytes = |count: &AtomicI64| count.load(Ordering::Relaxed).max(0) as u64;
        (bytes(&self.counts[db].rooms), bytes(&self.counts[db].outside))
    }

    /// Keys of a database that expired, and keys that were evicted, since the start. O(1).
    pub fn removed_keys(&self, db: usize) -> (u64, u64) {
        let counts = &self.counts[db];
        (counts.expired.load(Ordering::Relaxed), counts.evicted.load(Ordering::Relaxed))
    }

    /// Sets how much longer the entries of a database are kept than they are good. An entry's expiry is the
    /// later moment; TTL reports the earlier one.
    pub fn set_grace(&self, db: usize, grace_ms: u64) {
        self.counts[db].grace_ms.store(grace_ms, Ordering::Relaxed);
    }

    pub fn grace_ms(&self, db: usize) -> u64 {
        self.counts[db].grace_ms.load(Ordering::Relaxed)
    }

    /// Sums `entry_bytes` over all databases. O(databases that ever had keys).
    pub fn all_entry_bytes(&self) -> (u64, u64) {
        let touched = self.touched.load(Ordering::Relaxed);
        (0..touched).map(|db| self.entry_bytes(db)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }

    /// Counts replacements of whole tables.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    pub fn last_lsn(&self) -> Lsn {
        self.sequence.last()
    }

    pub fn active_snapshots(&self) -> usize {
        self.sequence.active()
    }

    /// Whether whole tables still wait to be freed. Their segments are in use; their entries are no longer
    /// counted.
    pub fn is_flushing(&self) -> bool {
        self.flushing.load(Ordering::Relaxed) > 0
    }

    /// Bytes of all segments, tables and pages. Memory behind handles is not included.
    pub fn segment_bytes() -> usize {
        Keyspace::pool_bytes() + Keyspace::little_bytes()
    }

    /// Bytes of segments in pages that the general allocator does not know.
    pub fn pool_bytes() -> usize {
        stdx::pages::SMALL.used_bytes() + stdx::pages::LARGE.used_bytes()
    }

    /// Bytes of segments that the general allocator counts as well.
    pub fn little_bytes() -> usize {
        segment::little_bytes()
    }

    /// Bytes of this keyspace's segments; for tests. Locks all shards. O(segments).
    pub fn footprint(&self) -> usize {
        let guard = self.shards.lock_all();
        (0..SHARDS).flat_map(|shard| guard.get(shard).dbs.iter()).map(segment::Directory::footprint).sum()
    }

    /// The shards of some keys.
    #[inline]
    pub fn shards_of<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Bits {
        let mut bits = Bits::EMPTY;
        keys.into_iter().for_each(|key| bits.insert(shard_of(hash_bytes(key))));
        bits
    }

    #[inline]
    pub(crate) fn lock(&self, shards: Bits) -> Guard<'_, Shard> {
        debug_assert_no_slot();
        self.shards.lock(shards)
    }

    /// Ends a [`View::watch`]: `dirty` is no longer marked.
    pub fn unwatch(&self, db: usize, key: &[u8], dirty: &Arc<std::sync::atomic::AtomicBool>) {
        let shard = shard_of(hash_bytes(key));
        self.shards.lock_one(shard).get_mut(shard).interest.unwatch(db, key, dirty);
    }

    /// Registers a client that is blocked on the key. Writes to the key then report it in [`Changes::ready`].
    /// The caller must look at the key once more afterwards, or hold its shard in a view meanwhile.
    pub fn block(&self, db: usize, key: &[u8]) {
        let shard = shard_of(hash_bytes(key));
        self.shards.lock_one(shard).get_mut(shard).interest.block(db, key);
    }

    /// The author of the first write to a key since `since`, while a snapshot of that time is open. O(1).
    pub fn changed_by(&self, db: usize, key: &[u8], since: Lsn) -> Option<u64> {
        let shard = shard_of(hash_bytes(key));
        self.shards.lock_one(shard).get(shard).pre.changed_by(db, key, since)
    }

    pub fn unblock(&self, db: usize, key: &[u8]) {
        let shard = shard_of(hash_bytes(key));
        self.shards.lock_one(shard).get_mut(shard).interest.unblock(db, key);
    }

    /// Fetches the lines, then the entries, of a batch's keys into the cache, so that the waits for memory
    /// overlap. Takes at most [`PREFETCHED`] keys at a time, and holds their shards' locks for about one wait
    /// for memory.
    pub fn prefetch(&self, db: usize, hashes: &[u64]) {
        for hashes in hashes.chunks(PREFETCHED) {
            let mut shards = Bits::EMPTY;
            hashes.iter().for_each(|hash| shards.insert(shard_of(*hash)));
            let guard = self.shards.lock(shards);
            hashes.iter().for_each(|hash| guard.get(shard_of(*hash)).dbs[db].prefetch_line(*hash));
            hashes.iter().for_each(|hash| guard.get(shard_of(*hash)).dbs[db].prefetch_entry(*hash));
        }
    }

    /// Adds to `chunk` the keys at `s` from `position` to the end of its segment. True if the chunk has
    /// `want` keys or there are no more. O(entries of a segment), under its shard's lock.
    pub fn extend_chunk(&self, s: Lsn, db: usize, position: u64, want: usize, chunk: &mut Chunk) -> bool {
        let from = chunk.next.unwrap_or(position);
        chunk.next = self.visit_at(s, db, from, &mut |key, expire_ms, kind| {
            let hash = hash_bytes(key);
            if hash >= position {
                chunk.keys.push((hash, key.into(), expire_ms, kind));
            }
        });
        chunk.next.is_none() || chunk.keys.len() >= want
    }

    /// Checks every structural invariant; for tests. O(keys). Panics if one is broken.
    pub fn check_invariants(&self) {
        let guard = self.shards.lock_all();
        for db in 0..self.all_databases() {
            let (mut keys, mut expires, mut bytes) = (0, 0, segment::Bytes::default());
            for shard in 0..SHARDS {
                let directory = &guard.get(shard).dbs[db];
                directory.check_invariants();
                keys += directory.len();
                expires += directory.expires();
                bytes += directory.bytes();
            }
            assert_eq!((keys, expires), (self.len(db), self.expires(db)));
            assert_eq!(self.entry_bytes(db), (bytes.rooms as u64, bytes.outside as u64));
        }
    }
}
