//! Client-side caching: clients that keep copies of keys are told when the copies are old (CLIENT TRACKING).
//!
//! ```text
//! read ──► keyspace: key ─► clients          (`keyspace/src/tracked.rs`)       Peer::keys: what the client has read
//! write ─► few readers ──────────────► their inboxes ─letter─► their loops ─► their sockets
//!      └─► many, or all, or prefixes ─► a task of some loop ─► inboxes, in slices
//! ```
//!
//! - TK1: a write puts a name into at most [`FEW`] inboxes. For more readers it hands their list to a task,
//!   and so do FLUSH and broadcasts. So nobody waits for the readers of a key.
//! - TK2: an inbox is bounded. One that is full becomes a single message: everything is old.
//! - TK3: a message about a write stands behind the reply of any read that the write came after. A reader's
//!   loop registers it under the lock of its read, writes the reply, and opens its inbox only then. While a
//!   command of the client runs elsewhere its inbox stays closed. While it is blocked, messages about writes
//!   of its own command stay until the reply.
//! - TK4: each registration of a key stands in the shard and in [`Peer::keys`], with the same number. The shard
//!   gives it up first. A client that goes takes its keys back in slices, and nobody else's.
//! - TK5: locks are taken in this order: shard, `broadcasts`, `peers`, keys or inbox of a peer, mailbox.
//! - TK6: a message for a target of REDIRECT goes to the inbox of the target. If there is none the client hears
//!   `tracking-redir-broken`, with each message.
//!
//! Cost: a short lock for each reader that is told; memory O(keys of all readers), bounded by
//! `tracking-table-max-keys`, and at most some [`inbox::BYTES_MAX`] for each inbox.

mod broadcast;
mod inbox;
mod task;

pub use broadcast::overlap;
pub use task::Task;

use broadcast::Broadcasts;
pub use inbox::Hearer;
use inbox::{Inbox, Item, What};
use keyspace::{Author, Crowd, Keyspace, Lsn, Reader, Readers, View};
use parking_lot::{Mutex, RwLock};
use resp::Reply;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Readers of a key that its writer tells itself.
const FEW: usize = 16;

/// Bits of a client's mode.
mod mode {
    pub const ON: u32 = 1;
    pub const BCAST: u32 = 2;
    pub const NOLOOP: u32 = 4;
    pub const OPTIN: u32 = 8;
}

/// The options of CLIENT TRACKING ON.
#[derive(Default, Clone, Debug)]
pub struct Options {
    pub bcast: bool,
    pub noloop: bool,
    pub optin: bool,
    pub optout: bool,
    /// The client that gets the messages; 0: the client itself.
    pub redirect: u64,
    /// With BCAST: the beginnings of names.
    pub prefixes: Vec<Box<[u8]>>,
}

/// The tracking of one client, as its session keeps it.
pub struct Mine {
    pub peer: Arc<Peer>,
    pub options: Options,
    /// CLIENT CACHING was given.
    pub caching: bool,
}

impl Mine {
    /// Whether keys that the client reads now are remembered.
    pub fn remembers(&self) -> bool {
        let Options { bcast, optin, optout, .. } = self.options;
        !bcast && if self.caching { !optout } else { !optin }
    }
}

/// A letter to a loop.
pub enum Letter {
    /// The inbox of this client has something.
    Inbox(u64),
    /// Work that any loop can do in slices.
    Task(Task),
}

/// Sends a letter to the loop that it is for.
pub type Post = Box<dyn Fn(Letter) + Send + Sync>;

/// Names of keys that a client has read, and the number of each registration (TK4).
#[derive(Default)]
struct Names {
    names: BTreeMap<Arc<[u8]>, u64>,
    last: u64,
    /// The keyspace's epoch that they are of.
    epoch: u64,
}

/// A client that tracks, or gets the messages of another.
pub struct Peer {
    id: u64,
    mode: AtomicU32,
    redirect: AtomicU64,
    /// Registrations up to this number are given up: tracking has ended since.
    floor: AtomicU64,
    keys: Mutex<Names>,
    inbox: Inbox,
}

impl Peer {
    fn new(id: u64) -> Peer {
        let (mode, redirect, floor) = Default::default();
        Peer { id, mode, redirect, floor, keys: Mutex::default(), inbox: Inbox::default() }
    }

    fn has(&self, bits: u32) -> bool {
        self.mode.load(Ordering::Relaxed) & bits == bits
    }

    /// Whether a read that a loop did for the client is remembered without CLIENT CACHING.
    pub fn remembers_all(&self) -> bool {
        self.has(mode::ON) && !self.has(mode::BCAST) && !self.has(mode::OPTIN)
    }

