//! What threads tell an event loop: one queue per loop, and an eventfd that wakes it (`stdx::letterbox`).

use crate::job::Job;
use command::Stream;
use keyspace::{Chunk, KeyBatches, Keyspace, Owned};
use parking_lot::{Condvar, Mutex};
use resp::OwnedArgs;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use stdx::hash::hash_bytes;
use stdx::letterbox::{Bell, Letterbox};

/// Which keys are asked for.
pub enum Asked {
    /// Database and name.
    Named(Vec<(usize, Box<[u8]>)>),
    /// Words of a command, in one database: the number of the first, and the hash of each.
    Words(Arc<OwnedArgs>, usize, usize, Vec<u64>),
}

impl Asked {
    fn len(&self) -> usize {
        match self {
            Asked::Named(keys) => keys.len(),
            Asked::Words(_, _, _, hashes) => hashes.len(),
        }
    }
}

/// Keys of an active snapshot to be read, and who waits for them.
pub struct ReadKeys {
    pub lsn: keyspace::Lsn,
    /// When that counts as use of the keys asked for, if it does.
    pub used_ms: Option<u64>,
    pub asked: Asked,
    /// What the named ones were.
    pub found: Vec<Option<Owned>>,
    /// What the words' keys were.
    pub batches: KeyBatches,
    /// How many keys around the first are read along with it, up to which hash, and what they are.
    pub near: usize,
    pub until: u64,
    pub around: Around,
    /// Instead of keys: part of the whole (database, from where, about how many keys).
    pub part: Option<(usize, u64, usize)>,
    pub chunk: Chunk,
    /// It could not be read: a mistake in the program.
    pub broken: bool,
    pub reply: Arc<Answer<Box<ReadKeys>>>,
}

/// Neighbours read at a stretch: some 10 µs.
const NEAR_AT_ONCE: usize = 100;

/// Part of the hash order from the first key on, to before `to`, and all keys in it.
#[derive(Default)]
pub struct Around {
    pub to: u64,
    pub keys: KeyBatches,
}

impl ReadKeys {
    /// Reads some more; true when all is read. Cost: O(count + near).
    pub fn read_some(&mut self, keyspace: &Keyspace, count: usize) -> bool {
        if let Some((db, position, want)) = self.part {
            return keyspace.extend_chunk(self.lsn, db, position, want, &mut self.chunk);
        }
        let from = self.found.len() + self.batches.len();
        let end = (from + count).min(self.asked.len());
        match &self.asked {
            Asked::Named(keys) => {
                let batch = keys[from..end].iter().map(|(db, key)| (hash_bytes(key), *db, &**key));
                keyspace.read_batch(self.lsn, self.used_ms, batch, &mut self.found);
            }
            Asked::Words(words, db, first, hashes) => {
                let words = words.args();
                let batch = (from..end).map(|i| (hashes[i], words.at(first + i)));
                keyspace.read_many(self.lsn, self.used_ms, *db, batch, &mut self.batches);
            }
        }
        end == self.asked.len() && self.read_around(keyspace)
    }

    /// Reads some of what stands near the first key; true when that is enough.
    fn read_around(&mut self, keyspace: &Keyspace) -> bool {
        let Asked::Named(keys) = &self.asked else { return true };
        let Some((db, first)) = keys.first().filter(|_| self.near > 0) else { return true };
        let around = &mut self.around;
        let from = if around.to == 0 { hash_bytes(first) } else { around.to };
        let before = around.keys.len();
        around.to = keyspace.read_near(self.lsn, *db, from, NEAR_AT_ONCE, &mut around.keys);
        // Nothing is read where too much is going on.
        let stuck = around.to == from || around.to >= self.until;
        self.near = self.near.saturating_sub((around.keys.len() - before).max(NEAR_AT_ONCE / 4));
        stuck || self.near == 0
    }

    /// Gives it back to who asked.
    pub fn answer(self: Box<Self>) {
        let reply = self.reply.clone();
        reply.put(self);
    }
}

