//! The view through which a command reads and writes keys, whichever way it runs.
//!
//! A view is either the locked shards of the command's keys or an overlay at a snapshot; the handler cannot
//! tell which. Reads borrow `&self`, so a handler can look at several values together. An expired key is
//! absent (K3). A write handler changes a value and then calls [`View::changed`] once for the key.
//!
//! - W1: before its first change the view draws its LSN. From then on it keeps every touched key for
//!   snapshots.
//! - W2: the view collects notifications and ready keys. `finish` gives them out after the locks are
//!   released; the caller tells them before it runs another command of the same loop.
//! - W3: keys that came or went are counted once, at the end, with the locks held. DBSIZE sees a command of
//!   many keys whole or not at all; it may see a long commit in part.
//! - W4: a value handed out for a change is weighed again before the next change, or at the end.
//! - W5: a handler looks only at keys that its row declares, which are locked for it. Any other key is a bug
//!   and panics. A cost estimate may guess: to it a key that is not locked is absent.
//! - W6: expired keys that reads met are told to the sink before the next change, as a command may rely on
//!   their absence. They are removed at the end. A fold tells nothing: its commit told what it does.

mod accounts;
mod changed;
mod kept;
mod stale;
mod take_over;
mod telling;
mod typed;
mod watched;
mod whole;

pub use changed::Item;
pub use telling::{Changes, Event, Ready, Told};
pub use watched::Watched;

use crate::beside::Beside;
use crate::entry::{EntryMut, EntryRef, Owned, Payload, Raw, StrMut, Times};
use crate::overlay::Overlay;
use crate::segment::{Bytes, Put, Spot};
use crate::sequence::{Keeps, Lsn};
use crate::shard::Shard;
use crate::walk::Write;
use crate::{Keyspace, SHARDS, shard_of};
use stale::Stale;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stdx::hash::hash_bytes;
use stdx::locks::{Bits, Guard};
use value::{Hash, Ints, Kind, List, Set, Str, StrRef, Stream, Value, ValueRef, ZSet};

/// The key holds a value of another type than the command needs.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct WrongType;

/// A class of keyspace notifications, as `notify-keyspace-events` names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Class {
    Generic,
    String,
    List,
    Set,
    Hash,
    ZSet,
    Expired,
    Evicted,
    Stream,
    New,
    KeyMiss,
}

impl Class {
    /// The class as a bit for [`Keyspace::set_notify`].
    pub const fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// The keys a view may touch.
pub enum Keys {
    /// The keys of some shards.
    Shards(Bits),
    /// All keys.
    Whole,
}

enum Store<'k> {
    Locked(Guard<'k, Shard>),
    Overlay(&'k mut Overlay),
    /// Values that were read before the locks were given back.
    Kept(kept::Kept),
    /// No keys. Only calls about the whole keyspace work; they lock as they go.
    Open,
}

/// The kind of a write to a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    /// The value is changed in place. Its kept version shares most with the new one.
    Edit,
    /// The value is removed or replaced.
    Replace,
}

/// Upper bound on the bytes that one change of a shared value copies, on average.
const EDIT_BYTES: usize = 2048;

impl Touch {
    /// The bytes a kept key keeps alive (`preimages.rs` H3), and how many of them are new, both estimated.
    /// O(height of the value).
    fn weigh(self, key: &[u8], before: Option<&Owned>, so_far: usize) -> (usize, usize) {
        let base = crate::preimages::KEPT + key.len();
        let all = base + before.map_or(0, |owned| owned.value.mem_bytes());
        match self {
            // The new value may be a later version of the old one.
            Touch::Replace => (base + before.map_or(0, |owned| owned.value.alone_bytes()), all),
            Touch::Edit => {
                let now = all.min(so_far.max(base) + EDIT_BYTES);
                (now, now.saturating_sub(so_far))
            }
        }
    }
}

/// Keys that are fetched together.
const TOGETHER: usize = 64;

/// The keys of a command about to run: their shards, and the hashes of the first [`TOGETHER`].
pub struct KeySet {
    shards: Bits,
    hashes: [u64; TOGETHER],
    known: usize,
}

impl Default for KeySet {
    fn default() -> KeySet {
        KeySet { shards: Bits::EMPTY, hashes: [0; TOGETHER], known: 0 }
    }
}

impl KeySet {
    #[inline]
    pub fn add(&mut self, key: &[u8]) {
        let hash = hash_bytes(key);
        self.shards.insert(shard_of(hash));
        if let Some(place) = self.hashes.get_mut(self.known) {
            *place = hash;
            self.known += 1;
        }
    }
}

/// A command's access to the keyspace. See the module.
pub struct View<'k> {
    keyspace: &'k Keyspace,
    store: Store<'k>,
    db: usize,
    now_ms: u64,
    /// Keys that expire by then are absent: the same time, or none.
    due_ms: u64,
    keep: Keeps,
    /// Reads leave no trace in the access byte.
    quiet: bool,
    /// Address, length and hash of the one key the view was made for, so that it is hashed once per command.
    memo: (usize, usize, u64),
    changes: Changes,
    /// Database, keys, keys with an expiry, and bytes: the changes that are not counted yet.
    counted: (usize, i64, i64, Bytes),
    /// A value that is being changed in place: shard, database, entry, and its outside bytes before the
    /// change (W4).
    editing: Option<(usize, usize, Raw, usize)>,
    stale: RefCell<Option<Box<Stale>>>,
    /// The sink is told nothing of what expires: it knows.
    mute: bool,
    /// Keys are looked at to estimate a cost (W5), and so many were that are none of the command's.
    estimating: Cell<bool>,
    strays: Cell<u32>,
}

