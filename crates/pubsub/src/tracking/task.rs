//! Work of tracking that a loop does in slices.

use super::broadcast::Next;
use super::inbox::What;
use super::{Tracking, mode};
use keyspace::{Keyspace, Lsn, View};
use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Clients told, or keys looked at, in one slice: some 10 µs.
const AT_ONCE: usize = 32;

/// See the module.
pub struct Task(Kind);

enum Kind {
    /// A key that very many have read has changed.
    FanOut { key: Arc<[u8]>, readers: btree_map::IntoIter<u64, u64>, author: u64 },
    /// All keys are gone: the clients behind `after` are still to be told.
    Emptied { epoch: u64, after: u64 },
    /// Keys of a prefix changed: `next` is to be told to the clients behind `after`.
    Broadcast { prefix: Box<[u8]>, next: Option<Next>, after: u64 },
    /// Registrations of a client that are to be taken back.
    Forget { client: u64, names: btree_map::IntoIter<Arc<[u8]>, u64> },
    /// Keys that a client has read at `since`, and keys that it wrote to after it had read them.
    Remember {
        client: u64,
        keys: Box<dyn Iterator<Item = Box<[u8]>> + Send>,
        since: Lsn,
        stale: Vec<Box<[u8]>>,
    },
    /// The tables have more keys than they may.
    Trim { max: usize },
}

impl Task {
    pub(super) fn fan_out(key: Arc<[u8]>, readers: BTreeMap<u64, u64>, author: u64) -> Task {
        Task(Kind::FanOut { key, readers: readers.into_iter(), author })
    }

    pub(super) fn emptied() -> Task {
        Task(Kind::Emptied { epoch: 0, after: 0 })
    }

    pub(super) fn broadcast(prefix: &[u8]) -> Task {
        Task(Kind::Broadcast { prefix: prefix.into(), next: None, after: 0 })
    }

    pub(super) fn forget(client: u64, names: BTreeMap<Arc<[u8]>, u64>) -> Task {
        Task(Kind::Forget { client, names: names.into_iter() })
    }

    pub(super) fn trim(max: usize) -> Task {
        Task(Kind::Trim { max })
    }

    /// Registers a client for keys that it has read elsewhere, at the LSN `since` or later. Keys that may have
    /// changed since are told to it, and so are `stale` ones.
    pub fn remember(
        client: u64,
        keys: impl Iterator<Item = Box<[u8]>> + Send + 'static,
        since: Lsn,
        stale: Vec<Box<[u8]>>,
    ) -> Task {
        Task(Kind::Remember { client, keys: Box::new(keys), since, stale })
    }

    /// Does a slice; true if there is more.
    pub fn advance(&mut self, tracking: &Tracking, keyspace: &Keyspace) -> bool {
        match &mut self.0 {
            Kind::FanOut { key, readers, author } => {
                for reader in readers.by_ref().take(AT_ONCE) {
                    tracking.tell_reader(key, reader, *author);
                }
                readers.len() > 0
            }
            Kind::Emptied { epoch, after } => tell_all(tracking, epoch, after),
            Kind::Broadcast { prefix, next, after } => broadcast(tracking, prefix, next, after),
            Kind::Forget { client, names } => {
                for (key, number) in names.by_ref().take(AT_ONCE) {
                    keyspace.untrack(&key, *client, number);
                }
                names.len() > 0
            }
            Kind::Remember { client, keys, since, stale } => {
                remember(tracking, keyspace, *client, (keys, *since, stale))
            }
            Kind::Trim { max } => {
                let is_left = (0..AT_ONCE).all(|_| keyspace.trim_tracked(*max));
                if !is_left {
                    tracking.trimming.store(false, Ordering::Release);
                }
                is_left
            }
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Kind::Forget { names, .. } = &mut self.0
            && names.len() > 0
        {
            stdx::reclaim::discard(std::mem::take(names));
        }
    }
}

/// Tells all clients that everything is old. If that happens again meanwhile it begins anew.
fn tell_all(tracking: &Tracking, epoch: &mut u64, after: &mut u64) -> bool {
    if *after == 0 {
        *epoch = tracking.epoch.load(Ordering::SeqCst);
    }
    let peers = tracking.peers.read();
    let rest = peers.range((Bound::Excluded(*after), Bound::Unbounded)).take(AT_ONCE);
    let some: Vec<_> = rest.map(|(_, peer)| peer.clone()).collect();
    drop(peers);
    for peer in &some {
        peer.keys.lock().begin(*epoch);
        if peer.has(mode::ON) {
            tracking.tell(peer, What::All);
        }
        *after = peer.id;
    }
    if some.len() == AT_ONCE {
        return true;
    }
    *after = 0;
    tracking.emptying.store(false, Ordering::SeqCst);
    // A table emptied since then had no task made.
    tracking.epoch.load(Ordering::SeqCst) != *epoch && !tracking.emptying.swap(true, Ordering::SeqCst)
}

fn broadcast(tracking: &Tracking, prefix: &[u8], next: &mut Option<Next>, after: &mut u64) -> bool {
    if next.is_none() {
        (*next, *after) = (tracking.broadcasts.next(prefix), 0);
    }
    let Some(what) = &next else { return false };
    let clients = tracking.broadcasts.clients(prefix, *after, AT_ONCE);
    for client in &clients {
        *after = *client;
        let Some(peer) = tracking.peer(*client).filter(|peer| peer.has(mode::ON | mode::BCAST)) else {
            continue;
        };
        match what {
            Next::All => tracking.tell(&peer, What::All),
            Next::Keys(batch) if batch.is_all_of(*client) => {}
            Next::Keys(batch) => tracking.tell(&peer, What::Keys(batch.clone())),
        }
    }
    if clients.len() < AT_ONCE {
        *next = None;
    }
    true
}

/// The parts of a `Remember`.
type Read<'a> = (&'a mut Box<dyn Iterator<Item = Box<[u8]>> + Send>, Lsn, &'a mut Vec<Box<[u8]>>);

fn remember(tracking: &Tracking, keyspace: &Keyspace, client: u64, (keys, since, stale): Read<'_>) -> bool {
    let Some(peer) = tracking.peer(client).filter(|peer| peer.has(mode::ON) && !peer.has(mode::BCAST)) else {
        return false;
    };
    let mut count = 0;
    for key in keys.take(AT_ONCE) {
        let mut view = View::locked_one(keyspace, &key, 0, 0);
        view.set_quiet(true);
        let changed = peer.remember_since(&mut view, &key, Some(since));
        drop(view);
        if changed {
            tracking.tell(&peer, What::Key(key.into()));
        }
        count += 1;
    }
    if count == AT_ONCE {
        return true;
    }
    let own = !peer.has(mode::NOLOOP);
    for key in stale.drain(..stale.len().min(AT_ONCE)) {
        if own {
            tracking.tell(&peer, What::Key(key.into()));
        }
    }
    !stale.is_empty()
}
