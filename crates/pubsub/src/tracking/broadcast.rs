//! BCAST: clients that are told of every key with some prefix, whether they have read it or not.
//!
//! - BC1: a write puts its key into the list of each of its prefixes, once, and that list into the hands of a
//!   task. The task tells the prefix's clients in slices, and meanwhile the next list grows.
//! - BC2: a message has at most [`KEYS_MAX`] keys. A list of more than [`PENDING_MAX`] keys becomes one
//!   message: everything is old.
//! - BC3: a key's prefixes are looked up by their lengths, so a write costs O(lengths · log prefixes).

use super::inbox::begin;
use parking_lot::Mutex;
use resp::Reply;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Keys of one message.
const KEYS_MAX: usize = 256;
/// Keys of one list.
const PENDING_MAX: usize = 64 * 1024;

/// The keys of one message, with the client that wrote each last; 0: none that has to be left out.
pub(super) struct Batch {
    keys: Vec<(Arc<[u8]>, u64)>,
    bytes: usize,
    /// The message in RESP2 and RESP3, for clients that wrote none of the keys.
    encoded: [OnceLock<Vec<u8>>; 2],
}

impl Batch {
    fn new(keys: Vec<(Arc<[u8]>, u64)>) -> Batch {
        let bytes = keys.iter().map(|(key, _)| key.len()).sum();
        Batch { keys, bytes, encoded: Default::default() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the client wrote all of them, and wants none of its own (NOLOOP).
    pub(super) fn is_all_of(&self, client: u64) -> bool {
        self.keys.iter().all(|(_, author)| *author == client)
    }

    /// Writes the message for a client; O(bytes). Keys that it wrote itself, with NOLOOP, are left out.
    pub(super) fn write(&self, client: u64, resp3: bool, out: &mut Reply) {
        if self.keys.iter().any(|(_, author)| *author == client) {
            return self.encode(client, resp3, out);
        }
        out.encoded(self.encoded[usize::from(resp3)].get_or_init(|| {
            let mut whole = Reply::new(resp3);
            self.encode(client, resp3, &mut whole);
            whole.into_bytes()
        }));
    }

    fn encode(&self, client: u64, resp3: bool, out: &mut Reply) {
        let keys = || self.keys.iter().filter(|(_, author)| *author != client);
        begin(resp3, out);
        out.array(keys().count());
        keys().for_each(|(key, _)| out.bulk(key));
    }
}

#[derive(Default)]
struct Prefix {
    clients: BTreeSet<u64>,
    /// Keys, and the client that wrote each last.
    pending: BTreeMap<Arc<[u8]>, u64>,
    /// There were too many (BC2).
    all: bool,
    /// A task has it.
    busy: bool,
}

#[derive(Default)]
struct Prefixes {
    by_name: BTreeMap<Box<[u8]>, Prefix>,
    /// How many prefixes have this length.
    lengths: BTreeMap<usize, usize>,
}

/// The prefixes of all clients.
#[derive(Default)]
pub(super) struct Broadcasts {
    prefixes: Mutex<Prefixes>,
    count: AtomicUsize,
}

/// The next thing that a task has to tell.
pub(super) enum Next {
    Keys(Arc<Batch>),
    All,
}

impl Broadcasts {
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, prefix: &[u8], client: u64) {
        let mut prefixes = self.prefixes.lock();
        if !prefixes.by_name.contains_key(prefix) {
            prefixes.by_name.insert(prefix.into(), Prefix::default());
            *prefixes.lengths.entry(prefix.len()).or_default() += 1;
        }
        prefixes.by_name.get_mut(prefix).into_iter().for_each(|known| _ = known.clients.insert(client));
        self.count.store(prefixes.by_name.len(), Ordering::Relaxed);
    }

    pub(super) fn remove(&self, prefix: &[u8], client: u64) {
        let mut prefixes = self.prefixes.lock();
        let Some(known) = prefixes.by_name.get_mut(prefix) else { return };
        known.clients.remove(&client);
        if known.clients.is_empty() {
            stdx::reclaim::discard(prefixes.by_name.remove(prefix));
            if let Some(count) = prefixes.lengths.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    prefixes.lengths.remove(&prefix.len());
                }
            }
        }
        self.count.store(prefixes.by_name.len(), Ordering::Relaxed);
    }

    /// Notes a key that was written to. `begins` is told of prefixes that need a task.
    pub(super) fn written(&self, key: &[u8], author: u64, begins: &mut dyn FnMut(&[u8])) {
        let mut prefixes = self.prefixes.lock();
        let Prefixes { by_name, lengths } = &mut *prefixes;
        let mut name: Option<Arc<[u8]>> = None;
        for length in lengths.range(..=key.len()).map(|(length, _)| *length) {
            let Some(prefix) = by_name.get_mut(&key[..length]) else { continue };
            if !prefix.all {
                let name = name.get_or_insert_with(|| key.into());
                prefix.pending.insert(name.clone(), author);
                if prefix.pending.len() > PENDING_MAX {
                    prefix.all = true;
                    stdx::reclaim::discard(std::mem::take(&mut prefix.pending));
                }
            }
            if !std::mem::replace(&mut prefix.busy, true) {
                begins(&key[..length]);
            }
        }
    }

    /// The next message of a prefix. None: there is none, and its task is over.
    pub(super) fn next(&self, prefix: &[u8]) -> Option<Next> {
        let mut prefixes = self.prefixes.lock();
        let known = prefixes.by_name.get_mut(prefix)?;
        if std::mem::take(&mut known.all) {
            return Some(Next::All);
        }
        let keys: Vec<_> = std::iter::from_fn(|| known.pending.pop_first()).take(KEYS_MAX).collect();
        known.busy = !keys.is_empty();
        known.busy.then(|| Next::Keys(Arc::new(Batch::new(keys))))
    }

    /// The next clients of a prefix behind `after`, at most `count`.
    pub(super) fn clients(&self, prefix: &[u8], after: u64, count: usize) -> Vec<u64> {
        let prefixes = self.prefixes.lock();
        let known = prefixes.by_name.get(prefix).into_iter();
        known
            .flat_map(|known| known.clients.range((Bound::Excluded(after), Bound::Unbounded)))
            .take(count)
            .copied()
            .collect()
    }
}

/// Two prefixes of which one begins with the other, the new one first. `known`: those that the client has, of
/// which none begins with another. The last part says whether the second is among `known`. O(n · log n).
pub fn overlap<'a>(known: &'a [Box<[u8]>], new: &'a [Box<[u8]>]) -> Option<(&'a [u8], &'a [u8], bool)> {
    let meet = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
    let mut sorted: Vec<(&[u8], Option<usize>)> = known.iter().map(|prefix| (&**prefix, None)).collect();
    sorted.extend(new.iter().enumerate().map(|(at, prefix)| (&**prefix, Some(at))));
    sorted.sort_unstable();
    // Texts that begin with a prefix stand right behind it. `above`: those that the current one begins with.
    let (mut above, mut first) = (Vec::<(&[u8], Option<usize>)>::new(), None::<usize>);
    for next in sorted {
        while above.pop_if(|last| !next.0.starts_with(last.0)).is_some() {}
        if let Some(last) = above.last() {
            first = [first, last.1, next.1].into_iter().flatten().min();
        }
        above.push(next);
    }
    let first = first?;
    let prefix = &new[first];
    let among = |others: &'a [Box<[u8]>]| others.iter().find(|other| meet(prefix, other));
    match among(known) {
        Some(other) => Some((prefix, other, true)),
        None => among(&new[first + 1..]).map(|other| (&**prefix, &**other, false)),
    }
}