impl<'k> View<'k> {
    /// Locks some shards until `finish`.
    #[inline]
    pub fn locked(keyspace: &'k Keyspace, shards: Bits, db: usize, now_ms: u64) -> View<'k> {
        View::new(keyspace, Store::Locked(keyspace.lock(shards)), db, now_ms)
    }

    /// Locks the shards of several keys and fetches the lines and entries together, so that the waits for
    /// memory overlap.
    pub fn locked_many(keyspace: &'k Keyspace, keys: &KeySet, db: usize, now_ms: u64) -> View<'k> {
        let guard = keyspace.lock(keys.shards);
        let hashes = &keys.hashes[..keys.known];
        if hashes.len() > 1 && db < keyspace.all_databases() {
            hashes.iter().for_each(|hash| guard.get(shard_of(*hash)).dbs[db].prefetch_line(*hash));
            hashes.iter().for_each(|hash| guard.get(shard_of(*hash)).dbs[db].prefetch_entry(*hash));
        }
        View::new(keyspace, Store::Locked(guard), db, now_ms)
    }

    /// Locks the shard of a single key. The key must not move while the view lives: it is hashed once.
    #[inline]
    pub fn locked_one(keyspace: &'k Keyspace, key: &[u8], db: usize, now_ms: u64) -> View<'k> {
        View::locked_hashed(keyspace, key, hash_bytes(key), db, now_ms)
    }

    /// `locked_one` for a caller that knows the key's [`hash_bytes`].
    #[inline]
    pub fn locked_hashed(keyspace: &'k Keyspace, key: &[u8], hash: u64, db: usize, now_ms: u64) -> View<'k> {
        debug_assert_eq!(hash, hash_bytes(key));
        crate::debug_assert_no_slot();
        let mut view =
            View::new(keyspace, Store::Locked(keyspace.shards.lock_one(shard_of(hash))), db, now_ms);
        view.memo = (key.as_ptr() as usize, key.len(), hash);
        view
    }

    #[inline]
    fn hash_of(&self, key: &[u8]) -> u64 {
        let (at, len, hash) = self.memo;
        if key.as_ptr() as usize == at && key.len() == len { hash } else { hash_bytes(key) }
    }

    /// Locks all shards, so that nothing else runs meanwhile.
    pub fn whole(keyspace: &'k Keyspace, db: usize, now_ms: u64) -> View<'k> {
        View::new(keyspace, Store::Locked(keyspace.lock(Bits::below(SHARDS))), db, now_ms)
    }

    /// A view without locks, for commands about the whole keyspace. They lock one shard at a time.
    pub fn open(keyspace: &'k Keyspace, db: usize, now_ms: u64) -> View<'k> {
        View::new(keyspace, Store::Open, db, now_ms)
    }

    /// A view of shards that are locked already.
    pub(crate) fn holding(
        keyspace: &'k Keyspace,
        guard: Guard<'k, Shard>,
        db: usize,
        now_ms: u64,
    ) -> View<'k> {
        View::new(keyspace, Store::Locked(guard), db, now_ms)
    }

    /// A view of an overlay. It takes no locks.
    pub fn overlay(keyspace: &'k Keyspace, overlay: &'k mut Overlay, db: usize, now_ms: u64) -> View<'k> {
        overlay.runs_at(now_ms, keyspace.listens());
        let due_ms = if overlay.shows_expired() { 0 } else { now_ms };
        let mut view = View::new(keyspace, Store::Overlay(overlay), db, now_ms);
        view.due_ms = due_ms;
        view
    }

    #[inline]
    fn new(keyspace: &'k Keyspace, store: Store<'k>, db: usize, now_ms: u64) -> View<'k> {
        View {
            keyspace,
            store,
            db,
            now_ms,
            due_ms: now_ms,
            keep: Keeps::default(),
            quiet: false,
            memo: (0, 0, 0),
            changes: Changes::default(),
            counted: (db, 0, 0, Bytes::default()),
            editing: None,
            stale: RefCell::default(),
            mute: false,
            estimating: Cell::new(false),
            strays: Cell::new(0),
        }
    }

    /// Runs a cost estimate. A key that is not locked counts as absent meanwhile (W5).
    #[inline]
    pub fn estimate<T>(&self, estimate: impl FnOnce(&Self) -> T) -> T {
        self.estimating.set(true);
        let estimated = estimate(self);
        self.estimating.set(false);
        estimated
    }

    /// How many keys estimates asked for that are not locked. Each is a bug in an estimate.
    pub fn strays(&self) -> u32 {
        self.strays.get()
    }

    /// Ends the command: removes expired keys it met, releases the locks, returns what must be told (W2).
    #[inline]
    pub fn finish(mut self) -> Changes {
        self.drop_stale();
        if self.changes.dirty > 0 {
            self.keyspace.stats.dirty.fetch_add(self.changes.dirty, Ordering::Relaxed);
        }
        std::mem::take(&mut self.changes)
    }

    /// The changes so far; the locks stay.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Takes the changes so far; the locks stay.
    pub fn take_changes(&mut self) -> Changes {
        let lsn = self.changes.lsn;
        let taken = std::mem::take(&mut self.changes);
        self.changes.lsn = lsn;
        taken
    }

    /// The time of the command in milliseconds since 1970. It is the same for the whole command.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Keys and fields that expire by then are absent. It is the time of the command, or 0
    /// ([`View::set_expired_live`]).
    #[inline]
    pub fn due_ms(&self) -> u64 {
        self.due_ms
    }

    /// Lets nothing count as expired, whatever the time: for a replay, which is told of each removal, and for
    /// clients that import. Not for an overlay, which is made so ([`crate::Look`]).
    pub fn set_expired_live(&mut self) {
        self.due_ms = 0;
    }

    /// Whether a time of expiry that has passed is stored as it is, instead of removing the key (import mode).
    #[inline]
    pub fn stores_past(&self) -> bool {
        self.keyspace.imports()
    }

    /// Whether a sink listens to writes. The answer holds as long as the view: listening may begin or end
    /// while a command runs over an overlay.
    #[inline]
    pub fn listens(&self) -> bool {
        match &self.store {
            Store::Overlay(overlay) => overlay.is_heard(),
            _ => self.keyspace.listens(),
        }
    }

    #[inline]
    pub fn db(&self) -> usize {
        self.db
    }

    pub fn databases(&self) -> usize {
        self.keyspace.databases()
    }

    /// Whether no client can select the current database.
    #[inline]
    pub fn is_hidden(&self) -> bool {
        self.db >= self.keyspace.databases()
    }

    /// How much longer the database's entries are kept than they are good ([`Keyspace::set_grace`]).
    pub fn grace_ms(&self) -> u64 {
        self.keyspace.grace_ms(self.db)
    }

    /// Selects the database of the following calls; returns the previous one.
    #[inline]
    pub fn select(&mut self, db: usize) -> usize {
        std::mem::replace(&mut self.db, db)
    }

    /// Key lists kept for clients that walk them.
    pub fn cursors(&self) -> &'k crate::cursors::Cursors {
        &self.keyspace.cursors
    }

    pub(crate) fn keyspace(&self) -> &'k Keyspace {
        self.keyspace
    }

    /// The shards this view has locked.
    pub(crate) fn held(&self) -> Bits {
        match &self.store {
            Store::Locked(guard) => guard.held(),
            Store::Overlay(_) | Store::Kept(_) | Store::Open => Bits::EMPTY,
        }
    }

    pub(crate) fn shard(&self, shard: usize) -> Option<&Shard> {
        match &self.store {
            Store::Locked(guard) => Some(guard.get(shard)),
            Store::Overlay(_) | Store::Kept(_) | Store::Open => None,
        }
    }

    pub(crate) fn shard_mut(&mut self, shard: usize) -> Option<&mut Shard> {
        match &mut self.store {
            Store::Locked(guard) => Some(guard.get_mut(shard)),
            Store::Overlay(_) | Store::Kept(_) | Store::Open => None,
        }
    }

    /// Writes what was committed about a key, at the commit's LSN, which is earlier than the view's own.
    pub(crate) fn write_at(
        &mut self,
        n: Lsn,
        db: usize,
        hash: u64,
        key: &[u8],
        write: impl FnOnce(&mut Self, &[u8]),
    ) {
        stdx::panics::changes();
        let mine = (self.changes.lsn, self.keep, self.db, self.memo, self.mute, self.due_ms);
        (self.changes.lsn, self.mute) = (n, true);
        if self.keyspace.imports() {
            // The commit may have kept a key beyond its time.
            self.due_ms = 0;
        }
        self.keep = self.keyspace.sequence.keeps();
        self.db = db;
        self.memo = (key.as_ptr() as usize, key.len(), hash);
        let before = self.changes.made();
        write(self, key);
        self.changes.others += self.changes.made() - before;
        (self.changes.lsn, self.keep, self.db, self.memo, self.mute, self.due_ms) = mine;
    }

    /// Runs `f` as of another time.
    pub(crate) fn at<T>(&mut self, now_ms: u64, f: impl FnOnce(&mut Self) -> T) -> T {
        let mine = (self.now_ms, self.due_ms);
        self.now_ms = now_ms;
        if self.due_ms != 0 {
            self.due_ms = now_ms;
        }
        let done = f(self);
        (self.now_ms, self.due_ms) = mine;
        done
    }

    /// Whether reads leave the record of accesses unchanged (EXISTS, TYPE, TTL, OBJECT, CLIENT NO-TOUCH).
    pub fn set_quiet(&mut self, quiet: bool) {
        self.quiet = quiet;
    }

    /// True if the view is an overlay: nothing it does is visible before a commit.
    pub fn is_overlay(&self) -> bool {
        matches!(self.store, Store::Overlay(_))
    }

    // ----- reading -----------------------------------------------------------------------------------------

    #[inline]
    fn entry<'a>(&'a self, guard: &'a Guard<'k, Shard>, key: &[u8]) -> Option<EntryRef<'a>> {
        let hash = self.hash_of(key);
        let Some(shard) = guard.find(shard_of(hash)) else { return self.stray(key) };
        let spot = shard.dbs[self.db].spot(hash, key)?;
        let entry = EntryRef::new(spot.entry());
        if entry.expire_ms().is_some_and(|at| at <= self.due_ms) {
            self.note_stale(key);
            return None;
        }
        self.note_use(hash, spot, entry);
        Some(entry)
    }

    /// Reports a key that is not locked as absent to an estimate. Panics otherwise (W5).
    #[cold]
    fn stray<T>(&self, key: &[u8]) -> Option<T> {
        assert!(
            self.estimating.get(),
            "a command looks at a key that is not locked for it: {}",
            key.escape_ascii()
        );
        self.strays.set(self.strays.get() + 1);
        None
    }

    /// The value of a key. O(1).
    #[inline]
    pub fn value(&self, key: &[u8]) -> Option<ValueRef<'_>> {
        match &self.store {
            Store::Locked(guard) => self.entry(guard, key).map(|entry| entry.value()),
            Store::Overlay(overlay) => overlay.get(self.db, key, self.due_ms).map(|seen| seen.value()),
            Store::Kept(kept) => kept.get(key).map(|owned| owned.value.as_ref()),
            Store::Open => None,
        }
    }

    #[inline]
    pub fn exists(&self, key: &[u8]) -> bool {
        self.value(key).is_some()
    }

    #[inline]
    pub fn kind(&self, key: &[u8]) -> Option<Kind> {
        self.value(key).map(|value| value.kind())
    }

    /// The expiry of a key. `None`: no such key. `Some(None)`: it does not expire. `Some(Some(ms))`: absolute
    /// time.
    pub fn expire_ms(&self, key: &[u8]) -> Option<Option<u64>> {
        match &self.store {
            Store::Locked(guard) => self.entry(guard, key).map(|entry| entry.expire_ms()),
            Store::Overlay(overlay) => overlay.get(self.db, key, self.due_ms).map(|seen| seen.expire_ms()),
            Store::Kept(kept) => kept.get(key).map(|owned| owned.expire_ms),
            Store::Open => None,
        }
    }

    /// The value and expiry of a key. The value is shared; a short string is copied. O(1).
    pub fn owned(&self, key: &[u8]) -> Option<Owned> {
        match &self.store {
            Store::Locked(guard) => self.entry(guard, key).map(|entry| entry.to_owned()),
            Store::Overlay(overlay) => overlay.get(self.db, key, self.due_ms).map(|seen| seen.to_owned()),
            Store::Kept(kept) => kept.get(key).cloned(),
            Store::Open => None,
        }
    }

    /// Whether OBJECT ENCODING must answer `raw` for a short string of this key.
    pub fn is_raw(&self, key: &[u8]) -> bool {
        match &self.store {
            Store::Locked(guard) => self.entry(guard, key).is_some_and(|entry| entry.is_raw()),
            Store::Overlay(overlay) => {
                overlay.get(self.db, key, self.due_ms).is_some_and(|seen| seen.is_raw())
            }
            Store::Kept(_) | Store::Open => false,
        }
    }

    /// Bytes of the entry itself, for MEMORY USAGE. An overlay gives an estimate.
    pub fn entry_bytes(&self, key: &[u8]) -> usize {
        match &self.store {
            Store::Locked(guard) => self.entry(guard, key).map_or(0, |entry| entry.entry_bytes()),
            Store::Overlay(_) | Store::Kept(_) | Store::Open => 16 + key.len(),
        }
    }

    #[inline]
    pub fn string(&self, key: &[u8]) -> Result<Option<StrRef<'_>>, WrongType> {
        match self.value(key) {
            None => Ok(None),
            Some(ValueRef::Str(s)) => Ok(Some(s)),
            Some(_) => Err(WrongType),
        }
    }

    /// The string of a key and its absolute expiry, in one look-up.
    #[inline]
    pub fn string_and_expire(&self, key: &[u8]) -> Result<Option<(StrRef<'_>, Option<u64>)>, WrongType> {
        let found = match &self.store {
            Store::Locked(guard) => self.entry(guard, key).map(|entry| (entry.value(), entry.expire_ms())),
            Store::Overlay(overlay) => {
                overlay.get(self.db, key, self.due_ms).map(|seen| (seen.value(), seen.expire_ms()))
            }
            Store::Kept(kept) => kept.get(key).map(|owned| (owned.value.as_ref(), owned.expire_ms)),
            Store::Open => None,
        };
        match found {
            None => Ok(None),
            Some((ValueRef::Str(s), expire_ms)) => Ok(Some((s, expire_ms))),
            Some(_) => Err(WrongType),
        }
    }

    // ----- writing -----------------------------------------------------------------------------------------

    /// Begins the write (W1). Returns whether pre-images must be kept, and for what.
    #[inline]
    fn begin_write(&mut self) -> Keeps {
        if self.changes.lsn == 0 {
            debug_assert!(matches!(self.store, Store::Locked(_)), "a write without its lock");
            stdx::panics::changes();
            let sequence = &self.keyspace.sequence;
            // A shard is locked: nobody begins or ends to listen now (tell T7).
            self.changes.lsn = if sequence.listens() { sequence.enter_and_draw() } else { sequence.draw() };
            self.keep = sequence.keeps();
        }
        self.keep
    }

    /// Makes a change beside the keys, at the view's LSN. Its shard is locked.
    pub(crate) fn changes_beside(&mut self, beside: &dyn Beside) {
        self.begin_write();
        self.changes.dirty += 1;
        beside.make();
        self.keyspace.note_recent_beside(self.changes.lsn);
    }

    /// Whether the view has written, and a sink listens.
    #[inline]
    pub fn is_told(&self) -> bool {
        self.keep.listens()
    }

    /// Keeps what is there for active snapshots and a walk, before it changes (W1).
    #[inline]
    fn touch(&mut self, hash: u64, key: &[u8], how: Touch) {
        let keep = self.begin_write();
        if self.stale.get_mut().is_some() {
            self.tell_stale();
        }
        let Store::Locked(guard) = &mut self.store else { return };
        let shard = guard.get_mut(shard_of(hash));
        if self.keyspace.gates() {
            shard.recent.note(hash, self.changes.lsn, &self.keyspace.durable);
        }
        if keep.walk() {
            let write = Write { db: self.db, hash, key, lsn: self.changes.lsn, edits: how == Touch::Edit };
            let Shard { dbs, walk, .. } = shard;
            walk.iter_mut().for_each(|walk| walk.keep(&self.keyspace.sequence, dbs, &write));
        }
        if keep.snapshots() {
            let newest = self.keyspace.sequence.newest();
            let Shard { dbs, pre, .. } = shard;
            if pre.is_due() {
                // The lock is held, as in `Keyspace::prune`.
                pre.prune(self.keyspace.sequence.oldest());
            }
            let before = || dbs[self.db].find(hash, key).map(|e| e.to_owned());
            let weigh = |before: Option<&Owned>, so_far| how.weigh(key, before, so_far);
            pre.keep(self.db, key, self.changes.lsn, newest, before, weigh);
        } else if !shard.pre.is_empty() {
            shard.pre.clear();
        }
    }

    /// The live entry, ready to be changed and kept for snapshots. `None` if there is no such key.
    #[inline]
    fn entry_mut(&mut self, key: &[u8], kind: Kind) -> Result<Option<EntryMut<'_>>, WrongType> {
        Ok(self.raw_mut(key, kind)?.map(EntryMut::new))
    }

    /// As `entry_mut`, but creates an empty entry if there is none. Not in an overlay.
    #[inline]
    fn entry_or_new(
        &mut self,
        key: &[u8],
        kind: Kind,
        empty: fn() -> Value,
    ) -> Result<EntryMut<'_>, WrongType> {
        let raw = match self.raw_mut(key, kind)? {
            Some(raw) => raw,
            None => {
                self.put(key, empty(), None);
                let hash = self.hash_of(key);
                let made =
                    self.shard(shard_of(hash)).and_then(|shard| shard.dbs[self.db].find_raw(hash, key));
                let made = made.expect("put above");
                self.edit(hash, made);
                made
            }
        };
        Ok(EntryMut::new(raw))
    }

    #[inline]
    fn raw_mut(&mut self, key: &[u8], kind: Kind) -> Result<Option<Raw>, WrongType> {
        let hash = self.hash_of(key);
        self.settle_edit();
        let Store::Locked(guard) = &self.store else { return Ok(None) };
        let Some(spot) = guard.get(shard_of(hash)).dbs[self.db].spot(hash, key) else { return Ok(None) };
        let (raw, entry) = (spot.entry(), EntryRef::new(spot.entry()));
        if entry.expire_ms().is_some_and(|at| at <= self.due_ms) {
            self.drop_expired(hash, key);
            return Ok(None);
        }
        if entry.kind() != kind {
            return Err(WrongType);
        }
        self.note_use(hash, spot, entry);
        self.touch(hash, key, Touch::Edit);
        // Keeping a pre-image moves no entry, so `raw` still points to it.
        self.edit(hash, raw);
        Ok(Some(raw))
    }

    #[inline]
    fn owned_mut(&mut self, key: &[u8], kind: Kind) -> Result<Option<&mut Value>, WrongType> {
        let (db, due_ms) = (self.db, self.due_ms);
        let Store::Overlay(overlay) = &mut self.store else { return Ok(None) };
        let fits = |owned: &Owned| if owned.value.kind() == kind { Ok(()) } else { Err(WrongType) };
        Ok(overlay.edit(db, key, due_ms, fits)?.and_then(Option::as_mut).map(|owned| &mut owned.value))
    }

    /// A string to be edited in place. `StrMut::Inline` allows no change of length: use `put_string` for
    /// that.
    pub fn string_mut(&mut self, key: &[u8]) -> Result<Option<StrMut<'_>>, WrongType> {
        if self.is_overlay() {
            let Some(Value::Str(text)) = self.owned_mut(key, Kind::Str)? else { return Ok(None) };
            text.make_raw();
            return Ok(Some(StrMut::Big(text)));
        }
        Ok(self.entry_mut(key, Kind::Str)?.and_then(|mut entry| {
            entry.mark_raw();
            entry.string()
        }))
    }

    fn make(&mut self, key: &[u8], kind: Kind, empty: fn() -> Value) -> Result<(), WrongType> {
        match self.kind(key) {
            Some(found) if found == kind => Ok(()),
            Some(_) => Err(WrongType),
            None => {
                self.put(key, empty(), None);
                Ok(())
            }
        }
    }

    /// Stores a value under the key and replaces any old one. O(1).
    pub fn put(&mut self, key: &[u8], value: Value, expire_ms: Option<u64>) {
        if self.is_overlay() {
            return self.put_overlay(key, value, expire_ms);
        }
        self.put_payload(key, Payload::value(key, &value), expire_ms.into());
    }

    /// Stores a string under the key and replaces any old value. O(n), n = its length.
    #[inline]
    pub fn put_string(&mut self, key: &[u8], bytes: &[u8], expire_ms: Option<u64>) {
        if self.is_overlay() {
            return self.put_overlay(key, Value::Str(Str::from_slice(bytes)), expire_ms);
        }
        self.put_payload(key, Payload::text(key, bytes), expire_ms.into());
    }

    /// `put_string` for results of APPEND, SETRANGE and the like, whose encoding Redis calls `raw`.
    pub fn put_raw_string(&mut self, key: &[u8], bytes: &[u8], expire_ms: Option<u64>) {
        if self.is_overlay() {
            return self.put_overlay(key, Value::Str(Str::from_slice_raw(bytes)), expire_ms);
        }
        self.put_payload(key, Payload::raw_text(key, bytes), expire_ms.into());
    }

    /// Changes the integer that a key holds and keeps its expiry; returns the new one. One look-up, O(1).
    /// `change` gets the old text, if there is any.
    #[inline]
    pub fn change_int<E: From<WrongType>>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(Option<StrRef<'_>>) -> Result<i64, E>,
    ) -> Result<i64, E> {
        let mut digits = itoa::Buffer::new();
        let hash = self.hash_of(key);
        let spot = self.spot(hash, key);
        let due = |spot: Spot| spot.entry().expire_ms().is_some_and(|at| at <= self.due_ms);
        if self.is_overlay() || spot.is_some_and(due) {
            let (old, expire_ms) = self.string_and_expire(key)?.unzip();
            let new = change(old)?;
            self.put_string(key, digits.format(new).as_bytes(), expire_ms.flatten());
            return Ok(new);
        }
        let (new, expire_ms) = match spot.map(|spot| (spot.entry().value(), spot.entry().expire_ms())) {
            None => (change(None)?, None),
            Some((ValueRef::Str(old), expire_ms)) => (change(Some(old))?, expire_ms),
            Some(_) => return Err(WrongType.into()),
        };
        let payload = Payload::text(key, digits.format(new).as_bytes());
        let left = match spot {
            Some(spot) => self.write_over(spot, hash, key, payload, expire_ms.into()),
            None => Some(payload),
        };
        if let Some(payload) = left {
            self.put_at(spot, hash, key, payload, expire_ms.into());
        }
        Ok(new)
    }

    /// Overwrites a live entry in place if the content fits and the expiry stays as it is; else gives the
    /// payload back. Nothing has to be counted anew. O(bytes written).
    #[inline]
    fn write_over<'p>(
        &mut self,
        spot: Spot,
        hash: u64,
        key: &[u8],
        payload: Payload<'p>,
        times: Times,
    ) -> Option<Payload<'p>> {
        if !matches!(payload, Payload::Text { .. }) {
            return Some(payload);
        }
        // Keeping a pre-image moves no entry, so `spot` stays valid.
        self.settle_edit();
        self.touch(hash, key, Touch::Replace);
        let mut entry = spot.entry();
        let left = entry.overwrite(payload, times);
        if left.is_none() {
            entry.access().store(access_tick(self.now_ms), Ordering::Relaxed);
            if self.keyspace.evict.is_on() {
                self.note_put(hash, &Put { was_there: true, had_expire: times.expire_ms.is_some(), spot });
            }
        }
        left
    }

    /// The place of a key, expired or not. `None` in an overlay.
    #[inline]
    fn spot(&self, hash: u64, key: &[u8]) -> Option<Spot> {
        self.shard(shard_of(hash)).and_then(|shard| shard.dbs[self.db].spot(hash, key))
    }

    fn put_payload(&mut self, key: &[u8], payload: Payload<'_>, times: Times) {
        let hash = self.hash_of(key);
        let mut spot = self.spot(hash, key);
        let due = |spot: Spot| spot.entry().expire_ms().is_some_and(|at| at <= self.due_ms);
        if spot.is_some_and(due) && self.drop_expired(hash, key) {
            spot = None;
        }
        let payload =
            match spot.filter(|spot| times.expire_ms.is_none() && spot.entry().expire_ms().is_none()) {
                Some(spot) => self.write_over(spot, hash, key, payload, times),
                None => Some(payload),
            };
        if let Some(payload) = payload {
            self.put_at(spot, hash, key, payload, times);
        }
    }

    /// Stores the payload at `spot`, or as a new entry. An entry at `spot` is live, or a long commit keeps
    /// it.
    #[inline]
    fn put_at(&mut self, spot: Option<Spot>, hash: u64, key: &[u8], payload: Payload<'_>, times: Times) {
        let fields = match &payload {
            Payload::Handle(Value::Hash(hash)) => hash.next_expiry(),
            _ => None,
        };
        // Keeping a pre-image moves no entry, so `spot` stays valid.
        self.settle_edit();
        self.touch(hash, key, Touch::Replace);
        let tick = access_tick(self.now_ms);
        let put = self.change(hash, |directory| {
            let put = directory.put_at(spot, hash, key, payload, times, tick);
            let expires = i64::from(times.expire_ms.is_some()) - i64::from(put.had_expire);
            let came = i64::from(!put.was_there);
            (put, came, expires)
        });
        let Some(put) = put else { return };
        if self.keyspace.evict.is_on() {
            self.note_put(hash, &put);
        }
        if let Some(at) = fields {
            self.field_expires(key, at);
        }
        if !put.was_there {
            self.notify(key, Class::New, "new");
        }
    }

    fn put_overlay(&mut self, key: &[u8], value: Value, expire_ms: Option<u64>) {
        let Store::Overlay(overlay) = &mut self.store else { return };
        overlay.overwrite(self.db, key, Owned { value, expire_ms });
    }

    /// Removes a key; true if it was there. The caller must call `changed`.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        if self.is_overlay() {
            return self.take(key).is_some();
        }
        let hash = self.hash_of(key);
        let Some(spot) = self.spot(hash, key) else { return false };
        if spot.entry().expire_ms().is_some_and(|at| at <= self.due_ms) {
            self.drop_expired(hash, key);
            return false;
        }
        // Keeping a pre-image moves no entry, so `spot` stays valid.
        self.settle_edit();
        self.touch(hash, key, Touch::Replace);
        self.change(hash, |directory| ((), -1, -i64::from(directory.remove_at(spot, hash))));
        true
    }

    /// Removes a key and returns what it held. The caller must call `changed`.
    pub fn take(&mut self, key: &[u8]) -> Option<Owned> {
        let (db, due_ms) = (self.db, self.due_ms);
        if let Store::Overlay(overlay) = &mut self.store {
            let Ok(held) = overlay.edit(db, key, due_ms, anything);
            return held?.take();
        }
        let hash = self.hash_of(key);
        if self.drop_expired(hash, key) || !self.exists(key) {
            return None;
        }
        self.settle_edit();
        self.touch(hash, key, Touch::Replace);
        self.change(hash, |directory| match directory.take(hash, key) {
            Some(owned) => {
                let expires = i64::from(owned.expire_ms.is_some());
                (Some(owned), -1, -expires)
            }
            None => (None, 0, 0),
        })?
    }

    /// Removes a collection that became empty and notifies `del` (K4); true if it did.
    pub fn remove_if_empty(&mut self, key: &[u8]) -> bool {
        let empty = match self.value(key) {
            None | Some(ValueRef::Str(_)) => false,
            // A bitmap without bits and a stream without entries stay.
            Some(ValueRef::Roaring(_) | ValueRef::Roaring64(_) | ValueRef::Stream(_)) => false,
            Some(ValueRef::List(v)) => v.is_empty(),
            Some(ValueRef::Hash(v)) => v.is_empty(),
            Some(ValueRef::Set(v)) => v.is_empty(),
            Some(ValueRef::ZSet(v)) => v.is_empty(),
        };
        if empty {
            self.remove(key);
            self.notify(key, Class::Generic, "del");
        }
        empty
    }

    /// Sets or clears the expiry of a key; false if there is no such key.
    pub fn set_expire(&mut self, key: &[u8], expire_ms: Option<u64>) -> bool {
        let (db, due_ms) = (self.db, self.due_ms);
        if let Store::Overlay(overlay) = &mut self.store {
            let Ok(held) = overlay.edit(db, key, due_ms, anything);
            let Some(owned) = held.and_then(Option::as_mut) else { return false };
            owned.expire_ms = expire_ms;
            return true;
        }
        let hash = self.hash_of(key);
        if self.drop_expired(hash, key) || !self.exists(key) {
            return false;
        }
        self.settle_edit();
        self.touch(hash, key, Touch::Edit);
        self.change(hash, |directory| {
            let had = directory.set_expire(hash, key, expire_ms);
            ((), 0, i64::from(expire_ms.is_some()) - i64::from(had == Some(true)))
        });
        true
    }

    /// For commits: the author of a write to the key later than `s`, if a pre-image shows one.
    pub(crate) fn changed_since(&self, db: usize, key: &[u8], s: Lsn) -> Option<u64> {
        let Store::Locked(guard) = &self.store else { return None };
        guard.get(shard_of(hash_bytes(key))).pre.changed_by(db, key, s)
    }

    // ----- the keyspace as a whole -------------------------------------------------------------------------

    /// Keys in the current database. O(1). An overlay adds its own changes to the number of now: O(keys it
    /// knows).
    pub fn len(&self) -> usize {
        let mine = match &self.store {
            Store::Overlay(overlay) if overlay.is_flushed(self.db) => {
                return overlay.added(self.db, self.due_ms).max(0) as usize;
            }
            Store::Overlay(overlay) => {
                let here = self.keyspace.len(overlay.physical(self.db)) as i64;
                return (here + overlay.added(self.db, self.due_ms)).max(0) as usize;
            }
            Store::Locked(_) | Store::Kept(_) | Store::Open if self.counted.0 == self.db => self.counted.1,
            Store::Locked(_) | Store::Kept(_) | Store::Open => 0,
        };
        (self.keyspace.len(self.db) as i64 + mine).max(0) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        // The locks are released after this (W3, W4).
        self.settle_edit();
        self.settle_counts();
        if self.keep.listens() {
            self.keyspace.sequence.tell.leave();
        }
    }
}

/// Accepts every value.
fn anything(_: &Owned) -> Result<(), std::convert::Infallible> {
    Ok(())
}

/// The access byte of something used now: 16-second ticks, around once in 70 minutes.
pub(crate) fn access_tick(now_ms: u64) -> u8 {
    (now_ms >> 14) as u8
}
