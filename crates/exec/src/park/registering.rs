//! Who waits for many keys: it is registered for some at a time, and taken off them so.
//!
//! ```text
//! park ──► Registering: some keys in, one look at each (P2) ──all keys──► waits
//!              │ it was served, or left, meanwhile                            │ served, or leaves
//!              └──────────────► Registering: some keys out ◄───────────────┘
//! ```
//!
//! - W1: whether it still waits `by_client` says; who leaves, leaves that at once. What still stands of it in queues is claimed, and
//!   passed over.
//! - W2: it is taken off by whoever ended it, but while it is being registered by who registers it: each key once, and not before
//!   it was registered.
//! - W3: a key is looked at when it is registered: what came before is found then, what comes later finds the waiter.

use super::{Found, Park, Waiter, hold, is_filled};
use crate::mail::Mail;
use crate::{Local, Server};
use resp::Reply;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Keys in one go: some 20 µs.
const AT_ONCE: usize = 32;

/// A waiter of many keys on its way in or out.
pub struct Registering {
    waiter: Arc<Waiter>,
    /// It is registered for the first so many keys.
    registered: usize,
    leaves: bool,
}

impl Registering {
    pub(crate) fn client(&self) -> u64 {
        self.waiter.client
    }

    pub(crate) fn is_half_in(&self) -> bool {
        !self.leaves && self.registered >= self.waiter.keys.len() / 2
    }

    /// Goes on; false if that was all.
    pub(crate) fn advance(&mut self, server: &Server, local: &mut Local) -> bool {
        let (park, keyspace, waiter) = (&server.park, &server.keyspace, &self.waiter);
        if self.leaves {
            let from = self.registered.saturating_sub(AT_ONCE);
            park.remove(keyspace, waiter, from..self.registered);
            self.registered = from;
            return from > 0;
        }
        let to = waiter.keys.len().min(self.registered + AT_ONCE);
        let some = self.registered..to;
        if park.add(keyspace, waiter, some.clone()) {
            self.registered = to;
            let mut out = Reply::new(waiter.resp3);
            match park.look(server, local, waiter, some, &mut out) {
                Some(found) => deliver(server, local, waiter, found, out),
                None if to < waiter.keys.len() => return true,
                None => {}
            }
        }
        self.leaves = !park.is_in(waiter, self.registered);
        self.leaves && self.registered > 0
    }
}

/// Answers a client that was served while it was registered.
fn deliver(server: &Server, local: &mut Local, waiter: &Arc<Waiter>, found: Found, out: Reply) {
    let Found::Served(changes, stream) = found else {
        return server.send(waiter.loop_id, Mail::Serve(waiter.clone()));
    };
    let reply = Mail::Reply { client: waiter.client, bytes: out.into_bytes(), stream };
    server.send(waiter.loop_id, reply);
    server.after(local, changes);
}

impl Park {
    /// Registers a waiter for its keys, of many in slices; what it finds there. O(its keys), at most [`AT_ONCE`].
    pub(super) fn register(
        &self,
        server: &Server,
        local: &mut Local,
        waiter: &Arc<Waiter>,
        out: &mut Reply,
    ) -> Option<Found> {
        let keys = waiter.keys.len();
        if keys > AT_ONCE {
            let work = Registering { waiter: waiter.clone(), registered: 0, leaves: false };
            local.works.push(Box::new(work));
            return None;
        }
        let registered = if self.add(&server.keyspace, waiter, 0..keys) { keys } else { 0 };
        let found = self.look(server, local, waiter, 0..registered, out);
        if !self.is_in(waiter, registered) {
            self.remove(&server.keyspace, waiter, 0..registered);
        }
        found
    }

    /// Registers it for some keys, unless it does not wait any more.
    fn add(&self, keyspace: &keyspace::Keyspace, waiter: &Arc<Waiter>, keys: Range<usize>) -> bool {
        let keys = &waiter.keys[keys];
        {
            let mut tables = self.tables.lock();
            if !tables.has(waiter) {
                return false;
            }
            for id in keys {
                let queue = tables.by_key.entry(id.clone()).or_default().of(waiter.kind);
                queue.into_iter().for_each(|queue| drop(queue.insert(waiter.number, waiter.clone())));
            }
        }
        keys.iter().for_each(|(db, key)| keyspace.block(*db, key));
        true
    }

    /// Says that nobody registers it any more; whether it is registered for all its keys, and waits (W2).
    fn is_in(&self, waiter: &Arc<Waiter>, registered: usize) -> bool {
        let tables = self.tables.lock();
        waiter.registering.store(false, Ordering::Relaxed);
        registered == waiter.keys.len() && tables.has(waiter)
    }

    fn remove(&self, keyspace: &keyspace::Keyspace, waiter: &Waiter, keys: Range<usize>) {
        let keys = &waiter.keys[keys];
        {
            let mut tables = self.tables.lock();
            for id in keys {
                if let Some(queues) = tables.by_key.get_mut(id) {
                    queues.of(waiter.kind).into_iter().for_each(|queue| drop(queue.remove(&waiter.number)));
                    if queues.is_empty() {
                        tables.by_key.remove(id);
                    }
                }
            }
        }
        keys.iter().for_each(|(db, key)| keyspace.unblock(*db, key));
    }

    /// Takes a waiter that is claimed out of everything (W1, W2). O(its keys), at most [`AT_ONCE`].
    pub(super) fn forget(&self, server: &Server, local: &mut Local, waiter: &Arc<Waiter>) {
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
            return self.remove(&server.keyspace, waiter, 0..keys);
        }
        let work = Registering { waiter: waiter.clone(), registered: keys, leaves: true };
        local.works.push(Box::new(work));
    }

    /// Looks at keys it was just registered for (W3); who holds it at this moment looks for it (P5).
    fn look(
        &self,
        server: &Server,
        local: &mut Local,
        waiter: &Arc<Waiter>,
        keys: Range<usize>,
        out: &mut Reply,
    ) -> Option<Found> {
        for id in &waiter.keys[keys] {
            if !is_filled(server, local, waiter, id) {
                continue;
            }
            if !waiter.claim.take_or_note() {
                return None;
            }
            let found = hold(server, local, waiter, id, out);
            if found.is_some() {
                self.forget(server, local, waiter);
                return found;
            }
        }
        None
    }
}
