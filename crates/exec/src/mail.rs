//! What threads tell an event loop: one queue per loop, and an eventfd that wakes it.
//!
//! - M1: mail from one sender arrives in order.
//! - M2: the eventfd is written only when the loop may be asleep: once per batch, not once per letter.

use crate::worker::Job;
use command::Stream;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A published message, on its way to one loop's subscribers.
#[derive(Clone)]
pub struct Published {
    pub kind: crate::pubsub::Kind,
    /// The channel the message was published to.
    pub channel: Arc<[u8]>,
    /// The pattern that matched it, for pattern subscribers.
    pub pattern: Option<Arc<[u8]>>,
    pub payload: Arc<[u8]>,
}

/// A key as it was at a snapshot: database, name, and what it held.
pub type Found = (usize, Box<[u8]>, Option<keyspace::Owned>);

/// Keys of an active snapshot to be read, and where the answer goes.
pub struct ReadKeys {
    pub lsn: keyspace::Lsn,
    pub keys: Vec<(usize, Box<[u8]>)>,
    pub reply: std::sync::mpsc::SyncSender<Vec<Found>>,
}

impl ReadKeys {
    /// Reads and answers. Cost: O(keys).
    pub fn answer(self, keyspace: &keyspace::Keyspace) {
        let read = |(db, key): (usize, Box<[u8]>)| {
            let base = keyspace.read_at(db, &key, self.lsn);
            (db, key, base)
        };
        let found = self.keys.into_iter().map(read).collect();
        // A thread that is gone needs no answer.
        let _ = self.reply.try_send(found);
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
    /// A job that left its worker: commit, load or repeat it.
    Job(Box<Job>),
    /// A script that left its thread.
    Script(Box<crate::scripts::ScriptJob>),
    /// A script's thread asks for keys: it may not lock shards itself.
    Read(Box<ReadKeys>),
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