/// A script on a thread has a command performed that is no function of the keyspace.
pub struct Errand {
    pub client: u64,
    pub words: OwnedArgs,
    pub resp3: bool,
    pub reply: Arc<Answer<Vec<u8>>>,
}

/// Where a thread waits for what it asked for.
pub struct Answer<T> {
    slot: Mutex<Option<T>>,
    came: Condvar,
}

impl<T> Default for Answer<T> {
    fn default() -> Answer<T> {
        Answer { slot: Mutex::new(None), came: Condvar::new() }
    }
}

impl<T> Answer<T> {
    pub(crate) fn put(&self, read: T) {
        *self.slot.lock() = Some(read);
        self.came.notify_one();
    }

    /// Waits for the answer; None if it does not come within a second.
    pub fn wait(&self) -> Option<T> {
        let mut slot = self.slot.lock();
        while slot.is_none() {
            if self.came.wait_for(&mut slot, Duration::from_secs(1)).timed_out() {
                return slot.take();
            }
        }
        slot.take()
    }
}

/// A letter to a loop.
pub enum Mail {
    /// More effects are durable: replies that waited for that may leave.
    Durable,
    /// The reply a parked client waits for: encoded bytes, and what streams after them.
    Reply {
        client: u64,
        bytes: Vec<u8>,
        stream: Option<Box<dyn Stream>>,
    },
    /// A job that left its worker: see [`crate::job::finish`].
    Job(Box<Job>),
    /// A script that left its thread.
    Script(Box<crate::scripts::ScriptJob>),
    /// A script's thread asks for keys: it may not lock shards itself.
    Read(Box<ReadKeys>),
    /// A script's thread has something performed.
    Errand(Box<Errand>),
    /// What a committed script or transaction still has to do.
    Deeds(Box<crate::scripts::Deeds>),
    /// Keys were filled that somebody waits for.
    Ready(Vec<keyspace::Ready>),
    /// A client that waited has much to do: see [`crate::blocking::give_to_job`].
    Serve(Arc<crate::park::Waiter>),
    /// A job found nothing for a command that waits: see [`crate::blocking::wait`].
    Wait(Box<crate::blocking::Wait>),
    /// A message nobody waits for, that has patterns to pass, or many.
    Announce(pubsub::Announced),
    Publish(pubsub::Published),
    /// Close this client, its replies so far unsent.
    Kill {
        client: u64,
    },
    /// CLIENT PAUSE ended, or something else parked clients should look at again.
    Retry,
    /// Rows of sources came, or changed.
    Source(crate::rows::Letter),
    /// A long write that is the first of its line now.
    First(crate::lines::Write),
    /// A snapshot was closed, and this loop is the first that waits for one.
    Snapshot,
    /// A connection for this loop; what it is only `net` knows.
    Adopt(Box<dyn std::any::Any + Send>),
    Shutdown,
}

impl From<pubsub::Letter> for Mail {
    fn from(letter: pubsub::Letter) -> Mail {
        match letter {
            pubsub::Letter::Publish(message) => Mail::Publish(message),
            pubsub::Letter::Announce(announced) => Mail::Announce(announced),
        }
    }
}

/// An eventfd.
pub struct Eventfd(OwnedFd);

impl Bell for Eventfd {
    fn ring(&self) {
        // It can only fail when the counter is full, and then the loop is awake already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// One loop's queue. Whoever sleeps on its descriptor must do so for edges, not for levels: a late ring may stay unread.
pub struct Mailbox(Letterbox<Mail, Eventfd>);

impl Mailbox {
    pub fn new() -> std::io::Result<Mailbox> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Mailbox(Letterbox::new(Eventfd(fd))))
    }

    /// Never blocks for longer than another letter takes to be put in.
    pub fn send(&self, mail: Mail) {
        self.0.send(mail);
    }

    /// True if there may be mail: the loop must not sleep.
    pub fn is_rung(&self) -> bool {
        self.0.is_rung()
    }

    /// Takes all mail; for the loop itself.
    pub fn drain(&self, into: &mut Vec<Mail>) {
        self.0.drain(into);
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell().0.as_fd()
    }
}
