//! Keys that clients keep copies of: which clients have read which key, by shard.
//!
//! ```text
//! a read  ──► View::track ──► key ─► clients, in the key's shard     the lock that the read holds
//! a write ──► View::tell_readers ──► the key's clients, taken out ──► Readers::changed     the lock of the write
//! FLUSH, SWAPDB ──► all tables, taken out ──► Readers::emptied       all locks
//! ```
//!
//! - TR1: a client is registered under the lock under which its read looks. So no write comes between the two,
//!   and a write that comes later finds the client.
//! - TR2: a key stands here by its name, for all databases. A write to the name in any database tells its
//!   readers.
//! - TR3: a client that reads at an older LSN (a snapshot) registers later and asks [`View::track_since`]
//!   whether the shard was written to meanwhile. Then the client counts as told.
//! - TR4: a registration has a number of its client. Only the registration of that number is taken back.
//! - TR5: while nobody tracks, a write pays for one load. The flag is set before its client reads anything,
//!   so a write with a later LSN than that read sees it.
//! - TR6: the lists of very many readers, and whole tables, are handed over as they are. Nothing here walks
//!   them.
//!
//! Cost: O(log keys of the shard) for a read that registers and for a write; a key's name and some 100 bytes
//! for each key, and some 50 for each further client.

use crate::sequence::Lsn;
use crate::{Keyspace, SHARDS, View, shard_of};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use stdx::hash::hash_bytes;

/// The readers of a key: the clients, and the numbers of their registrations.
pub enum Crowd {
    One(u64, u64),
    Many(BTreeMap<u64, u64>),
}

impl Crowd {
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        match self {
            Crowd::One(..) => 1,
            Crowd::Many(clients) => clients.len(),
        }
    }

    /// Whether a client is registered, with a number above `floor`.
    fn has(&self, client: u64, floor: u64) -> bool {
        match self {
            Crowd::One(one, number) => *one == client && *number > floor,
            Crowd::Many(clients) => clients.get(&client).is_some_and(|number| *number > floor),
        }
    }

    /// Registers a client, in place of an earlier registration. True: there was none.
    fn add(&mut self, client: u64, number: u64) -> bool {
        match self {
            Crowd::One(one, its) if *one == client => {
                *its = number;
                false
            }
            Crowd::One(one, its) => {
                *self = Crowd::Many([(*one, *its), (client, number)].into());
                true
            }
            Crowd::Many(clients) => clients.insert(client, number).is_none(),
        }
    }

    /// Takes a registration back if it has that number. True: nobody is left.
    fn remove(&mut self, client: u64, number: u64, items: &AtomicUsize) -> bool {
        let emptied = match self {
            Crowd::One(one, its) => (*one, *its) == (client, number),
            Crowd::Many(clients) => {
                if clients.get(&client) == Some(&number) {
                    clients.remove(&client);
                    if !clients.is_empty() {
                        items.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                clients.is_empty()
            }
        };
        if emptied {
            items.fetch_sub(1, Ordering::Relaxed);
        }
        emptied
    }
}

/// A client that reads.
pub struct Reader<'a> {
    pub client: u64,
    /// Registrations up to this number are given up, and are about to be taken back.
    pub floor: u64,
    /// Gives the number of a new registration, above `floor`, from the key and the epoch (TR4).
    pub number: &'a mut dyn FnMut(&Arc<[u8]>, u64) -> u64,
}