    /// Registers the client as a reader of a key. The view holds the key's shard. O(log keys).
    pub fn remember(&self, view: &mut View<'_>, key: &[u8]) {
        self.remember_since(view, key, None);
    }

    /// As `remember`, for a read at an LSN. True: the key may have changed since.
    fn remember_since(&self, view: &mut View<'_>, key: &[u8], since: Option<Lsn>) -> bool {
        let floor = self.floor.load(Ordering::Relaxed);
        let number = &mut |name: &Arc<[u8]>, epoch| self.note(name, epoch);
        let mut reader = Reader { client: self.id, floor, number };
        match since {
            Some(since) => view.track_since(key, since, &mut reader),
            None => {
                view.track(key, &mut reader);
                false
            }
        }
    }

    /// Notes a key, and numbers its registration.
    fn note(&self, name: &Arc<[u8]>, epoch: u64) -> u64 {
        let mut keys = self.keys.lock();
        keys.begin(epoch);
        keys.last += 1;
        let number = keys.last;
        keys.names.insert(name.clone(), number);
        number
    }

    /// Whether its inbox has something. Cost: one load.
    #[inline]
    pub fn has_mail(&self) -> bool {
        self.inbox.has_mail()
    }
}

impl Names {
    /// Forgets the keys of an earlier epoch: all tables were emptied since.
    fn begin(&mut self, epoch: u64) {
        if self.epoch < epoch {
            self.epoch = epoch;
            stdx::reclaim::discard(std::mem::take(&mut self.names));
        }
    }

    fn forget(&mut self, key: &[u8], number: u64) {
        if self.names.get(key) == Some(&number) {
            self.names.remove(key);
        }
    }
}

/// How an inbox was emptied.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// There is more in it, and a letter has to be sent.
    pub more: bool,
    /// The target of REDIRECT is gone.
    pub broken: bool,
}

/// The clients that track, on one server.
pub struct Tracking {
    post: Post,
    peers: RwLock<BTreeMap<u64, Arc<Peer>>>,
    /// How many track. Held while the keyspace is told whether anybody does.
    clients: Mutex<usize>,
    count: AtomicUsize,
    broadcasts: Broadcasts,
    /// The newest epoch, and whether a task tells of it.
    epoch: AtomicU64,
    emptying: AtomicBool,
    trimming: AtomicBool,
}

impl Tracking {
    pub fn new(post: Post) -> Tracking {
        let (epoch, emptying, trimming) = Default::default();
        Tracking {
            post,
            peers: RwLock::default(),
            clients: Mutex::default(),
            count: AtomicUsize::new(0),
            broadcasts: Broadcasts::default(),
            epoch,
            emptying,
            trimming,
        }
    }

    /// Clients that track, and prefixes that are broadcast.
    pub fn figures(&self) -> (usize, usize) {
        (self.count.load(Ordering::Relaxed), self.broadcasts.len())
    }

    /// Whether a client has an inbox. O(log clients).
    pub fn peer(&self, id: u64) -> Option<Arc<Peer>> {
        self.peers.read().get(&id).cloned()
    }

    /// Makes an inbox for the target of a REDIRECT. O(log clients).
    pub fn expect(&self, id: u64) -> Arc<Peer> {
        self.peers.write().entry(id).or_insert_with(|| Arc::new(Peer::new(id))).clone()
    }

    /// A client tracks from now on, or in another way. `prefixes` come on top of those it has. O(prefixes ·
    /// log).
    pub fn begin(&self, keyspace: &Keyspace, id: u64, options: &Options) -> Arc<Peer> {
        let peer = self.expect(id);
        let bits =
            [(options.bcast, mode::BCAST), (options.noloop, mode::NOLOOP), (options.optin, mode::OPTIN)];
        let bits = bits.iter().filter(|(on, _)| *on).fold(mode::ON, |bits, (_, bit)| bits | bit);
        peer.redirect.store(options.redirect, Ordering::Relaxed);
        let before = peer.mode.swap(bits, Ordering::Relaxed);
        options.prefixes.iter().for_each(|prefix| self.broadcasts.add(prefix, id));
        if before & mode::ON == 0 {
            let mut clients = self.clients.lock();
            *clients += 1;
            self.count.store(*clients, Ordering::Relaxed);
            keyspace.set_tracking(true);
        }
        peer
    }

