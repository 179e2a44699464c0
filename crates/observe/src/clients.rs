//! The registry of all connected clients, by id.

use crate::client::{ClientInfo, flag};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Clients copied under one lock.
const PAGE: usize = 64;

/// Every connected client.
pub struct Clients {
    by_id: Mutex<BTreeMap<u64, Arc<ClientInfo>>>,
    /// Clients of each address; those of unix sockets have none.
    by_address: Mutex<HashMap<Box<str>, usize>>,
    connected: AtomicUsize,
    last_id: AtomicU64,
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub handshakes: Handshakes,
    /// Clients with subscriptions, clients that watch keys, and the keys they watch.
    subscribed: AtomicUsize,
    watching: AtomicUsize,
    watched_keys: AtomicUsize,
    /// By loop.
    buffers: Box<[Buffers]>,
    /// Held while a loop decides whether to close a client: two loops that see the same excess close one.
    deciding: Mutex<()>,
}

/// Handshakes of TLS: under way, ended well, and failed.
#[derive(Default)]
pub struct Handshakes {
    pub waiting: AtomicU64,
    pub done: AtomicU64,
    pub failed: AtomicU64,
}

impl Handshakes {
    /// The figures for INFO.
    pub fn figures(&self) -> [(&'static str, u64); 3] {
        let [waiting, done, failed] =
            [&self.waiting, &self.done, &self.failed].map(|figure| figure.load(Ordering::Relaxed));
        [
            ("tls_handshakes_waiting", waiting),
            ("tls_handshakes_done", done),
            ("tls_handshakes_failed", failed),
        ]
    }
}

/// Bytes in the buffers of one loop's clients, as of the loop's last look at all of them.
#[derive(Default)]
struct Buffers {
    all: AtomicU64,
    input_max: AtomicU64,
    output_max: AtomicU64,
    /// Memory of the heaviest client that may be closed for it.
    heaviest: AtomicU64,
}

/// Bytes in the buffers of several clients, and the most that one client had unread or unsent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffered {
    pub all: u64,
    pub input_max: u64,
    pub output_max: u64,
}

impl Buffered {
    /// Adds one client: bytes received and not yet run, bytes not yet sent, and its other memory. Returns the
    /// sum of the three.
    pub fn add(&mut self, input: u64, output: u64, other: u64) -> u64 {
        let its = input + output + other;
        self.all += its;
        self.input_max = self.input_max.max(input);
        self.output_max = self.output_max.max(output);
        its
    }
}

/// An address without its port.
fn host(address: &str) -> Option<&str> {
    address.rsplit_once(':').map(|(host, _)| host)
}

impl Clients {
    /// Creates an empty registry for a server with `loops` loops.
    pub fn new(loops: usize) -> Clients {
        Clients {
            by_id: Mutex::default(),
            by_address: Mutex::default(),
            connected: AtomicUsize::new(0),
            last_id: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            handshakes: Handshakes::default(),
            subscribed: AtomicUsize::new(0),
            watching: AtomicUsize::new(0),
            watched_keys: AtomicUsize::new(0),
            buffers: (0..loops).map(|_| Buffers::default()).collect(),
            deciding: Mutex::default(),
        }
    }