thread_local! {
    static AUTHOR: Cell<u64> = const { Cell::new(0) };
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Names the client whose writes this thread does, until it is dropped.
pub struct Author(u64, bool);

impl Author {
    pub fn is(client: u64) -> Author {
        Author(AUTHOR.replace(client), SERVES.replace(false))
    }

    /// The same for a client that has waited for keys: this thread runs its command, and its reply comes by
    /// mail.
    pub fn serves(client: u64) -> Author {
        Author(AUTHOR.replace(client), SERVES.replace(true))
    }

    /// Whether this thread serves that client, which has waited for keys.
    pub fn is_serving(client: u64) -> bool {
        SERVES.get() && AUTHOR.get() == client
    }

    /// The client whose writes this thread does; 0: not known.
    pub fn now() -> u64 {
        AUTHOR.get()
    }
}

impl Drop for Author {
    fn drop(&mut self) {
        AUTHOR.set(self.0);
        SERVES.set(self.1);
    }
}

/// Hears which copies are old. Shard locks are held during a call: note it, never wait.
pub trait Readers: Send + Sync {
    /// Whether a client wants the names of all keys that change.
    fn want_all(&self) -> bool;

    /// A key was written to. Called if [`Readers::want_all`].
    fn written(&self, key: &[u8]);

    /// The copies that these clients have of the key are old; they are registered no more.
    fn changed(&self, key: Arc<[u8]>, readers: Crowd);

    /// All copies are old, and nobody is registered any more. Registrations have this `epoch` from now on.
    fn emptied(&self, epoch: u64);
}

/// The part of a shard.
#[derive(Default)]
pub(crate) struct ShardReaders {
    keys: BTreeMap<Arc<[u8]>, Crowd>,
    /// The LSN of the newest write to any key since tracking began (TR3).
    newest: Lsn,
    /// The key that was dropped last for want of room.
    dropped: Option<Arc<[u8]>>,
}

/// The part of the keyspace.
#[derive(Default)]
pub(crate) struct Tracked {
    /// It stands alone on its cache line: every write reads it.
    on: Flag,
    readers: OnceLock<Arc<dyn Readers>>,
    keys: AtomicUsize,
    items: AtomicUsize,
    epoch: AtomicU64,
    /// The shard that drops a key next.
    next: AtomicUsize,
}

#[derive(Default)]
#[repr(align(128))]
struct Flag(AtomicBool);

impl Tracked {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.0.load(Ordering::Relaxed)
    }
}

impl View<'_> {
    /// Registers a reader of the key, whose shard is locked. O(log keys).
    pub fn track(&mut self, key: &[u8], reader: &mut Reader<'_>) {
        let tracked = &self.keyspace().tracked;
        let Some(shard) = self.shard_mut(shard_of(hash_bytes(key))) else { return };
        let (epoch, client) = (tracked.epoch.load(Ordering::Relaxed), reader.client);
        let keys = &mut shard.readers.keys;
        let is_new = match keys.get_key_value(key).map(|(name, crowd)| (name.clone(), crowd)) {
            Some((_, crowd)) if crowd.has(client, reader.floor) => return,
            Some((name, _)) => {
                let number = (reader.number)(&name, epoch);
                keys.get_mut(key).is_some_and(|crowd| crowd.add(client, number))
            }
            None => {
                let name: Arc<[u8]> = key.into();
                let number = (reader.number)(&name, epoch);
                keys.insert(name, Crowd::One(client, number));
                tracked.keys.fetch_add(1, Ordering::Relaxed);
                true
            }
        };
        tracked.items.fetch_add(is_new.into(), Ordering::Relaxed);
    }

    /// As `track`, for a client that read at the LSN `since`. True: the key may have changed since, and the
    /// client has to be told (TR3).
    pub fn track_since(&mut self, key: &[u8], since: Lsn, reader: &mut Reader<'_>) -> bool {
        self.track(key, reader);
        self.shard(shard_of(hash_bytes(key))).is_some_and(|shard| shard.readers.newest > since)
    }

    /// Tells the readers of a key that it changed. The key's shard is locked; O(log keys).
    #[inline]
    pub fn tell_readers(&mut self, key: &[u8]) {
        if self.keyspace().tracked.is_on() {
            self.tell_some(key);
        }
    }

    #[cold]
    fn tell_some(&mut self, key: &[u8]) {
        let keyspace = self.keyspace();
        let lsn = match self.changes().lsn {
            0 => keyspace.last_lsn(),
            lsn => lsn,
        };
        let Some(shard) = self.shard_mut(shard_of(hash_bytes(key))) else { return };
        shard.readers.newest = shard.readers.newest.max(lsn);
        keyspace.drop_readers(&mut shard.readers, key);
        if let Some(readers) = keyspace.tracked.readers.get()
            && readers.want_all()
        {
            readers.written(key);
        }
    }

    /// Tells all readers of all keys. The view holds all shards. O(shards).
    pub(crate) fn tell_all_readers(&mut self, lsn: Lsn) {
        let keyspace = self.keyspace();
        if !keyspace.tracked.is_on() {
            return;
        }
        let mut gone = Vec::new();
        for shard in 0..SHARDS {
            let Some(shard) = self.shard_mut(shard) else { return };
            shard.readers.newest = shard.readers.newest.max(lsn);
            gone.push(std::mem::take(&mut shard.readers.keys));
        }
        keyspace.tracked.keys.store(0, Ordering::Relaxed);
        keyspace.tracked.items.store(0, Ordering::Relaxed);
        stdx::reclaim::discard(gone);
        let epoch = 1 + keyspace.tracked.epoch.fetch_add(1, Ordering::Relaxed);
        keyspace.tracked.readers.get().into_iter().for_each(|readers| readers.emptied(epoch));
    }
}