    /// A client tracks no more: what is left of it is a task. O(its prefixes).
    pub fn end(&self, keyspace: &Keyspace, peer: &Peer, prefixes: &[Box<[u8]>]) -> Option<Task> {
        if peer.mode.swap(0, Ordering::Relaxed) & mode::ON == 0 {
            return None;
        }
        prefixes.iter().for_each(|prefix| self.broadcasts.remove(prefix, peer.id));
        let mut clients = self.clients.lock();
        *clients -= 1;
        self.count.store(*clients, Ordering::Relaxed);
        if *clients == 0 {
            keyspace.set_tracking(false);
        }
        drop(clients);
        let mut keys = peer.keys.lock();
        peer.floor.store(keys.last, Ordering::Relaxed);
        let names = std::mem::take(&mut keys.names);
        drop(keys);
        (!names.is_empty()).then(|| Task::forget(peer.id, names))
    }

    /// A client disconnects. The target of its REDIRECT hears that all is old: nobody would tell it any more.
    pub fn leave(&self, id: u64) {
        let Some(peer) = self.peers.write().remove(&id) else { return };
        let target = peer.redirect.load(Ordering::Relaxed);
        if let Some(target) = self.peer(target) {
            self.put(&target, Item { what: What::All, redirected: true, behind_reply: false });
        }
    }

    /// Tells a client.
    fn tell(&self, peer: &Peer, what: What) {
        match peer.redirect.load(Ordering::Relaxed) {
            0 => self.put(peer, Item { what, redirected: false, behind_reply: Author::is_serving(peer.id) }),
            target => match self.peer(target) {
                Some(target) => self.put(&target, Item { what, redirected: true, behind_reply: false }),
                None => self
                    .put(peer, Item { what: What::Broken(target), redirected: false, behind_reply: false }),
            },
        }
    }

    fn put(&self, peer: &Peer, item: Item) {
        if peer.inbox.put(item) {
            (self.post)(Letter::Inbox(peer.id));
        }
    }

    /// Tells a client that its registration of a key has ended.
    fn tell_reader(&self, key: &Arc<[u8]>, (id, number): (u64, u64), author: u64) {
        let Some(peer) = self.peer(id) else { return };
        peer.keys.lock().forget(key, number);
        let wants = peer.has(mode::ON) && !peer.has(mode::BCAST);
        if wants && !(id == author && peer.has(mode::NOLOOP)) {
            self.tell(&peer, What::Key(key.clone()));
        }
    }

    /// Writes some messages of a client's inbox, as its protocol has them. O(1): some 10 µs.
    pub fn take(&self, peer: &Peer, to: Hearer, out: &mut Reply) -> Taken {
        peer.inbox.take(peer.id, to, out)
    }

    /// Has a loop do a task.
    pub fn hand_on(&self, task: Task) {
        (self.post)(Letter::Task(task));
    }

    /// Tells a client that its copy of a key is old, whatever it has read.
    pub fn tell_key(&self, peer: &Peer, key: &[u8]) {
        self.tell(peer, What::Key(key.into()));
    }

    /// Has a loop look at the inbox again.
    pub fn remind(&self, id: u64) {
        (self.post)(Letter::Inbox(id));
    }

    /// Drops keys until there are no more than `max`, in slices. 0: there may be any number.
    pub fn trim(&self, keyspace: &Keyspace, max: usize) {
        if max == 0 || keyspace.tracked().0 <= max {
            return;
        }
        // The usual case: a read brought one more.
        if keyspace.trim_tracked(max)
            && keyspace.trim_tracked(max)
            && !self.trimming.swap(true, Ordering::AcqRel)
        {
            (self.post)(Letter::Task(Task::trim(max)));
        }
    }
}

impl Readers for Tracking {
    fn want_all(&self) -> bool {
        self.broadcasts.len() > 0
    }

    fn written(&self, key: &[u8]) {
        let author = Author::now();
        let left_out = author != 0 && self.peer(author).is_some_and(|peer| peer.has(mode::NOLOOP));
        self.broadcasts.written(key, if left_out { author } else { 0 }, &mut |prefix| {
            (self.post)(Letter::Task(Task::broadcast(prefix)));
        });
    }

    fn changed(&self, key: Arc<[u8]>, readers: Crowd) {
        let author = Author::now();
        match readers {
            Crowd::One(id, number) => self.tell_reader(&key, (id, number), author),
            Crowd::Many(readers) if readers.len() <= FEW => {
                readers.into_iter().for_each(|reader| self.tell_reader(&key, reader, author));
            }
            Crowd::Many(mut readers) => {
                if Author::is_serving(author)
                    && let Some(number) = readers.remove(&author)
                {
                    self.tell_reader(&key, (author, number), author);
                }
                (self.post)(Letter::Task(Task::fan_out(key, readers, author)));
            }
        }
    }

    fn emptied(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::SeqCst);
        if !self.emptying.swap(true, Ordering::SeqCst) {
            (self.post)(Letter::Task(Task::emptied()));
        }
    }
}

#[cfg(test)]
mod tests;
