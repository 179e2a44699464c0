//! What threads tell an event loop: one queue per loop, and an eventfd that wakes it.
//!
//! - M1: mail from one sender arrives in order.
//! - M2: the eventfd is written only when the loop may be asleep: once per batch, not once per letter.

use crate::job::Job;
use command::Stream;
use keyspace::{Chunk, Keyspace, Owned};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stdx::hash::hash_bytes;

/// A published message, on its way to one loop's subscribers.
#[derive(Clone)]
pub struct Published {
    pub kind: crate::pubsub::Kind,
    /// The channel the message was published to.
    pub channel: Arc<[u8]>,
    /// The pattern that matched it, for pattern subscribers.
    pub pattern: Option<Arc<[u8]>>,
    pub payload: crate::pubsub::Shared,
    /// Subscriptions of the loop it matched.
    pub count: usize,
}

/// Keys of an active snapshot to be read, and who waits for them.
pub struct ReadKeys {
    pub lsn: keyspace::Lsn,
    pub keys: Vec<(usize, Box<[u8]>)>,
    pub found: Vec<Option<Owned>>,
    /// How many keys around the first are read along with it, and what they are.
    pub near: usize,
    pub around: Around,
    /// Instead of keys: part of the whole (database, from where, about how many keys).
    pub part: Option<(usize, u64, usize)>,
    pub chunk: Chunk,
    pub reply: Arc<Answer>,
}

/// Part of the hash order from the first key on, to before `to`, and all keys in it.
#[derive(Default)]
pub struct Around {
    pub to: u64,
    pub keys: Vec<(u64, Box<[u8]>, Owned)>,
}

impl ReadKeys {
    /// Reads some more; true when all is read. Cost: O(count + near).
    pub fn read_some(&mut self, keyspace: &Keyspace, count: usize) -> bool {
        if let Some((db, position, want)) = self.part {
            return keyspace.extend_chunk(self.lsn, db, position, want, &mut self.chunk);
        }
        let end = (self.found.len() + count).min(self.keys.len());
        let batch = self.keys[self.found.len()..end].iter();
        let batch = batch.map(|(db, key)| (hash_bytes(key), *db, &**key));
        keyspace.read_batch(self.lsn, batch, &mut self.found);
        if self.found.len() < self.keys.len() {
            return false;
        }
        if let (Some((db, key)), true) = (self.keys.first(), self.near > 0) {
            let Around { to, keys } = &mut self.around;
            *to = keyspace.read_near(self.lsn, *db, hash_bytes(key), self.near, &mut |hash, key, owned| {
                keys.push((hash, key.into(), owned));
            });
        }
        true
    }

    /// Gives it back to who asked.
    pub fn answer(self: Box<Self>) {
        let reply = self.reply.clone();
        reply.put(self);
    }
}

/// Where a thread waits for the keys it asked for.
#[derive(Default)]
pub struct Answer {
    slot: Mutex<Option<Box<ReadKeys>>>,
    came: Condvar,
}

impl Answer {
    fn put(&self, read: Box<ReadKeys>) {
        *self.slot.lock() = Some(read);
        self.came.notify_one();
    }

    /// Waits for the answer; None if it does not come within a second.
    pub fn wait(&self) -> Option<Box<ReadKeys>> {
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
    /// Keys were filled that somebody waits for.
    Ready(Vec<(usize, Box<[u8]>)>),
    Publish(Published),
    /// Close this client, its replies so far unsent.
    Kill {
        client: u64,
    },
    /// CLIENT PAUSE ended, or something else parked clients should look at again.
    Retry,
    /// A connection for this loop; what it is only `net` knows.
    Adopt(Box<dyn std::any::Any + Send>),
    Shutdown,
}

/// One loop's queue.
pub struct Mailbox {
    queue: Mutex<Vec<Mail>>,
    fd: OwnedFd,
    rung: AtomicBool,
}

impl Mailbox {
    pub fn new() -> std::io::Result<Mailbox> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Mailbox { queue: Mutex::default(), fd, rung: AtomicBool::new(false) })
    }

    /// Never blocks for longer than another letter takes to be put in.
    pub fn send(&self, mail: Mail) {
        self.queue.lock().push(mail);
        if !self.rung.swap(true, Ordering::AcqRel) {
            // It can only fail when the counter is full, and then the loop is awake already.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// True if there may be mail: the loop must not sleep.
    pub fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    /// Takes all mail; for the loop itself.
    pub fn drain(&self, into: &mut Vec<Mail>) {
        if self.rung.swap(false, Ordering::AcqRel) {
            let mut counter = [0u8; 8];
            let _ = rustix::io::read(&self.fd, &mut counter);
            into.append(&mut self.queue.lock());
        }
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