impl Keyspace {
    /// Names who hears which copies are old. Once.
    pub fn set_readers(&self, readers: Arc<dyn Readers>) {
        // A second call changes nothing.
        let _ = self.tracked.readers.set(readers);
    }

    /// Begins or ends to register readers (TR5).
    pub fn set_tracking(&self, on: bool) {
        self.tracked.on.0.store(on, Ordering::SeqCst);
    }

    /// Whether anybody tracks. Cost: one load.
    #[inline]
    pub fn is_tracking(&self) -> bool {
        self.tracked.is_on()
    }

    /// Takes the registration of that number back. O(log keys + log readers), under the shard's lock.
    pub fn untrack(&self, key: &[u8], client: u64, number: u64) {
        let at = shard_of(hash_bytes(key));
        let mut guard = self.shards.lock_one(at);
        let keys = &mut guard.get_mut(at).readers.keys;
        if keys.get_mut(key).is_some_and(|crowd| crowd.remove(client, number, &self.tracked.items)) {
            keys.remove(key);
            self.tracked.keys.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Keys in the tables, and registrations.
    pub fn tracked(&self) -> (usize, usize) {
        (self.tracked.keys.load(Ordering::Relaxed), self.tracked.items.load(Ordering::Relaxed))
    }

    /// Drops one key and tells its readers, if there are more than `max`. True: there are still more. It goes
    /// through the shards, and through the names in each. Cost: a lock; O(shards) if most have none.
    pub fn trim_tracked(&self, max: usize) -> bool {
        for _ in 0..SHARDS {
            if self.tracked.keys.load(Ordering::Relaxed) <= max {
                return false;
            }
            let at = self.tracked.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let mut guard = self.shards.lock_one(at);
            let readers = &mut guard.get_mut(at).readers;
            let from = readers.dropped.take().map_or(Bound::Unbounded, Bound::Excluded);
            let after = readers.keys.range((from, Bound::Unbounded)).next();
            let victim = after.or_else(|| readers.keys.first_key_value()).map(|(key, _)| key.clone());
            if let Some(key) = victim {
                self.drop_readers(readers, &key);
                readers.dropped = Some(key);
                return self.tracked.keys.load(Ordering::Relaxed) > max;
            }
        }
        false
    }

    /// Takes a key out and tells its readers.
    fn drop_readers(&self, readers: &mut ShardReaders, key: &[u8]) {
        let Some((name, crowd)) = readers.keys.remove_entry(key) else { return };
        self.tracked.keys.fetch_sub(1, Ordering::Relaxed);
        self.tracked.items.fetch_sub(crowd.len(), Ordering::Relaxed);
        if let Some(told) = self.tracked.readers.get() {
            told.changed(name, crowd);
        }
    }
}