    pub fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub fn add(&self, info: Arc<ClientInfo>) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.connected.fetch_add(1, Ordering::Relaxed);
        if let Some(host) = host(&info.address).filter(|_| !info.unix) {
            *self.by_address.lock().entry(host.into()).or_default() += 1;
        }
        self.by_id.lock().insert(info.id, info);
    }

    pub fn remove(&self, id: u64) {
        let Some(info) = self.by_id.lock().remove(&id) else { return };
        self.connected.fetch_sub(1, Ordering::Relaxed);
        if let Some(host) = host(&info.address).filter(|_| !info.unix) {
            let mut counts = self.by_address.lock();
            let count = counts.get(host).map_or(0, |count| count - 1);
            match count {
                0 => drop(counts.remove(host)),
                count => *counts.entry(host.into()).or_default() = count,
            }
        }
    }

    /// The number of clients from the same address as this one, which has its port behind it. O(1).
    pub fn count_of(&self, address: &str) -> usize {
        host(address).and_then(|host| self.by_address.lock().get(host).copied()).unwrap_or(0)
    }

    pub fn get(&self, id: u64) -> Option<Arc<ClientInfo>> {
        self.by_id.lock().get(&id).cloned()
    }

    /// The number of connected clients. O(1).
    pub fn len(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes whether a client has any subscription. Only its loop may call it; repeated calls count once.
    pub fn note_subscribed(&self, info: &ClientInfo, now: bool) {
        let before = match now {
            true => info.flags.fetch_or(flag::PUBSUB, Ordering::Relaxed),
            false => info.flags.fetch_and(!flag::PUBSUB, Ordering::Relaxed),
        };
        match (before & flag::PUBSUB != 0, now) {
            (false, true) => self.subscribed.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.subscribed.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }

    /// Notes how many keys a client watches from now on. Only its loop may call it.
    pub fn note_watching(&self, info: &ClientInfo, keys: usize) {
        let before = info.watching.swap(keys as u32, Ordering::Relaxed) as usize;
        match (before, keys) {
            (0, 0) => return,
            (0, _) => self.watching.fetch_add(1, Ordering::Relaxed),
            (_, 0) => self.watching.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        // Wrapping arithmetic: a negative difference works, too.
        self.watched_keys.fetch_add(keys.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Stores what a loop found in the buffers of all its clients, and the memory of the heaviest that may be
    /// closed.
    pub fn note_buffers(&self, loop_id: usize, found: Buffered, heaviest: u64) {
        let buffers = &self.buffers[loop_id];
        buffers.all.store(found.all, Ordering::Relaxed);
        buffers.input_max.store(found.input_max, Ordering::Relaxed);
        buffers.output_max.store(found.output_max, Ordering::Relaxed);
        buffers.heaviest.store(heaviest, Ordering::Relaxed);
    }

    /// Whether a loop is to close its heaviest client, of so many bytes: all clients take `limit` bytes or
    /// more, and no other loop has told of a heavier one. The sum then counts it no more, and the loop's next
    /// heaviest has `next` bytes. O(loops)
    pub fn gives_up(&self, loop_id: usize, bytes: u64, next: u64, limit: u64) -> bool {
        let _one_at_a_time = self.deciding.lock();
        let heavier =
            |(id, other): (usize, &Buffers)| id != loop_id && other.heaviest.load(Ordering::Relaxed) > bytes;
        if self.buffered().all < limit || self.buffers.iter().enumerate().any(heavier) {
            return false;
        }
        let its = &self.buffers[loop_id];
        let rest = its.all.load(Ordering::Relaxed).saturating_sub(bytes);
        its.all.store(rest, Ordering::Relaxed);
        its.heaviest.store(next, Ordering::Relaxed);
        true
    }

    /// The loops' last findings added up. They are some 100 ms old, with many clients a second. O(loops).
    pub fn buffered(&self) -> Buffered {
        let mut sum = Buffered::default();
        for buffers in &self.buffers {
            sum.all += buffers.all.load(Ordering::Relaxed);
            sum.input_max = sum.input_max.max(buffers.input_max.load(Ordering::Relaxed));
            sum.output_max = sum.output_max.max(buffers.output_max.load(Ordering::Relaxed));
        }
        sum
    }

    /// Clients with subscriptions, clients that watch keys, and the number of keys they watch. O(1).
    pub fn engaged(&self) -> (usize, usize, usize) {
        let [subscribed, watching, keys] =
            [&self.subscribed, &self.watching, &self.watched_keys].map(|n| n.load(Ordering::Relaxed));
        (subscribed, watching, keys)
    }

    /// The next `max` clients after an id, oldest first. O(log clients + max); the lock is held while
    /// pointers are copied.
    pub fn page(&self, after: u64, max: usize) -> Vec<Arc<ClientInfo>> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        self.by_id.lock().range(range).take(max).map(|(_, info)| info.clone()).collect()
    }

    /// All clients, oldest first. A client that comes or goes meanwhile may be missed. The lock is held for
    /// one page at a time.
    pub fn each(&self) -> impl Iterator<Item = Arc<ClientInfo>> {
        let mut page = Vec::new().into_iter();
        let mut after = 0;
        std::iter::from_fn(move || {
            if page.len() == 0 {
                page = self.page(after, PAGE).into_iter();
            }
            let info: Arc<ClientInfo> = page.next()?;
            after = info.id;
            Some(info)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(id: u64) -> Arc<ClientInfo> {
        Arc::new(ClientInfo::new(id, 0, String::new(), String::new(), 0, false, 0))
    }

    #[test]
    fn who_subscribed_or_watches_is_counted_once_however_often_it_is_said() {
        let clients = Clients::new(1);
        let both = [client(1), client(2)];
        both.iter().for_each(|info| clients.add(info.clone()));
        for info in &both {
            clients.note_subscribed(info, true);
            clients.note_subscribed(info, true);
        }
        for keys in [1, 3, 3, 2] {
            clients.note_watching(&both[0], keys);
        }
        clients.note_watching(&both[1], 5);
        assert_eq!((clients.len(), clients.engaged()), (2, (2, 2, 7)));
        clients.note_subscribed(&both[0], false);
        clients.note_subscribed(&both[0], false);
        clients.note_watching(&both[0], 0);
        clients.note_watching(&both[0], 0);
        assert_eq!(clients.engaged(), (1, 1, 5));
        // An id that was never added cannot be removed.
        clients.remove(3);
        clients.remove(1);
        clients.remove(1);
        assert_eq!(clients.len(), 1);
    }

    #[test]
    fn buffers_of_all_loops_add_up() {
        let clients = Clients::new(2);
        let mut found = Buffered::default();
        found.add(10, 0, 5);
        found.add(0, 30, 0);
        clients.note_buffers(0, found, 0);
        clients.note_buffers(1, Buffered { all: 100, input_max: 60, output_max: 1 }, 0);
        assert_eq!(clients.buffered(), Buffered { all: 145, input_max: 60, output_max: 30 });
        clients.note_buffers(1, Buffered::default(), 0);
        assert_eq!(clients.buffered(), Buffered { all: 45, input_max: 10, output_max: 30 });
    }

    #[test]
    fn the_loop_with_the_heaviest_client_gives_it_up() {
        let clients = Clients::new(2);
        let of = |all: u64| Buffered { all, ..Buffered::default() };
        clients.note_buffers(0, of(100), 60);
        clients.note_buffers(1, of(100), 90);
        assert!(!clients.gives_up(0, 60, 20, 150), "the other loop has a heavier one");
        assert!(!clients.gives_up(1, 90, 10, 201), "it is not too much");
        assert!(clients.gives_up(1, 90, 10, 110));
        assert_eq!(clients.buffered().all, 110);
        assert!(!clients.gives_up(1, 10, 0, 110), "now the first loop has");
        assert!(clients.gives_up(0, 60, 20, 110));
        assert!(!clients.gives_up(0, 20, 0, 110));
    }
}
