//! A client that waits for many keys is registered for some at a time, and taken off them so.
//!
//! ```text
//! park ──► Registering: some keys in, one look at each (P2) ──all keys──► waits
//!              │ it was served, or left, meanwhile                            │ served, or leaves
//!              └──────────────► Registering: some keys out ◄───────────────┘
//! ```
//!
//! - W1: `by_client` says whether it still waits; a waiter that leaves, leaves that at once. Its rest in
//!   queues is claimed, and passed over.
//! - W2: the thread that ends it takes it off its keys; while it is being registered, the loop that registers
//!   it does. Each key once, and not before it was registered.
//! - W3: a key is looked at when it is registered: what came before is found then, what comes later finds the
//!   waiter.

use super::serving::{hold, is_filled};
use super::{Found, Means, Park, Served, Waiter};
use keyspace::Keyspace;
use resp::Reply;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Keys in one go: some 20 µs.
const AT_ONCE: usize = 32;

/// A waiter of many keys on its way in or out.
pub struct Registering {
    park: Arc<Park>,
    waiter: Arc<Waiter>,
    /// It is registered for the first so many keys.
    registered: usize,
    leaves: bool,
}

impl Registering {
    pub fn client(&self) -> u64 {
        self.waiter.client
    }

    pub fn is_half_in(&self) -> bool {
        !self.leaves && self.registered >= self.waiter.keys.len() / 2
    }

    /// Goes on; false if that was all. With the client, if it was served meanwhile.
    pub fn advance(&mut self, means: &mut Means<'_>) -> (bool, Option<Served>) {
        let (park, waiter) = (&self.park, &self.waiter);
        if self.leaves {
            let from = self.registered.saturating_sub(AT_ONCE);
            park.remove(means.keyspace, waiter, from..self.registered);
            self.registered = from;
            return (from > 0, None);
        }
        let to = waiter.keys.len().min(self.registered + AT_ONCE);
        let (some, mut served) = (self.registered..to, None);
        if park.add(means.keyspace, waiter, some.clone()) {
            self.registered = to;
            let mut out = Reply::new(waiter.resp3);
            match park.look(means, waiter, some, &mut out) {
                Some(found) => served = Some(Served::new(waiter, found, out)),
                None if to < waiter.keys.len() => return (true, None),
                None => {}
            }
        }
        self.leaves = !park.is_in(waiter, self.registered);
        (self.leaves && self.registered > 0, served)
    }
}

impl Park {
    /// Registers a waiter for its keys, of many in slices; what it finds there. O(its keys), at most
    /// [`AT_ONCE`].
    pub(super) fn register(
        self: &Arc<Self>,
        means: &mut Means<'_>,
        waiter: &Arc<Waiter>,
        out: &mut Reply,
    ) -> Option<Found> {
        let keys = waiter.keys.len();
        if keys > AT_ONCE {
            self.begin(means, waiter, 0, false);
            return None;
        }
        let registered = if self.add(means.keyspace, waiter, 0..keys) { keys } else { 0 };
        let found = self.look(means, waiter, 0..registered, out);
        if !self.is_in(waiter, registered) {
            self.remove(means.keyspace, waiter, 0..registered);
        }
        found
    }

    /// Leaves behind what goes on in slices.
    fn begin(self: &Arc<Self>, means: &mut Means<'_>, waiter: &Arc<Waiter>, registered: usize, leaves: bool) {
        let (park, waiter) = (self.clone(), waiter.clone());
        means.pieces.push(Box::new(Registering { park, waiter, registered, leaves }));
    }

    /// Registers it for some keys, unless it does not wait any more.
    fn add(&self, keyspace: &Keyspace, waiter: &Arc<Waiter>, keys: Range<usize>) -> bool {
        let keys = &waiter.keys[keys];
        {
            let mut tables = self.tables.lock();
            if !tables.has(waiter) {
                return false;
            }
            for id in keys {
                let queue = tables.by_key.entry(id.clone()).or_default().of(waiter.kind);
                queue.insert(waiter.number, waiter.clone());
            }
        }
        keys.iter().for_each(|(db, key)| keyspace.block(*db, key));
        true
    }

    /// Says that it is registered no further; whether it is registered for all its keys, and waits (W2).
    fn is_in(&self, waiter: &Arc<Waiter>, registered: usize) -> bool {
        let tables = self.tables.lock();
        waiter.registering.store(false, Ordering::Relaxed);
        registered == waiter.keys.len() && tables.has(waiter)
    }

    fn remove(&self, keyspace: &Keyspace, waiter: &Waiter, keys: Range<usize>) {
        let keys = &waiter.keys[keys];
        {
            let mut tables = self.tables.lock();
            for id in keys {
                if let Some(queues) = tables.by_key.get_mut(id) {
                    queues.of(waiter.kind).remove(&waiter.number);
                    if queues.is_empty() {
                        tables.by_key.remove(id);
                    }
                }
            }
        }
        keys.iter().for_each(|(db, key)| keyspace.unblock(*db, key));
    }

    /// Takes a waiter that is claimed out of everything (W1, W2). O(its keys), at most [`AT_ONCE`].
    pub(super) fn forget(self: &Arc<Self>, means: &mut Means<'_>, waiter: &Arc<Waiter>) {
        let registering = {
            let mut tables = self.tables.lock();
            tables.remove(waiter.client);
            waiter.registering.load(Ordering::Relaxed)
        };
        let keys = waiter.keys.len();
        if registering {
            return;
        }
        if keys <= AT_ONCE {
            return self.remove(means.keyspace, waiter, 0..keys);
        }
        self.begin(means, waiter, keys, true);
    }

    /// Looks at keys it was just registered for (W3); the thread that holds it at this moment looks instead
    /// (P5).
    fn look(
        self: &Arc<Self>,
        means: &mut Means<'_>,
        waiter: &Arc<Waiter>,
        keys: Range<usize>,
        out: &mut Reply,
    ) -> Option<Found> {
        for id in &waiter.keys[keys] {
            if !is_filled(means, waiter, id) {
                continue;
            }
            if !waiter.claim.take_or_note() {
                return None;
            }
            let found = hold(means, waiter, id, out);
            if found.is_some() {
                self.forget(means, waiter);
                return found;
            }
        }
        None
    }
}
